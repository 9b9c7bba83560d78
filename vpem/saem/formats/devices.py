"""Which device holds which individuals, from a file."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from vpem.errors import InputError, did_you_mean, shorten
from vpem.files.json_text import read_json_file
from vpem.network.workers import Workers, from_worker_of_row

__all__ = ["read_devices"]


def read_devices(path: str | os.PathLike[str], individuals: Sequence[str]) -> Workers:
    """Read who holds whom: JSON, ``{"device": [individual, ...], ...}``, individuals by name.

    Parameters
    ----------
    path : path
        The file; a name that is a whole number may be written as a number.
    individuals : sequence of str
        Names of all individuals.

    Returns
    -------
    Workers
        Devices in the order of the file; "rows" are numbers of individuals.

    Raises
    ------
    FileError
        If the file cannot be read.
    InputError
        If an individual is unknown, held twice or by nobody, or a device holds none.
    """
    found = read_json_file(path)
    if not isinstance(found, dict) or not all(isinstance(part, list) for part in found.values()):
        raise InputError(f'{path} must hold {{"device": [individual, ...], ...}}')
    number = {name: place for place, name in enumerate(individuals)}
    device_of = np.full(len(individuals), -1)
    for device, (name, part) in enumerate(found.items()):
        if not part:
            raise InputError(f"{path}: device {name!r} holds no individuals; leave it out")
        for one in part:
            word = str(one) if type(one) is int else one
            if not isinstance(word, str) or word not in number:
                hint = did_you_mean(word, number) if isinstance(word, str) else ""
                raise InputError(
                    f"{path}: device {name!r} has {one!r}, but no individual is called so{hint}"
                )
            if device_of[number[word]] >= 0:
                raise InputError(f"{path}: individual {word!r} is given twice, last to {name!r}")
            device_of[number[word]] = device
    if (device_of < 0).any():
        lost = [repr(individuals[one]) for one in np.flatnonzero(device_of < 0).tolist()]
        raise InputError(
            f"{path} gives {shorten(lost)} to no device; every individual must be held by exactly "
            "one"
        )
    return from_worker_of_row(device_of, list(found))
