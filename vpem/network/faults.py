"""Links and agents that fail: what is up in each round of a sum, and whether it hangs together."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_number
from vpem.errors import InputError, PartitionedError, Setting, shorten
from vpem.network.graph import Graph

MOST_DRAWN = 10**9
"""Links and agents of all rounds of one sum."""

TRIAL_ROUNDS = 200
"""Rounds drawn to see how fast rounds mix in which links fail."""

MOST_FALL = 1e-3
"""Of one round: what it gains beyond is luck that is not counted on."""

DEVIATIONS = 3.0
"""By how many standard deviations a sum may mix worse than the drawn rounds did."""


@dataclass(frozen=True)
class Faults:
    """How often links and agents fail, each a probability below 1.

    A link is down in a round in both directions. An agent is silent for a whole E-step; where it is
    a root its hub takes no part: what the other hubs find is the posterior given their own features
    alone. Sums of the start, and the one after the last iteration, are taken by all. All links of a
    straggler are down in a round in which it is late.
    """

    link_failure: float = 0.0
    agent_dropout: float = 0.0
    stragglers: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = check_number(one.name, getattr(self, one.name), least=0.0, most=1.0)
            if value >= 1:
                raise InputError(
                    Setting(one.name), f" must be a probability below 1, got {value:g}"
                )
            object.__setattr__(self, one.name, value)

    @property
    def any(self) -> bool:
        """Whether anything can fail."""
        return max(self.link_failure, self.agent_dropout, self.stragglers) > 0

    @property
    def links_up(self) -> float:
        """Share of the links that are up in a round, on average, among agents that are awake."""
        return (1.0 - self.link_failure) * (1.0 - self.stragglers) ** 2

    def draw(
        self, graph: Graph, n_rounds: int, rng: np.random.Generator, *, dropout: bool
    ) -> DrawnFaults:
        """Draw what is up in each round of one sum; agents fall silent only with ``dropout``."""
        n, edges = graph.n_agents, graph.edges
        if n_rounds * (n + len(edges)) > MOST_DRAWN:
            raise InputError(
                f"{n_rounds} rounds over {len(edges)} links are too many to draw what fails in "
                "them; take fewer rounds"
            )
        silent = rng.random(n) < (self.agent_dropout if dropout else 0.0)
        up = rng.random((n_rounds, len(edges))) >= self.link_failure
        late = rng.random((n_rounds, n)) < self.stragglers
        down = late | silent
        up &= ~(down[:, edges[:, 0]] | down[:, edges[:, 1]])
        return DrawnFaults(~silent, up)


@dataclass(frozen=True)
class DrawnFaults:
    """What is up in the rounds of one sum."""

    awake: NDArray[np.bool_]  # (N,) agents that take part
    up: NDArray[np.bool_]  # (S, n_edges) in each round

    def check_whole(self, graph: Graph) -> None:
        """Raise PartitionedError, naming the parts, if some awake agents never hear of others.

        That is where the links that were up in any round do not connect all awake agents.
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        one, two = graph.edges[self.up.any(axis=0)].T
        shape = (graph.n_agents, graph.n_agents)
        _, part = connected_components(
            csr_array((np.ones(len(one)), (one, two)), shape=shape), directed=False
        )
        agents = np.flatnonzero(self.awake)
        names = np.unique(part[agents])
        if len(names) > 1:
            parts = []
            for name in names:
                inside = agents[part[agents] == name]
                parts.append(f"({shorten(repr(graph.name(int(agent))) for agent in inside)})")
            raise PartitionedError(
                f"the network fell into {len(names)} parts during a sum of {len(self.up)} rounds: "
                f"{shorten(parts)}"
            )


class Links:
    """Links of a graph, and the mixing weights of those that are up.

    The mixing matrices have a CSR pattern (``indptr``, ``indices``): both directions of every link,
    the diagonal. ``sources`` and ``edge_of_link`` (2 n_edges,): who sends over each directed link
    of a `Ledger`, and the number of its edge.
    """

    def __init__(self, graph: Graph) -> None:
        self.n_agents = n = graph.n_agents
        self.edges = graph.edges
        low, high = graph.edges.T
        every = np.arange(n)
        rows = np.concatenate([low, high, every])
        columns = np.concatenate([high, low, every])
        order = np.lexsort((columns, rows))
        self.indices = np.ascontiguousarray(columns[order], dtype=np.int32)
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))]).astype(
            np.int32
        )
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self._there, self._back, self._own = np.split(place, [len(low), 2 * len(low)])
        number = np.concatenate([np.arange(len(low)), np.arange(len(low)), np.full(n, -1)])[order]
        self.sources = rows[order][number >= 0]
        self.edge_of_link = number[number >= 0]

    def metropolis(self, up: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return Metropolis weights of the links that are ``up`` (n_edges,), for the pattern."""
        low, high = self.edges.T
        n = self.n_agents
        degrees = np.bincount(self.edges[up].ravel(), minlength=n)
        weight = up / (1.0 + np.maximum(degrees[low], degrees[high]))
        values = np.empty(len(self.indices))
        values[self._there] = values[self._back] = weight
        given = np.bincount(low, weight, n) + np.bincount(high, weight, n)
        values[self._own] = 1.0 - given
        return values


def failing_rounds(graph: Graph, faults: Faults, fall: float, *, seed: int = 0) -> int:
    """Return the rounds in which differences between agents fall to a share, though links fail.

    The fall of one difference is watched over drawn rounds. Its logarithm is a sum over rounds, so
    that of S rounds lies within three deviations, ``3 sqrt(S)`` times one round's, of S times its
    mean. All agents take part; `MOST_DRAWN` where nothing was seen to fall.
    """
    from scipy.sparse import csr_array

    if graph.n_agents == 1:
        return 1
    rng = np.random.default_rng([seed, TRIAL_ROUNDS])
    links, n = Links(graph), graph.n_agents
    state = rng.standard_normal(n)
    falls = []
    for up in faults.draw(graph, TRIAL_ROUNDS, rng, dropout=False).up:
        state -= state.mean()
        state /= np.linalg.norm(state)
        mixing = csr_array((links.metropolis(up), links.indices, links.indptr), shape=(n, n))
        state = mixing @ state
        left = float(np.linalg.norm(state - state.mean()))
        if left < MOST_FALL:
            # As good as agreed, as a complete graph is after a round without failures.
            left, state = MOST_FALL, rng.standard_normal(n)
        falls.append(-np.log(left))
    # The first rounds still find the slowest difference.
    late = np.array(falls[TRIAL_ROUNDS // 4 :])
    mean, deviation = float(late.mean()), float(late.std())
    if mean <= 0:
        return MOST_DRAWN
    # S mean - DEVIATIONS sqrt(S) deviation = -log(fall), a square equation in sqrt(S).
    half = DEVIATIONS * deviation / 2
    root = (half + np.sqrt(half**2 - mean * np.log(fall))) / mean
    return max(1, int(np.ceil(root**2)))
