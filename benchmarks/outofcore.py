"""Data larger than memory: an iteration from a file against reading alone and computing alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vpem.checks import parse_bytes
from vpem.files.matrix import FileMatrix

from .measure import VPEM, Options, call, compare
from .problems import mixture_rows, one_block, sweep_once

__all__ = ["measure", "peak"]

ROWS = {"tiny": 20_000, "small": 200_000, "medium": 2_000_000, "full": 10_000_000}
LIMIT = {"tiny": "4MB", "small": "64MB", "medium": "256MB", "full": "600MB"}
PART = 100_000
D, K = 100, 3

# Linux counts the parent's memory at the fork as the child's own: a small process stands between.
BETWEEN = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
unit = 1 if sys.platform == "darwin" else 1024
print(unit * usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


def write(path: Path, m: int) -> None:
    """Write float32 rows in chunks of whole rows, a part at a time; parts repeat."""
    part = mixture_rows(min(PART, m), D, K).astype(np.float32)
    chunk = (1 << 20) // part[:1].nbytes
    with h5py.File(path, "w") as file:
        data = file.create_dataset("X", (m, D), np.float32, chunks=(min(chunk, m), D))
        for start in range(0, m, len(part)):
            data[start : start + len(part)] = part[: m - start]
    mixture_rows.cache_clear()


def forget(path: Path) -> None:
    """Ask the system to drop the file from its cache, so that it is read from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peak(*command: str) -> int:
    """Peak resident memory of a command, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", BETWEEN, *command], capture_output=True, text=True, check=False
    )
    size, code = map(int, done.stdout.split())
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}: {done.stderr[-500:]}")
    return size


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield times with the file in the system's cache and not, and the memory of `vpem fit`."""
    m, threads = ROWS[options.size], options.threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.h5"
        write(path, m)
        matrix = FileMatrix(path, "X", parse_bytes(LIMIT[options.size]) // 16)

        def read() -> None:
            for _ in matrix.runs():
                pass

        joined = one_block(D)
        some = matrix[: min(m, 5 * PART)]
        # Computing alone goes over rows in memory, as often as makes the file's rows.
        inside = sweep_once(some, joined, K, threads)
        both = sweep_once(matrix, joined, K, threads, np.float32)
        for cached in (True, False):
            if not cached and not hasattr(os, "posix_fadvise"):
                continue

            def from_file(what: Callable[[], Any], cached: bool = cached) -> Callable[[], float]:
                def seconds() -> float:
                    if not cached:
                        forget(path)
                    return call(what)()

                return seconds

            timed = {
                "vpem, from the file": from_file(both),
                "vpem, computing alone": lambda: call(inside)() * m / len(some),
                "vpem, reading alone": from_file(read),
            }
            where = "file cached" if cached else "file not cached"
            size = f"{m:,} x {D} float32, {where}, {threads} thread(s)"
            found = compare(options, "out of core", size, "vpem, from the file", timed)
            longer = max(found["median"][who] for who in list(timed)[1:])
            found["facts"]["against the longer"] = found["median"]["vpem, from the file"] / longer
            yield found
        matrix.close()
        command = [sys.executable, *VPEM, "fit", str(path), "--topology", "star",
                   "--agents", "1", "--components", str(K), "--init-rows", "0,1,2",
                   "--max-iter", "2", "--dtype", "float32", "--threads", str(threads),
                   "--memory-limit", LIMIT[options.size], "--quiet"]  # fmt: skip
        yield {
            "name": "peak memory", "case": f"vpem fit, {m:,} x {D} float32 in a file of "
            f"{path.stat().st_size / 1e6:,.0f} MB, --memory-limit {LIMIT[options.size]}",
            "base": "", "absent": {}, "seconds": {}, "median": {}, "times_as_fast": {},
            "facts": {
                "peak MB": peak(*command) / 1e6,
                "of which started, MB": peak(sys.executable, "-c", "import vpem.fits.vpem") / 1e6,
            },
        }  # fmt: skip
