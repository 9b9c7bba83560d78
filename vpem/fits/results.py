"""What fits end with, and how they describe themselves: the JSON of `vpem fit`, kept in models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.files.models import Model, current_versions
from vpem.fits.answer import Answer
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.shown import Shown
from vpem.steps.reinitialise import Recovery
from vpem.sums.connect import Network
from vpem.terms.mixture import Mixture
from vpem.terms.variational_mixture import VariationalMixture

if TYPE_CHECKING:
    from vpem.fits.privacy import Guarantee


SUMMED = (
    "sum", "tree", "rounds", "weights", "mixing_rate", "consensus_error",
    "consensus_error_is_bound", "acceleration", "consensus_tol", "secure_sum",
)  # fmt: skip
"""What a report says of the rounds of a network, by the names of `Network.describe`."""


@dataclass(kw_only=True)
class Result(Shown, ABC, facts="{converged:converged|not converged}, {n_iter:iteration}"):
    """What every fit ends with.

    Attributes
    ----------
    converged : bool
        Whether it stopped by itself.
    seconds : float
        Wall time, of all restarts.
    communication : dict
        What was sent, over all restarts (`vpem.network.ledger.Ledger.summary`), and
        ``bytes_by_iteration``, an entry for each of the history.
    """

    converged: bool
    seconds: float = 0.0
    communication: Report = field(default_factory=dict)

    @property
    @abstractmethod
    def n_iter(self) -> int:
        """Iterations, of the restart that was kept."""


@dataclass(kw_only=True)
class NetworkResult(Result):
    """What every fit over a network ends with.

    Attributes
    ----------
    network : Network
        Who took part.
    init_rows : tuple of int or None
        Rows it was first placed at; None where it started from a model or from centres.
    best_restart : int
        Which of the restarts this is, from 0.
    total_iterations : int
        Of all restarts.
    ledger : Ledger or None
        Where `communication` was counted.
    converged, seconds, communication
        See `Result`.
    """

    network: Network
    init_rows: tuple[int, ...] | None = None
    best_restart: int = 0
    total_iterations: int = 0
    ledger: Ledger | None = None

    @abstractmethod
    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold.

        Parameters
        ----------
        feature_names : sequence of str
            Names of the features (d,).
        holders : sequence of str
            Names of the agents, or of the workers, (N,).

        Returns
        -------
        dict
            Agents, workers, hubs, rows and features are numbered from 0; log-likelihoods are in
            nats and in the user's units.
        """

    @property
    def _starts(self) -> list[int] | None:
        return None if self.init_rows is None else list(self.init_rows)


