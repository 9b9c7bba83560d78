"""Files as people have them: each is read right, or refused with what would help."""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import io
import json
import lzma
import pickle
import re
import sys
import warnings
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
from pyarrow import feather, parquet

from vpem import Dataset, TableSettings, VpemError, VpemWarning, read_dataset, write_dataset
from vpem.errors import FileError, InputError
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

PEOPLE = "name,age,height,sick\nann,30,1.7,true\nbob,41,1.8,false\n"
OF_PEOPLE = {"X": [[30, 1.7], [41, 1.8]], "names": ("age", "height"), "ids": ["ann", "bob"],
             "labels": ["true", "false"]}  # fmt: skip
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
    ("t.csv", '"body\n mass","b, c"\n1,2\n3,5\n', {}, {**PLAIN, "names": ("body mass", "b, c")}),
    ("t.csv", "Sales of May\n\na,b\n1,2\n3,5\n", {}, "remove the lines above .* delimiter"),
    ("t.csv", "a,b\nx,y\nx,y\n", {}, r"a \(text\), b \(text\); features are columns of numbers"),
    ("t.csv", "a,b,,\n1,2,,\n3,5,,\n", {},
     {**PLAIN, "left_out": {"column 2": "no values", "column 3": "no values"}}),
    ("t.csv", "a,b\n1,2,\n3,5,\n", {}, {**PLAIN, "left_out": {"column 2": "no values"}}),
    ("t.csv", "a,b\n1,2\n3\n", {}, r"row 1 \(counted from 0\) has 1 fields instead of 2"),
    ("t.csv", PEOPLE, {"label_column": "sick", "id_column": "name"}, OF_PEOPLE),
    ("t.csv", PEOPLE, {"label_column": -1, "id_column": "0", "drop": ["-2"]},
     {**OF_PEOPLE, "X": [[30], [41]], "names": ("age",)}),
    ("t.csv", "1,0,x\n5,7,2\n6,8,3\n", {"label_column": "0", "id_column": 0},
     {"X": [[2], [3]], "names": ("x",), "ids": [5, 6], "labels": [7, 8]}),
    ("t.csv", "1,2,9\n3,4,8\n", {"no_header": True, "label_column": 1},
     {"X": [[1, 9], [3, 8]], "names": ("column 0", "column 2"), "labels": [2, 4]}),
    ("t.csv.gz", gzip.compress('\ufeff"a", b ,c\r\n1, 2,"x, y"\r\n\r\n3,5,z \r\n'.encode()),
     {"label_column": "c"}, {**PLAIN, "labels": ["x, y", "z"]}),
    *(("t.csv", f"a,x{mark}b\n1{mark}2\n", {"delimiter": given},
       {"X": [[1, 2]], "names": ("a,x", "b")})
      for given, mark in (("|", "|"), ("tab", "\t"), ("\\t", "\t"), (";", ";"))),
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
    ("t.csv", "\n\n", {}, "the file has no rows"),
    ("t.csv", "a,b\n1,2\n3,4,5\n", {}, "row 1 .* has 3 fields instead of 2"),
    ("t.csv", "1,2\n3\n", {"no_header": True}, r"row 1 .* has 1 fields instead of 2"),
    ("t.csv", "a,\u00fc\n1,2\n".encode("latin-1"), {}, "not UTF-8 text"),
    ("t.csv", "a,b\n1,\u00fc\n".encode("latin-1"), {}, "not UTF-8 text"),
    ("t.csv", "a,b\n1,\u00fc\n".encode("latin-1"), {"label_column": "b"}, "not UTF-8 text"),
    ("t.csv", b"a,b\n1,\0\n", {}, "is no text"),
    ("t.csv", 'x,y\n1,a\n2,"b\n3,c\n4,"d"\n', {"label_column": 1},
     "row 1 .* has a line break in column 'y'; is a quot"),
    ("t.csv", 'x,"y\n1,a\n2,"b\n3,c\n', {"label_column": 1},
     "a column name has a line break; is a quotation mark"),
    ("t.csv", "x,y\n1,a\n2, \n", {"label_column": "y"}, r"row 1 .* has no value in column 'y'"),
    ("t.csv", "1.5,2,x\n3,4,y\n", {"label_column": "x"}, "first row .* no_header=True"),
    ("t.csv.gz", b"\x1f\x8b" + CSV.encode(), {}, "cannot be unpacked"),
    ("t.csv.gz", gzip.compress(np.random.default_rng(0).bytes(9000).hex().encode())[:5000], {},
     "t.csv.gz"),
    ("t.parquet", "PAR1,b\n1,2\n", {}, "cannot be read as Parquet"),
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


