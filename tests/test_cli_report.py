"""`vpem report`: one page that says what is in the model, and runs and loads nothing."""

import base64
import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import vpem_cli
from vpem.files.data import read_dataset
from vpem.files.datasets import write_dataset
from vpem.files.models import read_model, write_model
from vpem.fits.answer import compare
from vpem.pictures.page import contents_of, show_item, text
from vpem.pictures.saved import read_saved
from vpem.records import Table
from vpem_cli.app import command
from vpem_cli.commands.model import stored_at

from .cli_support import done, listing, run
from .pictures_support import FITS, fitted, make_labelled, shared_folder

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
def home(tmp_path_factory):
    return shared_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def written(home):
    """The page of a model with its data, and the file it is in."""
    model = fitted(home, "graph")
    path = home / "report.html"
    assert vpem_cli.run(["report", str(model), str(home / "data.h5"), "-o", str(path), "-q"]) == 0
    return path.read_text(encoding="utf-8"), path


def test_the_page_says_what_the_model_says(home, written):
    model = read_model(home / "graph.h5")
    words = Page(written[0]).words
    report = model.report
    for told in (
        "graph.h5: 2 components, 4 features", "VP-EM over split features", "cycle", "90 rows",
        f"{report['log_likelihood']:.6f} per sample",
        f"{report['bic']:.2f}, {report['aic']:.2f}",
        "data.h5", f"vpem {model.versions['vpem']}", "seed 0", "of 1 hop",
        "full covariance in hubs",
        *(f"{weight:.4f}" for weight in report["mixing_weights"]),
        f"{report['communication']['messages']:,}",
    ):  # fmt: skip
        assert told in words, told
    source = read_dataset(home / "data.h5")
    agreement = compare(source.labels, model.mixture.predict(source.X), 2)
    assert f"{agreement.accuracy:.4f}" in words
    assert f"{agreement.adjusted_rand_index:.4f}" in words
    for name in source.feature_names:
        assert name in words


@pytest.mark.parametrize(
    "words",
    ["fit -k 2 --topology cycle --hops 1", "fit -k 2 --split rows --workers 3", "kmeans -k 3",
     "fedem -k 2 --workers 3 --max-iter 3"],
)  # fmt: skip
def test_a_fit_and_its_file_say_the_same(capsys, tmp_path, words):
    name, *options = words.split()
    data = make_labelled(tmp_path / "data.h5")
    told = done(capsys, name, data, *options, "-o", tmp_path / "m.h5").out
    shown = done(capsys, "model", "show", tmp_path / "m.h5").out
    facts = ("data", "mixture", "log-likelihood", "BIC, AIC", "inertia", "iterations", "network")
    lines = [" ".join(line.split()) for line in told.splitlines()]
    lines = [line for line in lines if line.startswith(facts)]
    assert len(lines) >= 4
    assert set(lines) <= {" ".join(line.split()) for line in shown.splitlines()}


def test_results_come_first_and_settings_last(written):
    page = Page(written[0])
    listed = [attrs["href"][1:] for attrs in page.all("a")]
    sections = [name for name in listed if not name.startswith("picture-")]
    assert sections == ["warnings", "components", "quality", "parameters", "course", "hubs",
                        "sent", "fitted", "command"]  # fmt: skip
    assert listed[2:4] == ["picture-profile", "picture-projection"]
    assert "differs most in" in page.words


LEADS = {
    "graph": r"2 components of 90 rows: the largest, component \d, has \d\d % of the rows; "
    r"components differ most in .* and .*\. Fitted by VP-EM over split features\.",
    "one": r"One component of 90 rows\. Fitted by VP-EM .*",
    "kmeans": r"3 clusters of 90 rows: the largest, cluster \d, has \d\d % of the rows; clusters "
    r"differ most in .* and .*\. Fitted by k-means over split rows\.",
}


@pytest.mark.parametrize("name", LEADS)
def test_all_begins_with_a_sentence_of_what_was_found(home, name):
    saved = read_saved(fitted(home, name))
    lead = contents_of(saved).lead
    assert re.fullmatch(LEADS[name], lead)
    if name != "one":
        first = saved.answer.weights.argmax()
        assert f"{saved.noun} {first}, has {100 * saved.answer.weights[first]:.0f} %" in lead
        assert saved.feature_names[saved.answer.telling[0]] in lead


def test_the_only_pair_of_two_features_is_drawn_once(capsys, tmp_path):
    data = make_labelled(tmp_path / "two.h5", names=("age", "weight"))
    run(capsys, "fit", data, "--agents", "1", "-k", "2", "-o", tmp_path / "two.model.h5")
    run(capsys, "report", tmp_path / "two.model.h5", data, "-o", tmp_path / "two.html")
    listed = [attrs["href"] for attrs in Page((tmp_path / "two.html").read_text()).all("a")]
    assert "#picture-projection" in listed
    assert "#picture-pairs" not in listed


