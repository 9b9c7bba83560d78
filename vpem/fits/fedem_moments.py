"""Mean and second moments of the data, on which the workers of FedEM agree first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.network.codecs import Cast, Codec, Natural
from vpem.network.partition import Blocks
from vpem.steps.streams import ROW_BYTES
from vpem.sums.counted import add_vectors, at_server
from vpem.sums.partial import Compressed
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.sum import Sum
from vpem.terms.matrices import lower_half, symmetric
from vpem.terms.matrix import Rows
from vpem.terms.reach import Reach, exponents_of
from vpem.terms.scaling import Scaling, deviations_of
from vpem.terms.statistic_map import Moments

Vector = NDArray[np.float64]

SHORT = 4
"""Bytes of a number of the start where corrections are compressed."""

MOMENTS = (Natural(16), Natural(24))
"""Means and factors of second moments, number by number: units of features do not matter. The
second is for codecs that are finer than the first."""

MANY = 1 << 20
"""Values of a message of which codecs' noise is compared."""


def codec_of_moments(codec: Codec | None) -> Codec | None:
    """Return what the data's moments are sent by, of what corrections are; None: exactly.

    16 bits a number, and 24 where corrections are finer than that; float32 and float64 are kept.
    """
    if codec is None or (isinstance(codec, Cast) and codec.itemsize == ITEM):
        return None
    if isinstance(codec, Cast) and codec.itemsize == SHORT:
        return codec
    short, long = MOMENTS
    return short if codec.variance(MANY) >= short.variance(1) else long


@dataclass(frozen=True)
class HeldPart:
    """Rows of one worker in the user's units."""

    rows: Rows  # NaN where a value is missing
    weights: Vector | None  # (m,); None: all weigh 1
    mass: float  # what they weigh

    def runs(self) -> Iterator[tuple[Vector, Vector | None]]:
        """Yield runs of rows and their weights."""
        for run in self.rows.runs():
            rows = self.rows.read(run).astype(np.float64, copy=False)
            yield rows, None if self.weights is None else self.weights[run]

    def means(self, about: Vector | None, misses: bool) -> Vector:
        """Mean (d,) about a point; where values are missing, 0 for those, and the share there is.

        Then of shape (2 d,).
        """
        found: Any = 0.0
        for rows, weights in self.runs():
            if about is not None:
                rows = rows - about
            if misses:
                seen = ~np.isnan(rows)
                rows = np.concatenate([np.where(seen, rows, 0.0), seen], axis=1)
            found = found + (rows.sum(axis=0) if weights is None else weights @ rows)
        return np.asarray(found / self.mass)

    def squares(self, shift: Vector) -> Vector:
        """Sum of second moments (d, d) about a point, without values that are missing."""
        found: Any = 0.0
        for rows, weights in self.runs():
            about = _filled(rows - shift)
            heavy = about if weights is None else about * weights[:, None]
            found = found + heavy.T @ about
        return np.asarray(found)

    def factor(self, shift: Vector) -> Vector:
        """Triangular factor (at most d, d) of the mean of the same.

        The first d rows are kept apart, so that its signs, by which a codec rounds, do not depend
        on how many rows are read at once.
        """
        d = len(shift)
        top: Any = np.empty((0, d))
        rest: Any = top
        for rows, weights in self.runs():
            about = _filled(rows - shift)
            if weights is not None:
                about = about * np.sqrt(weights)[:, None]
            about = about / np.sqrt(self.mass)
            if len(about) == self.rows.n_samples:
                return np.asarray(np.linalg.qr(about, mode="r"))
            new = d - len(top)
            top, about = np.concatenate([top, about[:new]]), about[new:]
            rest = np.linalg.qr(np.concatenate([rest, about]), mode="r")
        return np.asarray(np.linalg.qr(np.concatenate([top, rest]), mode="r"))


def _filled(rows: Vector) -> Vector:
    """Rows about the mean, which missing values are filled by."""
    missing = np.isnan(rows)
    return np.where(missing, 0.0, rows) if missing.any() else rows


