"""Named topologies: graphs that are made, most of them at random."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import check_int, check_memory
from vpem.errors import InputError, Setting, VpemWarning, check_choice
from vpem.network.graph import Graph, agent_labels, check_seed, components, sorted_edges
from vpem.settings import TOPOLOGIES

SPARSE = ("geometric", "erdos-renyi", "small-world", "scale-free")  # have a mean degree to choose

BYTES_OF_AGENT = 200  # of its name and links, about
DRAWS = 100  # how often a random graph is drawn before it is given up as never connected


def make_graph(
    topology: str,
    n_agents: int,
    *,
    seed: int | np.random.Generator = 0,
    radius: float | None = None,
    mean_degree: float | None = None,
    names: Sequence[str] | None = None,
) -> Graph:
    """Make a connected graph of a named topology.

    Parameters
    ----------
    topology : str
        One of `TOPOLOGIES`. The star has a server in the middle, an extra node that holds no
        data; "grid" is a full rectangle if one with sides of at most 3 to 1 exists, else rows of
        ``ceil(sqrt(n_agents))`` with a shorter last one; "small-world" is a Watts-Strogatz ring
        with a tenth of its edges rewired; "scale-free" is Barabasi-Albert; "tree" is uniform
        among labelled trees.
    n_agents : int
        Number of agents.
    seed : int or Generator
        Randomness; the same seed gives the same graph. Graphs that come out disconnected are
        drawn again from the same stream.
    radius : float, optional
        Geometric only: agents nearer than this in the unit square are joined.
    mean_degree : float, optional
        Mean number of neighbours (geometric, erdos-renyi, small-world, scale-free), met as nearly
        as the model can: small-world takes the nearest even degree, scale-free the nearest
        ``2 m (N - m) / N``. By default 4 for small-world and scale-free and ``max(4, 2 ln N)``
        for the others, never more than ``N - 1``.
    names : sequence of str, optional
        Names of the agents.

    Returns
    -------
    Graph
        The graph.

    Raises
    ------
    InputError
        For an unknown topology, an option it does not use or that is out of range, or when no
        connected graph came out of 100 draws.
    """
    check_choice("topology", topology, TOPOLOGIES)
    n = check_int("n_agents", n_agents, least=1)
    check_memory(BYTES_OF_AGENT * n, f"a graph of {n} agents")
    rng = check_seed(seed)
    agents = agent_labels(names)
    _check_options(topology, n, radius, mean_degree)
    if topology == "star":
        spokes = np.column_stack([np.arange(n), np.full(n, n)])
        return Graph(n, spokes, topology, agents, has_server=True)
    for _ in range(DRAWS):
        pairs, positions = _draw(topology, n, rng, radius, mean_degree)
        graph = Graph(n, sorted_edges(pairs, n), topology, agents, positions)
        if len(components(graph)) == 1:
            return graph
    option = "mean_degree" if radius is None else "radius"
    raise InputError(
        f"none of {DRAWS} {topology} graphs of {n} agents was connected: raise ",
        Setting(option),
        f" (the last one had {graph.mean_degree:.3g} neighbours an agent)",
    )


def _check_options(topology: str, n: int, radius: float | None, mean_degree: float | None) -> None:
    """Refuse options that the topology does not use or that are out of range."""
    for option, value, users, most in (
        ("radius", radius, ("geometric",), None),
        ("mean_degree", mean_degree, SPARSE, n - 1),
    ):
        if value is None:
            continue
        if topology not in users:
            raise InputError(
                Setting(option), f" is for {', '.join(users)}, a {topology} graph has none"
            )
        if most == 0:
            raise InputError(Setting(option), " says nothing about a single agent: leave it out")
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not (number and 0 < value < np.inf and (most is None or value <= most)):
            upper = "" if most is None else f" and at most {most} for {n} agents"
            raise InputError(Setting(option), f" must be a number above 0{upper}, got {value!r}")
    if radius is not None and mean_degree is not None:
        raise InputError(
            "give ", Setting("radius"), " or ", Setting("mean_degree"),
            ", not both: one follows from the other",
        )  # fmt: skip
    most_connected = 2 * (n // 2) * ((n + 1) // 2) / n
    if topology == "scale-free" and mean_degree is not None and mean_degree > most_connected + 1:
        warnings.warn(
            f"a scale-free graph of {n} agents has a mean degree of {most_connected:.4g} at most,"
            f" which is used in place of {mean_degree}",
            VpemWarning,
            stacklevel=3,
        )


def _draw(
    topology: str,
    n: int,
    rng: np.random.Generator,
    radius: float | None,
    mean_degree: float | None,
) -> tuple[ArrayLike, NDArray[np.float64] | None]:
    """Return the edges of one graph, in any order, and where its agents are if that is known."""
    usual = 4.0 if topology in ("small-world", "scale-free") else max(4.0, 2.0 * np.log(n))
    degree = min(n - 1.0, usual) if mean_degree is None else float(mean_degree)
    one = np.arange(n)
    line = np.column_stack([one[:-1], one[1:]])
    if topology == "grid":
        return _grid(n)
    if topology == "geometric":
        return _geometric(rng.random((n, 2)), degree, radius)
    if topology == "path" or n <= 2:
        return line, None
    if topology == "cycle":
        return np.concatenate([line, [[0, n - 1]]]), None
    if topology == "complete":
        return np.column_stack(np.triu_indices(n, 1)), None
    import networkx as nx

    if topology == "tree":  # Pruefer's sequences and labelled trees are one to one
        return list(nx.from_prufer_sequence(rng.integers(n, size=n - 2).tolist()).edges), None
    seed = int(rng.integers(2**31))
    if topology == "erdos-renyi":
        graph = nx.fast_gnp_random_graph(n, degree / (n - 1), seed=seed)
    elif topology == "small-world":
        nearest = min(max(2 * int(degree / 2 + 0.5), 2), 2 * ((n - 1) // 2))
        graph = nx.watts_strogatz_graph(n, nearest, 0.1, seed=seed)
    else:
        new = one[1:]
        m = int(new[np.argmin(np.abs(2 * new * (n - new) / n - degree))])
        graph = nx.barabasi_albert_graph(n, m, seed=seed)
    return list(graph.edges), None


def _grid(n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return edges and positions of a nearly square grid, numbered row by row."""
    rows = max(side for side in range(1, int(np.sqrt(n)) + 1) if n % side == 0)
    columns = n // rows if n <= 3 * rows * rows else int(np.ceil(np.sqrt(n)))
    one = np.arange(n)
    right = one[(one % columns < columns - 1) & (one < n - 1)]
    down = one[: max(n - columns, 0)]
    edges = np.concatenate([[right, right + 1], [down, down + columns]], axis=1).T
    return edges, np.column_stack([one % columns, one // columns]).astype(np.float64)


def _geometric(
    points: NDArray[np.float64], degree: float, radius: float | None
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Join the points nearer than ``radius``, or the nearest pairs that make the mean degree."""
    from scipy.spatial import cKDTree

    tree = cKDTree(points)
    if radius is not None:
        return tree.query_pairs(float(radius), output_type="ndarray"), points
    wanted = round(len(points) * degree / 2)
    reach = np.sqrt((degree + 1) / (np.pi * len(points)))
    pairs = tree.query_pairs(reach, output_type="ndarray")
    while len(pairs) < wanted:
        reach *= 1.1
        pairs = tree.query_pairs(reach, output_type="ndarray")
    length = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
    return pairs[np.argsort(length, kind="stable")[:wanted]], points
