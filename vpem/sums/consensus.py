"""The sum by consensus averaging: rounds between neighbours, or the small matrix equal to them.

How many rounds a sum takes where their number is left to us, and, of compressed messages, how much
of one is believed and by which steps rounds are stable.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.consensus import consensus_rounds, neighbour_round
from vpem.checks import AnyArray, Doubles, Floats, Indices, Mask
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting, check_choice
from vpem.network.codecs import Codec, parse_codec
from vpem.network.faults import MOST_DRAWN, Faults, MixingLinks, failing_rounds, in_turns
from vpem.network.graph import Graph
from vpem.network.hubs import Hub, Routes
from vpem.network.ledger import Ledger
from vpem.network.mixing import chebyshev_bound, chebyshev_steps
from vpem.settings import CONSENSUS, SumSettings
from vpem.sums.exchanges import Neighbourhood, row_bytes
from vpem.sums.quantizer import contraction
from vpem.sums.server import IN_FLIGHT, ByChunks, Flying
from vpem.sums.sum import ALL, Scalars, Sum, beside, message_bytes

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ROUND_WIDTH = 32
"""Values of a round's states are a multiple of this, and begin at a multiple of `ALIGNED`."""

ALIGNED = 64

ALL_ONES = 1e-13
"""An operator this close to all ones is the exact sum to rounding: roots share one estimate."""

AGREED = 1e-15
"""States that differ by no more than this stay as they are."""

ROUNDS_AT_ONCE = 4096
"""Plain rounds that run before an interrupt is looked at."""

MOST_LOOKED_AT = 2000
"""Plain rounds up to which the error is looked at after each."""

MOST_OPERATOR_VALUES = 5e7
"""Above this many values (agents times hubs) the operator is not formed, its error is bounded."""

MOST_FORMED = 1e9
"""Multiplications beyond which it is not formed either, where rounds are run one by one."""

NOISE_PER_GAP = 1.5
"""Acceleration stays stable while ``sqrt(1 - rate^2)`` is at least this times ``sqrt(omega)``."""

CAUTION = 1.25
"""Times the noise, in the step of rounds that are not accelerated."""

FALL = 1e-4
"""By what the rounds of one compressed sum are expected to reduce the distance to the mean.

Early iterations, in which terms change much, take more of them, and late ones fewer."""

NATS = 1e-5
"""By how much no root's sum of log-densities may be off.

Early iterations decide where EM goes: some fits end elsewhere where sums are off by 0.001."""

OF_LARGEST = 1e-11
"""Of the largest number that is added, by how much sums may be off however large it is: float64 has
little more in many rounds, and log-densities so far apart say the same without their last nat."""

FLOAT16 = 3e4
"""Numbers above this may become larger than float16 can be, as accelerated rounds overshoot."""

MOST_GOSSIP_ROUNDS = 10**5
"""Of a compressed sum, or one with faults, which have to be run one by one."""

MOST_NOISE = 1e4
"""Variance of a codec, relative to the message, beyond which no number of rounds is looked for."""

JITTER = 1e-3
"""By what sums with faults are more accurate than others: each errs differently, and what the roots
find must be steady within ``tol`` for them to stop."""

MANY_VALUES = 1 << 16
"""Values of a message for which a codec's noise is judged before the data are known."""

LARGEST_CONSENSUS_ERROR = 1e-3
"""A run whose operator is further than this from all ones is warned about."""


