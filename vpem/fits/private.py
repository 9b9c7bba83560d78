"""Differentially private fits.

EM over rows adds noise to workers' sums; a model of features that parties hold has noise in every
M-step, and may be published: it is private against outsiders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats, check_data, check_finite, precision_of
from vpem.engines.engine import set_topic
from vpem.errors import InputError, Setting, warn
from vpem.files.matrix import FileMatrix, select_rows
from vpem.fits.labels import responsibilities_of_agents
from vpem.fits.local_rows import LocalRows, by_worker, check_rows_held
from vpem.fits.parts import complete, own_columns_of_hubs
from vpem.fits.prepare import make_terms, prepare, refuse_first
from vpem.fits.privacy import (
    REPEATABLE,
    Budget,
    Foretold,
    Guarantee,
    bounds_of,
    colluding_of,
    foretell,
    iterations_of,
)
from vpem.fits.results import Fit, RowFit
from vpem.fits.settings import OVER_FEATURES, PrivacySettings
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers
from vpem.rules import refuse
from vpem.settings import FitSettings, KmeansSettings
from vpem.steps.private import NoisyEM, Releases, n_values_of_start, run_private, scales_of_hubs
from vpem.steps.recovery import Saver
from vpem.steps.runs import Progress
from vpem.sums.connect import Network
from vpem.sums.private import Noisy
from vpem.sums.sum import Sum
from vpem.terms.mixture import Mixture
from vpem.terms.row_statistics import BoundedRows, Grid, Parts
from vpem.terms.rows import Rows, arrange_rows
from vpem.terms.units import Scaling, floor_of


def check_private(
    algorithm: str,
    settings: FitSettings | KmeansSettings,
    *,
    weighted: bool = False,
    saved: bool = False,
) -> None:
    """Raise InputError where a setting is not the default that a private fit cannot have."""
    usual, given = type(settings)(), set()
    for name, value in settings:
        common = getattr(usual, name)
        same = isinstance(value, type(common)) and value == common
        if not same and not (name == "dtype" and precision_of(value) == np.float64):
            given.add(name)
    given |= {"sample_weight"} if weighted else set()
    given |= {"checkpoint"} if saved else set()
    refuse({"algorithm": algorithm, "epsilon": True}, given)


def fit_private_rows(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network,
    settings: FitSettings,
    privacy: PrivacySettings,
    *,
    sample_weight: object = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    hard: bool = False,
) -> RowFit:
    """Fit a mixture to rows that workers hold, by noisy sums (`vpem.steps.private`).

    Parameters are those of `vpem.fit_em`, but `USUAL_ITERATIONS` are run by default, and neither
    callback nor result has log-likelihoods, which the budget does not cover. If ``hard``, rows
    belong to one component each, by distances in the data's units; see `vpem.fits.row_kmeans`.
    """
    began = time.perf_counter()
    check_private("em-rows", settings, weighted=sample_weight is not None, saved=saver is not None)
    if network.compress is not None or not network.total.exact:
        raise InputError(
            Setting("epsilon"), " needs an exact sum that gets its noise before it is sent: in "
            "consensus rounds neighbours see the terms of workers; take the topology star, or ",
            Setting("sum", "tree"),
        )  # fmt: skip
    X, _ = by_worker(X, None, workers, network.total.holders)
    if len(X.shape) != 2:
        raise InputError(f"the data must be 2-D (rows, features), got {len(X.shape)} dimension(s)")
    n_features = X.shape[1]
    units = bounds = bounds_of(privacy.bounds, n_features)
    if hard:  # balls of data are balls in units of a cube around the bounds
        centre, half = bounds.mean(axis=0), np.ptp(bounds, axis=0).max() / 2
        units = np.stack([centre - half, centre + half])
    foretold = foretell(settings, privacy, workers.n_samples, n_features, network)
    foretold.check()
    foretold.budget.warn_of_little(workers.n_samples)
    if privacy.repeatable_noise is not None:
        warn(REPEATABLE)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, workers.n_samples, 8)
    total = network.total.counted_on(ledger)
    layout, grid = foretold.layout, Grid.for_size(workers.n_samples, n_features)
    check_grid(foretold, grid)
    rows = BoundedRows(_rows(X, workers, network, feature_names), bounds, grid, units)
    colluding = colluding_of(privacy, network)
    noisy = Noisy(total.server, colluding, privacy.repeatable_noise)
    releases = Releases(rows, noisy, list(foretold.multipliers))
    sent: list[int] = []

    def report(iteration: int) -> None:
        sent.append(total.bytes_sent)
        if callback is not None:
            callback(Progress(iteration, float("nan"), None))

    with one_blas_thread():
        parts = run_private(
            releases, layout, workers.n_samples, foretold.n_iter, hard=hard,
            seed=[settings.seed, 0], shared=lambda start: _shared(start, total), callback=report,
        )  # fmt: skip
    mixture = _mixture(parts, units, workers.n_workers, floor_of(settings.reg_covar))
    return RowFit(
        mixture=mixture,
        network=network.whole,
        history=np.empty((0, 1)),
        root_log_likelihood=np.full(1, np.nan),
        total_weight=float(workers.n_samples),
        n_samples=workers.n_samples,
        mixtures=[mixture],
        workers=workers,
        converged=True,
        total_iterations=foretold.n_iter,
        seconds=time.perf_counter() - began,
        communication={**ledger.summary(), "bytes_by_iteration": sent},
        clipped=dict(zip(total.holders.own.tolist(), rows.clipped, strict=True)),
        guarantee=Guarantee(
            foretold.budget, tuple(foretold.multipliers), noisy.by,
            privacy.repeatable_noise is not None, workers.n_workers, colluding,
        ),
    )  # fmt: skip


def _rows(
    X: Any, workers: Workers, network: Network, feature_names: Sequence[str] | None
) -> list[Rows]:
    local, n_features = LocalRows.find(network.total.holders, workers, X), X.shape[1]
    data: Any = check_data(
        X, n_features, feature_names, least_rows=int(local is None),
        finite=lambda rows, names: check_finite(rows, names, ("fill it in, or leave the row out",)),
    )  # fmt: skip
    if local is None:
        check_rows_held(workers, len(data))
        if not workers.in_order:
            data = select_rows(data, workers.rows)
    runs = workers.runs if local is None else local.own_runs
    blocks = Blocks.one(n_features, workers.n_workers)
    whole = arrange_rows(data, blocks, Scaling.none(n_features), data.dtype)
    return [whole.slice_rows(run) for run in runs]


def check_grid(foretold: Foretold, grid: Grid) -> None:
    """Raise InputError where the grid is too coarse for Gaussian noise."""
    layout, unit = foretold.layout, grid.unit
    least = min(1.0, float(layout.deviations().min())) * min(foretold.multipliers)
    n_values = n_values_of_start(foretold.n_samples, foretold.multipliers, layout)
    n_values += foretold.n_iter * layout.size
    foretold.budget.check_grid(int(least / unit), n_values)


def _shared(start: Parts, total: Sum) -> Parts:
    """Return the first process's start in every process: a search may end elsewhere in others."""
    values = np.concatenate([start.weights, start.means.ravel(), start.spreads.ravel()])
    total.agree("setup", values.nbytes)
    holders = total.holders
    if not holders.apart:
        return start
    with set_topic(holders.engine, "setup"):
        holders.engine.bcast_array(values)
    k, d = start.means.shape
    weights, means, spreads = np.split(values, [k, k + k * d])
    return Parts(weights, means.reshape(k, d), spreads.reshape(start.spreads.shape), start.kind)


