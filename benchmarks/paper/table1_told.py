"""What the runs for Table 1 say, in tables, sentences and pictures."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from .report import Report, Table
from .table1 import SETUPS, STARTS

PAPER = {"k-means": 76.7, "EM": 84.3, "VP1": 85.7, "VP2": 84.4, "VP3": 87.2}
"""Clustering accuracy in per cent, Table 1."""

NEAR = 0.1
"""Points of accuracy within which two numbers are the same."""

TITLES = {
    "k-means": "k-means, raw features", "k-means standard": "k-means, standardized",
    "one-shot k-means": "one-shot k-means, raw",
    "one-shot k-means standard": "one-shot k-means, standardized",
    "scikit-learn EM": "EM, scikit-learn's defaults", "EM": "EM, converged",
    "0 hops": "VP-EM, 0 hops", "VP1": "VP1, cycle", "VP2": "VP2, geometric",
    "VP3": "VP3, scale-free",
}  # fmt: skip


ONE_HUB = (
    ". On {:.0f} % of the graphs one agent neighbours all others: VP-EM is centralized EM there."
)

MORE = ("EM", "VP1", "0 hops")
"""Fitted with more components."""


def _key(run: dict[str, Any]) -> str:
    return run["method"] + (" standard" if run.get("scale") == "standard" else "")


def by_method(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in found["runs"]:
        groups[_key(run)].append(run)
    return {name: groups[name] for name in TITLES if name in groups}


def percent(runs: list[dict[str, Any]], what: str = "accuracy") -> Any:
    return 100 * np.array([run[what] for run in runs])


def _span(values: Any) -> str:
    low, high = f"{np.min(values):.1f}", f"{np.max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def _partitions(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["hubs"]].append(run)
    return groups


def accuracy_table(found: dict[str, Any]) -> Table:
    """Put the paper's numbers beside ours."""
    most = 100 * found["share of the larger class"]
    rows: list[list[Any]] = [["all negative", None, 0, most, most, most, 0.0, 0.0, None, None]]
    for name, runs in by_method(found).items():
        values = percent(runs)
        rows.append([
            TITLES[name], PAPER.get(name), len(runs), float(np.median(values)),
            float(values.min()), float(values.max()),
            float(np.median([run["adjusted Rand index"] for run in runs])),
            float(np.median(percent(runs, "positives found"))),
            float(np.median(percent(runs, "precision"))),
            float(np.median([r["log-likelihood"] for r in runs])) if "log-likelihood" in runs[0]
            else None,
        ])  # fmt: skip
    return Table(
        "accuracy",
        "Accuracy in per cent, two clusters mapped one to one to labels. Over all runs: median, "
        "least, most; medians of the other columns (positives found and precision in per cent).",
        ["method", "paper", "runs", "median", "least", "most", "adjusted Rand index",
         "positives found", "precision", "log-likelihood per sample"],
        [[round(v, 4) if isinstance(v, float) else v for v in row] for row in rows],
    )  # fmt: skip


def spread_table(found: dict[str, Any]) -> Table:
    """Separate what hubs and what starts do to the accuracy."""
    rows = []
    for name in SETUPS:
        runs = by_method(found)[name]
        groups = _partitions(runs)
        within = [float(np.ptp(percent(group))) for group in groups.values()]
        between = [float(np.median(percent(group))) for group in groups.values()]
        natural = {run["hubs"] for run in runs if not run["shuffled"]}
        degrees = [run["mean degree"] for run in runs]
        rows.append([
            TITLES[name], found["graphs"], len(groups), len(natural),
            sum(" " not in run["hubs"] for run in runs) // len(STARTS),
            f"{min(degrees):.2f} to {max(degrees):.2f}", round(float(np.ptp(between)), 2),
            round(float(np.std(between)), 2), round(float(np.median(within)), 2),
            round(max(within), 2),
        ])  # fmt: skip
    return Table(
        "spread",
        "What moves the accuracy (points): range and standard deviation over hub partitions (each "
        "the median of its runs); range over the runs of one partition, median and largest. Each "
        f"graph has {len(STARTS)} starts; on every other graph features are dealt out at random.",
        ["setup", "graphs", "hub partitions", "of these in natural order", "graphs with one hub",
         "mean degree", "range over hubs", "sd over hubs", "range over starts, median",
         "range over starts, most"],
        rows,
    )  # fmt: skip


def more_runs(found: dict[str, Any], k: int, name: str) -> list[dict[str, Any]]:
    return [run for run in found["by k"] if run["k"] == k and run["method"] == name]


def is_scaled(run: dict[str, Any]) -> bool:
    return str(run["start"]).endswith("standardized")


