"""What a fitted mixture says of the rows it was fitted to, brought to those who hold them.

Who holds features hears of the responsibilities by one more sum, which is counted as "labels"; who
holds rows computes them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.normalise import normalise
from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats, check_memory
from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.network.hubs import charge_answers, find_routes
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.steps.factors import Numbers, posterior_of
from vpem.steps.summing import FARTHEST, Differences, begin_differences
from vpem.sums.adding import farthest
from vpem.sums.connect import Network, uncompressed
from vpem.sums.exchanges import Traffic
from vpem.sums.quantizer import ITEM
from vpem.terms.factor_mixture import FactorMixture
from vpem.terms.mixture import Mixture
from vpem.terms.posteriors import CHUNK_VALUES, local_terms

if TYPE_CHECKING:
    from vpem.fits.clustering import Clustering

LABEL = 4
"""Bytes of the number of a cluster."""

Shares = NDArray[np.float64]
"""Responsibilities, a row each."""


@dataclass(frozen=True)
class _AllRows:
    """All rows of the data, as sums of differences ask for them; none weighs more."""

    n_samples: int
    n_threads: int
    row_weights: None = None

    def chunks(self, n_values: int) -> Iterator[slice]:
        """Yield runs of rows for which ``n_values`` numbers a row fit in the working memory."""
        step = max(64, CHUNK_VALUES // max(n_values, 1))
        for start in range(0, self.n_samples, step):
            yield slice(start, min(start + step, self.n_samples))


def _summed(
    held: Any, total: Any, mixture: Mixture, local: Callable[[slice], Floats]
) -> Iterator[tuple[slice, Floats]]:
    """Sum terms of a mixture, and what hubs know of its factors, if it has any."""
    k = mixture.n_components
    if not isinstance(mixture, FactorMixture):
        begin_differences(total, "labels", held.n_samples, k, ITEM)
        limit = farthest(total.holders, FARTHEST[ITEM])
        yield from Differences(held, total, k, local, limit)
        return
    posterior = posterior_of(total, mixture.loaded, "labels")
    numbers = Numbers(held, total, mixture, local, ITEM)
    total.begin("labels", held.n_samples, numbers.width, ITEM, 1)
    for rows, apart, onto in numbers:
        yield rows, np.ascontiguousarray(apart - posterior.explain(onto)[1])


def responsibilities_of_agents(
    X: Any,
    mixture: Mixture,
    network: Network,
    ledger: Ledger,
    agents: Sequence[int],
    missing: str = "refuse",
) -> dict[int, Shares]:
    """Responsibilities (M, K) of all rows, as each agent here that holds features hears of them.

    Hubs sum how their terms of the fitted mixture differ from those of the first component, with no
    codec, and roots tell the agents of their hubs. Where the sum is exact all have the same; by
    consensus every root has its own. X (M, d) has the features of this process's hubs, whose
    parameters ``mixture`` has; all processes call this alike. If links that fail leave some out in
    many draws, it raises PartitionedError.
    """
    total, k, n_samples = uncompressed(network).on(ledger), mixture.n_components, len(X)
    hub_of = {agent: b for b, hub in enumerate(network.hubs) for agent in hub.agents}
    apart = network.agents.apart
    used = {hub_of[agent] for agent in agents}
    kept = [(place, b) for place, b in enumerate(total.holders.own.tolist()) if apart or b in used]
    shared = total.roots.n_agents == 1
    count = min(1, len(kept)) if shared else len(kept)
    check_memory(count * n_samples * k * ITEM, f"responsibilities of {n_samples} rows")
    found = np.empty((count, n_samples, k))
    threads, own = thread_count(None), mixture.blocks.n_blocks

    def local(rows: slice) -> Floats:
        if not own:
            return np.zeros((0, rows.stop - rows.start, k * (1 + mixture.n_factors)))
        if isinstance(mixture, FactorMixture):
            return mixture.apart(np.asarray(X[rows], dtype=np.float64))[0]
        return local_terms(mixture, X, rows, missing)[0]

    held: Any = _AllRows(n_samples, threads)
    with one_blas_thread():
        for rows, sums in _summed(held, total, mixture, local):
            log_weights = np.broadcast_to(mixture.log_weights, (len(sums), k))
            out, densities = np.empty((*sums.shape[:2], k)), np.empty(sums.shape[:2])
            normalise(sums, np.ascontiguousarray(log_weights), out, densities, threads)
            if kept:
                found[:, rows] = out[:1] if shared else out[[place for place, _ in kept]]
    by_hub = {b: found[0 if shared else at] for at, (_, b) in enumerate(kept)}
    told = _tell_agents(network, ledger, by_hub, (n_samples, k))
    return {agent: told[agent] for agent in agents if agent in told}


def _tell_agents(
    network: Network, ledger: Ledger, by_hub: dict[int, Shares], shape: tuple[int, int]
) -> dict[int, Shares]:
    """Bring what roots have to the agents of their hubs, hop by hop: by agent of this process."""
    agents, routes = network.agents, find_routes(network.graph, network.hubs)
    have: dict[int, Any] = {network.hubs[b].root: shares for b, shares in by_hub.items()}
    size = shape[0] * shape[1] * ITEM
    charge_answers(ledger, routes, size)
    for leaf in reversed(routes.leaves.tolist()):
        parent = int(routes.parent[leaf])
        with about(agents.engine, "labels"):
            part = agents.send_rows(have.get(parent), shape, np.dtype(np.float64), parent, leaf)
        if agents.apart and agents.mine(parent):
            traffic: Traffic = network.total.traffic  # type: ignore[attr-defined]
            traffic.add("labels", size, 0 if agents.mine(leaf) else size)
        if part is not None:
            have[leaf] = part
    return have


def responsibilities_of_workers(
    X: Any,
    workers: Workers,
    mixtures: Sequence[Mixture],
    holders: Placement,
    missing: str = "refuse",
) -> dict[int, Shares]:
    """Responsibilities (m_i, K) of each worker's rows by its own model; nothing is sent.

    X (M, d) has all rows; where workers live in several processes those of this one's, worker by
    worker, who are in the result. ``mixtures`` are one for all, or one a worker, of all or of those
    that live here.
    """
    found, begin = {}, 0
    for place, worker in enumerate(holders.own.tolist()):
        rows = workers.rows[worker]
        if holders.apart:
            rows = np.arange(begin, begin + len(rows))
            begin += len(rows)
        at = 0 if len(mixtures) == 1 else worker if len(mixtures) == workers.n_workers else place
        own = X[rows] if isinstance(X, np.ndarray) else X.of_rows([rows])
        found[worker] = mixtures[at].predict_proba(own, missing=missing)
    return found


def columns_of(shares: Shares) -> dict[str, NDArray[Any]]:
    """Return what a table of labels has of responsibilities (M, K), as `vpem predict` does."""
    proba = {f"proba_{k}": column for k, column in enumerate(shares.T)}
    return {"label": shares.argmax(axis=1), **proba}


def columns_of_clusters(
    found: Clustering, holders: Placement, workers: Workers | None
) -> dict[int, dict[str, NDArray[Any]]]:
    """Return what tables of labels have of a clustering: labels and distances, by who holds rows.

    Without ``workers`` all agents hold features of all rows. Columns are those of the workers or
    agents of this process.
    """
    table: dict[str, NDArray[Any]] = {"label": found.labels, "distance": found.distances}
    if workers is None:
        return dict.fromkeys(holders.own.tolist(), table)
    return of_each(table, workers, holders)


def of_each(
    table: dict[str, NDArray[Any]], workers: Workers, holders: Placement
) -> dict[int, dict[str, NDArray[Any]]]:
    """Return what each worker of this process has of a table.

    Its columns are of all rows; or of those of this process's workers, one worker after the other.
    """
    own, rows = holders.own.tolist(), dict(enumerate(workers.rows))
    if any(len(column) < workers.n_samples for column in table.values()):
        ends = np.cumsum([0, *(len(rows[worker]) for worker in own)])
        rows = {w: np.arange(*run) for w, run in zip(own, pairwise(ends.tolist()), strict=True)}
    return {w: {name: column[rows[w]] for name, column in table.items()} for w in own}


def stacked(
    found: dict[int, dict[str, NDArray[Any]]], workers: Workers, holders: Placement
) -> dict[int, dict[str, NDArray[Any]]]:
    """Put what workers have of one dataset's rows in its order, at the first process."""
    parts = holders.gather(found)
    if parts is None:
        return {}
    order = np.argsort(workers.order)
    columns = list(zip(*(part.items() for part in parts.values()), strict=True))
    joined = {one[0][0]: np.concatenate([own for _, own in one])[order] for one in columns}
    return {0: joined}


def charge_clusters(network: Network, ledger: Ledger, n_samples: int) -> None:
    """Count how distances to the centres of rows' clusters are summed, and all told of both."""
    uncompressed(network).on(ledger).begin("labels", n_samples, 1, ITEM)
    routes = find_routes(network.graph, network.hubs)
    charge_answers(ledger, routes, n_samples * (ITEM + LABEL))
