import json
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest

from vpem.errors import FileError, InputError
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import Model, match_features, read_model, write_export, write_model
from vpem.network.partition import Blocks
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

from .tables import each

NAMES = ("height", "weight", "pulse", "age", "größe, cm")
FEATURES = ((3, 1), (4,), (0, 2))


def make_mixture(covariance_type="full", shared=True, scaled=False, seed=0, n_components=3):
    rng = np.random.default_rng(seed)
    columns = tuple(np.array(part, dtype=np.intp) for part in FEATURES)
    blocks = Blocks(columns, (2, 0, 5), ((1, 2), (0,), (3, 4, 5)))
    copies = 1 if covariance_type.startswith("tied") else n_components
    if covariance_type.endswith(("full", "tied")):
        parts = []
        for part in columns:
            roots = rng.standard_normal((copies, len(part), len(part)))
            parts.append((roots @ roots.swapaxes(1, 2) + np.eye(len(part))).ravel())
        covariances = np.concatenate(parts)
    else:
        covariances = rng.uniform(0.5, 2.0, (copies, 5))
        if covariance_type.endswith("spherical"):
            covariances = covariances[:, [0, 0, 2, 3, 3]]
    return Mixture(
        blocks,
        covariance_type,
        rng.dirichlet(np.ones(n_components), size=1 if shared else 3),
        rng.standard_normal((n_components, 5)),
        covariances,
        Scaling(rng.standard_normal(5), rng.uniform(0.1, 9.0, 5)) if scaled else Scaling.none(5),
    )


def make_model(*arguments, **options):
    return Model(
        make_mixture(*arguments, **options),
        NAMES,
        {"log_likelihood": -3.25, "warnings": ["ü"], "rounds": None},
        np.random.default_rng(1).standard_normal((4, 3)),
        {"seed": 7, "scale": "none"},
        {"vpem": "0.1.0"},
    )


EVERY_MODEL = [
    pytest.param(
        make_model(covariance_type, shared, scaled),
        id=f"{covariance_type}-{'shared' if shared else 'own'}-{'scaled' if scaled else 'plain'}",
    )
    for covariance_type in COVARIANCE_TYPES
    for shared in (True, False)
    for scaled in (True, False)
]


def assembled(mixture):
    return mixture.assembled_weights, mixture.assembled_means, mixture.assembled_covariances


@pytest.mark.parametrize("model", EVERY_MODEL)
def test_what_is_written_is_read(tmp_path, model):
    write_model(tmp_path / "m.h5", model)
    found = read_model(tmp_path / "m.h5")
    for name in ("weights", "means", "covariances"):
        np.testing.assert_array_equal(getattr(found.mixture, name), getattr(model.mixture, name))
    np.testing.assert_array_equal(found.mixture.scaling.shift, model.mixture.scaling.shift)
    np.testing.assert_array_equal(found.mixture.scaling.scale, model.mixture.scaling.scale)
    np.testing.assert_array_equal(found.history, model.history)
    assert found.mixture.covariance_type == model.mixture.covariance_type
    assert [part.tolist() for part in found.mixture.blocks.features] == list(map(list, FEATURES))
    assert found.mixture.blocks.roots == model.mixture.blocks.roots
    assert found.mixture.blocks.agents == model.mixture.blocks.agents
    assert found.feature_names == NAMES
    assert found.report == model.report
    assert found.options == model.options
    assert found.versions == model.versions
    X = np.random.default_rng(2).standard_normal((9, 5))
    np.testing.assert_array_equal(found.mixture.score_samples(X), model.mixture.score_samples(X))


def test_the_same_model_makes_the_same_bytes(tmp_path):
    for name in ("a.h5", "b.h5"):
        write_model(tmp_path / name, make_model())
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_one_group_a_hub_holds_the_root_and_what_it_knows(tmp_path):
    model = make_model("full", shared=False)
    write_model(tmp_path / "m.h5", model)
    with h5py.File(tmp_path / "m.h5") as file:
        assert file.attrs["encoding-type"] == b"vpem-model"
        assert sorted(file["hubs"]) == ["0", "1", "2"]
        for b in range(3):
            hub = file[f"hubs/{b}"]
            assert hub.attrs["root"] == model.mixture.blocks.roots[b]
            assert hub["features"][()].tolist() == list(FEATURES[b])
            weights, means, covariances = model.mixture.block(b)
            np.testing.assert_array_equal(hub["weights"][()], weights)
            np.testing.assert_array_equal(hub["means"][()], means)
            np.testing.assert_array_equal(hub["covariances"][()], covariances)


