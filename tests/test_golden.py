"""What commands print and write is what they printed and wrote before: see `tests/golden`."""

import copy

import pytest

from .golden import store
from .golden.cases import CASES
from .golden.compare import differences, shorten


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Where cases are run, and what they begin with is made once."""
    return store.workshop(tmp_path_factory.mktemp("golden"))


def told(wrong, most=20):
    """Say where two values differ."""
    lines = [
        f"{path}\n    kept:  {one!r:.400}\n    found: {two!r:.400}" for path, one, two in wrong
    ]
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join([*lines[:most], *more])


@pytest.mark.parametrize("group", CASES)
def test_results_are_those_that_were_kept(shop, group):
    wrong = list(differences(store.expected(group), store.found(shop, group)))
    assert not wrong, f"{told(wrong)}\n'make golden' keeps what is found, if that is meant"


def test_a_number_that_has_changed_is_named():
    kept = store.expected("fit")
    steps = kept["one agent"]["steps"]
    for change in (3e-8, -3e-8):
        moved = copy.deepcopy(kept)
        moved["one agent"]["steps"][0]["out"]["bic"] *= 1 + change
        ((path, before, after),) = differences(kept, moved)
        assert path == "/one agent/steps/0/out/bic"
        assert (before, after) == (steps[0]["out"]["bic"], before * (1 + change))
        assert path in told([(path, before, after)])


def test_what_is_compared():
    assert not list(differences({"a": [1, 2.0, "x 1.5"]}, {"a": [1, 2.0 + 1e-9, "x 1.500000001"]}))
    for one, other in [
        (1, 2), (1, 1.0), (True, 1), (1.0, 1.0 + 1e-7), (1e9, 1e9 + 100), ("x 1.5", "x 1.6"),
        ("x 3", "x 4"), ("x", "y"), ("1.0 m", "1.0 n"), ([1], [1, 2]), ({"a": 1}, {}), (None, 0),
        ("nan", 1.0), ("x 1", "x 1.0"),
    ]:  # fmt: skip
        assert list(differences(one, other)), (one, other)
    assert list(differences(1.0, 1.0 + 1e-15, 0.0))


def test_long_values_are_shortened_without_losing_a_change():
    long = [[float(i * j) for j in range(9)] for i in range(9)]
    assert shorten(long)["shape"] == [9, 9]
    for change in (lambda rows: rows.reverse(), lambda rows: rows[8].__setitem__(8, 64.1)):
        other = copy.deepcopy(long)
        change(other)
        assert list(differences(shorten(long), shorten(other)))
    lines = [f"row {i} {i / 7}" for i in range(90)]
    assert list(differences(shorten(lines), shorten([*lines[:50], "row", *lines[51:]])))
