"""Runs that were broken off go on to the same bits: VP-EM, batches, EM over rows."""

import numpy as np
import pytest

from vpem import connect, connect_workers, fit_em, fit_vpem, make_graph
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.matrix import FileMatrix
from vpem.network.partition import contiguous, evenly
from vpem.settings import COVARIANCE_TYPES

from .cli_support import overlapping
from .resume_support import Breaking, Broken, check_resumes, check_same
from .tables import each_once

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

X, _ = overlapping(120, 6, 3, seed=4)

SUMS = {
    "exact": {"topology": "star", "hops": 0},
    "operator": {"topology": "cycle", "consensus": "operator", "n_rounds": 6},
    "rounds": {"topology": "cycle", "consensus": "rounds", "n_rounds": 6},
    "plain": {"topology": "path", "consensus": "rounds", "n_rounds": 4, "acceleration": "none"},
    "gossip": {"topology": "cycle", "compress": "natural:12bits", "n_rounds": 20},
    "sparse gossip": {"topology": "complete", "hops": 0, "compress": "randk:0.5", "n_rounds": 12},
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


def joined(name, d=6):
    how = {"hops": 1, "seed": 3, "n_threads": 1, **SUMS[name]}
    return connect(make_graph(how.pop("topology"), d), contiguous(d, d), **how)


def features(network, **options):
    options = {
        "n_components": 3, "max_iter": 12, "tol": 1e-4, "seed": 1, "n_threads": 1,
        "reg_covar": 1e-3, **options,
    }  # fmt: skip
    return lambda saver: fit_vpem(options.get("X", X), network, saver=saver, **options)


@pytest.mark.parametrize("name", SUMS)
def test_vpem_with_every_sum(name):
    found = check_resumes(features(joined(name)))
    if name == "falls apart":
        assert found.partitions
    if "agents" in name:
        assert np.isnan(found.history).any()


@each_once(kind=COVARIANCE_TYPES, scale=["none", "standard"])
def test_vpem_with_every_covariance(kind, scale):
    check_resumes(features(joined("operator"), covariance_type=kind, scale=scale, max_iter=5))


@pytest.mark.parametrize(
    ("name", "init"),
    [
        ("exact", "random"),
        ("operator", "k-means++"),
        ("gossip", "kmeans"),
        ("agents fail", "random"),
        ("server", "kmeans"),
    ],
)
def test_restarts(name, init):
    found = check_resumes(features(joined(name), n_init=4, init=init, max_iter=5, tol=1e-2))
    assert found.total_iterations > found.n_iter


def test_starts_and_weights_that_are_given():
    network = joined("operator")
    weight = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    rows = np.flatnonzero(weight)[[0, 10, 30]]
    model = fit_vpem(X, network, n_components=3, max_iter=2, n_threads=1).mixture
    check_resumes(features(network, init=rows, sample_weight=weight))
    check_resumes(features(network, init=model, dtype=np.float32))


@pytest.mark.parametrize("name", ["exact", "rounds", "agents fail"])
def test_components_that_collapse(name):
    far = np.vstack([X, X[:1] + 40.0])
    network = joined(name)
    options = {"n_components": 5, "init": [120, 3, 60, 90, 15], "reg_covar": 0.0, "max_iter": 25}
    found = check_resumes(
        lambda saver: fit_vpem(far, network, saver=saver, seed=2, n_threads=1, tol=1e-5, **options)
    )
    assert found.recoveries


IN_BATCHES = ["exact", "operator", "rounds", "links fail", "agents fail", "gossip fails", "server"]


@pytest.mark.parametrize("name", IN_BATCHES)
@pytest.mark.parametrize("step_size", [None, 0.7])
def test_batches(name, step_size):
    found = check_resumes(
        features(joined(name), batch_size=17, step_size=step_size, max_iter=3, n_init=2)
    )
    assert found.n_passes > found.n_iter / 2


@pytest.mark.parametrize("step_size", [None, 0.7])
def test_one_batch(step_size):
    check_resumes(features(joined("rounds"), batch_size=120, step_size=step_size, max_iter=4))


def test_batches_that_keep_responsibilities():
    # Many small batches of a wide block: responsibilities take less.
    wide, _ = overlapping(90, 12, 2, seed=1)
    network = connect(make_graph("star", 2), contiguous(12, 2), hops=0)
    check_resumes(
        lambda saver: fit_vpem(
            wide, network, batch_size=5, max_iter=4, reg_covar=0.1, n_threads=1, saver=saver
        )
    )


def test_batches_with_components_that_collapse():
    far = np.vstack([X, X[:1] + 40.0])
    cases = (
        (None, {"n_components": 4, "seed": 1, "reg_covar": 0.0, "max_iter": 9}),
        (0.7, {"n_components": 8, "seed": 0, "reg_covar": 1e-3, "max_iter": 9}),
    )
    for step_size, options in cases:
        found = check_resumes(
            lambda saver, step_size=step_size, options=options: fit_vpem(
                far, joined("exact"), batch_size=30, step_size=step_size, init="random",
                n_threads=1, saver=saver, **options,
            )
        )  # fmt: skip
        assert found.recoveries


ROW_SUMS = {
    "exact": {"topology": "star"},
    "consensus": {"topology": "cycle", "n_rounds": 8},
    "rounds": {"topology": "cycle", "n_rounds": 8, "consensus": "rounds"},
    "links fail": {"topology": "complete", "link_failure": 0.3, "n_rounds": 12},
}


@pytest.mark.parametrize("name", ROW_SUMS)
@pytest.mark.parametrize(("init", "kind"), [("kmeans", "full"), ("random", "tied-diag")])
def test_em_over_rows(name, init, kind):
    how = {"seed": 3, **ROW_SUMS[name]}
    network = connect_workers(make_graph(how.pop("topology"), 4), **how)
    check_resumes(
        lambda saver: fit_em(
            X, evenly(len(X), 4), network, n_components=3, covariance_type=kind, init=init,
            n_init=2, max_iter=6, seed=1, n_threads=1, reg_covar=1e-3, saver=saver,
        )
    )  # fmt: skip


def test_em_over_rows_that_are_weighed_and_scaled():
    weight = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    network = connect_workers(make_graph("cycle", 4), n_rounds=9)
    check_resumes(
        lambda saver: fit_em(
            X, evenly(len(X), 4), network, n_components=3, init="k-means++", scale="standard",
            sample_weight=weight, max_iter=6, n_threads=1, saver=saver,
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", ["exact", "rounds"])
def test_em_over_rows_with_components_that_collapse(name):
    far = np.vstack([X, X[:1] + 40.0])
    how = {"seed": 3, **ROW_SUMS[name]}
    network = connect_workers(make_graph(how.pop("topology"), 4), **how)
    options = {"n_components": 5, "init": [120, 3, 60, 90, 15], "reg_covar": 0.0, "max_iter": 12}
    found = check_resumes(
        lambda saver: fit_em(
            far, evenly(121, 4), network, seed=2, n_threads=1, saver=saver, **options
        )
    )
    assert found.recoveries


def test_data_on_disk(tmp_path):
    source = Dataset(X, tuple("abcdef"))
    write_dataset(tmp_path / "data.h5", source)
    stored = read_dataset(tmp_path / "data.h5", memory_limit=2 * X.nbytes - 1).X
    assert isinstance(stored, FileMatrix)
    for options in ({}, {"batch_size": 25}):
        there = check_resumes(
            lambda saver, options=options: fit_vpem(
                stored, joined("operator"), n_components=3, max_iter=5, n_threads=1, saver=saver,
                **options,
            )
        )  # fmt: skip
        assert there.n_iter == 5


# ---- more iterations ----------------------------------------------------------------------------


def broken(fit, place):
    saver = Breaking(place)
    with pytest.raises(Broken):
        fit(saver)
    return saver.state


@pytest.mark.parametrize("name", ["exact", "gossip", "server"])
def test_a_finished_run_goes_on_with_more_iterations(name):
    network = joined(name)
    few, many = (features(network, tol=1e-9, max_iter=n) for n in (4, 9))
    state = broken(few, 4)
    check_same(few(Breaking(saved=state)), few(None))
    check_same(many(Breaking(saved=state)), many(None))
    with pytest.raises(InputError, match="4 iterations"):
        features(network, tol=1e-9, max_iter=3)(Breaking(saved=state))


def test_batches_go_on_with_more_passes():
    few, many = (features(joined("exact"), tol=0, max_iter=n, batch_size=17) for n in (3, 5))
    check_same(many(Breaking(saved=broken(few, 3))), many(None))


def test_restarts_that_ran_out_cannot_have_more():
    few, many = (features(joined("exact"), tol=0, n_init=2, max_iter=n) for n in (3, 5))
    with pytest.raises(InputError, match="ran out of its 3 iterations"):
        many(Breaking(saved=broken(few, 5)))
    # In the first nothing is over yet.
    check_same(many(Breaking(saved=broken(few, 2))), many(None))


def test_a_state_of_something_else_is_refused():
    fit = features(joined("operator"))
    state = broken(fit, 3)
    for name in ("ledger", "going", "best", "restart"):
        damaged = {key: value for key, value in state.items() if key != name}
        with pytest.raises(FileError, match=f"run.{name} is missing; start again with force=True"):
            fit(Breaking(saved=damaged))
    with pytest.raises(FileError, match=r"weights must be 1 x 3 finite real .*, got 2 x 3"):
        features(joined("exact"))(Breaking(saved=state))
    assert issubclass(VpemWarning, UserWarning)
