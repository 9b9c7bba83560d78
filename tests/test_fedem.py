"""FedEM: EM, memories, variance reduction, what it costs, steps, when it rests, what is refused.

Ways, engines and splits are cells of the table (cells_fedem.py, cells_vr_fedem.py).
"""

import copy

import numpy as np
import pytest
from sklearn.datasets import load_wine

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
from vpem.network.partition import evenly, from_worker_of_row
from vpem.settings import COVARIANCE_TYPES
from vpem.steps.fedem import first_statistics, run_fedem
from vpem.steps.fedem_steps import (
    MOST_ITERATIONS,
    WHOLE_STEPS,
    Drift,
    Rest,
    batches_of,
    enough_iterations,
    looks_needed,
    noise_of,
    safe_step,
    step_ceiling,
    theorem_step,
)
from vpem.steps.fedem_sums import parse_step_size
from vpem.sums.connect import connect_workers
from vpem.sums.quantizer import Quantizer

from .fedem_support import EXACT, REG, ROWS, em, mixture_model, run
from .tables import each, each_once, over

CODECS = (None, "qsgd:8bits", "blockp:16", "natural:10bits", "topk:0.3", "randk:0.5", "float16")


@pytest.fixture
def X(overlapping):
    return overlapping(8, 210, 4) + 5.0


class Toy:
    """Statistics that do not depend on parameters: each worker has a constant vector."""

    bounds, least_batch, is_judged = None, 1, True

    def __init__(self, values, counts=None, pieces=None):
        self.values = np.asarray(values, dtype=float)
        self.size = self.values.shape[1]
        self.counts = np.array(counts or [1] * len(self.values))
        self.pieces = pieces or (slice(0, self.size),)
        self.masses = self.counts

    def draw(self, worker, count, rng, replace=False):
        return rng.choice(int(self.counts[worker]), count, replace=False, shuffle=False)

    def expect(self, worker, parameters, rows):
        return self.values[worker]

    def maximize(self, statistic, root=0):
        return statistic, 0

    def objective(self, parameters):
        return -float((parameters**2).sum())


# ---- identities ----------------------------------------------------------------------------------


@each("covariance_type", COVARIANCE_TYPES)
def test_by_default_it_is_em_also_where_workers_have_one_row_or_none(X, covariance_type):
    worker_of = np.arange(len(X)) % 3 + 1
    worker_of[5] = 4
    held = from_worker_of_row(worker_of, names=[f"w{i}" for i in range(6)])
    history, wanted = em(X, 12, covariance_type)
    ours = run(X, held, covariance_type=covariance_type, reg_covar=REG, max_iter=11)
    np.testing.assert_allclose(ours.run.history.objective[:-1], history[1:], rtol=0, atol=1e-10)
    for part in ("weights", "means", "covariances"):
        found, known = (getattr(one, f"assembled_{part}") for one in (ours.mixture, wanted))
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-10)
    assert (ours.run.projections, ours.run.settings.step_size) == (0, "constant:1")


def test_memories_change_nothing_where_nothing_is_random(X):
    plain = run(X, max_iter=15, step_size=0.7, memory="none")
    for memory in ("first", "zero"):  # which is refused where all send everything
        other = run(X, max_iter=15, step_size=0.7, memory=memory, participation=1 - 1e-12)
        np.testing.assert_allclose(other.run.statistic, plain.run.statistic, rtol=1e-9, atol=1e-9)


