"""`fit_saem`: a model fitted to individuals on devices, and what draws say at the estimates."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from itertools import pairwise

import numpy as np

from vpem.checks import Doubles, check_kind
from vpem.errors import InputError, Setting, not_converged, warn
from vpem.files.checkpoints import checksum, network_facts, start_facts
from vpem.network.codecs import Codec, parse_codec
from vpem.network.partition import Workers, evenly
from vpem.network.schema import KEPT, NOTHING, Array, Report, State, check
from vpem.rules import refuse
from vpem.saem.conditional import (
    Certainty,
    Conditional,
    LogLikelihood,
    exact_conditional,
    importance_log_likelihood,
    sample_conditional,
)
from vpem.saem.individuals import AllIndividuals, Individuals
from vpem.saem.models.model import INCOMPLETE, OWN, SaemModel, all_options, make_model, model_class
from vpem.saem.results import (
    SaemFit,
    SavedSaem,
    corpus_facts,
    individuals_of,
    spread_of,
    warn_of_few,
)
from vpem.saem.saem import (
    SaemProgress,
    SaemRun,
    burn_in_of,
    chains_of,
    draws_until,
    exact_at,
    in_full,
    run_saem,
)
from vpem.saem.samplers import AUTO, Sampler, options_of, sampler_of, usual_sampler
from vpem.saem.server import SaemNeighbours, SaemServer, keeper_of
from vpem.saem.stopping import BY_FORMULAS
from vpem.settings import SaemSettings
from vpem.steps.fedem_sums import check_masked
from vpem.steps.recovery import Saver
from vpem.steps.restarts import OneRun
from vpem.sums.connect import Network, refuse_directed


def fit_saem(
    individuals: Individuals,
    model: str | Callable[[Individuals], SaemModel] = "linear",
    settings: SaemSettings | None = None,
    *,
    model_options: Mapping[str, object] | None = None,
    devices: int | Workers = 1,
    network: Network | None = None,
    sampler: str | Sampler = AUTO,
    sampler_options: Mapping[str, object] | None = None,
    gradient_codec: str | Codec | None = None,
    start: Doubles | SavedSaem | None = None,
    callback: Callable[[SaemProgress], None] | None = None,
    saver: Saver | None = None,
    **changes: object,
) -> SaemFit:
    """Fit a model with latent variables by SAEM, on one machine or on devices with a server.

    Algorithms of the draft, exactly, have ``method="fl-saem"``: 1 with ``average="models"`` and
    ``shares="devices"``, 2 as it is, 3 with ``sampler="langevin"`` and a ``gradient_codec``, 4 with
    a ``codec`` such as ``topk:0.1``, 5 with all of these and ``participation``. The default departs
    in that steps average statistics over iterations, those who are there move the mean of all only
    by their share of it, and codecs are corrected by ``feedback``.

    Parameters
    ----------
    individuals : Individuals
        The data.
    model : str or callable
        One of `MODELS`, or what makes a `SaemModel` of individuals.
    model_options : mapping, optional
        Of a model that is named.
    settings, changes : SaemSettings
        Settings, and changes to them: see `vpem.settings.SaemSettings` and
        `vpem.saem.saem.run_saem`. With ``tol`` 0 all iterations are run, and convergence is not
        tested. ``codec``: how devices send statistics (a name that
        `vpem.network.codecs.parse_codec` reads, or a codec; None: exactly); ``feedback``: see
        `vpem.saem.server.SaemServer`.
    devices : int or Workers
        How many hold runs of the individuals; or who holds which.
    network : Network, optional
        Who talks to whom, from `vpem.connect_workers`; None: a server. On a graph that sums by
        rounds every device keeps a statistic of its own (`vpem.saem.server`). Where devices
        live in several processes (`vpem.sums.connect.spread_workers`) this is called in each, with
        the individuals of its own devices, device by device, and ``devices`` of all; results are
        the same everywhere but for what they say of individuals, of which each has its own.
    sampler : {"auto", "exact", "metropolis", "langevin", "mala", "hmc"} or Sampler
        With ``auto`` it is ``exact`` where the model's latents can be drawn so and no option is
        given that only others have, else ``metropolis``; settings say which.
    sampler_options : mapping, optional
        Of a sampler that is named, see `vpem.saem.samplers`.
    gradient_codec : str or Codec, optional
        Of the sampler ``langevin``.
    start, callback
        See `vpem.saem.saem.run_saem`; the start may be a fit of the same model. Of a callback the
        method ``announce``, if it has one, gets a message when each part of the work begins that
        comes after the iterations.
    saver : Saver, optional
        Keeps checkpoints, and has the one to resume (`vpem.files.checkpoints.FileSaver`).

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
    settings = in_full(SaemSettings.resolve(settings, **changes))
    workers = evenly(individuals.n_individuals, devices) if isinstance(devices, int) else devices
    if network is not None:
        check_kind("the network must come from vpem.connect_workers", network, Network)
        refuse_directed(network, "SAEM adds up what devices draw at the estimates by")
    _check_masked(individuals, network, settings, model)
    individuals = _among(individuals, workers, network)
    if settings.missing == "marginalize" and model in INCOMPLETE:
        model_options = {"items": individuals.items().tolist(), **(model_options or {})}
    if isinstance(model, str) and "seed" in signature(model_class(model)).parameters:
        model_options = {"seed": settings.seed, **(model_options or {})}
    built = _made(individuals, model, model_options)
    if settings.penalty is not None:
        from vpem.terms.priors import parse_penalty

        built = built.under(parse_penalty(settings.penalty))
    if isinstance(start, SavedSaem):
        if tuple(start.parameters) != tuple(built.parameters):
            raise InputError(
                f"the start is {start.model} with {len(start.parameters)} parameters, not those of "
                f"this {model if isinstance(model, str) else OWN} with {len(built.parameters)}; "
                "start from a fit of the same model"
            )
        start = start.theta
    fitted = built.inside()
    codec = None if settings.codec is None else parse_codec(settings.codec)
    chosen = _sampler(built, sampler, sampler_options, gradient_codec)
    uncorrected = codec is None or settings.method == "fl-saem"
    feedback = settings.feedback or ("none" if uncorrected else "memory")
    server = keeper_of(network, _shares(individuals, workers), codec, feedback, fitted.pieces)
    if saver is not None:
        saver.begin(_facts(built, model, model_options, workers, chosen, server, settings, start))
    saving = OneRun(saver, server.ledger)
    if saving.saved is not None:
        saving.restored(NOTHING)
    start = _begun(saving, fitted, start)
    run = run_saem(
        fitted, workers, chosen, server, settings, start=start, callback=callback,
        saver=saving.inner(None),
    )  # fmt: skip
    if settings.tol > 0 and not run.converged:
        warn(
            f"SAEM has not converged in {run.n_iter} iterations: {run.grounds}"
            f"{'' if run.change < settings.tol else '; take more iterations or chains'}",
            level=2,
            kind=not_converged,
        )
    tried = individuals.largest(np.array([run.chains.tried.any()], dtype=np.uint8))[0]
    acceptance = run.chains.accepted / np.maximum(run.chains.tried, 1) if tried else None
    theta, trace = run.canonical(fitted)
    theta, conditional, likelihood, certain = _look_closer(
        fitted, theta, chosen, run, settings, callback, server
    )
    jacobian, value = fitted.jacobian, float(built.penalty(theta))
    if jacobian is not None:
        trace = trace @ jacobian.T
    elif not built.wide:
        trace[-1] = theta
    named = isinstance(model, str)
    joined: Report = {}
    if network is not None:  # who was joined to whom, how they summed, and how far apart they were
        facts = ("topology", "sum", "rounds", "weights", "compress", "secure_sum", "faults")
        partitions = [{"iteration": at, "reason": reason} for at, reason in run.partitions]
        joined = network.whole.describe(*facts)
        joined |= {"partitions": partitions, "disagreement": server.disagreement}
    return SaemFit(
        model=built,
        parameters=built.parameters,
        theta=theta,
        standard_errors=certain.errors,
        information=certain.information,
        log_likelihood=likelihood,
        given=conditional,
        **individuals_of(built, theta),
        acceptance=acceptance,
        accepted=None if acceptance is None else spread_of(individuals, acceptance),
        least_effective=-float(individuals.largest(-likelihood.effective.min(initial=np.inf))),
        trace=trace,
        bytes=np.array(run.bytes, dtype=np.int64),
        **{name: getattr(run, name) for name in ("n_iter", "converged", "change", "grounds")},
        ledger=server.ledger,
        model_name=str(model) if named else OWN,
        model_options={**all_options(str(model), model_options or {}), **built.found}
        if named
        else {},
        settings=_settings(individuals, workers, chosen, server, settings)
        | ({"penalty_value": value} if value or settings.penalty is not None else {}),
        network=joined,
        corpus=corpus_facts(built, theta, conditional, workers, run.looks),
        seconds=saving.seconds + time.perf_counter() - began,
        certain=certain,
    )


