"""Binomial entries, and observers with intercepts of their own, in imputation by low rank."""

import json

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import vpem
from vpem import InputError, connect_workers, make_graph
from vpem.fits.observers import score_holdout
from vpem.sums.connect import spread_workers
from vpem.terms.lowrank.entries import from_matrices, hide
from vpem.terms.lowrank.model import LowRank, descend, objective
from vpem.terms.lowrank.observations import make_law

from .cli_support import done
from .resume_support import check_resumes
from .tables import each
from .thread_engine import ThreadEngine, over_queues, together

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

PLAIN = {"rank": 2, "ridge": 0.8, "scale": "none", "tol": 0.0}
SHAPE = (14, 9)
OWN = np.array([-0.6, 0.1, 0.8])
TRIALS = {"binomial": {"trials": 12}}
LAWS = ("gaussian", "poisson", "bernoulli", "binomial")


def seen_by_three(law, seed=0, seen=0.7):
    """A matrix of low rank as three observers saw it, each with an intercept."""
    rng = np.random.default_rng(seed)
    theta = 0.6 * rng.normal(size=(SHAPE[0], 2)) @ rng.normal(size=(2, SHAPE[1])) + 0.4
    matrices = []
    for own in OWN:
        at = theta + own
        if law == "gaussian":
            Y = at + 0.3 * rng.normal(size=SHAPE)
        elif law == "poisson":
            Y = rng.poisson(np.exp(np.clip(at, -3, 3))).astype(float)
        else:
            n = TRIALS.get(law, {}).get("trials", 1)
            Y = rng.binomial(n, 1 / (1 + np.exp(-at))).astype(float)
        mask = rng.random(SHAPE) < seen
        mask[np.arange(SHAPE[0]), np.arange(SHAPE[0]) % SHAPE[1]] = True
        matrices.append(np.where(mask, Y, np.nan))
    return from_matrices(matrices)


def fit(observations, law="gaussian", **options):
    more = PLAIN | TRIALS.get(law, {}) | {"law": law}
    return vpem.fit_imputation(observations, **more | options)


# ---- binomial entries ----------------------------------------------------------------------------


def test_one_trial_is_the_bernoulli_law():
    given = seen_by_three("bernoulli")
    one, other = fit(given, "bernoulli", max_iter=8), fit(given, "binomial", trials=1, max_iter=8)
    np.testing.assert_allclose(other.factors.theta, one.factors.theta, 1e-12, 1e-12)
    assert other.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-12)
    law = make_law("binomial", trials=1)
    assert law.losses(np.array([0.0, 1.0]), np.array([0.2, 0.6]))["deviance"] == pytest.approx(
        -np.log(0.8 * 0.6)
    )


def test_log_likelihood_deviance_and_m_step_are_those_of_scipy():
    given, law, n = seen_by_three("binomial"), make_law("binomial", trials=12), 12
    found = fit(given, "binomial", max_iter=60)
    total = sum(
        scipy.stats.binom.logpmf(values, n, found.fitted.ravel()[places] / n).sum()
        for places, values in zip(given.places, given.values, strict=True)
    )
    assert found.log_likelihood == pytest.approx(total / given.n_entries, rel=1e-12)
    assert np.diff(found.run.history.objective).min() > -1e-12
    y, m = np.array([0.0, 3.0, 12.0]), np.array([1.0, 2.5, 11.0])
    ratio = scipy.stats.binom.logpmf(y, n, y / n) - scipy.stats.binom.logpmf(y, n, m / n)
    assert law.losses(y, m)["deviance"] == pytest.approx(2 * ratio.mean(), rel=1e-12)
    # At a minimum over a row's factors the slope is that of the ridge.
    S = n * np.random.default_rng(1).uniform(0.1, 0.9, SHAPE)
    point = LowRank.balanced(np.full((SHAPE[0], 2), 0.1), np.eye(SHAPE[1], 2))
    for _ in range(25):
        point = descend(law, S, 0.5, point)

    def value(U):
        whole = LowRank(U.reshape(point.U.shape), point.V)
        theta = whole.theta
        return n * np.logaddexp(0, theta).sum() - (S * theta).sum() + 0.5 * whole.penalty

    assert value(point.U.ravel()) == pytest.approx(objective(law, point, S, 0.5), rel=1e-12)
    best = scipy.optimize.minimize(value, point.U.ravel(), method="BFGS").fun
    assert best > value(point.U.ravel()) - 1e-4


