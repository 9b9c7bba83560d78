"""When SAEM says that it has converged, and when it doubts; units and zeros change nothing."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

from vpem.errors import NotConvergedWarning, NumericalError, VpemWarning
from vpem.saem.conditional import (
    Conditional,
    LogLikelihood,
    covariance_of,
    importance_log_likelihood,
    observed_information,
    sample_conditional,
)
from vpem.saem.estimates import Summary
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.individuals import Streams, from_long, from_matrix
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.model import floored, make_model
from vpem.saem.prediction import Predictor
from vpem.saem.results import warn_of_few
from vpem.saem.samplers import Exact, Langevin, Metropolis
from vpem.saem.stopping import Watch, still_to_go

from .cells_saem import BOYS, THEO, TOP
from .tables import each, over

BOYS_ERRORS = np.array([1.55, 0.33, 17.4, 3.09, 0.79, 0.046])
"""Of maximum likelihood."""
"""Of maximum likelihood."""

FEW_DRAWS = {"n_conditional": 20, "n_importance": 20}
NONE = np.zeros((0, 2))


def rows(values, times):
    """Individuals of values (n, T) at the same times."""
    n, T = values.shape
    return from_long(np.repeat(np.arange(n), T), np.tile(times, n), values.ravel())


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
    options = {"start": far, "burn_in": 0, "window": 4, "seed": 1, **FEW_DRAWS}
    with pytest.warns(UserWarning, match="has not converged in 12 iterations"):
        fit = fit_saem(BOYS, n_iter=12, average="models", **options)
    assert fit.change > 0.1
    fit = fit_saem(BOYS, **options)
    assert fit.converged
    assert (np.abs(fit.theta - TOP) < 0.25 * BOYS_ERRORS).all()


def test_at_a_boundary_it_ends_where_the_likelihood_is_flat():
    """The slopes do not vary, and their variance has its maximum near 0: what is lost is little."""
    rng = np.random.default_rng(3)
    times = np.linspace(-1.0, 1.0, 6)
    values = 2 * rng.normal(size=(30, 1)) + 3 * times + rng.normal(size=(30, 6))
    fit = fit_saem(rows(values, times), seed=0, **FEW_DRAWS)

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
    options = {"model_options": {"random": ["ka", "cl"]}, "n_chains": 1, **FEW_DRAWS}
    with pytest.warns(NotConvergedWarning) as told:
        fit = fit_saem(
            THEO.take([0]), "one-compartment", tol=0.1, n_iter=1000, burn_in=200, **options
        )
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
    one, four = (fit_saem(BOYS, devices=devices, **FEW_DRAWS) for devices in (1, 4))
    assert one.converged
    assert one.n_iter == four.n_iter
    assert four.change == pytest.approx(one.change, rel=1e-6)
    np.testing.assert_allclose(four.theta, one.theta, rtol=1e-9)
    fit = fit_saem(BOYS, average="models", **FEW_DRAWS)
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
        average="models", sampler="exact", n_chains=1, **FEW_DRAWS,
    )  # fmt: skip
    assert (fit.converged, fit.n_iter, len(fit.trace)) == (True, stop, stop + 1)


def test_chains_that_have_not_seen_the_law_are_doubted():
    found = LogLikelihood(-1.0, 0.1, np.zeros(3), np.array([900.0, 4.0, 800.0]))
    with pytest.warns(VpemWarning, match="2000 importance draws of individual 'b' are worth 4"):
        warn_of_few(found, ("a", "b", "c"), 2000)
    warn_of_few(found, ("a", "b", "c"), 20)


# ---- units --------------------------------------------------------------------------------------
QUICK = {"n_iter": 40, "burn_in": 20, "tol": 0.0, "n_conditional": 30, "n_importance": 60}


def rescaled(data, time=1.0, value=1.0, dose=1.0, since=0.0):
    covariates = {name: dose * values for name, values in data.covariates.items()}
    times = time * data.times + since
    return replace(data, times=times, values=value * data.values, covariates=covariates)


@each(
    ("sampler", "time", "value"),
    [("exact", 525600, 1), ("metropolis", 1, 1e-6), ("mala", 1e3, 1e6), ("exact", 1e-6, 1)],
)
def test_units_of_a_linear_model_do_not_matter(sampler, time, value):
    fits = [fit_saem(one, sampler=sampler, **QUICK) for one in (BOYS, rescaled(BOYS, time, value))]
    slope = value / time
    units = np.array([value, slope, value**2, value * slope, slope**2, value**2])
    np.testing.assert_allclose(fits[1].theta / units, fits[0].theta, rtol=1e-5)
    np.testing.assert_allclose(fits[1].standard_errors / units, fits[0].standard_errors, rtol=1e-4)
    moved = fits[1].log_likelihood.value + BOYS.n_rows * np.log(value)
    assert moved == pytest.approx(fits[0].log_likelihood.value, abs=1e-3)
    assert np.isfinite(fits[0].standard_errors).all()


def test_units_of_a_dose_do_not_matter():
    options = {**QUICK, "sampler_options": {"n_steps": 1}, "n_chains": 1, "n_iter": 30}
    first = fit_saem(THEO, "one-compartment", **options).theta
    for time, value, dose in ((1 / 8760, 1e-6, 1e-6), (60, 1e-9, 1e3)):
        found = fit_saem(rescaled(THEO, time, value, dose), "one-compartment", **options).theta
        shift = np.array([-np.log(time), np.log(dose / value / time), -np.log(time)])
        np.testing.assert_allclose(found[:3] - shift, first[:3], rtol=1e-4)
        np.testing.assert_allclose(found[3:-1], first[3:-1], rtol=1e-3)
        assert found[-1] / value == pytest.approx(first[-1], rel=1e-4)


def test_items_far_from_zero_are_as_near_it():
    rng = np.random.default_rng(0)
    loadings = np.array([[1, 0.8, 0], [0.9, 0.6, 0], [0.8, 0, 0.7], [1.1, 0, 0.9]])
    Y = rng.normal(size=(100, 3)) @ loadings.T + 0.5 * rng.normal(size=(100, 4))
    options = {"model_options": {"groups": [0, 0, 1, 1]}, "n_chains": 4, **QUICK}
    near, far, small = (
        fit_saem(from_matrix(one), "bifactor", **options) for one in (Y, Y + 1e6, 1e-7 * Y)
    )
    np.testing.assert_allclose(far.theta[4:], near.theta[4:], rtol=1e-5)
    np.testing.assert_allclose(far.theta[:4] - 1e6, near.theta[:4], atol=1e-6)
    np.testing.assert_allclose(small.theta[4:12], 1e-7 * near.theta[4:12], rtol=1e-6)
    np.testing.assert_allclose(small.theta[12:], 1e-14 * near.theta[12:], rtol=1e-6)


# ---- where a covariate has its zero -------------------------------------------------------------

FEW = {"n_iter": 14, "tol": 0.0, "n_conditional": 10, "n_importance": 30, "seed": 3}
RANDOM = {
    "an intercept": {"random": ["intercept"]},
    "both": {"random": ["intercept", "time"]},
    "both, an effect": {"random": ["intercept", "time"], "effects": ["intercept:group"]},
    "products": {"slopes": ["time", "time:time", "group", "time:group"], "random": ["intercept"]},
    "a slope without its intercept": {"slopes": ["time", "x"], "random": ["x"]},
}


def measured(error, moved, seed=5, slopes=0.0):
    """Rows of 30 individuals at times that are moved, and whose slopes vary."""
    rng = np.random.default_rng(seed)
    each_row, times = np.repeat(np.arange(30), 8), np.tile(np.arange(-4.0, 4.0), 30)
    slope = 0.1 + slopes * rng.normal(size=30)[each_row]
    eta = 0.3 + rng.normal(0, 0.8, 30)[each_row] + slope * times
    group, x = (each_row % 2).astype(float) + 5, rng.normal(3, 1, 240)
    values = {
        "constant": eta + 0.5 * rng.normal(size=240),
        "poisson": rng.poisson(np.exp(eta)),
        "bernoulli": rng.random(240) < 1 / (1 + np.exp(-eta)),
        "proportional": (5 + eta) * (1 + 0.1 * rng.normal(size=240)),
    }[error]
    return from_long(each_row, times + moved, values * 1.0, {"group": group, "x": x})


@each(
    ("kind", "error", "devices", "moved"),
    [
        ("an intercept", "poisson", 1, 2005.0), ("both", "bernoulli", 4, 10.0),
        ("both, an effect", "proportional", 1, 70.0), ("products", "poisson", 4, 70.0),
        ("a slope without its intercept", "bernoulli", 1, 2005.0),
        ("an intercept", "proportional", 4, 10.0), ("products", "proportional", 1, 2005.0),
    ],
)  # fmt: skip
def test_moving_time_changes_nothing_but_intercepts(kind, error, devices, moved):
    options = {"error": error, **RANDOM[kind]}
    first, found = (
        fit_saem(measured(error, by), "linear", model_options=options, devices=devices, **FEW)
        for by in (0.0, moved)
    )
    names = first.model.parameters
    steady = [name for name in names if name in ("slope of time:time", "slope of x", "var(slope)")]
    if "slope of time:time" not in names:
        steady.append("slope")
    assert found.log_likelihood.value == pytest.approx(first.log_likelihood.value, rel=1e-6)
    for name in steady:
        assert found.estimates[name] == pytest.approx(first.estimates[name], rel=1e-5)
        assert found.errors[name] == pytest.approx(first.errors[name], rel=1e-4, nan_ok=True)
    if kind == "an intercept":
        before = first.estimates["intercept"] - moved * first.estimates["slope"]
        assert found.estimates["intercept"] == pytest.approx(before, rel=1e-6)
        means = first.given.means - moved * first.estimates["slope"]
        np.testing.assert_allclose(found.given.means, means, rtol=1e-6)


@each("kind", RANDOM)
def test_a_model_inside_is_the_same_model(kind):
    made = make_model("linear", measured("poisson", 30.0), error="poisson", **RANDOM[kind])
    inside = made.inside()
    rng = np.random.default_rng(0)
    theta, z = inside.start()
    B, omega = np.zeros(inside.law.mask.shape), np.eye(len(inside.latents)) + 0.3
    B[inside.law.places] = rng.normal(0, 0.3, len(inside.law.coefficients))
    theta = inside.law.pack(B, omega)
    z = z[None] + rng.normal(size=(3, *z.shape))
    about = inside.expand_about(theta)
    outer = inside.outside(theta)
    turned = np.linalg.slogdet(inside.turn)[1]
    np.testing.assert_allclose(
        made.expand_about(outer).log_complete(about.shown(z), outer) + turned,
        about.log_complete(z, theta), rtol=1e-8,
    )  # fmt: skip
    np.testing.assert_allclose(np.linalg.solve(inside.jacobian, outer), theta, rtol=1e-6, atol=1e-8)


def test_columns_inside_are_unrelated_and_a_fit_begins_with_what_another_found():
    data = measured("poisson", 2005.0)
    options = {"slopes": ["time", "time:time", "group", "x"], "random": ["intercept"]}
    inside = make_model("linear", data, error="poisson", **options).inside()
    X = inside.law.frame.design(data)
    assert X.shape[1] == 4
    np.testing.assert_allclose(X.T @ X / len(X), np.eye(4), atol=1e-6)
    C = inside.law.design[:, : -inside.law.n_carried]
    np.testing.assert_allclose(C.T @ C / len(C), np.eye(2), atol=1e-9)
    options = {"error": "poisson", "random": ["intercept"]}
    first = fit_saem(data, "linear", model_options=options, **FEW)
    again = fit_saem(data, "linear", model_options=options, start=first.theta, **FEW)
    np.testing.assert_allclose(again.trace[0], first.theta, rtol=1e-9)


@each(
    "options",
    [
        {},
        {"slopes": ("time", "x"), "random": ("intercept", "time")},
        {"effects": ("intercept:group", "time:group")},
    ],
)
def test_lines_far_from_zero_are_predicted_alike(options):
    """And say the same of their slopes."""
    found, slopes = [], []
    for moved in (0.0, 2005.0):
        data = measured("constant", moved, slopes=0.3)
        fit = fit_saem(data, "linear", model_options=options)
        predictor = Predictor(fit.saved)
        found.append((predictor.curves(data).fitted,
                      predictor.population(individuals=data).fitted,
                      predictor.score(data).value / 240))  # fmt: skip
        one = Summary(fit.saved).parameters[1]
        slopes.append([one.value, one.error, one.lower, one.upper, one.p_value, one.freedom])
    for near, far in zip(*found, strict=True):
        np.testing.assert_allclose(far, near, rtol=0, atol=1e-6)
    np.testing.assert_allclose(*slopes, rtol=1e-6)


# ---- what is barely there -----------------------------------------------------------------------


def test_floored_covariances_keep_their_units():
    good = np.array([[1e12, 0.5e3], [0.5e3, 1e-6]])
    np.testing.assert_array_equal(floored(good, np.array([1.0, 1e-18])), good)
    wrong = np.array([[4.0, 100.0], [100.0, -1.0]])
    found = floored(wrong, np.array([1e-3, 1e-6]))
    np.testing.assert_allclose(np.diag(found), [4.0, 1e-6], rtol=1e-6)
    assert np.linalg.eigvalsh(found).min() > 0


def test_errors_of_variances_that_are_zero_are_not_told():
    """The others' are."""
    rng = np.random.default_rng(1)
    n, times = 40, np.arange(5.0)
    y = 3 + rng.normal(size=(n, 1)) + 2 * times + 0.5 * rng.normal(size=(n, 5))
    model = LinearModel(from_long(np.repeat(range(n), 5), np.tile(times, n), y.ravel()))
    theta = np.array([3.0, 2.0, 1.0, 0.0, 1e-7, 0.25])
    chains = Exact().begin(model, theta, model.start()[1], 2)
    given = sample_conditional(model, theta, Exact(), chains, after=0, late=1)
    errors = np.sqrt(np.diag(covariance_of(observed_information(model, theta, given))))
    assert np.isnan(errors[4])
    assert errors[0] == pytest.approx(np.sqrt((1 + 0.25 * 0.6) / n), rel=0.2)
    assert errors[5] == pytest.approx(0.25 * np.sqrt(2 / (4 * n)), rel=0.2)


