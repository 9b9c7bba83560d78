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
from vpem.checks import check_int, check_memory, check_number
from vpem.errors import InputError, NotConvergedWarning, Setting, VpemWarning, check_choice
from vpem.fits.fingerprint import checksum, describe_steps
from vpem.fits.results import Result
from vpem.network.codecs import Codec, parse_codec
from vpem.network.ledger import Ledger
from vpem.network.schema import NOTHING, Array, Report, Schema
from vpem.network.topologies import make_graph
from vpem.steps.fedem import run_fedem
from vpem.steps.fedruns import FedProgress, FedRun, StepSize, parse_step_size
from vpem.steps.restarts import OneRun
from vpem.steps.saver import Saver
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.server import ServerSum
from vpem.terms.lowrank.factors import LowRank, descend, shrink
from vpem.terms.lowrank.laws import Gaussian, Law, make_law
from vpem.terms.lowrank.observations import Observations, check_law
from vpem.terms.scaling import Scaling

__all__ = [
    "COPIES",
    "Imputation",
    "ImputationModel",
    "count_copies",
    "enough_iterations",
    "fit_imputation",
    "safe_step",
]

Matrix = NDArray[np.float64]

COPIES = ("auto", "observers", "fewest")
"""How many copies of the matrix there are: see `fit_imputation`."""

MATRICES = 8
"""Matrices of I x J numbers that a fit needs beside two an observer."""

WHOLE_STEPS = 1000
"""Whole steps of EM, of length 1, that the default of ``max_iter`` is worth."""

MOST_ITERATIONS = 20_000
"""The largest default of ``max_iter``, however short the steps."""

OUTSIDE = 1e-9
"""How far a mean may lie outside its law's domain before this counts as projected."""


