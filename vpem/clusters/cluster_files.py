"""Clusterings on disk: the centres, the cluster of every row, and how it came about."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import as_kept
from vpem.clusters.clusterings import Clustering, nearest
from vpem.errors import FileError
from vpem.files.elements import Column, Elements, Strings, check_written, read_elements
from vpem.files.hdf5 import (
    atomic_write,
    check_encoding,
    create,
    open_read,
    read_attribute,
    write_array,
    write_strings,
)
from vpem.files.json_text import write_json_element
from vpem.files.models import current_versions
from vpem.files.reports import report_elements
from vpem.files.schema import COUNT, Array, ListOf, Maybe
from vpem.scaling import Scaling
from vpem.threads import thread_count

__all__ = [
    "ENCODING",
    "StoredClustering",
    "clustering_of",
    "describe_clustering",
    "is_clustering",
    "read_clustering",
    "write_clustering",
]

ENCODING = "vpem-clustering"
VERSION = "0.1.0"

PathLike = str | os.PathLike[str]


@dataclass
class StoredClustering:
    """A clustering with all that is stored beside it.

    Attributes
    ----------
    centres : ndarray of shape (K, d)
        In the order of ``feature_names``.
    labels : ndarray of shape (M,)
        Cluster of each row.
    distances : ndarray of shape (M,)
        Squared distance of each row to the centre of its cluster.
    feature_names : tuple of str
        Names of the features (d,).
    ids : ndarray of shape (M,) or None
        What the rows are called.
    root_centres : ndarray of shape (R, K, d) or None
        Of each worker, where they differ.
    report, options, versions : dict
        What the run told, how it was asked for, and by which libraries.
    scaling : Scaling or None
        Units in which distances are taken, where they are not those of the data and the centres.
    """

    centres: NDArray[np.float64]
    labels: NDArray[np.int32]
    distances: NDArray[np.float64]
    feature_names: tuple[str, ...]
    ids: NDArray[Any] | None = None
    root_centres: NDArray[np.float64] | None = None
    report: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    scaling: Scaling | None = None

    def assign(
        self, X: Any, n_threads: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Nearest centre of each row, and its squared distance.

        Parameters
        ----------
        X : ndarray or FileMatrix of shape (M, d)
            In the order of ``feature_names``.
        n_threads : int, optional
            Threads of the kernel.

        Returns
        -------
        labels : ndarray of shape (M,)
            The first of several centres that are equally near.
        distances : ndarray of shape (M,)
            In the units of ``scaling``.
        """
        scaling = self.scaling or Scaling.none(self.centres.shape[1])
        return nearest(X, self.centres, scaling, thread_count(n_threads))


def clustering_of(
    found: Clustering,
    feature_names: Sequence[str],
    report: dict[str, Any],
    options: dict[str, Any],
    ids: NDArray[Any] | None = None,
) -> StoredClustering:
    """Return a clustering of `vpem.clusters.kmeans` as it is kept.

    Parameters
    ----------
    found : Clustering
        What was found.
    feature_names : sequence of str
        Names of the features (d,).
    report, options : dict
        What the run told, and how it was asked for.
    ids : ndarray of shape (M,), optional
        What the rows are called.
    """
    return StoredClustering(
        found.centres,
        found.labels,
        found.distances,
        tuple(feature_names),
        ids,
        found.root_centres,
        report,
        options,
        current_versions(),
        found.scaling,
    )


def write_clustering(path: PathLike, stored: Any, force: bool = False) -> None:
    """Write a clustering, all or nothing.

    Parameters
    ----------
    path : path
        The file.
    stored : StoredClustering or fitted estimator
        What to write: a clustering, or a `vpem.DistributedKMeans` after `fit`.
    force : bool
        Replace an existing file.

    Raises
    ------
    InputError
        If it is something else, or not fitted, or the report has what no reader takes.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
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
            if stored.ids.dtype.kind in "iufb":
                write_array(file, "ids", stored.ids)
            else:
                write_strings(file, "ids", stored.ids)
        if stored.root_centres is not None:
            write_array(file, "root_centres", stored.root_centres)
        if stored.scaling is not None:
            write_array(file, "shift", stored.scaling.shift)
            write_array(file, "scale", stored.scaling.scale)
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
    **report_elements(hubs=ListOf(ListOf(COUNT)), roots=ListOf(COUNT)),
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


def describe_clustering(
    found: Clustering, agent_names: Sequence[str], feature_names: Sequence[str]
) -> dict[str, Any]:
    """Summarize a clustering in values that JSON can hold.

    Parameters
    ----------
    found : Clustering
        From `vpem.clusters.kmeans`.
    agent_names, feature_names : sequence of str
        Names of the agents or workers (N,) and of the features (d,).

    Returns
    -------
    dict
        Agents, workers, rows and features are numbered from 0.
    """
    network = found.network
    over_rows = found.split == "rows"
    report: dict[str, Any] = {
        "algorithm": "k-means",
        "split": found.split,
        "method": found.method,
        "n_samples": len(found.labels),
        "n_features": found.centres.shape[1],
        "n_workers" if over_rows else "n_agents": network.graph.n_agents,
        "worker_names" if over_rows else "agent_names": list(agent_names),
        "feature_names": list(feature_names),
        "n_clusters": found.n_clusters,
        "cluster_sizes": found.counts.tolist(),
        "scale": "none" if found.scaling is None else "standard",
        "inertia": found.inertia,
        "root_inertia": found.root_inertia.tolist(),
        "disagreement": found.disagreement,
        "history": list(found.history),
        "converged": found.converged,
        "n_iter": found.n_iter,
        "init_rows": None if found.init_rows is None else list(found.init_rows),
        "restart": found.best_restart,
        "reseeded": [
            {"iteration": iteration, "cluster": cluster, "row": row}
            for iteration, cluster, row in found.reseeded
        ],
        "one_shot": None,
        "server": network.graph.n_agents if network.graph.has_server else None,
        "edges": network.graph.edges.tolist(),
        "topology": network.graph.topology,
        "hops": None if over_rows else network.hops,
        "hubs": None
        if over_rows
        else [[int(agent) for agent in hub.agents] for hub in network.hubs],
        "roots": None if over_rows else [int(hub.root) for hub in network.hubs],
        "positions": None if network.graph.positions is None else network.graph.positions.tolist(),
        "rounds": network.n_rounds,
        "weights": network.weights,
        "mixing_rate": network.mixing_rate,
        "consensus_error": network.consensus_error,
        "consensus_error_is_bound": network.error_is_bound,
        "acceleration": network.acceleration,
        "consensus_tol": network.consensus_tol,
        "communication": found.communication,
        "seconds": found.seconds,
    }
    if found.one_shot is not None:
        told = found.one_shot
        bound = float(told.party_inertia.sum())
        report["one_shot"] = {
            "factor": told.factor,
            "factor_of_starts": told.factor_of_starts,
            "party_inertia": told.party_inertia.tolist(),
            "lower_bound": bound,
            "inertia_over_lower_bound": found.inertia / bound if bound > 0 else None,
            "cell_inertia": told.cell_inertia,
            "n_cells": told.n_cells,
        }
    return report
