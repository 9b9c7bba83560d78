"""How a run ends, what becomes of components that collapse, and what networks do to it."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from vpem import (
    VPEM,
    Blocks,
    InputError,
    Mixture,
    NotConvergedWarning,
    NumericalError,
    VpemWarning,
    connect,
    connect_workers,
    fit_em,
    fit_fedem,
    fit_vpem,
    make_graph,
    read_model,
)
from vpem.files.models import Model, write_model
from vpem.network.partition import contiguous, evenly, from_worker_of_row
from vpem.settings import FitSettings
from vpem.steps import em
from vpem.sums.server import ServerSum
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .cli_support import done, make_data
from .tables import each, over

placed_anew = pytest.mark.filterwarnings("ignore:components collapsed:vpem.VpemWarning")


def star(d):
    return connect(make_graph("star", d), contiguous(d, d), hops=0)


def ring(d, n_rounds=80):
    return connect(make_graph("cycle", d), contiguous(d, d), hops=0, n_rounds=n_rounds)


# ---- stopping ------------------------------------------------------------------------------------


def scripted(script):
    """Terms whose log-likelihoods per sample, one a root, are written down in advance."""
    left, n_roots = iter([*script, script[-1]]), len(script[0])
    halves = np.full((n_roots, 10, 2), 0.5)
    return SimpleNamespace(
        n_samples=10, total_weight=10.0, row_weights=None, n_threads=1, itemsize=8, least_rows=0.5,
        held=None, log_constant=0.0, resolution=0.0, constant_in_sums=False,
        chunks=lambda n_values: iter([slice(0, 10)]),
        prepare=lambda mixture: SimpleNamespace(failed=np.zeros((2, n_roots), np.uint8)),
        local=lambda factors, rows: np.zeros((n_roots, 10, 2)),
        seen_whole=lambda mixture, chunks: chunks, settle=lambda mixture: mixture,
        responsibilities=lambda *_: (halves, 10 * np.array(next(left), dtype=float)),
        empty=lambda centres, n: SimpleNamespace(counts=np.full((n, 2), 5.0)),
        summarize=lambda *_: None,
        update=lambda statistics: anything(),
        log_prior=lambda mixture: 0.0,
    )  # fmt: skip


def anything():
    weights = np.full((1, 2), 0.5)
    return Mixture(
        Blocks.one(1), "diag", weights, np.zeros((2, 1)), np.ones((2, 1)), Scaling.none(1)
    )


class Passed(ServerSum):
    """A sum that hands every root its own hub's terms."""

    def __init__(self, n_roots):
        super().__init__(n_roots)
        self.n_roots, self.mix = n_roots, None

    def reduce(self, terms, rows=slice(None), scalars=None):
        scalars.found = scalars.own
        return terms


def run_script(script, tol=0.1):
    total = Passed(len(script[0]))
    return em.fit(
        scripted(script),
        total,
        anything(),
        FitSettings(tol=tol, max_iter=len(script)),
        draw_row=lambda: 0,
    )


@each(
    ("script", "stops"),
    [
        ([[0], [1], [1.05], [9]], 3),
        ([[0], [1], [1.1], [1.3]], None),  # a change of just tol is no proposal
        ([[0], [1], [0.95], [9]], 3),  # a small fall is a small change
        ([[0], [1], [0.5], [0.49]], 4),  # a large fall is not
        ([[0, 0], [1, 1], [1.01, 2], [1.02, 3]], None),  # one root alone stops nothing
        ([[0, 0], [1, 1], [0.5, 2], [0.49, 3], [0.48, 3.01]], 5),
        ([[0, 0], [0.5, 1], [0.2, 1.01], [0, 1.02], [0.05, 1.03]], 5),  # falls while others rise
        ([[0, 0], [1, -1], [2, -2], [3, -3]], None),  # the mean stands still, no root does
        ([[0], [0]], 2),
        ([[5]], None),
    ],
)
def test_the_network_stops_when_all_roots_propose_it_at_once(script, stops):
    run = run_script(script)
    assert run.converged == (stops is not None)
    assert len(run.history) == (stops or len(script))
    np.testing.assert_allclose(run.history, 10 * np.array(script[: len(run.history)]))


