"""Parties become one dataset: their features side by side, or their rows one below the other.

Parties may be held by several processes, each of which reads its own parties' files only, and
keeps what is in them to itself.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from vpem.checks import Floats, Labels, check_memory
from vpem.engines.each import for_each
from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.files.datasets import Dataset
from vpem.files.levels import recoded
from vpem.files.parties.alignment import Alignment, align, read_key
from vpem.files.parties.families import check_spoken_of, joined_kinds, stacked_kinds
from vpem.files.parties.homes import Home
from vpem.files.parties.known import check_labels, labels_of_rows, refuse_labels_of_rows
from vpem.files.parties.manifest import Party
from vpem.files.parties.opening import Holding, Tell, open_parties
from vpem.files.parties.share import Share
from vpem.files.parties.weights import joined_weights, stacked_weights
from vpem.network.holdings import Partition, Workers
from vpem.network.schema import Report

__all__ = ["Share", "align_parties", "join_parties", "joined_names", "stack_parties"]


def align_parties(
    parties: Sequence[Party],
    held: Mapping[int, Holding],
    level: str = "none",
    *,
    key: str | os.PathLike[str] | None = None,
    keep_missing: bool = False,
    holders: Placement | None = None,
) -> Alignment:
    """Agree on the rows that belong together; see `vpem.files.parties.alignment.align`.

    Every holder reads the ``key`` for level hmac from this file.
    """
    holders = holders or Placement.here(len(parties))
    if level != "hmac" and key is not None:
        raise InputError("a key is for align hmac only; leave it out")
    keys = None
    if key is not None:
        keys = for_each(holders, range(len(parties)), lambda _: read_key(key))
    ids = {
        party: holding.n_samples if holding.ids is None else holding.ids
        for party, holding in held.items()
    }
    names = [party.name for party in parties]
    with about(holders.engine, "alignment"):
        return align(ids, names, holders, level, keys=keys, keep_missing=keep_missing)


def joined_names(
    parties: Sequence[Party], held: Mapping[int, Holding], holders: Placement | None = None
) -> tuple[tuple[str, ...], Partition]:
    """Name the features of all parties together (d,), and each party's run, everywhere alike.

    A name that several parties have becomes "party.feature" for each of them; others stay.
    """
    every = (holders or Placement.here(len(parties))).allgather(
        {party: list(holding.feature_names) for party, holding in held.items()}
    )
    names = [every[party] for party in range(len(parties))]
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
    keep_constant: bool = False,
    sample_weight: str | None = None,
    holders: Placement | None = None,
    tell: Tell | None = None,
) -> tuple[Dataset, Alignment]:
    """Join parties, which hold different features of the same rows, to one dataset.

    Parameters
    ----------
    parties : sequence of Party
        Who they are.
    level, key, keep_missing
        As for `align_parties`.
    keep_empty, keep_constant : bool
        As for `vpem.files.parties.opening.open_parties`.
    sample_weight : str, optional
        What weights of rows are called in the files of the parties that have them, of which there
        is one, or they agree: a dataset of HDF5, a column of a table. All learn them.
    holders : Placement, optional
        Which process holds which; all call this alike.
    tell : callable, optional
        As for `vpem.files.parties.opening.open_parties`.

    Returns
    -------
    dataset : Dataset
        Its partition says which party holds which features. A party's features are NaN where it
        lacks the row. Labels are kept if exactly one party has them (and all the rows). Where
        several processes hold parties, a `Share`, without labels, and with the ids that the first
        party has of all rows in its own process.
    alignment : Alignment
        What became of whose rows.

    Raises
    ------
    VpemError
        In every process the same, as `open_parties`, `align_parties` and `joined_names`.
    """
    holders = holders or Placement.here(len(parties))
    how: Report = {"keep_empty": keep_empty, "keep_constant": keep_constant, "tell": tell}
    held = open_parties(parties, holders, weights=sample_weight, **how)
    try:
        found = align_parties(
            parties, held, level, key=key, keep_missing=keep_missing, holders=holders
        )
        names, partition = joined_names(parties, held, holders)
        check_spoken_of(parties, held, names, holders)
        kinds = joined_kinds(parties, held, holders)
        weights = joined_weights(parties, held, found.rows, sample_weight, holders)
        widths = [len(holding.feature_names) for holding in held.values()]
        first = dict(zip(held, np.cumsum([0, *widths[:-1]]).tolist(), strict=False))
        dtypes = [holding.dtype for holding in held.values()] or [np.dtype(np.float32)]
        shape = (found.n_samples, sum(widths))
        X = _empty(shape, np.result_type(*dtypes), parties, holders)

        def fill(party: int) -> None:
            own = slice(first[party], first[party] + len(held[party].feature_names))
            held[party].fill(X[:, own], found.rows[party])
            check_labels(held, party, parties[party].name)

        for_each(holders, range(len(parties)), fill)
    finally:
        for holding in held.values():
            holding.close()
    labels_of_fit = labels_of_rows(held, found)
    source = ", ".join(str(party.path) for party in parties)
    homes = {
        party: Home.joined(parties[party].name, holding.ids, holding.n_samples, found.rows[party])
        for party, holding in held.items()
    }
    if holders.apart:
        # Ids that the first party has of all rows stay with it.
        first_party = 0 in held and (found.rows[0] >= 0).all()
        ids = _joined_ids({0: held[0]}, found) if first_party else None
        common: Report = {"partition": partition, "sample_weight": weights, "source": source}
        common |= {"kinds": kinds, **labels_of_fit}
        return Share(X, names, ids, homes=homes, **common), found
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
        sample_weight=weights,
        source=source,
        homes=homes,
        kinds=kinds,
        **labels_of_fit,
    )
    return dataset, found


def _empty(
    shape: tuple[int, int],
    dtype: np.dtype[np.floating],
    parties: Sequence[Party],
    holders: Placement,
) -> Floats:
    """Make room for what this process has of the data, unless there is too little anywhere."""

    def check(party: int) -> None:
        what = f"the rows of party {parties[party].name!r}"
        what = what if holders.apart else "the parties' data together"
        check_memory(shape[0] * shape[1] * dtype.itemsize, what)

    for_each(holders, range(len(parties)), check)
    return np.empty(shape, dtype=dtype)


def _column(values: Labels | None) -> Labels:
    assert values is not None
    return values


def _joined_ids(held: Mapping[int, Holding], found: Alignment) -> Labels | None:
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


def stack_parties(
    parties: Sequence[Party],
    *,
    keep_empty: bool = False,
    sample_weight: str | None = None,
    holders: Placement | None = None,
    tell: Tell | None = None,
) -> Dataset:
    """Put parties, which hold different rows of the same features, one below the other.

    Parameters
    ----------
    parties : sequence of Party
        Who they are. Features are matched by name, in the order of the first party.
    keep_empty : bool
        As for `vpem.files.parties.opening.open_parties`.
    sample_weight : str, optional
        What weights of rows are called in the files of all parties.
    holders : Placement, optional
        Which process holds which; all call this alike. All learn every party's names of features
        and number of rows.
    tell : callable, optional
        As for `vpem.files.parties.opening.open_parties`.

    Returns
    -------
    Dataset
        Its workers say which party holds which rows. Ids and labels are kept if all have them.
        Where several processes hold parties, a `Share`, without ids and labels.

    Raises
    ------
    VpemError
        In every process the same, if a file cannot be read or parties have different features.
    """
    holders = holders or Placement.here(len(parties))
    how: Report = {"keep_empty": keep_empty, "keep_constant": True, "tell": tell}
    held = open_parties(parties, holders, weights=sample_weight, **how)
    try:
        facts = holders.allgather(
            {
                party: [list(holding.feature_names), holding.n_samples, holding.dtype.name]
                for party, holding in held.items()
            }
        )
        names, counts, kinds = zip(*facts.values(), strict=True)
        _check_same_features(parties, names)
        check_spoken_of(parties, held, names[0], holders)
        changes, families = stacked_kinds(parties, held, names[0], holders)
        ends = np.cumsum([holding.n_samples for holding in held.values()]).tolist()
        end = dict(zip(held, ends, strict=True))
        dtype = np.result_type(*map(np.dtype, kinds))
        X = _empty((max(ends, default=0), len(names[0])), dtype, parties, holders)

        def fill(party: int) -> None:
            holding = held[party]
            refuse_labels_of_rows(holding, parties[party].name)
            own = np.empty((holding.n_samples, len(names[0])), dtype=dtype)
            holding.fill(own)
            order = [holding.feature_names.index(name) for name in names[0]]
            rows = recoded(own[:, order], changes.get(party, {}))
            X[end[party] - holding.n_samples : end[party]] = rows

        for_each(holders, range(len(parties)), fill)
        weights = stacked_weights(parties, held, sample_weight, holders)
    finally:
        for holding in held.values():
            holding.close()
    rows = tuple(np.split(np.arange(sum(counts), dtype=np.intp), np.cumsum(counts)[:-1]))
    workers = Workers(rows, tuple(party.name for party in parties))
    source = ", ".join(str(party.path) for party in parties)
    homes = {
        party: Home(parties[party].name, holding.ids, np.arange(holding.n_samples))
        for party, holding in held.items()
    }
    if holders.apart:
        common: Report = {"workers": workers, "sample_weight": weights, "source": source}
        common["kinds"] = families
        return Share(X, tuple(names[0]), homes=homes, **common)
    return Dataset(
        X,
        tuple(names[0]),
        ids=_stacked([holding.ids for holding in held.values()]),
        labels=_stacked([holding.labels for holding in held.values()]),
        workers=workers,
        sample_weight=weights,
        source=source,
        homes=homes,
        kinds=families,
    )


def _check_same_features(parties: Sequence[Party], names: Sequence[Sequence[str]]) -> None:
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
                    "same"
                )


def _stacked(columns: Sequence[Labels | None]) -> Labels | None:
    """Return ids or labels of all parties one after another, if all have them and of one type."""
    there = [column for column in columns if column is not None]
    if len(there) < len(columns) or len({column.dtype.kind == "U" for column in there}) > 1:
        return None
    return np.concatenate(there)
