"""A mixture under FedEM: statistics, the M-step, floors, starts, what is sent before it runs."""

import numpy as np
import pytest

from vpem import (
    InputError,
    NumericalError,
    VpemWarning,
    make_graph,
)
from vpem.settings import COVARIANCE_TYPES
from vpem.steps.fedem import first_statistics
from vpem.sums.connect import connect_workers
from vpem.terms.units import lower_half, symmetric

from .fedem_support import EXACT, REG, ROWS, em, mixture_model, run
from .tables import each, each_once, over


@pytest.fixture
def X(overlapping):
    return overlapping(3, 210, 4) + 5.0


# ---- a mixture's statistics, and the M-step ------------------------------------------------------


def model_of(X, workers=3, **options):
    """The model of rows that are centred first, and those rows."""
    made = mixture_model(X, workers, **options)
    return made, made.scaling.apply(X)


def by_hand(model, rows, mixture):
    """The mean statistic (P,) of rows, by NumPy alone."""
    gamma = mixture.predict_proba(model.scaling.undo(rows))
    parts = [gamma.mean(axis=0), (gamma.T @ rows / len(rows)).ravel()]
    second = np.einsum("mk,mi,mj->kij", gamma, rows, rows) / len(rows)
    if model.covariance_type == "full":
        parts.append(lower_half(second).ravel())
    elif model.covariance_type == "diag":
        parts.append(np.diagonal(second, axis1=1, axis2=2).ravel())
    elif model.covariance_type == "spherical":
        parts.append(np.trace(second, axis1=1, axis2=2))
    return np.concatenate(parts)


@each("covariance_type", COVARIANCE_TYPES)
def test_statistics_are_those_of_the_responsibilities(X, covariance_type):
    model, rows = model_of(X, covariance_type=covariance_type)
    mixture = model.start(rows[ROWS])
    for worker, own in enumerate(rows[held] for held in model.runs):
        for chosen, part in ((None, own), (np.array([0, 5, 40]), own[[0, 5, 40]])):
            found = model.expect(worker, mixture, chosen)
            np.testing.assert_allclose(found, by_hand(model, part, mixture), atol=1e-12)
    assert model.objective(mixture) == pytest.approx(mixture.score_samples(X).mean(), abs=1e-12)
    # A step is a step of EM.
    _, wanted = em(X, 1, covariance_type)
    mean = sum(n * model.expect(i, mixture, None) for i, n in enumerate(model.counts)) / len(X)
    found, projected = model.maximize(mean)
    assert projected == 0
    for part in ("weights", "means", "covariances"):
        ours, theirs = (getattr(one, f"assembled_{part}") for one in (found, wanted))
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    # Pieces cover the statistic in order.
    assert model.pieces[0] == slice(0, 3)
    assert [piece.start for piece in model.pieces[1:]] == [p.stop for p in model.pieces[:-1]]
    sizes = {"full": 3 * 15, "diag": 3 * 9, "spherical": 3 * 6}
    assert model.pieces[-1].stop == model.size == sizes.get(covariance_type, 3 * 5)


@each("covariance_type", COVARIANCE_TYPES)
def test_hard_statistics(X, covariance_type):
    model, rows = model_of(X, covariance_type=covariance_type)
    labels = np.arange(len(rows[model.runs[1]])) % 3
    own = rows[model.runs[1]]
    found = model.assigned(1, labels)
    np.testing.assert_allclose(found[:3], np.bincount(labels) / len(own))
    means = found[3:15].reshape(3, 4) / found[:3, None]
    np.testing.assert_allclose(means[2], own[labels == 2].mean(axis=0))
    if covariance_type == "full":
        second = symmetric(found[15:].reshape(3, -1), 4)[2] / found[2]
        np.testing.assert_allclose(second, own[labels == 2].T @ own[labels == 2] / sum(labels == 2))