@each("given", ["", "ab", "\n", '"', "\u20ac", "\0"])
def test_other_delimiters_are_refused(table, given):
    with pytest.raises(InputError, match="delimiter must be one character"):
        read_dataset(table(CSV), delimiter=given)


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


# Columns of tables, one by one --------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    """Return a function that writes text to a file and gives its path."""

    def write(text, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def columns(tmp_path):
    """Return a function that writes columns to a Parquet file and gives its path."""

    def write(**items):
        path = tmp_path / "table.parquet"
        parquet.write_table(pa.table(items), path)
        return path

    return write


@each(
    ("values", "expected"),
    [
        (["1", "-2"], [1, -2]),
        (["007", "8"], ["007", "8"]),
        (["1.0", "2"], ["1.0", "2"]),
        (["1e5", "2"], ["1e5", "2"]),
        (["NA", "nan"], ["NA", "nan"]),
        (["2020-01-01", "2021-01-01"], ["2020-01-01", "2021-01-01"]),
        (["9" * 25, "1"], ["9" * 25, "1"]),
    ],
)
def test_integers_stay_integers_and_the_rest_is_text(table, values, expected):
    rows = "".join(f"{value},{row}\n" for row, value in enumerate(values))
    assert read_dataset(table("id,x\n" + rows), id_column="id").ids.tolist() == expected


def test_types_may_change_late_in_a_long_file(table, monkeypatch):
    monkeypatch.setattr("vpem.files.readers.text.BLOCK_BYTES", 1 << 12)
    rows = "1,2\n" * 20_000
    assert read_dataset(table("a,b\n" + rows + "1.5,3\n")).X[-1].tolist() == [1.5, 3]
    with pytest.raises(InputError, match=r"but for 1 value, 'x' \(first in row 20000"):
        read_dataset(table("a,b\n" + rows + "x,2\n"))


def test_a_row_that_is_no_text_is_said_once(table, monkeypatch):
    ignored = []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    with pytest.raises(FileError, match=r"row 1 .* has 3 fields instead of 2"):
        read_dataset(table(b"a,b\n1,2\n3,4,\xe9\n5,6\n"))
    assert not ignored
    assert sys.unraisablehook == ignored.append


def test_rows_longer_than_a_block_are_refused(table, monkeypatch):
    monkeypatch.setattr("vpem.files.readers.text.BLOCK_BYTES", 64)
    with pytest.raises(FileError, match="a row is longer than 64 bytes"):
        read_dataset(table("x,y\n" + "1,2\n" * 100 + "1," + "2" * 200 + "\n"))


@each(
    ("options", "sentence"),
    [
        ({"label_column": "sik"}, r"no label column 'sik' \(did you mean 'sick'\?\); the columns"),
        ({"id_column": 4}, "no id column 4; the 4 columns are numbered from 0 to 3"),
        ({"id_column": "-5"}, "no id column -5"),
        ({"id_column": 1.0}, "must be a name or a number, got 1.0"),
        ({"id_column": True}, "must be a name or a number, got True"),
        ({"drop": ["what"]}, "no column 'what'"),
        ({"label_column": "name", "id_column": 0}, "'name' cannot hold both labels and ids"),
        ({"label_column": "name", "drop": [0]}, "label column 'name' is also dropped"),
        ({"id_column": "name", "drop": [0]}, "id column 'name' is also dropped"),
        ({"drop": [0, 1, 2, 3]}, "no column is left"),
    ],
)
def test_columns_that_cannot_be_used_are_refused(table, options, sentence):
    with pytest.raises(InputError, match=sentence):
        read_dataset(table(PEOPLE), **options)


def test_columns_of_one_name_are_told_apart(table):
    with pytest.warns(VpemWarning, match="further ones are called 'a.2', 'a.3'$"):
        found = read_dataset(table("a,a,a.1,a\n1,2,5,7\n3,5,6,8\n"), label_column="a")
    assert found.feature_names == ("a.2", "a.1", "a.3")
    assert found.labels.tolist() == [1, 3]


NAMED = "an id or code, by its name"
ROWS = 40
NUMBERS = np.random.default_rng(5).permutation(9000)[:ROWS]


@each(
    ("name", "value", "why"),
    [
        ("code", lambda i: f"{NUMBERS[i]:05d}", "ids of rows"),
        ("code", lambda i: NUMBERS[i], "ids of rows"),
        ("code", lambda i: i + 7, "ids of rows"),
        ("code", lambda i: (1000 + i) * 10**16, "ids of rows"),
        ("code", lambda i: (1000 + i // 2) * 10**16, "more digits than a number can keep"),
        ("code", lambda i: f"0{1000 + i % 9}", "zeros in front"),
        ("code", lambda i: "NA" if i == 3 else f"0{1000 + i % 9}", "zeros in front"),
        ("Patient", lambda i: NUMBERS[i], "ids of rows"),
        ("patientId", lambda i: i // 3, NAMED),
        ("patientId", lambda i: "" if i == 3 else NUMBERS[i], NAMED),
        ("nr", lambda i: 3 * (i // 2), NAMED),
        ("Fallnummer", lambda i: 40_000 + i // 2, NAMED),
        ("PATIENT_NO", lambda i: 40_000 + i // 2, NAMED),
        ("Kennung", lambda i: 40_000 + i // 2, NAMED),
        ("PatNr", lambda i: 40_000 + i // 2, NAMED),
        ("studynr", lambda i: 40_000 + i // 2, NAMED),
        ("proband", lambda i: 1001 + i // 2, NAMED),
        ("zip code", lambda i: 10_001 + i % 9, NAMED),
        ("code_postal", lambda i: 10_001 + i % 9, NAMED),
        ("visit", lambda i: 2024_01_01 + i % 28, "dates or times as numbers"),
        ("month", lambda i: 2023_10 + i % 3 + 91 * (i % 2), "dates or times as numbers"),
        ("Date", lambda i: 45_292 + i % 9, "dates or times as numbers"),
        ("Aufnahmedatum", lambda i: 45_292 + i % 9, "dates or times as numbers"),
        ("timestamp", lambda i: i % 9 / 50, "dates or times as numbers"),
        ("time", lambda i: 1.7e9 + i % 9 / 50, "dates or times as numbers"),
        ("created_at", lambda i: 1.7e9 + i % 9 / 50, "dates or times as numbers"),
        ("elapsed_s", lambda i: i / 5, "dates or times as numbers"),
        ("class", lambda i: i % 3, "known classes, by its name"),
        ("Klasse", lambda i: i % 3, "known classes, by its name"),
        ("time", lambda i: i % 9 / 50, None),
        ("time", lambda i: i + i * i / 50, None),
        ("USUBJID", lambda i: 100 + i // 3, NAMED),
        ("made", lambda i: 1_700_000_000 + 60 * NUMBERS[i], "ids of rows"),
        ("made", lambda i: 1_700_000_000 + 60 * (i // 2), "dates or times as numbers"),
        ("age", lambda i: NUMBERS[i] % 60, None),
        ("income", lambda i: NUMBERS[i] + 0.5, None),
        ("income", lambda i: NUMBERS[i] * 10, None),
        ("patient", lambda i: i % 2, None),
        ("body mass index", lambda i: 20 + i % 7, None),
        ("wave_number", lambda i: 400 + i % 7, None),
        ("FeNO", lambda i: 20 + i % 7, None),
        ("NO", lambda i: 20 + i % 7, None),
        ("litres", lambda i: 2023_01 + i % 9, None),
        ("index", lambda i: 1.5 + i / 100, None),
        ("class", lambda i: NUMBERS[i] % 60 / 4, None),
    ],
)
def test_numbers_that_are_no_measurements_are_no_features(table, name, value, why):
    path = table(f"a,{name},b\n" + "".join(f"{i % 5}.5,{value(i)},{i % 3}\n" for i in range(ROWS)))
    if why is None:
        assert read_dataset(path).feature_names == ("a", name, "b")
        return
    ways = {"ids of rows": "id_column", "known classes, by its name": "label_column"}
    how = ways.get(why, "drop")
    said = rf"{name}' \({why}\) is left out .* pass {how}='{name}'; .* features='a,{name},b'"
    with pytest.warns(VpemWarning, match=said):
        found = read_dataset(path)
    assert found.feature_names == ("a", "b")
    assert found.left_out == {name: why}
    if why == "ids of rows":
        assert list(map(str, found.ids)) == [str(value(i)) for i in range(ROWS)]
    # Whoever says what the column is hears nothing.
    assert read_dataset(path, features=["a", name, "b"]).feature_names == ("a", name, "b")
    assert read_dataset(path, family={name: "gaussian"}).feature_names == ("a", name, "b")
    assert read_dataset(path, **{how: name}).feature_names == ("a", "b")
    if how == "id_column":
        assert read_dataset(path, id_column=name).ids.tolist() == found.ids.tolist()


@each(
    ("name", "value", "asked"),
    [
        ("case_ref", lambda i: NUMBERS[i // 3], True),
        ("case_ref", lambda i: 10**15 + 12345679 * (i // 3), True),
        ("dx code", lambda i: (250, 401, 786)[i % 3], True),
        ("centre", lambda i: 11 + i % 3, True),
        ("ref", lambda i: "" if i % 9 == 0 else NUMBERS[i], True),
        ("salary", lambda i: 5 * NUMBERS[i // 3], False),
        ("price", lambda i: 10 * NUMBERS[i // 3] - i % 2, False),
        ("gain", lambda i: NUMBERS[i // 2] * (i % 20 > 12), False),
        ("counts", lambda i: i % 10 if i % 3 else NUMBERS[i], False),
        ("tax", lambda i: NUMBERS[i // 3] // 20, False),
        ("group", lambda i: i % 2, False),
        ("group size", lambda i: 11 + i % 3, False),
    ],
)
def test_codes_that_repeat_are_asked_about(table, name, value, asked):
    path = table(f"a,{name}\n" + "".join(f"{i % 5}.5,{value(i)}\n" for i in range(ROWS)))
    if asked:
        said = f"'{name}' is taken .* (differ|repeat), .* drop='{name}'"
        with pytest.warns(VpemWarning, match=said):
            assert read_dataset(path).feature_names == ("a", name)
    assert read_dataset(path, features=["a", name]).feature_names == ("a", name)
    if not asked:
        assert read_dataset(path).feature_names == ("a", name)


def test_in_few_rows_measurements_may_all_differ(table):
    heights = [151, 160, 148, 155, 163, 150, 158, 149]
    few = table("a,b\n" + "".join(f"{a},{i % 3}\n" for i, a in enumerate(heights)))
    assert read_dataset(few).feature_names == ("a", "b")
    for rows in (NUMBERS[:20], NUMBERS[[*range(ROWS), 3]], 10 * NUMBERS):
        with pytest.warns(VpemWarning, match="'a' is taken for a measurement; if .* drop='a'"):
            found = read_dataset(table("a,b\n" + "".join(f"{a},{a % 3}\n" for a in rows)))
        assert found.feature_names == ("a", "b")
    for name in ("net revenue", "steps", "Preis", "height_cm"):
        text = f"{name},b\n" + "".join(f"{a},{a % 3}\n" for a in NUMBERS)
        assert read_dataset(table(text)).feature_names == (name, "b")
    with pytest.warns(VpemWarning, match="'a' .ids of rows."):
        read_dataset(table("a,b\n" + "".join(f"{a},{a % 3}\n" for a in (2, 3, 5, 6, 9))))


def test_many_columns_of_whole_numbers_that_all_differ_are_counts(table, tmp_path):
    """Of two or three one may number the rows; nothing then is left but to ask."""
    counts = np.array([np.roll(NUMBERS, n) for n in range(5)]).T
    np.save(tmp_path / "counts.npy", counts)
    text = "a,b,c,d,e\n" + "".join(",".join(map(str, row)) + "\n" for row in counts)
    for path in (table(text), tmp_path / "counts.npy"):
        with pytest.warns(VpemWarning, match="for measurements; if their .* which all differ"):
            assert np.array_equal(read_dataset(path).X, counts)
        columns = (0, 1) if path.suffix == ".npy" else "ab"
        with pytest.raises(InputError, match=r"no column is left .* name them: features='.*,.*'"):
            read_dataset(path, drop="2-4")
        assert read_dataset(path, features=list(columns)).X.shape == (ROWS, 2)
    # Where all but one have a number twice, that one does not number the rows either.
    more = table(text + ",".join(map(str, [9001, *counts[0, 1:]])) + "\n", "more.csv")
    with pytest.warns(VpemWarning, match="'a', 'b', .* which all differ"):
        assert read_dataset(more).feature_names == tuple("abcde")


def test_rows_of_a_matrix_may_be_numbered_too(tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.column_stack([np.arange(1, 7), [0.5, 2, 1, 4, 3, 1]]))
    with pytest.warns(VpemWarning, match="'feature 0' .row numbers. is left out"):
        found = read_dataset(path)
    assert found.feature_names == ("feature 1",)
    assert read_dataset(path, id_column=0).ids.tolist() == [1, 2, 3, 4, 5, 6]


def test_ids_go_before_the_index_of_a_longer_table(tmp_path):
    pandas = {"index_columns": ["__index_level_0__"], "columns": []}
    columns = {"PatientID": [907, 415, 661], "a": [1.5, 2, 3], "__index_level_0__": [2, 5, 6]}
    made = pa.table(columns)
    path = tmp_path / "t.parquet"
    parquet.write_table(made.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)
    with pytest.warns(VpemWarning, match="'PatientID' .ids of rows."):
        assert read_dataset(path).ids.tolist() == [907, 415, 661]
    parquet.write_table(
        made.drop_columns("PatientID").replace_schema_metadata({"pandas": json.dumps(pandas)}), path
    )
    assert read_dataset(path).ids.tolist() == [2, 5, 6]


@each(
    ("values", "mark"),
    [
        ([5.1, 6, -999, 4.8, 7], "-999"),
        ([1, 5, 2, 99, 99, 3], "99"),
        ([1, 5, 2, 99, 88, 3], "88,99"),
        ([250, 240, -32768, 261], "-32768"),
        ([5.1, 1e30, 4.8, 7], "1e+30"),
        ([300, 4000, -9, 0, -9, -8], "-9,-8"),
        ([5.1, 6, 4.8, 7, 40], None),
        ([-999, -500, 200, 800], None),
        ([0, 99, 0, 99], None),
        ([300, 4000, -9, 0], None),
        ([300, 4000, -9, -2, -9], None),
    ],
)
def test_marks_of_missing_values_are_asked_about(table, tmp_path, values, mark):
    rows = [(a, i % 3 + 0.5) for i, a in enumerate(values)]
    np.save(tmp_path / "t.npy", rows)
    text = table("a,b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    for path in (text, tmp_path / "t.npy"):
        if mark is None:
            read_dataset(path)
            continue
        listed = re.escape(mark.replace(",", ", "))
        said = rf"{listed} in '(a|feature 0)': apart .* pass na='{re.escape(mark)}'"
        with pytest.warns(VpemWarning, match=said):
            read_dataset(path)
        assert np.isnan(read_dataset(path, na=mark).X).any()


# Parquet ------------------------------------------------------------------------------------------


def test_parquet(columns):
    path = columns(
        whole=pa.array([1, 2], pa.int16()),
        real=[0.5, 1.5],
        flag=[True, False],
        exact=[decimal.Decimal("1.25"), decimal.Decimal("2.50")],
        coded=pa.array([3, 4]).dictionary_encode(),
        half=pa.array(np.array([0.5, 2], "f2")),
        who=pa.array(["b", "a"]).dictionary_encode(),
        day=[datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
    )
    data = read_dataset(path, label_column="who", id_column="day")
    assert data.feature_names == ("whole", "real", "flag", "exact", "coded", "half")
    assert data.X.tolist() == [[1, 0.5, 1, 1.25, 3, 0.5], [2, 1.5, 0, 2.5, 4, 2]]
    assert data.labels.tolist() == ["b", "a"]
    assert data.ids.tolist() == ["2020-01-01", "2021-01-01"]


def test_parquet_of_float32_stays_float32(columns):
    values = pa.array([0.1, 0.2], pa.float32())
    assert read_dataset(columns(a=values, b=values)).X.dtype == np.float32
    assert read_dataset(columns(a=values, b=[1, 2])).X.dtype == np.float64


@each(
    ("values", "expected"),
    [
        ([3, 4], [3, 4]),
        ([0.5, 1.5], [0.5, 1.5]),
        ([True, False], [1, 0]),
        (["7", "8"], [7, 8]),
        (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
    ],
)
def test_parquet_labels_keep_their_type(columns, values, expected):
    assert read_dataset(columns(x=[1, 2], y=values), label_column="y").labels.tolist() == expected


@each(
    ("values", "why", "sentence"),
    [
        (["a", "a"], "text", "'bad' holds text"),
        ([b"a", b"a"], "text", "'bad' holds text"),
        ([datetime.date(2020, 1, 1)] * 2, "dates", "'bad' holds dates or times"),
        ([datetime.timedelta(1)] * 2, "dates", "'bad' holds dates or times"),
        ([datetime.time(1)] * 2, "dates", "'bad' holds dates or times"),
        ([[1], [2]], "lists", "'bad' holds list<"),
        (pa.nulls(2), "no values", "'bad' holds no values"),
        ([float("nan")] * 2, "no values", None),
        ([1.0, float("nan")], "constant", None),
    ],
)
def test_columns_that_are_no_features(columns, values, why, sentence):
    path = columns(x=[1, 2], bad=values)
    assert read_dataset(path).left_out == {"bad": why}
    if sentence is not None:
        with pytest.raises(InputError, match=sentence):
            read_dataset(path, features="x,bad")


@each(
    ("values", "sentence"),
    [
        ([[1], [2]], "column 'bad' holds list"),
        ([b"a", b"b"], "column 'bad' holds binary"),
        ([datetime.timedelta(1)] * 2, "column 'bad' holds duration"),
        ([1, None], "row 1 .* has no value in column 'bad'"),
        ([1.0, float("nan")], "row 1 .* has no value"),
        (["a", None], "row 1 .* has no value"),
    ],
)
def test_bad_parquet_labels_are_refused(columns, values, sentence):
    with pytest.raises(InputError, match=sentence):
        read_dataset(columns(x=[1, 2], bad=values), label_column="bad")


def test_the_index_of_pandas_is_no_feature(tmp_path):
    path = tmp_path / "t.parquet"
    index = {"pandas": b'{"index_columns": ["__index_level_0__"], "columns": []}'}
    made = pa.table({"a": [1, 2], "a.b": [3, 4], "__index_level_0__": ["x", "y"]})
    parquet.write_table(made.replace_schema_metadata(index), path)
    assert read_dataset(path).feature_names == ("a", "a.b")
    assert read_dataset(path, id_column="__index_level_0__").ids.tolist() == ["x", "y"]


def test_a_parquet_file_without_rows_is_refused(columns):
    with pytest.raises(InputError, match="has no rows"):
        read_dataset(columns(a=pa.array([], pa.float64())))


def test_who_holds_each_row(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("site,a,b,class\neast,1,2,x\nwest,3,4,y\neast,5,6,x\n")
    found = read_dataset(file, worker_column="site", label_column="class")
    assert found.feature_names == ("a", "b")
    assert found.workers.names == ("east", "west")
    assert found.workers.worker_of.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="column 'site' cannot hold both labels and workers"):
        read_dataset(file, worker_column="site", label_column="site")
    with pytest.raises(InputError, match="the worker column 'site' is also dropped"):
        read_dataset(file, worker_column="site", drop=["site"])
    file.write_text("site,a\n2,1\n0,3\n1,4\n")
    assert read_dataset(file, worker_column="site").workers.worker_of.tolist() == [2, 0, 1]


@each(
    ("index", "called"),
    [
        ({"start": 100, "step": 1}, [100, 101, 102]),
        ({"start": 1, "step": 1}, [1, 2, 3]),
        ({"start": 0, "step": 2, "name": "nr"}, [0, 2, 4]),
        ({"start": 0, "step": 1}, None),
        ({"start": 2**40, "step": 1}, None),
        ({"start": "a", "step": 1}, None),
        ([7, 7, 9], [7, 7, 9]),
        ([100.0, 101.0, 103.0], [100, 101, 103]),
        (
            [datetime.date(2024, 1, 1 + n) for n in range(3)],
            ["2024-01-01", "2024-01-02", "2024-01-03"],
        ),
    ],
)
def test_rows_are_called_as_pandas_calls_them(tmp_path, index, called):
    made = pa.table({"a": [1.5, 2.5, 4.0]})
    stored = "i"
    if isinstance(index, dict):
        stored = {"kind": "range", "name": None, "stop": 9} | index
    else:
        made = made.append_column("i", pa.array(index))
    path = tmp_path / "t.parquet"
    meta = {"pandas": json.dumps({"index_columns": [stored], "columns": []})}
    parquet.write_table(made.replace_schema_metadata(meta), path)
    found = read_dataset(path)
    names = found.counted if found.ids is None else found.ids
    assert (None if names is None else names.tolist()) == called
    assert found.feature_names == ("a",)


def test_ids_among_the_features_of_a_dataset_are_asked_about(tmp_path):
    path = tmp_path / "t.h5"
    X = np.column_stack([NUMBERS, NUMBERS % 7 / 3])
    with h5py.File(path, "w") as file:
        file["X"], file["feature_names"] = X, ["patient", "a"]
    with pytest.warns(VpemWarning, match="'patient' is among the features, .* drop='patient'"):
        assert read_dataset(path).feature_names == ("patient", "a")
    assert read_dataset(path, features="patient,a").feature_names == ("patient", "a")
    assert read_dataset(path, drop="patient").feature_names == ("a",)
