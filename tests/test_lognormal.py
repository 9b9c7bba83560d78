"""Log-normal features are Gaussian ones of logarithms, and their densities those of the values."""

import numpy as np
from scipy.stats import lognorm

from vpem.network.partition import Blocks
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.families.kinds import LAWS, Kinds
from vpem.terms.families.mixed import MixedTerms
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .missing_support import clusters, with_holes
from .tables import over

BLOCKS = Blocks((np.array([3, 0]), np.array([1, 2])), (0, 1), ((0,), (1,)))
SUM = np.ones((1, 2))


def lognormal_terms(X, kind, **options):
    kinds, misses = Kinds(("log-normal",) * X.shape[1]), bool(np.isnan(X).any())
    return MixedTerms(X, BLOCKS, kind, kinds=kinds, misses=misses, reg_covar=0.0, **options)


@over(kind=COVARIANCE_TYPES, holes=[False, True])
def test_steps_are_those_of_the_logarithms(kind, holes):
    scale = "none" if kind.endswith("spherical") else "standard"  # a sphere has units
    logs = clusters(1, 80, 4, 2)
    logs = with_holes(logs, 2) if holes else logs
    X, weights = np.exp(logs), np.random.default_rng(0).uniform(0.5, 2, 80)
    gaussian = FeatureTerms(
        logs, BLOCKS, kind, missing=holes, scaling=Scaling.none(4), reg_covar=0.0,
        row_weights=weights,
    )  # fmt: skip
    terms = lognormal_terms(X, kind, row_weights=weights, scale=scale)
    mixture = terms.start(terms.scaling.apply(np.nan_to_num(logs[:2]))[:, BLOCKS.order])
    wanted = gaussian.start(np.nan_to_num(logs[:2])[:, BLOCKS.order])
    log_x = float(weights @ np.nan_to_num(logs).sum(axis=1))
    for _ in range(3):
        found, likelihoods = [], []
        for own, start in ((terms, mixture), (gaussian, wanted)):
            statistics = own.empty(start.means, 1)
            likelihoods.append(own.sweep(start, own.prepare(start), SUM, statistics)[0])
            found.append(own.update(statistics))
        np.testing.assert_allclose(
            likelihoods[0], likelihoods[1] + gaussian.log_constant - log_x, rtol=1e-10
        )
        mixture, wanted = found
        core = mixture.parts[0].core
        np.testing.assert_allclose(mixture.weights, wanted.weights, rtol=1e-9)
        np.testing.assert_allclose(core.assembled_means, wanted.assembled_means, atol=1e-9)
    scores = mixture.score_samples(X, missing="marginalize")
    others = wanted.score_samples(logs, missing="marginalize") - np.nan_to_num(logs).sum(axis=1)
    np.testing.assert_allclose(scores, others, rtol=1e-8)


def test_expected_values_and_draws_are_those_of_a_log_normal():
    X = np.exp(0.5 * clusters(3, 200, 4, 2))
    terms = lognormal_terms(X, "full", scale="standard")
    mixture = terms.start(terms.at_rows(np.array([0, 100])))
    core = mixture.parts[0].core
    deviations = np.sqrt(np.diagonal(core.assembled_covariances, axis1=1, axis2=2))
    wanted = lognorm(deviations, scale=np.exp(core.assembled_means)).mean()
    np.testing.assert_allclose(mixture.assembled_means, wanted, rtol=1e-12)
    rows, labels = mixture.sample(40000, np.random.default_rng(0))
    np.testing.assert_allclose(rows[labels == 1].mean(axis=0), wanted[1], rtol=0.1)


def test_values_without_a_logarithm_are_wrong():
    values = np.array([1.0, 0.0, -2.0, np.inf, 5e-324])
    assert LAWS["log-normal"].wrong(values).tolist() == [False, True, True, True, False]
