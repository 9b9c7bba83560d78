"""What a fit was and how well it went, in lines of a table for terminals and pages.

Every line is made of the report of the fit. That of a file may hold anything: a line that it lacks,
or that would make no sense, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vpem.errors import shorten

if TYPE_CHECKING:
    from vpem.network.schema import Report

    Lines = dict[str, Callable[[Report], str | list["Fact"] | None]]
    """Functions of a report by names of lines; None, and what raises, is no line."""

Fact = tuple[str, object]

COVERS = {
    "hubs": "outsiders who see the model alone; parties see terms and responsibilities, "
    "against which this is no protection",
    "server": "all who see what is published; the server sees sums without noise",
    "root": "all who see what is published; the root of the tree sees sums without noise",
    "workers": "all who see what is published; every worker adds its share of the noise",
}
"""Against whom rows are protected, by who adds the noise."""


def plural(count: int, noun: str) -> str:
    """Write "1 hub", "3 hubs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def counted(count: object, noun: str) -> str:
    """Write "1 row", "3 rows", or "? rows" of what a file does not say."""
    if isinstance(count, bool) or not isinstance(count, int):
        return f"? {noun}s"
    return plural(count, noun)


def each(counts: Sequence[int], noun: str) -> str:
    """Write "30 rows each", "28 to 30 rows each"."""
    fewest, most = min(counts), max(counts)
    return f"{plural(most, noun) if fewest == most else f'{fewest} to {most} {noun}s'} each"


def number(value: float | None, digits: int = 6) -> str:
    """Write a number for a reader."""
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
    """Write in a line what a fit has sent, and its busiest link."""
    if not sent.get("messages"):
        return "nothing was sent"
    line = f"{sent['messages']:,} messages, {size(sent['bytes'])}, {sent['rounds']:,} rounds"
    busiest = sent.get("busiest_link")
    if busiest:
        ends = [names[end] if end < len(names) else "server" for end in busiest["between"]]
        line += f"; busiest link {' - '.join(ends)} with {size(busiest['bytes'])}"
    return line


def how_summed(report: Report) -> str:
    """Say in a line how the sums were taken."""
    places = {"server": "at the server", "tree": "along a tree"}
    compress = report.get("compress")
    if report["sum"] in places:
        parts = [f"{'' if compress else 'exact '}{places[report['sum']]}"]
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


def promised(privacy: Report) -> list[Fact]:
    """Return lines of the guarantee, against whom it holds, and whether it can be trusted.

    ``privacy`` is from `vpem.fits.privacy.Guarantee.describe`.
    """
    return lines_of(privacy, PRIVACY)


def _against(privacy: Report) -> str | None:
    """Return the epsilons against observers, of a row that takes part or not, if they differ."""
    epsilons = {
        str(who): f"{_real(one['add_or_remove']):.3g}"
        for who, one in privacy["against"].items()
        if one is not None
    }
    differ = len(set(epsilons.values())) > 1
    return ", ".join(f"{who} {epsilon}" for who, epsilon in epsilons.items()) if differ else None


