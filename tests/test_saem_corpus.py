"""Corpora: documents as individuals, vocabularies, files."""

from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import scipy.sparse

from vpem.engines.engine import Engine
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import create, describe_element, write_array, write_strings
from vpem.saem.formats.individuals import (
    chain,
    read_corpus,
    read_individuals,
    write_corpus,
    write_individuals,
)
from vpem.saem.individuals import document_counts, from_counts, in_words
from vpem_cli.commands.individuals import HeldIndividuals, files_in

from .thread_engine import together

WORDS = ("ale", "bee", "cow")


@pytest.fixture
def some():
    counts = scipy.sparse.csc_array([[0, 2, 1], [3, 0, 0], [1, 1, 0]])
    return from_counts(counts, WORDS, ["x", "y", "z"])


def told(found):
    """Words of each document, with how often they come."""
    each = [[] for _ in found.names]
    for whose, time, value in zip(found.individual_of, found.times, found.values, strict=True):
        each[whose].append((found.words[int(time)], int(value)))
    return dict(zip(found.names, each, strict=True))


def test_documents_of_a_table(some):
    assert told(some) == {
        "x": [("bee", 2), ("cow", 1)], "y": [("ale", 3)], "z": [("ale", 1), ("bee", 1)],
    }  # fmt: skip
    assert told(some.take([2, 0])) == {one: told(some)[one] for one in ("z", "x")}
    assert document_counts(some).tolist() == [2, 2, 1]


def test_documents_of_several_sources_share_words(some):
    other = from_counts(np.array([[1, 0, 4]]), ("cow", "dog", "ant"), ["w"])
    joined = chain([some, other])
    assert joined.words == ("ale", "ant", "bee", "cow", "dog")
    assert told(joined) == {**told(some), "w": [("ant", 4), ("cow", 1)]}
    same = from_counts(np.array([[1, 0, 4]]), WORDS, ["w"])
    assert chain([some, same]).words == WORDS  # as they came


def test_words_that_are_not_known_are_counted(some):
    found, unknown = in_words(some, ["cow", "bee"])
    assert told(found) == {"x": [("cow", 1), ("bee", 2)], "z": [("bee", 1)]}
    assert unknown == 4
    with pytest.raises(InputError, match="no document has a word"):
        in_words(some, ["dog"])


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([[1, 0.5, 0]], r"count of 'bee' in document '0' is 0\.5; counts are whole"),
        ([[1, -1, 0]], "is -1; counts are whole"),
        ([[1, np.nan, 0]], "is nan; counts are whole"),
        ([[1, 1, 1], [0, 0, 0]], "these have none: '1'"),
        ([[1, 1]], "2 words need as many different names, got 3"),
        ([1, 1], "must be a table of counts"),
    ],
)
def test_tables_that_are_no_corpus(counts, words):
    with pytest.raises(InputError, match=words):
        from_counts(np.array(counts), WORDS)


@pytest.mark.parametrize("ending", ["csv", "tsv", "h5", "h5ad"])
def test_a_corpus_is_read_back(some, tmp_path, ending):
    path = tmp_path / f"corpus.{ending}"
    write_corpus(path, some)
    found = read_corpus(path)
    assert (found.words, told(found)) == (WORDS, told(some))
    with pytest.raises(FileError, match="exists"):
        write_corpus(path, some)


def test_individuals_keep_words(some, tmp_path):
    write_individuals(tmp_path / "x.h5", some)
    assert read_individuals(tmp_path / "x.h5").words == WORDS
    assert told(read_corpus(tmp_path / "x.h5")) == told(some)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["times"][0] = 3.0
    with pytest.raises(FileError, match="numbers of its 3 words"):
        read_individuals(tmp_path / "x.h5")


def test_lines_are_words_in_any_order(tmp_path, some):
    path = tmp_path / "x.csv"
    path.write_text("who;term\nx;bee\ny;ale\nz;bee\nx;cow\ny;ale\nx;bee\nz;ale\ny;ale\n")
    found = read_corpus(path, {"id": "who", "time": "term"})
    assert told(found) == told(some)


@pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
def test_matrices_with_names_beside(some, tmp_path, kind):
    counts = np.array([[0, 2, 1], [3, 0, 0], [1, 1, 0]])
    with create(tmp_path / "x.h5", "own", "1") as file:
        if kind == "dense":
            write_array(file, "layers/counts", counts)
        else:
            X = file.create_group("layers/counts")
            describe_element(X, f"{kind}_matrix", "0.1.0")
            X.attrs["shape"] = counts.shape
            sparse = scipy.sparse.coo_array(counts).asformat(kind)
            for part in ("data", "indices", "indptr"):
                write_array(X, part, getattr(sparse, part))
        write_strings(file, "obs_names", some.names)
        write_strings(file, "var_names", WORDS)
    assert told(read_corpus(tmp_path / "x.h5", dataset="layers/counts")) == told(some)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file["obs_names"], file["var_names"]
        file["var_names"] = np.array([b"a", b"a", b"b"])
    with pytest.raises(FileError, match="3 words need as many different names, got 3, 2 of"):
        read_corpus(tmp_path / "x.h5", dataset="layers/counts")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file["var_names"]
    assert read_corpus(tmp_path / "x.h5", dataset="layers/counts").words == ("0", "1", "2")


@pytest.mark.parametrize(
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
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_corpus(path)


def test_a_matrix_that_declares_what_it_has_not(some, tmp_path):
    path = tmp_path / "x.h5"
    write_corpus(path, some)
    with h5py.File(path, "r+") as file:
        file["X"].attrs["shape"] = (3, 1 << 40)
        del file["var"]
    with pytest.raises(FileError, match="declares values"):
        read_corpus(path)
    with h5py.File(path, "r+") as file:
        file["X"].attrs["shape"] = (2, 3)
    with pytest.raises(FileError, match="do not fit each other"):
        read_corpus(path)


# ---- what a shell reads --------------------------------------------------------------------------


@pytest.fixture
def sharing(tmp_path):
    """Function: one that gives documents common words by these settings, and what it says."""

    def make(**settings):
        told = []
        screen = SimpleNamespace(print_note=told.append, warn=told.append)
        if "vocabulary" in settings:
            path = tmp_path / "words.txt"
            path.write_text(settings["vocabulary"])
            settings["vocabulary"] = path
        held = HeldIndividuals(**settings)
        return lambda parts, engine: held.share_words(parts, engine, screen), told

    return make


@pytest.mark.parametrize(
    ("settings", "words", "said"),
    [
        ({}, WORDS, []),
        ({"min_documents": 2}, ("ale", "bee"), ["which occur 1 time, are left out"]),
        ({"max_share": 0.5}, ("cow",), ["7 times", "2 documents left out"]),
        ({"vocabulary": "cow\n\nbee\n"}, ("cow", "bee"), ["4 times", "1 document left out"]),
        ({"vocabulary": "cow\nant\nbee\n", "min_documents": 1}, ("cow", "bee"),
         ["4 times", "1 document left out"]),
    ],
)  # fmt: skip
def test_words_that_are_left_out_are_told(some, sharing, settings, words, said):
    share, told = sharing(**settings)
    found, kept = share({0: some}, None)
    assert kept == found[0].words == words
    assert len(told) == len(said)
    assert all(part in sentence for part, sentence in zip(said, told, strict=True))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_documents": 3}, "none of the 3 words is in 3 documents or more"),
        ({"vocabulary": "cow\ncow\n"}, "a line each, all different"),
        ({"vocabulary": "\n"}, "a line each, all different"),
    ],
)
def test_vocabularies_that_are_refused(some, sharing, settings, words):
    with pytest.raises(InputError, match=words):
        sharing(**settings)[0]({0: some}, None)


def test_parties_share_words(some, sharing):
    """In one process and in two, and with words of too few documents left out."""
    other = from_counts(np.array([[1, 0, 4]]), ("cow", "dog", "ant"), ["w"])
    for settings, wanted in (({}, ("ale", "ant", "bee", "cow", "dog")),
                             ({"min_documents": 2}, ("ale", "bee", "cow"))):  # fmt: skip
        alone, words = sharing(**settings)[0]({0: some, 1: other}, Engine())

        def work(engine, settings=settings):
            mine = {engine.rank: (some, other)[engine.rank]}
            return sharing(**settings)[0](mine, engine)

        apart = together(2, work)
        assert {one[1] for one in apart} == {words} == {wanted}
        assert [told(one[0][n]) for n, one in enumerate(apart)] == [told(alone[n]) for n in (0, 1)]


def test_files_of_a_folder(tmp_path):
    for name in ("b.csv", "a.csv", ".hidden"):
        (tmp_path / name).touch()
    assert files_in([tmp_path]) == [tmp_path / "a.csv", tmp_path / "b.csv"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="empty is empty"):
        files_in([tmp_path / "empty"])
