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
from math import ceil
from typing import Any

import numpy as np

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import check_memory
from vpem.errors import InputError, Setting, VpemWarning, not_converged
from vpem.files.fingerprint import checksum, describe_steps, network_facts
from vpem.fits.choosing import choose
from vpem.fits.completed import Imputation
from vpem.fits.mixture_imputation import MixtureImputation, impute_by_mixture
from vpem.fits.observers import Observers, check_laws
from vpem.fits.settings import ImputeSettings
from vpem.network.codecs import Codec, parse_codec
from vpem.network.graph import make_graph
from vpem.network.ledger import Ledger
from vpem.network.schema import NOTHING, Report, State
from vpem.settings import FedSettings
from vpem.steps.fedem import run_fedem
from vpem.steps.fedem_sums import check_masked
from vpem.steps.fedruns import FedProgress, FedRun
from vpem.steps.restarts import OneRun
from vpem.steps.safe_steps import batches_of, enough_iterations, noise_of, safe_step
from vpem.steps.saver import Saver
from vpem.sums.connect import Network, connect_workers
from vpem.sums.quantizer import Quantizer
from vpem.terms.lowrank.entries import check_covered
from vpem.terms.lowrank.laws import Law, make_law
from vpem.terms.lowrank.model import ImputationModel
from vpem.terms.lowrank.observations import Observations

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
    **changes: Any,
) -> Imputation | MixtureImputation:
    """Impute what no observer saw: by federated EM with a matrix of low rank, or by a mixture.

    Parameters
    ----------
    observations : Observations
        Who saw what. Where observers live in several processes (`vpem.sums.connect.spread_workers`)
        each process needs the entries of its own (`Observations.part`); all have the same result.
    settings : ImputeSettings, optional
        None: the defaults.
    network : Network, optional
        From `vpem.sums.connect.connect_workers`; None: a server. On any other graph every observer
        keeps a statistic of its own, and compression is the network's; see
        `vpem.steps.fedem.run_fedem`.
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
        If theta is zero: nothing was found but the ridge.
    """
    began = time.perf_counter()
    how, choice = ImputeSettings.of(settings, **changes).in_units(), None
    network = _network_of(network, observations)
    if how.method == "mixture":
        return impute_by_mixture(observations, how, network, callback, saver)
    law = make_law(how.law, how.variance)
    codec = None if how.compress is None else parse_codec(how.compress)
    check_masked(network, codec, how.participation)
    # Memories take the noise of participation and codec away, and SPIDER that of batches.
    noise_stays = not how.variance_reduction and (
        how.batch_size is not None and how.batch_size < int(observations.counts.max())
    )
    _check(observations, law, how, network, noise_stays)
    steps = _steps(observations, how, codec)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, 0, 0)
    if how.is_open:
        tell = getattr(callback, "starting", None)
        chosen = choose(observations, how, steps, law, network, ledger, codec, tell)
        choice, how = chosen.describe(), chosen.how.in_units()
        if how.method == "mixture":
            mixed = impute_by_mixture(observations, how, network, callback, saver)
            mixed.choice, mixed.seconds = choice, time.perf_counter() - began
            return mixed
    rank, ridge, tol = how.rank, how.ridge, how.tol
    assert isinstance(rank, int)
    assert isinstance(ridge, float | int)
    assert tol is not None
    how = how.changed(step_size=steps)
    if how.max_iter is None:
        how = how.changed(max_iter=enough_iterations(how.step_size, noise_stays))
    how = how.changed(n_threads=thread_count(how.n_threads))
    if saver is not None:
        saver.begin(_facts(observations, how, codec, network))
    model, observers = _model(observations, law, how, network, ledger)
    saving = OneRun(saver, ledger)
    if saving.saved is not None:
        saving.restored(NOTHING)
    # Where noise outgrows the steps the engine says so, once numbers are no longer finite.
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        run = run_fedem(
            model,
            model.start,
            how.into(FedSettings, weighting="workers", tol=tol * tol),
            codec=codec,
            network=network,
            ledger=ledger,
            rng=np.random.default_rng(how.seed),
            callback=callback,
            saver=saving.inner(None),
        )
        fit = model.log_likelihood(run.parameters) - observers.log_units()
        found = Imputation(
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
            converged=run.converged,
            communication=ledger.summary() | {"bytes_by_iteration": list(run.history.bytes)},
            compress=network.compress if codec is None else codec.name,
            scaling=observers.scaling,
            options=_options(run, how),
        )
    found.seconds = time.perf_counter() - began + saving.seconds
    _warn(found, tol, noise_stays)
    return found


