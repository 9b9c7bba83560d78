"""`vpem kmeans`: what it prints, writes and refuses."""

import json

import h5py
import numpy as np
import pytest
from sklearn.cluster import KMeans

from vpem.files.datasets import Dataset, write_dataset
from vpem.files.results import read_clustering
from vpem.network.partition import contiguous, evenly

from .cli_support import done, run
from .tables import each

KEYS = {
    "algorithm", "split", "method", "n_samples", "n_features", "n_clusters", "cluster_sizes",
    "inertia", "root_inertia", "history", "converged", "n_iter", "init_rows", "restart",
    "reseeded", "one_shot", "topology", "communication", "seconds", "warnings", "seed", "data",
    "model",
}  # fmt: skip


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(size=(30, 4)) + 4 * k for k in range(3)])


@pytest.fixture(scope="module")
def data(tmp_path_factory, X):
    path = tmp_path_factory.mktemp("kmeans") / "data.h5"
    names = ("height", "weight", "pulse", "age")
    ids = np.array([f"p{row}" for row in range(len(X))])
    write_dataset(path, Dataset(X, names, ids=ids))
    return path


@pytest.fixture(scope="module")
def stored(tmp_path_factory, X):
    """Data that say which worker holds which rows, which agent which features, and a graph."""
    path = tmp_path_factory.mktemp("kmeans") / "stored.h5"
    names = ("height", "weight", "pulse", "age")
    held = {
        "partition": contiguous(4, 4),
        "edges": np.array([[0, 1], [1, 2], [2, 3]]),
        "workers": evenly(90, 3, ("ann", "bob", "cid")),
    }
    write_dataset(path, Dataset(X, names, **held))
    return path


def test_over_rows_as_json(capsys, data, X):
    found = done(
        capsys, "kmeans", data, "-k", 3, "--workers", 7, "--init-rows", "1,40,80", "--json"
    ).json
    wanted = KMeans(3, init=X[[1, 40, 80]], n_init=1, tol=0).fit(X)
    assert set(found) >= KEYS
    assert found["algorithm"] == "k-means"
    assert found["n_workers"] == 7
    assert found["worker_names"][0] == "worker 0"
    assert found["inertia"] == pytest.approx(wanted.inertia_, rel=1e-12)
    assert found["history"][-1] == pytest.approx(wanted.inertia_, rel=1e-12)
    assert found["n_iter"] == len(found["history"]) == wanted.n_iter_
    assert sorted(found["cluster_sizes"]) == sorted(np.bincount(wanted.labels_))
    assert found["init_rows"] == [1, 40, 80]
    assert found["communication"]["by_kind"]["server"]["messages"] == 14 * found["n_iter"]
    assert found["model"] is None


def test_all_ways_give_the_same_clusters(capsys, data):
    ways = [
        ("--workers", 1),
        ("--workers", 90),
        ("--workers", 5, "--topology", "cycle", "--rounds", 60),
        ("--split", "features", "--agents", 1),
        ("--split", "features"),
        ("--split", "features", "--topology", "cycle", "--hops", 1),
        ("--workers", 4, "--dtype", "float32"),
        ("--workers", 4, "--threads", 2),
    ]
    found = [done(capsys, "kmeans", data, "-k", 3, "--json", *way).json for way in ways]
    for one in found:
        assert one["init_rows"] == found[0]["init_rows"]
        assert one["cluster_sizes"] == found[0]["cluster_sizes"]
        assert one["inertia"] == pytest.approx(found[0]["inertia"], rel=1e-5)


def test_output_holds_centres_and_labels(capsys, data, tmp_path, X):
    path = tmp_path / "clusters.h5"
    words = ("kmeans", data, "-k", 3, "--workers", 4, "--topology", "path", "-o", path)
    report = done(capsys, *words, "--json").json
    found = read_clustering(path)
    off = X - found.centres[found.labels]
    np.testing.assert_allclose(np.linalg.norm(off, axis=1), found.distances, rtol=1e-4)
    assert np.square(found.distances).sum() == pytest.approx(report["inertia"], rel=1e-12)
    assert found.root_centres.shape == (4, 3, 4)
    assert found.feature_names == ("height", "weight", "pulse", "age")
    assert found.ids[:2].tolist() == ["p0", "p1"]
    assert found.options["workers"] == 4
    assert found.report["inertia"] == report["inertia"]
    assert report["model"] == str(path)
    with h5py.File(path) as file:
        assert file.attrs["encoding-type"] == b"vpem-clustering"
    before = path.read_bytes()
    assert "exists" in run(capsys, *words).sentence
    assert path.read_bytes() == before
    done(capsys, *words, "--force")
    for command in (
        ("model", "export", path, "-o", path.with_suffix(".npz")),
        ("data", "describe", path),
    ):
        assert run(capsys, *command).code == 2


def test_tables_say_what_there_is_to_know(capsys, data, stored):
    told = done(capsys, "kmeans", data, "-k", 3, "--workers", 4).out
    assert ", converged, " in told
    assert " model file " in told
    for words in ("90 rows x 4 features", "4 workers, star", "exact at the server", "inertia"):
        assert words in told
    assert told.count("30") >= 3
    told = done(capsys, "kmeans", stored, "-k", 3, "--split", "features").out
    assert "4 agents, dataset, 4 hubs of 0 hops" in told
    assert "mixing rate" in told


