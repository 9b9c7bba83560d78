"""What the commands of a study show, and to whom: sentences that its organiser signs.

`docs/explanation/what-leaves.md` says how much can be read from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from vpem.files.studies.policy import LEAST_ROWS

if TYPE_CHECKING:
    from vpem.files.studies.study import Study


class Notice(NamedTuple):
    """A sentence on what is shown, the kinds of its messages, as logs call them, and their way.

    They go to "all" through the first member, to the "first", to the adder ("sum"), to the members
    that hold others' features ("joining"), to the "first party", or from it to other "parties".
    """

    text: str
    kinds: str = ""
    to: str = "all"


SENTENCES = """\
sealed: Every message is sealed by TLS 1.3 between two members: only its receiver reads it.
relay: The relay {relay} passes sealed messages on: it learns who talks to whom, when and how much,
  and nothing of their contents.
ways: Parties talk to {first}, through which everything goes that all members learn{also}.
lost: A member that does not answer for {timeout:g} s is left out, and the others go on without it.
  Those who see totals (all members, {server} among them) have one with its part and one without,
  at nearly the same parameters: their difference is nearly its part, masked or not. Under masks
  the parameters are never the same.

options [options agreement]: All members learn with which options each runs, and how to go on:
  whether any member has to stop, or a component has no rows{who_stops}.
names [alignment]: All members learn each party's name, names and families of features, and number
  of rows.
total of all [server]: All members learn the total, and so the cluster of every row.
totals [{start_and_totals}]: All members learn the totals.
progress [check > first]: To report progress, {first} also gets each party's own sums, exactly.
totals of these [check]: All members learn the totals of these.
noise: Differential privacy ({option}): {promise}.
masks: Sums are masked: what a party sends for them looks random, and only totals over all parties
  can be read, by those who get them. All other parties together could find out what one party
  added. A server that reports a wrong total is found out, unless it is a party, or colludes with
  one. As for a total, {later}.
codec: What is sent in iterations is rounded by the codec {codec}; it hides little.
all have [result]: In the end all members have the model ({model}) and the report (result all).
each has [result]: In the end each party has the parameters of its own features only, and all
  members have the report (result shards).
few: It may have {few}, which disclose single rows (--publish-anyway).
no few: It has no {few}: otherwise no model is written.

align none: Rows are not matched: they must be the same, in one order, in all files (align none).
  All members see checksums of ids, if there are any, which are of this run alone.
align not set: It is not set how rows are matched (--align ids, hmac, psi, or none: they are the
  same, in one order, in all files): runs in which a party has ids are refused.
align ids [alignment > first party]: The first party that has data gets every id of every
  party{past} (align ids).
align hmac [alignment > first party]: The first party that has data gets a keyed hash of every id of
  every party{past}, and learns which of its ids each other party has (align hmac).
align psi [alignment > first party]: The first party that has data gets encrypted ids of every
  party{past}, and learns which of those still in question each next one has, and nothing of other
  ids but their number (align psi).
rows in common [alignment > parties]: The other parties get from it {encrypted}which of their rows
  are used: all that all parties have, if it leaves none out.

no values: No value of a feature leaves its party (hops 0).
values [setup agreement > joining]: VALUES OF FEATURES, of all rows, go once to parties up to {hops}
  hop(s) away, and to all in between.
likely hubs [flooding]: To choose hubs (hubs likelihood) they go to more of these than the root of
  the party's hub, and all members learn correlations, in each component of a first fit, of features
  of parties that could share a hub.
distances [setup > sum]: To begin with, each party sends {receiver} squared distances of all rows to
  a few{under}.
terms [{kind}{labels} > sum]: In every iteration each party sends {receiver}, for every row, {what}
  (K - 1 numbers, K = {k}){under_or_later}.{again}
steps: Between iterations it sends two numbers of how far its parameters have moved.
responsibilities [{total}]: All members learn the total, and so the cluster of every row (its
  responsibilities), which depends on all parties' features.
labels: If a party labels rows for the fit (--labels-for-fit), all members learn the names of its
  labels and how many rows have each, and the labels as part of its numbers.
noisy sizes [flooding]: In every iteration all members learn the sizes of components, with noise.
grid [server > first]: Each party sends {first}, once, its own cluster of every row and the centres
  of its own clusters: means of its features.
grid clusters [server]: All members learn the cluster of every row.

