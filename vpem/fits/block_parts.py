"""Some blocks of a Gaussian mixture, and how parts that processes have become one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem.network.partition import Blocks
from vpem.network.schema import Report
from vpem.terms.covariances import block_views, covariance_shape, is_diagonal, is_tied
from vpem.terms.factor_mixture import FactorMixture, mixture_of
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling


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
            own = slice(ends[place], ends[place + 1])
            to = slice(blocks.offsets[number], blocks.offsets[number + 1])
            means[:, to] = part["means"][:, own]
            shift[blocks.order[to]] = part["shift"][own]
            scale[blocks.order[to]] = part["scale"][own]
            for name, values in loadings.items():
                values[:, to] = part[name][:, own]
            if views is None:
                covariances[:, to] = part["covariances"][:, own]
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
