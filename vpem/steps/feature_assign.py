"""Nearest centres of rows whose features hubs hold, by one sum over hubs.

What is summed is how squared distances to the centres differ from that to the first, K - 1 numbers
a row, and one number more: all rows' squared distances to the first, which make the inertia.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vpem._core.differences import assign_features
from vpem.steps.lloyd_batches import by_cluster
from vpem.steps.summing import Differences, begin_differences
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import MissingTerms


@dataclass
class Assigned:
    """What the roots of this process have found."""

    counts: NDArray[np.float64]  # (R, K) weights of clusters
    sums: NDArray[np.float64]  # (K, d) of rows, each root's features
    there: NDArray[np.float64]  # (K, d) weights, where values are missing
    inertia: NDArray[np.float64]  # (R,), weighted
    changed: NDArray[np.intp]  # (R,) rows in other clusters


def assign(
    terms: FeatureTerms,
    total: Sum,
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
    kind: str,
) -> Assigned:
    """Assign all rows; labels (R, M) of roots that are silent stay.

    A sum that is a fixed matrix is taken inside one compiled pass; any other is applied chunk by
    chunk. Centres (K, d) are in block order; each hub's part as its root has it.
    """
    n_roots, (n_components, width) = total.n_roots, centres.shape
    found = Assigned(
        np.zeros((n_roots, n_components)),
        np.zeros((n_components, width)),
        np.zeros((n_components, width)),
        np.zeros(n_roots),
        np.zeros(n_roots, dtype=np.intp),
    )
    (_by_sums if total.mix is None else _by_matrix)(terms, total, centres, labels, kind, found)
    return found


def _by_matrix(
    terms: FeatureTerms,
    total: Sum,
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
    kind: str,
    found: Assigned,
) -> None:
    begin_differences(total, kind, terms.n_samples, len(centres), terms.itemsize)
    assert total.mix is not None
    mix = np.ascontiguousarray(total.mix, dtype=np.float64)
    first = np.zeros(terms.blocks.n_blocks)
    gaps = terms.observed if isinstance(terms, MissingTerms) else None
    nothing = np.empty((0, terms.blocks.n_features), dtype=np.uint8)
    places = np.ascontiguousarray(centres, dtype=np.float64)
    for run in terms.rows.runs():
        assign_features(
            terms.rows.read(run),
            nothing if gaps is None else gaps[run],
            np.empty(0) if terms.row_weights is None else terms.row_weights[run],
            terms.blocks.offsets, places, mix, labels[:, run], found.counts, found.sums,
            found.there, first, found.inertia, found.changed, terms.n_threads,
        )  # fmt: skip
    found.inertia += mix @ first


def _by_sums(
    terms: FeatureTerms,
    total: Sum,
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
    kind: str,
    found: Assigned,
) -> None:
    offsets, n_components = terms.blocks.offsets, len(centres)
    begin_differences(total, kind, terms.n_samples, n_components, terms.itemsize)
    sums = Differences(terms, total, n_components, partial(terms.squares, centres))
    for rows, differences in sums:
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
        found.inertia += least.astype(np.float64) @ weights
        found.changed += (nearest != labels[:, rows]).sum(axis=1)
        labels[:, rows] = nearest
        data = terms.rows.read(rows)
        for root, own in enumerate(nearest):
            columns = slice(0, centres.shape[1])
            if len(nearest) > 1:
                columns = slice(int(offsets[root]), int(offsets[root + 1]))
            found.counts[root] += np.bincount(own, weights, n_components)
            hard = by_cluster(own, weights, n_components)
            if isinstance(terms, MissingTerms):
                there = terms.observed[rows, columns]
                found.there[:, columns] += hard @ there
                found.sums[:, columns] += hard @ (data[:, columns] * there)
            else:
                found.sums[:, columns] += hard @ data[:, columns]
    found.inertia += sums.firsts
