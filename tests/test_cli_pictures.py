"""`vpem plot` and `vpem report`: whole files, true hints, pages that run and load nothing."""

import base64
import itertools
import re
import shlex
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import vpem.checks
import vpem_cli
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import read_model, write_model
from vpem.pictures.page import kinds_of, show_item, text
from vpem.pictures.saved import read_saved
from vpem.records import Table
from vpem_cli.app import command
from vpem_cli.commands.model import stored_at

from .cli_support import done, listing, run
from .pages_support import UNDRAWN
from .pictures_support import FITS, fitted, make_labelled, shared_folder
from .tables import each, each_once


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return shared_folder(tmp_path_factory)


@pytest.fixture
def model(home):
    return fitted(home, "graph")


@pytest.fixture
def data(home, model):
    return home / "data.h5"


# ---- pictures ------------------------------------------------------------------------------------


@each(
    ("kind", "ending", "begins"),
    [("history", "png", b"\x89PNG\r\n\x1a\n"), ("confusion", "svg", b"<?xml"),
     ("sparsity", "pdf", b"%PDF-")],
)  # fmt: skip
def test_pictures_are_written(capsys, model, data, tmp_path, kind, ending, begins):
    path = tmp_path / f"picture.{ending}"
    result = done(capsys, "plot", model, data, "--kind", kind, "-o", path)
    assert result.out == ""
    assert result.err.splitlines()[0] == f"wrote {path}"
    assert path.read_bytes().startswith(begins)
    assert list(tmp_path.iterdir()) == [path]
    told = f"note: the kind {kind} shows nothing of DATA" in result.err
    assert told == (kind != "confusion")
    path.unlink()


@each(
    ("words", "name"),
    [(("plot", "fit.1.h5"), "fit.1-profile.png"),
     (("plot", "fit.1.h5", "--kind", "graph"), "fit.1-graph.png"),
     (("report", "fit.1.h5"), "fit.1.html")],
)  # fmt: skip
def test_without_an_output_it_lies_beside_the_model(capsys, home, tmp_path, words, name):
    path = tmp_path / "fit.1.h5"
    shutil.copy(fitted(home, "kmeans"), path)
    words = (words[0], path, *words[2:])
    assert done(capsys, *words).err.splitlines()[0] == f"wrote {tmp_path / name}"
    assert {file.name for file in tmp_path.iterdir()} == {path.name, name}
    kept = listing(tmp_path)
    assert run(capsys, *words).sentence == f"{tmp_path / name} exists; pass --force to replace it"
    assert listing(tmp_path) == kept
    if words[0] == "plot":  # a page takes its time
        told = done(capsys, *words, "--force", "--json", "-q").json
        assert told["plot"] == str(tmp_path / name)
    (tmp_path / name).unlink()


def test_hints_name_the_other_kinds_and_what_they_need(capsys, model, tmp_path):
    result = done(capsys, "plot", model, "--kind", "graph", "-o", tmp_path / "g.png")
    assert result.err.splitlines()[1] == (
        "next, --kind: profile, history, sparsity, communication; with DATA: projection, "
        "marginals, pairs, boundaries, responsibilities; with DATA with labels: confusion"
    )
    found = done(capsys, "plot", model, "--kind", "graph", "-o", tmp_path / "h.png", "--json", "-q")
    assert found.err == ""
    assert found.json["plot"] == str(tmp_path / "h.png")
    assert set(found.json["next"]) == set(kinds_of(read_saved(model))) - {"graph"}
    assert found.json["description"].startswith("The cycle graph with 4 agents in ")


def test_names_are_drawn_as_they_are_and_those_beyond_the_font_are_warned_of(
    capsys, model, data, tmp_path
):
    path = tmp_path / "names.svg"
    done(capsys, "plot", model, data, "--kind", "marginals", "-o", path, "-q")
    nodes = [node for node in ET.parse(path).iter() if node.tag.endswith("}text")]
    assert {"$x_1$ & <b>", "height"} <= {"".join(node.itertext()) for node in nodes}
    foreign = make_labelled(tmp_path / "foreign.h5", ("長さ", "b"))
    done(capsys, "fit", foreign, "--max-iter", 2, "-o", tmp_path / "m.h5", "-q")
    words = (tmp_path / "m.h5", "--kind", "sparsity", "-o", tmp_path / "p.png")
    result = done(capsys, "plot", *words)
    assert "the font of pictures has not" in " ".join(result.err.split())
    assert result.err.count("warning: ") == 1


