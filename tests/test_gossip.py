"""Sums by rounds of compressed messages, over links and agents that fail: mean, error, bytes."""

import dataclasses
import warnings
from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vpem import (
    InputError,
    NumericalError,
    connect,
    find_hubs,
    fit_vpem,
    make_graph,
    mixing_matrix,
    mixing_rate,
)
from vpem.errors import PartitionedError, VpemWarning
from vpem.network.codecs import parse_codec
from vpem.network.faults import DrawnFaults, Faults, MixingLinks, failing_rounds
from vpem.network.graph import Graph, from_edges
from vpem.network.hubs import Hub, diameter, find_routes
from vpem.network.ledger import Ledger
from vpem.network.mixing import chebyshev_steps
from vpem.network.partition import contiguous
from vpem.sums.consensus import ConsensusSum, RoundSteps, stable_steps
from vpem.sums.gossip import GossipSum
from vpem.sums.partial import send_changes
from vpem.sums.quantizer import contraction

from .tables import each, over

CODECS = (
    "qsgd:8bits", "qsgd:6bits", "qsgd:4bits", "blockp:16", "topk:0.1", "randk:0.2", "float16",
    "float32",
)  # fmt: skip
SHAPE, FEW = (40, 2), (7, 2)
SEEDS = range(2)


