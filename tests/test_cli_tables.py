"""Commands on tables as people have them; the best of several fits."""

import io
import sys
from types import SimpleNamespace

import pytest

import vpem_cli
from vpem import read_dataset, read_model

from .cli_support import done, make_data, overlapping, run
from .tables import each

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


def test_a_table_described(capsys, table):
    found = done(capsys, "data", "describe", table.name, *HOW, "--json").json
    told = {one["name"]: (one["kind"], one["use"], one["least"]) for one in found["columns"]}
    assert told["Kennung"] == ("text", "ids", "p00")
    assert told["Art"] == ("text", "labels", "kind 0")
    assert told["Besuch"] == ("dates", "left out (dates)", "2024-01-01")
    assert told["Ort"] == ("whole numbers", "left out (constant)", "3")
    kind, use, least = told["Alter"]
    X = read_dataset(table, decimal=",").X
    assert (kind, use, least) == ("numbers", "feature", f"{X[:, 2].min():.6g}")
    out = done(capsys, "data", "describe", table.name, *HOW).out
    assert {"Kennung", "2024-01-28", "(constant)"} <= set(out.split())


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
