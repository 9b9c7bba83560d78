"""What a fit has to say for itself, as plain values: the JSON of `vpem fit`, kept in the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from vpem.recipes import Fit
from vpem.row_split.row_recipes import RowFit

__all__ = ["agents_of_features", "describe_fit", "describe_row_fit"]


def describe_fit(
    fit: Fit, agent_names: Sequence[str], feature_names: Sequence[str]
) -> dict[str, Any]:
    """Summarize a fit in values that JSON can hold.

    Parameters
    ----------
    fit : Fit
        From `vpem.recipes.fit_vpem`.
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
        From `vpem.row_split.row_recipes.fit_em`.
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
    """Return the agent that holds each feature, (d,), of a `vpem.joining.Network`."""
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