def rounds_on(graph, hops, n_rounds, codec=None, faults=None, seed=0, **options):
    """Hubs of a graph, and their sum by rounds: compressed, over links that fail, or both."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hubs = find_hubs(graph, hops)
    mixing = mixing_matrix(graph)
    return hubs, GossipSum(
        graph,
        mixing,
        hubs,
        n_rounds,
        rate=mixing_rate(mixing),
        codec=None if codec is None else parse_codec(codec),
        faults=faults,
        seed=seed,
        routes=find_routes(graph, hubs),
        diameter=diameter(graph),
        **options,
    )


def gossip(topology, n, hops, n_rounds, codec, seed=0, **options):
    graph = make_graph(topology, n, seed=seed)
    return graph, *rounds_on(graph, hops, n_rounds, codec, seed=seed, **options)


def failing(graph, hops, n_rounds, faults, seed=0, **options):
    return rounds_on(graph, hops, n_rounds, faults=faults, seed=seed, **options)


def draw_terms(n_hubs, seed=0, shape=SHAPE):
    return np.random.default_rng(seed).gamma(1.0, 5.0, size=(n_hubs, *shape))


def summed(total, terms, kind="estep"):
    total.begin(kind, *terms.shape[1:], terms.itemsize)
    return total.reduce(terms)


def error_of(found, terms):
    return np.abs(found - terms.sum(axis=0)).max() / np.abs(terms.sum(axis=0)).max()


@over(name=CODECS, hops=[0, 1])
def test_the_mean_is_kept_in_every_round(name, hops, monkeypatch):
    _, hubs, total = gossip("geometric", 12, hops, 15, name)
    terms = draw_terms(len(hubs))
    seen = []

    def watched(quantizer, values, *how):
        seen.append(values.mean(axis=0))
        send_changes(quantizer, values, *how)

    with monkeypatch.context() as patch:
        patch.setattr("vpem.sums.gossip.send_changes", watched)
        for seed in range(3):
            terms = terms + draw_terms(len(hubs), seed + 1)
            seen.clear()
            summed(total, terms)
            seen.append(total._memories[0].states.mean(axis=0))
            wanted = terms.sum(axis=0).T.ravel()
            assert len(seen) == 16
            np.testing.assert_allclose(seen, np.broadcast_to(wanted, (16, 80)), rtol=1e-10)


@each(("name", "topology", "n"), [
    *zip(CODECS[::3], ("geometric", "complete", "path"), (12, 6, 5), strict=True),
    *zip(CODECS[1::3], ("complete", "path", "geometric"), (6, 5, 12), strict=True),
    *zip(CODECS[2::3], ("path", "complete"), (5, 6), strict=True),
])  # fmt: skip
def test_the_error_goes_to_zero(name, topology, n):
    _, hubs, total = gossip(topology, n, 0, 100, name)
    rate, (_, omega) = total.rate, contraction(total.codec, 80)
    total.n_rounds = max(40, stable_steps(rate, omega).needed(rate, omega, 1e-3))
    terms = draw_terms(len(hubs))
    errors = [error_of(summed(total, terms), terms) for _ in range(5)]
    assert errors[0] < 0.3
    assert errors[-1] < 1e-6


@each(("name", "topology"), [
    *zip(CODECS, ("cycle", "complete", "tree", "small-world") * 2, strict=True),
])  # fmt: skip
def test_the_pace_is_stable(name, topology):
    """Sums that go on from each other never drift away, whatever the graph."""
    _, hubs, total = gossip(topology, 16, 0, 40, name)
    terms, left = draw_terms(len(hubs)), []
    for _ in range(6):
        summed(total, terms)
        left.append(np.linalg.norm(total._memories[0].states - terms.sum(axis=0).T.ravel()))
    assert left[-1] < max(left[0], 1e-9 * np.linalg.norm(total._memories[0].inputs))


def test_no_noise_is_the_paper_or_chebyshev():
    _, hubs, total = gossip("geometric", 14, 0, 9, "float64")
    terms, mixing = draw_terms(len(hubs)), mixing_matrix(total.graph)
    fast, plain = (
        ConsensusSum(mixing, hubs, 9, rate=rate, path="rounds").reduce(terms)
        for rate in (mixing_rate(mixing), None)
    )
    np.testing.assert_allclose(summed(total, terms), fast, rtol=1e-10)
    for codec, options in (("float64", {"step": 1.0}), (None, {}), (None, {"faults": Faults()})):
        _, _, total = gossip("geometric", 14, 0, 9, codec, **options)
        np.testing.assert_allclose(summed(total, terms), plain, rtol=1e-10 if codec else 1e-13)


def test_one_round_by_its_definition():
    """``q = Q(x - xhat) / (1 + omega); xhat += q; x += step sum_j W_ij (xhat_j - xhat_i)``."""
    _, _, total = gossip("cycle", 5, 0, 1, "topk:0.25", step=0.3)
    terms = draw_terms(5, shape=(4, 2))
    mixing = mixing_matrix(total.graph).toarray()
    states = 5 * terms.transpose(0, 2, 1).reshape(5, 8)
    copies = np.zeros_like(states)
    inputs = states
    for change in (0.0, 1.0, -2.0):
        terms = terms * (1 + change)
        new = 5 * terms.transpose(0, 2, 1).reshape(5, 8)
        states, inputs = states + new - inputs, new
        gap = states - copies
        kept = np.abs(gap) >= np.sort(np.abs(gap), axis=1)[:, -2:-1]
        decoded = np.where(kept, gap, 0).astype(np.float32)
        copies = copies + decoded
        states = states + 0.3 * (mixing @ copies - copies)
        found = summed(total, terms)
        wanted = states.reshape(5, 2, 4).transpose(0, 2, 1)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_only_changes_travel():
    """A sum that goes on is nearer than one anew by as much as its terms changed less."""
    _, hubs, total = gossip("cycle", 12, 0, 25, "qsgd:8bits")
    terms = draw_terms(len(hubs))
    for _ in range(4):
        summed(total, terms)
    other = terms + 1e-3 * draw_terms(len(hubs), 1)
    warm = error_of(summed(total, other), other)
    cold = error_of(summed(gossip("cycle", 12, 0, 25, "qsgd:8bits")[2], other), other)
    assert warm < cold / 100
    # The sum after the last iteration goes on too, and ends it.
    assert error_of(summed(total, other, "check"), other) < warm
    assert total._memories[0] is None
    assert error_of(summed(total, other), other) == pytest.approx(cold, rel=2)


@each("dtype", [np.float64, np.float32])
def test_other_shapes_begin_anew_in_the_precision_of_the_terms(dtype):
    _, hubs, total = gossip("cycle", 12, 0, 60, "qsgd:8bits")
    for shape in ((10, 2), (10, 3), (4, 5)):
        terms = draw_terms(len(hubs), shape=shape).astype(dtype)
        for _ in range(3):
            found = summed(total, terms)
        assert found.dtype == dtype
        assert found.flags.c_contiguous
        assert error_of(found, terms) < (1e-6 if dtype == np.float64 else 1e-5)


@each("name", CODECS)
def test_bytes_are_those_of_the_messages(name):
    graph, hubs, total = gossip("geometric", 14, 1, 5, name)
    total = total.counted_on(Ledger(graph))
    for number, kind in enumerate(("setup", "estep", "check")):
        summed(total, draw_terms(len(hubs), number), kind)
        size = len(total.codec.encode(np.ones(80), np.random.default_rng(0)))
        messages = 2 * graph.n_edges * 5 * max(number, 1)
        wanted = {"messages": messages, "bytes": messages * size, "rounds": 5 * max(number, 1)}
        if kind == "setup" and name == "float16":  # see below
            wanted["bytes"] *= 2
        assert total.ledger.of_kind("setup" if kind == "setup" else "estep") == wanted
    total.agree("stopping")
    assert total.ledger.of_kind("stopping")["rounds"] == diameter(graph)


def test_what_cannot_be_sent_and_steps_that_are_none_are_refused():
    _, hubs, total = gossip("cycle", 8, 0, 3, "float16")
    with pytest.raises(NumericalError, match="too large"):
        summed(total, draw_terms(len(hubs)) * 1e6)
    for n_rounds, how, said in (*((3, {"step": bad}, "step") for bad in (0, -0.5, 1.5, np.nan)),
                                (0, {}, "rounds")):  # fmt: skip
        with pytest.raises(InputError, match=said):
            gossip("cycle", 5, 0, n_rounds, "float32", **how)


# ---- with faults -----------------------------------------------------------------------------


def settled(total, terms, n_sums):
    """Take sums of the same terms; those that fall apart are tried again."""
    for _ in range(n_sums):
        for _ in range(100):
            try:
                total.begin("estep", *terms.shape[1:], 8)
                break
            except PartitionedError:
                continue
        found = total.reduce(terms)
    silent = np.zeros(len(terms), bool) if total.silent is None else total.silent
    return found[~silent], terms[~silent].sum(axis=0)


@each(("name", "seed"), zip(["qsgd:8bits", "qsgd:4bits", "float16"], range(3), strict=True))
def test_links_that_fail_under_compression(name, seed):
    _, hubs, total = gossip("geometric", 12, 1, 100, name, seed, faults=Faults(0.2, 0.0, 0.1))
    terms = draw_terms(len(hubs), seed)
    found, wanted = settled(total, terms, 12)
    np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=1e-6)
    # The memory outlives sums whose links differ.
    np.testing.assert_allclose(
        total._memories[0].states.mean(axis=0), terms.sum(axis=0).T.ravel(), rtol=1e-11
    )


@each("seed", SEEDS)
def test_silent_agents_under_compression(seed):
    """With other agents awake in each sum, each is that of the hubs that took part."""
    faults = Faults(agent_dropout=0.1)
    _, hubs, total = gossip("complete", 12, 0, 60, "qsgd:8bits", seed, faults=faults)
    terms = draw_terms(len(hubs), seed)
    left_out = 0
    for _ in range(5):
        found, wanted = settled(total, terms, 1)
        left_out += 12 - len(found)
        np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=1e-6)
    assert left_out > 0


@each("seed", SEEDS)
def test_missed_messages_are_sent_when_the_link_is_up_again(seed):
    graph, hubs, total = gossip(
        "geometric", 12, 0, 30, "qsgd:8bits", seed, faults=Faults(link_failure=0.4)
    )
    total = total.counted_on(Ledger(graph))
    terms = draw_terms(len(hubs), seed)
    total.begin("check", *SHAPE, 8)
    total.reduce(terms)
    ups = total._drawn.up
    size = total.codec.message_size(80)
    found = total.ledger.of_kind("estep")
    assert found["messages"] == 2 * ups.sum()
    # Of each link all messages arrive up to the last round in which it is up.
    last = np.where(ups.any(axis=0), 30 - ups[::-1].argmax(axis=0), 0)
    assert found["bytes"] == 2 * last.sum() * size
    assert found["rounds"] == 30


# ---- how fast ----------------------------------------------------------------------------------


@over(name=CODECS, seed=range(2))
def test_what_is_scaled_contracts(name, seed):
    codec = parse_codec(name)
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(400, 80))
    believed, omega = contraction(codec, 80)
    decoded, _ = codec.transmit(values, rng.integers(1 << 63, size=400, dtype=np.uint64))
    left = ((values - believed * decoded) ** 2).sum(axis=1) / (values**2).sum(axis=1)
    assert left.mean() <= omega / (1 + omega) * 1.05 + 1e-15


def test_a_codec_that_may_lose_all_is_refused():
    class Nothing:
        name = "nothing"
        is_unbiased = False

        def variance(self, n):
            return 1.0

    with pytest.raises(InputError, match="nothing is biased"):
        contraction(Nothing(), 10)


def test_the_pace_by_noise_and_gap():
    exact = stable_steps(0.9, 0.0)
    assert exact.step == 1
    assert exact.rate == pytest.approx(0.9)
    assert 0 < stable_steps(0.99, 0.1).rate < 0.99
    assert stable_steps(0.99, 9.0).rate == 0
    steps = [stable_steps(0.9, omega).step for omega in (5.0, 10.0, 100.0)]
    assert steps == sorted(steps, reverse=True)
    assert stable_steps(0.9, 0.0, fixed=False) == RoundSteps(1.0, 0.0)


@over(rate=[0.3, 0.9, 0.99, 0.9999], omega=[0.0, 0.01, 0.3, 2.0, 20.0])
def test_rounds_reach_the_fall(rate, omega):
    n_rounds = stable_steps(rate, omega).needed(rate, omega)
    stable = stable_steps(rate, omega)
    left = np.sqrt(omega / (1 + omega))
    assert max(stable.fall(rate, n_rounds), left**n_rounds) <= 1e-4
    assert n_rounds == 1 or max(stable.fall(rate, n_rounds - 1), left ** (n_rounds - 1)) > 1e-4
    if stable.rate and n_rounds < 100:
        before, here = 1.0, rate
        for step in chebyshev_steps(stable.rate, n_rounds)[1:]:
            before, here = here, step * (rate * here - before) + before
        assert stable.fall(rate, n_rounds) == pytest.approx(here, rel=1e-6)


# ---- fits --------------------------------------------------------------------------------------


@each("topology", ["star", "cycle"])
def test_distances_beyond_float16_travel_as_float32(topology):
    graph = make_graph(topology, 6)
    network = connect(graph, contiguous(6, 6), hops=0, compress="float16", n_rounds="auto")
    total = network.total.counted_on(Ledger(graph))
    distances = np.full((6, 40, 2), 1e6)
    assert error_of(summed(total, distances, "setup"), distances) < 1e-3
    sent = total.ledger.of_kind("setup")
    assert sent["bytes"] >= sent["messages"] * 80 * 4
    assert topology == "star" or sent["bytes"] == sent["messages"] * 80 * 4
    assert sent["messages"] >= 12


@cache
def of_digits(**how):
    """A fit of some digits, over a network joined so."""
    digits = load_digits().data
    X = digits[:, digits.std(axis=0) > 2][:, :30]
    X = ((X - X.mean(axis=0)) / X.std(axis=0))[::6]
    graph, held = make_graph("geometric", 15, seed=2, mean_degree=6), contiguous(30, 15)
    options = {"n_components": 4, "init": [5, 85, 150, 215], "max_iter": 20, "tol": 0.0}
    return fit_vpem(X, connect(graph, held, hops=1, **how), **options)


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@pytest.mark.parametrize(
    ("name", "fewer"), [("natural:12bits", 6), ("qsgd:8bits", 6), ("float16", 3)]
)
def test_compressed_sums_of_digits_go_where_exact_ones_do(name, fewer):
    """Log-densities of 1e8 in early iterations, where 29 rounds ended up to 3.6 nats a row away."""
    exact, packed = of_digits(sum="tree"), of_digits(compress=name)
    plain = of_digits(n_rounds=100, acceleration="none")
    assert packed.n_iter == exact.n_iter == plain.n_iter
    assert packed.log_likelihood == pytest.approx(exact.log_likelihood, abs=1e-4)
    # No likelihood on the way is one that exact sums do not have.
    assert np.max(packed.history) < np.max(exact.history) + 1e-2
    assert fewer * packed.communication["bytes"] <= plain.communication["bytes"], (
        plain.communication["bytes"] / packed.communication["bytes"]
    )


@over(n=[1, 2, 6], name=["float32", "qsgd:8bits", "natural:12bits", "float64"])
def test_a_sum_of_nothing_after_one_of_something(n, name):
    total = connect(make_graph("cycle", n), contiguous(n, n), compress=name).total
    for value, exact in ((4.0, 4.0 * n), (0.0, 0.0), (0.0, 0.0), (1e-300, 0.0), (3.0, 3.0 * n)):
        total.begin("setup", 1, 1, 8)
        found = total.reduce(np.full((n, 1, 1), value))
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=1e-13)


def test_agents_that_hardly_agree_send_float64(overlapping):
    """A codec that would send more than float64 is refused, or left aside where it must."""
    graph, held = make_graph("cycle", 8), contiguous(8, 8)
    with pytest.raises(InputError, match=r"topk:0\.1 needs \d+ rounds .* times as much"):
        connect(graph, held, hops=0, compress="topk:0.1")
    X = overlapping(1, 200, 8)
    options = {"n_components": 2, "init": [3, 40], "max_iter": 5, "tol": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coarse = connect(graph, held, hops=0, compress="topk:0.1", n_rounds=5)
        packed = fit_vpem(X, coarse, **options)
        exact = fit_vpem(X, connect(graph, held, hops=0, sum="tree"), **options)
    assert packed.log_likelihood == pytest.approx(exact.log_likelihood, abs=1e-6)


# ---- links and agents that fail, messages as they are --------------------------------------------


@over(
    name=["link_failure", "agent_dropout", "stragglers"], value=[-0.1, 1.0, 1.5, np.nan, "a", None]
)
def test_probabilities_are_checked(name, value):
    with pytest.raises(InputError, match=f"^{name} must be"):
        Faults(**{name: value})


@each("seed", SEEDS)
def test_links_fail_as_often_as_was_asked_and_silent_agents_have_none(seed):
    graph, rng = make_graph("geometric", 60, seed=seed), np.random.default_rng(seed)
    drawn = Faults(link_failure=0.3, stragglers=0.2).draw(graph, 1000, rng, dropout=True)
    assert drawn.awake.all()
    # Neither the link nor one of its ends.
    assert drawn.up.mean() == pytest.approx(0.7 * 0.8**2, abs=0.01)
    together = (drawn.up[:, 0] & drawn.up[:, -1]).mean()
    assert together == pytest.approx((0.7 * 0.8**2) ** 2, abs=0.06)
    faults = Faults(agent_dropout=0.3)
    drawn = faults.draw(graph, 5, rng, dropout=True)
    assert 5 < (~drawn.awake).sum() < 32
    both = drawn.awake[graph.edges].all(axis=1)
    np.testing.assert_array_equal(drawn.up, np.broadcast_to(both, drawn.up.shape))
    assert faults.draw(graph, 5, rng, dropout=False).awake.all()


@each("seed", SEEDS)
def test_weights_are_metropolis_of_what_is_up(seed):
    from scipy.sparse import csr_array

    graph = make_graph("small-world", 20, seed=seed)
    up = np.random.default_rng(seed).random(graph.n_edges) < 0.6
    links = MixingLinks(graph)
    found = csr_array((links.metropolis(up), links.indices, links.indptr), shape=(20, 20))
    left = Graph(20, graph.edges[up], "custom")
    wanted = mixing_matrix(left).toarray()
    np.testing.assert_allclose(found.toarray(), wanted, atol=1e-15)
    np.testing.assert_array_equal(found.toarray(), found.toarray().T)


def begun(total, kind, n_samples=7, n_components=2):
    """Begin sums until one does not fall apart."""
    for _ in range(200):
        try:
            total.begin(kind, n_samples, n_components, 8)
            return total
        except PartitionedError:
            continue
    raise AssertionError("the network falls apart in every draw")


@over(seed=SEEDS, hops=[0, 1, 2])
def test_many_rounds_give_the_sum_of_those_who_take_part(seed, hops):
    graph = make_graph("geometric", 20, seed=seed, radius=0.55)
    hubs, total = failing(graph, hops, 400, Faults(0.2, 0.15, 0.1), seed)
    terms = draw_terms(len(hubs), seed, FEW)
    left_out = 0
    for _ in range(4):
        begun(total, "estep")
        silent = np.zeros(len(hubs), bool) if total.silent is None else total.silent
        awake = total._drawn.awake
        np.testing.assert_array_equal(silent, [not awake[hub.root] for hub in hubs])
        found = total.reduce(terms)
        wanted = np.broadcast_to(terms[~silent].sum(axis=0), found.shape)
        np.testing.assert_allclose(found[~silent], wanted[~silent], rtol=1e-6)
        left_out += silent.sum()
    assert left_out > 0 or len(hubs) < 4


@each("seed", SEEDS)
def test_rounds_by_their_definition(seed):
    """Every agent that is awake takes the weighted mean of those it hears in the round."""
    graph = make_graph("geometric", 12, seed=seed, radius=0.5)
    _, total = failing(graph, 0, 6, Faults(0.3, 0.1, 0.1), seed)
    terms = draw_terms(12, seed, FEW)
    found = begun(total, "estep").reduce(terms)
    awake = total._drawn.awake
    states = awake.sum() * terms * awake[:, None, None]
    for up in total._drawn.up:
        mixing = mixing_matrix(Graph(12, graph.edges[up], "custom")).toarray()
        states = np.tensordot(mixing, states, axes=1)
    np.testing.assert_allclose(found, states, rtol=1e-12)


@each("kind", ["setup", "check"])
def test_all_take_part_in_sums_of_the_start_and_the_end(kind):
    graph = make_graph("geometric", 20, seed=0)
    hubs, total = failing(graph, 0, 1500, Faults(agent_dropout=0.5, stragglers=0.1))
    terms = draw_terms(len(hubs), 0, FEW)
    total.begin(kind, 7, 2, 8)
    assert total.silent is None
    wanted = np.broadcast_to(terms.sum(axis=0), terms.shape)
    np.testing.assert_allclose(total.reduce(terms), wanted, rtol=1e-9)


def test_the_term_of_a_hub_goes_where_its_root_reaches(monkeypatch):
    """A path 0-1-2-3-4 with root 0: where 2 is silent, 3 and 4 do not hear of the hub's term."""
    graph = make_graph("path", 5)
    hubs = [Hub(0, (0, 1, 2, 3, 4))]
    mixing, routes = mixing_matrix(graph), find_routes(graph, hubs)
    total = GossipSum(
        graph, mixing, hubs, 3, rate=mixing_rate(mixing), faults=Faults(0.1), routes=routes
    )
    awake = np.array([True, True, False, True, True])
    drawn = DrawnFaults(awake, np.ones((3, 4), bool))
    monkeypatch.setattr(Faults, "draw", lambda *given, **more: drawn)
    total.begin("estep", 1, 1, 8)
    np.testing.assert_array_equal(total._informed, [True, True, False, False, False])
    starts = total._spread([np.ones((1, 1))], total._informed)[0][:, 0]
    np.testing.assert_allclose(starts, [2, 2, 0, 0, 0])
    assert starts[awake].mean() == 1


