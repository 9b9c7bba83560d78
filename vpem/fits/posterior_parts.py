"""What processes have of a posterior whose hubs live in several, and how parts become a whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpem.fits.block_parts import cut_blocks
from vpem.network.schema import Report
from vpem.terms.mixture import Mixture
from vpem.terms.variational_mixture import VariationalMixture


def cut_posterior(
    mixture: VariationalMixture, numbers: Sequence[int] | NDArray[np.intp]
) -> VariationalMixture:
    """Return some blocks of a posterior, whose features are counted from 0, block by block."""
    hubs = list(numbers)
    counts = mixture.counts if len(mixture.counts) == 1 else mixture.counts[hubs]
    plain, one = cut_blocks(mixture.plain, hubs), cut_blocks(mixture.prior_mixture, hubs)
    return mixture.of_hubs(
        plain, one, counts, mixture.seen[hubs], mixture.prior.degrees_of_freedom[hubs]
    )


def sent_of_gaussian(mixture: Mixture, numbers: NDArray[np.intp]) -> Report:
    """Return a part of a mixture, or of a posterior, as `join_parts` takes it."""
    own: Report = {
        "numbers": numbers,
        **mixture.arrays(),
        "shift": mixture.scaling.shift,
        "scale": mixture.scaling.scale,
    }
    if isinstance(mixture, VariationalMixture):
        own |= {
            "prior": sent_of_gaussian(mixture.prior_mixture, numbers),
            "freedom": mixture.prior.degrees_of_freedom,
        }
    return own


def join_posteriors(
    like: VariationalMixture, plain: Mixture, prior: Mixture, parts: Sequence[Report]
) -> VariationalMixture:
    """Return the posterior of all hubs, from one process's part and what `sent_of_gaussian` sent.

    ``plain`` and ``prior`` are means and prior of all hubs, joined.
    """
    shape = (plain.blocks.n_blocks, plain.n_components)
    counts, seen, freedom = np.empty(shape), np.empty(shape), np.empty(shape[0])
    for part in parts:
        at = part["numbers"]
        counts[at], seen[at], freedom[at] = part["counts"], part["seen"], part["freedom"]
    if len(plain.weights) == 1:
        counts = next(part["counts"] for part in parts if len(part["counts"]))[:1]
    return like.of_hubs(plain, prior, counts, seen, freedom)
