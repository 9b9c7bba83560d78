"""`--missing` of vpem fit, predict and score."""

import numpy as np
import pytest

import vpem
from vpem import Dataset, read_dataset, read_model, write_dataset

from .cli_support import NAMES, done, overlapping, run


@pytest.fixture
def data(tmp_path):
    X, _ = overlapping()
    rng = np.random.default_rng(0)
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:40, 3:] = np.nan
    X[np.isnan(X).all(axis=1), 0] = 0.0
    path = tmp_path / "d.h5"
    write_dataset(path, Dataset(X, NAMES))
    return path


FIT = ("--components", 2, "--max-iter", 8, "--threads", 1)


@pytest.mark.parametrize(
    "words",
    [
        ("--agents", 3),
        ("--agents", 3, "--topology", "cycle", "--covariance", "diag"),
        ("--split", "rows", "--workers", 3),
        ("--agents", 2, "--scale", "standard", "--dtype", "float32"),
    ],
)
def test_fit_score_and_predict(capsys, data, tmp_path, words):
    model = tmp_path / "m.h5"
    report = done(
        capsys, "fit", data, *FIT, *words, "--missing", "marginalize", "-o", model, "--json"
    ).json
    assert read_model(model).options["missing"] == "marginalize"
    scored = done(capsys, "score", model, data, "--json").json  # the model knows
    close = 1e-3 if "float32" in words or "cycle" in words else 1e-9
    assert scored["log_likelihood"] == pytest.approx(report["log_likelihood"], rel=close)
    assert scored["bic"] == pytest.approx(report["bic"], rel=close)
    predicted = done(capsys, "predict", model, data, "--proba", "--json").json
    np.testing.assert_allclose(np.sum(predicted["proba"], axis=1), 1)


# ---- tables with empty cells --------------------------------------------------------------------


def with_gaps(path, X, names=NAMES, ids=None):
    """Write a table whose missing values are empty cells or words for nothing."""
    empty = ["", "NA", "nan"]
    head = list(names) if ids is None else ["id", *names]
    lines = [",".join(head)]
    for row, values in enumerate(X):
        cells = [
            empty[(row + j) % 3] if np.isnan(value) else repr(float(value))
            for j, value in enumerate(values)
        ]
        lines.append(",".join(cells if ids is None else [str(ids[row]), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_empty_cells_of_a_table_are_kept(capsys, data, tmp_path):
    X = read_dataset(data).X
    table, imported = with_gaps(tmp_path / "t.csv", X), tmp_path / "t.h5"
    told = done(capsys, "data", "import", table, "-o", imported, "--missing", "keep")
    assert f"{np.isnan(X).sum()} values missing" in told.err
    np.testing.assert_array_equal(read_dataset(imported).X, X)
    found = done(capsys, "data", "describe", imported, "--json").json
    assert found["n_missing"] == found["n_non_finite"] == np.isnan(X).sum()
    assert [one["missing"] for one in found["features"]] == np.isnan(X).sum(axis=0).tolist()
    shown = " ".join(done(capsys, "data", "describe", imported).out.split())
    assert f"values missing (NaN) {np.isnan(X).sum()} ({100 * np.isnan(X).mean():.2g} %)" in shown
    words = (*FIT, "--agents", 2, "--missing", "marginalize", "--json")
    one, other = (done(capsys, "fit", file, *words).json for file in (data, imported))
    assert one["history"] == other["history"]


def test_empty_cells_of_parties(capsys, data, tmp_path):
    X = read_dataset(data).X
    ids = np.random.default_rng(1).permutation(len(X))
    for name, columns in (("a", slice(0, 3)), ("b", slice(3, 6))):
        with_gaps(tmp_path / f"{name}.csv", X[:, columns], NAMES[columns], ids)
    tables = "".join(f'[[party]]\nfile = "{name}.csv"\nids = "id"\n' for name in "ab")
    (tmp_path / "p.toml").write_text(tables)
    words = ("fit", tmp_path / "p.toml", "--parties", "--align", "ids", *FIT, "--json")
    found = done(capsys, *words, "--missing", "marginalize").json
    whole = done(capsys, "fit", data, "--agents", 2, *FIT, "--json", "--missing", "marginalize")
    np.testing.assert_allclose(found["history"], whole.json["history"], rtol=1e-12)


def test_a_column_without_values_is_left_out(capsys, tmp_path):
    words = ("data", "import", tmp_path / "t.csv", "-o", tmp_path / "t.h5", "--missing")
    (tmp_path / "t.csv").write_text("a,b\n1,\n2,\n")
    assert "left out: b (no values)" in done(capsys, *words, "keep").err


def test_a_row_without_values_counts_alike_in_fit_and_score(capsys, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3))
    X[7] = np.nan
    X[3, 1] = np.nan
    path, model = tmp_path / "d.h5", tmp_path / "m.h5"
    write_dataset(path, Dataset(X, ("a", "b", "c")))
    fitted = run(
        capsys, "fit", path, "--missing", "marginalize", "--tol", 1e-10, "--json", "-o", model
    )
    assert "1 of 60 rows have no values" in fitted.err
    scored = done(capsys, "score", model, path, "--missing", "marginalize", "--json").json
    assert scored["n_without_values"] == 1
    assert scored["log_likelihood"] == pytest.approx(fitted.json["log_likelihood"], rel=1e-9)
    assert scored["bic"] == pytest.approx(fitted.json["bic"], rel=1e-9)
    loaded, named = vpem.load(model), Dataset(X, ("a", "b", "c"))
    assert loaded.score(named) == pytest.approx(scored["log_likelihood"], rel=1e-12)
    assert loaded.bic(named) == pytest.approx(scored["bic"], rel=1e-12)
    heavy = np.random.default_rng(1).uniform(0.1, 3.0, 60)
    write_dataset(path, Dataset(X, ("a", "b", "c"), sample_weight=heavy), force=True)
    words = ("score", model, path, "--sample-weight", "sample_weight", "--json")
    found = done(capsys, *words).json["log_likelihood"]
    there = ~np.isnan(X).all(axis=1)
    expected = np.average(loaded.score_samples(named)[there], weights=heavy[there])
    assert found == pytest.approx(expected, rel=1e-12)
    assert loaded.score(named, sample_weight=heavy) == pytest.approx(expected, rel=1e-12)
