"""What the workers of FedEM agree on before the first iteration, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.fits.agreed_rows import agree_on_rows
from vpem.fits.fedem_moments import MANY, SHORT, Agreement
from vpem.fits.fedem_rows import HeldByWorkers
from vpem.fits.local_rows import charge_weights
from vpem.network.codecs import Codec, Dither, Natural
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks
from vpem.network.schema import Report
from vpem.settings import FedMixtureSettings
from vpem.steps.cells import find_cells, tell_of_cells
from vpem.steps.fedem import first_statistics
from vpem.steps.held_rows import HeldRows
from vpem.steps.lloyd import Pace
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.seeding import seed_rows
from vpem.steps.starts import LLOYD_TOLERANCE, MOST_LLOYD_OF_START, Tell, step_of_lloyd
from vpem.steps.streams import PointStream, RowStream
from vpem.sums.connect import Network
from vpem.sums.counted import at_server
from vpem.sums.partial import Compressed, Memory, Wrapper
from vpem.sums.powers import powers_above
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.terms.missing import MissingTerms
from vpem.terms.mixture import Mixture
from vpem.terms.mixture_statistics import MixtureStatistics, in_order
from vpem.terms.reach import Reach
from vpem.terms.scaling import floors_of, sharing
from vpem.terms.statistic_map import StatisticMap

Vector = NDArray[np.float64]

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


class Setup:
    """What workers agree on before the first iteration, and what that costs.

    Parameters
    ----------
    held : HeldByWorkers
        The rows, and who holds which.
    network : Network
        Who talks to whom.
    ledger : Ledger
        Where messages are counted.
    codec : Codec or None
        Of the moments, where there is a server; None: all is exact.
    rng : Generator
        Draws the codec's keys.
    """

    def __init__(
        self,
        held: HeldByWorkers,
        network: Network,
        ledger: Ledger,
        codec: Codec | None,
        rng: np.random.Generator,
    ) -> None:
        self.held = held
        self.network = network
        self.total = network.total.on(ledger)
        self.holders: Placement = self.total.holders
        self.own = self.holders.own
        self.codec = codec
        self.rng = rng
        self.item = ITEM if codec is None else SHORT
        if held.all_weights is not None:
            charge_weights(self.total, held.counts)

    def model(self, how: FedMixtureSettings, known_covariance: Any) -> MixtureStatistics:
        """Return the statistics of the mixture, in units that all workers agree on."""
        assert how.floor is not None
        held = self.held
        weights: Vector = held.masses / held.masses.sum()
        if how.weighting == "workers":
            weights = np.full(len(weights), 1.0 / len(weights))
        n_roots, d = self.network.whole.total.n_roots, held.n_features
        agreement = Agreement(self.total, n_roots, held.masses, d, self.codec, self.rng)
        reach = self._agree_on_reach()
        agreement.reach = reach
        blocks = Blocks((np.arange(d, dtype=np.intp),), (0,), (tuple(range(len(weights))),))
        hubs = sharing(blocks, how.covariance_type, how.scale)
        moments = agreement.moments(held.parts(), weights, hubs, held.misses)
        to_mixture = StatisticMap(
            blocks,
            how.covariance_type,
            how.n_components,
            moments,
            n_rows=max(float(held.masses.sum()), float(held.counts.sum())),
            reg_covar=floors_of(how.reg_covar, how.scale, moments.scaling),
            known=known_covariance,
            floor=how.floor,
        )
        self.reach = reach if reach is None else reach.scaled(moments.scaling)
        model = MixtureStatistics(
            held.terms(to_mixture, thread_count(how.n_threads)),
            held.runs,
            to_mixture,
            counts=held.counts,
            masses=held.masses,
            add_up=self._add_up,
            reach=self.reach,
        )
        to_mixture.radius = self.largest(to_mixture.radius)
        return model

    def _agree_on_reach(self) -> Reach | None:
        """Find out where rows lie, if sums are masked."""
        if self.holders.masks is None:
            return None
        held = self.held
        return agree_on_rows(held.parts(), self.total, held.n_rows, held.n_features)

    def _add_up(self, values: Vector) -> float:
        """Add up a number of each worker (n,), of which those of this process are here."""
        if self.holders.masks is None:
            return float(self.holders.allreduce(np.array([in_order(values)]))[0])
        return float(self.holders.add_up(values[self.own][:, None])[0])

    def largest(self, radius: float) -> float:
        """Return how far out the farthest row is: a number from every worker.

        Where sums are masked, the power of two that it is below.
        """
        if self.holders.masks is not None:
            own = np.full((len(self.own), 1), radius)
            return float(powers_above(self.total, own)[0])
        radius = float(self.holders.allreduce(np.array([radius]), "max")[0])
        self.total.begin("setup", 1, 1, self.item)
        if self.codec is None:
            return radius
        return float(np.nextafter(np.float32(radius), np.float32(np.inf)))

    def _lloyd(self, centres: Vector, observed: bool) -> Any:
        """Return the sum of Lloyd's iterations: with a codec, of what has changed in messages."""
        if self.codec is None:
            return self.total
        # Weight and sum of each cluster, weights of what there is, inertia, and rows that changed.
        size = len(centres) + (2 if observed else 1) * centres.size + 2
        known = np.zeros((len(self.held.counts), size))
        changes = Compressed(at_server(self.total), Quantizer(LLOYD, known.shape[1]), self.rng)
        return Memory(changes, 1.0, known)

    def start(
        self,
        model: MixtureStatistics,
        init: Any,
        given: NDArray[np.intp] | None,
        seed: int,
        tell: Tell | None = None,
    ) -> tuple[Vector, tuple[int, ...] | None]:
        """Statistics (n, P) to start from, and the user's numbers of the rows that were drawn.

        ``tell`` is told of every step of k-means++ and k-means.
        """
        if isinstance(init, Mixture):
            start = init.over(model.blocks, model.covariance_type, model.scaling)
            if start.n_components != model.n_components:
                raise InputError(
                    f"the starting model has {start.n_components} components, "
                    f"{model.n_components} were asked for"
                )
            return first_statistics(model, start), None
        held = self.held
        parts = held.to_seed(model.terms)
        rng = np.random.default_rng([seed, 0])
        if self.reach is not None:
            tell_of_cells(tell)
            return self._among_cells(model, init, parts, PointStream(rng, self.reach)), None
        if given is not None or init == "random":
            stream = RowStream(rng, held.weights_by_number(), held.n_rows)
            rows = stream.draw_distinct(model.n_components) if given is None else given
            places = held.places(rows)
            means = HeldRows(parts, self.total).share(places, self.item)
            return first_statistics(model, model.start(means)), held.numbers(places)
        stream = RowStream(rng, held.all_weights, held.n_rows)
        common: Report = {"n_threads": model.terms.n_threads}
        if isinstance(model.terms, MissingTerms):
            common["observed"] = model.terms.observed
        total: Any = self.total if self.codec is None else _OwnPlaces(at_server(self.total))
        places = seed_rows(parts, total, model.n_components, stream, tell=tell, **common)
        means = HeldRows(parts, self.total).take(places)
        if init == "kmeans":
            common["callback"] = step_of_lloyd(tell)
            return self._clusters(model, parts, means, stream, common), held.numbers(places)
        return first_statistics(model, model.start(means)), held.numbers(places)

    def _among_cells(
        self, model: MixtureStatistics, init: str, parts: Any, stream: PointStream
    ) -> Vector:
        """Statistics (n, P) at centres among means of cells, since no row may be shown."""
        k, common = model.n_components, {"n_threads": model.terms.n_threads}
        means = find_cells(parts, self.total, k, stream, **common).draw(k, stream.rng)
        if init == "kmeans":
            return self._clusters(model, parts, means, stream, common)
        return first_statistics(model, model.start(means))

    def _clusters(
        self, model: MixtureStatistics, parts: Any, means: Vector, stream: RowStream, common: Report
    ) -> Vector:
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
        hard = np.zeros((len(self.held.counts), model.size))
        for place, worker in enumerate(self.own.tolist()):
            if worker not in model.parts:
                continue
            centres = run.centres[0 if len(run.centres) == 1 else place]
            hard[worker] = model.assigned(worker, run.labels[self.held.runs[worker]], centres)
        return hard


class _OwnPlaces(Wrapper):
    """A sum of vectors in which each sender has places of its own: it sends these, as float32."""

    def send(self, values: Vector, senders: Any = None) -> Vector:
        """Send the numbers at each sender's own places of vectors (n, P)."""
        self.count(np.full(len(values), SHORT * values.shape[1] // len(values)), senders)
        return values.astype(np.float32).astype(np.float64)
