"""Models on disk: what is written is read, exported, cut into shards, and what is wrong is said.

At the end pickles that an earlier build made, as far as CHANGELOG.md says that they load:
`pickles_of_before.z` has some of build 3befd1c5, each as bytes: fits of 80 rows in two clusters of
four features, which `data` makes again. It is written by no test.
"""

import dataclasses
import json
import pickle
import re
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from vpem import FitSettings, connect, fit_vpem, make_graph
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.models import Model, match_features, read_model, write_export, write_model
from vpem.fits.parts import join_shards, shard_path, write_shard
from vpem.network.partition import Blocks, from_lists
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling

from .tables import each, each_once, over

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


EVERY_MODEL = {
    "covariance_type": COVARIANCE_TYPES,
    "shared": [True, False],
    "scaled": [True, False],
}


@over(**EVERY_MODEL)
def test_what_is_written_is_read_and_exported(tmp_path, covariance_type, shared, scaled):
    """A group a hub holds its root and what that knows; exports have the mixture put together."""
    model = make_model(covariance_type, shared, scaled)
    mixture, path = model.mixture, tmp_path / "m.h5"
    for name in ("m.h5", "again.h5"):
        write_model(tmp_path / name, model, force=True)
    assert path.read_bytes() == (tmp_path / "again.h5").read_bytes()
    found = read_model(path)
    parts = ("weights", "means", "covariances")
    for name in parts:
        np.testing.assert_array_equal(getattr(found.mixture, name), getattr(mixture, name))
    for name in ("shift", "scale"):
        own = getattr(found.mixture.scaling, name)
        np.testing.assert_array_equal(own, getattr(mixture.scaling, name))
    np.testing.assert_array_equal(found.history, model.history)
    assert found.mixture.covariance_type == mixture.covariance_type
    blocks = found.mixture.blocks
    assert [part.tolist() for part in blocks.features] == list(map(list, FEATURES))
    assert (blocks.roots, blocks.agents) == (mixture.blocks.roots, mixture.blocks.agents)
    assert (found.feature_names, found.report) == (NAMES, model.report)
    assert (found.options, found.versions) == (model.options, model.versions)
    X = np.random.default_rng(2).standard_normal((9, 5))
    np.testing.assert_array_equal(found.mixture.score_samples(X), mixture.score_samples(X))
    write_export(tmp_path / "m.npz", model, force=True)
    write_export(tmp_path / "m.json", model, force=True)
    text = (tmp_path / "m.json").read_text(encoding="utf-8")
    plain = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    for name in parts:
        wanted = getattr(mixture, f"assembled_{name}")
        np.testing.assert_array_equal(arrays[name], wanted)
        np.testing.assert_array_equal(np.array(plain[name]), wanted)
    assert arrays["feature_names"].tolist() == plain["feature_names"] == list(NAMES)
    assert str(arrays["covariance_type"]) == plain["covariance_type"]
    assert (plain["report"], plain["options"]) == (model.report, model.options)
    with h5py.File(path) as file:
        assert file.attrs["encoding-type"] == b"vpem-model"
        assert sorted(file["hubs"]) == ["0", "1", "2"]
        for b, hub in enumerate(plain["hubs"]):
            stored, root = file[f"hubs/{b}"], mixture.blocks.roots[b]
            assert stored.attrs["root"] == hub["root"] == root
            assert stored["features"][()].tolist() == hub["features"] == list(FEATURES[b])
            for name, wanted in zip(parts, mixture.block(b), strict=True):
                np.testing.assert_array_equal(stored[name][()], wanted)
                np.testing.assert_array_equal(np.array(hub[name]), wanted)