def test_the_same_rows_are_the_same_picture(capsys, monkeypatch, model, data, tmp_path):
    """On disk as in memory, their features in another order; labels may be from a text file."""
    source, out = read_dataset(data), tmp_path / "c.svg"
    names, X = source.feature_names[::-1], np.ascontiguousarray(source.X[:, ::-1])
    write_dataset(tmp_path / "turned.h5", Dataset(X, names, labels=source.labels))
    words = ("--kind", "confusion", "-o", out, "--force", "--json", "-q")
    told = []
    for file, limit in ((data, 1 << 30), (tmp_path / "turned.h5", 1 << 30), (data, 100)):
        monkeypatch.setattr(vpem.checks, "available_memory", lambda limit=limit: limit)
        found = done(capsys, "plot", model, file, *words).json["description"]
        told.append((found, out.read_bytes()))
    assert told[0] == told[1] == told[2]
    monkeypatch.undo()
    (tmp_path / "labels.txt").write_text("".join(f"{row % 2}\n" for row in range(90)))
    other = done(capsys, "plot", model, data, *words, "--labels", tmp_path / "labels.txt")
    assert "Rows of 2 labels in 2 components" in other.json["description"]


# ---- pages ---------------------------------------------------------------------------------------

HOSTILE = ("<script>alert(1)</script>", "\"' onerror=alert(1) x='", "</td></table><img src=x>",
           "&amp;\x1b[2J")  # fmt: skip
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed, attributes are kept."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.said = [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.said.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def words(self):
        return " ".join(" ".join(self.said).split())


@pytest.fixture(scope="module")
def written(home):
    """The page of a model with its data."""
    words = [fitted(home, "graph"), home / "data.h5", "-o", home / "report.html", "-q"]
    assert vpem_cli.run(["report", *map(str, words)]) == 0
    return (home / "report.html").read_text(encoding="utf-8")


@each("words", ["fit -k 2 --topology cycle --hops 1", "kmeans -k 3"])
def test_a_fit_and_its_file_say_the_same(capsys, tmp_path, words):
    name, *options = words.split()
    data = tmp_path / "data.h5"
    if not data.exists():
        make_labelled(data)
    told = done(capsys, name, data, *options, "-o", tmp_path / "m.h5", "--force").out
    shown = done(capsys, "model", "show", tmp_path / "m.h5").out
    facts = ("data", "mixture", "log-likelihood", "BIC, AIC", "inertia", "iterations", "network")
    lines = [" ".join(line.split()) for line in told.splitlines()]
    lines = [line for line in lines if line.startswith(facts)]
    assert len(lines) >= 4
    assert set(lines) <= {" ".join(line.split()) for line in shown.splitlines()}


def test_the_page_needs_nothing_else(written):
    page = Page(written)
    assert not {tag for tag, _ in page.elements} & {
        "script", "link", "iframe", "object", "embed", "base", "form", "svg",
    }  # fmt: skip
    for tag, attrs in page.elements:
        for name, value in attrs.items():
            assert not name.startswith("on")
            if name in ("src", "href", "action", "data", "srcset", "poster"):
                allowed = ("data:image/svg+xml;base64,", "data:image/png;base64,", "#")
                assert value.startswith(allowed), (tag, name)
    outside = re.sub(r"base64,[A-Za-z0-9+/=]+", "", written)
    assert not re.search(r"https?:|//|@import|url\(", outside)
    policy = next(attrs for attrs in page.all("meta") if "http-equiv" in attrs)
    assert policy["content"].startswith("default-src 'none'")
    assert len(page.all("img")) == 10
    for attrs in page.all("img"):
        assert len(attrs["alt"]) > 30
        kind, content = re.fullmatch(r"data:image/([a-z+]+);base64,(.*)", attrs["src"]).groups()
        for node in ET.fromstring(base64.b64decode(content)).iter() if kind == "svg+xml" else ():
            assert not node.tag.endswith("}script")
            for name, value in node.attrib.items():
                if name.endswith("href"):
                    assert value.startswith(("#", "data:image/png;base64,"))


