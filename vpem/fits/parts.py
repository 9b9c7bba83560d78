"""What one process has of a mixture whose hubs live in several, and how parts become a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import about
from vpem.fits.results import Fit
from vpem.network.blocks import Blocks
from vpem.network.schema import Report
from vpem.sums.connect import Network
from vpem.terms.covariances import block_views
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling

__all__ = [
    "complete",
    "gathered",
    "join_centres",
    "join_parts",
    "outline",
    "own_columns_of_hubs",
    "own_start",
]


def complete(terms: FeatureTerms, network: Network) -> FeatureTerms:
    """Give terms what they cannot know: of the features and blocks of other processes."""
    holders, blocks = network.total.holders, network.whole.blocks
    engine = holders.engine

    def add_up(hubs: NDArray[np.float64]) -> float:
        return float(holders.add_up(hubs[:, None])[0])

    terms.add_up = add_up
    terms.log_constant = add_up(terms.constants())
    terms.widest = int(blocks.widths.max(initial=0))
    terms.n_features = blocks.n_features
    # Where any reads rows from a file, all add up the same runs of them.
    steps = [step for step in engine.allgather(getattr(terms.rows, "step", None)) if step]
    if engine.apart and steps:
        terms.rows.cut(min(steps))
    return terms


def own_start(start: Mixture, network: Network, covariance_type: str, scaling: Scaling) -> Mixture:
    """Return this process's part of a mixture of all features, as a start."""
    whole, numbers = network.whole.blocks, network.total.holders.own
    if network.part_of is None:
        return start.over(whole, covariance_type, scaling)
    columns = own_columns_of_hubs(network)
    shift, scale = np.zeros(whole.n_features), np.ones(whole.n_features)
    shift[columns], scale[columns] = scaling.shift, scaling.scale
    every = start.over(whole, covariance_type, Scaling(shift, scale))
    return replace(cut(every, numbers), blocks=network.blocks, scaling=scaling)


def cut(mixture: Mixture, numbers: Sequence[int] | NDArray[np.intp]) -> Mixture:
    """Return some blocks of a mixture, whose features are counted from 0, block by block."""
    whole = mixture.blocks
    features = [whole.features[b] for b in numbers]
    ends = np.cumsum([0, *map(len, features)])
    blocks = Blocks(
        tuple(np.arange(begin, end, dtype=np.intp) for begin, end in pairwise(ends)),
        tuple(whole.roots[b] for b in numbers),
        tuple(whole.agents[b] for b in numbers),
    )
    columns = _joined(features)
    inside = _joined([np.arange(whole.offsets[b], whole.offsets[b + 1]) for b in numbers])
    if mixture.is_diagonal:
        covariances = np.ascontiguousarray(mixture.covariances[:, inside])
    else:
        views = mixture.covariance_blocks
        covariances = np.concatenate([np.empty(0), *(views[b].ravel() for b in numbers)])
    scaling = Scaling(mixture.scaling.shift[columns], mixture.scaling.scale[columns])
    means = np.ascontiguousarray(mixture.means[:, inside])
    weights = mixture.weights if len(mixture.weights) == 1 else mixture.weights[numbers]
    return Mixture(blocks, mixture.covariance_type, weights, means, covariances, scaling)


def own_columns_of_hubs(network: Network) -> NDArray[np.intp]:
    """Columns of this process's blocks as the user numbers them, in block order."""
    return _joined([network.whole.blocks.features[b] for b in network.total.holders.own])


def join_centres(
    network: Network,
    centres: NDArray[np.float64],
    scaling: Scaling,
    deviations: NDArray[np.float64],
) -> tuple[NDArray[np.float64], Scaling, NDArray[np.float64]]:
    """Join the parts of centres that several processes have, in the user's order and units.

    Parameters
    ----------
    network : Network
        Whose hubs hold the features.
    centres : ndarray of shape (K, d)
        Of this process's features, in block order and in the units of clustering.
    scaling : Scaling
        These units, of this process's features.
    deviations : ndarray of shape (d,)
        Standard deviations of these features, in the user's units.

    Returns
    -------
    centres : ndarray of shape (K, d)
        Of all features in the first process, of its own in others.
    scaling : Scaling
        Likewise.
    deviations : ndarray of shape (d,)
        Likewise.
    """
    placed = np.empty_like(centres)
    placed[:, network.blocks.order] = centres
    placed = scaling.undo(placed)
    if network.part_of is None:
        return placed, scaling, deviations
    own = {
        "columns": own_columns_of_hubs(network),
        "centres": placed,
        "shift": scaling.shift,
        "scale": scaling.scale,
        "deviations": deviations,
    }
    engine = network.total.holders.engine
    with about(engine, "result"):
        parts = engine.gather(own)
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


