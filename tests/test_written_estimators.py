"""A fitted estimator is written as it is, and read as what it was."""

import networkx as nx
import numpy as np
import pyarrow
import pytest

from vpem import VPEM, DistributedGaussianMixture, DistributedKMeans, FedEM, FedMissEM
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import open_read
from vpem.files.models import read_model, write_model
from vpem.files.results import read_clustering, write_clustering
from vpem.fits.mixture_imputation import write_imputation
from vpem.pictures.page import draw, kinds_of
from vpem.pictures.saved import saved_of

from .cli_support import overlapping
from .tables import each_once

# Fits are cut short.
pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

X, _ = overlapping(n_samples=80, n_features=4)
NAMES = ("height", "weight", "pulse", "age")
FRAME = pyarrow.table({name: X[:, j] for j, name in enumerate(NAMES)})

MIXTURES = {
    "features": VPEM(2, agents=2, graph="star", max_iter=5, tol=0, random_state=3),
    "own graph": VPEM(
        2, agents=[[0, 3], [1], [2]], graph=nx.path_graph(3), n_rounds=4, max_iter=3, tol=0,
        covariance_type="diag", scale="standard", init=[3, 40],
        random_state=np.random.default_rng(1),
    ),
    "rows": DistributedGaussianMixture(2, workers=3, max_iter=4, tol=0, random_state=0),
    "peers": DistributedGaussianMixture(
        2, workers=[0, 1] * 40, graph="path", n_rounds=2, max_iter=3, tol=0, random_state=0
    ),
    "fedem": FedEM(2, workers=4, step_size=lambda k: 0.5, max_iter=4, random_state=0),
}  # fmt: skip
WRITERS = {
    write_model: [*MIXTURES.values()],
    write_clustering: [DistributedKMeans(3, workers=2)],
    write_imputation: [FedMissEM()],
}


@each_once(name=MIXTURES, data=[X, FRAME])
def test_a_mixture_that_is_read_back_is_that_of_the_estimator(tmp_path, name, data):
    model = MIXTURES[name].fit(data)
    path = tmp_path / "m.h5"
    write_model(path, model)
    found = read_model(path)
    np.testing.assert_array_equal(found.mixture.predict(X), model.predict(data))
    np.testing.assert_array_equal(found.mixture.predict_proba(X), model.predict_proba(data))
    names = NAMES if data is FRAME else tuple(f"feature {j}" for j in range(4))
    assert found.feature_names == names
    history = model.fit_.history
    np.testing.assert_array_equal(
        found.history if found.root_history is None else found.root_history, history
    )
    assert found.report["converged"] == model.converged_
    assert found.report["n_iter"] == model.n_iter_
    assert "history" not in found.report
    assert set(found.options) == set(model.get_params())
    assert set(found.versions) >= {"vpem", "numpy"}
    # The file has what pictures are drawn of.
    saved = saved_of(str(path), found)
    for kind, about in kinds_of(saved).items():
        if about.data != "needed":
            draw(kind, saved)


@pytest.mark.parametrize("split", ["rows", "features"])
def test_a_clustering_that_is_read_back_is_that_of_the_estimator(tmp_path, split):
    model = DistributedKMeans(3, split=split, scale="standard", random_state=2).fit(FRAME)
    write_clustering(tmp_path / "c.h5", model)
    found = read_clustering(tmp_path / "c.h5")
    np.testing.assert_array_equal(found.labels, model.labels_)
    np.testing.assert_array_equal(found.assign(X)[0], model.predict(FRAME))
    assert found.feature_names == NAMES
    assert found.report["inertia"] == model.inertia_
    assert found.report["seed"] == found.options["random_state"] == 2


def test_an_imputation_is_written_of_the_estimator(tmp_path):
    holes = X.copy()
    holes[::7, 1] = np.nan
    model = FedMissEM(rank=1, max_iter=5, tol=0, random_state=0).fit(holes)
    write_imputation(tmp_path / "i.h5", model)
    with open_read(tmp_path / "i.h5") as file:
        np.testing.assert_array_equal(file["imputed"][()], model.impute())


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_what_is_no_fit_of_that_kind_is_refused_and_nothing_written(tmp_path, write):
    own = WRITERS[write]
    others = [one for kind, models in WRITERS.items() if kind is not write for one in models]
    for value, said in [
        *((type(one)(), f"this {type(one).__name__} is not fitted: call fit") for one in own),
        (type(own[0]), f"got the class {type(own[0]).__name__}"),
        (others[0].fit(X), f"got {type(others[0]).__name__}"),
        (X, "got ndarray"),
        (None, "got NoneType"),
    ]:
        with pytest.raises(InputError, match=said):
            write(tmp_path / "m.h5", value)
    assert not list(tmp_path.iterdir())


def test_a_written_estimator_replaces_a_file_only_if_forced(tmp_path):
    model = MIXTURES["features"].fit(X)
    write_model(tmp_path / "m.h5", model)
    with pytest.raises(FileError, match="exists"):
        write_model(tmp_path / "m.h5", model)
    write_model(tmp_path / "m.h5", model, force=True)
