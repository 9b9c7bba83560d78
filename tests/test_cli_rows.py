"""Commands over rows, `vpem fit --split rows`, `kmeans` and `fedem`: what they print and write.

And clusters at work: `vpem predict`, `score`, `evaluate`.
"""

import csv
import io
import json

import numpy as np
import pytest

import vpem_cli
from vpem import Dataset, fit_fedem, read_dataset, read_model, write_dataset
from vpem.files.results import read_clustering
from vpem.network.partition import by_label, contiguous, evenly, from_worker_of_row

from .cli_support import done, make_data, run
from .tables import each


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "patients.h5", n_samples=120)


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Three groups apart, in units of their own, with ids and labels; and the rows."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(30, 4)) + 4 * k for k in range(3)]) * [1, 1, 1, 3]
    path = tmp_path_factory.mktemp("groups") / "data.h5"
    ids, labels = np.array([f"p{row}" for row in range(90)]), np.repeat(["a", "b", "c"], 30)
    write_dataset(path, Dataset(X, ("height", "weight", "pulse", "age"), ids=ids, labels=labels))
    return path, X


@pytest.fixture(scope="module")
def stored(tmp_path_factory, groups):
    """Data that say which worker holds which rows, which agent which features, and a graph."""
    path = tmp_path_factory.mktemp("groups") / "stored.h5"
    held = {
        "partition": contiguous(4, 4),
        "edges": np.array([[0, 1], [1, 2], [2, 3]]),
        "workers": evenly(90, 3, ("ann", "bob", "cid")),
    }
    write_dataset(path, Dataset(groups[1], ("height", "weight", "pulse", "age"), **held))
    return path


@pytest.fixture
def told(capsys, data):
    """Function: the report of a command over the rows of the data, or of others."""

    def call(name, *words, source=data):
        rows = {"fit": ("--split", "rows"), "fedem": ("--max-iter", 20)}.get(name, ())
        return done(capsys, name, source, *rows, "--json", *words).json

    return call


# ---- every command over rows ---------------------------------------------------------------------


@each(
    "command",
    [
        ("fit", "--split", "rows"),
        ("kmeans",),
        ("fedem", "--max-iter", "3", "--tol", "0"),
        ("select", "--split", "rows", "-k", "1", "--jobs", "1"),
    ],
)
def test_one_worker_holds_all_rows_where_nobody_says(capsys, data, command):
    name, *words = command
    plain = done(capsys, name, data, *words, "--json")
    assert plain.err == (
        "note: one worker holds all rows; for more: --workers N (equal parts), or --worker-rows "
        "FILE\n"
    )
    for more in ("--quiet",), ("--workers", 1):
        other = done(capsys, name, data, *words, "--json", *more)
        assert other.err == ""
        for key in ("log_likelihood", "inertia", "worker_rows", "warnings"):
            assert plain.json.get(key) == other.json.get(key)


@each("name", ["fit", "kmeans", "fedem"])
def test_workers_of_a_file_and_of_the_dataset(told, data, tmp_path, name):
    X = read_dataset(data).X
    of = np.arange(len(X)) % 3
    parts = {f"site {w}": np.flatnonzero(of == w).tolist() for w in range(3)} | {"idle": []}
    (tmp_path / "w.json").write_text(json.dumps(parts))
    ours = told(name, "--worker-rows", tmp_path / "w.json", "--init-rows", "3,40")
    assert ours["worker_names"] == [*parts]
    stored, names = tmp_path / f"{name}.h5", tuple(f"x{j}" for j in range(X.shape[1]))
    write_dataset(stored, Dataset(X, names, workers=from_worker_of_row(of, ["a", "b", "c"])))
    same = told(name, "--init-rows", "3,40", source=stored)
    assert same["worker_names"] == ["a", "b", "c"]
    np.testing.assert_allclose(same["history"], ours["history"], rtol=1e-10)


@each(("name", "init"), [("fit", "k-means++"), ("fedem", "kmeans")])
def test_rows_from_disk(told, tmp_path, name, init):
    """Rows of workers one after the other, and from here and there."""
    parts = {f"site {w}": [*range(w, 120, 3)] for w in range(3)}
    (tmp_path / "w.json").write_text(json.dumps(parts))
    for held in (("--workers", 3), ("--worker-rows", tmp_path / "w.json")):
        here = told(name, *held, "--init", init)
        there = told(name, *held, "--init", init, "--memory-limit", "1KB")
        assert there["init_rows"] == here["init_rows"]
        np.testing.assert_allclose(there["history"], here["history"], rtol=1e-10)


# ---- vpem fit --split rows -----------------------------------------------------------------------


