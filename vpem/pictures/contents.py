"""Reports of mixtures, clusters and imputations: tables, and what a page or a terminal shows.

A command prints `facts_of` a fit that was just made; a page, and `vpem show`, hold lines of the
same, from the report in a file. That may hold anything: a line that it lacks, or that would make no
sense, is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vpem.errors import VpemError, shorten
from vpem.records import Table, stated
from vpem.rules import summing

if TYPE_CHECKING:
    from vpem.files.models import Model
    from vpem.files.results import Imputed, StoredClustering
    from vpem.network.schema import Report
    from vpem.pictures.saved import EvaluationData, Saved, SavedFit

    Lines = dict[str, str | Callable[[Report], str | None]]
    """Lines by names: as `vpem.records.stated` has them, or functions; None is no line."""

Fact = tuple[str, object]

COVERS = {
    "hubs": "outsiders who see the model alone; parties see terms and responsibilities, "
    "against which this is no protection",
    "server": "all who see what is published; the server sees sums without noise",
    "root": "all who see what is published; the root of the tree sees sums without noise",
    "workers": "all who see what is published; every worker adds its share of the noise",
    "each worker": "all others, the server too: every worker adds the noise before it sends",
}
"""Against whom rows are protected, by who adds the noise."""


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def counted(count: object, noun: str) -> str:
    """Write "1 row", "3 rows", or "? rows" of what a file does not say."""
    if isinstance(count, bool) or not isinstance(count, int):
        return f"? {noun}s"
    return plural(count, noun)


def number(value: float | None, digits: int = 6) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def size(count: float) -> str:
    """Write a number of bytes for a reader: 912 B, 4.61 MB."""
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count:.0f} B"


def took(report: Report) -> list[str]:
    """Write the iterations of a fit and its time, which reports of private fits do not have."""
    seconds = report["seconds"]
    return [str(report["n_iter"]), *([] if seconds is None else [f"{number(seconds, 3)} s"])]


def communication(sent: Report, names: Sequence[str]) -> str:
    if not sent.get("messages"):
        return "nothing was sent"
    line = f"{sent['messages']:,} messages, {size(sent['bytes'])}, {sent['rounds']:,} rounds"
    busiest = sent.get("busiest_link")
    if busiest:
        ends = [names[end] if end < len(names) else "server" for end in busiest["between"]]
        line += f"; busiest link {' - '.join(ends)} with {size(busiest['bytes'])}"
    return line


def how_summed(report: Report) -> str:
    way, compress = summing(report["sum"]), report.get("compress")
    if not way.has_rounds:
        place = "at the server" if way.needs_server else way.place
        parts = [f"{'' if compress else 'exact '}{place}"]
        if report.get("secure_sum"):
            parts[0] += ", under masks"
            if report.get("split") == "rows":
                parts.append("no row shown")
        if report["tree"] is not None:
            parts.append(f"{plural(report['tree']['hops'], 'hop')} from its root")
    else:
        chebyshev = " (Chebyshev)" if report.get("acceleration") == "chebyshev" else ""
        parts = [
            f"{plural(report['rounds'], 'round')}{chebyshev}",
            f"{report['weights']} weights",
            f"mixing rate {report['mixing_rate']:.4f}",
        ]
        if report["consensus_error"] is not None:
            bound = "at most " if report.get("consensus_error_is_bound") else ""
            parts.append(f"consensus error {bound}{report['consensus_error']:.2g}")
    if compress is not None:
        parts.append(f"compressed by {compress}")
    for name, chance in (report["faults"] or {}).items():
        if chance:
            parts.append(f"{name.replace('_', ' ')} {chance:g}")
    return ", ".join(parts)


def lines_of(report: Report, *groups: Lines) -> list[Fact]:
    facts: list[Fact] = []
    for name, line in (item for group in groups for item in group.items()):
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            get = report.__getitem__
            said = stated(line, get) if isinstance(line, str) else line(report)
            facts += [] if said is None else [(name, said)]
    return facts


def _against(privacy: Report) -> str | None:
    """Return the epsilons against observers, of a row that takes part or not, if they differ."""
    listed = [(who, one) for who, one in privacy["against"].items() if one is not None]
    epsilons = [f"{one['add_or_remove']:.3g}" for _, one in listed]
    said = [f"{who} {epsilon}" for (who, _), epsilon in zip(listed, epsilons, strict=True)]
    return ", ".join(said) if len(set(epsilons)) > 1 else None


PRIVACY: Lines = {
    "privacy": "epsilon {epsilon:g}, delta {delta:g}, of one row",
    "protects from": lambda privacy: COVERS[privacy["noise_by"]],
    "epsilon against": _against,
    "noise": lambda privacy: (
        f"{plural(len(privacy['noise_multipliers']), 'release')}, least multiplier "
        f"{min(privacy['noise_multipliers']):.3g}"
    ),
    "no privacy": lambda privacy: str(privacy["warning"]) if privacy["repeatable"] else None,
}


def holders_of(report: Report) -> list[str]:
    return list(report.get("worker_names") or report["agent_names"])


def _alone(report: Report) -> bool:
    return report.get("n_agents") == 1 and report.get("split") != "rows"


HUB = ("hub", "root", "agents", "features")
"""Heads of `hubs_of`."""


def hubs_of(report: Report, most: int) -> list[Sequence[object]]:
    """Return rows of a table of hubs; none where they are not said, or workers hold rows."""
    rows: list[Sequence[object]] = []
    with suppress(LookupError, TypeError, ValueError):
        names, features = holders_of(report), report.get("feature_names")
        for place, hub in enumerate([] if report.get("split") == "rows" else report["hubs"][:most]):
            # Of clusters only agents are said.
            one = hub if isinstance(hub, dict) else {"root": report["roots"][place], "agents": hub}
            root = "server" if one["root"] == report["server"] else names[one["root"]]
            columns = one.get("n_features")  # a plan may know no more of them
            if features is not None:
                columns = shorten((features[j] for j in sorted(one.get("features", ()))), 3)
            rows.append((place, root, shorten((names[j] for j in one["agents"]), 12), columns))
        return rows
    return []


def _weighed(report: Report) -> str | None:
    column = report["sample_weight"]
    total = report["total_weight"] if "total_weight" in report else sum(report["cluster_sizes"])
    return None if column is None else f"{column}, {number(total)} in all"


def _mixture(report: Report) -> str:
    hubs, kind = report.get("hubs", ()), report["covariance_type"]
    joint = report.get("split") == "rows" or _alone(report)
    form = f"{kind} covariance{'' if joint else ' in hubs'}"
    if len(hubs) > 1 and all(len(hub["features"]) == 1 for hub in hubs):
        tied = "tied, " * kind.startswith("tied")
        form = f"{tied}diagonal covariance (each hub has one feature)"
    parts = [plural(report["n_components"], "component"), form]
    if "n_factors" in report:
        parts.append(plural(report["n_factors"], "factor"))
    return ", ".join([*parts, plural(report["n_parameters"], "parameter")])


WHAT: Lines = {
    "data": "{n_samples:row} x {n_features:feature}",
    "sample weights": _weighed,
    "mixture": _mixture,
}
"""What was fitted."""


FEDERATED = {"fedem": "FedEM", "vr-fedem": "VR-FedEM", "fedmissem": "FedMissEM"}


def name_of_fedem(report: Report) -> str:
    parts = [FEDERATED[report["algorithm"]], f"step {report['step_size']}"]
    if report["compress"] is not None:
        parts.append(str(report["compress"]))
    if report["participation"] < 1:
        parts.append(_participation(report))
    if report["batch_size"] is not None:
        parts.append(f"batches of {report['batch_size']}")
    of_memory = {"none": "no memories", "naive": "naive mean"}
    parts.append(of_memory.get(report["memory"], f"memory {report['memory']}"))
    return ", ".join(parts)


def _participation(report: Report) -> str:
    more = " or more" if report.get("participation_by_worker") else ""
    return f"participation {report['participation']:g}{more}"


def _steps(report: Report) -> str:
    noise = f"codec omega {number(report['omega'], 3)}, {_participation(report)}"
    noise += f", alpha {number(report['alpha'], 3)}"
    most = number(min(report["step_ceiling"], 1.0), 3)
    loops = "" if report["inner"] is None else f", outer loops of {report['inner']}"
    return f"at most {most}, safe {number(report['safe_step'], 3)} ({noise}){loops}"


def _iterations(report: Report) -> str | None:
    if report.get("one_shot") is not None:
        return None
    count, *rest = took(report)
    if report.get("lost_sums"):
        rest.insert(0, f"{plural(len(report['lost_sums']), 'sum')} rejected")
    if "n_epochs" in report:
        rest.insert(0, f"{report['n_epochs']:.4g} epochs")
    noise = " to within noise" * bool(report["converged"] and report.get("in_noise"))
    if report["converged"] is not None:
        rest.insert(0, outcome(report["converged"], report.get("tol")) + noise)
    return ", ".join([count, *rest])


def outcome(converged: object, tol: object) -> str:
    if not converged and tol == 0:
        return "convergence not checked"
    return "converged" if converged else "not converged"


def _outliers(found: Report) -> str:
    if found["kind"] == "noise":
        weight = f"noise of weight {found['weight']:.4f}, in a volume of"
        return f"{weight} exp({found['log_volume']:.4f})"
    return f"rows of a log-likelihood below {found['log_density']:.4f} are trimmed"


HOW_WELL: Lines = {
    "quality": lambda report: "not published, to protect rows" if "privacy" in report else None,
    # A lower bound has its price for parameters in it.
    "lower bound": "{lower_bound:.6f} per sample",
    "in use": lambda report: (
        f"{sum(report['in_use'])} of {len(report['in_use'])} components, "
        f"{report['in_use'].count(False)} are empty"
    ),
    "log-likelihood": lambda report: (
        None if "lower_bound" in report else f"{report['log_likelihood']:.6f} per sample"
    ),
    "outliers": lambda report: _outliers(report["outliers"]),
    "penalised": "{penalised_log_likelihood:.6f} per sample",
    "left out": lambda report: (
        shorten([report["feature_names"][j] for j in report["features_left_out"]])
        + ": every component has the mean of all rows"
        if report["features_left_out"]
        else None
    ),
    "BIC, AIC": "{bic:.2f}, {aic:.2f}",
    "inertia": lambda report: (
        f"{report['inertia']:.10g}"
        + " (of standardized features)" * (report["scale"] == "standard")
    ),
    "proven": "at most {one_shot[factor]:g} times the least possible inertia, if each k-means of "
    "the shot is solved",
    "agents' own": "{one_shot[lower_bound]:.10g}, a lower bound if each is solved: the inertia is "
    "{one_shot[inertia_over_lower_bound]:.4g} times that",
    "time": lambda report: f"{report['seconds']:.3g} s" if report["one_shot"] else None,
    "algorithm": name_of_fedem,
    "steps": _steps,
    "iterations": _iterations,
    "squared mean field": lambda report: (
        f"{report['mean_field'][0]:.3g} at first, {report['mean_field'][-1]:.3g} at last"
    ),
    "projections": lambda report: plural(report["projections"], "weight or covariance").replace(
        "weight or covariances", "weights or covariances"
    ),
}
"""How it went."""


def _network(report: Report) -> str:
    if _alone(report):
        return "1 agent, so nothing was sent"
    over_rows, observers = report.get("split") == "rows", "n_entries" in report
    noun = "observer" if observers else "worker" if over_rows else "agent"
    parts = [plural(len(holders_of(report)), noun), report["topology"]]
    if not over_rows and not observers:
        parts.append(f"{plural(len(report['hubs']), 'hub')} of {plural(report['hops'], 'hop')}")
    elif "worker_rows" in report:
        fewest, most = min(report["worker_rows"]), max(report["worker_rows"])
        rows = plural(most, "row") if fewest == most else f"{fewest} to {most} rows"
        parts.append(f"{rows} each")
    if report.get("algorithm") in FEDERATED and report["rounds"]:
        parts.append(f"statistics up to {report['disagreement']:.2g} apart")
    return ", ".join(parts)


def _sum(report: Report) -> str | None:
    if _alone(report) or report.get("one_shot"):
        return None
    part = 1 if report.get("algorithm") in FEDERATED else report.get("participation", 1)
    return how_summed(report) + (f", participation {part:g}" if part != 1 else "")


def _aligned(report: Report) -> str:
    alignment = report["alignment"]
    outer = alignment["join"] == "outer"
    lost = [
        f"{one['name']} {'lacks' if outer else 'lost'} {one['absent' if outer else 'lost']} of "
        f"{(alignment if outer else one)['rows']}"
        for one in alignment["parties"]
    ]
    rows = plural(alignment["rows"], "row")
    return f"{rows} aligned by {alignment['level']}: {', '.join(lost)}"


def kept(report: Report, name: str = "model", options: str = "--output") -> str:
    return str(report[name] or f"not kept (give {options})")


NETWORK: Lines = {
    "parties": _aligned,
    "network": _network,
    "method": "one shot, {one_shot[n_cells]:cell}",
    "sum": _sum,
}
"""Who took part, and how they summed."""

SENT: Lines = {
    "sent by workers": lambda report: size(report["bytes_up"][-1]),
    "communication": lambda report: (
        None if _alone(report) else communication(report["communication"], holders_of(report))
    ),
    "model file": kept,
}
"""What became of it."""


def facts_of(report: Report) -> list[Fact]:
    """Return all lines of a fit of rows, or of features, that was just made."""
    from vpem.fits.answer import NOT_MEASURED

    promises = lines_of(report["privacy"], PRIVACY) if "privacy" in report else []
    differences: Lines = {
        "differences": lambda report: None if report["spread_measured"] else NOT_MEASURED
    }
    what = lines_of(report, WHAT, differences)
    return what + promises + lines_of(report, HOW_WELL, NETWORK, SENT)


SCORED: Lines = {
    "rows": "{n_samples}",
    "rows trimmed": "{n_trimmed}",
    "parameters": "{n_parameters}",
    "clusters": "{n_clusters}",
    "log-likelihood per sample": "{log_likelihood:.6f}",
    "log-likelihood, total": "{total_log_likelihood:.4f}",
    "BIC": "{bic:.4f}",
    "AIC": "{aic:.4f}",
    "inertia": "{inertia:.10g}",
    "inertia per sample": "{inertia_per_sample:.10g}",
}
"""How well a fit describes rows, `vpem.fits.spread_rows.describe_score`."""

AGREED: Lines = {
    "accuracy, best one-to-one mapping": "{accuracy:.4f}",
    "adjusted Rand index": "{adjusted_rand_index:.4f}",
    "normalized mutual information": "{normalized_mutual_information:.4f}",
}
"""How well components agree with labels, `vpem.fits.answer.Agreement`."""

MEANINGS = {
    "setup": "setup",
    "flooding": "agreeing",
    "estep": "rounds of E-steps",
    "stopping": "agreeing to stop",
    "server": "sums at the server",
    "labels": "labels",
}
"""What the ledger's kinds are, in a word or two."""

