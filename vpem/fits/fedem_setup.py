"""What the workers of FedEM agree on before the first iteration, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.fits.local_rows import LocalRows
from vpem.network.codecs import Cast, Codec, Dither, Natural
from vpem.network.holdings import Workers
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.settings import FedMixtureSettings
from vpem.steps.fedem import first_statistics
from vpem.steps.held_rows import HeldRows
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.seeding import seed_rows
from vpem.steps.streams import ROW_BYTES, RowStream
from vpem.sums.connect import Network
from vpem.sums.counted import add_vectors, at_server
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.wrappers import Compressed, Memory, Wrapper
from vpem.terms.matrices import lower_half, symmetric
from vpem.terms.mixture import Mixture
from vpem.terms.mixture_statistics import MixtureStatistics
from vpem.terms.scaling import Scaling

__all__ = ["ITEM", "Setup", "codec_of_first", "codec_of_moments"]

Vector = NDArray[np.float64]

SHORT = 4
"""Bytes of a number of the start where corrections are compressed."""

MOMENTS = (Natural(16), Natural(24))
"""Means and factors of second moments, number by number: units of features do not matter. The
second is for codecs that are finer than the first."""

FIRST = Dither(127, 32)
"""First statistics, 9 bits a number: qsgd:8bits:32."""


LLOYD = Natural(10)
"""What has changed in a worker's sums from one of Lloyd's iterations to the next."""

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
    rows : ndarray of shape (M, d)
        Worker by worker.
    workers : Workers
        Who holds which.
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
        rows: Vector,
        workers: Workers,
        network: Network,
        ledger: Ledger,
        codec: Codec | None,
        rng: np.random.Generator,
    ) -> None:
        self.rows = rows
        self.network = network
        self.workers = workers
        self.total = network.total.on(ledger)
        self.holders: Placement = self.total.holders
        self.here = LocalRows(self.holders, workers.counts)
        self.own = np.array(self.here.own, dtype=np.intp)
        self.ledger = ledger
        self.codec = codec
        self.rng = rng
        self.item = ITEM if codec is None else SHORT

    def units(self, scale: str, weighting: str) -> tuple[Scaling, Vector]:
        """Units of fitting, and the second moments (d, d) of the data in them."""
        counts = self.workers.counts
        weights: Vector = counts / counts.sum()
        if weighting == "workers":
            weights = np.full(len(counts), 1.0 / len(counts))
        parts = [self.rows[run] for run in self.here.own_runs]
        shift, second = self._moments(parts, weights[self.own])
        units = np.ones(len(shift))
        if scale == "standard":
            deviations = np.sqrt(np.diagonal(second))
            units = np.where(deviations > 1e-12 * np.maximum(np.abs(shift), 1), deviations, 1.0)
        return Scaling(shift, units), second / np.outer(units, units)

    def model(self, how: FedMixtureSettings, known_covariance: Any) -> MixtureStatistics:
        """Return the statistics of the mixture, in units that all workers agree on."""
        assert how.floor is not None
        scaling, second = self.units(how.scale, how.weighting)
        model = MixtureStatistics(
            scaling.apply(self.rows),
            self.here.runs,
            how.n_components,
            how.covariance_type,
            scaling=scaling,
            second=second,
            reg_covar=how.reg_covar,
            known=known_covariance,
            floor=how.floor,
            n_threads=thread_count(how.n_threads),
            counts=self.workers.counts,
        )
        model.add_up = lambda value: float(self.holders.allreduce(np.array([float(value)]))[0])
        model.radius = self.largest(model.radius)
        return model

    def largest(self, radius: float) -> float:
        """Return how far out the farthest row is: a number from every worker."""
        radius = float(self.holders.allreduce(np.array([radius]), "max")[0])
        self.total.begin("setup", 1, 1, self.item)
        if self.codec is None:
            return radius
        return float(np.nextafter(np.float32(radius), np.float32(np.inf)))

    def _moments(self, parts: list[Vector], weights: Vector) -> tuple[Vector, Vector]:
        """Mean (d,) and second moments (d, d) about it, as all know them."""
        if self.codec is not None:
            return self._short_moments(parts, weights, self.codec)
        d = self.rows.shape[1]
        first = np.zeros((len(parts), d))
        for i, part in enumerate(parts):
            if len(part):
                first[i] = weights[i] * part.mean(axis=0)
        shift = self._sum(first)
        squares = np.zeros((len(parts), d * (d + 1) // 2))
        for i, part in enumerate(parts):
            if len(part):
                about = part - shift
                squares[i] = weights[i] / len(part) * lower_half(about.T @ about)
        return shift, symmetric(self._sum(squares), d)

    def _short_moments(
        self, parts: list[Vector], weights: Vector, codec: Codec
    ) -> tuple[Vector, Vector]:
        """The same in few bits, which need no common scale.

        Means are sent about a row that its worker tells all others, so that data far from zero lose
        nothing. Of second moments a triangular factor is sent (of ``Y = Q R``, R): their product
        is positive semidefinite whatever the rounding is, and a direction in which the data vary
        little suffers by the root of its variance only.
        """
        d = self.rows.shape[1]
        owner = int(np.argmax(self.workers.counts > 0))
        first = parts[owner - self.own[0]][0] if owner in self.here.own else None
        about: Vector = self.holders.bcast(first, owner)
        self.total.agree("flooding", ROW_BYTES + ITEM * d, owner)
        means, factors = np.zeros((len(parts), d)), np.zeros((len(parts), d, d))
        for i, part in enumerate(parts):
            if len(part):
                means[i] = (part - about).mean(axis=0)
        shift: Vector = about + self.holders.allreduce(weights @ self._send(means, codec))
        for i, part in enumerate(parts):
            if len(part):
                factor = np.linalg.qr((part - shift) / np.sqrt(len(part)), mode="r")
                factors[i, : len(factor)] = factor
        upper = np.triu_indices(d)
        factors[:, *upper] = self._send(factors[:, *upper], codec)
        second: Vector = np.einsum("n,nij,nik->jk", weights, factors, factors)
        return shift, self.holders.allreduce(second)

    def _send(self, values: Vector, codec: Codec) -> Vector:
        """Send a vector a worker (n, P) to the server, which tells all what their mean is."""
        n_values = values.shape[1]
        total = Compressed(at_server(self.total), Quantizer(codec, n_values), self.rng)
        total.begin("setup", 1, n_values, ITEM)
        return total.send(self.holders.padded(values))[self.own]

    def _sum(self, values: Vector) -> Vector:
        """Sum a vector a worker (n, P) exactly; where roots differ, the first tells all."""
        found = add_vectors(self.total, np.ascontiguousarray(values), "setup")
        if self.network.whole.total.n_roots > 1:
            self.total.agree("flooding", ITEM * values.shape[1])
        shared: Vector = np.asarray(self.total.roots.bcast(found[0]))
        return shared

    def _lloyd(self, centres: Vector) -> Any:
        """Return the sum of Lloyd's iterations: with a codec, of what has changed in messages."""
        if self.codec is None:
            return self.total
        # Weight and sum of each cluster, inertia, and rows that changed.
        known = np.zeros((self.workers.n_workers, centres.size + len(centres) + 2))
        changes = Compressed(at_server(self.total), Quantizer(LLOYD, known.shape[1]), self.rng)
        return Memory(changes, 1.0, known)

    def start(
        self, model: MixtureStatistics, init: Any, given: NDArray[np.intp] | None, seed: int
    ) -> tuple[Vector, tuple[int, ...] | None]:
        """Statistics (n, P) to start from, and the user's numbers of the rows that were drawn."""
        if isinstance(init, Mixture):
            start = init.over(model.blocks, model.covariance_type, model.scaling)
            if start.n_components != model.n_components:
                raise InputError(
                    f"the starting model has {start.n_components} components, "
                    f"{model.n_components} were asked for"
                )
            return first_statistics(model, start), None
        parts = [model.X[run] for run in self.here.own_runs]
        stream = RowStream(np.random.default_rng([seed, 0]), None, model.n_samples)
        order = self.workers.order
        if given is not None or init == "random":
            rows = stream.draw_distinct(model.n_components) if given is None else given
            means = HeldRows(parts, self.total).share(np.argsort(order)[rows], self.item)
        else:
            common: Report = {"n_threads": model.n_threads}
            total: Any = self.total if self.codec is None else _OwnPlaces(at_server(self.total))
            places = seed_rows(parts, total, model.n_components, stream, **common)
            rows, means = order[places], HeldRows(parts, self.total).take(places)
            if init == "kmeans":
                run = lloyd_rows(parts, self._lloyd(means), means, stream, kind="setup", **common)
                hard = np.zeros((self.workers.n_workers, model.size))
                for worker, rows_here in zip(self.own.tolist(), self.here.own_runs, strict=True):
                    if rows_here.stop > rows_here.start:
                        hard[worker] = model.assigned(worker, run.labels[rows_here])
                return hard, tuple(int(row) for row in rows)
        return first_statistics(model, model.start(means)), tuple(int(row) for row in rows)


class _OwnPlaces(Wrapper):
    """A sum of vectors in which each sender has places of its own: it sends these, as float32."""

    def send(self, values: Vector, senders: Any = None) -> Vector:
        """Send the numbers at each sender's own places of vectors (n, P)."""
        self.count(SHORT * values.shape[1] // len(values), senders)
        return values.astype(np.float32).astype(np.float64)
