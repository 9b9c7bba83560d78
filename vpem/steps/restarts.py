"""Restarts of a recipe, of which the best is kept, and what a checkpoint keeps of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from vpem.checks import Indices
from vpem.errors import InputError, Setting
from vpem.network.ledger import Ledger
from vpem.network.schema import (
    COUNT,
    FLAG,
    As,
    Integer,
    Maybe,
    Number,
    Schema,
    State,
    TableOf,
    check,
    save,
)
from vpem.steps.recovery import STREAM, Keeper, PartSaver, Saver
from vpem.sums.sum import Sum

R = TypeVar("R", bound=Any)
"""A run, of EM or of k-means: with ``history``, ``bytes_sent`` and ``converged``."""


@dataclass(frozen=True)
class Kept(Generic[R]):
    """What a checkpoint keeps of a recipe's runs, and what a restart may begin at instead."""

    rows: Schema  # that a restart begins at
    best: As  # of the best run so far, in a table
    loop: dict[str, Schema]  # what the recipe needs of the loop, which checks the rest
    more: dict[str, Schema]  # of the restart under way, besides its rows
    rank: Callable[[R], tuple[float, ...]]  # what the best run maximises
    parameters: Callable[[State], Any]  # of a loop, or of the best run, as they were saved
    start_of: Callable[[State], State]  # the same, to begin at (`Keeper.pick`)
    begun_at: Callable[[State], Any]  # parameters of what `start_of` found, once it is checked


class OneRun:
    """A recipe, and what is ``saved`` of it to resume from: the ledger, the wall time, and a run.

    A recipe with restarts saves more (`Restarts`).
    """

    def __init__(self, saver: Saver | None, ledger: Ledger) -> None:
        self._saver = saver
        self._keeper = saver if isinstance(saver, Keeper) else None
        self.saved = None if saver is None else saver.saved
        self._ledger = ledger
        self.seconds = 0.0
        """Wall time of what was done before the run went on."""
        self._began = time.perf_counter()

    def _checked(self, schema: dict[str, Schema]) -> State:
        """Return what was saved, checked, and restore the ledger."""
        assert self._saver is not None
        assert self._saver.saved is not None
        saved = self._saver.saved
        common = {"seconds": Number(0), "ledger": self._ledger.schema()}
        check(schema | common, saved, self._saver.place)
        self._ledger.restore(saved["ledger"])
        self.seconds = saved["seconds"]
        return saved

    def _common(self) -> State:
        return {
            "seconds": self.seconds + time.perf_counter() - self._began,
            "ledger": self._ledger.state(),
        }

    def restored(self, more: Schema) -> Any:
        """Restore the ledger; returns what ``more`` the recipe has saved."""
        return self._checked({"more": more, "loop": TableOf()})["more"]

    def took(self, began: float, converged: bool, bytes_sent: Sequence[int]) -> State:
        """Return what a run took, since the recipe began."""
        return {
            "converged": converged,
            "seconds": time.perf_counter() - began + self.seconds,
            "communication": {**self._ledger.summary(), "bytes_by_iteration": list(bytes_sent)},
        }

    def begins_at(self, pick: Callable[[State], State]) -> State | None:
        """Return the parameters to begin at, if an agent was lost that was there before.

        ``pick`` finds such parameters in what the loop saves; see
        `vpem.steps.recovery.Keeper.pick`.
        """
        if self._keeper is None:
            return None
        return self._keeper.starts(lambda whole: {0: pick(whole["loop"])}).get(0)

    def inner(self, more: object) -> Saver | None:
        """Return the saver for the loop; ``more`` is what the recipe saves besides."""
        if self._saver is None:
            return None
        saved = None if self.saved is None else self.saved["loop"]
        wrap = lambda loop: {"more": more, **self._common(), "loop": loop}  # noqa: E731
        return PartSaver(self._saver, wrap, saved, "loop")


@dataclass
class Restart:
    seed: list[int]  # of the recipe, and its number: of the streams that its agents share
    rng: np.random.Generator  # the first of them
    total: Sum  # the sum from its beginning
    saved: State | None  # of this one, if it goes on
    start: State | None  # parameters in the place of a start of its own (`Kept.start_of`)
    saver: Callable[..., Saver | None] = field(init=False)
    """Returns the saver for the loop; what it is given by name the recipe saves besides."""

    def drawn(self, key: str = "rows") -> Any:
        assert self.saved is not None
        return self.saved["more"][key]

    @property
    def loop(self) -> State:
        assert self.saved is not None
        loop: State = self.saved["loop"]
        return loop


