"""What a fit says of each individual, in one process or brought together from all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.network.partition import Workers
from vpem.saem.doses import Doses
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import SaemModel, Vector

if TYPE_CHECKING:
    from vpem.saem.results import SaemFit


@dataclass(frozen=True)
class People:
    """Whom a fit tells of, and what does not depend on it."""

    names: tuple[str, ...]  # (n,)
    rows: NDArray[np.intp]  # (n,)
    covariates: dict[str, Vector]  # (n,) constant within individuals
    probabilities: Vector | None  # (n, K) of a mixture's components
    time_range: tuple[float, float]  # of all rows, of other processes too
    n_individuals: int  # in all processes
    n_rows: int  # in all processes
    doses: Doses | None = None

    @staticmethod
    def of(model: SaemModel, theta: Vector) -> People:
        """Tell of the individuals of this process."""
        data = model.individuals
        ends = [-data.times.min(initial=np.inf), data.times.max(initial=-np.inf)]
        first, last = data.largest(np.array(ends)).tolist()
        odds = model.responsibilities(theta) if hasattr(model, "responsibilities") else None
        covariates = _constant(data)
        return People(
            data.names, data.counts, covariates, odds, (-first, last), *data.number, data.doses
        )


def _constant(data: Individuals) -> dict[str, Vector]:
    """Covariates (n,) that do not change within any individual of any process."""
    found = {}
    for name in sorted(data.covariates):
        values = data.covariates[name]
        each = values[data.first[:-1]]
        changes = (values != each[data.individual_of]) & ~np.isnan(values)
        if not data.largest(np.array([changes.any()], dtype=np.uint8))[0]:
            found[name] = each
    return {name: found[name] for name in data.covariates if name in found}


def collect(fit: SaemFit, held: Workers, place: Placement) -> SaemFit:
    """Bring what a fit says of individuals together in the first process; others keep their own."""
    doses = fit.people.doses
    given = [] if doses is None else [doses.first, *doses.columns]
    own = _columns(fit)
    mine = [own, list(fit.people.names), given]
    with about(place.engine, "result"):
        parts = place.engine.gather(mine)
    if parts is None:
        return fit
    devices = np.argsort(place.ranks, kind="stable")
    order = np.argsort(np.concatenate([held.rows[one] for one in devices]))
    names = [name for _, some, _ in parts for name in some]
    columns = {name: np.concatenate([part[0][name] for part in parts])[order] for name in own}
    joined = Doses.chain([Doses(*part[2]) for part in parts]).take(order) if given else None
    return _with(fit, tuple(names[one] for one in order), columns, joined)


def leave_out(fit: SaemFit) -> SaemFit:
    """Return a fit that says nothing of single individuals."""
    return _with(fit, (), {name: values[:0] for name, values in _columns(fit).items()})


OF_GIVEN = ("means", "covariances", "lower", "upper")


def _columns(fit: SaemFit) -> dict[str, Any]:
    """Return all arrays (n, ...) that a fit has of individuals."""
    people = fit.people
    columns = {
        "rows": people.rows,
        "probabilities": people.probabilities,
        "acceptance": fit.acceptance,
        "each": fit.log_likelihood.each,
        "effective": fit.log_likelihood.effective,
        **{name: getattr(fit.given, name) for name in OF_GIVEN},
        **{f"covariate {name}": values for name, values in people.covariates.items()},
    }
    return {name: values for name, values in columns.items() if values is not None}


def _with(
    fit: SaemFit, names: tuple[str, ...], columns: dict[str, Any], doses: Doses | None = None
) -> SaemFit:
    """Return a fit that says this of individuals."""
    people = replace(
        fit.people,
        names=names,
        rows=columns["rows"],
        probabilities=columns.get("probabilities"),
        covariates={name: columns[f"covariate {name}"] for name in fit.people.covariates},
        doses=doses,
    )
    likelihood = replace(fit.log_likelihood, each=columns["each"], effective=columns["effective"])
    given = replace(fit.given, **{name: columns[name] for name in OF_GIVEN})
    return replace(
        fit, people=people, given=given, log_likelihood=likelihood,
        acceptance=columns.get("acceptance"),
    )  # fmt: skip
