"""Imputation by a matrix of low rank: soft-thresholded SVD, descent, laws, scores, the estimator.

And method, rank and ridge, chosen by entries that all hide. Ways, engines and splits are cells of
the table (cells_fedmissem.py).
"""

import pickle
import warnings

import numpy as np
import pytest
import scipy.stats
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import NotFittedError

import vpem
from vpem import InputError, NotConvergedWarning, VpemWarning
from vpem.fits.mixture_imputation import MixtureImputation
from vpem.fits.observers import Observers, score_holdout
from vpem.network.graph import make_graph
from vpem.network.ledger import Ledger
from vpem.settings import LAWS
from vpem.steps.fedem_steps import WHOLE_STEPS, enough_iterations
from vpem.sums.connect import connect_workers, spread_workers
from vpem.terms.lowrank.entries import from_matrices, hide, split
from vpem.terms.lowrank.model import ImputationModel, LowRank, descend, fit_rows, objective, shrink
from vpem.terms.lowrank.observations import make_law

from .resume_support import check_resumes
from .tables import each, each_once, over
from .thread_engine import AtHome, ThreadEngine, together

PLAIN = {"rank": 2, "ridge": 1.0, "scale": "none"}
"""FedMissEM as the paper has it: nothing is chosen by the data."""


def fit_imputation(observations, **options):
    return vpem.fit_imputation(observations, **PLAIN | options)


def FedMissEM(**options):
    return vpem.FedMissEM(**PLAIN | options)


def draw(law, seed, shape=(18, 12), rank=2, seen=0.7):
    """A matrix of the law about a low-rank one, NaN where nothing was seen."""
    rng = np.random.default_rng(seed)
    theta = 0.7 * rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
    if law == "gaussian":
        X = 1 + theta + 0.5 * rng.normal(size=shape)
    elif law == "poisson":
        X = rng.poisson(np.exp(1 + np.clip(theta, -1.5, 1.5))).astype(float)
    else:
        X = (rng.random(shape) < make_law(law).mean(theta)).astype(float)
    mask = rng.random(shape) < seen
    mask[np.arange(shape[0]), np.arange(shape[0]) % shape[1]] = True
    return np.where(mask, X, np.nan)