def test_without_tolerance_nothing_stops():
    assert not run_script([[1], [1], [1]], tol=0.0).converged


@each("bad", [np.nan, np.inf, -np.inf])
def test_a_log_likelihood_that_is_not_finite_ends_the_run(bad):
    with pytest.raises(NumericalError, match=r"root 1 is .* at iteration 2"):
        run_script([[0, 0], [1, bad]])


def test_running_out_of_iterations_is_told(overlapping):
    X = overlapping(0, 200, 4)
    with pytest.warns(NotConvergedWarning, match="after 3 iterations: .* still changed by") as told:
        fit = fit_vpem(X, star(4), n_components=3, max_iter=3)
    assert len(told) == 1
    assert not fit.converged
    assert fit.n_iter == 3
    with pytest.warns(NotConvergedWarning, match="after 1 iterations"):
        fit_vpem(X, star(4), n_components=3, max_iter=1)


def test_callback_is_told_of_every_iteration(overlapping):
    X = overlapping(2, 200, 4)
    told = []
    fit = fit_vpem(X, ring(4), n_components=2, tol=1e-4, callback=told.append)
    assert [progress.iteration for progress in told] == list(range(1, fit.n_iter + 1))
    assert told[0].change is None
    means = fit.history.mean(axis=1) / 200
    np.testing.assert_allclose([progress.log_likelihood for progress in told], means)
    np.testing.assert_allclose(
        [progress.change for progress in told[1:]], np.diff(means), atol=1e-14
    )


# ---- components that collapse --------------------------------------------------------------------


def start_of(network, means, kind="full"):
    """Mixture of unit covariances with these means in the user's order."""
    blocks = network.blocks
    k, d = means.shape
    covariances = np.ones((k, d))
    if kind == "full":
        squares = [np.tile(np.eye(width).ravel(), k) for width in blocks.widths]
        covariances = np.concatenate(squares)
    weights = np.full((1, k), 1 / k)
    means = np.ascontiguousarray(means[:, blocks.order], dtype=float)
    return Mixture(blocks, kind, weights, means, covariances, Scaling.none(d))


@over(make=[star, ring], kind=["full", "diag"])
def test_a_component_without_rows_is_placed_anew(make, kind, overlapping):
    X = overlapping(3, 200, 4)
    network = make(4)
    start = start_of(network, np.stack([X[0], X[1], np.full(4, 500.0)]), kind)
    options = {"n_components": 3, "init": start, "covariance_type": kind, "tol": 1e-5}
    with pytest.warns(VpemWarning, match=r"component 2 in hub 0 \(weight, iteration 1\)"):
        fit = fit_vpem(X, network, **options)
    first = fit.recoveries[0]
    assert (first.iteration, first.component, first.hub, first.reason) == (1, 2, 0, "weight")
    assert 0 <= first.row < 200
    assert fit.converged
    assert fit.mixture.weights.min() > 0
    assert np.abs(fit.mixture.means).max() < 20


@pytest.mark.parametrize("make", [star, ring])
def test_a_component_on_one_point_is_placed_anew(make, overlapping):
    X = np.concatenate([np.tile([30.0, 0, 0, 0], (25, 1)), overlapping(4, 200, 4)])
    network = make(4)
    means = np.stack([X[0], X[100], X[150]])
    options = {"n_components": 3, "init": start_of(network, means), "reg_covar": 0.0}
    with pytest.warns(VpemWarning, match=r"component 0 in hub \d \(covariance, iteration \d"):
        fit = fit_vpem(X, network, tol=1e-3, **options)
    first = fit.recoveries[0]
    assert (first.component, first.reason) == (0, "covariance")
    assert first.iteration >= 1
    assert 0 <= first.row < 225
    assert np.isfinite(fit.history).all()
    assert np.isfinite(fit.mixture.covariances).all()


