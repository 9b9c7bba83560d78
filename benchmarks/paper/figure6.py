"""Figure 6 of the VP-EM paper: five features on a cycle. Its queue data are not public."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import Fit, make_graph

from ..problems import exact, one_block
from .runs import ROUNDS, fit, kept, quiet_connect

SIZES: dict[str, dict[str, Any]] = {
    "small": {"samples": 2, "components": [1, 2, 3], "starts": 2, "max_iter": 100},
    "full": {"samples": 5, "components": [1, 2, 3, 4, 5, 6, 8, 10], "starts": 10,
             "max_iter": 3000},
}  # fmt: skip

METHODS = ("EM", "block EM", "VP-EM")
NAMES = ("top left", "top right", "bottom right", "bottom left", "centre")
K, ROWS, BINS = 3, 630, 28
TOL = 1e-7
FLOOR = 1e-4
"""Added to variances of features of unit variance: pixels are counted in whole numbers."""


def pool() -> NDArray[np.float64]:
    """Return scikit-learn's handwritten digits as five sensors see them, (1797, 5).

    A sensor sees the mean ink of a quarter of the picture, the fifth that of its centre. As in
    the paper one feature is power transformed (Yeo and Johnson): the most skewed. All are
    standardized.
    """
    from scipy.stats import skew
    from sklearn.datasets import load_digits
    from sklearn.preprocessing import PowerTransformer

    ink = load_digits().images
    seen = (ink[:, :4, :4], ink[:, :4, 4:], ink[:, 4:, 4:], ink[:, 4:, :4], ink[:, 2:6, 2:6])
    X = np.column_stack([part.mean(axis=(1, 2)) for part in seen])
    most = int(np.abs(skew(X)).argmax())
    X[:, [most]] = PowerTransformer("yeo-johnson").fit_transform(X[:, [most]])
    return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))


def marginals(found: Fit) -> dict[str, Any]:
    """Return what draws the mixture's density of each feature."""
    mixture = found.mixture
    covariances = mixture.assembled_covariances
    return {
        "weights": mixture.assembled_weights.tolist(),
        "means": mixture.assembled_means.tolist(),
        "variances": np.diagonal(covariances, axis1=1, axis2=2).tolist(),
    }


def measure(options: Any) -> dict[str, Any]:
    """Draw samples from the pool; fit by every method from the same rows."""
    size = SIZES[options.size]
    X = pool()
    d = X.shape[1]
    graph = make_graph("cycle", d)
    network = quiet_connect(graph, hops=1, n_rounds=ROUNDS, acceleration="none")
    networks = dict(zip(METHODS, (one_block(d), exact(network), network), strict=True))
    common = {"tol": TOL, "max_iter": size["max_iter"], "reg_covar": FLOOR,
              "n_threads": options.threads}  # fmt: skip
    runs, by_k, shown = [], [], {}
    for number in range(size["samples"]):
        rng = np.random.default_rng([number, 6])
        rows = np.ascontiguousarray(X[rng.choice(len(X), ROWS, replace=False)])
        start = rng.choice(ROWS, K, replace=False).tolist()
        fits = {
            name: fit(rows, one, n_components=K, init=start, **common)
            for name, one in networks.items()
        }
        runs.append({name: kept(one, rows) for name, one in fits.items()})
        if number == 0:
            edges = [np.histogram_bin_edges(rows[:, j], BINS) for j in range(d)]
            shown = {
                "histograms": [np.histogram(rows[:, j], edges[j])[0].tolist() for j in range(d)],
                "edges": [edge.tolist() for edge in edges],
                "mixtures": {name: marginals(fits[name]) for name in ("EM", "VP-EM")},
            }
        for k in size["components"]:
            best = {
                name: fit(rows, networks[name], n_components=k, init="k-means++",
                          n_init=size["starts"], seed=number, **common).log_likelihood
                for name in ("EM", "VP-EM")
            }  # fmt: skip
            by_k.append({"sample": number, "k": k, **best})
    return {
        "size": options.size, **size, "pool": len(X), "rows": ROWS, "runs": runs, "by k": by_k,
        "shown": shown, "consensus error": network.consensus_error,
        "hubs": [[hub.root, *hub.agents] for hub in network.hubs], "edges": graph.edges.tolist(),
    }  # fmt: skip
