"""The power transform of Yeo and Johnson: of a dataset as it is imported, and of a fit."""

import json

import h5py
import numpy as np
import pytest
from scipy.stats import multivariate_normal, yeojohnson
from sklearn.preprocessing import PowerTransformer

import vpem
from vpem.files.data import read_dataset
from vpem.files.models import assembled
from vpem.terms.units import power_exponent, power_inverse, power_transform

from .cli_support import done, run
from .tables import each

RNG = np.random.default_rng(0)
X = np.concatenate([np.exp(RNG.normal(m, 0.5, (60, 3))) for m in (0.0, 1.5)]) - [0, 3, 0]
EXPONENTS = PowerTransformer(standardize=False).fit(X).lambdas_


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("x.csv", X)


def write(name, rows, names="a,b,c"):
    text = "\n".join(",".join(map(repr, row)) for row in rows.tolist())
    with open(name, "w", encoding="utf-8") as file:
        file.write(f"{names}\n{text}\n")


@each("exponent", [-1.7, 0.0, 0.3, 1.0, 2.0, 2.9])
def test_it_is_that_of_scipy_and_undone(exponent):
    values = np.concatenate([RNG.normal(size=50), [0.0, 1e-9, -1e-9, 9.0, -9.0, 40.0, np.nan]])
    found = power_transform(values, exponent)
    wanted = yeojohnson(values[:-1], lmbda=exponent)
    np.testing.assert_allclose(found[:-1], wanted, rtol=1e-10, atol=1e-16)
    undone = power_inverse(found[[*range(55), 56]], exponent)
    np.testing.assert_allclose(undone, values[[*range(55), 56]], rtol=1e-10, atol=1e-20)
    if exponent < 0:
        assert power_inverse(np.array([-2 / exponent]), exponent) == np.inf


def by_hand(model, rows):
    """Log-likelihoods of rows as they are, from SciPy's transform and its derivative."""
    exponents, found = json.loads(model.options["power"]).values(), assembled(model.mixture)
    moved = np.column_stack(
        [yeojohnson(x, lmbda=p) for x, p in zip(rows.T, exponents, strict=True)]
    )
    terms = [
        np.log(weight) + multivariate_normal.logpdf(moved, mean, covariance)
        for weight, mean, covariance in zip(
            found["weights"], found["means"], found["covariances"], strict=True
        )
    ]
    slopes = np.where(rows < 0, 1 - rows, 1 + rows) ** (
        np.where(rows < 0, -1, 1) * (np.array([*exponents]) - 1)
    )
    return np.array(terms).T, np.logaddexp.reduce(terms) + np.log(slopes).sum(axis=1)


def test_likelihoods_are_those_of_the_data_as_they_are(capsys):
    new = X[::7] + 0.1
    write("new.csv", new)
    fit = "-k 2 --seed 1 --json -q -o"
    done(capsys, *["data", "import", "x.csv", "--power", "fit", "-o", "p.h5"])
    for number, words in enumerate((
        f"fit x.csv --scale power {fit} m.h5",
        f"fit p.h5 --agents 3 {fit} m.h5",
        f"fit p.h5 --split rows --workers 3 {fit} m.h5",
        f"fedem p.h5 --workers 3 --scale standard {fit} m.h5",
        "select p.h5 -k 2 --seed 1 --scale standard --json -q -o m.h5",
        "fit x.csv --scale power -k 2-3 --json -q -o m.h5",
    )):  # fmt: skip
        told = json.loads(done(capsys, *words.split(), "--force").out)
        model = vpem.read_model("m.h5")
        terms, total = by_hand(model, X)
        report = model.report
        assert report["log_likelihood"] == pytest.approx(total.mean(), rel=1e-4)
        assert model.history[-1].mean() == pytest.approx(total.sum(), rel=1e-3)
        if "select" not in words:
            assert told["power"] == pytest.approx(json.loads(model.options["power"]))
        for cell in report.get("selection", {"cells": []})["cells"]:
            assert cell["bic"] >= report["bic"] - 1e-9 * abs(report["bic"])
        files = ((X, "x.csv"), (X, "p.h5"), (new, "new.csv"))
        for rows, file in files[number % 3 :][:1]:
            terms, total = by_hand(model, rows)
            np.testing.assert_allclose(model.score_samples(rows), total, rtol=1e-10)
            np.testing.assert_array_equal(model.predict(rows), terms.argmax(axis=1))
            scored = json.loads(done(capsys, "score", "m.h5", file, "--json").out)
            assert scored["log_likelihood"] == pytest.approx(total.mean(), rel=1e-10)
            said = json.loads(done(capsys, "predict", "m.h5", file, "--json").out)
            assert said["labels"] == model.predict(rows).tolist()
            shares = json.loads(done(capsys, "model", "contribution", "m.h5", file, "--json").out)
            assert shares["log_likelihood"] == pytest.approx(total.mean(), rel=1e-10)


