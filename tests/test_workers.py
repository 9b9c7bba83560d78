"""Which worker holds which rows."""

import json

import numpy as np
import pytest

from vpem import InputError, make_graph
from vpem.errors import FileError
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.networks import read_workers
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers, by_label, evenly, from_worker_of_row
from vpem.sums.connect import connect_workers
from vpem.sums.counted import add_vectors

from .tables import each


def test_runs_of_nearly_equal_length():
    workers = evenly(10, 3)
    assert [part.tolist() for part in workers.rows] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert workers.names == ("worker 0", "worker 1", "worker 2")
    assert workers.counts.tolist() == [4, 3, 3]
    assert workers.runs == [slice(0, 4), slice(4, 7), slice(7, 10)]
    assert workers.worker_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_sorted_by_label_workers_are_unlike():
    labels = np.array(["b", "a", "b", "a", "a", "b"])
    workers = by_label(labels, 2)
    assert [set(labels[part]) for part in workers.rows] == [{"a"}, {"b"}]
    assert all((np.diff(part) > 0).all() for part in workers.rows)


def test_from_names_and_numbers():
    named = from_worker_of_row(["x", "y", "x"])
    assert named.names == ("x", "y")
    assert named.rows[0].tolist() == [0, 2]
    numbered = from_worker_of_row([3, 0, 0, 1])
    assert numbered.counts.tolist() == [2, 1, 0, 1]
    assert from_worker_of_row([0, 0], ["a", "b"]).counts.tolist() == [2, 0]
    assert numbered.of_rows(np.array([0, 2])).counts.tolist() == [1, 0, 0, 1]


@each(
    ("given", "names", "message"),
    [
        ([0, -1], None, "row 1 has worker -1"),
        ([0, 5], None, "row 1 is given to worker 5, but there are 2 rows"),
        ([0, 2], ["a", "b"], "row 1 is given to worker 2, but there are 2 names"),
        ([0.5, 1], None, "must be numbers from 0, or names"),
        ([], None, "must be a list, one a row"),
        ([[0]], None, "must be a list, one a row"),
        ([0, 1], ["a", "a"], "two workers are called 'a'"),
    ],
)
def test_bad_workers_of_rows(given, names, message):
    with pytest.raises(InputError, match=message):
        from_worker_of_row(given, names)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([0, 1], [1]), "each row must be held by exactly one worker"),
        (([1, 0], [2]), "must be increasing"),
        (([0, 3],), "each row must be held by exactly one worker"),
        (([],), "the workers hold no rows"),
    ],
)
def test_bad_divisions(rows, message):
    parts = tuple(np.array(part, dtype=np.intp) for part in rows)
    with pytest.raises(InputError, match=message):
        Workers(parts, tuple(f"{n}" for n in range(len(parts))))


@each("number", [0, -1, 2.5, "3", 11])
def test_bad_numbers_of_workers(number):
    with pytest.raises(InputError, match=r"workers"):
        evenly(10, number)
    with pytest.raises(InputError, match=r"workers"):
        by_label(np.zeros(10), number)


def test_from_a_file(tmp_path):
    file = tmp_path / "w.json"
    file.write_text(json.dumps({"east": [2, 0], "west": [], "north": [1]}))
    workers = read_workers(file, 3)
    assert workers.names == ("east", "west", "north")
    assert [part.tolist() for part in workers.rows] == [[0, 2], [], [1]]
    with pytest.raises(FileError, match="does not exist"):
        read_workers(tmp_path / "none.json", 3)


@each(
    ("text", "message"),
    [
        ("[1]", "must hold"),
        ('{"a": 1}', "must hold"),
        ('{"a": [0, 1, 2, 3]}', "rows are numbered 0 to 2"),
        ('{"a": [true]}', "has row True"),
        ('{"a": [0, 1], "b": [1, 2]}', "row 1 is given twice, last to 'b'"),
        ('{"a": [0, 2]}', "gives row 1 to no worker"),
    ],
)
def test_bad_files(text, message, tmp_path):
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_workers(tmp_path / "w.json", 3)


def test_kept_in_a_dataset(tmp_path):
    workers = from_worker_of_row([1, 0, 1], ["a", "b", "idle"])
    write_dataset(tmp_path / "d.h5", Dataset(np.eye(3), ("x", "y", "z"), workers=workers))
    found = read_dataset(tmp_path / "d.h5").workers
    assert found.names == workers.names
    assert found.worker_of.tolist() == [1, 0, 1]
    with pytest.raises(InputError, match="the workers hold 3 rows, but X has 2"):
        Dataset(np.ones((2, 1)), ("x",), workers=workers)


@each(
    ("topology", "how"),
    [
        ("star", {}),
        ("cycle", {}),
        ("cycle", {"consensus": "rounds"}),
        ("path", {"n_rounds": 40}),
        ("complete", {"link_failure": 0.2}),
    ],
)
def test_vectors_are_added(topology, how):
    network = connect_workers(make_graph(topology, 5), **how)
    ledger = Ledger(network.graph)
    values = np.random.default_rng(0).normal(size=(5, 7))
    sums = add_vectors(network.total.counted_on(ledger), values)
    assert sums.shape == (network.total.n_roots, 7)
    np.testing.assert_allclose(sums, np.tile(values.sum(axis=0), (len(sums), 1)), atol=1e-4)
    if topology == "star":
        counted = ledger.summary()["by_kind"]["server"]
        assert (counted["messages"], counted["bytes"], counted["rounds"]) == (10, 10 * 7 * 8, 2)


def test_one_worker_sends_nothing():
    network = connect_workers(make_graph("star", 1))
    ledger = Ledger(network.graph)
    assert add_vectors(network.total.counted_on(ledger), np.ones((1, 3))).tolist() == [[1, 1, 1]]
    assert ledger.summary()["messages"] == 0


def test_workers_need_a_graph():
    with pytest.raises(InputError, match=r"connect_workers takes a vpem.Graph"):
        connect_workers(3)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a": [0, 1], "a": [2]}', '{"a": NaN}'])
def test_a_file_that_is_no_json(tmp_path, text):
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(FileError, match="is not a JSON file"):
        read_workers(tmp_path / "w.json", 3)
