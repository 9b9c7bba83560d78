"""Lloyd's iterations, wherever rows are held: their loop, and sums that are followed.

In batches (`ClusterSums`) a row that goes from one cluster to another leaves the sum of the one and
enters that of the other, and the centres follow before the next batch is assigned. With exact sums
neither step raises the inertia. Sums are computed again from the labels when a pass begins, so that
rounding does not add up over passes, and a run that is resumed from its labels goes on alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.errors import PartitionedError
from vpem.network.schema import (
    COUNT,
    FLAG,
    KEPT,
    NOTHING,
    NUMBER,
    TEXT,
    Array,
    As,
    Choice,
    Integer,
    ListOf,
    Maybe,
    Schema,
    State,
    check,
    restore,
    save,
)
from vpem.steps.recovery import NoSaver, Saver, check_length
from vpem.steps.restarts import Kept
from vpem.steps.row_sampling import RowStream
from vpem.steps.runs import DRAWN, note_partition
from vpem.sums.sum import Sum

Labels = NDArray[np.int32]

MOST_LLOYD = 300
"""Most iterations."""


@dataclass(frozen=True)
class KMeansProgress:
    """What a callback gets after every iteration, as the first root finds it."""

    iteration: int
    inertia: float
    changed: int  # rows in other clusters

    def facts(self) -> list[str]:
        rows = f"{self.changed} row{'' if self.changed == 1 else 's'}"
        return [f"inertia {self.inertia:.6g}", f"{rows} changed"]


@dataclass(frozen=True)
class Pace:
    """Batches of Lloyd's iterations, and when they stop.

    ``patience`` is how often more all agents must be heard without a change before they stop, where
    sums err or some agents are absent; see `Lloyd.calm`. 0: the sum of an iteration is that of the
    last one if no row has changed. Of batches, after which centres follow, an iteration is a pass
    over all. Within ``tolerances`` (n,), squared shifts, centres are at rest: of each hub's part of
    them or, over rows, of each root of this process; None: they are once no row changes.
    """

    patience: int = 0
    batch_size: int | None = None
    tolerances: Doubles | None = None


PLAIN = Pace()
"""All rows in every iteration, until none has changed."""


class Clusters(ABC):
    """Rows that are assigned to the nearest centres, and centres that move to their means."""

    def __init__(self, total: Sum, n_samples: int, pace: Pace, kind: str) -> None:
        self.total, self.pace = total, pace
        self.n_samples = n_samples
        """Rows of all processes, M."""
        self.kind = kind
        """What its sums are for; see `Sum.begin`."""
        self.settles = kind != "setup"
        """Whether rows are assigned once more if the iterations run out."""
        self.agreement = "stopping"
        """What the message is for by which all agree to go on; see `Sum.agree`."""

    @abstractmethod
    def assign(self, run: Lloyd) -> int:
        """Assign all rows, and note counts and inertia: how many rows changed."""

    @abstractmethod
    def move(self, run: Lloyd) -> Indices:
        """Move the centres: which clusters are empty."""

    @abstractmethod
    def place(self, run: Lloyd, clusters: Sequence[int], rows: Sequence[int]) -> None:
        """Put the centres of these clusters at rows."""

    @abstractmethod
    def shifts(self, run: Lloyd, before: Doubles) -> Doubles:
        """Squared shifts of the centres since ``before``, as `Pace.tolerances` are."""


@dataclass
class Lloyd:
    """What Lloyd's iterations end with.

    Over rows there are centres (R, K, d) as each root knows them, R = 1 where all share one sum,
    and labels (m,) of the rows of this process, worker by worker, by their worker's centres. Over
    features there are centres (K, d) in block order, each hub's part as its own root has it, and
    labels (R, M) as each root finds them. ``reseeded`` has iteration, cluster and row of clusters
    that were empty and re-initialised. ``partitions`` are iterations in which the network was
    disconnected and nothing changed, and why. ``calm`` is how often in a row all agents have been
    heard since a row changed or the network was disconnected; ``waiting`` (N,) marks agents not
    heard since that was counted last (None: none but those that take part).
    """

    centres: Doubles
    labels: NDArray[np.int32]
    counts: Doubles  # (R, K) weights
    inertia: Doubles  # (R,), weighted
    distances: Doubles | None = None  # (m,) squared, over rows, once over
    history: list[float] = field(default_factory=list)  # inertia, by the first root
    bytes_sent: list[int] = field(default_factory=list)  # when each was known
    converged: bool = False
    reseeded: list[tuple[int, int, int]] = field(default_factory=list)
    partitions: list[tuple[int, str]] = field(default_factory=list)
    calm: int = 0
    waiting: Mask | None = None
    iteration: int = 0  # the last one

    def resume(self, saver: Saver, schema: dict[str, Schema], max_iter: int) -> None:
        state = saver.saved
        assert state is not None
        check(schema, state, saver.place)
        restore(schema, self, state)
        done, counted = self.iteration, len(self.history) + len(self.partitions)
        if done != counted or (self.converged and not self.history):
            expected = f"{counted}, as many as there are in the record"
            saver.place.inside("iteration").refuse(expected, str(done))
        check_length(done, max_iter)


def iterate_lloyd(
    clusters: Clusters,
    run: Lloyd,
    stream: RowStream,
    *,
    max_iter: int = MOST_LLOYD,
    callback: Callable[[KMeansProgress], None] | None = None,
    saver: Saver | None = None,
) -> Lloyd:
    """Run Lloyd's iterations from the centres of ``run``, and return it.

    It stops when no row changes, where sums err or some are absent as often in a row as it takes,
    or when all centres have moved by no more than a tolerance. A row as near to one centre as to
    another goes to the first. A cluster that is empty is re-initialised at a random row, the same
    for all.
    """
    saver, total = saver or NoSaver(), clusters.total
    n_here = len(run.labels) if run.labels.ndim == 1 else None
    schema = _schema(run.centres.shape[-2:], clusters.n_samples, total, n_here) | {"sum": total}
    state = partial(save, schema, run)
    if saver.saved is not None:
        run.resume(saver, schema, max_iter)
        if run.converged:
            return run
    for iteration in range(run.iteration + 1, max_iter + 1):
        run.iteration = iteration
        try:
            changed = clusters.assign(run)
        except PartitionedError as error:
            note_partition(run.partitions, iteration, error)
            run.calm, run.waiting = 0, None
            saver.offer(state, last=iteration == max_iter)
            continue
        run.history.append(float(run.inertia[0]))
        run.bytes_sent.append(total.bytes_sent)
        if not total.tells_all:
            total.agree(clusters.agreement)
        if callback is not None:
            callback(KMeansProgress(iteration, run.history[-1], changed))
        absent = total.absent
        if changed:
            run.calm, run.waiting = 0, absent
        else:
            # All agents must have been heard without a change before that counts as calm.
            if run.waiting is not None and absent is not None:
                absent = run.waiting & absent
            run.waiting = absent if absent is not None and absent.any() else None
            run.calm += run.waiting is None
            if run.waiting is None and run.calm > clusters.pace.patience:
                run.converged = True
                saver.offer(state, last=True)
                return run
        before = run.centres
        empty = [int(cluster) for cluster in clusters.move(run)]
        if empty:
            rows = [stream.draw() for _ in empty]
            clusters.place(run, empty, rows)
            named = [max(row, DRAWN) for row in rows]
            run.reseeded += [(iteration, *one) for one in zip(empty, named, strict=True)]
        elif clusters.pace.tolerances is not None:
            far = (clusters.shifts(run, before) > clusters.pace.tolerances).any()
            if not total.holders.any(np.array([far]))[0]:
                run.converged = True
                saver.offer(state, last=True)
                return run
        saver.offer(state, last=iteration == max_iter)
    if clusters.settles:
        clusters.kind = "check"
        clusters.assign(run)
    return run


def kept_of_lloyd(
    shape: tuple[int, int],
    n_samples: int,
    total: Sum,
    n_here: int | None = None,
    *,
    undo: Callable[[Doubles], Doubles],
    drawn: bool = False,
) -> Kept[Lloyd]:
    """Return what a checkpoint keeps of the restarts of k-means.

    Over rows ``n_here`` are those of this process; None: over features, which all roots assign rows
    by. ``undo`` puts centres (K, d) into units of the data and the user's order of features; if
    ``drawn``, restarts begin at centres that no numbers of rows stand for.
    """
    run = _schema(shape, n_samples, total, n_here, over=True)
    nothing: Any = np.empty(0)
    one: dict[str, Schema] = {"centres": Array("f8", shape)}

    def centres(state: State) -> Doubles:
        every: Doubles = state.get("run", state)["centres"]
        return every

    def start_of(state: State) -> State:
        first = centres(state)  # of several roots the first one's
        return {"centres": undo(first[0] if first.ndim == 3 else first)}

    def begun_at(start: State) -> Doubles:
        check(one, start, KEPT)
        return centres(start)

    return Kept(
        rows=Maybe(Array("i", shape[:1], 0, n_samples - 1)),
        best=As(
            {"run": run | {"sum": NOTHING}},
            lambda best: {"run": save(run, best) | {"sum": None}},
            lambda saved: restore(run, Lloyd(nothing, nothing, nothing, nothing), saved["run"]),
        ),
        loop={"centres": run["centres"]},
        more={"start": one["centres"]} if drawn else {},
        rank=lambda best: (-float(best.inertia[0]),),  # less, by the first root
        parameters=centres,
        start_of=start_of,
        begun_at=begun_at,
    )


def _schema(
    shape: tuple[int, ...], n_samples: int, total: Sum, n_here: int | None, *, over: bool = False
) -> dict[str, Schema]:
    """Schema of a saved run, without its sum; arguments as for `kept_of_lloyd`."""
    k, n_roots = shape[0], total.n_roots
    over_rows, of_rows = n_here is not None, (n_here or 0,)
    # Where the first sum can fail no row may be in a cluster yet.
    sure = over or total.mix is not None or total.at_server
    least, distances = 0 if sure else -1, Array("f8", of_rows)
    return {
        "iteration": As(Choice((0,)), lambda _: 0) if over else Integer(1),
        "centres": Array("f8", (n_roots, *shape) if over_rows else shape),
        "labels": Array("i4", of_rows if over_rows else (n_roots, n_samples), least, k - 1),
        "counts": Array("f8", (n_roots, k)),
        "inertia": Array("f8", (total.roots.n_agents,)),
        "distances": (distances if over else Maybe(distances)) if over_rows else NOTHING,
        "waiting": Maybe(Array("b1", (total.holders.n_agents,))),
        "history": ListOf(NUMBER, "L", least=int(sure)),
        "bytes_sent": ListOf(COUNT, "L"),
        "reseeded": ListOf((COUNT, Integer(most=k - 1), Integer(DRAWN, n_samples - 1))),
        "partitions": ListOf((COUNT, TEXT)),
        "converged": As(FLAG, bool),
        "calm": COUNT,
    }


class ClusterSums:
    """Weights, sums and squares, about a point (d,), of rows in clusters."""

    def __init__(self, n_clusters: int, about: Doubles, gaps: bool) -> None:
        self.about = about
        self.counts = np.zeros(n_clusters)
        self._sums = np.zeros((n_clusters, len(about)))
        self._there = np.zeros_like(self._sums) if gaps else None
        self._squares = np.zeros(len(about))

    @property
    def there(self) -> Doubles:
        """Weight of the observed values of each feature in each cluster, (K, d)."""
        if self._there is None:
            return np.broadcast_to(self.counts[:, None], self._sums.shape)
        return self._there

    def sums(self, about: Doubles | None = None) -> Doubles:
        """Sums of the clusters (K, d), about points (K, d) or zero."""
        points = self.about if about is None else self.about - about
        return self._sums + self.there * points

    def inertia(self, centres: Doubles) -> Doubles:
        """Inertia of these rows in their clusters about centres (K, d), by feature, (d,)."""
        off = centres - self.about
        inertia = self._squares + (off * (off * self.there - 2.0 * self._sums)).sum(axis=0)
        return np.asarray(np.maximum(inertia, 0.0))

    def move(
        self,
        data: Floats,
        weights: Doubles,
        before: Labels,
        after: Labels,
        observed: NDArray[np.uint8] | None = None,
    ) -> int:
        """Move rows (m, d) from clusters to others, -1 being none: how many have moved."""
        moved = np.flatnonzero(before != after)
        if not len(moved):
            return 0
        values = data[moved].astype(np.float64) - self.about
        there = None if observed is None else observed[moved]
        if there is not None:
            values *= there
        weights, fresh = weights[moved], before[moved] < 0
        self._squares += weights[fresh] @ values[fresh] ** 2
        every = np.ones(len(moved), dtype=np.bool_)
        for some, labels, sign in ((every, after, 1.0), (~fresh, before, -1.0)):
            clusters, signed = labels[moved][some], sign * weights[some]
            hard = by_cluster(clusters, signed, len(self.counts))
            self.counts += np.bincount(clusters, signed, len(self.counts))
            self._sums += hard @ values[some]
            if self._there is not None and there is not None:
                self._there += hard @ there[some]
        return len(moved)


def by_cluster(labels: Labels, weights: Doubles, n: int) -> Any:
    """The sparse matrix (K, m) that adds rows up by cluster."""
    from scipy.sparse import csr_array

    starts = np.arange(len(labels) + 1)
    return csr_array((weights, labels, starts), shape=(len(labels), n)).T


def inertia_of_roots(total: Sum, inertia: Doubles) -> Doubles:
    """Inertia as every root (R,) finds it; for inactive roots, as the first active one does."""
    if total.tells_all:
        return inertia
    every = total.roots.join(inertia)
    absent = None if total.at_server else total.absent
    return every if absent is None else np.where(absent, every[~absent][0], every)
