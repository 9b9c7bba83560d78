"""Who takes part in FedEM: probabilities worker by worker, schedules, naive means, batches."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from vpem import FedEM, FileError, InputError, VpemWarning, fit_fedem, fit_imputation, make_graph
from vpem.checks import least_participation, parse_participation
from vpem.fits.prepare import read_presence
from vpem.network.codecs import draw_keys, parse_codec
from vpem.network.partition import evenly, from_worker_of_row
from vpem.settings import FedSettings
from vpem.steps.fedem import run_fedem
from vpem.sums.connect import connect_workers
from vpem.sums.partial import Presence
from vpem.terms.lowrank.entries import from_matrices

from .fedem_support import mixture_model, run
from .tables import each, over

pytestmark = pytest.mark.filterwarnings("ignore:steps of")

CHANCES = (0.9, 0.2, 0.5, 1.0, 0.7)
SCHEDULE = ((0, 1), (2, 4), (), (1, 3))
ROWS = np.array([4, 1, 3, 2, 5])


class Pull:
    """Each worker's statistic is a place of its own, towards which the parameters are drawn."""

    bounds, least_batch, is_judged = None, 1, True

    def __init__(self, n=5, size=12):
        rng = np.random.default_rng(3)
        self.places, self.size = rng.normal(size=(n, size)), size
        self.counts = self.masses = ROWS[:n]
        self.pieces = (slice(0, size),)

    def draw(self, worker, count, rng, replace=False):
        return rng.choice(int(self.counts[worker]), count, replace=replace, shuffle=False)

    def expect(self, worker, parameters, rows):
        return 0.3 * np.sin(parameters) + self.places[worker]

    def maximize(self, statistic, root=0):
        return statistic, 0

    def objective(self, parameters):
        return -float((parameters**2).sum())


def by_the_paper(model, n_iter, step, alpha, who, chances, codec=None, naive=False, seed=0):
    """FedEM as Dieuleveut et al. 2021 have it, with a probability of each worker (A 9)."""
    rng, n = np.random.default_rng(seed), len(model.counts)
    rho = model.counts / model.counts.sum()
    S, V = np.zeros(model.size), np.zeros((n, model.size))
    for k in range(n_iter):
        A = who(rng, k)
        D = np.array([model.expect(i, S, None) for i in A]).reshape(-1, model.size) - S - V[A]
        keys = draw_keys(rng, len(A)) if codec else None
        Q = codec.transmit(D, keys)[0] if codec else D
        if naive:
            H = (rho[A, None] * Q).sum(axis=0) / (rho[A].sum() or 1)
        else:
            H = rho @ V + (rho[A, None] * Q / chances[A, None]).sum(axis=0)
        V[A] += alpha * Q
        S = S + step * H
    return S, V


def drawn(chances):
    return lambda rng, k: np.flatnonzero(rng.random(len(chances)) < chances)


def listed(rng, k):
    return np.array(SCHEDULE[k % 4], dtype=int)


SHARES = np.bincount(np.concatenate(SCHEDULE).astype(int), minlength=5) / 4
WAYS = {
    "list": (CHANCES, drawn(np.array(CHANCES)), np.array(CHANCES)),
    "schedule": (SCHEDULE, listed, SHARES),
}


def fed(model, value, network=None, seed=0, **options):
    options = {"max_iter": 40, "step_size": 0.2, "tol": 0.0, "memory": "zero", **options}
    return run_fedem(
        model, np.zeros(model.size), participation=value, network=network,
        rng=np.random.default_rng(seed), **options,
    )  # fmt: skip


@over(way=[*WAYS], codec=[None, "blockp:4", "qsgd:4bits:3,5:inf"], memory=["zero", "none"])
def test_each_worker_has_a_probability_of_its_own(way, codec, memory):
    value, who, chances = WAYS[way]
    model, codec = Pull(), codec and parse_codec(codec)
    ours = fed(model, value, codec=codec, memory=memory)
    S, V = by_the_paper(model, 40, 0.2, ours.alpha, who, chances, codec)
    np.testing.assert_allclose(ours.statistic, S, rtol=0, atol=1e-11)
    np.testing.assert_allclose(ours.memories, V, rtol=0, atol=1e-11)
    np.testing.assert_allclose(ours.memory, model.counts / 15 @ V, rtol=0, atol=1e-11)


@over(value=[0.5, CHANCES, SCHEDULE], codec=[None, "qsgd:4bits"])
def test_the_naive_mean_is_over_those_that_take_part(value, codec):
    model, codec = Pull(), codec and parse_codec(codec)
    ours = fed(model, value, codec=codec, memory="naive")
    chances = np.full(5, value) if value == 0.5 else np.array(CHANCES)
    who = listed if value is SCHEDULE else drawn(chances)
    S, _ = by_the_paper(model, 40, 0.2, 0.0, who, chances, codec, naive=True)
    np.testing.assert_allclose(ours.statistic, S, rtol=0, atol=1e-11)
    assert not ours.memories.any()


