"""Datasets: what is written is read, parts that do not fit are refused, and commands on them."""

import importlib.util
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.datasets import load_breast_cancer, load_wine

from vpem.checks import check_finite
from vpem.errors import FileError, InputError, VpemError, VpemWarning
from vpem.files.data import open_frame, read_dataset
from vpem.files.datasets import Dataset, default_names, write_dataset
from vpem.files.families import summarize_features
from vpem.files.table_settings import TableSettings
from vpem.network.partition import contiguous, from_lists

from .cli_support import done, run
from .tables import each, over

ROOT = Path(__file__).parents[1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.h5"


def full(n_samples=7, n_features=4, dtype=float):
    rng = np.random.default_rng(n_samples)
    return Dataset(
        rng.normal(size=(n_samples, n_features)).astype(dtype),
        tuple("\u00e9bcdefgh"[:n_features]),
        ids=np.arange(100, 100 + n_samples),
        labels=np.array([["no", "yes"][m % 2] for m in range(n_samples)]),
        partition=from_lists([range(1, n_features), [0]], n_features, ["many", "one"]),
        edges=np.array([[0, 1]]),
    )


def stored(path, **items):
    with h5py.File(path, "w") as file:
        for name, value in items.items():
            file[name.replace("__", "/")] = value
    return path


def same(left, right):
    assert left.X.dtype == right.X.dtype
    np.testing.assert_array_equal(left.X, right.X)
    assert left.feature_names == right.feature_names
    for name in ("ids", "labels", "edges"):
        one, other = getattr(left, name), getattr(right, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype.kind == other.dtype.kind
            np.testing.assert_array_equal(one, other)
    assert (left.partition is None) == (right.partition is None)
    if left.partition is not None:
        assert left.partition.names == right.partition.names
        np.testing.assert_array_equal(left.partition.agent_of, right.partition.agent_of)


# Round trips --------------------------------------------------------------------------------------


@each("dtype", ["float32", "float64"])
def test_what_is_written_is_read(tmp_path, path, dtype):
    data = full(dtype=dtype)
    for file in (path, tmp_path / "again.h5"):
        write_dataset(file, data, force=True)
    assert path.read_bytes() == (tmp_path / "again.h5").read_bytes()
    read = read_dataset(path)
    same(read, data)
    assert read.source == str(path)
    assert read.X.flags.c_contiguous


def test_a_bare_matrix_is_enough_and_relays_hold_nothing(path):
    data = Dataset(np.ones((3, 2)), default_names(2))
    write_dataset(path, data)
    same(read_dataset(path), data)
    assert read_dataset(path).feature_names == ("feature 0", "feature 1")
    with pytest.warns(VpemWarning, match="'relay' holds no features"):
        partition = from_lists([[0, 1], []], 2, ["all", "relay"])
    edges = np.empty((0, 2), dtype=int)
    data = Dataset(np.ones((3, 2)), ("a", "b"), partition=partition, edges=edges)
    write_dataset(path, data, force=True)
    with pytest.warns(VpemWarning, match="'relay' holds no features"):
        same(read_dataset(path), data)


def test_every_element_describes_itself(path):
    write_dataset(path, full(), truth={"weights": [0.5, 0.5], "overlap": 0.1})
    missing = []
    with h5py.File(path) as file:
        assert file.attrs["encoding-type"] == b"vpem-dataset"
        file.visititems(
            lambda name, item: missing.append(name) if "encoding-type" not in item.attrs else None
        )
        assert file["truth/weights"][()].tolist() == [0.5, 0.5]
        assert file["truth/overlap"][()] == 0.1
    assert missing == []


def test_precision_can_be_chosen(path):
    stored(path, X=np.array([[1.0, 1e300]]))
    assert read_dataset(path, dtype="float64").X.dtype == np.float64
    with pytest.raises(InputError, match="too large for float32"):
        read_dataset(path, dtype="float32")
    with pytest.raises(InputError, match="dtype must be float32 or float64, got 'int8'"):
        read_dataset(path, dtype="int8")
    with pytest.raises(InputError, match="got 'quad'"):
        read_dataset(path, dtype="quad")
    stored(path, X=np.array([[1.0, np.inf]]))
    assert read_dataset(path, dtype=np.float32).X.dtype == np.float32


@each(
    ("kind", "expected"),
    [("i1", "f8"), ("u8", "f8"), (">i4", "f8"), ("f2", "f4"), (">f4", "f4"), ("g", "f8")],
)
def test_numbers_of_other_types_are_converted(path, kind, expected):
    stored(path, X=np.arange(6).reshape(2, 3).astype(kind))
    X = read_dataset(path).X
    assert X.dtype == np.dtype(expected)
    assert X.tolist() == [[0, 1, 2], [3, 4, 5]]


@each(
    ("items", "sentence"),
    [
        ({"feature_names": [1, 2]}, "feature_names holds integers"),
        ({"feature_names": ["a", "a"]}, "several features are called 'a'; rename them"),
        ({"ids": [1, 2]}, "X has 3 rows, but ids have shape 2"),
        ({"labels": ["a", "b"]}, "X has 3 rows, but labels have shape 2"),
        ({"labels": np.ones((3, 1))}, "labels must have 1 dimension"),
        ({"labels": np.ones(3, dtype=complex)}, "labels holds complex"),
        ({"labels__deeper": [1, 2, 3]}, "labels is a group"),
        ({"partition": [0.0, 1.0]}, "partition holds real numbers"),
        ({"partition": [0, 2]}, "agent 1 holds no feature"),
        ({"partition": [0, -1]}, "feature 1 has agent -1"),
        ({"partition": [0, 1], "agent_names": ["a"]}, "agent 1, but only 1"),
        ({"partition": [0, 1], "agent_names": ["a", "a"]}, "two agents are called 'a'"),
        ({"agent_names": ["a"]}, "agent_names but no partition"),
        ({"graph__edges": [[0, 1, 2]]}, "pairs of agent numbers"),
        ({"graph__edges": [0, 1]}, "pairs of agent numbers"),
        ({"graph__edges": [[0.0, 1.0]]}, "pairs of agent numbers"),
        ({"graph__edges": [[0, 1], [-1, 0]]}, "edge 1 .* joins -1 and 0"),
        ({"graph__edges": [[0, 2]], "partition": [0, 1]}, "numbered 0 to 1"),
        ({"graph__edges": [[0, 1], [1, 1]]}, "edge 1 .* joins agent 1 to itself"),
    ],
)
def test_parts_that_do_not_fit_are_refused(path, items, sentence):
    stored(path, X=np.ones((3, 2)), **items)
    with pytest.raises(VpemError, match=sentence) as caught:
        read_dataset(path)
    assert str(path) in str(caught.value)


def test_a_dataset_made_in_memory_is_checked_too():
    X = np.ones((3, 2))
    for items, sentence in (
        ({"partition": contiguous(3, 2)}, "divides 3 features, but X has 2"),
        ({"ids": [object()] * 3}, "ids must be strings or numbers"),
        ({"labels": np.array(["2020-01-01"] * 3, dtype="M8[D]")}, "labels must be strings"),
        ({"ids": 3}, "ids have shape of a single value"),
    ):
        with pytest.raises(InputError, match=sentence):
            Dataset(X, ("a", "b"), **items)
    with pytest.raises(InputError, match="must have two dimensions"):
        Dataset(np.ones(3), ("a",))
    with pytest.raises(InputError, match="must hold real numbers"):
        Dataset(np.array([["a"]]), ("a",))
    mixed = Dataset(X, ("a", "b"), ids=np.array(["a", "b", "c"], dtype=object), labels=[True] * 3)
    assert mixed.ids.dtype.kind == "U"
    assert mixed.labels.tolist() == [1, 1, 1]


# Other HDF5 files ---------------------------------------------------------------------------------


def test_any_matrix_of_any_file(path):
    stored(path, deep__matrix=np.arange(6).reshape(2, 3), deep__vector=[1], other=np.ones((4, 1)))
    read = read_dataset(path, "deep/matrix")
    assert read.X.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read.feature_names == ("feature 0", "feature 1", "feature 2")
    with pytest.raises(FileError, match=r"with dataset: deep/matrix \(2 x 3\), other \(4 x 1\)"):
        read_dataset(path)
    with pytest.raises(FileError, match=r"no deep/matrx; .* \(did you mean 'deep/matrix'\?\)"):
        read_dataset(path, "deep/matrx")
    with pytest.raises(FileError, match="deep/vector must have 2 dimensions"):
        read_dataset(path, "deep/vector")
    with pytest.raises(FileError, match="deep is a group"):
        read_dataset(path, "deep")


def h5ad(path, X, index="_index", nullable=False, **attributes):
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        file.attrs["encoding-version"] = "0.1.0"
        if isinstance(X, dict):
            for name, values in X.items():
                file[f"X/{name}"] = values
            file["X"].attrs.update(attributes)
        else:
            file["X"] = X
        for group, names in (("obs", ["cell 1", "cell 2"]), ("var", ["g1", "g2", "g3"])):
            frame = file.create_group(group)
            frame.attrs["_index"] = index
            frame[f"{index}/values" if nullable else index] = names
    return path


@over(index=["_index", "gene_id"], nullable=[False, True])
def test_dense_anndata(tmp_path, index, nullable):
    path = h5ad(tmp_path / "cells.h5ad", np.ones((2, 3), "f4"), index, nullable)
    read = read_dataset(path)
    assert read.X.dtype == np.float32
    assert read.feature_names == ("g1", "g2", "g3")
    assert read.ids.tolist() == ["cell 1", "cell 2"]


SPARSE = {"data": [5.0, 7.0], "indices": [2, 0], "indptr": [0, 1, 2]}


@each(
    ("parts", "attributes", "expected"),
    [
        ({}, {"encoding-type": "csr_matrix", "shape": [2, 3]}, [[0, 0, 5], [7, 0, 0]]),
        ({}, {"h5sparse_format": "csr", "h5sparse_shape": [2, 3]}, [[0, 0, 5], [7, 0, 0]]),
        ({"indptr": [0, 1, 1, 2], "indices": [1, 0]},
         {"encoding-type": "csc_matrix", "shape": [2, 3]}, [[0, 0, 7], [5, 0, 0]]),
        ({}, {"encoding-type": "csr_matrix"}, "does not say how large it is"),
        ({}, {"encoding-type": "csr_matrix", "shape": [2, 2]}, "do not fit each other"),
        ({"indptr": [0, 3, 2]}, {"encoding-type": "csr_matrix", "shape": [2, 3]}, "do not fit"),
        ({"indices": [2, -1]}, {"encoding-type": "csr_matrix", "shape": [2, 3]}, "do not fit"),
        ({"indptr": np.zeros(1001, int), "indices": np.ones(0, int), "data": np.ones(0)},
         {"encoding-type": "csr_matrix", "shape": [1000, 10**6]}, "declares values of 8 GB"),
    ],
)  # fmt: skip
def test_sparse_anndata(tmp_path, parts, attributes, expected):
    path = h5ad(tmp_path / "cells.h5ad", SPARSE | parts, **attributes)
    if isinstance(expected, str):
        with pytest.raises(FileError, match=expected):
            read_dataset(path)
        return
    assert read_dataset(path).X.tolist() == expected


def test_anndata_that_does_not_fit_is_refused(tmp_path):
    path = h5ad(tmp_path / "cells.h5ad", np.ones((2, 4)))
    with pytest.raises(InputError, match="4 features but 3 feature_names"):
        read_dataset(path)
    stored(path, X=np.ones((2, 3)), obs=[1], var=[1])
    with pytest.raises(FileError, match="not in the layout of current AnnData"):
        read_dataset(path)


@over(value=[np.nan, np.inf, -np.inf], row=[0, 5, 6_999])
def test_the_first_value_that_is_not_finite_is_named(value, row, monkeypatch):
    monkeypatch.setattr("vpem.checks.BLOCK_VALUES", 5000)
    X = np.zeros((7_000, 2), dtype=np.float32)
    X[row, 1] = value
    word = "NaN" if np.isnan(value) else str(value)
    with pytest.raises(InputError, match=rf"row {row}, feature 1 \('b'\) is {word}"):
        check_finite(X, ("a", "b"))
    X[-1, 0] = value
    X[-1, 1] = value
    count = 2 if row == 6_999 else 3
    with pytest.raises(InputError, match=f"; {count} values in all"):
        check_finite(X, ("a", "b"))


@each("dtype", ["float32", "float64"])
def test_the_summary_equals_numpy(dtype, monkeypatch):
    monkeypatch.setattr("vpem.checks.BLOCK_VALUES", 5000)
    X = np.random.default_rng(0).normal(1e3, 1.0, size=(4000, 3)).astype(dtype)
    X[:, 2] = 4
    found = summarize_features(X)
    wide = X.astype(float)
    np.testing.assert_allclose(found["mean"], wide.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["sd"], wide.std(axis=0), rtol=1e-9)
    np.testing.assert_array_equal(found["min"], wide.min(axis=0))
    np.testing.assert_array_equal(found["max"], wide.max(axis=0))
    assert found["constant"].tolist() == [False, False, True]
    assert found["non_finite"].tolist() == [0, 0, 0]


def test_the_summary_leaves_out_what_is_not_finite():
    found = summarize_features(np.array([[1.0, np.nan], [3.0, np.inf], [np.nan, -np.inf]]))
    assert found["non_finite"].tolist() == [1, 3]
    first, last = ([found[name][at] for name in ("mean", "sd", "min", "max")] for at in (0, 1))
    assert first == [2.0, 1.0, 1.0, 3.0]
    assert np.isnan(last).all()
    assert found["constant"].tolist() == [False, False]


# Commands -----------------------------------------------------------------------------------------

PEOPLE = "name,age,height,sick\nann,30,1.7,yes\nbob,41,1.8,no\ncid,52,1.9,no\n"


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE)
    return path


def test_import(capsys, csv, path):
    options = ["--label-column", "sick", "--id-column", "name", "--agents", 2]
    result = done(capsys, "data", "import", csv, "-o", path, *options)
    assert result.out == ""
    assert result.err == f"wrote {path}: 3 rows, 2 features, ids, labels, 2 agents\n"
    data = read_dataset(path)
    assert data.X.tolist() == [[30, 1.7], [41, 1.8], [52, 1.9]]
    assert data.feature_names == ("age", "height")
    assert data.labels.tolist() == ["yes", "no", "no"]
    assert data.ids.tolist() == ["ann", "bob", "cid"]
    assert data.partition.agent_of.tolist() == [0, 1]
    for words in (["import", csv.with_name("none.csv")], ["simulate", "-n", 10**15]):
        result = run(capsys, "data", *words, "-o", path)  # seen before the work
        assert "exists; pass --force to replace it" in result.sentence


def test_simulate(capsys, path):
    options = ["-n", 300, "-d", 4, "-k", 2, "--overlap", 0.2, "--agents", 2, "--seed", 3]
    result = done(capsys, "data", "simulate", "-o", path, *options)
    assert "300 rows, 4 features, labels, 2 agents, 2 components, overlap 0.2" in result.err
    data = read_dataset(path)
    assert data.X.shape == (300, 4)
    assert set(data.labels.tolist()) == {0, 1}
    with h5py.File(path) as file:
        assert file["truth/covariances"].shape == (2, 4, 4)
        assert file["truth/overlap"][()] == pytest.approx(0.2, rel=0.01)
    before = path.read_bytes()
    done(capsys, "data", "simulate", "-o", path, *options, "--force")
    assert path.read_bytes() == before


def described(capsys, path, *words):
    return done(capsys, "data", "describe", path, "--json", *words).json


def test_describe_flags_what_is_unusual(capsys, path):
    X = np.array([[1.0, np.nan, 2], [1, np.nan, np.inf], [1, np.nan, 2.5]])
    write_dataset(path, Dataset(X, ("same", "[red]none[/red]", "with\x1b[31m inf")))
    text = done(capsys, "data", "describe", path).out
    for part in ("constant", "3 missing", "1 infinite", "[red]none[/red]"):
        assert part in text
    assert "\x1b" not in text
    summary = described(capsys, path)
    assert [f["constant"] for f in summary["features"]] == [True, False, False]
    assert [f["non_finite"] for f in summary["features"]] == [0, 3, 1]
    assert (summary["features"][1]["mean"], summary["features"][2]["max"]) == (None, 2.5)
    assert (summary["n_non_finite"], summary["n_constant"]) == (4, 1)
    assert summary["labels"] is summary["agents"] is summary["edges"] is None
    silent = done(capsys, "data", "describe", path, "-q")
    assert silent.out + silent.err == ""


def test_describe_shortens_long_tables_and_takes_another_matrix(capsys, path):
    write_dataset(path, Dataset(np.ones((1, 130)), tuple(f"gene {n}" for n in range(130))))
    text = done(capsys, "data", "describe", path).out
    assert "gene 99" in text
    assert "gene 100" not in text
    assert "and 30 more; --json shows all" in text
    assert len(described(capsys, path)["features"]) == 130
    stored(path, deep__matrix=np.ones((4, 2)))
    summary = described(capsys, path, "--dataset", "deep/matrix")
    assert (summary["n_samples"], summary["n_features"]) == (4, 2)
    refused = run(capsys, "data", "describe", path).sentence
    assert "--dataset: deep/matrix (4 x 2)" in refused


# The files in data/ -------------------------------------------------------------------------------


def make_datasets():
    script = ROOT / "data/scripts/make_datasets.py"
    spec = importlib.util.spec_from_file_location("make_datasets", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "load"), [("breast_cancer", load_breast_cancer), ("wine", load_wine)]
)
def test_the_stored_datasets_are_what_the_script_makes(name, load):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_dataset(ROOT / "data" / f"{name}.h5")
    same(read, getattr(make_datasets(), name)())
    bunch = load()
    np.testing.assert_array_equal(read.X, bunch.data)
    assert read.labels.tolist() == bunch.target_names[bunch.target].tolist()
    if name == "breast_cancer":  # an agent holds one quantity
        for agent, held in zip(read.partition.names, read.partition.features, strict=True):
            names = [read.feature_names[column] for column in held]
            assert names == [f"mean {agent}", f"{agent} error", f"worst {agent}"]


