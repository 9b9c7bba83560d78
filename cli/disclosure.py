"""What the commands of a study show, and to whom, in sentences that people agree on.

`docs/explanation/what-leaves.md` says how much can be read from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vpem.pictures.contents import promised
from vpem.sums.noisy import noise_by

from .where import LEAST_ROWS

LATER = "it can tell more than it seems to: see 'What leaves an agent' in the documentation"


@dataclass(frozen=True)
class Setup:
    """How the members of a study are linked."""

    server: str  # the first member, which adds up on a star
    topology: str
    relay: str | None  # passes sealed messages on
    result: str  # "all" or "shards"
    if_lost: str = "wait"  # or "without"
    timeout: float = 600.0  # seconds until a silent member is lost
    holds: bool = False  # whether the first member brings data

    @property
    def first(self) -> str:
        """The first member, as sentences call it."""
        return f"the {'server' if self.topology == 'star' else 'first member'} {self.server}"


class Told(NamedTuple):
    """A sentence of what is shown, the kinds of its messages, as logs call them, and their way.

    They go to "all" by the first member, to the "first", to who adds up ("sum"), to who has others'
    features ("joining"), to the "first party", or from that to other "parties".
    """

    text: str
    kinds: str = ""
    to: str = "all"


def disclosures(setup: Setup, commands: Mapping[str, Mapping[str, Any]]) -> list[Told]:
    """Return what each command, by the values of its settings, shows to whom."""
    told = [
        Told("Every message is sealed by TLS 1.3 between two members: its receiver alone reads it.")
    ]
    if setup.relay is not None:
        told.append(Told(
            f"The relay {setup.relay} passes sealed messages on: it learns who talks to whom, when "
            "and how much, and nothing of what is in them."
        ))  # fmt: skip
    also = "with align ids, hmac or psi also to the first party, past it or sealed through it"
    if setup.topology != "star":
        also = "neighbours on the graph also to each other"
    to = f"Parties talk to {setup.first}, by which all that all members learn goes"
    told.append(Told(f"{to}." if setup.holds and setup.topology == "star" else f"{to}; {also}."))
    if setup.if_lost == "without":
        told.append(Told(
            f"A member that is not heard of for {setup.timeout:g} s is left out, and the others go "
            f"on without it. Whoever sees totals (all members, {setup.server} among them) has one "
            "with what it added and one without, of nearly the same parameters: their difference "
            "is nearly what it added, masks or none. Under masks they are never of the same ones."
        ))  # fmt: skip
    for command, values in commands.items():
        head = f"{command}: " if len(commands) > 1 else ""
        told += [one._replace(text=head + one.text) for one in _of_command(setup, command, values)]
    return told


def _of_command(setup: Setup, command: str, values: Mapping[str, Any]) -> Iterator[Told]:
    """Return what one command shows."""
    of_rows = command in ("fedem", "impute", "saem") or values.get("split") == "rows"
    of_matrix = command == "impute" and values.get("method") != "mixture"
    star, masked = setup.topology == "star", bool(values.get("secure_sum"))
    way = str(values.get("sum") or ("server" if star else "consensus"))
    receiver = {
        "tree": "the party above it in the spanning tree (inner ones send sums of all below them)",
        "server": setup.first,
        "consensus": f"its neighbours on the graph ({setup.topology})",
    }[way]
    kind = "server" if way == "server" else "estep"
    yield Told(
        "All members learn with which options each runs, and how to go on: whether anybody has to "
        "stop, or a component has no rows"
        + (", not who or how many" if masked else f"; {setup.first} also learns of whom that is")
        + ".", "options agreement",
    )  # fmt: skip
    if command not in ("impute", "saem"):
        yield Told(
            "All members learn each party's name, names and families of features, and number of "
            "rows.", "alignment",
        )  # fmt: skip
    if not of_rows:
        yield from _of_ids(setup, values.get("align"))
    if command in ("predict", "score"):
        yield from _of_use(setup, masked)
    elif command == "saem":
        yield from _of_individuals(values, receiver, kind)
    elif command == "impute":
        yield from _of_entries(not of_matrix, receiver, kind, masked)
    elif of_rows and values.get("epsilon") is not None:
        yield from _of_private_rows(setup, values, receiver, kind, noise_by(masked, way))
    elif of_rows:
        yield from _of_rows(command, values, receiver, kind)
    elif values.get("method") == "grid":
        yield Told("No value of a feature leaves its party (hops 0).")
        yield Told(
            f"Each party sends {setup.first}, once, its own cluster of every row and the centres "
            "of its own clusters: means of its features.", "server", "first",
        )  # fmt: skip
        yield Told("All members learn the cluster of every row.", "server")
    else:
        yield from _of_features(command, values, receiver, kind)
    if of_rows and kind == "server":
        yield Told("All members learn the totals.", "server" if of_matrix else "setup server")
    if (command == "fedem" or of_matrix) and not masked:
        yield Told(
            f"To tell how far it is, {setup.first} also gets each party's own sums, exactly.",
            "check", "first",
        )  # fmt: skip
        yield Told("All members learn the totals of these.", "check")
    for name, by in (("epsilon", noise_by(masked, way)), ("release_epsilon", "hubs")):
        if values.get(name) is not None:
            promise = {"epsilon": values[name], "delta": values.get("delta"), "noise_by": by}
            lines = ", ".join(f"{head} {line}" for head, line in promised(promise))
            yield Told(f"Differential privacy (--{name.replace('_', '-')}): {lines}.")
    if masked:
        yield Told(
            "Sums are masked: what a party sends for them looks random, and only totals over all "
            "parties can be read, by those who get them. What one party added could be found out "
            "by all the others together. A server that tells another total than that is found out, "
            f"unless it is a party, or works with one. As for a total, {LATER}."
        )
    codec = values.get("compress") or values.get("codec")
    if codec:
        yield Told(f"What is sent in iterations is rounded by the codec {codec}; it hides little.")
    model = {
        "kmeans": "centres, and standard deviations of features",
        "lowrank": "the filled matrix and its factors",
        "mixture": "parameters, and its own rows or columns without gaps",
    }.get(
        values.get("method", "lowrank") if command == "impute" else command,
        "parameters, so means and covariances of everybody's features",
    )
    end = f"all members have the model ({model}) and the report (result all)"
    if setup.result == "shards" and not of_rows:
        end = "each party has the parameters of its own features only, and all members have the "
        end += "report (result shards)"
    if command not in ("predict", "score"):
        yield Told(f"In the end {end}.", "result")
    if command in ("fit", "select", "fedem", "kmeans") and " all)" in end:
        few = f"components of fewer than {LEAST_ROWS:g} rows, or singular ones"
        if values.get("publish_anyway"):
            yield Told(f"It may have {few}, which tell of single rows (--publish-anyway).")
        elif values.get("epsilon") is None and values.get("release_epsilon") is None:
            yield Told(f"It has no {few}: else none is written.")


def _of_ids(setup: Setup, how: str | None) -> Iterator[Told]:
    """What finding common rows shows."""
    if how in (None, "none"):
        yield Told(
            "Rows are not matched: they must be the same, in one order, in all files (align none). "
            "All members see checksums of ids, if there are ids, of this run alone."
            if how else
            "Nothing says how rows are matched (--align ids, hmac, psi, or none: they are the "
            "same, in one order, in all files): runs in which a party has ids are refused."
        )  # fmt: skip
        return
    past = ""
    if setup.topology == "star" and not setup.holds:
        past = f" from each directly; {setup.server} gets none"
    yield Told(
        "The first party that has data gets "
        + {
            "ids": f"every id of every party{past} (align ids).",
            "hmac": f"a keyed hash of every id of every party{past}, and learns which of its ids "
            "each other party has (align hmac).",
            "psi": f"encrypted ids of every party{past}, and learns which of those still in "
            "question each next one has, and nothing of other ids but their number (align psi).",
        }[how], "alignment", "first party",
    )  # fmt: skip
    encrypted = "its ids in encrypted form, and " if how == "psi" else ""
    yield Told(
        f"The other parties get from it {encrypted}which of their rows are used: all that all "
        "parties have, if it leaves none out.", "alignment", "parties",
    )  # fmt: skip


def _of_features(
    command: str, values: Mapping[str, Any], receiver: str, kind: str
) -> Iterator[Told]:
    """What is shown where parties have features of the same rows."""
    hops, private = values.get("hops", 0), values.get("release_epsilon") is not None
    masked = ", under masks" if values.get("secure_sum") else ""
    if hops in (0, "0"):
        yield Told("No value of a feature leaves its party (hops 0).")
    else:
        yield Told(
            f"VALUES OF FEATURES, of all rows, go once to parties up to {hops} hop(s) away, and "
            "to all between.", "setup agreement", "joining",
        )  # fmt: skip
        if values.get("hubs") == "likelihood":
            yield Told(
                "To choose hubs (hubs likelihood) they go to more of these than the root of the "
                "party's hub, and all members learn correlations of features, in each component "
                "of a first fit, of parties that could share a hub.", "flooding",
            )  # fmt: skip
    starts = values.get("init") in ("kmeans", "k-means++") and not private
    if starts:
        yield Told(
            f"To begin with, each party sends {receiver} squared distances of rows to some rows"
            f"{masked}.", "setup", "sum",
        )  # fmt: skip
    count = values.get("n_components", values.get("n_clusters"))
    what = "how likely its own features are in each component"
    if command == "kmeans":
        what = "how its squared distances to the centres differ"
    labels = " labels" * (command == "fit")
    again = " Once more at the end if a member asks for labels (--labels)." * (command == "fit")
    yield Told(
        f"In every iteration each party sends {receiver}, for every row, {what} (K - 1 numbers, "
        f"K = {count}){masked or f'; {LATER}'}.{again}", kind + labels, "sum",
    )  # fmt: skip
    if "squarem" in str(values.get("accelerate") or ""):
        yield Told("Between iterations it sends two numbers of how far its parameters have moved.")
    yield Told(
        "All members learn the total, and so the cluster of every row (its responsibilities), "
        "which is made of everybody's features.",
        f"{'setup' * starts} server{labels}" if kind == "server" else "",
    )
    if command == "fit":
        yield Told(
            "If a party labels rows for the fit (--labels-for-fit), all members learn the names of "
            "its labels and how many rows have each, and the labels as part of its numbers."
        )
    if private:
        yield Told(
            "In every iteration all members learn the sizes of components, with noise.", "flooding"
        )


def _of_rows(command: str, values: Mapping[str, Any], receiver: str, kind: str) -> Iterator[Told]:
    """What is shown where parties have rows of the same features."""
    masked = ", under masks" if values.get("secure_sum") else ""
    yield Told(
        f"To begin with, each party sends {receiver} sums over all its rows (of weights, and of "
        "each feature's values and squares) and over its rows in each cluster of a start"
        f"{masked}.", "setup", "sum",
    )  # fmt: skip
    part = "size and sum of its part of each cluster"
    if command != "kmeans":
        part = "weights, weighted sums of rows and of their squares, by component"
    yield Told(
        f"In every iteration each party sends {receiver} sums over its rows{masked} ({part})."
        + ("" if masked else " Of many rows they tell little about one; of a single row they are "
           "that row."), kind, "sum",
    )  # fmt: skip
    if masked:
        yield Told("No row is shown; a start is made of means of groups of rows of all parties.")
        return
    yield Told(
        "Rows that become a start, or the place of a component without rows, are shown to all "
        f"members: at least {values.get('n_components', values.get('n_clusters'))} of them.",
        "flooding",
    )


def _of_private_rows(
    setup: Setup, values: Mapping[str, Any], receiver: str, kind: str, by: str
) -> Iterator[Told]:
    """What is shown of rows in whose sums there is noise."""
    noise = {
        "server": f"{setup.first} adds noise to the total before others get it, and sees what each "
        "party sends",
        "root": "the root of the tree adds noise to the total before others get it, and sees, as "
        "does each party above others, sums of those below without it",
        "workers": "each party adds its share of the noise to its own, under masks: nobody sees a "
        "sum without noise, but each party knows its share",
    }[by]
    yield Told(
        f"To begin with, and in every iteration, each party sends {receiver} sums over its rows "
        f"within the bounds (counts, then first and second moments); {noise}.",
        f"setup {kind}", "sum",
    )  # fmt: skip
    yield Told(
        "All members learn the totals, the start and the parameters with noise. No row is shown, "
        "nor how well the model fits.", "setup",
    )  # fmt: skip


def _of_entries(of_mixture: bool, receiver: str, kind: str, masked: bool) -> Iterator[Told]:
    """What imputation shows."""
    sent = f"In every iteration each party sends {receiver}"
    if of_mixture:
        yield Told(
            "All members learn names of rows and columns, who has which, how many saw each entry, "
            "and the mean of each column; and the parameters of every fit.", "setup result",
        )  # fmt: skip
        yield Told(
            f"{sent} sums over its rows by component or, where it has columns, how likely its part "
            "of every row is in each component. With columns no value leaves its party.",
            f"setup {kind}", "sum",
        )  # fmt: skip
        if not masked:
            yield Told("Of rows, those at which a fit starts are shown to all members.", "flooding")
    else:
        yield Told(
            "All members learn names of rows and columns, how many entries each party saw, and the "
            "sum of what was seen at every entry: who alone saw an entry has as good as told it."
        )
        yield Told(f"{sent} corrections of its own filled matrix.", kind, "sum")


def _of_individuals(values: Mapping[str, Any], receiver: str, kind: str) -> Iterator[Told]:
    """What SAEM shows."""
    yield Told(
        "All members learn how many individuals each party has, names of covariates, medians of "
        "what is read first and last, and sums over all individuals of means, variances and "
        "log-likelihoods."
    )
    if values.get("model") in ("bifactor", "gmm"):
        yield Told(
            "The times (items) at which all are read are shown to all members, and of gmm READINGS "
            "OF THE INDIVIDUALS that are the first means."
        )
    yield Told("No other row, time or covariate leaves its party.")
    yield Told(
        f"To begin with, and in every iteration, each party sends {receiver} the mean of "
        "statistics of its individuals as they were simulated; of a single individual it tells "
        "that one's latents.", f"setup {kind}", "sum",
    )  # fmt: skip


def _of_use(setup: Setup, masked: bool) -> Iterator[Told]:
    """What a model at work shows."""
    yield Told(
        "Where a hub of the model has features of several parties (--hops of its fit above 0), "
        "these send VALUES OF FEATURES, of all rows, to the one of them that has most.",
        "features", "joining",
    )  # fmt: skip
    yield Told(
        f"Each party sends {setup.first}, for every row, how likely its own features are in each "
        f"component (K numbers), once{', under masks' if masked else ''}; {LATER}.",
        "server", "first",
    )  # fmt: skip
    yield Told("All members learn the total, and so the cluster of every row.", "server")
