"""Fits in fewer sums: ``python -m benchmarks.accelerate [--pulsars FILE] [--size small]``.

How many sums runs take until they are within 1e-6 nats per sample of their own end, and how far
that lies from where EM ends, over data, hubs, covariances and nine starts.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vpem import VpemWarning, connect, fit_vpem, make_graph, read_dataset
from vpem.network.partition import contiguous

from .measure import Options
from .problems import mixture_rows

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


def measure(options: Options, pulsars: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield sums of every problem, and of all together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        tiny = options.size == "tiny"
        counted = []
        for problem in problems(pulsars, tiny):
            counted.append(sums(problem, 3 if tiny else 9))
            yield counted[-1]
        yield together(counted)


def main() -> None:
    """Print what was found of every case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerate", description=__doc__)
    parser.add_argument("--size", choices=("tiny", "small"), default="small")
    parser.add_argument("--pulsars", type=Path, help="CSV of HTRU2; its last column is the class")
    given = parser.parse_args()
    for result in measure(Options(given.size), given.pulsars):
        print(f"{result['name']}: {result['case']}")
        for what, value in result["facts"].items():
            if not isinstance(value, list):
                print(f"  {what}: {value}", flush=True)


if __name__ == "__main__":
    main()
