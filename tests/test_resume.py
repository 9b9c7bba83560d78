"""Runs that were broken off, by whatever recipe and over whatever sum, go on to the same bits."""

import numpy as np
import pytest

from vpem import (
    connect,
    connect_workers,
    fit_em,
    fit_fedem,
    fit_imputation,
    fit_vpem,
    kmeans_features,
    kmeans_rows,
    make_graph,
)
from vpem.errors import FileError, InputError
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.matrix import FileMatrix
from vpem.network.partition import contiguous, evenly
from vpem.terms.lowrank.observations import Observations

from .cli_support import overlapping
from .missing_support import with_holes
from .resume_support import Breaking, Broken, check_resumes, check_same

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

X, _ = overlapping(120, 6, 3, seed=4)
FAR = np.vstack([X, X[:1] + 40.0])
"""With a row on which a component collapses."""
COLLAPSES = {"data": FAR, "n_components": 5, "init": [120, 3, 60, 90, 15], "reg_covar": 0.0,
             "seed": 2}  # fmt: skip
WEIGHT = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
WIDE, _ = overlapping(90, 12, 2, seed=1)
HOLES = with_holes(X, 1)

SUMS = {
    "exact": {"topology": "star", "hops": 0},
    "operator": {"topology": "cycle", "consensus": "operator", "n_rounds": 6},
    "rounds": {"topology": "cycle", "consensus": "rounds", "n_rounds": 6},
    "plain": {"topology": "path", "consensus": "rounds", "n_rounds": 4, "acceleration": "none"},
    "gossip": {"topology": "cycle", "compress": "natural:12bits", "n_rounds": 20},
    "links fail": {"topology": "complete", "hops": 0, "link_failure": 0.3, "n_rounds": 12},
    "agents fail": {"topology": "complete", "hops": 0, "agent_dropout": 0.1, "n_rounds": 25},
    "gossip fails": {
        "topology": "complete", "hops": 0, "compress": "qsgd:8bits", "link_failure": 0.2,
        "agent_dropout": 0.1, "n_rounds": 15,
    },
    "falls apart": {"topology": "cycle", "link_failure": 0.7, "n_rounds": 5},
    "server": {"topology": "star", "hops": 0, "compress": "natural:12bits"},
    "sparse server": {"topology": "star", "hops": 0, "compress": "topk:0.3"},
}  # fmt: skip


def agents(name, d=6, n=6):
    how = {"hops": 1, "seed": 3, "n_threads": 1, **SUMS[name]}
    return connect(make_graph(how.pop("topology"), n), contiguous(d, n), **how)


def workers(name, n=4):
    how = {"seed": 3, **SUMS[name], "hops": 0}
    return connect_workers(make_graph(how.pop("topology"), n), **how)


EM = {"n_components": 3, "seed": 1, "n_threads": 1, "reg_covar": 1e-3}


def vpem(name, data=X, **options):
    options = {**EM, "max_iter": 8, "tol": 1e-4, **options}
    return lambda saver: fit_vpem(data, agents(name), saver=saver, **options)


def rows(name, data=X, **options):
    options = {**EM, "max_iter": 6, **options}
    return lambda saver: fit_em(data, evenly(len(data), 4), workers(name), saver=saver, **options)


def lloyd(name, data=X, **options):
    options = {"n_clusters": 4, "seed": 2, "max_iter": 7, **options}
    return lambda saver: kmeans_features(data, agents(name), saver=saver, **options)


def lloyd_of_rows(name, data=X, **options):
    options = {"n_clusters": 4, "seed": 2, "max_iter": 7, **options}
    held = evenly(len(data), 4)
    return lambda saver: kmeans_rows(data, held, workers(name), saver=saver, **options)


def fed(network=None, **options):
    options = {"n_components": 3, "max_iter": 10, "seed": 5, "n_threads": 1, **options}
    return lambda saver: fit_fedem(X, evenly(len(X), 5), network, saver=saver, **options)


