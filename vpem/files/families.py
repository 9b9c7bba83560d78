"""Which family of densities each feature has: as users say it, and as values show it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Matrix, row_blocks
from vpem.errors import InputError, Setting, VpemWarning, did_you_mean, shorten
from vpem.files.datasets import Dataset
from vpem.files.levels import Recoding, distinct, in_levels, named_numbers, recoded
from vpem.network.partition import Partition
from vpem.network.schema import Report
from vpem.records import words_in
from vpem.settings import FAMILY_NAMES
from vpem.terms.families.kinds import Kinds

AUTO = "auto"

LARGEST_COUNT = 1000
"""Larger whole numbers are taken for measurements: money, metres."""

LEAST_OF_COUNTS = 0.75
"""Variance of counts, in means: whole numbers that vary less are grades or years."""

OVERDISPERSED = 2.0
"""Variance in means from which counts are taken as negative binomial."""


@dataclass(frozen=True)
class FamilyChoice:
    """What a user says of the families of features."""

    rest: str = AUTO  # for all others; "auto": as their values show
    named: Mapping[str, str] = field(default_factory=dict)  # by feature or agent

    @classmethod
    def parse(cls, value: object, names: Sequence[str] | None = None) -> FamilyChoice | None:
        """Read "auto", "lab=t,sex=categorical", a mapping, or a list (one of ``names`` each)."""
        if value is None or isinstance(value, FamilyChoice):
            return value
        if isinstance(value, Mapping):
            said = [(str(name), family) for name, family in value.items()]
        else:
            said = []
            words = [str(word) for word in words_in("family", value)]
            if isinstance(value, str) or any("=" in word for word in words) or len(words) == 1:
                for word in words:
                    name, _, family = word.rpartition("=")
                    said.append((name.strip(), family.strip()))
            elif names is not None and len(words) == len(names):
                said = list(zip(names, words, strict=True))
            else:
                count = "" if names is None else f", of which there are {len(names)}"
                raise InputError(
                    Setting("family"),
                    f" is a list of {len(words)} families; give one for each feature{count}, or a "
                    "mapping of names",
                )
        rest = [family for name, family in said if not name]
        if len(rest) > 1:
            raise InputError(
                Setting("family"), f" names {shorten(map(repr, rest))} without saying of which "
                f"features; say NAME={rest[0]}",
            )  # fmt: skip
        named = [(name, family) for name, family in said if name]
        twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
        if twice:
            raise InputError(Setting("family"), f" names {twice[0]!r} twice; give it one family")
        for _, family in said:
            if family not in (*FAMILY_NAMES, AUTO):
                hint = did_you_mean(str(family), (*FAMILY_NAMES, AUTO))
                raise InputError(
                    Setting("family"),
                    f" is one of {', '.join(FAMILY_NAMES)} or auto, got {family!r}{hint}",
                )
        return cls(rest[0] if rest else AUTO, dict(named))

    def within(self, holder: str) -> FamilyChoice:
        """Return what is said of the features of one agent or party, as it calls them itself."""
        named = {
            name.removeprefix(f"{holder}."): family
            for name, family in sorted(self.named.items(), key=lambda one: "." in one[0])
        }
        return FamilyChoice(named.pop(holder, self.rest), named)

    def word(self, name: str, holder: str | None = None) -> str:
        """Return the family of a feature, or "auto"; its own word goes before its holder's."""
        return self.named.get(name, self.named.get(holder or "", self.rest))


def check_named(choice: FamilyChoice | None, *known: Iterable[str]) -> None:
    """Raise InputError where a name is that of nothing known: features, agents, parties."""
    names = [name for each in known for name in each]
    for name in {} if choice is None else choice.named:
        if name not in set(names):
            raise InputError(
                Setting("family"), f" names {name!r}, which is neither a feature nor an agent"
                f"{did_you_mean(name, names)}; there are {shorten(dict.fromkeys(names), 10)}",
            )  # fmt: skip


def in_levels_of(
    dataset: Dataset, kinds: Kinds, columns: Sequence[int] | None
) -> tuple[Dataset, list[str]]:
    """Return data whose codes stand for a model's levels, found by name, and what to say of others.

    Values are NaN where the model has not the level. ``columns`` are the features of the data that
    the model's are (`vpem.files.models.match_features`); None: they are the same.
    """
    place = {column: at for at, column in enumerate(dataset.own_features)}
    order = range(kinds.n_features) if columns is None else columns
    of_model = {column: j for j, column in enumerate(order)}
    expected = {
        at: kinds.levels[of_model[column]]
        for column, at in place.items()
        if column in of_model and of_model[column] in kinds.levels
    }
    known = {} if dataset.kinds is None else dataset.kinds.levels
    have = {place[column]: levels for column, levels in known.items() if column in place}
    X, unseen = in_levels(dataset.X, have, expected)
    called = {at: dataset.feature_names[column] for column, at in place.items()}
    warnings = [
        f"{count} value{'' if count == 1 else 's'} of {called[at]!r} "
        f"{'is a level' if count == 1 else 'are levels'} that the model has never seen "
        f"({', '.join(map(repr, some))})"
        for at, (count, some) in unseen.items()
    ]
    whole = sorted(order) == list(range(dataset.n_features))
    reordered = (
        kinds.take_features([of_model[j] for j in range(dataset.n_features)]) if whole else None
    )
    return replace(dataset, X=X, coded={}, kinds=reordered), warnings


