"""Sufficient statistics of every hub, and what follows from them without the rows.

In checkpoints statistics of whatever kind are tables of arrays, within each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Floats, Mask
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Schema
from vpem.terms.mixture import Factors, Mixture, block_views, covariance_shape
from vpem.terms.rows import Rows
from vpem.terms.units import Scaling


@dataclass
class Sums:
    """Statistics that are sums over rows: arrays, and sums of parts; some are about ``shifts``."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in leaves(arrays_of(self)))

    def add(self, other: Self, times: float = 1.0) -> None:
        """Add so many times the statistics of other rows about the same shift."""
        both = leaves(arrays_of(self), "shifts"), leaves(arrays_of(other), "shifts")
        for mine, more in zip(*both, strict=True):
            mine += times * more

    def scale(self, factor: float) -> None:
        for array in leaves(arrays_of(self), "shifts"):
            array *= factor


@dataclass
class Statistics(Sums):
    """Sufficient statistics of every hub about a shift, summed over rows."""

    counts: Doubles  # (R, K) n_k of each root; R = 1 where all share one estimate
    first: Doubles  # (K, d) ``sum g (x - shift)``
    second: Doubles
    """``sum g (x - shift)(x - shift)^T``, shaped as the mixture's covariances."""
    shifts: Floats  # (K, d) in the precision of the data


@dataclass
class MissingStatistics(Statistics):
    """Expected sufficient statistics, given what is observed."""

    seen: Doubles = field(default_factory=lambda: np.empty(0))
    """Responsibilities summed over rows of which a block has something (B, K), or which have a
    feature (K, d) where covariances are diagonal."""


def enough_rows(width: Any) -> Any:
    """Rows a component from which parameters of so many features are sound."""
    return 10 * (width + 1)


