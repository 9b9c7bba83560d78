"""The answer of a fit, for a reader: how large components or clusters are, and how they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tables import table

if TYPE_CHECKING:
    from vpem.network.schema import Report

    from .tables import Table

__all__ = ["answer"]


def answer(report: Report, noun: str = "component") -> Table:
    """Return the table of the components, or clusters, of a report."""
    from vpem.fits.answer import as_table

    heads, rows = as_table(report[f"{noun}s"], noun, noisy="privacy" in report)
    return table(rows, *heads, title=f"{noun.capitalize()}s", right=heads[:3])
