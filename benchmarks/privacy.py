"""How good private fits over rows are: ``python -m benchmarks.privacy``.

Mixtures of three components that overlap by 1 % (`vpem data simulate`), rows over ten workers,
bounds for all features half as wide again as the data, 10 iterations, delta 1e-6. The adjusted Rand
index of the labels, mean and range over seeds, of

* EM, without noise, from its default start;
* private fits (`vpem fit --split rows --epsilon`);
* DP-EM with statistics about zero, in units of the bounds, by the same accountant (Park, Foulds,
  Chaudhuri and Welling 2017, with all noise of one scale, and centres drawn within the bounds).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from vpem import PrivacySettings, connect_workers, fit_em, fit_fedem, make_graph
from vpem.errors import InputError
from vpem.files.examples import simulate
from vpem.fits.privacy import Budget
from vpem.network.partition import evenly

SIZES = ((2_000, 4), (10_000, 10), (100_000, 10))
EPSILONS = (4.0, 1.0)
DELTA, K, ITERATIONS, WORKERS = 1e-6, 3, 10, 10

Doubles = NDArray[np.float64]


def about_zero(
    X: Doubles, bound: float, epsilon: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return the labels of DP-EM with noise on sums about zero."""
    X = np.clip(X / bound, -1, 1)
    M, d = X.shape
    noise = Budget(epsilon, DELTA).multipliers([1 / ITERATIONS] * ITERATIONS)[0]
    noise *= np.sqrt(1 + d + d * d)  # the longest row: a count, its values, and their products
    weights, means = np.full(K, 1 / K), rng.uniform(-0.5, 0.5, (K, d))
    covariances = np.tile(0.25 * np.eye(d), (K, 1, 1))
    for _ in range(ITERATIONS):
        shares = _shares(X, weights, means, covariances)
        counts = np.maximum(shares.sum(axis=0) + noise * rng.normal(size=K), 0.01 * M)
        for k in range(K):
            first = shares[:, k] @ X + noise * rng.normal(size=d)
            half = np.triu(rng.normal(size=(d, d)), 1) / np.sqrt(2)
            errors = half + half.T + np.diag(rng.normal(size=d))
            second = (X.T * shares[:, k]) @ X + noise * errors
            means[k] = np.clip(first / counts[k], -1, 1)
            values, vectors = np.linalg.eigh(second / counts[k] - np.outer(means[k], means[k]))
            covariances[k] = (vectors * np.maximum(values, 1e-3)) @ vectors.T
        weights = counts / counts.sum()
    return np.asarray(_shares(X, weights, means, covariances).argmax(axis=1))


def _shares(X: Doubles, weights: Doubles, means: Doubles, covariances: Doubles) -> Doubles:
    logs = np.empty((len(X), len(weights)))
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        factor = np.linalg.cholesky(covariance)
        z = np.linalg.solve(factor, (X - mean).T)
        logs[:, k] = np.log(weights[k]) - np.log(np.diag(factor)).sum() - (z**2).sum(axis=0) / 2
    logs = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: Doubles = logs / logs.sum(axis=1, keepdims=True)
    return shares


def say(scores: list[float]) -> str:
    """Write a mean, and the range it is of."""
    if not scores:
        return "refused"
    return f"{np.mean(scores):.2f} ({min(scores):.2f} to {max(scores):.2f})"


def row(n_samples: int, n_features: int, epsilon: float, kinds: list[str], seeds: int) -> str:
    """Return a line of the table."""
    scores: dict[str, list[float]] = {"EM": [], "about zero": [], **{kind: [] for kind in kinds}}
    for seed in range(seeds):
        data, _ = simulate(n_samples, n_features, K, overlap=0.01, seed=seed)
        workers = evenly(n_samples, WORKERS)
        network = connect_workers(make_graph("star", WORKERS))
        common: dict[str, Any] = {"n_components": K, "seed": seed}
        plain = fit_em(data.X, workers, network, max_iter=200, tol=1e-5, **common)
        X, labels = np.asarray(data.X), data.labels
        bound = 1.5 * float(np.abs(X).max())
        scores["EM"].append(adjusted_rand_score(labels, plain.mixture.predict(X)))
        found = about_zero(X, bound, epsilon, np.random.default_rng(seed))
        scores["about zero"].append(adjusted_rand_score(labels, found))
        private = PrivacySettings(epsilon=epsilon, delta=DELTA, bounds=(-bound, bound))
        for kind in kinds:
            try:
                fit = fit_em(
                    X, workers, network, covariance_type=kind, privacy=private, **common
                )  # fmt: skip
            except InputError:
                continue
            scores[kind].append(adjusted_rand_score(labels, fit.mixture.predict(X)))
    cells = [f"{n_samples:,} x {n_features}", f"{epsilon:g}", *map(say, scores.values())]
    return f"| {' | '.join(cells)} |"


def fedem(seeds: int) -> None:
    """Print what noise of every worker costs, by the number of workers (`vpem fedem --epsilon`)."""
    print("| workers | FedEM | EM, noise of the server |\n|---|---|---|")
    data, _ = simulate(10_000, 4, K, overlap=0.01, seed=0)
    X, labels = np.asarray(data.X), data.labels
    private = PrivacySettings(epsilon=4.0, delta=DELTA, bounds=(-12, 12))
    for n in (1, 2, 5):
        workers, network = evenly(len(X), n), connect_workers(make_graph("star", n))
        scores: list[list[float]] = []
        for recipe in (fit_fedem, fit_em):
            fits = [recipe(X, workers, network, n_components=K, seed=seed, privacy=private)
                    for seed in range(seeds)]  # fmt: skip
            scores.append([adjusted_rand_score(labels, fit.mixture.predict(X)) for fit in fits])
        print(f"| {n} | {say(scores[0])} | {say(scores[1])} |", flush=True)


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.privacy")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kinds", default="full,diag,tied")
    parser.add_argument("--fedem", action="store_true", help="FedEM, by the number of workers")
    given = parser.parse_args(words)
    if given.fedem:
        fedem(given.seeds)
        return
    kinds = given.kinds.split(",")
    print(f"| rows x features | epsilon | EM | statistics about zero | {' | '.join(kinds)} |")
    print(f"|{'---|' * (4 + len(kinds))}")
    for n_samples, n_features in SIZES:
        for epsilon in EPSILONS:
            print(row(n_samples, n_features, epsilon, kinds, given.seeds), flush=True)


if __name__ == "__main__":
    main()