class _Layout:
    """Agents of the network grouped in hubs: where the consensus starts and where it is read."""

    def __init__(self, mixing: csr_array, hubs: Sequence[Hub]) -> None:
        self.n_agents = mixing.shape[0]
        self.n_hubs = len(hubs)
        self.hub_of = np.empty(self.n_agents, dtype=np.intp)
        for number, hub in enumerate(hubs):
            self.hub_of[list(hub.agents)] = number
        self.sizes = np.bincount(self.hub_of, minlength=self.n_hubs)
        self.roots = np.array([hub.root for hub in hubs], dtype=np.intp)
        self.indptr = mixing.indptr.astype(np.int32)
        self.indices = mixing.indices.astype(np.int32)
        self.weights = np.ascontiguousarray(mixing.data, dtype=np.float64)

    def spread(self, terms: Floats) -> AnyArray:
        """Start every agent at ``N Q[b] / |H_b|`` of its hub: (B, V) to (N, V)."""
        scale = (self.n_agents / self.sizes).astype(terms.dtype)
        return np.ascontiguousarray((terms * scale[:, None])[self.hub_of])

    def run(self, states: Floats, steps: Doubles, n_threads: int) -> None:
        weights = self.weights.astype(states.dtype, copy=False)
        consensus_rounds(self.indptr, self.indices, weights, states, steps, n_threads)

    def run_plain(self, states: Floats, n_rounds: int, n_threads: int) -> None:
        for done in range(0, n_rounds, ROUNDS_AT_ONCE):
            self.run(states, np.ones(min(ROUNDS_AT_ONCE, n_rounds - done)), n_threads)


class _OverHubs(Sum):
    """A sum by rounds between neighbours, from the hubs' terms, which roots send to their agents.

    ``diameter`` is the number of hops between the agents farthest apart.
    """

    way = "consensus"
    _near: Neighbourhood | None = None
    """Of the agents of this process, and those that they hear."""

    def __init__(
        self, layout: _Layout, n_rounds: int, rate: float | None, n_threads: int,
        routes: Routes | None, diameter: int,
    ) -> None:  # fmt: skip
        super().__init__(layout.n_hubs)
        self._layout, self.n_rounds, self.rate, self.n_threads = layout, n_rounds, rate, n_threads
        self.routes, self.diameter = routes, diameter
        self._down: Indices = np.empty(0, dtype=np.intp)

    def _join(
        self,
        agents: Placement,
        holders: Placement,
        pattern: csr_array | MixingLinks,
        following: bool,
    ) -> None:
        """Take part with the agents that live here, whose links to others are a pattern's."""
        super()._live(agents, holders, following)
        # Where machines round differently the first one's numbers hold, or processes would part.
        self.n_rounds, self.rate = agents.engine.bcast((self.n_rounds, self.rate))
        roots, self.roots = self._layout.roots, holders
        self._near = near = Neighbourhood(
            agents, holders, pattern, roots, self.routes, following=following
        )
        self.n_roots, self.traffic = near.n_roots, near.traffic

    def counted_on(self, ledger: Ledger) -> Self:
        counted = super().counted_on(ledger)
        if self.routes is not None:
            counted._down = self.routes.links_down(ledger)
        return counted

    def agree(self, kind: str, size: int = 1, source: int | None = None) -> None:
        """Count one agreement by flooding: all agents send to neighbours, diameter rounds."""
        self._send(kind, size, times=self.diameter, rounds=self.diameter)

    def _count(
        self,
        kind: str,
        size: int,
        times: int | NDArray[np.integer],
        rounds: int,
        informed: slice | Mask = slice(None),
    ) -> None:
        """Count a sum: roots send agents the hub's term, then each round goes to all neighbours."""
        self.charge_as(kind)
        if self.routes is not None:
            self._send(self.charge, size, links=self._down[informed], rounds=self.routes.hops)
        self._send(self.charge, size, times=times, rounds=rounds)