WRITERS = {"m.h5": write_model, "m.npz": write_export, "m.json": write_export}


@pytest.mark.parametrize("name", WRITERS)
def test_an_existing_file_is_replaced_only_by_force(tmp_path, name):
    path = tmp_path / name
    path.write_text("precious")
    with pytest.raises(FileError, match="exists; pass force=True"):
        WRITERS[name](path, make_model())
    assert path.read_text() == "precious"
    WRITERS[name](path, make_model(), force=True)
    assert path.read_bytes() != b"precious"
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("part", "own", "sentence"),
    [
        ("report", {"n_iter": -1}, "report.n_iter must be "),
        ("report", {"warnings": "none"}, "report.warnings must be a list"),
        ("report", {"communication": {"bytes": "many"}}, "report.communication.bytes must be "),
        ("options", {"tol": "small"}, "options.tol must be "),
        ("versions", {"vpem": 1}, "versions.vpem must be "),
    ],
)
def test_what_no_reader_takes_is_not_written(tmp_path, part, own, sentence):
    model = make_model()
    setattr(model, part, own)
    with pytest.raises(InputError, match=f"m.h5: {re.escape(sentence)}"):
        write_model(tmp_path / "m.h5", model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["m.h5", "m.json"])
def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path, name):
    path = tmp_path / name
    path.write_text("precious")
    model = make_model()
    model.versions = {"vpem": {1, 2}}  # written last, and JSON has no sets
    with pytest.raises(TypeError, match="not JSON serializable"):
        WRITERS[name](path, model, force=True)
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileError, match=r"there is no folder .*nowhere"):
        write_model(tmp_path / "nowhere" / "m.h5", make_model())
    assert list(tmp_path.iterdir()) == []


# ---- export ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", EVERY_MODEL)
def test_exports_hold_the_assembled_mixture(tmp_path, model):
    write_export(tmp_path / "m.npz", model)
    write_export(tmp_path / "m.json", model)
    text = (tmp_path / "m.json").read_text(encoding="utf-8")
    plain = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    names = ("weights", "means", "covariances")
    for name, wanted in zip(names, assembled(model.mixture), strict=True):
        np.testing.assert_array_equal(arrays[name], wanted)
        np.testing.assert_array_equal(np.array(plain[name]), wanted)
    assert arrays["feature_names"].tolist() == plain["feature_names"] == list(NAMES)
    assert str(arrays["covariance_type"]) == plain["covariance_type"]


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "tied-diag"])
def test_an_exported_mixture_has_the_density_of_the_model(tmp_path, covariance_type):
    from scipy.special import logsumexp
    from scipy.stats import multivariate_normal

    model = make_model(covariance_type, shared=False, scaled=True)
    write_export(tmp_path / "m.npz", model)
    X = np.random.default_rng(3).standard_normal((20, 5)) * 2
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        covariances = archive["covariances"]
        if covariance_type.startswith("tied"):
            covariances = [covariances] * 3
        logs = [
            np.log(weight) + multivariate_normal(mean, covariance).logpdf(X)
            if covariance_type.endswith(("full", "tied"))
            else np.log(weight) + multivariate_normal(mean, np.diag(covariance)).logpdf(X)
            for weight, mean, covariance in zip(
                archive["weights"], archive["means"], covariances, strict=True
            )
        ]
    np.testing.assert_allclose(logsumexp(logs, axis=0), model.mixture.score_samples(X), rtol=1e-10)


def test_json_holds_every_hub_and_what_was_reported(tmp_path):
    model = make_model("diag", shared=False)
    write_export(tmp_path / "m.json", model)
    plain = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    assert [hub["features"] for hub in plain["hubs"]] == list(map(list, FEATURES))
    assert [hub["root"] for hub in plain["hubs"]] == [2, 0, 5]
    for b, hub in enumerate(plain["hubs"]):
        for name, wanted in zip(
            ("weights", "means", "covariances"), model.mixture.block(b), strict=True
        ):
            np.testing.assert_array_equal(np.array(hub[name]), wanted)
    assert plain["report"] == model.report
    assert plain["options"] == model.options


# ---- features of a model among those of the data -----------------------------------------------


def test_the_same_features_need_no_matching():
    assert match_features(NAMES, NAMES) is None


def test_features_are_found_by_name_in_any_order():
    shuffled = ("pulse", "extra", "größe, cm", "height", "age", "weight")
    columns = match_features(NAMES, shuffled)
    assert [shuffled[column] for column in columns] == list(NAMES)


