"""The search for the best model of a grid: what is done, kept, and found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vpem.checks import check_int
from vpem.errors import InputError, Setting, check_choice
from vpem.fits.selection.criteria import Chosen, choose, compare_folds, over_folds
from vpem.fits.selection.jobs import run_trials
from vpem.fits.selection.record import Record
from vpem.fits.selection.trials import OF_DATA, Cell, Outcome, Problem, Trial, folds_of
from vpem.network.schema import Report
from vpem.settings import CRITERIA, FitSettings, SumSettings
from vpem.steps.cells import LEAST_OF_CELL

DIAGONAL = ("diag", "tied-diag")
"""Covariance types whose models do not depend on the hubs."""


@dataclass
class Selection:
    """What a search has found."""

    criterion: str  # by which models were judged
    grid: list[Cell]  # what was fitted
    cells: list[Report]  # what each cell came to; see `summary`
    choice: Chosen  # which is best


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
    fewest features travel. Where sums are as good as exact, so that errors do not tell hubs apart,
    it is enough that hubs have the same agents, whoever is the root; and a covariance that is
    diagonal inside every hub is diagonal, whatever the hubs.
    """
    errors = [network.consensus_error for network in problem.networks.values()]
    exact = all(error is not None and error <= SumSettings.consensus_tol for error in errors)

    def model_of(cell: Cell) -> Hashable:
        """What cells of the same model have in common."""
        hubs = problem.networks[cell.hops if problem.workers is None else 0].whole.hubs
        blocks: Hashable = tuple(hubs)
        if exact:
            diagonal = cell.covariance_type in DIAGONAL
            blocks = None if diagonal else frozenset(hub.agents for hub in hubs)
        return cell.n_components, cell.covariance_type, blocks

    alike: dict[Hashable, set[int]] = {}
    for cell in cells:
        alike.setdefault(model_of(cell), set()).add(cell.hops)
    found = []
    for cell in cells:
        hops = tuple(sorted(alike[model_of(cell)]))
        if cell.hops == hops[0]:
            found.append(replace(cell, stands_for=hops if len(hops) > 1 else ()))
    return found


def trials_of(
    cell: Cell, criterion: str, n_init: int, n_folds: int, together: bool = False
) -> list[Trial]:
    """Return the trials that judge a cell: its folds, or its restarts, which one fit may do."""
    if criterion == "heldout":
        return [Trial(cell, number, n_folds, n_init) for number in range(n_folds)]
    if together:
        return [Trial(cell, 0, n_init=n_init)]
    return [Trial(cell, number) for number in range(n_init)]


def check_problem(problem: Problem, criterion: str, n_init: int, n_folds: int) -> None:
    """Raise InputError where no cell could be fitted, for its data or options.

    It warns of what is so in every fit, such as constant features.
    """
    check_choice("criterion", criterion, CRITERIA)
    check_int("n_init", n_init, least=1)
    if criterion == "heldout":
        *_, fewest = folds_of(problem.n_samples, n_folds, problem.seed)
        if problem.shows_sums_over_rows and len(fewest) < LEAST_OF_CELL:
            raise InputError(
                Setting("n_folds", n_folds),
                f" has folds of {len(fewest)} rows, and sums over all rows but these show them "
                "beside those over others: beside ", Setting("secure_sum"),
                f" take folds of at least {LEAST_OF_CELL}",
            )  # fmt: skip
    given = {name: one for name, one in problem.options.items() if name not in OF_DATA}
    how = FitSettings(**given, n_init=n_init)
    problem.held(min(problem.networks)).check(how.changed(n_components=1))


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
    whole: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Selection:
    """Fit every cell of a grid, and find the best.

    With "heldout" cells are judged by the log-likelihood of the rows of each of ``n_folds`` folds
    under a fit to the others. ``n_jobs`` processes have one thread each, and do not change the
    results; None: in this one, with all restarts of a cell in one fit, which `Problem.keep` is
    shown. Where agents live in several processes all of them do one trial after another together.
    ``record`` has what was done before, and keeps what is done; ``tell`` is told of every trial
    that is over, and ``whole`` makes a context in which what is kept is written undisturbed.
    """
    check_problem(problem, criterion, n_init, n_folds)
    if n_jobs is not None:
        n_jobs = 1 if problem.engine.apart else check_int("n_jobs", n_jobs, least=1)
    together = n_jobs is None
    wanted = {cell: trials_of(cell, criterion, n_init, n_folds, together) for cell in cells}
    done: dict[str, Outcome] = {} if record is None else dict(record.results)
    to_do = [trial for trials in wanted.values() for trial in trials if trial.key not in done]
    for trial, result in run_trials(problem, to_do, n_jobs):
        with whole():
            done[trial.key] = result
            # What was refused before any work, or lost with its process, is tried again.
            if record is not None and not (result.get("refused") or result.get("lost")):
                record.add(trial.key, result)
            if tell is not None:
                tell(trial, result)
    found = [
        summary(cell, problem, [done[trial.key] for trial in trials])
        for cell, trials in wanted.items()
    ]
    _mark_those_below(found)
    choice = choose(found, criterion, problem.floor_fits)
    for told in found:
        if "folds" in told:
            apart = compare_folds(told["folds"], found[choice.best]["folds"])
            told["difference"], told["difference_error"] = apart
    return Selection(criterion, list(wanted), found, choice)


