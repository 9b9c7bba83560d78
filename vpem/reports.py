"""What a fit has to say for itself, as plain values: the JSON of `vpem fit`, kept in the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from vpem.recipes import Fit

__all__ = ["describe_fit"]


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
    graph = network.graph
    blocks = network.blocks
    mixture = fit.mixture
    return {
        "algorithm": "vp-em",
        "n_samples": fit.n_samples,
        "n_features": blocks.n_features,
        "n_agents": graph.n_agents,
        "n_components": mixture.n_components,
        "covariance_type": mixture.covariance_type,
        "n_parameters": mixture.n_parameters,
        "agent_names": list(agent_names),
        "feature_names": list(feature_names),
        "server": graph.n_agents if graph.has_server else None,
        "hubs": [
            {
                "root": int(hub.root),
                "agents": [int(agent) for agent in hub.agents],
                "features": columns.tolist(),
            }
            for hub, columns in zip(network.hubs, blocks.features, strict=True)
        ],
        "edges": graph.edges.tolist(),
        "topology": graph.topology,
        "hops": network.hops,
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
        "mixing_weights": mixture.assembled_weights.tolist(),
        "converged": fit.converged,
        "n_iter": fit.n_iter,
        "batch_size": fit.batch_size,
        "step_size": fit.step_size,
        "n_passes": fit.n_passes,
        "free_energy": (np.array(fit.free_energy) / fit.total_weight).tolist(),
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
