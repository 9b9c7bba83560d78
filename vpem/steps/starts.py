"""Where EM starts, over features that no agent may show: by shared rows and by the same sum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.steps.feature_lloyd import cluster_mixture
from vpem.steps.seeding import seed_features
from vpem.steps.streams import RowStream
from vpem.sums.sum import Sum
from vpem.terms.mixture import Mixture
from vpem.terms.terms import StartTerms

__all__ = ["draw_start"]


def draw_start(
    init: str, terms: StartTerms, total: Sum, n_components: int, stream: RowStream
) -> tuple[Mixture, NDArray[np.intp]]:
    """Starting parameters without pooling a feature.

    Parameters
    ----------
    init : {"random", "k-means++", "kmeans"}
        "random": means at rows that all agents draw from a shared seed. "k-means++": rows drawn far
        from each other, by squared distances summed over hubs as the terms of the E-step are; the
        root of the first hub draws by its own estimate and sends the row's number. "kmeans": from
        there Lloyd's iterations, each root assigning rows by its own estimate of the distances, and
        one M-step from the hard assignment.
    terms : StartTerms
        Distances of each hub's features.
    total : Sum
        How they are summed.
    n_components : int
        Number of components, K.
    stream : RowStream
        The agents' shared random stream.

    Returns
    -------
    mixture : Mixture
        Starting parameters.
    rows : ndarray of shape (K,)
        Rows the means were placed at (before Lloyd's iterations).
    """
    if init == "random":
        rows = stream.draw_distinct(n_components)
        return terms.start(terms.at_rows(rows)), rows
    rows = seed_features(terms, total, n_components, stream)
    centres = terms.at_rows(rows)
    if init == "k-means++":
        return terms.start(centres), rows
    return cluster_mixture(terms, total, centres, stream), rows
