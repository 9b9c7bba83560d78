"""What one process has of a mixture whose hubs live in several, and how parts become a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import about
from vpem.fits.block_parts import cut_blocks, join_parts, joined
from vpem.fits.mixed_parts import (
    agree_on_kinds,
    blank_mixture,
    cut_families,
    join_families,
    sent_of,
)
from vpem.fits.posterior_parts import cut_posterior, join_posteriors, sent_of_gaussian
from vpem.fits.results import Fit
from vpem.sums.connect import Network
from vpem.terms.factor_mixture import FactorMixture
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling
from vpem.terms.variational_mixture import VariationalMixture


def complete(terms: FeatureTerms, network: Network, *, in_sums: bool = False) -> FeatureTerms:
    """Give terms what they cannot know: of the features and blocks of other processes.

    Where masked sums go on without who is lost nobody is told the constant by itself, which is of
    the data and no parameters, if it can travel ``in_sums`` of log-likelihoods, or is not needed.
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


def own_start(start: Any, network: Network, covariance_type: str, scaling: Scaling) -> Any:
    """Return this process's part of a mixture of all features, as a start."""
    whole, numbers = network.whole.blocks, network.total.holders.own
    if network.part_of is None:
        return start.over(whole, covariance_type, scaling)
    columns = own_columns_of_hubs(network)
    shift, scale = np.zeros(whole.n_features), np.ones(whole.n_features)
    shift[columns], scale[columns] = scaling.shift, scaling.scale
    every = start.over(whole, covariance_type, Scaling(shift, scale))
    own = replace(cut(every, numbers), blocks=network.blocks)
    return replace(own, scaling=scaling) if isinstance(own, Mixture) else own


def cut(mixture: Any, numbers: Sequence[int] | NDArray[np.intp]) -> Any:
    """Return some blocks of a mixture, whose features are counted from 0, block by block."""
    if isinstance(mixture, MixedMixture):
        return cut_families(mixture, numbers)
    if isinstance(mixture, VariationalMixture):
        return cut_posterior(mixture, numbers)
    return cut_blocks(mixture, numbers)


def own_columns_of_hubs(network: Network) -> NDArray[np.intp]:
    """Columns of this process's blocks as the user numbers them, in block order."""
    return joined([network.whole.blocks.features[b] for b in network.total.holders.own])


def join_centres(
    network: Network,
    centres: NDArray[np.float64],
    scaling: Scaling,
    deviations: NDArray[np.float64],
) -> tuple[NDArray[np.float64], Scaling, NDArray[np.float64]]:
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


def _agreed(fit: Fit) -> Kinds | None:
    """Families of all features, as all processes tell those of their hubs; None: all Gaussian."""
    if not isinstance(fit.mixture, MixedMixture):
        return None
    return agree_on_kinds(fit.mixture.kinds, own_columns_of_hubs(fit.network), fit.network)


def gathered(fit: Fit) -> Fit:
    """Return a fit with the mixture of all processes' blocks in the first; as it is elsewhere."""
    network = fit.network
    mixture: Any = fit.mixture
    kinds = _agreed(fit)
    own: dict[str, Any] = {"numbers": network.total.holders.own, "weights": mixture.weights}
    if kinds is None:
        own = sent_of_gaussian(mixture, network.total.holders.own)
    else:
        own |= sent_of(mixture, kinds.levels)
    engine = network.total.holders.engine
    with about(engine, "result"):
        parts = engine.gather(own)
    if parts is None:
        return fit
    blocks, covariance_type = network.whole.blocks, mixture.covariance_type
    if kinds is None:
        whole: Any = join_parts(blocks, covariance_type, parts)
        if isinstance(mixture, VariationalMixture):
            one = join_parts(blocks, covariance_type, [part["prior"] for part in parts])
            whole = join_posteriors(mixture, whole, one, parts)
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
        mixture = blank_mixture(blocks, kinds, kind, weights)
    return replace(fit, mixture=mixture, network=network)