def levels_for_model(
    dataset: Dataset, kinds: Kinds | None, columns: Sequence[int] | None, missing: str
) -> Dataset:
    """Return data whose codes stand for a model's levels, by `in_levels_of`.

    Other levels are missing values: refused, or taken with a warning.
    """
    dataset, unseen = (dataset, []) if kinds is None else in_levels_of(dataset, kinds, columns)
    for sentence in unseen:
        what = f"{dataset.source}: {sentence}; "
        if missing == "refuse":
            raise InputError(f"{what}integrate them out with ", Setting("missing", "marginalize"))
        warnings.warn(VpemWarning(f"{what}they are taken as missing"), stacklevel=5)
    return dataset


def words_for_model(kinds: Kinds | None, names: Sequence[str]) -> dict[str, str] | None:
    """Return what to say of data for a model: its features are categories, or numbers.

    Data may leave out what stands before a dot in one of ``names`` (d,), since it may be the party.
    """
    if kinds is None:
        return None
    words = ["categorical" if one == "categorical" else "gaussian" for one in kinds.families]
    said = {"": "gaussian"}
    for name, word in zip(names, words, strict=True):
        for short in (name[dot + 1 :] for dot, letter in enumerate(name) if letter == "."):
            said.setdefault(short, word)
    return said | dict(zip(names, words, strict=True))


def settle(
    dataset: Dataset, family: object, partition: Partition | None = None, for_model: bool = False
) -> Dataset:
    """Say which family each feature has, and make codes of numbers that are names.

    ``family`` is what the user says (`FamilyChoice.parse`). Without it, features keep the family
    that their file has, and all others are Gaussian. Agents of ``partition`` may be named. It may
    be what a model needs (`words_for_model`), of which the data may lack features.
    """
    choice = FamilyChoice.parse(family)
    if choice is None:
        return dataset
    names = dataset.feature_names
    for name in () if for_model else choice.named:
        if name in dataset.left_out:
            raise InputError(
                f"{dataset.source}: {name!r} cannot be {choice.named[name]}: it is no feature "
                f"({dataset.left_out[name]})"
            )
    if not for_model:
        check_named(choice, names, () if partition is None else partition.names)
    holders = len(names) * [""]
    if partition is not None:
        holders = [partition.names[agent] for agent in partition.agent_of]
    words = [choice.word(name, holder) for name, holder in zip(names, holders, strict=True)]
    [X], kinds = settle_families(
        (dataset.X,), names, dataset.kinds, dataset.coded, dataset.source, words, for_model
    )
    return replace(dataset, X=X, coded={}, kinds=kinds)


def settle_families(
    parts: Sequence[Matrix],
    names: Sequence[str],
    stored: Kinds | None,
    coded: Mapping[int, tuple[str, ...]],
    source: str,
    words: Sequence[str],
    lenient: bool = False,
) -> tuple[list[Matrix], Kinds | None]:
    """Return values and families that ``words`` say of features as read; None: all Gaussian.

    ``parts`` (m, d) are file by file, rows following one another, with text as codes: ``coded`` are
    the levels of features that are codes, ``stored`` what files say of families. If ``lenient`` a
    category may have as many levels as rows, as in a few rows for a model.
    """
    families = list(words)
    levels = dict(coded) if stored is None else dict(stored.levels)
    open_ = [j for j, word in enumerate(words) if word == AUTO and j not in levels]
    guessed = _guess(parts, open_) if stored is None and open_ else []
    if stored is not None:
        guessed = [stored.families[j] for j in open_]
    for j, family in zip(open_, guessed, strict=True):
        families[j] = family
    numbers = []
    for j, word in enumerate(families):
        if j in levels:
            if not lenient and word not in (AUTO, "categorical"):
                name, shown = names[j], shorten(map(repr, levels[j]), 3)
                raise InputError(
                    f"{source}: {name!r} holds names ({shown}), not numbers, and cannot "
                    f"be {word}; say ",
                    Setting("family", f"{name}=categorical"),
                    ", or leave it out with ",
                    Setting("drop", name),
                )
            families[j] = "categorical"
        elif word == "categorical" and not (stored and stored.families[j] == word):
            numbers.append(j)
    parts = list(parts)
    if numbers:
        values = distinct(parts, numbers, names, source, lenient)
        changes = {j: Recoding.places(column) for j, column in values.items()}
        levels |= {j: named_numbers(column.astype(parts[0].dtype)) for j, column in values.items()}
        parts = [recoded(part, changes) for part in parts]
    counts = [0] * len(families) if stored is None else list(stored.n_levels)
    counts = [n if word == "categorical" else 0 for n, word in zip(counts, families, strict=True)]
    kinds = Kinds(tuple(families), tuple(counts), levels)
    return parts, None if kinds.is_gaussian else kinds


