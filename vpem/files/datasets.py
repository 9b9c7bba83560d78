"""Datasets: a matrix of examples by features, with what is known about rows, columns and agents.

The file format is described in docs/reference/file-formats.md.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Floats, Labels
from vpem.errors import InputError, VpemWarning, shorten
from vpem.files.about import write_about
from vpem.files.annotations import STORED, as_column, as_weights
from vpem.files.foreign import as_matrix
from vpem.files.hdf5 import (
    atomic_write,
    create,
    describe_element,
    find,
    open_read,
    read_array,
    write_array,
    write_column,
    write_strings,
)
from vpem.files.kept_kinds import write_kinds
from vpem.files.matrix import FileMatrix
from vpem.network.partition import Partition, Workers
from vpem.shown import Shown
from vpem.terms.families.kinds import Kinds

if TYPE_CHECKING:
    import h5py

    from vpem.files.labels_for_fit import SomeLabels
    from vpem.files.parties.homes import Home
    from vpem.files.table_settings import TableSettings


ENCODING = "vpem-dataset"
VERSION = "0.1.0"
CHUNK_BYTES = 1 << 20


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
        What a fit is told of some rows.
    labelled_by : int
        Which party has these.

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

    def __post_init__(self) -> None:
        if not isinstance(self.X, FileMatrix):
            self.X = as_matrix(self.X, self.source)
        n_samples, n_features = self.X.shape
        self.feature_names = tuple(str(name) for name in self.feature_names)
        if len(self.feature_names) != n_features:
            raise InputError(
                f"{self.source}: there are {n_features} features but {len(self.feature_names)} "
                "feature_names"
            )
        check_different(self.feature_names, self.source)
        if self.ids is not None:
            self.ids = as_column("ids", self.ids, n_samples, self.source)
        if self.labels is not None:
            self.labels = as_column("labels", self.labels, n_samples, self.source)
        if self.sample_weight is not None:
            self.sample_weight = as_weights(self.sample_weight, n_samples, self.source)
        if self.partition is not None and self.partition.n_features != n_features:
            raise InputError(
                f"{self.source}: the partition divides {self.partition.n_features} features, but "
                f"X has {n_features}"
            )
        if self.workers is not None and self.workers.n_samples != n_samples:
            raise InputError(
                f"{self.source}: the workers hold {self.workers.n_samples} rows, but X has "
                f"{n_samples}"
            )
        if self.kinds is not None and self.kinds.n_features != n_features:
            raise InputError(
                f"{self.source}: there are families of {self.kinds.n_features} features, but X has "
                f"{n_features}"
            )
        if self.edges is not None:
            n_agents = None if self.partition is None else self.partition.n_agents
            self.edges = _as_edges(self.edges, n_agents, self.source)

    @property
    def plain(self) -> bool:
        """Whether nothing says who holds what: neither agents nor workers nor a graph."""
        return self.partition is None and self.workers is None and self.edges is None

    @property
    def own_features(self) -> Sequence[int]:
        """Features that the columns of ``X`` are: here all."""
        return range(len(self.feature_names))

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Names of the levels of categories, by the names of their features."""
        levels = {} if self.kinds is None else self.kinds.levels
        return {self.feature_names[j]: names for j, names in levels.items()}

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])


def check_different(feature_names: Sequence[str], source: str) -> None:
    """Raise InputError if two features have one name, naming it."""
    if len(set(feature_names)) < len(feature_names):
        repeated = [repr(name) for name, count in Counter(feature_names).items() if count > 1]
        raise InputError(
            f"{source}: feature names must differ, but several features are called "
            f"{shorten(repeated)}; rename them"
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
    made = [new for old, new in zip(names, apart, strict=True) if new != old]
    warnings.warn(
        VpemWarning(
            f"{source}: some columns have the same name; further ones are called "
            f"{shorten(map(repr, made))}"
        ),
        stacklevel=4,
    )
    return tuple(apart)


def _as_edges(values: ArrayLike, n_agents: int | None, source: str) -> NDArray[np.intp]:
    """Return the edges as an (n_edges, 2) array of agent numbers after checking their range."""
    edges = np.asarray(values)
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise InputError(
            f"{source}: graph/edges must be pairs of agent numbers (integers, n x 2), got "
            f"{edges.dtype} of shape {' x '.join(map(str, edges.shape))}"
        )
    wrong = (edges < 0).any(axis=1)
    if n_agents is not None:
        wrong |= (edges >= n_agents).any(axis=1)
    if wrong.any():
        first = int(np.argmax(wrong))
        known = "from 0" if n_agents is None else f"0 to {n_agents - 1}"
        raise InputError(
            f"{source}: edge {first} of graph/edges joins {edges[first, 0]} and {edges[first, 1]}, "
            f"but agents are numbered {known}"
        )
    loops = edges[:, 0] == edges[:, 1]
    if loops.any():
        raise InputError(
            f"{source}: edge {int(np.argmax(loops))} of graph/edges joins agent "
            f"{edges[np.argmax(loops), 0]} to itself"
        )
    return edges.astype(np.intp)


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
        Where the data come from, in attributes (`vpem.files.about.ABOUT`).

    Raises
    ------
    FileError
        If the file cannot be written.
    InputError
        If a name cannot be stored in HDF5.
    """
    rows = max(1, min(dataset.n_samples, CHUNK_BYTES // max(1, dataset.X[:1].nbytes)))
    with (
        atomic_write(path, force, "datasets") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
        _write_matrix(file, dataset.X, rows)
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
            write_array(_group(file, "graph"), "edges", dataset.edges.astype(np.int64))
        if truth is not None:
            group = _group(file, "truth")
            for name, values in truth.items():
                write_array(group, name, values)
        write_about(file, about or {})


def read_truth(path: str | os.PathLike[str]) -> dict[str, NDArray[np.floating]] | None:
    """Return the parameters that simulated data were drawn from, or None."""
    with open_read(path) as file:
        if find(file, "truth") is None:
            return None
        names = ("weights", "means", "covariances", "overlap")
        stored = [name for name in names if find(file, f"truth/{name}") is not None]
        return {name: read_array(file, f"truth/{name}") for name in stored}


def _write_matrix(file: h5py.File, X: Floats | FileMatrix, rows: int) -> None:
    """Write ``X`` in chunks of whole rows, a run of rows at a time if it is on disk."""
    if not isinstance(X, FileMatrix):
        write_array(file, "X", X, chunks=(rows, X.shape[1]))
        return
    dataset = file.create_dataset(
        "X", shape=X.shape, dtype=X.dtype, chunks=(rows, X.shape[1]), track_times=False
    )
    describe_element(dataset, "array", "0.2.0")
    for start, part in X.runs():
        dataset[start : start + len(part)] = part


def _group(file: h5py.File, name: str) -> h5py.Group:
    """Make a group with the attributes that AnnData gives a mapping."""
    group = file.create_group(name)
    describe_element(group, "dict", "0.1.0")
    return group