@each(
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


# ---- features of a model among those of the data -----------------------------------------------


NAMELESS = tuple(f"feature {j}" for j in range(5))
SHUFFLED = ("pulse", "extra", "größe, cm", "height", "age", "weight")


@each(
    ("model", "data", "how", "found"),
    [
        (NAMES, NAMES, {}, None),
        (NAMES, SHUFFLED, {}, [3, 5, 0, 4, 2]),
        (NAMES, ("height", "weight", "größe, cm", "other"), {},
         "lack features of the model: 'pulse', 'age'"),
        (NAMES, NAMELESS, {}, None),
        (NAMES, NAMELESS[:4], {}, "the model has 5 features, the data have 4"),
        (NAMES, NAMELESS, {"ordered": False}, "features of parties are found by name"),
        (NAMELESS, NAMES, {}, None),
        (NAMELESS, (*NAMES, "one more"), {}, "the model has 5 features, the data have 6"),
    ],
)  # fmt: skip
def test_features_are_found_by_name_or_where_there_are_none_by_place(model, data, how, found):
    if isinstance(found, str):
        with pytest.raises(InputError, match=found):
            match_features(model, data, **how)
        return
    columns = match_features(model, data, **how)
    assert (columns if columns is None else list(columns)) == found


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


FLIP = """
import sys
import warnings
import numpy as np
from vpem.errors import FileError
from vpem.files.models import Model, read_model
warnings.simplefilter("error")
sounds = {path: open(path, "rb").read() for path in sys.argv[1:]}
for seed in range(120):
    rng = np.random.default_rng(seed)
    path = sys.argv[1 + seed % 2]
    sound = sounds[path]
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


def test_a_model_with_changed_bytes_is_read_or_refused(tmp_path):
    paths = [tmp_path / f"{kind}.h5" for kind in ("full", "tied-diag")]
    for path in paths:
        write_model(path, make_model(path.stem, shared=False, scaled=True))
    command = [sys.executable, "-c", FLIP, *map(str, paths)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split().count("refused") >= 80
    assert len(found.stdout.split()) == 120


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
    "covariance indefinite": (put("hubs/2/covariances", (1, 0, 0), -1.0), "positive definite"),
    "covariance zero": (put("hubs/2/covariances", 1, 0.0), "component 1 in hub 2"),
    "weight negative": (put("hubs/0/weights", ..., [-0.5, 1.0, 0.5]), "of at least 0.*got -0.5"),
    "weights of sum 2": (put("hubs/1/weights", ..., 2 / 3), "that sum to 1, got a sum of 2"),
    "weights missing one": (replaced("hubs/0/weights", np.full(2, 0.5)), "hubs/0/weights"),
    "weights are integers": (replaced("hubs/0/weights", [1, 0, 0]), "must hold real numbers"),
    "means of text": (replaced("hubs/0/means", ["a", "b", "c"]), "must hold real numbers"),
    "means of one more": (replaced("hubs/0/means", np.zeros((3, 3))), "must have shape 3 x 2"),
    "covariances complex": (
        replaced("hubs/1/covariances", np.ones((3, 1, 1), complex)), "complex numbers",
    ),
    "feature too large": (put("hubs/0/features", 0, 5), "must be 2 integers from 0 to 4, got 5"),
    "feature twice": (put("hubs/0/features", 0, 1), "every feature exactly once"),
    "feature of two hubs": (put("hubs/0/features", 0, 4), "every feature exactly once"),
    "features real": (replaced("hubs/0/features", [3.0, 1.0]), "must hold integers"),
    "names too few": (replaced("feature_names", ["a", "b"]), "2, the number of features, got 5"),
    "names are numbers": (replaced("feature_names", np.arange(5)), "UTF-8 strings"),
    "scale zero": (put("scaling/scale", 2, 0.0), "must be 5 positive real numbers, got 0.0"),
    "shift nan": (put("scaling/shift", 2, np.nan), "must be 5 finite real numbers, got nan"),
    "history 1-D": (replaced("history", np.zeros(3)), "history must have shape any x 3"),
    "weights huge": (put("hubs/1/weights", ..., 1e308), "that sum to 1, got a sum of inf"),
    "names twice": (replaced("feature_names", list("abcda")), "called 'a'"),
    "agent negative": (put("hubs/0/agents", 0, -1), "2 integers from 0 to .*, got -1"),
    "agent of two hubs": (put("hubs/0/agents", 0, 0), "an agent belongs to several hubs"),
    "report nan": (text("report", '{"a": [NaN]}'), "report is not JSON text .NaN is not finite"),
    "report too large": (text("report", '{"a": 1e999}'), "report is not JSON text .1e999"),
    "report deep": (text("report", '{"a": %s}' % ("[" * 99 + "]" * 99)), "more than 16 deep"),
    "report no UTF-8": (replaced("report", np.array([255], np.uint8)), "report is not JSON text"),
    "report too deep": (text("report", "[" * 100_000), "report is not JSON text"),
    "options are words": (replaced("options", "{}"), "options"),
    "newer": (attribute("encoding-version", "2.0.0"), "written by a newer vpem .*update vpem"),
    "unknown covariance": (attribute("covariance_type", "ful"), "'covariance_type' must be 'full'"),
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


def test_a_variance_that_is_none_or_near_zero(tmp_path):
    path = tmp_path / "m.h5"

    def changed(covariance_type, value):
        write_model(path, make_model(covariance_type), force=True)
        with h5py.File(path, "a") as file:
            file["hubs/1/covariances"][...] = value

    for value in (0.0, -1.0, np.nan, np.inf):
        changed("diag", value)
        assert re.search("positive definite|finite real numbers", refused(path))
    for value in (5e-324, 1e-310):
        changed("diag", value)
        assert "too near zero" in refused(path)  # its inverse is no number
        changed("full", value)  # the inverse of its root is one
        assert len(read_model(path).mixture.score_samples(np.ones((3, 5)))) == 3


def test_strings_of_variable_length_are_read_too(model_file):
    with h5py.File(model_file, "a") as file:
        for name in ("encoding-type", "encoding-version", "covariance_type"):
            file.attrs[name] = file.attrs[name].decode()
        del file["feature_names"]
        file["feature_names"] = list(NAMES)
    assert read_model(model_file).feature_names == NAMES


# ---- shards: a model in parts, a hub each, and joined again -------------------------------------

HOLDERS = ("north", "south", "server room", "relay")


def cut(folder, topology="cycle", covariance_type="full", hops=0, seed=0, **options):
    """Fit, and write every hub that has features to a shard."""
    X = np.random.default_rng(seed).standard_normal((60, 6))
    with pytest.warns(VpemWarning, match="relays"):
        partition = from_lists([[0, 5], [1], [4, 3, 2], []], 6, HOLDERS)
    network = connect(make_graph(topology, 4), partition, hops=hops)
    options = {"tol": 0.1, "covariance_type": covariance_type, "scale": "standard", **options}
    if "missing" in options:
        X[::3, 1], X[1::4, 5] = np.nan, np.nan
    fit = fit_vpem(X, network, **options)
    paths = []
    for place, columns in enumerate(network.blocks.features):
        if len(columns):
            name = HOLDERS[network.hubs[place].root]
            paths.append(shard_path(folder / "m.h5", name))
            write_shard(paths[-1], fit, place, HOLDERS, [f"f{j}" for j in columns], {"seed": seed})
    return fit, paths


@each_once(
    kind=["full", "diag", "spherical", "tied", "tied-diag"], topology=["cycle", "star", "path"]
)
def test_joined_shards_are_the_model(kind, topology, tmp_path):
    fit, paths = cut(tmp_path, topology, kind)
    assert [path.name for path in paths] == ["m.north.h5", "m.south.h5", "m.server-room.h5"]
    joined = join_shards(paths[::-1])
    for name in ("weights", "means", "covariances"):
        ours, theirs = getattr(joined.mixture, name), getattr(fit.mixture, name)
        if name == "weights" and len(theirs) > 1:
            ours, theirs = ours[:3], theirs[:3]  # the relay's own are in no shard
        np.testing.assert_array_equal(ours, theirs)
    assert joined.mixture.blocks.roots == fit.mixture.blocks.roots
    assert joined.feature_names == tuple(f"f{j}" for j in range(6))
    np.testing.assert_array_equal(joined.mixture.scaling.shift, fit.mixture.scaling.shift)
    np.testing.assert_array_equal(joined.history[:, :3], fit.history[:, :3])
    write_model(tmp_path / "whole.h5", joined)
    assert read_model(tmp_path / "whole.h5").mixture.n_features == 6


def arrays_in(path):
    """Every array of the file of a model, and attribute, but history and reports."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, one: found.update({name: one}))
        found = {name: one for name, one in found.items() if not name.startswith("history")}
        numbers = {n: one[()] for n, one in found.items() if hasattr(one, "dtype")}
        return {n: one for n, one in numbers.items() if one.dtype.kind in "fi"}, dict(file.attrs)


@each_once(
    kind=["full", "diag", "spherical", "tied", "tied-diag"],
    topology=["star", "cycle"],
    prior=["dirichlet_process", "dirichlet_distribution"],
    freedom=[None, 7.5],
    gaps=[False, True],
)
def test_joined_shards_of_a_posterior_are_the_file_of_the_fit(
    kind, topology, prior, freedom, gaps, tmp_path
):
    options = {"weight_concentration_prior_type": prior, "degrees_of_freedom_prior": freedom}
    options |= {"n_components": 3, "weight_concentration_prior": 0.3}
    options |= {"missing": "marginalize"} if gaps and kind in ("full", "tied") else {}
    fit, paths = cut(tmp_path, topology, kind, **options)
    joined = join_shards(paths)
    names = joined.feature_names
    report = {n: one for n, one in fit.describe(names, HOLDERS).items() if n != "history"}
    whole = Model(fit.mixture, names, report, fit.history)
    for name, model in (("joined.h5", joined), ("whole.h5", whole)):
        write_model(tmp_path / name, model)
    (ours, facts), (theirs, their_facts) = map(
        arrays_in, (tmp_path / "joined.h5", tmp_path / "whole.h5")
    )
    assert ours.keys() == theirs.keys()
    own = {f"hubs/3/{one}" for one in ("weights", "posterior/counts", "posterior/seen")}
    for name, array in theirs.items():
        # What the relay found by consensus is in no shard: it is that of another root.
        near = 1e-4 if name in own and topology == "cycle" else 0.0
        np.testing.assert_allclose(ours[name], array, rtol=near, err_msg=name)
    assert {n: np.array(one).tolist() for n, one in facts.items()} == {
        n: np.array(one).tolist() for n, one in their_facts.items()
    }
    again = read_model(tmp_path / "joined.h5")
    for name in ("lower_bound", "in_use", "weight_concentration_prior_type"):
        assert again.report[name] == whole.report[name]
    X = np.random.default_rng(2).standard_normal((20, 6))
    ours, theirs = again.mixture.predict_proba(X), fit.mixture.predict_proba(X)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4 if topology == "cycle" else 1e-12)


