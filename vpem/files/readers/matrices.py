"""Datasets of matrices: which of their columns are features, and what is noted of the rows.

Sparse matrices are made dense, after what they say of themselves is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, Labels, no_measurement
from vpem.errors import FileError, InputError, Setting
from vpem.files.datasets import Dataset, as_weights
from vpem.files.matrix import FileMatrix
from vpem.files.opening import check_unpacked
from vpem.files.readers.frames import (
    ReadOptions,
    SomeLabels,
    ask_of_ids,
    blank_marks,
    choose,
    labels_of_columns,
    marked_numbers,
    only_guesses,
    refuse_large,
    take_counts,
    warn_of_guesses,
    warn_of_marks,
)
from vpem.files.table_settings import TableSettings
from vpem.network.partition import from_agent_of_feature, from_worker_of_row

Parts = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Values, their columns (rows), and where each row (column) begins."""


def dense_of(
    parts: Parts,
    shape: tuple[int, int],
    kind: str,
    file: Path,
    source: str,
    memory_limit: int | None,
) -> Floats:
    """Return a sparse matrix ("csr", "csc") of `Parts` as a dense one (M, d).

    It is float32 where values are real numbers of at most 32 bits, else float64; FileError if it
    takes far more than the file, InputError if it exceeds ``memory_limit`` (bytes).
    """
    import scipy.sparse

    data, indices, indptr = check_parts(parts, shape, kind, source)
    small = data.dtype.kind == "f" and data.dtype.itemsize <= 4
    dtype = np.dtype(np.float32 if small else np.float64)
    n_bytes = shape[0] * shape[1] * dtype.itemsize
    check_unpacked(n_bytes, file, source)
    refuse_large(n_bytes, memory_limit, source)
    sparse_type = scipy.sparse.csr_matrix if kind == "csr" else scipy.sparse.csc_matrix
    sparse = sparse_type((data.astype(dtype), indices, indptr), shape=shape)
    return np.ascontiguousarray(sparse.toarray(), dtype=dtype)


def check_parts(parts: Parts, shape: tuple[int, int], kind: str, source: str) -> Parts:
    """Return the parts of a sparse matrix, as `dense_of` takes them, if they fit each other."""
    data, indices, indptr = (np.asarray(part) for part in parts)
    runs, across = shape if kind == "csr" else shape[::-1]
    fits = (
        data.ndim == indices.ndim == indptr.ndim == 1
        and data.dtype.kind in "iufb"
        and indices.dtype.kind in "iu"
        and indptr.dtype.kind in "iu"
        and len(data) == len(indices)
        and len(indptr) == runs + 1
        and indptr[0] == 0
        and indptr[-1] == len(data)
        and bool((indptr[1:] >= indptr[:-1]).all())
        and (not len(indices) or (indices.min() >= 0 and indices.max() < across))
    )
    if not fits:
        raise FileError(f"{source}: the parts of the sparse matrix do not fit each other")
    return data, indices, indptr


Note = Callable[[str], Labels | None]
"""What a file has beside a matrix, of a name: (M,)."""