def _settings(
    individuals: Individuals,
    workers: Workers,
    sampler: Sampler,
    server: SaemServer | SaemNeighbours,
    settings: SaemSettings,
) -> Report:
    return {
        "devices": workers.n_workers,
        "sampler": sampler.name, "sampler_options": options_of(sampler),
        **settings.values("level", *_unsaid(settings)),
        "n_chains": chains_of(sampler, workers.n_samples, settings.n_chains),
        "burn_in": burn_in_of(settings.n_iter, settings.burn_in),
        "codec": None if server.codec is None else server.codec.name, "feedback": server.feedback,
        "longest_step": server.damping, "safe_step": server.safe, "omega": server.omega,
        "memory_step": server.alpha,
        "columns": dict(individuals.columns), "weighted": individuals.weights is not None,
    }  # fmt: skip


def _unsaid(settings: SaemSettings) -> tuple[str, ...]:
    """Settings of other methods, which say nothing of this one."""
    return {"saem": ("method", "growth"), "fl-saem": ("growth",)}.get(settings.method, ())


def _among(individuals: Individuals, workers: Workers, network: Network | None) -> Individuals:
    """The individuals of this process, with totals over those of all."""
    if hasattr(individuals, "runs"):
        refuse({"algorithm": "saem"}, ["memory_limit"])
    n_here, weights = individuals.n_individuals, individuals.weights
    if weights is not None and not (weights.shape == (n_here,) and (weights > 0).all()):
        raise InputError(f"weights must be {n_here} numbers above 0, one per individual")
    masked = network is not None and network.agents.masks is not None
    if network is None or not (network.agents.apart or masked):
        if workers.n_samples != n_here:
            raise InputError(
                f"devices hold {workers.n_samples} individuals, but there are {n_here}"
            )
        return individuals
    place = network.total.holders
    numbers = np.concatenate([np.empty(0, np.intp), *(workers.rows[one] for one in place.own)])
    if not place.apart:
        numbers = np.arange(workers.n_samples)
    if len(numbers) != n_here:
        raise InputError(
            f"devices of this process hold {len(numbers)} individuals, but there are {n_here}"
        )
    parts = None
    if masked:
        parts = [workers.rows[one] for one in place.own]
        if place.apart:
            ends = np.cumsum([0, *map(len, parts)])
            parts = [np.arange(*pair) for pair in pairwise(ends)]
    some = [individuals] if parts is None else [individuals.take(part) for part in parts]
    sizes = np.array([[*one.number, *one.everyone] for one in some]).reshape(len(some), 4)
    return replace(individuals, together=AllIndividuals(place, numbers, sizes, parts))


