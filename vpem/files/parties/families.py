"""Families of parties' features: each decides for its own; of names and numbers all know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vpem.engines.each import for_each
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting
from vpem.files.datasets import Dataset
from vpem.files.families import Asked, AsRead, check_named
from vpem.files.levels import Recoding, in_order, recoded
from vpem.files.parties.manifest import Party
from vpem.terms.families.kinds import Kinds

if TYPE_CHECKING:
    from vpem.files.parties.opening import Holding


def settle_party(
    party: Party, datasets: Sequence[Dataset], parts: Sequence[Any], names: Sequence[str]
) -> tuple[tuple[Any, ...], Kinds | None]:
    """Say which family each feature of a party has, from the values of its files; None: Gaussian.

    Levels get the same codes in all files, which may not keep different families.
    """
    asked = Asked.of((party.kept or party.table).family)
    levels = [_levels_of(dataset) for dataset in datasets]
    stored = [_families_of(dataset, names) for dataset in datasets]
    for dataset, families in zip(datasets, stored, strict=True):
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
        recoded(part, {j: Recoding.names(own[names[j]], every) for j, every in together.items()})
        for part, own in zip(parts, levels, strict=True)
    ]
    kinds = None
    if stored[0] is not None:
        counts = tuple(len(together.get(j, ())) for j in range(len(names)))
        kinds = Kinds(stored[0], counts, together)
    if asked is None:
        return tuple(joined), kinds
    asked = asked.within(party.name)
    words = [asked.word(name) for name in names]
    source = datasets[0].source
    found, kinds = AsRead(joined, names, kinds, together, source).settled(
        words, lenient=party.kept is not None
    )
    return tuple(found), kinds


def _levels_of(dataset: Dataset) -> dict[str, tuple[str, ...]]:
    """Return the names that columns of a file are codes of."""
    return dataset.levels | {dataset.feature_names[j]: own for j, own in dataset.coded.items()}


def _families_of(dataset: Dataset, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the families that a file keeps of some features; None: it keeps none."""
    if dataset.kinds is None:
        return None
    kept = dict(zip(dataset.feature_names, dataset.kinds.families, strict=True))
    return tuple(kept[name] for name in names)


def check_spoken_of(
    parties: Sequence[Party],
    held: Mapping[int, Holding],
    names: Sequence[str],
    holders: Placement,
) -> None:
    """Raise InputError, everywhere alike, where a party speaks of a feature that nobody has."""
    own = [name for one in held.values() for name in one.feature_names]
    own += [f"{one.party.name}.{name}" for one in held.values() for name in one.feature_names]

    def check(party: int) -> None:
        asked = None if parties[party].kept else Asked.of(parties[party].table.family)
        check_named(asked, dict.fromkeys([*names, *own]), [one.name for one in parties])

    for_each(holders, range(len(parties)), check)


def joined_kinds(
    parties: Sequence[Party], held: Mapping[int, Holding], holders: Placement
) -> Kinds | None:
    """Return the families of all parties' features, side by side; None: all are Gaussian.

    Every process learns the names of families and how many levels categories have; names of levels
    stay where they are.
    """
    facts: Any = holders.allgather(
        {
            party: [len(own.feature_names), None if own.kinds is None else _plain(own.kinds)]
            for party, own in held.items()
        }
    )
    if all(facts[party][1] is None for party in range(len(parties))):
        return None
    families: list[str] = []
    counts: list[int] = []
    levels: dict[int, tuple[str, ...]] = {}
    for party in range(len(parties)):
        width, told = facts[party]
        first = len(families)
        own = held[party].kinds if party in held else None
        if own is not None:
            levels |= {first + j: names for j, names in own.levels.items()}
        families += ["gaussian"] * width if told is None else told[0]
        counts += [0] * width if told is None else told[1]
    return Kinds(tuple(families), tuple(counts), levels)


def _plain(kinds: Kinds) -> list[Any]:
    return [list(kinds.families), list(kinds.n_levels)]


def stacked_kinds(
    parties: Sequence[Party],
    held: Mapping[int, Holding],
    names: Sequence[str],
    holders: Placement,
) -> tuple[dict[int, dict[int, Recoding]], Kinds | None]:
    """Return the families of features whose rows parties hold, by which all go alike.

    All learn the names of the levels that anybody has. Also returned, by party held here and
    feature: what becomes of its codes.
    """
    facts: Any = holders.allgather(
        {
            party: {
                name: [own.kinds.families[j], list(own.kinds.levels.get(j, ()))]
                for j, name in enumerate(own.feature_names)
            }
            if own.kinds is not None else {}
            for party, own in held.items()
        }
    )  # fmt: skip
    every = [facts[party] for party in range(len(parties))]
    if not any(every):
        return {}, None
    families, levels = [], {}
    changes: dict[int, dict[int, Recoding]] = {party: {} for party in held}
    for j, name in enumerate(names):
        told = [own.get(name, ["gaussian", []]) for own in every]
        for party, (family, _) in enumerate(told):
            if family != told[0][0]:
                raise InputError(
                    f"party {parties[0].name!r} takes {name!r} as {told[0][0]}, party "
                    f"{parties[party].name!r} as {family}; say in both what it is with ",
                    Setting("family", f"{name}={family}"),
                )
        families.append(told[0][0])
        if told[0][0] == "categorical":
            levels[j] = in_order({level for _, own in told for level in own})
            for party in held:
                changes[party][j] = Recoding.names(told[party][1], levels[j])
    return changes, Kinds(tuple(families), (), levels)