class ConsensusSum(ByChunks, _OverHubs):
    """Sum over hubs by S rounds of consensus averaging, Valdeira et al., sections 3 and 6.

    Every agent starts from ``N Q[b] / |H_b|`` of its hub, takes S weighted means with its
    neighbours, and each root reads its own state: an estimate of the sum of its own.

    Because the start is constant on hubs, S rounds of one mixing matrix W (N, N) are the B x B
    operator ``C = R W^S P``: the same numbers up to rounding, at the cost of one small product.
    Path "auto" takes the cheaper of "operator" and "rounds". With a ``rate``, the mixing rate of W
    or a bound of it below 1, rounds are accelerated by Chebyshev's polynomials.

    ``routes`` inside the hubs, by which roots send their terms, and ``diameter``, hops between the
    agents farthest apart, are for counting messages.

    Where links go one way (``pushed``) columns of the matrix sum to 1, and its rows do not: by
    push-sum (Kempe, Dobra and Gehrke 2003) every state is divided by what rounds make of a weight
    of 1 an agent, ``C = R W^S P / (R W^S 1)``. These weights depend on the graph alone, so that
    agents find them once.

    Of agents in several processes rounds are run one by one, with messages between neighbours only.
    Processes whose agents are neighbours are neighbours of the engine. A round is one exchange of
    the states that agents elsewhere need.
    """

    _shares: Doubles | None = None  # of push-sum
    _arcs: Mask | slice = slice(None)

    def __init__(
        self,
        mixing: csr_array,
        hubs: Sequence[Hub],
        n_rounds: int = 100,
        *,
        rate: float | None = None,
        path: str = "auto",
        n_threads: int = 1,
        routes: Routes | None = None,
        diameter: int = 0,
        pushed: bool = False,
    ) -> None:
        check_choice("path", path, CONSENSUS)
        if isinstance(n_rounds, bool) or int(n_rounds) != n_rounds or n_rounds < 0:
            raise InputError(f"n_rounds must be an integer of at least 0, got {n_rounds!r}")
        layout = _Layout(mixing, hubs)
        super().__init__(layout, int(n_rounds), rate, n_threads, routes, diameter)
        self.mixing = mixing
        if pushed:
            weights = np.ones((layout.n_agents, 1))
            layout.run_plain(weights, self.n_rounds, n_threads)
            self._shares = weights[layout.roots]
        n_hubs = self._layout.n_hubs
        n_agents = self._layout.n_agents
        formed = n_agents * n_hubs <= MOST_OPERATOR_VALUES
        if path == "rounds":  # the error alone would be read off it
            formed = formed and self.n_rounds * mixing.nnz * n_hubs <= MOST_FORMED
        self.operator: Doubles | None = None
        """The B x B matrix C, or None where it is too large to form."""
        if formed or path == "operator":
            states = self._layout.spread(np.eye(n_hubs))
            if rate is not None:
                self._run(states)
            left = self.n_rounds if rate is None else 0
            while left > 0 and (pushed or np.ptp(states, axis=0).max() > AGREED):
                step = min(left, ROUNDS_AT_ONCE)
                self._layout.run_plain(states, step, n_threads)
                left -= step
            self.operator = self._estimates(states)
        if path == "auto":
            per_round = self.n_rounds * mixing.nnz
            path = "operator" if formed and n_hubs**2 <= per_round else "rounds"
        self.path: str | None = path
        self.error = None if self.operator is None else float(np.abs(self.operator - 1).max())
        self._exact = path == "operator" and self.error is not None and self.error <= ALL_ONES
        self.n_roots = 1 if self._exact else n_hubs
        self.mix = self.operator if path == "operator" else None
        if self._exact:
            self.mix = np.ones((1, n_hubs))
        self.exact = self.mix is not None and bool((self.mix == 1).all())
        self.values_per_item = n_agents if path == "rounds" else n_hubs

    def _estimates(self, states: Floats) -> AnyArray:
        """Return what roots read of states (N, V)."""
        read: AnyArray = states[self._layout.roots]
        return read if self._shares is None else read / self._shares.astype(read.dtype)

    def counted_on(self, ledger: Ledger) -> Self:
        counted = super().counted_on(ledger)
        if self._shares is not None:  # links that go one way carry nothing the other
            counted._arcs = arcs_of(self.mixing, ledger)
        return counted

    def _send(self, kind: str, size: int | NDArray[np.integer], **options: Any) -> None:
        super()._send(kind, size, **{"links": self._arcs, **options})

    def _run(self, states: Floats) -> None:
        if self.rate is None:
            self._layout.run_plain(states, self.n_rounds, self.n_threads)
            return
        self._layout.run(states, chebyshev_steps(self.rate, self.n_rounds), self.n_threads)

    def _live(self, agents: Placement, holders: Placement, following: bool = False) -> None:
        self._join(agents, holders, self.mixing, following)
        if self.n_rounds > MOST_GOSSIP_ROUNDS:
            raise InputError(
                f"{self.n_rounds} rounds cannot be run one by one between processes; take at most "
                f"{MOST_GOSSIP_ROUNDS}, or a graph that mixes faster"
            )
        layout, near = self._layout, self._near
        assert near is not None
        self._scale = (agents.n_agents / layout.sizes)[holders.own]
        indptr, self._indices, values = near.rows_of(self.mixing)
        self._indptr, self._weights = indptr[: len(near.own) + 1], layout.weights[values]
        # States, those before, and what is sent.
        self.values_per_item = IN_FLIGHT * 3 * near.most
        self.mix, self.exact, self.path = None, False, None

    def begin(
        self, kind: str, n_samples: int, n_values: int, itemsize: int, n_scalars: int = 0
    ) -> None:
        """Count a sum: roots send agents the hub's term, then each round goes to all neighbours."""
        self.holders.begin(kind, n_samples)
        size = message_bytes(n_samples, n_values, itemsize, n_scalars)
        self._count(kind, size, self.n_rounds, self.n_rounds)

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        """Sum terms (B, m, K) of some rows over the hubs: one estimate a root, (B, m, K).

        Shape (1, m, K) where the operator is all ones to rounding.
        """
        if self._near is not None:
            estimates = self._near.follow(super().reduce(terms, rows, scalars))
            if scalars is not None:
                scalars.found = self._near.follow(scalars.found)
            return estimates
        sums: list[AnyArray] = []
        for values in beside(terms, scalars):
            if self._exact:
                sums.append(values.sum(axis=0, keepdims=True))
            elif self.path == "operator":
                assert self.operator is not None
                sums.append(self.operator.astype(values.dtype, copy=False) @ values)
            else:
                states = self._layout.spread(values)
                self._run(states)
                sums.append(self._estimates(states))
        if scalars is not None:
            scalars.found = sums[1]
        return sums[0].reshape(len(sums[0]), *terms.shape[1:])

    def _sum(self, terms: Floats, scalars: Scalars | None) -> Flying:
        near, kind = self._near, self.charge
        assert near is not None
        values = beside(terms, scalars)
        # Of each: states as they are, and as they are to be.
        states = [[_aligned(near.n_rows, each) for _ in range(2)] for each in values]
        widths = [each.shape[1] for each in values]
        sent = [now[:, :width] for (now, _), width in zip(states, widths, strict=True)]
        for part, each in zip(sent, values, strict=True):
            part[near.roots] = each * self._scale.astype(each.dtype)[:, None]
        yield from near.send_terms(sent, kind)
        weights = [self._weights.astype(each.dtype, copy=False) for each in values]
        size = row_bytes(values)
        pattern = self._indptr, self._indices
        exchange = near.exchange
        steps = np.ones(self.n_rounds)
        if self.rate is not None:
            steps = chebyshev_steps(self.rate, self.n_rounds)
        if exchange is None:
            for (now, _), link_weights in zip(states, weights, strict=True):
                consensus_rounds(*pattern, link_weights, now, steps, self.n_threads)
            self.traffic.add(kind, self.n_rounds * near.n_links * size, 0)
        else:
            for step in steps.tolist():
                yield from exchange.run(sent, kind, self.traffic)
                for both, link_weights in zip(states, weights, strict=True):
                    neighbour_round(*pattern, link_weights, *both, step, self.n_threads)
                    both.reverse()
                sent = [now[:, :width] for (now, _), width in zip(states, widths, strict=True)]
                self.traffic.add(kind, near.n_links * size, 0)
        read = [np.array(each[near.roots]) for each in sent]
        if self._shares is not None:
            own = self._shares[self.holders.own]
            read = [each / own.astype(each.dtype) for each in read]
        if scalars is not None:
            scalars.found = read[1]
        total = read[0].reshape(terms.shape)
        return lambda: total


