"""Noise on integers, and the accountant of what is published with it."""

import numpy as np
import pytest
from scipy import stats

from vpem.errors import InputError
from vpem.fits.privacy import Budget, Guarantee, bounds_of, check_grid, foretell, spent
from vpem.fits.settings import PrivacySettings
from vpem.network.noise import REACH, Noise, beyond_reach, ratio_to_gaussian, share
from vpem.settings import FitSettings
from vpem.terms.row_statistics import Grid

SEED = 20


def law(scale):
    """Integers out to 7 scales, and their probabilities."""
    values = np.arange(-7 * scale, 7 * scale + 1)
    weights = np.exp(-(values**2) / (2.0 * scale**2))
    return values, weights / weights.sum()


@pytest.mark.parametrize("scale", [1, 2, 3, 16])
def test_small_noise_has_the_exact_law(scale):
    found = Noise(SEED).gaussian(scale, 100_000)
    values, chances = law(scale)
    often = chances * len(found) > 10
    counts = np.array([(found == value).sum() for value in values[often]])
    observed = np.append(counts, len(found) - counts.sum())
    expected = np.append(chances[often], 1 - chances[often].sum()) * len(found)
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("scale", [2**20, 3**29 + 2, 2**52])
def test_large_noise_has_the_moments_and_low_bits_of_the_law(scale):
    found = Noise(SEED).gaussian(scale, 20_000)
    assert stats.kstest(found / scale, "norm").pvalue > 1e-3
    low = np.bincount(found & 15, minlength=16)
    assert stats.chisquare(low).pvalue > 1e-3


def test_noise_of_the_system_differs_and_noise_with_a_seed_does_not():
    first, second = Noise(), Noise()
    assert not first.repeatable
    assert (first.gaussian(2**30, 50) != second.gaussian(2**30, 50)).all()
    again = [Noise(3, agent).gaussian(2**30, 50) for agent in (0, 0, 1)]
    np.testing.assert_array_equal(again[0], again[1])
    assert (again[0] != again[2]).all()
    assert Noise(3).repeatable


def test_coins_fall_as_often_as_they_should():
    noise, n = Noise(SEED), 100_000
    for chance in (1.0, 0.5, 0.125):
        bound = round(1 / chance)
        heads = noise._coin(n, lambda left, bound=bound: noise._below(bound, len(left)) == 0)
        assert stats.binomtest(int(heads.sum()), n, np.exp(-chance)).pvalue > 1e-3


@pytest.mark.parametrize("scale", [0, -1, 2**52 + 1, 2.0, None])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(InputError, match="an integer from 1 to 2\\^52"):
        Noise().gaussian(scale, 3)


def test_shares_have_together_what_is_needed():
    for scale, n in ((10, 4), (10, 3), (2**40, 7), (1, 5)):
        own = share(scale, n)
        assert n * own**2 >= scale**2 > n * (own - 1) ** 2


def test_bounds_of_what_is_not_gaussian_hold_for_the_exact_laws():
    scale, n = 4, 3
    # Three laws of scale 4, folded, beside one of scale 4 sqrt(3).
    values, chances = law(scale)
    together = np.convolve(np.convolve(chances, chances), chances)
    far = np.arange(-3 * values[-1], 3 * values[-1] + 1)
    one = np.exp(-(far**2) / (2.0 * n * scale**2))
    near = np.abs(far) <= 4 * scale  # where rounding of floats is small beside the chances
    ratio = np.log(together / (one / one.sum()))[near]
    # Kairouz, Liu and Steinke (2021), Theorem 1; see `vpem.network.noise.share`.
    assert np.abs(ratio).max() <= 10 * (n - 1) * np.exp(-((np.pi * scale) ** 2)) + 1e-10
    scale = 64
    values, chances = law(scale)
    rounded = np.diff(stats.norm.cdf(np.append(values, values[-1] + 1) - 0.5, scale=scale))
    nats = np.abs(np.log(rounded / chances))[np.abs(values) <= 5 * scale]
    # The bound is quadratic in how far a value is, and holds out to its reach.
    bound = ratio_to_gaussian(scale, 1) * (5**2 + 1) / (REACH**2 + 1)
    assert 0.1 * bound < nats.max() <= bound
    assert beyond_reach(10) == pytest.approx(20 * stats.norm.pdf(REACH) * np.sqrt(2 * np.pi))


