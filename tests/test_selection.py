"""Choosing a model: lists, folds, criteria, trials, the record, processes."""

import os
from dataclasses import replace

import numpy as np
import pytest

from vpem import VPEM, InputError, Workers, connect, connect_workers, fit_em, fit_vpem, make_graph
from vpem.errors import FileError, VpemWarning
from vpem.files.checkpoints import write_state
from vpem.fits.selection.search import (
    Record,
    choose,
    compare_folds,
    facts_of,
    grid,
    over_folds,
    run_trials,
    search,
    trials_of,
)
from vpem.fits.selection.trials import Cell, Problem, folds_of
from vpem.fits.settings import MOST_NUMBERS, parse_names, parse_numbers
from vpem.network.partition import contiguous, evenly, from_worker_of_row
from vpem.pictures.history import draw_selection

from .cli_support import overlapping
from .selection_support import Broken as DefectiveProblem
from .selection_support import Deadly
from .tables import each


def problem_of(X, *, agents=3, topology="star", hops=(0,), **options):
    """A problem over split features."""
    graph = make_graph(topology, agents)
    parts = contiguous(X.shape[1], agents)
    networks = {h: connect(graph, parts, hops=h, n_threads=1) for h in hops}
    return Problem(X, networks, None, options)


def separated(n_components, seed, n_samples=150, n_features=3):
    """Rows of clusters that are far apart."""
    rng = np.random.default_rng(seed)
    centres = 8.0 * rng.permutation(np.eye(n_features))[:n_components]
    labels = rng.integers(n_components, size=n_samples)
    return centres[labels] + rng.standard_normal((n_samples, n_features))


def without_times(cells):
    return [{name: value for name, value in cell.items() if name != "seconds"} for cell in cells]


# ---- lists --------------------------------------------------------------------------------------


@each(
    ("text", "numbers"),
    [
        ("3", [3]),
        ("1-4", [1, 2, 3, 4]),
        ("1,2,5", [1, 2, 5]),
        ("2-11:3", [2, 5, 8, 11]),
        ("2-10:3", [2, 5, 8]),
        (" 7 , 1-3,2", [1, 2, 3, 7]),
        ("4-4", [4]),
    ],
)
def test_lists_of_numbers(text, numbers):
    assert parse_numbers("-k", text) == numbers


@each(
    ("text", "words"),
    [
        *((text, "numbers and ranges") for text in ("", "1-", "-1", "1.5", "1,,2", "²")),
        ("5-2", "goes down"),
        ("1-5:0", "steps of 0"),
        ("0-3", "1 or more, got 0"),
        (f"1-{MOST_NUMBERS + 1}", "more than 10000"),
        ("1-999999999", "more than 10000"),
    ],
)
def test_what_is_no_list_is_refused_in_a_sentence(text, words):
    with pytest.raises(InputError, match=words):
        parse_numbers("-k", text, least=1)


def test_lists_of_names():
    assert parse_names("covariance type", "full, diag,full", ("diag", "full")) == ["full", "diag"]
    with pytest.raises(InputError, match="did you mean 'full'"):
        parse_names("covariance type", "diag,ful", ("diag", "full"))


# ---- folds --------------------------------------------------------------------------------------


@each(("n_samples", "n_folds"), [(10, 2), (11, 5), (7, 7)])
def test_every_row_is_held_out_once(n_samples, n_folds):
    folds, again, other = (folds_of(n_samples, n_folds, seed=seed) for seed in (3, 3, 4))
    assert sorted(np.concatenate(folds)) == list(range(n_samples))
    assert np.ptp([len(fold) for fold in folds]) <= 1
    assert all(np.array_equal(one, two) for one, two in zip(folds, again, strict=True))
    assert not np.array_equal(np.concatenate(folds), np.concatenate(other))
    assert not np.array_equal(np.concatenate(folds), np.arange(n_samples))
    with pytest.raises(InputError, match="5 folds need at least as many rows, got 4"):
        folds_of(4, 5, seed=0)