def quiet(observations, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit_imputation(observations, **options)


def threshold(S, ridge, rank):
    """Soft-threshold singular values in plain NumPy."""
    left, s, right = np.linalg.svd(S, full_matrices=False)
    return (left[:, :rank] * np.maximum(s[:rank] - ridge, 0)) @ right[:rank]


# ---- identities ----------------------------------------------------------------------------------


def soft_impute(X, ridge, rank, n_iter):
    seen, theta = ~np.isnan(X), np.zeros(X.shape)
    for _ in range(n_iter):
        theta = threshold(np.where(seen, X, theta), ridge, rank)
    return theta


@each_once(dealt=[None, (5, "random"), (18, "rows")], n_iter=[1, 25], variance=[1.0, 2.0])
def test_however_entries_are_dealt_it_is_iterated_soft_thresholding(dealt, n_iter, variance):
    X = draw("gaussian", 1)
    given = from_matrices(X)
    if dealt:
        given = split(given, *dealt, np.random.default_rng(0))
    fit = quiet(given, rank=3, ridge=0.8, variance=variance, max_iter=n_iter, tol=0)
    wanted = soft_impute(X, 0.8 * variance, 3, n_iter)
    np.testing.assert_allclose(fit.factors.theta, wanted, atol=1e-10)


def test_fewer_copies_come_to_the_same_end_sooner():
    rng = np.random.default_rng(0)
    parts = [split(from_matrices(draw("gaussian", i)), 3, "random", rng) for i in range(2)]
    given = from_matrices([part.matrix(i) for part in parts for i in range(3)])
    assert (given.n_observers, given.times_seen.max()) == (6, 2)
    options = {"rank": 3, "tol": 1e-9, "max_iter": 5000}
    slow = fit_imputation(given, ridge=0.5, **options)
    fast = fit_imputation(given, ridge=1.5, copies="fewest", **options)
    assert (slow.n_copies, fast.n_copies) == (6, 2)
    np.testing.assert_allclose(fast.fitted, slow.fitted, atol=1e-5)
    assert fast.run.n_iter < slow.run.n_iter


@each("law", LAWS)
def test_nothing_missing_and_no_ridge_to_speak_of_is_the_matrix(law):
    X = draw(law, 0, seen=1.1)
    if law == "bernoulli":
        X = np.zeros_like(X)
        X[::2] = 1.0
    fit = quiet(from_matrices(X), rank=12, ridge=1e-6, law=law, max_iter=30)
    np.testing.assert_allclose(fit.fitted, X, atol=0.01)
    np.testing.assert_array_equal(fit.imputed, X)


# ---- the M-step ----------------------------------------------------------------------------------


@each_once(shape=[(5, 9), (205, 201), (1, 4), (4, 1)], rank=[3, 1])
def test_soft_thresholding(shape, rank):
    rank = min(rank, *shape)
    rng = np.random.default_rng(0)
    S = rng.normal(size=shape) + 3 * np.outer(rng.normal(size=shape[0]), rng.normal(size=shape[1]))
    found = shrink(S, 0.7, rank)
    np.testing.assert_allclose(found.theta, threshold(S, 0.7, rank), atol=1e-10)
    np.testing.assert_allclose(found.U.T @ found.U, found.V.T @ found.V, atol=1e-10)
    assert (found.V[np.abs(found.V).argmax(axis=0), range(rank)] >= 0).all()
    assert not shrink(S, 1e9, rank).theta.any()
    assert not shrink(np.zeros(shape), 0.7, rank).theta.any()


def test_equal_singular_values():
    found = shrink(np.eye(240), 0.25, 3)
    np.testing.assert_allclose(found.singular_values, 0.75, atol=1e-10)
    assert np.linalg.matrix_rank(found.theta) == 3


@over(law=["poisson", "bernoulli"], seed=range(2), start=["zero", "far"])
def test_the_other_laws_descend_to_a_point_of_rest(law, seed, start):
    rng = np.random.default_rng(seed)
    entry, S = make_law(law), draw(law, seed, seen=1.1)
    begin = LowRank(*(np.zeros((length, 3)) for length in S.shape))
    if start == "far":
        begin = LowRank.balanced(2 * rng.normal(size=(18, 3)), rng.normal(size=(12, 3)))
    found = begin
    values = [objective(entry, begin, S, 1.5)]
    for _ in range(30):
        found = descend(entry, S, 1.5, found)
        values.append(objective(entry, found, S, 1.5))
    assert (np.diff(values) <= 1e-9 * np.abs(values[1:])).all()
    slope = entry.mean(found.theta) - S
    assert np.abs(slope @ found.V + 1.5 * found.U).max() < 1e-3
    assert np.abs(slope.T @ found.U + 1.5 * found.V).max() < 1e-3
    for _ in range(20):
        near = LowRank(
            found.U + 1e-2 * rng.normal(size=found.U.shape),
            found.V + 1e-2 * rng.normal(size=found.V.shape),
        )
        assert objective(entry, near, S, 1.5) > values[-1]


@each("law", ["poisson", "bernoulli"])
def test_full_rank_reaches_the_minimum_of_the_convex_problem(law):
    """There the gradient's singular values are at most the ridge (and equal it where theta's are
    not zero)."""
    entry, S = make_law(law), draw(law, 3, shape=(9, 7), seen=1.1)
    found = LowRank(np.zeros((9, 7)), np.zeros((7, 7)))
    for _ in range(50):
        found = descend(entry, S, 2.0, found)
    spectrum = np.linalg.svd(S - entry.mean(found.theta), compute_uv=False)
    active = int((found.singular_values > 1e-6).sum())
    assert spectrum.max() <= 2.0 + 1e-3
    np.testing.assert_allclose(spectrum[:active], 2.0, atol=1e-3)


def test_extreme_counts_do_not_break_the_line_search():
    S = np.array([[0.0, 1e6], [1e9, 3.0], [0.0, 0.0]])
    point = LowRank(np.zeros((3, 2)), np.zeros((2, 2)))
    values = [objective(make_law("poisson"), point, S, 0.1)]
    for _ in range(40):
        point = descend(make_law("poisson"), S, 0.1, point)
        values.append(objective(make_law("poisson"), point, S, 0.1))
    assert np.isfinite(values).all()
    assert (np.diff(values) <= 0).all()
    assert np.exp(point.theta[1, 0]) == pytest.approx(1e9, rel=1e-2)


def test_rows_of_a_factor_by_ridge_regression():
    rng = np.random.default_rng(0)
    V, S = rng.normal(size=(8, 3)), rng.normal(size=(5, 8))
    weights = (rng.random((5, 8)) < 0.7).astype(float)
    found = fit_rows(make_law("gaussian"), np.zeros((5, 3)), V, S, 0.3, weights)
    for row in range(5):
        W = np.diag(weights[row])
        wanted = np.linalg.solve(V.T @ W @ V + 0.3 * np.eye(3), V.T @ W @ S[row])
        np.testing.assert_allclose(found[row], wanted, atol=1e-12)


# ---- under FedEM ---------------------------------------------------------------------------------


@each_once(law=LAWS, copies=["fewest", "observers"])
def test_the_objective_never_falls(law, copies):
    given = from_matrices([draw(law, i, seen=0.4) for i in range(3)])
    fit = quiet(given, rank=2, ridge=1.0, law=law, copies=copies, max_iter=40, tol=0)
    steps = np.diff(fit.run.history.objective)
    assert steps.min() > -1e-10
    assert steps[0] > 1e-3
    assert fit.run.projections == 0


@each("law", LAWS)
def test_log_likelihood_is_that_of_scipy(law):
    given = from_matrices([draw(law, i) for i in range(2)])
    variance = 0.6 if law == "gaussian" else 1.0
    fit = quiet(given, rank=2, law=law, variance=variance, max_iter=5)
    total = 0.0
    for places, values in zip(given.places, given.values, strict=True):
        mean = fit.fitted.ravel()[places]
        total += {
            "gaussian": lambda y, m: scipy.stats.norm.logpdf(y, m, np.sqrt(0.6)),
            "poisson": scipy.stats.poisson.logpmf,
            "bernoulli": scipy.stats.bernoulli.logpmf,
        }[law](values, mean).sum()
    assert fit.log_likelihood == pytest.approx(total / given.n_entries, rel=1e-12)


@each("law", LAWS)
def test_a_fit_to_one_part_is_the_same_bits_whatever_parts_share_its_process(law):
    given = from_matrices([draw(law, i) for i in range(4)])
    own, entry = [given.seen_by({i}) for i in range(4)], make_law(law)

    def fits(parts):
        found = []
        model = ImputationModel(
            given, entry, 2, 1.0, 4, parts=parts, add_up=lambda v: found.append(v) or v.sum()
        )
        point, _ = ImputationModel(given, entry, 2, 1.0, 4).maximize(given.sums()[1].ravel())
        model.log_likelihood(point)
        return found[-1]

    np.testing.assert_array_equal(fits(own), [fits([one])[0] for one in own])


@each("law", LAWS)
def test_statistics_are_means_over_entries(law):
    given = from_matrices([draw(law, 0), draw(law, 1)])
    model = ImputationModel(given, make_law(law), 2, 1.0, 2)
    point, projected = model.maximize(model.start)
    assert projected == 0
    assert not point.theta.any()
    point = LowRank.balanced(np.ones((18, 2)) * 0.3, np.ones((12, 2)))
    whole = model.expect(1, point, None)
    seen = ~np.isnan(given.matrix(1))
    filled = np.where(seen, given.matrix(1), make_law(law).mean(point.theta))
    np.testing.assert_allclose(whole.reshape(18, 12), filled, atol=1e-12)
    m = model.counts[1]
    each = [model.expect(1, point, np.array([entry])) for entry in range(m)]
    np.testing.assert_allclose(np.mean(each, axis=0), whole, atol=1e-10)
    halves = [model.expect(1, point, part) for part in (np.arange(m // 2), np.arange(m // 2, m))]
    weights = np.array([m // 2, m - m // 2]) / m
    np.testing.assert_allclose(weights @ halves, whole, atol=1e-10)


@each(("law", "low", "high"), [("poisson", 0, np.inf), ("bernoulli", 0, 1)])
def test_means_outside_the_law_are_moved_to_its_edge(law, low, high):
    given = from_matrices(draw(law, 0))
    entry = make_law(law)
    S = np.random.default_rng(0).normal(size=18 * 12)
    point, projected = ImputationModel(given, entry, 2, 1.0, 1).maximize(S)
    other, none = ImputationModel(given, entry, 2, 1.0, 1).maximize(np.clip(S, low, high))
    assert projected == ((low > S) | (high < S)).sum()
    assert none == 0
    np.testing.assert_array_equal(point.theta, other.theta)


@each_once(law=LAWS, noise=[(0.8, None), (0.5, None), (0.2, None), (1.0, "randk:0.5")])
def test_defaults_come_to_rest_where_all_who_take_part_do(law, noise):
    p, codec = noise
    rng = np.random.default_rng(0)
    kept, hidden = hide(from_matrices(draw(law, 0, shape=(12, 8))), 0.1, rng)
    parts = split(kept, 4, "random", rng)
    common = {"rank": 2, "ridge": 1.5 if law == "bernoulli" else 3.0, "law": law, "tol": 1e-3}
    exact = fit_imputation(parts, **common)
    fit = fit_imputation(parts, participation=p, compress=codec, seed=0, **common)
    assert fit.options["max_iter"] == enough_iterations(fit.options["step_size"])
    assert exact.run.converged
    assert fit.run.converged
    field = np.sqrt(fit.run.history.mean_field[-1])
    assert field < 1.5 * 1e-3 * np.linalg.norm(fit.run.statistic)
    losses = [
        score_holdout(found, hidden, 0.1, 0, compare=False)["model"]["rmse"]
        for found in (exact, fit)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


def test_batches_end_where_noise_alone_moves_them_and_say_so():
    given = split(from_matrices(draw("gaussian", 2)), 2, "random", np.random.default_rng(0))
    with pytest.warns(VpemWarning, match="noise of drawn entries"):
        found = fit_imputation(given, rank=2, batch_size=20)
    assert found.converged
    assert found.run.in_noise
    assert found.run.n_iter < WHOLE_STEPS
    with pytest.warns(NotConvergedWarning, match="entries drawn in every iteration keep it moving"):
        fit_imputation(given, rank=2, batch_size=20, max_iter=30)
    with pytest.raises(InputError, match="batch_size must be"):
        fit_imputation(given, rank=2, batch_size="20")


def test_standardized_columns():
    X = draw("gaussian", 5) * 10.0 ** np.arange(-3, 9) + 10.0 ** np.arange(-6, 6)[::-1]
    X[:, 3] = np.where(np.isnan(X[:, 3]), np.nan, 7.0)
    mean, sd = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    sd[3] = 1.0
    whole = quiet(from_matrices((X - mean) / sd), rank=2)
    parts = split(from_matrices(X), 3, "random", np.random.default_rng(0))
    fit = quiet(parts, rank=2, scale="standard")
    np.testing.assert_allclose((fit.fitted - mean) / sd, whole.fitted, atol=1e-4)
    setup = fit.communication["by_kind"]["setup"]
    assert setup["bytes"] == 3 * 12 * 8 * 5 + 3 * 8 * 18 * 12
    units = (~np.isnan(X) * np.log(sd)).sum() / parts.n_entries
    assert fit.log_likelihood == pytest.approx(whole.log_likelihood - units, abs=1e-4)


def test_warnings():
    given = from_matrices(draw("gaussian", 0))
    with pytest.warns(NotConvergedWarning, match="not converged after 2 iterations"):
        fit_imputation(given, rank=2, max_iter=2)
    with pytest.warns(VpemWarning, match="theta is zero everywhere"):
        fit_imputation(given, rank=2, ridge=1e6)


@each_once(weighted=[False, True], moved=[1e6, 1e7, 1e8])
def test_a_table_that_is_moved_keeps_its_likelihood(weighted, moved):
    rng = np.random.default_rng(0)
    matrices = [draw("gaussian", seed, shape=(60, 8)) for seed in (0, 1)]
    weights = [rng.uniform(0.5, 2.0, (60, 8)) for _ in matrices] if weighted else None
    one, two = (
        quiet(from_matrices([X + far for X in matrices], weights=weights), scale="auto")
        for far in (0.0, moved)
    )
    assert two.log_likelihood == pytest.approx(one.log_likelihood, abs=1e-8 + 1e-15 * moved)
    # Of any matrix of means it is what each entry's density says.
    given = from_matrices([X + moved for X in matrices], weights=weights)
    model = ImputationModel(given, make_law("gaussian", 2.0), 1, 1.0, 2)
    point = LowRank(np.full((60, 1), moved), 1 + 1e-9 * rng.normal(size=(8, 1)))
    at, values, weight = given.entries(range(2))
    found = scipy.stats.norm.logpdf(values, point.theta.ravel()[at], np.sqrt(2.0))
    expected = found.sum() if weight is None else weight @ found
    assert model.log_likelihood(point) == pytest.approx(expected, rel=1e-7)


@each(
    ("options", "words"),
    [
        ({"rank": 13}, "18 x 12 has at most rank 12, got 13"),
        ({"rank": 2.5}, "rank must be an integer"),
        ({"ridge": np.nan}, "ridge must be"),
        ({"law": "poisson", "ridge": 0}, "needs a ridge above 0"),
        ({"compress": "zip"}, "codec"),
        ({"step_size": "slow"}, "step_size must be like"),
        ({"step_size": 2}, "above 0 and at most 1"),
        ({"batch_size": "20"}, "batch_size must be"),
        ({"law": "poisson"}, "must be counts"),
        ({"law": "bernoulli"}, "must be 0 or 1"),
        ({"law": "poisson", "scale": "standard"}, "take scale none"),
        ({"method": "lowrank", "draws": 5}, "draws belongs to method='mixture'"),
        ({"method": "mixture", "rank": 3}, "rank belongs to method='lowrank'"),
        ({"method": "mixture", "n_components": "3-1"}, "goes down"),
        ({"method": "mixture", "n_components": 0}, "n_components must be"),
        ({"method": "mixture", "n_components": 500}, "500 components need at least as many"),
        ({"method": "mixture", "draws": 1}, "draws must be an integer of at least 2"),
        ({"method": "mixture", "n_workers": 3}, "observers that have whole columns or whole rows"),
    ],
)
def test_options_that_are_refused(options, words):
    given = from_matrices(draw("poisson" if "scale" in options else "gaussian", 0))
    if "n_workers" in options:
        given = split(given, 3, "random", np.random.default_rng(0))
        options = {"method": "mixture"}
    with pytest.raises(InputError) as caught:
        vpem.fit_imputation(given, **(options if "method" in options else PLAIN | options))
    assert words in str(caught.value)


# ---- hidden entries ------------------------------------------------------------------------------


@each_once(law=LAWS, seed=range(3))
def test_better_than_column_means(law, seed):
    X = draw(law, seed, shape=(40, 30))
    if law == "bernoulli":
        rng = np.random.default_rng(seed)
        theta = 3 * rng.normal(size=(40, 1)) @ rng.normal(size=(1, 30))
        X = np.where(np.isnan(X), X, (rng.random((40, 30)) < 1 / (1 + np.exp(-theta))))
    kept, hidden = hide(from_matrices(X), 0.1, np.random.default_rng(seed))
    fit = quiet(kept, rank=2, ridge=2.0, law=law, tol=1e-3)
    scores = score_holdout(fit, hidden, 0.1, 0, compare=False)
    for name, loss in scores["model"].items():
        assert loss < scores["column_means"][name]
    assert scores["n_entries"] == hidden.n_places
    assert scores["iterative_imputer"] == {"skipped": "it was not requested"}


def test_column_means_weigh_what_each_observer_saw():
    given = from_matrices([[[1.0, 2.0]], [[4.0, np.nan]]])
    np.testing.assert_array_equal(fit_imputation(given, rank=1).seen.column_means, [2.5, 2.0])


def test_losses():
    y = np.array([0.0, 1.0, 3.0])
    m = np.array([0.5, 1.0, 2.0])
    found = make_law("poisson").losses(y, m)
    ratio = scipy.stats.poisson.logpmf(y, np.maximum(y, 1e-12)) - scipy.stats.poisson.logpmf(y, m)
    assert found["deviance"] == pytest.approx(2 * ratio.mean())
    assert found["rmse"] == pytest.approx(np.sqrt(1.25 / 3))
    found = make_law("bernoulli").losses(np.array([0.0, 1.0]), np.array([0.2, 1.0]))
    assert found["log_loss"] == pytest.approx(-np.log(0.8) / 2)
    assert make_law("bernoulli").losses(np.array([1.0]), np.array([0.0]))["log_loss"] < 30


def test_the_peer_is_run_where_it_can_be(monkeypatch):
    kept, hidden = hide(from_matrices(draw("gaussian", 0)), 0.1, np.random.default_rng(0))
    fit = quiet(kept, rank=2)
    assert score_holdout(fit, hidden, 0.1, 0)["iterative_imputer"]["rmse"] > 0
    monkeypatch.setattr("vpem.fits.observers.MOST_WORK", 100)
    why = score_holdout(fit, hidden, 0.1, 0)["iterative_imputer"]["skipped"]
    assert "each of 12 columns" in why


# ---- method, rank and ridge that hidden entries choose -------------------------------------------


def low_rank(seed=0, shape=(30, 8), noise=0.3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1]))
    X = X * 10.0 ** rng.integers(-2, 3, size=shape[1]) + noise * X.std(axis=0) * rng.normal(
        size=shape
    )
    return np.where(rng.random(shape) < 0.15, np.nan, X)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each("load", [load_iris, load_wine])
def test_the_default_is_about_as_good_as_the_better_of_column_means_and_a_normal_law(
    load, monkeypatch
):
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 1)
    kept, hidden = hide(from_matrices(load().data[::3]), 0.1, np.random.default_rng(3))
    mean, spread = np.nanmean(kept.mean, axis=0), np.nanstd(kept.mean, axis=0)

    def error(found):
        """On hidden entries, in standard deviations of what is left of their columns."""
        away = found.ravel()[hidden.places] - hidden.values
        return np.sqrt(np.mean((away / spread[hidden.places % kept.shape[1]]) ** 2))

    normal = vpem.fit_imputation(kept, method="mixture").fitted
    others = (error(np.tile(mean, (kept.shape[0], 1))), error(normal))
    assert error(vpem.fit_imputation(kept).fitted) <= 1.1 * min(others)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_what_is_explicit_is_taken_and_costs_nothing(monkeypatch):
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 2)
    given = split(from_matrices(low_rank()), 3, "random", np.random.default_rng(0))
    fit = vpem.fit_imputation(given, rank=2, max_iter=5, tol=0.0)
    assert (fit.choice, fit.rank, fit.ridge) == (None, 2, 1.0)
    assert vpem.fit_imputation(given, ridge=3.0, max_iter=5).rank == 2
    open_ = vpem.fit_imputation(given, max_iter=5, tol=0.0)
    chosen = open_.choice
    assert chosen["error"] == min(one["error"] for one in chosen["candidates"])
    assert {"rank": open_.rank, "ridge": open_.ridge}.items() <= min(
        chosen["candidates"], key=lambda one: one["error"]
    ).items()
    again = vpem.fit_imputation(given, rank=open_.rank, ridge=open_.ridge, max_iter=5, tol=0.0)
    np.testing.assert_array_equal(again.fitted, open_.fitted)
    assert again.communication["bytes"] < open_.communication["bytes"]
    ridge = vpem.fit_imputation(given, rank=2, ridge="auto", max_iter=5).choice["candidates"]
    assert {one["rank"] for one in ridge} == {2}
    rank = vpem.fit_imputation(given, rank="auto", ridge=2.0, max_iter=5).choice["candidates"]
    assert {one["ridge"] for one in rank} == {2.0}


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_a_mixture_is_compared_where_nothing_is_sent(monkeypatch):
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 2)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 1)) @ np.ones((1, 4)) + 0.05 * rng.normal(size=(50, 4))
    X = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    alone = vpem.fit_imputation(from_matrices(X))
    assert alone.choice["mixture"] == "tried"
    assert {one["method"] for one in alone.choice["candidates"]} == {"lowrank", "mixture"}
    parts = split(from_matrices(X), 2, "rows")
    for given, how, why in (
        (parts, {}, "several observers"),
        (from_matrices(X), {"method": "lowrank"}, "the method was given"),
        (from_matrices(X), {"copies": "fewest"}, "copies"),
    ):
        found = vpem.fit_imputation(given, **how)
        assert why in found.choice["mixture"]
        assert not isinstance(found, MixtureImputation)
        assert {one["method"] for one in found.choice["candidates"]} == {"lowrank"}


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each(
    ("options", "how", "engine"),
    [
        ({"secure_sum": True}, {"copies": "fewest"}, AtHome),
        ({"graph": "path", "sum": "tree"}, {"participation": 0.7}, AtHome),
        ({"graph": "complete"}, {}, ThreadEngine),
    ],
)
def test_processes_choose_as_one_does_and_no_entry_is_gathered(options, how, engine, monkeypatch):
    graph = make_graph(options.get("graph", "star"), 3)
    options = {name: one for name, one in options.items() if name != "graph"}
    given = split(from_matrices(low_rank(shape=(9, 4))), 3, "random", np.random.default_rng(0))
    how = {"max_iter": 3, "tol": 0.0, "n_threads": 1} | how
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 1)
    alone = vpem.fit_imputation(given, network=connect_workers(graph, **options), **how)

    def fit(member):
        network = spread_workers(connect_workers(graph, **options), member)
        own = given.seen_by(set(network.total.holders.own.tolist()))
        return vpem.fit_imputation(own, network=network, **how)

    for found in together(3, fit, engine):
        assert (found.rank, found.ridge) == (alone.rank, alone.ridge)
        np.testing.assert_allclose(found.choice["error"], alone.choice["error"], rtol=1e-9)
        np.testing.assert_allclose(found.fitted, alone.fitted, rtol=1e-7, atol=1e-9)
        assert found.communication == alone.communication


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_everybody_hides_the_same_places_and_keeps_an_entry():
    X = low_rank()
    given = from_matrices([X, np.where(np.arange(X.size).reshape(X.shape) % 3, X, np.nan)])
    network = connect_workers(make_graph("star", 2))
    ledger = Ledger(network.graph)
    observers = Observers(given, network, ledger)
    hidden = np.random.default_rng(1).random(X.size) < 0.2
    rest, held, _ = observers.hold_out(hidden)
    assert ledger.messages == 0
    for one in range(2):
        assert hidden[held.observations.places[one]].all()
        assert not hidden[rest.observations.places[one]].any()
        both = np.concatenate([held.observations.places[one], rest.observations.places[one]])
        np.testing.assert_array_equal(np.sort(both), given.places[one])
    rest, held, _ = observers.hold_out(np.ones(X.size, dtype=bool))
    assert [len(own) for own in rest.observations.places] == [1, 1]


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each(("law", "loss"), [("poisson", "deviance"), ("bernoulli", "log_loss")])
def test_other_laws_choose_by_deviance(law, loss, monkeypatch):
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 1)
    rng = np.random.default_rng(0)
    theta = 1 + 0.8 * rng.normal(size=(20, 1)) @ rng.normal(size=(1, 7))
    X = np.where(rng.random((20, 7)) < 0.2, np.nan, rng.poisson(np.exp(theta)).astype(float))
    X = X if law == "poisson" else np.where(np.isnan(X), np.nan, X > 2)
    found = vpem.fit_imputation(from_matrices(X), law=law, max_iter=20)
    chosen = found.choice
    assert chosen["loss"] == loss
    assert chosen["error"] < chosen["column_means"]
    assert found.rank <= 3
    assert chosen["error"] < max(one["error"] for one in chosen["candidates"])


