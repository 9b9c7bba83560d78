"""Links and agents that fail: in consensus rounds, along a tree, and in masked sums.

Two totals of the same numbers, one with a party and one without it, differ by what that party
added, masks or none. A relay may say of any party that it is lost, so each party remembers itself
with whom it has opened totals, and at which parameters (`Outlast`); no other can know it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_number
from vpem.errors import InputError, PartitionedError, Setting, shorten
from vpem.network.graph import Graph, connected_parts
from vpem.network.hubs import Routes
from vpem.network.messages import encode
from vpem.network.schema import State

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_DRAWN = 10**9
"""Links and agents of all rounds of one sum."""

TRIAL_ROUNDS = 200
"""Rounds drawn to see how fast rounds mix in which links fail."""

MOST_FALL = 1e-3
"""Of one round: what it gains beyond is luck that is not counted on."""

DEVIATIONS = 3.0
"""By how many standard deviations a sum may mix worse than the drawn rounds did."""

MOST_DENSE = 400
"""Agents up to which eigenvalues come from the whole matrix."""

AT_ONCE = 32
"""Rounds that are drawn together along a tree."""

SETUP, START = "setup", "start"
"""Of what totals are before there are parameters: of the data alone, and of starts."""

Mask = NDArray[np.bool_]
T = TypeVar("T")


@dataclass(frozen=True)
class Faults:
    """How often links and agents fail, each a probability below 1.

    A link is down in a round in both directions. An agent is inactive for a whole E-step; where it
    is a root its hub takes no part: the others find the posterior given their own features alone.
    Sums of the start, and the one after the last iteration, are taken by all. All links of a
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
        return max(self.link_failure, self.agent_dropout, self.stragglers) > 0

    @property
    def links_up(self) -> float:
        """Share of the links that are up in a round, on average, among active agents."""
        return (1.0 - self.link_failure) * (1.0 - self.stragglers) ** 2

    def draw(
        self,
        graph: Graph,
        n_rounds: int,
        rng: np.random.Generator,
        *,
        dropout: bool,
        first: int = 0,
    ) -> DrawnFaults:
        """Draw what is up in each round of one sum; all agents are active without ``dropout``.

        Of graphs that take turns only links of that of the round are, from round ``first`` on.
        """
        n, edges = graph.n_agents, graph.edges
        if n_rounds * (n + len(edges)) > MOST_DRAWN:
            raise InputError(
                f"{n_rounds} rounds over {len(edges)} links are too many to draw what fails in "
                "them; take fewer rounds"
            )
        inactive = rng.random(n) < (self.agent_dropout if dropout else 0.0)
        up = rng.random((n_rounds, len(edges))) >= self.link_failure
        late = rng.random((n_rounds, n)) < self.stragglers
        down = late | inactive
        up &= ~(down[:, edges[:, 0]] | down[:, edges[:, 1]])
        if graph.turns is not None:
            up &= graph.turns[np.arange(first, first + n_rounds) % len(graph.turns)]
        return DrawnFaults(~inactive, up)


@dataclass(frozen=True)
class DrawnFaults:
    """What is up in the rounds of one sum."""

    awake: NDArray[np.bool_]  # (N,) agents that take part
    up: NDArray[np.bool_]  # (S, n_edges) in each round

    def check_whole(self, graph: Graph) -> None:
        """Raise PartitionedError unless the links of all rounds connect the active agents."""
        _, part = connected_parts(graph.edges[self.up.any(axis=0)].T, graph.n_agents)
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


