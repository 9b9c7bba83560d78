"""What a member of a study takes from it before its command is parsed further."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import STUDY, options_of, path_of, take_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vpem.engines.tls.members import Member
    from vpem.errors import VpemError
    from vpem.files.parties.opening import Party
    from vpem.files.studies.study import Study
    from vpem.files.table_settings import TableSettings

    from .agreed import Agreed


def load_study(context: Any, value: Path | None) -> Path | None:
    """Take the options of a command that a study says: a callback of --study."""
    if value is None or context.resilient_parsing:
        return value
    from vpem.errors import InputError
    from vpem.files.studies.study import read_study

    study = read_study(value)
    path = path_of(context)
    tables = options_of(study.options, value, context)
    if path not in tables:
        listed = ", ".join(f"vpem {' '.join(words)}" for words in tables) or "no command"
        raise InputError(
            f"the study {study.name} is of {listed}, not of vpem {' '.join(path)}; its organiser, "
            f"{study.organiser}, can add that by 'vpem study change {study.path.name}'"
        )
    known = {param.name for param in context.command.params}
    shards = study.result == "shards"
    if shards and "shards" not in known:
        raise InputError(
            f"the study {study.name} leaves each member its own part of what is found (result = "
            f"'shards'), and what 'vpem {' '.join(path)}' finds has no parts"
        )
    implied = {"engine": "tls", "parties": True, "timeout": str(study.timeout), "shards": shards}
    implied = {name: told for name, told in implied.items() if name in known and told}
    take_defaults(context, value, {**implied, **tables[path]}, last=True)
    context.meta[STUDY] = study
    return value


def check_data(context: Any) -> None:
    """Raise InputError where a member gives no data and has some, or has none and gives some."""
    from vpem.errors import InputError

    study = context.meta[STUDY]
    member = member_of(study, context.params.get("member"))
    given = context.params.get("data")
    if not any(one.holds for one in study.roster.members):
        raise InputError(
            f"{study.name}, edition {study.edition}, has no member with data; parties ask by 'vpem "
            f"party request {study.path.name}', and {study.organiser} approves them"
        )
    if member.holds and not given:
        raise InputError(
            f"{member.name} brings data to the study {study.name}; give its own file after the "
            "command"
        )
    if given and not member.holds:
        raise InputError(
            f"{member.name} brings no data to the study {study.name}, which it only serves; leave "
            f"out {given[0]}"
        )
    if not context.params.get("parties"):
        raise InputError("members of a study are its parties; leave out --no-parties")


def member_of(study: Study, name: str | None) -> Member:
    """Return the member that takes part here: of this name, or the one whose key is here."""
    from vpem.files.studies.identities import only_identity

    return study.member(only_identity(study.folder, name))


def own_party(
    name: str,
    files: Sequence[Path],
    table: TableSettings,
    kept: TableSettings | None = None,
    features: Sequence[str] = (),  # that the study names, if the table has no choice
) -> Party:
    """Return a member as the party that it is in a run."""
    from dataclasses import replace

    from vpem.errors import InputError
    from vpem.files.parties.opening import choose_parties

    given = choose_parties(files[:1], table, kept)
    if len(given) > 1:
        raise InputError(f"{files[0]} names {len(given)} parties, but {name} is one")
    own = replace(given[0], name=name, more=tuple(map(str, files[1:])))
    if features and own.table.features is None:
        own = replace(own, table=own.table.changed(features=list(features)))
    return own


def whose_options(error: VpemError, study: Study) -> None:
    """Note on an error who can say what it tells to try, where that is an option of a study."""
    from vpem.errors import InputError, Setting

    from .naming import in_options

    tried = [
        in_options(InputError(part))
        for part in error.parts
        if isinstance(part, Setting) and part.name in ("align", "missing") and part.value != "none"
    ]
    if tried:
        error.add_note(
            f"{study.organiser} alone can change what {study.name} says: vpem study change "
            f"{study.path.name} {' '.join(tried)}"
        )


INDIVIDUALS = "saem"
"""A command whose files are no tables of features, and are read by options of its own."""


def look_at(
    context: Any,
    study: Study,
    name: str,
    files: Sequence[Path],
    table: TableSettings,
    say: Callable[[str], None],
    features: Sequence[str] = (),  # that the study names
) -> tuple[tuple[str, ...], int]:
    """Open a member's files as all commands of a study will, and find what these will refuse.

    Returned are the names of its features, and its number of rows.
    """
    from vpem.errors import VpemError, VpemWarning

    from .agreed import agreed_before
    from .naming import speak_of
    from .reading import teller

    names, n_rows = dict[str, None](), 0
    agreed = agreed_before(context, study)
    others = [one for one in agreed if one.command != INDIVIDUALS]
    fits = [one for one in others if one.command not in ("predict", "score")]
    for place, one in enumerate(others or agreed):
        speak_of([*context.command.params, *one.params])
        brought = features if one.command != "impute" else ()
        with warnings.catch_warnings():
            if place:  # the files were warned of
                warnings.simplefilter("ignore", VpemWarning)
            try:
                party = own_party(name, files, table, features=brought)
                found, n_rows = _opened(one, study, party, teller(say) if place == 0 else None)
            except VpemError as error:
                whose_options(error, study)
                raise
        if one in fits or not fits:  # a model has the features of its fit
            names |= dict.fromkeys(found)
    speak_of(context.command.params)
    return tuple(names), n_rows


def _opened(one: Agreed, study: Study, party: Party, tell: Any) -> tuple[Sequence[str], int]:
    """Return names of features and number of rows that a command will find in a party's files."""
    from vpem.files.parties.alignment import check_ids
    from vpem.files.parties.joining import check_own_ids, refuse_gaps, refuse_shared
    from vpem.files.parties.observing import entries_of, read_observed
    from vpem.files.parties.opening import open_party

    from .reading import refuse_families

    weight, level = one.values.get("sample_weight"), one.values.get("align")
    if one.command == "impute":
        seen = read_observed(party, weight, tell)
        if level == "ids":
            kind = "none" if seen.rows is None else "strings"
            check_ids([{"kind": kind}], [party.name], level, apart=True)
        rows = seen.rows or [f"row {number}" for number in range(seen.shape[0])]
        entries_of(party, seen, rows, seen.columns)
        return seen.columns, seen.shape[0]
    over_features = one.values.get("split") == "features"
    # A model knows whether values may be missing.
    empty = one.values.get("missing") == "marginalize" or bool(one.values.get("missing_parties"))
    empty |= one.command in ("predict", "score", INDIVIDUALS)
    constant = not over_features or one.command in ("predict", "score")
    holding = open_party(
        party, empty, keep_constant=constant, weights=weight, tell=tell, on_disk=True
    )
    holding.close()
    names = holding.feature_names

    def look_at_ids() -> None:
        if over_features:
            check_own_ids([holding], level, apart=True)

    refuse_gaps([holding], look_at_ids)
    look_at_ids()
    if over_features and level is None:
        others = {who: own for who, own in study.features.items() if who != party.name}
        refuse_shared([party.name, *others], [names, *others.values()])
    if over_features and not one.values.get("missing_parties"):
        _check_rows(one, holding.n_samples, party.name)
    if one.command in ("kmeans", "fedem"):
        refuse_families(holding.kinds, names, str(party.path))
    return names, holding.n_samples


def _check_rows(one: Agreed, n_rows: int, name: str) -> None:
    """Raise InputError where a party has fewer rows than any fit of a command has components."""
    from vpem.errors import InputError
    from vpem.fits.settings import parse_numbers

    from .output import plural

    param = next((param for param in one.params if {"-k"} & {*param.opts}), None)
    asked = None if param is None else one.values.get(param.name)
    if param is None or asked is None or param.name not in ("n_components", "n_clusters"):
        return
    counts = parse_numbers(param.opts[-1], str(asked), least=1)
    if n_rows < min(counts):
        noun = param.name.removeprefix("n_")
        raise InputError(
            f"party {name!r} has {plural(n_rows, 'row')}, and {min(counts)} {noun} need at least "
            "as many rows that all parties have"
        )
