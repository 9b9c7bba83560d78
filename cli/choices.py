"""What commands make of options that several of them have: rounds, rows, parts and graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .workers import graph_of

if TYPE_CHECKING:
    from pathlib import Path

    from vpem.files.datasets import Dataset
    from vpem.network.graph import Graph
    from vpem.network.holdings import Partition

__all__ = ["how_summed", "partition_of", "rounds_of", "rows_of", "stored_graph"]


def rounds_of(text: str) -> int | str:
    """Read a number of rounds, or "auto"."""
    from vpem.errors import InputError

    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--rounds must be a number of rounds, or auto, got {text!r}") from None


def rows_of(text: str) -> list[int]:
    """Read row indices given as 3,77,120."""
    from vpem.errors import InputError

    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            f"--init-rows must be row numbers with commas between, such as 3,77,120, got {text!r}"
        ) from None


def partition_of(source: Dataset, agents: int | None, file: Path | None) -> Partition:
    """Choose who holds which features."""
    from vpem.errors import InputError
    from vpem.files.holdings import read_partition
    from vpem.network.holdings import contiguous

    if agents is not None and file is not None:
        raise InputError("give --agents or --partition, not both")
    if file is not None:
        return read_partition(file, source.n_features, source.feature_names)
    if agents is not None:
        return contiguous(source.n_features, agents)
    if source.partition is not None:
        return source.partition
    return contiguous(source.n_features, source.n_features, names=source.feature_names)


def stored_graph(
    source: Dataset,
    held: Partition,
    topology: str | None,
    file: Path | None,
    radius: float | None,
    mean_degree: float | None,
    seed: int,
) -> Graph:
    """Choose who talks to whom: as stored in the dataset, unless something is asked for."""
    from vpem.errors import InputError
    from vpem.network.graph import from_edges

    asked = (topology, file, radius, mean_degree)
    if source.edges is None or any(value is not None for value in asked):
        return graph_of(held.n_agents, held.names, *asked, seed)
    stored = held if source.partition is None else source.partition
    if stored.n_agents != held.n_agents:
        raise InputError(
            f"the graph stored in the dataset joins {stored.n_agents} agents, the features are "
            f"held by {held.n_agents}; give --topology or --graph"
        )
    return from_edges(source.edges, held.n_agents, held.names, topology="dataset")


def how_summed(report: dict[str, Any]) -> str:
    """Say in a line how the sums were taken."""
    from .output import plural

    parts = ["at the server" if report["compress"] else "exact at the server"]
    if report["server"] is None:
        chebyshev = " (Chebyshev)" if report["acceleration"] == "chebyshev" else ""
        parts = [
            f"{plural(report['rounds'], 'round')}{chebyshev}",
            f"{report['weights']} weights",
            f"mixing rate {report['mixing_rate']:.4f}",
        ]
        if report["consensus_error"] is not None:
            bound = "at most " if report["consensus_error_is_bound"] else ""
            parts.append(f"consensus error {bound}{report['consensus_error']:.2g}")
    if report["compress"] is not None:
        parts.append(f"compressed by {report['compress']}")
    for name, chance in (report["faults"] or {}).items():
        if chance:
            parts.append(f"{name.replace('_', ' ')} {chance:g}")
    return ", ".join(parts)
