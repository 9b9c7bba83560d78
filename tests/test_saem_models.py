"""Models of SAEM, and their curves: densities, gradients, statistics and M-steps fit each other."""

import pickle
from copy import copy, deepcopy
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import multivariate_normal

from vpem import fit_saem
from vpem.errors import FileError, InputError
from vpem.saem.doses import Doses
from vpem.saem.individuals import Streams, from_long, from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.gmm import GmmModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import CurveModel, GeneralizedLinearModel, OneCompartmentModel
from vpem.saem.models.model import SaemModel, check_model
from vpem.saem.structures.formulas import (
    FORMULAS,
    ONE_COMPARTMENT,
    TWO_COMPARTMENTS,
    Compartments,
    Formula,
    LinearPredictor,
    structure_of,
)
from vpem.saem.structures.ode import ode
from vpem.saem.structures.structure import Structure, curve
from vpem.terms.units import symmetric

from .cells_saem import BOYS, TABLES, THEO
from .tables import each, over

GROUPS = [0, 0, 0, 1, 1, 1]


def later(data):
    """Rows after the dose."""
    keep = data.times > 0
    ids, dose = data.ids[data.individual_of][keep], data.covariate("dose")[keep]
    return from_long(ids, data.times[keep], data.values[keep], {"dose": dose})


@pytest.fixture(scope="module", params=["linear", "constant", "proportional", "full", "bifactor"])
def model(request):
    if request.param == "linear":
        return LinearModel(BOYS)
    if request.param == "bifactor":
        return BifactorModel(from_matrix(np.random.default_rng(0).normal(size=(9, 6))), GROUPS)
    if request.param == "full":
        return OneCompartmentModel(THEO, random=("ka", "cl"), covariance="full")
    data = THEO if request.param == "constant" else later(THEO)
    return OneCompartmentModel(data, error=request.param)


@pytest.fixture(scope="module")
def mixture(overlapping):
    return GmmModel(from_matrix(overlapping(1, 120, 3)), 3)


def near(model, rng, n_chains=2):
    """Latents about the start of a model."""
    theta, z = model.start()
    return theta, z + 0.3 * rng.normal(size=(n_chains, *z.shape))


@each("seed", range(3))
def test_gradient_is_that_of_the_density(model, seed):
    theta, z = near(model, np.random.default_rng(seed))
    slope = model.gradient(z, theta)
    for j, nudge in enumerate(1e-5 * np.eye(z.shape[-1])):
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
    precise = {"rel": 1e-8 if size == 0.01 else 1e-3, "abs": 1e-8}
    assert by_statistics[0] - by_statistics[1] == pytest.approx(change, **precise)


@each("limits", [0.0, 1.0, -1.0])
def test_scores_of_two_outcomes_are_derivatives(limits):
    """Also where every seventh value is a limit."""
    more = {"outcome": np.arange(132) % 2.0, "censored": limits * (np.arange(132) % 7 == 3)}
    model = OneCompartmentModel(
        replace(THEO, covariates={**THEO.covariates, **more}), ("ka", "cl", "v"), "combined",
        random=("ka", "v"), effects=("cl:dose",),
    )  # fmt: skip
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


def test_a_mixture_is_its_statistics_and_draws_by_responsibilities(mixture):
    theta, z = mixture.start()
    total = mixture.statistics(z[None]).sum(axis=0)
    found = mixture.log_density(total, mixture.counts, theta)
    assert found == pytest.approx(mixture.log_complete(z[None], theta).sum(), rel=1e-10)
    odds, rng = mixture.responsibilities(theta), np.random.default_rng(0)
    total = mixture.expected(odds).sum(axis=0)
    top = mixture.maximize(total, mixture.counts)
    best = mixture.log_density(total, mixture.counts, top)
    for _ in range(20):
        other = top + 1e-3 * np.abs(top) * rng.normal(size=len(top))
        other[:3] /= other[:3].sum()
        assert mixture.log_density(total, mixture.counts, other) <= best + 1e-4
    streams = Streams.from_names(mixture.individuals.names, 2).derive_stream(1, 0)
    share = (mixture.draw(theta, streams, 3000) == np.arange(3)).mean(axis=0)
    np.testing.assert_allclose(share, odds, atol=0.05)


