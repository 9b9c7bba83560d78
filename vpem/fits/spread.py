"""Agents of a network in several processes: each has its own hubs, features and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_data, check_finite
from vpem.engines.crew import RankCrew
from vpem.errors import InputError, Setting
from vpem.fits.prepare import MARGINALIZE
from vpem.fits.results import Fit
from vpem.fits.vpem import fit_vpem
from vpem.network.blocks import Blocks
from vpem.network.hubs import Hub
from vpem.network.routes import find_routes
from vpem.settings import FitSettings
from vpem.steps.runs import Progress
from vpem.steps.saver import Saver
from vpem.sums.connect import MOST_GOSSIP_ROUNDS, Network
from vpem.sums.consensus import ConsensusSum
from vpem.sums.rank_vectors import RankConsensusVectors, RankServerVectors
from vpem.sums.ranks import RankConsensusSum, RankServerSum
from vpem.sums.server import ServerSum
from vpem.terms.covariances import block_views
from vpem.terms.missing_patterns import check_missing
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling

if TYPE_CHECKING:
    from vpem.engines.mpi import MpiTeam
    from vpem.network.holdings import Partition

__all__ = [
    "RankNetwork",
    "fit_spread",
    "joined",
    "outline",
    "spread",
    "spread_workers",
    "sum_over_ranks",
]


@dataclass(frozen=True)
class RankNetwork(Network):
    """What one process knows of a network: all of the graph, and its own hubs' features.

    ``blocks`` are those of the hubs whose roots live here, over columns counted from 0 in the order
    of the blocks; ``total`` sums over all processes; all else is the whole network's.

    Attributes
    ----------
    team : MpiTeam
        The processes.
    whole : Network
        The network as one process would have it.
    partition : Partition
        Features of every agent.
    """

    team: MpiTeam = field(kw_only=True)
    whole: Network = field(kw_only=True)
    partition: Partition = field(kw_only=True)

    @cached_property
    def numbers(self) -> NDArray[np.intp]:
        """Which of the network's hubs have their root here."""
        found: NDArray[np.intp] = self.total.numbers
        return found

    @cached_property
    def columns(self) -> NDArray[np.intp]:
        """Columns that this process's agents hold: by agent, then by column."""
        return _columns_of(self.partition, self.team.own)

    @cached_property
    def columns_of_blocks(self) -> NDArray[np.intp]:
        """Columns of the hubs that have their root here, in the order of the blocks."""
        nothing = np.empty(0, dtype=np.intp)
        return np.concatenate([nothing, *(self.whole.blocks.features[b] for b in self.numbers)])

    # ---- setup ----------------------------------------------------------------------------------

    def bring(
        self,
        X: NDArray[Any] | None,
        feature_names: Sequence[str] | None = None,
        missing: str = "refuse",
    ) -> tuple[NDArray[Any], list[str] | None]:
        """Bring features to the roots of their hubs, hop by hop.

        Parameters
        ----------
        X : ndarray of shape (M, d) or None
            Features of this process's agents, in the order of `columns`; None where it has none.
        feature_names : sequence of str, optional
            Of these, on every rank or on none.
        missing : {"refuse", "marginalize"}
            Whether values may be missing (NaN).

        Returns
        -------
        X : ndarray of shape (M, d)
            Features of this process's blocks, in their order.
        feature_names : list of str or None
            Of these.

        Raises
        ------
        InputError
            If values are not finite, or processes have other numbers of rows.
        """
        if not (X is None or isinstance(X, np.ndarray)):
            raise InputError(
                "data that are read from disk cannot travel between processes; raise the memory "
                "limit"
            )
        if len(self.columns):
            finite = check_missing if missing == "marginalize" else _refuse_missing
            X = check_data(X, len(self.columns), feature_names, finite=finite)
        team, routes = self.team, find_routes(self.graph, self.hubs)
        n_samples = self._count_rows(None if X is None else len(X))
        held = np.empty((n_samples, 0)) if X is None else X
        double = len(self.columns) > 0 and held.dtype != np.float32
        dtype = np.dtype(f"f{team.largest(np.array([8 if double else 4], dtype=np.uint8))[0]}")
        have: dict[int, NDArray[Any]] = {}
        names: dict[int, list[str]] = {}
        begin = 0
        for agent in team.own:
            own = slice(begin, begin + self.widths[agent])
            have[agent] = held[:, own]
            names[agent] = list(map(str, (feature_names or ())[own]))
            begin = own.stop
        carried = {agent: [agent] for agent in range(len(self.widths)) if self.widths[agent]}
        for node in routes.leaves.tolist():
            parent = int(routes.parent[node])
            for agent in carried.pop(node, []):
                carried.setdefault(parent, []).append(agent)
                shape = (n_samples, self.widths[agent])
                part = team.pass_rows(have.pop(agent, None), shape, dtype, node, parent)
                told = team.pass_on(names.pop(agent, None), node, parent)
                if part is not None:
                    have[agent], names[agent] = part, told
        members = [a for b in self.numbers for a in self.hubs[b].agents if self.widths[a]]
        parts = [np.empty((n_samples, 0), dtype), *(have[agent] for agent in members)]
        found = np.ascontiguousarray(np.concatenate(parts, axis=1, dtype=dtype))
        if feature_names is None:
            return found, None
        return found, [name for agent in members for name in names[agent]]

    def _count_rows(self, n_samples: int | None) -> int:
        """Rows that all processes with features have."""
        rows = self.team.gather_all(np.array([-1 if n_samples is None else n_samples]))
        holders = np.flatnonzero(rows >= 0)
        differing = holders[rows[holders] != rows[holders[0]]] if len(holders) else []
        if len(differing):
            first, other = int(holders[0]), int(differing[0])
            raise InputError(
                f"{self.team.describe(first)} has {rows[first]} rows, {self.team.describe(other)} "
                f"has {rows[other]}; give every agent the same rows, or align them by id"
            )
        return int(rows.max())

    def complete(self, terms: Any) -> None:
        """Tell terms what they cannot know: of the features and blocks of other processes."""
        total = self.team.add(np.array([terms.log_constant]))
        terms.log_constant = float(total[0])
        terms.widest = int(self.whole.blocks.widths.max(initial=0))
        terms.n_features = self.whole.blocks.n_features
        terms.add_up = lambda value: float(self.team.add(np.array([value]))[0])

    def place(self, start: Mixture, covariance_type: str, scaling: Scaling) -> Mixture:
        """Return this process's part of a mixture of all features, as a start."""
        d = self.whole.blocks.n_features
        shift, scale = np.zeros(d), np.ones(d)
        shift[self.columns_of_blocks] = scaling.shift
        scale[self.columns_of_blocks] = scaling.scale
        every = start.over(self.whole.blocks, covariance_type, Scaling(shift, scale))
        offsets = self.whole.blocks.offsets
        places = [np.arange(offsets[b], offsets[b + 1]) for b in self.numbers]
        inside = np.concatenate([np.empty(0, dtype=np.intp), *places])
        if every.is_diagonal:
            covariances = np.ascontiguousarray(every.covariances[:, inside])
        else:
            views = every.covariance_blocks
            covariances = np.concatenate([np.empty(0), *(views[b].ravel() for b in self.numbers)])
        means = np.ascontiguousarray(every.means[:, inside])
        return Mixture(self.blocks, covariance_type, every.weights, means, covariances, scaling)

    # ---- result ---------------------------------------------------------------------------------

    def gather(self, mixture: Mixture) -> Mixture | None:
        """Return the mixture of all processes' blocks, at the first rank; None elsewhere."""
        own = {
            "numbers": self.numbers,
            "weights": mixture.weights,
            "means": mixture.means,
            "covariances": mixture.covariances,
            "shift": mixture.scaling.shift,
            "scale": mixture.scaling.scale,
        }
        parts = self.team.gather_at(own, 0)
        return None if parts is None else joined(self.whole.blocks, mixture.covariance_type, parts)


