"""Factors that hubs share, beside hubs alone and all features in one place.

``python -m benchmarks.factors`` prints log-likelihood per sample and agreement with the labels:
of groups that differ in correlation across hubs only, and of breast cancer in 10 hubs, each of
them the mean, the standard error and the worst value of one measurement.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import adjusted_rand_score

from vpem import VPEM

SEEDS = range(3)


def crossing() -> tuple[np.ndarray, np.ndarray]:
    """Two groups with the same means and variances, whose two features rise or fall together."""
    rng = np.random.default_rng(0)
    rows = [rng.multivariate_normal([0, 0], [[1, r], [r, 1]], size=1000) for r in (0.9, -0.9)]
    return np.vstack(rows), np.repeat([0, 1], 1000)


def cancer() -> tuple[np.ndarray, np.ndarray]:
    """Breast cancer, standardized."""
    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def fitted(X: np.ndarray, agents: list[list[int]], n_factors: int) -> tuple[VPEM, float]:
    """Return the best of some starts, and the CPU time of all in seconds."""
    began, models = time.process_time(), []
    for seed in SEEDS:
        how: dict[str, Any] = {"accelerate": "squarem"} if n_factors else {}
        model = VPEM(
            n_components=2, agents=agents, graph="star", hops=0, n_factors=n_factors,
            max_iter=3000, n_threads=1, random_state=seed, **how,
        )  # fmt: skip
        models.append(model.fit(X))
    return max(models, key=lambda model: model.score(X)), time.process_time() - began


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    tables = (
        ("crossing", *crossing(), [[0], [1]], (0, 1)),
        ("breast cancer", *cancer(), [[j, j + 10, j + 20] for j in range(10)], (0, 1, 2, 3, 5)),
    )
    print(f"{'data':14} {'factors':>8} {'log-lik.':>9} {'ARI':>6} {'iter.':>6} {'bytes/row':>10}")
    for name, X, labels, agents, numbers in tables:
        together = [list(range(X.shape[1]))]
        for held, q in [*((agents, q) for q in numbers), (together, 0)]:
            model, seconds = fitted(X, held, q)
            what = "one place" if held is together else str(q)
            agreed = adjusted_rand_score(labels, model.predict(X))
            a_row = 0 if held is together else 8 * (2 * (q + 1) - 1)
            print(
                f"{name:14} {what:>8} {model.score(X):9.2f} {agreed:6.2f} {model.n_iter_:6d} "
                f"{a_row:10d}   {seconds:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
