"""Files of parties, each read by its holder only, and joined where one process holds all.

A party's file is a dataset of its own: its features, its rows in an order of its own, its ids.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_memory
from vpem.engines.team import Alone, Team, for_each
from vpem.errors import FileError, InputError, Setting, VpemError, did_you_mean, shorten
from vpem.files.datasets import Dataset, read_dataset
from vpem.files.importers import PARQUET_SUFFIXES, TEXT_SUFFIXES, read_table
from vpem.files.matrix import FileMatrix
from vpem.files.parties.alignment import Alignment, align, read_key
from vpem.files.parties.manifest import Party, choose_parties, read_manifest
from vpem.network.holdings import Partition, Workers

__all__ = [
    "Holding",
    "Party",
    "align_parties",
    "check_same_features",
    "choose_parties",
    "join_parties",
    "joined_names",
    "open_parties",
    "read_manifest",
    "stack_parties",
]

ID_NAMES = ("id", "ids")  # of columns that are hardly meant to be features


@dataclass
class Holding:
    """What one party holds, read but for its values, which may still lie on disk.

    Attributes
    ----------
    party : Party
        Whose it is.
    feature_names : tuple of str
        Names of its d_n features.
    parts : tuple of ndarray or FileMatrix
        Its rows, file by file.
    ids, labels : ndarray of shape (m,), or None
        Of its rows.
    """

    party: Party
    feature_names: tuple[str, ...]
    parts: tuple[Any, ...]
    ids: NDArray[Any] | None
    labels: NDArray[Any] | None

    @property
    def n_samples(self) -> int:
        """Number of rows, m."""
        return sum(len(part) for part in self.parts)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision: float32 only if all its files are."""
        return np.result_type(*(part.dtype for part in self.parts))

    def fill(self, out: NDArray[Any], rows: NDArray[np.intp] | None = None) -> None:
        """Copy rows into an array, reading each file once from its beginning to its end.

        Parameters
        ----------
        out : ndarray of shape (M, d_n)
            Where to; it may be a view of some columns.
        rows : ndarray of int of shape (M,), optional
            Numbers of the rows; -1 becomes a row of NaN. By default all in order.
        """
        chosen = np.arange(self.n_samples) if rows is None else rows
        places = np.argsort(chosen, kind="stable")
        ordered = chosen[places]
        out[places[: np.searchsorted(ordered, 0)]] = np.nan
        first = 0
        for part in self.parts:
            runs = part.runs() if isinstance(part, FileMatrix) else [(0, part)]
            for start, values in runs:
                begin = first + start
                low, high = np.searchsorted(ordered, [begin, begin + len(values)])
                out[places[low:high]] = values[ordered[low:high] - begin]
            first += len(part)

    def close(self) -> None:
        """Close its files."""
        for part in self.parts:
            if isinstance(part, FileMatrix):
                part.close()


# ---- reading ------------------------------------------------------------------------------------


def open_parties(
    parties: Sequence[Party], team: Team | None = None, *, keep_empty: bool = False
) -> dict[int, Holding]:
    """Open the files of the parties held here; those of others are not touched.

    Parameters
    ----------
    parties : sequence of Party
        All parties.
    team : Team, optional
        Who holds which; by default all are held here.
    keep_empty : bool
        Let empty cells of CSV and Parquet be missing values (NaN), not errors.

    Returns
    -------
    dict of int to Holding
        By number of the party.

    Raises
    ------
    VpemError
        In every process the same, if a file cannot be read or is not what it must be.
    """
    return for_each(
        team or Alone(), range(len(parties)), lambda party: _open(parties[party], keep_empty)
    )


IN_MANIFESTS = {"label_column": "labels", "id_column": "ids", "drop_columns": "columns"}
"""What the parameters of `vpem.files.importers.read_table` are set by where parties are read."""


def _open(party: Party, keep_empty: bool) -> Holding:
    """Open one party's files."""
    try:
        files = party.find()
        if not files:
            raise FileError(f"no file fits {party.path}")
        datasets = [_read(party, file, keep_empty) for file in files]
    except VpemError as error:
        told = [IN_MANIFESTS.get(getattr(part, "name", ""), part) for part in error.parts]
        hint = "" if told == list(error.parts) else " (keys of a manifest)"
        raise type(error)(f"party {party.name!r}: ", *told, hint) from None
    names = datasets[0].feature_names if party.columns is None else party.columns
    parts = tuple(_arranged(dataset, names, party, datasets[0].source) for dataset in datasets)
    ids = [dataset.ids for dataset in datasets]
    labels = [dataset.labels for dataset in datasets]
    return Holding(
        party, tuple(names), parts, _chained(ids, "ids", party), _chained(labels, "labels", party)
    )


