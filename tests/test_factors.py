"""Factors that hubs share: the textbook's mixture of factor analysers, however hubs sum."""

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.decomposition import FactorAnalysis

from vpem import VPEM, InputError, connect, fit_vpem, make_graph
from vpem.files.models import Model, read_model, write_model
from vpem.fits.selection.trials import ByFeatures
from vpem.fits.spread import fit_spread, own_columns
from vpem.fits.spread_rows import SpreadRows
from vpem.network.partition import Partition, contiguous
from vpem.settings import COVARIANCE_TYPES
from vpem.sums.connect import spread
from vpem.terms.factors import FactorMixture, Posterior

from .missing_support import dense
from .thread_engine import together

pytestmark = pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")

HELD = Partition(tuple(map(np.array, ([0, 4], [1, 2, 5], np.arange(0), [3]))), tuple("abcd"))
START = [3, 77]


def correlated(n_rows=160, seed=1):
    """Two overlapping clusters, each with correlations of its own across parties."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n_rows) % 2
    mixing = rng.standard_normal((2, 6, 2))
    factors = np.einsum("mdq,mq->md", mixing[groups], rng.standard_normal((n_rows, 2)))
    return 2 + factors + 0.5 * rng.standard_normal((n_rows, 6)) + groups[:, None], groups


X, GROUPS = correlated()


def fit(data=X, topology="star", network=None, engine=None, held=HELD, **options):
    """Four parties, one of which holds nothing, in one process or over the ranks of an engine."""
    options = {
        "n_components": 2, "n_factors": 2, "max_iter": 6, "tol": 0.0, "init": START,
        "reg_covar": 0.0, "n_threads": 1, **options,
    }  # fmt: skip
    joined = connect(make_graph(topology, held.n_agents), held, **{"hops": 0, **(network or {})})
    if engine is None:
        return fit_vpem(data, joined, **options)
    ranked = spread(joined, engine)
    columns = own_columns(ranked)
    own = data[:, columns] if len(columns) else None
    return fit_spread(own, ranked, **options)


def started(**options):
    """Parameters that a fit starts from, of all features in the user's order."""
    mixture = fit(max_iter=0, **options).mixture
    _, noise = dense(mixture.plain)
    return mixture.assembled_weights, mixture.assembled_means, noise, mixture.assembled_loadings


def same(found, wanted, tolerance=1e-10):
    """Iteration by iteration, and at the end."""
    np.testing.assert_allclose(found.history, wanted.history + 0 * found.history, tolerance)
    for name in ("weights", "means", "covariances", "loadings"):
        ours, theirs = getattr(found.mixture, name), getattr(wanted.mixture, name)
        np.testing.assert_allclose(ours, theirs + 0 * ours, tolerance, 100 * tolerance)


def projected(noise, blocks, kind, shares):
    """Noise (K, d, d) of unexplained second moments, of the structure that a covariance type has.

    It is the M-step: the mean over what parameters are shared by.
    """
    if kind.startswith("tied"):
        noise = np.broadcast_to(np.tensordot(shares, noise, axes=1), noise.shape)
    found = np.zeros_like(noise)
    for own in blocks:
        place = np.ix_(range(len(noise)), own, own)
        part = noise[place]
        if "diag" in kind or "spherical" in kind:
            part = part * np.eye(len(own))
        if "spherical" in kind:
            mean = np.trace(part, axis1=1, axis2=2) / max(len(own), 1)
            part = mean[:, None, None] * np.eye(len(own))
        found[place] = part
    return found