@each("value", [CHANCES, SCHEDULE])
def test_a_tree_finds_what_a_server_does_and_sends_two_sums(value):
    tree = connect_workers(make_graph("path", 5), sum="tree")
    alike, ours = fed(Pull(), 0.5, tree), fed(Pull(), value, tree)
    star = fed(Pull(), value, connect_workers(make_graph("star", 5)))
    np.testing.assert_allclose(ours.statistic, star.statistic, rtol=0, atol=1e-12)
    assert ours.history.bytes_up[-1] > 0
    assert ours.history.bytes_up[1] % (2 * 8 * 12) == 0
    assert alike.history.bytes_up[1] % (8 * 12) == 0
    np.testing.assert_allclose(ours.memory, ROWS / 15 @ ours.memories, rtol=0, atol=1e-12)


@over(value=[CHANCES, SCHEDULE], memory=["zero", "naive"])
def test_peers_find_what_a_server_does(value, memory):
    peers = connect_workers(make_graph("complete", 5), n_rounds=60)
    ours, star = (fed(Pull(), value, one, memory=memory) for one in (peers, None))
    np.testing.assert_allclose(ours.statistic, star.statistic, rtol=0, atol=1e-7)


def test_one_probability_for_all_is_that_of_each():
    one, each_one = fed(Pull(), 0.6), fed(Pull(), (0.6,) * 5)
    np.testing.assert_array_equal(one.statistic, each_one.statistic)
    whole = fed(Pull(), (1.0,) * 5), fed(Pull(), ((0, 1, 2, 3, 4),)), fed(Pull(), 1.0)
    for two in whole:
        np.testing.assert_allclose(two.statistic, whole[0].statistic, rtol=0, atol=1e-13)


def test_memories_reach_the_fixed_point_and_naive_means_do_not():
    """Where workers differ the mean of those who are there is another fixed point (Appendix A)."""
    model = Pull()
    for memory, reached in (("zero", True), ("naive", False)):
        S = fed(
            model, (1.0, 0.1, 0.1, 0.1, 1.0), max_iter=900, step_size=0.08, memory=memory
        ).statistic  # fmt: skip
        field = np.abs(ROWS / 15 @ (0.3 * np.sin(S) + model.places) - S).max()
        assert field < 1e-6 if reached else field > 0.1


# ---- how it is said ------------------------------------------------------------------------------


@each(
    ("text", "known", "least"),
    [
        (" 1 ", 1.0, 1.0),
        ("0.9,0.5", (0.9, 0.5), 0.5),
        ([1, 0.25], (1.0, 0.25), 0.25),
        (np.array([1, 0.25]), (1.0, 0.25), 0.25),
        ("anna=0.9, bert=0.5", {"anna": 0.9, "bert": 0.5}, 0.5),
        ({"anna": 1}, {"anna": 1.0}, 1.0),
        ("anna,bert; cleo", (("anna", "bert"), ("cleo",)), 0.5),
        ("0;1;;1", (("0",), ("1",), (), ("1",)), 0.25),
        ([[0, 0], [], []], (("0", "0"), (), ()), 1 / 3),
    ],
)
def test_ways_to_say_it(text, known, least):
    assert parse_participation(text) == known
    assert parse_participation(parse_participation(text)) == known
    assert least_participation(text) == pytest.approx(least)


@each(
    "bad",
    ["", "x", "0", "0.5,", "0.5,1.5", "a=", "a=0.5,b", [], {}, [True], [0.5, "0.2"], None, "nan",
     [0.5, [1]], {"a": "0.5"}, -1, 2, np.inf, ["ab", "cd"]],
)  # fmt: skip
def test_what_says_nothing_is_one_sentence(bad):
    with pytest.raises(InputError, match="participation must be a"):
        FedEM(participation=bad).fit(np.random.default_rng(0).normal(size=(20, 2)))


ABC, NUMBERS = ["anna", "bert", "cleo"], ["1", "2", "3"]


