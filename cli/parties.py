"""Options and choices of commands whose data are in files of several parties."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .roles import READ, reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.files.datasets import Dataset

    from .engine import Ranks, Simulator
    from .output import Screen

__all__ = [
    "Align",
    "AlignKey",
    "Asked",
    "DataFiles",
    "MissingParties",
    "PartiesFlag",
    "joined_by",
    "read_data",
]

DataFiles = Annotated[
    list[Path],
    READ,
    typer.Argument(
        help="Dataset (HDF5; see 'vpem data import'); with --parties a file each, or a manifest.",
    ),
]
PartiesFlag = Annotated[
    bool,
    typer.Option(
        "--parties",
        help="Each file is one party's (HDF5, CSV, Parquet), or one .toml file names them all "
        "(docs/parties.md). The parties are the agents; with --split rows the workers.",
    ),
]
Align = Annotated[
    str | None,
    typer.Option(
        help="How parties find the rows that all have: none (aligned already; checked), ids, "
        "hmac (keyed hashes of ids), psi (private set intersection). Default: none.",
    ),
]
AlignKey = Annotated[
    Path | None,
    READ,
    typer.Option(help="With --align hmac: file of the key that all parties share."),
]
MissingParties = Annotated[
    bool,
    typer.Option(
        "--missing-parties",
        help="Keep rows that some parties lack, and integrate out what is missing (ids and hmac).",
    ),
]


@dataclass
class Asked:
    """What a user asked about parties."""

    parties: bool
    align: str | None
    key: Path | None
    keep_missing: bool


def read_data(
    files: Sequence[Path],
    asked: Asked,
    over_rows: bool,
    missing: bool,
    dataset: str | None,
    for_one: dict[str, Any],
    limit: int | None,
    output: Path | None,
    screen: Screen,
    run_on: Simulator | Ranks,
) -> tuple[Dataset, dict[str, Any] | None]:
    """Read the one dataset, or join those of the parties.

    Parameters
    ----------
    files : sequence of path
        What the user named.
    asked : Asked
        What the user asked about parties.
    over_rows : bool
        Whether parties hold different rows, not features.
    missing : bool
        Whether values may be missing.
    dataset : str, optional
        Path inside the one file.
    for_one : dict of str to object
        Options that parties have no use for, by their names.
    limit : int, optional
        Memory for one dataset, bytes.
    output : path, optional
        The model that will be written.
    screen : Screen
        Where what became of the rows is told.
    run_on : Simulator or Ranks
        Where the command runs.

    Returns
    -------
    dataset : Dataset
        With a partition or workers if there are parties.
    alignment : dict or None
        What the report tells of them.
    """
    from vpem.errors import InputError
    from vpem.files.datasets import read_dataset
    from vpem.files.parties.opening import choose_parties, join_parties, stack_parties

    from .engine import Ranks

    _check_options(files, asked, over_rows)
    if not asked.parties:
        return read_dataset(files[0], dataset, memory_limit=limit), None
    for name, value in {**for_one, "dataset": dataset}.items():
        if value is not None:
            raise InputError(f"--{name} is for one file; with --parties leave it out")
    parties = choose_parties(files)
    if not isinstance(run_on, Ranks):
        for party in parties:
            reads(f"party {party.name!r}", *party.find())
    if over_rows and isinstance(run_on, Ranks):
        return run_on.share_rows(parties, output, keep_empty=missing), None
    if over_rows:
        return stack_parties(parties, keep_empty=missing), None
    how: dict[str, Any] = {
        "level": asked.align or "none",
        "key": asked.key,
        "keep_missing": asked.keep_missing,
        "keep_empty": missing,
    }
    joined: Dataset
    if isinstance(run_on, Ranks):
        joined, found = run_on.share_parties(parties, output, **how)
    else:
        joined, found = join_parties(parties, **how)
    alignment = found.describe()
    for line in told(alignment):
        screen.say(line)
    return joined, alignment


def _check_options(files: Sequence[Path], asked: Asked, over_rows: bool) -> None:
    """Raise InputError where options about parties do not go together."""
    from vpem.errors import InputError, check_choice
    from vpem.files.parties.alignment import LEVELS

    used = {
        "--align": asked.align,
        "--align-key": asked.key,
        "--missing-parties": asked.keep_missing,
    }
    for option, value in used.items():
        if value and not asked.parties:
            raise InputError(f"{option} is for data of several parties; add --parties")
        if value and over_rows:
            raise InputError(
                f"{option} is for parties that hold features of the same rows; with --split rows "
                "leave it out"
            )
    if not asked.parties:
        if len(files) > 1:
            raise InputError(
                f"one dataset is fitted at a time, got {len(files)} files; add --parties if each "
                "is one party's"
            )
        if files[0].suffix.lower() == ".toml":
            raise InputError(f"{files[0]} is no dataset; add --parties if it names parties")
    if asked.align is not None:
        check_choice("--align", asked.align, LEVELS)
    if asked.key is not None and asked.align != "hmac":
        raise InputError("--align-key is for --align hmac; leave it out, or add that")
    if asked.align == "hmac" and asked.key is None:
        raise InputError(
            "--align hmac needs --align-key FILE, with a key that all parties share, as "
            "'openssl rand -hex 32' makes"
        )


def told(alignment: dict[str, Any]) -> list[str]:
    """Return the lines of a table of what became of each party's rows."""
    outer = alignment["join"] == "outer"
    heads = ("party", "rows", "absent" if outer else "lost")
    cells = [
        (party["name"], str(party["rows"]), str(party["absent" if outer else "lost"]))
        for party in alignment["parties"]
    ]
    wide = [max(len(row[column]) for row in [heads, *cells]) for column in range(3)]
    lines = [
        f"{name:<{wide[0]}}  {rows:>{wide[1]}}  {gone:>{wide[2]}}"
        for name, rows, gone in [heads, *cells]
    ]
    complete = f", {alignment['complete']} of them complete" if outer else ""
    lines.append(f"{alignment['rows']} rows together{complete} (align {alignment['level']})")
    return lines


def joined_by(report: dict[str, Any]) -> str | None:
    """Return in a line how the rows of parties were joined; a file may hold anything there."""
    from .output import plural

    try:
        alignment = report["alignment"]
        outer = alignment["join"] == "outer"
        lost = [
            f"{party['name']} {'lacks' if outer else 'lost'} "
            f"{int(party['absent' if outer else 'lost'])} of "
            f"{int(alignment['rows'] if outer else party['rows'])}"
            for party in alignment["parties"]
        ]
        rows = plural(int(alignment["rows"]), "row")
        return f"{rows} aligned by {alignment['level']}: {', '.join(lost)}"
    except (KeyError, TypeError, ValueError):
        return None
