"""Reports of what comes before a fit: data, plans of networks, and choices among models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vpem.errors import shorten
from vpem.fits.settings import as_ranges
from vpem.pictures.contents import HUB, how_summed, hubs_of, kept, lines_of, plural, size, table_of
from vpem.records import Table, stated

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines


def _missing(summary: Report) -> str:
    missing, size = summary["n_missing"], summary["n_samples"] * summary["n_features"]
    return f"{missing} ({100 * missing / size:.2g} %)" if missing else "0"


def _notes(feature: Report) -> str:
    family = "" if feature["family"] == "gaussian" else feature["family"]
    levels = f"categorical: {shorten(feature['levels'])}" if feature["levels"] else family
    odd = {"missing": feature["missing"], "infinite": feature["non_finite"] - feature["missing"]}
    counts = [f"{count} {what}" for what, count in odd.items() if count]
    return ", ".join(filter(None, ["constant" if feature["constant"] else "", levels, *counts]))


OF_DATA: dict[str, Lines] = {
    "sizes": {
        "rows": "{n_samples}",
        "features": "{n_features}",
        "type": lambda data: f"{data['dtype']}, {data['bytes'] / 1e6:.4g} MB",
        "ids": "{has_ids:yes|no}",
        "labels": lambda data: f"{len(data['labels'])} different" if data["labels"] else "no",
        "agents": "{n_agents:?not assigned}",
        "graph": lambda data: (
            "none" if data["edges"] is None else plural(len(data["edges"]), "edge")
        ),
        "constant features": "{n_constant}",
        "values missing (NaN)": _missing,
        "values infinite": lambda data: str(data["n_non_finite"] - data["n_missing"]),
    },
    "agents": {
        "agent": "{name}",
        "number": lambda agent: str(len(agent["features"])),
        "features": lambda agent: shorten(agent["features"]),
    },
    "labels": {"label": "{label}", "rows": "{count}"},
    "columns": {
        "column": "{name}",
        "holds": lambda column: column["kind"] + (
            f", {column['different']} different"
            if column["kind"] == "text" and column["different"] is not None else ""
        ),
        "missing": "{missing:?-}", "least": "{least:?-}", "most": "{most:?-}", "use": "{use}",
    },
    "features": {
        "feature": "{name}", "mean": "{mean:.6g}", "sd": "{sd:.6g}", "min": "{min:.6g}",
        "max": "{max:.6g}", "note": _notes,
    },
}  # fmt: skip
"""Of a dataset and its parts, as `vpem.files.families.describe_dataset` reports them."""

# ---- plans ---------------------------------------------------------------------------------------

MOST_HUBS = 20
"""Hubs that a table has; JSON has all."""

PHASES = ("setup", "batch", "iteration", "last", "labels")


def _disconnected(report: Report) -> str | None:
    sent = report["communication"]
    if not sent["n_drawn"] or report["tree"] is not None:
        return None
    return f"in {100 * sent['partitioned']:.2g} % of {plural(sent['n_drawn'], 'sum')} drawn"


def _along_a_tree(report: Report) -> str:
    messages, n_bytes, rounds = map(round, report["along_a_tree"].values())
    cost = f"{plural(messages, 'message')}, {size(n_bytes)}, {plural(rounds, 'round')}"
    return f"--sum tree{'' if report['compress'] else ', exact'}: {cost} an iteration"


def _keys(report: Report) -> str | None:
    n = report["n_parties"]
    pairs = n * (n - 1) // 2
    return f"{pairs:,} pairs of parties agree on keys for masks" if report["secure_sum"] else None


def _members(report: Report) -> str | None:
    most = report["most_members"]
    if report["n_agents"] + (report["server"] is not None) <= most:
        return None
    return f"a study has at most {most} members: take MPI, or one process"


PLANNED: Lines = {
    "graph": lambda report: stated(
        f"{{topology}}, {{n_agents:{'agent' if report['split'] == 'features' else 'worker'}}}, "
        "{n_edges:link}", report.__getitem__,
    ),
    "degrees": "{degrees[min]} to {degrees[max]}, mean {degrees[mean]:.3g}",
    "diameter": "{diameter:hop}",
    "hubs": lambda report: (
        f"{len(report['hubs'])} of {plural(report['hops'], 'hop')}"
        if report["split"] == "features" else None
    ),
    "by likelihood": lambda report: (
        "the data decide; these are the hubs by size. First a fit without hops: "
        f"{size(round(report['first_fit']['bytes']))} an iteration"
    ),
    "sum": how_summed,
    "disconnected": _disconnected,
    "or": _along_a_tree,
    "keys": _keys,
    "processes": _members,
    "memory": lambda report: ", ".join(
        f"{size(n_bytes)} {who}"
        for who, n_bytes in zip(
            ("an agent", "the server", "one process that simulates all"),
            report["memory"].values(), strict=True,
        )
        if n_bytes is not None
    ),
}  # fmt: skip
"""What `vpem.fits.plan.plan` reports of a network; means are rounded."""

MIXING: dict[str, tuple[str, Lines]] = {
    "mixing": ("Mixing (* chosen)", {
        "weights": "{weights}{mark}", "mixing rate": "{rate:.6f}",
        "spectral gap": "{spectral_gap:.3g}",
    }),
    "consensus_errors": ("Consensus error after rounds, {}", {
        "rounds": "{rounds}{mark}", "plain": "{none_is_bound:<= |}{none:.2g}",
        "Chebyshev": "{chebyshev_is_bound:<= |}{chebyshev:.2g}",
    }),
    "rounds_needed": ("Rounds needed, {}", {
        "error": "{consensus_error:g}", "plain": "{none_is_bound:<= |}{none}",
        "Chebyshev": "{chebyshev_is_bound:<= |}{chebyshev}",
    }),
}  # fmt: skip
"""Tables of how fast agents agree: titles and columns."""

TIME: Lines = {
    "computing": "{flops:.3g} flops, {additions:.3g} additions, at this machine's rates",
    "handling": "{messages:.4g} messages sent or taken in one after the other",
    "masking": lambda time: (
        f"{time['pads']:.4g} masks, one for each other party and chunk" if time["pads"] else None
    ),
    "latency": "{latencies:.4g} times one way, in sequence, {chunks:chunk} of rows",
    "transfer": lambda time: f"{size(time['bytes'])} over the busiest link",
    "iteration": lambda time: "chunks are computed while others are sent" * (time["chunks"] > 2),
}
"""What the parts of an iteration's time come from."""


