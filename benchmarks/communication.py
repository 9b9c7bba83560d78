"""What fits send and what it buys: ``python -m benchmarks.communication [PART ...]``.

Parts: ledger, start, rounds, compression, faults, ladder, batch. Each prints a table and writes its
numbers (JSON) and a plot to --folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from vpem import connect, fit_vpem, make_graph, read_dataset
from vpem.errors import NumericalError
from vpem.network.partition import contiguous, from_lists

from .plots import blank
from .problems import mixture_rows, quietly

DATA = Path(__file__).parents[1] / "data" / "breast_cancer.h5"
LINES = ("-", "--", ":", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
GREYS = ("0.0", "0.35", "0.55", "0.2", "0.7", "0.45")
NEAR = (1e-2, 1e-4, 1e-5)  # nats per sample below the fit with all rows
PULSARS: Path | None = None
FALL = 1e-9  # a log-likelihood per sample that falls by more is a fall

Curve = tuple[str, list[float], list[float]]


def summary(name: str, fit: Any, seconds: float) -> dict[str, Any]:
    """Return what a table shows of a fit, and its curve."""
    history = np.nanmean(fit.history, axis=1) / fit.total_weight
    sent = fit.communication
    return {
        "name": name,
        "log_likelihood": fit.log_likelihood,
        "iterations": fit.n_iter,
        "converged": fit.converged,
        "falls": int((np.diff(history) < -FALL).sum()),
        "largest fall": float(max(0.0, -np.diff(history).min(initial=0.0))),
        "rounds": fit.network.n_rounds,
        "messages": sent["messages"],
        "bytes": sent["bytes"],
        "seconds": seconds,
        "history": history.tolist(),
        "bytes_by_iteration": sent["bytes_by_iteration"],
    }


def run(name: str, X: Any, network: Any, **options: Any) -> dict[str, Any]:
    """Fit and summarize."""
    began = time.perf_counter()
    fit = quietly(fit_vpem, X, network, **options)
    return summary(name, fit, time.perf_counter() - began)


def curves(rows: Iterable[dict[str, Any]]) -> list[Curve]:
    """Log-likelihood against bytes."""
    return [(row["name"], row["bytes_by_iteration"], row["history"]) for row in rows]


STEPS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("consensus", {}, {}),
    ("consensus, natural:12bits", {"compress": "natural:12bits"}, {}),
    ("tree", {"sum": "tree"}, {}),
    ("tree, squarem", {"sum": "tree"}, {"accelerate": "squarem"}),
    ("tree, natural:12bits", {"sum": "tree", "compress": "natural:12bits"}, {}),
    (
        "tree, natural:12bits, squarem",
        {"sum": "tree", "compress": "natural:12bits"},
        {"accelerate": "squarem"},
    ),
)
"""Of the ladder: how a sum is taken, and how a fit goes."""

# ---- the parts -----------------------------------------------------------------------------------


def ledger(size: str) -> tuple[list[dict[str, Any]], list[Curve]]:
    """Count what the README's fit sends, by kind."""
    data = read_dataset(DATA)
    network = connect(make_graph("cycle", data.partition.n_agents), data.partition, hops=1)
    fit = fit_vpem(data.X, network)
    rows = [{"name": kind, **counted} for kind, counted in fit.communication["by_kind"].items()]
    return rows, curves([summary("cycle, 1 hop", fit, fit.seconds)])


def rounds(size: str) -> tuple[list[dict[str, Any]], list[Curve]]:
    """Sum by plain rounds, by accelerated rounds and exactly, on a sparse graph of 100 agents."""
    m = {"small": 2_000, "full": 20_000}[size]
    X = mixture_rows(m, 100, 3)
    graph = make_graph("geometric", 100, seed=0, mean_degree=9.7)
    held = contiguous(100, 100)
    common = {"n_components": 3, "init": [0, 1, 2], "max_iter": 200}
    found = []
    for name, how in (
        ("100 plain rounds", {"n_rounds": 100, "acceleration": "none"}),
        ("auto, plain", {"acceleration": "none"}),
        ("auto, Chebyshev", {}),
        ("auto, Chebyshev, estimated rate", {"eigenvalue": "estimated"}),
    ):
        network = quietly(connect, graph, held, hops=1, **how)
        found.append({"consensus error": network.consensus_error} | run(name, X, network, **common))
    hubs = [features.tolist() for features in network.blocks.features]
    star = connect(make_graph("star", len(hubs)), from_lists(hubs, 100), hops=0)
    found.append({"consensus error": 0.0} | run("exact sum of the hubs", X, star, **common))
    return found, curves(found)


