"""FedEM: identities with EM, the memories' invariant, codecs, variance reduction, graphs."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from vpem import (
    FedEM,
    InputError,
    NotConvergedWarning,
    NumericalError,
    VpemWarning,
    fit_fedem,
    make_graph,
)
from vpem.network.codecs import parse_codec
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, by_label, evenly, from_worker_of_row
from vpem.settings import COVARIANCE_TYPES, FitSettings
from vpem.steps.em import fit
from vpem.steps.fedem import first_statistics, run_fedem
from vpem.steps.fedem_steps import Drift, Rest, looks_needed
from vpem.steps.fedem_sums import parse_step_size
from vpem.sums.connect import connect_workers
from vpem.sums.server import ServerSum
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .estimator_support import EXCUSED, check_as_scikit_learn_does
from .fedem_support import EXACT, ROWS, mixture_model, run
from .tables import each, over

CODECS = (
    None, "qsgd:8bits", "qsgd:4bits", "blockp:16", "natural:10bits", "topk:0.3", "randk:0.5",
    "float16", "float32", "float64",
)  # fmt: skip


@pytest.fixture
def X(overlapping):
    return overlapping(3, 210, 4) + 5.0


class Toy:
    """Statistics that do not depend on parameters: each worker has a constant vector."""

    def __init__(self, values, counts=None, pieces=None):
        self.values = np.asarray(values, dtype=float)
        self.size = self.values.shape[1]
        self.counts = np.array(counts or [1] * len(self.values))
        self.pieces = pieces or (slice(0, self.size),)
        self.asked = []
        self.masses = self.counts

    def draw(self, worker, count, rng):
        return rng.choice(int(self.counts[worker]), count, replace=False, shuffle=False)

    def expect(self, worker, parameters, rows):
        self.asked.append((worker, None if rows is None else len(rows)))
        return self.values[worker]

    def maximize(self, statistic, root=0):
        return statistic, 0

    def objective(self, parameters):
        return -float((parameters**2).sum())


REG = 1e-6

# ---- identities ----------------------------------------------------------------------------------


@over(n_workers=[1, 3, 7], covariance_type=COVARIANCE_TYPES)
def test_without_anything_it_is_em(X, n_workers, covariance_type):
    terms = FeatureTerms(X, Blocks.one(4), covariance_type, scaling=Scaling.none(4), reg_covar=REG)
    wanted = fit(
        terms,
        ServerSum(1),
        terms.start(X[ROWS]),
        FitSettings(tol=0, max_iter=12),
        draw_row=lambda: 0,
    )
    how = {"covariance_type": covariance_type, "reg_covar": REG}
    ours = run(X, n_workers, **how, max_iter=11, **EXACT)
    history = [float(value[0]) / len(X) for value in wanted.history][1:]
    np.testing.assert_allclose(ours.run.history.objective[:-1], history, rtol=0, atol=1e-10)
    for part in ("weights", "means", "covariances"):
        found, known = (getattr(one, f"assembled_{part}") for one in (ours.mixture, wanted.mixture))
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-10)
    assert ours.run.projections == 0


@pytest.mark.filterwarnings("ignore:weights or covariances", "ignore:. of 3 components are deg")
@over(covariance_type=["full", "diag"], n_workers=[1, 3])
def test_it_is_em_where_components_are_nearly_singular(X, n_workers, covariance_type):
    # A tight group far from the others: 4e-8 of the features' variance.
    flat = np.c_[X, X[:, :1] + 0.1 * X[:, 1:2] ** 2]
    flat[:40] = 30 + 1e-3 * flat[:40]
    rows = [3, 90, 170]
    terms = FeatureTerms(
        flat, Blocks.one(5), covariance_type, scaling=Scaling.none(5), reg_covar=REG
    )
    wanted = fit(
        terms,
        ServerSum(1),
        terms.start(flat[rows]),
        FitSettings(tol=0, max_iter=30),
        draw_row=lambda: 0,
    )
    plain = {"n_components": 3, "init": rows, "covariance_type": covariance_type}
    plain["reg_covar"] = REG
    ours = run(flat, n_workers, **plain, max_iter=29, **EXACT)
    history = [float(value[0]) / len(X) for value in wanted.history][1:]
    np.testing.assert_allclose(ours.run.history.objective[:-1], history, rtol=0, atol=1e-7)
    assert ours.run.projections == 0
    # With the floor of noisy statistics it would be another model.
    other = run(flat, n_workers, **plain, max_iter=29, floor=1e-4, **EXACT)
    assert other.run.projections > 0
    assert other.log_likelihood < ours.log_likelihood - 1e-3


@pytest.mark.filterwarnings(
    "ignore:weights or covariances", "ignore:steps of 0.9 are above", "ignore:. of 3 components are"
)
@pytest.mark.parametrize(
    "options",
    [{"compress": "qsgd:8bits"}, {"participation": 0.7}, {"batch_size": 5}],
    ids=["codec", "absent", "batches"],
)
def test_noise_has_a_floor(X, options):
    tight = X.copy()
    tight[:40] = 30 + 1e-3 * X[:40]
    plain = {"max_iter": 40, "step_size": 0.9, **options}
    one, other, none = (run(tight, **plain, **{"floor": floor}) for floor in (None, 1e-4, 0.0))
    np.testing.assert_array_equal(one.run.statistic, other.run.statistic)
    assert one.run.projections > none.run.projections


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


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@over(
    graph=["tree", "cycle", "path", "geometric"], data=["fewer rows", "collinear", "tight"],
    covariance_type=["full", "diag"], step_size=[0.5, 1.0],
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


@pytest.mark.parametrize("data", ["fewer rows", "collinear"])
def test_short_numbers_have_a_floor_of_their_own(data):
    plain = {"workers": 5, "n_components": 2, "init": [3, 50], "max_iter": 60}
    exact, cast = (run(nearly_singular()[data], compress=how, **plain) for how in (None, "float32"))
    assert cast.log_likelihood == pytest.approx(exact.log_likelihood, rel=1e-5)
    assert cast.run.projections == exact.run.projections == 0


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
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


@over(
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
@pytest.mark.parametrize("seed", range(3))
def test_many_projections_are_told(seed):
    # 60 rows and 21 parameters for each of 10 components: too few for so coarse a codec.
    rows = np.random.default_rng(seed).normal(size=(600, 5))
    plain = {"n_components": 10, "init": "random", "seed": seed, "max_iter": 40, "step_size": 1.0}
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


def test_workers_without_rows_and_with_one_change_nothing(X):
    worker_of = np.arange(len(X)) % 3 + 1
    worker_of[5] = 4
    uneven = from_worker_of_row(worker_of, names=[f"w{i}" for i in range(6)])
    assert uneven.counts.min() == 0
    one, other = (run(X, held, max_iter=10, **EXACT) for held in (uneven, 1))
    np.testing.assert_allclose(one.mixture.means, other.mixture.means, atol=1e-10)


def test_memories_change_nothing_where_nothing_is_random(X):
    plain = run(X, max_iter=15, step_size=0.7, memory="none")
    for memory in ("first", "zero"):
        # Which is refused where all send everything.
        other = run(X, max_iter=15, step_size=0.7, memory=memory, participation=1 - 1e-12)
        np.testing.assert_allclose(other.run.statistic, plain.run.statistic, rtol=1e-9, atol=1e-9)


def test_many_bits_come_close_to_em(X):
    exact = run(X, max_iter=12, **EXACT)
    gaps = []
    for codec in ("qsgd:4bits", "qsgd:8bits", "qsgd:16bits"):
        ours = run(X, max_iter=12, step_size=1.0, compress=codec)
        gaps.append(np.abs(ours.run.statistic - exact.run.statistic).max())
    assert gaps[0] > 2 * gaps[1] > 50 * gaps[2]
    assert gaps[2] < 1e-3


def test_weightings(X):
    held = from_worker_of_row(np.r_[np.zeros(10, int), np.ones(len(X) - 10, int)])
    by_rows, by_workers = (
        run(X, held, max_iter=5, covariance_type="tied", weighting=kind, **EXACT)
        for kind in ("rows", "workers")
    )
    pooled = run(X, 1, max_iter=5, covariance_type="tied", **EXACT)
    np.testing.assert_allclose(by_rows.mixture.means, pooled.mixture.means, atol=1e-10)
    # Counting workers alike is counting each of the ten rows twenty times.
    again = np.concatenate([np.repeat(X[:10], 20, axis=0), X[10:]])
    heavier = run(
        again, 1, init=[ROWS[0] * 20, *(np.array(ROWS[1:]) + 190)], max_iter=5,
        covariance_type="tied", **EXACT,
    )  # fmt: skip
    shifted = by_workers.mixture.assembled_means
    np.testing.assert_allclose(shifted, heavier.mixture.assembled_means, atol=1e-9)


# ---- memories ------------------------------------------------------------------------------------


@over(codec=CODECS, memory=["first", "zero"])
def test_the_mean_of_the_memories_is_kept(X, codec, memory):
    counts = np.array([30] * 7)
    seen = []

    def look(progress):
        weights = counts / counts.sum()
        np.testing.assert_allclose(progress.memory, weights @ progress.memories, atol=1e-10)
        seen.append(progress.n_active)

    model = mixture_model(X)
    start = first_statistics(model, model.start(model.terms.at_rows(np.array(ROWS))))
    run_fedem(
        model,
        start,
        max_iter=25,
        step_size=0.1,
        codec=codec and parse_codec(codec),
        participation=0.6,
        batch_size=20,
        memory=memory,
        rng=np.random.default_rng(1),
        callback=look,
    )
    assert len(seen) == 25
    assert len(set(seen)) > 1


@pytest.mark.parametrize("codec", CODECS)
def test_noise_vanishes_with_memories_and_not_without(codec):
    values = 10 * np.random.default_rng(0).normal(size=(8, 40))
    model = Toy(values, pieces=(slice(0, 10), slice(10, 40)))
    common = {"max_iter": 400, "step_size": 0.08, "participation": 0.5}
    codec = codec and parse_codec(codec)
    ours = run_fedem(
        model, np.zeros(40), codec=codec, rng=np.random.default_rng(1), memory="zero", **common
    )
    assert ours.history.mean_field[-1] < 1e-4 * ours.history.mean_field[0]
    np.testing.assert_allclose(ours.memory, 0, atol=0.5)
    if codec is None or codec.is_unbiased:
        bare = run_fedem(
            model, np.zeros(40), codec=codec, rng=np.random.default_rng(1), memory="none", **common
        )
        tail = slice(-100, None)
        assert np.median(bare.history.mean_field[tail]) > 1e3 * ours.history.mean_field[-1]


def test_alpha_is_set_by_the_codec():
    model = Toy(np.ones((4, 32)))
    for name in CODECS[1:]:
        codec = parse_codec(name)
        ours = run_fedem(model, np.zeros(32), max_iter=1, codec=codec, rng=np.random.default_rng(0))
        wanted = 1.0 if name.startswith("topk") else 1 / (1 + codec.variance(32))
        assert ours.alpha == pytest.approx(wanted)


def test_pieces_have_scales_of_their_own():
    # With one norm for both pieces a level of qsgd:8bits would be larger than all small values.
    small, large = np.full(8, 1e-6), np.full(8, 1e6)
    values = np.tile(np.r_[small, large], (3, 1))
    codec = parse_codec("qsgd:8bits")
    common = {"max_iter": 1, "step_size": 1.0, "codec": codec, "memory": "none"}
    apart = Toy(values, pieces=(slice(0, 8), slice(8, 16)))
    found = run_fedem(apart, np.zeros(16), rng=np.random.default_rng(0), **common)
    np.testing.assert_allclose(found.statistic[:8], small, rtol=0.1)
    together = run_fedem(Toy(values), np.zeros(16), rng=np.random.default_rng(0), **common)
    assert np.abs(together.statistic[:8] - small).max() > 0.5 * small[0]


# ---- what it costs -------------------------------------------------------------------------------


@each("codec", CODECS)
def test_bytes_are_those_of_the_messages(codec):
    model = Toy(np.ones((5, 30)), pieces=(slice(0, 4), slice(4, 30)))
    codec = codec and parse_codec(codec)
    ledger = Ledger(make_graph("star", 5))
    heard = []
    ours = run_fedem(
        model,
        np.zeros(30),
        max_iter=6,
        codec=codec,
        participation=0.6,
        memory="zero",
        ledger=ledger,
        rng=np.random.default_rng(3),
        callback=lambda progress: heard.append(progress.n_active),
    )
    each = 240
    if codec is not None:
        each = sum(len(codec.encode(np.ones(n), np.random.default_rng(0))) for n in (4, 26))
    up = sum(heard) * each
    # The server tells those that take part, and all at the end.
    down = (sum(heard) + 5) * 240
    assert ours.history.bytes_up[-1] == up
    assert ledger.of_kind("server")["bytes"] == up + down == ours.history.bytes[-1]
    assert ledger.of_kind("server")["messages"] == 2 * sum(heard) + 5


def test_first_memories_are_sent_once():
    model = Toy(np.arange(12.0).reshape(4, 3))
    ledger = Ledger(make_graph("star", 4))
    ours = run_fedem(model, np.zeros(3), max_iter=0, ledger=ledger, rng=np.random.default_rng(0))
    assert ledger.of_kind("setup") == {"messages": 4, "bytes": 96, "rounds": 1}
    assert ours.history.epochs == [1.0]
    np.testing.assert_allclose(ours.memories, model.values)
    own = run_fedem(model, model.values, max_iter=0, rng=np.random.default_rng(0))
    assert own.history.bytes_up == [96]
    np.testing.assert_allclose(own.statistic, model.values.mean(axis=0))
    np.testing.assert_allclose(own.memory, 0, atol=1e-15)


def test_epochs_count_conditional_expectations():
    rows = [12, 12, 30]
    model = Toy(np.ones((3, 2)), counts=rows)
    common = {"memory": "zero", "step_size": 0.5, "rng": np.random.default_rng(0)}
    full = run_fedem(model, np.zeros(2), max_iter=4, **common)
    assert full.epochs == pytest.approx(4.0)
    some = run_fedem(model, np.zeros(2), max_iter=4, batch_size=20, **common)
    assert some.epochs == pytest.approx(4 * (12 + 12 + 20) / 54)
    # A pass, then two batches an iteration, in outer loops of 3; 12 rows are less than 20.
    reduced = run_fedem(
        model, np.zeros(2), max_iter=6, batch_size=20, variance_reduction=True, inner=3, **common
    )
    assert reduced.epochs == pytest.approx(2 * (54 + 2 * (12 + 12 + 40)) / 54)
    stopped = run_fedem(model, np.zeros(2), max_iter=100, n_epochs=7.5, **common)
    assert stopped.n_iter == 8


def test_records_are_free_and_as_often_as_asked(X):
    often = run(X, max_iter=11, batch_size=10, compress="qsgd:8bits")
    seldom = run(X, max_iter=11, batch_size=10, compress="qsgd:8bits", record_every=4)
    assert seldom.run.history.iteration == [0, 4, 8, 11]
    np.testing.assert_array_equal(seldom.run.statistic, often.run.statistic)
    assert seldom.run.epochs == often.run.epochs
    assert seldom.run.history.mean_field[1] == often.run.history.mean_field[4]


def test_mean_field_is_the_distance_to_the_workers_mean(X):
    model = mixture_model(X)
    start = first_statistics(model, model.start(model.terms.at_rows(np.array(ROWS))))
    ours = run_fedem(model, start, max_iter=3, step_size=0.3, rng=np.random.default_rng(0))
    full = np.full(7, 1 / 7) @ first_statistics(model, ours.parameters)
    wanted = ((full - ours.statistic) ** 2).sum()
    assert ours.history.mean_field[-1] == pytest.approx(wanted, rel=1e-12)
    assert ours.history.objective[-1] == pytest.approx(ours.parameters.score_samples(X).mean())


# ---- variance reduction --------------------------------------------------------------------------


def test_spider_corrects_the_last_estimate_by_two_batches():
    class Linear(Toy):
        """The row j of a worker has the statistic ``j + parameters``: differences are exact."""

        def expect(self, worker, parameters, rows):
            rows = np.arange(self.counts[worker]) if rows is None else rows
            return rows.mean() + parameters

    model = Linear(np.zeros((4, 1)), counts=[9] * 4)
    common = {"max_iter": 12, "step_size": 0.3, "memory": "zero", "participation": 0.7}
    exact = run_fedem(model, np.zeros(1), rng=np.random.default_rng(2), **common)
    assert exact.epochs < 12

    class Seen(np.random.Generator):
        """Batches are drawn elsewhere, so that the same workers are active."""

        def choice(self, *args, **options):
            return np.random.default_rng(0).choice(*args, **options)

    reduced = run_fedem(
        model, np.zeros(1), batch_size=2, variance_reduction=True, inner=50,
        rng=Seen(np.random.PCG64(2)), **common,
    )  # fmt: skip
    np.testing.assert_allclose(reduced.statistic, exact.statistic, rtol=1e-12)
    noisy = run_fedem(model, np.zeros(1), batch_size=2, rng=Seen(np.random.PCG64(2)), **common)
    assert np.abs(noisy.statistic - exact.statistic).max() > 0.1


def test_with_all_rows_in_a_batch_it_is_fedem(X):
    common = {"max_iter": 10, "compress": "qsgd:8bits", "participation": 0.7, "seed": 4}
    plain = run(X, **common)
    reduced = run(X, batch_size=30, variance_reduction=True, **common)
    np.testing.assert_allclose(reduced.run.statistic, plain.run.statistic, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_variance_reduction_wins_at_the_same_epochs(X, seed):
    common = {
        "n_epochs": 30, "max_iter": 10_000, "step_size": 0.2, "seed": seed,
        "compress": "qsgd:8bits", "covariance_type": "tied", "participation": 0.75,
        "record_every": 10,
    }  # fmt: skip
    plain = run(X, batch_size=5, **common)
    reduced = run(X, batch_size=3, variance_reduction=True, **common)
    assert reduced.run.history.mean_field[-1] < 0.1 * np.median(plain.run.history.mean_field[-10:])


@pytest.mark.parametrize("seed", range(3))
def test_memories_win_where_workers_are_unlike(X, seed):
    labels = run(X, max_iter=30, **EXACT).mixture.predict(X)
    held = by_label(labels, 10)
    common = {
        "max_iter": 150, "step_size": 0.3, "participation": 0.5, "seed": seed,
        "covariance_type": "tied", "compress": "qsgd:4bits",
    }  # fmt: skip
    with_memories = run(X, held, **common)
    without = run(X, held, memory="none", **common)
    tail = slice(-30, None)
    fields = [np.median(one.run.history.mean_field[tail]) for one in (with_memories, without)]
    assert fields[0] < 1e-3 * fields[1]
    assert with_memories.log_likelihood > without.log_likelihood


# ---- on a graph ----------------------------------------------------------------------------------


def test_exact_consensus_is_the_server(X):
    network = connect_workers(make_graph("complete", 7))
    common = {"max_iter": 12, "participation": 0.6, "batch_size": 15, "seed": 3}
    star, complete = run(X, **common), run(X, network=network, **common)
    np.testing.assert_allclose(complete.run.statistic, star.run.statistic, atol=1e-9)


@pytest.mark.parametrize("compress", [None, "natural:12bits", "qsgd:8bits"])
def test_peers_agree_with_the_server(X, compress):
    network = connect_workers(make_graph("cycle", 7), compress=compress)
    common = {"max_iter": 60, "participation": 0.7, "step_size": 0.5, "seed": 3}
    star, cycle = run(X, **common), run(X, network=network, **common)
    assert len(cycle.run.statistics) == 7
    np.testing.assert_allclose(cycle.run.statistic, star.run.statistic, atol=2e-3)
    assert abs(cycle.log_likelihood - star.log_likelihood) < 1e-4
    assert 0 < cycle.run.history.disagreement[-1] < 1e-4
    assert star.run.history.disagreement[-1] == 0


def test_few_rounds_leave_peers_apart_but_not_farther_and_farther(X):
    with pytest.warns(Warning, match="too few"):
        network = connect_workers(make_graph("cycle", 7), n_rounds=3)
    ours = run(X, network=network, max_iter=120, step_size=0.5)
    apart = np.array(ours.run.history.disagreement)
    assert apart[-1] < 3 * np.median(apart[10:30])
    assert apart[-1] > 1e-4


def test_links_that_fail(X):
    network = connect_workers(make_graph("geometric", 7, seed=1), link_failure=0.2)
    ours = run(X, network=network, max_iter=40, participation=0.8)
    star = run(X, max_iter=40, participation=0.8)
    np.testing.assert_allclose(ours.run.statistic, star.run.statistic, atol=1e-3)


def test_a_network_that_falls_apart_for_good_is_given_up():
    network = connect_workers(make_graph("path", 7), link_failure=0.9, n_rounds=2)
    common = {"max_iter": 40, "memory": "zero", "rng": np.random.default_rng(0)}
    with pytest.raises(NumericalError, match="was disconnected in 20 iterations"):
        run_fedem(Toy(np.ones((7, 3))), np.zeros(3), network=network, **common)


# ---- what is refused -----------------------------------------------------------------------------


@each(
    ("options", "why"),
    [
        ({"participation": 0.0}, "from 1e-06 to 1"),
        ({"participation": 1.5}, "from 1e-06 to 1"),
        ({"batch_size": 0}, "batch_size"),
        ({"inner": 3}, "variance reduction"),
        ({"memory": "some"}, "one of first, zero, none"),
        ({"weighting": "size"}, "one of rows, workers"),
        ({"alpha": 0.0, "participation": 0.5}, "memory=.none"),
        ({"alpha": 0.5, "memory": "none", "participation": 0.5}, "leaves none"),
        ({"compress": "topk:0.1", "memory": "none"}, "biased"),
        ({"compress": "topk:0.1", "alpha": 0.5}, "must be 1"),
        ({"compress": "zip"}, "codec must be one of"),
        ({"step_size": "constant:0"}, "above 0"),
        ({"step_size": "linear:1"}, "like constant:0.5"),
        ({"step_size": lambda k: 2.0}, "steps must be above 0"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1.0}, "tol"),
        ({"record_every": 0}, "record_every"),
        ({"floor": 2.0}, "floor"),
        ({"n_epochs": -1.0}, "n_epochs"),
        ({"covariance_type": "round"}, "covariance_type must be"),
        ({"init": [0, 1]}, "3 components need as many"),
        ({"n_components": 999}, "at least as many rows"),
        ({"network": "cycle"}, "must come from"),
        ({"known_covariance": np.eye(4), "scale": "standard", "covariance_type": "tied"}, "units"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(X, options, why):
    with pytest.raises(InputError, match=why) as caught:
        run(X, **options)
    assert "\n" not in str(caught.value)


def test_workers_that_do_not_fit(X):
    with pytest.raises(InputError, match="cannot share"):
        run(X, len(X) + 1)
    with pytest.raises(InputError, match="hold 100 rows"):
        run(X, evenly(100, 4))
    with pytest.raises(InputError, match="the workers must be"):
        fit_fedem(X, 4)
    nobody = from_worker_of_row(np.r_[[0] * 100, [2] * 110], names=["a", "b", "c"])
    with pytest.raises(InputError, match="cannot count alike"):
        run(X, nobody, weighting="workers")


def test_networks_that_make_no_sense(X):
    cycle = connect_workers(make_graph("cycle", 7))
    with pytest.raises(InputError, match="compress to connect_workers"):
        run(X, network=cycle, compress="qsgd:8bits")
    with pytest.raises(InputError, match="compresses its corrections itself"):
        run(X, network=connect_workers(make_graph("star", 7), compress="qsgd:8bits"))
    with pytest.raises(InputError, match="graph has 6 agents, but there are 7 workers"):
        run(X, network=connect_workers(make_graph("cycle", 6)))
    with pytest.raises(InputError, match="give participation"):
        run(X, network=connect_workers(make_graph("cycle", 7), agent_dropout=0.1))


@each("start", [np.zeros(3), np.zeros((2, 2)), np.full(2, np.nan)])
def test_starts_that_do_not_fit(start):
    with pytest.raises(InputError, match="the start must be finite"):
        run_fedem(Toy(np.ones((4, 2))), start, max_iter=1, rng=np.random.default_rng(0))


def test_step_sizes():
    assert parse_step_size("constant:0.5")(7) == 0.5
    assert parse_step_size(0.25)(7) == 0.25
    assert parse_step_size("decreasing:0.8,0.6")(32) == pytest.approx(0.8 * 32**-0.6)
    assert parse_step_size("decreasing:1")(4) == 0.5
    assert parse_step_size("0.25")(7) == parse_step_size("1e0")(7) / 4 == 0.25
    for text in (
        "constant",
        "0",
        "1.5",
        "0.5,0.6",
        "constant:1,2",
        "decreasing:1,2",
        "decreasing:a",
        "constant:nan",
        True,
    ):
        with pytest.raises(InputError):
            parse_step_size(text)


# ---- the estimator -------------------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore:weights or covariances",
    "ignore:. of 2 components are",
    "ignore:'feature .' has 2 different values",
)
@pytest.mark.parametrize(
    "estimator",
    [
        FedEM(max_iter=20, tol=0.0),
        FedEM(compress="qsgd:8bits", batch_size=10, variance_reduction=True, max_iter=20, tol=0.0),
    ],
    ids=["plain", "reduced"],
)
def test_scikit_learns_own_checks(estimator):
    check_as_scikit_learn_does(estimator, EXCUSED)


def test_the_estimator_is_the_function(X):
    labels = np.arange(len(X)) % 5
    ours = FedEM(
        3, workers=labels, compress="qsgd:8bits", init=ROWS, participation=0.7, random_state=2,
        max_iter=60, tol=0.0,
    ).fit(X)  # fmt: skip
    same = fit_fedem(
        X, from_worker_of_row(labels), n_components=3, init=ROWS, compress="qsgd:8bits",
        participation=0.7, seed=2, max_iter=60, tol=0.0,
    )  # fmt: skip
    np.testing.assert_array_equal(ours.means_, same.mixture.assembled_means)
    assert ours.lower_bound_ == pytest.approx(ours.score(X))
    assert ours.predict_proba(X).shape == (len(X), 3)
    assert ours.n_iter_ == 60
    np.testing.assert_array_equal(ours.fit_predict(X), ours.predict(X))


def test_the_estimator_on_a_graph(X):
    ours = FedEM(3, workers=6, graph="cycle", compress="natural:12bits", init=ROWS, max_iter=30)
    ours.set_params(tol=0.0).fit(X)
    assert ours.graph_.topology == "cycle"
    assert ours.fit_.run.statistics.shape[0] == 6


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
def test_a_fit_pickled_before_settings_said_what_was_chosen_is_told_and_kept(X):
    ours = FedEM(3, workers=3, variance_reduction=True, max_iter=20, random_state=1).fit(X)
    before = copy.deepcopy(ours)
    run = before.fit_.run
    chosen = run.settings
    state = {name: value for name, value in vars(run).items() if name != "settings"}
    vars(run.steps).update(
        taken=chosen.step_size, batch_size=chosen.batch_size, inner=chosen.inner,
        max_iter=chosen.max_iter,
    )  # fmt: skip
    before.fit_.run = type(run).__new__(type(run))
    before.fit_.run.__setstate__(state)
    assert before.summary() == ours.summary()
    assert before.kept().report == ours.kept().report
    assert before.kept().report["inner"] == chosen.inner > 0


# ---- coming to rest ------------------------------------------------------------------------------

ITSELF = {"max_iter": None, "tol": 1e-10, "record_every": 1000}
"""As the defaults are."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        EXACT,
        {"compress": "qsgd:8bits", "participation": 0.6},
        {"compress": "topk:0.4", "seed": 5},
        {"variance_reduction": True, "seed": 1},
    ],
    ids=["plain", "EM", "quantized", "feedback", "reduced"],
)
def test_a_run_ends_by_itself_where_it_can_rest(X, options):
    ours = run(X, 3, **{**ITSELF, **options})
    assert ours.run.converged
    assert ours.run.n_iter < 400 / ours.run.steps.safe
    # What comes after that changes nothing to speak of.
    longer = run(X, 3, **{**options, "max_iter": 3 * ours.run.n_iter // 2, "record_every": 1000})
    assert ours.log_likelihood == pytest.approx(longer.log_likelihood, abs=1e-5)


def test_units_do_not_matter_to_when_a_run_ends(X):
    units = np.array([1e-3, 1.0, 1e3, 1e5])
    options = {**ITSELF, **EXACT, "reg_covar": 0.0}
    assert run(X * units, **options).run.n_iter == run(X, **options).run.n_iter


@pytest.mark.parametrize(
    ("options", "noise"),
    [
        ({"batch_size": 20, "step_size": 0.3}, "noise of batches"),
        ({"participation": 0.5, "memory": "none"}, "noise of codecs"),
    ],
    ids=["batches", "absent"],
)
@pytest.mark.filterwarnings("ignore:weights or covariances")
def test_a_run_ends_where_noise_alone_moves_it(X, options, noise):
    options = {**ITSELF, "covariance_type": "tied", **options}  # which is seldom projected
    with pytest.warns(VpemWarning, match=noise):
        ours = run(X, 3, **options)
    assert ours.run.converged
    assert ours.run.in_noise
    assert ours.run.n_iter < 1000
    # It would go on about here.
    longer = run(X, 3, **{**options, "tol": 0.0, "record_every": 5, "max_iter": 400})
    about = np.array(longer.run.history.objective[40:])
    assert abs(ours.log_likelihood - about.mean()) < 5 * about.std()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 6, "step_size": "decreasing:0.5"},  # which make noise smaller still
        {"batch_size": 6, "max_iter": 39},
    ],
    ids=["decreasing", "short"],
)
@pytest.mark.filterwarnings("ignore:weights or covariances")
def test_a_run_that_noise_keeps_from_its_end_says_so(X, options):
    with pytest.warns(NotConvergedWarning, match="noise of batches keeps them there"):
        ours = run(X, 3, **{**ITSELF, "max_iter": 150, **options})
    assert not ours.run.converged


