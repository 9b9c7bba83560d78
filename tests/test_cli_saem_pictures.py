"""`vpem plot` and `vpem report` of fits of SAEM: what is drawn and said is what the fit says."""

import base64
import re
import shutil
from html import unescape
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest

from vpem.errors import InputError
from vpem.pictures.saem import draw_curves
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals, write_individuals
from vpem.saem.individuals import from_matrix
from vpem.saem.models.linear import LinearModel
from vpem.saem.prediction import Predictor

from .cli_support import ROOT, done, listing, run
from .pictures_support import fitted, shared_folder
from .tables import each_once

BOYS = ROOT / "data" / "oxford_boys.csv"
OF_DATA = ["curves", "observed", "residuals", "vpc", "effects"]
QUICK = {"n_iter": 20, "burn_in": 10, "tol": 0.0, "n_conditional": 10, "n_importance": 20}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Fits of several models, a mixture, and data."""
    home = tmp_path_factory.mktemp("saem")
    shutil.copy(fitted(shared_folder(tmp_path_factory), "graph"), home)
    boys = read_individuals(BOYS)
    table = np.random.default_rng(0).standard_normal((40, 4))
    items = from_matrix(table + 3.0 * (np.arange(40) % 2)[:, None])
    pairs = from_matrix(items.values.reshape(40, 4)[:, :2])
    write_individuals(home / "items.h5", items)
    write_individuals(home / "boys.h5", boys)
    for name, data, model, options in (
        ("growth", boys, "linear", {}),
        ("factors", items, "bifactor", {"groups": [0, 0, 1, 1]}),
        ("mixture", pairs, "gmm", {"n_components": 2, "rows": [0, 1]}),
        ("own", boys, LinearModel, None),
    ):
        how = {"devices": 2, "sampler": "metropolis"} if name == "growth" else {}
        fit = fit_saem(data, model, model_options=options, **how, **QUICK)
        save_saem(home / f"{name}.h5", fit)
    return home


def words_of(path):
    """Text of a drawing."""
    return [
        "".join(node.itertext())
        for node in ElementTree.parse(path).iter()
        if node.tag.endswith("}text")
    ]


# ---- pictures -----------------------------------------------------------------------------------


def test_traces_are_drawn_unless_another_kind_is_asked_for(capsys, home, tmp_path):
    path = tmp_path / "t.svg"
    result = done(capsys, "plot", home / "growth.h5", "-o", path)
    assert result.err.splitlines() == [
        f"wrote {path}",
        f"next, --kind: with DATA: {', '.join(OF_DATA)}",
    ]
    words = " ".join(words_of(path))
    for name, estimate in read_saem(home / "growth.h5").estimates.items():
        assert f"{name} {estimate:.4g}" in words
    named = tmp_path / "n.svg"
    told = done(capsys, "plot", home / "growth.h5", "--kind", "traces", "-o", named, "--json", "-q")
    assert (told.json["kind"], told.json["next"], told.err) == ("traces", OF_DATA, "")
    assert named.read_bytes() == path.read_bytes()


def test_curves_of_the_individuals_that_are_wanted(capsys, home, tmp_path):
    path = tmp_path / "c.svg"
    words = ("plot", home / "growth.h5", BOYS, "--kind", "curves", "-o", path)
    result = done(capsys, *words, "--individual", 7, "--individual", 3)
    assert result.err.splitlines()[1:] == [f"next, --kind: traces, {', '.join(OF_DATA[1:])}"]
    shown = words_of(path)
    assert {"7", "3", "measured", "population", "95 % interval of the curve"} <= set(shown)
    assert "2 of 2 individuals" in done(
        capsys, *words, "--individual", 7, "--individual", 3, "--force", "--json", "-q"
    ).json["description"]  # fmt: skip


def test_columns_of_other_names(capsys, home, tmp_path):
    text = BOYS.read_text().splitlines()
    heads = text[0].split(",")
    other = [{"id": "who", "time": "when", "value": "what"}.get(head, head) for head in heads]
    (tmp_path / "b.csv").write_text("\n".join([",".join(other), *text[1:]]) + "\n")
    names = ("--id", "who", "--time", "when", "--value", "what", "--individual", 3)
    made = []
    for data, more in ((BOYS, ("--individual", 3)), (tmp_path / "b.csv", names)):
        path = tmp_path / f"{len(more)}.svg"
        done(capsys, "plot", home / "growth.h5", data, "--kind", "curves", "-o", path, *more)
        made.append(set(words_of(path)))
    assert made[0] - made[1] == {"time", "value"}
    assert made[1] - made[0] == {"when", "what"}


def test_curves_of_covariates_that_change_in_time_are_at_the_rows(capsys, tmp_path):
    first, *lines = BOYS.read_text().splitlines()[:37]
    squares = [f"{line},{float(line.split(',')[1]) ** 2}" for line in lines]
    (tmp_path / "b.csv").write_text("\n".join([f"{first},square", *squares]) + "\n")
    boys = read_individuals(tmp_path / "b.csv")
    fit = fit_saem(boys, "linear", model_options={"slopes": ["time", "square"]}, **QUICK)
    lines = draw_curves(fit, boys).figure.axes[1].lines
    rows = slice(*boys.first[1:3])
    np.testing.assert_array_equal(lines[1].get_xdata(), boys.times[rows])
    expected = Predictor(fit).curves(boys).fitted[rows]
    np.testing.assert_allclose(lines[1].get_ydata(), expected)
    with pytest.raises(InputError, match="curves at the times of its rows only"):
        Predictor(fit).curves(boys, times=[0.0])


@each_once(name=["factors", "mixture", "own"], picture=[("pdf", b"%PDF-"), ("png", b"\x89PNG")])
def test_traces_of_every_model(capsys, home, tmp_path, name, picture):
    ending, begin = picture
    result = done(capsys, "plot", home / f"{name}.h5", "-o", tmp_path / f"t.{ending}")
    assert "next" not in result.err
    assert (tmp_path / f"t.{ending}").read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("growth", "--kind", "history"), "history is drawn of mixtures and clusters, and"),
        (
            ("growth", "--kind", "curves"),
            "the picture shows individuals; give the data after the model",
        ),
        (("growth", "--kind", "trace"), "(did you mean 'traces'?)"),
        (("growth", "{boys}", "--labels", "x"), "--labels is for mixtures and clusters"),
        (("growth", "{boys}", "--dataset", "x"), "--dataset is for mixtures and clusters"),
        (("growth", "--features", "x"), "--features is for mixtures and clusters"),
        (("growth", "--id", "who"), "--id is about the data, but none are named"),
        (("growth", "--individual", "3"), "--individual is about the data"),
        (("growth", "{boys}", "--kind", "curves", "--individual", "99"), "has no individual '99'"),
        (("growth", "{boys}", "--id", "who"), "--id is about DATA, of which this kind of picture"),
        (("growth", "{boys}", "--id", "who", "--kind", "curves"), "--id name columns of a CSV tab"),
        (("factors", "{items}", "--kind", "curves"), "have no curves over time; take --kind trac"),
        (("mixture", "{items}", "--kind", "curves"), "have no curves over time; take --kind trac"),
        (("own", "{boys}", "--kind", "curves"), "a user's own model, but not the model"),
        (("graph", "--kind", "traces"), "traces is drawn of fits of SAEM, and"),
        (("graph", "--kind", "curves"), "curves is drawn of fits of SAEM, and"),
        (("graph", "--individual", "3"), "--individual is about the data"),
        (("graph", "--covariates", "x"), "--covariates is about the data"),
        (("broken",), "broken.h5"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(capsys, home, tmp_path, words, sentence):
    with h5py.File(tmp_path / "broken.h5", "w") as file:
        file.attrs["encoding-type"] = "vpem-saem"
    before = listing(tmp_path)
    name, *rest = words
    folder = tmp_path if name == "broken" else home
    places = {"items": home / "items.h5", "boys": home / "boys.h5"}
    given = [word.format(**places) for word in rest]
    result = run(capsys, "plot", folder / f"{name}.h5", *given, "-o", tmp_path / "p.png")
    assert (result.code, result.out) == (2, "")
    assert sentence in result.sentence
    assert listing(tmp_path) == before


# ---- the page -----------------------------------------------------------------------------------


def text_of(page):
    """What a reader reads."""
    body = re.sub("base64,[A-Za-z0-9+/=]+", "", page).partition("<header>")[2]
    return " ".join(unescape(re.sub("<[^>]+>", " ", body)).split())


def test_the_page_says_what_the_fit_says(capsys, home, tmp_path):
    path = tmp_path / "r.html"
    result = done(capsys, "report", home / "growth.h5", BOYS, "-o", path)
    assert result.err == f"wrote {path}\n"
    page, saved = path.read_text(encoding="utf-8"), read_saem(home / "growth.h5")
    text, likelihood = text_of(page), saved.log_likelihood
    for name, error in saved.errors.items():
        assert f"{name} {saved.estimates[name]:.5g} {error:.3g}" in text
    for told in (
        "growth.h5: linear, 6 parameters, 26 individuals", "26 individuals, 234 rows",
        f"Estimates of 26 individuals: intercept {saved.theta[0]:.4g} (s.e. ", "and 2 more. Fitted",
        f"log-likelihood {likelihood.value:.3f}",
        "20, of which 10 burn-in, convergence not checked", "of the moves",
        "sums at the server", "the first 12 of 26 individuals are drawn",
        f"{saved.communication['messages']:,}", *(f"{share:.3f}" for share in saved.shrinkage),
    ):  # fmt: skip
        assert told in text, told
    score = done(capsys, "score", home / "growth.h5", BOYS, "--json").json["log_likelihood"]
    assert f"log-likelihood, total {score['value']:.4f}" in text
    pictures = re.findall("<img src='data:image/svg[+]xml;base64,([^']+)' alt='([^']+)'", page)
    assert len(pictures) == 1 + len(OF_DATA)
    for content, alt in pictures:
        assert ElementTree.fromstring(base64.b64decode(content)).tag.endswith("svg")
        assert len(alt) > 30


def test_a_page_without_data_and_of_other_models(capsys, home, tmp_path):
    for name, reason in (
        ("growth", "give the data after the model"),
        ("mixture", "have no curves over time"),
        ("own", "but not the model"),
    ):
        path = tmp_path / f"{name}.html"
        told = done(capsys, "report", home / f"{name}.h5", "-o", path, "--json", "-q")
        assert (told.json["report"], told.err) == (str(path), "")
        assert [reason in one for one in told.json["not_drawn"]] == [True] * len(OF_DATA)
        text = text_of(path.read_text(encoding="utf-8"))
        assert "Not drawn" in text
        assert "No data were given" in text
        assert ("shrinkage" in text) == (name != "mixture")


def test_warnings_come_first_and_hostile_words_are_text(capsys, home, tmp_path):
    from dataclasses import replace

    saved = read_saem(home / "growth.h5").saved
    evil = "<script>alert(1)</script>"
    other = replace(
        saved,
        settings={**saved.settings, "tol": 1e-3, "data": evil, "sampler": evil, "codec": evil},
        grounds=evil,
        parameters=(evil, *saved.parameters[1:]),
        standard_errors=np.full(6, np.nan),
        shrinkage=np.array([0.1, 0.95]),
        communication={},
        names=("$x_1$", *saved.names[1:]),
    )
    save_saem(tmp_path / "evil.h5", other)
    done(capsys, "report", tmp_path / "evil.h5", "-o", tmp_path / "r.html", "-q")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    text = text_of(page)
    assert "<script" not in page
    assert text.count(evil) >= 3
    assert f"has not converged in 20 iterations: {evil}." in text
    assert "no standard errors" in text
    assert "slope hardly varies" in text
    assert "does not say what was sent" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("growth", "--labels", "x"), "--labels is about the data"),
        (("growth", "--id", "x"), "--id is about the data"),
        (("graph", "--time", "x"), "--time is about the data"),
    ],
    ids=["labels", "id", "mixture"],
)
def test_pages_that_are_refused(capsys, home, tmp_path, words, sentence):
    result = run(capsys, "report", home / f"{words[0]}.h5", *words[1:], "-o", tmp_path / "r.html")
    assert result.code == 2
    assert sentence in result.sentence
    assert not listing(tmp_path)