COMPRESSED = (
    "float32", "float16", "natural:10bits", "natural:12bits", "qsgd:8bits", "qsgd:4bits",
)  # fmt: skip
DEAR = ("blockp:64", "topk:0.05", "randk:0.1")  # codecs that need a thousand rounds and more


def compression(size: str) -> tuple[list[dict[str, Any]], list[Curve]]:
    """Compare codecs on a cycle and a geometric graph of 30 agents, over seeds."""
    data = read_dataset(DATA)
    scaled = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0)
    cases = {
        "cycle": (make_graph("cycle", data.partition.n_agents), data.partition, 1),
        "geometric": (make_graph("geometric", 30, seed=1, mean_degree=6), contiguous(30, 30), 0),
    }
    found = []
    for case, (graph, held, hops) in cases.items():
        for seed in range({"small": 1, "full": 5}[size]):
            common = {"n_components": 2, "seed": seed, "max_iter": 500}
            print(f"compression: {case}, seed {seed}", file=sys.stderr)
            plain = run(
                f"{case}, seed {seed}, float64, 100 plain rounds", scaled,
                # The seed settles ties between hubs, which must be the same in all fits.
                quietly(
                    connect, graph, held, hops=hops, n_rounds=100, acceleration="none", seed=seed
                ),
                **common,
            )  # fmt: skip
            base = run(
                f"{case}, seed {seed}, float64, Chebyshev", scaled,
                connect(graph, held, hops=hops, seed=seed), **common,
            )  # fmt: skip
            here = [plain, base]
            refused: list[dict[str, Any]] = []
            for codec in COMPRESSED + (DEAR if size == "full" and seed == 0 else ()):
                network = quietly(connect, graph, held, hops=hops, compress=codec, seed=seed)
                name = f"{case}, seed {seed}, {codec}"
                try:
                    here.append(run(name, scaled, network, **common))
                except NumericalError as error:
                    refused.append({"name": f"{name}: {str(error).split(';')[0]}"})
            for row in here:
                row["difference"] = row["log_likelihood"] - base["log_likelihood"]
                row["plain bytes / bytes"] = plain["bytes"] / row["bytes"]
                row["Chebyshev bytes / bytes"] = base["bytes"] / row["bytes"]
            found += here + refused
    shown = (row for row in found if "geometric, seed 0" in row["name"] and "history" in row)
    return found, curves(shown)


def faults(size: str) -> tuple[list[dict[str, Any]], list[Curve]]:
    """Let links, agents and rounds fail."""
    data = read_dataset(DATA)
    scaled = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0)
    graph = make_graph("geometric", 30, seed=1, mean_degree=6)
    found = []
    for what in ("link_failure", "stragglers", "agent_dropout"):
        # An agent silent for whole iterations is worse than a link down for a round.
        for chance in (0.0, 0.02, 0.1) if what == "agent_dropout" else (0.0, 0.1, 0.3):
            network = quietly(connect, graph, contiguous(30, 30), hops=0, **{what: chance})
            name = f"{what.replace('_', ' ')} {chance:g}"
            how = {"n_components": 2, "init": [10, 100], "max_iter": 60}
            found.append(run(name, scaled, network, **how))
    # Where agents were silent, log-likelihoods of iterations cannot be compared.
    hidden = ("stragglers 0", "agent dropout 0", "agent dropout 0.02", "agent dropout 0.1")
    return found, curves(row for row in found if row["name"] not in hidden)


