"""Corpora: documents as individuals, vocabularies, files."""

import numpy as np
import pytest
import scipy.sparse

from vpem.errors import InputError
from vpem.saem.corpus import document_counts, from_counts, in_words
from vpem.saem.formats.individuals import chain

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
