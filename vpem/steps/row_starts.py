"""Where algorithms over rows start: k-means++ and Lloyd's iterations by sums over workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import assign_rows, distances_to
from vpem._core.missing import marginal_diag
from vpem.engines.crew import Crew
from vpem.steps.lloyd_states import lloyd_state, resume_lloyd
from vpem.steps.saver import NoSaver, Saver
from vpem.steps.starts import MOST_LLOYD, ROW_BYTES, RowStream
from vpem.sums.counted import add_vectors
from vpem.sums.sum import Sum

__all__ = [
    "Lloyd",
    "PlacedStream",
    "lloyd_rows",
    "share_rows",
    "spread_rows",
    "take_rows",
    "tell_all",
]


class PlacedStream(RowStream):
    """A stream that draws the same rows, as the user numbers them, however workers hold them.

    Parameters
    ----------
    rng : Generator
        The shared stream.
    row_weights : ndarray of shape (M,) or None
        In the order of the workers.
    order : ndarray of shape (M,)
        The user's numbers of all rows, worker by worker.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        row_weights: NDArray[np.float64] | None,
        order: NDArray[np.intp],
    ) -> None:
        super().__init__(rng, row_weights, len(order))
        self._place = np.argsort(order)
        weights = None if row_weights is None else row_weights[self._place]
        self._users = RowStream(rng, weights, len(order))

    def draw(self, potential: NDArray[np.float64] | None = None) -> int:
        """Draw the place of one row; by a potential, in the order of the workers."""
        if potential is not None:
            return super().draw(potential)
        return int(self._place[self._users.draw()])

    def draw_distinct(self, count: int) -> NDArray[np.intp]:
        """Draw the places of ``count`` different rows."""
        return self._place[self._users.draw_distinct(count)]


MANY_WORKERS = 16
"""Workers from which on their sums are taken in one call, row by row and not in pairs."""

CHUNK_ROWS = 1 << 14
"""Rows that miss values are assigned so many a time."""


