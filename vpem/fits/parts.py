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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles
from vpem.engines.engine import set_topic
from vpem.errors import InputError
from vpem.files.models import MOST_AGENTS, Model, current_versions, read_model, write_model
from vpem.files.opening import PathLike
from vpem.fits.results import Fit
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
from vpem.terms.factors import FactorMixture, mixture_of
from vpem.terms.families.family import Part
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixture import LAWS, MixedMixture
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture, block_views, covariance_shape, is_diagonal, is_tied
from vpem.terms.units import Scaling
from vpem.terms.variational import VariationalMixture


def own_blocks(whole: Blocks, numbers: Sequence[int] | NDArray[np.intp]) -> Blocks:
    """Return some blocks, whose features are counted from 0, block by block."""
    ends = np.cumsum([0, *(len(whole.features[b]) for b in numbers)])
    return Blocks(
        tuple(np.arange(begin, end, dtype=np.intp) for begin, end in pairwise(ends)),
        tuple(whole.roots[b] for b in numbers),
        tuple(whole.agents[b] for b in numbers),
    )


def cut_blocks(mixture: Mixture, numbers: Sequence[int] | NDArray[np.intp]) -> Mixture:
    """Return some blocks of a mixture, whose features are counted from 0, block by block."""
    whole = mixture.blocks
    features, blocks = [whole.features[b] for b in numbers], own_blocks(whole, numbers)
    columns = joined(features)
    inside = joined([np.arange(whole.offsets[b], whole.offsets[b + 1]) for b in numbers])
    if mixture.is_diagonal:
        covariances = np.ascontiguousarray(mixture.covariances[:, inside])
    else:
        views = mixture.covariance_blocks
        covariances = np.concatenate([np.empty(0), *(views[b].ravel() for b in numbers)])
    scaling = Scaling(mixture.scaling.shift[columns], mixture.scaling.scale[columns])
    means = np.ascontiguousarray(mixture.means[:, inside])
    weights = mixture.weights if len(mixture.weights) == 1 else mixture.weights[numbers]
    loadings = {}
    if isinstance(mixture, FactorMixture):
        loadings["loadings"] = np.ascontiguousarray(mixture.loadings[:, inside])
    return mixture_of(
        blocks, mixture.covariance_type, scaling, weights=weights, means=means,
        covariances=covariances, **loadings,
    )  # fmt: skip


def join_parts(blocks: Blocks, covariance_type: str, parts: Sequence[Report]) -> Mixture:
    """Join the parts of a mixture that several processes have.

    Each has the ``numbers`` of its blocks, ``weights`` (one set, or one a block), ``means``,
    ``covariances``, ``loadings`` where there are factors, and ``shift`` and ``scale`` in the order
    of these blocks.
    """
    n_components = parts[0]["means"].shape[0]
    d, b = blocks.n_features, blocks.n_blocks
    means, shift, scale = np.empty((n_components, d)), np.empty(d), np.empty(d)
    copies = 1 if is_tied(covariance_type) else n_components
    covariances = np.empty(covariance_shape(blocks, covariance_type, n_components))
    weights = joined_weights(b, parts)
    loadings = {}
    if "loadings" in parts[0]:
        loadings["loadings"] = np.empty((n_components, d, parts[0]["loadings"].shape[2]))
    views = (
        None if is_diagonal(covariance_type) else block_views(covariances, blocks.widths, copies)
    )
    for part in parts:
        numbers = part["numbers"]
        ends = np.cumsum([0, *blocks.widths[numbers]])
        inner = None
        if views is not None:
            inner = block_views(part["covariances"], blocks.widths[numbers], copies)
        for place, number in enumerate(numbers):
            columns = slice(ends[place], ends[place + 1])
            to = slice(blocks.offsets[number], blocks.offsets[number + 1])
            means[:, to] = part["means"][:, columns]
            shift[blocks.order[to]] = part["shift"][columns]
            scale[blocks.order[to]] = part["scale"][columns]
            for name, values in loadings.items():
                values[:, to] = part[name][:, columns]
            if views is None:
                covariances[:, to] = part["covariances"][:, columns]
            else:
                assert inner is not None
                views[number][...] = inner[place]
    return mixture_of(
        blocks, covariance_type, Scaling(shift, scale), weights=weights, means=means,
        covariances=covariances, **loadings,
    )  # fmt: skip


def joined_weights(n_blocks: int, parts: Sequence[Report]) -> NDArray[np.float64]:
    """Return mixing weights (R, K) of all blocks, or one set that all share.

    ``parts`` have ``numbers`` of their blocks and ``weights``, one set, or one a block.
    """
    weights = np.empty((n_blocks, parts[0]["weights"].shape[1]))
    for part in parts:
        weights[part["numbers"]] = part["weights"]
    # One set for other than one block is shared by all, elsewhere too.
    if any(len(part["weights"]) == 1 != len(part["numbers"]) for part in parts):
        shared: NDArray[np.float64] = parts[0]["weights"]
        return shared
    return weights


