"""What the commands of a study show, and to whom, in sentences that people agree on.

`docs/explanation/what-leaves.md` says how much can be read from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Setup", "disclosures"]

LATER = "it can tell more than it seems to: see 'What leaves an agent' in the documentation"


@dataclass(frozen=True)
class Setup:
    """How the members of a study are linked."""

    server: str  # the member that adds up on a star
    topology: str
    relay: str | None  # passes sealed messages on
    result: str  # "all" or "shards"
    if_lost: str = "wait"  # or "without"
    timeout: float = 600.0  # seconds until a silent member is lost


def disclosures(setup: Setup, commands: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what each command, by the values of its settings, shows to whom."""
    told = [
        "Every message is sealed by TLS 1.3 between two members: its receiver alone can read it."
    ]
    if setup.relay is not None:
        told.append(
            f"The relay {setup.relay} passes sealed messages on: it learns who talks to whom, when "
            "and how much, and nothing of what is in them."
        )
    if setup.if_lost == "without":
        told.append(
            f"A member that is not heard of for {setup.timeout:g} s is left out, and the others go "
            f"on without it. Whoever sees totals (all members, {setup.server} among them) has one "
            "with what it added and one without, of nearly the same parameters: their difference "
            "is nearly what it added, masks or none."
        )
    for command, values in commands.items():
        head = f"{command}: " if len(commands) > 1 else ""
        told += [f"{head}{sentence}" for sentence in _of_command(setup, command, values)]
    return told


