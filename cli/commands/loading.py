"""Requests to the file of a fit, and the data it is used on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vpem.errors import InputError, Setting, brief, shorten
from vpem.records import Settings, changed, setting
from vpem.settings import FitSettings, WorkerSettings

from ..data import DataParties, check_parties, joined, kept_of, read_one, teller
from ..display import what_is_read
from ..outputs import LabelFile, ResultSettings
from ..session import EngineSettings, place_parties, where_of

if TYPE_CHECKING:
    from vpem.checks import Labels
    from vpem.files.datasets import Dataset
    from vpem.network.schema import Report

    from ..display import Screen
    from ..session import Where
    from .of_rows import RowFile


MOST_TIMES = 100_000


class RowSettings(Settings, heading="Data", kept=False):
    """Options about rows of data."""

    labels: str = setting(
        "labels",
        "Where the labels are: a dataset inside the HDF5 file, or a text file with one a line; "
        "a table has them in its --label-column.",
        file="read",
        local=True,
    )
    dataset: str | None = changed(WorkerSettings, "dataset", local=True)
    sample_weight: str | None = changed(WorkerSettings, "sample_weight")
    features: str | None = setting(
        None,
        "Features that profile, marginals or pairs draw, by name or number (from 0), with commas "
        "between. Default: those in which components differ most.",
    )
    missing: str | None = changed(
        FitSettings,
        "missing",
        None,
        help="Missing values (NaN): refuse, or marginalize, which integrates them out as missing "
        "at random. Default: as fitted.",
    )


class IndividualSettings(Settings, heading="Individuals", kept=False):
    """Options about individuals."""

    individual: list[str] | None = setting(
        None, "Fits of SAEM: this individual of DATA only. Several: repeat it."
    )
    times: str | None = setting(
        None,
        "Fits of SAEM: when to predict, 0:24:0.5 (from, to, step) or 0,1,2.5. Default: at the "
        "rows of DATA; without DATA 50 times over those of the fit.",
    )
    population: bool = setting(
        False, "Fits of SAEM: the curve of the mean latents, for individuals without rows."
    )
    latents: bool = setting(False, "Fits of SAEM: means and intervals of latents, not curves.")
    residuals: bool = setting(
        False,
        "Fits of SAEM: predictions of the rows of DATA and their residuals, weighted (IWRES, "
        "PWRES) and as prediction distribution errors (npde).",
    )
    id: str | None = setting(
        None, "Fits of SAEM: column of a CSV with the individual. Default: as fitted."
    )
    time: str | None = setting(None, "Fits of SAEM: column with the time. Default: as fitted.")
    value: str | None = setting(
        None, "Fits of SAEM: column with the measurement. Default: as fitted."
    )
    covariates: str | None = setting(
        None, "Fits of SAEM: dose=amt reads the column amt as the dose. Default: as fitted."
    )
    doses: str | None = setting(
        None, "Fits of SAEM: columns of lines that are doses: amt=AMT. Default: as fitted."
    )

    curve: str | None = setting(
        None, "Fits of SAEM to a curve of your own: FILE.py:NAME again, which is run; nothing in "
        "the file of a fit is run.",
    )  # fmt: skip

    @property
    def columns(self) -> dict[str, str | None]:
        return {"id": self.id, "time": self.time, "value": self.value}

    def grid(self) -> list[float] | None:
        from vpem.checks import read_float

        text = self.times
        if text is None:
            return None
        words = text.split(":" if ":" in text else ",")
        numbers = [n for n in (read_float(word, finite=True) for word in words) if n is not None]
        if len(numbers) == len(words) <= MOST_TIMES and ":" not in text:
            return numbers
        if len(numbers) == len(words) == 3 and numbers[2] > 0:
            first, last, step = numbers
            count = (last - first) / step * (1 + 1e-12) + 1e-9
            if 0 <= count < MOST_TIMES:
                return [first + place * step for place in range(int(count) + 1)]
        raise InputError(
            "--times must be from:to:step with a step above 0, such as 0:24:0.5, or numbers with "
            f"commas between, at most {MOST_TIMES}, got {brief(text)}"
        )

    def known_values(self, words: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """Values of covariates, numbers or words of a fit: ``dose=4.5,weight=70,Sex=Male``."""
        from vpem.checks import read_float

        text = self.covariates
        values: dict[str, float] = {}
        for word in [] if text is None else text.split(","):
            name, _, number = (part.strip() for part in word.partition("="))
            known = list(words.get(name, ()))
            value = read_float(number, finite=True)
            if known:
                value = float(known.index(number)) if number in known else None
            if value is None or not name or name in values:
                raise InputError(
                    "without DATA --covariates must be values with commas between, such as "
                    f"dose=4.5,weight=70, got {brief(text)}"
                )
            values[name] = value
            values |= {f"{name}={one}": float(at == value) for at, one in enumerate(known)}
        return values


def refuse_given(options: Settings, sentence: str, *without: str) -> None:
    """Refuse the first option that was given, by its name followed by the sentence."""
    for one in options.fields():
        if one.name not in without and getattr(options, one.name) != one.default:
            raise InputError(Setting(one.name), f" {sentence}")


class PredictedSettings(IndividualSettings, heading="Individuals", kept=False):
    """Options about individuals that are predicted, with data or without."""

    individual: list[str] | None = changed(
        IndividualSettings,
        "individual",
        help="Fits of SAEM: this individual only, of DATA or, without DATA, of the fit. Several: "
        "repeat it.",
    )
    covariates: str | None = changed(
        IndividualSettings,
        "covariates",
        help="Fits of SAEM: dose=amt reads the column amt as the dose (default: as fitted); "
        "without DATA, with --population, dose=4.5 is the dose.",
    )


@dataclass(frozen=True)
class UseRequest:
    """What a command does with a fit."""

    files: Sequence[Path]  # the data
    screen: Screen
    rows: RowSettings = field(default_factory=RowSettings)
    individuals: IndividualSettings = field(default_factory=IndividualSettings)
    output: ResultSettings = field(default_factory=ResultSettings)
    proba: bool = False  # responsibilities, too
    labelled: bool = False  # rows must have labels
    labels: bool = True  # are read, if there are any
    parties: DataParties = field(default_factory=DataParties)
    engine: EngineSettings = field(default_factory=EngineSettings)

    @cached_property
    def where(self) -> Where:
        return where_of(self.engine, self.screen)

    @cached_property
    def tables(self) -> LabelFile:
        """Tables of parties' rows, each party's in its process; none if one process has all."""
        out = self.output
        file = out.output if self.where.engine.apart and self.parties.parties else None
        return LabelFile(
            "output", file, self.where, True, force=out.force, quote_formulas=out.quote_formulas,
            digits=out.digits,
        )  # fmt: skip

    def leave_it_to_the_first(self) -> None:
        """Exit where another process prints for all, once it has this one's warnings."""
        self.where.tell_warnings(self.screen)
        if not self.where.speaks:
            raise typer.Exit

    @property
    def data(self) -> Path | None:
        if len(self.files) > 1:
            raise InputError(f"give one file of individuals, got {len(self.files)}")
        return self.files[0] if self.files else None

    @property
    def missing(self) -> str | None:
        """Treatment of missing values, as in rows that parties lack; None: as in the fit."""
        return "marginalize" if self.parties.missing_parties else self.rows.missing


