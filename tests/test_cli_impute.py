"""`vpem impute`: files in and out, options, holdout, pictures."""

import csv
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from pyarrow import parquet

import vpem
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.observations import read_observations, write_observations
from vpem.terms.lowrank.entries import from_matrices

from .cli_support import done, run
from .tables import each


def counts(seed=0, n_observers=3, shape=(12, 8), share=0.5):
    """What observers counted about a low-rank intensity."""
    rng = np.random.default_rng(seed)
    theta = 1 + 0.5 * rng.normal(size=(shape[0], 1)) @ rng.normal(size=(1, shape[1]))
    found = {}
    for name in ("ann", "bob", "eve")[:n_observers]:
        X = rng.poisson(np.exp(theta)).astype(float)
        found[name] = np.where(rng.random(shape) < share, X, np.nan)
    found["ann"][np.arange(shape[0]), np.arange(shape[0]) % shape[1]] = 1.0
    return found


def write_birds():
    """Write birds.csv, birds.h5 of the same, a matrix with NaN, and one of zeros and ones."""
    seen = counts()
    rows, columns = [f"site {i:02d}" for i in range(12)], [f"2020-{j + 1:02d}" for j in range(8)]
    given = from_matrices(seen, row_names=rows, column_names=columns)
    write_observations("birds.h5", given)
    lines = [
        f"{name},{rows[i]},{columns[j]},{X[i, j]:.0f}"
        for name, X in seen.items() for i, j in np.argwhere(~np.isnan(X))
    ]  # fmt: skip
    Path("birds.csv").write_text("\n".join(["observer,row,column,value", *lines]) + "\n")
    one = seen["ann"] + np.random.default_rng(1).normal(size=(12, 8))
    write_dataset("one.h5", Dataset(one, tuple(columns), ids=np.array(rows)))
    write_dataset("bits.h5", Dataset(np.where(np.isnan(one), one, one > 3), tuple(columns)))


UNUSABLE = {
    "hidden": "observer,row,column,value\na,b,c,\n",
    "heavy": "observer,row,column,value,w\na,b,c,1,-1\n",
    "light": "observer,row,column,value,w\na,b,c,1,0\n",
    "wide": "a,b\n1,\n,2\n",
    "empty": "row,column,value\n",
    "twice": "row,column,value\na,b,1\na,b,2\n",
}


def write_what_cannot_be_imputed():
    for name, text in UNUSABLE.items():
        Path(f"{name}.csv").write_text(text)
    gap = np.ones((6, 3))
    gap[3] = np.nan
    write_dataset("gap.h5", Dataset(gap, ("a", "b", "c")))
    gap[:, 1] = np.nan
    write_dataset("gaps.h5", Dataset(gap, ("a", "b", "c")))
    write_dataset("infinite.h5", Dataset(np.array([[1.0, np.inf]]), ("a", "b")))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_birds()
    return tmp_path


POISSON = ("--law", "poisson", "--rank", "2")


def test_what_is_written(capsys, folder):
    words = ("impute", "birds.csv", *POISSON, "--holdout", "0.1", "-o", "out.h5", "--json")
    found = done(capsys, *words).json
    with h5py.File("out.h5") as file:
        assert file.attrs["encoding-type"].astype(str) == "vpem-imputation"
        names = file["row_names"].asstr()[()].tolist()
        assert names == [f"site {i:02d}" for i in range(12)]
        assert file["column_names"].asstr()[3] == "2020-04"
        fitted, imputed = file["fitted"][()], file["imputed"][()]
        U, V = file["factors/rows"][()], file["factors/columns"][()]
        np.testing.assert_allclose(np.exp(U @ V.T), fitted)
        np.testing.assert_allclose(file["trends/rows"][()], fitted.mean(axis=1))
        np.testing.assert_allclose(file["trends/columns"][()], fitted.mean(axis=0))
        away = file["holdout/rows"][()] * 8 + file["holdout/columns"][()]
        assert len(np.unique(away)) == found["holdout"]["n_entries"]
        given = read_observations("birds.csv")
        kept = given.mean.ravel().copy()
        kept[away] = np.nan
        seen = ~np.isnan(kept)
        np.testing.assert_array_equal(imputed.ravel()[seen], kept[seen])
        np.testing.assert_array_equal(imputed.ravel()[~seen], fitted.ravel()[~seen])
        np.testing.assert_array_equal(file["times_seen"][()].ravel() > 0, seen)
        report = json.loads(file["report"][()].tobytes())
    assert report["holdout"] == found["holdout"]
    assert found["model"] == "out.h5"


