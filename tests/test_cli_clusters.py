"""Clusters that `vpem kmeans` wrote, at work: `vpem predict`, `score`, `evaluate`."""

import csv
import io
import json

import numpy as np
import pytest

import vpem_cli
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.results import read_clustering

from .cli_support import done, run


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(40, 3)) + 5 * k for k in range(3)]) * [1, 10, 100]
    path = tmp_path_factory.mktemp("clusters") / "data.h5"
    labels = np.repeat(["a", "b", "c"], 40)
    write_dataset(path, Dataset(X, ("height", "weight", "pulse"), labels=labels))
    return path, X


@pytest.fixture(scope="module", params=["none", "standard"])
def clusters(request, held, tmp_path_factory):
    path = tmp_path_factory.mktemp("clusters") / "c.h5"
    words = ["kmeans", held[0], "-k", 3, "--workers", 4, "--topology", "cycle", "--rounds", 3]
    words += ["--init-rows", "1,50,90", "--scale", request.param, "-o", path, "-q"]
    assert vpem_cli.run([str(word) for word in words]) == 0
    return path, request.param


def test_labels_of_the_same_and_of_new_rows(capsys, held, clusters, tmp_path):
    path, X = held
    stored = read_clustering(clusters[0])
    assert stored.report["scale"] == clusters[1]
    assert (stored.scaling is None) == (clusters[1] == "none")
    found = done(capsys, "predict", clusters[0], path, "--json").json
    assert found["labels"] == stored.labels.tolist()
    units = stored.scaling.scale if stored.scaling is not None else 1.0
    off = (X - stored.centres[stored.labels]) / units
    np.testing.assert_allclose(found["distances"], np.linalg.norm(off, axis=1), rtol=1e-6)
    assert found["counts"] == np.bincount(stored.labels, minlength=3).tolist()
    assert np.sum(np.square(found["distances"])) == pytest.approx(stored.report["inertia"])
    # Features in another order, and one more.
    other = tmp_path / "new.h5"
    new = np.column_stack([X[::-1, 2], np.zeros(120), X[::-1, 0], X[::-1, 1]])
    write_dataset(other, Dataset(new, ("pulse", "none", "height", "weight")))
    text = done(capsys, "predict", clusters[0], other).out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["label"]) for row in rows] == stored.labels[::-1].tolist()
    assert set(rows[0]) == {"row", "label", "distance"}
    listed = [float(row["distance"]) for row in rows]
    np.testing.assert_allclose(listed, found["distances"][::-1], rtol=1e-6)


def test_score_and_evaluate(capsys, held, clusters):
    stored = read_clustering(clusters[0])
    found = done(capsys, "score", clusters[0], held[0], "--json").json
    assert found["inertia"] == pytest.approx(stored.report["inertia"])
    assert found["inertia_per_sample"] == pytest.approx(found["inertia"] / 120)
    assert "inertia per sample" in done(capsys, "score", clusters[0], held[0]).out
    found = done(capsys, "evaluate", clusters[0], held[0], "--json").json
    assert found["accuracy"] > 0.95
    assert np.sum(found["confusion"]) == 120


def test_what_clusters_cannot_do(capsys, held, clusters, tmp_path):
    other = tmp_path / "other.h5"
    write_dataset(other, Dataset(held[1][:, :2], ("height", "weight")))
    for arguments, sentence in [
        (("predict", clusters[0], held[0], "--proba"), "has none; leave it out, or fit a mixture"),
        (("predict", clusters[0], other), "the data lack features of the model: 'pulse'"),
        (("sample", clusters[0]), "holds clusters, from which no rows are drawn"),
    ]:
        result = run(capsys, *arguments)
        assert result.code == 2
        assert sentence in result.sentence


def test_model_show_shows_centres(capsys, clusters):
    shown = done(capsys, "model", "show", clusters[0]).out
    assert "3 clusters, 3 features" in shown
    told = json.loads(done(capsys, "model", "show", clusters[0], "--json").out)
    stored = read_clustering(clusters[0])
    assert sum(told["cluster_sizes"]) == 120
    assert told["inertia"] == stored.report["inertia"] > 0
    assert told["centres"] == stored.centres.tolist()
