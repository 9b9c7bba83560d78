"""`vpem fit --split rows`."""

import json

import h5py
import numpy as np
import pytest

from vpem import Dataset, read_dataset, read_model, write_dataset
from vpem.network.partition import from_worker_of_row

from .cli_support import done, make_data, run
from .tables import each


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "patients.h5")


def fit(capsys, data, *words):
    return done(capsys, "fit", data, "--split", "rows", "--json", *words).json


def test_a_star_of_workers_is_one_agent(capsys, data):
    one = done(capsys, "fit", data, "--topology", "star", "--agents", "1", "--json").json
    for n in (1, 3, 7):
        ours = fit(capsys, data, "--workers", n)
        assert ours["algorithm"] == "em-rows"
        assert ours["log_likelihood"] == pytest.approx(one["log_likelihood"], rel=1e-10)
        assert ours["init_rows"] == one["init_rows"]
        np.testing.assert_allclose(ours["history"], one["history"], rtol=1e-9)
        assert sum(ours["worker_rows"]) == ours["n_samples"]
        assert ours["disagreement"] == {"log_likelihood": 0.0, "mixing_weights": 0.0}


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "--split", "rows"),
        ("kmeans",),
        ("fedem", "--max-iter", "3", "--tol", "0"),
        ("select", "--split", "rows", "-k", "1", "--jobs", "1"),
    ],
    ids=lambda words: words[0],
)
def test_one_worker_holds_all_rows_where_nobody_says(capsys, data, command):
    name, *words = command
    told = done(capsys, name, data, *words, "--json")
    assert told.err == (
        "note: one worker holds all rows; for more: --workers N (equal parts), or --worker-rows "
        "FILE\n"
    )
    quiet = done(capsys, name, data, *words, "--json", "--quiet")
    assert quiet.err == ""
    asked = done(capsys, name, data, *words, "--json", "--workers", 1)
    assert asked.err == ""
    for other in (quiet, asked):
        for key in ("log_likelihood", "inertia", "worker_rows", "warnings", "cells"):
            one, two = told.json.get(key), other.json.get(key)
            if key == "cells" and one is not None:
                one, two = one[0]["bic"], two[0]["bic"]
            assert one == two


def test_peers_and_their_model(capsys, data, tmp_path):
    out = tmp_path / "m.h5"
    words = ("--workers", 5, "--topology", "cycle", "--init-rows", "3,40", "-o", out)
    ours = fit(capsys, data, *words)
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
    again = fit(capsys, data, "--workers", 5, "--init-model", out)
    assert again["n_iter"] <= 3


def test_the_table(capsys, data):
    told = done(capsys, "fit", data, "--split", "rows", "--workers", 4).out
    assert "4 workers" in told
    assert "rows each" in told
    assert "hub" not in told


def test_workers_of_a_file_and_of_the_dataset(capsys, data, tmp_path):
    with h5py.File(data) as file:
        n = len(file["X"])
        X = file["X"][:]
    of = np.arange(n) % 3
    parts = {f"site {w}": np.flatnonzero(of == w).tolist() for w in range(3)}
    parts["idle"] = []
    (tmp_path / "w.json").write_text(json.dumps(parts))
    ours = fit(capsys, data, "--worker-rows", tmp_path / "w.json", "--init-rows", "3,40")
    assert ours["worker_names"] == [*parts]
    stored = tmp_path / "stored.h5"
    names = tuple(f"x{j}" for j in range(X.shape[1]))
    write_dataset(stored, Dataset(X, names, workers=from_worker_of_row(of, ["a", "b", "c"])))
    same = fit(capsys, stored, "--init-rows", "3,40")
    assert same["worker_names"] == ["a", "b", "c"]
    np.testing.assert_allclose(same["history"], ours["history"], rtol=1e-10)


@each("init", ["random", "k-means++", "kmeans"])
def test_from_disk(capsys, data, tmp_path, init):
    """Rows of workers one after the other, and from here and there."""
    n = len(read_dataset(data).X)
    parts = {f"site {w}": [row for row in range(n) if row % 3 == w] for w in range(3)}
    (tmp_path / "w.json").write_text(json.dumps(parts))
    for held in (("--workers", 3), ("--worker-rows", tmp_path / "w.json")):
        here = fit(capsys, data, *held, "--init", init)
        there = fit(capsys, data, *held, "--init", init, "--memory-limit", "1")
        assert there["init_rows"] == here["init_rows"]
        np.testing.assert_allclose(there["history"], here["history"], rtol=1e-10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "cells"], "--split must be one of features, rows"),
        (["--workers", "3"], "--workers is for data split by rows; add --split rows"),
        (["--split", "rows", "--workers", "3", "--hops", "1"], "--hops is for data split by"),
        (["--split", "rows", "--workers", "0"], "--workers must be an integer"),
        (["--split", "rows", "--workers", "99999"], "99999 workers cannot share"),
        (["--split", "rows", "--workers", "3", "--compress", "float16"], "vpem fedem"),
        (["--split", "rows", "--workers", "3", "--worker-rows", "x"], "not both"),
        (["--split", "rows", "--worker-rows", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input(capsys, data, words, message, tmp_path):
    out = tmp_path / "m.h5"
    found = run(capsys, "fit", data, *words, "-o", out)
    assert found.code == 2
    assert message in found.err
    assert found.err.count("\n") == 1
    assert found.out == ""
    assert not out.exists()