def test_where_columns_tell_nothing_of_each_other_their_means_are_taken():
    X = np.random.default_rng(0).normal(size=(60, 5)) * [1, 10, 100, 1, 1] + 7
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    with pytest.warns(VpemWarning, match="means of their columns"):
        found = vpem.fit_imputation(from_matrices(X), seed=2)
    assert found.choice["column_means_win"]
    expected = np.tile(np.nanmean(X, axis=0), (60, 1))
    np.testing.assert_allclose(found.fitted, expected, rtol=1e-9)


STRANGE = {
    "one row": np.array([[1.0, 2.0, np.nan, 4.0]])[:, [0, 1, 3]],
    "one column": np.array([[1.0], [2.0], [4.0]]),
    "one entry": np.array([[5.0]]),
    "constant": np.full((6, 3), 2.5),
    "nearly empty": np.where(np.eye(5) > 0, 3.0, np.nan),
    "huge": low_rank() * 1e60,
    "two values": np.array([[1.0, np.nan], [np.nan, 2.0]]),
    "wide": low_rank(shape=(4, 30)),
}


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each("name", list(STRANGE))
def test_strange_tables_are_filled(name, monkeypatch):
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 1)
    found = vpem.fit_imputation(from_matrices(STRANGE[name]), max_iter=50)
    assert np.isfinite(found.imputed).all()
    assert found.choice is not None
    assert "NaN" not in str(found.describe()["choice"])


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_a_chosen_fit_goes_on_from_its_checkpoint_to_the_bit(monkeypatch):
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 1)
    given = split(from_matrices(low_rank(shape=(12, 6))), 2, "random", np.random.default_rng(0))
    check_resumes(lambda saver: vpem.fit_imputation(
        given, saver=saver, max_iter=6, tol=0.0, participation=0.6, seed=3, n_threads=1
    ))  # fmt: skip