def test_shards_of_other_priors_are_not_joined(tmp_path):
    _, paths = cut(tmp_path, weight_concentration_prior_type="dirichlet_process")
    model = read_model(paths[0])
    other = dataclasses.replace(model.mixture.prior, concentration=9.0)
    changed = dataclasses.replace(model.mixture, prior=other)
    for mixture in (changed, model.mixture.plain):
        write_model(paths[0], dataclasses.replace(model, mixture=mixture), force=True)
        with pytest.raises(InputError, match="differ in components, covariances, factors, priors"):
            join_shards(paths)


def test_a_shard_is_a_model_of_its_own_features(tmp_path):
    fit, paths = cut(tmp_path)
    south = read_model(paths[1]).mixture
    X = np.random.default_rng(1).standard_normal((20, 6))
    assert south.n_features == 1
    alone = south.score_samples(X[:, [1]])
    assert alone.shape == (20,)
    weights, means = fit.mixture.weights[1], fit.mixture.assembled_means[:, 1]
    variances = fit.mixture.assembled_covariances[:, 1, 1]
    density = np.exp(-0.5 * (X[:, [1]] - means) ** 2 / variances) / np.sqrt(2 * np.pi * variances)
    np.testing.assert_allclose(alone, np.log(density @ weights), rtol=1e-10)


