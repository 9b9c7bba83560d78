"""Rows of the data where the kernels want them, which values they miss, and labels of some of them.

Where values are missing rows of a block are worked on in an order by what they miss (`Plan`).

A label is a term of the sum (`Known`). With a label ``y`` the term of the hub whose party has it
grows by 0 for component ``y`` and by a number too large to be outweighed for all others, with
probabilities ``p_k`` by ``-2 log p_k``. The sum is then ``-2 log p_k f_k(x)``, so that EM maximizes
the log-likelihood of the rows and of what is known of them (McLachlan and Peel, Finite Mixture
Models, section 2.19).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.missing import marginal_diag, marginal_full
from vpem.checks import Doubles, Floats, Indices, Mask, Matrix, check_finite, row_blocks
from vpem.errors import InputError
from vpem.network.partition import Blocks
from vpem.terms.units import Add, Scaling, alone, deviations_of

TILE = 256
"""Most rows of a tile, as in the kernels."""

LEAST_APART, A_FEATURE = 2.0**12, 64.0
"""Twice the nats by which features of a row may at least speak against its label, in vain, and
for each feature where there are many: it may lie eight standard deviations away in all of them.
Terms keep digits beside it: a log-likelihood per sample is as exact as ``eps`` times it."""

MOST_APART = {8: 2.0**24, 4: 2.0**14}
"""The most by bytes of a number, whose digits hold the log-likelihoods of labelled rows too."""


class Rows(Protocol):
    """Rows in block order and in the units and precision of fitting."""

    n_samples: int
    dtype: np.dtype[np.floating]

    def runs(self) -> Iterator[slice]:
        """Runs of rows that are best read whole, in order."""

    def read(self, rows: slice) -> Floats:
        """A run of rows, shape (m, d), C-contiguous."""

    def take(self, indices: Indices) -> Floats:
        """Some rows, shape (len(indices), d)."""

    def select_rows(self, indices: Indices) -> Rows:
        """Some rows as rows of their own, kept in memory unless they are too many."""

    def slice_rows(self, rows: slice, following: slice | None = None) -> Rows:
        """A run of rows as rows of their own, counted from 0; ``following`` is read next."""

    def cut(self, step: int) -> None:
        """Let runs have so many rows, as those of other processes have."""


class Arranges(Matrix, Protocol):
    """A matrix that arranges its own rows, such as `vpem.files.matrix.FileMatrix`."""

    def arranged(self, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> Rows:
        """Return the rows in block order, in the units and precision of fitting."""


class Shaped:
    """The shape of a matrix that is read a run of rows at a time."""

    ndim = 2
    shape: tuple[int, int]
    dtype: np.dtype[np.floating]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size in memory, were it read whole."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize


class MemoryRows:
    """Rows of an array (M, d), in the user's order and units; used as it is where all agrees."""

    _step: int | None = None

    def __init__(self, X: Floats, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> None:
        if blocks.in_order and scaling.is_none:
            self._rows = blocks.arrange(X, np.dtype(dtype))
        else:
            self._rows = np.empty(X.shape, dtype=dtype)
            arrange_into(self._rows, X, blocks, scaling)
        self.n_samples = len(X)
        self.dtype = self._rows.dtype

    @classmethod
    def wrap(cls, rows: Floats) -> Self:
        """Wrap rows (m, d) that are in block order and in the units and precision of fitting."""
        block = cls.__new__(cls)
        block._rows, block.n_samples, block.dtype = rows, len(rows), rows.dtype
        return block

    def runs(self) -> Iterator[slice]:
        """All rows at once, unless they are cut."""
        step = self._step or max(1, self.n_samples)
        for start in range(0, max(1, self.n_samples), step):
            yield slice(start, min(start + step, self.n_samples))

    def cut(self, step: int) -> None:
        """Let runs have so many rows, as those of other processes have."""
        self._step = step

    def read(self, rows: slice | Indices) -> Floats:
        """A run of rows, or some, shape (m, d), C-contiguous."""
        return self._rows[rows]

    take = read

    def slice_rows(self, rows: slice | Indices, following: slice | None = None) -> MemoryRows:
        """A run of rows, or some, as rows of their own, counted from 0."""
        chosen = copy(self)
        chosen._rows = self._rows[rows]
        chosen.n_samples = len(chosen._rows)
        return chosen

    select_rows = slice_rows


def arrange_into(out: Floats, X: Floats, blocks: Blocks, scaling: Scaling) -> None:
    """Write rows in block order and fit units, a cache of them at a time."""
    for start, part in row_blocks(X):
        scaled = scaling.apply(part)
        ordered = scaled if blocks.in_order else scaled[:, blocks.order]
        out[start : start + len(part)] = ordered


def arrange_rows(X: Floats | Arranges, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> Rows:
    """Rows in block order and fit units, of an array or of what arranges its own rows."""
    if isinstance(X, np.ndarray):
        return MemoryRows(X, blocks, scaling, dtype)
    return X.arranged(blocks, scaling, dtype)


@dataclass(frozen=True)
class Plan:
    """In which order rows are worked on, block by block."""

    tiles: NDArray[np.intc]
    """Block, first place and end of a tile in ``order``, and 1 where more than half of the block is
    missing in its rows, (T, 4)."""
    order: NDArray[np.intc]
    """Rows (n,), those next to each other that miss the same values of the block. Rows of which a
    block has nothing are in none of its tiles."""
    pattern: NDArray[np.intc]  # (n,) equal for neighbours that miss the same values


def pattern_plan(observed: NDArray[np.uint8], blocks: Blocks) -> Plan:
    """Sort rows by what they miss of each block; ``observed`` (m, d) is in block order."""
    n_samples = len(observed)
    orders, patterns, tiles = [], [], []
    place = 0
    whole: int | None = None
    for b in range(blocks.n_blocks):
        width = int(blocks.widths[b])
        if width == 0 or n_samples == 0:
            continue
        of_block = observed[:, blocks.offsets[b] : blocks.offsets[b + 1]]
        if of_block.all():
            # Rows as they come, once for all such blocks.
            if whole is None:
                whole = place
                orders.append(np.arange(n_samples, dtype=np.intc))
                patterns.append(np.zeros(n_samples, dtype=np.intc))
                place += n_samples
            tiles.append(_tiles(b, whole, n_samples, 0))
            continue
        packed = np.packbits(of_block, axis=1)
        keys = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
        if packed.shape[1] <= 8:
            wide = np.zeros((n_samples, 8), dtype=np.uint8)
            wide[:, : packed.shape[1]] = packed
            keys = wide.view(np.uint64).ravel()
        _, number = np.unique(keys, return_inverse=True)
        n_there = of_block.sum(axis=1, dtype=np.intp)
        for direct in (False, True):
            rows = np.flatnonzero((n_there > 0) & ((2 * n_there < width) == direct))
            if len(rows) == 0:
                continue
            rows = rows[np.argsort(number[rows], kind="stable")]
            orders.append(rows.astype(np.intc))
            patterns.append(number[rows].astype(np.intc))
            tiles.append(_tiles(b, place, len(rows), int(direct)))
            place += len(rows)
    if not tiles:
        nothing = np.empty(0, dtype=np.intc)
        return Plan(np.empty((0, 4), dtype=np.intc), nothing, nothing)
    return Plan(np.concatenate(tiles), np.concatenate(orders), np.concatenate(patterns))


def _tiles(b: int, place: int, count: int, direct: int) -> NDArray[np.intc]:
    begins = np.arange(place, place + count, TILE)
    ends = np.minimum(begins + TILE, place + count)
    columns = [np.full(len(begins), b), begins, ends, np.full(len(begins), direct)]
    return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.intc)


def marginal_terms(
    rows: Floats,
    observed: NDArray[np.uint8],
    plan: Plan | None,
    blocks: Blocks,
    means: Floats,
    covariances: Floats,
    inverse: Floats,
    log_dets: Floats,
    n_threads: int,
) -> Floats:
    """Terms of each hub for what is observed, exactly 0 where it is nothing, shape (B, m, K).

    Rows and ``observed`` (m, d) are in block order; rows are finite where values are missing. A
    plan is needed where covariances are full. The parameters are as in `Mixture` and
    `vpem.terms.mixture.Factors`, in double precision.
    """
    out = np.zeros((blocks.n_blocks, len(rows), len(means)), dtype=rows.dtype)
    if covariances.ndim == 2:
        logs = np.ascontiguousarray(np.log(np.where(covariances > 0, covariances, 1.0)))
        marginal_diag(rows, observed, blocks.offsets, means, inverse, logs, out, n_threads)
    else:
        assert plan is not None
        marginal_full(
            rows, observed, blocks.offsets, plan.tiles, plan.order, plan.pattern, means,
            covariances, inverse, log_dets, out, n_threads,
        )  # fmt: skip
    return out


def check_missing(X: Matrix, feature_names: Sequence[str] | None = None) -> bool:
    """Whether values are missing (NaN), of data in which that is allowed.

    Infinite values are refused, as are missing ones in data that are read from disk.
    """
    is_missing = False
    for _, part in row_blocks(X):
        if np.isinf(part).any():
            check_finite(X, feature_names, gaps=True)
        is_missing = is_missing or bool(np.isnan(part).any())
    if is_missing and hasattr(X, "runs"):
        raise InputError(
            "which values are missing is kept in memory, but these data are read from disk; "
            "raise the memory limit, or fill in or remove such rows first"
        )
    return is_missing


def rows_with_values(X: Matrix, missing: str) -> Mask:
    """Rows (M,) that have a value: all of them, unless values may be missing."""
    if missing == "refuse":
        return np.ones(len(X), dtype=np.bool_)
    return np.concatenate(
        [np.empty(0, dtype=np.bool_), *(~np.isnan(part).all(axis=1) for _, part in row_blocks(X))]
    )


def check_values(X: Matrix) -> None:
    """Raise InputError where a row has no value at all, by which it would be near a centre."""
    for start, part in row_blocks(X):
        blank = np.flatnonzero(np.isnan(part).all(axis=1))
        if len(blank) and part.shape[1]:
            raise blank_row(start + int(blank[0]))


def blank_row(row: int) -> InputError:
    """Return the error of a row without any value, which no centre is nearest to."""
    return InputError(
        f"row {row} has no value at all, and is equally near to all centres; leave such rows out"
    )


def check_columns(
    X: Floats,
    feature_names: Sequence[str] | None = None,
    advice: str = "leave it out",
    elsewhere: Callable[[Mask], Mask] = np.asarray,
) -> None:
    """Raise InputError where a column has no value at all, saying what to do.

    ``elsewhere`` finds of which columns any process has a value, given those of this one.
    """
    has = np.asarray(~np.isnan(X).all(axis=0))
    empty = np.flatnonzero(~elsewhere(has))
    if len(empty):
        column = int(empty[0])
        name = "" if feature_names is None else f" ({feature_names[column]!r})"
        others = f", and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise InputError(
            f"feature {column}{name}{others} is missing in every row that is used; {advice}"
        )


