"""Checks of what a user gives, before any work starts."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.errors import InputError, Setting, brief, named

T = TypeVar("T")

LEAST_CHANCE = 1e-6
"""Least probability with which a worker takes part."""

NUMBERED = (
    "accession", "aktenzeichen", "barcode", "case", "dossier", "id", "ids", "idx", "index",
    "kennung", "mrn", "no", "nr", "participant", "patient", "patients", "phone", "pid", "plz",
    "postal", "postcode", "proband", "pseudonym", "record", "respondent", "sample", "subject",
    "subjects", "telephone", "uid", "uuid", "zip", "zip5", "zipcode",
)  # fmt: skip
"""Names of columns whose numbers are ids or codes, if there are more than two different ones."""

WHOSE = (
    "client", "customer", "device", "member", "pat", "person", "row", "site", "study", "subj",
    "user", "usubj",
)  # fmt: skip
"""With "id" after or before them, these are such names, too."""

CLASSES = (
    "class", "classes", "cluster", "diagnosis", "klasse", "label", "labels", "species", "target",
)  # fmt: skip
"""Names of columns whose few whole numbers are classes, which a fit is to find by itself."""

MOST_CLASSES = 20

GROUPS = (
    "batch", "center", "centre", "code", "country", "fold", "group", "port", "region", "site",
    "station", "ward",
)  # fmt: skip
"""Names of columns whose whole numbers may be codes, if they repeat."""

DATES = ("birthdate", "date", "datetime", "datum", "dob", "timestamp")
"""Numbers with such a word in their name are dates or times."""

TIMES = (
    "at", "created", "end", "epoch", "modified", "received", "seen", "start", "time", "ts", "unix",
    "updated",
)  # fmt: skip
"""Numbers from `EPOCH` on with such a word in their name are times."""

CLOCKS = ("clock", "elapsed", "ms", "s", "sec", "second", "seconds", "t", "time", "zeit")
"""Numbers with such a word in their name that rise in equal steps are times, too."""

EPOCH = 1e9  # seconds from 1970 to 2001

MARKS = (
    -7, -8, -9, -77, -88, -99, -999, -9999, -99999, 77, 88, 99, 997, 998, 999, 9999, 99999,
    -32768, -1e30, 1e20, 1e30,
)  # fmt: skip
"""Numbers by which people, and instruments, write that a value is missing."""

BY_NAME, CLASSED = "an id or code, by its name", "known classes, by its name"
COUNTED, DIFFERENT = "row numbers", "whole numbers, all different"
DATED, NEARLY = "dates or times as numbers", "whole numbers, nearly all different"
CODED = "whole numbers that repeat as codes do"
NO_MEASUREMENT = (BY_NAME, CLASSED, COUNTED, DIFFERENT, DATED)
"""Why numbers are hardly measurements; `NEARLY` and `CODED` ones may be measurements as well."""

MEASURED = (
    "amount", "betrag", "bytes", "cells", "cm", "cost", "count", "counts", "distance", "duration",
    "easting", "einkommen", "einwohner", "height", "income", "kg", "length", "mm", "northing",
    "pa", "population", "preis", "price", "revenue", "salary", "sales", "size", "spend", "steps",
    "total", "umsatz", "volume", "weight",
)  # fmt: skip
"""Numbers with such a word in their name, amounts and units, are measured, even if all differ."""

FEW_ROWS, MANY_ROWS = 12, 30
"""In few rows measurements in whole numbers differ by chance; in less than many they may well."""

FAR_APART = 50
"""More than lies between neighbours of measurements that repeat, unless they are rounded."""

SIDE_BY_SIDE = 2048
"""Numbers of narrow rows that are reduced as those of one row."""

AnyArray = NDArray[Any]
"""Of numbers, flags or bytes, whatever their type is."""

Floats = NDArray[np.floating]
"""Real numbers in the precision of the data, float32 or float64."""

Doubles = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]

Extremes = tuple[NDArray[np.float64], NDArray[np.float64]]
"""The lowest and the highest value of each column, each of shape (d,)."""

Labels = NDArray[np.generic]
"""What rows are called, or their classes: strings or numbers."""


class Matrix(Protocol):
    """Rows by columns of numbers: an array, or a `vpem.files.matrix.FileMatrix` read in parts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision."""

    @property
    def ndim(self) -> int:
        """Dimensions: 2."""

    @property
    def nbytes(self) -> int:
        """Size in memory, were it read whole."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> NDArray[np.floating]: ...