def tables_of_plan(report: Report) -> Iterator[Table]:
    yield Table(lines_of(report, PLANNED))
    if report["split"] == "features":
        more = len(report["hubs"]) - MOST_HUBS
        note = f"and {more} more; --json shows all" if more > 0 else ""
        yield Table(hubs_of(report, MOST_HUBS), HUB, "Hubs", (HUB[0], HUB[-1]), note=note)
    conditions, fixed = f"{report['weights']} weights", report["rounds"]
    for name, what in (("compress", ", uncompressed"), ("faults", ", without failures")):
        if report[name] is not None:
            conditions, fixed = conditions + what, None
    chosen = {"weights": report["weights"], "rounds": fixed}
    for name, (title, columns) in MIXING.items():
        if not report[name]:
            continue
        marks = (" *" * bool(chosen.items() & row.items()) for row in report[name])
        marked = [{**row, "mark": mark} for row, mark in zip(report[name], marks, strict=True)]
        yield table_of(
            marked, columns, caption=title.format(conditions), right=[*columns][name == "mixing" :]
        )
    names, sent = [*report["agent_names"], "server"], report["communication"]
    phases = {name.replace("last", "last E-step"): sent[name] for name in PHASES if name in sent}
    if not sent.get("labels", {}).get("messages"):
        phases.pop("labels", None)
    rows = [
        (phase, kind, round(row["messages"]), size(round(row["bytes"])), round(row["rounds"]))
        for phase, one in phases.items()
        for kind, row in {**one["by_kind"], "all": one}.items()
        if row is one or row["rounds"]
    ]
    about = [plural(report["n_samples"], "row")]
    if report["batch_size"] is not None:
        about.append(f"batches of {report['batch_size']}")
    about += [plural(report["n_components"], "component"), report["dtype"]]
    if sent["is_expected"]:
        about.append("means" if sent["n_drawn"] else "estimates")
    right = ("messages", "payload", "rounds")
    title = f"Communication: {', '.join(about)}"
    yield Table(rows, ("phase", "kind", *right), title, right)
    busiest = [
        (phase, " - ".join(names[end] for end in link["between"]), round(link["messages"]),
         size(round(link["bytes"])))
        for phase, one in phases.items() if (link := one["busiest_link"]) is not None
    ]  # fmt: skip
    if busiest:
        yield Table(busiest, ("phase", "link", *right[:2]), "Busiest links", right)
    if "time" in report:
        time = report["time"]
        parts = [(part, f"{time[part]:.3g} s", of) for part, of in lines_of(time, TIME)]
        link = f"{time['bandwidth'] / 1e6:g} Mbit/s, {1e3 * time['one_way_latency']:g} ms one way"
        yield Table(parts, ("part", "time", "of"), f"An iteration, links of {link}", ("time",))