def observed_moments(
    X: Matrix, row_weights: Doubles | None, add: Add = alone
) -> tuple[Doubles, Doubles]:
    """Return means and standard deviations (d,) of features, by their observed values.

    ``add`` adds sums over rows of all processes.
    """
    total, first, second = (np.zeros(X.shape[1]) for _ in range(3))
    every = np.ones(len(X)) if row_weights is None else row_weights
    for start, part in row_blocks(X):
        there, weights = ~np.isnan(part), every[start : start + len(part)]
        total += weights @ there
        first += weights @ np.where(there, part, 0).astype(np.float64)
    total, first = add(total), add(first)
    shift = first / np.where(total > 0, total, 1.0)
    for start, part in row_blocks(X):
        away = np.where(np.isnan(part), 0.0, part - shift)
        second += every[start : start + len(part)] @ np.square(away)
    return shift, deviations_of(shift, add(second) / np.where(total > 0, total, 1.0))


class Known:
    """What is known of some rows, by one of the hubs of this process.

    From the cost ``far`` (see `LEAST_APART`) on a component is out of reach. ``astray`` (n,) are
    responsibilities of such components at the latest E-step, at most at a root. To the hub's terms
    of ``rows`` (n,), ascending, ``costs`` (n, K) are added.
    """

    def __init__(self, hub: int, rows: Indices, costs: Doubles, far: float) -> None:
        self.hub, self.rows, self.costs, self.far = hub, rows, costs, far
        self.astray = np.zeros(len(rows))

    def _in(self, rows: slice) -> slice:
        return slice(*np.searchsorted(self.rows, [rows.start, rows.stop]))

    def add(self, terms: Floats, rows: slice) -> None:
        """Add to the terms (B, m, K) of these rows."""
        local = self._in(rows)
        terms[self.hub, self.rows[local] - rows.start] += self.costs[local].astype(terms.dtype)

    def look(self, responsibilities: Floats, rows: slice) -> None:
        """Note whether these rows (R, m, K) are where they belong."""
        local = self._in(rows)
        shares = responsibilities[:, self.rows[local] - rows.start]
        beyond = np.where(self.costs[local] >= self.far, shares, 0).sum(axis=2)
        self.astray[local] = beyond.max(axis=0, initial=0.0)

    def slice_rows(self, rows: slice) -> Known:
        """Return what is known of a run of rows, which are counted from 0 in it."""
        local = self._in(rows)
        return Known(self.hub, self.rows[local] - rows.start, self.costs[local], self.far)

    def select_rows(self, rows: Indices) -> Known:
        """Return what is known of some rows, which may come twice."""
        place = np.searchsorted(self.rows, rows)
        place[place == len(self.rows)] = 0
        known = np.flatnonzero(self.rows[place] == rows) if len(self.rows) else place[:0]
        return Known(self.hub, known, self.costs[place[known]], self.far)
