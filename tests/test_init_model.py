"""A fit that starts from a model finds its features by name, and its number of components."""

import numpy as np
import pytest

from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import read_model
from vpem_cli import run

NAMES = ("height", "weight", "pulse", "age", "iron")
ORDER = [3, 0, 4, 2, 1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two files of the same numbers, the second with its columns in another order."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 5)) * [1, 5, 0.1, 3, 2] + rng.choice([0, 2], size=120)[:, None]
    write_dataset("a.h5", Dataset(X, NAMES))
    write_dataset("b.h5", Dataset(X[:, ORDER], tuple(NAMES[j] for j in ORDER)))
    write_dataset("c.h5", Dataset(X, ("other", *NAMES[1:])))
    write_dataset("d.h5", Dataset(np.c_[X, X[:, 0]], (*NAMES, "more")))
    return tmp_path


@pytest.mark.parametrize("scale", ["none", "standard"])
@pytest.mark.parametrize("agents", ["2", "5"])
def test_columns_in_another_order(folder, capsys, scale, agents):
    common = ["--scale", scale, "-q"]
    assert run(["fit", "a.h5", "-k", "3", "--agents", agents, "-o", "m.h5", *common]) == 0
    found = []
    for data in ("a.h5", "b.h5"):
        output = f"from-{data}"
        words = ["fit", data, "--agents", "1", "--init-model", "m.h5", "-o", output, *common]
        assert run([*words, "--max-iter", "1"]) == 0
        found.append(read_model(output))
    capsys.readouterr()
    one, two = found
    assert one.report["n_components"] == two.report["n_components"] == 3
    np.testing.assert_allclose(one.history, two.history, rtol=1e-12)
    np.testing.assert_allclose(
        two.mixture.assembled_means, one.mixture.assembled_means[:, ORDER], rtol=1e-9
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [("c.h5", "the data lack features of the model: 'height'"), ("d.h5", "has 5 features")],
)
def test_other_features_are_refused(folder, capsys, data, said):
    assert run(["fit", "a.h5", "-o", "m.h5", "-q"]) == 0
    capsys.readouterr()
    assert run(["fit", data, "--init-model", "m.h5", "-o", "new.h5", "-q"]) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "new.h5").exists()
