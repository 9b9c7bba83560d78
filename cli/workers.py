"""Choices of commands whose data are split by rows over workers: who holds which, and the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.files.datasets import Dataset
    from vpem.network.graph import Graph
    from vpem.network.partition import Workers
    from vpem.settings import GraphSettings, WorkerSettings

    from .output import Screen


def workers_of(
    source: Dataset, held: WorkerSettings, screen: Screen, sort_by_label: bool = False
) -> Workers:
    """Choose who holds which rows; where nobody says, one worker does, which is told."""
    from vpem.errors import InputError
    from vpem.files.networks import read_workers
    from vpem.network.partition import by_label, evenly

    if sort_by_label:
        if held.workers is None:
            raise InputError("--sort-by-label needs --workers: how many to deal the rows out to")
        if source.labels is None:
            raise InputError(f"{source.source} has no labels to sort rows by")
        return by_label(source.labels, held.workers)
    if held.worker_rows is not None:
        return read_workers(held.worker_rows, source.n_samples)
    if held.workers is not None:
        return evenly(source.n_samples, held.workers)
    if source.workers is not None:
        return source.workers
    screen.note(
        "one worker holds all rows; for more: --workers N (equal parts), or --worker-rows FILE"
    )
    return evenly(source.n_samples, 1)


def graph_of(n_agents: int, names: Sequence[str] | None, graph: GraphSettings) -> Graph:
    """Choose who talks to whom: a server (star) unless something else is asked for."""
    from vpem.errors import InputError
    from vpem.network.graph import make_graph

    drawn = graph.radius is not None or graph.mean_degree is not None
    if graph.topology is None and drawn:
        raise InputError("--radius and --mean-degree need the --topology of a random graph")
    if graph.graph is not None:
        from vpem.files.networks import read_graph

        return read_graph(graph.graph, n_agents, names)
    return make_graph(
        graph.topology or "star",
        n_agents,
        seed=graph.graph_seed or 0,
        radius=graph.radius,
        mean_degree=graph.mean_degree,
        names=names,
    )
