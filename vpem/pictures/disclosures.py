"""What the commands of a study show, and to whom: sentences that its organiser signs.

`docs/explanation/what-leaves.md` says how much can be read from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vpem.files.studies.policy import LEAST_ROWS
from vpem.files.studies.study import Study
from vpem.network.schema import Report
from vpem.pictures.contents import PRIVACY, lines_of
from vpem.rules import summing
from vpem.sums.private import EACH, noise_by

Values = Mapping[str, Any]
"""Settings of a command, and what sentences say of it, by their names."""


class Notice(NamedTuple):
    """A sentence on what is shown, the kinds of its messages, as logs call them, and their way.

    They go to "all" through the first member, to the "first", to the adder ("sum"), to the members
    that hold others' features ("joining"), to the "first party", or from it to other "parties".
    """

    text: str
    kinds: str = ""
    to: str = "all"


SENTENCES = """
== all
[] Every message is sealed by TLS 1.3 between two members: only its receiver reads it.
[relay] The relay {relay} passes sealed messages on: it learns who talks to whom, when and how much,
  and nothing of their contents.
[nvflare] The NVFlare federation passes sealed messages on: its server learns who talks to whom,
  when and how much, and nothing of their contents.
[] Parties talk to {first}, through which everything goes that all members learn{also}.
[lost] A member that does not answer for {timeout:g} s is left out, and the others go on without it.
  Those who see totals (all members, {adder} among them) have one with its part and one without, at
  nearly the same parameters: their difference is nearly its part, masked or not. Under masks the
  parameters are never the same.
== before
[ | options agreement] All members learn with which options each runs, and how to go on: whether any
  member has to stop, or a component has no rows{who_stops}.
[named | alignment] All members learn each party's name, names and families of features, and number
  of rows.
[none] Rows are not matched: they must be the same, in one order, in all files (align none). All
  members see checksums of ids, if there are any, which are of this run alone.
[unset] It is not set how rows are matched (--align ids, hmac, psi, or none: they are the same, in
  one order, in all files): runs in which a party has ids are refused.
[ids | alignment | first party] The first party that has data gets every id of every party{past}
  (align ids).
[hmac | alignment | first party] The first party that has data gets a keyed hash of every id of
  every party{past}, and learns which of its ids each other party has (align hmac).
[psi | alignment | first party] The first party that has data gets encrypted ids of every
  party{past}, and learns which of those still in question each next one has, and nothing of other
  ids but their number (align psi).
[matched | alignment | parties] The other parties get from it {encrypted}which of their rows are
  used: all that all parties have, if it leaves none out.
== features
[!hops] No value of a feature leaves its party (hops 0).
[hops | setup agreement | joining] VALUES OF FEATURES, of all rows, go once to parties up to {hops}
  hop(s) away, and to all in between.
[hops likelihood | flooding] To choose hubs (hubs likelihood) they go to more of these than the root
  of the party's hub, and all members learn correlations, in each component of a first fit, of
  features of parties that could share a hub.
[starts | setup | sum] To begin with, each party sends {receiver} squared distances of all rows to a
  few{under}.
[ | {kind}{labels} | sum] In every iteration each party sends {receiver}, for every row, {what}
  ({n_numbers}, K = {k}){under_or_later}.{again}
[noise] With noise (--noise) these tell besides in what volume its rows lie.
[squarem] Between iterations it sends two numbers of how far its parameters have moved.
[ | {total}] All members learn the total, and so the cluster of every row (its responsibilities),
  which depends on all parties' features.
[labels] If a party labels rows for the fit (--labels-for-fit), all members learn the names of its
  labels and how many rows have each, and the labels as part of its numbers.
[resampled] All fits are done up to {resampled} times, to rows that weigh otherwise or are drawn by
  each party from its own part of the model: what a party sends of its rows is that of as many fits.
[classes | setup] All members learn the class of every row, which one party has.
[released | flooding] In every iteration all members learn the sizes of components, with noise.
== grid
[] No value of a feature leaves its party (hops 0).
[ | server | first] Each party sends {first}, once, its own cluster of every row and the centres of
  its own clusters: means of its features.