def _of_command(setup: Setup, command: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Return what one command shows."""
    of_rows = command in ("fedem", "impute", "saem") or values.get("split") == "rows"
    receiver = _receiver(setup, values)
    if not of_rows:
        yield from _before(values)
    if command in ("predict", "score"):
        yield from _of_use(of_rows)
        yield from _of_masks(values)
        return
    if command == "saem":
        yield from _of_individuals(receiver)
    elif command == "impute":
        yield from _of_entries(receiver, values.get("method") == "mixture")
    elif of_rows:
        yield from _of_rows(command, values, receiver)
    else:
        yield from _of_features(command, values, receiver)
    yield from _of_masks(values)
    codec = values.get("compress") or values.get("codec")
    if codec:
        yield f"What is sent in iterations is rounded by the codec {codec}; that hides little."
    result = values.get("method", "lowrank") if command == "impute" else command
    yield _at_the_end(setup, result, of_rows)


def _of_masks(values: Mapping[str, Any]) -> Iterator[str]:
    """What masks hide, where sums are masked."""
    if values.get("secure_sum"):
        yield (
            "Sums are masked: what a party sends for them looks random, and only totals over all "
            "parties can be read, by those who get them. What one party added could be found out "
            "by all the others together. The server must be trusted to follow the protocol. As for "
            f"a total, {LATER}."
        )


def _receiver(setup: Setup, values: Mapping[str, Any]) -> str:
    """Return who gets what a party sends in a sum."""
    if values.get("sum") == "tree":
        return "the party above it in the spanning tree (inner ones send sums of all below them)"
    if setup.topology == "star":
        return f"the server {setup.server}"
    return f"its neighbours on the graph ({setup.topology})"


def _before(values: Mapping[str, Any]) -> Iterator[str]:
    """What finding common rows, and joining features, shows."""
    yield "All members learn each party's name, names of features and number of rows."
    how = values.get("align")
    yield {
        None: "Nothing says how rows are matched (--align ids, hmac, psi, or none: they are the "
        "same, in one order, in all files): runs in which a party has ids are refused.",
        "none": "Rows are not matched: they must be the same, in one order, in all files (align "
        "none). All see checksums of ids, if there are ids, of this run alone.",
        "ids": "The first party that has data gets every id of every party; the others learn which "
        "of their rows all have (align ids).",
        "hmac": "The first party that has data learns which of its ids each other party has; the "
        "others learn which of their rows all have (align hmac).",
        "psi": "Parties learn which ids they have in common, one after the other, and nothing of "
        "other ids but their number (align psi).",
    }[how]


def _of_features(command: str, values: Mapping[str, Any], receiver: str) -> Iterator[str]:
    """What is shown where parties have features of the same rows."""
    hops = values.get("hops", 0)
    if hops in (0, "0"):
        yield "No value of a feature leaves its party (hops 0)."
    else:
        yield (
            f"VALUES OF FEATURES, of all rows, go once to parties up to {hops} hop(s) away, and "
            "to all between."
        )
        if values.get("hubs") == "likelihood":
            yield (
                "To choose hubs (hubs likelihood) they go to more of these than the root of the "
                "party's hub, and all members learn correlations of features, in each component "
                "of a first fit, of parties that could share a hub."
            )
    if values.get("method") == "grid":
        yield (
            f"Each party sends {receiver}, once, its own cluster of every row and the centres of "
            "its own clusters: means of its features."
        )
        return
    count = values.get("n_components", values.get("n_clusters"))
    some = f"K - 1 numbers, K = {count}"
    if command == "kmeans":
        what = "how its squared distances to the centres differ"
    else:
        what = "how likely its own features are in each component"
    masked = ", under masks" if values.get("secure_sum") else ""
    if values.get("init") in ("kmeans", "k-means++"):
        yield (
            f"To begin with, each party sends {receiver} squared distances of rows to some rows"
            f"{masked}."
        )
    later = masked or f"; {LATER}"
    yield f"In every iteration each party sends {receiver}, for every row, {what} ({some}){later}."
    if "squarem" in str(values.get("accelerate") or ""):
        yield "Between iterations it sends two numbers of how far its parameters have moved."
    yield (
        "All members learn the cluster of every row (its responsibilities), which is made of "
        "everybody's features."
    )


def _of_rows(command: str, values: Mapping[str, Any], receiver: str) -> Iterator[str]:
    """What is shown where parties have rows of the same features."""
    yield "All members learn each party's name, names of features and number of rows."
    if command == "fedem":
        yield f"To begin with, each party sends {receiver} its number of rows, mean and spread."
    part = "size and sum of its part of each cluster"
    if command != "kmeans":
        part = "weights, weighted sums of rows and of their squares, by component"
    if values.get("secure_sum"):
        yield (
            f"In every iteration each party sends {receiver} sums over its rows, under masks "
            f"({part})."
        )
        return
    yield (
        f"In every iteration each party sends {receiver} sums over its rows ({part}). Of many rows "
        "they tell little about one; of a single row they are that row."
    )
    if command == "kmeans":
        yield (
            f"To begin with, each party sends {receiver} sums over all its rows: of weights, and "
            "of each feature's values and squares."
        )
    yield (
        "Rows that become a start, or the place of a component without rows, are shown to all: at "
        f"least {values.get('n_components', values.get('n_clusters'))} of them."
    )


def _of_entries(receiver: str, of_mixture: bool) -> Iterator[str]:
    """What imputation shows."""
    if of_mixture:
        yield (
            "All members learn names of rows and columns, who has which, how many saw each entry, "
            "and the mean of each column; and the parameters of every fit."
        )
        yield (
            f"In every iteration each party sends {receiver} sums over its rows by component or, "
            "where it has columns, how likely its part of every row is in each component. With "
            "columns no value leaves its party; of rows those at which a fit starts are shown to "
            "all."
        )
        return
    yield (
        "All members learn names of rows and columns, how many entries each party saw, and the sum "
        "of what was seen at every entry: who alone saw an entry has as good as told it."
    )
    yield f"In every iteration each party sends {receiver} corrections of its own filled matrix."


def _of_individuals(receiver: str) -> Iterator[str]:
    """What SAEM shows."""
    yield "No row, time or covariate leaves its party."
    yield (
        f"In every iteration each party sends {receiver} the mean of statistics of its individuals "
        "as they were simulated; of a single individual it tells that one's latents."
    )


def _of_use(of_rows: bool) -> Iterator[str]:
    """What a model at work shows."""
    if of_rows:
        yield "Each party uses the model on its own rows; only counts and sums are told."
        return
    yield (
        "Each party sends, for every row, how likely its own features are in each component (K "
        f"numbers), once; {LATER}."
    )
    yield "All members learn the cluster of every row."


def _at_the_end(setup: Setup, command: str, of_rows: bool) -> str:
    """What members have in the end."""
    if setup.result == "shards" and not of_rows:
        return (
            "In the end each party has the parameters of its own features only, and all have the "
            "report (result shards)."
        )
    what = {
        "kmeans": "centres, and standard deviations of features",
        "lowrank": "the filled matrix and its factors",
        "mixture": "parameters, and its own rows or columns without gaps",
    }.get(command, "parameters, so means and covariances of everybody's features")
    return f"In the end every member has the model ({what}) and the report (result all)."
