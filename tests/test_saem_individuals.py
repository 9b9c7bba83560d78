"""Individuals: runs of rows, files, and what is refused."""

import importlib.util
from pathlib import Path

import h5py
import numpy as np
import pytest

from vpem.engines.placement import Placement
from vpem.errors import FileError, InputError
from vpem.saem.formats.individuals import read_individuals, write_individuals
from vpem.saem.individuals import AllIndividuals, from_long, from_matrix

from .tables import each
from .thread_engine import together

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def some():
    return from_long(
        ["b", "b", "a", "c", "c", "c"], [0, 1, 0, 0, 2, 4], [1, 2, 3, 4, 5, 6],
        {"dose": [1, 1, np.nan, 2, 2, 2], "w": [1, 2, 3, 4, 5, 6]},
    )  # fmt: skip


def test_runs_of_rows(some):
    assert some.names == ("b", "a", "c")
    assert some.counts.tolist() == [2, 1, 3]
    assert some.sums(some.values).tolist() == [3, 3, 15]
    part = some.take([2, 0])
    assert part.names == ("c", "b")
    assert part.values.tolist() == [4, 5, 6, 1, 2]
    assert part.constant("dose").tolist() == [2, 1]
    assert some.take([1]).covariates["w"].tolist() == [3]


def test_a_table_is_read_back(some, tmp_path):
    write_individuals(tmp_path / "x.h5", some)
    read = read_individuals(tmp_path / "x.h5")
    assert read.names == some.names
    np.testing.assert_array_equal(read.first, some.first)
    np.testing.assert_array_equal(read.values, some.values)
    np.testing.assert_array_equal(read.covariates["dose"], some.covariates["dose"])
    with pytest.raises(FileError, match="exists"):
        write_individuals(tmp_path / "x.h5", some)
    assert set(read_individuals(tmp_path / "x.h5", covariates=["w"]).covariates) == {"w"}


def test_csv_columns_by_any_name(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("t,who,y,dose,sex\n0,1,2.5,,f\n\n1,1,3,NA,f\n0,2,1e1,4,m\n")
    read = read_individuals(path, id="who", time="t", value="y", covariates=["dose"])
    assert read.names == ("1", "2")
    assert read.values.tolist() == [2.5, 3, 10]
    assert np.isnan(read.covariates["dose"][:2]).all()
    with pytest.raises(InputError, match=r"line 2 has 'f' for 'sex'"):
        read_individuals(path, id="who", time="t", value="y")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n", "no columns 'id', 'time' and 'value'"),
        ("id,time\n1,2\n", "no column 'value'"),
        ("id,tme,value\n1,2,3\n", "did you mean 'tme'"),
        ("id,time,value\n", "a header but no rows"),
        ("id,time,value\n1,2\n", "line 2 has 2 fields"),
        ("id,time,value\n1,2,x\n", "no finite number"),
        ("id,time,value\n1,2,1e999\n", "no finite number"),
        ("id,time,value\n1,,3\n", "no finite number"),
        ("id,time,value\n,2,3\n", "names no individual"),
        ("id,time,value,value\n1,2,3,4\n", "must differ"),
        ("id,time,value\n1,2,3\n2,2,3\n1,3,3\n", "individual '1' are in several places"),
    ],
)
def test_tables_that_are_refused(tmp_path, text, words):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_individuals(tmp_path / "x.csv")


def test_bytes_that_are_no_table(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"id,time,value\n\xff,1,2\n")
    with pytest.raises(FileError, match="UTF-8"):
        read_individuals(tmp_path / "x.csv")
    with pytest.raises(FileError):
        read_individuals(tmp_path / "none.csv")
    (tmp_path / "y.h5").write_bytes(b"no")
    with pytest.raises(FileError):
        read_individuals(tmp_path / "y.h5")


@pytest.mark.parametrize("counts", [[2, 1, 2], [0, 3, 3], [2**62, 2**62, 6]])
def test_counts_of_a_file_must_fit(some, tmp_path, counts):
    path = tmp_path / "x.h5"
    write_individuals(path, some)
    with h5py.File(path, "r+") as file:
        file["counts"][:] = counts
    with pytest.raises(FileError, match="counts must"):
        read_individuals(path)


@each(
    ("make", "words"),
    [
        (lambda: from_long([], [], []), "one id per row"),
        (lambda: from_long([1, 2], [1], [1, 2]), "times must be 2 numbers"),
        (lambda: from_long([1, 2], [1, 2], [1, np.nan]), "row 1 of values is nan"),
        (lambda: from_long([1], [1], [1], {"w": [np.inf]}), "infinite"),
        (lambda: from_long([1], [1], [1], {"w": ["x"]}), "w must be 1 numbers"),
        (lambda: from_matrix(np.ones(3)), "must be a table"),
        (lambda: from_matrix(np.ones((3, 2)), ["a"]), "as many names"),
    ],
)
def test_arrays_that_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_the_tables_of_data():
    boys = read_individuals(ROOT / "data/oxford_boys.csv")
    assert (boys.n_individuals, boys.n_rows) == (26, 234)
    assert (np.diff(boys.times)[np.diff(boys.individual_of) == 0] > 0).all()
    assert boys.values[:3].tolist() == [140.5, 143.4, 144.8]
    table = read_individuals(ROOT / "data/theophylline.csv")
    assert (table.n_individuals, table.n_rows) == (12, 132)
    assert table.constant("dose")[0] == 4.02
    assert table.constant("weight").min() > 50


def test_the_script_reads_what_r_packs():
    import lzma
    import zlib

    file = ROOT / "data/scripts/make_longitudinal.py"
    spec = importlib.util.spec_from_file_location("make", file)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    data = b"some bytes" * 9
    raw = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
    packed = lzma.compress(data, format=lzma.FORMAT_RAW, filters=raw)
    assert script._inflate(b"\0\0\0\x5aZ" + packed) == data
    assert script._inflate(b"\0\0\0\x5a" + zlib.compress(data)) == data


@pytest.mark.parametrize("n", [2, 7, 30])
def test_medians_of_all_processes_are_found_by_counting(n):
    rng = np.random.default_rng(n)
    values = rng.normal(size=(n, 3)) * 10.0 ** rng.integers(-5, 5, size=(n, 3))
    values[0, 0], values[-1, 2] = 0.0, np.nan
    parts = np.array_split(np.arange(n), 2)

    def work(engine):
        here = parts[engine.rank]
        sizes = np.full((1, 4), len(here))
        return AllIndividuals(Placement.evenly(engine, 2), here, sizes).median(values[here])

    for found in together(2, work):
        np.testing.assert_array_equal(found, np.nanmedian(values, axis=0))
