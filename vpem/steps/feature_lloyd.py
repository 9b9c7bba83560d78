"""Lloyd's iterations over split features: nearest centres by one sum over hubs.

What is summed is how squared distances to the centres differ from that to the first, K - 1 numbers
a row, and one number more: all rows' squared distances to the first, which make the inertia.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vpem._core.differences import assign_features
from vpem.checks import Doubles, Indices
from vpem.steps.lloyd import (
    PLAIN,
    Clusters,
    ClusterSums,
    KMeansProgress,
    Lloyd,
    Pace,
    by_cluster,
    inertia_of_roots,
    iterate_lloyd,
)
from vpem.steps.recovery import Saver
from vpem.steps.row_sampling import RowStream
from vpem.steps.summing import Differences
from vpem.sums.counted import add_vectors
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms

RESEEDED_BYTES = 12
"""Of the message that says which cluster was re-initialised, and at which row."""


def assign(
    terms: FeatureTerms, total: Sum, centres: Doubles, labels: NDArray[np.int32], kind: str
) -> tuple[Doubles, Doubles, Doubles, Doubles, Indices]:
    """Assign all rows; labels (R, M) of inactive roots stay.

    Returns what the roots of this process find: weights of clusters (R, K), sums of rows (K, d),
    each root's features, and of what is there where values are missing (K, d), inertia (R,), and
    how many rows are in other clusters (R,).

    A sum that is a fixed matrix is taken inside one compiled pass; any other is applied chunk by
    chunk. Centres (K, d) are in block order; each hub's part as its root has it.
    """
    n_roots, (n_components, width) = total.n_roots, centres.shape
    counts, inertia = np.zeros((n_roots, n_components)), np.zeros(n_roots)
    sums, there = np.zeros((n_components, width)), np.zeros((n_components, width))
    changed = np.zeros(n_roots, dtype=np.intp)
    offsets = terms.blocks.offsets
    total.begin(kind, terms.n_samples, n_components - 1, terms.itemsize, 1)
    if total.mix is not None:
        mix = np.ascontiguousarray(total.mix, dtype=np.float64)
        first = np.zeros(terms.blocks.n_blocks)
        gaps = terms.observed
        nothing = np.empty((0, width), dtype=np.uint8)
        places = np.ascontiguousarray(centres, dtype=np.float64)
        for run in terms.rows.runs():
            assign_features(
                terms.rows.read(run),
                nothing if gaps is None else gaps[run],
                np.empty(0) if terms.row_weights is None else terms.row_weights[run],
                offsets, places, mix, labels[:, run], counts, sums, there, first,
                inertia, changed, terms.n_threads,
            )  # fmt: skip
        return counts, sums, there, inertia + mix @ first, changed
    differ = Differences(terms, total, n_components, partial(terms.squares, centres))
    for rows, differences in differ:
        # From the first centre a distance does not differ from the first's.
        known = np.concatenate(
            [np.zeros_like(differences, shape=(*differences.shape[:2], 1)), differences], axis=2
        )
        nearest = known.argmin(axis=2).astype(np.int32)
        silent = total.silent
        if silent is not None:
            nearest[silent] = np.maximum(labels[silent, rows], 0)
        least = np.take_along_axis(known, nearest[:, :, None], axis=2)[:, :, 0]
        weights = np.ones(nearest.shape[1])
        if terms.row_weights is not None:
            weights = terms.row_weights[rows]
        inertia += least.astype(np.float64) @ weights
        changed += (nearest != labels[:, rows]).sum(axis=1)
        labels[:, rows] = nearest
        data = terms.rows.read(rows)
        for root, root_labels in enumerate(nearest):
            columns = slice(0, centres.shape[1])
            if len(nearest) > 1:
                columns = slice(int(offsets[root]), int(offsets[root + 1]))
            counts[root] += np.bincount(root_labels, weights, n_components)
            hard = by_cluster(root_labels, weights, n_components)
            if terms.observed is not None:
                observed = terms.observed[rows, columns]
                there[:, columns] += hard @ observed
                sums[:, columns] += hard @ (data[:, columns] * observed)
            else:
                sums[:, columns] += hard @ data[:, columns]
    return counts, sums, there, inertia + differ.firsts, changed


def lloyd_features(
    terms: FeatureTerms,  # for rows, weights and distances
    total: Sum,
    centres: Doubles,  # (K, d), in block order
    stream: RowStream,
    *,
    max_iter: int,
    pace: Pace = PLAIN,  # a batch is a run of neighbouring rows
    kind: str = "estep",  # see `vpem.sums.sum.Sum.begin`
    fill: bool = False,
    callback: Callable[[KMeansProgress], None] | None = None,
    saver: Saver | None = None,
) -> Lloyd:
    """Run Lloyd's iterations over features that hubs hold.

    The squared distances of the hubs' parts are summed; each root assigns every row by the sum that
    it finds and puts its part of the centres at the means of the clusters. It stops when no row
    changes at any root. Rows are assigned once more at the end but for a "setup". If ``fill``,
    missing values count as the centre that they are filled by (k-POD, Chi, Chi and Baraniuk 2016);
    else a feature's centre is the mean of what is observed.
    """
    if total.holders.masks is not None:
        total = total.server.in_units(terms.units)
    labels = np.full((total.n_roots, terms.n_samples), -1, dtype=np.int32)
    counts, inertia = np.zeros((total.n_roots, len(centres))), np.zeros(total.roots.n_agents)
    clusters = _Clusters(terms, total, pace, kind, fill)
    run = Lloyd(centres, labels, counts, inertia)
    run = iterate_lloyd(clusters, run, stream, max_iter=max_iter, callback=callback, saver=saver)
    if total.tells_all:  # restarts are compared by what rounding may have made differ
        run.inertia = total.roots.join(run.inertia)
    return run


class _Clusters(Clusters):
    """Features that hubs hold, in clusters, whose centres may follow after every batch of rows."""

    def __init__(self, terms: FeatureTerms, total: Sum, pace: Pace, kind: str, fills: bool) -> None:
        super().__init__(total, terms.n_samples, pace, kind)
        self.terms, self.fills = terms, fills
        self.agreement = "stopping" if self.settles else "flooding"
        self.sums = self.there = np.empty(0)
        self.size = min(pace.batch_size or terms.n_samples, terms.n_samples)
        # One more is the sum of the inertia.
        self.n_sums = -(-terms.n_samples // self.size) + 1
        if self.n_sums > 2:
            total.turn_to(0, self.n_sums)

    def assign(self, run: Lloyd) -> int:
        """Assign all rows, and add up the clusters: how many rows changed at most at a root."""
        if self.n_sums > 2 and (self.kind != "check" or self.total.whole):
            return self._assign_batches(run)
        run.counts, self.sums, self.there, inertia, changed = assign(
            self.terms, self.total, run.centres, run.labels, self.kind
        )
        run.inertia = inertia_of_roots(self.total, inertia)
        return self._most(changed)

    def _most(self, changed: Indices) -> int:
        most = np.array([changed.max(initial=0)])
        if self.total.tells_all:
            return int(most[0])
        if self.total.roots.n_agents == 1:
            return int(self.total.roots.join(most)[0])
        return int(self.total.holders.allreduce(most, "max")[0])

    def shifts(self, run: Lloyd, before: Doubles) -> Doubles:
        """Squared shifts of every hub's part of the centres (B,)."""
        blocks, features = self.terms.blocks, ((run.centres - before) ** 2).sum(axis=0)
        return np.bincount(blocks.block_of, features, blocks.n_blocks).astype(np.float64)

    def move(self, run: Lloyd) -> Indices:
        blocks, silent, empty = self.terms.blocks, self.total.silent, run.counts <= 0
        counts = blocks.of_feature(run.counts)
        if self.terms.observed is not None:
            # A centre's feature that no row has stays where it was.
            some = self.there > 0
            weights = np.maximum(counts, self.there) if self.fills else self.there
            moves = self.sums - self.there * run.centres
            moved = run.centres + moves / np.where(some, weights, 1.0)
        else:
            moved = self.sums / np.where(counts > 0, counts, 1.0)
        if silent is not None:
            # A root that has not heard the sum keeps its centres.
            empty = empty & ~silent[:, None]
            moved = np.where(silent[blocks.block_of], run.centres, moved)
        run.centres = moved
        flags = empty.any(axis=0)
        return np.nonzero(flags if self.total.tells_all else self.total.holders.any(flags))[0]

    def place(self, run: Lloyd, clusters: Sequence[int], rows: Sequence[int]) -> None:
        run.centres[clusters] = self.terms.at_rows(np.array(rows, dtype=np.intp))
        self.total.agree("flooding", RESEEDED_BYTES)

    def _assign_batches(self, run: Lloyd) -> int:
        last = self.kind == "check"
        terms, roots = self.terms, range(len(run.labels))
        first = terms.at_rows(np.zeros(1, dtype=np.intp))[0]
        gaps, k = terms.observed is not None, len(run.centres)
        self.sums, self.there = np.zeros((2, *run.centres.shape))
        cluster_sums = [
            ClusterSums(k, first[self._columns(root, len(roots))], gaps) for root in roots
        ]
        for rows in terms.chunks(terms.blocks.n_features):
            none = np.full(rows.stop - rows.start, -1, dtype=np.int32)
            self._move(cluster_sums, rows, [none] * len(cluster_sums), run.labels[:, rows])
        changed = np.zeros(len(cluster_sums), dtype=np.intp)
        for number in range(self.n_sums - 1):
            if number and not last:
                # Centres of clusters that are empty so far stay.
                centres, empty = run.centres, terms.blocks.of_feature(run.counts <= 0)
                self.move(run)
                run.centres = np.where(empty, centres, run.centres)
            self.total.turn_to(number, self.n_sums)
            start = number * self.size
            batch = slice(start, min(start + self.size, terms.n_samples))
            before = run.labels[:, batch].copy()
            assign(
                terms.slice_rows(batch), self.total, run.centres, run.labels[:, batch], self.kind
            )
            changed += self._move(cluster_sums, batch, before, run.labels[:, batch])
            for root, sums in enumerate(cluster_sums):
                columns = self._columns(root, len(cluster_sums))
                run.counts[root] = sums.counts
                self.sums[:, columns], self.there[:, columns] = sums.sums(), sums.there
        # Each hub's part of the inertia, about its part of the centres, (B,).
        blocks, of_features = terms.blocks, np.zeros(terms.blocks.n_features)
        for root, sums in enumerate(cluster_sums):
            columns = self._columns(root, len(cluster_sums))
            of_features[columns] = sums.inertia(run.centres[:, columns])
        of_hubs = np.bincount(blocks.block_of, of_features, blocks.n_blocks).astype(np.float64)
        self.total.turn_to(self.n_sums - 1, self.n_sums)
        inertia = add_vectors(self.total, of_hubs[:, None], self.kind)
        run.inertia = inertia_of_roots(self.total, inertia[:, 0].copy())
        return self._most(changed)

    def _columns(self, root: int, n_roots: int) -> slice:
        """Features of which a root has the sums: its hub's, or all of this process."""
        offsets = self.terms.blocks.offsets
        first, last = (root, root + 1) if n_roots > 1 else (0, len(offsets) - 1)
        return slice(int(offsets[first]), int(offsets[last]))

    def _move(
        self,
        cluster_sums: Sequence[ClusterSums],
        rows: slice,
        before: Sequence[NDArray[np.int32]] | NDArray[np.int32],
        after: NDArray[np.int32],
    ) -> Indices:
        """Move rows from clusters to others: how many have moved at each root."""
        terms, moved = self.terms, np.zeros(len(cluster_sums), dtype=np.intp)
        data, weights = terms.rows.read(rows), np.ones(rows.stop - rows.start)
        if terms.row_weights is not None:
            weights = terms.row_weights[rows]
        for root, sums in enumerate(cluster_sums):
            columns = self._columns(root, len(cluster_sums))
            there = None if terms.observed is None else terms.observed[rows, columns]
            moved[root] = sums.move(data[:, columns], weights, before[root], after[root], there)
        return moved
