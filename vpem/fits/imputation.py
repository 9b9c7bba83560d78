"""FedMissEM: observers of parts of a matrix find what nobody saw, by a matrix of low rank.

Dieuleveut, Fort, Moulines and Robin 2021, section 4. An entry's law has a natural parameter theta,
and theta = U V^T is of rank r. Of n copies of the matrix, one an observer, each has seen a part.
The E-step fills an observer's copy by the mean that theta foretells; the mean of the copies is the
statistic of `vpem.steps.fedem`; the M-step is in `vpem.terms.lowrank.factors`. What is minimized is

    sum over entries seen of (psi(theta) - y theta) / dispersion  +  copies ridge/2 (|U|^2 + |V|^2)
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import check_memory
from vpem.errors import InputError, NotConvergedWarning, Setting, VpemWarning
from vpem.files.fingerprint import checksum, describe_steps
from vpem.fits.imputation_steps import enough_iterations, safe_step
from vpem.fits.results import Result
from vpem.fits.settings import ImputeSettings
from vpem.network.codecs import Codec, parse_codec
from vpem.network.ledger import Ledger
from vpem.network.schema import NOTHING, Report, State
from vpem.network.topologies import make_graph
from vpem.settings import FedSettings
from vpem.steps.fedem import run_fedem
from vpem.steps.fedruns import FedProgress, FedRun
from vpem.steps.restarts import OneRun
from vpem.steps.saver import Saver
from vpem.sums.quantizer import ITEM
from vpem.sums.server import ServerSum
from vpem.terms.lowrank.factors import LowRank
from vpem.terms.lowrank.laws import Law, make_law
from vpem.terms.lowrank.model import ImputationModel
from vpem.terms.lowrank.observations import Observations, check_law
from vpem.terms.scaling import Scaling

__all__ = ["Imputation", "count_copies", "fit_imputation"]

Matrix = NDArray[np.float64]

MATRICES = 8
"""Matrices of I x J numbers that a fit needs beside two an observer."""


@dataclass(kw_only=True)
class Imputation(Result):
    """A matrix with nothing missing, and how it was found.

    Attributes
    ----------
    observations : Observations
        What it was found from.
    law : Law
        Of the entries.
    factors : LowRank
        U and V of theta.
    rank, ridge, n_copies
        As used.
    log_likelihood : float
        An entry seen, in nats.
    run : FedRun
        History, memories, projections.
    compress : str or None
        Name of the codec.
    options : dict
        Participation, step size and the like, as used.
    scaling : Scaling
        Of the columns: theta is of entries in these units.
    converged, seconds, communication
        See `vpem.fits.results.Result`.
    """

    observations: Observations
    law: Law
    factors: LowRank
    rank: int
    ridge: float
    n_copies: int
    log_likelihood: float
    run: FedRun
    compress: str | None
    scaling: Scaling
    options: Report = field(default_factory=dict)

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.run.n_iter

    @property
    def fitted(self) -> Matrix:
        """Expectation of every entry, in the law's mean units, shape (I, J)."""
        return self.law.mean(self.factors.theta) * self.scaling.scale + self.scaling.shift

    @property
    def imputed(self) -> Matrix:
        """Entries as seen (their mean over observers), and the fitted ones elsewhere, (I, J)."""
        seen = self.observations.mean
        return np.where(np.isnan(seen), self.fitted, seen)

    @property
    def row_trend(self) -> Matrix:
        """Mean of the fitted matrix along each row, shape (I,)."""
        found: Matrix = self.fitted.mean(axis=1)
        return found

    @property
    def column_trend(self) -> Matrix:
        """Mean of the fitted matrix along each column, shape (J,)."""
        found: Matrix = self.fitted.mean(axis=0)
        return found

    def describe(self) -> Report:
        """Summarize the imputation in values that JSON can hold.

        Returns
        -------
        dict
            Log-likelihoods are in nats an entry seen; ``history`` is the penalized one, of the
            start and after every iteration, as are ``mean_field``, ``epochs`` and ``bytes_up``.
        """
        given, history = self.observations, self.run.history
        rows, columns = given.shape
        return {
            "algorithm": "fedmissem",
            "n_samples": rows,
            "n_features": columns,
            "n_workers": given.n_observers,
            "worker_names": list(given.names),
            "n_entries": given.n_entries,
            "share_seen": float((given.times_seen > 0).mean()),
            "law": self.law.name,
            "variance": self.law.dispersion if self.law.name == "gaussian" else None,
            "rank": self.rank,
            "ridge": self.ridge,
            "n_copies": self.n_copies,
            "singular_values": self.factors.singular_values.tolist(),
            "log_likelihood": self.log_likelihood,
            "objective": history.objective[-1],
            "row_trend": self.row_trend.tolist(),
            "column_trend": self.column_trend.tolist(),
            "converged": self.converged,
            "n_iter": self.n_iter,
            "projections": self.run.projections,
            "compress": self.compress,
            **self.options,
            "history": history.objective,
            "mean_field": history.mean_field,
            "epochs": history.epochs,
            "bytes_up": history.bytes_up,
            "communication": self.communication,
            "seconds": self.seconds,
        }


