"""Frames: the named columns of a table of any format, before and after they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Frame"]


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
        Columns that whoever wrote the file calls an index of the rows.
    header : bool
        Whether the names are the file's own.
    """

    source: str
    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    read: Callable[[Sequence[int], Sequence[int]], list[pa.ChunkedArray]]
    index: frozenset[int] = frozenset()
    header: bool = True
