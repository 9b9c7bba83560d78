"""The answer of a fit, for a reader: how large components or clusters are, and how they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tables import table

if TYPE_CHECKING:
    from vpem.fits.answer import Answer
    from vpem.fits.observers import Completed
    from vpem.network.schema import Report

    from .tables import Table


MOST_OF_IT = 0.9
"""Share of all squares from which on one feature is all that clusters, or imputed values, are."""


def answer(report: Report, noun: str = "component") -> Table:
    """Return the table of the components, or clusters, of a report."""
    from vpem.fits.answer import as_table

    listed = report[f"{noun}s"]
    if "in_use" in report:
        listed = [one for one in listed if report["in_use"][one[noun]]]
    heads, rows = as_table(listed, noun, noisy="privacy" in report)
    return table(rows, *heads, title=f"{noun.capitalize()}s", right=heads[:3])


def note_of_one_feature(found: Answer) -> str | None:
    """Say that one feature of large numbers decides which clusters there are, if one does."""
    feature, share = found.leading
    if len(found.feature_names) < 2 or share < MOST_OF_IT:
        return None
    return (
        f"{feature} makes {share:.1%} of what lies between the centres, since its numbers are the "
        "largest; --scale standard lets all features count"
    )


def note_of_one_column(fit: Completed) -> str | None:
    """Say that one column of large numbers decides what is imputed, if one does."""
    squares = (fit.fitted**2).sum(axis=0)
    share = squares.max() / squares.sum() if squares.any() else 0.0
    if len(squares) < 2 or not share >= MOST_OF_IT:
        return None
    return (
        f"{fit.observations.column_names[squares.argmax()]} makes {share:.1%} of all squares, "
        "since its numbers are the largest; --scale standard lets all columns count"
    )
