"""Labels given to a fit, and responsibilities sent to the holders of the data.

Agents that hold features learn responsibilities by one more sum, which is counted as "labels";
workers that hold rows compute theirs alone. Labels of some rows that are given to a fit are
checked, agreed on, and placed in their hub.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem._core.normalise import normalise
from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import AnyArray, Floats, Indices, Matrix, check_memory
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement, for_each
from vpem.errors import InputError, Setting, shorten, warn
from vpem.files.checkpoints import checksum
from vpem.files.matrix import select_rows
from vpem.fits.prepare import Prepared
from vpem.network.hubs import charge_answers, find_routes
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.steps.em import factor_sums, posterior_of, split_factors
from vpem.steps.summing import FARTHEST, Differences
from vpem.sums.connect import Network, uncompressed
from vpem.sums.counted import farthest
from vpem.sums.quantizer import ITEM
from vpem.sums.sum import Sum
from vpem.terms.density import CHUNK_VALUES, OUTLIER, labels_of
from vpem.terms.mixture import Mixture
from vpem.terms.rows import A_FEATURE, LEAST_APART, MOST_APART, Known

if TYPE_CHECKING:
    from vpem.fits.clustering import Clustering


LABEL = 4
"""Bytes of the number of a cluster."""

Columns = dict[str, AnyArray]
"""Columns of a table by their names."""

Shares = NDArray[np.float64]
"""Responsibilities, a row each."""


@dataclass(frozen=True)
class _AllRows:
    """All rows of the data with equal weights, as sums of differences take them."""

    n_samples: int
    n_threads: int
    row_weights: None = None

    def chunks(self, n_values: int) -> Iterator[slice]:
        """Yield runs of rows for which ``n_values`` numbers a row fit in the working memory."""
        step = max(64, CHUNK_VALUES // max(n_values, 1))
        for start in range(0, self.n_samples, step):
            yield slice(start, min(start + step, self.n_samples))


def _summed(
    all_rows: Any, total: Sum, mixture: Mixture, local: Callable[[slice], Floats]
) -> Iterator[tuple[slice, Floats]]:
    """Sum terms of a mixture, and what hubs know of its factors, if it has any."""
    k, known = mixture.n_terms, mixture.loaded
    if known is None:
        total.begin("labels", all_rows.n_samples, k - 1, ITEM, 1)
        limit = farthest(total.holders, FARTHEST[ITEM])
        yield from Differences(all_rows, total, k, local, limit)
        return
    posterior = posterior_of(total, known, "labels")
    numbers = factor_sums(all_rows, total, mixture, local, ITEM)
    total.begin("labels", all_rows.n_samples, numbers.width, ITEM, 1)
    for rows, sums in numbers:
        apart, onto = split_factors(sums, k)
        yield rows, np.ascontiguousarray(apart - posterior.explain(onto)[1])


def responsibilities_of_agents(
    X: Matrix,
    mixture: Mixture,
    network: Network,
    ledger: Ledger,
    agents: Sequence[int],
    missing: str = "refuse",
) -> dict[int, Shares]:
    """Responsibilities (M, K) of all rows, as each agent here that holds features learns them.

    Hubs sum how their terms of the fitted mixture differ from those of the first component, with no
    codec, and roots send it to the agents of their hubs. Where the sum is exact all have the same;
    by consensus every root has its own. X (M, d) has the features of this process's hubs, whose
    parameters ``mixture`` has; all processes call this alike. If links that fail leave some out in
    many draws, it raises PartitionedError.
    """
    total, k, n_samples = uncompressed(network).counted_on(ledger), mixture.n_terms, len(X)
    hub_of = {agent: b for b, hub in enumerate(network.hubs) for agent in hub.agents}
    apart = network.agents.apart
    used = {hub_of[agent] for agent in agents}
    used_hubs = [
        (place, b) for place, b in enumerate(total.holders.own.tolist()) if apart or b in used
    ]
    shared = total.roots.n_agents == 1
    count = min(1, len(used_hubs)) if shared else len(used_hubs)
    check_memory(count * n_samples * k * ITEM, f"responsibilities of {n_samples} rows")
    shares = np.empty((count, n_samples, k))
    threads, n_blocks = thread_count(None), mixture.blocks.n_blocks

    def local(rows: slice) -> Floats:
        if not n_blocks:
            return np.zeros((0, rows.stop - rows.start, k * (1 + mixture.n_factors)))
        return mixture.hub_terms(X, rows, missing)[0]

    all_rows: Any = _AllRows(n_samples, threads)
    with one_blas_thread():
        for rows, sums in _summed(all_rows, total, mixture, local):
            log_weights = np.broadcast_to(mixture.log_weights, (len(sums), k))
            out, densities = np.empty((*sums.shape[:2], k)), np.empty(sums.shape[:2])
            normalise(sums, np.ascontiguousarray(log_weights), out, densities, threads)
            out = mixture.judged(out, densities, sums)
            if used_hubs:
                shares[:, rows] = out[:1] if shared else out[[place for place, _ in used_hubs]]
    # Roots send theirs to the agents of their hubs, hop by hop.
    holders, routes = network.agents, find_routes(network.graph, network.hubs)
    have: dict[int, Any] = {
        network.hubs[b].root: shares[0 if shared else at] for at, (_, b) in enumerate(used_hubs)
    }
    size = n_samples * k * ITEM
    charge_answers(ledger, routes, size)
    for leaf in reversed(routes.leaves.tolist()):
        parent = int(routes.parent[leaf])
        with set_topic(holders.engine, "labels"):
            part = holders.send_rows(
                have.get(parent), (n_samples, k), np.dtype(np.float64), parent, leaf
            )
        if apart and holders.mine(parent):
            network.total.traffic.add("labels", size, 0 if holders.mine(leaf) else size)
        if part is not None:
            have[leaf] = part
    return {agent: have[agent] for agent in agents if agent in have}


def responsibilities_of_workers(
    X: Matrix,
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
    shares, begin = {}, 0
    for place, worker in enumerate(holders.own.tolist()):
        rows = workers.rows[worker]
        if holders.apart:
            rows = np.arange(begin, begin + len(rows))
            begin += len(rows)
        at = 0 if len(mixtures) == 1 else worker if len(mixtures) == workers.n_workers else place
        shares[worker] = mixtures[at].predict_proba(select_rows(X, [rows]), missing=missing)
    return shares


def columns_of(shares: Shares, outliers: str | None = None) -> Columns:
    """Return what a table of labels has of responsibilities (M, K), as `vpem predict` does.

    ``outliers`` are what rows are called that belong to no component; theirs is the last column.
    """
    k = shares.shape[1] - (outliers is not None)
    names = [*map(str, range(k)), *([] if outliers is None else [outliers])]
    labels = labels_of(shares, k)
    marks = {} if outliers is None else {outliers: (labels == OUTLIER).astype(np.int64)}
    return {"label": labels, **marks} | {
        f"proba_{name}": column for name, column in zip(names, shares.T, strict=True)
    }


def columns_of_workers(
    X: Matrix, workers: Workers, mixtures: Sequence[Mixture], holders: Placement, missing: str
) -> dict[int, Columns]:
    shares = responsibilities_of_workers(X, workers, mixtures, holders, missing)
    return {worker: columns_of(share) for worker, share in shares.items()}


def columns_of_clusters(
    clustering: Clustering, holders: Placement, workers: Workers | None
) -> dict[int, Columns]:
    """Return tables of labels and distances, of each of this process's workers or agents.

    Without ``workers`` all agents hold features of all rows.
    """
    table: Columns = {
        "label": clustering.labels,
        "distance": clustering.distances,
    }
    if workers is None:
        return dict.fromkeys(holders.own.tolist(), table)
    return of_each(table, workers, holders)


def of_each(table: Columns, workers: Workers, holders: Placement) -> dict[int, Columns]:
    """Return what each worker of this process has of a table.

    Its columns are of all rows; or of those of this process's workers, one worker after the other.
    """
    local_workers, rows = holders.own.tolist(), dict(enumerate(workers.rows))
    if any(len(column) < workers.n_samples for column in table.values()):
        ends = np.cumsum([0, *(len(rows[worker]) for worker in local_workers)])
        rows = {
            w: np.arange(*run)
            for w, run in zip(local_workers, pairwise(ends.tolist()), strict=True)
        }
    return {w: {name: column[rows[w]] for name, column in table.items()} for w in local_workers}


def stacked(
    tables: Mapping[int, Mapping[str, AnyArray]], workers: Workers, holders: Placement
) -> dict[int, Columns]:
    """Put what workers have of one dataset's rows in its order, at the first process."""
    parts: Any = holders.gather({**tables})
    if parts is None:
        return {}
    order = np.argsort(workers.order)
    columns = list(zip(*(part.items() for part in parts.values()), strict=True))
    joined = {one[0][0]: np.concatenate([values for _, values in one])[order] for one in columns}
    return {0: joined}


