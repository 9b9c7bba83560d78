"""`vpem saem` is the function of the library; its fits at work: predict, plot and report."""

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
import pyarrow as pa
import pytest
from pyarrow import parquet

import vpem_cli
from vpem.errors import InputError
from vpem.pictures.saem import draw_curves
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals, write_individuals
from vpem.saem.individuals import from_long, from_matrix
from vpem.saem.models.linear import LinearModel
from vpem.saem.prediction import Predictor
from vpem.saem.structures.formulas import FORMULAS

from .cli_support import ROOT, done, run
from .tables import each

BOYS, DOSES = ROOT / "data" / "oxford_boys.csv", ROOT / "data" / "theophylline.csv"
SHORT = (
    "--iterations", "12", "--burn-in", "6", "--tol", "0", "--conditional-draws", "8",
    "--importance-draws", "40", "--chains", "2",
)  # fmt: skip
SAME = {
    "n_iter": 12, "burn_in": 6, "tol": 0.0, "n_conditional": 8, "n_importance": 40, "n_chains": 2,
}  # fmt: skip


def fitted(capsys, *words, data=BOYS):
    """The report of a quick fit, by default of the boys."""
    return done(capsys, "saem", data, *SHORT, "--json", *words).json


def table(path, **columns):
    """Write a CSV table."""
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def rows_of(path):
    with open(path) as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Files of individuals, and what is in them."""
    home, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    blobs = rng.standard_normal((40, 2)) + 3.0 * (np.arange(40) % 2)[:, None]
    items = rng.standard_normal((60, 6)) + rng.standard_normal((60, 1))
    made = {}
    for name, X in (("blobs", blobs), ("items", items)):
        made[name] = home / f"{name}.h5", from_matrix(X)
        write_individuals(*made[name])
    doses = read_individuals(DOSES)
    kept = doses.times > 0
    columns = (doses.ids[doses.individual_of][kept], doses.times[kept], doses.values[kept],
               doses.covariates["dose"][kept])  # fmt: skip
    names = dict(zip(("patient", "hours", "conc", "amt"), columns, strict=True))
    late = table(home / "late.csv", **names, sex=["f"] * kept.sum())
    made["late"] = late, from_long(*columns[:3], {"dose": columns[3]})
    return made | {"boys": (BOYS, read_individuals(BOYS)), "doses": (DOSES, doses)}


NAMES = ("--id", "patient", "--time", "hours", "--value", "conc", "--covariates", "dose=amt")
CALLS = {  # what is in the source, words, options of the function, and the sampler that is taken
    "compressed": ("boys", "linear", "--devices 5 --compress topk:0.4 --feedback error "
                   "--participation 0.6 --decay 0.8",
                   {"devices": 5, "codec": "topk:0.4", "feedback": "error", "participation": 0.6,
                    "decay": 0.8}, "exact"),
    "models": ("boys", "linear", "--devices 3 --average models --shares devices --sampler mala "
               "--sampler-steps 2 --target 0.6 --step-size 0.8 --no-precondition",
               {"devices": 3, "average": "models", "shares": "devices", "sampler": "mala",
                "sampler_options": {"n_steps": 2, "target": 0.6, "step": 0.8,
                                    "precondition": False}}, "mala"),
    "langevin": ("boys", "linear", "--slopes none --sampler langevin --gradient-compress "
                 "qsgd:4bits --step-size 0.3 --step-decay 0.2 --threads 1 --level 0.8",
                 {"model_options": {"slopes": ()}, "sampler": "langevin", "level": 0.8,
                  "gradient_codec": "qsgd:4bits",
                  "sampler_options": {"step": 0.3, "decay": 0.2}}, "langevin"),
    "what varies": ("doses", "one-compartment",
                    "--random ka,cl --covariance full --first 0.4,-3.2,-2.4 --threads 2",
                    {"model_options": {"random": ("ka", "cl"), "covariance": "full",
                                       "first": (0.4, -3.2, -2.4)}}, "metropolis"),
    "proportional": ("late", "one-compartment", f"--error proportional {' '.join(NAMES)}",
                     {"model_options": {"error": "proportional"}}, "metropolis"),
    "mixture": ("blobs", "gmm", "-k 3 --init-individuals 0,1,4 --reg-covar 0.01",
                {"model_options": {"n_components": 3, "rows": [0, 1, 4], "reg_covar": 0.01}},
                "exact"),
    "bifactor": ("items", "bifactor", "--groups 0,0,0,1,1,1 --sampler exact",
                 {"model_options": {"groups": [0, 0, 0, 1, 1, 1]}, "sampler": "exact"}, "exact"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_it_is_the_function(capsys, sources, tmp_path, name):
    source, model, words, options, sampler = CALLS[name]
    path, data = sources[source]
    more = ("--model", model, *words.split(), "--individuals", tmp_path / "i.csv", "--force")
    (tmp_path / "i.csv").write_text("kept")
    found, wanted = fitted(capsys, *more, data=path), fit_saem(data, model, **SAME | options)
    assert found["settings"]["sampler"] == wanted.settings["sampler"] == sampler
    assert found["estimates"] == wanted.estimates
    for key in ("value", "error"):
        assert found["log_likelihood"][key] == getattr(wanted.log_likelihood, key)
    assert found["communication"]["bytes"] == wanted.ledger.bytes
    assert found["bytes_by_iteration"] == wanted.bytes.tolist()
    given = wanted.given
    if model == "gmm":
        assert (found["acceptance"], found["shrinkage"]) == (None, None)
    else:
        latents = zip(wanted.model.latents, given.shrinkage, strict=True)
        assert found["shrinkage"] == dict(latents)
    rows = rows_of(tmp_path / "i.csv")
    for place, (one, row) in enumerate(zip(found["individuals"], rows, strict=True)):
        assert row["id"] == one["id"]
        if model == "gmm":
            assert one["probabilities"] == wanted.probabilities[place].tolist()
            assert int(row["component"]) == one["component"] == np.argmax(one["probabilities"])
            continue
        assert ("acceptance" in row) == (sampler in ("metropolis", "mala"))
        assert one["acceptance"] == (float(row["acceptance"]) if "acceptance" in row else None)
        for latent, mean in zip(wanted.model.latents, given.means[place], strict=True):
            told = one["latents"][latent]
            assert float(row[latent]) == told["mean"] == mean
            assert float(row[f"{latent} upper"]) == told["upper"] > told["lower"]


# ---- what a person is told ----------------------------------------------------------------------


def test_whether_it_has_converged(capsys):
    words = ("saem", BOYS, *SHORT, "--average", "models", "--strict")
    result = run(capsys, *words, "--tol", "1e-9", "--window", "3", "--devices", "2")
    assert result.code == 3
    assert "6 burn-in, not converged, " in result.out
    assert "is farthest from where it settles, about" in result.err
    assert "vpem: warning: SAEM has not converged in 12 iterations" in result.err
    few = run(capsys, *words, "--tol", "0.1", "--json")
    assert (few.code, few.json["change"], few.json["converged"]) == (3, None, False)
    assert len(few.json["warnings"]) == 1
    assert "are looked at from iteration 106 on" in few.err
    found = done(capsys, *words, "--tol", "1", "--window", "2", "--json").json
    assert (found["converged"], found["iterations"]) == (True, 10)
    assert found["change"] < 1


def test_what_has_no_standard_errors_and_what_does_not_vary(capsys, tmp_path):
    # Two rows an individual: nothing is left over.
    data = table(tmp_path / "d.csv", id=[1, 1, 2, 2], time=[1, 2, 1, 2], value=[3, 2, 4, 2])
    result = done(capsys, "saem", data, *SHORT, "--json")
    assert set(result.json["standard_errors"].values()) == {None}
    assert "there are no standard errors" in result.err
    assert len(result.err.splitlines()) == 1
    assert " -\n" in done(capsys, "saem", data, *SHORT).out
    rng = np.random.default_rng(3)
    lines = [(one, item, rng.normal()) for one in range(16) for item in range(1, 4)
             if rng.random() < 0.75]  # fmt: skip
    columns = dict(zip(("id", "time", "value"), zip(*lines, strict=True), strict=True))
    gaps = table(tmp_path / "gaps.csv", **columns)
    words = ("--model", "gmm", "-k", 2, "--missing", "marginalize", "--iterations", 12)
    said = done(capsys, "saem", gaps, *words, "--burn-in", 4).err
    assert "those of the others" in said
    assert "take more iterations or draws, or a simpler model" in said


# ---- what is refused ----------------------------------------------------------------------------


# ---- columns of other names ---------------------------------------------------------------------

FAST = (
    "--iterations", "10", "--tol", "0", "--conditional-draws", "4", "--importance-draws", "20",
    "--chains", "1",
)  # fmt: skip
COLUMNS = {"id": "patient", "time": "hours", "value": "conc", "covariates": {"dose": "amt"}}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The doses of three people, whose columns have names of their own, and a fit to them."""
    home = tmp_path_factory.mktemp("columns")
    head, *rows = DOSES.read_text().splitlines()[:34]
    names = {"id": "patient", "time": "hours", "value": "conc", "dose": "amt"}
    for file, other in (("d", {}), ("who", {"id": "who"}), ("gave", {"dose": "gave"}), ("", None)):
        called = {} if other is None else names | other
        heads = ",".join(called.get(word, word) for word in head.split(","))
        (home / f"{file}.csv").write_text("\n".join([heads, *rows]) + "\n")
    write_individuals(home / "d.h5", read_individuals(home / ".csv"))
    words = ("saem", home / "d.csv", "--model", "one-compartment", *NAMES, *FAST)
    assert vpem_cli.run([*map(str, words), "-o", str(home / "fit.h5"), "--quiet"]) == 0
    return home


