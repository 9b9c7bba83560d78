"""FedMissEM, every way (see test_table.py)."""

import csv
import io
import json
from contextlib import redirect_stdout
from functools import partial

import numpy as np
import pytest

import vpem_cli
from vpem import connect_workers, fit_imputation, make_graph
from vpem._core.threads import one_blas_thread
from vpem.engines.engine import Engine
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.parties.observing import observe_parties
from vpem.files.parties.opening import choose_parties
from vpem.fits.observers import hide_entries
from vpem.rules import why_never
from vpem.sums.connect import spread_workers
from vpem.terms.lowrank.entries import from_matrices

from .cells_support import first_of, lost_messages, over_members
from .resume_support import check_resumes
from .thread_engine import together

RNG = np.random.default_rng(3)
THETA = 1 + 0.7 * RNG.normal(size=(9, 2)) @ RNG.normal(size=(2, 6))
NAMES = ("ann", "bob", "eve")
MATRICES = {}
for name in NAMES:
    MATRICES[name] = np.where(RNG.random(THETA.shape) < 0.6, RNG.poisson(np.exp(THETA)), np.nan)
MATRICES["ann"][np.arange(9), np.arange(9) % 6] = 2.0
WEIGHTS = {name: RNG.integers(0, 4, THETA.shape) for name in NAMES}
WEIGHTS["ann"][np.arange(9), np.arange(9) % 6] = 1
SEEN = from_matrices(MATRICES)
HEAVY = from_matrices(MATRICES, weights=WEIGHTS)

MASKED = {"secure_sum": True}
COMPRESSED = {"compress": "qsgd:8bits"}
ABSENT = {"participation": 0.6}
FAILING = {"topology": "complete", "network": {"link_failure": 0.2, "stragglers": 0.1}}
SCALED = {"scale": "standard", "copies": "fewest"}
ROUNDS = {"topology": "path", "network": {"n_rounds": 6}}


def fit(seen=SEEN, topology="star", network=None, engine=None, **options):
    """Three observers, on the ranks of an engine or in one process."""
    options = {"rank": 2, "max_iter": 6, "tol": 0.0, "seed": 1, **options}
    joined = connect_workers(make_graph(topology, seen.n_observers), **(network or {}))
    if engine is not None:
        joined = spread_workers(joined, engine)
        seen = seen.seen_by(set(joined.agents.own.tolist()))
    return fit_imputation(seen, network=joined, n_threads=1, **options)


def same(found, wanted, tolerance=1e-10, *, at_home=False):
    """Iteration by iteration, and at the end; what was seen may be there only of one's own."""
    for name in ("objective", "mean_field"):
        ours, theirs = (getattr(one.run.history, name) for one in (found, wanted))
        np.testing.assert_allclose(ours, theirs, tolerance, 1e-12)
    for name in ("fitted", "log_likelihood"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), tolerance)
    imputed = wanted.imputed
    if at_home:
        weight, total = found.observations.sums()
        imputed = np.where(weight > 0, total / np.where(weight > 0, weight, 1), wanted.fitted)
    np.testing.assert_allclose(found.imputed, imputed, tolerance)


def same_optimum(tolerance, **how):
    """To the end, where the plain algorithm comes to."""
    ended = {"law": "poisson", "tol": 1e-6, "max_iter": 1000}
    found, wanted = fit(**ended | how), fit(**ended)
    assert found.converged
    assert wanted.converged
    np.testing.assert_allclose(found.fitted, wanted.fitted, tolerance, tolerance)
    return found


