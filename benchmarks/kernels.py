"""Each compiled kernel against its NumPy twin and against the arithmetic limit of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.twins import codecs, mixture, models
from vpem import make_graph, mixing_matrix
from vpem._core import balls, cholesky, consensus, covariances, families, mahalanobis, moments
from vpem._core import normalise as normalising
from vpem._core import sweep as sweeping
from vpem._core.threads import one_blas_thread

from .measure import Options, call, compare, dgemm
from .peers import CASES, rows_of

SIZES = {  # rows, features, blocks, components, agents
    "tiny": (300, 8, 2, 2, 20),
    "small": (5_000, 32, 4, 4, 100),
    "medium": (50_000, 64, 4, 4, 1_000),
    "full": (200_000, 64, 4, 4, 10_000),
}


@dataclass(frozen=True)
class Case:
    """A call of a kernel: its module and name, what it writes to, and its useful flops."""

    module: Any
    name: str
    size: str
    written: tuple[int, ...]
    arguments: list[Any]
    flops: float = 0.0  # 0: no matrix product, so no limit to compare with

    def run(self, home: Any) -> list[Any]:
        """Call it there on fresh outputs, which are returned."""
        fresh = [a.copy() if i in self.written else a for i, a in enumerate(self.arguments)]
        with one_blas_thread():  # as in a fit
            getattr(home, self.name)(*fresh)
        return [fresh[i] for i in self.written]

    @property
    def twin(self) -> Any:
        """Where the twin is."""
        return {balls: codecs, families: models}.get(self.module, mixture)


def sweep_case(
    m: int, d: int, n_blocks: int, k: int, threads: int, dtype: Any = np.float64, own: bool = False
) -> Case:
    """One call of `sweep`: exact sums, or (``own``) a root a block with its own sum."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((m, d)).astype(dtype)
    means = rng.standard_normal((k, d)).astype(dtype)
    offsets = np.linspace(0, d, n_blocks + 1).astype(np.intp)
    widths = np.diff(offsets)
    parts = [np.stack([np.tril(rng.standard_normal((w, w)) / w) + np.eye(w) for _ in range(k)])
             for w in widths]  # fmt: skip
    inverse = np.concatenate([part.ravel() for part in parts]).astype(dtype)
    mix = np.ones((1, n_blocks))
    if own:
        mix = np.ones((n_blocks, n_blocks)) + 1e-6 * rng.standard_normal((n_blocks, n_blocks))
    arguments = [
        rows, np.empty(0), offsets, means, inverse, False, np.zeros((k, n_blocks), dtype), mix,
        np.full((len(mix), k), -np.log(k)), np.zeros((len(mix), k)), np.zeros((k, d)),
        np.zeros(inverse.size), 0.0, threads,
    ]  # fmt: skip
    size = f"{m:,} x {d}, {n_blocks} blocks, K = {k}, {np.dtype(dtype)}"
    flops = 2.0 * m * k * int((widths**2).sum())
    return Case(sweeping, "sweep", size + ", roots' own" * own, (9, 10, 11), arguments, flops)


def cases(shape: tuple[int, ...], threads: int) -> Iterator[Case]:
    """Yield one call of every kernel at a size (rows, features, blocks, components, agents)."""
    m, d, n_blocks, k, n_agents = shape
    rng = np.random.default_rng(0)
    rows, means = rng.standard_normal((m, d)), rng.standard_normal((k, d))
    offsets = np.linspace(0, d, n_blocks + 1).astype(np.intp)
    width = d // n_blocks
    roots = rng.standard_normal((n_blocks, k, width, width)) / width
    full = (roots @ roots.swapaxes(2, 3) + np.eye(width)).ravel()
    white, log_dets = np.empty_like(full), np.zeros((k, n_blocks))
    failed = np.zeros((k, n_blocks), dtype=np.uint8)
    mixture.cholesky_blocks(full, offsets, k, white, log_dets, failed)
    terms, sums = np.empty((n_blocks, m, k)), 2 * rng.standard_normal((1, m, k))
    shares, counts = rng.dirichlet(np.ones(k), size=(1, m)), np.full((1, k), m / k)
    logs, first, second = np.log(counts / m), np.zeros((k, d)), np.zeros_like(full)
    size = f"{m:,} x {d}, {n_blocks} blocks, K = {k}, float64"
    useful = float(m * k * n_blocks * width**2)
    yield Case(cholesky, "cholesky_blocks", size, (3, 4, 5),
               [full, offsets, k, white, log_dets, failed])  # fmt: skip
    yield Case(mahalanobis, "mahalanobis_full", size, (5,),
               [rows, offsets, means, white, log_dets, terms, threads], useful)  # fmt: skip
    yield Case(mahalanobis, "mahalanobis_diag", size, (5,),
               [rows, offsets, means, means**2 + 1, log_dets, terms, threads])  # fmt: skip
    yield Case(normalising, "normalise", size, (2, 3),
               [sums, logs, np.empty_like(sums), np.empty((1, m)), threads])  # fmt: skip
    yield Case(moments, "moments_full", size, (4, 5),
               [rows, shares, offsets, means, first, second, threads], useful)  # fmt: skip
    yield Case(moments, "moments_diag", size, (4, 5),
               [rows, shares, offsets, means, first, first, threads])  # fmt: skip
    floors = np.full(means.shape[1], 1e-6)
    yield Case(covariances, "covariances_full", size, (5,),
               [means, full * m, counts, offsets, floors, second])  # fmt: skip
    yield Case(covariances, "covariances_diag", size, (6,),
               [means, means**2 + m, counts, offsets, floors, False, first])  # fmt: skip
    graph = make_graph("geometric", n_agents, seed=0, mean_degree=14)
    mixing, states = mixing_matrix(graph), rng.standard_normal((n_agents, 200))
    pointers, indices = mixing.indptr.astype(np.int32), mixing.indices.astype(np.int32)
    yield Case(consensus, "consensus_rounds", f"{n_agents:,} agents, 200 values, 20 rounds", (3,),
               [pointers, indices, mixing.data, states, np.ones(20), threads])  # fmt: skip
    nothing = np.zeros(n_agents, dtype=np.int32)
    yield Case(balls, "ball", f"{n_agents:,} agents, 3 hops", (4, 6),
               [*graph.adjacency, 0, 3, nothing, 1, nothing])  # fmt: skip
    yield Case(balls, "hops_from", f"{n_agents:,} agents", (3, 4),
               [*graph.adjacency, 0, nothing, nothing])  # fmt: skip


