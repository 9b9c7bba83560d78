"""Doses of individuals, when, how much and over how long, also as lines of a table.

Such lines have the columns that pharmacometricians write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vpem.checks import Doubles, Indices, Labels, Mask
from vpem.errors import InputError, MissingColumnError, check_choice, did_you_mean, shorten

if TYPE_CHECKING:
    from vpem.saem.individuals import Individuals

EVENTS = ("amt", "rate", "duration", "evid", "mdv", "addl", "ii", "ss")
"""Columns by their usual names: amount, rate or duration of an infusion, kind of event, whether
there is no measurement, further doses, the time between them, steady state."""

MOST_DOSES = 10_000_000


@dataclass(frozen=True, eq=False)
class Doses:
    """Doses in the order of individuals, and of time within each.

    Doses ``first[i]`` to ``first[i + 1]`` are those of individual i. A duration of 0 is at once, as
    a tablet or an injection; above 0 it is an infusion of a constant rate.
    """

    first: Indices  # (n + 1,)
    times: Doubles  # (E,)
    amounts: Doubles  # (E,)
    durations: Doubles  # (E,)

    @property
    def counts(self) -> Indices:
        """Doses of each individual, (n,)."""
        return np.diff(self.first)

    @property
    def individual_of(self) -> Indices:
        """Individual of each dose, (E,)."""
        return np.repeat(np.arange(len(self.first) - 1), self.counts)

    @property
    def columns(self) -> tuple[Doubles, Doubles, Doubles]:
        return self.times, self.amounts, self.durations

    @classmethod
    def none(cls, n: int) -> Doses:
        return cls(np.zeros(n + 1, dtype=np.intp), *np.zeros((3, 0)))

    @classmethod
    def once(cls, amounts: Doubles) -> Doses:
        """One dose at time 0 an individual, (n,), at once."""
        n = len(amounts)
        return cls(np.arange(n + 1, dtype=np.intp), np.zeros(n), amounts, np.zeros(n))

    @classmethod
    def from_lists(
        cls,
        n: int,
        who: Indices,
        times: Doubles,
        amounts: Doubles,
        durations: Doubles | None = None,
    ) -> Doses:
        """Doses (E,) in any order, of n individuals by their numbers; by default at once."""
        columns = (times, amounts, np.zeros(len(who)) if durations is None else durations)
        order = np.lexsort((times, who))
        first = np.searchsorted(who[order], np.arange(n + 1)).astype(np.intp)
        return cls(first, *(np.asarray(one, dtype=np.float64)[order] for one in columns))

    @classmethod
    def chain(cls, parts: Sequence[Doses]) -> Doses:
        counts = np.concatenate([np.zeros(1, np.intp), *(part.counts for part in parts)])
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(np.cumsum(counts, dtype=np.intp), *(np.concatenate(some) for some in columns))

    def take_individuals(self, which: Indices) -> Doses:
        counts = self.counts[which]
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        places = np.repeat(self.first[:-1][which] - first[:-1], counts) + np.arange(first[-1])
        return Doses(first, *(column[places] for column in self.columns))


def doses_of(individuals: Individuals) -> Doses:
    """Return the doses of individuals, or else one at time 0 as the covariate ``dose`` says."""
    if individuals.doses is not None:
        return individuals.doses
    return Doses.once(individuals.constant("dose", "a dose that changes needs rows of its own"))


def event_columns(
    header: Sequence[str], named: Mapping[str, str], taken: Collection[str], source: str
) -> dict[str, str]:
    """Find the columns of events: those that were named, else by their usual names in any case."""
    for name, column in named.items():
        check_choice("column of doses", name, EVENTS)
        if column not in header:
            missing = f"{column!r}{did_you_mean(column, header)}"
            raise MissingColumnError(f"{source} has no column {missing} in its first line", column)
    usual = {column.lower(): column for column in header if column not in taken}
    columns = {name: usual[name] for name in EVENTS if name in usual} | dict(named)
    if "amt" not in columns:
        have = shorten([repr(name) for name in header])
        raise InputError(
            f"{source} has no column 'amt' with the amounts of doses; name it, such as "
            f"--doses amt=DOSE; there are: {have}"
        )
    return columns


def measured_lines(
    events: Mapping[str, Doubles], values: Doubles, wheres: Sequence[str]
) -> tuple[Mask, Mask]:
    """Return which lines are measurements, and which are doses; some are neither.

    ``events`` are the columns (N,) that there are of `EVENTS`, NaN where nothing stands, as in
    ``values`` (N,) where nothing was measured.
    """
    nothing = np.zeros(len(values))
    amt = np.nan_to_num(events["amt"])
    mdv = np.nan_to_num(events.get("mdv", nothing))
    evid = np.nan_to_num(events.get("evid", nothing))
    _refuse(~np.isin(mdv, (0, 1)), wheres, mdv, "mdv {}, which is 0 or 1")
    _refuse(
        ~np.isin(evid, (0, 1, 2)), wheres, evid,
        "evid {}; 0 (a measurement), 1 (a dose) and 2 (neither) are read, no resets",
    )  # fmt: skip
    if "evid" in events:
        is_dose, other = evid == 1, evid == 2
        _refuse((evid != 1) & (amt != 0), wheres, amt, "amt {}, but evid says that it is no dose")
    else:
        is_dose, other = amt != 0, np.zeros(len(values), dtype=np.bool_)
        _refuse(
            is_dose & ~np.isnan(values) & (mdv == 0), wheres, amt,
            "both an amount, {}, and a measurement; write two lines, or a column evid (1: a dose, "
            "0: a measurement); an amount that all lines repeat is a covariate: "
            "--covariates dose=COLUMN",
        )  # fmt: skip
    return ~is_dose & ~other & (mdv == 0), is_dose


def doses_of_lines(
    names: Sequence[str],
    labels: Labels,
    times: Doubles,
    events: Mapping[str, Doubles],
    wheres: Sequence[str],
    source: str,
) -> Doses:
    """Return the doses that lines say, repeated ones too.

    ``labels`` and ``times`` (E,) say whose and when; ``events`` are columns (E,) of `EVENTS`, NaN
    where nothing stands, and ``wheres`` where each line is.
    """
    nothing = np.zeros(len(times))
    raw = events["amt"]
    _refuse(~(raw >= 0), wheres, raw, "a dose of {}; amounts are numbers that are not negative")
    amt = np.asarray(raw, dtype=np.float64)
    rest = {name: np.nan_to_num(events.get(name, nothing)) for name in EVENTS[1:]}
    rate, durations, addl, ii = (rest[name] for name in ("rate", "duration", "addl", "ii"))
    steady = rest["ss"]
    _refuse(steady != 0, wheres, steady, "ss {}; write the doses before it")
    for name in ("rate", "duration", "ii"):
        _refuse(rest[name] < 0, wheres, rest[name], f"{name} {{}}, which must not be negative")
    _refuse((rate > 0) & (durations > 0), wheres, rate, "rate {} and a duration; give one of them")
    _refuse((rate > 0) & (amt == 0), wheres, rate, "rate {} of an amount of 0")
    _refuse((addl < 0) | (addl % 1 != 0), wheres, addl, "addl {}, which must be a whole number")
    _refuse((addl > 0) & (ii == 0), wheres, addl, "addl {} without a time between doses, ii")
    counts = 1 + addl
    if counts.sum() > MOST_DOSES:
        raise InputError(f"{source} has {counts.sum():.0f} doses; at most {MOST_DOSES} are read")
    durations = np.where(rate > 0, amt / np.where(rate > 0, rate, 1.0), durations)
    lines = np.repeat(np.arange(len(times)), counts.astype(np.intp))
    turns = np.arange(len(lines)) - np.searchsorted(lines, lines)
    place = {name: one for one, name in enumerate(names)}
    lost = sorted({str(label) for label in labels} - place.keys())
    if lost:
        raise InputError(
            f"{source}: {shorten([repr(name) for name in lost])} had doses, but nothing was "
            "measured; leave such individuals out"
        )
    who = np.array([place[str(label)] for label in labels], dtype=np.intp)
    return Doses.from_lists(
        len(names), who[lines], (times[lines] + turns * ii[lines]), amt[lines], durations[lines]
    )


def _refuse(wrong: Mask, wheres: Sequence[str], values: Doubles, what: str) -> None:
    if wrong.any():
        line = int(wrong.argmax())
        value = "nothing" if np.isnan(values[line]) else f"{values[line]:g}"
        raise InputError(f"{wheres[line]} has {what.format(value)}")
