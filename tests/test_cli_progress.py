"""Progress: a live line in a terminal, lines with times in logs, nothing where none is wanted."""

import os
import re
from types import SimpleNamespace

import pytest

from vpem_cli import progress as showing
from vpem_cli.output import Progress, Screen, fail


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(showing.time, "monotonic", lambda: now.time)
    return now


@pytest.fixture
def terminal(monkeypatch):
    """Stderr is a terminal of so many columns."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(showing, "is_terminal", lambda: True)
    width = SimpleNamespace(columns=80)
    monkeypatch.setattr(showing, "_columns", lambda: width.columns)
    return width


def iteration(number):
    return SimpleNamespace(iteration=number, log_likelihood=-1.25, change=1e-3)


def run(made, clock, seconds, step=0.25):
    """Iterate for some seconds."""
    for number in range(round(seconds / step)):
        clock.time += step
        made(iteration(number))


def test_a_log_has_few_lines_with_times_and_no_carriage_returns(capsys, clock):
    made = Progress(False)
    run(made, clock, 9.5)
    assert capsys.readouterr().err == ""
    run(made, clock, 60)
    text = capsys.readouterr().err
    lines = text.splitlines()
    assert len(lines) == 6
    for line in lines:
        assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \(after .+\)  iteration \d+ ", line)
        assert "log-likelihood per sample -1.250000" in line
    assert not {"\r", "\x1b"} & set(text)
    assert "(after 1 min 00 s)" in text
    made.close()
    assert capsys.readouterr().err == ""


def test_a_run_of_a_day_leaves_some_hundred_lines(capsys, clock):
    run(Progress(False), clock, 86400, step=5.0)
    lines = capsys.readouterr().err.splitlines()
    assert 100 < len(lines) < 250
    assert "(after 23 h" in lines[-1]


def test_quiet_is_quiet(capsys, clock, terminal):
    made = Progress(True)
    run(made, clock, 100)
    made.close()
    assert capsys.readouterr().err == ""


def test_a_terminal_has_one_line_and_none_at_the_end(capsys, clock, terminal):
    made = Progress(False)
    run(made, clock, 5)
    text = capsys.readouterr().err
    assert "\n" not in text
    assert text.startswith("\r\x1b[Jiteration ")
    assert text.count("\r\x1b[J") == text.count("iteration ")
    made.close()
    assert capsys.readouterr().err == "\r\x1b[J"
    made.close()
    assert capsys.readouterr().err == ""


def test_a_terminal_is_not_written_faster_than_one_can_see(capsys, clock, terminal):
    run(Progress(False), clock, 3, step=0.001)
    assert 15 <= capsys.readouterr().err.count("iteration ") <= 21
    showing.take_away()


def test_a_narrow_terminal_keeps_it_in_one_row(capsys, clock, terminal):
    terminal.columns = 20
    made = Progress(False)
    run(made, clock, 1.25)
    shown = capsys.readouterr().err.split("\r\x1b[J")[-1]
    assert len(shown) == 19
    assert shown.endswith("...")
    made.close()


def test_a_terminal_that_got_narrower(capsys, clock, terminal):
    """The line of 80 columns now takes two or three rows, which go with it."""
    made = Progress(False)
    run(made, clock, 1.25)
    length = len(capsys.readouterr().err.split("\r\x1b[J")[-1])
    terminal.columns = 30
    run(made, clock, 0.25)
    assert capsys.readouterr().err.startswith(f"\x1b[{(length - 1) // 30}A\r\x1b[Jiteration")
    made.close()


def test_messages_take_the_line_away(capsys, clock, terminal):
    made = Progress(False)
    run(made, clock, 2)
    capsys.readouterr()
    with Screen() as screen:
        screen.warn("more rows")
    assert capsys.readouterr().err == "\r\x1b[Jvpem: warning: more rows\n"
    run(made, clock, 0.25)
    capsys.readouterr()
    fail("no")
    made.close()
    assert capsys.readouterr().err == "\r\x1b[Jvpem: error: no\n"


def test_colours_and_hidden_cursors_are_not_used(capsys, clock, terminal, monkeypatch):
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        made = Progress(False)
        run(made, clock, 3)
        made.close()
        sequences = set(re.findall(r"\x1b\[[\d;?]*[a-zA-Z]", capsys.readouterr().err))
        assert sequences == {"\x1b[J"}


@pytest.mark.parametrize(("name", "wanted"), [("xterm", True), ("dumb", False), ("", False)])
def test_what_is_a_terminal(monkeypatch, name, wanted):
    monkeypatch.setenv("TERM", name)
    monkeypatch.setattr(showing.sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert showing.is_terminal() is wanted
    monkeypatch.setattr(showing.sys, "stderr", SimpleNamespace(isatty=lambda: False))
    assert showing.is_terminal() is False


def test_the_width_of_a_terminal_that_does_not_know_it(monkeypatch):
    def none(_):
        return os.terminal_size((0, 0))

    monkeypatch.setattr(showing.os, "get_terminal_size", none)
    monkeypatch.setattr(showing.sys, "stderr", SimpleNamespace(fileno=lambda: 2))
    for value, wanted in (("100", 100), ("", 80), ("wide", 80), ("0", 80)):
        monkeypatch.setenv("COLUMNS", value)
        assert showing._columns() == wanted
