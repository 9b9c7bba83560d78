"""What a run of EM is saved as, and how it is put together again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.blocks import Blocks
from vpem.checkpoints.savers import Saver, State, restoring, set_stream, stream_state
from vpem.errors import InputError, Setting
from vpem.mixture import Mixture
from vpem.scaling import Scaling

if TYPE_CHECKING:
    from vpem.network.ledger import Ledger

__all__ = [
    "OneRun",
    "Restarts",
    "check_length",
    "mixture_of",
    "mixture_state",
    "record_state",
    "restore_record",
    "restore_run",
    "run_state",
]


def mixture_state(mixture: Mixture) -> State:
    """Return the parameters; who holds which features, and the units, belong to the recipe."""
    return {
        "weights": mixture.weights,
        "means": mixture.means,
        "covariances": mixture.covariances,
    }


def mixture_of(state: State, blocks: Blocks, covariance_type: str, scaling: Scaling) -> Mixture:
    """Return the mixture of saved parameters."""
    with restoring():
        return Mixture(
            blocks,
            covariance_type,
            state["weights"],
            state["means"],
            state["covariances"],
            scaling,
        )


def record_state(run: Any) -> State:
    """Return the record of a run, whose parameters are saved apart."""
    return {
        "history": list(run.history),
        "log_likelihood": run.log_likelihood,
        "bytes_sent": list(run.bytes_sent),
        "partitions": list(run.partitions),
        "converged": bool(run.converged),
        "recoveries": [astuple(one) for one in run.recoveries],
        # Of runs in batches.
        "free_energy": list(getattr(run, "free_energy", [])),
        "n_passes": getattr(run, "n_passes", 0.0),
    }


def restore_record(run: Any, state: State) -> None:
    """Put the record of a run together again."""
    run.history[:] = state["history"]
    run.log_likelihood = state["log_likelihood"]
    run.bytes_sent[:] = state["bytes_sent"]
    run.partitions[:] = state["partitions"]
    run.converged = state["converged"]
    run.recall(state["recoveries"])
    if hasattr(run, "free_energy"):
        run.free_energy[:] = state["free_energy"]
        run.n_passes = state["n_passes"]


def run_state(run: Any, total: Any, repairs: Any, iteration: int) -> State:
    """Return the state of a loop after an iteration.

    Parameters
    ----------
    run : Run
        Parameters and record.
    total : Sum
        What it keeps.
    repairs : object
        Components that collapsed: ``counts`` and ``given_up``.
    iteration : int
        How many there were.
    """
    return {
        "iteration": iteration,
        "mixture": mixture_state(run.mixture),
        "record": record_state(run),
        "sum": total.state(),
        "collapsed": [list(repairs.counts), list(repairs.counts.values())],
        "given_up": [list(repairs.given_up), list(repairs.given_up.values())],
    }


def restore_run(state: State, run: Any, total: Any, repairs: Any, max_iter: int) -> int:
    """Put all but the parameters together again; returns how many iterations there were."""
    with restoring():
        restore_record(run, state["record"])
        total.restore(state["sum"])
        repairs.counts.update(zip(*state["collapsed"], strict=True))
        repairs.given_up.update(zip(*state["given_up"], strict=True))
        done = int(state["iteration"])
    return check_length(done, max_iter)


def check_length(done: int, max_iter: int) -> int:
    """Return how many iterations there were, or raise InputError if those are too many."""
    if done > max_iter:
        raise InputError(
            f"the checkpoint is of {done} iterations, ",
            Setting("max_iter"),
            f" is {max_iter}; give as many at least",
        )
    return done


class OneRun:
    """A recipe without restarts, and what is saved of it.

    Parameters
    ----------
    saver : Saver or None
        Of the recipe.
    ledger : Ledger
        Where messages are counted.

    Attributes
    ----------
    saved : dict or None
        What there is to go on from.
    seconds : float
        Wall time of what was done before the run went on.
    """

    def __init__(self, saver: Saver | None, ledger: Ledger) -> None:
        self._saver = saver
        self._ledger = ledger
        self.saved = None if saver is None else saver.saved
        self.seconds = 0.0
        self._began = time.perf_counter()

    def restored(self) -> Any:
        """Set the ledger to what had been counted; returns what else the recipe has saved."""
        with restoring():
            assert self.saved is not None
            self._ledger.restore(self.saved["ledger"])
            self.seconds = float(self.saved["seconds"])
            return self.saved["more"]

    def inner(self, more: Any) -> Saver | None:
        """Return the saver for the loop, ``more`` being what the recipe wants to have again."""
        if self._saver is None:
            return None

        def wrap(loop: State) -> State:
            return {
                "more": more,
                "seconds": self.seconds + time.perf_counter() - self._began,
                "ledger": self._ledger.state(),
                "loop": loop,
            }

        return self._saver.inner(wrap, None if self.saved is None else self.saved["loop"])


class Restarts:
    """Restarts of a recipe, of which the best is kept, and what is saved of them.

    Parameters
    ----------
    saver : Saver or None
        Of the recipe.
    ledger : Ledger
        Where all of them are counted; it is set to what had been counted.
    max_iter : int
        Most iterations of each.

    Attributes
    ----------
    first : int
        The first one that is not over.
    going : dict or None
        What was saved of that one.
    best : dict or None
        What the recipe saved of the best so far.
    iterations : int
        Of those that are over.
    seconds : float
        Wall time of what was done before the run went on.
    """

    def __init__(self, saver: Saver | None, ledger: Ledger, max_iter: int) -> None:
        self._saver = saver
        self._ledger = ledger
        self._max_iter = max_iter
        self._ran_out = False
        self.first = 0
        self.going: State | None = None
        self.best: State | None = None
        self.iterations = 0
        self.seconds = 0.0
        self._began = time.perf_counter()
        saved = None if saver is None else saver.saved
        if saved is None:
            return
        with restoring():
            ledger.restore(saved["ledger"])
            self.first, self.iterations = int(saved["restart"]), int(saved["iterations"])
            self.going, self.best = saved["going"], saved["best"]
            self.seconds = float(saved["seconds"])
            self._ran_out, before = bool(saved["ran_out"]), int(saved["max_iter"])
        if self._ran_out and before != max_iter:
            raise InputError(
                f"a restart that is over ran out of its {before} iterations, so that ",
                Setting("max_iter"),
                f" cannot be {max_iter} for those to come; leave it as it was",
            )

    def drawn(self, key: str = "rows") -> Any:
        """Return what the recipe saved of the restart that goes on, None where none does."""
        if self.going is None:
            return None
        with restoring():
            return self.going["more"][key]

    def loop(self) -> State:
        """Return what the loop of the restart that goes on has saved."""
        with restoring():
            return dict(self.going["loop"])  # type: ignore[index]

    def saver(
        self, restart: int, rng: np.random.Generator, more: Callable[[], State]
    ) -> Saver | None:
        """Return the saver for the loop of a restart.

        Parameters
        ----------
        restart : int
            Which.
        rng : Generator
            The stream that rows are drawn from; it is set to where it had been.
        more : callable
            What the recipe wants to have again besides.
        """
        if self._saver is None:
            return None
        going, self.going = self.going, None
        if going is not None:
            with restoring():
                set_stream(rng, going["stream"])

        def wrap(loop: State) -> State:
            return {
                "restart": restart,
                "iterations": self.iterations,
                "best": self.best,
                "ran_out": self._ran_out,
                "max_iter": self._max_iter,
                "seconds": self.seconds + time.perf_counter() - self._began,
                "ledger": self._ledger.state(),
                "going": {"stream": stream_state(rng), "more": more(), "loop": loop},
            }

        return self._saver.inner(wrap, None if going is None else going["loop"])

    def over(self, iterations: int, converged: bool, best: Callable[[], State] | None) -> None:
        """Note that a restart is over, and what to save of it if it is the best so far."""
        self.iterations += iterations
        self._ran_out = self._ran_out or not converged
        if self._saver is not None and best is not None:
            self.best = best()
