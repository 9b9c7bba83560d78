"""What `vpem plot` and `vpem report` do with a fit of SAEM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vpem.errors import VpemError
    from vpem.pictures.style import Picture
    from vpem.saem.individuals import Individuals
    from vpem.saem.saved import SavedSaem

    from .use_saem import Columns

__all__ = ["SomeIndividuals", "draw_of_saem", "options_of_saem", "report_of_saem"]

SomeIndividuals = Annotated[
    list[str] | None,
    typer.Option(
        "--individual",
        help="Fits of SAEM: the curve of this individual of DATA only. Several: repeat it.",
    ),
]


def options_of_saem(columns: Columns, covariates: str | None) -> dict[str, Any]:
    """Options that say where the individuals of a fit of SAEM stand, by what the user types."""
    return {**{f"--{name}": column for name, column in columns.items()}, "--covariates": covariates}


def _individuals(
    saved: SavedSaem,
    data: Path | None,
    columns: Columns,
    covariates: str | None,
    wanted: list[str] | None,
    others: Mapping[str, Any],
) -> Individuals | None:
    """Read the data, if there are any; refuse options that are about other data."""
    from vpem.errors import InputError

    from .use_saem import read_some

    for flag, given in others.items():
        if given:
            raise InputError(f"{flag} is for mixtures and clusters; a fit of SAEM has individuals")
    if data is not None:
        return read_some(saved, data, columns, covariates, wanted)
    named = {**options_of_saem(columns, covariates), "--individual": wanted}
    for flag, given in named.items():
        if given:
            raise InputError(f"{flag} is about the data: give them after the model")
    return None


def draw_of_saem(
    kind: str,
    model: Path,
    data: Path | None,
    columns: Columns,
    covariates: str | None,
    wanted: list[str] | None,
    others: Mapping[str, Any],
) -> tuple[Picture, dict[str, list[str]]]:
    """Draw a fit of SAEM: the picture, and what else there is, by what it needs."""
    from vpem.pictures.latents import draw_saem, next_of_saem
    from vpem.saem.formats.fits import read_saem

    saved = read_saem(model)
    found = _individuals(saved, data, columns, covariates, wanted, others)
    return draw_saem(kind, model, saved, found), next_of_saem(kind, saved, found is not None)


def report_of_saem(
    output: Path,
    model: Path,
    data: Path | None,
    columns: Columns,
    covariates: str | None,
    others: Mapping[str, Any],
    force: bool,
) -> dict[str, VpemError]:
    """Write the page of a fit of SAEM; return the pictures that were left out, and why."""
    from vpem.pictures.saem_page import write_saem_page
    from vpem.saem.formats.fits import read_saem

    saved = read_saem(model)
    found = _individuals(saved, data, columns, covariates, None, others)
    return write_saem_page(output, model, saved, found, force=force)
