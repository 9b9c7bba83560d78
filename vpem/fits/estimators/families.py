"""Tables of names and numbers for estimators: data frames become codes, and what they are is kept.

Data frames of pandas, polars or pyarrow are read as files of tables are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.utils.validation import _get_feature_names

from vpem.errors import InputError, Setting, VpemWarning
from vpem.files.datasets import Dataset, default_names, names_apart
from vpem.files.families import Asked, asked_by, in_levels_of, settle, settle_for_model
from vpem.files.models import match_features
from vpem.files.readers.frames import Frame, Wanted
from vpem.files.table_settings import TableSettings
from vpem.network.partition import Partition
from vpem.terms.families.kinds import Kinds


def dataset_for_fit(X: Any, asked: Any, held: Callable[[Dataset], Partition]) -> Dataset:
    """Return rows with the family of each feature.

    Parameters
    ----------
    X : array, data frame or Dataset of shape (M, d)
        The rows.
    asked : str, mapping, sequence of str or None
        The parameter ``family``.
    held : callable
        Given the dataset, returns who holds which features.

    Raises
    ------
    InputError
        If a feature cannot be what it is said to be.
    """
    X = columns_apart(X)
    names = names_of(X)
    if names is None and np.ndim(X) == 2:
        names = list(default_names(np.shape(X)[1]))
    said = Asked.of(asked, names)
    found = _read(X, said, lenient=False)
    if said is None:
        return found
    return settle(found, said, held(found))


def dataset_for_model(X: Any, kinds: Kinds, names: Sequence[str], missing: str) -> Dataset:
    """Return rows whose codes stand for the levels of a model.

    Parameters
    ----------
    X : array, data frame or Dataset of shape (M, d)
        The rows; an array has codes.
    kinds : Kinds
        Families of the model's features.
    names : sequence of str of length d
        Of these.
    missing : str
        What is done where values are missing: levels that the model has never seen are.

    Raises
    ------
    InputError
        If there are such levels, and missing values are refused.

    Warns
    -----
    VpemWarning
        If there are, and missing values are not.
    """
    X = columns_apart(X)
    if not isinstance(X, Dataset) and names_of(X) is None:
        return Dataset(np.asarray(X), default_names(np.shape(X)[1]), source="X")
    asked = Asked.of(asked_by(kinds, names))
    found = settle_for_model(_read(X, asked, lenient=True), asked)
    known: Any = SimpleNamespace(feature_names=tuple(names))
    columns = match_features(known, found.feature_names)
    found, unseen = in_levels_of(found, kinds, columns)
    for sentence in unseen:
        if missing == "refuse":
            marginalize = Setting("missing", "marginalize")
            raise InputError(f"{sentence}; integrate them out with ", marginalize)
        warnings.warn(VpemWarning(f"{sentence}; they are taken as missing"), stacklevel=4)
    return found


def columns_apart(X: Any) -> Any:
    """Return a data frame whose columns have different names, and what is none as it is."""
    if not (hasattr(X, "columns") and hasattr(X, "set_axis")) or X.columns.is_unique:
        return X
    return X.set_axis(names_apart([str(name) for name in X.columns], "X"), axis=1)


def names_of(X: Any) -> list[str] | None:
    """Return the names of the columns of a data frame or dataset, None of an array."""
    if isinstance(X, Dataset):
        return list(X.feature_names)
    names = _get_feature_names(X) if hasattr(X, "columns") or hasattr(X, "__dataframe__") else None
    return None if names is None else [str(name) for name in names]


def _read(X: Any, asked: Asked | None, lenient: bool) -> Dataset:
    """Return rows as a dataset whose text is codes."""
    if isinstance(X, Dataset):
        return X
    names = names_of(X)
    if names is None:
        array = np.asarray(X)
        return Dataset(array, default_names(array.shape[1]), source="X")
    import pyarrow as pa

    from vpem.files.readers.tabular import dataset_of

    try:
        # An index comes after the columns.
        arrow = pa.table(X) if hasattr(X, "__arrow_c_stream__") else pa.Table.from_pandas(X)
        columns = arrow.columns[: len(names)]
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"a column of X holds values of several types ({error})") from None

    def read(kept: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        return [columns[column] for column in kept]

    kinds = tuple(column.type for column in columns)
    frame = Frame("X", tuple(names), kinds, read)
    table = TableSettings(family=asked)
    how = Wanted(table, columns=names, lenient=lenient, keep_constant=True)
    return dataset_of(frame, how)
