"""Fits of SAEM at work on the command line: predict, score, show, export, plot and report."""

import base64
import csv
import io
import json
import re
import shutil
from dataclasses import replace
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

from .cli_support import ROOT, done
from .tables import each

DATA = ROOT / "data"
BOYS, DRUG = DATA / "oxford_boys.csv", DATA / "theophylline.csv"
OF_DATA = ["curves", "observed", "residuals", "vpc", "effects"]
QUICK = {"n_iter": 40, "burn_in": 20, "tol": 0.0, "n_conditional": 30, "n_importance": 50}


def fits_of_individuals(home):
    """Write fits of every model, their data, and files that are none."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((40, 4)) @ (np.eye(4) + 0.5) + 3.0 * (np.arange(40) % 2)[:, None]
    boys, items, pairs = read_individuals(BOYS), from_matrix(table), from_matrix(table[:, :2])
    for name, data in (("items", items), ("pairs", pairs), ("boys", boys)):
        write_individuals(home / f"{name}.h5", data)
    for name, data, model, options, more in (
        ("growth", boys, "linear", {}, {"devices": 2, "sampler": "metropolis"}),
        ("drug", read_individuals(DRUG), "one-compartment", {}, {}),
        ("factors", items, "bifactor", {"groups": [0, 0, 1, 1]}, {}),
        ("mixture", pairs, "gmm", {"n_components": 2, "rows": [0, 1]}, {}),
        ("own", boys, LinearModel, None, {}),
    ):
        fit = fit_saem(data, model, model_options=options, **QUICK, **more)
        save_saem(home / f"{name}.h5", fit)
    with h5py.File(home / "broken.h5", "w") as file:
        file.attrs["encoding-type"] = "vpem-saem"
    shutil.copy(home / "growth.h5", home / "odd.h5")
    odd = {"settings": {"devices": 10**12, "burn_in": "x\x1b[31m"},
           "communication": {"messages": "many"}}  # fmt: skip
    with h5py.File(home / "odd.h5", "r+") as file:
        for name, value in odd.items():
            del file[name]
            file[name] = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("saem")
    fits_of_individuals(home)
    return home


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


# ---- predict ------------------------------------------------------------------------------------


def test_individuals_at_times(capsys, home, tmp_path):
    who = ("--individual", "9", "--individual", "2", "--times", "0:24:12")
    words = ("predict", home / "drug.h5", DRUG, *who)
    rows = rows_of(done(capsys, *words).out)
    places = [(name, time) for name in ("9", "2") for time in (0.0, 12.0, 24.0)]
    assert [(row["id"], float(row["time"])) for row in rows] == places
    told = done(capsys, *words, "--json").json
    assert (told["n_individuals"], told["level"], told["interval_of"]) == (2, 0.95, "curve")
    nine = told["curves"][0]
    assert nine["fitted"] == [float(row["fitted"]) for row in rows[:3]]
    assert nine["lower"][1] < nine["fitted"][1] < nine["upper"][1]
    output = tmp_path / "curves.h5"
    result = done(capsys, *words, "-o", output, "--json")
    assert result.json == {"model": "one-compartment", "n_individuals": 2, "output": str(output)}
    with h5py.File(output) as file:
        assert file.attrs["encoding-type"].decode() == "vpem-saem-curves"
        np.testing.assert_array_equal(file["fitted"][:3], nine["fitted"])
    # Those of the fit need no data.
    known = rows_of(done(capsys, "predict", home / "drug.h5", *who).out)
    assert float(known[1]["fitted"]) == pytest.approx(float(rows[1]["fitted"]), rel=0.1)
    boys = read_individuals(BOYS)
    rows = rows_of(done(capsys, "predict", home / "growth.h5", BOYS).out)
    found = Predictor(read_saem(home / "growth.h5")).curves(boys)
    assert [row["id"] for row in rows] == boys.ids[boys.individual_of].tolist()
    for name, wanted in (("value", boys.values), ("fitted", found.fitted), ("upper", found.upper)):
        np.testing.assert_array_equal([float(row[name]) for row in rows], wanted)
    told = done(capsys, "score", home / "growth.h5", BOYS, "--json").json
    value = told["log_likelihood"]["value"]
    assert sum(one["log_likelihood"] for one in told["individuals"]) == pytest.approx(value)
    assert told["aic"] == pytest.approx(12 - 2 * value)


def test_population(capsys, home):
    words = ("predict", home / "drug.h5", "--population", "--times", "1,5")
    four, eight = (
        done(capsys, *words, "--covariates", f"dose={dose}", "--json").json["curves"][0]
        for dose in (4, 8)
    )
    np.testing.assert_allclose(eight["fitted"], np.multiply(2, four["fitted"]))
    assert four["id"] == "population"
    rows = rows_of(done(capsys, *words, DRUG).out)
    assert len(rows) == 2 * 12
    dose = read_saem(home / "drug.h5").covariates["dose"][0]
    assert float(rows[0]["fitted"]) == pytest.approx(four["fitted"][0] * dose / 4)


def test_latents_and_classes(capsys, home):
    rows = rows_of(done(capsys, "predict", home / "factors.h5", home / "items.h5").out)
    found = Predictor(read_saem(home / "factors.h5")).latents(read_individuals(home / "items.h5"))
    assert [float(row["group 1"]) for row in rows] == found.means[:, 2].tolist()
    told = done(capsys, "predict", home / "growth.h5", "--latents", "--individual", "3", "--json")
    saved = read_saem(home / "growth.h5")
    latents = told.json["individuals"][0]["latents"]
    assert latents["slope"]["mean"] == saved.means[2, 1]
    assert latents["slope"]["lower"] == saved.lower[2, 1]
    words = ("predict", home / "mixture.h5", home / "pairs.h5")
    told = done(capsys, *words, "--proba", "--json").json
    assert sum(told["counts"]) == 40
    np.testing.assert_allclose(np.sum(told["proba"], axis=1), 1)
    assert [int(row["label"]) for row in rows_of(done(capsys, *words).out)] == told["labels"]


# ---- score, show, export ------------------------------------------------------------------------


@each("name", ["growth", "mixture"])
def test_show_and_export(capsys, home, tmp_path, name):
    saved = read_saem(home / f"{name}.h5")
    text = done(capsys, "model", "show", home / f"{name}.h5").out
    assert all(parameter in text for parameter in saved.parameters)
    assert f"{saved.theta[0]:.5g}" in text
    assert ("shrinkage" in text) == (name != "mixture")
    assert ("metropolis, 2 steps, target acceptance 0.44" in text) == (name == "growth")
    told = done(capsys, "model", "show", home / f"{name}.h5", "--json").json
    assert told["log_likelihood"]["value"] == saved.log_likelihood.value
    for ending in ("json", "npz"):
        done(capsys, "model", "export", home / f"{name}.h5", "-o", tmp_path / f"{name}.{ending}")
    plain = json.loads((tmp_path / f"{name}.json").read_text())
    assert plain["estimates"] == told["estimates"] == saved.estimates
    with np.load(tmp_path / f"{name}.npz") as arrays:
        np.testing.assert_array_equal(arrays["theta"], saved.theta)
        np.testing.assert_array_equal(arrays["means"], saved.means)
        assert arrays["parameters"].tolist() == list(saved.parameters)


# ---- pictures -----------------------------------------------------------------------------------


def words_of(path):
    """Text of a drawing."""
    nodes = ElementTree.parse(path).iter()
    return ["".join(node.itertext()) for node in nodes if node.tag.endswith("}text")]


def test_traces_are_drawn_unless_another_kind_is_asked_for(capsys, home, tmp_path, monkeypatch):
    path = tmp_path / "t.svg"
    result = done(capsys, "plot", home / "growth.h5", "-o", path)
    more = f"next, --kind: with DATA: {', '.join(OF_DATA)}"
    assert result.err.splitlines() == [f"wrote {path}", more]
    words = " ".join(words_of(path))
    for name, estimate in read_saem(home / "growth.h5").estimates.items():
        assert f"{name} {estimate:.4g}" in words
    monkeypatch.setattr("vpem.pictures.figure.render", lambda *_: None)
    asked = ("--kind", "traces", "-o", tmp_path / "n.svg", "--json", "-q")
    told = done(capsys, "plot", home / "growth.h5", *asked)
    assert (told.json["kind"], told.json["next"], told.err) == ("traces", OF_DATA, "")
    for name in ("mixture", "own"):
        result = done(capsys, "plot", home / f"{name}.h5", "-o", tmp_path / f"{name}.svg")
        assert "next" not in result.err


def test_curves_of_the_individuals_that_are_wanted(capsys, home, tmp_path):
    """Also of a table whose columns have other names, which the axes show."""
    head, *rows = BOYS.read_text().splitlines()
    for old, new in (("id", "who"), ("time", "when"), ("value", "what")):
        head = head.replace(old, new)
    (tmp_path / "b.csv").write_text("\n".join([head, *rows]) + "\n")
    names = ("--id", "who", "--time", "when", "--value", "what")
    made = []
    for data, more in ((BOYS, ()), (tmp_path / "b.csv", names)):
        path = tmp_path / f"{len(more)}.svg"
        words = ("--kind", "curves", "-o", path, "--individual", 7, "--individual", 3, *more)
        told = done(capsys, "plot", home / "growth.h5", data, *words, "--json")
        assert told.err.splitlines()[1:] == [f"next, --kind: traces, {', '.join(OF_DATA[1:])}"]
        assert "2 of 2 individuals" in told.json["description"]
        made.append(set(words_of(path)))
    assert {"7", "3", "measured", "population", "95 % interval of the curve"} <= made[0]
    assert made[0] - made[1] == {"time", "value"}
    assert made[1] - made[0] == {"when", "what"}


def test_curves_of_covariates_that_change_in_time_are_at_the_rows(tmp_path):
    first, *lines = BOYS.read_text().splitlines()[:37]
    squares = [f"{line},{float(line.split(',')[1]) ** 2}" for line in lines]
    (tmp_path / "b.csv").write_text("\n".join([f"{first},square", *squares]) + "\n")
    boys = read_individuals(tmp_path / "b.csv")
    fit = fit_saem(boys, "linear", model_options={"slopes": ["time", "square"]}, **QUICK)
    lines = draw_curves(fit, boys).figure.axes[1].lines
    rows = slice(*boys.first[1:3])
    np.testing.assert_array_equal(lines[1].get_xdata(), boys.times[rows])
    np.testing.assert_allclose(lines[1].get_ydata(), Predictor(fit).curves(boys).fitted[rows])
    with pytest.raises(InputError, match="curves at the times of its rows only"):
        Predictor(fit).curves(boys, times=[0.0])


# ---- the page -----------------------------------------------------------------------------------


@pytest.fixture
def undrawn(monkeypatch):
    """Let pages have their words only, for tests of these."""
    monkeypatch.setattr("vpem.pictures.page.as_source", lambda figure: "data:,")


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
        "40, of which 20 burn-in, convergence not checked", "of the moves",
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


@each(
    ("name", "reason"),
    [("growth", "give the data after"), ("mixture", "no curves over"), ("own", "not the model")],
)
def test_a_page_without_data_and_of_other_models(capsys, home, undrawn, tmp_path, name, reason):
    path = tmp_path / f"{name}.html"
    told = done(capsys, "report", home / f"{name}.h5", "-o", path, "--json", "-q")
    assert (told.json["report"], told.err) == (str(path), "")
    assert [reason in one for one in told.json["not_drawn"]] == [True] * len(OF_DATA)
    text = text_of(path.read_text(encoding="utf-8"))
    assert "Not drawn" in text
    assert "No data were given" in text
    assert ("shrinkage" in text) == (name != "mixture")


def test_warnings_come_first_and_hostile_words_are_text(capsys, home, undrawn, tmp_path):
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
    assert f"has not converged in 40 iterations: {evil}." in text
    assert "no standard errors" in text
    assert "slope hardly varies" in text
    assert "does not say what was sent" in text