def fit_spread(
    X: NDArray[Any] | None,
    network: RankNetwork,
    settings: FitSettings | None = None,
    *,
    sample_weight: NDArray[Any] | None = None,
    feature_names: Sequence[str] | None = None,
    shards: bool = False,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    **changes: Any,
) -> Fit:
    """Fit a Gaussian mixture to features that agents in several processes hold: VP-EM.

    Every rank calls it with the same options.

    Parameters
    ----------
    X : ndarray of shape (M, d) or None
        Features of this rank's agents, in the order of `RankNetwork.columns`; nothing else is
        looked at. None on a rank without agents.
    network : RankNetwork
        From `spread`.
    settings : FitSettings, optional
        As for `vpem.fits.vpem.fit_vpem`.
    sample_weight : ndarray of shape (M,), optional
        Weight of each row; the first rank tells all others.
    feature_names : sequence of str, optional
        Of the columns of ``X``, for messages.
    shards : bool
        Leave the parameters where they are.
    callback, saver, **changes
        As for `vpem.fits.vpem.fit_vpem`.

    Returns
    -------
    Fit
        With `Fit.mixture` and `Fit.network` of all agents at the first rank, as one process would
        have found them; at other ranks, and with ``shards`` at all, those of this rank's own hubs.

    Raises
    ------
    InputError, NumericalError
        As `vpem.fits.vpem.fit_vpem`; not always at all ranks.
    """
    weights = network.team.tell_from(
        None if sample_weight is None else np.asarray(sample_weight), 0
    )
    how = FitSettings.of(settings, **changes)
    data, names = network.bring(X, feature_names, how.missing)
    fit = fit_vpem(
        data, network, how, sample_weight=weights, feature_names=names, callback=callback,
        saver=saver,
    )  # fmt: skip
    whole = None if shards else network.gather(fit.mixture)
    return fit if whole is None else replace(fit, mixture=whole, network=network.whole)