def test_maximize_is_valid_for_any_total_and_parts_are_the_model(model, mixture):
    which = np.array([4, 0, 3])
    for one in (model, mixture):
        theta, z = one.start()
        about = one.expand_about(theta)
        for seed in range(5):
            rng = np.random.default_rng(seed)
            total = rng.normal(size=one.size) * 100 * (rng.uniform(size=one.size) < 0.5)
            other = about.maximize(total, one.counts)
            assert np.isfinite(other).all()
            assert not np.isnan(one.log_complete(z[None], other)).any()
        part, chains = one.take_individuals(which), np.repeat(z[None], 2, axis=0)
        np.testing.assert_array_equal(
            part.log_complete(chains[:, which], theta), one.log_complete(chains, theta)[:, which]
        )
        np.testing.assert_array_equal(
            part.expand_about(theta).statistics(chains[:, which]), about.statistics(chains)[which]
        )
        check_model(one, theta, z)


# ---- each model by itself -----------------------------------------------------------------------


def test_marginal_and_draws_of_lines_are_those_of_a_normal_law():
    model = LinearModel(BOYS)
    theta, _ = model.start()
    B, omega, variance = model.unpack(theta)
    for i in (0, 7, 25):
        rows = slice(*BOYS.first[i : i + 2])
        X = np.column_stack([np.ones(9), BOYS.times[rows]])
        law = multivariate_normal(X @ B[:, 0], X @ omega @ X.T + variance * np.eye(9))
        assert model.marginal(theta)[i] == pytest.approx(law.logpdf(BOYS.values[rows]), rel=1e-10)
    means, covariances = model.posterior(theta)
    z = model.draw(theta, Streams.from_names(BOYS.names, 5).derive_stream(1, 0), 4000)
    np.testing.assert_allclose(z.mean(axis=0), means, atol=0.03)
    np.testing.assert_allclose(np.cov(z[:, 3].T), covariances[3], rtol=0.1, atol=0.005)


def test_marginals_are_what_the_complete_density_integrates_to():
    rng = np.random.default_rng(3)
    items = rng.normal(size=(5, 6)) + 0.5 * rng.normal(size=(5, 1))
    model = BifactorModel(from_matrix(items), GROUPS)
    theta, _ = model.start()
    theta.reshape(4, -1)[3] += 0.2
    means, covariances = model.posterior(theta)
    peak = model.log_complete(means[None], theta)[0]
    constant = 0.5 * np.linalg.slogdet(2 * np.pi * covariances)[1]
    np.testing.assert_allclose(model.marginal(theta), peak + constant, rtol=1e-10)
    np.testing.assert_allclose(model.gradient(means[None], theta), 0.0, atol=1e-9)


def test_signs_of_factors_are_fixed_together():
    model = BifactorModel(from_matrix(np.random.default_rng(1).normal(size=(30, 6))), GROUPS)
    theta, z = model.start()
    turned = theta.reshape(4, -1).copy()
    turned[1] *= -1
    turned[2][:3] *= -1
    one, other = model.canonical(turned.ravel(), z * [-1, -1, 1]), model.canonical(theta, z)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


# ---- what is measured ---------------------------------------------------------------------------

TIMES = np.concatenate([np.arange(1.0, 1 + count) for count in (3, 5, 4)])
PEOPLE = from_long(np.repeat(["a", "b", "c"], [3, 5, 4]), TIMES, np.exp(-TIMES / 9) + 1,
                   {"dose": np.full(12, 4.0)})  # fmt: skip
RATES = np.tile([0.5, -3, -2.5], (3, 1))
MEASURED = [  # model, error, parameters, latents, and the sd of a curve
    (LinearModel, "constant", [1.0, 0.0, 1.0, 0.0, 1.0, 0.25],
     np.array([[1.0, 0.5], [2.0, -0.5], [0.0, 1.0]]), lambda curve: np.full(curve.shape, 0.5)),
    (OneCompartmentModel, "constant", [0.5, -3, -2.5, 0.1, 0.1, 0.1, 0.7], RATES,
     lambda curve: np.full(curve.shape, 0.7)),
    (OneCompartmentModel, "proportional", [0.5, -3, -2.5, 0.1, 0.1, 0.1, 0.2], RATES,
     lambda curve: 0.2 * curve),
]  # fmt: skip


