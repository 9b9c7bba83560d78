"""Damage small files of every kind, run the commands that read them, and count what goes wrong.

A run that is right ends with 0, or with 2 and one sentence, in 10 s and 1 GB, leaves nothing half
done, and prints no control characters. Exit code 1 if any run is not.

Of the kinds handshake, relay and link a run is a connection or a message to a server, a relay or a
member that stands open: nothing ends but by a sentence, members get in soon, and the process has as
much memory in the end as after the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--minutes", type=float, help="how long (default: 1)")
    how_long.add_argument("--runs", type=int, help="how many runs, in place of how long")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same runs")
    parser.add_argument("--begin", type=int, default=0, help="number of the first run")
    parser.add_argument("--only", action="append", metavar="KIND", help="kinds whose name has this")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the files of wrong runs here"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of tables")
    return parser


@dataclass
class Tally:
    """What the runs of one kind came to."""

    runs: int = 0
    done: int = 0
    refused: int = 0
    defects: int = 0
    seconds: float = 0.0
    memory: int = 0


@dataclass
class Found:
    """What all runs came to: by kind, and each that was wrong."""

    kinds: dict[str, Tally] = field(default_factory=dict)
    defects: list[dict[str, Any]] = field(default_factory=list)

    def add(self, run: Any, outcome: Any) -> None:
        """Count a run."""
        tally = self.kinds[run.kind]
        tally.runs += 1
        tally.done += outcome.code == 0
        tally.refused += outcome.code == 2
        tally.defects += bool(outcome.defects)
        tally.seconds = max(tally.seconds, outcome.seconds)
        tally.memory = max(tally.memory, outcome.memory)
        if outcome.defects:
            self.defects.append(
                {
                    "run": run.number,
                    "kind": run.kind,
                    "command": f"vpem {run.words}",
                    "change": run.change,
                    "defects": outcome.defects,
                    "last": (outcome.err.splitlines() or [""])[-1][:300],
                }
            )


def _next(number: int, seed: int, kinds: list[str], seeds: Path, folder: Path) -> tuple[Any, Any]:
    """Choose kind, file, command and damage of a run by its number alone."""
    import numpy as np

    from .commands import KINDS
    from .mutations import change_file, pick
    from .runs import Run
    from .seeds import files_in

    rng = np.random.default_rng([seed, number])
    name = kinds[number % len(kinds)]
    kind = KINDS[name]
    file = pick(rng, kind.files)
    words = pick(rng, kind.commands).replace("{}", file)

    def prepare(work: Path) -> str:
        for needed in {file, *files_in(shlex.split(words))}:
            shutil.copy(seeds / needed, work / needed)
        return f"{file}: {change_file(work / file, kind.family, rng)}"

    return Run(number, name, words, folder / f"run-{number}"), prepare


def _ended(running: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield runs that have ended, with what came of them; wait a little if none has."""
    ended = [(run, outcome) for run in running if (outcome := run.ended()) is not None]
    if not ended:
        time.sleep(0.002)
    yield from ended


