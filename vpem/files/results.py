"""Results on disk: columns (CSV, Parquet, HDF5, standard output), clusterings and imputations."""

from __future__ import annotations

import csv
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TextIO

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import Labels, Matrix, as_kept, as_matrix, check_finite
from vpem.errors import FileError, InputError
from vpem.files.elements import (
    Column,
    Elements,
    Strings,
    check_written,
    read_elements,
    report_elements,
    write_elements,
)
from vpem.files.hdf5 import atomic_write, create, read_file, write_column, write_file
from vpem.files.opening import PathLike
from vpem.files.temporaries import check_ending, ending_of
from vpem.network.schema import (
    COUNT,
    FLAG,
    LARGEST_COUNT,
    TEXT,
    Array,
    ListOf,
    Maybe,
    NumberList,
    Report,
)
from vpem.records import Shown
from vpem.terms.missing import nearest
from vpem.terms.units import Scaling

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
            import pyarrow as pa
            from pyarrow import parquet

            arrays = {}
            for name, column in columns.items():
                if not isinstance(column, pa.ChunkedArray):
                    of_objects = column.dtype.kind in "OSU"
                    values = column.tolist() if of_objects else np.ma.getdata(column)
                    column = pa.array(values, mask=np.ma.getmaskarray(column))
                arrays[name] = column
            parquet.write_table(pa.table(arrays), os.fspath(temporary))
        elif ending == ".csv":
            with open(temporary, "w", newline="", encoding="utf-8") as stream:
                _write_csv(stream, columns, quote_formulas, digits)
        else:
            with create(temporary, kind, VERSION) as file:
                for name, column in columns.items():
                    if isinstance(column, np.ma.MaskedArray):
                        column = np.ma.filled(column, np.nan if column.dtype.kind == "f" else -1)
                    write_column(file, name, column)


def _write_csv(
    stream: TextIO, columns: Mapping[str, Any], quote_formulas: bool, digits: int
) -> None:
    least = min(1e-12, 10.0 ** -(digits + 5))

    def short(share: float | None) -> object:
        return share if share is None else "0" if share < least else f"{share:.{digits}g}"

    def plain(value: object) -> str:
        text = str(value)
        if not text.isprintable():  # control characters could fool a terminal
            text = "".join(
                c
                if c.isprintable() or c in KEPT or unicodedata.category(c) == "Zs"
                else c.encode("unicode_escape").decode("ascii")
                for c in text
            )
        return f"'{text}" if quote_formulas and text.startswith(FORMULAS) else text

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


