"""The distributed sum: exact at a server, by rounds or by their matrix; K - 1 numbers a row."""

from functools import partial

import networkx as nx
import numpy as np
import pytest

from vpem import InputError, VpemWarning, connect, find_hubs, make_graph, mixing_matrix, mixing_rate
from vpem._core import masks
from vpem._core.threads import one_blas_thread
from vpem.errors import PartitionedError
from vpem.network.codecs import parse_codec
from vpem.network.ledger import Ledger
from vpem.network.masks import FixedPoint
from vpem.network.partition import contiguous
from vpem.steps.em import log_likelihood
from vpem.steps.summing import summed
from vpem.sums.compressed_server import CompressedServerSum
from vpem.sums.consensus import NATS, ConsensusSum, consensus_error_bound, rounds_needed
from vpem.sums.forecast import communication
from vpem.sums.gossip import GossipSum
from vpem.sums.server import ServerSum
from vpem.sums.sum import Scalars
from vpem.terms.features import FeatureTerms
from vpem.terms.units import Scaling

from .missing_support import with_holes
from .tables import each, over
from .twins import codecs as numpy_twins

WEIGHTS = ("metropolis", "laplacian", "max-degree")
GRAPHS = [("cycle", 9), ("path", 8), ("geometric", 40), ("small-world", 18), ("grid", 12)]


def made(topology, n, hops, weights="metropolis", seed=0):
    graph = make_graph(topology, n, seed=seed)
    return graph, mixing_matrix(graph, weights), find_hubs(graph, hops, seed=seed)


def dense_metropolis(graph):
    """Mixing weights by their definition."""
    net = nx.from_edgelist(graph.edges.tolist())
    W = np.zeros((graph.n_agents, graph.n_agents))
    for i, j in net.edges:
        W[i, j] = W[j, i] = 1 / (1 + max(net.degree[i], net.degree[j]))
    return W + np.diag(1 - W.sum(axis=1))


def sum_by_hand(W, hubs, n_rounds, terms):
    """What each root holds after the rounds, agent by agent."""
    n = len(W)
    state = np.zeros((n, *terms.shape[1:]))
    for b, hub in enumerate(hubs):
        for agent in hub.agents:
            state[agent] = n / len(hub.agents) * terms[b]
    for _ in range(n_rounds):
        state = np.array([sum(W[i, j] * state[j] for j in np.flatnonzero(W[i])) for i in range(n)])
    return state[[hub.root for hub in hubs]]


@over(
    network=GRAPHS,
    hops=[0, 1, 2],
    path=["operator", "rounds"],
    n_rounds=[1, 2, 13],
    dtype=[np.float64, np.float32],
    n_threads=[1, 2],
)
def test_rounds_agent_by_agent(network, hops, path, n_rounds, dtype, n_threads):
    topology, n = network
    graph, mixing, hubs = made(topology, n, hops)
    terms = np.random.default_rng(1).normal(size=(len(hubs), 7, 2)).astype(dtype)
    before = terms.copy()
    total = ConsensusSum(mixing, hubs, n_rounds, path=path, n_threads=n_threads)
    assert total.path == path
    assert total.n_roots == len(hubs)
    found = total.reduce(terms)
    assert found.dtype == dtype
    wanted = sum_by_hand(dense_metropolis(graph), hubs, n_rounds, terms.astype(np.float64))
    tolerance = 1e-10 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(terms, before)


def test_an_operator_of_ones_is_shared_by_all_roots():
    _, mixing, hubs = made("complete", 6, 0)
    terms = np.random.default_rng(3).normal(size=(6, 5, 2))
    shared = ConsensusSum(mixing, hubs, 1, path="operator")
    assert shared.n_roots == 1
    np.testing.assert_array_equal(shared.reduce(terms), ServerSum(6).reduce(terms))
    apart = ConsensusSum(mixing, hubs, 1, path="rounds")
    assert apart.n_roots == 6
    np.testing.assert_allclose(
        apart.reduce(terms), np.repeat(shared.reduce(terms), 6, axis=0), rtol=1e-12, atol=1e-12
    )


# ---- how many rounds -----------------------------------------------------------------------------