COMMANDS = {
    "predict": ("--json",),
    "score": ("--json",),
    "plot": ("--kind", "curves", "--individual", "1", "-o", "c.svg", "--force", "--json"),
}


@each("command", COMMANDS)
def test_the_table_of_the_fit_needs_no_names(capsys, home, monkeypatch, command):
    monkeypatch.chdir(home)
    assert read_saem("fit.h5").settings["columns"] == COLUMNS
    words = (command, "fit.h5", "d.csv", *COMMANDS[command])
    assert done(capsys, *words).json == done(capsys, *words, *NAMES).json


@each("command", ["predict", "plot"])
def test_columns_that_are_not_there_are_told_with_their_options(capsys, home, monkeypatch, command):
    monkeypatch.chdir(home)
    for data, column, told, more in (
        ("who", "patient", "that is --id of the fit; give the name of this column: --id COLUMN",
         ("--id", "who")),
        ("gave", "amt", "of the fit; give the name of this column: --covariates dose=COLUMN",
         ("--covariates", "dose=gave")),
    ):  # fmt: skip
        words = (command, "fit.h5", f"{data}.csv", *COMMANDS[command])
        result = run(capsys, *words)
        assert result.code == 2
        assert f"{data}.csv has no column {column!r}" in result.sentence
        assert told in result.sentence
        done(capsys, *words, *more)


