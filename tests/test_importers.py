import datetime
import decimal
import gzip
import json
import re
import sys

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from vpem.errors import FileError, InputError, VpemError, VpemWarning
from vpem.files.data import read_dataset

from .tables import each


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


PEOPLE = "name,age,height,sick\nann,30,1.7,true\nbob,41,1.8,false\n"


def test_csv_with_labels_and_ids(table):
    data = read_dataset(table(PEOPLE), label_column="sick", id_column="name")
    assert data.feature_names == ("age", "height")
    assert data.X.tolist() == [[30, 1.7], [41, 1.8]]
    assert data.X.dtype == np.float64
    assert data.X.flags.c_contiguous
    assert data.ids.tolist() == ["ann", "bob"]
    assert data.labels.tolist() == ["true", "false"]
    assert data.source.endswith("table.csv")


def test_columns_by_number(table):
    data = read_dataset(table(PEOPLE), label_column=-1, id_column="0", drop=["-2"])
    assert data.feature_names == ("age",)
    assert data.ids.tolist() == ["ann", "bob"]
    assert data.labels.tolist() == ["true", "false"]


def test_a_name_goes_before_a_number(table):
    data = read_dataset(table("1,0,x\n5,7,2\n6,8,3\n"), label_column="0", id_column=0)
    assert data.ids.tolist() == [5, 6]
    assert data.labels.tolist() == [7, 8]


def test_no_header(table):
    data = read_dataset(table("1,2,9\n3,4,8\n"), no_header=True, label_column=1)
    assert data.feature_names == ("column 0", "column 2")
    assert data.X.tolist() == [[1, 9], [3, 8]]
    assert data.labels.tolist() == [2, 4]
    assert data.labels.dtype == np.int64


def test_true_and_false_become_one_and_zero(table):
    assert read_dataset(table("a,b\ntrue,1\nfalse,2\n")).X.tolist() == [[1, 1], [0, 2]]


@each(
    ("name", "mark"),
    [("t.csv", ","), ("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t"), ("t.txt", " ")],
)
def test_the_delimiter_is_found(table, name, mark):
    data = read_dataset(table(f"a{mark}b\n1{mark}2\n3{mark}4\n", name))
    assert data.X.tolist() == [[1, 2], [3, 4]]


@each(("given", "mark"), [("|", "|"), ("tab", "\t"), ("\\t", "\t"), (";", ";")])
def test_the_delimiter_is_given(table, given, mark):
    data = read_dataset(table(f"a,x{mark}b\n1{mark}2\n"), delimiter=given)
    assert data.feature_names == ("a,x", "b")


@each("given", ["", "ab", "\n", '"', "\u20ac", "\0"])
def test_other_delimiters_are_refused(table, given):
    with pytest.raises(InputError, match="delimiter must be one character"):
        read_dataset(table("a,b\n1,2\n"), delimiter=given)


def test_gzip_quotes_blanks_and_byte_order_mark(table):
    text = '\ufeff"a", b ,c\r\n1, 2,"x, y"\r\n\r\n3,4,z \r\n'
    data = read_dataset(table(gzip.compress(text.encode()), "t.csv.gz"), label_column="c")
    assert data.feature_names == ("a", "b")
    assert data.X.tolist() == [[1, 2], [3, 4]]
    assert data.labels.tolist() == ["x, y", "z"]


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


def test_types_may_change_late_in_a_long_file(table):
    rows = "1,2\n" * 400_000
    assert read_dataset(table("a,b\n" + rows + "1.5,3\n")).X[-1].tolist() == [1.5, 3]
    with pytest.raises(InputError, match=r"but for 1 value, 'x' \(first in row 400000"):
        read_dataset(table("a,b\n" + rows + "x,2\n"))


def test_a_first_row_of_numbers_is_warned_about(table):
    with pytest.warns(VpemWarning, match="first row was taken for names .* no_header=True"):
        assert read_dataset(table("1.5,2\n3,4\n")).n_samples == 1
    with pytest.warns(VpemWarning, match="no_header=True"):
        read_dataset(table("1.5,2,x\n3,4,y\n"), label_column="x")


@each(
    ("text", "kind", "sentence"),
    [
        ("", FileError, "is empty"),
        ("\n\n", FileError, "the file has no rows"),
        ("a,b\n", InputError, "has no rows"),
        ("a,b\n1,2\n3\n", FileError, r"row 1 \(counted from 0\) has 1 fields instead of 2"),
        ("a,b\n1,2\n3,4,5\n", FileError, "row 1 .* has 3 fields instead of 2"),
        ("a,\u00fc\n1,2\n".encode("latin-1"), FileError, "not UTF-8 text"),
        ("a,b\n1,\u00fc\n".encode("latin-1"), FileError, "not UTF-8 text"),
        (b"a,b\n1,\0\n", FileError, "is no text"),
    ],
)
def test_bad_csv_is_refused(table, text, kind, sentence):
    path = table(text)
    with pytest.raises(kind, match=sentence) as caught:
        read_dataset(path)
    assert str(path) in str(caught.value)


def test_a_row_that_is_no_text_is_said_once(table, monkeypatch):
    ignored = []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    with pytest.raises(FileError, match=r"row 1 .* has 3 fields instead of 2"):
        read_dataset(table(b"a,b\n1,2\n3,4,\xe9\n5,6\n"))
    assert not ignored
    assert sys.unraisablehook == ignored.append


def test_rows_are_counted_without_header_too(table):
    with pytest.raises(FileError, match=r"row 1 .* has 1 fields instead of 2"):
        read_dataset(table("1,2\n3\n"), no_header=True)


def test_an_open_quotation_mark_swallows_nothing(table):
    for text, sentence in (
        ('x,y\n1,a\n2,"b\n3,c\n4,"d"\n', "row 1 .* has a line break in column 'y'; is a quot"),
        ('x,"y\n1,a\n2,"b\n3,c\n', "a column name has a line break; is a quotation mark"),
    ):
        with pytest.raises(VpemError, match=sentence):
            read_dataset(table(text), label_column=1)


def test_rows_longer_than_a_block_are_refused(table, monkeypatch):
    monkeypatch.setattr("vpem.files.readers.text.BLOCK_BYTES", 64)
    with pytest.raises(FileError, match="a row is longer than 64 bytes"):
        read_dataset(table("x,y\n" + "1,2\n" * 100 + "1," + "2" * 200 + "\n"))


def test_bad_labels_are_refused(table):
    with pytest.raises(InputError, match=r"row 1 .* has no value in column 'y'"):
        read_dataset(table("x,y\n1,a\n2, \n"), label_column="y")
    with pytest.raises(FileError, match="not UTF-8 text"):
        read_dataset(table("x,y\n1,\u00fc\n".encode("latin-1")), label_column="y")


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


def test_missing_and_broken_files_are_refused(table, tmp_path):
    with pytest.raises(FileError, match="does not exist"):
        read_dataset(tmp_path / "none.csv")
    with pytest.raises(FileError, match="cannot be unpacked"):
        read_dataset(table(b"\x1f\x8b" + b"a,b\n1,2\n", "t.csv.gz"))
    packed = gzip.compress(np.random.default_rng(0).bytes(100_000).hex().encode())
    with pytest.raises(FileError, match=r"t.csv.gz"):
        read_dataset(table(packed[:50_000], "t.csv.gz"))
    with pytest.raises(FileError, match="cannot be read as Parquet"):
        read_dataset(table("PAR1,b\n1,2\n", "t.parquet"))


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


@pytest.mark.parametrize(
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