def joined(parts: list[NDArray[np.intp]]) -> NDArray[np.intp]:
    """Return runs of numbers one after the other."""
    return np.concatenate([np.empty(0, dtype=np.intp), *parts])


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


def sent_of(mixture: MixedMixture, levels: Mapping[int, tuple[str, ...]]) -> Report:
    """Return what a process sends of its part: parameters by family, and names of levels.

    ``levels`` are those that this process knows, by the number of the feature among all.
    """
    parts = {}
    for part in mixture.parts:
        arrays = part.arrays()
        if part.core is not None:
            arrays |= {"shift": part.core.scaling.shift, "scale": part.core.scaling.scale}
        parts[part.family] = arrays
    return {"parts": parts, "levels": {str(j): list(names) for j, names in levels.items()}}


def join_families(
    blocks: Blocks, kinds: Kinds, covariance_type: str, sent: Sequence[Report]
) -> MixedMixture:
    """Join the parts that several processes have, for the blocks and kinds of all.

    Each has the ``numbers`` of its blocks, ``weights``, and what `sent_of` says.
    """
    levels = {int(j): tuple(names) for one in sent for j, names in one["levels"].items()}
    kinds = replace(kinds, levels=levels)
    weights = joined_weights(blocks.n_blocks, sent)
    parts = []
    for family, features in kinds.split(blocks).items():
        law = LAWS[family]
        cells = features.cells(law.each)
        hubs = np.repeat(np.arange(blocks.n_blocks), cells)
        with_family = [one for one in sent if family in one["parts"]]
        tables = {name: np.zeros((weights.shape[1], len(hubs))) for name in law.domains}
        for one in with_family:
            ends = np.cumsum([0, *cells[one["numbers"]]])
            for name, table in tables.items():
                for place, number in enumerate(one["numbers"]):
                    there = one["parts"][family][name][:, ends[place] : ends[place + 1]]
                    table[:, hubs == number] = there
        core = None
        if law.has_core:
            both = ("numbers", "weights")
            cores = [{n: one[n] for n in both} | one["parts"][family] for one in with_family]
            core = join_parts(features.blocks, covariance_type, cores)
        parts.append(Part(family, features, tables, core))
    return MixedMixture(blocks, kinds, covariance_type, weights, tuple(parts))


def sent_of_gaussian(mixture: Mixture, numbers: NDArray[np.intp]) -> Report:
    """Return a part of a mixture, or of a posterior, as `join_parts` takes it."""
    arrays: Report = {
        "numbers": numbers,
        **mixture.arrays(),
        "shift": mixture.scaling.shift,
        "scale": mixture.scaling.scale,
    }
    if isinstance(mixture, VariationalMixture):
        arrays |= {
            "prior": sent_of_gaussian(mixture.prior_mixture, numbers),
            "freedom": mixture.prior.degrees_of_freedom,
        }
    return arrays


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


def cut(mixture: Any, numbers: Sequence[int] | NDArray[np.intp]) -> Any:
    """Return some blocks of a mixture, whose features are counted from 0, block by block."""
    if isinstance(mixture, VariationalMixture):
        hubs = list(numbers)
        counts = mixture.counts if len(mixture.counts) == 1 else mixture.counts[hubs]
        plain, one = cut_blocks(mixture.plain, hubs), cut_blocks(mixture.prior_mixture, hubs)
        return mixture.of_hubs(
            plain, one, counts, mixture.seen[hubs], mixture.prior.degrees_of_freedom[hubs]
        )
    if not isinstance(mixture, MixedMixture):
        return cut_blocks(mixture, numbers)
    whole, blocks = mixture.blocks, own_blocks(mixture.blocks, numbers)
    kinds, parts = mixture.kinds.take_features(joined([whole.features[b] for b in numbers])), []
    for part in mixture.parts:
        if part.family in kinds.present:
            cells = part.features.cells(LAWS[part.family].each)
            ends = np.cumsum([0, *cells])
            places = joined([np.arange(ends[b], ends[b + 1]) for b in numbers])
            tables = {
                name: np.ascontiguousarray(table[:, places]) for name, table in part.tables.items()
            }
            core = None if part.core is None else cut_blocks(part.core, numbers)
            features = kinds.features(part.family, blocks)
            parts.append(Part(part.family, features, tables, core))
    weights = mixture.weights if len(mixture.weights) == 1 else mixture.weights[numbers]
    return MixedMixture(blocks, kinds, mixture.covariance_type, weights, tuple(parts))


