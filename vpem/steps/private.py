"""EM with differential privacy: all that a private fit publishes are sums with noise.

Over rows (`run_private`) every release is one sum with noise (`vpem.sums.private.Noisy`); all that
is computed from it is known to all, and costs nothing more. The start is found in noisy sums, too:
histograms of each feature give its centre and width; second moments in these units the directions
in which rows differ most; a histogram over two or three of these (the *sketch*), in which centres
are searched for from as many starts as one likes, the components. The statistics of the iterations
are of residuals about the components as they are known, in units of their own spread, so that the
noise is measured by what is fitted and not by the bounds (in the spirit of Park, Foulds, Chaudhuri
and Welling, *DP-EM*, 2017, whose statistics are about zero, and of Biswas, Dong, Kamath and Ullman,
*CoinPress*, 2020, who clip about an estimate).

Over features (`NoisyEM`) terms are summed and responsibilities found as ever. Then every hub adds
up residuals of its own features (`vpem.terms.row_statistics`) and adds noise to the sums, and the
first of those that have the responsibilities adds noise to the counts, once for all. Parameters
are made of noisy numbers alone: of one *release* an iteration, of all hubs together, and of those
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Indices
from vpem.engines.engine import set_topic
from vpem.errors import NumericalError
from vpem.network.noise import Noise
from vpem.network.partition import Blocks
from vpem.steps.summing import FARTHEST, Differences
from vpem.sums.private import Noisy
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture, is_diagonal
from vpem.terms.row_statistics import BoundedRows, Grid, Parts, Residuals, ResidualSums, balanced

N_BINS = 32
"""Of the histogram of a feature."""

REACH = 3.0
"""Standard deviations that a sketch goes from its centre."""

MOST_BINS = 64
"""Of a direction of the sketch."""

SEARCHES, STEPS = 20, 50
"""Starts in the sketch, and steps of each."""

CLEARLY = 800
"""Rows a standard deviation of a cell's noise, from which on a sketch has three directions."""

CLEAR = 2.0
"""Standard deviations of the noise above which a cell counts."""

LEAST_WEIGHT = 0.3
"""The same of the start, where it is too early to give up a component."""

LEAST_SPREAD, MOST_SPREAD = 1e-4, 1.0
"""Standard deviations of components, in half the width of the bounds."""

SHARES = {"histograms": 0.1, "moments": 0.1, "sketch": 0.2}
"""What the three releases of the start have of the budget; iterations share the rest."""

FEWEST = 0.02
"""Share of the rows of a component of average size that every component has at least."""

LONGEST_STEP = 3.0
"""Standard deviations that a mean goes in one step at most."""

SHRINKS, GROWS = 0.1, 10.0
"""By which a variance changes in one step at most."""

Integers = NDArray[np.int64]

AVERAGED = 4
"""Of so many iterations the last one takes part in a mean: steps are a half, a third and so on."""


def shares_of(
    n_iter: int, n_components: int, sketch: float = SHARES["sketch"]
) -> list[float]:  # fmt: skip
    """Return what each release has of the budget: those of the start, then each iteration."""
    names = ("histograms", "moments") if n_components == 1 else tuple(SHARES)
    start = [(SHARES | {"sketch": sketch})[name] for name in names]
    return [*start, *[(1 - sum(start)) / n_iter] * n_iter]