def seen(law):
    """Entries of a matrix that four observers have."""
    rng = np.random.default_rng(0)
    theta = 0.5 * rng.standard_normal((14, 2)) @ rng.standard_normal((2, 9))
    values = {
        "gaussian": theta + 0.1 * rng.standard_normal(theta.shape),
        "poisson": rng.poisson(np.exp(theta)).astype(float),
        "bernoulli": (rng.random(theta.shape) < 1 / (1 + np.exp(-theta))).astype(float),
    }[law].ravel()
    places = [np.sort(rng.choice(values.size, 60, replace=False)) for _ in range(4)]
    named = tuple(map(str, range(14))), tuple(map(str, range(9))), tuple("abcd")
    return Observations(tuple(places), tuple(values[at] for at in places), *named)


def impute(law, **options):
    options = {"rank": 2, "ridge": 0.3, "scale": "none", "max_iter": 12, "seed": 4, "n_threads": 1,
               **options}  # fmt: skip
    return lambda saver: fit_imputation(seen(law), law=law, saver=saver, **options)


def restarted(found):
    return found.total_iterations > found.n_iter


def went_through(found):
    return found.n_passes > found.n_iter / 2


def collapsed(found):
    return bool(found.recoveries)


def reseeded(found):
    return bool(found.reseeded)


def ended(found):
    return found.run.converged


RESTARTS = {"n_init": 2, "max_iter": 4, "tol": 1e-2}
PASSES = {"batch_size": 30, "max_iter": 2, "n_init": 2}
POINTS = np.repeat(np.random.default_rng(1).standard_normal((6, 6)), 20, axis=0)
EMPTY = np.vstack([POINTS[0], POINTS[20], POINTS[0] + [[90.0], [91.0], [99.0]]])
"""Centres of which some are of no row."""
REDUCED = {"variance_reduction": True, "participation": 0.8, "step_size": 0.3, "tol": 1e-9}
GRAPHS = {
    "links fail": {"topology": "complete", "link_failure": 0.3, "n_rounds": 12},
    "compressed": {"topology": "complete", "compress": "natural:12bits", "n_rounds": 20},
}


def graph_of_five(name):
    how = {"seed": 3, **GRAPHS[name]}
    return connect_workers(make_graph(how.pop("topology"), 5), **how)


