"""Threads of the kernels: none for little work, and never seen in what comes out."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from vpem._core import consensus, langevin, latents, mahalanobis, moments, proposals
from vpem._core import missing as gaps
from vpem._core import normalise as normalising
from vpem._core import sweep as sweeping
from vpem._core.threads import one_blas_thread
from vpem.network.codecs import parse_codec
from vpem.network.graph import make_graph
from vpem.network.mixing import mixing_matrix

from .tables import each
from .test_kernels import HALF, Case, marginal_full, marginal_moments_full

ROOT = Path(__file__).resolve().parents[1]
TASKS = Path("/proc/self/task")
"""Threads of this process, where the system lists them."""

LITTLE, MUCH = 40, 40_000
K, WIDTHS = 3, (3, 5)
OFFSETS = np.concatenate([[0], np.cumsum(WIDTHS)]).astype(np.intp)
D, SQUARES = int(OFFSETS[-1]), sum(width**2 for width in WIDTHS)


def terms_full(m, rng, threads):
    rows, means = rng.normal(size=(m, D)), rng.normal(size=(K, D))
    white, log_dets = rng.normal(size=K * SQUARES), rng.normal(size=(K, 2))
    out = np.empty((2, m, K))
    mahalanobis.mahalanobis_full(rows, OFFSETS, means, white, log_dets, out, threads)
    return (out,)


def terms_diag(m, rng, threads):
    rows, means = rng.normal(size=(m, D)), rng.normal(size=(K, D))
    out = np.empty((2, m, K))
    mahalanobis.mahalanobis_diag(rows, OFFSETS, means, means**2, np.ones((K, 2)), out, threads)
    return (out,)


def softened(m, rng, threads):
    sums, logs = rng.normal(size=(2, m, K)), rng.normal(size=(2, K))
    out = np.empty_like(sums), np.empty((2, m))
    normalising.normalise(sums, logs, *out, threads)
    return out


def moments_full(m, rng, threads):
    rows, weights = rng.normal(size=(m, D)), rng.uniform(size=(2, m, K))
    out = np.zeros((K, D)), np.zeros(K * SQUARES)
    moments.moments_full(rows, weights, OFFSETS, rng.normal(size=(K, D)), *out, threads)
    return out


def moments_diag(m, rng, threads):
    rows, weights = rng.normal(size=(m, D)), rng.uniform(size=(2, m, K))
    out = np.zeros((K, D)), np.zeros((K, D))
    moments.moments_diag(rows, weights, OFFSETS, rng.normal(size=(K, D)), *out, threads)
    return out


def marginal(m, rng, threads):
    case, found = Case(HALF, m, WIDTHS, K, False, True, False, False), []
    for make in (marginal_full, marginal_moments_full):
        given, out = make(case)
        getattr(gaps, make.__name__)(**given, **out, n_threads=threads)
        found += out.values()
    return found


def marginal_diag(m, rng, threads):
    rows, observed = rng.normal(size=(m, D)), rng.integers(2, size=(m, D), dtype=np.uint8)
    means, spread = rng.normal(size=(2, K, D))
    terms, out = np.empty((2, m, K)), [np.zeros((K, D)) for _ in range(3)]
    gaps.marginal_diag(rows, observed, OFFSETS, means, spread**2, spread, terms, threads)
    weights = rng.uniform(size=(2, m, K))
    gaps.marginal_moments_diag(rows, observed, weights, OFFSETS, means, *out, threads)
    return terms, *out


def rounds(m, rng, threads):
    mixing = mixing_matrix(make_graph("cycle", 10))
    matrix = (mixing.indptr.astype(np.int32), mixing.indices.astype(np.int32), mixing.data)
    states = rng.normal(size=(10, m))
    consensus.consensus_rounds(*matrix, states, np.ones(20), threads)
    return (states,)


def chains(m, rng, threads):
    n, q = m // 10, 2
    squares = np.tile(np.eye(q), (n, 1, 1))
    law = latents.Lines(np.zeros((n, q)), np.eye(q), rng.normal(size=(n, q)), squares, 1.0)
    keys = rng.integers(2**63, size=(2, 6, n), dtype=np.uint64)
    moved, walked = rng.normal(size=(2, 2, n, q))
    faults, accepted = np.zeros((2, n), np.uint8), np.zeros(n, np.int64)
    langevin.langevin(law, squares, *keys, 0.01, 7, moved, faults, threads)
    proposals.propose(
        law, 0, 1, squares, np.zeros((n, q)), np.ones((n, q)), np.zeros(n), *keys, 0.0, 0.4,
        walked, np.zeros((n, 2 * (1 + q))), accepted, threads,
    )  # fmt: skip
    return moved, walked, accepted


def codec(name):
    def sent(m, rng, threads):
        coder, values = parse_codec(name), rng.normal(size=(20, m))
        keys = np.arange(20, dtype=np.uint64)
        packed = coder.pack(values, keys, threads)
        through, _ = coder.transmit(values, keys, threads)
        return packed, coder.unpack(packed, m, threads), through

    return sent


CODECS = ("qsgd:8bits", "natural:12bits", "topk:0.1", "float32")
CALLS = {
    call.__name__: call
    for call in (
        terms_full, terms_diag, softened, moments_full, moments_diag, marginal, marginal_diag,
        rounds, chains,
    )
} | {name: codec(name) for name in CODECS}  # fmt: skip


def swept(m, rng, threads):
    out = np.zeros((1, K)), np.zeros((K, D)), np.zeros((K, D))
    means = rng.normal(size=(K, D))
    return sweeping.sweep(
        rng.normal(size=(m, D)), np.empty(0), OFFSETS, means, (means**2).ravel(), True,
        np.zeros((K, 2)), np.ones((1, 2)), np.zeros((1, K)), *out[:2], out[2].ravel(), 0.0, threads,
    )  # fmt: skip


@each("name", CALLS)
def test_any_number_of_threads_gives_the_same_to_the_last_bit(name):
    with one_blas_thread():
        one, *more = (CALLS[name](MUCH, np.random.default_rng(0), n) for n in (1, 2, 3))
    assert all(np.isfinite(part).all() for part in one)
    for found in more:
        for ours, wanted in zip(found, one, strict=True):
            np.testing.assert_array_equal(ours, wanted)


def started():
    """Threads of the process after little work of each kernel in turn, and then after much."""
    counts = []
    for m in (LITTLE, MUCH):
        for call in (*CALLS.values(), swept):
            call(m, np.random.default_rng(0), 3)
            counts.append(len(os.listdir(TASKS)) if TASKS.exists() else 0)
    return counts


def test_little_work_starts_no_thread():
    words = "from tests.test_shares import started; print(*started())"
    printed = subprocess.check_output([sys.executable, "-c", words], cwd=ROOT, text=True)
    counts = [int(word) for word in printed.split()]
    assert len(set(counts[: len(counts) // 2])) == 1
    built = Path(sweeping.__file__).read_bytes()
    if TASKS.exists() and (b"GOMP_" in built or b"__kmpc_fork_call" in built):
        assert max(counts) == counts[0] + 2
