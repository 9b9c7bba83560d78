"""Lloyd's iterations over rows that workers hold, by one sum of vectors a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import nearest_rows
from vpem.checks import Doubles, Floats, Indices
from vpem.steps.lloyd import (
    MOST_LLOYD,
    PLAIN,
    FollowedRows,
    KMeansProgress,
    Lloyd,
    Pace,
    RowBatches,
    inertia_of_roots,
    iterate_lloyd,
    with_sums,
)
from vpem.steps.recovery import Saver
from vpem.steps.row_sampling import CHUNK_ROWS, HeldRows, RowStream, StoredParts
from vpem.sums.counted import add_vectors
from vpem.sums.sum import Sum
from vpem.terms.units import exponents_of


def lloyd_rows(
    parts: Sequence[Floats] | StoredParts,
    total: Sum,  # of workers, each a root, or a server's
    centres: Doubles,  # (K, d), known to all
    stream: RowStream,  # weights are worker by worker
    *,
    max_iter: int = MOST_LLOYD,
    n_threads: int = 1,
    kind: str = "estep",  # see `vpem.sums.sum.Sum.begin`
    callback: Callable[[KMeansProgress], None] | None = None,
    observed: NDArray[np.uint8] | None = None,
    fill: bool = False,
    pace: Pace = PLAIN,
    saver: Saver | None = None,
) -> Lloyd:
    """Run Lloyd's iterations over rows (m_i, d) that each of the workers holds.

    Each worker assigns its rows to the nearest centre and sends, in one vector, the weight and the
    sum of its rows in each cluster, its part of the inertia, and how many rows changed. With an
    exact sum it is Lloyd's algorithm over all rows. Rows are assigned once more at the end but for
    a "setup". Missing values, where ``observed`` (M, d) is 0 (`vpem.steps.starts.seed_rows`), count
    by ``fill`` as the centre that they are filled by (k-POD, Chi, Chi and Baraniuk 2016), for which
    sums must be exact; else a feature's centre is the mean of what is observed, and the messages
    have the weight of that besides. Where sums are masked, the stream draws points in the place of
    rows; where they err, what is sent is about the start and in its spread. Of a batch (``pace``)
    every worker assigns its share.
    """
    data = HeldRows(parts, total, stream.row_weights, observed, stream.reach)
    clusters: _Clusters
    if observed is None:
        clusters = (_FromStart if pace.patience else _Clusters)(data, total, kind, n_threads)
    elif fill:
        clusters = _Filled(data, total, kind, n_threads)
    else:
        clusters = (_ObservedFromStart if pace.patience else _Observed)(
            data, total, kind, n_threads
        )
    clusters.begin(pace, centres)
    known = np.ascontiguousarray(centres, dtype=np.float64)[None]
    labels = np.full(data.n_here, -1, dtype=np.int32)
    if pace.patience:
        # Sums may fail before any root has centres of its own.
        known = np.repeat(known, total.n_roots, axis=0)
    counts, inertia = np.zeros((total.n_roots, len(centres))), np.zeros(total.roots.n_agents)
    run = iterate_lloyd(
        clusters, Lloyd(known, labels, counts, inertia), total, stream,
        max_iter=max_iter, callback=callback, saver=saver,
    )  # fmt: skip
    clusters.measure(run)
    return run


class _Clusters:
    """Rows of the workers of this process in clusters (`vpem.steps.lloyd.Clusters`)."""

    agreement = "stopping"
    n_parts = 1
    """Values of a message for each of a centre: the sum, and the weight of what is there."""
    fills = False
    """Whether missing values are where their centres are, about which sums are."""

    def __init__(self, data: HeldRows, total: Sum, kind: str, n_threads: int) -> None:
        self.data, self.total, self.kind = data, total, kind
        self.settles = kind != "setup"
        self.n_threads = n_threads
        self.n_samples = data.n_rows
        self.least = 0.5 * data.lightest
        self.sums = np.empty(0)
        # Kept from pass to pass: of many workers they are large.
        self.own = np.empty((0, 0))
        self.followed: FollowedRows
        self.pace = PLAIN
        self.batches: RowBatches | None = None
        self.number: int | None = None
        """Of the batch that is assigned; None: all rows are."""

    def begin(self, pace: Pace, centres: Doubles) -> None:
        self.pace, size = pace, pace.batch_size
        if size is not None and size < self.n_samples:
            self.batches = RowBatches(self.data, len(centres), size)
        if self.data.observed is None:
            self.followed = FollowedRows(self.data, centres, self.n_threads)

    def measure(self, run: Lloyd) -> None:
        """Find distances of rows; over rows with gaps every pass does, if there are any here."""
        if self.data.observed is None:
            run.distances = self.followed.measure(run.centres, run.labels)[0]
        elif run.distances is None:
            run.distances = np.empty(self.data.n_here)

    def assign(self, run: Lloyd) -> int:
        if self.batches is None or self.kind == "check":
            self.number = None
            return self._take(run)
        self.batches.begin(run.labels)
        changed = 0
        for number in range(self.batches.n_batches):
            if number:
                before = run.centres  # of clusters that are empty so far they stay
                self.move(run)
                empty = run.counts < self.least
                run.centres = np.where(empty[:, :, None], before, run.centres)
            self.number = number
            changed += self._take(run)
        return changed

    def _take(self, run: Lloyd) -> int:
        """Assign all rows or those of a batch, and take the sums: how many rows changed."""
        n_components = run.centres.shape[1]
        messages, changed = self._messages(run)
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
        if reach is not None:
            changed = round(float(totals[0, -1]))
        run.counts, self.sums = totals[:, :n_components], totals[:, n_components:-2]
        run.inertia = inertia_of_roots(self.total, totals[:, -2].copy())
        return changed

    def move(self, run: Lloyd) -> Indices:
        before, light, silent = run.centres, run.counts < self.least, self.total.silent
        self._move(run, np.where(light, 1.0, run.counts))
        if silent is not None:
            # A root that has not heard the sum keeps its centres.
            run.centres[silent] = np.broadcast_to(before, run.centres.shape)[silent]
            light[silent] = False
        return np.flatnonzero(self.total.holders.any(light.any(axis=0)))

    def place(self, run: Lloyd, clusters: Sequence[int], rows: Sequence[int]) -> None:
        run.centres[:, clusters] = self.data.share(rows)

    def shifts(self, run: Lloyd, before: Doubles) -> Doubles:
        """Squared shifts of the centres of the roots of this process (R,)."""
        shifts: Doubles = ((run.centres - before) ** 2).sum(axis=(1, 2))
        return shifts

    def _move(self, run: Lloyd, counts: Doubles) -> None:
        sums, there = self._parted(run, counts, self.sums)
        run.centres = sums / there

    def _parted(self, run: Lloyd, counts: Doubles, sums: Doubles) -> tuple[Doubles, Doubles]:
        """Part what lies between the counts and the inertia: sums, and the weights of them."""
        parts = sums.reshape(len(sums), self.n_parts, *run.centres.shape[1:])
        return parts[:, 0], parts[:, 1] if self.n_parts > 1 else counts[:, :, None]

    def _messages(self, run: Lloyd) -> tuple[Doubles, int]:
        """Assign rows: what the workers send (n, P), and how many rows changed."""
        if self.number is not None:
            return self._messages_of_batch(run, self.number)
        followed, size = self.followed, self._packed_size(run)
        changes = followed.assign(run.centres, run.labels)
        # A sum that is run in rounds may keep what it was given.
        if self.own.shape != (len(changes), size) or self.total.mix is None:
            self.own = np.empty((len(changes), size))
        messages = self.own
        followed.totals(messages[:, :-2])
        messages[:, -2] = followed.inertias(run.centres, run.labels)
        messages[:, -1] = changes
        return messages, self._changed(changes.sum())

    def _changed(self, n_changed: int) -> int:
        """Number of all rows that changed, which the sums report, too; here as a whole number."""
        if self.data.reach is not None:
            return 0
        return int(self.data.holders.allreduce(np.array([n_changed]), announced=True)[0])

    def _messages_of_batch(self, run: Lloyd, number: int) -> tuple[Doubles, int]:
        """Assign the rows of a batch: what the workers send of all, and how many rows changed."""
        assert self.batches is not None
        messages, changed = [], 0
        for worker, sums in enumerate(self.batches.own):
            rows = self.batches.rows(worker, number)
            centres = run.centres[0 if len(run.centres) == 1 else worker]
            before = run.labels[rows].copy()
            self._assign_batch(run, centres, rows)
            moved = self.batches.move(worker, rows, before, run.labels[rows])
            parts = [sums.sums(centres if self.fills else None), sums.there][: self.n_parts]
            last = np.array([sums.inertia(centres).sum(), moved])
            messages.append(np.concatenate([sums.counts, np.ravel(parts), last]))
            changed += moved
        stacked = np.array(messages).reshape(len(messages), self._packed_size(run))
        return stacked, self._changed(changed)

    def _assign_batch(self, run: Lloyd, centres: Doubles, rows: slice) -> None:
        data, off = self.data, np.empty(rows.stop - rows.start)
        nearest_rows(data.read(rows), centres, run.labels[rows], off, self.n_threads)

    def _packed_size(self, run: Lloyd) -> int:
        n_components, width = run.centres.shape[1:]
        return int(n_components * (1 + width * self.n_parts) + 2)


class _FromStart(_Clusters):
    """Sums that err: what is sent lies about the start, and its numbers are alike.

    What a codec loses of a message, or rounds of a sum, goes by its largest numbers.
    """

    def begin(self, pace: Pace, centres: Doubles) -> None:
        super().begin(pace, centres)
        self.about = np.asarray(centres, dtype=np.float64)
        spread = float(np.sqrt(centres.var(axis=0).mean()))
        self.unit = spread if spread > 0 else 1.0

    def _take(self, run: Lloyd) -> int:
        changed = super()._take(run)
        sums, there = self._parted(run, run.counts, self.sums)
        self.sums = with_sums(self.sums, sums * self.unit + there * self.about)
        run.inertia = run.inertia * (self.unit**2 * self.about.size)
        if self.total.at_server:
            # What a codec leaves of the number of changed rows is useless: it is sent besides.
            self.total.server.count(1, self.total.active)
        return changed

    def _messages(self, run: Lloyd) -> tuple[Doubles, int]:
        messages, changed = super()._messages(run)
        n_components = len(self.about)
        values = messages[:, n_components:-2]
        sums, there = self._parted(run, messages[:, :n_components], values)
        messages[:, n_components:-2] = with_sums(values, (sums - there * self.about) / self.unit)
        messages[:, -2] /= self.unit**2 * self.about.size
        messages[:, -1] = 0.0
        return messages, changed


class _Observed(_Clusters):
    """Rows that miss values, assigned by what is observed; centres are the means of that."""

    n_parts = 2

    def _move(self, run: Lloyd, counts: Doubles) -> None:
        sums, there = self._parted(run, counts, self.sums)
        means = sums / np.maximum(there, self.least)
        # A centre's feature that no row has stays where it was.
        run.centres = np.where(there < self.least, run.centres, means)

    def _assign_batch(self, run: Lloyd, centres: Doubles, rows: slice) -> None:
        run.labels[rows] = self._assign(run, centres, rows)[0]

    def _messages(self, run: Lloyd) -> tuple[Doubles, int]:
        if self.number is not None:
            return self._messages_of_batch(run, self.number)
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
            for begin in range(own_rows.start, own_rows.stop, CHUNK_ROWS):
                rows = slice(begin, min(begin + CHUNK_ROWS, own_rows.stop))
                nearest, off, hard = self._assign(run, worker_centres, rows)
                changes += int(np.count_nonzero(nearest != run.labels[rows]))
                run.labels[rows] = nearest
                counts += hard.sum(axis=0)
                observed = data.observed[rows]
                there += hard.T @ observed
                sums += hard.T @ np.where(observed, data.read(rows) - points[nearest], 0.0)
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


class _ObservedFromStart(_FromStart, _Observed):
    """Rows that miss values, of which sums err."""


class _Filled(_Observed):
    """Rows whose missing values are where their centres are, about which sums are."""

    n_parts = 1
    fills = True

    def _move(self, run: Lloyd, counts: Doubles) -> None:
        # What is missing adds nothing.
        moves = self.sums.reshape(len(self.sums), *run.centres.shape[1:])
        run.centres = run.centres + moves / counts[:, :, None]
