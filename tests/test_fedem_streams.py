"""FedEM's online setting: batches of a stream, held against the algorithm written out in NumPy."""

import pickle

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import vpem
from vpem import FedEM, InputError, NumericalError

from .tables import each, over

pytestmark = pytest.mark.filterwarnings("ignore:steps of")


def batches(X, size):
    return [X[begin : begin + size] for begin in range(0, len(X), size)]


def streamed(X, size, *, sample_weight=None, **options):
    ours = FedEM(**{"n_components": 3, "workers": 3, "random_state": 0, **options})
    for part in batches(X, size):
        ours.partial_fit(part)
    return ours


@pytest.fixture
def X(overlapping):
    return overlapping(8, 240, 3) + 2.0


# ---- against the algorithm -----------------------------------------------------------------------


def maximize(S, k, d):
    n, first = S[:k], S[k : k + k * d].reshape(k, d)
    second = S[k + k * d :].reshape(k, d, d)
    means = first / n[:, None]
    return n / n.sum(), means, second / n[:, None, None] - means[:, :, None] * means[:, None, :]


def expect(rows, weights, means, covariances):
    logs = [multivariate_normal(m, c).logpdf(rows) for m, c in zip(means, covariances, strict=True)]
    g = np.log(weights) + np.array(logs).reshape(len(weights), -1).T
    g = np.exp(g - g.max(axis=1, keepdims=True))
    g /= g.sum(axis=1, keepdims=True)
    second = np.einsum("mk,mi,mj->kij", g, rows, rows)
    return np.concatenate([g.sum(axis=0), (g.T @ rows).ravel(), second.ravel()]) / len(rows)


@over(memory=["zero", "none", "naive"], weighting=["rows", "workers"])
def test_a_stream_is_fedem_of_new_rows(X, memory, weighting):
    """The oracle of a worker is the mean over its new rows (A 7); those without are absent."""
    k, (n, d), step, chances = 2, (len(X), 3), 0.3, np.array([0.9, 0.5, 0.7])
    who = np.random.default_rng(1).integers(3, size=n)
    who[100:140][who[100:140] == 1] = 2  # one worker has nothing new in a batch
    parts = [slice(0, 100), slice(100, 140), slice(140, 141), slice(141, 240)]
    ours = FedEM(
        k, workers=3, init=[3, 50], step_size=step, memory=memory, participation=chances.tolist(),
        reg_covar=0.0, floor=0.0, weighting=weighting, random_state=4,
    )  # fmt: skip
    rho = np.bincount(who[parts[0]], minlength=3) / 100
    rho = rho if weighting == "rows" else np.full(3, 1 / 3)
    first, count = X[parts[0]], np.bincount(who[parts[0]], minlength=3)
    heavy = rho[who[parts[0]]] / count[who[parts[0]]]
    centre = heavy @ first
    covariance = (heavy[:, None] * (first - centre)).T @ (first - centre)
    theta = np.full(k, 1 / k), first[[3, 50]], np.array([covariance] * k)
    S = sum(rho[i] * expect(first[who[parts[0]] == i], *theta) for i in range(3))
    V = np.zeros((3, len(S)))
    rng = np.random.default_rng([4, 1])
    for t, part in enumerate(parts):
        rows, held = X[part], who[part]
        there = np.flatnonzero(np.bincount(held, minlength=3))
        A = there[rng.random(len(there)) < chances[there]]
        theta = maximize(S, k, d)
        D = np.array([expect(rows[held == i], *theta) - S - V[i] for i in A]).reshape(-1, len(S))
        if memory == "naive":
            H = rho[A] @ D / (rho[A].sum() or 1)
        else:
            H = rho @ V + (rho[A] / chances[A]) @ D
        V[A] += D * (memory == "zero")
        S = S + step * H
        if t == 0:
            rng = np.random.default_rng([4, 1, 1])
        assert ours.partial_fit(rows, workers=held) is ours
        assert ours.n_batches_seen_ == ours.n_iter_ == t + 1
        for found, known in zip(
            (ours.weights_, ours.means_, ours.covariances_), maximize(S, k, d), strict=True
        ):
            np.testing.assert_allclose(found, known, rtol=0, atol=1e-10)