def family_cases(m: int, n: int, k: int, threads: int) -> Iterator[Case]:
    """Yield terms and moments of categories of four levels, of counts, and of a gamma."""
    rng = np.random.default_rng(0)
    offsets, firsts = np.array([0, n]), 4 * np.arange(n + 1)
    shares, terms = rng.dirichlet(np.ones(k), (1, m)), np.zeros((1, m, k))
    rows = rng.integers(0, 4, (m, n)).astype(np.float64)
    table = np.concatenate([rng.random((4 * n, k)), np.zeros((1, k)), np.ones((1, k))])
    size = f"{m:,} x {n}, K = {k}, float64"
    yield Case(families, "cell_terms", f"{size}, categories", (4,),
               [rows, offsets, firsts, table, terms, threads])  # fmt: skip
    yield Case(families, "cell_moments", f"{size}, categories", (4,),
               [rows, shares, offsets, firsts, np.zeros((4 * n, k)), threads])  # fmt: skip
    counts, positive = rng.poisson(4, (m, n)).astype(np.float64), rng.gamma(2, 1, (m, n))
    for word, kind, values in (("Poisson", 1, counts), ("gamma", 2, positive)):
        factors = rng.random((3 if kind == 2 else 2, n, k))
        yield Case(families, "product_terms", f"{size}, {word}", (4,),
                   [values, offsets, kind, factors, terms, threads])  # fmt: skip
        yield Case(families, "product_moments", f"{size}, {word}", (4,),
                   [values, shares, offsets, kind, np.zeros_like(factors), threads])  # fmt: skip


FAMILY_SIZES = {
    "tiny": ((300, 4, 2),),
    "small": ((20_000, 20, 5),),
    "medium": ((20_000, 20, 5), (200_000, 5, 10)),
    "full": ((20_000, 20, 5), (200_000, 5, 10)),
}
"""Rows, features and components of the kernels of families."""


def sweeps(options: Options) -> Iterator[Case]:
    """Yield the sweep on the cases of `peers`, and on 100 agents as blocks of 25 and of 1."""
    for case, (_, d, k) in CASES.items():
        for dtype in (np.float64, np.float32):
            yield sweep_case(rows_of(case, options.size), d, 1, k, options.threads, dtype)
    m = rows_of("A", options.size)
    for n_blocks in (4, 100):
        for own in (False, True):
            yield sweep_case(m, 100, n_blocks, 3, options.threads, own=own)


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield one result a kernel: times, and the fraction of the limit reached."""
    own = [
        case for size in FAMILY_SIZES[options.size] for case in family_cases(*size, options.threads)
    ]
    for case in (*cases(SIZES[options.size], options.threads), *own, *sweeps(options)):
        if not options.once:
            single = case.arguments[0].dtype == np.float32
            for ours, twin in zip(case.run(case.module), case.run(case.twin), strict=True):
                close = (1e-3, 1e-4) if single else (1e-8, 1e-10)
                np.testing.assert_allclose(
                    ours, twin, rtol=close[0], atol=close[1] * np.abs(twin).max()
                )

        def seconds(home: Any, case: Case = case) -> Callable[[], float]:
            return call(lambda: case.run(home))

        timed = {"kernel": seconds(case.module), "twin": seconds(case.twin)}
        if case.flops:
            timed["dgemm a flop"] = dgemm(case.arguments[0].dtype)
        found = compare(options, case.name, case.size, "twin", timed, threads=options.threads)
        if case.flops and not options.once:
            # In each round: the time the useful flops take at the limit, over the time taken.
            pairs = zip(found["seconds"]["dgemm a flop"], found["seconds"]["kernel"], strict=True)
            reached = [case.flops * flop / options.threads / own for flop, own in pairs]
            found["facts"]["of the limit"] = float(np.median(reached))
            found["facts"]["Gflop/s on one thread, dgemm"] = 1e-9 / found["median"].pop(
                "dgemm a flop"
            )
            found["times_as_fast"].pop("dgemm a flop")
        yield found
