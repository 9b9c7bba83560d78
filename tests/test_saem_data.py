"""Individuals, their doses, documents, and fits in files: parties, and what is refused."""

import contextlib
import dataclasses
import gzip
import json
from dataclasses import replace
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import scipy.sparse

import vpem
from vpem.engines.engine import Engine
from vpem.engines.placement import Placement
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import create, describe_element, write_array, write_attribute, write_strings
from vpem.pictures.figure import save_picture
from vpem.pictures.saem import draw_curves, draw_traces
from vpem.saem.conditional import LogLikelihood
from vpem.saem.doses import doses_of
from vpem.saem.fit import fit_saem
from vpem.saem.formats.fits import read_saem, saem_as_json, save_saem
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
from vpem.saem.models.linear import LinearModel
from vpem_cli.commands.individuals import HeldIndividuals, files_in

from .cells_saem import BOYS, THEO
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
    assert (some.names, some.counts.tolist()) == (("b", "a", "c"), [2, 1, 3])
    assert some.sums(some.values).tolist() == [3, 3, 15]
    part = some.take([2, 0])
    assert (part.names, part.values.tolist()) == (("c", "b"), [4, 5, 6, 1, 2])
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


def test_files_that_are_none_and_folders_of_them(tmp_path):
    (tmp_path / "y.h5").write_bytes(b"no")
    for name in ("y.h5", "none.csv"):
        with pytest.raises(FileError):
            read_individuals(tmp_path / name)
    for name in ("b.csv", "a.csv", ".hidden"):
        (tmp_path / name).touch()
    assert files_in([tmp_path]) == [tmp_path / name for name in ("a.csv", "b.csv", "y.h5")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="empty is empty"):
        files_in([tmp_path / "empty"])


@each(("name", "mark"), [("d.tsv", "\t"), ("d.txt", ";"), ("d.csv.gz", ",")])
def test_columns_may_have_other_marks_between_and_files_be_packed(tmp_path, name, mark):
    text = (ROOT / "data/oxford_boys.csv").read_text().replace(",", mark).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    found = read_individuals(path)
    assert (found.names, found.values.tolist()) == (BOYS.names, BOYS.values.tolist())
    path.write_text("id;time;value\na;1,5;2\n")
    with pytest.raises(InputError, match="decimal point"):
        read_individuals(path)


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


@each("n", [2, 30])
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


def sharing(folder, **settings):
    """One that gives documents common words by these settings, and what it says."""
    said = []
    screen = SimpleNamespace(print_note=said.append, warn=said.append)
    if "vocabulary" in settings:
        (folder / "words.txt").write_text(settings["vocabulary"])
        settings["vocabulary"] = folder / "words.txt"
    held = HeldIndividuals(**settings)
    return lambda parts, engine: held.share_words(parts, engine, screen), said


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
def test_words_that_are_left_out_are_told(corpus, tmp_path, settings, words, said):
    share, sentences = sharing(tmp_path, **settings)
    if words is None:
        with pytest.raises(InputError, match=said):
            share({0: corpus}, None)
        return
    found, kept = share({0: corpus}, None)
    assert kept == found[0].words == words
    assert all(part in one for part, one in zip(said, sentences, strict=True))


def test_parties_share_words(corpus, tmp_path):
    """In one process and in two, and with words of too few documents left out."""
    other = from_counts(np.array([[1, 0, 4]]), ("cow", "dog", "ant"), ["w"])
    for settings, wanted in (({}, ("ale", "ant", "bee", "cow", "dog")),
                             ({"min_documents": 2}, ("ale", "bee", "cow"))):  # fmt: skip
        share = sharing(tmp_path, **settings)[0]
        alone, words = share({0: corpus, 1: other}, Engine())

        def work(engine, share=share):
            return share({engine.rank: (corpus, other)[engine.rank]}, engine)

        apart = together(2, work)
        assert {one[1] for one in apart} == {words} == {wanted}
        assert [told(one[0][n]) for n, one in enumerate(apart)] == [told(alone[n]) for n in (0, 1)]


# ---- fits in files ------------------------------------------------------------------------------

QUICK = {"n_iter": 30, "burn_in": 15, "tol": 0.0, "n_conditional": 30, "n_importance": 50}


@pytest.fixture(scope="module")
def fit():
    return fit_saem(
        BOYS, "linear", devices=3, sampler="metropolis", codec="qsgd:8bits", feedback="memory",
        **QUICK,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory, fit):
    """Bytes of the fit, written."""
    found = tmp_path_factory.mktemp("sound") / "fit.h5"
    save_saem(found, fit)
    return found.read_bytes()


@pytest.fixture
def path(tmp_path, sound):
    (tmp_path / "fit.h5").write_bytes(sound)
    return tmp_path / "fit.h5"