MOST_FEATURES = 60
"""Rows of the table of means."""

MOST_LINKS = 10

MOST_HUBS = 50

FEW_HUBS = 20
"""Up to which a terminal lists them below a fit."""

MOST_POINTS = 8
"""Of a curve."""

ALGORITHMS = {
    "vp-em": "VP-EM over split features",
    "em-rows": "distributed EM over split rows",
    "fedem": "FedEM over split rows",
    "vr-fedem": "VR-FedEM over split rows",
    "k-means": "k-means",
}


def table_of(
    reports: Sequence[Report], columns: Lines, most: int | None = None, **looks: Any
) -> Table:
    """Return a table with a row for each of the first reports, but no column without a cell."""
    rows = [dict(lines_of(one, columns)) for one in reports[:most]]
    heads = [head for head in columns if any(head in row for row in rows)]
    if len(rows) < len(reports):
        looks["note"] = f"and {len(reports) - len(rows)} more; --json shows all"
    return Table([[row.get(head, "-") for head in heads] for row in rows], heads, **looks)


Items = list[Table | list[str] | str]
"""Tables, lists of warnings, and sentences."""


@dataclass(frozen=True)
class Section:
    """Part of a report: its name and heading, what it says, and kinds of pictures."""

    name: str
    heading: str
    items: Sequence[Table | list[str] | str]
    pictures: Sequence[str] = ()