def outline(fit: Fit) -> Fit:
    """Return a fit whose parameters stayed where they are, as the whole network's without them.

    What a report counts is right, and the mixing weights are this rank's; all other parameters are
    placeholders.
    """
    network = fit.network
    assert isinstance(network, RankNetwork)
    blocks, kind, k = network.whole.blocks, fit.mixture.covariance_type, fit.mixture.n_components
    copies = fit.mixture.n_copies
    squares = int((blocks.widths.astype(np.int64) ** 2).sum())
    d = blocks.n_features
    mixture = Mixture(
        blocks,
        kind,
        fit.mixture.weights[:1] if len(fit.mixture.weights) else np.full((1, k), 1.0 / k),
        np.zeros((k, d)),
        np.ones((copies, d)) if fit.mixture.is_diagonal else np.zeros(copies * squares),
        Scaling.none(d),
    )
    return replace(fit, mixture=mixture, network=network.whole)


def joined(blocks: Blocks, covariance_type: str, parts: Sequence[dict[str, Any]]) -> Mixture:
    """Join the parts of a mixture that several processes have.

    Parameters
    ----------
    blocks : Blocks
        Of all.
    covariance_type : str
        As the parts have it.
    parts : sequence of dict
        ``numbers`` of its blocks, ``weights`` (one set, or one a block), ``means``,
        ``covariances``, ``shift`` and ``scale`` in the order of these blocks.
    """
    n_components = parts[0]["means"].shape[0]
    d, b = blocks.n_features, blocks.n_blocks
    means, shift, scale = np.empty((n_components, d)), np.empty(d), np.empty(d)
    diagonal = not covariance_type.endswith(("full", "tied"))
    copies = 1 if covariance_type.startswith("tied") else n_components
    squares = int((blocks.widths.astype(np.int64) ** 2).sum())
    covariances = np.empty((copies, d) if diagonal else copies * squares)
    weights = np.empty((b, n_components))
    # One set for other than one block is shared by all, elsewhere too.
    shared = any(len(part["weights"]) == 1 != len(part["numbers"]) for part in parts)
    views = None if diagonal else block_views(covariances, blocks.widths, copies)
    for part in parts:
        numbers = part["numbers"]
        weights[numbers] = part["weights"]
        ends = np.cumsum([0, *blocks.widths[numbers]])
        inner = None
        if views is not None:
            inner = block_views(part["covariances"], blocks.widths[numbers], copies)
        for place, number in enumerate(numbers):
            own = slice(ends[place], ends[place + 1])
            to = slice(blocks.offsets[number], blocks.offsets[number + 1])
            means[:, to] = part["means"][:, own]
            shift[blocks.order[to]] = part["shift"][own]
            scale[blocks.order[to]] = part["scale"][own]
            if views is None:
                covariances[:, to] = part["covariances"][:, own]
            else:
                assert inner is not None
                views[number][...] = inner[place]
    if shared:
        weights = parts[0]["weights"]
    return Mixture(blocks, covariance_type, weights, means, covariances, Scaling(shift, scale))