# ---- the estimator -------------------------------------------------------------------------------


@each("law", LAWS)
def test_new_rows_are_imputed_as_those_of_the_fit(law):
    X = draw(law, 1, shape=(10, 6))
    model = FedMissEM(rank=2, ridge=1.0, law=law, tol=1e-7, max_iter=5000).fit(X)
    np.testing.assert_allclose(model.transform(X), model.impute(), atol=2e-3)
    np.testing.assert_allclose(model.transform(X[:3]), model.transform(X)[:3], atol=1e-12)
    seen = ~np.isnan(X)
    np.testing.assert_array_equal(model.impute()[seen], X[seen])
    U, V = model.factors_
    np.testing.assert_allclose(U @ V.T, model.theta_, atol=1e-12)


def test_several_observers_and_one():
    matrices = [draw("gaussian", i, seen=0.5) for i in range(3)]
    short = {"max_iter": 50, "tol": 0}
    listed, named = FedMissEM(**short), FedMissEM(**short)
    listed.fit(matrices), named.fit(dict(zip("abc", matrices, strict=True)))
    np.testing.assert_array_equal(listed.fitted_, named.fitted_)
    assert named.imputation_.observations.names == ("a", "b", "c")
    model = FedMissEM(**short).fit(matrices[0])
    shared = FedMissEM(n_workers=4, random_state=0, **short).fit(matrices[0])
    np.testing.assert_allclose(shared.fitted_, model.fitted_, atol=1e-10)
    model.feature_names_in_ = np.array(list("abcdefghijkl"), dtype=object)
    assert not hasattr(model.fit(matrices), "feature_names_in_")