def _read(party: Party, path: Path, keep_empty: bool) -> Dataset:
    """Open one file of a party: HDF5, whose values stay there, or a table."""
    suffix = (Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix).lower()
    if suffix in TEXT_SUFFIXES or suffix in PARQUET_SUFFIXES:
        table = read_table(
            path,
            id_column=party.ids,
            label_column=party.labels,
            columns=party.columns,
            missing="keep" if keep_empty else "refuse",
        )
        for name in table.feature_names:
            if party.columns is None and name.casefold() in ID_NAMES:
                raise InputError(
                    f"{path}: column {name!r} would be a feature; say in a manifest that it holds "
                    f"ids (ids = {name!r}), or which columns are features"
                )
        return table
    for key, value in (("ids", party.ids), ("labels", party.labels)):
        if value is not None:
            raise InputError(
                f"{path}: {key} = {value!r} names a column of a CSV or Parquet file; those of HDF5 "
                f"are in its {key}"
            )
    return read_dataset(path, memory_limit=0)


def _arranged(dataset: Dataset, names: Sequence[str], party: Party, first: str) -> Any:
    """Return the values of the features called ``names``, in this order."""
    have = dataset.feature_names
    where = {name: column for column, name in enumerate(have)}
    for name in names:
        if name not in where:
            of_first = "" if party.columns is not None else f", which {first} has"
            raise InputError(
                f"party {party.name!r}: {dataset.source} has no feature {name!r}{of_first}"
                f"{did_you_mean(name, have)}"
            )
    if party.columns is None and len(have) > len(names):
        extra = next(name for name in have if name not in names)
        raise InputError(
            f"party {party.name!r}: {dataset.source} has the feature {extra!r}, which {first} has "
            "not; say with columns which are wanted"
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(f"party {party.name!r}: columns name {shorten(map(repr, repeated))} twice")
    columns = [where[name] for name in names]
    if columns == list(range(len(have))):
        return dataset.X
    if isinstance(dataset.X, FileMatrix):
        return dataset.X.select(columns)
    return dataset.X[:, columns]


def _chained(
    columns: Sequence[NDArray[Any] | None], what: str, party: Party
) -> NDArray[Any] | None:
    """Return the ids or labels of a party's files one after another, if all have them."""
    there = [column for column in columns if column is not None]
    if not there:
        return None
    text = {column.dtype.kind == "U" for column in there}
    if len(there) < len(columns) or len(text) > 1:
        how = "some of its files have none" if len(text) == 1 else "some are numbers, some strings"
        raise InputError(f"the {what} of party {party.name!r} cannot be put together: {how}")
    return np.concatenate(there)


# ---- joining ------------------------------------------------------------------------------------


def align_parties(
    parties: Sequence[Party],
    held: Mapping[int, Holding],
    level: str = "none",
    *,
    key: str | os.PathLike[str] | None = None,
    keep_missing: bool = False,
    team: Team | None = None,
) -> Alignment:
    """Agree on the rows that belong together; see `vpem.files.parties.alignment.align`.

    Parameters
    ----------
    parties : sequence of Party
        All parties.
    held : mapping of int to Holding
        Those held here, from `open_parties`.
    level, keep_missing
        As for `vpem.files.parties.alignment.align`.
    key : path, optional
        File of the key for level hmac, read by every holder.
    team : Team, optional
        Who holds which.

    Returns
    -------
    Alignment

    Raises
    ------
    VpemError
        As `vpem.files.parties.alignment.align` and `read_key` there, in every process the same.
    """
    team = team or Alone()
    if level != "hmac" and key is not None:
        raise InputError("a key is for align hmac only; leave it out")
    keys = None
    if key is not None:
        keys = for_each(team, range(len(parties)), lambda _: read_key(key))
    return align(
        {
            party: holding.n_samples if holding.ids is None else holding.ids
            for party, holding in held.items()
        },
        [party.name for party in parties],
        team,
        level,
        keys=keys,
        keep_missing=keep_missing,
    )


def joined_names(
    parties: Sequence[Party], held: Mapping[int, Holding], team: Team | None = None
) -> tuple[tuple[str, ...], Partition]:
    """Name the features of all parties together, which every process learns.

    A name that several parties have becomes "party.feature" for each of them; others stay.

    Parameters
    ----------
    parties : sequence of Party
        All parties.
    held : mapping of int to Holding
        Those held here.
    team : Team, optional
        Who holds which.

    Returns
    -------
    feature_names : tuple of str
        Names of the d features, party by party.
    partition : Partition
        Each party's run of them.

    Raises
    ------
    InputError
        If names still do not differ.
    """
    told = (team or Alone()).collect(
        {party: list(holding.feature_names) for party, holding in held.items()}, None
    )
    assert told is not None
    names = [told[party] for party in range(len(parties))]
    times = Counter(name for own in names for name in own)
    joined = [
        f"{party.name}.{name}" if times[name] > 1 else name
        for party, own in zip(parties, names, strict=True)
        for name in own
    ]
    for name, count in Counter(joined).items():
        if count > 1:
            raise InputError(f"two features would be called {name!r}; name the parties otherwise")
    ends = np.cumsum([len(own) for own in names])
    features = tuple(np.split(np.arange(len(joined), dtype=np.intp), ends[:-1]))
    return tuple(joined), Partition(features, tuple(party.name for party in parties))


def join_parties(
    parties: Sequence[Party],
    level: str = "none",
    *,
    key: str | os.PathLike[str] | None = None,
    keep_missing: bool = False,
    keep_empty: bool = False,
) -> tuple[Dataset, Alignment]:
    """Join parties, which hold different features of the same rows, to one dataset.

    Parameters
    ----------
    parties : sequence of Party
        Who they are.
    level, key, keep_missing
        As for `align_parties`.
    keep_empty : bool
        As for `open_parties`.

    Returns
    -------
    dataset : Dataset
        Its partition says which party holds which features. Labels are kept if exactly one party
        has them (and all the rows). A party's features are NaN where it lacks the row.
    alignment : Alignment
        What became of whose rows.

    Raises
    ------
    VpemError
        As `open_parties`, `align_parties` and `joined_names`.
    """
    held = open_parties(parties, keep_empty=keep_empty)
    try:
        found = align_parties(parties, held, level, key=key, keep_missing=keep_missing)
        names, partition = joined_names(parties, held)
        dtype = np.result_type(*(holding.dtype for holding in held.values()))
        check_memory(found.n_samples * len(names) * dtype.itemsize, "the parties' data together")
        X = np.empty((found.n_samples, len(names)), dtype=dtype)
        for party, columns in enumerate(partition.features):
            held[party].fill(X[:, columns[0] : columns[-1] + 1], found.rows[party])
    finally:
        for holding in held.values():
            holding.close()
    labelled = [party for party, holding in held.items() if holding.labels is not None]
    labels = None
    if len(labelled) == 1 and (found.rows[labelled[0]] >= 0).all():
        labels = _column(held[labelled[0]].labels)[found.rows[labelled[0]]]
    dataset = Dataset(
        X,
        names,
        ids=_joined_ids(held, found),
        labels=labels,
        partition=partition,
        source=", ".join(str(party.path) for party in parties),
    )
    return dataset, found


def _column(values: NDArray[Any] | None) -> NDArray[Any]:
    assert values is not None
    return values


def _joined_ids(held: Mapping[int, Holding], found: Alignment) -> NDArray[Any] | None:
    """Return what the joined rows are called: as the first party that has them calls them."""
    having = [party for party, holding in held.items() if holding.ids is not None]
    if not having:
        return None
    columns = [_column(held[party].ids) for party in having]
    ids = np.empty(found.n_samples, dtype=np.result_type(*columns))
    for party, column in reversed(list(zip(having, columns, strict=True))):
        there = found.rows[party] >= 0
        ids[there] = column[found.rows[party][there]]
    return ids


def stack_parties(parties: Sequence[Party], *, keep_empty: bool = False) -> Dataset:
    """Put parties, which hold different rows of the same features, one below the other.

    Parameters
    ----------
    parties : sequence of Party
        Who they are. Features are matched by name, in the order of the first party.
    keep_empty : bool
        As for `open_parties`.

    Returns
    -------
    Dataset
        Its workers say which party holds which rows. Ids and labels are kept if all have them.

    Raises
    ------
    VpemError
        If a file cannot be read, or parties have different features.
    """
    held = open_parties(parties, keep_empty=keep_empty)
    names = held[0].feature_names
    try:
        check_same_features(parties, [holding.feature_names for holding in held.values()])
        counts = [holding.n_samples for holding in held.values()]
        ends = np.cumsum(counts)
        dtype = np.result_type(*(holding.dtype for holding in held.values()))
        check_memory(int(ends[-1]) * len(names) * dtype.itemsize, "the parties' data together")
        X = np.empty((int(ends[-1]), len(names)), dtype=dtype)
        for holding, end in zip(held.values(), ends.tolist(), strict=True):
            order = [holding.feature_names.index(name) for name in names]
            own = np.empty((holding.n_samples, len(names)), dtype=dtype)
            holding.fill(own)
            X[end - holding.n_samples : end] = own[:, order]
    finally:
        for holding in held.values():
            holding.close()
    rows = tuple(np.split(np.arange(len(X), dtype=np.intp), ends[:-1]))
    return Dataset(
        X,
        names,
        ids=_stacked([holding.ids for holding in held.values()]),
        labels=_stacked([holding.labels for holding in held.values()]),
        workers=Workers(rows, tuple(party.name for party in parties)),
        source=", ".join(str(party.path) for party in parties),
    )


def check_same_features(parties: Sequence[Party], names: Sequence[Sequence[str]]) -> None:
    """Raise InputError unless all parties have features of the names that the first has."""
    first = parties[0]
    ours = set(names[0])
    for party, own in zip(parties, names, strict=True):
        theirs = set(own)
        for one, other, missing in ((party, first, ours - theirs), (first, party, theirs - ours)):
            if missing:
                raise InputError(
                    f"party {one.name!r} has no feature {min(missing)!r}, which party "
                    f"{other.name!r} has; rows can be put together only where features are the "
                    "same (or leave out ",
                    Setting("split", "rows"),
                    ")",
                )


def _stacked(columns: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Return ids or labels of all parties one after another, if all have them and of one type."""
    there = [column for column in columns if column is not None]
    if len(there) < len(columns) or len({column.dtype.kind == "U" for column in there}) > 1:
        return None
    return np.concatenate(there)
