"""What runs over the ranks of an engine finds what one process does, whatever the engine is."""

import ast
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import vpem
from vpem._core.threads import one_blas_thread
from vpem.engines.engine import Engine, StalledError
from vpem.engines.placement import Placement
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.graph import make_graph
from vpem.network.ledger import Ledger
from vpem.network.partition import from_lists
from vpem.sums.connect import connect, spread

from . import (
    over_bootstrap,
    over_discriminant,
    over_fits,
    over_missing,
    over_row_states,
    over_rows,
    over_selection,
    over_sums,
)
from .forks import ROOT
from .thread_engine import over_queues, together
from .tls_support import members_together

over_members = partial(together, engine=over_queues)
"""Members of a study whose links are queues."""
SERVER, SHARED = (4, (1, 2, 3)), (3, None)
"""Processes, and those that hold something: the first a server that holds nothing, or all, fewer
than agents."""


def at_the_end(told):
    """How many cases a suite says that it has tried, once it got to its end."""
    word, number = told.split()
    assert word in ("compared", "checked")
    return int(number)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@pytest.mark.parametrize(
    ("suite", "run", "n_ranks", "seats"),
    [
        (over_sums, over_members, *SERVER),
        (over_sums, members_together, *SHARED),
        (over_fits, over_members, *SERVER),
        (over_rows, over_members, *SHARED),
        (over_missing, over_members, *SERVER),
        (over_row_states, over_members, *SERVER),
        (over_selection, over_members, *SERVER),
        (over_bootstrap, over_members, *SERVER),
        (over_discriminant, over_members, *SERVER),
    ],
)
def test_processes_find_what_one_does(suite, run, n_ranks, seats):
    """Sums over queues and TLS; all else asks nothing of an engine but these."""
    with one_blas_thread():
        first, *others = run(n_ranks, suite.main, seats=seats)
    assert isinstance(first, str), first
    assert at_the_end(first) > 0
    assert all(isinstance(other, str) for other in others), others


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@pytest.mark.parametrize(
    ("topology", "how", "seats"),
    [
        ("star", {}, (1, 2, 3)),
        ("path", {"sum": "tree"}, (0, 1, 2)),
        ("path", {}, (0, 1, 2)),
        ("path", {"hops": 1}, (0, 1, 2)),
        ("star", {"compress": "qsgd:8bits"}, (1, 2, 3)),
        ("path", {"compress": "topk:0.3", "sum": "tree"}, (0, 1, 2)),
        ("path", {"compress": "natural:12bits", "hops": 1}, (0, 1, 2)),
        ("star", {"secure_sum": True}, (1, 2, 3)),
        ("path", {"secure_sum": True, "sum": "tree"}, (0, 1, 2)),
    ],
)
def test_links_carry_the_bytes_that_ledgers_count(topology, how, seats):
    X = over_fits.overlapping()
    joined = connect(make_graph(topology, 3), from_lists(over_fits.HELD[3], 8), **{"hops": 0} | how)

    def work(engine):
        ranked = spread(joined, engine)
        own = X[:, own_columns(ranked)] if len(ranked.agents.own) else None
        fit = fit_spread(own, ranked, n_components=3, max_iter=3, init="kmeans", seed=1)
        traffic = ranked.total.traffic
        return fit.communication["by_kind"], engine._post.sent, Counter(traffic.on_wire)

    found = over_members(max(seats) + 1, work, seats=seats)
    sent = Counter()
    for _, messages, _ in found:
        for _, topic, size in messages:
            sent[topic] += size
    counted, keys = found[0][0], Ledger(joined.graph)
    if joined.agents.masks is not None:
        joined.total.counted_on(keys).charge_keys()  # which go with their signatures
    for kind in ("setup", "estep", "server"):
        assert sent[kind] == counted[kind]["bytes"] - keys.of_kind(kind)["bytes"]
    assert sent["setup"] > 0
    handed = sum((on_wire for _, _, on_wire in found), Counter())
    assert handed["estep"] + handed["server"] == sent["estep"] + sent["server"]


def test_one_process():
    engine = Engine()
    for check in (over_sums.check_values, over_sums.check_roots):
        check(engine, 5)
    engine.send("x", 0)
    assert engine.recv(0) == "x"
    assert Placement.here(3).nodes.tolist() == [0, 0, 0, 0]


def test_who_does_not_answer_is_named():
    def work(engine):
        Placement.evenly(engine, 3, ("a", "b", "c"))
        return engine.rank or engine.allreduce(np.ones(1))

    stalled, one = together(2, work, timeout=0.2)
    assert isinstance(stalled, StalledError)
    assert "rank 1 (b to c) has not answered" in str(stalled)
    assert one == 1


@pytest.mark.parametrize("theirs", [{0: "mine"}, {1: "a", 7: "b"}, ["a"], {"1": "a"}])
def test_nobody_speaks_for_another(theirs):
    def work(engine):
        if engine.rank:
            return engine.allgather(theirs)
        return Placement.evenly(engine, 2).allgather({0: "own"})

    refused, _ = together(2, work)
    assert isinstance(refused, vpem.InputError)
    assert str(refused).startswith("rank 1 (agent 1) has sent something else than what it has")


def test_nothing_else_knows_mpi():
    found = set()
    for folder in (Path(vpem.__file__).parent, ROOT / "cli"):
        for path in folder.rglob("*.py"):
            text = path.read_text()
            if "mpi" not in text.lower():
                continue
            for node in ast.walk(ast.parse(text)):
                names = [getattr(node, name, None) for name in ("id", "attr", "module")]
                names += [alias.name for alias in getattr(node, "names", ())
                          if isinstance(alias, ast.alias)]  # fmt: skip
                known = [name for name in names if isinstance(name, str)]
                if any(name.startswith(("mpi4py", "MPI", "Mpi")) for name in known):
                    found.add(path.name)
    assert found == {"mpi.py"}


def test_an_engine_may_say_where_agents_live():
    class Seated(Engine):
        size, seats, rank = 3, (1, 2), 1

    place = Placement.evenly(Seated(), 2, ["lab", "clinic"])
    assert (place.ranks.tolist(), place.own.tolist()) == ([1, 2], [0])
    assert (place.engine.names, place.nodes.tolist()) == (["this process"], [1, 2, 0])
    with pytest.raises(vpem.InputError, match="2 parties have data, but there are 3 agents"):
        Placement.evenly(Seated(), 3)
