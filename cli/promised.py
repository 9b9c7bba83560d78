"""What a report says to a reader of rows that are protected by noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vpem.network.schema import Report

__all__ = ["promised"]

COVERS = {
    "hubs": "outsiders who see the model alone; parties see terms and responsibilities, "
    "against which this is no protection",
    "server": "all who see what is published; the server sees sums without noise",
    "root": "all who see what is published; the root of the tree sees sums without noise",
    "workers": "all who see what is published; every worker adds its share of the noise",
}
"""By who adds the noise: against whom rows are protected."""


def promised(privacy: Report) -> list[tuple[str, str]]:
    """Return lines of a table: what is promised, against whom, and whether that can be trusted.

    Parameters
    ----------
    privacy : dict
        As `vpem.fits.privacy.Guarantee.describe` says.
    """
    lines = [
        ("privacy", f"epsilon {privacy['epsilon']:g}, delta {privacy['delta']:g}, of one row"),
        ("protects from", COVERS[privacy["noise_by"]]),
    ]
    if privacy["repeatable"]:
        lines.append(("no privacy", privacy["warning"]))
    return lines