def _network_of(network: Network | None, observations: Observations) -> Network:
    """Return the network, a server by default, or raise InputError if it joins others."""
    n = observations.n_observers
    if network is None:
        return connect_workers(make_graph("star", n))
    if not isinstance(network, Network) or network.graph.n_agents != n:
        raise InputError(
            f"there are {n} observers: the network must come from vpem.connect_workers, with a "
            "graph of as many agents"
        )
    return network


def _model(
    observations: Observations, law: Law, how: ImputeSettings, network: Network, ledger: Ledger
) -> tuple[ImputationModel, Observers]:
    """Let observers agree on units and copies: what FedEM works on, and who they are."""
    observers = Observers(observations, network, ledger)
    if how.scale != "none":
        observers.standardize(how.law)
    copies = observers.count_copies(how.copies)
    assert isinstance(how.rank, int)
    assert isinstance(how.ridge, float | int)
    model = ImputationModel(
        observers.observations,
        law,
        how.rank,
        how.ridge,
        copies,
        n_roots=network.whole.total.n_roots,
        parts=observers.parts,
        add_up=observers.add_up,
        most=observers.most(),
    )
    return model, observers


def _check(
    observations: Observations, law: Law, how: ImputeSettings, network: Network, noise_stays: bool
) -> None:
    """Raise InputError where the observations are not for these settings."""
    small = min(observations.shape)
    shape = " x ".join(map(str, observations.shape))
    if isinstance(how.rank, int) and how.rank > small:
        raise InputError(f"a matrix of {shape} has at most rank {small}, got {how.rank}")
    if how.ridge == 0 and how.law != "gaussian":
        raise InputError(
            f"the {how.law} law needs a ridge above 0, without which theta may grow forever; try "
            "0.1"
        )
    check_laws(observations, law, network.total.holders)
    rows = np.bincount(
        np.concatenate(observations.places) // observations.shape[1],
        minlength=observations.shape[0],
    )
    check_covered(observations, network.total.holders.any(rows > 0), True)
    n = observations.n_observers
    each = ON_A_GRAPH if network.whole.total.n_roots > 1 else AT_A_SERVER
    drift = 4 * network.whole.total.n_roots if noise_stays else 0
    needed = 8 * (each * n + drift + MATRICES) * observations.shape[0] * observations.shape[1]
    check_memory(needed, f"imputing a matrix of {shape} seen by {n} observers")


def _steps(observations: Observations, how: ImputeSettings, codec: Codec | None) -> Any:
    """Return the steps, where they are "auto" those that noise allows."""
    if not isinstance(how.step_size, str) or how.step_size != "auto":
        return how.step_size
    omega = noise_of(Quantizer(codec, int(np.prod(observations.shape))))
    held = float(observations.counts.mean())
    batch = how.batch_size or ceil(held)
    if how.variance_reduction:
        drawn, _ = batches_of(held, omega, how.participation, how.batch_size, None)
        batch = drawn or ceil(held)
    return f"constant:{safe_step(omega, how.participation * min(1.0, batch / held)):g}"


def _facts(
    observations: Observations, how: ImputeSettings, codec: Codec | None, network: Network
) -> State:
    """Return what must be the same when a run goes on from a checkpoint."""
    own = observations.part(set(network.total.holders.own.tolist()))
    return how.values() | {
        "algorithm": "fedmissem",
        "what was seen": checksum(own.shape, *own.places, *own.values),
        "what entries weigh": checksum(*(own.weights or ())),
        **network_facts(network.whole),
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


def _warn(found: Imputation, tol: float, noise_stays: bool) -> None:
    """Say what should be known of a result."""
    run = found.run
    if run.in_noise:
        warnings.warn(
            VpemWarning(
                f"at rest after {run.n_iter} iterations but for the noise of entries drawn anew, "
                "which stays in the result: ", Setting("variance_reduction", True),
                " takes it away, smaller steps leave less of it",
            ),
            stacklevel=3,
        )  # fmt: skip
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
            not_converged(
                f"not converged after {run.n_iter} iterations: the statistic is still corrected by "
                f"more than {tol:g} of itself; ",
                *advice,
            ),
            stacklevel=3,
        )
    zero = not found.factors.singular_values.any()
    if found.choice is not None and found.choice["column_means_win"]:
        told = "these means are imputed" if zero else "these means would be better"
        text = "no fit finds held-out entries better than the means of their columns do: "
        warnings.warn(VpemWarning(text + told), stacklevel=3)
    elif zero:
        warnings.warn(
            f"theta is zero everywhere: a ridge of {found.ridge:g} leaves nothing of what was "
            "seen; try a smaller one",
            VpemWarning,
            stacklevel=3,
        )
