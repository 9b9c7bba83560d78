"""Whole fits of a fixed number of iterations, beside scikit-learn from the same start."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from vpem import NotConvergedWarning, connect, fit_vpem, make_graph
from vpem.partition import contiguous
from vpem.simulate import simulate

from .measure import measured

__all__ = ["measure"]

SIZES = {  # rows, features, components, iterations; rows of the network
    "small": (5_000, 12, 4, 20, 500),
    "medium": (20_000, 24, 8, 10, 1_000),
    "large": (200_000, 24, 8, 10, 10_000),
}
REG_COVAR = 1e-6


def fit(X: NDArray[Any], network: Any, k: int, n_iter: int, threads: int) -> Any:
    """Fit from the first K rows and stop before convergence, as is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit_vpem(X, network, n_components=k, init=list(range(k)), tol=0.0, max_iter=n_iter,
                        reg_covar=REG_COVAR, n_threads=threads)  # fmt: skip


def peer_fit(X: NDArray[Any], kind: str, k: int, n_iter: int) -> GaussianMixture:
    """Let scikit-learn do the same from the same start."""
    sample = np.cov(X.T, bias=True) + REG_COVAR * np.eye(X.shape[1])
    precision = np.linalg.inv(sample) if kind == "full" else 1 / np.diag(sample)
    peer = GaussianMixture(
        k, covariance_type=kind, tol=0, max_iter=n_iter, reg_covar=REG_COVAR, means_init=X[:k],
        weights_init=np.full(k, 1 / k), precisions_init=np.stack([precision] * k),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return peer.fit(X)


def one_thread(fit: Callable[[], Any]) -> Any:
    """Keep BLAS and OpenMP to one thread, often faster for scikit-learn on few features."""
    with threadpool_limits(1):
        return fit()


def exact(profile: str, repeats: int, threads: int, one_block: bool) -> dict[str, Any]:
    """Time the exact sum: one block is full EM, one feature an agent is diagonal EM."""
    m, d, k, n_iter, _ = SIZES[profile]
    X = simulate(m, d, k, overlap=0.1, seed=0)[0].X
    agents, kind = (1, "full") if one_block else (d, "diag")
    network = connect(make_graph("star", agents), contiguous(d, agents), hops=0)
    ours = fit(X, network, k, n_iter, threads).history[-1].mean() / m
    theirs = peer_fit(X, kind, k, n_iter).lower_bound_
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, err_msg="the fits are not the same")
    contenders = {
        f"vpem, {n} thread{'s' * (n > 1)}": lambda n=n: fit(X, network, k, n_iter, n)
        for n in dict.fromkeys((1, threads))
    }
    contenders |= {
        "scikit-learn": lambda: peer_fit(X, kind, k, n_iter),
        "scikit-learn, 1 thread": lambda: one_thread(lambda: peer_fit(X, kind, k, n_iter)),
    }
    name = "one block" if one_block else "one feature an agent"
    size = f"{m:,} x {d}, K = {k}, {n_iter} iterations"
    result = measured(name, size, "scikit-learn", contenders, repeats)
    return result | {"log_likelihood": {"vpem": float(ours), "scikit-learn": float(theirs)}}


def network(profile: str, repeats: int, threads: int) -> dict[str, Any]:
    """Time 100 agents on a geometric graph: rounds one by one, and as their operator."""
    m, n_agents, k, n_iter = SIZES[profile][-1], 100, 3, 5
    X = simulate(m, n_agents, k, overlap=0.1, seed=0)[0].X
    graph = make_graph("geometric", n_agents, seed=0, mean_degree=10)

    def run(path: str) -> Any:
        agents = contiguous(n_agents, n_agents)
        joined = connect(graph, agents, hops=1, n_rounds=400, path=path, n_threads=threads)
        return fit(X, joined, k, n_iter, threads)

    np.testing.assert_allclose(run("operator").history, run("rounds").history, rtol=1e-10)
    size = f"{m:,} x {n_agents}, K = {k}, 400 rounds, {n_iter} iterations"
    ways = {path: lambda path=path: run(path) for path in ("operator", "rounds")}
    return measured("100 agents, geometric", size, "rounds", ways, repeats)


def measure(profile: str, repeats: int, threads: int) -> Iterator[dict[str, Any]]:
    """Yield one result a kind of fit."""
    yield exact(profile, repeats, threads, one_block=True)
    yield exact(profile, repeats, threads, one_block=False)
    yield network(profile, repeats, threads)
