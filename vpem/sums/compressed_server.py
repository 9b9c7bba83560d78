"""The sum at a server that every agent reaches, or along a tree, in compressed messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Floats, Indices, check_int
from vpem.engines.placement import Placement
from vpem.network.codecs import Codec, parse_codec
from vpem.network.hubs import Routes
from vpem.network.schema import Array, Schema, State
from vpem.sums.consensus import agreed_within, codec_within, messages_alone
from vpem.sums.counted import AtServer, largest_of
from vpem.sums.exchanges import TreeLevel, TreeWays, finished
from vpem.sums.partial import Carry, GoesOn, as_run, send_changes, short_keys
from vpem.sums.quantizer import ITEM, Quantizer, contraction
from vpem.sums.server import ServerSum
from vpem.sums.sum import ALL, Scalars, Sum, flattened, unflattened

CAUTIOUS = 10
"""Times what may be left: the bound takes all agents to be as far off as one, and to one side."""


@dataclass
class _Kept:
    """What is known of the blocks' terms (n_rows, V), and all know of their total (1, V)."""

    up: Doubles
    down: Doubles


class CompressedServerSum(GoesOn, AtServer):
    """Adds the terms of all blocks at a server, or along a tree, compressed up and down.

    Agent b sends ``Q(Q_b - V_b)``, how its terms differ from a memory V_b that the server holds
    too, and both add what was decoded, scaled as in `vpem.sums.quantizer.contraction`. The server
    does the same with the total of the memories, which it sends to all. Memories go on from one
    E-step to the next, so that messages become few as the terms settle.

    Messages go on until the sum is as near as `vpem.sums.consensus.agreed_within` says: agents
    report to the server how far their terms are from its memories at most. Where float32 would take
    fewer bytes, or float64, what is left is sent so.

    Along a tree agent i adds its own term to what it knows of its children's sums, and sends its
    parent ``Q(s_i - V_i)``: how that sum differs from what the parent knows of it. Each link has a
    memory, and its two ends keep it alike. So every hop rounds again, but what it rounds is a
    change, and the errors of all hops vanish as the terms settle. What the root says of the total
    goes to all agents unchanged.

    Where blocks live in several processes (`spread_over`) the server lives in the first, and the
    codec's bytes are what travels.
    """

    whole = True
    codec: Codec
    _coder: Codec
    make_memory, unnamed = _Kept, ("up", "down")
    _near: TreeWays

    def __init__(
        self,
        n_blocks: int,
        codec: Codec,
        *,
        tree: Routes | None = None,
        agents: Indices | None = None,
        seed: int = 0,
        n_threads: int = 1,
    ) -> None:
        super().__init__(check_int("n_blocks", n_blocks, least=1), tree, agents)
        self.codec = self._coder = codec
        self.least = 0
        self.seed = check_int("seed", seed, least=0)
        self.n_threads = n_threads
        self.values_per_item = n_blocks
        self._live(Placement.here(self._n_agents), self.holders)

    def __setstate__(self, state: State) -> None:
        super().__setstate__(state)
        if "way" not in state:
            self._live(Placement.here(self._n_agents), self.holders)

    @property
    def _n_agents(self) -> int:
        return self.n_senders if self.tree is None else len(self.tree.parent)

    def uncompressed(self) -> Sum:
        plain = ServerSum(self.n_senders, self.tree, self.agents)
        plain.waits = self.waits
        return plain

    def expect(self, n_values: int) -> None:
        exact, (_, omega) = parse_codec("float64"), contraction(self.codec, n_values)
        self.least = messages_alone(omega)
        if self.least * self.codec.message_size(n_values) >= exact.message_size(n_values):
            self.codec, self.least = exact, 1

    def _live(self, agents: Placement, holders: Placement, following: bool = False) -> None:
        """Set what depends on where blocks live.

        Of agents here and of children elsewhere (``_n_rows``) the parent of each knows something:
        at a server of all. ``_delivered`` are messages of one kind that agents here send, and the
        root then, ``_n_links`` links on the ways to the root, each of which leaves out something.
        """
        super()._live(agents, holders, following)
        near = self._near = TreeWays(agents, holders, self)
        self._n_rows = near.n_states - 1
        self._delivered = sum(len(level.rows) for level in near.upward), near.n_children
        self._n_links = int(self.every_way.sum()) - 1

    def memory_schema(self, n_values: str) -> dict[str, Schema]:
        up, down = Array("f8", (self._n_rows, n_values)), Array("f8", (1, n_values))
        return {"up": up, "down": down}

    def kept_bytes(self, n_values: int) -> int:
        return 8 * n_values * (self._n_rows + 1)

    def reduce(self, terms: Floats, rows: slice = ALL, scalars: Scalars | None = None) -> AnyArray:
        """Sum terms (B, m, K) over the blocks, shape (1, m, K).

        Compressed sums take all rows at once.
        """
        if self._alone:
            flat = self.holders.bcast(flattened(terms, scalars))
            return unflattened(flat, terms, scalars)
        flat = flattened(terms, scalars)
        n_exact = 0 if scalars is None else scalars.own.shape[1]
        shape = (self._n_rows, flat.shape[1])
        known = self._memories[self._batch]
        if known is None or known.up.shape != shape:
            known = _Kept(np.zeros(shape), np.zeros((1, shape[1])))
        n_values, n_rows = shape[1] - n_exact, max(terms.shape[1], 1)
        message = Quantizer(None, n_values, self.n_threads, n_exact=n_exact)
        rng = np.random.default_rng([self.seed, self._number])

        def largest_in(vectors: Doubles) -> float:
            """Return the largest number of vectors (n, P), of a row: scalars are sums over rows."""
            sums = np.abs(vectors[:, n_values:]).max(initial=0.0) / n_rows
            return float(np.maximum(np.abs(vectors[:, :n_values]).max(initial=0.0), sums))

        largest, total = [largest_in(flat), 0.0], np.empty((0, shape[1]))

        def send_up(quantizer: Quantizer, count: int) -> float:
            nonlocal total
            total, unsaid = self._add_up(flat, known.up, quantizer, rng, count)
            self.traffic.add(self.charge, self._delivered[0] * count * quantizer.message_size, 0)
            return float(np.max([*map(largest_in, unsaid)], initial=0.0))

        def answer(quantizer: Quantizer, count: int) -> float:
            carry = self._carry(self._to_all)
            for _ in range(count):
                self.broadcast(quantizer.message_size)
                send_changes(quantizer, total, known.down, short_keys(rng, 1)[: len(total)], carry)
            self.traffic.add(self.charge, self._delivered[1] * count * quantizer.message_size, 0)
            return largest_in(total - known.down[: len(total)])

        # Before anything is sent, the total is that of the memories.
        largest = self._flood(largest[0], send_up(message.by(self._coder), 0))
        allowed = CAUTIOUS * agreed_within(largest[0]) / 2
        self._send_until_near(
            send_up, message, largest[1], allowed / max(self._n_links, 1), upward=True
        )
        (left,) = self._flood(largest_in(total - known.down[: len(total)]), upward=False)
        self._send_until_near(answer, message, left, allowed, upward=False)
        self._keep(known)
        return unflattened(known.down, terms, scalars)

    def _send_until_near(
        self,
        send: Callable[[Quantizer, int], float],
        message: Quantizer,
        left: float,
        allowed: float,
        *,
        upward: bool,
    ) -> None:
        """Send messages until nothing is further from what is known of it than is allowed.

        ``send`` sends so many of each sender, and returns how far those here then are; at first the
        farthest is ``left``.
        """
        if self.least:
            send(message.by(self._coder), self.least)
            return
        exact, spent = parse_codec("float64"), 0
        if self._coder.name == exact.name:
            send(message.by(exact), 1)
            return
        most = message.by(exact).message_size
        finer = [codec_within(left, self._coder), parse_codec("float32")]
        while not left <= allowed:
            plans = [(most, 1, exact)]
            for coder in finer:
                _, omega = contraction(coder, message.n_values)
                fall = allowed / left
                count = max(1, messages_alone(omega, fall)) if fall > 0 else 1
                plans.append((count * message.by(coder).message_size, count, coder))
            cost, count, coder = min(plans, key=lambda plan: plan[0])
            spent += cost
            if spent > most:
                count, coder = 1, exact
            left = send(message.by(coder), count)
            if coder is exact:
                return
            (left,) = self._flood(left, upward=upward)

    def _flood(self, *numbers: float, upward: bool = True) -> list[float]:
        """Return the largest of what those here have; all report it, or the server alone knows."""
        kind, self.charge = self.charge, "flooding"
        if upward:
            self.count(ITEM * len(numbers))
        self.broadcast(ITEM * len(numbers))
        self.charge = kind
        return largest_of(self.holders, numbers)

    def _add_up(
        self,
        flat: Doubles,
        known: Doubles,
        quantizer: Quantizer,
        rng: np.random.Generator,
        n_messages: int,
    ) -> tuple[Doubles, list[Doubles]]:
        """Add terms (B, P) up, level by level, to the total (1, P) at the root.

        What is known moves in place; where the root is elsewhere there are no rows. Also returned
        is how sums (n, P) of agents here then differ from what their parents know, by level.
        """
        near, at_server, unsaid = self._near, self.tree is None, []
        sums = flat  # at a server, which has no terms, these are all that is sent
        if not at_server:
            sums = np.zeros((near.n_states, known.shape[1]))
            sums[near.own] = flat
        keys = [short_keys(rng, self._n_agents) for _ in range(n_messages)]
        for level in near.upward:
            # Of those elsewhere what is heard is added to what is known, of those here too.
            rows, here = np.append(level.rows, level.heard), as_run(level.rows)
            carry, values = self._carry(partial(self._to_parents, level)), sums[here]
            for drawn in keys:
                send_changes(quantizer, values, known, drawn[level.agents], carry, rows)
            unsaid.append(values - known[here])
            if not at_server:
                for child, parent in zip(level.children, level.parents, strict=True):
                    sums[parent] += known[child]
        for _ in keys:
            self.count(quantizer.message_size)
        if not self.is_here:
            return sums[:0], unsaid
        if at_server:  # all at once
            children = as_run(np.array(near.upward[0].children, dtype=np.intp))
            return known[children].sum(axis=0, keepdims=True), unsaid
        return sums[near.root][None], unsaid

    def _carry(self, carry: Carry) -> Carry | None:
        return None if self.holders.engine.size == 1 else carry

    def _to_parents(self, level: TreeLevel, messages: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bring messages of one depth to the processes of their parents; what comes from others."""
        rows = np.zeros((self._near.n_states, messages.shape[1]), dtype=np.uint8)
        rows[level.rows] = messages
        if level.exchange is not None:
            finished(level.exchange.run([rows], self.charge, self.traffic))
        return rows[level.heard]

    def _to_all(self, messages: NDArray[np.uint8]) -> NDArray[np.uint8]:
        heard = self.to_all(messages)
        return messages[:0] if self.is_here else heard


TreeSum, CompressedTreeSum = ServerSum, CompressedServerSum
"""What sums along a tree were called, in ``vpem.sums.tree`` and here, in networks pickled then."""