@dataclass(frozen=True)
class Contents:
    """A report of a fit; sections without items are left out."""

    title: str
    lead: str
    sections: Sequence[Section]


def sent_by_phase(kinds: Mapping[str, Mapping[str, float]]) -> Table | str:
    if not kinds:
        return "Nothing was sent."
    rows, columns = [], ("messages", "bytes", "rounds")
    totals = {name: sum(counted[name] for counted in kinds.values()) for name in columns}
    for kind, counted in {**kinds, "all": totals}.items():
        messages, rounds = f"{counted['messages']:,.0f}", f"{counted['rounds']:,.0f}"
        rows.append((MEANINGS.get(kind, kind), messages, size(counted["bytes"]), rounds))
    return Table(rows, ("phase", "messages", "payload", "rounds"), "By phase")


def warnings_of(said: list[str]) -> tuple[list[Section], list[str]]:
    if said:
        return [Section("warnings", "Warnings", [said])], []
    return [], ["No warnings were given."]


def tables_of_fit(report: Report) -> Iterator[Table]:
    """Yield what a terminal shows of a fit that was just made: those in use, facts, few hubs."""
    from vpem.fits.answer import as_table

    noun, in_use = "cluster" if "clusters" in report else "component", report.get("in_use")
    listed = [one for one in report[f"{noun}s"] if in_use is None or in_use[one[noun]]]
    table = as_table(listed, noun, "privacy" in report)
    yield replace(table, caption=f"{noun.capitalize()}s")
    yield Table(facts_of(report))
    hubs = hubs_of(report, FEW_HUBS + 1)
    joint = any("," in str(row[-1]) for row in hubs)
    if joint and len(hubs) <= FEW_HUBS and report["n_agents"] > 1:
        yield Table(hubs, HUB, "Hubs", right=HUB[:1])


