"""A Gaussian mixture as a model of mean statistics: what FedEM's workers compute of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import Schema, State
from vpem.terms.covariances import Factors
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import MissingTerms
from vpem.terms.mixture import Mixture
from vpem.terms.reach import Reach
from vpem.terms.statistic_map import StatisticMap

Vector = NDArray[np.float64]

WORTH_THREADS = 1 << 19
"""Values times components from which on a pass is worth more than one thread."""

ONE = np.ones((1, 1))
"""The sum of one block."""


def in_order(values: Vector) -> float:
    """Add numbers (n,) up, one after the other."""
    return float(sum(values.tolist()))


class MixtureStatistics:
    """Mean statistics of a Gaussian mixture whose rows are held by workers.

    Parameters
    ----------
    terms : FeatureTerms
        The rows of the workers of this process, worker by worker, with all features in one block.
    runs : sequence of slice
        Where each worker's rows are in it; n, empty ones for workers of other processes.
    to_mixture : StatisticMap
        How statistics are laid out, and what parameters they give. Its ``radius`` becomes that of
        these rows.
    counts : ndarray of shape (n,), optional
        Rows of positive weight of each worker of all processes; None: it has all.
    masses : ndarray of shape (n,), optional
        What they weigh; None: a row weighs 1.
    add_up : callable
        What all processes have together of a number of each worker (n,), of which here are some.
    reach : Reach, optional
        Where rows lie, in units of fitting, where sums are masked.

    Attributes
    ----------
    size, pieces
        Those of ``to_mixture``.
    total_weight : float
        What all rows weigh.
    """

    def __init__(
        self,
        terms: FeatureTerms,
        runs: Sequence[slice],
        to_mixture: StatisticMap,
        *,
        counts: NDArray[np.intp] | None = None,
        masses: Vector | None = None,
        add_up: Callable[[Vector], float] = in_order,
        reach: Reach | None = None,
    ) -> None:
        self.terms = terms
        self.runs = list(runs)
        self.to_mixture = to_mixture
        self.n_components = to_mixture.n_components
        self.blocks, self.covariance_type = terms.blocks, terms.covariance_type
        self.scaling = terms.scaling
        self.size, self.pieces = to_mixture.size, to_mixture.pieces
        self.bounds = (
            None if reach is None else to_mixture.bounds(reach.off(np.zeros(to_mixture.n_features)))
        )
        here = np.array([run.stop - run.start for run in self.runs], dtype=np.intp)
        self.counts = here if counts is None else counts
        self.masses = self.counts if masses is None else masses
        self.n_samples = int(self.counts.sum())
        self.total_weight = float(self.masses.sum())
        self.own = np.flatnonzero(here * self.counts)
        """Workers with rows in this process."""
        self.add_up = add_up
        # Negligible among all rows, of which some are here.
        terms.least *= terms.n_samples / max(self.n_samples, 1)
        self.parts = dict(self._parts())
        self.misses = isinstance(terms, MissingTerms)
        self.weighs = terms.row_weights is not None
        self._held: list[int] = self.counts.tolist()
        to_mixture.radius = self._radius()
        self._prepared: tuple[Mixture, Factors] | None = None
        self._passes: dict[int, tuple[Mixture, Vector, float]] = {}
        self._constant: float | None = None

    def _parts(self) -> Iterator[tuple[int, FeatureTerms]]:
        """Yield each worker with its rows, after which those of the next are read."""
        for worker, following in zip(self.own, np.roll(self.own, -1), strict=True):
            part = self.terms.part(self.runs[worker], self.runs[following])
            yield int(worker), self._threaded(part)

    def _threaded(self, part: FeatureTerms) -> FeatureTerms:
        """Let small passes be made on one thread."""
        if part.n_samples * part.blocks.n_features * self.n_components < WORTH_THREADS:
            part.n_threads = 1
        return part

    def _radius(self) -> float:
        """Distance of the row farthest from the mean in the metric of the covariance of all rows.

        Means of what is expected where values are missing may lie farther out than any row.
        """
        if self.misses and self.to_mixture.floor == 0:
            return float("inf")
        farthest = 0.0
        for run in self.terms.rows.runs():
            rows = self.terms.rows.read(run).astype(np.float64, copy=False)
            norms = self.to_mixture.squared_norms(rows)
            if self.terms.row_weights is not None:
                norms = norms[self.terms.row_weights[run] > 0]
            farthest = max(farthest, float(norms.max(initial=0.0)))
        return float(np.sqrt(farthest))

    # ---- what a worker computes ------------------------------------------------------------------

    def expect(self, worker: int, parameters: Mixture, rows: NDArray[np.intp] | None) -> Vector:
        """Mean expected statistic (P,) of some of a worker's rows, or of all.

        Some weigh alike: those that weigh more are drawn more often (`draw`).
        """
        part = self.parts.get(worker)
        if part is None:
            return np.zeros(self.size)  # Of another process.
        if rows is not None:
            return self._pass(self._threaded(part.some(rows)), parameters)[0]
        return self._whole(worker, parameters)[0]

    def draw(self, worker: int, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Draw so many rows of a worker, fewer than it has, each as often as it weighs on average.

        Where all weigh 1 they are different ones. Else a row is drawn of each of ``count`` slices
        of equal weight, so that the mean over the rows drawn is unbiased and varies less than that
        of independent draws.
        """
        if not self.weighs:
            held = self._held[worker]
            drawn: NDArray[np.intp] = rng.choice(held, count, replace=False, shuffle=False)
            return drawn
        # In other processes too, so that the shared stream goes on alike.
        places = (np.arange(count) + rng.random(count)) / count
        if worker not in self.parts:
            return np.zeros(count, dtype=np.intp)
        weights = self.parts[worker].row_weights
        assert weights is not None
        ends = np.cumsum(weights)
        inside = np.minimum(places * ends[-1], np.nextafter(ends[-1], 0))
        found: NDArray[np.intp] = np.searchsorted(ends, inside, side="right")
        return found

    def objective(self, parameters: Mixture) -> float:
        """Log-likelihood per sample of all rows, in the user's units."""
        each = np.zeros(len(self.counts))
        for worker in self.own.tolist():
            each[worker] = self._whole(worker, parameters)[1]
        found = self.add_up(each)
        if self._constant is None:
            self._constant = self._log_constant()
        return float(found / self.total_weight + self._constant)

    def _log_constant(self) -> float:
        """What a sample's log-likelihood has whatever the parameters are."""
        if self.misses:
            every = np.zeros(len(self.counts))
            every[self.own[:1]] = self.terms.log_constant
            return self.add_up(every) / self.total_weight
        scale, d = self.scaling.scale, self.blocks.n_features
        return float(-0.5 * d * np.log(2 * np.pi) - float(np.log(scale).sum()))

    def _whole(self, worker: int, parameters: Mixture) -> tuple[Vector, float]:
        """Statistic and log-likelihood of a worker's rows, kept until other parameters come."""
        kept = self._passes.get(worker)
        if kept is None or kept[0] is not parameters:
            found = self._pass(self.parts[worker], parameters)
            kept = self._passes[worker] = (parameters, *found)
        return kept[1], kept[2]

    def _pass(self, part: FeatureTerms, mixture: Mixture) -> tuple[Vector, float]:
        """Mean statistic (P,) and log-likelihood, without its constant, of some rows."""
        statistics = part.empty(mixture.means, 1)
        found = part.sweep(mixture, self._factors(mixture), ONE, statistics)
        return self.to_mixture.packed(statistics) / part.total_weight, float(found[0])

    def _factors(self, mixture: Mixture) -> Factors:
        """Factors of the E-step, kept from one worker's turn to the next."""
        if not self.misses:
            return mixture.factors
        if self._prepared is None or self._prepared[0] is not mixture:
            self._prepared = mixture, self.terms.prepare(mixture)
        return self._prepared[1]

    def assigned(
        self, worker: int, labels: NDArray[np.int32], centres: Vector | None = None
    ) -> Vector:
        """Mean statistic (P,) of a worker's rows that each belong to one component (m_i,).

        Missing values are filled by the component's centre, of (K, d).
        """
        part = self.parts[worker]
        if self.misses:
            return self._filled(part, labels, np.asarray(centres))
        k, d = self.n_components, self.blocks.n_features
        n, first = np.zeros(k), np.zeros((k, d))
        second = np.zeros((k, self.to_mixture.second_moments(np.zeros((d, d))).size))
        for run in part.rows.runs():
            rows, own_labels = part.rows.read(run), labels[run]
            weights = None if part.row_weights is None else part.row_weights[run]
            n += np.bincount(own_labels, weights, minlength=k)
            for component in range(k):
                here = own_labels == component
                own = heavy = rows[here]
                if weights is not None:
                    heavy = own * weights[here, None]
                first[component] += heavy.sum(axis=0)
                second[component] += self.to_mixture.second_moments(heavy.T @ own)
        every = np.concatenate([n, first.ravel(), second.ravel()])
        return np.asarray(every[: self.size] / part.total_weight)

    def _filled(self, part: FeatureTerms, labels: NDArray[np.int32], centres: Vector) -> Vector:
        """`assigned` of rows that miss values, which have the spread of all rows about centres."""
        statistics = part.empty(centres, 1)
        for run in part.chunks(part.blocks.n_features):
            hard = (labels[run, None] == np.arange(self.n_components)).astype(np.float64)
            if part.row_weights is not None:
                hard *= part.row_weights[run, None]
            part.summarize(statistics, hard[None], run)
        return self.to_mixture.packed(statistics) / part.total_weight

    # ---- parameters ------------------------------------------------------------------------------

    def maximize(self, statistic: Vector, root: int = 0) -> tuple[Mixture, int]:
        """Mixture of a statistic (P,), and how many of its parts had to be projected."""
        return self.to_mixture.maximize(statistic)

    @property
    def least_batch(self) -> int:
        """Rows that have second moments which are not singular, where statistics have such."""
        squares = self.to_mixture.squares
        if squares.start == squares.stop:
            return 1
        return 2 if self.to_mixture.is_diagonal else self.to_mixture.n_features + 1

    def start(self, means: Vector) -> Mixture:
        """Equal weights, means (K, d) in units of fitting, every covariance that of all rows."""
        return self.to_mixture.start(means)

    def pack(self, parameters: Mixture) -> State:
        """Parameters as arrays."""
        return parameters.arrays()

    def packed(self) -> Schema:
        """Return what these must be."""
        return Mixture.blank(self.blocks, self.covariance_type, self.n_components).schema()

    def unpack(self, state: State) -> Mixture:
        """Parameters of these arrays."""
        return Mixture(self.blocks, self.covariance_type, **state, scaling=self.scaling)

    def state(self) -> State:
        """Nothing: an M-step depends on its statistic alone."""
        return {}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {}

    def restore(self, state: State) -> None:
        """Go on from there."""