def arcs_of(mixing: csr_array, ledger: Ledger) -> Mask:
    """Mark the links of a ledger over which something is sent: nonzeros of a mixing matrix."""
    numbers = ledger.targets * ledger.n_nodes + ledger.sources
    target, source = mixing.tocoo().coords
    there: Mask = np.isin(numbers, target.astype(np.intp) * ledger.n_nodes + source)
    return there


def rounds_by_trial(
    matrices: Sequence[csr_array],
    hubs: Sequence[Hub],
    tolerance: float,
    n_rounds: int | None = None,
) -> tuple[int, float]:
    """Fewest rounds by matrices in turn whose error ``max |C - 1|`` is at most ``tolerance``.

    Returns them and the error; with ``n_rounds`` that of so many, or NaN where it costs too much.
    Columns of each matrix sum to 1; states are divided by weights, as in push-sum, which are 1
    where rows sum to 1, too.
    """
    if len(hubs) == 1:
        return n_rounds or 0, 0.0
    layout, least = _Layout(matrices[0], hubs), max(tolerance, 1e-12)
    states = np.column_stack([layout.spread(np.eye(len(hubs))), np.ones(layout.n_agents)])
    most = min(MOST_GOSSIP_ROUNDS, int(10 * MOST_OPERATOR_VALUES / states.size))
    if n_rounds is not None and n_rounds > most:
        return n_rounds, np.nan
    for number in range(1, (n_rounds or most) + 1):
        states = matrices[(number - 1) % len(matrices)] @ states
        read = states[layout.roots]
        error = float(np.abs(read[:, :-1] / read[:, -1:] - 1).max())
        if number == n_rounds or (n_rounds is None and error <= least):
            return number, error
    raise InputError(
        f"rounds do not reach a consensus error of {least:g} on this graph, {most} of them do not; "
        "add links, or give ",
        Setting("consensus_tol"),
        " or ",
        Setting("n_rounds"),
    )


