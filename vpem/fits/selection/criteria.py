"""What models are judged by: BIC, AIC, ICL, and the likelihood of rows that a fit has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vpem.errors import InputError
from vpem.network.schema import Report


def higher_is_better(criterion: str) -> bool:
    """Whether a larger value of a criterion is a better one."""
    return criterion == "heldout"


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

    Attributes
    ----------
    best : int
        The best of those that converged without degenerate components; else of those that did not
        converge but have none; else of all that did not fail.
    one_standard_error : int or None
        With held-out likelihood: of those that are at most one standard error of the best worse
        than it, the one with fewest parameters.
    passed_over : list of int
        Those that look better than the best but did not converge, or have degenerate components,
        the best of them first.
    """

    best: int
    one_standard_error: int | None
    passed_over: list[int]


def choose(cells: Sequence[Report], criterion: str, floor_fits: str = "last") -> Chosen:
    """Choose the best of the cells of a grid by one of `vpem.settings.CRITERIA`.

    Lower is better of the first three, higher of the last, which needs ``standard_error``. Of
    equals the one with fewer parameters is better, then the first. Cells with degenerate components
    are chosen only where all have some, unless ``floor_fits`` is "keep".
    """
    sign = -1.0 if higher_is_better(criterion) else 1.0

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