def test_missing_features_are_named():
    with pytest.raises(InputError, match="lack features of the model: 'pulse', 'age'"):
        match_features(NAMES, ("height", "weight", "größe, cm", "other"))


def test_nameless_data_are_matched_by_place():
    assert match_features(NAMES, tuple(f"feature {j}" for j in range(5))) is None
    with pytest.raises(InputError, match="the model has 5 features, the data have 4"):
        match_features(NAMES, tuple(f"feature {j}" for j in range(4)))
    with pytest.raises(InputError, match="features of parties are found by name"):
        match_features(NAMES, tuple(f"feature {j}" for j in range(5)), ordered=False)


def test_a_nameless_model_is_matched_by_place():
    model = make_model()
    model.feature_names = tuple(f"feature {j}" for j in range(5))
    assert match_features(model.feature_names, NAMES) is None
    with pytest.raises(InputError, match="the model has 5 features, the data have 6"):
        match_features(model.feature_names, (*NAMES, "one more"))


# ---- damaged files: one sentence, whatever is wrong ---------------------------------------------


def refused(path):
    """Read a file that is no sound model; return the one sentence."""
    with pytest.raises(FileError) as caught:
        read_model(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    return sentence


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "m.h5"
    write_model(path, make_model(shared=False, scaled=True))
    return path.read_bytes()


@pytest.fixture
def model_file(tmp_path, sound):
    (tmp_path / "m.h5").write_bytes(sound)
    return tmp_path / "m.h5"


def test_a_model_cut_short(model_file, sound):
    for length in range(0, len(sound), 211):
        model_file.write_bytes(sound[:length])
        refused(model_file)


FLIP = """
import sys
import warnings
import numpy as np
from vpem.errors import FileError
from vpem.files.models import Model, read_model
warnings.simplefilter("error")
path = sys.argv[1]
sound = open(path, "rb").read()
for seed in range(400):
    rng = np.random.default_rng(seed)
    content = np.frombuffer(sound, dtype=np.uint8).copy()
    places = rng.integers(len(content), size=rng.integers(1, 9))
    content[places] = rng.integers(256, size=len(places))
    with open(path, "wb") as file:
        file.write(content.tobytes())
    try:
        assert isinstance(read_model(path), Model)
        print("read")
    except FileError as error:
        assert "\\n" not in str(error), error
        print("refused")
"""


@pytest.mark.parametrize("covariance_type", ["full", "tied-diag"])
def test_a_model_with_changed_bytes_is_read_or_refused(tmp_path, covariance_type):
    write_model(tmp_path / "m.h5", make_model(covariance_type, shared=False, scaled=True))
    command = [sys.executable, "-c", FLIP, str(tmp_path / "m.h5")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split().count("refused") >= 300
    assert len(found.stdout.split()) == 400


HUBS = [f"hubs/{b}" for b in range(3)]
ITEMS = [
    "feature_names", "history", "options", "report", "scaling", "scaling/scale", "scaling/shift",
    "versions", "hubs", *HUBS,
    *(f"{hub}/{name}" for hub in HUBS for name in ("agents", "features", "weights", "means",
                                                   "covariances")),
]  # fmt: skip
ATTRIBUTES = [
    ("/", "encoding-type"), ("/", "encoding-version"), ("/", "covariance_type"),
    ("/", "n_components"), ("/", "n_features"), ("/", "n_hubs"), ("/", "weights_shared"),
    *((hub, "root") for hub in HUBS),
]  # fmt: skip


def test_the_parts_listed_here_are_all_there_are(model_file):
    found = []
    with h5py.File(model_file) as file:
        file.visit(found.append)
    assert sorted(found) == sorted(ITEMS)


@each("name", ITEMS)
def test_a_model_without_one_of_its_parts(model_file, sound, name):
    model_file.write_bytes(sound)
    with h5py.File(model_file, "a") as file:
        del file[name]
    refused(model_file)


@each("name", ITEMS)
def test_a_number_in_place_of_one_of_its_parts(model_file, sound, name):
    model_file.write_bytes(sound)
    with h5py.File(model_file, "a") as file:
        del file[name]
        file[name] = 3.5
    refused(model_file)


@each(("group", "name"), ATTRIBUTES)
def test_a_model_without_one_of_its_attributes(model_file, sound, group, name):
    model_file.write_bytes(sound)
    with h5py.File(model_file, "a") as file:
        del file[group].attrs[name]
    refused(model_file)


@each(("group", "name"), ATTRIBUTES)
def test_an_attribute_that_makes_no_sense(model_file, sound, group, name):
    model_file.write_bytes(sound)
    for value in (-1, 2.5, "7", "", [1, 2], 2**62):
        with h5py.File(model_file, "a") as file:
            file[group].attrs[name] = value
        refused(model_file)


def put(name, place, value):
    """Change values of a dataset."""

    def change(file):
        values = file[name][()]
        values[place] = value
        file[name][...] = values

    return change


def replaced(name, value):
    """Put another dataset in the place of one."""

    def change(file):
        del file[name]
        file[name] = value

    return change


def text(name, content):
    """Replace JSON text."""
    return replaced(name, np.frombuffer(content.encode(), dtype=np.uint8))


def attribute(name, value):
    """Replace an attribute of the root."""

    def change(file):
        file.attrs[name] = value

    return change


DAMAGE = {
    "mean nan": (put("hubs/0/means", (0, 0), np.nan), "finite.*(nan|inf) among them"),
    "mean inf": (put("hubs/1/means", (0, 0), -np.inf), "finite.*(nan|inf) among them"),
    "covariance nan": (put("hubs/0/covariances", (0, 0, 0), np.nan), "finite.*nan among them"),
    "covariance indefinite": (put("hubs/2/covariances", (1, 0, 0), -1.0), "positive definite"),
    "covariance zero": (put("hubs/2/covariances", 1, 0.0), "component 1 in hub 2"),
    "weight nan": (put("hubs/0/weights", 0, np.nan), "finite.*(nan|inf) among them"),
    "weight negative": (put("hubs/0/weights", ..., [-0.5, 1.0, 0.5]), "of at least 0.*got -0.5"),
    "weights of sum 2": (put("hubs/1/weights", ..., 2 / 3), "that sum to 1, got a sum of 2"),
    "weights missing one": (replaced("hubs/0/weights", np.full(2, 0.5)), "hubs/0/weights"),
    "weights are integers": (replaced("hubs/0/weights", [1, 0, 0]), "must hold real numbers"),
    "means of text": (replaced("hubs/0/means", ["a", "b", "c"]), "must hold real numbers"),
    "means of one more": (replaced("hubs/0/means", np.zeros((3, 3))), "must have shape 3 x 2"),
    "means 1-D": (replaced("hubs/0/means", np.zeros(6)), "must have shape 3 x 2"),
    "covariances complex": (
        replaced("hubs/1/covariances", np.ones((3, 1, 1), complex)), "complex numbers",
    ),
    "covariances 2-D": (replaced("hubs/1/covariances", np.ones((3, 1))), "must have shape"),
    "feature too large": (put("hubs/0/features", 0, 5), "must be 2 integers from 0 to 4, got 5"),
    "feature negative": (put("hubs/0/features", 0, -1), "integers from 0 to 4, got -1"),
    "feature twice": (put("hubs/0/features", 0, 1), "every feature exactly once"),
    "feature of two hubs": (put("hubs/0/features", 0, 4), "every feature exactly once"),
    "features real": (replaced("hubs/0/features", [3.0, 1.0]), "must hold integers"),
    "names too few": (replaced("feature_names", ["a", "b"]), "2, the number of features, got 5"),
    "names too many": (replaced("feature_names", list("abcdef")), "6, the number of features, got"),
    "names are numbers": (replaced("feature_names", np.arange(5)), "UTF-8 strings"),
    "scale zero": (put("scaling/scale", 2, 0.0), "must be 5 positive real numbers, got 0.0"),
    "scale negative": (put("scaling/scale", 2, -1.0), "positive real numbers, got -1.0"),
    "shift nan": (put("scaling/shift", 2, np.nan), "must be 5 finite real numbers, got nan"),
    "history 1-D": (replaced("history", np.zeros(3)), "history must have shape any x 3"),
    "history of another width": (
        replaced("history", np.zeros((4, 2))), "history must have shape any x 3",
    ),
    "weights huge": (put("hubs/1/weights", ..., 1e308), "that sum to 1, got a sum of inf"),
    "names twice": (replaced("feature_names", list("abcda")), "called 'a'"),
    "agent negative": (put("hubs/0/agents", 0, -1), "2 integers from 0 to .*, got -1"),
    "agent of two hubs": (put("hubs/0/agents", 0, 0), "an agent belongs to several hubs"),
    "report nan": (text("report", '{"a": [NaN]}'), "report is not JSON text .NaN is not finite"),
    "report inf": (text("report", '{"a": -Infinity}'), "report is not JSON text .-Infinity"),
    "report too large": (text("report", '{"a": 1e999}'), "report is not JSON text .1e999"),
    "report of digits": (text("report", '{"a": %s}' % ("9" * 5000)), "report is not JSON text"),
    "report deep": (text("report", '{"a": %s}' % ("[" * 99 + "]" * 99)), "more than 16 deep"),
    "report no JSON": (text("report", "{"), "report is not JSON text"),
    "report a list": (text("report", "[1]"), "report is not JSON text"),
    "report no UTF-8": (replaced("report", np.array([255], np.uint8)), "report is not JSON text"),
    "report too deep": (text("report", "[" * 100_000), "report is not JSON text"),
    "options are words": (replaced("options", "{}"), "options"),
    "newer": (attribute("encoding-version", "2.0.0"), "written by a newer vpem .*update vpem"),
    "no version": (attribute("encoding-version", "new"), "no readable encoding-version"),
    "unknown covariance": (attribute("covariance_type", "ful"), "covariance"),
    "other covariance": (attribute("covariance_type", "diag"), "hubs/0/covariances"),
    "no components": (attribute("n_components", 0), "n_components' must be an integer"),
    "other components": (attribute("n_components", 2), "must have shape 2"),
    "another hub": (attribute("n_hubs", 4), "history must have shape any x 4"),
    "a hub less": (attribute("n_hubs", 2), "every feature exactly once|must have shape|damaged"),
    "no model": (attribute("encoding-type", "anndata"), "is not a vpem model; fit one with"),
    "a dataset": (attribute("encoding-type", "vpem-dataset"), "vpem-dataset file, not a vpem-mod"),
}  # fmt: skip


@each("fault", DAMAGE)
def test_what_is_wrong_is_said(model_file, sound, fault):
    model_file.write_bytes(sound)
    change, said = DAMAGE[fault]
    with h5py.File(model_file, "a") as file:
        change(file)
    assert re.search(said, refused(model_file))


@each("value", [0.0, -1.0, np.nan, np.inf])
def test_a_variance_that_is_none(tmp_path, value):
    write_model(tmp_path / "m.h5", make_model("diag"), force=True)
    with h5py.File(tmp_path / "m.h5", "a") as file:
        put("hubs/0/covariances", (0, 0), value)(file)
    assert re.search("positive definite|finite real numbers", refused(tmp_path / "m.h5"))


@pytest.mark.parametrize("value", [5e-324, 1e-310])
def test_a_variance_near_zero(tmp_path, value):
    for covariance_type in ("diag", "full"):
        write_model(tmp_path / f"{covariance_type}.h5", make_model(covariance_type))
        with h5py.File(tmp_path / f"{covariance_type}.h5", "a") as file:
            file["hubs/1/covariances"][...] = value
    assert "too near zero" in refused(tmp_path / "diag.h5")  # its inverse is no number
    mixture = read_model(tmp_path / "full.h5").mixture  # the inverse of its root is one
    assert len(mixture.score_samples(np.ones((3, 5)))) == 3


def test_the_kind_of_covariance_is_read_first(model_file):
    with h5py.File(model_file, "a") as file:
        file.attrs["covariance_type"] = "ful"
        file.attrs["n_components"] = -1
    assert "'covariance_type' must be 'full' or" in refused(model_file)


def test_strings_of_variable_length_are_read_too(model_file):
    with h5py.File(model_file, "a") as file:
        for name in ("encoding-type", "encoding-version", "covariance_type"):
            file.attrs[name] = file.attrs[name].decode()
        del file["feature_names"]
        file["feature_names"] = list(NAMES)
    assert read_model(model_file).feature_names == NAMES


@each("content", [b"", b"\x89HDF\r\n\x1a\n", b"text", bytes(5000)])
def test_files_that_are_not_hdf5(tmp_path, content):
    (tmp_path / "m.h5").write_bytes(content)
    refused(tmp_path / "m.h5")


def test_files_that_are_not_there(tmp_path):
    assert "does not exist" in refused(tmp_path / "m.h5")
    assert "is a folder" in refused(tmp_path)


def test_a_dataset_given_as_a_model(tmp_path):
    write_dataset(tmp_path / "d.h5", Dataset(np.ones((3, 2)), ("a", "b")))
    assert "is a vpem-dataset file, not a vpem-model file" in refused(tmp_path / "d.h5")
