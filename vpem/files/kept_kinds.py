"""Families of features as HDF5 files keep them: three lists beside what they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vpem.errors import FileError, InputError
from vpem.files.hdf5 import find, read_array, read_strings, write_array, write_strings
from vpem.terms.families.kinds import Kinds

if TYPE_CHECKING:
    import h5py

__all__ = ["read_kinds", "write_kinds"]


def write_kinds(group: h5py.Group, kinds: Kinds) -> None:
    """Write ``families`` (d,), ``n_levels`` (d,), and ``level_names`` of all, one after another.

    A category whose levels have no names is written with their numbers.
    """
    write_strings(group, "families", kinds.families)
    if any(kinds.n_levels):
        write_array(group, "n_levels", np.array(kinds.n_levels, dtype=np.int64))
        names = [
            name
            for feature, count in enumerate(kinds.n_levels)
            for name in kinds.levels.get(feature, tuple(map(str, range(count))))
        ]
        write_strings(group, "level_names", names)


def read_kinds(group: h5py.Group, n_features: int) -> Kinds | None:
    """Read what `write_kinds` has written; None where there is nothing, or all are Gaussian.

    Raises
    ------
    FileError
        If it is not what it must be.
    """
    if find(group, "families") is None:
        return None
    families = read_strings(group, "families", shape=(n_features,))
    counts = [0] * n_features
    names: tuple[str, ...] = ()
    where = f"{group.file.filename}: families"
    if find(group, "n_levels") is not None:
        counts = read_array(group, "n_levels", kinds="iu", shape=(n_features,)).tolist()
        names = read_strings(group, "level_names")
    if min(counts) < 0 or sum(counts) != len(names):
        raise FileError(f"{where}: n_levels and level_names do not go together")
    levels, first = {}, 0
    for feature, count in enumerate(counts):
        if count:
            levels[feature] = names[first : first + count]
            if len(set(levels[feature])) < count:
                raise FileError(f"{where}: feature {feature} has a level twice")
            first += count
    try:
        kinds = Kinds(families, tuple(counts), levels)
    except InputError as error:
        raise FileError(f"{where}: {error}") from None
    return None if kinds.is_gaussian else kinds