class ImputationModel:
    """What FedEM needs to know of imputation (`vpem.steps.fedem.StatisticModel`).

    Parameters
    ----------
    observations : Observations
        Who saw what.
    law : Law
        Of the entries.
    rank : int
        Of theta.
    ridge : float
        Penalty of the factors.
    n_copies : int
        Copies of the matrix of which the observers saw parts: at least as many as observers saw
        any one entry.

    Attributes
    ----------
    size : int
        Numbers of a statistic, I J.
    pieces : tuple of slice
        The whole of it: entries have one unit.
    counts : ndarray of shape (n,)
        Entries that each observer saw.
    start : ndarray of shape (I J,)
        The statistic of theta = 0, which all know.
    """

    def __init__(
        self, observations: Observations, law: Law, rank: int, ridge: float, n_copies: int
    ) -> None:
        self.observations = observations
        self.law = law
        self.rank = rank
        self.ridge = ridge
        self.n_copies = n_copies
        self.shape = observations.shape
        self.size = self.shape[0] * self.shape[1]
        self.pieces: tuple[slice, ...] = (slice(0, self.size),)
        self.counts = observations.counts
        self.start = law.mean(np.zeros(self.size))
        # Observers n, copies c: each has n/c entries' worth of news where it saw one.
        self._share = observations.n_observers / n_copies
        self._point = LowRank.zeros(*self.shape, rank)
        self._known: tuple[LowRank, Matrix] | None = None
        every = np.concatenate(observations.places)
        values = np.concatenate(observations.values)
        self._seen = np.bincount(every, minlength=self.size)
        self._total = np.bincount(every, values, self.size)
        self._base = float(law.base(values).sum())

    def means(self, parameters: LowRank) -> Matrix:
        """Expectations of all entries (I J,), kept from one observer's turn to the next."""
        if self._known is None or self._known[0] is not parameters:
            self._known = (parameters, self.law.mean(parameters.theta.ravel()))
        return self._known[1]

    def expect(self, worker: int, parameters: Any, rows: NDArray[np.intp] | None) -> Matrix:
        """Fill an observer's copy: what it saw, and elsewhere what the parameters foretell.

        Parameters
        ----------
        worker : int
            Which observer.
        parameters : LowRank
            Current ones.
        rows : ndarray or None
            Some of the entries that it saw, which stand for all of them; None: all.

        Returns
        -------
        ndarray of shape (I J,)
        """
        means = self.means(parameters)
        found = means.copy()
        places = self.observations.places[worker]
        values = self.observations.values[worker]
        share = self._share
        if rows is not None:
            share *= len(places) / len(rows)
            places, values = places[rows], values[rows]
        np.add.at(found, places, share * (values - means[places]))
        return found

    def maximize(self, statistic: Matrix) -> tuple[LowRank, int]:
        """Fit theta to a statistic (I J,); means outside the law's domain are moved to its edge."""
        low, high = self.law.domain()
        outside = (statistic < low - OUTSIDE) | (statistic > high + OUTSIDE)
        filled = np.clip(statistic, low, high).reshape(self.shape)
        if isinstance(self.law, Gaussian):
            point = shrink(filled, self.ridge * self.law.dispersion, self.rank)
        else:
            point = self._point = descend(self.law, filled, self.ridge, self._point)
        return point, int(outside.sum())

    def pack(self, parameters: LowRank) -> Report:
        """Parameters as arrays."""
        return {"U": parameters.U, "V": parameters.V}

    def packed(self) -> Schema:
        """Return what these must be."""
        rows, columns = self.shape
        return {"U": Array("f8", (rows, self.rank)), "V": Array("f8", (columns, self.rank))}

    def unpack(self, state: Report) -> LowRank:
        """Parameters of these arrays."""
        return LowRank(state["U"], state["V"])

    def state(self) -> Report:
        """Return where an M-step that is a descent sets out from."""
        return self.pack(self._point)

    def schema(self) -> Schema:
        """Return what that must be."""
        return self.packed()

    def restore(self, state: Report) -> None:
        """Go on from there."""
        self._point = self.unpack(state)

    def log_likelihood(self, parameters: LowRank) -> float:
        """Log-likelihood of all entries seen together, in nats."""
        theta = parameters.theta.ravel()
        fit = float(self._total @ theta - self._seen @ self.law.cumulant(theta))
        return fit / self.law.dispersion + self._base

    def objective(self, parameters: LowRank) -> float:
        """Penalized log-likelihood an entry seen: EM never lowers it."""
        penalty = self.n_copies * self.ridge * parameters.penalty
        return (self.log_likelihood(parameters) - penalty) / int(self.counts.sum())


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
    check_choice("copies", copies, COPIES)
    if copies == "auto" and observations.n_copies is not None:
        return observations.n_copies
    if copies == "fewest":
        return int(observations.times_seen.max())
    return observations.n_observers


def safe_step(
    codec: Codec | None, participation: float, shape: tuple[int, int], drawn: float = 1.0
) -> float:
    """Choose a step that noise does not outgrow.

    Take an entry that one observer alone has seen, where theta follows the statistic fully. With x
    the distance yet to go and v its memory, an iteration is ``x -= step (v + xi D / p)`` and
    ``v += alpha xi D``, where xi is 1 with probability p, else 0, and D is ``x - v`` with a
    variance of omega by the codec. Second moments of (x, v) fall for steps below ``c t``,
    ``t = p / (1 + omega)``: c is 0.6 for small t, 0.9 at t = 1/2 and 1 at t = 1, and they fall
    fastest at about half of that where t < 0.8. So the step is t / 2 there, and grows to t at t =
    1. Where the observer draws a batch, p is the chance that both are drawn.

    Parameters
    ----------
    codec : Codec or None
        Of what observers send.
    participation : float
        Probability p that an observer takes part.
    shape : tuple of int
        Of the matrix.
    drawn : float
        Share of its entries that an observer draws.

    Returns
    -------
    float
        Above 0 and at most 1.
    """
    noise = Quantizer(codec, (slice(0, shape[0] * shape[1]),)).omega
    certain = participation * drawn / (1.0 + noise)
    return max(certain * max(0.5, 2.5 * certain - 1.5), 1e-4)


