"""The search for the best model of a grid: trials in processes, their record, and the choice.

Models are judged by BIC, AIC, ICL, or the likelihood of rows that a fit has not seen. Trials run in
processes of their own, one thread each; a file is written again after each.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpem
from vpem.checks import check_int
from vpem.engines.engine import Engine
from vpem.errors import FileError, InputError, Setting, check_choice
from vpem.files.checkpoints import (
    ENDINGS,
    checksum,
    describe_run,
    handling,
    hold,
    is_default,
    own_files,
    read_state,
    write_state,
)
from vpem.files.hdf5 import check_writable
from vpem.files.opening import PathLike
from vpem.files.temporaries import check_ending
from vpem.fits.selection.trials import (
    OF_ALL_ROWS,
    OF_DATA,
    RESULTS,
    Cell,
    Outcome,
    Problem,
    Trial,
    folds_of,
)
from vpem.network.schema import PLAIN, Choice, Place, Report, Schema, TableOf, check
from vpem.settings import CRITERIA, FitSettings, SumSettings
from vpem.steps.cells import LEAST_OF_CELL
from vpem.terms.families.kinds import Kinds


def over_folds(totals: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """Held-out log-likelihood per sample, over all rows, and its standard error.

    The error is the standard deviation of the folds' means (divisor F - 1) over the root of their
    number F. ``counts`` are the rows of each fold, or what they weigh.
    """
    means = np.divide(totals, counts)
    return float(np.sum(totals) / np.sum(counts)), float(means.std(ddof=1) / np.sqrt(len(means)))


def compare_folds(folds: Sequence[float], best: Sequence[float]) -> tuple[float, float]:
    """How much better the best model is on the same folds, and the standard error of that.

    Both are of the differences of log-likelihoods per sample, fold by fold (divisor F - 1, over the
    root of their number F): what all models find hard in a fold cancels. The mean is not positive
    where the best is better.
    """
    apart = np.subtract(folds, best)
    return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(apart)))


@dataclass(frozen=True)
class Chosen:
    """Which of several models is best.

    ``best`` is that of those that converged without degenerate components; else of those that did
    not converge but have none; else of all that did not fail. With held-out likelihood
    ``one_standard_error`` is, of those that are at most one standard error of the best worse than
    it, the one with fewest parameters. Those ``passed_over`` look better than the best but did not
    converge, or have degenerate components, the best of them first.
    """

    best: int
    one_standard_error: int | None
    passed_over: list[int]


def choose(cells: Sequence[Report], criterion: str, floor_fits: str = "last") -> Chosen:
    """Choose the best of the cells of a grid by one of `vpem.settings.CRITERIA`.

    Higher is better of "heldout", which needs ``standard_error``, lower of all others. Of
    equals the one with fewer parameters is better, then the first. Cells with degenerate components
    are chosen only where all have some, unless ``floor_fits`` is "keep".
    """
    sign = -1.0 if criterion == "heldout" else 1.0

    def badness(number: int) -> tuple[float, int, int]:
        cell = cells[number]
        return sign * cell[criterion], cell["n_parameters"], number

    done = [number for number, cell in enumerate(cells) if cell["status"] != "failed"]
    if not done:
        reason = cells[0]["reason"] if cells else "it is empty"
        raise InputError(f"no model of the grid could be fitted; the first: {reason}")
    proper = [n for n in done if floor_fits == "keep" or not cells[n]["degenerate"]] or done
    sure = [number for number in proper if cells[number]["status"] == "converged"] or proper
    best = min(sure, key=badness)
    others = [number for number in done if number not in sure]
    passed = sorted((n for n in others if badness(n)[0] < badness(best)[0]), key=badness)
    one = None
    if criterion == "heldout":
        least = cells[best]["heldout"] - cells[best]["standard_error"]
        near = [number for number in sure if cells[number]["heldout"] >= least]
        one = min(near, key=lambda number: (cells[number]["n_parameters"], badness(number)))
    return Chosen(best, one, passed)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let kernels and BLAS take one thread, whatever the environment says."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        from vpem._core.threads import one_blas_thread

        with one_blas_thread():
            yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


def run_trials(
    problem: Problem, trials: Sequence[Trial], n_jobs: int | None
) -> Iterator[tuple[Trial, Outcome]]:
    """Do trials, begun in this order, and yield each with its result as soon as it is there.

    There are ``n_jobs`` processes of one thread each, which have a copy of the problem and, on
    Linux, the same data in their memory. With 1 it is done in this one; None: in this one, with as
    many threads as the problem's options say. The results (`Problem.run`) are the same. Of a trial
    whose process was killed ``status`` is "failed" and ``lost`` is True.

    Processes are started afresh, not forked: a script that calls this with several jobs guards its
    main part by ``if __name__ == "__main__"``. They end when this process does, however it ends.
    """
    n_jobs = n_jobs and min(n_jobs, len(trials))
    if n_jobs is None or n_jobs <= 1:
        with nullcontext() if n_jobs is None else one_thread():
            for trial in trials:
                yield trial, problem.run(trial)
        return
    problem = problem.mapped()
    waiting = list(reversed(trials))
    busy: dict[Any, tuple[_Process, Trial]] = {}
    with one_thread():
        try:
            while waiting or busy:
                while waiting and len(busy) < n_jobs:
                    process = _Process(problem)
                    busy[process.answers] = process, waiting.pop()
                    process.ask(busy[process.answers][1])
                for answers in wait(list(busy)):
                    process, trial = busy[answers]
                    result = process.answer()
                    if result is None or not waiting:
                        process.end()
                        del busy[answers]
                    else:
                        busy[answers] = process, waiting.pop()
                        process.ask(busy[answers][1])
                    yield trial, process.lost() if result is None else result
        finally:
            for process, _ in busy.values():
                process.end()


class _Process:
    """A process that does one trial after another."""

    def __init__(self, problem: Problem) -> None:
        context = multiprocessing.get_context("spawn")
        self.answers, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, problem), daemon=True)
        # Ctrl-C is for the first process; the others ignore it from the start. Signals wait until
        # the problem has been sent whole. The tracker's own start would let them through.
        try:
            with waiting(), _masked():
                try:
                    self._process.start()
                finally:
                    theirs.close()
        except BaseException:
            if self._process.pid is not None:
                self.end()
            raise

    def ask(self, trial: Trial) -> None:
        # One that has ended is found out about when its answer is read.
        with suppress(OSError):
            self.answers.send(trial)

    def answer(self) -> Outcome | None:
        """Return its result, or None where the process has ended."""
        try:
            result = self.answers.recv()
        except (EOFError, OSError):
            self._process.join(timeout=1.0)  # to know how it ended
            return None
        if isinstance(result, str):
            raise RuntimeError(result)
        return dict(result)

    def lost(self) -> Outcome:
        code = self._process.exitcode
        ending = f"with code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                ending = f"by {signal.Signals(-code).name}"
        reason = f"its process was ended {ending}, perhaps for want of memory; try fewer jobs"
        return {"status": "failed", "reason": reason, "lost": True, "refused": False,
                "seconds": 0.0, "warnings": []}  # fmt: skip

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.answers.close()


@contextmanager
def waiting() -> Iterator[None]:
    """Let signals that would end this process do so once the block is over.

    A mask applies to one thread: another, of BLAS say, may take the signal all the same.
    """
    noted: list[int] = []
    with handling(lambda number, _: noted.append(number)):
        yield
    for number in noted[:1]:
        signal.raise_signal(number)


@contextmanager
def _masked() -> Iterator[None]:
    """Let processes that are started ignore what would end this one."""
    if sys.platform == "win32":  # signals have no masks there
        yield
        return
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(ENDINGS))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(questions: Connection, problem: Problem) -> None:
    """Do trials in a process of its own until there are no more, or its parent has ended."""
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    with one_thread(), suppress(EOFError, OSError):
        while True:
            trial = questions.recv()
            try:
                result: object = problem.run(trial)
            except Exception:
                result = f"while fitting {trial}:\n{traceback.format_exc()}"
            questions.send(result)


KIND = "selection"
ANOTHER = ("give another ", Setting("state"))

STATE = {"kind": Choice((KIND,)), "facts": TableOf(PLAIN), "results": TableOf(TableOf())}
"""What is kept; results are checked once it is known to be of the same search."""


def facts_of(problem: Problem) -> Report:
    """What must be the same when a search goes on: data, agents and options, not the grid."""
    network = problem.networks[min(problem.networks)].whole
    options = {
        name: value
        for name, value in problem.options.items()
        if name not in (*OF_DATA, "n_threads")
    }
    kinds: Kinds | None = problem.options.get("kinds")
    if kinds is not None and not kinds.is_gaussian:
        options |= {"families": list(kinds.families), "levels": list(kinds.n_levels)}
    X = np.empty((problem.n_samples, 0)) if problem.X is None else problem.X
    options["dtype"] = np.dtype(options.get("dtype", np.float64)).name
    facts = {
        "vpem": vpem.__version__,
        **describe_run(KIND, X, problem.sample_weight, None, **options),
        "who is joined in the graph": checksum(
            network.graph.n_nodes, np.asarray(network.graph.edges)
        ),
        **problem.network_options,
    }
    if problem.workers is None:
        # Features of each agent, which do not depend on the hops; in a hub they stand by agent.
        parts: dict[int, NDArray[np.intp]] = {}
        for hub, features in zip(network.hubs, network.blocks.features, strict=True):
            ends = np.cumsum([network.widths[agent] for agent in hub.agents])
            parts.update(zip(hub.agents, np.split(features, ends[:-1]), strict=True))
        facts["who holds which features"] = checksum(*(parts[agent] for agent in sorted(parts)))
    else:
        facts["who holds which rows"] = checksum(problem.workers.order, problem.workers.counts)
    if problem.engine.apart:
        facts["processes"] = problem.engine.size
    return facts


class Record:
    """Results of trials by their keys, in memory and in a file; without a path nothing is kept.

    Each of several processes has a file of its own, as checkpoints have
    (`vpem.files.checkpoints.own_files`), with checksums of its own data, and goes on from what all
    have kept. With ``force`` a file of other data or options (`facts_of`) is begun again; else it
    is refused, as is what is damaged.
    """

    def __init__(
        self, path: PathLike | None, facts: Report, force: bool = False,
        engine: Engine | None = None, kind: str = KIND,
    ) -> None:  # fmt: skip
        engine = engine or Engine()
        self.path: Path | None = None
        self.facts, self.kind, self.written = facts, kind, time.monotonic()
        self.results: dict[str, Outcome] = {}
        if path is not None:
            check_ending(path, "checkpoints")
            self.path = own_files(path, engine)[0]
            hold(self.path, self)
            check_writable(self.path, True)
            if self.path.exists():
                self._read(force)
        common = set(self.results).intersection(*engine.allgather(sorted(self.results)))
        ours = {key: result for key, result in self.results.items() if key in common}
        # Of replicates each process has what its own agents found.
        self.results = engine.bcast(ours) if kind == KIND else ours

    def _read(self, force: bool) -> None:
        path = self.path
        assert path is not None
        state = read_state(path)
        if "kind" not in state:
            raise FileError(f"{path} is no state of a {self.kind}; ", *ANOTHER)
        place = Place(f"the state {path}", advice=ANOTHER)
        check(STATE | {"kind": Choice((self.kind,))}, state, place)
        differs = _difference(state["facts"], self.facts)
        if differs is None:
            for key, result in state["results"].items() if self.kind == KIND else ():
                kind = "fold" if "/fold " in key else "restart"
                if "icl" in result and "sabic" not in result:
                    _complete(result, int(key.split("/")[0]))
                schema = RESULTS["failed" if str(result.get("status")) == "failed" else kind]
                check(schema, result, place.inside("results", key))
            self.results = state["results"]
        elif not force:
            raise InputError(
                f"the state {str(path)!r} belongs to another {self.kind}: {differs}; give what it "
                "began with or another ", Setting("state"), ", or start over with ",
                Setting("force", True),
            )  # fmt: skip

    def add(self, key: str, result: Outcome, soon: bool = False) -> None:
        """Keep a result, at once or as soon as a second has passed since the last."""
        self.results[key] = result
        if not soon or time.monotonic() - self.written > 1.0:
            self.write()

    def write(self) -> None:
        self.written = time.monotonic()
        if self.path is not None:
            kept = {"kind": self.kind, "facts": self.facts, "results": self.results}
            write_state(self.path, kept)

    def of(self, keys: Sequence[str], schemas: dict[str, dict[str, Schema]]) -> dict[str, Outcome]:
        """Return those of these results that there are, once they have been checked."""
        known = {key: self.results[key] for key in keys if key in self.results}
        for key, result in known.items():
            schema = schemas["failed" if str(result.get("status")) == "failed" else "restart"]
            check(schema, result, Place(f"the state {self.path}", advice=ANOTHER).inside(key))
        return known

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write what is not yet written at the end of the block, however that comes."""
        try:
            yield
        finally:
            with waiting():
                self.write()


