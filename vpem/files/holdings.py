"""Who holds which features or rows, read from JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from vpem.errors import InputError, did_you_mean, shorten
from vpem.files.json_text import read_json_file
from vpem.network.partition import Partition, Workers, from_lists, from_worker_of_row


def read_partition(
    path: str | os.PathLike[str], n_features: int, feature_names: Sequence[str] | None = None
) -> Partition:
    """Read a partition of the features: ``{"agent": [feature, ...], ...}``, or a list of lists.

    A feature is its number, from 0, or its name, and must be held exactly once.
    """
    content = read_json_file(path)
    names = list(content) if isinstance(content, dict) else None
    lists = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(lists, list) or not all(isinstance(part, list) for part in lists):
        raise InputError(
            f"{path} must hold an object of lists of features, one an agent, or a list of lists"
        )
    try:
        numbers = numbered(lists, feature_names)
        return from_lists(numbers, n_features, names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def numbered(lists: Sequence[Any], feature_names: Sequence[str] | None) -> list[Any]:
    """Replace feature names by their column numbers; leave everything else as it is."""
    names = list(feature_names or [])
    number = {name: column for column, name in enumerate(names)}

    def resolve(feature: object) -> object:
        if not isinstance(feature, str):
            return feature
        if feature not in number:
            hint = did_you_mean(feature, names) if names else "; the features here have no names"
            raise InputError(f"there is no feature {feature!r}{hint}")
        if names.count(feature) > 1:
            raise InputError(f"several features are called {feature!r}; give their numbers")
        return number[feature]

    return [
        [resolve(feature) for feature in part]
        if isinstance(part, Iterable) and not isinstance(part, str | bytes)
        else part
        for part in lists
    ]


def read_workers(path: str | os.PathLike[str], n_samples: int) -> Workers:
    """Read a partition of the rows: JSON, ``{"name": [row, ...], ...}``, rows from 0."""

    def number(worker: str, row: object) -> int:
        if type(row) is not int or not 0 <= row < n_samples:
            raise InputError(
                f"{path}: worker {worker!r} has row {row!r}, but rows are numbered 0 to "
                f"{n_samples - 1}"
            )
        return row

    return read_holders(path, "worker", "row", range(n_samples), number)


def read_holders(
    path: str | os.PathLike[str],
    holder: str,
    held: str,
    called: Sequence[object],
    number: Callable[[str, object], int],
    may_be_empty: bool = True,
) -> Workers:
    """Read who holds what: JSON, ``{"holder": [held, ...], ...}``.

    ``holder`` and ``held`` are words for messages: "worker", "row". ``number(holder, value)`` is
    the place in ``called`` of what the file has, or raises InputError. Each must be held exactly
    once.
    """
    found = read_json_file(path)
    if not isinstance(found, dict) or not all(isinstance(part, list) for part in found.values()):
        raise InputError(f'{path} must hold {{"{holder}": [{held}, ...], ...}}')
    holder_of = np.full(len(called), -1)
    for own, (name, part) in enumerate(found.items()):
        if not part and not may_be_empty:
            raise InputError(f"{path}: {holder} {name!r} holds no {held}s; leave it out")
        for one in part:
            place = number(name, one)
            if holder_of[place] >= 0:
                shown = f"{held} {called[place]!r}"
                raise InputError(f"{path}: {shown} is given twice, last to {name!r}")
            holder_of[place] = own
    lost = [called[place] for place in np.flatnonzero(holder_of < 0).tolist()]
    if lost:
        raise InputError(
            f"{path} gives {held} {shorten(map(repr, lost))} to no {holder}; every {held} must be "
            "held by exactly one"
        )
    return from_worker_of_row(holder_of, list(found))