def test_headings_and_anchors_are_in_order(written):
    """Results come first, and settings last."""
    page = Page(written)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    there = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(there) == len(set(there))
    listed = [attrs["href"][1:] for attrs in page.all("a")]
    assert set(listed) <= set(there)
    sections = [name for name in listed if not name.startswith("picture-")]
    assert sections == ["warnings", "components", "quality", "parameters", "course", "hubs",
                        "sent", "fitted", "command"]  # fmt: skip
    assert listed[2:4] == ["picture-profile", "picture-projection"]
    assert page.all("html")[0]["lang"] == "en"
    assert all("scope" in attrs for attrs in page.all("th"))
    assert "@media print" in written


def test_hostile_names_are_text(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("vpem.pictures.page.as_source", UNDRAWN["vpem.pictures.page.as_source"])
    data = make_labelled(tmp_path / "data.h5", HOSTILE)
    model = tmp_path / "m.h5"
    done(capsys, "fit", data, "--agents", 2, "--topology", "cycle", "--max-iter", 2, "-o", model,
         "-q")  # fmt: skip
    stored = read_model(model)
    stored.report |= {
        "topology": "<img src=x onerror=alert(1)>",
        "agent_names": ["</script><script>", "'\">"],
        "warnings": ["<b>bold</b>"],
        "data": "http://example.org/<x>",
        "algorithm": "<i>",
    }
    stored.versions["<u>"] = "<s>"
    hostile = tmp_path / "<hostile>.h5"
    write_model(hostile, stored)
    path = tmp_path / "r.html"
    done(capsys, "report", hostile, "-o", path, "-q")
    written = path.read_text(encoding="utf-8")
    page = Page(written)
    assert not page.all("script") + page.all("b") + page.all("i") + page.all("u") + page.all("s")
    assert all(set(attrs) == {"src", "alt"} for attrs in page.all("img"))
    assert all(attrs["src"].startswith("data:") for attrs in page.all("img"))
    assert all(name in " ".join(page.said) for name in HOSTILE[:3])
    assert "\x1b" not in written
    assert "<hostile>.h5: 2 components" in page.words
    escaped = "&lt;a href=&#x27;x&#x27;&gt;&amp; \N{REPLACEMENT CHARACTER}"
    assert text("<a href='x'>&\n\x00") == escaped
    shown = show_item(Table([("<", ">")], ("a", "b")))
    assert '">&lt;</th><td class="n" style="text-align: right">&gt;</td>' in shown


@each_once(name=["rows", "fedem", "kmeans", "grid", "star"])
def test_the_command_fits_the_same_again(home, capsys, tmp_path, name):
    saved = read_saved(fitted(home, name))
    program, *words = shlex.split(stored_at(fitted(home, name)).command(command()))
    assert program == "vpem"
    done(capsys, *words, "-o", tmp_path / "again.h5", "-q")
    again = read_saved(tmp_path / "again.h5")
    for key in ("log_likelihood", "inertia", "communication", "n_iter", "mixing_weights"):
        assert again.report.get(key) == saved.report.get(key)
    assert set(FITS[name].split()[1:]) - {"{data}"} <= set(
        " ".join(words).replace("--components", "-k").replace("--clusters", "-k").split()
    ) | {"-k", "2", "--max-iter"}


def test_what_cannot_be_drawn_is_said_in_options(capsys, home, tmp_path, monkeypatch):
    monkeypatch.setattr("vpem.pictures.page.as_source", UNDRAWN["vpem.pictures.page.as_source"])
    path = tmp_path / "r.html"
    result = done(capsys, "report", fitted(home, "kmeans"), "-o", path)
    lines = result.err.splitlines()
    assert lines[0] == f"wrote {path}"
    said = [line.removeprefix("note: no picture of ").split(": ", 1) for line in lines[1:]]
    assert [kind for kind, _ in said] == ["marginals", "confusion"]
    assert said[1] == ["confusion", "the picture shows rows of data; give the data after the model"]
    page = Page(path.read_text(encoding="utf-8"))
    assert "Not drawn" in page.words
    assert len(page.all("img")) == 6
    assert "3 clusters, 4 features" in page.words
    model, data = fitted(home, "graph"), tmp_path / "plain.h5"
    write_dataset(data, replace(read_dataset(home / "data.h5"), labels=None))
    result = done(capsys, "report", model, data, "-o", path, "--json", "--force")
    why = f"{data} has no labels to hold components against; name where they are with --labels"
    assert result.err.splitlines()[1:] == [f"note: no picture of confusion: {why}"]
    assert result.json["not_drawn"] == [f"confusion: {why}"]