def contents_of_fit(saved: SavedFit, rows: EvaluationData | None) -> Contents:
    from vpem.fits.answer import as_table

    said = [str(one) for one in saved.reported("warnings", list) or []]
    privacy = saved.reported("privacy", dict) or {}
    if privacy.get("repeatable"):
        said.insert(0, f"Privacy: {privacy.get('warning')}.")
    converged = saved.reported("converged", bool)
    if converged is False and saved.report.get("participation") is None:
        steps = saved.reported("n_iter", int)
        what = f"The fit has not converged: it still changed after {steps} iterations."
        said.insert(0, what if steps else "This is where a fit starts: no iteration was run.")
    for name, what in (
        ("recoveries", "components collapsed and were reinitialised"),
        ("partitions", "iterations found the network disconnected and changed nothing"),
        ("reseeded", "empty clusters were reinitialised"),
    ):
        happened = saved.reported(name, list) or []
        if happened:
            said.append(f"{len(happened)} {what}.")
    warned, course = warnings_of(list(dict.fromkeys(said)))
    promises = lines_of(privacy, PRIVACY)
    k, d = saved.n_components, len(saved.feature_names)
    described, noisy = saved.answer.describe(saved.noun), "privacy" in saved.report
    components: Items = [as_table(described, saved.noun, noisy), *saved.answer.notes]
    rows_of_hubs = hubs_of(saved.report, MOST_HUBS)
    hubs: Items = [Table(rows_of_hubs, HUB, right=HUB[:1])] if rows_of_hubs else []
    more = len(saved.reported("hubs", list) or ()) - MOST_HUBS
    hubs += [f"{more} more hubs are in the file."] if hubs and more > 0 else []
    checks = ("confusion", "responsibilities")
    # Of two features the projection is the one pair.
    pictures = ("marginals", "pairs") if d > 2 else ("marginals",)
    sections = [
        *warned,
        Section("components", f"{saved.noun.capitalize()}s", components, ("profile", "projection")),
        Section("quality", "How well", _quality(saved, rows), checks),
        Section("parameters", saved.heading, _means(saved), pictures),
        Section("course", "How the fit went", course, ("history",)),
        Section("privacy", "Privacy of rows", [Table(promises)] if promises else []),
        Section("hubs", "Who took part", hubs, ("graph", "sparsity")),
        Section("sent", "What was sent", _sent(saved), ("communication",)),
        Section("fitted", "Settings", _fitted(saved.stored, saved.stored.options, WHAT, NETWORK)),
    ]
    name = os.path.basename(saved.path)
    title = f"{name}: {k} {saved.noun}{'' if k == 1 else 's'}, {d} feature{'' if d == 1 else 's'}"
    algorithm = saved.reported("algorithm", str)
    kind = ALGORITHMS.get(algorithm or "", algorithm or "a Gaussian mixture")
    if algorithm == "k-means":
        kind += f" over split {saved.report.get('split', 'data')}"
    return Contents(title, f"{_lead(saved)} Fitted by {kind}.", sections)


