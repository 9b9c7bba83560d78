"""How many components: one variational fit beside a search of eight by BIC.

``python -m benchmarks.variational`` prints the components found, agreement with the labels, sums
taken and bytes sent, on data whose groups are known; features are standardized, hubs sum at a
server. It needs ``../shared/data/HTRU_2.csv`` for pulsars, and goes without them where there is
none.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from vpem import VPEM

MOST = 20
"""Components of a variational fit."""

PULSARS = Path("../shared/data/HTRU_2.csv")

Data = tuple[str, np.ndarray, np.ndarray, int]

PROCESS = {"weight_concentration_prior_type": "dirichlet_process"}

WAYS: dict[str, dict[str, Any]] = {
    "process": PROCESS,
    "distribution": {"weight_concentration_prior_type": "dirichlet_distribution"},
    "process, wide 10": {**PROCESS, "prior_covariance": 10.0},
    "process, wide 30": {**PROCESS, "prior_covariance": 30.0},
}
"""Priors, and what they say of hubs: the wider these are to be, the fewer components fit in."""


def simulated() -> tuple[np.ndarray, np.ndarray]:
    """Five overlapping components over six features, whose pairs depend on each other."""
    rng = np.random.default_rng(4)
    labels = rng.choice(5, size=2000, p=(0.35, 0.25, 0.2, 0.12, 0.08))
    centres = 2.2 * rng.normal(size=(5, 6))
    X = centres[labels]
    for pair in (slice(0, 2), slice(2, 4), slice(4, 6)):
        factors = np.array([rng.normal(size=(2, 2)) + np.eye(2) for _ in range(5)])
        X[:, pair] += np.einsum("mij,mj->mi", factors[labels], rng.normal(size=(2000, 2)))
    return X, labels


def problems() -> Iterator[Data]:
    """Yield name, rows, labels and number of agents of each."""
    yield "simulated, 5", *simulated(), 3
    yield "iris, 3", *load_iris(return_X_y=True), 2
    yield "wine, 3", *load_wine(return_X_y=True), 4
    yield "breast cancer, 2", *load_breast_cancer(return_X_y=True), 10
    if PULSARS.exists():
        table = np.loadtxt(PULSARS, delimiter=",")[::4]
        yield "pulsars, 2", table[:, :-1], table[:, -1].astype(int), 4


def fitted(X: np.ndarray, n_agents: int, k: int, **how: Any) -> VPEM:
    """Return a fit of a standardized table."""
    model = VPEM(n_components=k, agents=n_agents, scale="standard", max_iter=3000, **how)
    return model.fit(X)


def line(name: str, way: str, found: int, X: np.ndarray, y: np.ndarray, models: list[VPEM]) -> None:
    """Print what the last of some models found, and what all of them took."""
    agreed = adjusted_rand_score(y, models[-1].predict(X))
    sums = sum(model.n_iter_ for model in models)
    sent = sum(model.fit_.communication["bytes"] for model in models)
    print(f"{name:18} {way:20} {found:6d} {agreed:6.2f} {sums:6d} {sent / 1e6:9.1f}", flush=True)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print(f"{'data, groups':18} {'way':20} {'found':>6} {'ARI':>6} {'sums':>6} {'MB':>9}")
    for name, X, y, n_agents in problems():
        models = [fitted(X, n_agents, k) for k in range(1, 9)]
        best = int(np.argmin([model.fit_.bic for model in models]))
        line(
            name, "BIC of 1-8", best + 1, X, y, [*models[:best], *models[best + 1 :], models[best]]
        )
        for way, how in WAYS.items():
            model = fitted(X, n_agents, MOST, **how)
            line(name, way, int(model.mixture_.in_use.sum()), X, y, [model])


if __name__ == "__main__":
    main()