def test_a_network_too_large_for_its_operator_is_judged_by_the_bound(monkeypatch):
    _, mixing, hubs = made("cycle", 12, 1)
    rate = mixing_rate(mixing)
    close = rounds_needed(mixing, hubs, rate, 1e-3)
    monkeypatch.setattr("vpem.sums.consensus.MOST_OPERATOR_VALUES", 1)
    bound = rounds_needed(mixing, hubs, rate, 1e-3)
    assert close <= bound <= 3 * close
    assert consensus_error_bound(rate, hubs, 12, bound) <= 1e-3
    total = ConsensusSum(mixing, hubs, 10)
    assert (total.operator, total.error, total.path) == (None, None, "rounds")
    graph, partition = make_graph("cycle", 9), contiguous(9, 9)
    with pytest.warns(VpemWarning, match="too few") as told:
        network = connect(graph, partition, hops=0, n_rounds=3, acceleration="none")
    bound = consensus_error_bound(network.mixing_rate, network.hubs, 9, 3)
    assert network.consensus_error == pytest.approx(bound)
    enough = int(str(told[0].message).split("; ")[-1].split()[0])
    enough_of_them = connect(graph, partition, hops=0, n_rounds=enough, acceleration="none")
    assert enough_of_them.consensus_error <= 1e-3


def test_too_few_rounds_are_warned_about_with_a_number_that_does():
    graph, held = make_graph("tree", 14, seed=1), contiguous(14, 14)
    with pytest.warns(VpemWarning, match=r"5 rounds are too few .* (\d+) rounds would do") as told:
        few = connect(graph, held, hops=1, n_rounds=5, seed=1)
    assert few.consensus_error > 1e-3
    enough = int(str(told[0].message).split("; ")[-1].split()[0])
    network = connect(graph, held, hops=1, n_rounds=enough, seed=1)
    assert network.consensus_error <= 1e-3


# ---- set-up --------------------------------------------------------------------------------------


def test_auto_takes_the_cheaper_way():
    _, mixing, hubs = made("path", 30, 0)
    assert ConsensusSum(mixing, hubs, 100).path == "operator"
    assert ConsensusSum(mixing, hubs, 1).path == "rounds"


def joining(topology, **options):
    return lambda: connect(make_graph(topology, 5), contiguous(5, 5), **options)


def running(n_rounds=3, path="auto"):
    _, mixing, hubs = made("cycle", 4, 0)
    return lambda: ConsensusSum(mixing, hubs, n_rounds, path=path)


NO_INTEGER = "rounds must be an integer of at least 0"
REFUSED = [
    *((running(n_rounds), NO_INTEGER) for n_rounds in (-1, 1.5, True)),
    (running(path="round"), "did you mean 'rounds'"),
    (joining("cycle", hops=-1), "hops"),
    (joining("cycle", hops=1.5), "hops"),
    (joining("cycle", n_rounds=0), "rounds"),
    (joining("cycle", weights="metro"), "did you mean 'metropolis'"),
    (joining("cycle", consensus="fast"), "consensus must be one of auto"),
    (joining("cycle", n_threads=0), "threads"),
    (lambda: connect(make_graph("cycle", 5), contiguous(6, 6)),
     "5 agents but the features are held by 6"),
    (joining("star", sum="consensus"), "agents that reach only a server"),
    (joining("cycle", sum="server"), "sum='server' needs a server that every agent reaches"),
    (joining("cycle", sum="tree", agent_dropout=0.1), "in a tree one path joins two agents"),
    (joining("cycle", secure_sum=True), "secure_sum is for sums in which masks are added up"),
    (joining("star", secure_sum=True, hops=1), "hops above 0 shows their features to a root"),
    (joining("star", secure_sum=True, compress="float32"), "and cannot be added"),
]  # fmt: skip


@each(("call", "said"), REFUSED)
def test_what_a_sum_cannot_be_had_with_is_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


quiet = pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")

M, D = 200, 6

LINEAR = {
    "server": ("star", {}),
    "tree": ("path", {"sum": "tree"}),
    "operator": ("cycle", {"n_rounds": 6}),
    "operator of ones": ("complete", {}),
    "plain rounds": ("cycle", {"n_rounds": 6, "consensus": "rounds", "acceleration": "none"}),
    "hubs": ("path", {"n_rounds": 8, "consensus": "rounds", "hops": 1}),
    "links that fail": ("cycle", {"link_failure": 0.1, "stragglers": 0.1}),
    "silent agents": ("complete", {"agent_dropout": 0.3, "n_rounds": 9}),
    "rounds with float64": ("cycle", {"compress": "float64"}),
    "server with float64": ("star", {"compress": "float64"}),
    "tree with float64": ("path", {"sum": "tree", "compress": "float64"}),
}
"""Sums that change terms by nothing but a linear map."""

CODECS = {
    "server": ("star", {"compress": "natural:12bits"}),
    "server, much left out": ("star", {"compress": "topk:0.2"}),
    "rounds": ("cycle", {"compress": "qsgd:8bits"}),
    "tree": ("path", {"sum": "tree", "compress": "natural:12bits"}),
    "hubs": ("path", {"compress": "natural:12bits", "hops": 1}),
    "links that fail": ("geometric", {"compress": "qsgd:8bits", "link_failure": 0.1}),
}


