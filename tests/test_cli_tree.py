"""Where sums are by consensus, a command says in a line what they would send along a tree."""

import re
import warnings

import numpy as np
import pytest

from vpem import connect, connect_workers, make_graph
from vpem.network.partition import contiguous
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
        ("cycle", {"link_failure": 0.1}, True),
        ("cycle", {"agent_dropout": 0.1}, False),
    ],
)
def test_of_a_tree_that_cannot_be_nothing_is_said(graph, asked, told):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = connect(make_graph(graph, 5), contiguous(5, 5), **asked)
    assert (along_a_tree(network) is not None) == told


def numbers(capsys, command, *words):
    """What a fit found, and what it sent."""
    found = done(capsys, *COMMANDS[command], "--quiet", "--json", *words).json
    said = [found.get(name) for name in ("history", "log_likelihood", "objective", "inertia")]
    if isinstance(said[1], dict):
        said[1] = said[1]["value"]
    history = said[0] if isinstance(said[0], list) else []
    flat = np.concatenate([np.ravel(np.array(one, dtype=float)) for one in (history, *said[1:])])
    return flat[np.isfinite(flat)], found["communication"]


def same(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert len(ours) > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_the_numbers_of_a_tree_are_a_servers_whatever_fails(capsys, command):
    tree = ("--topology", "small-world", "--sum", "tree")
    server, _ = numbers(capsys, command, "--topology", "star")
    found, sent = numbers(capsys, command, *tree)
    same(found, server)
    failing, waited = numbers(capsys, command, *tree, "--link-failure", 0.3, "--stragglers", 0.1)
    np.testing.assert_array_equal(failing, found)
    assert waited["rounds"] > sent["rounds"]
    for what in ("messages", "bytes", "by_link"):
        assert waited[what] == sent[what]


@pytest.mark.parametrize("command", ["fedem", "completion", "individuals"])
def test_what_a_codec_has_written_goes_to_the_root_as_it_is(capsys, command):
    codec = ("--compress", "natural:12bits")
    server, _ = numbers(capsys, command, "--topology", "star", *codec)
    found, _ = numbers(capsys, command, "--topology", "path", "--sum", "tree", *codec)
    same(found, server)