def charge_clusters(network: Network, ledger: Ledger, n_samples: int) -> None:
    """Count how distances to centres of clusters are summed, and how all hear of both."""
    uncompressed(network).counted_on(ledger).begin("labels", n_samples, 1, ITEM)
    routes = find_routes(network.graph, network.hubs)
    charge_answers(ledger, routes, n_samples * (ITEM + LABEL))


ASTRAY = 1e-6
"""Responsibility of other components from which on a row is not where its label says."""

HALF_A_ROW = 0.5
"""Labelled rows from which a component starts, each weighted by its probabilities' certainty."""

SUM = 1e-6
"""By how much the sum of a row's probabilities may differ from 1."""


@dataclass(frozen=True)
class KnownLabels:
    """Known components of some rows, and the agent that knows them.

    ``values`` (M,) are labels, with NaN, None, "" or -1 where there is none; or (M, K)
    probabilities of the components, with rows of NaN, whose ``names`` are the labels in ascending
    order.
    """

    values: Any
    agent: int = 0
    names: Sequence[str] | None = None

    def parsed(self, n_samples: int, n_components: int) -> tuple[AnyArray, list[str]]:
        """Return probabilities (M, K), NaN for rows without a label, and names."""
        values = np.asarray(self.values)
        if values.ndim not in (1, 2) or len(values) != n_samples:
            raise InputError(
                Setting("labels_for_fit"),
                f" must be a label, or {n_components} probabilities, for each of {n_samples} rows, "
                f"got shape {values.shape}",
            )
        if values.ndim == 2:
            return _probabilities(values, n_components), list(self.names or ())
        codes, names = self.coded()  # each label is a component
        if len(names) > n_components:
            listed = shorten(map(repr, map(str, names)))
            raise InputError(
                Setting("labels_for_fit"),
                f" have {len(names)} different labels ({listed}), one per component, but there are "
                f"{n_components} components; fit ",
                Setting("n_components", len(names)),
            )
        shares = np.full((n_samples, n_components), np.nan)
        shares[codes >= 0] = codes[codes >= 0, None] == np.arange(n_components)
        return shares, [label_name(name) for name in names]

    def coded(self) -> tuple[Indices, list[Any]]:
        """Return which of the labels that there are each row (M,) has, -1: none; and these."""
        values = np.asarray(self.values)
        there = _there(values)
        labels = values[there]
        if labels.dtype.kind not in "biufU":  # of one type, so that they have an order
            labels = np.array([str(one) for one in labels])
        names, places = np.unique(labels, return_inverse=True)
        codes = np.full(len(values), -1)
        codes[there] = places
        return codes, names.tolist()

    def of_components(self, names: Sequence[str], n_components: int, model: str) -> KnownLabels:
        """Return labels as probabilities of components that have these names, in a model."""
        codes, labels = self.coded()
        label_names = [label_name(one) for one in labels]
        strange = [name for name in label_names if name not in names]
        if strange:
            raise InputError(
                Setting("labels_for_fit"), f" have {shorten(map(repr, strange), 3)}, but no "
                f"component of {model} has such a name: they are {shorten(names, 10)}",
            )  # fmt: skip
        shares = np.zeros((len(codes), n_components))
        for place, name in enumerate(label_names):
            shares[:, list(names).index(name)] = codes == place
        shares[codes < 0] = np.nan
        return KnownLabels(shares, self.agent, names)


