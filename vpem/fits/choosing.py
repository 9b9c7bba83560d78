"""How an imputation is chosen where nobody says: by entries that observers hide from the fit.

Of a stream that all know everybody hides a tenth of its own entries, which are the same ones with
everybody who saw them. Fits to the rest are compared by sums of errors on what is hidden, a number
of each column: nothing travels that fits and sums of low rank do not have. Where there is but one
observer, who sends nothing, normal mixtures are compared with matrices of low rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.errors import VpemError
from vpem.fits.mixture_imputation import impute_by_mixture
from vpem.fits.observers import Observers
from vpem.fits.settings import OF_LOWRANK, ImputeSettings
from vpem.network.codecs import Codec
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.settings import FedSettings
from vpem.steps.fedem import run_fedem
from vpem.steps.safe_steps import enough_iterations
from vpem.sums.connect import Network
from vpem.terms.lowrank.laws import Law
from vpem.terms.lowrank.model import ImputationModel
from vpem.terms.lowrank.observations import Observations

Matrix = NDArray[np.float64]

HIDDEN = 5
"""Sets the stream of what is hidden apart from others of a seed."""

SHARE, ENOUGH, MOST_FOLDS = 0.1, 500, 10
"""Of entries hidden at a time; about so many are hidden in all, in at most so many turns."""

RANKS, MOST_RANK, MOST_DESCENT = (1, 2, 3, 5, 8, 12), 20, 8
"""Ranks that are tried, and the largest: of the Gaussian law, and where an M-step is a descent."""

HALVINGS = 10
"""Ridges are the norm of what was seen, halved so often at most."""

TOL, ITERATIONS = 3e-4, 10
"""A fit that is compared may stop earlier than the last one: at this, or a tenth of iterations."""

LITTLE, PATIENCE = 0.998, 2
"""Smaller ridges are tried as long as the error falls below this part of the least of their rank,
and larger ranks until so many in a row have brought nothing."""

MOST_COMPONENTS, MIXED_ITERATIONS = 4, 200

MOST_WORK = 2e8
"""Rows times the third power of columns up to which mixtures are tried."""


@dataclass
class Choice:
    """What was compared, and what is best.

    Attributes
    ----------
    how : ImputeSettings
        With the method, its rank and ridge or its components.
    candidates : list of dict
        What was tried: ``method``, ``rank`` and ``ridge`` or ``n_components``, and ``error``.
    errors : ndarray of shape (3, J)
        Weight of what was hidden of each column, and the errors of the best and of column means.
    """

    how: ImputeSettings
    law: Law
    n_folds: int
    columns: tuple[str, ...]
    candidates: list[Report] = field(default_factory=list)
    errors: Matrix = field(default_factory=lambda: np.zeros((3, 0)))
    mixture: str = "tried"
    means_win: bool = False
    least: float = inf

    def note(self, how: ImputeSettings, errors: Matrix, told: Report) -> float:
        """Take note of what one candidate lost; of two alike the first is kept."""
        loss = self.loss(errors[1], errors[0])
        self.candidates.append({"method": how.method, **told, "error": loss})
        if loss < self.least or not self.errors.size:
            self.how, self.errors, self.least = how, errors, loss
        return loss

    def loss(self, lost: Matrix, weight: Matrix) -> float:
        """Return the mean error: the root of that of squares, under the Gaussian law."""
        if not weight.sum() > 0:
            return inf
        mean = float(lost.sum() / weight.sum())
        return float(np.sqrt(mean)) if self.law.name == "gaussian" else mean

    def describe(self) -> Report:
        """Return what there is to report of the choice, errors in units of the fit."""
        weight, lost, means = self.errors
        columns = [
            {"column": self.columns[j], "error": self.loss(lost[[j]], weight[[j]]),
             "column_means": self.loss(means[[j]], weight[[j]])}
            for j in np.flatnonzero(weight > 0)
        ]  # fmt: skip
        return {
            "loss": {"gaussian": "rmse", "poisson": "deviance"}.get(self.law.name, "log_loss"),
            "n_folds": self.n_folds,
            "share": SHARE,
            "error": self.least if np.isfinite(self.least) else None,
            "column_means": self.loss(means, weight) if weight.sum() > 0 else None,
            "column_means_win": self.means_win,
            "by_column": columns,
            "mixture": self.mixture,
            "candidates": self.candidates,
        }


def choose(
    observations: Observations,
    how: ImputeSettings,
    steps: Any,
    law: Law,
    network: Network,
    ledger: Ledger,
    codec: Codec | None,
    tell: Callable[[str], None] | None = None,
) -> Choice:
    """Choose method, rank and ridge, or components, of those that the settings leave open.

    The settings' scale is chosen before; ``tell`` is told of every rank, and of mixtures.
    """
    n_folds = min(MOST_FOLDS, ceil(ENOUGH / (SHARE * observations.n_entries)))
    choice = Choice(how, law, n_folds, observations.column_names)
    with warnings.catch_warnings(), one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        warnings.simplefilter("ignore")
        fits = _Fits(observations, how, steps, law, network, ledger, codec, n_folds)
        fits.tell = tell or (lambda _: None)
        fits.compare_ranks(choice)
        choice.mixture = _why_no_mixture(observations, how)
        if choice.mixture == "tried":
            fits.compare_mixtures(choice)
    _, lost, means = choice.errors
    choice.means_win = bool(0 < means.sum() <= lost.sum())
    if not np.isfinite(choice.least):  # too few entries to hide any
        rank = min(2, *observations.shape) if how.rank in (None, "auto") else how.rank
        ridge = 1.0 if how.ridge in (None, "auto") else how.ridge
        choice.how = how.changed(method="lowrank", rank=rank, ridge=ridge)
    if choice.means_win and how.scale == "standard" and how.ridge in (None, "auto"):
        # A ridge that leaves nothing: the fitted matrix is that of the column means.
        rank = 1 if how.rank in (None, "auto") else how.rank
        choice.how = how.changed(method="lowrank", rank=rank, ridge=fits.rounded(2 * fits.norm))
    return choice


def _why_no_mixture(observations: Observations, how: ImputeSettings) -> str:
    """Say why mixtures are not compared, or that they are."""
    given = [n for n in OF_LOWRANK if getattr(how, n) != how.settings_by_name[n].default]
    rows, columns = observations.shape
    if how.method == "lowrank":
        return "the method was given"
    if observations.n_observers > 1:
        return "with several observers it sends sums of another kind, and has to be asked for"
    if how.law != "gaussian":
        return f"entries are of the {how.law} law"
    if given:
        return f"an option of matrices of low rank was given: {given[0]}"
    if rows * columns**3 > MOST_WORK:
        return f"it would take long with {columns} columns"
    return "tried"


@dataclass
class _Fold:
    """What is left of the entries, what was hidden, and column means of what is left."""

    rest: Observers
    held: Observers
    given: Observations
    means: Matrix
    most: float | None


class _Fits:
    """Fits to what is left of the entries, in every fold, and their errors on the hidden ones."""

    tell: Callable[[str], None]

    def __init__(
        self, observations: Observations, how: ImputeSettings, steps: Any, law: Law,
        network: Network, ledger: Ledger, codec: Codec | None, n_folds: int,
    ) -> None:  # fmt: skip
        self.how, self.law, self.network, self.ledger = how, law, network, ledger
        self.observations = observations
        self.codec, self.shape = codec, observations.shape
        most = ceil(enough_iterations(steps) / ITERATIONS)
        self.fed = how.into(
            FedSettings, weighting="workers", tol=max(how.tol or 0.0, TOL) ** 2,
            max_iter=most if how.max_iter is None else min(how.max_iter, most),
            step_size=steps, batch_size=None, variance_reduction=False, record_every=10 * most,
            n_threads=thread_count(how.n_threads),
        )  # fmt: skip
        self.observers = Observers(observations, network, ledger)
        self.copies = self.observers.count_copies(how.copies)
        # The same places with everybody, so that nobody tells anybody which.
        turn = np.random.default_rng([how.seed, HIDDEN]).random(int(np.prod(self.shape))) / SHARE
        self.folds = [self._fold(observations, turn.astype(np.intp) == f) for f in range(n_folds)]
        zero = float(law.mean(np.zeros(1))[0])
        square = self.folds[0].rest.sum_of(lambda values: (values - zero) ** 2)
        self.norm = float(np.sqrt(square)) / (self.copies * law.dispersion)

    def rounded(self, ridge: float) -> float:
        """Return a ridge as it is told; there must be some where there is a norm of nothing."""
        return float(f"{ridge:.4g}") or 1.0

    def _fold(self, observations: Observations, hidden: NDArray[np.bool_]) -> _Fold:
        rest, held, given = self.observers.hold_out(hidden)
        if self.how.scale != "none":
            rest.standardize(self.how.law)
            held.scale_by(rest.scaling)
        counts, sums = rest.column_sums()
        means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        return _Fold(rest, held, given, means, rest.most())

    def errors(self, fold: _Fold, means: Matrix) -> Matrix:
        """Return weights and errors of hidden entries, of column means too, by column (3, J)."""
        return fold.held.errors(self.law, means, fold.means)

    def compare_ranks(self, choice: Choice) -> None:
        """Try ranks that grow, each with ridges that fall as long as errors do."""
        how = self.how
        most = MOST_RANK if self.law.name == "gaussian" else MOST_DESCENT
        largest = max(1, min(min(self.shape) - 1, most))
        ranks = [rank for rank in RANKS if rank < largest] + [largest]
        if how.rank not in (None, "auto"):
            ranks = [int(how.rank)]
        first, vain = 1, 0
        for rank in ranks:
            self.tell(f"rank {rank} on held-out entries")
            runs: list[ImputationModel | None] = [None] * len(self.folds)
            starts: list[Matrix | None] = [None] * len(self.folds)
            least, best = inf, first
            ridges = [self.rounded(self.norm * 0.5**k) for k in range(first, HALVINGS + 1)]
            if how.ridge not in (None, "auto"):
                ridges = [float(how.ridge)]
            for k, ridge in enumerate(ridges, first):
                errors = np.zeros((3, self.shape[1]))
                for f, fold in enumerate(self.folds):
                    means, runs[f], starts[f] = self._fit(f, rank, ridge, runs[f], starts[f])
                    errors += self.errors(fold, means)
                found = how.changed(method="lowrank", rank=rank, ridge=ridge)
                loss = choice.note(found, errors, {"rank": rank, "ridge": ridge})
                fell, least = loss < LITTLE * least, min(loss, least)
                if not fell:
                    break
                best = k
            vain = vain + 1 if least > choice.least else 0
            if vain == PATIENCE:
                break
            first = max(1, best - 1)

    def _fit(
        self, f: int, rank: int, ridge: float, before: ImputationModel | None, start: Matrix | None
    ) -> tuple[Matrix, ImputationModel, Matrix | None]:
        """Fit a matrix of low rank to a fold: means (I J,), and where the next fit sets out from.

        With one statistic that all know the next one goes on from there.
        """
        fold, n_roots = self.folds[f], self.network.whole.total.n_roots
        model = ImputationModel(
            fold.rest.observations, self.law, rank, ridge, self.copies, n_roots=n_roots,
            parts=fold.rest.parts, add_up=fold.rest.add_up, most=fold.most,
        )  # fmt: skip
        if before is not None:
            model.restore(before.state())
        run = run_fedem(
            model, model.start if start is None else start, self.fed, codec=self.codec,
            network=self.network, ledger=self.ledger,
            rng=np.random.default_rng([self.how.seed, HIDDEN, f]),
        )  # fmt: skip
        return model.means(run.parameters), model, run.statistic if n_roots == 1 else None

    def compare_mixtures(self, choice: Choice) -> None:
        """Try mixtures of more and more components, as long as errors fall."""
        least = inf
        iterations = min(self.how.max_iter or MIXED_ITERATIONS, MIXED_ITERATIONS)
        for k in range(1, MOST_COMPONENTS + 1):
            self.tell(f"a mixture of {k} on held-out entries")
            how = self.how.changed(method="mixture", n_components=k, tol=1e-5, max_iter=iterations)
            errors = np.zeros((3, self.shape[1]))
            best = self.how.changed(method="mixture", n_components=k)
            try:
                whole = impute_by_mixture(self.observations, best.in_units(), self.network)
                if whole.fit.degenerate:
                    return
                for fold in self.folds:
                    found = impute_by_mixture(fold.given, how, self.network)
                    if found.fit.degenerate:
                        return
                    units = fold.rest.scaling
                    fitted = (found.fitted - units.shift) / units.scale
                    errors += self.errors(fold, fitted.ravel())
            except VpemError as error:
                if k == 1:
                    choice.mixture = str(error)
                return
            loss = choice.note(best, errors, {"n_components": k})
            if loss >= least:
                return
            least = loss