def _aligned(n_rows: int, values: Floats) -> Floats:
    """Return rows for states of such values (B, V), where the vectors of a round want them.

    They are zeros, with a few more in a row.
    """
    width = -(-values.shape[1] // ROUND_WIDTH) * ROUND_WIDTH
    memory = np.zeros(n_rows * width + ALIGNED, dtype=values.dtype)
    skip = -memory.ctypes.data % ALIGNED // values.dtype.itemsize
    return memory[skip : skip + n_rows * width].reshape(n_rows, width)


def consensus_error_bound(
    rate: float, hubs: Sequence[Hub], n_agents: int, n_rounds: int, *, accelerated: bool = False
) -> float:
    """Bound ``max |C - 1|`` by the mixing rate.

    ``rate^S N / sqrt(smallest hub)``, from ``|e_r^T (W^S - 11^T/N) 1_H| <= rate^S sqrt(|H|)`` and
    the start's factor ``N / |H|``; with `chebyshev_bound` in place of ``rate^S`` where rounds are
    accelerated. One hub starts at the sum.
    """
    if len(hubs) == 1:
        return 0.0
    smallest = min(len(hub.agents) for hub in hubs)
    fall = chebyshev_bound(rate, n_rounds) if accelerated else rate**n_rounds
    return float(fall * n_agents / np.sqrt(smallest))


def rounds_needed(
    mixing: csr_array,
    hubs: Sequence[Hub],
    rate: float,
    tolerance: float,
    n_threads: int = 1,
    *,
    accelerated: bool = False,
    by_bound: bool = False,
) -> int:
    """Fewest rounds whose consensus error ``max |C - 1|`` is at most ``tolerance``.

    The rate is the second largest eigenvalue modulus of ``mixing``, below 1; where rounds are
    accelerated, by Chebyshev's polynomials, an estimate of it. With ``by_bound`` it is the number
    at which `consensus_error_bound` falls below the tolerance: the operator may be too large to
    form.

    The error is looked at after every round; where plain rounds are very many, at powers of two and
    then by bisection, as if it fell at every round.
    """
    n_agents = mixing.shape[0]
    if len(hubs) == 1:
        return 0
    if rate <= 0:
        return 1
    tolerance = max(tolerance, 1e-12)
    start = consensus_error_bound(rate, hubs, n_agents, 0)
    if accelerated:
        bound = int(np.ceil(np.arccosh(max(start / tolerance, 1.0)) / np.arccosh(1.0 / rate)))
    else:
        bound = int(np.ceil(np.log(tolerance / start) / np.log(rate)))
    bound = max(1, bound)
    layout = _Layout(mixing, hubs)
    if by_bound or n_agents * len(hubs) * bound > MOST_OPERATOR_VALUES * 10:
        return bound
    if not accelerated and bound > MOST_LOOKED_AT:
        return _bisect(layout, tolerance, bound, n_threads)
    from scipy.sparse import csr_array

    shape = (layout.n_agents, layout.n_agents)
    mixing = csr_array((layout.weights, layout.indices, layout.indptr), shape=shape)
    steps = chebyshev_steps(rate, bound) if accelerated else np.ones(bound)
    states = before = layout.spread(np.eye(layout.n_hubs))
    for number, step in enumerate(steps, 1):
        states, before = step * (mixing @ states) + (1 - step) * before, states
        if np.abs(states[layout.roots] - 1).max() <= tolerance:
            return number
    return bound


def _bisect(layout: _Layout, tolerance: float, bound: int, n_threads: int) -> int:
    """Find the fewest rounds that do, among powers of two and midpoints below the first."""
    states = layout.spread(np.eye(layout.n_hubs))
    low, base = 0, states.copy()
    done = 0
    while True:
        step = min(max(done, 1), max(bound - done, 1))
        layout.run_plain(states, step, n_threads)
        done += step
        if np.abs(states[layout.roots] - 1).max() <= tolerance:
            break
        low, base = done, states.copy()
    high = done
    while high - low > 1:
        middle = (low + high) // 2
        trial = base.copy()
        layout.run_plain(trial, middle - low, n_threads)
        if np.abs(trial[layout.roots] - 1).max() <= tolerance:
            high = middle
        else:
            low, base = middle, trial
    return high


def codec_within(largest: float, codec: Codec) -> Codec:
    """Return the codec of messages whose numbers are so large: float16 ends at 65504.

    Squared distances, which are summed for a start, may be of any size (infinity), where terms of
    an E-step are not: they travel as float32.
    """
    if codec.name == "float16" and not largest < FLOAT16:
        return parse_codec("float32")
    return codec


def agreed_within(largest: float) -> float:
    """Return by how much agents may be off where what they add is so large at most.

    In nats, where it is log-densities; relative to what is small, and not below what float64 has.
    """
    return max(NATS * min(largest, 1.0), OF_LARGEST * largest)


@dataclass(frozen=True)
class RoundSteps:
    """By what steps compressed rounds go.

    ``step`` is the weight of what the neighbours say, ``rate`` the eigenvalue bound that
    Chebyshev's polynomials are made for: 0 where rounds are plain.
    """

    step: float
    rate: float

    def pace(self, mixing_rate: float) -> float:
        """Return by what a round reduces the distance to the mean, once there were some."""
        if self.rate <= 0:
            return 1.0 - self.step * (1.0 - mixing_rate)
        slow = float(np.arccosh(max(mixing_rate / self.rate, 1.0)))
        return float(np.exp(slow - np.arccosh(1.0 / self.rate)))

    def fall(self, mixing_rate: float, n_rounds: int) -> float:
        """Return by what so many rounds reduce the distance to the mean, were there no noise."""
        if self.rate <= 0:
            return float((1.0 - self.step * (1.0 - mixing_rate)) ** n_rounds)
        # T_S(mixing_rate / rate) / T_S(1 / rate), without forming either.
        slow = n_rounds * np.arccosh(max(mixing_rate / self.rate, 1.0))
        fast = n_rounds * np.arccosh(1.0 / self.rate)
        return float(np.exp(slow - fast) * (1 + np.exp(-2 * slow)) / (1 + np.exp(-2 * fast)))

    def needed(self, mixing_rate: float, omega: float, fall: float = FALL) -> int:
        """Return the rounds that reduce the distance to the mean by ``fall``, below 1, with noise.

        They are enough for a compressed sum, as each goes on from the one before.
        """
        if fall >= 1 or (mixing_rate <= 0 and omega == 0):
            return 1
        high = 1
        while self.fall(mixing_rate, high) > fall:
            high *= 2
        enough = bisect_left(
            range(high), True, high // 2 + 1, key=lambda n: self.fall(mixing_rate, n) <= fall
        )
        return max(enough, messages_alone(omega, fall))


def stable_steps(rate: float, omega: float, *, fixed: bool = True) -> RoundSteps:
    """Return the fastest steps that are stable under the noise of the messages (`contraction`).

    Where noise is small against the spectral gap rounds are accelerated by Chebyshev's polynomials;
    for a bound below ``rate``, the second largest eigenvalue modulus, where it is not so small,
    which accelerates less. With much noise they are plain, with a step of about ``1 / omega``, as
    they are where mixing weights are not the same in every round (``fixed``).

    The constants were found by trial on cycles, paths, trees, geometric and complete graphs of 2 to
    100 agents: the step is about half of the largest with which the error falls.
    """
    if fixed and 0 < rate < 1:
        gap = max(np.sqrt(1.0 - rate**2), NOISE_PER_GAP * np.sqrt(omega))
        if gap < 1:
            return RoundSteps(1.0, float(np.sqrt(1.0 - gap**2)))
    return RoundSteps(1.0 / (1.0 + CAUTION * omega * (1.0 + rate)), 0.0)


def messages_alone(omega: float, fall: float = FALL) -> int:
    """Return the messages that leave so little behind, each of what those before left out."""
    left = sqrt(omega / (1.0 + omega))
    return ceil(log(fall) / log(left)) if 0 < left < 1 else 1


def automatic_rounds(
    graph: Graph,
    hubs: list[Hub],
    rate: float,
    settings: SumSettings,
    reaching: Callable[[float], int],
    codec: Codec | None,
    faults: Faults | None,
) -> int:
    """Return the rounds of a sum where their number was left to us.

    ``rate`` is that of the mixing weights, and ``reaching`` gives the fewest rounds, without codec
    or faults, that reach a consensus error. It refuses if they are too many to be run one by one,
    or float64 would send less.
    """
    tol = settings.consensus_tol
    if graph.turns is not None and faults is not None and not faults.any and codec is None:
        return rounds_by_trial(in_turns(graph), hubs, tol)[0]
    if codec is not None:
        # As many as are expected; float64 would go on from the sum before as these do.
        _, omega = contraction(codec, MANY_VALUES)
        if omega > MOST_NOISE:
            raise InputError(
                f"the codec {codec.name} keeps only {1 / (1 + omega):.1g} of a message's "
                "squared norm; take one that keeps more"
            )
        fixed = settings.acceleration == "chebyshev" and faults is None
        n_rounds, exact = (
            stable_steps(rate, noise, fixed=fixed).needed(rate, noise) for noise in (omega, 0.0)
        )
        ratio = n_rounds * codec.message_size(MANY_VALUES) / (exact * 8 * MANY_VALUES)
        if ratio > 1 and codec.name != "float64":
            raise InputError(
                f"{codec.name} needs {n_rounds} rounds on this graph where {exact} do without "
                f"compression, and so sends {ratio:.2g} times as much: take natural:12bits or "
                "qsgd:8bits, or leave ",
                Setting("compress"),
                " out",
            )
    else:
        n_rounds = reaching(tol if faults is None else tol * JITTER)
    if faults is not None:
        # Mixing is slower by about the share of links that are up; by more on dense graphs.
        n_rounds = max(1, ceil(n_rounds / faults.links_up))
        if codec is None and len(hubs) > 1:
            start = consensus_error_bound(rate, hubs, graph.n_agents, 0)
            fall = min(tol * JITTER / start, 0.5)
            n_rounds = max(n_rounds, failing_rounds(graph, faults, fall, seed=settings.seed))
    if (codec is not None or faults is not None) and n_rounds > MOST_GOSSIP_ROUNDS:
        needed = "more" if n_rounds >= MOST_DRAWN else f"{n_rounds}, more"
        raise InputError(
            f"the rounds a sum would need are {needed} than {MOST_GOSSIP_ROUNDS}: "
            f"{'the codec loses too much' if faults is None else 'too much fails'}; take "
            f"{'smaller probabilities' if codec is None else 'another codec'}, or a number of "
            "rounds"
        )
    return n_rounds