@over(kind=["full", "diag", "spherical"], graph=["star", "cycle"], weighted=[False, True])
def test_a_stream_of_one_component_is_a_weighted_mean(kind, graph, weighted, X):
    weights = np.random.default_rng(0).uniform(0.5, 2, 240) if weighted else np.ones(240)
    ours = FedEM(1, workers=3, graph=graph, covariance_type=kind, reg_covar=0.0)
    mean, second, shares = np.zeros(3), np.zeros((3, 3)), None
    for t, (part, own) in enumerate(zip(batches(X, 60), batches(weights, 60), strict=True)):
        ours.partial_fit(part, sample_weight=own if weighted else None)
        rho = (t + 1) ** -0.6
        masses = own.reshape(3, 20).sum(axis=1)
        shares = masses / masses.sum() if shares is None else shares
        heavy = own * np.repeat(shares / masses, 20)
        mean = mean + rho * (heavy @ part - mean)
        second = second + rho * ((part * heavy[:, None]).T @ part - second)
    np.testing.assert_allclose(ours.means_[0], mean, rtol=0, atol=1e-9)
    whole = second - np.outer(mean, mean)
    known = {"full": whole, "diag": np.diag(whole), "spherical": np.trace(whole) / 3}[kind]
    np.testing.assert_allclose(ours.covariances_[0], known, rtol=0, atol=1e-9)


@each(
    "options",
    [
        {},
        {"compress": "qsgd:8bits"},
        {"participation": [1, 0.5, 0.8], "compress": "qsgd:5bits:3,9,30:inf"},
        {"participation": "0,1;2,0;1", "graph": "path", "sum": "tree"},
        {"graph": "cycle", "participation": 0.7},
        {"covariance_type": "diag", "compress": "topk:0.8"},
    ],
)
def test_a_stream_comes_close_to_the_fit(options, overlapping):
    X = overlapping(1, 3000, 4)
    kind = options.get("covariance_type", "full")
    whole = FedEM(2, workers=3, random_state=0, covariance_type=kind).fit(X)
    stream = FedEM(2, workers=3, random_state=1, **options)
    for part in batches(np.random.default_rng(1).permutation(np.tile(X, (4, 1))), 300):
        stream.partial_fit(part)
    assert stream.n_batches_seen_ == 40
    assert stream.score(X) > whole.score(X) - 0.06


# ---- what lasts ----------------------------------------------------------------------------------

CODED = {"compress": "qsgd:4bits", "participation": 0.7}


@each("how", [{}, CODED, {"graph": "cycle", "compress": "natural:12bits", "link_failure": 0.2}])
def test_a_stream_is_the_same_again_and_survives_pickling(X, how):
    one, two = streamed(X, 60, **how), FedEM(3, workers=3, random_state=0, **how)
    for part in batches(X, 60):
        two = pickle.loads(pickle.dumps(two)).partial_fit(part)
    np.testing.assert_array_equal(one.statistic_, two.statistic_)
    np.testing.assert_array_equal(one.means_, two.means_)


def test_no_row_is_kept(X):
    ours = streamed(X, 60)
    small = len(pickle.dumps(ours))
    big = FedEM(3, workers=3, random_state=0).partial_fit(np.tile(X, (20, 1)))
    # But for the numbers of the last batch's rows.
    assert len(pickle.dumps(big)) < small + 12 * 20 * len(X)
    assert 8 * 3 * 20 * len(X) > 12 * 20 * len(X)


def test_a_stream_goes_on_from_a_fit_and_a_fit_forgets_it(X):
    ours = FedEM(3, workers=3, random_state=0).fit(X)
    before, n = ours.means_, ours.n_iter_
    ours.partial_fit(X[:60])
    assert (ours.n_batches_seen_, ours.n_iter_) == (2, n + 1)
    assert not np.array_equal(ours.means_, before)
    np.testing.assert_array_equal(ours.fit(X).means_, before)
    assert ours.n_batches_seen_ == 1


@each("kind", ["full", "diag"])
def test_units_of_a_stream_change_nothing(kind, X):
    common = {"init": [0, 20, 40], "reg_covar": 0.0, "covariance_type": kind}
    one, two = (streamed(X, 60, scale=scale, **common) for scale in ("none", "standard"))
    np.testing.assert_allclose(one.means_, two.means_, rtol=1e-7, atol=1e-8)
    scaled = streamed(1e3 * X, 60, **common)
    np.testing.assert_allclose(scaled.means_, 1e3 * one.means_, rtol=1e-7)


