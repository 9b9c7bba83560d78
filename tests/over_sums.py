"""Sums over the ranks of any engine are those of one process."""

import warnings
from dataclasses import replace

import numpy as np

from vpem.engines.placement import Placement
from vpem.errors import PartitionedError, VpemWarning
from vpem.network.graph import make_graph
from vpem.network.ledger import Ledger
from vpem.network.partition import contiguous
from vpem.sums.connect import connect, connect_workers, spread, sum_over
from vpem.sums.counted import add_vectors
from vpem.sums.private import add_numbers
from vpem.sums.sum import Scalars


def check_vectors(engine, n_agents):
    """Workers' vectors, as row-split recipes add them."""
    values = np.random.default_rng(1).standard_normal((n_agents, 37))
    agents = Placement.evenly(engine, n_agents)
    rounds, tree = {"consensus": "rounds"}, {"sum": "tree"}
    cases = [
        ("star", {}),
        *((kind, how) for kind in ("cycle", "geometric") for how in (rounds, tree)),
    ]
    for topology, how in [*cases, ("path", rounds)]:
        network = connect_workers(make_graph(topology, n_agents, seed=3), **how)
        total = sum_over(network, agents)
        ours, theirs = (part.counted_on(Ledger(network.graph)) for part in (total, network.total))
        found = add_vectors(ours, values[agents.own])
        wanted = add_vectors(theirs, values)
        own = wanted if ours.roots.n_agents == 1 else wanted[agents.own]
        np.testing.assert_allclose(found, own, rtol=1e-12, atol=1e-12)
        assert ours.ledger.summary() == theirs.ledger.summary()


def check_terms(engine, n_agents):
    """Terms in chunks, two of them under way; bytes that really went."""
    rng = np.random.default_rng(2)
    graph, partition = make_graph("geometric", n_agents, seed=3), contiguous(n_agents, n_agents)
    cases = [(hops, {"consensus": "rounds"}) for hops in (0, 1, 2)]
    for hops, how in [*cases, *((hops, {"sum": "tree"}) for hops in (0, 1))]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VpemWarning)
            network = connect(graph, partition, hops=hops, **how)
        for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-4)):
            ranked = spread(network, engine)
            n_hubs = len(network.hubs)
            terms = rng.standard_normal((n_hubs, 23, 3)).astype(dtype)
            ours = ranked.total.counted_on(Ledger(graph))
            theirs = network.total.counted_on(Ledger(graph))
            for total in (ours, theirs):
                total.begin("estep", 23, 3, terms.itemsize, 1)
            chunks = [slice(0, 10), slice(10, 20), slice(20, 23)]
            hubs = ranked.total.holders.own
            local = terms[hubs]
            exact = np.exp(30 * rng.standard_normal((n_hubs, 1)))
            own, other = (Scalars(one, one) for one in (exact[hubs], exact))
            flow = list(ours.flow(iter(chunks), lambda rows, local=local: local[:, rows], own))
            assert [rows for rows, _ in flow] == chunks
            found = np.concatenate([part for _, part in flow], axis=1)
            wanted = theirs.reduce(terms, scalars=other)
            wanted = wanted if ours.exact else wanted[hubs]
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
            assert found.dtype == dtype
            np.testing.assert_allclose(
                own.found, other.found if ours.exact else other.found[hubs], rtol=1e-12
            )
            handed = engine.allreduce(
                np.array([ours.traffic.delivered["estep"], ours.traffic.on_wire.get("estep", 0)])
                if len(ranked.agents.own)
                else np.zeros(2, dtype=np.int64)
            )
            assert handed[0] == theirs.ledger.bytes == ours.ledger.bytes
            if engine.size >= n_agents:
                assert handed[1] == handed[0]
            elif hops == 0 or not ours.exact:
                assert handed[1] < handed[0]
            if engine.size == 1:
                assert handed[1] == 0


