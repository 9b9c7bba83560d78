"""What a checkpoint keeps of a mixture, and what a run that begins at it elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpem.network.blocks import Blocks
from vpem.network.schema import KEPT, Array, State, check
from vpem.terms.covariances import covariance_shape
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling

if TYPE_CHECKING:
    from vpem.network.schema import Schema

__all__ = ["mixture_of_start", "mixture_schema", "mixture_state", "start_of_mixture"]


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


def start_of_mixture(mixture: Mixture) -> State:
    """Return the parameters in units of the data, to begin another fit at."""
    none = Scaling.none(mixture.n_features)
    return mixture_state(mixture.over(mixture.blocks, mixture.covariance_type, none))


def mixture_of_start(
    start: State, blocks: Blocks, covariance_type: str, n_components: int
) -> Mixture:
    """Return the mixture of parameters that `start_of_mixture` found, once they have been checked.

    Raises
    ------
    FileError
        If they are something else.
    """
    check(mixture_schema(blocks, covariance_type, n_components), start, KEPT)
    return Mixture(blocks, covariance_type, **start, scaling=Scaling.none(blocks.n_features))