def ladder(size: str) -> tuple[list[dict[str, Any]], list[Curve]]:
    """Send fewer and fewer bytes for the same fit, step by step, on several graphs and data."""
    cancer, wine = read_dataset(DATA), read_dataset(DATA.with_name("wine.h5"))
    n = {"small": 20, "full": 100}[size]
    drawn = mixture_rows({"small": 1_000, "full": 5_000}[size], n, 3)
    cases = (
        ("breast cancer, cycle of 10, 1 hop", cancer.X, "cycle", cancer.partition, 1, 2),
        ("breast cancer, cycle of 10, 0 hops", cancer.X, "cycle", cancer.partition, 0, 2),
        ("wine, path of 13, 0 hops", wine.X, "path", contiguous(13, 13), 0, 3),
        (f"{len(drawn)} x {n}, geometric, 0 hops", drawn, "geometric", contiguous(n, n), 0, 3),
    )
    rows = []
    for title, X, topology, held, hops, n_components in cases:
        graph, first = make_graph(topology, held.n_agents, seed=0), 0
        for step, how, asked in STEPS:
            network = quietly(connect, graph, held, hops=hops, **how)
            asked = {"n_components": n_components, "max_iter": 1000, **asked}
            found = run(f"{title}: {step}", X, network, **asked)
            first = first or found["bytes"]
            rows.append({"times fewer": first / found["bytes"]} | found)
    return rows, curves(rows[: len(STEPS)])


def pulsars() -> Any:
    """Rows and features of the HTRU2 data set of pulsar candidates, if there is a copy."""
    if PULSARS is None:
        print("batch: without HTRU2; give its HTRU_2.csv with --htru2", file=sys.stderr)
        return None
    return np.loadtxt(PULSARS, delimiter=",")[:, :8]