class Agreement:
    """Sums by which workers agree on what the data are like.

    Parameters
    ----------
    total : Sum
        Counted.
    n_roots : int
        Who finds the sum, of all processes.
    masses : ndarray of shape (n,)
        What the rows of each worker weigh.
    n_features : int
        d.
    codec : Codec or None
        Of the moments, where there is a server; None: all is exact.
    rng : Generator
        Draws the codec's keys.

    Attributes
    ----------
    reach : Reach or None
        Where rows lie, where sums are masked.
    """

    reach: Reach | None = None

    def __init__(
        self,
        total: Sum,
        n_roots: int,
        masses: Vector,
        n_features: int,
        codec: Codec | None,
        rng: np.random.Generator,
    ) -> None:
        self.total = total
        self.n_roots = n_roots
        self.masses = masses
        self.n_features = n_features
        self.codec = codec
        self.rng = rng
        self.holders = total.holders
        self.own = self.holders.own

    def moments(
        self, parts: Sequence[HeldPart], weights: Vector, hubs: Blocks | None, misses: bool
    ) -> Moments:
        """Agree on units of fitting, and the second moments of the data in them.

        ``weights`` (n,) are what each worker weighs in a mean; for ``hubs`` see `Scaling.by`;
        ``misses``: values are missing, in any process.
        """
        find = self._exactly if self.codec is None else self._in_few_bits
        shift, second, there = find(parts, weights, misses)
        if there is not None:
            # Values that are missing vary as those that are there do.
            np.fill_diagonal(second, np.diagonal(second) / there)
        units = Scaling.by(shift, deviations_of(shift, np.diagonal(second)), hubs)
        return Moments(units, second / np.outer(units.scale, units.scale), there)

    def _exactly(
        self, parts: Sequence[HeldPart], weights: Vector, misses: bool
    ) -> tuple[Vector, Vector, Vector | None]:
        """Mean (d,), second moments (d, d) about it, and share (d,) of values that are there."""
        d, own = self.n_features, weights[self.own]
        first = np.zeros((len(parts), 2 * d if misses else d))
        for i, part in enumerate(parts):
            if part.mass:
                first[i] = own[i] * part.means(None, misses)
        reach, bounds = self.reach, None
        if reach is not None:
            bounds = np.abs(reach.points.centre) + reach.radius
        shift, there = _of_those_there(self.sum(first, bounds), misses)
        if reach is not None:
            off = reach.off(shift)
            bounds = lower_half(np.outer(off, off))
        squares = np.zeros((len(parts), d * (d + 1) // 2))
        for i, part in enumerate(parts):
            if part.mass:
                squares[i] = own[i] / part.mass * lower_half(part.squares(shift))
        return shift, symmetric(self.sum(squares, bounds), d), there

    def _in_few_bits(
        self, parts: Sequence[HeldPart], weights: Vector, misses: bool
    ) -> tuple[Vector, Vector, Vector | None]:
        """The same in few bits, which need no common scale.

        Means are sent about a row that its worker tells all others, so that data far from zero lose
        nothing. Of second moments a triangular factor is sent (of ``Y = Q R``, R): their product
        is positive semidefinite whatever the rounding is, and a direction in which the data vary
        little suffers by the root of its variance only.
        """
        assert self.codec is not None
        d = self.n_features
        owner = int(np.argmax(self.masses > 0))
        first = None
        if owner in self.own:
            # A copy: the next run that is read takes its place.
            first = np.array(_filled(parts[owner - self.own[0]].rows.read(slice(0, 1))[0]))
        about: Vector = self.holders.bcast(first, owner)
        self.total.agree("flooding", ROW_BYTES + ITEM * d, owner)
        means = np.zeros((len(parts), 2 * d if misses else d))
        factors = np.zeros((len(parts), d, d))
        for i, part in enumerate(parts):
            if part.mass:
                means[i] = part.means(about, misses)
        total, means = self._send(means, weights)
        away, there = _of_those_there(total.aggregate(means)[0], misses)
        shift: Vector = about + away
        for i, part in enumerate(parts):
            if part.mass:
                factor = part.factor(shift)
                factors[i, : len(factor)] = factor
        upper = np.triu_indices(d)
        total, sent = self._send(factors[:, *upper], weights)
        factors = np.zeros((len(sent), d, d))
        factors[:, *upper] = sent
        second = total.aggregate(lower_half(factors.swapaxes(1, 2) @ factors))[0]
        return shift, symmetric(second, d), there

    def _send(self, values: Vector, weights: Vector) -> tuple[Compressed, Vector]:
        """Send a vector a worker here to the server: the sum, and what it has of all (n, P)."""
        n_values, server = values.shape[1], at_server(self.total).weighted(weights)
        total = Compressed(server, Quantizer(self.codec, n_values), self.rng)
        total.begin("setup", 1, n_values, ITEM)
        return total, total.send(self.holders.padded(values))

    def sum(self, values: Vector, bounds: Vector | None = None) -> Vector:
        """Sum a vector a worker (n, P) exactly; where roots differ, the first tells all.

        Where sums are masked none is beyond the bounds (P,).
        """
        units = None if bounds is None else exponents_of(bounds, self.holders.n_agents)
        found = add_vectors(self.total, np.ascontiguousarray(values), "setup", units)
        if self.n_roots > 1:
            self.total.agree("flooding", ITEM * values.shape[1])
        shared: Vector = np.asarray(self.total.roots.bcast(found[0]))
        return shared


def _of_those_there(found: Vector, misses: bool) -> tuple[Vector, Vector | None]:
    """Means of what is there, of means with zeros for what is missing; and the shares of it."""
    if not misses:
        return found, None
    first, there = np.split(found, 2)
    return first / there, there
