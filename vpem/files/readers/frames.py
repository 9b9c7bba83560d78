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


@dataclass(frozen=True)
class Frame:
    """The columns of a table, which are read when it is known which.

    ``read`` takes numbers of columns in increasing order, and those of them to be read as text
    where that is possible; ``file`` is where columns are packed, None if they are in memory.
    """

    source: str
    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]  # text as far as its beginning shows
    read: Callable[[Sequence[int], Sequence[int]], list[pa.ChunkedArray]]
    index: frozenset[int] = frozenset()  # an index of rows, or nameless
    header: bool = True  # names are the file's own
    unread: dict[str, str] = field(default_factory=dict)  # why these cannot be read
    file: Path | None = None


@dataclass(frozen=True)
class Wanted:
    """What of a file is wanted, and how; see `vpem.files.data.read_data`."""

    table: TableSettings  # with what a model keeps
    dataset: str | None = None  # path inside the file
    memory_limit: int | None = None  # in bytes
    weights: str | int | None = None  # column or path
    weights_needed: bool = True
    columns: Sequence[str] | frozenset[str] | None = None  # the features of a model
    lacking: tuple[str, ...] = ()  # of "label", "id", "worker": may be absent
    keep_constant: bool = False  # columns of one value, or none, stay
    on_disk: bool = False
    profiles: list[ColumnProfile] | None = None  # gets one a column
    lenient: bool = False  # any number of levels: a model knows them

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
