"""Agents on a graph become a network: hubs, mixing weights, and how sums are taken.

`spread` gives the part of it that one of several processes has.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from vpem._core.threads import thread_count
from vpem.checks import Indices, check_int, check_kind
from vpem.engines.engine import Engine
from vpem.engines.placement import Placement, agree
from vpem.errors import InputError, Setting, VpemWarning
from vpem.network.codecs import Codec, parse_codec
from vpem.network.faults import Faults, in_turns, turning_rate
from vpem.network.graph import Graph, check_connected
from vpem.network.hubs import (
    Hub,
    LikelyHubs,
    Routes,
    charge_features,
    charge_flooding,
    diameter,
    find_hubs,
    find_routes,
)
from vpem.network.ledger import Ledger
from vpem.network.masks import FEWEST
from vpem.network.mixing import (
    VALUE_BYTES,
    estimate_rate,
    grow_tree,
    mixing_matrix,
    mixing_rate,
    push_rate,
    weights_name,
)
from vpem.network.partition import Blocks, Partition, contiguous
from vpem.network.schema import State
from vpem.records import Settings, Shown
from vpem.rules import MASKED_BY_ROUNDS, SUMMING, WITHOUT_ROUNDS, Way, summing
from vpem.settings import SumSettings
from vpem.sums.compressed_server import CompressedServerSum
from vpem.sums.consensus import (
    LARGEST_CONSENSUS_ERROR,
    MOST_GOSSIP_ROUNDS,
    ConsensusSum,
    arcs_of,
    automatic_rounds,
    consensus_error_bound,
    rounds_by_trial,
    rounds_needed,
)
from vpem.sums.gossip import GossipSum
from vpem.sums.server import ServerSum
from vpem.sums.sum import Sum

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_ROUNDS = {"none": 10**9, "chebyshev": 10**6}
"""By acceleration."""

Fitting = TypeVar("Fitting", bound=Settings)
"""Settings of a fit that has a codec."""

OF_ROUNDS = ("n_rounds", "weights", "acceleration", "consensus_tol", "consensus", "eigenvalue")
"""Settings that a sum without rounds has no use for."""


@dataclass(frozen=True)
class Network(Shown, facts="{graph.n_agents:agent}, {graph.topology}, {blocks.n_blocks:hub}"):
    """Agents on a graph, grouped in hubs, and how they sum.

    ``hubs`` are in the order of extraction, ``features`` the columns that each agent holds, and
    ``hops`` how far raw features may travel, at setup. Averages take ``n_rounds`` rounds of the
    ``weights`` of this name, whose second largest eigenvalue modulus is ``mixing_rate``; all three
    are None where the sum is exact. ``consensus_error`` is ``max |C - 1|``: 0 where the sum is
    exact, a bound where C is too large to form (``error_is_bound``), None where rounds are no fixed
    operator (compressed, or with faults); ``consensus_tol`` is the one for which the number of
    rounds was found, if it was. ``compress`` is the name of the messages' codec, and ``prepared``
    what was sent to estimate the mixing rate, or to grow a tree. Without ``chosen`` hubs are by
    size. ``part_of`` is the network as one process would have it, where this is what one of several
    has (`vpem.sums.connect`): the blocks of its own hubs, whose columns are counted from 0.
    """

    graph: Graph
    agents: Placement
    hubs: list[Hub]
    blocks: Blocks
    total: Sum
    features: tuple[Indices, ...]
    hops: int
    n_rounds: int | None = None
    weights: str | None = None
    mixing_rate: float | None = None
    consensus_error: float | None = 0.0
    error_is_bound: bool = False
    acceleration: str = "none"
    consensus_tol: float | None = None
    compress: str | None = None
    faults: Faults | None = None
    prepared: Ledger | None = None
    chosen: LikelyHubs | None = None
    part_of: Network | None = None

    @property
    def whole(self) -> Network:
        """The network as one process would have it."""
        return self if self.part_of is None else self.part_of

    @property
    def fails(self) -> bool:
        """Whether links or agents fail: graphs in turn alone make the same sum every time."""
        return self.faults is not None and self.faults.any

    @property
    def dropout(self) -> float:
        """With which probability an agent is inactive in a sum."""
        return 0.0 if self.faults is None else self.faults.agent_dropout

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of features of each agent."""
        return tuple(len(columns) for columns in self.features)

    def describe(self, *names: str) -> State:
        """Describe the network in values that JSON can hold, by names and in their order.

        Agents are numbered from 0, the server last.
        """
        graph = self.graph
        facts = {
            "topology": graph.topology,
            "server": graph.n_agents if graph.has_server else None,
            "edges": graph.edges.tolist(),
            "positions": None if graph.positions is None else graph.positions.tolist(),
            "hops": self.hops,
            "hubs_chosen": {"by": "size"} if self.chosen is None else self.chosen.describe(),
            "sum": self.total.way,
            "tree": self.total.shape,
            "rounds": self.n_rounds,
            "weights": self.weights,
            "mixing_rate": self.mixing_rate,
            "consensus_error": self.consensus_error,
            "consensus_error_is_bound": self.error_is_bound,
            "acceleration": self.acceleration,
            "consensus_tol": self.consensus_tol,
            "compress": self.compress,
            "faults": asdict(self.faults) if self.fails and self.faults else None,
            "secure_sum": self.agents.masks is not None,
            "consensus_path": self.total.path or "server",
        }
        return {name: facts[name] for name in names}

    def agents_of_features(self) -> list[int]:
        """Return the agent that holds each feature, (d,)."""
        holder = np.empty(sum(self.widths), dtype=np.intp)
        for agent, columns in enumerate(self.features):
            holder[columns] = agent
        return list(map(int, holder))

    def charge_setup(self, ledger: Ledger, n_samples: int, itemsize: int) -> None:
        """Count what is sent before the first iteration."""
        if self.prepared is not None:
            ledger.add(self.prepared)
        if self.agents.masks is not None:
            self.whole.total.server.counted_on(ledger).charge_keys()
        if self.chosen is not None:
            ledger.add(self.chosen.sent)
        if self.hops > 0:
            if not self.graph.has_server:
                charge_flooding(ledger, self.graph)
            routes = find_routes(self.graph, self.hubs)
            charge_features(ledger, routes, self.widths, n_samples, itemsize)