def test_counts_out_of_a_number_are_better_predicted_than_by_means():
    given = seen_by_three("binomial", seed=3, seen=0.9)
    kept, hidden = hide(given, 0.1, np.random.default_rng(0))
    found = fit(kept, "binomial", max_iter=100)
    scores = score_holdout(found, hidden, 0.1, 0, compare=False)
    assert scores["model"]["deviance"] < scores["column_means"]["deviance"]
    filled = found.fill(np.where(np.arange(SHAPE[1]) % 2, 6.0, np.nan)[None])
    assert ((filled > 0) & (filled < 12)).all()


# ---- intercepts ----------------------------------------------------------------------------------


def test_gaussian_intercepts_are_those_of_iterations_in_numpy():
    given, L, ridge, variance = seen_by_three("gaussian"), 2.0, 0.8, 0.5
    found = fit(given, observer_shrinkage=L, variance=variance, max_iter=15)
    Y = np.array([given.matrix(one) for one in range(3)])
    there, theta = ~np.isnan(Y), np.zeros(SHAPE)

    def intercepts(theta):
        left = np.where(there, Y - theta, 0.0).sum(axis=(1, 2)) / variance
        return left / (there.sum(axis=(1, 2)) / variance + L)

    for _ in range(15):
        a = intercepts(theta)
        S = np.where(there, Y - a[:, None, None], theta).mean(axis=0)
        u, s, v = np.linalg.svd(S, full_matrices=False)
        theta = (u[:, :2] * np.maximum(s[:2] - ridge * variance, 0)) @ v[:2]
    np.testing.assert_allclose(found.factors.theta, theta, 1e-10, 1e-10)
    a = intercepts(theta)
    np.testing.assert_allclose(list(found.intercepts.values()), a, 1e-10)
    rest = (Y - theta - a[:, None, None])[there]
    each = scipy.stats.norm.logpdf(rest, 0, np.sqrt(variance))
    assert found.log_likelihood == pytest.approx(each.mean(), rel=1e-10)
    penalty = 3 * ridge * np.linalg.svd(theta)[1].sum() + L / 2 * (a**2).sum()
    assert found.run.history.objective[-1] == pytest.approx(
        (each.sum() - penalty) / each.size, rel=1e-10
    )


LOG_PMF = {
    "gaussian": lambda y, at: scipy.stats.norm.logpdf(y, at),
    "poisson": lambda y, at: scipy.stats.poisson.logpmf(y, np.exp(at)),
    "bernoulli": lambda y, at: scipy.stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-at))),
    "binomial": lambda y, at: scipy.stats.binom.logpmf(y, 12, 1 / (1 + np.exp(-at))),
}


@each("law", LAWS)
def test_under_every_law_it_rises_to_where_no_step_is_better(law):
    given, L = seen_by_three(law), 1.5
    found = fit(given, law, observer_shrinkage=L, max_iter=60, ridge=1.5)
    history = np.array(found.run.history.objective)
    assert np.diff(history).min() > -1e-10
    a, theta = np.array(list(found.intercepts.values())), found.factors.theta

    def value(theta, a):
        total = sum(
            LOG_PMF[law](given.values[one], theta.ravel()[given.places[one]] + a[one]).sum()
            for one in range(3)
        )
        singular = np.linalg.svd(theta)[1].sum()
        return (total - 3 * 1.5 * singular - L / 2 * (a**2).sum()) / given.n_entries

    best = value(theta, a)
    assert best == pytest.approx(history[-1], rel=1e-10)
    for one in np.eye(3):
        for step in (-1e-2, 1e-2):
            assert value(theta, a + step * one) < best
    for step in (0.98, 1.02):
        assert value(step * theta, a) < best + 1e-7
    # Who differs is found; who is shrunk hard does not differ.
    assert np.array_equal(np.argsort(a), np.argsort(OWN))
    hard = fit(given, law, observer_shrinkage=1e9, max_iter=20, ridge=1.5)
    assert np.abs(list(hard.intercepts.values())).max() < 1e-6