def test_the_script_writes_the_stored_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["make_datasets.py", "--folder", str(tmp_path)])
    make_datasets().main()
    assert capsys.readouterr().out.count("wrote") == 2
    for name in ("breast_cancer.h5", "wine.h5"):
        same(read_dataset(tmp_path / name), read_dataset(ROOT / "data" / name))


def test_a_feature_is_one_of_columns_with_the_same_name(tmp_path):
    """Of Parquet the columns before and after it are read along with it."""
    values = np.arange(12.0).reshape(4, 3) ** 2
    columns = [pa.array(column) for column in values.T]
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.Table.from_arrays(columns, names=["a", "b", "a"]), path)
    with pytest.warns(VpemWarning, match=r"further ones are called 'a\.1'"):
        data = read_dataset(path, features=["a.1"])
    np.testing.assert_array_equal(data.X, values[:, 2:])


def test_a_part_of_what_is_nested_is_no_column_beside_one_of_its_name(tmp_path):
    values, path = np.arange(8.0).reshape(4, 2) ** 2, tmp_path / "table.parquet"
    nested = pa.array([{"b": -1.0, "c": 2}] * 4)
    parquet.write_table(pa.table({"x": values[:, 0], "a": nested, "a.b": values[:, 1]}), path)
    np.testing.assert_array_equal(read_dataset(path).X, values)
    frame = open_frame(path, TableSettings())
    last = [column[3].as_py() for column in frame.read([0, 1, 2], [])]
    assert last == [36.0, {"b": -1.0, "c": 2}, 49.0]
