"""Lloyd's iterations over split features, by sums of squared distances over hubs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.steps.lloyd import PLAIN, Lloyd, Pace, inertia_of_roots, iterate_lloyd
from vpem.steps.lloyd_batches import ClusterSums, by_cluster
from vpem.steps.saver import Saver
from vpem.steps.seeding import summed_distances
from vpem.steps.streams import RowStream
from vpem.sums.counted import add_vectors
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import MissingTerms
from vpem.terms.mixture import Mixture
from vpem.terms.terms import StartTerms

__all__ = ["cluster_mixture", "lloyd_features"]

RESEEDED_BYTES = 12
"""Of the message that says which cluster was re-initialised, and at which row."""


def lloyd_features(
    terms: FeatureTerms,
    total: Sum,
    centres: NDArray[np.float64],
    stream: RowStream,
    *,
    max_iter: int,
    pace: Pace = PLAIN,
    callback: Callable[[int, float, int], None] | None = None,
    saver: Saver | None = None,
) -> Lloyd:
    """Lloyd's iterations over features that hubs hold.

    The squared distances of the hubs' parts are summed; each root assigns every row by the sum that
    it finds and puts its part of the centres at the means of the clusters. It stops when no row
    changes at any root.

    Parameters
    ----------
    terms : FeatureTerms
        The features of each hub; only rows, weights and distances are asked for.
    total : Sum
        Counted sum over the hubs.
    centres : ndarray of shape (K, d)
        Where to start, in block order.
    stream : RowStream
        The stream that all agents share.
    pace : Pace
        When it stops, and what a batch is: a run of neighbouring rows.
    max_iter, callback, saver
        As for `vpem.steps.lloyd.iterate_lloyd`.

    Returns
    -------
    Lloyd
    """
    labels = np.full((total.n_roots, terms.n_samples), -1, dtype=np.int32)
    counts, inertia = np.zeros((total.n_roots, len(centres))), np.zeros(total.roots.n_agents)
    whole = pace.batch_size is None or pace.batch_size >= terms.n_samples
    clusters = (_Clusters if whole else _InBatches)(terms, total, pace)
    run = Lloyd(centres, labels, counts, inertia)
    return iterate_lloyd(
        clusters, run, total, stream,
        max_iter=max_iter, callback=callback, saver=saver,
    )  # fmt: skip


def cluster_mixture(
    terms: StartTerms, total: Sum, centres: NDArray[np.float64], stream: RowStream
) -> Mixture:
    """Run Lloyd's iterations, each root by its own distances, and an M-step from the clusters.

    Parameters
    ----------
    terms : StartTerms
        Distances of each hub's features, and the M-step.
    total : Sum
        How distances are summed.
    centres : ndarray of shape (K, d)
        Where to start, in block order.
    stream : RowStream
        The stream that all agents share.
    """
    unknown = len(centres)
    smallest: Any = np.min_scalar_type(unknown)
    labels = np.full((total.n_roots, terms.n_samples), unknown, dtype=smallest)
    run = Lloyd(centres, labels, np.zeros((1, len(centres))), np.zeros(1))
    clusters = _HardMixture(terms, total, stream)
    iterate_lloyd(clusters, run, total, stream)
    if run.converged:
        # The stream goes on as after any other iteration.
        for _ in clusters.move(run):
            stream.draw()
    return clusters.mixture


class _Clusters:
    """Features that hubs hold, in clusters (`vpem.steps.lloyd.Clusters`)."""

    agreement = "stopping"
    settles = True

    def __init__(self, terms: FeatureTerms, total: Sum, pace: Pace) -> None:
        self.terms = terms
        self.total = total
        self.pace = pace
        self.kind = "estep"
        self.n_samples = terms.n_samples
        self.sums = self.there = np.empty(0)

    def assign(self, run: Lloyd) -> int:
        """Assign all rows, and add up the clusters: how many rows changed at most at a root."""
        terms, (n_components, width) = self.terms, run.centres.shape
        run.counts, inertia = np.zeros_like(run.counts), np.zeros(len(run.counts))
        self.sums, self.there = np.zeros((2, n_components, width))
        offsets = terms.blocks.offsets
        changed = np.zeros(1 + len(inertia), dtype=np.intp)
        local = partial(terms.squares, run.centres)
        for rows, found in summed_distances(terms, self.total, run.centres, self.kind, local):
            nearest = found.argmin(axis=2).astype(np.int32)
            silent = self.total.silent
            if silent is not None:
                nearest[silent] = np.maximum(run.labels[silent, rows], 0)
            least = np.take_along_axis(found, nearest[:, :, None], axis=2)[:, :, 0]
            weights = np.ones(nearest.shape[1])
            if terms.row_weights is not None:
                weights = terms.row_weights[rows]
            inertia += least.astype(np.float64) @ weights
            changed[1:] += (nearest != run.labels[:, rows]).sum(axis=1)
            run.labels[:, rows] = nearest
            data = terms.rows.read(rows)
            for root, own in enumerate(nearest):
                columns = slice(0, width)
                if len(nearest) > 1:
                    columns = slice(int(offsets[root]), int(offsets[root + 1]))
                run.counts[root] += np.bincount(own, weights, n_components)
                self._add(by_cluster(own, weights, n_components), data, rows, columns)
        run.inertia = inertia_of_roots(self.total, inertia)
        return int(self.total.holders.allreduce(changed.max(keepdims=True), "max")[0])

    def _add(self, hard: Any, data: Floats, rows: slice, columns: slice) -> None:
        """Add some rows (m, d), in clusters by a matrix (K, m), to the sums of some features."""
        terms = self.terms
        if isinstance(terms, MissingTerms):
            there = terms.observed[rows, columns]
            self.there[:, columns] += hard @ there
            self.sums[:, columns] += hard @ (data[:, columns] * there)
        else:
            self.sums[:, columns] += hard @ data[:, columns]

    def move(self, run: Lloyd) -> NDArray[np.intp]:
        blocks, silent, empty = self.terms.blocks, self.total.silent, run.counts <= 0
        counts = blocks.of_feature(run.counts)
        if isinstance(self.terms, MissingTerms):
            # Of what nothing is there the centre stays where it was.
            some = self.there > 0
            moved = np.where(some, self.sums / np.where(some, self.there, 1.0), run.centres)
        else:
            moved = self.sums / np.where(counts > 0, counts, 1.0)
        if silent is not None:
            # Who has not heard the sum stays where it was.
            empty = empty & ~silent[:, None]
            moved = np.where(silent[blocks.block_of], run.centres, moved)
        run.centres = moved
        return np.flatnonzero(self.total.holders.any(empty.any(axis=0)))

    def place(self, run: Lloyd, clusters: Sequence[int], rows: Sequence[int]) -> None:
        run.centres[clusters] = self.terms.at_rows(np.array(rows, dtype=np.intp))
        self.total.agree("flooding", RESEEDED_BYTES)


class _InBatches(_Clusters):
    """Features that hubs hold, in clusters whose centres follow after every batch of rows."""

    def __init__(self, terms: FeatureTerms, total: Sum, pace: Pace) -> None:
        super().__init__(terms, total, pace)
        self.size = pace.batch_size or terms.n_samples
        # One more is the sum of the inertia.
        self.n_sums = -(-terms.n_samples // self.size) + 1
        total.turn_to(0, self.n_sums)

    def assign(self, run: Lloyd) -> int:
        last = self.kind == "check"
        if last and not self.total.whole:
            return super().assign(run)
        terms, roots = self.terms, range(len(run.labels))
        first = terms.at_rows(np.zeros(1, dtype=np.intp))[0]
        gaps, k = isinstance(terms, MissingTerms), len(run.centres)
        self.sums, self.there = np.zeros((2, *run.centres.shape))
        own = [ClusterSums(k, first[self._columns(root, len(roots))], gaps) for root in roots]
        for rows in terms.chunks(terms.blocks.n_features):
            none = np.full(rows.stop - rows.start, -1, dtype=np.int32)
            self._move(own, rows, [none] * len(own), run.labels[:, rows])
        changed = np.zeros(1 + len(own), dtype=np.intp)
        for number in range(self.n_sums - 1):
            if number and not last:
                self._follow(run)
            self.total.turn_to(number, self.n_sums)
            start = number * self.size
            batch = slice(start, min(start + self.size, terms.n_samples))
            changed[1:] += self._visit(run, own, batch)
            self._note(run, own)
        # A number of each hub besides.
        self.total.turn_to(self.n_sums - 1, self.n_sums)
        found = add_vectors(self.total, self._inertia(run, own)[:, None], self.kind)
        run.inertia = inertia_of_roots(self.total, found[:, 0].copy())
        return int(self.total.holders.allreduce(changed.max(keepdims=True), "max")[0])

    def _columns(self, root: int, n_roots: int) -> slice:
        """Return the features of which a root has the sums: its hub's, or all of this process."""
        offsets = self.terms.blocks.offsets
        first, last = (root, root + 1) if n_roots > 1 else (0, len(offsets) - 1)
        return slice(int(offsets[first]), int(offsets[last]))

    def _visit(self, run: Lloyd, own: Sequence[ClusterSums], batch: slice) -> NDArray[np.intp]:
        """Assign the rows of a batch: how many changed at each root."""
        part = self.terms.part(batch)
        before = run.labels[:, batch].copy()
        local = partial(part.squares, run.centres)
        for rows, found in summed_distances(part, self.total, run.centres, self.kind, local):
            inside = slice(batch.start + rows.start, batch.start + rows.stop)
            run.labels[:, inside] = found.argmin(axis=2)
        return self._move(own, batch, before, run.labels[:, batch])

    def _move(
        self,
        own: Sequence[ClusterSums],
        rows: slice,
        before: Sequence[NDArray[np.int32]] | NDArray[np.int32],
        after: NDArray[np.int32],
    ) -> NDArray[np.intp]:
        """Move rows from clusters to others: how many have moved at each root."""
        terms, moved = self.terms, np.zeros(len(own), dtype=np.intp)
        data, weights = terms.rows.read(rows), np.ones(rows.stop - rows.start)
        if terms.row_weights is not None:
            weights = terms.row_weights[rows]
        for root, sums in enumerate(own):
            columns = self._columns(root, len(own))
            there = terms.observed[rows, columns] if isinstance(terms, MissingTerms) else None
            moved[root] = sums.move(data[:, columns], weights, before[root], after[root], there)
        return moved

    def _note(self, run: Lloyd, own: Sequence[ClusterSums]) -> None:
        """Take note of the sums, by which centres move."""
        for root, sums in enumerate(own):
            columns = self._columns(root, len(own))
            run.counts[root] = sums.counts
            self.sums[:, columns], self.there[:, columns] = sums.sums(), sums.there

    def _follow(self, run: Lloyd) -> None:
        """Move the centres between batches; those of clusters that are empty so far stay."""
        before, empty = run.centres, self.terms.blocks.of_feature(run.counts <= 0)
        self.move(run)
        run.centres = np.where(empty, before, run.centres)

    def _inertia(self, run: Lloyd, own: Sequence[ClusterSums]) -> NDArray[np.float64]:
        """Return each hub's part of the inertia, about its part of the centres, (B,)."""
        blocks = self.terms.blocks
        of_features = np.zeros(blocks.n_features)
        for root, sums in enumerate(own):
            columns = self._columns(root, len(own))
            of_features[columns] = sums.inertia(run.centres[:, columns])
        found = np.bincount(blocks.block_of, of_features, blocks.n_blocks)
        return found.astype(np.float64)


