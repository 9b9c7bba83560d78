"""Missing values are integrated out exactly: terms, M-steps, starts, predictions, refusals."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from vpem import (
    VPEM,
    DistributedGaussianMixture,
    connect_workers,
    fit_em,
    fit_vpem,
    make_graph,
)
from vpem.errors import InputError
from vpem.network.partition import Blocks, evenly
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import pattern_plan
from vpem.terms.mixture import Mixture
from vpem.terms.rows import SomeRows
from vpem.terms.units import Scaling

from .missing_support import (
    clusters,
    dense,
    fitted,
    network,
    observed_scores,
    random_mixture,
    with_holes,
)
from .tables import each, each_once, over

pytestmark = [
    pytest.mark.filterwarnings("ignore::vpem.errors.NotConvergedWarning"),
    pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning"),
]


# ---- terms --------------------------------------------------------------------------------------


@over(kind=COVARIANCE_TYPES, dtype=[np.float64, np.float32])
def test_terms_are_log_densities_of_what_is_observed(kind, dtype):
    rng = np.random.default_rng(1)
    blocks = Blocks(
        (np.array([3, 0]), np.array([5, 1, 4, 6]), np.array([2])), (0, 1, 2), ((0,),) * 3
    )
    mixture = random_mixture(rng, blocks, kind, 3)
    X = with_holes(rng.standard_normal((25, 7)), 2, 0.4)
    X[5, [0, 1]], X[:9, [5, 1, 4, 6]] = 1.0, np.nan
    X[np.isnan(X).all(axis=1), 0] = 0.5
    terms = FeatureTerms(X, blocks, kind, scaling=Scaling.none(7), dtype=dtype, missing=True)
    found = terms.local(terms.prepare(mixture), slice(0, 25))
    assert found.dtype == dtype
    means, covariances = dense(mixture)
    for b, columns in enumerate(blocks.features):
        for row in range(25):
            here = columns[~np.isnan(X[row, columns])]
            if len(here) == 0:
                assert (found[b, row] == 0).all()
                continue
            wanted = [
                -2 * multivariate_normal(mean[here], cov[np.ix_(here, here)]).logpdf(X[row, here])
                - len(here) * np.log(2 * np.pi)
                for mean, cov in zip(means, covariances, strict=True)
            ]
            tolerance = 1e-10 if dtype == np.float64 else 1e-4
            np.testing.assert_allclose(found[b, row], wanted, rtol=tolerance, atol=tolerance)


@each_once(scale=["none", "standard"], kind=COVARIANCE_TYPES)
def test_a_fit_reports_the_likelihood_of_what_is_observed(kind, scale):
    X = with_holes(clusters(0, 80), 1)
    weights = np.random.default_rng(2).uniform(0.2, 3, len(X))
    fit = fitted(
        X, network([[3, 1], [0, 2], [4]]), covariance_type=kind, scale=scale, max_iter=8,
        sample_weight=weights,
    )  # fmt: skip
    wanted = observed_scores(fit.mixture, X) @ weights
    assert fit.log_likelihood * fit.total_weight == pytest.approx(wanted, rel=1e-11)
    assert fit.bic == pytest.approx(fit.mixture.bic(wanted, weights.sum()), rel=1e-11)
    scores = fit.mixture.score_samples(X, missing="marginalize")
    np.testing.assert_allclose(scores, observed_scores(fit.mixture, X), rtol=1e-10)


def test_nearly_dependent_features_keep_their_digits():
    rng = np.random.default_rng(5)
    base = rng.standard_normal((40, 1))
    X = np.hstack([base, base + 1e-5 * rng.standard_normal((40, 1)), rng.standard_normal((40, 3))])
    blocks = Blocks.one(5)
    covariance = np.cov(X.T)
    mixture = Mixture(
        blocks, "full", np.ones((1, 1)), X.mean(axis=0)[None], covariance.ravel(), Scaling.none(5)
    )
    X[::2, 0], X[1::2, 1] = np.nan, np.nan
    found = mixture.score_samples(X, missing="marginalize")
    wanted = observed_scores(mixture, X)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_plan_lists_every_row_that_has_something_of_a_block_once():
    rng = np.random.default_rng(0)
    observed = (rng.random((600, 12)) > 0.5).astype(np.uint8)
    observed[:, :2] = 1
    blocks = Blocks(
        (np.arange(2), np.arange(2, 3), np.arange(3, 12)), (0, 1, 2), ((0,), (1,), (2,))
    )
    tiles, order, pattern = pattern_plan(observed, blocks)
    for b in range(3):
        own = observed[:, blocks.offsets[b] : blocks.offsets[b + 1]].astype(bool)
        listed = []
        for block, begin, end, direct in tiles:
            if block == b:
                rows = order[begin:end]
                assert 0 < len(rows) <= 256
                assert ((2 * own[rows].sum(axis=1) < own.shape[1]) == direct).all()
                ids = pattern[begin:end]
                same = ids[1:] == ids[:-1]
                assert (same == (own[rows[1:]] == own[rows[:-1]]).all(axis=1)).all()
                listed.extend(rows)
        assert sorted(listed) == list(np.flatnonzero(own.any(axis=1)))


# ---- fits ---------------------------------------------------------------------------------------


@each("kind", COVARIANCE_TYPES)
def test_with_nothing_missing_it_is_the_ordinary_fit(kind):
    X = clusters(1)
    net = network([[0, 1], [2], [3, 4]])
    ordinary = fit_vpem(X, net, covariance_type=kind, max_iter=10, n_threads=1)
    asked = fitted(X, net, covariance_type=kind, max_iter=10, seed=0)
    np.testing.assert_array_equal(asked.mixture.means, ordinary.mixture.means)
    # The terms that know of missing values, too.
    common = {"scaling": Scaling.none(5), "reg_covar": 1e-6}
    there = FeatureTerms(X, net.blocks, kind, **common)
    missing = FeatureTerms(X, net.blocks, kind, missing=True, **common)
    assert [one.gaps is not None for one in (there, missing)] == [False, True]
    np.testing.assert_allclose(missing.sample_covariance, there.sample_covariance, rtol=1e-12)
    mixture = there.start(X[[3, 9]])
    for _ in range(4):
        updated = []
        for terms in (there, missing):
            factors = terms.prepare(mixture)
            statistics = terms.empty(mixture.means, 1)
            found = terms.sweep(mixture, factors, np.ones((1, 3)), statistics)
            updated.append((found + terms.log_constant, terms.update(statistics)))
        (one, mixture), (two, other) = updated
        np.testing.assert_allclose(one, two, rtol=1e-12)
        for name in ("weights", "means", "covariances"):
            np.testing.assert_allclose(
                getattr(mixture, name), getattr(other, name), rtol=1e-11, atol=1e-12
            )


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(COVARIANCE_TYPES),
    k=st.integers(1, 3),
    share=st.floats(0.05, 0.7),
    parts=st.sampled_from(
        [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[0], [1, 2, 3]], [[0], [1], [2], [3]]]
    ),
    weighted=st.booleans(),
    party=st.booleans(),
)
def test_the_observed_likelihood_never_falls(seed, kind, k, share, parts, weighted, party):
    rng = np.random.default_rng(seed)
    X = with_holes(clusters(seed, 80, 4, k), seed + 1, share)
    if party:
        X[: len(X) // 3, parts[0]] = np.nan
        X[np.isnan(X).all(axis=1), 3] = 0.0
    weights = rng.uniform(0.1, 3, 80) if weighted else None
    fit = fitted(
        X, network(parts), n_components=k, covariance_type=kind, reg_covar=1e-9, max_iter=25,
        sample_weight=weights, init="random", seed=seed,
    )  # fmt: skip
    if not fit.recoveries:
        steps = np.diff(fit.history[:, 0]) / fit.total_weight
        assert (steps > -1e-8).all(), steps.min()


def plain_em(X, mean, cov, weights, n_iter):
    """EM for a Gaussian mixture with missing values, row by row."""
    mean, cov, weights = mean.copy(), cov.copy(), weights.copy()
    k, d = mean.shape
    for _ in range(n_iter):
        logs = np.empty((len(X), k))
        filled, extra = np.empty((len(X), k, d)), np.zeros((len(X), k, d, d))
        for i, x in enumerate(X):
            o = ~np.isnan(x)
            for c in range(k):
                S = cov[c]
                logs[i, c] = np.log(weights[c]) + multivariate_normal(
                    mean[c][o], S[np.ix_(o, o)]
                ).logpdf(x[o])
                gain = S[np.ix_(~o, o)] @ np.linalg.inv(S[np.ix_(o, o)])
                filled[i, c, o] = x[o]
                filled[i, c, ~o] = mean[c][~o] + gain @ (x[o] - mean[c][o])
                extra[i, c][np.ix_(~o, ~o)] = S[np.ix_(~o, ~o)] - gain @ S[np.ix_(o, ~o)]
        g = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
        n = g.sum(axis=0)
        weights = n / n.sum()
        mean = np.einsum("ik,ikd->kd", g, filled) / n[:, None]
        away = filled - mean
        cov = np.einsum("ik,ikd,ike->kde", g, away, away) + np.einsum("ik,ikde->kde", g, extra)
        cov /= n[:, None, None]
    return mean, cov, weights


def test_one_block_is_the_em_of_the_textbook():
    X = with_holes(clusters(6, 60, 4, 2), 7)
    net = network([[0, 1, 2, 3]])
    begin = fitted(X, net, max_iter=1, reg_covar=0.0)
    after = fitted(X, net, max_iter=4, reg_covar=0.0, init=begin.mixture, tol=0)
    _, cov = dense(begin.mixture)
    mean, cov, weights = plain_em(
        X, begin.mixture.assembled_means, cov, begin.mixture.assembled_weights, 4
    )
    np.testing.assert_allclose(after.mixture.assembled_means, mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(dense(after.mixture)[1], cov, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(after.mixture.assembled_weights, weights, rtol=1e-9)


def test_rows_that_a_party_lacks_are_left_out_of_its_update():
    rng = np.random.default_rng(8)
    X = clusters(8, 90, 4, 2)
    lacks = rng.random(90) < 0.4
    X[lacks, 2:] = np.nan
    net = network([[0, 1], [2, 3]])
    begin = fitted(X, net, max_iter=2)
    g = begin.mixture.predict_proba(X, missing="marginalize")
    after = fitted(X, net, max_iter=1, init=begin.mixture, reg_covar=0.0).mixture
    np.testing.assert_allclose(after.assembled_weights, g.mean(axis=0), rtol=1e-10)
    for columns, rows in ((slice(0, 2), np.arange(90)), (slice(2, 4), np.flatnonzero(~lacks))):
        own, part = g[rows], X[rows, columns]
        n = own.sum(axis=0)
        mean = own.T @ part / n[:, None]
        np.testing.assert_allclose(after.assembled_means[:, columns], mean, rtol=1e-9)
        for k in range(2):
            cov = (own[:, k, None] * (part - mean[k])).T @ (part - mean[k]) / n[k]
            block = after.assembled_covariances[k, columns, columns]
            np.testing.assert_allclose(block, cov, rtol=1e-9, atol=1e-12)


@each_once(kind=COVARIANCE_TYPES, init=["random", "k-means++", "kmeans", [4, 40]])
def test_row_split_is_one_agent_with_all_features(kind, init):
    X = with_holes(clusters(9, 80, 3), 10)
    weights = np.random.default_rng(1).uniform(0.5, 2, 80)
    options = {"covariance_type": kind, "init": init, "max_iter": 6, "sample_weight": weights,
               "missing": "marginalize", "scale": "standard", "n_threads": 1}  # fmt: skip
    one = fit_vpem(X, network([[0, 1, 2]]), **options)
    rows = fit_em(X, evenly(80, 7), connect_workers(make_graph("star", 7), n_threads=1), **options)
    assert rows.log_likelihood == pytest.approx(one.log_likelihood, abs=1e-10)
    np.testing.assert_allclose(rows.mixture.means, one.mixture.means, atol=1e-10)
    np.testing.assert_allclose(rows.mixture.covariances, one.mixture.covariances, atol=1e-10)


def test_hubs_that_span_parties_marginalise_what_one_of_them_lacks():
    X = clusters(13, 150, 6)
    net, options = network([[0, 1], [2, 3], [4, 5]], "path", hops=1), {"max_iter": 10, "tol": 0}
    plain = fitted(X, net, init=[1, 2], **options)
    X[:60, 2:4] = np.nan
    fit = fitted(X, net, init=[1, 2], **options)
    wanted = observed_scores(fit.mixture, X).sum()
    assert fit.root_log_likelihood.mean() == pytest.approx(wanted, rel=1e-5)
    assert fit.communication == plain.communication


def test_a_block_that_a_component_never_sees_keeps_its_parameters():
    rng = np.random.default_rng(22)
    X = np.vstack([rng.standard_normal((50, 4)), 30 + rng.standard_normal((50, 4))])
    X[:50, 2:] = np.nan
    for kind in COVARIANCE_TYPES:
        fit = fitted(X, network([[0, 1], [2, 3]]), covariance_type=kind, max_iter=20)
        assert not fit.recoveries
        assert np.isfinite(fit.log_likelihood)
        np.testing.assert_allclose(np.sort(fit.mixture.assembled_weights), 0.5, atol=0.02)


def test_components_that_collapse_are_placed_anew():
    X = with_holes(clusters(23, 40, 3), 24)
    X[:3] = 50.0
    start = fitted(X, network([[0, 1, 2]]), n_components=3, init=[0, 10, 20], max_iter=1).mixture
    means = start.means.copy()
    means[2] = 1e6
    fit = fitted(
        X, network([[0, 1, 2]]), n_components=3, init=replace(start, means=means), max_iter=5
    )
    assert fit.recoveries
    assert np.isfinite(fit.mixture.means).all()


def test_rows_with_nothing_take_no_part():
    X = with_holes(clusters(25, 60), 26)
    more = np.insert(X, [0, 10, 60], np.nan, axis=0)
    net = network([[0, 1, 2], [3, 4]])
    without, fit = fitted(X, net, max_iter=5), fitted(more, net, max_iter=5)
    np.testing.assert_array_equal(fit.mixture.means, without.mixture.means)
    assert fit.total_weight == 60
    assert fit.n_samples == 63
    scores = fit.mixture.score_samples(more[:1], missing="marginalize")
    proba = fit.mixture.predict_proba(more[:1], missing="marginalize")
    assert scores[0] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(proba[0], fit.mixture.assembled_weights)
    with pytest.raises(InputError, match="positive sample weight, and a value; take another"):
        fitted(more, net, init=[0, 5])


@each("init", ["random", "k-means++", "kmeans"])
def test_starts_find_clusters_that_lie_apart(init):
    rng = np.random.default_rng(27)
    labels = rng.integers(3, size=240)
    X = np.array([[0.0] * 6, [9] * 6, [-9] * 6])[labels] + rng.standard_normal((240, 6))
    X = with_holes(X, 28, 0.5)
    fit = fitted(X, network([[0, 1], [2, 3], [4, 5]]), n_components=3, init=init, n_init=5)
    means = np.sort(fit.mixture.assembled_means.mean(axis=1))
    np.testing.assert_allclose(means, [-9, 0, 9], atol=0.5)


# ---- estimators ---------------------------------------------------------------------------------


def test_estimators_take_missing_values_when_asked():
    X = with_holes(clusters(29, 100), 30)
    for model in (
        VPEM(2, agents=[[0, 1], [2, 3, 4]], graph="star", hops=0, missing="marginalize"),
        DistributedGaussianMixture(2, workers=3, missing="marginalize"),
    ):
        model.set_params(max_iter=20, random_state=0, n_threads=1).fit(X)
        np.testing.assert_allclose(
            model.score_samples(X), observed_scores(model.mixture_, X), rtol=1e-9
        )
        assert (model.predict(X) == model.predict_proba(X).argmax(axis=1)).all()
        assert model.bic(X) == pytest.approx(
            model.mixture_.bic(observed_scores(model.mixture_, X).sum(), 100)
        )
        with pytest.raises(InputError, match="is NaN"):
            model.set_params(missing="refuse").predict(X)


# ---- refusals -----------------------------------------------------------------------------------


def holed(value=np.nan, place=(slice(None), 3)):
    X = with_holes(clusters(33, 50), 34)
    X[place] = value
    return X


@each(
    ("X", "options", "said"),
    [
        (holed(0.0), {"missing": "refuse"}, "is NaN; .* or integrate them out with missing"),
        (holed(), {"missing": "drop"}, "missing must be"),
        (holed(np.inf, (4, 1)), {}, "row 4, feature 1 is inf; fill in"),
        (holed(), {}, "feature 3 is missing in every row"),
        (np.full((20, 5), np.nan), {}, "no row that is used has a value"),
    ],
)
def test_what_is_refused(X, options, said):
    with pytest.raises(InputError, match=said):
        fitted(X, network([[0, 1, 2], [3, 4]]), **options)


def test_gaps_that_nobody_spoke_of_are_refused_by_workers_and_models():
    X = holed(0.0)
    row, column = np.argwhere(np.isnan(X))[0]
    with pytest.raises(InputError, match=f"row {row}, feature {column} is NaN; .* or integrate"):
        fit_em(X, evenly(50, 2), connect_workers(make_graph("star", 2)))
    with pytest.raises(InputError, match="row 0"):
        fitted(X, network([[0, 1, 2], [3, 4]])).mixture.score_samples(
            np.array([[np.inf, np.nan, 0, 0, 0]]), missing="marginalize"
        )


def test_rows_that_miss_values_are_read_a_chunk_at_a_time():
    """And are those rows, however they are read: of the fit's rows there is no other copy."""
    rng = np.random.default_rng(0)
    every, chosen = rng.standard_normal((9, 2)), np.array([1, 4, 5, 8])
    some, wanted = SomeRows(every, chosen), every[chosen]
    assert list(some.runs()) == [slice(0, 4)]
    first = some.read(slice(1, 3))
    np.testing.assert_array_equal(first, wanted[1:3])
    assert np.shares_memory(some.read(slice(1, 3)), first)  # an M-step has what the E-step had
    np.testing.assert_array_equal(some.read(slice(0, 4)), wanted)
    np.testing.assert_array_equal(some.read(slice(3, 4)), wanted[3:])
    np.testing.assert_array_equal(some.take(np.array([3, 0])), wanted[[3, 0]])
    np.testing.assert_array_equal(some.slice_rows(slice(1, 4)).read(slice(0, 2)), wanted[1:3])
    assert np.shares_memory(every, some._rows)
