"""What commands print: tables, progress, and nothing where none is wanted."""

import os
import re
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from vpem import connect, connect_workers, fit_saem, fit_vpem, make_graph, read_individuals
from vpem.network.partition import contiguous
from vpem.pictures.contents import NETWORK, lines_of
from vpem.records import Table
from vpem.steps.runs import Progress
from vpem.sums.connect import along_a_tree
from vpem.sums.forecast import one_sum
from vpem_cli import display as showing
from vpem_cli.commands.saem import SaemCounter
from vpem_cli.commands.select import SearchProgress
from vpem_cli.display import ProgressLine, Screen, fail, show

from .cli_support import ROOT, done, make_data, run
from .tables import each

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


def check_lines(out, colour=False):
    """No line ends with blanks, and none has colours but where they are asked for."""
    assert colour or "\x1b[" not in out
    for line in out.splitlines():
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
        assert plain == plain.rstrip(" ")


@pytest.mark.parametrize("name", FITS)
def test_quiet_commands_print_what_was_asked_for_and_nothing_else(
    capsys, folder, monkeypatch, name
):
    monkeypatch.setenv("COLUMNS", "60")
    words = FITS[name].split()
    out = done(capsys, *words).out
    assert out.count("\n") > 5
    check_lines(out)
    assert done(capsys, *words, "-q").out == ""
    told, quiet = (done(capsys, *words, "--json", *more) for more in ((), ("--quiet",)))
    assert quiet.json.keys() == told.json.keys()
    assert quiet.json.get("warnings", []) == told.json.get("warnings", [])
    assert quiet.err == ""


@each("words", [FITS["fit"], *OTHERS])
def test_no_line_ends_with_blanks(capsys, folder, monkeypatch, words):
    for told in ({}, {"FORCE_COLOR": "1", "TERM": "xterm-256color"}):
        with monkeypatch.context() as patch:
            for name, value in {"COLUMNS": "60", **told}.items():
                patch.setenv(name, value)
            check_lines(run(capsys, *words.split()).out, bool(told))


@each(
    ("counts", "told"),
    [([30, 30], "30 rows each"), ([28, 30], "28 to 30 rows each"), ([1], "1 row each")],
)
def test_rows_of_workers(counts, told):
    report = {"split": "rows", "worker_names": counts, "worker_rows": counts, "topology": "star"}
    assert dict(lines_of(report, NETWORK))["network"].endswith(f", star, {told}")


@each("command", ["fit", "kmeans", "fedem"])
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


def test_lists_are_broken_between_items_and_long_words_behind_marks(capsys, monkeypatch):
    for width, cells, wanted in (
        (40, ("in", "worst area +1.0 sd, mean texture -0.7 sd, age +0.1 sd"),
         ["worst area +1.0 sd,", "mean texture -0.7 sd, age +0.1 sd"]),
        (32, ("file", "/home/someone/projects/data/breast_cancer.h5"),
         ["/home/someone/projects/", "data/breast_cancer.h5"]),
    ):  # fmt: skip
        monkeypatch.setenv("COLUMNS", str(width))
        show(Table([cells]))
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("   ")[-1].strip() for line in lines if line] == wanted


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


# ---- progress ------------------------------------------------------------------------------------

CLEAR = "\r\x1b[J"


class Shown:
    """A clock that a test sets, what was shown since it last asked, and where: a terminal."""

    def __init__(self, capsys, monkeypatch):
        self.capsys, self.patch, self.time, self.columns = capsys, monkeypatch, 100.0, 80
        monkeypatch.setattr(showing.time, "monotonic", lambda: self.time)

    def terminal(self, columns=80):
        """Let stderr be a terminal of so many columns, on which no thread writes meanwhile."""
        self.columns = columns
        self.patch.setenv("TERM", "xterm")
        self.patch.setattr(showing, "is_terminal", lambda: True)
        self.patch.setattr(showing, "TICK", 3600.0)
        self.patch.setattr(showing, "_columns", lambda: self.columns)
        return self

    @property
    def err(self):
        return self.capsys.readouterr().err

    @property
    def last(self):
        return self.err.split(CLEAR)[-1]

    def iterate(self, made, seconds, step=0.25):
        """Iterate for some seconds."""
        for number in range(round(seconds / step)):
            self.time += step
            made(Progress(number, -1.25, 1e-3))


