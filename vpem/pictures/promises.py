"""What is said of a fit whose rows are protected by noise: to whom that is promised, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COVERS = {
    "hubs": "outsiders who see the model alone; parties see terms and responsibilities, "
    "against which this is no protection",
    "server": "all who see what is published; the server sees sums without noise",
    "root": "all who see what is published; the root of the tree sees sums without noise",
    "workers": "all who see what is published; every worker adds its share of the noise",
}
"""By who adds the noise: against whom rows are protected."""

UNPUBLISHED = "not published, to protect rows"
"""In the place of how good a private fit is, which would tell of its rows."""


def promised(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return lines of a table: what is promised, against whom, and whether that can be trusted.

    ``privacy`` is as `vpem.fits.privacy.Guarantee.describe` says. A file may hold anything there:
    what makes no sense is left out.
    """
    lines = []
    epsilon, delta = (_number(privacy.get(name)) for name in ("epsilon", "delta"))
    if epsilon is not None and delta is not None:
        lines.append(("privacy", f"epsilon {epsilon:g}, delta {delta:g}, of one row"))
    covers = COVERS.get(str(privacy.get("noise_by")))
    if covers is not None:
        lines.append(("protects from", covers))
    listed = privacy.get("noise_multipliers")
    found = [_number(one) for one in listed] if isinstance(listed, list | tuple) else []
    known = [one for one in found if one is not None]
    against = privacy.get("against")
    told = [f"{who} {number:.3g}" for who, number in _epsilons(against)]
    if len({line.rpartition(" ")[2] for line in told}) > 1:
        lines.append(("epsilon against", ", ".join(told)))
    if known:
        releases = f"{len(known)} release{'' if len(known) == 1 else 's'}"
        lines.append(("noise", f"{releases}, least multiplier {min(known):.3g}"))
    if privacy.get("repeatable"):
        lines.append(("no privacy", str(privacy.get("warning"))))
    return lines


def _epsilons(against: object) -> list[tuple[str, float]]:
    """Return the epsilon against each, of a row that takes part or not."""
    listed = against.items() if isinstance(against, Mapping) else ()
    found = [(str(who), _number(one["add_or_remove"])) for who, one in listed
             if isinstance(one, Mapping) and "add_or_remove" in one]  # fmt: skip
    return [(who, number) for who, number in found if number is not None]


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good else None  # type: ignore[arg-type]
