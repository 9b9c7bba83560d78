"""Fits at the workers of a framework: the bits of one process, whoever is lost meanwhile."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import vpem
import vpem.engines.cluster
from vpem import DistributedGaussianMixture, InputError
from vpem._core.threads import one_blas_thread
from vpem.engines.cluster import ClusterEngine, DaskCluster
from vpem.engines.tls.trust import Member, Roster
from vpem.fits.clusters import Recipe
from vpem.fits.rows import fit_em
from vpem.network.graph import make_graph
from vpem.network.partition import from_worker_of_row
from vpem.sums.connect import connect_workers, spread_workers

from . import over_rows
from .forks import ROOT
from .tables import each
from .thread_engine import QueuePost, together

COUNTS = (130, 0, 90, 61, 7, 112)
"""Rows of each partition."""


def cluster(rank, size, mail, seats):
    """Return the engine of a worker whose links are queues; ``seats`` say where agents live."""
    members = tuple(Member(f"worker {n}", bytes([n]), holds=n in seats) for n in range(size))
    engine = ClusterEngine(QueuePost(rank, mail), Roster("0" * 32, "test", 1, members), None)
    engine.seats = seats
    return engine


N_ROWS = sum(COUNTS)


def rows(n=N_ROWS):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4)) * [1, 10, 0.1, 3] + [5, 0, 100, -3]
    X[: n // 2, :2] += [4, 20]
    return X[rng.permutation(n)]


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_recipes_over_rows_find_what_one_process_does():
    with one_blas_thread():
        found = together(
            4, partial(over_rows.main, brief=True), engine=partial(cluster, seats=[1, 2, 3])
        )
    assert all(isinstance(one, str) for one in found), found


KINDS = {
    "plain": {},
    "weights": {"sample_weight": np.random.default_rng(1).random(sum(COUNTS)) + 0.1},
    "kmeans, standard": {"init": "kmeans", "scale": "standard"},
    "farthest, diag": {"init": "farthest", "covariance_type": "diag"},
    "restarts, tied": {"n_init": 2, "init": "k-means++", "covariance_type": "tied"},
    "accelerated": {"accelerate": "squarem"},
    "single": {"dtype": np.float32},
    "by columns": {"order": "F"},
}


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each("options", KINDS.values())
def test_results_have_the_bits_of_one_process_whichever_worker_has_a_partition(options):
    options = {"n_components": 3, "max_iter": 8, "tol": 0.0, "seed": 2, **options}
    X = np.asarray(rows(), options.get("dtype"), order=options.pop("order", "C"))
    weights = options.pop("sample_weight", None)
    workers = from_worker_of_row(np.repeat(np.arange(len(COUNTS)), COUNTS), list("abcdef"))
    network = connect_workers(make_graph("star", len(COUNTS)))
    wanted = fit_em(X, workers, network, sample_weight=weights, **options)

    def work(engine):
        spread = spread_workers(network, engine)
        own = np.isin(workers.worker_of, spread.agents.own)
        mine = np.asarray(X[own], order="F" if np.isfortran(X) else "C")
        heavy = None if weights is None else weights[own]
        return fit_em(mine, workers, spread, sample_weight=heavy, **options)

    for seats in ([1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 3, 3], [1, 2, 2, 2, 2, 3]):
        found = together(max(seats) + 1, work, engine=partial(cluster, seats=seats))
        for one in found:
            if isinstance(one, BaseException):
                raise one
            assert np.array_equal(one.history, wanted.history)
            for name in ("weights", "means", "covariances"):
                assert np.array_equal(getattr(one.mixture, name), getattr(wanted.mixture, name))
        assert found[0].communication == wanted.communication


# ---- Dask ---------------------------------------------------------------------------------------

FEW = {"n_components": 3, "random_state": 0, "max_iter": 12, "tol": 0.0, "init": "k-means++"}
quiet = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def client():
    """A Dask cluster of two workers in this process."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client


def collections(X):
    """Yield a Dask Array and a Dask DataFrame of rows, and what one process has in their place."""
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd

    frame = pd.DataFrame(X, columns=["mass", "age", "dose", "time"])
    yield da.from_array(X, chunks=(150, 2)), X
    yield dd.from_pandas(frame, npartitions=3), frame
    yield dd.from_pandas(frame.astype("f4"), npartitions=3), frame.astype("f4")