def _lead(saved: SavedFit) -> str:
    from vpem.fits.answer import NAMED, SEEN

    answer, noun, k = saved.answer, saved.noun, saved.n_components
    n = saved.reported("n_samples", int)
    of = "" if n is None else f" of {plural(n, 'row')}"
    empty = sum(not used for used in saved.reported("in_use", list) or ())
    if empty:
        of = f", {empty} of them empty,{of}"
    if k == 1:
        return f"One {noun}{of}."
    first = int(answer.weights.argmax())
    label = f" ({answer.labels[first]})" if first < len(answer.labels) else ""
    about = "about " if "privacy" in saved.report else ""
    outside = (saved.reported("outliers", dict) or {}).get("weight", 0.0)
    share = f"{about}{100 * answer.weights[first] * (1 - outside):.0f} %"
    named = [answer.feature_names[j] for j in answer.telling[:NAMED]
             if answer.telling_shares[j] > SEEN**2]  # fmt: skip
    listed = " and ".join(filter(None, (", ".join(named[:-1]), *named[-1:])))
    apart = f"{noun}s differ most in {listed}" if named else f"means of {noun}s hardly differ"
    return f"{k} {noun}s{of}: the largest, {noun} {first}{label}, has {share} of the rows; {apart}."


def _fitted(
    stored: Model | StoredClustering | Imputed, options: Report, *groups: Lines
) -> list[Table]:
    data = stored.report.get("data")
    fitted: list[Fact] = [("read from", data if isinstance(data, str) else "not said")]
    fitted += lines_of(stored.report, *groups)
    said = options | {name: value for name, value in stored.report.items() if value is not None}
    for name in ("step_size", "batch_size", "accelerate", "scale", "missing", "init", "seed"):
        if isinstance(said.get(name), int | float | str):
            fitted.append((name.replace("_", " "), said[name]))
    versions = ", ".join(f"{name} {value}" for name, value in stored.versions.items())
    return [Table([*fitted, ("versions", versions or "not said")])]