@placed_anew
def test_a_singular_start_is_mended_before_the_first_iteration(overlapping):
    X = overlapping(5, 200, 4)
    start = start_of(star(4), X[:3], "diag")
    start.covariances[1, 2] = 0.0
    fit = fit_vpem(X, star(4), n_components=3, init=start, covariance_type="diag", tol=1e-4)
    assert (fit.recoveries[0].iteration, fit.recoveries[0].component) == (0, 1)
    assert (fit.recoveries[0].hub, fit.recoveries[0].reason) == (2, "covariance")


class Brittle(FeatureTerms):
    """Terms after whose every M-step some components have a singular block."""

    def __init__(self, X, broken, kind="diag"):
        d = X.shape[1]
        super().__init__(X, star(d).blocks, kind, scaling=Scaling.none(d))
        self.broken, self.drawn = [], []
        self.first = self.start(self.at_rows(np.arange(3)))
        self.broken = broken

    def update(self, statistics):
        mixture = super().update(statistics)
        covariances = mixture.covariances.copy()
        covariances[self.broken, 1] = 0.0
        return replace(mixture, covariances=covariances)

    def draw_row(self):
        self.drawn.append(10 * len(self.drawn) + 7)
        return self.drawn[-1]


def fit_brittle(terms, max_iter=8, tol=1e-12):
    total = ServerSum(terms.blocks.n_blocks)
    stop = FitSettings(tol=tol, max_iter=max_iter)
    return em.fit(terms, total, terms.first, stop, draw_row=terms.draw_row)


def test_after_three_times_a_component_is_given_up(overlapping):
    terms = Brittle(overlapping(6, 200, 4), [1])
    run = fit_brittle(terms)
    assert [(r.iteration, r.component, r.hub, r.reason) for r in run.recoveries] == [
        (i, 1, 1, "covariance") for i in (1, 2, 3, 4)
    ]
    assert [r.row for r in run.recoveries] == [7, 17, 27, None]
    assert run.mixture.weights[0, 1] == 0
    assert run.mixture.weights.sum() == pytest.approx(1)
    assert len(run.history) == 8
    assert np.isfinite(run.history).all()
    assert np.isfinite(run.log_likelihood).all()
    assert (np.diff(np.ravel(run.history))[4:] >= 0).all()
    assert (run.mixture.predict_proba(terms.rows.read(slice(0, terms.n_samples)))[:, 1] == 0).all()


def test_a_component_placed_anew_gets_its_share_of_weight(overlapping):
    terms = Brittle(overlapping(7, 200, 4), [2])
    run = fit_brittle(terms, max_iter=1)
    assert run.mixture.weights[0, 2] == pytest.approx(1 / 3)
    assert run.mixture.weights.sum() == pytest.approx(1)
    np.testing.assert_array_equal(run.mixture.means[2], terms.rows.take(np.array([7]))[0])
    np.testing.assert_array_equal(run.mixture.covariances[2], terms.sample_covariance[0])


def test_a_run_does_not_stop_at_an_iteration_that_mended(overlapping):
    run = fit_brittle(Brittle(overlapping(8, 200, 4), [1]), max_iter=50, tol=1e9)
    assert run.converged
    assert len(run.history) == 5  # four that mended, and the next


def test_when_all_components_are_given_up_the_run_ends(overlapping):
    with pytest.raises(NumericalError, match="every component has collapsed by iteration 4"):
        fit_brittle(Brittle(overlapping(9, 200, 4), [0, 1, 2]))


def test_a_tied_covariance_cannot_be_placed_anew(overlapping):
    with pytest.raises(NumericalError, match=r"tied covariance of hub 1 .* at iteration 1"):
        fit_brittle(Brittle(overlapping(10, 200, 4), [0], "tied-diag"))