def test_peers_and_their_model(capsys, told, data, tmp_path):
    out = tmp_path / "m.h5"
    words = ("--workers", 5, "--topology", "cycle", "--init-rows", "3,40", "-o", out)
    ours = told("fit", *words)
    assert len(ours["root_log_likelihood"]) == 5
    assert 0 < ours["disagreement"]["log_likelihood"] < 1e-4
    model = read_model(out)
    assert model.mixture.blocks.n_blocks == 1
    assert model.history.shape == (ours["n_iter"], 1)
    assert model.options["workers"] == 5
    shown = done(capsys, "model", "show", out).out
    assert "5 workers" in shown
    assert "Hubs" not in shown
    scored = done(capsys, "score", out, data, "--json").json
    assert scored["log_likelihood"] == pytest.approx(ours["log_likelihood"], abs=1e-5)
    assert told("fit", "--workers", 5, "--init-model", out)["n_iter"] <= 3
    table = done(capsys, "fit", data, "--split", "rows", "--workers", 4).out
    assert "4 workers" in table
    assert "rows each" in table
    assert "hub" not in table


# ---- vpem kmeans ---------------------------------------------------------------------------------


def test_one_shot_tells_its_factor(capsys, stored):
    words = ("kmeans", stored, "-k", 3, "--split", "features", "--method", "grid")
    found = done(capsys, *words, "--json").json
    shot = found["one_shot"]
    assert (found["topology"], shot["factor"]) == ("star", 9)
    assert shot["lower_bound"] == pytest.approx(sum(shot["party_inertia"]))
    assert found["inertia"] <= 9 * shot["lower_bound"]
    assert shot["inertia_over_lower_bound"] == found["inertia"] / shot["lower_bound"]
    assert "at most 9 times" in done(capsys, *words).out


def test_clusters_that_are_not_converged_or_empty(capsys, groups, tmp_path):
    words = ("kmeans", groups[0], "-k", 5, "--workers", 2, "--max-iter", 1)
    result = run(capsys, *words, "--strict", "--json")
    assert (result.code, result.json["converged"]) == (3, False)
    assert "rows still changed" in result.json["warnings"][0]
    assert run(capsys, *words).code == 0
    write_dataset(tmp_path / "same.h5", Dataset(np.ones((6, 2)), ("a", "b")))
    found = done(capsys, "kmeans", tmp_path / "same.h5", "-k", 3, "-q", "--json").json
    assert found["inertia"] == 0
    assert "2 of 3 clusters are empty" in found["warnings"][0]


@pytest.fixture(scope="module", params=["none", "standard"])
def clusters(request, groups, tmp_path_factory):
    """A file of clusters, and its contents."""
    path = tmp_path_factory.mktemp("clusters") / "c.h5"
    words = ["kmeans", groups[0], "-k", 3, "--workers", 4, "--topology", "cycle", "--rounds", 3]
    words += ["--init-rows", "1,50,80", "--scale", request.param, "-o", path]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", io.StringIO())
        assert vpem_cli.run([str(word) for word in words]) == 0
    return path, read_clustering(path), request.param, words


def test_a_file_of_clusters(capsys, groups, clusters):
    path, found, scale, words = clusters
    assert (found.report["scale"], found.scaling is None) == (scale, scale == "none")
    units = 1.0 if found.scaling is None else found.scaling.scale
    off = (groups[1] - found.centres[found.labels]) / units
    np.testing.assert_allclose(np.linalg.norm(off, axis=1), found.distances, rtol=1e-4)
    assert np.square(found.distances).sum() == pytest.approx(found.report["inertia"], rel=1e-12)
    assert found.root_centres.shape == (4, 3, 4)
    assert found.feature_names == ("height", "weight", "pulse", "age")
    assert found.ids[:2].tolist() == ["p0", "p1"]
    assert found.options["workers"] == 4
    before = path.read_bytes()
    assert "exists" in run(capsys, *words).sentence
    assert path.read_bytes() == before
    for command in (("model", "export", "-o", path.with_suffix(".npz")), ("data", "describe")):
        assert run(capsys, *command, path).code == 2
    shown = done(capsys, "model", "show", path, "--json").json
    assert sum(shown["cluster_sizes"]) == 90
    assert shown["centres"] == found.centres.tolist()


