"""`vpem saem`: what it prints, writes, draws and refuses."""

import csv
import json

import numpy as np
import pytest

from vpem import fit_saem, read_individuals
from vpem.saem.formats.fits import read_saem
from vpem.saem.formats.individuals import write_individuals
from vpem.saem.individuals import from_long

from .cli_support import ROOT, done, listing, run, spawn
from .tables import each

BOYS = ROOT / "data" / "oxford_boys.csv"
DOSES = ROOT / "data" / "theophylline.csv"
SHORT = (
    "--iterations", "12", "--burn-in", "6", "--tol", "0", "--conditional-draws", "8",
    "--importance-draws", "40", "--chains", "2",
)  # fmt: skip
SAME = {
    "n_iter": 12, "burn_in": 6, "tol": 0.0, "n_conditional": 8, "n_importance": 40, "n_chains": 2,
}  # fmt: skip
KEYS = {
    "algorithm", "estimates", "standard_errors", "log_likelihood", "communication", "converged",
    "iterations", "change", "shrinkage", "acceptance", "individuals", "settings", "traces",
    "bytes_by_iteration", "seconds", "warnings", "data", "model", "n_individuals", "n_samples",
    "n_devices", "device_names", "device_individuals",
}  # fmt: skip


FOUR = {"id": [1, 1, 2, 2], "time": [1, 2, 1, 2], "value": [3, 2, 4, 2], "dose": [4, 4, 4, 4]}


@pytest.fixture
def saem(capsys):
    """Function: run `vpem saem --json` on the boys, quickly, and return the object."""

    def call(*words, data=BOYS):
        return done(capsys, "saem", data, *SHORT, "--json", *words).json

    return call


@pytest.fixture
def sentence(capsys, tmp_path):
    """Function: the one sentence of a command that is refused, and writes nothing."""

    def call(*words, data=BOYS, **columns):
        if columns:
            data = table(tmp_path / "data.csv", **columns)
        before = listing(tmp_path)
        result = run(capsys, "saem", data, *SHORT, *words)
        assert result.code == 2
        assert result.out == ""
        assert listing(tmp_path) == before
        return result.sentence

    return call


