"""Repeated measurements: individuals as runs of rows, with times, values and covariates.

Documents are individuals too: times are numbers of words in a vocabulary, and values how often
these come. Each process has the individuals of its own devices; totals are over those of all.

Each individual has random streams of its own, by counting as in the codecs' kernels: SplitMix64 of
a key and an index. What it draws depends on the seed, its name, the iteration and the use, not on
devices, order or threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Doubles, Indices, Mask, as_array
from vpem.engines.placement import Placement
from vpem.errors import InputError, did_you_mean, shorten
from vpem.files.observations import sort_names
from vpem.records import Shown
from vpem.saem import special
from vpem.saem.doses import Doses

Keys = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)

LAST = (1 << 63) - 1
TOP = np.uint64(1 << 63)
ONE = np.uint64(1)


@dataclass(frozen=True, eq=False)
class Individuals(Shown, facts="{n_individuals:individual}, {values.size:row}, {source}"):
    """Measurements in long form: the rows of an individual are a run, of one row at least.

    Numbers, totals and means are over all individuals, those of other processes too.
    """

    names: tuple[str, ...]  # (n,) all different
    first: Indices  # (n + 1,) rows first[i] to first[i + 1] are those of individual i
    times: Doubles  # (N,) finite; of documents the numbers of words
    values: Doubles  # (N,) finite; of documents how often words come
    covariates: Mapping[str, Doubles] = field(default_factory=dict)  # (N,); NaN: missing
    source: str = "the data"  # for messages
    # Names that "id", "time" and "value" have in a table they are from, and as "covariates" those
    # of covariates that have another one there.
    columns: Mapping[str, Any] = field(default_factory=dict)
    weights: Doubles | None = None  # (n,) how many copies of each count, above 0; None: one
    together: AllIndividuals | None = None  # where others are in other processes
    words: tuple[str, ...] | None = None  # vocabulary of documents
    doses: Doses | None = None

    @property
    def n_individuals(self) -> int:
        """Number of individuals of this process, n."""
        return len(self.names)

    @property
    def n_rows(self) -> int:
        """Number of rows of this process, N."""
        return len(self.times)

    @property
    def counts(self) -> Indices:
        """Number of rows of each individual, (n,)."""
        return np.diff(self.first)

    @cached_property
    def individual_of(self) -> Indices:
        """Individual of each row, (N,)."""
        return np.repeat(np.arange(self.n_individuals), self.counts)

    @property
    def ids(self) -> NDArray[np.str_]:
        """Names of the individuals, (n,), as a column of a table."""
        return np.array(self.names, dtype=np.str_)

    @property
    def contents(self) -> tuple[object, ...]:
        """All that is known of the individuals, by which they are recognised."""
        doses = () if self.doses is None else (self.doses.first, *self.doses.columns)
        return (
            self.names, self.first, self.times, self.values, self.weights, *self.covariates,
            *self.covariates.values(), *(self.words or ()), *doses,
        )  # fmt: skip

    # ---- over all individuals -------------------------------------------------------------------

    @property
    def number(self) -> tuple[int, int]:
        """Number of all individuals, and of all rows."""
        if self.together is None:
            return self.n_individuals, self.n_rows
        return int(self.together.sizes[0]), int(self.together.sizes[1])

    @property
    def everyone(self) -> tuple[float, float]:
        """Individuals and rows as they count, by weights."""
        if self.weights is None:
            return self.number
        if self.together is None:
            return float(self.weights.sum()), float(self.weights @ self.counts)
        return self.together.sizes[2], self.together.sizes[3]

    def weighed(self, values: Doubles, weights: Doubles | None) -> Doubles:
        """Multiply values (m, ...) by weights (m,), if there are any."""
        if weights is None:
            return values
        return values * weights.reshape(-1, *(1,) * (values.ndim - 1))

    @property
    def masked(self) -> bool:
        """Whether sums are masked, of each device apart."""
        return self.together is not None and self.together.parts is not None

    @property
    def parts(self) -> list[Any]:
        """Individuals of this process, those of each device where sums are masked."""
        parts = None if self.together is None else self.together.parts
        return [slice(None)] if parts is None else parts

    def total(self, values: Doubles) -> Doubles:
        """Add up values (n, ...) of individuals, by weights."""
        weighed = self.weighed(values, self.weights)
        each = [weighed[part].sum(axis=0) for part in self.parts]
        return self.add(np.array(each).reshape(len(each), *values.shape[1:]))

    def products(self, values: Doubles) -> Doubles:
        """Add up products of values (n, P) of individuals with each other, by weights: (P, P)."""
        weighed = self.weighed(values, self.weights)
        each = [values[part].T @ weighed[part] for part in self.parts]
        return self.add(np.array(each).reshape(len(each), *values.shape[1:] * 2))

    def add(self, totals: Doubles) -> Doubles:
        """Add up totals (m, ...) of all `parts`, of all processes."""
        if self.together is not None:  # without devices here there is no first
            return self.together.add(totals)
        only: Doubles = totals[0]
        return only

    def largest(self, values: Any) -> Any:
        """Largest of all processes' values."""
        return values if self.together is None else self.together.largest(values)

    def mean(self, values: Doubles) -> Doubles:
        """Mean of values (n, ...) of individuals."""
        return self.total(values) / self.everyone[0]

    def variance(self, values: Doubles) -> Doubles:
        """Variance of values (n, ...) of individuals."""
        return self.mean((values - self.mean(values)) ** 2)

    def mean_of_rows(self, values: Doubles) -> Doubles:
        """Mean of values (N, ...) of rows."""
        whose = self.individual_of
        weighed = self.weighed(values, None if self.weights is None else self.weights[whose])
        if not self.masked:
            return self.add(weighed.sum(axis=0)[None]) / self.everyone[1]
        each = [weighed[np.isin(whose, part)].sum(axis=0) for part in self.parts]
        return self.add(np.array(each).reshape(len(each), *values.shape[1:])) / self.everyone[1]

    def median(self, values: Doubles) -> Doubles:
        """Medians (q,) of values (n, q) of individuals, NaN left out."""
        if self.together is not None:
            return self.together.median(values)
        return np.asarray(np.nanmedian(values, axis=0), np.float64)

    # ---- of this process ------------------------------------------------------------------------

    def take(self, which: object) -> Individuals:
        """Return some individuals, by themselves, in the order of their numbers in ``which``."""
        chosen = np.asarray(which, dtype=np.intp)
        counts = self.counts[chosen]
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        rows = np.repeat(self.first[:-1][chosen] - first[:-1], counts) + np.arange(first[-1])
        return replace(
            self,
            names=tuple(self.names[one] for one in chosen),
            first=first,
            times=self.times[rows],
            values=self.values[rows],
            covariates={name: values[rows] for name, values in self.covariates.items()},
            weights=None if self.weights is None else self.weights[chosen],
            together=None,
            doses=None if self.doses is None else self.doses.take_individuals(chosen),
        )

    def named(self, names: Sequence[str], what: str = "individual") -> Individuals:
        """Return those of these names, in their order; ``what`` they are is for messages."""
        place = {name: one for one, name in enumerate(self.names)}
        for name in names:
            if name not in place:
                raise InputError(f"{self.source} has no {what} {name!r}{did_you_mean(name, place)}")
        return self.take([place[name] for name in names])

    def sums(self, values: Doubles) -> Doubles:
        """Add values (..., N) over the rows of each individual: (..., n)."""
        added: Doubles = np.add.reduceat(values, self.first[:-1], axis=-1)
        return added

    # ---- what models need -----------------------------------------------------------------------

    def covariate(self, name: str) -> Doubles:
        """Covariate (N,) that has no missing values."""
        column, _, word = name.partition("=")
        known = self.columns.get("words", {}).get(column, [])
        if name not in self.covariates and word in known:
            return np.asarray(self.covariate(column) == known.index(word), np.float64)
        if name not in self.covariates:
            have = shorten([repr(one) for one in self.covariates]) or "none"
            raise InputError(
                f"{self.source} has no covariate {name!r}{did_you_mean(name, self.covariates)}, "
                f"which the model needs; there are: {have}"
            )
        values = self.covariates[name]
        missing = ~np.isfinite(values)
        if missing.any():
            lacking = np.unique(self.individual_of[missing])
            raise InputError(
                f"{self.source}: covariate {name!r} is missing for "
                f"{shorten([repr(self.names[one]) for one in lacking])}; fill it in, or leave "
                "these individuals out"
            )
        return values

    def product(self, name: str) -> Doubles:
        """Column (N,): a covariate, ``time``, or a product of such, ``time:x``."""
        column = np.ones(self.n_rows)
        for part in name.split(":"):
            column = column * (self.times if part == "time" else self.covariate(part))
        return column

    def changes(self, name: str) -> Indices:
        """Rows whose covariate is not that of the individual's first row."""
        values = self.covariate(name)
        each: Doubles = values[self.first[:-1]]
        return np.flatnonzero(values != each[self.individual_of])

    def constant(self, name: str, why: str = "the model takes one value an individual") -> Doubles:
        """Covariate (n,) that does not change within an individual; ``why`` ends an error."""
        values = self.covariate(name)
        each: Doubles = values[self.first[:-1]]
        odd = self.changes(name)
        if len(odd):
            who = self.individual_of[odd[0]]
            raise InputError(
                f"{self.source}: covariate {name!r} of individual {self.names[who]!r} changes from "
                f"{each[who]:g} to {values[odd[0]]:g}; {why}"
            )
        return each

    def with_weights(self, name: str) -> Individuals:
        """Return them with this covariate, above 0, as their weights."""
        weights = self.constant(name)
        if (weights <= 0).any():
            who = int(weights.argmin())
            raise InputError(
                f"{self.source}: the weight of individual {self.names[who]!r} must be above 0, got "
                f"{weights[who]:g}; leave out individuals of weight 0"
            )
        return replace(self, weights=weights)

    def items(self) -> Doubles:
        """All times (T,) of which any individual has a measurement."""
        times = np.unique(self.times)
        if self.together is not None:
            times = np.unique(np.concatenate(self.together.engine.allgather(times)))
        return times

    def table(self, items: Doubles) -> Doubles:
        """Values as a table (n, T) over items (T,), NaN where there is none."""
        order = np.argsort(items)
        place = order[np.searchsorted(items[order], self.times).clip(max=len(items) - 1)]
        each = self.individual_of
        known = items[place] == self.times
        twice = np.ones(self.n_rows, dtype=np.bool_)
        twice[np.unique(each * len(items) + place, return_index=True)[1]] = False
        for wrong, what in ((~known, "which is not among those of the model"), (twice, "twice")):
            if wrong.any():
                row = int(wrong.argmax())
                raise InputError(
                    f"{self.source}: individual {self.names[each[row]]!r} has the time (item) "
                    f"{self.times[row]:g}, {what}"
                )
        table = np.full((self.n_individuals, len(items)), np.nan)
        table[each, place] = self.values
        return table

    def constant_covariates(self) -> dict[str, Doubles]:
        """Covariates (n,) that change within no individual of any process."""
        constant = {}
        for name in sorted(self.covariates):  # in the same order in all processes
            values = self.covariates[name]
            each = values[self.first[:-1]]
            changes = (values != each[self.individual_of]) & ~np.isnan(values)
            if not self.largest(np.array([changes.any()], dtype=np.uint8))[0]:
                constant[name] = each
        return {name: constant[name] for name in self.covariates if name in constant}

    def lack(self, items: Sequence[float] | None) -> bool:
        """Whether an individual of any process has fewer rows than there are items, if given."""
        if items is None:
            return False
        fewer = bool((self.counts < len(items)).any())
        return bool(self.largest(np.array([fewer], dtype=np.uint8))[0])

    def matrix(self, items: Sequence[float] | None = None) -> tuple[Doubles, Doubles]:
        """Values as a table (n, T), and the items, or the times (T,) that all individuals share.

        Values are NaN where an individual lacks one of the items, if there are such.
        """
        if items is not None:
            known = np.array(items, dtype=np.float64)
            return self.table(known), known
        if not self.n_individuals and self.together is not None:
            shared = self._share_times(None)
            return np.empty((0, len(shared))), shared
        width = int(self.counts[0])
        odd = np.flatnonzero(self.counts != width)
        if not len(odd):
            times = self.times.reshape(-1, width)
            odd = np.flatnonzero((times != times[0]).any(axis=1))
            if not len(odd):
                self._share_times(times[0])
                return self.values.reshape(-1, width), times[0]
        raise InputError(
            f"{self.source}: the model needs all individuals measured at the same times (items), "
            f"but those of {self.names[odd[0]]!r} differ from those of {self.names[0]!r}"
        )

    def _share_times(self, times: Doubles | None) -> Doubles:
        """Times (T,) of all processes' individuals, which must be the same; None: none here."""
        shared = times if self.together is None else self.together.same(times)
        if shared is None:
            raise InputError(
                f"{self.source}: the model needs all individuals measured at the same times "
                "(items), but those of some devices differ from those of others"
            )
        return np.asarray(shared)


