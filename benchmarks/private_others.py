"""How good private clusters, and released models of features, are.

    python -m benchmarks.private_others [--seeds 5]

Data as in `benchmarks.privacy`: mixtures of three components that overlap by 1 %, bounds half as
wide again as the data, delta 1e-6. Mean and range over seeds, of

* the inertia of k-means over five workers as a multiple of that without noise, by noisy sums and,
  where it is installed, by diffprivlib (Su et al. 2016; epsilon alone, with a delta of 0);
* the adjusted Rand index of a model of features, two an agent, without noise and released.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from benchmarks.privacy import DELTA, EPSILONS, SIZES, K, say
from vpem import PrivacySettings, connect, connect_workers, fit_vpem, kmeans_rows, make_graph
from vpem.errors import InputError
from vpem.files.examples import simulate
from vpem.network.partition import contiguous, evenly

Doubles = NDArray[np.float64]


def inertia(X: Doubles, centres: Doubles) -> float:
    """Sum of squared distances to the nearest centre."""
    return float(((X[:, None] - centres) ** 2).sum(axis=2).min(axis=1).sum())


def of_peer(X: Doubles, bound: float, epsilon: float, seed: int) -> Doubles | None:
    """Return the centres of diffprivlib's k-means, where that is installed."""
    try:
        from diffprivlib.models.k_means import KMeans
    except ImportError:
        return None
    box = (np.full(X.shape[1], -bound), np.full(X.shape[1], bound))
    found = KMeans(K, epsilon=epsilon, bounds=box, random_state=seed).fit(X)
    return np.asarray(found.cluster_centers_)


def scores_of(n_samples: int, n_features: int, epsilon: float, seed: int) -> dict[str, Any]:
    """Fit all of them to one data set."""
    data, _ = simulate(n_samples, n_features, K, overlap=0.01, seed=seed)
    X, labels = np.asarray(data.X), data.labels
    bound = 1.5 * float(np.abs(X).max())
    common: dict[str, Any] = {"delta": DELTA, "bounds": (-bound, bound)}
    found: dict[str, Any] = {}
    workers, star = evenly(n_samples, 5), connect_workers(make_graph("star", 5))
    plain = kmeans_rows(X, workers, star, n_clusters=K, n_init=5, seed=seed)
    privacy = PrivacySettings(epsilon=epsilon, **common)
    clusters = kmeans_rows(X, workers, star, n_clusters=K, seed=seed, privacy=privacy)
    found["k-means"] = inertia(X, clusters.centres) / plain.inertia
    peer = of_peer(X, bound, epsilon, seed)
    found["diffprivlib"] = None if peer is None else inertia(X, peer) / plain.inertia
    n_agents = n_features // 2
    network = connect(make_graph("star", n_agents), contiguous(n_features, n_agents))
    release = PrivacySettings(release_epsilon=epsilon, **common)
    for name, how in (("plain", None), ("released", release)):
        try:
            fit = fit_vpem(X, network, n_components=K, seed=seed, privacy=how)
            found[name] = adjusted_rand_score(labels, fit.mixture.predict(X))
        except InputError:
            found[name] = None
    return found


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.private_others")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args(words)
    heads = ("k-means", "diffprivlib", "plain", "released")
    print(f"| rows x features | epsilon | {' | '.join(heads)} |\n|{'---|' * 6}")
    for n_samples, n_features in SIZES:
        for epsilon in EPSILONS:
            found = [scores_of(n_samples, n_features, epsilon, seed) for seed in range(given.seeds)]
            cells = [say([one[head] for one in found if one[head] is not None]) for head in heads]
            print(f"| {n_samples:,} x {n_features} | {epsilon:g} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
