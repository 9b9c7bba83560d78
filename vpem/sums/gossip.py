"""The sum by rounds that are no fixed matrix: compressed messages, links and agents that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from math import ceil, log, sqrt
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.consensus import consensus_rounds
from vpem.checks import AnyArray, Doubles, Floats, Mask, check_int, check_number
from vpem.engines.placement import Placement
from vpem.errors import InputError, NumericalError, PartitionedError, Setting
from vpem.network.codecs import Codec, parse_codec
from vpem.network.faults import DrawnFaults, Faults, MixingLinks
from vpem.network.graph import Graph
from vpem.network.hubs import Hub, Routes
from vpem.network.ledger import Ledger
from vpem.network.mixing import chebyshev
from vpem.network.schema import LARGEST_COUNT, Array, Schema
from vpem.sums.consensus import (
    RoundSteps,
    _Layout,
    _OverHubs,
    agreed_within,
    codec_within,
    stable_steps,
)
from vpem.sums.counted import largest_of
from vpem.sums.exchanges import Neighbourhood, finished
from vpem.sums.partial import GoesOn, send_changes, short_keys
from vpem.sums.quantizer import Quantizer, contraction
from vpem.sums.sum import ALL, Scalars, beside, flattened, message_bytes, unflattened

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_DRAWS = 20
"""Draws of a sum of the start, or after the last iteration, in which the network disconnects."""

ONE_ROUND = np.ones(1)

MOST_AT_ONCE = 64
"""Further rounds between two looks at how far agents disagree."""

EXACT_ROUNDS = 4
"""Times the rounds of float64 that should do, after which agents that disagree give up."""


def _largest(values: Doubles, units: Doubles) -> float:
    return float(np.max(np.abs(values).max(axis=0, initial=0.0) * units, initial=0.0))


@dataclass
class Copies:
    """What agents keep from one compressed sum to the next, in rows of `Neighbourhood`.

    ``states`` and ``inputs`` (n, V) are of this process's agents: where their states are, and what
    they started from. ``copies`` (n_rows, V) is what is known of their states and of neighbours'.
    ``awake`` (N,) are agents that took part, ``missed`` (2 n_edges,) bytes that wait for each
    directed link to be up again.
    """

    states: Doubles
    copies: Doubles
    inputs: Doubles
    awake: Mask
    missed: NDArray[np.int64]

    @classmethod
    def begun(
        cls, before: Copies | None, inputs: Doubles, awake: Mask, near: Neighbourhood
    ) -> Copies:
        """Return the copies at the beginning of a sum, with states of the new inputs' mean."""
        if before is None or before.inputs.shape != inputs.shape:
            copies = np.zeros((near.n_rows, inputs.shape[1]))
            missed = np.zeros(len(near.from_here), dtype=np.int64)
            return cls(inputs.copy(), copies, inputs, awake, missed)
        if np.array_equal(before.awake, awake):
            before.states += inputs
            before.states -= before.inputs
        else:
            before.states = inputs.copy()
        before.inputs, before.awake = inputs, awake
        return before

    def move(self, mixed: Doubles, before: Doubles, step: float, further: float) -> Doubles:
        """Move states by a round of which the copies are ``mixed``: where they were.

        By so much of how the copies moved, and then farther from where states were ``before``.
        """
        n_own = len(self.states)
        moved = mixed[:n_own]
        moved -= self.copies[:n_own]
        moved *= step
        moved += self.states
        if further != 1.0:
            moved *= further
            moved += (1.0 - further) * before
        before, self.states = self.states, moved
        return before


