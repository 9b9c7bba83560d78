"""Data of several families: what their values may be, and the terms of a fit of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import row_blocks
from vpem.errors import InputError, Setting
from vpem.network.blocks import Blocks
from vpem.settings import FitSettings
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.laws import law_of
from vpem.terms.families.mixed import MixedTerms

if TYPE_CHECKING:
    from vpem.fits.prepare import Prepared

__all__ = ["check_values_of", "known_kinds", "mixed_terms", "refuse_with_kinds"]

MAY_BE = {
    "categorical": "codes from 0 to one less than there are levels",
    "bernoulli": "0 or 1",
    "poisson": "counts: 0, 1, 2, ...",
    "negative-binomial": "counts: 0, 1, 2, ...",
    "exponential": "numbers that are 0 or above",
    "gamma": "numbers above 0",
    "log-normal": "numbers above 0",
}
"""What values of a family are."""


def known_kinds(
    kinds: Kinds | None, X: Any, any_has: Callable[[NDArray[np.bool_]], NDArray[np.bool_]]
) -> Kinds | None:
    """Return the families of features with all their levels; None where all are Gaussian.

    Where any process has others (``any_has``), all fit families; they are given `Kinds` alike.

    Raises
    ------
    InputError
        If they are no `Kinds`, or of other than so many features.
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


def check_values_of(kinds: Kinds, X: Any, feature_names: Sequence[str] | None = None) -> None:
    """Raise InputError at the first value that its feature's family cannot have.

    Missing values (NaN) are not looked at.
    """
    laws = {family: law_of(family) for family in kinds.present}
    for start, part in row_blocks(X):
        for j, family in enumerate(kinds.families):
            column = part[:, j].astype(np.float64)
            there = np.flatnonzero(~np.isnan(column))
            wrong = laws[family].wrong(column[there])
            if family == "categorical":
                wrong = wrong | (column[there] >= kinds.n_levels[j])
            if wrong.any():
                row = int(there[np.flatnonzero(wrong)[0]])
                name = "" if feature_names is None else f" ({feature_names[j]!r})"
                raise InputError(
                    f"row {start + row}, feature {j}{name} is {column[row]:g}, but {family} "
                    f"features are {MAY_BE.get(family, 'finite numbers')}; give it another family"
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
    return MixedTerms(
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