@each(
    ("value", "names", "why"),
    [
        ((0.5, 0.5), ABC, "has 2 probabilities, but 3 could take part"),
        ({"anna": 0.5, "bert": 0.5}, ABC, "has no probability of 'cleo'"),
        ({"anna": 0.5, "0": 0.5}, ABC, "has 'anna' twice"),
        ("cleo,1,bert;anna", ABC, "has 'bert' twice"),
        (
            {"anna": 0.5, "bert": 0.5, "cleo": 1, "cloe": 1},
            ABC,
            "names 'cloe' .did you mean 'cleo'",
        ),
        ("anna,bert;anna", ABC, "has 'cleo' in no iteration"),
        ("anna,anna;bert;cleo", ABC, "has 'anna' twice"),
        ("anna,bert;dora;cleo", ABC, "names 'dora', but there are 'anna', 'bert'"),
        ("anna=0.5,anna=1", ABC, "names a worker twice"),
        ("0;1;3", ABC, "names '3', but there are"),
        ("0;1;2;3", NUMBERS, "names '0', but there are '1', '2', '3'"),
        ("0=0.5,1=1,2=1", NUMBERS, "names '0', but there are '1', '2', '3'"),
    ],
)
def test_names_that_do_not_fit_are_refused(value, names, why):
    """Numbers stand for names where no name is one."""
    assert Presence.of("1;3;2,3", NUMBERS).plain == ((0,), (2,), (1, 2))
    assert Presence.of("2=0.5,1=1,3=0.7", NUMBERS).plain == (1.0, 0.5, 0.7)
    with pytest.raises(InputError, match=why):
        Presence.of(value, names)


def test_names_numbers_and_files_are_the_same(overlapping, tmp_path):
    X = overlapping(8, 210, 4)
    held = from_worker_of_row(np.arange(210) % 3, ["anna", "bert", "cleo"])
    common = {"workers": held, "max_iter": 4, "init": [3, 90, 170], "step_size": 0.3}
    (tmp_path / "who.json").write_text(json.dumps({"cleo": 1, "anna": 0.5, "bert": 0.8}))
    (tmp_path / "when.json").write_text(json.dumps([["anna", "bert"], ["cleo"]]))
    alike = (
        [(0.5, 0.8, 1.0), "0.5,0.8,1", "bert=0.8,0=0.5,2=1", str(tmp_path / "who.json")],
        [((0, 1), (2,)), "0,1;2", "anna,bert;cleo", str(tmp_path / "when.json")],
        [np.array([0.5, 0.8, 1.0]), "0.5,0.8,1"],
        [np.array(0.5), 0.5],
    )
    for ways in alike:
        fits = [run(X, participation=way, **common) for way in ways]
        for one in fits[1:]:
            np.testing.assert_array_equal(one.run.statistic, fits[0].run.statistic)
        told = fits[0].options
        assert told["participation"] == 0.5
        assert len(told.get("participation_by_worker", "abc")) == 3
    (tmp_path / "who.json").write_text('"when.json"')
    with pytest.raises(InputError, match=r"who\.json must hold who takes part, got the name"):
        run(X, participation=str(tmp_path / "who.json"), **common)
    (tmp_path / "who.json").write_text("{")
    with pytest.raises(FileError, match=r"who\.json"):
        run(X, participation=str(tmp_path / "who.json"), **common)


def test_files_of_processes_must_agree(tmp_path):
    path = tmp_path / "who.json"
    path.write_text("[0.5, 1]")
    settings = FedSettings(participation=str(path))

    def network(*others):
        engine = SimpleNamespace(allgather=lambda mine: [mine, *others])
        return SimpleNamespace(agents=SimpleNamespace(engine=engine))

    assert read_presence(settings, ["a", "b"], network()).participation == (0.5, 1.0)
    with pytest.raises(InputError, match="in a file that differs between processes"):
        read_presence(settings, ["a", "b"], network("another"))
    with pytest.raises(InputError, match=r"must be read from the file .*who\.json first"):
        least_participation(str(path))


def test_observers_take_part_by_themselves():
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 8))
    parts = [np.where(rng.random(whole.shape) < 0.6, whole, np.nan) for _ in range(3)]
    parts[0] = whole.copy()
    common = {"rank": 2, "ridge": 0.1, "max_iter": 3000, "tol": 1e-7}
    full = fit_imputation(from_matrices(parts), **common)
    some = fit_imputation(from_matrices(parts), participation=(0.9, 0.5, 0.7), **common)
    np.testing.assert_allclose(some.factors.theta, full.factors.theta, atol=1e-4)


# ---- rules ---------------------------------------------------------------------------------------


