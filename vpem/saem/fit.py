"""`fit_saem`: a model fitted to individuals on devices, with all that is told of the fit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, NotConvergedWarning, VpemWarning
from vpem.files.fingerprint import checksum, start_facts
from vpem.network.codecs import Codec, parse_codec
from vpem.network.holdings import Workers, evenly
from vpem.network.ledger import Ledger
from vpem.network.schema import NOTHING, Report, State
from vpem.saem.conditional import Conditional, sample_conditional
from vpem.saem.fisher import observed_information, standard_errors
from vpem.saem.individuals import Individuals
from vpem.saem.likelihood import LogLikelihood, importance_log_likelihood
from vpem.saem.models.catalogue import MODELS, OWN, all_options, make_model
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.saem import SaemProgress, SaemRun, burn_in_of, chains_of, run_saem
from vpem.saem.samplers import AUTO, Sampler, sampler_of, usual_sampler
from vpem.saem.server import SaemServer
from vpem.saem.streams import Streams
from vpem.settings import SaemSettings
from vpem.steps.restarts import OneRun
from vpem.steps.saver import Saver

__all__ = ["MODELS", "SaemFit", "fit_saem", "make_model"]


FEWEST = 0.01
"""Share of importance draws that weighted ones are worth, below which chains are doubted."""


@dataclass(frozen=True)
class SaemFit:
    """A fitted model.

    Attributes
    ----------
    model : SaemModel
        Of all individuals.
    theta : ndarray of shape (p,)
        Estimates.
    standard_errors : ndarray of shape (p,)
        Of them; NaN where the information is not positive definite.
    information : ndarray of shape (p, p)
        Observed information.
    log_likelihood : LogLikelihood
        With its Monte Carlo error.
    given : Conditional
        Latents of each individual: means, intervals, shrinkage.
    acceptance : ndarray of shape (n,) or None
        Share of a sampler's moves that were accepted after the burn-in; None where all are.
    trace : ndarray of shape (n_iter + 1, p)
        Parameters, the start first.
    bytes : ndarray of shape (n_iter,)
        Payload bytes sent until each iteration.
    n_iter : int
        Iterations.
    converged : bool
        Whether the parameters had settled, to ``tol``.
    change : float
        How far the farthest parameter was at the last look from where it settles, in its standard
        error; NaN: not looked at.
    grounds : str
        A sentence that says so; empty with ``tol`` 0.
    ledger : Ledger
        All that was sent.
    model_name : str
        One of `MODELS`, or ``own``.
    model_options : dict
        All options of a model that is named, as JSON can hold them.
    settings : dict
        How the fit was asked for, likewise.
    seconds : float
        Wall time, with that of a run that it went on from.
    """

    model: SaemModel
    theta: Vector
    standard_errors: Vector
    information: Vector
    log_likelihood: LogLikelihood
    given: Conditional
    acceptance: Vector | None
    trace: Vector
    bytes: NDArray[np.int64]
    n_iter: int
    converged: bool
    change: float
    grounds: str
    ledger: Ledger
    model_name: str
    model_options: Report
    settings: Report
    seconds: float = 0.0

    @property
    def estimates(self) -> dict[str, float]:
        """Estimates by the names of the parameters."""
        return dict(zip(self.model.parameters, self.theta.tolist(), strict=True))

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors by the names of the parameters."""
        return dict(zip(self.model.parameters, self.standard_errors.tolist(), strict=True))


