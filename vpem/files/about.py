"""Where a dataset comes from, as text attributes of its file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vpem.errors import InputError
from vpem.files.hdf5 import open_read, read_attribute, write_attribute

if TYPE_CHECKING:
    import h5py


ABOUT = ("source", "licence", "sha256")
"""Attributes: where to find the data and how to cite them, on what terms, of which file."""


def write_about(file: h5py.File, about: Mapping[str, str]) -> None:
    """Write attributes of the root; InputError for one that `ABOUT` does not have."""
    for name, text in about.items():
        if name not in ABOUT:
            raise InputError(f"what is told about a dataset is {', '.join(ABOUT)}, got {name!r}")
        write_attribute(file, name, text)


def read_about(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return those of the attributes that a file has."""
    with open_read(path) as file:
        found = {name: read_attribute(file, name) for name in ABOUT}
    return {name: text for name, text in found.items() if text is not None}
