"""Hubs by likelihood: a fit without hops, moments of features that may meet, and a search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vpem._core.threads import one_blas_thread
from vpem.checks import Doubles, Floats, Indices, check_memory, check_weights
from vpem.engines.engine import set_topic
from vpem.errors import InputError, Setting, VpemWarning
from vpem.files.matrix import FileMatrix
from vpem.fits.results import Fit
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.graph import Graph
from vpem.network.hubs import (
    Hub,
    LikelyHubs,
    Routes,
    charge_meetings,
    find_meetings,
    find_routes,
    gains,
    search_hubs,
    within,
)
from vpem.network.ledger import Ledger
from vpem.network.partition import Partition
from vpem.network.schema import Report
from vpem.rules import are_decomposed
from vpem.settings import FitSettings, SumSettings
from vpem.steps.runs import Progress
from vpem.sums.connect import Network, connect
from vpem.terms.density import CHUNK_VALUES
from vpem.terms.families.kinds import Kinds
from vpem.terms.units import Scaling

JOINT = ("full", "tied")
"""Covariances of which features of a hub have one together."""

RIDGE = 1e-6
"""Added to variances of standardized features within a component, of which some are none."""


def connect_by_likelihood(
    X: Floats | FileMatrix | None,
    graph: Graph,
    partition: Partition,
    sums: SumSettings,
    settings: FitSettings | None = None,
    *,
    over: Callable[[Network], Network] | None = None,
    private: bool = False,
    kinds: Kinds | None = None,
    sample_weight: Floats | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
) -> Network:
    """Group agents in the hubs whose joint features promise the largest rise of the log-likelihood.

    A fit without hops gives each row's responsibilities. Moments of features of every two agents
    that could share a hub are taken with them, at agents within ``hops`` of both. Hubs gain their
    features' total correlation in each component, less BIC's penalty for the entries that they add
    (`gains`). The seed decides between equals. The choice, `Network.chosen`, is the same in all
    processes.

    ``settings`` are those of the fit that follows, ``private`` whether it has noise, which this
    choice has not. Where agents are spread over processes ``over`` returns what this one has of a
    network (`vpem.sums.connect.spread`). Data and the rest are as for
    `vpem.fits.spread.fit_spread`.
    """
    settings, over = FitSettings.resolve(settings), over or (lambda network: network)
    if private:
        raise InputError(
            Setting("hubs", "likelihood"), " looks at features without noise; take ",
            Setting("hubs", "size"),
        )  # fmt: skip
    check_choice_of_hubs(graph, settings, kinds)
    network = over(connect(graph, partition, sums.changed(hubs="size", hops=0)))
    agents, meetings = network.agents, find_meetings(network.graph, sums.hops)
    roots = [one.root for one in meetings if agents.mine(one.root)]
    with warnings.catch_warnings():
        # The fit that follows warns of data and convergence.
        warnings.simplefilter("ignore", VpemWarning)
        fit = fit_spread(
            X, network, settings, sample_weight=sample_weight, feature_names=feature_names,
            callback=callback, shards=True, labels=roots,
        )  # fmt: skip
    assert fit.ledger is not None
    copies = settings.n_components if settings.covariance_type == "full" else 1
    check_memory(8 * (copies + 1) * sum(network.widths) ** 2, "correlations of all features")
    ends = np.cumsum([0, *network.widths])
    columns = [np.arange(a, b) for a, b in pairwise(ends)]
    with one_blas_thread():
        counts, covariances = _moments(network, sums.hops, meetings, columns, fit, X, sample_weight)
    if copies == 1:
        covariances = np.tensordot(counts, covariances, 1)[None] / counts.sum()
    weights = counts / counts.sum() if copies > 1 else np.ones(1)
    penalty = copies * np.log(max(fit.total_weight, 2.0)) / (2 * fit.total_weight)
    # Correlations in each component of standardized features, (K, d, d).
    place = np.arange(covariances.shape[1])
    covariances[:, place, place] += RIDGE
    scale = np.sqrt(covariances[:, place, place])
    covariances /= scale[:, :, None] * scale[:, None, :]
    gain = gains(covariances, weights, columns, float(penalty))
    hubs, total = search_hubs(network.graph, sums.hops, gain, network.widths, sums.seed)
    # Where machines round differently, the first one's hubs hold.
    listed, total = agents.engine.bcast(([(hub.root, hub.agents) for hub in hubs], total))
    sent = Ledger(network.graph)
    sent.charge("setup", fit.ledger)
    charge_meetings(
        sent, network.graph, sums.hops, meetings, network.widths, (fit.n_samples, copies)
    )
    first: Report = {"log_likelihood": fit.log_likelihood, "n_iter": fit.n_iter}
    chosen = [Hub(root, tuple(members)) for root, members in listed]
    likely = LikelyHubs(chosen, float(total), meetings, sent, first)
    return over(connect(graph, partition, sums, chosen=likely))


def check_choice_of_hubs(
    graph: Graph, settings: FitSettings | None = None, kinds: Kinds | None = None
) -> None:
    """Raise InputError where likelihood cannot choose between hubs."""
    by_likelihood, by_size = Setting("hubs", "likelihood"), Setting("hubs", "size")
    if graph.has_server:
        raise InputError(
            by_likelihood, " chooses the agents that share a hub, but on a star all send their "
            "features to the server; take a graph of agents, such as the topology cycle, or ",
            by_size,
        )  # fmt: skip
    if settings is None:
        return
    if are_decomposed(vars(settings)):
        raise InputError(
            by_likelihood, " compares covariances of all components together or of each alone, but "
            "with ", Setting("covariance_type", settings.covariance_type), " they have only parts "
            "in common; take full or tied, or ", by_size,
        )  # fmt: skip
    if settings.covariance_type not in JOINT:
        raise InputError(
            by_likelihood, " compares features jointly and apart, but with ",
            Setting("covariance_type", settings.covariance_type), " those of a hub are independent "
            "either way; take full or tied, or ", by_size,
        )  # fmt: skip
    if kinds is not None and not kinds.is_gaussian:
        raise InputError(
            by_likelihood, " compares Gaussian features jointly and apart, but those of other "
            "families are independent within a component either way; take ", by_size,
        )  # fmt: skip
    if settings.missing != "refuse":
        raise InputError(
            by_likelihood, " needs second moments of all features in the same rows: those of "
            "pairs, each over the rows that have both, need not be moments of any rows; leave out ",
            Setting("missing", settings.missing), ", or take ", by_size,
        )  # fmt: skip


def _moments(
    network: Network,
    hops: int,
    meetings: list[Hub],
    columns: list[Indices],
    fit: Fit,
    X: Any,
    sample_weight: ArrayLike | None,
) -> tuple[Doubles, Doubles]:
    """Return weights (K,) and covariances (K, d, d) by component, where features have met.

    Features are standardized before they leave; they are numbered by agent, whose ``columns`` these
    are.
    """
    agents, n_samples, k = network.agents, fit.n_samples, fit.mixture.n_components
    weights = agents.bcast(None if sample_weight is None else np.asarray(sample_weight))
    row_weights = None if weights is None else check_weights(weights, n_samples)
    local_columns = {agent: columns[agent] for agent in agents.own.tolist()}
    if agents.apart:
        ends = np.cumsum([0, *(len(local_columns[agent]) for agent in local_columns)])
        local_columns = {a: np.arange(*ends[i : i + 2]) for i, a in enumerate(local_columns)}
        data = np.empty((n_samples, 0)) if X is None else X
    else:
        order, data = own_columns(network), X
        local_columns = {agent: order[local] for agent, local in local_columns.items()}
    units = Scaling.standard(data, row_weights)
    met = [np.concatenate([columns[agent] for agent in one.agents]) for one in meetings]
    near = [Hub(one.root, tuple(within(network.graph, hops, one.root))) for one in meetings]
    routes = [find_routes(network.graph, [one]) for one in near]
    sums = {
        one.root: [np.zeros((k, n)), np.zeros((k, n, n)), np.zeros(k)]
        for one, n in zip(meetings, map(len, met), strict=True)
        if agents.mine(one.root)
    }
    step = max(64, CHUNK_VALUES // max(1, len(meetings) + sum(network.widths)))
    for start in range(0, n_samples, step):
        run = slice(start, min(start + step, n_samples))
        rows = units.apply(np.asarray(data[run], dtype=np.float64))
        local = {agent: rows[:, places] for agent, places in local_columns.items()}
        for meeting, route in zip(meetings, routes, strict=True):
            parts = _brought(network, meeting, route, local, run)
            if meeting.root in sums:
                share = fit.responsibilities[meeting.root][run]
                if row_weights is not None:
                    share = share * row_weights[run, None]
                _add(sums[meeting.root], np.concatenate(parts, axis=1), share)
    with set_topic(agents.engine, "flooding"):
        everywhere = agents.allgather(sums)
    return _joined(everywhere, meetings, met, k, sum(network.widths))


def _brought(
    network: Network, meeting: Hub, routes: Routes, have: dict[int, Doubles], run: slice
) -> list[Floats]:
    """Bring some rows of features to where they meet, hop by hop; what arrives here."""
    agents, parts = network.agents, list[Floats]()
    for agent in meeting.agents:
        part: Floats | None = have.get(agent)
        node, width = agent, network.widths[agent]
        while node != meeting.root and width:
            after = int(routes.parent[node])
            with set_topic(agents.engine, "setup"):
                shape = (run.stop - run.start, width)
                part = agents.send_rows(part, shape, np.dtype(np.float64), node, after)
            node = after
        if agents.mine(meeting.root):
            parts.append(np.empty((run.stop - run.start, 0)) if part is None else part)
    return parts


def _joined(
    everywhere: dict[int, Any], meetings: list[Hub], met: list[Indices], k: int, d: int
) -> tuple[Doubles, Doubles]:
    """Return weights and covariances of what was summed where features ``met``."""
    counts, correlations = np.ones(k), np.zeros((k, d, d))
    correlations[:, np.arange(d), np.arange(d)] = 1.0
    for meeting, columns in zip(meetings, met, strict=True):
        part = everywhere.get(meeting.root)
        shapes = [(k, len(columns)), (k, len(columns), len(columns)), (k,)]
        if part is None or [np.shape(one) for one in part] != shapes:
            raise InputError(
                f"the moments of agent {meeting.root} are missing or belong to other features; "
                "do all processes run the same version of vpem?"
            )
        first, second, counts = part
        safe = np.maximum(counts, np.finfo(float).tiny)
        means = first / safe[:, None]
        covariances = second / safe[:, None, None] - means[:, :, None] * means[:, None, :]
        correlations[:, columns[:, None], columns] = covariances
    return counts, correlations


def _add(sums: list[Doubles], rows: Doubles, shares: Doubles) -> None:
    """Add rows to first and second moments and counts of each component."""
    first, second, counts = sums
    for k, share in enumerate(shares.T):
        weighted = rows * share[:, None]
        first[k] += weighted.sum(axis=0)
        second[k] += weighted.T @ rows
    counts += shares.sum(axis=0)
