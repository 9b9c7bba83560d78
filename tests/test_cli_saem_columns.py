"""A fit of SAEM remembers the columns of its table: predict, score, plot and report find them."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from vpem import InputError
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
        ("who.csv", "that is --id of the fit; give the name of this column: --id COLUMN",
         ("--id", "who")),
        ("gave.csv", "of the fit; give the name of this column: --covariates dose=COLUMN",
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


def test_all_columns_that_are_not_there_are_told_at_once(capsys, home):
    refused = run(capsys, "saem", home / "d.csv").sentence
    assert (
        "no columns 'id', 'time' and 'value' in its first line; got 'patient', 'hours'" in refused
    )
    assert refused.endswith("these columns: --id COLUMN --time COLUMN --value COLUMN")


@pytest.mark.parametrize(("name", "mark"), [("d.tsv", "\t"), ("d.txt", ";"), ("d.csv.gz", ",")])
def test_columns_may_have_other_marks_between_and_files_be_packed(home, tmp_path, name, mark):
    text = (home / "d.csv").read_text().replace(",", mark).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    named = {name: column for name, column in COLUMNS.items() if name != "covariates"}
    found, wanted = (read_individuals(one, **named) for one in (path, home / "d.csv"))
    assert found.names == wanted.names
    assert found.values.tolist() == wanted.values.tolist()
    path = tmp_path / "comma.csv"
    path.write_text("id;time;value\na;1,5;2\n")
    with pytest.raises(InputError, match="decimal point"):
        read_individuals(path)


def test_other_data_have_their_own_names(capsys, home, fit):
    wanted = done(capsys, "score", fit, home / "d.csv", "--json").json
    words = ("score", fit, home / "d.h5", "--json", "--covariates", "dose=dose")
    assert done(capsys, *words).json == wanted


@pytest.mark.parametrize("kept", [{"id": 7}, {"covariates": [1]}, {"words": {"x": [1]}}], ids=str)
def test_names_that_are_no_text_are_refused(fit, tmp_path, kept):
    saved = read_saem(fit)
    saved.settings["columns"] = kept
    with pytest.raises(InputError, match=f"settings.columns.{next(iter(kept))}"):
        save_saem(tmp_path / "odd.h5", saved)


def test_a_fit_that_remembers_nothing_is_read_as_before(capsys, home, fit, tmp_path):
    saved = read_saem(fit)
    del saved.settings["columns"]
    save_saem(tmp_path / "old.h5", saved)
    wanted = done(capsys, "score", fit, home / "d.csv", "--json").json
    assert (
        done(capsys, "score", tmp_path / "old.h5", home / "d.csv", *NAMES, "--json").json == wanted
    )
    result = run(capsys, "score", tmp_path / "old.h5", home / "d.csv")
    assert result.code == 2
    assert "has no columns 'id'" in result.sentence
    assert "give the names of these columns: --id COLUMN" in result.sentence


def test_help_of_score_does_not_speak_of_no_data(capsys):
    assert "without DATA" not in done(capsys, "score", "--help-all").out
    assert "dose=4.5" in done(capsys, "predict", "--help-all").out


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """Twelve people of two sexes and three arms, as CSV and as Parquet."""
    home = tmp_path_factory.mktemp("worded")
    rng = np.random.default_rng(1)
    rows = []
    for one in range(12):
        sex, arm, own = ("Female", "Male")[one % 2], "abc"[one % 3], rng.normal()
        rows += [(f"p{one}", float(t), own + 0.5 * t + 0.3 * rng.normal(), sex, arm, one % 2,
                  int(arm == "b"), int(arm == "c")) for t in range(4)]  # fmt: skip
    names = ("id", "time", "value", "Sex", "arm", "male", "b", "c")
    lines = [",".join(map(str, row)) for row in (names, *rows)]
    (home / "t.csv").write_text("\n".join(lines) + "\n")
    parquet.write_table(
        pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))),
        home / "t.parquet",
    )
    return home


@pytest.mark.parametrize("error", ["constant", "proportional"])
def test_words_of_covariates_are_told_beside_the_first(worded, monkeypatch, capsys, error):
    monkeypatch.chdir(worded)
    fit = ("--error", error, *FAST)
    said = done(
        capsys, "saem", "t.csv", "--effects", "intercept:Sex,time:arm", "-o", f"{error}.h5", *fit
    ).err
    assert "Sex: effects are relative to Female" in said
    assert "arm: effects are relative to a" in said
    done(
        capsys,
        "saem",
        "t.parquet",
        "--effects",
        "intercept:male,slope:b,slope:c",
        "-o",
        f"{error}-0.h5",
        *fit,
    )
    words, numbers = read_saem(worded / f"{error}.h5"), read_saem(worded / f"{error}-0.h5")
    assert words.parameters[2:5] == (
        "beta(intercept, Sex=Male)",
        "beta(slope, arm=b)",
        "beta(slope, arm=c)",
    )
    assert words.theta == pytest.approx(numbers.theta, rel=1e-9)
    ask = ("--population", "--times", "0:2:1", "--covariates")
    told = done(capsys, "predict", f"{error}.h5", *ask, "Sex=Male,arm=b").out
    same = done(capsys, "predict", f"{error}-0.h5", *ask, "male=1,b=1,c=0").out
    assert told == same
    found = run(capsys, "predict", f"{error}.h5", *ask, "Sex=male,arm=b")
    assert found.code == 2


@pytest.mark.parametrize("error", ["constant", "proportional"])
def test_what_varies_is_called_by_column_or_coefficient(worded, monkeypatch, capsys, error):
    monkeypatch.chdir(worded)
    fits = []
    for name in ("slope", "time"):
        file = f"{error}-{name}.h5"
        done(
            capsys,
            "saem",
            "t.csv",
            "--error",
            error,
            "--random",
            f"intercept,{name}",
            "-o",
            file,
            *FAST,
        )
        fits.append(read_saem(worded / file))
    assert fits[0].parameters == fits[1].parameters
    assert (fits[0].theta == fits[1].theta).all()


def test_words_among_numbers_and_a_single_word_are_refused(worded, monkeypatch, capsys):
    monkeypatch.chdir(worded)
    text = (worded / "t.csv").read_text()
    (worded / "mixed.csv").write_text(text.replace("Male", "7", 1))
    (worded / "one.csv").write_text(text.replace("Female", "Male"))
    for file, said in (("mixed", "'Female' for 'Sex', no finite number"), ("one", "one word only")):
        found = run(capsys, "saem", f"{file}.csv", "--effects", "intercept:Sex")
        assert found.code == 2
        assert said in found.err