def _there(values: AnyArray) -> NDArray[np.bool_]:
    """Which rows (M,) have a label."""
    if values.dtype.kind in "biu":
        return np.asarray(values != -1)
    if values.dtype.kind == "f":
        return np.asarray(~np.isnan(values) & (values != -1))
    unknown = [
        one is None or one != one or (isinstance(one, str) and one.strip() in ("", "-1"))
        or (isinstance(one, int | float) and one == -1)
        for one in values.tolist()
    ]  # fmt: skip
    return ~np.array(unknown, dtype=np.bool_)


def label_name(label: Any) -> str:
    """Return a label as people write it: 2, not 2.0."""
    whole = isinstance(label, float) and label == int(label)
    return str(int(label) if whole else label)


def _probabilities(values: AnyArray, n_components: int) -> NDArray[np.float64]:
    """Return probabilities (M, K) that add up to 1, or NaN."""
    if values.shape[1] != n_components:
        raise InputError(
            Setting("labels_for_fit"),
            f" have probabilities of {values.shape[1]} components, but there are {n_components}",
        )
    try:
        shares = values.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(Setting("labels_for_fit"), " of two dimensions must be numbers") from None
    unknown = np.isnan(shares).any(axis=1)
    shares[unknown] = np.nan
    total = shares.sum(axis=1)
    wrong = ~unknown & ((shares < 0).any(axis=1) | ~(np.abs(total - 1) < SUM))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            Setting("labels_for_fit"),
            f" of row {row} must be probabilities that add up to 1, got {shares[row].tolist()}",
        )
    normalized: NDArray[np.float64] = shares / total[:, None]
    return normalized


