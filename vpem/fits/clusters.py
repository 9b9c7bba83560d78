"""Fits to partitions of rows at the workers of a framework (`vpem.engines.cluster`).

Every partition is a worker of `vpem.fits.rows.fit_em`, and sums are added in the order of
partitions: results do not depend on how many workers the framework has. Where one is lost, the fit
goes on from the last iteration with the others, which take up its partitions.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from vpem.checks import Floats
from vpem.engines.cluster import Cluster, ClusterEngine, Ticket, joined
from vpem.engines.placement import Placement, for_each
from vpem.engines.tls.faults import Parted, Unheard
from vpem.engines.tls.server import listening
from vpem.errors import InputError, VpemError, silent, warn
from vpem.files.studies.signed import make_certificate, make_key
from vpem.fits.results import RowFit
from vpem.fits.rows import fit_em
from vpem.fits.settings import PrivacySettings
from vpem.network.graph import make_graph
from vpem.network.partition import Workers
from vpem.network.schema import State
from vpem.settings import FitSettings, SumSettings
from vpem.steps.recovery import NoSaver, Saver
from vpem.sums.connect import connect_workers, spread_workers

PATIENCE = 5.0
"""Seconds in which the framework brings the error that a worker has ended with."""


class Led(NoSaver):
    """Keeps the state of a run, which all have alike, in the first process, which tells others.

    ``inner`` keeps it besides; ``kept`` is the newest.
    """

    def __init__(
        self, engine: ClusterEngine, kept: State | None = None, inner: Saver | None = None
    ) -> None:
        self._engine, self._inner, self.kept = engine, inner, kept

    def begin(self, facts: State) -> None:
        if self._inner is not None:
            self._inner.begin(facts)
            self.kept = self.kept or self._inner.saved
        self.saved = self._engine.bcast(self.kept)

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        if self._engine.rank == 0:
            self.kept = state()
            if self._inner is not None:
                self._inner.offer(state, last=last)


@dataclass(frozen=True)
class Recipe:
    """What all processes of a fit run; ``read`` returns a partition's rows (m, d) as numbers."""

    read: Callable[[Any], Floats]
    in_frames: bool
    n_features: int
    names: list[str] | None
    n_parts: int
    settings: FitSettings
    sums: SumSettings
    privacy: PrivacySettings

    def fit(
        self,
        engine: ClusterEngine,
        parts: Sequence[Any],
        weights: Sequence[Any] | None,
        **more: Any,
    ) -> RowFit:
        """Fit to partitions, of which this process has its own; all call it together."""
        n = self.n_parts
        place = Placement.evenly(engine, n)
        here = {agent: at for at, agent in enumerate(place.own.tolist())}
        read = for_each(place, range(n), lambda agent: self.read(parts[here[agent]]))
        counts = place.allgather({agent: len(rows) for agent, rows in read.items()})
        double = self.privacy.is_asked or any(one.dtype != np.float32 for one in read.values())
        size = engine.allreduce(np.array([8 if double else 4]), "max")[0]
        # In memory as a whole array or data frame: that decides in which order numbers are added.
        lie = np.asfortranarray if self.in_frames else np.ascontiguousarray
        empty = np.empty((0, self.n_features), f"f{size}")
        X = lie(np.concatenate([empty, *read.values()], dtype=empty.dtype, casting="same_kind"))
        read.clear()
        row_weights = None
        if weights is not None:
            row_weights = np.concatenate([np.empty(0), *map(np.ravel, weights)])
        ends = np.cumsum([0, *counts.values()]).tolist()
        names = tuple(f"partition {number}" for number in range(n))
        workers = Workers(tuple(np.arange(*pair) for pair in pairwise(ends)), names)
        network = connect_workers(make_graph("star", n, names=names), self.sums)
        return fit_em(
            X, workers, spread_workers(network, engine), self.settings, dtype=X.dtype,
            sample_weight=row_weights, feature_names=self.names, privacy=self.privacy, **more,
        )  # fmt: skip


def member(
    ticket: Ticket, recipe: Recipe, n_threads: int, parts: Sequence[Any], weights: Any
) -> None:
    """Take part in a fit as one of its workers, in a task of the framework."""
    with suppress(Parted), silent(), joined(ticket) as engine:  # the first process warns
        recipe.fit(engine, parts, weights, saver=Led(engine), n_threads=n_threads)


def fit_over(
    cluster: Cluster, recipe: Recipe, parts: Sequence[Any], weights: Sequence[Any] | None,
    callback: Any,
) -> RowFit:  # fmt: skip
    """Fit to the partitions of a collection, at the workers that the framework has."""
    kept, n = None, len(parts)
    while True:
        names = cluster.names[:n]
        if not names:
            raise InputError("there are no workers that could take part; start some")
        ends = (np.arange(len(names) + 1) * n // len(names)).tolist()

        def start(ticket: Ticket, cluster: Cluster = cluster, ends: list[int] = ends) -> None:
            rank = ticket.rank
            run = slice(*ends[rank - 1 : rank + 1])
            threads = recipe.settings.n_threads or cluster.threads(rank)
            heavy = None if weights is None else cluster.bring(rank, weights[run])
            part = cluster.bring(rank, parts[run])
            cluster.start(rank, member, ticket, recipe, threads, part, heavy)

        saver: Led | None = None
        try:
            with leading(cluster, names, start) as engine:
                saver = Led(engine, kept)
                return recipe.fit(engine, [], None if weights is None else [], saver=saver,
                                  callback=callback)  # fmt: skip
        except Unheard as error:
            lost = error
            if saver is not None and recipe.settings.batch_size is None:
                kept = saver.kept
        except Parted as error:
            raise _cause(error, cluster) from None
        cluster = cluster.remaining([lost.name])
        if lost.name not in names or not cluster.names:
            raise lost
        warn(f"{lost}; its partitions go to the others, and the fit goes on")


@contextmanager
def leading(
    cluster: Cluster, names: Sequence[str], start: Callable[[Ticket], None]
) -> Iterator[ClusterEngine]:
    """Join a run as its first process, once ``start`` has begun it at each worker.

    Keys and certificates of all are made for this run.
    """
    listener = listening("", 0, "this process")
    address, run = (cluster.host, listener.getsockname()[1]), secrets.token_hex(16)
    keys, written = zip(*(make_key() for _ in range(len(names) + 1)), strict=True)
    certificates = [make_certificate("vpem", key, days=30) for key in keys]
    first, *others = (
        Ticket(run, rank, ["the fit", *names], certificates, address, key)
        for rank, key in enumerate(written)
    )
    try:
        for ticket in others:
            start(ticket)
        with joined(first, listener, cluster) as engine:
            yield engine
    finally:
        cluster.stop()
        listener.close()


def _cause(error: Parted, cluster: Cluster) -> VpemError:
    """Return the error that a worker has ended with, which the framework brings in a while."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if (cause := cluster.look()) is not None:
            return cause
        time.sleep(0.05)
    return error
