"""A fit of SAEM as a file keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, did_you_mean
from vpem.files.models import current_versions
from vpem.network.schema import Report
from vpem.saem.corpus_facts import CorpusFacts
from vpem.saem.doses import Doses
from vpem.saem.likelihood import LogLikelihood
from vpem.saem.models.model import Vector
from vpem.saem.results import SaemFit
from vpem.shown import Shown

CERTAIN = ("covariance", "freedom", "test_errors")


@dataclass(frozen=True)
class SavedSaem(
    Shown,
    facts="{model}, {theta.size:parameter}, {converged:converged|not converged} after "
    "{n_iter:iteration}",
):
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
        Conditional covariances; of a wide model (n, 0, 0), as ``information`` is (0, 0).
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
    words : tuple of str
        The vocabulary of a corpus whose words have names, (V,); else none.
    corpus : CorpusFacts or None
        Of which topics the corpus is; None of other models.
    doses : Doses or None
        Of the individuals, where rows of doses were read.
    own_curve : str
        The curve of the user's own, ``FILE.py:NAME``, that may be run: what the user named now. A
        file that is read says nothing of it, and so runs nothing.
    covariance, freedom, test_errors : ndarray or None
        As `vpem.saem.fisher.Certainty` has them; None of wide models, and in files of older vpem.
    """

    model: str
    model_class: str
    model_options: Report
    parameters: Sequence[str]
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
    words: tuple[str, ...] = ()
    corpus: CorpusFacts | None = None
    doses: Doses | None = None
    own_curve: str = ""
    covariance: Vector | None = None
    freedom: Vector | None = None
    test_errors: Vector | None = None

    @property
    def estimates(self) -> dict[str, float]:
        """Estimates by the names of the parameters."""
        return dict(zip(self.parameters, self.theta.tolist(), strict=True))

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors by the names of the parameters."""
        return dict(zip(self.parameters, self.standard_errors.tolist(), strict=True))

    @property
    def n_individuals(self) -> int:
        """How many there were, of whom `names` may be none where they stayed on their devices."""
        return len(self.names) or max(1, int(self.settings.get("n_individuals") or 1))

    def places(self, names: Sequence[str] | None = None) -> NDArray[np.intp]:
        """Return the numbers of individuals of these names, or of all."""
        if not self.names:
            raise InputError(
                "the fit holds nothing of individuals, which stayed on their devices; give rows"
            )
        where = {name: place for place, name in enumerate(self.names)}
        for name in names or ():
            if name not in where:
                raise InputError(
                    f"the fit has no individual {name!r}{did_you_mean(name, self.names)}; give its "
                    "rows"
                )
        wanted = self.names if names is None else names
        return np.array([where[name] for name in wanted], dtype=np.intp)


def as_saved(fit: SaemFit | SavedSaem) -> SavedSaem:
    """Return what a file would keep of a fit."""
    if isinstance(fit, SavedSaem):
        return fit
    people, given = fit.people, fit.given
    q = len(fit.model.latents)  # without values that are drawn with them
    return SavedSaem(
        fit.model_name,
        type(fit.model).__name__,
        fit.model_options,
        fit.model.parameters if fit.model.wide else tuple(fit.model.parameters),
        tuple(fit.model.latents),
        fit.model.discrete,
        fit.theta,
        fit.standard_errors,
        fit.information,
        fit.log_likelihood,
        people.names,
        given.means[:, :q],
        given.covariances[:, :q, :q],
        given.lower[:, :q],
        given.upper[:, :q],
        given.level,
        given.shrinkage[:q],
        given.n_draws,
        fit.acceptance,
        fit.trace,
        fit.bytes,
        fit.n_iter,
        fit.converged,
        fit.change,
        people.covariates,
        people.time_range,
        {
            "data": fit.model.individuals.source,
            "n_individuals": people.n_individuals,
            "n_rows": people.n_rows,
            **fit.settings,
            **fit.network,
        },
        fit.ledger.summary(),
        current_versions(),
        fit.grounds,
        fit.model.individuals.words or (),
        fit.corpus,
        people.doses,
        str(fit.model_options.get("curve") or ""),
        *(None if fit.model.wide else getattr(fit.certain, name) for name in CERTAIN),
    )
