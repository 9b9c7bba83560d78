"""Each compiled kernel against its NumPy twin, on the same arrays, after checking they agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vpem import make_graph, mixing_matrix
from vpem._core import (
    balls,
    cholesky,
    consensus,
    covariances,
    mahalanobis,
    moments,
    reference,
    reference_graph,
)
from vpem._core import normalise as normalising
from vpem._core import sweep as sweeping
from vpem.threads import one_blas_thread

from .measure import measured

__all__ = ["SIZES", "measure"]

SIZES = {  # rows, features, blocks, components, agents
    "small": (5_000, 16, 4, 4, 100),
    "medium": (100_000, 32, 8, 8, 1_000),
    "large": (500_000, 32, 8, 8, 10_000),
}


def cases(profile: str, threads: int, seed: int = 0) -> Iterator[tuple[Any, str, str, str, list]]:
    """Yield module, name, size, places of the arguments written to, and the arguments."""
    m, d, n_blocks, k, n_agents = SIZES[profile]
    rng = np.random.default_rng(seed)
    rows, means = rng.standard_normal((m, d)), rng.standard_normal((k, d))
    offsets = np.linspace(0, d, n_blocks + 1).astype(np.intp)
    width = d // n_blocks
    roots = rng.standard_normal((n_blocks, k, width, width))
    full = (roots @ roots.swapaxes(2, 3) + np.eye(width)).ravel()
    white, log_dets = np.empty_like(full), np.zeros((k, n_blocks))
    failed = np.zeros((k, n_blocks), dtype=np.uint8)
    reference.cholesky_blocks(full, offsets, k, white, log_dets, failed)
    terms, sums = np.empty((n_blocks, m, k)), 2 * rng.standard_normal((1, m, k))
    shares, counts = rng.dirichlet(np.ones(k), size=(1, m)), np.full((1, k), m / k)
    logs, first, second = np.log(counts / m), np.zeros((k, d)), np.zeros_like(full)
    size = f"{m:,} x {d}, {n_blocks} blocks, K = {k}"
    yield (cholesky, "cholesky_blocks", size, "345",
           [full, offsets, k, white, log_dets, failed])  # fmt: skip
    yield (mahalanobis, "mahalanobis_full", size, "5",
           [rows, offsets, means, white, log_dets, terms, threads])  # fmt: skip
    yield (mahalanobis, "mahalanobis_diag", size, "5",
           [rows, offsets, means, means**2 + 1, log_dets, terms, threads])  # fmt: skip
    yield (normalising, "normalise", size, "23",
           [sums, logs, np.empty_like(sums), np.empty((1, m)), threads])  # fmt: skip
    yield (moments, "moments_full", size, "45",
           [rows, shares, offsets, means, first, second, threads])  # fmt: skip
    yield (moments, "moments_diag", size, "45",
           [rows, shares, offsets, means, first, first, threads])  # fmt: skip
    yield (covariances, "covariances_full", size, "5",
           [means, full * m, counts, offsets, 1e-6, second])  # fmt: skip
    yield (covariances, "covariances_diag", size, "6",
           [means, means**2 + m, counts, offsets, 1e-6, False, first])  # fmt: skip
    no_weights, exact = np.empty(0), np.ones((1, n_blocks))
    yield (sweeping, "sweep", size, "9ab",
           [rows, no_weights, offsets, means, white, False, log_dets, exact, logs, 0 * counts,
            first, second, 0.0, threads])  # fmt: skip
    graph = make_graph("geometric", n_agents, seed=seed, mean_degree=10)
    mixing, states = mixing_matrix(graph), rng.standard_normal((n_agents, 200))
    pointers, indices = mixing.indptr.astype(np.int32), mixing.indices.astype(np.int32)
    yield (consensus, "consensus_rounds", f"{n_agents:,} agents, 200 values, 20 rounds", "3",
           [pointers, indices, mixing.data, states, 20, threads])  # fmt: skip
    nothing = np.zeros(n_agents, dtype=np.int32)
    yield (balls, "ball", f"{n_agents:,} agents, 3 hops", "46",
           [*graph.adjacency, 0, 3, nothing, 1, nothing])  # fmt: skip


def measure(profile: str, repeats: int, threads: int) -> Iterator[dict[str, Any]]:
    """Yield one result a kernel."""
    for module, name, size, places, arguments in cases(profile, threads):
        written = [int(place, 16) for place in places]

        def call(home: Any, name=name, written=written, arguments=arguments) -> list[Any]:
            fresh = [a.copy() if i in written else a for i, a in enumerate(arguments)]
            if home in (reference, reference_graph):
                getattr(home, name)(*fresh)
            else:
                with one_blas_thread():  # as in a fit
                    getattr(home, name)(*fresh)
            return [fresh[i] for i in written]

        twins = reference_graph if module is balls else reference
        for ours, twin in zip(call(module), call(twins), strict=True):
            np.testing.assert_allclose(ours, twin, rtol=1e-8, atol=1e-10 * np.abs(twin).max())
        both = {"kernel": lambda: call(module), "twin": lambda: call(twins)}  # noqa: B023
        yield measured(name, size, "twin", both, repeats)
