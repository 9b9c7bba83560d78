"""k-means against others': ``python -m benchmarks kmeans``.

Lloyd's algorithm from the same rows until no row changes, the rows at one
place and over workers, and a whole fit by `DistributedKMeans`, against the two algorithms of
scikit-learn and oneDAL's, where daal4py is installed; and k-means++ besides. In double precision
scikit-learn must find the same labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from vpem import DistributedKMeans, connect_workers, kmeans_rows, make_graph
from vpem.network.partition import evenly

from .measure import Options, call, compare


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


STARTS = ("rows", "k-means++")


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


def measure(
    options: Options, most: int = 300, cases: Sequence[Case] = (), starts: Sequence[str] = STARTS
) -> Iterator[dict[str, Any]]:
    """Yield a comparison for every case, precision and start."""
    warnings.simplefilter("ignore")  # where the iterations run out, for both
    for case in cases or CASES[options.size]:
        m, d, k = case.m, case.d, case.k
        rng = np.random.default_rng(0)
        centres = 2 * rng.normal(size=(k, d)) / np.sqrt(d)
        wide = centres[rng.integers(k, size=m)] + rng.normal(size=(m, d))
        rows = rng.choice(m, k, replace=False)
        for dtype in case.dtypes:
            X = wide.astype(dtype)
            for start in starts:
                given, same = (rows, X[rows]) if start == "rows" else (start, start)
                limits = (k, options.threads, most)
                absent: dict[str, str] = {}
                runs: dict[str, Callable[[], Any]] = {"scikit-learn": theirs(X, same, *limits)}
                if start == "rows":
                    runs["scikit-learn, elkan"] = theirs(X, same, *limits, "elkan")
                    try:
                        runs["daal4py"] = daal(X, same, *limits)
                    except ImportError as error:
                        absent["daal4py"] = f"not installed ({error})"
                for n in case.workers:
                    runs[f"vpem, {n} worker(s)"] = ours(X, given, *limits, n)
                last = case.workers[-1]
                runs[f"vpem, estimator, {last} worker(s)"] = estimator(X, same, *limits, last)
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
                yield compare(options, "k-means", size, "scikit-learn", timed, absent, **facts)
