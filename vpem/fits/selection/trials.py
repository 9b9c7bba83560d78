"""What is fitted to choose a model: cells of a grid, and the trials that judge each.

A cell is a number of components, a number of hops and a covariance type. It is judged on all rows
by its restarts, or by folds: parts of the rows that a fit to the others has not seen. A restart or
a fold is a trial; trials do not depend on each other, so that they can be done in any order.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, check_int
from vpem.errors import InputError, NotConvergedWarning, VpemError, VpemWarning
from vpem.fits.results import Fit
from vpem.fits.rows import fit_em
from vpem.fits.selection.criteria import entropy
from vpem.fits.vpem import fit_vpem
from vpem.network.holdings import Workers
from vpem.network.schema import COUNT, NUMBER, TEXT, Choice, Integer, ListOf, Number, Report, Schema
from vpem.sums.connect import Network
from vpem.terms.mixture import Mixture

__all__ = ["Cell", "Problem", "Trial", "folds_of", "name_hops", "result_schema"]

ORDER_OF_FOLDS = 2
"""Sets the stream that deals rows out to folds apart from those of starts and batches."""

Outcome = Report
"""What is kept of a trial: plain values."""


FITTED: dict[str, Schema] = {
    "status": Choice(("converged", "not converged")),
    **dict.fromkeys(("n_parameters", "n_iter", "recoveries", "given_up"), COUNT),
}
RESULTS: dict[str, dict[str, Schema]] = {
    "failed": {"status": Choice(("failed",)), "reason": TEXT, "refused": Choice((False,))},
    "restart": FITTED
    | dict.fromkeys(("first_root", "log_likelihood", "entropy", "bic", "aic", "icl"), NUMBER),
    "fold": FITTED
    | dict.fromkeys(("held_out_total", "held_out", "log_likelihood"), NUMBER)
    | {"n_held_out": Integer(1)},
}
"""What there is in the result of a trial that is kept, besides how long it took."""


def result_schema(key: str, result: Outcome) -> Schema:
    """Say what the result of the trial of this key is, given the ``status`` it has."""
    kind = "fold" if "/fold " in key else "restart"
    own = RESULTS["failed" if str(result.get("status")) == "failed" else kind]
    return {**own, "seconds": Number(0), "warnings": ListOf(TEXT)}


@dataclass(frozen=True)
class Cell:
    """One model of the grid.

    Attributes
    ----------
    n_components : int
        Number of components, K.
    hops : int
        How far raw features may travel.
    covariance_type : str
        One of `vpem.settings.COVARIANCE_TYPES`.
    stands_for : tuple of int
        All numbers of hops of which this is the model, ``hops`` the smallest; () if it alone is.
    """

    n_components: int
    hops: int
    covariance_type: str
    stands_for: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        hops = name_hops(self.stands_for or (self.hops,))
        return f"K = {self.n_components}, {hops}, {self.covariance_type}"


def name_hops(numbers: Sequence[int]) -> str:
    """Write "1 hop", "0 or 1 hops"."""
    *first, last = map(str, numbers)
    before = f"{', '.join(first)} or " if first else ""
    return f"{before}{last} hop{'' if list(numbers) == [1] else 's'}"


@dataclass(frozen=True)
class Trial:
    """One fit that judges a cell.

    Attributes
    ----------
    cell : Cell
        Which.
    number : int
        Of the restart or the fold, from 0.
    n_folds : int
        How many folds there are; 0 for a restart on all rows.
    n_init : int
        Restarts of the fit of a fold.
    """

    cell: Cell
    number: int
    n_folds: int = 0
    n_init: int = 1

    @property
    def key(self) -> str:
        """Name of the trial among all of one problem."""
        cell = self.cell
        name = f"{cell.n_components}/{cell.hops}/{cell.covariance_type}"
        if self.n_folds:
            return f"{name}/fold {self.number} of {self.n_folds}, {self.n_init} starts"
        return f"{name}/restart {self.number}"

    def __str__(self) -> str:
        if self.n_folds:
            return f"{self.cell}, fold {self.number + 1} of {self.n_folds}"
        return f"{self.cell}, restart {self.number}"


def folds_of(n_samples: int, n_folds: int, seed: int) -> list[NDArray[np.intp]]:
    """Deal rows out to folds at random, as evenly as possible.

    Parameters
    ----------
    n_samples : int
        Number of rows, M.
    n_folds : int
        From 2 to M.
    seed : int
        Settles who comes where.

    Returns
    -------
    list of ndarray
        Rows of each fold, ascending; every row is in one.

    Raises
    ------
    InputError
        If there are fewer rows than folds.
    """
    check_int("n_folds", n_folds, least=2)
    if n_samples < n_folds:
        raise InputError(f"{n_folds} folds need at least as many rows, got {n_samples}")
    rng = np.random.default_rng([seed, 0, ORDER_OF_FOLDS])
    return [np.sort(part) for part in np.array_split(rng.permutation(n_samples), n_folds)]


@dataclass
class Problem:
    """Data and all options of a fit but those that are chosen.

    Attributes
    ----------
    X : ndarray of shape (M, d)
        The data.
    networks : dict of int to Network
        By number of hops.
    workers : Workers or None
        Who holds which rows; None where data are split by features.
    options : dict
        Of `vpem.fit_vpem`, or with ``workers`` of `vpem.fit_em`, but n_components,
        covariance_type, n_init, first_restart, n_threads, callback and saver.
    asked : dict
        How the networks were asked for: what tells a search from others besides.
    """

    X: Floats
    networks: dict[int, Network]
    workers: Workers | None
    options: Report
    asked: Report = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Seed of the starts, and of the folds."""
        return int(self.options.get("seed", 0))

    @property
    def missing(self) -> str:
        """What is done where values are missing."""
        return str(self.options.get("missing", "refuse"))

    def fit(self, cell: Cell, rows: NDArray[np.intp] | None = None, **more: Any) -> Fit:
        """Fit a cell to all rows, or to some."""
        given = {
            **self.options,
            "n_components": cell.n_components,
            "covariance_type": cell.covariance_type,
            **more,
        }
        X = self.X if rows is None else self.X[rows]
        network = self.networks[cell.hops]
        if self.workers is None:
            return fit_vpem(X, network, **given)
        return fit_em(X, self.workers if rows is None else self.workers.of_rows(rows), network,
                      **given)  # fmt: skip

    def run(self, trial: Trial) -> Outcome:
        """Do a trial on one thread; what cannot be fitted is a result too.

        Returns
        -------
        dict
            ``status`` is "converged", "not converged" or "failed"; where it is failed ``reason``
            says why. See `_on_all_rows` and `_on_a_fold` for what else there is.
        """
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", VpemWarning)
            try:
                found = self._on_a_fold(trial) if trial.n_folds else self._on_all_rows(trial)
            except VpemError as error:
                found = {
                    "status": "failed",
                    "reason": str(error),
                    # Found before any work: not worth keeping.
                    "refused": isinstance(error, InputError),
                }
            except MemoryError as error:
                reason = f"not enough memory ({error}); try fewer jobs"
                found = {"status": "failed", "reason": reason, "refused": False, "lost": True}
        found["seconds"] = time.perf_counter() - began
        found["warnings"] = [
            str(one.message)
            for one in heard
            if issubclass(one.category, VpemWarning)
            and not issubclass(one.category, NotConvergedWarning)
        ]
        return found

    def _on_all_rows(self, trial: Trial) -> Outcome:
        """Fit to all rows from one restart, and judge the model on them."""
        fit = self.fit(trial.cell, n_init=1, first_restart=trial.number, n_threads=1)
        mixture = fit.mixture
        total, used = score(mixture, self.X, self.missing)
        doubt = entropy(mixture, self.X, self.missing)
        bic = mixture.bic(total, used)
        return self._checked(
            {
                **_of_fit(fit),
                "first_root": float(fit.root_log_likelihood[0]),
                "log_likelihood": total / used,
                "entropy": doubt,
                "bic": bic,
                "aic": mixture.aic(total),
                "icl": bic + 2 * doubt,
            },
            "bic",
        )

    def _on_a_fold(self, trial: Trial) -> Outcome:
        """Fit to all rows but those of a fold, and judge the model on these."""
        M = len(self.X)
        held = folds_of(M, trial.n_folds, self.seed)[trial.number]
        others = np.setdiff1d(np.arange(M), held)
        fit = self.fit(trial.cell, others, n_init=trial.n_init, n_threads=1)
        total, used = score(fit.mixture, self.X[held], self.missing)
        return self._checked(
            {
                **_of_fit(fit),
                "held_out_total": total,
                "n_held_out": used,
                "held_out": total / used if used else float("nan"),
                "log_likelihood": fit.log_likelihood,
            },
            "held_out",
        )

    @staticmethod
    def _checked(found: Outcome, name: str) -> Outcome:
        """Return a result whose numbers are finite, or say that they are not."""
        if np.isfinite(found[name]):
            return found
        what = "log-likelihood of the held-out rows" if name == "held_out" else "log-likelihood"
        return {"status": "failed", "reason": f"the {what} is not finite", "refused": False}


def score(mixture: Mixture, X: Floats, missing: str) -> tuple[float, int]:
    """Return the total log-likelihood of rows, and how many of them have a value, as `vpem score`.

    Parameters
    ----------
    mixture : Mixture
        The model as it is saved: mixing weights are the mean over roots.
    X : ndarray of shape (M, d)
        The rows.
    missing : str
        What is done where values are missing.
    """
    used = len(X) if missing == "refuse" else int((~np.isnan(X)).any(axis=1).sum())
    return float(mixture.score_samples(X, missing=missing).sum()), used


def _of_fit(fit: Fit) -> Outcome:
    """What is kept of any fit."""
    return {
        "status": "converged" if fit.converged else "not converged",
        "n_parameters": fit.mixture.n_parameters,
        "n_iter": fit.n_iter,
        "recoveries": len(fit.recoveries),
        "given_up": len({one.component for one in fit.recoveries if one.row is None}),
    }
