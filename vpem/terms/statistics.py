"""Sufficient statistics of every hub, and what follows from them without the rows.

In checkpoints statistics of whatever kind are tables of arrays, within each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Floats
from vpem.network.partition import Blocks
from vpem.network.schema import Array, As
from vpem.terms.units import MOST_NATS, Reach, lower_half, symmetric

if TYPE_CHECKING:
    from vpem.terms.features import FeatureTerms


@dataclass
class Sums:
    """Statistics that are sums over rows: arrays, and sums of parts; some are about ``shifts``."""

    has_factors: ClassVar[bool] = False  # that hubs share (`vpem.terms.factors.FactorStatistics`)

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
    seen: Doubles | None = field(default=None, kw_only=True)
    """Where values are missing, and moments are expected ones given what is observed: what the
    responsibilities of rows of which a block has something add up to (B, K), or of those that have
    a feature (K, d) where covariances are diagonal."""

    def per_feature(self, blocks: Blocks) -> Doubles:
        """Sum of responsibilities that each feature's moments have, (K, d)."""
        if self.seen is None:
            return blocks.of_feature(self.counts)
        return self.seen if self.second.ndim == 2 else blocks.of_feature(self.seen)


class Message:
    """How statistics about ``shifts`` (K, d), known to all, and a log-likelihood are a vector."""

    def __init__(self, terms: FeatureTerms, shifts: Doubles) -> None:
        self.terms = terms
        one = terms.empty(shifts, 1)
        self.shifts = one.shifts
        width = terms.blocks.n_features
        self._is_dense = one.second.ndim == 1
        copies = one.second.size // width**2
        self._shape = (copies, width, width) if self._is_dense else one.second.shape
        # Of symmetric matrices the lower half is sent.
        n_second = copies * width * (width + 1) // 2 if self._is_dense else one.second.size
        # Of one dense block every row that is used has something: seen is the counts.
        self._misses = one.seen is not None
        n_seen = one.first.size if self._misses and not self._is_dense else 0
        self.expects = self._misses and self._is_dense
        """Whether statistics are of expected values, which may lie farther out than any row."""
        self._ends = np.cumsum([one.counts.size, one.first.size, n_second, n_seen])
        self.size = int(self._ends[-1]) + 1
        """Numbers of a message, P."""

    def packed(self, statistics: Statistics, log_likelihood: float = 0.0) -> Doubles:
        """Lay out the statistics of one root, shape (P,)."""
        about = self.terms.recentred(statistics, self.shifts)
        second = about.second
        if self._is_dense:
            second = lower_half(second.reshape(self._shape))
        parts = [about.counts, about.first, second]
        if about.seen is not None and not self._is_dense:
            parts.append(about.seen)
        return np.concatenate([*(part.ravel() for part in parts), [log_likelihood]])

    def exponents(self, reach: Reach) -> NDArray[np.int64]:
        """Return powers of two (P,) in units of which the sum of messages is in fixed point."""
        off = reach.off(self.shifts.astype(np.float64))
        second = lower_half(off[:, :, None] * off[:, None]) if self._is_dense else off * off
        if self._shape[0] == 1:
            # One covariance of all components, whose counts add up to the rows.
            second = second.max(axis=0)
        ones = np.ones(self._ends[0])
        seen = np.ones(self._ends[3] - self._ends[2])
        return reach.exponents(ones, off, second, seen, MOST_NATS)

    def unpacked(self, message: Doubles) -> tuple[Statistics, float]:
        """Return the statistics in a message (P,), and the log-likelihood."""
        counts, first, second, seen, log_likelihood = np.split(message, self._ends)
        if self._is_dense:
            second = symmetric(second.reshape(self._shape[0], -1), self._shape[1]).ravel()
        statistics = Statistics(
            counts.reshape(1, -1).copy(),
            first.reshape(self.shifts.shape).copy(),
            second.reshape(-1 if self._is_dense else self._shape).copy(),
            self.shifts,
        )
        if self._misses:
            observed = statistics.counts if self._is_dense else seen.reshape(self.shifts.shape)
            statistics.seen = observed.copy()
        return statistics, float(log_likelihood[0])


def enough_rows(width: Any) -> Any:
    """Rows a component from which parameters of so many features are sound."""
    return 10 * (width + 1)


def arrays_of(statistics: Any, leaf: Callable[[AnyArray], Any] = np.asarray) -> Any:
    """Return the arrays of statistics, or what they are to a ``leaf``.

    A record is a table by its fields, a tuple a list. Fields that statistics of a kind are without,
    which are None, are not in it.
    """
    if is_dataclass(statistics):
        members = ((one.name, getattr(statistics, one.name)) for one in fields(statistics))
        return {name: arrays_of(member, leaf) for name, member in members if member is not None}
    if isinstance(statistics, dict):
        return {name: arrays_of(one, leaf) for name, one in statistics.items()}
    if isinstance(statistics, tuple):
        return [arrays_of(part, leaf) for part in statistics]
    return leaf(statistics)


def saved_like(blank: Any) -> As:
    """Schema of statistics that are like these: of these shapes, and of this precision."""
    schema = arrays_of(blank, lambda array: Array(array.dtype.str[1:], array.shape))
    return As(schema, arrays_of, partial(having_arrays, blank))


def leaves(arrays: Any, without: str = "") -> Iterator[AnyArray]:
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