def _complete(result: Outcome, n_components: int) -> None:
    """Add the criteria that states did not have once; which rows had which class is lost."""
    bic, aic, p = result["bic"], result["aic"], result["n_parameters"]
    n_samples = float(np.exp((bic - aic) / p + 2))
    most = n_samples * np.log(n_components)
    result |= {
        "sabic": aic + p * (float(np.log((n_samples + 2) / 24)) - 2),
        "caic": bic + p,
        "relative_entropy": float(1 - result["entropy"] / most) if most > 0 else 1.0,
        "average_posteriors": None,
    }


def _difference(then: Report, now: Report) -> str | None:
    """Say what is not the same any more; None where everything is."""
    then = {name: fact for name, fact in then.items() if name != "stopping"}  # once of vpem 0.1.0
    if "skip_negligible" in then:  # as vpem 0.1.0 once called the opposite
        then = {"every_weight": not then.pop("skip_negligible")} | then
    for name in dict.fromkeys([*now, *then]):
        one, other = then.get(name), now.get(name)
        if one == other or (name not in then and is_default(name, other)):
            continue
        if any(isinstance(value, str) and value.startswith("sum ") for value in (one, other)):
            return f"{name} is not the same"
        return f"{name} was {one!r}, now it is {other!r}"
    return None