def test_to_count_workers_alike_is_to_count_each_of_ten_rows_twenty_times(X):
    held = from_worker_of_row(np.r_[np.zeros(10, int), np.ones(len(X) - 10, int)])
    again = np.concatenate([np.repeat(X[:10], 20, axis=0), X[10:]])
    start = [ROWS[0] * 20, *(np.array(ROWS[1:]) + 190)]
    for kind, data, init in (("rows", X, ROWS), ("workers", again, start)):
        how = {"max_iter": 5, "covariance_type": "tied", **EXACT}
        weighed, pooled = run(X, held, weighting=kind, **how), run(data, 1, init=init, **how)
        ours, theirs = (one.mixture.assembled_means for one in (weighed, pooled))
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_few_rounds_leave_peers_apart_but_not_farther_and_farther(X):
    with pytest.warns(Warning, match="too few"):
        network = connect_workers(make_graph("cycle", 7), n_rounds=3)
    ours = run(X, network=network, max_iter=80, step_size=0.5)
    apart = np.array(ours.run.history.disagreement)
    assert apart[-1] < 3 * np.median(apart[10:30])
    assert apart[-1] > 1e-4
    assert run(X, max_iter=2).run.history.disagreement[-1] == 0


def test_a_network_that_falls_apart_for_good_is_given_up():
    network = connect_workers(make_graph("path", 7), link_failure=0.9, n_rounds=2)
    common = {"max_iter": 40, "memory": "zero", "rng": np.random.default_rng(0)}
    with pytest.raises(NumericalError, match="was disconnected in 20 iterations"):
        run_fedem(Toy(np.ones((7, 3))), np.zeros(3), network=network, **common)


# ---- memories ------------------------------------------------------------------------------------


@each_once(codec=CODECS, memory=["first", "zero"])
def test_the_mean_of_the_memories_is_kept(X, codec, memory):
    seen, model = [], mixture_model(X)

    def look(progress):
        np.testing.assert_allclose(progress.memory, progress.memories.mean(axis=0), atol=1e-10)
        seen.append(progress.n_active)

    start = first_statistics(model, model.start(model.terms.at_rows(np.array(ROWS))))
    run_fedem(
        model, start, max_iter=25, step_size=0.1, codec=codec and parse_codec(codec),
        participation=0.6, batch_size=20, memory=memory, rng=np.random.default_rng(1),
        callback=look,
    )  # fmt: skip
    assert len(seen) == 25 > len(set(seen)) > 1


@each("codec", (None, "qsgd:4bits", "topk:0.3", "randk:0.5"))
def test_noise_vanishes_with_memories_and_not_without(codec):
    values = 10 * np.random.default_rng(0).normal(size=(8, 40))
    model = Toy(values, pieces=(slice(0, 10), slice(10, 40)))
    codec = codec and parse_codec(codec)
    common = {"max_iter": 400, "step_size": 0.08, "participation": 0.5, "codec": codec}

    def ran(memory):
        rng = np.random.default_rng(1)
        return run_fedem(model, np.zeros(40), rng=rng, memory=memory, **common)

    ours, unbiased = ran("zero"), codec is None or codec.is_unbiased
    omega = max(map(codec.variance, (10, 30))) if codec and unbiased else 0.0
    assert ours.alpha == pytest.approx(1 / (1 + omega))
    assert ours.history.mean_field[-1] < 1e-4 * ours.history.mean_field[0]
    np.testing.assert_allclose(ours.memory, 0, atol=0.5)
    if unbiased:
        tail = np.median(ran("none").history.mean_field[-100:])
        assert tail > 1e3 * ours.history.mean_field[-1]


def test_pieces_have_scales_of_their_own():
    """With one norm for both a level of qsgd:8bits would be larger than all small values."""
    small, large = np.full(8, 1e-6), np.full(8, 1e6)
    values, found = np.tile(np.r_[small, large], (3, 1)), []
    common = {"max_iter": 1, "step_size": 1.0, "codec": parse_codec("qsgd:8bits"), "memory": "none"}
    for pieces in ((slice(0, 8), slice(8, 16)), None):
        model, rng = Toy(values, pieces=pieces), np.random.default_rng(0)
        found.append(run_fedem(model, np.zeros(16), rng=rng, **common).statistic[:8])
    np.testing.assert_allclose(found[0], small, rtol=0.1)
    assert np.abs(found[1] - small).max() > 0.5 * small[0]


# ---- what it costs -------------------------------------------------------------------------------