@pytest.mark.parametrize("name", ["birds.csv", "matrix.h5"])
def test_a_table_of_imputed_values(capsys, folder, name):
    given = read_observations("birds.csv")
    if name == "matrix.h5":
        holes = np.where(
            given.times_seen > 0, np.arange(given.times_seen.size).reshape(given.shape), np.nan
        )
        write_dataset(name, Dataset(holes, given.column_names, ids=np.array(given.row_names)))
    words = ("impute", name, "--rank", "1", "--max-iter", "20", "-q", "-o")
    done(capsys, *words, "filled.h5")
    done(capsys, *words, "filled.csv")
    with h5py.File("filled.h5") as file:
        imputed, times_seen = file["imputed"][()], file["times_seen"][()]
    with open("filled.csv", newline="") as stream:
        header, *lines = csv.reader(stream)
    if name == "birds.csv":
        assert header == ["row", "column", "value", "times_seen"]
        pairs = [(row, column) for row in given.row_names for column in given.column_names]
        assert [(row, column) for row, column, *_ in lines] == pairs
        assert [float(line[2]) for line in lines] == imputed.ravel().tolist()
        assert [int(line[3]) for line in lines] == times_seen.ravel().tolist()
    else:
        assert header == ["row", *given.column_names]
        assert [line[0] for line in lines] == list(given.row_names)
        found = np.array([line[1:] for line in lines], dtype=float)
        np.testing.assert_array_equal(found, imputed)
        seen = ~np.isnan(holes)
        np.testing.assert_array_equal(found[seen], holes[seen])
    # A file that was kept makes the same table.
    assert (
        done(capsys, "model", "export", "filled.h5", "-o", "later.csv").err == "wrote later.csv\n"
    )
    with open("filled.csv", "rb") as one, open("later.csv", "rb") as other:
        assert one.read() == other.read()
    assert run(capsys, "model", "export", "filled.h5", "-o", "later.npz").sentence.startswith(
        "imputed values are written to .csv or .parquet files"
    )


AIR = [
    ["day", "ozone", "site", "wind", "n"],
    *([f"2020-01-{i + 1:02d}", f"{3 * i % 7}.5", "=n, o"[i % 2 :], f"{i % 5 - i % 3}", f"{9 * i}"]
      for i in range(20)),
]  # fmt: skip


def written(path):
    with open(path, newline="") as stream:
        return list(csv.reader(stream))


@each("ending", [".csv", ".parquet"])
def test_a_table_is_filled_and_else_as_it_was(capsys, folder, ending):
    table = [list(row) for row in AIR]
    gaps = {(3, 1): "NA", (8, 1): "", (8, 3): "?", (11, 4): "NaN"}
    for (row, column), mark in gaps.items():
        table[row][column] = mark
    with open("air.csv", "w", newline="") as stream:
        csv.writer(stream).writerows(table)
    name = f"filled{ending}"
    words = ("impute", "air.csv", "--rank", "1", "--na", "?", "--holdout", "0.2", "--scale", "none")
    assert " of all squares" in done(capsys, *words, "--force", "-o", name).err
    assert "squares" not in done(capsys, *words, "--scale", "standard").err
    if ending == ".parquet":
        columns = parquet.read_table(name)
        assert [str(one) for one in columns.schema.types] == [
            "string", "double", "string", "double", "double"
        ]  # fmt: skip
        lines = [[str(one) for one in row.values()] for row in columns.to_pylist()]
        found = [columns.column_names, *lines]
    else:
        found = written(name)
    assert len(found) == len(AIR)
    for row, (line, was) in enumerate(zip(found, table, strict=True)):
        for column, (cell, old) in enumerate(zip(line, was, strict=True)):
            if (row, column) in gaps:
                assert np.isfinite(float(cell))
            elif row and column in (1, 3, 4):
                assert float(cell) == float(old)
            else:
                assert cell == old