@quiet
def test_dask_fits_what_one_process_does(client):
    for lazy, whole in collections(rows()):
        model = DistributedGaussianMixture(**FEW).fit(lazy)
        alone = DistributedGaussianMixture(**FEW, workers=model.workers_).fit(whole)
        assert np.array_equal(model.means_, alone.means_)
        assert np.array_equal(model.covariances_, alone.covariances_)
        assert model.fit_.communication == alone.fit_.communication
        assert vars(model).get("feature_names_in_") is None or list(
            model.feature_names_in_
        ) == list(whole.columns)
        for method in ("predict", "predict_proba", "score_samples"):
            found = getattr(model, method)(lazy)
            assert hasattr(found, "dask")
            wanted = getattr(alone, method)(whole)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found.compute(), wanted)
        assert model.score(lazy) == pytest.approx(alone.score(whole), rel=1e-6)
        assert model.bic(lazy) == pytest.approx(alone.bic(whole), rel=1e-6)


@quiet
def test_dask_takes_weights_and_empty_partitions(client):
    import dask.array as da

    X = rows()
    heavy = np.random.default_rng(1).random(len(X)) + 0.1
    lazy, weights = da.from_array(X, chunks=(150, 4)), da.from_array(heavy, chunks=150)
    lazy = da.concatenate([lazy, da.zeros((0, 4))])
    weights = da.concatenate([weights, da.zeros(0)])
    model = DistributedGaussianMixture(**FEW).fit(lazy, sample_weight=weights)
    alone = DistributedGaussianMixture(**FEW, workers=model.workers_)
    alone.fit(X, sample_weight=heavy)
    assert np.array_equal(model.means_, alone.means_)
    assert model.score(lazy, sample_weight=weights) == pytest.approx(alone.score(X, None, heavy))


@quiet
def test_what_dask_cannot_fit_is_refused(client, monkeypatch):
    monkeypatch.setattr(vpem.engines.cluster, "ANSWER", 1.0)
    lazy = [*collections(rows())][1][0]
    cells, heavy = lazy.to_dask_array(lengths=True), np.ones(N_ROWS)
    gaps = lazy.assign(age=lazy["age"].where(lazy["age"] > 0))
    for X, options, sentence in (
        (lazy, {"workers": 3}, "workers are the partitions of X"),
        (lazy, {"graph": "cycle"}, "graph joins workers"),
        (lazy, {"secure_sum": True}, "secure_sum hides"),
        (
            lazy,
            {"client": "tcp://127.0.0.1:9"},
            "no scheduler of Dask answers at tcp://127.0.0.1:9",
        ),
        (lazy.assign(age="old"), {}, "column 'age' of X holds 'old'"),
        (lazy.assign(age=np.datetime64("2020-01-01")), {}, "column 'age' of X holds dates"),
        (gaps, {}, "'age'"),
        (lazy, {"n_components": 1000}, "1000"),
    ):
        with pytest.raises(InputError, match=sentence):
            DistributedGaussianMixture(**FEW | options).fit(X)
    model = DistributedGaussianMixture(**FEW).fit(lazy)
    for weights in (heavy, cells[:100, 0], cells[:, 0].rechunk(50)):
        for method in (model.fit, partial(model.score, y=None)):
            with pytest.raises(InputError, match="sample_weight is to be a collection as X is"):
                method(lazy, sample_weight=weights)
    with pytest.raises(ValueError, match="missing:\n- time"):
        model.predict(lazy[["mass", "age", "dose"]])
    with pytest.raises(NotFittedError):
        DistributedGaussianMixture().predict(lazy)


@quiet
def test_estimators_with_a_client_are_cloned_and_pickled(client):
    model = DistributedGaussianMixture(**FEW, client=client).fit([*collections(rows())][1][0])
    assert clone(model).client is client
    read = pickle.loads(pickle.dumps(model))
    assert read.client is None
    assert np.array_equal(read.means_, model.means_)
    named = DistributedGaussianMixture(client="tcp://head:8786")
    assert clone(named).client == pickle.loads(pickle.dumps(named)).client == named.client


@quiet
def test_no_key_is_on_disk_while_a_fit_runs(client, tmp_path, monkeypatch):
    def fit(*args, **options):
        found.append(list(tmp_path.glob("vpem-*")))
        return whole(*args, **options)

    found, whole = [], Recipe.fit
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Recipe, "fit", fit)
    DistributedGaussianMixture(**FEW, client=client).fit([*collections(rows())][1][0])
    assert found == [[]] * 3


@quiet
def test_fits_at_once_do_not_wait_for_each_others_threads(client):
    """Workers have a thread each, which a fit leaves to others while it waits."""
    import dask.array as da

    def slowly(block):
        time.sleep(0.05)
        return block

    def fit(number):
        lazy = da.from_array(rows() + number, chunks=(100, 4)).map_blocks(slowly)
        model = DistributedGaussianMixture(**FEW | {"max_iter": 2}, client=client)
        found.append(model.fit(lazy))

    found = []
    fits = [threading.Thread(target=fit, args=[number], daemon=True) for number in range(4)]
    for one in fits:
        one.start()
    for one in fits:
        one.join(60)
    assert len(found) == len(fits)