DIAGONAL = ("diag", "tied-diag")
"""Covariance types whose models do not depend on the hubs."""


@dataclass
class Selection:
    criterion: str  # by which models were judged
    grid: list[Cell]  # what was fitted
    cells: list[Report]  # what each cell came to; see `summary`
    choice: Chosen  # which is best

    def describe(self, chosen: int | None = None) -> Report:
        """Describe it in JSON, with the number of the model ``chosen``, by default the best."""
        return {
            "criterion": self.criterion,
            "better": "higher" if self.criterion == "heldout" else "lower",
            **vars(self.choice),
            "chosen": self.choice.best if chosen is None else chosen,
            "cells": self.cells,
        }


NO_LESS = 1e-6
"""In nats per sample, by which a fit may miss that of fewer components."""


def grid(
    components: Sequence[int], hops: Sequence[int], covariance_types: Sequence[str]
) -> list[Cell]:
    """Return all cells of a grid, those of few components first."""
    return [Cell(k, h, c) for k in components for h in hops for c in covariance_types]


def without_repeats(cells: Sequence[Cell], problem: Problem) -> list[Cell]:
    """Return the cells of a grid without those that are others' models.

    Hops that give the same hubs give the same models, of which one is fitted: that in which the
    fewest features travel. Where sums are as good as exact, so that hubs do not differ by errors,
    it is enough that hubs have the same agents, whichever is the root; and a covariance that is
    diagonal inside every hub is diagonal, whatever the hubs.
    """
    errors = [network.consensus_error for network in problem.networks.values()]
    exact = all(error is not None and error <= SumSettings.consensus_tol for error in errors)

    def model_of(cell: Cell) -> Hashable:
        hubs = problem.networks[cell.hops if problem.workers is None else 0].whole.hubs
        blocks: Hashable = tuple(hubs)
        if exact:
            diagonal = cell.covariance_type in DIAGONAL
            blocks = None if diagonal else frozenset(hub.agents for hub in hubs)
        return cell.n_components, cell.covariance_type, blocks

    alike: dict[Hashable, set[int]] = {}
    for cell in cells:
        alike.setdefault(model_of(cell), set()).add(cell.hops)
    unique = []
    for cell in cells:
        hops = tuple(sorted(alike[model_of(cell)]))
        if cell.hops == hops[0]:
            unique.append(replace(cell, stands_for=hops if len(hops) > 1 else ()))
    return unique


