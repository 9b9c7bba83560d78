"""Run the cases of `tests/golden` with two builds on this machine, and compare to the bit.

``python -m benchmarks same OTHER_CHECKOUT [--only GLOB]``: table and runner are those of this
checkout; the other one needs built kernels, or a virtual environment of its own, and no tests.
Times, dates, versions, random names and temporary folders do not count. Exit code 1 if anything
else differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
RUNNER = ROOT / "tests" / "golden" / "runner.py"
MOST = 3
"""Differences of a case that are shown, unless --all is given."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks same", description=__doc__)
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT", help="folder of the other")
    parser.add_argument("--only", action="append", metavar="GLOB", help="cases: 'sums/*', '*/tree'")
    parser.add_argument("--all", action="store_true", help="show every number that differs")
    return parser


def chosen(only: list[str] | None) -> dict[str, list[str]]:
    """Return the command lines of the cases asked for, by group and name."""
    from tests.golden.store import CASES, lines_of

    every = {
        f"{group}/{name}": lines_of(case)
        for group, cases in CASES.items()
        for name, case in cases.items()
    }
    return {
        name: lines
        for name, lines in every.items()
        if only is None or any(fnmatchcase(name, glob) for glob in only)
    }


def interpreter_of(checkout: Path) -> str:
    """Return the interpreter of a checkout: its own, or else this one if kernels are built."""
    if not (checkout / "vpem" / "__init__.py").is_file() or not (checkout / "cli").is_dir():
        raise SystemExit(f"{checkout} is no checkout of vpem")
    if not any(path.suffix in (".so", ".pyd") for path in (checkout / "vpem/_core").iterdir()):
        raise SystemExit(
            f"{checkout} has no built kernels: make .venv/built there, or python setup.py "
            "build_ext --inplace"
        )
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def begin(
    checkout: Path, cases: dict[str, list[str]], folder: Path
) -> tuple[subprocess.Popen[str], Path]:
    """Start the runner with a checkout's packages: the process, and where its results will be."""
    from tests.golden.inputs import MADE, TEXTS

    folder.mkdir()
    packages = folder / "packages"
    packages.mkdir()
    for name, source in (("vpem", "vpem"), ("vpem_cli", "cli"), ("data", "data")):
        (packages / name).symlink_to(checkout / source)
    kept = RUNNER.parent / "files"
    given = {"data": str(ROOT / "data"), "kept": str(kept), "texts": TEXTS, "made": MADE,
             "cases": cases}  # fmt: skip
    # Whatever else is installed there, these packages come first, in all processes.
    settings = {"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    (folder / "cases.json").write_text(json.dumps(given), encoding="utf-8")
    with (folder / "cases.json").open(encoding="utf-8") as source:
        process = subprocess.Popen(
            [interpreter_of(checkout), str(RUNNER), str(folder / "found.json")], stdin=source,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, **settings},
        )  # fmt: skip
    return process, folder / "found.json"


def results(checkouts: list[Path], cases: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Run all cases with the build of each checkout, side by side: what each left behind."""
    with tempfile.TemporaryDirectory(prefix="vpem-same-") as home:
        running = [
            begin(checkout, cases, Path(home) / str(number))
            for number, checkout in enumerate(checkouts)
        ]
        found = []
        for checkout, (process, path) in zip(checkouts, running, strict=True):
            _, told = process.communicate()
            if process.returncode:
                raise SystemExit(f"the cases could not be run in {checkout}:\n{told}")
            found.append(json.loads(path.read_text(encoding="utf-8")))
    return found


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, list[tuple[str, Any, Any]]]:
    """Return the cases that differ: where, and what each build has there."""
    from tests.golden.compare import differences

    found = {name: list(differences(theirs[name], ours[name], 0.0)) for name in ours}
    return {name: wrong for name, wrong in found.items() if wrong}


def main(words: list[str] | None = None) -> int:
    """Run both builds, print a row for each case that differs, and a summary."""
    options = _parser().parse_args(words)
    cases = chosen(options.only)
    if not cases:
        raise SystemExit(f"no case is called {options.only}; see tests/golden/cases.py")
    other = options.other.resolve()
    for checkout in (ROOT, other):
        interpreter_of(checkout)
    theirs, ours = results([other, ROOT], cases)
    wrong = compared(ours, theirs)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("case", "where", "other", "this"):
        table.add_column(head, overflow="fold")
    for name, places in wrong.items():
        shown = places if options.all else places[:MOST]
        for number, (path, one, two) in enumerate(shown):
            table.add_row("" if number else name, path, f"{one!r:.200}", f"{two!r:.200}")
        if len(shown) < len(places):
            table.add_row("", f"and {len(places) - len(shown)} more", "", "")
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, 110)
    if wrong:
        console.print(table)
    console.print(f"{len(cases)} cases, {len(wrong)} differ")
    return 1 if wrong else 0
