"""Fits in fewer sums: ``python -m benchmarks.accelerate [--pulsars FILE] [--size small]``.

How many sums runs take until they are within 1e-6 nats per sample of their own end, and how far
that lies from where EM ends, over data, hubs, covariances and nine starts; and how long whole fits
of one agent take against scikit-learn's, both from their default starts.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from vpem import VPEM, VpemWarning, connect, fit_vpem, make_graph, read_dataset
from vpem._core.threads import thread_count
from vpem.network.holdings import contiguous

from .measure import Options, call, compare
from .problems import mixture_rows

__all__ = ["measure"]

FOLDER = Path(__file__).parents[1] / "data"
PACES = (None, "local:8", "squarem", "local:8,squarem")
INITS = ("kmeans", "k-means++", "random")
NEAR = 1e-6  # nats per sample

Problem = tuple[str, Any, int, int, str, int, str]
"""Name, rows, hubs, components, covariances, hops, topology."""


def problems(pulsars: Path | None, tiny: bool) -> Iterator[Problem]:
    """Yield what is fitted."""
    wine = read_dataset(FOLDER / "wine.h5").X
    if tiny:
        yield "wine", wine, 4, 3, "full", 0, "star"
        return
    cancer = read_dataset(FOLDER / "breast_cancer.h5").X
    made = mixture_rows(2000, 8, 4, 0.8)
    yield "breast cancer", cancer, 3, 2, "full", 0, "star"
    yield "breast cancer", cancer, 10, 2, "full", 0, "star"
    yield "breast cancer", cancer, 10, 2, "full", 1, "cycle"
    yield "breast cancer", cancer, 10, 3, "tied-diag", 0, "star"
    yield "wine", wine, 4, 3, "full", 0, "star"
    yield "wine", wine, 4, 3, "spherical", 0, "star"
    yield "made, 2,000 x 8", made, 2, 4, "full", 0, "star"
    yield "made, 2,000 x 8", made, 4, 4, "diag", 0, "star"
    yield "made, 2,000 x 8", made, 2, 4, "tied", 0, "star"
    if pulsars is not None:
        rows = np.ascontiguousarray(np.loadtxt(pulsars, delimiter=",")[:, :-1])
        yield "pulsars", rows, 2, 4, "full", 0, "star"
        yield "pulsars", rows, 2, 2, "full", 0, "star"


def sums_needed(fit: Any) -> int:
    """Sums, those that were taken back included, until the run is near its own end."""
    history = fit.history.mean(axis=1) / fit.total_weight
    enough = int(np.argmax(history >= max(fit.log_likelihood, history.max()) - NEAR))
    taken = np.setdiff1d(np.arange(1, len(history) + len(fit.lost) + 1), fit.lost)
    return int(taken[enough])


def sums(problem: Problem, n_starts: int) -> dict[str, Any]:
    """Count the sums of one problem from all starts."""
    name, X, n_hubs, k, covariance, hops, topology = problem
    agents = contiguous(X.shape[1], n_hubs)
    network = connect(make_graph(topology, n_hubs), agents, hops=hops)
    how = {"n_components": k, "covariance_type": covariance, "tol": 1e-10, "max_iter": 5000}
    found: dict[str, list[Any]] = {}
    for start in range(n_starts):
        for pace in PACES:
            given = {"init": INITS[start % 3], "seed": start // 3, "accelerate": pace}
            found.setdefault(pace or "EM", []).append(fit_vpem(X, network, **how, **given))
    needed = {pace: [sums_needed(fit) for fit in fits] for pace, fits in found.items()}
    facts: dict[str, Any] = {}
    for pace, fits in found.items():
        ratios = [one / em for one, em in zip(needed[pace], needed["EM"], strict=True)]
        ends = [
            fit.log_likelihood - em.log_likelihood
            for fit, em in zip(fits, found["EM"], strict=True)
        ]
        below = [f"{end:.1e}" for end in ends if end < -NEAR]
        facts[pace] = (
            f"{' '.join(map(str, needed[pace]))}; of EM's: median "
            f"{statistics.median(ratios):.2f}, most {max(ratios):.2f}; taken back "
            f"{sum(len(fit.lost) for fit in fits)}; ends below EM's: {' '.join(below) or 'none'}"
        )
        facts[f"ratios, {pace}"], facts[f"ends, {pace}"] = ratios, ends
    hubs = f"{len(network.hubs)} hubs, K = {k}, {covariance}, {topology}"
    return {
        "name": "sums", "case": f"{name}, {hubs}", "base": "", "absent": {}, "facts": facts,
        "median": {}, "times_as_fast": {}, "load": 0.0, "seconds": {},
    }  # fmt: skip


def together(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Say what all sums have in common."""
    facts: dict[str, Any] = {}
    for pace in PACES[1:]:
        ratios = [r for one in results for r in one["facts"][f"ratios, {pace}"]]
        ends = [e for one in results for e in one["facts"][f"ends, {pace}"]]
        near = sum(end >= -NEAR for end in ends)
        over = sum(ratio > 1.2 for ratio in ratios)
        facts[str(pace)] = (
            f"of EM's sums: median {statistics.median(ratios):.2f}, most {max(ratios):.2f}, above "
            f"1.2 in {over} of {len(ratios)} runs; within 1e-6 of EM's end or above it: {near}"
        )
    return {**results[0], "case": "all of these", "facts": facts}