@pytest.fixture(autouse=True)
def blas():
    with one_blas_thread():
        yield


def joined_agents(topology, how):
    graph = make_graph(topology, D, seed=1)
    return connect(graph, contiguous(D, D), **{"hops": 0, **how})


def begun(total, begin):
    """Begin a sum, as often as the network falls apart."""
    for _ in range(50):
        try:
            return begin(total)
        except PartitionedError:
            continue
    raise AssertionError("the network falls apart in every draw")


def terms_of(network, *, dtype, weighted, missing):
    rng = np.random.default_rng(3)
    X = 5 + rng.standard_normal((M, D)) + 2 * rng.integers(2, size=(M, 1))
    X = with_holes(X, 1, 0.2) if missing else X
    weights = rng.gamma(1.0, size=M) if weighted else None
    return FeatureTerms(
        X, network.blocks, "full", scaling=Scaling.none(D), row_weights=weights, dtype=dtype,
        reg_covar=1e-3, missing=missing,
    )  # fmt: skip


def by_differences(terms, total, mixture):
    """One E-step: responsibilities and log-likelihood as each root finds them."""
    begun(total, lambda one: one.begin("estep", M, mixture.n_components - 1, 8, 1))
    kept = np.zeros((total.n_roots, M, mixture.n_components), dtype=f"f{terms.itemsize}")
    found = log_likelihood(terms, total, mixture, terms.prepare(mixture), None, kept)
    return kept, found


def by_whole_terms(terms, total, mixture):
    """The same of a sum that has all K terms."""
    k = mixture.n_components
    begun(total, lambda one: one.begin("estep", M, k, 8))
    kept, found = np.zeros((total.n_roots, M, k)), np.zeros(total.n_roots)
    local = partial(terms.local, terms.prepare(mixture))
    for rows, sums in summed(terms, total, k, local):
        kept[:, rows], more = terms.responsibilities(mixture, sums, rows)
        found += more
    return kept, found