@each("seed", SEEDS)
def test_nothing_depends_on_chunks_or_threads(seed):
    graph = make_graph("geometric", 20, seed=seed, radius=0.4)
    terms = draw_terms(20, seed, (64, 2))
    found = []
    for n_threads, chunks in ((1, 1), (2, 4)):
        _, total = failing(graph, 0, 12, Faults(0.2, 0.1, 0.1), seed, n_threads=n_threads)
        begun(total, "estep")
        parts = [total.reduce(part) for part in np.split(terms, chunks, axis=1)]
        found.append(np.concatenate(parts, axis=1))
    np.testing.assert_array_equal(*found)
    _, other = failing(graph, 0, 12, Faults(0.2, 0.1, 0.1), seed + 1)
    assert not np.array_equal(begun(other, "estep").reduce(terms), found[0])
    begun(total, "estep")
    assert not np.array_equal(total.reduce(terms), found[1])


def test_parts_of_a_network_are_named():
    graph = from_edges([("a", "b"), ("b", "c"), ("c", "d")], names=["a", "b", "c", "d"])
    up = np.array([[True, False, False], [False, False, True]])
    with pytest.raises(PartitionedError, match=r"2 parts .* 2 rounds: \('a', 'b'\), \('c', 'd'\)"):
        DrawnFaults(np.ones(4, bool), up).check_whole(graph)
    DrawnFaults(
        np.ones(4, bool), np.array([[True, False, True], [False, True, False]])
    ).check_whole(graph)
    DrawnFaults(np.array([False, True, True, False]), up | True).check_whole(graph)
    with pytest.raises(PartitionedError, match=r"\('a'\), \('c', 'd'\)"):
        DrawnFaults(np.array([True, False, True, True]), up[1:]).check_whole(graph)