def test_parties_that_transformed_their_features(capsys):
    write("A.csv", X[:, :1], "a")
    write("B.csv", X[:, 1:], "b,c")
    write("C.csv", X[:60])
    write("D.csv", X[60:])
    for party in "AB":
        done(capsys, *f"data import {party}.csv --power fit -o {party}.h5".split())
    fit = "--scale standard -k 2 --seed 1 -q -o"
    heard = done(capsys, *f"fit --parties A.h5 B.h5 {fit} m.h5".split(), "--json")
    model = vpem.read_model("m.h5")
    assert json.loads(heard.out)["power"].keys() == {"a", "b", "c"}
    total = by_hand(model, X)[1]
    for files in ("A.h5 B.h5", "A.csv B.csv", "C.csv D.csv --split rows"):
        told = json.loads(done(capsys, *f"score m.h5 --parties {files} --json".split()).out)
        assert told["log_likelihood"] == pytest.approx(total.mean(), rel=1e-10)
    refused = run(capsys, *["score", "m.h5", "--parties", "A.h5", "B.csv"])
    assert (refused.code, "transformed by other exponents" in refused.err) == (2, True)
    for party, rule in (("C", "fit"), ("D", "C.h5")):
        done(capsys, *f"data import {party}.csv --power {rule} -o {party}.h5".split())
    for files in ("C.h5 D.csv", "C.csv D.h5"):
        refused = run(capsys, *f"fit --parties {files} --split rows -k 2".split())
        assert (refused.code, "by other powers" in refused.err) == (2, True)
    done(capsys, *f"fit --parties C.h5 D.h5 --split rows {fit} r.h5".split())
    rows = vpem.read_model("r.h5")
    assert rows.report["log_likelihood"] == pytest.approx(by_hand(rows, X)[1].mean(), rel=1e-4)


def test_samples_are_rows_as_they_are(capsys):
    done(
        capsys, *["fit", "x.csv", "--scale", "power", "-k", "2", "--seed", "1", "-q", "-o", "m.h5"]
    )
    model = vpem.read_model("m.h5")
    rows, labels = model.sample(500, 3)
    raw, wanted = model.mixture.sample(500, np.random.default_rng(3))
    exponents = json.loads(model.options["power"]).values()
    moved = np.column_stack(
        [yeojohnson(x, lmbda=p) for x, p in zip(rows.T, exponents, strict=True)]
    )
    # Those that no row is transformed to are drawn again.
    powers = [np.where(z < 0, 2 - p, p) for z, p in zip(raw.T, exponents, strict=True)]
    kept = (np.column_stack(powers) * np.abs(raw) > -1).all(axis=1)
    assert kept.sum() > 400
    np.testing.assert_allclose(moved[kept], raw[kept], rtol=1e-8)
    np.testing.assert_array_equal(labels[kept], wanted[kept])
    assert np.isfinite(rows).all()
    done(capsys, *["sample", "m.h5", "-n", "500", "--seed", "3", "-o", "s.h5"])
    np.testing.assert_array_equal(read_dataset("s.h5").X, rows)


UNITS = [
    ("fit p.h5 --scale power", "transformed by powers already"),
    ("score none.h5 p.h5", "transformed by other exponents"),
    ("score m.h5 q.h5", "transformed by other exponents"),
    ("fit x.csv --init-model m.h5", "other power transforms"),
    ("fit p.h5 --init-model none.h5", "other power transforms"),
    ("fit x.csv --scale power --init-model none.h5", "other power transforms"),
    ("fedem x.csv --workers 2 --init-model m.h5", "other power transforms"),
    ("kmeans x.csv --init-model m.h5", "other power transforms"),
    ("kmeans x.csv --init-model c.h5", "other power transforms"),
    ("select x.csv -k 2 --scale power", "data import --power fit"),
    ("plot none.h5 x.csv --kind marginals --over m.h5 -o a.png", "in other units than none.h5"),
    ("data import x.csv --power x.csv -o z.h5", "not an HDF5 file"),
    ("fit x.csv --scale power --split rows --workers 2", "of which a worker has some"),
    ("fit x.csv --scale power --split rows --epsilon 1 --delta 1e-5 --bounds 0,9", "--scale"),
    ("fit x.csv --scale power --release-epsilon 1 --delta 1e-5 --bounds 0,9", "--scale"),
]


