"""Instruction counts of the kernels under callgrind: a guard that noise cannot blur."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .measure import Options, environment

GUARD = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.05
SHAPE = (600, 32, 2, 3, 60)


def run_all() -> None:
    """Call each kernel once on one thread; this is what runs under callgrind."""
    from .kernels import cases, sweep_case

    gc.disable()  # or a collection would be counted where it happens to fall
    for case in cases(SHAPE, 1):
        case.run(case.module)
    for n_blocks in (1, 2, 8, 32):  # wide blocks, then narrow, then one feature each
        for own in (False, True):  # exact sums, then every root with its own
            case = sweep_case(SHAPE[0], SHAPE[1], n_blocks, SHAPE[3], 1, own=own)
            case.run(case.module)


def counts(text: str) -> dict[str, int]:
    """Instructions inside each kernel, callees included, from a callgrind file.

    Where a kernel is called several times, the calls are added up.
    """
    names: dict[str, str] = {}
    found: dict[str, list[int]] = {}
    kernel = None
    lines = iter(text.splitlines())
    for line in lines:
        if match := re.match(r"c?fn=\((\d+)\)(?: (.+))?", line):
            number, name = match.groups()
            if name:
                names[number] = name
            if line.startswith("cfn="):
                called = names.get(number, "")
                match = re.search(r"pw_4vpem_5_core_\d+([a-z]+?)_\d+([a-z_]+?)(?:'\d+)?$", called)
                # The dispatcher over precisions calls the one that counts.
                fused = "__pyx_fuse_" in called
                kernel = match and (match[1], match[2], fused)
        elif line.startswith("calls=") and kernel:
            cost = int(next(lines).split()[1])
            module, name, fused = kernel
            if not name.startswith("_") and module != "instruction":
                found.setdefault(f"{name}{'' if fused else ' (all)'}", []).append(cost)
            kernel = None
    merged = {name: sum(costs) for name, costs in found.items()}
    return {
        name.removesuffix(" (all)"): cost
        for name, cost in sorted(merged.items())
        if not name.endswith(" (all)") or name.removesuffix(" (all)") not in merged
    }


def callgrind() -> dict[str, int]:
    """Count anew."""
    fixed = {
        "VPEM_INSTRUCTIONS": "avx2", "OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, "-c",
             "from benchmarks.instructions import run_all; run_all()"],
            check=True, capture_output=True, env=os.environ | fixed,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
        return counts(out.read_text(encoding="utf-8", errors="replace"))


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the counts beside those of the guard; fail where one grew by more than 5 %."""
    result = {"name": "instructions", "case": f"(M, d, B, K, agents) = {SHAPE}, avx2, one thread",
              "base": "", "absent": {}, "seconds": {}, "median": {}, "times_as_fast": {},
              "facts": {}}  # fmt: skip
    if not shutil.which("valgrind"):
        result["absent"] = {"valgrind": "not installed: no instructions are counted"}
        yield result
        return
    now = callgrind()
    if options.update or not GUARD.exists():
        built = {name: environment()[name] for name in ("numpy", "scipy", "python")}
        GUARD.write_text(json.dumps({"with": built, "counts": now}, indent=1) + "\n", "utf-8")
    before = json.loads(GUARD.read_text())["counts"]
    result["facts"] = {
        name: f"{now.get(name, 0):,} ({now.get(name, 0) / before[name] - 1:+.1%})"
        if name in before
        else f"{now[name]:,} (new)"
        for name in {**before, **now}
    }
    result["counts"] = now
    result["failed"] = [
        f"{name}: {count:,} instructions, {count / before[name]:.2f} times as many as the guard"
        for name, count in now.items()
        if name in before and count > (1 + TOLERANCE) * before[name]
    ] + [f"{name}: not found, the guard has it" for name in before if name not in now]
    yield result
