"""Graphs of agents: from edges or networkx, or drawn of a named topology, and whether connected."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem._core.balls import hops_from
from vpem.checks import check_int, check_memory
from vpem.errors import InputError, Setting, VpemWarning, check_choice, shorten
from vpem.records import Shown
from vpem.rules import SPARSE_GRAPHS
from vpem.settings import TOPOLOGIES

if TYPE_CHECKING:
    import networkx as nx

BYTES_OF_AGENT = 200  # of its name and links, about
BYTES_OF_LINK = 40  # where all are made
DRAWS = 100  # how often a random graph is drawn before it is given up as never connected

NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, eq=False)
class Graph(Shown, facts="{n_agents:agent}, {n_edges:edge}, {topology}"):
    """Agents, numbered from 0, and the links between them, both ways unless ``arrows`` say so.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    edges : ndarray of shape (n_edges, 2)
        The edges, each once with its smaller end first, in ascending order.
    topology : str
        How the graph came about: one of `TOPOLOGIES`, "file", "dataset" or "custom"; or what it is:
        "directed", or "2 in turn".
    names : tuple of str, optional
        The names of the agents.
    positions : ndarray of shape (n_agents, 2), optional
        Where the agents are: in the unit square (geometric) or column and row (grid).
    has_server : bool
        Whether there is one more node, number ``n_agents``: a server that holds no features and
        to which every agent is joined.
    arrows : ndarray of bool of shape (2, n_edges), optional
        Of a directed graph: whether each edge (i, j) leads from i to j, and from j to i.
    turns : ndarray of bool of shape (n_turns, n_edges), optional
        Of graphs that take turns: the edges that are there in round s, ``turns[s % n_turns]``. The
        first round of every sum is that of the first graph.

    Raises
    ------
    InputError
        If edges or names do not fit the number of agents, or arrows or turns the edges.
    """

    n_agents: int
    edges: NDArray[np.intp]
    topology: str
    names: tuple[str, ...] | None = None
    positions: NDArray[np.float64] | None = None
    has_server: bool = False
    arrows: NDArray[np.bool_] | None = None
    turns: NDArray[np.bool_] | None = None

    n_nodes: int = field(init=False)
    """Number of nodes: the agents and, if there is one, the server."""
    n_edges: int = field(init=False)
    """Number of edges."""
    mean_degree: float = field(init=False)
    """Mean number of neighbours of a node."""

    def __post_init__(self) -> None:
        check_int("n_agents", self.n_agents, least=1)
        _check_names(self.names, self.n_agents)
        n_nodes, edges = self.n_agents + int(self.has_server), np.asarray(self.edges).reshape(-1, 2)
        low, high = edges.T
        code = low * n_nodes + high
        ordered = (low >= 0) & (low < high) & (high < n_nodes)
        if not (ordered.all() and (np.diff(code) > 0).all()):
            raise InputError(
                "the edges of a Graph must be pairs (i, j) of its nodes with i < j, each once and"
                " in ascending order; from_edges makes a graph of edges in any order"
            )
        for name, rows in (("arrows", self.arrows), ("turns", self.turns)):
            if rows is not None and not (
                rows.dtype == np.bool_ and rows.shape[1:] == edges.shape[:1] and rows.any(0).all()
            ):
                raise InputError(f"{name} must say of every edge of a Graph where, or when, it is")
        if self.arrows is not None and (self.turns is not None or self.has_server):
            raise InputError(
                "a directed graph has no server and takes no turns: push-sum is for one graph of"
                " agents; give undirected graphs in turn, or one directed graph"
            )
        degree = 2.0 * len(edges) / n_nodes
        vars(self).update(n_nodes=n_nodes, n_edges=len(edges), mean_degree=degree)

    @cached_property
    def degrees(self) -> NDArray[np.intp]:
        """Number of neighbours of each node, shape (n_nodes,)."""
        return np.bincount(self.edges.ravel(), minlength=self.n_nodes)

    @cached_property
    def adjacency(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The neighbours of node v, ascending: ``indices[indptr[v]:indptr[v + 1]]``."""
        ends = np.concatenate([self.edges, self.edges[:, ::-1]])
        ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
        indptr = np.concatenate([[0], np.cumsum(self.degrees)])
        return indptr.astype(np.int32), np.ascontiguousarray(ends[:, 1], dtype=np.int32)

    @property
    def is_directed(self) -> bool:
        """Whether some link goes one way only."""
        return self.arrows is not None and not self.arrows.all()

    @cached_property
    def arcs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """From whom every link leads, and to whom: both directions of an undirected edge."""
        ends = np.concatenate([self.edges, self.edges[:, ::-1]])
        if self.arrows is not None:
            ends = ends[self.arrows.ravel()]
        ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
        return ends[:, 0].copy(), ends[:, 1].copy()

    def name(self, node: int) -> str:
        """Return what to call a node in a message: its name, its number, or "the server"."""
        if node == self.n_agents and self.has_server:
            return "the server"
        return str(node) if self.names is None else self.names[node]