def _real(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


PRIVACY: Lines = {
    "privacy": lambda privacy: (
        f"epsilon {_real(privacy['epsilon']):g}, delta {_real(privacy['delta']):g}, of one row"
    ),
    "protects from": lambda privacy: COVERS[privacy["noise_by"]],
    "epsilon against": _against,
    "noise": lambda privacy: (
        f"{plural(len(privacy['noise_multipliers']), 'release')}, least multiplier "
        f"{min(map(_real, privacy['noise_multipliers'])):.3g}"
    ),
    "no privacy": lambda privacy: str(privacy["warning"]) if privacy.get("repeatable") else None,
}


def lines_of(report: Report, *groups: Lines) -> list[Fact]:
    """Return the lines that a report gives, in order."""
    facts: list[Fact] = []
    for name, line in (item for group in groups for item in group.items()):
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            said = line(report)
            facts += said if isinstance(said, list) else [] if said is None else [(name, said)]
    return facts


def holders_of(report: Report) -> list[str]:
    """Return the names of agents or workers."""
    return list(report["worker_names" if report.get("split") == "rows" else "agent_names"])


def _alone(report: Report) -> bool:
    return report.get("n_agents") == 1 and report.get("split") != "rows"


def hubs_of(report: Report, most: int) -> tuple[list[Sequence[object]], Sequence[str]] | None:
    """Return rows and heads of a table of hubs; None where there are none, or are not said."""
    if report.get("split") == "rows":
        return None
    rows: list[Sequence[object]] = []
    with suppress(LookupError, TypeError, ValueError):
        names, features = holders_of(report), report["feature_names"]
        for place, hub in enumerate(report["hubs"][:most]):
            # Of clusters only agents are said.
            one = hub if isinstance(hub, dict) else {"root": report["roots"][place], "agents": hub}
            root = "server" if one["root"] == report["server"] else names[one["root"]]
            columns = shorten((features[j] for j in sorted(one.get("features", ()))), 6)
            rows.append((place, root, shorten((names[j] for j in one["agents"]), 12), columns))
        return rows, ("hub", "root", "agents", "features")
    return None


def _weighed(report: Report) -> str | None:
    column = report["sample_weight"]
    if column is None:
        return None
    total = report["total_weight"] if "total_weight" in report else sum(report["cluster_sizes"])
    return f"{column}, {number(total)} in all"


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


def _unmeasured(report: Report) -> str | None:
    from vpem.fits.answer import NOT_MEASURED

    return None if report["spread_measured"] else NOT_MEASURED


WHAT: Lines = {
    "data": lambda report: (
        f"{plural(report['n_samples'], 'row')} x {plural(report['n_features'], 'feature')}"
    ),
    "sample weights": _weighed,
    "differences": _unmeasured,
    "mixture": _mixture,
}
"""What was fitted."""


def name_of_fedem(report: Report) -> str:
    """Name an algorithm by what it does other than EM over workers."""
    parts = ["VR-FedEM" if report["variance_reduction"] else "FedEM"]
    parts.append(f"step {report['step_size']}")
    if report["compress"] is not None:
        parts.append(str(report["compress"]))
    if report["participation"] < 1:
        parts.append(f"participation {report['participation']:g}")
    if report["batch_size"] is not None:
        parts.append(f"batches of {report['batch_size']}")
    parts.append("no memories" if report["memory"] == "none" else f"memory {report['memory']}")
    return ", ".join(parts)


def _steps(report: Report) -> str:
    """Write the steps that the noise of messages allows."""
    noise = f"codec omega {number(report['omega'], 3)}, participation {report['participation']:g}"
    noise += f", alpha {number(report['alpha'], 3)}"
    most = number(min(report["step_ceiling"], 1.0), 3)
    loops = "" if report["inner"] is None else f", outer loops of {report['inner']}"
    return f"at most {most}, safe {number(report['safe_step'], 3)} ({noise}){loops}"


def _judged(report: Report) -> str | list[Fact]:
    """Return how good a mixture is; a lower bound has its price for parameters in it."""
    if "privacy" in report:
        return "not published, to protect rows"
    if "lower_bound" in report:
        used, k = sum(report["in_use"]), len(report["in_use"])
        return [
            ("lower bound", f"{report['lower_bound']:.6f} per sample"),
            ("in use", f"{used} of {k} components, {k - used} are empty"),
        ]
    facts: list[Fact] = [("log-likelihood", f"{report['log_likelihood']:.6f} per sample")]
    if "prior" in report:
        facts.append(("penalised", f"{report['penalised_log_likelihood']:.6f} per sample"))
    return [*facts, ("BIC, AIC", f"{report['bic']:.2f}, {report['aic']:.2f}")]


def _inertia(report: Report) -> str | None:
    if "inertia" not in report:
        return None
    if "privacy" in report:
        return "not published, to protect rows"
    units = " (of standardized features)" if report["scale"] == "standard" else ""
    return number(report["inertia"], 10) + units


def _iterations(report: Report) -> str | None:
    if report.get("one_shot") is not None:
        return None
    count, *rest = took(report)
    if not report["converged"] and report.get("tol") != 0:
        rest.insert(0, "not converged")
    elif report["converged"] and "tol" in report:  # of FedEM, which may be told not to
        rest.insert(0, "converged to within noise" if report["in_noise"] else "converged")
    if "n_epochs" in report:
        rest.insert(len(rest) - 1, f"{report['n_epochs']:.4g} epochs")
    if report.get("lost_sums"):
        rest.insert(len(rest) - 1, f"{plural(len(report['lost_sums']), 'sum')} rejected")
    return ", ".join([count, *rest])


def _shot(report: Report) -> list[Fact]:
    """Return what is proven of one shot."""
    shot = report["one_shot"]
    return [
        ("proven", f"at most {shot['factor']:g} times the least possible inertia, if each k-means "
         "of the shot is solved"),
        ("agents' own", f"{number(shot['lower_bound'], 10)}, a lower bound if each is solved: the "
         f"inertia is {number(shot['inertia_over_lower_bound'], 4)} times that"),
        ("time", f"{number(report['seconds'], 3)} s"),
    ]  # fmt: skip


HOW_WELL: Lines = {
    "log-likelihood": lambda report: _judged(report) if "n_components" in report else None,
    "inertia": _inertia,
    "one shot": _shot,
    "algorithm": name_of_fedem,
    "steps": _steps,
    "iterations": _iterations,
    "squared mean field": lambda report: (
        f"{number(report['mean_field'][0], 3)} at first, {number(report['mean_field'][-1], 3)} at "
        "last"
    ),
    "projections": lambda report: plural(
        report["projections"], "weight or covariance"
    ).replace("weight or covariances", "weights or covariances"),
}  # fmt: skip
"""How it went."""


def _network(report: Report) -> str:
    if _alone(report):
        return "1 agent, so nothing was sent"
    over_rows = report.get("split") == "rows"
    parts = [
        plural(len(holders_of(report)), "worker" if over_rows else "agent"), report["topology"]
    ]  # fmt: skip
    if not over_rows:
        parts.append(f"{plural(len(report['hubs']), 'hub')} of {plural(report['hops'], 'hop')}")
    elif "worker_rows" in report:
        parts.append(each(report["worker_rows"], "row"))
    if isinstance(report.get("disagreement"), float) and "omega" in report and report["rounds"]:
        parts.append(f"statistics up to {report['disagreement']:.2g} apart")
    return ", ".join(parts)


def _sum(report: Report) -> str | list[Fact] | None:
    if report.get("one_shot") is not None:
        return [("method", f"one shot, {plural(report['one_shot']['n_cells'], 'cell')}")]
    if _alone(report):
        return None
    part = report.get("participation", 1)
    rest = f", participation {part:g}" if part != 1 and "omega" not in report else ""
    return how_summed(report) + rest


NETWORK: Lines = {"network": _network, "sum": _sum}
"""Who took part, and how they summed."""

SENT: Lines = {
    "sent by workers": lambda report: size(report["bytes_up"][-1]),
    "communication": lambda report: (
        None if _alone(report) else communication(report["communication"], holders_of(report))
    ),
    "model": lambda report: report["model"] or "not kept (give --output)",
}
"""What became of it."""


def facts_of(report: Report) -> list[Fact]:
    """Return all lines of a fit of rows, or of features, that was just made."""
    privacy = promised(report.get("privacy", {}))
    return [
        *lines_of(report, WHAT), *privacy, *lines_of(report, HOW_WELL, NETWORK, SENT)
    ]  # fmt: skip