def components_table(found: dict[str, Any]) -> Table:
    """Tell how more components, named by majority, agree with the labels."""
    rows = []
    for k in found["components"]:
        for name in MORE:
            runs = more_runs(found, k, name)
            best = max(runs, key=lambda run: run["log-likelihood"])
            raw = percent([run for run in runs if not is_scaled(run)], "majority accuracy")
            scaled = percent([run for run in runs if is_scaled(run)], "majority accuracy")
            rows.append([k, TITLES[name], f"{np.median(raw):.1f} ({_span(raw)})",
                         f"{np.median(scaled):.1f} ({_span(scaled)})",
                         round(100 * best["majority accuracy"], 2), best["start"],
                         round(best["log-likelihood"], 4), round(best["BIC"])])  # fmt: skip
    return Table(
        "components",
        "More components, each named by the label that most of its rows have (which needs the "
        "labels): accuracy by how the starts see the features, median and range; and of the fit "
        "with the best log-likelihood.",
        ["K", "method", "starts on raw features", "starts on standardized features",
         "best log-likelihood: accuracy", "its start", "its log-likelihood", "its BIC"],
        rows,
    )  # fmt: skip


def labels_table(found: dict[str, Any]) -> Table:
    """Tell how few labelled rows name the components."""
    who = [name for name in found["few labels"] if name in ("classifier", "2", "4", "5", "6", "8")]
    rows = []
    for place, first in enumerate(found["few labels"][who[0]]):
        cells = [found["few labels"][name][place] for name in who]
        rows.append([first["labels"], *(
            f"{100 * c['median']:.1f} ({100 * c['low']:.1f} to {100 * c['high']:.1f})"
            for c in cells
        )])  # fmt: skip
    names = ["logistic regression" if w == "classifier" else f"VP1, K = {w}" for w in who]
    return Table(
        "labels",
        "Components (kmeans start on standardized features) named by the majority of a few "
        f"labelled rows, drawn at random {found['draws']} times: accuracy, median (10 to 90 %), "
        "beside a classifier trained on the same labelled rows, of all features in one place.",
        ["labelled rows", *names], rows,
    )  # fmt: skip


# ---- sentences -----------------------------------------------------------------------------------


def tell(found: dict[str, Any]) -> Report:
    """Compare the paper's table with ours."""
    groups = by_method(found)
    agrees: list[str] = []
    differs: list[str] = []
    _against_paper(groups, agrees, differs)
    _against_nothing(found, groups, agrees, differs)
    _hubs_and_starts(groups, differs)
    _likelihood(groups, agrees, differs)
    _components(found, differs)
    return Report(
        title="Table 1 and Figure 7: pulsars",
        about=f"HTRU2: {found['samples']:,} candidates of 8 features, K = 2, one agent a feature, "
        f"1 hop, 100 plain rounds, {found['graphs']} graphs a topology (mean degree 4 where it "
        f"can be chosen, scale-free ones 3.75 or 4), {len(STARTS)} starts each "
        f"({'; '.join(STARTS)}), until the "
        "log-likelihood per sample changes by less than 1e-7. The paper shows its three graphs, "
        "but not which agent holds which feature, nor how ties between hubs fell.",
        tables=[accuracy_table(found), spread_table(found), components_table(found),
                labels_table(found)],
        agrees=agrees, differs=differs, advice=_advice(found, groups),
        pictures=[("table1-figure7.png", "For each setup, the graph whose hubs come nearest to the "
                   "paper's accuracy"),
                  ("table1-accuracy.png", "Accuracy of every run, and the paper's"),
                  ("table1-likelihood.png", "Log-likelihood against accuracy"),
                  ("table1-components.png", "More components, and few labels")],
    )  # fmt: skip


