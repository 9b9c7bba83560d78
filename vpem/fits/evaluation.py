"""Clusters held against labels that fitting never saw."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Labels
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import find, open_read, read_column
from vpem.files.opening import check_unpacked, read_text


@dataclass(frozen=True)
class Agreement:
    """How well clusters agree with labels.

    Attributes
    ----------
    accuracy : float
        Share of rows that agree under the best one-to-one mapping of clusters to labels.
    adjusted_rand_index : float
        1 for the same partition, about 0 for independent ones.
    normalized_mutual_information : float
        Between 0 and 1, arithmetic mean of the entropies below.
    classes : ndarray of shape (L,)
        The different labels, sorted.
    confusion : ndarray of shape (L, K)
        Rows of each label in each cluster.
    mapping : dict
        Label given to each cluster; clusters beyond the number of labels have none.
    """

    accuracy: float
    adjusted_rand_index: float
    normalized_mutual_information: float
    classes: Labels
    confusion: NDArray[np.intp]
    mapping: dict[int, Any]

    @property
    def order(self) -> list[int]:
        """Clusters in the order of the labels that they are mapped to; then those without."""
        place = {label: row for row, label in enumerate(self.classes.tolist())}
        last = len(place)
        return sorted(
            range(self.confusion.shape[1]),
            key=lambda cluster: place.get(self.mapping.get(cluster), last),
        )

    def facts(self) -> list[tuple[str, str]]:
        """Return the figures as a reader wants them, each with its name."""
        return [
            ("accuracy, best one-to-one mapping", f"{self.accuracy:.4f}"),
            ("adjusted Rand index", f"{self.adjusted_rand_index:.4f}"),
            ("normalized mutual information", f"{self.normalized_mutual_information:.4f}"),
        ]


def compare(labels: ArrayLike, clusters: ArrayLike, n_clusters: int) -> Agreement:
    """Compare clusters (M,), numbered from 0, with labels (M,): what the rows are known to be."""
    from scipy.optimize import linear_sum_assignment

    truth = np.asarray(labels)
    found = np.asarray(clusters)
    if truth.shape != found.shape or truth.ndim != 1 or len(truth) == 0:
        raise InputError(f"{len(found)} rows need as many labels, got {len(truth)}")
    classes, codes = np.unique(truth, return_inverse=True)
    confusion = np.zeros((len(classes), n_clusters), dtype=np.intp)
    np.add.at(confusion, (codes, found), 1)
    rows, columns = linear_sum_assignment(confusion, maximize=True)
    return Agreement(
        accuracy=float(confusion[rows, columns].sum() / len(truth)),
        adjusted_rand_index=adjusted_rand_index(confusion),
        normalized_mutual_information=_normalized_mutual_information(confusion),
        classes=classes,
        confusion=confusion,
        mapping={
            int(column): classes[row].item() for row, column in zip(rows, columns, strict=True)
        },
    )


def adjusted_rand_index(confusion: NDArray[Any]) -> float:
    """Return the index of Hubert and Arabie, of a table of counts.

    scikit-learn has it too, whose import takes longer than a whole evaluation.
    """
    together, in_rows, in_columns, all_pairs = (
        float((counts * (counts - 1.0)).sum())
        for counts in (confusion, confusion.sum(axis=1), confusion.sum(axis=0), confusion.sum())
    )
    by_chance = in_rows * in_columns / all_pairs if all_pairs > 0 else 0.0
    most = (in_rows + in_columns) / 2
    return 1.0 if most == by_chance else (together - by_chance) / (most - by_chance)


def _normalized_mutual_information(confusion: NDArray[np.intp]) -> float:
    """Return the mutual information over the mean entropy of rows and columns of a table."""

    def entropy(shares: NDArray[np.float64]) -> float:
        there = shares[shares > 0]
        return float(-(there * np.log(there)).sum())

    joint = confusion / confusion.sum()
    rows, columns = entropy(joint.sum(axis=1)), entropy(joint.sum(axis=0))
    if rows == columns == 0:
        return 1.0
    shared = max(rows + columns - entropy(joint.ravel()), 0.0)
    # What rounding leaves of two labellings that do not depend on each other.
    return 0.0 if shared < 1e-14 else min(shared / ((rows + columns) / 2), 1.0)


def read_labels(where: str, data: str | os.PathLike[str], n_samples: int) -> Labels:
    """Read labels (M,) from a text file with one a line, or from a place inside an HDF5 dataset.

    ``where`` is the name of a text file, or the path of a dataset inside ``data``, the HDF5 file.
    """
    labels: Labels
    if os.path.lexists(where):
        lines = read_text(where).split("\n")
        check_unpacked(4 * max(map(len, lines)) * len(lines), where)  # as numpy has text
        labels = np.array(lines)
        labels = labels[:-1] if len(labels) and labels[-1] == "" else labels
    else:
        with open_read(data) as file:
            if find(file, where) is None:
                raise FileError(f"there is neither a file {where!r} nor such a dataset in {data}")
            labels = read_column(file, where)
    if labels.shape != (n_samples,):
        raise InputError(f"{data} has {n_samples} rows, {where} has {len(labels)} labels")
    return labels
