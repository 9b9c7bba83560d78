"""Parties and their files, each read by its holder only: docs/reference/parties.md.

A party's file is a dataset of its own: its features, its rows in an order of its own, its ids. Each
party decides of which families its features are; names of features and families, and numbers of
levels, all parties know.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, Labels, Matrix, check_finite, is_whole, row_blocks
from vpem.engines.placement import Placement, for_each
from vpem.errors import (
    FileError,
    InputError,
    MissingIdError,
    Setting,
    VpemError,
    VpemWarning,
    did_you_mean,
)
from vpem.files.data import read_data, settle_labels
from vpem.files.datasets import Dataset
from vpem.files.families import FamilyChoice, check_named, settle_families
from vpem.files.json_text import read_toml
from vpem.files.lakes import as_address
from vpem.files.levels import Recoding, in_order, recoded
from vpem.files.matrix import is_stored, select_columns
from vpem.files.opening import check_readable
from vpem.files.readers.frames import SomeLabels
from vpem.files.table_settings import LabelledTable, TableSettings, settings_in
from vpem.network.schema import Report
from vpem.terms.families.kinds import Kinds

ALIASES = {"columns": "features", "ids": "id_column", "labels": "label_column"}
"""Short keys of a manifest, and the settings of tables that they stand for."""

SETTINGS = tuple(LabelledTable.settings_by_name)
KEYS = ("name", "file", *ALIASES, *SETTINGS)

T = TypeVar("T")


@dataclass(frozen=True)
class Party:
    """An organisation that brings data of its own.

    ``file`` may be a pattern (``*``, ``?``, ``[...]``, ``**``) of several files, whose rows follow
    one another in the order of their names. It is looked for only where the party is held.
    """

    name: str  # in messages and in the partition
    file: str
    table: TableSettings = field(default_factory=TableSettings)  # of HDF5: features, in order
    kept: TableSettings | None = None  # of a model: how the data of its fit were read
    folder: str = ""  # from where a relative file is looked for
    more: tuple[str, ...] = ()  # other files, whose rows follow those of the first

    @property
    def path(self) -> Path:
        """The file, or the pattern."""
        return Path("" if as_address(self.file) else self.folder, self.file)

    def find(self) -> list[Path]:
        """Return the files that a pattern stands for, in order; or the one file, there or not."""
        others = [Path(self.folder, file) for file in self.more]
        if not glob.has_magic(self.file) or self.path.exists() or as_address(self.file):
            return [self.path, *others]
        files = glob.glob(self.file, root_dir=self.folder or None, recursive=True)
        return [*(Path(self.folder, file) for file in sorted(files)), *others]


Tell = Callable[[Dataset, TableSettings, TableSettings | None], None]
"""Is given what was read of a file, and how its party, and a model, say that it is to be read."""


@dataclass
class Holding:
    """What one party holds, read but for its values, which may still lie on disk."""

    party: Party
    feature_names: tuple[str, ...]
    parts: tuple[Matrix, ...]  # its rows, file by file
    ids: Labels | None  # (m,)
    labels: Labels | None  # (m,)
    sample_weight: NDArray[np.float64] | None = None  # (m,)
    kinds: Kinds | None = None  # None: all Gaussian
    labels_for_fit: SomeLabels | None = None  # known of some rows
    left_out: Mapping[str, str] = field(default_factory=dict)  # why columns are no features
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
        """Copy rows (M,), by default all, into ``out`` (M, d_n) in one pass; -1 becomes NaN."""
        chosen = np.arange(self.n_samples) if rows is None else rows
        places = np.argsort(chosen, kind="stable")
        ordered = chosen[places]
        out[places[: np.searchsorted(ordered, 0)]] = np.nan
        first = 0
        for part in self.parts:
            for start, values in row_blocks(part):
                begin = first + start
                low, high = np.searchsorted(ordered, [begin, begin + len(values)])
                out[places[low:high]] = values[ordered[low:high] - begin]
            first += len(part)

    def tells_rows_apart(self, name: str) -> bool:
        """Whether a table's feature has a whole number in every row, no two alike."""
        if name not in self.feature_names or any(map(is_stored, self.parts)):
            return False
        place = self.feature_names.index(name)
        column = np.concatenate([part[:][:, place] for part in self.parts])
        whole = is_whole(column) and bool(np.isfinite(column).all())
        return whole and len(np.unique(column)) == len(column)

    def close(self) -> None:
        for part in self.parts:
            if is_stored(part):
                part.close()


