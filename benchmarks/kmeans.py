"""k-means against others': ``python -m benchmarks.kmeans [--threads N] [--repeats N]``.

Lloyd's algorithm from the same rows until no row changes (or ``--iterations``), the rows at one
place and over workers, and a whole fit by `DistributedKMeans`, against the two algorithms of
scikit-learn and oneDAL's, where daal4py is installed; and k-means++ besides. In double precision
scikit-learn must find the same labels.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from vpem import DistributedKMeans, connect_workers, kmeans_rows, make_graph
from vpem._core.threads import thread_count
from vpem.network.partition import evenly

from .measure import Options, call, compare

__all__ = ["measure"]


@dataclass(frozen=True)
class Case:
    """Rows, features, clusters, numbers of workers, and precisions."""

    m: int
    d: int
    k: int
    workers: tuple[int, ...] = (1, 7)
    dtypes: tuple[Any, ...] = (np.float64, np.float32)


BIG = (Case(200_000, 10, 8), Case(100_000, 64, 20), Case(500_000, 4, 5), Case(50_000, 20, 200))
ODD = (
    Case(2_000, 5, 3, (1, 7), (np.float64,)),
    Case(569, 30, 2, (1, 7), (np.float64,)),
    Case(17_898, 8, 8, (1, 100, 1000), (np.float64,)),
    Case(10_000, 1_000, 10, (1, 7), (np.float32,)),
    Case(10_000, 2_000, 10, (1, 7), (np.float32,)),
)
"""Tiny and wide data, and many workers."""
CASES = {
    "tiny": (Case(500, 4, 3, (1, 7)),),
    "small": BIG + ODD,
    "medium": (*BIG, *ODD, Case(1_000_000, 10, 8)),
    "full": (*BIG, *ODD, Case(1_000_000, 10, 8), Case(100_000, 50, 200)),
}


def theirs(
    X: np.ndarray, start: Any, k: int, threads: int, most: int, algorithm: Any = "lloyd"
) -> Callable[[], KMeans]:
    """scikit-learn's run of ``most`` iterations at most."""

    def run() -> KMeans:
        made = KMeans(
            k, init=start, n_init=1, algorithm=algorithm, tol=0, max_iter=most, random_state=0
        )
        with threadpool_limits(threads):
            return made.fit(X)

    return run


def daal(X: np.ndarray, start: np.ndarray, k: int, threads: int, most: int) -> Callable[[], Any]:
    """Return a run of oneDAL from centres, or raise ImportError."""
    import daal4py

    kind = "double" if X.dtype == np.float64 else "float"

    def run() -> Any:
        daal4py.daalinit(threads)
        peer = daal4py.kmeans(k, most, accuracyThreshold=0.0, assignFlag=True, fptype=kind)
        return peer.compute(X, start)

    return run


def ours(
    X: np.ndarray, start: Any, k: int, threads: int, most: int, n_workers: int
) -> Callable[[], Any]:
    """Our run, data split by rows, at a server."""
    network = connect_workers(make_graph("star", n_workers))
    workers = evenly(len(X), n_workers)

    def run() -> Any:
        return kmeans_rows(
            X, workers, network, n_clusters=k, init=start, max_iter=most, n_threads=threads,
            dtype=X.dtype.type,
        )  # fmt: skip

    return run


def estimator(
    X: np.ndarray, start: Any, k: int, threads: int, most: int, n_workers: int
) -> Callable[[], DistributedKMeans]:
    """Our run with scikit-learn's interface: workers, graph and checks are made anew."""
    made = DistributedKMeans(
        k, workers=n_workers, init=start, max_iter=most, random_state=0, n_threads=threads
    )
    return lambda: made.fit(X)


def measure(options: Options, most: int = 300) -> Iterator[dict[str, Any]]:
    """Yield a comparison for every case, precision and start."""
    warnings.simplefilter("ignore")  # where the iterations run out, for both
    for case in CASES[options.size]:
        m, d, k = case.m, case.d, case.k
        rng = np.random.default_rng(0)
        centres = 2 * rng.normal(size=(k, d)) / np.sqrt(d)
        wide = centres[rng.integers(k, size=m)] + rng.normal(size=(m, d))
        rows = rng.choice(m, k, replace=False)
        for dtype in case.dtypes:
            X = wide.astype(dtype)
            for start in ("rows", "k-means++"):
                given, same = (rows, X[rows]) if start == "rows" else (start, start)
                limits = (k, options.threads, most)
                runs: dict[str, Callable[[], Any]] = {"scikit-learn": theirs(X, same, *limits)}
                if start == "rows":
                    runs["scikit-learn, elkan"] = theirs(X, same, *limits, "elkan")
                    with suppress(ImportError):
                        runs["daal4py"] = daal(X, same, *limits)
                for n in case.workers:
                    runs[f"vpem, {n} worker(s)"] = ours(X, given, *limits, n)
                last = case.workers[-1]
                runs[f"DistributedKMeans, {last} worker(s)"] = estimator(X, same, *limits, last)
                facts = {}
                if start == "rows":
                    found, wanted = runs[f"vpem, {last} worker(s)"](), runs["scikit-learn"]()
                    facts = {
                        "labels_other": int((found.labels != wanted.labels_).sum()),
                        "inertia_ratio_less_1": found.inertia / wanted.inertia_ - 1,
                        "iterations": (found.n_iter, wanted.n_iter_),
                    }
                size = f"{m:,} x {d}, K = {k}, {np.dtype(dtype)}, from {start}"
                timed = {who: call(run) for who, run in runs.items()}
                yield compare(options, "k-means", size, "scikit-learn", timed, **facts)


def main() -> None:
    """Print a line a comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kmeans", description=__doc__)
    parser.add_argument("--size", choices=tuple(CASES), default="small")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--iterations", type=int, default=300, help="at most")
    given = parser.parse_args()
    options = Options(given.size, given.repeats, thread_count(given.threads))
    print(f"{options.threads} thread(s), medians of {options.repeats} interleaved runs")
    for result in measure(options, given.iterations):
        times = ", ".join(
            f"{who} {1e3 * taken:.1f} ms ({result['times_as_fast'][who]:.2f})"
            for who, taken in result["median"].items()
        )
        print(f"{result['case']}: {times}  {result['facts'] or ''}", flush=True)


if __name__ == "__main__":
    main()