def check_seed(seed: int | np.random.Generator) -> np.random.Generator:
    """Return the generator of a seed (an integer of at least 0), or the generator given."""
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(check_int("seed", seed, least=0))


def _check_names(names: tuple[str, ...] | None, n_agents: int) -> None:
    if names is not None and len(names) != n_agents:
        raise InputError(f"there are {n_agents} agents but {len(names)} names of agents")
    if twice := _repeated(names or ()):
        raise InputError(f"names of agents must differ, but these stand twice: {shorten(twice)}")


def _repeated(items: Iterable[str]) -> list[str]:
    return [item for item, times in Counter(items).items() if times > 1]


def sorted_edges(pairs: ArrayLike, n_nodes: int) -> NDArray[np.intp]:
    """Return pairs of different nodes as unique edges (i < j) in ascending order."""
    ends = np.sort(np.asarray(pairs, dtype=np.intp).reshape(-1, 2), axis=1)
    code = np.unique(ends[:, 0] * n_nodes + ends[:, 1])
    return np.column_stack([code // n_nodes, code % n_nodes])


def from_networkx(
    graph: nx.Graph,
    n_agents: int | None = None,
    names: Sequence[str] | None = None,
    topology: str = "custom",
    *,
    directed: bool = False,
) -> Graph:
    """Make a graph of a networkx graph, each of whose nodes is an agent (as in `from_edges`)."""
    if not (hasattr(graph, "nodes") and hasattr(graph, "edges")):
        raise InputError(f"expected a networkx graph, got {type(graph).__name__}")
    labels = [_label(node) for node in graph.nodes]
    if twice := _repeated(labels):
        raise InputError(f"these labels stand for two nodes each: {shorten(twice)}")
    pairs = [(_label(u), _label(v)) for u, v in graph.edges()]
    if directed and not graph.is_directed():
        pairs += [(two, one) for one, two in pairs]
    return _from_labels(labels, pairs, n_agents, names, topology, whole=True, directed=directed)


def from_edges(
    edges: Iterable[Sequence[object]],
    n_agents: int | None = None,
    names: Sequence[str] | None = None,
    topology: str = "custom",
    *,
    directed: bool = False,
) -> Graph:
    """Make a graph, connected or not, of pairs of agents, given by name or by number from 0.

    Nodes that all stand in ``names`` are the agents of those names. Otherwise, nodes that are all
    numbers from 0 to ``n_agents - 1`` are the agents of those numbers. Otherwise, and only without
    ``names``, agents are numbered in the natural order of the labels ("2" before "10", "b2" before
    "b10") and the labels become their names. Edges may be repeated; self-loops are dropped with a
    warning, and an agent of no edge has no neighbours. Of a ``directed`` graph an edge leads from
    its first node to its second.
    """
    pairs = []
    for place, edge in enumerate(edges):
        pair = () if isinstance(edge, str | bytes) or not hasattr(edge, "__len__") else tuple(edge)
        if len(pair) != 2:
            raise InputError(f"edge {place} must be a pair of nodes, got {edge!r}")
        pairs.append((_label(pair[0]), _label(pair[1])))
    labels = list(dict.fromkeys(label for pair in pairs for label in pair))
    return _from_labels(labels, pairs, n_agents, names, topology, whole=False, directed=directed)


def _label(node: object) -> str:
    """Return a node's label as text, a whole number without a decimal point."""
    if isinstance(node, bytes):
        return node.decode("utf-8", "replace")
    if isinstance(node, float | np.floating) and float(node).is_integer():
        return str(int(node))
    return str(node)


def agent_labels(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str | bytes):
        raise InputError(f"names of agents must be a list of names, got {names!r}")
    return None if names is None else tuple(_label(name) for name in names)


def _from_labels(
    labels: list[str],
    pairs: list[tuple[str, str]],
    n_agents: int | None,
    names: Sequence[str] | None,
    topology: str,
    *,
    whole: bool,
    directed: bool,
) -> Graph:
    """Match labels with agents (see `from_edges`); ``whole``: every agent must have its label."""
    agents = agent_labels(names)
    if n_agents is None:
        n_agents = len(labels) if agents is None else len(agents)
        if n_agents == 0:
            raise InputError("the graph has no nodes")
    n = check_int("n_agents", n_agents, least=1)
    _check_names(agents, n)
    if len(labels) > n or (whole and len(labels) < n):
        raise InputError(f"the graph has {len(labels)} nodes but there are {n} agents")
    number = {name: place for place, name in enumerate(agents or ())}
    unknown = [label for label in labels if label not in number]
    if agents and not unknown:
        pass
    elif all(NUMBER.fullmatch(label) and int(label) < n for label in labels):
        number = {label: int(label) for label in labels}
    elif agents:
        raise InputError(
            f"these nodes of the graph are no agents: {shorten(unknown)}; the agents are"
            f" {shorten(agents)}, or numbers from 0 to {n - 1}"
        )
    elif len(labels) < n:
        raise InputError(
            f"the graph has {len(labels)} nodes but there are {n} agents, and nodes that are not"
            f" numbers from 0 to {n - 1} need the names of the agents: {shorten(labels)}"
        )
    else:

        def natural(label: str) -> list[int | str]:  # runs of digits are numbers
            parts = re.split(r"([0-9]{1,18})", label)
            return [int(part) if place % 2 else part for place, part in enumerate(parts)] + [label]

        agents = tuple(sorted(labels, key=natural))
        number = {name: place for place, name in enumerate(agents)}
    loops = dict.fromkeys(u for u, v in pairs if u == v)
    if loops:
        warnings.warn(
            f"self-loops of the graph were dropped, at {shorten(loops)}", VpemWarning, stacklevel=3
        )
    joined = [(number[u], number[v]) for u, v in pairs if u != v]
    edges = sorted_edges(joined, n)
    if not directed:
        return Graph(n, edges, topology, agents)
    there = np.unique(np.asarray(joined, dtype=np.intp).reshape(-1, 2) @ [n, 1])
    arrows = np.stack([np.isin(edges @ [n, 1], there), np.isin(edges @ [1, n], there)])
    return Graph(n, edges, topology, agents, arrows=arrows)


def in_turn(graphs: Sequence[Graph]) -> Graph:
    """Return the graph of agents whose links are those of several graphs, one a round, in turn.

    These are undirected and of the same agents, none with a server; each may fall into parts. The
    edges are those of all, and `Graph.turns` says when each is there.
    """
    if not graphs:
        raise InputError("there are no graphs to take turns; give at least one")
    first = graphs[0]
    n = first.n_agents
    for number, one in enumerate(graphs):
        if one.n_agents != n or one.names != first.names:
            raise InputError(
                f"graphs that take turns must join the same agents, but graph {number} has"
                f" {one.n_agents} and the first has {n}; name all agents in each"
            )
        if one.has_server or one.is_directed or one.turns is not None:
            raise InputError(
                f"graphs that take turns must be undirected graphs of agents, but graph {number}"
                f" {'has a server' if one.has_server else 'is none'}; leave it out"
            )
    edges = sorted_edges(np.concatenate([one.edges for one in graphs]), n)
    codes = edges @ [n, 1]
    turns = np.stack([np.isin(codes, one.edges @ [n, 1]) for one in graphs])
    return Graph(n, edges, f"{len(graphs)} in turn", first.names, turns=turns)


def connected_parts(
    links: NDArray[np.intp] | tuple[NDArray[np.intp], ...], n_nodes: int, connection: str = "weak"
) -> tuple[int, NDArray[np.int32]]:
    """Return how many parts nodes fall into that links (2, n) join, and the part of each node."""
    from scipy.sparse import csr_array  # takes long to load
    from scipy.sparse.csgraph import connected_components

    source, target = links
    matrix = csr_array((np.ones(len(source)), (source, target)), shape=(n_nodes, n_nodes))
    found: tuple[int, NDArray[np.int32]] = connected_components(matrix, connection=connection)
    return found


def components(graph: Graph) -> list[NDArray[np.intp]]:
    """Return the nodes of each connected component, in order of their smallest node."""
    indptr, indices = graph.adjacency
    steps, queue = np.empty((2, graph.n_nodes), dtype=np.int32)
    hops_from(indptr, indices, 0, steps, queue)
    if (steps >= 0).all():
        return [np.arange(graph.n_nodes)]
    _, part = connected_parts(graph.edges.T, graph.n_nodes)
    order = np.argsort(part, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(part[order])) + 1)


def check_connected(graph: Graph) -> None:
    """Raise `InputError`, naming the components, unless every node reaches every other."""
    if graph.is_directed:
        n_parts, part = connected_parts(graph.arcs, graph.n_nodes, "strong")
        if n_parts > 1:
            one, two = (int(np.flatnonzero(part == number)[0]) for number in range(2))
            raise InputError(
                "the graph is not strongly connected: of agents "
                f"{graph.name(one)} and {graph.name(two)} one never hears of the other; add edges "
                "that lead back"
            )
        return
    if graph.degrees.max() == graph.n_nodes - 1:  # one of them is a neighbour of all others
        return
    parts = components(graph)
    if len(parts) > 1:
        shown = [f"({shorten(graph.name(int(node)) for node in part)})" for part in parts]
        raise InputError(
            f"the graph is not connected: its agents fall into {len(parts)} components,"
            f" {shorten(shown)}; add edges between them"
        )


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
    n_links = n * (n - 1) // 2 if topology == "complete" else n
    needed = max(BYTES_OF_AGENT * n, BYTES_OF_LINK * n_links)
    check_memory(needed, f"a graph of {n} agents")
    rng = check_seed(seed)
    agents = agent_labels(names)
    for option, value, users, most in (
        ("radius", radius, ("geometric",), None),
        ("mean_degree", mean_degree, SPARSE_GRAPHS, n - 1),
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
        both = Setting("radius"), " or ", Setting("mean_degree")
        raise InputError("give ", *both, ", not both: one follows from the other")
    most_connected = 2 * (n // 2) * ((n + 1) // 2) / n
    if topology == "scale-free" and mean_degree is not None and mean_degree > most_connected + 1:
        warnings.warn(
            f"a scale-free graph of {n} agents has a mean degree of {most_connected:.4g} at most,"
            f" which is used in place of {mean_degree}",
            VpemWarning,
            stacklevel=2,
        )
    if topology == "star":
        spokes = np.column_stack([np.arange(n), np.full(n, n)])
        return Graph(n, spokes, topology, agents, has_server=True)
    if topology == "complete":  # in order, and in one piece
        return Graph(n, np.column_stack(np.triu_indices(n, 1)), topology, agents)
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


def _draw(
    topology: str, n: int, rng: np.random.Generator, radius: float | None, mean_degree: float | None
) -> tuple[ArrayLike, NDArray[np.float64] | None]:
    usual = 4.0 if topology in ("small-world", "scale-free") else max(4.0, 2.0 * np.log(n))
    degree = min(n - 1.0, usual) if mean_degree is None else float(mean_degree)
    one = np.arange(n)
    line = np.column_stack([one[:-1], one[1:]])
    if topology == "grid":  # nearly square, numbered row by row
        rows = max(side for side in range(1, int(np.sqrt(n)) + 1) if n % side == 0)
        columns = n // rows if n <= 3 * rows * rows else int(np.ceil(np.sqrt(n)))
        right = one[(one % columns < columns - 1) & (one < n - 1)]
        down = one[: max(n - columns, 0)]
        edges = np.concatenate([[right, right + 1], [down, down + columns]], axis=1).T
        return edges, np.column_stack([one % columns, one // columns]).astype(np.float64)
    if topology == "geometric":
        from scipy.spatial import cKDTree

        points = rng.random((n, 2))
        tree = cKDTree(points)
        if radius is not None:
            return tree.query_pairs(float(radius), output_type="ndarray"), points
        # The nearest pairs that make the mean degree.
        n_pairs = round(n * degree / 2)
        reach = np.sqrt((degree + 1) / (np.pi * n))
        nearest = tree.query_pairs(reach, output_type="ndarray")
        while len(nearest) < n_pairs:
            reach *= 1.1
            nearest = tree.query_pairs(reach, output_type="ndarray")
        length = np.linalg.norm(points[nearest[:, 0]] - points[nearest[:, 1]], axis=1)
        return nearest[np.argsort(length, kind="stable")[:n_pairs]], points
    if topology == "path" or n <= 2:
        return line, None
    if topology == "cycle":
        return np.concatenate([line, [[0, n - 1]]]), None
    import networkx as nx

    if topology == "tree":  # Pruefer's sequences and labelled trees are one to one
        return list(nx.from_prufer_sequence(rng.integers(n, size=n - 2).tolist()).edges), None
    seed = int(rng.integers(2**31))
    if topology == "erdos-renyi":
        graph = nx.fast_gnp_random_graph(n, degree / (n - 1), seed=seed)
    elif topology == "small-world":
        each = min(max(2 * int(degree / 2 + 0.5), 2), 2 * ((n - 1) // 2))
        graph = nx.watts_strogatz_graph(n, each, 0.1, seed=seed)
    else:
        new = one[1:]
        m = int(new[np.argmin(np.abs(2 * new * (n - new) / n - degree))])
        graph = nx.barabasi_albert_graph(n, m, seed=seed)
    return list(graph.edges), None
