"""What EM over split features must equal, whatever the data, and which options go together."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from vpem import Blocks, InputError, Mixture, VpemWarning, connect, fit_vpem, make_graph
from vpem.network.partition import contiguous, from_agent_of_feature, from_lists
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.units import Scaling

from .tables import each, over, pairs

KINDS = ("full", "diag", "spherical", "tied")
TIED = ("tied", "tied-diag", "tied-spherical")
ITERATIONS = 8
REG = 1e-6


def star(*parts):
    d = sum(len(part) for part in parts)
    return connect(make_graph("star", len(parts)), from_lists(parts, d), hops=0)


def alone(d):
    return star(list(range(d)))


@pytest.fixture(params=["breast cancer", "overlapping 0", "overlapping 1", "overlapping 2"])
def problem(request, breast_cancer, overlapping):
    """Data and the rows to start from."""
    if request.param == "breast cancer":
        return breast_cancer, [3, 77, 120]
    seed = int(request.param[-1])
    rows = np.random.default_rng(seed).choice(400, 3, replace=False)
    return overlapping(seed, 400, 5), rows.tolist()


# ---- scikit-learn --------------------------------------------------------------------------------


def sklearn_start(X, rows, kind):
    """Start at given rows: uniform weights, means there, sample covariance with divisor M."""
    d = X.shape[1]
    covariance = np.cov(X.T, bias=True) + REG * np.eye(d)
    variances = np.diag(covariance)
    precisions = {
        "full": np.linalg.inv(covariance)[None].repeat(len(rows), axis=0),
        "tied": np.linalg.inv(covariance),
        "diag": np.tile(1 / variances, (len(rows), 1)),
        "spherical": np.full(len(rows), 1 / variances.mean()),
    }[kind]
    uniform = np.full(len(rows), 1 / len(rows))
    return {"weights_init": uniform, "means_init": X[rows], "precisions_init": precisions}


def sklearn_after(X, rows, kind, n_iter):
    """The mixture after so many iterations, with its log-likelihood before each."""
    mixture = GaussianMixture(
        len(rows), covariance_type=kind, reg_covar=REG, tol=0, max_iter=n_iter,
        **sklearn_start(X, rows, kind),
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning):
        return mixture.fit(X)


@pytest.mark.filterwarnings("ignore:standard deviations of features")
@each("kind", KINDS)
def test_one_agent_is_scikit_learns_mixture(problem, kind, iterate):
    X, rows = problem
    options = {"n_components": 3, "covariance_type": kind, "init": rows, "reg_covar": REG}
    fit = iterate(X, alone(X.shape[1]), ITERATIONS, **options)
    theirs = sklearn_after(X, rows, kind, ITERATIONS)
    history = np.multiply(theirs.lower_bounds_, len(X))
    np.testing.assert_allclose(fit.history[:, 0], history, rtol=1e-8)
    assert fit.log_likelihood == pytest.approx(theirs.score(X), rel=1e-8)
    mixture = fit.mixture
    np.testing.assert_allclose(mixture.assembled_weights, theirs.weights_, rtol=1e-6)
    np.testing.assert_allclose(mixture.assembled_means, theirs.means_, rtol=1e-6, atol=1e-6)
    size = np.abs(theirs.covariances_).max()
    np.testing.assert_allclose(
        mixture.assembled_covariances, theirs.covariances_, rtol=1e-6, atol=1e-8 * size
    )
    if kind == "diag":
        singles = star(*([j] for j in range(X.shape[1])))
        fit = iterate(X, singles, ITERATIONS, n_components=3, init=rows, reg_covar=REG)
        wanted = np.broadcast_to(history[:, None], fit.history.shape)
        np.testing.assert_allclose(fit.history, wanted, rtol=1e-8)


@each(("kind", "same"), [("full", "diag"), ("tied", "tied-diag")])
def test_one_feature_an_agent_has_nothing_but_variances(problem, kind, same, iterate):
    X, rows = problem
    singles = star(*([j] for j in range(X.shape[1])))
    options = {"n_components": 3, "init": rows}
    one = iterate(X, singles, 6, covariance_type=kind, **options)
    two = iterate(X, alone(X.shape[1]), 6, covariance_type=same, **options)
    np.testing.assert_allclose(one.history[:, 0], two.history[:, 0], rtol=1e-10)
    np.testing.assert_allclose(one.mixture.assembled_means, two.mixture.assembled_means, rtol=1e-8)


# ---- plain NumPy ---------------------------------------------------------------------------------


def shape_covariance(covariance, kind):
    if kind in ("diag", "tied-diag"):
        return np.diag(np.diag(covariance))
    if kind in ("spherical", "tied-spherical"):
        return np.mean(np.diag(covariance)) * np.eye(len(covariance))
    return covariance


class PlainRoot:
    """What one hub's root holds, and nothing else."""

    def __init__(self, X, columns, rows, kind):
        self.X, self.kind, self.k = X[:, columns], kind, len(rows)
        self.weights = np.full(self.k, 1 / self.k)
        self.means = self.X[rows]
        start = np.atleast_2d(np.cov(self.X.T, bias=True)) + REG * np.eye(len(columns))
        self.covariances = [shape_covariance(start, kind)] * self.k

    def terms(self):
        columns = []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            centred = self.X - mean
            squares = (centred * np.linalg.solve(covariance, centred.T).T).sum(axis=1)
            columns.append(np.linalg.slogdet(covariance)[1] + squares)
        return np.column_stack(columns)

    def expect(self, sums, d):
        """Log-likelihood by this root's own estimate of the sum and its own mixing weights."""
        scores = np.log(self.weights) - 0.5 * sums
        self.gamma = scipy.special.softmax(scores, axis=1)
        constant = 0.5 * len(self.X) * d * np.log(2 * np.pi)
        return scipy.special.logsumexp(scores, axis=1).sum() - constant

    def maximise(self):
        counts = self.gamma.sum(axis=0)
        self.weights = counts / len(self.X)
        self.means = (self.gamma.T @ self.X) / counts[:, None]
        scatters = []
        for k in range(self.k):
            centred = self.X - self.means[k]
            scatters.append((self.gamma[:, k, None] * centred).T @ centred)
        if self.kind.startswith("tied"):
            shared = sum(scatters) / len(self.X)
            each = [shared] * self.k
        else:
            each = [scatter / count for scatter, count in zip(scatters, counts, strict=True)]
        ridge = REG * np.eye(self.X.shape[1])
        self.covariances = [shape_covariance(c + ridge, self.kind) for c in each]


