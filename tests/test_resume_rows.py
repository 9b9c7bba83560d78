"""Runs that were broken off go on to the same bits: k-means, FedEM, imputation."""

import numpy as np
import pytest

from vpem import (
    connect,
    connect_workers,
    fit_fedem,
    fit_imputation,
    kmeans_features,
    kmeans_rows,
    make_graph,
)
from vpem.errors import InputError
from vpem.network.partition import contiguous, evenly
from vpem.terms.lowrank.observations import Observations

from .cli_support import overlapping
from .resume_support import Breaking, Broken, check_resumes, check_same
from .tables import each_once

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

X, _ = overlapping(160, 6, 4, seed=4)

SUMS = {
    "exact": {"topology": "star"},
    "consensus": {"topology": "cycle", "n_rounds": 9},
    "links fail": {"topology": "complete", "link_failure": 0.3, "n_rounds": 12},
}


def workers_joined(name, n=5):
    how = {"seed": 3, **SUMS[name]}
    return connect_workers(make_graph(how.pop("topology"), n), **how)


def agents_joined(name):
    how = {"seed": 3, "hops": 0, **SUMS[name]}
    return connect(make_graph(how.pop("topology"), 6), contiguous(6, 6), **how)


@pytest.mark.parametrize("name", ["exact", "consensus"])
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_kmeans_over_rows(name, init):
    network = workers_joined(name)
    found = check_resumes(
        lambda saver: kmeans_rows(
            X, evenly(len(X), 5), network, n_clusters=4, init=init, n_init=3, seed=2, saver=saver
        )
    )
    assert found.total_iterations > found.n_iter


@pytest.mark.parametrize("name", ["exact", "consensus"])
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_kmeans_over_features(name, init):
    network = agents_joined(name)
    check_resumes(
        lambda saver: kmeans_features(
            X, network, n_clusters=4, init=init, n_init=3, seed=2, max_iter=7, saver=saver
        )
    )


def test_kmeans_that_is_weighed_scaled_and_out_of_order():
    weight = np.random.default_rng(0).integers(1, 3, len(X)).astype(float)
    options = {"n_clusters": 5, "scale": "standard", "sample_weight": weight, "dtype": np.float32}
    for start in ([3, 50, 80, 100, 9], X[:5] + 0.5):
        check_resumes(
            lambda saver, start=start: kmeans_rows(
                X, evenly(len(X), 5), workers_joined("consensus"), init=start, saver=saver,
                max_iter=6, **options,
            )
        )  # fmt: skip
        check_resumes(
            lambda saver, start=start: kmeans_features(
                X, agents_joined("exact"), init=start, saver=saver, **options
            )
        )


def test_empty_clusters():
    points = np.repeat(np.random.default_rng(1).standard_normal((6, 2)), 20, axis=0)
    start = np.vstack([points[0], points[20], [[90.0, 90.0], [91.0, 90.0], [90.0, 99.0]]])
    network = connect_workers(make_graph("star", 3))
    found = check_resumes(
        lambda saver: kmeans_rows(
            points, evenly(120, 3), network, n_clusters=5, init=start, saver=saver
        )
    )
    assert found.reseeded
    network = connect(make_graph("star", 2), contiguous(2, 2), hops=0)
    found = check_resumes(
        lambda saver: kmeans_features(points, network, n_clusters=5, init=start, saver=saver)
    )
    assert found.reseeded


def broken(fit, place):
    saver = Breaking(place)
    with pytest.raises(Broken):
        fit(saver)
    return saver.state


def test_kmeans_goes_on_with_more_iterations():
    def fit(saver, max_iter):
        return kmeans_rows(
            X, evenly(len(X), 5), workers_joined("exact"), n_clusters=6, init="random",
            max_iter=max_iter, saver=saver,
        )  # fmt: skip

    state = broken(lambda saver: fit(saver, 3), 3)
    check_same(fit(Breaking(saved=state), 3), fit(None, 3))
    check_same(fit(Breaking(saved=state), 50), fit(None, 50))


def test_one_shot_clustering_has_no_checkpoints():
    with pytest.raises(InputError, match="no iterations"):
        kmeans_features(X, agents_joined("exact"), method="grid", saver=Breaking())


# ---- FedEM --------------------------------------------------------------------------------------

