"""`--missing` of vpem fit, predict and score."""

import numpy as np
import pytest

from vpem import Dataset, read_model, write_dataset

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
    scored = done(capsys, "score", model, data, "--missing", "marginalize", "--json").json
    close = 1e-3 if "float32" in words or "cycle" in words else 1e-9
    assert scored["log_likelihood"] == pytest.approx(report["log_likelihood"], rel=close)
    assert scored["bic"] == pytest.approx(report["bic"], rel=close)
    predicted = done(
        capsys, "predict", model, data, "--missing", "marginalize", "--proba", "--json"
    ).json
    np.testing.assert_allclose(np.sum(predicted["proba"], axis=1), 1)


def test_missing_values_are_refused_unless_asked_for(capsys, data, tmp_path):
    refused = run(capsys, "fit", data, *FIT)
    assert refused.code == 2
    assert "is NaN" in refused.sentence
    assert "missing marginalize" in refused.sentence
    model = tmp_path / "m.h5"
    done(capsys, "fit", data, *FIT, "--missing", "marginalize", "-o", model)
    for command in ("score", "predict"):
        refused = run(capsys, command, model, data)
        assert refused.code == 2
        assert "is NaN" in refused.sentence


def test_words_that_are_no_answer(capsys, data):
    assert "missing must be" in run(capsys, "fit", data, "--missing", "drop").sentence
    words = ("--missing", "marginalize", "--batch-size", 20)
    assert "without --batch-size" in run(capsys, "fit", data, *words).sentence


def test_data_read_from_disk(capsys, data):
    words = ("--missing", "marginalize", "--memory-limit", "1K", "--init", "random")
    refused = run(capsys, "fit", data, *FIT, *words)
    assert refused.code == 2
    assert "which ones is kept in memory" in refused.sentence