def own_columns_of_hubs(network: Network) -> NDArray[np.intp]:
    """Columns of this process's blocks as the user numbers them, in block order."""
    return joined([network.whole.blocks.features[b] for b in network.total.holders.own])


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
    if not isinstance(fit.mixture, MixedMixture):
        return None
    return agree_on_kinds(fit.mixture.kinds, own_columns_of_hubs(fit.network), fit.network)


def gathered(fit: Fit) -> Fit:
    """Return a fit with the mixture of all processes' blocks in the first; as it is elsewhere."""
    network = fit.network
    mixture: Any = fit.mixture
    kinds = _agreed(fit)
    arrays: dict[str, Any] = {"numbers": network.total.holders.own, "weights": mixture.weights}
    if kinds is None:
        arrays = sent_of_gaussian(mixture, network.total.holders.own)
    else:
        arrays |= sent_of(mixture, kinds.levels)
    engine = network.total.holders.engine
    with set_topic(engine, "result"):
        parts = engine.gather(arrays)
    if parts is None:
        return fit
    blocks, covariance_type = network.whole.blocks, mixture.covariance_type
    if kinds is None:
        whole: Any = join_parts(blocks, covariance_type, parts)
        if isinstance(mixture, VariationalMixture):
            prior = join_parts(blocks, covariance_type, [part["prior"] for part in parts])
            shape = (blocks.n_blocks, whole.n_components)
            counts, seen, freedom = np.empty(shape), np.empty(shape), np.empty(shape[0])
            for part in parts:
                at = part["numbers"]
                counts[at], seen[at], freedom[at] = part["counts"], part["seen"], part["freedom"]
            if len(whole.weights) == 1:
                counts = next(part["counts"] for part in parts if len(part["counts"]))[:1]
            whole = mixture.of_hubs(whole, prior, counts, seen, freedom)
    else:
        whole = join_families(blocks, kinds, covariance_type, parts)
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
            one.mixture.covariance_type,
            one.mixture.n_components,
            one.mixture.n_factors,
            len(one.history),
        )
        for one in models.values()
    }
    if len(kinds) > 1:
        raise InputError("the shards differ in components, covariances, factors or iterations")
    mixture = _families(blocks, models)
    if mixture is None:  # all are Gaussian
        parts = [_part(blocks, number, model) for number, model in sorted(models.items())]
        for number in sorted(set(range(blocks.n_blocks)) - set(models)):
            parts.append(_part(blocks, number, some, empty=True))
        mixture = join_parts(blocks, some.mixture.covariance_type, parts)
    if first["shared"]:
        mixture = replace(mixture, weights=some.mixture.weights)
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
    return Model(mixture, tuple(names_of), report, history, some.options, some.versions)


def _families(blocks: Blocks, models: dict[int, Model]) -> Any:
    some = next(iter(models.values())).mixture
    mixed = [isinstance(model.mixture, MixedMixture) for model in models.values()]
    if not any(mixed):
        return None
    if not all(mixed):
        raise InputError("the shards differ in whether they have families of features")
    families, counts = [""] * blocks.n_features, [0] * blocks.n_features
    sent = []
    for number in range(blocks.n_blocks):
        arrays: Report = {"numbers": [number], "weights": some.weights, "parts": {}, "levels": {}}
        if number in models:
            mixture = models[number].mixture
            columns = blocks.features[number].tolist()
            for place, column in enumerate(columns):
                families[column] = mixture.kinds.families[place]
                counts[column] = mixture.kinds.n_levels[place]
            named = {columns[place]: names for place, names in mixture.kinds.levels.items()}
            arrays |= {"weights": mixture.weights, **sent_of(mixture, named)}
        sent.append(arrays)
    kinds = Kinds(tuple(families), tuple(counts))
    return join_families(blocks, kinds, some.covariance_type, sent)


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


def _part(blocks: Blocks, number: int, model: Model, empty: bool = False) -> Report:
    mixture = model.mixture
    copies = mixture.n_copies
    loadings = {}
    if isinstance(mixture, FactorMixture):  # features share factors with those of other hubs
        loadings["loadings"] = mixture.loadings[:, :0] if empty else mixture.loadings
    nothing = np.empty((copies, 0)) if mixture.is_diagonal else np.empty(0)
    return {
        "numbers": np.array([number], dtype=np.intp),
        "weights": mixture.weights,
        "means": np.empty((mixture.n_components, 0)) if empty else mixture.means,
        "covariances": nothing if empty else mixture.covariances,
        **loadings,
        "shift": np.empty(0) if empty else mixture.scaling.shift,
        "scale": np.empty(0) if empty else mixture.scaling.scale,
    }