def plain_vpem(X, features, rows, kind, n_iter, total):
    """Algorithms 1 and 2: ``total`` turns the blocks' terms into what each root has of the sum."""
    roots = [PlainRoot(X, columns, rows, kind) for columns in features]
    history = []
    for _ in range(n_iter):
        sums = total([root.terms() for root in roots])
        own = zip(roots, sums, strict=True)
        history.append([root.expect(estimate, X.shape[1]) for root, estimate in own])
        for root in roots:
            root.maximise()
    return np.array(history), roots


def plain_rounds(graph, hubs, n_rounds):
    """Consensus over Metropolis weights, written agent by agent."""
    n = graph.n_agents
    W = np.zeros((n, n))
    for i, j in graph.edges:
        W[i, j] = W[j, i] = 1 / (1 + max(graph.degrees[i], graph.degrees[j]))
    W += np.diag(1 - W.sum(axis=1))

    def total(terms):
        state = np.empty((n, *terms[0].shape))
        for own, hub in zip(terms, hubs, strict=True):
            state[list(hub.agents)] = n / len(hub.agents) * own
        for _ in range(n_rounds):
            state = np.tensordot(W, state, axes=1)
        return state[[hub.root for hub in hubs]]

    return total


def assert_same_parameters(mixture, roots, tolerance):
    for b, root in enumerate(roots):
        weights, means, covariances = mixture.block(b)
        units = mixture.scaling.take_features(mixture.blocks.features[b])
        means = units.undo(means)
        covariances = covariances * (
            units.scale**2 if mixture.is_diagonal else np.outer(units.scale, units.scale)
        )
        np.testing.assert_allclose(weights, root.weights, rtol=tolerance)
        scale = np.sqrt(np.diag(root.covariances[0]).max())
        np.testing.assert_allclose(means, root.means, rtol=tolerance, atol=tolerance * scale)
        for k, wanted in enumerate(root.covariances):
            found = covariances[k if len(covariances) > 1 else 0]
            found = np.diag(found) if found.ndim == 1 else found
            atol = tolerance * scale**2
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=atol)