def test_sums_over_all_rows_but_few_show_these_beside_masks():
    X, _ = overlapping(n_samples=24, n_features=2)
    network = connect_workers(make_graph("star", 3), secure_sum=True)
    problem = Problem(X, {0: network}, from_worker_of_row(np.repeat(range(3), 8)), {"max_iter": 1})
    with pytest.raises(InputError, match=r"n_folds=5 has folds of 4 rows.* at least 5"):
        search(problem, grid([1], [0], ["full"]), criterion="heldout", n_folds=5)


# ---- criteria -----------------------------------------------------------------------------------


def test_entropy_of_one_component_is_none_and_rows_without_values_do_not_count():
    X, _ = overlapping(n_samples=60)
    blank = np.vstack([X, np.full((5, X.shape[1]), np.nan)])
    problem, more = problem_of(X), problem_of(blank, missing="marginalize")
    one, two = (problem.fit(Cell(k, 0, "full")) for k in (1, 2))
    assert problem.held(0).judge(one, None).entropy == 0
    found, same = problem.held(0).judge(two, None), more.held(0).judge(two, None)
    assert same.entropy == pytest.approx(found.entropy, rel=1e-12)
    assert (same.weight, found.weight) == (60, 60)
    assert 0 < found.entropy < len(X) * np.log(2)


def test_means_and_standard_errors_over_folds():
    mean, error = over_folds([-10.0, -24.0, -33.0], [5, 6, 6])
    assert mean == pytest.approx(-67 / 17)
    assert error == pytest.approx(np.std([-2.0, -4.0, -5.5], ddof=1) / np.sqrt(3))
    # Models are compared fold by fold.
    mean, error = compare_folds([-1.0, -3.0, -8.0], [0.5, -1.0, -7.5])
    assert mean == pytest.approx(-4 / 3)
    assert error == pytest.approx(np.std([-1.5, -2.0, -0.5], ddof=1) / np.sqrt(3))


def cell_of(
    value, *, criterion="bic", status="converged", n_parameters=10, error=0.0, degenerate=0
):
    return {"status": status, criterion: value, "n_parameters": n_parameters,
            "standard_error": error, "reason": "it fell apart",
            "degenerate": degenerate}  # fmt: skip


def test_lower_is_better_but_for_held_out_likelihood():
    values = [3.0, 1.0, 2.0]
    assert choose([cell_of(v) for v in values], "bic").best == 1
    assert choose([cell_of(v, criterion="heldout") for v in values], "heldout").best == 0
    # Of equals the smaller one, and of these the first.
    assert choose([cell_of(1.0, n_parameters=n) for n in (9, 4, 4)], "bic").best == 1


def test_what_did_not_converge_or_failed_is_passed_over():
    cells = [cell_of(5.0), cell_of(1.0, status="not converged"), cell_of(2.0),
             cell_of(0.0, status="failed"), cell_of(9.0, status="not converged"),
             cell_of(0.5, status="not converged")]  # fmt: skip
    found = choose(cells, "bic")
    assert (found.best, found.passed_over) == (2, [5, 1])
    assert choose(cells[1:2], "bic").best == 0
    with pytest.raises(InputError, match=r"no model of the grid could be fitted.*it fell apart"):
        choose(cells[3:4], "bic")


def test_one_standard_error():
    cells = [
        cell_of(value, criterion="heldout", n_parameters=n, error=0.5, status=status)
        for value, n, status in [
            (-3.0, 1, "converged"), (-1.6, 3, "not converged"), (-1.5, 5, "converged"),
            (-1.49, 5, "converged"), (-1.0, 9, "converged"), (-1.2, 12, "converged"),
        ]
    ]  # fmt: skip
    found = choose(cells, "heldout")
    assert (found.best, found.one_standard_error) == (4, 3)


# ---- trials -------------------------------------------------------------------------------------


