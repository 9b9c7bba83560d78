"""What there is to warn of once a fit is over."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import OwnDataWarning, Setting, VpemWarning, not_converged, shorten
from vpem.terms.covariances import variances_of
from vpem.terms.degenerate import AT_FLOOR, COINCIDES, coinciding
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import FLOOR

if TYPE_CHECKING:
    from vpem.fits.results import Fit, MixtureResult
    from vpem.settings import FitSettings
    from vpem.sums.sum import Sum


LARGEST_DISAGREEMENT = 1e-3
"""In nats per sample, between roots whose sums have no operator to judge them by."""


FEW_VALUES = 10
"""A column of no more different values may be one of categories, or of counts."""

OF_PRIORS = "map", "dirichlet_process"
"""Priors that keep components from being degenerate."""


def warn_of_outcome(fit: Fit, how: FitSettings) -> None:
    """Warn of roots that disagree, of components, and of fits that did not converge."""
    apart = float(np.ptp(fit.root_log_likelihood) / fit.total_weight)
    if fit.network.consensus_error is None and apart > LARGEST_DISAGREEMENT:
        warnings.warn(
            f"the roots' log-likelihoods per sample differ by {apart:.2g}: the "
            f"{fit.network.n_rounds} rounds of a sum are too few, and none of them can be trusted; "
            "take more rounds, or auto",
            VpemWarning,
            stacklevel=3,
        )
    warn_of_partitions(fit.partitions)
    warn_of_degenerate(fit, how)
    warn_of_copies(fit)
    few = [r for r in fit.recoveries if r.reason == "weight"] if how.least_rows >= 1 else []
    if few:
        warnings.warn(
            VpemWarning(
                f"{len(few)} of {how.n_components} components were left out, which had fewer rows "
                f"than the {how.least_rows:g} of ", Setting("least_rows"), "; try fewer components",
            ),
            stacklevel=3,
        )  # fmt: skip
    placed = [r for r in fit.recoveries if r not in few]
    if placed:
        listed = shorten(
            f"component {r.component}{'' if r.hub is None else f' in hub {r.hub}'} "
            f"({r.reason}, iteration {r.iteration}"
            f"{', given up' if r.row is None else ''})"
            for r in placed
        )
        warnings.warn(
            VpemWarning(
                f"{len(placed)} times a collapsed component was placed anew: {listed}; "
                "try fewer components or a larger ",
                Setting("reg_covar"),
            ),
            stacklevel=3,
        )
    if not fit.converged and how.max_iter:
        change = (
            ""
            if fit.n_iter < 2
            else f": the log-likelihood per sample still changed by "
            f"{_largest(fit.history[-1] - fit.history[-2]) / fit.total_weight:.2g}"
        )
        warnings.warn(
            not_converged(
                f"not converged after {how.max_iter} iterations{change} (tol {how.tol:g}); try "
                "more iterations"
            ),
            stacklevel=3,
        )


def few_rows_of(fit: Any, least: float, heaviest: float = 1.0) -> str:
    """Say which components or clusters of a fit would tell others of few rows; empty: none.

    They have fewer than ``least`` rows of the ``heaviest`` weight, are singular but for the floor
    (rows that do not vary in some direction), or stand where a row is: at a start, or placed anew
    in the last iteration. What was protected by noise tells of none.
    """
    if getattr(fit, "guarantee", None) is not None:
        return ""
    mixture, noun, singular = getattr(fit, "mixture", None), "clusters", []
    if mixture is None:
        rows = fit.counts / heaviest
    else:
        noun, rows = "components", mixture.assembled_weights * fit.total_weight / heaviest
        singular = [k for k in fit.degenerate if rows[k] >= least]
    used = getattr(mixture, "in_use", rows > 0)
    few = np.flatnonzero(used & (rows < least * (1 - 1e-9)))
    n_iter, recoveries = getattr(fit, "n_iter", 1), getattr(fit, "recoveries", ())
    late = sorted({r.component for r in recoveries if r.iteration >= n_iter and r.row is not None})
    parts = [f"{noun} of fewer than {least:g} rows: "
             + shorten(f"{k} ({rows[k]:.3g})" for k in few)] * bool(len(few))  # fmt: skip
    parts += [f"singular {noun}: {shorten(map(str, singular))} (--prior map, or --family auto for "
              "columns of few values, keeps them from that)"] * bool(singular)  # fmt: skip
    parts += [f"{noun} just placed anew: {shorten(map(str, late))}"] * bool(late)
    parts += ["the start of a fit, which may be rows"] * (n_iter == 0)
    return "; ".join(parts)


def warn_of_copies(fit: MixtureResult) -> None:
    """Warn of components that coincide with others."""
    if fit.copies:
        copies = shorten(map(str, fit.copies))
        warnings.warn(
            f"components that are copies of others: {copies}; they say nothing "
            "that fewer components would not",
            VpemWarning,
            stacklevel=4,
        )


def warn_of_degenerate(fit: MixtureResult, how: object, floor: float = 0.0) -> None:
    """Warn of components that are degenerate: which, of how many rows and features.

    Where statistics are noisy they may rest on a ``floor``, relative to the data's variance.
    """
    if not fit.degenerate or getattr(how, "floor_fits", "last") == "keep":
        return
    rows = fit.mixture.assembled_weights * fit.total_weight
    counts = {k: f"{rows[k]:.4g}" for k in fit.degenerate}
    listed = shorten(f"{k} ({n} row{'s' * (n != '1')})" for k, n in counts.items())
    # Over rows there is one hub, of the mixture alone.
    hubs = fit.network.whole.blocks, fit.mixture.blocks
    widest = max(int(one.widths.max(initial=0)) for one in hubs)
    instead: list[str | Setting] = ["fewer components"]
    if not fit.mixture.covariance_type.endswith(("diag", "spherical")):
        instead.append(Setting("covariance_type", "diag"))
    if not fit.mixture.is_tied:
        instead.append(Setting("covariance_type", "tied"))
    if hasattr(how, "weight_concentration_prior_type") and type(fit.mixture) is Mixture:
        instead += [Setting("weight_concentration_prior_type", one) for one in OF_PRIORS]
    if hasattr(how, "floor_fits"):
        instead.append(Setting("floor_fits", "keep"))
    ways = [part for one in instead for part in (", ", one)][1:]
    ways[-2:-1] = [" or "] if len(instead) > 1 else []
    rest: list[str | Setting] = ["what ", Setting("reg_covar"), " adds"]
    if floor:
        rest = [f"the floor of noisy statistics, {floor:.2g} of the data's variance"]
    message = VpemWarning(
        f"{len(fit.degenerate)} of {fit.mixture.n_components} components are degenerate, with "
        "covariances that are singular but for ", *rest, f": {listed}, of up to "
        f"{widest} features in a hub; such a likelihood says little of the data, try ", *ways,
    )  # fmt: skip
    warnings.warn(message, stacklevel=4)


def warn_of_few_values(
    fit: MixtureResult, X: Any, names: Sequence[str] | None, how: Any, over_rows: bool
) -> None:
    """Warn of columns of a few values, rows ``X`` (m, d), that do not vary in some components."""
    mixture = fit.mixture
    here = isinstance(X, np.ndarray) and type(mixture) is Mixture and mixture.n_features
    if not fit.degenerate or not here:
        return
    variances, means = variances_of(mixture), mixture.means[:, mixture.blocks.position]
    weights = mixture.weights[:1]
    total = weights @ (variances + (means - weights @ means) ** 2)
    floor = FLOOR * total
    if not isinstance(how.reg_covar, str):
        floor = how.reg_covar * (total if how.scale == "standard" else np.ones_like(total))
    low = (variances <= AT_FLOOR * floor) & (total > AT_FLOOR * floor)
    for j in np.flatnonzero(low.any(axis=0)).tolist():
        values = np.unique(X[~np.isnan(X[:, j]), j])
        if len(values) > min(FEW_VALUES, len(X) // 2):
            continue
        name = f"feature {j}" if names is None else names[j]
        where = shorten(map(str, np.flatnonzero(low[:, j])))
        ways: list[str | Setting] = ["leave it out with ", Setting("drop", name)]
        if not over_rows:
            ways = [
                "take it for a category with ",
                Setting("family", f"{name}=categorical"),
            ]
            if values.tolist() == [0, 1]:
                ways += [
                    ", or let the values of every column decide with ", Setting("family", "auto"),
                ]  # fmt: skip
        warnings.warn(
            OwnDataWarning(
                f"{name!r} has {len(values)} different values and does not vary in some components "
                f"({where}), whose variances there are at the floor; ", *ways,
            ),
            stacklevel=4,
        )  # fmt: skip


def _largest(values: NDArray[np.float64]) -> float:
    heard = np.abs(values[~np.isnan(values)])
    return float(heard.max(initial=0.0))


def copies_of(mixtures: Sequence[Any], total: Sum) -> list[int]:
    """Return components that are copies of earlier ones in every hub, for every root.

    Loadings are compared by what a rotation cannot change: the distance between those of two
    components at the best one, from sums over hubs.
    """
    k, q = mixtures[0].n_components, mixtures[0].n_factors
    later, earlier = np.tril_indices(k, -1)
    differ = np.any([~coinciding(one)[later, earlier] for one in mixtures], axis=0)
    same = ~total.holders.any(differ)
    if not same.any():
        return []
    total.agree("flooding", len(same))
    if q:
        loadings = mixtures[0].loadings
        products = np.einsum("idp,jdq->ijpq", loadings, loadings).reshape(1, -1)
        own = np.zeros((len(total.holders.own), products.size))
        own[:1] = products
        products = total.holders.add_up(own).reshape(k, k, q, q)
        total.agree("flooding", products.nbytes)
        sizes = np.trace(products[range(k), range(k)], axis1=1, axis2=2)
        shared = np.linalg.svd(products[later, earlier], compute_uv=False).sum(axis=1)
        apart = sizes[later] + sizes[earlier] - 2 * shared
        same &= apart <= COINCIDES**2 * np.minimum(sizes[later], sizes[earlier])
    return [int(k) for k in np.unique(later[same])]


def warn_of_partitions(partitions: list[tuple[int, str]]) -> None:
    """Warn where the network fell apart in iterations."""
    if partitions:
        iteration, reason = partitions[0]
        warnings.warn(
            f"the network fell apart in {len(partitions)} iterations, which changed nothing; "
            f"first in iteration {iteration}: {reason}",
            VpemWarning,
            stacklevel=4,
        )
