"""Results as columns: CSV, Parquet or HDF5 files, or CSV on standard output."""

from __future__ import annotations

import csv
import os
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any, TextIO

import numpy as np

from vpem.checks import Labels
from vpem.files.hdf5 import atomic_write, create, write_column
from vpem.files.opening import PathLike
from vpem.files.temporaries import ending_of

VERSION = "0.1.0"
FORMULAS = ("=", "+", "-", "@", "\t")
KEPT = "\t\n\u200c\u200d\u00ad"
"""Ends of lines, and what joins or parts letters, which spaces of all widths do too."""


def write_columns(
    path: PathLike | None,
    columns: Mapping[str, Any],
    kind: str,
    force: bool = False,
    quote_formulas: bool = False,
    digits: int = 17,
) -> None:
    """Write columns (M,) to .csv, .parquet or .h5, or CSV to standard output; all or nothing.

    In CSV control characters in names and text are written as escapes such as backslash x1b; tabs
    and ends of lines stay, in quotes. Columns of pyarrow (ChunkedArray) go to CSV and Parquet only.
    Masked values are empty cells of CSV and nulls of Parquet; in HDF5 they are -1 of whole numbers,
    else NaN. ``kind`` is the ``encoding-type`` of HDF5. If ``quote_formulas``, an apostrophe comes
    before what begins with =, +, - or @ in CSV: spreadsheets would compute it. Probabilities, whose
    names begin with ``proba_``, have so many significant ``digits`` in CSV.
    """
    if path is None:
        _write_csv(sys.stdout, columns, quote_formulas, digits)
        return
    with atomic_write(path, force, "results") as temporary:
        ending = ending_of(path)
        if ending == ".parquet":
            _write_parquet(temporary, columns)
        elif ending == ".csv":
            with open(temporary, "w", newline="", encoding="utf-8") as stream:
                _write_csv(stream, columns, quote_formulas, digits)
        else:
            with create(temporary, kind, VERSION) as file:
                for name, column in columns.items():
                    write_column(file, name, _filled(column))


def _write_parquet(path: PathLike, columns: Mapping[str, Any]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = {}
    for name, column in columns.items():
        if isinstance(column, pa.ChunkedArray):
            arrays[name] = column
            continue
        values = column.tolist() if column.dtype.kind in "OSU" else np.ma.getdata(column)
        arrays[name] = pa.array(values, mask=np.ma.getmaskarray(column))
    parquet.write_table(pa.table(arrays), os.fspath(path))


def _filled(column: Labels) -> Labels:
    """Return a column whose masked numbers are -1, or NaN."""
    if not isinstance(column, np.ma.MaskedArray):
        return column
    return np.ma.filled(column, np.nan if column.dtype.kind == "f" else -1)


def _write_csv(
    stream: TextIO, columns: Mapping[str, Any], quote_formulas: bool, digits: int
) -> None:
    least = min(1e-12, 10.0 ** -(digits + 5))

    def short(share: float | None) -> object:
        return share if share is None else "0" if share < least else f"{share:.{digits}g}"

    def plain(text: object) -> str:
        shown = _escaped(str(text))
        return f"'{shown}" if quote_formulas and shown.startswith(FORMULAS) else shown

    def cells(name: str, column: Any) -> list[object]:
        if not isinstance(column, np.ndarray):
            return ["" if one is None else plain(one) for one in column.to_pylist()]
        # Python's own numbers print with all the digits it takes to read them back.
        values: list[Any] = column.tolist()
        if name.startswith("proba_") and digits < 17:
            return list(map(short, values))
        return values if column.dtype.kind in "biuf" else list(map(plain, values))

    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(plain, columns))
    writer.writerows(zip(*map(cells, columns, columns.values()), strict=True))


def _escaped(text: str) -> str:
    """Return text whose control characters are escapes: they could fool a terminal."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in KEPT or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )  # fmt: skip
