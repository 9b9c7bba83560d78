"""Notebooks of the site run as they stand, and print what they show."""

import nbclient
import nbformat
import pytest

from .pages_support import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def printed(notebook):
    return [
        "".join(out.text for out in cell.outputs if out.output_type == "stream")
        for cell in notebook.cells if cell.cell_type == "code"
    ]  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path):
    shown = nbformat.read(path, as_version=4)
    assert any(printed(shown))
    run = nbclient.NotebookClient(nbformat.read(path, as_version=4), timeout=60)
    assert printed(run.execute(cwd=str(tmp_path))) == printed(shown)