def run_private(
    releases: Releases,  # as many multipliers as `shares_of` has shares
    layout: Residuals,
    n_samples: int,  # M of all workers, public
    n_iter: int,
    *,
    hard: bool = False,  # k-means, where there is one spread
    seed: Sequence[int] = (0,),  # of the search in the sketch
    shared: Callable[[Parts], Parts] = lambda parts: parts,  # returns the first process's start
    callback: Callable[[int], None] | None = None,  # given each iteration
) -> Parts:
    """Fit a mixture by so many noisy sums; the result is in bounded units.

    In the first half of the iterations steps are whole; in the second they are a half, a third and
    so on of the way, so that what is found is a mean over these iterations, and so is their noise:
    a fit of more iterations is hardly noisier than one of few.
    """
    parts = shared(find_start(releases, layout, n_samples, np.random.default_rng(list(seed))))
    parts = replace(parts, hard=hard)
    for iteration in range(1, n_iter + 1):
        message, _ = releases.sum_with_noise(
            layout.deviations(),
            lambda worker, now=parts: releases.rows.residuals(worker, now, layout),  # type: ignore[misc]
            "estep",
        )
        parts = step(parts, layout, message, n_samples, length_of(iteration, n_iter))
        if callback is not None:
            callback(iteration)
    return parts


def step(parts: Parts, layout: Residuals, message: Doubles, n_samples: int, length: float) -> Parts:
    """Take an M-step of noisy statistics (P,), repaired where no rows could have them.

    It goes the part ``length`` of the way from ``parts``, which the statistics are about.
    """
    if not np.isfinite(message).all():
        raise NumericalError("a noisy sum is not finite")
    counts, firsts, seconds = layout.unpacked(message)
    k = layout.n_components
    counts = np.maximum(counts, FEWEST * n_samples / k)
    weights = (1 - length) * parts.weights + length * counts / counts.sum()
    counts = counts / counts.sum() * n_samples
    steps = length * firsts / counts[:, None]
    norms = np.linalg.norm(steps, axis=1, keepdims=True)
    steps *= LONGEST_STEP / np.maximum(norms, LONGEST_STEP)
    moved = [  # a step in bounded units
        spread * one if spread.ndim == 1 else spread @ one
        for spread, one in zip(parts.spreads, steps, strict=True)
    ]
    means = np.clip(parts.means + np.stack(moved), -1, 1)
    if layout.copies == 1:
        squares = _squares(steps, layout, counts / n_samples).sum(axis=0, keepdims=True)
        changes = length * seconds / n_samples - squares
        one = _changed(parts.spreads[0], changes[0], parts.kind.endswith("spherical"))
        spreads = np.repeat(one[None], k, axis=0)
        return replace(parts, weights=weights, means=means, spreads=spreads)
    changes = length * seconds / counts.reshape(-1, *[1] * (seconds.ndim - 1))
    changes = changes - _squares(steps, layout, np.ones(k))
    every = [
        _changed(spread, change, parts.kind.endswith("spherical"))
        for spread, change in zip(parts.spreads, changes, strict=True)
    ]
    return replace(parts, weights=weights, means=means, spreads=np.stack(every))