FEDEM = {
    "exact": {},
    "compressed": {"compress": "qsgd:8bits"},
    "sparse": {"compress": "randk:0.5", "participation": 0.6, "step_size": "decreasing:0.5"},
    "biased": {"compress": "topk:0.4", "memory": "zero"},
    "batches": {"batch_size": 8, "participation": 0.7, "alpha": 0.4, "compress": "natural:12bits"},
    "no memory": {"memory": "none", "participation": 0.5, "weighting": "workers"},
    "vr": {"variance_reduction": True, "inner": 4},
    "vr all": {
        "variance_reduction": True, "participation": 0.6, "compress": "qsgd:8bits", "batch_size": 6,
        "record_every": 3,
    },
    "epochs": {"n_epochs": 6.0, "batch_size": 16, "record_every": 4},
    "stops": {"tol": 1e-3, "step_size": 1.0, "max_iter": 60},
    "rests": {"tol": 1e-3, "compress": "qsgd:8bits", "participation": 0.8, "max_iter": 60},
}  # fmt: skip


def fed(name, network=None, **options):
    options = {"n_components": 3, "max_iter": 14, "seed": 5, "n_threads": 1, **options}
    options |= FEDEM.get(name, {})
    return lambda saver: fit_fedem(X, evenly(len(X), 5), network, saver=saver, **options)


@pytest.mark.parametrize("name", FEDEM)
def test_fedem(name):
    found = check_resumes(fed(name))
    if name in ("stops", "rests"):
        assert found.run.converged


@each_once(kind=["diag", "spherical", "tied", "tied-diag"], init=["k-means++", "kmeans"])
def test_fedem_of_other_shapes_and_starts(kind, init):
    check_resumes(fed("vr all", covariance_type=kind, init=init, scale="standard", max_iter=8))


def test_fedem_with_what_is_known():
    check_resumes(fed("", covariance_type="tied", known_covariance=np.eye(6) * 2, max_iter=6))


@pytest.mark.parametrize("name", ["consensus", "links fail", "compressed"])
@pytest.mark.parametrize("reduced", [False, True])
def test_fedem_between_workers(name, reduced):
    if name == "compressed":
        network = connect_workers(
            make_graph("complete", 5), compress="natural:12bits", n_rounds=20, seed=1
        )
    else:
        network = workers_joined(name)
    options = {"participation": 0.8, "variance_reduction": reduced, "step_size": 0.3}
    check_resumes(fed("", network, tol=1e-9, **options))


def test_fedem_goes_on_with_more_iterations():
    few, many = (fed("", max_iter=n, record_every=4, participation=0.7) for n in (7, 13))
    state = broken(few, 7)
    check_same(few(Breaking(saved=state)), few(None))
    check_same(many(Breaking(saved=state)), many(None))


# ---- imputation ---------------------------------------------------------------------------------


def seen(law, seed=0):
    rng = np.random.default_rng(seed)
    theta = 0.5 * rng.standard_normal((14, 2)) @ rng.standard_normal((2, 9))
    values = {
        "gaussian": theta + 0.1 * rng.standard_normal(theta.shape),
        "poisson": rng.poisson(np.exp(theta)).astype(float),
        "bernoulli": (rng.random(theta.shape) < 1 / (1 + np.exp(-theta))).astype(float),
    }[law].ravel()
    places = [np.sort(rng.choice(values.size, 60, replace=False)) for _ in range(4)]
    rows, columns = tuple(map(str, range(14))), tuple(map(str, range(9)))
    held = tuple(values[at] for at in places)
    return Observations(tuple(places), held, rows, columns, tuple("abcd"))


IMPUTE = {
    "exact": {},
    "compressed": {"compress": "qsgd:8bits", "participation": 0.6},
    "vr": {"variance_reduction": True, "participation": 0.7, "batch_size": 10},
    "batches": {"batch_size": 20, "memory": "zero", "participation": 0.9},
}


@each_once(law=["gaussian", "poisson", "bernoulli"], name=IMPUTE)
def test_imputation(law, name):
    observations = seen(law)
    scale = "standard" if (law, name) == ("gaussian", "exact") else "none"
    check_resumes(
        lambda saver: fit_imputation(
            observations, rank=2, law=law, ridge=0.3, scale=scale, max_iter=12, seed=4,
            n_threads=1, saver=saver, **IMPUTE[name],
        )
    )  # fmt: skip
