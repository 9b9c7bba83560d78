"""The README's session and Python lines give what the README shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def fenced(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def comparable(text):
    """Lines without trailing blanks, blank lines, and wall times."""
    lines = [re.sub(r"\d[\d.e-]* s$", "SECONDS", line.rstrip()) for line in text.splitlines()]
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "data", folder / "data")
    return folder


def run(command, folder):
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = {"PATH": os.pathsep.join(places), "COLUMNS": "80", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_session(workplace):
    blocks = fenced("console")
    assert len(blocks) >= 4
    for block in blocks:
        commands = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        assert commands
        for piece in commands:
            command, _, shown = piece.partition("\n")
            done = run(command, workplace)
            assert comparable(done.stdout + done.stderr) == comparable(shown), command
            assert done.returncode == (2 if "vpem: error" in shown else 0), command


def test_python_lines(workplace):
    (code,) = fenced("python")
    script = workplace / "lines.py"
    script.write_text(code, encoding="utf-8")
    done = run(f"{sys.executable} -W error lines.py", workplace)
    assert done.returncode == 0, done.stderr
    assert re.match(r"\[0\.\d+ +0\.\d+\] 2\d\.\d+", done.stdout)


def test_the_two_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