def table(path, matrices=MATRICES, weights=None, observer=True):
    """A long table of what observers saw."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        heads = ["observer", "row", "column", "value", "weight"]
        writer.writerow(heads[not observer : 4 + (weights is not None)])
        for who, Y in matrices.items():
            for i, j in np.argwhere(~np.isnan(Y)).tolist():
                heavy = [] if weights is None else [weights[who][i, j]]
                writer.writerow([who, i, f"c{j}", Y[i, j], *heavy][not observer :])
    return path


def shell(*words):
    """The report of `vpem impute`."""
    said = io.StringIO()
    words = ["impute", *words, "-r", 2, "--tol", 0, "--max-iter", 6, "--seed", 1, "--json", "-q"]
    with redirect_stdout(said):
        assert vpem_cli.run([*map(str, words)]) == 0
    return json.loads(said.getvalue())


def server(folder):
    """It is the iterated soft-thresholded singular value decomposition of the mean copy."""
    theta = np.zeros(THETA.shape)
    for _ in range(6):
        filled = np.mean([np.where(np.isnan(Y), theta, Y) for Y in MATRICES.values()], axis=0)
        left, s, right = np.linalg.svd(filled, full_matrices=False)
        theta = (left[:, :2] * np.maximum(s[:2] - 1.0, 0)) @ right[:2]
    np.testing.assert_allclose(fit(scale="none").fitted, theta, 1e-10)


def tree(folder):
    for how in (SCALED, ABSENT, {"law": "poisson"}):
        same(fit(topology="path", network={"sum": "tree"}, **how), fit(**how))


def consensus(folder):
    for how in ({}, {"law": "poisson"}, SCALED):
        found = fit(topology="path", network={"consensus_tol": 1e-12}, **how)
        same(found, fit(**how), 1e-8)
        assert 0 < found.run.history.disagreement[-1] < 1e-9


def compressed(folder):
    few, plain = (same_optimum(1e-4, **how).communication for how in (COMPRESSED, {}))
    each = [sent["by_kind"]["server"] for sent in (few, plain)]
    few, many = (sent["bytes"] / sent["messages"] for sent in each)
    assert few < 0.7 * many
    codec = {"topology": "cycle", "network": {"compress": "natural:12bits"}}
    assert same_optimum(1e-4, **codec).compress == "natural:12bits"


def absent(folder):
    same_optimum(1e-4, **ABSENT)
    same(fit(participation=1 - 1e-12, step_size=1.0), fit())


def links(folder):
    found = same_optimum(1e-4, **FAILING)
    assert lost_messages(found.communication["by_kind"]["estep"], found.network.graph.n_edges)


def batches(folder):
    same(fit(batch_size=100), fit())
    same_optimum(1e-4, batch_size=9, variance_reduction=True)


def missing(folder):
    """Missing values are what it finds: what was seen stays, and what nobody saw is filled in."""
    whole = [np.where(np.isnan(Y), 0.0, Y) for Y in MATRICES.values()]
    found = fit(from_matrices(whole), rank=6, ridge=0.0, max_iter=1)
    np.testing.assert_allclose(found.fitted, np.mean(whole, axis=0), 1e-9, 1e-9)
    gaps = np.isnan(SEEN.mean)
    assert gaps.any()
    found = fit()
    np.testing.assert_array_equal(found.imputed[~gaps], SEEN.mean[~gaps])
    np.testing.assert_array_equal(found.imputed[gaps], found.fitted[gaps])


def disk(folder):
    raise InputError("--memory-limit", *why_never("impute", "memory_limit"))


def weights(folder):
    """An entry of weight 2 is two observations; equal weights change nothing, 0 was not seen."""
    repeated = {f"{name} {times}": np.where(WEIGHTS[name] > times, MATRICES[name], np.nan)
                for name in NAMES for times in range(3)}  # fmt: skip
    for how in (SCALED, {"copies": "fewest", "law": "poisson"}):
        found, wanted = fit(HEAVY, **how), fit(from_matrices(repeated), **how)
        np.testing.assert_allclose(found.run.history.objective, wanted.run.history.objective)
        for name in ("fitted", "imputed", "log_likelihood"):
            np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), 1e-9)
    alike = {name: np.full(THETA.shape, 0.3) for name in NAMES}
    same(fit(from_matrices(MATRICES, weights=alike), **SCALED), fit(**SCALED))
    assert (HEAVY.counts < SEEN.counts).all()
    report = shell(table(folder / "all.csv", weights=WEIGHTS), "--sample-weight", "weight")
    np.testing.assert_allclose(report["history"], fit(HEAVY).run.history.objective, 1e-10)


def files_of_parties(folder):
    """Long tables, with weights, of which each party has its own."""
    return [table(folder / f"{name}.csv", {name: MATRICES[name]}, WEIGHTS, False) for name in NAMES]


def masked(folder):
    """As without masks, iteration by iteration; a tree, and going on, to the bit."""
    for how in ({}, {"law": "poisson"}, SCALED, {"batch_size": 9, "variance_reduction": True}):
        found = fit(network=MASKED, **how)
        same(found, fit(**how), 1e-8)
    unlike = np.logspace(-6, 6, THETA.shape[1])
    unlike = from_matrices({name: Y * unlike for name, Y in MATRICES.items()})
    same(fit(unlike, network=MASKED, **SCALED), fit(unlike, **SCALED), 1e-8)
    along = fit(topology="path", network=MASKED | {"sum": "tree"}, **how)
    np.testing.assert_array_equal(along.fitted, found.fitted)
    check_resumes(lambda saver: fit(network=MASKED, law="poisson", saver=saver, max_iter=4))
    for how, words in (
        (ABSENT, "totals over changing sets of workers"),
        (COMPRESSED, "cannot be added"),
    ):
        with pytest.raises(InputError, match=words):
            fit(network=MASKED, **how)


def parties(folder):
    wanted = fit(HEAVY).run.history.objective
    report = shell(*files_of_parties(folder), "--parties", "--sample-weight", "weight")
    assert report["worker_names"] == list(NAMES)
    np.testing.assert_allclose(report["history"], wanted, 1e-10)
    # Matrices, of which each has some columns in an order of its own.
    files = []
    for name, order in zip(NAMES, ([0, 1, 2, 3, 4, 5], [5, 3, 1], [2, 4]), strict=True):
        matrix = MATRICES[name][:, order]
        rows = RNG.permutation(np.flatnonzero(~np.isnan(matrix).all(axis=1)))
        files.append(folder / f"{name}.h5")
        write_dataset(files[-1], Dataset(matrix[rows], tuple(f"c{j}" for j in order), ids=rows))
    lesser = {name: np.full(THETA.shape, np.nan) for name in NAMES}
    for name, order in zip(NAMES, ([0, 1, 2, 3, 4, 5], [5, 3, 1], [2, 4]), strict=True):
        lesser[name][:, order] = MATRICES[name][:, order]
    found = shell(*files, "--parties")
    np.testing.assert_allclose(
        found["history"], fit(from_matrices(lesser)).run.history.objective, 1e-10
    )


def checkpoint(folder):
    few = {"law": "poisson", "max_iter": 4}
    check_resumes(lambda saver: fit(saver=saver, batch_size=9, **few, **COMPRESSED))
    check_resumes(lambda saver: fit(saver=saver, **few, **FAILING))


OVER_RANKS = {
    "server": {},
    "tree": {"topology": "path", "network": {"sum": "tree"}, **ABSENT},
    "consensus": {**ROUNDS, "law": "poisson"},
    "compressed": COMPRESSED | {"law": "poisson"},
    "compressed rounds": {"topology": "path", "network": {"compress": "natural:12bits"}},
    "links": FAILING | ABSENT,
    "batches": {"batch_size": 18, "variance_reduction": True},
    "weights": {"seen": HEAVY, **SCALED},
    "masked": {"seen": HEAVY, "network": MASKED, **SCALED},
    "weights on a graph": {"seen": HEAVY, **ROUNDS, **SCALED},
}
"""What is compared with one process."""


def mpi(folder):
    compare_over(folder, partial(together, 2), OVER_RANKS)


def tls(folder):
    few = ("compressed", "masked")
    ways = {way: OVER_RANKS[way] for way in few}
    compare_over(folder, partial(over_members, 3), ways, members=True)


def compare_over(folder, run, ways, members=False):
    """Compare fits in several processes, of their own files too, with one process."""
    held = choose_parties(files_of_parties(folder))
    few = {"max_iter": 3}

    def of_parties(engine):
        place = Placement.evenly(engine, 3, NAMES) if engine.apart else Placement.here(3)
        found = observe_parties(held, "weight", place)
        kept, hidden = hide_entries(found, 0.2, np.random.default_rng(0), place)
        network = spread_workers(connect_workers(make_graph("star", 3)), engine)
        how = {"rank": 2, "max_iter": 3, "tol": 0.0, "n_threads": 1}
        return fit_imputation(kept, network=network, **how), hidden

    def everything(engine):
        found = [fit(engine=engine, **few | how) for how in ways.values()]
        if not members:
            going_on = few | ROUNDS
            found.append(check_resumes(lambda saver: fit(engine=engine, saver=saver, **going_on)))
        return [*found, of_parties(engine)]

    wanted = [fit(**few | how) for how in (*ways.values(), *[ROUNDS] * (not members))]
    wanted.append(of_parties(Engine()))
    with one_blas_thread():
        ranks = run(everything)
    first_of(ranks)
    for rank, found in enumerate(ranks):
        *found, (of_files, hidden) = found
        *others, (in_one, away) = wanted
        for ours, theirs in zip([*found, of_files], [*others, in_one], strict=True):
            same(ours, theirs, at_home=members)
            assert ours.communication == theirs.communication
            if ours.network.agents.masks is not None:
                np.testing.assert_array_equal(ours.fitted, theirs.fitted)
        assert hidden.n_places == away.n_places
        if rank == 0:
            np.testing.assert_array_equal(hidden.values, away.values)


CELLS = {
    way: globals()[way]
    for way in ("server", "tree", "consensus", "compressed", "absent", "links", "batches",
                "missing", "disk", "weights", "checkpoint", "masked", "parties", "mpi", "tls")
}  # fmt: skip