def _quality(saved: SavedFit, rows: EvaluationData | None) -> Items:
    from vpem.fits.answer import COVARIATES, estimates_table
    from vpem.fits.spread_rows import describe_score
    from vpem.pictures.assignments import agreement_of

    reported = lines_of(saved.report, HOW_WELL)
    items: Items = [Table(reported or [("quality", "not said")], caption="As the fit reported")]
    if rows is None:
        return items
    quality: list[Fact] = [("data", rows.where)]
    score = describe_score(saved.stored, rows.X, "marginalize")
    quality += lines_of(score, SCORED)
    if rows.labels is not None:
        try:
            quality += lines_of(agreement_of(saved, rows).describe(), AGREED)
        except VpemError as error:
            quality.append(("labels", str(error)))
    items.append(Table(quality, caption="Held against these data"))
    if "covariates" in score:
        items.append(estimates_table(score["covariates"], COVARIATES))
    return items


def _means(saved: SavedFit) -> Items:
    d = len(saved.feature_names)
    k = saved.n_components
    means, first = saved.parts().means, saved.summaries()
    rows: list[Sequence[object]] = [(name, *values) for name, values in first.items()]
    heads = [saved.centre, *(f"{saved.noun} {c}" for c in range(k))]
    for j in range(min(d, MOST_FEATURES)):
        levels = saved.answer.levels.get(j)
        cells = [f"{value:.6g}" for value in means[:, j]] if levels is None else levels.modes()
        rows.append((saved.feature_names[j], *cells))
    left = d - MOST_FEATURES
    more = [f"{left} more features are in the file."] if left > 0 else []
    return [Table(rows, heads), *more]


