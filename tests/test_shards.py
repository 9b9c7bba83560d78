"""A model in shards, a hub each, and joined again."""

import dataclasses
import re

import numpy as np
import pytest

from vpem import connect, fit_vpem, make_graph
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.models import read_model, write_model
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
