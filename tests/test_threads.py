"""Threads: how many, of BLAS and of kernels, which none shows; none for little work."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl

from vpem._core import langevin, latents, proposals, threads
from vpem._core import sweep as sweeping
from vpem._core.threads import (
    crowded,
    one_blas_thread,
    processor_limit,
    share_processors,
    thread_count,
)
from vpem.engines.engine import Engine
from vpem.errors import InputError
from vpem.network.codecs import parse_codec
from vpem_cli import session
from vpem_cli.display import Screen
from vpem_cli.session import Job

from .tables import each
from .test_kernels import HALF, LAW, Case


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "processor_limit", lambda: None)
    monkeypatch.setattr(threads, "_sharing", [])
    return monkeypatch


@each("value", [1, 2, 64, np.int32(3)])
def test_what_is_asked_for_is_given(environment, value):
    environment.setenv("OMP_NUM_THREADS", "7")
    found = thread_count(value)
    assert found == value
    assert type(found) is int


@each("value", [0, -1, 1.0, "2", True, np.nan])
def test_what_is_no_number_of_threads(environment, value):
    with pytest.raises(
        InputError, match="threads must be an integer of at least 1 and at most 1024, got"
    ):
        thread_count(value)


@each(("word", "count"), [("3", 3), ("4,2", 4), ("1", 1)])
def test_the_environment_of_openmp_is_obeyed(environment, word, count):
    environment.setenv("OMP_NUM_THREADS", word)
    assert thread_count(None) == count


@each("word", ["", "0", "-2", "many", "²", "9" * 5000, None])
def test_else_one_thread_a_processor_of_this_process(environment, word):
    if word is not None:
        environment.setenv("OMP_NUM_THREADS", word)
    environment.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert thread_count(None) == 3
    environment.delattr(os, "sched_getaffinity")
    environment.setattr(os, "cpu_count", lambda: 6)
    assert thread_count(None) == 6
    environment.setattr(os, "cpu_count", lambda: None)
    assert thread_count(None) == 1


@pytest.mark.parametrize(
    ("own", "others", "limit", "count", "more"),
    [
        (8, [], 1.5, 2, False),
        (8, [], 0.2, 1, False),
        (2, [], 6.0, 2, False),
        (8, [range(8)], None, 4, False),
        (8, [range(8)] * 2, None, 2, False),
        (2, [range(2)] * 4, None, 1, True),
        (4, [range(4, 8)], None, 4, False),  # bound to other processors
        (4, [range(4), range(2, 6)], None, 1, False),
        (8, [range(8)], 4.0, 2, False),
        (8, [range(8)] * 2, 2.0, 1, True),
    ],
)
def test_processors_are_divided(environment, own, others, limit, count, more):
    environment.setattr(os, "sched_getaffinity", lambda process: set(range(own)), raising=False)
    environment.setattr(threads, "processor_limit", lambda: limit)
    here = threads.whereabouts()[0]
    elsewhere = ("another machine", range(8))
    share_processors([elsewhere, (here, range(own)), *((here, one) for one in others), elsewhere])
    assert thread_count(None) == count
    assert crowded() == more
    assert thread_count(5) == 5
    environment.setenv("OMP_NUM_THREADS", "3")
    assert thread_count(None) == 3


def test_ranks_tell_each_other_where_they_are(environment):
    four = Engine()
    four.size, four.allgather = 4, lambda own: [own] * 4
    environment.setattr("vpem_cli.session._joined", Job(four))
    environment.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    session.where_of(session.EngineSettings(engine="mpi"), Screen())
    assert thread_count(None) == 2


HALF_MORE = {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}
NO_LIMIT = {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "groups", "wanted"),
    [
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, "0::/a/b\n", 3.0),
        ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, "0::/a/b", 2.0),
        ({"a/cpu.max": "100000 100000", "cpu.max": "400000 100000"}, "0::/b", 4.0),
        ({"cpu.max": "50000 100000"}, "0::/docker/what-is-seen-outside\n", 0.5),
        ({"cpu.max": "50000 100000"}, "0::/../../a", 0.5),
        (HALF_MORE, "3:name=systemd:/x\n2:cpu,cpuacct:/a:b\n", 1.5),
        (HALF_MORE | NO_LIMIT, "2:cpuacct,cpu:/a\n", 1.5),
        (NO_LIMIT, "2:cpu:/a\n", None),
        ({"cpu.max": "many"}, "nonsense", None),
        ({"cpu.max": "0 0"}, "", None),
        ({}, "0::/a", None),
    ],
)
def test_limits_of_control_groups(tmp_path, files, groups, wanted):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "groups").write_text(groups)
    assert processor_limit(str(tmp_path), str(tmp_path / "groups")) == wanted


def blas_threads():
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()
            if pool["user_api"] == "blas"]  # fmt: skip


@pytest.fixture
def two_threads():
    """More threads of BLAS than one, which is what other tests have."""
    with one_blas_thread():
        pass  # loads the libraries
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        yield


def test_blas_keeps_to_one_thread_and_is_given_back(two_threads):
    before = blas_threads()
    assert 2 in before  # a library of BLAS may have but one thread
    with one_blas_thread():
        assert set(blas_threads()) == {1}
        with one_blas_thread():
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}
    assert blas_threads() == before
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        _ = 1 / 0
    assert blas_threads() == before


# ---- kernels -------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[1]
TASKS = Path("/proc/self/task")
"""Threads of this process, where the system lists them."""

LITTLE, MUCH = 40, 24_000
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
        one, *more = (CALLS[name](MUCH, np.random.default_rng(0), n) for n in (1, 3))
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
    words = "from tests.test_threads import started; print(*started())"
    printed = subprocess.check_output([sys.executable, "-c", words], cwd=ROOT, text=True)
    counts = [int(word) for word in printed.split()]
    assert len(set(counts[: len(counts) // 2])) == 1
    built = Path(sweeping.__file__).read_bytes()
    if TASKS.exists() and (b"GOMP_" in built or b"__kmpc_fork_call" in built):
        assert max(counts) == counts[0] + 2
