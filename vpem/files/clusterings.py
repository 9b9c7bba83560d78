"""Clusterings on disk: the centres, the cluster of every row, and how it came about."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import thread_count
from vpem.checks import Floats, Labels, as_kept
from vpem.errors import FileError
from vpem.files.elements import Column, Elements, Strings, check_written, read_elements
from vpem.files.hdf5 import (
    atomic_write,
    check_encoding,
    create,
    open_read,
    read_attribute,
    write_array,
    write_column,
    write_strings,
)
from vpem.files.json_text import write_json_element
from vpem.files.reports import report_elements
from vpem.network.schema import COUNT, Array, ListOf, Maybe, Numbers, Report
from vpem.shown import Shown
from vpem.terms.matrix import Arranges
from vpem.terms.nearest import nearest
from vpem.terms.scaling import Scaling

ENCODING = "vpem-clustering"
VERSION = "0.1.0"

PathLike = str | os.PathLike[str]


@dataclass
class StoredClustering(Shown, facts="{centres.shape[0]:cluster}, {centres.shape[1]:feature}"):
    """A clustering of M rows with all that is stored beside it."""

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

    def assign(
        self, X: Floats | Arranges, n_threads: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the nearest centre (M,) of each row, the first of several, and its distance (M,).

        Columns of ``X`` (M, d) are in the order of ``feature_names``, distances in the units of
        ``scaling``.
        """
        scaling = self.scaling or Scaling.none(self.centres.shape[1])
        labels, squares = nearest(X, self.centres, scaling, thread_count(n_threads))
        return labels, np.sqrt(squares)


def write_clustering(path: PathLike, stored: Any, force: bool = False) -> None:
    """Write a `StoredClustering` or a fitted `vpem.DistributedKMeans`, all or nothing."""
    stored = as_kept(
        stored, StoredClustering, "a clustering is written of a StoredClustering or fitted k-means"
    )
    texts = {name: getattr(stored, name) for name in ("report", "options", "versions")}
    check_written(path, CLUSTERING, **texts)
    with (
        atomic_write(path, force, "clusterings") as temporary,
        create(temporary, ENCODING, VERSION) as file,
    ):
        file.attrs["n_clusters"] = len(stored.centres)
        file.attrs["n_features"] = stored.centres.shape[1]
        write_strings(file, "feature_names", stored.feature_names)
        write_array(file, "centres", stored.centres)
        write_array(file, "labels", stored.labels)
        write_array(file, "distances", stored.distances)
        if stored.ids is not None:
            write_column(file, "ids", stored.ids)
        if stored.root_centres is not None:
            write_array(file, "root_centres", stored.root_centres)
        if stored.scaling is not None:
            write_array(file, "shift", stored.scaling.shift)
            write_array(file, "scale", stored.scaling.scale)
        if stored.deviations is not None:
            write_array(file, "deviations", stored.deviations)
        for name, value in texts.items():
            write_json_element(file, name, value)


def is_clustering(path: PathLike) -> bool:
    """Whether a file says that it is a clustering; `FileError` if it cannot be read."""
    with open_read(path) as file:
        return read_attribute(file, "encoding-type") == ENCODING


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
        cluster_sizes=Numbers(),
        spread=Numbers(least=0),
    ),
}


def read_clustering(path: PathLike) -> StoredClustering:
    """Read a clustering.

    Parameters
    ----------
    path : path
        A file of `write_clustering`.

    Returns
    -------
    StoredClustering

    Raises
    ------
    FileError
        If the file cannot be read, or is no clustering.
    """
    with open_read(path) as file:
        if check_encoding(file, ENCODING, VERSION) != ENCODING:
            raise FileError(f"{path} is not a {ENCODING} file; 'vpem kmeans -o' writes one")
        found = read_elements(file, CLUSTERING)
    shift, scale = found.pop("shift"), found.pop("scale")
    if (shift is None) != (scale is None):
        raise FileError(f"{path} must have both shift and scale, or neither")
    scaling = None if shift is None else Scaling(shift, scale)
    found["labels"] = found["labels"].astype(np.int32)
    return StoredClustering(**found, scaling=scaling)
