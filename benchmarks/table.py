"""Everything that others also do, beside them, in one run: ``python -m benchmarks table``.

At its full size, a quarter of an hour, it writes benchmarks/table.json and the table of
docs/reference/times.md. Nothing is timed before all have found the same, where that can be asked.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from vpem.saem.fit import fit_saem

from . import busy, children, kmeans, peers, pooled
from .measure import (
    ROOT,
    VPEM,
    Options,
    Usage,
    call,
    compare,
    failure,
    r_packages,
    summary,
    usage,
)
from .problems import mixture_rows
from .saem_found import LIKELIHOOD, SCRIPT, ours, read_estimates
from .saem_peers import PUBLIC, read_rows
from .saem_shared import DATA, boys, theophylline
from .tables import shown

KEPT = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "reference" / "times.md"
ENDS = ("<!-- what `python -m benchmarks table` found -->\n", "<!-- end -->\n")

Result = dict[str, Any]
SHARE = {"tiny": 200, "small": 10, "medium": 2, "full": 1}
QUICK = ("tiny", "small")
"""Sizes of some cases only."""

SHAPE = (200_000, 20, 3)
"""Rows, features and components of files, and of fits whose memory is measured."""

LINEAR = {"Oxboys": "nlme", "Orthodont": "nlme", "sleepstudy": "nlme",
          "cake": "lme4", "Pixel": "lme4"}  # fmt: skip
MCLUST = (
    "suppressPackageStartupMessages(library(mclust)); x <- as.matrix(read.csv(commandArgs(TRUE)));"
    "cat(-max(mclustBIC(x, G = 1:9, verbose = FALSE), na.rm = TRUE))"
)
TABLE = "TABLE"
"""In commands: the file."""

MEMORY = "times"
"""Unit of memory: peak, less that with a table of few rows, over the bytes of the numbers."""


def command(*words: str) -> list[str]:
    """Return the command vpem."""
    return [sys.executable, *VPEM, *words]


def child(*words: str) -> list[str]:
    """Return the command of a child: see `benchmarks.children`."""
    return [sys.executable, "-m", "benchmarks.children", *words]


def seconds_of(words: list[str]) -> float:
    """Run a command; return its seconds by the clock."""
    return usage(*words).seconds


def absent(*names: str) -> dict[str, str]:
    """Say which peers are not installed."""
    in_r = r_packages()
    return {
        name: "not installed" for name in names
        if (in_r[name] == "absent" if name in in_r else importlib.util.find_spec(name) is None)
    }  # fmt: skip


def answer(printed: str) -> float | None:
    """Return what a command printed: a number, a log-likelihood in JSON, or the BIC of the best."""
    if printed.startswith("{"):
        found = json.loads(printed)
        return found["cells"][found["best"]]["bic"] if "cells" in found else found["log_likelihood"]
    try:
        return float(printed)
    except ValueError:
        return None


def processes(
    options: Options, name: str, case: str, commands: dict[str, list[str]],
    tables: tuple[str, str, int], without: Sequence[str] = (), same: float | None = None,
) -> Iterator[Result]:  # fmt: skip
    """Yield seconds by the clock, of processors, and memory of commands that name ``TABLE``.

    Tables are a large one, a little one, and the bytes of the large one's numbers, over which
    stands the peak less that of the same with the little one. Answers may differ by ``same``.
    """
    large, little, numbers = tables

    def on(path: str, who: str) -> Usage:
        return usage(*(path if word is TABLE else word for word in commands[who]))

    before: dict[str, float] = dict.fromkeys(commands, 0.0) if options.size == "tiny" else {}
    found: dict[str, list[Usage]] = {who: [] for who in commands}

    def run(who: str) -> float:
        if who not in before:
            before[who] = on(little, who).peak
        found[who].append(on(large, who))
        return found[who][-1].seconds

    base = list(commands)[-1]
    timed = {who: partial(run, who) for who in commands}
    clock = compare(options, name, case, base, timed, absent(*without))
    found = {who: found[who][-len(rounds) :] for who, rounds in clock["seconds"].items()}
    answers = {who: answer(own[-1].printed) for who, own in found.items()}
    clock["facts"] = told = {who: value for who, value in answers.items() if value is not None}
    assert same is None or not told or np.ptp(list(told.values())) <= same, told
    yield clock
    used = {who: [one.processors for one in own] for who, own in found.items()}
    yield summary(name, case, base, used, None, {}) | {"unit": "s of processors"}
    held = {
        who: [max((one.peak - before[who]) / numbers, 0.01) for one in own]
        for who, own in found.items()
    }
    yield summary(name, case, base, held, None, {}) | {"unit": MEMORY}


def one_block(options: Options, folder: Path) -> Iterator[Result]:
    """An EM iteration, full covariances."""
    for case in peers.OF_TABLE:
        yield peers.full(options, case, "overlapping", np.float64, options.threads)


def whole_fits(options: Options, folder: Path) -> Iterator[Result]:
    """Whole fits from default starts to the same log-likelihood."""
    size = "tiny" if options.size == "tiny" else "small"
    seeds, few = (1, 4) if options.size in QUICK else (3, None)
    yield from islice(pooled.measure(replace(options, size=size), n_seeds=seeds), few)


def clusters(options: Options, folder: Path) -> Iterator[Result]:
    """Lloyd's k-means from the same rows until no row changes."""
    cases = [
        replace(one, m=max(one.m // SHARE[options.size], 10 * one.k), workers=(1,), dtypes=(float,))
        for one in kmeans.BIG
    ]
    for result in kmeans.measure(options, cases=cases, starts=("rows",)):
        own, their = result["facts"]["iterations"]
        assert (own, result["facts"]["labels_other"]) == (their, 0), result["facts"]
        yield result | {"case": f"{result['case']}, {own} passes"}


def first_calls(options: Options, folder: Path) -> Iterator[Result]:
    """What a user waits for before anything happens, and for a first fit: 569 x 30, K = 2."""
    empty = [sys.executable, "-c", "pass"]
    starts = {"vpem --help": command("--help"), "python -c pass": empty}
    timed = {who: partial(seconds_of, words) for who, words in starts.items()}
    yield compare(options, "first", "the help, a whole process", list(starts)[-1], timed)

    def seconds(library: str, which: int) -> float:
        return float(usage(*child("first", library)).printed.split()[which])

    for which, case in enumerate(("imports and first fit", "second fit")):
        timed = {who: partial(seconds, who, which) for who in ("vpem", "scikit-learn")}
        yield compare(options, "first", f"{case}, 569 x 30, K = 2", "scikit-learn", timed)


def individuals(options: Options, folder: Path) -> Iterator[Result]:
    """SAEM: theophylline beside pynlme, lines beside nlme and lme4."""
    path, tiny = str(DATA / "theophylline.csv"), options.size == "tiny"
    words = ["saem", path, "--model", "one-compartment", "-o", str(folder / "drug.h5"), "--force"]
    words += ["--iterations", "20", "--burn-in", "10"] if tiny else []
    data, few = theophylline(), {"n_iter": 8, "burn_in": 6} if tiny else {}
    how: dict[str, Any] = {"model_options": {"parameters": ("ka", "cl", "v")}, **few}
    whole = {"vpem saem": command(*words)}
    fits: dict[str, Callable[[], Any]] = {"vpem": lambda: fit_saem(data, "one-compartment", **how)}
    if not (without := absent("pynlme")):
        whole["pynlme as saemix, a script"] = child("theophylline", path, "r")
        fits["pynlme, as saemix"] = partial(children.theophylline, path, "r")
        own, their = (run() for run in fits.values())
        off = (own.theta[[0, 2, 1]] - their[:3]) / own.standard_errors[[0, 2, 1]]
        assert tiny or np.abs(off).max() < 0.3, off
        if options.size not in QUICK:
            fits["pynlme"] = partial(children.theophylline, path)
    whole_ = {who: partial(seconds_of, words) for who, words in whole.items()}
    fits_ = {who: call(run) for who, run in fits.items()}
    for case, timed in (("a whole process", whole_), ("a fit", fits_)):
        yield compare(options, "saem", f"theophylline, {case}", list(timed)[-1], timed, without)
    for name in list(LINEAR)[: 1 if options.size in QUICK else None]:
        if name == "Oxboys" or not absent("nlme", "lme4"):
            yield line(options, name, folder)


def line(options: Options, name: str, folder: Path) -> Result:
    """Compare a linear model with R's, fitted ten times in a process that has done so once."""
    peer, case = LINEAR[name], PUBLIC[name]
    without, timed = absent("nlme", "lme4"), {}

    def by_r() -> float:
        subprocess.run(["Rscript", SCRIPT, "public", folder, name], check=True)
        with (folder / "fits.csv").open(encoding="utf-8") as stream:
            return float(next(csv.DictReader(stream))["seconds"])

    if without:  # the script has both, or neither runs
        without.setdefault(peer, f"not run without {next(iter(without))}")
        data = boys()
    else:
        by_r()
        data = read_rows(folder / f"{name}.csv")
        theirs = read_estimates(folder / "fits.csv", "data")[name][LIKELIHOOD][0]
        mine = ours(data, case.model, case.options)[LIKELIHOOD][0]
        assert abs(mine - theirs) < 0.02, (name, mine, theirs)
        timed[peer] = by_r

    def ten() -> None:
        for _ in range(10):
            ours(data, case.model, case.options)

    timed = {"vpem": lambda: call(ten)() / 10, **timed}
    return compare(options, "saem", f"{name}, a line each", list(timed)[-1], timed, without)


def written(folder: Path, m: int, d: int, k: int) -> dict[str, str]:
    """Write rows of a mixture as CSV and as Parquet."""
    import pyarrow as pa
    from pyarrow import csv as text
    from pyarrow import parquet

    X = mixture_rows(m, d, k, 1.0)
    made = pa.table({f"x{j}": X[:, j] for j in range(d)})
    paths = {kind: str(folder / f"{m}.{kind}") for kind in ("csv", "parquet")}
    text.write_csv(made, paths["csv"])
    parquet.write_table(made, paths["parquet"])
    return paths


def shape(options: Options, folder: Path, kind: str) -> tuple[str, tuple[str, str, int]]:
    """Return the size of the large table, and the tables: files, or numbers of rows."""
    m, d, k = SHAPE
    m = max(m // SHARE[options.size], 1_000)
    large, little = (str(n) if kind == "rows" else written(folder, n, d, k)[kind] for n in (m, 200))
    return f"{m:,} x {d}", (large, little, 8 * m * d)


def files(options: Options, folder: Path) -> Iterator[Result]:
    """From a file to an answer."""
    k, out = str(SHAPE[2]), str(folder / "labels.csv")
    own, their = str(folder / "own.h5"), str(folder / "their.joblib")
    readers = [one for one in ("pyarrow", "pandas") if one not in absent("pandas")]
    commands = {
        "fit": (["fit", TABLE, "-k", k, "-o", own, "--force", "--json"], (their, k)),
        "predict": (["predict", own, TABLE, "-o", out, "--force"], (their, out)),
        "score": (["score", own, TABLE, "--json"], (their,)),
    }
    for what, (mine, theirs) in commands.items():
        for kind in ("csv", "parquet") if what == "fit" or options.size not in QUICK else ():
            words = {f"vpem {what}": command(*mine)}
            if what == "fit":
                words["pyarrow, reading alone"] = child("read", TABLE)
            for one in readers:
                words[f"{one} + scikit-learn"] = child("answer", what, TABLE, one, *theirs)
            size, tables = shape(options, folder, kind)
            case = f"{what} of {size}, {kind}"
            yield from processes(options, "file", case, words, tables, ("pandas",), 1e-3)


def selection(options: Options, folder: Path) -> Iterator[Result]:
    """A search over all models of covariances and one to nine components."""
    m, top = (200, 2) if options.size in QUICK else (1_000, 9)
    words = ("select", TABLE, "-k", f"1-{top}", "--covariance", "all", "--agents", "1", "--json")
    commands = {"vpem select": command(*words)}
    if not absent("mclust"):
        commands["mclust"] = ["Rscript", "-e", MCLUST.replace("9", str(top)), TABLE]
    large, little = (written(folder, n, 6, 3)["csv"] for n in (m, 100))
    tables, case = (large, little, 8 * m * 6), f"-k 1-{top} --covariance all of {m:,} x 6"
    yield from list(processes(options, "select", case, commands, tables, ("mclust",)))[:2]


def memory(options: Options, folder: Path) -> Iterator[Result]:
    """Peak memory of fits over the bytes of their numbers."""
    d, k = map(str, SHAPE[1:])
    options = replace(options, repeats=min(options.repeats, 2))  # it differs little
    of_file = child("answer", "fit", TABLE, "pyarrow", str(folder / "their.joblib"), k)
    for agents in ("1", "10"):
        fit = {who: child("memory", who, agents, TABLE, d, k) for who in ("vpem", "scikit-learn")}
        shell = {"vpem fit": command("fit", TABLE, "-k", k, "--agents", agents)}
        for kind, words in (("rows", fit), ("csv", shell | {"pyarrow + scikit-learn": of_file})):
            size, tables = shape(options, folder, kind)
            where = "in memory" if kind == "rows" else "of a CSV"
            case = f"fit of {size} {where}, {agents} agent{'s' * (agents != '1')}"
            yield list(processes(options, "memory", case, words, tables))[-1]


def neighbours(options: Options, folder: Path) -> Iterator[Result]:
    """Two threads beside one: alone, and beside a busy process for each processor."""
    yield from busy.measure(replace(options, size="tiny" if options.size == "tiny" else "small"))


PARTS = {
    "One block, an EM iteration": one_block,
    "Whole fits, start included, to the same log-likelihood": whole_fits,
    "k-means, from the same rows to the same labels": clusters,
    "The first call of a process": first_calls,
    "Individuals (SAEM)": individuals,
    "From a file to an answer, whole processes": files,
    "Selection, whole processes": selection,
    "Memory": memory,
    "Two threads beside one": neighbours,
}


def measure(options: Options) -> Iterator[Result]:
    """Yield all results, each with the part of the table that it belongs to.

    What fails, or finds something else than its peers, ends its part and no other.
    """
    for part, run in PARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                for result in run(options, Path(folder)):
                    yield result | {"part": part}
            except Exception as error:
                traceback.print_exc()
                why = failure(error)
                rest = summary(part, "what follows", "", {}, {part: why}, {})
                yield rest | {"part": part, "failed": [f"{part}: {why}"]}


# ---- the page ------------------------------------------------------------------------------------


def ratios(result: Result, own: str, other: str) -> list[float]:
    """Return what the other takes over what ours takes, of each round."""
    if own in result["facts"].get("ratios", {}):
        return result["facts"]["ratios"][own]
    seconds = result["seconds"]
    return [b / max(t, 1e-9) for b, t in zip(seconds[other], seconds[own], strict=True)]


def rows(result: Result) -> Iterator[str]:
    """Yield a row for every contender that a result compares ours with."""
    median, unit = result["median"], result.get("unit", "")
    mine = [who for who in result["seconds"] if who.startswith("vpem")] or [""]
    theirs = [who for who in median if not who.startswith("vpem")]
    own = mine[0]
    if not theirs and len(mine) > 1:  # ours beside ours
        own, theirs = mine[1], mine[:1]
    head = f"{result['case']} | {shown(median[own], unit) if own in median else ''}"
    for who in (*theirs, *result["absent"]):
        if who in theirs:
            found = sorted(ratios(result, own, who))
            spread = "not compared"
            if found:
                spread = f"{statistics.median(found):.3g} ({found[0]:.3g} to {found[-1]:.3g})"
            yield f"| {head} | {who} | {shown(median[who], unit)} | {spread} |"
        else:
            why = result["absent"][who].replace("|", "/")
            yield f"| {head} | {who} | absent: {why} | |"
        head = " | "


def lines(whole: Result) -> Iterator[str]:
    """Yield the table of the page, of what was kept, and on which machine."""
    of = whole["environment"]
    peers_ = [f"{name} {of[name]}" for name in list(of)[list(of).index("python") :]
              if name not in ("threads", "load_after", "date")]  # fmt: skip
    yield (
        f"{of['date']}, size {whole['size']}: {of['processor']} ({of['instructions']}), "
        f"{of['processors']} processors, {of['threads']} threads; {of['system']}, "
        f"{', '.join(peers_)}. Load before {of['load_before']:.2f}, after {of['load_after']:.2f}."
    )
    yield from ("", "| | vpem | beside | | over vpem |", "|---|---|---|---|---|")
    for part, results in groupby(whole["parts"]["table"], lambda result: result["part"]):
        yield f"| **{part}** | | | | |"
        for result in results:
            yield from rows(result)


def keep(whole: Result) -> None:
    """Write the numbers to five digits, a result a line, and the table of the page."""
    kept = json.loads(json.dumps(whole), parse_float=lambda text: float(f"{float(text):.5g}"))
    results = ",\n  ".join(json.dumps(result) for result in kept["parts"].pop("table"))
    head = json.dumps(kept | {"parts": None}).removesuffix("null}")
    KEPT.write_text(f'{head}{{"table": [\n  {results}\n]}}}}\n', encoding="utf-8")
    text = "\n".join(lines(json.loads(KEPT.read_text(encoding="utf-8"))))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(ENDS[0])
    after = rest.partition(ENDS[1])[2]
    PAGE.write_text(f"{before}{ENDS[0]}{text}\n{ENDS[1]}{after}", encoding="utf-8")
