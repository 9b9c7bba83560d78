"""What there is to warn of once a fit is over."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.errors import Setting, VpemWarning, not_converged, shorten

if TYPE_CHECKING:
    from vpem.fits.results import Fit

__all__ = ["LARGEST_DISAGREEMENT", "warn_of_outcome", "warn_of_partitions"]

LARGEST_DISAGREEMENT = 1e-3
"""In nats per sample, between roots whose sums have no operator to judge them by."""


def warn_of_outcome(fit: Fit, max_iter: int, tol: float) -> None:
    """Warn of roots that disagree, collapsed components, and fits that did not converge."""
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
    if fit.recoveries:
        listed = shorten(
            f"component {r.component}{'' if r.hub is None else f' in hub {r.hub}'} "
            f"({r.reason}, iteration {r.iteration}"
            f"{', given up' if r.row is None else ''})"
            for r in fit.recoveries
        )
        warnings.warn(
            VpemWarning(
                f"{len(fit.recoveries)} times a collapsed component was placed anew: {listed}; "
                "try fewer components or a larger ",
                Setting("reg_covar"),
            ),
            stacklevel=3,
        )
    if not fit.converged and max_iter:
        change = (
            ""
            if fit.n_iter < 2
            else f": the log-likelihood per sample still changed by "
            f"{_largest(fit.history[-1] - fit.history[-2]) / fit.total_weight:.2g}"
        )
        warnings.warn(
            not_converged(
                f"not converged after {max_iter} iterations{change} (tol {tol:g}); try more "
                "iterations"
            ),
            stacklevel=3,
        )


def _largest(values: NDArray[np.float64]) -> float:
    heard = np.abs(values[~np.isnan(values)])
    return float(heard.max(initial=0.0))


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