def enough_iterations(step_size: str | float | StepSize, noise_stays: bool = False) -> int:
    """Choose how many iterations a fit may take: as many steps as are worth `WHOLE_STEPS`.

    Parameters
    ----------
    step_size : str, float or callable
        As `vpem.steps.fedruns.parse_step_size` takes it.
    noise_stays : bool
        Whether noise remains however long the fit goes on (of batches without variance reduction):
        more iterations then bring nothing to rest.

    Returns
    -------
    int
        From `WHOLE_STEPS` to `MOST_ITERATIONS`; the former where steps are a function.
    """
    if noise_stays or callable(step_size):
        return WHOLE_STEPS
    steps = parse_step_size(step_size)
    gone, iteration = 0.0, 0
    while gone < WHOLE_STEPS * (1 - 1e-9) and iteration < MOST_ITERATIONS:
        iteration += 1
        gone += float(steps(iteration))
    return max(iteration, WHOLE_STEPS)


def fit_imputation(
    observations: Observations,
    *,
    rank: int = 2,
    ridge: float = 1.0,
    law: str = "gaussian",
    variance: float = 1.0,
    copies: str = "auto",
    scale: str = "none",
    compress: str | None = None,
    participation: float = 1.0,
    step_size: str | float | StepSize = "auto",
    batch_size: int | None = None,
    variance_reduction: bool = False,
    alpha: float | None = None,
    memory: str = "first",
    max_iter: int | None = None,
    tol: float = 1e-5,
    seed: int = 0,
    n_threads: int | None = None,
    callback: Callable[[FedProgress], None] | None = None,
    saver: Saver | None = None,
) -> Imputation:
    """Impute what no observer saw, by federated EM with a matrix of low rank.

    Parameters
    ----------
    observations : Observations
        Who saw what.
    rank : int
        Of theta, at most the smaller side of the matrix.
    ridge : float
        Penalty of the factors; above 0 unless the law is Gaussian.
    law : {"gaussian", "poisson", "bernoulli"}
        Of an entry; theta is its mean, log intensity, or log odds.
    variance : float
        Of the Gaussian law.
    copies : {"auto", "observers", "fewest"}
        Of how many copies of the matrix the observers saw parts. "observers": one each, as in the
        paper. "fewest": as many as observers saw any one entry, which needs fewer iterations, and
        does not shrink theta the more the more observers share the work. "auto": one for parts
        that one matrix was split into, else one an observer. The ridge counts once a copy.
    scale : {"none", "standard"}
        "standard": every column's entries minus their mean, by their standard deviation, found by a
        sum over observers before the first iteration; Gaussian law only. Undone in the results;
        the objective is that of the scaled entries.
    compress : str, optional
        Codec of what observers send (`vpem.network.codecs.parse_codec`).
    participation : float
        Probability that an observer takes part in an iteration.
    step_size : str, float or callable
        Steps of the statistic (`vpem.steps.fedruns.parse_step_size`). "auto": 1 where everyone
        takes part and no noise is added, else as small as noise demands; see `safe_step`.
    batch_size : int, optional
        Entries that an observer draws of its own in an iteration.
    variance_reduction : bool
        VR-FedEM.
    alpha, memory
        See `vpem.steps.fedem.run_fedem`.
    max_iter : int, optional
        Most iterations; None: 1000 where steps are whole, and as many more as steps are shorter, up
        to 20000 (`enough_iterations`).
    tol : float
        Stop when the correction of the statistic, before it is multiplied by the step, is less than
        this part of the statistic's norm; 0: never. Memories take away the noise of participation
        and codec as the fit comes to rest, so that this bounds the mean field with them as without.
    seed : int
        Draws observers, batches and the codec's keys.
    n_threads : int, optional
        Of the codec.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).

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
    entry = make_law(law, variance)
    rank = check_int("rank", rank, least=1)
    small = min(observations.shape)
    shape = " x ".join(map(str, observations.shape))
    if rank > small:
        raise InputError(f"a matrix of {shape} has at most rank {small}, got {rank}")
    ridge = check_number("ridge", ridge, least=0.0, most=1e100)
    if ridge == 0 and law != "gaussian":
        raise InputError(
            f"the {law} law needs a ridge above 0, without which theta may grow forever; try 0.1"
        )
    if max_iter is not None:
        max_iter = check_int("max_iter", max_iter, least=1)
    tol = check_number("tol", tol, least=0.0, most=1.0)
    seed = check_int("seed", seed, least=0)
    check_law(observations, entry)
    n = observations.n_observers
    needed = 8 * (2 * n + MATRICES) * observations.shape[0] * observations.shape[1]
    check_memory(needed, f"imputing a matrix of {shape} seen by {n} observers")
    codec = None if compress is None else parse_codec(compress)
    participation = check_number("participation", participation, least=0.0, most=1.0, above=True)
    if batch_size is not None:
        batch_size = check_int("batch_size", batch_size, least=1)
    # Memories take the noise of participation and codec away, and SPIDER that of batches.
    noise_stays = not variance_reduction and (
        batch_size is not None and batch_size < int(observations.counts.max())
    )
    if isinstance(step_size, str) and step_size == "auto":
        held = float(observations.counts.mean())
        batch = batch_size
        if batch is None:
            batch = ceil(sqrt(held)) if variance_reduction else ceil(held)
        step = safe_step(codec, participation, observations.shape, min(1.0, batch / held))
        step_size = f"constant:{step:g}"
    if max_iter is None:
        max_iter = enough_iterations(step_size, noise_stays)
    threads = thread_count(n_threads)
    if saver is not None:
        saver.begin(
            {
                "algorithm": "fedmissem",
                "what was seen": checksum(
                    observations.shape, *observations.places, *observations.values
                ),
                "rank": rank,
                "ridge": ridge,
                "law": law,
                "variance": float(variance),
                "copies": copies,
                "scale": scale,
                "compress": None if codec is None else codec.name,
                "participation": participation,
                "step_size": describe_steps(step_size),
                "batch_size": batch_size,
                "variance_reduction": bool(variance_reduction),
                "alpha": alpha,
                "memory": memory,
                "max_iter": max_iter,
                "tol": tol,
                "seed": seed,
                "n_threads": threads,
            }
        )
    ledger = Ledger(make_graph("star", n))
    scaled, scaling = _scaled(observations, scale, law, ledger)
    model = ImputationModel(scaled, entry, rank, ridge, count_copies(observations, copies))
    saving = OneRun(saver, ledger)
    if saving.saved is not None:
        saving.restored(NOTHING)
    # Where noise outgrows the steps the engine says so, once numbers are no longer finite.
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        run = run_fedem(
            model,
            model.start,
            max_iter=max_iter,
            step_size=step_size,
            codec=codec,
            alpha=alpha,
            participation=participation,
            batch_size=batch_size,
            variance_reduction=variance_reduction,
            weighting="workers",
            memory=memory,
            ledger=ledger,
            tol=tol * tol,
            rng=np.random.default_rng(seed),
            n_threads=threads,
            callback=callback,
            saver=saving.inner(None),
        )
        found = Imputation(
            observations=observations,
            law=entry,
            factors=run.parameters,
            rank=rank,
            ridge=ridge,
            n_copies=model.n_copies,
            log_likelihood=(
                model.log_likelihood(run.parameters) - _log_units(observations, scaling)
            )
            / observations.n_entries,
            run=run,
            converged=run.converged,
            communication=ledger.summary() | {"bytes_by_iteration": list(run.history.bytes)},
            compress=None if codec is None else codec.name,
            scaling=scaling,
            options={
                "copies": copies,
                "scale": scale,
                "participation": participation,
                "step_size": step_size if isinstance(step_size, str | float | int) else None,
                "batch_size": batch_size,
                "variance_reduction": variance_reduction,
                "alpha": run.alpha,
                "memory": memory,
                "tol": tol,
                "max_iter": max_iter,
            },
        )
    found.seconds = time.perf_counter() - began + saving.seconds
    _warn(found, tol, noise_stays)
    return found


def _scaled(
    observations: Observations, scale: str, law: str, ledger: Ledger
) -> tuple[Observations, Scaling]:
    """Standardize columns, by counts, means and sums of squares that every observer sends."""
    n_columns = observations.shape[1]
    check_choice("scale", scale, ("none", "standard"))
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
    total.charge = "setup"
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