def _sent(saved: SavedFit) -> Items:
    import numpy as np

    try:
        kinds = saved.sent_by_kind()
    except VpemError as error:
        return [str(error)]
    items: Items = [sent_by_phase(kinds)]
    total = sum(counted["bytes"] for counted in kinds.values())
    if not total:
        return items
    setup = kinds.get("setup", {}).get("bytes", 0.0)
    said = f"The setup took {size(setup)}, {100 * setup / total:.3g} % of all."
    try:
        history = saved.history()
    except VpemError:
        return [*items, said, *_busiest(saved)]
    steps = int(history.iteration[-1] - history.iteration[0])
    if history.sent is None or steps < 1:
        return [*items, said, *_busiest(saved)]
    sent, means = history.sent, history.means()
    each = float(sent[-1] - sent[0]) / steps
    said += f" An iteration took {size(each)} on average, the first left out."
    shown = np.unique(np.linspace(0, len(sent) - 1, MOST_POINTS).round().astype(int))
    rows = [(str(history.iteration[at]), f"{means[at]:.8g}", size(sent[at])) for at in shown]
    name = history.quantity[:1].upper() + history.quantity.split(" per")[0][1:]
    heads = ("iteration", history.quantity, "sent by then")
    return [*items, said, Table(rows, heads, f"{name} against bytes"), *_busiest(saved)]


def _busiest(saved: SavedFit) -> Items:
    import numpy as np

    try:
        ends, by_kind = saved.links()
        names = saved.node_names(saved.graph().n_nodes)
    except VpemError as error:
        return [str(error)]
    total = sum(by_kind.values(), np.zeros(len(ends)))
    listed = [
        (f"{names[ends[at, 0]]} - {names[ends[at, 1]]}", size(total[at]))
        for at in (-total).argsort(kind="stable")[:MOST_LINKS]
        if total[at]
    ]
    caption = f"Busiest of {len(total)} links, both directions"
    return [Table(listed, ("link", "payload"), caption)]


# ---- imputations -----------------------------------------------------------------------------

MOST_COLUMNS = 20
"""Columns up to which there is the trend over them, and those with errors of their own."""


def _chosen(report: Report) -> str:
    choice = report["choice"]
    line = f"{choice['error']:.4g} on held-out entries, column means "
    line += f"{number(choice['column_means'], 4)}; {len(choice['candidates'])} fits compared"
    known = choice["mixture"] in ("tried", "the method was given")
    return line if known else f"{line}; no mixture: {choice['mixture']}"


COMPLETED: Lines = {
    "matrix": lambda report: stated(
        "{n_samples:row} x {n_features:column}, {share_seen:.1%} seen"
        + ", weighed by {sample_weight}" * bool(report.get("sample_weight")), report.__getitem__,
    ),
    "mixture": lambda report: stated(
        "{n_components:component}, {covariance_type} covariance"
        + " of columns of one observer" * (report["n_workers"] != 1 and report["split"] != "rows")
        + ", {n_parameters:parameter}", report.__getitem__,
    ),
    "model": lambda report: stated(
        "rank {rank}, ridge {ridge:.6g}, {law}"
        + " of variance {variance:.6g}" * (report["variance"] is not None)
        + " of {trials} trials" * ("trials" in report), report.__getitem__,
    ),
    "log-likelihood": lambda report: stated(
        "{log_likelihood:.6f} per sample, BIC {bic:.2f}" if "bic" in report
        else "{log_likelihood:.6f} an entry seen", report.__getitem__,
    ),
    "draws": "{draws[n_draws]}, each of a fit to weighed rows: {draws[n_iter]} iterations",
    "singular values": lambda report: ", ".join(f"{v:.4g}" for v in report["singular_values"][:8]),
    **{name: HOW_WELL[name] for name in ("algorithm", "iterations")},
    "intercepts": lambda report: shorten(
        [f"{name} {number(one, 3)}" for name, one in report["intercepts"].items()]
    ),
    "projections": lambda report: (
        f"{report['projections']:,} means moved into the law's domain"
        if report["projections"] else None
    ),
    "chosen by": _chosen,
    **NETWORK,
    "communication": SENT["communication"],
    "file": kept,
}  # fmt: skip
"""How a matrix was completed, by a mixture or by one of low rank."""

SET: Lines = {
    **{name: COMPLETED[name] for name in ("matrix", "mixture", "model", "draws")},
    "holdout": "{holdout[share]:g} of the entries seen, {holdout[n_entries]} in all",
}
"""What was imputed, and how."""


