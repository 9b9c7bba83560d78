"""What commands print and write is what they printed and wrote before: see `tests/golden`."""

import copy
import re

import h5py
import pytest

import vpem_cli.app
from benchmarks import same
from vpem.settings import SAEM_MODELS

from .forks import ROOT, interpreter
from .golden import files, runner, store
from .golden.cases import CASES
from .golden.compare import differences, shorten, shortened


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Where cases are run, and what they begin with is made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "interpreter", interpreter)
        yield store.workshop(tmp_path_factory.mktemp("golden"))


def told(wrong, most=20):
    """Say where two values differ."""
    lines = [
        f"{path}\n    kept:  {one!r:.400}\n    found: {two!r:.400}" for path, one, two in wrong
    ]
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join([*lines[:most], *more])


@pytest.mark.parametrize("group", CASES)
def test_results_are_those_that_were_kept(shop, group):
    wrong = store.changes(group, store.expected(group), store.found(shop, group))
    assert not wrong, f"{told(wrong)}\n'make golden' keeps what is found, if that is meant"


def test_no_case_is_left_out():
    if missing := store.left_out():
        pytest.skip(f"not installed: what {', '.join(missing)} needs")


def test_a_number_that_has_changed_is_named():
    kept = store.expected("fit")
    bic = kept["one agent"]["1"]["out"]["bic"]
    for change in (3e-8, -3e-8):
        moved = copy.deepcopy(kept)
        moved["one agent"]["1"]["out"]["bic"] *= 1 + change
        ((path, before, after),) = differences(kept, moved)
        assert path == "/one agent/1/out/bic"
        assert (before, after) == (bic, bic * (1 + change))
        assert path in told([(path, before, after)])


def test_what_is_compared():
    assert not list(differences({"a": [1, 2.0, "x 1.5"]}, {"a": [1, 2.0 + 1e-9, "x 1.500000001"]}))
    for one, other in [
        (1, 2), (1, 1.0), (True, 1), (1.0, 1.0 + 1e-7), (1e9, 1e9 + 100), ("x 1.5", "x 1.6"),
        ("x 3", "x 4"), ("x", "y"), ("1.0 m", "1.0 n"), ([1], [1, 2]), ({"a": 1}, {}), (None, 0),
        ("nan", 1.0), ("x 1", "x 1.0"),
    ]:  # fmt: skip
        assert list(differences(one, other)), (one, other)
    assert list(differences(1.0, 1.0 + 1e-15, 0.0))


def test_long_values_are_shortened_without_losing_a_change():
    long = [[float(i * j) for j in range(9)] for i in range(9)]
    assert shorten(long)["shape"] == [9, 9]
    for change in (lambda rows: rows.reverse(), lambda rows: rows[8].__setitem__(8, 64.1)):
        other = copy.deepcopy(long)
        change(other)
        assert list(differences(shorten(long), shorten(other)))
    lines = [f"row {i} {i / 7}" for i in range(90)]
    ends = [shortened({"steps": [{"out": out, "err": []}]}) for out in (lines, lines[::-1])]
    assert list(differences(*ends))


def commands(command, path=()):
    """Yield the words of every command, and the command."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


def test_every_command_has_a_case():
    lines = [
        line
        for cases in CASES.values()
        for case in cases.values()
        for whole in store.lines_of(case)
        for line in whole.split(" || ")
    ]
    lines.append("study demo")  # a walk that tests of studies take
    for command, _ in commands(vpem_cli.app.command()):
        assert any(f"{line} ".startswith(f"{command} ") for line in lines), command


CODES = {
    "studies/check": 2, "fit/not converged": 3,
    "files/profile.svg": 2, "files/hub.key": 2, "files/relay.log": 2,
}  # fmt: skip
"""Of groups and cases whose last command does not end with 0."""


@pytest.mark.parametrize("group", CASES)
def test_commands_end_as_they_are_meant_to(group):
    for name, steps in store.expected(group).items():
        *first, last = [step["code"] for number, step in steps.items() if number != "files"]
        assert set(first) <= {0}, name
        assert last == CODES.get(f"{group}/{name}", CODES.get(group, 0)), name


def test_every_file_is_read_by_a_case():
    there = {path.name for path in store.KEPT.iterdir()}
    assert there == set(files.names())
    assert sum(path.stat().st_size for path in store.KEPT.iterdir()) < 800_000
    told = " ".join([*files.READ, *(line for case in files.READ.values()
                                    for line in store.lines_of(case))])  # fmt: skip
    assert not [name for name in there if name not in told]


def kinds_of_code():
    """The kinds of HDF5 files that the code names, wherever that is."""
    texts = [path.read_text(encoding="utf-8") for room in ("vpem", "cli")
             for path in sorted((ROOT / room).rglob("*.py"))]  # fmt: skip
    return {kind for text in texts for kind in re.findall(r'"(vpem-[a-z-]+[a-z])"', text)}


NO_FILES = {"vpem-read", "vpem-unpack", "vpem-imputed", "vpem-samples"}
"""Threads; and tables of which HDF5 files are other kinds: an imputation, a dataset."""


def test_every_kind_that_the_code_knows_has_a_file():
    kinds, models = set(), set()
    for path in store.KEPT.iterdir():
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                kinds.add(file.attrs["encoding-type"].decode())
                models.add(bytes(file.attrs.get("model", b"")).decode())
    assert kinds == kinds_of_code() - NO_FILES
    assert set(SAEM_MODELS) <= models
    endings = {path.suffix for path in store.KEPT.iterdir()}
    assert endings >= {".h5", ".ckpt", ".csv", ".parquet", ".npz", ".json", ".svg", ".toml", ".key",
                       ".crt", ".request", ".known", ".log", ".spent"}  # fmt: skip


def test_every_command_that_keeps_a_state_has_a_checkpoint():
    for words, command in commands(vpem_cli.app.command()):
        if {"checkpoint", "state"} & {option.name for option in command.params}:
            assert any(line.startswith(words) for line in files.CHECKPOINTS.values()), words


def test_two_builds_are_compared_to_the_bit(capsys):
    assert same.main([str(ROOT), "--only", "data/describe*"]) == 0
    assert capsys.readouterr().out == "3 cases, 0 differ\n"
    ours = {"fit/one": {"steps": [{"out": {"bic": 1.0}}]}}
    theirs = {"fit/one": {"steps": [{"out": {"bic": 1.0 + 2**-52}}]}}
    assert same.compared(ours, ours) == {}
    assert same.compared(ours, theirs) == {"fit/one": [("/steps/0/out/bic", 1.0 + 2**-52, 1.0)]}


def test_what_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="is no checkout of vpem"):
        same.main([str(tmp_path)])
    with pytest.raises(SystemExit, match="no case is called"):
        same.main([str(ROOT), "--only", "nothing"])
    for name in ("vpem/_core/x.pyx", "vpem/__init__.py", "cli/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(SystemExit, match="has no built kernels"):
        same.main([str(tmp_path)])
