"""Commands on tables as people have them, and tables as commands show them."""

import io
import sys
from types import SimpleNamespace

import pytest

from vpem import read_dataset, read_model
from vpem.records import Table
from vpem_cli.display import show

from .cli_support import done, overlapping, run
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


@each(
    "command", ["fit --agents 1", "select --jobs 1", "kmeans", "fedem", "kmeans --split features"]
)
def test_fits_of_a_table_are_those_of_its_dataset(capsys, table, command):
    if not (table.parent / "d.h5").exists():
        done(capsys, "data", "import", table.name, *HOW, "-o", "d.h5")
        assert read_dataset("d.h5").labels[0].startswith("kind")
    name, *more = command.split()
    how = ("-k", "1-2") if name == "select" else ("-k", "2")
    words = (*more, *how, "--max-iter", "5", "--json")
    own = done(capsys, name, table.name, *HOW, *words).json
    same = done(capsys, name, "d.h5", *words).json
    told = {"log_likelihood", "bic", "inertia", "cluster_sizes", "criterion", "components"} & set(
        own
    )
    assert told
    for cell in (*own.get("cells", ()), *same.get("cells", ())):
        cell.pop("seconds", None)
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


def test_an_imputed_table(capsys, table):
    text = table.read_text().replace(table.read_text().split(";")[8], "?")
    table.write_text(text)
    found = done(capsys, "impute", table.name, "--decimal", ",", "--na", "?", "-r", "1", "--json")
    assert found.json["n_samples"] == 60
    assert found.json["share_seen"] < 1


@each(
    ("words", "sentence"),
    [
        ("fit klinik.csv", "pass --decimal ,"),
        ("fit klinik.csv --decimal , --id-column who", "there is no id column 'who'"),
        ("fit klinik.csv --decimal , --features Art", "column 'Art' holds text"),
        ("fit klinik.csv --decimal , --memory-limit 2kB", "'vpem data import' makes an HDF5 file"),
        ("fit klinik.csv - --parties", "standard input (-) is one file"),
        ("kmeans klinik.csv --split features --worker-column Ort --decimal ,", "--split rows"),
        ("evaluate m.h5 klinik.csv --labels Art", "are a column: --label-column Art"),
        ("evaluate m.h5 klinik.csv --label-column Typ", "there is no label column 'Typ'"),
    ],
)
def test_what_is_refused(capsys, table, words, sentence):
    if not (table.parent / "m.h5").exists():
        done(capsys, "fit", table.name, "--decimal", ",", *QUICK, "-q", "-o", "m.h5")
    result = run(capsys, *words.split())
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err.splitlines()[-1]
    assert len(result.err.splitlines()) == 1


def test_a_table_without_rows_has_its_heads(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    show(Table([], ("a" * 40, "b" * 40)))
    assert "aaaa" in capsys.readouterr().out
