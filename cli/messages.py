"""`vpem party log`: what a party sent and received, summed up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json
from .output import print_json, show, size
from .roles import READ
from .tables import table

if TYPE_CHECKING:
    from vpem.files.studies.message_log import Logged
    from vpem.network.schema import Report


def log(
    files: Annotated[
        list[Path],
        READ,
        typer.Argument(
            help="Logs of one member, such as lab-heart.log; of several the oldest first."
        ),
    ],
    last: Annotated[bool, typer.Option("--last", help="Only the last run.")] = False,
    json: Json = False,
) -> None:
    """Sum up the messages of a member of a study, by kind and peer.

    A member notes every message of a study in a log beside it, in a line of JSON: when, sent or
    received, whom to or from, what it was about (the kinds of docs/reference/communication.md),
    payload bytes, and their SHA-256, which is the same at both ends.

    Example: vpem party log lab-heart.log
    """
    from vpem.files.studies.message_log import read_log

    found = read_log(files, last)
    report = _report(found)
    if json:
        print_json(report)
        return
    runs = [f"{run['time']} {run['command']}" for run in report["runs"]]
    facts = [
        ("runs", f"{len(runs)}, the last {runs[-1]}" if runs else "none"),
        ("messages", f"{report['messages']:,}, {size(report['bytes'])}"),
        ("first, last", f"{found.first or '-'}, {found.last or '-'}"),
    ]
    if found.cut:
        facts.append(("cut short", f"{found.cut} (the machine went down meanwhile)"))
    heads = ("kind", "peer", "sent", "bytes sent", "received", "bytes received")
    rows = [[f"{row[key]:,}" if key in NUMBERS else row[key] for key in KEYS]
            for row in report["totals"]]  # fmt: skip
    show(table(facts, "", ""), table(rows, *heads, right=heads[2:]))


KEYS = ("kind", "peer", "sent", "bytes_sent", "received", "bytes_received")
NUMBERS = KEYS[2:]


def _report(found: Logged) -> Report:
    """Return what logs come to, in plain values."""
    rows = [
        {"kind": kind, "peer": peer, **vars(totals)}
        for (kind, peer), totals in found.totals.items()
    ]
    return {
        "runs": [{"command": None, **run} for run in found.runs],
        "messages": sum(row["sent"] + row["received"] for row in rows),
        "bytes": sum(row["bytes_sent"] + row["bytes_received"] for row in rows),
        "first": found.first,
        "last": found.last,
        "cut": found.cut,
        "totals": rows,
    }