def test_fits_whose_columns_are_others_or_not_known(capsys, home, tmp_path):
    """Data of other names, files of before, and names that are no text."""
    wanted = done(capsys, "score", home / "fit.h5", home / "d.csv", "--json").json
    words = ("score", home / "fit.h5", home / "d.h5", "--json", "--covariates", "dose=dose")
    assert done(capsys, *words).json == wanted
    saved = read_saem(home / "fit.h5")
    for kept in ({"id": 7}, {"covariates": [1]}, {"words": {"x": [1]}}):
        saved.settings["columns"] = kept
        with pytest.raises(InputError, match=f"settings.columns.{next(iter(kept))}"):
            save_saem(tmp_path / "odd.h5", saved)
    del saved.settings["columns"]
    save_saem(tmp_path / "old.h5", saved)
    words = ("score", tmp_path / "old.h5", home / "d.csv")
    assert done(capsys, *words, *NAMES, "--json").json == wanted
    result = run(capsys, *words)
    assert result.code == 2
    assert "has no columns 'id'" in result.sentence
    assert "give the names of these columns: --id COLUMN" in result.sentence


# ---- words of covariates ------------------------------------------------------------------------


@pytest.fixture
def worded(tmp_path, monkeypatch):
    """Folder with twelve people of two sexes and three arms, as CSV and as Parquet."""
    rng = np.random.default_rng(1)
    rows = []
    for one in range(12):
        sex, arm, own = ("Female", "Male")[one % 2], "abc"[one % 3], rng.normal()
        rows += [(f"p{one}", float(t), own + 0.5 * t + 0.3 * rng.normal(), sex, arm, one % 2,
                  int(arm == "b"), int(arm == "c")) for t in range(4)]  # fmt: skip
    names = ("id", "time", "value", "Sex", "arm", "male", "b", "c")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    table(tmp_path / "t.csv", **columns)
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_words_of_covariates_are_told_beside_the_first(worded, capsys):
    fit = ("--error", "proportional", *FAST)
    words = ("saem", "t.csv", "--effects", "intercept:Sex,time:arm", "-o", "words.h5", *fit)
    said = done(capsys, *words).err
    assert "Sex: effects are relative to Female" in said
    assert "arm: effects are relative to a" in said
    effects = "intercept:male,slope:b,slope:c"
    done(capsys, "saem", "t.parquet", "--effects", effects, "-o", "numbers.h5", *fit)
    by_words, by_numbers = read_saem("words.h5"), read_saem("numbers.h5")
    named = ("beta(intercept, Sex=Male)", "beta(slope, arm=b)", "beta(slope, arm=c)")
    assert by_words.parameters[2:5] == named
    assert by_words.theta == pytest.approx(by_numbers.theta, rel=1e-9)
    ask = ("--population", "--times", "0:2:1", "--covariates")
    told = done(capsys, "predict", "words.h5", *ask, "Sex=Male,arm=b").out
    assert done(capsys, "predict", "numbers.h5", *ask, "male=1,b=1,c=0").out == told
    assert run(capsys, "predict", "words.h5", *ask, "Sex=male,arm=b").code == 2
    # What varies is called by its column, or by its coefficient.
    fits = []
    for name in ("slope", "time"):
        done(capsys, "saem", "t.csv", "--random", f"intercept,{name}", "-o", f"{name}.h5", *FAST)
        fits.append(read_saem(f"{name}.h5"))
    assert fits[0].parameters == fits[1].parameters
    assert (fits[0].theta == fits[1].theta).all()


