"""What a run of EM is saved as, and how it is put together again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from vpem.errors import InputError, Setting
from vpem.network.blocks import Blocks
from vpem.schema import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Array,
    Choice,
    Integer,
    ListOf,
    Mapping,
    Maybe,
    Number,
    State,
    check,
)
from vpem.steps.saver import STREAM, PartSaver, Saver, set_stream, stream_state
from vpem.terms.mixture import Mixture, covariance_shape
from vpem.terms.mixture_states import mixture_schema, mixture_state
from vpem.terms.scaling import Scaling

if TYPE_CHECKING:
    from vpem.network.ledger import Ledger
    from vpem.schema import Fields, Schema

__all__ = [
    "OneRun",
    "Restarts",
    "check_length",
    "mixture_of",
    "mixture_restarts",
    "record_schema",
    "record_state",
    "restore_record",
    "restore_run",
    "run_state",
]


def mixture_of(state: State, blocks: Blocks, covariance_type: str, scaling: Scaling) -> Mixture:
    """Return the mixture of saved parameters."""
    return Mixture(blocks, covariance_type, **state, scaling=scaling)


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


def record_schema(n_components: int, n_samples: int, n_roots: int, *, over: bool) -> Schema:
    """Say what the record of a run is saved as, which is over or goes on."""
    return {
        "history": ListOf(Array("f8", (n_roots,), nan=True), "L", least=int(over)),
        "log_likelihood": Array("f8", (n_roots if over else 0,)),
        "bytes_sent": ListOf(COUNT, "L"),
        "partitions": ListOf((COUNT, TEXT)),
        "converged": FLAG,
        "recoveries": ListOf(
            (
                COUNT,
                Integer(most=n_components - 1),
                COUNT,
                Choice(("weight", "covariance")),
                Maybe(Integer(most=n_samples - 1)),
            )
        ),
        "free_energy": ListOf(NUMBER),
        "n_passes": Number(0),
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


def restore_run(
    saver: Saver, run: Any, total: Any, repairs: Any, max_iter: int, **more: Schema
) -> int:
    """Put all but the parameters together again; returns how many iterations there were.

    Parameters
    ----------
    saver : Saver
        What it has saved is checked before anything is used.
    run, total, repairs : object
        As for `run_state`.
    max_iter : int
        Most iterations.
    **more : schema
        What else the loop has saved.
    """
    state, start, terms = saver.saved, run.mixture, repairs.terms
    assert state is not None
    k, given = start.n_components, (start.blocks, start.covariance_type, start.n_components)
    component = Integer(most=k - 1)
    schema = {
        "iteration": COUNT,
        "mixture": mixture_schema(*given, total.n_roots),
        "record": record_schema(k, terms.n_samples, total.n_roots_of_all, over=False),
        "sum": total.schema(),
        "collapsed": [ListOf(component, "C"), ListOf(Integer(1), "C")],
        "given_up": [ListOf(component, "G"), ListOf(Array("f8", (start.n_features,)), "G")],
    }
    check(schema | more, state, saver.place)
    restore_record(run, state["record"])
    done, counted = state["iteration"], len(run.history)
    # Of batches an iteration is a pass, and the network may fall apart in any batch.
    counted += 0 if hasattr(run, "n_passes") else len(run.partitions)
    if done != counted or (run.converged and not run.history):
        wanted = f"{counted}, as many as there are in the record"
        saver.place.inside("iteration").refuse(wanted, str(done))
    total.restore(state["sum"])
    repairs.counts.update(zip(*state["collapsed"], strict=True))
    repairs.given_up.update(zip(*state["given_up"], strict=True))
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

    def restored(self, more: Schema) -> Any:
        """Set the ledger to what had been counted; returns what ``more`` the recipe has saved."""
        assert self._saver is not None
        assert self.saved is not None
        schema = {"more": more, "ledger": self._ledger.schema()}
        check(schema | {"seconds": Number(0), "loop": Mapping()}, self.saved, self._saver.place)
        self._ledger.restore(self.saved["ledger"])
        self.seconds = self.saved["seconds"]
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

        saved = None if self.saved is None else self.saved["loop"]
        return PartSaver(self._saver, wrap, saved, "loop")


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
    numbers : range
        Which there are.
    rows : schema
        Rows that a restart begins at, which all recipes save.
    best : dict of schemas
        What the recipe saves of the best so far, but for its rows and number.
    more : dict of schemas, optional
        What it saves besides of the one that goes on.
    start : dict of schemas, optional
        What it wants of its loop (`loop`), which checks the rest.

    Attributes
    ----------
    numbers : range
        Those that are not over.
    going : dict or None
        What was saved of that one.
    best : dict or None
        What the recipe saved of the best so far.
    iterations : int
        Of those that are over.
    seconds : float
        Wall time of what was done before the run went on.
    """

    def __init__(
        self,
        saver: Saver | None,
        ledger: Ledger,
        max_iter: int,
        numbers: range,
        rows: Schema,
        best: Fields,
        more: Fields | None = None,
        start: Fields | None = None,
    ) -> None:
        self._saver = saver
        self._ledger = ledger
        self._max_iter = max_iter
        self._ran_out = False
        self.numbers = numbers
        self.going: State | None = None
        self.best: State | None = None
        self.iterations = 0
        self.seconds = 0.0
        self._began = time.perf_counter()
        if saver is None or saver.saved is None:
            return
        saved, number = saver.saved, Integer(numbers.start, numbers.stop - 1)
        schema = {
            "restart": number,
            "iterations": COUNT,
            "best": Maybe({**best, "rows": rows, "restart": number}),
            "ran_out": FLAG,
            "max_iter": COUNT,
            "seconds": Number(0),
            "ledger": ledger.schema(),
            "going": {
                "stream": STREAM,
                "more": {"rows": rows, **(more or {})},
                "loop": Mapping(some=start),
            },
        }
        check(schema, saved, saver.place)
        ledger.restore(saved["ledger"])
        self.numbers, self.iterations = range(saved["restart"], numbers.stop), saved["iterations"]
        self.going, self.best, self.seconds = saved["going"], saved["best"], saved["seconds"]
        self._ran_out, before = saved["ran_out"], saved["max_iter"]
        if self._ran_out and before != max_iter:
            raise InputError(
                f"a restart that is over ran out of its {before} iterations, so that ",
                Setting("max_iter"),
                f" cannot be {max_iter} for those to come; leave it as it was",
            )

    def drawn(self, key: str = "rows") -> Any:
        """Return what the recipe saved of the restart that goes on, None where none does."""
        return None if self.going is None else self.going["more"][key]

    def loop(self, name: str) -> Any:
        """Return what the loop of the restart that goes on has saved by a name."""
        assert self.going is not None
        return self.going["loop"][name]

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

        saved = None if going is None else going["loop"]
        return PartSaver(self._saver, wrap, saved, "going", "loop")

    def over(self, iterations: int, converged: bool, best: Callable[[], State] | None) -> None:
        """Note that a restart is over, and what to save of it if it is the best so far."""
        self.iterations += iterations
        self._ran_out = self._ran_out or not converged
        if self._saver is not None and best is not None:
            self.best = best()


