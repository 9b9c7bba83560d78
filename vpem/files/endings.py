"""What the name of a file may end in, by what is written to it: one table for all that write."""

from __future__ import annotations

import os
from pathlib import Path

from vpem.errors import InputError

PathLike = str | os.PathLike[str]

HDF5 = (".h5", ".hdf5", "")
"""A name without an ending says nothing else."""

ENDINGS: dict[str, tuple[str, ...]] = {
    "models": HDF5,
    "clusterings": HDF5,
    "fits of SAEM": HDF5,
    "datasets": (*HDF5, ".h5ad"),
    "observations": HDF5,
    "individuals": HDF5,
    "corpora": (*HDF5, ".h5ad", ".csv", ".tsv"),
    "imputations": (*HDF5, ".csv", ".parquet"),
    "checkpoints": (*HDF5, ".ckpt"),
    "results": (".csv", ".parquet", ".h5", ".hdf5"),
    "pictures": (".png", ".svg", ".pdf"),
    "reports": (".html", ".htm"),
    "imputed values": (".csv", ".parquet"),
    "exported models": (".npz", ".json"),
}
"""Kinds of files, and the endings that agree with what is in them."""

ROWS = "a table of the rows and what they belong to is written by 'vpem predict MODEL DATA -o'"
INSTEAD = {
    "models": f"{ROWS}, parameters for other programs by 'vpem model export MODEL -o'",
    "clusterings": f"{ROWS}, centres by 'vpem model show --json'",
    "fits of SAEM": "curves as a table are written by 'vpem predict FIT -o', estimates by 'vpem "
    "model export FIT -o'",
}
"""What whoever names a table wants of a file that is none."""


def ending_of(path: PathLike) -> str:
    """Return what a name ends in, in small letters: ".h5"; "" of one like "fit-0.5"."""
    ending = Path(path).suffix.lower()
    return ending if ending[1:2].isalpha() else ""


def check_ending(path: PathLike, kind: str) -> str:
    """Return the ending of a file of a ``kind`` of `ENDINGS`; InputError if it is another's."""
    endings = ENDINGS[kind]
    ending = ending_of(path)
    if ending not in endings:
        *first, last = (one for one in endings if one)
        listed = f"{', '.join(first)} or {last}" if first else last
        instead = f"; {INSTEAD[kind]}" if kind in INSTEAD else ""
        raise InputError(f"{kind} are written to {listed} files, got {os.fspath(path)}{instead}")
    return ending
