import numpy as np
import pytest

from vpem.settings import SCALES
from vpem.terms.units import Scaling


def rows(seed=0, n=50, d=4):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * [1e-3, 1.0, 50.0, 1e6] + [0.0, -7.0, 1e4, 3.0]


def test_the_names():
    assert SCALES == ("none", "standard")


def test_none_changes_nothing():
    X = rows()
    scaling = Scaling.none(4)
    assert scaling.is_none
    assert scaling.apply(X) is X
    assert scaling.undo(X) is X


def test_standard_centres_and_scales():
    X = rows()
    scaling = Scaling.standard(X, np.ones(len(X)))
    assert not scaling.is_none
    np.testing.assert_allclose(scaling.shift, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scaling.scale, X.std(axis=0), rtol=1e-12)
    scaled = scaling.apply(X)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-12)


def test_undo_is_the_inverse():
    X = rows()
    scaling = Scaling.standard(X, np.ones(len(X)))
    np.testing.assert_allclose(scaling.undo(scaling.apply(X)), X, rtol=1e-12, atol=1e-9)


def test_an_integer_weight_is_as_many_copies():
    X = rows()
    weights = np.random.default_rng(1).integers(0, 4, size=len(X))
    weighted = Scaling.standard(X, weights.astype(float))
    copied = Scaling.standard(np.repeat(X, weights, axis=0), np.ones(weights.sum()))
    np.testing.assert_allclose(weighted.shift, copied.shift, rtol=1e-12)
    np.testing.assert_allclose(weighted.scale, copied.scale, rtol=1e-12)


def test_each_agent_scales_its_own_features_without_the_others():
    X = rows()
    whole = Scaling.standard(X, np.ones(len(X)))
    for part in ([0], [1, 3], [2]):
        own = Scaling.standard(X[:, part], np.ones(len(X)))
        np.testing.assert_allclose(own.shift, whole.shift[part], rtol=1e-12)
        np.testing.assert_allclose(own.scale, whole.scale[part], rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, -3e8, 0.1])
def test_a_constant_feature_keeps_its_scale(value):
    X = np.column_stack([np.full(30, value), np.arange(30.0)])
    scaling = Scaling.standard(X, np.ones(30))
    assert scaling.scale[0] == 1
    np.testing.assert_allclose(scaling.apply(X)[:, 0], 0, atol=1e-6)


def test_single_precision_data_are_scaled_in_double():
    X = (rows() + 1e5).astype(np.float32)
    found = Scaling.standard(X, np.ones(len(X)))
    wanted = Scaling.standard(X.astype(np.float64), np.ones(len(X)))
    assert found.shift.dtype == found.scale.dtype == np.float64
    np.testing.assert_allclose(found.shift, wanted.shift, rtol=1e-12)
    np.testing.assert_allclose(found.scale, wanted.scale, rtol=1e-12)


def test_rows_beyond_the_range_in_other_units_draw_no_warning():
    scaling = Scaling(np.zeros(2), np.array([1e-200, 1e200]))
    assert scaling.apply(np.full((1, 2), 1e200)).tolist() == [[np.inf, 1.0]]
    assert scaling.undo(np.full((1, 2), 1e200)).tolist() == [[1.0, np.inf]]
