"""Where sums are by consensus, a command says in a line what they would send along a tree."""

import re
import warnings

import pytest

from vpem import connect, connect_workers, make_graph
from vpem.network.holdings import contiguous
from vpem.sums.connect import along_a_tree
from vpem.sums.forecast import one_sum

from .cli_support import ROOT, done
from .tables import each

WINE = ROOT / "data" / "wine.h5"
GROWTH = ROOT / "data" / "oxford_boys.csv"
ROWS = ("--workers", 6, "--max-iter", 1, "-k", 2)
SAID = re.compile(
    r"note: a sum sends ([\d,]+) messages by consensus; along a spanning tree \(--sum tree\) it "
    r"would send ([\d,]+), exact: ([\d,.]+) times fewer bytes"
)

COMMANDS = {
    "features": ("fit", WINE, "--agents", 6, "--max-iter", 1),
    "rows": ("fit", WINE, "--split", "rows", *ROWS),
    "clusters of rows": ("kmeans", WINE, *ROWS),
    "clusters by features": ("kmeans", WINE, "--split", "features", "--agents", 6, "-k", 2),
    "fedem": ("fedem", WINE, *ROWS),
    "completion": ("impute", WINE, "--workers", 6, "--rank", 1, "--max-iter", 1),
    "individuals": ("saem", GROWTH, "--devices", 6, "--max-iter", 1),
}


def lines(capsys, *words):
    """What is said of a tree."""
    err = done(capsys, *words).err
    return [found.groups() for found in map(SAID.fullmatch, err.splitlines()) if found]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_fit_by_consensus_says_what_a_tree_would_send(capsys, command):
    words = COMMANDS[command]
    hops = {"hops": 0} if "features" in command else {}
    graph, held = make_graph("cycle", 6), contiguous(13, 6)
    made = {}
    for way in ("consensus", "tree"):
        network = connect(graph, held, sum=way, **hops) if hops else connect_workers(graph, sum=way)
        made[way] = one_sum(network).messages
    ((here, there, times),) = lines(capsys, *words, "--topology", "cycle")
    assert (int(here), int(there)) == tuple(made.values())
    assert float(times) == round(int(here) / int(there), 1)
    for quiet in (("--topology", "cycle", "--quiet"), ("--topology", "cycle", "--sum", "tree")):
        assert lines(capsys, *words, *quiet) == []


@each(
    ("graph", "asked", "told"),
    [
        ("cycle", {}, True),
        ("star", {}, False),
        ("cycle", {"sum": "tree"}, False),
        ("cycle", {"link_failure": 0.1}, False),
    ],
)
def test_of_a_tree_that_cannot_be_nothing_is_said(graph, asked, told):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = connect(make_graph(graph, 5), contiguous(5, 5), **asked)
    assert (along_a_tree(network) is not None) == told