class BlockStatistics:
    """Statistics over the blocks of a mixture: about other centres, of some hubs, of a mixture.

    ``add_up`` sums a number of each hub here (B,) over the hubs of all processes.
    """

    blocks: Blocks
    covariance_type: str
    reg_covar: Doubles  # (d,) added to variances, in block order and units of fitting
    scaling: Scaling
    rows: Rows  # whose precision shifts have
    widest: int  # features of the widest hub, of all processes
    n_factors = 0  # that hubs share (`vpem.terms.factors.FactorTerms`)
    add_up: Callable[[Doubles], float]
    misses = False  # values: blocks have seen fewer rows than a component (`MissingStatistics`)
    _is_tied: bool
    _is_diagonal: bool
    _precisions: tuple[Factors, Doubles] | None

    tells_expected = True
    """Whether `expected` finds log-densities from statistics."""

    by_responsibilities = True
    """Whether rows and their responsibilities are all that statistics are made of."""

    def empty(self, centres: Floats, n_roots: int) -> Statistics:
        """Statistics of no rows about centres (K, d)."""
        shifts = np.ascontiguousarray(centres, dtype=self.rows.dtype)
        n_components = len(shifts)
        plain = Statistics(
            np.zeros((n_roots, n_components)),
            np.zeros(shifts.shape),
            np.zeros(covariance_shape(self.blocks, self.covariance_type, n_components)),
            shifts,
        )
        if not self.misses:
            return plain
        shape = shifts.shape if self._is_diagonal else (self.blocks.n_blocks, n_components)
        return MissingStatistics(**vars(plain), seen=np.zeros(shape))

    def _banded(self, flat: Doubles, copies: int) -> Iterator[tuple[slice, int, int, Doubles]]:
        """Views of shape (blocks, copies, width, width), one a band, into a flat array."""
        start = 0
        for columns, hubs, width in self.blocks.bands:
            count = hubs.stop - hubs.start
            stop = start + count * copies * width * width
            yield columns, count, width, flat[start:stop].reshape(count, copies, width, width)
            start = stop

    def recentred(self, statistics: Statistics, centres: Floats) -> Statistics:
        """Return the same statistics about other centres (K, d)."""
        shifts = np.ascontiguousarray(centres, dtype=self.rows.dtype)
        moved = statistics.shifts.astype(np.float64) - shifts
        changed = {"counts": statistics.counts.copy()}
        if isinstance(statistics, MissingStatistics):
            changed["seen"] = statistics.seen.copy()
        first = statistics.first + self._per_feature(statistics) * moved
        second = statistics.second.copy()
        if self._is_diagonal:
            change = moved * (statistics.first + first)
            second += change.sum(axis=0) if self._is_tied else change
        elif moved.any():
            n_components = len(moved)
            copies = 1 if self._is_tied else n_components
            for columns, count, width, view in self._banded(second, copies):
                # With t' = t + n s about the new centre, U' = U + t s^T + s t'^T.
                s, old, new = (
                    part[:, columns].reshape(n_components, count, width).swapaxes(0, 1)
                    for part in (moved, statistics.first, first)
                )
                if self._is_tied:
                    view[:, 0] += old.swapaxes(1, 2) @ s + s.swapaxes(1, 2) @ new
                else:
                    view += old[..., None] * s[..., None, :] + s[..., None] * new[..., None, :]
        return replace(statistics, **changed, first=first, second=second, shifts=shifts)

    def _per_feature(self, statistics: Statistics) -> Doubles:
        """Sum of responsibilities that each feature's moments have, (K, d)."""
        if not isinstance(statistics, MissingStatistics):
            return self.blocks.of_feature(statistics.counts)
        if self._is_diagonal:
            return statistics.seen
        return self.blocks.of_feature(statistics.seen)

    def with_hubs_of(self, statistics: Statistics, other: Statistics, hubs: Mask) -> Statistics:
        """Return the statistics with those hubs' (B,) part taken from other ones."""
        other = self.recentred(other, statistics.shifts)
        counts = np.where(hubs[:, None], other.counts, statistics.counts)
        columns = hubs[self.blocks.block_of]
        first = np.where(columns, other.first, statistics.first)
        if self._is_diagonal:
            second = np.where(columns, other.second, statistics.second)
        else:
            copies = 1 if self._is_tied else len(first)
            sizes = copies * self.blocks.widths.astype(np.int64) ** 2
            second = np.where(np.repeat(hubs, sizes), other.second, statistics.second)
        taken = Statistics(counts, first, second, statistics.shifts)
        if not isinstance(statistics, MissingStatistics):
            return taken
        assert isinstance(other, MissingStatistics)
        changed = columns if self._is_diagonal else hubs[:, None]
        return MissingStatistics(**vars(taken), seen=np.where(changed, other.seen, statistics.seen))

    def enough(self, counts: Doubles) -> Mask:
        """Whether so many rows a component (R, K) are enough for an M-step, for each root (R,).

        Ten times as many as a mean and a variance, or a covariance of the widest hub's features,
        need at least to be sound: hubs that went ahead would impose their clusters on the others.
        """
        widest = 1 if self._is_diagonal else self.widest
        return np.asarray(counts.min(axis=1) >= enough_rows(widest))

    def update(self, statistics: Statistics) -> Mixture:
        raise NotImplementedError

    def update_early(self, statistics: Statistics, row: float) -> Mixture:
        """Parameters from statistics in which `enough` rows count, each of them this much."""
        return self.update(statistics)

    def statistics_of(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics of rows of this total weight for which `update` gives ``mixture``."""
        return self.recentred(self._about_means(mixture, weight, n_roots), mixture.means)

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """`statistics_of` about the means as they are, in double precision."""
        counts = weight * mixture.weights
        if len(counts) != n_roots:
            counts = np.repeat(counts.mean(axis=0, keepdims=True), n_roots, axis=0)
        n = self.blocks.of_feature(counts)
        if self._is_diagonal:
            n = n.sum(axis=0, keepdims=True) if self._is_tied else n
            second = n * (mixture.covariances - self.reg_covar)
        else:
            second = mixture.covariances.copy()
            copies = 1 if self._is_tied else mixture.n_components
            for columns, count, width, view in self._banded(second, copies):
                floors = self.reg_covar[columns].reshape(count, 1, width)
                view[..., np.arange(width), np.arange(width)] -= floors
                of_hubs = n[:, columns].reshape(-1, count, width)[..., 0].T
                of_hubs = of_hubs.sum(axis=1, keepdims=True) if self._is_tied else of_hubs
                view *= of_hubs[..., None, None]
        return Statistics(counts, np.zeros_like(mixture.means), second, mixture.means)

    def expected(self, statistics: Statistics, mixture: Mixture, factors: Factors) -> float:
        """Expected ``log g~`` of the rows in statistics that all roots share, under a mixture.

        ``sum_m sum_k gamma_mk log g~_mk`` without `log_constant`, from the statistics alone:
        ``sum_k n_k log pi_k - (n_k log|Sigma_k| + tr(Sigma_k^-1 U_k)) / 2``, U_k about the mean.
        """
        counts = statistics.counts[0]
        used = counts > 0
        value = float(counts[used] @ mixture.log_weights[0, used])
        hubs = 0.5 * self._determinants(statistics, mixture, factors)
        about = statistics
        if not np.array_equal(statistics.shifts, factors.means):
            about = self.recentred(statistics, factors.means)
        if self._precisions is None or self._precisions[0] is not factors:
            self._precisions = (factors, self._lower_precisions(factors))
        hubs += 0.5 * self._over_hubs(self._precisions[1] * about.second)
        return value - float(self.add_up(hubs))

    def _determinants(self, statistics: Statistics, mixture: Mixture, factors: Factors) -> Doubles:
        """Log-determinants (B,) of hubs' covariances, each as often as its component is found."""
        counts, log_dets = statistics.counts[0], factors.log_dets.astype(np.float64)
        return np.asarray(counts @ np.broadcast_to(log_dets, (len(counts), log_dets.shape[1])))

    def _over_hubs(self, seconds: Doubles) -> Doubles:
        """Sum over each hub (B,) of what is laid out as second moments are."""
        blocks = self.blocks
        if self._is_diagonal:
            sums = np.bincount(blocks.block_of, seconds.sum(axis=0), blocks.n_blocks)
            return sums.astype(np.float64, copy=False)
        views = block_views(seconds, blocks.widths, seconds.size // max(1, blocks.n_entries))
        return np.array([float(view.sum()) for view in views])

    def _lower_precisions(self, factors: Factors) -> Doubles:
        """Inverse covariances for the trace with a symmetric matrix whose lower half is given."""
        inverse = factors.inverse.astype(np.float64)
        if self._is_diagonal:
            return inverse
        out = np.empty_like(inverse)
        copies = factors.log_dets.shape[0]
        both = zip(self._banded(inverse, copies), self._banded(out, copies), strict=True)
        for (_, _, width, lower), (_, _, _, view) in both:
            np.matmul(lower.swapaxes(2, 3), lower, out=view)
            view *= np.tri(width) + np.tri(width, k=-1)
        return out


def arrays_of(statistics: Any) -> Any:
    """Return the arrays of statistics: a record is a table by its fields, a tuple a list."""
    if is_dataclass(statistics):
        members = fields(statistics)
        return {field.name: arrays_of(getattr(statistics, field.name)) for field in members}
    if isinstance(statistics, dict):
        return {name: arrays_of(one) for name, one in statistics.items()}
    if isinstance(statistics, tuple):
        return [arrays_of(part) for part in statistics]
    return statistics


def schema_of_arrays(arrays: Any) -> Schema:
    """Schema of such arrays: of these shapes, and of this precision."""
    if isinstance(arrays, dict):
        return {name: schema_of_arrays(one) for name, one in arrays.items()}
    if isinstance(arrays, list):
        return [schema_of_arrays(array) for array in arrays]
    assert isinstance(arrays, np.ndarray)
    return Array(arrays.dtype.str[1:], arrays.shape)


def leaves(arrays: Any, without: str = "") -> Iterator[NDArray[Any]]:
    """Yield all arrays of such tables, in order, but those of one name."""
    if isinstance(arrays, dict):
        arrays = [one for name, one in arrays.items() if name != without]
    if isinstance(arrays, list):
        for one in arrays:
            yield from leaves(one, without)
    else:
        yield arrays


def having_arrays(blank: Any, arrays: Any) -> Any:
    """Return statistics like ``blank`` with these checked arrays."""
    if is_dataclass(blank) and not isinstance(blank, type):
        values = {name: having_arrays(getattr(blank, name), one) for name, one in arrays.items()}
        return replace(blank, **values)
    if isinstance(blank, dict):
        return {name: having_arrays(table, arrays[name]) for name, table in blank.items()}
    if isinstance(blank, tuple):
        return tuple(having_arrays(part, one) for part, one in zip(blank, arrays, strict=True))
    return arrays