def textbook(X, blocks, kind, start, n_iter, sample_weight=None):
    """Ghahramani and Hinton (1996): log-likelihoods before each step, and parameters at the end.

    ``start`` is (weights, means, noise (K, d, d), loadings (K, d, q)).
    """
    weights, means, noise, loadings = (np.array(part) for part in start)
    (k, d, q), history = loadings.shape, []
    given = np.ones(len(X)) if sample_weight is None else sample_weight
    for _ in range(n_iter):
        logs, expected, spread = np.empty((len(X), k)), [], []
        for j in range(k):
            covariance = loadings[j] @ loadings[j].T + noise[j]
            off = X - means[j]
            solved = np.linalg.solve(covariance, off.T).T
            log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
            logs[:, j] = np.log(weights[j]) - 0.5 * ((off * solved).sum(axis=1) + log_det)
            expected.append(solved @ loadings[j])
            back = np.linalg.solve(covariance, loadings[j])
            spread.append(np.eye(q) - loadings[j].T @ back)
        totals = logsumexp(logs, axis=1)
        history.append(given @ totals)
        shares = np.exp(logs - totals[:, None]) * given[:, None]
        counts = shares.sum(axis=0)
        weights, unexplained = counts / counts.sum(), np.empty((k, d, d))
        for j in range(k):
            regressors = np.column_stack([expected[j], np.ones(len(X))])
            squares = (regressors * shares[:, [j]]).T @ regressors
            squares[:q, :q] += counts[j] * spread[j]
            crossed = (X * shares[:, [j]]).T @ regressors
            found = crossed @ np.linalg.inv(squares)
            loadings[j], means[j] = found[:, :q], found[:, q]
            second = (X * shares[:, [j]]).T @ X - found @ crossed.T
            unexplained[j] = second / counts[j]
        noise = projected(unexplained, blocks, kind, weights)
    return np.array(history), (weights, means, noise, loadings)


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_em_is_that_of_all_features_in_one_place(kind):
    found = fit(covariance_type=kind, max_iter=12)
    blocks = [own for own in HELD.features if len(own)]
    start = started(covariance_type=kind)
    history, (weights, means, noise, loadings) = textbook(X, blocks, kind, start, 12)
    np.testing.assert_allclose(found.history[:, 0], history, 1e-10)
    assert (np.diff(history) > 0).all()
    mixture = found.mixture
    for ours, theirs in (
        (mixture.assembled_weights, weights),
        (mixture.assembled_means, means),
        (mixture.assembled_loadings, loadings),
        (mixture.assembled_covariances, noise + loadings @ loadings.swapaxes(1, 2)),
        (mixture.score_samples(X).sum(), found.log_likelihood * len(X)),
    ):
        np.testing.assert_allclose(ours, theirs, 1e-8, 1e-10)


def test_one_component_of_one_feature_each_is_factor_analysis():
    rng = np.random.default_rng(5)
    data = rng.standard_normal((300, 1)) * [1, 2, -1, 1, 0.5, 1] + rng.standard_normal((300, 6))
    how = {"tol": 1e-12, "max_iter": 4000, "accelerate": "squarem", "held": contiguous(6, 6)}
    found = fit(data, n_components=1, n_factors=1, init=[0], **how)
    theirs = FactorAnalysis(1, tol=1e-9, max_iter=3000, svd_method="lapack").fit(data)
    assert abs(found.log_likelihood - theirs.score(data)) < 1e-9
    own, other = found.mixture.assembled_loadings[0], theirs.components_.T
    np.testing.assert_allclose(own @ own.T, other @ other.T, atol=1e-5)
    np.testing.assert_allclose(
        np.diag(found.mixture.assembled_covariances[0] - own @ own.T),
        theirs.noise_variance_, atol=1e-5,
    )  # fmt: skip


def test_without_factors_it_is_vp_em_and_with_one_hub_factors_add_nothing():
    plain = fit(n_factors=0)
    assert type(plain.mixture).__name__ == "Mixture"
    together_ = fit(held=contiguous(6, 1), max_iter=400, tol=1e-9, n_factors=1)
    alone = fit(held=contiguous(6, 1), max_iter=400, tol=1e-9, n_factors=0)
    assert abs(together_.log_likelihood - alone.log_likelihood) < 1e-5


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_the_error_of_few_rounds_breaks_nothing():
    few = {"topology": "cycle", "held": contiguous(6, 6), "max_iter": 30}
    assert np.isfinite(fit(network={"n_rounds": 9, "acceleration": "none"}, **few).history).all()
    grams = np.array([[[[-0.2, 0.1], [0.1, 3.0]]]])
    values = np.linalg.eigvalsh(Posterior.from_grams(grams).covariances)
    assert (values > 0).all()
    assert (values < 1 + 1e-12).all()


@pytest.mark.parametrize("network", [{}, {"secure_sum": True}])
def test_responsibilities_go_home(network):
    found = fit(held=contiguous(6, 3), network=network, labels=[0, 2])
    wanted = found.mixture.predict_proba(X)
    for shares in found.responsibilities.values():
        np.testing.assert_allclose(shares, wanted, 1e-6, 1e-7)
    assert len(found.responsibilities) == 2


def test_groups_that_differ_by_correlations_across_hubs_are_found():
    rng = np.random.default_rng(0)
    spread_, groups = np.array([[1, 0.9], [0.9, 1]]), np.repeat([0, 1], 1000)
    turned = spread_ * [[1, -1], [-1, 1]]
    data = np.vstack([rng.multivariate_normal([0, 0], one, 1000) for one in (spread_, turned)])
    common = {"n_components": 2, "graph": "star", "hops": 0, "accelerate": "squarem"}
    pooled = VPEM(agents=[[0, 1]], n_init=2, **common).fit(data)
    for seed in range(3):
        model = VPEM(agents=[[0], [1]], n_factors=1, random_state=seed, **common).fit(data)
        assert abs(model.score(data) - pooled.score(data)) < 1e-4
        right = (model.predict(data) == groups).mean()
        assert max(right, 1 - right) > 0.85
        assert model.loadings_.shape == (2, 2, 1)
        products = model.precisions_ @ model.covariances_
        np.testing.assert_allclose(products, np.broadcast_to(np.eye(2), products.shape), atol=1e-9)