# ---- one agent -----------------------------------------------------------------------------------

POOLED = {
    "tiny": ((300, 5, 2),),
    "small": ((100_000, 20, 5), (200_000, 50, 4), (20_000, 30, 8), (50_000, 8, 6)),
}


def theirs(X: Any, k: int, tol: float, threads: int, seed: int = 0) -> Callable[[], Any]:
    """scikit-learn's whole fit."""

    def run() -> Any:
        with threadpool_limits(threads):
            return GaussianMixture(k, tol=tol, max_iter=5000, random_state=seed).fit(X)

    return run


def ours(X: Any, k: int, pace: str | None, threads: int, seed: int = 0) -> Callable[[], Any]:
    """Our whole fit."""
    made = VPEM(
        k, agents=1, tol=1e-8, max_iter=5000, accelerate=pace, random_state=seed, n_threads=threads
    )
    return lambda: made.fit(X)


def pooled(name: str, X: Any, k: int, options: Options) -> dict[str, Any]:
    """Compare whole fits to the same log-likelihood.

    scikit-learn stops at the largest tolerance of 1e-3, 1e-4, ... that ends within 1e-6 of 1e-9's.
    """
    best = theirs(X, k, 1e-9, options.threads)().score(X)
    for digits in range(3, 10):
        tol = 10.0**-digits
        if theirs(X, k, tol, options.threads)().score(X) >= best - NEAR:
            break
    runs = {
        "scikit-learn": theirs(X, k, tol, options.threads),
        "vpem": ours(X, k, None, options.threads),
        "vpem, squarem": ours(X, k, "squarem", options.threads),
    }
    facts: dict[str, Any] = {"tol of scikit-learn": tol, "log-likelihood, scikit-learn": best}
    for who in ("vpem", "vpem, squarem"):
        facts[f"log-likelihood, {who}"] = float(runs[who]().score(X))
    timed = {who: call(run) for who, run in runs.items()}
    return compare(options, "whole fit", name, "scikit-learn", timed, **facts)


def measure(options: Options, pulsars: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield sums of every problem, all together, and times of whole fits of one agent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        tiny = options.size == "tiny"
        counted = []
        for problem in problems(pulsars, tiny):
            counted.append(sums(problem, 3 if tiny else 9))
            yield counted[-1]
        yield together(counted)
        whole: list[tuple[str, Any, int]] = [
            (f"{m:,} x {d}, K = {k}", mixture_rows(m, d, k), k)
            for m, d, k in POOLED["tiny" if tiny else "small"]
        ]
        if not tiny:
            for name in ("breast_cancer", "wine"):
                X = read_dataset(FOLDER / f"{name}.h5").X
                whole.append((name.replace("_", " "), X, 2))
        if pulsars is not None:
            rows = np.ascontiguousarray(np.loadtxt(pulsars, delimiter=",")[:, :-1])
            whole.append(("pulsars", rows, 2))
        for name, X, k in whole:
            yield pooled(name, X, k, options)


def main() -> None:
    """Print what was found of every case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerate", description=__doc__)
    parser.add_argument("--size", choices=("tiny", "small"), default="small")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--pulsars", type=Path, help="CSV of HTRU2; its last column is the class")
    given = parser.parse_args()
    options = Options(given.size, given.repeats, thread_count(given.threads))
    for result in measure(options, given.pulsars):
        print(f"{result['name']}: {result['case']}")
        for what, value in result["facts"].items():
            if not isinstance(value, list):
                print(f"  {what}: {value}")
        for who, taken in result["median"].items():
            print(f"  {who}: {1e3 * taken:.1f} ms ({result['times_as_fast'][who]:.2f})", flush=True)


if __name__ == "__main__":
    main()
