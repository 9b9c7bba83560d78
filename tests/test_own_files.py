"""Files as people have them: each is read right, or refused with what would help."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import warnings
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
from pyarrow import feather, parquet

from vpem import Dataset, TableSettings, VpemError, VpemWarning, read_dataset, write_dataset
from vpem.files.data import read_data
from vpem.network.partition import from_agent_of_feature

from .tables import each

NAN = float("nan")


def zipped(members: dict[str, str]) -> bytes:
    """Return a zip file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return packed.getvalue()


def saved(write, *arguments, **named) -> bytes:
    """Return what a function writes to a stream."""
    stream = io.BytesIO()
    write(stream, *arguments, **named)
    return stream.getvalue()


def hdf5(fill) -> bytes:
    """Return an HDF5 file that a function fills."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        fill(file)
    return stream.getvalue()


TABLE = pa.table(
    {
        "id": ["u", "v", "w"],
        "whole": pa.array([1, 2, 4], pa.int16()),
        "text": ["p", "q", "p"],
        "coded": pa.array(["p", "q", "p"]).dictionary_encode(),
        "list": [[1], [2], [3]],
        "real": [0.5, None, 2.5],
    }
)
OF_TABLE = {
    "X": [[1, 0.5], [2, NAN], [4, 2.5]],
    "names": ("whole", "real"),
    "ids": ["u", "v", "w"],
    "left_out": {"text": "text", "coded": "text", "list": "lists"},
}
PLAIN = {"X": [[1, 2], [3, 5]], "names": ("a", "b")}
CSV = "a,b\n1,2\n3,5\n"


def cells(file: h5py.File) -> None:
    """Write what AnnData writes: cells by genes, sparse, with categories of cells."""
    file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    X = file.create_group("X")
    X.attrs.update({"encoding-type": "csr_matrix", "shape": [3, 2]})
    X["data"], X["indices"], X["indptr"] = np.array([1, 2], "f4"), [1, 0], [0, 1, 1, 2]
    file["layers/raw"] = np.arange(6).reshape(3, 2)
    for name, index in (("obs", ["c1", "c2", "c3"]), ("var", ["g1", "g2"])):
        file[f"{name}/_index"] = index
        file[name].attrs["_index"] = "_index"
    file["obs/kind/codes"], file["obs/kind/categories"] = np.array([1, 0, 1], "i1"), ["B", "T"]
    file["obs/weight"] = [0.5, 1.0, 2.0]


def fixed(file: h5py.File) -> None:
    """Write what pandas writes with to_hdf: blocks of columns."""
    file.create_group("df").attrs["pandas_type"] = np.bytes_("frame")
    file["df/block0_items"], file["df/block0_values"] = np.array([b"a"]), np.array([[1.5], [2.5]])


def appendable(file: h5py.File) -> None:
    """Write what pandas writes with to_hdf(format="table"): records, whose names are pickled."""
    file.create_group("deep/df").attrs["pandas_type"] = np.bytes_("frame_table")
    file["deep/df/table"] = np.array([(0, 1.5), (1, 2.5)], [("index", "i8"), ("a", "f8")])


RECORDS = np.array([(1, 2.5, b"x"), (2, 3.5, b"y")], [("a", "i4"), ("b", "f8"), ("n", "S3")])
OF_RECORDS = {"X": [[1, 2.5], [2, 3.5]], "names": ("a", "b"), "ids": ["x", "y"]}
MATRIX = np.array([[1.0, 2.0], [3.0, 5.0]])
UNNAMED = {"X": [[1, 2], [3, 5]], "names": ("feature 0", "feature 1")}
GERMAN = 'name;"Größe";Gewicht\nJörg;1,75;1.070,5\nUrsula;1,62;58,25\n'
OF_GERMAN = {"X": [[1.75, 1070.5], [1.62, 58.25]], "names": ("Größe", "Gewicht"),
             "ids": ["Jörg", "Ursula"]}  # fmt: skip

FILES = [
    # Text: delimiters, names, and what stands above them
    ("t.csv", CSV, {}, PLAIN),
    ("t.csv", "\ufeff" + CSV.replace("\n", "\r\n"), {}, PLAIN),
    ("t.csv", CSV.replace("\n", "\r"), {}, PLAIN),
    ("t.csv", CSV.replace(",", ";"), {}, PLAIN),
    ("t.dat", CSV.replace(",", "|"), {}, PLAIN),
    ("t", CSV.replace(",", "\t"), {}, PLAIN),
    ("t.csv", "sep=;\n" + CSV.replace(",", ";"), {}, PLAIN),
    ("t.txt", "# written by numpy.savetxt\n# a b\n1 2\n3 5\n", {}, PLAIN),
    ("t.data", "   1.0   2.0\n   3.0   5.0\n", {"no_header": True},
     {**PLAIN, "names": ("column 0", "column 1")}),
    ("t.csv", "1.5,2\n3,5\n", {}, "first row was taken for names .* no_header=True"),
    ("t.csv", "a,a\n1,2\n3,5\n", {}, "further ones are called 'a.1'"),
    ("t.csv", '"body\n mass","b, c"\n1,2\n3,5\n', {}, {**PLAIN, "names": ("body mass", "b, c")}),
    ("t.csv", "Sales of May\n\na,b\n1,2\n3,5\n", {}, "remove the lines above .* delimiter"),
    ("t.csv", "a,b\nx,y\nx,y\n", {}, r"a \(text\), b \(text\); features are columns of numbers"),
    ("t.csv", "a,b,,\n1,2,,\n3,5,,\n", {},
     {**PLAIN, "left_out": {"column 2": "no values", "column 3": "no values"}}),
    ("t.csv", "a,b\n1,2,\n3,5,\n", {}, {**PLAIN, "left_out": {"column 2": "no values"}}),
    ("t.csv", "a,b\n1,2\n3\n", {}, r"row 1 \(counted from 0\) has 1 fields instead of 2"),
    # Rows that have names
    ("t.csv", ",a,b\n0,1,2\n1,3,5\n", {}, {**PLAIN, "left_out": {"column 0": "index"}}),
    ("t.csv", '"","a","b"\n"Fiat",1,2\n"Seat",3,5\n', {}, {**PLAIN, "ids": ["Fiat", "Seat"]}),
    ("t.txt", '"a" "b"\n"Fiat" 1 2\n"Seat" 3 5\n', {}, {**PLAIN, "ids": ["Fiat", "Seat"]}),
    ("t.csv", "ID,a,b\n007,1,2\n008,3,5\n", {}, {**PLAIN, "ids": ["007", "008"]}),
    ("t.csv", "id,a,b\n7,1,2\n7,3,5\n", {}, {**PLAIN, "left_out": {"id": "ids that repeat"}}),
    # What is no number
    ("t.csv", "site,a,day,b,unit,none\nx,1,2020-01-01,2,3,\nx,3,2020-01-01,5,3,NA\n", {},
     {**PLAIN, "left_out": {"site": "text", "day": "dates", "unit": "constant",
                            "none": "no values"}}),
    ("t.csv", "site,a,unit,b\nx,1,3,2\nx,3,3,5\n", {"features": "a,unit"},
     {"X": [[1, 3], [3, 3]], "names": ("a", "unit")}),
    ("t.csv", "a,b,c,d\n1,2,3,4\n3,5,4,5\n", {"features": "0-1", "label_column": -1},
     {**PLAIN, "labels": [4, 5]}),
    ("t.csv", "site,a\nx,1\nx,2\n", {"features": "a,site"}, "column 'site' holds text .*'x' in"),
    ("t.csv", "site,day\nx,2020-01-01\nx,2020-01-02\n", {}, r"left .*: site \(text\), day \(dates"),
    ("t.csv", 'note,a,b\n"two\nlines, quoted",1,2\nsame,3,5\n', {"drop": "note"}, PLAIN),
    ("t.csv", "a,b\ntrue,1\nFALSE,2\n", {}, {"X": [[1, 1], [0, 2]], "names": ("a", "b")}),
    ("t.csv", "a,b\n1,12 %\n2,3 %\n", {}, "'b' holds numbers written as '12 %'; .* drop='b'"),
    ("t.csv", "a,b\nmm,kg\n1,2\n3,5\n4,6\n5,7\n6,8\n", {},
     "but for 1 value, 'mm' .* remove that row if it holds units, or what stands above"),
    ("t.csv", "Export of May,\n,\nmm,kg\n1,2\n3,5\n4,6\n5,7\n6,8\n", {},
     "but for 1 value, 'mm' .* remove that row if it holds units, or what stands above"),
    ("t.csv", "a,b\n1,2\n3,5\n4,6\n5,7\n6,8\nSum,28\n", {},
     "but for 1 value, 'Sum' .* remove that row if it holds totals; or if .* pass na='Sum'"),
    # Missing values
    ("t.csv", "a,b\n1,NA\n,5\nN/A,null\n2,6\n", {},
     {"X": [[1, NAN], [NAN, 5], [NAN, NAN], [2, 6]], "names": ("a", "b")}),
    ("t.csv", "a,b\n1,?\n3,5\n4, ?\n", {}, r"'b' holds numbers but for 2 .*'\?' .* na='\?'"),
    ("t.csv", "a,b\n1,?\n3,5\n-999,-999.0\n", {"na": "?,-999"},
     {"X": [[1, NAN], [3, 5], [NAN, NAN]], "names": ("a", "b")}),
    # Numbers and letters of other countries
    ("t.csv", GERMAN.encode("latin-1"), {}, "is not UTF-8 text; .* encoding='latin-1'"),
    ("t.csv", GERMAN.encode("latin-1"), {"encoding": "latin-1"}, "'1,75'; pass decimal=','"),
    ("t.csv", GERMAN.encode("latin-1"), {"encoding": "latin-1", "decimal": ","},
     "written as '1.070,5'; .*thousands='.'"),
    ("t.csv", GERMAN, {"decimal": ",", "thousands": "."}, OF_GERMAN),
    ("t.txt", GERMAN.encode("utf-16"), {"decimal": ",", "thousands": "."}, OF_GERMAN),
    ("t.csv", CSV.encode("utf-16-le"), {}, "encoding='utf-16-le'"),
    ("t.csv", CSV.encode("utf-16-le"), {"encoding": "utf-16-le"}, PLAIN),
    ("t.csv", "a;b\n1,234;2\n5,678;5\n", {}, "decimal=',', or thousands=','"),
    # Packed
    ("t.csv.gz", gzip.compress(CSV.encode()), {}, PLAIN),
    ("t.csv.bz2", bz2.compress(CSV.encode()), {}, PLAIN),
    ("t.csv.xz", lzma.compress(CSV.encode()), {}, PLAIN),
    ("t.zip", zipped({"t.csv": CSV, "__MACOSX/x": ""}), {}, PLAIN),
    ("t.zip", zipped({"t.csv": CSV, "u.csv": CSV}), {}, "zip file of 2 files .*; unpack it"),
    ("t.csv", gzip.compress(CSV.encode()), {}, PLAIN),
    ("t.npy.gz", gzip.compress(saved(np.save, MATRIX)), {}, "packed NPY; unpack it first"),
    # Other formats
    ("t.parquet", saved(lambda stream: parquet.write_table(TABLE, stream)), {}, OF_TABLE),
    ("t.feather", saved(lambda stream: feather.write_feather(TABLE, stream)), {}, OF_TABLE),
    ("t.npy", saved(np.save, MATRIX), {}, UNNAMED),
    ("t.npy", saved(np.save, np.asfortranarray(MATRIX)), {"label_column": 1},
     {"X": [[1], [3]], "names": ("feature 0",), "labels": [2, 5]}),
    ("t.npy", saved(np.save, np.array([[1, "x"]], object)), {}, "are pickles and are not read"),
    ("t.npy", saved(np.save, MATRIX).replace(b"(2, 2)", b"(9, 9)"), {}, "cut short"),
    ("t.npy", saved(np.save, RECORDS), {}, OF_RECORDS),
    ("t.npz", saved(np.savez, X=MATRIX, feature_names=["a", "b"], ids=[7, 8], labels=["p", "q"]),
     {}, {**PLAIN, "ids": [7, 8], "labels": ["p", "q"]}),
    ("t.npz", saved(np.savez, train=MATRIX, test=MATRIX), {}, "several arrays .* dataset"),
    ("t.npz", saved(scipy.sparse.save_npz, scipy.sparse.csr_matrix(MATRIX)), {}, UNNAMED),
    ("t.h5ad", hdf5(cells), {"label_column": "kind", "sample_weight": "weight"},
     {"X": [[0, 1], [0, 0], [2, 0]], "names": ("g1", "g2"), "ids": ["c1", "c2", "c3"],
      "labels": ["T", "B", "T"], "weights": [0.5, 1, 2]}),
    ("t.h5ad", hdf5(cells), {"dataset": "layers/raw", "features": "g2"},
     {"X": [[1], [3], [5]], "names": ("g2",), "ids": ["c1", "c2", "c3"]}),
    ("t.h5ad", hdf5(cells), {"label_column": "knid"}, "no column 'knid' .*'kind'"),
    ("t.h5", hdf5(fixed), {}, "pandas keeps it in HDF5 .* df.to_parquet.* or as CSV"),
    ("t.h5", hdf5(appendable), {}, "pandas keeps it in HDF5 .* df.to_parquet.* or as CSV"),
    ("t.h5", hdf5(lambda file: file.create_dataset("rows", data=RECORDS)), {}, OF_RECORDS),
    # What is no table, or nothing
    ("t.csv", "", {}, "is empty"),
    ("t.csv", "a,b\n", {}, "has no rows"),
    ("t.csv", "\0\1\2" * 9, {}, "is no text, and .csv is not read"),
    ("t.xlsx", zipped({"xl/workbook.xml": "x"}), {}, "is an Excel file; save the sheet as CSV"),
    ("t.pkl", pickle.dumps([1.0], 4), {}, "is a pickle, which could run any program"),
    ("t.json", '{"a": [1, 2]}', {}, "is JSON; write the table as CSV"),
    ("t.csv", "<!DOCTYPE html>\n<html>", {}, "is a web page, not a table; download the file"),
    ("t.parquet", CSV, {}, "is not a Parquet file, although it is called so"),
    ("t.csv", ",".join(map(str, range(50_000))) + "\n", {}, "if features are rows, transpose it"),
]  # fmt: skip


@each(("name", "content", "options", "expected"), FILES)
def test_files_are_read_right_or_refused_with_what_helps(
    tmp_path, name, content, options, expected
):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if isinstance(expected, str):
            with pytest.raises((VpemError, VpemWarning), match=expected) as refused:
                read_dataset(path, **options)
            assert str(path) in str(refused.value)
            return
        found = read_dataset(path, **options)
    assert np.array_equal(found.X, np.array(expected["X"], float), equal_nan=True)
    assert found.feature_names == expected["names"]
    for noted in ("ids", "labels"):
        values = getattr(found, noted)
        assert (None if values is None else values.tolist()) == expected.get(noted)
    weights = found.sample_weight
    assert (None if weights is None else weights.tolist()) == expected.get("weights")
    assert found.left_out == expected.get("left_out", {})
    assert found.plain
    assert found.source == str(path)


def test_standard_input_is_read_by_what_it_begins_with(monkeypatch):
    stored = hdf5(lambda file: file.create_dataset("X", data=MATRIX))
    named = b"id,a,b\nx,1,2\ny,3,5\n"
    for content in (CSV.encode(), gzip.compress(named), stored):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        found = read_data("-", memory_limit=10**9, on_disk=True)
        assert (found.X.shape, found.source) == ((2, 2), "standard input")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(named)[:20])))
    with pytest.raises(VpemError, match="standard input cannot be unpacked"):
        read_data("-")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(VpemError, match="standard input is empty"):
        read_data("-")


def test_a_model_knows_how_its_table_was_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("who;a;b;kind\nx;1,5;?;p\ny;2,5;3;q\n")
    given = TableSettings(decimal=",", na="?", features="b,a", label_column="kind")
    found = read_data(path, given)
    assert (found.feature_names, found.ids.tolist()) == (("b", "a"), ["x", "y"])
    assert found.table == given.changed(id_column="who")
    path.write_text("a;more;b\n1,5;x;?\n2,5;x;3\n")
    again = read_data(path, kept=found.table, columns=found.feature_names)
    assert np.array_equal(again.X, [[NAN, 1.5], [3, 2.5]], equal_nan=True)
    assert (again.ids, again.labels) == (None, None)
    with pytest.raises(VpemError, match="no label column 'kind'"):
        read_data(path, TableSettings(label_column="kind"), kept=found.table)
    # Where a mark is given another meaning, the model's other one makes way.
    english, german = TableSettings(thousands=","), TableSettings(decimal=",", thousands=".")
    assert TableSettings(decimal=".").with_defaults_of(german).thousands is None
    assert TableSettings(decimal=",").with_defaults_of(english).thousands is None
    assert english.with_defaults_of(german).point == "."
    with pytest.raises(VpemError, match="no column 'c'"):
        read_data(path, kept=found.table, columns=("a", "c"))
    assert read_data(path, kept=found.table, columns=frozenset("ac")).feature_names == ("a",)
    path.write_text("a;b;c\n;1;\n;1;\n")
    assert np.isnan(read_data(path, columns=("a",)).X).all()
    kept = read_data(path, keep_constant=True)
    assert (kept.feature_names, kept.left_out) == (("a", "b", "c"), {})


def test_features_of_matrices_are_chosen_and_held_as_before(tmp_path):
    X = np.arange(12.0).reshape(3, 4)
    held = Dataset(X, tuple("abcd"), partition=from_agent_of_feature([0, 1, 1, 2], "xyz"))
    write_dataset(tmp_path / "held.h5", held)
    for limit in (None, 0):
        found = read_data(tmp_path / "held.h5", TableSettings(features="3,1"), memory_limit=limit)
        assert found.feature_names == ("d", "b")
        assert found.X[:3].tolist() == X[:, [3, 1]].tolist()
        assert found.partition.names == ("y", "z")
        assert [own.tolist() for own in found.partition.features] == [[1], [0]]
    found = read_dataset(tmp_path / "held.h5", drop="a,c", label_column="d")
    assert (found.feature_names, found.labels.tolist()) == (("b",), [3, 7, 11])


def test_tables_keep_to_the_memory_limit(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 1000)
    with pytest.raises(VpemError, match=r"takes 0.032 MB, more than .*'vpem data import'"):
        read_data(path, memory_limit=20_000, keep_constant=True)
    assert read_data(path, memory_limit=40_000, keep_constant=True).X.shape == (1000, 2)


@each(
    ("options", "sentence"),
    [
        ({"decimal": ";"}, "decimal must be one of ., ,, got ';'"),
        ({"thousands": ";"}, "thousands must be one of"),
        ({"decimal": ",", "thousands": ","}, "are the same mark"),
        ({"encoding": "klingon"}, "encoding must be one of .*, got 'klingon'"),
        ({"encoding": "base64"}, "encoding must be one of"),
        ({"features": 1.5}, "features must be words with commas, or a list, got 1.5"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, sentence):
    with pytest.raises(VpemError, match=sentence):
        TableSettings(**options)