@each(
    ("words", "losses"),
    [
        (("birds.csv", "--law", "poisson"), {"rmse", "deviance"}),
        (("bits.h5", "--law", "bernoulli"), {"rmse", "log_loss"}),
        (("one.h5", "--scale", "standard"), {"rmse", "standardized_rmse"}),
    ],
)
def test_holdout(capsys, folder, words, losses):
    words = ("impute", *words, "--rank", 2, "--holdout", "0.1", "--max-iter", 30, "-q")
    found = done(capsys, *words, "--json").json["holdout"]
    for name in ("model", "column_means", "iterative_imputer"):
        assert set(found[name]) == losses
        assert all(np.isfinite(list(found[name].values())))
    by_column = found["by_column"]
    counts = np.array([one["n_entries"] for one in by_column])
    assert counts.sum() == found["n_entries"]
    for name in ("model", "column_means"):
        assert all(set(one[name]) == losses for one in by_column)
        if found["n_values"] == found["n_entries"]:
            squares = np.square([one[name]["rmse"] for one in by_column])
            assert counts @ squares / counts.sum() == pytest.approx(found[name]["rmse"] ** 2)


def test_the_peer_that_is_not_run_says_why(capsys, folder, monkeypatch):
    monkeypatch.setattr("vpem.fits.observers.MOST_WORK", 1)
    words = ("impute", "birds.csv", *POISSON, "--holdout", "0.1")
    shown = done(capsys, *words).out
    assert "Error on " in shown
    assert " hidden entries" in shown
    assert "iterative imputer was not run: it regresses each of 8 columns on all others" in shown
    assert "skipped" in done(capsys, *words, "--json").json["holdout"]["iterative_imputer"]


def test_a_file_shows_what_the_command_printed_and_has_a_page(capsys, folder, monkeypatch):
    monkeypatch.setattr("vpem.pictures.page.as_source", lambda figure: "data:,")
    printed = done(
        capsys, "impute", "birds.csv", *POISSON, "--holdout", "0.1", "-o", "shown.h5"
    ).out
    shown = done(capsys, "show", "shown.h5").out
    lines = [line for line in printed.splitlines() if line.strip() and " file  " not in line]
    assert set(lines) <= set(shown.splitlines())
    settings = " ".join(shown.rpartition("Settings\n")[2].split())
    for told in ("read from birds.csv", "holdout 0.1 of the entries seen, ", "seed 0", "numpy "):
        assert told in settings
    page = done(capsys, "report", "shown.h5", "--json").json
    assert not page["not_drawn"]
    assert "picture-trends" in Path(page["report"]).read_text(encoding="utf-8")
    done(capsys, "impute", "one.h5", "--method", "mixture", "-k", "1", "-o", "mixed.h5", "-q")
    (why,) = done(capsys, "report", "mixed.h5", "--json").json["not_drawn"]
    assert "an imputation by a mixture has no picture" in why
    for words in (("plot", "shown.h5", "one.h5"), ("plot", "shown.h5", "--features", "a")):
        assert "leave it out" in run(capsys, *words).sentence


def test_the_choice_of_method_rank_and_ridge_is_told_by_every_door(capsys, folder, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(16, 2)) @ rng.normal(size=(2, 5)) + 0.3 * rng.normal(size=(16, 5))
    X = np.where(rng.random(X.shape) < 0.15, np.nan, X).round(4)
    rows = [",".join("" if np.isnan(v) else f"{v}" for v in row) for row in X]
    Path("t.csv").write_text("\n".join([",".join("abcde"), *rows]))
    monkeypatch.setattr("vpem.fits.imputation.MOST_FOLDS", 2)
    found = done(capsys, "impute", "t.csv", "--json", "-q").json["choice"]
    assert [one["column"] for one in found["by_column"]] == list("abcde")
    model = vpem.FedMissEM().fit(X)
    assert model.imputation_.choice["candidates"] == found["candidates"]
    np.testing.assert_array_equal(model.transform(X)[~np.isnan(X)], X[~np.isnan(X)])
    shown = done(capsys, "impute", "t.csv").out
    assert "on held-out entries, column means" in shown
    assert "Entries held out to choose" in shown
    assert "held-out" not in done(capsys, "impute", "t.csv", "--rank", 2).out
    parts = done(capsys, "impute", "t.csv", "--workers", 3, "--json").json
    assert parts["algorithm"] == "fedmissem"
    best = min(parts["choice"]["candidates"], key=lambda one: one["error"])
    assert parts["rank"] == best["rank"]
