"""Tables of estimates, as users of mixed models know them, for pages and for terminals."""

from __future__ import annotations

import math

from vpem.pictures.contents import Table
from vpem.saem.estimates import Figure, Summary

MOST_ROWS = 60
"""Parameters, or latents, of a table."""


def said(value: float, digits: int = 5) -> str:
    """Write a number for a reader; a dash where it is not known."""
    return f"{value:.{digits}g}" if math.isfinite(value) else "-"


def _ends(level: float) -> tuple[str, str]:
    """Heads of the ends of an interval."""
    return f"{100 * level:.3g} % from", "to"


def _interval(one: Figure) -> tuple[str, str]:
    return said(one.lower, 4), said(one.upper, 4)


def _chance(value: float | None) -> str:
    """Write a p value; nothing where none was asked for."""
    if value is None:
        return ""
    return "<1e-4" if value < 1e-4 else said(value, 2)


def estimate_tables(summary: Summary) -> list[Table]:
    """Return tables of the parameters, of these on their own scale, and of individuals' spread."""
    ends = _ends(summary.level)
    tests = summary.tests
    freedom = any(math.isfinite(one.freedom) for one in summary.parameters)
    rows = [
        (
            one.name, said(one.value), said(one.error, 3), said(one.rse, 3), *_interval(one),
            *([said(one.freedom, 3) if math.isfinite(one.freedom) else ""] if freedom else []),
            *([_chance(tests.get(one.name))] if tests else []),
        )
        for one in summary.parameters
    ]  # fmt: skip
    heads = ("parameter", "estimate", "s.e.", "RSE %", *ends, *(["df"] if freedom else []),
             *(["p"] if tests else []))  # fmt: skip
    found = [Table(rows[:MOST_ROWS], heads, "Estimates")]
    if summary.back:
        rows = [
            (one.name, said(one.value), said(one.error, 3), *_interval(one)) for one in summary.back
        ]
        heads = ("parameter", "value", "s.e.", *ends)
        found.append(Table(rows[:MOST_ROWS], heads, "On their own scale"))
    return [*found, *_spread_tables(summary, ends)]


def _spread_tables(summary: Summary, ends: tuple[str, str]) -> list[Table]:
    """Return tables of how individuals differ: sds, shrinkage, correlations."""
    found = []
    with_cv = bool(summary.variation)
    rows = []
    for name, shrunk in summary.shrinkage.items():
        one = summary.spreads.get(name, Figure(name, *[math.nan] * 4))
        cv = [said(summary.variation.get(name, math.nan), 3)] if with_cv else []
        shares = (f"{share:.3f}" for share in shrunk)
        rows.append((name, said(one.value), said(one.error, 3), *_interval(one), *cv, *shares))
    heads = ("latent", "sd", "s.e.", *ends, *(["CV %"] if with_cv else []), "shrinkage", "of sd")
    if rows and not summary.spreads:
        rows = [(name, *cells[-2:]) for name, *cells in rows]
        heads = ("latent", "shrinkage", "of sd")
    if rows:
        found.append(Table(rows[:MOST_ROWS], heads, "How individuals differ"))
    if summary.correlations:
        rows = [(one.name, said(one.value, 3), said(one.error, 3), *_interval(one))
                for one in summary.correlations]  # fmt: skip
        heads = ("correlation", "value", "s.e.", *ends)
        found.append(Table(rows[:MOST_ROWS], heads, "How latents go together"))
    return found


def correlation_table(summary: Summary, most: int = 12) -> Table | None:
    """Return the correlations of the estimates; None of too many, or where there are none."""
    names = [one.name for one in summary.parameters]
    known = [one for one, name in enumerate(names) if math.isfinite(summary.together[one, one])]
    if not 1 < len(known) <= most or not math.isfinite(summary.together[known[0], known[1]]):
        return None
    rows = [
        (names[i], *(f"{summary.together[i, j]:.2f}" if j <= i else "" for j in known))
        for i in known
    ]
    return Table(rows, ("", *(names[i] for i in known)), "Correlation of the estimates")