# ---- choices -------------------------------------------------------------------------------------

CRITERIA = {
    "bic": "BIC", "aic": "AIC", "icl": "ICL", "sabic": "SABIC", "caic": "CAIC",
    "heldout": "held-out log-likelihood",
}  # fmt: skip
"""What a reader calls them."""


def _status(cell: Report) -> str:
    status = [cell["status"]]
    if cell["status"] != "failed":
        status += [plural(cell["recoveries"], "collapse")] if cell["recoveries"] else []
        names = ("given_up", "degenerate")
        status += [f"{cell[one]} {one.replace('_', ' ')}" for one in names if cell[one]]
    if "below" in cell:
        status.append(f"below K = {cell['below']}")
    return ", ".join(status)


COLUMNS: Lines = {
    "choice": "{choice}",
    "K": "{n_components}",
    "hops": lambda cell: ", ".join(as_ranges(cell["stands_for_hops"])),
    "covariance": "{covariance_type}",
    "hubs": "{n_hubs}",
    "params": "{n_parameters}",
    # Of models that were judged on held-out rows, and on all.
    "held-out": "{heldout:.4f}",
    "s.e.": "{standard_error:.4f}",
    "to best, s.e.": "{difference:+.4f}, {difference_error:.4f}",
    "log-lik.": "{log_likelihood:.4f}",
    "BIC": "{bic:.2f}",
    "AIC": "{aic:.2f}",
    "ICL": "{icl:.2f}",
}
OTHERS = {"sabic": "{sabic:.2f}", "caic": "{caic:.2f}"}
"""Criteria that have a column if models are judged by them."""


def _named(report: Report, place: int) -> str:
    from vpem.fits.selection.trials import name_hops

    cell = report["cells"][place]
    hops = [] if report.get("split") == "rows" else [name_hops(cell["stands_for_hops"])]
    return ", ".join([f"K = {cell['n_components']}", *hops, cell["covariance_type"]])


def _judged(report: Report, place: int) -> str:
    criterion = report["criterion"]
    line = "{heldout:.4f} (standard error {standard_error:.4f})"
    line = line if criterion == "heldout" else f"{{{criterion}:.2f}}"
    value = stated(line, report["cells"][place].__getitem__)
    return f"{_named(report, place)}: {CRITERIA[criterion]} {value}"


SEARCHED: Lines = {
    "best": lambda report: _judged(report, report["best"]),
    "fewest parameters within 1 s.e.": lambda report: _judged(report, report["one_standard_error"]),
    "folds": lambda report: (
        f"{report['folds']}, of {plural(report['n_samples'], 'row')}" if report["folds"] else None
    ),
    "fits": lambda report: (
        f"{report['n_fits']}"
        + f", {report['n_kept']} of them from the state" * bool(report["n_kept"])
    ),
    "time": "{seconds:.3g} s, {jobs:job}",
    "state": lambda report: kept(report, "state", "--state or --output"),
    "picture": lambda report: report["plot"] or "not drawn (give --plot)",
    "model file": lambda report: kept(report) + (
        f": {_named(report, report['chosen'])}"
        if report["model"] and report["chosen"] != report["best"] else ""
    ),
}  # fmt: skip
"""How a search went."""


ABREAST = 5
"""Covariance types beside each other, which fit into a narrow terminal."""

GRID_FROM = 3
"""Covariance types from which on a table has a column for each, where hops are the same."""


JUDGED_APART = ("s.e.", "to best, s.e.")
"""What there is to say of held-out rows beside their log-likelihood."""


