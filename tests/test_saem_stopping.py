"""When SAEM says that it has converged: near the maximum, and not by accident."""

import numpy as np
import pytest
from scipy.optimize import minimize

from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long
from vpem.saem.stopping import still_to_go

from .cli_support import ROOT
from .tables import over

BOYS = read_individuals(ROOT / "data" / "oxford_boys.csv")
BOYS_TOP = np.array([149.372, 6.525, 62.790, 8.375, 2.712, 0.4355])
BOYS_ERRORS = np.array([1.55, 0.33, 17.4, 3.09, 0.79, 0.046])
"""Of maximum likelihood."""

FLAT_TOP = np.array([5.0325, 0.8818, 1.2980, 0.0126, 0.2528, 1.0667])
FLAT_ERRORS = np.array([0.241, 0.162, 0.421, 0.199, 0.200, 0.171])
"""Maximum of `flat`'s likelihood by direct search, and errors by its curvature there."""

QUICK = {"n_conditional": 20, "n_importance": 20}


def flat():
    """26 individuals of whose slopes five rows say little: var(slope) is 0.25, its error 0.20."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(26, 2)) * [1.0, np.sqrt(0.3)] + [5.0, 1.0]
    times = np.linspace(-1.0, 1.0, 5)
    values = z[:, [0]] + z[:, [1]] * times + rng.normal(size=(26, 5))
    return from_long(np.repeat(np.arange(26), 5), np.tile(times, 26), values.ravel())


def information(*shares):
    """Complete and hidden information of parameters that move alone, by their observed shares."""
    return np.eye(len(shares)), np.diag(1.0 - np.array(shares))


def walk(start, shares, n_iter=100, decay=0.7, noise=0.0, seed=0):
    """Parameters whose maximum is 0, and the steps; half of the iterations are returned."""
    rng = np.random.default_rng(seed)
    theta, trace = np.array(start, dtype=float), []
    steps = np.arange(1, n_iter + 1) ** -decay
    for step in steps:
        trace.append(theta)
        theta = theta - step * (np.array(shares) * theta + noise * rng.normal(size=len(theta)))
    half = n_iter // 2
    return np.array([*trace, theta])[half:], steps[half:]


NONE = np.zeros((0, 2))


# ---- the measure --------------------------------------------------------------------------------


@over(decay=[0.7, 1.0], share=[0.9, 0.3, 0.1, 0.03])
def test_the_way_left_is_told_however_little_parameters_change(share, decay):
    shares = (share, 1.0)
    trace, steps = walk((5.0, 0.0), shares, decay=decay)
    far = still_to_go(trace, steps, *information(*shares), NONE, 0.01)
    true = trace[-1, 0] * np.sqrt(share)  # its standard error is the root of 1 / share
    assert 0.7 * true < far[0] < 3 * true + 0.01
    assert far[1] == 0


def test_scatter_is_told():
    shares = (0.8, 0.2)
    ends, told = [], []
    for seed in range(200):
        trace, steps = walk((0.0, 0.0), shares, noise=0.5, seed=seed)
        ends.append(trace[-1] * np.sqrt(shares))
        told.append(still_to_go(trace, steps, *information(*shares), NONE, 0.01))
    scatter = np.sqrt(np.mean(np.square(ends), axis=0))
    assert (scatter < 1.25 * np.mean(told, axis=0)).all()
    assert (np.mean(told, axis=0) < 3 * scatter).all()


def test_units_do_not_matter():
    shares, units = (0.5, 0.05), np.array([1e-6, 1e4])
    trace, steps = walk((1.0, 2.0), shares, noise=0.1)
    complete, hidden = information(*shares)
    one = still_to_go(trace, steps, complete, hidden, NONE, 0.01)
    complete, hidden = (matrix / np.outer(units, units) for matrix in (complete, hidden))
    np.testing.assert_allclose(
        still_to_go(trace * units, steps, complete, hidden, NONE, 0.01), one, rtol=1e-6
    )


def test_constraints_leave_out_what_cannot_move():
    trace, steps = walk((1.0, -1.0), (0.5, 0.5))
    complete, hidden = information(0.5, 0.5)
    free = still_to_go(trace, steps, complete, hidden, NONE, 0.01)
    bound = still_to_go(trace, steps, complete, hidden, np.ones((1, 2)), 0.01)
    np.testing.assert_allclose(bound, free * np.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize("own", [0.0, -1.0, np.nan, np.inf])
def test_without_information_changes_count_by_size(own):
    trace, steps = walk((8.0, 1.0), (0.5, 0.5))
    complete, hidden = information(0.5, 0.5)
    complete[0, 0] = own
    far = still_to_go(trace, steps, complete, hidden, NONE, 0.01)
    ratio = abs(trace[-1, 0] - trace[0, 0]) / trace[-1, 0] / np.expm1(steps.sum())
    assert far[0] == pytest.approx(ratio)
    assert np.isfinite(far).all()


def test_a_direction_of_which_rows_say_nothing_has_an_error():
    """As a variance at zero; it is taken to have the least information that draws can tell."""
    trace, steps = walk((1.0, 1.0), (0.02, 0.5))
    for share in (0.02, 0.0, -0.3):
        far = still_to_go(trace, steps, *information(share, 0.5), NONE, 0.02)
        assert far[0] == pytest.approx(np.sqrt(0.02) * trace[-1, 0], rel=0.3)


# ---- runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_a_start_far_off_has_not_converged_after_few_iterations(seed):
    far = [180.0, 3.0, 500.0, 0.0, 50.0, 20.0]
    options = {"start": far, "burn_in": 0, "window": 4, "seed": seed, **QUICK}
    with pytest.warns(UserWarning, match="has not converged in 12 iterations"):
        fit = fit_saem(BOYS, n_iter=12, average="models", **options)
    assert fit.change > 0.1
    fit = fit_saem(BOYS, **options)
    assert fit.converged
    assert (np.abs(fit.theta - BOYS_TOP) < 0.25 * BOYS_ERRORS).all()


@pytest.mark.filterwarnings("ignore:SAEM has not converged")
@pytest.mark.parametrize("seed", range(4))
def test_a_flat_likelihood_ends_early_at_its_maximum(seed):
    data = flat()
    fit = fit_saem(data, seed=seed, **QUICK)
    lost = fit.model.marginal(FLAT_TOP).sum() - fit.model.marginal(fit.theta).sum()
    assert fit.settings["sampler"] == "exact"
    assert lost > -1e-3
    assert fit.converged
    assert fit.n_iter < 1000
    assert lost < 0.05
    assert (np.abs(fit.theta - FLAT_TOP) < 0.25 * FLAT_ERRORS).all()


def test_at_a_boundary_it_ends_where_the_likelihood_is_flat():
    """The slopes do not vary, and their variance has its maximum near 0: what is lost is little."""
    rng = np.random.default_rng(3)
    times = np.linspace(-1.0, 1.0, 6)
    values = 2 * rng.normal(size=(30, 1)) + 3 * times + rng.normal(size=(30, 6))
    data = from_long(np.repeat(np.arange(30), 6), np.tile(times, 30), values.ravel())
    fit = fit_saem(data, seed=0, **QUICK)

    def loss(at):
        root = np.array([[np.exp(at[2]), 0.0], [at[3], at[4]]])
        omega = root @ root.T + 1e-9 * np.eye(2)
        theta = [at[0], at[1], omega[0, 0], omega[1, 0], omega[1, 1], np.exp(at[5])]
        return -fit.model.marginal(np.array(theta)).sum()

    top = minimize(loss, [0.0, 3.0, 0.7, 0.05, 0.1, 0.0])
    root = top.x[3:5]
    assert fit.converged
    assert root @ root < 0.01  # at the maximum
    assert fit.theta[4] < 0.03
    assert abs(-top.fun - fit.model.marginal(fit.theta).sum()) < 1e-4
    lacking = [name for name, error in fit.errors.items() if np.isnan(error)]
    assert lacking == ["var(intercept)", "cov(intercept, slope)", "var(slope)"]


def test_devices_stop_at_the_same_iteration():
    one, four = (fit_saem(BOYS, devices=devices, **QUICK) for devices in (1, 4))
    assert one.converged
    assert one.n_iter == four.n_iter
    assert four.change == pytest.approx(one.change, rel=1e-6)
    np.testing.assert_allclose(four.theta, one.theta, rtol=1e-9)


def test_grounds_are_a_sentence_that_a_file_keeps(tmp_path):
    fit = fit_saem(BOYS, average="models", **QUICK)
    worst = fit.grounds.split(" is farthest")[0]
    assert worst in fit.model.parameters
    assert fit.grounds == (
        f"{worst} is farthest from where it settles, about {fit.change:.2g} of its standard "
        "error, less than tol 0.1"
    )
    save_saem(tmp_path / "fit.h5", fit)
    assert read_saem(tmp_path / "fit.h5").grounds == fit.grounds