@pytest.mark.parametrize(("epsilon", "delta", "n"), [(4.0, 1e-6, 10), (1.0, 1e-5, 30)])
def test_the_accountant_agrees_with_that_of_the_library(epsilon, delta, n):
    import dp_accounting

    shares = np.arange(1, n + 1) / (n * (n + 1) / 2)
    multipliers = Budget.parse(epsilon, delta, 1000).multipliers(shares)
    theirs = dp_accounting.pld.PLDAccountant()
    events = [dp_accounting.GaussianDpEvent(float(one)) for one in multipliers]
    theirs.compose(dp_accounting.ComposedDpEvent(events))
    ours = spent(multipliers, delta)
    # Theirs rounds losses up to a grid of 1e-4.
    assert ours <= theirs.get_epsilon(delta) <= ours + 1e-4
    assert 0.999 * epsilon < ours < epsilon


def test_a_budget_cannot_be_spent_twice():
    with pytest.raises(ValueError, match="at most 1 in all"):
        Budget(1.0, 1e-6).multipliers([0.6, 0.6])


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [
        (0, 1e-6, "a finite number above 0"),
        (-1, 1e-6, "a finite number above 0"),
        (np.inf, 1e-6, "a finite number above 0"),
        (1e3, 1e-6, "1 to 10 is common"),
        (1e-4, 1e-6, "1 to 10 is common"),
        (1, None, "epsilon needs delta"),
        (1, 0, "a finite number above 0"),
        (1, 0.01, "delta must be below 1 / 100"),
    ],
)
def test_budgets_that_promise_nothing_are_refused(epsilon, delta, said):
    with pytest.raises(InputError, match=said):
        Budget.parse(epsilon, delta, 100)


def test_a_grid_that_is_too_coarse_is_refused():
    budget = Budget(4.0, 1e-6)
    budget.check_grid(2**32, 10**7)
    with pytest.raises(InputError, match="too coarse"):
        budget.check_grid(2**10, 100)
    with pytest.raises(InputError, match="too small for noise"):
        Budget(20.0, 1e-30).check_grid(2**32, 10**7)


@pytest.mark.parametrize(("n_samples", "n_features"), [(10**6, 40), (10**8, 10)])
def test_a_grid_is_fine_enough_for_many_rows_and_a_delta_that_is_common(n_samples, n_features):
    private = PrivacySettings(epsilon=4.0, delta=0.01 / n_samples)
    foretold = foretell(FitSettings(n_components=3), private, n_samples, n_features)
    check_grid(foretold, Grid.for_size(n_samples, n_features))


def test_a_guarantee_says_what_it_is_worth():
    budget = Budget(2.0, 1e-6)
    guarantee = Guarantee(budget, tuple(budget.multipliers([0.5, 0.5])), "server")
    found = guarantee.describe()
    assert found["epsilon_of_change"] > 2 * budget.epsilon
    assert "warning" not in found
    assert "no privacy" in Guarantee(budget, (1.0,), "hubs", repeatable=True).describe()["warning"]


@pytest.mark.parametrize(
    "given", [None, "a", "1", "3,1", "1,2,3", "0,1;2,3;4,5", (0, np.inf), [1, 2, 3], 7]
)
def test_bounds_that_bound_nothing_are_refused(given):
    with pytest.raises(InputError, match="bounds"):
        bounds_of(given, 2)


def test_bounds_are_of_all_features_or_of_each():
    np.testing.assert_array_equal(bounds_of("-3,3", 2), [[-3, -3], [3, 3]])
    np.testing.assert_array_equal(bounds_of("0,1;2,3", 2), [[0, 2], [1, 3]])
    np.testing.assert_array_equal(bounds_of(([0, 2], 5), 2), [[0, 2], [5, 5]])