class _Held:
    """Rows of the workers of this process; rows of all workers are numbered worker by worker."""

    def __init__(
        self,
        parts: Sequence[NDArray[Any]],
        stream: RowStream,
        crew: Crew,
        observed: NDArray[np.uint8] | None = None,
    ) -> None:
        self.crew = crew
        width = int(crew.largest(np.array([part.shape[1] for part in parts[:1]] or [0]))[0])
        self.rows = _joined(parts or [np.empty((0, width))])
        self.observed = observed
        counts = np.array([len(part) for part in parts], dtype=np.intp)
        self.bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        ends: list[int] = self.bounds.tolist()
        self.runs = [slice(begin, end) for begin, end in pairwise(ends)]
        self.sums: NDArray[np.float64] | None = None
        self.counts = self.messages = np.empty(0)
        every = crew.join(counts)
        self.ends = np.cumsum(every)
        """Where the rows of each worker of all processes end."""
        self.own = crew.own(len(every))
        self.first = int(self.ends[self.own[0]] - every[self.own[0]]) if len(self.own) else 0
        weights = stream.row_weights
        self.weights = np.empty(0)
        self.lightest = 1.0
        if weights is not None:
            here = weights[self.first : self.first + len(self.rows)]
            self.weights = np.ascontiguousarray(here, dtype=np.float64)
            self.lightest = float(weights[weights > 0].min())

    @property
    def n_workers(self) -> int:
        """Number of workers of all processes, N."""
        return len(self.ends)

    def here(self, rows: Sequence[int] | NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of some rows are in this process."""
        place = np.asarray(rows, dtype=np.intp) - self.first
        found: NDArray[np.bool_] = (place >= 0) & (place < len(self.rows))
        return found

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> NDArray[np.float64]:
        """Some rows, as those who hold them tell them, shape (L, d)."""
        places, here = np.asarray(rows, dtype=np.intp) - self.first, self.here(rows)
        found = np.zeros((len(places), self.rows.shape[1]))
        found[here] = self.rows[places[here]]
        return self.crew.add(found)

    def distances(
        self, points: NDArray[np.float64], out: NDArray[np.float64], n_threads: int
    ) -> None:
        """Squared distances of all rows to points (L, d), into (L, M)."""
        if self.observed is None:
            distances_to(self.rows, points, out, n_threads)
            return
        for begin in range(0, len(self.rows), CHUNK_ROWS):
            some = slice(begin, begin + CHUNK_ROWS)
            out[:, some] = self.by_observed(points, some, n_threads).T

    def by_observed(self, points: NDArray[np.float64], rows: slice, n_threads: int) -> NDArray[Any]:
        """Squared distances by what is there of rows, times the share of it, (m, L)."""
        assert self.observed is not None
        data, observed = self.rows[rows], self.observed[rows]
        width = data.shape[1]
        out = np.empty((1, len(data), len(points)), dtype=data.dtype)
        ones = np.ones((1, width))
        ends = np.array([0, width], dtype=np.intp)
        marginal_diag(
            data, observed, ends, np.ascontiguousarray(points), ones, np.zeros_like(ones), out,
            n_threads,
        )  # fmt: skip
        there = observed.sum(axis=1, dtype=np.intp)
        found: NDArray[Any] = out[0] * (width / np.maximum(there, 1))[:, None].astype(out.dtype)
        return found

    def potentials(self, trials: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weighted sums over each worker's rows of values (L, M), shape (N, L)."""
        if len(self.weights):
            trials = trials * self.weights
        filled = np.flatnonzero(np.diff(self.bounds))
        found = np.zeros((len(self.runs), len(trials)))
        if len(filled) < MANY_WORKERS:
            for worker in filled:
                found[worker] = trials[:, self.runs[worker]].sum(axis=1)
        else:
            found[filled] = np.add.reduceat(trials, self.bounds[filled], axis=1).T
        return found

    def owner(self, row: int) -> int:
        """Which worker holds a row."""
        return int(np.searchsorted(self.ends, row, side="right"))

    def weighed(self, values: NDArray[np.float64], run: slice) -> NDArray[np.float64]:
        """Values of a worker's rows times their weights."""
        own = values[run]
        return own * self.weights[run] if len(self.weights) else own


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All rows one after the other: the array that the parts are pieces of, or a copy."""
    first = parts[0]
    dtype = first.dtype if first.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    whole = first.base
    if (
        isinstance(whole, np.ndarray)
        and whole.shape[1:] == first.shape[1:]
        and first.ndim == 2
        and whole.flags.c_contiguous
        and whole.dtype == dtype
        and len(whole) == sum(map(len, parts))
        and all(part.base is whole for part in parts)
    ):
        place = _address(whole)
        for part in parts:
            if len(part) and (_address(part) != place or not part.flags.c_contiguous):
                break
            place += part.nbytes
        else:
            return whole
    if len(parts) == 1:
        return np.ascontiguousarray(first, dtype=dtype)
    return np.ascontiguousarray(np.concatenate(parts), dtype=dtype)


def _address(values: NDArray[Any]) -> int:
    """Where an array begins; quicker than ``ctypes.data``."""
    place: int = values.__array_interface__["data"][0]
    return place


def tell_all(total: Sum, owner: int, n_workers: int, size: int) -> None:
    """Count how one worker tells all others something."""
    ledger = getattr(total, "ledger", None)
    if n_workers < 2:
        return
    if ledger is not None and ledger.n_nodes > n_workers:
        # The server is the last node: it is told first.
        ledger.send("flooding", size, links=[ledger.link(owner, n_workers)], rounds=1)
    total.agree("flooding", size)


def share_rows(
    parts: Sequence[NDArray[Any]], total: Sum, rows: NDArray[np.intp], *, itemsize: int = 8
) -> NDArray[np.float64]:
    """Rows that become centres, which the workers that hold them tell all others.

    Parameters
    ----------
    parts : sequence of ndarray of shape (m_i, d)
        Rows of each worker.
    total : Sum
        Counted sum among the workers.
    rows : ndarray of shape (L,)
        Numbers of the rows, counted worker by worker.
    itemsize : {8, 4}
        Bytes of a number that is told: with 4 all take the rows as float32 has them.

    Returns
    -------
    ndarray of shape (L, d)
    """
    return _shared(_unweighed(parts, total), total, rows, itemsize)


def take_rows(
    parts: Sequence[NDArray[Any]], total: Sum, rows: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Rows (L, d) that all have been told before, as `share_rows` gives them."""
    return _unweighed(parts, total).take(rows)


def _unweighed(parts: Sequence[NDArray[Any]], total: Sum) -> _Held:
    return _Held(parts, RowStream(np.random.default_rng(), None, sum(map(len, parts))), total.crew)


def _shared(
    held: _Held, total: Sum, rows: Sequence[int] | NDArray[np.intp], itemsize: int = 8
) -> NDArray[np.float64]:
    points = held.take(rows).astype(f"f{itemsize}").astype(np.float64)
    size = ROW_BYTES + itemsize * points.shape[1]
    for row in rows:
        tell_all(total, held.owner(int(row)), held.n_workers, size)
    return points


# ---- k-means++ ----------------------------------------------------------------------------------


def spread_rows(
    parts: Sequence[NDArray[Any]],
    total: Sum,
    n_components: int,
    stream: RowStream,
    *,
    n_trials: int | None = None,
    n_threads: int = 1,
    observed: NDArray[np.uint8] | None = None,
) -> NDArray[np.intp]:
    """Greedy k-means++ (Arthur and Vassilvitskii 2007) over rows that workers hold.

    Each worker sends the potential of its rows (squared distances to the nearest row chosen, added
    up), in a place of its own of one vector, so that all know from which worker a shared random
    number draws; that worker draws among its own rows and tells the row. Of several trials the one
    that leaves the least potential is kept, as the first worker finds it. It is the draw of the
    same algorithm over all rows at one place, in the order of the workers.

    Parameters
    ----------
    parts : sequence of ndarray of shape (m_i, d)
        Rows of each worker.
    total : Sum
        Counted sum among the workers, each a root of its own, or a server's.
    n_components : int
        Number of rows to choose, K.
    stream : RowStream
        The stream that all workers share; its row weights are in the order of the workers.
    n_trials : int, optional
        Rows drawn a step, of which the best is kept; 1 is k-means++ as first published. None:
        ``2 + log K``.
    n_threads : int
        Threads of the kernels.
    observed : ndarray of shape (M, d), optional
        1 where a value is there, where values are missing: distances are by what is there, times
        the share of features it is.

    Returns
    -------
    ndarray of shape (K,)
        Numbers of the rows, counted worker by worker.
    """
    held = _Held(parts, stream, total.crew, observed)
    if n_trials is None:
        n_trials = 2 + int(np.log(n_components))
    chosen = [stream.draw()]
    latest = chosen
    nearest: NDArray[np.float64] | None = None
    while True:
        points = _shared(held, total, latest)
        trials = np.empty((len(points), len(held.rows)))
        held.distances(points, trials, n_threads)
        if nearest is not None:
            np.minimum(trials, nearest, out=trials)
        # (L, N): what every worker has left after each trial, as the first worker knows it.
        left = _by_worker(total, held, held.potentials(trials))
        best = int(np.argmin(left.sum(axis=1)))
        if latest is not chosen:
            chosen.append(latest[best])
            total.agree("flooding", ROW_BYTES)
        nearest = trials[best].copy()
        nearest[np.array(chosen)[held.here(chosen)] - held.first] = 0.0
        if len(chosen) == n_components:
            return np.array(chosen, dtype=np.intp)
        remaining = left[best]
        if not remaining.any():
            # Fewer different rows than components: the rest are drawn among those not taken.
            rest = stream.draw_distinct(n_components)
            fresh = [int(row) for row in rest if row not in chosen]
            chosen += fresh[: n_components - len(chosen)]
            return np.array(chosen, dtype=np.intp)
        latest = [_draw(held, stream, nearest, np.maximum(remaining, 0.0)) for _ in range(n_trials)]


def _by_worker(total: Sum, held: _Held, sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Send potentials (n, L), each worker's in a place of its own: (L, N) as the first finds it."""
    n_trials, n_workers = sums.shape[1], held.n_workers
    if total.mix is not None and len(total.mix) == 1 and (total.mix == 1).all():
        # An exact sum of vectors that have one entry each that is not zero.
        total.begin("setup", 1, sums.size, sums.itemsize)
        return np.ascontiguousarray(sums.T)
    values = np.zeros((len(sums), n_workers, n_trials))
    values[np.arange(len(sums)), np.array(held.own, dtype=np.intp)] = sums
    summed = add_vectors(total, values.reshape(len(sums), n_workers * n_trials), "setup")
    found = np.asarray(total.tell(summed[0]))
    left: NDArray[np.float64] = found.reshape(n_workers, n_trials).T
    return left


def _draw(
    held: _Held, stream: RowStream, nearest: NDArray[np.float64], remaining: NDArray[np.float64]
) -> int:
    """Draw a row in proportion to weight times potential: first the worker, then its row."""
    ends = np.cumsum(remaining)
    place = min(stream.rng.random() * ends[-1], np.nextafter(ends[-1], 0))
    worker = int(np.searchsorted(ends, place, side="right"))
    place -= ends[worker] - remaining[worker]
    row = None
    if worker in held.own:
        run = held.runs[worker - held.own.start]
        own = np.cumsum(held.weighed(nearest, run))
        inside = min(place, np.nextafter(own[-1], 0))
        row = held.first + run.start + int(np.searchsorted(own, inside, side="right"))
    return int(held.crew.told(row, worker))


# ---- Lloyd's iterations -------------------------------------------------------------------------


@dataclass
class Lloyd:
    """What Lloyd's iterations over workers end with.

    Attributes
    ----------
    centres : ndarray of shape (R, K, d)
        As each root knows them; R is 1 where all share one sum, else the number of workers.
    labels : list of ndarray of shape (m_i,)
        Cluster of each worker's rows, by its own centres.
    distances : list of ndarray of shape (m_i,)
        Squared distances to them.
    counts : ndarray of shape (R, K)
        Weight of each cluster.
    inertia : ndarray of shape (R,)
        Weighted sum of squared distances, as each root finds it.
    history : list of float
        Inertia of each iteration's assignment, as the first root finds it.
    bytes_sent : list of int
        Payload bytes sent when each entry of the history was known.
    converged : bool
        Whether no row changed its cluster in the last iteration.
    reseeded : list of (int, int, int)
        Iteration, cluster and row, of clusters that were empty and placed anew.
    """

    centres: NDArray[np.float64]
    labels: list[NDArray[np.int32]]
    distances: list[NDArray[np.float64]]
    counts: NDArray[np.float64]
    inertia: NDArray[np.float64]
    history: list[float] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    converged: bool = False
    reseeded: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """What the best of several runs has most of: less inertia, by the first root."""
        return -float(self.inertia[0])


def lloyd_rows(
    parts: Sequence[NDArray[Any]],
    total: Sum,
    centres: NDArray[np.float64],
    stream: RowStream,
    *,
    max_iter: int = MOST_LLOYD,
    n_threads: int = 1,
    kind: str = "estep",
    callback: Callable[[int, float, int], None] | None = None,
    observed: NDArray[np.uint8] | None = None,
    fill: bool = False,
    saver: Saver | None = None,
) -> Lloyd:
    """Lloyd's iterations over rows that workers hold.

    Each worker assigns its rows to the nearest centre and sends, in one vector, the weight and the
    sum of its rows in each cluster, its part of the inertia, and how many rows changed. A cluster
    that nobody has rows of is placed at a random row, the same for all. It stops when no row
    changes; a row as near to one centre as to another goes to the first. With an exact sum it is
    Lloyd's algorithm over all rows.

    Parameters
    ----------
    parts : sequence of ndarray of shape (m_i, d)
        Rows of each worker; a worker may have none.
    total : Sum
        Counted sum among the workers, each a root of its own, or a server's.
    centres : ndarray of shape (K, d)
        Where to start, known to all.
    stream : RowStream
        The stream that all workers share; its row weights are in the order of the workers.
    max_iter : int
        Most iterations.
    n_threads : int
        Threads of the kernels; nothing depends on it.
    kind : str
        What the sums are for; see `vpem.sums.sum.Sum.begin`.
    callback : callable, optional
        Told of the iteration, its inertia as the first root finds it, and the rows that changed.
    observed : ndarray of shape (M, d), optional
        1 where a value is there, where values are missing; see `spread_rows`.
    fill : bool
        Whether missing values count as the centre that they are filled by (k-POD, Chi, Chi and
        Baraniuk 2016); else a feature's centre is the mean of what is there, and the messages have
        the weight of that besides.
    saver : Saver, optional
        Is offered the state after every iteration.

    Returns
    -------
    Lloyd
    """
    held = _Held(parts, stream, total.crew, observed)
    n_components, width = centres.shape
    known = np.ascontiguousarray(centres, dtype=np.float64)[None]
    labels = np.full(len(held.rows), -1, dtype=np.int32)
    distances = np.empty(len(held.rows))
    run = Lloyd(
        known,
        [labels[own] for own in held.runs],
        [distances[own] for own in held.runs],
        np.zeros((1, n_components)),
        np.zeros(1),
    )

    def assign() -> tuple[NDArray[np.float64], int]:
        if observed is not None:
            return _pass_observed(
                held, total, run.centres, labels, distances, n_threads, kind, fill
            )
        return _pass(held, total, run.centres, labels, distances, n_threads, kind)

    least = 0.5 * held.lightest
    saver = saver or NoSaver()
    done = 0
    if saver.saved is not None:
        done = resume_lloyd(saver, run, total, max_iter, int(held.ends[-1]), len(held.rows))
        if run.converged:
            return run
    for iteration in range(done + 1, max_iter + 1):
        state = partial(lloyd_state, run, total, iteration)
        found, changed = assign()
        run.counts, sums = found[:, :n_components], found[:, n_components:-2]
        run.inertia = total.report(found[:, -2].copy())
        run.history.append(float(run.inertia[0]))
        run.bytes_sent.append(total.bytes_sent)
        total.agree("stopping")
        if callback is not None:
            callback(iteration, run.history[-1], changed)
        if changed == 0:
            run.converged = True
            saver.offer(state, last=True)
            return run
        empty = total.some(np.atleast_1d((run.counts < least).any(axis=0)))
        safe = np.where(run.counts < least, 1.0, run.counts)
        if observed is None:
            run.centres = sums.reshape(len(found), n_components, width) / safe[:, :, None]
        else:
            # How far what is there lies from the centre, and how much that is where not filled.
            moves = sums.reshape(len(found), -1, n_components, width)
            there = safe[:, :, None] if fill else moves[:, 1]
            moved = np.where(there < least, 0.0, moves[:, 0] / np.maximum(there, least))
            run.centres = run.centres + moved
        for component in np.flatnonzero(empty):
            row = stream.draw()
            run.centres[:, component] = _shared(held, total, [row])[0]
            run.reseeded.append((iteration, int(component), row))
        saver.offer(state, last=iteration == max_iter)
    # The iterations ran out: labels of the centres that came out last.
    found, _ = assign()
    run.counts, run.inertia = found[:, :n_components], total.report(found[:, -2].copy())
    return run


def _pass(
    held: _Held,
    total: Sum,
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    n_threads: int,
    kind: str,
) -> tuple[NDArray[np.float64], int]:
    """Assign all rows: the sum (R, P) of what the workers send, and how many rows changed."""
    n_workers, (n_components, width) = len(held.runs), centres.shape[1:]
    if held.sums is None:
        # Kept from pass to pass: of many workers they are large.
        held.sums = np.empty((n_workers, n_components, width))
        held.counts = np.empty((n_workers, n_components))
        held.messages = np.empty((n_workers, n_components * (width + 1) + 2))
    counts, sums = held.counts, held.sums
    counts.fill(0.0)
    sums.fill(0.0)
    inertias, changes = np.zeros(n_workers), np.zeros(n_workers, dtype=np.intp)
    if n_workers:
        assign_rows(
            held.rows, held.weights, held.bounds, centres, labels, distances, counts, sums,
            inertias, changes, n_threads,
        )  # fmt: skip
    # A sum that is run in rounds may keep what it was given.
    messages = held.messages if total.mix is not None else np.empty_like(held.messages)
    messages[:, :n_components] = counts
    messages[:, n_components:-2] = sums.reshape(n_workers, n_components * width)
    messages[:, -2], messages[:, -1] = inertias, changes
    changed = int(held.crew.add(changes.sum(keepdims=True))[0])
    return add_vectors(total, messages, kind), changed


def _pass_observed(
    held: _Held,
    total: Sum,
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    n_threads: int,
    kind: str,
    fill: bool,
) -> tuple[NDArray[np.float64], int]:
    """Assign all rows by what is there of them; see `_pass`."""
    assert held.observed is not None
    n_components, width = centres.shape[1:]
    messages: list[NDArray[np.float64]] = []
    changed = 0
    for worker, run in enumerate(held.runs):
        own = centres[0 if len(centres) == 1 else worker]
        counts, inertia, changes = np.zeros(n_components), 0.0, 0
        sums, there = np.zeros((2, n_components, width))
        for begin in range(run.start, run.stop, CHUNK_ROWS):
            rows = slice(begin, min(begin + CHUNK_ROWS, run.stop))
            found = held.by_observed(own, rows, n_threads)
            nearest = found.argmin(axis=1)
            changes += int(np.count_nonzero(nearest != labels[rows]))
            labels[rows] = nearest
            distances[rows] = found[np.arange(len(found)), nearest]
            hard = (nearest[:, None] == np.arange(n_components)).astype(np.float64)
            if len(held.weights):
                hard *= held.weights[rows, None]
            counts += hard.sum(axis=0)
            observed = held.observed[rows]
            there += hard.T @ observed
            sums += hard.T @ np.where(observed, held.rows[rows] - own[nearest], 0.0)
            inertia += float(hard.sum(axis=1) @ distances[rows])
        parts = [counts, sums.ravel(), np.array([inertia, changes])]
        if not fill:
            parts.insert(2, there.ravel())
        messages.append(np.concatenate(parts))
        changed += changes
    return add_vectors(total, np.array(messages), kind), changed
