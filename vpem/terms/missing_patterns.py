"""Which values rows miss, and in which order rows of a block are worked on for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem._core.missing import marginal_diag, marginal_full
from vpem.checks import Floats, Matrix, check_finite, row_blocks
from vpem.errors import InputError
from vpem.network.partition import Blocks
from vpem.terms.scaling import Add, Scaling, alone, deviations_of

TILE = 256
"""Most rows of a tile, as in the kernels."""


@dataclass(frozen=True)
class Plan:
    """In which order rows are worked on, block by block.

    Attributes
    ----------
    tiles : ndarray of shape (T, 4)
        Block, first place and end of a tile in ``order``, and 1 where more than half of the block
        is missing in its rows.
    order : ndarray of shape (n,)
        Rows, those next to each other that miss the same values of the block. Rows of which a
        block has nothing are in none of its tiles.
    pattern : ndarray of shape (n,)
        Equal for neighbours that miss the same values.
    """

    tiles: NDArray[np.intc]
    order: NDArray[np.intc]
    pattern: NDArray[np.intc]


def pattern_plan(observed: NDArray[np.uint8], blocks: Blocks) -> Plan:
    """Sort rows by what they miss of each block.

    ``observed`` (m, d), in block order, is 1 where a value is there.
    """
    n_samples = len(observed)
    orders, patterns, tiles = [], [], []
    place = 0
    whole: int | None = None
    for b in range(blocks.n_blocks):
        width = int(blocks.widths[b])
        if width == 0 or n_samples == 0:
            continue
        own = observed[:, blocks.offsets[b] : blocks.offsets[b + 1]]
        if own.all():
            # Rows as they come, once for all such blocks.
            if whole is None:
                whole = place
                orders.append(np.arange(n_samples, dtype=np.intc))
                patterns.append(np.zeros(n_samples, dtype=np.intc))
                place += n_samples
            tiles.append(_tiles(b, whole, n_samples, 0))
            continue
        packed = np.packbits(own, axis=1)
        keys = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
        if packed.shape[1] <= 8:
            wide = np.zeros((n_samples, 8), dtype=np.uint8)
            wide[:, : packed.shape[1]] = packed
            keys = wide.view(np.uint64).ravel()
        _, number = np.unique(keys, return_inverse=True)
        n_there = own.sum(axis=1, dtype=np.intp)
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
    made = [np.full(len(begins), b), begins, ends, np.full(len(begins), direct)]
    return np.ascontiguousarray(np.stack(made, axis=1), dtype=np.intc)


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
    `vpem.terms.covariances.Factors`, in double precision.
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
    found = False
    for _, part in row_blocks(X):
        if np.isinf(part).any():
            check_finite(_Filled(X), feature_names)
        found = found or bool(np.isnan(part).any())
    if found and hasattr(X, "runs"):
        raise InputError(
            "the data miss values, and which ones is kept in memory, but they are read from disk; "
            "raise the memory limit, or fill in or remove such rows first"
        )
    return found


def rows_with_values(X: Matrix, missing: str) -> NDArray[np.bool_]:
    """Rows (M,) that have a value: all of them, unless values may be missing."""
    if missing == "refuse":
        return np.ones(len(X), dtype=np.bool_)
    return np.concatenate([
        np.empty(0, dtype=np.bool_), *(~np.isnan(part).all(axis=1) for _, part in row_blocks(X))
    ])  # fmt: skip


def check_values(X: Matrix) -> None:
    """Raise InputError where a row has no value at all, by which it would be near a centre."""
    for start, part in row_blocks(X):
        blank = np.flatnonzero(np.isnan(part).all(axis=1))
        if len(blank) and part.shape[1]:
            raise blank_row(start + int(blank[0]))


def blank_row(row: int) -> InputError:
    """Return the error of a row without any value, which no centre is nearest to."""
    return InputError(
        f"row {row} has no value at all, so that it is as near to every centre; leave such rows out"
    )


class _Filled:
    """A matrix with nothing missing: NaN is 0."""

    def __init__(self, X: Matrix) -> None:
        self._X = X
        self.shape = X.shape

    def __len__(self) -> int:
        return len(self._X)

    def __getitem__(self, rows: slice) -> Floats:
        part = self._X[rows]
        return np.where(np.isnan(part), 0, part)


def check_columns(
    X: Floats,
    feature_names: Sequence[str] | None = None,
    advice: str = "leave it out",
    elsewhere: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] = np.asarray,
) -> None:
    """Raise InputError where a column has no value at all, saying what to do.

    ``elsewhere`` tells of which columns any process has a value, from those of which this one has.
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


def observed_scaling(
    X: Matrix,
    row_weights: NDArray[np.float64] | None,
    add: Add = alone,
    hubs: Blocks | None = None,
) -> Scaling:
    """Centre features and divide them by standard deviations (`observed_moments`, `Scaling.by`)."""
    return Scaling.by(*observed_moments(X, row_weights, add), hubs)


def observed_moments(
    X: Matrix, row_weights: NDArray[np.float64] | None, add: Add = alone
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means and standard deviations (d,) of features, by the values that are there.

    ``add`` adds sums over rows of all processes.
    """
    total, first, second = (np.zeros(X.shape[1]) for _ in range(3))

    def weights(start: int, part: Floats) -> NDArray[np.float64]:
        if row_weights is None:
            return np.ones(len(part))
        return row_weights[start : start + len(part)]

    for start, part in row_blocks(X):
        there = ~np.isnan(part)
        total += weights(start, part) @ there
        first += weights(start, part) @ np.where(there, part, 0).astype(np.float64)
    total, first = add(total), add(first)
    shift = first / np.where(total > 0, total, 1.0)
    for start, part in row_blocks(X):
        away = np.where(np.isnan(part), 0.0, part - shift)
        second += weights(start, part) @ np.square(away)
    return shift, deviations_of(shift, add(second) / np.where(total > 0, total, 1.0))