def test_shards_must_be_all_of_one_fit(tmp_path):
    _, paths = cut(tmp_path)
    (tmp_path / "other").mkdir()
    _, others = cut(tmp_path / "other", seed=1)
    for wrong, told in (
        ([], "no shards"),
        (paths[:2], "missing: those of server room"),
        ([*paths, paths[0]], "another shard of the same hub"),
        ([paths[0], *others[1:]], "another fit"),
    ):
        with pytest.raises(InputError, match=told):
            join_shards(wrong)


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """One of the shards of a fit."""
    return read_model(cut(tmp_path_factory.mktemp("shard"))[1][0])


HUB = {"root": 0, "agents": [0], "features": [0, 1]}


@each(
    ("name", "value", "told"),
    [
        ("shard", 3, "shard must be a table of run, shared, hubs, number, got 3"),
        ("shard", {}, "shard.run is missing"),
        ("hubs", [], "shard.hubs must be a list of at least 1, got a list of 0"),
        ("hubs", [3], "shard.hubs.0 must be a table of root, agents, features, got 3"),
        ("hubs", [HUB | {"features": [0, 1, 2]}], "shard.number must be that of a hub with 2 feat"),
        ("hubs", [HUB | {"root": None}], "shard.hubs.0.root must be an integer"),
        ("hubs", [HUB | {"agents": ["x"]}], "shard.hubs.0.agents.0 must be an integer"),
        ("hubs", [HUB | {"features": [0, "x"]}], "shard.hubs.0.features.1 must be an integer"),
        ("number", "x", "shard.number must be an integer from 0 to 3, got 'x'"),
        ("shared", 1, "shard.shared must be false or true, got 1"),
        ("agent_names", None, "agent_names must be a list, got nothing"),
    ],
)
def test_a_file_may_hold_anything_for_a_shard(shard, name, value, told, tmp_path):
    model = shard
    report = model.report
    inside = {"shard": report["shard"] | {name: value}}
    report = report | (inside if name in report["shard"] else {name: value})
    write_model(tmp_path / "wrong.h5", dataclasses.replace(model, report=report), force=True)
    with pytest.raises(FileError, match=f"the shard .*wrong.h5: {re.escape(told)}"):
        join_shards([tmp_path / "wrong.h5"])
    del report["shard"]
    write_model(tmp_path / "none.h5", dataclasses.replace(model, report=report), force=True)
    with pytest.raises(InputError, match="is not a shard of a model"):
        join_shards([tmp_path / "none.h5"])


