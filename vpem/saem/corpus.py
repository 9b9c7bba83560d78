"""Documents as individuals: words are numbers in a vocabulary, and values how often they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import as_array
from vpem.errors import InputError, shorten
from vpem.files.long_csv import sort_names
from vpem.saem.individuals import Individuals

Vector = NDArray[np.float64]


def from_counts(
    counts: Any,
    words: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    source: str = "the corpus",
) -> Individuals:
    """Make documents of a table (n, V) of how often words come in them.

    Words (V,) and names (n,) all differ, and are by default numbers from 0. InputError if a count
    is no whole number from 0, or a document has no words.
    """
    import scipy.sparse

    if not scipy.sparse.issparse(counts):
        table = as_array(source, counts)
        if table.ndim != 2 or table.dtype.kind not in "iufb":
            raise InputError(
                f"{source} must be a table of counts, got shape {table.shape} of type {table.dtype}"
            )
        counts = table
    found = scipy.sparse.coo_array(counts)
    n, size = found.shape
    known = _names_of(names, n, "document", source)
    held = _names_of(words, size, "word", source)
    values = np.asarray(found.data, dtype=np.float64)
    return gather(found.row, found.col, values, known, held, source)


def _names_of(names: Sequence[str] | None, n: int, what: str, source: str) -> tuple[str, ...]:
    """Return n names, which differ, or numbers for none."""
    told = tuple(map(str, range(n) if names is None else names))
    if len(told) != n or len(set(told)) < n:
        raise InputError(f"{source}: {n} {what}s need as many different names, got {len(told)}")
    return told


def gather(
    documents: NDArray[Any],
    places: NDArray[Any],
    counts: Vector,
    names: Sequence[str],
    words: Sequence[str],
    source: str,
) -> Individuals:
    """Make documents of entries in any order; those of a word in a document are added up.

    Entries (m,) are numbers of the document and of the word, and how often it comes there.
    """
    wrong = ~(np.isfinite(counts) & (counts >= 0) & (counts == np.rint(counts)))
    if wrong.any():
        one = int(wrong.argmax())
        raise InputError(
            f"{source}: the count of {words[int(places[one])]!r} in document "
            f"{names[int(documents[one])]!r} is {counts[one]:g}; counts are whole numbers from 0: "
            "give how often words come, no shares or weights"
        )
    there = counts > 0
    width = max(len(words), 1)
    keys = documents[there].astype(np.int64) * width + places[there]
    cells, entry = np.unique(keys, return_inverse=True)
    values = np.bincount(entry.ravel(), counts[there], len(cells)).astype(np.float64)
    sizes = np.bincount(cells // width, minlength=len(names))
    empty = np.flatnonzero(sizes == 0)
    if len(empty) or not len(names):
        lacking = shorten([repr(names[one]) for one in empty.tolist()]) or "there is none"
        raise InputError(
            f"{source}: documents must have words, but these have none: {lacking}; leave them out"
        )
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
    times = (cells % width).astype(np.float64)
    return Individuals(tuple(names), first, times, values, source=source, words=tuple(words))


def join_words(vocabularies: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the vocabulary that all are, or else the words of any, in order."""
    if all(one == vocabularies[0] for one in vocabularies):
        return vocabularies[0]
    return tuple(sort_names(word for one in vocabularies for word in one))


def share_words(parts: Sequence[Individuals]) -> list[Individuals]:
    """Give documents of several sources one vocabulary; others are returned as they are."""
    have = [one.words for one in parts if one.words is not None]
    if not have:
        return list(parts)
    if len(have) < len(parts):
        some = next(one.source for one in parts if one.words is None)
        raise InputError(f"{some} has no words, but others are documents; give documents alone")
    words = join_words(have)
    return [in_words(one, words)[0] for one in parts]


def in_words(found: Individuals, words: Sequence[str]) -> tuple[Individuals, float]:
    """Return documents in another vocabulary, and how often words came that it has not.

    Documents of such words only are left out; one at least must be left.
    """
    words = tuple(words)
    if found.words is None:
        raise InputError(f"{found.source} has no words: it must be documents, words and counts")
    if found.words == words:
        return found, 0.0
    where = {word: place for place, word in enumerate(words)}
    place = np.array([where.get(word, -1) for word in found.words], dtype=np.intp)
    moved = place[found.times.astype(np.intp)]
    known = moved >= 0
    left = np.bincount(found.individual_of[known], minlength=found.n_individuals)
    kept = np.flatnonzero(left)
    if not len(kept) and found.n_individuals:
        raise InputError(
            f"{found.source}: no document has a word of the vocabulary, whose words are "
            f"{shorten(map(repr, words), 5)}"
        )
    whose, moved, values = found.individual_of[known], moved[known], found.values[known]
    order = np.lexsort((moved, whose))
    made = replace(
        found.take(kept),
        first=np.concatenate([[0], np.cumsum(left[kept])]).astype(np.intp),
        times=moved[order].astype(np.float64),
        values=values[order],
        covariates={name: column[known][order] for name, column in found.covariates.items()},
        words=words,
    )
    return made, float(found.values[~known].sum())


def document_counts(found: Individuals) -> NDArray[np.intp]:
    """Return in how many documents each word of the vocabulary comes, (V,)."""
    size = len(found.words or ())
    return np.bincount(found.times.astype(np.intp), minlength=size)
