"""Rows of the data where the kernels want them, which values they miss, and labels of some of them.

`RowTerms` is what is the same for all local terms, whatever the densities are.

A label is a term of the sum (`Known`). With a label ``y`` the term of the hub whose party has it
grows by 0 for component ``y`` and by a number too large to be outweighed for all others, with
probabilities ``p_k`` by ``-2 log p_k``. The sum is then ``-2 log p_k f_k(x)``, so that EM maximizes
the log-likelihood of the rows and of what is known of them (McLachlan and Peel, Finite Mixture
Models, section 2.19).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem._core.normalise import normalise
from vpem.checks import Doubles, Floats, Indices, Mask, Matrix, check_finite, row_blocks
from vpem.errors import InputError
from vpem.network.partition import Blocks
from vpem.terms.units import Add, Scaling, alone, deviations_of

if TYPE_CHECKING:
    from vpem.terms.density import Density
    from vpem.terms.missing import Gaps

Held = TypeVar("Held")
"""Kind of mixture."""

CHUNK_BYTES = 1 << 24
"""Size aimed at for the terms of one chunk of rows, over all hubs or agents."""

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
        return self._rows[rows]

    take = read

    def slice_rows(self, rows: slice | Indices, following: slice | None = None) -> MemoryRows:
        chosen = copy(self)
        chosen._rows = self._rows[rows]
        chosen.n_samples = len(chosen._rows)
        return chosen

    select_rows = slice_rows


class SomeRows(MemoryRows):
    """Some of the rows of an array, of which a run at a time is copied, over the run before."""

    _latest: slice | None = None

    def __init__(self, rows: Floats, chosen: Indices) -> None:
        self._rows, self._chosen = rows, chosen
        self.n_samples, self.dtype = len(chosen), rows.dtype
        self._copy = rows[:0].copy()

    def read(self, rows: slice | Indices) -> Floats:
        chosen = self._chosen[rows]
        if not isinstance(rows, slice):
            return self._rows[chosen]
        if len(self._copy) < len(chosen):
            self._copy = np.empty((len(chosen), self._rows.shape[1]), self.dtype)
        copied = self._copy[: len(chosen)]
        if rows != self._latest:  # an M-step reads what the E-step before it has
            np.take(self._rows, chosen, axis=0, out=copied, mode="clip")
            self._latest = rows
        return copied

    take = read

    def slice_rows(self, rows: slice | Indices, following: slice | None = None) -> SomeRows:
        return SomeRows(self._rows, self._chosen[rows])

    select_rows = slice_rows


CACHE_VALUES = 1 << 15


def arrange_into(out: Floats, X: Floats, blocks: Blocks, scaling: Scaling) -> None:
    """Write rows in block order and fit units, a cache of them at a time."""
    step = max(1, CACHE_VALUES // max(X.shape[1], 1))
    for begin, part in row_blocks(X):
        for start in range(0, len(part), step):
            scaled = scaling.apply(part[start : start + step])
            ordered = scaled if blocks.in_order else scaled[:, blocks.order]
            out[begin + start : begin + start + len(scaled)] = ordered


def arrange_rows(X: Floats | Arranges, blocks: Blocks, scaling: Scaling, dtype: DTypeLike) -> Rows:
    """Rows in block order and fit units, of an array or of what arranges its own rows."""
    if isinstance(X, np.ndarray):
        return MemoryRows(X, blocks, scaling, dtype)
    return X.arranged(blocks, scaling, dtype)


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
        first += weights @ np.where(there, part, 0).astype(np.float64, copy=False)
    total, first = add(total), add(first)
    shift = first / np.where(total > 0, total, 1.0)
    for start, part in row_blocks(X):
        away = part - shift
        away[np.isnan(part)] = 0
        second += every[start : start + len(part)] @ np.square(away, out=away)
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


class RowTerms:
    """Rows in chunks, their weights, and responsibilities from sums."""

    units = 0  # power of two in which squared distances are counted under masks
    log_constant = 0.0
    constant_in_sums = False
    """Whether each hub adds its own part of that to what is summed, and it is 0 here."""
    least_rows = 0.5
    """Effective samples (sum of responsibilities) below which a component has collapsed, in rows:
    see `vpem.steps.runs.least_weight`."""
    known: Known | None = None  # labels, say, of some rows
    n_factors = 0  # that hubs share (`vpem.terms.factors.FactorTerms`)
    is_gaussian = True  # all features
    gaps: Gaps | None = None  # which values are missing; None: none are
    looks_at_gaps = False  # in the working memory, of every feature
    is_proper = False  # a prior keeps every component from being singular
    add_up: Callable[[Doubles], float] = staticmethod(np.sum)
    """Adds up a number of each hub here (B,), over all processes."""

    def __init__(
        self,
        rows: Rows,  # give chunks runs and precision
        blocks: Blocks,
        covariance_type: str,
        row_weights: Doubles | None,  # (M,); None: 1
        n_threads: int,
        dtype: np.dtype[np.floating],  # of the terms
    ) -> None:
        self.rows, self.blocks, self.covariance_type = rows, blocks, covariance_type
        self.n_threads, self.n_samples = n_threads, rows.n_samples
        self.row_weights = None if row_weights is None else np.ascontiguousarray(row_weights)
        self.total_weight = float(self.n_samples if row_weights is None else row_weights.sum())
        self.itemsize = dtype.itemsize
        """Bytes of a number that is sent."""
        self.resolution = float(np.finfo(dtype).eps) / 2
        """Relative change of a log-likelihood that rounding alone can make."""
        # Of all processes: features, and those of the widest hub.
        self.n_features = blocks.n_features
        self.widest = int(blocks.widths.max(initial=0))

    @property
    def observed(self) -> NDArray[np.uint8] | None:
        """1 where a value is there (M, d), in block order; None: all are."""
        return None if self.gaps is None else self.gaps.observed

    def slice_rows(self, rows: slice, following: slice | None = None) -> Self:
        """Return the terms of a run of rows, which are counted from 0 in it.

        ``following`` are rows that will be worked on next: of data in a file they are read ahead.
        """
        weights = None if self.row_weights is None else self.row_weights[rows]
        chosen = self._having(self.rows.slice_rows(rows, following), weights)
        chosen.known = None if self.known is None else self.known.slice_rows(rows)
        return chosen

    def select_rows(self, rows: Indices, row_weights: Doubles | None = None) -> Self:
        """Return the terms of some rows, for sweeps: rows may come twice, and weigh 1 or so much.

        They are read together, and kept in memory unless they are too many.
        """
        chosen = self._having(self.rows.select_rows(rows), row_weights)
        chosen.known = None if self.known is None else self.known.select_rows(rows)
        return chosen

    def _having(self, rows: Rows, row_weights: Doubles | None) -> Self:
        """Return the same terms of these rows."""
        chosen = copy(self)
        chosen.rows, chosen.row_weights, chosen.n_samples = rows, row_weights, rows.n_samples
        total = rows.n_samples if row_weights is None else row_weights.sum()
        chosen.total_weight = float(total)
        return chosen

    def __copy__(self) -> Self:
        """Return the same terms; as `copy` would, but in less time than a small batch takes."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def chunks(self, n_values: int) -> Iterator[slice]:
        """Yield runs of rows for which ``n_values`` numbers a row fit in the working memory."""
        n_values = max(1, n_values, self.n_features if self.looks_at_gaps else 0)
        step = max(64, CHUNK_BYTES // (self.itemsize * n_values))
        for run in self.rows.runs():
            for start in range(run.start, run.stop, step):
                yield slice(start, min(start + step, run.stop))

    def responsibilities(
        self, mixture: Density, sums: Floats, rows: slice
    ) -> tuple[Floats, Doubles]:
        """Responsibilities (R, m, K) times row weights, and log-likelihood (R,) of these rows.

        Sums are of terms (R, m, K), or of how they differ from the first (R, m, K - 1): of these
        the log-likelihood is without minus half of what they differ from.
        """
        out, log_likelihoods = self.normalised(mixture, sums)
        if self.known is not None:
            self.known.look(out, rows)
        if self.row_weights is None:
            return out, log_likelihoods.sum(axis=1)
        weights = self.row_weights[rows]
        out *= weights[:, None].astype(out.dtype)
        return out, log_likelihoods @ weights

    def normalised(self, mixture: Density, sums: Floats) -> tuple[Floats, Doubles]:
        """Responsibilities (R, m, K) and log-densities (R, m) of sums as in `responsibilities`."""
        log_weights = np.broadcast_to(mixture.log_weights, (len(sums), mixture.n_terms))
        out = np.empty((*sums.shape[:2], mixture.n_terms), dtype=sums.dtype)
        log_densities = np.empty(sums.shape[:2])
        normalise(sums, np.ascontiguousarray(log_weights), out, log_densities, self.n_threads)
        return out, log_densities

    def seen_whole(
        self, mixture: Density, chunks: Iterable[tuple[slice, Floats]]
    ) -> Iterable[tuple[slice, Floats]]:
        """Return sums of rows, chunk by chunk, to terms that have to see all of them first."""
        return chunks

    def settle(self, mixture: Held) -> Held:
        """Return a mixture with what the latest E-step, by its parameters, found of all rows."""
        return mixture

    def drawn(self, seed: list[int], n_components: int, columns: Indices) -> Self:
        """Return the same terms with what they draw of a start, if anything."""
        return self

    held: dict[str, Doubles] | None = None
    """Parameters that are known, by names of a mixture's: no M-step moves them."""

    def hold(self, mixture: Held) -> Held:
        """Return a mixture with what is known: the best means do not depend on it."""
        if self.held is None:
            return mixture
        like: Any = mixture
        values = dict(self.held)
        if "weights" in values:
            values["weights"] = np.broadcast_to(values["weights"][:1], like.weights.shape).copy()
        held: Held = replace(like, **values)
        return held

    def begun(self, start: Any) -> Any:
        """Return parameters that come from elsewhere as those of these terms."""
        return start

    def resuming(self, mixture: Density) -> Self:
        """Return these terms as they were when a mixture was saved."""
        return self

    def log_prior(self, mixture: Any) -> float:
        """Log-density of parameters under a prior that terms have a part of; here there is none."""
        return 0.0

    def sweep(
        self: Any, mixture: Any, factors: Any, mix: Doubles, statistics: Any = None
    ) -> Doubles:
        """Take the sum ``mix @ Q`` and all that depends on it, chunk by chunk: (R,)."""
        totals = np.zeros(len(mix))
        chunks = self.chunks(self.blocks.n_blocks * mixture.n_terms)
        every = ((rows, mixed(mix, self.local(factors, rows))) for rows in chunks)
        for rows, sums in self.seen_whole(mixture, every):
            responsibilities, log_likelihoods = self.responsibilities(mixture, sums, rows)
            totals += log_likelihoods
            if statistics is not None:
                self.summarize_by(statistics, responsibilities, rows, factors)
        return totals

    def summarize_by(
        self: Any, statistics: Any, responsibilities: Floats, rows: slice, factors: Any,
        varying: Floats | None = None,
    ) -> None:  # fmt: skip
        """Add rows to the statistics, by the parameters that their responsibilities come from.

        What they miss is expected by these; ``varying`` weighs its spread.
        """
        self.summarize(statistics, responsibilities, rows)

    def _weights(self, rows: slice) -> Doubles:
        if self.row_weights is None:
            return np.ones(rows.stop - rows.start)
        return self.row_weights[rows]


def mixed(mix: Doubles, terms: Floats) -> Floats:
    """Sums ``mix @ terms`` (R, m, K) of terms (B, m, K)."""
    flat = terms.reshape(len(terms), -1)
    if len(mix) == 1 and bool((mix == 1).all()):
        sums = flat.sum(axis=0, keepdims=True)
    else:
        sums = (mix @ flat).astype(flat.dtype)
    return np.ascontiguousarray(sums).reshape(len(mix), *terms.shape[1:])
