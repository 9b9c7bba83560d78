"""A model of features that parties hold, which may be published: private against outsiders."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats
from vpem.errors import InputError, Setting, VpemWarning
from vpem.files.matrix import FileMatrix
from vpem.fits.labels import responsibilities_of_agents
from vpem.fits.parts import complete, own_columns_of_hubs
from vpem.fits.prepare import make_terms, prepare
from vpem.fits.privacy import REPEATABLE, Budget, Guarantee, bounds_of, iterations_of
from vpem.fits.results import Fit
from vpem.fits.settings import OVER_FEATURES, PrivacySettings
from vpem.network.ledger import Ledger
from vpem.settings import FitSettings
from vpem.steps.noisy_em import NoisyEM, scales_of_hubs
from vpem.sums.connect import Network
from vpem.terms.scaling import Scaling, floor_of

USUAL_ITERATIONS = 16
"""Of a fit that does not say how many; each has its share of the budget."""

FOR_START = 0.1
"""Share of the budget for the moments that it starts from."""

MOST_NOISE = 0.5
"""Standard deviations by which noise may displace the means of one iteration."""

UNUSED = {
    "tol": "when to stop would depend on the data; all iterations are run, as many as ",
    "batch_size": "rows in batches would be paid for by each batch; give fewer of ",
    "step_size": "rows in batches would be paid for by each batch; give fewer of ",
    "accelerate": "what is taken back depends on the data; give fewer of ",
    "weight_concentration_prior_type": "a prior counts rows, and would count noise for such; take "
    "few components by EM, and a smaller ",
    "n_init": "every restart would be paid for, and so would the choice of the best; give more of ",
}
"""Settings of a fit that noise cannot go with, and why; what each sentence ends with is max_iter.
"""


def release_vpem(
    X: Floats | FileMatrix,
    network: Network,
    how: FitSettings,
    privacy: PrivacySettings,
    *,
    sample_weight: Any = None,
    feature_names: Sequence[str] | None = None,
    saver: Any = None,
    labels: Sequence[int] | None = None,
) -> Fit:
    """Fit a mixture to features, with noise in every M-step (`vpem.steps.noisy_em`).

    Parameters are those of `vpem.fit_vpem`, but `USUAL_ITERATIONS` are run by default; the result
    has neither log-likelihoods nor history, which would tell of rows.
    """
    began = time.perf_counter()
    if privacy.epsilon is not None:
        raise InputError(Setting("epsilon"), *OVER_FEATURES[1])
    _check(network, how, sample_weight, saver)
    given = prepare(
        X, network.blocks.n_features, how, feature_names=feature_names, dtype=how.dtype,
        missing=how.missing, some=network.total.holders.any,
    )  # fmt: skip
    how = how.changed(n_threads=thread_count(how.n_threads), dtype=given.precision.name)
    whole = network.whole.blocks
    budget = Budget.of(
        privacy.release_epsilon, privacy.delta, given.n_samples, name="release_epsilon"
    )
    bounds = bounds_of(privacy.bounds, whole.n_features)
    n_iter = iterations_of(how, FitSettings().max_iter, USUAL_ITERATIONS)
    multipliers = budget.multipliers([FOR_START, *[(1 - FOR_START) / n_iter] * n_iter])
    _check_noise(multipliers[-1], given.n_samples, whole.widths, how, budget, n_iter)
    budget.warn_of_little(given.n_samples, "release_epsilon")
    if privacy.repeatable_noise is not None:
        warnings.warn(VpemWarning(REPEATABLE), stacklevel=3)
    if network.part_of is not None:
        bounds = bounds[:, own_columns_of_hubs(network)]
    scaling = Scaling(bounds.mean(axis=0), np.ptp(bounds, axis=0) / 2)
    with one_blas_thread(), np.errstate(over="ignore"):
        terms = make_terms(given.X, None, network.blocks, scaling, given, how)
        complete(terms, network)
        ledger = Ledger(network.graph)
        network.charge_setup(ledger, given.n_samples, terms.itemsize)
        total, sent = network.total.on(ledger), []
        run = NoisyEM(terms, total, whole, how.n_components, privacy.repeatable_noise)
        budget.check_grid(run.least_scale(min(multipliers)), run.n_numbers * len(multipliers))
        start = run.start(multipliers[0], np.random.default_rng([how.seed, 0]))
        callback = lambda _: sent.append(total.bytes_sent)  # noqa: E731
        parts = run.iterate(start, multipliers[1:], callback)
        mixture = run.mixture(parts, floor_of(how.reg_covar))
    if run.n_clipped:
        warnings.warn(
            f"{run.n_clipped} of {given.X.size} values lie beyond their bounds and were clipped",
            VpemWarning,
            stacklevel=3,
        )
    n_hubs, shares = len(network.hubs), {}
    if labels is not None:
        shares = responsibilities_of_agents(X, mixture, network, ledger, labels)
    return Fit(
        mixture=mixture,
        network=network,
        history=np.empty((0, n_hubs)),
        root_log_likelihood=np.full(n_hubs, np.nan),
        total_weight=float(given.n_samples),
        n_samples=given.n_samples,
        converged=True,
        total_iterations=n_iter,
        seconds=time.perf_counter() - began,
        responsibilities=shares,
        communication={**ledger.summary(), "bytes_by_iteration": sent},
        guarantee=Guarantee(
            budget, tuple(multipliers), "hubs", privacy.repeatable_noise is not None
        ),
    )


def _check(network: Network, how: FitSettings, sample_weight: Any, saver: Any) -> None:
    """Raise InputError where something is asked for that noise cannot go with, saying why."""
    asked = Setting("release_epsilon")
    usual = FitSettings()
    for name, why in UNUSED.items():
        if getattr(how, name) != getattr(usual, name):
            raise InputError(
                Setting(name), " cannot be had with ", asked, f": {why}", Setting("max_iter")
            )
    if not isinstance(how.init, str) or how.init != usual.init:
        raise InputError(
            asked, " starts from noisy moments of all rows and looks at no row; leave ",
            Setting("init"), " out",
        )  # fmt: skip
    for name, wanted in (("scale", "none"), ("missing", "refuse")):
        if getattr(how, name) != wanted:
            raise InputError(
                Setting(name, getattr(how, name)), " looks at the data without noise, and cannot "
                "be had with ", asked, "; leave it out",
            )  # fmt: skip
    if how.n_factors:
        raise InputError(
            asked, " bounds what one row can do to the moments of a hub, but what is expected of "
            "factors depends on all hubs' features of it; leave out ", Setting("n_factors"),
        )  # fmt: skip
    if sample_weight is not None:
        raise InputError(
            asked, " bounds what one row can do, and with ", Setting("sample_weight"),
            " a row would do more; leave it out",
        )  # fmt: skip
    if saver is not None:
        raise InputError(
            "a checkpoint has what nobody may publish, and noise that is drawn again is paid for "
            "again; leave the checkpoint out, or ", asked,
        )  # fmt: skip
    if network.total.way == "consensus" or network.compress is not None:
        raise InputError(
            asked, " needs one exact sum of which all have the same responsibilities: with rounds "
            "or a codec noise would be paid for by every root, or a row's terms depend on others; "
            "take ", Setting("sum", "tree"), " or a star, without ", Setting("compress"),
        )  # fmt: skip


def noise_left(
    multiplier: float, n_samples: int, widths: NDArray[np.intp], how: FitSettings
) -> float:
    """Foretell how far noise displaces a mean in one iteration, in standard deviations.

    Of a component with its equal share of the rows, in the hub where that is most: the root of the
    mean square of the noise, ``z s_b sqrt(d_b) K / M``.
    """
    scales = scales_of_hubs(widths, how.covariance_type, how.n_components)
    each = [scale[1] * sqrt(widths[hub]) for hub, scale in scales.items()]
    return float(multiplier * max(each) * how.n_components / n_samples)


def _check_noise(
    multiplier: float,
    n_samples: int,
    widths: NDArray[np.intp],
    how: FitSettings,
    budget: Budget,
    n_iter: int,
) -> None:
    """Raise InputError where nothing would be left but noise."""
    noise = noise_left(multiplier, n_samples, widths, how)
    if noise > MOST_NOISE:
        raise InputError(
            f"{n_samples} rows, {int(widths.sum())} features, {how.n_components} components and "
            f"{n_iter} iterations leave nothing at ", Setting("release_epsilon"),
            f" = {budget.epsilon:g}: noise would displace means by {noise:.2g} standard deviations "
            f"in every iteration; try some {noise / MOST_NOISE * n_samples:.0f} rows, a larger ",
            Setting("release_epsilon"), " or a smaller ", Setting("max_iter"),
        )  # fmt: skip
