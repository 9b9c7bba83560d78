"""Data that a mixture or clusters are used on: the model's features, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine import place_parties
from .parties import check_parties, joined
from .progress import what_is_read
from .reading import kept_of, read_one, teller
from .requests import Request, refuse_given

if TYPE_CHECKING:
    from vpem.checks import Labels
    from vpem.files.datasets import Dataset
    from vpem.network.schema import Report

    from .of_rows import RowFile
    from .output import Screen


OF_ALL_DATA = ("labels", "features", "missing", "sample_weight")
"""Options about rows that parties' data have, too."""


@dataclass(frozen=True)
class Loaded:
    """Data that a model is used on."""

    source: Dataset
    X: Any  # (M, d): the model's features, in its order
    told: Report  # for JSON: how rows were aligned


def load(used: RowFile, request: Request, missing: str, narrow: bool = False) -> Loaded:
    """Read data for a model.

    Parameters
    ----------
    used : RowFile
        The model.
    request : Request
        What it is used on.
    missing : str
        What is done where values are missing, one of `vpem.settings.MISSINGS`.
    narrow : bool
        Whether the model may go on with the features alone that there are.
    """
    from vpem.checks import check_finite
    from vpem.files.matrix import FileMatrix
    from vpem.terms.rows import check_missing

    if request.processes.apart:
        return _spread(used, request, missing, narrow)
    complete, names = missing == "refuse", used.stored.feature_names
    with request.screen.doing(what_is_read(request.files)):
        source, alignment = _dataset(used, request, complete)
    columns = _columns(used, request, source, missing, narrow)
    source = _in_levels(source, used, columns, missing, request.screen)
    X = source.X
    if columns is not None:
        X = X.select(columns) if isinstance(X, FileMatrix) else X[:, columns]
    if complete:
        check_finite(X, names, used.advice if narrow else ())
    else:
        check_missing(X, names)
    return Loaded(source, X, {} if alignment is None else {"alignment": alignment})


def _spread(used: RowFile, request: Request, missing: str, narrow: bool) -> Loaded:
    """Read what this process's parties have, and keep it here."""
    from vpem.engines.placement import Placement
    from vpem.errors import InputError
    from vpem.fits.spread_use import SpreadRows

    asked, engine = request.parties, request.processes
    if not asked.parties:
        raise InputError(
            "--engine mpi is for parties, each of which is read by a rank of its own; add --parties"
        )
    if asked.split == "rows":
        raise InputError(
            "a row whose features one party has needs nobody else: let each party use the "
            "model on its own file, without --engine mpi"
        )
    marks = engine.allgather(f"{used.fingerprint} {missing}")
    for rank, mark in enumerate(marks):
        if mark != marks[0]:
            raise InputError(
                f"{engine.names[rank]} has another model than {engine.names[0]}; give all the same"
            )
    source, alignment = _dataset(used, request, missing == "refuse")
    columns = _columns(used, request, source, missing, narrow) or range(len(source.feature_names))
    source = _in_levels(source, used, columns, missing, request.screen)
    assert source.partition is not None
    called = source.partition.names
    parties = Placement.evenly(engine, len(called), called)
    names, masked = used.stored.feature_names, asked.secure_sum
    X = SpreadRows(source.X, source.partition, columns, parties, names, missing, masked)
    return Loaded(source, X, {"alignment": alignment})


# ---- features -----------------------------------------------------------------------------------


def _columns(
    used: RowFile, request: Request, source: Dataset, missing: str, narrow: bool
) -> Sequence[int] | None:
    """Return the column of each of the model's features, where they differ.

    With `narrow` a model goes on without those that are missing, where that is asked for.
    """
    from vpem.errors import InputError, Setting, shorten
    from vpem.files.datasets import default_names
    from vpem.files.models import match_features

    asked = request.parties
    apart = asked.parties and asked.split == "features"
    names, wanted = source.feature_names, used.stored.feature_names
    there = [column for column, name in enumerate(wanted) if name in set(names)]
    lacking = [name for name in wanted if name not in set(names)]
    named = all(each != default_names(len(each)) for each in (names, wanted))
    if narrow and lacking and there and named:
        if missing == "refuse":
            raise InputError(
                f"the data lack features of the model: {shorten(map(repr, lacking))}; integrate "
                "them out with ",
                Setting("missing", "marginalize"),
            )
        used.marginal(there)
        request.screen.say(
            f"{len(lacking)} of the model's {len(wanted)} features are not in the data and are "
            f"{used.goes_without}"
        )
    return match_features(used.stored, names, ordered=not apart)


def _in_levels(
    source: Dataset,
    used: RowFile,
    columns: Sequence[int] | None,
    missing: str,
    screen: Screen,
) -> Dataset:
    """Return data whose codes stand for the levels of the model, found by their names.

    A level that the model has never seen tells nothing of components: it is a missing value, which
    is refused, or said and integrated out.
    """
    from vpem.errors import InputError, Setting
    from vpem.files.families import in_levels_of

    kinds = getattr(getattr(used.stored, "mixture", None), "kinds", None)
    if kinds is None:
        return source
    found, unseen = in_levels_of(source, kinds, columns)
    for sentence in unseen:
        what = f"{source.source}: {sentence}; "
        if missing == "refuse":
            raise InputError(f"{what}integrate them out with ", Setting("missing", "marginalize"))
        screen.warn(f"{what}they are taken as missing")
    return found


