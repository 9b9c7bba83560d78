"""What a run that may be interrupted saves, in files or in memory, so that it can be resumed.

If an agent is lost, a part of the checkpoint is lost with it: sums remember what it sent, and its
features have parameters. The others can go on from parameters of their own, of which each keeps
those of the two newest iterations, since no agent is more than one ahead of another.

Under masks they go on with the restart under way only, and from parameters only at which nothing
was summed with the agents that remain (`vpem.network.faults`): those of other restarts have been
summed, and restarts to come may draw the same rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from vpem.engines.engine import Engine, StalledError
from vpem.errors import InputError, Setting
from vpem.network.schema import RESTART, Array, Choice, Integer, Place, State

STREAM = {
    "bit_generator": Choice(("PCG64",)),
    "state": {name: Integer(most=(1 << 128) - 1) for name in ("state", "inc")},
    "has_uint32": Integer(most=1),
    "uinteger": Integer(most=(1 << 32) - 1),
}
"""State of a random stream."""

COUNTED_STREAM = {
    "bit_generator": Choice(("Philox",)),
    "state": {"counter": Array("u8", (4,)), "key": Array("u8", (2,))},
    "buffer": Array("u8", (4,)),
    "buffer_pos": Integer(most=4),
    "has_uint32": Integer(most=1),
    "uinteger": Integer(most=(1 << 32) - 1),
}
"""State of a counter-based stream."""

REPEATED = (
    "they have opened a masked sum of the same numbers with it, and the difference would be what "
    "it added; wait for it and go on with --checkpoint and --resume, or start again with another "
    "--seed"
)
"""Why the remaining agents do not go on."""

Starts = dict[int, State]
"""Parameters to begin at, by number of the restart."""

NEWEST = 2
"""Iterations of which parameters are kept."""


class Saver(Protocol):
    """Takes the state of a run at the end of every iteration.

    ``saved`` is the state to resume from, as the run that was given this saver offered it, which
    also checks it (None: from the beginning); ``place`` is where that stands.
    """

    saved: State | None = None
    place: Place = Place("the checkpoint", "run", RESTART)

    def begin(self, facts: State) -> None:
        """Check that ``saved``, if any, belongs to the run that these facts describe."""

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Take the state at the end of an iteration, or of the ``last`` one, if it is due.

        Raises Interrupted where the process is to end; the state has been written then.
        """


class NoSaver(Saver):
    """Keeps nothing."""

    def begin(self, facts: State) -> None:
        """Accept any run."""

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Take no state."""


class PartSaver(NoSaver):
    """A saver for a part of a run, whose state is wrapped (``wrap``) in that of the whole.

    ``saved`` is the part of what is saved, and ``names`` say where it stands there.
    """

    def __init__(
        self, outer: Saver, wrap: Callable[[State], State], saved: State | None, *names: str
    ) -> None:
        self.outer, self.wrap, self.saved = outer, wrap, saved
        self.place = outer.place.inside(*names)

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        self.outer.offer(lambda: self.wrap(state()), last=last)


def check_length(done: int, max_iter: int, name: str = "max_iter") -> int:
    """Return how many iterations there were, or raise InputError if those are too many."""
    if done > max_iter:
        raise InputError(
            f"the checkpoint was saved after {done} iterations, but ",
            Setting(name),
            f" is {max_iter}; give at least {done}",
        )
    return done


class Keeper(NoSaver):
    """A saver that keeps the newest parameters in memory, beside the checkpoints of ``inner``.

    ``lost`` are the agents lost before this process began, in this order, and after how many
    iterations of the run (-1 of the last; the first process knows); ``kept`` is what was kept until
    then, by iterations of the run. ``pick`` returns, of what a recipe offers, the parameters in
    units of the data and of this process's features alone; the recipe sets it. None: it begins
    again.
    """

    pick: Callable[[State], Starts] | None = None

    def __init__(
        self,
        inner: Saver | None,
        engine: Engine,
        lost: Sequence[tuple[str, int]] = (),
        kept: Mapping[int, Starts] | None = None,
    ) -> None:
        self.inner = inner
        self.lost = list(lost)
        self.kept: dict[int, Starts] = dict(kept or {})
        self.done = 0
        """Iterations of the run up to now, those with agents since lost included."""
        self._engine, self.outlast = engine, engine.outlast
        self._former: dict[int, State] = {} if self.kept else getattr(inner, "former", {})

    @property
    def saved(self) -> State | None:  # type: ignore[override]
        return None if self.inner is None else self.inner.saved

    @property
    def place(self) -> Place:  # type: ignore[override]
        return Saver.place if self.inner is None else self.inner.place

    def begin(self, facts: State) -> None:
        """Agree on where to begin, if an agent was lost; then begin as the inner saver does."""
        if self.lost:
            self._agree()
            facts = {**facts, "without": [list(one) for one in self.lost]}
        if self.inner is not None:
            self.inner.begin(facts)
        if self.saved is not None:
            self.kept, self._former = {}, {}
            self.done = getattr(self.inner, "generation", 0)

    def starts(self, pick: Callable[[State], Starts]) -> Starts:
        """Return where a recipe begins instead of at its own starts, once it has begun.

        ``pick`` is what `pick` is from now on: the checkpoint of a run of all agents has parameters
        in units that are found again, which are those of before where rows are.
        """
        self.pick = pick
        if self.outlast is not None:
            if self.saved is not None:
                self.outlast.resumed(self._engine.names)
            self.outlast.moved(self.newest().get(self.done))
        if self.lost and self.done in self._former:
            with suppress(KeyError, IndexError, TypeError, ValueError, AttributeError):
                self.kept = {self.done: pick(self._former[self.done])}
        self._former = {}
        return self.kept.get(self.done, {}) if self.lost and self.saved is None else {}

    def newest(self) -> dict[int, Starts]:
        """Return the parameters that are kept, by iterations of the run."""
        if not self.kept and self.saved is not None and self.pick is not None:
            starts = self.pick(self.saved)
            return {self.done: starts if self.outlast is None else self._going(starts)}
        return self.kept

    def _agree(self) -> None:
        """Find the newest iteration that all have kept, and which agents are missing since when."""
        known = self.kept or self._former
        common = set.intersection(*map(set, self._engine.allgather(sorted(known))))
        self.done = max(common, default=0)
        self.kept = {self.done: self.kept[self.done]} if self.done in self.kept else {}
        names = [name for name, _ in self.lost]
        lost: object = self._engine.bcast([list(one) for one in self.lost])
        if not isinstance(lost, list) or [one[0] for one in lost] != names:
            raise InputError(
                f"{self._engine.names[0]} has not said which agents were lost; start again"
            )
        self.lost = [(str(name), self.done if since < 0 else int(since)) for name, since in lost]
        outlast, left = self.outlast, self._engine.names
        if outlast is not None and (self._former or outlast.repeats(self.kept, left)):
            raise StalledError(f"the others cannot go on without {', '.join(names)}: {REPEATED}")

    @staticmethod
    def _going(starts: Starts) -> Starts:
        """Return the parameters of the restart that is under way, which is the last."""
        return {max(starts): starts[max(starts)]}

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Keep the parameters, and offer the whole to the inner saver."""
        self.done += 1
        if self.pick is not None:
            starts = self.pick(state())
            if self.outlast is not None:
                starts = self._going(starts)
                self.outlast.moved(starts, last)
            self.kept[self.done] = starts
            for old in sorted(self.kept)[:-NEWEST]:
                del self.kept[old]
        if self.outlast is not None and self.outlast.error is not None:
            raise self.outlast.error
        if self.inner is not None:
            self.inner.offer(state, last=last)
