"""What kinds of HDF5 files hold: each kind is a table of elements, read and checked as one.

A schema is a dict in the order of reading: names of datasets (paths) and, behind ``@``, of
attributes, with a field of `vpem.network.schema` or of this module each; `Maybe` where it may be
absent. Sizes are named there, and a name stands for one number in the whole table.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, InputError, shorten
from vpem.files.hdf5 import find, read_array, read_attribute, read_column, read_strings, read_value
from vpem.files.json_text import DEEPEST, read_json_element
from vpem.network.schema import Array, Field, Maybe, Place, Schema, Sizes, State, check

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

    ``sizes`` are those known by name. The result has the names of the schema, those of attributes
    without the ``@``: arrays as float64 or int64, strings as tuples, None for what may be absent
    and is.
    """
    found: State = {}
    for name, field in schema.items():
        place = _place(group, name)
        if name.startswith("@"):
            found[name[1:]] = _attribute(group, name[1:], field, place, sizes)
            continue
        if isinstance(field, Maybe):
            if find(group, name) is None:
                found[name] = None
                continue
            assert isinstance(field.schema, Field)
            field = field.schema
        found[name] = _element(group, name, field, place, sizes)
    return found


def check_written(path: str | os.PathLike[str], schema: Elements, **values: object) -> None:
    """Check objects that a file will hold as JSON text against the schema it will be read by.

    Raises InputError that names the first key with a wrong value, what it must be, and what it is.
    """
    for name, value in values.items():
        # As it will be read: JSON has one kind of list, and names that are text.
        read = json.loads(json.dumps(value, allow_nan=False))
        field = schema[name]
        assert isinstance(field, Json)
        try:
            check(field.schema, read, Place(os.fspath(path), name))
        except FileError as error:
            raise InputError(*error.parts) from error


def _place(group: h5py.Group, name: str) -> Place:
    """Return where something is, for messages."""
    inside = group.name.strip("/")
    if name.startswith("@"):
        named = f"attribute {name[1:]!r}"
        return Place(group.file.filename, f"{inside}: {named}" if inside else named)
    return Place(group.file.filename, f"{inside}/{name}" if inside else name)


def _attribute(group: h5py.Group, name: str, field: Field, place: Place, sizes: Sizes) -> object:
    value = read_value(group, name)
    if isinstance(value, bytes):
        value = read_attribute(group, name)
    elif isinstance(value, np.generic):
        value = value.item()
    check(field, value, place, sizes)
    return value


def _element(group: h5py.Group, name: str, field: Field, place: Place, sizes: Sizes) -> object:
    if isinstance(field, Json):
        found = read_json_element(group, name, field.deepest)
        check(field.schema, found, place)
        return found
    if isinstance(field, Strings):
        strings = read_strings(group, name, shape=(sizes.get(field.size),))
        if len(strings) < field.least:
            place.fail("has no values")
        if field.different and len(set(strings)) < len(strings):
            twice = (repr(one) for one, count in Counter(strings).items() if count > 1)
            place.fail(f"must all be different, but several are called {shorten(list(twice))}")
        sizes[field.size] = len(strings)
        return strings
    if isinstance(field, Column):
        values = read_column(group, name)
        count = sizes.setdefault(field.size, len(values))
        if len(values) != count:
            place.refuse(f"{count} strings or numbers", f"{len(values)}")
        return values
    assert isinstance(field, Array)
    return _array(group, name, field, place, sizes)


def _array(
    group: h5py.Group, name: str, field: Array, place: Place, sizes: Sizes
) -> NDArray[np.generic]:
    """Read an array whose type and shape are right, in the type that all of its kind have."""
    shape = [sizes.get(one) if isinstance(one, str) else one for one in field.shape]
    known = [one if isinstance(one, int) else None for one in shape]
    whole = field.kind == "i"
    values = read_array(group, name, shape=known, kinds="iu" if whole else field.kind)
    if whole:
        values = np.minimum(values, np.uint64(LARGEST)) if values.dtype.kind == "u" else values
    with np.errstate(over="ignore"):
        values = values.astype(np.int64 if whole else np.float64, copy=False)
    check(field, values, place, sizes)
    return values
