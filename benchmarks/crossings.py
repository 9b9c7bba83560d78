"""Cross options that may not change an answer: ``python -m benchmarks.crossings --minutes N``.

A run draws a table, a command, and one or two options of it of which each claims to leave the
answer as it is: another sum, engine, codec, precision, form of the file, other units. Likelihood,
parameters and labels are held against those of the plain command, and the plain command's against
NumPy, where EM or Lloyd's iterations are a few lines. What differs is said with all three numbers.
A run may be refused by one sentence. Exit code 1 if an answer is wrong or a run ends otherwise.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

ITERATIONS = 12
"""Of EM and Lloyd: a difference would have grown by then, and nothing has converged."""

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
"""The launcher beside the interpreter first: what mpi4py is built for. Without one, no ranks."""

SLOW = 120
"""Seconds after which a command is ended."""

COARSE = 1e-3
"""Largest relative difference in single precision; of noise that a codec leaves at a server."""


@dataclass(frozen=True)
class Table:
    """A table, how many groups to look for, and what was done to the numbers.

    ``scale`` multiplied the columns: the log-likelihood falls by the sum of its logarithms.
    """

    name: str
    X: Any
    n_components: int
    columns: tuple[str, ...] = ()
    form: str = "csv"
    weighed: float = 0.0
    scale: Any = 1.0
    shift: Any = 0.0

    @property
    def jacobian(self) -> float:
        """What the log-likelihood of a row has lost by the units of the values that it has."""
        there = ~np.isnan(self.X)
        there = there[there.any(axis=1)]
        return float(np.sum(there.mean(axis=0) * np.log(self.scale)))


def _groups(
    rng: np.random.Generator, rows: int, columns: int, groups: int, apart: float
) -> tuple[Any, Any]:
    """Groups that overlap, each with a covariance of its own."""
    centres, of = rng.normal(0, apart, (groups, columns)), rng.integers(0, groups, rows)
    X = np.empty((rows, columns))
    for group in range(groups):
        mix = np.eye(columns) + 0.5 * rng.normal(size=(columns, columns)) / math.sqrt(columns)
        mine = of == group
        X[mine] = centres[group] + rng.normal(size=(int(mine.sum()), columns)) @ mix.T
    return X, of


def draw_table(rng: np.random.Generator) -> Table:
    """Draw a table of a strange kind: each is something on which an honest tool may stumble."""
    rows, columns = int(rng.integers(200, 900)), int(rng.integers(4, 12))
    groups = int(rng.integers(2, 5))
    X, of = _groups(rng, rows, columns, groups, float(rng.choice([0.4, 0.8, 2.0])))
    kinds: dict[str, Callable[[], Any]] = {
        "overlap": lambda: X,
        "sorted": lambda: X[np.argsort(of, kind="stable")],
        "noise": lambda: rng.normal(size=(60, 25)),
        "units": lambda: X * 10.0 ** rng.integers(-6, 7, columns) * (1 + 0 * X) + 50.0,
        "collinear": lambda: np.c_[X, X[:, 0] + X[:, 1] + 1e-7 * rng.normal(size=rows)],
        "outliers": lambda: np.r_[X, rng.normal(0, 60, (rows // 19, columns))],
        "repeated": lambda: np.repeat(X[:40, :3].round(1), 12, axis=0),
        "tiny": lambda: rng.normal(size=(12, 3)),
        "skewed": lambda: np.exp(X),
        "whole": lambda: np.round(3 * X),
    }
    name = str(rng.choice(list(kinds)))
    made = np.ascontiguousarray(kinds[name]())
    return Table(name, made, min(groups, 2 if name in ("tiny", "noise") else groups))


def with_gaps(table: Table, rng: np.random.Generator) -> Table:
    """Let a tenth of the values be missing."""
    X = table.X.copy()
    X[rng.random(X.shape) < 0.1] = np.nan
    return replace(table, X=X)


def draw_years(rng: np.random.Generator) -> Table:
    """Individuals over a few years, whose slope does not vary."""
    rows = []
    for i in range(40):
        intercept = rng.normal(0, 0.8)
        rows += [[i, t, 0.3 + intercept + 0.1 * t + rng.normal(0, 0.5)] for t in range(-3, 4)]
    return Table("years", np.array(rows), 1, ("id", "time", "value"))


def written(table: Table, folder: Path) -> str:
    """Write a table in its form, and return the words by which a command reads it."""
    X = np.array(table.X) * table.scale + table.shift
    names = list(table.columns) or [f"x{j}" for j in range(X.shape[1])]
    path = folder / f"table.{table.form}"
    if table.form == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            file["X"] = X
            if table.weighed:
                file["w"] = np.full(len(X), table.weighed)
        return path.name + (" --sample-weight w" if table.weighed else "")
    if table.form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({n: X[:, j] for j, n in enumerate(names)}), path)
        return path.name
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(names)
        lines.writerows([["" if math.isnan(v) else repr(float(v)) for v in row] for row in X])
    return path.name


# ---- what may not change an answer --------------------------------------------------------------

Change = Callable[[Table, np.random.Generator], Table]


@dataclass(frozen=True)
class Option:
    """One of the options that claim to leave the answer as it is, but for ``within``, relatively.

    Two of one kind do not go together; ``launch`` comes before a command that is not run alone.
    """

    kind: str
    words: str = ""
    within: float = 1e-6
    change: Change | None = None
    launch: str = ""
    name: str = ""

    @property
    def called(self) -> str:
        """As it is shown."""
        return self.name or " ".join(filter(None, (self.launch, self.words)))


def _moved(table: Table, rng: np.random.Generator) -> Table:
    """Other units, in which the least value of each column is still told from the next."""
    n_columns = table.X.shape[1]
    scale = 10.0 ** rng.integers(-3, 4, n_columns)
    return replace(table, scale=scale, shift=scale * np.nanstd(table.X, axis=0) * 20)


SUMS = (
    Option("sum", "--topology cycle --sum tree"),
    Option("sum", "--topology cycle", 1e-4),
    Option("sum", "--topology complete --weights laplacian", 1e-4),
    Option("sum", "--topology geometric --mean-degree 2", 1e-4),
    Option("sum", "--topology path --acceleration none", 1e-4),
    Option("sum", "--secure-sum"),
    Option("sum", "--secure-sum --topology cycle --sum tree"),
    *(
        (Option("engine", "--engine mpi", launch=f"{MPIEXEC} -n 2", name="two ranks"),)
        if MPIEXEC
        else ()
    ),
)
FORMS = (
    Option("form", change=lambda table, _: replace(table, form="parquet"), name="as Parquet"),
    Option("form", change=lambda table, _: replace(table, form="h5"), name="as HDF5"),
    Option(
        "form", change=lambda table, _: replace(table, form="h5", weighed=2.0), name="weights of 2"
    ),
    Option("threads", "--threads 2"),
)
UNITS = Option("units", change=_moved, within=1e-5, name="in other units")
CODECS = tuple(
    Option("codec", f"--topology {graph} --compress {codec}", 1e-4)
    for graph in ("star", "cycle")
    for codec in ("float32", "natural:12bits", "qsgd:8bits")
)
SINGLE = Option("precision", "--dtype float32", COARSE)
SCALED = Option("scale", "--scale standard", 1e-5)
WORKERS = Option("workers", "--workers 5")
AGENTS = (Option("agents", "--agents 1"), Option("agents", "--agents 4"))


@dataclass(frozen=True)
class Command:
    """A command in its plain form, what may be crossed with it, and NumPy's word on it."""

    name: str
    words: str
    options: tuple[Option, ...]
    truth: Callable[[Table, list[int]], float] | None = None
    draw: Callable[[np.random.Generator], Table] = draw_table
    gaps: bool = False
    rows: bool = True
    model: bool = True
    labels: bool = True