def connect(
    graph: Graph,
    partition: Partition,
    settings: SumSettings | None = None,
    *,
    chosen: LikelyHubs | None = None,
    **changes: object,
) -> Network:
    """Group the agents of a graph in hubs and set up their sum.

    Parameters
    ----------
    graph : Graph
        Communication graph of the agents, or a star around a server.
    partition : Partition
        Features of each agent.
    settings : SumSettings, optional
        How they sum; None: the defaults.
    chosen : LikelyHubs, optional
        Hubs by likelihood, found from the data (`vpem.fits.likely_hubs.connect_by_likelihood`).
    **changes
        Settings that differ from these, such as ``hops=1``: see `vpem.SumSettings`.

    Returns
    -------
    Network

    Raises
    ------
    InputError
        If the graph is not connected or has another number of agents, or options make no sense.

    Warns
    -----
    VpemWarning
        If the rounds are too few for the graph, or the hubs centralize the data.
    """
    if not isinstance(graph, Graph) or not isinstance(partition, Partition):
        raise InputError(
            "connect takes a vpem.Graph (from make_graph or from_networkx) and a vpem.Partition, "
            f"got {type(graph).__name__} and {type(partition).__name__}"
        )
    if graph.n_agents != partition.n_agents:
        raise InputError(
            f"the graph has {graph.n_agents} agents but the features are held by "
            f"{partition.n_agents}; give a graph of as many agents, or another partition"
        )
    settings, codec, faults = settled(graph, SumSettings.resolve(settings, **changes))
    check_connected(graph)
    agents = Placement.here(graph.n_agents)
    if settings.hubs == "size":
        hubs = find_hubs(graph, settings.hops, settings.seed)
    elif chosen is not None:
        hubs = chosen.hubs
    else:
        raise InputError(
            Setting("hubs", settings.hubs), " is by the data, of which connect sees none; call "
            "vpem.fits.likely_hubs.connect_by_likelihood, or take ", Setting("hubs", "size"),
        )  # fmt: skip
    joined = Network(
        graph,
        agents,
        hubs,
        Blocks.from_hubs(hubs, partition.features),
        ServerSum(len(hubs)),
        tuple(partition.features),
        settings.hops,
        compress=None if codec is None else codec.name,
        faults=faults,
        chosen=chosen,
    )
    joined = BUILT[str(settings.sum)](joined, settings, codec)
    if settings.secure_sum:
        n_parties = sum(len(columns) > 0 for columns in joined.features)
        if n_parties < FEWEST:
            raise InputError(
                Setting("secure_sum"),
                f" needs at least {FEWEST} parties that hold something, got {n_parties}: of two "
                "each could subtract its own term from the sum and learn the other's; leave it "
                "out, or find more parties",
            )
        masks = agree(agents, graph.names or ())
        agents = Placement(agents.engine, agents.ranks, masks)
        return replace(joined, agents=agents, total=joined.total.spread_over(agents, agents))
    return joined


