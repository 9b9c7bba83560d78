"""Run the papers' experiments: ``python -m benchmarks.paper EXPERIMENT ... [--size full]``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from pathlib import Path

from vpem._core.threads import thread_count
from vpem.errors import VpemError

from .report import Experiment, page, save

EXPERIMENTS: dict[str, str] = {
    "table1": "Table 1 and Figure 7 of the VP-EM paper: pulsars (HTRU2)",
    "figures45": "Figures 4 and 5: 100 agents, dense and sparse graphs",
    "figure6": "Figure 6: five features on a cycle, on public data",
    "example9": "the supplement's 9 agents and its Figure 2",
    "synthetic": "Figure 3 of the FedEM paper: two Gaussians over 100 agents",
    "digits": "Figure 3 of the FedEM paper: handwritten digits (--from: MNIST's images)",
    "ebird": "Figure 3 of the FedEM paper: trends of two birds (--from: eBird's basic dataset)",
}

OTHERS: dict[str, tuple[str, str]] = {
    "fedem": ("benchmarks.fedem", "FedEM and VR-FedEM: mean field against epochs and bytes"),
    "impute": ("benchmarks.impute", "FedMissEM: missing values imputed"),
    "saem": ("benchmarks.saem", "the SAEM family: tables over models and codecs"),
}
"""Benchmarks that run experiments of the other papers; each is also a command of its own."""

RESULTS = Path(__file__).parent / "results"
"""What is kept of the full sizes."""

SMALL = Path(__file__).parents[1] / "results" / "paper"


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    listed = "\n".join(
        f"  {name:10} {what}"
        for name, what in [*EXPERIMENTS.items(), *((n, w) for n, (_, w) in OTHERS.items())]
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"{__doc__}\n\n{listed}\n  all        every one of them",
    )  # fmt: skip
    names = (*EXPERIMENTS, *OTHERS)
    parser.add_argument("experiments", nargs="+", metavar="EXPERIMENT", help="as above")
    parser.add_argument("--size", choices=("small", "full"), default="small",
                        help="small: seconds; full: as in the paper")  # fmt: skip
    parser.add_argument("--from", dest="given", type=Path, metavar="FILE",
                        help="table1: HTRU2 as CSV, zip or HDF5, downloaded if absent; digits: "
                        "MNIST's images (IDX); ebird: eBird's basic dataset")  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="DIR",
                        help=f"default: {RESULTS.relative_to(Path(__file__).parents[2])} for full, "
                        f"{SMALL.relative_to(Path(__file__).parents[2])} for small")  # fmt: skip
    parser.add_argument("--threads", type=int, help="threads of the kernels (default: all)")
    parser.add_argument("--redraw", action="store_true",
                        help="run nothing: tables, sentences, pictures from the JSON in --output",
                        )  # fmt: skip
    given = parser.parse_args(words)
    if "all" in given.experiments:
        given.experiments = list(names)
    if unknown := [name for name in given.experiments if name not in names]:
        parser.error(f"no experiment called {unknown[0]}; there are {', '.join(names)}, all")
    given.output = given.output or (RESULTS if given.size == "full" else SMALL)
    given.threads = thread_count(given.threads)
    return given


def experiment(name: str) -> Experiment:
    """Return an experiment of this folder: its runs, and what they say."""
    runs = importlib.import_module(f"benchmarks.paper.{name}")
    if hasattr(runs, "tell"):  # all in one file
        return Experiment(runs.measure, runs.tell, runs.draw)
    told = importlib.import_module(f"benchmarks.paper.{name}_told")
    drawn = importlib.import_module(f"benchmarks.paper.{name}_pictures")
    return Experiment(runs.measure, told.tell, drawn.draw)


def takes(name: str, path: Path) -> bool:
    """Whether an experiment is the one that a file is for, where several are run."""
    claims = {
        one: importlib.import_module(f"benchmarks.paper.{one}").recognises(path)
        for one in ("digits", "ebird")
    }
    return claims.get(name, name == "table1" and not any(claims.values()))


def other(name: str, given: argparse.Namespace) -> int:
    """Run a benchmark of its own."""
    module, _ = OTHERS[name]
    if importlib.util.find_spec(module) is None:
        print(f"absent: {name}, there is no {module}", file=sys.stderr)
        return 0
    given.output.mkdir(parents=True, exist_ok=True)
    words = ["--size", given.size, "--folder", str(given.output)]
    return int(importlib.import_module(module).main(words))


def main(words: list[str] | None = None) -> int:
    """Run the experiments asked for; tables and sentences also go to the screen."""
    given = arguments(words)
    for name in given.experiments:
        if name in OTHERS:
            if not given.redraw and (code := other(name, given)):
                return code
            continue
        this = experiment(name)
        mine = argparse.Namespace(**vars(given))
        if given.given is not None and len(given.experiments) > 1 and not takes(name, given.given):
            mine.given = None
        try:
            if given.redraw:
                kept = given.output / f"{name}.json"
                found = json.loads(kept.read_text(encoding="utf-8"))
            else:
                found = this.measure(mine)
            report = save(name, found, this, given.output)
        except (VpemError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        print(report.markdown())
        print(f"everything: {given.output / name}*", file=sys.stderr)
    if given.output == RESULTS:
        text = page(EXPERIMENTS, RESULTS)
        (RESULTS.parent / "README.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
