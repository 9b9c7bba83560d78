"""The sum by rounds that are no fixed matrix: compressed messages, links and agents that fail."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from itertools import repeat
from math import ceil
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.consensus import consensus_rounds
from vpem.checks import Floats, check_int, check_number
from vpem.engines.placement import Placement
from vpem.errors import InputError, PartitionedError
from vpem.network.faults import DrawnFaults, Faults, Links
from vpem.network.graph import Graph
from vpem.network.ledger import Ledger
from vpem.network.mixing import chebyshev_steps
from vpem.network.routes import Routes
from vpem.network.schema import COUNT, Schema, State
from vpem.sums.consensus import _Layout, _OverHubs
from vpem.sums.contraction import RoundSteps, codec_of, contraction, stable_steps
from vpem.sums.copies import Copies, speakers
from vpem.sums.counted import SUM_KIND, charged
from vpem.sums.memories import GoesOn, Memories
from vpem.sums.neighbours import Neighbourhood, finished
from vpem.sums.outages import Outages
from vpem.sums.quantizer import Quantizer
from vpem.sums.scalars import Scalars, beside, flattened, message_bytes, unflattened

if TYPE_CHECKING:
    from vpem.network.codecs import Codec

__all__ = ["GossipSum"]

MOST_DRAWS = 20
"""Draws of a sum of the start, or after the last iteration, in which the network falls apart."""

ONE_ROUND = np.ones(1)


class GossipSum(GoesOn, _OverHubs):
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

    Where agents live in several processes (`over`) each runs the rounds of its own, with copies of
    them and of their neighbours. What fails and the codec's keys are drawn alike in all, and the
    numbers are those of one process. States travel over links that are up, messages as the codec's
    bytes, and these whether or not links are up: it is the numbers that go without them.

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
        self.mix: NDArray[np.float64] | None = None
        self.whole = codec is not None
        self.silent: NDArray[np.bool_] | None = None
        self._layout = layout = _Layout(mixing, hubs)
        self._links = Links(graph)
        self._number = 0
        self._kind = "setup"
        self._outages: Outages | None = None
        if self.faults is not None:
            self._outages = Outages(graph, self.faults, layout.hub_of, layout.roots, routes)
        self._drawn: DrawnFaults | None = None
        self._open: NDArray[np.bool_] | None = None
        self._memories: Memories[Copies] = Memories()
        self._all = np.ones(graph.n_agents, dtype=np.bool_)
        self._informed = self._all
        self._is_root = np.zeros(graph.n_agents, dtype=np.bool_)
        self._is_root[layout.roots] = True
        self._live(Placement.here(graph.n_agents), Placement.here(len(hubs)))

    def over(
        self,
        agents: Placement,
        holders: Placement,
        n_rounds: int,
        rate: float,
        *,
        following: bool = False,
    ) -> Self:
        """Return the same sum of agents that live in several processes.

        Parameters
        ----------
        agents, holders, following
            As for `vpem.sums.neighbours.Neighbourhood`.
        n_rounds, rate
            Of all processes.
        """
        spread = copy(self)
        spread.n_rounds, spread.rate = n_rounds, rate
        spread._live(agents, holders, following=following)
        return spread

    def _live(self, agents: Placement, holders: Placement, *, following: bool = False) -> None:
        """Take up where agents live."""
        self.holders = self.roots = holders
        roots = self._layout.roots
        self._near = near = Neighbourhood(
            agents, holders, self._links, roots, self.routes, following=following
        )
        self.n_roots, self.traffic, self.values_per_item = near.n_roots, near.traffic, near.most
        self._fixed, self._failing = near.rows_of(self._layout), near.rows_of(self._links)

    def on(self, ledger: Ledger) -> Self:
        """Return the same sum from its beginning, whose messages are counted there."""
        counted = super().on(ledger)
        counted._number, counted._memories, counted._drawn = 0, Memories(), None
        return counted

    def state(self) -> State:
        """Return the memory of compressed sums, how many sums there were, and what went."""
        memory = self._memories.state("memory", Copies.state)
        went = self.traffic.state() if self.holders.apart else {}
        return {"number": self._number, "kind": self._kind, **memory, **went}

    def schema(self) -> Schema:
        """Return what that must be."""
        went = self.traffic.schema() if self.holders.apart else {}
        memory = self._memories.schema("memory", partial(Copies.schema, self._near))
        return {"number": COUNT, "kind": SUM_KIND, **memory, **went}

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self._number, self._kind = state["number"], state["kind"]
        self._memories.restore("memory", state, lambda kept: Copies(**kept))
        if self.holders.apart:
            self.traffic.restore(state)

    def kept_bytes(self, n_values: int) -> int:
        """Bytes that a compressed sum leaves behind, of so many values of an agent."""
        rows = 2 * len(self._near.own) + self._near.n_rows
        return 0 if self.codec is None else 8 * n_values * rows

    # ---- before the sum ------------------------------------------------------------------------

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Draw what fails during a sum and count its messages, compressed ones as they are formed.

        Raises
        ------
        PartitionedError
            If the links that are up in its rounds do not connect all agents that are awake, or no
            root is awake; for all but "estep" in 20 draws one after the other.
        """
        self.holders.begin(kind, n_samples)
        if self._kind == "setup" and kind != "setup":
            self._memories.last = None  # of a start, which has nothing to do with terms
        self._kind = kind
        self._coder = None if self.codec is None else codec_of(kind, self.codec)
        draws = 1 if kind == "estep" else MOST_DRAWS
        for left in reversed(range(draws)):
            self._number += 1
            try:
                self._draw(kind, n_samples * n_values, itemsize, n_scalars)
                return
            except PartitionedError:
                if not left:
                    raise

    @property
    def _charged(self) -> str:
        """Kind that the ledger counts the messages of this sum as."""
        return charged(self._kind, "estep")

    def _draw(self, kind: str, n_values: int, itemsize: int, n_scalars: int) -> None:
        """Draw one sum and count it."""
        size = message_bytes(1, n_values, itemsize, n_scalars)
        if self._outages is None:
            if self.codec is None:
                self._count(kind, size, self.n_rounds, self.n_rounds)
            return
        rng = np.random.default_rng([self.seed, self._number])
        drawn = self._outages.draw(self.n_rounds, rng, dropout=kind == "estep")
        self._drawn = drawn
        asleep = ~drawn.awake[self._layout.roots]
        self.silent = asleep[self._near.estimates] if asleep.any() else None
        self._informed = self._outages.informed(drawn.awake)
        alone = self._layout.n_hubs == 1 and self.codec is None
        failure = self._outages.failure(drawn, alone)
        if self.ledger is not None:
            self._count_flooding(drawn.awake)
            times = drawn.up.sum(axis=0)[self._links.edge_of_link]
            if self.codec is None:
                told = self._informed[self.ledger.targets[self._down]]
                self._count(kind, size, times, self.n_rounds, told)
            elif failure is not None:
                # Sent in vain: what has no answer is not computed.
                sent = Quantizer(self._coder, n_values, n_exact=n_scalars).message_size
                self._send(self._charged, sent, times=times, rounds=self.n_rounds)
        if failure is not None:
            raise failure

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count one agreement by flooding among the agents that took part in the last sum."""
        if self.ledger is None or self.faults is None or self._drawn is None:
            super().agree(kind, size)
            return
        links = self.ledger.among(self._drawn.awake)
        self._send(kind, size, links=links, times=self.diameter, rounds=self.diameter)

    def _count_flooding(self, awake: NDArray[np.bool_]) -> None:
        """Count how the agents learn who is awake and heard of: one bit an agent."""
        assert self.ledger is not None
        links = self.ledger.among(awake)
        size = ceil(self.graph.n_agents / 8)
        self._send("flooding", size, links=links, times=self.diameter, rounds=self.diameter)

    # ---- the sum -------------------------------------------------------------------------------

    def reduce(
        self, terms: Floats, rows: slice = slice(None), scalars: Scalars | None = None
    ) -> NDArray[Any]:
        """Sum terms (B, m, K) of some rows over the hubs: one estimate a root, (B, m, K).

        Compressed sums take all rows at once.
        """
        near = self._near
        if self.codec is not None:
            states = self._run_compressed(flattened(terms, scalars), scalars)
            found = unflattened(states[near.roots], terms, scalars)
        else:
            values = beside(terms, scalars)
            if self._layout.n_hubs > 1:
                values = [own[near.roots] for own in self._run(values)]
            found = values[0].reshape(terms.shape).copy()
            if scalars is not None:
                scalars.found = values[1].copy()
        if scalars is not None:
            scalars.found = near.follow(scalars.found)
        return near.follow(found)

    def _spread(self, values: Sequence[Floats], informed: NDArray[np.bool_]) -> list[NDArray[Any]]:
        """Start states whose mean over the agents that are awake is the sum: (B, V) to (N, V).

        Of the hubs and agents of this process, and those that it hears: these are zeros. What is
        told of several is told in one message.
        """
        layout, near = self._layout, self._near
        awake = self._all if self.faults is None or self._drawn is None else self._drawn.awake
        sizes = np.bincount(layout.hub_of[informed], minlength=layout.n_hubs)
        scale = np.where(informed, awake.sum() / np.maximum(sizes, 1)[layout.hub_of], 0.0)
        spread = [np.zeros((near.n_rows, own.shape[1]), dtype=own.dtype) for own in values]
        for states, own in zip(spread, values, strict=True):
            states[near.roots] = own
        if self.codec is None:
            finished(near.tell(spread, self._charged, informed))
        for states in spread:
            states[: len(near.own)] *= scale[near.own][:, None].astype(states.dtype)
        return spread

    def _run(self, values: Sequence[Floats]) -> list[NDArray[Any]]:
        """Run uncompressed rounds from values (B, V) of the hubs: states (N, V)."""
        states = self._spread(values, self._informed)
        drawn = self._drawn if self.faults is not None else None
        for up in repeat(None, self.n_rounds) if drawn is None else drawn.up:
            links = None if up is None else up[self._links.edge_of_link]
            self._near.meet(states, self._charged, links)
            self._mix(states, up)
        return states

    def _mix(self, states: Sequence[Floats], up: NDArray[np.bool_] | None) -> None:
        """Run one round in place, with the weights of the links that are up; for own agents."""
        indptr, indices, values = self._fixed if up is None else self._failing
        weights = self._layout.weights if up is None else self._links.metropolis(up)
        for each in states:
            own = weights[values].astype(each.dtype, copy=False)
            consensus_rounds(indptr, indices, own, each, ONE_ROUND, self.n_threads)

    def _run_compressed(
        self, flat: NDArray[np.float64], scalars: Scalars | None
    ) -> NDArray[np.float64]:
        """Run the rounds of a compressed sum from where the one before ended."""
        assert self._coder is not None
        drawn = self._drawn if self.faults is not None else None
        n_exact = 0 if scalars is None else scalars.own.shape[1]
        n_values = flat.shape[1] - n_exact
        awake = self._all if drawn is None else drawn.awake
        inputs = self._spread([flat], self._informed & self._is_root)[0][: len(self._near.own)]
        memory = Copies.begun(self._memories.last, inputs, awake, self._near)
        believed, omega = contraction(self._coder, n_values)
        stable = stable_steps(self.rate, omega, fixed=drawn is None and self.accelerated)
        if self.step is not None:
            stable = RoundSteps(self.step, 0.0)
        rng = np.random.default_rng([self.seed, self._number, 1])
        quantizer = Quantizer(self._coder, n_values, self.n_threads, n_exact=n_exact)
        copies = speakers(
            memory, self._near, quantizer, believed, rng, self._charged,
            lambda size: self._count_copies(size, memory),
        )  # fmt: skip
        talking = np.flatnonzero(awake[self._near.own])
        before = memory.states
        for number, step in enumerate(chebyshev_steps(stable.rate, self.n_rounds)):
            up = self._open = None if drawn is None else drawn.up[number]
            copies.send(memory.states if copies.active is None else memory.states[talking])
            mixed = memory.copies.copy()
            self._mix([mixed], up)
            before = memory.move(mixed, before, stable.step, step)
        ended = self._kind == "check" and not self._memories.lasting
        self._memories.last = None if ended else memory
        return memory.states

    def _count_copies(self, size: int, memory: Copies) -> None:
        """Count what agents tell their neighbours; over links that are down, once they are up."""
        sizes = np.where(memory.awake, size, 0)[self._links.sources]
        from_here, missed = self._near.from_here, memory.missed
        if self._open is None:
            self._send(self._charged, sizes, rounds=1)
            self.traffic.add(self._charged, int(sizes[from_here].sum()), 0)
            return
        open_links = self._open[self._links.edge_of_link]
        missed += sizes
        self._send(self._charged, missed[open_links], links=open_links, rounds=1)
        self.traffic.add(self._charged, int(missed[open_links & from_here].sum()), 0)
        missed[open_links] = 0