def way_of(graph: Graph, settings: SumSettings) -> Way:
    """Return how agents sum on a graph, by default what it allows.

    The links of a star are a tree around its server already.
    """
    way = summing(settings.sum, "server" if graph.has_server else "consensus")
    if graph.has_server and way.has_rounds:
        raise InputError(
            "agents that reach only a server have no neighbours to agree with; leave ",
            Setting("sum", way.title),
            " out, or take a graph of agents, such as the topology cycle",
        )
    if way.needs_server and not graph.has_server:
        raise InputError(
            Setting("sum", way.title),
            " needs a server that every agent reaches, but this graph has none; take the topology "
            "star, or ",
            Setting("sum", "tree"),
            ", which is as exact",
        )
    return SUMMING["server"] if graph.has_server else way


def move_codec(graph: Graph, sums: SumSettings, settings: Fitting) -> tuple[SumSettings, Fitting]:
    """Return settings of sums and of a fit, whose codec is of the sums where these have rounds.

    Elsewhere it compresses corrections, and not the sum.
    """
    if not way_of(graph, sums).has_rounds:
        return sums, settings
    return sums.changed(compress=vars(settings)["compress"]), settings.changed(compress=None)


def settled(graph: Graph, settings: SumSettings) -> tuple[SumSettings, Codec | None, Faults | None]:
    """Return settings with the way of summing and the acceleration that a graph lets them have.

    And the codec and the faults that they name. It raises InputError where two settings cannot both
    be had, or one makes no sense for an exact sum, saying why.
    """
    codec = None if settings.compress is None else parse_codec(settings.compress)
    failing = Faults(settings.link_failure, settings.agent_dropout, settings.stragglers)
    faults = failing if failing.any or graph.turns is not None else None
    way = way_of(graph, settings)
    if (graph.is_directed or graph.turns is not None) and settings.hops:
        raise InputError(
            Setting("hops"),
            " above 0 sends features along links that lead both ways in every round, but this "
            f"graph {'is directed' if graph.is_directed else 'changes from round to round'}; take ",
            Setting("hops", 0),
        )
    if graph.is_directed:
        return _settled_directed(settings, way), None, None
    settings = settings.changed(sum=way.title)
    if settings.secure_sum and way.has_rounds:
        raise InputError(Setting("secure_sum"), *MASKED_BY_ROUNDS)
    if not way.has_rounds:
        for name in OF_ROUNDS:
            if settings.has_changed(name):
                raise InputError(Setting(name), *WITHOUT_ROUNDS)
        if faults is None or not faults.any:
            return settings, codec, faults
        setting = next(name for name, value in asdict(faults).items() if value)
        if way.needs_server:
            raise InputError(
                Setting(setting),
                " makes links fail or agents silent, but a server's sum needs every agent; leave "
                "it out, or take a graph of agents, such as the topology cycle",
            )
        if faults.agent_dropout:
            raise InputError(
                Setting("agent_dropout"),
                " makes agents silent for a whole sum, but in a tree one path joins two agents, "
                "and all below a silent one would be missing in the sum; leave it out, or take ",
                Setting("sum", "consensus"),
            )
        return settings, codec, faults
    if settings.acceleration is None:
        settings = settings.changed(acceleration="chebyshev" if faults is None else "none")
    fixed = codec is None and faults is None
    most = MOST_ROUNDS[settings.acceleration or "none"] if fixed else MOST_GOSSIP_ROUNDS
    if settings.n_rounds != "auto":
        check_int("n_rounds", settings.n_rounds, least=1, most=most)
    changing = "rounds with faults" if failing.any else "rounds over graphs in turn"
    lacking = "fixed operator" if failing.any or faults is None else "powers of one matrix"
    why = f"{'compressed rounds' if faults is None else changing} are no {lacking}"
    if settings.acceleration == "chebyshev" and faults is not None:
        raise InputError(
            f"{why}, which Chebyshev acceleration needs: its polynomial would enlarge what each "
            "change of the links adds; take ",
            Setting("acceleration", "none"),
        )
    if settings.consensus == "operator" and not fixed:
        raise InputError(
            f"{why}: they have to be run one by one; take ",
            Setting("consensus", "auto"),
            " or ",
            Setting("consensus", "rounds"),
        )
    if faults is not None and str(settings.weights) != "metropolis":
        raise InputError(
            f"{changing} take the Metropolis weights of the links that are up, got weights "
            f"{weights_name(settings.weights, graph)}; take ",
            Setting("weights", "metropolis"),
        )
    if settings.eigenvalue != "estimated":
        return settings, codec, faults
    computed = Setting("eigenvalue", "computed")
    if codec is not None:
        raise InputError(
            "compressed rounds go by the spectral gap and the noise of the codec together, for "
            "which the mixing rate must be known; take ",
            computed,
        )
    return settings, codec, faults