def _check_masked(
    individuals: Individuals,
    network: Network | None,
    settings: SaemSettings,
    model: str | Callable[[Individuals], SaemModel],
) -> None:
    """Raise InputError where masked sums are impossible, or would reveal more than totals."""
    if network is None or network.agents.masks is None:
        return
    codec = None if settings.codec is None else parse_codec(settings.codec)
    check_masked(network, codec, settings.participation)
    secure = Setting("secure_sum", True)
    if individuals.weights is not None:
        raise InputError(
            "weights of individuals show all devices what each of them counts, which ", secure,
            " is to hide; leave out one of the two",
        )  # fmt: skip
    if settings.missing == "marginalize" and model in INCOMPLETE:
        raise InputError(
            Setting("missing", "marginalize"), " shows all devices which items of a "
            f"{model} each of them has, which ", secure, " is to hide; leave out one of the two",
        )  # fmt: skip


def _shares(individuals: Individuals, workers: Workers) -> Doubles:
    """What each device counts of all, (D,)."""
    weights, together = individuals.weights, individuals.together
    if weights is None:
        shares: Doubles = workers.counts / workers.n_samples
        return shares
    numbers = np.arange(workers.n_samples) if together is None else together.numbers
    sums = np.bincount(workers.worker_of[numbers], weights, workers.n_workers).astype(np.float64)
    shares = individuals.add(sums[None]) / individuals.everyone[0]
    return shares


