"""VP-EM over agents in several processes: each has its own hubs, features and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, check_data, check_finite
from vpem.engines.engine import set_topic
from vpem.errors import InputError
from vpem.files.datasets import Dataset
from vpem.files.matrix import FileMatrix, Spool, is_stored
from vpem.fits.labels import KnownLabels
from vpem.fits.local_rows import read_rows
from vpem.fits.parts import agree_on_kinds, gathered, own_columns_of_hubs
from vpem.fits.prepare import MARGINALIZE
from vpem.fits.results import Fit
from vpem.fits.settings import PrivacySettings
from vpem.fits.vpem import fit_vpem
from vpem.network.hubs import find_routes
from vpem.network.partition import Workers
from vpem.settings import FitSettings
from vpem.steps.recovery import Saver
from vpem.steps.runs import Progress
from vpem.sums.connect import Network
from vpem.terms.families.kinds import Kinds
from vpem.terms.rows import check_missing


def fit_spread(
    X: Floats | FileMatrix | None,
    network: Network,
    settings: FitSettings | None = None,
    *,
    sample_weight: Floats | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    shards: bool = False,
    privacy: PrivacySettings | None = None,
    labels: Sequence[int] | None = None,
    kinds: Kinds | None = None,
    labels_for_fit: KnownLabels | None = None,
    **changes: object,
) -> Fit:
    """Fit a Gaussian mixture to features that agents in several processes hold: VP-EM.

    Every process calls it with the same options, which are those of `vpem.fits.vpem.fit_vpem`.

    X (M, d) has the features of this process's agents, in the order of `own_columns`, and names and
    kinds are of its columns; it is None in a process without agents. The network is from
    `vpem.sums.connect.spread`. Sample weights of the first agent's process hold for all, labels for
    the fit are in the process of the agent that has them.

    `Fit.mixture` and `Fit.network` are those of all agents in the first process, as one process
    would have them; in others, and with ``shards`` in all, those of its own hubs. Errors are not
    always raised in all processes.
    """
    settings = FitSettings.resolve(settings, **changes)
    data, names, weights = X, feature_names, sample_weight
    if network.agents.apart:
        kinds = bring_kinds(kinds, X, network)
        weights = network.agents.bcast(None if weights is None else np.asarray(weights))
        data, names = bring(X, network, feature_names, settings.missing)
    assert data is not None
    fit = fit_vpem(
        data, network, settings, sample_weight=weights, feature_names=names, callback=callback,
        saver=saver, labels=labels, privacy=privacy, kinds=kinds,
        labels_for_fit=labels_for_fit,
    )  # fmt: skip
    return fit if shards or not network.agents.apart else gathered(fit)


def bring_kinds(
    kinds: Kinds | None, X: Floats | FileMatrix | None, network: Network
) -> Kinds | None:
    """Send the roots of hubs which families their features have, and names of their levels.

    ``kinds`` describe the columns of X, the features of this process's agents in the order of
    `own_columns`; the result describes the features of this process's blocks, in their order. None:
    all are Gaussian.
    """
    local_kinds = None if kinds is None or X is None else kinds.counted(X)
    every = agree_on_kinds(local_kinds, own_columns(network), network)
    if every is None:
        return None
    have = {
        agent: [list(every.levels.get(column, ())) for column in network.features[agent].tolist()]
        for agent in network.agents.own.tolist()
    }
    _carry_names(have, network)
    arrived = [tuple(names) for agent in _members(network) for names in have[agent]]
    levels = {place: names for place, names in enumerate(arrived) if names}
    return replace(every.take_features(own_columns_of_hubs(network)), levels=levels)


def own_columns(network: Network) -> NDArray[np.intp]:
    """Columns that this process's agents hold: by agent, then by column."""
    columns = (network.features[agent] for agent in network.agents.own)
    return np.concatenate([np.empty(0, dtype=np.intp), *columns])


def own_part(
    source: Dataset, network: Network, workers: Workers | None, limit: int | None = None
) -> tuple[Any, NDArray[np.float64] | None, Sequence[str]]:
    """Return this process's part of a dataset, the weights of its rows, and its features' names.

    That are the rows of its workers or, without ``workers``, the features of its agents. What would
    take more than ``limit`` bytes of memory stays on disk.
    """
    X, weights, names = source.X, source.sample_weight, source.feature_names
    if not network.agents.apart:
        return X, weights, names
    if workers is not None:
        if source.is_share:
            return X, weights, names
        groups = [workers.rows[worker] for worker in network.agents.own]
        if weights is not None:
            weights = weights[np.concatenate([np.empty(0, dtype=np.intp), *groups])]
        stored = X.of_rows(groups).beyond(limit) if is_stored(X) else None
        return read_rows(X, groups) if stored is None else stored, weights, names
    columns = own_columns(network)
    own_names = [names[j] for j in columns]
    if source.is_share or not len(columns):
        return X if len(columns) else None, weights, own_names
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(X[:, columns]), weights, own_names
    part = X.select(columns.tolist())
    if (values := part.beyond(limit)) is None:
        values = np.empty(part.shape, dtype=X.dtype)
        for start, run in part.runs():
            values[start : start + len(run)] = run
        X.close()
    return values, weights, own_names


