"""A network whose agents live in several processes, as one of them has it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from vpem.engines.engine import Engine
from vpem.engines.masking import agree
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.network.blocks import Blocks
from vpem.network.ledger import Ledger
from vpem.network.trees import grow_tree
from vpem.sums.compressed_server import CompressedServerSum
from vpem.sums.compressed_tree import CompressedTreeSum
from vpem.sums.connect import Network
from vpem.sums.consensus import ConsensusSum
from vpem.sums.gossip import GossipSum
from vpem.sums.over_engine import ConsensusOverEngine, ServerOverEngine
from vpem.sums.rounds import MOST_GOSSIP_ROUNDS
from vpem.sums.server import ServerSum
from vpem.sums.sum import Sum
from vpem.sums.tree import TreeSum
from vpem.sums.tree_over_engine import TreeOverEngine


def spread(network: Network, engine: Engine) -> Network:
    """Return this process's part of a network.

    Parameters
    ----------
    network : Network
        From `vpem.sums.connect.connect`, alike in every process.
    engine : Engine
        The processes, over which agents are spread in runs (`Placement.evenly`).

    Returns
    -------
    Network
        With the blocks of the hubs whose roots live here; see `Network.part_of`. In one process
        the network itself.

    Raises
    ------
    InputError
        As `sum_over` does.
    """
    if not engine.apart:
        return network
    agents = _placed(network, engine)
    total = sum_over(network, agents)
    hubs = [network.hubs[b] for b in total.holders.own]
    ends = np.cumsum([0, *network.blocks.widths[total.holders.own]])
    blocks = Blocks(
        tuple(np.arange(a, b, dtype=np.intp) for a, b in pairwise(ends)),
        tuple(hub.root for hub in hubs),
        tuple(hub.agents for hub in hubs),
    )
    return replace(network, blocks=blocks, total=total, agents=agents, part_of=network)


def spread_workers(network: Network, engine: Engine) -> Network:
    """Return the network of workers that live in several processes.

    With it recipes over rows (`vpem.fits.rows.fit_em`, `vpem.fits.row_kmeans`,
    `vpem.fits.fedem.fit_fedem`) are called in every process with the same options, and with
    the rows of the process's own workers (``network.agents.own``), worker by worker. What they
    return is the same everywhere but for what each worker has: the models of all workers and the
    clusters of all rows are in the first process, others have their own workers'.

    Parameters
    ----------
    network : Network
        From `vpem.sums.connect.connect_workers`, alike in every process.
    engine
        As for `spread`.

    Raises
    ------
    InputError
        As `sum_over` does.
    """
    if not engine.apart:
        return network
    agents = _placed(network, engine)
    total = sum_over(network, agents, following=True)
    return replace(network, total=total, agents=agents, part_of=network)


def _placed(network: Network, engine: Engine) -> Placement:
    """Spread the agents of a network over processes; they agree on masks where it has any."""
    names = network.graph.names or ()
    agents = Placement.evenly(engine, network.graph.n_agents, names)
    if network.agents.masks is not None:
        agents.masks = agree(agents, names)
    return agents


def sum_over(network: Network, agents: Placement, following: bool = False) -> Sum:
    """Return the sum of a network whose agents live in several processes.

    With ``following`` a process without roots runs the loop with what the first root finds. It
    refuses rounds that are too many to be run one by one.
    """
    total, engine = network.total, agents.engine
    holders = Placement(engine, agents.nodes[[hub.root for hub in network.hubs]], agents.masks)
    if isinstance(total, ServerSum):
        return ServerOverEngine(holders)
    if isinstance(total, TreeSum):
        if holders.masks is not None and engine.outlast is not None:
            raise InputError(
                "masked sums along a tree need all members: let the study wait for a lost one "
                "(vpem study change --if-lost wait), or have a server"
            )
        return TreeOverEngine(agents, holders, total)
    if isinstance(total, CompressedServerSum):
        return total.over(agents, holders)
    assert isinstance(total, ConsensusSum | GossipSum)
    # Where machines round differently the first one's numbers hold, or processes would part.
    n_rounds, rate = engine.bcast((total.n_rounds, total.rate))
    if isinstance(total, GossipSum):
        return total.over(agents, holders, n_rounds, rate, following=following)
    if n_rounds > MOST_GOSSIP_ROUNDS:
        raise InputError(
            f"{n_rounds} rounds cannot be run one by one between processes; take at most "
            f"{MOST_GOSSIP_ROUNDS}, or a graph that mixes faster"
        )
    return ConsensusOverEngine(
        agents,
        holders,
        total.mixing,
        network.hubs,
        n_rounds,
        rate=rate,
        routes=total.routes,
        diameter=total.diameter,
        n_threads=total.n_threads,
        following=following,
    )


def uncompressed(network: Network) -> Sum:
    """Return the sum of a network, as this process has it, with numbers that no codec touches.

    What it sends to other processes is counted with what the network's own sum sends.
    """
    whole, total = network.whole, network.total
    if isinstance(total, GossipSum):
        return total.uncompressed()
    if not isinstance(total, CompressedServerSum):
        return total
    plain: TreeSum | ServerSum = ServerSum(len(whole.hubs))
    if isinstance(total, CompressedTreeSum):
        plain = TreeSum(total.tree, total.agents)
        plain.waits = total.waits
    if network.part_of is None:
        return plain
    spread_out = sum_over(replace(whole, total=plain), network.agents)
    assert isinstance(spread_out, ServerOverEngine | TreeOverEngine)
    spread_out.traffic = total.traffic
    return spread_out


def sum_exactly(network: Network, ledger: Ledger) -> Sum:
    """Return the exact sum of a network, whose rounds, codecs and faults are left aside.

    It is taken at the server where there is one, and else along a tree: no agent needs to be
    reached by others than in a fit. The ledger counts how a tree is grown, if there is none yet.
    """
    whole = network.whole
    total = whole.total
    if not isinstance(total, ServerSum | TreeSum) or whole.faults is not None:
        if whole.graph.has_server:
            total = ServerSum(len(whole.hubs))
        else:
            roots = np.array([hub.root for hub in whole.hubs], dtype=np.intp)
            # Where there are hubs everybody knows the graph.
            total = TreeSum(grow_tree(whole.graph, None if whole.hops else ledger), roots)
        if whole.agents.masks is not None:
            total = total.masked(whole.agents)
    return sum_over(replace(whole, total=total), network.agents) if network.agents.apart else total
