"""Mixed models by name: what their curves are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vpem.saem.individuals import Individuals
from vpem.saem.models.laws import LINKED
from vpem.saem.models.mixed import MixedModel
from vpem.saem.models.model import Vector
from vpem.saem.models.population import effect_of, words_of
from vpem.saem.structures.by_name import structure_of
from vpem.saem.structures.compartments import OneCompartment, TwoCompartments
from vpem.saem.structures.formulas import LinearPredictor


class _Dosed(MixedModel):
    """Concentrations after doses, in compartments with rates of first order."""

    compartments: type[OneCompartment | TwoCompartments]

    def __init__(
        self,
        individuals: Individuals,
        parameters: Sequence[str] | None = None,
        error: str | Sequence[str] = "constant",
        random: Sequence[str] | None = None,
        effects: Sequence[str] = (),
        covariance: str = "diagonal",
        first: Sequence[float] | Vector | None = None,
        shift: Vector | float | None = None,
    ) -> None:
        kind = self.compartments
        structure = kind() if parameters is None else kind(parameters)
        super().__init__(individuals, structure, error, random, effects, covariance, first, shift)

    @classmethod
    def reads(cls, options: Mapping[str, object]) -> tuple[str, ...]:
        """The dose, and covariates of effects."""
        return ("dose", *super().reads(options))


class OneCompartmentModel(_Dosed):
    """Concentrations in one compartment, after doses that are absorbed, injected or infused.

    Parameters
    ----------
    individuals : Individuals
        With doses, or the covariate ``dose``, given at time 0.
    parameters : sequence of str, optional
        Of `vpem.saem.structures.compartments.OneCompartment`. None: ka, cl, ke.
    error, random, effects, covariance, first, shift
        Of `MixedModel`.
    """

    compartments = OneCompartment


class TwoCompartmentModel(_Dosed):
    """Concentrations in the first of two compartments; parameters as of one.

    By default doses are injected or infused, and parameters are cl, v1, q, v2.
    """

    compartments = TwoCompartments


class CurveModel(MixedModel):
    """A formula that is known by name, or a function or differential equation of the user's.

    Parameters
    ----------
    individuals : Individuals
        The data.
    curve : str
        A name of `vpem.saem.structures.formulas.FORMULAS`, or ``FILE.py:NAME``.
    error, random, effects, covariance, first, shift
        Of `MixedModel`.
    """

    def __init__(
        self,
        individuals: Individuals,
        curve: str,
        error: str | Sequence[str] = "constant",
        random: Sequence[str] | None = None,
        effects: Sequence[str] = (),
        covariance: str = "diagonal",
        first: Sequence[float] | Vector | None = None,
        shift: Vector | float | None = None,
    ) -> None:
        super().__init__(
            individuals, structure_of(curve), error, random, effects, covariance, first, shift
        )


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
        kinds = [error] if isinstance(error, str) else error
        linked = any(kind in LINKED for kind in kinds)
        structure = LinearPredictor(slopes, linked=linked)
        called = dict(zip(("intercept", *slopes), structure.names, strict=True))
        kept = None if random is None else [called.get(one, one) for one in random]
        named = [effect_of(one, called) for one in effects]
        super().__init__(individuals, structure, error, kept, named, covariance, first, shift)

    @classmethod
    def reads(cls, options: Mapping[str, object]) -> tuple[str, ...]:
        """Covariates of slopes and effects."""
        names = words_of(options.get("slopes"))
        parts = [part.partition("=")[0] for name in names for part in name.split(":")]
        return (*(part for part in parts if part != "time"), *super().reads(options))