class Restarts(OneRun, Generic[R]):
    """Restarts of a recipe: those with these ``numbers``, of at most ``max_iter`` iterations each.

    Messages of all are counted in the ledger. The callback's method ``restarting``, if it has one,
    is called for each: with its number from 1, how many there are, and the most iterations.
    """

    def __init__(
        self,
        saver: Saver | None,
        ledger: Ledger,
        numbers: Iterable[int],
        seed: int,
        max_iter: int,
        kept: Kept[R],
        callback: object = None,
    ) -> None:
        super().__init__(saver, ledger)
        self.numbers = list(numbers)
        self._first, self._count = (self.numbers or [0])[0], len(self.numbers)
        self._tell: Callable[[int, int, int], None] | None = getattr(callback, "restarting", None)
        self.seed, self.max_iter, self.kept = seed, max_iter, kept
        self.iterations = 0  # of all that are over
        self._ran_out = False
        self._going: State | None = None
        self._best: tuple[R, Indices | None, int] | None = None
        """The best run, the rows it started at, and which restart it is."""
        self._saved_best: State | None = None
        self._starts: dict[int, State] = {}
        if self._keeper is not None and (starts := self._keeper.starts(self._picked)):
            self._starts = starts
            others = [one for one in self.numbers if one > max(self._starts)]
            masked = self._keeper.outlast is not None
            self.numbers = [*sorted(self._starts), *([] if masked else others)]
        if saver is not None and saver.saved is not None:
            self._restore()

    def _picked(self, state: State) -> dict[int, State]:
        """Return parameters of the best run up to now, and of the one under way."""
        best, going = state["best"], state["restart"]
        starts = {} if best is None else {int(best["restart"]): self.kept.start_of(best)}
        return starts | {going: self.kept.start_of(state["going"]["loop"])}

    def _restore(self) -> None:
        kept, number = self.kept, Integer(self.numbers[0], self.numbers[-1])
        assert isinstance(kept.best.schema, dict)
        saved = self._checked(
            {
                "restart": number,
                "iterations": COUNT,
                "best": Maybe({**kept.best.schema, "rows": kept.rows, "restart": number}),
                "ran_out": FLAG,
                "max_iter": COUNT,
                "going": {
                    "stream": STREAM,
                    "more": {"rows": kept.rows, **kept.more},
                    "loop": TableOf(some=kept.loop),
                },
            }
        )
        self.numbers = self.numbers[saved["restart"] - self.numbers[0] :]
        self.iterations, self._ran_out = saved["iterations"], saved["ran_out"]
        self._going, best = saved["going"], saved["best"]
        if best is not None:
            self._saved_best = best
            self._best = save(kept.best, best, back=True), best["rows"], best["restart"]
        before = saved["max_iter"]
        if self._ran_out and before != self.max_iter:
            raise InputError(
                f"a finished restart ran out of its {before} iterations, so that ",
                Setting("max_iter"),
                f" cannot be {self.max_iter} for the next ones; leave it as it was",
            )

    def outcome(self, began: float) -> State:
        """Return what the best run and all restarts took, since the recipe began."""
        assert self._best is not None
        run, _, number = self._best
        return {
            **self.took(began, run.converged, run.bytes_sent),
            "best_restart": number,
            "total_iterations": self.iterations,
            "ledger": self._ledger,
        }

    def best(
        self, total: Sum, attempt: Callable[[Restart], tuple[R, Indices | None]]
    ) -> tuple[R, Indices | None]:
        """Run all that are not over; the best, and its rows. Each has the sum from its beginning.

        ``attempt`` runs one restart, and returns the run and the rows that it started at.
        """
        for number in self.numbers:
            if self._tell is not None:
                self._tell(number - self._first + 1, self._count, self.max_iter)
            seed = [self.seed, number]
            going, self._going = self._going, None
            rng = np.random.default_rng(seed)
            counted, start = total.counted_on(self._ledger), self._starts.get(number)
            restart = Restart(seed, rng, counted, going, start)
            restart.saver = partial(self._inner, restart)
            run, rows = attempt(restart)
            self.iterations += len(run.history)
            self._ran_out = self._ran_out or not run.converged
            if self._best is None or self.kept.rank(run) > self.kept.rank(self._best[0]):
                self._best = run, rows, number
                if self._saver is not None:
                    saved = save(self.kept.best, run)
                    self._saved_best = {**saved, "rows": rows, "restart": number}
        assert self._best is not None
        return self._best[:2]

    def _inner(self, restart: Restart, **more: object) -> Saver | None:
        """Return the saver for the loop of a restart, whose stream is set to where it had been."""
        if self._saver is None:
            return None
        rng, saved = restart.rng, None
        if restart.saved is not None:
            rng.bit_generator.state = restart.saved["stream"]
            saved = restart.saved["loop"]

        def wrap(loop: State) -> State:
            return {
                "restart": restart.seed[-1],
                "iterations": self.iterations,
                "best": self._saved_best,
                "ran_out": self._ran_out,
                "max_iter": self.max_iter,
                **self._common(),
                "going": {"stream": dict(rng.bit_generator.state), "more": more, "loop": loop},
            }

        return PartSaver(self._saver, wrap, saved, "going", "loop")
