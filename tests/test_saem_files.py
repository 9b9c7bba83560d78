"""Fits of SAEM on disk: back as they were, all or nothing, and nothing believed."""

import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import vpem
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import write_array, write_attribute, write_strings
from vpem.pictures.figure import save_picture
from vpem.pictures.saem import draw_curves, draw_traces
from vpem.saem.conditional import LogLikelihood
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, saem_as_json, save_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long, from_matrix
from vpem.saem.models.linear import LinearModel

from .tables import each

DATA = Path(__file__).resolve().parents[1] / "data"
QUICK = {"n_iter": 30, "burn_in": 15, "tol": 0.0, "n_conditional": 30, "n_importance": 50}


@pytest.fixture(scope="module")
def boys():
    return read_individuals(DATA / "oxford_boys.csv")


@pytest.fixture(scope="module")
def fit(boys):
    return fit_saem(
        boys, "linear", devices=3, sampler="metropolis", codec="qsgd:8bits", feedback="memory",
        **QUICK,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory, fit):
    """Bytes of the fit, written."""
    found = tmp_path_factory.mktemp("sound") / "fit.h5"
    save_saem(found, fit)
    return found.read_bytes()


@pytest.fixture
def path(tmp_path, sound):
    (tmp_path / "fit.h5").write_bytes(sound)
    return tmp_path / "fit.h5"


def test_people_of_before_are_found_with_a_warning(fit):
    with pytest.warns(DeprecationWarning, match="^people is the fit itself now") as warned:
        people = fit.people
    assert warned[0].filename == __file__
    assert (people.names, people.n_individuals, people.doses) == (fit.names, 26, None)
    assert people.time_range == fit.time_range
    assert people.covariates is fit.covariates