def test_constant_features_need_regularisation(overlapping):
    X = overlapping(11, 200, 4)
    X[:, 2] = 3.0
    with (
        pytest.warns(VpemWarning, match=r"constant features .*: 2; .* reg_covar \(0\) alone"),
        pytest.raises(NumericalError, match="sample covariance of hub 2"),
    ):
        fit_vpem(X, star(4), n_components=2, reg_covar=0.0)
    with pytest.warns(VpemWarning, match="'width'"):
        fit = fit_vpem(X, star(4), n_components=2, tol=1e-4, feature_names=["a", "b", "width", "c"])
    assert np.isfinite(fit.history).all()


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@over(kind=["full", "diag", "spherical", "tied"], make=[star, ring])
def test_more_components_than_different_rows_give_a_finite_mixture(make, kind, overlapping):
    X = np.tile(overlapping(12, 40, 4)[:3], (20, 1))
    for seed in range(3):
        fit = fit_vpem(X, make(4), n_components=5, covariance_type=kind, seed=seed, max_iter=60)
        for values in (fit.history, fit.mixture.weights, fit.mixture.means):
            assert np.isfinite(values).all()
        assert np.isfinite(fit.mixture.score_samples(X)).all()
        np.testing.assert_allclose(fit.mixture.predict_proba(X).sum(axis=1), 1)