DIRECTED = {
    "secure_sum": "multiplies states by mixing weights, so that masks would not cancel",
    "weights": "has weights of its own, by which each agent sends equal parts over its links",
    "acceleration": "has weights that are not symmetric, which Chebyshev polynomials need",
    "eigenvalue": "has no mixing rate by which rounds could be accelerated",
    "compress": "sends states whose error no neighbour can tell the sender",
    "link_failure": "has weights that fit all links: an agent does not learn which message is lost",
    "agent_dropout": "has weights that fit all links: an agent does not learn who is silent",
    "stragglers": "has weights that fit all links: an agent does not learn who is late",
}
"""Settings that push-sum cannot have, and what a directed graph has or does that excludes them."""


def _settled_directed(settings: SumSettings, way: Way) -> SumSettings:
    """Return the settings of push-sum; InputError where one cannot be had on a directed graph."""
    if not way.has_rounds:
        raise InputError(
            Setting("sum", way.title), " needs links that lead both ways, up with sums and down "
            "with the total, but this graph is directed; take ", Setting("sum", "consensus"),
        )  # fmt: skip
    for name, why in DIRECTED.items():
        if settings.has_changed(name) and (name, settings.acceleration) != ("acceleration", "none"):
            raise InputError(
                Setting(name), f" is not possible with a directed graph, which {why}; leave it out"
            )
    if settings.n_rounds != "auto":
        check_int("n_rounds", settings.n_rounds, least=1, most=MOST_ROUNDS["none"])
    return settings.changed(sum=way.title, acceleration="none")