def _besieged(
    name: str, options: argparse.Namespace, n_kinds: int, folder: Path, found: Found
) -> Tally:
    """Come to a door for a kind's share of the runs, or of the time."""
    import numpy as np

    from .live import LIVE, Stop, besiege

    count = -(-options.runs // n_kinds) if options.runs else None
    stop = Stop(count, 60 * (options.minutes or 1.0) / n_kinds)
    rng = np.random.default_rng([options.seed, options.begin, list(LIVE).index(name)])
    seen = besiege(name, rng, stop, folder)
    for what, times in seen.defects.items():
        about = {"run": options.begin, "kind": name, "command": "", "change": f"{times} times"}
        found.defects.append({**about, "defects": [what], "last": ""})
    wrong = sum(seen.defects.values())
    return Tally(seen.count, 0, seen.ends, wrong, seen.seconds, max(0, seen.peak - seen.before))


def fuzz(options: argparse.Namespace, folder: Path) -> Found:
    """Make the files, and run until the time or the runs are over."""
    from .commands import KINDS
    from .live import LIVE
    from .runs import in_child, warm_up
    from .seeds import files_in, make_seeds

    every = [*KINDS, *LIVE]
    chosen = [name for name in every if not options.only or any(o in name for o in options.only)]
    if not chosen:
        raise SystemExit(f"no kind has {options.only} in its name; there are {', '.join(every)}")
    kinds, live = ([name for name in chosen if (name in LIVE) is way] for way in (False, True))
    found = Found({name: Tally() for name in chosen})
    for name in live:
        found.kinds[name] = _besieged(name, options, len(chosen), folder, found)
    if not kinds:
        return found
    warm_up()
    seeds = folder / "seeds"
    seeds.mkdir()
    wanted = [
        file
        for kind in map(KINDS.get, kinds)
        for words in kind.commands
        for file in (*kind.files, *files_in(shlex.split(words)))
    ]

    def make() -> None:
        os.chdir(seeds)
        make_seeds(seeds, wanted)

    in_child(make, folder)
    share = len(kinds) / len(chosen)
    ends = time.monotonic() + 60 * (options.minutes or 1.0) * share
    number, running = options.begin, []
    most = options.begin + round((options.runs or 0) * share)
    while True:
        more = number < most if options.runs else time.monotonic() < ends
        if not more and not running:
            return found
        if more and len(running) < options.jobs:
            run, prepare = _next(number, options.seed, kinds, seeds, folder)
            run.start(prepare)
            running.append(run)
            number += 1
            continue
        for run, outcome in _ended(running):
            running.remove(run)
            found.add(run, outcome)
            if outcome.defects and options.keep:
                _keep(run, outcome, options.keep)
            shutil.rmtree(run.folder, ignore_errors=True)


def _keep(run: Any, outcome: Any, folder: Path) -> None:
    """Keep the files of a run, and how to do it again."""
    kept = folder / f"run-{run.number}"
    remove = shutil.ignore_patterns("before.json")
    shutil.rmtree(kept, ignore_errors=True)
    # What is no ordinary file is not copied, but told of in the note.
    shutil.copytree(run.folder, kept, ignore=remove, symlinks=True, copy_function=_copy)
    told = [f"cd {kept / 'work'} && vpem {run.words}", run.change, *outcome.defects]
    (kept / "command.txt").write_text("\n".join(told) + "\n")


def _copy(source: str, target: str) -> None:
    if os.path.islink(source) or os.path.isfile(source):
        shutil.copy2(source, target, follow_symlinks=False)


def report(found: Found, options: argparse.Namespace) -> None:
    """Print the table and every sort of defect once."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("kind", "runs", "0", "2", "defects", "slowest", "memory"):
        table.add_column(head, justify="left" if head == "kind" else "right", overflow="fold")
    for name, tally in found.kinds.items():
        counts = (tally.runs, tally.done, tally.refused, tally.defects)
        taken = (f"{tally.seconds:.2f} s", f"{tally.memory / 1e6:.1f} MB")
        table.add_row(name, *map(str, counts), *taken)
    total = [sum(getattr(t, n) for t in found.kinds.values())
             for n in ("runs", "done", "refused", "defects")]  # fmt: skip
    table.add_section()
    table.add_row("all", *map(str, total), end_section=True)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(table)
    sorts = Counter((d["defects"][0], d["last"]) for d in found.defects)
    for (what, last), count in sorts.most_common(40):
        first = next(d for d in found.defects if (d["defects"][0], d["last"]) == (what, last))
        console.print(f"{count} x {what}: {last}")
        console.print(f"    run {first['run']}: {first['command']} ({first['change']})")


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return 1 if any run went wrong."""
    options = _parser().parse_args(arguments)
    # Threads of the parent are not there in its children.
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.keep:
        options.keep = options.keep.absolute()
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vpem-fuzz-") as folder:
        found = fuzz(options, Path(folder))
    if options.json:
        kinds = {name: asdict(tally) for name, tally in found.kinds.items()}
        print(json.dumps({"seed": options.seed, "kinds": kinds, "defects": found.defects}))
    else:
        report(found, options)
    return 1 if found.defects else 0


if __name__ == "__main__":
    sys.exit(main())
