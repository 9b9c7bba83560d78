"""Pickles that an earlier build made, as far as CHANGELOG.md says that they load.

`pickles_of_before.z` has some of build 3befd1c5, each as bytes: fits of 80 rows in two clusters
of four features, which `data` makes again. It is written by no test.
"""

import pickle
import zlib
from pathlib import Path

import numpy as np
import pytest

from vpem import FitSettings, fit_vpem
from vpem.files.models import write_model

SAVED = Path(__file__).with_name("pickles_of_before.z")
PICKLES = pickle.loads(zlib.decompress(SAVED.read_bytes()))


def data():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(size=(40, 4)), rng.normal(size=(40, 4)) + 4])


def load(name):
    return pickle.loads(PICKLES[name])


@pytest.mark.parametrize("name", sorted(PICKLES))
def test_pickles_of_before_load_and_say_what_they_are(name):
    assert type(load(name)).__name__ in repr(load(name))


@pytest.mark.parametrize("name", [name for name in PICKLES if name.startswith("fitted")])
def test_estimators_pickled_before_are_used_kept_and_fitted_again(name, tmp_path):
    estimator = load(name)
    estimator.save(tmp_path / "kept.h5")
    X = data()
    if hasattr(estimator, "predict"):
        clusters = estimator.predict(X)
        assert (clusters[:40] == clusters[0]).all()
        assert (clusters[40:] == 1 - clusters[0]).all()
    estimator.fit(X)


@pytest.mark.parametrize("name", ["network_star", "network_cycle", "network_secure"])
def test_networks_pickled_before_are_fitted_over(name):
    assert fit_vpem(data(), load(name), n_components=2).converged


@pytest.mark.parametrize("name", [name for name in PICKLES if name.startswith("fit_")])
def test_results_pickled_before_are_described(name):
    fit = load(name)
    names = [f"f{j}" for j in range(fit.n_features)]
    assert fit.describe(names, ["a", "b"])["n_components"] == 2
    assert len(fit.answer(names).describe("component")) == 2


def test_models_settings_and_data_pickled_before_are_the_same(tmp_path):
    write_model(tmp_path / "model.h5", load("model"))
    assert load("settings_FitSettings") == FitSettings()
    assert load("dataset_csv").X.shape == (303, 8)
