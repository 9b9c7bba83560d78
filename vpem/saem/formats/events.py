"""Lines of a table that are doses, in the columns that pharmacometricians write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, MissingColumnError, check_choice, did_you_mean, shorten
from vpem.saem.doses import Doses

Vector = NDArray[np.float64]

EVENTS = ("amt", "rate", "duration", "evid", "mdv", "addl", "ii", "ss")
"""Columns by their usual names: amount, rate or duration of an infusion, kind of event, whether
there is no measurement, further doses, the time between them, steady state."""

MOST_DOSES = 10_000_000


def event_columns(
    header: Sequence[str], named: Mapping[str, str], taken: Collection[str], source: str
) -> dict[str, str]:
    """Find the columns of events: those that were named, else by their usual names in any case."""
    for name, column in named.items():
        check_choice("column of doses", name, EVENTS)
        if column not in header:
            told = f"{column!r}{did_you_mean(column, header)}"
            raise MissingColumnError(f"{source} has no column {told} in its first line", column)
    usual = {column.lower(): column for column in header if column not in taken}
    found = {name: usual[name] for name in EVENTS if name in usual} | dict(named)
    if "amt" not in found:
        have = shorten([repr(name) for name in header])
        raise InputError(
            f"{source} has no column 'amt' with the amounts of doses; name it, such as "
            f"--doses amt=DOSE; there are: {have}"
        )
    return found


def measured_lines(
    events: Mapping[str, Vector], values: Vector, wheres: Sequence[str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
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
    labels: NDArray[Any],
    times: Vector,
    events: Mapping[str, Vector],
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
    return Doses.of(
        len(names), who[lines], (times[lines] + turns * ii[lines]), amt[lines], durations[lines]
    )


def _refuse(wrong: NDArray[np.bool_], wheres: Sequence[str], values: Vector, what: str) -> None:
    """Raise InputError about the first wrong line, if there is one."""
    if wrong.any():
        line = int(wrong.argmax())
        value = "nothing" if np.isnan(values[line]) else f"{values[line]:g}"
        raise InputError(f"{wheres[line]} has {what.format(value)}")
