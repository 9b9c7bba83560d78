"""Individuals, their doses, and documents: runs of rows, files, parties, and what is refused."""

import importlib.util
import lzma
import zlib
from dataclasses import replace
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import scipy.sparse

from vpem.engines.engine import Engine
from vpem.engines.placement import Placement
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import create, describe_element, write_array, write_strings
from vpem.saem.doses import Doses, doses_of
from vpem.saem.formats.individuals import (
    chain,
    numbered_as,
    read_corpus,
    read_individuals,
    write_corpus,
    write_individuals,
)
from vpem.saem.individuals import (
    AllIndividuals,
    document_counts,
    from_counts,
    from_long,
    from_matrix,
    in_words,
)
from vpem_cli.commands.individuals import HeldIndividuals, files_in

from .cli_support import ROOT
from .tables import each
from .thread_engine import together

# ---- runs of rows -------------------------------------------------------------------------------


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
    for name in ("first", "times", "values"):
        np.testing.assert_array_equal(getattr(read, name), getattr(some, name))
    np.testing.assert_array_equal(read.covariates["dose"], some.covariates["dose"])
    with pytest.raises(FileError, match="exists"):
        write_individuals(tmp_path / "x.h5", some)
    assert set(read_individuals(tmp_path / "x.h5", covariates=["w"]).covariates) == {"w"}
    for counts in ([2, 1, 2], [0, 3, 3], [2**62, 2**62, 6]):
        with h5py.File(tmp_path / "x.h5", "r+") as file:
            file["counts"][:] = counts
        with pytest.raises(FileError, match="counts must"):
            read_individuals(tmp_path / "x.h5")


def test_csv_columns_by_any_name(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("t,who,y,dose,sex\n0,1,2.5,,f\n\n1,1,3,NA,f\n0,2,1e1,4,m\n")
    read = read_individuals(path, id="who", time="t", value="y", covariates=["dose"])
    assert read.names == ("1", "2")
    assert read.values.tolist() == [2.5, 3, 10]
    assert np.isnan(read.covariates["dose"][:2]).all()
    with pytest.raises(InputError, match=r"line 2 has 'f' for 'sex'"):
        read_individuals(path, id="who", time="t", value="y")


TABLES = [  # text of a file, or a part of `DOSED` and what is put in its place; what is told
    ("\n", None, "no columns 'id', 'time' and 'value'"),
    ("id,time\n1,2\n", None, "no column 'value'"),
    ("id,tme,value\n1,2,3\n", None, "did you mean 'tme'"),
    ("id,time,value\n", None, "a header but no rows"),
    ("id,time,value\n1,2\n", None, "line 2 has 2 fields"),
    ("id,time,value\n1,2,x\n", None, "no finite number"),
    ("id,time,value\n1,2,1e999\n", None, "no finite number"),
    ("id,time,value\n1,,3\n", None, "no finite number"),
    ("id,time,value\n,2,3\n", None, "names no individual"),
    ("id,time,value,value\n1,2,3,4\n", None, "must differ"),
    ("id,time,value\n1,2,3\n2,2,3\n1,3,3\n", None, "individual '1' are in several places"),
    (b"id,time,value\n\xff,1,2\n", None, "UTF-8"),
    (".,5,.", "3,5,.", r"line 3 has both an amount, 3, and a measurement; write two lines"),
    (",2,12", ",2,", "line 2 has addl 2 without a time between doses, ii"),
    (",2,12", ",1.5,12", "line 2 has addl 1.5, which must be a whole number"),
    (",50,,", ",-2,,", "line 6 has rate -2, which must not be negative"),
    ("0,100,.,50", "0,-1,.,50", "line 6 has a dose of -1"),
    ("b,3", "c,3", "'b' had doses, but nothing was measured"),
    ("AMT", "amount", "no column 'amt' with the amounts of doses; name it, such as --doses amt="),
    ("1,.,5", "1,.,", "line 3 has '' for 'DV', no finite number"),
    ("ADDL", "SS", "line 2 has ss 2"),
    ("ADDL", "EVID", "line 2 has amt 100, but evid says that it is no dose"),
    ("ADDL", "mdv", "line 2 has mdv 2, which is 0 or 1"),
    (",2,12", ",99999999,12", "has 100000002 doses; at most"),
]
"""Tables that are refused: whole, or `DOSED` with one part for another."""

DOSED = """ID,TIME,AMT,DV,RATE,ADDL,II,outcome,censored
a,0,100,.,,2,12,pk,
a,1,.,5,.,.,.,pk,0
a,13,.,8,.,.,.,pd,1
b,7,40,,0,0,0,.,.
b,0,100,.,50,,,pk,
b,3,,4,,,,pd,0
"""


@each(("text", "new", "told"), TABLES)
def test_tables_that_are_refused(tmp_path, text, new, told):
    columns, path = {}, tmp_path / "x.csv"
    if new is not None:
        assert text in DOSED
        text, columns = DOSED.replace(text, new, 1), OF_DOSES
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((InputError, FileError), match=told.replace("(", r"\(")):
        read_individuals(path, **columns)


def test_files_that_are_none(tmp_path):
    (tmp_path / "y.h5").write_bytes(b"no")
    for name in ("y.h5", "none.csv"):
        with pytest.raises(FileError):
            read_individuals(tmp_path / name)
    for name in ("b.csv", "a.csv", ".hidden"):
        (tmp_path / name).touch()
    found = [tmp_path / name for name in ("a.csv", "b.csv", "y.h5")]
    assert files_in([tmp_path]) == found
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="empty is empty"):
        files_in([tmp_path / "empty"])


