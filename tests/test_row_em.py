"""EM over rows: the same numbers as over pooled rows, however they are split."""

import warnings

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from vpem import InputError, Kinds, connect, fit_fedem, fit_vpem, make_graph
from vpem.errors import NotConvergedWarning, VpemWarning
from vpem.fits.rows import fit_em
from vpem.network.partition import Blocks, Workers, by_label, contiguous, evenly, from_worker_of_row
from vpem.settings import COVARIANCE_TYPES
from vpem.steps import em
from vpem.sums.connect import connect_workers
from vpem.terms.features import FeatureTerms
from vpem.terms.row_statistics import WorkerTerms
from vpem.terms.statistics import Message
from vpem.terms.units import Scaling

from .tables import each, each_once, over

ROWS = [3, 57, 110]


def split(n_samples, how):
    if isinstance(how, int):
        return evenly(n_samples, how)
    if how == "uneven":
        # One worker holds nothing, one a single row, the last the rest, in a mixed order.
        of = np.full(n_samples, 3)
        of[:40], of[41], of[60:70] = 0, 2, 0
        return from_worker_of_row(of, ["a", "b", "c", "d"])
    rng = np.random.default_rng(0)
    return from_worker_of_row(rng.integers(0, 5, n_samples))


def fit(X, workers, topology="star", n_iter=25, init=ROWS, **options):
    how = {name: options.pop(name) for name in ("consensus", "n_rounds", "link_failure",
           "stragglers", "acceleration", "consensus_tol") if name in options}  # fmt: skip
    network = connect_workers(make_graph(topology, workers.n_workers), **how)
    common = {"n_components": 3, "init": init, "tol": 0.0, "max_iter": n_iter}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit_em(X, workers, network, **{**common, **options})


def pooled(X, n_iter=25, init=ROWS, **options):
    network = connect(make_graph("star", 1), contiguous(X.shape[1], 1), hops=0)
    common = {"n_components": 3, "init": init, "tol": 0.0, "max_iter": n_iter}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit_vpem(X, network, **{**common, **options})


def assert_same(one, two, tolerance=1e-10):
    scale = np.abs(two.history).max()
    assert np.abs(one.history - two.history[:, :1]).max() <= tolerance * scale
    assert abs(one.log_likelihood - two.log_likelihood) <= tolerance * abs(two.log_likelihood)
    for name in ("weights", "means", "covariances"):
        mine, other = getattr(one.mixture, name), getattr(two.mixture, name)
        np.testing.assert_allclose(mine, other, rtol=1e3 * tolerance, atol=1e3 * tolerance)


# ---- identities ----------------------------------------------------------------------------------


@each_once(kind=COVARIANCE_TYPES, how=[1, 3, 7, 150, "uneven", "mixed"])
def test_workers_fit_what_pooled_rows_do(kind, how, overlapping):
    X = overlapping(0, 150, 4)
    ours = fit(X, split(150, how), covariance_type=kind)
    assert_same(ours, pooled(X, covariance_type=kind))
    assert ours.history.shape == (25, 1)


