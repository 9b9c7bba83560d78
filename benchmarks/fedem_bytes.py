"""Bytes up of quantized FedEM against exact EM, on many data sets: the part `bytes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_blobs

from vpem.fits.fedem import fit_fedem
from vpem.network.partition import evenly
from vpem.steps.fedem_sums import FedHistory

NEAR = 1e-3  # of the objective of exact EM, relative
STILL = 1e-7  # change of the log-likelihood per sample at which `vpem fit` stops
MOST = 300  # iterations
PULSARS = Path(__file__).parents[2] / "shared" / "data" / "HTRU_2.csv"
BLOBS = ((600, 2, 3, 2.0), (1000, 4, 3, 2.5), (2000, 8, 4, 3.0), (1500, 3, 5, 2.0),
         (3000, 10, 6, 4.0))  # fmt: skip

Runs = list[tuple[str, list[FedHistory]]]


def digits() -> tuple[Any, Any]:
    """20 principal components of scikit-learn's digits, and which digit each is."""
    data, labels = load_digits(return_X_y=True)
    centred = data - data.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return centred @ axes[:20].T, labels


def problems(size: str) -> Iterator[tuple[str, Any, int, str]]:
    """Name, rows, number of components and covariance type; overlapping mixtures, and real data."""
    yield "digits", digits()[0], 12, "tied"
    real = [("wine", load_wine().data, 3)]
    if size == "full":
        real += [("wine", load_wine().data, 2)]
        real += [("breast cancer", load_breast_cancer().data, k) for k in (2, 4)]
        if PULSARS.exists():
            real.append(("pulsars", np.loadtxt(PULSARS, delimiter=",")[::4, :8], 3))
    blobs = BLOBS if size == "full" else BLOBS[1:3]
    for m, d, k, spread in blobs:
        X, _ = make_blobs(m, d, centers=k, cluster_std=spread, random_state=d)
        real.append((f"{m} x {d} blobs", X, k))
    for name, X, k in real:
        for covariance in ("tied", "full"):
            yield name, X, k, covariance


def reached(history: FedHistory, objective: float) -> tuple[float, float]:
    """Iterations and bytes up from which on the objective is never below this again."""
    below = np.flatnonzero(np.array(history.objective) < objective)
    place = 0 if len(below) == 0 else int(below[-1]) + 1
    if place == len(history.objective):
        return float("nan"), float("nan")
    return history.iteration[place], history.bytes_up[place]


def stopped(history: FedHistory) -> int | None:
    """Place in the history at which the rule of `vpem fit` stops, if it does."""
    small = np.abs(np.diff(history.objective)) < STILL
    return int(small.argmax()) + 1 if small.any() else None


def race(exact: FedHistory, ours: FedHistory) -> dict[str, float]:
    """Iterations, bytes up and ratios of exact EM and a codec from the same start.

    NaN where something was not reached.
    """
    stop, end = stopped(exact), stopped(ours)
    at = len(exact.objective) - 1 if stop is None else stop
    best = exact.objective[at]
    goal = best - NEAR * abs(best)
    until = FedHistory(
        exact.iteration[: at + 1],
        bytes_up=exact.bytes_up[: at + 1],
        objective=exact.objective[: at + 1],
    )
    exact_steps, exact_bytes = reached(until, goal)
    steps, sent = reached(ours, goal)
    return {
        "exact: iterations": exact_steps,
        "to stop": at,
        "iterations": steps,
        "gap": (best - ours.objective[-1]) / abs(best),
        "exact: kB up": exact_bytes / 1e3,
        "kB up": sent / 1e3,
        "ratio": exact_bytes / sent,
        "ratio, exact to its stop": exact.bytes_up[at] / sent,
        "ratio, both to the stop": float("nan")
        if stop is None or end is None
        else exact.bytes_up[at] / ours.bytes_up[end],
    }


def bytes_rows(
    size: str, codecs: tuple[str, ...] = ("qsgd:4bits:32", "qsgd:8bits")
) -> tuple[list[dict[str, Any]], Runs]:
    """Race each codec at step 1; medians over seeds, and the least ratio."""
    rows: list[dict[str, Any]] = []
    kept: Runs = [(name, []) for name in ("exact EM", *codecs)]
    for name, X, k, covariance in problems(size):
        for n_workers in (10, 30) if size == "full" else (10,):
            found: dict[str, list[dict[str, float]]] = {codec: [] for codec in codecs}
            for seed in range({"small": 1, "full": 3}[size]):
                init = np.random.default_rng([seed, 5]).choice(len(X), k, replace=False)
                held = evenly(len(X), n_workers)
                common: dict[str, Any] = {
                    "n_components": k, "covariance_type": covariance, "init": init,
                    "step_size": 1.0, "seed": seed,
                }  # fmt: skip
                exact = fit_fedem(X, held, memory="none", max_iter=MOST, **common).run.history
                most = min(MOST, 40 + 3 * (stopped(exact) or MOST) // 2)
                histories = [exact]
                for codec in codecs:
                    ours = fit_fedem(X, held, compress=codec, max_iter=most, **common).run.history
                    histories.append(ours)
                    found[codec].append(race(exact, ours))
                if name == "digits" and n_workers == 10:
                    for (_, list_of), history in zip(kept, histories, strict=True):
                        list_of.append(history)
            for codec in codecs:
                rows.append(_row(f"{name}, K = {k}", covariance, n_workers, codec, found[codec]))
    return rows, kept


def _row(
    name: str, covariance: str, n_workers: int, codec: str, found: list[dict[str, float]]
) -> dict[str, Any]:
    """Medians over the seeds that came within the goal."""
    near = [one for one in found if np.isfinite(one["ratio"])]
    row: dict[str, Any] = {
        "name": name, "covariance": covariance, "workers": n_workers, "codec": codec,
        "seeds within 1e-3": f"{len(near)} of {len(found)}",
    }  # fmt: skip
    for key in found[0]:
        values = np.array([one[key] for one in (found if key == "gap" else near)])
        values = values[np.isfinite(values)]
        row[key] = float(np.median(values)) if len(values) else float("nan")
        if key == "ratio":
            row["least"] = float(values.min()) if len(values) else float("nan")
    return row