def test_a_scheduler_that_is_gone_ends_a_fit_once_dask_gives_up(client, monkeypatch):
    def gone():
        raise OSError("connection reset")

    workers = DaskCluster(client)
    monkeypatch.setattr(client, "nthreads", gone)
    assert workers.look() is None
    monkeypatch.setattr(client, "status", "closed")
    try:
        assert "is gone (connection reset)" in str(workers.look())
    finally:
        monkeypatch.undo()


@quiet
def test_who_is_lost_is_named_and_the_fit_goes_on_with_the_same_bits():
    """A worker is killed, whose partitions another takes up."""
    distributed = pytest.importorskip("distributed")
    import dask.array as da

    lazy = da.from_array(rows(40_000), chunks=(10_000, 4))
    options = FEW | {"max_iter": 200, "verbose": True, "verbose_interval": 1}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as local,
        distributed.Client(local) as client,
    ):
        [(name, victim), _] = sorted(client.run(os.getpid).items())
        model = DistributedGaussianMixture(**options, client=client)
        begun = threading.Event()

        def kill():
            begun.wait(60)
            os.kill(victim, signal.SIGKILL)

        class Watching:
            def __call__(self, progress):
                if progress.iteration == 20:
                    begun.set()

            def end(self, found):
                pass

        model._lines = Watching
        threading.Thread(target=kill).start()
        with pytest.warns(vpem.VpemWarning, match=f"the worker {name} of Dask is gone"):
            model.fit(lazy)
    alone = DistributedGaussianMixture(**FEW | {"max_iter": 200}, workers=model.workers_)
    alone.fit(lazy.compute(scheduler="sync"))
    assert np.array_equal(model.means_, alone.means_)
    assert np.array_equal(model.history_, alone.history_)


def shell(folder, *words):
    """Run a command in a process of its own; its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "vpem", *map(str, words)], cwd=folder, capture_output=True,
        text=True, timeout=300, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_workers_of_dask_run_a_command(tmp_path):
    """Also one that goes on from a checkpoint, with other workers than began it."""
    pytest.importorskip("distributed")
    np.save(tmp_path / "rows.npy", rows())
    fit = ["fit", "rows.npy", "-k", 3, "--split", "rows", "--workers", 5, "-q", "--tol", 0]
    placed = [*fit, "--engine", "dask", "--checkpoint", "run.ckpt"]
    code, said = shell(tmp_path, *placed, "--ranks", 2, "--max-iter", 5)
    assert code == 0, said
    last = ["--resume", "--max-iter", 12, "-o", "placed.h5"]
    code, said = shell(tmp_path, *placed, "--ranks", 1, *last)
    assert code == 0, said
    code, said = shell(tmp_path, *fit, "--max-iter", 12, "-o", "alone.h5")
    assert code == 0, said
    found, wanted = (vpem.read_model(tmp_path / name) for name in ("placed.h5", "alone.h5"))
    assert np.array_equal(found.mixture.means, wanted.mixture.means)
    assert np.array_equal(found.history, wanted.history)
    code, said = shell(tmp_path, *fit, "--engine", "dask", "--ranks", 2, "--max-iter", 5, "-k", 999)
    assert code == 2, said
    assert "999" in said


# ---- Ray ----------------------------------------------------------------------------------------


@quiet
def test_ray_fits_what_one_process_does(tmp_path, monkeypatch):
    """Also from a shell."""
    monkeypatch.chdir(tmp_path)
    ray = pytest.importorskip("ray")
    import pandas as pd

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        frame = pd.DataFrame(rows(), columns=["mass", "age", "dose", "time"])
        lazy = ray.data.from_pandas([frame[:150], frame[150:170], frame[170:]])
        model = DistributedGaussianMixture(**FEW).fit(lazy)
        alone = DistributedGaussianMixture(**FEW, workers=model.workers_).fit(frame)
        assert np.array_equal(model.means_, alone.means_)
        labels = model.predict(lazy).to_pandas()["component"]
        np.testing.assert_array_equal(labels, alone.predict(frame))
        assert model.score(lazy) == pytest.approx(alone.score(frame))
        frame.to_csv("rows.csv", index=False)
        fit = ["fit", "rows.csv", "-k", 3, "--split", "rows", "--workers", 3, "-q", "--max-iter", 5]
        placed = [*fit, "--engine", "ray", "--scheduler", ray.get_runtime_context().gcs_address]
        for words in ([*placed, "--ranks", 2, "-o", "ray.h5"], [*fit, "-o", "alone.h5"]):
            code, said = shell(tmp_path, *words)
            assert code == 0, said
        found, wanted = (vpem.read_model(name) for name in ("ray.h5", "alone.h5"))
        assert np.array_equal(found.mixture.means, wanted.mixture.means)
    finally:
        ray.shutdown()