def along_a_tree(network: Network) -> Network | None:
    """Return the same network with its sums along a tree; None where they are none of rounds.

    Or where they cannot be taken along a tree, as agents drop out.
    """
    network = network.whole
    total = network.total
    if network.dropout or total.at_server or network.graph.is_directed:
        return None
    rounds = ("n_rounds", "weights", "mixing_rate", "consensus_error", "error_is_bound",
              "acceleration", "consensus_tol")  # fmt: skip
    exact = replace(network, **{name: getattr(Network, name) for name in rounds})
    settings = SumSettings(seed=total.seed or 0, n_threads=total.n_threads)
    return _along_a_tree(exact, settings, total.codec)


def _at_server(
    joined: Network,
    settings: SumSettings,
    codec: Codec | None,
    tree: Routes | None = None,
    agents: Indices | None = None,
) -> Network:
    n_hubs, threads = len(joined.hubs), thread_count(settings.n_threads)
    if codec is None and tree is None and type(joined.total) is ServerSum:
        return joined
    if codec is None:
        return replace(joined, total=ServerSum(n_hubs, tree, agents))
    total = CompressedServerSum(
        n_hubs, codec, tree=tree, agents=agents, seed=settings.seed, n_threads=threads
    )
    return replace(joined, consensus_error=None, total=total)


def _along_a_tree(joined: Network, settings: SumSettings, codec: Codec | None) -> Network:
    # Where there are hubs all agents know the graph, from which these were found.
    sent = Ledger(joined.graph) if joined.hops == 0 else None
    tree = grow_tree(joined.graph, sent)
    roots = np.array([hub.root for hub in joined.hubs], dtype=np.intp)
    joined = _at_server(joined, settings, codec, tree, roots)
    total = joined.total.server
    if joined.faults is not None:
        total = total.failing(joined.graph, joined.faults, settings.seed)
    return replace(joined, total=total, prepared=sent)


def _by_rounds(joined: Network, settings: SumSettings, codec: Codec | None) -> Network:
    graph, hubs, faults = joined.graph, joined.hubs, joined.faults
    threads = thread_count(settings.n_threads)
    mixing = mixing_matrix(graph, settings.weights)
    reach = diameter(graph)
    if graph.is_directed:
        return _by_push(joined, settings, mixing, reach)
    rate = used = mixing_rate(mixing) if graph.turns is None else turning_rate(graph)
    sent = None
    if settings.eigenvalue == "estimated":
        sent = Ledger(graph)
        used = estimate_rate(mixing, graph, sent, seed=settings.seed, diameter=reach)
    accelerated = settings.acceleration == "chebyshev"
    reaching = partial(
        rounds_needed, mixing, hubs, used, n_threads=threads, accelerated=accelerated
    )
    needed = partial(
        automatic_rounds, graph, hubs, rate, settings, partial(reaching, by_bound=sent is not None)
    )
    automatic = settings.n_rounds == "auto"
    n_rounds = needed(codec, faults) if settings.n_rounds == "auto" else int(settings.n_rounds)
    joined = replace(
        joined,
        n_rounds=n_rounds,
        weights=weights_name(settings.weights, graph),
        mixing_rate=rate,
        consensus_error=None,
        acceleration=settings.acceleration or "none",
        consensus_tol=settings.consensus_tol if automatic else None,
        prepared=sent,
    )
    common: State = {"n_threads": threads, "routes": find_routes(graph, hubs), "diameter": reach}
    if codec is not None or faults is not None:
        gossip = GossipSum(
            graph, mixing, hubs, n_rounds, rate=rate, codec=codec, accelerated=accelerated,
            until_agreed=codec is not None, least=1 if automatic else n_rounds,
            exact_rounds=None if codec is None else needed(None, faults),
            faults=faults, seed=settings.seed, **common,
        )  # fmt: skip
        if graph.turns is not None and codec is None and faults is not None and not faults.any:
            off = rounds_by_trial(in_turns(graph), hubs, 0.0, n_rounds)[1]
            if not automatic:
                _warn_of_few(n_rounds, off)
            joined = replace(joined, consensus_error=None if np.isnan(off) else off)
        return replace(joined, total=gossip)
    consensus = ConsensusSum(
        mixing,
        hubs,
        n_rounds,
        rate=used if accelerated else None,
        path=settings.consensus,
        **common,
    )
    error = consensus.error
    bounded = error is None
    if error is None:
        error = consensus_error_bound(
            used if accelerated else rate, hubs, graph.n_agents, n_rounds, accelerated=accelerated
        )
    if error > LARGEST_CONSENSUS_ERROR and not automatic:
        enough = reaching(LARGEST_CONSENSUS_ERROR)
        warnings.warn(
            f"{n_rounds} rounds are too few for this graph (mixing rate {rate:.4f}): the consensus "
            f"error is {'at most ' if bounded else ''}{error:.2g}, more than "
            f"{LARGEST_CONSENSUS_ERROR:g}, so the hubs disagree; {enough} rounds would do",
            VpemWarning,
            stacklevel=3,
        )
    return replace(joined, total=consensus, consensus_error=error, error_is_bound=bounded)


