"""What EM over split features must equal, whatever the data."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vpem import InputError, VpemWarning, connect, fit_vpem, make_graph
from vpem.network.partition import contiguous, from_agent_of_feature, from_lists
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.units import Scaling

from .tables import each, over

KINDS = ("full", "diag", "spherical", "tied")
TIED = ("tied", "tied-diag", "tied-spherical")
ITERATIONS = 8
REG = 1e-6


def star(*parts):
    d = sum(len(part) for part in parts)
    return connect(make_graph("star", len(parts)), from_lists(parts, d), hops=0)


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


# ---- units ---------------------------------------------------------------------------------------


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


@each(
    ("topology", "how", "why"),
    [
        ("cycle", {"consensus": "operator", "compress": "qsgd:8bits"}, "have to be run one by one"),
        ("cycle", {"consensus": "operator", "link_failure": 0.1}, "have to be run one by one"),
        ("cycle", {"eigenvalue": "estimated", "acceleration": "none"}, "which is off"),
        ("cycle", {"eigenvalue": "estimated", "link_failure": 0.1}, "which is off"),
        ("cycle", {"eigenvalue": "estimated", "compress": "qsgd:8bits"}, "noise of the codec"),
        ("cycle", {"acceleration": "chebyshev", "stragglers": 0.1}, "Chebyshev acceleration needs"),
        ("cycle", {"compress": "topk:0.2"}, "and so sends"),
        ("star", {"acceleration": "none"}, "a sum at a server or along a tree takes none"),
        ("star", {"consensus": "rounds"}, "a sum at a server or along a tree takes none"),
        ("star", {"eigenvalue": "estimated"}, "a sum at a server or along a tree takes none"),
        ("star", {"link_failure": 0.1}, "needs every agent"),
        ("cycle", {"sum": "tree", "agent_dropout": 0.1}, "one path joins two agents"),
    ],
)
def test_options_that_do_not_go_together(topology, how, why):
    with pytest.raises(InputError, match=why):
        connect(make_graph(topology, 5), contiguous(5, 5), hops=0, **how)
