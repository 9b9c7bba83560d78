"""What crosses between agents beside the terms of a sum, where sums are masked."""

import numpy as np
import pytest

from vpem.engines.masking import agree
from vpem.engines.placement import Placement

from .thread_engine import together


def masked(engine, n_agents):
    place = Placement.evenly(engine, n_agents)
    place.masks = agree(place)
    return place


def test_agents_learn_sums_flags_and_largest_numbers_and_not_whose():
    values = np.random.default_rng(0).normal(size=(4, 6)) * [1e-30, 1.0, 1e9, 0.0, 1e200, -3.0]

    def work(engine):
        place = masked(engine, 4)
        flags = place.any([engine.rank == 1, False, engine.rank < 2])
        own = values[place.own]
        largest = place.largest(np.array([[3], [9], [2], [0]])[place.own], 0, 100)
        return flags, place.add_up(own), place.add_up(own, alike=True), largest

    for flags, each, alike, largest in together(3, work):
        np.testing.assert_array_equal(flags, [True, False, True])
        np.testing.assert_allclose(each, values.sum(axis=0), rtol=1e-14)
        np.testing.assert_allclose(alike, values.sum(axis=0), atol=1e186)
        assert largest == [9]


def test_floats_and_items_cannot_go_without_masks_by_mistake():
    place = Placement.here(3)
    place.masks = agree(place)
    for send in (place.allreduce, lambda own: place.pool(list(own))):
        with pytest.raises(RuntimeError, match="without masks"):
            send(np.ones(3))
