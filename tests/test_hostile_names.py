"""Names that want to fool a terminal, a spreadsheet, a browser or matplotlib are only names."""

import contextlib
import csv
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import vpem_cli
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.observations import write_observations
from vpem.files.results import write_columns
from vpem.network.partition import evenly, from_lists
from vpem.pictures.figure import words
from vpem.saem.formats.individuals import write_individuals
from vpem.saem.individuals import from_long
from vpem.terms.lowrank.entries import from_triplets

from .cli_support import done
from .tables import each

NAMES = (
    "\x1b]0;pwned\x07",
    "two\r\nlines \x9b2J",
    "\u202etxt.exe\ud7ff\ufffe",
    "<script>alert(1)</script>",
    r"$\badcommand{x}$ & $",
    "_nolegend_",
)
FORMULAS = ("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1")
CONTROL = re.compile(r"[^\n\t\x20-\x7e\xa0-\u200d\u2010-\u2029\u2030-\u2065\u2070-\U0010ffff]")
N_ROWS = 30

MAKE = (
    "fit d.h5 --topology cycle --hops 1 --max-iter 3 -q -o m.h5",
    "fit d.h5 --split rows --max-iter 3 -q -o rows.h5",
    "kmeans d.h5 -k 2 -q -o c.h5",
    "saem i.h5 --burn-in 3 --iterations 6 -q -o s.h5",
    "impute e.h5 -r 1 --max-iter 5 -q -o filled.h5",
)
COMMANDS = (
    "data describe d.h5",
    "data describe d.h5 --json",
    "topology describe d.h5 --plot out.svg",
    "fit d.h5 --max-iter 3",
    "kmeans d.h5 -k 2",
    "fedem d.h5 --max-iter 3 --plot out.svg",
    "impute e.h5 -r 1 --max-iter 5 -o out.h5 --plot out.svg",
    "saem i.h5 --burn-in 3 --iterations 6 --individuals out.csv --traces out.svg",
    "select d.h5 -k 1-2 --jobs 1 --max-iter 3 --plot out.svg",
    "predict m.h5 d.h5",
    "predict m.h5 d.h5 --proba -o out.csv",
    "predict c.h5 d.h5",
    "predict s.h5",
    "predict s.h5 --latents",
    "predict s.h5 i.h5 --json",
    "sample m.h5 -n 3",
    "score m.h5 d.h5",
    "score s.h5 i.h5",
    "evaluate m.h5 d.h5",
    "model show m.h5",
    "model show c.h5",
    "model show s.h5",
    "model show filled.h5",
    "plot rows.h5 --kind communication -o out.svg",
    "plot m.h5 d.h5 --kind pairs -o out.svg",
    "report m.h5 d.h5 -o out.html",
    "report s.h5 i.h5 -o out.html",
    "report filled.h5 -o out.html",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Folder of files whose every name is hostile, and of fits to them."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    labels = np.arange(N_ROWS) % 2
    rows = [f"{NAMES[row % 6]}{row}" for row in range(N_ROWS)]
    whole = Dataset(
        3 * labels[:, None] + rng.standard_normal((N_ROWS, 6)),
        NAMES,
        ids=np.array(rows),
        labels=np.array(NAMES[3:5])[labels],
        partition=from_lists([[0, 1], [2, 3], [4, 5]], 6, NAMES[:3]),
        workers=evenly(N_ROWS, 3, NAMES[1:4]),
    )
    write_dataset(folder / "d.h5", whole)
    times = np.tile(np.arange(4.0), 6)
    values = times * np.repeat(rng.normal(2, 0.5, 6), 4) + rng.normal(0, 0.1, 24)
    grown = from_long(np.repeat(np.array(NAMES, dtype=object), 4), times, values, {}, "")
    write_individuals(folder / "i.h5", grown)
    seen = np.argwhere(rng.random((N_ROWS, 6)) < 0.8)
    write_observations(
        folder / "e.h5",
        from_triplets(
            np.arange(len(seen)) % 3, *seen.T, rng.normal(size=len(seen)), names=NAMES[:3],
            row_names=rows, column_names=NAMES,
        ),
    )  # fmt: skip
    with contextlib.chdir(folder):
        assert [vpem_cli.run(command.split()) for command in MAKE] == [0] * len(MAKE)
    return folder


@pytest.fixture
def here(home, monkeypatch):
    monkeypatch.chdir(home)
    return home


def checked(text):
    """No character that moves a cursor, turns text round or belongs to no text."""
    found = CONTROL.search(text)
    assert found is None, (found, text[max(0, found.start() - 60) : found.end() + 60])
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_no_output_has_control_characters(capsys, here, monkeypatch, command):
    monkeypatch.setattr("vpem.pictures.page.as_source", lambda figure: "data:,")
    made = [here / word for word in command.split() if word.startswith("out.")]
    result = done(capsys, *command.split(), *(["--force"] if made else []))
    checked(result.out)
    checked(result.err)
    for path in made:
        if path.suffix == ".svg":
            texts = list(ET.parse(path).getroot().itertext())
            checked("".join(texts))
        elif path.suffix == ".html":
            page = checked(path.read_text(encoding="utf-8"))
            assert "<script" not in page
            assert ("pwned" in page) == ("d.h5" in command)
        elif path.suffix == ".csv":
            with open(path, newline="", encoding="utf-8") as stream:
                checked(stream.read())


def test_names_that_differ_are_different_cells(tmp_path):
    names = np.array(["\x1b", "\x9b", "\\x1b!", "\r", "\u202e", "é\u3000\u200d"])
    write_columns(tmp_path / "t.csv", {"\x07": names}, "x")
    text = (tmp_path / "t.csv").read_text(encoding="utf-8")
    assert text.splitlines() == [
        r"\x07", r"\x1b", r"\x9b", r"\x1b!", r"\r", r"\u202e", "é\u3000\u200d",
    ]  # fmt: skip


@each("quoted", [False, True])
def test_formulas_are_quoted_on_request(tmp_path, quoted):
    columns = {"=x": np.array(FORMULAS), "value": np.array([-1.0, 1.0, 2.0, -3.0, 0.0])}
    write_columns(tmp_path / "t.csv", columns, "x", True, quote_formulas=quoted)
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    mark = "'" if quoted else ""
    assert head == [f"{mark}=x", "value"]
    assert [row[0] for row in rows] == [f"{mark}{cell}" for cell in FORMULAS]
    assert [float(row[1]) for row in rows] == columns["value"].tolist()


@each("command", ["predict m.h5 d.h5", "predict s.h5 --latents", "sample m.h5"])
def test_every_writer_of_csv_quotes_formulas(capsys, here, monkeypatch, command):
    given = []
    monkeypatch.setattr("vpem.files.results.write_columns", lambda *words: given.append(words[4]))
    done(capsys, *command.split())
    done(capsys, *command.split(), "--quote-formulas")
    assert given == [False, True]


@each("name", NAMES)
def test_a_drawn_name_is_no_formula_and_stays_in_legends(name):
    from matplotlib.cbook import is_math_text

    shown = words(name)
    assert not shown.startswith("_")
    assert not is_math_text(shown)