WORDS = ("ale", "bee", "cow")
ARRAYS = [
    (lambda: from_long([], [], []), "one id per row"),
    (lambda: from_long([1, 2], [1], [1, 2]), "times must be 2 numbers"),
    (lambda: from_long([1, 2], [1, 2], [1, np.nan]), "row 1 of values is nan"),
    (lambda: from_long([1], [1], [1], {"w": [np.inf]}), "infinite"),
    (lambda: from_long([1], [1], [1], {"w": ["x"]}), "w must be 1 numbers"),
    (lambda: from_matrix(np.ones(3)), "must be a table"),
    (lambda: from_matrix(np.ones((3, 2)), ["a"]), "as many names"),
    (lambda: doses_of(from_matrix(np.ones((2, 2)))), "no covariate 'dose'"),
    (lambda: from_counts(np.array([[1, 0.5, 0]]), WORDS),
     r"count of 'bee' in document '0' is 0\.5; counts are whole"),
    (lambda: from_counts(np.array([[1, -1, 0]]), WORDS), "is -1; counts are whole"),
    (lambda: from_counts(np.array([[1, np.nan, 0]]), WORDS), "is nan; counts are whole"),
    (lambda: from_counts(np.array([[1, 1, 1], [0, 0, 0]]), WORDS), "these have none: '1'"),
    (lambda: from_counts(np.array([[1, 1]]), WORDS), "2 words need as many different names, got 3"),
    (lambda: from_counts(np.array([1, 1]), WORDS), "must be a table of counts"),
]  # fmt: skip


@each(("make", "told"), ARRAYS)
def test_arrays_that_are_refused(make, told):
    with pytest.raises(InputError, match=told):
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
    file = ROOT / "data/scripts/make_longitudinal.py"
    spec = importlib.util.spec_from_file_location("make", file)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    data = b"some bytes" * 9
    raw = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
    packed = lzma.compress(data, format=lzma.FORMAT_RAW, filters=raw)
    assert script._inflate(b"\0\0\0\x5aZ" + packed) == data
    assert script._inflate(b"\0\0\0\x5a" + zlib.compress(data)) == data


@each("n", [2, 7, 30])
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


# ---- doses --------------------------------------------------------------------------------------

