"""`--sample-weight`: weights of rows from files of all kinds, and what is refused of them."""

import h5py
import numpy as np
import pytest

from vpem import Dataset, read_dataset, read_model, write_dataset
from vpem.network.partition import contiguous

from .cli_support import done, overlapping, run
from .tables import each

X, _ = overlapping(60, 4, seed=3)
WEIGHTS = np.random.default_rng(0).integers(0, 4, len(X)).astype(float)
ONCE = np.repeat(np.arange(len(X)), WEIGHTS.astype(int))
HOW = ("--components", 2, "--init", "k-means++", "--max-iter", 5, "--tol", 0, "--json", "--quiet")
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def files(tmp_path):
    """Data with weights in HDF5; cut by rows and by columns in CSV."""
    data = Dataset(X, NAMES, partition=contiguous(4, 2))
    write_dataset(tmp_path / "x.h5", data)
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["w"] = WEIGHTS
        file["negative"] = np.where(WEIGHTS == 3, -1.0, 1.0)
        file["endless"] = np.where(WEIGHTS == 3, np.inf, 1.0)
        file["short"] = WEIGHTS[:5]
        file["none"] = np.zeros(len(X))
        file["words"] = [b"x"] * len(X)
    parts = {
        "above": (slice(0, 35), slice(None), True), "below": (slice(35, None), slice(None), True),
        "left": (slice(None), slice(0, 2), True), "right": (slice(None), slice(2, 4), False),
    }  # fmt: skip
    for name, (rows, columns, weighed) in parts.items():
        table = np.column_stack(
            [X[rows, columns], WEIGHTS[rows]] if weighed else [X[rows, columns]]
        )
        heads = ",".join([*NAMES[columns], *["w"] * weighed])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header=heads, comments="")
    return tmp_path


def fit(capsys, folder, words, *more):
    words = [folder / word if "." in word else word for word in words.split()]
    return done(capsys, "fit", *words, *HOW, *more).json


WAYS = {
    "features": "x.h5",
    "rows": "x.h5 --split rows --workers 3",
    "parties' features": "left.csv right.csv --parties",
    "parties' rows": "above.csv below.csv --parties --split rows",
}


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@each("way", WAYS)
def test_weights_are_copies_of_rows(capsys, files, way):
    """Means at the same rows: an integer weight equals as many copies of a row."""
    model = files / "model.h5"
    heavy = np.flatnonzero(WEIGHTS > 0)[[3, 20]]
    start = ("--init-rows", ",".join(map(str, heavy)))
    how = [word for word in HOW if word not in ("--init", "k-means++")]
    words = [files / word if "." in word else word for word in WAYS[way].split()]
    found = done(
        capsys, "fit", *words, *how, *start, "--sample-weight", "w", "-o", model, "--force"
    ).json
    assert (found["sample_weight"], found["total_weight"]) == ("w", WEIGHTS.sum())
    assert read_model(model).options["sample_weight"] == "w"

    write_dataset(
        files / "copies.h5", Dataset(X[ONCE], NAMES, partition=contiguous(4, 2)), force=True
    )
    start = ("--init-rows", ",".join(str(np.argmax(row == ONCE)) for row in heavy))
    split = ["--split", "rows"] if "rows" in way else []
    copies = done(capsys, "fit", files / "copies.h5", *split, *how, *start).json
    np.testing.assert_allclose(found["history"], copies["history"], rtol=1e-10)
    assert copies["sample_weight"] is None


REFUSED = {
    "x.h5 --sample-weight nothing": "nothing does not exist",
    "x.h5 --sample-weight short": "short must have shape 60, got 5",
    "x.h5 --sample-weight words": "words holds strings or other objects; it must hold",
    "x.h5 --sample-weight negative": "negative: the sample weight of row 0 is -1, but weights are",
    "x.h5 --sample-weight endless": "endless: the sample weight of row 0 is inf, but weights are",
    "x.h5 --sample-weight none": "sample weights must not all be zero",
    "left.csv right.csv --parties --sample-weight v": "no party has sample weights called 'v'",
    "above.csv below.csv --parties --split rows --sample-weight v":
        "party 'above' has no sample weights called 'v'",
}  # fmt: skip


@each("words", REFUSED)
def test_refused_in_one_sentence(capsys, files, words):
    given = [files / word if "." in word else word for word in words.split()]
    found = run(capsys, "fit", *given, "-o", files / "model.h5")
    assert (found.code, found.out) == (2, "")
    assert REFUSED[words] in found.sentence
    assert not (files / "model.h5").exists()


def test_parties_agree_on_a_rows_weight(capsys, files):
    for name, weights in {"same": WEIGHTS, "other": WEIGHTS + 1}.items():
        table = np.column_stack([X[:, 2:], weights])
        np.savetxt(files / f"{name}.csv", table, delimiter=",", header="c,d,w", comments="")
    one = fit(capsys, files, "left.csv right.csv --parties --sample-weight w")
    assert (
        fit(capsys, files, "left.csv same.csv --parties --sample-weight w")["history"]
        == one["history"]
    )
    words = ("--parties", "--sample-weight", "w")
    found = run(capsys, "fit", files / "left.csv", files / "other.csv", *words)
    assert found.sentence.startswith("row 0 has the weight 3 at one party and 4 at 'other'")


def test_columns_of_tables_become_weights_of_datasets(capsys, files):
    target = files / "made.h5"
    done(capsys, "data", "import", files / "above.csv", "--sample-weight", "w", "-o", target)
    found = read_dataset(target)
    np.testing.assert_array_equal(found.sample_weight, WEIGHTS[:35])
    assert found.feature_names == NAMES
    cut = files / "cut"
    done(capsys, "data", "split", target, "--agents", 2, "--shuffle", "-o", cut)
    words = ("--parties", "--align", "ids", "--sample-weight", "sample_weight", *HOW)
    joined = done(capsys, "fit", *sorted(cut.iterdir()), *words).json
    assert joined["total_weight"] == WEIGHTS[:35].sum()
    (files / "text.csv").write_text("a,b,w\n1,2,x\n3,1,y\n")
    found = run(capsys, "data", "import", files / "text.csv", "--sample-weight", "w", "-o", "no.h5")
    assert "column 'w' holds string, but weights are numbers" in found.sentence
