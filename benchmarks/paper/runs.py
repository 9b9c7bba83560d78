"""Fits as the experiments of the VP-EM paper have them, and what is kept of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import Fit, Graph, connect, fit_vpem
from vpem.network.partition import Partition, contiguous
from vpem.sums.connect import Network

from ..problems import quietly

ROUNDS = 100
"""Consensus rounds in every experiment of the paper."""

FALL = 1e-9
"""A log-likelihood per sample that falls by more has fallen."""

JUDGED = 2000
"""Rows on which sums are compared."""


def quiet_connect(graph: Graph, held: Partition | None = None, **how: Any) -> Network:
    """Connect agents, one feature each if nothing else is said."""
    held = held or contiguous(graph.n_agents, graph.n_agents)
    return quietly(connect, graph, held, **how)


def fit(X: NDArray[Any], network: Network, **options: Any) -> Fit:
    """Fit, without a warning about iterations that run out."""
    return quietly(fit_vpem, X, network, **options)


def kept(found: Fit, X: NDArray[Any] | None = None) -> dict[str, Any]:
    """Return what is kept of a fit: its curve, and how its roots agree.

    With X, also the log-likelihood of the mixture that the roots' parts make together.
    """
    history = found.history / found.total_weight
    mean = history.mean(axis=1)
    out = {
        "history": mean.tolist(),
        "spread of roots": np.ptp(history, axis=1).tolist(),
        "falls": int((np.diff(mean) < -FALL).sum()),
        "log-likelihood": found.log_likelihood,
        "iterations": found.n_iter,
        "converged": found.converged,
        "seconds": found.seconds,
        "rounds": found.network.n_rounds,
        "consensus error": found.network.consensus_error,
    }
    if X is not None:
        out["true log-likelihood"] = float(found.mixture.score_samples(X).mean())
    return out


def sum_errors(found: Fit, X: NDArray[Any]) -> dict[str, float]:
    """Compare each root's sum with the exact one, at the fitted mixture, over some rows.

    In nats of ``log pi_k N(x)``: the median and the largest error; and the largest difference of a
    responsibility.
    """
    mixture, network = found.mixture, found.network
    rows = np.ascontiguousarray(mixture.scaling.apply(X[:JUDGED])[:, network.blocks.order])
    terms = mixture.factors.terms(rows, network.blocks.offsets, 1)
    true = terms.sum(axis=0, keepdims=True)
    heard = network.total.reduce(terms)
    errors = 0.5 * np.abs(heard - true)
    weights = np.log(mixture.weights)[:, None, :]
    apart = np.abs(_share(weights - heard / 2) - _share(weights - true / 2))
    return {
        "median": float(np.median(errors)),
        "largest": float(errors.max()),
        "responsibility": float(apart.max()),
    }


def _share(logs: NDArray[Any]) -> NDArray[Any]:
    odds = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def over_runs(histories: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Stack curves of unlike length (n_runs, longest): what converged stays where it is."""
    longest = max(map(len, histories))
    return np.array([[*curve, *[curve[-1]] * (longest - len(curve))] for curve in histories])