def _guess(parts: Sequence[Matrix], columns: Sequence[int]) -> list[str]:
    """Return the family that values show: of yes or no, of counts, of numbers.

    Counts are whole numbers that begin at 0 or 1, are not large, and vary at least about as much as
    their mean; Poisson, unless they vary clearly more.
    """
    sums = np.zeros((3, len(columns)))
    least, most = np.full(len(columns), np.inf), np.full(len(columns), -np.inf)
    whole = np.ones(len(columns), dtype=bool)
    for _, part in (block for X in parts for block in row_blocks(X)):
        values: NDArray[np.float64] = part[:, columns].astype(np.float64)
        there = np.isfinite(values)
        whole &= ((values == np.floor(values)) | np.isnan(values)).all(axis=0)
        least = np.fmin(least, np.where(there, values, np.inf).min(axis=0))
        most = np.fmax(most, np.where(there, values, -np.inf).max(axis=0))
        values[~there] = 0
        with np.errstate(over="ignore"):
            sums += there.sum(axis=0), values.sum(axis=0), (values**2).sum(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = sums[1] / np.maximum(sums[0], 1)
        variance = sums[2] / np.maximum(sums[0], 1) - mean**2
    families = []
    for j in range(len(columns)):
        family = "gaussian"
        if whole[j] and least[j] == 0 and most[j] == 1:
            family = "bernoulli"
        elif (
            whole[j] and 0 <= least[j] <= 1 and most[j] <= LARGEST_COUNT
            and variance[j] >= LEAST_OF_COUNTS * mean[j] > 0
        ):  # fmt: skip
            many = variance[j] > OVERDISPERSED * mean[j]
            family = "negative-binomial" if many else "poisson"
        families.append(family)
    return families


def summarize_features(X: Matrix) -> dict[str, AnyArray]:
    """Return statistics (d,) of each feature of ``X`` (M, d), by two passes in float64.

    They are of its finite values: ``mean``, ``sd`` (with divisor n), ``min`` and ``max`` are nan
    where there are none, and ``constant`` is whether these are all equal. ``non_finite`` counts
    what was left out, ``missing`` what of it is NaN.
    """
    n_samples, n_features = X.shape
    used = np.zeros(n_features, dtype=np.intp)
    missing = np.zeros(n_features, dtype=np.intp)
    total, squares = np.zeros(n_features), np.zeros(n_features)
    low, high = np.full(n_features, np.inf), np.full(n_features, -np.inf)
    with np.errstate(all="ignore"):
        for _, part in row_blocks(X):
            finite = np.isfinite(part)
            used += finite.sum(axis=0)
            missing += np.isnan(part).sum(axis=0)
            total += np.where(finite, part, 0.0).sum(axis=0, dtype=np.float64)
            low = np.minimum(low, np.where(finite, part, np.inf).min(axis=0))
            high = np.maximum(high, np.where(finite, part, -np.inf).max(axis=0))
        mean = np.where(used > 0, total / used, np.nan)
        for _, part in row_blocks(X):
            away = np.where(np.isfinite(part), part - mean, 0.0)
            squares += (away * away).sum(axis=0)
        sd = np.where(used > 0, np.sqrt(squares / used), np.nan)
    low, high = np.where(used > 0, low, np.nan), np.where(used > 0, high, np.nan)
    return {
        "mean": mean, "sd": sd, "min": low, "max": high, "constant": low == high,
        "non_finite": n_samples - used, "missing": missing,
    }  # fmt: skip


def describe_dataset(dataset: Dataset) -> Report:
    """Return its size, labels, agents and graph, and what is known of each feature, for JSON."""
    parts, found = dataset.partition, summarize_features(dataset.X)
    names, agents, labels = dataset.feature_names, None, None
    families = ("gaussian",) * len(names) if dataset.kinds is None else dataset.kinds.families
    if parts is not None:
        agents = [
            {"name": name, "features": [names[j] for j in part]}
            for name, part in zip(parts.names, parts.features, strict=True)
        ]
    if dataset.labels is not None:
        counted = np.unique(dataset.labels, return_counts=True)
        pairs = zip(*(one.tolist() for one in counted), strict=True)
        labels = [{"label": value, "count": count} for value, count in pairs]
    statistics = {name: column.tolist() for name, column in found.items()}
    return {
        "path": dataset.source,
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "dtype": str(dataset.X.dtype),
        "bytes": dataset.X.nbytes,
        "has_ids": dataset.ids is not None,
        "n_agents": None if parts is None else parts.n_agents,
        "agents": agents,
        "labels": labels,
        "edges": None if dataset.edges is None else dataset.edges.tolist(),
        "n_non_finite": int(found["non_finite"].sum()),
        "n_missing": int(found["missing"].sum()),
        "n_constant": int(found["constant"].sum()),
        "features": [
            {
                "name": name,
                "family": families[j],
                "levels": list(dataset.levels.get(name, ())) or None,
                "agent": None if parts is None else parts.names[parts.agent_of[j]],
                **{key: column[j] for key, column in statistics.items()},
            }
            for j, name in enumerate(names)
        ],
        "left_out": dataset.left_out,
    }