# ---- a few lines of NumPy -----------------------------------------------------------------------


def _em(table: Table, rows: list[int], n_blocks: int) -> float:
    """EM of a mixture with a full covariance a block, from means at rows, per row."""
    X, spread = table.X, table.X.std(axis=0)
    if (spread == 0).any():
        return math.nan
    Z = (X - X.mean(axis=0)) / spread
    n_components, blocks = len(rows), np.array_split(np.arange(X.shape[1]), n_blocks)
    means, log_weights = Z[rows], np.full(n_components, -math.log(n_components))
    covariances = [
        np.repeat(
            np.cov(Z[:, block], rowvar=False, bias=True).reshape(1, len(block), -1), n_components, 0
        )
        for block in blocks
    ]
    found = math.nan
    for _ in range(ITERATIONS + 1):
        log_joint = np.tile(log_weights, (len(Z), 1))
        for block, some in zip(blocks, covariances, strict=True):
            for k in range(n_components):
                covariance = some[k] + 1e-6 * np.eye(len(block))
                away = Z[:, block] - means[k, block]
                lower = np.linalg.cholesky(covariance)
                white = np.linalg.solve(lower, away.T)
                log_joint[:, k] -= 0.5 * (white**2).sum(axis=0) + np.log(np.diag(lower)).sum()
        top = log_joint.max(axis=1, keepdims=True)
        shares = np.exp(log_joint - top)
        evidence = shares.sum(axis=1, keepdims=True)
        found = float((top + np.log(evidence)).mean())
        shares /= evidence
        sizes = shares.sum(axis=0)
        if sizes.min() < 1e-3:
            return math.nan
        log_weights, means = np.log(sizes / len(Z)), (shares.T @ Z) / sizes[:, None]
        for b, block in enumerate(blocks):
            for k in range(n_components):
                away = Z[:, block] - means[k, block]
                covariances[b][k] = (shares[:, k, None] * away).T @ away / sizes[k]
    return found - 0.5 * math.log(2 * math.pi) * Z.shape[1] - float(np.log(spread).sum())