def count_copies(observations: Observations, copies: str) -> int:
    """Say of how many copies of the matrix the observers saw parts; see `fit_imputation`."""
    if copies == "auto" and observations.n_copies is not None:
        return observations.n_copies
    if copies == "fewest":
        return int(observations.times_seen.max())
    return observations.n_observers


def fit_imputation(
    observations: Observations,
    settings: ImputeSettings | None = None,
    *,
    callback: Callable[[FedProgress], None] | None = None,
    saver: Saver | None = None,
    **changes: Any,
) -> Imputation:
    """Impute what no observer saw, by federated EM with a matrix of low rank.

    Parameters
    ----------
    observations : Observations
        Who saw what.
    settings : ImputeSettings, optional
        None: the defaults.
    callback : callable, optional
        Told of every iteration.
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
    Imputation

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
        If theta is zero: nothing was found but the ridge.
    """
    began = time.perf_counter()
    how = ImputeSettings.of(settings, **changes)
    law = make_law(how.law, how.variance)
    _check(observations, law, how)
    codec = None if how.compress is None else parse_codec(how.compress)
    # Memories take the noise of participation and codec away, and SPIDER that of batches.
    noise_stays = not how.variance_reduction and (
        how.batch_size is not None and how.batch_size < int(observations.counts.max())
    )
    how = how.changed(step_size=_steps(observations, how, codec))
    if how.max_iter is None:
        how = how.changed(max_iter=enough_iterations(how.step_size, noise_stays))
    how = how.changed(n_threads=thread_count(how.n_threads))
    if saver is not None:
        saver.begin(_facts(observations, how, codec))
    ledger = Ledger(make_graph("star", observations.n_observers))
    scaled, scaling = _scaled(observations, how.scale, how.law, ledger)
    copies = count_copies(observations, how.copies)
    model = ImputationModel(scaled, law, how.rank, how.ridge, copies)
    saving = OneRun(saver, ledger)
    if saving.saved is not None:
        saving.restored(NOTHING)
    # Where noise outgrows the steps the engine says so, once numbers are no longer finite.
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        run = run_fedem(
            model,
            model.start,
            how.into(FedSettings, weighting="workers", tol=how.tol * how.tol),
            codec=codec,
            ledger=ledger,
            rng=np.random.default_rng(how.seed),
            callback=callback,
            saver=saving.inner(None),
        )
        units = _log_units(observations, scaling)
        found = Imputation(
            observations=observations,
            law=law,
            factors=run.parameters,
            rank=how.rank,
            ridge=how.ridge,
            n_copies=model.n_copies,
            log_likelihood=(model.log_likelihood(run.parameters) - units) / observations.n_entries,
            run=run,
            converged=run.converged,
            communication=ledger.summary() | {"bytes_by_iteration": list(run.history.bytes)},
            compress=None if codec is None else codec.name,
            scaling=scaling,
            options=_options(run, how),
        )
    found.seconds = time.perf_counter() - began + saving.seconds
    _warn(found, how.tol, noise_stays)
    return found


def _check(observations: Observations, law: Law, how: ImputeSettings) -> None:
    """Raise InputError where the observations are not for these settings."""
    small = min(observations.shape)
    shape = " x ".join(map(str, observations.shape))
    if how.rank > small:
        raise InputError(f"a matrix of {shape} has at most rank {small}, got {how.rank}")
    if how.ridge == 0 and how.law != "gaussian":
        raise InputError(
            f"the {how.law} law needs a ridge above 0, without which theta may grow forever; try "
            "0.1"
        )
    check_law(observations, law)
    n = observations.n_observers
    needed = 8 * (2 * n + MATRICES) * observations.shape[0] * observations.shape[1]
    check_memory(needed, f"imputing a matrix of {shape} seen by {n} observers")