@each("codec", CODECS)
def test_bytes_are_those_of_the_messages(codec):
    model = Toy(np.ones((5, 30)), pieces=(slice(0, 4), slice(4, 30)))
    codec, ledger, heard = codec and parse_codec(codec), Ledger(make_graph("star", 5)), []
    ours = run_fedem(
        model, np.zeros(30), max_iter=6, codec=codec, participation=0.6, memory="zero",
        ledger=ledger, rng=np.random.default_rng(3),
        callback=lambda progress: heard.append(progress.n_active),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    each = 240 if codec is None else sum(len(codec.encode(np.ones(n), rng)) for n in (4, 26))
    # The server tells those that take part, and all at the end.
    up, down = sum(heard) * each, (sum(heard) + 5) * 240
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
    how = {"max_iter": 11, "batch_size": 10, "compress": "qsgd:8bits"}
    often, seldom = (run(X, record_every=n, **how).run for n in (1, 4))
    assert seldom.history.iteration == [0, 4, 8, 11]
    np.testing.assert_array_equal(seldom.statistic, often.statistic)
    assert seldom.epochs == often.epochs
    assert seldom.history.mean_field[1] == often.history.mean_field[4]


def test_mean_field_is_the_distance_to_the_workers_mean(X):
    model = mixture_model(X)
    start = first_statistics(model, model.start(model.terms.at_rows(np.array(ROWS))))
    ours = run_fedem(model, start, max_iter=3, step_size=0.3, rng=np.random.default_rng(0))
    full = np.full(7, 1 / 7) @ first_statistics(model, ours.parameters)
    wanted = ((full - ours.statistic) ** 2).sum()
    assert ours.history.mean_field[-1] == pytest.approx(wanted, rel=1e-12)
    assert ours.history.objective[-1] == pytest.approx(ours.parameters.score_samples(X).mean())


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


# ---- steps ---------------------------------------------------------------------------------------


def wine():
    """Standardized and shuffled."""
    rows = load_wine().data
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    return rows[np.random.default_rng(0).permutation(len(rows))]


def three_groups():
    """Three components that overlap, dealt out by component."""
    rng = np.random.default_rng(3)
    means, labels = rng.normal(0, 1.0, (3, 5)), rng.integers(0, 3, 400)
    rows = means[labels] + rng.normal(size=(400, 5)) @ (np.eye(5) + 0.4 * rng.normal(size=(5, 5)))
    return rows[np.argsort(labels)]


KINDS = {
    "wine": (wine(), 2, evenly(178, 10)),
    "sorted": (three_groups(), 3, from_worker_of_row(np.repeat(range(4), [20, 200, 40, 140]))),
}


@pytest.mark.filterwarnings("ignore:not converged", "ignore:weights or covariances")
@each(
    ("kind", "codec", "p", "reduced"),
    [("wine", "qsgd:2bits:32", 0.25, False), ("sorted", "randk:0.2", 0.25, True)],
)
def test_defaults_end_where_em_does(kind, codec, p, reduced):
    X, k, workers = KINDS[kind]
    ours = fit_fedem(
        X, workers, n_components=k, compress=codec, participation=p, variance_reduction=reduced,
        record_every=MOST_ITERATIONS,
    )  # fmt: skip
    # From the start that a fit has by default.
    how = {"step_size": 1.0, "memory": "none", "tol": 1e-16, "max_iter": 5000}
    exact = fit_fedem(X, workers, n_components=k, **how).log_likelihood
    assert abs(ours.log_likelihood / exact - 1) < (1e-3 if ours.converged else 1e-2)


def growth(step, p, omega):
    """Largest eigenvalue of what an iteration makes of the second moments in `safe_step`."""
    alpha = 1 / (1 + omega)
    idle = np.array([[1, -step], [0, 1.0]])
    mean = np.array([[1 - step / p, step / p - step], [alpha, 1 - alpha]])
    noise = np.array([[-step / p, step / p], [alpha, -alpha]])
    parts = ((1 - p, idle), (p, mean), (p * omega, noise))
    return np.abs(np.linalg.eigvals(sum(w * np.kron(A, A) for w, A in parts))).max()


@over(
    p=[1.0, 0.95, 0.9, 0.5, 0.2, 0.05],
    codec=[None, "qsgd:8bits", "qsgd:4bits", "topk:0.2", "randk:0.1"],
)
def test_noise_does_not_outgrow_safe_steps(codec, p):
    omega = 0.0 if codec is None else noise_of(Quantizer(parse_codec(codec), 600))
    step, ceiling = safe_step(omega, p), step_ceiling(omega, p)
    assert 0 < ceiling <= min(step_ceiling(0.0, p), step_ceiling(omega, 1.0))
    assert step_ceiling(0.0, p) <= step_ceiling(0.0, 1.0) == 2.0
    assert step_ceiling(omega, p, 0.0) == 2 * p / (1 + omega)  # without memories
    assert safe_step(omega, p, reduced=True) <= p / (1 + omega) / 3
    assert omega < 0.1 or step_ceiling(omega, p, 1.0) < ceiling  # memories that believe too much
    assert growth(ceiling, p, omega) == pytest.approx(1.0, abs=1e-6)
    assert growth(step, p, omega) < 1 - 0.3 * step
    assert growth(min(1.0, 3 * step), p, omega) > growth(step, p, omega) or step > 0.9


def test_steps_of_the_theorems_grow_with_workers_and_ours_do_not():
    assert theorem_step(0.0, 1.0, 1) == 0.5  # v_min / (2 L)
    assert theorem_step(0.0, 1.0, 1, reduced=True) == pytest.approx(1 / 3)  # SPIDER-EM
    for reduced in (False, True):
        few, many = (theorem_step(8.0, 0.5, n, reduced) for n in (1, 100))
        assert few < many < 1
    assert theorem_step(8.0, 1.0, 1) < safe_step(8.0, 1.0) < theorem_step(8.0, 1.0, 100)
    assert theorem_step(8.0, 1.0, 512) / theorem_step(8.0, 1.0, 128) == pytest.approx(2)


def test_batches_loops_and_most_iterations_follow_from_steps_and_noise():
    assert batches_of(200.0, 0.0, 1.0, None, None) == (10, 10)
    assert batches_of(200.0, 3.0, 0.5, None, None) == (10, 20)
    assert batches_of(200.0, 0.0, 1.0, 25, None) == (25, 4)
    assert batches_of(200.0, 1.0, 1.0, None, 400) == (100, 400)  # theorem 2: 400 / 2^2
    assert batches_of(200.0, 0.0, 1.0, None, None, 14) == (14, 8)
    assert batches_of(18.0, 0.0, 1.0, None, None, 14) == (None, None)  # all rows are fewer
    assert enough_iterations("constant:1") == WHOLE_STEPS
    assert enough_iterations("constant:0.1") == enough_iterations(0.1) == 10 * WHOLE_STEPS
    assert enough_iterations("constant:0.001") == MOST_ITERATIONS
    assert enough_iterations("decreasing:1,1") == MOST_ITERATIONS
    assert enough_iterations("constant:0.1", noise_stays=True) == WHOLE_STEPS
    assert enough_iterations(lambda iteration: 0.1) == WHOLE_STEPS


def test_steps_are_told_and_long_ones_warned_of():
    X, k, workers = KINDS["wine"]
    how = {"n_components": k, "compress": "blockp:64", "participation": 0.25}
    safe = safe_step(7.0, 0.25)
    with pytest.warns(VpemWarning, match=f"above 0.0197.* omega 7, .* {safe:.3g} is safe"):
        fit_fedem(X, workers, step_size=0.05, max_iter=3, tol=0.0, **how)
    with pytest.warns(NotConvergedWarning):
        ours = fit_fedem(X, workers, max_iter=3, **how)
    told = ours.describe(["x"] * 13, list(workers.names))
    assert told["safe_step"] == pytest.approx(safe)
    assert told["step_size"] == f"constant:{safe:g}"
    assert told["step_ceiling"] == pytest.approx(2 * safe)
    assert told["theorem_step"] == pytest.approx(theorem_step(7.0, 0.25, 10))
    assert (told["batch_size"], told["inner"]) == (None, None)
    assert told["alpha"] == pytest.approx(1 / 8)


def test_step_sizes():
    for text, k, step in (
        ("constant:0.5", 7, 0.5), (0.25, 7, 0.25), ("decreasing:0.8,0.6", 32, 0.8 * 32**-0.6),
        ("decreasing:1", 4, 0.5), ("0.25", 7, 0.25), ("1e0", 7, 1.0),
    ):  # fmt: skip
        assert parse_step_size(text)(k) == pytest.approx(step)
    for text in ("constant", "0", "1.5", "0.5,0.6", "constant:1,2", "decreasing:1,2",
                 "decreasing:a", "constant:nan", True):  # fmt: skip
        with pytest.raises(InputError):
            parse_step_size(text)


# ---- coming to rest ------------------------------------------------------------------------------


ITSELF = {"max_iter": None, "tol": 1e-10, "record_every": 1000}
"""As the defaults are."""


@each(
    "options",
    [
        EXACT,
        {"compress": "topk:0.4", "participation": 0.6, "seed": 5},
        {"variance_reduction": True, "seed": 1},
    ],
)
def test_a_run_ends_by_itself_where_it_can_rest(X, options):
    ours = run(X, 3, **{**ITSELF, **options})
    assert ours.run.converged
    assert ours.run.n_iter < 400 / ours.run.steps.safe
    # What comes after that changes nothing to speak of.
    longer = run(X, 3, **{**options, "max_iter": 5 * ours.run.n_iter // 4, "record_every": 1000})
    assert ours.log_likelihood == pytest.approx(longer.log_likelihood, abs=1e-5)
    with pytest.warns(NotConvergedWarning, match="not converged within 3 iterations"):
        run(X, 3, **{**ITSELF, **options, "max_iter": 3})


def test_units_do_not_matter_to_when_a_run_ends(X):
    units = np.array([1e-3, 1.0, 1e3, 1e5])
    options = {**ITSELF, **EXACT, "reg_covar": 0.0}
    assert run(X * units, **options).run.n_iter == run(X, **options).run.n_iter


@each(
    ("options", "noise"),
    [
        ({"batch_size": 20, "step_size": 0.3}, "noise of batches"),
        ({"participation": 0.5, "memory": "none"}, "noise of codecs"),
    ],
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


@each(
    "options",
    [
        {"batch_size": 6, "step_size": "decreasing:0.5"},  # which make noise smaller still
        {"batch_size": 6, "max_iter": 39},
    ],
)
@pytest.mark.filterwarnings("ignore:weights or covariances")
def test_a_run_that_noise_keeps_from_its_end_says_so(X, options):
    with pytest.warns(NotConvergedWarning, match="noise of batches keeps them there"):
        ours = run(X, 3, **{**ITSELF, "max_iter": 150, **options})
    assert not ours.run.converged


def test_drift_is_told_from_noise():
    noise = np.random.default_rng(0).normal(size=(400, 1, 20))

    def ends(moves, steps, passed):
        drift = Drift((1, 20), None)
        return [drift.is_over(*one) for one in zip(moves, steps, passed, strict=True)]

    half, numbers = [0.5] * 400, range(400)
    still = ends(noise, half, numbers)
    assert still.index(True) == 39
    assert sum(still) >= 3
    # Steps that take 200 iterations to 20 whole ones.
    assert ends(noise, [0.1] * 400, numbers).index(True) == 199
    for moves, steps, passed in (
        (noise + 0.2 * np.arange(400)[:, None, None], half, numbers),
        (noise, half, [0.005 * number for number in numbers]),
        (noise, 1 / np.arange(1, 401), numbers),
        (noise[:1], half[:1], [0.0]),
    ):
        assert not any(ends(moves, steps, passed))


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


@pytest.mark.filterwarnings("ignore:weights or covariances", "ignore:steps of")
def test_what_is_projected_all_the_time_has_not_converged():
    X, k, workers = KINDS["wine"]
    noisy = {"compress": "blockp:64", "participation": 0.25, "step_size": 0.5}
    with pytest.warns(NotConvergedWarning, match="projected in most"):
        ours = fit_fedem(X, workers, n_components=k, tol=1.0, max_iter=60, **noisy)
    assert not ours.converged
    assert ours.run.projected_share > 0.5


# ---- what is refused -----------------------------------------------------------------------------


@each(
    ("options", "why"),
    [
        ({"inner": 3}, "variance reduction"),
        ({"alpha": 0.0, "participation": 0.5}, "memory=.none"),
        ({"alpha": 0.5, "memory": "none", "participation": 0.5}, "leaves none"),
        ({"compress": "topk:0.1", "memory": "none"}, "biased"),
        ({"compress": "topk:0.1", "alpha": 0.5}, "must be 1"),
        ({"compress": "zip"}, "codec must be one of"),
        ({"step_size": "constant:0"}, "above 0"),
        ({"step_size": "linear:1"}, "like constant:0.5"),
        ({"step_size": lambda k: 2.0}, "steps must be above 0"),
        ({"init": [0, 1]}, "3 components need as many"),
        ({"n_components": 999}, "at least as many rows"),
        ({"network": "cycle"}, "must come from"),
        ({"known_covariance": np.eye(4), "scale": "standard", "covariance_type": "tied"}, "units"),
        ({"workers": 211}, "cannot share"),
        ({"workers": evenly(100, 4)}, "hold 100 rows"),
        ({"workers": from_worker_of_row([0, 2] * 105), "weighting": "workers"}, "count alike"),
        ({"network": ("cycle", {}), "compress": "qsgd:8bits"}, "compress to connect_workers"),
        ({"network": ("star", {"compress": "qsgd:8bits"})}, "compresses its corrections itself"),
        ({"network": ("cycle", {}), "workers": 6}, "graph has 7 agents, but there are 6 workers"),
        ({"network": ("cycle", {"agent_dropout": 0.1})}, "give participation"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(X, options, why):
    if isinstance(options.get("network"), tuple):
        topology, how = options["network"]
        options = {**options, "network": connect_workers(make_graph(topology, 7), **how)}
    with pytest.raises(InputError, match=why) as caught:
        run(X, **options)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="the workers must be"):
        fit_fedem(X, 4)
    for start in (np.zeros(3), np.zeros((2, 2)), np.full(2, np.nan)):
        with pytest.raises(InputError, match="the start must be finite"):
            run_fedem(Toy(np.ones((4, 2))), start, max_iter=1, rng=np.random.default_rng(0))


# ---- the estimator, and the benchmark ------------------------------------------------------------


def test_the_estimator_is_the_function(X):
    labels, how = np.arange(len(X)) % 5, {"compress": "qsgd:8bits", "init": ROWS, "tol": 0.0}
    how |= {"participation": 0.7, "max_iter": 60}
    ours = FedEM(3, workers=labels, random_state=2, **how).fit(X)
    same = fit_fedem(X, from_worker_of_row(labels), n_components=3, seed=2, **how)
    np.testing.assert_array_equal(ours.means_, same.mixture.assembled_means)
    assert ours.lower_bound_ == pytest.approx(ours.score(X))
    assert ours.n_iter_ == 60
    peers = FedEM(3, workers=6, graph="cycle", compress="natural:12bits", max_iter=5, tol=0.0)
    assert peers.fit(X).graph_.topology == "cycle"
    assert len(peers.fit_.run.statistics) == 6


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