@dataclass(frozen=True)
class Loaded:
    """Data that a model is used on."""

    source: Dataset
    X: Any  # (M, d): the model's features, in its order
    alignment: Report | None = None  # of several parties' rows

    def report(self) -> Report:
        """Return what JSON says of the data: alignment of rows, and what processes sent."""
        if are_spread(self.X):
            return {"alignment": self.alignment, "communication": self.X.communication}
        return {} if self.alignment is None else {"alignment": self.alignment}


def are_spread(X: Any) -> bool:
    """Whether several processes have features of the rows (`SpreadRows`)."""
    from vpem.fits.spread_use import SpreadRows

    return isinstance(X, SpreadRows)


def load(used: RowFile, request: UseRequest, missing: str, narrow: bool = False) -> Loaded:
    """Read data with a model's features; ``narrow`` drops those of the model that data lack."""
    from vpem.checks import check_finite
    from vpem.files.matrix import FileMatrix
    from vpem.terms.rows import check_missing

    if request.where.engine.apart:
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
    return Loaded(source, X, alignment)


def _spread(used: RowFile, request: UseRequest, missing: str, narrow: bool) -> Loaded:
    from vpem.engines.placement import Placement
    from vpem.fits.spread_use import SpreadRows

    parties, engine = request.parties, request.where.engine
    if not parties.parties:
        raise InputError(
            "--engine mpi is for parties, each read by a rank of its own; add --parties"
        )
    if parties.split == "rows":
        raise InputError(
            "a party that has all features of a row needs no other party: let each use the model "
            "on its own file, without --engine mpi"
        )
    marks = engine.allgather(f"{used.fingerprint} {missing}")
    for rank, mark in enumerate(marks):
        if mark != marks[0]:
            raise InputError(
                f"{engine.names[rank]} has another model than {engine.names[0]}; give all the "
                "same one"
            )
    source, alignment = _dataset(used, request, missing == "refuse")
    columns = _columns(used, request, source, missing, narrow) or range(len(source.feature_names))
    source = _in_levels(source, used, columns, missing, request.screen)
    assert source.partition is not None
    called = source.partition.names
    holders = Placement.evenly(engine, len(called), called)
    names, masked = used.stored.feature_names, parties.secure_sum
    X = SpreadRows(source.X, source.partition, columns, holders, names, missing, masked)
    return Loaded(source, X, alignment)


