"""Sessions and Python lines of the README and of the pages give what the pages show."""

import re

import pytest

from .pages_support import ROOT, agrees, check, comparable, sessions

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sessions())
def test_session(page, tmp_path):
    check(page, tmp_path)


def test_the_readme_has_sessions_and_python():
    assert README.count("```console") >= 4
    assert README.count("```python") == 1
    assert README.count("```text") == 1


def test_what_is_printed_is_compared_with_what_is_shown():
    printed = comparable("one  0.5 s\n\ntwo\nthree\n")
    assert agrees(printed, comparable("one 0.7 s\ntwo\nthree"))
    assert agrees(printed, comparable("one 0.7 s\n...\nthree"))
    assert not agrees(printed, comparable("one 0.7 s\nthree"))
    assert not agrees(printed, comparable("one 0.7 s\n...\nfour"))


def test_the_two_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
