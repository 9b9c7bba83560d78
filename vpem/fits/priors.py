"""Priors: what their settings say."""

from __future__ import annotations

from copy import copy

import numpy as np

from vpem.errors import InputError, Setting
from vpem.network.partition import Blocks
from vpem.network.schema import Report
from vpem.prior_settings import MAP
from vpem.settings import FitSettings
from vpem.terms.conjugate import MapMissingTerms, MapTerms
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import MissingTerms
from vpem.terms.priors import Beliefs, wishart_sizes
from vpem.terms.variational import VariationalTerms
from vpem.terms.variational_missing import variational_terms


def believing(terms: FeatureTerms, how: FitSettings) -> FeatureTerms:
    """Return plain terms as such that a prior is yet to be found for, if one is asked for."""
    kind, concentration = how.weight_concentration_prior_type, how.weight_concentration_prior
    if kind is None:
        return terms
    if not isinstance(terms, FeatureTerms):
        raise InputError(
            Setting("weight_concentration_prior_type", kind), " is conjugate to Gaussian features, "
            "but others are among these; leave it out",
        )  # fmt: skip
    prior = mode_prior(how, terms.blocks)
    if prior is not None:
        under = MapMissingTerms if isinstance(terms, MissingTerms) else MapTerms
        pull, freedom, factors = list(prior.values())[1:]
        return under.of(terms, pull, np.array(freedom), np.array(factors))
    means, scale = how.mean_precision_prior, how.prior_covariance
    beliefs = Beliefs(
        kind,
        1.0 / how.n_components if concentration is None else concentration,
        1.0 if means is None else means,
        how.degrees_of_freedom_prior,
        1.0 if scale is None else scale,
        terms.reg_covar,
    )
    return variational_terms(terms, beliefs)


def mode_prior(how: FitSettings, blocks: Blocks) -> Report | None:
    """Return the prior of which EM finds the mode, by default mclust's; None: there is no such."""
    if how.weight_concentration_prior_type != MAP:
        return None
    pull, freedom, scale = (
        how.mean_precision_prior, how.degrees_of_freedom_prior, how.prior_covariance,
    )  # fmt: skip
    sizes = wishart_sizes(blocks, how.covariance_type).astype(np.float64)
    usual = how.n_components ** (-2 / sizes)
    return {
        "weight_concentration_prior_type": MAP,
        "mean_precision_prior": 0.01 if pull is None else pull,
        "degrees_of_freedom_prior": (
            sizes + 2 if freedom is None else np.full(len(sizes), freedom)
        ).tolist(),
        "prior_covariance": (usual if scale is None else np.full(len(sizes), scale)).tolist(),
    }


def under_prior(terms: FeatureTerms, how: FitSettings) -> FeatureTerms:
    """Return terms under the prior about what their hubs know of all rows, if one is asked for."""
    made = believing(terms, how)
    if isinstance(made, MapTerms):
        return made.with_sample_covariance(terms.sample_covariance)
    if not isinstance(made, VariationalTerms):
        return made
    one = copy(terms)
    one.reg_covar = np.zeros_like(terms.reg_covar)
    return made.about(one.sample())
