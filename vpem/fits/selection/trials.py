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

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, check_int
from vpem.engines.engine import Engine
from vpem.errors import (
    InputError,
    NotConvergedWarning,
    NumericalError,
    OwnDataWarning,
    PartitionedError,
    VpemWarning,
)
from vpem.files.matrix import FileMatrix
from vpem.fits.prepare import check_count
from vpem.fits.results import Fit
from vpem.fits.selection.holding import ByFeatures, ByRows, Held
from vpem.fits.settings import as_ranges
from vpem.network.partition import Workers
from vpem.network.schema import COUNT, NUMBER, TEXT, Choice, ListOf, Number, Report, Schema
from vpem.sums.connect import Network

ORDER_OF_FOLDS = 2
"""Sets the stream that deals rows out to folds apart from those of starts and batches."""

OF_DATA = ("feature_names", "kinds")
"""Options of a problem that say what its data are, not how they are fitted."""

Outcome = Report
"""What is kept of a trial: plain values."""


TAKEN: dict[str, Schema] = {"seconds": Number(0), "warnings": ListOf(TEXT)}
FITTED: dict[str, Schema] = {
    "status": Choice(("converged", "not converged")),
    **dict.fromkeys(
        ("n_parameters", "n_iter", "recoveries", "given_up", "degenerate", "messages", "bytes"),
        COUNT,
    ),
}
RESULTS: dict[str, dict[str, Schema]] = {
    "failed": {"status": Choice(("failed",)), "reason": TEXT, "refused": Choice((False,))} | TAKEN,
    "restart": FITTED
    | dict.fromkeys(("first_root", "log_likelihood", "entropy", "bic", "aic", "icl"), NUMBER)
    | TAKEN,
    "fold": FITTED
    | dict.fromkeys(("held_out_total", "held_out", "log_likelihood"), NUMBER)
    | {"n_held_out": Number(0, whole=True)}
    | TAKEN,
}
"""What there is in the result of a trial that is kept, by its kind or that it failed."""


@dataclass(frozen=True)
class Cell:
    """One model of the grid: a number of components, of hops that raw features may travel.

    ``stands_for`` are all numbers of hops of which this is the model, ``hops`` the smallest; () if
    it alone is.
    """

    n_components: int
    hops: int
    covariance_type: str
    stands_for: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        hops = name_hops(self.stands_for or (self.hops,))
        return f"K = {self.n_components}, {hops}, {self.covariance_type}"


def name_hops(numbers: Sequence[int]) -> str:
    """Write "1 hop", "0 or 1 hops", "0-3 hops"."""
    *first, last = as_ranges(numbers)
    before = f"{', '.join(first)} or " if first else ""
    return f"{before}{last} hop{'' if list(numbers) == [1] else 's'}"