def gathered(fit: Fit) -> Fit:
    """Return a fit with the mixture of all processes' blocks in the first; as it is elsewhere."""
    network, mixture = fit.network, fit.mixture
    own = {
        "numbers": network.total.holders.own,
        "weights": mixture.weights,
        "means": mixture.means,
        "covariances": mixture.covariances,
        "shift": mixture.scaling.shift,
        "scale": mixture.scaling.scale,
    }
    engine = network.total.holders.engine
    with about(engine, "result"):
        parts = engine.gather(own)
    if parts is None:
        return fit
    whole = join_parts(network.whole.blocks, mixture.covariance_type, parts)
    return replace(fit, mixture=whole, network=network.whole)


def outline(fit: Fit) -> Fit:
    """Return a fit whose parameters stayed where they are, as the whole network's without them.

    What a report counts is right, and the mixing weights are this process's; all other parameters
    are placeholders.
    """
    network = fit.network.whole
    blocks, kind, k = network.blocks, fit.mixture.covariance_type, fit.mixture.n_components
    copies = fit.mixture.n_copies
    squares = int((blocks.widths.astype(np.int64) ** 2).sum())
    d = blocks.n_features
    mixture = Mixture(
        blocks,
        kind,
        fit.mixture.weights[:1] if len(fit.mixture.weights) else np.full((1, k), 1.0 / k),
        np.zeros((k, d)),
        np.ones((copies, d)) if fit.mixture.is_diagonal else np.zeros(copies * squares),
        Scaling.none(d),
    )
    return replace(fit, mixture=mixture, network=network)


def join_parts(blocks: Blocks, covariance_type: str, parts: Sequence[Report]) -> Mixture:
    """Join the parts of a mixture that several processes have.

    Parameters
    ----------
    blocks : Blocks
        Of all.
    covariance_type : str
        As the parts have it.
    parts : sequence of dict
        ``numbers`` of its blocks, ``weights`` (one set, or one a block), ``means``,
        ``covariances``, ``shift`` and ``scale`` in the order of these blocks.
    """
    n_components = parts[0]["means"].shape[0]
    d, b = blocks.n_features, blocks.n_blocks
    means, shift, scale = np.empty((n_components, d)), np.empty(d), np.empty(d)
    diagonal = not covariance_type.endswith(("full", "tied"))
    copies = 1 if covariance_type.startswith("tied") else n_components
    squares = int((blocks.widths.astype(np.int64) ** 2).sum())
    covariances = np.empty((copies, d) if diagonal else copies * squares)
    weights = np.empty((b, n_components))
    # One set for other than one block is shared by all, elsewhere too.
    shared = any(len(part["weights"]) == 1 != len(part["numbers"]) for part in parts)
    views = None if diagonal else block_views(covariances, blocks.widths, copies)
    for part in parts:
        numbers = part["numbers"]
        weights[numbers] = part["weights"]
        ends = np.cumsum([0, *blocks.widths[numbers]])
        inner = None
        if views is not None:
            inner = block_views(part["covariances"], blocks.widths[numbers], copies)
        for place, number in enumerate(numbers):
            own = slice(ends[place], ends[place + 1])
            to = slice(blocks.offsets[number], blocks.offsets[number + 1])
            means[:, to] = part["means"][:, own]
            shift[blocks.order[to]] = part["shift"][own]
            scale[blocks.order[to]] = part["scale"][own]
            if views is None:
                covariances[:, to] = part["covariances"][:, own]
            else:
                assert inner is not None
                views[number][...] = inner[place]
    if shared:
        weights = parts[0]["weights"]
    return Mixture(blocks, covariance_type, weights, means, covariances, Scaling(shift, scale))


def _joined(parts: list[NDArray[np.intp]]) -> NDArray[np.intp]:
    return np.concatenate([np.empty(0, dtype=np.intp), *parts])
