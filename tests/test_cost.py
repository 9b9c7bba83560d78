"""The model of an iteration's time: its laws on networks where each part can be written down."""

import pytest

from vpem import InputError, connect_workers, fit_em, make_graph
from vpem.fits.plan import HANDSHAKE, _network, _work, iteration_time, plan
from vpem.fits.settings import PlanSettings
from vpem.network.messages import LinkSpeed, parse_link
from vpem.network.partition import contiguous, evenly

from .cli_support import overlapping
from .tables import each, over

AGREEMENTS = 2
RATES = (1e9, 1e8)


def times(topology, n, link, *, rows=400, split="features", widths=None, k=2, **how):
    graph = make_graph(topology, n)
    held = contiguous(n, n) if widths is None else widths
    found = plan(graph, held, n_samples=rows, n_components=k, link=link, split=split, **how)
    settings = PlanSettings.resolve(None, n_components=k, **how)
    partition = held if widths is None else contiguous(sum(widths), 1)
    network = _network(graph, partition, settings, split)
    work = _work(network, partition, settings, rows, split)
    return found, iteration_time(network, found["communication"],
                                 parse_link(link), work, RATES)  # fmt: skip


@each(
    ("text", "link"),
    [
        ("100Mbit,30ms", LinkSpeed(1e8, 0.03)),
        (" 10 Gbit/s , 0.1 ms ", LinkSpeed(1e10, 1e-4)),
        ("9.6kbit,2s", LinkSpeed(9600, 2)),
        ("1gbit,0us", LinkSpeed(1e9, 0)),
    ],
)
def test_links_are_read(text, link):
    assert parse_link(text) == LinkSpeed(pytest.approx(link.bandwidth), pytest.approx(link.latency))


@each(
    "text",
    ["", "100Mbit", "30ms,100Mbit", "-1Mbit,3ms", "0kbit,1ms", "1Mbit,1h", "1e3Mbit,1ms"],
)
def test_other_words_are_refused(text):
    with pytest.raises(InputError, match="link is bandwidth and one-way latency"):
        parse_link(text)


@each("n", [2, 7, 1000])
def test_a_server_takes_all_terms_and_sends_their_sum(n):
    """2 N messages of M (K - 1) numbers pass its link; a round up, one down, two agreements."""
    _, found = times("star", n, "8Mbit,5ms")
    assert found["bytes"] == pytest.approx(2 * n * (400 + 1) * 8, rel=1e-3)
    assert found["transfer"] == pytest.approx(found["bytes"] / 1e6)
    assert found["latency"] == pytest.approx(0.005 * (2 + AGREEMENTS))
    assert found["additions"] == n * 400
    parts = found["computing"] + found["latency"] + found["transfer"]
    assert found["iteration"] == pytest.approx(parts)
    assert found["computing"] == found["flops"] / 1e9 + found["additions"] / 1e8


def test_rounds_among_neighbours_take_both_directions_at_once():
    """Each agent of a cycle sends two messages a round, and hears two meanwhile."""
    plan, found = times("cycle", 10, "8Mbit,5ms", n_rounds=20)
    assert found["bytes"] == pytest.approx(20 * 2 * 3208, rel=1e-3)
    assert found["latencies"] == 20 + AGREEMENTS * plan["diameter"]


def test_large_messages_are_announced_and_many_rows_go_in_chunks():
    _, small = times("cycle", 4, "8Mbit,5ms", rows=1000, n_rounds=20)
    plan, large = times("cycle", 4, "8Mbit,5ms", rows=10_000, n_rounds=20)
    others = AGREEMENTS * plan["diameter"]
    assert (large["latencies"] - others) == (1 + HANDSHAKE) * (small["latencies"] - others)
    assert small["chunks"] == large["chunks"] == 1
    _, several = times("cycle", 4, "8Mbit,5ms", rows=1_000_000, n_rounds=20)
    assert several["chunks"] > 10
    longest = max(several["computing"], several["latency"] + several["transfer"])
    parts = several["computing"] + several["latency"] + several["transfer"]
    assert longest < several["iteration"] < parts


def test_workers_send_statistics_whatever_rows_they_have():
    """K (1 + d + d (d + 1) / 2) numbers and a log-likelihood; each computes with its own rows."""
    few, more = (
        times("star", 4, "8Mbit,5ms", rows=rows, split="rows", widths=[6, 0, 0, 0], k=3)[1]
        for rows in (400, 4000)
    )
    assert few["transfer"] == more["transfer"]
    assert few["bytes"] == pytest.approx(2 * 4 * 8 * (3 * 28 + 1), rel=1e-2)
    assert more["flops"] == 10 * few["flops"]


@each("how", [{"topology": "star"}, {"topology": "cycle"}, {"topology": "cycle", "sum": "tree"}])
def test_a_pass_in_batches_computes_and_sends_what_an_iteration_does(how):
    """It waits for the rounds of every batch, and for an agreement after each."""
    topology, more = how["topology"], {k: v for k, v in how.items() if k != "topology"}
    _, whole = times(topology, 6, "8Mbit,5ms", rows=1000, **more)
    _, parts = times(topology, 6, "8Mbit,5ms", rows=1000, batch_size=100, **more)
    for part in ("flops", "additions", "transfer"):
        assert parts[part] == pytest.approx(whole[part], rel=1e-2)
    plan, _ = times(topology, 6, "8Mbit,5ms", rows=1000, **more)
    agreed = plan["communication"]["iteration"]["by_kind"]["stopping"]["rounds"]
    rounds = plan["communication"]["iteration"]["rounds"] - agreed
    assert parts["latencies"] == 10 * (rounds + agreed) + agreed
    assert whole["latencies"] == rounds + 2 * agreed


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@over(how=[{}, {"sum": "tree"}, {"sum": "consensus"}], size=[None, 7])
def test_what_workers_send_is_foretold_to_the_byte(how, size):
    """The start at given rows, every iteration or pass, and the last E-step.

    A first pass is an E-step over all rows, of one sum.
    """
    X, _ = overlapping(120, 4, 2, seed=1)
    graph = make_graph("cycle" if how else "star", 5)
    network = connect_workers(graph, **how)
    given = {"n_components": 2, "init": [0, 30], "tol": 1e-12, "batch_size": size}
    fit = fit_em(X, evenly(120, 5), network, max_iter=3, **given)
    sent = plan(graph, [4, 0, 0, 0, 0], n_samples=120, split="rows", batch_size=size, **how)
    sent = sent["communication"]
    pass_ = sent["iteration"]
    for what in ("messages", "bytes", "rounds"):
        first = pass_[what]
        if size is not None:
            first = sent["batch"][what] + pass_["by_kind"]["stopping"][what]
        foretold = sent["setup"][what] + first + 2 * pass_[what] + sent["last"][what]
        assert fit.communication[what] == foretold, what