def _refuse_missing(X: Any, feature_names: Sequence[str] | None) -> None:
    check_finite(X, feature_names, MARGINALIZE)


def _columns_of(partition: Partition, agents: Sequence[int]) -> NDArray[np.intp]:
    nothing = np.empty(0, dtype=np.intp)
    return np.concatenate([nothing, *(partition.features[agent] for agent in agents)])


def sum_over_ranks(
    network: Network,
    team: MpiTeam,
    server: type[RankServerSum] = RankServerSum,
    consensus: type[RankConsensusSum] = RankConsensusSum,
) -> RankServerSum | RankConsensusSum:
    """Return the sum of a network whose agents live in several processes.

    Parameters
    ----------
    network : Network
        From `connect` or `connect_workers` of `vpem.sums.connect`, alike on every rank.
    team : MpiTeam
        Where its agents live.
    server, consensus : type
        Of the sums.

    Raises
    ------
    InputError
        If messages are compressed, links or agents fail, or rounds are too many to be run.
    """
    total = network.total
    if team.n_agents != network.graph.n_agents:
        raise InputError(
            f"the team is of {team.n_agents} agents, the network of {network.graph.n_agents}"
        )
    if network.compress is not None:
        raise InputError(
            "compressed sums are not run on MPI: what they would save is for slow links to count; "
            "leave ",
            Setting("compress"),
            " out, or take one process",
        )
    if network.faults is not None:
        raise InputError(
            "links that fail are simulated, but on MPI links are real; leave ",
            Setting("link_failure"),
            ", ",
            Setting("agent_dropout"),
            " and ",
            Setting("stragglers"),
            " out, or take one process",
        )
    if isinstance(total, ServerSum):
        return server(team, [hub.root for hub in network.hubs])
    assert isinstance(total, ConsensusSum)
    # Where machines round differently the first one's numbers hold, or ranks would part company.
    n_rounds, rate = team.tell_from((total.n_rounds, total.rate), 0)
    if n_rounds > MOST_GOSSIP_ROUNDS:
        raise InputError(
            f"{n_rounds} rounds cannot be run one by one on MPI; take at most "
            f"{MOST_GOSSIP_ROUNDS}, or a graph that mixes faster"
        )
    return consensus(
        team,
        total.mixing,
        network.hubs,
        n_rounds,
        rate=rate,
        routes=total.routes,
        diameter=total.diameter,
        n_threads=total.n_threads,
    )


def spread(network: Network, partition: Partition, team: MpiTeam) -> RankNetwork:
    """Return this process's part of a network.

    Parameters
    ----------
    network : Network
        From `vpem.sums.connect.connect`, alike on every rank.
    partition : Partition
        Features of each agent.
    team : MpiTeam
        Where agents live.

    Raises
    ------
    InputError
        As `sum_over_ranks` does.
    """
    total = sum_over_ranks(network, team)
    hubs: list[Hub] = [network.hubs[b] for b in total.numbers]
    widths = network.blocks.widths[total.numbers]
    ends = np.cumsum([0, *widths])
    blocks = Blocks(
        tuple(np.arange(a, b, dtype=np.intp) for a, b in pairwise(ends)),
        tuple(hub.root for hub in hubs),
        tuple(hub.agents for hub in hubs),
    )
    known = {name: getattr(network, name) for name in Network.__dataclass_fields__}
    known |= {"blocks": blocks, "total": total}
    return RankNetwork(**known, team=team, whole=network, partition=partition)


def spread_workers(network: Network, team: MpiTeam) -> Network:
    """Return the network of workers that live in several processes.

    With it recipes over rows (`vpem.fits.rows.fit_em`, `vpem.fits.kmeans`,
    `vpem.fits.fedem.fit_fedem`) are called on every rank with the same options, and with
    the rows of the rank's own workers (``team.own``), worker by worker. What they return is the
    same everywhere but for what each worker has: the models of all workers and the clusters of all
    rows are at the first rank, other ranks have their own workers'.

    Parameters
    ----------
    network : Network
        From `vpem.sums.connect.connect_workers`, alike on every rank.
    team : MpiTeam
        Where the workers live.

    Raises
    ------
    InputError
        As `sum_over_ranks` does.
    """
    total: Any = sum_over_ranks(network, team, RankServerVectors, RankConsensusVectors)
    total.crew = RankCrew(team, network)
    return replace(network, total=total)
