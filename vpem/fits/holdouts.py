"""Entries hidden from a fit tell how well it imputes: against column means, and scikit-learn."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_memory
from vpem.errors import InputError
from vpem.fits.completed import Completed
from vpem.network.schema import Report
from vpem.terms.lowrank.dealing import Hidden

Matrix = NDArray[np.float64]

MOST_WORK = 2e9
"""Rows times the third power of columns beyond which scikit-learn's imputer would take minutes:
it regresses every column on all others, ten times."""


def iterative_imputer(seen: Matrix, seed: int) -> Matrix:
    """Impute by scikit-learn's `IterativeImputer`, which sees everything, shape (I, J).

    ``seen`` has the mean over observers of each entry, NaN where nobody saw it.
    """
    n_rows, n_columns = seen.shape
    if n_columns < 2:
        raise InputError("it regresses each column on the others, and there is but one column")
    work = n_rows * n_columns**3
    if work > MOST_WORK:
        raise InputError(
            f"it regresses each of {n_columns} columns on all others, which would take too long "
            f"on {n_rows} rows"
        )
    check_memory(8 * 6 * n_rows * n_columns, "it")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found: Matrix = IterativeImputer(random_state=seed).fit_transform(seen)
    return found


def score_holdout(
    found: Completed, hidden: Hidden, share: float, seed: int, *, compare: bool = True
) -> Report:
    """Compare imputations of hidden entries, made without these, with what had been seen there.

    ``share`` is that which was asked for. It returns ``share``, ``n_entries``, ``n_values`` (an
    entry seen by two observers has two); and for ``model``, ``column_means`` and
    ``iterative_imputer`` a dict of losses: ``rmse``, under the Poisson law ``deviance`` too, under
    the Bernoulli law ``log_loss``, and of standardized columns ``standardized_rmse``, in which an
    error counts in standard deviations of its column. Where scikit-learn's imputer was not run:
    ``{"skipped": why}``. ``by_column`` has ``column``, ``n_entries`` and the losses of ``model``
    and ``column_means`` of every column with hidden entries.
    """
    low, high = found.law.domain()
    columns = hidden.places % found.observations.shape[1]
    units = np.broadcast_to(found.scaling.scale, found.observations.shape[1])[columns]

    def losses(means: Matrix, some: slice | NDArray[np.intp] = slice(None)) -> dict[str, float]:
        kept = np.clip(means[some], low, high)
        lost = found.law.losses(hidden.values[some], kept)
        if found.options.get("scale", "none") != "none":
            away = (kept - hidden.values[some]) / units[some]
            lost["standardized_rmse"] = float(np.sqrt(np.mean(away**2)))
        return lost

    other: Report = {"skipped": "it was not asked for"}
    if compare:
        try:
            other = losses(iterative_imputer(found.seen.mean, seed).ravel()[hidden.places])
        except InputError as error:
            other = {"skipped": str(error)}
    fitted, means = found.fitted.ravel()[hidden.places], found.seen.column_means[columns]
    order = np.argsort(columns, kind="stable")
    numbers, begins = np.unique(columns[order], return_index=True)
    by_column = [
        {
            "column": found.observations.column_names[number],
            "n_entries": len(np.unique(hidden.places[some])),
            "model": losses(fitted, some),
            "column_means": losses(means, some),
        }
        for number, some in zip(numbers, np.split(order, begins)[1:], strict=True)
    ]
    return {
        "share": share,
        "n_entries": hidden.n_places,
        "n_values": len(hidden.values),
        "model": losses(fitted),
        "column_means": losses(means),
        "iterative_imputer": other,
        "by_column": by_column,
    }
