"""Networks in files: who holds which features or rows (JSON), and graphs.

Graphs are edge lists, GraphML or node-link JSON.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np

from vpem.checks import AnyArray, read_float
from vpem.errors import (
    FileError,
    InputError,
    Setting,
    VpemWarning,
    did_you_mean,
    shorten,
    warn,
)
from vpem.files.json_text import JSON_TIMES, parse_json, read_json_file
from vpem.files.opening import read_bytes
from vpem.network.graph import Graph, from_edges, from_networkx, in_turn
from vpem.network.partition import Partition, Workers, from_lists, from_worker_of_row


def read_partition(
    path: str | os.PathLike[str], n_features: int, feature_names: Sequence[str] | None = None
) -> Partition:
    """Read a partition of the features: ``{"agent": [feature, ...], ...}``, or a list of lists.

    A feature is its number, from 0, or its name, and must be held exactly once.
    """
    content = read_json_file(path)
    names = list(content) if isinstance(content, dict) else None
    lists = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(lists, list) or not all(isinstance(part, list) for part in lists):
        raise InputError(
            f"{path} must hold an object of lists of features, one an agent, or a list of lists"
        )
    try:
        numbers = numbered(lists, feature_names)
        return from_lists(numbers, n_features, names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def numbered(lists: Sequence[Any], feature_names: Sequence[str] | None) -> list[Any]:
    """Replace feature names by their column numbers; leave everything else as it is."""
    names = list(feature_names or [])
    number = {name: column for column, name in enumerate(names)}

    def resolve(feature: object) -> object:
        if not isinstance(feature, str):
            return feature
        if feature not in number:
            hint = did_you_mean(feature, names) if names else "; the features here have no names"
            raise InputError(f"there is no feature {feature!r}{hint}")
        if names.count(feature) > 1:
            raise InputError(f"several features are called {feature!r}; give their numbers")
        return number[feature]

    return [
        [resolve(feature) for feature in part]
        if isinstance(part, Iterable) and not isinstance(part, str | bytes)
        else part
        for part in lists
    ]


def read_workers(path: str | os.PathLike[str], n_samples: int) -> Workers:
    """Read a partition of the rows: JSON, ``{"name": [row, ...], ...}``, rows from 0."""

    def number(worker: str, row: object) -> int:
        if type(row) is not int or not 0 <= row < n_samples:
            raise InputError(
                f"{path}: worker {worker!r} has row {row!r}, but rows are numbered 0 to "
                f"{n_samples - 1}"
            )
        return row

    return read_holders(path, "worker", "row", range(n_samples), number)


def read_holders(
    path: str | os.PathLike[str],
    holder: str,
    held: str,
    called: Sequence[object],
    number: Callable[[str, object], int],
    may_be_empty: bool = True,
) -> Workers:
    """Read who holds what: JSON, ``{"holder": [held, ...], ...}``.

    ``holder`` and ``held`` are words for messages: "worker", "row". ``number(holder, value)`` is
    the place in ``called`` of what the file has, or raises InputError. Each must be held exactly
    once.
    """
    content = read_json_file(path)
    if not isinstance(content, dict) or not all(
        isinstance(part, list) for part in content.values()
    ):
        raise InputError(f'{path} must hold {{"{holder}": [{held}, ...], ...}}')
    holder_of = np.full(len(called), -1)
    for index, (name, part) in enumerate(content.items()):
        if not part and not may_be_empty:
            raise InputError(f"{path}: {holder} {name!r} holds no {held}s; leave it out")
        for one in part:
            place = number(name, one)
            if holder_of[place] >= 0:
                shown = f"{held} {called[place]!r}"
                raise InputError(f"{path}: {shown} is given twice, last to {name!r}")
            holder_of[place] = index
    lost = [called[place] for place in np.flatnonzero(holder_of < 0).tolist()]
    if lost:
        raise InputError(
            f"{path} gives {held} {shorten(map(repr, lost))} to no {holder}; every {held} must be "
            "held by exactly one"
        )
    return from_worker_of_row(holder_of, list(content))


EDGE_LISTS: tuple[str, ...] = (".txt", ".edges", ".edgelist", ".csv", ".tsv")
HEADERS = (("source", "target"), ("from", "to"))
NEXT = "---"
"""The line of an edge list after which the next of several graphs begins."""


MATRICES: tuple[str, ...] = (".csv", ".txt", ".tsv", ".npy")
"""Endings of files of mixing matrices."""


def read_graph(
    path: str | os.PathLike[str],
    n_agents: int | None = None,
    names: Sequence[str] | None = None,
    *,
    directed: bool = False,
) -> Graph:
    """Read a graph whose nodes are agents, by name or by number from 0.

    The ending of the file says what it is:

    * ``.txt``, ``.edges``, ``.edgelist``, ``.csv``, ``.tsv``: an edge list, one pair of nodes a
      line, separated by a comma, a tab or blanks; ``#`` begins a comment, and a first line
      "source,target" or "from,to" is a header. An agent of no line has no neighbours.
    * ``.graphml``: GraphML; the ``id`` of a node is its label.
    * ``.json``: node-link JSON as networkx writes it, with ``nodes`` and ``edges`` (or ``links``).

    The last two warn where they say that edges lead one way, but ``directed`` does not.

    Several graphs take turns (`vpem.network.graph.in_turn`): in an edge list a line ``---`` begins
    the next, and JSON may be a list of graphs. Edges of a ``directed`` graph lead from the first
    node to the second. See `vpem.network.graph.from_edges` for how nodes are matched with agents.
    """
    file = Path(path)
    ending = file.suffix.lower()
    if ending not in (*EDGE_LISTS, ".graphml", ".json"):
        raise FileError(
            f"cannot tell what kind of graph {file} holds: its name must end in"
            f" {', '.join(EDGE_LISTS)} (edge list), .graphml or .json (node-link)"
        )
    content, topology = read_bytes(file, JSON_TIMES), "directed" if directed else "file"
    if not content.strip():
        raise FileError(f"the graph file {file} is empty")
    try:
        if ending in EDGE_LISTS:
            lists = _read_edge_list(file, content)
            union = from_edges(
                [pair for pairs in lists for pair in pairs], n_agents, names, topology,
                directed=directed,
            )  # fmt: skip
            if len(lists) == 1:
                return union
            _refuse_directed(directed)
            n, called = union.n_agents, union.names
            return in_turn([from_edges(pairs, n, called, "file") for pairs in lists])
        if ending == ".json":
            graphs = _read_json(file, content)
            if len(graphs) > 1:
                _refuse_directed(directed)
                return in_turn([from_networkx(one, n_agents, names, "file") for one in graphs])
            graph = graphs[0]
        else:
            import networkx as nx

            try:
                with warnings.catch_warnings():  # about attributes, which are not used
                    warnings.simplefilter("ignore", UserWarning)
                    graph = nx.read_graphml(io.BytesIO(content))
            except (ParseError, nx.NetworkXException, ValueError, LookupError, TypeError) as error:
                raise FileError(f"{file} is not a valid GraphML file: {error}") from None
        if directed and not graph.is_directed():
            raise InputError("the edges of this graph have no direction; leave out ",
                             Setting("directed", True))  # fmt: skip
        one_way = (not graph.has_edge(two, one) for one, two in graph.edges())
        if not directed and any(one_way):
            warn(f"{file} has edges that lead one way, but they are taken as both ways; for one way"
                 " add ", Setting("directed", True))  # fmt: skip
        return from_networkx(graph, n_agents, names, topology, directed=directed)
    except InputError as error:
        raise InputError(f"{file}: ", *error.parts) from None


def _refuse_directed(directed: bool) -> None:
    if directed:
        raise InputError(
            "graphs that take turns are undirected: push-sum is for one directed graph; leave out ",
            Setting("directed", True),
        )


def read_weights(path: str | os.PathLike[str], graph: Graph) -> AnyArray:
    """Read a mixing matrix (n_agents, n_agents) for `vpem.network.mixing.mixing_matrix`.

    A ``.npy`` file holds the matrix, a text file (``.csv``, ``.txt``, ``.tsv``) a line an agent
    with a number for each.
    """
    file, n = Path(path), graph.n_agents
    if file.suffix.lower() not in MATRICES:
        raise FileError(f"mixing weights are read from {', '.join(MATRICES)} files, got {file}")
    content = read_bytes(file, JSON_TIMES)
    if file.suffix.lower() == ".npy":
        try:
            return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
        except (ValueError, TypeError, EOFError, OSError) as error:
            raise FileError(f"{file} is not a .npy file of numbers: {error}") from None
    rows = [[read_float(word) for word in row] for _, row in _rows_of(_text(file, content))]
    if len(rows) != n or any(len(row) != n or None in row for row in rows):
        raise FileError(f"{file} must hold {n} by {n} numbers, a line for each agent")
    return np.array(rows, dtype=np.float64)


def _text(file: Path, content: bytes) -> str:
    """Decode UTF-8 text, with or without a byte order mark."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise FileError(f"{file} is not UTF-8 text") from None
    return text