@each("init", ["random", "k-means++", "kmeans"])
def test_a_restart_alone_is_what_it_is_among_more(init):
    X, _ = overlapping(n_components=4, gap=0.8)
    network = connect(make_graph("cycle", 3), contiguous(6, 3), hops=0)
    options = {"n_components": 4, "init": init, "seed": 5, "tol": 1e-2}
    together = fit_vpem(X, network, n_init=3, **options)
    alone = [fit_vpem(X, network, n_init=1, first_restart=r, **options) for r in range(3)]
    best = int(np.argmax([fit.root_log_likelihood[0] for fit in alone]))
    assert together.best_restart == best == alone[best].best_restart
    assert np.array_equal(together.mixture.means, alone[best].mixture.means)
    rest = fit_vpem(X, network, n_init=2, first_restart=1, **options)
    assert rest.best_restart == 1 + int(np.argmax([f.root_log_likelihood[0] for f in alone[1:]]))
    workers, star = evenly(len(X), 4), connect_workers(make_graph("star", 4))
    together = fit_em(X, workers, star, n_init=3, **options)
    one = fit_em(X, workers, star, n_init=1, first_restart=together.best_restart, **options)
    assert np.array_equal(together.mixture.means, one.mixture.means)
    assert one.best_restart == together.best_restart


@each(("topology", "hops"), [("star", 0), ("cycle", 0), ("cycle", 1)])
def test_held_out_likelihood_by_hand(topology, hops):
    X, _ = overlapping(n_samples=90)
    problem = problem_of(X, topology=topology, agents=6, hops=[hops], scale="standard", seed=4)
    how = {"criterion": "heldout", "n_folds": 3, "n_init": 2}
    cell = search(problem, grid([2], [hops], ["full"]), **how).cells[0]
    network = connect(make_graph(topology, 6), contiguous(6, 6), hops=hops)
    total, means = 0.0, []
    for fold in folds_of(90, 3, seed=4):
        others = np.setdiff1d(np.arange(90), fold)
        fit = fit_vpem(X[others], network, n_components=2, n_init=2, scale="standard", seed=4)
        scores = fit.mixture.score_samples(X[fold])
        total += scores.sum()
        means.append(scores.mean())
    assert cell["heldout"] == pytest.approx(total / 90, rel=1e-10)
    assert cell["folds"] == pytest.approx(means, rel=1e-10)
    assert (cell["difference"], cell["difference_error"]) == (0, 0)
    assert cell["standard_error"] == pytest.approx(np.std(means, ddof=1) / np.sqrt(3), rel=1e-8)


@each("secure_sum", [False, True])
def test_held_out_likelihood_over_rows_that_workers_hold(secure_sum):
    X, _ = overlapping(n_samples=90)
    workers = Workers([np.arange(at, 90, 3) for at in range(3)], ["one", "two", "three"])
    network = connect_workers(make_graph("star", 3), secure_sum=secure_sum)
    problem = Problem(X, {0: network}, workers, {"seed": 1})
    cell = search(problem, grid([2], [0], ["full"]), criterion="heldout", n_folds=2).cells[0]
    totals = []
    for fold in folds_of(90, 2, seed=1):
        others = np.setdiff1d(np.arange(90), fold)
        held = workers.of_rows(others)
        fit = fit_em(X[others], held, network, n_components=2, seed=1)
        totals.append(fit.mixture.score_samples(X[fold]).sum())
    assert cell["heldout"] == pytest.approx(sum(totals) / 90, rel=1e-10)


def test_rows_without_a_value_do_not_count():
    X, _ = overlapping(n_samples=80)
    X[::9, 2:4] = np.nan
    blank = np.insert(X, [10, 40, 70], np.nan, axis=0)
    cells = grid([1], [0], ["full"])
    less = search(problem_of(X, missing="marginalize"), cells).cells[0]
    with pytest.warns(VpemWarning, match="3 of 83 rows have no values"):
        whole = search(problem_of(blank, missing="marginalize"), cells).cells[0]
    for name in ("log_likelihood", "bic", "aic", "icl"):
        assert whole[name] == pytest.approx(less[name], rel=1e-6)
    with pytest.warns(VpemWarning, match="no value"):
        held = search(problem_of(blank, missing="marginalize"), cells, criterion="heldout").cells[0]
    assert held["heldout"] == pytest.approx(less["log_likelihood"], abs=1.5)