def _mixture(
    parts: Parts, bounds: NDArray[np.float64], n_workers: int, reg_covar: float
) -> Mixture:
    """Return the mixture of parts, whose units are those of the bounds."""
    spreads = parts.spreads[:1] if parts.kind.startswith("tied") else parts.spreads
    d = parts.means.shape[1]
    if spreads.ndim == 2:
        covariances = np.square(spreads) + reg_covar
    else:
        full = spreads @ spreads.transpose(0, 2, 1) + reg_covar * np.eye(d)
        covariances = full.ravel()
    scaling = Scaling(bounds.mean(axis=0), np.ptp(bounds, axis=0) / 2)
    blocks, weights = Blocks.one(d, n_workers), parts.weights[None].copy()
    return Mixture(blocks, parts.kind, weights, parts.means.copy(), covariances, scaling)


USUAL_ITERATIONS = 16
"""By default; each has its share of the budget."""

FOR_START = 0.1
"""Share of the budget for the moments that it starts from."""

MOST_NOISE = 0.5
"""Standard deviations by which noise may displace the means of one iteration."""

UNUSED = {
    "tol": "when to stop would depend on the data; all iterations are run, as many as ",
    "batch_size": "every batch would spend as much of the privacy budget as all rows do; reduce ",
    "step_size": "every batch would spend as much of the privacy budget as all rows do; reduce ",
    "accelerate": "whether a step is rejected depends on the data; reduce ",
    "weight_concentration_prior_type": "a prior counts rows, and would count noise as rows; take "
    "few components by EM, and a smaller ",
    "n_init": "every restart, and the choice of the best, would spend some of the privacy budget; "
    "raise ",
}
"""Settings that a release cannot have, and why; each sentence ends with max_iter."""