def _facts(
    built: SaemModel,
    model: str | Callable[[Individuals], SaemModel],
    model_options: Mapping[str, object] | None,
    workers: Workers,
    sampler: Sampler,
    server: SaemServer | SaemNeighbours,
    settings: SaemSettings,
    start: Doubles | None,
) -> State:
    data = built.individuals
    named = isinstance(model, str)
    options = all_options(str(model), model_options or {}) if named else None
    return {
        "algorithm": "saem",
        "what the data hold": checksum(*data.contents),
        "who holds which individuals": checksum(workers.order, workers.counts),
        "model": model if named else type(built).__name__,
        "what options the model has": checksum(options),
        "sampler": sampler.name,
        "what options the sampler has": checksum(options_of(sampler)),
        **settings.values("n_iter", "n_conditional", "n_importance", "level", *_unsaid(settings)),
        "burn_in": burn_in_of(settings.n_iter, settings.burn_in),
        "codec": None if server.codec is None else server.codec.name,
        "feedback": server.feedback,
        "start": start_facts(start),
        **({} if built.jacobian is None else {"what columns are fitted": "unrelated ones"}),
        **({} if server.network is None else network_facts(server.network.whole)),
    }


def _look_closer(
    model: SaemModel,
    theta: Doubles,
    sampler: Sampler,
    run: SaemRun,
    settings: SaemSettings,
    callback: Callable[[SaemProgress], None] | None,
    server: SaemServer | SaemNeighbours,
) -> tuple[Doubles, Conditional, LogLikelihood, Certainty]:
    """By formulas, which may improve the estimates; or by draws of latents at the estimates."""
    best = run.converged and exact_at(server, settings)
    counted = run.grounds.startswith(BY_FORMULAS)  # before a run was broken off
    count = None if counted else server.add_formulas
    exact = run.integrated or model.integrated(theta, best, count)
    if exact is not None:
        conditional = exact_conditional(model, exact.theta, settings.level)
        value, sure = model.individuals.total(exact.each), np.full(model.n, np.inf)
        likelihood = LogLikelihood(float(value), 0.0, exact.each, sure)
        return exact.theta, conditional, likelihood, exact.certain
    announce = getattr(callback, "announce", lambda _: None)
    n_conditional, n_importance = settings.n_conditional, settings.n_importance
    announce(f"drawing latents at the estimates, {n_conditional} draws of each chain")
    drawn = draws_until(settings, run.n_iter)
    conditional = sample_conditional(
        model, theta, sampler, run.chains, after=drawn,
        late=max(1, run.n_iter - burn_in_of(settings.n_iter, settings.burn_in)),
        n_iter=n_conditional, level=settings.level,
    )  # fmt: skip
    announce(f"computing the log-likelihood, {n_importance} draws of each individual")
    likelihood = importance_log_likelihood(
        model, theta, conditional, run.chains.streams,
        after=drawn + n_conditional, n_draws=n_importance,
    )  # fmt: skip
    warn_of_few(likelihood, model.individuals.names, n_importance)
    announce("computing standard errors")
    server.sum_up(3 if model.normal_rows else 2, model.wide)
    certain = Certainty.from_draws(model, theta, conditional)
    if model.jacobian is not None:
        certain = certain.turned(model.jacobian)
    conditional = model.expand_about(theta).reported(conditional)
    return model.outside(theta), conditional, likelihood, certain


def _begun(saving: OneRun, model: SaemModel, start: Doubles | None) -> Doubles | None:
    """What a run begins with: where another was, or what the user gives."""
    begun = saving.begins_at(lambda loop: {"theta": loop["run"]["theta"].copy()})
    if begun is not None:
        check({"theta": Array("f8", (len(model.parameters),))}, begun, KEPT)
        return np.asarray(begun["theta"])
    if start is None or model.jacobian is None:
        return start
    return np.asarray(np.linalg.solve(model.jacobian, start), np.float64)


def _made(
    individuals: Individuals,
    model: str | Callable[[Individuals], SaemModel],
    options: Mapping[str, object] | None,
) -> SaemModel:
    if isinstance(model, str):
        return make_model(model, individuals, **(options or {}))
    built = model(individuals)
    if options or not isinstance(built, SaemModel):
        raise InputError(
            "a model of your own is a function of the individuals that returns a SaemModel, with "
            f"no model_options; got {type(built).__name__}"
        )
    if not built.pieces:
        raise InputError(f"model {type(built).__name__} has no pieces, the parts of a statistic")
    return built


def _sampler(
    model: SaemModel,
    sampler: str | Sampler,
    options: Mapping[str, object] | None,
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
        raise InputError("a sampler object has its own options; give a name, or no options")
    chosen = sampler_of(sampler, **options, **more)
    if model.discrete and chosen.name != "exact":
        raise InputError(
            f"latents of {type(model).__name__} are discrete, which {chosen.name} cannot move; "
            "take the sampler exact"
        )
    return chosen
