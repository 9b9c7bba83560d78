"""Lloyd's iterations, wherever rows are held, and what a checkpoint keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import (
    COUNT,
    FLAG,
    NOTHING,
    NUMBER,
    Array,
    Choice,
    Integer,
    ListOf,
    Maybe,
    Schema,
    State,
    check,
)  # fmt: skip
from vpem.steps.saver import NoSaver, Saver, check_length
from vpem.steps.streams import RowStream
from vpem.sums.sum import Sum

__all__ = ["MOST_LLOYD", "Clusters", "Lloyd", "LloydRuns", "iterate_lloyd"]

MOST_LLOYD = 300
"""Most iterations."""

ARRAYS = ("centres", "labels", "counts", "inertia", "distances")
LISTS = ("history", "bytes_sent", "reseeded")


@dataclass
class Lloyd:
    """What Lloyd's iterations end with.

    Attributes
    ----------
    centres : ndarray of shape (R, K, d) or (K, d)
        Over rows as each root knows them; R is 1 where all share one sum, else the number of
        workers. Over features in block order, each hub's part as its own root has it.
    labels : ndarray of shape (m,) or (R, M)
        Cluster of each row; over rows of those of this process, worker by worker, by their worker's
        centres; over features as each root finds it.
    counts : ndarray of shape (R, K)
        Weight of each cluster.
    inertia : ndarray of shape (R,)
        Weighted sum of squared distances, as each root finds it.
    distances : ndarray of shape (m,) or None
        Over rows: squared distances to the centres.
    history : list of float
        Inertia of each iteration's assignment, as the first root finds it.
    bytes_sent : list of int
        Payload bytes sent when each entry of the history was known.
    converged : bool
        Whether no row changed its cluster in the last iteration.
    reseeded : list of (int, int, int)
        Iteration, cluster and row, of clusters that were empty and re-initialised.
    """

    centres: NDArray[np.float64]
    labels: NDArray[np.int32]
    counts: NDArray[np.float64]
    inertia: NDArray[np.float64]
    distances: NDArray[np.float64] | None = None
    history: list[float] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    converged: bool = False
    reseeded: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """What the best of several runs has most of: less inertia, by the first root."""
        return -float(self.inertia[0])

    def state(self, total: Sum | None = None, iteration: int = 0) -> State:
        """Return the state of a loop after an iteration; without a sum, of a run that is over."""
        return {
            "iteration": iteration,
            **{name: getattr(self, name) for name in ARRAYS},
            **{name: list(getattr(self, name)) for name in LISTS},
            "converged": bool(self.converged),
            "sum": None if total is None else total.state(),
        }

    def recall(self, state: State) -> None:
        """Take what was saved, which has been checked, for this run."""
        for name in (*ARRAYS, *LISTS, "converged"):
            setattr(self, name, state[name])

    def resume(self, saver: Saver, total: Sum, max_iter: int, n_samples: int) -> int:
        """Put a run and its sum together again; returns the iterations there were."""
        state = saver.saved
        assert state is not None
        n_here = None if self.distances is None else len(self.labels)
        check(_schema(self.centres.shape[-2:], n_samples, total, n_here), state, saver.place)
        self.recall(state)
        total.restore(state["sum"])
        return check_length(state["iteration"], max_iter)


class Clusters(Protocol):
    """Rows that are assigned to the nearest centres, and centres that move to their means."""

    n_samples: int
    """Rows of all processes, M."""
    agreement: str
    """What the message is for by which all agree to go on; see `Sum.agree`."""
    settles: bool
    """Whether rows are assigned once more where the iterations run out."""

    def assign(self, run: Lloyd) -> int:
        """Assign all rows, and note counts and inertia: how many rows changed."""

    def move(self, run: Lloyd) -> NDArray[np.intp]:
        """Move the centres: which clusters are empty."""

    def place(self, run: Lloyd, clusters: Sequence[int], rows: Sequence[int]) -> None:
        """Put the centres of these clusters at rows."""


def iterate_lloyd(
    clusters: Clusters,
    run: Lloyd,
    total: Sum,
    stream: RowStream,
    *,
    max_iter: int = MOST_LLOYD,
    callback: Callable[[int, float, int], None] | None = None,
    saver: Saver | None = None,
) -> Lloyd:
    """Run Lloyd's iterations.

    It stops when no row changes; a row as near to one centre as to another goes to the first. A
    cluster that is empty is re-initialised at a random row, the same for all.

    Parameters
    ----------
    clusters : Clusters
        How rows are assigned and centres move.
    run : Lloyd
        The centres to start from.
    total : Sum
        Counted sum that ``clusters`` takes.
    stream : RowStream
        The stream that all agents share.
    max_iter : int
        Most iterations.
    callback : callable, optional
        Gets the iteration, its inertia as the first root finds it, and the rows that changed.
    saver : Saver, optional
        Is offered the state after every iteration.

    Returns
    -------
    Lloyd
        ``run``.
    """
    saver, done = saver or NoSaver(), 0
    if saver.saved is not None:
        done = run.resume(saver, total, max_iter, clusters.n_samples)
        if run.converged:
            return run
    for iteration in range(done + 1, max_iter + 1):
        state = partial(run.state, total, iteration)
        changed = clusters.assign(run)
        run.history.append(float(run.inertia[0]))
        run.bytes_sent.append(total.bytes_sent)
        total.agree(clusters.agreement)
        if callback is not None:
            callback(iteration, run.history[-1], changed)
        if not changed:
            run.converged = True
            saver.offer(state, last=True)
            return run
        empty = [int(cluster) for cluster in clusters.move(run)]
        if empty:
            rows = [stream.draw() for _ in empty]
            clusters.place(run, empty, rows)
            run.reseeded += [(iteration, *one) for one in zip(empty, rows, strict=True)]
        saver.offer(state, last=iteration == max_iter)
    if clusters.settles:
        clusters.assign(run)
    return run


class LloydRuns:
    """What a checkpoint keeps of the restarts of k-means (`vpem.steps.restarts.Kept`).

    Parameters
    ----------
    shape : (int, int)
        Clusters and features, (K, d).
    n_samples : int
        Number of rows, M.
    total : Sum
        How it is summed.
    n_here : int, optional
        Rows of this process, over rows; None: over features, which all roots assign rows by.
    """

    def __init__(
        self, shape: tuple[int, int], n_samples: int, total: Sum, n_here: int | None = None
    ) -> None:
        run = _schema(shape, n_samples, total, n_here, over=True)
        self.rows: Schema = Maybe(Array("i", shape[:1], 0, n_samples - 1))
        self.best: dict[str, Schema] = {"run": run}
        self.loop: dict[str, Schema] = {"centres": run["centres"]}
        self.more: dict[str, Schema] = {}

    def state(self, run: Lloyd) -> State:
        """Return what is saved of a run that is over."""
        return {"run": run.state()}

    def restore(self, state: State) -> Lloyd:
        """Return the run that was saved."""
        nothing: Any = np.empty(0)
        run = Lloyd(nothing, nothing, nothing, nothing)
        run.recall(state["run"])
        return run


def _schema(
    shape: tuple[int, ...], n_samples: int, total: Sum, n_here: int | None, *, over: bool = False
) -> dict[str, Schema]:
    """Say what a run is saved as; arguments as for `LloydRuns`."""
    k, n_roots = shape[0], total.n_roots
    over_rows, of_rows = n_here is not None, (n_here or 0,)
    return {
        "iteration": Choice((0,)) if over else Integer(1, size="L"),
        "centres": Array("f8", (n_roots, *shape) if over_rows else shape),
        "counts": Array("f8", (n_roots, k)),
        "inertia": Array("f8", (total.roots.n_agents,)),
        "history": ListOf(NUMBER, "L", least=1),
        "bytes_sent": ListOf(COUNT, "L"),
        "reseeded": ListOf((COUNT, Integer(most=k - 1), Integer(most=n_samples - 1))),
        "converged": FLAG,
        "labels": Array("i4", of_rows if over_rows else (n_roots, n_samples), 0, k - 1),
        "distances": Array("f8", of_rows) if over_rows else NOTHING,
        "sum": NOTHING if over else total.schema(),
    }
