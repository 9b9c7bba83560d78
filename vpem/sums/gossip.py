"""The sum by rounds that are no fixed matrix: compressed messages, links and agents that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.consensus import consensus_rounds
from vpem.checks import Floats, check_int, check_number
from vpem.errors import InputError, PartitionedError
from vpem.network.faults import DrawnFaults, Faults, Links
from vpem.network.graph import Graph
from vpem.network.ledger import Ledger
from vpem.network.mixing import chebyshev_steps
from vpem.network.routes import Routes
from vpem.network.schema import COUNT, LARGEST_COUNT, Array, Maybe, Schema, State
from vpem.sums.consensus import _Layout, _OverHubs
from vpem.sums.contraction import RoundSteps, codec_of, contraction, stable_steps
from vpem.sums.counted import SUM_KIND
from vpem.sums.quantizer import Quantizer
from vpem.sums.wrappers import Channel, Compressed, Memory, flattened, short_keys, unflattened

if TYPE_CHECKING:
    from vpem.network.codecs import Codec, Keys

__all__ = ["GossipSum"]

MOST_DRAWS = 20
"""Draws of a sum of the start, or after the last iteration, in which the network falls apart."""

ONE_ROUND = np.ones(1)


@dataclass
class _Memory:
    """What agents keep from one compressed sum to the next."""

    states: NDArray[np.float64]
    copies: NDArray[np.float64]
    inputs: NDArray[np.float64]
    awake: NDArray[np.bool_]
    missed: NDArray[np.int64]


class GossipSum(_OverHubs):
    """Sum over hubs by rounds between neighbours, compressed, over links that fail, or both.

    Uncompressed rounds are those of `ConsensusSum`, with the Metropolis weights of the links that
    are up. Compressed ones are difference compression with public copies (CHOCO gossip, Koloskova
    et al. 2019): every agent tells its neighbours ``q_i = Q(x_i - xhat_i)``, all add it to their
    copies ``xhat_i``, and ``x_i += step sum_j W_ij (xhat_j - xhat_i)``, which keeps the mean of the
    states for any Q. Where messages are accurate enough these rounds are accelerated.

    A compressed sum of an E-step goes on from the one before: states start at what they were, plus
    what the agents' own terms have changed by, so that their mean is that of the new terms and only
    changes have to travel. Where other agents are awake than before states start from the terms,
    and only the copies are kept. The root of a hub starts from all of the hub's term, so that
    nothing needs to be told to its agents.

    A message over a link that is down is sent with the next one when the link is up again.

    Parameters
    ----------
    graph : Graph
        Agents and links, without a server.
    mixing : sparse matrix of shape (N, N)
        Mixing weights W where no links fail.
    hubs : sequence of Hub
        ``root`` and ``agents`` of each.
    n_rounds : int
        Rounds of each sum, S.
    rate : float
        Mixing rate of W, by which compressed rounds go.
    codec : Codec, optional
        How messages are written; None sends numbers as they are.
    step : float, optional
        Weight of what the neighbours say in compressed rounds, which are then plain. None takes
        `stable_steps`.
    accelerated : bool
        Whether compressed rounds are accelerated where the codec's noise allows it and no links
        fail.
    faults : Faults, optional
        What fails, and how often.
    seed : int
        Of what fails and of the codec.
    n_threads : int
        Threads of the rounds.
    routes : Routes, optional
        Ways inside the hubs, by which the roots tell their terms in uncompressed sums.
    diameter : int
        Hops between the agents farthest apart; for counting messages.

    Raises
    ------
    InputError
        If an option is out of range.
    """

    def __init__(
        self,
        graph: Graph,
        mixing: Any,
        hubs: Sequence[Any],
        n_rounds: int,
        *,
        rate: float,
        codec: Codec | None = None,
        step: float | None = None,
        accelerated: bool = True,
        faults: Faults | None = None,
        seed: int = 0,
        n_threads: int = 1,
        routes: Routes | None = None,
        diameter: int = 0,
    ) -> None:
        super().__init__(len(hubs), routes, diameter)
        self.graph = graph
        self.n_rounds = check_int("n_rounds", n_rounds, least=1)
        self.seed = check_int("seed", seed, least=0)
        if step is not None and check_number("step", step, least=0.0, most=1.0) == 0:
            raise InputError("the step of compressed rounds must be above 0, got 0")
        self.codec = self._coder = codec
        self.step = step
        self.accelerated = accelerated
        self.faults = faults if faults is not None and faults.any else None
        self.n_threads = n_threads
        self.rate = rate
        self.n_roots = len(hubs)
        self.values_per_item = graph.n_agents
        self.mix: NDArray[np.float64] | None = None
        self.whole = codec is not None
        self.silent: NDArray[np.bool_] | None = None
        self._layout = _Layout(mixing, hubs)
        self._links = Links(graph)
        self._number = 0
        self._kind = "setup"
        self._drawn: DrawnFaults | None = None
        self._open: NDArray[np.bool_] | None = None
        self._missed: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._memory: _Memory | None = None
        self._all = np.ones(graph.n_agents, dtype=np.bool_)
        self._informed = self._all
        self._is_root = np.zeros(graph.n_agents, dtype=np.bool_)
        self._is_root[self._layout.roots] = True

    def on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""
        counted = super().on(ledger)
        counted._number, counted._memory, counted._drawn = 0, None, None
        return counted

    def state(self) -> State:
        """Return the memory of compressed sums, and how many sums there were."""
        memory = None if self._memory is None else dict(vars(self._memory))
        return {"number": self._number, "kind": self._kind, "memory": memory}

    def schema(self) -> Schema:
        """Return what that must be."""
        n_agents, values = self.graph.n_agents, Array("f8", (self.graph.n_agents, "V"))
        memory = {
            **dict.fromkeys(("states", "copies", "inputs"), values),
            "awake": Array("b1", (n_agents,)),
            "missed": Array("i8", (2 * self.graph.n_edges,), 0, LARGEST_COUNT),
        }
        return {"number": COUNT, "kind": SUM_KIND, "memory": Maybe(memory)}

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self._number, self._kind = state["number"], state["kind"]
        self._memory = None if state["memory"] is None else _Memory(**state["memory"])

    # ---- before the sum ------------------------------------------------------------------------

    def begin(self, kind: str, n_samples: int, n_components: int, itemsize: int) -> None:
        """Draw what fails during a sum and count its messages, compressed ones as they are formed.

        Raises
        ------
        PartitionedError
            If the links that are up in its rounds do not connect all agents that are awake, or no
            root is awake; for "setup" and "check" in 20 draws one after the other.
        """
        if self._kind == "setup" and kind != "setup":
            # What is summed for a start has nothing to do with terms.
            self._memory = None
        self._kind = kind
        self._coder = None if self.codec is None else codec_of(kind, self.codec)
        draws = 1 if kind == "estep" else MOST_DRAWS
        for left in reversed(range(draws)):
            self._number += 1
            try:
                self._draw(kind, n_samples * n_components, itemsize)
                return
            except PartitionedError:
                if not left:
                    raise

    @property
    def _charged(self) -> str:
        """Kind that the ledger counts the messages of this sum as."""
        return "setup" if self._kind == "setup" else "estep"

    def _draw(self, kind: str, n_values: int, itemsize: int) -> None:
        """Draw one sum and count it."""
        size = n_values * itemsize
        if self.faults is None:
            if self.codec is None:
                self._count(kind, size, self.n_rounds, self.n_rounds)
            return
        rng = np.random.default_rng([self.seed, self._number])
        drawn = self.faults.draw(self.graph, self.n_rounds, rng, dropout=kind == "estep")
        self._drawn = drawn
        roots_awake = drawn.awake[self._layout.roots]
        self.silent = None if roots_awake.all() else ~roots_awake
        self._informed = self._find_informed(drawn.awake)
        failure = self._find_failure(drawn)
        if self.ledger is not None:
            self._count_flooding(drawn.awake)
            if self.codec is None:
                told = self._informed[self.ledger.targets[self._down]]
                times = drawn.up.sum(axis=0)[self._links.edge_of_link]
                self._count(kind, size, times, self.n_rounds, told)
            elif failure is not None:
                # Sent in vain: what has no answer is not computed.
                assert self._coder is not None
                sent = self._coder.message_size(n_values)
                times = drawn.up.sum(axis=0)[self._links.edge_of_link]
                self._send(self._charged, sent, times=times, rounds=self.n_rounds)
        if failure is not None:
            raise failure

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count one agreement by flooding among the agents that took part in the last sum."""
        if self.ledger is None or self.faults is None or self._drawn is None:
            super().agree(kind, size)
            return
        links = self._links_awake(self._drawn.awake)
        self._send(kind, size, links=links, times=self.diameter, rounds=self.diameter)

    def _links_awake(self, awake: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the links between agents that are awake."""
        assert self.ledger is not None
        both: NDArray[np.bool_] = awake[self.ledger.sources] & awake[self.ledger.targets]
        return both

    def _count_flooding(self, awake: NDArray[np.bool_]) -> None:
        """Count how the agents learn who is awake and heard of: one bit an agent."""
        assert self.ledger is not None
        links = self._links_awake(awake)
        size = ceil(self.graph.n_agents / 8)
        self._send("flooding", size, links=links, times=self.diameter, rounds=self.diameter)

    def _find_failure(self, drawn: DrawnFaults) -> PartitionedError | None:
        """Return what keeps a sum from having an answer."""
        if not drawn.awake[self._layout.roots].any():
            return PartitionedError("the roots of all hubs are silent during a sum")
        if self._layout.n_hubs == 1 and self.codec is None:
            # The root alone has all there is to sum.
            return None
        try:
            drawn.check_whole(self.graph)
        except PartitionedError as error:
            return error
        return None

    def _find_informed(self, awake: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the agents that their root reaches over agents that are awake."""
        layout = self._layout
        informed = awake & awake[layout.roots][layout.hub_of]
        if self.routes is not None:
            for leaf in self.routes.leaves[::-1]:
                informed[leaf] &= informed[self.routes.parent[leaf]]
        return informed

    # ---- the sum -------------------------------------------------------------------------------

    def reduce(self, terms: Floats, rows: slice = slice(None)) -> NDArray[Any]:
        """Sum terms (B, m, K) of some rows over the hubs: one estimate a root, (B, m, K).

        Compressed sums take all rows at once.
        """
        if self.codec is None and self._layout.n_hubs == 1:
            return terms.copy()
        if self.codec is None:
            flat = np.ascontiguousarray(terms).reshape(len(terms), -1)
            states = self._spread(flat, self._informed)
            self._run(states)
            return states[self._layout.roots].reshape(terms.shape)
        states = self._run_compressed(flattened(terms))
        return unflattened(states[self._layout.roots], terms)

    def _spread(self, flat: Floats, informed: NDArray[np.bool_]) -> NDArray[Any]:
        """Start states whose mean over the agents that are awake is the sum: (B, V) to (N, V)."""
        layout = self._layout
        awake = self._all if self.faults is None or self._drawn is None else self._drawn.awake
        sizes = np.bincount(layout.hub_of[informed], minlength=layout.n_hubs)
        scale = np.where(informed, awake.sum() / np.maximum(sizes, 1)[layout.hub_of], 0.0)
        spread: Floats = flat[layout.hub_of] * scale[:, None].astype(flat.dtype)
        return spread

    def _run(self, states: Floats) -> None:
        """Run uncompressed rounds in place."""
        if self.faults is None:
            self._layout.run_plain(states, self.n_rounds, self.n_threads)
            return
        assert self._drawn is not None
        for up in self._drawn.up:
            self._mix(states, up)

    def _mix(self, states: Floats, up: NDArray[np.bool_] | None) -> None:
        """Run one round in place, with the weights of the links that are up."""
        if up is None:
            self._layout.run(states, ONE_ROUND, self.n_threads)
            return
        links = self._links
        weights = links.metropolis(up).astype(states.dtype, copy=False)
        consensus_rounds(links.indptr, links.indices, weights, states, ONE_ROUND, self.n_threads)

    def _run_compressed(self, flat: NDArray[np.float64]) -> NDArray[np.float64]:
        """Run the rounds of a compressed sum from where the one before ended."""
        assert self._coder is not None
        drawn = self._drawn if self.faults is not None else None
        inputs = self._spread(flat, self._informed & self._is_root)
        memory = self._remember(inputs, self._all if drawn is None else drawn.awake)
        self._missed = memory.missed
        believed, omega = contraction(self._coder, flat.shape[1])
        stable = stable_steps(self.rate, omega, fixed=drawn is None and self.accelerated)
        if self.step is not None:
            stable = RoundSteps(self.step, 0.0)
        steps = chebyshev_steps(stable.rate, self.n_rounds)
        copies = self._copies(memory, believed)
        before = memory.states
        for number, step in enumerate(steps):
            up = self._open = None if drawn is None else drawn.up[number]
            copies.send(memory.states if copies.active is None else memory.states[copies.active])
            moves = memory.copies.copy()
            self._mix(moves, up)
            moves -= memory.copies
            moves *= stable.step
            moves += memory.states
            if step != 1.0:
                moves *= step
                moves += (1.0 - step) * before
            before, memory.states = memory.states, moves
        self._memory = None if self._kind == "check" else memory
        return memory.states

    def _copies(self, memory: _Memory, believed: float) -> Memory:
        """Return the copies, by which every agent that is awake tells how its state differs."""
        assert self._coder is not None
        rng = np.random.default_rng([self.seed, self._number, 1])
        n_agents, n_values = memory.copies.shape
        channel = Channel(n_agents, self._count_copies)
        if not memory.awake.all():
            channel.active = np.flatnonzero(memory.awake)

        def keys(n_messages: int) -> Keys:
            keys_of_all = short_keys(rng, n_agents)
            return keys_of_all if channel.active is None else keys_of_all[channel.active]

        quantizer = Quantizer(self._coder, n_values, self.n_threads)
        return Memory(Compressed(channel, quantizer, keys), believed, memory.copies)

    def _remember(self, inputs: NDArray[np.float64], awake: NDArray[np.bool_]) -> _Memory:
        """Return the memory with states that have the mean of the new inputs."""
        memory = self._memory
        if memory is None or memory.inputs.shape != inputs.shape:
            missed = np.zeros(2 * self.graph.n_edges, dtype=np.int64)
            return _Memory(inputs.copy(), np.zeros_like(inputs), inputs, awake, missed)
        if np.array_equal(memory.awake, awake):
            memory.states += inputs
            memory.states -= memory.inputs
        else:
            memory.states = inputs.copy()
        memory.inputs, memory.awake = inputs, awake
        return memory

    def _count_copies(self, sizes: NDArray[np.int64], senders: NDArray[np.intp] | None) -> None:
        """Count what agents tell their neighbours; over links that are down, once they are up."""
        if self.ledger is None:
            return
        if senders is not None:
            every = np.zeros(self.graph.n_agents, dtype=np.int64)
            every[senders] = sizes
            sizes = every
        sizes = sizes[self.ledger.sources]
        if self._open is None:
            self._send(self._charged, sizes, rounds=1)
            return
        open_links = self._open[self._links.edge_of_link]
        missed = self._missed
        missed += sizes
        self._send(self._charged, missed[open_links], links=open_links, rounds=1)
        missed[open_links] = 0