def _steps(observations: Observations, how: ImputeSettings, codec: Codec | None) -> Any:
    """Return the steps, where they are "auto" those that noise allows."""
    if not isinstance(how.step_size, str) or how.step_size != "auto":
        return how.step_size
    held = float(observations.counts.mean())
    batch = how.batch_size
    if batch is None:
        batch = ceil(sqrt(held)) if how.variance_reduction else ceil(held)
    step = safe_step(codec, how.participation, observations.shape, min(1.0, batch / held))
    return f"constant:{step:g}"


def _facts(observations: Observations, how: ImputeSettings, codec: Codec | None) -> State:
    """Return what must be the same when a run goes on from a checkpoint."""
    return how.values() | {
        "algorithm": "fedmissem",
        "what was seen": checksum(observations.shape, *observations.places, *observations.values),
        "compress": None if codec is None else codec.name,
        "step_size": describe_steps(how.step_size),
    }


def _options(run: FedRun, how: ImputeSettings) -> Report:
    """Return what a report says of the settings, as they were taken."""
    return {
        "copies": how.copies,
        "scale": how.scale,
        "participation": how.participation,
        "step_size": None if callable(how.step_size) else how.step_size,
        "batch_size": how.batch_size,
        "variance_reduction": how.variance_reduction,
        "alpha": run.alpha,
        "memory": how.memory,
        "tol": how.tol,
        "max_iter": how.max_iter,
    }


def _scaled(
    observations: Observations, scale: str, law: str, ledger: Ledger
) -> tuple[Observations, Scaling]:
    """Standardize columns, by counts, means and sums of squares that every observer sends."""
    n_columns = observations.shape[1]
    if scale == "none":
        return observations, Scaling(np.zeros(n_columns), np.ones(n_columns))
    if law != "gaussian":
        raise InputError(
            f"only entries of the gaussian law have units to scale, not those of the {law} law; "
            "take scale none"
        )
    columns = np.concatenate(observations.places) % n_columns
    values = np.concatenate(observations.values)
    counts = np.bincount(columns, minlength=n_columns)
    means = np.bincount(columns, values, n_columns) / counts
    squares = np.bincount(columns, (values - means[columns]) ** 2, n_columns) / counts
    spread = np.sqrt(squares)
    spread[spread <= 1e-12 * np.abs(means)] = 1.0
    spread[spread == 0] = 1.0
    total = ServerSum(observations.n_observers).on(ledger)
    total.charge_as("setup")
    total.count(3 * ITEM * n_columns)
    total.broadcast(2 * ITEM * n_columns)
    parts = zip(observations.places, observations.values, strict=True)
    scaled = tuple((own - means[at % n_columns]) / spread[at % n_columns] for at, own in parts)
    return replace(observations, values=scaled), Scaling(means, spread)


def _log_units(observations: Observations, scaling: Scaling) -> float:
    """What the density of all entries loses by the units they are scaled from."""
    columns = np.concatenate(observations.places) % observations.shape[1]
    return float(np.log(scaling.scale)[columns].sum())


def _warn(found: Imputation, tol: float, noise_stays: bool) -> None:
    """Say what should be known of a result."""
    run = found.run
    if tol > 0 and not run.converged:
        advice: tuple[str | Setting, ...] = (
            "try a larger ", Setting("tol"), " or a larger ", Setting("max_iter"),
        )  # fmt: skip
        if noise_stays:
            advice = (
                "entries drawn anew keep it moving; try ",
                Setting("variance_reduction", True),
                " or all entries",
            )
        warnings.warn(
            NotConvergedWarning(
                f"not converged after {run.n_iter} iterations: the statistic is still corrected by "
                f"more than {tol:g} of itself; ",
                *advice,
            ),
            stacklevel=3,
        )
    if not found.factors.singular_values.any():
        warnings.warn(
            f"theta is zero everywhere: a ridge of {found.ridge:g} leaves nothing of what was "
            "seen; try a smaller one",
            VpemWarning,
            stacklevel=3,
        )
