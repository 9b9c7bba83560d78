"""k-means over rows whose workers' sums are noisy: what anybody learns of one row is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import Floats
from vpem.files.matrix import FileMatrix
from vpem.fits.clustering import Clustering
from vpem.fits.local_rows import by_worker
from vpem.fits.privacy import bounds_of
from vpem.fits.private_rows import check_private, fit_private_rows
from vpem.fits.rows import n_columns
from vpem.fits.settings import PrivacySettings
from vpem.network.partition import Workers
from vpem.settings import FitSettings, KmeansSettings
from vpem.sums.connect import Network
from vpem.terms.covariances import variances_of
from vpem.terms.nearest import nearest
from vpem.terms.scaling import Scaling

LEAVE_OUT = {
    "method": "it is for features, and this is for rows",
    "scale": "standard deviations that nobody has paid for would tell of rows; give bounds of "
    "features in units that are alike",
    "init": "it looks at rows; the start is found by noisy sums of its own",
    "n_init": "every start would have to be paid for",
    "missing": "sums over what there is of a row would have to be paid for a feature at a time",
    "participation": "who is absent would have to be paid for like all others",
    "batch_size": "what the batches tell together would have to be paid for by each of them",
    "dtype": "sums lie on a grid of integers, which takes double precision",
}
"""Settings of k-means that noise cannot go with, and why."""


def private_kmeans(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network,
    how: KmeansSettings,
    privacy: PrivacySettings,
    *,
    sample_weight: Any = None,
    feature_names: Sequence[str] | None = None,
    saver: Any = None,
) -> Clustering:
    """Cluster rows that workers hold by noisy sums.

    k-means is EM with hard assignments and one spread in all directions for all clusters
    (`vpem.fits.private_rows`): clusters send noisy sizes, noisy sums about their centres in units
    of that spread, and a noisy spread, by which rows far away are clipped. What is found has noisy
    sizes, and neither inertia nor history, which would tell of rows; labels are those of this
    process's rows.
    """
    check_private(how, LEAVE_OUT, weighted=sample_weight is not None, saved=saver is not None)
    n_features = n_columns(X)
    bounds = bounds_of(privacy.bounds, n_features)
    usual = how.max_iter == KmeansSettings().max_iter
    asked = FitSettings(
        n_components=how.n_clusters, covariance_type="tied-spherical", seed=how.seed,
        max_iter=FitSettings().max_iter if usual else how.max_iter, n_threads=how.n_threads,
        reg_covar=0.0,
    )  # fmt: skip
    fit = fit_private_rows(
        X, workers, network, asked, privacy, feature_names=feature_names, hard=True,
    )  # fmt: skip
    centres = np.clip(fit.mixture.assembled_means, bounds[0], bounds[1])
    labels, squares = _nearest(X, workers, network, centres, thread_count(how.n_threads))
    return Clustering(
        centres=centres,
        labels=labels,
        distances=np.sqrt(squares),
        inertia=np.nan,
        n_rows=workers.n_samples,
        root_inertia=np.full(1, np.nan),
        counts=fit.mixture.assembled_weights * workers.n_samples,
        history=[],
        split="rows",
        method="lloyd",
        network=network.whole,
        converged=True,
        total_iterations=fit.total_iterations,
        seconds=fit.seconds,
        communication=fit.communication,
        guarantee=fit.guarantee,
        within=variances_of(fit.mixture)[0] * fit.mixture.scaling.scale**2,
        clipped=fit.clipped,
    )


def _nearest(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network,
    centres: NDArray[np.float64],
    n_threads: int,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Nearest centre of each row of this process, and its squared distance; nothing is sent.

    In one process rows are in the user's order, else worker by worker.
    """
    holders = network.total.holders
    rows = X if not holders.apart else by_worker(X, None, workers, holders)[0]
    return nearest(rows, centres, Scaling.none(len(centres[0])), n_threads)