@over(covariance_type=COVARIANCE_TYPES, seed=range(2))
def test_any_statistic_gives_a_valid_model(X, covariance_type, seed):
    model, rows = model_of(X, covariance_type=covariance_type)
    good = model.expect(0, model.start(rows[[3, 90, 170]]), None)
    rng = np.random.default_rng(seed)
    for size in (1e-3, 0.1, 1.0, 100.0):
        noisy = good + size * rng.normal(size=model.size)
        mixture, projected = model.maximize(noisy)
        assert mixture.assembled_weights.min() > 0
        assert np.isfinite(mixture.score_samples(X)).all()
        # No mean lies farther out than the rows do.
        far = np.sqrt(model.squared_norms(mixture.means))
        assert far.max() <= model.radius * (1 + 1e-6)
        if noisy[:3].min() < 0:
            assert projected > 0


def test_an_emptied_component_comes_back_as_a_wide_one(X):
    model, rows = model_of(X)
    parts = np.split(model.expect(0, model.start(rows[[3, 90, 170]]), None), [3, 15])
    for part in parts:
        part.reshape(3, -1)[1] = 0.0
    mixture, projected = model.maximize(np.concatenate(parts))
    assert projected == 1
    assert mixture.weights[0, 1] == pytest.approx(1 / len(X), rel=0.2)
    np.testing.assert_allclose(mixture.means[1], 0, atol=1e-12)
    wide = model.second + 1e-6 * np.eye(4)
    np.testing.assert_allclose(mixture.covariance_blocks[0][1], wide, atol=1e-12)


def test_negative_variances_are_raised_to_their_own_size(X):
    model, rows = model_of(X)
    statistic = model.expect(0, model.start(rows[[3, 90, 170]]), None)
    matrices = symmetric(statistic[15:].reshape(3, -1), 4)
    scale = np.diagonal(model.second)
    # By so much that one eigenvalue of the second component's becomes negative.
    matrices[1] -= 0.8 * statistic[1] * np.diag(scale)
    mixture, projected = model.maximize(np.r_[statistic[:15], lower_half(matrices).ravel()])
    assert projected == 1
    before = matrices[1] / statistic[1] - np.outer(mixture.means[1], mixture.means[1])
    into, back = model._white
    np.testing.assert_allclose(into @ back, np.eye(4), atol=1e-10)
    worst = np.linalg.eigvalsh(into @ (before + 1e-6 * np.eye(4)) @ into.T).min()
    assert worst < 0
    smallest = np.linalg.eigvalsh(into @ mixture.covariance_blocks[0][1] @ into.T).min()
    assert smallest == pytest.approx(-worst, rel=1e-6)


def test_known_covariances(X):
    for kind, known in (
        ("tied", np.eye(4)),
        ("full", np.stack([np.eye(4) * k for k in (1, 2, 3)])),
    ):
        model, rows = model_of(X, covariance_type=kind, known=known)
        assert model.size == 15
        mixture, projected = model.maximize(model.expect(0, model.start(rows[:3]), None))
        assert projected == 0
        np.testing.assert_allclose(mixture.assembled_covariances, known)


@each(
    ("known", "kind", "why"),
    [
        (np.eye(3), "tied", "of shape"),
        (np.eye(4), "full", "of shape"),
        (np.eye(4), "diag", "of shape"),
        (-np.eye(4), "tied", "positive definite"),
        (np.triu(np.ones((4, 4))), "tied", "symmetric"),
        (np.full((4, 4), np.nan), "tied", "positive definite"),
        ("none", "tied", "must be numbers"),
    ],
)
def test_known_covariances_that_are_none(X, known, kind, why):
    with pytest.raises(InputError, match=why):
        model_of(X, covariance_type=kind, known=known)


def test_constant_features(X):
    X[:, 2] = 1.0
    mixture, projected = model_of(X)[0].maximize(np.zeros(45))
    assert np.isfinite(mixture.score_samples(X)).all()
    assert projected == 3
    with pytest.raises(NumericalError, match="feature 2 is constant"):
        model_of(X, reg_covar=0.0)


