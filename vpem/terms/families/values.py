"""What values of each family are, and the sentence about one that is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpem.checks import Floats, Matrix, row_blocks
from vpem.errors import InputError
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.laws import law_of

MAY_BE = {
    "categorical": "codes from 0 to one less than there are levels",
    "bernoulli": "0 or 1",
    "poisson": "counts: 0, 1, 2, ...",
    "negative-binomial": "counts: 0, 1, 2, ...",
    "exponential": "numbers that are 0 or above",
    "gamma": "numbers above 0",
    "log-normal": "numbers above 0",
}
"""What they are. All others are finite numbers."""


def check_values_of(kinds: Kinds, X: Matrix, feature_names: Sequence[str] | None = None) -> None:
    """Raise InputError at the first value that its feature's family cannot have.

    Missing values (NaN) are not looked at.
    """
    for start, part in row_blocks(X):
        found = wrong_value(kinds, part, feature_names)
        if found is not None:
            row, said = found
            raise InputError(f"row {start + row}, {said}; give it another family")


def wrong_value(
    kinds: Kinds, rows: Floats, feature_names: Sequence[str] | None = None
) -> tuple[int, str] | None:
    """Return a row (of m) with a value that is wrong, and what is wrong with it; None: all fit."""
    for j, family in enumerate(kinds.families):
        column = rows[:, j].astype(np.float64)
        there = np.flatnonzero(~np.isnan(column))
        wrong = law_of(family).wrong(column[there])
        if family == "categorical":
            wrong = wrong | (column[there] >= kinds.n_levels[j])
        if wrong.any():
            row = int(there[np.flatnonzero(wrong)[0]])
            name = "" if feature_names is None else f" ({feature_names[j]!r})"
            what = MAY_BE.get(family, "finite numbers")
            return row, f"feature {j}{name} is {column[row]:g}, but {family} features are {what}"
    return None