def check_masked(engine, n_agents):
    """The same bits as in one process, in chunks and at once; its 8 bytes a number."""
    rng = np.random.default_rng(5)
    for topology, how in (("star", {}), ("geometric", {"sum": "tree"})):
        graph = make_graph(topology, n_agents, seed=3)
        network = connect(graph, contiguous(n_agents, n_agents), secure_sum=True, **how)
        for dtype in (np.float64, np.float32):
            ranked = spread(network, engine)
            ours, theirs = (one.total.counted_on(Ledger(graph)) for one in (ranked, network))
            own, terms = ours.holders.own, rng.normal(0, 1e4, (n_agents, 23, 3)).astype(dtype)
            exact = rng.normal(0, 1e9, (n_agents, 1))
            numbers, others = (Scalars(one, one, 8) for one in (exact[own], exact))
            for total in (ours, theirs):
                total.begin("estep", 23, 3, terms.itemsize, 1)
            chunks = [slice(0, 10), slice(10, 20), slice(20, 23)]
            flow = ours.flow(iter(chunks), lambda rows, local=terms[own]: local[:, rows], numbers)
            found = np.concatenate([part for _, part in flow], axis=1)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, theirs.reduce(terms, scalars=others))
            np.testing.assert_array_equal(numbers.found, others.found)
            close = {np.float64: n_agents * 2.0**-33, np.float32: 1e-2}[dtype]
            np.testing.assert_allclose(found, terms.sum(axis=0)[None], rtol=1e-15, atol=close)
            np.testing.assert_allclose(others.found, exact.sum(axis=0)[None], atol=1e-6)
            sizes = exact * 10.0 ** rng.integers(-100, 100, 4)
            found, wanted = add_numbers(ours, sizes[own]), add_numbers(theirs, sizes)
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_allclose(wanted[0], sizes.sum(axis=0), rtol=1e-12)
            assert ours.ledger.summary() == theirs.ledger.summary()
            assert ours.ledger.of_kind("server" if topology == "star" else "estep")["bytes"] > 0
            if topology != "star":
                check_traffic(engine, ours, lossy=False)


DISTURBED = (
    ("star", {"compress": "qsgd:8bits"}),
    ("star", {"compress": "topk:0.2"}),
    ("path", {"compress": "natural:12bits", "sum": "tree"}),
    ("geometric", {"compress": "topk:0.3", "sum": "tree"}),
    ("cycle", {"compress": "natural:12bits"}),
    ("geometric", {"compress": "topk:0.3", "link_failure": 0.2}),
    ("geometric", {"link_failure": 0.2, "stragglers": 0.1}),
    ("complete", {"agent_dropout": 0.3}),
    ("complete", {"compress": "qsgd:8bits", "agent_dropout": 0.2, "link_failure": 0.1}),
)


def check_disturbed(engine, n_agents, ways=DISTURBED):
    """Compressed sums and those with faults go on from each other; what went are their bytes."""
    rng = np.random.default_rng(4)
    partition = contiguous(n_agents, n_agents)
    for topology, how in ways:
        graph = make_graph(topology, n_agents, seed=3)
        shared = topology == "star" or "sum" in how
        rounds = {} if shared else {"n_rounds": 12}
        for hops in (0,) if topology == "star" else (0, 1):
            network = connect(graph, partition, hops=hops, **rounds, **how)
            ranked = spread(network, engine)
            ours, theirs = (one.total.counted_on(Ledger(graph)) for one in (ranked, network))
            own, n_sums = ours.holders.own, 0
            for kind in ("setup", "estep", "estep", "estep", "check"):
                terms = rng.gamma(1.0, 5.0, size=(len(network.hubs), 9, 2))
                exact = rng.gamma(1.0, 5.0, size=(len(network.hubs), 1))
                numbers, others = (Scalars(one, one) for one in (exact[own], exact))
                broken = [fell_apart(total, kind, terms) for total in (ours, theirs)]
                assert broken[0] == broken[1]
                if broken[0]:
                    continue
                n_sums += 1
                mine = slice(None) if shared else own
                found = ours.reduce(terms[own], scalars=numbers)
                wanted = theirs.reduce(terms, scalars=others)[mine]
                np.testing.assert_allclose(found, wanted, rtol=1e-12)
                np.testing.assert_allclose(numbers.found, others.found[mine], rtol=1e-12)
                np.testing.assert_array_equal(
                    ours.silent, None if theirs.silent is None else theirs.silent[own]
                )
            assert ours.ledger.summary() == theirs.ledger.summary()
            if ours.state()["number"] == n_sums and len(network.hubs) > 1:
                check_traffic(engine, ours, lossy="compress" in how and len(how) > 1 and not shared)


