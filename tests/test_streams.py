"""Batches of a stream, by `partial_fit`: held against the algorithms written out in NumPy."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import vpem
from vpem import VPEM, FedEM, InputError, NumericalError, VpemWarning
from vpem.settings import COVARIANCE_TYPES

from .tables import each, over

pytestmark = pytest.mark.filterwarnings("ignore:steps of")


def batches(X, size):
    return [X[begin : begin + size] for begin in range(0, len(X), size)]


def features(**options):
    return VPEM(**{"n_components": 3, "graph": "star", "hops": 0, "random_state": 0, **options})


def rows(**options):
    return FedEM(**{"n_components": 3, "workers": 3, "random_state": 0, **options})


def streamed(X, size, make, **options):
    ours = make(**options)
    for part in batches(X, size):
        ours.partial_fit(part)
    return ours


@pytest.fixture
def X(overlapping):
    return overlapping(8, 240, 3) + 2.0


@pytest.fixture(scope="module")
def many(overlapping):
    """Rows of two clusters, and how well fits of all at once know them."""
    X = overlapping(1, 3000, 4)
    whole = {kind: rows(n_components=2, covariance_type=kind) for kind in ("full", "diag")}
    whole["blocks"] = features(n_components=2, init="k-means++")
    return X, {kind: one.fit(X).score(X) for kind, one in whole.items()}


# ---- against the algorithms ----------------------------------------------------------------------


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
        new, held = X[part], who[part]
        there = np.flatnonzero(np.bincount(held, minlength=3))
        A = there[rng.random(len(there)) < chances[there]]
        theta = maximize(S, k, d)
        D = np.array([expect(new[held == i], *theta) - S - V[i] for i in A]).reshape(-1, len(S))
        if memory == "naive":
            H = rho[A] @ D / (rho[A].sum() or 1)
        else:
            H = rho @ V + (rho[A] / chances[A]) @ D
        V[A] += D * (memory == "zero")
        S = S + step * H
        if t == 0:
            rng = np.random.default_rng([4, 1, 1])
        assert ours.partial_fit(new, workers=held) is ours
        assert ours.n_batches_seen_ == ours.n_iter_ == t + 1
        found = (ours.weights_, ours.means_, ours.covariances_)
        for one, known in zip(found, maximize(S, k, d), strict=True):
            np.testing.assert_allclose(one, known, rtol=0, atol=1e-10)


@over(make=[features, rows], kind=COVARIANCE_TYPES, graph=["star", "cycle"], weighted=[False, True])
def test_a_stream_of_one_component_is_a_weighted_mean(make, kind, graph, weighted, X):
    if make is rows and kind.startswith("tied"):
        return  # of which there is a known one only
    weights = np.random.default_rng(0).uniform(0.5, 2, 240) if weighted else np.ones(240)
    how = {"agents": 1, "step_size": 0.6} if make is features else {}
    ours = make(n_components=1, graph=graph, covariance_type=kind, reg_covar=0.0, **how)
    mean, second, shares = np.zeros(3), np.zeros((3, 3)), None
    for t, (part, own) in enumerate(zip(batches(X, 60), batches(weights, 60), strict=True)):
        assert ours.partial_fit(part, sample_weight=own if weighted else None) is ours
        assert ours.n_batches_seen_ == ours.n_iter_ == t + 1
        rho = (t + 1) ** -0.6
        # Workers keep the shares of the first batch.
        masses = own.reshape(1 if make is features else 3, -1).sum(axis=1)
        shares = masses / masses.sum() if shares is None else shares
        heavy = own * np.repeat(shares / masses, 60 // len(masses))
        mean = mean + rho * (heavy @ part - mean)
        second = second + rho * ((part * heavy[:, None]).T @ part - second)
    np.testing.assert_allclose(ours.means_[0], mean, rtol=0, atol=1e-8)
    whole = second - np.outer(mean, mean)
    variances = np.diag(whole)
    known = {"full": whole, "diag": variances, "spherical": variances.mean()}
    found = np.atleast_2d(ours.covariances_)
    wanted = known[kind.removeprefix("tied-").replace("tied", "full")]
    np.testing.assert_allclose(found if kind == "tied" else found[0], wanted, rtol=0, atol=1e-8)


@each(
    ("make", "options"),
    [
        (features, {}),
        (rows, {}),
        (rows, {"participation": [1, 0.5, 0.8], "compress": "qsgd:5bits:3,9,30:inf"}),
        (rows, {"participation": "0,1;2,0;1", "graph": "path", "sum": "tree"}),
        (rows, {"graph": "cycle", "participation": 0.7}),
        (rows, {"covariance_type": "diag", "compress": "topk:0.8"}),
    ],
)
def test_a_stream_comes_close_to_the_fit(make, options, many):
    X, whole = many
    more = np.random.default_rng(1).permutation(np.tile(X, (4, 1)))
    stream = streamed(more, 300, make, n_components=2, **{"random_state": 1, **options})
    assert stream.n_batches_seen_ == 40
    kind = "blocks" if make is features else options.get("covariance_type", "full")
    assert stream.score(X) > whole[kind] - (0.05 if make is features else 0.06)


@each("how", [{}, {"graph": "cycle"}, {"graph": "complete", "agent_dropout": 0.2}])
def test_streams_are_compressed_and_agents_absent(how, overlapping):
    """Every batch has rows of its own, of which nobody knows anything yet."""
    data = overlapping(0, 1200, 6, 2)

    def sending(**more):
        # On a cycle of three a single round without a codec is exact.
        agents = 6 if how.get("graph") == "cycle" else 3
        ours = features(n_components=2, agents=agents, **how, **more)
        return ours, [
            ours.partial_fit(part).fit_.communication["bytes"] for part in batches(data, 200)
        ]

    packed, few = sending(compress="natural:12bits")
    plain, many = sending()
    assert abs(packed.score(data) - plain.score(data)) < 0.01
    if "agent_dropout" in how:
        # Others are absent from other batches.
        assert len(set(many[1:])) > 1
    else:
        assert max(few[1:]) < 0.8 * min(many[1:])


# ---- what lasts ----------------------------------------------------------------------------------

CODED = {"compress": "qsgd:4bits", "participation": 0.7}


@each(
    ("make", "how"),
    [
        (features, {"graph": "cycle"}),
        (rows, {}),
        (rows, CODED),
        (rows, {"graph": "cycle", "compress": "natural:12bits", "link_failure": 0.2}),
    ],
)
def test_a_stream_is_the_same_again_and_survives_pickling(X, make, how):
    one, two = streamed(X, 60, make, **how), make(**how)
    for part in batches(X, 60):
        two = pickle.loads(pickle.dumps(two)).partial_fit(part)
    np.testing.assert_array_equal(one.means_, two.means_)
    np.testing.assert_array_equal(one.covariances_, two.covariances_)
    if make is rows:
        np.testing.assert_array_equal(one.statistic_, two.statistic_)


def test_no_row_is_kept(X):
    small = len(pickle.dumps(streamed(X, 60, rows)))
    big = rows().partial_fit(np.tile(X, (20, 1)))
    # But for the numbers of the last batch's rows.
    assert len(pickle.dumps(big)) < small + 12 * 20 * len(X)


@each("make", [features, rows])
def test_a_stream_goes_on_from_a_fit_and_a_fit_forgets_it(X, make):
    ours = make().fit(X)
    before, n = ours.means_, ours.n_iter_
    ours.partial_fit(X[:60])
    assert (ours.n_batches_seen_, ours.n_iter_) == (2, n + 1)
    assert not np.array_equal(ours.means_, before)
    np.testing.assert_array_equal(ours.fit(X).means_, before)
    assert ours.n_batches_seen_ == 1


@over(make=[features, rows], kind=["full", "diag"])
def test_units_of_a_stream_change_nothing(make, kind, X):
    common = {"init": [0, 20, 40], "reg_covar": 0.0, "covariance_type": kind}
    one, two = (streamed(X, 60, make, scale=scale, **common) for scale in ("none", "standard"))
    np.testing.assert_allclose(one.means_, two.means_, rtol=1e-7, atol=1e-8)
    scaled = streamed(1e3 * X, 60, make, **common)
    np.testing.assert_allclose(scaled.means_, 1e3 * one.means_, rtol=1e-7)
    np.testing.assert_allclose(scaled.covariances_, 1e6 * one.covariances_, rtol=1e-6)


@each("kind", ["full", "diag", "spherical"])
def test_batches_with_gaps(kind, X):
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    holes[70] = np.nan
    holes[180:] = X[180:]
    common = {"covariance_type": kind, "n_components": 2}
    ours = streamed(holes, 60, rows, missing="marginalize", **common)
    assert ours.score(X) > streamed(X, 60, rows, **common).score(X) - 0.3
    assert ours.fit_.total_weight == 60


def test_messages_of_a_batch_are_those_of_its_rows_or_of_one_iteration(X):
    ours, sent = features(agents=3, graph="cycle").partial_fit(X), []
    for size in (40, 80, 120):
        told = ours.partial_fit(X[:size]).fit_.communication["by_kind"]
        sent.append(told["estep"]["bytes"])
        assert told["setup"]["bytes"] == 0
    assert sent[2] - sent[1] == sent[1] - sent[0] > 0.9 * sent[0]  # and a number a message
    ours = streamed(X, 60, rows, compress="qsgd:8bits")
    told, size = ours.fit_.communication["by_kind"], len(ours.statistic_)
    assert size == 3 + 9 + 18
    assert told["setup"]["bytes"] == 3 * 4 * 2  # how far out rows lie, and back
    assert told["server"]["bytes"] == 3 * (8 * size + 4 + size)


def test_a_component_that_the_stream_left_is_placed_anew(overlapping):
    X = overlapping(0, 300, 3, 1)
    ours = features(n_components=2, agents=1, init=[0, 1])
    ours.partial_fit(np.concatenate([X, X[:3] + 1e3]))
    ours.mixture_ = replace(ours.mixture_, means=ours.mixture_.means + np.array([[0.0], [1e4]]))

    def go_on():
        for _ in range(100):
            ours.partial_fit(X)
            if ours.fit_.recoveries:
                break

    with pytest.warns(VpemWarning, match="reinitialised .* at batch"):
        go_on()
    assert ours.fit_.recoveries[0].iteration == ours.n_batches_seen_
    assert np.abs(ours.means_).max() < 10


def test_a_known_covariance_may_be_tied(X):
    ours = streamed(X, 60, rows, covariance_type="tied", known_covariance=np.cov(X.T))
    np.testing.assert_allclose(ours.covariances_, np.cov(X.T), atol=1e-12)


# ---- what cannot be ------------------------------------------------------------------------------


@each(
    ("make", "options", "why"),
    [
        (features, {"step_size": 0.5}, "step_size must be a number above"),
        *((rows, options, why) for options, why in (
            ({"batch_size": 5}, "does not take batch_size: a worker takes all rows"),
            ({"variance_reduction": True}, "begins again with all rows"),
            ({"n_epochs": 3}, "no epochs"),
            ({"random_stop": True}, "ends when no batch follows"),
            ({"keep_trace": True}, "one fit to the same rows"),
            ({"secure_sum": True}, "that of the first batch"),
            ({"penalty": "ridge:0.1"}, "against which a penalty is weighed"),
            ({"covariance_type": "tied"}, "known_covariance"),
        )),
    ],
)  # fmt: skip
def test_what_a_stream_does_not_take(X, make, options, why):
    ours = make(**options)
    with pytest.raises(InputError, match=why):
        ours.partial_fit(X)
    assert not hasattr(ours, "mixture_")


def state_of(estimator):
    """What is not seen of an estimator, and later batches go on from."""
    draws = getattr(estimator, "_draws", None)
    return getattr(estimator, "_weight_seen", None), draws and draws.bit_generator.state


@each("make", [features, rows])
def test_a_batch_that_cannot_be_used_changes_nothing(X, make, tmp_path):
    who = np.repeat(["a", "b", "c"], 80)
    how = {"workers": who, "participation": 0.6} if make is rows else {}
    ours = make(**how).partial_fit(X)
    before, inside = ours.means_, state_of(ours)
    bad = np.where(np.arange(720).reshape(240, 3) == 10, np.nan, X)
    wrong = [
        (bad, {}, "row 3, feature 1"),
        (X[:, :2], {}, "2 features"),
        (X, {"sample_weight": [1, 2]}, "240 numbers"),
        (X, {"sample_weight": np.zeros(240)}, "weights"),
    ]
    if make is rows:
        wrong += [
            (X[:50], {}, "workers are those of 240 rows, but this batch has 50"),
            (X, {"workers": 2}, "a batch has worker 'worker 0', but the first had 'a', 'b', 'c'"),
            (X, {"workers": ["d"] * 240}, "a batch has worker 'd'"),
            (X, {"workers": [3] * 240}, "given to worker 3"),
        ]
    for data, more, why in wrong:
        with pytest.raises(ValueError, match=why):
            ours.partial_fit(data, **more)
    with pytest.raises(NumericalError, match=r"no longer finite|too large|log-likelihood of root"):
        ours.partial_fit(1e200 * X)
    assert ours.n_batches_seen_ == 1
    assert state_of(ours) == inside
    np.testing.assert_array_equal(ours.means_, before)


def test_workers_of_later_batches_are_those_of_the_first(X, tmp_path):
    ours = rows(workers=np.repeat(["a", "b", "c"], 80)).partial_fit(X)
    ours.partial_fit(X[:40], workers={"b": range(30), "c": range(30, 40)})
    np.testing.assert_array_equal(ours.workers_.counts, [0, 30, 10])
    some = rows().partial_fit(X, workers=[0] * 100 + [2] * 140)
    with pytest.raises(InputError, match="'worker 1' had no rows in the first batch"):
        some.partial_fit(X, workers=3)
    ours.save(tmp_path / "m.h5")
    with pytest.raises(InputError, match="a file keeps the model only"):
        vpem.load(tmp_path / "m.h5").partial_fit(X)
