"""What a checkpoint keeps of a mixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpem.network.blocks import Blocks
from vpem.network.schema import Array, State
from vpem.terms.covariances import covariance_shape
from vpem.terms.mixture import Mixture

if TYPE_CHECKING:
    from vpem.network.schema import Schema

__all__ = ["mixture_schema", "mixture_state"]


def mixture_state(mixture: Mixture) -> State:
    """Return the parameters; who holds which features, and the units, belong to the recipe."""
    return {
        "weights": mixture.weights,
        "means": mixture.means,
        "covariances": mixture.covariances,
    }


def mixture_schema(
    blocks: Blocks, covariance_type: str, n_components: int, n_roots: int = 1
) -> Schema:
    """Say what parameters are saved as."""
    return {
        "weights": Array("f8", ((1, n_roots), n_components), least=0, sums=1),
        "means": Array("f8", (n_components, blocks.n_features)),
        "covariances": Array("f8", covariance_shape(blocks, covariance_type, n_components)),
    }