def test_words_among_numbers_and_a_single_word_are_refused(worded, capsys):
    text = (worded / "t.csv").read_text()
    (worded / "mixed.csv").write_text(text.replace("Male", "7", 1))
    (worded / "one.csv").write_text(text.replace("Female", "Male"))
    for file, said in (("mixed", "'Female' for 'Sex', no finite number"), ("one", "one word only")):
        found = run(capsys, "saem", f"{file}.csv", "--effects", "intercept:Sex")
        assert found.code == 2
        assert said in found.err


# ---- fits at work -------------------------------------------------------------------------------

OF_DATA = ["curves", "observed", "residuals", "vpc", "effects"]
QUICK = {"n_iter": 40, "burn_in": 20, "tol": 0.0, "n_conditional": 30, "n_importance": 50}


def fits_of_individuals(fits):
    """Write fits of every model, their data, and files that are none."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((40, 4)) @ (np.eye(4) + 0.5) + 3.0 * (np.arange(40) % 2)[:, None]
    boys, items, pairs = read_individuals(BOYS), from_matrix(table), from_matrix(table[:, :2])
    for name, data in (("items", items), ("pairs", pairs), ("boys", boys)):
        write_individuals(fits / f"{name}.h5", data)
    for name, data, model, options, more in (
        ("growth", boys, "linear", {}, {"devices": 2, "sampler": "metropolis"}),
        ("drug", read_individuals(DOSES), "one-compartment", {}, {}),
        ("factors", items, "bifactor", {"groups": [0, 0, 1, 1]}, {}),
        ("mixture", pairs, "gmm", {"n_components": 2, "rows": [0, 1]}, {}),
        ("own", boys, LinearModel, None, {}),
    ):
        fit = fit_saem(data, model, model_options=options, **QUICK, **more)
        save_saem(fits / f"{name}.h5", fit)
    with h5py.File(fits / "broken.h5", "w") as file:
        file.attrs["encoding-type"] = "vpem-saem"
    shutil.copy(fits / "growth.h5", fits / "odd.h5")
    odd = {"settings": {"devices": 10**12, "burn_in": "x\x1b[31m"},
           "communication": {"messages": "many"}}  # fmt: skip
    with h5py.File(fits / "odd.h5", "r+") as file:
        for name, value in odd.items():
            del file[name]
            file[name] = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    fits = tmp_path_factory.mktemp("saem")
    fits_of_individuals(fits)
    return fits


def rows_in(text):
    return list(csv.DictReader(io.StringIO(text)))


# ---- predict ------------------------------------------------------------------------------------


def test_individuals_at_times(capsys, fits, tmp_path):
    who = ("--individual", "9", "--individual", "2", "--times", "0:24:12")
    words = ("predict", fits / "drug.h5", DOSES, *who)
    rows = rows_in(done(capsys, *words).out)
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
    known = rows_in(done(capsys, "predict", fits / "drug.h5", *who).out)
    assert float(known[1]["fitted"]) == pytest.approx(float(rows[1]["fitted"]), rel=0.1)
    boys = read_individuals(BOYS)
    rows = rows_in(done(capsys, "predict", fits / "growth.h5", BOYS).out)
    found = Predictor(read_saem(fits / "growth.h5")).curves(boys)
    assert [row["id"] for row in rows] == boys.ids[boys.individual_of].tolist()
    for name, wanted in (("value", boys.values), ("fitted", found.fitted), ("upper", found.upper)):
        np.testing.assert_array_equal([float(row[name]) for row in rows], wanted)
    told = done(capsys, "score", fits / "growth.h5", BOYS, "--json").json
    value = told["log_likelihood"]["value"]
    assert sum(one["log_likelihood"] for one in told["individuals"]) == pytest.approx(value)
    assert told["aic"] == pytest.approx(12 - 2 * value)


# ---- score, show, export ------------------------------------------------------------------------


# ---- pictures -----------------------------------------------------------------------------------


def words_of(path):
    """Text of a drawing."""
    nodes = ElementTree.parse(path).iter()
    return ["".join(node.itertext()) for node in nodes if node.tag.endswith("}text")]


def test_traces_are_drawn_unless_another_kind_is_asked_for(capsys, fits, tmp_path, monkeypatch):
    path = tmp_path / "t.svg"
    result = done(capsys, "plot", fits / "growth.h5", "-o", path)
    more = f"next, --kind: with DATA: {', '.join(OF_DATA)}"
    assert result.err.splitlines() == [f"wrote {path}", more]
    words = " ".join(words_of(path))
    for name, estimate in read_saem(fits / "growth.h5").estimates.items():
        assert f"{name} {estimate:.4g}" in words
    monkeypatch.setattr("vpem.pictures.figure.render", lambda *_: None)
    asked = ("--kind", "traces", "-o", tmp_path / "n.svg", "--json", "-q")
    told = done(capsys, "plot", fits / "growth.h5", *asked)
    assert (told.json["kind"], told.json["next"], told.err) == ("traces", OF_DATA, "")
    for name in ("mixture", "own"):
        result = done(capsys, "plot", fits / f"{name}.h5", "-o", tmp_path / f"{name}.svg")
        assert "next" not in result.err


def test_curves_of_the_individuals_that_are_wanted(capsys, fits, tmp_path):
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
        told = done(capsys, "plot", fits / "growth.h5", data, *words, "--json")
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


def test_the_page_says_what_the_fit_says(capsys, fits, tmp_path):
    path = tmp_path / "r.html"
    result = done(capsys, "report", fits / "growth.h5", BOYS, "-o", path)
    assert result.err == f"wrote {path}\n"
    page, saved = path.read_text(encoding="utf-8"), read_saem(fits / "growth.h5")
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
    score = done(capsys, "score", fits / "growth.h5", BOYS, "--json").json["log_likelihood"]
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
def test_a_page_without_data_and_of_other_models(capsys, fits, undrawn, tmp_path, name, reason):
    path = tmp_path / f"{name}.html"
    told = done(capsys, "report", fits / f"{name}.h5", "-o", path, "--json", "-q")
    assert (told.json["report"], told.err) == (str(path), "")
    assert [reason in one for one in told.json["not_drawn"]] == [True] * len(OF_DATA)
    text = text_of(path.read_text(encoding="utf-8"))
    assert "Not drawn" in text
    assert "No data were given" in text
    assert ("shrinkage" in text) == (name != "mixture")


def test_warnings_come_first_and_hostile_words_are_text(capsys, fits, undrawn, tmp_path):
    saved = read_saem(fits / "growth.h5").saved
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


def test_formulas_have_the_names_that_help_says(capsys):
    told = " ".join(done(capsys, "saem", "--help-all").out.split())
    assert f"a formula ({', '.join(FORMULAS)})" in told
