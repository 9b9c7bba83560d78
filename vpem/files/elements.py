"""What kinds of HDF5 files hold: each kind is a table of elements, read and checked as one.

A schema is a dict in the order of reading: names of datasets (paths) and, behind ``@``, of
attributes, with a field of `vpem.network.schema` or of this module each; `Maybe` where it may be
absent. Sizes are named there, and a name stands for one number in the whole table. Keys of a fit's
report may all be absent or None: files are of several versions and of other programs.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.checks import Labels
from vpem.errors import FileError, InputError, shorten
from vpem.files.hdf5 import (
    find,
    read_array,
    read_attribute,
    read_column,
    read_strings,
    read_value,
    write_array,
    write_attribute,
    write_column,
    write_strings,
)
from vpem.files.json_text import DEEPEST, read_json_element, write_json_element
from vpem.files.opening import PathLike
from vpem.network.schema import (
    COUNT,
    FLAG,
    PLAIN,
    REAL,
    TEXT,
    Array,
    Field,
    Integer,
    ListOf,
    Maybe,
    NumberList,
    Place,
    Report,
    Schema,
    Sizes,
    State,
    TableOf,
    check,
)
from vpem.terms.families.kinds import Kinds

if TYPE_CHECKING:
    import h5py


Elements = dict[str, Field]
"""A schema of a file, or of a group in it."""

LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Strings(Field):
    """Strings in one dimension."""

    size: str  # name of how many there are
    least: int = 0
    different: bool = False  # no two are the same


@dataclass(frozen=True)
class Column(Field):
    """Strings or numbers in one dimension, of a size of this name."""

    size: str


@dataclass(frozen=True)
class Json(Field):
    """An object kept as JSON text, of some schema, nested so deep at most."""

    schema: Schema
    deepest: int = DEEPEST


def read_elements(group: h5py.Group, schema: Elements, **sizes: int) -> State:
    """Read all that a schema has, and check each element before it is used.

    ``sizes`` are those known by name. The result has the names of the schema, without ``@``: arrays
    as float64 or int64, strings as tuples, None for what is absent and may be.
    """
    state: State = {}
    inside = group.name.strip("/")
    for name, field in schema.items():
        called = f"attribute {name[1:]!r}" if name.startswith("@") else name
        way = ": " if name.startswith("@") else "/"
        place = Place(group.file.filename, f"{inside}{way}{called}" if inside else called)
        if not name.startswith("@"):
            state[name] = READERS[type(field)](group, name, field, place, sizes)
            continue
        value = read_value(group, name[1:])
        if isinstance(value, bytes):
            value = read_attribute(group, name[1:])
        elif isinstance(value, np.generic):
            value = value.item()
        check(field, value, place, sizes)
        state[name[1:]] = value
    return state


def _read_maybe(group: h5py.Group, name: str, field: Any, place: Place, sizes: Sizes) -> object:
    inner = field.schema
    known = find(group, name) is not None
    return READERS[type(inner)](group, name, inner, place, sizes) if known else None


def _read_json(group: h5py.Group, name: str, field: Json, place: Place, sizes: Sizes) -> Report:
    report = read_json_element(group, name, field.deepest)
    check(field.schema, report, place)
    return report


def _read_strings(
    group: h5py.Group, name: str, field: Strings, place: Place, sizes: Sizes
) -> tuple[str, ...]:
    strings = read_strings(group, name, shape=(sizes.get(field.size),))
    if len(strings) < field.least:
        place.fail("has no values")
    if field.different and len(set(strings)) < len(strings):
        twice = (repr(one) for one, count in Counter(strings).items() if count > 1)
        place.fail(f"must all be different, but several are called {shorten(list(twice))}")
    sizes[field.size] = len(strings)
    return strings


def _read_column(group: h5py.Group, name: str, field: Column, place: Place, sizes: Sizes) -> Labels:
    column = read_column(group, name)
    count = sizes.setdefault(field.size, len(column))
    if len(column) != count:
        place.refuse(f"{count} strings or numbers", f"{len(column)}")
    return column


def _read_array(group: h5py.Group, name: str, field: Array, place: Place, sizes: Sizes) -> Labels:
    shape = [sizes.get(one) if isinstance(one, str) else one for one in field.shape]
    known = [one if isinstance(one, int) else None for one in shape]
    whole = field.kind == "i"
    array = read_array(group, name, shape=known, kinds="iu" if whole else field.kind)
    if whole and array.dtype.kind == "u":
        array = np.minimum(array, np.uint64(LARGEST))
    with np.errstate(over="ignore"):
        array = array.astype(np.int64 if whole else np.float64, copy=False)
    check(field, array, place, sizes)
    return array


READERS: dict[type[Field], Callable[..., object]] = {
    Maybe: _read_maybe,
    Json: _read_json,
    Strings: _read_strings,
    Column: _read_column,
    Array: _read_array,
}
"""How a dataset is read, by what its field is."""

WRITERS: dict[type[object], Callable[..., None]] = {
    Json: write_json_element,
    Strings: write_strings,
    Column: write_column,
    Array: write_array,
}


def write_elements(group: h5py.Group, schema: Elements, values: Mapping[str, object]) -> None:
    """Write all that a schema has, as `read_elements` reads it; what may be absent and is None not.

    ``values`` have the names of the schema, without ``@``, and may have others.
    """
    for name, field in schema.items():
        value = values[name.removeprefix("@")]
        kind = type(field.schema) if type(field) is Maybe else type(field)
        if name.startswith("@") and isinstance(value, str):
            write_attribute(group, name[1:], value)
        elif name.startswith("@"):
            group.attrs[name[1:]] = value
        elif value is not None:
            WRITERS[kind](group, name, value)


def check_written(path: PathLike, schema: Elements, values: Mapping[str, object]) -> None:
    """Check objects against the schema they will be read by; InputError names the first fault."""
    for name, field in schema.items():
        if type(field) is not Json:
            continue
        # As it will be read: JSON has one kind of list, and names that are text.
        read = json.loads(json.dumps(values[name], allow_nan=False))
        try:
            check(field.schema, read, Place(os.fspath(path), name))
        except FileError as error:
            raise InputError(*error.parts) from error


COUNTED = {"messages": COUNT, "bytes": COUNT, "rounds": COUNT}
COUNTS = NumberList(least=0)

COMMUNICATION = TableOf(
    known={
        **COUNTED,
        "by_kind": TableOf(TableOf(some=COUNTED)),
        "by_agent": TableOf(COUNTS),
        "by_link": TableOf(known={"messages": COUNTS, "bytes": TableOf(COUNTS)}),
        "busiest_link": TableOf(some={"between": ListOf(COUNT, 2), "bytes": COUNT}),
        "bytes_by_iteration": COUNTS,
    }
)
"""As `vpem.network.ledger.Ledger.summary` tells."""

ALIGNMENT = TableOf(
    some={
        "level": TEXT,
        "join": TEXT,
        "rows": COUNT,
        "parties": ListOf(
            TableOf(some={"name": TEXT, "rows": COUNT, "lost": COUNT, "absent": COUNT})
        ),
    }
)

REPORT: dict[str, Schema] = {
    **dict.fromkeys(
        ("algorithm", "data", "split", "topology", "weights", "acceleration", "compress"), TEXT
    ),
    **dict.fromkeys(("server", "hops", "rounds", "n_samples", "n_iter"), COUNT),
    **dict.fromkeys(("n_agents", "n_workers"), Integer(1, 1 << 24)),
    **dict.fromkeys(
        (
            "mixing_rate", "consensus_error", "total_weight", "log_likelihood", "bic", "aic",
            "inertia", "seconds", "participation", "log_prior", "penalised_log_likelihood",
        ),
        REAL,
    ),
    **dict.fromkeys(("agent_names", "worker_names", "warnings"), ListOf(TEXT)),
    **dict.fromkeys(("recoveries", "partitions", "reseeded"), ListOf(PLAIN)),
    "degenerate": ListOf(COUNT),
    **dict.fromkeys(("worker_rows", "recorded"), COUNTS),
    **dict.fromkeys(("history", "mean_field"), NumberList()),
    "partition": NumberList(least=-1),
    "positions": NumberList(2),
    "edges": NumberList(2, least=0),
    "converged": FLAG,
    "communication": COMMUNICATION,
    "alignment": ALIGNMENT,
}  # fmt: skip
"""Of models and clusterings alike."""


def report_elements(**more: Schema) -> dict[str, Json]:
    """Return the schema of a report, options and versions, with keys of one kind of file."""
    return {
        "report": Json(TableOf(known={**REPORT, **more})),
        "options": Json(TableOf(known={"tol": REAL})),
        "versions": Json(TableOf(TEXT)),
    }


def write_kinds(group: h5py.Group, kinds: Kinds) -> None:
    """Write ``families`` and ``n_levels``, both (d,), and ``levels/j`` of features with names."""
    write_strings(group, "families", kinds.families)
    write_array(group, "n_levels", np.array(kinds.n_levels, dtype=np.int64))
    for feature, names in sorted(kinds.levels.items()):
        write_strings(group, f"levels/{feature}", names)


def read_kinds(group: h5py.Group, n_features: int) -> Kinds | None:
    """Read what `write_kinds` has written; None where there is nothing, or all are Gaussian."""
    if find(group, "families") is None:
        return None
    schema: Elements = {"families": Strings("features"), "n_levels": Array("i", ("features",), 0)}
    state = read_elements(group, schema, features=n_features)
    counts = tuple(state["n_levels"].tolist())
    levels = {}
    for feature, count in enumerate(counts):
        if find(group, f"levels/{feature}") is not None:
            named: Elements = {f"levels/{feature}": Strings("levels", different=True)}
            (levels[feature],) = read_elements(group, named, levels=count).values()
    try:
        kinds = Kinds(state["families"], counts, levels)
    except InputError as error:
        raise FileError(f"{group.file.filename}: {error}") from None
    return None if kinds.is_gaussian else kinds