@each(("codec", "size"), [(None, 7 * 2 * 8), ("float16", 7 * 2 * 2)])
def test_a_sum_whose_network_falls_apart_is_refused_and_counted(codec, size):
    graph = make_graph("path", 8)
    _, total = rounds_on(graph, 0, 2, codec, Faults(link_failure=0.9))
    counted = total.counted_on(Ledger(graph))
    with pytest.raises(PartitionedError, match="parts"):
        counted.begin("estep", *FEW, 8)
    messages, found = 2 * int(counted._drawn.up.sum()), counted.ledger.of_kind("estep")
    assert (counted._number, found["messages"], found["bytes"]) == (1, messages, messages * size)
    for kind in ("setup", "check"):
        fresh = total.counted_on(Ledger(graph))
        with pytest.raises(PartitionedError, match="parts"):
            fresh.begin(kind, *FEW, 8)
        assert fresh._number == 20
    _, silent = rounds_on(make_graph("complete", 3), 0, 2, codec, Faults(agent_dropout=0.9))
    messages = set()
    for _ in range(30):
        try:
            silent.begin("estep", *FEW, 8)
        except PartitionedError as error:
            messages.add(str(error))
    assert "the roots of all hubs are silent during a sum" in messages


@each("seed", SEEDS)
def test_messages_over_links_that_are_up_are_counted(seed):
    graph = make_graph("geometric", 20, seed=seed, radius=0.4)
    hubs, total = failing(graph, 1, 6, Faults(0.3, 0.05, 0.1), seed)
    total = begun(total.counted_on(Ledger(graph)), "setup")
    ledger, size = total.ledger, 7 * 2 * 8
    drawn = total._drawn
    told = 20 - len(hubs)
    rounds = total._number * (6 + total.routes.hops)
    found = ledger.of_kind("setup")
    if total._number == 1:
        wanted = told + 2 * int(drawn.up.sum())
        assert found == {"messages": wanted, "bytes": wanted * size, "rounds": rounds}
    flooding = ledger.of_kind("flooding")
    wanted = 2 * graph.n_edges * diameter(graph) * total._number
    assert flooding["messages"] == wanted
    assert flooding["bytes"] == 3 * wanted
    links, _ = ledger.of_links()
    assert links.sum() == ledger.messages