@pytest.fixture
def shown(capsys, monkeypatch):
    return Shown(capsys, monkeypatch)


def test_a_log_has_few_lines_with_times_and_no_carriage_returns(shown):
    """And of a day some hundred."""
    made = ProgressLine(False)
    shown.iterate(made, 9.5)
    assert shown.err == ""
    shown.iterate(made, 60)
    made.reading("data.h5", 0.5)
    text = shown.err
    assert len(text.splitlines()) == 6
    for line in text.splitlines():
        assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \(after .+\)  iteration \d+ ", line)
        assert "log-likelihood -1.250000" in line
    assert not {"\r", "\x1b"} & set(text)
    assert "(after 1 min 00 s)" in text
    made.close()
    assert shown.err == ""
    shown.iterate(ProgressLine(False), 86400, step=5.0)
    lines = shown.err.splitlines()
    assert 100 < len(lines) < 250
    assert "(after 23 h" in lines[-1]


def test_a_terminal_has_one_line_and_none_at_the_end(shown):
    shown.terminal()
    shown.iterate(ProgressLine(True), 5)
    assert shown.err == ""
    made = ProgressLine(False)
    shown.iterate(made, 5)
    text = shown.err
    assert "\n" not in text
    assert text.startswith(f"{CLEAR}iteration ")
    assert text.count(CLEAR) == text.count("iteration ")
    for told in (CLEAR, ""):
        made.close()
        assert shown.err == told
    shown.iterate(ProgressLine(False), 3, step=0.001)  # not faster than one can see
    assert 15 <= shown.err.count("iteration ") <= 21
    showing.take_away()


def test_what_comes_before_iterations_and_between_is_shown_in_a_terminal(shown):
    made = ProgressLine(False)
    shown.terminal().time += 2
    made.reading("folder/data.h5", 0.344)
    assert shown.err == f"{CLEAR}reading data.h5: 34 %  0:02"
    shown.time += 1
    made.starting("k-means++, row 3 of 6")
    made.starting("k-means++, row 4 of 6")
    assert shown.last == "start: k-means++, row 3 of 6  0:03"
    ProgressLine(True).starting("k-means++, row 5 of 6")
    shown.time += 1
    made(Progress(3, -1.25, 1e-3))
    shown.time += 1
    made.reading("folder/data.h5", 1.0)
    assert shown.last.startswith("iteration 3  reading data.h5: 100 %  log-likelihood ")
    made.close()


@each(
    ("columns", "line"),
    [
        (80, "iteration 4  log-likelihood -1.250000  change +1e-03  0:01  4 it/s"),
        (66, "iteration 4  log-likelihood -1.250000  0:01  4 it/s"),
        (51, "iteration 4  0:01  4 it/s"), (25, "iteration 4  0:01"), (12, "iteration 4"),
        (11, "..."), (3, ".."), (1, ""),
    ],
)  # fmt: skip
def test_no_number_is_cut_and_a_line_goes_in_a_terminal_that_got_narrower(shown, columns, line):
    made = ProgressLine(False)
    shown.terminal(columns)
    shown.iterate(made, 1.25)
    assert shown.last == line
    if columns == 80:  # that now takes two or three rows
        shown.columns = 30
        shown.iterate(made, 0.25)
        assert shown.err.startswith(f"\x1b[{(len(line) - 1) // 30}A{CLEAR}iteration")
    made.close()
    assert CLEAR not in shown.err[1:]


def test_a_long_run_whose_result_nobody_keeps_says_so_once_and_early(shown):
    made = ProgressLine(False, "--output FILE")
    shown.iterate(made, 0.75)
    assert shown.err == ""
    shown.iterate(made, 9)
    told = "note: the result will not be kept; to keep it give --output FILE\n"
    assert shown.err == told
    shown.iterate(made, 60)
    assert "note" not in shown.err
    shown.iterate(ProgressLine(True, "--output FILE"), 60)
    assert shown.err == ""
    shown.terminal()
    made = ProgressLine(False, "--output FILE")
    shown.iterate(made, 2)
    assert shown.err.startswith(f"{told}\r")  # above the live line
    made.close()


def test_a_run_that_says_nothing_yet_is_reminded_by_a_clock(capsys, monkeypatch):
    monkeypatch.setattr(showing, "TICK", 0.001)
    reminded = threading.Event()

    class Reminded(ProgressLine):
        def remind(self):
            super().remind()
            if self.unkept is None:
                reminded.set()

    made = Reminded(False, "--output FILE")
    made.began -= 1
    assert reminded.wait(600)
    made.close()
    assert capsys.readouterr().err.startswith("note: the result will not be kept")