def exactly(X, parts, rows, kind, iterate):
    """A fit over a star, and algorithm 1 in plain NumPy."""
    network = star(*parts)
    options = {"n_components": len(rows), "covariance_type": kind, "init": rows, "reg_covar": REG}
    fit = iterate(X, network, ITERATIONS, **options)
    features = network.blocks.features
    total = lambda terms: [sum(terms)] * len(terms)  # noqa: E731
    return fit, *plain_vpem(X, features, rows, kind, ITERATIONS, total)


@each("kind", [*KINDS, *TIED[1:]])
def test_exact_sum_over_blocks_is_block_diagonal_em(kind, overlapping, iterate):
    X, parts = overlapping(3, 300, 6), [[4, 0], [5], [1, 2, 3]]
    fit, history, roots = exactly(X, parts, [5, 50, 200], kind, iterate)
    np.testing.assert_allclose(fit.history, history, rtol=1e-10)
    assert_same_parameters(fit.mixture, roots, 1e-7)


def test_exact_sum_on_breast_cancer(breast_cancer, iterate):
    parts = [[j, j + 10, j + 20] for j in range(10)]
    fit, history, roots = exactly(breast_cancer, parts, [3, 77], "full", iterate)
    np.testing.assert_allclose(fit.history, history, rtol=1e-8)
    assert_same_parameters(fit.mixture, roots, 1e-6)


@pytest.mark.filterwarnings("ignore:.*rounds are too few:vpem.VpemWarning")
@over(
    path=["operator", "rounds"],
    how=[
        ("path", 0, 12, "full"),
        ("path", 1, 6, "full"),
        ("cycle", 1, 4, "full"),
        ("cycle", 1, 6, "tied"),
        ("tree", 0, 20, "diag"),
        ("tree", 1, 9, "tied-spherical"),
        ("grid", 1, 7, "spherical"),
        ("small-world", 0, 9, "tied-diag"),
    ],
)
def test_each_root_goes_by_its_own_estimate(how, path, overlapping, iterate):
    """Algorithm 2: no root learns more than its own estimate of the sum."""
    topology, hops, n_rounds, kind = how
    X, rows = overlapping(4, 250, 8), [9, 99, 149]
    graph = make_graph(topology, 8, seed=2)
    how = {"hops": hops, "n_rounds": n_rounds, "acceleration": "none", "consensus": path, "seed": 1}
    network = connect(graph, contiguous(8, 8), **how)
    fit = iterate(X, network, 5, n_components=3, covariance_type=kind, init=rows)
    total = plain_rounds(graph, network.hubs, n_rounds)
    # In units of fitting, whose constants need no sum.
    units, none = fit.mixture.scaling, Scaling.none(8)
    scaled = units.apply(X)
    history, roots = plain_vpem(scaled, network.blocks.features, rows, kind, 5, total)
    history = history - len(X) * np.log(units.scale).sum()
    np.testing.assert_allclose(fit.history, history, rtol=1e-9)
    assert_same_parameters(replace(fit.mixture, scaling=none), roots, 1e-6)
    # The roots do disagree, or this test would show nothing.
    assert np.ptp(history[-1]) > 1e-6 * np.abs(history[-1]).max()
    assert np.ptp(fit.mixture.weights, axis=0).max() > 1e-6


