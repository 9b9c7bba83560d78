"""`DistributedKMeans`: scikit-learn's interface to k-means."""

from dataclasses import asdict

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from vpem import DistributedKMeans, InputError

from .estimator_support import EXCUSED, check_as_scikit_learn_does
from .kmeans_support import HOLES, START
from .tables import each


@pytest.fixture(scope="module")
def digits():
    data = load_digits().data[:600]
    data.setflags(write=False)
    return data


# ---- the estimator ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # the checks fit tiny, constant and unnamed data on purpose
@pytest.mark.parametrize(
    "estimator",
    [
        DistributedKMeans(),
        DistributedKMeans(n_clusters=3, graph="cycle", init="random"),
        DistributedKMeans(n_clusters=2, split="features"),
        DistributedKMeans(n_clusters=2, split="features", graph="path", agents=1),
        DistributedKMeans(n_clusters=3, split="features", method="grid"),
    ],
    ids=str,
)
def test_scikit_learns_own_checks(estimator):
    check_as_scikit_learn_does(estimator, EXCUSED)


@pytest.mark.filterwarnings("ignore:standard deviations of features differ")
def test_the_estimators_methods(digits):
    model = DistributedKMeans(6, workers=4, random_state=0)
    assert clone(model).get_params() == model.get_params()
    labels = model.fit_predict(digits)
    assert asdict(model)["n_clusters"] == 6  # no field without a value
    np.testing.assert_array_equal(labels, model.predict(digits))
    far = model.transform(digits)
    np.testing.assert_array_equal(far.argmin(axis=1), labels)
    assert (far.min(axis=1) ** 2).sum() == pytest.approx(model.inertia_, rel=1e-12)
    assert model.score(digits) == pytest.approx(-model.inertia_, rel=1e-12)
    weights = np.arange(600.0)
    assert model.score(digits, sample_weight=weights) == pytest.approx(
        -(far.min(axis=1) ** 2) @ weights, rel=1e-12
    )
    assert model.n_iter_ == len(model.clustering_.history)
    assert list(model.get_feature_names_out()) == [f"distributedkmeans{k}" for k in range(6)]


@each(
    ("options", "sentence"),
    [
        ({"split": "columns"}, "split must be one of features, rows"),
        ({"method": "grid"}, "needs split='features'"),
        ({"agents": 3}, "with 'rows' give workers"),
        ({"hops": 1}, "with 'rows' give workers"),
        ({"split": "features", "workers": 3}, "with 'features' give agents"),
        ({"workers": 1000}, "1000 workers cannot share 600 rows"),
        ({"workers": "all"}, "workers must be a number"),
        ({"split": "features", "agents": 2.5}, "agents must be None"),
        ({"graph": 3}, "graph must be a topology"),
    ],
)
def test_parameters_that_make_no_sense(digits, options, sentence):
    with pytest.raises(InputError, match=sentence):
        DistributedKMeans(3, **options).fit(digits)


@each("split", ["rows", "features"])
def test_rows_that_miss_values_go_to_the_nearest_by_what_is_there(split):
    model = DistributedKMeans(4, split, init=START, missing="marginalize", random_state=0)
    labels = model.fit_predict(HOLES)
    np.testing.assert_array_equal(model.predict(HOLES), labels)
    np.testing.assert_array_equal(model.transform(HOLES).argmin(axis=1), labels)
    assert model.score(HOLES) == pytest.approx(-model.inertia_, rel=1e-10)
    blank = HOLES.copy()
    blank[7] = np.nan
    for call in (model.fit, model.predict):
        with pytest.raises(InputError, match="row 7 has no value at all"):
            call(blank)
