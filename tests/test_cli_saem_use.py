"""Fits of SAEM at work on the command line: predict, score, model show and export."""

import csv
import io
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals, write_individuals
from vpem.saem.individuals import from_matrix
from vpem.saem.models.linear import LinearModel
from vpem.saem.prediction import Predictor

from .cli_support import done, listing, make_data, run
from .tables import each

DATA = Path(__file__).resolve().parents[1] / "data"
QUICK = {"n_iter": 40, "burn_in": 20, "tol": 0.0, "n_conditional": 30, "n_importance": 50}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Fits of every model, and data."""
    home = tmp_path_factory.mktemp("saem")
    rng = np.random.default_rng(0)
    table = rng.standard_normal((40, 4)) @ (np.eye(4) + 0.5) + 3.0 * (np.arange(40) % 2)[:, None]
    boys, items = read_individuals(DATA / "oxford_boys.csv"), from_matrix(table)
    write_individuals(home / "items.h5", items)
    fits = {
        "growth": (boys, "linear", {}, {"devices": 2}),
        "drug": (read_individuals(DATA / "theophylline.csv"), "one-compartment", {}, {}),
        "factors": (items, "bifactor", {"groups": [0, 0, 1, 1]}, {}),
        "mixture": (items, "gmm", {"n_components": 2, "rows": [0, 1]}, {}),
        "own": (boys, LinearModel, None, {}),
    }
    for name, (data, model, options, more) in fits.items():
        save_saem(
            home / f"{name}.h5", fit_saem(data, model, model_options=options, **QUICK, **more)
        )
    return home


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


# ---- predict ------------------------------------------------------------------------------------


def test_curves_at_the_rows(capsys, home):
    boys = read_individuals(DATA / "oxford_boys.csv")
    rows = rows_of(done(capsys, "predict", home / "growth.h5", DATA / "oxford_boys.csv").out)
    found = Predictor(read_saem(home / "growth.h5")).curves(boys)
    assert list(rows[0]) == ["id", "time", "value", "fitted", "lower", "upper"]
    assert len(rows) == 234
    for name, wanted in (("value", boys.values), ("fitted", found.fitted), ("upper", found.upper)):
        np.testing.assert_array_equal([float(row[name]) for row in rows], wanted)
    assert [row["id"] for row in rows[:10]] == ["1"] * 9 + ["2"]


def test_one_individual_at_times(capsys, home, tmp_path):
    words = ("predict", home / "drug.h5", DATA / "theophylline.csv", "--individual", "9",
             "--individual", "2", "--times", "0:24:12")  # fmt: skip
    rows = rows_of(done(capsys, *words).out)
    assert [(row["id"], float(row["time"])) for row in rows] == [
        (name, time) for name in ("9", "2") for time in (0.0, 12.0, 24.0)
    ]
    told = done(capsys, *words, "--json").json
    assert (told["n_individuals"], told["level"], told["interval_of"]) == (2, 0.95, "curve")
    nine = told["curves"][0]
    assert nine["id"] == "9"
    assert nine["fitted"] == [float(row["fitted"]) for row in rows[:3]]
    assert nine["lower"][1] < nine["fitted"][1] < nine["upper"][1]
    output = tmp_path / "curves.h5"
    result = done(capsys, *words, "-o", output, "--json")
    assert result.json == {"model": "one-compartment", "n_individuals": 2, "output": str(output)}
    assert result.err.endswith(f"wrote 6 rows to {output}\n")
    with h5py.File(output) as file:
        assert file.attrs["encoding-type"].decode() == "vpem-saem-curves"
        np.testing.assert_array_equal(file["fitted"][:3], nine["fitted"])


def test_individuals_of_the_fit_need_no_data(capsys, home):
    known = done(capsys, "predict", home / "drug.h5", "--individual", "9", "--times", "0,12").out
    anew = done(capsys, "predict", home / "drug.h5", DATA / "theophylline.csv", "--individual",
                "9", "--times", "0,12").out  # fmt: skip
    one, two = (float(rows_of(text)[1]["fitted"]) for text in (known, anew))
    assert one == pytest.approx(two, rel=0.1)
    everyone = rows_of(done(capsys, "predict", home / "growth.h5").out)
    assert len(everyone) == 26 * 50


def test_population(capsys, home):
    words = ("predict", home / "drug.h5", "--population", "--times", "1,5")
    four, eight = (
        done(capsys, *words, "--covariates", f"dose={dose}", "--json").json["curves"][0]
        for dose in (4, 8)
    )
    np.testing.assert_allclose(eight["fitted"], 2 * np.array(four["fitted"]))
    assert four["id"] == "population"
    rows = rows_of(done(capsys, *words, DATA / "theophylline.csv").out)
    assert len(rows) == 24
    saved = read_saem(home / "drug.h5")
    assert float(rows[0]["fitted"]) == pytest.approx(
        four["fitted"][0] * saved.covariates["dose"][0] / 4
    )


def test_columns_of_other_names(capsys, home, tmp_path):
    head, *rows = (DATA / "theophylline.csv").read_text().splitlines()[:12]
    renamed = head.replace("id", "who").replace("time", "hour").replace("dose", "amt")
    for name, first in (("usual", head), ("named", renamed)):
        (tmp_path / f"{name}.csv").write_text("\n".join([first, *rows, ""]))
    words = ("--id", "who", "--time", "hour", "--covariates", "dose=amt")
    for command in ("predict", "score"):
        usual = done(capsys, command, home / "drug.h5", tmp_path / "usual.csv", "--json").json
        named = done(capsys, command, home / "drug.h5", tmp_path / "named.csv", *words, "--json")
        assert named.json == usual


def test_factors_and_latents(capsys, home):
    rows = rows_of(done(capsys, "predict", home / "factors.h5", home / "items.h5").out)
    assert len(rows) == 40
    found = Predictor(read_saem(home / "factors.h5")).latents(read_individuals(home / "items.h5"))
    assert [float(row["group 1"]) for row in rows] == found.means[:, 2].tolist()
    told = done(capsys, "predict", home / "growth.h5", "--latents", "--individual", "3", "--json")
    saved = read_saem(home / "growth.h5")
    latents = told.json["individuals"][0]["latents"]
    assert latents["slope"]["mean"] == saved.means[2, 1]
    assert latents["slope"]["lower"] == saved.lower[2, 1]


def test_classes(capsys, home):
    told = done(capsys, "predict", home / "mixture.h5", home / "items.h5", "--proba", "--json").json
    assert sum(told["counts"]) == 40
    np.testing.assert_allclose(np.sum(told["proba"], axis=1), 1)
    rows = rows_of(done(capsys, "predict", home / "mixture.h5", home / "items.h5").out)
    assert [int(row["label"]) for row in rows] == told["labels"]


# ---- score, show, export ------------------------------------------------------------------------


def test_score(capsys, home):
    told = done(capsys, "score", home / "growth.h5", DATA / "oxford_boys.csv", "--json").json
    value = told["log_likelihood"]["value"]
    assert value == pytest.approx(-363, abs=0.5)
    assert sum(one["log_likelihood"] for one in told["individuals"]) == pytest.approx(value)
    assert told["aic"] == pytest.approx(12 - 2 * value)
    assert told["log_likelihood"]["least_effective_draws"] is None
    text = done(capsys, "score", home / "drug.h5", DATA / "theophylline.csv").out
    assert "Monte Carlo error" in text


@pytest.mark.parametrize("name", ["growth", "drug", "factors", "mixture", "own"])
def test_show(capsys, home, name):
    saved = read_saem(home / f"{name}.h5")
    text = done(capsys, "model", "show", home / f"{name}.h5").out
    for parameter in saved.parameters:
        assert parameter in text
    assert f"{saved.theta[0]:.5g}" in text
    assert ("shrinkage" in text) == (name != "mixture")
    told = done(capsys, "model", "show", home / f"{name}.h5", "--json").json
    assert told["estimates"] == saved.estimates
    assert told["encoding-type"] == "vpem-saem"
    assert told["log_likelihood"]["value"] == saved.log_likelihood.value


def test_odd_settings_are_refused(capsys, home, tmp_path):
    odd = {"devices": 10**12, "burn_in": "x\x1b[31m"}
    with h5py.File(home / "growth.h5") as source, h5py.File(tmp_path / "odd.h5", "w") as target:
        for name in source:
            source.copy(name, target)
        target.attrs.update(source.attrs)
        for name, value in (("settings", odd), ("communication", {"messages": "many"})):
            del target[name]
            target[name] = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    refused = run(capsys, "model", "show", tmp_path / "odd.h5")
    assert refused.code == 2
    assert "settings.burn_in must be an integer of at least 0, got 'x" in refused.sentence
    assert "\x1b" not in refused.sentence


def test_export(capsys, home, tmp_path):
    saved = read_saem(home / "growth.h5")
    done(capsys, "model", "export", home / "growth.h5", "-o", tmp_path / "growth.npz")
    with np.load(tmp_path / "growth.npz") as arrays:
        np.testing.assert_array_equal(arrays["theta"], saved.theta)
        np.testing.assert_array_equal(arrays["means"], saved.means)
        assert arrays["parameters"].tolist() == list(saved.parameters)
    done(capsys, "model", "export", home / "mixture.h5", "-o", tmp_path / "mixture.json")
    told = json.loads((tmp_path / "mixture.json").read_text())
    assert told["estimates"] == read_saem(home / "mixture.h5").estimates


# ---- what is wrong ------------------------------------------------------------------------------

BOYS, DRUG = DATA / "oxford_boys.csv", DATA / "theophylline.csv"
REFUSED = {
    "own": (("predict", "own.h5", BOYS), "is a user's own, which a file does not hold"),
    "own score": (("score", "own.h5", BOYS), "is a user's own"),
    "sample": (("sample", "growth.h5"), "no rows are drawn"),
    "evaluate": (("evaluate", "growth.h5", BOYS), "have no labels"),
    "times": (("predict", "growth.h5", "--times", "0:1"), "--times must be from:to:step"),
    "no step": (("predict", "growth.h5", "--times", "0:1:0"), "--times must be"),
    "back": (("predict", "growth.h5", "--times", "1:0:1"), "--times must be"),
    "words": (("predict", "growth.h5", "--times", "noon"), "got 'noon'"),
    "infinite": (("predict", "growth.h5", "--times", "0:1e9:1e-9"), "--times must be"),
    "nobody": (("predict", "growth.h5", "--individual", "27"), "the fit has no individual '27'"),
    "nobody there": (("predict", "growth.h5", BOYS, "--individual", "x"), "no individual 'x'"),
    "twice": (
        ("predict", "growth.h5", "--individual", "2", "--individual", "2"),
        "must name different individuals",
    ),
    "no dose": (("predict", "drug.h5", "--population"), "no covariate 'dose'"),
    "dose": (
        ("predict", "drug.h5", "--population", "--covariates", "dose=much"),
        "such as dose=4.5,weight=70, got 'dose=much'",
    ),
    "negative": (
        ("predict", "drug.h5", "--population", "--covariates", "dose=-1"),
        "a dose that is negative",
    ),
    "before": (("predict", "drug.h5", "--times=-1"), "a time before the dose"),
    "known": (("predict", "drug.h5", "--covariates", "dose=1"), "leave out --covariates"),
    "column": (("predict", "drug.h5", "--time", "hour"), "--time is about the data"),
    "proba": (("predict", "growth.h5", BOYS, "--proba"), "adds probabilities"),
    "both": (("predict", "growth.h5", "--latents", "--population"), "not both"),
    "who": (("predict", "growth.h5", "--individual", "1", "--population"), "leave out"),
    "no curves": (("predict", "factors.h5", "items.h5", "--times", "1"), "is for curves over time"),
    "of latents": (("predict", "growth.h5", "--latents", "--times", "1"), "not both"),
    "residuals of nothing": (("predict", "growth.h5", "--residuals"), "give DATA"),
    "residuals of latents": (("predict", "growth.h5", BOYS, "--residuals", "--latents"), "leave"),
    "residuals of factors": (("predict", "factors.h5", "items.h5", "--residuals"), "is for curves"),
    "classes": (("predict", "mixture.h5"), "give DATA"),
    "other items": (("predict", "factors.h5", BOYS), "factors.h5|items need a group|same"),
    "other data": (("predict", "growth.h5", DATA / "wine.h5"), "is a vpem-dataset file"),
    "inside": (("predict", "growth.h5", BOYS, "--dataset", "X"), "--dataset is for mixtures"),
    "missing": (("score", "growth.h5", BOYS, "--missing", "marginalize"), "is for mixtures"),
    "no dose there": (("score", "drug.h5", BOYS), "has no column 'dose'"),
}


@each("case", REFUSED)
def test_refused_in_a_sentence(capsys, monkeypatch, home, case):
    words, told = REFUSED[case]
    monkeypatch.chdir(home)
    before = listing(home)
    result = run(capsys, *words)
    assert (result.code, result.out) == (2, "")
    assert any(one in result.sentence for one in told.split("|"))
    assert listing(home) == before


def test_mixtures_take_no_options_of_saem(capsys, tmp_path):
    data = make_data(tmp_path / "data.h5")
    done(capsys, "fit", data, "-k", "2", "-o", tmp_path / "m.h5", "--max-iter", "3", "-q")
    model = tmp_path / "m.h5"
    assert "vpem predict needs DATA" in run(capsys, "predict", model).sentence
    for words in (("--individual", "1"), ("--times", "1"), ("--population",), ("--latents",)):
        result = run(capsys, "predict", model, data, *words)
        assert result.code == 2
        assert f"{words[0]} is for fits of SAEM" in result.sentence
    result = run(capsys, "score", model, data, "--time", "hour")
    assert "--time is for fits of SAEM" in result.sentence


def test_never_over_what_it_is_made_from(capsys, home, tmp_path):
    kept = (home / "growth.h5").read_bytes()
    result = run(capsys, "predict", home / "growth.h5", "-o", home / "growth.h5", "--force")
    assert "is the input" in result.sentence
    assert (home / "growth.h5").read_bytes() == kept