OF_DOSES = {"id": "ID", "time": "TIME", "value": "DV", "doses": {}}
A = [(0, 0.0, 100.0, 0.0), (0, 12.0, 100.0, 0.0), (0, 24.0, 100.0, 0.0)]
B = [(1, 0.0, 100.0, 2.0), (1, 7.0, 40.0, 0.0)]


def read(folder, text, **options):
    """Individuals of a table."""
    (folder / "doses.csv").write_text(text)
    return read_individuals(folder / "doses.csv", **{**OF_DOSES, **options})


def doses_in(found):
    """What doses are, without arrays."""
    doses = found.doses
    columns = (doses.individual_of, *doses.columns)
    return list(zip(*(one.tolist() for one in columns), strict=True))


def test_lines_with_an_amount_are_doses(tmp_path):
    found = read(tmp_path, DOSED)
    assert doses_in(found) == A + B
    assert (found.names, found.counts.tolist()) == (("a", "b"), [2, 1])
    assert found.covariates["outcome"].tolist() == [1.0, 0.0, 0.0]
    assert found.columns["words"] == {"outcome": ["pd", "pk"]}
    assert set(found.covariates) == {"outcome", "censored"}
    numbers = read(tmp_path, DOSED.replace("pk", "0").replace("pd", "2"))
    assert numbers.covariates["outcome"].tolist() == [0.0, 2.0, 2.0]
    assert "words" not in numbers.columns
    write_individuals(tmp_path / "doses.h5", found)
    again = read_individuals(tmp_path / "doses.h5")
    assert doses_in(again) == A + B
    assert again.columns["words"] == found.columns["words"]
    swapped = [(0, *one[1:]) for one in B] + [(1, *one[1:]) for one in A]
    assert doses_in(found.take([1, 0])) == swapped
    assert doses_in(chain([found.take([0]), found.take([1])])) == A + B


def test_names_of_columns_may_be_others(tmp_path):
    found = read(tmp_path, DOSED.replace("AMT", "given"), doses={"amt": "given"})
    assert doses_in(found) == A + B
    evid = "ID,TIME,AMT,DV,EVID,MDV\na,0,9,3,1,1\na,1,0,5,0,0\na,2,0,7,2,1\na,3,,7,0,1\n"
    found = read(tmp_path, evid)
    assert (doses_in(found), found.values.tolist()) == ([(0, 0.0, 9.0, 0.0)], [5.0])


