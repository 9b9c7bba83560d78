"""What members of a study must run with alike: the command, and options that are nobody's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .naming import name_of
from .reading import STDIN
from .sources import in_files, source_of

OWN = ("data", "memory_limit", "proba")
"""Parameters of commands that are each member's own; of settings `vpem.records.About.local` says
so, and what is written is."""

IF_ANY = "if any"
"""What stands for --resume-if-any, which any member may give: all go on then, or begin."""

NOT_THERE = "nothing"


def terms_of(context: Any) -> dict[str, list[str]]:
    """Return what others must have alike, by names of options: values, and where they are from.

    Of a file that is read its content counts, not its name; of a checkpoint whether there is one.
    """
    known = getattr(context.command.callback, "settings", {})
    roles = context.command.roles()
    found = {}
    for param in in_files(context):
        about, role = known.get(param.name), roles.get(param.name)
        if param.name in OWN or (about is not None and about.local):
            continue
        value = context.params.get(param.name)
        if role is not None and role.writes:
            if param.name != "checkpoint":
                continue
            value = None if value is None else "given"
        elif role is not None and value is not None:
            value = f"a file with SHA-256 {digest_of(value)[:16]}"
        if param.name == "resume" and context.params.get("resume_if_any"):
            value = IF_ANY
        if param.name != "resume_if_any":
            kind, place = source_of(context, param)
            found[name_of(param)] = [_word(value), Path(place).name if place else kind]
    return found


def _word(value: Any) -> str:
    return NOT_THERE if value is None or value is False else str(value)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    import hashlib

    from vpem.files.opening import open_regular

    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def introduced(found: Any, name: str) -> Any:
    """Return what a member says of itself; InputError unless `is_introduction` holds of it."""
    from vpem.errors import InputError

    if not is_introduction(found):
        raise InputError(f"{name} has sent no introduction; are all of the same version?")
    return found


def check_alike(names: list[str], everyones: list[Any], study: str) -> None:
    """Raise InputError where members run different things.

    Of each, ``everyones`` has the words of its command, its `terms_of`, which outputs it wants, and
    how few parties with data its policy allows.
    """
    from vpem.errors import InputError

    command, terms, *_ = everyones[0]
    for name, (theirs, others, *_) in zip(names[1:], everyones[1:], strict=True):
        if theirs != command:
            raise InputError(
                f"{names[0]} runs 'vpem {command}' and {name} 'vpem {theirs:.40}'; all members of "
                f"{study} must run the same command"
            )
        for option in sorted({*terms, *others} - ({"--resume"} if goes_on(everyones) else set())):
            one, two = (told.get(option, [NOT_THERE, "default"]) for told in (terms, others))
            if one[0] != two[0]:
                raise InputError(
                    f"{option} is set differently: {names[0]} has {one[0]:.300} ({one[1]:.60}), "
                    f"{name} has {two[0]:.300} ({two[1]:.60}); all members of {study} "
                    "must have the same"
                )


def goes_on(everyones: list[Any]) -> bool:
    """Whether all go on from what they have kept, if they have: one came back, or may have."""
    return any(terms.get("--resume", [None])[0] == IF_ANY for _, terms, *_ in everyones)


def is_introduction(found: Any) -> bool:
    """Whether a value may be an introduction, with its signature.

    It is a command, what all must have alike, outputs, fewest parties, and random bytes.
    """
    return (
        isinstance(found, list)
        and len(found) == 6
        and isinstance(found[0], str)
        and isinstance(found[1], dict)
        and all(isinstance(told, list) and len(told) == 2 for told in found[1].values())
        and all(isinstance(word, str) for key, told in found[1].items() for word in (key, *told))
        and isinstance(found[2], list)
        and all(isinstance(name, str) for name in found[2])
        and type(found[3]) is int
        and all(isinstance(part, bytes) for part in found[4:])
    )


def check_own(options: dict[str, Any]) -> None:
    """Raise what this member alone can mend, before others hear of it and end."""
    from glob import has_magic

    from vpem._core.threads import thread_count
    from vpem.checks import check_number
    from vpem.errors import InputError
    from vpem.files.opening import check_readable
    from vpem.files.temporaries import check_ending

    from .roles import writes

    check_number("--timeout", float(options["timeout"]), least=0.0, above=True)
    thread_count(options.get("n_threads"))
    for file in options.get("data") or ():
        if str(file) == STDIN:
            raise InputError(
                "standard input (-) can be read once; a member of a study names a file"
            )
        if not has_magic(str(file)):
            check_readable(file)
    if (labels := options.get("labels_file")) is not None:
        check_ending(labels, "results")
        writes("--labels", labels)
