"""SAEM's experiments: ``python -m benchmarks.saem [--size small|full] [--only NAME ...]``.

Each prints a table and a sentence and writes its numbers (JSON) and a picture to --folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vpem._core.threads import one_blas_thread
from vpem.errors import NotConvergedWarning

from .plots import blank
from .saem_shared import Finding

PARTS = {
    "oxford": "saem_oxford",
    "theophylline": "saem_curves",
    "warfarin": "saem_curves",
    "steps": "saem_draft",
    "averages": "saem_draft",
    "codecs": "saem_draft",
    "absences": "saem_draft",
    "methods": "saem_methods",
    "sketches": "saem_methods",
    "bifactor": "saem_loadings",
    "speed": "saem_speed",
    "moves": "saem_moves",
    "large": "saem_time",
}
"""Experiments and where they are."""


OF_WARFARIN = ("warfarin", "methods", "sketches")


def number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def tables(title: str, rows: list[dict[str, Any]]) -> list[Table]:
    """Return a table for each kind of row, without lists."""
    kinds: dict[tuple[str, ...], Table] = {}
    for row in rows:
        heads = tuple(key for key, value in row.items() if not isinstance(value, list | dict))
        if heads not in kinds:
            kinds[heads] = Table(title=title, title_justify="left", box=None, pad_edge=False)
            for head in heads:
                kinds[heads].add_column(
                    head, justify="left" if head == "name" else "right", no_wrap=head == "name"
                )
        kinds[heads].add_row(*(number(row[head]) for head in heads))
    return list(kinds.values())


def picture(found: Finding, target: Path) -> None:
    """Write the picture."""
    figure = blank(*found.size)
    found.draw(figure)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target)


def main(words: list[str] | None = None) -> int:
    """Run experiments; 1 if one is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saem")
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), metavar="NAME",
                        help=", ".join(PARTS))  # fmt: skip
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE",
        help="warfarin: columns id, time, value and dose, instead of simulated ones",
    )  # fmt: skip
    given = parser.parse_args(words)
    console = Console(highlight=False)
    console.width = max(console.width, 170)
    given.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for part in given.only or PARTS:
        experiment = getattr(import_module(f"benchmarks.{PARTS[part]}"), part)
        more = {"source": given.source} if part in OF_WARFARIN else {}
        with warnings.catch_warnings(), one_blas_thread():
            warnings.simplefilter("ignore", NotConvergedWarning)
            found = experiment(given.size, **more)
        for shown in tables(part, found.rows):
            console.print(shown, "")
        console.print(found.says, "", markup=False)
        stem = given.folder / f"saem-{part}-{given.size}"
        whole = {"says": found.says, "failed": found.failed, "rows": found.rows}
        stem.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        picture(found, stem.with_suffix(".png"))
        failed += [f"{part}: {what}" for what in found.failed]
    for what in failed:
        console.print(f"not as it should be: {what}", markup=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
