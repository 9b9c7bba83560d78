"""`vpem topology`: what a network will do, before anything is fitted on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.errors import InputError, check_choice, shorten
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import PlanSettings
from vpem.pictures.contents import how_summed, lines_of, number, plural, size
from vpem.records import changed, not_both, rule, unset
from vpem.rules import BY_FEATURES
from vpem.settings import OF_DATA, TOPOLOGIES, GraphSettings, HoldingSettings, lacks_data

from ..data import graph_of, partition_of, read_one, stored_graph, teller
from ..display import Screen, print_json, show, table, table_of
from ..options import Without
from ..outputs import READ, WRITTEN, Output, Printing
from ..session import Where

if TYPE_CHECKING:
    from vpem.network.graph import Graph
    from vpem.network.partition import Partition
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines

    from ..display import PrintedTable


app = typer.Typer(
    help="Look at networks of agents.\n\nExample: vpem topology describe cycle -n 8 --hops 1"
)

USUAL_FEATURES = 10
"""Features that a plan over workers has by default."""

HUBS: Lines = {"hub": "{hub}", "root": "{root}", "agents": "{agents}", "features": "{n_features}"}
"""Columns of the table of hubs."""

MOST_ROWS = 20  # hubs shown; --json has them all
MOST_MEMBERS = 12  # agents of a hub shown


class PlannedGraph(
    GraphSettings, heading="Network",
    rows=[
        ("topology", lacks_data,
         " is for a dataset; without one give the topology's name alone: vpem topology describe "
         "cycle -n 8"),
        ("graph", lambda given: given.get("source") in TOPOLOGIES,
         "give a topology or {graph}, not both"),
    ],
):  # fmt: skip
    """The graph of a dataset, or of agents without one."""


class PlannedSettings(Printing, HoldingSettings, heading="Data", kept=False):
    """Who holds what, with data or without; what is printed and drawn."""

    agents: int | None = changed(
        help="Number of agents, or workers; of a dataset, contiguous, nearly equal parts.",
        flags="-n --agents",
        idle=None,
        often=True,
    )
    partition: Path | None = changed(idle=[OF_DATA, not_both("agents", "partition"), BY_FEATURES])
    features: int | None = unset(
        "Features of the fit to plan, without a dataset. Default: one an agent, and 10 of workers.",
        least=1,
        idle=rule(
            lambda given: not lacks_data(given) and Path(given.get("source") or "").is_file(),
            " is for plans without a dataset, which has its own",
        ),
    )
    plot: Path | None = unset(
        "Draw the graph coloured by hub (.png, .svg, .pdf).", heading="Output", file=WRITTEN,
        often=True,
    )  # fmt: skip
    force: bool = changed(Output, "force", help="Replace an existing picture.")


@app.command("describe")
def describe(
    source: Annotated[
        str | None,
        READ,
        typer.Argument(
            help="Name of a topology (with -n), or a dataset: the graph and partition stored there."
        ),
    ] = None,
    *,
    holding: Annotated[PlannedSettings, Without("workers worker_rows dataset sample_weight")],
    table: Annotated[TableSettings, Without("features worker_column")],
    graph: PlannedGraph,
    settings: Annotated[PlanSettings, Without("consensus seed n_threads")],
) -> None:
    """Show hubs, mixing, rounds, and what a fit will send.

    Messages and bytes are counted as in a fit that starts at given rows: the setup, every
    iteration (with --batch-size a pass over all batches), and the last E-step, which computes the
    log-likelihood of the model. The start 'kmeans' adds a few sums to the setup. Where links or
    agents fail they are means.

    Example: vpem topology describe cycle -n 8 --hops 1
    """
    plot, graph = holding.plot, graph.seeded(0)
    with Screen(holding.quiet) as screen:
        from vpem.fits.plan import plan
        from vpem.pictures.figure import check_picture, save_picture

        if plot is not None:
            check_picture(plot, holding.force)
        parts: Partition | list[int]
        stored: int | None = None
        if source is None or source in TOPOLOGIES:
            network, parts = _named(source, holding, graph)
        else:
            if not Path(source).suffix and not Path(source).exists():
                check_choice("topology", source, TOPOLOGIES)
            # Values stay on disk: only their number matters.
            data = read_one(Path(source), table, Where(), teller(screen.say), on_disk=True)
            stored = len(data.X)
            if holding.split == "rows":
                workers = None if holding.agents else data.workers
                count = holding.agents or (1 if workers is None else workers.n_workers)
                network = graph_of(count, None if workers is None else workers.names, graph)
                parts = [data.n_features, *[0] * (count - 1)]
            else:
                parts = partition_of(data, holding, graph.is_asked or settings.is_asked)
                network = stored_graph(data, holding, parts, graph, screen)
        report = plan(
            network, parts, settings, split=holding.split, n_samples=settings.n_samples or stored,
            seed=graph.graph_seed,
        )  # fmt: skip
        if plot is not None:
            from vpem.network.hubs import Hub
            from vpem.pictures.network import draw_hubs

            hubs = [Hub(hub["root"], tuple(hub["agents"])) for hub in report["hubs"]]
            save_picture(plot, draw_hubs(network, hubs, report["agent_names"]), force=holding.force)
            screen.say(f"wrote {plot}")
        if holding.json:
            print_json(report | {"warnings": screen.warnings, "plot": plot})
        elif not holding.quiet:
            show(*_tables(report))


def _named(
    source: str | None, holding: PlannedSettings, graph: GraphSettings
) -> tuple[Graph, Partition | list[int]]:
    """Return agents without data, on a graph of this topology, or of a file of edges."""
    from vpem.files.networks import read_graph
    from vpem.network.partition import contiguous

    agents, features = holding.agents, holding.features
    if source is None and graph.graph is None:
        raise InputError(
            "give the name of a topology with -n, a dataset, or --graph with a file of edges"
        )
    if source is not None and agents is None:
        raise InputError(f"how many agents? give -n: vpem topology describe {source} -n 8")
    if graph.graph is not None:
        joined = read_graph(graph.graph, agents)
    else:
        joined = graph_of(agents or 0, None, graph.changed(topology=source))
    count = joined.n_agents
    if holding.split == "rows":
        return joined, [features or USUAL_FEATURES, *[0] * (count - 1)]
    return joined, contiguous(count if features is None else features, count, joined.names)


def _tables(report: Report) -> Iterator[PrintedTable]:
    """Yield what a terminal shows of a plan; means are rounded."""
    names, hubs, sent = [*report["agent_names"], "server"], report["hubs"], report["communication"]
    holder = "agent" if report["split"] == "features" else "worker"
    facts = lines_of(report, {
        "graph": f"{{topology}}, {{n_agents:{holder}}}, {{n_edges:link}}",
        "degrees": "{degrees[min]} to {degrees[max]}, mean {degrees[mean]:.3g}",
        "diameter": "{diameter:hop}",
    })  # fmt: skip
    if holder == "agent":
        facts.append(("hubs", f"{len(hubs)} of {plural(report['hops'], 'hop')}"))
    if report["first_fit"] is not None:
        first = size(round(report["first_fit"]["bytes"]))
        facts.append(("by likelihood", "the data decide; these are the hubs by size. First a fit "
                      f"without hops: {first} an iteration"))  # fmt: skip
    facts.append(("sum", how_summed(report)))
    if sent["n_drawn"] and report["tree"] is None:
        share, drawn = number(100 * sent["partitioned"], 2), plural(sent["n_drawn"], "sum")
        facts.append(("disconnected", f"in {share} % of {drawn} drawn"))
    if report["along_a_tree"] is not None:
        messages, n_bytes, rounds = map(round, report["along_a_tree"].values())
        cost = f"{plural(messages, 'message')}, {size(n_bytes)}, {plural(rounds, 'round')}"
        exact = "" if report["compress"] else ", exact"
        facts.append(("or", f"--sum tree{exact}: {cost} an iteration"))
    yield table(facts, "", "")
    if holder == "agent":
        listed = [
            {**hub, "hub": place, "root": names[hub["root"]],
             "agents": shorten((names[agent] for agent in hub["agents"]), MOST_MEMBERS)}
            for place, hub in enumerate(hubs)
        ]  # fmt: skip
        yield table_of(listed, HUBS, MOST_ROWS, title="Hubs", right=("hub", "features"))
    conditions, fixed = f"{report['weights']} weights", report["rounds"]
    for name, what in (("compress", ", uncompressed"), ("faults", ", without failures")):
        if report[name] is not None:
            conditions, fixed = conditions + what, None
    chosen = {"weights": report["weights"], "rounds": fixed}
    for name, (title, columns) in MIXING.items() if report["mixing"] else ():
        marks = (" *" * bool(chosen.items() & row.items()) for row in report[name])
        marked = [{**row, "mark": mark} for row, mark in zip(report[name], marks, strict=True)]
        right = [*columns][name == "mixing" :]
        yield table_of(marked, columns, title=title.format(conditions), right=right)
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
    right = ["messages", "payload", "rounds"]
    title = f"Communication: {', '.join(about)}"
    yield table(rows, "phase", "kind", *right, title=title, right=right)
    busiest = [
        (phase, " - ".join(names[end] for end in link["between"]), round(link["messages"]),
         size(round(link["bytes"])))
        for phase, one in phases.items() if (link := one["busiest_link"]) is not None
    ]  # fmt: skip
    if busiest:
        yield table(busiest, "phase", "link", *right[:2], title="Busiest links", right=right)
    if "time" in report:
        time = report["time"]
        parts = [(part, f"{number(time[part], 3)} s", of) for part, of in lines_of(time, TIME)]
        link = f"{time['bandwidth'] / 1e6:g} Mbit/s, {1e3 * time['one_way_latency']:g} ms one way"
        title = f"An iteration, links of {link}"
        yield table(parts, "part", "time", "of", title=title, right=("time",))


PHASES = ("setup", "batch", "iteration", "last", "labels")

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
    "latency": "{latencies:.4g} times one way, in sequence, {chunks:chunk} of rows",
    "transfer": lambda time: f"{size(time['bytes'])} over the busiest link",
    "iteration": lambda time: "chunks are computed while others are sent" * (time["chunks"] > 2),
}
"""What the parts of an iteration's time come from."""
