"""`vpem topology`: what a network will do, before anything is fitted on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.errors import InputError, check_choice, shorten
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import PlanSettings
from vpem.pictures.contents import how_summed, number, plural, size
from vpem.records import changed, not_both, rule, unset
from vpem.rules import BY_FEATURES
from vpem.settings import TOPOLOGIES, GraphSettings, HoldingSettings

from ..data import graph_of, partition_of, read_one, stored_graph, teller
from ..display import Screen, print_json, show, table
from ..options import Without
from ..outputs import READ, WRITTEN, Output, Printing
from ..session import Where
from .use import table_of

if TYPE_CHECKING:
    from vpem.network.graph import Graph
    from vpem.network.partition import Partition
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines

    from ..display import PrintedTable


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at networks of agents.\n\nExample: vpem topology describe cycle -n 8 --hops 1",
)

USUAL_FEATURES = 10
"""Features that a plan over workers has by default."""

HUBS: Lines = {"hub": "{hub}", "root": "{root}", "agents": "{agents}", "features": "{n_features}"}
"""Columns of the table of hubs."""

MOST_ROWS = 20  # hubs shown; --json has them all
MOST_MEMBERS = 12  # agents of a hub shown


class PlannedSettings(Printing, HoldingSettings, heading="Data", kept=False):
    """Who holds what, with data or without; what is printed and drawn."""

    agents: int | None = changed(
        HoldingSettings,
        "agents",
        help="Number of agents, or workers; of a dataset, contiguous, nearly equal parts.",
        flags="-n --agents",
        idle=None,
        often=True,
    )
    partition: Path | None = changed(
        HoldingSettings,
        "partition",
        idle=[
            rule(
                lambda given: given.get("source", "") in (None, *TOPOLOGIES),
                " names the features of a dataset; give one",
            ),
            not_both("agents", "partition"),
            BY_FEATURES,
        ],
    )
    features: int | None = unset(
        "Features of the fit to plan, without a dataset. Default: one an agent, and 10 of workers.",
        least=1,
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
    graph: GraphSettings,
    settings: Annotated[PlanSettings, Without("consensus seed n_threads")],
) -> None:
    """Show hubs, mixing, rounds, and what a fit will send.

    Messages and bytes are counted as in a fit that starts at given rows: the setup, every
    iteration (with --batch-size a pass over all batches), and the last E-step, which computes the
    log-likelihood of the model. The start 'kmeans' adds a few sums to the setup. Where links or
    agents fail they are means.

    Example: vpem topology describe cycle -n 8 --hops 1
    """
    plot = holding.plot
    with Screen(holding.quiet) as screen:
        from vpem.fits.plan import plan

        if plot is not None:
            from vpem.pictures.figure import check_picture

            check_picture(plot, holding.force)
        graph = graph.seeded(0)
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
            if holding.features is not None:
                raise InputError("--features is for plans without a dataset, which has its own")
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
            from vpem.pictures.figure import save_picture
            from vpem.pictures.network import draw_hubs

            hubs = [Hub(hub["root"], tuple(hub["agents"])) for hub in report["hubs"]]
            save_picture(plot, draw_hubs(network, hubs, report["agent_names"]), force=holding.force)
            screen.say(f"wrote {plot}")
        report["warnings"] = list(screen.warnings)
        report["plot"] = None if plot is None else str(plot)
        if holding.json:
            print_json(report)
        elif not holding.quiet:
            _show(report)


def _named(
    source: str | None, holding: PlannedSettings, graph: GraphSettings
) -> tuple[Graph, Partition | list[int]]:
    """Return agents without data, on a graph of this topology, or of a file of edges."""
    from vpem.files.networks import read_graph
    from vpem.network.partition import contiguous

    agents, features = holding.agents, holding.features
    drawn = graph.radius is not None or graph.mean_degree is not None
    for wrong, sentence in (
        (graph.topology is not None,
         "--topology is for a dataset; without one give the topology's name alone: vpem topology "
         "describe cycle -n 8"),
        (source is not None and graph.graph is not None,
         f"give a topology ({source}) or --graph, not both"),
        (source is None and graph.graph is None,
         "give the name of a topology with -n, a dataset, or --graph with a file of edges"),
        (source is None and drawn,
         "--radius and --mean-degree need the topology of a random graph"),
        (source is not None and agents is None,
         f"how many agents? give -n: vpem topology describe {source} -n 8"),
    ):  # fmt: skip
        if wrong:
            raise InputError(sentence)
    if graph.graph is not None:
        joined = read_graph(graph.graph, agents)
    else:
        joined = graph_of(agents or 0, None, graph.changed(topology=source))
    count = joined.n_agents
    if holding.split == "rows":
        return joined, [features or USUAL_FEATURES, *[0] * (count - 1)]
    return joined, contiguous(count if features is None else features, count, joined.names)


def _show(report: Report) -> None:
    names = [*report["agent_names"], "server"]
    degrees = report["degrees"]
    hubs = report["hubs"]
    holder = "agent" if report["split"] == "features" else "worker"
    facts = [
        ("graph", f"{report['topology']}, {plural(report['n_agents'], holder)}, "
                  f"{plural(report['n_edges'], 'link')}"),
        ("degrees", f"{degrees['min']} to {degrees['max']}, mean {number(degrees['mean'], 3)}"),
        ("diameter", plural(report["diameter"], "hop")),
    ]  # fmt: skip
    if report["split"] == "features":
        facts.append(("hubs", f"{len(hubs)} of {plural(report['hops'], 'hop')}"))
    if report["first_fit"] is not None:
        sent = size(round(report["first_fit"]["bytes"]))
        facts.append(("by likelihood", "the data decide; these are the hubs by size. First a fit "
                      f"without hops: {sent} an iteration"))  # fmt: skip
    facts.append(("sum", how_summed(report)))
    if report["communication"]["n_drawn"] and report["tree"] is None:
        drawn, share = (report["communication"][name] for name in ("n_drawn", "partitioned"))
        facts.append(
            ("disconnected", f"in {number(100 * share, 2)} % of {plural(drawn, 'sum')} drawn")
        )
    if report["along_a_tree"] is not None:
        messages, sent, rounds = map(round, report["along_a_tree"].values())
        cost = f"{plural(messages, 'message')}, {size(sent)}, {plural(rounds, 'round')}"
        option = "--sum tree" if report["compress"] else "--sum tree, exact"
        facts.append(("or", f"{option}: {cost} an iteration"))
    tables = [table(facts, "", "")]
    if report["split"] == "features":
        listed = [
            {**hub, "hub": place, "root": names[hub["root"]],
             "agents": shorten((names[agent] for agent in hub["agents"]), MOST_MEMBERS)}
            for place, hub in enumerate(hubs)
        ]  # fmt: skip
        tables.append(table_of(listed, HUBS, MOST_ROWS, title="Hubs", right=("hub", "features")))
    if report["mixing"]:
        tables += _mixing(report)
    tables += _messages(report, names)
    if "time" in report:
        time = report["time"]
        made_of = {
            "computing": f"{number(time['flops'], 3)} flops, {number(time['additions'], 3)} "
            "additions, at this machine's rates",
            "latency": f"{number(time['latencies'], 4)} times one way, in sequence, "
            f"{plural(time['chunks'], 'chunk')} of rows",
            "transfer": f"{size(time['bytes'])} over the busiest link",
            "iteration": "chunks are computed while others are sent" if time["chunks"] > 2 else "",
        }
        parts = [(part, f"{number(time[part], 3)} s", text) for part, text in made_of.items()]
        link = f"{time['bandwidth'] / 1e6:g} Mbit/s, {1e3 * time['one_way_latency']:g} ms one way"
        title = f"An iteration, links of {link}"
        tables.append(table(parts, "part", "time", "of", title=title, right=("time",)))
    show(*tables)


def _mixing(report: Report) -> list[PrintedTable]:
    def both(row: Report, digits: str) -> list[str]:
        names = ("none", "chebyshev")
        return [f"{'<= ' * row[f'{name}_is_bound']}{row[name]:{digits}}" for name in names]

    chosen, ways = report["weights"], ("plain", "Chebyshev")
    conditions = f"{chosen} weights"
    fixed = report["rounds"]
    if report["compress"] is not None:
        conditions, fixed = conditions + ", uncompressed", None
    if report["faults"] is not None:
        conditions, fixed = conditions + ", without failures", None
    rates = [
        (f"{row['weights']}{' *' * (row['weights'] == chosen)}", f"{row['rate']:.6f}",
         f"{row['spectral_gap']:.3g}")
        for row in report["mixing"]
    ]  # fmt: skip
    errors = [
        (f"{row['rounds']}{' *' * (row['rounds'] == fixed)}", *both(row, ".2g"))
        for row in report["consensus_errors"]
    ]
    needed = [(f"{row['consensus_error']:g}", *both(row, "d")) for row in report["rounds_needed"]]
    return [
        table(rates, "weights", "mixing rate", "spectral gap", title="Mixing (* chosen)",
              right=("mixing rate", "spectral gap")),
        table(errors, "rounds", *ways, title=f"Consensus error after rounds, {conditions}",
              right=("rounds", *ways)),
        table(needed, "error", *ways, title=f"Rounds needed, {conditions}",
              right=("error", *ways)),
    ]  # fmt: skip


def _messages(report: Report, names: list[str]) -> list[PrintedTable]:
    """Return tables of what each phase sends, means rounded, and of the busiest links."""
    communication = report["communication"]
    rows, busiest = [], []
    for part in ("setup", "batch", "iteration", "last", "labels"):
        name = "last E-step" if part == "last" else part
        if part not in communication or (part == "labels" and not communication[part]["messages"]):
            continue
        sent = communication[part]
        kinds = {kind: row for kind, row in sent["by_kind"].items() if row["rounds"]}
        for kind, row in {**kinds, "all": sent}.items():
            counts = (round(row["messages"]), size(round(row["bytes"])), round(row["rounds"]))
            rows.append((name, kind, *counts))
        link = sent["busiest_link"]
        if link is not None:
            ends = " - ".join(names[end] for end in link["between"])
            busiest.append((name, ends, round(link["messages"]), size(round(link["bytes"]))))
    facts = [plural(report["n_samples"], "row")]
    if report["batch_size"] is not None:
        facts.append(f"batches of {report['batch_size']}")
    facts += [plural(report["n_components"], "component"), report["dtype"]]
    if communication["is_expected"]:
        facts.append("means" if communication["n_drawn"] else "estimates")
    right = ("messages", "payload", "rounds")
    title = f"Communication: {', '.join(facts)}"
    tables = [table(rows, "phase", "kind", *right, title=title, right=right)]
    if busiest:
        heads = ("phase", "link", *right[:2])
        tables.append(table(busiest, *heads, title="Busiest links", right=right))
    return tables
