"""Parts of a mixture whose hubs live in several processes, and how they become a whole.

Mixtures are Gaussian, of several families, or variational posteriors. As shards they stay in
pieces: each hub's root writes its own parameters, and no process has them all. A shard is a model
file of its own, of the hub's features alone: it scores and samples these. It also says which piece
of what it is, so that shards can be joined by those who may have all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Indices
from vpem.engines.engine import set_topic
from vpem.errors import InputError
from vpem.files.models import MOST_AGENTS, Model, current_versions, read_model, write_model
from vpem.files.opening import PathLike
from vpem.fits.results import Fit, reported
from vpem.network.partition import Blocks
from vpem.network.schema import (
    COUNT,
    FLAG,
    TEXT,
    Integer,
    ListOf,
    Place,
    Report,
    Schema,
    TableOf,
    check,
)
from vpem.sums.connect import Network
from vpem.terms.factors import FactorMixture
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.priors import wishart_sizes
from vpem.terms.units import Scaling


def agree_on_kinds(
    kinds: Kinds | None, columns: NDArray[np.intp], network: Network
) -> Kinds | None:
    """Send all processes which families features have, and of how many levels; not their names.

    ``kinds`` describe this process's features, whose numbers among all are ``columns`` (d,); the
    result describes all features, with the names of this process's levels. None: all are Gaussian.
    """
    own_kinds = None
    if kinds is not None and not kinds.is_gaussian:
        own_kinds = [columns.tolist(), list(kinds.families), list(kinds.n_levels)]
    every = [one for one in network.total.holders.engine.allgather(own_kinds) if one is not None]
    if not every:
        return None
    d = network.whole.blocks.n_features
    families, n_levels = ["gaussian"] * d, [0] * d
    for own_columns, names, counts in every:
        for column, name, count in zip(own_columns, names, counts, strict=True):
            families[column], n_levels[column] = name, count
    levels = {} if kinds is None else dict(kinds.levels)
    named = {int(columns[place]): names for place, names in levels.items()}
    return Kinds(tuple(families), tuple(n_levels), named)


def sent_of(
    mixture: Any, numbers: Sequence[int] | Indices, levels: Mapping[int, tuple[str, ...]] | None
) -> Report:
    """Return what is sent of a mixture whose hubs have these numbers: parameters and units.

    Of several families also names of levels, by the number of the feature among all; None: all are
    Gaussian.
    """
    sent: Report = {"numbers": numbers, **mixture.sent()}
    if levels is not None:
        sent["levels"] = {str(j): list(names) for j, names in levels.items()}
    return sent


def join_families(
    blocks: Blocks, kinds: Kinds, covariance_type: str, sent: Sequence[Report]
) -> MixedMixture:
    """Join what processes have sent, for the blocks and kinds of all."""
    levels = {int(j): tuple(names) for one in sent for j, names in one["levels"].items()}
    kinds, k = replace(kinds, levels=levels), sent[0]["weights"].shape[1]
    return MixedMixture.blank(blocks, kinds, covariance_type, k).join_hubs(blocks, sent)


def complete(terms: FeatureTerms, network: Network, *, in_sums: bool = False) -> FeatureTerms:
    """Give terms facts about the features and blocks of other processes.

    Where masked sums go on without a lost member, the constant, which depends on the data and not
    on parameters, is never sent alone if it can travel ``in_sums`` of log-likelihoods or is not
    needed.
    """
    holders, blocks = network.total.holders, network.whole.blocks
    engine = holders.engine

    def add_up(hubs: NDArray[np.float64]) -> float:
        return float(holders.add_up(hubs[:, None])[0])

    terms.add_up = add_up
    terms.constant_in_sums = in_sums and holders.masks is not None and engine.outlast is not None
    terms.log_constant = 0.0 if terms.constant_in_sums else add_up(terms.constants())
    terms.widest = int(blocks.widths.max(initial=0))
    terms.n_features = blocks.n_features
    # Where any reads rows from a file, all add up the same runs of them.
    steps = [step for step in engine.allgather(getattr(terms.rows, "step", None)) if step]
    if engine.apart and steps:
        terms.rows.cut(min(steps))
    return terms


def own_columns_of_hubs(network: Network) -> NDArray[np.intp]:
    """Columns of this process's blocks as the user numbers them, in block order."""
    return network.whole.blocks.columns_of(network.total.holders.own)


