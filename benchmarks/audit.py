"""An audit of private fits over rows: the likelihood-ratio game on neighbouring data.

    python -m benchmarks.audit [--runs 2000] [--epsilon 4]

Of two data sets, which differ in one row, one is fitted; somebody who knows all other rows, and
everything that is published, says which. How often that is right, and how often wrong, bounds
epsilon from below: ``(hits - delta) / false alarms <= exp(epsilon)``. The bound must stay below
what was promised; with a third of the noise it must not, or the audit could not find a fault.

Three games: by the noisy sum of one iteration, by those of all releases, by the model alone. They
are played with rows at a server, and with features of two hubs whose model is released.
"""

from __future__ import annotations

import argparse
from itertools import product
from math import inf, log
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from vpem.fits.privacy import Budget
from vpem.network.graph import make_graph
from vpem.network.noise import Noise
from vpem.network.partition import contiguous
from vpem.steps.private import NoisyEM, Releases, run_private, shares_of
from vpem.sums.connect import connect
from vpem.sums.private import Noisy
from vpem.sums.server import ServerSum
from vpem.terms.features import FeatureTerms
from vpem.terms.row_statistics import BoundedRows, Grid, Parts, Residuals, ResidualSums
from vpem.terms.rows import MemoryRows
from vpem.terms.units import Scaling

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

CONFIDENCE = 0.95


def lower_bound(without: Doubles, within: Doubles, delta: float) -> float:
    """Return a lower confidence bound of epsilon, by scores of runs without and with a row.

    Half of the runs choose the threshold at which the row is said to be there, the others count
    (Jagielski, Ullman and Oprea 2020), with Clopper and Pearson's bounds of both probabilities.
    """
    best, found = -inf, 0.0
    half = len(without) // 2
    for threshold in np.unique(np.quantile(np.r_[without, within], np.linspace(0.01, 0.999, 200))):
        for side in (1, -1):
            one, two = (side * scores > side * threshold for scores in (without, within))
            chosen = _epsilon(one[:half], two[:half], delta)
            if chosen > best:
                best, found = chosen, _epsilon(one[half:], two[half:], delta)
    return max(found, 0.0)


def _epsilon(alarms: NDArray[np.bool_], hits: NDArray[np.bool_], delta: float) -> float:
    """Bound epsilon from below by false alarms, and by hits."""
    tail = (1 - CONFIDENCE) / 2
    n, false, right = len(alarms), int(alarms.sum()), int(hits.sum())
    most = 1.0 if false == n else float(beta.ppf(1 - tail, false + 1, n - false))
    least = 0.0 if right == 0 else float(beta.ppf(tail, right, n - right + 1))
    return log((least - delta) / most) if least > delta else -inf