class Assigning:
    """What has ``centres`` (K, d) of clusters, to which rows are assigned."""

    centres: NDArray[np.float64]
    scaling: Scaling | None  # units of distances, where not those of the centres

    def assign(
        self, X: Any, n_threads: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the nearest centre (M,) of each row, the first of several, and its distance (M,).

        Columns of ``X`` (M, d), or of `vpem.fits.spread_rows.SpreadRows`, are those of the centres;
        distances are in units of ``scaling``.
        """
        scaling = self.scaling or Scaling.none(self.centres.shape[1])
        if hasattr(X, "nearest"):
            labels, squares = X.nearest(self.centres, scaling)
        else:
            labels, squares = nearest(X, self.centres, scaling, thread_count(n_threads))
        return labels, np.sqrt(squares)

    def predict(self, X: Matrix) -> NDArray[np.int32]:
        """Return the cluster (M,) of each row (M, d): that of the nearest centre.

        InputError if the number of features is another, or a value is missing.
        """
        rows = as_matrix("the data", X)
        d = self.centres.shape[1]
        if rows.ndim != 2 or rows.shape[1] != d:
            raise InputError(f"the centres have {d} features, the data have shape {rows.shape}")
        check_finite(rows)
        return self.assign(rows)[0]

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Write the clustering, as `write_clustering` does."""
        write_clustering(path, self, force)


@dataclass
class StoredClustering(
    Assigning, Shown, facts="{centres.shape[0]:cluster}, {centres.shape[1]:feature}"
):
    """A clustering of M rows with all that is stored beside it."""

    encoding: ClassVar = "vpem-clustering"
    centres: NDArray[np.float64]  # (K, d)
    labels: NDArray[np.int32]  # (M,)
    distances: NDArray[np.float64]  # (M,), of each row to the centre of its cluster
    feature_names: tuple[str, ...]
    ids: Labels | None = None  # (M,)
    root_centres: NDArray[np.float64] | None = None  # (R, K, d) of each worker, where they differ
    report: Report = field(default_factory=dict)
    options: Report = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    scaling: Scaling | None = None  # units of distances, where not those of the centres
    deviations: NDArray[np.float64] | None = None  # (d,) of features in the fit

    @property
    def n_components(self) -> int:
        return len(self.centres)

    def take_features(self, columns: Sequence[int]) -> StoredClustering:
        """Return the clusters by some features, the others left out of distances."""
        some = list(columns)
        names = tuple(self.feature_names[column] for column in some)
        scaling = None if self.scaling is None else self.scaling.take_features(some)
        deviations = None if self.deviations is None else self.deviations[some]
        return replace(
            self, centres=self.centres[:, some], feature_names=names, root_centres=None,
            scaling=scaling, deviations=deviations,
        )  # fmt: skip


def write_clustering(path: PathLike, stored: object, force: bool = False) -> None:
    """Write a `StoredClustering`, a `vpem.Clustering` or fitted k-means, all or nothing."""
    stored = as_kept(
        stored, StoredClustering, "a clustering is written of a StoredClustering or fitted k-means"
    )
    scaling = stored.scaling
    ends = {
        name: None if scaling is None else getattr(scaling, name) for name in ("shift", "scale")
    }
    check_written(path, CLUSTERING, vars(stored))
    with write_file(path, force, "clusterings", StoredClustering.encoding, VERSION) as file:
        file.attrs["n_clusters"] = len(stored.centres)
        file.attrs["n_features"] = stored.centres.shape[1]
        write_elements(file, CLUSTERING, vars(stored) | ends)


CLUSTERING: Elements = {
    "feature_names": Strings("features", least=1),
    "centres": Array("f", ("clusters", "features")),
    "labels": Array("i", ("rows",), 0, below="clusters"),
    "distances": Array("f", ("rows",), 0),
    "ids": Maybe(Column("rows")),
    "root_centres": Maybe(Array("f", ("roots", "clusters", "features"))),
    "shift": Maybe(Array("f", ("features",))),
    "scale": Maybe(Array("f", ("features",), positive=True)),
    "deviations": Maybe(Array("f", ("features",), 0)),
    **report_elements(
        hubs=ListOf(ListOf(COUNT)),
        roots=ListOf(COUNT),
        cluster_sizes=NumberList(),
        spread=NumberList(least=0),
    ),
}


def read_clustering(path: PathLike) -> StoredClustering:
    """Read a file of `write_clustering`; FileError if it cannot be read, or is none."""
    otherwise = f"a {StoredClustering.encoding} file; 'vpem kmeans -o' writes one"
    with read_file(path, StoredClustering.encoding, VERSION, otherwise) as file:
        state = read_elements(file, CLUSTERING)
    shift, scale = state.pop("shift"), state.pop("scale")
    if (shift is None) != (scale is None):
        raise FileError(f"{path} must have both shift and scale, or neither")
    scaling = None if shift is None else Scaling(shift, scale)
    state["labels"] = state["labels"].astype(np.int32)
    return StoredClustering(**state, scaling=scaling)


@dataclass(frozen=True)
class Imputed(Shown, facts="{values.shape[0]:row}, {values.shape[1]:column}"):
    _in_notebooks = "vpem.pictures.public.in_html"

    encoding: ClassVar = "vpem-imputation"
    values: NDArray[np.float64]  # (I, J): seen (mean over observers) or fitted
    times_seen: NDArray[np.intp]  # (I, J); 0: imputed
    row_names: tuple[str, ...]  # (I,)
    column_names: tuple[str, ...]  # (J,)
    source: str  # where the observations are from
    long: bool = False  # that was a table with a line an entry
    draws: NDArray[np.float64] | None = None  # (M, I, J): of which tables then consist
    row_trend: NDArray[np.float64] | None = None  # (I,) mean of what was fitted
    column_trend: NDArray[np.float64] | None = None  # (J,)
    report: Report = field(default_factory=dict)  # of how it was fitted
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def stacked(self) -> tuple[NDArray[np.float64], int]:
        """What tables have, (M I, J), and how many times each row is in it."""
        if self.draws is None:
            return self.values, 1
        return self.draws.reshape(-1, self.draws.shape[2]), len(self.draws)

    def describe(self) -> Report:
        return {
            "source": self.source,
            "rows": len(self.row_names),
            "columns": len(self.column_names),
            "entries_imputed": int((self.times_seen == 0).sum()),
            "draws": 0 if self.draws is None else len(self.draws),
        }

    def numbered(self, taken: Collection[str]) -> dict[str, NDArray[np.intp]]:
        """Return the column of a table with the draw of each row, if there are draws."""
        if self.draws is None:
            return {}
        name = "draw"
        while name in taken:
            name += "_"
        return {name: np.repeat(np.arange(1, len(self.draws) + 1), len(self.row_names))}


IMPUTATION: Elements = {
    "row_names": Strings("rows", least=1),
    "column_names": Strings("columns", least=1),
    "imputed": Array("f", ("rows", "columns")),
    "times_seen": Array("i", ("rows", "columns"), 0, LARGEST_COUNT),
    "@source": Maybe(TEXT),
    "@long": Maybe(FLAG),
    "draws": Maybe(Array("f", ("draws", "rows", "columns"))),
    "trends/rows": Maybe(Array("f", ("rows",))),
    "trends/columns": Maybe(Array("f", ("columns",))),
    **{
        name: Maybe(one)
        for name, one in report_elements(recoveries=COUNT).items()
        if name != "options"
    },
}
"""What is read of the file; factors and what was held out are for others."""


def read_imputed(path: PathLike) -> Imputed:
    """Read the completed matrix of a file of `write_imputation`."""
    otherwise = f"a {Imputed.encoding} file; 'vpem impute -o' writes one"
    with read_file(path, Imputed.encoding, VERSION, otherwise) as file:
        state = read_elements(file, IMPUTATION)
    values, by_row, by_column = map(state.pop, ("imputed", "trends/rows", "trends/columns"))
    known = {name: value for name, value in state.items() if value is not None}
    return Imputed(values, row_trend=by_row, column_trend=by_column, **{"source": "", **known})


def write_imputed(
    path: PathLike,
    imputed: Imputed,
    force: bool = False,
    quote_formulas: bool = False,
    filled: Mapping[str, object] | None = None,
) -> None:
    """Write a completed matrix as a .csv or .parquet table, all or nothing.

    Of observations from a long table the table is long too: row, column, value, times_seen (0 where
    the value was imputed). Else it is the matrix, a line a row and its name first; or all columns
    of the table that was imputed, which are ``filled`` (`vpem.files.data.filled_columns`). With
    draws there is one such table below the other, and a column draw that counts them from 1.
    """
    check_ending(path, "imputed values")
    values, times = imputed.stacked
    rows, columns = np.tile(np.array(imputed.row_names), times), np.array(imputed.column_names)
    table: Mapping[str, object]
    if filled is not None:
        table = filled
    elif imputed.long:
        drawn = imputed.numbered(())
        table = {name: np.repeat(number, len(columns)) for name, number in drawn.items()} | {
            "row": np.repeat(rows, len(columns)),
            "column": np.tile(columns, len(rows)),
            "value": values.ravel(),
            "times_seen": np.tile(imputed.times_seen.ravel(), times),
        }
    else:
        first = "row"
        while first in imputed.column_names:
            first += "_"
        taken = (first, *imputed.column_names)
        table = imputed.numbered(taken) | dict(zip(taken, (rows, *values.T), strict=True))
    write_columns(path, table, "vpem-imputed", force, quote_formulas)


def arrays_or_json(
    path: PathLike, arrays: Callable[[], Report], content: Callable[[], Report], force: bool
) -> None:
    """Write a fit by the ending of the file: its arrays to .npz, or all of it to .json."""
    with atomic_write(path, force, "exported models") as temporary:
        if ending_of(path) == ".npz":
            with open(temporary, "wb") as binary:
                np.savez(binary, **arrays())
            return
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(content(), stream, allow_nan=False)
            stream.write("\n")