def _grid(report: Report) -> Iterator[Table]:
    """Yield the criterion by components and covariance type, and the best three models."""
    criterion, cells, name = report["criterion"], report["cells"], CRITERIA[report["criterion"]]
    families = list(dict.fromkeys(cell["covariance_type"] for cell in cells))
    form = "{:.4f}" if criterion == "heldout" else "{:.2f}"
    rows: dict[int, dict[str, str]] = {}
    for cell in cells:
        sound = cell["status"] != "failed" and not cell["degenerate"]
        value = form.format(cell[criterion]) if sound else "NA"
        value += "*" * (cell["status"] == "not converged")
        rows.setdefault(cell["n_components"], {})[cell["covariance_type"]] = value
    counts = {
        "NA: {}, degenerate": sum(bool(cell.get("degenerate")) for cell in cells),
        "NA: {}, failed": sum(cell["status"] == "failed" for cell in cells),
        "*: {}, not converged": sum(cell["status"] == "not converged" for cell in cells),
    }
    notes = [text.format(plural(count, "model")) for text, count in counts.items() if count]
    caption = f"{name} ({report['better']} is better)"
    for first in range(0, len(families), ABREAST):
        some = families[first : first + ABREAST]
        lines = [[k, *(values.get(one, "") for one in some)] for k, values in rows.items()]
        last = first + ABREAST >= len(families)
        heads = ["K", *some]
        yield Table(lines, heads, caption, heads, note="; ".join(notes) if last else "")
    sign = -1 if criterion == "heldout" else 1
    sound_ones = [
        at for at in range(len(cells)) if cells[at]["status"] == "converged"
        and (not cells[at]["degenerate"] or at == report["best"])
    ]  # fmt: skip
    # The best is first even where others have the same value.
    order = sorted(sound_ones, key=lambda at: (sign * cells[at][criterion], at != report["best"]))
    about: Lines = {
        name: lambda cell: form.format(cell[criterion]),
        "difference": lambda cell: form.format(cell[criterion] - cells[order[0]][criterion]),
        "rel. entropy": "{relative_entropy:.4f}",
    }
    if criterion == "heldout":
        about = {name: COLUMNS["held-out"], **{one: COLUMNS[one] for one in JUDGED_APART}}
    columns: Lines = {"model": "{named}", **about, "status": _status}
    three = [dict(lines_of(cells[at] | {"named": _named(report, at)}, columns)) for at in order[:3]]
    lines = [[one.get(head, "-") for head in columns] for one in three]
    yield Table(lines, list(columns), "The best three", list(about))


def tables_of_selection(report: Report) -> Iterator[Table]:
    families = {cell["covariance_type"] for cell in report["cells"]}
    hops = {tuple(cell["stands_for_hops"]) for cell in report["cells"]}
    if len(families) >= GRID_FROM and len(hops) == 1:
        yield from _grid(report)
        yield Table(lines_of(report, SEARCHED))
        return
    criterion, best, small = (report[name] for name in ("criterion", "best", "one_standard_error"))
    name, marks = CRITERIA[criterion], {small: "1 s.e."}
    marks[best] = "best, 1 s.e." if best == small else "best"
    chosen: Lines = {name: OTHERS[criterion]} if criterion in OTHERS else {}
    columns: Lines = COLUMNS | chosen | {
        f"worst {name}": lambda cell: (
            f"{max(one[criterion] for one in cell['restarts']):.2f}"
            if len(cell["restarts"]) > 1 else None
        ),
        "iterations": "{n_iter}", "status": _status,
    }  # fmt: skip
    for head in ("hops", "hubs") if report.get("split") == "rows" else ():
        del columns[head]
    rows = [{**cell, "choice": marks.get(at, "")} for at, cell in enumerate(report["cells"])]
    yield table_of(
        rows, columns, caption=f"Models by {name} ({report['better']} is better)",
        right=[head for head in columns if head not in ("choice", "covariance", "status")],
        # The most dispensable first; JSON has them all.
        spare=["iterations", "hubs", "log-lik.", "params", "to best, s.e.",
               *(other for other in ("AIC", "ICL", "BIC") if other != name)],
    )  # fmt: skip
    yield Table(lines_of(report, SEARCHED))