@dataclass(frozen=True)
class Trial:
    """One fit that judges a cell: a restart on all rows, or of ``n_folds`` a fold; numbered from 0.

    ``n_init`` are restarts of the fit of a fold; on all rows those that are done in one, of which a
    fit keeps the best.
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
        return f"{name}/restart {self.number}{self._others}"

    def __str__(self) -> str:
        if self.n_folds:
            return f"{self.cell}, fold {self.number + 1} of {self.n_folds}"
        return f"{self.cell}, restart {self.number}{self._others}"

    @property
    def _others(self) -> str:
        """Restarts that are done with it."""
        return f" to {self.number + self.n_init - 1}" if self.n_init > 1 else ""


def folds_of(n_samples: int, n_folds: int, seed: int) -> list[NDArray[np.intp]]:
    """Deal M rows out to 2 to M folds at random, as evenly as possible; rows of each ascend."""
    check_int("n_folds", n_folds, least=2)
    if n_samples < n_folds:
        raise InputError(f"{n_folds} folds need at least as many rows, got {n_samples}")
    rng = np.random.default_rng([seed, 0, ORDER_OF_FOLDS])
    return [np.sort(part) for part in np.array_split(rng.permutation(n_samples), n_folds)]


@dataclass
class Problem:
    """Data and all options of a fit but those that are chosen.

    X (M, d) and ``sample_weight`` (M,) are, where agents live in several processes, what those of
    this one hold, as `vpem.fits.spread.fit_spread` and `vpem.fits.rows.fit_em` want it.
    ``networks`` are by number of hops, what this process has of them; without ``workers`` data are
    split by features. ``options`` are of `vpem.fit_vpem`, or with workers of `vpem.fit_em`, but
    n_components, covariance_type, n_init, first_restart, sample_weight, callback, saver and labels;
    without n_threads: one thread. ``network_options`` are those of the networks, by which searches
    differ besides. ``n_samples`` are rows of all processes together.
    """

    X: Floats | FileMatrix | None
    networks: dict[int, Network]
    workers: Workers | None
    options: Report
    network_options: Report = field(default_factory=dict)
    sample_weight: Floats | None = None

    def __post_init__(self) -> None:
        self.engine: Engine = next(iter(self.networks.values())).agents.engine
        self._held: dict[int, Held] = {}
        n_local = np.array([0 if self.X is None else len(self.X)])
        everywhere = self.engine.allreduce(n_local, "max")[0]
        self.n_samples = int(everywhere) if self.workers is None else self.workers.n_samples

    @property
    def masked(self) -> bool:
        """Whether sums are masked."""
        return next(iter(self.networks.values())).agents.masks is not None

    @property
    def floor_fits(self) -> str:
        """How models with degenerate components are judged."""
        return str(self.options.get("floor_fits", "last"))

    @property
    def seed(self) -> int:
        """Seed of the starts, and of the folds."""
        return int(self.options.get("seed", 0))

    @property
    def missing(self) -> str:
        """What is done where values are missing."""
        return str(self.options.get("missing", "refuse"))

    def held(self, hops: int) -> Held:
        """Return what this process has of the data, where features have gone so many hops."""
        if hops not in self._held:
            network = self.networks[hops]
            more = self.sample_weight, self.options.get("feature_names"), self.missing
            self._held[hops] = (
                ByFeatures(self.X, network, *more, self.options.get("kinds"))
                if self.workers is None
                else ByRows(self.X, network, self.workers, *more)
            )
        return self._held[hops]

    def fit(self, cell: Cell, rows: NDArray[np.intp] | None = None, **more: object) -> Fit:
        """Fit a cell to all rows, or to some.

        Where hubs live in several processes each ends with the parameters of its own; see
        `vpem.fits.parts.gathered`.
        """
        options = {
            "n_threads": 1,
            **self.options,
            "n_components": cell.n_components,
            "covariance_type": cell.covariance_type,
            **more,
        }
        for name in OF_DATA:
            options.pop(name, None)
        # A report says what went in its own fit.
        self.networks[cell.hops].total.traffic.clear()
        return self.held(cell.hops).fit(rows, options)

    def keep(self, fit: Fit, outcome: Outcome, heard: Sequence[VpemWarning]) -> None:
        """Called with a fit to all rows, its result and its warnings."""

    def run(self, trial: Trial) -> Outcome:
        """Do a trial; a failure to fit is a result, too, the same in all processes.

        ``status`` is "converged", "not converged" or "failed"; then ``reason`` says why. See
        `_judged` for the rest. Other errors are raised. One of several processes may find that a
        fit fails while others still work on it: it raises the error.
        """
        began, engine, fit = time.perf_counter(), self.engine, None
        alike = not engine.apart
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", VpemWarning)
            try:
                if not alike:
                    # What all processes find alike.
                    left = self.n_samples
                    if trial.n_folds:
                        left -= len(folds_of(left, trial.n_folds, self.seed)[trial.number])
                    alike = trial.cell.n_components > left
                    check_count(trial.cell.n_components, left)
                fit, outcome = self._judged(trial)
            except (InputError, NumericalError, PartitionedError) as error:
                if not alike:
                    raise
                # Found before any work it is not worth keeping.
                fit, outcome = None, _failed(str(error), refused=isinstance(error, InputError))
            except MemoryError as error:
                if engine.apart:
                    raise
                reason = f"not enough memory ({error}); try fewer jobs"
                fit, outcome = None, _failed(reason, lost=True)
        outcome["seconds"] = time.perf_counter() - began
        caught = [one.message for one in heard if isinstance(one.message, VpemWarning)]
        left_out: tuple[type[VpemWarning], ...] = (NotConvergedWarning,)
        if engine.apart and (self.masked or not engine.open):
            left_out += (OwnDataWarning,)  # said where the data are, before the search began
        texts = [str(one) for one in caught if not isinstance(one, left_out)]
        if engine.apart:
            outcome = engine.bcast(outcome)
            ours, *others = engine.allgather(texts)
            texts = ours + [text for theirs in others for text in theirs if text not in ours]
        outcome["warnings"] = texts
        if fit is not None and not trial.n_folds:
            self.keep(fit, outcome, caught)
        return outcome

    def _judged(self, trial: Trial) -> tuple[Fit, Outcome]:
        """Fit to all rows from one restart, or more, and judge the model on them.

        Or fit to all rows but those of a fold, and judge the model on these.
        """
        fold = None
        if not trial.n_folds:
            fit = self.fit(trial.cell, n_init=trial.n_init, first_restart=trial.number)
        else:
            fold = folds_of(self.n_samples, trial.n_folds, self.seed)[trial.number]
            others = np.setdiff1d(np.arange(self.n_samples), fold)
            fit = self.fit(trial.cell, others, n_init=trial.n_init)
        judged = self.held(trial.cell.hops).judge(fit, fold)
        mixture, total, used = judged.mixture, judged.log_likelihood, judged.weight
        outcome: Outcome = {
            "status": "converged" if fit.converged else "not converged",
            "n_parameters": mixture.n_parameters,
            "n_iter": fit.n_iter,
            "recoveries": len(fit.recoveries),
            "given_up": len({one.component for one in fit.recoveries if one.row is None}),
            "degenerate": len(fit.degenerate),
            "messages": fit.communication["messages"] + judged.messages,
            "bytes": fit.communication["bytes"] + judged.bytes,
        }
        if fold is None:
            name, what, bic = "bic", "log-likelihood", mixture.bic(total, used)
            outcome |= {
                # Where its roots live elsewhere a process may not know it.
                "first_root": float(next(iter(fit.root_log_likelihood), np.nan)) + fit.log_prior,
                "log_likelihood": total / used,
                "entropy": judged.entropy,
                "bic": bic,
                "aic": mixture.aic(total),
                "icl": bic + 2 * judged.entropy,
            }
        else:
            name, what = "held_out", "log-likelihood of the held-out rows"
            outcome |= {
                "held_out_total": total,
                "n_held_out": used,
                "held_out": total / used if used else float("nan"),
                "log_likelihood": fit.log_likelihood,
            }
        if not np.isfinite(outcome[name]):
            outcome = _failed(f"the {what} is not finite")
        return fit, outcome


def _failed(reason: str, *, refused: bool = False, **more: object) -> Outcome:
    return {"status": "failed", "reason": reason, "refused": refused, **more}