def test_people_of_before_are_found_with_a_warning(fit):
    with pytest.warns(DeprecationWarning, match="^people is the fit itself now") as warned:
        people = fit.people
    assert warned[0].filename == __file__
    assert (people.names, people.n_individuals, people.doses) == (fit.names, 26, None)
    assert people.time_range == fit.time_range
    assert people.covariates is fit.covariates


def assert_same(one, two):
    """Two saved fits with the same bits."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, LogLikelihood):
            a, b = dataclasses.astuple(a), dataclasses.astuple(b)
        np.testing.assert_equal(a, b, err_msg=field.name)


# ---- round trip ---------------------------------------------------------------------------------


def test_back_as_it_was(fit, path, tmp_path):
    saved = read_saem(path)
    assert_same(saved, fit.saved)
    assert saved.estimates == fit.estimates
    assert saved.errors == fit.errors
    assert saved.model == "linear"
    assert saved.model_options == {
        "slopes": ["time"], "effects": [], "covariance": "full", "error": "constant"
    }  # fmt: skip
    assert saved.settings["codec"] == fit.settings["codec"]
    assert saved.settings["devices"] == 3
    assert saved.settings["sampler_options"] == {"n_steps": 2, "target": 0.44}
    assert saved.communication["bytes"] == fit.ledger.bytes
    assert saved.trace.shape == (31, 6)
    again = tmp_path / "again.h5"
    save_saem(again, saved)
    assert again.read_bytes() == path.read_bytes()


@each("kind", ["one-compartment", "bifactor", "gmm", "own"])
def test_of_every_model(kind, tmp_path):
    table = np.random.default_rng(0).standard_normal((40, 4)) @ (np.eye(4) + 0.5)
    rows = BOYS.individual_of * 1.0
    data = replace(THEO, covariates={**THEO.covariates, "moving": THEO.times})
    steady = replace(BOYS, covariates={"steady": np.where(rows == 2, np.nan, rows)})
    made = {
        "one-compartment": (data, "one-compartment", {"random": ("ka",), "first": (0.4, -3.2, -2)}),
        "bifactor": (from_matrix(table), "bifactor", {"groups": np.array([0, 0, 1, 1])}),
        "gmm": (from_matrix(table), "gmm", {"n_components": np.int64(2), "rows": (0, 5)}),
        "own": (steady, LinearModel, None),
    }
    individuals, model, options = made[kind]
    fit = fit_saem(individuals, model, model_options=options, **QUICK)
    save_saem(tmp_path / f"{kind}.h5", fit)
    saved = read_saem(tmp_path / f"{kind}.h5")
    assert_same(saved, fit.saved)
    assert saved.model == kind
    assert saved.model_class == type(fit.model).__name__
    assert saved.discrete == (kind == "gmm")
    kept = {"one-compartment": {"dose", "weight"}, "own": {"steady"}}  # what changes is not
    assert set(saved.covariates) == kept.get(kind, set())
    assert saved.time_range == (individuals.times.min(), individuals.times.max())
    np.testing.assert_array_equal(saved.trace[-1], saved.theta)
    text = json.dumps(saem_as_json(saved))
    assert json.loads(text)["estimates"] == fit.estimates


def test_unknown_errors_are_kept(fit, tmp_path):
    nothing = np.full(6, np.nan)
    wild = dataclasses.replace(
        fit.saved, standard_errors=nothing, information=-np.eye(6), acceptance=None,
        change=float("nan"), log_likelihood=LogLikelihood(-np.inf, np.nan, np.full(26, -np.inf),
                                                          np.zeros(26)),
    )  # fmt: skip
    save_saem(tmp_path / "wild.h5", wild)
    assert_same(read_saem(tmp_path / "wild.h5"), wild)


def test_never_over_another_file(path, fit):
    before = path.read_bytes()
    with pytest.raises(FileError, match="exists; pass force=True"):
        save_saem(path, fit)
    assert path.read_bytes() == before
    bad = dataclasses.replace(fit.saved, parameters=("nul\0", *"bcdef"))
    with pytest.raises(InputError, match="cannot be stored"):
        save_saem(path, bad, force=True)
    assert path.read_bytes() == before
    save_saem(path, fit, force=True)
    assert [one.name for one in path.parent.iterdir()] == ["fit.h5"]


# ---- damaged and hostile files ------------------------------------------------------------------


def put(file, name, value):
    """Put a value, or what a function makes of the one there, where an element or @attribute is."""
    if name.startswith("@"):
        if isinstance(value, str):
            del file.attrs[name[1:]]
            write_attribute(file, name[1:], value)
        else:
            file.attrs[name[1:]] = value
        return
    value = value(file[name][()]) if callable(value) else value
    del file[name]
    if isinstance(value, str):
        file[name] = np.frombuffer(value.encode(), dtype=np.uint8)
    elif isinstance(value, list):
        write_strings(file, name, value)
    elif isinstance(value, h5py.ExternalLink):
        file[name] = value
    else:
        write_array(file, name, value)


def at(place, value):
    def change(values):
        values[place] = value
        return values

    return change


def indefinite(values):
    return np.broadcast_to([[1.0, 2.0], [2.0, 1.0]], values.shape)


SEMIDEFINITE = "positive semi-definite"
HOSTILE = [  # what fits its field, and nothing else: of all fields test_saved.py tells
    ("@encoding-version", "1.0.0", "newer vpem"),
    ("@encoding-type", "vpem-model", "not a vpem-saem file"),
    ("@model", "os.system", "'model' must be 'linear' or .*, got 'os.system'"),
    ("theta", at(0, np.nan), "6 finite real numbers, got nan"),
    ("theta", h5py.ExternalLink("other.h5", "theta"), "link to another file"),
    ("parameters", [*"abcde", "a"], "must all be different"),
    ("names", [], "means must have shape 0 x 2, got 26 x 2"),
    ("@n_iter", 29, "must have shape 30 x any"),
    ("@n_draws", -1, "'n_draws' must be an integer from 0 to .*, got -1"),
    ("@level", 1.5, "from 0.0 to 1.0, got 1.5"),
    ("@change", -1.0, "at least 0.0, got -1.0"),
    ("bytes", at(0, 1 << 40), "do not fall"),
    ("bytes", lambda a: a - 10**9, "of at least 0, got -"),
    ("covariances", at((0, 0, 1), 9.0), SEMIDEFINITE),
    ("covariances", at((3, 1, 1), -1.0), SEMIDEFINITE),
    ("covariances", indefinite, SEMIDEFINITE),
    ("information", lambda a: -a, SEMIDEFINITE),
    ("standard_errors", at(2, -1.0), "of at least 0, got -1.0"),
    ("lower", at((3, 1), 1e9), "lower must not be above upper"),
    ("shrinkage", at(0, 1.5), "from 0 to 1, got 1.5"),
    ("acceptance", at(0, np.nan), "from 0 to 1, got nan"),
    ("log_likelihood/value", lambda a: a + 1, "the sum of"),
    ("log_likelihood", 1.0, "log_likelihood/value does not exist"),
    ("covariate_names", ["dose"], "must have shape 1 x 26"),
    ("time_range", lambda a: a[::-1], "no range"),
    ("settings", "{", "settings is not JSON"),
    ("settings", "[1]", "settings is not JSON"),
    ("settings", '{"a": 1e999}', "not finite"),
    ("settings", '{"a": ' + "[" * 500 + "]" * 500 + "}", "more than 8 deep"),
    ("model_options", '{"slopes": 7}', "must be a list, got 7"),
    ("model_options", '{"groups": [0,0,0,0,0,0,0]}', "too large"),
    ("model_options", '{"slopes": [1,2,3]}', "slopes.0 must be text"),
]


@each(("name", "value", "told"), HOSTILE)
def test_hostile_files_are_refused_in_a_sentence(path, sound, name, value, told):
    path.write_bytes(sound)
    with h5py.File(path, "a") as file:
        put(file, name, value)
    with pytest.raises(FileError, match=told) as caught:
        read_saem(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_cut_short_is_refused_and_changed_bytes_are_refused_or_read(path, sound):
    for share in (0.1, 0.5, 0.9, 0.999):
        path.write_bytes(sound[: int(share * len(sound))])
        with pytest.raises(FileError):
            read_saem(path)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        content = bytearray(sound)
        for place in rng.integers(len(content), size=4):
            content[place] = rng.integers(256)
        path.write_bytes(content)
        with contextlib.suppress(FileError):
            assert np.isfinite(read_saem(path).theta).all()


# ---- pictures -----------------------------------------------------------------------------------


def test_a_fit_is_opened_drawn_and_shown_in_python(fit, path, tmp_path):
    opened = vpem.load(path)
    assert_same(opened, read_saem(path))
    some = BOYS.take([0, 7])
    for name, draw, words in (
        ("traces", draw_traces, ("burn-in", "residual variance")),
        ("curves", lambda what: draw_curves(what, some, n_times=3), ("population", ">8<")),
    ):
        one, two = (tmp_path / f"{name}{number}.svg" for number in (1, 2))
        save_picture(one, draw(fit))
        save_picture(two, draw(opened))
        assert all(word in one.read_text() for word in words)
        assert one.read_bytes() == two.read_bytes()
    with pytest.raises(FileError, match="exists"):
        save_picture(one, draw(fit))
    assert vpem.plot(fit, "curves", BOYS, most=2).alt == vpem.plot(path, "curves", BOYS, most=2).alt
    shown = (repr(BOYS), repr(opened), repr(fit))
    assert shown[0].startswith("Individuals(26 individuals, 234 rows, ")
    assert all("array(" not in one for one in shown)
    with pytest.raises(InputError, match="held against Individuals"):
        vpem.plot(path, "curves", BOYS.values)