RUNS = {
    # Features: every sum, start and shape of the covariances.
    "exact": (vpem("exact", init="random", covariance_type="tied", **RESTARTS), restarted),
    "operator": (vpem("operator", init="k-means++", scale="standard", **RESTARTS), restarted),
    "plain": vpem("plain", covariance_type="spherical", scale="standard"),
    "gossip": (vpem("gossip", init="kmeans", **RESTARTS), restarted),
    "agents fail": (
        vpem("agents fail", init="random", **RESTARTS),
        lambda found: restarted(found) and np.isnan(found.history).any(),
    ),
    "gossip fails": vpem("gossip fails", covariance_type="tied-diag"),
    "falls apart": (vpem("falls apart"), lambda found: bool(found.partitions)),
    "sparse server": vpem("sparse server", covariance_type="diag"),
    "weights": vpem(
        "operator", init=np.flatnonzero(WEIGHT)[[0, 10, 30]], sample_weight=WEIGHT, max_iter=5
    ),
    "given model": lambda saver: vpem(
        "operator", dtype=np.float32, max_iter=5, init=vpem("operator", max_iter=2)(None).mixture
    )(saver),
    "collapsed": (vpem("exact", **COLLAPSES, max_iter=25, tol=1e-5), collapsed),
    "collapsed, agents fail": (
        vpem("agents fail", **COLLAPSES, max_iter=25, tol=1e-5), collapsed
    ),
    # Features in batches, incremental and stochastic.
    **{
        f"batches, {name}, {step}": (vpem(name, step_size=step, **PASSES), went_through)
        for name, step in [
            ("exact", None), ("operator", 0.7), ("agents fail", None), ("gossip fails", 0.7),
            ("server", 0.7),
        ]
    },
    "one batch, stochastic": vpem("rounds", batch_size=120, step_size=0.7, max_iter=4),
    "responsibilities": lambda saver: fit_vpem(  # of many small batches of a wide block
        WIDE, connect(make_graph("star", 2), contiguous(12, 2)), batch_size=5, max_iter=4,
        reg_covar=0.1, n_threads=1, saver=saver,
    ),
    "collapsed in batches": (
        vpem("exact", FAR, n_components=4, init="random", reg_covar=0.0, batch_size=30, max_iter=9),
        collapsed,
    ),
    "collapsed, stochastic": (
        vpem("exact", FAR, n_components=8, init="random", seed=0, batch_size=30, step_size=0.7,
             max_iter=9),
        collapsed,
    ),
    "batches, values missing": (
        vpem("gossip fails", HOLES, missing="marginalize", batch_size=40, step_size=0.7,
             max_iter=4),
        lambda found: np.ptp(found.history[1:], axis=1).max() > 1e-9,
    ),
    # Rows.
    **{
        f"rows, {name}": rows(name, init=init, covariance_type=kind, n_init=2)
        for name, init, kind in [
            ("exact", "kmeans", "full"), ("rounds", "random", "tied-diag"),
            ("links fail", "random", "tied-diag"),
        ]
    },
    "rows, weights": rows("operator", init="k-means++", scale="standard", sample_weight=WEIGHT),
    "rows, collapsed on a graph": (rows("rounds", **COLLAPSES, max_iter=12), collapsed),
    # k-means.
    **{
        f"k-means, {name}, {init}": (one(name, init=init, n_init=3), restarted)
        for one, name, init in [
            (lloyd_of_rows, "exact", "k-means++"), (lloyd_of_rows, "rounds", "random"),
        ]
    },
    "k-means of features": lloyd("exact", init="random", n_init=3),
    **{
        f"k-means, given {what}": one(
            name, n_clusters=5, init=start, scale="standard", sample_weight=WEIGHT + 1,
            dtype=np.float32,
        )
        for one, name, what, start in [
            (lloyd_of_rows, "rounds", "rows", [3, 50, 80, 100, 9]),
            (lloyd, "exact", "centres over features", X[:5] + 0.5),
        ]
    },
    "k-means, empty clusters": (
        lloyd_of_rows("exact", POINTS, n_clusters=5, init=EMPTY), reseeded
    ),
    "k-means of features, empty clusters": (
        lloyd("exact", POINTS, n_clusters=5, init=EMPTY), reseeded
    ),
    # FedEM.
    "FedEM, sparse": fed(
        compress="randk:0.5", participation=0.6, step_size="decreasing:0.5", scale="standard"
    ),
    "FedEM, biased": fed(compress="topk:0.4", memory="zero", covariance_type="spherical",
                         init="kmeans"),
    "FedEM, batches": fed(batch_size=8, participation=0.7, alpha=0.4, compress="natural:12bits"),
    "FedEM, no memory": fed(memory="none", participation=0.5, weighting="workers"),
    "FedEM, a schedule": fed(participation=((0, 1), (2,), (3, 4, 0)), compress="blockp:3,9:1"),
    "FedEM, naive": fed(
        participation=(0.9, 0.4, 0.6, 0.5, 1.0), memory="naive", batch_size=8, replacement=True
    ),
    "FedEM, known": fed(covariance_type="tied", known_covariance=np.eye(6) * 2, max_iter=6),
    "FedEM, epochs": fed(n_epochs=6.0, batch_size=16, record_every=4, covariance_type="tied-diag"),
    "FedEM, stops": (fed(tol=1e-3, step_size=1.0, max_iter=60), ended),
    "FedEM, rests": (fed(tol=1e-3, compress="qsgd:8bits", participation=0.8, max_iter=60), ended),
    "VR-FedEM": fed(
        variance_reduction=True, participation=0.6, compress="qsgd:8bits", batch_size=6, inner=4,
        record_every=3, init="k-means++", scale="standard", max_iter=8,
    ),
    **{f"FedEM on a graph, {name}": fed(graph_of_five(name), **REDUCED) for name in GRAPHS},
    # Imputation.
    "imputation, compressed": impute("poisson", compress="qsgd:8bits", participation=0.6),
    "imputation, vr": impute(
        "bernoulli", variance_reduction=True, participation=0.7, batch_size=10
    ),
    "imputation, batches": impute(
        "gaussian", scale="standard", batch_size=20, memory="zero", participation=0.9
    ),
}  # fmt: skip


