"""`vpem topology`: what a network will do, before anything is fitted on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.errors import InputError, check_choice, shorten
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import PlanSettings
from vpem.records import changed, setting
from vpem.settings import TOPOLOGIES, GraphSettings, HoldingSettings

from ..data import graph_of, partition_of, read_one, stored_graph, teller
from ..display import Screen, how_summed, number, plural, print_json, show, size, table
from ..options import Without
from ..outputs import READ, WRITTEN, Output, Printing
from ..session import Where

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.network.graph import Graph
    from vpem.network.partition import Partition
    from vpem.network.schema import Report

    from ..display import PrintedTable


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at networks of agents.\n\nExample: vpem topology describe cycle -n 8 --hops 1",
)

USUAL_FEATURES = 10
"""Features that a plan over workers has by default."""

MOST_ROWS = 20  # hubs shown; --json has them all
MOST_MEMBERS = 12  # agents of a hub shown


class GraphOutput(Printing, heading="Output", kept=False):
    """What is printed and drawn."""

    plot: Path | None = setting(
        None, "Draw the graph coloured by hub (.png, .svg, .pdf).",
        file=WRITTEN,
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
    agents: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--agents",
            help="Number of agents, or workers; of a dataset, contiguous, nearly equal parts.",
        ),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(
            help="Features of the fit to plan, without a dataset. Default: one an agent, and 10 of "
            "workers."
        ),
    ] = None,
    *,
    table: Annotated[TableSettings, Without("features worker_column")],
    holding: Annotated[
        HoldingSettings, Without("agents workers worker_rows dataset sample_weight")
    ],
    graph: GraphSettings,
    settings: Annotated[PlanSettings, Without("consensus seed n_threads")],
    out: GraphOutput,
) -> None:
    """Show hubs, mixing, rounds, and what a fit will send.

    Messages and bytes are counted as in a fit that starts at given rows: the setup, every
    iteration (with --batch-size a pass over all batches), and the last E-step, which computes the
    log-likelihood of the model. The start 'kmeans' adds a few sums to the setup. Where links or
    agents fail they are means.

    Example: vpem topology describe cycle -n 8 --hops 1
    """
    plot = out.plot
    with Screen(out.quiet) as screen:
        from vpem.checks import check_int
        from vpem.fits.plan import plan

        if features is not None:
            check_int("features", features, least=1)
        if plot is not None:
            from vpem.pictures.figure import check_picture

            check_picture(plot, out.force)
        graph = graph.seeded(0)
        data = None
        if source is not None and source not in TOPOLOGIES:
            if not Path(source).suffix and not Path(source).exists():
                check_choice("topology", source, TOPOLOGIES)
            # Values stay on disk: only their number matters.
            data = read_one(Path(source), table, Where(), teller(screen.say), on_disk=True)
        network, parts, stored = _network(
            source, data, holding, agents, graph, features, settings, screen
        )
        report = plan(
            network, parts, settings, split=holding.split, n_samples=settings.n_samples or stored,
            seed=graph.graph_seed,
        )  # fmt: skip
        if plot is not None:
            from vpem.network.hubs import Hub
            from vpem.pictures.figure import save_picture
            from vpem.pictures.network import draw_hubs

            hubs = [Hub(hub["root"], tuple(hub["agents"])) for hub in report["hubs"]]
            save_picture(plot, draw_hubs(network, hubs, report["agent_names"]), force=out.force)
            screen.say(f"wrote {plot}")
        report["warnings"] = list(screen.warnings)
        report["plot"] = None if plot is None else str(plot)
        if out.json:
            print_json(report)
        elif not out.quiet:
            _show(report)


def _network(
    source: str | None,
    data: Dataset | None,
    holding: HoldingSettings,
    agents: int | None,
    graph: GraphSettings,
    features: int | None,
    settings: PlanSettings,
    screen: Screen,
) -> tuple[Graph, Partition | list[int], int | None]:
    """Return the graph, who holds which features (workers: the first all), and how many rows."""
    from vpem.files.networks import read_graph
    from vpem.network.partition import contiguous

    over_rows = holding.split == "rows"
    if data is not None:
        if features is not None:
            raise InputError("--features is for plans without a dataset, which has its own")
        if over_rows:
            count = agents or (1 if data.workers is None else data.workers.n_workers)
            names = None if agents or data.workers is None else data.workers.names
            joined = graph_of(count, names, graph)
            return joined, [data.n_features, *[0] * (count - 1)], len(data.X)
        holding = holding.changed(agents=agents)
        parts = partition_of(data, holding, graph.is_asked or settings.is_asked)
        return stored_graph(data, holding, parts, graph, screen), parts, len(data.X)
    if graph.topology is not None:
        raise InputError(
            "--topology is for a dataset; without one give the topology's name alone: vpem "
            "topology describe cycle -n 8"
        )
    if holding.partition is not None:
        raise InputError("--partition names the features of a dataset; give one")
    if source is not None and graph.graph is not None:
        raise InputError(f"give a topology ({source}) or --graph, not both")
    if source is None:
        if graph.graph is None:
            raise InputError(
                "give the name of a topology with -n, a dataset, or --graph with a file of edges"
            )
        if graph.radius is not None or graph.mean_degree is not None:
            raise InputError("--radius and --mean-degree need the topology of a random graph")
        joined = read_graph(graph.graph, agents)
    elif agents is None:
        raise InputError(f"how many agents? give -n: vpem topology describe {source} -n 8")
    else:
        joined = graph_of(agents, None, graph.changed(topology=source))
    count = joined.n_agents
    if over_rows:
        return joined, [features or USUAL_FEATURES, *[0] * (count - 1)], None
    return joined, contiguous(count if features is None else features, count, joined.names), None


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
    tables: list[PrintedTable | str] = [table(facts, "", "")]
    if report["split"] == "features":
        listing = [
            (place, names[hub["root"]],
             shorten((names[agent] for agent in hub["agents"]), MOST_MEMBERS), hub["n_features"])
            for place, hub in enumerate(hubs[:MOST_ROWS])
        ]  # fmt: skip
        heads = ("hub", "root", "agents", "features")
        tables.append(table(listing, *heads, title="Hubs", right=("hub", "features")))
        if len(hubs) > MOST_ROWS:
            tables.append(f"... and {plural(len(hubs) - MOST_ROWS, 'more hub')} (see --json)\n")
    if report["mixing"]:
        tables += _mixing(report)
    tables += _messages(report, names)
    if "time" in report:
        tables.append(_time(report["time"]))
    show(*tables)


def _mixing(report: Report) -> list[PrintedTable | str]:
    def shown(row: Report, name: str, digits: str) -> str:
        return f"{'<= ' if row[f'{name}_is_bound'] else ''}{row[name]:{digits}}"

    chosen = report["weights"]
    fixed = report["compress"] is None and report["faults"] is None
    conditions = f"{chosen} weights"
    if report["compress"] is not None:
        conditions += ", uncompressed"
    if report["faults"] is not None:
        conditions += ", without failures"
    rates = []
    for row in report["mixing"]:
        weights = f"{row['weights']}{' *' if row['weights'] == chosen else ''}"
        rates.append((weights, f"{row['rate']:.6f}", f"{row['spectral_gap']:.3g}"))
    errors = []
    for row in report["consensus_errors"]:
        rounds = f"{row['rounds']}{' *' if fixed and row['rounds'] == report['rounds'] else ''}"
        errors.append((rounds, shown(row, "none", ".2g"), shown(row, "chebyshev", ".2g")))
    needed = [
        (f"{row['consensus_error']:g}", shown(row, "none", "d"), shown(row, "chebyshev", "d"))
        for row in report["rounds_needed"]
    ]
    ways = ("plain", "Chebyshev")
    return [
        table(rates, "weights", "mixing rate", "spectral gap", title="Mixing (* chosen)",
              right=("mixing rate", "spectral gap")),
        table(errors, "rounds", *ways, title=f"Consensus error after rounds, {conditions}",
              right=("rounds", *ways)),
        table(needed, "error", *ways, title=f"Rounds needed, {conditions}",
              right=("error", *ways)),
    ]  # fmt: skip


def _time(report: Report) -> PrintedTable:
    made_of = {
        "computing": f"{number(report['flops'], 3)} flops, "
        f"{number(report['additions'], 3)} additions, at this machine's rates",
        "latency": f"{number(report['latencies'], 4)} times one way, in sequence, "
        f"{plural(report['chunks'], 'chunk')} of rows",
        "transfer": f"{size(report['bytes'])} over the busiest link",
        "iteration": "chunks are computed while others are sent" if report["chunks"] > 2 else "",
    }
    rows = [(part, f"{number(report[part], 3)} s", text) for part, text in made_of.items()]
    link = f"{report['bandwidth'] / 1e6:g} Mbit/s, {1e3 * report['one_way_latency']:g} ms one way"
    return table(rows, "part", "time", "of", title=f"An iteration, links of {link}",
                 right=("time",))  # fmt: skip


def _messages(report: Report, names: list[str]) -> list[PrintedTable | str]:
    """Return tables of what each phase sends, means rounded, and of the busiest links."""
    communication = report["communication"]
    rows: list[tuple[object, ...]] = []
    busiest: list[tuple[object, ...]] = []
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
    n_rows, k = report["n_samples"], report["n_components"]
    facts = [plural(n_rows, "row"), plural(k, "component"), report["dtype"]]
    if report["batch_size"] is not None:
        facts.insert(1, f"batches of {report['batch_size']}")
    if communication["is_expected"]:
        facts.append("means" if communication["n_drawn"] else "estimates")
    right = ("messages", "payload", "rounds")
    title = f"Communication: {', '.join(facts)}"
    tables: list[PrintedTable | str] = [
        table(rows, "phase", "kind", *right, title=title, right=right)
    ]
    if busiest:
        heads = ("phase", "link", "messages", "payload")
        tables.append(table(busiest, *heads, title="Busiest links", right=right))
    return tables