INT = re.compile(r"[+-]?[0-9]{1,40}")
FLOAT = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE
)
BLOCK_VALUES = 1 << 20
LARGEST_WEIGHT = 1e100
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def as_kept(value: object, kind: type[T], sentence: str) -> T:
    """Return what a file keeps of ``value``: itself, or ``kept()`` of a fitted estimator.

    Otherwise InputError, which begins with ``sentence``: what can be written.
    """
    kept = getattr(value, "kept", None)
    result = kept() if callable(kept) and not isinstance(value, type) else value
    if not isinstance(result, kind):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise InputError(f"{sentence}, got {got}")
    return result


def check_kind(what: str, value: object, kind: type[object]) -> None:
    """Raise InputError, which begins with ``what`` it must be, if a value is of another class."""
    if not isinstance(value, kind):
        raise InputError(f"{what}, got {type(value).__name__}")


def read_int(text: str) -> int | None:
    """Read an integer as people write it: at most 40 digits of ASCII, with a sign or without.

    None: it is something else. Python's own `int` reads 1_0 and digits of all scripts besides, and
    fails at thousands of digits and at what only `str.isdigit` takes for some.
    """
    return int(text) if INT.fullmatch(text.strip()) else None


def read_float(text: str, *, finite: bool = False) -> float | None:
    """Read a number as people write it, in ASCII; None: it is none, or not ``finite``."""
    number = float(text) if FLOAT.fullmatch(text.strip()) else None
    return None if number is None or (finite and not np.isfinite(number)) else number


