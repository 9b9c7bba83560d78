"""Models by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from types import MappingProxyType
from typing import Any

import numpy as np

from vpem.errors import check_choice
from vpem.network.schema import Report
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import SaemModel
from vpem.saem.models.tables import is_incomplete

MODELS = {
    "linear": ("vpem.saem.models.linear", "LinearModel"),
    "one-compartment": ("vpem.saem.models.curves", "OneCompartmentModel"),
    "two-compartment": ("vpem.saem.models.curves", "TwoCompartmentModel"),
    "curve": ("vpem.saem.models.curves", "CurveModel"),
    "bifactor": ("vpem.saem.models.bifactor", "BifactorModel"),
    "gmm": ("vpem.saem.models.gmm", "GmmModel"),
    "lda": ("vpem.saem.models.lda", "LdaModel"),
}
"""Models by name: module and class."""

GENERALIZED = ("vpem.saem.models.curves", "GeneralizedLinearModel")
"""Linear predictors whose rows are of other laws than the normal one of constant variance."""

INCOMPLETE = {
    "bifactor": ("vpem.saem.models.bifactor_missing", "IncompleteBifactorModel"),
    "gmm": ("vpem.saem.models.gmm_missing", "IncompleteGmmModel"),
}
"""Models of tables of items, where some are missing."""

OWN = "own"
"""Stands for a model of a user's own."""


def make_model(name: str, individuals: Individuals, **options: Any) -> SaemModel:
    """Make a model of its name, see `MODELS`."""
    kind = model_class(name, options)
    known = list(signature(kind).parameters)[1:]
    for option in options:
        check_choice(f"option of the model {name}", option, known)
    other = model_class(name, {**options, "error": ""})
    if kind is not other and "shift" not in options and _laws_differ(individuals):
        kind, options = other, {"error": "constant", **options}
    if name in INCOMPLETE and is_incomplete(individuals, options.get("items")):
        module, word = INCOMPLETE[name]
        kind = getattr(import_module(module), word)
    made: SaemModel = kind(individuals, **options)
    return made


def seeded(
    name: str | object, options: Mapping[str, Any] | None, seed: int
) -> Mapping[str, Any] | None:
    """Return options of a model, with a seed of the fit's where it begins by chance."""
    if not isinstance(name, str) or "seed" not in signature(model_class(name)).parameters:
        return options
    return {"seed": seed, **(options or {})}


def model_class(name: str, options: Mapping[str, object] = MappingProxyType({})) -> Any:
    """Return the class of a model by its name, and options of which it may depend."""
    module, word = MODELS[check_choice("model", name, MODELS)]
    if name == "linear" and options.get("error", "constant") != "constant":
        module, word = GENERALIZED
    return getattr(import_module(module), word)


def _laws_differ(individuals: Individuals) -> bool:
    """Whether rows are censored, or of several outcomes, in any process."""
    rows = [individuals.covariates.get(name, np.zeros(1)) for name in ("censored", "outcome")]
    most = [float(np.abs(one).max(initial=0.0)) for one in rows]
    return bool((individuals.largest(np.array(most)) > 0).any())


def has_curves(name: str, options: Mapping[str, object]) -> bool:
    """Whether a fit's model is known by name, and has curves over time."""
    return name in MODELS and model_class(name, options).has_curves


def all_options(name: str, options: Mapping[str, Any]) -> Report:
    """Return the options of a model that `make_model` made, defaults too, as JSON can hold them.

    Options that are None, because data decide, are left out.
    """
    known = list(signature(model_class(name, options)).parameters.values())[1:]
    asked = {one.name: one.default for one in known}
    told = {**asked, **options}
    return {one: _plain(value) for one, value in told.items() if value is not None}


def _plain(value: Any) -> Any:
    """Lists instead of tuples and arrays, Python's own numbers instead of NumPy's."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
