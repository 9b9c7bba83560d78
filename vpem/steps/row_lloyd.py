"""Lloyd's iterations over rows that workers hold, by one sum of vectors a pass.

Rows are followed from pass to pass: of each row two bounds are kept, how far its
own centre is at most and any other at least. Both follow how far centres have moved; while the one
is below the other the row stays where it is, and is not even read (Hamerly, *Making k-means even
faster*, SDM 2010). Labels are those of Lloyd's algorithm: what rounding may lose is in the bounds.
Counts, sums and squares are kept in two parts of double precision each, to which rows that change
are added: they are what new sums would be, to the last digit but for the rarest chance, and the
inertia follows from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vpem._core.assign import follow_rows, inertias_of, measure_rows, nearest_rows
from vpem.checks import Doubles, Indices
from vpem.steps.lloyd import (
    MOST_LLOYD,
    PLAIN,
    Clusters,
    ClusterSums,
    KMeansProgress,
    Labels,
    Lloyd,
    Pace,
    inertia_of_roots,
    iterate_lloyd,
)
from vpem.steps.recovery import Saver
from vpem.steps.row_sampling import CHUNK_ROWS, HeldRows, RowStream, WorkerRows
from vpem.sums.counted import add_vectors
from vpem.sums.sum import Sum
from vpem.terms.units import exponents_of

FEW_ROWS = 12
"""Rows a worker and centre below which distances of all rows cost less than moments of centres."""

SURE = 1e-12
"""Least share of the squares about the start of an inertia that is computed by moments."""


def lloyd_rows(
    parts: WorkerRows,
    total: Sum,  # of workers, each a root, or a server's
    centres: Doubles,  # (K, d), known to all
    stream: RowStream,  # weights are worker by worker
    *,
    max_iter: int = MOST_LLOYD,
    n_threads: int = 1,
    kind: str = "estep",  # see `vpem.sums.sum.Sum.begin`
    callback: Callable[[KMeansProgress], None] | None = None,
    fill: bool = False,
    pace: Pace = PLAIN,
    saver: Saver | None = None,
) -> Lloyd:
    """Run Lloyd's iterations over rows (m_i, d) that each of the workers holds.

    Each worker assigns its rows to the nearest centre and sends, in one vector, the weight and the
    sum of its rows in each cluster, its part of the inertia, and how many rows changed. With an
    exact sum it is Lloyd's algorithm over all rows. Rows are assigned once more at the end but for
    a "setup". Values that are not `WorkerRows.observed` count by ``fill`` as the centre that they
    are filled by (k-POD, Chi, Chi and Baraniuk 2016), for which sums must be exact; else a
    feature's centre is the mean of what is observed, and the messages have the weight of that
    besides. Where sums are masked, the stream draws points in the place of rows; where they err,
    what is sent is about the start and in its spread. Of a batch (``pace``) every worker assigns
    its share.
    """
    data = HeldRows(parts, total, stream.row_weights, stream.reach)
    clusters = _Clusters(data, total, centres, pace, kind, fill, n_threads)
    known = np.ascontiguousarray(centres, dtype=np.float64)[None]
    labels = np.full(data.n_here, -1, dtype=np.int32)
    if pace.patience:
        # Sums may fail before any root has centres of its own.
        known = np.repeat(known, total.n_roots, axis=0)
    counts, inertia = np.zeros((total.n_roots, len(centres))), np.zeros(total.roots.n_agents)
    run = iterate_lloyd(
        clusters, Lloyd(known, labels, counts, inertia), stream,
        max_iter=max_iter, callback=callback, saver=saver,
    )  # fmt: skip
    # Of rows with gaps every pass finds distances, if there are any here.
    if data.observed is None:
        run.distances = clusters.measure(run)[0]
    elif run.distances is None:
        run.distances = np.empty(data.n_here)
    return run


class _Clusters(Clusters):
    """Rows of the workers of this process in clusters, with gaps or without.

    Where sums err (``pace.patience``) what is sent lies about the start, in its spread, so that its
    numbers are alike: what a codec loses of a message, or rounds of a sum, goes by its largest
    numbers. Missing values that are filled are where their centres are, about which sums are.
    """

    def __init__(
        self,
        data: HeldRows,
        total: Sum,
        centres: Doubles,
        pace: Pace,
        kind: str,
        fill: bool,
        n_threads: int,
    ) -> None:
        super().__init__(total, data.n_rows, pace, kind)
        self.data, self.n_threads = data, n_threads
        gaps = data.observed is not None
        self.fills = fill and gaps
        self.n_parts = 2 if gaps and not fill else 1
        """Values of a message for each of a centre: the sum, and the weight of what is there."""
        self.least = 0.5 * data.lightest
        self.sums = np.empty(0)
        # Kept from pass to pass: of many workers they are large.
        self.own = np.empty((0, 0))
        self._about = np.ascontiguousarray(centres.mean(axis=0), dtype=np.float64)
        self._before: Doubles | None = None
        """Centres to which all rows were assigned last, of rows without gaps."""
        n_rows, n_workers = (0, 0) if gaps else (data.n_here, len(data.runs))
        self._upper = np.full(n_rows, np.nan, dtype=np.float32)
        self._lower = np.zeros(n_rows, dtype=np.float32)
        self._totals = np.zeros((n_workers, 2, centres.size + len(centres) + 1))
        self._few = data.n_here < FEW_ROWS * len(centres) * len(data.runs)
        self.start, self.unit = None, 1.0
        if pace.patience and not self.fills:
            self.start = np.asarray(centres, dtype=np.float64)
            self.unit = float(np.sqrt(centres.var(axis=0).mean())) or 1.0
        size = pace.batch_size
        self.n_batches = 1 if size is None else -(-data.n_rows // size)
        """Batches of all workers together, each of a share of every worker's rows."""
        self.worker_sums: list[ClusterSums] = []
        """Of each worker here, where there are batches."""
        self.number: int | None = None
        """Of the batch that is assigned; None: all rows are."""

    def assign(self, run: Lloyd) -> int:
        self.number = None
        if self.n_batches == 1 or self.kind == "check":
            return self._take(run)
        self._sum_again(run)
        changed = 0
        for number in range(self.n_batches):
            if number:
                before = run.centres  # of clusters that are empty so far they stay
                self.move(run)
                empty = run.counts < self.least
                run.centres = np.where(empty[:, :, None], before, run.centres)
            self.number = number
            changed += self._take(run)
        return changed

    def _sum_again(self, run: Lloyd) -> None:
        """Compute the workers' sums from the labels (m,) of their rows, -1 being none."""
        data = self.data
        first = data.rows.read(slice(0, 1)) if data.n_here else np.zeros((1, data.width))
        about: Doubles = np.asarray(first[0], dtype=np.float64)
        if data.reach is not None:  # the same wherever workers live
            about = data.reach.points.centre
        gaps, n_clusters = data.observed is not None, run.centres.shape[1]
        self.worker_sums = [ClusterSums(n_clusters, about, gaps) for _ in data.runs]
        for worker, whole in enumerate(data.runs):
            for rows in _chunks(whole):
                none = np.full(rows.stop - rows.start, -1, dtype=np.int32)
                self._change(worker, rows, none, run.labels[rows])

    def _change(self, worker: int, rows: slice, before: Labels, after: Labels) -> int:
        """Move rows of a worker from clusters to others: how many have moved."""
        data, weights = self.data, np.ones(rows.stop - rows.start)
        if len(data.weights):
            weights = data.weights[rows]
        observed = None if data.observed is None else data.observed[rows]
        return self.worker_sums[worker].move(data.rows.read(rows), weights, before, after, observed)

    def _take(self, run: Lloyd) -> int:
        """Assign all rows or those of a batch, and take the sums: how many rows changed."""
        n_components, about = run.centres.shape[1], self.start
        if self.number is not None:
            messages, changed = self._messages_of_batch(run, self.number)
        elif self.data.observed is None:
            messages, changed = self._messages(run)
        else:
            messages, changed = self._messages_with_gaps(run)
        if about is not None:
            counts, values = messages[:, :n_components], messages[:, n_components:-2]
            sums, there = self._parted(run, counts, values)
            sums[...] = (sums - there * about) / self.unit
            messages[:, -2] /= self.unit**2 * about.size
            messages[:, -1] = 0.0
        reach, units, centres = self.data.reach, None, run.centres[0]
        if reach is not None:
            # What a row adds at most to numbers between the counts and the inertia.
            bounds = [np.tile(reach.radius + np.abs(reach.points.centre), n_components)]
            if self.fills:
                bounds = [reach.off(centres)]
            elif self.n_parts > 1:
                bounds.append(np.ones(centres.size))
            farthest = (reach.off(centres) ** 2).sum(axis=1).max()
            units = reach.exponents(np.ones(len(centres)), *bounds, farthest)
            changes = exponents_of(reach.n_rows, reach.n_parties)  # how many rows changed
            units = np.append(units, changes)
        totals = add_vectors(self.total, messages, self.kind, units)
        if reach is not None or self.total.tells_all:
            changed = round(float(totals[0, -1]))
        run.counts, self.sums = totals[:, :n_components], totals[:, n_components:-2]
        run.inertia = inertia_of_roots(self.total, totals[:, -2].copy())
        if about is not None:
            self.sums = self.sums.copy()
            sums, there = self._parted(run, run.counts, self.sums)
            sums[...] = sums * self.unit + there * about
            run.inertia = run.inertia * (self.unit**2 * about.size)
            if self.total.at_server:
                # What a codec leaves of the number of changed rows is useless: it is sent besides.
                self.total.server.count(1, self.total.active)
        return changed

    def move(self, run: Lloyd) -> Indices:
        before, light, silent = run.centres, run.counts < self.least, self.total.silent
        counts = np.where(light, 1.0, run.counts)
        sums, there = self._parted(run, counts, self.sums)
        if self.fills:  # what is missing adds nothing
            run.centres = run.centres + sums / there
        elif self.n_parts == 1:
            run.centres = sums / there
        else:  # a centre's feature that no row has stays where it was
            means = sums / np.maximum(there, self.least)
            run.centres = np.where(there < self.least, run.centres, means)
        if silent is not None:
            # A root that has not heard the sum keeps its centres.
            run.centres[silent] = np.broadcast_to(before, run.centres.shape)[silent]
            light[silent] = False
        flags = light.any(axis=0)
        return np.flatnonzero(flags if self.total.tells_all else self.total.holders.any(flags))

    def place(self, run: Lloyd, clusters: Sequence[int], rows: Sequence[int]) -> None:
        run.centres[:, clusters] = self.data.share(rows)

    def shifts(self, run: Lloyd, before: Doubles) -> Doubles:
        """Squared shifts of the centres of the roots of this process (R,)."""
        shifts: Doubles = ((run.centres - before) ** 2).sum(axis=(1, 2))
        return shifts

    def _parted(self, run: Lloyd, counts: Doubles, sums: Doubles) -> tuple[Doubles, Doubles]:
        """Part what lies between the counts and the inertia: sums, and the weights of them."""
        parts = sums.reshape(len(sums), self.n_parts, *run.centres.shape[1:])
        return parts[:, 0], parts[:, 1] if self.n_parts > 1 else counts[:, :, None]

    def _messages(self, run: Lloyd) -> tuple[Doubles, int]:
        """Assign rows: what the workers send (n, P), and how many rows changed."""
        size, data = self._packed_size(run), self.data
        changes = np.zeros(len(data.runs), dtype=np.intp)
        # One set of centres for all workers, or one for each of this process.
        centres = np.ascontiguousarray(run.centres)
        before = centres if self._before is None else self._before
        if before.shape != centres.shape:
            before = np.ascontiguousarray(np.broadcast_to(before, centres.shape))
        for rows in data.rows.runs() if data.runs else ():
            follow_rows(
                data.rows.read(rows), data.weights[rows], data.within(rows), centres, before,
                self._about, run.labels[rows], self._upper[rows], self._lower[rows], self._totals,
                changes, self.n_threads,
            )  # fmt: skip
        self._before = centres.copy()
        # A sum that is run in rounds may keep what it was given.
        if self.own.shape != (len(changes), size) or self.total.mix is None:
            self.own = np.empty((len(changes), size))
        messages = self.own
        np.add(self._totals[:, 0, :-1], self._totals[:, 1, :-1], out=messages[:, :-2])
        messages[:, -2] = self._inertias(run)
        messages[:, -1] = changes
        return messages, self._changed(changes.sum())

    def _inertias(self, run: Lloyd) -> Doubles:
        """Inertia of each worker's rows (n,) about centres that they are assigned to."""
        if self._few:
            return self.measure(run)[1]
        inertias = np.zeros(len(self._totals))
        inertias_of(self._totals, self._about, np.ascontiguousarray(run.centres), inertias)
        unsure = inertias < SURE * self._totals[:, 0, -1]
        return np.where(unsure, self.measure(run)[1], inertias) if unsure.any() else inertias

    def measure(self, run: Lloyd) -> tuple[Doubles, Doubles]:
        """Squared distances of rows (m,) to their centres, and sums over each worker's (n,)."""
        data, distances = self.data, np.empty(self.data.n_here)
        inertias, centres = np.zeros(len(data.runs)), np.ascontiguousarray(run.centres)
        for rows in data.rows.runs() if data.runs else ():
            measure_rows(
                data.rows.read(rows), data.weights[rows], data.within(rows), centres,
                run.labels[rows], distances[rows], inertias, self.n_threads,
            )  # fmt: skip
        return distances, inertias

    def _changed(self, n_changed: int) -> int:
        """Number of all rows that changed, which the sums report, too; here as a whole number."""
        if self.data.reach is not None or self.total.tells_all:
            return 0
        return int(self.data.holders.allreduce(np.array([n_changed]), announced=True)[0])

    def _messages_of_batch(self, run: Lloyd, number: int) -> tuple[Doubles, int]:
        """Assign the rows of a batch: what the workers send of all, and how many rows changed."""
        messages, changed, data = [], 0, self.data
        for worker, (whole, sums) in enumerate(zip(data.runs, self.worker_sums, strict=True)):
            many = whole.stop - whole.start
            first, last = (many * place // self.n_batches for place in (number, number + 1))
            rows = slice(whole.start + first, whole.start + last)
            centres = run.centres[0 if len(run.centres) == 1 else worker]
            before = run.labels[rows].copy()
            if data.observed is not None:
                run.labels[rows] = self._assign(run, centres, rows)[0]
            else:
                off = np.empty(rows.stop - rows.start)
                nearest_rows(data.rows.read(rows), centres, run.labels[rows], off, self.n_threads)
            moved = self._change(worker, rows, before, run.labels[rows])
            parts = [sums.sums(centres if self.fills else None), sums.there][: self.n_parts]
            ends = np.array([sums.inertia(centres).sum(), moved])
            messages.append(np.concatenate([sums.counts, np.ravel(parts), ends]))
            changed += moved
        stacked = np.array(messages).reshape(len(messages), self._packed_size(run))
        return stacked, self._changed(changed)

    def _packed_size(self, run: Lloyd) -> int:
        n_components, width = run.centres.shape[1:]
        return int(n_components * (1 + width * self.n_parts) + 2)

    def _messages_with_gaps(self, run: Lloyd) -> tuple[Doubles, int]:
        """Assign rows that miss values by what is observed, as `_messages` does others."""
        data, centres = self.data, run.centres
        assert data.observed is not None
        n_components, width = centres.shape[1:]
        messages = np.empty((len(data.runs), self._packed_size(run)))
        changed = 0
        for worker, own_rows in enumerate(data.runs):
            worker_centres = centres[0 if len(centres) == 1 else worker]
            points = worker_centres if self.fills else np.zeros_like(worker_centres)
            counts, inertia, changes = np.zeros(n_components), 0.0, 0
            sums, there = parts = np.zeros((2, n_components, width))
            for rows in _chunks(own_rows):
                nearest, off, hard = self._assign(run, worker_centres, rows)
                changes += int(np.count_nonzero(nearest != run.labels[rows]))
                run.labels[rows] = nearest
                counts += hard.sum(axis=0)
                observed = data.observed[rows]
                there += hard.T @ observed
                sums += hard.T @ np.where(observed, data.rows.read(rows) - points[nearest], 0.0)
                inertia += float(hard.sum(axis=1) @ off)
            last = np.array([inertia, changes])
            messages[worker] = np.concatenate([counts, parts[: self.n_parts].ravel(), last])
            changed += changes
        return messages, self._changed(changed)

    def _assign(
        self, run: Lloyd, centres: Doubles, rows: slice
    ) -> tuple[Indices, Doubles, Doubles]:
        """Nearest centres of some rows (m,), their distances, and weights in clusters (m, K)."""
        if run.distances is None:
            run.distances = np.empty(self.data.n_here)
        distances = self.data.by_observed(centres, rows, self.n_threads, by_share=False)
        nearest = distances.argmin(axis=1)
        run.distances[rows] = distances[np.arange(len(distances)), nearest]
        hard = (nearest[:, None] == np.arange(len(centres))).astype(np.float64)
        if len(self.data.weights):
            hard *= self.data.weights[rows, None]
        return nearest, run.distances[rows], hard


def _chunks(rows: slice) -> list[slice]:
    edges = range(rows.start, rows.stop, CHUNK_ROWS)
    return [slice(at, min(at + CHUNK_ROWS, rows.stop)) for at in edges]