def check_int(what: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int from ``least`` to ``most``, or raise InputError.

    ``what`` is the parameter, or words for what is none.
    """
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is None or number < least or (most is not None and number > most):
        upper = "" if most is None else f" and at most {most}"
        raise InputError(
            named(what), f" must be an integer of at least {least}{upper}, got {brief(value)}"
        )
    return number


def check_number(
    what: str, value: object, *, least: float, most: float | None = None, above: bool = False
) -> float:
    """Return ``value`` as a finite float from ``least`` to ``most``, or raise InputError.

    With ``above`` it must be larger than ``least``.
    """
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else np.nan
    except OverflowError:  # an integer
        number = np.inf
    low = number <= least if above else number < least
    if not np.isfinite(number) or low or (most is not None and number > most):
        if most is None:
            bounds = f"a finite number {'above' if above else 'of at least'} {least:g}"
        elif above:
            bounds = f"a number above {least:g} and at most {most:g}"
        else:
            bounds = f"a number from {least:g} to {most:g}"
        raise InputError(named(what), f" must be {bounds}, got {brief(value)}")
    return number


Participation = float | dict[str, float] | tuple[float, ...] | tuple[tuple[str, ...], ...] | str
"""Who takes part, as `parse_participation` returns it."""


def parse_participation(value: object) -> Participation:
    """Read who takes part: a probability, one of each worker, or who is there when.

    Text is such as ``0.5``; ``0.9,0.5`` or ``anna=0.9,bert=0.5``; ``anna,bert;cleo``, who is there
    in one iteration after the other, again and again; or the name of a JSON file, which is returned
    as it is. Or the same as a number, a mapping, a list of numbers or a list of lists. Raises
    InputError for anything else.
    """
    given = value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, str):
        text = value.strip()
        if text.endswith(".json"):
            return text
        if ";" in text:
            value = [part.split(",") if part.strip() else [] for part in text.split(";")]
        elif "=" in text:
            pairs = [part.rpartition("=")[::2] for part in text.split(",")]
            value = {name.strip(): read_float(number) for name, number in pairs}
            if len(value) < len(pairs):
                raise InputError(Setting("participation"), f" names a worker twice: {brief(text)}")
        else:
            numbers = [read_float(word) for word in text.split(",")]
            value = numbers if len(numbers) > 1 else numbers[0]
    if isinstance(value, Mapping) and value:
        named = {str(name): value[name] for name in value}
        return dict(zip(named, _probabilities(list(named.values()), given), strict=True))
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
        several = [isinstance(one, Sequence | np.ndarray) for one in value]
        if not any(several):
            return tuple(_probabilities(value, given))
        if all(several) and not any(isinstance(one, str) for one in value):
            return tuple(tuple(str(name).strip() for name in one) for one in value)
    return _probabilities([value], given)[0]


def _probabilities(values: Iterable[object], whole: object) -> list[float]:
    for one in values:
        number = float(one) if isinstance(one, Real) and not isinstance(one, bool) else np.nan
        if not LEAST_CHANCE <= number <= 1:
            raise InputError(
                Setting("participation"), f" must be a number from {LEAST_CHANCE:g} to 1, one for "
                "each worker (0.9,0.5 or anna=0.9,bert=0.5), who is there in one iteration after "
                f"the other (anna,bert;cleo), or a .json file of these, got {brief(whole)}",
            )  # fmt: skip
    return [float(one) for one in values]  # type: ignore[arg-type]


def least_participation(value: object) -> float:
    """Return the least probability with which a worker takes part, or share of iterations."""
    known: Any = parse_participation(value)
    if isinstance(known, str):
        raise InputError(Setting("participation"), f" must be read from the file {known} first")
    if isinstance(known, float | dict):
        return min(known.values()) if isinstance(known, dict) else known
    if not isinstance(known[0], tuple):
        return float(min(known))
    times = Counter(chain.from_iterable(map(set, known)))
    return min(times.values(), default=len(known)) / len(known)


def as_array(what: str, values: Any) -> AnyArray:
    """Return ``values`` as an array, or raise InputError if they are ragged or masked."""
    may_be = type(values) is not np.ndarray and np.ma.isMaskedArray(values)  # loads numpy.ma
    if may_be and np.ma.is_masked(values):
        raise InputError(f"{what} have masked values; fill in or remove them first")
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} must be an array, but their lengths differ ({error})") from error


def as_matrix(what: str, values: Any) -> Any:
    """Return ``values`` as an array, by `as_array`, but a `FileMatrix` as it is."""
    return values if hasattr(values, "runs") else as_array(what, values)


def check_data(
    X: Any,
    n_features: int,
    feature_names: Sequence[str] | None = None,
    *,
    finite: Callable[[Any, Sequence[str] | None], object] | None = None,
    least_rows: int = 1,
) -> NDArray[np.floating[Any]]:
    """Return ``X`` as a finite float array of shape (M, d), or raise InputError.

    A `FileMatrix` stays one. ``finite`` decides which values may be there, by default
    `check_finite`.
    """
    data: AnyArray = as_matrix("the data", X)
    if data.dtype.kind not in "iufb":
        raise InputError(f"the data must be real numbers, got values of type {data.dtype}")
    if data.ndim != 2:
        raise InputError(f"the data must be 2-D (rows, features), got {data.ndim} dimension(s)")
    if data.shape[1] != n_features:
        raise InputError(f"the agents hold {n_features} features, the data have {data.shape[1]}")
    if len(data) < least_rows:
        raise InputError("the data have no rows")
    if data.dtype not in (np.float32, np.float64):
        data = data.astype(np.float64)
    (finite or check_finite)(data, feature_names)
    return data


def precision_of(dtype: DTypeLike) -> np.dtype[np.floating]:
    """Return the precision to compute in, or raise InputError if it is neither of the two."""
    for known in (np.dtype(np.float64), np.dtype(np.float32)):
        with suppress(TypeError):
            if np.dtype(dtype) == known:
                return known
    raise InputError(f"dtype must be float32 or float64, got {dtype!r}")


def check_finite(
    X: Any,
    feature_names: Sequence[str] | None = None,
    advice: Sequence[str | Setting] = (),
    gaps: bool = False,
) -> Extremes:
    """Return the extremes of a matrix (M, d), or raise InputError if a value is not finite.

    The error names row and feature of the first such value, and how many there are; ``advice`` is
    what else to try where values are missing, in parts of a sentence. With ``gaps`` they may be.
    """
    count = 0
    first = None
    lowest, highest = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
    for start, part in row_blocks(X):
        part = np.where(np.isnan(part), 0, part) if gaps else part
        # NaN is the lowest and the highest of those that it is among.
        low, high = _reduced(np.minimum, part, np.inf), _reduced(np.maximum, part, -np.inf)
        np.minimum(lowest, low, out=lowest)
        np.maximum(highest, high, out=highest)
        if len(part) and not (np.isfinite(low) & np.isfinite(high)).all():
            finite = np.isfinite(part)
            count += int(finite.size - np.count_nonzero(finite))
            if first is None:
                row, column = divmod(int(np.argmin(finite)), X.shape[1])
                value = float(part[row, column])
                first = (start + row, column, "NaN" if np.isnan(value) else str(value))
    if first is not None:
        row, column, word = first
        name = "" if feature_names is None else f" ({feature_names[column]!r})"
        others = f"; {count} values in all are not finite" if count > 1 else ""
        or_else = (", or ", *advice) if advice and word == "NaN" else ()
        raise InputError(
            f"row {row}, feature {column}{name} is {word}{others}; fill in or remove such "
            "rows first",
            *or_else,
        )
    return lowest, highest


def _reduced(function: np.ufunc, rows: Floats, initial: float) -> Floats:
    """Reduce each column of rows (m, d); of narrow ones many rows as if they were one, quicker."""
    n_rows, width = rows.shape
    side = SIDE_BY_SIDE // max(width, 1)
    if side < 2 or n_rows < side or not rows.flags.c_contiguous:
        return np.asarray(function.reduce(rows, axis=0, initial=initial))
    some = n_rows // side
    wide = function.reduce(rows[: some * side].reshape(some, side * width), axis=0)
    both = np.concatenate([wide.reshape(side, width), rows[some * side :]])
    return np.asarray(function.reduce(both, axis=0, initial=initial))


def extremes(X: Matrix) -> Extremes:
    """Return the lowest and highest value of each column, (d,) each, of those that are there."""
    lowest, highest = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
    for _, part in row_blocks(X):
        np.fmin(lowest, _reduced(np.fmin, part, np.inf), out=lowest)
        np.fmax(highest, _reduced(np.fmax, part, -np.inf), out=highest)
    return lowest, highest


def row_blocks(X: Matrix) -> Iterator[tuple[int, NDArray[np.floating]]]:
    """Yield (first row, rows) over a matrix, about a million values a time, there until the next.

    Those of a file are read ahead.
    """
    if hasattr(X, "runs"):
        yield from X.runs()
        return
    step = max(1, BLOCK_VALUES // max(X.shape[1], 1))
    for start in range(0, len(X), step):
        yield start, X[start : start + step]


@lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name, in small letters: those of PatientID, but FeNO is one."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z][a-z]|ID)", " ", name)
    return tuple(word.casefold() for word in re.findall(r"[^\W_]+", spaced))


def ids_by_name(name: str) -> bool:
    """Whether a column is called as ids and codes are: id, PatientID, Case No., Fallnummer, zip."""
    words = _words(name)
    if not words or name.strip() == "NO":  # nitric oxide
        return False
    if len(words) < 2:
        (word,) = words
        whose = word.removesuffix("id") if word.endswith("id") else word.removeprefix("id")
        one = whose != word and whose in (*NUMBERED, *WHOSE)
        return one or word in NUMBERED or word.endswith(("nummer", "nr"))
    *others, last = words
    if last in ("code", "num", "number"):
        return bool({*others} & {*NUMBERED})
    codes = ("barcode", "mrn", "no", "nr", "nummer", "plz", "postal", "postcode", "zip")
    return "id" in (words[0], last) or last in codes


def is_whole(values: AnyArray) -> bool:
    """Whether there are values, all of them whole numbers; the first ones mostly decide."""
    for part in (values[:64], values):
        there = part[np.isfinite(part)]
        if (there != np.round(there)).any():
            return False
    return len(there) > 0


def no_measurement(name: str, values: Floats, some: bool = False) -> str:
    """Return why numbers are hardly measurements, of `NO_MEASUREMENT` or others, or nothing.

    ``some``: there are more rows, in which values may repeat although they differ in these.
    """
    words = {*_words(name)}
    known = values if len(values) and np.isfinite(values.sum()) else values[np.isfinite(values)]
    dated = words & {*DATES} or any(word.endswith("datum") for word in words)
    if words & {*CLOCKS} and len(known) >= FEW_ROWS:
        steps = np.diff(known)
        dated = dated or (steps.min() > 0 and steps.max() < 1.01 * steps.min())
    timed = dated or (words & {*TIMES} and known.min(initial=np.inf) >= EPOCH)
    if timed and len(np.unique(known)) > 2:
        return DATED
    n_rows = len(values)
    if n_rows < 3 or not is_whole(known):
        return ""
    by_name = ids_by_name(name)
    low, high = known.min(), known.max()
    of_days = low >= 1800_01_01 and high <= 2199_12_31
    of_months = low >= 1800_01 and high <= 2199_12 and high - low > 11
    may_be_classes = len(words) == 1 and bool(words & {*CLASSES})
    may_be_codes = _words(name)[-1:] == ("code",) or (len(words) == 1 and bool(words & {*GROUPS}))
    # Where fewer numbers lie between the ends than there are rows, some are alike.
    other_signs = by_name or of_days or of_months or low >= EPOCH or may_be_classes or may_be_codes
    if high - low < n_rows - 1 and not other_signs:
        return ""
    different, counts = np.unique(known, return_counts=True)
    n_different = len(different)
    if may_be_classes and 1 < n_different <= min(n_rows // 2, MOST_CLASSES):
        return CLASSED
    if by_name and n_different > 2:
        return BY_NAME
    if n_different > 2 and any(low >= EPOCH * unit and high < 2.2e9 * unit for unit in (1, 1000)):
        return DATED
    if (of_days or of_months) and n_different > 2:
        whole = known if of_days else 100 * known + 1
        months, days = whole // 100 % 100, whole % 100
        if months.min() >= 1 and months.max() <= 12 and days.min() >= 1 and days.max() <= 31:
            return DATED
    if may_be_codes and 2 < n_different <= n_rows // 2:
        return CODED
    n_known, many, all_differ = len(known), n_rows >= MANY_ROWS, n_different == n_rows
    ordered = (np.diff(values) > 0).all() or (np.diff(values) < 0).all()
    in_turn = many or ordered or high - low == n_rows - 1
    if all_differ and in_turn and high - low < 2 * n_rows > 8:
        return COUNTED
    if some or words & {*MEASURED}:
        return ""
    # Few number rows in tens, but many measure so.
    if not (ordered or (known % 10).any()):
        return NEARLY if all_differ and many else ""
    if all_differ and many:
        return DIFFERENT
    if n_different >= 0.95 * n_known if many else n_different == n_known >= FEW_ROWS:
        return NEARLY
    repeat = n_different >= FEW_ROWS and np.median(counts) > 1 and counts.max() <= n_known // 2
    far = repeat and np.median(np.diff(different)) > FAR_APART
    # What is rounded, or a price, ends in a few digits alone.
    return CODED if far and len(np.unique(different % 5)) > 2 else ""


def missing_marks(X: Matrix) -> dict[int, list[str]]:
    """Return codes such as -999, of `MARKS`, that lie apart from all other values of their column.

    They are further from them than these are from each other, or the only numbers below zero, one
    of them more than once.
    """
    marks_of = {}
    for place, ends in enumerate(zip(*extremes(X), strict=True)):
        if not {*ends} & {*MARKS}:
            continue
        values = np.concatenate([part[:, place] for _, part in row_blocks(X)])
        others = values[np.isfinite(values) & ~np.isin(values, MARKS)]
        if len(others) == 0 or not (width := np.ptp(others)):
            continue
        marks, counts = np.unique(values[np.isin(values, MARKS)], return_counts=True)
        below = (marks < 0) & (others.min() >= 0) & (counts[marks < 0].max(initial=0) > 1)
        apart = np.array([np.abs(others - mark).min() > width for mark in marks])
        if (below | apart).any():
            marks_of[place] = [f"{mark:g}" for mark in marks[below | apart]]
    return marks_of


def check_weights(weights: Any, n_samples: int, *, some: bool = False) -> NDArray[np.float64]:
    """Return row weights as a non-negative float array of shape (M,), or raise InputError.

    Where these are the weights of ``some`` of the rows they may all be zero.
    """
    values = as_array("sample weights", weights)
    if values.dtype.kind not in "iufb" or values.shape not in ((n_samples,), ()):
        raise InputError(
            f"sample weights must be {n_samples} numbers, got shape {values.shape} "
            f"of type {values.dtype}"
        )
    values = np.broadcast_to(values.astype(np.float64), (n_samples,))
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError("sample weights must be finite and not negative")
    if not (some or values.any()):
        raise InputError("sample weights must not all be zero")
    if values.max(initial=0.0) >= LARGEST_WEIGHT / max(n_samples, 1):
        raise InputError(
            f"sample weights sum to more than {LARGEST_WEIGHT:g}, too much to compute with; divide "
            "them by their mean"
        )
    return values


def check_rows(rows: Any, n_components: int, n_samples: int) -> NDArray[np.intp]:
    """Return starting row indices (K,), different and in range, or raise InputError."""
    indices = as_array("init rows", rows)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise InputError(f"init rows must be a list of row indices, got {rows!r}")
    if len(indices) != n_components:
        raise InputError(f"{n_components} components need as many init rows, got {len(indices)}")
    if len(indices) and (indices.min() < 0 or indices.max() >= n_samples):
        raise InputError(
            f"init rows must lie between 0 and {n_samples - 1}, got {indices.tolist()}"
        )
    if len(np.unique(indices)) != len(indices):
        raise InputError(f"init rows must differ from each other, got {indices.tolist()}")
    return indices.astype(np.intp)


def parse_bytes(text: str) -> int:
    """Read a positive size such as 600MB, 2G or 1048576, or raise InputError."""
    number = r"([0-9]+(?:\.[0-9]+)?)"
    match = re.fullmatch(rf"\s*{number}\s*([KMGT]?)(?:i?B)?\s*", text, flags=re.IGNORECASE)
    size = float(match[1]) * UNITS[match[2].upper()] if match else 0.0
    if not 1 <= size < np.inf:
        raise InputError(f"a size must be a number of bytes such as 600MB or 2G, got {brief(text)}")
    return int(size)


def available_memory() -> int:
    """Bytes of memory that this process may hope for: half of what the machine has."""
    return _memory() // 2


def check_memory(n_bytes: int, what: str) -> None:
    """Raise InputError if ``n_bytes`` exceed the memory of this machine."""
    memory = _memory()
    if n_bytes > memory:
        raise InputError(
            f"{what} needs {n_bytes / 1e9:.4g} GB, but this machine has {memory / 1e9:.4g} GB of "
            "memory"
        )


def _memory() -> int:
    if sys.platform != "win32":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import ctypes

    status = (ctypes.c_ulonglong * 8)(64)  # MEMORYSTATUSEX: its length, then ullTotalPhys, ...
    ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
    return int(status[1])