@each(("made", "error", "theta", "z", "sds"), MEASURED)
def test_values_are_drawn_about_the_curve_and_residuals_are_in_its_sds(made, error, theta, z, sds):
    def drawn(model, z, n_chains=4000):
        stream = Streams.from_names(model.individuals.names, 7).derive_stream(1, 0)
        chains = np.repeat(z[None], n_chains, axis=0)
        return model.draw_values(chains, theta, stream, model.individuals)

    theta = np.array(theta)
    model = made(PEOPLE, error=error).expand_about(theta)
    curve, found = model.curve(z[None], PEOPLE)[0], drawn(model, z)
    np.testing.assert_allclose(found.mean(axis=0), curve, atol=5 * sds(curve).max() / 4000**0.5)
    np.testing.assert_allclose(found.std(axis=0), sds(curve), rtol=0.06)
    apart = np.corrcoef(found.T) - np.eye(12)
    assert np.abs(apart).max() < 0.08  # rows and individuals have numbers of their own
    # Somebody draws the same, whoever else is there.
    alone = drawn(model.take_individuals(np.array([1])), z[1:2], 50)
    np.testing.assert_array_equal(alone, found[:50, 3:8])
    residuals = model.weighted_residuals(z[None], theta)[0]
    np.testing.assert_allclose(residuals * sds(curve), PEOPLE.values - curve, rtol=1e-12)
    limits = replace(PEOPLE, covariates={**PEOPLE.covariates, "censored": np.eye(12)[4]})
    kept = made(limits, error=error).weighted_residuals(z[None], theta)[0]
    assert np.flatnonzero(np.isnan(kept)).tolist() == [4]
    means, covariance = model.prior(theta, PEOPLE)
    assert means.shape == (3, len(model.latents))
    np.testing.assert_array_equal(covariance, model.population(theta)[1])


# ---- items that some individuals lack -----------------------------------------------------------


def test_what_is_missing_is_integrated_out():
    data, _ = TABLES["bifactor"]
    model = BifactorModel(data, GROUPS, range(6))
    theta = model.start()[0]
    means, loadings, variances = model.unpack(theta)
    covariance = loadings @ loadings.T + np.diag(variances)
    for y, found in zip(data.table(np.arange(6.0)), model.marginal(theta), strict=True):
        seen = ~np.isnan(y)
        law = multivariate_normal(means[seen], covariance[np.ix_(seen, seen)])
        assert abs(law.logpdf(y[seen]) - found) < 1e-9
    # Fisher's identity: the gradient of the likelihood is that of the expected complete one.
    drawn = model.draw(theta, Streams.from_names(data.names, 0).derive_stream(1, 0), 4000)
    total = model.statistics(drawn).sum(axis=0)
    for step in 1e-5 * np.eye(len(theta)):
        likelihood, complete = (
            (of(theta + step) - of(theta - step)) / 2e-5
            for of in (lambda at: model.marginal(at).sum(),
                       lambda at: model.log_density(total, model.counts, at))
        )  # fmt: skip
        assert abs(likelihood - complete) < 0.02 * abs(complete) + 1.5


def test_values_that_are_missing_are_drawn_by_their_law():
    data, _ = TABLES["gmm"]
    model = GmmModel(data, 2, items=range(2))
    theta = model.start()[0]
    drawn = model.draw(theta, Streams.from_names(data.names, 0).derive_stream(1, 0), 4000)
    _, means, covariances = model.unpack(theta)
    table = data.table(np.arange(2.0))
    who = int(np.flatnonzero(np.isnan(table[:, 1]))[0])
    for k in range(2):
        mine = drawn[drawn[:, who, 0] == k, who, 2]
        slope = covariances[k][0, 1] / covariances[k][0, 0]
        mean = means[k][1] + slope * (table[who, 0] - means[k][0])
        variance = covariances[k][1, 1] - slope * covariances[k][0, 1]
        if len(mine) > 400:
            assert abs(mine.mean() - mean) < 5 * np.sqrt(variance / len(mine))
            assert abs(mine.var() / variance - 1) < 0.2
    np.testing.assert_array_equal(drawn[:, who, 1], table[who, 0])


@over(gaps=[False, True])
def test_units_of_items_do_not_matter_to_mixtures_of_individuals(gaps):
    scale, moved = 10.0 ** np.array([3, -3, 0, 2, -5, 6]), np.arange(6) * 1e4
    values = np.random.default_rng(4).normal(size=(60, 6)) + np.repeat([[0.0], [2.0]], 30, axis=0)
    values[:, 5] = values[:, 4]  # so that floors matter
    if gaps:
        values[np.random.default_rng(5).random(values.shape) < 0.1] = np.nan
    of_units = []
    for table in (values, (values + moved * gaps) * scale):
        rows, columns = np.nonzero(~np.isnan(table))
        data = from_long(rows, columns * 1.0, table[rows, columns])
        model, streams = GmmModel(data, 2, items=range(6) if gaps else None), Streams
        theta, _ = model.start()
        for t in range(4):
            stream = streams.from_names(data.names, 0).derive_stream(t + 1, 0)
            z = model.draw(theta, stream, 3)
            theta = model.maximize(model.statistics(z).sum(axis=0), model.counts)
        of_units.append(model.marginal(theta))
    jacobian = ~np.isnan(values) @ np.log(scale)
    np.testing.assert_allclose(of_units[0], of_units[1] + jacobian, rtol=1e-7)


