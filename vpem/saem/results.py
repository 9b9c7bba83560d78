"""What SAEM found, and what there is to say of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.errors import VpemWarning, not_converged
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.saem.chains import Chains
from vpem.saem.conditional import Conditional
from vpem.saem.corpus_facts import CorpusFacts
from vpem.saem.fisher import Certainty
from vpem.saem.individuals import Individuals
from vpem.saem.likelihood import LogLikelihood
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.people import People
from vpem.saem.runs import SaemRun
from vpem.shown import Shown
from vpem.sums.connect import Network

FEWEST = 0.01
"""Share of importance draws that weighted ones are worth, below which chains are doubted."""


@dataclass(frozen=True)
class SaemFit(Shown, facts="{theta.size:parameter}, {converged:converged|not converged}"):
    """A fitted model.

    Attributes
    ----------
    model : SaemModel
        Of all individuals.
    theta : ndarray of shape (p,)
        Estimates.
    standard_errors : ndarray of shape (p,)
        Of them; NaN where the information is not positive definite.
    information : ndarray of shape (p, p)
        Observed information.
    log_likelihood : LogLikelihood
        With its Monte Carlo error.
    given : Conditional
        Latents of each individual: means, intervals, shrinkage.
    people : People
        The individuals that `given`, `log_likelihood` and `acceptance` tell of: in several
        processes those of this one, see `vpem.saem.people.collect`.
    acceptance : ndarray of shape (n,) or None
        Share of a sampler's moves that were accepted after the burn-in; None where all are.
    accepted : tuple of float or None
        Mean, least and most of that over all individuals.
    least_effective : float
        Least of the draws that an individual's importance draws are worth.
    trace : ndarray of shape (n_iter + 1, p)
        Parameters, the start first.
    bytes : ndarray of shape (n_iter,)
        Payload bytes sent until each iteration.
    n_iter : int
        Iterations.
    converged : bool
        Whether the parameters had settled, to ``tol``.
    change : float
        How far the farthest parameter was at the last look from where it settles, in its standard
        error; NaN: not looked at.
    grounds : str
        A sentence that says so; empty with ``tol`` 0.
    ledger : Ledger
        All that was sent.
    model_name : str
        One of `MODELS`, or ``own``.
    model_options : dict
        All options of a model that is named, as JSON can hold them.
    settings : dict
        How the fit was asked for, likewise.
    network : Report
        Who was joined to whom, and how they summed.
    corpus : CorpusFacts or None
        Of which topics it is, of the model ``lda``.
    seconds : float
        Wall time, with that of a run that it went on from.
    certain : Certainty
        How sure estimates are: their covariance, and the degrees of freedom of their t laws.
    """

    model: SaemModel
    theta: Vector
    standard_errors: Vector
    information: Vector
    log_likelihood: LogLikelihood
    given: Conditional
    people: People
    acceptance: Vector | None
    accepted: tuple[float, float, float] | None
    least_effective: float
    trace: Vector
    bytes: NDArray[np.int64]
    n_iter: int
    converged: bool
    change: float
    grounds: str
    ledger: Ledger
    model_name: str
    model_options: Report
    settings: Report
    network: Report
    corpus: CorpusFacts | None
    seconds: float
    certain: Certainty

    @property
    def estimates(self) -> dict[str, float]:
        """Estimates by the names of the parameters."""
        return dict(zip(self.model.parameters, self.theta.tolist(), strict=True))

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors by the names of the parameters."""
        return dict(zip(self.model.parameters, self.standard_errors.tolist(), strict=True))


def warn_unless_settled(run: SaemRun, tol: float) -> None:
    """Warn where parameters had not settled."""
    if tol > 0 and not run.converged:
        warnings.warn(
            not_converged(
                f"SAEM has not converged in {run.n_iter} iterations: {run.grounds}"
                f"{'' if run.change < tol else '; take more iterations or chains'}"
            ),
            stacklevel=3,
        )


def warn_of_few(likelihood: LogLikelihood, names: Sequence[str], n_draws: int) -> None:
    """Warn where the draws of latents cannot be those of their law: chains that hardly move."""
    if not len(names):
        return
    who = int(np.argmin(likelihood.effective))
    if likelihood.effective[who] < FEWEST * n_draws:
        warnings.warn(
            f"the {n_draws} importance draws of individual {names[who]!r} are worth "
            f"{likelihood.effective[who]:.1f}: its chains have not seen all of the latents' law, "
            "and estimates may be off; take the sampler exact where the model has it, centre "
            "times, or make more sampling steps",
            VpemWarning,
            stacklevel=3,
        )


def network_report(network: Network | None, run: SaemRun, disagreement: float) -> Report:
    """Say who was joined to whom, how they summed, and how far apart they were at the end."""
    if network is None:
        return {}
    found = network.whole.describe(
        "topology", "sum", "rounds", "weights", "compress", "secure_sum", "faults"
    )
    partitions = [{"iteration": at, "reason": reason} for at, reason in run.partitions]
    return {**found, "partitions": partitions, "disagreement": disagreement}


def acceptance_of(individuals: Individuals, chains: Chains) -> Vector | None:
    """Share of moves that were accepted, (n,); None where no process made any."""
    tried = individuals.largest(np.array([chains.tried.any()], dtype=np.uint8))[0]
    return chains.accepted / np.maximum(chains.tried, 1) if tried else None


def spread_of(individuals: Individuals, rates: Vector) -> tuple[float, float, float]:
    """Mean, least and most of a number of each individual."""
    low, high = individuals.largest(
        np.array([-rates.min(initial=np.inf), rates.max(initial=-np.inf)])
    ).tolist()
    return float(individuals.mean(rates)), -low, high