@each("kind", ["full", "tied", "diag", "spherical"])
def test_workers_fit_what_scikit_learn_does(kind, overlapping):
    X = overlapping(1, 300, 3)
    start = fit(X, evenly(300, 4), covariance_type=kind, n_iter=1, reg_covar=1e-6)
    for n_iter in (2, 9, 30):
        ours = fit(X, evenly(300, 4), covariance_type=kind, n_iter=n_iter, reg_covar=1e-6)
        mixture = start.mixture
        covariances = mixture.assembled_covariances
        if kind == "tied":
            precisions = np.linalg.inv(covariances)
        elif kind == "full":
            precisions = np.array([np.linalg.inv(one) for one in covariances])
        else:
            precisions = 1 / covariances
        peer = GaussianMixture(
            3, covariance_type=kind, weights_init=mixture.weights[0],
            means_init=mixture.assembled_means, precisions_init=precisions, tol=0,
            max_iter=n_iter - 1, reg_covar=1e-6,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer.fit(X)
        np.testing.assert_allclose(ours.mixture.assembled_means, peer.means_, 1e-7, 1e-8)
        np.testing.assert_allclose(ours.mixture.weights[0], peer.weights_, rtol=1e-7)
        assert ours.log_likelihood == pytest.approx(peer.score(X), rel=1e-9)


@over(kind=COVARIANCE_TYPES, path=["operator", "rounds"])
def test_peers_differ_by_consensus_error_only(kind, path, overlapping):
    X = overlapping(2, 150, 4)
    whole = pooled(X, covariance_type=kind)
    workers = split(150, "uneven")
    apart = []
    for tolerance in (1e-4, 1e-9):
        ours = fit(
            X, workers, "path", covariance_type=kind, consensus=path, consensus_tol=tolerance
        )
        assert len(ours.mixtures) == 4
        assert ours.history.shape == (25, 4)
        apart.append(max(np.abs(one.means - whole.mixture.means).max() for one in ours.mixtures))
        assert ours.network.consensus_error <= tolerance
    assert apart[1] < 1e-6
    assert apart[1] < 1e-2 * apart[0]


@pytest.mark.parametrize("kind", ["full", "tied-diag"])
def test_rounds_are_the_operator(kind, overlapping):
    X = overlapping(3, 120, 4)
    one, two = (
        fit(X, evenly(120, 6), "cycle", covariance_type=kind, consensus=path, n_rounds=12)
        for path in ("operator", "rounds")
    )
    np.testing.assert_allclose(one.history, two.history, rtol=1e-11)


def test_few_rounds_still_give_covariances(overlapping):
    """A root's sums are those of rows that weigh other than they do: still a mixture's."""
    X = overlapping(4, 120, 4)
    with pytest.warns(VpemWarning, match="consensus"):
        ours = fit(X, evenly(120, 8), "cycle", n_rounds=2, acceleration="none")
    assert np.isfinite(ours.history).all()
    for mixture in ours.mixtures:
        for one in mixture.assembled_covariances:
            assert np.linalg.eigvalsh(one).min() > 0


@pytest.mark.parametrize("fault", [{"link_failure": 0.3}, {"stragglers": 0.2}])
def test_faults_change_little(fault, overlapping):
    X = overlapping(5, 150, 4)
    whole = pooled(X, n_iter=60)
    ours = fit(X, evenly(150, 6), "complete", n_iter=60, **fault)
    assert ours.log_likelihood == pytest.approx(whole.log_likelihood, abs=1e-5)


@over(topology=["star", "cycle"], init=["random", "k-means++", "kmeans"])
def test_starts_over_any_split(topology, init, overlapping):
    X = overlapping(6, 200, 3)
    found = [
        fit(X, evenly(200, n), topology if n > 2 else "star", init=init, n_iter=200, tol=1e-8,
            seed=3)
        for n in (1, 2, 5)
    ]  # fmt: skip
    for one in found[1:]:
        assert one.init_rows == found[0].init_rows
        assert one.log_likelihood == pytest.approx(found[0].log_likelihood, abs=1e-6)


def test_the_start_is_that_of_pooled_rows(overlapping):
    X = overlapping(7, 200, 3)
    for init in ("random", "k-means++", "kmeans"):
        ours = fit(X, evenly(200, 5), init=init, n_iter=3, seed=4)
        whole = pooled(X, init=init, n_iter=3, seed=4)
        assert ours.init_rows == whole.init_rows
        assert_same(ours, whole)


def test_from_a_model_and_with_restarts(overlapping):
    X = overlapping(8, 200, 3)
    first = fit(X, evenly(200, 5), n_iter=3)
    again = fit(X, evenly(200, 5), init=first.mixture, n_iter=4)
    assert again.history[0, 0] / 200 == pytest.approx(first.log_likelihood)
    assert again.init_rows is None
    best = fit(X, evenly(200, 4), init="random", n_init=4, n_iter=15)
    each = [fit(X, evenly(200, 4), init="random", n_iter=15, seed=0)]
    assert best.log_likelihood >= each[0].log_likelihood - 1e-12


@pytest.mark.parametrize("topology", ["star", "cycle"])
def test_weights_are_copies(topology, overlapping):
    X = overlapping(9, 90, 3)
    weights = np.random.default_rng(0).integers(0, 4, 90).astype(float)
    weights[ROWS[:1]] = 2.0
    rows = np.flatnonzero(weights > 0)[[0, 10, 30]]
    twice = np.repeat(np.arange(90), weights.astype(int))
    of = evenly(90, 6).worker_of
    one = fit(X, from_worker_of_row(of), topology, init=rows, sample_weight=weights)
    copies = np.searchsorted(twice, rows)
    two = fit(X[twice], from_worker_of_row(of[twice], [*"abcdef"]), topology, init=copies)
    np.testing.assert_allclose(one.history, two.history, rtol=1e-9)
    assert one.init_rows == tuple(rows)


def test_units_are_undone(overlapping):
    X = overlapping(10, 200, 3) * [1, 1e3, 1e-3] + [0, 1e4, 0]
    ours = fit(X, evenly(200, 3), scale="standard")
    whole = pooled(X, scale="standard")
    assert_same(ours, whole)
    single = fit(X.astype(np.float32), evenly(200, 3), dtype=np.float32, scale="standard")
    assert single.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-4)


def test_threads_change_nothing(overlapping):
    X = overlapping(11, 6000, 5)
    one, two = (fit(X, evenly(6000, 3), n_threads=n, n_iter=5) for n in (1, 2))
    np.testing.assert_allclose(one.history, two.history, rtol=1e-12)