def test_errors_are_none_where_rows_do_not_tell():
    nothing = np.array([[1.0, 1.0, 0], [1.0, 1.0, 0], [0, 0, 2.0]])
    assert np.isnan(covariance_of(nothing)).all()
    nothing[2] = nothing[:, 2] = np.nan
    nothing[0, 1] = nothing[1, 0] = 0.5
    errors = np.sqrt(np.diag(covariance_of(nothing)))
    np.testing.assert_allclose(errors, [1.1547, 1.1547, np.nan], rtol=1e-4)


def test_few_draws_leave_no_direction_out_and_steps_that_run_away_are_told():
    model = LinearModel(BOYS)
    theta, z = model.start()
    means, covariances = model.posterior(theta)
    flat = np.einsum("nij,j->ni", np.linalg.cholesky(covariances), [1.0, 1.0])
    singular = flat[:, :, None] * flat[:, None, :]
    nobody = np.zeros(0)
    given = Conditional(means, singular, means, means, 0.95, nobody, nobody, nobody, 2, nobody)
    streams = Streams.from_names(model.individuals.names, 0)
    found = importance_log_likelihood(model, theta, given, streams, after=0)
    assert found.value == pytest.approx(model.marginal(theta).sum(), abs=5 * found.error)
    assert found.error < 0.2
    sampler = Langevin(step=100.0, decay=0, n_steps=4)
    chains = sampler.begin(model, theta, z, 1)
    with pytest.raises(NumericalError, match="ran away"):
        sample_conditional(model, theta, sampler, chains, after=0, late=1)
