"""Partitions of features: dealt out, by lists, by agents, and from files."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.networks import read_partition
from vpem.network.partition import Partition, contiguous, from_agent_of_feature, from_lists

from .tables import each


def columns(partition):
    return [part.tolist() for part in partition.features]


def test_contiguous_is_nearly_equal():
    partition = contiguous(10, 4)
    assert columns(partition) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert partition.names == ("agent 0", "agent 1", "agent 2", "agent 3")
    assert (partition.n_agents, partition.n_features) == (4, 10)
    assert partition.agent_of.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert contiguous(2, 2, ["left", "right"]).names == ("left", "right")
    assert columns(from_lists(np.array([[3, 1], [0, 2]]), 4)) == [[1, 3], [0, 2]]


@given(st.data())
def test_the_ways_to_make_a_partition_agree(data):
    n_agents = data.draw(st.integers(1, 6))
    rest = data.draw(st.lists(st.integers(0, n_agents - 1), max_size=20))
    agent_of = data.draw(st.permutations([*range(n_agents), *rest]))
    made = from_agent_of_feature(agent_of)
    assert made.agent_of.tolist() == list(agent_of)
    shuffled = [data.draw(st.permutations(part.tolist())) for part in made.features]
    assert columns(from_lists(shuffled, len(agent_of))) == columns(made)


def test_a_named_agent_without_features_is_a_relay():
    with pytest.warns(VpemWarning, match="'hub' holds no features"):
        partition = from_agent_of_feature([0, 2, 2], ["a", "hub", "b"])
    assert columns(partition) == [[0], [], [1, 2]]
    with pytest.warns(VpemWarning, match="'agent 1', 'agent 2' hold no features"):
        partition = from_lists([[0], [], []], 1)
    assert partition.agent_of.tolist() == [0]


def of_agents(agent_of, names=None):
    return lambda: from_agent_of_feature(agent_of, names)


def of_lists(lists):
    return lambda: from_lists(lists, 4)


def by_hand(columns):
    return lambda: Partition((np.array(columns, dtype=int),), ("a",))


@each(
    ("make", "sentence"),
    [
        *[(lambda n=n: contiguous(4, n), "agents") for n in (0, -1, 5, 2.0, True, None)],
        (lambda: contiguous(4, 2, ["a"]), "2 agents but 1 agent names"),
        (lambda: contiguous(4, 2, ["a", "a"]), "two agents are called 'a'"),
        (lambda: contiguous(4, 2, ["a", ""]), "non-empty"),
        (lambda: contiguous(4, 2, ["a", 3]), "strings"),
        (of_agents([0, 2]), "agent 1 holds no feature although agent 2 does"),
        (of_agents([1, 1]), "agent 0 holds no feature"),
        (of_agents([0, -1]), "feature 1 has agent -1"),
        (of_agents([0, 3], ["a", "b"]), "feature 1 is given to agent 3, but only 2"),
        (of_agents([0.0, 1.0]), "integers"),
        (of_agents([True, False]), "integers"),
        (of_agents([]), "integers"),
        (of_agents([[0, 1]]), r"shape \(1, 2\)"),
        (of_lists([[0, 1], [3]]), "misses feature 2;"),
        (of_lists([[0, 1, 1], [2, 3]]), "repeats feature 1;"),
        (of_lists([[0, 1], [1]]), "misses feature 2, 3 and repeats feature 1;"),
        (of_lists([[0, 1], [2, 3, 4]]),
         "names feature 4, but the 4 features are numbered 0 to 3"),
        (of_lists([[0, 1], [2, -1]]), "names feature -1"),
        (of_lists([[0, 1], [2, 3.0]]), "agent 1: features are given by integers, got 3.0"),
        (of_lists([[0, True], [2, 3]]), "agent 0: features are given by integers, got True"),
        (of_lists([[0, 10**30], [2, 3]]), "there is no feature 10000"),
        (of_lists([[0, 1], 2]), "agent 1 must have a list"),
        (of_lists([[0, 1], "23"]), "agent 1 must have a list"),
        (of_lists([]), "at least one agent"),
        (of_lists(7), "list of lists"),
        (of_lists("0123"), "list of lists"),
        (by_hand([1, 0]), "increasing"),
        (by_hand([0, 2]), "exactly one"),
        (by_hand([]), "at least one feature"),
    ],
)  # fmt: skip
def test_what_is_no_partition_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_read_by_name_and_number(tmp_path):
    path = tmp_path / "partition.json"
    path.write_text(json.dumps({"lab": ["pulse", 0], "ward": [1]}))
    partition = read_partition(path, 3, ["age", "height", "pulse"])
    assert partition.names == ("lab", "ward")
    assert columns(partition) == [[0, 2], [1]]
    path.write_text("[[2, 0], [1]]")
    assert columns(read_partition(path, 3)) == [[0, 2], [1]]


@each(
    ("text", "names", "kind", "sentence"),
    [
        *[(text, ["age", "height", "pulse"], kind, sentence) for text, kind, sentence in (
            ("{", FileError, "not a JSON file"),
            ("\u20ac", FileError, "not a JSON file"),
            ("[" * 100_000, FileError, "not a JSON file"),
            ("[[" + "9" * 10_000 + "]]", FileError, "not a JSON file"),
            ("[[NaN]]", FileError, "NaN is not finite"),
            ('"text"', InputError, "list of lists"),
            ("[0, 1, 2]", InputError, "list of lists"),
            ('{"a": 0}', InputError, "list of lists"),
            ("[]", InputError, "at least one agent"),
            ('{"a": [0], "a": [1, 2]}', FileError, "'a' appears more than once"),
            ('[["puls"], [0, 1]]', InputError, r"no feature 'puls' \(did you mean 'pulse'\?\)"),
            ("[[0, 1]]", InputError, "misses feature 2"),
            ("[[0, 1.5, 2]]", InputError, "integers, got 1.5"),
            ("[[0, null, 2]]", InputError, "integers, got None"),
            ('{"": [0, 1, 2]}', InputError, "non-empty"),
        )],
        ('[["a", 1], [0]]', ["a", "a", "b"], InputError, "several features are called 'a'"),
        ('[["a", 1], [0]]', None, InputError, "have no names"),
        (None, None, FileError, "does not exist"),
    ],
)  # fmt: skip
def test_read_refuses(tmp_path, text, names, kind, sentence):
    path = tmp_path / "partition.json"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(kind, match=sentence) as caught:
        read_partition(path, 3, names)
    assert str(path) in str(caught.value)
