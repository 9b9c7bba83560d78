"""Commands over rows, clusters at work, tables as people have them, the best of fits."""

import csv
import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import vpem_cli
from vpem import Dataset, fit_fedem, read_dataset, read_model, write_dataset
from vpem.files.results import read_clustering
from vpem.network.partition import by_label, from_worker_of_row

from .cli_support import done, make_data, overlapping, run
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


# ---- vpem kmeans ---------------------------------------------------------------------------------


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


# ---- tables as people have them -----------------------------------------------------------------

HOW = ("--decimal", ",", "--label-column", "Art", "--na", "?")
NAMES = ("Größe", "Gewicht", "Alter")
QUICK = ("-k", "2", "--max-iter", "5")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table with decimal commas, ids, classes, a date and a constant."""
    monkeypatch.chdir(tmp_path)
    X, labels = overlapping(n_samples=60, n_features=3)
    lines = [";".join(("Kennung", *NAMES, "Art", "Besuch", "Ort"))]
    for row, (values, label) in enumerate(zip(X, labels, strict=True)):
        numbers = [f"{value:.4f}".replace(".", ",") for value in values]
        lines.append(
            ";".join((f"p{row:02}", *numbers, f"kind {label}", f"2024-01-{row % 28 + 1:02}", "3"))
        )
    path = tmp_path / "klinik.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_model_knows_how_its_table_was_read(capsys, table):
    fitted = done(capsys, "fit", table.name, *HOW, *QUICK, "-o", "m.h5")
    assert "Hubs" not in fitted.out  # which would say every name of a feature twice
    told = fitted.err.splitlines()
    assert told[:2] == [
        "klinik.csv: ids of rows are taken from 'Kennung'; --id-column names another",
        "klinik.csv: left out: Besuch (dates), Ort (constant)",
    ]
    assert told[3:] == []
    assert read_model("m.h5").options["id_column"] == "Kennung"
    # Numbers stand as the fit printed them.
    printed = done(capsys, "model", "show", "m.h5").out.splitlines()
    head, _, *rows = printed[printed.index("Components") + 2 :][:4]
    end = head.index("size") + len("size")
    assert all(row[end - 1].isdecimal() and row[end] == " " for row in rows)
    found = done(capsys, "predict", "m.h5", table.name)
    assert found.err == ""
    assert found.out.startswith("id,label\np00,")
    assert done(capsys, "evaluate", "m.h5", table.name, "--json").json["labels"] == [
        "kind 0",
        "kind 1",
    ]
    scored = done(capsys, "score", "m.h5", table.name, "--json").json
    # Of another table whatever says otherwise holds; what it lacks of labels is not missed.
    lines = [line.split(";") for line in table.read_text().splitlines()]
    plain = [
        ",".join((who, *(word.replace(",", ".") for word in words[:3]))) for who, *words in lines
    ]
    (table.parent / "new.csv").write_text("\n".join(["who" + plain[0][7:], *plain[1:]]) + "\n")
    words = ("new.csv", "--decimal", ".", "--id-column", "who")
    assert "pass --decimal ." in run(capsys, "predict", "m.h5", "new.csv").err
    assert done(capsys, "predict", "m.h5", *words).out == found.out
    assert done(capsys, "score", "m.h5", *words, "--json").json == scored
    assert "new.csv has no labels; name their column" in run(capsys, "evaluate", "m.h5", *words).err


@each("command", ["fit --agents 1 -k 2", "select --jobs 1 -k 1-2", "kmeans --split features"])
def test_fits_of_a_table_are_those_of_its_dataset(capsys, table, command):
    if not (table.parent / "d.h5").exists():
        done(capsys, "data", "import", table.name, *HOW, "-o", "d.h5")
        assert read_dataset("d.h5").labels[0].startswith("kind")
    name, *more = command.split()
    words = (*more, "--max-iter", "5", "--json")
    own, same = (done(capsys, name, *file, *words).json for file in ((table.name, *HOW), ("d.h5",)))
    told = own.keys() & {"log_likelihood", "bic", "inertia", "cluster_sizes", "best"}
    assert told
    assert {key: own[key] for key in told} == {key: same[key] for key in told}


def test_a_table_from_a_pipe(capsys, table, monkeypatch):
    wanted = done(capsys, "kmeans", table.name, *HOW, "--json", "-q").json["inertia"]
    piped = SimpleNamespace(buffer=io.BytesIO(table.read_bytes()), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", piped)
    assert done(capsys, "kmeans", "-", *HOW, "--json", "-q").json["inertia"] == wanted
    monkeypatch.setenv("PMI_SIZE", "2")  # processes that share nothing
    assert "share it give --engine mpi" in done(capsys, "kmeans", table.name, *HOW).err


# ---- the best of several fits --------------------------------------------------------------------


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """A folder with fits of three seeds, which end at different places."""
    folder = tmp_path_factory.mktemp("fits")
    data = make_data(folder / "data.h5")
    for seed in range(3):
        words = ["-k", 3, "--seed", seed, "--init", "random", "--max-iter", 15]
        vpem_cli.run([str(word) for word in ["fit", data, *words, "-o", folder / f"{seed}.h5"]])
    return folder


@each(("criterion", "sign"), [("log-likelihood", 1), ("bic", -1)])
def test_the_best_is_printed_and_copied(capsys, tmp_path, fits, criterion, sign):
    reports = {seed: read_model(fits / f"{seed}.h5").report for seed in range(3)}
    name = criterion.replace("-", "_")
    best = max(reports, key=lambda seed: sign * reports[seed][name])
    files, copy = [fits / f"{seed}.h5" for seed in reports], tmp_path / "best.h5"
    words = ("model", "best", *files, "--criterion", criterion)
    result = done(capsys, *words, "-o", copy, "--force")
    assert result.out == f"{files[best]}\n"
    assert "of 3 models" in result.err
    assert copy.read_bytes() == files[best].read_bytes()
    told = done(capsys, *words, "--json", "-q").json
    assert told["best"] == str(files[best])
    assert [one["seed"] for one in told["models"]] == [0, 1, 2]
    assert told["models"][1][name] == reports[1][name]
    assert "exists" in run(capsys, *words, "-o", copy).sentence


def test_one_model_is_the_best_and_the_first_of_equals(capsys, fits, tmp_path):
    one = fits / "1.h5"
    same = tmp_path / "same.h5"
    same.write_bytes(one.read_bytes())
    assert done(capsys, "model", "best", one, "-q").out == f"{one}\n"
    assert done(capsys, "model", "best", same, one, "-q").out == f"{same}\n"
    assert done(capsys, "model", "best", one, same, "-q").out == f"{one}\n"


def test_models_that_cannot_be_compared(capsys, tmp_path, fits):
    one, data = fits / "0.h5", fits / "data.h5"
    made = {
        "fewer": {"n_samples": 90}, "plain": {"named": False}, "elsewhere": {"seed": 9},
        "narrow": {"named": False, "n_features": 4},
    }  # fmt: skip
    for name, source, k, said in (
        ("larger", data, 4, "the larger model; take --criterion bic"),
        ("fewer", None, 3, "was fitted to 90 rows"),
        ("plain", None, 3, "have different features"),
        ("narrow", None, 3, "has 4 features"),
        ("elsewhere", None, 3, "was fitted to the data elsewhere.h5"),
    ):
        source = source or make_data(tmp_path / f"{name}.h5", **made[name])
        other = tmp_path / f"{name}.m.h5"
        done(capsys, "fit", source, "--max-iter", 3, "-k", k, "-o", other, "-q")
        assert said in run(capsys, "model", "best", one, other).sentence
    larger = tmp_path / "larger.m.h5"
    done(capsys, "model", "best", one, larger, "--criterion", "bic", "-q")
    assert run(capsys, "model", "best", one, data).code == 2
    assert "criterion" in run(capsys, "model", "best", one, "--criterion", "size").sentence
