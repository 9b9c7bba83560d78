"""Files of parties, each read by its holder only.

A party's file is a dataset of its own: its features, its rows in an order of its own, its ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, Labels, check_finite, is_whole
from vpem.engines.each import for_each
from vpem.engines.placement import Placement
from vpem.errors import (
    FileError,
    InputError,
    MissingIdError,
    Setting,
    VpemError,
    VpemWarning,
    did_you_mean,
)
from vpem.files.data import read_data
from vpem.files.datasets import Dataset
from vpem.files.labels_for_fit import SomeLabels, settle_labels
from vpem.files.matrix import FileMatrix
from vpem.files.parties.families import settle_party
from vpem.files.parties.manifest import Party
from vpem.files.table_settings import TableSettings
from vpem.terms.families.kinds import Kinds

Tell = Callable[[Dataset, TableSettings, TableSettings | None], None]
"""Is given what was read of a file, and how its party, and a model, say that it is to be read."""


@dataclass
class Holding:
    """What one party holds, read but for its values, which may still lie on disk."""

    party: Party
    feature_names: tuple[str, ...]
    parts: tuple[Any, ...]  # its rows, file by file
    ids: Labels | None  # (m,)
    labels: Labels | None  # (m,)
    sample_weight: NDArray[np.float64] | None = None  # (m,)
    kinds: Kinds | None = None  # None: all Gaussian
    labels_for_fit: SomeLabels | None = None  # known of some rows
    left_out: Mapping[str, str] = field(
        default_factory=dict
    )  # columns that are no features, and why
    gaps: InputError | None = None  # values are missing where none may be

    @property
    def n_samples(self) -> int:
        """Number of rows, m."""
        return sum(len(part) for part in self.parts)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision: float32 only if all its files are."""
        return np.result_type(*(part.dtype for part in self.parts))

    def fill(self, out: Floats, rows: NDArray[np.intp] | None = None) -> None:
        """Copy rows into ``out`` (M, d_n), reading each file once from its beginning to its end.

        ``rows`` (M,) are their numbers, of which -1 becomes a row of NaN; by default all in order.
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

    def tells_rows_apart(self, name: str) -> bool:
        """Whether a table's feature has a whole number in every row, no two alike."""
        if name not in self.feature_names or any(isinstance(one, FileMatrix) for one in self.parts):
            return False
        place = self.feature_names.index(name)
        column = np.concatenate([part[:, place] for part in self.parts])
        whole = is_whole(column) and bool(np.isfinite(column).all())
        return whole and len(np.unique(column)) == len(column)

    def close(self) -> None:
        """Close its files."""
        for part in self.parts:
            if isinstance(part, FileMatrix):
                part.close()


# ---- reading ------------------------------------------------------------------------------------


def open_parties(
    parties: Sequence[Party],
    holders: Placement | None = None,
    *,
    keep_empty: bool = False,  # empty cells of tables are no `gaps`
    keep_constant: bool = False,  # others have more rows of these columns
    weights: str | None = None,  # column, or dataset of HDF5; None: no weights are read
    tell: Tell | None = None,
) -> dict[int, Holding]:
    """Open the files of the parties held here, by number; those of others are not touched.

    A file that cannot be read raises the same VpemError in every process. ``tell`` is given what
    was read of each file.
    """
    how: dict[str, Any] = {"keep_constant": keep_constant, "weights": weights, "tell": tell}
    return for_each(
        holders or Placement.here(len(parties)),
        range(len(parties)),
        lambda party: open_party(parties[party], keep_empty, **how),
    )


MARGINALIZED = ("integrate them out with ", Setting("missing", "marginalize"))