def join_centres(
    network: Network, centres: Doubles, scaling: Scaling, deviations: Doubles
) -> tuple[Doubles, Scaling, Doubles]:
    """Join parts of centres (K, d), their units, and deviations (d,), that several processes have.

    Given are those of this process's features: centres in block order and in the units of
    clustering, deviations in the user's units. Returned are, in the user's order and units, those
    of all features in the first process, of its own in others.
    """
    placed = np.empty_like(centres)
    placed[:, network.blocks.order] = centres
    placed = scaling.undo(placed)
    if network.part_of is None:
        return placed, scaling, deviations
    arrays = {
        "columns": own_columns_of_hubs(network),
        "centres": placed,
        "shift": scaling.shift,
        "scale": scaling.scale,
        "deviations": deviations,
    }
    engine = network.total.holders.engine
    with set_topic(engine, "result"):
        parts = engine.gather(arrays)
    if parts is None:
        return placed, scaling, deviations
    d = network.part_of.blocks.n_features
    every, (shift, scale, spread) = np.empty((len(placed), d)), np.empty((3, d))
    for part in parts:
        columns = part["columns"]
        every[:, columns] = part["centres"]
        shift[columns], scale[columns] = part["shift"], part["scale"]
        spread[columns] = part["deviations"]
    return every, Scaling(shift, scale), spread


def _agreed(fit: Fit) -> Kinds | None:
    """Families of all features, as all processes send those of their hubs; None: all Gaussian."""
    if fit.mixture.kinds is None:
        return None
    return agree_on_kinds(fit.mixture.kinds, own_columns_of_hubs(fit.network), fit.network)


def gathered(fit: Fit) -> Fit:
    """Return a fit with the mixture of all processes' blocks in the first; as it is elsewhere."""
    network = fit.network
    mixture: Any = fit.mixture
    kinds = _agreed(fit)
    engine, numbers = network.total.holders.engine, network.total.holders.own
    with set_topic(engine, "result"):
        parts = engine.gather(sent_of(mixture, numbers, None if kinds is None else kinds.levels))
    if parts is None:
        return fit
    blocks = network.whole.blocks
    if kinds is None:
        whole = mixture.join_hubs(blocks, parts)
    else:
        whole = join_families(blocks, kinds, mixture.covariance_type, parts)
    return replace(fit, mixture=whole, network=network.whole)


def outline(fit: Fit) -> Fit:
    """Return a fit whose parameters stayed where they are, as the whole network's without them.

    What a report counts is right, and the mixing weights are this process's; all other parameters
    are placeholders. All processes call it.
    """
    kinds = _agreed(fit)
    network = fit.network.whole
    blocks, kind, k = network.blocks, fit.mixture.covariance_type, fit.mixture.n_components
    weights = fit.mixture.weights[:1] if len(fit.mixture.weights) else np.full((1, k), 1.0 / k)
    mixture: Any
    if kinds is None:
        mixture = Mixture.blank(blocks, kind, k).having({"weights": weights})
        if fit.mixture.n_factors:
            none = np.zeros((*mixture.means.shape, fit.mixture.n_factors))
            mixture = FactorMixture(**vars(mixture), loadings=none)
    else:
        blank = MixedMixture.blank(blocks, kinds, kind, weights.shape[1])
        mixture = replace(blank, weights=weights)
    return replace(fit, mixture=mixture, network=network)


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
"""Parts of the report of a shard."""


def shard_path(output: PathLike, name: str) -> Path:
    """Return the file of a root's shard beside a model's: ``model.h5`` gives ``model.lab.h5``."""
    path = Path(output)
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "agent"
    return path.with_name(f"{path.stem}.{safe}{path.suffix}")


def paths_apart(output: PathLike, named: Sequence[tuple[str, int]]) -> list[Path]:
    """Return files beside a model's, all different, of those with these names and numbers."""
    plain = [shard_path(output, name) for name, _ in named]
    return [
        path if plain.count(path) == 1 else shard_path(output, f"{name}-{number}")
        for (name, number), path in zip(named, plain, strict=True)
    ]


def shard_paths(output: PathLike, blocks: Blocks, names: Sequence[str]) -> dict[int, Path]:
    """Return files, all different, of the shards of all hubs with features, by their numbers."""
    paths = paths_apart(output, [([*names, "server"][root], root) for root in blocks.roots])
    return {b: path for b, path in enumerate(paths) if len(blocks.features[b])}


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
    alone = mixture.of_hubs([place])
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
        **reported(fit, "log_likelihood", "n_iter", "converged"),
    }
    history = np.ascontiguousarray(fit.history[:, [number]])
    model = Model(alone, tuple(feature_names), report, history, options, current_versions())
    write_model(path, model, force)


