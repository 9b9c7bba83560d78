"""FedMissEM: observers of parts of a matrix find what none saw, by a matrix of low rank.

Dieuleveut, Fort, Moulines and Robin 2021, section 4. An entry's law has a natural parameter theta,
and theta = U V^T has rank r. Each of n observers has seen a part of its copy of the matrix.
The E-step fills an observer's copy by the mean that theta foretells; the mean of the copies is the
statistic of `vpem.steps.fedem`; the M-step is in `vpem.terms.lowrank.model`. What is minimized is

    sum over entries seen of (psi(theta) - y theta) / dispersion  +  copies ridge/2 (|U|^2 + |V|^2)

Where method, rank or ridge are left open they are chosen by entries that observers hide from the
fit. Of a stream that all know each hides a tenth of its own entries, which are the same ones with
all who saw them. Fits to the rest are compared by sums of errors on what is hidden, a number of
each column: nothing travels that fits and sums of low rank do not have. Where there is but one
observer, who sends nothing, normal mixtures are compared with matrices of low rank.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import numpy as np

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Doubles, check_memory, least_participation
from vpem.errors import InputError, Setting, VpemError, not_converged, warn
from vpem.files.checkpoints import checksum, describe_steps, network_facts
from vpem.fits.mixture_imputation import MixtureImputation, impute_by_mixture
from vpem.fits.observers import Imputation, Observers, check_laws
from vpem.fits.prepare import network_of_all, read_presence
from vpem.fits.results import reported
from vpem.fits.settings import OF_LOWRANK, ImputeSettings
from vpem.network.codecs import Codec, parse_codec
from vpem.network.ledger import Ledger
from vpem.network.schema import NOTHING, Report, State
from vpem.records import describe_field
from vpem.settings import FedSettings
from vpem.steps.fedem import run_fedem
from vpem.steps.fedem_steps import batches_of, enough_iterations, noise_of, safe_step
from vpem.steps.fedem_sums import FedProgress, FedRun, check_masked
from vpem.steps.recovery import Saver
from vpem.steps.restarts import OneRun
from vpem.sums.connect import Network
from vpem.sums.partial import describe_presence
from vpem.sums.quantizer import Quantizer
from vpem.terms.lowrank.entries import check_covered
from vpem.terms.lowrank.model import ImputationModel
from vpem.terms.lowrank.observations import EntryLaw, Observations, make_law

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
class _Fold:
    """What is left of the entries, what was hidden, and column means of what is left."""

    rest: Observers
    heldout: Observers
    observations: Observations
    means: Doubles
    most: float | None


class ImputationChoice:
    """What was compared, and what is best.

    Fits are to what is left of the entries, in every fold, and have errors on the hidden ones.
    ``settings`` has the best method, its rank and ridge or its components. ``candidates`` are what
    was tried, with ``error``. ``errors`` (3, J) are the weight of what was hidden of each column,
    and the errors of the best and of column means. ``tell`` is called with what is tried.
    """

    def __init__(
        self, observations: Observations, settings: ImputeSettings, steps: Any, law: EntryLaw,
        network: Network, ledger: Ledger, codec: Codec | None, tell: Callable[[str], None] | None,
    ) -> None:  # fmt: skip
        self.settings = self.given = settings
        self.law, self.network, self.ledger, self.codec = law, network, ledger, codec
        self.observations, self.shape = observations, observations.shape
        self.n_folds = min(MOST_FOLDS, ceil(ENOUGH / (SHARE * observations.n_entries)))
        self.candidates: list[Report] = []
        self.errors: Doubles = np.zeros((3, 0))
        self.mixture, self.means_win, self.least = "tried", False, inf
        self.tell = tell or (lambda _: None)
        most = ceil(enough_iterations(steps) / ITERATIONS)
        self.fed = settings.into(
            FedSettings, weighting="workers", tol=max(settings.tol or 0.0, TOL) ** 2,
            max_iter=most if settings.max_iter is None else min(settings.max_iter, most),
            step_size=steps, batch_size=None, variance_reduction=False, record_every=10 * most,
            n_threads=thread_count(settings.n_threads),
        )  # fmt: skip

    def _hide(self) -> None:
        """Hide entries in turns, and take units and column means of what is left."""
        settings, law = self.given, self.law
        self.observers = Observers(self.observations, self.network, self.ledger)
        self.copies = self.observers.count_copies(settings.copies)
        # The same places with all observers, so that none has to say which.
        turn = (
            np.random.default_rng([settings.seed, HIDDEN]).random(int(np.prod(self.shape))) / SHARE
        )
        self.folds: list[_Fold] = []
        for f in range(self.n_folds):
            rest, heldout, remaining = self.observers.hold_out(turn.astype(np.intp) == f)
            if settings.scale != "none":
                rest.standardize(settings.law)
                heldout.scale_by(rest.scaling)
            counts, sums = rest.column_sums()
            means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
            self.folds.append(_Fold(rest, heldout, remaining, means, rest.most()))
        zero = float(law.mean(np.zeros(1))[0])
        square = self.folds[0].rest.sum_of(lambda values: (values - zero) ** 2)
        self.norm = float(np.sqrt(square)) / (self.copies * law.dispersion)

    def choose(self) -> None:
        """Choose method, rank and ridge, or components, of those that the settings leave open.

        Their scale is chosen before.
        """
        settings, observations = self.given, self.observations
        quiet = np.errstate(over="ignore", invalid="ignore")
        with warnings.catch_warnings(), one_blas_thread(), quiet:
            warnings.simplefilter("ignore")
            self._hide()
            self.compare_ranks()
            changed = [
                one.name for one in settings.fields()
                if OF_LOWRANK in describe_field(one).rules
                and getattr(settings, one.name) != one.default
            ]  # fmt: skip
            n_rows, n_columns = observations.shape
            if settings.method == "lowrank":
                self.mixture = "the method was given"
            elif observations.n_observers > 1:
                self.mixture = (
                    "with several observers it sends sums of another kind, and must be requested"
                )
            elif settings.law != "gaussian":
                self.mixture = f"entries are of the {settings.law} law"
            elif changed:
                self.mixture = f"an option of matrices of low rank was given: {changed[0]}"
            elif n_rows * n_columns**3 > MOST_WORK:
                self.mixture = f"it would take long with {n_columns} columns"
            if self.mixture == "tried":
                self.compare_mixtures()
        _, lost, means = self.errors
        self.means_win = bool(0 < means.sum() <= lost.sum())
        if not np.isfinite(self.least):  # too few entries to hide any
            rank = min(2, *observations.shape) if settings.rank in (None, "auto") else settings.rank
            ridge = 1.0 if settings.ridge in (None, "auto") else settings.ridge
            self.settings = settings.changed(method="lowrank", rank=rank, ridge=ridge)
        if self.means_win and settings.scale == "standard" and settings.ridge in (None, "auto"):
            # A ridge that leaves nothing: the fitted matrix is that of the column means.
            rank = 1 if settings.rank in (None, "auto") else settings.rank
            self.settings = settings.changed(
                method="lowrank", rank=rank, ridge=self.rounded(2 * self.norm)
            )

    def add_candidate(self, settings: ImputeSettings, errors: Doubles, facts: Report) -> float:
        """Compare a candidate with the best one; of two alike the first is kept."""
        loss = self.loss(errors[1], errors[0])
        self.candidates.append({"method": settings.method, **facts, "error": loss})
        if loss < self.least or not self.errors.size:
            self.settings, self.errors, self.least = settings, errors, loss
        return loss

    def loss(self, lost: Doubles, weight: Doubles) -> float:
        """Return the mean error: the root of that of squares, under the Gaussian law."""
        if not weight.sum() > 0:
            return inf
        mean = float(lost.sum() / weight.sum())
        return float(np.sqrt(mean)) if self.law.name == "gaussian" else mean

    def describe(self) -> Report:
        """Report the choice, errors in units of the fit."""
        weight, lost, means = self.errors
        names = self.observations.column_names
        columns = [
            {"column": names[j], "error": self.loss(lost[[j]], weight[[j]]),
             "column_means": self.loss(means[[j]], weight[[j]])}
            for j in np.flatnonzero(weight > 0)
        ]  # fmt: skip
        return {
            "loss": self.law.loss or "rmse",
            "n_folds": self.n_folds,
            "share": SHARE,
            "error": self.least if np.isfinite(self.least) else None,
            "column_means": self.loss(means, weight) if weight.sum() > 0 else None,
            "column_means_win": self.means_win,
            "by_column": columns,
            "mixture": self.mixture,
            "candidates": self.candidates,
        }

    def rounded(self, ridge: float) -> float:
        """Return a ridge as it is reported, above 0 also where the norm is 0."""
        return float(f"{ridge:.4g}") or 1.0

    def compare_ranks(self) -> None:
        """Try ranks that grow, each with ridges that fall as long as errors do."""
        settings = self.given
        most = MOST_RANK if self.law.name == "gaussian" else MOST_DESCENT
        largest = max(1, min(min(self.shape) - 1, most))
        ranks = [rank for rank in RANKS if rank < largest] + [largest]
        if settings.rank not in (None, "auto"):
            ranks = [int(settings.rank)]
        first, vain = 1, 0
        for rank in ranks:
            self.tell(f"rank {rank} on held-out entries")
            runs: list[ImputationModel | None] = [None] * len(self.folds)
            starts: list[Doubles | None] = [None] * len(self.folds)
            least, best = inf, first
            ridges = [self.rounded(self.norm * 0.5**k) for k in range(first, HALVINGS + 1)]
            if settings.ridge not in (None, "auto"):
                ridges = [float(settings.ridge)]
            for k, ridge in enumerate(ridges, first):
                errors = np.zeros((3, self.shape[1]))
                for f, fold in enumerate(self.folds):
                    means, runs[f], starts[f] = self._fit(f, rank, ridge, runs[f], starts[f])
                    errors += fold.heldout.errors(self.law, means, fold.means)
                candidate = settings.changed(method="lowrank", rank=rank, ridge=ridge)
                loss = self.add_candidate(candidate, errors, {"rank": rank, "ridge": ridge})
                fell, least = loss < LITTLE * least, min(loss, least)
                if not fell:
                    break
                best = k
            vain = vain + 1 if least > self.least else 0
            if vain == PATIENCE:
                break
            first = max(1, best - 1)

    def _fit(
        self, f: int, rank: int, ridge: float, before: ImputationModel | None, start: Doubles | None
    ) -> tuple[Doubles, ImputationModel, Doubles | None]:
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
            rng=np.random.default_rng([self.given.seed, HIDDEN, f]),
        )  # fmt: skip
        means = self.law.mean(run.parameters.theta.ravel())
        return means, model, run.statistic if n_roots == 1 else None

    def compare_mixtures(self) -> None:
        """Try mixtures of more and more components, as long as errors fall."""
        least = inf
        iterations = min(self.given.max_iter or MIXED_ITERATIONS, MIXED_ITERATIONS)
        for k in range(1, MOST_COMPONENTS + 1):
            self.tell(f"a mixture of {k} on held-out entries")
            settings = self.given.changed(
                method="mixture", n_components=k, tol=1e-5, max_iter=iterations
            )
            errors = np.zeros((3, self.shape[1]))
            best = self.given.changed(method="mixture", n_components=k)
            try:
                whole = impute_by_mixture(self.observations, best.in_units(), self.network)
                if whole.fit.degenerate:
                    return
                for fold in self.folds:
                    imputation = impute_by_mixture(fold.observations, settings, self.network)
                    if imputation.fit.degenerate:
                        return
                    units = fold.rest.scaling
                    fitted = (imputation.fitted - units.shift) / units.scale
                    errors += fold.heldout.errors(self.law, fitted.ravel(), fold.means)
            except VpemError as error:
                if k == 1:
                    self.mixture = str(error)
                return
            loss = self.add_candidate(best, errors, {"n_components": k})
            if loss >= least:
                return
            least = loss


MATRICES = 8
"""Matrices of I x J numbers that a fit needs beside those of observers."""

AT_A_SERVER, ON_A_GRAPH = 2, 8
"""Matrices of I x J numbers an observer."""


def fit_imputation(
    observations: Observations,
    settings: ImputeSettings | None = None,
    *,
    network: Network | None = None,
    callback: Callable[[FedProgress], None] | None = None,
    saver: Saver | None = None,
    **changes: object,
) -> Imputation | MixtureImputation:
    """Impute what no observer saw: by federated EM with a matrix of low rank, or by a mixture.

    Parameters
    ----------
    observations : Observations
        Who saw what. Where observers live in several processes (`vpem.sums.connect.spread_workers`)
        each needs the entries of its own (`Observations.seen_by`); all have the same result.
    settings : ImputeSettings, optional
        None: the defaults.
    network : Network, optional
        From `vpem.sums.connect.connect_workers`; None: a server. On any other graph every observer
        keeps a statistic of its own, and compression is the network's; see
        `vpem.steps.fedem.run_fedem`.
    callback : callable, optional
        Called after every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).
    **changes
        Settings that differ: see `vpem.ImputeSettings`. The paper has one copy of the matrix an
        observer; "fewest" ``copies`` need fewer iterations, and do not shrink theta the more the
        more observers share the work; the ridge counts once a copy. A ``scale`` of "standard" is
        found by a sum over observers before the first iteration; the objective is that of the
        scaled entries. Steps of "auto" are those of `safe_step`; ``max_iter`` is by default what
        `enough_iterations` says. Corrections are held to ``tol`` before they are multiplied by the
        step; memories take away the noise of participation and codec as the fit comes to rest, so
        that this bounds the mean field with them as without.

    Returns
    -------
    Imputation, or MixtureImputation where the ``method`` is "mixture"
        Of a mixture each observer has whole rows of the matrix, or whole columns. With ``draws``
        it has several imputations, for Rubin's rules, each by a fit to rows of random weights.

    Raises
    ------
    InputError
        If an option or a value cannot be used.
    NumericalError
        If the statistic outgrows all numbers.

    Warns
    -----
    NotConvergedWarning
        If the iterations ran out first.
    VpemWarning
        If theta is zero: the ridge leaves nothing.
    """
    began = time.perf_counter()
    settings, choice = ImputeSettings.resolve(settings, **changes).in_units(), None
    network = network_of_all(network, observations.n_observers, "observers")
    if settings.method == "mixture":
        return impute_by_mixture(observations, settings, network, callback, saver)
    law = make_law(settings.law, settings.variance, settings.trials)
    codec = None if settings.compress is None else parse_codec(settings.compress)
    settings = read_presence(settings, observations.names, network)
    check_masked(network, codec, settings.participation)
    # Memories take the noise of participation and codec away, and SPIDER that of batches.
    noise_stays = not settings.variance_reduction and (
        settings.batch_size is not None and settings.batch_size < int(observations.counts.max())
    )
    _check(observations, law, settings, network, noise_stays)
    steps = _steps(observations, settings, codec)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, 0, 0)
    if settings.is_open:
        tell = getattr(callback, "starting", None)
        chosen = ImputationChoice(observations, settings, steps, law, network, ledger, codec, tell)
        chosen.choose()
        choice, settings = chosen.describe(), chosen.settings.in_units()
        if settings.method == "mixture":
            mixed = impute_by_mixture(observations, settings, network, callback, saver)
            mixed.choice, mixed.seconds = choice, time.perf_counter() - began
            return mixed
    rank, ridge, tol = settings.rank, settings.ridge, settings.tol
    assert isinstance(rank, int)
    assert isinstance(ridge, float | int)
    assert tol is not None
    settings = settings.changed(step_size=steps, n_threads=thread_count(settings.n_threads))
    if settings.max_iter is None:
        settings = settings.changed(max_iter=enough_iterations(settings.step_size, noise_stays))
    if saver is not None:
        saver.begin(_facts(observations, settings, codec, network))
    # Observers agree on units and copies.
    observers = Observers(observations, network, ledger)
    if settings.scale != "none":
        observers.standardize(settings.law)
    copies = observers.count_copies(settings.copies)
    model = ImputationModel(
        observers.observations, law, rank, ridge, copies, n_roots=network.whole.total.n_roots,
        parts=observers.parts, add_up=observers.add_up, most=observers.most(),
        shrinkage=settings.observer_shrinkage,
    )  # fmt: skip
    saving = OneRun(saver, ledger)
    if saving.saved is not None:
        saving.restored(NOTHING)
    # Where noise outgrows the steps the engine says so, once numbers are no longer finite.
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        run = run_fedem(
            model,
            model.start,
            settings.into(FedSettings, weighting="workers", tol=tol * tol),
            codec=codec,
            network=network,
            ledger=ledger,
            rng=np.random.default_rng(settings.seed),
            callback=callback,
            saver=saving.inner(None),
        )
        fit = model.log_likelihood(run.parameters) - observers.log_units()
        imputation = Imputation(
            observations=observers.given,
            seen=observers.seen(),
            law=law,
            factors=run.parameters,
            rank=rank,
            ridge=ridge,
            choice=choice,
            n_copies=model.n_copies,
            log_likelihood=fit / model.total_weight,
            run=run,
            network=network.whole,
            **saving.took(began, run.converged, run.history.bytes),
            compress=network.compress if codec is None else codec.name,
            intercepts=None
            if model.shrinkage is None
            else {
                observations.names[one]: model.intercept(
                    observers.observations, one, run.parameters
                )
                for one in network.total.holders.own.tolist()
            },
            scaling=observers.scaling,
            options=_options(run, settings),
        )
    _warn(imputation, tol, noise_stays)
    return imputation


def _check(
    observations: Observations,
    law: EntryLaw,
    settings: ImputeSettings,
    network: Network,
    noisy: bool,
) -> None:
    small = min(observations.shape)
    shape = " x ".join(map(str, observations.shape))
    if isinstance(settings.rank, int) and settings.rank > small:
        raise InputError(f"a matrix of {shape} has at most rank {small}, got {settings.rank}")
    if settings.ridge == 0 and settings.law != "gaussian":
        raise InputError(
            f"the {settings.law} law needs a ridge above 0, without which theta may grow forever; "
            "try 0.1"
        )
    if settings.observer_shrinkage is not None and observations.n_observers == 1:
        raise InputError(
            Setting("observer_shrinkage"), " lets observers differ by intercepts, but there is "
            "one observer; leave it out",
        )  # fmt: skip
    check_laws(observations, law, network.total.holders)
    rows = np.bincount(
        np.concatenate(observations.places) // observations.shape[1],
        minlength=observations.shape[0],
    )
    check_covered(observations, network.total.holders.any(rows > 0), True)
    n = observations.n_observers
    each = ON_A_GRAPH if network.whole.total.n_roots > 1 else AT_A_SERVER
    drift = 4 * network.whole.total.n_roots if noisy else 0
    needed = 8 * (each * n + drift + MATRICES) * observations.shape[0] * observations.shape[1]
    check_memory(needed, f"imputing a matrix of {shape} seen by {n} observers")


def _steps(observations: Observations, settings: ImputeSettings, codec: Codec | None) -> Any:
    if not isinstance(settings.step_size, str) or settings.step_size != "auto":
        return settings.step_size
    omega = noise_of(Quantizer(codec, int(np.prod(observations.shape))))
    mean_count = float(observations.counts.mean())
    present = least_participation(settings.participation)
    batch = settings.batch_size or ceil(mean_count)
    if settings.variance_reduction:
        drawn, _ = batches_of(mean_count, omega, present, settings.batch_size, None)
        batch = drawn or ceil(mean_count)
    return f"constant:{safe_step(omega, present * min(1.0, batch / mean_count)):g}"


def _facts(
    observations: Observations, settings: ImputeSettings, codec: Codec | None, network: Network
) -> State:
    part = observations.seen_by(set(network.total.holders.own.tolist()))
    return settings.values() | {
        "algorithm": "fedmissem",
        "what was seen": checksum(part.shape, *part.places, *part.values),
        "what entries weigh": checksum(*(part.weights or ())),
        **network_facts(network.whole),
        "compress": None if codec is None else codec.name,
        "step_size": describe_steps(settings.step_size),
    }


def _options(run: FedRun, settings: ImputeSettings) -> Report:
    return {
        **reported(settings, "copies", "scale"),
        **describe_presence(settings.participation, len(run.memories)),
        **reported(settings, *["observer_shrinkage"] * (settings.observer_shrinkage is not None)),
        "step_size": None if callable(settings.step_size) else settings.step_size,
        **reported(settings, "batch_size", "variance_reduction"),
        "alpha": run.alpha,
        **reported(settings, "memory", "tol", "max_iter"),
    }


def _warn(imputation: Imputation, tol: float, noise_stays: bool) -> None:
    run = imputation.run
    if run.in_noise:
        warn(
            f"at rest after {run.n_iter} iterations, except for the noise of drawn entries, which "
            "stays in the result: ", Setting("variance_reduction", True), " removes it, smaller "
            "steps reduce it",
        )  # fmt: skip
    if tol > 0 and not run.converged:
        advice: tuple[str | Setting, ...] = (
            "try a larger ", Setting("tol"), " or a larger ", Setting("max_iter"),
        )  # fmt: skip
        if noise_stays:
            advice = (
                "entries drawn in every iteration keep it moving; try ",
                Setting("variance_reduction", True),
                " or all entries",
            )
        warn(
            f"not converged after {run.n_iter} iterations: the statistic is still corrected by "
            f"more than {tol:g} of itself; ",
            *advice,
            kind=not_converged,
        )
    zero = not imputation.factors.singular_values.any()
    if imputation.choice is not None and imputation.choice["column_means_win"]:
        advice_of_means = "these means are imputed" if zero else "these means would be better"
        text = "no fit predicts held-out entries better than the means of their columns do: "
        warn(text + advice_of_means)
    elif zero:
        warn(
            f"theta is zero everywhere: a ridge of {imputation.ridge:g} leaves nothing of what was "
            "seen; try a smaller one"
        )
