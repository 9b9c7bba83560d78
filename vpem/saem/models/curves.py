"""Mixed models by name: what their curves are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vpem.saem.individuals import Individuals
from vpem.saem.models.mixed import MixedModel
from vpem.saem.models.model import Vector
from vpem.saem.models.population import effect_of, words_of
from vpem.saem.structures.compartments import OneCompartment
from vpem.saem.structures.formulas import LinearPredictor

__all__ = ["GeneralizedLinearModel", "OneCompartmentModel"]


class OneCompartmentModel(MixedModel):
    """Concentrations after oral doses, absorbed and eliminated at rates of first order.

    Parameters
    ----------
    individuals : Individuals
        With doses, or the covariate ``dose``, given at time 0.
    parameters : sequence of str
        Of `vpem.saem.structures.compartments.OneCompartment`.
    error, random, effects, covariance, first, shift
        Of `MixedModel`.
    """

    @classmethod
    def reads(cls, options: Mapping[str, object]) -> tuple[str, ...]:
        """The dose, and covariates of effects."""
        return ("dose", *super().reads(options))

    def __init__(
        self,
        individuals: Individuals,
        parameters: Sequence[str] = ("ka", "cl", "ke"),
        error: str | Sequence[str] = "constant",
        random: Sequence[str] | None = None,
        effects: Sequence[str] = (),
        covariance: str = "diagonal",
        first: Sequence[float] | Vector | None = None,
        shift: Vector | float | None = None,
    ) -> None:
        structure = OneCompartment(parameters)
        super().__init__(individuals, structure, error, random, effects, covariance, first, shift)


class GeneralizedLinearModel(MixedModel):
    """Linear predictors of yes and no (logit), of counts (logarithm), or of values with any error.

    Parameters
    ----------
    individuals : Individuals
        Whose rows.
    slopes, random, effects, covariance, shift
        Of `vpem.saem.models.linear.LinearModel`; random coefficients are by default all.
    error, first
        Of `MixedModel`.
    """

    def __init__(
        self,
        individuals: Individuals,
        slopes: Sequence[str] = ("time",),
        random: Sequence[str] | None = None,
        effects: Sequence[str] = (),
        covariance: str = "full",
        error: str | Sequence[str] = "bernoulli",
        first: Sequence[float] | Vector | None = None,
        shift: Vector | float | None = None,
    ) -> None:
        structure = LinearPredictor(slopes)
        called = dict(zip(("intercept", *slopes), structure.names, strict=True))
        kept = None if random is None else [called.get(one, one) for one in random]
        named = [effect_of(one, called) for one in effects]
        super().__init__(individuals, structure, error, kept, named, covariance, first, shift)

    @classmethod
    def reads(cls, options: Mapping[str, object]) -> tuple[str, ...]:
        """Covariates of slopes and effects."""
        parts = [part for name in words_of(options.get("slopes")) for part in name.split(":")]
        return (*(part for part in parts if part != "time"), *super().reads(options))
