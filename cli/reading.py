"""Files of data that commands read, one at a time, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .roles import READ

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.files.table_settings import TableSettings

    from .where import Where

__all__ = ["STDIN", "DataFile", "kept_of", "read_one", "refuse_shared_stdin", "teller"]

STDIN = "-"

DataFile = Annotated[
    Path,
    READ,
    typer.Argument(
        help="Table (CSV, Parquet, Feather, .npy), HDF5 or .h5ad, or - for standard input."
    ),
]

MOST_LISTED = 10
"""Columns that are left out, of which a line has the names."""


def read_one(
    path: Path,
    table: TableSettings,
    where: Where,
    say: Callable[[str], None] | None,
    *,
    kept: TableSettings | None = None,
    **how: Any,
) -> Dataset:
    """Read the dataset of a command, and say what of a table is left out.

    Parameters
    ----------
    path : Path
        The file, or `STDIN`.
    table : TableSettings
        How it is read, as the user says.
    where : Where
        The processes, each of which reads it; values of HDF5 then stay on disk.
    say : callable or None
        Prints a line; None: whoever calls this says it.
    kept : TableSettings, optional
        How the data of a model were read.
    **how
        As `vpem.files.data.read_data` takes it.
    """
    from vpem.files.data import read_data

    refuse_shared_stdin(path, where)
    how = {"on_disk": where.engine.apart, **how}
    found = read_data(path, table, kept=kept, **how)
    if say is not None:
        teller(say)(found, table, kept)
    return found


def refuse_shared_stdin(path: Path, where: Where) -> None:
    """Raise InputError where standard input is to be read by several processes."""
    from vpem.errors import InputError

    if str(path) == STDIN and where.engine.apart:
        raise InputError(
            "standard input (-) is for one process, but here each reads the data; name a file"
        )


def teller(say: Callable[[str], None]) -> Callable[..., None]:
    """Return what says of a table from which column ids are taken, and which are left out."""

    def tell(found: Dataset, table: TableSettings, kept: TableSettings | None = None) -> None:
        from vpem.errors import shorten

        if found.table is None:
            return
        ids = found.table.id_column
        if ids is not None and ids not in (table.id_column, kept and kept.id_column):
            say(f"{found.source}: ids of rows are taken from {ids!r}; --id-column names another")
        if found.left_out:
            listed = (f"{name} ({why})" for name, why in found.left_out.items())
            say(f"{found.source}: left out: {shorten(listed, MOST_LISTED)}")

    return tell


def kept_of(options: Mapping[str, Any]) -> TableSettings:
    """Return how the data of a fit were read, of what its file says of its options."""
    from vpem.files.table_settings import TableSettings, settings_in

    names = TableSettings.settings_by_name
    told = {name: options[name] for name in names if options.get(name) is not None}
    return settings_in(told, "options of the model")