def test_drift_is_told_from_noise():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(400, 1, 20))
    still, drifting = Drift((1, 20), None), Drift((1, 20), None)
    ends = [still.is_over(one, 0.5, number) for number, one in enumerate(noise)]
    assert ends.index(True) == 39
    assert sum(ends) >= 3
    moved = noise + 0.2 * np.arange(400)[:, None, None]
    assert not any(drifting.is_over(one, 0.5, number) for number, one in enumerate(moved))
    assert not Drift((1, 20), None).is_over(noise[0], 0.5, 0.0)
    few, falling = Drift((1, 20), None), Drift((1, 20), None)
    assert not any(few.is_over(one, 0.5, 0.005 * number) for number, one in enumerate(noise))
    short = Drift((1, 20), None)  # steps that take 200 iterations to 20 whole ones
    ends = [short.is_over(one, 0.1, number) for number, one in enumerate(noise)]
    assert ends.index(True) == 199
    steps = 1 / np.arange(1, 401)
    assert not any(map(falling.is_over, noise, steps, range(400)))


def test_small_corrections_count_in_a_row():
    rest = Rest(1e-4, looks_needed(True, 0.5, 0), None)
    at = np.ones((2, 3))
    small, large = at * (1 + 1e-3), at * np.array([[1.0], [1.5]])
    assert rest.looks == 20
    for moved in [small] * 19 + [large] + [small] * 19:
        assert rest.record_correction(*rest.look(at, moved, 0.5, 0.0)) == (False, False)
    assert rest.record_correction(*rest.look(at, small, 0.5, 0.0)) == (True, False)
    # Before it is multiplied by the step.
    assert rest.look(at, at * (1 + 1e-2), 0.5, 0.0) == [True]
    assert looks_needed(False, 1.0, 0) == 1
    assert looks_needed(True, 1.0, 30) == 60
    assert Rest(0.0, 1, None).look(at, at, 1.0, 0.0) == [True]


# ---- the benchmark -------------------------------------------------------------------------------


def test_eight_times_fewer_bytes_than_exact_em(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from benchmarks import fedem, fedem_bytes

    blob = next(p for p in fedem_bytes.problems("small") if "2000 x 8" in p[0])
    digits = ("digits", fedem_bytes.digits()[0], 12, "tied")
    monkeypatch.setattr(fedem_bytes, "problems", lambda size: [digits, blob])
    monkeypatch.setattr(fedem_bytes, "MOST", 80)
    assert fedem.main(["bytes", "--folder", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "fedem-bytes-small.json").read_text())
    ours = [row for row in rows if row["codec"] == "qsgd:4bits:32"]
    assert len(ours) == 2
    for row in ours:
        assert row["seeds within 1e-3"] == "1 of 1"
        assert row["gap"] < 1e-3
        # Exact EM of these blobs stops after 7 iterations, of which one is the setup.
        assert row["ratio, exact to its stop"] > (8 if "digits" in row["name"] else 6)
        assert row["ratio, exact to its stop"] > row["ratio"] > 4
    assert (tmp_path / "fedem-bytes-small.png").stat().st_size > 10_000
