import csv
import io

import h5py
import numpy as np
import pytest
from pyarrow import parquet

from vpem.errors import FileError, InputError
from vpem.files.results import write_columns

COLUMNS = {
    "id": np.array(["plain", "with, comma", 'with "quotes"', "two\nlines", "größe"]),
    "label": np.array([3, 0, -1, 2, 7]),
    "proba_0": np.array([1 / 3, 0.1, 1e-300, 123456789.123456789, 0.0]),
}


def parsed(text):
    rows = list(csv.reader(io.StringIO(text, newline="")))
    return rows[0], [list(column) for column in zip(*rows[1:], strict=True)]


def check_csv(text):
    head, columns = parsed(text)
    assert head == list(COLUMNS)
    assert columns[0] == COLUMNS["id"].tolist()
    assert [int(word) for word in columns[1]] == COLUMNS["label"].tolist()
    assert [float(word) for word in columns[2]] == COLUMNS["proba_0"].tolist()


def test_csv_gives_back_every_digit_and_character(tmp_path):
    write_columns(tmp_path / "a.csv", COLUMNS, "vpem-predictions")
    check_csv((tmp_path / "a.csv").read_bytes().decode("utf-8"))


def test_without_a_file_the_same_csv_goes_to_stdout(tmp_path, capsys):
    write_columns(None, COLUMNS, "vpem-predictions")
    check_csv(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.h5", "a.hdf5"])
def test_hdf5_says_what_it_is(tmp_path, name):
    write_columns(tmp_path / name, COLUMNS, "vpem-predictions")
    with h5py.File(tmp_path / name) as file:
        assert file.attrs["encoding-type"] == b"vpem-predictions"
        assert file.attrs["encoding-version"] == b"0.1.0"
        assert sorted(file) == sorted(COLUMNS)
        assert file["id"].asstr()[()].tolist() == COLUMNS["id"].tolist()
        np.testing.assert_array_equal(file["label"][()], COLUMNS["label"])
        np.testing.assert_array_equal(file["proba_0"][()], COLUMNS["proba_0"])


def test_parquet_has_nulls_where_values_are_masked(tmp_path):
    lost = {"share": np.ma.array([0.5, np.nan, 0.1, 2.0, 3.0], mask=[0, 0, 1, 0, 0])}
    write_columns(tmp_path / "a.parquet", COLUMNS | lost, "vpem-predictions")
    found = parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert list(found) == [*COLUMNS, "share"]
    for name, column in COLUMNS.items():
        assert found[name] == column.tolist()
    assert (found["share"][0], found["share"][2:]) == (0.5, [None, 2.0, 3.0])
    assert np.isnan(found["share"][1])


@pytest.mark.parametrize("name", ["a.txt", "a", "a.csv.gz", ".csv", "a.npz"])
def test_other_endings_are_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(InputError, match=r"written to \.csv, \.parquet, \.h5 or \.hdf5 files, got"):
        write_columns(tmp_path / name, COLUMNS, "vpem-predictions")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.csv", "a.h5"])
def test_an_existing_file_is_replaced_only_by_force(tmp_path, name):
    path = tmp_path / name
    path.write_text("precious")
    with pytest.raises(FileError, match="exists; pass force=True"):
        write_columns(path, COLUMNS, "vpem-predictions")
    assert path.read_text() == "precious"
    write_columns(path, COLUMNS, "vpem-predictions", force=True)
    assert path.read_bytes() != b"precious"
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.csv", "a.h5"])
def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path, name):
    path = tmp_path / name
    path.write_text("precious")
    columns = {"label": np.arange(3), "id": np.array(["a", "b\0c", "d"])}
    if name == "a.csv":
        columns = {"label": np.arange(3), "id": np.array(["a", "b"])}
    with pytest.raises(ValueError, match=r"NUL|shorter"):
        write_columns(path, columns, "vpem-predictions", force=True)
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == [name]
