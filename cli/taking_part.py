"""What a member of a study takes from it before its command is parsed further."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import STUDY, options_of, path_of, take_defaults

if TYPE_CHECKING:
    from vpem.engines.tls.members import Member
    from vpem.files.studies.study import Study

__all__ = ["check_data", "load_study", "member_of"]


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