# ---- models ------------------------------------------------------------------------------------


def test_models_are_kept_used_and_begun_from(tmp_path):
    found = fit(max_iter=30, scale="standard").mixture
    names = tuple("uvwxyz")
    write_model(tmp_path / "m.h5", Model(found, names, {}, np.zeros((0, 4))))
    read = read_model(tmp_path / "m.h5").mixture
    assert isinstance(read, FactorMixture)
    np.testing.assert_array_equal(read.score_samples(X), found.score_samples(X))
    np.testing.assert_allclose(found.joint.score_samples(X), found.score_samples(X), 1e-10)
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    holes[7] = np.nan
    ours, wanted = (one.score_samples(holes, missing="marginalize") for one in (found, found.joint))
    np.testing.assert_allclose(ours, wanted, 1e-9, 1e-10)
    drawn, labels = found.sample(40000, np.random.default_rng(3))
    for k, covariance in enumerate(found.assembled_covariances):
        np.testing.assert_allclose(np.cov(drawn[labels == k].T), covariance, atol=0.15)
    swapped = found.permuted(np.array([1, 0]))
    np.testing.assert_allclose(swapped.score_samples(X), found.score_samples(X), 1e-12)
    again = fit(init=found, max_iter=0, scale="standard", held=contiguous(6, 3))
    assert again.mixture.n_factors == 2
    fewer = fit(init=found, max_iter=0, n_factors=0).mixture
    for k in range(2):
        whole = found.assembled_covariances[k][np.ix_([1, 2, 5], [1, 2, 5])]
        np.testing.assert_allclose(dense(fewer)[1][k][np.ix_([1, 2, 5], [1, 2, 5])], whole, 1e-9)
    assert found.n_parameters == fewer.n_parameters + 2 * (6 * 2 - 1)


@pytest.mark.parametrize("secure_sum", [False, True])
def test_parties_use_a_model_together(secure_sum):
    found = fit(max_iter=30, scale="standard").mixture

    def work(engine):
        from vpem.engines.placement import Placement

        place = Placement.evenly(engine, 4, HELD.names)
        own = np.concatenate([np.empty(0, int), *(HELD.features[one] for one in place.own)])
        rows = SpreadRows(X[:, own], HELD, range(6), place, tuple("uvwxyz"), secure_sum=secure_sum)
        return rows.posteriors(found)

    for proba, scores in together(2, work):
        np.testing.assert_allclose(scores, found.score_samples(X), 1e-7)
        np.testing.assert_allclose(proba, found.predict_proba(X), 1e-6, 1e-8)


def test_rows_held_out_are_judged_by_what_processes_know_together():
    joined = connect(make_graph("star", 3), contiguous(6, 3), hops=0)

    def work(engine):
        ranked = spread(joined, engine)
        held = ByFeatures(X[:, own_columns(ranked)], ranked, None, None, "refuse")
        how = {"n_components": 2, "n_factors": 1, "max_iter": 5, "init": START, "n_threads": 1}
        return held.judge(held.fit(np.arange(100), how), np.arange(100, 160)).log_likelihood

    plain = fit(X[:100], held=contiguous(6, 3), n_factors=1, max_iter=5, reg_covar="auto", tol=1e-7)
    wanted = plain.mixture.score_samples(X[100:]).sum()
    np.testing.assert_allclose(together(2, work), wanted, 1e-9)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"n_factors": 7}, "more than there are features, 6"),
        ({"dtype": "float32"}, "leaves few digits"),
        ({"batch_size": 40}, "have moved and turned"),
        ({"accelerate": "local:8"}, "depend on the features of all"),
        (
            {"topology": "cycle", "network": {"link_failure": 0.1}},
            "by which agents were heard",
        ),
        ({"topology": "cycle", "network": {"compress": "natural:12bits"}}, "mistaken for such"),
        ({"data": np.where(X > 4, np.nan, X), "missing": "marginalize"}, "how well it knows"),
    ],
)
def test_what_factors_do_not_go_with_is_said(how, why):
    with pytest.raises(InputError, match=why):
        fit(**how)


def test_labels_of_some_rows_are_a_term_beside_factors():
    known = np.where(np.arange(len(X)) < 60, GROUPS, -1)
    found = fit(labels_for_fit=known, max_iter=40, held=contiguous(6, 3), init="kmeans")
    shares = fit(labels_for_fit=known, max_iter=40, held=contiguous(6, 3), init="kmeans",
                 topology="path", network={"sum": "tree"})  # fmt: skip
    same(found, shares, 1e-8)
    assert (np.diff(found.history[:, 0]) > -1e-8).all()
    assert (found.mixture.predict(X)[:60] == GROUPS[:60]).mean() > 0.8