[ | server] All members learn the cluster of every row.
== rows
[ | setup | sum] To begin with, each party sends {receiver} sums over all its rows (of weights, and
  of each feature's values and squares) and over its rows in each cluster of a start{under}.
[ | {kind} | sum] In every iteration each party sends {receiver} sums over its rows{under}
  ({part}).{single}
[masked] No row is shown; a start consists of means of groups of rows of all parties.
[!masked | flooding] Rows that become a start, or the place of a component without rows, are shown
  to all members: at least {k} of them.
[resampled] All fits are done up to {resampled} times, to rows that each party draws from the model.
== private rows
[ | setup {kind} | sum] To begin with, and in every iteration, each party sends {receiver} sums over
  its rows within the bounds (counts, then first and second moments); {noise_by}.
[ | setup] All members learn the totals, the start and the parameters with noise. No row is shown,
  nor how well the model fits.
== mixture
[ | setup result] All members learn names of rows and columns, who has which, how many saw each
  entry, and the mean of each column; and the parameters of every fit.
[ | setup {kind} | sum] In every iteration each party sends {receiver} sums over its rows by
  component or, where it has columns, how likely its part of every row is in each component. With
  columns no value leaves its party.
[!masked | flooding] Of rows, those at which a fit starts are shown to all members.
== lowrank
[] All members learn names of rows and columns, how many entries each party saw, and the sum of what
  was seen at every entry: an entry seen by one party alone is disclosed.
[ | {kind} | sum] In every iteration each party sends {receiver} corrections of its own filled
  matrix.
== saem
[] All members learn how many individuals each party has, names of covariates, medians of the first
  and last readings, and sums over all individuals of means, variances and log-likelihoods.
[readings] The times (items) at which all are read are shown to all members, and for gmm READINGS OF
  THE INDIVIDUALS that are the first means.
[] No other row, time or covariate leaves its party.
[ | setup {kind} | sum] To begin with, and in every iteration, each party sends {receiver} the mean
  of statistics of its individuals as they were simulated; for a single individual these are its
  latents.
== use
[ | features | joining] Where a hub of the model has features of several parties (--hops of its fit
  above 0), these send VALUES OF FEATURES, of all rows, to the one of them that has the most.
[ | server | first] Each party sends {first}, for every row, how likely its own features are in each
  component (K numbers), once{under}; {later}.
[ | server] All members learn the total, and so the cluster of every row.
== after
[of_rows server !lowrank | setup server] All members learn the totals.
[of_rows server lowrank | server] All members learn the totals.
[progress | check | first] To report progress, {first} also gets each party's own sums, exactly.
[progress | check] All members learn the totals of these.
[private] Differential privacy ({option}): {promise}.
[masked] Sums are masked: what a party sends for them looks random, and only totals over all parties
  can be read, by those who get them. All other parties together could find out what one party
  added. A server that reports a wrong total is found out, unless it is a party, or colludes with
  one. As for a total, {later}.
[codec] What is sent in iterations is rounded by the codec {codec}; it hides little.
[fitted !shards | result] In the end all members have the model ({model}) and the report (result
  all).
[fitted shards | result] In the end each party has the parameters of its own features only, and all
  members have the report (result shards).
[published anyway] It may have {few}, which disclose single rows (--publish-anyway).
[published !anyway !private] It has no {few}: otherwise no model is written.
"""
"""Sentences by what is done, each after: when it holds | the kinds of messages | where they go."""

NOISE_BY = {
    "server": "{first} adds noise to the total before others get it, and sees what each party "
    "sends",
    "root": "the root of the tree adds noise to the total before others get it, and sees, as does "
    "each party above others, sums of those below without it",
    "workers": "each party adds its share of the noise to its own, under masks: no member sees a "
    "sum without noise, but each party knows its share",
    EACH: "each party adds all of the noise to what it sends: no other sees a sum without",
}

PUBLISHED = ("fit", "select", "bootstrap", "discriminant", "fedem", "kmeans")

MODELS = {
    "bootstrap": "parameters of all parties' features with standard errors, or likelihood ratios",
    "kmeans": "centres, and standard deviations of features",
    "lowrank": "the filled matrix and its factors",
    "mixture": "parameters, and its own rows or columns without gaps",
}

LATER = "it can disclose more than it seems to: see 'What leaves an agent' in the documentation"


def disclosures(study: Study, commands: Mapping[str, Values]) -> list[Notice]:
    relay, star = study.roster.relay, study.topology == "star"
    apart = star and not study.roster.members[0].holds  # the server has no data
    also = "" if star else "; neighbours on the graph also to each other"
    if apart:
        also = (
            "; with align ids, hmac or psi also to the first party, directly or sealed through it"
        )
    words = {
        "first": study.first, "adder": study.organiser, "timeout": study.timeout, "also": also,
        "relay": relay and relay.name, "lost": study.if_lost == "without", "later": LATER,
        "nvflare": study.engine == "nvflare",
        "past": f" from each directly; {study.organiser} gets none" * apart,
    }  # fmt: skip
    notices = list(_notices("all", words))
    for command, values in commands.items():
        head, done = f"{command}: " if len(commands) > 1 else "", _done(command, values)
        more = words | _words(study, command, values, done)
        for section in ("before", done, "after"):
            some = _notices(section, more)
            notices += [one._replace(text=head + one.text) for one in some]
    return notices


def _notices(section: str, words: Values) -> Iterator[Notice]:
    text = SENTENCES.partition(f"\n== {section}\n")[2].partition("\n== ")[0]
    for head, sentence in re.findall(r"(?m)^\[(.*?)\] (.*(?:\n  .*)*)", text):
        when, kinds, to = (part.strip() for part in f"{head} | | ".split("|")[:3])
        if all(bool(words[one.strip("!")]) != one.startswith("!") for one in when.split()):
            text = sentence.replace("\n  ", " ").format(**words)
            yield Notice(text, kinds.format(**words).strip(), to or "all")


def _done(command: str, values: Values) -> str:
    """Return what a command does, as a heading of `SENTENCES`."""
    if command in ("predict", "score"):
        return "use"
    if command == "impute":
        return "mixture" if values.get("method") == "mixture" else "lowrank"
    if command == "saem":
        return command
    if command == "fedem" or values.get("split") == "rows":
        return "rows" if values.get("epsilon") is None else "private rows"
    return "grid" if values.get("method") == "grid" else "features"


def _words(study: Study, command: str, values: Values, done: str) -> Report:
    over_rows, released = (values.get(name) is not None for name in ("epsilon", "release_epsilon"))
    masked, hops = bool(values.get("secure_sum")), values.get("hops") or 0
    level = values.get("align") or "unset"
    of_rows = done not in ("use", "grid", "features")
    shards = study.result == "shards" and not of_rows
    # The links of a star are a tree around its server already.
    way = summing("server" if study.topology == "star" else values.get("sum"))
    server, adder = way.needs_server, noise_by(masked, way.title, command == "fedem")
    starts = values.get("init") in ("kmeans", "k-means++", "farthest") and not released
    option = "epsilon" if over_rows else "release_epsilon"
    promise = {"epsilon": values.get(option), "delta": values.get("delta")}
    promise["noise_by"] = adder if over_rows else "hubs"
    receiver = way.receiver.format(first=study.first, topology=study.topology)
    stops = ", not who or how many" if masked else f"; {study.first} also learns which members"
    what, part = (
        ("how its squared distances to the centres differ",
         "size and sum of its part of each cluster")
        if command == "kmeans" else
        ("how likely its own features are in each component",
         "weights, weighted sums of rows and of their squares, by component")
    )  # fmt: skip
    odd = values.get("noise") or values.get("trim")
    single = " Sums over many rows say little about one; the sum over a single row is that row."
    again = " Once more at the end if a member wants labels (--labels)."
    model = "parameters, and so means and covariances of all parties' features"
    under, labels = ", under masks" * masked, " labels" * (command == "fit")
    levels = dict.fromkeys(("none", "unset", "ids", "hmac", "psi"), False)
    return levels | {
        level: not of_rows, "matched": not of_rows and level in ("ids", "hmac", "psi"),
        "encrypted": "its ids in encrypted form, and " * (level == "psi"),
        "named": command not in ("impute", "saem"), "of_rows": of_rows, "masked": masked,
        "private": over_rows or released, "released": released, "server": server, "starts": starts,
        "lowrank": done == "lowrank", "shards": shards, "fitted": done != "use",
        "published": command in PUBLISHED and not shards, "classes": command == "discriminant",
        "resampled": values.get("n_replicates") if command == "bootstrap" else None,
        "anyway": values.get("publish_anyway"), "hops": hops if str(hops) != "0" else 0,
        "likelihood": values.get("hubs") == "likelihood",
        "squarem": "squarem" in str(values.get("accelerate")),
        "noise": bool(values.get("noise")), "n_numbers": "K numbers" if odd else "K - 1 numbers",
        "readings": values.get("model") in ("bifactor", "gmm"),
        "progress": ((command == "fedem" and not over_rows) or done == "lowrank") and not masked,
        "kind": "server" if server else "estep", "labels": labels, "receiver": receiver,
        "total": f"{'setup' * starts} server{labels}" * server, "who_stops": stops,
        "k": values.get("n_components", values.get("n_clusters")), "what": what, "part": part,
        "single": single * (not masked), "again": again * bool(labels), "under": under,
        "under_or_later": under or f"; {LATER}", "option": f"--{option.replace('_', '-')}",
        "noise_by": NOISE_BY.get(adder, "").format(first=study.first),
        "promise": ", ".join(f"{head} {line}" for head, line in lines_of(promise, PRIVACY)),
        "codec": values.get("compress") or values.get("codec"),
        "model": MODELS.get(done if command == "impute" else command, model),
        "few": f"components of fewer than {LEAST_ROWS:g} rows, or singular ones",
    }  # fmt: skip