@each(
    ["engine", "law", "how"],
    [(ThreadEngine, "poisson", {}), (over_queues, "gaussian", {"secure_sum": True})],
)
def test_ranks_find_what_one_process_does(engine, law, how):
    given = seen_by_three(law)
    network = connect_workers(make_graph("star", 3), **how)
    options = {"observer_shrinkage": 1.5, "max_iter": 4}
    wanted = fit(given, law, network=network, **options)

    def one(rank):
        ranked = spread_workers(network, rank)
        own = set(ranked.agents.own.tolist())
        return fit(given.seen_by(own), law, network=ranked, **options)

    for place, found in enumerate(together(3, one, engine)):
        assert not isinstance(found, BaseException), found
        np.testing.assert_allclose(found.factors.theta, wanted.factors.theta, 1e-9, 1e-9)
        assert found.run.history.objective[-1] == pytest.approx(
            wanted.run.history.objective[-1], rel=1e-9
        )
        name = given.names[place]
        assert list(found.intercepts) == [name]
        assert found.intercepts[name] == pytest.approx(wanted.intercepts[name], rel=1e-6)
        assert found.communication["bytes"] == wanted.communication["bytes"]
    plain = fit(given, law, network=network, max_iter=4)
    assert plain.communication["bytes"] == wanted.communication["bytes"]


def test_an_estimator_has_intercepts():
    model = vpem.FedMissEM(rank=2, ridge=1.0, observer_shrinkage=1.0, max_iter=3, tol=0.0)
    given = seen_by_three("gaussian")
    assert set(model.fit(given).intercepts_) == set(given.names)
    assert model.intercepts_ == model.imputation_.intercepts


def test_it_goes_on_to_the_bit():
    given = seen_by_three("poisson")
    more = {"observer_shrinkage": 1.0, "participation": 0.7, "max_iter": 4, "batch_size": 20}
    check_resumes(lambda saver: fit(given, "poisson", saver=saver, **more))


def test_at_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = seen_by_three("binomial")
    vpem.write_observations("seen.h5", given)
    words = ["impute", "seen.h5", "--law", "binomial", "--trials", "12", "--rank", "2",
             "--observer-shrinkage", "1.5", "--max-iter", "30", "--tol", "0"]  # fmt: skip
    report = json.loads(done(capsys, *words, "-o", "out.h5", "--json").out)
    assert report["trials"] == 12
    assert set(report["intercepts"]) == set(given.names)
    assert report["observer_shrinkage"] == 1.5
    shown = done(capsys, "show", "out.h5").out
    assert "binomial of 12 trials" in shown
    assert "intercepts" in shown


@each(
    ["options", "why"],
    [
        ({"law": "binomial"}, "say how many"),
        ({"trials": 5}, "are those of"),
        ({"law": "binomial", "trials": 3}, "counts out of 3 trials"),
        ({"law": "binomial", "trials": 0}, "trials"),
        ({"observer_shrinkage": 0.0}, "above 0"),
        ({"observer_shrinkage": 1.0, "rank": None, "ridge": None}, "needs a rank and a ridge"),
        ({"observer_shrinkage": 1.0, "method": "mixture"}, "belongs to"),
    ],
)
def test_what_is_refused(options, why):
    given = seen_by_three("binomial")
    with pytest.raises(InputError, match=why):
        vpem.fit_imputation(given, **{"rank": 2, "ridge": 1.0} | options)
    alone = given.chosen([slice(None), slice(0), slice(0)])
    with pytest.raises(InputError, match="there is one observer"):
        vpem.fit_imputation(
            from_matrices(alone.matrix(0)), rank=1, ridge=1.0, observer_shrinkage=1.0
        )
