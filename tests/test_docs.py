"""The pages that are made from the code are those the code makes now."""

import importlib.util
import re
from pathlib import Path

import pytest

from vpem_cli.app import command

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli.md", "python.md"])
def test_reference_is_up_to_date(maker, page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == maker.PAGES[page](), "run `make docs`"


def test_every_command_has_help_with_an_example(maker):
    commands = list(maker.leaves(command(), ("vpem",)))
    assert len(commands) >= 10
    for path, member in commands:
        assert "Example: vpem " in member.help, path
        for parameter in member.params:
            assert parameter.help, (path, parameter.name)


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/*.md")]
    assert len(pages) >= 5
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)