def _against_paper(groups: Any, agrees: list[str], differs: list[str]) -> None:
    for name, value in PAPER.items():
        ours = percent(groups[name])
        if name == "EM":
            theirs = percent(groups["scikit-learn EM"])
            same = bool(np.abs(theirs - value).min() <= NEAR)
            (agrees if same else differs).append(
                f"EM, paper {value}: scikit-learn's defaults give {_span(theirs)}, EM run until it "
                f"converges {_span(ours)}."
            )
        elif name == "k-means":
            same = bool(np.abs(ours - value).min() <= NEAR)
            (agrees if same else differs).append(
                f"k-means, paper {value}: raw features give {_span(ours)}, and find "
                f"{np.median(percent(groups[name], 'positives found')):.0f} % of the pulsars."
            )
        else:
            inside = ours.min() - NEAR <= value <= ours.max() + NEAR
            (agrees if inside else differs).append(
                f"{TITLES[name]}, paper {value}: {'inside' if inside else 'outside'} our range of "
                f"{_span(ours)} (median {np.median(ours):.1f}); {100 * np.mean(ours < value):.0f} "
                "% of our runs lie below."
            )
    medians = {name: float(np.median(percent(groups[name]))) for name in SETUPS}
    order = sorted(SETUPS, key=lambda name: -medians[name])
    theirs = sorted(SETUPS, key=lambda name: -PAPER[name])
    wins = np.mean([
        [np.median(percent([r for r in groups[theirs[i]] if r["seed"] == seed]))
         > np.median(percent([r for r in groups[theirs[i + 1]] if r["seed"] == seed]))
         for i in range(2)]
        for seed in {run["seed"] for run in groups["VP1"]}
    ], axis=0)  # fmt: skip
    (agrees if order == theirs else differs).append(
        f"The paper's order {' > '.join(theirs)} is that of three graphs, not of three topologies: "
        f"our medians go {' > '.join(f'{name} ({medians[name]:.1f})' for name in order)}, and of "
        f"pairs of graphs {theirs[0]} beats {theirs[1]} in {100 * wins[0]:.0f} %, {theirs[1]} "
        f"beats {theirs[2]} in {100 * wins[1]:.0f} %."
    )


def _against_nothing(found: Any, groups: Any, agrees: list[str], differs: list[str]) -> None:
    most = 100 * found["share of the larger class"]
    paper = sum(value < most for value in PAPER.values())
    mixtures = [run for name in ("EM", "0 hops", *SETUPS) for run in groups[name]]
    below = np.mean(percent(mixtures) < most)
    raw, scaled = (percent(groups[name]) for name in ("k-means", "k-means standard"))
    differs.append(
        f"{'All' if paper == len(PAPER) else f'{paper} of the'} {len(PAPER)} accuracies of the "
        f"paper's table lie below {most:.1f} %, which calling every "
        f"candidate negative gives; so do {100 * below:.0f} % of our {len(mixtures)} fits of "
        "two components."
    )
    wins = np.mean(percent(mixtures) > raw.max())
    beaten = np.mean(percent(mixtures) < scaled.min())
    (agrees if wins > 0.5 else differs).append(
        f"{100 * wins:.0f} % of the mixtures beat k-means on raw features, as in the paper."
    )
    differs.append(
        f"k-means on standardized features gives {_span(scaled)} over its starts and beats "
        f"{100 * beaten:.0f} % of the mixtures"
        + (": the paper's k-means lost to the units of the features. " if beaten > 0.5 else ". ")
        + "In one shot over parties (Ding et al.) it gives "
        f"{_span(percent(groups['one-shot k-means standard']))}, raw "
        f"{_span(percent(groups['one-shot k-means']))}."
    )


def _hubs_and_starts(groups: Any, differs: list[str]) -> None:
    for name in SETUPS:
        parts = _partitions(groups[name])
        medians = [float(np.median(percent(group))) for group in parts.values()]
        ranges = [float(np.ptp(percent(group))) for group in parts.values()]
        natural = _partitions([run for run in groups[name] if not run["shuffled"]])
        inside = [float(np.median(percent(group))) for group in natural.values()]
        alone = np.mean([" " not in run["hubs"] for run in groups[name]])
        differs.append(
            f"{TITLES[name]}: which agents share a hub moves the accuracy by "
            f"{np.ptp(medians):.1f} points ({len(parts)} partitions; {np.ptp(inside):.1f} points "
            f"over the {len(natural)} in natural order, {_span(inside)}), the start by "
            f"{np.median(ranges):.2f} (median; at most {max(ranges):.1f})"
            + (ONE_HUB.format(100 * alone) if alone > 0 else ".")
        )


def _likelihood(groups: Any, agrees: list[str], differs: list[str]) -> None:
    from scipy.stats import spearmanr

    points = [
        max(group, key=lambda run: run["log-likelihood"])
        for name in SETUPS
        for group in _partitions(groups[name]).values()
    ]
    x = [run["log-likelihood"] for run in points]
    rank = float(spearmanr(x, percent(points)).statistic)
    top = max((run for name in ("EM", "0 hops", *SETUPS) for run in groups[name]),
              key=lambda run: run["log-likelihood"])  # fmt: skip
    better = np.mean([run["accuracy"] > top["accuracy"] for run in points])
    differs.append(
        f"A higher likelihood is not a higher accuracy: over {len(points)} hub partitions (the "
        f"best start of each) Spearman's rank correlation is {rank:+.2f}, and "
        f"{100 * better:.0f} % of them are more accurate than the fit with the highest likelihood "
        f"of all ({TITLES[_key(top)]}, {top['log-likelihood']:.3f} nats per sample, "
        f"{100 * top['accuracy']:.1f} %)."
    )
    zero = max(groups["0 hops"], key=lambda run: run["log-likelihood"])
    full = max(groups["EM"], key=lambda run: run["log-likelihood"])
    overfits = full["BIC"] > zero["BIC"]
    (agrees if overfits else differs).append(
        "The paper supposes that centralized EM overfits. BIC, which counts parameters, "
        f"{'agrees' if overfits else 'does not'}: {full['BIC']:,.0f} with full covariances, "
        f"{zero['BIC']:,.0f} with 0 hops (smaller is better)"
        + ("." if overfits else "; the components just are not the classes.")
    )


