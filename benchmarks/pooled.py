"""Whole fits of one agent against scikit-learn: ``python -m benchmarks pooled [--pulsars FILE]``.

Both start as they do by default and end at the same log-likelihood: scikit-learn's by the largest
tolerance of 1e-6, 1e-7, ... that ends within 1e-6 nats a sample of where EM ends, ours by the
largest that ends there or above. Seeds that lead ours to a lower optimum are counted apart.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from vpem import VPEM, VpemWarning, read_dataset

from .measure import Options
from .problems import mixture_rows

FOLDER = Path(__file__).parents[1] / "data"
PACES = {"vpem": None, "vpem, squarem": "squarem"}
NEAR = 1e-6  # nats a sample
SAME = 1e-8  # of two computations of one optimum
OTHER = 1e-3  # so much lower is another optimum
QUICK = 0.05  # seconds: a shorter fit is timed several times, and the median taken

MADE = {
    "tiny": ((300, 5, 2),),
    "small": ((20_000, 10, 5), (100_000, 20, 5), (50_000, 50, 4)),
}

Found = tuple[float, float]
"""Seconds of a fit, and its log-likelihood per sample."""


def data(size: str, pulsars: Path | None) -> Iterator[tuple[str, Any, int]]:
    """Yield names, rows and numbers of components."""
    if size != "tiny":
        for name, k in (("wine", 3), ("breast_cancer", 2)):
            X = read_dataset(FOLDER / f"{name}.h5").X
            yield f"{name.replace('_', ' ')}, {len(X)} x {X.shape[1]}, K = {k}", X, k
    if pulsars is not None:
        rows = np.ascontiguousarray(np.loadtxt(pulsars, delimiter=",")[:, :-1])
        yield f"pulsars, {len(rows):,} x {rows.shape[1]}, K = 2", rows, 2
    for m, d, k in MADE["tiny" if size == "tiny" else "small"]:
        yield f"overlapping, {m:,} x {d}, K = {k}", mixture_rows(m, d, k), k


def theirs(X: Any, k: int, seed: int, threads: int) -> Callable[[float], Any]:
    """scikit-learn's fit to a tolerance."""

    def fit(tol: float) -> Any:
        with threadpool_limits(threads):
            return GaussianMixture(k, tol=tol, max_iter=10_000, random_state=seed).fit(X)

    return fit


def ours(X: Any, k: int, seed: int, threads: int, pace: str | None) -> Callable[[float], Any]:
    """Our fit to a tolerance."""

    def fit(tol: float) -> Any:
        how = {"max_iter": 10_000, "accelerate": pace, "random_state": seed, "n_threads": threads}
        return VPEM(k, agents=1, tol=tol, **how).fit(X)

    return fit


def reached(fit: Callable[[float], Any], X: Any, least: float, repeats: int) -> Found:
    """Time the fit of the largest tolerance that ends there or above, or in another optimum."""
    for digits in range(6, 11):
        began = time.perf_counter()
        model = fit(10.0**-digits)
        taken = [time.perf_counter() - began]
        found = float(model.score(X))
        if found >= least or found < least - OTHER:
            break
    for _ in range(repeats if taken[0] < QUICK else 0):
        began = time.perf_counter()
        fit(10.0**-digits)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken), found


def pooled(name: str, X: Any, k: int, options: Options, n_seeds: int) -> dict[str, Any]:
    """Compare whole fits of some seeds."""
    seconds: dict[str, list[float]] = {"scikit-learn": [], **{who: [] for who in PACES}}
    ratios: dict[str, list[float]] = {who: [] for who in PACES}
    reached(ours(X, k, 0, options.threads, None), X, -np.inf, 1)  # loads what both load once
    for seed in range(n_seeds):
        end = float(ours(X, k, seed, options.threads, None)(1e-10).score(X))
        base = reached(theirs(X, k, seed, options.threads), X, end - NEAR, options.repeats)
        seconds["scikit-learn"].append(base[0])
        for who, pace in PACES.items():
            fit = ours(X, k, seed, options.threads, pace)
            found = reached(fit, X, base[1] - SAME, options.repeats)
            if found[1] >= base[1] - SAME:
                seconds[who].append(found[0])
                ratios[who].append(base[0] / found[0])
    facts: dict[str, Any] = {
        f"compared, {who}": f"{len(own)} of {n_seeds} seeds" for who, own in ratios.items()
    }
    facts["ratios"] = ratios
    median = {who: statistics.median(own) for who, own in seconds.items() if own}
    fast = {who: statistics.median(own) for who, own in ratios.items() if own}
    return {
        "name": "pooled", "case": name, "base": "scikit-learn", "absent": {}, "facts": facts,
        "median": median, "times_as_fast": {"scikit-learn": 1.0, **fast},
        "load": os.getloadavg()[0], "seconds": seconds,
    }  # fmt: skip


def measure(options: Options, n_seeds: int = 5) -> Iterator[dict[str, Any]]:
    """Yield times of whole fits over all data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        for name, X, k in data(options.size, options.pulsars):
            yield pooled(name, X, k, options, 1 if options.size == "tiny" else n_seeds)
