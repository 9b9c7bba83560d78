"""The site can be built: links lead somewhere, and the commands that pages show exist."""

import re
import shlex
import subprocess
import sys

import pytest

from vpem_cli.app import command

from .pages_support import ROOT, makers, pictures

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCES = re.compile(r"^```([a-z]*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"\w*\$ ")


BUILD = "import sys; from sphinx.cmd.build import build_main; sys.exit(any([{}]))"


def build(*folders):
    """Build folders of pages with the site's settings, warnings being errors, in one process."""
    common = ["-q", "-W", "--keep-going", "-c", "docs"]
    calls = ", ".join(f"build_main({[*common, *map(str, words)]})" for words in folders)
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(calls)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def asks_nobody(made):
    """Check that no page has anything to be fetched from the network."""
    pages = list(made.rglob("*.html"))
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?:", text), page.name


def test_site_is_built_without_warnings_and_asks_nobody_for_anything(tmp_path):
    """All pages without the theme, which takes a third of the time, and one page with it."""
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# Front\n\n$x^2$\n\n```sh\nvpem\n```\n")
    site, one = tmp_path / "site", tmp_path / "one"
    build((tmp_path / "pages", one), ("docs", site, "-D", "html_theme=basic"))
    assert "furo" in (one / "index.html").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists()
    for made in (site, one):
        asks_nobody(made)


def test_pictures_are_small_made_by_commands_of_their_pages_and_told_in_words():
    found = pictures()
    assert set(found) == set((ROOT / "docs" / "pictures").iterdir())
    assert (ROOT / "README.md") in {page for pages in found.values() for page in pages}
    for picture, pages in found.items():
        assert picture.stat().st_size < 80_000, picture
        assert makers(picture, pages), f"no session of {pages} says: wrote {picture.name}"
        assert all(len(words) > 40 for words in pages.values()), picture


def shown(page):
    """Lines of a page's code that call vpem."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = [
        line for kind, block in FENCES.findall(text) for line in block.splitlines()
        if kind != "console" or PROMPT.match(line)  # the rest is what commands print
    ]  # fmt: skip
    indented = [line[4:] for line in FENCES.sub("", text).splitlines() if line.startswith("    ")]
    for line in (*fenced, *indented):
        plain = PROMPT.sub("", line.strip(), count=1).removesuffix(" &")
        found = re.match(r"(?:mpiexec .*?|srun .*?)?\bvpem ([a-z][a-z-]* .*)", plain)
        if found and "[OPTIONS]" not in line:
            yield found.group(1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_a_page_shows_exist(page):
    for line in shown(page):
        if "--config" in line or "--study" in line:  # the rest may stand in the file
            continue
        # A variable of the shell may be any number.
        words = shlex.split(re.sub(r"\$\{?\w+\}?", "1", line), comments=True)
        ends = [i for i, word in enumerate(words) if word in (">", "|", "&&", ";", "2>", "<", "||")]
        words = words[: min(ends, default=len(words))]
        parse(command(), "vpem", words, line)


def parse(member, name, words, line):
    """Parse words as the command does, without a run."""
    try:
        with member.make_context(name, list(words)) as context:
            if hasattr(member, "commands"):
                rest = [*context._protected_args, *context.args]
                inner, found, rest = member.resolve_command(context, rest)
                parse(found, inner, rest, line)
    except Exception as error:
        if hasattr(error, "format_message"):
            pytest.fail(f"{line}: {error.format_message()}")
        raise