def _warn_of_few(n_rounds: int, error: float) -> None:
    if error > LARGEST_CONSENSUS_ERROR:
        warnings.warn(
            f"{n_rounds} rounds are too few for this graph: the consensus error is {error:.2g}, "
            f"more than {LARGEST_CONSENSUS_ERROR:g}, so the hubs disagree; try more",
            VpemWarning,
            stacklevel=5,
        )


def _by_push(joined: Network, settings: SumSettings, mixing: csr_array, reach: int) -> Network:
    """Set up push-sum, with one number of each agent in every round of the setup."""
    hubs, automatic = joined.hubs, settings.n_rounds == "auto"
    n_rounds = (
        rounds_by_trial([mixing], hubs, settings.consensus_tol)[0]
        if settings.n_rounds == "auto"
        else int(settings.n_rounds)
    )
    total = ConsensusSum(
        mixing, hubs, n_rounds, path=settings.consensus, pushed=True,
        n_threads=thread_count(settings.n_threads), diameter=reach,
    )  # fmt: skip
    if total.error is None:
        raise InputError(
            f"push-sum among {joined.graph.n_agents} agents has an error that is not known: there "
            "is no bound, and its matrix is too large to form; take fewer agents"
        )
    if not automatic:
        _warn_of_few(n_rounds, total.error)
    sent = Ledger(joined.graph)
    links = arcs_of(mixing, sent)
    sent.send("setup", VALUE_BYTES, links=links, times=n_rounds, rounds=n_rounds)
    return replace(
        joined, total=total, n_rounds=n_rounds, weights=weights_name(None, joined.graph),
        mixing_rate=push_rate(mixing), consensus_error=total.error, prepared=sent,
        consensus_tol=settings.consensus_tol if automatic else None,
    )  # fmt: skip


BUILT = {"server": _at_server, "tree": _along_a_tree, "consensus": _by_rounds}
"""What sets up the sum of a network, by the way in which it is taken."""


def connect_workers(
    graph: Graph, settings: SumSettings | None = None, **changes: object
) -> Network:
    """Set up the sum of workers that hold rows: each is a root of its own.

    Parameters
    ----------
    graph : Graph
        Communication graph of the workers, or a star around a server.
    settings : SumSettings, optional
        As for `connect`.
    **changes
        As for `connect`, but for ``hops``: workers show their rows to no other.

    Returns
    -------
    Network
        Its `Network.total` sums vectors (`vpem.sums.counted.add_vectors`); its blocks mean nothing.

    Raises
    ------
    InputError
        As `connect` does.

    Warns
    -----
    VpemWarning
        If the rounds are too few for the graph.
    """
    takes = "connect_workers takes a vpem.Graph (from make_graph or from_networkx)"
    check_kind(takes, graph, Graph)
    settings = SumSettings.resolve(settings, **changes)
    if settings.hops:
        raise InputError(
            Setting("hops"), " is how far features travel, but workers do not show their rows to "
            "others; leave it out",
        )  # fmt: skip
    return connect(graph, contiguous(graph.n_agents, graph.n_agents), settings)


