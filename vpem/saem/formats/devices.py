"""Which device holds which individuals, from a file."""

from __future__ import annotations

import os
from collections.abc import Sequence

from vpem.errors import InputError, did_you_mean
from vpem.files.holdings import read_holders
from vpem.network.partition import Workers


def read_devices(path: str | os.PathLike[str], individuals: Sequence[str]) -> Workers:
    """Read who holds whom: JSON, ``{"device": [individual, ...], ...}``, individuals by name.

    A name that is a whole number may be written as a number. Devices stand in the order of the
    file; their "rows" are numbers of individuals, each of which is held once.
    """
    places = {name: place for place, name in enumerate(individuals)}

    def number(device: str, one: object) -> int:
        word = str(one) if type(one) is int else one
        if not isinstance(word, str) or word not in places:
            hint = did_you_mean(word, places) if isinstance(word, str) else ""
            raise InputError(
                f"{path}: device {device!r} has {one!r}, but no individual is called so{hint}"
            )
        return places[word]

    return read_holders(path, "device", "individual", individuals, number, may_be_empty=False)
