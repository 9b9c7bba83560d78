"""Families of features as HDF5 files keep them, of data and of models alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vpem.errors import FileError, InputError
from vpem.files.elements import Elements, Strings, read_elements
from vpem.files.hdf5 import find, write_array, write_strings
from vpem.network.schema import Array
from vpem.terms.families.kinds import Kinds

if TYPE_CHECKING:
    import h5py


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
    found = read_elements(group, schema, features=n_features)
    counts = tuple(found["n_levels"].tolist())
    levels = {}
    for feature, count in enumerate(counts):
        if find(group, f"levels/{feature}") is not None:
            named: Elements = {f"levels/{feature}": Strings("levels", different=True)}
            (levels[feature],) = read_elements(group, named, levels=count).values()
    try:
        kinds = Kinds(found["families"], counts, levels)
    except InputError as error:
        raise FileError(f"{group.file.filename}: {error}") from None
    return None if kinds.is_gaussian else kinds
