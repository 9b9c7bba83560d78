"""What a study needs of firewalls: who dials whom and where, how much passes, and what is in it.

Bytes are those of `vpem.fits.plan.plan`, which has them from the methods that a fit calls: payload
in both directions, without what TLS adds. Kinds of messages are the ledger's and the logs'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from operator import add
from textwrap import wrap
from typing import Any

from vpem.engines.tls.trust import Member, Roster
from vpem.errors import shorten
from vpem.files.studies.study import Study
from vpem.fits.plan import USUAL_SAMPLES, plan
from vpem.fits.settings import PlanSettings, as_ranges, parse_numbers
from vpem.network.graph import Graph, make_graph
from vpem.network.ledger import KINDS
from vpem.network.schema import Report
from vpem.pictures.contents import plural, size
from vpem.pictures.disclosures import disclosures
from vpem.records import Table

from .options import Agreed, agreed_before

PROTOCOL = "TLS 1.3 over TCP"

OF_NVFLARE = "NVFlare's server"
"""To which the sites of a federation are connected already, each by its own client."""

MOST_NAMES = 8
"""Of members who open connections of one kind: JSON has all."""

Way = tuple[str, Member]
"""Who opens a connection, and to whom."""


def ways_between(roster: Roster, *pair: Member) -> list[Way]:
    """Return the connections by which two members talk; none if both are one, which has data."""
    one, other = sorted(pair, key=roster.members.index)
    if one is other:
        return []
    if one.address is not None:
        return [(other.name, one)]
    if other.address is not None:
        return [(one.name, other)]
    relay = roster.relay or roster.members[0]
    return [(each.name, relay) for each in (one, other)]


def _linked(study: Study, values: Report) -> Graph:
    """Return the graph of a command's sums; on a star its last node is the first member."""
    seeds = [values[name] for name in ("graph_seed", "seed") if values.get(name) is not None]
    more = {name: values.get(name) for name in ("radius", "mean_degree")}
    return make_graph(study.topology, study.n_parties, seed=next(iter(seeds), 0), **more)


def _forecast(
    context: Any, one: Agreed, parties: list[Member], graph: Graph, n_samples: int
) -> tuple[list[tuple[int, int]], Report]:
    """Return bytes of an iteration and in all over each edge, as `plan` counts them, and of what.

    Nothing where it cannot: of other commands, private fits, and features that have no names yet.
    """
    values, held = one.values, [len(each.features) for each in parties]
    over_rows = values.get("split") == "rows"
    is_private = any(values.get(name) is not None for name in ("epsilon", "release_epsilon"))
    if over_rows:  # all parties have the same
        held = [max(held), *[0] * (len(parties) - 1)]
    unnamed = not held[0] if over_rows else values.get("hops") and not all(held)
    if one.command != "fit" or is_private or unnamed or len(parties) < 2:
        return [], {}
    if not over_rows:
        held = [width or 1 for width in held]
    records = context.find_root().command.commands[one.command].callback.records(values).values()
    known = dict(chain(*records))
    known |= {"hops": values.get("hops") or 0, "n_components": 1, "n_samples": n_samples}
    planned = {each.name for each in PlanSettings.fields()}
    settings = PlanSettings(**{name: known[name] for name in planned & known.keys()})
    fits = parse_numbers("--components", str(values["n_components"]), least=1)

    def counted(**changes: Any) -> Report:
        found: Report = plan(graph, held, settings.changed(**changes), split=values["split"])
        return dict(found["communication"])

    sent = [counted(n_components=k) for k in fits]
    masked = settings.secure_sum
    bare = counted(n_components=fits[-1], secure_sum=False) if masked else sent[-1]
    restarts = int(values.get("n_init") or 1)
    iterations = int(values["max_iter"]) * restarts
    phases = {"labels": 1, "setup": restarts, "iteration": iterations, "last": restarts}

    def on_link(place: int, found: Report, phase: str) -> int:
        count: float = sum(kind[place] for kind in found[phase]["by_link"]["bytes"].values())
        return round(count)

    counts = [
        (on_link(place, sent[-1], "iteration"),
         sum(number * on_link(place, found, phase) for found in sent
             for phase, number in phases.items() if phase != "labels" or found is sent[-1]))
        for place in range(len(graph.edges))
    ]  # fmt: skip
    return counts, {
        "masks": round(sent[-1]["iteration"]["bytes"] - bare["iteration"]["bytes"]),
        "iterations": iterations * len(fits), "is_expected": sent[-1]["is_expected"],
    }  # fmt: skip