def test_what_the_dataset_says_is_taken(capsys, stored):
    found = done(capsys, "kmeans", stored, "-k", 2, "--json").json
    assert found["worker_names"] == ["ann", "bob", "cid"]
    assert found["topology"] == "star"
    found = done(capsys, "kmeans", stored, "-k", 2, "--split", "features", "--json").json
    assert found["topology"] == "dataset"
    assert found["n_agents"] == 4


def test_one_shot_tells_its_factor(capsys, stored):
    words = ("kmeans", stored, "-k", 3, "--split", "features", "--method", "grid")
    found = done(capsys, *words, "--json").json
    shot = found["one_shot"]
    assert found["topology"] == "star"
    assert shot["factor"] == 9
    assert shot["lower_bound"] == pytest.approx(sum(shot["party_inertia"]))
    assert found["inertia"] <= 9 * shot["lower_bound"]
    assert shot["inertia_over_lower_bound"] == found["inertia"] / shot["lower_bound"]
    assert "at most 9 times" in done(capsys, *words).out


def test_workers_from_a_file(capsys, data, tmp_path):
    path = tmp_path / "workers.json"
    path.write_text(json.dumps({"north": [0], "south": list(range(1, 90)), "west": []}))
    found = done(capsys, "kmeans", data, "-k", 3, "--worker-rows", path, "--json").json
    assert found["worker_names"] == ["north", "south", "west"]
    assert found["cluster_sizes"] == [30, 30, 30]


def test_not_converged(capsys, data):
    words = ("kmeans", data, "-k", 5, "--workers", 2, "--max-iter", 1)
    result = run(capsys, *words, "--strict", "--json")
    assert result.code == 3
    assert not result.json["converged"]
    assert "rows still changed" in result.json["warnings"][0]
    assert run(capsys, *words).code == 0


def test_no_features_differ(capsys, tmp_path):
    path = tmp_path / "same.h5"
    write_dataset(path, Dataset(np.ones((6, 2)), ("a", "b")))
    found = done(capsys, "kmeans", path, "-k", 3, "--workers", 2, "--json").json
    assert found["inertia"] == 0
    assert "2 of 3 clusters are empty" in found["warnings"][0]


@each(
    ("words", "sentence"),
    [
        (("--workers", 91), "91 workers cannot share 90 rows"),
        (("--workers", 0), "workers must be"),
        (("--workers", 2, "-k", 0), "--clusters must be an integer of at least 1"),
        (("--workers", 2, "-k", 91), "91 clusters need at least as many rows, got 90"),
        (("--workers", 2, "-k", 2.5), "must be an integer, got '2.5'"),
        (("--workers", 2, "--split", "row"), "--split must be one of features, rows"),
        (("--workers", 2, "--method", "lloyds"), "--method must be one of lloyd, grid"),
        (("--workers", 2, "--method", "grid"), "needs --split features"),
        (("--workers", 2, "--agents", 2), "--agents is for data split by features"),
        (("--workers", 2, "--hops", 1), "--hops is for data split by features"),
        (("--split", "features", "--workers", 2), "--workers is for data split by rows"),
        (("--split", "features", "--method", "grid", "--topology", "cycle"), "the graph has none"),
        (("--split", "features", "--method", "grid", "--init", "random"), "by k-means"),
        (("--split", "features", "--method", "grid", "--init-rows", "1,2"), "by k-means++"),
        (("--workers", 2, "--init-rows", "1,2,3"), "--clusters 2 needs as many --init-rows"),
        (("--workers", 2, "--init-rows", "1,1"), "init rows must differ"),
        (("--workers", 2, "--init-rows", "1,90"), "init rows must lie between 0 and 89"),
        (("--workers", 2, "--init-rows", "1;2"), "row numbers with commas"),
        (("--workers", 2, "--init-rows", "1,2", "--n-init", 3), "--n-init starts again"),
        (("--workers", 2, "--init", "kmeans"), "init must be one of k-means++, random"),
        (("--workers", 2, "--n-init", 0), "--n-init must be an integer"),
        (("--workers", 2, "--max-iter", 0), "--max-iter must be an integer"),
        (("--workers", 2, "--topology", "ring"), "topology"),
        (("--workers", 2, "--seed", -1), "--seed must be"),
        (("--workers", 2, "--dtype", "half"), "--dtype must be one of"),
        (("--workers", 2, "--rounds", "few", "--topology", "path"), "--rounds must be"),
        (("--workers", 2, "-o", "no/such/folder/c.h5"), "there is no folder"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(capsys, data, words, sentence):
    result = run(capsys, "kmeans", data, *words)
    assert result.code == 2
    assert sentence in result.sentence
    assert not result.out


def test_output_must_not_be_the_input(capsys, data):
    words = ("kmeans", data, "--workers", 2, "-o", data, "--force")
    assert "is the input" in run(capsys, *words).sentence


def test_values_that_are_missing(capsys, tmp_path):
    path = tmp_path / "missing.h5"
    X = np.ones((5, 2))
    X[3, 1] = np.nan
    write_dataset(path, Dataset(X, ("a", "b")))
    for words in (("--workers", 2), ("--split", "features")):
        sentence = run(capsys, "kmeans", path, *words).sentence
        assert "row 3, feature 1 ('b') is NaN" in sentence
    clusters = tmp_path / "clusters.h5"
    done(capsys, "kmeans", path, "-k", 1, "--missing", "marginalize", "-o", clusters)
    assert done(capsys, "predict", clusters, path, "--json").json["distances"][3] == 0