# ---- the same thing done otherwise ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*rounds are too few:vpem.VpemWarning")
@over(
    weights=["metropolis", "laplacian", "max-degree"],
    hops=[0, 1, 2],
    topology=["cycle", "path", "grid", "tree"],
)
def test_rounds_and_their_operator_agree(topology, hops, weights, overlapping, iterate):
    X = overlapping(5, 200, 12)
    graph = make_graph(topology, 12, seed=3)
    fits = []
    for path in ("operator", "rounds"):
        options = {"hops": hops, "n_rounds": 30, "weights": weights, "consensus": path}
        network = connect(graph, contiguous(12, 12), **options)
        fits.append(iterate(X, network, 4, n_components=3, init=[1, 80, 150]))
    one, two = fits
    np.testing.assert_allclose(one.history, two.history, rtol=1e-10)
    np.testing.assert_allclose(one.mixture.weights, two.mixture.weights, atol=1e-10)
    np.testing.assert_allclose(one.mixture.means, two.mixture.means, atol=1e-10)
    np.testing.assert_allclose(one.mixture.covariances, two.mixture.covariances, atol=1e-10)


def test_a_hub_is_an_agent_that_holds_its_features_and_who_relays_adds_nothing(
    overlapping, iterate
):
    X, options = overlapping(7, 300, 6), {"n_components": 2, "init": [7, 70]}
    network = connect(make_graph("cycle", 6), contiguous(6, 6), hops=1, n_rounds=300)
    with pytest.warns(UserWarning, match="only relays"):
        held = from_lists([[0, 1], [], [2, 3, 4, 5]], 6)
    relayed = connect(make_graph("path", 3), held, hops=0, n_rounds=200)
    assert relayed.blocks.widths.tolist() == [2, 0, 4]
    for one in (network, relayed):
        fit = iterate(X, one, 8, **options)
        parts = [part.tolist() for part in one.blocks.features if len(part)]
        server = iterate(X, star(*parts), 8, **options)
        np.testing.assert_allclose(fit.history[:, 0], server.history[:, 0], rtol=1e-10)


def test_which_hub_holds_what_first_does_not_matter(overlapping, iterate):
    X, options = overlapping(8, 300, 5), {"n_components": 3, "init": [7, 70, 270]}
    one = iterate(X, star([0, 1], [2, 3, 4]), 8, **options)
    two = iterate(X, star([4, 2, 3], [1, 0]), 8, **options)
    np.testing.assert_allclose(one.history, two.history, rtol=1e-11)
    ours, theirs = one.mixture, two.mixture
    np.testing.assert_allclose(ours.assembled_means, theirs.assembled_means, rtol=1e-8)
    np.testing.assert_allclose(
        ours.assembled_covariances, theirs.assembled_covariances, rtol=1e-8, atol=1e-10
    )


@each("kind", [*KINDS, *TIED[1:]])
def test_threads_change_nothing(kind, overlapping, iterate):
    X = overlapping(10, 20_000, 6)  # enough work for threads
    network = connect(make_graph("cycle", 6), contiguous(6, 6), hops=1, n_rounds=60)
    options = {"n_components": 3, "covariance_type": kind, "init": [1, 2, 3]}
    one, two = (iterate(X, network, 3, n_threads=n, **options) for n in (1, 2))
    np.testing.assert_array_equal(one.history, two.history)
    np.testing.assert_array_equal(one.mixture.means, two.mixture.means)
    np.testing.assert_array_equal(one.mixture.covariances, two.mixture.covariances)