class GossipSum(GoesOn, _OverHubs):
    """Sum over hubs by rounds between neighbours, compressed, over links that fail, or both.

    Uncompressed rounds are those of `ConsensusSum`, with the Metropolis weights of the links that
    are up. Compressed ones are difference compression with public copies (CHOCO gossip, Koloskova
    et al. 2019): every agent tells its neighbours ``q_i = Q(x_i - xhat_i)``, all add it to their
    copies ``xhat_i``, and ``x_i += step sum_j W_ij (xhat_j - xhat_i)``, which keeps the mean of the
    states for any Q. Where messages are accurate enough these rounds are accelerated.

    A compressed sum of an E-step goes on from the one before: states start at what they were, plus
    what the agents' own terms have changed by, so that their mean is that of the new terms and only
    changes have to travel. Where other agents are awake than before, states start from the terms,
    and only the copies are kept. The root of a hub starts from all of the hub's term, so that
    nothing needs to be sent to its agents.

    The rounds of a compressed sum go on until all agents agree (`agreed_within`): by how much a
    root may be off is bounded by what agents see of their neighbours, the largest of which they
    flood, and with it how many further rounds they need. Where these would send more than float64
    does, the rest of the sum is sent in float64.

    A message over a link that is down is sent with the next one when the link is up again.

    Where agents live in several processes (`spread_over`) each runs the rounds of its own, with
    copies of them and of their neighbours. What fails and the codec's keys are drawn alike in all,
    and the numbers are those of one process. States travel over links that are up, messages as the
    codec's bytes, and these whether or not links are up: it is the numbers that go without them.

    Parameters that are not as for `ConsensusSum`: rounds go by the mixing ``rate`` of the weights
    where no links fail, with `stable_steps` or a fixed ``step``. Sums that go on ``until_agreed``
    take at least ``least`` rounds, and ``n_rounds`` are expected of them. Rounds of `uncompressed`
    sums are ``exact_rounds``; None: as many, plain.
    """

    make_memory = Copies
    n_rounds: int
    rate: float
    _near: Neighbourhood

    def __init__(
        self,
        graph: Graph,
        mixing: csr_array,
        hubs: Sequence[Hub],
        n_rounds: int,
        *,
        rate: float,
        codec: Codec | None = None,
        step: float | None = None,
        accelerated: bool = True,
        until_agreed: bool = False,
        least: int = 1,
        exact_rounds: int | None = None,
        faults: Faults | None = None,
        seed: int = 0,
        n_threads: int = 1,
        routes: Routes | None = None,
        diameter: int = 0,
    ) -> None:
        layout, n_rounds = _Layout(mixing, hubs), check_int("n_rounds", n_rounds, least=1)
        super().__init__(layout, n_rounds, rate, n_threads, routes, diameter)
        self.graph = graph
        self.seed = check_int("seed", seed, least=0)
        if step is not None and check_number("step", step, least=0.0, most=1.0) == 0:
            raise InputError("the step of compressed rounds must be above 0, got 0")
        self.codec = self._coder = codec
        self.step = step
        self.accelerated = accelerated
        self.until_agreed, self.least = until_agreed, least
        self.exact_rounds = exact_rounds
        self._exact_rate = 0.0
        fails = faults is not None and (faults.any or graph.turns is not None)
        self.faults = faults if fails else None
        self.whole = codec is not None
        self._links = MixingLinks(graph)
        self._drawn: DrawnFaults | None = None
        """What fails in the sum begun last, where something may."""
        self._open: Mask | None = None
        self._all = np.ones(graph.n_agents, dtype=np.bool_)
        self._informed = self._all
        self._is_root = np.zeros(graph.n_agents, dtype=np.bool_)
        self._is_root[layout.roots] = True
        self._live(Placement.here(graph.n_agents), Placement.here(len(hubs)))

    def uncompressed(self) -> Self:
        """Return the same sum of numbers that no codec touches, in rounds of its own."""
        plain = copy(self)
        plain.codec, plain.whole = None, False
        if self.exact_rounds is not None:
            plain.n_rounds = self.exact_rounds
            if self.accelerated and self.faults is None:
                plain._exact_rate = self.rate
        return plain

    def _live(self, agents: Placement, holders: Placement, following: bool = False) -> None:
        self._join(agents, holders, self._links, following)
        self.exact_rounds, near = agents.engine.bcast(self.exact_rounds), self._near
        self.values_per_item = near.most
        self._fixed, self._failing = near.rows_of(self._layout), near.rows_of(self._links)

    def counted_on(self, ledger: Ledger) -> Self:
        counted = super().counted_on(ledger)
        counted._drawn = None
        return counted

    def memory_schema(self, n_values: str) -> dict[str, Schema]:
        near = self._near
        local = Array("f8", (len(near.own), n_values))
        return {
            "states": local,
            "copies": Array("f8", (near.n_rows, n_values)),
            "inputs": local,
            "awake": Array("b1", (self.graph.n_agents,)),
            "missed": Array("i8", (len(near.from_here),), 0, LARGEST_COUNT),
        }

    def kept_bytes(self, n_values: int) -> int:
        rows = 2 * len(self._near.own) + self._near.n_rows
        return 0 if self.codec is None else 8 * n_values * rows

    # ---- before the sum ------------------------------------------------------------------------

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Draw what fails during a sum and count its messages, compressed ones as they are formed.

        It raises PartitionedError if the links that are up in its rounds do not connect all agents
        that are awake, or no root is awake; for all but "estep" in 20 draws one after the other.
        """
        super().begin(kind, n_samples, n_values, itemsize, n_scalars)
        draws = 1 if kind == "estep" else MOST_DRAWS
        for left in reversed(range(draws)):
            try:
                self._draw(kind, n_samples * n_values, itemsize, n_scalars)
                return
            except PartitionedError:
                if not left:
                    raise
            self._number += 1

    def _draw(self, kind: str, n_values: int, itemsize: int, n_scalars: int) -> None:
        size = message_bytes(1, n_values, itemsize, n_scalars)
        if self.faults is None:
            if self.codec is None:
                self._count(kind, size, self.n_rounds, self.n_rounds)
            return
        rng = np.random.default_rng([self.seed, self._number])
        drawn = self.faults.draw(self.graph, self.n_rounds, rng, dropout=kind == "estep")
        self._drawn = drawn
        asleep = ~drawn.awake[self._layout.roots]
        self.silent = asleep[self._near.estimates] if asleep.any() else None
        # Agents that their root reaches over agents that are awake.
        self._informed = informed = drawn.awake & ~asleep[self._layout.hub_of]
        if self.routes is not None:
            for leaf in self.routes.leaves[::-1]:
                informed[leaf] &= informed[self.routes.parent[leaf]]
        failure: PartitionedError | None = None
        if asleep.all():
            failure = PartitionedError("the roots of all hubs are silent during a sum")
        elif self._layout.n_hubs > 1 or self.codec is not None:  # else one root has all of it
            try:
                drawn.check_whole(self.graph)
            except PartitionedError as error:
                failure = error
        if self.ledger is not None:
            if self.faults.any:
                # Agents learn who is awake and heard of: one bit an agent.
                self._send_flood("flooding", ceil(self.graph.n_agents / 8), drawn.awake)
            times = drawn.up.sum(axis=0)[self._links.edge_of_link]
            if self.codec is None:
                down = informed[self.ledger.targets[self._down]]
                self._count(kind, size, times, self.n_rounds, down)
            elif failure is not None:
                # Sent in vain: what has no answer is not computed.
                sent = Quantizer(self._coder, n_values, n_exact=n_scalars).message_size
                self._send(self.charge, sent, times=times, rounds=self.n_rounds)
        if failure is not None:
            raise failure

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count one agreement by flooding among the agents that took part in the last sum."""
        if self.ledger is None or self._drawn is None:
            super().agree(kind, size)
            return
        self._send_flood(kind, size, self._drawn.awake)

    def _send_flood(self, kind: str, size: int, awake: Mask) -> None:
        """Count a flood; where graphs take turns a hop waits for one that has its link."""
        assert self.ledger is not None
        links, hops, turns = self.ledger.among(awake), self.diameter, self.graph.turns
        if turns is None:
            self._send(kind, size, links=links, times=hops, rounds=hops)
            return
        times = hops * turns.sum(axis=0)[self._links.edge_of_link][links]
        self._send(kind, size, links=links, times=times, rounds=hops * len(turns))

    # ---- the sum -------------------------------------------------------------------------------

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        """Sum terms (B, m, K) of some rows over the hubs: one estimate a root, (B, m, K).

        Compressed sums take all rows at once.
        """
        near = self._near
        if self.codec is not None:
            n_rows = terms.shape[1]
            # Rounds go on from where the sum before ended.
            flat = flattened(terms, scalars)
            assert self._coder is not None
            n_exact = 0 if scalars is None else scalars.own.shape[1]
            inputs = self._spread([flat], self._informed & self._is_root)[0][: len(near.own)]
            memory = Copies.begun(self._memories[self._batch], inputs, self._awake, near)
            rng = np.random.default_rng([self.seed, self._number, 1])
            opened = self._links_up()
            if self.until_agreed:
                self._agree_on(memory, self._coder, n_exact, n_rows, opened, rng)
            else:
                rounds = self._rounds(memory, self._coder, n_exact, opened, rng)
                for _ in islice(rounds, self.n_rounds):
                    pass
            self._keep(memory)
            sums = unflattened(memory.states[near.roots], terms, scalars)
        else:
            values = beside(terms, scalars)
            if self._layout.n_hubs > 1:
                values = [states[near.roots] for states in self._run(values)]
            sums = values[0].reshape(terms.shape).copy()
            if scalars is not None:
                scalars.found = values[1].copy()
        if scalars is not None:
            scalars.found = near.follow(scalars.found)
        return near.follow(sums)

    @property
    def _awake(self) -> Mask:
        """Agents (N,) that take part in the sum begun last."""
        return self._all if self._drawn is None else self._drawn.awake

    def _spread(self, values: Sequence[Floats], informed: Mask) -> list[AnyArray]:
        """Start states whose mean over the agents that are awake is the sum: (B, V) to (N, V).

        Of the hubs and agents of this process, and those that it hears: these are zeros. The terms
        of several are sent in one message.
        """
        layout, near = self._layout, self._near
        sizes = np.bincount(layout.hub_of[informed], minlength=layout.n_hubs)
        scale = np.where(informed, self._awake.sum() / np.maximum(sizes, 1)[layout.hub_of], 0.0)
        spread = [np.zeros((near.n_rows, each.shape[1]), dtype=each.dtype) for each in values]
        for states, terms in zip(spread, values, strict=True):
            states[near.roots] = terms
        if self.codec is None:
            finished(near.send_terms(spread, self.charge, informed))
        for states in spread:
            states[: len(near.own)] *= scale[near.own][:, None].astype(states.dtype)
        return spread

    def _run(self, values: Sequence[Floats]) -> list[AnyArray]:
        """Run uncompressed rounds from values (B, V) of the hubs: states (N, V)."""
        states = self._spread(values, self._informed)
        ups = repeat(None, self.n_rounds) if self._drawn is None else self._drawn.up
        before: list[AnyArray] = []
        for up, step in zip(ups, chebyshev(self._exact_rate), strict=False):
            links = None if up is None else up[self._links.edge_of_link]
            self._near.meet(states, self.charge, links)
            current = [each.copy() for each in states] if self._exact_rate else []
            self._mix(states, up)
            if step != 1.0:
                for each, earlier in zip(states, before, strict=True):
                    each *= step
                    each += (1.0 - step) * earlier
            before = current
        return states

    def _mix(self, states: Sequence[Floats], up: Mask | None) -> None:
        """Run one round in place, with the weights of the links that are up; for own agents."""
        indptr, indices, values = self._fixed if up is None else self._failing
        weights = self._layout.weights if up is None else self._links.metropolis(up)
        for each in states:
            link_weights = weights[values].astype(each.dtype, copy=False)
            consensus_rounds(indptr, indices, link_weights, each, ONE_ROUND, self.n_threads)

    def _links_up(self) -> Iterator[Mask | None]:
        """Yield which links are up in each round: those drawn before the sum, and then further."""
        if self.faults is None or self._drawn is None:
            yield from repeat(None)
            return
        yield from self._drawn.up
        rng, awake = np.random.default_rng([self.seed, self._number, 2]), self._drawn.awake
        both, first = awake[self.graph.edges].all(axis=1), len(self._drawn.up)
        while True:
            further = self.faults.draw(self.graph, MOST_AT_ONCE, rng, dropout=False, first=first)
            first += MOST_AT_ONCE
            yield from further.up & both

    def _steps(self, omega: float) -> RoundSteps:
        """By what steps rounds go whose messages have so much noise."""
        if self.step is not None:
            return RoundSteps(self.step, 0.0)
        return stable_steps(self.rate, omega, fixed=self.faults is None and self.accelerated)

    def _rounds(
        self,
        memory: Copies,
        coder: Codec,
        n_exact: int,
        opened: Iterator[Mask | None],
        rng: np.random.Generator,
    ) -> Iterator[None]:
        """Run compressed rounds, one each time that this goes on."""
        n_values = memory.inputs.shape[1] - n_exact
        _, omega = contraction(coder, n_values)
        stable = self._steps(omega)
        quantizer = Quantizer(coder, n_values, self.n_threads, n_exact=n_exact)
        near, awake = self._near, memory.awake
        heard = None if awake.all() else np.flatnonzero(awake[near.agents_of_rows])
        talking = np.flatnonzero(awake[near.own])
        carry = None
        if near.exchange is not None:
            carry = partial(near.carry, awake=awake, kind=self.charge)
        before = memory.states
        for step in chebyshev(stable.rate):
            up = self._open = next(opened)
            self._count_copies(quantizer.message_size, memory)
            states = memory.states if heard is None else memory.states[talking]
            # Keys of all agents are drawn alike in every process.
            keys = short_keys(rng, len(awake))[near.own[talking]]
            send_changes(quantizer, states, memory.copies, keys, carry, heard)
            mixed = memory.copies.copy()
            self._mix([mixed], up)
            before = memory.move(mixed, before, stable.step, step)
            yield

    def _agree_on(
        self,
        memory: Copies,
        coder: Codec,
        n_exact: int,
        n_rows: int,
        opened: Iterator[Mask | None],
        rng: np.random.Generator,
    ) -> None:
        """Run compressed rounds until no root is off by more than `agreed_within`.

        A scalar is a sum over rows: it may be off by that in each. If agents still disagree when
        even float64 should have brought them together it raises NumericalError.
        """
        width = memory.inputs.shape[1]
        units = np.ones(width)
        units[width - n_exact :] /= max(n_rows, 1)
        unsaid = memory.states - memory.copies[: len(memory.states)]
        left, most_added, most_sent = self._flood(
            memory,
            _largest(unsaid, units),
            _largest(memory.inputs, units),
            float(np.abs(unsaid).max(initial=0.0)),
        )
        tolerance = agreed_within(most_added)
        if left > tolerance == 0:  # all have heard that nothing is added, and begin anew
            memory.states, memory.copies = memory.inputs.copy(), np.zeros_like(memory.copies)
            return
        exact = parse_codec("float64")
        coder = codec_within(most_sent, coder)
        while True:
            _, omega = contraction(coder, width - n_exact)
            stable = self._steps(omega)
            fall = tolerance / left if left > tolerance else 1.0
            count = max(stable.needed(self.rate, omega, fall), self.least)
            share = 1.0 if self.faults is None else self.faults.links_up
            most = self._steps(0.0).needed(self.rate, 0.0, fall) / share
            if coder.name == exact.name:
                most = EXACT_ROUNDS * most + MOST_AT_ONCE
            else:
                most *= exact.message_size(width) / coder.message_size(width)
            rounds = self._rounds(memory, coder, n_exact, opened, rng)
            done, most = 0, max(most, self.least)
            while done + count <= most:
                for _ in islice(rounds, count):
                    pass
                done += count
                left = self._disagreement(memory, units)
                if left <= tolerance:
                    return
                # By what a round reduces the distance to the mean.
                pace = max(stable.pace(self.rate), sqrt(omega / (1.0 + omega)))
                further = 1
                if 0 < pace < 1:
                    further = max(1, ceil(log(tolerance / left) / log(pace)))
                count = min(further, MOST_AT_ONCE)
            if coder.name == exact.name or not np.isfinite(left):
                raise NumericalError(
                    f"agents still disagree about a sum by {left:.2g} after all rounds that should "
                    f"have brought them together, where {tolerance:.2g} is allowed: something that "
                    "is summed is too large; scale the data, or leave ",
                    Setting("compress"), " out",
                )  # fmt: skip
            coder = exact

    def _disagreement(self, memory: Copies, units: Doubles) -> float:
        """Bound how far any agent's state is from another's, by what each sees of its neighbours.

        Between two agents lie at most so many links as the network is wide, over each of which
        copies differ by so much, and at both ends a state differs from its copy.
        """
        near, hops = self._near, self.diameter
        if not memory.awake.all():
            hops = int(memory.awake.sum()) - 1
        indptr, indices, _ = near.rows_of(self._links)
        over_links = 0.0
        for row in np.flatnonzero(memory.awake[near.own]):
            others = indices[indptr[row] : indptr[row + 1]]
            numbers = near.agents_of_rows[others]
            others = others[memory.awake[numbers] & (numbers > near.own[row])]
            if len(others):
                apart = memory.copies[others] - memory.copies[row]
                over_links = max(over_links, _largest(apart, units))
        unsaid = memory.states - memory.copies[: len(memory.states)]
        at_agents = _largest(unsaid[memory.awake[near.own]], units)
        link, end = self._flood(memory, over_links, at_agents)
        return hops * link + 2 * end

    def _flood(self, memory: Copies, *numbers: float) -> list[float]:
        """Return the largest of what agents have, which they learn by flooding."""
        if self.ledger is not None:
            self._send_flood("flooding", 8 * len(numbers), memory.awake)
        return largest_of(self._near.agents, numbers)

    def _count_copies(self, size: int, memory: Copies) -> None:
        """Count what agents send to neighbours; over links that are down, once they are up."""
        sizes = np.where(memory.awake, size, 0)[self._links.sources]
        from_here, missed = self._near.from_here, memory.missed
        if self._open is None:
            self._send(self.charge, sizes, rounds=1)
            self.traffic.add(self.charge, int(sizes[from_here].sum()), 0)
            return
        open_links = self._open[self._links.edge_of_link]
        missed += sizes
        self._send(self.charge, missed[open_links], links=open_links, rounds=1)
        self.traffic.add(self.charge, int(missed[open_links & from_here].sum()), 0)
        missed[open_links] = 0
