"""What a run that may be broken off keeps of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from vpem.errors import InputError, Setting
from vpem.network.schema import ANEW, Array, Choice, Integer, Place, State

STREAM = {
    "bit_generator": Choice(("PCG64",)),
    "state": {name: Integer(most=(1 << 128) - 1) for name in ("state", "inc")},
    "has_uint32": Integer(most=1),
    "uinteger": Integer(most=(1 << 32) - 1),
}
"""Where a random stream is."""

COUNTED_STREAM = {
    "bit_generator": Choice(("Philox",)),
    "state": {"counter": Array("u8", (4,)), "key": Array("u8", (2,))},
    "buffer": Array("u8", (4,)),
    "buffer_pos": Integer(most=4),
    "has_uint32": Integer(most=1),
    "uinteger": Integer(most=(1 << 32) - 1),
}
"""The same of a stream of counted numbers."""


class Saver(Protocol):
    """Takes the state of a run at the end of every iteration.

    Attributes
    ----------
    saved : dict or None
        The state to go on from, in the words of whoever was given this saver, who checks it; None:
        from the beginning.
    place : Place
        Where that stands.
    """

    saved: State | None = None
    place: Place = Place("the checkpoint", "run", ANEW)

    def begin(self, facts: State) -> None:
        """Check that ``saved``, if any, is of the run that these facts describe."""

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Take the state at the end of an iteration, or at the ``last`` one, if it is wanted.

        If somebody wants the process to end it raises Interrupted; the state has been written.
        """


class NoSaver(Saver):
    """Keeps nothing."""

    def begin(self, facts: State) -> None:
        """Accept any run."""

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Take no state."""


class PartSaver(NoSaver):
    """A saver for a part of a run, whose state is wrapped in that of the whole.

    Parameters
    ----------
    outer : Saver
        Of the whole.
    wrap : callable
        Puts the state of the part into that of the whole.
    saved : dict or None
        The part of what is saved.
    *names : str
        Where it stands there.
    """

    def __init__(
        self, outer: Saver, wrap: Callable[[State], State], saved: State | None, *names: str
    ) -> None:
        self.outer = outer
        self.wrap = wrap
        self.saved = saved
        self.place = outer.place.inside(*names)

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Offer the whole."""
        self.outer.offer(lambda: self.wrap(state()), last=last)


def stream_state(rng: np.random.Generator) -> State:
    """Return where a random stream is."""
    return dict(rng.bit_generator.state)


def set_stream(rng: np.random.Generator, state: State) -> None:
    """Move a random stream to where it was."""
    rng.bit_generator.state = state


def check_length(done: int, max_iter: int, name: str = "max_iter") -> int:
    """Return how many iterations there were, or raise InputError if those are too many."""
    if done > max_iter:
        raise InputError(
            f"the checkpoint is of {done} iterations, ",
            Setting(name),
            f" is {max_iter}; give as many at least",
        )
    return done
