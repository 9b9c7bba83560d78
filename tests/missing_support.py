"""Rows that miss values, and what the tests of them compare with."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from vpem import connect, fit_vpem, make_graph
from vpem.network.partition import from_lists
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling


def clusters(seed, n_samples=200, d=5, k=2, gap=2.0):
    """Rows of correlated clusters that overlap."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n_samples)
    mixing = np.eye(d) + 0.4 * rng.standard_normal((d, d))
    return gap * rng.standard_normal((k, d))[labels] + rng.standard_normal((n_samples, d)) @ mixing


def with_holes(X, seed, share=0.3):
    """The rows with cells taken out at random, of each row and column something left."""
    rng = np.random.default_rng(seed)
    holes = rng.random(X.shape) < share
    holes[np.arange(len(X)), rng.integers(X.shape[1], size=len(X))] = False
    return np.where(holes, np.nan, X)


def network(lists, topology="star", **options):
    """Agents that hold these lists of features."""
    d = sum(map(len, lists))
    graph = make_graph(topology, len(lists), seed=0)
    return connect(graph, from_lists(lists, d), hops=options.pop("hops", 0), n_threads=1, **options)


def fitted(X, net, **options):
    """A fit by marginalizing, on one thread."""
    options = {"missing": "marginalize", "n_threads": 1, "seed": 3, **options}
    return fit_vpem(X, net, **options)


def random_mixture(rng, blocks, kind, k):
    """Parameters of a type over blocks."""
    d = blocks.n_features
    copies = 1 if kind.startswith("tied") else k
    if kind in ("full", "tied"):
        parts = []
        for width in blocks.widths:
            roots = rng.standard_normal((copies, width, width))
            parts.append((roots @ roots.swapaxes(1, 2) + 0.5 * np.eye(width)).ravel())
        covariances = np.concatenate(parts)
    elif kind.endswith("diag"):
        covariances = rng.uniform(0.3, 2, (copies, d))
    else:
        covariances = rng.uniform(0.3, 2, (copies, blocks.n_blocks))[:, blocks.block_of]
    return Mixture(
        blocks, kind, rng.dirichlet(np.ones(k))[None], rng.standard_normal((k, d)), covariances,
        Scaling.none(d),
    )  # fmt: skip


def dense(mixture):
    """Means (K, d) and full covariances (K, d, d) in the user's order."""
    found = mixture.assembled_covariances
    k, d = mixture.assembled_means.shape
    scale = mixture.scaling.scale
    full = np.zeros((k, d, d))
    if mixture.is_diagonal:
        variances = np.broadcast_to(mixture.covariances, (k, d))[:, mixture.blocks.position]
        full[:, np.arange(d), np.arange(d)] = variances * scale**2
    else:
        full[...] = found
    return mixture.assembled_means, full


def observed_scores(mixture, X):
    """Log-likelihood of what is there of each row, by SciPy."""
    means, covariances = dense(mixture)
    found = np.zeros(len(X))
    for row, x in enumerate(X):
        there = ~np.isnan(x)
        if there.any():
            parts = [
                np.log(weight)
                + multivariate_normal(mean[there], cov[np.ix_(there, there)]).logpdf(x[there])
                for weight, mean, cov in zip(
                    mixture.assembled_weights, means, covariances, strict=True
                )
            ]
            found[row] = logsumexp(parts)
    return found