# ---- collapse ------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["star", "cycle"])
def test_a_component_that_collapses_is_placed_anew_alike(topology, overlapping):
    X = overlapping(0, 200, 4)
    X[:3] = 40.0
    with pytest.warns(VpemWarning, match="reinitialised"):
        ours = fit(X, evenly(200, 5), topology, init=[0, 60, 120], reg_covar=0.0, n_iter=40)
    with pytest.warns(VpemWarning, match="reinitialised"):
        whole = pooled(X, init=[0, 60, 120], reg_covar=0.0, n_iter=40)
    assert [one.row for one in ours.recoveries] == [one.row for one in whole.recoveries]
    for mixture in ours.mixtures:
        np.testing.assert_allclose(mixture.means, whole.mixture.means, atol=1e-3)


# ---- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("full", 3 + 3 * 4 + 3 * 10), ("tied", 3 + 12 + 10), ("diag", 3 + 12 + 12)],
)
def test_what_a_star_sends(kind, numbers, overlapping):
    """One vector up and its sum down an E-step; n iterations have n + 1 of them."""
    ours = fit(overlapping(0, 150, 4), evenly(150, 5), covariance_type=kind, n_iter=7)
    counted = ours.communication["by_kind"]["server"]
    assert counted["messages"] == 8 * 2 * 5
    assert counted["bytes"] == 8 * 2 * 5 * 8 * (numbers + 1)
    assert ours.communication["bytes_by_iteration"][-1] < ours.communication["bytes"]


def test_what_a_cycle_sends(overlapping):
    ours = fit(overlapping(0, 150, 4), evenly(150, 5), "cycle", n_iter=7, n_rounds=11)
    counted = ours.communication["by_kind"]["estep"]
    assert counted["messages"] == 8 * 11 * 10
    assert counted["bytes"] == 8 * 11 * 10 * 8 * (3 + 12 + 30 + 1)


@each("kind", COVARIANCE_TYPES)
def test_messages_are_read_as_they_were_written(kind, overlapping):
    X = overlapping(0, 60, 4)
    terms = FeatureTerms(X, Blocks.one(4), kind, scaling=Scaling.none(4))
    centres = terms.at_rows(np.array([0, 20, 40]))
    start = terms.start(centres)
    layout = Message(terms, centres + 0.3)
    rows = WorkerTerms(terms, [slice(0, 60)], np.array([60]), terms.rows)
    message = rows.message(0, start, terms.prepare(start), layout)
    assert message.shape == (layout.size,)
    statistics, found = layout.unpacked(message)
    np.testing.assert_allclose(layout.packed(statistics, found), message, rtol=1e-12)
    direct = terms.empty(start.means, 1)
    total = em.expect(terms, connect(make_graph("star", 1), contiguous(4, 1), hops=0).total, start,
                      terms.prepare(start), direct)  # fmt: skip
    assert found + terms.log_constant == pytest.approx(total[0])
    one, two = terms.update(statistics), terms.update(direct)
    np.testing.assert_allclose(one.covariances, two.covariances, rtol=1e-9, atol=1e-12)


# ---- refusals ------------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(overlapping):
    X = overlapping(0, 60, 3)
    with pytest.raises(InputError, match="the workers hold 50 rows, but the data have 60"):
        fit(X, evenly(50, 2), init=[0, 1, 2])
    network = connect_workers(make_graph("star", 3))
    with pytest.raises(InputError, match="the graph has 3 agents, but there are 2 workers"):
        fit_em(X, evenly(60, 2), network)
    with pytest.raises(InputError, match=r"workers must be vpem\.Workers, got int"):
        fit_em(X, 2, network)
    hubs = connect(make_graph("cycle", 4), contiguous(4, 4), hops=1)
    with pytest.raises(InputError, match=r"connect_workers, got one of vpem\.connect, whose hubs"):
        fit_em(X, evenly(60, 4), hubs)
    squeezed = connect_workers(make_graph("star", 3), compress="float16")
    with pytest.raises(InputError, match="corrects this: vpem fedem --compress"):
        fit_em(X, evenly(60, 3), squeezed)
    with pytest.raises(InputError, match="components need at least as many rows"):
        fit(X[:2], evenly(2, 2), init="random")


def test_unlike_workers_fit_the_same(overlapping):
    X = overlapping(3, 150, 4)
    labels = (X[:, 0] > 0).astype(int)
    assert_same(fit(X, by_label(labels, 4)), pooled(X))
    assert isinstance(by_label(labels, 4), Workers)


@pytest.mark.parametrize("door", [fit_em, fit_fedem])
def test_a_start_of_other_families_is_refused(overlapping, door):
    X = overlapping(0, 60, 2)
    X[:, 0] = np.abs(X[:, 0]).round()
    hubs = connect(make_graph("star", 2), contiguous(2, 2), hops=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        start = fit_vpem(X, hubs, n_components=2, kinds=Kinds(("poisson", "gaussian")), max_iter=1)
    with pytest.raises(InputError, match=r"families \(1 gaussian, 1 poisson\), but over rows"):
        door(X, evenly(60, 3), n_components=2, init=start.mixture)