@each("kind", [*KINDS, *TIED[1:]])
def test_single_precision_is_close_to_double(kind, overlapping, iterate):
    X = overlapping(11, 700, 6)
    network = connect(make_graph("cycle", 6), contiguous(6, 6), hops=1, n_rounds=60)
    options = {"n_components": 2, "covariance_type": kind, "init": [1, 2]}
    double, single = (iterate(X, network, 8, dtype=t, **options) for t in (np.float64, np.float32))
    np.testing.assert_allclose(single.history, double.history, rtol=1e-5)
    np.testing.assert_allclose(
        single.mixture.assembled_means, double.mixture.assembled_means, atol=1e-3
    )


@over(init=["random", "k-means++", "kmeans"], topology=["star", "cycle"])
def test_the_same_seed_gives_the_same_bits(init, topology, overlapping):
    X = overlapping(12, 300, 6)
    hops = 0 if topology == "star" else 1
    fits = []
    for _ in range(2):
        network = connect(make_graph(topology, 6), contiguous(6, 6), hops=hops, seed=5)
        fits.append(fit_vpem(X, network, n_components=3, init=init, seed=5, tol=1e-5))
    one, two = fits
    assert one.init_rows == two.init_rows
    for name in ("weights", "means", "covariances"):
        np.testing.assert_array_equal(getattr(one.mixture, name), getattr(two.mixture, name))
    np.testing.assert_array_equal(one.history, two.history)


# ---- units ---------------------------------------------------------------------------------------


@over(kind=["full", "diag", "tied"], topology=["star", "cycle"])
def test_scaling_is_undone(kind, topology, overlapping, iterate):
    units = np.array([1e-3, 1.0, 50.0, 1e4, 7.0, 0.1])
    X = overlapping(13, 300, 6) * units + 20 * units
    shift, scale = X.mean(axis=0), X.std(axis=0)
    how = {} if topology == "star" else {"n_rounds": 80}
    network = connect(make_graph(topology, 6), contiguous(6, 6), **how)
    options = {"n_components": 3, "covariance_type": kind, "init": [4, 44, 144]}
    fit = iterate(X, network, 9, scale="standard", **options)
    by_hand = iterate((X - shift) / scale, network, 9, **options)
    offset = len(X) * np.log(scale).sum()
    np.testing.assert_allclose(fit.history, by_hand.history - offset, rtol=1e-9)
    means = by_hand.mixture.assembled_means * scale + shift
    np.testing.assert_allclose(fit.mixture.assembled_means, means, rtol=1e-8)
    factor = scale**2 if kind == "diag" else np.outer(scale, scale)
    found = fit.mixture.assembled_covariances / factor
    np.testing.assert_allclose(found, by_hand.mixture.assembled_covariances, atol=1e-8)
    scores = by_hand.mixture.score_samples((X - shift) / scale) - np.log(scale).sum()
    np.testing.assert_allclose(fit.mixture.score_samples(X), scores, rtol=1e-8)
    np.testing.assert_array_equal(
        fit.mixture.predict(X), by_hand.mixture.predict((X - shift) / scale)
    )


def test_exact_fits_report_the_density_of_their_mixture(overlapping):
    X = overlapping(14, 300, 6)
    fit = fit_vpem(X, star([0, 1, 2], [3, 4, 5]), n_components=2, tol=1e-6)
    scores = fit.mixture.score_samples(X)
    assert fit.log_likelihood == pytest.approx(scores.mean(), rel=1e-10)
    np.testing.assert_allclose(fit.root_log_likelihood, scores.sum(), rtol=1e-10)
    assert fit.bic == pytest.approx(fit.mixture.bic(scores.sum(), 300), rel=1e-10)
    assert fit.aic == pytest.approx(fit.mixture.aic(scores.sum()), rel=1e-10)
    assert fit.history.shape == (fit.n_iter, 2)
    assert [hub.root for hub in fit.network.hubs] == [0, 1]


kinds = st.sampled_from(COVARIANCE_TYPES)
seeds = st.integers(0, 2**32 - 1)
draws = settings(deadline=None, max_examples=25, derandomize=True)


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