def _columns(
    used: RowFile, request: UseRequest, source: Dataset, missing: str, narrow: bool
) -> Sequence[int] | None:
    """Return the column of each of the model's features; None: they are in its order."""
    from vpem.files.datasets import default_names
    from vpem.files.models import match_features

    parties = request.parties
    apart = parties.parties and parties.split == "features"
    names, expected = source.feature_names, used.stored.feature_names
    there = [column for column, name in enumerate(expected) if name in set(names)]
    lacking = [name for name in expected if name not in set(names)]
    named = all(each != default_names(len(each)) for each in (names, expected))
    if narrow and lacking and there and named:
        if missing == "refuse":
            raise InputError(
                f"the data lack features of the model: {shorten(map(repr, lacking))}; integrate "
                "them out with ",
                Setting("missing", "marginalize"),
            )
        used.marginal(there)
        request.screen.say(
            f"{len(lacking)} of the model's {len(expected)} features are not in the data and are "
            f"{used.goes_without}"
        )
    return match_features(used.stored, names, ordered=not apart)


def _in_levels(
    source: Dataset, used: RowFile, columns: Sequence[int] | None, missing: str, screen: Screen
) -> Dataset:
    """Return data whose codes stand for the levels of the model, found by their names.

    A level that the model has never seen is a missing value: refused, or integrated out with a
    warning.
    """
    from vpem.files.families import in_levels_of

    kinds = getattr(getattr(used.stored, "mixture", None), "kinds", None)
    if kinds is None:
        return source
    dataset, unseen = in_levels_of(source, kinds, columns)
    for sentence in unseen:
        what = f"{source.source}: {sentence}; "
        if missing == "refuse":
            raise InputError(f"{what}integrate them out with ", Setting("missing", "marginalize"))
        screen.warn(f"{what}they are taken as missing")
    return dataset


def _whose(file: Path, called: str, names: Sequence[str], expected: Sequence[str]) -> str:
    """Return the party of a file: the one it is named after, or the only one that fits.

    A party fits if it has all columns of the file whose names several parties have.
    """
    known = set(expected)
    holders: dict[str, set[str]] = {}
    for full in expected:
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
        f"the file after its party: {shorten([one + ending for one in listed])}"
    )


def _dataset(used: RowFile, request: UseRequest, complete: bool) -> tuple[Dataset, Report | None]:
    """Read the one dataset, or join those of parties; with the report of their alignment."""
    from vpem.checks import available_memory
    from vpem.files.datasets import default_names
    from vpem.files.families import FamilyChoice, settle_for_model
    from vpem.files.parties.opening import choose_parties

    files, settings, say = request.files, request.parties, request.screen.say
    weight = request.rows.sample_weight
    if not files and not request.where.own_users:
        raise InputError("vpem predict needs DATA: a dataset with the model's features")
    over_rows = settings.split == "rows"
    check_parties(files, settings)
    model_table = kept_of(used.stored)
    if not request.labels:
        model_table = model_table.changed(label_column=None)
    if settings.parties:
        refuse_given(
            request.rows,
            "is for one file; with --parties leave it out",
            "labels",
            "features",
            "missing",
            "sample_weight",
        )
        parties = request.where.parties(files, settings.table, model_table)
        tables = request.tables
        output = None if tables else request.output.output
        holders = place_parties(parties, output, False, request.where, tables)
        joined_data = joined(parties, settings, over_rows, not complete, weight, holders, say, True)
        request.where.watch(joined_data[0].n_samples, over_rows, request.screen)
        return joined_data
    [file], [party] = files, choose_parties(files)
    expected = used.stored.feature_names
    names = list(expected)  # those of the model, with the names of parties before them or without
    for full in expected:
        names += [full[dot + 1 :] for dot, letter in enumerate(full) if letter == "."]
    source = read_one(
        file, settings.table, request.where, None, model_table=model_table,
        dataset=request.rows.dataset, sample_weight=weight, memory_limit=available_memory(),
        keep_constant=True,
        columns=None if expected == default_names(len(expected)) else frozenset(names),
    )  # fmt: skip
    name, known = _whose(file, party.name, source.feature_names, expected), set(expected)
    source.feature_names = tuple(  # a model puts the party before a name that several have
        f"{name}.{one}" if f"{name}.{one}" in known and one not in known else one
        for one in source.feature_names
    )
    teller(say)(source, settings.table, model_table)
    return settle_for_model(source, FamilyChoice.parse(model_table.family)), None


def labels_of(request: UseRequest, source: Dataset) -> Labels:
    """Read labels from the dataset, another place in its file, or a text file."""
    import h5py
    import numpy as np

    from vpem.fits.answer import read_labels

    where, parties = request.rows.labels, request.parties
    named = ", ".join(map(str, request.files))
    if where == "labels":
        if source.labels is None:
            who = "every party" if parties.split == "rows" else "one party that has all the rows"
            raise InputError(
                f"{named} has no labels; name their column with --label-column, or "
                "another place with --labels"
                if not parties.parties
                else f"{who} must have labels: in HDF5, or in a column that --label-column or a "
                "manifest names; or name a text file with --labels"
            )
        return np.asarray(source.labels)
    if parties.parties and parties.align not in (None, "none"):
        raise InputError(
            f"--labels {where} has one label a line, but parties are aligned by their ids; give "
            "labels to one party, or align them first"
        )
    if not h5py.is_hdf5(str(request.files[0])) and not Path(where).exists():
        raise InputError(
            f"{named} is a table, whose labels are a column: ",
            Setting("label_column", where),
        )
    return read_labels(where, request.files[0], source.n_samples)