def test_batches_of_rows_that_weigh_differently_are_unbiased(X):
    weights = np.random.default_rng(1).integers(1, 9, len(X)) / 2.0
    model = mixture_model(X, 3, row_weights=weights)
    rng = np.random.default_rng(0)
    run = model.runs[1]
    own = weights[run]
    times = np.zeros(len(own))
    for _ in range(4000):
        drawn = model.draw(1, 10, rng)
        assert len(drawn) == 10
        times += np.bincount(drawn, minlength=len(own))
    wanted = 10 * own / own.sum()
    np.testing.assert_allclose(times / 4000, wanted, atol=5 * np.sqrt(wanted.max() / 4000))
    # Slices of one row's weight each: every row once.
    alike = mixture_model(X, 3, row_weights=np.full(len(X), 0.5))
    np.testing.assert_array_equal(alike.draw(1, len(own), rng), np.arange(len(own)))


def test_white_units_are_undone(X):
    model = mixture_model(X * np.array([1.0, 1e3, 1e-1, 1.0]))
    given = first_statistics(model, model.start(model.terms.at_rows(np.array(ROWS))))
    white = model.apply(given)
    np.testing.assert_allclose(model.undo(white), given, rtol=1e-9, atol=1e-12)
    total = white.mean(axis=0)[12 + 3 :].reshape(3, -1).sum(axis=0)
    np.testing.assert_allclose(symmetric(total, 4), np.eye(4), atol=1e-4)


# ---- floors of noisy statistics ------------------------------------------------------------------


def nearly_singular():
    """Tables of which components have fewer rows than columns, or columns that follow others."""
    rng = np.random.default_rng(4)
    noise, apart = rng.normal(size=(60, 25)), rng.normal(size=(90, 6))
    apart[:30] += 2.0
    return {
        "fewer rows": noise,
        "collinear": np.c_[apart, apart[:, 0] + apart[:, 1] + 1e-4 * apart[:, 2] ** 2],
        "tight": np.r_[apart[:40], 30 + 0.03 * apart[40:]],
    }


@pytest.mark.filterwarnings("ignore:weights or covariances", "ignore:. of 3 components are deg")
@each_once(covariance_type=["full", "diag"], n_workers=[1, 3])
def test_it_is_em_where_components_are_nearly_singular(X, n_workers, covariance_type):
    # A tight group far from the others: 4e-8 of the features' variance.
    flat = np.c_[X, X[:, :1] + 0.1 * X[:, 1:2] ** 2]
    flat[:40] = 30 + 1e-3 * flat[:40]
    history, _ = em(flat, 30, covariance_type)
    plain = {"covariance_type": covariance_type, "reg_covar": REG, "max_iter": 29, **EXACT}
    ours = run(flat, n_workers, **plain)
    np.testing.assert_allclose(ours.run.history.objective[:-1], history[1:], rtol=0, atol=1e-7)
    assert ours.run.projections == 0
    # With the floor of noisy statistics it would be another model.
    other = run(flat, n_workers, **plain, floor=1e-4)
    assert other.run.projections > 0
    assert other.log_likelihood < ours.log_likelihood - 1e-3


@pytest.mark.filterwarnings(
    "ignore:weights or covariances", "ignore:steps of 0.9 are above", "ignore:. of 3 components are"
)
@each("options", [{"compress": "qsgd:8bits"}, {"participation": 0.7}, {"batch_size": 5}])
def test_noise_has_a_floor(X, options):
    tight = X.copy()
    tight[:40] = 30 + 1e-3 * X[:40]
    plain = {"max_iter": 30, "step_size": 0.9, **options}
    one, other, none = (run(tight, **plain, **{"floor": floor}) for floor in (None, 1e-4, 0.0))
    np.testing.assert_array_equal(one.run.statistic, other.run.statistic)
    assert one.run.projections > none.run.projections


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@each(
    ("graph", "data", "covariance_type", "step_size"),
    [("tree", "collinear", "full", 1.0), ("cycle", "fewer rows", "diag", 0.5),
     ("geometric", "tight", "full", 1.0)],
)  # fmt: skip
def test_graphs_end_where_a_server_does(graph, data, covariance_type, step_size):
    rows = nearly_singular()[data]
    how = {"sum": "tree"} if graph == "tree" else {"consensus_tol": 1e-9}
    network = connect_workers(make_graph("path" if graph == "tree" else graph, 5, seed=1), **how)
    plain = {
        "workers": 5, "n_components": 2, "init": [3, 50], "max_iter": 30, "tol": 1e-10,
        "covariance_type": covariance_type, "step_size": step_size,
    }  # fmt: skip
    server, ours = run(rows, **plain), run(rows, network=network, **plain)
    assert ours.log_likelihood == pytest.approx(server.log_likelihood, rel=1e-6)
    assert (ours.n_iter, ours.run.projections) == (server.n_iter, server.run.projections)


