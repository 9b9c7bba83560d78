"""What agents know of each other in compressed rounds: public copies of states, which outlive sums.

Rows of arrays are those of `vpem.sums.neighbours.Neighbourhood`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.network.codecs import Keys
from vpem.network.schema import LARGEST_COUNT, Array, Schema, State
from vpem.sums.carried import Carried
from vpem.sums.neighbours import Neighbourhood
from vpem.sums.quantizer import Quantizer
from vpem.sums.wrappers import Channel, Compressed, Memory, short_keys

Vectors = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass
class Copies:
    """What agents keep from one compressed sum to the next.

    Attributes
    ----------
    states, inputs : ndarray of shape (n, V)
        Of this process's agents: where their states are, and what they started from.
    copies : ndarray of shape (n_rows, V)
        What is known of their states and of their neighbours'.
    awake : ndarray of shape (N,)
        Agents that took part.
    missed : ndarray of shape (2 n_edges,)
        Bytes that wait for each directed link to be up again.
    """

    states: Vectors
    copies: Vectors
    inputs: Vectors
    awake: Mask
    missed: NDArray[np.int64]

    @classmethod
    def begun(
        cls, before: Copies | None, inputs: Vectors, awake: Mask, near: Neighbourhood
    ) -> Copies:
        """Return what there is at the beginning of a sum, with states of the new inputs' mean."""
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

    def move(self, mixed: Vectors, before: Vectors, step: float, further: float) -> Vectors:
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

    def state(self) -> State:
        """Return what is kept."""
        return dict(vars(self))

    @staticmethod
    def schema(near: Neighbourhood, values: str = "V") -> Schema:
        """Return what that must be; ``values`` names their number."""
        own, every = Array("f8", (len(near.own), values)), Array("f8", (near.n_rows, values))
        return {
            **{"states": own, "copies": every, "inputs": own},
            "awake": Array("b1", (near.agents.n_agents,)),
            "missed": Array("i8", (len(near.from_here),), 0, LARGEST_COUNT),
        }


def speakers(
    known: Copies,
    near: Neighbourhood,
    quantizer: Quantizer,
    believed: float,
    rng: np.random.Generator,
    charged: str,
    count: Callable[[int], None],
) -> Memory:
    """Return the copies as a memory, to which all agents that are awake send how they differ.

    The copies are moved in place. Keys of all agents are drawn alike in every process; a decoded
    message is scaled by ``believed``. ``count`` counts messages of so many bytes each.
    """
    awake = known.awake
    talking = near.own[awake[near.own]]
    channel = Channel(near.n_rows, lambda sizes, _: count(int(np.max(sizes, initial=0))))
    if not awake.all():
        channel.active = np.flatnonzero(awake[near.agents_of_rows])

    def keys(n_messages: int) -> Keys:
        return short_keys(rng, len(awake))[talking]

    sent = Compressed(channel, quantizer, keys)
    if near.exchange is not None:
        sent = Carried(channel, quantizer, keys, lambda some: near.carry(some, awake, charged))
    return Memory(sent, quantizer.steps(believed), known.copies)