@dataclass(kw_only=True)
class MixtureResult(
    NetworkResult,
    facts="{mixture.n_components:component}, {mixture.n_features:feature}, "
    "{converged:converged|not converged} after {n_iter:iteration}, "
    "log-likelihood per sample {log_likelihood:.6g}",
):
    """A fitted mixture, and how it came about.

    Attributes
    ----------
    mixture : Mixture
        The parameters, hub by hub.
    history : ndarray of shape (n, R)
        Total log-likelihood by iteration, as each root finds it.
    total_weight : float
        Sum of the row weights (the number of rows when there are none).
    degenerate : list of int
        Components that are singular in a hub but for the floor (`vpem.terms.degenerate`).
    copies : list of int
        Components whose parameters are those of an earlier one in every hub.
    """

    mixture: Mixture
    history: NDArray[np.float64]
    total_weight: float
    degenerate: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)

    @property
    @abstractmethod
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the fitted mixture."""

    @property
    def bic(self) -> float:
        """Bayesian information criterion, from the mean log-likelihood over roots."""
        return self.mixture.bic(self.log_likelihood * self.total_weight, self.total_weight)

    @property
    def aic(self) -> float:
        """Akaike information criterion, from the mean log-likelihood over roots."""
        return self.mixture.aic(self.log_likelihood * self.total_weight)

    def answer(self, feature_names: Sequence[str]) -> Answer:
        """Return how large components are, and in which features each differs."""
        found = Answer.of_mixture(self.mixture, feature_names, self.total_weight)
        return replace(found, degenerate=tuple(self.degenerate))

    def kept(self, feature_names: Sequence[str], report: Report, options: Report) -> Model:
        """Return the model that a file keeps.

        Parameters
        ----------
        feature_names : sequence of str
            Names of the features (d,).
        report : dict
            From `describe`, with what else there is to say; its ``history`` is left out, as are
            ``components``, which follow from the parameters, and where rows are protected warnings,
            which tell of them.
        options : dict
            How the fit was asked for.
        """
        history = self.history
        untold = {"history", "components"} | ({"warnings"} if "privacy" in report else set())
        roots = history.shape[1] > self.mixture.blocks.n_blocks
        return Model(
            self.mixture,
            tuple(feature_names),
            {name: value for name, value in report.items() if name not in untold},
            history.mean(axis=1, keepdims=True) if roots else history,
            options,
            current_versions(),
            history if roots else None,
        )

    def _size(self) -> Report:
        """What was fitted, in numbers."""
        return {
            "n_components": self.mixture.n_components,
            "covariance_type": self.mixture.covariance_type,
            **({"n_factors": self.mixture.n_factors} if self.mixture.n_factors else {}),
            "n_parameters": self.mixture.n_parameters,
            "degenerate": self.degenerate,
        }


@dataclass(kw_only=True)
class Fit(MixtureResult):
    """A mixture fitted to features that agents hold.

    Attributes
    ----------
    mixture, network, history, total_weight
        See `MixtureResult`; a row of ``history`` (n_iter, B) is of the E-step of an iteration, the
        first of the start.
    root_log_likelihood : ndarray of shape (B,)
        Total log-likelihood of `mixture`, as each root finds it.
    prior : dict or None
        Under which the parameters are the mode (`--prior map`), of all hubs; `mixture` of any other
        prior has it. Then ``history`` is of the penalised log-likelihood, which EM raises.
    log_prior : float
        Log-density of the parameters under it, less that at its mode, in nats; mean over roots.
    n_samples : int
        Number of rows.
    converged : bool
        Whether all roots proposed to stop.
    recoveries : list of Recovery
        Components that collapsed and were placed anew.
    partitions : list of (int, str)
        Iterations in which the network fell apart, and how; parameters stayed as they were.
    batch_size, step_size, accelerate : int, float, str or None
        As they were asked for.
    lost : list of int
        Iterations, counted from 1 with these, whose sum found that to be too much; they have no
        entry in the history.
    n_passes : float or None
        Rows worked on in batches, in multiples of all of them; None without batches.
    free_energy : list of float
        After every batch, where sums are exact.
    responsibilities : dict of int to ndarray of shape (M, K)
        Of all rows, as agents of this process hear of them, where they are told.
    guarantee : Guarantee or None
        What is promised of rows; then there is no history, and no log-likelihood.
    labels_for_fit : dict or None
        Of how many rows labels were given, by which agent, and their names: of the first
        components, in this order. Log-likelihoods are then of rows and labels together.
    init_rows, best_restart, total_iterations, seconds, communication
        See `NetworkResult`.
    """

    root_log_likelihood: NDArray[np.float64]
    n_samples: int
    prior: Report | None = None
    log_prior: float = 0.0
    recoveries: list[Recovery] = field(default_factory=list)
    partitions: list[tuple[int, str]] = field(default_factory=list)
    batch_size: int | None = None
    step_size: float | None = None
    accelerate: str | None = None
    lost: list[int] = field(default_factory=list)
    n_passes: float | None = None
    free_energy: list[float] = field(default_factory=list)
    responsibilities: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    guarantee: Guarantee | None = None
    labels_for_fit: Report | None = None

    @property
    def n_iter(self) -> int:
        """Iterations of the restart that was kept."""
        return len(self.history) if self.guarantee is None else self.total_iterations

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the fitted mixture, mean over roots.

        Of a variational fit that is the lower bound of the log-evidence.
        """
        return float(self.root_log_likelihood.mean() / self.total_weight)

    def answer(self, feature_names: Sequence[str]) -> Answer:
        """Return how large components are, how each differs, and which labels they have."""
        names = () if self.labels_for_fit is None else self.labels_for_fit["names"]
        return replace(super().answer(feature_names), labels=tuple(names))

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold; see `NetworkResult.describe`."""
        network = self.network
        return {
            "algorithm": "vp-em",
            **self._data(feature_names),
            "agent_names": list(holders),
            "partition": network.agents_of_features(),
            "hubs": [
                {
                    "root": int(hub.root),
                    "agents": [int(agent) for agent in hub.agents],
                    "features": columns.tolist(),
                }
                for hub, columns in zip(network.hubs, network.blocks.features, strict=True)
            ],
            "hops": network.hops,
            **network.describe("hubs_chosen"),
            **self._network(),
            "batch_size": self.batch_size,
            "step_size": self.step_size,
            "n_passes": self.n_passes,
            "free_energy": (np.array(self.free_energy) / self.total_weight).tolist(),
            **({} if self.labels_for_fit is None else {"labels_for_fit": self.labels_for_fit}),
            **self._run(),
        }

    def _data(self, feature_names: Sequence[str]) -> Report:
        return {
            "n_samples": self.n_samples,
            "n_features": self.mixture.n_features,
            "n_agents": self.network.graph.n_agents,
            **self._size(),
            "feature_names": list(feature_names),
        }

    def _network(self) -> Report:
        described = self.network.describe(
            "server", "edges", "topology", "positions", *SUMMED, "compress", "faults"
        )
        return {
            **described,
            "partitions": [{"iteration": at, "reason": reason} for at, reason in self.partitions],
            **self.network.describe("consensus_path"),
        }

    def _criteria(self) -> Report:
        """Return what models are chosen by; a lower bound has its price for parameters in it."""
        mixture = self.mixture
        if not isinstance(mixture, VariationalMixture):
            penalised = self.log_likelihood + self.log_prior / self.total_weight
            more = (
                {}
                if self.prior is None
                else {
                    "prior": self.prior,
                    "log_prior": self.log_prior,
                    "penalised_log_likelihood": penalised,
                }
            )
            return {"bic": self.bic, "aic": self.aic, **more}
        return {
            "lower_bound": self.log_likelihood,
            "weight_concentration_prior_type": mixture.prior.kind,
            "in_use": mixture.in_use.tolist(),
        }

    def _run(self) -> Report:
        return {
            "mixing_weights": self.mixture.assembled_weights.tolist(),
            "converged": self.converged,
            "accelerate": self.accelerate,
            "lost_sums": self.lost,
            "n_iter": self.n_iter,
            "total_weight": self.total_weight,
            "log_likelihood": self.log_likelihood,
            "root_log_likelihood": (self.root_log_likelihood / self.total_weight).tolist(),
            "history": self.history.tolist(),
            **self._criteria(),
            "seconds": self.seconds,
            **({} if self.guarantee is None else self.guarantee.in_report()),
            "init_rows": self._starts,
            "restart": self.best_restart,
            "recoveries": [asdict(recovery) for recovery in self.recoveries],
            "communication": self.communication,
            "iterations_per_second": self.total_iterations / max(self.seconds, 1e-9),
        }


@dataclass(kw_only=True)
class RowFit(Fit):
    """A mixture fitted to rows that workers hold.

    Attributes
    ----------
    mixtures : list of Mixture
        One where all share the sum; under consensus that of each worker, or on MPI ranks other than
        the first of each worker of the rank. `mixture` is the first.
    workers : Workers
        Who held which rows.
    clipped : dict of int to int
        Of a private fit: rows of each worker of this process that had values beyond the bounds.
        That is no part of reports or models, since nobody else may know.
    """

    mixtures: list[Mixture] = field(default_factory=list)
    workers: Workers
    clipped: dict[int, int] = field(default_factory=dict)

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold; see `NetworkResult.describe`.

        Parameters are those of the first worker, and ``disagreement`` tells how far log-likelihoods
        per sample and mixing weights of the workers' models lie apart.
        """
        blocks = self.mixture.blocks
        weights = np.concatenate([mixture.weights for mixture in self.mixtures])
        agents = list(blocks.agents[0])
        return {
            "algorithm": "em-rows",
            "split": "rows",
            **self._data(feature_names),
            "n_workers": self.workers.n_workers,
            "worker_names": list(holders),
            "agent_names": list(holders),
            "worker_rows": self.workers.counts.tolist(),
            "hubs": [{"root": 0, "agents": agents, "features": blocks.features[0].tolist()}],
            "hops": 0,
            **self._network(),
            "disagreement": {
                "log_likelihood": None
                if self.guarantee is not None
                else float(np.ptp(self.root_log_likelihood) / self.total_weight),
                "mixing_weights": float(np.ptp(weights, axis=0).max()),
            },
            **self._run(),
        }
