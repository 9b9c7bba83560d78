"""The power transform of Yeo and Johnson: of a dataset as it is imported, and of a fit."""

import json

import h5py
import numpy as np
import pytest
from scipy.stats import yeojohnson
from sklearn.preprocessing import PowerTransformer

from vpem.files.data import read_dataset
from vpem.terms.units import power_exponent, power_transform

from .cli_support import done, run

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


@pytest.mark.parametrize("exponent", [-1.7, 0.0, 0.3, 1.0, 2.0, 2.9])
def test_it_is_that_of_scipy(exponent):
    values = np.concatenate([RNG.normal(size=50), [0.0, 1e-9, -1e-9, 40.0, -40.0]])
    found = power_transform(values, exponent)
    np.testing.assert_allclose(found, yeojohnson(values, lmbda=exponent), rtol=1e-10, atol=1e-16)


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


REFUSED = [
    ("data import x.csv --power x.csv -o p.h5", "not an HDF5 file"),
    ("fit x.csv --scale power --split rows --workers 2", "of which a worker has some"),
    ("fit x.csv --scale power --split rows --epsilon 1 --delta 1e-5 --bounds 0,9", "--scale"),
    ("fit x.csv --scale power --release-epsilon 1 --delta 1e-5 --bounds 0,9", "--scale"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_refusals(words, said, capsys):
    refused = run(capsys, *words.split())
    assert refused.code == 2
    assert said in refused.err
