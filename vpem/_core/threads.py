"""How many threads the kernels use, and the BLAS library's own threads kept out of their way."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from vpem.checks import check_int, read_int

MOST = 1024

GROUPS = {2: ("cpu.max",), 1: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
"""Files of a control group, by version, that say how long it may compute in which time."""

_sharing: list[Sequence[int]] = []
"""Processors of each process of this one's MPI job that runs on the same machine."""


def whereabouts() -> tuple[str, list[int]]:
    """Return which machine this is, and the processors that this process may run on."""
    machine = platform.node()
    with suppress(OSError):  # containers of one machine may have names of their own
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return machine, _own()


def _own() -> list[int]:
    """Return the processors that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def share_processors(everyones: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Leave the other processes of an MPI job, by all `whereabouts`, their part of processors."""
    here = whereabouts()[0]
    _sharing[:] = [those for machine, those in everyones if machine == here]


def neighbours() -> int:
    """Return how many processes of this one's MPI job run on this machine, itself among them."""
    return max(1, len(_sharing))


def crowded() -> bool:
    """Whether the processes of this one's MPI job on this machine are more than its processors."""
    limit = processor_limit()
    there = len({one for those in _sharing for one in those})
    return neighbours() > (there if limit is None else min(there, max(1, round(limit))))


def processors() -> int:
    """Return how many processors this process has, at least 1.

    Those that it may run on, each divided by the number of processes of its MPI job that may run
    there too; no more than its part of what its container may use.
    """
    own = _own()
    sharing = _sharing or [own]
    users = {one: sum(one in those for those in sharing) for one in own}
    part = sum(1 / max(users[one], 1) for one in own)
    limit = processor_limit()
    if limit is not None:
        part = min(part, max(1, round(limit)) / len(sharing))
    return max(1, int(part + 1e-9))


@cache
def processor_limit(
    root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup"
) -> float | None:
    """Return how many processors the control groups of this process let it use, or None for all.

    They are mounted at ``root``: version 2, or version 1 with its ``cpu`` below. What holds for a
    group holds for those inside: the least counts.
    """
    paths = {}
    with suppress(OSError, ValueError):
        for line in Path(groups).read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                paths[1 if controllers else 2] = path
    limits = []
    for version, home in ((2, Path(root)), (1, Path(root, "cpu"))):
        # A container may see its own group as the outermost, under the name that it has outside.
        names = paths.get(version, "/").split("/")
        inside = Path(*(part for part in names if part not in ("", "..")))
        for group in (inside, *inside.parents):
            with suppress(OSError, ValueError):
                texts = [Path(home, group, name).read_text() for name in GROUPS[version]]
                quota, period = map(int, " ".join(texts).split())
                if quota > 0 and period > 0:
                    limits.append(quota / period)
    return min(limits, default=None)


def thread_count(n_threads: int | None) -> int:
    """Return the number of threads to use; None is ``OMP_NUM_THREADS``, or one a processor."""
    if n_threads is None:
        setting = read_int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0]) or 0
        return min(setting if setting > 0 else processors(), MOST)
    return check_int("n_threads", n_threads, least=1, most=MOST)


@cache
def _controller() -> Any:
    # SciPy's own BLAS is the one that kernels call; with these it was loaded, so it is found.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep BLAS on one thread: the kernels run their own threads around it."""
    context: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return context


INSTRUCTIONS = ("base", "avx2", "avx512")


def machine_instructions() -> str | None:
    """Largest instruction set of the kernels that the processor has, by its flags in Linux.

    None elsewhere.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    flags = set(next(lines, ":").partition(":")[2].split())
    if not {"avx2", "fma"} <= flags:
        return "base"
    return "avx512" if {"avx512f", "avx512dq"} <= flags else "avx2"
