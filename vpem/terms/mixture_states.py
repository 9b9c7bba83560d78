"""Parameters that a run which begins at them elsewhere is given."""

from __future__ import annotations

from vpem.network.schema import KEPT, State, check
from vpem.terms.density import Density
from vpem.terms.scaling import Scaling


def start_of_mixture(mixture: Density) -> State:
    """Return the parameters in units of the data, to begin another fit at."""
    none = Scaling.none(mixture.n_features)
    return mixture.over(mixture.blocks, mixture.covariance_type, none).arrays()


def mixture_of_start(start: State, like: Density) -> Density:
    """Return the mixture of parameters that `start_of_mixture` found, once they have been checked.

    ``like`` has the blocks, and the number of components, that they must have.
    """
    none = Scaling.none(like.n_features)
    like = like.over(like.blocks, like.covariance_type, none)
    check(like.schema(), start, KEPT)
    return like.having(start)
