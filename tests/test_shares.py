"""Threads of the kernels: none for little work, and never seen in what comes out."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from vpem._core import langevin, latents, proposals
from vpem._core import sweep as sweeping
from vpem._core.threads import one_blas_thread
from vpem.network.codecs import parse_codec

from .tables import each
from .test_kernels import HALF, LAW, Case

ROOT = Path(__file__).resolve().parents[1]
TASKS = Path("/proc/self/task")
"""Threads of this process, where the system lists them."""

LITTLE, MUCH = 40, 40_000
KERNELS = [
    name for name, (home, *_) in LAW.items()
    if "n_threads" in inspect.signature(getattr(home, name)).parameters
]  # fmt: skip


def kernel(name):
    home, _, make, _ = LAW[name]

    def called(m, rng, threads):
        given, out = make(Case(HALF, m, (3, 5), 3, False, True, False, False))
        found = getattr(home, name)(**given, **out, n_threads=threads)
        return [np.asarray(found if found is not None else 0), *out.values()]

    return called


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
CALLS = {name: kernel(name) for name in KERNELS} | {name: codec(name) for name in CODECS}
CALLS["chains"] = chains


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
        for call in CALLS.values():
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