def test_parties_share_doses_and_the_numbers_of_words(tmp_path):
    one, other = read(tmp_path, DOSED), read(tmp_path, DOSED.replace("pk", "cp"))
    other = replace(other, names=("c", "d"))
    both = chain([one, other])
    assert both.columns["words"] == {"outcome": ["cp", "pd", "pk"]}
    assert both.covariates["outcome"].tolist() == [2.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    with pytest.raises(InputError, match="outcome has 'cp', where others have 'pd', 'pk'"):
        numbered_as(other, one.columns["words"])
    covariates = {**one.covariates, "dose": np.full(3, 6.0)}
    by_covariate = replace(one, names=("c", "d"), doses=None, covariates=covariates)
    joined = [*A, *B, (2, 0.0, 6.0, 0.0), (3, 0.0, 6.0, 0.0)]
    assert doses_in(chain([one, by_covariate])) == joined
    assert doses_of(by_covariate).amounts.tolist() == [6.0, 6.0]


def test_doses_in_any_order_are_sorted():
    columns = np.array([[5.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    doses = Doses.from_lists(3, np.array([2, 0, 2]), *columns)
    assert (doses.first.tolist(), doses.amounts.tolist()) == ([0, 1, 1, 3], [2.0, 3.0, 1.0])


# ---- documents ----------------------------------------------------------------------------------

COUNTS = np.array([[0, 2, 1], [3, 0, 0], [1, 1, 0]])


@pytest.fixture
def corpus():
    return from_counts(scipy.sparse.csc_array(COUNTS), WORDS, ["x", "y", "z"])


def told(found):
    """Words of each document, with how often they come."""
    each = {name: [] for name in found.names}
    for whose, time, value in zip(found.individual_of, found.times, found.values, strict=True):
        each[found.names[whose]].append((found.words[int(time)], int(value)))
    return each


def test_documents_of_a_table(corpus):
    assert told(corpus) == {
        "x": [("bee", 2), ("cow", 1)], "y": [("ale", 3)], "z": [("ale", 1), ("bee", 1)],
    }  # fmt: skip
    assert told(corpus.take([2, 0])) == {one: told(corpus)[one] for one in ("z", "x")}
    assert document_counts(corpus).tolist() == [2, 2, 1]


def test_documents_of_several_sources_share_words(corpus):
    other = from_counts(np.array([[1, 0, 4]]), ("cow", "dog", "ant"), ["w"])
    joined = chain([corpus, other])
    assert joined.words == ("ale", "ant", "bee", "cow", "dog")
    assert told(joined) == {**told(corpus), "w": [("ant", 4), ("cow", 1)]}
    same = from_counts(np.array([[1, 0, 4]]), WORDS, ["w"])
    assert chain([corpus, same]).words == WORDS  # as they came
    found, unknown = in_words(corpus, ["cow", "bee"])
    assert told(found) == {"x": [("cow", 1), ("bee", 2)], "z": [("bee", 1)]}
    assert unknown == 4
    with pytest.raises(InputError, match="no document has a word"):
        in_words(corpus, ["dog"])


@each("ending", ["csv", "tsv", "h5", "h5ad"])
def test_a_corpus_is_read_back(corpus, tmp_path, ending):
    path = tmp_path / f"corpus.{ending}"
    write_corpus(path, corpus)
    found = read_corpus(path)
    assert (found.words, told(found)) == (WORDS, told(corpus))
    with pytest.raises(FileError, match="exists"):
        write_corpus(path, corpus)


def test_individuals_keep_words(corpus, tmp_path):
    write_individuals(tmp_path / "x.h5", corpus)
    assert read_individuals(tmp_path / "x.h5").words == WORDS
    assert told(read_corpus(tmp_path / "x.h5")) == told(corpus)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["times"][0] = 3.0
    with pytest.raises(FileError, match="numbers of its 3 words"):
        read_individuals(tmp_path / "x.h5")


def test_lines_are_words_in_any_order(tmp_path, corpus):
    path = tmp_path / "x.csv"
    path.write_text("who;term\nx;bee\ny;ale\nz;bee\nx;cow\ny;ale\nx;bee\nz;ale\ny;ale\n")
    assert told(read_corpus(path, {"id": "who", "time": "term"})) == told(corpus)


@pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
def test_matrices_with_names_beside(corpus, tmp_path, kind):
    path = tmp_path / "x.h5"
    with create(path, "own", "1") as file:
        if kind == "dense":
            write_array(file, "layers/counts", COUNTS)
        else:
            X = file.create_group("layers/counts")
            describe_element(X, f"{kind}_matrix", "0.1.0")
            X.attrs["shape"] = COUNTS.shape
            sparse = scipy.sparse.coo_array(COUNTS).asformat(kind)
            for part in ("data", "indices", "indptr"):
                write_array(X, part, getattr(sparse, part))
        write_strings(file, "obs_names", corpus.names)
        write_strings(file, "var_names", WORDS)
    assert told(read_corpus(path, dataset="layers/counts")) == told(corpus)
    with h5py.File(path, "r+") as file:
        del file["obs_names"], file["var_names"]
        file["var_names"] = np.array([b"a", b"a", b"b"])
    with pytest.raises(FileError, match="3 words need as many different names, got 3, 2 of"):
        read_corpus(path, dataset="layers/counts")
    with h5py.File(path, "r+") as file:
        del file["var_names"]
    assert read_corpus(path, dataset="layers/counts").words == ("0", "1", "2")


@each(
    ("text", "words"),
    [
        ("document,count\nx,1\n", "no column 'word' .* a corpus is a table of documents"),
        ("document,wrd\nx,1\n", "did you mean 'wrd'"),
        ("document,word,count\nx,ale,1.5\n", r"line 2 has the count '1\.5'; counts are whole"),
        ("document,word,count\nx,ale,-1\n", "line 2 has the count '-1'"),
        ("document,word,count\nx,ale,\n", "line 2 has the count ''"),
        ("document,word,count\nx,,1\n", "line 2 names no word"),
        ("document,word,count\n,ale,1\n", "line 2 names no document"),
        ("document,word,count\n", "a header but no words"),
        ("document,word,count\nx,ale,1\ny,ale,0\n", "these have none: 'y'"),
        ("word,word,document\nx,ale,1\n", "must differ"),
    ],
)
def test_tables_of_words_that_are_refused(tmp_path, text, words):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_corpus(tmp_path / "x.csv")


def test_a_matrix_that_declares_what_it_has_not(corpus, tmp_path):
    path = tmp_path / "x.h5"
    write_corpus(path, corpus)
    with h5py.File(path, "r+") as file:
        file["X"].attrs["shape"] = (3, 1 << 40)
        del file["var"]
    with pytest.raises(FileError, match="declares values"):
        read_corpus(path)
    with h5py.File(path, "r+") as file:
        file["X"].attrs["shape"] = (2, 3)
    with pytest.raises(FileError, match="do not fit each other"):
        read_corpus(path)


@pytest.fixture
def sharing(tmp_path):
    """Function: one that gives documents common words by these settings, and what it says."""

    def make(**settings):
        said = []
        screen = SimpleNamespace(print_note=said.append, warn=said.append)
        if "vocabulary" in settings:
            (tmp_path / "words.txt").write_text(settings["vocabulary"])
            settings["vocabulary"] = tmp_path / "words.txt"
        held = HeldIndividuals(**settings)
        return lambda parts, engine: held.share_words(parts, engine, screen), said

    return make


@each(
    ("settings", "words", "said"),
    [
        ({}, WORDS, []),
        ({"min_documents": 2}, ("ale", "bee"), ["which occur 1 time, are left out"]),
        ({"max_share": 0.5}, ("cow",), ["7 times", "2 documents left out"]),
        ({"vocabulary": "cow\n\nbee\n"}, ("cow", "bee"), ["4 times", "1 document left out"]),
        ({"vocabulary": "cow\nant\nbee\n", "min_documents": 1}, ("cow", "bee"),
         ["4 times", "1 document left out"]),
        ({"min_documents": 3}, None, "none of the 3 words is in 3 documents or more"),
        ({"vocabulary": "cow\ncow\n"}, None, "a line each, all different"),
        ({"vocabulary": "\n"}, None, "a line each, all different"),
    ],
)  # fmt: skip
def test_words_that_are_left_out_are_told(corpus, sharing, settings, words, said):
    share, sentences = sharing(**settings)
    if words is None:
        with pytest.raises(InputError, match=said):
            share({0: corpus}, None)
        return
    found, kept = share({0: corpus}, None)
    assert kept == found[0].words == words
    assert all(part in one for part, one in zip(said, sentences, strict=True))


def test_parties_share_words(corpus, sharing):
    """In one process and in two, and with words of too few documents left out."""
    other = from_counts(np.array([[1, 0, 4]]), ("cow", "dog", "ant"), ["w"])
    for settings, wanted in (({}, ("ale", "ant", "bee", "cow", "dog")),
                             ({"min_documents": 2}, ("ale", "bee", "cow"))):  # fmt: skip
        alone, words = sharing(**settings)[0]({0: corpus, 1: other}, Engine())

        def work(engine, settings=settings):
            mine = {engine.rank: (corpus, other)[engine.rank]}
            return sharing(**settings)[0](mine, engine)

        apart = together(2, work)
        assert {one[1] for one in apart} == {words} == {wanted}
        assert [told(one[0][n]) for n, one in enumerate(apart)] == [told(alone[n]) for n in (0, 1)]