def test_other_units_are_refused(capsys):
    write("y.csv", X**2)
    for words in (
        "data import x.csv --power fit -o p.h5",
        "data import y.csv --power fit -o q.h5",
        "fit x.csv -k 2 --seed 1 -q -o none.h5",
        "fit x.csv -k 2 --seed 1 --scale power -q -o m.h5",
        "kmeans p.h5 -k 2 --seed 1 -q -o c.h5",
    ):
        done(capsys, *words.split())
    for words, said in UNITS:
        refused = run(capsys, *words.split())
        assert refused.code == 2, words
        assert said in refused.err, words
    done(capsys, *["fit", "p.h5", "--init-model", "m.h5", "-q"])
    best = json.loads(done(capsys, *["model", "best", "none.h5", "m.h5", "--json"]).out)
    assert best["best"] == "m.h5"
    with pytest.raises(vpem.errors.FileError, match=r"vpem\.read_model"):
        vpem.load("m.h5")
    with pytest.raises(vpem.errors.InputError, match="PowerTransformer"):
        vpem.VPEM(2, scale="power").fit(X)
    assert "after the model's power" in done(capsys, *["model", "boundaries", "m.h5"]).err
    done(capsys, *["model", "export", "m.h5", "-o", "m.npz"])
    kept = json.loads(vpem.read_model("m.h5").options["power"])
    np.testing.assert_array_equal(np.load("m.npz")["powers"], [*kept.values()])
    with pytest.raises(vpem.errors.InputError, match="vpem model contribution"):
        vpem.contribution(vpem.read_model("m.h5"), X)
    model = vpem.read_model("m.h5")
    model.options["power"] = '{"a": "b"}'
    vpem.write_model("bad.h5", model)
    with pytest.raises(vpem.errors.FileError, match="no exponents"):
        vpem.read_model("bad.h5")


def test_exponents_are_those_of_scikit_learn():
    for column, exponent in zip(X.T, EXPONENTS, strict=True):
        assert power_exponent(column) == pytest.approx(exponent, rel=1e-6)
        gaps = np.append(column, np.nan)
        assert power_exponent(gaps) == pytest.approx(exponent, rel=1e-6)
    assert power_exponent(np.full(9, 3.0)) == 1.0
    assert power_exponent(np.array([1.0, 2.0])) == 1.0


def test_a_dataset_keeps_its_exponents(capsys):
    done(capsys, *["data", "import", "x.csv", "--power", "fit", "-o", "p.h5"])
    with h5py.File("p.h5") as file:
        kept = json.loads(file.attrs["power"])
    np.testing.assert_allclose(list(kept.values()), EXPONENTS, rtol=1e-6)
    wanted = np.column_stack(
        [yeojohnson(x, lmbda=p) for x, p in zip(X.T, kept.values(), strict=True)]
    )
    np.testing.assert_allclose(read_dataset("p.h5").X, wanted, rtol=1e-10)
    # New rows are transformed by the exponents of the dataset, in any order of the features.
    write("new.csv", X[:9, [2, 0, 1]], "c,a,b")
    done(capsys, *["data", "import", "new.csv", "--power", "p.h5", "-o", "q.h5"])
    np.testing.assert_allclose(read_dataset("q.h5").X, wanted[:9, [2, 0, 1]], rtol=1e-12)
    done(capsys, *["data", "repack", "p.h5", "-o", "r.h5"])
    assert "transformed by powers" in done(capsys, *["fit", "r.h5", "-k", "2"]).err


def test_a_fit_transforms_as_an_import_does(capsys):
    done(capsys, *["data", "import", "x.csv", "--power", "fit", "-o", "p.h5"])
    fit = "-k 2 --agents 3 --seed 1 --json -q"
    found = json.loads(done(capsys, *f"fit x.csv --scale power -o m.h5 {fit}".split()).out)
    wanted = json.loads(done(capsys, *f"fit p.h5 --scale standard -o n.h5 {fit}".split()).out)
    assert found["log_likelihood"] == wanted["log_likelihood"]
    for use in ("predict", "score"):
        by_model = json.loads(done(capsys, use, "m.h5", "x.csv", "--json").out)
        by_hand = json.loads(done(capsys, use, "n.h5", "p.h5", "--json").out)
        assert by_model == by_hand
    write("new.csv", X[:9, [2, 0, 1]], "c,a,b")
    some = json.loads(done(capsys, *["predict", "m.h5", "new.csv", "--json"]).out)
    assert (
        some["labels"]
        == json.loads(done(capsys, *["predict", "m.h5", "x.csv", "--json"]).out)["labels"][:9]
    )
