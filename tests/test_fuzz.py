"""The fuzzer of files counts what goes wrong, and nothing does in a short run."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.forks import environment, interpreter

ROOT = Path(__file__).parents[1]
PLAIN = "from benchmarks.fuzz.__main__ import main; import sys; sys.exit(main({words!r}))"
PLANTED = {
    "exit code 1": "def planted(*words): raise KeyError('planted')",
    "signal 11": "def planted(*words): import os; os.kill(os.getpid(), 11)",
    "memory": "def planted(*words): return (b'x' * (11 * 10**8))[0]",
    "left a temporary file": "def planted(*words): open('.vpem-left.h5', 'w')",
}


def fuzz(*words, planted=""):
    """Run the program in a process of its own, from which it forks."""
    script = planted + PLAIN.format(words=[*map(str, words), "--json"])
    done = subprocess.run(
        [interpreter(), "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=300,
        env=environment(),
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def test_a_short_run_finds_nothing_wrong():
    code, found, err = fuzz("--runs", 6, "--only", "partition", "--only", "options")
    assert err == ""
    assert found["defects"] == []
    assert code == 0
    assert sum(tally["runs"] for tally in found["kinds"].values()) == 6
    assert sum(tally["refused"] for tally in found["kinds"].values()) > 0


def test_doors_stand_whoever_comes():
    code, found, err = fuzz("--runs", 160, "--only", "handshake", "--only", "link")
    assert err == ""
    assert found["defects"] == []
    assert code == 0
    assert all(tally["runs"] >= 80 for tally in found["kinds"].values())
    assert found["kinds"]["link"]["refused"] > 0


def test_what_is_planted_is_counted_and_kept(tmp_path):
    plant = (
        "import itertools, vpem_cli; numbers = itertools.count();\n"
        f"sorts = {list(PLANTED.values())!r}\n"
        "def run(words):\n"
        "    space = {}\n"
        "    exec(sorts[int(open('../number').read()) % 4], space)\n"
        "    space['planted']()\n"
        "    return 0\n"
        "import benchmarks.fuzz.__main__ as program\n"
        "chosen = program._next\n"
        "def next_run(number, *rest):\n"
        "    run, prepare = chosen(number, *rest)\n"
        "    def prepared(work):\n"
        "        (work.parent / 'number').write_text(str(number))\n"
        "        vpem_cli.run = globals()['run']\n"
        "        return prepare(work)\n"
        "    return run, prepared\n"
        "program._next = next_run\n"
    )
    code, found, err = fuzz("--runs", 4, "--only", "key", "--keep", tmp_path, planted=plant)
    assert code == 1, err
    assert [defect["defects"][0] for defect in found["defects"]] == list(PLANTED)
    for number in range(4):
        note = (tmp_path / f"run-{number}" / "command.txt").read_text().splitlines()
        assert (
            note[0] == f"cd {tmp_path}/run-{number}/work && {found['defects'][number]['command']}"
        )
        assert (tmp_path / f"run-{number}" / "work").is_dir()


@pytest.mark.parametrize("family", ["hdf5", "text", "json"])
def test_a_number_makes_the_same_damage(monkeypatch, tmp_path, family):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.fuzz.mutations import change_file
    from benchmarks.fuzz.seeds import _dataset, _table, as_json

    make, name = {
        "hdf5": (_dataset, "data.h5"), "text": (_table, "t.csv"),
        "json": (as_json({"a": [1, 2], "b": {"c": "d"}}), "p.json"),
    }[family]  # fmt: skip
    same = 0
    for number in range(12):
        found = []
        for turn in ("one", "two"):
            (tmp_path / f"{turn}{number}").mkdir()
            path = tmp_path / f"{turn}{number}" / name
            make(path)
            whole = path.read_bytes()
            told = change_file(path, family, np.random.default_rng(number))
            found.append((told, path.read_bytes() if path.is_file() else None))
        assert found[0] == found[1]
        same += found[0][1] == whole
    assert same < 6
