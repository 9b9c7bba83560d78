"""What an experiment hands over: tables beside the paper's numbers, sentences, pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table; numbers stay numbers, and are rounded where they are shown."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def markdown(self) -> str:
        """Return the table for Markdown."""
        lines = [f"| {' | '.join(self.columns)} |"]
        lines.append("|" + "|".join("---" for _ in self.columns) + "|")
        lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in self.rows]
        return f"{self.caption}\n\n" + "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Report:
    """What an experiment found: sentences come from numbers; pictures are file and caption."""

    title: str
    about: str
    tables: list[Table] = field(default_factory=list)
    agrees: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    pictures: list[tuple[str, str]] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the section for Markdown."""
        parts = [f"## {self.title}\n\n{self.about}\n"]
        parts += [table.markdown() for table in self.tables]
        for head, sentences in (
            ("Agrees with the paper", self.agrees),
            ("Does not agree, or is not in the paper", self.differs),
            ("What to do", self.advice),
        ):
            if sentences:
                listed = "".join(f"* {sentence}\n" for sentence in sentences)
                parts.append(f"**{head}**\n\n{listed}")
        parts += [f"![{caption}]({name})\n\n*{caption}*\n" for name, caption in self.pictures]
        return "\n".join(parts)


@dataclass(frozen=True)
class Experiment:
    """One experiment: runs as values that JSON can hold, what they say, pictures and CSV files."""

    measure: Callable[[Any], dict[str, Any]]
    tell: Callable[[dict[str, Any]], Report]
    draw: Callable[[dict[str, Any], Path], None]


def cell(value: Any) -> str:
    """Write one value for a reader."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value != 0 and abs(value) < 1e-3:
            return f"{value:.1e}"
        return f"{value:,.6g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return str(value)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write numbers as they are, for others to draw."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([f"{v:.10g}" if isinstance(v, float) else v for v in row])


def save(name: str, found: dict[str, Any], experiment: Experiment, folder: Path) -> Report:
    """Write everything of one experiment: JSON, Markdown, CSV, pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    report = experiment.tell(found)
    for table in report.tables:
        write_csv(folder / f"{name}-{table.name}.csv", table.columns, table.rows)
    experiment.draw(found, folder)
    (folder / f"{name}.md").write_text(report.markdown(), encoding="utf-8")
    return report


INTRODUCTION = """\
# The experiments of the papers

    python -m benchmarks.paper table1 --size full --from HTRU_2.csv  # downloaded without --from
    python -m benchmarks.paper figures45 figure6 example9 --size full
    python -m benchmarks.paper synthetic digits ebird --size full
    python -m benchmarks.paper digits --size full --from FOLDER       # with MNIST's images (IDX)
    python -m benchmarks.paper ebird --size full --from ebd.txt.gz    # of eBird's basic dataset
    python -m benchmarks.paper all                                   # small: some minutes
    python -m benchmarks.paper table1 --size full --redraw           # from the numbers kept

`fedem`, `impute` and `saem` run the benchmarks of the other papers (`python -m benchmarks.fedem`
and so on) from the same entry. `--size small` shows that everything runs, in seconds (`fedem` and
`impute` take minutes); `full` has the paper's sizes. Each experiment writes its numbers (JSON),
tables (CSV), pictures (PNG, with the numbers in them as CSV) and a page like the sections below to
`--output`, by default `benchmarks/paper/results` for full sizes. Sentences are worked out from the
numbers of a run. This page is made of those pages whenever a full size is run or drawn again.

Paper: P. Valdeira, C. Soares, J. Xavier, *Decentralized EM to Learn Gaussian Mixtures from Datasets
Distributed by Features*, 2022, and its supplement. Of `synthetic`, `digits` and `ebird`:
A. Dieuleveut, G. Fort, E. Moulines, G. Robin, *Federated Expectation Maximization with
heterogeneity mitigation and variance reduction*, 2021, here called paper 002. Their sections say
which numbers and data are theirs, which are ours, and which data could not be had.
"""


def page(names: Iterable[str], folder: Path) -> str:
    """Return the page of all experiments whose results are there, links leading into the folder."""
    parts = [INTRODUCTION]
    for name in names:
        section = folder / f"{name}.md"
        if section.exists():
            text = section.read_text(encoding="utf-8")
            parts.append(text.replace(f"]({name}-", f"]({folder.name}/{name}-"))
    return "\n".join(parts)
