"""The tree along which agents add up: shortest ways to the centre of their graph."""

from __future__ import annotations

from vpem.network.graph import Graph
from vpem.network.hubs import NUMBER_BYTES, Hub, Routes, eccentricities, find_routes
from vpem.network.ledger import Ledger

CHOSEN_BYTES = 1
"""Of the message by which an agent tells another that it is its parent."""


def grow_tree(graph: Graph, ledger: Ledger | None = None) -> Routes:
    """Return shortest ways from every agent to the centre of a connected graph without a server.

    The centre is the agent whose farthest one is nearest, of several that of the smallest number.
    On a way every agent takes the neighbour of smallest number that is nearer. Without a ledger
    agents know the whole graph already, and each finds the same tree. With one, where messages are
    counted ("flooding"), they know their neighbours and nothing else, and grow the tree in three
    steps.

    * Every agent floods its number: in each round it passes on to all its neighbours the numbers
      that it heard for the first time in the round before. Each number goes over each link once
      in either direction. An agent hears of all that are r hops away in round r, and of nobody
      anew in one round only after the last; so it knows its eccentricity, and for every other
      agent which of its neighbours are nearer to it.
    * Every agent floods the least of the pairs (eccentricity, number) that it knows of, in as many
      rounds as the diameter: the least of all is the centre.
    * Every other agent tells its parent so, in one message.
    """
    reach = eccentricities(graph)
    centre = int(reach.argmin())
    tree = find_routes(graph, [Hub(centre, tuple(range(graph.n_agents)))])
    if ledger is None:
        return tree
    rounds = reach + 1  # in which an agent has something new to pass on
    ledger.send("flooding", 0, times=rounds[ledger.sources], rounds=int(rounds.max()))
    ledger.grow("flooding", NUMBER_BYTES * graph.n_agents)
    widest = int(reach.max())
    ledger.send("flooding", 2 * NUMBER_BYTES, times=widest, rounds=widest)
    parents = [ledger.link(int(leaf), int(tree.parent[leaf])) for leaf in tree.leaves]
    if parents:
        ledger.send("flooding", CHOSEN_BYTES, links=parents, rounds=1)
    return tree