def bring(
    X: Floats | FileMatrix | None,
    network: Network,
    feature_names: Sequence[str] | None = None,
    missing: str = "refuse",
) -> tuple[Floats | FileMatrix, list[str] | None]:
    """Bring features, and names where all have some, to the roots of their hubs, hop by hop.

    X (M, d) has the features of this process's agents, in the order of `own_columns`; it is None
    where there are none. Where any process reads its own from a file, they travel a run of rows at
    a time, and what arrives is kept in a file too (`vpem.files.matrix.Spool`). Returned are
    features and names of this process's blocks, in their order.
    """
    agents, widths = network.agents, network.widths
    n_own = sum(widths[agent] for agent in agents.own)
    if n_own:
        refuse = partial(check_finite, advice=MARGINALIZE)
        finite: Callable[..., object] = check_missing if missing == "marginalize" else refuse
        X = check_data(X, n_own, feature_names, finite=finite)
    engine = agents.engine
    counts = enumerate(engine.allgather(None if X is None else len(X)))
    holders = [(rank, count) for rank, count in counts if count is not None]
    n_samples = holders[0][1] if holders else -1
    for other, count in holders:
        if count != n_samples:
            raise InputError(
                f"{engine.names[holders[0][0]]} has {n_samples} rows, {engine.names[other]} has "
                f"{count}; give every agent the same rows, or align them by id"
            )
    data = np.empty((n_samples, 0)) if X is None else X
    double = n_own > 0 and data.dtype != np.float32
    dtype = np.dtype(f"f{agents.allreduce(np.array([8 if double else 4]), 'max')[0]}")
    ends = np.cumsum([0, *(widths[agent] for agent in agents.own)]).tolist()
    runs = (slice(*run) for run in pairwise(ends))
    run_of = dict(zip(agents.own.tolist(), runs, strict=True))
    steps = [step for step in agents.engine.allgather(getattr(data, "step", None)) if step]
    step = min(steps, default=0)
    ways = _ways(network)
    members = _members(network)
    stay = all(agents.nodes[one] == agents.nodes[other] for _, one, other in ways)
    features: Floats | FileMatrix
    if stay and is_stored(data):
        columns = [
            column for agent in members for column in np.arange(ends[-1])[run_of[agent]].tolist()
        ]
        features = data.select(columns).in_precision(dtype)
    else:
        width = sum(widths[agent] for agent in members)
        # Where rows travel a run at a time, they are kept in a file.
        spool = Spool((n_samples, width), dtype) if step and width and not stay else None
        runs_here: list[Floats] = []
        for start in range(0, n_samples, step or n_samples):
            rows = data[start : start + (step or n_samples)]
            have = {agent: rows[:, run] for agent, run in run_of.items()}
            for agent, node, parent in ways:
                size = (len(rows), widths[agent])
                with set_topic(agents.engine, "setup"):
                    part = agents.send_rows(have.pop(agent, None), size, dtype, node, parent)
                if part is not None:
                    have[agent] = part
            parts = [np.empty((len(rows), 0), dtype), *(have[agent] for agent in members)]
            arrived = np.ascontiguousarray(np.concatenate(parts, axis=1, dtype=dtype))
            if spool is None:
                runs_here.append(arrived)
            else:
                spool.add(arrived)
        features = np.concatenate(runs_here) if spool is None else spool.matrix(step)
    if feature_names is None:
        return features, None
    names = {agent: list(map(str, feature_names[run])) for agent, run in run_of.items()}
    _carry_names(names, network)
    return features, [name for agent in members for name in names[agent]]


def _ways(network: Network) -> list[tuple[int, int, int]]:
    """How features travel, one after the other: whose, from which agent to which next to it."""
    routes = find_routes(network.graph, network.hubs)
    carried = {agent: [agent] for agent, width in enumerate(network.widths) if width}
    ways = []
    for node in routes.leaves.tolist():
        parent = int(routes.parent[node])
        for agent in carried.pop(node, []):
            carried.setdefault(parent, []).append(agent)
            ways.append((agent, node, parent))
    return ways


def _members(network: Network) -> list[int]:
    """Agents with features in this process's hubs, in the order in which these have them."""
    hubs = [network.hubs[b] for b in network.total.holders.own]
    return [agent for hub in hubs for agent in hub.agents if network.widths[agent]]


def _carry_names(have: dict[int, list[Any]], network: Network) -> None:
    """Move what agents say of each of their features to the processes of their roots."""
    for agent, node, parent in _ways(network):
        arrived = network.agents.send(have.pop(agent, None), node, parent)
        if arrived is not None:
            have[agent] = arrived