def test_messages_take_the_line_away(shown):
    made = ProgressLine(False)
    shown.terminal()
    for tell, told in (
        (lambda: Screen().__enter__().warn("more rows"), "warning: more rows"),
        (lambda: fail("no"), "error: no"),
    ):
        shown.iterate(made, 2)
        assert shown.err
        tell()
        assert shown.err == f"{CLEAR}vpem: {told}\n"
    made.close()
    assert shown.err == ""


def test_what_is_a_terminal_and_how_wide_it_is(monkeypatch):
    for name, is_one in (("xterm", True), ("dumb", False), ("", False)):
        monkeypatch.setenv("TERM", name)
        for tty in (True, False):
            stream = SimpleNamespace(isatty=lambda tty=tty: tty, fileno=lambda: 2)
            monkeypatch.setattr(showing.sys, "stderr", stream)
            assert showing.is_terminal() is (is_one and tty)
    monkeypatch.setattr(showing.os, "get_terminal_size", lambda _: os.terminal_size((0, 0)))
    for value, wanted in (("100", 100), ("", 80), ("wide", 80), ("0", 80)):
        monkeypatch.setenv("COLUMNS", value)
        assert showing._columns() == wanted


# ---- searches and SAEM --------------------------------------------------------------------------


def test_a_search_is_logged_now_and_then(shown):
    """And has one line in a terminal. Each of a hundred trials takes a second; some fail."""

    def search(seconds, quiet=False):
        made = SearchProgress(quiet)
        made.start(100)
        for number in range(seconds):
            shown.time += 1
            status = ("converged", "failed", "not converged")[number % 3]
            made(f"K = {number}", {"status": status})
        return made

    shown.time += 500  # what came before the search counts for nothing
    search(60).close()
    lines = shown.err.splitlines()
    assert len(lines) == 6
    assert lines[-1].endswith(
        "(after 1 min 00 s)  60 of 100 fits done  20 failed  20 not converged  about 40 s to go  "
        "last: K = 59"
    )
    shown.terminal()
    search(5, quiet=True).close()
    made = search(5)
    text = shown.err
    assert ("\n" not in text, text.count(CLEAR)) == (True, 5)
    made.close()
    assert shown.err == CLEAR


def test_saem_tells_where_it_is_and_what_comes_after(shown):
    made = SaemCounter(False, most=200)
    made.burn_in = 40
    made.announce("too early to be shown")
    for number in range(1, 101):
        shown.time += 0.5
        made(SimpleNamespace(iteration=number))
    made.announce("drawing latents")
    made.close()
    lines = [line.partition(")  ")[2] for line in shown.err.splitlines()]
    assert lines[0] == "iteration 20/200  burn-in  2 it/s"
    assert lines[-2:] == ["iteration 100/200  2 it/s", "drawing latents"]
    assert len(lines) == 6
    shown.terminal()
    for quiet, told in ((True, ""), (False, f"{CLEAR}drawing latents  0:02")):
        made = SaemCounter(quiet, most=9)
        made.burn_in = 2
        shown.time += 2
        made(SimpleNamespace(iteration=1))
        made.announce("drawing latents")
        assert shown.err.endswith(told)
        made.close()


class Told(list):
    """Keeps what a fit tells."""

    def __call__(self, progress):
        self.append(progress.iteration)

    def announce(self, words):
        self.append(words)

    def restarting(self, *which):
        self.append(which)


def test_what_comes_after_the_iterations_is_told_in_order_and_restarts_are():
    told = Told()
    fit_saem(
        read_individuals(ROOT / "data" / "theophylline.csv"), "one-compartment", n_iter=4,
        burn_in=2, tol=0.0, n_conditional=7, n_importance=11, callback=told,
    )  # fmt: skip
    assert told[:4] == [1, 2, 3, 4]
    assert [text.split(",")[0] for text in told[4:]] == [
        "drawing latents at the estimates", "computing the log-likelihood",
        "computing standard errors",
    ]  # fmt: skip
    assert "7 draws of each chain" in told[4]
    X, told = np.random.default_rng(0).standard_normal((40, 4)), Told()
    network = connect(make_graph("star", 2), contiguous(4, 2))
    fit_vpem(X, network, n_init=3, max_iter=7, tol=0.1, callback=told)
    restarts = [one for one in told if isinstance(one, tuple)]
    assert restarts == [(1, 3, 7), (2, 3, 7), (3, 3, 7)]