def spread(network: Network, engine: Engine) -> Network:
    """Return this process's part of a network, over whose processes agents are spread in runs.

    It has the blocks of the hubs whose roots live here (`Network.part_of`); in one process it is
    the network itself. Networks are alike in all processes.
    """
    part = spread_workers(network, engine, following=False)
    own = part.total.holders.own
    return part if part is network else replace(part, blocks=network.blocks.of_hubs(own))


def spread_workers(network: Network, engine: Engine, *, following: bool = True) -> Network:
    """Return the network of workers that live in several processes; see `spread`.

    With it recipes over rows (`vpem.fits.rows.fit_em`, `vpem.fits.row_kmeans`,
    `vpem.fits.fedem.fit_fedem`) are called in every process with the same options, and with
    the rows of the process's own workers (``network.agents.own``), worker by worker. What they
    return is the same everywhere but for what each worker has: the models of all workers and the
    clusters of all rows are in the first process, others have their own workers'. With
    ``following`` a process without roots has what the first root finds.
    """
    if not engine.apart:
        return network
    names = network.graph.names or ()
    agents = Placement.evenly(engine, network.graph.n_agents, names)
    if network.agents.masks is not None:
        agents.masks = agree(agents, names)
    total = sum_over(network, agents, following)
    return replace(network, total=total, agents=agents, part_of=network)


def sum_over(network: Network, agents: Placement, following: bool = False) -> Sum:
    """Return the sum of a network whose agents live in several processes.

    With ``following`` a process without roots runs the loop with what the first root finds. It
    refuses rounds that are too many to be run one by one.
    """
    roots = [hub.root for hub in network.hubs]
    holders = Placement(agents.engine, agents.nodes[roots], agents.masks)
    return network.total.spread_over(agents, holders, following)


def uncompressed(network: Network) -> Sum:
    """Return the sum of a network, as this process has it, with numbers that no codec touches.

    What it sends to other processes is counted with what the network's own sum sends.
    """
    total, plain = network.total, network.total.uncompressed()
    if plain.holders.apart == total.holders.apart:
        return plain
    spread_out = sum_over(replace(network.whole, total=plain), network.agents)
    spread_out.traffic = total.traffic
    return spread_out


def refuse_directed(network: Network, what: str) -> None:
    """Raise InputError where ``what`` needs an exact sum, for which links must lead both ways."""
    if network.graph.is_directed:
        raise InputError(
            f"{what} an exact sum along a tree, whose links lead both ways, but this graph is "
            "directed; leave out ", Setting("directed", True),
        )  # fmt: skip


def sum_exactly(network: Network, ledger: Ledger) -> Sum:
    """Return the exact sum of a network, without its rounds, codecs and faults.

    It is taken at the server where there is one, and else along a tree: no agent needs to be
    reached by others than in a fit. The ledger counts how a tree is grown, if there is none yet.
    """
    whole = network.whole
    total = whole.total
    if not total.at_server or not total.exact or whole.faults is not None:
        build = _at_server if whole.graph.has_server else _along_a_tree
        exact = build(replace(whole, faults=None, prepared=None), SumSettings(), None)
        total = exact.total
        if exact.prepared is not None:
            ledger.add(exact.prepared)
        if whole.agents.masks is not None:
            total = total.spread_over(whole.agents, whole.agents)
    return sum_over(replace(whole, total=total), network.agents) if network.agents.apart else total