def join_shards(paths: Sequence[PathLike]) -> Model:
    """Read the shards of one fit, one of every hub that has features, and join them to the model.

    Their order does not matter.
    """
    models: dict[int, Model] = {}
    first: Report | None = None
    for path in paths:
        model = read_model(path)
        shard = _shard_of(path, model)
        if first is None:
            first = shard
        elif (shard["run"], shard["hubs"]) != (first["run"], first["hubs"]):
            raise InputError(f"{path} belongs to another fit than {paths[0]}")
        if shard["number"] in models:
            raise InputError(f"{path} is another shard of the same hub; give each hub's once")
        models[shard["number"]] = model
    if first is None:
        raise InputError("there are no shards to join")
    hubs = first["hubs"]
    missing = [b for b, hub in enumerate(hubs) if hub["features"] and b not in models]
    if missing:
        names = next(iter(models.values())).report["agent_names"]
        roots = [hubs[b]["root"] for b in missing]
        whose = ", ".join(str(names[r]) if r < len(names) else f"agent {r}" for r in roots)
        raise InputError(f"shards are missing: those of {whose}")
    blocks = Blocks(
        tuple(np.array(hub["features"], dtype=np.intp) for hub in hubs),
        tuple(hub["root"] for hub in hubs),
        tuple(tuple(hub["agents"]) for hub in hubs),
    )
    some = next(iter(models.values()))
    kinds = {
        (
            m.covariance_type, m.n_components, m.n_factors, n_iter,
            m.is_proper and (m.prior.kind, m.prior.concentration, m.prior.mean_precision),
        )
        for m, n_iter in ((one.mixture, len(one.history)) for one in models.values())
    }  # fmt: skip
    if len(kinds) > 1:
        raise InputError(
            "the shards differ in components, covariances, factors, priors or iterations"
        )
    mixed = [model.mixture.kinds is not None for model in models.values()]
    if any(mixed) and not all(mixed):
        raise InputError("the shards differ in whether they have families of features")
    common = _of_any_root(blocks, models)
    families, counts, sent = [""] * blocks.n_features, [0] * blocks.n_features, []
    for number, columns in enumerate(blocks.features):
        mixture, levels = models.get(number, some).mixture, None
        if number not in models:  # it has no features
            sent.append({"numbers": [number], "parts": {}, "levels": {}, **common})
            continue
        if mixed[0]:
            for place, column in enumerate(columns.tolist()):
                families[column] = mixture.kinds.families[place]
                counts[column] = mixture.kinds.n_levels[place]
            levels = {int(columns[at]): names for at, names in mixture.kinds.levels.items()}
        sent.append(sent_of(mixture, [number], levels))
    if mixed[0]:
        kinds_of_all = Kinds(tuple(families), tuple(counts))
        mixture = join_families(blocks, kinds_of_all, some.mixture.covariance_type, sent)
    else:
        mixture = some.mixture.join_hubs(blocks, sent)
    if first["shared"]:
        shared = [name for name, where in mixture.named.items() if where == "roots"]
        mixture = replace(mixture, **{name: common[name] for name in shared})
    names_of = [""] * blocks.n_features
    history = np.empty((len(some.history), len(hubs)))
    history[...] = some.history
    for number, model in models.items():
        history[:, number] = model.history[:, 0]
        for column, name in zip(blocks.features[number], model.feature_names, strict=True):
            names_of[column] = name
    report = {name: value for name, value in some.report.items() if name != "shard"}
    report |= {"n_features": blocks.n_features, "feature_names": names_of, "hubs": hubs}
    report["n_agents"] = len(report["agent_names"])
    if mixture.is_proper:
        report |= {"lower_bound": report["log_likelihood"], **mixture.reported()}
    return Model(mixture, tuple(names_of), report, history, some.options, some.versions)


def _of_any_root(blocks: Blocks, models: Mapping[int, Model]) -> Report:
    """What is joined of a hub without features: what any root found of all rows.

    A posterior has seen all of its root's rows there, and its prior has the degrees of freedom
    that all hubs were given, or as many as a hub of its width has.
    """
    some = next(iter(models.values())).mixture
    found = {name: getattr(some, name) for name, at in some.named.items() if at == "roots"}
    if some.is_proper:
        usual = wishart_sizes(blocks, some.covariance_type)
        freedom = {b: one.mixture.prior.degrees_of_freedom for b, one in models.items()}
        given = any(freedom[b] != usual[b] for b in models)
        found["seen"] = some.counts
        found["freedom"] = some.prior.degrees_of_freedom if given else np.ones(1)
    return found


def _shard_of(path: PathLike, model: Model) -> Report:
    if "shard" not in model.report:
        raise InputError(
            f"{path} is not a shard of a model; shards are written by 'vpem fit ... --engine mpi "
            "--shards'"
        )
    place = Place(f"the shard {path}")
    check(TableOf(some=REPORT), model.report, place)
    shard: Report = model.report["shard"]
    columns = shard["hubs"][shard["number"]]["features"]
    if len(columns) != model.mixture.n_features:
        expected = f"that of a hub with {model.mixture.n_features} features"
        place.inside("shard", "number").refuse(expected, f"{shard['number']}")
    return shard