# ---- what is refused ----------------------------------------------------------------------------


def dosed(times, doses):
    return OneCompartmentModel(from_long(["a", "a"], times, [1, 2], {"dose": doses}))


def flat(model, table, *options):
    return model(from_matrix(table), *options)


def twice(d):
    rows = from_long(["a", "a", "b"], [0, 0, 1], [1.0, 2.0, 3.0])
    return fit_saem(rows, "gmm", missing="marginalize", model_options={"n_components": 2})


def scaled(data, value=1.0, dose=1.0):
    """The same in other units."""
    covariates = {name: dose * one for name, one in data.covariates.items()}
    return replace(data, values=value * data.values, covariates=covariates)


REFUSED = [  # of theophylline
    (lambda d: LinearModel(d, ["time", "dosis"]), "did you mean 'dose'"),
    (lambda d: OneCompartmentModel(from_long([0, 0], [0, 1], [1, 2])), "no covariate 'dose'"),
    (lambda d: dosed([0, 1], [-1, -1]), "a dose that is negative"),
    (lambda d: dosed([0, 1], [1, 2]), "changes from 1 to 2"),
    (lambda d: dosed([0, 1], [1, np.nan]), "is missing for"),
    (lambda d: dosed([-1, 1], [1, 1]), "a time before the dose"),
    (lambda d: OneCompartmentModel(d, error="proportional").start(), "have no density"),
    (lambda d: OneCompartmentModel(d, error="constan"), "did you mean 'constant'"),
    (lambda d: OneCompartmentModel(d, random=["V"]), "random parameter must be one of"),
    (lambda d: OneCompartmentModel(d).posterior(0), "no Gaussian posterior"),
    (lambda d: fit_saem(d, OneCompartmentModel, sampler="exact"), "no Gaussian posterior"),
    (lambda d: BifactorModel(d, [0] * 11), "measured at the same times"),
    (lambda d: flat(BifactorModel, np.ones((3, 4)), [0, 0, 1]), "need a group each"),
    (lambda d: flat(BifactorModel, np.ones((3, 4)), [0, 0, 0, 1]), "two items each"),
    (lambda d: flat(GmmModel, np.ones((3, 4)), 3).start(), "more individuals than 3"),
    (lambda d: flat(GmmModel, np.ones((3, 4)), 2).gradient(0, 0), "no gradient"),
    (lambda d: fit_saem(TABLES["bifactor"][0], "bifactor", **TABLES["bifactor"][1]),
     "all individuals measured at the same times"),
    (lambda d: from_long(["a", "a", "b"], [0, 1, 0], [1.0, 2.0, np.nan], missing=True),
     "no value of 'b' was measured, so that nothing"),
    (twice, r"'a' has the time .item. 0, twice"),
    (lambda d: LinearModel(from_long([0, 0, 1, 1], [0, 1, 0, 1], [3.0] * 4)).start(),
     "values are 3"),
    (lambda d: OneCompartmentModel(scaled(d, value=0.0), first=(0, 0, 0)).start(), "values are 0"),
    (lambda d: OneCompartmentModel(scaled(d, value=0.0)), "no individual tells"),
    (lambda d: OneCompartmentModel(scaled(d, dose=0.0)), "no individual tells"),
    (lambda d: flat(BifactorModel, [[1.0, 2], [2.0, 2], [3, 2]], [0, 0]).start(),
     "item 1 is 2 for all individuals"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@each(("make", "words"), REFUSED)
def test_data_that_a_model_cannot_take(make, words):
    with pytest.raises(InputError, match=words):
        make(THEO)


# ---- models of a user's own ---------------------------------------------------------------------

WRONG = {
    "Longer": ("statistics", lambda self, z: np.ones((self.n, 99)),
               "maximize of model Longer|start of model Longer|Longer must have shape"),
    "Wide": ("statistics", lambda self, z: np.zeros((self.n, 3)), "model Wide"),
    "Odd": ("maximize", lambda self, total, counts: total @ np.ones(4), "model Odd"),
    "Unpacks": ("maximize", lambda self, total, counts: np.array([*zip(*total, strict=True)]),
                "start of model Unpacks fails"),
    "Loses": ("maximize", lambda self, total, counts: {}["variance"],
              "start of model Loses fails"),
    "Flat": ("gradient", lambda self, z, theta: z[..., 0],
             "gradient of model Flat must have shape"),
    "Unknown": ("log_complete", lambda self, z, theta: z[..., 0] * np.nan,
                "log_complete of model Unknown is not a number"),
}  # fmt: skip


@each("name", WRONG)
def test_models_whose_methods_do_not_fit_are_told_in_a_sentence(name):
    method, wrong, words = WRONG[name]
    kind = type(name, (LinearModel,), {method: wrong})
    with pytest.raises(InputError, match=words) as caught:
        fit_saem(BOYS, kind, n_iter=4, tol=0.0)
    assert "\n" not in str(caught.value)
    if method in ("statistics", "maximize"):  # also of one whose start is right
        theta, z = LinearModel(BOYS).start()
        with pytest.raises(InputError, match=f"{method} of model {name}"):
            check_model(kind(BOYS), theta, z)


class Lists(LinearModel):
    def maximize(self, total, counts):
        return super().maximize(total, counts).tolist()


class Empty(LinearModel):
    def __init__(self, individuals):
        super().__init__(individuals)
        self.pieces = ()


def test_a_model_of_ones_own_may_return_a_list_and_has_pieces():
    short = {"n_iter": 12, "tol": 0.0, "sampler": "exact", "n_chains": 2}
    one, two = (fit_saem(BOYS, kind, **short) for kind in (Lists, LinearModel))
    assert isinstance(one.model, Lists)
    np.testing.assert_array_equal(one.theta, two.theta)
    with pytest.raises(InputError, match="Empty has no pieces"):
        fit_saem(BOYS, Empty, **short)


# ---- curves of compartments, formulas, and a user's own -----------------------------------------

OWN = """
import numpy as np
from vpem.saem.structures.ode import ode
from vpem.saem.structures.structure import curve


@curve(ka="log", v="log", k="log")
def absorbed(time, ka=1.5, v=0.5, k=0.1, *, dose):
    return dose * ka / v / (ka - k) * (np.exp(-k * time) - np.exp(-ka * time))


@ode(2, ka="log", cl="log", v="log")
def moving(time, amounts, ka=1.5, cl=0.04, v=0.5):
    depot, central = amounts
    return -ka * depot, ka * depot - cl / v * central


@moving.measured
def concentration(time, amounts, ka, cl, v):
    return amounts[1] / v


def line(time, base=1.0, slope=0.0):
    return base + slope * time


number = 3
"""


@pytest.fixture(scope="module")
def repeated():
    """Theophylline with three doses, one of them infused."""
    who = np.repeat(np.arange(12), 3)
    columns = ([0.0, 3.0, 3.5], [4.0, 2.0, 5.0], [0.0, 2.0, 0.0])
    return replace(THEO, doses=Doses.from_lists(12, who, *(np.tile(one, 12) for one in columns)))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A file of a user's functions."""
    path = tmp_path_factory.mktemp("own") / "curves.py"
    path.write_text(OWN)
    return path


ROUTES = [
    ("ka", "cl", "ke"), ("ka", "cl", "v"), ("ka", "v", "ke", "tlag"), ("cl", "v"),
    ("cl", "v1", "q", "v2"), ("ka", "cl", "v1", "q", "v2"),
]  # fmt: skip


@each("names", ROUTES)
def test_compartments_have_the_slopes_of_their_differences(repeated, names):
    made = Compartments(names, TWO_COMPARTMENTS if "v1" in names else ONE_COMPARTMENT)
    assert made.latents == tuple(f"log {name}" for name in names)
    made.check(repeated)
    start = made.begin(THEO)
    assert np.isfinite(np.nanmedian(start, axis=0)).all()
    phi = np.nanmedian(start, axis=0) + np.linspace(-0.1, 0.1, 24).reshape(2, 12, 1)
    for data in (THEO, repeated):
        value, slopes = made.slopes(phi, data)
        np.testing.assert_array_equal(value, made.predict(phi, data))
        np.testing.assert_allclose(slopes, Structure.slopes(made, phi, data)[1], atol=1e-6)


def test_limits_of_two_compartments(repeated):
    """Without an exchange they are one, and a short infusion is an injection."""
    two = Compartments(usual=TWO_COMPARTMENTS)
    phi = np.log(np.tile([0.04, 0.5, 1e-9, 0.7], (1, 12, 1)))
    one = Compartments(("cl", "v")).predict(phi[..., :2], repeated)
    np.testing.assert_allclose(two.predict(phi, repeated), one, rtol=1e-6)
    phi = np.log(np.tile([0.04, 0.5, 0.1, 0.7], (1, 12, 1)))
    at_once, infused = (
        two.predict(phi, replace(THEO, doses=Doses.from_lists(
            12, np.arange(12), np.full(12, -1.0), np.ones(12), np.full(12, duration)
        )))
        for duration in (0.0, 1e-7)
    )  # fmt: skip
    np.testing.assert_allclose(infused, at_once, rtol=1e-6)


def test_begins_are_near_the_truth():
    truth = np.log([1.5, 0.04, 0.08]) + 0.2 * np.random.default_rng(1).normal(size=(1, 12, 3))
    values = Compartments().predict(truth, THEO)[0]
    start = Compartments().begin(replace(THEO, values=values))
    assert np.abs(start - truth[0]).mean() < 0.25


# ---- formulas -----------------------------------------------------------------------------------

TRUTH = {
    "logistic": [190.0, 720.0, 350.0],
    "four-parameter-logistic": [2.0, 20.0, 5.0, 1.2],
    "gompertz": [4.6, 2.3, 0.9],
    "asymptotic": [100.0, -8.0, 0.04],
    "biexponential": [3.0, 2.0, 1.0, 0.25],
    "michaelis-menten": [210.0, 6.0],
    "emax": [5.0, 30.0, 40.0],
}


@each("name", FORMULAS)
def test_formulas_begin_near_what_made_the_rows(name):
    made, truth = Formula(name), np.array(TRUTH[name])
    end = {"logistic": 1600, "asymptotic": 80, "emax": 200, "biexponential": 8}.get(name, 20)
    times = np.linspace(0.02, 1, 15) * end
    data = from_long(np.zeros(15), times, times)
    phi = made.scaled(truth)[None, None]
    values = made.predict(phi, data)[0]
    start = made.natural(made.begin(replace(data, values=values)))[0]
    np.testing.assert_allclose(start, truth, rtol=0.45, atol=2.0)
    assert not made.predict(phi + 1e9, data).shape[0] - 1


def logistic(x):
    return 1 / (1 + np.exp(-x))


WRITTEN = {
    "logistic": lambda t, top, middle, scale: top * logistic((t - middle) / scale),
    "four-parameter-logistic": lambda t, low, high, middle, scale: (
        low + (high - low) * logistic((t - middle) / scale)
    ),
    "gompertz": lambda t, top, depth, ratio: top * np.exp(-depth * ratio**t),
    "asymptotic": lambda t, end, start, rate: end + (start - end) * np.exp(-rate * t),
    "biexponential": lambda t, a, fast, b, slow: a * np.exp(-fast * t) + b * np.exp(-slow * t),
    "michaelis-menten": lambda t, top, half: top * t / (half + t),
    "emax": lambda t, base, top, half: base + top * t / (half + t),
}


@each("name", FORMULAS)
def test_formulas_are_what_is_written(name):
    """In two chains and on any scales, with derivatives by differences of the same width."""
    data = from_long([0, 0, 1], [0.5, 2.0, 7.0], np.zeros(3))
    odd = dict.fromkeys(list(FORMULAS[name])[:1], "logit")
    for made in (Formula(name), Formula(name, odd)):
        natural = np.abs(TRUTH[name]) * np.array([[[1.0], [0.8]], [[0.9], [0.7]]])
        if made.scales[0] == "logit":
            natural[..., 0] /= 2 * TRUTH[name][0] + 1
        phi = made.scaled(natural)
        f, slopes = made.slopes(phi, data)
        rows = np.moveaxis(natural[:, data.individual_of], -1, 0)
        np.testing.assert_allclose(f, WRITTEN[name](data.times, *rows), rtol=1e-12)
        wanted = Structure.slopes(made, phi, data)[1]
        np.testing.assert_allclose(slopes, wanted, rtol=1e-7, atol=1e-9 * np.abs(f).max())


def test_linear_predictors_are_sums_of_columns():
    data = from_long([1, 1, 2], [0, 1, 2], [0, 0, 0], {"x": [5, 6, 7]})
    made = LinearPredictor(("time", "x"))
    phi = np.array([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    value, slopes = made.slopes(phi, data)
    assert value.tolist() == [[16.0, 21.0, 56.0]]
    np.testing.assert_allclose(slopes, Structure.slopes(made, phi, data)[1], rtol=1e-6)


# ---- a user's own -------------------------------------------------------------------------------


def test_functions_of_a_file_are_curves(own):
    made = structure_of(f"{own}:absorbed")
    assert (made.latents, made.needs) == (("log ka", "log v", "log k"), ("dose",))
    known = Compartments(("ka", "v", "ke"))
    phi = made.begin(THEO)[None] + 0.1
    np.testing.assert_allclose(made.predict(phi, THEO), known.predict(phi, THEO))
    assert structure_of(f"{own}:line").names == ("base", "slope")
    others = Formula("logistic", {"asymptote": "log"})
    assert others.latents == ("log asymptote", "midpoint", "scale")


def test_equations_of_a_file_are_solved(own, repeated):
    made, known = structure_of(f"{own}:moving"), Compartments(("ka", "cl", "v"))
    phi = np.log([1.5, 0.04, 0.5]) + np.linspace(-0.3, 0.3, 36).reshape(1, 12, 3)
    found = made.predict(phi, repeated)
    np.testing.assert_allclose(found, known.predict(phi, repeated), rtol=1e-5, atol=1e-5)
    some = [7, 2]  # what others are does not show, to the last digit
    alone = made.predict(phi[:, some], repeated.take(some))
    rows = np.concatenate([np.arange(*repeated.first[one : one + 2]) for one in some])
    np.testing.assert_array_equal(alone, found[:, rows])


def test_equations_without_doses_begin_where_they_say():
    @ode(2, rate="log")
    def prey(time, y, rate=1.0, *, food):
        return y[0] * (rate * food - y[1]), y[1] * (y[0] - 1)

    @prey.first
    def begin(rate, *, food):
        return 1.5, rate

    data = from_long([0, 0, 0], [0.0, 2.0, 5.0], [0, 0, 0], {"food": [1.2] * 3})
    found = prey.predict(np.log([[[0.8]]]), data)[0]
    exact = solve_ivp(lambda t, y: prey.signature.function(t, y, 0.8, food=1.2), (0, 5),
                      [1.5, 0.8], rtol=1e-10, atol=1e-12, t_eval=[0, 2, 5])  # fmt: skip
    np.testing.assert_allclose(found, exact.y[1], rtol=1e-5)


def test_solutions_that_grow_without_end_have_no_value():
    @ode(1)
    def bursting(time, y, rate=1.0):
        return rate * (1 + y**2)

    data = from_long([0, 0, 1, 1], [0.0, 3.0, 0.0, 1.0], np.zeros(4))
    found = bursting.predict(np.ones((1, 2, 1)), data)[0]
    assert np.isnan(found).tolist() == [False, True, False, False]
    assert found[3] == pytest.approx(np.tan(1.0), rel=1e-5)


def late(data):
    """Doses that are given after the first row."""
    every = np.arange(12)
    Compartments().check(replace(data, doses=Doses.from_lists(12, every, np.ones(12), np.ones(12))))


def misshapen(data):
    curve()(lambda time, a=1.0: np.zeros(3)).predict(np.zeros((1, 12, 1)), data)


FAULTS = [  # names of curves ({own}: a user's file; a line of Python: one with that), or a call
    ("{own}:lin", r"has no function 'lin' \(did you mean 'line'\?\)"),
    ("{own}:number", "has no function 'number'"),
    ("{own}.none.py:f", "does not exist"),
    ("logstic", r"no curve 'logstic' \(did you mean"),
    ("1 / 0", "wrong.py.* ?fails: ZeroDivisionError"),
    ("def f(time, a): pass",
     "wrong.py.* ?give the parameter a a value to begin with, a=1.0"),
    ("def f(*time): pass", "wrong.py.* ?must take 1 argument and then its parameters"),
    (lambda data: Formula("logistic", {"asymtote": "log"}), "parameter of logistic"),
    (lambda data: Compartments(("cl", "ka")), "compartments"),
    (lambda data: Compartments(("cl", "v", "tlag")), "compartments"),
    (lambda data: Compartments(("ka", "cl", "v1", "q", "v2")), "compartments"),
    (late, "has a time before the dose, 0;"),
    (lambda data: curve(a="log")(lambda time, a=-1.0: a), "begin where their scales have no value"),
    (misshapen, r"fails: ValueError: .*one of shape"),
]  # fmt: skip


@each(("make", "message"), FAULTS)
def test_faults_of_a_user_are_told(own, tmp_path, make, message):
    name = "" if callable(make) else make.format(own=own)
    if " " in name:
        (tmp_path / "wrong.py").write_text(name)
        name = f"{tmp_path}/wrong.py:f"
    with pytest.raises((InputError, FileError), match=message):
        make(THEO) if callable(make) else structure_of(name)


LAWS_OF_ROWS = [
    ("constant", ("ka", "cl"), None), ("proportional", ("ka", "cl"), None),
    ("combined", ("ka", "cl", "ke"), None), ("exponential", ("cl",), "censored"),
    ("combined", ("cl",), "censored"), (["constant", "combined"], ("ka",), "outcome"),
    (["proportional", "bernoulli"], ("ka", "cl"), "outcome"),
]  # fmt: skip


@each("case", LAWS_OF_ROWS)
def test_a_kernel_adds_up_what_rows_say(case):
    """Of statistics in two chains, beside NumPy."""
    (error, random, among), data, rng = case, later(THEO), np.random.default_rng(3)
    given = {"dose": data.covariate("dose")}
    if among is not None:
        choices = [0, 1] if among == "outcome" else [-1, 0, 0, 1]
        given[among] = rng.choice(choices, data.n_rows).astype(float)
    values = data.values
    if error[-1] == "bernoulli":
        values = np.where(given["outcome"] > 0, values > 4, values)
    data = from_long(data.ids[data.individual_of], data.times, values, given)
    check_sums(OneCompartmentModel(data, error=error, random=random), rng)


@each("error", ["bernoulli", "poisson"])
def test_a_kernel_adds_up_what_predictors_say(error):
    """With coefficients against which latents move by shares."""
    rng = np.random.default_rng(4)
    names, times = np.repeat([f"{i}" for i in range(9)], 5), np.tile(np.arange(5.0), 9)
    data = from_long(names, times, rng.integers(0, 2, 45), {"w": rng.normal(size=45)})
    slopes = {"slopes": ("time", "w"), "random": ("intercept",), "error": error}
    model = GeneralizedLinearModel(data, **slopes).inside()
    assert model.law.n_carried
    check_sums(model, rng)


def check_sums(model, rng):
    theta, z = model.start()
    theta = theta * (1 + 0.05 * rng.normal(size=len(theta)))
    z = z + 0.1 * rng.normal(size=(2, *z.shape))
    fast, slow = model.expand_about(theta), model.expand_about(theta)
    assert fast.kernels(fast.theta) is fast.kernels(fast.theta)
    slow.kernels = lambda _: None
    found, wanted = fast.statistics_by_chain(z), slow.statistics_by_chain(z)
    sizes = np.abs(wanted).max(axis=(0, 1))
    assert (np.abs(found - wanted) <= 1e-13 * sizes + 1e-15).all()


def test_a_model_that_keeps_a_law_is_pickled_and_copied():
    model = OneCompartmentModel(THEO, random=("ka", "cl"))
    theta, z = model.start()
    model = model.expand_about(theta)
    wanted = model.statistics(z[None])
    for part in (pickle.loads(pickle.dumps(model)), deepcopy(model), copy(model)):
        np.testing.assert_array_equal(part.statistics(z[None]), wanted)


def test_doses_are_those_that_covariates_have_now():
    data = THEO.take(np.arange(4))
    before = OneCompartmentModel(data)
    theta, z = before.start()
    wanted = before.expand_about(theta).curve(z[None], data)
    data.covariates["dose"] = 2 * data.covariates["dose"]
    found = OneCompartmentModel(data).expand_about(theta)
    np.testing.assert_allclose(found.curve(z[None], data), 2 * wanted, 1e-12)


@each("name", ["logistic", "michaelis-menten"])
def test_courses_that_are_level_do_not_tell_where_curves_begin(name):
    times = np.arange(1.0, 4.0)
    values = times if name == "michaelis-menten" else np.array([1.0, 0.0, 1.0])
    begun = Formula(name).begin(from_long(["a"] * 3, times, values))
    assert np.isnan(begun[0, -2:]).all()


@each("parameters", [("ka", "cl", "ke"), ("ka", "v", "ke", "tlag"), ("cl", "v"), None])
def test_densities_without_slopes_have_the_same_bits(parameters):
    """Of doses at once and over time, one after the other, and more rows than are taken at once."""
    rng, (n, rows) = np.random.default_rng(0), (3, 37)
    names, times = np.repeat(list("abc"), rows), np.tile(np.linspace(0.1, 30, rows), n)
    data = from_long(names, times, rng.uniform(1, 5, n * rows), {})
    for lasts in (np.zeros(7), np.array([0, 0, 1, 0, 0, 2, 0.0])):
        who, at = np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 3, 3, 0, 5, 0, 40.0])
        doses = Doses.from_lists(n, who, at, rng.uniform(1, 9, 7), lasts)
        given = replace(data, doses=doses)
        if parameters is None:
            model = CurveModel(given, "biexponential", first=(3, -1, 2, -3))
        else:
            model = OneCompartmentModel(given, parameters, first=np.full(len(parameters), -1.0))
        theta, z = model.start()
        z = z + 0.5 * rng.normal(size=(4, *z.shape))
        law, values = model.kernels(theta), np.empty((2, 4, n))
        law.density(z, values[0], np.empty(z.shape))
        law.density(z, values[1], np.empty((0, *z.shape[1:])))
        assert np.isfinite(values).all()
        np.testing.assert_array_equal(*values)


def test_natural_parameters_are_what_units_of_statistics_weigh(model):
    theta, _ = model.start()
    model = model.expand_about(theta)
    wanted = SaemModel.natural(model, theta)
    np.testing.assert_array_equal(model.natural(theta), wanted)
