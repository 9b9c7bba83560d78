"""Every family by its name, as mixed fits ask for it."""

from __future__ import annotations

from vpem.errors import InputError
from vpem.terms.families.independent import IndependentLaw
from vpem.terms.families.kinds import FAMILIES
from vpem.terms.families.located import GaussianLaw
from vpem.terms.families.lognormal import LogNormalLaw
from vpem.terms.families.part import Law
from vpem.terms.families.student import StudentLaw

LAWS: dict[str, Law] = {law.name: law for law in (GaussianLaw(), StudentLaw(), LogNormalLaw())}
"""Families with locations and scatter, by their names; all others are in `FAMILIES`."""


def law_of(name: str) -> Law:
    """Return a family by its name."""
    if name in LAWS:
        return LAWS[name]
    if name in FAMILIES:
        return IndependentLaw(FAMILIES[name])
    raise InputError(f"features cannot be {name!r}: there is no such family")
