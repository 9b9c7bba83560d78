"""Individuals in a CSV table: a line a measurement, or a dose."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vpem.checks import read_float
from vpem.errors import InputError, MissingColumnError, did_you_mean, shorten
from vpem.files.long_csv import LONGEST_NAME, read_cells, sort_names
from vpem.files.opening import PathLike
from vpem.saem.formats.events import doses_of_lines, event_columns, measured_lines
from vpem.saem.individuals import Individuals, from_long

MOST_COLUMNS = 1024
MISSING = ("", "NA", "NaN", "nan", ".")


class LongTable:
    """The lines of a CSV table."""

    def __init__(
        self,
        path: PathLike,
        three: tuple[str, str, str],
        covariates: Sequence[str] | None,
        also: Sequence[str],
        words: Sequence[str],
        missing: bool,
        doses: Mapping[str, str] | None,
        texts: Sequence[str] = (),
    ) -> None:
        self.source, self.three, self.missing = os.fspath(path), three, missing
        self.named, self.words, self.texts = doses, words, texts
        self.odd: dict[str, tuple[str, str]] = {}
        self.others: list[str] = []
        self.events: dict[str, str] = {}
        self.wheres: list[str] = []
        self.ids: list[str] = []
        self.cells: list[list[str | float]] = []

        def places(header: list[str]) -> list[int]:
            names = [field.strip() for field in header]
            self._choose(names, covariates, also)
            return [names.index(name) for name in self.columns]

        for where, cells in read_cells(path, places):
            self._take(where, cells)
        if not self.ids:
            raise InputError(f"{self.source} has a header but no rows")

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are read."""
        return (*self.three, *self.others, *self.events.values())

    def _choose(
        self, names: list[str], covariates: Sequence[str] | None, also: Sequence[str]
    ) -> None:
        """Choose columns of a header."""
        wanted = covariates
        if covariates is not None:
            wanted = [*covariates, *(name for name in also if name in names)]
        if self.named is not None:
            taken = {*self.three, *(wanted or ())}
            self.events = event_columns(names, self.named, taken, self.source)
        others = _columns(names, self.three, wanted, self.source)
        self.others = [name for name in others if name not in self.events.values()]

    def _take(self, where: str, cells: list[str]) -> None:
        """Take a line."""
        if not 0 < len(cells[0]) <= LONGEST_NAME or "\0" in cells[0]:
            raise InputError(f"{where} names no individual, got {cells[0][:40]!r}")
        self.ids.append(cells[0])
        if self.events:
            self.wheres.append(where)
        named = zip(self.columns[1:], cells[1:], strict=True)
        may_miss = self.columns[3:] if not (self.missing or self.events) else self.columns[2:]
        self.cells.append([
            cell if name in self.others and (name in self.words or self._is_text(name, cell, where))
            else _number(cell, name, name in may_miss, where) for name, cell in named
        ])  # fmt: skip

    def _is_text(self, name: str, cell: str, where: str) -> bool:
        """Whether a cell of a column that may be text is one; where the first is."""
        found = name in self.texts and cell not in MISSING and read_float(cell, finite=True) is None
        if found:
            self.odd.setdefault(name, (cell, where))
        return found

    def individuals(self) -> Individuals:
        """Make individuals of the lines."""
        numbered: dict[str, list[str]] = {}
        columns = {}
        for name, cells in zip(self.columns[1:], zip(*self.cells, strict=True), strict=True):
            if name in self.odd and any(isinstance(cell, float) and cell == cell for cell in cells):
                _number(self.odd[name][0], name, True, self.odd[name][1])
            is_text = name in self.odd or isinstance(cells[0], str)
            texts = ["" if isinstance(cell, float) else cell for cell in cells] if is_text else []
            columns[name] = np.array(_numbered(name, texts, numbered) if is_text else cells)
        kept = dict(zip(("id", "time", "value"), self.three, strict=True))
        told: dict[str, Any] = {**kept, **({"words": numbered} if numbered else {})}
        labels = np.array(self.ids, dtype=object)
        _, time, value = self.three
        if not self.events:
            read = {name: columns[name] for name in self.others}
            found = from_long(
                labels, columns[time], columns[value], read, self.source, self.missing
            )
            return replace(found, columns=told)
        events = {name: columns[column] for name, column in self.events.items()}
        rows, given = measured_lines(events, columns[value], self.wheres)
        empty = rows & np.isnan(columns[value])
        if empty.any() and not self.missing:
            _number("", value, False, self.wheres[int(empty.argmax())])
        if not rows.any():
            raise InputError(f"{self.source} has doses, but no measurements")
        read = {name: columns[name][rows] for name in self.others}
        found = from_long(
            labels[rows], columns[time][rows], columns[value][rows], read, self.source, self.missing
        )
        at = [where for where, is_dose in zip(self.wheres, given, strict=True) if is_dose]
        some = {name: column[given] for name, column in events.items()}
        doses = doses_of_lines(
            found.names, labels[given], columns[time][given], some, at, self.source
        )
        others = {name: column for name, column in self.events.items() if name != column}
        return replace(found, columns={**told, "doses": others}, doses=doses)


def _numbered(name: str, cells: Sequence[Any], numbered: dict[str, list[str]]) -> list[float]:
    """Places of a column's words in the alphabet; numbers are words too, unless they are places."""
    numbers = [math.nan if cell in MISSING else read_float(cell, finite=True) for cell in cells]
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        if {number for number in known if number == number} <= {0.0, 1.0} or 0.0 in known:
            return known
        cells = [cell if cell in MISSING else f"{number:g}"
                 for cell, number in zip(cells, known, strict=True)]  # fmt: skip
    numbered[name] = sort_names({cell for cell in cells if cell not in MISSING})
    place = {word: float(number) for number, word in enumerate(numbered[name])}
    return [place.get(cell, math.nan) for cell in cells]


def _columns(
    header: list[str], three: tuple[str, ...], covariates: Sequence[str] | None, source: str
) -> list[str]:
    """Names of the covariates to read."""
    if len(set(header)) < len(header) or len(header) > MOST_COLUMNS:
        raise InputError(
            f"{source}: the names of its columns, in the first line, must differ and be at most "
            f"{MOST_COLUMNS}"
        )
    others = [name for name in header if name not in three and name]
    if covariates is not None:
        others = list(dict.fromkeys(covariates))
    lacking = [what for what in (*three, *others) if what not in header]
    if lacking:
        have = shorten([repr(name) for name in header]) or "an empty line"
        *first, last = [f"{what!r}{did_you_mean(what, header)}" for what in lacking]
        named = f"columns {', '.join(first)} and {last}" if first else f"column {last}"
        raise MissingColumnError(f"{source} has no {named} in its first line; got {have}", *lacking)
    return others


def _number(text: str, column: str, may_miss: bool, where: str) -> float:
    if may_miss and text in MISSING:
        return math.nan
    number = read_float(text, finite=True)
    if number is not None:
        return number
    advice = (
        "write words as 0 and 1, or leave out such columns"
        if may_miss
        else "leave out lines of what was not measured"
    )
    if text in MISSING and not may_miss:
        advice += "; --missing marginalize does so where the value alone is missing"
    if read_float(text.replace(",", ".", 1), finite=True) is not None:
        advice = "write numbers with a decimal point"
    raise InputError(f"{where} has {text[:40]!r} for {column!r}, no finite number; {advice}")
