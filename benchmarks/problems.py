"""Data and starts that all contenders share, and vpem's own iteration."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import NotConvergedWarning, VpemWarning, connect, fit_vpem, make_graph
from vpem._core.threads import one_blas_thread
from vpem.network.partition import contiguous
from vpem.steps import em
from vpem.sums.connect import Network
from vpem.sums.server import ServerSum
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling


def quietly(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call without the warnings that a benchmark provokes on purpose; tables say what is so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return function(*args, **options)


@lru_cache(maxsize=2)
def mixture_rows(m: int, d: int, k: int, apart: float = 0.3) -> NDArray[Any]:
    """Rows of ``k`` correlated Gaussian clusters in turn, so that the first k rows are one of each.

    Means are ``apart`` standard deviations apart a feature (0.3: they overlap; 2: far apart).
    """
    rng = np.random.default_rng(0)
    means = apart * rng.standard_normal((k, d))
    rows = rng.standard_normal((m, d))
    for c in range(k):
        shape = np.eye(d) + 0.5 * rng.standard_normal((d, d)) / np.sqrt(d)
        rows[c::k] = rows[c::k] @ shape.T + means[c]
    return rows


def network(d: int, topology: str = "star", n_rounds: int = 100, hops: int = 0, **how: Any) -> Any:
    """One feature an agent on a graph; warnings about too few rounds are the benchmark's wish."""
    graph = quietly(make_graph, topology, d, seed=0, **how)
    rounds: dict[str, Any] = {"n_rounds": n_rounds, "acceleration": "none"}
    if graph.has_server:
        rounds = {}
    return quietly(connect, graph, contiguous(d, d), hops=hops, **rounds)


def one_block(d: int) -> Network:
    """One agent with all features: ordinary EM."""
    return connect(make_graph("star", 1), contiguous(d, 1), hops=0)


def exact(joined: Network) -> Network:
    """Return the same hubs with exact sums."""
    return replace(joined, total=ServerSum(len(joined.hubs)), n_rounds=None, consensus_error=0.0)


def fit(
    X: NDArray[Any], joined: Network, k: int, threads: int, every_weight: bool = False
) -> Callable[[int], float]:
    """Return a run of n iterations from the first k rows: log-likelihood per sample at the last."""

    def run(n_iter: int) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)
            found = fit_vpem(
                X, joined, n_components=k, init=list(range(k)), tol=0.0, max_iter=n_iter,
                reg_covar=0.0, n_threads=threads, dtype=X.dtype, every_weight=every_weight,
            )  # fmt: skip
        assert found.n_iter == n_iter, "the fit stopped early"
        return float(found.history[-1].mean() / len(X))

    return run


def sweep_once(X: Any, joined: Network, k: int, threads: int) -> Callable[[], Any]:
    """Return one iteration of `vpem.steps.em.fit`: factors, E-step with statistics, update."""
    blocks = joined.blocks
    terms = FeatureTerms(
        X, blocks, "full", scaling=Scaling.none(blocks.n_features), n_threads=threads,
        dtype=X.dtype, skip_negligible=False,
    )  # fmt: skip
    with one_blas_thread():
        terms._sample_covariance = np.concatenate([np.eye(w).ravel() for w in blocks.widths])
        start = terms.start(terms.at_rows(np.arange(k)))

    def run() -> Any:
        with one_blas_thread():
            statistics = terms.empty(start.means, joined.total.n_roots)
            em.expect(terms, joined.total, start, terms.prepare(start), statistics)
            return terms.update(statistics)

    return run