def _lloyd(table: Table, rows: list[int]) -> float:
    """Inertia after Lloyd's iterations; not a number where a cluster is empty."""
    X, centres = table.X, table.X[rows]
    for _ in range(ITERATIONS):
        of = ((X[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        if len(np.unique(of)) < len(rows):
            return math.nan
        centres = np.array([X[of == k].mean(axis=0) for k in range(len(rows))])
    return float(((X[:, None] - centres) ** 2).sum(axis=2).min(axis=1).sum())


EM = f"--max-iter {ITERATIONS} --tol 0"
COMMANDS = (
    Command(
        "fit", f"fit --agents 3 -k {{k}} --init-rows {{rows}} {EM}",
        (*SUMS, *FORMS, *CODECS, SINGLE, UNITS, Option("every", "--every-weight"),
         Option("rounds", "--consensus rounds --topology cycle", 1e-4),
         Option("missing", "--missing marginalize"), SCALED),
        partial(_em, n_blocks=3),
    ),
    Command(
        "fit, gaps",
        f"fit --agents 3 -k {{k}} --missing marginalize --init-rows {{rows}} {EM}",
        (*SUMS, *FORMS[:2], *CODECS, SINGLE, UNITS), gaps=True,
    ),
    Command(
        "fit, diag", f"fit --agents 3 --covariance diag -k {{k}} --init-rows {{rows}} {EM}",
        (*SUMS, *FORMS, SINGLE, UNITS, *AGENTS),
    ),
    Command(
        "fit, kmeans start", f"fit --agents 3 -k {{k}} --seed 3 {EM}",
        (*SUMS, *FORMS, UNITS), rows=False,
    ),
    Command(
        "fit, prior",
        f"fit --agents 3 -k {{k}} --prior dirichlet_process --init-rows {{rows}} {EM}",
        (*SUMS[:2], *FORMS[:2], UNITS),
    ),
    Command(
        "fit, rows", f"fit --split rows --workers 3 -k {{k}} --init-rows {{rows}} {EM}",
        (*SUMS, *FORMS, SINGLE, UNITS, WORKERS,
         Option("missing", "--missing marginalize"), SCALED),
        partial(_em, n_blocks=1),
    ),
    Command(
        "fedem", "fedem --workers 3 -k {k} --init-rows {rows} --max-iter 20",
        (*SUMS, *FORMS, UNITS, WORKERS, SCALED),
    ),
    Command(
        "kmeans",
        f"kmeans --split features --agents 3 -k {{k}} --init-rows {{rows}} --max-iter {ITERATIONS}",
        (*SUMS, *FORMS[:2], FORMS[3], SINGLE), _lloyd, model=False,
    ),
    Command(
        "kmeans, rows", f"kmeans --workers 3 -k {{k}} --init-rows {{rows}} --max-iter {ITERATIONS}",
        (*SUMS, *FORMS[:2], FORMS[3], SINGLE, WORKERS), _lloyd, model=False,
    ),
    Command(
        "impute", "impute --rank 2 --workers 3",
        (*SUMS, *FORMS[:2], Option("workers", "--workers 5", 1e-4)),
        gaps=True, rows=False, model=False, labels=False,
    ),
    Command(
        "saem", "saem --model linear --slopes time --random intercept --devices 3 --iterations 60",
        (*SUMS, *FORMS[:1], Option("devices", "--devices 5"),
         Option("time", within=1e-5, name="time + 2000",
                change=lambda table, _: replace(table, shift=np.array([0, 2000.0, 0])))),
        draw=draw_years, rows=False, model=False, labels=False,
    ),
)  # fmt: skip


# ---- runs ---------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a command answered; ``found`` is compared, each with what it is relative to."""

    code: int
    err: str
    found: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def run(words: str, folder: Path, launch: str = "") -> Answer:
    """Run a command in a process of its own and read what it says and writes."""
    program = [*shlex.split(launch), sys.executable, "-m", "vpem", *shlex.split(words)]
    variables = {**os.environ, "OMP_NUM_THREADS": "2", "VPEM_NO_COLOR": "1"}
    try:
        ended = subprocess.run(
            program, cwd=folder, capture_output=True, text=True, timeout=SLOW, env=variables
        )
    except subprocess.TimeoutExpired:
        return Answer(-1, f"still running after {SLOW} s")
    answer = Answer(ended.returncode, ended.stderr)
    if answer.code == 0:
        said = json.loads(ended.stdout)
        answer.warnings = said["warnings"]
        for name in ("log_likelihood", "inertia", "mixing_weights", "estimates"):
            if said.get(name) is not None:
                answer.found[name] = _numbers(said[name])
        if (folder / "labels.csv").exists():
            table = np.genfromtxt(folder / "labels.csv", delimiter=",", names=True)
            answer.found["labels"] = np.atleast_1d(table["label"])
        if (folder / "model.h5").exists():
            import vpem

            answer.found["means"] = np.asarray(vpem.load(folder / "model.h5").means_)
    return answer


def _numbers(said: Any) -> Any:
    if isinstance(said, dict):
        said = [v for v in said.values() if isinstance(v, int | float)]
    return np.atleast_1d(np.asarray(said, dtype=float))


def differences(plain: Answer, crossed: Answer, table: Table, within: float) -> Iterator[str]:
    """Yield what of an answer is not that of the plain command."""
    for name, one in plain.found.items():
        other = crossed.found.get(name)
        if other is None:
            continue
        if name == "labels":
            alike = float(np.mean(one == other))
            # Rows between two components go either way.
            if alike < 1 - max(0.002, 20 * within):
                yield f"labels: {alike:.4f} are alike"
            continue
        if name == "estimates" and np.any(table.shift):
            one, other = one[1:], other[1:]  # the intercept is that of another time
        size = np.maximum(np.abs(one), 1.0)
        if name == "means":
            # Those of single precision are told to its last digit.
            finest = np.finfo(other.dtype).eps * np.abs(other) / table.scale
            other = (other - table.shift) / table.scale
            size = np.maximum(np.nanstd(table.X, axis=0), finest / (100 * within))
        if name == "log_likelihood":
            other = other + table.jacobian
        worst = float(np.max(np.abs(one - other) / np.where(size > 0, size, 1.0)))
        # Parameters move along directions in which the likelihood is flat.
        if not worst <= (within if name == "log_likelihood" else 100 * within):
            yield f"{name}: {one.ravel()[:4]} and {other.ravel()[:4]} ({worst:.1e})"


@dataclass
class Tally:
    """What all runs came to."""

    runs: int = 0
    alike: int = 0
    refused: int = 0
    wrong: list[dict[str, Any]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)


def cross(number: int, seed: int, tally: Tally) -> None:
    """Draw a run by its number, and count what it came to."""
    rng = np.random.default_rng([seed, number])
    command = COMMANDS[number % len(COMMANDS)]
    table = command.draw(rng)
    if command.gaps:
        table = with_gaps(table, rng)
    full = np.flatnonzero(~np.isnan(table.X).any(axis=1))
    k = table.n_components
    if command.rows and len(np.unique(table.X[full], axis=0)) < k:
        return
    _, first = np.unique(table.X[full], axis=0, return_index=True)
    rows = sorted(full[rng.choice(first, k, replace=False)].tolist()) if command.rows else []
    words = command.words.format(k=k, rows=",".join(map(str, rows)))
    chosen = [command.options[i] for i in rng.permutation(len(command.options))[:2]]
    if chosen[0].kind == chosen[1].kind or {"sum", "rounds", "codec"} >= {o.kind for o in chosen}:
        chosen = chosen[:1]
    changed = table
    for option in chosen:
        if option.change is not None:
            changed = option.change(changed, rng)
    told = f"{command.name}, {table.name} {table.X.shape}: {' + '.join(o.called for o in chosen)}"
    outputs = " --labels labels.csv" * command.labels + " -o model.h5" * command.model
    answers = []
    for one, options in ((table, ()), (changed, chosen)):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            read = written(one, folder)
            added = " ".join(o.words for o in options)
            launch = " ".join(filter(None, (o.launch for o in options)))
            whole = words.replace(" ", f" {read} ", 1) + f" {added} --json{outputs}"
            answers.append(run(whole, folder, launch))
    plain, crossed = answers
    tally.runs += 1
    wrong = []
    for answer in answers:
        lines = [line for line in answer.err.splitlines() if line.startswith("vpem: error: ")]
        if answer.code not in (0, 2) or (answer.code == 2 and len(lines) != 1):
            wrong.append(f"exit code {answer.code}: {answer.err[-300:]}")
        elif answer.code == 2:
            tally.refusals[f"{command.name}: {lines[0][:110]}"] += 1
    if not wrong and plain.code == crossed.code == 0:
        within = max((o.within for o in chosen), default=1e-6)
        wrong = list(differences(plain, crossed, changed, within))
        if command.truth is not None:
            name = "inertia" if command.truth is _lloyd else "log_likelihood"
            with np.errstate(all="ignore"):
                truth = _truth(command.truth, table, rows)
            got = float(plain.found[name][0])
            if math.isfinite(truth) and abs(got - truth) > 1e-6 * max(1.0, abs(truth)):
                wrong.append(f"plain {name} {got:.9g}, NumPy's {truth:.9g}")
            elif wrong:
                wrong.append(f"NumPy's {name} is {truth:.9g}, the plain command's {got:.9g}")
        tally.alike += not wrong
    else:
        tally.refused += not wrong
    if wrong:
        added = " ".join(o.called for o in chosen)
        tally.wrong.append(
            {"run": number, "what": told, "command": f"vpem {words} {added}", "wrong": wrong,
             "warnings": crossed.warnings}
        )  # fmt: skip


def _truth(known: Callable[[Table, list[int]], float], table: Table, rows: list[int]) -> float:
    try:
        return known(table, rows)
    except np.linalg.LinAlgError:
        return math.nan


def main(words: list[str] | None = None) -> int:
    """Run crossings for so long, and tell which changed an answer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crossings", description=__doc__)
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    how_long.add_argument("--runs", type=int, help="how many runs, in place of how long")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same runs")
    parser.add_argument("--begin", type=int, default=0, help="number of the first run")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of lines")
    given = parser.parse_args(words)
    console = Console(highlight=False, stderr=given.json, soft_wrap=True)
    tally, until, number = Tally(), time.monotonic() + 60 * given.minutes, given.begin
    while number < given.begin + given.runs if given.runs else time.monotonic() < until:
        before = len(tally.wrong)
        cross(number, given.seed, tally)
        for what in tally.wrong[before:]:
            console.print(f"run {what['run']}: {what['what']}\n  {what['command']}", markup=False)
            for line in (*what["wrong"], *what["warnings"]):
                console.print(f"    {line}", markup=False)
        number += 1
    if given.json:
        print(json.dumps({"runs": tally.runs, "alike": tally.alike, "refused": tally.refused,
                          "wrong": tally.wrong, "refusals": tally.refusals}))  # fmt: skip
    for what, times in tally.refusals.most_common():
        console.print(f"refused {times} times, {what}", markup=False)
    console.print(
        f"{tally.runs} crossings with seed {given.seed}: {tally.alike} alike, {tally.refused} "
        f"refused, {len(tally.wrong)} wrong"
    )
    return 1 if tally.wrong or not tally.alike else 0


if __name__ == "__main__":
    sys.exit(main())
