"""FedEM, VR-FedEM, memories and bytes: ``python -m benchmarks.fedem [PART ...] [--size full]``.

Parts: synthetic (two components, known covariance, 100 workers, p = 0.75), sorted (scikit-learn's
digits, 20 principal components, K = 12, dealt out by label), bytes (how many workers send until
they are within 1e-3 of exact EM's objective, on many data sets). Each prints a table and writes its
numbers (JSON) and a plot to --folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from vpem.fits.fedem import fit_fedem
from vpem.network.partition import Workers, by_label, evenly
from vpem.pictures.figure import save_picture
from vpem.pictures.history import draw_histories
from vpem.steps.fedem_sums import FedHistory

from .communication import table
from .fedem_bytes import bytes_rows, digits

N_SEEDS = {"small": 2, "full": 10}

Runs = list[tuple[str, list[FedHistory]]]


def synthetic_rows(seed: int, size: str) -> tuple[Any, Any]:
    """Rows of two Gaussians of known covariance that overlap, and which each comes from."""
    m = {"small": 2_000, "full": 10_000}[size]
    rng = np.random.default_rng(seed)
    labels = (rng.random(m) < 0.3).astype(int)
    return rng.normal(size=(m, 2)) + np.array([[0.0, 1.0], [1.5, -1.0]])[labels], labels


def over_seeds(
    size: str,
    contenders: dict[str, dict[str, Any]],
    problem: Callable[[int], tuple[Any, Workers]],
    **common: Any,
) -> Runs:
    """Run all contenders on the same rows and from the same start, for every seed."""
    runs: Runs = [(name, []) for name in contenders]
    for seed in range(N_SEEDS[size]):
        X, workers = problem(seed)
        k = common["n_components"]
        init = np.random.default_rng([seed, 5]).choice(len(X), k, replace=False)
        for (_, histories), options in zip(runs, contenders.values(), strict=True):
            fit = fit_fedem(X, workers, init=init, seed=seed, **{**common, **options})
            histories.append(fit.run.history)
    return runs


def summary(name: str, histories: list[FedHistory]) -> dict[str, Any]:
    """Return medians over seeds at the end; the mean field is that of the last fifth."""
    tails = [run.mean_field[-max(1, len(run.mean_field) // 5) :] for run in histories]
    return {
        "name": name,
        "seeds": len(histories),
        "iterations": float(np.median([run.iteration[-1] for run in histories])),
        "epochs": float(np.median([run.epochs[-1] for run in histories])),
        "mean field": float(np.median([np.median(tail) for tail in tails])),
        "worst mean field": float(np.max([np.median(tail) for tail in tails])),
        "objective": float(np.median([run.objective[-1] for run in histories])),
        "MB up": float(np.median([run.bytes_up[-1] for run in histories])) / 1e6,
        "histories": [asdict(run) for run in histories],
    }


def wins(runs: Runs, one: str, other: str) -> dict[str, Any]:
    """Tell in how many seeds one ended at a smaller mean field, and by what factor."""
    ends = {
        name: np.array([summary(name, [run])["mean field"] for run in histories])
        for name, histories in runs
        if name in (one, other)
    }
    factor = ends[other] / np.maximum(ends[one], 1e-300)
    return {
        "name": f"{one} against {other}",
        "seeds": len(factor),
        "seeds won": int((factor > 1).sum()),
        "median factor": float(np.median(factor)),
    }


# ---- the parts -----------------------------------------------------------------------------------


def synthetic(size: str) -> tuple[list[dict[str, Any]], Runs]:
    """FedEM against VR-FedEM at the same step, codec, participation and epochs."""
    n_workers = {"small": 20, "full": 100}[size]
    step = {"step_size": "constant:0.1"}
    contenders = {
        "FedEM, constant step": {"batch_size": 10, **step},
        "FedEM, decreasing step": {"batch_size": 10, "step_size": "decreasing:0.5,0.5"},
        "VR-FedEM, constant step": {"batch_size": 5, "variance_reduction": True, **step},
        "FedEM, all rows": step,
    }

    def problem(seed: int) -> tuple[Any, Workers]:
        X, _ = synthetic_rows(seed, size)
        return X, evenly(len(X), n_workers)

    runs = over_seeds(
        size,
        contenders,
        problem,
        n_components=2,
        covariance_type="tied",
        known_covariance=np.eye(2),
        compress="qsgd:4bits",
        participation=0.75,
        n_epochs={"small": 12, "full": 100}[size],
        max_iter=100_000,
        record_every={"small": 2, "full": 10}[size],
    )
    rows = [summary(name, histories) for name, histories in runs]
    return [*rows, wins(runs, "VR-FedEM, constant step", "FedEM, constant step")], runs


def unlike(size: str) -> tuple[list[dict[str, Any]], Runs]:
    """With and without memories, on digits dealt out by label."""
    X, labels = digits()
    held = by_label(labels, 20)
    reduced = {"batch_size": 5, "variance_reduction": True}
    contenders = {
        "FedEM, memories": {},
        "FedEM, no memories": {"memory": "none"},
        "VR-FedEM, memories": reduced,
        "VR-FedEM, no memories": {"memory": "none", **reduced},
        "FedEM, batches of 10, memories": {"batch_size": 10},
        "FedEM, batches of 10, no memories": {"batch_size": 10, "memory": "none"},
    }
    runs = over_seeds(
        size,
        contenders,
        lambda seed: (X, held),
        n_components=12,
        covariance_type="tied",
        compress="qsgd:8bits",
        participation=0.5,
        step_size="constant:0.2",
        n_epochs={"small": 8, "full": 80}[size],
        max_iter=100_000,
        record_every={"small": 5, "full": 10}[size],
    )
    rows = [summary(name, histories) for name, histories in runs]
    for how in ("FedEM", "VR-FedEM", "FedEM, batches of 10"):
        rows.append(wins(runs, f"{how}, memories", f"{how}, no memories"))
    rows.append(wins(runs, "VR-FedEM, memories", "FedEM, batches of 10, memories"))
    return rows, runs


PARTS = {"synthetic": synthetic, "sorted": unlike, "bytes": bytes_rows}
TITLES = {
    "synthetic": "two Gaussians of known covariance, 4 bits, participation 0.75",
    "sorted": "digits dealt out by label to 20 workers, 8 bits, participation 0.5",
    "bytes": "digits dealt out evenly to 10 workers, step 1",
}


def main(words: list[str] | None = None) -> int:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fedem")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(words)
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part called {unknown[0]}; there are {', '.join(PARTS)}")
    console = Console(highlight=False)
    console.width = max(console.width, 240)
    given.folder.mkdir(parents=True, exist_ok=True)
    for part in given.parts or PARTS:
        rows, runs = PARTS[part](given.size)
        console.print(table(part, rows), "")
        stem = given.folder / f"fedem-{part}-{given.size}"
        stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        title = f"{TITLES[part]}: {len(runs[0][1])} seeds"
        save_picture(stem.with_suffix(".png"), draw_histories(runs, title=title), force=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
