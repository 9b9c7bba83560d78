"""What tests of broken-off runs share: savers that break off, and results compared bit by bit."""

import dataclasses

import numpy as np
import pytest

from vpem.files.checkpoints import put_together, take_apart
from vpem.network.ledger import Ledger
from vpem.steps.recovery import Saver

TIMES = {"seconds"}


class Broken(Exception):
    """A run was broken off."""


def packed(state):
    """Take a state apart and put it together again, as on its way through a file."""
    plain, parts = take_apart(state)
    return put_together(plain, {name: np.concatenate(some) for name, some in parts.items()})


class Breaking(Saver):
    """Breaks a run off at one of the states it offers, and lets it go on from there."""

    def __init__(self, at=None, saved=None):
        self.at = at
        self.saved = None if saved is None else packed(saved)
        self.offers = 0
        self.state = None
        self.facts = None

    def begin(self, facts):
        assert all(isinstance(name, str) for name in facts)
        assert packed(facts) == facts
        self.facts = facts

    def offer(self, state, *, last=False):
        self.offers += 1
        if self.offers == self.at:
            self.state = packed(state())
            raise Broken


def places(n_offers):
    """Some of the offers of a run: the first, one between, the last."""
    return sorted({1, max(1, n_offers // 2), n_offers})


def check_resumes(fit, same=None):
    """Break a run off again and again: it must end as if it had not been.

    ``fit(saver)`` runs it. That a saver changes nothing is for tests of each recipe.
    """
    same = same or check_same
    counting = Breaking()
    whole = fit(counting)
    assert counting.offers
    state, before = None, 0
    for place in places(counting.offers):
        saver = Breaking(place - before, saved=state)
        with pytest.raises(Broken):
            fit(saver)
        assert saver.facts == counting.facts
        state, before = saver.state, place
    same(fit(Breaking(saved=state)), whole)
    return whole


def check_same(one, other, where="fit"):
    """Compare two results bit by bit, in all but the time they took."""
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), where
    elif isinstance(one, Ledger):
        check_same(one.summary(), other.summary(), where)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            if field.name not in TIMES | {"network"}:
                name = field.name
                check_same(getattr(one, name), getattr(other, name), f"{where}.{name}")
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            check_same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for place, pair in enumerate(zip(one, other, strict=True)):
            check_same(*pair, f"{where}[{place}]")
    elif isinstance(one, float):
        assert one == other or (one != one and other != other), where
    elif isinstance(one, int | str | bool) or one is None:
        assert one == other, where
