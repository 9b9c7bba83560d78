"""Schemas of what is read: every kind of field, what it refuses, and in which words."""

from dataclasses import dataclass

import numpy as np
import pytest

from vpem.errors import FileError, Setting
from vpem.network.schema import (
    COUNT,
    FLAG,
    NOTHING,
    NUMBER,
    PLAIN,
    TEXT,
    Array,
    As,
    Choice,
    Integer,
    ListOf,
    Maybe,
    Number,
    Place,
    Stateful,
    TableOf,
    check,
    or_nan,
    record,
)

from .tables import each

PLACE = Place("the file x.h5", "run", ("start again with ", Setting("force", True)))
RECORD = {"history": ListOf(NUMBER, "L", least=1), "bytes": ListOf(COUNT, "L")}
ODD = [None, True, -1, 0.5, float("inf"), 1 << 60, "text", b"", [], (), {}, np.ones(2), np.bool_(1)]

GOOD = [
    (COUNT, [0, 7, 1 << 53]),
    (Integer(2, 3), [2, 3]),
    (FLAG, [True, False]),
    (NUMBER, [-1.5, 0.0, 1e308]),
    (Number(0, 1), [0.0, 1.0]),
    (TEXT, ["", "Größe"]),
    (Choice(("a", "b")), ["b"]),
    (NOTHING, [None]),
    (PLAIN, [None, True, 1, float("nan"), "x", [1, (2, {"a": None})]]),
    (Maybe(COUNT), [None, 3]),
    (ListOf(COUNT), [[], [1, 2]]),
    (ListOf(COUNT, 2), [[1, 2]]),
    (TableOf(COUNT), [{}, {"a": 1, "b": 2}]),
    (TableOf(some={"a": COUNT}), [{"a": 1, "b": "anything"}]),
    ({"a": COUNT, "b": (COUNT, TEXT), "c": [FLAG]}, [{"a": 1, "b": (2, "x"), "c": [True]}]),
    (RECORD, [{"history": [1.0, 2.0], "bytes": [3, 4]}]),
    (Array("f8", (2, 3)), [np.ones((2, 3)), np.ones((3, 2)).T]),
    (Array("f8", ((1, 4), 2)), [np.ones((1, 2)), np.ones((4, 2))]),
    (Array("i", ("K",), 0, 4), [np.array([4, 0], dtype="i4"), np.array([], dtype="i8")]),
    (Array("f", ("K", "K")), [np.eye(3, dtype="f4")]),
    (Array("f8", (2,), nan=True), [np.array([np.nan, 1.0])]),
    (Array("f8", (2, 2), least=0, sums=1), [np.full((2, 2), 0.5)]),
    (Array("b1", (1,)), [np.array([True])]),
]


@each(("schema", "values"), GOOD)
def test_what_fits_is_taken(schema, values):
    for value in values:
        check(schema, value, PLACE)


@each(("schema", "values"), GOOD)
def test_whatever_else_is_refused(schema, values):
    refused = 0
    for odd in ODD:
        try:
            check(schema, odd, PLACE)
        except FileError as error:
            refused += 1
            assert str(error).startswith("the file x.h5: run")  # noqa: PT017
            assert str(error).endswith("; start again with force=True")  # noqa: PT017
    assert refused >= 8 if schema is not PLAIN else refused == 3