@each("kind", ["full", "diag", "spherical"])
def test_batches_with_gaps(kind, X):
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    holes[70] = np.nan
    holes[180:] = X[180:]
    ours = streamed(holes, 60, covariance_type=kind, missing="marginalize", n_components=2)
    assert ours.score(X) > streamed(X, 60, covariance_type=kind, n_components=2).score(X) - 0.3
    assert ours.fit_.total_weight == 60


def test_messages_of_a_batch_are_those_of_one_iteration(X):
    ours = streamed(X, 60, compress="qsgd:8bits")
    told = ours.fit_.communication["by_kind"]
    size = len(ours.statistic_)
    assert size == 3 + 9 + 18
    assert told["setup"]["bytes"] == 3 * 4 * 2  # how far out rows lie, and back
    assert told["server"]["bytes"] == 3 * (8 * size + 4 + size)


# ---- what cannot be ------------------------------------------------------------------------------


@each(
    ("options", "why"),
    [
        ({"batch_size": 5}, "does not take batch_size: a worker takes all rows"),
        ({"variance_reduction": True}, "begins again with all rows"),
        ({"n_epochs": 3}, "no epochs"),
        ({"random_stop": True}, "ends when no batch follows"),
        ({"keep_trace": True}, "one fit to the same rows"),
        ({"secure_sum": True}, "that of the first batch"),
        ({"penalty": "ridge:0.1"}, "against which a penalty is weighed"),
        ({"covariance_type": "tied"}, "known_covariance"),
    ],
)
def test_what_a_stream_does_not_take(X, options, why):
    ours = FedEM(3, workers=3, **options)
    with pytest.raises(InputError, match=why):
        ours.partial_fit(X)
    assert not hasattr(ours, "mixture_")


def test_a_known_covariance_may_be_tied(X):
    ours = streamed(X, 60, covariance_type="tied", known_covariance=np.cov(X.T))
    np.testing.assert_allclose(ours.covariances_, np.cov(X.T), atol=1e-12)


def test_a_batch_that_cannot_be_used_changes_nothing(X, tmp_path):
    who = np.repeat(["a", "b", "c"], 80)
    ours = FedEM(3, workers=who, random_state=0, participation=0.6).partial_fit(X)
    before, state = ours.means_, ours._draws.bit_generator.state
    bad = X.copy()
    bad[3, 1] = np.nan
    for rows, more, why in [
        (bad, {}, "row 3, feature 1"),
        (X[:, :2], {}, "2 features"),
        (X, {"sample_weight": [1, 2]}, "240 numbers"),
        (X, {"sample_weight": np.zeros(240)}, "weights"),
        (X[:50], {}, "workers are those of 240 rows, but this batch has 50"),
        (X, {"workers": 2}, "a batch has worker 'worker 0', but the first had 'a', 'b', 'c'"),
        (X, {"workers": ["d"] * 240}, "a batch has worker 'd'"),
        (X, {"workers": [3] * 240}, "given to worker 3"),
    ]:
        with pytest.raises(ValueError, match=why):
            ours.partial_fit(rows, **more)
    with pytest.raises(NumericalError, match=r"no longer finite|too large"):
        ours.partial_fit(1e200 * X)
    assert ours.n_batches_seen_ == 1
    assert ours._draws.bit_generator.state == state
    np.testing.assert_array_equal(ours.means_, before)
    ours.partial_fit(X[:40], workers={"b": range(30), "c": range(30, 40)})
    np.testing.assert_array_equal(ours.workers_.counts, [0, 30, 10])
    some = FedEM(3, workers=3).partial_fit(X, workers=[0] * 100 + [2] * 140)
    with pytest.raises(InputError, match="'worker 1' had no rows in the first batch"):
        some.partial_fit(X, workers=3)
    ours.save(tmp_path / "m.h5")
    with pytest.raises(InputError, match="a file keeps the model only"):
        vpem.load(tmp_path / "m.h5").partial_fit(X)
