"""Where EM starts if some rows are labelled: at their means, and for other components as usual."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.steps.seeding import seed_features
from vpem.steps.starts import Tell, sample_size
from vpem.steps.streams import RowStream
from vpem.steps.summing import FARTHEST, Differences, begin_differences
from vpem.sums.adding import farthest
from vpem.sums.sum import Sum


def start_at_labels(
    init: str,
    terms: Any,
    total: Sum,
    n_components: int,
    labelled: NDArray[np.bool_],
    stream: RowStream,
    tell: Tell | None = None,
) -> Any:
    """Return starting parameters: equal weights, means of labelled rows, and sample covariances.

    What is known of rows goes once through the sum, by itself, as it does in every E-step beside
    the terms of features: each root then takes means of its own features. A row counts by how much
    is known of it, ``1 - H(p) / log K``. Components that are not ``labelled`` (K,) start, by
    ``init``, at rows drawn at random, or far from those means and from each other ("kmeans" is as
    "k-means++" here).
    """
    view = terms.measured
    own = [terms] if view is terms else [terms, view]
    found = _means(own, total, n_components)
    free = np.flatnonzero(~labelled)
    if len(free) == 0:
        return terms.start(found[0])
    if init == "random":
        found[0][free] = terms.at_rows(stream.draw_distinct(n_components)[free])
        return terms.start(found[0])
    numbers, draws, some = np.arange(terms.n_samples), stream, view
    count = sample_size(n_components, terms.widest)
    if count < terms.n_samples:
        numbers, draws = stream.sample(count)
        some = view.some(numbers, draws.row_weights)
    near = found[-1][labelled]
    places = seed_features(some, total, n_components, draws, tell, near=near)
    found[0][free] = terms.at_rows(numbers[places])
    return terms.start(found[0])


def _means(own: list[Any], total: Sum, n_components: int) -> list[NDArray[np.float64]]:
    """Return means (K, d) of labelled rows, as each of these terms has features."""
    terms = own[0]
    shape = (len(total.holders.own), n_components)
    dtype = f"f{terms.itemsize}"

    def local(rows: slice) -> Floats:
        out = np.zeros((shape[0], rows.stop - rows.start, n_components), dtype=dtype)
        if terms.known is not None:
            terms.known.add(out, rows)
        return out

    first = np.zeros(1, dtype=np.intp)
    statistics = [
        one.of_clusters(np.repeat(one.at_rows(first), n_components, axis=0), total.n_roots)
        for one in own
    ]
    begin_differences(total, "setup", terms.n_samples, n_components, terms.itemsize)
    limit = farthest(total.holders, FARTHEST[terms.itemsize])
    for rows, sums in Differences(terms, total, n_components, local, limit):
        shares = _shares(sums)
        if terms.row_weights is not None:
            shares *= terms.row_weights[rows][:, None]
        for one, into in zip(own, statistics, strict=True):
            one.summarize(into, np.ascontiguousarray(shares, dtype=dtype), rows)
    return [np.array(one.update(into).means) for one, into in zip(own, statistics, strict=True)]


def _shares(sums: Floats) -> NDArray[np.float64]:
    """Probabilities (R, m, K) of costs less the first, times how much is known, 0 to 1."""
    costs = np.concatenate([np.zeros((*sums.shape[:2], 1)), sums.astype(np.float64)], axis=2)
    costs -= costs.min(axis=2, keepdims=True)
    shares = np.exp(-0.5 * costs)
    shares /= shares.sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        unknown = -np.where(shares > 0, shares * np.log(shares), 0.0).sum(axis=2, keepdims=True)
    known = 1 - unknown / np.log(sums.shape[2] + 1)
    found: NDArray[np.float64] = shares * np.where(known > 1e-9, known, 0.0)
    return found