class AllIndividuals:
    """Individuals of all processes: only sums over them, and counts, leave a process.

    ``numbers`` (n_here,) say which of all those of this process are, ``sizes`` (m, 4) are
    individuals and rows of each part, and as they count, by weights; as an attribute those of all
    processes. ``parts`` are individuals of each device of this process, where sums are masked;
    None: one part of all.
    """

    def __init__(
        self, place: Placement, numbers: Indices, sizes: Doubles, parts: list[Indices] | None = None
    ) -> None:
        self.place, self.engine = place, place.engine
        self.numbers, self.parts = numbers, parts
        self.sizes: tuple[float, ...] = tuple(self.add(sizes).tolist())

    def add(self, values: Doubles) -> Doubles:
        """Sum over all parts, (m, ...), of all processes."""
        if self.parts is None:
            return self.place.allreduce(np.asarray(values[0]))
        flat = values.astype(np.float64).reshape(len(values), int(np.prod(values.shape[1:])))
        return self.place.add_up(flat).reshape(values.shape[1:])

    def select_values(self, values: Doubles, which: Indices) -> Doubles:
        """Values (m, ...) of some of all individuals, each known to its own process."""
        local = np.zeros((len(which), *values.shape[1:]))
        place = {number: row for row, number in enumerate(self.numbers.tolist())}
        for one, number in enumerate(which.tolist()):
            if number in place:
                local[one] = values[place[number]]
        shared: Doubles = self.place.allreduce(local)
        return shared

    def largest(self, values: Any) -> Any:
        """Largest of all processes' values; where sums are masked, not whose it is."""
        if self.parts is None:
            return self.engine.allreduce(values, "max")
        local = np.asarray(values)
        flat = local.ravel()
        if local.dtype.kind in "bu":
            return self.place.any(flat > 0).astype(local.dtype).reshape(local.shape)
        bits = flat.astype(np.float64).view(np.int64)
        keys = bits ^ ((bits >> 63) & LAST)  # ordered as the numbers are
        most = self.place.largest(np.tile(keys, (len(self.parts), 1)), -LAST - 1, LAST)
        back = most ^ ((most >> 63) & LAST)
        return np.asarray(back, dtype=np.int64).view(np.float64).reshape(local.shape)

    def same(self, times: Doubles | None) -> Doubles | None:
        """Times (T,) of all processes that have any; None if they differ."""
        if self.parts is None:
            first, *others = [one for one in self.engine.allgather(times) if one is not None]
            return first if all(np.array_equal(first, one) for one in others) else None
        width = int(self.largest(np.array([0.0 if times is None else len(times)]))[0])
        odd = times is not None and len(times) != width
        local = np.full((2, width), -np.inf)
        if times is not None and not odd:
            local = np.stack([times, -times])
        ends = self.largest(local)
        differ = self.place.any([odd])[0] or not np.array_equal(ends[0], -ends[1])
        return None if differ else np.asarray(ends[0])

    def median(self, values: Doubles) -> Doubles:
        """Median of each column (n_here, q), NaN left out.

        By bisection of the bits of a number: what leaves a process are counts of values below some.
        """
        bits = np.ascontiguousarray(values).view(np.int64)
        keys = np.where(bits < 0, ~bits.view(np.uint64), bits.view(np.uint64) | TOP)
        known = ~np.isnan(values)
        n = self._count(known[None])[0]
        ranks = np.stack([(n - 1) // 2, n // 2])
        low, high = np.zeros(ranks.shape, np.uint64), np.full(ranks.shape, ~np.uint64(0))
        for _ in range(64):
            middle = low + (high - low) // np.uint64(2)
            below = self._count((keys <= middle[:, None]) & known)
            enough = below > ranks
            high, low = np.where(enough, middle, high), np.where(enough, low, middle + ONE)
        ends = np.where(high & TOP, high ^ TOP, ~high).view(np.float64)
        return np.asarray(ends.sum(axis=0) / 2, np.float64)

    def _count(self, flags: Mask) -> Indices:
        """Flags (r, n_here, q) counted over all individuals: (r, q)."""
        if self.parts is None:
            return self.place.allreduce(flags.sum(axis=1))
        each = np.array([flags[:, part].sum(axis=1).ravel() for part in self.parts], np.float64)
        flat = each.reshape(len(self.parts), flags.shape[0] * flags.shape[2])
        counts: Indices = np.rint(self.place.add(flat)).astype(np.intp)
        return counts.reshape(flags.shape[0], flags.shape[2])


def from_long(
    ids: ArrayLike,
    times: ArrayLike,
    values: ArrayLike,
    covariates: Mapping[str, ArrayLike] | None = None,
    source: str = "the data",
    missing: bool = False,
) -> Individuals:
    """Make individuals of columns (N,), in the order in which they come.

    Rows of an individual, by ``ids`` of numbers or text, are neighbours. Where values may be
    ``missing``, NaN, these rows say nothing, and are left out.
    """
    labels = as_array("the ids", ids)
    if labels.ndim != 1 or not len(labels):
        raise InputError(f"{source} must have one id per row, got an array of shape {labels.shape}")
    columns = {}
    for name, column in (("times", times), ("values", values), *(covariates or {}).items()):
        array = as_array(f"the {name}", column)
        if array.dtype.kind not in "iufb" or array.shape != labels.shape:
            raise InputError(
                f"{source}: {name} must be {len(labels)} numbers, one per row, got shape "
                f"{array.shape} of type {array.dtype}"
            )
        columns[name] = array.astype(np.float64)
    if missing:
        there = ~np.isnan(columns["values"])
        lacking = sorted(set(map(str, labels[~there])) - set(map(str, labels[there])))
        if lacking:
            raise InputError(
                f"{source}: no value of {shorten([repr(name) for name in lacking])} was measured, "
                "so that nothing can be learnt from it; leave such individuals out"
            )
        labels, columns = labels[there], {name: values[there] for name, values in columns.items()}
    for name in ("times", "values"):
        bad = np.flatnonzero(~np.isfinite(columns[name]))
        if len(bad):
            raise InputError(
                f"{source}: row {bad[0]} of {name} is {columns[name][bad[0]]}; leave out rows of "
                "what was not measured"
            )
    for name in covariates or {}:
        if np.isinf(columns[name]).any():
            raise InputError(f"{source}: covariate {name!r} is infinite in some rows")
    begins = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
    names = tuple(str(label) for label in labels[begins].tolist())
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{source}: the rows of individual {twice!r} are in several places; sort rows by id"
        )
    return Individuals(
        names,
        np.append(begins, len(labels)).astype(np.intp),
        columns["times"],
        columns["values"],
        {name: columns[name] for name in covariates or {}},
        source,
    )


def from_matrix(X: object, names: object = None, source: str = "the data") -> Individuals:
    """Make individuals of the rows of a table (n, T); times are the numbers of the columns."""
    table = as_array(source, X)
    if table.ndim != 2 or table.dtype.kind not in "iufb" or not table.size:
        raise InputError(
            f"{source} must be a table of numbers, got shape {table.shape} of type {table.dtype}"
        )
    n, width = table.shape
    labels = np.arange(n) if names is None else as_array("the names", names)
    if labels.shape != (n,):
        raise InputError(f"{n} individuals need as many names, got shape {labels.shape}")
    return from_long(
        np.repeat(labels, width), np.tile(np.arange(width), n), table.ravel(), source=source
    )


def from_counts(
    counts: ArrayLike,
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
    entries = scipy.sparse.coo_array(counts)
    n, size = entries.shape
    documents = _names_of(names, n, "document", source)
    vocabulary = _names_of(words, size, "word", source)
    values = np.asarray(entries.data, dtype=np.float64)
    return gather(entries.row, entries.col, values, documents, vocabulary, source)


def gather(
    documents: NDArray[np.integer],
    places: NDArray[np.integer],
    counts: Doubles,
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
            "give how often words occur, not shares or weights"
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


def _names_of(names: Sequence[str] | None, n: int, what: str, source: str) -> tuple[str, ...]:
    """N names, which differ, or numbers for none."""
    named = tuple(map(str, range(n) if names is None else names))
    if len(named) != n or len(set(named)) < n:
        raise InputError(f"{source}: {n} {what}s need as many different names, got {len(named)}")
    return named


def join_words(vocabularies: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the vocabulary that all are, or else the words of any, in order."""
    if all(one == vocabularies[0] for one in vocabularies):
        return vocabularies[0]
    return tuple(sort_names(word for one in vocabularies for word in one))


def in_words(individuals: Individuals, words: Sequence[str]) -> tuple[Individuals, float]:
    """Return documents in another vocabulary, and how often words came that it has not.

    Documents of such words only are left out; one at least must be left.
    """
    words = tuple(words)
    if individuals.words is None:
        raise InputError(
            f"{individuals.source} has no words: it must be documents, words and counts"
        )
    if individuals.words == words:
        return individuals, 0.0
    where = {word: place for place, word in enumerate(words)}
    place = np.array([where.get(word, -1) for word in individuals.words], dtype=np.intp)
    moved = place[individuals.times.astype(np.intp)]
    known = moved >= 0
    left = np.bincount(individuals.individual_of[known], minlength=individuals.n_individuals)
    nonempty = np.flatnonzero(left)
    if not len(nonempty) and individuals.n_individuals:
        raise InputError(
            f"{individuals.source}: no document has a word of the vocabulary, whose words are "
            f"{shorten(map(repr, words), 5)}"
        )
    whose, moved, values = individuals.individual_of[known], moved[known], individuals.values[known]
    order = np.lexsort((moved, whose))
    documents = replace(
        individuals.take(nonempty),
        first=np.concatenate([[0], np.cumsum(left[nonempty])]).astype(np.intp),
        times=moved[order].astype(np.float64),
        values=values[order],
        covariates={name: column[known][order] for name, column in individuals.covariates.items()},
        words=words,
    )
    return documents, float(individuals.values[~known].sum())


def document_counts(individuals: Individuals) -> Indices:
    """Return in how many documents each word of the vocabulary comes, (V,)."""
    size = len(individuals.words or ())
    return np.bincount(individuals.times.astype(np.intp), minlength=size)


@dataclass(frozen=True)
class Streams:
    """Streams of random numbers, one of each individual, by keys (n,) of uint64."""

    keys: Keys

    @staticmethod
    def from_names(names: Sequence[str], seed: int) -> Streams:
        """Make the streams of individuals of these names; the seed is below 2^64."""
        salt = int(seed).to_bytes(8, "little")
        numbers = [
            int.from_bytes(blake2b(name.encode(), digest_size=8, key=salt).digest(), "little")
            for name in names
        ]
        return Streams(np.array(numbers, dtype=np.uint64))

    def derive_stream(self, iteration: int, use: int) -> Streams:
        """Return those for the use (0 to 2^20 - 1) of them in an iteration (below 2^43)."""
        place = np.uint64((iteration << 20) + use)
        return Streams(_stir(self.keys ^ _stir(np.array([place + np.uint64(1)]) * GOLDEN)))

    def keys_at(self, iteration: int, uses: int) -> Keys:
        """Return the keys of the first so many uses in an iteration, (uses, n)."""
        places = np.uint64(iteration << 20) + np.arange(1, uses + 1, dtype=np.uint64)
        return _stir(self.keys ^ _stir(places * GOLDEN)[:, None])

    # ---- numbers of one use in one iteration ----------------------------------------------------

    def words(self, n_chains: int, width: int) -> Keys:
        """Random 64 bits, (chains, n, width)."""
        index = np.arange(1, n_chains * width + 1, dtype=np.uint64).reshape(n_chains, 1, width)
        return _stir(_stir(self.keys)[None, :, None] + index * GOLDEN)

    def uniforms(self, n_chains: int, width: int) -> Doubles:
        """Uniform numbers inside (0, 1), (chains, n, width)."""
        return _between(self.words(n_chains, width))

    def coins(self, counts: Indices) -> Mask:
        """Fair coins, so many of each individual (n,), one individual after the other."""
        ends = np.cumsum(counts)
        place = np.arange(1, 1 + int(counts.sum())) - np.repeat(ends - counts, counts)
        words = _stir(np.repeat(_stir(self.keys), counts) + place.astype(np.uint64) * GOLDEN)
        heads: Mask = words >> np.uint64(63) > 0
        return heads

    def normals(self, n_chains: int, width: int) -> Doubles:
        """Standard normal numbers, (chains, n, width)."""
        normals: Doubles = special.ndtri(self.uniforms(n_chains, width))
        return normals

    def of_rows(self, n_chains: int, first: Indices) -> Doubles:
        """Return uniform numbers (chains, N) inside (0, 1), one a row of the individuals.

        What a row has depends on its place among those of its individual only: ``first`` (n + 1,).
        """
        counts = np.diff(first)
        places = np.arange(first[-1]) - np.repeat(first[:-1], counts)
        index = (np.arange(n_chains, dtype=np.uint64) << np.uint64(32))[:, None]
        index = index + places.astype(np.uint64) + np.uint64(1)
        return _between(_stir(np.repeat(_stir(self.keys), counts) + index * GOLDEN))


def _stir(words: Keys) -> Keys:
    """Finaliser of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _between(words: Keys) -> Doubles:
    """Uniform numbers inside (0, 1) of random bits."""
    uniforms: Doubles = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return uniforms
