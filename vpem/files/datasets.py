"""Datasets: a matrix of examples by features, with what is known about rows, columns and agents.

The file format is described in docs/reference/file-formats.md; matrices are also read of HDF5 files
that anybody may have made, AnnData among them.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from vpem.checks import AnyArray, Floats, Labels, precision_of, row_blocks
from vpem.errors import FileError, InputError, Setting, VpemWarning, did_you_mean, shorten
from vpem.files.elements import write_kinds
from vpem.files.hdf5 import (
    describe_element,
    find,
    list_datasets,
    open_read,
    read_array,
    read_attribute,
    read_strings,
    write_array,
    write_attribute,
    write_column,
    write_file,
    write_strings,
)
from vpem.files.json_text import parse_json
from vpem.files.matrix import FileMatrix, is_stored
from vpem.network.partition import Partition, Workers
from vpem.records import Shown
from vpem.terms.families.kinds import Kinds

if TYPE_CHECKING:
    import h5py

    from vpem.files.readers.frames import SomeLabels
    from vpem.files.table_settings import TableSettings


ABOUT = ("source", "licence", "sha256", "power")
"""Attributes: where to find the data and how to cite them, on what terms, of which file; by which
exponents features are transformed (`vpem.terms.units.power_transform`), JSON."""

STORED = "sample_weight"
"""What datasets call the weights of their rows."""

ENCODING = "vpem-dataset"
VERSION = "0.1.0"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Home:
    """The rows of one party's data, in its own order."""

    name: str  # "": of one dataset
    ids: Labels | None  # (m,)
    places: NDArray[np.intp]  # (m,) where each is in the results; -1: nowhere
    counted: Labels | None = None  # (m,) numbers of rows that have no ids; None: from 0

    @classmethod
    def whole(
        cls, ids: Labels | None, n_rows: int, name: str = "", counted: Labels | None = None
    ) -> Self:
        """Make one of rows that all took part."""
        return cls(name, ids, np.arange(n_rows), counted)

    @classmethod
    def joined(cls, name: str, ids: Labels | None, n_rows: int, rows: NDArray[np.intp]) -> Self:
        """Make one of the party's row behind each joined row, (M,); -1 where it has none."""
        places = np.full(n_rows, -1, dtype=np.intp)
        there = np.flatnonzero(rows >= 0)
        places[rows[there]] = there
        return cls(name, ids, places)

    @property
    def n_lost(self) -> int:
        """Rows of which nothing is found."""
        return int((self.places < 0).sum())

    def columns(self, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
        """Return a table of all its rows: what they are called, and what was found of them.

        Columns (m,) of arrays (M,), by joined rows, are masked where a row took no part.
        """
        numbers = np.arange(len(self.places)) if self.counted is None else self.counted
        called = ("row", numbers) if self.ids is None else ("id", self.ids)
        lost = self.places < 0
        return dict([called]) | {
            name: np.ma.array(np.take(column, np.where(lost, 0, self.places)), mask=lost)
            if lost.any()
            else np.asarray(column)[self.places]
            for name, column in arrays.items()
        }

    def values(self, array: AnyArray) -> list[object]:
        """Return what was found (M, ...) of its rows, for JSON: None where a row took no part."""
        return [None if place < 0 else array[place].tolist() for place in self.places.tolist()]


@dataclass
class Dataset(Shown, facts="{n_samples:row}, {n_features:feature}, {source}"):
    """Examples by features.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The values. Kept as C-contiguous float32 or float64 (integers become float64), or as a
        `FileMatrix` that stays on disk.
    feature_names : tuple of str of length n_features
        Names of the columns.
    ids : ndarray of shape (n_samples,), optional
        What the rows are called: strings or numbers.
    counted : ndarray of shape (n_samples,), optional
        An index that only counts the rows, from 0 or 1: no ids, but what tables of results have.
    labels : ndarray of shape (n_samples,), optional
        Known classes of the rows, strings or numbers; never used in fitting.
    partition : Partition, optional
        Which agent holds which features.
    edges : ndarray of int of shape (n_edges, 2), optional
        Links between agents, by their numbers.
    workers : Workers, optional
        Which worker holds which rows.
    sample_weight : ndarray of shape (n_samples,), optional
        Weights of the rows.
    source : str
        Where the data come from, as the user named it; used in messages.
    homes : dict of int to Home
        Where the rows come from, by party, of the parties that live in this process.
    left_out : dict of str to str
        Columns of a plain table that are no features, with the reason: text, dates, constant, ...
    table : TableSettings, optional
        How a table was read, with the column of ids that was found; None of HDF5.
    kinds : Kinds, optional
        Family of each feature, with the names of levels; None: all are Gaussian.
    coded : dict of int to tuple of str
        Columns that were read as codes of names, and the names, where it is not settled yet what
        families the features have (`vpem.files.families.settle`).
    labels_for_fit : SomeLabels, optional
        Labels of some rows, which a fit uses.
    labelled_by : int
        Which party has these.
    format : str
        What was read: "text", "parquet", "arrow", "hdf5", "npy", "npz", or "records" of HDF5.
    powers : dict of str to float, optional
        Exponents by which features are transformed (`vpem.terms.units.power_transform`), by name.
    is_share : bool
        Whether this is what one process has of the data of parties that several processes hold:
        ``X`` has the columns, or the rows, of its own parties alone, party by party, and weights
        are of the rows of ``X``; all else is what the parties have together, taken as it is.

    Raises
    ------
    InputError
        If the parts do not fit each other.
    """

    X: Any
    feature_names: tuple[str, ...]
    ids: Labels | None = None
    labels: Labels | None = None
    partition: Partition | None = None
    edges: NDArray[np.intp] | None = None
    workers: Workers | None = None
    sample_weight: NDArray[np.float64] | None = None
    source: str = "data"
    homes: dict[int, Home] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    table: TableSettings | None = None
    kinds: Kinds | None = None
    coded: dict[int, tuple[str, ...]] = field(default_factory=dict)
    labels_for_fit: SomeLabels | None = None
    labelled_by: int = 0
    counted: Labels | None = None
    format: str = ""
    is_share: bool = False
    powers: dict[str, float] | None = None

    def __post_init__(self) -> None:
        if self.is_share:
            return
        self.X = as_matrix(self.X, self.source)
        n_samples, n_features = self.X.shape
        self.feature_names = tuple(str(name) for name in self.feature_names)
        if len(self.feature_names) != n_features:
            raise InputError(
                f"{self.source}: there are {n_features} features but {len(self.feature_names)} "
                "feature_names"
            )
        repeated = [name for name, count in Counter(self.feature_names).items() if count > 1]
        if repeated:
            raise InputError(
                f"{self.source}: feature names must differ, but several features are called "
                f"{shorten(map(repr, repeated))}; rename them"
            )
        if self.ids is not None:
            self.ids = as_column("ids", self.ids, n_samples, self.source)
        if self.labels is not None:
            self.labels = as_column("labels", self.labels, n_samples, self.source)
        if self.sample_weight is not None:
            self.sample_weight = as_weights(self.sample_weight, n_samples, self.source)
        for part, what, have, words in (
            (self.partition, "n_features", n_features, "the partition divides {} features"),
            (self.workers, "n_samples", n_samples, "the workers hold {} rows"),
            (self.kinds, "n_features", n_features, "there are families of {} features"),
        ):
            if part is not None and getattr(part, what) != have:
                said = words.format(getattr(part, what))
                raise InputError(f"{self.source}: {said}, but X has {have}")
        if self.edges is not None:
            edges, n_agents = np.asarray(self.edges), None
            if self.partition is not None:
                n_agents = self.partition.n_agents
            if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
                raise InputError(
                    f"{self.source}: graph/edges must be pairs of agent numbers (integers, n x 2), "
                    f"got {edges.dtype} of shape {' x '.join(map(str, edges.shape))}"
                )
            wrong = (edges < 0).any(axis=1)
            if n_agents is not None:
                wrong |= (edges >= n_agents).any(axis=1)
            if wrong.any():
                first = int(np.argmax(wrong))
                one, two = edges[first]
                known = "from 0" if n_agents is None else f"0 to {n_agents - 1}"
                raise InputError(
                    f"{self.source}: edge {first} of graph/edges joins {one} and {two}, but agents "
                    f"are numbered {known}"
                )
            loops = np.flatnonzero(edges[:, 0] == edges[:, 1])
            if len(loops):
                raise InputError(
                    f"{self.source}: edge {loops[0]} of graph/edges joins agent "
                    f"{edges[loops[0], 0]} to itself"
                )
            self.edges = edges.astype(np.intp)

    @property
    def plain(self) -> bool:
        """Whether nothing says who holds what: neither agents nor workers nor a graph."""
        return self.partition is None and self.workers is None and self.edges is None

    @property
    def own_features(self) -> Sequence[int]:
        """Features that the columns of ``X`` are: all, or in a share those of its parties."""
        if not self.is_share or self.partition is None:
            return range(len(self.feature_names))
        return [int(j) for party in self.homes for j in self.partition.features[party]]

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Names of the levels of categories, by the names of their features."""
        levels = {} if self.kinds is None else self.kinds.levels
        return {self.feature_names[j]: names for j, names in levels.items()}

    @property
    def n_samples(self) -> int:
        """Number of rows, of all parties."""
        if self.is_share and self.workers is not None:
            return self.workers.n_samples
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features, of all parties."""
        return len(self.feature_names)


def write_dataset(
    path: str | os.PathLike[str],
    dataset: Dataset,
    force: bool = False,
    truth: Mapping[str, ArrayLike] | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a dataset completely or not at all.

    Parameters
    ----------
    path : path
        The file to write.
    dataset : Dataset
        The data.
    force : bool
        Replace an existing file.
    truth : mapping of str to array-like, optional
        Parameters the data were drawn from, written to the group ``truth``.
    about : mapping of str to str, optional
        Where the data come from, in attributes (`vpem.files.datasets.ABOUT`).

    Raises
    ------
    FileError
        If the file cannot be written.
    InputError
        If a name cannot be stored in HDF5.
    """
    rows = max(1, min(dataset.n_samples, CHUNK_BYTES // max(1, dataset.X[:1].nbytes)))
    with write_file(path, force, "datasets", ENCODING, VERSION) as file:
        X, chunks = dataset.X, (rows, dataset.n_features)
        matrix = file.create_dataset("X", X.shape, X.dtype, chunks=chunks, track_times=False)
        describe_element(matrix, "array", "0.2.0")
        for start, part in row_blocks(X):
            matrix[start : start + len(part)] = part
        write_strings(file, "feature_names", dataset.feature_names)
        for name, column in (("ids", dataset.ids), ("labels", dataset.labels)):
            if column is not None:
                write_column(file, name, column)
        if dataset.sample_weight is not None:
            write_array(file, STORED, dataset.sample_weight)
        if dataset.kinds is not None:
            write_kinds(file, dataset.kinds)
        if dataset.partition is not None:
            write_array(file, "partition", dataset.partition.agent_of.astype(np.int64))
            write_strings(file, "agent_names", dataset.partition.names)
        if dataset.workers is not None:
            write_array(file, "workers", dataset.workers.worker_of.astype(np.int64))
            write_strings(file, "worker_names", dataset.workers.names)
        if dataset.edges is not None:
            group = file.create_group("graph")
            describe_element(group, "dict", "0.1.0")
            write_array(group, "edges", dataset.edges.astype(np.int64))
        if truth is not None:
            group = file.create_group("truth")
            describe_element(group, "dict", "0.1.0")
            for name, values in truth.items():
                write_array(group, name, values)
        for name, text in (about or {}).items():
            if name not in ABOUT:
                listed = ", ".join(ABOUT)
                raise InputError(f"the descriptions of a dataset are {listed}, got {name!r}")
            write_attribute(file, name, text)


def read_about(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return those of the attributes `ABOUT` that a file has."""
    with open_read(path) as file:
        texts = {name: read_attribute(file, name) for name in ABOUT}
    return {name: text for name, text in texts.items() if text is not None}


def read_exponents(text: object, where: object) -> dict[str, float]:
    """Return exponents of features, as files keep them; InputError where there are none."""
    try:
        found = parse_json(str(text))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        type(one) in (int, float) and abs(one) < MOST_EXPONENT for one in found.values()
    ):
        raise InputError(f"{where} has no exponents of a power transform")
    return {name: float(one) for name, one in found.items()}


MOST_EXPONENT = 1e6


def exponents_of(known: Mapping[str, float] | None, names: Sequence[str]) -> NDArray[np.float64]:
    """Return the exponent of each feature (d,), by name, or where one side has none by place.

    It is 1, which changes nothing, where none is known.
    """
    known = known or {}
    if len(known) == len(names) and default_names(len(names)) in (tuple(names), tuple(known)):
        return np.array([*known.values()])
    return np.array([known.get(name, 1.0) for name in names])


def powers_of(stored: Any) -> NDArray[np.float64]:
    """Return the exponent of each feature (d,) that a model, or clusters, were fitted to."""
    power = stored.options.get("power")
    known = None if power is None else read_exponents(power, "the model")
    return exponents_of(known, stored.feature_names)


def powers_in(data: Dataset, columns: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Return by which exponents features of data, or some of them, are transformed already."""
    exponents = exponents_of(data.powers, data.feature_names)
    return exponents if columns is None else exponents[list(columns)]


def powers_for(
    stored: Any, data: Dataset, columns: Sequence[int] | None = None
) -> NDArray[np.float64] | None:
    """Return by which exponents (d,) data have yet to be transformed for a fit; None: by none.

    ``columns`` (d,) are places of its features in the data. InputError if these were transformed
    by others.
    """
    fitted = powers_of(stored)
    if data.powers is None:
        return fitted if (fitted != 1).any() else None
    differ = np.flatnonzero(fitted != powers_in(data, columns))
    if len(differ):
        names = shorten(repr(stored.feature_names[column]) for column in differ)
        raise InputError(
            f"{data.source} has {names} transformed by other exponents than the model's; give it "
            "the data as they were before vpem data import --power"
        )
    return None


def read_truth(path: str | os.PathLike[str]) -> dict[str, NDArray[np.floating]] | None:
    """Return the parameters that simulated data were drawn from, or None."""
    with open_read(path) as file:
        if find(file, "truth") is None:
            return None
        names = ("weights", "means", "covariances", "overlap")
        stored = [name for name in names if find(file, f"truth/{name}") is not None]
        return {name: read_array(file, f"truth/{name}") for name in stored}


def read_weights(
    file: h5py.File, name: str | None, n_samples: int, stored: bool = True, needed: bool = True
) -> NDArray[np.float64] | None:
    """Return the weights (n_samples,) ``name`` of a file; None: by default none, if not ``needed``.

    Without a name, `STORED` is taken if ``stored``.
    """
    if name is None:
        if not stored or find(file, STORED) is None:
            return None
        name = STORED
    if not needed and find(file, name) is None:
        return None
    values = read_array(file, name, shape=(n_samples,), kinds="iuf")
    return as_weights(values, n_samples, f"{file.filename}: {name}")


def read_matrix(
    file: h5py.File, name: str, source: str, memory_limit: int | None
) -> Floats | FileMatrix:
    """Read the two-dimensional dataset ``name``, or say which ones there are."""
    import h5py

    item = find(file, name)
    if item is None:
        present = {
            path: " x ".join(map(str, one.shape))
            for path, one in list_datasets(file).items()
            if one.dtype.kind in "iuf" and one.ndim == 2 and one.size
        }
        hint = did_you_mean(name, present)
        listed = shorten(f"{path} ({shape})" for path, shape in present.items())
        lacking = f"{file.filename} has no {name}; "
        if not present:
            raise FileError(
                f"{lacking}nor another 2-D dataset; write its columns side by side into one"
            )
        raise FileError(
            f"{lacking}pass one of its 2-D numeric datasets with ",
            Setting("dataset"),
            f"{hint}: {listed}",
        )
    if memory_limit is not None and isinstance(item, h5py.Dataset):
        matrix = FileMatrix(file.filename, name, 0)
        stored = matrix.beyond(memory_limit)
        if stored is not None:
            return stored
        matrix.close()
    whole: Floats = as_matrix(read_array(file, name, ndim=2), source)
    return whole


def names_in(file: h5py.File, group: str) -> tuple[str, ...]:
    """Return the names that AnnData keeps for its rows (obs) or columns (var)."""
    import h5py

    frame = find(file, group)
    if not isinstance(frame, h5py.Group):
        raise FileError(
            f"{file.filename}: {group} is not in the layout of current AnnData; save the file "
            "again with a newer anndata, or pass ",
            Setting("dataset", "X"),
        )
    name = read_attribute(frame, "_index") or "_index"
    values = f"{name}/values" if isinstance(find(frame, name), h5py.Group) else name
    return read_strings(frame, values)


def as_matrix(values: ArrayLike | FileMatrix, source: str, dtype: DTypeLike | None = None) -> Any:
    """Return a C-contiguous matrix of float32 or float64, or the `FileMatrix` that it is."""
    if is_stored(values):
        return values if dtype is None else values.in_precision(precision_of(dtype))
    matrix = np.asarray(values)
    shape = " x ".join(map(str, matrix.shape))
    if matrix.dtype.kind not in "iuf":
        raise InputError(f"{source}: X must hold real numbers, got {matrix.dtype}")
    if matrix.ndim != 2:
        raise InputError(
            f"{source}: X must have two dimensions (examples by features), got {matrix.ndim} "
            f"(shape {shape or 'of a single value'})"
        )
    if matrix.size == 0:
        raise InputError(f"{source}: X has no values (shape {shape})")
    if dtype is None:
        small = matrix.dtype.kind == "f" and matrix.dtype.itemsize <= 4
        dtype = np.float32 if small else np.float64
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(matrix, dtype=dtype)
    if converted.dtype.itemsize < matrix.dtype.itemsize and (
        np.isinf(converted).sum() > np.isinf(matrix).sum()
    ):
        raise InputError(f"{source}: X holds values too large for {converted.dtype}; use float64")
    return converted


def as_column(what: str, values: ArrayLike, n_samples: int, source: str) -> Labels:
    """Return ids or labels as an array of strings, integers or floats, one a row."""
    column = np.asarray(values)
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column.flat):
        column = column.astype(str)
    if column.dtype.kind == "b":
        column = column.astype(np.int64)
    if column.dtype.kind not in "Uiuf":
        raise InputError(f"{source}: {what} must be strings or numbers, got {column.dtype}")
    _check_length(what, column, n_samples, source)
    return column


def as_weights(values: ArrayLike, n_samples: int, source: str) -> NDArray[np.float64]:
    """Return weights of rows (n_samples,) as doubles; InputError unless finite and not negative."""
    column = np.asarray(values)
    if column.dtype.kind not in "iuf":
        raise InputError(f"{source}: sample weights must be numbers, got {column.dtype}")
    _check_length("sample weights", column, n_samples, source)
    weights = column.astype(np.float64)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{source}: the sample weight of row {row} is {weights[row]:g}, but weights are finite "
            "and not negative"
        )
    return weights


def _check_length(what: str, column: Labels, n_samples: int, source: str) -> None:
    if column.shape != (n_samples,):
        raise InputError(
            f"{source}: X has {n_samples} rows, but {what} have shape "
            f"{' x '.join(map(str, column.shape)) or 'of a single value'}"
        )


def default_names(n_features: int) -> tuple[str, ...]:
    """Return "feature 0", "feature 1", ... for columns that have no names."""
    return tuple(f"feature {column}" for column in range(n_features))


def names_apart(names: Sequence[str], source: str) -> tuple[str, ...]:
    """Return names that differ: further ones numbered as by pandas (``x.1``), with a note."""
    if len(set(names)) == len(names):
        return tuple(names)
    apart: list[str] = []
    for name in names:
        numbered = (f"{name}.{n}" for n in range(1, len(names) + 1))
        apart.append(name if name not in apart else next(
            one for one in numbered if one not in apart and one not in names
        ))  # fmt: skip
    renamed = [new for old, new in zip(names, apart, strict=True) if new != old]
    warnings.warn(
        VpemWarning(
            f"{source}: some columns have the same name; further ones are called "
            f"{shorten(map(repr, renamed))}"
        ),
        stacklevel=4,
    )
    return tuple(apart)
