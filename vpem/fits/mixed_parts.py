"""Parts of mixtures of several families that processes have, and how they become a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpem.fits.block_parts import cut_blocks, join_parts, joined_weights, own_blocks
from vpem.network.partition import Blocks
from vpem.network.schema import Report
from vpem.sums.connect import Network
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.laws import law_of
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.families.part import Part
from vpem.terms.mixture import Mixture


def agree_on_kinds(
    kinds: Kinds | None, columns: NDArray[np.intp], network: Network
) -> Kinds | None:
    """Tell all processes which families features have, and of how many levels; not their names.

    ``kinds`` are of this process's features, ``columns`` (d,) which these are among all; the result
    is of all features, with the names of levels of this process's. None: all are Gaussian.
    """
    told = None
    if kinds is not None and not kinds.is_gaussian:
        told = [columns.tolist(), list(kinds.families), list(kinds.n_levels)]
    every = [one for one in network.total.holders.engine.allgather(told) if one is not None]
    if not every:
        return None
    d = network.whole.blocks.n_features
    families, n_levels = ["gaussian"] * d, [0] * d
    for own, names, counts in every:
        for column, name, count in zip(own, names, counts, strict=True):
            families[column], n_levels[column] = name, count
    levels = {} if kinds is None else dict(kinds.levels)
    named = {int(columns[place]): names for place, names in levels.items()}
    return Kinds(tuple(families), tuple(n_levels), named)


def cut_families(mixture: MixedMixture, numbers: Sequence[int] | NDArray[np.intp]) -> MixedMixture:
    """Return some blocks of a mixture, whose features are counted from 0, block by block."""
    whole, blocks = mixture.blocks, own_blocks(mixture.blocks, numbers)
    columns = np.concatenate([np.empty(0, np.intp), *(whole.features[b] for b in numbers)])
    kinds, parts = mixture.kinds.of(columns), []
    for part in mixture.parts:
        if part.family in kinds.present:
            features = kinds.features(part.family, blocks)
            hubs = law_of(part.family).hubs_of_cells(part.features)
            chosen = {
                name: [np.flatnonzero(own == b) for b in numbers] for name, own in hubs.items()
            }
            tables = {
                name: np.ascontiguousarray(table[:, np.concatenate(chosen[name])])
                for name, table in part.tables.items()
            }
            core = None if part.core is None else cut_blocks(part.core, numbers)
            parts.append(Part(part.family, features, tables, core))
    weights = mixture.weights if len(mixture.weights) == 1 else mixture.weights[numbers]
    return MixedMixture(blocks, kinds, mixture.covariance_type, weights, tuple(parts))


def sent_of(mixture: MixedMixture, levels: Mapping[int, tuple[str, ...]]) -> Report:
    """Return what a process sends of its part: parameters by family, and names of levels.

    ``levels`` are those that this process knows, by the number of the feature among all.
    """
    parts = {}
    for part in mixture.parts:
        own = part.arrays()
        if part.core is not None:
            own |= {"shift": part.core.scaling.shift, "scale": part.core.scaling.scale}
        parts[part.family] = own
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
        law = law_of(family)
        hubs = law.hubs_of_cells(features)
        own = [one for one in sent if family in one["parts"]]
        tables = {name: np.zeros((weights.shape[1], len(cells))) for name, cells in hubs.items()}
        for one in own:
            counts = {n: cells[one["numbers"]] for n, cells in law.cells_of_hubs(features).items()}
            for name, table in tables.items():
                ends = np.cumsum([0, *counts[name]])
                for place, number in enumerate(one["numbers"]):
                    there = one["parts"][family][name][:, ends[place] : ends[place + 1]]
                    table[:, hubs[name] == number] = there
        core = None
        if law.has_core:
            both = ("numbers", "weights")
            cores = [{n: one[n] for n in both} | one["parts"][family] for one in own]
            core = join_parts(features.blocks, covariance_type, cores)
        parts.append(Part(family, features, tables, core))
    return MixedMixture(blocks, kinds, covariance_type, weights, tuple(parts))


def blank_mixture(
    blocks: Blocks, kinds: Kinds, covariance_type: str, weights: NDArray[np.float64]
) -> MixedMixture:
    """Return a mixture of these families without parameters: what is counted of it is right."""
    k, parts = weights.shape[1], []
    for family, features in kinds.split(blocks).items():
        law = law_of(family)
        tables = {
            name: np.zeros((k, len(cells))) for name, cells in law.hubs_of_cells(features).items()
        }
        core = Mixture.blank(features.blocks, covariance_type, k) if law.has_core else None
        parts.append(Part(family, features, tables, core))
    return MixedMixture(blocks, kinds, covariance_type, weights, tuple(parts))
