"""Parties become one dataset: their features side by side, or their rows one below the other.

Parties may be held by several processes, each of which reads its own parties' files only, and
keeps what is in them to itself. `cut` is the other direction, for trials: a dataset becomes
parties' datasets, as if it had never been in one place.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, Labels, check_int, check_memory, check_number, ids_by_name
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting, VpemWarning
from vpem.files.datasets import Dataset, Home, default_names
from vpem.files.levels import recoded
from vpem.files.parties.alignment import (
    BY_POSITION,
    Alignment,
    align,
    check_ids,
    read_ids,
    read_key,
)
from vpem.files.parties.opening import (
    Holding,
    OpenParties,
    Party,
    Tell,
    chained,
    check_spoken_of,
    joined_kinds,
    open_parties,
    open_party,
    stacked_kinds,
)
from vpem.network.partition import Partition, Workers
from vpem.network.schema import Report
from vpem.rules import OF_SUMS_OVER_HUBS


def join_parties(
    parties: Sequence[Party],
    level: str | None = None,
    *,
    key: str | os.PathLike[str] | None = None,
    keep_missing: bool = False,
    keep_empty: bool = False,
    keep_constant: bool = False,
    keep_labels: bool = False,
    sample_weight: str | None = None,
    holders: Placement | None = None,
    tell: Tell | None = None,
) -> tuple[Dataset, Alignment]:
    """Join parties, which hold different features of the same rows, to one dataset (M, d).

    Options are those of `align_parties` and `open_parties`; all processes call this alike, and
    raise the same VpemError. Without a ``level``, ids must be the same row by row, or no party has
    any, and none a column that another has. ``sample_weight`` names weights of rows in the files of
    the parties that have them: a dataset of HDF5, a column of a table; all parties learn them.

    The partition of the result says which party holds which features, NaN where it lacks the row.
    Labels are kept if exactly one party has them (and all the rows). Where several processes hold
    parties, it is a share, without labels unless it is to ``keep_labels`` where they are, and with
    the ids that the first party has of all rows in its own process.
    """
    options: Report = {"keep_empty": keep_empty, "weights": sample_weight, "tell": tell}
    with open_parties(parties, holders, keep_constant=keep_constant, **options) as held:
        holders, holdings = held.holders, held.holdings
        local, apart = list(holdings.values()), not holders.engine.open

        def look(party: int) -> None:
            if party == max(holdings):  # all of this process
                refuse_gaps(local, lambda: check_own_ids(local, level, apart))
                for holding in local:
                    _check_left_out(holding, level)

        held.each(look)
        alignment = align_parties(held, level, key=key, keep_missing=keep_missing)
        unsaid = level is None and alignment.by_position
        names, partition = joined_names(held, different=unsaid)
        check_spoken_of(held, names)
        kinds = joined_kinds(held)
        weights = joined_weights(held, alignment.rows, sample_weight)
        widths = [len(holding.feature_names) for holding in holdings.values()]
        first = dict(zip(holdings, np.cumsum([0, *widths[:-1]]).tolist(), strict=False))
        dtypes = [holding.dtype for holding in holdings.values()] or [np.dtype(np.float32)]
        shape = (alignment.n_samples, sum(widths))
        X = _empty(shape, np.result_type(*dtypes), held)
        labelling = [one for one in holdings if holdings[one].labels_for_fit is not None]

        def fill(party: int) -> None:
            columns = slice(first[party], first[party] + len(holdings[party].feature_names))
            holdings[party].fill(X[:, columns], alignment.rows[party])
            if party in labelling[1:]:
                raise InputError(
                    f"party {parties[party].name!r} has ",
                    Setting("labels_for_fit"),
                    ", but they are added to the term of one hub, and another party has some; "
                    "leave out all but those of one",
                )

        held.each(fill)
    labels_of_fit: Report = {}
    if labelling:
        known = holdings[labelling[0]].labels_for_fit
        assert known is not None
        values = known.take_rows(alignment.rows[labelling[0]])
        labels_of_fit = {"labels_for_fit": values, "labelled_by": labelling[0]}
    source = ", ".join(str(party.path) for party in parties)
    homes = {
        party: Home.joined(
            parties[party].name, holding.ids, holding.n_samples, alignment.rows[party]
        )
        for party, holding in holdings.items()
    }
    columns = {party: one.ids for party, one in holdings.items() if one.ids is not None}
    if holders.apart:  # ids that the first party has of all rows stay with it
        columns = {0: columns[0]} if 0 in columns and (alignment.rows[0] >= 0).all() else {}
    ids = None
    if columns:  # as the first party that has some calls a row
        ids = np.empty(alignment.n_samples, dtype=np.result_type(*columns.values()))
        for party, column in reversed(columns.items()):
            there = alignment.rows[party] >= 0
            ids[there] = column[alignment.rows[party][there]]
    labelled = [(party, one.labels) for party, one in holdings.items() if one.labels is not None]
    labels = None
    said = keep_labels or not holders.apart
    if said and len(labelled) == 1 and (alignment.rows[labelled[0][0]] >= 0).all():
        party, labels = labelled[0][0], labelled[0][1][alignment.rows[labelled[0][0]]]
        labels_of_fit.setdefault("labelled_by", party)
    dataset = Dataset(
        X,
        names,
        ids=ids,
        labels=labels,
        partition=partition,
        sample_weight=weights,
        source=source,
        homes=homes,
        kinds=kinds,
        is_share=holders.apart,
        **labels_of_fit,
    )
    return dataset, alignment


def _empty(shape: tuple[int, int], dtype: np.dtype[np.floating], held: OpenParties) -> Floats:
    """Make room for what this process has of the data, unless there is too little anywhere."""

    def check(party: int) -> None:
        what = f"the rows of party {held.parties[party].name!r}"
        what = what if held.holders.apart else "the parties' data together"
        check_memory(shape[0] * shape[1] * dtype.itemsize, what)

    held.each(check)
    return np.empty(shape, dtype=dtype)


def stack_parties(
    parties: Sequence[Party],
    *,
    keep_empty: bool = False,
    sample_weight: str | None = None,
    holders: Placement | None = None,
    tell: Tell | None = None,
) -> Dataset:
    """Put parties, which hold different rows of the same features, one below the other.

    Features are matched by name, in the order of the first party; all parties have weights called
    ``sample_weight``. All processes call this alike, learn every party's names of features and
    number of rows, and raise the same VpemError. The workers of the result say which party holds
    which rows. Ids and labels are kept if all have them. Where several processes hold parties, it
    is a share, without ids and labels.
    """
    options: Report = {"keep_empty": keep_empty, "weights": sample_weight, "tell": tell}
    with open_parties(parties, holders, keep_constant=True, **options) as held:
        holders, holdings = held.holders, held.holdings
        held.each(lambda party: refuse_gaps([holdings[party]]))
        facts = held.facts(lambda one: [list(one.feature_names), one.n_samples, one.dtype.name])
        names, counts, kinds = zip(*facts, strict=True)
        for party, features in zip(parties, names, strict=True):
            pairs = ((party, parties[0]), (parties[0], party))
            lacking = {*names[0]} - {*features}, {*features} - {*names[0]}
            for (one, other), missing in zip(pairs, lacking, strict=True):
                if missing:
                    raise InputError(
                        f"party {one.name!r} has no feature {min(missing)!r}, which party "
                        f"{other.name!r} has; rows can be put together only where features are "
                        "the same"
                    )
        check_spoken_of(held, names[0])
        changes, families = stacked_kinds(held, names[0])
        ends = np.cumsum([holding.n_samples for holding in holdings.values()]).tolist()
        end = dict(zip(holdings, ends, strict=True))
        dtype = np.result_type(*map(np.dtype, kinds))
        X = _empty((max(ends, default=0), len(names[0])), dtype, held)

        def fill(party: int) -> None:
            holding = holdings[party]
            if holding.labels_for_fit is not None:
                raise InputError(
                    f"party {parties[party].name!r}: ",
                    Setting("labels_for_fit"),
                    *OF_SUMS_OVER_HUBS[1],
                )
            rows = X[end[party] - holding.n_samples : end[party]]
            holding.fill(rows)
            if holding.feature_names != tuple(names[0]):
                rows[:] = rows[:, [holding.feature_names.index(name) for name in names[0]]]
            rows[:] = recoded(rows, changes.get(party, {}))

        held.each(fill)

        def weights_of(party: int) -> NDArray[np.float64]:
            weights = holdings[party].sample_weight
            if weights is None:
                raise InputError(
                    f"party {parties[party].name!r} has no sample weights called {sample_weight!r}"
                )
            return weights

        weights = None
        if sample_weight is not None:
            weights = np.concatenate([np.empty(0), *held.each(weights_of).values()])
    rows = tuple(np.split(np.arange(sum(counts), dtype=np.intp), np.cumsum(counts)[:-1]))
    workers = Workers(rows, tuple(party.name for party in parties))
    source = ", ".join(str(party.path) for party in parties)
    homes = {
        party: Home.whole(holding.ids, holding.n_samples, parties[party].name)
        for party, holding in holdings.items()
    }
    here = [] if holders.apart else list(holdings.values())
    return Dataset(
        X,
        tuple(names[0]),
        ids=chained([holding.ids for holding in here])[0],
        labels=chained([holding.labels for holding in here])[0],
        workers=workers,
        sample_weight=weights,
        source=source,
        homes=homes,
        kinds=families,
        is_share=holders.apart,
    )


def align_parties(
    held: OpenParties,
    level: str | None = None,
    *,
    key: str | os.PathLike[str] | None = None,
    keep_missing: bool = False,
) -> Alignment:
    """Align rows (`vpem.files.parties.alignment.align`); every holder reads the ``key`` of hmac."""
    if level != "hmac" and key is not None:
        raise InputError("a key is for align hmac only; leave it out")
    keys = None
    if key is not None:
        keys = held.each(lambda _: read_key(key))
    ids = {
        party: holding.n_samples if holding.ids is None else holding.ids
        for party, holding in held.holdings.items()
    }
    names = [party.name for party in held.parties]
    with set_topic(held.holders.engine, "alignment"):
        return align(ids, names, held.holders, level, keys=keys, keep_missing=keep_missing)


def joined_names(held: OpenParties, different: bool = False) -> tuple[tuple[str, ...], Partition]:
    """Name the features of all parties together (d,), and each party's run, everywhere alike.

    A name that several parties have becomes "party.feature" for each of them; others stay. If they
    must be ``different``, a column that several have is refused, as it may say whose rows are; of
    columns that are no features only this process knows.
    """
    parties, local = held.parties, list(held.holdings.values())
    names = held.facts(lambda holding: list(holding.feature_names))
    if different and held.holders.apart:
        refuse_shared([party.name for party in parties], names)
    elif different:
        refuse_shared(
            [party.name for party in parties],
            [[*one.feature_names, *one.left_out] for one in local],
            lambda name: all(one.tells_rows_apart(name) for one in local),
        )
    times = Counter(name for features in names for name in features)
    joined = [
        f"{party.name}.{name}" if times[name] > 1 else name
        for party, features in zip(parties, names, strict=True)
        for name in features
    ]
    for name, count in Counter(joined).items():
        if count > 1:
            raise InputError(f"two features would be called {name!r}; name the parties otherwise")
    ends = np.cumsum([len(each) for each in names])
    features = tuple(np.split(np.arange(len(joined), dtype=np.intp), ends[:-1]))
    return tuple(joined), Partition(features, tuple(party.name for party in parties))


def joined_weights(
    held: OpenParties,
    rows: Mapping[int, NDArray[np.intp]],
    name: str | None,  # of weights; None: rows weigh alike
) -> NDArray[np.float64] | None:
    """Find the weights (M,) of rows of which parties have different features; all learn them.

    One or more parties have them, and those agree. ``rows`` are a party's own numbers (M,), -1
    where it lacks the row. InputError is the same in every process.
    """
    if name is None:
        return None
    local = {}
    for party, holding in held.holdings.items():
        if holding.sample_weight is not None:
            there = rows[party] >= 0
            local[party] = np.full(len(there), np.nan)
            local[party][there] = holding.sample_weight[rows[party][there]]
    every = held.holders.allgather(local)
    if not every:
        raise InputError(f"no party has sample weights called {name!r}")
    first = min(every)
    joined = every[first].copy()
    for party, weights in every.items():
        wrong = np.abs(weights - joined) > 0
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"row {row} has the weight {joined[row]:g} at one party and {weights[row]:g} at "
                f"{held.parties[party].name!r}; leave {name!r} out of one's file"
            )
        joined = np.where(np.isnan(joined), weights, joined)
    if np.isnan(joined).any():
        row = int(np.argmax(np.isnan(joined)))
        raise InputError(f"row {row} has no weight: no party that has it has {name!r}")
    return joined


def refuse_gaps(holdings: Sequence[Holding], check: Callable[[], None] = lambda: None) -> None:
    """Raise InputError for the first gap of some parties, together with what a check finds."""
    gaps = next((holding.gaps for holding in holdings if holding.gaps is not None), None)
    if gaps is None:
        return
    try:
        check()
    except InputError as error:
        raise InputError(*error.parts, "; also, ", *gaps.parts) from None
    raise gaps


def check_own_ids(holdings: Sequence[Holding], level: str | None, apart: bool) -> None:
    """Raise InputError where ids here cannot be aligned; ``apart``: organisations differ."""
    for holding in holdings:
        _check_left_out(holding, level)
    names = [holding.party.name for holding in holdings]
    ids = [holding.n_samples if holding.ids is None else holding.ids for holding in holdings]
    read = [read_ids(column, name, level) for column, name in zip(ids, names, strict=True)]
    check_ids([facts for _, facts in read], names, level, apart)


def _check_left_out(holding: Holding, level: str | None) -> None:
    """Raise InputError where a column called as ids is none, since one is empty or there twice."""
    called = [name for name in holding.left_out if ids_by_name(name)]
    if level in (None, "none") or holding.ids is not None or len(called) != 1:
        return
    table = holding.party.table.changed(id_column=called[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        again = open_party(replace(holding.party, table=table), keep_constant=True, on_disk=True)
        again.close()
        if again.ids is not None:
            read_ids(again.ids, holding.party.name, level)


def refuse_shared(
    parties: Sequence[str],
    columns: Sequence[Sequence[str]],
    able: Callable[[str], bool] = lambda _: False,
) -> None:
    """Raise InputError where parties share a column; ``able``: whether it tells all rows apart."""
    known = [set(names) - set(default_names(len(names))) for names in columns]
    times = Counter(name for names in known for name in names)
    shared = [name for names in columns for name in names if times[name] > 1]
    if not shared:
        return
    name = next(filter(able, shared), None)
    having = [
        one for one, names in zip(parties, known, strict=True) if (name or shared[0]) in names
    ]
    raise InputError(
        f"parties {having[0]!r} and {having[1]!r} both have a column {name or shared[0]!r}, and no "
        "ids say whether their rows are the same; align them by ", Setting("align", "ids"), " ",
        Setting("id_column", name or "NAME"), *BY_POSITION,
    )  # fmt: skip


def cut(
    dataset: Dataset,
    partition: Partition,
    *,
    shuffle: bool = False,
    drop_ids: float = 0.0,
    seed: int = 0,
) -> list[Dataset]:
    """Give each agent a dataset of its own features, with ids; labels are with the first.

    If ``shuffle``, each party's rows have an order of their own. ``drop_ids`` in [0, 1) is the
    share of rows that each party lacks, drawn for each party by itself.
    """
    drop_ids = check_number("drop_ids", drop_ids, least=0.0, most=1.0)
    rng = np.random.default_rng(check_int("seed", seed, least=0))
    n_samples = dataset.n_samples
    n_kept = n_samples - round(drop_ids * n_samples)
    if n_kept < 1:
        raise InputError(f"dropping {drop_ids:g} of {n_samples} rows leaves none; drop fewer")
    ids: Labels = np.arange(n_samples) if dataset.ids is None else dataset.ids
    datasets = []
    for agent, (name, columns) in enumerate(zip(partition.names, partition.features, strict=True)):
        if not columns.size:
            raise InputError(f"agent {name!r} holds no feature, so it has no file; leave it out")
        rows = rng.permutation(n_samples)[:n_kept]
        if not shuffle:
            rows.sort()
        labels, weights = dataset.labels if agent == 0 else None, dataset.sample_weight
        datasets.append(
            replace(
                dataset,
                X=np.asarray(dataset.X[:])[np.ix_(rows, columns)],
                feature_names=tuple(dataset.feature_names[column] for column in columns),
                ids=ids[rows],
                labels=None if labels is None else labels[rows],
                sample_weight=None if weights is None else weights[rows],
                partition=None,
                workers=None,
                edges=None,
                kinds=None if dataset.kinds is None else dataset.kinds.take_features(columns),
            )
        )
    return datasets


def file_stems(names: tuple[str, ...]) -> list[str]:
    """Return different names of files for agents: all but letters, digits and ``.+-_`` is ``_``."""
    stems = [re.sub(r"[^\w.+-]+", "_", name).strip("._") or "_" for name in names]
    folded = [stem.casefold() for stem in stems]
    for place, stem in enumerate(folded):
        first = folded.index(stem)
        if first != place:
            raise InputError(
                f"agents {names[first]!r} and {names[place]!r} would have one file, "
                f"{stems[place]}.h5; rename one"
            )
    return stems
