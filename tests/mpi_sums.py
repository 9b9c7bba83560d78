"""Run by mpi_fits.py under mpiexec: sums over ranks are those of one process."""

import warnings

import numpy as np

from vpem.errors import VpemWarning
from vpem.fits.spread import spread, sum_over_ranks
from vpem.network.holdings import contiguous
from vpem.network.ledger import Ledger
from vpem.network.topologies import make_graph
from vpem.sums.connect import connect, connect_workers
from vpem.sums.counted import add_vectors


def check_vectors(team, n_agents):
    """Workers' vectors, as row-split recipes add them."""
    values = np.random.default_rng(1).standard_normal((n_agents, 37))
    for topology in ("star", "cycle", "geometric", "path"):
        how = {} if topology == "star" else {"consensus": "rounds"}
        network = connect_workers(make_graph(topology, n_agents, seed=3), **how)
        total = sum_over_ranks(network, team)
        ours, theirs = (part.on(Ledger(network.graph)) for part in (total, network.total))
        found = add_vectors(ours, values[list(team.own)])
        wanted = add_vectors(theirs, values)
        own = wanted if ours.exact else wanted[list(team.own)]
        np.testing.assert_allclose(found, own, rtol=1e-12, atol=1e-12)
        assert ours.ledger.summary() == theirs.ledger.summary()


def check_terms(team, n_agents):
    """Terms in chunks, two of them under way; bytes that really went."""
    rng = np.random.default_rng(2)
    graph, partition = make_graph("geometric", n_agents, seed=3), contiguous(n_agents, n_agents)
    for hops in (0, 1, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VpemWarning)
            network = connect(graph, partition, hops=hops, consensus="rounds")
        for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-4)):
            ranked = spread(network, partition, team)
            n_hubs = len(network.hubs)
            terms = rng.standard_normal((n_hubs, 23, 3)).astype(dtype)
            ours = ranked.total.on(Ledger(graph))
            theirs = network.total.on(Ledger(graph))
            for total in (ours, theirs):
                total.begin("estep", 23, 3, terms.itemsize)
            chunks = [slice(0, 10), slice(10, 20), slice(20, 23)]
            local = terms[ranked.numbers]
            flow = list(ours.flow(iter(chunks), lambda rows, local=local: local[:, rows]))
            assert [rows for rows, _ in flow] == chunks
            found = np.concatenate([part for _, part in flow], axis=1)
            wanted = theirs.reduce(terms)[ranked.numbers]
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
            assert found.dtype == dtype
            handed = team.add(
                np.array([ours.handed.delivered["estep"], ours.handed.on_wire.get("estep", 0)])
                if team.own
                else np.zeros(2, dtype=np.int64)
            )
            assert handed[0] == theirs.ledger.bytes == ours.ledger.bytes
            if team.size >= n_agents:
                assert handed[1] == handed[0]
            else:
                assert handed[1] < handed[0]
            if team.size == 1:
                assert handed[1] == 0


def check_shared(team, n_agents):
    """What all processes must find alike."""
    network = connect(make_graph("star", n_agents), contiguous(n_agents, n_agents), hops=0)
    exact = spread(network, contiguous(n_agents, n_agents), team).total
    assert exact.leads
    assert exact.report(np.array([1.0 + team.rank])).tolist() == [1.0]
    cycle = connect(make_graph("cycle", n_agents), contiguous(n_agents, n_agents), hops=0)
    total = spread(cycle, contiguous(n_agents, n_agents), team).total
    assert total.leads == (team.rank == 0)
    assert total.report(np.array(team.own, dtype=float)).tolist() == list(range(n_agents))
    events = [(0, 0, "covariance")] if len(team.own) else []
    firsts = sorted({int(np.flatnonzero(team.ranks[:n_agents] == r)[0]) for r in team.ranks})
    assert sorted(total.pool(events)) == [(0, hub, "covariance") for hub in firsts]
    assert total.pool([]) == []
    weight = [(1, 0, "weight")] if team.rank == 0 else []
    assert exact.pool(weight) == [(1, 0, "weight")]
    last = team.rank == team.size - 1
    assert total.some(np.array([last, False])).tolist() == [True, False]
    assert total.tell("first" if team.rank == 0 else None) == "first"


def check_values(team, n_agents):
    """Values of many kinds, from agent to agent."""
    value = {
        "a": [1, None, (2.5, "x")],
        3: np.arange(6.0).reshape(2, 3),
        "s": np.array(["é", "bc"]),
    }
    own = {agent: [agent, "x" * agent] for agent in team.own}
    wanted = {agent: [agent, "x" * agent] for agent in range(n_agents)}
    assert team.collect(own, to=None) == wanted
    at_last = team.collect(own, to=n_agents - 1)
    assert at_last == (wanted if team.mine(n_agents - 1) else None)
    last = n_agents - 1
    told = team.tell(value if team.mine(last) else None, owner=last)
    np.testing.assert_equal(told, value)
    for source, target in ((0, last), (last, 0), (1, 1)):
        got = team.pass_on(value if team.mine(source) else None, source, target)
        np.testing.assert_equal(got, value if team.mine(target) else None)


CHECKS = (check_values, check_shared, check_vectors, check_terms)