class MixingLinks:
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
        degrees = np.bincount(self.edges[up].ravel(), minlength=self.n_agents)
        return self.symmetric(up / (1.0 + np.maximum(degrees[low], degrees[high])))

    def symmetric(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights of the edges (n_edges,) for the pattern, so that rows sum to 1."""
        (low, high), n = self.edges.T, self.n_agents
        values = np.empty(len(self.indices))
        values[self._there] = values[self._back] = weight
        values[self._own] = 1.0 - (np.bincount(low, weight, n) + np.bincount(high, weight, n))
        return values

    def matrix(self, values: NDArray[np.float64]) -> csr_array:
        """Return the matrix (N, N) of values for the pattern."""
        from scipy.sparse import csr_array

        return csr_array((values, self.indices, self.indptr), shape=(self.n_agents,) * 2)


def weighted(graph: Graph, weight: NDArray[np.float64]) -> csr_array:
    """Return the symmetric matrix with ``weight`` on the edges whose rows sum to 1."""
    links = MixingLinks(graph)
    return links.matrix(links.symmetric(weight))


def in_turns(graph: Graph) -> list[csr_array]:
    """Return the Metropolis mixing matrix of each of the graphs that take turns."""
    links = MixingLinks(graph)
    turns = np.ones((1, graph.n_edges), np.bool_) if graph.turns is None else graph.turns
    return [links.matrix(links.metropolis(up)) for up in turns]


def turning_rate(graph: Graph) -> float:
    """Return by what a round of graphs in turn reduces differences, on average, in the long run.

    It is the spectral radius of the product of their matrices, less the mean, to one round.
    """
    matrices, n = in_turns(graph), graph.n_agents
    if n == 1:
        return 0.0

    def once_each(state: NDArray[np.float64]) -> NDArray[np.float64]:
        for one in matrices:
            state = one @ state
        return np.asarray(state - state.mean(axis=0))

    if n <= MOST_DENSE:
        radius = np.abs(np.linalg.eigvals(once_each(np.eye(n)))).max()
    else:
        from scipy.sparse.linalg import LinearOperator, eigs

        operator = LinearOperator((n, n), matvec=once_each, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(n)
        radius = np.abs(eigs(operator, k=1, v0=start, return_eigenvectors=False)).max()
    return float(min(radius, 1.0) ** (1.0 / len(matrices)))


def failing_rounds(graph: Graph, faults: Faults, fall: float, *, seed: int = 0) -> int:
    """Return the rounds in which differences between agents fall to a share, though links fail.

    The fall of one difference is watched over drawn rounds. Its logarithm is a sum over rounds, so
    that of S rounds lies within three deviations, ``3 sqrt(S)`` times one round's, of S times its
    mean. All agents take part; `MOST_DRAWN` where nothing fell.
    """
    if graph.n_agents == 1:
        return 1
    rng = np.random.default_rng([seed, TRIAL_ROUNDS])
    links, n = MixingLinks(graph), graph.n_agents
    state = rng.standard_normal(n)
    falls = []
    for up in faults.draw(graph, TRIAL_ROUNDS, rng, dropout=False).up:
        state -= state.mean()
        state /= np.linalg.norm(state)
        state = links.matrix(links.metropolis(up)) @ state
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


class FewerError(Exception):
    """A process that takes part in a sum is lost: what was sent for the sum is never opened."""


@dataclass
class Objection:
    """Whether a process objects to what the last sum came to, with the one that is under way.

    Where all have the same total each goes on by it at once. A process that finds what others may
    not know, or find otherwise, has ``raised`` an objection: with the next sum, which has no use
    then, all have ``heard`` it: nothing can be read in that total. Under masks that may have other
    reasons, which ``error`` tells.
    """

    raised: bool = False
    heard: bool = False
    error: InputError | None = None


class Outlast:
    """Totals that were opened, by names of the parties whose numbers are in them.

    ``enough`` says why a run cannot do without some more, or None where it can. ``known`` is the
    `state` of the image of this process before, where that gave way to a new one. ``gone`` are
    processes that were lost in this one, whom sums do without to the end of an iteration; ``error``
    says so, and ends it.
    """

    def __init__(
        self, enough: Callable[[Sequence[str]], str | None], known: State | None = None
    ) -> None:
        self._enough = enough
        self.gone: set[int] = set()
        self.error: Exception | None = None
        known, self._knows = known or {}, bool(known)
        self.opened = {at: set(names) for at, names in known.get("opened", {}).items()}
        self.scales: dict[str, tuple[Any, list[str]]] = dict(known.get("scales", {}))
        self._at, self._within = SETUP, False
        self._scaled: set[str] | None = None

    def state(self, back: Collection[str] | None = None) -> State:
        """Return what the next image is to know; with any ``back``, who know nothing, scales go."""
        opened = {at: sorted(names) for at, names in self.opened.items()}
        if back is None:
            return {"opened": opened, "scales": {n: list(one) for n, one in self.scales.items()}}
        others = {name for _, names in self.scales.values() for name in names} - set(back)
        return {"opened": opened | {SETUP: sorted(others.union(opened.get(SETUP, ())))}}

    def refusal(self, names: Sequence[str]) -> str | None:
        """Return why sums cannot go on without some, or None: they can within an iteration."""
        if not self._within or SETUP in self.opened:
            return "it was lost where numbers may be summed twice"
        return self._enough(names)

    def once(self, name: str, find: Callable[[], T]) -> T:
        """Return a scale of all data, which stays as it was found where parties are lost."""
        if name not in self.scales:
            self._scaled = set()
            try:
                self.scales[name] = (find(), sorted(self._scaled))
            finally:
                scaled, self._scaled = self._scaled, None
                if name not in self.scales:
                    self.record_opening(scaled)
        known: T = self.scales[name][0]
        return known

    def record_opening(self, names: Collection[str]) -> None:
        """Remember that a total of these is opened now."""
        if self._scaled is not None:
            self._scaled.update(names)
        elif names:
            self.opened.setdefault(self._at, set()).update(names)

    def resumed(self, names: Collection[str]) -> None:
        """Note that a run of these resumes from a checkpoint, behind which it may have been."""
        if not self._knows:
            self.opened.setdefault(SETUP, set()).update(names)

    def moved(self, parameters: object, last: bool = False) -> None:
        """Note at which parameters sums are from now on; None: at those that starts make."""
        self._at = START if parameters is None else sha256(encode(parameters)).hexdigest()
        self._within = parameters is not None and not last and self._at not in self.opened

    def repeats(self, saved: Mapping[int, object], left: Collection[str]) -> bool:
        """Whether those left would take a sum again that had others in it.

        They resume from the newest of the parameters ``saved``, or, without any, start over.
        """
        again = set().union(*self.opened.values())
        if saved:
            at = sha256(encode(saved[max(saved)])).hexdigest()
            again = self.opened.get(SETUP, set()) | self.opened.get(at, set())
        return not again <= set(left)


@dataclass(frozen=True)
class Waits:
    """Rounds that messages take along a tree in which links are down, or agents late, at times.

    A message over a link that is down in a round is sent in the first one in which it is up, and
    the agent that adds it waits for it: nothing is lost, and no message is counted twice.
    """

    graph: Graph
    tree: Routes  # ways to the root
    faults: Faults
    seed: int

    @cached_property
    def _edges(self) -> NDArray[np.intp]:
        """Number of the edge from every agent to its parent; of the root any."""
        low, high = self.graph.edges.T
        n, agents, parent = self.graph.n_nodes, np.arange(len(self.tree.parent)), self.tree.parent
        keys = low * n + high  # ascending, as edges are
        ups = np.minimum(agents, parent) * n + np.maximum(agents, parent)
        return np.searchsorted(keys, ups) % max(len(keys), 1)

    def taken(self, on: Mask, number: tuple[int, ...], source: int | None = None) -> int:
        """Return the rounds until all messages of the agents ``on`` (N,) have arrived.

        With all agents are all on their ways to the root, where sums go; or all hear the message of
        ``source``. ``number`` names the messages: others have other draws.
        """
        parent = self.tree.parent
        leaves = np.flatnonzero(on & (self.tree.depth > 0))
        above, left = parent[leaves], np.ones(len(leaves), dtype=np.bool_)
        waiting = np.bincount(above, minlength=len(parent))
        heard = ~on
        if source is not None:
            heard[source] = True
        rng, draw = np.random.default_rng([self.seed, *number]), self.faults.draw
        drawn = (draw(self.graph, AT_ONCE, rng, dropout=False) for _ in repeat(None))
        edges = self._edges[leaves]  # none where the root is alone
        for rounds, up in enumerate(up for some in drawn for up in some.up[:, edges]):
            if not left.any():
                return rounds
            if source is None:
                goes = left & up & (waiting[leaves] == 0)
                np.subtract.at(waiting, above[goes], 1)
            else:
                goes = left & up & (heard[leaves] | heard[above])
                heard[leaves[goes]] = heard[above[goes]] = True
            left &= ~goes
        raise AssertionError
