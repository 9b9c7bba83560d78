"""Searches over the ranks of any engine find what one process does (see test_engines.py).

Models of all criteria over features and rows; what was kept is gone on from where all have it.
"""

import tempfile
from pathlib import Path

import numpy as np

from tests.over_fits import overlapping
from tests.over_sums import agents_on
from vpem.fits.local_rows import read_rows
from vpem.fits.selection.search import Record, facts_of, grid, search
from vpem.fits.selection.trials import Problem
from vpem.fits.spread import own_columns
from vpem.network.graph import make_graph
from vpem.network.partition import from_lists, from_worker_of_row
from vpem.sums.connect import connect, connect_workers, spread, spread_workers

HELD = {3: [[0, 4], [1], [2, 3, 5]], 5: [[0, 4], [1], [], [2, 3], [5]]}
UNLIKE = ("seconds", "warnings")


def over_features(X, engine, topology, hops, sample_weight=None, how=None, **options):
    """The same problem over the ranks, and in one process."""
    n_agents = agents_on(engine)
    partition = from_lists(HELD[n_agents], 6)
    graph = make_graph(topology, n_agents)
    networks = {h: connect(graph, partition, hops=h, n_threads=1, **(how or {})) for h in hops}
    ranked = {h: spread(network, engine) for h, network in networks.items()}
    first = next(iter(ranked.values()))
    columns = own_columns(first)
    own = np.ascontiguousarray(X[:, columns]) if len(columns) else None
    weights = sample_weight if first.agents.mine(0) else None
    return (
        Problem(own, ranked, None, options, {}, weights),
        Problem(X, networks, None, options, {}, sample_weight),
    )


def over_rows(X, engine, topology, sample_weight=None, **options):
    """The same with rows of workers, of whom the last has none where they are five."""
    names = [f"worker {number}" for number in range(agents_on(engine))]
    workers = from_worker_of_row(np.arange(len(X)) % 7 % min(4, len(names)), names)
    network = connect_workers(make_graph(topology, len(names)))
    ranked = spread_workers(network, engine)
    rows = [workers.rows[worker] for worker in ranked.agents.own]
    weights = None if sample_weight is None else read_rows(sample_weight, rows)
    return (
        Problem(read_rows(X, rows), {0: ranked}, workers, options, {}, weights),
        Problem(X, {0: network}, workers, options, {}, sample_weight),
    )


def same(ours, theirs):
    """Hold what two searches found against each other."""
    assert ours.choice == theirs.choice
    for one, other in zip(ours.cells, theirs.cells, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - set(UNLIKE):
            if name == "restarts":
                one_, other_ = one[name], other[name]
                assert [r["status"] for r in one_] == [r["status"] for r in other_]
                values = ([r["bic"] for r in each] for each in (one_, other_))
                np.testing.assert_allclose(*values, rtol=1e-10)
            elif isinstance(one[name], str):
                assert one[name] == other[name], name
            else:
                np.testing.assert_allclose(
                    np.array(one[name]), np.array(other[name]), rtol=1e-10, atol=1e-10,
                    err_msg=name,
                )  # fmt: skip


def main(engine):
    X = overlapping(n_samples=90, n_features=6)
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)
    holes[[7, 40]] = np.nan
    weights = np.random.default_rng(4).integers(0, 3, size=len(X)).astype(float)
    full, both, held = ["full"], ["full", "diag"], {"criterion": "heldout", "n_folds": 3}
    quick = {"tol": 1e-2, "seed": 2}
    marginal = {**quick, "missing": "marginalize"}
    weighted = {**quick, "sample_weight": weights, "scale": "standard"}
    codec = {"compress": "natural:12bits"}
    cases = [
        (over_features(X, engine, "star", [0], **quick), [1, 2, 95], both, {"n_init": 2}),
        (over_features(X, engine, "path", [0, 1], **quick), [1, 2], both, {"criterion": "icl"}),
        (over_features(X, engine, "star", [0], **weighted), [2], full, held),
        (over_features(holes, engine, "path", [1], **marginal), [2], full, held),
        (over_rows(X, engine, "star", **quick), [1, 2, 80], full, held),
        (over_rows(holes, engine, "star", **marginal), [2], full, {"criterion": "icl"}),
        (over_rows(X, engine, "path", **weighted), [2], full, held),
        (over_features(X, engine, "cycle", [0], how={"sum": "tree"}, **quick), [2], full, {}),
        (over_features(X, engine, "star", [0], how=codec, **weighted), [2], full, {}),
    ]
    compared = 0
    for (ranked, alone), components, kinds, how in cases:
        cells = grid(components, sorted(ranked.networks), kinds)
        found = search(ranked, cells, **how)
        # All ranks find the same.
        assert engine.bcast(found.cells) == found.cells
        if engine.rank == 0:
            same(found, search(alone, cells, **how))
            compared += 1
    check_record(engine, over_features(X, engine, "star", [0], **quick)[0])
    return f"compared {compared}"


def check_record(engine, problem):
    """A search goes on from what all ranks have kept; of other data at one of them it does not."""
    with tempfile.TemporaryDirectory() as own:
        # Members at home have folders of their own.
        path = Path(engine.bcast(own) if engine.open else own, "state.h5")
        facts = facts_of(problem)
        cells = grid([1, 2, 3], [0], ["diag"])
        first = search(problem, cells, record=Record(path, facts, engine=engine))
        engine.barrier()
        record = Record(path, facts, engine=engine)
        assert len(record.results) == 3
        if engine.rank == engine.size - 1:
            # Killed before it had written the last.
            some = Record(path, facts, engine=engine) if engine.size == 1 else record
            some.results = dict(list(record.results.items())[:2])
            key = next(iter(some.results))
            some.add(key, some.results[key])
        engine.barrier()
        told = []
        again = Record(path, facts, engine=engine)
        second = search(problem, cells, record=again, tell=lambda trial, _: told.append(trial))
        assert [trial.cell.n_components for trial in told] == [3]
        for one, other in zip(first.cells, second.cells, strict=True):
            assert one["bic"] == other["bic"]
        engine.barrier()
        assert len(Record(path, facts, engine=engine).results) == 3
        if engine.size > 1:
            assert facts["processes"] == engine.size
            assert len(set(engine.allgather(facts["what the data hold"]))) > 1
        engine.barrier()