@dataclass(frozen=True)
class Labelled:
    """What a fit knows of its labels, which one ``agent`` has.

    ``known`` is the term of the hub that has them, in the process of its root. ``names`` are those
    of the first components, one per label; ``counts`` (K,) are the known probabilities of each
    component summed over rows, and ``n_rows`` the rows with a label. ``mark`` is a checksum of this
    process's labels.
    """

    known: Known | None
    agent: int
    names: tuple[str, ...]
    counts: tuple[float, ...]
    n_rows: int
    mark: str

    @property
    def components(self) -> NDArray[np.bool_]:
        """Which components (K,) have labelled rows to start from."""
        return np.array(self.counts) >= HALF_A_ROW


def refuse_labels(labels: object) -> None:
    """Raise InputError if there are labels, of a fit that is released."""
    if labels is not None:
        raise InputError(
            Setting("labels_for_fit"),
            " start components at means of labelled rows, which a release would show without "
            "noise; leave them out, or ",
            Setting("release_epsilon"),
        )


def label_rows(
    labels: KnownLabels | ArrayLike | None, network: Network, prepared: Prepared, n_components: int
) -> Labelled | None:
    """Place labels in the hub of the agent that has them; all processes call this.

    Only the process of that agent looks at labels. None where no agent has any, or no row has one.
    If they do not fit the data, or two agents have some, all processes raise the same error.
    """
    agents, known_labels = network.agents, None
    if labels is not None:
        known_labels = labels if isinstance(labels, KnownLabels) else KnownLabels(labels)
        if not 0 <= known_labels.agent < agents.n_agents:
            raise InputError(
                f"labels are those of agent {known_labels.agent}, but there are "
                f"{agents.n_agents} agents"
            )
        known_labels = known_labels if agents.mine(known_labels.agent) else None
    who = sorted(agents.allgather({} if known_labels is None else {known_labels.agent: True}))
    if not who:
        return None
    if len(who) > 1:
        raise InputError(
            Setting("labels_for_fit"),
            " are added to the term of one hub, but several parties have some; leave out those of "
            "all parties but one",
        )
    [agent] = who

    def look(_: int) -> tuple[NDArray[np.float64], list[str]]:
        assert known_labels is not None
        shares, names = known_labels.parsed(prepared.n_samples, n_components)
        return _weighed(shares if prepared.kept is None else shares[prepared.kept]), names

    looked_at = for_each(agents, who, look).get(agent)
    facts: Report | None = None
    if looked_at is not None:
        table, names = looked_at
        counts = (table[:, 1, None] * table[:, 2:]).sum(axis=0).tolist()
        facts = {"names": names, "counts": counts, "n_rows": len(table)}
    shared = agents.bcast(facts, agent)
    if not shared["n_rows"]:
        return None
    hub = next(b for b, one in enumerate(network.hubs) if agent in one.agents)
    root = network.hubs[hub].root
    with set_topic(agents.engine, "setup"):
        table = agents.send(None if looked_at is None else looked_at[0], agent, root)
    known = None
    if table is not None and n_components > 1:
        # Added for components that a row does not belong to: a power of two.
        least = max(LEAST_APART, A_FEATURE * network.whole.blocks.n_features)
        most = MOST_APART[prepared.precision.itemsize]
        far = float(min(2.0 ** np.ceil(np.log2(least)), most))
        number = int(np.flatnonzero(network.total.holders.own == hub)[0])
        with np.errstate(divide="ignore"):
            costs = np.minimum(-2 * np.log(np.asarray(table)[:, 2:]), far)
        known = Known(number, np.asarray(table)[:, 0].astype(np.intp), np.abs(costs), far)
    return Labelled(
        known, agent, tuple(map(str, shared["names"])), tuple(map(float, shared["counts"])),
        int(shared["n_rows"]), "" if table is None else checksum(np.asarray(table)),
    )  # fmt: skip


def _weighed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a line for each labelled row.

    It has the row's number, its certainty ``1 - H(p) / log K``, and the probabilities (K,).
    """
    rows = np.flatnonzero(~np.isnan(shares).any(axis=1))
    row_shares = shares[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        unknown = -np.where(row_shares > 0, row_shares * np.log(row_shares), 0.0).sum(axis=1)
    known = 1 - unknown / np.log(max(shares.shape[1], 2))
    return np.column_stack([rows.astype(np.float64), known, row_shares])


def looked_up(labelled: Labelled | None) -> Report | None:
    """Report labels, and warn where labelled rows belong to components other than the label's.

    Only the process that has them can warn.
    """
    if labelled is None:
        return None
    known = labelled.known
    astray = 0 if known is None else int((known.astray > ASTRAY).sum())
    if known is not None and astray:
        rows = "row belongs" if astray == 1 else "rows belong"
        warn(
            f"{astray} labelled {rows} to components other than the label's: features favour "
            f"them by more than {known.far / 2:g} nats; look for outliers or wrong labels"
        )
    return {
        "agent": labelled.agent,
        "n_rows": labelled.n_rows,
        "names": list(labelled.names),
        "rows": list(labelled.counts),
    }
