"""Data larger than memory: an iteration from a file against reading alone and computing alone."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vpem.checks import parse_bytes
from vpem.files.matrix import FileMatrix

from .measure import VPEM, Options, call, compare, usage
from .problems import mixture_rows, one_block, sweep_once

ROWS = {"tiny": 6_000, "small": 200_000, "medium": 2_000_000, "full": 10_000_000}
LIMIT = {"tiny": "1MB", "small": "64MB", "medium": "256MB", "full": "600MB"}
PART = 100_000
D, K = 100, 3

STORED: dict[str, tuple[type[np.floating], dict[str, Any]]] = {
    "float32 in chunks": (np.float32, {"chunks": True}),
    "float64 in one piece": (np.float64, {}),
    "float32, two digits in gzip": (
        np.float32,
        {"chunks": True, "compression": 1, "shuffle": True},
    ),
}
"""How files are stored; those that are packed have a third of the rows."""


def write(path: Path, m: int, dtype: type[np.floating], how: dict[str, Any]) -> None:
    """Write rows, in one piece or in chunks of whole rows, a part at a time; parts repeat."""
    part = mixture_rows(min(PART, m), D, K).astype(dtype)
    if "compression" in how:
        part = part.round(2)
    if "chunks" in how:
        how = how | {"chunks": (min((1 << 20) // part[:1].nbytes, m), D)}
    with h5py.File(path, "w") as file:
        data = file.create_dataset("X", (m, D), dtype, **how)
        for start in range(0, m, len(part)):
            data[start : start + len(part)] = part[: m - start]


def forget(path: Path) -> None:
    """Ask the system to drop the file from its cache, so that it is read from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_bytes(path: Path) -> None:
    """Read a file as it is, nothing of which is kept."""
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield times with the file in the system's cache and not, and the memory of `vpem fit`."""
    m, threads = ROWS[options.size], options.threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.h5"
        for stored, (dtype, how) in STORED.items():
            rows = m * 4 // np.dtype(dtype).itemsize // (3 if "compression" in how else 1)
            write(path, rows, dtype, how)
            for cached in (True, False):
                if cached or hasattr(os, "posix_fadvise"):
                    yield _iteration(options, path, stored, cached)
        mixture_rows.cache_clear()
        write(path, m, *STORED["float32 in chunks"])
        command = [sys.executable, *VPEM, "fit", str(path), "--topology", "star",
                   "--agents", "1", "--components", str(K), "--init-rows", "0,1,2",
                   "--max-iter", "2", "--dtype", "float32", "--threads", str(threads),
                   "--memory-limit", LIMIT[options.size], "--quiet"]  # fmt: skip
        start = "import vpem.fits.vpem"
        yield {
            "name": "peak memory", "case": f"vpem fit, {m:,} x {D} float32 in a file of "
            f"{path.stat().st_size / 1e6:,.0f} MB, --memory-limit {LIMIT[options.size]}",
            "base": "", "absent": {}, "seconds": {}, "median": {}, "times_as_fast": {},
            "facts": {
                "peak MB": usage(*command).peak / 1e6,
                "of which started, MB": usage(sys.executable, "-c", start).peak / 1e6,
            },
        }  # fmt: skip


def _iteration(options: Options, path: Path, stored: str, cached: bool) -> dict[str, Any]:
    """Time an iteration from a file against reading it and against computing, each alone."""
    matrix = FileMatrix(path, "X", parse_bytes(LIMIT[options.size]) // 8)
    joined, threads = one_block(D), options.threads
    some = matrix[: min(len(matrix), 5 * PART)]
    # Computing alone goes over rows in memory, as often as makes the file's rows.
    inside = sweep_once(some, joined, K, threads)
    both = sweep_once(matrix, joined, K, threads)

    def read() -> None:
        for _ in matrix.runs():
            pass

    def from_file(what: Callable[[], Any]) -> Callable[[], float]:
        def seconds() -> float:
            if not cached:
                forget(path)
            return call(what)()

        return seconds

    timed = {
        "vpem, from the file": from_file(both),
        "vpem, computing alone": lambda: call(inside)() * len(matrix) / len(some),
        "vpem, reading alone": from_file(read),
        "the file's bytes": from_file(lambda: read_bytes(path)),
    }
    where = "file cached" if cached else "file not cached"
    size = f"{len(matrix):,} x {D} {stored}, {where}, {threads} thread(s)"
    found = compare(options, "out of core", size, "vpem, from the file", timed)
    longer = max(found["median"].get(who, 0.0) for who in list(timed)[1:3])
    found["facts"]["against the longer"] = found["median"]["vpem, from the file"] / longer
    matrix.close()
    return found
