"""A matrix with nothing missing, as imputation ends with it, and how it describes itself."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpem.fits.results import SUMMED, Result
from vpem.network.schema import Report
from vpem.steps.fedruns import FedRun
from vpem.sums.connect import Network
from vpem.terms.lowrank.factors import LowRank
from vpem.terms.lowrank.laws import Law
from vpem.terms.lowrank.observations import Observations
from vpem.terms.scaling import Scaling

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """What observers saw, all of them together.

    Attributes
    ----------
    times : ndarray of shape (I, J)
        How many saw an entry.
    mean : ndarray of shape (I, J)
        Mean over them, by the entries' weights; NaN where nobody saw it.
    column_means : ndarray of shape (J,)
        Mean of all entries seen of each column.
    """

    times: NDArray[np.intp]
    mean: Matrix
    column_means: Matrix


@dataclass(kw_only=True)
class Completed(Result):
    """A matrix with nothing missing, whatever filled it.

    Attributes
    ----------
    observations : Observations
        What it was found from; of other processes' observers only how many entries.
    seen : Seen
        What they saw together.
    law : Law
        Of the entries.
    log_likelihood : float
        Of what was seen, in nats: of a matrix of low rank an entry, of a mixture a row.
    network : Network
        Who took part.
    scaling : Scaling
        Of the columns: what was fitted is of entries in these units.
    options : dict
        Settings as used.
    choice : dict or None
        How method, rank and ridge were chosen by held-out entries, where they were.
    converged, seconds, communication
        See `vpem.fits.results.Result`.
    """

    observations: Observations
    seen: Seen
    law: Law
    log_likelihood: float
    network: Network
    scaling: Scaling
    options: Report = field(default_factory=dict)
    choice: Report | None = None

    @property
    @abstractmethod
    def fitted(self) -> Matrix:
        """Expectation of every entry, in the law's mean units, shape (I, J)."""

    @abstractmethod
    def describe(self) -> Report:
        """Summarize the imputation in values that JSON can hold."""

    @property
    def imputed(self) -> Matrix:
        """Entries as seen (their mean over observers), and the fitted ones elsewhere, (I, J)."""
        return np.where(np.isnan(self.seen.mean), self.fitted, self.seen.mean)

    @property
    def row_trend(self) -> Matrix:
        """Mean of the fitted matrix along each row, shape (I,)."""
        found: Matrix = self.fitted.mean(axis=1)
        return found

    @property
    def column_trend(self) -> Matrix:
        """Mean of the fitted matrix along each column, shape (J,)."""
        found: Matrix = self.fitted.mean(axis=0)
        return found

    def _common(self) -> Report:
        """Return what there is to report whatever filled the matrix."""
        given = self.observations
        rows, columns = given.shape
        return {
            "n_samples": rows,
            "n_features": columns,
            "n_workers": given.n_observers,
            "worker_names": list(given.names),
            "n_entries": given.n_entries,
            "share_seen": float((self.seen.times > 0).mean()),
            "law": self.law.name,
            "variance": None,
            "log_likelihood": self.log_likelihood,
            "column_trend": self.column_trend.tolist(),
            "converged": self.converged,
            "n_iter": self.n_iter,
            **self.options,
            "choice": self.choice,
            "communication": self.communication,
            "seconds": self.seconds,
        }


@dataclass(kw_only=True)
class Imputation(
    Completed,
    facts="rank {rank}, {observations.shape[0]:row}, {observations.shape[1]:column}, "
    "{converged:converged|not converged} after {n_iter:iteration}",
):
    """A matrix with nothing missing, and how it was found.

    Attributes
    ----------
    factors : LowRank
        U and V of theta; on a graph those of the mean of the observers' statistics.
    rank, ridge, n_copies
        As used.
    run : FedRun
        History, memories, projections.
    compress : str or None
        Name of the codec.
    observations, seen, law, log_likelihood, network, scaling, options
        See `Completed`.
    """

    factors: LowRank
    rank: int
    ridge: float
    n_copies: float
    run: FedRun
    compress: str | None

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.run.n_iter

    @property
    def fitted(self) -> Matrix:
        """Expectation of every entry, in the law's mean units, shape (I, J)."""
        return self.law.mean(self.factors.theta) * self.scaling.scale + self.scaling.shift

    def describe(self) -> Report:
        """Summarize the imputation in values that JSON can hold.

        Log-likelihoods are in nats an entry seen; ``history`` is the penalized one, of the start
        and after every iteration, as are ``mean_field``, ``epochs`` and ``bytes_up``.
        """
        run, network, history = self.run, self.network, self.run.history
        return {
            "algorithm": "fedmissem",
            **self._common(),
            "variance": self.law.dispersion if self.law.name == "gaussian" else None,
            "rank": self.rank,
            "ridge": self.ridge,
            "n_copies": self.n_copies,
            "singular_values": self.factors.singular_values.tolist(),
            "row_trend": self.row_trend.tolist(),
            "objective": history.objective[-1],
            "in_noise": run.in_noise,
            "projections": run.projections,
            "compress": self.compress,
            **network.describe("topology", "edges", "server", *SUMMED, "faults"),
            "partitions": [{"iteration": at, "reason": reason} for at, reason in run.partitions],
            "disagreement": history.disagreement[-1],
            "history": history.objective,
            "mean_field": history.mean_field,
            "epochs": history.epochs,
            "bytes_up": history.bytes_up,
        }