def tables_of_imputation(report: Report, names: Sequence[str]) -> Iterator[Table | list[str] | str]:
    parts: tuple[Callable[..., Items], ...] = (
        _held_out, lambda report, _: [Table(lines_of(report, COMPLETED))], _chosen_by_column,
        _trend,
    )  # fmt: skip
    for part in parts:
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            yield from part(report, names)


def contents_of_imputation(saved: Saved, _: None) -> Contents:
    from vpem.pictures.saved import counted_by_kind

    imputed, report, sizes = saved.stored, saved.stored.report, saved.stored.describe()
    warned, course = warnings_of(report.get("warnings") or [])
    kinds = counted_by_kind(report.get("communication") or {})
    sections = [
        *warned,
        Section("completed", "The completed matrix", [
            *tables_of_imputation(report, imputed.column_names)
        ]),
        Section("course", "How the fit went", course, ("trends",)),
        Section("sent", "What was sent", [] if kinds is None else [sent_by_phase(kinds)]),
        Section("fitted", "Settings", _fitted(imputed, {}, SET, NETWORK)),
    ]  # fmt: skip
    matrix = f"{plural(sizes['rows'], 'row')} x {plural(sizes['columns'], 'column')}"
    gaps = f"{sizes['entries_imputed']} of {sizes['rows'] * sizes['columns']} entries"
    of = f" of {imputed.source}" if imputed.source else ""
    drawn = f", and drawn {plural(sizes['draws'], 'time')}" if sizes["draws"] else ""
    title = f"{os.path.basename(saved.path)}: a completed matrix, {matrix}"
    return Contents(title, f"{gaps}{of} were imputed, since no observer saw them{drawn}.", sections)


def _trend(report: Report, names: Sequence[str]) -> Items:
    from vpem.terms.lowrank.observations import ENTRY_LAWS

    unit = ENTRY_LAWS[report["law"]].unit
    head = f"mean fitted {unit}".replace("fitted mean", "fitted")
    means = [number(mean, 5) for mean in report["column_trend"]]
    rows = [*zip(names, means, strict=True)]
    return (
        [Table(rows, ("column", head), "Trend over columns")] if len(rows) <= MOST_COLUMNS else []
    )


def _chosen_by_column(report: Report, _: Sequence[str]) -> Items:
    choice = report["choice"]
    lines = [
        (one["column"], one["error"], one["column_means"],
         "column mean" if one["column_means"] < one["error"] else "fit")
        for one in choice["by_column"]
    ]  # fmt: skip
    title = "Entries held out to choose, in units of the fit"
    return [_by_column(title, choice["loss"].replace("_", "-"), "better", lines)]


def _by_column(title: str, loss: str, more: str, lines: list[tuple[Any, ...]]) -> Table:
    """A line a column: of many those whose error is largest beside the column mean's."""
    if len(lines) > MOST_COLUMNS:
        title += f": the {MOST_COLUMNS} worst of {len(lines)} columns, beside column means"
        lines.sort(key=lambda line: -line[1] / line[2] if line[2] > 0 else 0.0)
    cells = [(name, number(error, 4), number(means, 4), last)
             for name, error, means, last in lines[:MOST_COLUMNS]]  # fmt: skip
    heads = ("column", loss, f"{loss} of column means", more)
    return Table(cells, heads, title, right=(*heads[1:3], "hidden"))


def _held_out(report: Report, _: Sequence[str]) -> Items:
    scores = report["holdout"]
    heads, other, count = list(scores["model"]), scores["iterative_imputer"], scores["n_entries"]
    lines = [
        (name.replace("_", " "), *(number(scores[name].get(head), 5) for head in heads))
        for name in ("model", "column_means", "iterative_imputer")
    ]
    title = f"Error on {count} hidden {'entry' if count == 1 else 'entries'}"
    named = {"standardized_rmse": "in standard deviations"}
    head = [named.get(head, head.replace("_", "-")) for head in heads]
    skipped = [f"iterative imputer was not run: {other['skipped']}"] if "skipped" in other else []
    errors = [
        (one["column"], one["model"]["rmse"], one["column_means"]["rmse"], one["n_entries"])
        for one in scores["by_column"]
    ]
    by_column = _by_column("Error by column", "rmse", "hidden", errors)
    return [Table(lines, ("", *head), title), *skipped, by_column]