def mixture_restarts(
    saver: Saver | None,
    ledger: Ledger,
    max_iter: int,
    numbers: range,
    terms: Any,
    total: Any,
    n_components: int,
    *,
    over_rows: bool = False,
) -> Restarts:
    """Return the restarts of a mixture's recipe.

    Parameters
    ----------
    saver, ledger, max_iter, numbers
        As for `Restarts`.
    terms : FeatureTerms
        What is summed; over rows those of all workers.
    total : Sum
        How.
    n_components : int
        Number of components, K.
    over_rows : bool
        Whether every root has parameters, and a sample covariance, of its own.
    """
    shape = (terms.blocks, terms.covariance_type)
    mixture = mixture_schema(*shape, n_components, 1 if over_rows else total.n_roots)
    found = {"mixtures": ListOf(mixture, total.n_roots)} if over_rows else {"mixture": mixture}
    record = record_schema(n_components, terms.n_samples, total.n_roots_of_all, over=True)
    more = {
        "shifts": Array("f8", (n_components, terms.blocks.n_features)),
        "covariances": ListOf(Array("f8", covariance_shape(*shape, 1)), total.n_roots),
    }
    return Restarts(
        saver,
        ledger,
        max_iter,
        numbers,
        Maybe(Array("i", (n_components,), 0, terms.n_samples - 1)),
        {**found, "record": record},
        more if over_rows else None,
        found,
    )