@quiet
@over(
    sums=LINEAR,
    k=[1, 2, 5],
    dtype=[np.float64, np.float32],
    weighted=[False, True],
    missing=[False, True],
    chunk=[1, 1 << 24],
)
def test_differences_find_what_whole_terms_do(sums, k, dtype, weighted, missing, chunk):
    network = joined_agents(*LINEAR[sums])
    terms = terms_of(network, dtype=dtype, weighted=weighted, missing=missing)
    mixture = terms.start(np.nan_to_num(terms.at_rows(np.arange(k))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vpem.terms.rows.CHUNK_BYTES", chunk)
        ours, theirs = (network.total.counted_on(Ledger(network.graph)) for _ in range(2))
        found, wanted = by_differences(terms, ours, mixture), by_whole_terms(terms, theirs, mixture)
    heard = slice(None) if ours.silent is None else ~ours.silent
    tolerance = 1e-11 if dtype == np.float64 else 2e-4
    if network.compress is not None:  # rounds end as soon as agents agree
        tolerance = max(tolerance, NATS)
    np.testing.assert_allclose(found[0][heard], wanted[0][heard], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found[1][heard], wanted[1][heard], rtol=tolerance)


@quiet
@over(sums=CODECS, n_values=[0, 3])
def test_a_codec_leaves_the_number_exact(sums, n_values):
    """Whatever a codec draws: of a server to the last bit, by rounds as far as these agree."""
    topology, how = CODECS[sums]
    network = joined_agents(topology, how)
    found = []
    for seed in (0, 1):
        rng = np.random.default_rng(2)
        total = network.total.counted_on(Ledger(network.graph))
        if network.faults is None:  # which are drawn from it too
            total.seed = seed
        for _ in range(3):
            terms = rng.gamma(1.0, size=(len(network.hubs), 50, n_values))
            scalars = Scalars.empty(len(terms), total.n_roots)
            scalars.own[:] = rng.gamma(1.0, 1e6, size=scalars.own.shape)
            begun(total, lambda one: one.begin("estep", 50, n_values, 8, 1))
            found.append((total.reduce(terms, scalars=scalars), scalars.found))
            exact = scalars.own.sum()
            tolerance = 1e-14 if isinstance(total, CompressedServerSum) else 1e-3
            np.testing.assert_allclose(scalars.found, exact, rtol=tolerance)
    first, second = found[:3], found[3:]
    for (values, numbers), (others, same) in zip(first, second, strict=True):
        np.testing.assert_array_equal(numbers, same)
        if n_values and network.faults is None and isinstance(total, GossipSum):
            assert not np.array_equal(values, others)


@quiet
@each("sums", [*LINEAR.values(), *CODECS.values()])
def test_a_message_has_k_minus_1_numbers_a_row_and_one_more(sums):
    """Of one component it is the one number; what is foretold is what is counted."""
    network = joined_agents(*sums)
    for k, itemsize in ((1, 8), (2, 4), (3, 8)):
        total = network.total.counted_on(Ledger(network.graph))
        if isinstance(total, CompressedServerSum):
            total.least = 1
        total.begin("check", M, k - 1, itemsize, 1)
        if total.whole:
            local = np.ones((len(network.hubs), M, k - 1))
            total.reduce(local, scalars=Scalars.empty(len(local), total.n_roots))
        size = M * (k - 1) * itemsize
        if network.compress is not None:
            size = parse_codec(network.compress).message_size(M * (k - 1)) if k > 1 else 0
        sent = {name: total.ledger.of_kind(name) for name in ("estep", "server")}
        messages, n_bytes = (
            sum(kind[what] for kind in sent.values()) for what in ("messages", "bytes")
        )
        waiting = network.faults is not None and network.compress is not None
        if not waiting:  # else messages over links that are down go with the next ones
            assert n_bytes == messages * (size + 8) > 0
        if network.faults is None and network.compress is None:
            told = communication(network, M, k - 1, itemsize, n_scalars=1)["last"]
            assert told["bytes"] == total.ledger.bytes


# ---- numbers as integers modulo 2^64 ------------------------------------------------------------

TILE = 16384
BOTH = masks, numpy_twins
ONE = np.array([2.0**32])


def test_first_value_that_does_not_fit_is_found():
    n = 5 * TILE
    for bad in (np.nan, np.inf, -np.inf, 2.0**29, -np.nextafter(2.0**28, np.inf), 1e308):
        for places in ([0], [n - 1], [3 * TILE, TILE + 7, 4 * TILE]):
            values = np.full(n, 2.0**28)
            values[places] = bad
            for module in BOTH:
                ring = np.zeros(n, dtype=np.uint64)
                assert module.add_scaled(values, ONE, 2.0**60, ring, 2) == min(places)


def test_halves_round_to_even():
    halves = np.array([k * 2.0**-33 for k in (-5, -3, -1, 1, 3, 5)])
    ring = np.zeros(6, dtype=np.uint64)
    assert masks.add_scaled(halves, ONE, 2.0**60, ring, 1) == -1
    assert ring.view(np.int64).tolist() == [-2, -2, 0, 0, 2, 2]


@over(n_parties=[1, 2, 3, 7, 10, 1000, 2**20], bits=[30, 32, 0, 60])
def test_sum_of_all_parties_at_the_limit_does_not_overflow(n_parties, bits):
    fixed = FixedPoint(n_parties, bits)
    assert fixed.limit == int(fixed.limit)
    assert n_parties * int(fixed.limit) <= 2**62 < n_parties * (int(fixed.limit) + 2**10)
    for sign in (1, -1):
        ring = np.zeros(1, dtype=np.uint64)
        assert fixed.add(np.array([sign * fixed.largest]), None, ring) == -1
        ring *= np.uint64(n_parties)
        assert fixed.values(ring, None)[0] == sign * n_parties * fixed.largest
        beyond = np.array([sign * np.nextafter(fixed.largest, np.inf)])
        assert fixed.add(beyond, None, ring) == 0
        ring[:] = 2**63 - (sign < 0)
        with pytest.raises(InputError, match="masks do not cancel"):
            fixed.values(ring, None)


def test_sum_of_rounded_values_is_within_its_bound():
    rng, fixed = np.random.default_rng(0), FixedPoint(9)
    exponents = rng.integers(-900, 900, 4000)
    values = rng.normal(size=(9, 4000)) * np.ldexp(1.0, exponents)
    ring = np.zeros(4000, dtype=np.uint64)
    for own in values:
        assert fixed.add(own, exponents, ring) == -1
    error = np.abs(fixed.values(ring, exponents) - values.sum(axis=0))
    assert (error <= 9 * np.ldexp(1.0, exponents - 33) * 1.0001).all()
    assert (error >= 2 * np.ldexp(1.0, exponents - 33)).any()  # of several, not of one


def test_exponents_that_no_number_has_are_refused():
    with pytest.raises(InputError, match="finite numbers"):
        FixedPoint(3).add(np.ones(1), [1100], np.zeros(1, dtype=np.uint64))