def _components(found: Any, differs: list[str]) -> None:
    least = 100 * found["share of the larger class"]
    for name in MORE:
        spans = []
        for k in found["components"]:
            runs = more_runs(found, k, name)
            raw, scaled = (
                percent([r for r in runs if is_scaled(r) is asked], "majority accuracy")
                for asked in (False, True)
            )
            spans.append(f"{k}: {_span(raw)} / {_span(scaled)}")
        differs.append(
            f"{TITLES[name]} with K components, each named by the majority of its rows, from "
            f"starts on raw / on standardized features: {'; '.join(spans)} (all negative: "
            f"{least:.1f})."
        )
    tops = [
        (max(runs, key=lambda run: run["log-likelihood"]),
         max(runs, key=lambda run: run["majority accuracy"]))
        for k in found["components"] if k > 2 for name in MORE
        if (runs := more_runs(found, k, name))
    ]  # fmt: skip
    lost = [100 * (best["majority accuracy"] - top["majority accuracy"]) for top, best in tops]
    raw = sum(not is_scaled(top) for top, _ in tops)
    differs.append(
        "Here too the likelihood does not choose what agrees with the labels: of the "
        f"{len(tops)} pairs of K > 2 and method, the start with the best log-likelihood is up to "
        f"{max(lost):.1f} points below the most accurate one (median {np.median(lost):.1f}), and "
        f"is one on raw features in {raw}."
    )


def _usual_k(found: Any) -> dict[str, Any] | None:
    """Return the run of K with most agreement, of VP1 from a standardized kmeans start."""
    runs = [run for run in found["by k"]
            if run["method"] == "VP1" and run["start"] == "kmeans, standardized"
            and run["seed"] == 0]  # fmt: skip
    return max(runs, key=lambda run: run["majority accuracy"], default=None)


def _advice(found: Any, groups: Any) -> list[str]:
    scaled = percent(groups["k-means standard"])
    inertia = min(groups["k-means standard"], key=lambda run: run["inertia"])
    zero = percent(groups["0 hops"])
    lowest = min((r for r in found["by k"] if r["method"] == "VP1"), key=lambda r: r["BIC"])
    within = np.ptp(percent(groups["VP1"]))
    medians = [float(np.median(percent(groups[name]))) for name in (*SETUPS, "EM", "0 hops")]
    start = "from every start" if np.ptp(zero) < NEAR else "from its starts"
    advice = [
        "Do not read accuracy alone where one class is rare: say what the commonest label gives, "
        "and how many of the rare rows are found at what precision (first table).",
        "Standardize before k-means (`vpem kmeans --scale standard`), and before a start by "
        f"k-means (`vpem fit --scale standard`). Its starts differ ({_span(scaled)} %), and the "
        f"one of least inertia gives {100 * inertia['accuracy']:.1f} %.",
        "Do not expect two Gaussian components to be two classes. Take more components than "
        f"classes and name each by labelled rows; BIC alone does not stop (of the K tried, it is "
        f"best at {lowest['k']}).",
        "Choose hubs and hops by what may be shared, not by accuracy: with 0 hops no raw feature "
        f"leaves its agent, and two components give {_span(zero)} % {start}.",
        f"Report the spread over graphs and starts: on the cycle alone it is {within:.1f} points, "
        f"where the medians of all mixtures lie {np.ptp(medians):.1f} apart.",
    ]
    best = _usual_k(found)
    few = {} if best is None else {i["labels"]: i for i in found["few labels"][str(best["k"])]}
    trained = {item["labels"]: item for item in found["few labels"]["classifier"]}
    if best is not None and 100 in few:
        item, peer = few[100], trained[100]
        advice.insert(3, (
            f"With 100 labelled rows, K = {best['k']} on the cycle from a standardized start gives "
            f"a median of {100 * item['median']:.1f} % (10 to 90 %: {100 * item['low']:.1f} to "
            f"{100 * item['high']:.1f}; this K was chosen with all labels in view, the table has "
            "others). If features may be pooled, logistic regression on the same rows gives "
            f"{100 * peer['median']:.1f} % ({100 * peer['low']:.1f} to "
            f"{100 * peer['high']:.1f}), and needs none of this."
        ))  # fmt: skip
    return advice