def test_labels_of_the_same_and_of_new_rows(capsys, groups, clusters, tmp_path):
    (path, stored, *_), X = clusters, groups[1]
    found = done(capsys, "predict", path, groups[0], "--json").json
    assert found["labels"] == stored.labels.tolist()
    np.testing.assert_allclose(found["distances"], stored.distances, rtol=1e-6)
    assert found["counts"] == np.bincount(stored.labels, minlength=3).tolist()
    # Features in another order, one more, and rows that miss some.
    new = np.column_stack([X[::-1, 2], np.zeros(90), X[::-1, 0], X[::-1, 1], X[::-1, 3]])
    names = ("pulse", "none", "height", "weight", "age")
    write_dataset(tmp_path / "new.h5", Dataset(new, names))
    text = done(capsys, "predict", path, tmp_path / "new.h5").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["label"]) for row in rows] == stored.labels[::-1].tolist()
    assert set(rows[0]) == {"row", "label", "distance"}
    listed = [float(row["distance"]) for row in rows]
    np.testing.assert_allclose(listed, found["distances"][::-1], rtol=1e-6)


def test_scores_of_clusters_and_what_they_cannot_do(capsys, groups, clusters, tmp_path):
    path, stored, *_ = clusters
    found = done(capsys, "score", path, groups[0], "--json").json
    assert found["inertia"] == pytest.approx(stored.report["inertia"])
    assert found["inertia_per_sample"] == pytest.approx(found["inertia"] / 90)
    found = done(capsys, "evaluate", path, groups[0], "--json").json
    assert found["accuracy"] > 0.95
    assert np.sum(found["confusion"]) == 90
    names = ("height", "weight", "age")
    write_dataset(tmp_path / "other.h5", Dataset(groups[1][:, [0, 1, 3]], names))
    for words, sentence in (
        (("predict", path, groups[0], "--proba"), "has none; leave it out, or fit a mixture"),
        (("predict", path, tmp_path / "other.h5"), "the data lack features of the model: 'pulse'"),
        (("sample", path), "holds clusters, from which no rows are drawn"),
    ):
        assert sentence in run(capsys, *words).sentence


# ---- vpem fedem ----------------------------------------------------------------------------------


def test_fedem_is_the_function(told, data):
    source = read_dataset(data)
    found = told(
        "fedem", "--workers", "4", "--sort-by-label", "--compress", "natural:12bits",
        "--step-size", "decreasing:0.9,0.6", "--init-rows", "3,77", "--seed", "5", "--covariance",
        "tied", "--participation", "0.7",
    )  # fmt: skip
    wanted = fit_fedem(
        source.X, by_label(source.labels, 4), init=[3, 77], compress="natural:12bits", seed=5,
        step_size="decreasing:0.9,0.6", covariance_type="tied", max_iter=20, tol=0.0,
        participation=0.7,
    )  # fmt: skip
    assert found["history"] == pytest.approx(wanted.run.history.objective, abs=1e-12)
    lists = [found[name] for name in ("history", "mean_field", "epochs", "bytes_up", "recorded")]
    lists.append(found["communication"]["bytes_by_iteration"])
    assert {len(values) for values in lists} == {21}
    assert found["log_likelihood"] == found["history"][-1]
    assert (found["epochs"][0], found["n_epochs"]) == (1, found["epochs"][-1])


def test_variance_reduction_epochs_and_seeds_of_fedem(told):
    found = told(
        "fedem", "--workers", "4", "--variance-reduction", "--batch-size", "5", "--inner", "4"
    )
    assert found["algorithm"] == "vr-fedem"
    assert found["epochs"][1] == 2
    assert found["epochs"][2] == pytest.approx(2 + 2 * 4 * 5 / 120)
    found = told("fedem", "--workers", "4", "--epochs", "6.5")
    assert (found["n_iter"], found["epochs"][-1]) == (6, 7)
    words = ("--workers", "5", "--compress", "qsgd:4bits", "--batch-size", "6")
    one, two, other = (told("fedem", *words, "--seed", seed)["history"] for seed in (1, 1, 2))
    assert one == two != other


def test_fedem_says_whether_it_converged(capsys, data, tmp_path):
    words = ("fedem", data, "--workers", "3", "--covariance", "tied")
    told = done(capsys, *words, "--strict")
    assert told.err == ""
    assert ", converged, " in told.out
    model = tmp_path / "m.h5"
    noisy = done(capsys, *words, "--batch-size", "9", "--strict", "-o", model)
    assert ", converged to within noise, " in noisy.out
    assert ", converged to within noise, " in done(capsys, "model", "show", model).out
    assert "noise of batches, which stays in the result" in noisy.err
    noisy = run(capsys, *words, "--batch-size", "9", "--max-iter", "30", "--strict")
    assert noisy.code == 3
    assert ", not converged, " in noisy.out
    assert "the noise of batches keeps them there" in noisy.err
    endless = done(capsys, *words, "--tol", "0", "--max-iter", "50")
    assert "converged" not in endless.out + endless.err
    assert " 50, " in endless.out