def choose_parties(
    paths: Sequence[str | os.PathLike[str]],
    table: TableSettings | None = None,
    kept: TableSettings | None = None,
) -> list[Party]:
    """Make parties of what a user names: one file each, or a manifest that ends in ``.toml``.

    A party is called as its file, without what follows the last dot (and without ``.gz``). Files
    are read by ``table`` where a manifest does not say otherwise, and by what a model has ``kept``.
    InputError if two parties have one name, or a manifest stands among other files.
    """
    files = [Path(path) for path in paths]
    table = table or TableSettings()
    manifests = [file for file in files if file.suffix.lower() == ".toml"]
    if manifests:
        if len(files) > 1:
            raise InputError(f"{manifests[0]} names all parties; give it without other files")
        return [
            replace(party, table=party.table.with_defaults_of(table), kept=kept)
            for party in read_manifest(manifests[0])
        ]
    parties = [Party(_stem(file), str(file), table, kept) for file in files]
    return _checked(parties, "name them in a manifest")


def read_manifest(path: str | os.PathLike[str]) -> list[Party]:
    """Read who the parties are from TOML, a table ``[[party]]`` each; files are beside it."""
    source = check_readable(path)
    content = read_toml(source)
    for key in content:
        if key != "party":
            raise InputError(f"{path}: unknown key {key!r}{did_you_mean(key, ['party'])}")
    tables = content.get("party")
    if not isinstance(tables, list) or not tables:
        raise InputError(f"{path} names no party; add a table [[party]] with file = ... for each")
    try:
        parties = [_party(table, number, source.parent) for number, table in enumerate(tables)]
        return _checked(parties, "names must differ")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _party(content: Report, number: int, folder: Path) -> Party:
    if not isinstance(content, dict):
        raise InputError(f"party {number} must be a table [[party]]")
    settings: Report = {}
    keys: dict[str, str] = {}
    for key, value in content.items():
        plain = key.replace("-", "_")
        if plain not in KEYS:
            raise InputError(f"party {number} has an unknown key {key!r}{did_you_mean(key, KEYS)}")
        name = ALIASES.get(plain, plain)
        if name in settings:
            raise InputError(f"party {number} says {name} twice; leave {key!r} out")
        settings[name], keys[name] = value, key
    for key in ("name", "file"):
        if key in settings and (not isinstance(settings[key], str) or not settings[key]):
            raise InputError(f"party {number}: {key} must be a string, got {settings[key]!r}")
    if "file" not in settings:
        raise InputError(f"party {number} has no file; add file = ...")
    file = settings.pop("file")
    name = settings.pop("name", _stem(Path(file)))
    return Party(name, file, settings_in(settings, f"party {number}", keys), folder=str(folder))


def _stem(file: Path) -> str:
    return Path(file.stem).stem if file.suffix.lower() == ".gz" else file.stem


def _checked(parties: list[Party], advice: str) -> list[Party]:
    counts = Counter(party.name for party in parties)
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    if count > 1:
        raise InputError(f"two parties are called {name!r}; {advice}")
    return parties


@dataclass(frozen=True)
class OpenParties:
    """Parties, of which those held here are open until the end of a block; who holds each."""

    parties: Sequence[Party]
    holdings: dict[int, Holding]  # by numbers of parties
    holders: Placement

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for holding in self.holdings.values():
            holding.close()

    def each(self, work: Callable[[int], T]) -> dict[int, T]:
        """Do some work for each party held here (`vpem.engines.placement.for_each`)."""
        return for_each(self.holders, range(len(self.parties)), work)

    def facts(self, of: Callable[[Holding], object]) -> list[Any]:
        """Return what is so of each party, in all processes alike."""
        every = self.holders.allgather({party: of(one) for party, one in self.holdings.items()})
        return [every[party] for party in range(len(self.parties))]


MARGINALIZED = ("integrate them out with ", Setting("missing", "marginalize"))


def open_parties(
    parties: Sequence[Party], holders: Placement | None = None, **options: Any
) -> OpenParties:
    """Open the files of the parties held here (`open_party`); all raise the same VpemError."""
    holders, every = holders or Placement.here(len(parties)), range(len(parties))
    holdings = for_each(holders, every, lambda party: open_party(parties[party], **options))
    return OpenParties(parties, holdings, holders)