def trials_of(
    cell: Cell, criterion: str, n_init: int, n_folds: int, together: bool = False
) -> list[Trial]:
    """Return the trials that judge a cell: its folds, or its restarts, which one fit may do."""
    if criterion == "heldout":
        return [Trial(cell, number, n_folds, n_init) for number in range(n_folds)]
    if together:
        return [Trial(cell, 0, n_init=n_init)]
    return [Trial(cell, number) for number in range(n_init)]


def search(
    problem: Problem,
    cells: Sequence[Cell],
    *,
    criterion: str = "bic",
    n_init: int = 1,
    n_folds: int = 5,
    n_jobs: int | None = 1,
    record: Record | None = None,
    tell: Callable[[Trial, Outcome], None] | None = None,
) -> Selection:
    """Fit every cell of a grid, and find the best.

    With "heldout" cells are judged by the log-likelihood of the rows of each of ``n_folds`` folds
    under a fit to the others. ``n_jobs`` processes have one thread each, and do not change the
    results; None: in this one, with all restarts of a cell in one fit, which `Problem.keep` is
    shown. Where agents live in several processes all of them do one trial after another together.
    ``record`` has what was done before, and keeps what is done: signals wait for it. ``tell`` is
    called with every trial that is over.
    """
    check_choice("criterion", criterion, CRITERIA)
    check_int("n_init", n_init, least=1)
    if criterion == "heldout":
        *_, fewest = folds_of(problem.n_samples, n_folds, problem.seed)
        if problem.workers is not None and problem.masked and len(fewest) < LEAST_OF_CELL:
            raise InputError(
                Setting("n_folds", n_folds),
                f" has folds of {len(fewest)} rows, which sums over all other rows reveal; with ",
                Setting("secure_sum"), f" take folds of at least {LEAST_OF_CELL}",
            )  # fmt: skip
    # Data or options by which no cell could be fitted, and warnings of every fit.
    options = {name: one for name, one in problem.options.items() if name not in OF_DATA}
    settings = FitSettings(**options, n_init=n_init)
    problem.held(min(problem.networks)).check(settings.changed(n_components=1))
    if n_jobs is not None:
        n_jobs = 1 if problem.engine.apart else check_int("n_jobs", n_jobs, least=1)
    together = n_jobs is None
    trials_by_cell = {cell: trials_of(cell, criterion, n_init, n_folds, together) for cell in cells}
    done: dict[str, Outcome] = {} if record is None else dict(record.results)
    to_do = [one for trials in trials_by_cell.values() for one in trials if one.key not in done]
    for trial, result in run_trials(problem, to_do, n_jobs):
        done[trial.key] = result
        # What was refused before any work, or lost with its process, is tried again.
        if record is not None and not (result.get("refused") or result.get("lost")):
            with waiting():
                record.add(trial.key, result)
        if tell is not None:
            tell(trial, result)
    judged = [
        summary(cell, problem, [done[trial.key] for trial in trials])
        for cell, trials in trials_by_cell.items()
    ]
    # Cells of which one of fewer components is likelier, as none is that ends at its best.
    proper = [one for one in judged if "log_likelihood" in one and not one["degenerate"]]
    for report in proper:
        likelier = [
            one["n_components"] for one in proper
            if (one["hops"], one["covariance_type"]) == (report["hops"], report["covariance_type"])
            and one["n_components"] < report["n_components"]
            and one["log_likelihood"] > report["log_likelihood"] + NO_LESS
        ]  # fmt: skip
        if likelier:
            report["below"] = max(likelier)
    choice = choose(judged, criterion, problem.floor_fits)
    for report in judged:
        if "folds" in report:
            apart = compare_folds(report["folds"], judged[choice.best]["folds"])
            report["difference"], report["difference_error"] = apart
    return Selection(criterion, list(trials_by_cell), judged, choice)


