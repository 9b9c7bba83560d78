"""Which features form which block, and the order they stand in."""

import numpy as np
import pytest

from vpem import Blocks, InputError
from vpem.network.hubs import Hub


def made(*features):
    parts = tuple(np.array(part, dtype=np.intp) for part in features)
    return Blocks(parts, tuple(range(len(parts))), tuple((n,) for n in range(len(parts))))


def test_features_of_a_hub_stand_by_agent_then_by_column():
    hubs = [Hub(2, (1, 2)), Hub(0, (0, 3))]
    holdings = [np.array(part, dtype=np.intp) for part in ([4], [5, 1], [0], [3, 2])]
    blocks = Blocks.from_hubs(hubs, holdings)
    assert [part.tolist() for part in blocks.features] == [[1, 5, 0], [4, 2, 3]]
    assert blocks.roots == (2, 0)
    assert blocks.agents == ((1, 2), (0, 3))
    assert blocks.order.tolist() == [1, 5, 0, 4, 2, 3]
    assert blocks.order[blocks.position].tolist() == list(range(6))
    assert blocks.position[blocks.order].tolist() == list(range(6))
    assert blocks.widths.tolist() == [3, 3]
    assert blocks.offsets.tolist() == [0, 3, 6]
    assert blocks.block_of.tolist() == [0, 0, 0, 1, 1, 1]
    assert not blocks.in_order


def test_hubs_without_features_have_empty_blocks():
    hubs = [Hub(0, (0,)), Hub(1, (1,)), Hub(2, (2,))]
    nothing = np.empty(0, dtype=np.intp)
    blocks = Blocks.from_hubs(hubs, [nothing, np.array([0, 1]), nothing])
    assert blocks.n_blocks == 3
    assert blocks.widths.tolist() == [0, 2, 0]
    assert blocks.offsets.tolist() == [0, 0, 2, 2]
    assert blocks.block_of.tolist() == [1, 1]
    assert blocks.in_order


def test_one_block_holds_everything():
    blocks = Blocks.one(4)
    assert blocks.n_blocks == 1
    assert blocks.n_features == 4
    assert blocks.in_order


@pytest.mark.parametrize(
    "features", [([0, 1], [1, 2]), ([0, 2],), ([1, 2],), ([0, 0],), ([-1, 0],)]
)
def test_features_missing_or_repeated_are_refused(features):
    with pytest.raises(InputError, match="every feature exactly once"):
        made(*features)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_arrange_puts_columns_in_block_order(layout, dtype):
    X = np.arange(12.0).reshape(3, 4)
    given = {"C": X, "F": np.asfortranarray(X), "strided": np.repeat(X, 2, axis=1)[:, ::2]}[layout]
    for blocks in (made([2, 0], [3, 1]), made([0, 1], [2, 3])):
        arranged = blocks.arrange(given, dtype)
        assert arranged.dtype == dtype
        assert arranged.flags.c_contiguous
        np.testing.assert_array_equal(arranged, X[:, blocks.order])


def test_what_each_root_holds_is_spread_over_its_features():
    blocks = made([2, 0], [], [1])
    own = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    assert blocks.of_feature(own).tolist() == [[1, 1, 3], [10, 10, 30]]
    assert blocks.of_feature(own[:1]).tolist() == [[1, 1, 1], [10, 10, 10]]
