"""Imputation: the soft-thresholded SVD that it must equal, descent, laws, scores, the estimator."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

import vpem
from vpem import InputError, NotConvergedWarning, VpemWarning
from vpem.fits.observers import score_holdout
from vpem.network.codecs import parse_codec
from vpem.settings import LAWS
from vpem.steps.fedem_steps import (
    MOST_ITERATIONS,
    WHOLE_STEPS,
    enough_iterations,
    noise_of,
    safe_step,
    step_ceiling,
)
from vpem.sums.quantizer import Quantizer
from vpem.terms.lowrank.entries import from_matrices, hide, split
from vpem.terms.lowrank.model import ImputationModel, LowRank, descend, fit_rows, objective, shrink
from vpem.terms.lowrank.observations import make_law

from .tables import each, each_once, over

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


# ---- identities ---------------------------------------------------------------------------------


def soft_impute(X, ridge, rank, n_iter):
    seen, theta = ~np.isnan(X), np.zeros(X.shape)
    for _ in range(n_iter):
        theta = threshold(np.where(seen, X, theta), ridge, rank)
    return theta


@over(seed=range(3), n_iter=[1, 2, 25])
def test_one_observer_is_iterated_soft_thresholding(seed, n_iter):
    X = draw("gaussian", seed)
    fit = quiet(from_matrices(X), rank=3, ridge=0.8, max_iter=n_iter, tol=0)
    np.testing.assert_allclose(fit.factors.theta, soft_impute(X, 0.8, 3, n_iter), atol=1e-10)


@over(by=["random", "rows"], n=[2, 5, 18])
def test_parts_of_a_matrix_find_what_it_does_whole(n, by):
    X = draw("gaussian", 1)
    parts = split(from_matrices(X), n, by, np.random.default_rng(0))
    fit = quiet(parts, rank=3, ridge=0.8, max_iter=20, tol=0)
    np.testing.assert_allclose(fit.factors.theta, soft_impute(X, 0.8, 3, 20), atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_observers_average_their_filled_copies(seed):
    matrices = [draw("gaussian", 10 * seed + i, seen=0.4) for i in range(4)]
    theta = np.zeros(matrices[0].shape)
    for _ in range(20):
        filled = [np.where(np.isnan(Y), theta, Y) for Y in matrices]
        theta = threshold(np.mean(filled, axis=0), 0.3 * 2.0, 3)
    given = from_matrices(matrices)
    fit = quiet(given, rank=3, ridge=0.3, variance=2.0, max_iter=20, tol=0)
    assert fit.n_copies == 4
    np.testing.assert_allclose(fit.factors.theta, theta, atol=1e-10)


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


@pytest.mark.parametrize("law", LAWS)
def test_nothing_missing_and_no_ridge_to_speak_of_is_the_matrix(law):
    X = draw(law, 0, seen=1.1)
    if law == "bernoulli":
        X = np.zeros_like(X)
        X[::2] = 1.0
    fit = quiet(from_matrices(X), rank=12, ridge=1e-6, law=law, max_iter=30)
    np.testing.assert_allclose(fit.fitted, X, atol=0.01)
    np.testing.assert_array_equal(fit.imputed, X)


# ---- the M-step ---------------------------------------------------------------------------------


@over(shape=[(5, 9), (205, 201), (1, 4), (4, 1)], rank=[1, 3])
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
    S = np.eye(240)
    found = shrink(S, 0.25, 3)
    np.testing.assert_allclose(found.singular_values, 0.75, atol=1e-10)
    assert np.linalg.matrix_rank(found.theta) == 3


@over(law=["poisson", "bernoulli"], seed=range(3), start=["zero", "far"])
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


@pytest.mark.parametrize("law", ["poisson", "bernoulli"])
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


# ---- under FedEM --------------------------------------------------------------------------------


@over(law=LAWS, copies=["fewest", "observers"])
def test_the_objective_never_falls(law, copies):
    given = from_matrices([draw(law, i, seen=0.4) for i in range(3)])
    fit = quiet(given, rank=2, ridge=1.0, law=law, copies=copies, max_iter=40, tol=0)
    steps = np.diff(fit.run.history.objective)
    assert steps.min() > -1e-10
    assert steps[0] > 1e-3
    assert fit.run.projections == 0


@pytest.mark.parametrize("law", LAWS)
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


@pytest.mark.parametrize("law", LAWS)
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


@pytest.mark.parametrize(("law", "low", "high"), [("poisson", 0, np.inf), ("bernoulli", 0, 1)])
def test_means_outside_the_law_are_moved_to_its_edge(law, low, high):
    given = from_matrices(draw(law, 0))
    entry = make_law(law)
    S = np.random.default_rng(0).normal(size=18 * 12)
    point, projected = ImputationModel(given, entry, 2, 1.0, 1).maximize(S)
    other, none = ImputationModel(given, entry, 2, 1.0, 1).maximize(np.clip(S, low, high))
    assert projected == ((low > S) | (high < S)).sum()
    assert none == 0
    np.testing.assert_array_equal(point.theta, other.theta)


@each_once(
    law=LAWS,
    options=[
        {"compress": "qsgd:8bits"},
        {"participation": 0.5},
        {"compress": "natural:12bits", "participation": 0.7},
    ],
)
def test_noise_settles(law, options):
    X = draw(law, 2, shape=(12, 8))
    parts = split(from_matrices(X), 4, "random", np.random.default_rng(0))
    exact = quiet(parts, rank=2, ridge=1.5, law=law, tol=1e-4)
    fit = quiet(parts, rank=2, ridge=1.5, law=law, max_iter=300, tol=1e-4, seed=0, **options)
    best = exact.run.history.objective[-1]
    assert fit.run.history.objective[-1] == pytest.approx(best, abs=3e-3)
    assert np.sqrt(np.mean((fit.fitted - exact.fitted) ** 2)) < 0.05 * exact.fitted.std()


def test_the_server_keeps_the_mean_of_the_memories():
    parts = split(from_matrices(draw("gaussian", 2)), 4, "random", np.random.default_rng(0))
    apart = []

    def follow(progress):
        apart.append(np.abs(progress.memory - progress.memories.mean(axis=0)).max())

    quiet(parts, rank=2, compress="qsgd:4bits", participation=0.5, max_iter=30, callback=follow)
    assert len(apart) == 30
    assert max(apart) < 1e-10


@pytest.mark.parametrize("options", [{"batch_size": 20}, {"variance_reduction": True}], ids=str)
def test_batches(options):
    parts = split(from_matrices(draw("gaussian", 2)), 2, "random", np.random.default_rng(0))
    exact = quiet(parts, rank=2, ridge=1.5)
    fit = quiet(parts, rank=2, ridge=1.5, max_iter=300, tol=0, **options)
    gap = exact.run.history.objective[-1] - fit.run.history.objective[-1]
    assert gap < 0.05 * (exact.run.history.objective[-1] - exact.run.history.objective[0])


def test_bytes_are_counted():
    parts = split(from_matrices(draw("gaussian", 2)), 3, "random", np.random.default_rng(0))
    plain = quiet(parts, rank=2, max_iter=5, tol=0)
    packed = quiet(parts, rank=2, max_iter=5, tol=0, compress="qsgd:8bits")
    size = 18 * 12
    assert plain.run.history.bytes_up[-1] == 8 * size * 3 * 6
    codec = parse_codec("qsgd:8bits").message_size(size)
    assert packed.run.history.bytes_up[-1] == 3 * (8 * size + 5 * codec)
    assert packed.communication["bytes"] == packed.communication["bytes_by_iteration"][-1]
    alone = quiet(from_matrices(draw("gaussian", 2)), rank=2, max_iter=5)
    assert alone.communication["bytes"] == 0


@each("codec", [None, "qsgd:8bits", "qsgd:2bits", "randk:0.1", "topk:0.1"])
def test_safe_steps_are_steps(codec):
    codec = None if codec is None else parse_codec(codec)
    omega = noise_of(Quantizer(codec, 600))
    steps = [safe_step(omega, p) for p in (1.0, 0.5, 0.1)]
    assert 0 < steps[2] < steps[1] < steps[0] <= 1
    assert codec is not None or steps[0] == 1


def growth(step, p, omega):
    """Largest eigenvalue of what an iteration makes of the second moments in `safe_step`."""
    alpha = 1 / (1 + omega)
    idle = np.array([[1, -step], [0, 1.0]])
    mean = np.array([[1 - step / p, step / p - step], [alpha, 1 - alpha]])
    noise = np.array([[-step / p, step / p], [alpha, -alpha]])
    parts = ((1 - p, idle), (p, mean), (p * omega, noise))
    return np.abs(np.linalg.eigvals(sum(w * np.kron(A, A) for w, A in parts))).max()


@over(
    p=[1.0, 0.95, 0.9, 0.8, 0.5, 0.2, 0.05],
    codec=[None, "qsgd:8bits", "qsgd:4bits", "randk:0.5", "randk:0.1"],
)
def test_noise_does_not_outgrow_safe_steps(codec, p):
    codec = None if codec is None else parse_codec(codec)
    omega = 0.0 if codec is None else codec.variance(600)
    step, ceiling = safe_step(omega, p), step_ceiling(omega, p)
    assert growth(ceiling, p, omega) == pytest.approx(1.0, abs=1e-6)
    assert growth(step, p, omega) < 1 - 0.3 * step
    assert growth(min(1.0, 3 * step), p, omega) > growth(step, p, omega) or step > 0.9


@each_once(law=LAWS, noise=[(0.8, None), (0.5, None), (0.2, None), (1.0, "randk:0.5")])
def test_defaults_come_to_rest_where_all_who_take_part_do(law, noise):
    p, codec = noise
    rng = np.random.default_rng(0)
    kept, hidden = hide(from_matrices(draw(law, 0, shape=(12, 8))), 0.1, rng)
    parts = split(kept, 4, "random", rng)
    common = {"rank": 2, "ridge": 1.5 if law == "bernoulli" else 3.0, "law": law, "tol": 1e-3}
    exact = fit_imputation(parts, **common)
    fit = fit_imputation(parts, participation=p, compress=codec, seed=0, **common)
    assert exact.run.converged
    assert fit.run.converged
    field = np.sqrt(fit.run.history.mean_field[-1])
    assert field < 1.5 * 1e-3 * np.linalg.norm(fit.run.statistic)
    losses = [
        score_holdout(found, hidden, 0.1, 0, compare=False)["model"]["rmse"]
        for found in (exact, fit)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


def test_most_iterations_follow_from_the_steps():
    assert enough_iterations("constant:1") == WHOLE_STEPS
    assert enough_iterations("constant:0.1") == enough_iterations(0.1) == 10 * WHOLE_STEPS
    assert enough_iterations("constant:0.001") == MOST_ITERATIONS
    assert enough_iterations("decreasing:1,1") == MOST_ITERATIONS
    assert enough_iterations("constant:0.1", noise_stays=True) == WHOLE_STEPS
    assert enough_iterations(lambda iteration: 0.1) == WHOLE_STEPS
    given = split(from_matrices(draw("gaussian", 0)), 3, "random", np.random.default_rng(0))
    fit = fit_imputation(given, rank=2, ridge=2.0, participation=0.5)
    assert fit.options["max_iter"] == enough_iterations(fit.options["step_size"])


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


def test_the_same_seed_gives_the_same():
    parts = split(from_matrices(draw("poisson", 2)), 3, "random", np.random.default_rng(0))
    options = {"rank": 2, "law": "poisson", "compress": "qsgd:8bits", "participation": 0.6}
    one, two, other = (quiet(parts, max_iter=20, seed=s, **options) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.fitted, two.fitted)
    assert not np.array_equal(one.fitted, other.fitted)


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


def test_trends():
    fit = quiet(from_matrices(draw("poisson", 0)), rank=2, law="poisson")
    np.testing.assert_allclose(fit.row_trend, fit.fitted.mean(axis=1))
    np.testing.assert_allclose(fit.column_trend, np.exp(fit.factors.theta).mean(axis=0))


@each(
    ("options", "words"),
    [
        ({"rank": 0}, "rank must be an integer of at least 1"),
        ({"rank": 13}, "18 x 12 has at most rank 12, got 13"),
        ({"rank": 2.5}, "rank must be an integer"),
        ({"ridge": -1}, "ridge must be"),
        ({"ridge": np.nan}, "ridge must be"),
        ({"law": "poisson", "ridge": 0}, "needs a ridge above 0"),
        ({"law": "normal"}, "law must be one of"),
        ({"copies": 2}, "copies must be one of"),
        ({"scale": "std"}, "scale must be one of"),
        ({"participation": 0}, "from 1e-06 to 1"),
        ({"participation": 1.5}, "participation must be"),
        ({"compress": "zip"}, "codec"),
        ({"step_size": "slow"}, "step_size must be like"),
        ({"step_size": 2}, "above 0 and at most 1"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"tol": -1}, "tol must be"),
        ({"seed": -1}, "seed must be"),
        ({"law": "poisson"}, "must be counts"),
        ({"law": "bernoulli"}, "must be 0 or 1"),
    ],
)
def test_options_that_are_refused(options, words):
    with pytest.raises(InputError) as caught:
        fit_imputation(from_matrices(draw("gaussian", 0)), **({"rank": 2} | options))
    assert words in str(caught.value)


def test_what_has_no_units_is_not_scaled():
    with pytest.raises(InputError, match="take scale none"):
        fit_imputation(from_matrices(draw("poisson", 0)), rank=2, law="poisson", scale="standard")


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


# ---- hidden entries -----------------------------------------------------------------------------


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


# ---- the estimator ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Skipping check:")
@pytest.mark.parametrize("options", [{}, {"rank": 1, "n_workers": 2, "scale": "standard"}], ids=str)
def test_the_contract(options):
    skip = {}
    if options:
        skip["check_fit2d_1sample"] = "more workers than entries"
    check_estimator(FedMissEM(**options), expected_failed_checks=skip)


@pytest.mark.parametrize("law", LAWS)
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
    listed = FedMissEM(max_iter=50, tol=0).fit(matrices)
    named = FedMissEM(max_iter=50, tol=0).fit(dict(zip("abc", matrices, strict=True)))
    np.testing.assert_array_equal(listed.fitted_, named.fitted_)
    assert named.imputation_.observations.names == ("a", "b", "c")
    model = FedMissEM().fit(matrices[0])
    model.feature_names_in_ = np.array(list("abcdefghijkl"), dtype=object)
    assert not hasattr(model.fit(matrices), "feature_names_in_")
    assert clone(named).get_params()["max_iter"] == 50
    shared = {"n_workers": 4, "random_state": 0, "max_iter": 50, "tol": 0}
    same = FedMissEM(**shared).fit(matrices[0])
    for graph in ({"sum": "tree"}, {"consensus_tol": 1e-12}):
        other = FedMissEM(graph="path", **graph, **shared).fit(matrices[0])
        np.testing.assert_allclose(other.fitted_, same.fitted_, 1e-9)
    one = FedMissEM(max_iter=50, tol=0).fit(matrices[0])
    np.testing.assert_allclose(same.fitted_, one.fitted_, atol=1e-10)


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