def open_party(
    party: Party,
    keep_empty: bool = False,  # empty cells of tables are no `gaps`
    *,
    keep_constant: bool = False,  # others have more rows of these columns
    weights: str | None = None,  # column, or dataset of HDF5; None: no weights are read
    tell: Tell | None = None,
    on_disk: bool = False,
) -> Holding:
    """Open one party's files; with ``on_disk`` gaps of HDF5 are looked for too."""
    try:
        files = party.find()
        if not files:
            raise FileError(f"no file fits {party.path}")
        datasets: list[Dataset] = []
        for file in files:
            dataset = read_data(
                file,
                party.table,
                kept=party.kept,
                sample_weight=weights,
                weights_needed=False,
                keep_constant=keep_constant or len(files) > 1,
                on_disk=True,  # values of HDF5 stay there
                of_several=True,
            )
            if tell is not None:
                tell(dataset, party.table, party.kept)
            datasets.append(dataset)
        gaps = None
        for dataset in datasets:
            looked_at = on_disk or not is_stored(dataset.X)
            if gaps is None and looked_at and not keep_empty:
                try:
                    check_finite(dataset.X, dataset.feature_names, MARGINALIZED)
                except InputError as error:
                    place = f"party {party.name!r}: {dataset.source}: "
                    gaps = InputError(place, *error.parts)
        names = datasets[0].feature_names
        arranged = [_arranged(dataset, names, datasets[0].source) for dataset in datasets]
        parts, kinds = settle_party(party, datasets, arranged, names)
        ids = _of_files([dataset.ids for dataset in datasets], "ids", party)
        for_fit, together = [one.labels_for_fit for one in datasets], None
        known_of, difference = chained([None if one is None else one.values for one in for_fit])
        if difference:
            raise InputError("its files differ in what their labels for the fit are")
        if known_of is not None and for_fit[0] is not None:
            together = SomeLabels(known_of, for_fit[0].names)
        known = settle_labels(together, datasets, ids, party.table, party.folder)
    except VpemError as error:
        also: Sequence[str | Setting] = ()
        if isinstance(error, MissingIdError) and not keep_empty:
            # What else is to be said of files whose ids are not all there.
            table, drop = party.table, party.table.drop
            if table.id_column is not None and table.features is None and drop is None:
                drop = [table.id_column]
            without = replace(party, table=table.changed(id_column=None, drop=drop))
            with warnings.catch_warnings(), suppress(VpemError):
                warnings.simplefilter("ignore", VpemWarning)
                missing = open_party(without).gaps
                also = () if missing is None else ("; also, ", *missing.parts)
        raise type(error)(f"party {party.name!r}: ", *error.parts, *also) from None
    labels = [dataset.labels for dataset in datasets]
    noted = [None if weights is None else dataset.sample_weight for dataset in datasets]
    weights_of_rows = _of_files(noted, "weights", party)
    return Holding(
        party,
        tuple(names),
        parts,
        ids,
        _of_files(labels, "labels", party),
        None if weights_of_rows is None else weights_of_rows.astype(np.float64, copy=False),
        kinds,
        known,
        {name: why for dataset in datasets for name, why in dataset.left_out.items()},
        gaps,
    )


def _arranged(dataset: Dataset, names: Sequence[str], first: str) -> Matrix:
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
            f"{dataset.source} has the feature {extra!r}, which {first} has not; select the "
            "features with ",
            Setting("features"),
        )
    return select_columns(dataset.X, [where[name] for name in names])


def chained(columns: Sequence[Labels | None]) -> tuple[Labels | None, str]:
    """Return ids or labels one after another, if all have them; else None, and why if some do."""
    there = [column for column in columns if column is not None]
    if len({column.dtype.kind == "U" for column in there}) > 1:
        return None, "some are numbers, some strings"
    if len(there) < len(columns):
        return None, "some of its files have none" if there else ""
    return np.concatenate(there) if there else None, ""


def _of_files(columns: Sequence[Labels | None], what: str, party: Party) -> Labels | None:
    joined, difference = chained(columns)
    if difference:
        raise InputError(f"the {what} of party {party.name!r} cannot be put together: {difference}")
    return joined


