"""Measure how fast vpem is: ``python -m benchmarks [PART ...] [--size small|medium|full]``.

``python -m benchmarks table`` compares with all other programs and writes docs/reference/times.md.
``python -m benchmarks same OTHER_CHECKOUT`` measures nothing: it compares what two builds do.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import os
import pstats
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from vpem._core.threads import thread_count

from .measure import Options, environment
from .plots import draw
from .tables import absences, table

PARTS = (
    "kernels",
    "peers",
    "agents",
    "scaling",
    "outofcore",
    "kmeans",
    "missing",
    "masks",
    "mpi",
    "busy",
    "accelerate",
    "pooled",
    "tls",
    "instructions",
    "table",
)
HINT = """\
cProfile sees Python alone. For the compiled kernels, run the part once, ours only:
  perf record -g python -m benchmarks {part} --once && perf report
  valgrind --tool=callgrind python -m benchmarks {part} --once --size small --threads 1
A build with CFLAGS=-g has line numbers."""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART",
        help=f"{', '.join(PARTS)} (default: all but the last two)",
    )  # fmt: skip
    # "tiny" is for tests: it shows that everything runs.
    parser.add_argument("--size", choices=("tiny", "small", "medium", "full"),
                        help="(default: small; full of the table)")  # fmt: skip
    parser.add_argument("--repeats", type=int, help="timed rounds (default: 3, small; 5)")
    parser.add_argument("--threads", type=int, help="threads of the kernels (default: all)")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--once", action="store_true", help="run ours once: for perf, callgrind")
    parser.add_argument("--profile", action="store_true", help="run one part under cProfile")
    parser.add_argument("--update", action="store_true", help="write instructions.json anew")
    parser.add_argument("--pulsars", type=Path, help="CSV of HTRU2, for pooled and table")
    parser.add_argument("--keep", action="store_true", help="keep a table that is not of full size")
    options = parser.parse_args(words)
    options.size = options.size or ("full" if options.parts == ["table"] else "small")
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part called {unknown[0]}; there are {', '.join(PARTS)}")
    if options.repeats is None:
        options.repeats = 3 if options.size == "small" or "table" in options.parts else 5
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if options.profile and len(options.parts) != 1:
        parser.error("--profile takes one part, such as: python -m benchmarks agents --profile")
    return options


def main(words: list[str] | None = None) -> int:
    """Run the parts asked for, show tables, keep every number, draw plots."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["same"]:
        from .same import main as compare

        return compare(words[1:])
    given = arguments(words)
    options = Options(
        given.size, given.repeats, thread_count(given.threads), given.once, given.update,
        given.pulsars,
    )  # fmt: skip
    console = Console(highlight=False)
    console.width = max(console.width, 110)  # also where the output is a file
    parts = given.parts or PARTS[:-2]
    if given.profile:
        profiler = cProfile.Profile()
        profiler.enable()
    machine = environment() | {"threads": options.threads}
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), markup=False)
    if machine["load_before"] > 0.5 and not given.once:
        console.print(f"the machine is busy (load {machine['load_before']:.1f}): trust ratios only")
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{given.size}"
    kept: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        results = []
        for result in importlib.import_module(f"benchmarks.{part}").measure(options):
            results.append(result)
            took = f"{time.strftime('%H:%M:%S')} {part}:"
            print(took, result["name"], result["case"], file=sys.stderr)
        kept[part] = results
        if given.once:
            continue
        console.print(table(part, results))
        given.folder.mkdir(parents=True, exist_ok=True)
        draw(part, results, given.folder / f"{stem}-{part}.png")
    if given.profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(25)
        console.print(HINT.format(part=parts[0]), markup=False)
    if not given.once:
        machine |= {"load_after": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d")}
        target = given.folder / f"{stem}.json"
        missing = absences(kept)
        for who, why in missing.items():
            console.print(f"absent: {who}, {why}", markup=False)
        whole = {"environment": machine, "size": given.size, "absent": missing, "parts": kept}
        target.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        if "table" in parts and (given.keep or given.size == "full"):
            from .table import PAGE, keep

            keep(whole)
            console.print(f"the table: {PAGE}", markup=False, soft_wrap=True)
        console.print(f"every number: {target}", markup=False, soft_wrap=True)
    failed = [
        f"{part}: {what}" for part in kept for one in kept[part] for what in one.get("failed", ())
    ]
    for what in failed:
        console.print(what, markup=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