start of rows [setup > sum]: To begin with, each party sends {receiver} sums over all its rows (of
  weights, and of each feature's values and squares) and over its rows in each cluster of a
  start{under}.
sums of rows [{kind} > sum]: In every iteration each party sends {receiver} sums over its
  rows{under} ({part}).{single}
rows hidden: No row is shown; a start consists of means of groups of rows of all parties.
rows shown [flooding]: Rows that become a start, or the place of a component without rows, are shown
  to all members: at least {k} of them.
private sums [setup {kind} > sum]: To begin with, and in every iteration, each party sends
  {receiver} sums over its rows within the bounds (counts, then first and second moments);
  {noise_by}.
private totals [setup]: All members learn the totals, the start and the parameters with noise. No
  row is shown, nor how well the model fits.

mixture of entries [setup result]: All members learn names of rows and columns, who has which, how
  many saw each entry, and the mean of each column; and the parameters of every fit.
sums of entries [setup {kind} > sum]: In every iteration each party sends {receiver} sums over its
  rows by component or, where it has columns, how likely its part of every row is in each component.
  With columns no value leaves its party.
rows of start [flooding]: Of rows, those at which a fit starts are shown to all members.
matrix: All members learn names of rows and columns, how many entries each party saw, and the sum of
  what was seen at every entry: an entry seen by one party alone is disclosed.
corrections [{kind} > sum]: In every iteration each party sends {receiver} corrections of its own
  filled matrix.

individuals: All members learn how many individuals each party has, names of covariates, medians of
  the first and last readings, and sums over all individuals of means, variances and
  log-likelihoods.
readings: The times (items) at which all are read are shown to all members, and for gmm READINGS OF
  THE INDIVIDUALS that are the first means.
no other row: No other row, time or covariate leaves its party.
statistics [setup {kind} > sum]: To begin with, and in every iteration, each party sends {receiver}
  the mean of statistics of its individuals as they were simulated; for a single individual these
  are its latents.

hubs in use [features > joining]: Where a hub of the model has features of several parties (--hops
  of its fit above 0), these send VALUES OF FEATURES, of all rows, to the one of them that has the
  most.
terms in use [server > first]: Each party sends {first}, for every row, how likely its own features
  are in each component (K numbers), once{under}; {later}.
"""
"""Sentences by names; in brackets the kinds of messages, and where they go."""

PARTS = {
    "use": ("hubs in use", "terms in use", "total of all"),
    "saem": ("individuals", "readings", "no other row", "statistics"),
    "lowrank": ("matrix", "corrections"),
    "mixture": ("mixture of entries", "sums of entries", "rows of start"),
    "private rows": ("private sums", "private totals"),
    "rows": ("start of rows", "sums of rows", "rows hidden", "rows shown"),
    "grid": ("no values", "grid", "grid clusters"),
    "features": ("no values", "values", "likely hubs", "distances", "terms", "steps",
                 "responsibilities", "labels", "noisy sizes"),
}  # fmt: skip
"""Sentences on what is done, in order."""

BEFORE = ("options", "names", "align", "rows in common")

AFTER = ("totals", "progress", "totals of these", "noise", "masks", "codec", "each has", "all have",
         "few", "no few")  # fmt: skip

NOISE_BY = {
    "server": "{first} adds noise to the total before others get it, and sees what each party "
    "sends",
    "root": "the root of the tree adds noise to the total before others get it, and sees, as does "
    "each party above others, sums of those below without it",
    "workers": "each party adds its share of the noise to its own, under masks: no member sees a "
    "sum without noise, but each party knows its share",
}

RECEIVERS = {
    "tree": "the party above it in the spanning tree (inner ones send sums of all below them)",
    "server": "{first}",
    "consensus": "its neighbours on the graph ({topology})",
}

MODELS = {
    "kmeans": "centres, and standard deviations of features",
    "lowrank": "the filled matrix and its factors",
    "mixture": "parameters, and its own rows or columns without gaps",
    "": "parameters, and so means and covariances of all parties' features",
}

LATER = "it can disclose more than it seems to: see 'What leaves an agent' in the documentation"


def disclosures(study: Study, commands: Mapping[str, Mapping[str, Any]]) -> list[Notice]:
    """Return what each command, by the values of its settings, shows to whom."""
    relay, star = study.roster.relay, study.topology == "star"
    also = "" if star else "; neighbours on the graph also to each other"
    if star and not study.roster.members[0].holds:
        also = (
            "; with align ids, hmac or psi also to the first party, directly or sealed through it"
        )
    words = {
        "first": study.first, "server": study.organiser, "topology": study.topology, "also": also,
        "timeout": study.timeout, "relay": relay and relay.name,
    }  # fmt: skip
    about = {"sealed": True, "relay": relay, "ways": True, "lost": study.if_lost == "without"}
    notices = [_notice(name, words) for name, holds in about.items() if holds]
    for command, values in commands.items():
        head = f"{command}: " if len(commands) > 1 else ""
        some = _of_command(study, command, values, words)
        notices += [one._replace(text=head + one.text) for one in some]
    return notices


def _notice(name: str, words: Mapping[str, Any]) -> Notice:
    found = re.search(rf"(?m)^{name}(?: \[(.*?)(?: > (.*?))?\])?:\s+(.*(?:\n  .*)*)", SENTENCES)
    assert found is not None, name
    kinds, to, text = (part or "" for part in found.groups())
    text = text.replace("\n  ", " ").format(**words)
    return Notice(text, kinds.format(**words).strip(), to or "all")


def _of_command(
    study: Study, command: str, values: Mapping[str, Any], words: Mapping[str, Any]
) -> list[Notice]:
    """Return sentences on a command; ``words`` are those of the study."""
    from vpem.pictures.contents import promised
    from vpem.sums.private import noise_by

    over_rows, released = (values.get(name) is not None for name in ("epsilon", "release_epsilon"))
    private, masked = over_rows or released, bool(values.get("secure_sum"))
    star, level, hops = study.topology == "star", values.get("align"), values.get("hops", 0)
    way = str(values.get("sum") or ("server" if star else "consensus"))
    kind, adder = "server" if way == "server" else "estep", noise_by(masked, way)
    done = command
    if command in ("predict", "score"):
        done = "use"
    elif command == "impute":
        done = "mixture" if values.get("method") == "mixture" else "lowrank"
    elif command == "fedem" or values.get("split") == "rows":
        done = "private rows" if over_rows else "rows"
    elif command != "saem":
        done = "grid" if values.get("method") == "grid" else "features"
    fits = command in ("fit", "select", "fedem", "kmeans")
    of_rows = done in ("saem", "lowrank", "mixture", "private rows", "rows")
    starts = values.get("init") in ("kmeans", "k-means++") and not released
    codec, squarem = values.get("compress") or values.get("codec"), str(values.get("accelerate"))
    shards = study.result == "shards" and not of_rows
    holds = {
        "names": command not in ("impute", "saem"),
        "align": not of_rows,
        "rows in common": not of_rows and level not in (None, "none"),
        "readings": values.get("model") in ("bifactor", "gmm"),
        "rows of start": not masked,
        "rows hidden": masked,
        "rows shown": not masked,
        "no values": done == "grid" or str(hops) == "0",
        "values": str(hops) != "0",
        "likely hubs": str(hops) != "0" and values.get("hubs") == "likelihood",
        "distances": starts,
        "steps": "squarem" in squarem,
        "labels": command == "fit",
        "noisy sizes": released,
        "totals": of_rows and kind == "server",
        "progress": (command == "fedem" or done == "lowrank") and not masked,
        "noise": private,
        "masks": masked,
        "codec": codec,
        "each has": shards and done != "use",
        "all have": not shards and done != "use",
        "few": fits and not shards and values.get("publish_anyway"),
        "no few": fits and not shards and not values.get("publish_anyway") and not private,
    }
    holds["totals of these"] = holds["progress"]
    promise = {"epsilon": values.get("epsilon" if over_rows else "release_epsilon")}
    promise |= {"delta": values.get("delta"), "noise_by": adder if over_rows else "hubs"}
    labels, under = " labels" * (command == "fit"), ", under masks" * masked
    server, k_means = star and not study.roster.members[0].holds, command == "kmeans"
    stops = ", not who or how many" if masked else "; {first} also learns which members"
    what = "how likely its own features are in each component"
    part = "weights, weighted sums of rows and of their squares, by component"
    several = " Sums over many rows say little about one; the sum over a single row is that row."
    words = {
        **words,
        "receiver": RECEIVERS[way].format(**words),
        "noise_by": NOISE_BY.get(adder, "").format(**words),
        "who_stops": stops.format(**words),
        "kind": kind,
        "labels": labels,
        "total": f"{'setup' * starts} server{labels}" if kind == "server" else "",
        "start_and_totals": "server" if done == "lowrank" else "setup server",
        "past": f" from each directly; {study.organiser} gets none" * server,
        "encrypted": "its ids in encrypted form, and " * (level == "psi"),
        "hops": hops,
        "k": values.get("n_components", values.get("n_clusters")),
        "what": "how its squared distances to the centres differ" if k_means else what,
        "part": "size and sum of its part of each cluster" if k_means else part,
        "again": " Once more at the end if a member wants labels (--labels)." * bool(labels),
        "single": several * (not masked),
        "under": under,
        "under_or_later": under or f"; {LATER}",
        "later": LATER,
        "option": "--epsilon" if over_rows else "--release-epsilon",
        "promise": ", ".join(f"{head} {line}" for head, line in promised(promise)),
        "codec": codec,
        "model": MODELS.get(done if command == "impute" else command, MODELS[""]),
        "few": f"components of fewer than {LEAST_ROWS:g} rows, or singular ones",
    }
    names = (name for name in (*BEFORE, *PARTS[done], *AFTER) if holds.get(name, True))
    return [
        _notice(f"align {level or 'not set'}" if name == "align" else name, words) for name in names
    ]
