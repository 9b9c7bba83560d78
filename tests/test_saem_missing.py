"""Models of tables that miss items: what is left out drops out, and nothing else changes."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from vpem import fit_saem
from vpem.errors import InputError
from vpem.saem.individuals import Streams, from_long, from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.gmm import GmmModel
from vpem.saem.prediction import Predictor

from .cells_saem import TABLES
from .tables import each

RNG = np.random.default_rng(3)
WHOLE = from_matrix(RNG.normal(size=(40, 6)) + RNG.normal(size=(40, 1)))
GROUPS = (0, 0, 0, 1, 1, 1)
ITEMS = range(6)


def as_if_with_gaps(make):
    """Make a model of a whole table by the formulas of tables that miss items."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(WHOLE), "lack", lambda self, items: True)
        return make()


PAIRS = {
    "bifactor": (BifactorModel(WHOLE, GROUPS),
                 as_if_with_gaps(lambda: BifactorModel(WHOLE, GROUPS, ITEMS))),
    "gmm": (GmmModel(WHOLE, 2), as_if_with_gaps(lambda: GmmModel(WHOLE, 2, items=ITEMS))),
}  # fmt: skip


@each("model", PAIRS)
def test_of_whole_tables_models_are_the_same(model):
    plain, other = PAIRS[model]
    theta, z = plain.start()
    q = z.shape[1]
    np.testing.assert_array_equal(other.start()[0], theta)
    np.testing.assert_array_equal(other.start()[1][:, :q], z)
    drawn = other.draw(theta, Streams.from_names(WHOLE.names, 0).derive_stream(1, 0), 3)
    totals = [one.statistics(drawn[..., :width]).sum(axis=0)
              for one, width in ((plain, q), (other, None))]  # fmt: skip
    pairs = list(zip((plain, other), totals, strict=True))
    assert (plain.gaps, other.gaps) == (False, True)
    for found in (
        [one.maximize(total, one.counts) for one, total in pairs],
        [one.log_density(total, one.counts, theta) for one, total in pairs],
        [one.marginal(theta) for one, _ in pairs],
    ):
        np.testing.assert_allclose(*found, 1e-9, 1e-9)
    if model == "bifactor":
        for ours, theirs in zip(other.posterior(theta), plain.posterior(theta), strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-9, 1e-12)


def test_what_is_missing_is_integrated_out():
    data, _ = TABLES["bifactor"]
    model = BifactorModel(data, GROUPS, range(6))
    theta = model.start()[0]
    means, loadings, variances = model.unpack(theta)
    covariance = loadings @ loadings.T + np.diag(variances)
    table = data.table(np.arange(6.0))
    for y, found in zip(table, model.marginal(theta), strict=True):
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


@each("model", TABLES)
def test_a_fit_is_used_on_tables_that_miss_items(model):
    data, options = TABLES[model]
    few = {"n_iter": 6, "n_chains": 2, "n_conditional": 2, "n_importance": 10, "tol": 0.0}
    found = fit_saem(data, model, missing="marginalize", **few, **options)
    some = Predictor(found, level=0.9)
    if model == "gmm":
        classes = some.responsibilities(data.take([0, 1, 2]))
        np.testing.assert_allclose(classes, found.probabilities[:3])
    else:
        assert some.latents(data.take([0, 1, 2])).means.shape == (3, 3)
    assert some.score(data.take([0, 1])).each.shape == (2,)


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
def test_what_cannot_be_integrated_out_says_why():
    data, options = TABLES["bifactor"]
    with pytest.raises(InputError, match="all individuals measured at the same times"):
        fit_saem(data, "bifactor", **options)
    with pytest.raises(InputError, match="no value of 'b' was measured, so that nothing"):
        from_long(["a", "a", "b"], [0, 1, 0], [1.0, 2.0, np.nan], missing=True)
    twice = from_long(["a", "a", "b"], [0, 0, 1], [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"'a' has the time .item. 0, twice"):
        fit_saem(twice, "gmm", missing="marginalize", model_options={"n_components": 2})


@pytest.mark.parametrize("gaps", [False, True])
def test_units_of_items_do_not_matter_to_mixtures_of_individuals(gaps):
    scale, moved = 10.0 ** np.array([3, -3, 0, 2, -5, 6]), np.arange(6) * 1e4
    values = np.random.default_rng(4).normal(size=(60, 6)) + np.repeat([[0.0], [2.0]], 30, axis=0)
    values[:, 5] = values[:, 4]  # so that floors matter
    if gaps:
        values[np.random.default_rng(5).random(values.shape) < 0.1] = np.nan
    of_units = []
    for table in (values, (values + moved * gaps) * scale):
        items = range(6) if gaps else None
        rows, columns = np.nonzero(~np.isnan(table))
        model = GmmModel(from_long(rows, columns * 1.0, table[rows, columns]), 2, items=items)
        theta, z = model.start()
        for t in range(4):
            z = model.draw(
                theta, Streams.from_names(model.individuals.names, 0).derive_stream(t + 1, 0), 3
            )
            theta = model.maximize(model.statistics(z).sum(axis=0), model.counts)
        of_units.append(model.marginal(theta))
    jacobian = ~np.isnan(values) @ np.log(scale)
    np.testing.assert_allclose(of_units[0], of_units[1] + jacobian, rtol=1e-7)
