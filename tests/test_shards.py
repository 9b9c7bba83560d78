"""A model in shards, a hub each, and joined again."""

import dataclasses
import re

import h5py
import numpy as np
import pytest

from vpem import connect, fit_vpem, make_graph
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.models import Model, read_model, write_model
from vpem.fits.parts import join_shards, shard_path, write_shard
from vpem.network.partition import from_lists

from .tables import each_once

NAMES = ("north", "south", "server room", "relay")


def cut(folder, topology="cycle", covariance_type="full", hops=0, seed=0, **options):
    """Fit, and write every hub that has features to a shard."""
    X = np.random.default_rng(seed).standard_normal((60, 6))
    with pytest.warns(VpemWarning, match="relays"):
        partition = from_lists([[0, 5], [1], [4, 3, 2], []], 6, NAMES)
    network = connect(make_graph(topology, 4), partition, hops=hops)
    options = {"tol": 1e-3, "covariance_type": covariance_type, "scale": "standard", **options}
    if "missing" in options:
        X[::3, 1], X[1::4, 5] = np.nan, np.nan
    fit = fit_vpem(X, network, **options)
    paths = []
    for place, columns in enumerate(network.blocks.features):
        if len(columns):
            name = NAMES[network.hubs[place].root]
            paths.append(shard_path(folder / "m.h5", name))
            write_shard(paths[-1], fit, place, NAMES, [f"f{j}" for j in columns], {"seed": seed})
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
    report = {n: one for n, one in fit.describe(names, NAMES).items() if n != "history"}
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


HUB = {"root": 0, "agents": [0], "features": [0, 1]}


@pytest.mark.parametrize(
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
def test_a_file_may_hold_anything_for_a_shard(name, value, told, tmp_path):
    _, paths = cut(tmp_path)
    model = read_model(paths[0])
    report = model.report
    inside = {"shard": report["shard"] | {name: value}}
    report = report | (inside if name in report["shard"] else {name: value})
    write_model(tmp_path / "wrong.h5", dataclasses.replace(model, report=report))
    with pytest.raises(FileError, match=f"the shard .*wrong.h5: {re.escape(told)}"):
        join_shards([tmp_path / "wrong.h5"])
    del report["shard"]
    write_model(tmp_path / "none.h5", dataclasses.replace(model, report=report))
    with pytest.raises(InputError, match="is not a shard of a model"):
        join_shards([tmp_path / "none.h5"])


@pytest.mark.parametrize(
    ("name", "file"),
    [("lab", "m.lab.h5"), ("../../x y", "m.x-y.h5"), ("…", "m.agent.h5"), ("é", "m.é.h5")],
)
def test_names_of_agents_are_no_paths(name, file, tmp_path):
    path = shard_path(tmp_path / "m.h5", name)
    assert path == tmp_path / file