def release_vpem(
    X: Floats | FileMatrix,
    network: Network,
    settings: FitSettings,
    privacy: PrivacySettings,
    *,
    sample_weight: object = None,
    feature_names: Sequence[str] | None = None,
    saver: Saver | None = None,
    labels: Sequence[int] | None = None,
) -> Fit:
    """Fit a mixture to features, with noise in every M-step (`vpem.steps.private`).

    Parameters are those of `vpem.fit_vpem`, but `USUAL_ITERATIONS` are run by default; the result
    has neither log-likelihoods nor history, which would show something of rows.
    """
    began = time.perf_counter()
    if privacy.epsilon is not None:
        raise InputError(Setting("epsilon"), *OVER_FEATURES[1])
    _check(network, settings, sample_weight, saver)
    prepared = prepare(
        X, network.blocks.n_features, settings, feature_names=feature_names, dtype=settings.dtype,
        missing=settings.missing, some=network.total.holders.any,
    )  # fmt: skip
    settings = settings.changed(
        n_threads=thread_count(settings.n_threads), dtype=prepared.precision.name
    )
    whole = network.whole.blocks
    budget = Budget.parse(
        privacy.release_epsilon, privacy.delta, prepared.n_samples, name="release_epsilon"
    )
    bounds = bounds_of(privacy.bounds, whole.n_features)
    n_iter = iterations_of(settings, FitSettings().max_iter, USUAL_ITERATIONS)
    multipliers = budget.multipliers([FOR_START, *[(1 - FOR_START) / n_iter] * n_iter])
    # By how much noise displaces a mean in one iteration, in standard deviations, of a component
    # with its equal share of the rows, in the hub where that is most: the root of the mean square
    # of the noise, ``z s_b sqrt(d_b) K / M``.
    scales = scales_of_hubs(whole.widths, settings.covariance_type, settings.n_components)
    largest = max(scale[1] * sqrt(whole.widths[hub]) for hub, scale in scales.items())
    noise = float(multipliers[-1] * largest * settings.n_components / prepared.n_samples)
    if noise > MOST_NOISE:
        raise InputError(
            f"{prepared.n_samples} rows, {whole.n_features} features, {settings.n_components} "
            f"components and {n_iter} iterations leave nothing at ", Setting("release_epsilon"),
            f" = {budget.epsilon:g}: noise would displace means by {noise:.2g} standard deviations "
            f"in every iteration; try some {noise / MOST_NOISE * prepared.n_samples:.0f} rows, a "
            "larger ", Setting("release_epsilon"), " or a smaller ", Setting("max_iter"),
        )  # fmt: skip
    budget.warn_of_little(prepared.n_samples, "release_epsilon")
    if privacy.repeatable_noise is not None:
        warn(REPEATABLE)
    if network.part_of is not None:
        bounds = bounds[:, own_columns_of_hubs(network)]
    scaling = Scaling(bounds.mean(axis=0), np.ptp(bounds, axis=0) / 2)
    with one_blas_thread(), np.errstate(over="ignore"):
        terms = make_terms(prepared.X, None, network.blocks, scaling, prepared, settings)
        complete(terms, network)
        ledger = Ledger(network.graph)
        network.charge_setup(ledger, prepared.n_samples, terms.itemsize)
        total, sent = network.total.counted_on(ledger), []
        run = NoisyEM(terms, total, whole, settings.n_components, privacy.repeatable_noise)
        budget.check_grid(run.least_scale(min(multipliers)), run.n_numbers * len(multipliers))
        start = run.start(multipliers[0], np.random.default_rng([settings.seed, 0]))
        callback = lambda _: sent.append(total.bytes_sent)  # noqa: E731
        parts = run.iterate(start, multipliers[1:], callback)
        mixture = run.mixture(parts, floor_of(settings.reg_covar))
    if run.n_clipped:
        warn(
            f"{run.n_clipped} of {prepared.X.size} values lie beyond their bounds and were clipped"
        )
    n_hubs, shares = len(network.hubs), {}
    if labels is not None:
        shares = responsibilities_of_agents(X, mixture, network, ledger, labels)
    return Fit(
        mixture=mixture,
        network=network,
        history=np.empty((0, n_hubs)),
        root_log_likelihood=np.full(n_hubs, np.nan),
        total_weight=float(prepared.n_samples),
        n_samples=prepared.n_samples,
        converged=True,
        total_iterations=n_iter,
        seconds=time.perf_counter() - began,
        responsibilities=shares,
        communication={**ledger.summary(), "bytes_by_iteration": sent},
        guarantee=Guarantee(
            budget, tuple(multipliers), "hubs", privacy.repeatable_noise is not None
        ),
    )


