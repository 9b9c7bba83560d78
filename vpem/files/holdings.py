"""Who holds which features or rows, read from JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from vpem.errors import InputError, shorten
from vpem.network.partition import Partition, _numbers_of_names, from_lists
from vpem.network.workers import Workers, from_worker_of_row

__all__ = ["read_partition", "read_workers"]


def read_partition(
    path: str | os.PathLike[str], n_features: int, feature_names: Sequence[str] | None = None
) -> Partition:
    """Read a partition from a JSON file.

    Parameters
    ----------
    path : path
        A file that holds ``{"agent name": [feature, ...], ...}`` or ``[[feature, ...], ...]``,
        where a feature is its number (from 0) or its name.
    n_features : int
        Number of features of the data.
    feature_names : sequence of str, optional
        Names of the features.

    Returns
    -------
    Partition
        The partition, agents in the order of the file.

    Raises
    ------
    FileError
        If the file cannot be read or is not JSON.
    InputError
        If it is JSON of another structure, repeats an agent, names an unknown feature, or does
        not hold every feature exactly once.
    """
    from vpem.files.json_text import read_json_file

    content = read_json_file(path)
    names = list(content) if isinstance(content, dict) else None
    lists = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(lists, list) or not all(isinstance(part, list) for part in lists):
        raise InputError(
            f"{path} must hold an object of lists of features, one an agent, or a list of lists"
        )
    try:
        numbers = _numbers_of_names(lists, feature_names)
        return from_lists(numbers, n_features, names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_workers(path: str | os.PathLike[str], n_samples: int) -> Workers:
    """Read a partition of the rows: JSON, ``{"name": [row, ...], ...}``, rows from 0.

    Parameters
    ----------
    path : path
        The file.
    n_samples : int
        Number of rows there are.

    Returns
    -------
    Workers

    Raises
    ------
    FileError
        If the file cannot be read.
    InputError
        If a row is missing, repeated, out of range or not an integer.
    """
    from vpem.files.json_text import read_json_file

    found = read_json_file(path)
    if not isinstance(found, dict) or not all(isinstance(part, list) for part in found.values()):
        raise InputError(f'{path} must hold {{"worker": [row, ...], ...}}')
    worker_of = np.full(n_samples, -1)
    for worker, (name, part) in enumerate(found.items()):
        for row in part:
            if type(row) is not int or not 0 <= row < n_samples:
                raise InputError(
                    f"{path}: worker {name!r} has row {row!r}, but rows are numbered 0 to "
                    f"{n_samples - 1}"
                )
            if worker_of[row] >= 0:
                raise InputError(f"{path}: row {row} is given twice, last to {name!r}")
            worker_of[row] = worker
    if (worker_of < 0).any():
        raise InputError(
            f"{path} gives row {shorten(np.flatnonzero(worker_of < 0))} to no worker; every row "
            "must be held by exactly one"
        )
    return from_worker_of_row(worker_of, list(found))
