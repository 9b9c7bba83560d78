"""What commands print: tables without blanks at the ends of lines, nothing when they are quiet."""

import json
import re

import pytest

from vpem.pictures.contents import NETWORK, lines_of
from vpem.records import Table
from vpem_cli.display import show

from .cli_support import done, make_data, run
from .tables import over

CURVES = [f"s{i},{t},{i + t + 0.1 * ((7 * i + t) % 5)}" for i in range(5) for t in range(4)]
CELLS = [f"{o},{i},{j},{(i * j + o) % 5}" for o in range(2) for i in range(6) for j in range(4)]

FITS = {
    "fit": "fit d.h5 --tol 1",
    "fit rows": "fit d.h5 --split rows --workers 3 --tol 1",
    "kmeans": "kmeans d.h5 --workers 3",
    "fedem": "fedem d.h5 --workers 3 --tol 1",
    "impute": "impute m.csv --rank 1 --tol 1",
    "saem": "saem c.csv --iterations 6 --burn-in 3 --tol 0 --conditional-draws 4",
    "select": "select d.h5 -k 1,2 --tol 1 --jobs 1",
    "topology": "topology describe cycle --agents 4",
}
"""Commands that print tables unless they are quiet."""

OTHERS = (
    "data describe d.h5", "model show k.h5", "score k.h5 d.h5", "evaluate k.h5 d.h5", "doctor",
)  # fmt: skip
"""Commands that are there to print tables."""


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """The working directory, with data for all of them."""
    monkeypatch.chdir(tmp_path)
    make_data("d.h5", n_samples=40)
    (tmp_path / "m.csv").write_text("\n".join(["observer,row,column,value", *CELLS]) + "\n")
    (tmp_path / "c.csv").write_text("\n".join(["id,time,value", *CURVES]) + "\n")
    done(capsys, "kmeans", "d.h5", "--workers", 3, "-q", "-o", "k.h5")
    return tmp_path


@pytest.mark.parametrize("name", FITS)
def test_quiet_commands_print_what_was_asked_for_and_nothing_else(capsys, folder, name):
    words = FITS[name].split()
    assert done(capsys, *words).out.count("\n") > 5
    assert done(capsys, *words, "-q").out == ""
    told = done(capsys, *words, "--json")
    quiet = done(capsys, *words, "--json", "--quiet")
    assert json.loads(quiet.out).keys() == json.loads(told.out).keys()
    assert json.loads(quiet.out).get("warnings", []) == json.loads(told.out).get("warnings", [])
    assert quiet.err == ""


def test_rows_on_stdout_are_data(capsys, folder):
    rows = done(capsys, "predict", "k.h5", "d.h5").out
    assert rows.count("\n") == 41
    assert done(capsys, "predict", "k.h5", "d.h5", "-q").out == rows
    assert done(capsys, "score", "k.h5", "d.h5", "-q").out.split()[:2] == ["rows", "40"]


@over(words=[*FITS.values(), *OTHERS], colour=[False, True])
def test_no_line_ends_with_blanks(capsys, folder, monkeypatch, words, colour):
    told = {"FORCE_COLOR": "1", "TERM": "xterm-256color"} if colour else {}
    with monkeypatch.context() as patch:
        for name, value in {"COLUMNS": "60", **told}.items():
            patch.setenv(name, value)
        out = run(capsys, *words.split()).out
    assert colour or "\x1b[" not in out
    for line in out.splitlines():
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
        assert plain == plain.rstrip(" ")


def test_very_long_names_take_no_longer(capsys):
    show(Table([(" " * 100_000, "x"), ("y" + " " * 100_000, "")]))
    assert not any(line.endswith(" ") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("counts", "told"),
    [([30, 30], "30 rows each"), ([28, 30], "28 to 30 rows each"), ([1], "1 row each"),
     ([0, 1], "0 to 1 rows each")],
)  # fmt: skip
def test_rows_of_workers(counts, told):
    report = {"split": "rows", "worker_names": counts, "worker_rows": counts, "topology": "star"}
    assert dict(lines_of(report, NETWORK))["network"].endswith(f", star, {told}")


@pytest.mark.parametrize("command", ["fit", "kmeans", "fedem"])
def test_help_names_the_command_itself(capsys, command):
    text = " ".join(done(capsys, command, "--help-all").out.split())
    assert f"mpiexec -n 5 vpem {command} ... --engine mpi" in text


# ---- tables in narrow terminals -----------------------------------------------------------------

HUBS = [("0", "concave points", "concavity, concave points, symmetry", "9,000,000"),
        ("1", "q" * 50, "z" * 50, "6")]  # fmt: skip
HEADS = ("hub", "root", "agents", "features")
RIGHT = ("hub", "features")


@pytest.mark.parametrize("width", [200, 80, 60, 40, 24])
def test_a_narrow_terminal_cuts_nothing(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    show(Table(HUBS, HEADS, "Hubs", RIGHT, note="and more"))
    out = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    assert "…" not in out
    assert "9,000,000" in out
    together = "".join(out.split())
    assert together.count("q") == together.count("z") == 50
    # Every row has lines of its own where there is no room for columns.
    assert out.count("features") == (2 if width <= 40 else 1)


def test_a_narrow_terminal_goes_without_what_can_be_spared(capsys, monkeypatch):
    cells = [("1", "12345.67", "converged")] * 2
    made = Table(cells, ("K", "BIC", "status"), right=("K", "BIC"), spare=("status", "BIC"))
    monkeypatch.setenv("COLUMNS", "22")
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        show(made)
        out = capsys.readouterr().out
        assert ("status" not in out) is terminal
        assert out.count("12345.67") == 2


def test_lists_are_broken_between_their_items(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    show(Table([("in", "worst area +1.0 sd, mean texture -0.7 sd, age +0.1 sd")]))
    lines = capsys.readouterr().out.split("\n")
    assert [line.split("   ")[-1] for line in lines if line] == [
        "worst area +1.0 sd,", "mean texture -0.7 sd, age +0.1 sd"
    ]  # fmt: skip


def test_long_words_are_broken_behind_marks(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "32")
    show(Table([("file", "/home/someone/projects/data/breast_cancer.h5")]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert lines == [["file", "/home/someone/projects/"], ["data/breast_cancer.h5"]]


def test_messages_are_broken_between_words_in_terminals_and_nowhere_else(capsys, monkeypatch):
    from vpem_cli.display import tell

    sentence = "'/a/very/long/path/of/data.h5' does not exist; look there"
    monkeypatch.setattr("vpem_cli.display._columns", lambda: 20)
    for terminal in (True, False):
        monkeypatch.setattr("vpem_cli.display.is_terminal", lambda terminal=terminal: terminal)
        tell(sentence)
        lines = capsys.readouterr().err.splitlines()
        assert " ".join(lines) == sentence
        assert len(lines) == (3 if terminal else 1)
