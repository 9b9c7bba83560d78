"""`vpem topology`: what a network will do, before anything is fitted on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.errors import InputError, check_choice
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import PlanSettings
from vpem.records import changed, not_both, rule, unset
from vpem.rules import BY_FEATURES
from vpem.settings import OF_DATA, TOPOLOGIES, GraphSettings, HoldingSettings, lacks_data

from ..data import graph_of, partition_of, read_one, stored_graph, teller, weighed
from ..display import Screen, print_json, show
from ..options import Without
from ..outputs import READ, WRITTEN, Output, Printing
from ..session import Where

if TYPE_CHECKING:
    from vpem.network.graph import Graph
    from vpem.network.partition import Partition


app = typer.Typer(
    help="Look at networks of agents.\n\nExample: vpem topology describe cycle -n 8 --hops 1"
)

USUAL_FEATURES = 10
"""Features that a plan over workers has by default."""


class PlannedGraph(
    GraphSettings, heading="Network",
    rows=[
        ("topology", lacks_data,
         " is for a dataset; without one give the topology's name alone: vpem plan cycle -n 8"),
        ("graph", lambda given: given.get("source") in TOPOLOGIES,
         "give a topology or {graph}, not both"),
    ],
):  # fmt: skip
    """The graph of a dataset, or of agents without one."""


class PlannedSettings(Printing, HoldingSettings, heading="Data", kept=False):
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
    """Foretell what a fit sends, how long it takes, what it needs.

    Hubs, mixing and rounds of a network are shown as well: nothing is fitted, and up to ten
    thousand agents take seconds.

    Messages and bytes are counted as in a fit that starts at given rows: the setup, every
    iteration (with --batch-size a pass over all batches), and the last E-step, which computes the
    log-likelihood of the model. Over rows covariances are full, and the first pass over batches is
    a single sum. The start 'kmeans' adds a few sums to the setup. Where links or agents fail they
    are means.

    Example: vpem plan cycle -n 8 --hops 1
    """
    plot, graph = holding.plot, graph.seeded(0)
    with Screen(holding.quiet) as screen:
        from vpem.fits.plan import plan
        from vpem.pictures.figure import check_picture, save_picture
        from vpem.pictures.planning import tables_of_plan

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
            network, parts, weighed(settings, network), split=holding.split,
            n_samples=settings.n_samples or stored, seed=graph.graph_seed,
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
            show(*tables_of_plan(report))


def _named(
    source: str | None, holding: PlannedSettings, graph: GraphSettings
) -> tuple[Graph, Partition | list[int]]:
    """Return agents without data, on a graph of this topology, or of a file of edges."""
    from vpem.files.networks import read_graph
    from vpem.fits.plan import check_links
    from vpem.network.partition import contiguous

    agents, features = holding.agents, holding.features
    if source is None and graph.graph is None:
        raise InputError(
            "give the name of a topology with -n, a dataset, or --graph with a file of edges"
        )
    if source is not None and agents is None:
        raise InputError(f"how many agents? give -n: vpem plan {source} -n 8")
    if source is not None and agents is not None:  # the fewest, before it takes minutes to draw
        links = {"complete": agents * (agents - 1) // 2, "star": agents, "cycle": agents}
        check_links(links.get(source, agents - 1), source)
    if graph.graph is not None:
        joined = read_graph(graph.graph, agents, directed=graph.directed)
    else:
        joined = graph_of(agents or 0, None, graph.changed(topology=source))
    count = joined.n_agents
    if holding.split == "rows":
        return joined, [features or USUAL_FEATURES, *[0] * (count - 1)]
    return joined, contiguous(count if features is None else features, count, joined.names)