def summary(cell: Cell, problem: Problem, results: Sequence[Outcome]) -> Report:
    """Say what a cell came to, by the results of its trials.

    Of restarts the one that `vpem.fit_vpem` keeps decides: the best log-likelihood at the first
    root, of those without degenerate components if there are any. A cell fails if any of its trials
    does, and has not converged if the restart that is kept, or any fold, has not.
    """
    facts: Report = {
        "n_components": cell.n_components,
        "hops": cell.hops,
        "stands_for_hops": list(cell.stands_for or (cell.hops,)),
        "covariance_type": cell.covariance_type,
        "n_hubs": len(problem.networks[cell.hops].hubs) if problem.workers is None else 1,
        "seconds": float(sum(one["seconds"] for one in results)),
        "warnings": list(dict.fromkeys(text for one in results for text in one["warnings"])),
    }
    for number, one in enumerate(results):
        if one["status"] == "failed":
            which = "" if len(results) == 1 else f"trial {number + 1} of {len(results)}: "
            return {"status": "failed", **facts, "reason": which + one["reason"]}
    sent = {name: sum(one[name] for one in results) for name in ("messages", "bytes")}
    if "held_out" in results[0]:
        heldout, error = over_folds(
            [one["held_out_total"] for one in results], [one["n_held_out"] for one in results]
        )
        went_on = [one["status"] != "converged" for one in results]
        return {
            "status": "not converged" if any(went_on) else "converged",
            **facts,
            "n_parameters": results[0]["n_parameters"],
            "n_iter": sum(one["n_iter"] for one in results),
            "recoveries": sum(one["recoveries"] for one in results),
            "given_up": max(one["given_up"] for one in results),
            "degenerate": max(one["degenerate"] for one in results),
            **sent,
            "heldout": heldout,
            "standard_error": error,
            "train_log_likelihood": float(np.mean([one["log_likelihood"] for one in results])),
            "folds": [one["held_out"] for one in results],
        }

    # As a fit does: the first of equals.
    keep = problem.floor_fits == "keep"
    ranks = [(keep or not one["degenerate"], one["first_root"]) for one in results]
    best = max(range(len(results)), key=ranks.__getitem__)
    names = ("n_parameters", "n_iter", "recoveries", "given_up", "degenerate", "log_likelihood",
             "entropy", *OF_ALL_ROWS, "average_posteriors")  # fmt: skip
    shown = ("status", "n_iter", "degenerate", "log_likelihood", *OF_ALL_ROWS)
    return {
        "status": results[best]["status"],
        **facts,
        **{name: results[best][name] for name in names},
        **sent,
        "restart": best,
        "restarts": [{name: one[name] for name in shown} for one in results],
    }