class Audited(Noisy):
    """A sum whose last worker holds the row in question if it is there, or nothing.

    The noise is divided by ``too_small``, to see whether that is found.
    """

    def __init__(self, inner: ServerSum, there: bool, too_small: int = 1) -> None:
        super().__init__(inner)
        self.there, self.too_small = there, too_small
        self.ratios: list[float] = []
        """Logarithm of the likelihood ratio of every release."""

    def add(
        self, values: Doubles, scales: NDArray[np.int64], unit: float, kind: str = "estep"
    ) -> Doubles:
        """Add up, and compare what is published with what it would be without the row."""
        change, values = values[-1].copy(), values.copy()
        values[-1] *= self.there
        found = super().add(values, scales // self.too_small, unit, kind)
        apart, deviation = found - values[:-1].sum(axis=0), scales // self.too_small * unit
        self.ratios.append(float((change * (apart - change / 2) / deviation**2).sum()))
        return found


def game(
    others: Doubles, row: Doubles, there: bool, budget: Budget, too_small: int, n_iter: int
) -> dict[str, float]:
    """Fit once, and return the scores of the three games."""
    n_samples, d = len(others) + 1, len(row)
    parts = [MemoryRows.wrap(others), MemoryRows.wrap(row[None])]
    bounds = np.stack([-np.ones(d), np.ones(d)])
    rows, total = BoundedRows(parts, bounds, Grid.for_size(n_samples, d)), ServerSum(2)
    noisy, layout = Audited(total, there, too_small), Residuals("full", 2, d)
    multipliers = budget.multipliers(shares_of(n_iter, 2))
    found = run_private(Releases(rows, noisy, multipliers), layout, n_samples, n_iter)
    norms = np.square(np.concatenate([found.residuals(row[None], k) for k in range(2)])).sum(axis=1)
    density = np.log(found.weights) - found.log_volumes() - norms / 2
    return {
        "one iteration": noisy.ratios[-1],
        "all releases": sum(noisy.ratios),
        "the model": float(np.logaddexp.reduce(density)),
    }


class Pooled(Noise):
    """Noise of which much is drawn at a time, for many games."""

    pool: ClassVar[dict[int, Integers]] = {}

    def gaussian(self, scale: int, size: int) -> Integers:
        """Take from what is left, or draw more."""
        left = self.pool.get(scale, np.empty(0, dtype=np.int64))
        if len(left) < size:
            left = super().gaussian(scale, max(size, 20_000))
        self.pool[scale] = left[size:]
        return left[:size]


class AuditedRelease(NoisyEM):
    """A release of which the last row takes part if it is there, or adds nothing: see `Audited`."""

    there, too_small = True, 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._noise, self._noise_of_counts = dict.fromkeys(self._noise, Pooled()), Pooled()
        self.ratios: list[float] = []
        self._changes: list[Integers] = []

    def summed(self, parts: list[Parts]) -> list[ResidualSums]:
        """Sum as ever, and take off what the last row adds where it does not take part."""
        sums = super().summed(parts)
        row = self._clipped(slice(self.n_rows - 1, self.n_rows))
        every = [
            [part.residuals(row[:, columns], k) for k in range(self.n_components)]
            for part, columns in zip(parts[:-1], self._columns, strict=True)
        ]
        shares = np.exp(_log_shares(parts, every))
        every.append([np.empty((1, 0))] * self.n_components)
        own = [ResidualSums(one.layout, self.grid) for one in sums]
        for one, residuals, whole in zip(own, every, sums, strict=True):
            one.add(residuals, shares)
            for name in ("counts", "firsts", "seconds"):
                getattr(whole, name)[...] -= getattr(one, name) * (not self.there)
        packed = [one.layout.packed(one.counts, one.firsts, one.seconds) for one in own]
        k = self.n_components
        self._changes = [packed[-1][:k], *(one[k:] for one in packed[:-1])]
        self.ratios.append(0.0)
        return sums

    def _noisy(
        self, sums: Integers, deviations: Doubles, multiplier: float, noise: Noise
    ) -> Integers:
        """Add noise, and compare what comes out with what it would be without the row."""
        unit = self.grid.unit
        scales = self.scales(deviations, multiplier) // self.too_small
        exact = np.rint(self.grid.sent(sums) / unit).astype(np.int64)
        noisy = exact + noise.of_scales(scales)
        change = np.rint(self.grid.sent(self._changes.pop(0)) / unit)
        apart = noisy - exact + change * self.there
        self.ratios[-1] += float((change * (apart - change / 2) / scales.astype(float) ** 2).sum())
        return noisy


def _log_shares(parts: list[Parts], every: list[list[Doubles]]) -> Doubles:
    """Logarithms of the responsibilities of a row with these residuals, (1, K)."""
    logs = np.log(parts[-1].weights)
    for part, residuals in zip(parts[:-1], every, strict=True):
        norms = np.array([np.square(z).sum() for z in residuals])
        logs = logs - part.log_volumes() - norms / 2
    found: Doubles = (logs - np.logaddexp.reduce(logs))[None]
    return found


def release_game(
    others: Doubles, row: Doubles, there: bool, budget: Budget, too_small: int, n_iter: int
) -> dict[str, float]:
    """Release a model of two hubs once, and return the scores of the three games."""
    network = connect(make_graph("star", 2), contiguous(len(row), 2))
    rows = np.vstack([others, row])
    terms = FeatureTerms(rows, network.blocks, "full", scaling=Scaling.none(len(row)))
    run = AuditedRelease(terms, network.total, network.blocks, 2)
    run.there, run.too_small = there, too_small
    spreads = np.full((2, 1, 1), 0.3)
    parts = [Parts(np.full(2, 0.5), np.array([[0.3], [-0.3]]), spreads, "full") for _ in range(2)]
    nothing = np.empty((2, 0))
    parts.append(Parts(np.full(2, 0.5), nothing, nothing, "diag"))
    found = run.iterate(parts, budget.multipliers([1 / n_iter] * n_iter))
    density = run.mixture(found).score_samples(row[None])
    return {
        "one iteration": run.ratios[-1],
        "all releases": sum(run.ratios),
        "the model": float(density[0]),
    }


GAMES = {"rows": game, "release": release_game}


def main(words: list[str] | None = None) -> None:
    """Play all games, with the noise as it is and with a third of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="of each of the two data sets")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--only", choices=GAMES, help="rows at a server, or features of two hubs")
    how: Any = parser.parse_args(words)
    rng = np.random.default_rng(0)
    centres = np.array([[0.4, 0.4], [-0.4, -0.2]])
    others = centres[rng.integers(2, size=199)] + 0.1 * rng.standard_normal((199, 2))
    row, budget = np.array([-1.0, 1.0]), Budget(how.epsilon, how.delta)
    print(f"promised: epsilon {how.epsilon:g} at delta {how.delta:g}; {how.runs} runs of each")
    for of, too_small in product([how.only] if how.only else GAMES, (1, 3)):
        played = GAMES[of]
        scores = [
            [played(others, row, there, budget, too_small, how.iterations) for _ in range(how.runs)]
            for there in (False, True)
        ]
        for name in scores[0][0]:
            without, within = (np.array([one[name] for one in some]) for some in scores)
            bound = lower_bound(without, within, how.delta)
            noise = "all of the noise" if too_small == 1 else "a third of it"
            says = "above the promise" if bound > how.epsilon else "below"
            print(
                f"{of:<8} {noise:<17} {name:<14} epsilon at least {bound:.2f} ({says})", flush=True
            )


if __name__ == "__main__":
    main()