def test_a_line_of_80_columns_has_restart_iteration_result_time_and_rate(shown):
    made = ProgressLine(False)
    shown.terminal()
    made.restarting(3, 10, 1000)
    for number in range(1, 150):
        shown.time += 0.5
        made(Progress(number, -1234.123456, 1e-12))
    told = "restart 3/10, iteration 149/1000  log-likelihood -1234.123456  1:14  2 it/s"
    assert shown.last == told
    shown.time += 3600
    made.starting("k-means, iteration 1 of at most 60")
    told = shown.last
    assert told.startswith("restart 3/10, start: k-means, iteration 1 of at most 60  1:01:14  ")
    assert told.endswith(" s/it")
    made.close()


def test_time_goes_on_while_a_step_takes_long(shown):
    shown.terminal()
    shown.patch.setattr(showing, "TICK", 0.01)
    shown.patch.setattr(ProgressLine, "DRAW_EVERY", 0.0)
    with Screen().reading(["table.csv"]):
        assert shown.err == ""
        for second in (2, 3):
            shown.time = 100.0 + second
            for _ in range(1000):
                if found := shown.err:
                    break
                time.sleep(0.01)
            assert found.endswith(f"{CLEAR}reading table.csv  0:0{second}")
    with Screen(quiet=True).reading(["table.csv"]):
        shown.time += 10
    assert shown.err.count("table.csv") == 0


# ---- what a tree would send ----------------------------------------------------------------------


WINE = ROOT / "data" / "wine.h5"
GROWTH = ROOT / "data" / "oxford_boys.csv"
ROWS = ("--workers", 6, "--max-iter", 1, "-k", 2)
SAID = re.compile(
    r"note: a sum sends ([\d,]+) messages by consensus; along a spanning tree \(--sum tree\) it "
    r"would send ([\d,]+), exact: ([\d,.]+) times fewer bytes"
)

FITS_BY_CONSENSUS = {
    "features": ("fit", WINE, "--agents", 6, "--max-iter", 1),
    "rows": ("fit", WINE, "--split", "rows", *ROWS),
    "clusters of rows": ("kmeans", WINE, *ROWS),
    "clusters by features": ("kmeans", WINE, "--split", "features", "--agents", 6, "-k", 2),
    "fedem": ("fedem", WINE, *ROWS),
    "completion": ("impute", WINE, "--workers", 6, "--rank", 1, "--max-iter", 1),
    "individuals": ("saem", GROWTH, "--devices", 6, "--max-iter", 1),
}


def tree_notes(capsys, *words):
    """What is said of a tree."""
    err = done(capsys, *words).err
    return [found.groups() for found in map(SAID.fullmatch, err.splitlines()) if found]


@pytest.mark.parametrize("command", FITS_BY_CONSENSUS)
def test_every_fit_by_consensus_says_what_a_tree_would_send(capsys, command):
    words = (*FITS_BY_CONSENSUS[command], "--topology", "cycle")
    graph, sent = make_graph("cycle", 6), []
    for way in ("consensus", "tree"):
        network = connect_workers(graph, sum=way)
        if "features" in command:
            network = connect(graph, contiguous(13, 6), sum=way, hops=0)
        sent.append(one_sum(network).messages)
    ((here, there, times),) = tree_notes(capsys, *words)
    assert [int(here), int(there)] == sent
    assert float(times) == round(int(here) / int(there), 1)
    assert tree_notes(capsys, *words, "--quiet") == []
    if command == "rows":
        assert tree_notes(capsys, *words, "--sum", "tree") == []


@each(
    ("graph", "asked", "told"),
    [
        ("cycle", {}, True),
        ("star", {}, False),
        ("cycle", {"sum": "tree"}, False),
        ("cycle", {"link_failure": 0.1}, True),
        ("cycle", {"agent_dropout": 0.1}, False),
    ],
)
def test_of_a_tree_that_cannot_be_nothing_is_said(graph, asked, told):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = connect(make_graph(graph, 5), contiguous(5, 5), **asked)
    assert (along_a_tree(network) is not None) == told
