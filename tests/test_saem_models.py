"""Models of SAEM: gradients, statistics and M-steps that fit their densities."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from vpem.errors import InputError
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import Streams, from_long, from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.gmm import GmmModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import check_model
from vpem.saem.structures.formulas import Compartments
from vpem.terms.units import symmetric

from .tables import each

DATA = Path(__file__).resolve().parents[1] / "data"
GROUPS = [0, 0, 0, 1, 1, 1]


@pytest.fixture(scope="module")
def boys():
    return read_individuals(DATA / "oxford_boys.csv")


@pytest.fixture(scope="module")
def theophylline():
    return read_individuals(DATA / "theophylline.csv")


def later(data):
    """Rows after the dose."""
    keep = data.times > 0
    ids = np.array(data.names, dtype=object)[data.individual_of][keep]
    return from_long(
        ids, data.times[keep], data.values[keep], {"dose": data.covariate("dose")[keep]}
    )


@pytest.fixture(scope="module", params=["linear", "constant", "proportional", "full", "bifactor"])
def model(request, boys, theophylline):
    if request.param == "linear":
        return LinearModel(boys)
    if request.param == "bifactor":
        return BifactorModel(from_matrix(np.random.default_rng(0).normal(size=(9, 6))), GROUPS)
    if request.param == "full":
        return OneCompartmentModel(theophylline, random=("ka", "cl"), covariance="full")
    data = theophylline if request.param == "constant" else later(theophylline)
    return OneCompartmentModel(data, error=request.param)


@pytest.fixture(scope="module")
def mixture(overlapping):
    return GmmModel(from_matrix(overlapping(1, 120, 3)), 3)


def near(model, rng, n_chains=2):
    """Latents about the start of a model."""
    theta, z = model.start()
    return theta, z + 0.3 * rng.normal(size=(n_chains, *z.shape))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_gradient_is_that_of_the_density(model, seed):
    theta, z = near(model, np.random.default_rng(seed))
    slope = model.gradient(z, theta)
    for j in range(z.shape[-1]):
        nudge = np.zeros(z.shape[-1])
        nudge[j] = 1e-5
        ends = model.log_complete(z + nudge, theta) - model.log_complete(z - nudge, theta)
        size = np.abs(slope).max()
        np.testing.assert_allclose(slope[..., j], ends / 2e-5, rtol=1e-5, atol=1e-6 * size)


@each("seed", range(3))
def test_statistics_are_all_that_parameters_need(model, seed):
    rng = np.random.default_rng(seed)
    theta, z = near(model, rng)
    expanded = model.expand_about(theta) is not model and model.latents[0] == "log ka"
    size = 1e-5 if expanded and len(model.latents) < 3 else 0.01
    other = theta * (1 + size * rng.uniform(size=len(theta)))
    model = model.expand_about(theta)
    total = model.statistics(z).sum(axis=0)
    change = (model.log_complete(z, other) - model.log_complete(z, theta)).mean(axis=0).sum()
    by_statistics = [model.log_density(total, model.counts, one) for one in (other, theta)]
    assert by_statistics[0] - by_statistics[1] == pytest.approx(
        change, rel=1e-8 if size == 0.01 else 1e-3, abs=1e-8
    )


def test_statistics_of_a_mixture_are_all_that_parameters_need(mixture):
    theta, z = mixture.start()
    total = mixture.statistics(z[None]).sum(axis=0)
    found = mixture.log_density(total, mixture.counts, theta)
    assert found == pytest.approx(mixture.log_complete(z[None], theta).sum(), rel=1e-10)


def test_scores_of_two_outcomes_are_derivatives(theophylline):
    data = from_long(
        np.array(theophylline.names, dtype=object)[theophylline.individual_of],
        theophylline.times, theophylline.values,
        dict(theophylline.covariates) | {"outcome": np.arange(132) % 2.0},
    )  # fmt: skip
    model = OneCompartmentModel(
        data, ("ka", "cl", "v"), "combined", random=("ka", "v"), effects=("cl:dose",)
    )
    theta, z = model.start()
    model, z = model.expand_about(theta), z[None]
    names, (first, second) = list(model.parameters), model._slices[-2:]
    B, _, sds = model.unpack(theta)
    statistics, at = model.statistics(z), model.pack_point(B, sds)
    score = statistics[:, first] - symmetric(statistics[:, second], len(at)) @ at
    fixed = [1, 3, *range(4, 8)]  # log cl, what the dose does to it, and four variances
    places = [names.index("log cl"), names.index("beta(log cl, dose)"), *range(-4, 0)]
    for one, place in zip(fixed, places, strict=True):
        nudge = np.zeros(len(theta))
        nudge[place] = 1e-5 * theta[place] or 1e-5
        ends = model.log_complete(z, theta + nudge) - model.log_complete(z, theta - nudge)
        by = 2 * nudge[place] * (2 * theta[place] if one > 3 else 1.0)
        np.testing.assert_allclose(score[:, one], ends[0] / by, rtol=1e-4, atol=1e-5)


@each("seed", range(3))
def test_maximize_finds_the_top(model, seed):
    rng = np.random.default_rng(seed)
    theta, z = near(model, rng)
    model = model.expand_about(theta)
    total = model.statistics(z).sum(axis=0)
    if isinstance(model, OneCompartmentModel):  # where its steps of scoring come to rest
        first, second = model._slices[-2:]
        B, _, sds = model.unpack(theta)
        at = model.pack_point(B, sds)
        total[first] = symmetric(total[second], len(at)) @ at
    top = model.maximize(total, model.counts)
    best = model.log_density(total, model.counts, top)
    for _ in range(20):
        other = top + 1e-3 * np.abs(top) * rng.normal(size=len(top))
        assert model.log_density(total, model.counts, other) <= best


def test_maximize_of_a_mixture_finds_the_top(mixture):
    rng = np.random.default_rng(0)
    total = mixture.expected(mixture.responsibilities(mixture.start()[0])).sum(axis=0)
    top = mixture.maximize(total, mixture.counts)
    best = mixture.log_density(total, mixture.counts, top)
    for _ in range(20):
        other = top + 1e-3 * np.abs(top) * rng.normal(size=len(top))
        other[:3] /= other[:3].sum()
        assert mixture.log_density(total, mixture.counts, other) <= best + 1e-4


@each("seed", range(5))
def test_maximize_is_valid_for_any_total(model, mixture, seed):
    rng = np.random.default_rng(seed)
    for one in (model, mixture):
        one = one.expand_about(one.start()[0])
        total = rng.normal(size=one.size) * 100 * (rng.uniform(size=one.size) < 0.5)
        theta = one.maximize(total, one.counts)
        assert np.isfinite(theta).all()
        z = one.start()[1]
        assert not np.isnan(one.log_complete(z[None], theta)).any()


def test_parts_of_a_model_are_the_model(model, mixture):
    for one in (model, mixture):
        theta, z = one.start()
        which = np.array([4, 0, 3])
        part = one.take_individuals(which)
        chains = np.repeat(z[None], 2, axis=0)
        np.testing.assert_array_equal(
            part.log_complete(chains[:, which], theta), one.log_complete(chains, theta)[:, which]
        )
        np.testing.assert_array_equal(
            part.expand_about(theta).statistics(chains[:, which]),
            one.expand_about(theta).statistics(chains)[which],
        )
        check_model(one, theta, z)


# ---- each model by itself -----------------------------------------------------------------------


def test_marginal_of_the_linear_model_is_a_normal_law(boys):
    model = LinearModel(boys)
    theta, _ = model.start()
    B, omega, variance = model.unpack(theta)
    beta = B[:, 0]
    for i in (0, 7, 25):
        rows = slice(boys.first[i], boys.first[i + 1])
        X = np.column_stack([np.ones(9), boys.times[rows]])
        law = multivariate_normal(X @ beta, X @ omega @ X.T + variance * np.eye(9))
        assert model.marginal(theta)[i] == pytest.approx(law.logpdf(boys.values[rows]), rel=1e-10)


def test_marginals_are_what_the_complete_density_integrates_to():
    rng = np.random.default_rng(3)
    model = BifactorModel(
        from_matrix(rng.normal(size=(5, 6)) + 0.5 * rng.normal(size=(5, 1))), GROUPS
    )
    theta, _ = model.start()
    theta.reshape(4, -1)[3] += 0.2
    means, covariances = model.posterior(theta)
    peak = model.log_complete(means[None], theta)[0]
    constant = 0.5 * np.linalg.slogdet(2 * np.pi * covariances)[1]
    np.testing.assert_allclose(model.marginal(theta), peak + constant, rtol=1e-10)
    np.testing.assert_allclose(model.gradient(means[None], theta), 0.0, atol=1e-9)


def test_posterior_draws_have_its_moments(boys):
    model = LinearModel(boys)
    theta, _ = model.start()
    means, covariances = model.posterior(theta)
    z = model.draw(theta, Streams.from_names(boys.names, 5).derive_stream(1, 0), 4000)
    np.testing.assert_allclose(z.mean(axis=0), means, atol=0.03)
    np.testing.assert_allclose(np.cov(z[:, 3].T), covariances[3], rtol=0.1, atol=0.005)


def test_equal_rates_are_a_limit():
    times = np.array([0.0, 0.5, 4.0, 30.0])
    person = from_long(np.zeros(4), times, np.ones(4), {"dose": np.full(4, 3.0)})
    phi = np.log([[[0.7, 0.05, 0.7]]])
    f, slopes = Compartments().slopes(phi, person)
    np.testing.assert_allclose(f[0], 3 * 0.7**2 / 0.05 * times * np.exp(-0.7 * times), rtol=1e-12)
    apart = Compartments().predict(phi + np.array([1e-3, 0, 0]), person)
    np.testing.assert_allclose(apart, f, rtol=2e-2)
    assert np.isfinite(slopes).all()
    for far in ([300.0, 0, -300.0], [-300.0, 0, 300.0]):
        assert np.isfinite(Compartments().predict(np.array([[far]]), person)).all()


def test_a_mixture_draws_by_responsibilities(mixture):
    theta, _ = mixture.start()
    names = mixture.individuals.names
    z = mixture.draw(theta, Streams.from_names(names, 2).derive_stream(1, 0), 3000)
    share = (z == np.arange(3)).mean(axis=0)
    np.testing.assert_allclose(share, mixture.responsibilities(theta), atol=0.05)


def test_signs_of_factors_are_fixed_together():
    model = BifactorModel(from_matrix(np.random.default_rng(1).normal(size=(30, 6))), GROUPS)
    theta, z = model.start()
    turned = theta.reshape(4, -1).copy()
    turned[1] *= -1
    turned[2][:3] *= -1
    theta_1, z_1 = model.canonical(turned.ravel(), z * [-1, -1, 1])
    theta_0, z_0 = model.canonical(theta, z)
    np.testing.assert_array_equal(theta_0, theta_1)
    np.testing.assert_array_equal(z_0, z_1)


# ---- what is refused ----------------------------------------------------------------------------


@each(
    ("make", "words"),
    [
        (lambda d: LinearModel(d, ["time", "dosis"]), "did you mean 'dose'"),
        (lambda d: OneCompartmentModel(from_long([0, 0], [0, 1], [1, 2])), "no covariate 'dose'"),
        (lambda d: OneCompartmentModel(dosed([0, 1], [-1, -1])), "a dose that is negative"),
        (lambda d: OneCompartmentModel(dosed([0, 1], [1, 2])), "changes from 1 to 2"),
        (lambda d: OneCompartmentModel(dosed([0, 1], [1, np.nan])), "is missing for"),
        (lambda d: OneCompartmentModel(dosed([-1, 1], [1, 1])), "a time before the dose"),
        (lambda d: OneCompartmentModel(d, error="proportional").start(), "have no density"),
        (lambda d: OneCompartmentModel(d, error="constan"), "did you mean 'constant'"),
        (lambda d: OneCompartmentModel(d, random=["V"]), "random parameter must be one of"),
        (lambda d: BifactorModel(d, [0] * 11), "measured at the same times"),
        (lambda d: BifactorModel(from_matrix(np.ones((3, 4))), [0, 0, 1]), "need a group each"),
        (lambda d: BifactorModel(from_matrix(np.ones((3, 4))), [0, 0, 0, 1]), "two items each"),
        (lambda d: GmmModel(from_matrix(np.ones((3, 4))), 3).start(), "more individuals than 3"),
        (lambda d: GmmModel(from_matrix(np.ones((3, 4))), 2).gradient(0, 0), "no gradient"),
        (lambda d: OneCompartmentModel(d).posterior(0), "no Gaussian posterior"),
    ],
)
def test_data_that_a_model_cannot_take(theophylline, make, words):
    with pytest.raises(InputError, match=words):
        make(theophylline)


def dosed(times, doses):
    return from_long(["a", "a"], times, [1, 2], {"dose": doses})


def test_a_model_whose_functions_do_not_fit_each_other(boys):
    class Wide(LinearModel):
        def statistics(self, z):
            return np.zeros((self.n, 3))

    class Odd(LinearModel):
        def maximize(self, total, counts):
            return total @ np.ones(4)

    for kind, words in (
        (Wide, "statistics of model Wide must have"),
        (Odd, "maximize of model Odd"),
    ):
        model = kind(boys)
        theta, z = LinearModel(boys).start()
        with pytest.raises(InputError, match=words):
            check_model(model, theta, z)
