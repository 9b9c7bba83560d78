"""What holds for every draw of data, partition, graph and covariance type."""

import warnings

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vpem import Blocks, Mixture, VpemWarning, connect, fit_vpem, make_graph
from vpem.network.partition import from_agent_of_feature
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.units import Scaling

kinds = st.sampled_from(COVARIANCE_TYPES)
seeds = st.integers(0, 2**32 - 1)
draws = settings(deadline=None, max_examples=40, derandomize=True)


@st.composite
def partitions(draw, most_features=6):
    """Agent of each feature; every agent holds one at least."""
    d = draw(st.integers(1, most_features))
    n = draw(st.integers(1, d))
    rest = draw(st.lists(st.integers(0, n - 1), min_size=d - n, max_size=d - n))
    return from_agent_of_feature(draw(st.permutations([*range(n), *rest])))


@st.composite
def data_of(draw, d, least_rows=20):
    """Overlapping clusters of any size and unit, some rows twice, some features skewed."""
    rng = np.random.default_rng(draw(seeds))
    m = draw(st.integers(least_rows, 150))
    centres = rng.normal(size=(4, d)) * draw(st.floats(0, 5))
    X = centres[rng.integers(4, size=m)] + rng.standard_t(4, size=(m, d))
    if draw(st.booleans()):
        X[rng.integers(m, size=m // 4)] = X[rng.integers(m)]
    if draw(st.booleans()):
        X[:, 0] = np.exp(np.clip(X[:, 0], -5, 5))
    return X * 10.0 ** draw(st.integers(-3, 3)) + draw(st.sampled_from([0.0, 1.0, -100.0]))


def quiet_fit(X, network, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return fit_vpem(X, network, **options)


def quiet_connect(graph, partition, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return connect(graph, partition, **options)


def least_variance(mixture):
    """Smallest eigenvalue of any covariance."""
    if mixture.is_diagonal:
        return mixture.covariances.min()
    return min(np.linalg.eigvalsh(view).min() for view in mixture.covariance_blocks if view.size)


@given(st.data(), partitions(), kinds, st.integers(1, 5), seeds)
@draws
def test_log_likelihood_never_falls_with_exact_sums(data, partition, kind, k, seed):
    X = data.draw(data_of(partition.n_features, least_rows=40))
    init = data.draw(st.sampled_from(["random", "k-means++", "kmeans"]))
    network = connect(make_graph("star", partition.n_agents), partition, hops=0)
    reg_covar = 1e-10 * X.var(axis=0).max()
    fit = quiet_fit(
        X,
        network,
        n_components=k,
        covariance_type=kind,
        init=init,
        seed=seed,
        reg_covar=reg_covar,
        max_iter=60,
    )
    # Regularisation is no part of EM: nothing is promised of components that shrink down to it.
    assume(least_variance(fit.mixture) > 1e6 * reg_covar)
    history = fit.history[:, 0]
    change = np.diff(history)
    mended = {recovery.iteration for recovery in fit.recoveries}
    for i, step in enumerate(change, start=1):
        if i not in mended:
            assert step >= -1e-9 * max(abs(history[i - 1]), len(X)), (i, step, history[i - 1])
    assert np.isfinite(fit.history).all()


@given(st.data(), partitions(), kinds, st.integers(1, 4), seeds)
@draws
def test_responsibilities_sum_to_one_on_every_network(data, partition, kind, k, seed):
    X = data.draw(data_of(partition.n_features))
    topology = data.draw(st.sampled_from(["star", "cycle", "path", "tree", "complete"]))
    hops = data.draw(st.integers(0, 2))
    graph = make_graph(topology, partition.n_agents, seed=seed % 1000)
    rounds = {} if topology == "star" else {"n_rounds": 120}
    network = quiet_connect(graph, partition, hops=hops, **rounds)
    fit = quiet_fit(
        X, network, n_components=k, covariance_type=kind, seed=seed, max_iter=10, scale="standard"
    )
    mixture = fit.mixture
    proba = mixture.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-12)
    assert ((proba >= 0) & (proba <= 1)).all()
    np.testing.assert_allclose(mixture.weights.sum(axis=1), 1, rtol=1e-9)
    assert (mixture.weights >= 0).all()
    assert np.isfinite(mixture.score_samples(X)).all()
    spread = np.ptp(X, axis=0) + 1e-9 * np.abs(X).max()
    assert (mixture.assembled_means >= X.min(axis=0) - spread).all()
    assert (mixture.assembled_means <= X.max(axis=0) + spread).all()


@st.composite
def mixtures(draw):
    partition = draw(partitions())
    kind = draw(kinds)
    k = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(seeds))
    d, n = partition.n_features, partition.n_agents
    blocks = Blocks(partition.features, tuple(range(n)), tuple((i,) for i in range(n)))
    copies = 1 if kind.startswith("tied") else k
    if kind in ("full", "tied"):
        roots = [rng.normal(size=(copies, w, w)) for w in blocks.widths]
        parts = [r @ r.transpose(0, 2, 1) + 0.1 * np.eye(r.shape[1]) for r in roots]
        covariances = np.concatenate([part.ravel() for part in parts])
    else:
        own = rng.uniform(0.1, 3, size=(copies, d if kind.endswith("diag") else n))
        covariances = own if kind.endswith("diag") else own[:, blocks.block_of].copy()
    scaling = Scaling.none(d)
    if draw(st.booleans()):
        scaling = Scaling(rng.normal(size=d), rng.uniform(0.1, 10, size=d))
    weights = rng.dirichlet(np.ones(k), size=draw(st.sampled_from([1, n])))
    return Mixture(blocks, kind, weights, rng.normal(size=(k, d)), covariances, scaling)


@given(mixtures(), seeds)
@draws
def test_samples_have_the_moments_of_their_mixture(mixture, seed):
    X, labels = mixture.sample(4000, np.random.default_rng(seed))
    assert (np.diff(labels) >= 0).all()
    one = mixture.convert_to(
        Blocks.one(mixture.n_features), "full", Scaling.none(mixture.n_features)
    )
    weights, means, covariances = one.block(0)
    mean = weights @ means
    apart = means - mean
    covariance = np.tensordot(weights, covariances, axes=1) + (weights * apart.T) @ apart
    spread = np.sqrt(np.diag(covariance))
    assert (np.abs(X.mean(axis=0) - mean) < 6 * spread / np.sqrt(4000)).all()
    off = np.atleast_2d(np.cov(X.T)) - covariance
    assert np.abs(off / np.outer(spread, spread)).max() < 0.3


@given(mixtures(), seeds)
@draws
def test_one_block_and_back_is_the_same_density(mixture, seed):
    """Joining all blocks and splitting them again loses nothing."""
    X, _ = mixture.sample(30, np.random.default_rng(seed))
    d = mixture.n_features
    joined = mixture.convert_to(Blocks.one(d), "full", Scaling.none(d))
    again = joined.convert_to(mixture.blocks, mixture.covariance_type, mixture.scaling)
    wanted = mixture.score_samples(X)
    np.testing.assert_allclose(joined.score_samples(X), wanted, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(again.score_samples(X), wanted, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(again.means, mixture.means, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(again.covariances, mixture.covariances, rtol=1e-8, atol=1e-10)


@given(mixtures(), seeds)
@draws
def test_the_density_of_blocks_is_the_product_of_their_densities(mixture, seed):
    """Given the component; with one component, of the whole."""
    X, _ = mixture.sample(20, np.random.default_rng(seed))
    d, k = mixture.n_features, mixture.n_components
    joined = mixture.convert_to(Blocks.one(d), "full", Scaling.none(d))
    _, means, covariances = joined.block(0)
    scores = np.empty((20, k))
    for c in range(k):
        scores[:, c] = np.log(mixture.assembled_weights[c]) - 0.5 * d * np.log(2 * np.pi)
        for columns in mixture.blocks.features:
            block = covariances[c][np.ix_(columns, columns)]
            apart = X[:, columns] - means[c, columns]
            squares = (apart * np.linalg.solve(block, apart.T).T).sum(axis=1)
            scores[:, c] -= 0.5 * (np.linalg.slogdet(block)[1] + squares)
    wanted = np.logaddexp.reduce(scores, axis=1)
    np.testing.assert_allclose(mixture.score_samples(X), wanted, rtol=1e-8, atol=1e-8)
