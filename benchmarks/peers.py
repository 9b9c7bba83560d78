"""Other libraries from the same start in the same run, seconds an EM iteration."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from .measure import Options, compare, iteration
from .problems import exact, fit, mixture_rows, network, one_block

CASES = {"A": (150_000, 100, 3), "B": (1_000_000, 8, 5), "C": (20_000, 30, 10)}
OF_TABLE = {"D": (120_000, 96, 4), "E": (800_000, 9, 6), "F": (25_000, 28, 9)}
"""What `benchmarks.table` compares."""

SHARE = {"tiny": 200, "small": 20, "medium": 5, "full": 1}
LEAST_ROWS = {"A": 600, "B": 2_000, "C": 4_000, "D": 6_000, "E": 4_000, "F": 4_000}
# With fewer, components collapse.
CHECKED = 4
"""Iterations after which log-likelihoods are compared."""

COUNTS = {"A": (2, 10), "B": (2, 22), "C": (5, 45), "D": (2, 10), "E": (2, 12), "F": (5, 45)}
SLOW = {"A": (1, 3), "B": (1, 3), "C": (2, 10), "D": (1, 3), "E": (1, 3), "F": (2, 10)}
"""Of scikit-learn."""


def rows_of(case: str, size: str) -> int:
    """Rows of a case at a size."""
    return max((CASES | OF_TABLE)[case][0] // SHARE[size], LEAST_ROWS[case])


Run = Callable[[int], float]


def sample_covariance(X: NDArray[Any]) -> NDArray[Any]:
    return np.cov(X.T.astype(np.float64), bias=True).astype(X.dtype)


def scikit_learn(X: NDArray[Any], k: int, threads: int, kind: str = "full") -> Run:
    """Return a run of n iterations: log-likelihood per sample at the last."""
    sample = sample_covariance(X)
    precision = np.linalg.inv(sample) if kind == "full" else 1 / np.diag(sample)

    def run(n_iter: int) -> float:
        peer = GaussianMixture(
            k, covariance_type=kind, tol=0, max_iter=n_iter, reg_covar=0, means_init=X[:k],
            weights_init=np.full(k, 1 / k, X.dtype), precisions_init=np.stack([precision] * k),
        )  # fmt: skip
        with threadpool_limits(threads), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return float(peer.fit(X).lower_bound_)

    return run


def daal(X: NDArray[Any], k: int, threads: int, n_iter: int) -> tuple[Run, int]:
    """Return a run of n iterations of daal4py, or raise ImportError.

    It stops once the log-likelihood changes by exactly 0: also how many of so many it does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import daal4py

    X = np.ascontiguousarray(X)
    weights = np.full((1, k), 1 / k, X.dtype)
    means, sample = X[:k].copy(), sample_covariance(X)
    fptype = "double" if X.dtype == np.float64 else "float"

    def compute(n_iter: int) -> tuple[float, int]:
        daal4py.daalinit(threads)
        peer = daal4py.em_gmm(
            nComponents=k, maxIterations=n_iter, accuracyThreshold=0.0, fptype=fptype
        )
        found = peer.compute(X, weights, means, [sample] * k)
        return float(found.goalFunction[0, 0]) / len(X), int(found.nIterations[0, 0])

    def run(n_iter: int) -> float:
        found, done = compute(n_iter)
        assert done == n_iter, f"daal4py stopped after {done} of {n_iter} iterations"
        return found

    return run, compute(n_iter)[1]


def check(runs: dict[str, Run], X: NDArray[Any], reference: Run) -> dict[str, float]:
    """Run each for a few iterations; all must find the same log-likelihood per sample."""
    found = {who: run(CHECKED) for who, run in runs.items()}
    wanted = reference(CHECKED)
    for who, value in found.items():
        if X.dtype == np.float64:
            assert abs(value - wanted) < 1e-9, (who, value, wanted)
        elif who.startswith("vpem"):
            assert abs(value - wanted) < 1e-4, (who, value, wanted)
    return found | {"vpem in float64": wanted}


def full(options: Options, case: str, data: str, dtype: Any, threads: int) -> dict[str, Any]:
    m, (_, d, k) = rows_of(case, options.size), (CASES | OF_TABLE)[case]
    wide = mixture_rows(m, d, k, {"overlapping": 0.3, "apart": 2.0}[data])
    X = wide.astype(dtype, copy=False)
    joined = one_block(d)
    runs = {
        "vpem": fit(X, joined, k, threads),
        "vpem, every weight": fit(X, joined, k, threads, every_weight=True),
        "scikit-learn": scikit_learn(X, k, threads),
    }
    absent, most = {}, COUNTS[case][1]
    if options.size == "tiny":  # a few rows have converged to the last digit soon
        most = 3
    try:
        runs["daal4py"], most = daal(X, k, threads, most)
    except ImportError as error:
        absent["daal4py"] = f"not installed ({error}); pip install scikit-learn-intelex"
    reference = fit(wide, joined, k, threads, every_weight=True)
    found = {} if options.once else check(runs, X, reference)
    timed = {}
    for who, run in runs.items():
        few, many = (SLOW if who == "scikit-learn" else COUNTS)[case]
        timed[who] = iteration(run, 1 if options.size == "tiny" else few, min(many, most))
    size = f"{case} {m:,} x {d}, K = {k}, {data}, {np.dtype(dtype)}, {threads} thread(s)"
    base = "scikit-learn" if absent else "daal4py"
    return compare(options, "one block", size, base, timed, absent, log_likelihood=found,
                   threads=threads, flops=2 * m * d * d * k)  # fmt: skip


def diagonal(options: Options, threads: int) -> dict[str, Any]:
    """One feature an agent against scikit-learn's diagonal covariances."""
    m, (_, d, k) = rows_of("A", options.size), CASES["A"]
    X = mixture_rows(m, d, k)
    alone = network(d, "geometric", mean_degree=min(31, d - 1))
    runs = {
        "vpem, exact sums": fit(X, exact(alone), k, threads),
        "scikit-learn diag": scikit_learn(X, k, threads, "diag"),
    }
    found = {} if options.once else check(runs, X, runs["vpem, exact sums"])
    # Consensus is not exact: the roots' own responsibilities are timed, not checked.
    runs[f"vpem, {alone.total.n_roots} roots' own"] = fit(X, alone, k, threads)
    timed = {
        who: iteration(run, 2, 6 if who.startswith("scikit") else 22) for who, run in runs.items()
    }
    size = f"{m:,} x {d}, K = {k}, {d} blocks of 1, {threads} thread(s)"
    return compare(options, "one feature an agent", size, "scikit-learn diag", timed,
                   log_likelihood=found, threads=threads)  # fmt: skip


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield one result a case, precision and number of threads; fewer of them at small sizes.

    Only where clusters are far apart are there weights to skip. There the log-likelihood in float32
    soon changes by exactly 0, where daal4py stops, so it is compared in float64.
    """
    whole = options.size in ("medium", "full")
    for case, data in (("A", "overlapping"), ("A", "apart"), ("B", "overlapping"),
                       ("C", "overlapping")):  # fmt: skip
        for dtype in (np.float64, np.float32) if whole and data != "apart" else (np.float64,):
            for threads in dict.fromkeys((1, options.threads)) if whole else (options.threads,):
                yield full(options, case, data, dtype, threads)
    yield diagonal(options, options.threads)