def _mark_those_below(cells: Sequence[Report]) -> None:
    """Say of cells which one of fewer components is likelier, as none is that ends at its best."""
    judged = [one for one in cells if "log_likelihood" in one and not one["degenerate"]]
    for told in judged:
        likelier = [
            one["n_components"] for one in judged
            if (one["hops"], one["covariance_type"]) == (told["hops"], told["covariance_type"])
            and one["n_components"] < told["n_components"]
            and one["log_likelihood"] > told["log_likelihood"] + NO_LESS
        ]  # fmt: skip
        if likelier:
            told["below"] = max(likelier)


def summary(cell: Cell, problem: Problem, results: Sequence[Outcome]) -> Report:
    """Say what a cell came to, by the results of its trials.

    Of restarts the one that `vpem.fit_vpem` keeps decides: the best log-likelihood at the first
    root, of those without degenerate components if there are any. A cell fails if any of its trials
    does, and has not converged if the restart that is kept, or any fold, has not.
    """
    told: Report = {
        "n_components": cell.n_components,
        "hops": cell.hops,
        "stands_for_hops": list(cell.stands_for or (cell.hops,)),
        "covariance_type": cell.covariance_type,
        "n_hubs": len(problem.networks[cell.hops].hubs) if problem.workers is None else 1,
        "seconds": float(sum(one["seconds"] for one in results)),
        "warnings": list(dict.fromkeys(text for one in results for text in one["warnings"])),
    }
    failed = next(_failed(results), None)
    if failed is not None:
        return {"status": "failed", **told, "reason": failed}
    if "held_out" in results[0]:
        held, error = over_folds(
            [one["held_out_total"] for one in results], [one["n_held_out"] for one in results]
        )
        went_on = [one["status"] != "converged" for one in results]
        return {
            "status": "not converged" if any(went_on) else "converged",
            **told,
            "n_parameters": results[0]["n_parameters"],
            "n_iter": sum(one["n_iter"] for one in results),
            "recoveries": sum(one["recoveries"] for one in results),
            "given_up": max(one["given_up"] for one in results),
            "degenerate": max(one["degenerate"] for one in results),
            **_sent(results),
            "heldout": held,
            "standard_error": error,
            "train_log_likelihood": float(np.mean([one["log_likelihood"] for one in results])),
            "folds": [one["held_out"] for one in results],
        }

    # As a fit does: the first of equals.
    keep = problem.floor_fits == "keep"
    ranks = [(keep or not one["degenerate"], one["first_root"]) for one in results]
    kept = max(range(len(results)), key=ranks.__getitem__)
    names = ("n_parameters", "n_iter", "recoveries", "given_up", "degenerate", "log_likelihood",
             "entropy", "bic", "aic", "icl")  # fmt: skip
    shown = ("status", "n_iter", "degenerate", "log_likelihood", "bic", "aic", "icl")
    return {
        "status": results[kept]["status"],
        **told,
        **{name: results[kept][name] for name in names},
        **_sent(results),
        "restart": kept,
        "restarts": [{name: one[name] for name in shown} for one in results],
    }


def _sent(results: Sequence[Outcome]) -> Report:
    """Count what was sent for all trials of a cell: to fit, and to judge."""
    return {name: sum(one[name] for one in results) for name in ("messages", "bytes")}


def _failed(results: Sequence[Outcome]) -> Iterator[str]:
    """Why trials failed, with which of them, if there are several."""
    for number, one in enumerate(results):
        if one["status"] == "failed":
            which = "" if len(results) == 1 else f"trial {number + 1} of {len(results)}: "
            yield which + one["reason"]