def _whose(file: Path, called: str, names: Sequence[str], wanted: Sequence[str]) -> str:
    """Return the party that a file is of: the one that it is called after, or that alone fits.

    A party fits that has all those columns of the file whose names several parties have.
    """
    from vpem.errors import InputError, shorten

    known = set(wanted)
    holders: dict[str, set[str]] = {}
    for full in wanted:
        for dot in (place for place, letter in enumerate(full) if letter == "."):
            holders.setdefault(full[dot + 1 :], set()).add(full[:dot])
    shared = [name for name in names if name not in known and len(holders.get(name, ())) > 1]
    if not shared or any(f"{called}.{name}" in known for name in names):
        return called
    fitting = set.intersection(*(holders[name] for name in shared))
    if len(fitting) == 1:
        return fitting.pop()
    ending = "".join(file.suffixes)
    listed = sorted(fitting or set.union(*(holders[name] for name in shared)))
    raise InputError(
        f"{file} has {shorten(map(repr, shared))}, which the model has of several parties; name "
        f"the file after the one that it is of: {shorten([one + ending for one in listed])}"
    )


def _by_their_party(names: Sequence[str], wanted: Sequence[str], party: str) -> tuple[str, ...]:
    """Call features as the model does, which puts the party before a name that several have."""
    known = set(wanted)
    of_party = (f"{party}.{name}" for name in names)
    return tuple(
        full if full in known and name not in known else name
        for name, full in zip(names, of_party, strict=True)
    )


# ---- data ---------------------------------------------------------------------------------------


def _dataset(used: RowFile, request: Request, complete: bool) -> tuple[Dataset, Report | None]:
    """Read the one dataset, or join those of parties; and how these were aligned."""
    from vpem.checks import available_memory
    from vpem.errors import InputError
    from vpem.files.datasets import default_names
    from vpem.files.families import Asked, settle_for_model
    from vpem.files.parties.opening import choose_parties

    files, asked, say = request.files, request.parties, request.screen.say
    weight = request.rows.sample_weight
    if not files and not request.where.own_users:
        raise InputError("vpem predict needs DATA: a dataset with the model's features")
    over_rows = asked.split == "rows"
    check_parties(files, asked, over_rows)
    kept = kept_of(used.stored)
    if not request.labels:
        kept = kept.changed(label_column=None)
    if asked.parties:
        refuse_given(request.rows, "is for one file; with --parties leave it out", *OF_ALL_DATA)
        parties = request.where.parties(files, asked.table, kept)
        tables = request.tables
        output = None if tables else request.output.output
        holders = place_parties(parties, output, False, request.where, tables)
        found = joined(parties, asked, over_rows, not complete, weight, holders, say, True)
        request.where.watch(found[0].n_samples, over_rows, request.screen)
        return found
    [file], [party] = files, choose_parties(files)
    wanted = used.stored.feature_names
    source = read_one(
        file,
        asked.table,
        request.where,
        None,
        kept=kept,
        dataset=request.rows.dataset,
        sample_weight=weight,
        memory_limit=available_memory(),
        columns=None if wanted == default_names(len(wanted)) else _names_of(wanted),
        keep_constant=True,
    )
    name = _whose(file, party.name, source.feature_names, wanted)
    source.feature_names = _by_their_party(source.feature_names, wanted, name)
    teller(say)(source, asked.table, kept)
    return settle_for_model(source, Asked.of(kept.family)), None


def _names_of(wanted: Sequence[str]) -> frozenset[str]:
    """Return what a model's features may be called in a file: by themselves, or after a party."""
    names = set(wanted)
    for full in wanted:
        names |= {full[dot + 1 :] for dot, letter in enumerate(full) if letter == "."}
    return frozenset(names)


def labels_of(request: Request, source: Dataset) -> Labels:
    """Read labels from the dataset, another place in its file, or a text file."""
    import h5py
    import numpy as np

    from vpem.errors import InputError, Setting
    from vpem.fits.contribution import read_labels

    where, asked = request.rows.labels, request.parties
    if where == "labels":
        if source.labels is None:
            who = "every party" if asked.split == "rows" else "one party that has all the rows"
            raise InputError(
                f"{request.source} has no labels; name their column with --label-column, or where "
                "else they are with --labels"
                if not asked.parties
                else f"{who} must have labels: in HDF5, or in a column that --label-column or a "
                "manifest names; or name a text file with --labels"
            )
        return np.asarray(source.labels)
    if asked.parties and asked.align not in (None, "none"):
        raise InputError(
            f"--labels {where} has a label a line, but parties are aligned by their ids; give "
            "labels to one party, or align them first"
        )
    if not h5py.is_hdf5(str(request.files[0])) and not Path(where).exists():
        raise InputError(
            f"{request.source} is a table, whose labels are a column: ",
            Setting("label_column", where),
        )
    return read_labels(where, request.files[0], source.n_samples)