def _rows_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of lines with their numbers, split at commas, else tabs, else blanks."""
    for number, line in enumerate(text.splitlines(), start=1):
        data = line.partition("#")[0].strip()
        if not data:
            continue
        separator = next((mark for mark in (",", "\t") if mark in data), None)
        fields = [field.strip() for field in data.split(separator)]
        yield number, [one[1:-1] if one[:1] == one[-1:] == '"' else one for one in fields]


def _read_edge_list(file: Path, content: bytes) -> list[list[tuple[str, str]]]:
    """Return the pairs of an edge list; several lists, where lines ``---`` lie between."""
    lists: list[list[tuple[str, str]]] = [[]]
    more = first = 0
    text = _text(file, content)
    lines = text.splitlines()
    for number, fields in _rows_of(text):
        line, pairs = lines[number - 1], lists[-1]
        if fields == [NEXT]:
            lists.append([])
            continue
        first = first or number
        if number == first and tuple(field.lower() for field in fields[:2]) in HEADERS:
            continue
        attributes = [field for field in fields[2:] if field]
        known = None not in map(read_float, attributes) or attributes[0].startswith("{")
        if len(fields) < 2 or not (fields[0] and fields[1]) or not known:
            raise FileError(
                f"line {number} of {file} must hold two nodes, got {line.strip()[:60]!r}; put a"
                " comma between names that have blanks in them"
            )
        more += bool(attributes) and attributes != ["{}"]
        pairs.append((fields[0], fields[1]))
    if not any(lists):
        raise FileError(f"the edge list {file} holds no edges")
    while not lists[-1]:
        lists.pop()
    while not lists[0]:
        lists.pop(0)
    if more:
        warnings.warn(
            f"{file}: what follows the two nodes of a line is not used, here on {more} lines;"
            " mixing weights are made from the graph alone",
            VpemWarning,
            stacklevel=3,
        )
    return lists


def _read_json(file: Path, content: bytes) -> list[Any]:
    """Return the graphs of a file of node-link JSON, or of a list of it."""

    def wrong(what: str) -> FileError:
        return FileError(f"{file} is not a node-link JSON file: {what}")

    try:
        data = parse_json(_text(file, content))
    except ValueError as error:
        raise wrong(str(error)) from None
    if isinstance(data, list) and data:
        return [_node_link(one, wrong) for one in data]
    return [_node_link(data, wrong)]


def _node_link(data: Any, wrong: Callable[[str], FileError]) -> Any:
    import networkx as nx

    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise wrong('it has no list "nodes"')
    edges = data.get("edges", data.get("links"))
    if not isinstance(edges, list):
        raise wrong('it has no list "edges" or "links"')
    graph = nx.DiGraph() if data.get("directed") is True else nx.Graph()
    for place, node in enumerate(data["nodes"]):
        label = node.get("id") if isinstance(node, dict) else None
        if not isinstance(label, str | int) or label in graph:
            raise wrong(f'node {place} must have an "id" of its own, a text or an integer')
        graph.add_node(label)
    for place, edge in enumerate(edges):
        ends = [edge.get(end) if isinstance(edge, dict) else None for end in ("source", "target")]
        for end in ends:
            if not isinstance(end, str | int) or end not in graph:
                raise wrong(f'edge {place} must have the "id" of a node as "source" and "target"')
        graph.add_edge(*ends)
    return graph