def test_a_model_that_cannot_be_fitted_is_shown_and_not_chosen():
    X = np.random.default_rng(0).standard_normal((6, 3))
    found = search(problem_of(X), grid([1, 2, 7], [0], ["diag"]), n_init=2)
    assert [cell["status"] for cell in found.cells][2] == "failed"
    assert found.cells[2]["reason"].startswith("trial 1 of 2: 7 components need at least as many")
    assert found.choice.best != 2
    with pytest.raises(InputError, match="no model of the grid could be fitted"):
        search(problem_of(X), grid([7, 8], [0], ["diag"]))


@each("max_iter", [200, 2])
def test_no_mark_of_the_picture_hides_another(max_iter):
    found = search(problem_of(separated(2, 0), max_iter=max_iter), grid([1, 3], [0], ["full"]))
    cells = [
        {**cell, "covariance_type": kind} for kind in ("full", "tied", "diag")
        for cell in found.cells
    ]  # fmt: skip
    axes = draw_selection(replace(found, cells=cells)).figure.axes[0]
    for k in (1, 3):
        there = [one for one in axes.lines if one.get_marker() in "os^" and k in one.get_xdata()]
        painted = sorted(there, key=lambda one: one.get_zorder())
        sizes = [one.get_markersize() for one in painted]
        assert sizes == sorted(sizes, reverse=True)
        largest = [max(one.get_markersize() for one in there if one.get_marker() == mark)
                   for mark in "os^"]  # fmt: skip
        assert largest[0] > largest[1] > largest[2]


def test_what_has_not_converged_says_so():
    X, _ = overlapping(n_components=3, gap=0.5)
    cells = search(problem_of(X, max_iter=3), grid([1, 3], [0], ["full"])).cells
    assert [cell["status"] for cell in cells] == ["converged", "not converged"]
    held = search(problem_of(X, max_iter=3), grid([3], [0], ["full"]), criterion="heldout")
    assert held.cells[0]["status"] == "not converged"


@each("n_components", [2, 3])
def test_the_number_of_components_comes_out(n_components):
    for seed in range(1):
        problem = problem_of(separated(n_components, seed), seed=seed, tol=1e-4)
        cells = grid([1, 2, 3, 4], [0], ["diag"])
        found = search(problem, cells, n_init=2)
        for criterion in ("bic", "icl"):
            best = choose(found.cells, criterion).best
            assert cells[best].n_components == n_components, (seed, criterion)
        # One more may look better by chance: the smallest within one standard error does not.
        found = search(problem, cells, criterion="heldout", n_init=2, n_folds=3)
        assert cells[found.choice.one_standard_error].n_components == n_components, seed


# ---- what is kept -------------------------------------------------------------------------------


@pytest.fixture
def problem():
    X, _ = overlapping(n_samples=60)
    return problem_of(X, agents=6, topology="cycle", hops=[0, 1])


class Broken(Exception):
    pass


@pytest.mark.parametrize(("criterion", "after"), [("bic", 1), ("heldout", 4)])
def test_a_search_goes_on_from_what_was_kept(tmp_path, problem, criterion, after):
    cells = grid([1, 2], [0, 1], ["diag"])
    options = {"criterion": criterion, "n_init": 2, "n_folds": 2}
    whole = search(problem, cells, **options)
    told = []

    def tell(trial, _):
        told.append(trial)
        if len(told) == after:
            raise Broken

    path = tmp_path / "state.h5"
    with pytest.raises(Broken):
        search(problem, cells, record=Record(path, facts_of(problem)), tell=tell, **options)
    begun = Record(path, facts_of(problem))
    assert list(begun.results) == [trial.key for trial in told]
    more = []
    again = search(problem, cells, record=begun, tell=lambda t, _: more.append(t), **options)
    assert len(more) == 8 - after
    assert without_times(again.cells) == without_times(whole.cells)
    assert again.choice == whole.choice