def matrix_of(context: Any, study: Study, n_samples: int | None) -> Report:
    """Return the connections of a study, by who opens them, and what passes over each."""
    roster, total, rows = study.roster, Report(), n_samples or USUAL_SAMPLES
    if study.carried:
        roster = replace(roster, relay=Member(OF_NVFLARE, b""))
    first, *others = roster.members
    parties = [one for one in roster.members if one.holds]
    passes: dict[Way, tuple[int, ...]] = {}
    what: dict[Way, set[int]] = {}
    said, agreed = dict[str, list[str]](), agreed_before(context, study)
    for run in agreed if parties else ():
        graph, nodes = _linked(study, run.values), [*parties, first]
        pairs = [(nodes[one], nodes[other]) for one, other in graph.edges]
        counts, found = _forecast(context, run, parties, graph, rows)
        if found:
            total = found | {"iteration": 0, "in_all": 0}
        for pair, sent in zip(pairs, counts, strict=False):
            if pair[0] is not pair[1]:
                total["iteration"] += sent[0]
                total["in_all"] += sent[1]
            for way in ways_between(roster, *pair):
                passes[way] = tuple(map(add, passes.get(way, (0, 0)), sent))
        for notice in disclosures(study, {run.command: run.values}):
            between = [(first, one) for one in others]
            if notice.to in ("first party", "parties"):  # as rows are matched
                between = [(parties[0], one) for one in parties[1:]]
            elif {*KINDS}.intersection(notice.kinds.split()):
                between = pairs
            if notice.kinds:
                said.setdefault(notice.text, []).append(run.command)
                number = list(said).index(notice.text) + 1
                for way in chain(*(ways_between(roster, *pair) for pair in between)):
                    what.setdefault(way, set()).add(number)
    table = [
        {"opens": way[0], "listens": way[1].name, "address": way[1].where, "protocol": PROTOCOL,
         "bytes_an_iteration": passes.get(way, [None])[0],
         "bytes_in_all": passes.get(way, [None])[-1], "content": sorted(numbers)}
        for way, numbers in what.items()
    ]  # fmt: skip
    several = len(agreed) > 1
    content = [f"{', '.join(who)}: " * several + text for text, who in said.items()]
    return {
        "study": study.name, "edition": study.edition, "n_samples": rows, "content": content,
        "connections": table, "total": total or None,
    }  # fmt: skip


HEADS = ("opens", "listens", "address", "protocol", "iteration", "in all", "what")


def tables_of_matrix(report: Report) -> Iterator[Table]:
    alike: dict[tuple[str, ...], list[str]] = {}
    for one in report["connections"]:
        counts = (one["bytes_an_iteration"], one["bytes_in_all"])
        shown = ("-" if count is None else size(count) for count in counts)
        numbers = ", ".join(as_ranges(one["content"]))
        row = (one["listens"], one["address"] or "its own", one["protocol"], *shown, numbers)
        alike.setdefault(row, []).append(one["opens"])
    rows = [(shorten(names, MOST_NAMES), *cells) for cells, names in alike.items()]
    title = f"Connections of {report['study']}, edition {report['edition']}"
    yield Table(rows, HEADS, title, HEADS[4:6])
    yield Table([*enumerate(report["content"], 1)], ("what", "is in it"), right=())
    yield Table([(line,) for line in wrap(_note(report), 78)])


def _note(report: Report) -> str:
    total = report["total"]
    if total is None:
        return "Both ends show certificates. Bytes are not foretold for what is run."
    masks = f"; {size(total['masks'])} of an iteration are masks" * bool(total["masks"])
    return (
        f"Both ends show certificates. Bytes{' (estimates)' * total['is_expected']} are payload, "
        f"both ways, of {plural(report['n_samples'], 'row')}, as the fit counts them; in all: of "
        f"{plural(total['iterations'], 'iteration')}, the most that there are. Together "
        f"{size(total['iteration'])} an iteration and {size(total['in_all'])} in all{masks}. What "
        "TLS adds, a start, ids, agreements and the result come on top."
    )
