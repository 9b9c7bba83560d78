"""A fit of SAEM as a file keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpem.files.models import current_versions
from vpem.network.schema import Report
from vpem.saem.fit import SaemFit
from vpem.saem.likelihood import LogLikelihood
from vpem.saem.models.model import Vector

__all__ = ["SavedSaem", "as_saved"]


@dataclass(frozen=True)
class SavedSaem:
    """A fit as a file keeps it: all that `SaemFit` tells, without the rows.

    Attributes
    ----------
    model : str
        One of `vpem.saem.models.catalogue.MODELS`, or ``own`` for a user's own.
    model_class : str
        Name of its class.
    model_options : dict
        What it is made with, besides individuals.
    parameters, latents : tuple of str
        Names (p,) and (q,).
    discrete : bool
        Whether latents are numbers of classes.
    theta, standard_errors : ndarray of shape (p,)
        Estimates, and their standard errors (NaN: unknown).
    information : ndarray of shape (p, p)
        Observed information.
    log_likelihood : LogLikelihood
        With its Monte Carlo error.
    names : tuple of str
        Of the individuals, (n,).
    means : ndarray of shape (n, q)
        Conditional means of the latents.
    covariances : ndarray of shape (n, q, q)
        Conditional covariances.
    lower, upper : ndarray of shape (n, q)
        Ends of intervals of the latents.
    level : float
        Probability of an interval.
    shrinkage : ndarray of shape (q,)
        As `vpem.saem.conditional.Conditional` has it.
    n_draws : int
        Draws of each individual's latents.
    acceptance : ndarray of shape (n,) or None
        Share of accepted moves.
    trace : ndarray of shape (n_iter + 1, p)
        Parameters, the start first.
    bytes : ndarray of shape (n_iter,)
        Payload bytes sent until each iteration.
    n_iter : int
        Iterations.
    converged : bool
        Whether the parameters had settled.
    change : float
        How far the farthest parameter was at the last look from where it settles, in its standard
        error; NaN: not looked at.
        Without ``grounds``, from an older vpem, a relative change.
    covariates : dict of str to ndarray of shape (n,)
        Those that do not change within any individual; NaN where missing.
    time_range : tuple of float
        First and last time of the rows.
    settings : dict
        How the fit was asked for.
    communication : dict
        What was sent, as `vpem.network.ledger.Ledger.summary` tells.
    versions : dict
        Of vpem, Python and the libraries.
    grounds : str
        A sentence on whether it converged; empty where none was asked for.
    """

    model: str
    model_class: str
    model_options: Report
    parameters: tuple[str, ...]
    latents: tuple[str, ...]
    discrete: bool
    theta: Vector
    standard_errors: Vector
    information: Vector
    log_likelihood: LogLikelihood
    names: tuple[str, ...]
    means: Vector
    covariances: Vector
    lower: Vector
    upper: Vector
    level: float
    shrinkage: Vector
    n_draws: int
    acceptance: Vector | None
    trace: Vector
    bytes: NDArray[np.int64]
    n_iter: int
    converged: bool
    change: float
    covariates: dict[str, Vector]
    time_range: tuple[float, float]
    settings: Report = field(default_factory=dict)
    communication: Report = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    grounds: str = ""

    @property
    def estimates(self) -> dict[str, float]:
        """Estimates by the names of the parameters."""
        return dict(zip(self.parameters, self.theta.tolist(), strict=True))

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors by the names of the parameters."""
        return dict(zip(self.parameters, self.standard_errors.tolist(), strict=True))


def as_saved(fit: SaemFit | SavedSaem) -> SavedSaem:
    """Return what a file would keep of a fit."""
    if isinstance(fit, SavedSaem):
        return fit
    data, given = fit.model.individuals, fit.given
    covariates = {}
    for name, values in data.covariates.items():
        each = values[data.first[:-1]]
        same = (values == each[data.individual_of]) | np.isnan(values)
        if same.all():
            covariates[name] = each
    return SavedSaem(
        fit.model_name,
        type(fit.model).__name__,
        fit.model_options,
        tuple(fit.model.parameters),
        tuple(fit.model.latents),
        fit.model.discrete,
        fit.theta,
        fit.standard_errors,
        fit.information,
        fit.log_likelihood,
        data.names,
        given.means,
        given.covariances,
        given.lower,
        given.upper,
        given.level,
        given.shrinkage,
        given.n_draws,
        fit.acceptance,
        fit.trace,
        fit.bytes,
        fit.n_iter,
        fit.converged,
        fit.change,
        covariates,
        (float(data.times.min()), float(data.times.max())),
        {"data": data.source, "n_rows": data.n_rows, **fit.settings},
        fit.ledger.summary(),
        current_versions(),
        fit.grounds,
    )
