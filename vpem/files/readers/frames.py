"""Frames: the named columns of a table of any format, before they are read; and what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.errors import InputError
from vpem.files.table_settings import TableSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from vpem.files.readers.profiles import ColumnProfile

__all__ = ["Frame", "Wanted", "check_fields"]


@dataclass(frozen=True)
class Frame:
    """The columns of a table, which are read when it is known which.

    Attributes
    ----------
    source : str
        The file, as messages call it.
    names : tuple of str
        Of its columns.
    kinds : tuple of pyarrow.DataType
        What they hold, in text as far as its beginning shows.
    read : callable
        Given numbers of columns in increasing order, and those of them that are read as text where
        that is possible; returns a column for each.
    index : frozenset of int
        Columns that whoever wrote the file calls an index of the rows, or has no name for.
    header : bool
        Whether the names are the file's own.
    unread : dict of str to str
        Columns that cannot be read, with the reason.
    file : Path or None
        Where its columns are packed; None: they are in memory.
    """

    source: str
    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    read: Callable[[Sequence[int], Sequence[int]], list[pa.ChunkedArray]]
    index: frozenset[int] = frozenset()
    header: bool = True
    unread: dict[str, str] = field(default_factory=dict)
    file: Path | None = None


@dataclass(frozen=True)
class Wanted:
    """What of a file is wanted, and how; see `vpem.files.data.read_data`.

    Attributes
    ----------
    table : TableSettings
        How a table is read, with what a model keeps.
    dataset : str or None
        Path inside the file.
    memory_limit : int or None
        In bytes.
    weights : str, int or None
        The column of weights, or the path to them.
    weights_needed : bool
        Whether these must be there.
    columns : sequence of str, frozenset of str, or None
        The features of a model.
    lacking : tuple of str
        What of labels, ids and workers ("label", "id", "worker") may be named and not be there.
    keep_constant : bool
        Whether columns with one value, or none, are features.
    on_disk : bool
        Whether values of HDF5 stay on disk, however few they are.
    profiles : list of ColumnProfile, optional
        Gets what the columns of a table hold.
    lenient : bool
        Whether a model says what columns are, so that a category may have any number of levels.
    """

    table: TableSettings
    dataset: str | None = None
    memory_limit: int | None = None
    weights: str | int | None = None
    weights_needed: bool = True
    columns: Sequence[str] | frozenset[str] | None = None
    lacking: tuple[str, ...] = ()
    keep_constant: bool = False
    on_disk: bool = False
    profiles: list[ColumnProfile] | None = None
    lenient: bool = False

    @property
    def in_memory(self) -> int | None:
        """Bytes of which values of HDF5 are read; None: however many."""
        return 0 if self.on_disk else self.memory_limit


def check_fields(dtype: np.dtype[Any], source: str) -> None:
    """Raise InputError if a field holds objects, or records again."""
    assert dtype.names is not None
    for name in dtype.names:
        if dtype[name].base.kind not in "iufbSU":
            raise InputError(
                f"{source}: field {name!r} holds {dtype[name].base}, not text or numbers; write "
                "the table without it"
            )
