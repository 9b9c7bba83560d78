"""Rows as the workers of FedEM hold them, and what workers agree on before the first iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import AnyArray, Doubles, Floats, Indices
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.files.matrix import select_rows
from vpem.fits.local_rows import (
    MANY,
    SHORT,
    LocalRows,
    MomentSums,
    agree_on_rows,
    charge_weights,
    parts_of,
    parts_to_seed,
)
from vpem.fits.prepare import Prepared
from vpem.network.codecs import Codec, Dither, Natural
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers
from vpem.network.schema import Report
from vpem.settings import FedMixtureSettings
from vpem.steps.cells import draw_cells
from vpem.steps.fedem import first_statistics
from vpem.steps.lloyd import Pace
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.row_sampling import HeldRows, PointStream, RowStream, StoredParts
from vpem.steps.starts import LLOYD_TOLERANCE, MOST_LLOYD_OF_START, Tell, seed_rows, step_of_lloyd
from vpem.sums.connect import Network
from vpem.sums.partial import Compressed, Memory, Wrapper
from vpem.sums.private import powers_above
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.fedem_statistics import MixtureStatistics, StatisticMap, in_order
from vpem.terms.mixture import Mixture
from vpem.terms.units import alone, floors_of, sharing

FIRST = Dither(127, 32)
"""First statistics, 9 bits a number: qsgd:8bits:32."""
LLOYD = Natural(10)
"""What has changed in a worker's sums from one of Lloyd's iterations to the next."""


def codec_of_first(codec: Codec | None) -> Codec | None:
    """Return what first statistics are sent by, of what corrections are; None: exactly.

    The codec itself where it is at least as fine as ``qsgd:8bits:32``, which else takes its place:
    noise of all of a statistic is larger than noise of what has changed in it.
    """
    if codec is None:
        return None
    return codec if codec.variance(MANY) <= FIRST.variance(MANY) else FIRST


class FedSetup:
    """Rows of workers, what these agree on before the first iteration, and what that costs.

    Moments are sent with the codec, where there is a server; None: everything is exact.

    Attributes
    ----------
    counts, masses : ndarray of shape (n,)
        Rows of each worker of all processes, and what they weigh.
    weights : ndarray of shape (m,) or None
        Of this process's rows, worker by worker; None: all weigh 1.
    all_weights : ndarray of shape (M,) or None
        The same of the rows of all.
    """

    def __init__(
        self,
        prepared: Prepared,
        workers: Workers,
        network: Network,
        ledger: Ledger,
        codec: Codec | None,
        rng: np.random.Generator,
    ) -> None:
        self.prepared, self.network = prepared, network
        self.total = network.total.counted_on(ledger)
        self.holders: Placement = self.total.holders
        self.own = self.holders.own
        used = workers if prepared.kept is None else workers.of_rows(prepared.kept)
        self.order = None if used.in_order else used.order
        """In the data, of each row of all worker by worker; None: 0, 1, ..."""
        self.local = LocalRows(self.holders, used.counts)
        in_order = self.holders.apart or self.order is None
        self.data = prepared.X if in_order else select_rows(prepared.X, used.rows)
        self.counts = used.counts
        self.masses: AnyArray = used.counts
        self.weights = self.all_weights = prepared.row_weights
        if prepared.row_weights is not None:
            weights = prepared.row_weights
            weights = weights if self.order is None else weights[self.order]
            self.all_weights, self.weights = weights, weights[self.local.rows]
            self.masses = np.array([weights[run].sum() for run in used.runs])
        self.codec = codec
        self.rng = rng
        self.item = ITEM if codec is None else SHORT
        if self.all_weights is not None:
            charge_weights(self.total, self.counts)

    def model(self, settings: FedMixtureSettings, known_covariance: Any) -> MixtureStatistics:
        """Return the statistics of the mixture, in units that all workers agree on."""
        assert settings.floor is not None
        masses, n_workers, misses = self.masses, len(self.counts), self.prepared.misses
        weights: Doubles = masses / masses.sum()
        if settings.weighting == "workers":
            weights = np.full(n_workers, 1.0 / n_workers)
        n_roots, d = self.network.whole.total.n_roots, int(self.data.shape[1])
        agreement = MomentSums(self.total, n_roots, masses, d, self.codec, self.rng)
        parts, n_rows = parts_of(self.data, self.local, self.weights), int(self.counts.sum())
        masked = self.holders.masks is not None
        reach = agree_on_rows(parts, self.total, n_rows, d) if masked else None
        agreement.reach = reach
        blocks = Blocks((np.arange(d, dtype=np.intp),), (0,), (tuple(range(n_workers)),))
        hubs = sharing(blocks, settings.covariance_type, settings.scale)
        scaling, second, there = agreement.moments(parts, weights, hubs, misses)
        to_mixture = StatisticMap(
            blocks,
            settings.covariance_type,
            settings.n_components,
            scaling,
            second,
            there,
            n_rows=max(float(masses.sum()), float(n_rows)),
            reg_covar=floors_of(settings.reg_covar, settings.scale, scaling),
            known=known_covariance,
            floor=settings.floor,
        )
        self.reach = reach if reach is None else reach.scaled(scaling)
        terms = FeatureTerms(
            self.data,
            blocks,
            settings.covariance_type,
            missing=misses,
            scaling=scaling,
            row_weights=self.weights,
            reg_covar=to_mixture.reg_covar,
            n_threads=thread_count(settings.n_threads),
            add=self.holders.allreduce if misses and self.holders.apart else alone,
        )
        model = MixtureStatistics(
            terms,
            self.local.runs,
            to_mixture,
            counts=self.counts,
            masses=masses,
            add_up=self._add_up,
            reach=self.reach,
        )
        to_mixture.radius = self.largest(to_mixture.radius)
        return model

    def _add_up(self, values: Doubles) -> float:
        """Add up a number of each worker (n,), of which those of this process are here."""
        if self.holders.masks is None:
            return float(self.holders.allreduce(np.array([in_order(values)]))[0])
        return float(self.holders.add_up(values[self.own][:, None])[0])

    def largest(self, radius: float) -> float:
        """Return how far out the farthest row is: a number from every worker.

        Where sums are masked, the power of two that it is below.
        """
        if self.holders.masks is not None:
            radii = np.full((len(self.own), 1), radius)
            return float(powers_above(self.total, radii)[0])
        radius = float(self.holders.allreduce(np.array([radius]), "max")[0])
        self.total.begin("setup", 1, 1, self.item)
        if self.codec is None:
            return radius
        return float(np.nextafter(np.float32(radius), np.float32(np.inf)))

    def _lloyd(self, centres: Doubles, observed: bool) -> Sum:
        """Return the sum of Lloyd's iterations: with a codec, of what has changed in messages."""
        if self.codec is None:
            return self.total
        # Weight and sum of each cluster, weights of observed values, inertia, rows that changed.
        size = len(centres) + (2 if observed else 1) * centres.size + 2
        known = np.zeros((len(self.counts), size))
        changes = Compressed(self.total.server, Quantizer(LLOYD, known.shape[1]), self.rng)
        return Memory(changes, 1.0, known)

    def start(
        self,
        model: MixtureStatistics,
        init: Any,
        start_rows: NDArray[np.intp] | None,
        seed: int,
        tell: Tell | None = None,
    ) -> tuple[Doubles, tuple[int, ...] | None]:
        """Statistics (n, P) to start from, and the user's numbers of the rows that were drawn.

        ``tell`` is called with every step of k-means++ and k-means.
        """
        if isinstance(init, Mixture):
            start = init.convert_to(model.blocks, model.covariance_type, model.scaling)
            if start.n_components != model.n_components:
                raise InputError(
                    f"the starting model has {start.n_components} components, the fit has "
                    f"{model.n_components}"
                )
            return first_statistics(model, start), None
        parts = parts_to_seed(model.terms.rows, self.local.own_runs)
        rng = np.random.default_rng([seed, 0])
        if self.reach is not None:
            # Among means of cells, since no row may be shown.
            k, n_threads = model.n_components, model.terms.n_threads
            points = PointStream(rng, self.reach)
            means = draw_cells(parts, self.total, k, points, n_threads, tell)
            if init == "kmeans":
                return self._clusters(model, parts, means, points, {"n_threads": n_threads}), None
            return first_statistics(model, model.start(means)), None
        if start_rows is not None or init == "random":
            stream = RowStream(rng, self.prepared.row_weights, self.local.n_samples)
            rows = stream.draw_distinct(model.n_components) if start_rows is None else start_rows
            places = rows if self.order is None else np.argsort(self.order)[rows]
            means = HeldRows(parts, self.total).share(places, self.item)
            return first_statistics(model, model.start(means)), self.prepared.number(rows)
        stream = RowStream(rng, self.all_weights, self.local.n_samples)
        common: Report = {"n_threads": model.terms.n_threads, "observed": model.terms.observed}
        total: Sum = self.total if self.codec is None else _OwnPlaces(self.total.server)
        places = seed_rows(parts, total, model.n_components, stream, tell=tell, **common)
        means = HeldRows(parts, self.total).gather_rows(places)
        numbers = self.prepared.number(places if self.order is None else self.order[places])
        if init == "kmeans":
            common["callback"] = step_of_lloyd(tell)
            return self._clusters(model, parts, means, stream, common), numbers
        return first_statistics(model, model.start(means)), numbers

    def _clusters(
        self,
        model: MixtureStatistics,
        parts: Sequence[Floats] | StoredParts,
        means: Doubles,
        stream: RowStream,
        common: Report,
    ) -> Doubles:
        """Statistics (n, P) of the clusters that Lloyd's iterations find from some centres."""
        fill = not model.to_mixture.is_diagonal
        if model.misses:
            common = common | {"fill": fill}
        total = self._lloyd(means, model.misses and not fill)
        variance = float(np.diagonal(model.to_mixture.second).mean())
        pace = Pace(tolerances=np.full(self.total.n_roots, LLOYD_TOLERANCE * variance))
        run = lloyd_rows(
            parts, total, means, stream, kind="setup", max_iter=MOST_LLOYD_OF_START, pace=pace,
            **common,
        )  # fmt: skip
        hard = np.zeros((len(self.counts), model.size))
        for place, worker in enumerate(self.own.tolist()):
            if worker not in model.parts:
                continue
            centres = run.centres[0 if len(run.centres) == 1 else place]
            labels = run.labels[self.local.runs[worker]]
            hard[worker] = model.assigned(worker, labels, centres)
        return hard


class _OwnPlaces(Wrapper):
    """A sum of vectors in which each sender has places of its own: it sends these, as float32."""

    def send(self, values: Doubles, senders: Indices | None = None) -> Doubles:
        """Send the numbers at each sender's own places of vectors (n, P)."""
        self.count(np.full(len(values), SHORT * values.shape[1] // len(values)), senders)
        return values.astype(np.float32).astype(np.float64)
