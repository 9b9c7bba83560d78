"""Where EM starts, over features that no agent may show: by shared rows and by the same sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.steps.feature_lloyd import lloyd_features
from vpem.steps.lloyd import Lloyd, Pace
from vpem.steps.seeding import seed_features
from vpem.steps.streams import RowStream
from vpem.sums.sum import Sum
from vpem.terms.covariances import is_diagonal
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import MissingTerms
from vpem.terms.mixture import Mixture

LLOYD_TOLERANCE = 1e-4
"""Squared shift of all centres, in mean variances of a feature, at which a start's are at rest."""

MOST_LLOYD_OF_START = 60
"""Most of Lloyd's iterations of a start: what they leave to do EM does better."""

SAMPLE_ROWS = 1 << 13
"""Rows that a start looks at, if they are no more than that."""

ROWS_A_FEATURE = 20
"""Rows for each component and feature of the widest hub that a start looks at, whose covariances
are to be those of all rows, but for a fifth of their deviations."""

Tell = Callable[[str], None]


def teller(callback: Any) -> Tell | None:
    """Return what a callback has to be told of a start, its method ``starting``, if it has one."""
    found: Tell | None = getattr(callback, "starting", None)
    return found


def sample_size(n_components: int, widest: int) -> int:
    """Return how many rows a start looks at of more."""
    return max(SAMPLE_ROWS, ROWS_A_FEATURE * n_components * widest)


def step_of_lloyd(tell: Tell | None) -> Callable[[int, float, int], None] | None:
    """Return a callback of Lloyd's iterations that says how far a start is."""
    if tell is None:
        return None
    return lambda iteration, *_: tell(
        f"k-means, iteration {iteration} of at most {MOST_LLOYD_OF_START}"
    )


def draw_start(
    init: str,
    terms: FeatureTerms,
    total: Sum,
    n_components: int,
    stream: RowStream,
    tell: Tell | None = None,
) -> tuple[Mixture, NDArray[np.intp]]:
    """Return starting parameters without pooling a feature, and the rows (K,) of the means.

    "random": means at rows that all agents draw from a shared seed. "k-means++": rows drawn far
    from each other, by squared distances summed over hubs as the terms of the E-step are; the root
    of the first hub draws by its own estimate and sends the row's number. "kmeans": from there
    Lloyd's iterations, each root assigning rows by its own estimate of the distances, and one
    M-step from the last hard assignment. They end once the centres have moved by no more than
    `LLOYD_TOLERANCE`, or after `MOST_LLOYD_OF_START`; the rows returned are those before them.

    Of more rows than `sample_size` says "k-means++" and "kmeans" look at as many, drawn from the
    shared stream: what they take and send does not grow with the rows beyond that.
    """
    if init == "random":
        rows = stream.draw_distinct(n_components)
        return terms.start(terms.at_rows(rows)), rows
    some, view, own, numbers = terms, terms.measured, stream, np.arange(terms.n_samples)
    count = sample_size(n_components, terms.widest)
    if count < terms.n_samples:
        numbers, own = stream.sample(count)
        some, view = (one.some(numbers, own.row_weights) for one in (some, view))
    places = seed_features(view, total, n_components, own, tell)
    rows = numbers[places]
    if init == "k-means++":
        return terms.start(some.at_rows(places)), rows
    pace = Pace(tolerances=_tolerances(view))
    run = lloyd_features(
        view, total, view.at_rows(places), own, max_iter=MOST_LLOYD_OF_START, pace=pace,
        kind="setup", fill=not is_diagonal(terms.covariance_type),
        callback=step_of_lloyd(tell),
    )  # fmt: skip
    return _from_clusters(some, total, run), rows


def _tolerances(terms: FeatureTerms) -> NDArray[np.float64]:
    """Each hub's part (B,) of the squared shift that the centres of a start may still make."""
    blocks = terms.blocks
    of_hubs = np.bincount(blocks.block_of, _variances(terms), blocks.n_blocks)
    return (LLOYD_TOLERANCE / terms.n_features * of_hubs).astype(np.float64)


def _variances(terms: FeatureTerms) -> NDArray[np.float64]:
    """Variance of each feature (d,), or of what there is of it."""
    if isinstance(terms, MissingTerms):
        return terms.spread
    about = terms.at_rows(np.zeros(1, dtype=np.intp))[0]
    sums = np.zeros((2, len(about)))
    for rows in terms.chunks(len(about)):
        off, weights = terms.rows.read(rows) - about, np.ones(rows.stop - rows.start)
        if terms.row_weights is not None:
            weights = terms.row_weights[rows]
        sums += [weights @ off, weights @ off**2]
    first, second = sums / terms.total_weight
    found: NDArray[np.float64] = np.maximum(second - first**2, 0.0)
    return found


def _from_clusters(terms: FeatureTerms, total: Sum, run: Lloyd) -> Mixture:
    """Take an M-step from clusters, each root by its own labels."""
    statistics = terms.of_clusters(run.centres, total.n_roots)
    for rows in terms.chunks(run.counts.size):
        labels = run.labels[:, rows, None]
        hard = (labels == np.arange(len(run.centres))).astype(f"f{terms.itemsize}")
        if terms.doubt:
            hard = (hard * (1 - terms.doubt) + terms.doubt / len(run.centres)).astype(hard.dtype)
        if terms.row_weights is not None:
            hard *= terms.row_weights[rows][:, None].astype(hard.dtype)
        terms.summarize(statistics, hard, rows)
    return terms.update(statistics)