def fell_apart(total, kind, terms):
    """Begin a sum; how the network fell apart, if it did."""
    try:
        total.begin(kind, *terms.shape[1:], terms.itemsize, 1)
    except PartitionedError as error:
        return str(error)
    return None


def check_traffic(engine, total, lossy):
    """What went from agent to agent is what is counted; what links lose is sent all the same."""
    counted = sum(total.ledger.of_kind(kind)["bytes"] for kind in ("setup", "estep", "server"))
    went = [sum(one.values()) for one in (total.traffic.delivered, total.traffic.on_wire)]
    delivered, on_wire = engine.allreduce(np.array(went, dtype=np.int64))
    assert delivered == counted
    if engine.size == 1:
        assert on_wire == 0
    elif lossy:
        assert on_wire > 0
    else:
        assert 0 < on_wire <= counted
        if engine.size >= total.ledger.n_nodes and total.ledger.of_kind("server")["bytes"] == 0:
            assert on_wire == counted


def check_roots(engine, n_agents):
    """What all processes must find alike."""
    star, cycle = (
        spread(connect(make_graph(kind, n_agents), contiguous(n_agents, n_agents), hops=0), engine)
        for kind in ("star", "cycle")
    )
    exact, total = star.total, cycle.total
    first = star.agents.mine(0)
    assert exact.roots.mine(0) == total.roots.mine(0) == first
    assert exact.roots.join(np.array([1.0 if first else 2.0])).tolist() == [1.0]
    own = cycle.agents.own
    assert total.roots.join(own.astype(float)).tolist() == list(range(n_agents))
    assert total.roots.bcast("first" if first else None) == "first"
    holders = total.holders
    items = [("of", int(agent)) for agent in own]
    assert holders.pool(items) == [("of", agent) for agent in range(n_agents)]
    assert holders.pool([]) == []
    last = engine.rank == engine.size - 1
    assert holders.any([last, False]).tolist() == [True, False]
    assert holders.allreduce(np.array([engine.rank]), "max").tolist() == [engine.size - 1]
    assert holders.allreduce(holders.padded(own + 1)).tolist() == list(range(1, n_agents + 1))


def check_values(engine, n_agents):
    """Values of many kinds, from agent to agent."""
    place = Placement.evenly(engine, n_agents)
    value = {
        "a": [1, None, (2.5, "x")],
        3: np.arange(6.0).reshape(2, 3),
        "s": np.array(["é", "bc"]),
    }
    own = {agent: [agent, "x" * agent] for agent in place.own.tolist()}
    wanted = {agent: [agent, "x" * agent] for agent in range(n_agents)}
    assert place.allgather(own) == wanted
    last = n_agents - 1
    assert place.gather(own, last) == (wanted if place.mine(last) else None)
    np.testing.assert_equal(place.bcast(value if place.mine(last) else None, last), value)
    for source, target in ((0, last), (last, 0), (1, 1)):
        got = place.send(value if place.mine(source) else None, source, target)
        np.testing.assert_equal(got, value if place.mine(target) else None)
    rows = np.arange(12.0).reshape(4, 3)
    given = rows if place.mine(0) else None
    got = place.send_rows(given, rows.shape, rows.dtype, 0, last)
    np.testing.assert_equal(got, rows if place.mine(last) else None)


def agents_on(engine, otherwise=5):
    """How many agents a suite has: one at each process of those that stand for agents."""
    return otherwise if engine.seats is None else len(engine.seats)


def pooled(found, workers, engine):
    """Return a clustering with all rows at the first process, where each kept what its own are."""
    if engine.open:
        return found
    parts = engine.gather({"labels": found.labels, "distances": found.distances})
    if parts is None:
        return found
    rows = {name: np.empty(workers.n_samples, parts[0][name].dtype) for name in parts[0]}
    for name, values in rows.items():
        values[workers.order] = np.concatenate([part[name] for part in parts])
    return replace(found, **rows)


CHECKS = (check_values, check_roots, check_vectors, check_terms, check_masked)
BRIEF, OTHERS = DISTURBED[1::2], DISTURBED[::2]
"""A way of each topology, and those that are left: codecs and faults are alike over any engine."""


def main(engine, brief=False, ways=DISTURBED):
    n_agents = agents_on(engine)
    for check in CHECKS:
        check(engine, n_agents)
    check_disturbed(engine, n_agents, BRIEF if brief else ways)
    return f"checked {len(CHECKS) + 1}"
