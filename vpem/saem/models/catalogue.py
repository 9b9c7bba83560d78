"""Models by name."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any

from vpem.errors import check_choice
from vpem.saem.individuals import Individuals
from vpem.saem.models.protocol import SaemModel

__all__ = ["MODELS", "make_model"]

MODELS = {
    "linear": ("vpem.saem.models.linear", "LinearModel"),
    "one-compartment": ("vpem.saem.models.one_compartment", "OneCompartmentModel"),
    "bifactor": ("vpem.saem.models.bifactor", "BifactorModel"),
    "gmm": ("vpem.saem.models.gmm", "GmmModel"),
}
"""Models by name: module and class."""


def make_model(name: str, individuals: Individuals, **options: Any) -> SaemModel:
    """Make a model of its name, see `MODELS`.

    Raises
    ------
    InputError
        If there is none, the data do not fit it, or an option is unknown.
    """
    module, word = MODELS[check_choice("model", name, MODELS)]
    kind = getattr(import_module(module), word)
    known = list(signature(kind).parameters)[1:]
    for option in options:
        check_choice(f"option of the model {name}", option, known)
    made: SaemModel = kind(individuals, **options)
    return made