def test_a_larger_grid_goes_on_too_and_what_was_refused_is_tried_again(tmp_path, problem):
    record = Record(tmp_path / "state.h5", facts_of(problem))
    search(problem, grid([1, 2, 99], [0], ["full"]), record=record)
    assert list(record.results) == ["1/0/full/restart 0", "2/0/full/restart 0"]
    done_now = []
    record = Record(tmp_path / "state.h5", facts_of(problem))
    search(problem, grid([1, 2, 3], [0], ["full"]), n_init=2, record=record,
           tell=lambda trial, _: done_now.append(trial.key))  # fmt: skip
    assert done_now == ["1/0/full/restart 1", "2/0/full/restart 1", "3/0/full/restart 0",
                        "3/0/full/restart 1"]  # fmt: skip


def test_a_state_of_other_data_or_options_is_refused(tmp_path, problem):
    path = tmp_path / "state.h5"
    search(problem, grid([1], [0], ["diag"]), record=Record(path, facts_of(problem)))
    one = Problem(problem.X, {1: problem.networks[1]}, None, problem.options)
    assert facts_of(one) == facts_of(problem)  # whatever the hops
    for other, said in (
        (problem_of(problem.X, agents=3, topology="cycle"), "not the same"),
        (problem_of(problem.X, agents=6, topology="path"), "who is joined in the graph is not the"),
        (Problem(problem.X + 1, problem.networks, None, {}), "what the data hold is not"),
        (Problem(problem.X, problem.networks, None, {"tol": 1e-3}),
         r"tol was None, now it is 0\.001; give what it began"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            Record(path, facts_of(other))
    assert Record(path, facts_of(other), force=True).results == {}
    assert len(Record(path, facts_of(problem), force=True).results) == 1


def test_what_is_no_state_is_refused(tmp_path, problem):
    path = tmp_path / "state.h5"
    write_state(path, {"facts": {}, "run": {}})
    with pytest.raises(FileError, match="no state of a selection"):
        Record(path, facts_of(problem), force=True)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FileError):
        Record(path, facts_of(problem))


# ---- processes ----------------------------------------------------------------------------------


def test_a_process_that_is_killed_costs_its_own_trial_only_and_others_find_what_one_does(problem):
    """To the bit, so that columns which lie one after the other still do."""
    problem.X = np.asfortranarray(problem.X)
    deadly = Deadly(problem.X, problem.networks, None, {})
    trials = trials_of(Cell(2, 0, "full"), "bic", 3, 5)
    alone = {trial.number: one for trial, one in run_trials(problem, trials, 1)}
    found = {trial.number: result for trial, result in run_trials(deadly, trials, 2)}
    assert sorted(found) == [0, 1, 2]
    assert found[1]["lost"]
    assert "ended by SIGKILL" in found[1]["reason"]
    assert alone[0]["status"] == "converged"
    for number in (0, 2):
        assert without_times([found[number]]) == without_times([alone[number]])


def test_a_defect_is_no_result(problem):
    """And processes map the data of the one that starts them, where the system can, as they are."""
    own = not hasattr(os, "memfd_create")
    broken = DefectiveProblem(np.asfortranarray(problem.X), problem.networks, None, {})
    trials = trials_of(Cell(2, 0, "diag"), "bic", 2, 5)
    with pytest.raises(ZeroDivisionError):
        list(run_trials(broken, trials, 1))
    with pytest.raises(
        RuntimeError,
        match=rf"while fitting K(.|\n)*ZeroDivisionError: at K = 2.*: {own}, by columns: True",
    ):
        list(run_trials(broken, trials, 2))


def test_where_no_file_is_in_memory_processes_have_copies(problem, monkeypatch):
    def refuse(*_):
        raise OSError("not in this sandbox")

    trials = trials_of(Cell(2, 0, "diag"), "bic", 2, 5)
    alone = [one for _, one in sorted(run_trials(problem, trials, 1), key=str)]
    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    assert problem.mapped().X is problem.X
    found = [one for _, one in sorted(run_trials(problem, trials, 2), key=str)]
    assert without_times(found) == without_times(alone)


# ---- tables of criteria, as mclust has them ------------------------------------------------------


def test_criteria_by_their_formulas():
    X, _ = overlapping(n_samples=120, n_features=3)
    weights = np.linspace(0.5, 2.0, len(X))
    for problem in (
        problem_of(X, agents=3),
        Problem(
            X,
            {0: connect_workers(make_graph("star", 3))},
            from_worker_of_row(np.repeat(range(3), 40)),
            {},
        ),
    ):
        problem.sample_weight = weights
        cell = search(problem, grid([3], [0], ["diag"])).cells[0]
        fit = problem.fit(Cell(3, 0, "diag"))
        gamma, n = fit.mixture.predict_proba(X), weights.sum()
        total = weights @ fit.mixture.score_samples(X)
        entropy = -np.sum(weights[:, None] * gamma * np.log(gamma))
        p, labels = 3 * 6 + 2, gamma.argmax(axis=1)
        bic = p * np.log(n) - 2 * total
        assert cell["bic"] == pytest.approx(bic, rel=1e-12)
        assert cell["aic"] == pytest.approx(2 * p - 2 * total, rel=1e-12)
        assert cell["icl"] == pytest.approx(bic + 2 * entropy, rel=1e-9)
        assert cell["caic"] == pytest.approx(-2 * total + p * (np.log(n) + 1), rel=1e-12)
        assert cell["sabic"] == pytest.approx(-2 * total + p * np.log((n + 2) / 24), rel=1e-12)
        assert cell["relative_entropy"] == pytest.approx(1 - entropy / (n * np.log(3)), rel=1e-9)
        means = [np.average(gamma[labels == k, k], weights=weights[labels == k]) for k in range(3)]
        assert cell["average_posteriors"] == pytest.approx(means, rel=1e-12)


def test_states_of_before_have_the_criteria_that_they_lack(tmp_path):
    X, _ = overlapping(n_samples=90)
    problem, path = problem_of(X), tmp_path / "s.h5"
    cells, facts = grid([1, 2], [0], ["full"]), facts_of(problem)
    made = search(problem, cells, record=Record(path, facts)).cells
    record = Record(path, facts)
    for result in record.results.values():
        for name in ("sabic", "caic", "relative_entropy", "average_posteriors"):
            del result[name]
    write_state(path, {"kind": "selection", "facts": facts, "results": record.results})
    read = search(problem, cells, record=Record(path, facts)).cells
    for one, other in zip(made, read, strict=True):
        assert other["average_posteriors"] is None
        for name in ("sabic", "caic", "relative_entropy"):
            assert other[name] == pytest.approx(one[name], rel=1e-10)


def test_an_estimator_becomes_the_best_of_its_table():
    X = separated(2, seed=1)
    model = VPEM(agents=3, graph="star", random_state=0)
    assert model.select(X, range(1, 4), ["spherical", "full"]) is model
    table = {name: dict(model.bic_table_[name]) for name in ("spherical", "full")}
    assert [*table["full"]] == [1, 2, 3]
    assert (model.n_components, model.covariance_type) == (2, "spherical")
    assert model.bic(X) == pytest.approx(table["spherical"][2], rel=1e-9)
    assert table["spherical"][2] == min(min(one.values()) for one in table.values())
    with pytest.raises(InputError, match="no model of the grid could be fitted"):
        VPEM().select(X[:2], [5], "full")
