"""What factors that hubs share go with, and a start for them."""

from __future__ import annotations

import numpy as np

from vpem.errors import InputError, Setting
from vpem.fits.prepare import precision_of
from vpem.fits.settings import PlanSettings
from vpem.settings import FitSettings
from vpem.sums.connect import Network


def refuse_over_rows(how: FitSettings) -> None:
    """Raise InputError where workers that hold rows are to have factors."""
    if how.n_factors:
        raise InputError(
            Setting("n_factors", how.n_factors),
            " are for correlations that no hub sees, but workers hold all features of their rows, "
            "whose covariances have every correlation; leave it out",
        )


def check_factors(
    how: FitSettings, network: Network, *, misses: bool = False, mixed: bool = False
) -> None:
    """Raise InputError where a fit cannot have the factors that are asked for."""
    if not how.n_factors:
        return
    asked = Setting("n_factors", how.n_factors)
    if misses:
        raise InputError(
            asked,
            ": of a row with missing values a hub would have to send how well it knows the "
            "factors, q x q numbers a component, beside the q that it sends; fill values in first, "
            "or leave out ",
            Setting("n_factors"),
        )
    if how.weight_concentration_prior_type is not None:
        raise InputError(
            asked,
            " would need a prior of their own: that of a hub's covariance says nothing of loadings "
            "and noise; leave out ",
            Setting("n_factors"),
            ", or ",
            Setting("weight_concentration_prior_type"),
        )
    if mixed:
        raise InputError(
            asked,
            " are of Gaussian features, which are a straight line of them and noise; those of "
            "other families are not; leave out ",
            Setting("n_factors"),
        )
    check_sums_of_factors(how, network)


def check_sums_of_factors(how: FitSettings | PlanSettings, network: Network) -> None:
    """Raise InputError where sums of terms cannot be those of factors."""
    if not how.n_factors:
        return
    asked = Setting("n_factors", how.n_factors)
    n_features = network.whole.blocks.n_features
    if how.n_factors > n_features:
        raise InputError(
            asked,
            f" are more than there are features, {n_features}, whose covariance has no more "
            "directions; give fewer",
        )
    if precision_of(how.dtype) == np.float32:
        raise InputError(
            asked,
            " explain a part of each row that is nearly all of it where noise is small, and of the "
            "difference float32 leaves few digits: a log-likelihood of breast cancer fell by 0.05 "
            "nats a row; take ",
            Setting("dtype", "float64"),
        )
    if how.batch_size is not None:
        raise InputError(
            Setting("batch_size"),
            " keeps statistics of batches, but those of factors would be about loadings that have "
            "moved and turned since; leave it out, or ",
            Setting("n_factors"),
        )
    if network.total.way != "consensus":
        return
    if network.faults is not None:
        raise InputError(
            asked,
            " takes two sums an iteration, of what hubs know of rows and of how well they know it, "
            "but where links or agents fail sums by consensus differ by who was heard; take ",
            Setting("sum", "tree"),
        )
    if network.compress is not None:
        raise InputError(
            "messages between neighbours say how states have changed since the last sum of terms, "
            "and how well factors are known would be taken for such; take ",
            Setting("sum", "tree"),
            ", or leave out ",
            Setting("compress"),
        )