def test_a_fit_can_be_kept():
    X = draw("poisson", 0)
    model = FedMissEM(
        law="poisson", n_workers=3, participation=0.5, random_state=1, tol=0, max_iter=10
    )
    again = pickle.loads(pickle.dumps(model.fit(X)))
    np.testing.assert_array_equal(again.impute(), model.impute())
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(clone(model).fit(X).fitted_, model.fitted_)


def test_what_the_estimator_refuses():
    X = draw("gaussian", 0)
    with pytest.raises(NotFittedError):
        FedMissEM().impute()
    with pytest.raises(InputError, match="there are 2; leave it at 1"):
        FedMissEM(n_workers=3).fit([X, X])
    with pytest.raises(InputError, match="row 1 has no values"):
        FedMissEM().fit(X).transform(np.where(np.arange(3)[:, None] == 1, np.nan, X[:3]))
    with pytest.raises(InputError, match="must be counts"):
        FedMissEM(law="poisson").fit(draw("poisson", 0)).transform(np.full((1, 12), 0.5))
    with pytest.raises(ValueError, match="features"):
        FedMissEM().fit(X).transform(X[:, :3])
    with pytest.raises(InputError, match="rank must be"):
        FedMissEM(rank="2").fit(X)
    with pytest.raises(InputError, match="random_state"):
        FedMissEM(random_state=-1).fit(X)