def table(path, **columns):
    """Write a CSV table."""
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def blobs(n=40, seed=0):
    """Individuals of two features, in two clusters that overlap."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) + 3.0 * (np.arange(n) % 2)[:, None]
    return from_long(np.repeat(np.arange(n), 2), np.tile([0.0, 1.0], n), X.ravel())


def answers(n=60, seed=1):
    """Individuals of six items of two groups."""
    rng = np.random.default_rng(seed)
    general, group = rng.standard_normal((n, 1)), rng.standard_normal((n, 2))
    X = general + 0.8 * np.repeat(group, 3, axis=1) + 0.5 * rng.standard_normal((n, 6))
    return from_long(np.repeat(np.arange(n), 6), np.tile(np.arange(6.0), n), X.ravel())


# ---- what comes out -----------------------------------------------------------------------------


def test_everything_promised_is_there(saem):
    found = saem("--devices", "4", "--sampler", "metropolis")
    assert set(found) >= KEYS
    assert found["algorithm"] == "saem"
    assert set(found["log_likelihood"]) >= {"value", "error"}
    assert list(found["estimates"]) == list(found["standard_errors"]) == list(found["traces"])
    assert found["converged"] is None
    assert found["change"] is None
    assert {len(trace) for trace in found["traces"].values()} == {13}
    assert [trace[-1] for trace in found["traces"].values()] == list(found["estimates"].values())
    assert sum(found["device_individuals"]) == found["n_individuals"] == len(found["individuals"])
    assert found["n_samples"] == 234
    settings = found["settings"]
    assert settings["sampler"] == "metropolis"
    assert settings["sampler_options"] == {"n_steps": 2, "target": 0.44}
    assert (settings["n_iter"], settings["burn_in"], settings["devices"]) == (12, 6, 4)
    sent = found["communication"]["by_kind"]
    assert sum(kind["bytes"] for kind in sent.values()) == found["communication"]["bytes"]
    one = found["individuals"][0]
    assert (one["id"], one["rows"], one["device"]) == ("1", 9, "device 0")
    for latent in one["latents"].values():
        assert latent["lower"] < latent["mean"] < latent["upper"]
        assert latent["sd"] > 0
    rates = found["acceptance"]
    assert 0 < rates["least"] <= rates["mean"] <= rates["most"] < 1


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("--seed", "3"), {"seed": 3}),
        (("--slopes", "none", "--sampler", "exact"),
         {"model_options": {"slopes": ()}, "sampler": "exact"}),
        (("--devices", "5", "--compress", "topk:0.4", "--feedback", "error", "--participation",
          "0.6", "--decay", "0.8"),
         {"devices": 5, "codec": "topk:0.4", "feedback": "error", "participation": 0.6,
          "decay": 0.8}),
        (("--devices", "3", "--average", "models", "--shares", "devices", "--sampler", "mala",
          "--sampler-steps", "2", "--target", "0.6", "--step-size", "0.8", "--no-precondition"),
         {"devices": 3, "average": "models", "shares": "devices", "sampler": "mala",
          "sampler_options": {"n_steps": 2, "target": 0.6, "step": 0.8, "precondition": False}}),
        (("--sampler", "langevin", "--gradient-compress", "qsgd:4bits", "--step-size", "0.3",
          "--step-decay", "0.2", "--threads", "1", "--level", "0.8"),
         {"sampler": "langevin", "gradient_codec": "qsgd:4bits", "level": 0.8,
          "sampler_options": {"step": 0.3, "decay": 0.2}}),
    ],
    ids=["seed", "exact", "compressed", "models", "langevin"],
)  # fmt: skip
def test_it_is_the_function(saem, words, options):
    found = saem(*words)
    wanted = fit_saem(read_individuals(BOYS), "linear", **{**SAME, **options})
    assert found["estimates"] == wanted.estimates
    assert found["log_likelihood"]["value"] == wanted.log_likelihood.value
    assert found["log_likelihood"]["error"] == wanted.log_likelihood.error
    assert found["communication"]["bytes"] == wanted.ledger.bytes
    assert found["bytes_by_iteration"] == wanted.bytes.tolist()
    assert list(found["shrinkage"].values()) == wanted.given.shrinkage.tolist()
    for one, mean in zip(found["individuals"], wanted.given.means, strict=True):
        assert [latent["mean"] for latent in one["latents"].values()] == mean.tolist()


@pytest.mark.parametrize(
    ("words", "options", "taken"),
    [
        ((), {}, "exact"),
        (("--compress", "topk:0.5"), {"codec": "topk:0.5"}, "exact"),
        (("--threads", "2"), {"sampler_options": {"n_threads": 2}}, "exact"),
        (("--target", "0.3"), {"sampler_options": {"target": 0.3}}, "metropolis"),
        (("--sampler-steps", "2"), {"sampler_options": {"n_steps": 2}}, "metropolis"),
        (("--sampler", "metropolis"), {"sampler": "metropolis"}, "metropolis"),
    ],
    ids=["default", "compress", "threads", "target", "steps", "asked"],
)  # fmt: skip
def test_exact_draws_where_there_are_any_and_nothing_else_is_asked_for(saem, words, options, taken):
    found = saem(*words)
    wanted = fit_saem(read_individuals(BOYS), "linear", **SAME, **options)
    assert found["settings"]["sampler"] == wanted.settings["sampler"] == taken
    assert found["estimates"] == wanted.estimates


def test_metropolis_where_there_are_no_exact_draws(saem):
    found = saem("--model", "one-compartment", "--threads", "2", data=DOSES)
    assert found["settings"]["sampler"] == "metropolis"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {}),
        (("--random", "ka,cl", "--covariance", "full", "--first",
          "0.4,-3.2,-2.4"),
         {"random": ("ka", "cl"), "covariance": "full",
          "first": (0.4, -3.2, -2.4)}),
    ],
    ids=["usual", "chosen"],
)  # fmt: skip
def test_one_compartment(saem, words, options):
    found = saem("--model", "one-compartment", *words, data=DOSES)
    wanted = fit_saem(read_individuals(DOSES), "one-compartment", model_options=options, **SAME)
    assert found["estimates"] == wanted.estimates


def test_proportional_errors_and_columns_of_other_names(saem, tmp_path):
    source = read_individuals(DOSES)
    kept = source.times > 0
    who = np.array(source.names)[source.individual_of]
    data = table(
        tmp_path / "d.csv", patient=who[kept], hours=source.times[kept],
        conc=source.values[kept], amt=source.covariates["dose"][kept], sex=["f"] * kept.sum(),
    )  # fmt: skip
    found = saem(
        "--model", "one-compartment", "--error", "proportional", "--id", "patient", "--time",
        "hours", "--value", "conc", "--covariates", "dose=amt", data=data,
    )  # fmt: skip
    same = from_long(
        who[kept],
        source.times[kept],
        source.values[kept],
        {"dose": source.covariates["dose"][kept]},
    )
    wanted = fit_saem(same, "one-compartment", model_options={"error": "proportional"}, **SAME)
    assert found["estimates"] == wanted.estimates


def test_mixtures_of_hdf5(saem, tmp_path):
    write_individuals(tmp_path / "blobs.h5", blobs())
    words = ("--model", "gmm", "-k", "2", "--init-individuals", "0,1", "--reg-covar", "0.01")
    found = saem(*words, "--individuals", tmp_path / "i.csv", data=tmp_path / "blobs.h5")
    options = {"n_components": 2, "rows": [0, 1], "reg_covar": 0.01}
    wanted = fit_saem(blobs(), "gmm", model_options=options, **SAME)
    assert found["estimates"] == wanted.estimates
    assert found["settings"]["sampler"] == "exact"
    assert found["acceptance"] is None
    assert found["shrinkage"] is None
    assert found["log_likelihood"]["error"] == 0
    for one in found["individuals"]:
        assert sum(one["probabilities"]) == pytest.approx(1)
        assert one["component"] == np.argmax(one["probabilities"])
    with open(tmp_path / "i.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["component"]) for row in rows] == [
        one["component"] for one in found["individuals"]
    ]


def test_bifactor(saem, tmp_path):
    write_individuals(tmp_path / "items.h5", answers())
    words = ("--model", "bifactor", "--groups", "0,0,0,1,1,1", "--sampler", "exact")
    found = saem(*words, data=tmp_path / "items.h5")
    options = {"groups": [0, 0, 0, 1, 1, 1]}
    wanted = fit_saem(answers(), "bifactor", model_options=options, sampler="exact", **SAME)
    assert found["estimates"] == wanted.estimates
    assert set(found["shrinkage"]) == {"general", "group 0", "group 1"}


# ---- devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["exact", "metropolis"])
def test_devices_do_not_show(saem, sampler):
    one, *others = (saem("--devices", number, "--sampler", sampler) for number in (1, 4, 13))
    for other in others:
        assert other["estimates"] == pytest.approx(one["estimates"], rel=1e-9)
        wanted = one["log_likelihood"]
        for name in ("value", "error"):
            assert other["log_likelihood"][name] == pytest.approx(wanted[name], rel=1e-7)
        assert other["communication"]["bytes"] > 0
    assert one["communication"]["bytes"] == 0


def test_individuals_of_devices_from_a_file(saem, tmp_path):
    names = [str(number) for number in range(1, 27)]
    held = {"clinic": [1, 3, "5"], "school": [n for n in names if n not in ("1", "3", "5")]}
    (tmp_path / "held.json").write_text(json.dumps(held))
    found = saem("--device-individuals", tmp_path / "held.json", "--sampler", "exact")
    assert found["device_names"] == ["clinic", "school"]
    assert found["device_individuals"] == [3, 23]
    assert [one["id"] for one in found["individuals"] if one["device"] == "clinic"] == [
        "1", "3", "5",
    ]  # fmt: skip
    assert found["estimates"] == pytest.approx(saem("--sampler", "exact")["estimates"], rel=1e-9)


@each(
    ("text", "words"),
    [
        ("{", "is not a JSON file"),
        ("[1]", "must hold"),
        ('{"a": 3}', "must hold"),
        ('{"a": ["1"], "b": ["99"]}', "device 'b' has '99', but no individual is called so"),
        ('{"a": [true]}', "device 'a' has True"),
        ('{"a": ["1", 1]}', "individual '1' is given twice, last to 'a'"),
        ('{"a": ["1"]}', "to no device; every individual must be held by exactly one"),
        ('{"a": []}', "device 'a' holds no individuals"),
    ],
)
def test_device_files_that_are_refused(sentence, tmp_path, text, words):
    (tmp_path / "held.json").write_text(text)
    assert words in sentence("--device-individuals", tmp_path / "held.json")


# ---- what a person sees, and files --------------------------------------------------------------


def test_what_a_person_reads(capsys):
    result = done(capsys, "saem", BOYS, *SHORT, "--devices", "4", "--sampler", "metropolis")
    for words in ("26 individuals, 234 rows", "linear, 6 parameters", "6 to 7 individuals each",
                  "metropolis, 2 steps, target acceptance 0.44", "12, of which 6 burn-in",
                  "RSE %", "-2LL", "var(intercept)", "shrinkage", "of the moves",
                  "messages"):  # fmt: skip
        assert words in result.out
    assert result.err == ""


def test_a_table_of_individuals(saem, tmp_path):
    found = saem("--individuals", tmp_path / "i.csv", "--sampler", "metropolis")
    assert found["individuals_file"] == str(tmp_path / "i.csv")
    with open(tmp_path / "i.csv") as stream:
        rows = list(csv.DictReader(stream))
    for row, one in zip(rows, found["individuals"], strict=True):
        assert row["id"] == one["id"]
        assert float(row["acceptance"]) == one["acceptance"]
        for name, latent in one["latents"].items():
            assert float(row[name]) == latent["mean"]
            assert float(row[f"{name} upper"]) == latent["upper"]


def test_not_converged_says_so(capsys):
    words = (*SHORT, "--tol", "1e-9", "--window", "3", "--devices", "2", "--average", "models")
    result = run(capsys, "saem", BOYS, *words, "--strict")
    assert result.code == 3
    assert "6 burn-in, not converged, " in result.out
    assert "is farthest from where it settles, about" in result.err
    assert "vpem: warning: SAEM has not converged in 12 iterations" in result.err
    result = done(capsys, "saem", BOYS, *words, "--json")
    assert result.json["converged"] is False
    assert result.json["change"] > 1e-9
    assert "of its standard error, more than tol 1e-09" in result.json["grounds"]
    assert len(result.json["warnings"]) == 1


def test_iterations_that_do_not_suffice_to_tell(capsys):
    result = run(
        capsys, "saem", BOYS, *SHORT, "--tol", "0.1", "--average", "models", "--strict", "--json"
    )
    assert result.code == 3
    assert result.json["change"] is None
    assert "are looked at from iteration 106 on" in result.err


def test_converged(saem):
    found = saem("--tol", "1", "--window", "2", "--average", "models", "--strict")
    assert found["converged"] is True
    assert found["iterations"] == 10
    assert found["change"] < 1


def test_fewer_iterations_have_a_shorter_burn_in(capsys):
    words = ("--iterations", "10", "--tol", "0", "--json")
    found = done(capsys, "saem", BOYS, *words, "--conditional-draws", "2").json
    assert found["settings"]["burn_in"] == 4


def test_standard_errors_that_are_not_there(capsys, tmp_path):
    data = table(tmp_path / "d.csv", **FOUR)  # two rows an individual: nothing is left over
    result = done(capsys, "saem", data, *SHORT, "--json")
    assert set(result.json["standard_errors"].values()) == {None}
    assert "there are no standard errors" in result.err
    assert len(result.err.splitlines()) == 1
    assert " -\n" in done(capsys, "saem", data, *SHORT).out


def test_a_parameter_that_does_not_vary_is_told(capsys):
    words = (
        "--model", "one-compartment", "--iterations", "90", "--chains", "1", "--tol", "0",
        "--importance-draws", "10", "--conditional-draws", "20", "--json",
    )  # fmt: skip
    result = done(capsys, "saem", DOSES, *words)
    assert result.json["shrinkage"]["log ke"] > 0.9
    assert "log ke hardly varies between individuals: try --random ka,cl" in result.err


def test_a_model_is_kept_and_drawn(capsys, saem, tmp_path):
    model, picture = tmp_path / "m.h5", tmp_path / "t.svg"
    found = saem("--output", model, "--traces", picture, "--devices", "3", "--seed", "4")
    assert (found["model"], found["traces_file"]) == (str(model), str(picture))
    saved = read_saem(model)
    assert saved.estimates == found["estimates"]
    assert saved.log_likelihood.value == found["log_likelihood"]["value"]
    assert saved.settings["seed"] == 4
    assert "residual variance" in picture.read_text()
    on = saem("--init-model", model)
    wanted = fit_saem(read_individuals(BOYS), "linear", start=saved.theta, **SAME)
    assert on["estimates"] == wanted.estimates
    assert next(iter(on["traces"].values()))[0] == saved.theta[0]
    words = ("--model", "one-compartment", "--init-model", model, *SHORT)
    refused = run(capsys, "saem", DOSES, *words)
    assert refused.code == 2
    assert (
        "the start is linear with 6 parameters, not those of this one-compartment"
        in refused.sentence
    )


def test_what_would_be_overwritten(sentence, tmp_path):
    for flag, name in (("--output", "m.h5"), ("--traces", "t.png")):
        (tmp_path / name).write_text("kept")
        assert "exists" in sentence(flag, tmp_path / name)
    words = ("--output", tmp_path / "a.h5", "--individuals", tmp_path / "a.h5")
    assert "are one file; give two names" in sentence(*words)
    assert "pictures are written to" in sentence("--traces", tmp_path / "t.txt")


def test_as_a_process_of_its_own():
    words = (*SHORT, "--devices", "2", "--json", "--quiet")
    process = spawn("saem", BOYS, *words)
    assert process.returncode == 0
    assert process.stderr == ""
    assert set(json.loads(process.stdout)) >= KEYS


# ---- what is refused ----------------------------------------------------------------------------


@each(
    ("words", "told"),
    [
        (("--model", "linaer"), "--model must be one of"),
        (("--model", "bifactor"), "needs --groups"),
        (("--model", "bifactor", "--groups", "0,x"), "--groups must be numbers with commas"),
        (("--model", "bifactor", "--groups", "none"), "--groups must be numbers with commas"),
        (("--groups", "0,0"), "--groups is for the model bifactor; leave it out"),
        (("-k", "3"), "--components is for the models gmm and lda; leave it out"),
        (("--slopes", "tme"), "has no column 'tme' (did you mean 'time'?)"),
        (("--slopes", "time,time"), "--slopes must differ"),
        (("--value", "heigth"), "has no column 'heigth'"),
        (("--id", "time"), "must be three different columns"),
        (("--covariates", "vlaue"), "has no column 'vlaue' (did you mean 'value'?)"),
        (("--covariates", "=x"), "--covariates must be different names"),
        (("--devices", "27"), "--devices must be at most the 26 individuals of"),
        (("--devices", "0"), "--devices must be an integer of at least 1"),
        (("--devices", "2", "--device-individuals", "x.json"), "not both"),
        (("--device-individuals", "nowhere.json"), "'nowhere.json' does not exist"),
        (("--burn-in", "12"), "--burn-in must be below --iterations"),
        (("--iterations", "0"), "--iterations must be an integer of at least 1"),
        (("--chains", "0"), "--chains must be"),
        (("--decay", "0.5"), "--decay must be a number above 0.5"),
        (("--average", "model"), "--average must be one of statistics, models"),
        (("--shares", "devices"), "needs --average models"),
        (("--average", "models", "--compress", "topk:0.1"), "leave out --compress"),
        (("--average", "models", "--feedback", "memory"), "needs --average statistics"),
        (("--feedback", "error"), "it needs --compress"),
        (("--feedback", "none"), "it needs --compress"),
        (
            ("--feedback", "errors", "--compress", "float32"),
            "--feedback must be one of none, change, error, memory",
        ),
        (("--compress", "qsdg:8bits"), "codec must be one of"),
        (("--compress", "topk:2"), "fraction of topk"),
        (("--participation", "0"), "--participation must be"),
        (("--participation", "1.5"), "--participation must be"),
        (("--sampler", "gibbs"), "has no Gibbs sampler"),
        (
            ("--sampler", "exact", "--target", "0.4"),
            "--target is for the samplers metropolis, mala and hmc, not exact",
        ),
        (("--step-size", "1"), "is for the samplers langevin and mala, not exact; give --sampler "),
        (
            ("--gradient-compress", "qsgd:4bits"),
            "--gradient-compress is for the sampler langevin, not exact; give --sampler langevin",
        ),
        (("--sampler", "mala", "--gradient-compress", "qsgd:4bits"), "is for the sampler langevin"),
        (("--sampler", "langevin", "--gradient-compress", "qsgd"), "qsgd"),
        (("--sampler", "exact", "--threads", "2"), "--threads is for the samplers"),
        (("--sampler", "langevin", "--threads", "0"), "--threads must be"),
        (("--sampler-steps", "0"), "--sampler-steps must be"),
        (("--target", "1"), "--target must be"),
        (("--sampler", "mala", "--step-size", "0"), "--step-size must be"),
        (("--sampler", "langevin", "--step-decay", "-1"), "--step-decay must be"),
        (("--tol", "-1"), "--tol must be"),
        (("--strict",), "--strict needs a --tol above 0"),
        (("--window", "0", "--tol", "1"), "--window must be"),
        (("--conditional-draws", "1"), "--conditional-draws must be"),
        (("--importance-draws", "1"), "--importance-draws must be"),
        (("--level", "95"), "--level must be"),
        (("--seed", "-1"), "--seed must be"),
        (("--individuals", "i.txt"), "i.txt"),
    ],
)
def test_options_that_are_refused(sentence, words, told):
    assert told in sentence(*words)


@each(
    ("words", "told"),
    [
        (("--random", "kb"), "random parameter must be one of ka, cl, ke"),
        (("--covariance", "diag"), "--covariance must be one of diagonal, full"),
        (("--error", "additive"), "error must be one of"),
        (("--first", "1,2"), "first must be log ka, log cl, log ke"),
        (("--first", "1,2,nan"), "first must be log ka, log cl, log ke"),
        (("--sampler", "exact"), "take the sampler metropolis"),
        (("--error", "proportional"), "have no density"),
    ],
)
def test_options_that_do_not_fit_doses(sentence, words, told):
    assert told in sentence("--model", "one-compartment", *words, data=DOSES)


@each(
    ("changed", "told"),
    [
        ({"time": [-1, 1, 1, 2]}, "has a time before the dose, -1"),
        ({"dose": [4, 4, -3, -3]}, "individual '2' has a dose that is negative, -3"),
        ({"dose": [4, 4, "", ""]}, "covariate 'dose' is missing for '2'"),
        ({"dose": [4, 4, 4, 5]}, "covariate 'dose' of individual '2' changes from 4 to 5"),
        ({"dose": [4, 4, "x", 5]}, "has 'x' for 'dose', no finite number"),
        ({"id": [1, 2, 2, 1], "time": [1, 2, 3, 4]}, "in several places"),
        ({"value": [1, 2, "", 3]}, "value alone is missing"),
    ],
)
def test_data_that_are_refused(sentence, changed, told):
    columns = {**FOUR, **changed}
    assert told in sentence("--model", "one-compartment", **columns)


def test_a_dose_that_is_not_there(sentence):
    columns = {name: FOUR[name] for name in ("id", "time", "value")}
    told = sentence("--model", "one-compartment", **columns, Dose=FOUR["dose"])
    assert "has no column 'dose' (did you mean 'Dose'?)" in told


def test_discrete_latents_are_drawn_exactly(sentence):
    told = sentence("--model", "gmm", "--sampler", "mala", **FOUR)
    assert "which mala cannot move; take the sampler exact" in told


def test_mixtures_that_are_refused(sentence):
    assert "more individuals than 2" in sentence("--model", "gmm", **FOUR)
    told = sentence("--model", "gmm", "--init-individuals", "1,9", **FOUR)
    assert "has no individual '9'" in told


def test_names_of_columns_are_for_tables(sentence, tmp_path):
    write_individuals(tmp_path / "d.h5", blobs())
    assert "--id name columns of a CSV table" in sentence("--id", "who", data=tmp_path / "d.h5")


def test_files_that_are_there(sentence, capsys, tmp_path):
    (tmp_path / "i.csv").write_text("kept")
    assert "exists" in sentence("--individuals", tmp_path / "i.csv")
    done(capsys, "saem", BOYS, *SHORT, "--individuals", tmp_path / "i.csv", "--force")
    assert (tmp_path / "i.csv").read_text() != "kept"
    data = table(tmp_path / "data.csv", **FOUR)
    assert "is the input" in sentence("--individuals", data, "--force", data=data)
    assert "no/i.csv" in sentence("--individuals", tmp_path / "no" / "i.csv")


def test_a_mixture_with_gaps_says_of_which_parameters_there_are_no_errors(capsys, tmp_path):
    rng = np.random.default_rng(3)
    lines = [
        f"{one},{item},{rng.normal():.4f}"
        for one in range(16) for item in range(1, 4) if rng.random() < 0.75
    ]  # fmt: skip
    (tmp_path / "gaps.csv").write_text("\n".join(["id,time,value", *lines]))
    words = ("--model", "gmm", "-k", 2, "--missing", "marginalize", "--iterations", 12)
    said = done(capsys, "saem", tmp_path / "gaps.csv", *words, "--burn-in", 4).err
    assert "those of the others" in said
    assert "take more iterations or draws, or a simpler model" in said
