"""Figure 3 of the FedEM paper, left: two Gaussians of known covariance over 100 agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vpem.network.partition import evenly

from . import traced
from .report import Report

N, AGENTS, PARTICIPATION, STEP = 10_000, 100, 0.75, 0.01
"""Theirs: rows, agents, probability of taking part, and both gamma and alpha."""

THEIRS: dict[str, dict[str, Any]] = {
    "FedEM": {"batch_size": 20},
    "VR-FedEM": {"batch_size": 5, "inner": 20, "variance_reduction": True},
}
"""Theirs: b, and k_in."""

SIZES: dict[str, dict[str, Any]] = {
    "small": {"rows": 1000, "agents": 10, "epochs": 5, "runs": 2, "record": 2},
    "full": {"rows": N, "agents": AGENTS, "epochs": 100, "runs": 3, "record": 10},
}
CODEC = "qsgd:4bits"
WEIGHTS, MEANS = (0.4, 0.6), ((0.0, 1.0), (1.5, -1.0))


def rows_of(seed: int, n: int) -> np.ndarray:
    """Draw rows of two Gaussians in the plane with unit covariance."""
    rng = np.random.default_rng([seed, 2])
    labels = (rng.random(n) < WEIGHTS[1]).astype(int)
    return np.asarray(rng.normal(size=(n, 2)) + np.array(MEANS)[labels])


def measure(options: Any) -> dict[str, Any]:
    """Run both algorithms on the same rows from the same start."""
    size = SIZES[options.size]
    workers = evenly(size["rows"], size["agents"])
    runs: dict[str, list[Any]] = {name: [] for name in THEIRS}
    for seed in range(size["runs"]):
        X = rows_of(seed, size["rows"])
        start = np.random.default_rng([seed, 3]).choice(len(X), 2, replace=False).tolist()
        for name, settings in THEIRS.items():
            runs[name].append(traced.run(
                X, workers, n_components=2, covariance_type="tied", known_covariance=np.eye(2),
                step_size=STEP, alpha=STEP, participation=PARTICIPATION, compress=CODEC,
                init=start, seed=seed, tol=0.0, n_epochs=size["epochs"], max_iter=100_000,
                record_every=size["record"], n_threads=options.threads, **settings,
            ))  # fmt: skip
    return {"size": options.size, **size, "runs": runs}


def tell(found: dict[str, Any]) -> Report:
    """Say what the numbers show."""
    n = len(found["runs"]["FedEM"])
    about = (
        f"Theirs: N = {N:,} rows, n = {AGENTS} agents, participation p = {PARTICIPATION}, gamma = "
        f"alpha = {STEP}; minibatches of b = 20 in FedEM, of 5 in VR-FedEM with k_in = 20; two "
        "Gaussians in the plane with a known common covariance, whose weights and means are "
        f"fitted. Ours, since our copy of the text has lost these numbers: weights {WEIGHTS}, "
        f"means {MEANS}, unit covariance, the codec {CODEC}, {found['epochs']} epochs, a start at "
        f"two rows. Here {found['rows']:,} rows on {found['agents']} agents, {n} runs (rows, start "
        "and draws differ; both algorithms share rows and start). Minibatches are drawn without "
        "replacement, and memories begin at first corrections."
    )
    agrees, differs = traced.compared(found)
    return Report(
        "Paper 002, Figure 3: synthetic data", about,
        [traced.table_of_ends(found, "Medians over runs of the last fifth of the iterates.")],
        agrees, differs, [traced.ADVICE],
        [("synthetic-fields.png", "Squared norms of moves and of the mean field against epochs")],
    )  # fmt: skip


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw the trajectories."""
    traced.draw_fields(found, folder / "synthetic-fields.png", "synthetic")
