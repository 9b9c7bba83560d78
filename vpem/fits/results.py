"""What a fit has to say for itself, as plain values: the JSON of `vpem fit`, kept in the model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import NotConvergedWarning, Setting, VpemWarning, shorten
from vpem.network.workers import Workers
from vpem.steps import em
from vpem.sums.connect import Network
from vpem.terms.mixture import Mixture

__all__ = [
    "LARGEST_DISAGREEMENT",
    "Fit",
    "RowFit",
    "agents_of_features",
    "describe_fit",
    "describe_row_fit",
]


def describe_fit(
    fit: Fit, agent_names: Sequence[str], feature_names: Sequence[str]
) -> dict[str, Any]:
    """Summarize a fit in values that JSON can hold.

    Parameters
    ----------
    fit : Fit
        From `vpem.fits.vpem.fit_vpem`.
    agent_names, feature_names : sequence of str
        Names of the agents (N,) and features (d,).

    Returns
    -------
    dict
        Agents, hubs and features are numbered from 0; log-likelihoods are in nats and in the
        user's units.
    """
    network = fit.network
    return {
        "algorithm": "vp-em",
        **_of_data(fit, network.blocks.n_features, feature_names),
        "agent_names": list(agent_names),
        "partition": agents_of_features(network),
        "hubs": [
            {
                "root": int(hub.root),
                "agents": [int(agent) for agent in hub.agents],
                "features": columns.tolist(),
            }
            for hub, columns in zip(network.hubs, network.blocks.features, strict=True)
        ],
        "hops": network.hops,
        **_of_network(fit),
        "batch_size": fit.batch_size,
        "step_size": fit.step_size,
        "n_passes": fit.n_passes,
        "free_energy": (np.array(fit.free_energy) / fit.total_weight).tolist(),
        **_of_run(fit),
    }


def describe_row_fit(fit: RowFit, feature_names: Sequence[str]) -> dict[str, Any]:
    """Summarize a fit to rows that workers hold in values that JSON can hold.

    Parameters
    ----------
    fit : RowFit
        From `vpem.fits.rows.fit_em`.
    feature_names : sequence of str
        Names of the features (d,).

    Returns
    -------
    dict
        As `describe_fit`; parameters are those of the first worker, and ``disagreement`` tells how
        far log-likelihoods per sample and mixing weights of the workers' models lie apart.
    """
    workers = fit.workers
    blocks = fit.mixture.blocks
    weights = np.concatenate([mixture.weights for mixture in fit.mixtures])
    agents = list(blocks.agents[0])
    return {
        "algorithm": "em-rows",
        "split": "rows",
        **_of_data(fit, blocks.n_features, feature_names),
        "n_workers": workers.n_workers,
        "worker_names": list(workers.names),
        "agent_names": list(workers.names),
        "worker_rows": workers.counts.tolist(),
        "hubs": [{"root": 0, "agents": agents, "features": blocks.features[0].tolist()}],
        "hops": 0,
        **_of_network(fit),
        "disagreement": {
            "log_likelihood": float(np.ptp(fit.root_log_likelihood) / fit.total_weight),
            "mixing_weights": float(np.ptp(weights, axis=0).max()),
        },
        **_of_run(fit),
    }


def agents_of_features(network: Any) -> list[int]:
    """Return the agent that holds each feature, (d,), of a `vpem.sums.connect.Network`."""
    agents = [agent for hub in network.hubs for agent in hub.agents]
    widths = [network.widths[agent] for agent in agents]
    held = np.empty(network.blocks.n_features, dtype=np.intp)
    # Features of a block stand by agent.
    held[network.blocks.order] = np.repeat(agents, widths)
    return [int(agent) for agent in held]


def _of_data(fit: Fit, n_features: int, feature_names: Sequence[str]) -> dict[str, Any]:
    mixture = fit.mixture
    return {
        "n_samples": fit.n_samples,
        "n_features": n_features,
        "n_agents": fit.network.graph.n_agents,
        "n_components": mixture.n_components,
        "covariance_type": mixture.covariance_type,
        "n_parameters": mixture.n_parameters,
        "feature_names": list(feature_names),
    }


def _of_network(fit: Fit) -> dict[str, Any]:
    network = fit.network
    graph = network.graph
    return {
        "server": graph.n_agents if graph.has_server else None,
        "edges": graph.edges.tolist(),
        "topology": graph.topology,
        "positions": None if graph.positions is None else graph.positions.tolist(),
        "rounds": network.n_rounds,
        "weights": network.weights,
        "mixing_rate": network.mixing_rate,
        "consensus_error": network.consensus_error,
        "consensus_error_is_bound": network.error_is_bound,
        "acceleration": network.acceleration,
        "consensus_tol": network.consensus_tol,
        "compress": network.compress,
        "faults": None if network.faults is None else asdict(network.faults),
        "partitions": [
            {"iteration": iteration, "reason": reason} for iteration, reason in fit.partitions
        ],
        "consensus_path": getattr(network.total, "path", "server"),
    }


def _of_run(fit: Fit) -> dict[str, Any]:
    return {
        "mixing_weights": fit.mixture.assembled_weights.tolist(),
        "converged": fit.converged,
        "n_iter": fit.n_iter,
        "total_weight": fit.total_weight,
        "log_likelihood": fit.log_likelihood,
        "root_log_likelihood": (fit.root_log_likelihood / fit.total_weight).tolist(),
        "history": fit.history.tolist(),
        "bic": fit.bic,
        "aic": fit.aic,
        "init_rows": None if fit.init_rows is None else list(fit.init_rows),
        "restart": fit.best_restart,
        "recoveries": [
            {
                "iteration": recovery.iteration,
                "component": recovery.component,
                "hub": recovery.hub,
                "reason": recovery.reason,
                "row": recovery.row,
            }
            for recovery in fit.recoveries
        ],
        "communication": fit.communication,
        "seconds": fit.seconds,
        "iterations_per_second": fit.total_iterations / max(fit.seconds, 1e-9),
    }


LARGEST_DISAGREEMENT = 1e-3
"""In nats per sample, between roots whose sums have no operator to judge them by."""


@dataclass
class Fit:
    """A fitted mixture and how it came about.

    Attributes
    ----------
    mixture : Mixture
        The parameters, hub by hub.
    network : Network
        Who took part.
    history : ndarray of shape (n_iter, B)
        Total log-likelihood as each root finds it in the E-step of each iteration; the first row
        belongs to the start.
    root_log_likelihood : ndarray of shape (B,)
        Total log-likelihood of `mixture`, as each root finds it.
    total_weight : float
        Sum of the row weights (the number of rows when there are none).
    n_samples : int
        Number of rows.
    converged : bool
        Whether all roots proposed to stop.
    recoveries : list of Recovery
        Components that collapsed and were placed anew.
    init_rows : tuple of int, or None
        Rows the means were first placed at; None when started from a model.
    best_restart : int
        Which of the restarts this is, from 0.
    seconds : float
        Wall time of all restarts.
    total_iterations : int
        Of all restarts.
    communication : dict
        What was sent, over all restarts (`vpem.network.ledger.Ledger.summary`);
        ``bytes_by_iteration`` belongs to the entries of ``history``.
    partitions : list of (int, str)
        Iterations in which the network fell apart, and how; parameters stayed as they were.
    batch_size, step_size : int, float or None
        As they were asked for.
    n_passes : float or None
        Rows worked on in batches, in multiples of all of them; None without batches.
    free_energy : list of float
        After every batch, where sums are exact.
    """

    mixture: Mixture
    network: Network
    history: NDArray[np.float64]
    root_log_likelihood: NDArray[np.float64]
    total_weight: float
    n_samples: int
    converged: bool
    recoveries: list[em.Recovery] = field(default_factory=list)
    init_rows: tuple[int, ...] | None = None
    best_restart: int = 0
    seconds: float = 0.0
    total_iterations: int = 0
    communication: dict[str, Any] = field(default_factory=dict)
    partitions: list[tuple[int, str]] = field(default_factory=list)
    batch_size: int | None = None
    step_size: float | None = None
    n_passes: float | None = None
    free_energy: list[float] = field(default_factory=list)

    @property
    def n_iter(self) -> int:
        """Iterations of the restart that was kept."""
        return len(self.history)

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the fitted mixture, mean over roots."""
        return float(self.root_log_likelihood.mean() / self.total_weight)

    @property
    def bic(self) -> float:
        """Bayesian information criterion, from the mean log-likelihood over roots."""
        return self.mixture.bic(self.log_likelihood * self.total_weight, self.total_weight)

    @property
    def aic(self) -> float:
        """Akaike information criterion, from the mean log-likelihood over roots."""
        return self.mixture.aic(self.log_likelihood * self.total_weight)


