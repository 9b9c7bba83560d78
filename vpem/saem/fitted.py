"""The model of a fit made again, of whichever individuals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from vpem.errors import InputError
from vpem.saem.curves import check_law
from vpem.saem.individuals import Individuals
from vpem.saem.models.catalogue import MODELS, OWN, has_curves, make_model, model_class
from vpem.saem.models.model import SaemModel
from vpem.saem.saved import SavedSaem
from vpem.saem.structures.by_name import is_own

Maker = Callable[[Individuals], SaemModel]


class FittedModel:
    """Makes the model of a fit, by ``maker`` where it is a user's own."""

    def __init__(self, saved: SavedSaem, maker: Maker | None = None) -> None:
        self.saved = saved
        self._maker = maker

    @property
    def _has_curves(self) -> bool:
        """Whether the fit is of a model by name that has curves."""
        return has_curves(self.saved.model, self.saved.model_options)

    @property
    def reads(self) -> list[str]:
        """Covariates that a model by name reads."""
        options = self.saved.model_options
        if self.saved.model == OWN:
            return []
        return list(model_class(self.saved.model, options).reads(options))

    def of(self, individuals: Individuals) -> SaemModel:
        """Make the fitted model of other individuals."""
        saved = self.saved
        if self._maker is not None:
            model = self._maker(individuals)
        elif saved.model == OWN:
            raise InputError(
                f"the model {saved.model_class} is a user's own: give what makes it of other "
                "individuals, Predictor(fit, model=...)"
            )
        else:
            options = dict(saved.model_options)
            own = options.get("curve")
            if isinstance(own, str) and is_own(own):
                options["curve"] = self._named_again(own)
            if self._has_curves:  # from rows it would be found by their fit
                options["shift"] = 0.0
            try:
                model = make_model(saved.model, individuals, **options)
            except (TypeError, ValueError, KeyError, IndexError) as error:
                if isinstance(error, InputError) and str(error).startswith(individuals.source):
                    raise  # a fault of the data
                raise InputError(
                    f"the options of the fit make no model {saved.model} of {individuals.source} "
                    f"({error}); fit it again"
                ) from error
        got = (model.parameters, tuple(model.latents))
        wanted = (saved.parameters, saved.latents)
        if [*map(len, got)] != [*map(len, wanted)] or (not model.wide and got != wanted):
            raise InputError(
                f"{individuals.source}: the model of these individuals has other parameters or "
                f"latents than the one that was fitted ({len(got[0])} and {len(got[1])}, not "
                f"{len(saved.parameters)} and {len(saved.latents)}); give data with the same items"
            )
        check_law(model, saved.theta)
        return model.about(saved.theta)

    def _named_again(self, own: str) -> str:
        """Return the user's own curve that the user names now: no file of a fit has one run."""
        if not is_own(self.saved.own_curve):
            raise InputError(
                f"the fit is of a curve of the user's own, {own[:200]}, and a file of a fit runs "
                "nothing: name the curve again, --curve FILE.py:NAME (in Python, "
                "dataclasses.replace(fit, own_curve='FILE.py:NAME'))"
            )
        return self.saved.own_curve

    @cached_property
    def form(self) -> SaemModel:
        """Some model of the fitted kind, whose individuals do not matter."""
        saved = self.saved
        if saved.model in MODELS and not self._has_curves:
            raise InputError(
                f"latents of the model {saved.model} have no curves over time; ask for the "
                "latents of individuals with rows"
            )
        columns = {name: np.ones(2) for name in ("dose", *self.reads, *saved.covariates)}
        columns["outcome"] = np.zeros(2)
        kept = saved.settings.get("columns")
        blank = Individuals(
            ("",), np.array([0, 2]), np.array([1.0, 2.0]), np.zeros(2), columns,
            columns=dict(kept) if isinstance(kept, dict) else {},
        )  # fmt: skip
        return self.of(blank)