@pytest.mark.filterwarnings("ignore:'feature .' has 2 different values")
def test_one_agent_refuses_components_beyond_its_rows_and_copies_are_told():
    X = np.repeat([[0.0, 1.0], [2.0, 5.0]], 20, axis=0)
    one = connect(make_graph("star", 1), contiguous(2, 1), hops=0)
    rows = evenly(40, 1), connect_workers(make_graph("star", 1))
    how = {"n_components": 3, "max_iter": 500}
    for reg_covar in ("auto", 0.0):
        for fit, held in ((fit_vpem, (one,)), (fit_em, rows), (fit_fedem, rows)):
            with pytest.raises(InputError, match="as many different rows, got 2"):
                fit(X, *held, reg_covar=reg_covar, **how)
    with pytest.warns(VpemWarning, match="components that are copies of others: 2; fewer"):
        fit_vpem(X, one, reg_covar=1e-3, init=[0, 39, 20], floor_fits="keep", **how)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"batch_size": 60},
        {"covariance_type": "diag"},
        {"n_factors": 1, "max_iter": 20},
        {"masked": True},
        {"workers": 4},
        {"workers": 4, "masked": True},
        {"weights": 3.0},
    ],
)
def test_no_component_is_left_that_has_few_rows(how):
    """And one that was given up, with no weight, has no row's mean."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(150, 6)) + 3 * rng.integers(0, 2, size=(150, 1))
    how = {"least_rows": 5, "seed": 1, "n_components": 20, "max_iter": 100, "tol": 1e-4} | how
    masked, workers = how.pop("masked", False), how.pop("workers", None)
    heaviest = how.pop("weights", 1.0)
    weights = None if heaviest == 1.0 else rng.uniform(0.1, heaviest, size=150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        if workers is None:
            network = connect(make_graph("star", 3), contiguous(6, 3), secure_sum=masked)
            fit = fit_vpem(X, network, sample_weight=weights, **how)
        else:
            network = connect_workers(make_graph("star", workers), secure_sum=masked)
            fit = fit_em(X, from_worker_of_row(np.arange(150) % workers), network, **how)
    rows = fit.mixture.assembled_weights * fit.total_weight
    if how.get("batch_size") is None:  # of batches the last is not all rows
        least = 5 if weights is None else 5 * weights.max()
        assert ((rows == 0) | (rows >= least * (1 - 1e-9))).all(), rows
    apart = np.abs(X[:, None] - fit.mixture.assembled_means).max(axis=2).min(axis=0)
    assert apart.min() > 1e-6
    assert (rows == 0).any()


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
def test_components_that_were_left_out_are_no_copies_in_any_family():
    rng = np.random.default_rng(4)
    X = np.column_stack([rng.normal(size=(150, 5)), rng.integers(0, 2, size=150)])
    with pytest.warns(VpemWarning, match="were left out") as heard:
        VPEM(20, agents=3, family="auto", least_rows=5, max_iter=60).fit(X)
    assert not any("copies" in str(one.message) for one in heard)


# ---- networks as users ask for them --------------------------------------------------------------


def joined(topology="cycle", n=6, **how):
    return connect(make_graph(topology, n, seed=0), contiguous(n, n), hops=0, **how)


@pytest.fixture
def X(overlapping):
    return overlapping(3, 200, 6)


@each(("fault", "seed"), [("link_failure", 0), ("stragglers", 1)])
def test_fits_with_faults_stop_where_fits_without_do(fault, seed, X):
    exact = fit_vpem(X, joined(), init=[3, 150])
    failing = fit_vpem(X, joined(seed=seed, **{fault: 0.2}), init=[3, 150])
    assert failing.converged
    assert abs(failing.log_likelihood - exact.log_likelihood) < 1e-6


def test_a_silent_root_has_no_log_likelihood(X, tmp_path):
    network = joined("complete", agent_dropout=0.3, seed=1)
    heard = []
    with pytest.warns(NotConvergedWarning):
        fit = fit_vpem(X, network, init=[3, 150], max_iter=8, callback=heard.append)
    missing = np.isnan(fit.history)
    assert missing.any()
    assert not missing.all(axis=1).any()
    means = np.nanmean(fit.history, axis=1) / fit.total_weight
    np.testing.assert_allclose([one.log_likelihood for one in heard], means)
    assert np.isfinite(fit.log_likelihood)
    names = tuple("abcdef")
    report = fit.describe(names, names)
    report.pop("history")
    write_model(tmp_path / "m.h5", Model(fit.mixture, names, report, fit.history))
    np.testing.assert_array_equal(read_model(tmp_path / "m.h5").history, fit.history)


def test_roots_that_disagree_are_warned_of(X):
    network = joined(link_failure=0.1, n_rounds=3)
    with pytest.warns(VpemWarning, match="rounds of a sum are too few"):
        fit_vpem(X, network, init=[3, 150], max_iter=3, tol=1e9)


def test_compressed_rounds_go_on_however_few_were_asked_for(X):
    found = fit_vpem(X, joined(compress="float32", n_rounds=1), init=[3, 150], max_iter=3, tol=1e9)
    assert np.ptp(found.root_log_likelihood) < 1e-4 * len(X)


def test_compressed_rounds_are_accelerated_unless_asked_not_to(X):
    found = {}
    for acceleration in (None, "chebyshev", "none"):
        network = joined(compress="float32", acceleration=acceleration)
        assert network.acceleration == (acceleration or "chebyshev")
        found[acceleration] = fit_vpem(X, network, init=[3, 150])
    assert found[None].network.n_rounds == found["chebyshev"].network.n_rounds
    assert found["none"].network.n_rounds > found[None].network.n_rounds
    np.testing.assert_array_equal(found[None].history, found["chebyshev"].history)
    assert found["none"].log_likelihood == pytest.approx(found[None].log_likelihood, abs=1e-5)
    few = {"compress": "float32", "n_rounds": 9}
    slow, quick = (
        fit_vpem(X, joined(**few, **how), init=[3, 150], max_iter=3, tol=1e9)
        for how in ({"acceleration": "none"}, {})
    )
    assert np.ptp(slow.root_log_likelihood) > np.ptp(quick.root_log_likelihood)


@each(
    ("how", "said"),
    [
        ({"compress": "topk:1e-12"}, "keeps only"),
        ({"stragglers": 0.999}, "too much fails"),
        ({"n_rounds": 10**9, "link_failure": 0.1}, "rounds must be an integer"),
    ],
)
def test_what_would_never_end_is_refused(how, said):
    with pytest.raises(ValueError, match=said):
        joined(**how)


def test_an_agent_called_as_an_option_keeps_its_name(capsys, tmp_path):
    make_data(tmp_path / "d.h5")
    (tmp_path / "p.json").write_text('{"radius": [0, 1], "n_init": [2, 3], "c": [4, 5]}')
    words = ["fit", tmp_path / "d.h5", "--partition", tmp_path / "p.json", "--topology", "path",
             "--rounds", 1, "--link-failure", 0.5, "--max-iter", 5, "--seed", 2,
             "--json"]  # fmt: skip
    found = done(capsys, *words).json
    told = " ".join(found["warnings"])
    assert "--radius" not in told
    assert "'radius'" in told