def settle_party(
    party: Party, datasets: Sequence[Dataset], parts: Sequence[Matrix], names: Sequence[str]
) -> tuple[tuple[Matrix, ...], Kinds | None]:
    """Say which family each feature of a party has, from the values of its files; None: Gaussian.

    Levels get the same codes in all files, which may not keep different families.
    """
    choice = FamilyChoice.parse((party.kept or party.table).family)
    levels = [
        dataset.levels
        | {dataset.feature_names[j]: levels_of for j, levels_of in dataset.coded.items()}
        for dataset in datasets
    ]
    stored: list[tuple[str, ...] | None] = []
    for dataset in datasets:
        families = None
        if dataset.kinds is not None:
            by_name = dict(zip(dataset.feature_names, dataset.kinds.families, strict=True))
            families = tuple(by_name[name] for name in names)
        stored.append(families)
        if families != stored[0]:
            raise InputError(
                f"{datasets[0].source} and {dataset.source} keep different families of features; "
                "import them alike with 'vpem data import --family'"
            )
    together: dict[int, tuple[str, ...]] = {}
    for j, name in enumerate(names):
        known = [each.get(name) for each in levels]
        if any(known):
            if not all(known):
                lacking = datasets[known.index(None)].source
                raise InputError(
                    f"feature {name!r} of {lacking} holds numbers, but names in another file of "
                    "the party; write it alike in all"
                )
            together[j] = in_order({name for each in known if each for name in each})
    joined = [
        recoded(
            part, {j: Recoding.names(part_levels[names[j]], every) for j, every in together.items()}
        )
        for part, part_levels in zip(parts, levels, strict=True)
    ]
    kinds = None
    if stored[0] is not None:
        counts = tuple(len(together.get(j, ())) for j in range(len(names)))
        kinds = Kinds(stored[0], counts, together)
    if choice is None:
        return tuple(joined), kinds
    choice = choice.within(party.name)
    words = [choice.word(name) for name in names]
    source = datasets[0].source
    arrays, kinds = settle_families(
        joined, names, kinds, together, source, words, lenient=party.kept is not None
    )
    return tuple(arrays), kinds


def check_spoken_of(held: OpenParties, names: Sequence[str]) -> None:
    """Raise InputError, everywhere alike, where a party names a feature that no party has."""
    holdings, parties = held.holdings.values(), held.parties
    local = [name for one in holdings for name in one.feature_names]
    local += [f"{one.party.name}.{name}" for one in holdings for name in one.feature_names]

    def check(party: int) -> None:
        choice = None if parties[party].kept else FamilyChoice.parse(parties[party].table.family)
        check_named(choice, dict.fromkeys([*names, *local]), [one.name for one in parties])

    held.each(check)


def joined_kinds(held: OpenParties) -> Kinds | None:
    """Return the families of all features; None: Gaussian. Names of levels stay where they are."""

    def of(holding: Holding) -> list[object]:
        kinds = holding.kinds
        known = None if kinds is None else [list(kinds.families), list(kinds.n_levels)]
        return [len(holding.feature_names), known]

    facts = held.facts(of)
    if all(known is None for _, known in facts):
        return None
    families: list[str] = []
    counts: list[int] = []
    levels: dict[int, tuple[str, ...]] = {}
    for party, (width, families_and_counts) in enumerate(facts):
        first = len(families)
        kinds = held.holdings[party].kinds if party in held.holdings else None
        if kinds is not None:
            levels |= {first + j: names for j, names in kinds.levels.items()}
        if families_and_counts is None:
            families_and_counts = ["gaussian"] * width, [0] * width
        families += families_and_counts[0]
        counts += families_and_counts[1]
    return Kinds(tuple(families), tuple(counts), levels)


def stacked_kinds(
    held: OpenParties, names: Sequence[str]
) -> tuple[dict[int, dict[int, Recoding]], Kinds | None]:
    """Return the families of features whose rows parties hold, by which all go alike.

    All learn all names of levels. Also returned, by party here and feature: how its codes change.
    """
    every = held.facts(lambda holding: {} if holding.kinds is None else {
        name: [holding.kinds.families[j], list(holding.kinds.levels.get(j, ()))]
        for j, name in enumerate(holding.feature_names)
    })  # fmt: skip
    if not any(every):
        return {}, None
    families, levels, parties = [], {}, held.parties
    changes: dict[int, dict[int, Recoding]] = {party: {} for party in held.holdings}
    for j, name in enumerate(names):
        read = [kinds.get(name, ["gaussian", []]) for kinds in every]
        for party, (family, _) in enumerate(read):
            if family != read[0][0]:
                raise InputError(
                    f"party {parties[0].name!r} takes {name!r} as {read[0][0]}, party "
                    f"{parties[party].name!r} as {family}; say in both what it is with ",
                    Setting("family", f"{name}={family}"),
                )
        families.append(read[0][0])
        if read[0][0] == "categorical":
            levels[j] = in_order({level for _, party_levels in read for level in party_levels})
            for party in held.holdings:
                changes[party][j] = Recoding.names(read[party][1], levels[j])
    return changes, Kinds(tuple(families), (), levels)
