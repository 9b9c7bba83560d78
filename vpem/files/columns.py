"""Which columns of a table are features, which are labels, ids, workers and weights."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from vpem.errors import InputError, Setting, did_you_mean, shorten

__all__ = ["Chosen", "Column", "Roles", "kept_columns", "resolve_column", "roles_of"]

Column = str | int

Roles = tuple[tuple[int | None, ...], list[int]]
"""Numbers of the columns of labels, ids, workers and weights, and of the features."""

Chosen = tuple[
    tuple[Column | None, ...],
    tuple[Column, ...],
    tuple[Column, ...] | frozenset[str] | None,
    bool,
]
"""Annotations, columns to drop, features (a set: those of them that there are), and whether weights
that are named must be there."""

ANNOTATIONS = ("label", "id", "worker", "weight")


def kept_columns(n_columns: int, roles: Roles) -> list[int]:
    """Return the numbers of the columns that are read, in the order of the file."""
    annotations, features = roles
    wanted = {*annotations, *features}
    return [column for column in range(n_columns) if column in wanted]


def roles_of(names: list[str], chosen: Chosen, source: str) -> Roles:
    """Say which columns are annotations of the rows and which features, after checking names."""
    wanted, drop_columns, columns, weights_needed = chosen
    if not weights_needed and wanted[-1] not in names:
        wanted = (*wanted[:-1], None)
    if isinstance(columns, frozenset):
        known, columns = columns, tuple(name for name in names if name in columns)
        if not columns:
            raise InputError(
                f"{source} has none of the features {shorten(map(repr, sorted(known)))}; its "
                f"columns are {shorten(names, 10)}"
            )
    annotations = tuple(
        resolve_column(f"{what} column", column, names, source)
        for what, column in zip(ANNOTATIONS, wanted, strict=True)
    )
    dropped = {resolve_column("column to drop", column, names, source) for column in drop_columns}
    holders: dict[int, str] = {}
    for what, column in zip(ANNOTATIONS, annotations, strict=True):
        if column is None:
            continue
        if column in holders:
            raise InputError(
                f"{source}: column {names[column]!r} cannot hold both {holders[column]}s and "
                f"{what}s"
            )
        holders[column] = what
        if column in dropped:
            raise InputError(f"{source}: the {what} column {names[column]!r} is also dropped")
    if columns is None:
        used = [column for column in range(len(names)) if column not in dropped]
    else:
        resolved = (resolve_column("column", column, names, source) for column in columns)
        used = [column for column in resolved if column is not None]
        counts = Counter(used)
        for column in used:
            if column in holders or counts[column] > 1:
                what = f"holds {holders[column]}s" if column in holders else "is one already"
                raise InputError(f"{source}: {names[column]!r} cannot be a feature: it {what}")
    for column in used:
        if not names[column] and column not in holders:
            raise InputError(
                f"{source}: column {column} (counted from 0) has no name; if it numbers the rows "
                "pass ",
                Setting("id_column", column),
                ", or leave it out with ",
                Setting("drop_columns", [column]),
            )
    first: dict[str, int] = {}
    for column, name in enumerate(names):
        if first.setdefault(name, column) != column:
            raise InputError(
                f"{source}: columns {first[name]} and {column} are both called {name!r}; rename "
                "one, or pass ",
                Setting("header", False),
                " if the first row is data",
            )
    features = [column for column in used if column not in holders]
    if not features:
        raise InputError(f"{source}: no column is left for the features")
    return annotations, features


def resolve_column(what: str, column: Column | None, names: list[str], source: str) -> int | None:
    """Return the number of a column given by name or number."""
    if column is None:
        return None
    if isinstance(column, str):
        if names.count(column) > 1:
            raise InputError(f"{source}: several columns are called {column!r}; give a number")
        if column in names:
            return names.index(column)
        if not re.fullmatch(r"-?\d{1,9}", column):
            raise InputError(
                f"{source}: there is no {what} {column!r}{did_you_mean(column, names)}; the "
                f"columns are {shorten(names, 10)}"
            )
        column = int(column)
    if isinstance(column, bool | np.bool_) or not isinstance(column, int | np.integer):
        raise InputError(f"{what} must be a name or a number, got {column!r}")
    if not -len(names) <= column < len(names):
        raise InputError(
            f"{source}: there is no {what} {column}; the {len(names)} columns are numbered from 0 "
            f"to {len(names) - 1}, or from -1 backwards"
        )
    return int(column) % len(names)
