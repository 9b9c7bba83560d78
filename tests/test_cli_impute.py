"""`vpem impute`: files in and out, options, holdout, pictures, one sentence for what is wrong."""

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
from vpem.fits.imputation import fit_imputation
from vpem.terms.lowrank.entries import from_matrices

from .cli_support import done, listing, run
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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: birds.csv, birds.h5 of the same, a matrix with NaN, zeros and ones."""
    monkeypatch.chdir(tmp_path)
    seen = counts()
    rows, columns = [f"site {i:02d}" for i in range(12)], [f"2020-{j + 1:02d}" for j in range(8)]
    with open("birds.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["observer", "row", "column", "value"])
        for name, X in seen.items():
            for i, j in np.argwhere(~np.isnan(X)).tolist():
                writer.writerow([name, rows[i], columns[j], int(X[i, j])])
    given = from_matrices(seen, row_names=rows, column_names=columns)
    write_observations("birds.h5", given)
    one = seen["ann"] + np.random.default_rng(1).normal(size=(12, 8))
    write_dataset("one.h5", Dataset(one, tuple(columns), ids=np.array(rows)))
    write_dataset("bits.h5", Dataset(np.where(np.isnan(one), one, one > 3), tuple(columns)))
    return tmp_path


POISSON = ("--law", "poisson", "--rank", "2")


def test_what_the_json_says(capsys, folder):
    found = done(capsys, "impute", "birds.csv", *POISSON, "--json").json
    given = read_observations("birds.csv")
    fit = fit_imputation(given, rank=2, law="poisson")
    assert found["algorithm"] == "fedmissem"
    assert (found["n_samples"], found["n_features"], found["n_workers"]) == (12, 8, 3)
    assert found["worker_names"] == ["ann", "bob", "eve"]
    assert found["log_likelihood"] == pytest.approx(fit.log_likelihood)
    np.testing.assert_allclose(found["column_trend"], fit.column_trend)
    np.testing.assert_allclose(found["row_trend"], fit.row_trend)
    for name in ("history", "mean_field", "epochs", "bytes_up"):
        assert len(found[name]) == found["n_iter"] + 1
    assert found["objective"] == found["history"][-1]
    assert found["converged"]
    assert found["communication"]["bytes"] > 0
    assert (found["holdout"], found["model"], found["seed"]) == (None, None, 0)
    assert found["n_copies"] == 3


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


def test_the_same_seed_gives_the_same_file(capsys, folder):
    words = ("impute", "one.h5", "--rank", "2", "--workers", "4", "-p", "0.5")
    words += ("--compress", "qsgd:8bits")
    files = []
    for name, seed in (("a.h5", 3), ("b.h5", 3), ("c.h5", 4)):
        done(capsys, *words, "--seed", seed, "-o", name, "-q")
        with h5py.File(name) as file:
            files.append(file["fitted"][()])
    np.testing.assert_array_equal(files[0], files[1])
    assert not np.array_equal(files[0], files[2])


@each("split", ["random", "rows"])
def test_workers_find_what_one_finds(capsys, folder, split):
    alone = done(capsys, "impute", "one.h5", "--rank", 2, "--json").json
    parts = done(
        capsys, "impute", "one.h5", "--rank", 2, "--workers", 5, "--split", split, "--json"
    ).json
    np.testing.assert_allclose(parts["column_trend"], alone["column_trend"], rtol=1e-8)
    assert alone["communication"]["bytes"] == 0
    assert parts["communication"]["bytes"] > 0
    assert parts["n_workers"] == 5


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


def test_pictures(capsys, folder):
    ending = "svg"
    words = ("impute", "birds.csv", *POISSON, "--plot", f"p.{ending}", "-q")
    done(capsys, *words)
    first = (folder / f"p.{ending}").read_bytes()
    assert len(first) > 5000
    assert run(capsys, *words).sentence.endswith("--force to replace it")
    done(capsys, *words, "--force")
    assert (folder / "p.svg").read_bytes() == first


def test_names_that_look_like_formulas(capsys, folder):
    matrix = counts(n_observers=1)["ann"]
    names = [f"$x_{j}" for j in range(8)]
    write_dataset("odd.h5", Dataset(matrix, tuple(names)))
    assert "$x_0" in done(capsys, "impute", "odd.h5", "--rank", 1, "--plot", "odd.png").out


def test_progress_calls_the_objective_by_its_name(capsys, folder, monkeypatch):
    clock = iter(range(0, 100_000, 11))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    shown = run(capsys, "impute", "birds.csv", *POISSON, "--max-iter", 3).err
    assert "iteration 2/3  penalized log-likelihood an entry -" in shown
    assert "per sample" not in shown


def test_an_interrupt_leaves_nothing(capsys, folder, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("vpem.fits.imputation.run_fedem", stop)
    before = listing(folder)
    result = run(capsys, "impute", "birds.csv", "--rank", 1, "-o", "out.h5", "--plot", "p.svg")
    assert (result.code, result.out) == (130, "")
    assert listing(folder) == before


def test_blank_lines_line_ends_and_marks_change_nothing(capsys, folder):
    text = (folder / "birds.csv").read_text()
    words = (*POISSON, "--max-iter", 5, "--json", "-q")
    plain = done(capsys, "impute", "birds.csv", *words).json
    for name, other in (
        ("crlf.csv", text.replace("\n", "\r\n")),
        ("blank.csv", text.replace("\n", "\n   \n\n")),
        ("mark.csv", "\ufeff" + text),
    ):
        (folder / name).write_bytes(other.encode())
        found = done(capsys, "impute", name, *words).json
        assert found["history"] == plain["history"]


def test_not_converged(capsys, folder):
    result = run(capsys, "impute", "birds.csv", *POISSON, "--max-iter", 2, "--strict", "--json")
    assert result.code == 3
    assert not result.json["converged"]
    assert "not converged after 2 iterations" in result.json["warnings"][0]


def test_noise_that_outgrows_the_steps(capsys, folder):
    words = ("one.h5", "--workers", 8, "-p", 0.2, "--step-size", "constant:1", "--max-iter", 5000)
    result = run(capsys, "impute", *words, "--ridge", 0, "--tol", 0)
    assert result.code == 2
    assert "a smaller step size" in result.err


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


SENTENCES = [
    ("none.csv", "'none.csv' does not exist"),
    ("one.h5 --law poisson", "values must be counts"),
    ("birds.csv --law bernoulli", "values must be 0 or 1"),
    ("birds.csv --rank 9", "12 x 8 has at most rank 8"),
    ("birds.csv --law poisson --ridge 0", "needs a ridge above 0"),
    ("birds.csv --law poisson --variance 2", "only the gaussian law has a variance"),
    ("birds.csv --law poisson --scale standard", "take scale none"),
    ("birds.csv --compress zip", "codec"),
    ("birds.csv --compress qsgd:0bits", "bits"),
    ("birds.csv --step-size constant:2", "above 0 and at most 1"),
    ("birds.csv --holdout 1", "holdout must be above 0 and below 1"),
    ("birds.csv --workers 3", "has 3 observers of its own"),
    ("one.h5 --workers 1000", "1000 workers cannot share"),
    ("one.h5 --workers 13 --split rows", "cannot share 12 rows"),
    ("one.h5 --split rows", "--split says how --workers deals entries out"),
    ("gaps.h5", "any entry of row 'row 3' and of column 'b', so"),
    ("birds.csv --dataset X", "is a CSV table"),
    ("one.h5 --dataset Z", "has no Z"),
    ("birds.csv -o birds.csv --force", "is the input"),
    ("birds.csv -o one.h5", "exists"),
    ("birds.csv --plot p.txt", "pictures are written to"),
    ("birds.csv -o a.svg --plot a.svg", "are one file; give two names"),
    ("birds.csv --init-rows 1,2", "no such option: --init-rows"),
    ("hidden.csv", "has the value ''"),
    ("gap.h5", "no observer saw any entry of row 'row 3'"),
    ("infinite.h5", "is inf; leave out what was not seen"),
    ("birds.csv birds.h5", "add --parties if each is one party's"),
    (
        "birds.csv --parties",
        "has a column 'observer', but a party is one; leave --parties",
    ),
    ("one.h5 bits.h5 --parties", "the rows of party 'bits' have no ids"),
    ("bits.h5 gap.h5 --parties", "party 'bits' has 12 rows and party 'gap' 6, without ids"),
    ("gap.h5 --parties", "no observer saw any entry of row 'row 3', so"),
    ("one.h5 empty.csv --parties", "party 'empty': empty.csv has a header but no entries"),
    ("one.h5 twice.csv --parties", "observer 'twice' has row 'a', column 'b' twice (1 and 2)"),
    ("one.h5 --parties --workers 2", "--workers is for one file; with --parties leave it out"),
    ("one.h5 --parties --sample-weight w", "party 'one' has no sample weights called 'w'"),
    ("birds.csv --sample-weight w", "has no column 'w'"),
    ("wide.csv --features a,c", "there is no column 'c'"),
    ("heavy.csv --sample-weight W", "what a saw at row 'b', column 'c' weighs -1"),
    ("light.csv --sample-weight w", "no observer saw a single entry"),
    ("one.h5 --rank some", "rank must be an integer of at least 1, or auto"),
    ("one.h5 --ridge=-1", "ridge must be"),
    ("one.h5 --method mixture --workers 3 --split random", "whole columns or whole rows"),
    ("one.h5 --method mixture --agents 9", "9 agents cannot share 8 features"),
    ("one.h5 --method mixture -k 2-3 --checkpoint c.h5", "but a checkpoint holds one"),
    ("one.h5 --method mixture --draws 2000", "--draws must be"),
    ("one.h5 --parties --agents 2", "--agents is for one file"),
]
"""What no rule (tests/test_rules.py) and no range (tests/test_cli_options.py) says."""


@pytest.fixture
def gaps(folder):
    """Matrices that cannot be completed."""
    (folder / "hidden.csv").write_text("observer,row,column,value\na,b,c,\n")
    (folder / "heavy.csv").write_text("observer,row,column,value,w\na,b,c,1,-1\n")
    (folder / "light.csv").write_text("observer,row,column,value,w\na,b,c,1,0\n")
    (folder / "wide.csv").write_text("a,b\n1,\n,2\n")
    (folder / "empty.csv").write_text("row,column,value\n")
    (folder / "twice.csv").write_text("row,column,value\na,b,1\na,b,2\n")
    gap = np.ones((6, 3))
    gap[3] = np.nan
    write_dataset("gap.h5", Dataset(gap, ("a", "b", "c")))
    gap[:, 1] = np.nan
    write_dataset("gaps.h5", Dataset(gap, ("a", "b", "c")))
    write_dataset("infinite.h5", Dataset(np.array([[1.0, np.inf]]), ("a", "b")))


@each(("words", "sentence"), SENTENCES)
def test_one_sentence_for_what_is_wrong(capsys, folder, gaps, words, sentence):
    before = listing(folder)
    result = run(capsys, "impute", *words.split())
    assert result.code == 2
    assert result.out == ""
    assert sentence in result.sentence
    assert listing(folder) == before


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
    shown = done(capsys, "impute", "t.csv", "--plot", "p.svg").out
    assert "on held-out entries, column means" in shown
    assert "Entries held out to choose" in shown
    assert done(capsys, "impute", "t.csv", "--rank", 2, "-q", "-o", "x.h5").out == ""
    assert "held-out" not in done(capsys, "impute", "t.csv", "--rank", 2).out
    parts = done(capsys, "impute", "t.csv", "--workers", 3, "--json").json
    assert parts["algorithm"] == "fedmissem"
    best = min(parts["choice"]["candidates"], key=lambda one: one["error"])
    assert parts["rank"] == best["rank"]