def fit_saem(
    individuals: Individuals,
    model: str | Callable[[Individuals], SaemModel] = "linear",
    settings: SaemSettings | None = None,
    *,
    model_options: Mapping[str, Any] | None = None,
    devices: int | Workers = 1,
    sampler: str | Sampler = AUTO,
    sampler_options: Mapping[str, Any] | None = None,
    gradient_codec: str | Codec | None = None,
    start: Vector | None = None,
    callback: Callable[[SaemProgress], None] | None = None,
    announce: Callable[[str], None] | None = None,
    saver: Saver | None = None,
    **changes: Any,
) -> SaemFit:
    """Fit a model with latent variables by SAEM, on one machine or on devices with a server.

    Algorithms of the draft: 1 is ``average="models"``; 2 the default; 3 ``sampler="langevin"`` with
    a ``gradient_codec``; 4 a ``codec`` such as ``topk:0.1`` with or without ``feedback``; 5 these
    with ``participation``.

    Parameters
    ----------
    individuals : Individuals
        The data.
    model : str or callable
        One of `MODELS`, or what makes a `SaemModel` of individuals.
    model_options : mapping, optional
        Of a model that is named.
    settings, changes : SaemSettings
        How it is fitted, and what is to be otherwise: see `vpem.settings.SaemSettings` and
        `vpem.saem.saem.run_saem`. With ``tol`` 0 all iterations are made, and none is asked whether
        it converged. ``codec``: how devices send statistics (a name that
        `vpem.network.codecs.parse_codec` reads, or a codec; None: exactly); ``feedback``: see
        `vpem.saem.server.SaemServer`.
    devices : int or Workers
        How many hold runs of the individuals; or who holds which.
    sampler : {"auto", "exact", "metropolis", "langevin", "mala"} or Sampler
        With ``auto`` it is ``exact`` where the model's latents can be drawn so and no option is
        given that only others have, else ``metropolis``; settings say which.
    sampler_options : mapping, optional
        Of a sampler that is named, see `vpem.saem.samplers`.
    gradient_codec : str or Codec, optional
        Of the sampler ``langevin``.
    start, callback
        See `vpem.saem.saem.run_saem`.
    announce : callable, optional
        Told in words of each part of the work that comes after the iterations, when it begins.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).

    Returns
    -------
    SaemFit

    Raises
    ------
    InputError
        If data or options do not fit.
    NumericalError
        If parameters are not finite or a sampler runs away.

    Warns
    -----
    NotConvergedWarning
        If the parameters had not settled.
    VpemWarning
        If importance draws are worth few: the latents' law is not well known.
    """
    began = time.perf_counter()
    asked = SaemSettings.of(settings, **changes)
    made = _made(individuals, model, model_options)
    held = evenly(made.n, devices) if not isinstance(devices, Workers) else devices
    codec = parse_codec(asked.codec) if isinstance(asked.codec, str) else asked.codec
    chosen = _sampler(made, sampler, sampler_options, gradient_codec)
    if held.n_samples != made.n:
        raise InputError(f"devices hold {held.n_samples} individuals, but there are {made.n}")
    feedback = asked.feedback or ("none" if codec is None else "memory")
    server = SaemServer(held.counts / made.n, codec, feedback, made.pieces)
    if saver is not None:
        saver.begin(_facts(made, model, model_options, held, chosen, server, asked, start))
    saving = OneRun(saver, server.ledger)
    if saving.saved is not None:
        saving.restored(NOTHING)
    run = run_saem(
        made, held, chosen, server, asked, start=start, callback=callback, saver=saving.inner(None)
    )
    _warn_unless_settled(run, asked.tol)
    acceptance = run.chains.rates
    theta, first = made.canonical(run.theta, run.chains.z)
    trace = np.array(run.trace)
    if not np.array_equal(theta, run.theta):  # signs, say, are turned: those before as well
        trace = np.array([made.canonical(one, run.chains.z)[0] for one in run.trace])
    run.chains.z = first
    given, likelihood = _look_closer(made, theta, chosen, run, asked, announce or (lambda _: None))
    _warn_of_few(likelihood, individuals.names, asked.n_importance)
    information = observed_information(made, theta, given)
    server.sum_up()
    named = isinstance(model, str)
    kept = {
        "devices": held.n_workers, "sampler": chosen.name, "sampler_options": _options_of(chosen),
        **asked.values("level"), "n_chains": chains_of(chosen, made.n, asked.n_chains),
        "burn_in": burn_in_of(asked.n_iter, asked.burn_in),
        "codec": None if codec is None else codec.name, "feedback": feedback,
        "columns": dict(individuals.columns),
    }  # fmt: skip
    return SaemFit(
        made,
        theta,
        standard_errors(information, made.constraints(theta)),
        information,
        likelihood,
        given,
        acceptance,
        trace,
        np.array(run.bytes, dtype=np.int64),
        run.n_iter,
        run.converged,
        run.change,
        run.grounds,
        server.ledger,
        str(model) if named else OWN,
        all_options(str(model), model_options or {}) if named else {},
        kept,
        saving.seconds + time.perf_counter() - began,
    )


def _facts(
    made: SaemModel,
    model: str | Callable[[Individuals], SaemModel],
    model_options: Mapping[str, Any] | None,
    held: Workers,
    sampler: Sampler,
    server: SaemServer,
    asked: SaemSettings,
    start: Vector | None,
) -> State:
    """Return what must be the same when a run goes on from a checkpoint."""
    data = made.individuals
    named = isinstance(model, str)
    options = all_options(str(model), model_options or {}) if named else None
    return {
        "algorithm": "saem",
        "what the data hold": checksum(
            data.names, data.first, data.times, data.values, *data.covariates,
            *data.covariates.values(),
        ),
        "who holds which individuals": checksum(held.order, held.counts),
        "model": model if named else type(made).__name__,
        "what options the model has": checksum(options),
        "sampler": sampler.name,
        "what options the sampler has": checksum(_options_of(sampler)),
        **asked.values("n_iter", "n_conditional", "n_importance", "level"),
        "burn_in": burn_in_of(asked.n_iter, asked.burn_in),
        "codec": None if server.codec is None else server.codec.name,
        "feedback": server.feedback,
        "start": start_facts(start),
    }  # fmt: skip