def test_short_numbers_have_a_floor_of_their_own():
    plain = {"workers": 5, "n_components": 2, "init": [3, 50], "max_iter": 30}
    rows = nearly_singular()["fewer rows"]
    exact, cast = (run(rows, compress=how, **plain) for how in (None, "float32"))
    assert cast.log_likelihood == pytest.approx(exact.log_likelihood, rel=1e-5)
    assert cast.run.projections == exact.run.projections == 0


@each("tolerance", [1e-3, 1e-5])
def test_what_rests_on_the_floor_of_rounds_is_told_at_once(tolerance):
    rows, plain = nearly_singular()["fewer rows"], {"n_components": 3, "init": "kmeans"}
    network = connect_workers(make_graph("cycle", 6), consensus_tol=tolerance)
    floor = min(1e-4, network.consensus_error)
    resting = f"are degenerate, .* the floor of noisy statistics, {floor:.2g} of"
    ended = f"the last too, .* the floor [(]{floor:.2g} of"
    with pytest.warns(VpemWarning, match=resting), pytest.warns(VpemWarning, match=ended):
        found = run(rows, 6, network=network, max_iter=2, **plain)
    assert found.degenerate
    assert found.run.projected[-1] == 2
    centred = rows - rows.mean(axis=0)
    white = np.linalg.inv(np.linalg.cholesky(centred.T @ centred / len(rows)))
    least = np.linalg.eigvalsh(white @ found.mixture.assembled_covariances @ white.T).min()
    assert least == pytest.approx(floor, rel=1e-2)


@each_once(
    covariance_type=["full", "diag", "tied"],
    noise=[{}, {"participation": 0.5}, {"participation": 0.5, "variance_reduction": True}],
)
def test_components_that_coincide_are_told(covariance_type, noise):
    rows = np.random.default_rng(0).normal(size=(200, 3))
    rows[4] = rows[3]
    plain = {"n_components": 3, "covariance_type": covariance_type, "max_iter": 40, "tol": 0.0}
    with pytest.warns(VpemWarning, match="components that are copies of others: 1; fewer"):
        found = run(rows, 4, init=[3, 4, 7], **plain, **noise)
    assert found.copies == [1]
    assert run(rows, 4, init=[3, 90, 7], **plain, **noise).copies == []


@pytest.mark.filterwarnings("ignore:steps of 1 are above")
def test_many_projections_are_told():
    # 60 rows and 21 parameters for each of 10 components: too few for so coarse a codec.
    rows = np.random.default_rng(0).normal(size=(600, 5))
    plain = {"n_components": 10, "init": "random", "max_iter": 40, "step_size": 1.0}
    often = r"projected in .* more bits .* or one .*\(tied\)"
    resting = "are degenerate, .* the floor of noisy"
    with pytest.warns(VpemWarning, match=resting), pytest.warns(VpemWarning, match=often):
        told = run(rows, compress="qsgd:2bits", **plain)
    late = [iteration for iteration in told.run.projected if iteration > 20]
    assert told.run.projected_share == len(late) / 20 > 0.1
    assert len(told.run.projected) <= told.run.projections
    silent = run(rows, compress="qsgd:12bits", **plain)
    assert silent.run.projected_share <= 0.1


def test_what_is_above_the_floor_does_not_rest_on_it():
    """Though in units of features a direction in which the data vary little is below it."""
    rng = np.random.default_rng(0)
    one, groups = rng.normal(size=210), rng.integers(2, size=210)
    near = one + 0.01 * (4 * groups + rng.normal(size=210))
    rows = np.column_stack([one, near, rng.normal(size=(210, 2))])
    found = run(rows, participation=0.5, max_iter=60, tol=0.0)
    assert found.run.projections == 0
    assert found.degenerate == []


