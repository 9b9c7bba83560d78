"""`vpem saem`: the function of the library, by columns of any name, and what it tells."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import vpem_cli
from vpem import InputError, fit_saem
from vpem.saem.formats.fits import read_saem, save_saem
from vpem.saem.formats.individuals import read_individuals, write_individuals
from vpem.saem.individuals import from_long, from_matrix

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
    "seed": ("boys", "linear", "--seed 3", {"seed": 3}, "exact"),
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
    "target": ("boys", "linear", "--target 0.3", {"sampler_options": {"target": 0.3}},
               "metropolis"),
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


def test_what_it_says_is_of_one_piece(capsys, tmp_path):
    """And devices are those of a file; that all keys are there golden results tell."""
    names = [str(number) for number in range(1, 27)]
    held = {"clinic": [1, 3, "5"], "school": [n for n in names if n not in ("1", "3", "5")]}
    (tmp_path / "held.json").write_text(json.dumps(held))
    words = ("--device-individuals", tmp_path / "held.json", "--sampler", "metropolis")
    found = fitted(capsys, *words)
    assert (found["device_names"], found["device_individuals"]) == (["clinic", "school"], [3, 23])
    at_clinic = [one["id"] for one in found["individuals"] if one["device"] == "clinic"]
    assert at_clinic == ["1", "3", "5"]
    assert (found["converged"], found["change"], found["n_samples"]) == (None, None, 234)
    assert {name: trace[-1] for name, trace in found["traces"].items()} == found["estimates"]
    assert {len(trace) for trace in found["traces"].values()} == {13}
    settings = found["settings"]
    assert settings["sampler_options"] == {"n_steps": 2, "target": 0.44}
    assert (settings["n_iter"], settings["burn_in"]) == (12, 6)
    sent = found["communication"]["by_kind"]
    assert sum(kind["bytes"] for kind in sent.values()) == found["communication"]["bytes"]
    rates = found["acceptance"]
    assert 0 < rates["least"] <= rates["mean"] <= rates["most"] < 1
    words = ("saem", BOYS, "--iterations", 10, "--tol", 0, "--json", "--conditional-draws", 2)
    assert done(capsys, *words).json["settings"]["burn_in"] == 4


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


def test_a_model_is_kept_drawn_and_begun_with(capsys, tmp_path):
    model, picture = tmp_path / "m.h5", tmp_path / "t.svg"
    words = ("--output", model, "--traces", picture, "--devices", "3", "--seed", "4")
    found = fitted(capsys, *words)
    assert (found["model"], found["traces_file"]) == (str(model), str(picture))
    saved = read_saem(model)
    assert saved.estimates == found["estimates"]
    assert saved.log_likelihood.value == found["log_likelihood"]["value"]
    assert saved.settings["seed"] == 4
    assert "residual variance" in picture.read_text()
    on = fitted(capsys, "--init-model", model)
    wanted = fit_saem(read_individuals(BOYS), "linear", start=saved.theta, **SAME)
    assert on["estimates"] == wanted.estimates


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
