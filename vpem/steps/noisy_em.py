"""EM over features with noise in every M-step: what is published of it tells little of one row.

Terms are summed and responsibilities found as ever. Then every hub adds up residuals of its own
features (`vpem.terms.residuals`) and adds noise to the sums, and whoever is first among those who
have the responsibilities adds noise to the counts, once for all. Parameters are made of noisy
numbers alone: of one *release* an iteration, of all hubs together, and of those before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import about
from vpem.network.noise import Noise
from vpem.network.partition import Blocks
from vpem.steps.private_em import step
from vpem.steps.releases import scales_of
from vpem.steps.summing import FARTHEST, Differences, begin_differences
from vpem.sums.sum import Sum
from vpem.terms.bounded_rows import Grid, ResidualSums
from vpem.terms.covariances import is_diagonal
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.residuals import Parts, Residuals, balanced

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]


AVERAGED = 4
"""Of so many iterations the last one takes part in a mean: steps are a half, a third and so on."""


def scales_of_hubs(widths: NDArray[np.intp], kind: str, n_components: int) -> dict[int, Vector]:
    """Return what `balanced` does for the hubs, of which these have features, by their numbers."""
    numbers = np.flatnonzero(widths).tolist()
    layouts = [Residuals(kind, n_components, int(widths[hub])) for hub in numbers]
    return dict(zip(numbers, balanced(layouts), strict=True))


@dataclass
class NoisyEM:
    """A fit of a mixture to features, of which the parameters are private."""

    terms: FeatureTerms  # in units in which the bounds are -1 and 1
    total: Sum  # exact: all have the same responsibilities
    blocks: Blocks  # of all processes
    n_components: int
    noise_seed: int | None = None  # gives no privacy; None: the system's
    n_clipped: int = 0  # values here beyond the bounds

    def __post_init__(self) -> None:
        self.kind, self.n_rows = self.terms.covariance_type, self.terms.n_samples
        self.grid = Grid.of(self.n_rows, self.terms.widest)
        self.numbers: list[int] = self.total.holders.own.tolist()
        self._noise = {hub: Noise(self.noise_seed, hub + 1) for hub in self.numbers}
        self._noise_of_counts = Noise(self.noise_seed, 0)
        self._columns = [slice(*pair) for pair in pairwise(self.terms.blocks.offsets.tolist())]

    @property
    def n_numbers(self) -> int:
        """Numbers of a release, of all processes, P."""
        k = self.n_components
        layouts = [Residuals(self.kind, k, int(width)) for width in self.blocks.widths if width]
        return k + sum(layout.size - k for layout in layouts)

    def least_scale(self, multiplier: float) -> int:
        """Return the least scale of noise, in units of the grid, of a noise multiplier."""
        starting, going = (
            scales_of_hubs(self.blocks.widths, self.kind, k) for k in (1, self.n_components)
        )
        least = min(float(one.min()) for one in (*starting.values(), *going.values())) / sqrt(2)
        return int(least * multiplier / self.grid.unit)

    # ---- start and iterations -------------------------------------------------------------------

    def start(self, multiplier: float, rng: np.random.Generator) -> list[Parts]:
        """Return parameters to start from: all moments once, with noise, and directions drawn.

        Means lie one standard deviation a feature from the noisy mean of all rows, in directions
        that are as different as can be; every covariance is the noisy one of all rows. They are
        returned of each hub of this process and, last, the mixing weights alone. All processes
        share ``rng``, and no row is drawn.
        """
        sums, box = [], [_middle(self.kind, columns) for columns in self._columns]
        for part in box:
            sums.append(ResidualSums(Residuals(self.kind, 1, part.means.shape[1]), self.grid))
        for rows in self.terms.chunks(self.terms.blocks.n_features):
            data = self._clipped(rows, count=True)
            for part, own, columns in zip(box, sums, self._columns, strict=True):
                own.add([part.residuals(data[:, columns], 0)], np.ones((len(data), 1)))
        counts = np.array([float(self.n_rows)])
        scales = scales_of_hubs(self.blocks.widths, self.kind, 1)
        directions = _directions(self.n_components, self.blocks.n_features, rng)
        found = []
        for hub, part, own in zip(self.numbers, box, sums, strict=True):
            whole = self._moved(hub, part, own, counts, scales, multiplier, 1.0)
            begin, end = self.blocks.offsets[hub : hub + 2]
            found.append(_apart(whole, directions[:, begin:end]))
        return [*found, _weights(np.full(self.n_components, 1 / self.n_components))]

    def iterate(
        self,
        parts: list[Parts],
        multipliers: Sequence[float],
        callback: Callable[[int], None] | None = None,
    ) -> list[Parts]:
        """Run an iteration for each noise multiplier of its release.

        The parameters to start from may depend on the data by releases only.
        """
        k = self.n_components
        scales = scales_of_hubs(self.blocks.widths, self.kind, k)
        n_whole = len(multipliers) - len(multipliers) // AVERAGED
        for iteration, multiplier in enumerate(multipliers, 1):
            length = 1 / max(1, iteration - n_whole + 1)
            *hubs, weights = parts
            sums = self.summed(parts)
            counts = self._counts(sums[-1], scales, multiplier)
            moved = [
                self._moved(hub, part, own, counts, scales, multiplier, length)
                for hub, part, own in zip(self.numbers, hubs, sums[:-1], strict=True)
            ]
            layout = Residuals("diag", k, 0)
            parts = [*moved, step(weights, layout, counts, self.n_rows, length)]
            if callback is not None:
                callback(iteration)
        return parts

    def summed(self, parts: list[Parts]) -> list[ResidualSums]:
        """Run an E-step: sums of each hub's residuals, without noise, and of no features."""
        terms, total, k = self.terms, self.total, self.n_components
        mixture = self.mixture(parts)
        factors = terms.prepare(mixture)
        widths = [part.means.shape[1] for part in parts]
        kinds = [self.kind] * len(self.numbers) + ["diag"]
        layouts = [Residuals(kind, k, width) for kind, width in zip(kinds, widths, strict=True)]
        sums = [ResidualSums(layout, self.grid) for layout in layouts]
        columns = [*self._columns, slice(0, 0)]
        begin_differences(total, "estep", self.n_rows, k, terms.itemsize)
        limit = FARTHEST[terms.itemsize]
        for rows, found in Differences(terms, total, k, lambda at: terms.local(factors, at), limit):
            shares = terms.responsibilities(mixture, found, rows)[0][0].astype(np.float64)
            shares /= shares.sum(axis=1, keepdims=True)
            data = self._clipped(rows)
            for part, own, place in zip(parts, sums, columns, strict=True):
                own.add([part.residuals(data[:, place], one) for one in range(k)], shares)
        return sums

    def mixture(self, parts: list[Parts], reg_covar: float = 0.0) -> Mixture:
        """Return the mixture of this process's hubs."""
        terms, (*hubs, weights) = self.terms, parts
        copies = 1 if self.kind.startswith("tied") else self.n_components
        means = np.concatenate([np.empty((self.n_components, 0)), *(one.means for one in hubs)], 1)
        spreads = [one.spreads[:copies] for one in hubs]
        if is_diagonal(self.kind):
            nothing = np.empty((copies, 0))
            covariances = np.concatenate([nothing, *map(np.square, spreads)], axis=1) + reg_covar
        else:
            full = [
                (one @ one.transpose(0, 2, 1) + reg_covar * np.eye(one.shape[1])).ravel()
                for one in spreads
                if one.ndim == 3
            ]
            covariances = np.concatenate([np.empty(0), *full])
        return Mixture(
            terms.blocks, self.kind, weights.weights[None], means, covariances, terms.scaling
        )

    # ---- releases -------------------------------------------------------------------------------

    def _counts(self, sums: ResidualSums, scales: dict[int, Vector], multiplier: float) -> Vector:
        """Return noisy counts (K,), the same everywhere: integers, as others get them."""
        holders, deviation = self.total.holders, next(iter(scales.values()))[0]
        noisy = np.zeros(self.n_components, dtype=np.int64)
        if holders.engine.rank == 0:
            deviations = np.full(self.n_components, deviation)
            noisy = self._noisy(sums.counts, deviations, multiplier, self._noise_of_counts)
        with about(holders.engine, "flooding"):
            noisy = holders.allreduce(noisy)
        self.total.agree("flooding", noisy.nbytes)
        counts: Vector = noisy.astype(np.float64) * self.grid.unit
        return counts

    def _moved(
        self,
        hub: int,
        part: Parts,
        sums: ResidualSums,
        counts: Vector,
        scales: dict[int, Vector],
        multiplier: float,
        length: float,
    ) -> Parts:
        """M-step of a hub by its own noisy moments and counts that are known."""
        layout = sums.layout
        if not layout.n_features:
            return part
        deviations = layout.deviations(scales[hub])[len(counts) :]
        own = layout.packed(sums.counts, sums.firsts, sums.seconds)[len(counts) :]
        noisy = self._noisy(own, deviations, multiplier, self._noise[hub]) * self.grid.unit
        return step(part, layout, np.concatenate([counts, noisy]), self.n_rows, length)

    def _noisy(
        self, sums: Integers, deviations: Vector, multiplier: float, noise: Noise
    ) -> Integers:
        """Return sums in units of the grid, as integers, with noise."""
        grid = self.grid
        scales = self.scales(deviations, multiplier)
        return np.rint(grid.sent(sums) / grid.unit).astype(np.int64) + noise.of_scales(scales)

    def scales(self, deviations: Vector, multiplier: float) -> Integers:
        """Return integer scales of noise (P,) of a multiplier, in units of the grid.

        Where hubs round what they release, a row moves every number of all of them by up to a unit
        more, for which noise is larger in all of them.
        """
        more = multiplier * sqrt(self.n_numbers) / self.least_scale(multiplier)
        longer = 1 + more * self.grid.rounds
        return scales_of(deviations * longer, multiplier, self.grid.unit, rounds=False)

    def _clipped(self, rows: slice, *, count: bool = False) -> Vector:
        """Return some rows inside the bounds, in block order."""
        data = self.terms.rows.read(rows).astype(np.float64)
        if count:
            self.n_clipped += int(np.count_nonzero(np.abs(data) > 1))
        return np.clip(data, -1.0, 1.0)