def batch(size: str) -> tuple[list[dict[str, Any]], list[Curve]]:
    """Batches against all rows in every iteration, and the cost of an iteration as M grows."""
    m = {"small": 5_000, "full": 150_000}[size]
    star = connect(make_graph("star", 100), contiguous(100, 100), hops=0)
    dense = connect(
        make_graph("geometric", 100, seed=0, mean_degree=31), contiguous(100, 100), hops=1
    )
    X = mixture_rows(m, 100, 3)
    cases = [
        (f"{m:,} x 100, star", X, star, [0, 1, 2]),
        (f"{m:,} x 100, geometric", X, dense, [0, 1, 2]),
    ]
    pulsar = pulsars()
    if pulsar is not None:
        for name, n_agents, hops in (("star", 8, 0), ("cycle", 8, 1)):
            joined = connect(make_graph(name, n_agents), contiguous(8, n_agents), hops=hops)
            cases.append((f"HTRU2, {name}", pulsar, joined, [0, 9000]))
    found = []
    for case, rows, network, init in cases:
        common = {"n_components": len(init), "init": init, "tol": 1e-6, "max_iter": 300}
        here = [run(f"{case}, all rows", rows, network, **common)]
        for parts in (10, 100):
            size_of = -(-len(rows) // parts)
            here.append(
                run(f"{case}, {parts} batches", rows, network, batch_size=size_of, **common)
            )
        # Where the stopping rule ends matters less than when a fit is as good as with all rows.
        best = here[0]["history"][-1]
        for near in NEAR:
            for row in here:
                passes = next(i for i, v in enumerate(row["history"], 1) if v >= best - near)
                row[f"passes to {near:g}"] = passes
                row[f"MB to {near:g}"] = row["bytes_by_iteration"][passes - 1] / 1e6
        found += here
    shown = list(found)
    for rows in (10_000, 100_000, 1_000_000)[: 2 if size == "small" else 3]:
        few = mixture_rows(rows, 8, 3)
        cycle = connect(make_graph("cycle", 8), contiguous(8, 8), hops=1)
        common = {"n_components": 3, "init": [0, 1, 2], "tol": 1e-3}
        one = run(f"{rows:,} x 8, batches of 1,000", few, cycle, batch_size=1000, **common)
        n_iterations = one["iterations"] * -(-rows // 1000)
        one["bytes an iteration"] = one["bytes_by_iteration"][-1] / n_iterations
        one["ms an iteration"] = 1e3 * one["seconds"] / n_iterations
        found.append(one)
    return found, curves(shown)


def start(size: str) -> tuple[list[dict[str, Any]], list[Curve]]:
    """Compare what starts take with the 30 iterations after them: CPU seconds, and bytes."""
    m = {"small": 6_000, "full": 60_000}[size]
    X = mixture_rows(m, 30, 6)
    found = []
    for topology in ("star", "cycle"):
        hops = 0 if topology == "star" else 1
        network = connect(make_graph(topology, 10), contiguous(30, 10), hops=hops)
        common = {"n_components": 6, "tol": 0.0, "max_iter": 30, "n_threads": 1}
        run("warm", X[:600], network, **common)
        here = []
        for init in ("random", "k-means++", "kmeans"):
            began = time.process_time()
            row = run(f"{topology}, {init}", X, network, init=init, **common)
            here.append(row | {"CPU seconds": time.process_time() - began})
        for row in here:
            for what in ("CPU seconds", "bytes"):
                row[f"start's share of {what}"] = 1 - here[0][what] / row[what]
        found += here
    return found, curves(found)


PARTS = {
    "ledger": ledger,
    "start": start,
    "rounds": rounds,
    "compression": compression,
    "faults": faults,
    "ladder": ladder,
    "batch": batch,
}  # fmt: skip


# ---- showing -------------------------------------------------------------------------------------


def number(value: Any) -> str:
    """Write one cell."""
    if isinstance(value, float):
        return f"{value:.9g}"
    return f"{value:,}" if type(value) is int else str(value)


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Return all numbers but curves."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    heads = list(
        dict.fromkeys(k for row in rows for k, v in row.items() if not isinstance(v, list))
    )
    for head in heads:
        made.add_column(head, justify="left" if head == "name" else "right")
    for row in rows:
        made.add_row(*(number(row.get(head, "")) for head in heads))
    return made


def draw(title: str, found: list[Curve], target: Path) -> None:
    """Draw how far each curve is from the best log-likelihood, against megabytes sent."""
    figure = blank(8, 5)
    axes = figure.subplots()
    # The highest end: where agents were silent, iterations before it are not comparable. Batches
    # are compared on several sets of data, which have an end each.
    best: dict[str, float] = {}
    for name, _, history in found:
        case = name.rpartition(", ")[0] if "batch" in title else ""
        best[case] = max(history[-1], best.get(case, -np.inf))
    for number, (name, sent, history) in enumerate(found):
        case = name.rpartition(", ")[0] if "batch" in title else ""
        gap = np.maximum(best[case] - np.array(history), 1e-9)
        axes.plot(
            np.array(sent) / 1e6, gap, label=name, linewidth=1.6,
            linestyle=LINES[number % len(LINES)], color=GREYS[number % len(GREYS)],
            marker="osv^Dx*+p"[number % 9], markevery=max(1, len(gap) // 8), markersize=4,
        )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlabel="MB sent",
        ylabel="log-likelihood per sample below the best (nats)",
    )  # fmt: skip
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, loc="outside right upper", frameon=False)
    figure.savefig(target)


def main(words: list[str] | None = None) -> int:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.communication")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--htru2", type=Path, metavar="FILE", help="HTRU_2.csv of the UCI archive")
    given = parser.parse_args(words)
    global PULSARS
    PULSARS = given.htru2
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part called {unknown[0]}; there are {', '.join(PARTS)}")
    console = Console(highlight=False)
    console.width = max(console.width, 260)
    given.folder.mkdir(parents=True, exist_ok=True)
    for part in given.parts or PARTS:
        rows, lines = PARTS[part](given.size)
        console.print(table(part, rows), "")
        stem = given.folder / f"communication-{part}-{given.size}"
        stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        draw(f"{part} ({given.size})", lines, stem.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
