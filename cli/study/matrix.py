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
from vpem.network.graph import make_graph
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


def _forecast(
    context: Any, study: Study, one: Agreed, n_samples: int
) -> tuple[list[Report], Report]:
    """Return what a fit sends over each link of its graph, and in all, as `plan` counts it.

    Nothing where it cannot: of other commands, private fits, and features that have no names yet.
    """
    values, parties = one.values, [each for each in study.roster.members if each.holds]
    widths, over_rows = [len(each.features) for each in parties], values.get("split") == "rows"
    hops = max(parse_numbers("--hops", str(values.get("hops") or 0)))
    is_private = any(values.get(name) is not None for name in ("epsilon", "release_epsilon"))
    unnamed = (hops or over_rows) and not all(widths)
    if one.command != "fit" or is_private or unnamed or len(parties) < 2:
        return [], {}
    numbers = parse_numbers("--components", str(values["n_components"]), least=1)
    fit = context.find_root().command.commands[one.command]
    known = {
        name: value for record in fit.callback.records(values).values() for name, value in record
    }
    known |= {"hops": hops, "n_components": max(numbers), "n_samples": n_samples}
    planned = {each.name for each in PlanSettings.fields()} & known.keys()
    settings = PlanSettings(**{name: known[name] for name in planned})
    graph = make_graph(
        study.topology, len(parties), seed=values.get("graph_seed") or settings.seed,
        radius=values.get("radius"), mean_degree=values.get("mean_degree"),
        names=[each.name for each in parties],
    )  # fmt: skip
    held = [width or 1 for width in widths]
    if over_rows:
        held = [held[0], *[0] * (len(parties) - 1)]
    others: list[Report] = [{"secure_sum": False}, *({"n_components": k} for k in numbers[:-1])]
    sent, bare, *less = (
        plan(graph, held, settings.changed(**changes), split=values["split"])["communication"]
        for changes in ({}, *others)
    )
    most, restarts = int(values["max_iter"]), int(values.get("n_init") or 1)
    counted = {"setup": restarts, "iteration": most * restarts, "last": restarts}

    def on_link(place: int, found: Report, phase: str) -> int:
        count: float = sum(kind[place] for kind in found[phase]["by_link"]["bytes"].values())
        return round(count)

    links: list[Report] = []
    for place, ends in enumerate(graph.edges):
        pair = [([*parties, study.roster.members[0]])[end] for end in ends]
        whole = on_link(place, sent, "labels")
        for phase, count in counted.items():
            whole += count * sum(on_link(place, found, phase) for found in (sent, *less))
        an_iteration = on_link(place, sent, "iteration")
        links.append({"between": pair, "iteration": an_iteration, "in_all": whole})
    sent_out = [link for link in links if link["between"][0] is not link["between"][1]]
    total = {name: sum(link[name] for link in sent_out) for name in ("iteration", "in_all")}
    masks = round(sent["iteration"]["bytes"] - bare["iteration"]["bytes"])
    total |= {
        "masks": masks,
        "iterations": most * restarts * len(numbers),
        "is_expected": sent["is_expected"],
    }
    return links, total


def matrix_of(context: Any, study: Study, n_samples: int | None) -> Report:
    """Return the connections of a study, by who opens them, and what passes over each."""
    roster, rows = study.roster, n_samples or USUAL_SAMPLES
    if study.carried:
        roster = replace(roster, relay=Member(OF_NVFLARE, b""))
    first, *others = roster.members
    parties = [one for one in roster.members if one.holds]
    passes: dict[Way, list[int]] = {}
    what: dict[Way, set[int]] = {}
    said, total, agreed = dict[str, list[str]](), Report(), agreed_before(context, study)
    for run in agreed:
        links, found = _forecast(context, study, run, rows)
        total = total or found
        for each in links:
            for way in ways_between(roster, *each["between"]):
                counts = each["iteration"], each["in_all"]
                passes[way] = [*map(add, passes.get(way, (0, 0)), counts)]
        alike = [(first, one) for one in others]
        sums = [each["between"] for each in links] or alike
        for notice in disclosures(study, {run.command: run.values}):
            pairs = sums if {*KINDS}.intersection(notice.kinds.split()) else alike
            if notice.to in ("first party", "parties"):  # as rows are matched
                pairs = [(parties[0], one) for one in parties[1:]]
            if notice.kinds:
                said.setdefault(notice.text, []).append(run.command)
                number = list(said).index(notice.text) + 1
                for way in chain(*(ways_between(roster, *pair) for pair in pairs)):
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
        "study": study.name, "edition": study.edition, "n_samples": rows, "connections": table,
        "content": content, "total": total or None,
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
