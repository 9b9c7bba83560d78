"""Time the kernels and whole fits: ``python -m benchmarks [--profile small|medium|large]``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from vpem.threads import thread_count

from . import fits, kernels
from .measure import environment

ROOMS = {"kernels": kernels, "fits": fits}


def table(title: str, results: list[dict[str, Any]]) -> Table:
    """Return medians, spreads, and how many times as fast each is as the base."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("contender")
    for head in ("median", "fastest", "slowest", "times as fast"):
        made.add_column(head, justify="right")
    for result in results:
        made.add_row(result["name"])
        for who, times in result["seconds"].items():
            numbers = (result["median"][who], min(times), max(times))
            shown = [f"{1e3 * value:.4g} ms" for value in numbers]
            made.add_row(f"  {who}", *shown, f"{result['times_as_fast'][who]:.3g}")
    return made


def main() -> None:
    """Run the rooms asked for, show a table, and keep every number."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--profile", choices=list(kernels.SIZES), default="small")
    parser.add_argument("--only", choices=list(ROOMS), help="one room instead of all")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each contender")
    parser.add_argument("--threads", type=int, help="threads of the kernels (default: all)")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    threads = thread_count(options.threads)
    console = Console(highlight=False, markup=False)
    machine = environment() | {"threads": threads}
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), soft_wrap=True)
    kept: dict[str, Any] = {"environment": machine, "profile": options.profile}
    for name in [options.only] if options.only else ROOMS:
        kept[name] = list(ROOMS[name].measure(options.profile, options.repeats, threads))
        console.print(table(name, kept[name]))
        for size in dict.fromkeys(result["size"] for result in kept[name]):
            those = [result["name"] for result in kept[name] if result["size"] == size]
            console.print(f"{size}: {', '.join(those)}", soft_wrap=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    target = options.folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{options.profile}.json"
    target.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    console.print(f"every time taken: {target}", soft_wrap=True)


main()
