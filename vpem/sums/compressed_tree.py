"""The sum along a tree, in compressed messages."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Indices
from vpem.engines.placement import Placement
from vpem.network.codecs import Codec, Keys
from vpem.network.hubs import Routes
from vpem.sums.compressed_server import CompressedServerSum
from vpem.sums.exchanges import finished
from vpem.sums.partial import Channel, short_keys
from vpem.sums.quantizer import Quantizer
from vpem.sums.tree import AlongTree, TreeLevel, TreeWays


class CompressedTreeSum(AlongTree, CompressedServerSum):
    """Adds terms along a tree, each link of which has a memory, and its two ends keep it alike.

    Agent i adds its own term to what it knows of its children's sums, and sends its parent ``Q(s_i
    - V_i)``: how that sum differs from what the parent knows of it. So every hop rounds again, but
    what it rounds is a change, and the errors of all hops vanish as the terms settle, as they do at
    a server (`CompressedServerSum`). What the root says of the total goes to all agents unchanged.
    """

    def __init__(
        self,
        tree: Routes,
        agents: Indices,
        codec: Codec,
        n_rounds: int | None = None,
        *,
        seed: int = 0,
        n_threads: int = 1,
    ) -> None:
        super().__init__(len(agents), codec, n_rounds, seed=seed, n_threads=n_threads)
        self.tree, self.agents = tree, agents
        self._live(Placement.here(len(tree.parent)), self.holders)

    def _live(self, agents: Placement, holders: Placement) -> None:
        """Set what depends on where agents live.

        Of agents here and of children elsewhere (``_n_rows``) the parent of each knows something.
        """
        super()._live(agents, holders)
        self._near = near = TreeWays(agents, holders, self)
        self._is_server = holders.engine.rank == near.home
        self._n_rows = near.n_states - 1
        self._delivered = sum(len(level.rows) for level in near.upward), near.n_children
        self._n_links = int(self.every_way.sum()) - 1

    def _unsaid(self, flat: Doubles, known: Doubles) -> Doubles:
        """How sums (n, P) of agents here differ from what their parents know of them."""
        near, sums = self._near, np.zeros_like(known)
        sums[near.own] = flat
        for level in near.upward:
            for child, parent in zip(level.children, level.parents, strict=True):
                sums[parent] += known[child]
        rows = np.concatenate([np.empty(0, np.intp), *(level.rows for level in near.upward)])
        unsaid: Doubles = sums[rows] - known[rows]
        return unsaid

    def _add_up(
        self,
        flat: Doubles,
        known: Doubles,
        quantizer: Quantizer,
        rng: np.random.Generator,
        n_messages: int,
    ) -> Doubles:
        """Add terms (B, P) up, level by level, to the total (1, P) at the root."""
        near, n_agents = self._near, len(self.tree.parent)
        sums = np.zeros_like(known)
        sums[near.own] = flat
        keys = [short_keys(rng, n_agents) for _ in range(n_messages)]
        for level in near.upward:
            # Of those elsewhere what is heard is added to what is known, of those here too.
            rows = np.append(level.rows, level.heard)
            for drawn in keys:
                up = self._memory(
                    quantizer, Channel(len(rows), lambda *_: None), known,
                    partial(_these, drawn[level.agents]), partial(self._to_parents, level),
                )  # fmt: skip
                up.send(sums[level.rows], rows)
            for child, parent in zip(level.children, level.parents, strict=True):
                sums[parent] += known[child]
        for _ in keys:
            self.count(quantizer.message_size)
        return sums[near.root][None] if self._is_server else sums[:0]

    def _to_parents(self, level: TreeLevel, messages: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bring messages of one depth to the processes of their parents; what comes from others."""
        rows = np.zeros((self._near.n_states, messages.shape[1]), dtype=np.uint8)
        rows[level.rows] = messages
        if level.exchange is not None:
            finished(level.exchange.run([rows], self.charge))
            self.traffic.add(self.charge, 0, level.exchange.n_sent * messages.shape[1])
        return rows[level.heard]

    def _to_all(self, messages: NDArray[np.uint8]) -> NDArray[np.uint8]:
        near = self._near
        rows = np.zeros((near.n_states, messages.shape[1]), dtype=np.uint8)
        if self._is_server:
            rows[-1:] = messages
        finished(near.send_total([rows], self.charge, self.traffic))
        heard = near.follow(rows[-1:])
        return messages[:0] if self._is_server else heard


def _these(keys: Keys, _: int) -> Keys:
    return keys