def open_party(
    party: Party,
    keep_empty: bool = False,
    *,
    keep_constant: bool = False,
    weights: str | None = None,
    tell: Tell | None = None,
    on_disk: bool = False,
) -> Holding:
    """Open one party's files, here; see `open_parties`.

    Whoever fits looks at values of HDF5 files, unless their `gaps`, ``on_disk``, are asked for.
    """
    try:
        files = party.find()
        if not files:
            raise FileError(f"no file fits {party.path}")
        constant = keep_constant or len(files) > 1
        datasets = [_read(party, file, constant, weights, tell) for file in files]
        gaps = None if keep_empty else _gaps_of(party, datasets, on_disk)
        names = datasets[0].feature_names
        arranged = [_arranged(dataset, names, datasets[0].source) for dataset in datasets]
        parts, kinds = settle_party(party, datasets, arranged, names)
        ids = _chained([dataset.ids for dataset in datasets], "ids", party)
        known = _known(party, datasets, ids)
    except VpemError as error:
        also: Sequence[str | Setting] = ()
        if isinstance(error, MissingIdError) and not keep_empty:
            also = _gaps_without_ids(party)
        raise type(error)(f"party {party.name!r}: ", *error.parts, *also) from None
    labels = [dataset.labels for dataset in datasets]
    noted = [None if weights is None else dataset.sample_weight for dataset in datasets]
    weights_of_rows = _chained(noted, "weights", party)
    return Holding(
        party,
        tuple(names),
        parts,
        ids,
        _chained(labels, "labels", party),
        None if weights_of_rows is None else weights_of_rows.astype(np.float64, copy=False),
        kinds,
        known,
        {name: why for dataset in datasets for name, why in dataset.left_out.items()},
        gaps,
    )


def _gaps_without_ids(party: Party) -> Sequence[str | Setting]:
    """Return what else is to be said of a party's files, whose ids are not all there."""
    table = party.table
    drop = table.drop
    if table.id_column is not None and table.features is None and drop is None:
        drop = [table.id_column]
    without = table.changed(id_column=None, drop=drop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        try:
            gaps = open_party(replace(party, table=without)).gaps
        except VpemError:  # of which the error of the ids says enough
            return ()
    return () if gaps is None else ("; also, ", *gaps.parts)


def _known(party: Party, datasets: Sequence[Dataset], ids: Labels | None) -> SomeLabels | None:
    """Return labels for the fit of a party's rows, where it has some."""
    asked, found = party.table.labels_for_fit, [one.labels_for_fit for one in datasets]
    there = [one for one in found if one is not None]
    together = None
    if there:
        columns = [one.values for one in there]
        text = {column.dtype.kind == "U" for column in columns}
        if len(there) < len(found) or len(text) > 1:
            raise InputError("its files differ in what their labels for the fit are")
        together = SomeLabels(np.concatenate(columns), there[0].names)
    return settle_labels(together, asked, datasets, ids, party.table, party.folder)


def _read(
    party: Party, path: Path, keep_constant: bool, weights: str | None, tell: Tell | None
) -> Dataset:
    """Open one file of a party: HDF5, whose values stay there, or a table."""
    found = read_data(
        path,
        party.table,
        kept=party.kept,
        sample_weight=weights,
        weights_needed=False,
        keep_constant=keep_constant,
        on_disk=True,
    )
    if tell is not None:
        tell(found, party.table, party.kept)
    return found


def _gaps_of(party: Party, datasets: Sequence[Dataset], on_disk: bool) -> InputError | None:
    """Return what is to be said of the first file with a missing value."""
    for dataset in datasets:
        if on_disk or not isinstance(dataset.X, FileMatrix):
            try:
                check_finite(dataset.X, dataset.feature_names, MARGINALIZED)
            except InputError as error:
                return InputError(f"party {party.name!r}: {dataset.source}: ", *error.parts)
    return None


def _arranged(dataset: Dataset, names: Sequence[str], first: str) -> Any:
    """Return the values of the features called ``names``, in this order."""
    have = dataset.feature_names
    where = {name: column for column, name in enumerate(have)}
    for name in names:
        if name not in where:
            raise InputError(
                f"{dataset.source} has no feature {name!r}, which {first} has"
                f"{did_you_mean(name, have)}"
            )
    if len(have) > len(names):
        extra = next(name for name in have if name not in names)
        raise InputError(
            f"{dataset.source} has the feature {extra!r}, which {first} has not; say which are "
            "wanted with ",
            Setting("features"),
        )
    columns = [where[name] for name in names]
    if columns == list(range(len(have))):
        return dataset.X
    if isinstance(dataset.X, FileMatrix):
        return dataset.X.select(columns)
    return dataset.X[:, columns]


def _chained(columns: Sequence[Labels | None], what: str, party: Party) -> Labels | None:
    """Return the ids or labels of a party's files one after another, if all have them."""
    there = [column for column in columns if column is not None]
    if not there:
        return None
    text = {column.dtype.kind == "U" for column in there}
    if len(there) < len(columns) or len(text) > 1:
        how = "some of its files have none" if len(text) == 1 else "some are numbers, some strings"
        raise InputError(f"the {what} of party {party.name!r} cannot be put together: {how}")
    return np.concatenate(there)