@each(
    ("name", "file"),
    [("lab", "m.lab.h5"), ("../../x y", "m.x-y.h5"), ("…", "m.agent.h5"), ("é", "m.é.h5")],
)
def test_names_of_agents_are_no_paths(name, file, tmp_path):
    path = shard_path(tmp_path / "m.h5", name)
    assert path == tmp_path / file


# ---- pickles of before ------------------------------------------------------------------------

SAVED = Path(__file__).with_name("pickles_of_before.z")
PICKLES = pickle.loads(zlib.decompress(SAVED.read_bytes()))


def data():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(size=(40, 4)), rng.normal(size=(40, 4)) + 4])


def unpickled(name):
    return pickle.loads(PICKLES[name])


@pytest.mark.parametrize("name", sorted(PICKLES))
def test_pickles_of_before_load_and_say_what_they_are(name):
    assert type(unpickled(name)).__name__ in repr(unpickled(name))


@pytest.mark.parametrize("name", [name for name in PICKLES if name.startswith("fitted")])
def test_estimators_pickled_before_are_used_kept_and_fitted_again(name, tmp_path):
    estimator = unpickled(name)
    estimator.save(tmp_path / "kept.h5")
    X = data()
    if hasattr(estimator, "predict"):
        clusters = estimator.predict(X)
        assert (clusters[:40] == clusters[0]).all()
        assert (clusters[40:] == 1 - clusters[0]).all()
    estimator.fit(X)


@pytest.mark.parametrize("name", ["network_star", "network_cycle", "network_secure"])
def test_networks_pickled_before_are_fitted_over(name):
    assert fit_vpem(data(), unpickled(name), n_components=2).converged


@pytest.mark.parametrize("name", [name for name in PICKLES if name.startswith("fit_")])
def test_results_pickled_before_are_described(name):
    fit = unpickled(name)
    names = [f"f{j}" for j in range(fit.n_features)]
    assert fit.describe(names, ["a", "b"])["n_components"] == 2
    assert len(fit.answer(names).describe("component")) == 2


def test_models_settings_and_data_pickled_before_are_the_same(tmp_path):
    write_model(tmp_path / "model.h5", unpickled("model"))
    assert unpickled("settings_FitSettings") == FitSettings()
    assert unpickled("dataset_csv").X.shape == (303, 8)