@each(
    ("options", "why"),
    [
        *(
            ({"memory": "naive", "participation": all_are_there}, "that take part, but all do")
            for all_are_there in (1, [1] * 7, [list("0123456")], "0,1,2,3,4,5,6;6,5,4,3,2,1,0")
        ),
        ({"memory": "naive", "participation": 0.5, "alpha": 0.3}, "leaves none"),
        ({"memory": "naive", "participation": 0.5, "compress": "topk:0.2"}, "is biased"),
        ({"replacement": True}, "is how the rows of batches are drawn"),
        (
            {"replacement": True, "variance_reduction": True, "workers": 70},
            "is how the rows of batches are drawn",
        ),
        ({"participation": (0.5,) * 7, "network": "masked"}, "totals over changing sets"),
    ],
)
def test_what_cannot_be_is_one_sentence(overlapping, options, why):
    if "network" in options:
        masked = connect_workers(make_graph("star", 7), secure_sum=True)
        options = options | {"network": masked, "init": "kmeans"}
    with pytest.raises(InputError, match=why):
        run(overlapping(8, 210, 4), **options)


# ---- batches with replacement --------------------------------------------------------------------


@each("weighs", [False, True])
def test_batches_with_replacement_are_independent_draws(overlapping, weighs):
    X = overlapping(8, 210, 4)
    weights = np.random.default_rng(1).gamma(2.0, size=len(X)) if weighs else None
    model = mixture_model(X, 1, row_weights=weights)
    rng = np.random.default_rng(0)
    drawn = np.array([model.draw(0, 50, rng, True) for _ in range(2000)])
    chances = (np.ones(210) if weights is None else weights) / (210 if weights is None else 1)
    chances = chances / chances.sum()
    counts = np.bincount(drawn.ravel(), minlength=210)
    expected = drawn.size * chances
    assert ((counts - expected) ** 2 / expected).sum() < 300  # chi squared of 209
    # Two places of a batch have the same row as often as two independent draws.
    same = (drawn[:, 0] == drawn[:, 1]).mean()
    known = (chances**2).sum()
    assert abs(same - known) < 5 * np.sqrt(known / 2000)
    if not weighs:
        for batch in [model.draw(0, 50, rng) for _ in range(20)]:
            assert len(set(batch)) == 50


@over(reduced=[False, True], size=[5, 9])
def test_batches_with_replacement_are_drawn_where_they_are_no_smaller(reduced, size):
    class Drawn(Pull):
        batches = ()

        def expect(self, worker, parameters, rows):
            self.batches += ((worker, rows),)
            return super().expect(worker, parameters, rows)

    model, common = Drawn(), {"max_iter": 3, "batch_size": size, "memory": "none", "tol": 0}
    common |= {"variance_reduction": reduced, "inner": 5 if reduced else None}
    fed(model, 1.0, replacement=True, **common)
    drawn = [rows for _, rows in model.batches if rows is not None]
    assert len(drawn) == (20 if reduced else 15)  # without reduction every iteration
    assert {len(rows) for rows in drawn} == {size}
    model.batches = ()
    fed(model, 1.0, **common)
    assert all(rows is None for _, rows in model.batches)


def test_batches_with_replacement_end_at_the_same_place(overlapping):
    X = overlapping(8, 90, 3)
    reduced = {"batch_size": 5, "variance_reduction": True, "step_size": 0.2}
    init = {"init": [3, 40, 70]}
    one = run(X, max_iter=500, replacement=True, tol=1e-10, **reduced, **init)
    exact = run(X, max_iter=400, step_size=1.0, **init)
    assert one.log_likelihood == pytest.approx(exact.log_likelihood, abs=1e-4)
    other = run(X, max_iter=5, tol=0.0, **reduced, **init)
    assert one.run.history.objective[5] != other.run.history.objective[5]
    assert (one.options["replacement"], "replacement" in other.options) == (True, False)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_the_estimator_takes_them(overlapping):
    X = overlapping(8, 210, 4)
    ours = FedEM(
        3, workers=5, participation=[0.9, 0.5, 0.5, 0.5, 0.2], batch_size=20, replacement=True,
        memory="naive", max_iter=10, random_state=0,
    ).fit(X)  # fmt: skip
    assert ours.n_iter_ == 10
    known = fit_fedem(
        X, evenly(210, 5), n_components=3, participation=[0.9, 0.5, 0.5, 0.5, 0.2], batch_size=20,
        replacement=True, memory="naive", max_iter=10,
    )  # fmt: skip
    np.testing.assert_array_equal(ours.statistic_, known.run.statistic)


def test_who_is_there_on_average_is_who_was_meant():
    presence = Presence.of(CHANCES, list("abcde"))
    rng, among = np.random.default_rng(0), np.array([0, 1, 3, 4])
    there = np.zeros(5)
    for _ in range(4000):
        there[presence.draw(rng, 1, among)] += 1
    known = np.array(CHANCES) * [1, 1, 0, 1, 1]
    assert (np.abs(there / 4000 - known) <= 5 * np.sqrt(known * (1 - known) / 4000)).all()
    with pytest.warns(VpemWarning, match="steps of"):
        fed(Pull(), CHANCES, step_size=0.9, max_iter=1)