def _warn_of_outcome(fit: Fit, max_iter: int, tol: float) -> None:
    apart = float(np.ptp(fit.root_log_likelihood) / fit.total_weight)
    if fit.network.consensus_error is None and apart > LARGEST_DISAGREEMENT:
        warnings.warn(
            f"the roots' log-likelihoods per sample differ by {apart:.2g}: the "
            f"{fit.network.n_rounds} rounds of a sum are too few, and none of them can be trusted; "
            "take more rounds, or auto",
            VpemWarning,
            stacklevel=3,
        )
    if fit.partitions:
        iteration, reason = fit.partitions[0]
        warnings.warn(
            f"the network fell apart in {len(fit.partitions)} iterations, which changed nothing; "
            f"first in iteration {iteration}: {reason}",
            VpemWarning,
            stacklevel=3,
        )
    if fit.recoveries:
        told = shorten(
            f"component {r.component} in hub {r.hub} ({r.reason}, iteration {r.iteration}"
            f"{', given up' if r.row is None else ''})"
            for r in fit.recoveries
        )
        warnings.warn(
            VpemWarning(
                f"{len(fit.recoveries)} times a collapsed component was placed anew: {told}; "
                "try fewer components or a larger ",
                Setting("reg_covar"),
            ),
            stacklevel=3,
        )
    if not fit.converged:
        change = (
            ""
            if fit.n_iter < 2
            else f": the log-likelihood per sample still changed by "
            f"{_largest(fit.history[-1] - fit.history[-2]) / fit.total_weight:.2g}"
        )
        warnings.warn(
            f"not converged after {max_iter} iterations{change} (tol {tol:g}); try more iterations",
            NotConvergedWarning,
            stacklevel=3,
        )


@dataclass
class RowFit(Fit):
    """A mixture fitted to rows that workers hold.

    Attributes
    ----------
    mixtures : list of Mixture
        One where all share the sum; under consensus that of each worker, or on MPI ranks other than
        the first of each worker of the rank. `mixture` is the first.
    workers : Workers
        Who held which rows.
    """

    mixtures: list[Mixture] = field(default_factory=list)
    workers: Workers = field(kw_only=True)


def _largest(values: NDArray[np.float64]) -> float:
    heard = np.abs(values[~np.isnan(values)])
    return float(heard.max(initial=0.0))