def _check(
    network: Network, settings: FitSettings, sample_weight: object, saver: Saver | None
) -> None:
    """Raise InputError where a setting is given that a release cannot have."""
    usual = FitSettings()
    by_rounds = not network.total.at_server or network.compress is not None
    refuse_first(
        *(
            (getattr(settings, name) != getattr(usual, name), (
                f"{{{name}}} is not possible with {{release_epsilon}}: {why}{{max_iter}}",
            ))
            for name, why in UNUSED.items()
        ),
        (not isinstance(settings.init, str) or settings.init != usual.init, (
            "{release_epsilon} starts from noisy moments of all rows and looks at no single row; "
            "leave out {init}",
        )),
        *(
            (getattr(settings, name) != getattr(usual, name), (
                Setting(name, getattr(settings, name)), " looks at the data without noise, and "
                "is not possible with {release_epsilon}; leave it out",
            ))
            for name in ("scale", "missing")
        ),
        (settings.n_factors, (
            "{release_epsilon} bounds what one row can do to the moments of a hub, but expected "
            "factors depend on its features in all hubs; leave out {n_factors}",
        )),
        (sample_weight is not None, (
            "{release_epsilon} bounds what one row can do, and with {sample_weight} a row would "
            "do more; leave it out",
        )),
        (saver is not None, (
            "a checkpoint holds more than may be published, and a run that resumes draws noise "
            "again, which spends the privacy budget again; leave out the checkpoint, or "
            "{release_epsilon}",
        )),
        (by_rounds, (
            "{release_epsilon} needs one exact sum, from which all have the same "
            "responsibilities: with rounds every root would spend some of the privacy budget, and "
            "with a codec a row's terms depend on other rows; take {sum=tree} or a star, without "
            "{compress}",
        )),
    )  # fmt: skip
