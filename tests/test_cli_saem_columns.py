"""A fit of SAEM remembers the columns of its table: predict, score, plot and report find them."""

import pytest

from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals, write_individuals

from .cli_support import ROOT, done, run

FAST = (
    "--iterations", "10", "--tol", "0", "--conditional-draws", "4", "--importance-draws", "20",
    "--chains", "1",
)  # fmt: skip
NAMES = ("--id", "patient", "--time", "hours", "--value", "conc", "--covariates", "dose=amt")
COLUMNS = {"id": "patient", "time": "hours", "value": "conc", "covariates": {"dose": "amt"}}


def renamed(path, **names):
    """The doses of three people in a table whose columns are called otherwise."""
    head, *rows = (ROOT / "data" / "theophylline.csv").read_text().splitlines()[:34]
    head = ",".join(names.get(word, word) for word in head.split(","))
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Data whose columns have names of their own."""
    home = tmp_path_factory.mktemp("columns")
    renamed(home / "d.csv", id="patient", time="hours", value="conc", dose="amt")
    renamed(home / "who.csv", id="who", time="hours", value="conc", dose="amt")
    renamed(home / "gave.csv", id="patient", time="hours", value="conc", dose="gave")
    write_individuals(home / "d.h5", read_individuals(renamed(home / "same.csv")))
    return home


@pytest.fixture
def fit(capsys, home):
    """A fit to them."""
    path = home / "fit.h5"
    if not path.exists():
        words = ("saem", home / "d.csv", "--model", "one-compartment", *NAMES, *FAST)
        done(capsys, *words, "-o", path, "--quiet")
    return path


COMMANDS = {
    "predict": lambda home: ("--json",),
    "score": lambda home: ("--json",),
    "plot": lambda home: ("--kind", "curves", "-o", home / "c.svg", "--force", "--json"),
    "report": lambda home: ("-o", home / "r.html", "--force", "--json"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_of_the_fit_needs_no_names(capsys, home, fit, command):
    assert read_saem(fit).settings["columns"] == COLUMNS
    words = COMMANDS[command](home)
    found = done(capsys, command, fit, home / "d.csv", *words).json
    assert found == done(capsys, command, fit, home / "d.csv", *NAMES, *words).json


@pytest.mark.parametrize("command", ["predict", "plot"])
@pytest.mark.parametrize(
    ("data", "told", "more"),
    [
        ("who.csv", "that is --id of the fit; give --id with the name", ("--id", "who")),
        ("gave.csv", "that is 'dose' of the fit; give --covariates dose=COLUMN",
         ("--covariates", "dose=gave")),
    ],
    ids=["id", "dose"],
)  # fmt: skip
def test_a_column_that_is_not_there_is_told_with_its_option(
    capsys, home, fit, command, data, told, more
):
    words = COMMANDS[command](home)
    result = run(capsys, command, fit, home / data, *words)
    assert result.code == 2
    column = "patient" if data == "who.csv" else "amt"
    assert f"{data} has no column {column!r}" in result.sentence
    assert told in result.sentence
    done(capsys, command, fit, home / data, *words, *more)


def test_other_data_have_their_own_names(capsys, home, fit):
    wanted = done(capsys, "score", fit, home / "d.csv", "--json").json
    words = ("score", fit, home / "d.h5", "--json", "--covariates", "dose=dose")
    assert done(capsys, *words).json == wanted


@pytest.mark.parametrize("kept", [None, {"id": 7, "covariates": [1]}], ids=str)
def test_a_fit_that_remembers_nothing_is_read_as_before(capsys, home, fit, tmp_path, kept):
    saved = read_saem(fit)
    if kept is None:
        del saved.settings["columns"]
    else:
        saved.settings["columns"] = kept
    save_saem(tmp_path / "old.h5", saved)
    wanted = done(capsys, "score", fit, home / "d.csv", "--json").json
    assert (
        done(capsys, "score", tmp_path / "old.h5", home / "d.csv", *NAMES, "--json").json == wanted
    )
    result = run(capsys, "score", tmp_path / "old.h5", home / "d.csv")
    assert result.code == 2
    assert "has no column 'id'" in result.sentence
    assert "give --id with the name that it has here" in result.sentence


def test_help_of_score_does_not_speak_of_no_data(capsys):
    assert "without DATA" not in done(capsys, "score", "--help").out
    assert "dose=4.5" in done(capsys, "predict", "--help").out
