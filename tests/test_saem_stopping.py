"""When SAEM says that it has converged: near the maximum, and not by accident; when it doubts."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

from vpem.errors import NotConvergedWarning, VpemWarning
from vpem.saem.conditional import LogLikelihood
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long
from vpem.saem.models.linear import LinearModel
from vpem.saem.results import warn_of_few
from vpem.saem.samplers import Metropolis
from vpem.saem.stopping import Watch, still_to_go

from .cli_support import ROOT
from .tables import each, over

BOYS = read_individuals(ROOT / "data" / "oxford_boys.csv")
BOYS_TOP = np.array([149.372, 6.525, 62.790, 8.375, 2.712, 0.4355])
BOYS_ERRORS = np.array([1.55, 0.33, 17.4, 3.09, 0.79, 0.046])
"""Of maximum likelihood."""

FLAT_TOP = np.array([5.0325, 0.8818, 1.2980, 0.0126, 0.2528, 1.0667])
FLAT_ERRORS = np.array([0.241, 0.162, 0.421, 0.199, 0.200, 0.171])
"""Maximum of `flat`'s likelihood by direct search, and errors by its curvature there."""

QUICK = {"n_conditional": 20, "n_importance": 20}
NONE = np.zeros((0, 2))


def rows(values, times):
    """Individuals of values (n, T) at the same times."""
    n, T = values.shape
    return from_long(np.repeat(np.arange(n), T), np.tile(times, n), values.ravel())


def flat():
    """26 individuals of whose slopes five rows say little: var(slope) is 0.25, its error 0.20."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(26, 2)) * [1.0, np.sqrt(0.3)] + [5.0, 1.0]
    times = np.linspace(-1.0, 1.0, 5)
    return rows(z[:, [0]] + z[:, [1]] * times + rng.normal(size=(26, 5)), times)


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


def test_neither_units_matter_nor_what_cannot_move():
    shares, units = (0.5, 0.05), np.array([1e-6, 1e4])
    trace, steps = walk((1.0, 2.0), shares, noise=0.1)
    matrices = information(*shares)
    one = still_to_go(trace, steps, *matrices, NONE, 0.01)
    scaled = (matrix / np.outer(units, units) for matrix in matrices)
    other = still_to_go(trace * units, steps, *scaled, NONE, 0.01)
    np.testing.assert_allclose(other, one, rtol=1e-6)
    trace, steps = walk((1.0, -1.0), (0.5, 0.5))
    free, bound = (
        still_to_go(trace, steps, *information(0.5, 0.5), constraints, 0.01)
        for constraints in (NONE, np.ones((1, 2)))
    )
    np.testing.assert_allclose(bound, free * np.sqrt(2), rtol=1e-6)


@each("own", [0.0, -1.0, np.nan, np.inf])
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


def test_a_start_far_off_has_not_converged_after_few_iterations():
    far = [180.0, 3.0, 500.0, 0.0, 50.0, 20.0]
    options = {"start": far, "burn_in": 0, "window": 4, "seed": 1, **QUICK}
    with pytest.warns(UserWarning, match="has not converged in 12 iterations"):
        fit = fit_saem(BOYS, n_iter=12, average="models", **options)
    assert fit.change > 0.1
    fit = fit_saem(BOYS, **options)
    assert fit.converged
    assert (np.abs(fit.theta - BOYS_TOP) < 0.25 * BOYS_ERRORS).all()


def test_a_flat_likelihood_ends_early_at_its_maximum():
    fit = fit_saem(flat(), seed=1, **QUICK)
    lost = fit.model.marginal(FLAT_TOP).sum() - fit.model.marginal(fit.theta).sum()
    assert fit.settings["sampler"] == "exact"
    assert fit.converged
    assert fit.n_iter < 1000
    assert -1e-3 < lost < 0.05
    assert (np.abs(fit.theta - FLAT_TOP) < 0.25 * FLAT_ERRORS).all()


def test_at_a_boundary_it_ends_where_the_likelihood_is_flat():
    """The slopes do not vary, and their variance has its maximum near 0: what is lost is little."""
    rng = np.random.default_rng(3)
    times = np.linspace(-1.0, 1.0, 6)
    values = 2 * rng.normal(size=(30, 1)) + 3 * times + rng.normal(size=(30, 6))
    fit = fit_saem(rows(values, times), seed=0, **QUICK)

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


def test_variances_that_were_lost_are_not_said_to_have_settled():
    """Of one individual nothing varies."""
    drug = read_individuals(ROOT / "data" / "theophylline.csv").take([0])
    options = {"model_options": {"random": ["ka", "cl"]}, "n_chains": 1, **QUICK}
    with pytest.warns(NotConvergedWarning) as told:
        fit = fit_saem(drug, "one-compartment", tol=0.1, n_iter=1000, burn_in=200, **options)
    assert fit.change < 0.1
    assert "but some variances are as good as zero, and stay there" in str(told[0].message)


@each(("lag", "said"), [(np.inf, "more than 20"), (60.0, "about 60")])
def test_draws_that_stay_alike_end_nothing(lag, said):
    """Parameters that do not move, by chains that do not either."""
    model = LinearModel(BOYS)
    theta, _ = model.start()
    watch = Watch(model, Metropolis(), None, 0, 0.1, 20)
    watch._complete, watch._hidden = np.eye(6), 0.5 * np.eye(6)
    watch._times, watch._since = np.array([1.0, lag]), 40
    run = SimpleNamespace(theta=theta, trace=[theta] * 41, steps=[1.0] * 40, lost=0, n_iter=40)
    assert not watch.has_settled(run)
    assert run.change < 0.1
    assert f"draws of slope by metropolis stay alike for {said} iterations" in run.grounds
    watch._times[1] = 2.0
    assert watch.has_settled(run)


def test_grounds_are_a_sentence_that_a_file_keeps_and_devices_do_not_show(tmp_path):
    one, four = (fit_saem(BOYS, devices=devices, **QUICK) for devices in (1, 4))
    assert one.converged
    assert one.n_iter == four.n_iter
    assert four.change == pytest.approx(one.change, rel=1e-6)
    np.testing.assert_allclose(four.theta, one.theta, rtol=1e-9)
    fit = fit_saem(BOYS, average="models", **QUICK)
    worst = fit.grounds.split(" is farthest")[0]
    assert worst in fit.model.parameters
    assert fit.grounds == (
        f"{worst} is farthest from where it settles, about {fit.change:.2g} of its standard "
        "error, less than tol 0.1"
    )
    save_saem(tmp_path / "fit.h5", fit)
    assert read_saem(tmp_path / "fit.h5").grounds == fit.grounds


@each(("participation", "stop"), [(1.0, 40), (0.5, 60), (0.25, 100)])
def test_flatness_is_looked_at_when_every_device_took_part_as_often(participation, stop):
    fit = fit_saem(
        BOYS, devices=13, participation=participation, burn_in=20, window=10, tol=10.0,
        average="models", sampler="exact", n_chains=1, **QUICK,
    )  # fmt: skip
    assert (fit.converged, fit.n_iter, len(fit.trace)) == (True, stop, stop + 1)


def test_chains_that_have_not_seen_the_law_are_doubted():
    found = LogLikelihood(-1.0, 0.1, np.zeros(3), np.array([900.0, 4.0, 800.0]))
    with pytest.warns(VpemWarning, match="2000 importance draws of individual 'b' are worth 4"):
        warn_of_few(found, ("a", "b", "c"), 2000)
    warn_of_few(found, ("a", "b", "c"), 20)