def test_one_hub_has_automatic_rounds_and_needs_no_links():
    with pytest.warns(VpemWarning, match="hops=1"):
        network = connect(make_graph("complete", 4), contiguous(4, 4), hops=1, link_failure=0.9)
    assert network.n_rounds == 1
    for _ in range(9):
        network.total.begin("estep", *FEW, 8)
        np.testing.assert_array_equal(network.total.reduce(np.ones((1, *FEW))), 1.0)


@each(
    ("topology", "n", "failure"),
    [("complete", 5, {"link_failure": 0.3}), ("cycle", 8, {"stragglers": 0.3})],
)
def test_automatic_rounds_are_enough_though_links_fail(topology, n, failure):
    """A complete graph mixes in one round where nothing fails, but not where something does."""
    graph = make_graph(topology, n)
    network = connect(graph, contiguous(n, n), hops=0, **failure)
    total = network.total.counted_on(Ledger(graph))
    values = np.random.default_rng(0).normal(size=(n, 3, 2))
    for _ in range(10):
        total.begin("estep", 3, 2, 8)
        np.testing.assert_allclose(
            total.reduce(values), np.tile(values.sum(axis=0), (n, 1, 1)), atol=1e-5
        )


def test_rounds_where_nothing_is_up_and_of_one_agent():
    assert failing_rounds(make_graph("complete", 1), Faults(link_failure=0.3), 1e-6) == 1
    assert failing_rounds(make_graph("cycle", 6), Faults(link_failure=1 - 1e-9), 1e-6) > 10**8


def test_silent_agents_take_no_part_in_agreements():
    """A path of 4 whose last agent is silent: 2 links left, 3 rounds of flooding."""
    graph = make_graph("path", 4)
    network = connect(graph, contiguous(4, 4), hops=0, agent_dropout=0.35, n_rounds=40)
    for seed in range(200):
        total = dataclasses.replace(network).total.counted_on(Ledger(graph))
        total.seed = seed
        try:
            total.begin("estep", 5, 2, 8)
        except PartitionedError:
            continue
        awake = total._drawn.awake
        total.agree("stopping")
        links = sum(awake[a] and awake[b] for a, b in graph.edges)
        assert total.ledger.of_kind("stopping")["messages"] == 2 * 3 * links
        if not awake.all():
            return
    raise AssertionError("nobody was silent")