def assert_same(one, two):
    """Two saved fits with the same bits."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, LogLikelihood):
            a, b = dataclasses.astuple(a), dataclasses.astuple(b)
        np.testing.assert_equal(a, b, err_msg=field.name)


# ---- round trip ---------------------------------------------------------------------------------


def test_back_as_it_was(fit, path, tmp_path):
    saved = read_saem(path)
    assert_same(saved, fit.saved)
    assert saved.estimates == fit.estimates
    assert saved.errors == fit.errors
    assert saved.model == "linear"
    assert saved.model_options == {
        "slopes": ["time"], "effects": [], "covariance": "full", "error": "constant"
    }  # fmt: skip
    assert saved.settings["codec"] == fit.settings["codec"]
    assert saved.settings["devices"] == 3
    assert saved.settings["sampler_options"] == {"n_steps": 2, "target": 0.44}
    assert saved.communication["bytes"] == fit.ledger.bytes
    assert saved.trace.shape == (31, 6)
    again = tmp_path / "again.h5"
    save_saem(again, saved)
    assert again.read_bytes() == path.read_bytes()


@each("kind", ["one-compartment", "bifactor", "gmm", "own"])
def test_of_every_model(kind, tmp_path):
    data = read_individuals(DATA / "theophylline.csv")
    rng = np.random.default_rng(0)
    table = rng.standard_normal((40, 4)) @ (np.eye(4) + 0.5)
    made = {
        "one-compartment": (data, "one-compartment", {"random": ("ka",), "first": (0.4, -3.2, -2)}),
        "bifactor": (from_matrix(table), "bifactor", {"groups": np.array([0, 0, 1, 1])}),
        "gmm": (from_matrix(table), "gmm", {"n_components": np.int64(2), "rows": (0, 5)}),
        "own": (data, LinearModel, None),
    }
    individuals, model, options = made[kind]
    fit = fit_saem(individuals, model, model_options=options, **QUICK)
    save_saem(tmp_path / f"{kind}.h5", fit)
    saved = read_saem(tmp_path / f"{kind}.h5")
    assert_same(saved, fit.saved)
    assert saved.model == kind
    assert saved.model_class == type(fit.model).__name__
    assert saved.discrete == (kind == "gmm")
    assert set(saved.covariates) == ({"dose", "weight"} if individuals is data else set())
    np.testing.assert_array_equal(saved.trace[-1], saved.theta)
    text = json.dumps(saem_as_json(saved))
    assert json.loads(text)["estimates"] == fit.estimates


def test_covariates_that_change_are_not_kept(tmp_path):
    ids = np.repeat(["a", "b", "c"], 3)
    rng = np.random.default_rng(1)
    columns = {"steady": np.repeat([1.0, 2.0, np.nan], 3), "moving": np.arange(9.0)}
    data = from_long(ids, np.arange(9), rng.standard_normal(9), columns)
    saved = fit_saem(data, "linear", **QUICK).saved
    assert list(saved.covariates) == ["steady"]
    np.testing.assert_array_equal(saved.covariates["steady"], [1.0, 2.0, np.nan])
    assert saved.time_range == (0.0, 8.0)
    save_saem(tmp_path / "fit.h5", saved)
    assert_same(read_saem(tmp_path / "fit.h5"), saved)


def test_unknown_errors_are_kept(fit, tmp_path):
    nothing = np.full(6, np.nan)
    wild = dataclasses.replace(
        fit.saved, standard_errors=nothing, information=-np.eye(6), acceptance=None,
        change=float("nan"), log_likelihood=LogLikelihood(-np.inf, np.nan, np.full(26, -np.inf),
                                                          np.zeros(26)),
    )  # fmt: skip
    save_saem(tmp_path / "wild.h5", wild)
    assert_same(read_saem(tmp_path / "wild.h5"), wild)


def test_never_over_another_file(path, fit):
    before = path.read_bytes()
    with pytest.raises(FileError, match="exists; pass force=True"):
        save_saem(path, fit)
    assert path.read_bytes() == before
    bad = dataclasses.replace(fit.saved, parameters=("nul\0", *"bcdef"))
    with pytest.raises(InputError, match="cannot be stored"):
        save_saem(path, bad, force=True)
    assert path.read_bytes() == before
    save_saem(path, fit, force=True)
    assert [one.name for one in path.parent.iterdir()] == ["fit.h5"]


# ---- damaged and hostile files ------------------------------------------------------------------


def replace_array(name, change):
    def edit(file):
        values = file[name][()]
        del file[name]
        write_array(file, name, change(values))

    return edit


def at(place, value):
    def change(values):
        values[place] = value
        return values

    return change


def replace_text(name, text):
    def edit(file):
        del file[name]
        file[name] = np.frombuffer(text.encode(), dtype=np.uint8)

    return edit


def rename(name, strings):
    def edit(file):
        del file[name]
        write_strings(file, name, strings)

    return edit


def without(name):
    def edit(file):
        del file[name]

    return edit


def attribute(name, value):
    def edit(file):
        if isinstance(value, str):
            del file.attrs[name]
            write_attribute(file, name, value)
        else:
            file.attrs[name] = value

    return edit


def outside(file):
    del file["theta"]
    file["theta"] = h5py.ExternalLink("other.h5", "theta")


def huge(file):
    del file["means"]
    file.create_dataset("means", shape=(26, 1 << 40), dtype="f8", chunks=(1, 1 << 16))


HOSTILE = {
    "newer": (attribute("encoding-version", "1.0.0"), "newer vpem"),
    "another kind": (attribute("encoding-type", "vpem-model"), "not a vpem-saem file"),
    "no kind": (attribute("encoding-type", "table"), "not a vpem-saem file"),
    "model": (attribute("model", "os.system"), "'model' must be 'linear' or .*, got 'os.system'"),
    "no theta": (without("theta"), "theta does not exist"),
    "theta shape": (replace_array("theta", lambda a: a[:-1]), "must have shape 6"),
    "theta nan": (replace_array("theta", at(0, np.nan)), "6 finite real numbers, got nan"),
    "theta whole": (replace_array("theta", lambda a: a.astype(int)), "must hold real numbers"),
    "theta elsewhere": (outside, "link to another file"),
    "huge": (huge, "must have shape|cannot hold"),
    "two of a name": (rename("parameters", [*"abcde", "a"]), "must all be different"),
    "no names": (rename("names", []), "means must have shape 0 x 2, got 26 x 2"),
    "trace": (attribute("n_iter", 29), "must have shape 30 x any"),
    "n_iter": (attribute("n_iter", "many"), "must be an integer"),
    "n_draws": (attribute("n_draws", -1), "'n_draws' must be an integer from 0 to .*, got -1"),
    "level": (attribute("level", 1.5), "from 0.0 to 1.0, got 1.5"),
    "level text": (attribute("level", "high"), "real number from 0.0 to 1.0, got 'high'"),
    "change": (attribute("change", -1.0), "at least 0.0, got -1.0"),
    "converged": (attribute("converged", 1.0), "must be false or true, got 1.0"),
    "bytes fall": (replace_array("bytes", at(0, 1 << 40)), "do not fall"),
    "bytes negative": (replace_array("bytes", lambda a: a - 10**9), "of at least 0, got -"),
    "bytes real": (replace_array("bytes", lambda a: a.astype(float)), "must hold integers"),
    "asymmetric": (replace_array("covariances", at((0, 0, 1), 9.0)), "positive semi-definite"),
    "negative": (replace_array("covariances", at((3, 1, 1), -1.0)), "positive semi-definite"),
    "indefinite": (
        replace_array("covariances", lambda a: np.broadcast_to([[1.0, 2.0], [2.0, 1.0]], a.shape)),
        "positive semi-definite",
    ),
    "information": (replace_array("information", lambda a: -a), "positive semi-definite"),
    "errors": (replace_array("standard_errors", at(2, -1.0)), "of at least 0, got -1.0"),
    "interval": (replace_array("lower", at((3, 1), 1e9)), "lower must not be above upper"),
    "shrinkage": (replace_array("shrinkage", at(0, 1.5)), "from 0 to 1, got 1.5"),
    "acceptance": (replace_array("acceptance", at(0, np.nan)), "from 0 to 1, got nan"),
    "value": (replace_array("log_likelihood/value", lambda a: a + 1), "the sum of"),
    "error": (replace_array("log_likelihood/error", lambda a: a - 1), "of at least 0, got -"),
    "no likelihood": (without("log_likelihood"), "log_likelihood/value does not exist"),
    "likelihood is data": (
        lambda file: (without("log_likelihood")(file), write_array(file, "log_likelihood", 1.0)),
        "log_likelihood/value does not exist",
    ),
    "covariates": (rename("covariate_names", ["dose"]), "must have shape 1 x 26"),
    "times": (replace_array("time_range", lambda a: a[::-1]), "no range"),
    "not JSON": (replace_text("settings", "{"), "settings is not JSON"),
    "not an object": (replace_text("settings", "[1]"), "settings is not JSON"),
    "infinite": (replace_text("settings", '{"a": 1e999}'), "not finite"),
    "deep": (replace_text("settings", '{"a": ' + "[" * 500 + "]" * 500 + "}"), "more than 8 deep"),
    "very deep": (replace_text("settings", "[" * 10**5), "settings is not JSON"),
    "large option": (replace_text("model_options", '{"slopes": 7}'), "must be a list, got 7"),
    "options of another model": (
        replace_text("model_options", '{"groups": [0,0,0,0,0,0,0]}'),
        "too large",
    ),
    "long option": (replace_text("model_options", '{"slopes": [1,2,3]}'), "slopes.0 must be text"),
}


@each("case", HOSTILE)
def test_hostile_files_are_refused_in_a_sentence(path, sound, case):
    edit, told = HOSTILE[case]
    path.write_bytes(sound)
    with h5py.File(path, "a") as file:
        edit(file)
    with pytest.raises(FileError, match=told) as caught:
        read_saem(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@each("share", [0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(path, sound, share):
    path.write_bytes(sound[: int(share * len(sound))])
    with pytest.raises(FileError):
        read_saem(path)


@each("seed", range(20))
def test_changed_bytes_are_refused_or_read(path, sound, seed):
    """Whatever bytes a file has, reading it ends with a fit or with one sentence."""
    rng = np.random.default_rng(seed)
    content = bytearray(sound)
    for place in rng.integers(len(content), size=4):
        content[place] = rng.integers(256)
    path.write_bytes(content)
    try:
        saved = read_saem(path)
    except FileError:
        return
    assert np.isfinite(saved.theta).all()


def test_files_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(FileError, match="is a vpem-dataset file"):
        read_saem(DATA / "wine.h5")
    with pytest.raises(FileError, match="does not exist"):
        read_saem(tmp_path / "none.h5")
    with pytest.raises(FileError, match="is not an HDF5 file"):
        read_saem(DATA / "oxford_boys.csv")


# ---- pictures -----------------------------------------------------------------------------------


def test_a_trace_has_the_signs_of_the_estimates():
    rng = np.random.default_rng(5)
    factors = rng.standard_normal((60, 3))
    loadings = np.zeros((3, 6))
    loadings[0], loadings[1, :3], loadings[2, 3:] = -1.0, 0.8, -0.7
    table = from_matrix(factors @ loadings + 0.5 * rng.standard_normal((60, 6)))
    options = {"model_options": {"groups": [0, 0, 0, 1, 1, 1]}, "n_chains": 2}
    fit = fit_saem(table, "bifactor", **options, **QUICK)
    np.testing.assert_array_equal(fit.trace[-1], fit.theta)
    assert (fit.trace.reshape(31, 4, 6)[:, 1].sum(axis=1) >= 0).all()


def test_a_fit_is_opened_drawn_and_shown_in_python(fit, path, boys, tmp_path):
    opened = vpem.load(path)
    assert_same(opened, read_saem(path))
    some = boys.take([0, 7])
    for name, draw, words in (
        ("traces", draw_traces, ("burn-in", "residual variance")),
        ("curves", lambda what: draw_curves(what, some, n_times=3), ("population", ">8<")),
    ):
        one, two = (tmp_path / f"{name}{number}.svg" for number in (1, 2))
        save_picture(one, draw(fit))
        save_picture(two, draw(opened))
        assert all(word in one.read_text() for word in words)
        assert one.read_bytes() == two.read_bytes()
    with pytest.raises(FileError, match="exists"):
        save_picture(one, draw(fit))
    assert vpem.plot(fit, "curves", boys, most=2).alt == vpem.plot(path, "curves", boys, most=2).alt
    shown = (repr(boys), repr(opened), repr(fit))
    assert shown[0].startswith("Individuals(26 individuals, 234 rows, ")
    assert all("array(" not in one for one in shown)
    with pytest.raises(InputError, match="held against Individuals"):
        vpem.plot(path, "curves", boys.values)