def dataset_of_matrix(
    dataset: Dataset, note: Note, options: ReadOptions, *, strict: bool
) -> Dataset:
    """Choose among the columns of a matrix; if ``strict``, those that tell nothing are features."""
    table = options.table
    noted: dict[str, Labels] = {}
    for what in ("label", "id", "worker"):
        name = getattr(table, f"{what}_column")
        values = note(name) if isinstance(name, str) else None
        if values is not None and values.ndim == 1:
            noted[what] = values
            table = table.changed(**{f"{what}_column": None})
    weights = options.weights
    if isinstance(weights, str) and (values := note(weights)) is not None:
        noted["weight"], weights = values, None
    known, name = None, table.labels_for_fit
    values = note(name) if isinstance(name, str) else None
    if values is not None:
        if len(values) != dataset.n_samples:
            raise InputError(
                f"{dataset.source}: {name} has {len(values)} labels, but the data have "
                f"{dataset.n_samples} rows"
            )
        lists = [one.tolist() for one in ([values] if values.ndim == 1 else values.T)]
        called = [f"{name} {place}" for place in range(len(lists))]
        known = labels_of_columns(lists, called, table.marks, dataset.source)
        table = table.changed(labels_for_fit=None)
    columns = options.columns
    if columns is not None and not set(columns) & set(dataset.feature_names):
        columns = None  # a matrix whose columns have no names is as wide as the model
    reading = replace(options, table=table, weights=weights, columns=columns)
    choice = choose(dataset.feature_names, reading, dataset.source)
    for what, place in choice.noted.items():
        noted[what] = _column(dataset.X, place)
    if choice.known:
        columns_of = [_column(dataset.X, place).tolist() for place in choice.known]
        names = [dataset.feature_names[place] for place in choice.known]
        known = labels_of_columns(columns_of, names, table.marks, dataset.source)
    features, left_out = choice.features, {}
    X = _of(dataset.X, features)
    if not isinstance(X, FileMatrix):
        codes = () if dataset.kinds is None else dataset.kinds.columns_of("categorical")
        X = blank_marks(X, table, [n for n, j in enumerate(features) if j not in codes])
        called = [dataset.feature_names[n] for n in features]
        plain = not choice.chosen and options.columns is None and not options.keep_constant
        if plain and strict:
            ask_of_ids(dataset.source, called, X)
        elif plain and len(X) > 1:
            missing = np.isnan(X)
            empty = missing.all(axis=0)
            first = X[missing.argmin(axis=0), np.arange(X.shape[1])]
            constant = (missing | (first == X)).all(axis=0) & ~empty
            why = {int(n): "no values" for n in np.flatnonzero(empty)}
            why |= {int(n): "constant" for n in np.flatnonzero(constant)}
            if len(why) == len(features):
                raise InputError(f"{dataset.source}: no column has more than one value")
            words = {one: no_measurement(one, X[:, n]) for n, one in enumerate(called)}
            words |= {called[n]: word for n, word in why.items()}
            left_out = take_counts(
                dataset.source, {one: word for one, word in words.items() if word}
            )
            chosen = [n for n, one in enumerate(called) if one not in left_out]
            if not chosen:
                raise only_guesses(dataset.source, left_out)
            X, features = _of(X, chosen), [features[n] for n in chosen]
            warn_of_guesses(dataset.source, left_out, called, [called[n] for n in chosen])
        if options.columns is None:
            warn_of_marks(dataset.source, X, [dataset.feature_names[n] for n in features])
    elif marked_numbers(table):
        raise InputError(
            Setting("na"), f" changes values, which are read from disk of {dataset.source}; raise "
            "the memory limit",
        )  # fmt: skip
    return _with(dataset, X, features, noted, left_out, options.table, known)


def _with(
    dataset: Dataset,
    X: Any,
    features: list[int],
    noted: dict[str, Labels],
    left_out: dict[str, str],
    table: TableSettings,
    labels_for_fit: SomeLabels | None,
) -> Dataset:
    partition = dataset.partition
    if partition is not None and features != list(range(dataset.n_features)):
        agents, names = partition.agent_of[features], list(partition.names)
        if dataset.edges is None:  # agents without any stay where links lead to them
            there, agents = np.unique(agents, return_inverse=True)
            names = [names[agent] for agent in there]
        partition = from_agent_of_feature(agents, names)
    workers = dataset.workers
    if "worker" in noted:
        workers = from_worker_of_row(noted["worker"])
    weights = dataset.sample_weight
    if "weight" in noted:
        weights = as_weights(noted["weight"], len(X), dataset.source)
    return Dataset(
        X,
        tuple(dataset.feature_names[n] for n in features),
        ids=noted.get("id", dataset.ids),
        labels=noted.get("label", dataset.labels),
        partition=partition,
        edges=dataset.edges,
        workers=workers,
        sample_weight=weights,
        source=dataset.source,
        left_out=left_out,
        table=table,
        kinds=None if dataset.kinds is None else dataset.kinds.take_features(features),
        labels_for_fit=labels_for_fit,
    )


def _of(X: Any, columns: list[int]) -> Any:
    if columns == list(range(X.shape[1])):
        return X
    return X.select(columns) if isinstance(X, FileMatrix) else np.ascontiguousarray(X[:, columns])


def _column(X: Any, place: int) -> Labels:
    """Return the numbers of a column (M,), integers where all are whole."""
    if isinstance(X, FileMatrix):
        values = np.concatenate([part[:, 0].copy() for _, part in X.select([place]).runs()])
    else:
        values = np.asarray(X[:, place])
    finite = np.isfinite(values).all() and (np.abs(values) < 2**53).all()
    return values.astype(np.int64) if finite and (values == np.floor(values)).all() else values