class _HardMixture:
    """Clusters whose centres are the means of a mixture (`vpem.steps.lloyd.Clusters`)."""

    agreement = "flooding"
    settles = False
    pace = PLAIN
    kind = "setup"

    def __init__(self, terms: StartTerms, total: Sum, stream: RowStream) -> None:
        self.terms = terms
        self.total = total
        self.stream = stream
        self.n_samples = terms.n_samples
        self.mixture: Mixture

    def assign(self, run: Lloyd) -> int:
        """Assign all rows, and take the M-step: whether any changed anywhere."""
        terms, total, weights = self.terms, self.total, self.stream.row_weights
        statistics = terms.empty(run.centres, total.n_roots)
        changed = False
        for rows, distances in summed_distances(terms, total, run.centres):
            nearest = distances.argmin(axis=2)
            changed = changed or not np.array_equal(nearest, run.labels[:, rows])
            run.labels[:, rows] = nearest
            hard = (nearest[:, :, None] == np.arange(len(run.centres))).astype(distances.dtype)
            if weights is not None:
                hard *= weights[rows][:, None].astype(distances.dtype)
            terms.summarize(statistics, hard, rows)
        run.counts, self.mixture = statistics.counts, terms.update(statistics)
        return int(total.holders.any(np.array([changed]))[0])

    def move(self, run: Lloyd) -> NDArray[np.intp]:
        run.centres = self.mixture.means.copy()
        return np.flatnonzero(self.total.holders.any((run.counts <= 0).any(axis=0)))

    def place(self, run: Lloyd, clusters: Sequence[int], rows: Sequence[int]) -> None:
        run.centres[clusters] = self.terms.at_rows(np.array(rows, dtype=np.intp))
