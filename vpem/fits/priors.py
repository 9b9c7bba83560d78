"""Priors of variational fits: what their settings say."""

from __future__ import annotations

from copy import copy

import numpy as np

from vpem.errors import InputError, Setting
from vpem.settings import FitSettings
from vpem.terms.features import FeatureTerms
from vpem.terms.priors import Beliefs
from vpem.terms.variational import VariationalTerms
from vpem.terms.variational_missing import variational_terms

__all__ = ["believing", "under_prior"]


def believing(terms: FeatureTerms, how: FitSettings) -> FeatureTerms:
    """Return terms that a prior is yet to be found for, or as they are where none is asked for.

    Parameters
    ----------
    terms : FeatureTerms
        Plain ones.
    how : FitSettings
        Of the fit.
    """
    kind, concentration = how.weight_concentration_prior_type, how.weight_concentration_prior
    if kind is None:
        return terms
    if not isinstance(terms, FeatureTerms):
        raise InputError(
            Setting("weight_concentration_prior_type", kind), " is conjugate to Gaussian features, "
            "but others are among these; leave it out",
        )  # fmt: skip
    beliefs = Beliefs(
        kind,
        1.0 / how.n_components if concentration is None else concentration,
        how.mean_precision_prior,
        how.degrees_of_freedom_prior,
        how.prior_covariance,
        terms.reg_covar,
    )
    return variational_terms(terms, beliefs)


def under_prior(terms: FeatureTerms, how: FitSettings) -> FeatureTerms:
    """Return terms under the prior about what their hubs know of all rows, if one is asked for.

    Raises
    ------
    InputError
        If there can be no such prior.
    NumericalError
        If the prior covariance of a hub is not positive definite.
    """
    made = believing(terms, how)
    if not isinstance(made, VariationalTerms):
        return made
    one = copy(terms)
    one.reg_covar = np.zeros_like(terms.reg_covar)
    return made.about(one.sample())