def length_of(iteration: int, n_iter: int) -> float:
    """Length of the step of an iteration, from 1: see `run_private`."""
    return 1 / max(1, iteration - n_iter // 2 + 1)


def _squares(steps: Doubles, layout: Residuals, weights: Doubles) -> Doubles:
    """What moves of means (K, d) take from second moments, times weights (K,)."""
    if layout.shape == "full":
        products: Doubles = np.einsum("k,ki,kj->kij", weights, steps, steps)
        return products
    squares: Doubles = weights[:, None] * np.square(steps)
    if layout.shape == "spherical":
        squares = np.repeat(squares.mean(axis=1, keepdims=True), squares.shape[1], axis=1)
    return squares


def _changed(spread: Doubles, change: Doubles, is_spherical: bool) -> Doubles:
    """Spread of a covariance ``L (I + change) L'``, its eigenvalues within bounds."""
    if spread.ndim == 1:
        variances = np.square(spread) * np.clip(1 + change, SHRINKS, GROWS)
        deviations: Doubles = np.clip(np.sqrt(variances), LEAST_SPREAD, MOST_SPREAD)
        return np.full_like(deviations, deviations.mean()) if is_spherical else deviations
    values, vectors = np.linalg.eigh(np.eye(len(spread)) + change)
    inner = (vectors * np.clip(values, SHRINKS, GROWS)) @ vectors.T
    return spread_of(spread @ inner @ spread.T)


def spread_of(covariance: Doubles) -> Doubles:
    """Return the Cholesky factor of a covariance whose eigenvalues are moved within bounds."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    inside = (vectors * np.clip(values, LEAST_SPREAD**2, MOST_SPREAD**2)) @ vectors.T
    return np.asarray(np.linalg.cholesky(inside))


@dataclass
class Releases:
    """Sums with noise, one after the other; the first of the ``multipliers`` is taken next."""

    rows: BoundedRows
    total: Noisy
    multipliers: list[float]

    def sum_with_noise(
        self,
        deviations: Doubles,
        local: Callable[[int], NDArray[np.int64]],
        kind: str,
        *,
        whole: bool = False,
    ) -> tuple[Doubles, float]:
        """Sum what each worker has (P,), with noise; return it with its noise multiplier.

        ``local`` has units of the rows' grid, or ``whole`` counts; ``deviations`` (P,) are those of
        multiplier 1. The multiplier is that of the noise of the sum.
        """
        multiplier, grid = self.multipliers.pop(0), self.rows.grid
        scales = scales_of(deviations, multiplier, grid.unit, rounds=grid.rounds and not whole)
        every = [local(worker) for worker in range(self.rows.n_workers)]
        values = [one.astype(np.float64) if whole else grid.sent(one) for one in every]
        stacked = np.stack(values) if values else np.empty((0, len(deviations)))
        return self.total.add(stacked, scales, grid.unit, kind), multiplier * self.total.louder


def scales_of(
    deviations: Doubles, multiplier: float, unit: float, *, rounds: bool
) -> NDArray[np.int64]:
    """Return integer scales of noise of a multiplier, in units: rounded up.

    Where each worker has rounded what it sends, a row moves every number by up to a unit more.
    """
    scales = np.ceil(deviations * multiplier / unit)
    if rounds:
        more = sqrt(float(np.square(1 / scales).sum()))
        scales = np.ceil(scales * (1 + multiplier * more))
    return scales.astype(np.int64)


def find_start(
    releases: Releases, layout: Residuals, n_samples: int, rng: np.random.Generator
) -> Parts:
    """Find where to start, by the releases of the start."""
    # Centre (d,) and covariance (d, d) of all rows, by two releases.
    rows, d = releases.rows, releases.rows.n_features
    counts, noise = releases.sum_with_noise(
        np.full(d * N_BINS, sqrt(d)),
        lambda worker: rows.histograms(worker, N_BINS).ravel(),
        "setup",
        whole=True,
    )
    centre, width = _widths(counts.reshape(d, N_BINS), noise * sqrt(d))
    one, second = Parts(np.ones(1), centre[None], width[None], "diag"), Residuals("full", 1, d)
    message, noise = releases.sum_with_noise(
        second.deviations(), lambda worker: rows.residuals(worker, one, second), "setup"
    )
    _, firsts, seconds = second.unpacked(message)
    shift = np.clip(firsts[0] / n_samples, -1, 1)
    values, vectors = np.linalg.eigh(np.eye(d) + seconds[0] / n_samples - np.outer(shift, shift))
    # Below this an eigenvalue of the noise alone may lie.
    lowest = max(0.01, noise * second.scales[2] * sqrt(d) / n_samples)
    correlation = (vectors * np.maximum(values, lowest)) @ vectors.T
    centre = np.clip(centre + width * shift, -1, 1)
    covariance = correlation * np.outer(width, width)
    k, kind = layout.n_components, layout.kind
    if k == 1:
        return Parts(np.ones(1), centre[None], _spreads(covariance[None], kind), kind)
    scale = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    q, n_bins = shape_of_sketch(n_samples, releases.multipliers[0] * releases.total.louder, d)
    values, vectors = values[::-1][:q], vectors[:, ::-1][:, :q]
    directions = vectors / scale[:, None] / np.sqrt(values)
    counts, noise = releases.sum_with_noise(
        np.ones(n_bins**q),
        lambda worker: rows.sketch(worker, centre, directions, n_bins, REACH),
        "setup",
        whole=True,
    )
    weights, centres, inner = search_sketch(counts, noise, n_bins, q, k, rng)
    weights = np.maximum(weights, LEAST_WEIGHT / k)
    axes = scale[:, None] * vectors * np.sqrt(values)
    # Outside of the sketch all components spread as the rows do, in it as they do there.
    outside = covariance - axes @ axes.T
    covariances = outside + np.einsum("iq,kqr,jr->kij", axes, inner, axes)
    means = np.clip(centre + centres @ axes.T, -1, 1)
    if layout.copies == 1:
        covariances[:] = np.tensordot(weights / weights.sum(), covariances, axes=1)
    return Parts(weights / weights.sum(), means, _spreads(covariances, kind), kind)


def shape_of_sketch(n_samples: int, multiplier: float, n_features: int) -> tuple[int, int]:
    """Return directions of a sketch and cells of each: few, of few rows or much noise."""
    cells = 9 * sqrt(n_samples / multiplier)
    q = min(n_features, 3 if cells > 9 * sqrt(CLEARLY) else 2)
    return q, int(np.clip(round(cells ** (1 / q)), 4, MOST_BINS))


def n_values_of_start(n_samples: int, multipliers: Sequence[float], layout: Residuals) -> int:
    """Noisy numbers in the releases of a start, by the multipliers of all."""
    d = layout.n_features
    n_values = N_BINS * d + Residuals("full", 1, d).size
    if layout.n_components > 1:
        q, n_bins = shape_of_sketch(n_samples, multipliers[2], d)
        n_values += n_bins**q
    return n_values


def _spreads(covariances: Doubles, kind: str) -> Doubles:
    """Spreads of covariances (K, d, d) for a covariance type."""
    spreads = np.stack([spread_of(one) for one in covariances])
    if kind in ("full", "tied"):
        return spreads
    variances = np.einsum("kij,kij->ki", spreads, spreads)
    if kind.endswith("spherical"):
        variances[:] = variances.mean(axis=1, keepdims=True)
    return np.asarray(np.sqrt(variances))


def _widths(counts: Doubles, noise: float) -> tuple[Doubles, Doubles]:
    """Mean and standard deviation (d,) of features, by noisy histograms (d, n_bins)."""
    n_bins = counts.shape[1]
    places = (np.arange(n_bins) + 0.5) * (2 / n_bins) - 1
    clear = np.where(counts > CLEAR * noise, counts, 0.0)
    known = clear.sum(axis=1) > 0
    shares = np.where(known[:, None], clear, np.maximum(counts, 0) + 1e-9)
    shares /= shares.sum(axis=1, keepdims=True)
    centre = shares @ places
    variance = (shares * np.square(places - centre[:, None])).sum(axis=1) - (2 / n_bins) ** 2 / 12
    return centre, np.sqrt(np.maximum(variance, (1 / n_bins) ** 2))


def search_sketch(
    counts: Doubles, noise: float, n_bins: int, q: int, k: int, rng: np.random.Generator
) -> tuple[Doubles, Doubles, Doubles]:
    """Search the noisy counts of a sketch for components, from many starts.

    Returned are weights (K,), centres (K, q) and covariances (K, q, q) of the best.
    """
    width = 2 * REACH / n_bins
    middles = (np.arange(n_bins) + 0.5) * width - REACH
    cells = np.stack(np.meshgrid(*[middles] * q, indexing="ij"), axis=-1).reshape(-1, q)
    clear = np.where(counts > CLEAR * noise, counts, 0.0)
    if (clear > 0).sum() <= k:
        clear = np.maximum(counts, 0.0) + 1e-9
    used = clear > 0
    cells, clear = cells[used], clear[used] / clear.sum()
    results = [_searched(cells, clear, k, width, rng) for _ in range(SEARCHES)]
    return max(results, key=lambda one: one[0])[1:]


def _searched(
    cells: Doubles, shares: Doubles, k: int, width: float, rng: np.random.Generator
) -> tuple[float, Doubles, Doubles, Doubles]:
    """EM on weighted cells from centres drawn among them; with the log-likelihood."""
    q = cells.shape[1]
    floor = np.eye(q) * (width**2 / 12 + 0.02)
    centres = cells[rng.choice(len(cells), k, p=shares)] + 0.05 * rng.normal(size=(k, q))
    weights, spreads = np.full(k, 1 / k), np.tile(0.3 * np.eye(q), (k, 1, 1))
    log_likelihood = -np.inf
    for _ in range(STEPS):
        factors = np.linalg.cholesky(spreads)
        apart = cells[None] - centres[:, None]
        z = np.linalg.solve(factors, apart.transpose(0, 2, 1))
        logs = np.log(weights) - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        logs = logs[:, None] - 0.5 * np.square(z).sum(axis=1)
        highest = logs.max(axis=0)
        of_cells = highest + np.log(np.exp(logs - highest).sum(axis=0))
        responsibilities = np.exp(logs - of_cells) * shares
        log_likelihood, counts = float(shares @ of_cells), responsibilities.sum(axis=1) + 1e-9
        weights = counts / counts.sum()
        centres = responsibilities @ cells / counts[:, None]
        apart = cells[None] - centres[:, None]
        spreads = (
            np.einsum("kc,kci,kcj->kij", responsibilities, apart, apart) / counts[:, None, None]
            + floor
        )
    return log_likelihood, weights, centres, spreads


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
        self.grid = Grid.for_size(self.n_rows, self.terms.widest)
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
        """Least scale of noise, in units of the grid, of a noise multiplier."""
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
            for part, hub_sums, columns in zip(box, sums, self._columns, strict=True):
                hub_sums.add([part.residuals(data[:, columns], 0)], np.ones((len(data), 1)))
        counts = np.array([float(self.n_rows)])
        scales = scales_of_hubs(self.blocks.widths, self.kind, 1)
        # Of length sqrt(d), at right angles before their mean is taken off.
        k, d = self.n_components, self.blocks.n_features
        drawn = rng.standard_normal((d, k))
        if k <= d:
            drawn = np.linalg.qr(drawn)[0]
        directions = drawn.T - (drawn.mean(axis=1) if k > 1 else 0.0)
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        directions = directions * (sqrt(d) / np.maximum(lengths, 1e-300))
        parts = []
        for hub, part, hub_sums in zip(self.numbers, box, sums, strict=True):
            whole = self._moved(hub, part, hub_sums, counts, scales, multiplier, 1.0)
            begin, end = self.blocks.offsets[hub : hub + 2]
            parts.append(_apart(whole, directions[:, begin:end]))
        return [*parts, _weights(np.full(self.n_components, 1 / self.n_components))]

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
                self._moved(hub, part, hub_sums, counts, scales, multiplier, length)
                for hub, part, hub_sums in zip(self.numbers, hubs, sums[:-1], strict=True)
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
        total.begin("estep", self.n_rows, k - 1, terms.itemsize, 1)
        limit = FARTHEST[terms.itemsize]
        for rows, row_sums in Differences(
            terms, total, k, lambda at: terms.local(factors, at), limit
        ):
            shares = terms.responsibilities(mixture, row_sums, rows)[0][0].astype(np.float64)
            shares /= shares.sum(axis=1, keepdims=True)
            data = self._clipped(rows)
            for part, hub_sums, place in zip(parts, sums, columns, strict=True):
                hub_sums.add([part.residuals(data[:, place], one) for one in range(k)], shares)
        return sums

    def mixture(self, parts: list[Parts], reg_covar: float = 0.0) -> Mixture:
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

    def _counts(self, sums: ResidualSums, scales: dict[int, Doubles], multiplier: float) -> Doubles:
        """Return noisy counts (K,), the same everywhere: integers, as others get them."""
        holders, deviation = self.total.holders, next(iter(scales.values()))[0]
        noisy = np.zeros(self.n_components, dtype=np.int64)
        if holders.engine.rank == 0:
            deviations = np.full(self.n_components, deviation)
            noisy = self._noisy(sums.counts, deviations, multiplier, self._noise_of_counts)
        with set_topic(holders.engine, "flooding"):
            noisy = holders.allreduce(noisy)
        self.total.agree("flooding", noisy.nbytes)
        counts: Doubles = noisy.astype(np.float64) * self.grid.unit
        return counts

    def _moved(
        self,
        hub: int,
        part: Parts,
        sums: ResidualSums,
        counts: Doubles,
        scales: dict[int, Doubles],
        multiplier: float,
        length: float,
    ) -> Parts:
        """M-step of a hub by its own noisy moments and counts that are known."""
        layout = sums.layout
        if not layout.n_features:
            return part
        deviations = layout.deviations(scales[hub])[len(counts) :]
        values = layout.packed(sums.counts, sums.firsts, sums.seconds)[len(counts) :]
        noisy = self._noisy(values, deviations, multiplier, self._noise[hub]) * self.grid.unit
        return step(part, layout, np.concatenate([counts, noisy]), self.n_rows, length)

    def _noisy(
        self, sums: Integers, deviations: Doubles, multiplier: float, noise: Noise
    ) -> Integers:
        """Return sums in units of the grid, as integers, with noise."""
        grid = self.grid
        scales = self.scales(deviations, multiplier)
        return np.rint(grid.sent(sums) / grid.unit).astype(np.int64) + noise.of_scales(scales)

    def scales(self, deviations: Doubles, multiplier: float) -> Integers:
        """Return integer scales of noise (P,) of a multiplier, in units of the grid.

        Where hubs round what they release, a row moves every number of all of them by up to a unit
        more, for which noise is larger in all of them.
        """
        more = multiplier * sqrt(self.n_numbers) / self.least_scale(multiplier)
        longer = 1 + more * self.grid.rounds
        return scales_of(deviations * longer, multiplier, self.grid.unit, rounds=False)

    def _clipped(self, rows: slice, *, count: bool = False) -> Doubles:
        """Return some rows inside the bounds, in block order."""
        data = self.terms.rows.read(rows).astype(np.float64)
        if count:
            self.n_clipped += int(np.count_nonzero(np.abs(data) > 1))
        return np.clip(data, -1.0, 1.0)


def scales_of_hubs(widths: Indices, kind: str, n_components: int) -> dict[int, Doubles]:
    """Return what `balanced` does for the hubs, of which these have features, by their numbers."""
    numbers = np.flatnonzero(widths).tolist()
    layouts = [Residuals(kind, n_components, int(widths[hub])) for hub in numbers]
    return dict(zip(numbers, balanced(layouts), strict=True))


def _middle(kind: str, columns: slice) -> Parts:
    """One component in the middle of the bounds, a quarter of their width wide."""
    width = columns.stop - columns.start
    spread = np.full(width, 0.5)
    diagonal = is_diagonal(kind) or width == 0
    spreads = spread[None] if diagonal else np.diag(spread)[None]
    return Parts(np.ones(1), np.zeros((1, width)), spreads, kind)


def _weights(weights: Doubles) -> Parts:
    """Components of no features: their mixing weights."""
    nothing = np.empty((len(weights), 0))
    return Parts(weights, nothing, nothing, "diag")


def _apart(whole: Parts, directions: Doubles) -> Parts:
    """Components about the mean of one, each in a direction (K, d_b)."""
    k, spread = len(directions), whole.spreads[0]
    steps = directions * spread if spread.ndim == 1 else directions @ spread.T
    means = np.clip(whole.means + steps, -1.0, 1.0)
    spreads = np.repeat(whole.spreads, k, axis=0)
    return replace(whole, weights=np.full(k, 1 / k), means=means, spreads=spreads)
