"""Parties are observers of one matrix: each has a file of what it saw, and keeps it to itself."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import (
    CLASSED,
    DIFFERENT,
    FEW_ROWS,
    NEARLY,
    check_memory,
    ids_by_name,
    no_measurement,
)
from vpem.engines.placement import Placement, for_each
from vpem.errors import InputError, Setting, VpemError
from vpem.files.datasets import default_names
from vpem.files.observations import header_of, is_long, read_entries, sort_names
from vpem.files.parties.alignment import check_ids, checksum
from vpem.files.parties.joining import refuse_shared
from vpem.files.parties.opening import Holding, Party, Tell, open_party
from vpem.files.readers.frames import GUESSED, MOST_NUMBERS
from vpem.terms.lowrank.entries import check_covered, from_triplets
from vpem.terms.lowrank.observations import Observations

KINDS = ("row", "column")

ROW_NAMES = ("row", "id", "ids")
"""What a column of a table is called that names its rows."""


@dataclass
class Observed:
    """What a party saw, in rows and columns of its own."""

    rows: list[str] | None
    """Names; None: they have none, and their places count."""
    columns: list[str]
    shape: tuple[int, int]
    places: tuple[NDArray[np.intp], NDArray[np.intp]]
    values: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    is_long: bool
    naming: dict[str, NDArray[np.float64] | None] = field(default_factory=dict)
    """Columns that hardly are measurements but say which row is which; None: it has no values."""


def observe_parties(
    parties: Sequence[Party],
    sample_weight: str | None = None,
    holders: Placement | None = None,
    tell: Tell | None = None,
    level: str | None = None,
) -> Observations:
    """Read what each party saw of one matrix, of which rows and columns have names.

    A party's file is a long table with the columns row, column and value, or a matrix (HDF5, CSV,
    Parquet), empty or NaN where it saw nothing; the rows of these are called by their ids.
    ``sample_weight`` names the weights of entries (of a long table) or of rows (of a matrix): a
    column, or a dataset of HDF5. All processes call this alike, raise the same VpemError, and get
    what their own parties saw (`Observations.seen_by`). All parties learn the names of all rows and
    columns, of which each has some, and how many entries each party saw. Where all name the same
    ones these are in the order of the first party, and else numbers by size, others by the
    alphabet.

    ``level`` says how rows are found that are the same: ids, by their names, or none, by their
    places in matrices, whatever names they have; by default by names, or by places if no party has
    any, and none a column that shows its rows to be other ones.
    """
    holders = holders or Placement.here(len(parties))
    every = range(len(parties))
    observed = for_each(
        holders, every, lambda party: read_observed(parties[party], sample_weight, tell)
    )
    rows, columns, is_long, nameless = _names(parties, observed, holders, level)
    if nameless and level is None:
        _refuse_other_rows(parties, observed, holders)
    sources = [str(party.path) for party in parties]

    parts = for_each(
        holders, every, lambda party: entries_of(parties[party], observed[party], rows, columns)
    )
    counts = holders.allgather({party: part.n_entries for party, part in parts.items()})
    none = np.empty(0)
    observations = Observations(
        tuple(parts[one].places[0] if one in parts else none.astype(np.intp) for one in every),
        tuple(parts[one].values[0] if one in parts else none for one in every),
        tuple(rows),
        tuple(columns),
        tuple(party.name for party in parties),
        source=f"the parties {', '.join(sources)}",
        long=is_long,
        by_position=nameless and len(parties) > 1,
        weights=None
        if sample_weight is None
        else tuple((parts[one].weights or (none,))[0] if one in parts else none for one in every),
        sizes=np.array(list(counts.values()), dtype=np.intp) if holders.apart else None,
    )
    seen = np.zeros(observations.shape, dtype=np.bool_)
    seen.ravel()[np.concatenate(observations.places)] = True
    covered = [holders.any(np.any(seen, axis=axis)) for axis in (1, 0)]
    if not covered[1].all():
        check_covered(observations, *covered)
    return observations


def entries_of(
    party: Party, observed: Observed, rows: Sequence[str], columns: Sequence[str]
) -> Observations:
    """Return what a party saw, among rows and columns of these names; InputError if one twice."""
    at: list[NDArray[np.intp]] = []
    for chosen, names in ((observed.rows, rows), (observed.columns, columns)):
        number = {name: place for place, name in enumerate(names)}
        places = range(len(names)) if chosen is None else [number[name] for name in chosen]
        at.append(np.array(places, dtype=np.intp))
    check_memory(8 * len(rows) * len(columns), f"a matrix of {len(rows)} x {len(columns)}")
    return from_triplets(
        np.zeros(len(observed.values), dtype=np.intp),
        at[0][observed.places[0]],
        at[1][observed.places[1]],
        observed.values,
        names=[party.name],
        row_names=rows,
        column_names=columns,
        source=str(party.path),
        weights=observed.weights,
        partial=True,
    )


def _names(
    parties: Sequence[Party],
    observed: Mapping[int, Observed],
    holders: Placement,
    level: str | None,
) -> tuple[list[str], list[str], bool, bool]:
    """Names of all rows and columns, and whether all files are long tables, and rows nameless."""
    if level == "none":
        for part in observed.values():
            part.rows = part.rows if part.is_long else None
    facts: Any = holders.allgather(
        {
            party: [each.rows, each.columns, each.shape[0], each.is_long]
            for party, each in observed.items()
        }
    )
    rows, columns, counts, kinds = zip(*facts.values(), strict=True)
    nameless = [one for one, names in enumerate(rows) if names is None]
    if level == "ids":
        facts = [{"kind": "none" if names is None else "strings"} for names in rows]
        check_ids(facts, [party.name for party in parties], level, False)
    for one, count in enumerate(counts):
        first = nameless[0] if nameless else 0
        called = parties[first].name
        if nameless and one not in nameless:
            raise InputError(
                f"the rows of party {called!r} have no ids, so they cannot be matched with those "
                f"of party {parties[one].name!r}, which have ids; give all parties' rows ids, or "
                "none"
            )
        if nameless and count != counts[first]:
            raise InputError(
                f"party {called!r} has {counts[first]} rows and party {parties[one].name!r} "
                f"{count}, without ids that would say which are the same; give their rows ids"
            )
    named = [f"row {number}" for number in range(counts[0])] if nameless else _united(rows)
    return named, _united(columns), all(kinds), bool(nameless)


def _united(names: Sequence[Sequence[str]]) -> list[str]:
    first = list(names[0])
    if all(set(each) == set(first) for each in names):
        return first
    return sort_names(name for each in names for name in each)


def _refuse_other_rows(
    parties: Sequence[Party], observed: Mapping[int, Observed], holders: Placement
) -> None:
    """Raise InputError where columns that name rows say that those at one place are not the same.

    Processes send each other only checksums of values, or nothing if they belong to different
    organisations; columns that are no features are never named to another process.
    """
    salt = holders.bcast(secrets.token_bytes(16))
    sums: dict[int, list[list[str]]] = {}
    for party, part in observed.items():
        checksums = {
            name: "" if values is None or not holders.engine.open
            else checksum(values.astype("S32"), salt)
            for name, values in part.naming.items() if values is not None or not holders.apart
        }  # fmt: skip
        sums[party] = [list(checksums), list(checksums.values())]
    every = holders.allgather(sums)
    known = [dict(zip(*every[party], strict=True)) for party in range(len(parties))]
    for one, other in combinations(range(len(parties)), 2):
        shared = [name for name in known[one] if name in known[other]]
        for name in shared:
            if known[one][name] != known[other][name] or not known[one][name]:
                columns = [each.naming.get(name) for each in observed.values()]
                apart = all(one is not None and len({*one.tolist()}) == len(one) for one in columns)
                names = [parties[one].name, parties[other].name]
                refuse_shared(names, [[name], [name]], {name: apart}.__getitem__)


def read_observed(party: Party, weight: str | None, tell: Tell | None) -> Observed:
    files = party.find()
    headers = [header_of(file) for file in files]
    if any("observer" in map(str.lower, header) and is_long(header) for header in headers):
        raise InputError(
            f"party {party.name!r}: {party.path} has a column 'observer', but a party is one; "
            "leave ",
            Setting("parties", True),
            " out, or the column",
        )
    table = party.table
    if table.features is None and table.id_column is None and any(map(is_long, headers)):
        try:
            both, values, weights = read_entries(files, KINDS, weight)
        except VpemError as error:
            raise type(error)(f"party {party.name!r}: ", *error.parts) from None
        (named, row), (columns, column) = both
        shape = len(named), len(columns)
        return Observed(named, columns, shape, (row, column), values, weights, True)
    if table.id_column is None and headers and headers[0]:
        called = [name for name in headers[0] if name.strip().lower() in ROW_NAMES]
        table = table.changed(id_column=called[0]) if len(called) == 1 else table
    party = replace(party, table=table)
    with closing(open_party(party, True, keep_constant=True, weights=weight, tell=tell)) as holding:
        shape = holding.n_samples, len(holding.feature_names)
        check_memory(8 * shape[0] * shape[1], f"the matrix of party {party.name!r}")
        values = np.empty(shape)
        holding.fill(values)
    there = np.divmod(np.flatnonzero(~np.isnan(values)), max(shape[1], 1))
    rows = None if holding.ids is None else [str(name) for name in holding.ids.tolist()]
    if rows is not None and len(set(rows)) < len(rows):
        twice = next(name for name in rows if rows.count(name) > 1)
        raise InputError(f"party {party.name!r}: two rows are called {twice!r}; names must differ")
    weights = holding.sample_weight
    if weight is not None and weights is None:
        raise InputError(f"party {party.name!r} has no sample weights called {weight!r}")
    of_entries = None if weights is None else weights[there[0]]
    naming = _naming(holding, values) if rows is None else {}
    return Observed(
        rows, list(holding.feature_names), shape, there, values[there], of_entries, False, naming
    )


def _naming(holding: Holding, values: NDArray[np.float64]) -> dict[str, NDArray[np.float64] | None]:
    """Return columns that name rows: features without gaps, with values, or left out, without."""
    of_rows = {*GUESSED, NEARLY, "ids that repeat"} - {CLASSED}
    numbered = default_names(len(holding.feature_names))
    naming: dict[str, NDArray[np.float64] | None] = {
        name: None
        for name, why in holding.left_out.items()
        if why in of_rows or (why.startswith("text") and ids_by_name(name))
    }
    numbers = {}
    for place, name in enumerate(holding.feature_names):
        column = values[:, place]
        if name in numbered or np.isnan(column).any():
            continue
        if (why := no_measurement(name, column)) in of_rows - {DIFFERENT, NEARLY}:
            naming[name] = column.copy()
        elif why in (DIFFERENT, NEARLY) or (
            len(column) >= FEW_ROWS and holding.tells_rows_apart(name)
        ):
            numbers[name] = column.copy()
    # Many columns of whole numbers that differ are counts.
    return naming | (numbers if len(numbers) <= MOST_NUMBERS else {})
