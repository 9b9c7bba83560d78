"""Fits to partitions of rows at the workers of a framework (`vpem.engines.cluster`).

Every partition is a worker of `vpem.fits.rows.fit_em`, and sums are added in the order of
partitions: results do not depend on how many workers the framework has. Where one is lost, the fit
goes on from the last iteration with the others, which take up its partitions.
"""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from vpem.checks import Floats
from vpem.engines.cluster import Cluster, ClusterEngine, Ticket, door, issue, joined
from vpem.engines.placement import Placement, for_each
from vpem.engines.tls.faults import Parted, Unheard
from vpem.errors import InputError, VpemError, VpemWarning, warn
from vpem.files.studies.signed import make_certificate, make_key
from vpem.fits.estimators.base import validated
from vpem.fits.results import RowFit
from vpem.fits.rows import fit_em
from vpem.fits.settings import PrivacySettings
from vpem.network.graph import make_graph
from vpem.network.partition import Workers
from vpem.network.schema import State
from vpem.settings import FitSettings, SumSettings
from vpem.steps.recovery import NoSaver, Saver
from vpem.sums.connect import connect_workers, spread_workers

FIT = "the fit"
"""Name of the first process in messages."""

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
    """What all processes of a fit run; rows are read like those of an empty ``like``."""

    like: Any
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
        lie = np.asfortranarray if hasattr(self.like, "columns") else np.ascontiguousarray
        empty = np.empty((0, np.shape(self.like)[1]), f"f{size}")
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

    def read(self, part: Any) -> Floats:
        """Return a partition's rows (m, d) as numbers."""
        reader = BaseEstimator()
        checks: Any = {"dtype": [np.float64, np.float32], "ensure_all_finite": False}
        validate_data(reader, self.like, ensure_min_samples=0, **checks)
        return validated(reader, part, reset=False, ensure_min_samples=0, **checks)


def member(
    ticket: Ticket, recipe: Recipe, n_threads: int, parts: Sequence[Any], weights: Any
) -> None:
    """Take part in a fit as one of its workers, in a task of the framework."""
    with suppress(Parted), warnings.catch_warnings(), joined(ticket) as engine:
        warnings.simplefilter("ignore", VpemWarning)  # the first process says them
        recipe.fit(engine, parts, weights, saver=Led(engine), n_threads=n_threads)


class Partitions(Protocol):
    """Rows of a collection: ``parts``, in their order."""

    parts: list[Any]

    def cluster(self) -> Cluster:
        """Return the workers that may read them."""


def fit_over(rows: Partitions, recipe: Recipe, weights: Partitions | None, callback: Any) -> RowFit:
    """Fit to the partitions of a collection, at the workers that the framework has."""
    cluster, kept, n = rows.cluster(), None, len(rows.parts)
    if weights is not None and len(weights.parts) != n:
        raise InputError(
            f"sample_weight has {len(weights.parts)} partitions, but X has {n}; give them the same"
        )
    while True:
        names = cluster.names[:n]
        if not names:
            raise InputError("there are no workers that could take part; start some")
        ends = (np.arange(len(names) + 1) * n // len(names)).tolist()
        runs = [slice(*pair) for pair in pairwise(ends)]
        listener, address = door(cluster.host)
        tickets = issue([FIT, *names], address, identify, secrets.token_hex(16))
        saver: Led | None = None
        try:
            for rank, run in enumerate(runs, 1):
                threads = recipe.settings.n_threads or cluster.threads(rank)
                heavy = None if weights is None else cluster.bring(rank, weights.parts[run])
                part = cluster.bring(rank, rows.parts[run])
                cluster.start(rank, member, tickets[rank], recipe, threads, part, heavy)
            with joined(tickets[0], listener, cluster) as engine:
                saver = Led(engine, kept)
                return recipe.fit(engine, [], None if weights is None else [], saver=saver,
                                  callback=callback)  # fmt: skip
        except Unheard as error:
            lost = error
            if saver is not None and recipe.settings.batch_size is None:
                kept = saver.kept
        except Parted as error:
            raise _cause(error, cluster) from None
        finally:
            cluster.stop()
            listener.close()
        cluster = cluster.remaining([lost.name])
        if lost.name not in names or not cluster.names:
            raise lost
        warn(f"{lost}; its partitions go to the others, and the fit goes on")


def identify() -> tuple[bytes, bytes]:
    """Make a certificate (DER) and its key (PEM) for one run."""
    key, pem = make_key()
    return make_certificate("vpem", key, days=30), pem


def _cause(error: Parted, cluster: Cluster) -> VpemError:
    """Return the error that a worker has ended with, which the framework brings in a while."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if (cause := cluster.look()) is not None:
            return cause
        time.sleep(0.05)
    return error
