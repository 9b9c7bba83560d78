"""Data of several families: what their values may be, and the terms of a fit of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, Setting
from vpem.network.partition import Blocks
from vpem.settings import FitSettings
from vpem.terms.density import Density
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixed import MixedTerms
from vpem.terms.families.mixture import MixedMixture

if TYPE_CHECKING:
    from vpem.fits.prepare import Prepared


def known_kinds(
    kinds: Kinds | None, X: Any, any_has: Callable[[NDArray[np.bool_]], NDArray[np.bool_]]
) -> Kinds | None:
    """Return the families of features with all their levels; None where all are Gaussian.

    Where any process has others (``any_has``), all fit families; they are given `Kinds` alike.
    """
    if kinds is None:
        return None
    if not isinstance(kinds, Kinds):
        raise InputError(f"kinds must be vpem.Kinds, got {type(kinds).__name__}")
    if kinds.n_features != X.shape[1]:
        raise InputError(
            f"there are families for {kinds.n_features} features, the data have {X.shape[1]}"
        )
    return kinds.counted(X) if any_has(np.array([not kinds.is_gaussian]))[0] else None


def refuse_other_kinds(mixture: Density, kinds: Kinds | None) -> None:
    """Raise InputError unless a model to start from has the families that the data have."""
    own = mixture.kinds if isinstance(mixture, MixedMixture) else None
    theirs = None if own is None else (own.families, own.n_levels)
    if theirs != (None if kinds is None else (kinds.families, kinds.n_levels)):
        raise InputError(
            f"the starting model has {'Gaussian features' if own is None else own.told}, the data "
            f"{'Gaussian ones' if kinds is None else kinds.told}; families and numbers of levels "
            "must be the same"
        )


def refuse_with_kinds(how: FitSettings, *, private: bool) -> None:
    """Raise InputError where something cannot be done with families."""
    if how.step_size is not None:
        raise InputError(
            Setting("step_size"),
            " keeps no statistics but those that parameters stand for, which of a category or a "
            "count are none: a level that a batch lacks would be lost; leave it out, for batches "
            "that replace their own",
        )
    if private:
        raise InputError(
            Setting("release_epsilon"),
            " is of bounded sums of numbers and of their products, which other families have not; "
            "fit Gaussian features, or leave it out",
        )


def mixed_terms(blocks: Blocks, given: Prepared, how: FitSettings) -> MixedTerms:
    """Return the terms of a fit of several families."""
    assert how.n_threads is not None
    assert given.kinds is not None
    made = MixedTerms(
        given.X,
        blocks,
        how.covariance_type,
        kinds=given.kinds,
        misses=given.misses,
        scale=how.scale,
        row_weights=given.row_weights,
        reg_covar=how.reg_covar,
        n_threads=how.n_threads,
        dtype=given.precision,
        skip_negligible=not how.every_weight,
    )
    made.least_rows = how.least_rows
    return made