def _middle(kind: str, columns: slice) -> Parts:
    """Return one component in the middle of the bounds, a quarter of their width wide."""
    width = columns.stop - columns.start
    spread = np.full(width, 0.5)
    diagonal = is_diagonal(kind) or width == 0
    spreads = spread[None] if diagonal else np.diag(spread)[None]
    return Parts(np.ones(1), np.zeros((1, width)), spreads, kind)


def _weights(weights: Vector) -> Parts:
    """Return components of no features: their mixing weights."""
    nothing = np.empty((len(weights), 0))
    return Parts(weights, nothing, nothing, "diag")


def _apart(whole: Parts, directions: Vector) -> Parts:
    """Return components about the mean of one, each in a direction (K, d_b)."""
    k, spread = len(directions), whole.spreads[0]
    steps = directions * spread if spread.ndim == 1 else directions @ spread.T
    means = np.clip(whole.means + steps, -1.0, 1.0)
    spreads = np.repeat(whole.spreads, k, axis=0)
    return replace(whole, weights=np.full(k, 1 / k), means=means, spreads=spreads)


def _directions(n_components: int, n_features: int, rng: np.random.Generator) -> Vector:
    """Draw directions (K, d) of length sqrt(d), at right angles before their mean is taken off."""
    drawn = rng.standard_normal((n_features, n_components))
    if n_components <= n_features:
        drawn = np.linalg.qr(drawn)[0]
    found = drawn.T - (drawn.mean(axis=1) if n_components > 1 else 0.0)
    length = np.linalg.norm(found, axis=1, keepdims=True)
    made: Vector = found * (sqrt(n_features) / np.maximum(length, 1e-300))
    return made
