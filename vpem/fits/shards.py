"""Models in pieces: each hub's root writes its own parameters, and nobody holds them all.

A shard is a model file of its own, of the hub's features alone: it scores and samples these. What
it tells besides is which piece of what it is, so that shards can be joined by whoever may have all.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vpem.errors import InputError
from vpem.files.models import MOST_AGENTS, Model, current_versions, read_model, write_model
from vpem.fits.block_parts import join_parts
from vpem.fits.mixed_parts import join_families, sent_of
from vpem.fits.parts import cut
from vpem.fits.results import Fit
from vpem.network.partition import Blocks
from vpem.network.schema import (
    COUNT,
    FLAG,
    TEXT,
    Integer,
    ListOf,
    Mapping,
    Place,
    Report,
    Schema,
    check,
)
from vpem.terms.factor_mixture import FactorMixture
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixture import MixedMixture

PathLike = str | os.PathLike[str]

AGENT = Integer(most=MOST_AGENTS - 1)
HUB = {"root": AGENT, "agents": ListOf(AGENT), "features": ListOf(COUNT)}
REPORT: dict[str, Schema] = {
    "shard": {
        "run": TEXT,
        "shared": FLAG,
        "hubs": ListOf(HUB, "B", least=1),
        "number": Integer(below="B"),
    },
    "agent_names": ListOf(TEXT),
}
"""What the report of a shard has, besides other things."""


def shard_path(output: PathLike, name: str) -> Path:
    """Return the file of a root's shard beside a model's: ``model.h5`` gives ``model.lab.h5``."""
    path = Path(output)
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "agent"
    return path.with_name(f"{path.stem}.{safe}{path.suffix}")


def shard_paths(output: PathLike, blocks: Blocks, names: Sequence[str]) -> dict[int, Path]:
    """Return files, all different, of the shards of all hubs with features, by their numbers."""
    names = [*names, "server"]
    plain = {b: shard_path(output, names[root]) for b, root in enumerate(blocks.roots)}
    taken = list(plain.values())
    return {
        b: path
        if taken.count(path) == 1
        else shard_path(output, f"{names[blocks.roots[b]]}-{blocks.roots[b]}")
        for b, path in plain.items()
        if len(blocks.features[b])
    }


def write_shard(
    path: PathLike,
    fit: Fit,
    place: int,
    agent_names: Sequence[str],
    feature_names: Sequence[str],
    options: Report,
    force: bool = False,
) -> None:
    """Write the parameters of one hub: ``place`` says which of those that `Fit.mixture` has.

    The fit is from `vpem.fits.spread.fit_spread` with ``shards``, or of all agents in one process.
    """
    network, mixture = fit.network, fit.mixture
    number = int(network.total.holders.own[place])
    alone = cut(mixture, [place])
    report = {
        "algorithm": "vp-em",
        "shard": {
            "number": number,
            "run": hashlib.sha256(fit.history.tobytes()).hexdigest()[:16],
            "shared": network.total.roots.n_agents == 1,
            "hubs": [
                {"root": int(h.root), "agents": list(h.agents), "features": f.tolist()}
                for h, f in zip(network.hubs, network.whole.blocks.features, strict=True)
            ],
        },
        "agent_names": list(agent_names),
        **network.describe("topology", "hops", "rounds"),
        "n_samples": fit.n_samples,
        "n_components": mixture.n_components,
        "log_likelihood": fit.log_likelihood,
        "n_iter": fit.n_iter,
        "converged": fit.converged,
    }
    history = np.ascontiguousarray(fit.history[:, [number]])
    model = Model(alone, tuple(feature_names), report, history, options, current_versions())
    write_model(path, model, force)


def join_shards(paths: Sequence[PathLike]) -> Model:
    """Read the shards of one fit, in any order, and join them to the model that they are pieces of.

    There is one of every hub that has features.
    """
    found: dict[int, Model] = {}
    first: Report | None = None
    for path in paths:
        model = read_model(path)
        shard = _told(path, model)
        if first is None:
            first = shard
        elif (shard["run"], shard["hubs"]) != (first["run"], first["hubs"]):
            raise InputError(f"{path} belongs to another fit than {paths[0]}")
        if shard["number"] in found:
            raise InputError(f"{path} is the shard of a hub that was given before")
        found[shard["number"]] = model
    if first is None:
        raise InputError("there are no shards to join")
    hubs = first["hubs"]
    missing = [b for b, hub in enumerate(hubs) if hub["features"] and b not in found]
    if missing:
        names = next(iter(found.values())).report["agent_names"]
        roots = [hubs[b]["root"] for b in missing]
        whose = ", ".join(str(names[r]) if r < len(names) else f"agent {r}" for r in roots)
        raise InputError(f"shards are missing: of {whose}")
    blocks = Blocks(
        tuple(np.array(hub["features"], dtype=np.intp) for hub in hubs),
        tuple(hub["root"] for hub in hubs),
        tuple(tuple(hub["agents"]) for hub in hubs),
    )
    some = next(iter(found.values()))
    kinds = {
        (
            one.mixture.covariance_type,
            one.mixture.n_components,
            one.mixture.n_factors,
            len(one.history),
        )
        for one in found.values()
    }
    if len(kinds) > 1:
        raise InputError("the shards differ in components, covariances, factors or iterations")
    mixture = _families(blocks, found) or _gaussian(blocks, found)
    if first["shared"]:
        mixture = replace(mixture, weights=some.mixture.weights)
    names_of = [""] * blocks.n_features
    history = np.empty((len(some.history), len(hubs)))
    history[...] = some.history
    for number, model in found.items():
        history[:, number] = model.history[:, 0]
        for column, name in zip(blocks.features[number], model.feature_names, strict=True):
            names_of[column] = name
    report = {name: value for name, value in some.report.items() if name != "shard"}
    report |= {"n_features": blocks.n_features, "feature_names": names_of, "hubs": hubs}
    report["n_agents"] = len(report["agent_names"])
    return Model(mixture, tuple(names_of), report, history, some.options, some.versions)


def _gaussian(blocks: Blocks, found: dict[int, Model]) -> Any:
    """Join hubs of Gaussian features."""
    some = next(iter(found.values()))
    parts = [_part(blocks, number, model) for number, model in sorted(found.items())]
    for number in sorted(set(range(blocks.n_blocks)) - set(found)):
        parts.append(_part(blocks, number, some, empty=True))
    return join_parts(blocks, some.mixture.covariance_type, parts)


def _families(blocks: Blocks, found: dict[int, Model]) -> Any:
    """Join hubs whose features are of several families; None where all are Gaussian."""
    some = next(iter(found.values())).mixture
    mixed = [isinstance(model.mixture, MixedMixture) for model in found.values()]
    if not any(mixed):
        return None
    if not all(mixed):
        raise InputError("the shards differ in whether they have families of features")
    families, counts = [""] * blocks.n_features, [0] * blocks.n_features
    sent = []
    for number in range(blocks.n_blocks):
        own: Report = {"numbers": [number], "weights": some.weights, "parts": {}, "levels": {}}
        if number in found:
            mixture = found[number].mixture
            columns = blocks.features[number].tolist()
            for place, column in enumerate(columns):
                families[column] = mixture.kinds.families[place]
                counts[column] = mixture.kinds.n_levels[place]
            named = {columns[place]: names for place, names in mixture.kinds.levels.items()}
            own |= {"weights": mixture.weights, **sent_of(mixture, named)}
        sent.append(own)
    kinds = Kinds(tuple(families), tuple(counts))
    return join_families(blocks, kinds, some.covariance_type, sent)


def _told(path: PathLike, model: Model) -> Report:
    """What a shard tells of itself; a file may hold anything there."""
    if "shard" not in model.report:
        raise InputError(
            f"{path} is no shard of a model; shards are written by 'vpem fit ... --engine mpi "
            "--shards'"
        )
    place = Place(f"the shard {path}")
    check(Mapping(some=REPORT), model.report, place)
    shard: Report = model.report["shard"]
    columns = shard["hubs"][shard["number"]]["features"]
    if len(columns) != model.mixture.n_features:
        wanted = f"that of a hub with {model.mixture.n_features} features"
        place.inside("shard", "number").refuse(wanted, f"{shard['number']}")
    return shard


def _loadings(mixture: Any, empty: bool) -> Report:
    """Loadings of a hub whose features share factors with others'."""
    if not isinstance(mixture, FactorMixture):
        return {}
    return {"loadings": mixture.loadings[:, :0] if empty else mixture.loadings}


def _part(blocks: Blocks, number: int, model: Model, empty: bool = False) -> Report:
    mixture = model.mixture
    copies = mixture.n_copies
    nothing = np.empty((copies, 0)) if mixture.is_diagonal else np.empty(0)
    return {
        "numbers": np.array([number], dtype=np.intp),
        "weights": mixture.weights,
        "means": np.empty((mixture.n_components, 0)) if empty else mixture.means,
        "covariances": nothing if empty else mixture.covariances,
        **_loadings(mixture, empty),
        "shift": np.empty(0) if empty else mixture.scaling.shift,
        "scale": np.empty(0) if empty else mixture.scaling.scale,
    }