@each(
    ("schema", "value", "told"),
    [
        (COUNT, True, "run must be an integer of at least 0, got true"),
        (COUNT, -1, "run must be an integer of at least 0, got -1"),
        (COUNT, 1 << 200, "run must be an integer of at least 0, got an integer of more than 128"),
        (Integer(1, 3), 4, "run must be an integer from 1 to 3, got 4"),
        (NUMBER, 1, "run must be a finite real number, got 1"),
        (Number(0), -0.5, "run must be a finite real number of at least 0, got -0.5"),
        (FLAG, 1, "run must be false or true, got 1"),
        (Choice(("a", "b")), "c", "run must be 'a' or 'b', got 'c'"),
        (TEXT, None, "run must be text, got nothing"),
        (PLAIN, [[b"x"]], "run.0.0 must be a plain value, got 1 bytes"),
        (ListOf(COUNT, 2), [1], "run must be a list of 2, got a list of 1"),
        (ListOf(COUNT), (1,), "run must be a list, got a tuple of 1"),
        (ListOf(COUNT), [1, "x"], "run.1 must be an integer of at least 0, got 'x'"),
        ((COUNT, COUNT), (1, 2, 3), "run must be a tuple of 2, got a tuple of 3"),
        (TableOf(COUNT), {"a": None}, "run.a must be an integer of at least 0, got nothing"),
        (TableOf(some={"a": COUNT}), {"b": 1}, "run.a is missing"),
        ({"a": {"b": COUNT}}, {"a": {}}, "run.a.b is missing"),
        ({"a": COUNT}, {"a": 1, "z": 2}, "run.z is not known here"),
        ({"a": COUNT}, [], "run must be a table of a, got a list of 0"),
        (RECORD, {"history": [1.0], "bytes": []}, "run.bytes must be a list of 1, got a list of 0"),
        (RECORD, {"history": [], "bytes": []}, "run.history must be a list of at least 1, got a"),
        (
            Array("i8", (3,), 0),
            np.ones((2, 2)),
            "run must be 3 integers of at least 0, got 2 x 2 real numbers",
        ),
        (Array("i8", (3,), 0), np.ones(3), "run must be 3 integers of at least 0 of type i8, got"),
        (Array("i8", (3,), 0), np.array([1, 2, -3]), "of at least 0, got -3 among them"),
        (Array("f8", ((1, 2), "K")), np.ones((3, 4)), "run must be 1 or 2 x any number of finite"),
        (Array("f8", (1,)), np.array([np.inf]), "run must be 1 finite real numbers, got inf among"),
        (Array("f8", (2,), nan=True), np.array([np.nan, -np.inf]), "got -inf among them"),
        (Array("f8", (1, 2), sums=1), np.ones((1, 2)), "that sum to 1, got a sum of 2"),
        (Array("f8", (1, 2), sums=1), np.full((1, 2), 1e308), "that sum to 1, got a sum of inf"),
        (Array("f8", ()), np.ones(()), None),
    ],
)
def test_what_is_refused_is_told_in_one_sentence(schema, value, told):
    if told is None:
        check(schema, value, PLACE)
        return
    with pytest.raises(FileError) as caught:
        check(schema, value, PLACE)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_are_bound_where_they_are_met_first():
    schema = {"n": Integer(size="M"), "x": Array("f8", ("M", "d")), "y": Array("f8", ("d",))}
    good = {"n": 2, "x": np.ones((2, 3)), "y": np.ones(3)}
    check(schema, good, PLACE)
    check(schema, good, PLACE, {"M": 2, "d": 3})
    with pytest.raises(FileError, match=r"run\.n must be 4, got 2"):
        check(schema, good, PLACE, {"M": 4})
    with pytest.raises(FileError, match=r"run\.x must be 3 x any number of finite .* got 2 x 3"):
        check(schema, good | {"n": 3}, PLACE)
    with pytest.raises(FileError, match=r"run\.y must be 3 finite real numbers, got 2 real"):
        check(schema, good | {"y": np.ones(2)}, PLACE)
    places = {"parts": ListOf(COUNT, "S"), "seen": ListOf(Integer(below="S"))}
    check(places, {"parts": [5, 5], "seen": [1, 0]}, PLACE)
    with pytest.raises(FileError, match=r"run\.seen\.0 must be an integer from 0 to 1, got 2"):
        check(places, {"parts": [5, 5], "seen": [2]}, PLACE)


@dataclass(frozen=True)
class Pair:
    whole: int
    rest: int


class Inner(Stateful):
    def __init__(self, count):
        self.count = count

    def schema(self):
        return {"count": COUNT}


class Outer(Stateful):
    """Fields of every kind: private, of another name or form, in another object, saved itself."""

    def __init__(self, count, pairs, change, values):
        self._number, self.pairs, self.change = count, pairs, change
        self.inner, self.beside = Inner(count), Inner(values)

    def schema(self):
        return {
            "number": COUNT,
            "pairs": ListOf(record(Pair, (COUNT, COUNT))),
            "change": or_nan(Number(0)),
            "told": As(Array("f8", (2,)), at="beside.count"),
            "part": self.inner,
        }


def test_a_schema_saves_checks_and_restores():
    pairs = [Pair(3, 1), Pair(0, 2)]
    one = Outer(5, pairs, float("nan"), np.ones(2))
    state = one.state()
    assert list(state) == ["number", "pairs", "change", "told", "part"]
    assert state["pairs"] == [(3, 1), (0, 2)]
    assert (state["change"], state["part"]) == (None, {"count": 5})
    other = Outer(0, [], 1.0, np.zeros(2))
    held = other.pairs
    check(other, state, PLACE)
    other.restore(state)
    assert other.pairs is held
    assert held == pairs
    assert (other._number, other.inner.count) == (5, 5)
    assert np.isnan(other.change)
    assert other.beside.count.tolist() == [1.0, 1.0]
    with pytest.raises(FileError, match=r"run.part.count must be an integer of at least 0, got -1"):
        check(other, state | {"part": {"count": -1}}, PLACE)