ALSO_WITHOUT = {
    "rows, exact", "k-means of features", "VR-FedEM", "FedEM on a graph, links fail",
    "imputation, batches", "imputation, vr",
}  # fmt: skip
"""Runs that a saver leaves as they are; so it does those that go on with more iterations, below."""


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(name):
    run, shows = RUNS[name] if isinstance(RUNS[name], tuple) else (RUNS[name], None)
    found = check_resumes(run)
    assert shows is None or shows(found)
    if name in ALSO_WITHOUT:
        check_same(run(None), found)


def test_data_on_disk(tmp_path):
    write_dataset(tmp_path / "data.h5", Dataset(X, tuple("abcdef")))
    stored = read_dataset(tmp_path / "data.h5", memory_limit=2 * X.nbytes - 1).X
    assert isinstance(stored, FileMatrix)
    for options in ({}, {"batch_size": 25}):
        run = vpem("operator", stored, **{**EM, "max_iter": 5, "tol": 1e-9, **options})
        assert check_resumes(run).n_iter == 5


# ---- more iterations ----------------------------------------------------------------------------


def broken(fit, place):
    saver = Breaking(place)
    with pytest.raises(Broken):
        fit(saver)
    return saver.state


MORE = {
    **{
        name: ([vpem(name, tol=1e-9, max_iter=n) for n in (4, 9)], 4)
        for name in ("exact", "gossip")
    },
    "batches": ([vpem("exact", tol=0, max_iter=n, batch_size=17) for n in (3, 5)], 3),
    "k-means": ([lloyd_of_rows("exact", n_clusters=6, max_iter=n) for n in (3, 50)], 3),
    "FedEM": ([fed(max_iter=n, record_every=4, participation=0.7) for n in (7, 13)], 7),
    # In the first restart, where nothing is over yet.
    "restarts": ([vpem("exact", tol=0, n_init=2, max_iter=n) for n in (3, 5)], 2),
}


@pytest.mark.parametrize("name", MORE)
def test_a_run_goes_on_with_more_iterations(name):
    (few, many), place = MORE[name]
    state = broken(few, place)
    check_same(few(Breaking(saved=state)), few(None))
    check_same(many(Breaking(saved=state)), many(None))


def test_what_is_no_state_of_a_run_is_refused():
    fit, exact = vpem("operator"), partial_runs(tol=1e-9)
    state = broken(fit, 3)
    for name in ("ledger", "going", "best", "restart"):
        damaged = {key: value for key, value in state.items() if key != name}
        with pytest.raises(FileError, match=f"run.{name} is missing; start again with force=True"):
            fit(Breaking(saved=damaged))
    with pytest.raises(FileError, match=r"weights must be 1 x 3 finite real .*, got 2 x 3"):
        exact(12)(Breaking(saved=state))
    with pytest.raises(InputError, match="4 iterations"):
        exact(3)(Breaking(saved=broken(exact(4), 4)))
    again = partial_runs(tol=0, n_init=2)
    with pytest.raises(InputError, match="ran out of its 3 iterations"):
        again(5)(Breaking(saved=broken(again(3), 5)))
    with pytest.raises(InputError, match="no iterations"):
        lloyd("exact", method="grid")(Breaking())


def partial_runs(**options):
    """Return what makes a run of so many iterations."""
    return lambda max_iter: vpem("exact", max_iter=max_iter, **options)
