"""Small models of every recipe, for pictures and pages."""

from functools import cache

import numpy as np

import vpem_cli
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.pictures.saved import EvaluationData, SavedFit, read_saved

FITS = {
    "graph": "fit {data} --topology cycle --agents 4 --hops 1 -k 2 --max-iter 6",
    "apart": "fit {data} --topology path --agents 4 --rounds 1 --acceleration none -k 2 "
    "--max-iter 4",
    "star": "fit {data} --topology star --agents 3 -k 3 --covariance diag --scale standard "
    "--max-iter 5",
    "one": "fit {data} --agents 1 -k 1",
    "rows": "fit {data} --split rows --workers 3 --topology path --rounds 2 -k 2 --max-iter 5",
    "fedem": "fedem {data} -k 2 --workers 4 --max-iter 5",
    "kmeans": "kmeans {data} -k 3 --workers 3",
    "grid": "kmeans {data} -k 2 --split features --method grid --agents 2",
    "lloyd": "kmeans {data} -k 2 --split features --topology cycle --agents 4 --hops 1",
}
CLUSTERS = ("kmeans", "grid", "lloyd")
NAMES = ("height", "$x_1$ & <b>", "pulse", "age")


def make_labelled(path, names=NAMES, n_samples=90, seed=0):
    """Write overlapping clusters of as many features as names, with labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n_samples)
    d = len(names)
    X = rng.normal(0, 1.5, (3, d))[labels] + rng.normal(size=(n_samples, d)) @ (
        np.eye(d) + 0.4 * rng.normal(size=(d, d))
    )
    write_dataset(path, Dataset(X, names, labels=np.array(["ill", "well", "odd"])[labels]))
    return path


_folders = []


def shared_folder(factory):
    """Folder of the whole test run, in which every fit is made once."""
    if not _folders:
        _folders.append(factory.mktemp("pictures"))
    return _folders[0]


@cache
def fitted(folder, name):
    """File of one of the fits, made once a folder of the whole test run."""
    data = folder / "data.h5"
    if not data.exists():
        make_labelled(data)
    model = folder / f"{name}.h5"
    words = FITS[name].format(data=data).split()
    assert vpem_cli.run([*words, "-o", str(model), "--quiet", "--json"]) == 0
    return model


def load(folder, name) -> tuple[SavedFit, EvaluationData]:
    """One of the fits with its data."""
    model = fitted(folder, name)
    source = read_dataset(folder / "data.h5")
    return read_saved(model), EvaluationData(source.X, source.labels, "data.h5")