def test_what_did_not_converge_is_warned_of(home, written):
    assert "has not converged: it still changed after 6 iterations" in Page(written[0]).words
    saved = read_saved(fitted(home, "one"))
    said = {section.name: section.items for section in contents_of(saved).sections}
    assert "warnings" not in said
    assert said["course"] == ["No warnings were given."]


def test_the_page_needs_nothing_else(written):
    page = Page(written[0])
    assert not {tag for tag, _ in page.elements} & {
        "script", "link", "iframe", "object", "embed", "base", "form", "svg",
    }  # fmt: skip
    for tag, attrs in page.elements:
        for name, value in attrs.items():
            assert not name.startswith("on")
            if name in ("src", "href", "action", "data", "srcset", "poster"):
                allowed = ("data:image/svg+xml;base64,", "data:image/png;base64,", "#")
                assert value.startswith(allowed), (tag, name)
    outside = re.sub(r"base64,[A-Za-z0-9+/=]+", "", written[0])
    assert not re.search(r"https?:|//|@import|url\(", outside)
    policy = next(attrs for attrs in page.all("meta") if "http-equiv" in attrs)
    assert policy["content"].startswith("default-src 'none'")


def test_pictures_are_sound_and_told_in_words(written):
    pictures = Page(written[0]).all("img")
    assert len(pictures) == 10
    for attrs in pictures:
        assert len(attrs["alt"]) > 30
        kind, content = re.fullmatch(r"data:image/([a-z+]+);base64,(.*)", attrs["src"]).groups()
        if kind == "svg+xml":
            root = ET.fromstring(base64.b64decode(content))
            assert not [node for node in root.iter() if node.tag.endswith("}script")]
            for node in root.iter():
                for name, value in node.attrib.items():
                    if name.endswith("href"):
                        assert value.startswith(("#", "data:image/png;base64,"))


def test_headings_and_anchors_are_in_order(written):
    page = Page(written[0])
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    there = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(there) == len(set(there))
    assert {attrs["href"][1:] for attrs in page.all("a")} <= set(there)
    assert page.all("html")[0]["lang"] == "en"
    assert all("scope" in attrs for attrs in page.all("th"))
    assert "@media print" in written[0]


def test_hostile_names_are_text(capsys, tmp_path):
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
    page = Page(path.read_text(encoding="utf-8"))
    assert not page.all("script") + page.all("b") + page.all("i") + page.all("u") + page.all("s")
    assert all(set(attrs) == {"src", "alt"} for attrs in page.all("img"))
    assert all(attrs["src"].startswith("data:") for attrs in page.all("img"))
    for name in HOSTILE[:3]:
        assert name in " ".join(page.said)
    assert "\x1b" not in path.read_text(encoding="utf-8")
    assert "<hostile>.h5: 2 components" in page.words


def test_text_of_a_page_is_escaped_and_in_one_line():
    assert (
        text("<a href='x'>&\n\x00") == "&lt;a href=&#x27;x&#x27;&gt;&amp; \N{REPLACEMENT CHARACTER}"
    )
    shown = show_item(Table([("<", ">")], ("a", "b")))
    assert '">&lt;</th><td class="n" style="text-align: right">&gt;</td>' in shown


@pytest.mark.parametrize("name", ["rows", "fedem", "kmeans", "grid", "star"])
def test_the_command_fits_the_same_again(home, capsys, tmp_path, name):
    import shlex

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


def test_what_cannot_be_drawn_is_said(capsys, home, tmp_path):
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


def test_what_is_not_drawn_is_said_in_options(capsys, home, tmp_path):
    model, data = fitted(home, "graph"), tmp_path / "plain.h5"
    write_dataset(data, replace(read_dataset(home / "data.h5"), labels=None))
    result = done(capsys, "report", model, data, "-o", tmp_path / "r.html", "--json")
    why = f"{data} has no labels to hold components against; name where they are with --labels"
    assert result.err.splitlines()[1:] == [f"note: no picture of confusion: {why}"]
    assert result.json["not_drawn"] == [f"confusion: {why}"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-o", "{out}/r.pdf"), "reports are written to .html or .htm files"),
        (("-o", "{out}/there.html"), "exists"),
        (("{out}/none.h5", "-o", "{out}/r.html"), "none.h5"),
        (("--labels", "x", "-o", "{out}/r.html"), "--labels is about the data"),
    ],
    ids=["ending", "exists", "no data", "labels"],
)
def test_errors(capsys, home, tmp_path, words, sentence):
    (tmp_path / "there.html").write_text("mine")
    before = listing(tmp_path)
    model = fitted(home, "graph")
    result = run(capsys, "report", model, *(word.format(out=tmp_path) for word in words))
    assert result.code == 2
    assert sentence in result.sentence
    assert listing(tmp_path) == before
