"""Rows as the workers of FedEM hold them, and what workers agree on before the first iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import Doubles, Floats
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.files.matrix import FileMatrix
from vpem.fits.local_rows import (
    MANY,
    SHORT,
    HeldPart,
    LocalRows,
    MomentSums,
    agree_on_rows,
    charge_weights,
)
from vpem.fits.prepare import Prepared
from vpem.network.codecs import Codec, Dither, Natural
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers
from vpem.network.schema import Report
from vpem.settings import FedMixtureSettings
from vpem.steps.cells import find_cells, tell_of_cells
from vpem.steps.fedem import first_statistics
from vpem.steps.lloyd import Pace
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.row_sampling import HeldRows, PointStream, RowStream, StoredParts
from vpem.steps.starts import LLOYD_TOLERANCE, MOST_LLOYD_OF_START, Tell, seed_rows, step_of_lloyd
from vpem.sums.connect import Network
from vpem.sums.counted import at_server
from vpem.sums.partial import Compressed, Memory, Wrapper
from vpem.sums.private import powers_above
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.terms.features import FeatureTerms
from vpem.terms.fedem_statistics import MixtureStatistics, StatisticMap, in_order
from vpem.terms.missing import MissingTerms, terms_of
from vpem.terms.mixture import Mixture
from vpem.terms.rows import arrange_rows
from vpem.terms.units import Scaling, floors_of, sharing


class HeldByWorkers:
    """Rows of this process's workers, worker by worker, and what all know of those of all.

    In one process the data are in the user's order, else those of this process's workers.

    Attributes
    ----------
    runs : list of slice
        Where each worker's rows are in this process's; empty ones for workers of others.
    counts, masses : ndarray of shape (n,)
        Rows of each worker of all processes, and what they weigh.
    all_weights : ndarray of shape (M,) or None
        Of all rows, worker by worker; None: all weigh 1.
    weights : ndarray of shape (m,) or None
        Of this process's.
    misses : bool
        Whether values are missing, in any process.
    """

    def __init__(self, prepared: Prepared, workers: Workers, holders: Placement) -> None:
        self.holders = holders
        self.misses = prepared.misses
        self.data = prepared.X
        self.n_features = int(self.data.shape[1])
        used = workers if prepared.kept is None else workers.of_rows(prepared.kept)
        self._numbers = None if used.in_order else used.order
        """In the data, of each row of all worker by worker; None: 0, 1, ..."""
        self._number = prepared.number
        local = LocalRows(holders, used.counts)
        self.runs, self._own = local.runs, local.own_runs
        if not holders.apart and self._numbers is not None:
            stored = isinstance(self.data, FileMatrix)
            self.data = self.data.of_rows(used.rows) if stored else self.data[self._numbers]
        self.counts = used.counts
        self.masses: NDArray[Any] = self.counts
        self.all_weights: Doubles | None = None
        self.weights: Doubles | None = None
        if prepared.row_weights is not None:
            weights = prepared.row_weights
            self.all_weights = weights if self._numbers is None else weights[self._numbers]
            self.weights = self.all_weights[local.rows]
            self.masses = np.array([self.all_weights[run].sum() for run in used.runs])

    @property
    def n_rows(self) -> int:
        """Rows of positive weight of all processes."""
        return int(self.counts.sum())

    def parts(self) -> list[HeldPart]:
        """Rows of each of this process's workers, in the user's units."""
        block = Blocks.one(self.n_features)
        rows = arrange_rows(self.data, block, Scaling.none(self.n_features), np.float64)
        return [
            HeldPart(
                rows.slice_rows(run),
                None if self.weights is None else self.weights[run],
                float(self.masses[worker]),
            )
            for worker, run in zip(self.holders.own, self._own, strict=True)
        ]

    def terms(self, to_mixture: StatisticMap, n_threads: int) -> FeatureTerms:
        """Rows in units of fitting, of which statistics are taken."""
        others = {"add": self.holders.allreduce} if self.misses and self.holders.apart else {}
        return terms_of(
            self.data,
            to_mixture.blocks,
            to_mixture.covariance_type,
            missing=self.misses,
            scaling=to_mixture.scaling,
            row_weights=self.weights,
            reg_covar=to_mixture.reg_covar,
            n_threads=n_threads,
            **others,
        )

    # ---- starts ----------------------------------------------------------------------------------

    def to_seed(self, terms: FeatureTerms) -> Sequence[Floats] | StoredParts:
        """Rows of this process's workers as k-means takes them, in units of fitting."""
        sizes = [run.stop - run.start for run in self._own]
        if isinstance(self.data, FileMatrix):
            return StoredParts(terms.rows, np.array(sizes, dtype=np.intp))
        parts = [terms.rows.slice_rows(run) for run in self._own]
        return [part.read(slice(0, size)) for part, size in zip(parts, sizes, strict=True)]

    def places(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Places of rows among those of all, worker by worker, of their numbers in the data."""
        return rows if self._numbers is None else np.argsort(self._numbers)[rows]

    def numbers(self, places: NDArray[np.intp]) -> tuple[int, ...]:
        """The user's numbers of rows, of their places."""
        rows = places if self._numbers is None else self._numbers[places]
        numbers = self._number(rows)
        assert numbers is not None
        return numbers

    def weights_by_number(self) -> Doubles | None:
        """Weights of the rows of all processes as they are numbered in the data."""
        if self.all_weights is None or self._numbers is None:
            return self.all_weights
        weights = np.empty_like(self.all_weights)
        weights[self._numbers] = self.all_weights
        return weights


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
    """What workers agree on before the first iteration, and what that costs.

    Moments are sent with the codec, where there is a server; None: everything is exact.
    """

    def __init__(
        self,
        worker_data: HeldByWorkers,
        network: Network,
        ledger: Ledger,
        codec: Codec | None,
        rng: np.random.Generator,
    ) -> None:
        self.worker_data = worker_data
        self.network = network
        self.total = network.total.counted_on(ledger)
        self.holders: Placement = self.total.holders
        self.own = self.holders.own
        self.codec = codec
        self.rng = rng
        self.item = ITEM if codec is None else SHORT
        if worker_data.all_weights is not None:
            charge_weights(self.total, worker_data.counts)

    def model(self, settings: FedMixtureSettings, known_covariance: Any) -> MixtureStatistics:
        """Return the statistics of the mixture, in units that all workers agree on."""
        assert settings.floor is not None
        worker_data = self.worker_data
        weights: Doubles = worker_data.masses / worker_data.masses.sum()
        if settings.weighting == "workers":
            weights = np.full(len(weights), 1.0 / len(weights))
        n_roots, d = self.network.whole.total.n_roots, worker_data.n_features
        agreement = MomentSums(self.total, n_roots, worker_data.masses, d, self.codec, self.rng)
        reach = None
        if self.holders.masks is not None:
            reach = agree_on_rows(worker_data.parts(), self.total, worker_data.n_rows, d)
        agreement.reach = reach
        blocks = Blocks((np.arange(d, dtype=np.intp),), (0,), (tuple(range(len(weights))),))
        hubs = sharing(blocks, settings.covariance_type, settings.scale)
        moments = agreement.moments(worker_data.parts(), weights, hubs, worker_data.misses)
        to_mixture = StatisticMap(
            blocks,
            settings.covariance_type,
            settings.n_components,
            moments,
            n_rows=max(float(worker_data.masses.sum()), float(worker_data.counts.sum())),
            reg_covar=floors_of(settings.reg_covar, settings.scale, moments.scaling),
            known=known_covariance,
            floor=settings.floor,
        )
        self.reach = reach if reach is None else reach.scaled(moments.scaling)
        model = MixtureStatistics(
            worker_data.terms(to_mixture, thread_count(settings.n_threads)),
            worker_data.runs,
            to_mixture,
            counts=worker_data.counts,
            masses=worker_data.masses,
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

    def _lloyd(self, centres: Doubles, observed: bool) -> Any:
        """Return the sum of Lloyd's iterations: with a codec, of what has changed in messages."""
        if self.codec is None:
            return self.total
        # Weight and sum of each cluster, weights of observed values, inertia, rows that changed.
        size = len(centres) + (2 if observed else 1) * centres.size + 2
        known = np.zeros((len(self.worker_data.counts), size))
        changes = Compressed(at_server(self.total), Quantizer(LLOYD, known.shape[1]), self.rng)
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
        worker_data = self.worker_data
        parts = worker_data.to_seed(model.terms)
        rng = np.random.default_rng([seed, 0])
        if self.reach is not None:
            # Among means of cells, since no row may be shown.
            tell_of_cells(tell)
            k, threads = model.n_components, {"n_threads": model.terms.n_threads}
            points = PointStream(rng, self.reach)
            means = find_cells(parts, self.total, k, points, **threads).draw(k, points.rng)
            if init == "kmeans":
                return self._clusters(model, parts, means, points, threads), None
            return first_statistics(model, model.start(means)), None
        if start_rows is not None or init == "random":
            stream = RowStream(rng, worker_data.weights_by_number(), worker_data.n_rows)
            rows = stream.draw_distinct(model.n_components) if start_rows is None else start_rows
            places = worker_data.places(rows)
            means = HeldRows(parts, self.total).share(places, self.item)
            return first_statistics(model, model.start(means)), worker_data.numbers(places)
        stream = RowStream(rng, worker_data.all_weights, worker_data.n_rows)
        common: Report = {"n_threads": model.terms.n_threads}
        if isinstance(model.terms, MissingTerms):
            common["observed"] = model.terms.observed
        total: Any = self.total if self.codec is None else _OwnPlaces(at_server(self.total))
        places = seed_rows(parts, total, model.n_components, stream, tell=tell, **common)
        means = HeldRows(parts, self.total).gather_rows(places)
        if init == "kmeans":
            common["callback"] = step_of_lloyd(tell)
            return self._clusters(model, parts, means, stream, common), worker_data.numbers(places)
        return first_statistics(model, model.start(means)), worker_data.numbers(places)

    def _clusters(
        self,
        model: MixtureStatistics,
        parts: Any,
        means: Doubles,
        stream: RowStream,
        common: Report,
    ) -> Doubles:
        """Statistics (n, P) of the clusters that Lloyd's iterations find from some centres."""
        fill = not model.to_mixture.is_diagonal
        if model.misses:
            common = common | {"fill": fill}
        total = self._lloyd(means, model.misses and not fill)
        variance = float(np.diagonal(model.to_mixture.moments.second).mean())
        pace = Pace(tolerances=np.full(self.total.n_roots, LLOYD_TOLERANCE * variance))
        run = lloyd_rows(
            parts, total, means, stream, kind="setup", max_iter=MOST_LLOYD_OF_START, pace=pace,
            **common,
        )  # fmt: skip
        hard = np.zeros((len(self.worker_data.counts), model.size))
        for place, worker in enumerate(self.own.tolist()):
            if worker not in model.parts:
                continue
            centres = run.centres[0 if len(run.centres) == 1 else place]
            hard[worker] = model.assigned(
                worker, run.labels[self.worker_data.runs[worker]], centres
            )
        return hard


class _OwnPlaces(Wrapper):
    """A sum of vectors in which each sender has places of its own: it sends these, as float32."""

    def send(self, values: Doubles, senders: Any = None) -> Doubles:
        """Send the numbers at each sender's own places of vectors (n, P)."""
        self.count(np.full(len(values), SHORT * values.shape[1] // len(values)), senders)
        return values.astype(np.float32).astype(np.float64)