def quietly(make, *given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return make(*given, **options)


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
    fit = quietly(
        fit_vpem, X, network, n_components=k, covariance_type=kind, init=init, seed=seed,
        reg_covar=reg_covar, max_iter=40,
    )  # fmt: skip
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
    network = quietly(connect, graph, partition, hops=hops, **rounds)
    fit = quietly(
        fit_vpem,
        X,
        network,
        n_components=k,
        covariance_type=kind,
        seed=seed,
        max_iter=10,
        scale="standard",
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


WAYS = {"server": ("star", None), "tree": ("cycle", "tree"), "consensus": ("cycle", None)}
CODECS = (None, "qsgd:8bits", "topk:0.2")
LOSSY = ("topk:0.2",)
FAULTS = (None, "link_failure", "agent_dropout", "stragglers")
OTHERS = pairs(
    acceleration=(None, "none", "chebyshev"),
    path=("auto", "operator", "rounds"),
    eigenvalue=("computed", "estimated"),
    n_rounds=("auto", 30),
    batches=((None, None), (35, None), (35, 0.6), (None, 0.6)),
)


def reasons(way, codec, fault, acceleration, path, eigenvalue, n_rounds, batch, step):
    """Why it cannot be had, as docs/reference/communication.md has it; any of them may be given."""
    fixed = codec is None and fault is None
    found = set()
    exact = way != "consensus"
    if way == "server" and fault is not None:
        found.add("needs every agent")
    if way == "tree" and fault == "agent_dropout":
        found.add("one path joins two agents")
    of_rounds = (acceleration, path, n_rounds, eigenvalue)
    if exact and of_rounds != (None, "auto", "auto", "computed"):
        found.add("a sum at a server or along a tree takes none")
    if not exact and codec in LOSSY and n_rounds == "auto":
        found.add("and so sends")
    if not exact and fault is not None and acceleration == "chebyshev":
        found.add("Chebyshev acceleration needs")
    if not exact and not fixed and path == "operator":
        found.add("have to be run")
    if eigenvalue == "estimated":
        if acceleration == "none" or (not exact and acceleration is None and fault):
            found.add("which is off")
        if not exact and codec is not None:
            found.add("noise of the codec")
    if step is not None and batch is None:
        found.add("there are no batches")
    return found


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@over(fault=FAULTS, codec=CODECS, way=WAYS)
def test_every_pair_of_options_works_or_is_refused_in_a_sentence(way, codec, fault, overlapping):
    X = overlapping(1, 60, 5)
    topology, asked = WAYS[way]
    graph, held = make_graph(topology, 5, seed=0), contiguous(5, 5)
    fitted = refused = 0
    usual = (None, "auto", "computed", "auto", (None, None))
    for acceleration, path, eigenvalue, n_rounds, (batch, step) in (usual, *OTHERS):
        why = reasons(way, codec, fault, acceleration, path, eigenvalue, n_rounds, batch, step)
        how = {"acceleration": acceleration, "consensus": path, "eigenvalue": eigenvalue}
        how["sum"] = asked
        if fault is not None:
            how[fault] = 0.1
        said = None
        try:
            network = connect(graph, held, hops=0, n_rounds=n_rounds, compress=codec, **how)
            fit = fit_vpem(
                X, network, init=[3, 40], max_iter=2, batch_size=batch, step_size=step, n_threads=1
            )
        except InputError as error:
            said = str(error)
        assert (said is not None) == bool(why), (how, batch, step, said)
        if said is not None:
            assert any(reason in said for reason in why), (how, batch, step, said)
            refused += 1
            continue
        assert np.isfinite(fit.log_likelihood)
        assert np.isfinite(fit.mixture.means).all()
        assert fit.communication["bytes"] > 0
        fitted += 1
    assert refused > 0
    possible = {"server": fault is None, "tree": fault != "agent_dropout", "consensus": True}
    assert (fitted > 0) == possible[way]