def _look_closer(
    model: SaemModel,
    theta: Vector,
    sampler: Sampler,
    run: SaemRun,
    asked: SaemSettings,
    announce: Callable[[str], None],
) -> tuple[Conditional, LogLikelihood]:
    """Draw latents at the estimates, for individuals and for the log-likelihood."""
    streams = Streams.of(model.individuals.names, asked.seed)
    n_conditional, n_importance = asked.n_conditional, asked.n_importance
    announce(f"drawing latents at the estimates, {n_conditional} draws of each chain")
    given = sample_conditional(
        model, theta, sampler, run.chains, streams, after=run.n_iter,
        late=max(1, run.n_iter - burn_in_of(asked.n_iter, asked.burn_in)), n_iter=n_conditional,
        level=asked.level,
    )  # fmt: skip
    announce(f"computing the log-likelihood, {n_importance} draws of each individual")
    after = run.n_iter + n_conditional
    likelihood = importance_log_likelihood(
        model, theta, given, streams, after=after, n_draws=n_importance
    )
    announce("computing standard errors")
    return given, likelihood


def _warn_unless_settled(run: SaemRun, tol: float) -> None:
    """Warn where parameters had not settled."""
    if tol > 0 and not run.converged:
        warnings.warn(
            f"SAEM has not converged in {run.n_iter} iterations: {run.grounds}; take "
            f"{'more iterations or chains' if not run.change < tol else 'a simpler model'}",
            NotConvergedWarning,
            stacklevel=3,
        )


def _warn_of_few(likelihood: LogLikelihood, names: Sequence[str], n_draws: int) -> None:
    """Warn where the draws of latents cannot be those of their law: chains that hardly move."""
    who = int(np.argmin(likelihood.effective))
    if likelihood.effective[who] < FEWEST * n_draws:
        warnings.warn(
            f"the {n_draws} importance draws of individual {names[who]!r} are worth "
            f"{likelihood.effective[who]:.1f}: its chains have not seen all of the latents' law, "
            "and estimates may be off; take the sampler exact where the model has it, centre "
            "times, or make more sampling steps",
            VpemWarning,
            stacklevel=3,
        )


def _options_of(sampler: Sampler) -> Report:
    """Options of a sampler of vpem that results depend on, a codec by its name."""
    if not is_dataclass(sampler):
        return {}
    held = {one.name: getattr(sampler, one.name) for one in fields(sampler)
            if one.name != "n_threads"}  # fmt: skip
    return {one: getattr(value, "name", value) for one, value in held.items()}


def _made(
    individuals: Individuals,
    model: str | Callable[[Individuals], SaemModel],
    options: Mapping[str, Any] | None,
) -> SaemModel:
    if isinstance(model, str):
        return make_model(model, individuals, **(options or {}))
    made = model(individuals)
    if options or not isinstance(made, SaemModel):
        raise InputError(
            "a model of your own is a function of the individuals that returns a SaemModel, with "
            f"no model_options; got {type(made).__name__}"
        )
    if not made.pieces:
        raise InputError(f"model {type(made).__name__} has no pieces, the parts of a statistic")
    return made


def _sampler(
    model: SaemModel,
    sampler: str | Sampler,
    options: Mapping[str, Any] | None,
    gradient_codec: str | Codec | None,
) -> Sampler:
    options = dict(options or {})
    if sampler == AUTO:
        sampler = usual_sampler(type(model), options)
        if sampler == "exact":
            options.pop("n_threads", None)  # the result does not depend on them
    if isinstance(gradient_codec, str):
        gradient_codec = parse_codec(gradient_codec)
    more = {} if gradient_codec is None else {"codec": gradient_codec}
    if not isinstance(sampler, str) and (options or more):
        raise InputError("a sampler that is made has its options; give a name, or no options")
    found = sampler_of(sampler, **options, **more)
    if model.discrete and found.name != "exact":
        raise InputError(
            f"latents of {type(model).__name__} are discrete, which {found.name} cannot move; take "
            "the sampler exact"
        )
    return found
