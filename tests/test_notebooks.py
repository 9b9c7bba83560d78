"""Notebooks of the site run as they stand, and print what they show."""

import json
import subprocess

import nbformat
import pytest

from .forks import environment, interpreter
from .pages_support import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

# A kernel, and messages to it, take longer than what most notebooks do.
RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell, printed = InteractiveShell.instance(), []
# What a last line has made is drawn, as it would be to be shown, and not printed.
shell.display_trap.hook = lambda value: value is None or shell.display_formatter.format(value)
for source in json.load(sys.stdin):
    with capture_output() as found:
        shell.run_cell(source).raise_error()
    printed.append(found.stdout)
    assert not found.stderr, found.stderr
json.dump(printed, sys.stdout)
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path):
    cells = [one for one in nbformat.read(path, as_version=4).cells if one.cell_type == "code"]
    shown = [
        "".join(out.text for out in cell.outputs if out.output_type == "stream") for cell in cells
    ]
    assert any(shown)
    done = subprocess.run(
        [interpreter(), "-c", RUN], cwd=tmp_path, input=json.dumps([cell.source for cell in cells]),
        env=environment(IPYTHONDIR=str(tmp_path)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == shown