def test_the_floor_is_in_white_units(X):
    # Features that nearly follow from each other are no reason to project.
    flat = np.c_[X, X[:, :1] + 1e-3 * X[:, 1:2]]
    ours = run(flat, max_iter=20, compress="qsgd:8bits:32", step_size=1.0)
    exact = run(flat, max_iter=20, **EXACT)
    assert ours.run.projections == 0
    assert ours.log_likelihood == pytest.approx(exact.log_likelihood, abs=0.02)


# ---- starts, and what is sent before the first iteration -----------------------------------------


@each("init", ["random", "k-means++", "kmeans"])
def test_starts(X, init):
    ours = run(X, init=init, max_iter=60, step_size=1.0)
    assert len(set(ours.init_rows)) == 3
    assert ours.log_likelihood > ours.run.history.objective[0]
    if init == "random":  # whoever holds which rows
        assert run(X, 3, init=init, max_iter=1).init_rows == ours.init_rows


def test_it_goes_on_from_a_model(X):
    first = run(X, max_iter=20, **EXACT)
    whole = run(X, max_iter=41, **EXACT)
    second = run(X, init=first.mixture, max_iter=20, **EXACT)
    np.testing.assert_allclose(second.mixture.means, whole.mixture.means, atol=1e-9)
    with pytest.raises(InputError, match="3 components"):
        run(X, init=first.mixture, n_components=2)


def test_units_do_not_matter(X):
    far = 1e6 + X * np.array([1.0, 100.0, 0.01, 1.0])
    common = {"max_iter": 15, "scale": "standard", "reg_covar": 0.0}
    for codec, near in ((None, 1e-6), ("qsgd:8bits", 5e-3)):  # means are rounded otherwise
        one, other = (run(data, compress=codec, **common) for data in (X, far))
        np.testing.assert_allclose(one.run.statistic, other.run.statistic, atol=near)
    far = 1e3 + X * np.array([1.0, 1e4, 1e-4, 1.0])
    common = {"max_iter": 30, "reg_covar": 0.0, "step_size": 1.0}
    ours, exact = run(far, compress="qsgd:4bits:32", **common), run(far, **common)
    # It may end at another optimum, but not at noise.
    assert ours.log_likelihood > exact.log_likelihood - 1e-2
    assert ours.run.projections < 5


def test_nothing_is_rounded_where_nothing_is_compressed(X):
    one, other = (run(X, max_iter=8, compress=name) for name in (None, "float64"))
    np.testing.assert_array_equal(one.run.statistic, other.run.statistic)
    assert one.run.history.bytes_up == other.run.history.bytes_up


@pytest.mark.filterwarnings("ignore:weights or covariances")
@each_once(codec=["qsgd:4bits:32", "qsgd:16bits", "randk:0.1", "topk:0.1"], seed=range(3))
def test_short_setups_tell_the_data(X, codec, seed):
    ours = run(X, compress=codec, max_iter=1, seed=seed, init=ROWS)
    exact = run(X, max_iter=1, init=ROWS)
    first = [fit.run.history.objective[0] for fit in (ours, exact)]
    assert abs(first[0] - first[1]) < 1e-2 * abs(first[1])
    np.testing.assert_allclose(ours.run.memory, ours.run.memories.mean(axis=0), atol=1e-12)


def test_bytes_of_a_short_setup():
    X = np.random.default_rng(0).normal(size=(40, 3))
    ours = run(X, 4, compress="qsgd:4bits:32", init=[0, 1, 2], max_iter=1)
    # Three rows of the start as float32, and one that means are about, from one worker each.
    rows = 3 * (8 + 12) + (8 + 24)
    # Of four workers: means and factors in 16 bits, a radius, the first statistic of 30 numbers.
    each = 6 + 12 + 4 + (4 + 30)
    assert ours.run.history.bytes_up[0] == rows + 4 * each
    assert ours.run.history.bytes_up[1] == rows + 4 * (each + 4 + 15)
    assert ours.communication["by_kind"]["server"]["bytes"] == 4 * (4 + 15) + 2 * 4 * 240
