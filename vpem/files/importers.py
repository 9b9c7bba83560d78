"""Tables into datasets: CSV (also gzipped) and Parquet."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_finite, check_memory
from vpem.errors import (
    FileError,
    InputError,
    Setting,
    VpemError,
    VpemWarning,
    check_choice,
    did_you_mean,
    shorten,
)
from vpem.files.datasets import Dataset
from vpem.files.hdf5 import check_readable
from vpem.files.opening import (
    EXPANSION,
    advice,
    check_unpacked,
    open_unzipped,
    read_limit,
)
from vpem.files.reading import LONGEST_STRING
from vpem.network.holdings import from_worker_of_row

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_table"]

OF_A_COLUMN = 3000  # bytes that reading a column takes, however short it is
BLOCK_BYTES = 1 << 24  # the longest row of a CSV file, and how much of it is parsed at once
TEXT_SUFFIXES = {".csv": ",;\t", ".tsv": "\t", ".txt": "\t,; "}
PARQUET_SUFFIXES = (".parquet", ".pq")
DELIMITER_NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
WIDE_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")

MISSINGS = ("refuse", "keep")
KEEP = ("say with ", Setting("missing", "keep"), " that they are to be kept as missing")

Column = str | int


def read_table(
    path: str | os.PathLike[str],
    *,
    label_column: Column | None = None,
    id_column: Column | None = None,
    worker_column: Column | None = None,
    header: bool = True,
    delimiter: str | None = None,
    drop_columns: Sequence[Column] = (),
    columns: Sequence[Column] | None = None,
    missing: str = "refuse",
) -> Dataset:
    """Read a CSV or Parquet table as a dataset.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv`` or ``.txt`` file (UTF-8, also with ``.gz``) or a ``.parquet`` file.
    label_column, id_column, worker_column : str or int, optional
        The columns of known classes, of what the rows are called, and of who holds each row (a name
        or a number from 0): by name, or by number
        from 0 (negative numbers count from the end). Integers stay integers; in a CSV file
        everything else is text, so "007" stays "007".
    header : bool
        The first row of a CSV file holds the names of the columns; without, they are called
        "column 0", "column 1", ...
    delimiter : str, optional
        The character between the fields of a CSV file. By default a tab for ``.tsv``; otherwise
        the one of comma, semicolon and tab (for ``.txt`` also blank) that is most frequent in the
        first line.
    drop_columns : sequence of str or int
        Columns to leave out.
    columns : sequence of str or int, optional
        The features, in this order; by default every other column is one.
    missing : {"refuse", "keep"}
        What is done with empty cells (and nulls, NaN) of features. "keep" makes them NaN; a column
        without any value is refused all the same.

    Returns
    -------
    Dataset
        The features. True/false values become 1 and 0.

    Raises
    ------
    FileError
        If the file cannot be read or parsed.
    InputError
        If a column named is not there or named twice, a feature holds text or dates, or a value
        is not finite, or missing unless these are kept.
    """
    check_choice("missing", missing, MISSINGS)
    file = check_readable(path)
    source = os.fspath(path)
    suffix = file.with_suffix("").suffix if file.suffix.lower() == ".gz" else file.suffix
    suffix = suffix.lower()
    wanted = None if columns is None else tuple(columns)
    chosen = ((label_column, id_column, worker_column), tuple(drop_columns), wanted)
    if suffix in TEXT_SUFFIXES:
        text = _delimiter(file, source, suffix, delimiter)
        names, roles, table = _read_text(file, source, header, text, chosen)
    elif suffix in PARQUET_SUFFIXES:
        if delimiter is not None or not header:
            raise InputError(f"{source}: a Parquet file has neither delimiter nor header row")
        names, roles, table = _read_parquet(file, source, chosen)
    else:
        hint = "; HDF5 files are used as they are" if suffix in (".h5", ".hdf5", ".h5ad") else ""
        raise InputError(
            f"{source} must be a .csv, .tsv or .txt file (also .gz) or a .parquet file{hint}"
        )
    if table.num_rows == 0:
        raise InputError(f"{source} has no rows")
    (label, identity, worker), features = roles
    column_of = dict(zip(_kept(len(names), roles), table.columns, strict=True))

    def noted(column: int | None) -> NDArray[Any] | None:
        return None if column is None else _annotation(names[column], column_of[column], source)

    workers = noted(worker)
    dataset = Dataset(
        _matrix([(names[c], column_of[c]) for c in features], table.num_rows, source),
        tuple(names[c] for c in features),
        ids=noted(identity),
        labels=noted(label),
        workers=None if workers is None else from_worker_of_row(workers),
        source=source,
    )
    try:
        if missing == "keep":
            from vpem.terms.missing_patterns import check_missing

            check_missing(dataset.X, dataset.feature_names)
        else:
            check_finite(dataset.X, dataset.feature_names, KEEP)
    except InputError as error:
        raise InputError(f"{source}: ", *error.parts) from None
    return dataset


Roles = tuple[tuple[int | None, ...], list[int]]
"""Numbers of the columns of labels, ids and workers, and of the features."""

Chosen = tuple[tuple[Column | None, ...], tuple[Column, ...], tuple[Column, ...] | None]

ANNOTATIONS = ("label", "id", "worker")


def _kept(n_columns: int, roles: Roles) -> list[int]:
    """Return the numbers of the columns that are read, in the order of the file."""
    annotations, features = roles
    wanted = {*annotations, *features}
    return [column for column in range(n_columns) if column in wanted]


def _roles(names: list[str], chosen: Chosen, source: str) -> Roles:
    """Say which columns are labels, ids, workers and features, after checking the names."""
    wanted, drop_columns, columns = chosen
    annotations = tuple(
        _resolve(f"{what} column", column, names, source)
        for what, column in zip(ANNOTATIONS, wanted, strict=True)
    )
    dropped = {_resolve("column to drop", column, names, source) for column in drop_columns}
    holders: dict[int, str] = {}
    for what, column in zip(ANNOTATIONS, annotations, strict=True):
        if column is None:
            continue
        if column in holders:
            raise InputError(
                f"{source}: column {names[column]!r} cannot hold both {holders[column]}s and "
                f"{what}s"
            )
        holders[column] = what
        if column in dropped:
            raise InputError(f"{source}: the {what} column {names[column]!r} is also dropped")
    if columns is None:
        used = [column for column in range(len(names)) if column not in dropped]
    else:
        resolved = (_resolve("column", column, names, source) for column in columns)
        used = [column for column in resolved if column is not None]
        counts = Counter(used)
        for column in used:
            if column in holders or counts[column] > 1:
                what = f"holds {holders[column]}s" if column in holders else "is one already"
                raise InputError(f"{source}: {names[column]!r} cannot be a feature: it {what}")
    for column in used:
        if not names[column] and column not in holders:
            raise InputError(
                f"{source}: column {column} (counted from 0) has no name; if it numbers the rows "
                "pass ",
                Setting("id_column", column),
                ", or leave it out with ",
                Setting("drop_columns", [column]),
            )
    first: dict[str, int] = {}
    for column, name in enumerate(names):
        if first.setdefault(name, column) != column:
            raise InputError(
                f"{source}: columns {first[name]} and {column} are both called {name!r}; rename "
                "one, or pass ",
                Setting("header", False),
                " if the first row is data",
            )
    features = [column for column in used if column not in holders]
    if not features:
        raise InputError(f"{source}: no column is left for the features")
    return annotations, features


def _resolve(what: str, column: Column | None, names: list[str], source: str) -> int | None:
    """Return the number of a column given by name or number."""
    if column is None:
        return None
    if isinstance(column, str):
        if names.count(column) > 1:
            raise InputError(f"{source}: several columns are called {column!r}; give a number")
        if column in names:
            return names.index(column)
        if not re.fullmatch(r"-?\d{1,9}", column):
            raise InputError(
                f"{source}: there is no {what} {column!r}{did_you_mean(column, names)}; the "
                f"columns are {shorten(names, 10)}"
            )
        column = int(column)
    if isinstance(column, bool | np.bool_) or not isinstance(column, int | np.integer):
        raise InputError(f"{what} must be a name or a number, got {column!r}")
    if not -len(names) <= column < len(names):
        raise InputError(
            f"{source}: there is no {what} {column}; the {len(names)} columns are numbered from 0 "
            f"to {len(names) - 1}, or from -1 backwards"
        )
    return int(column) % len(names)


def _delimiter(file: Path, source: str, suffix: str, delimiter: str | None) -> str:
    """Return the delimiter given, or the one that the first line shows."""
    with open_unzipped(file) as stream:
        start = stream.read(1 << 16)
    if start.startswith(WIDE_ENCODINGS) or b"\0" in start:
        raise FileError(f"{source} is not UTF-8 text; save it as UTF-8")
    if delimiter is not None:
        character = DELIMITER_NAMES.get(delimiter, delimiter)
        if len(character) != 1 or not character.isascii() or character in '"\r\n\0':
            raise InputError(f"the delimiter must be one character (or 'tab'), got {delimiter!r}")
        return character
    lines = start.strip(b"\r\n").splitlines() or [b""]
    candidates = TEXT_SUFFIXES[suffix]
    return max(candidates, key=lambda mark: lines[0].count(mark.encode()))


def _check_width(file: Path, source: str, delimiter: str) -> None:
    """Raise FileError if the columns of a CSV file take far more memory than the file."""
    with open_unzipped(file) as stream:
        line = stream.readline(BLOCK_BYTES)
    n_columns = 1 + line.count(delimiter.encode())
    n_bytes, size = n_columns * OF_A_COLUMN, os.stat(file).st_size
    if n_bytes > max(read_limit(), size * EXPANSION):
        raise FileError(
            f"{source} has {n_columns} columns in {size} bytes; if features are rows, transpose "
            f"it; {advice(n_bytes)}"
        )


def _read_text(
    file: Path, source: str, header: bool, delimiter: str, chosen: Chosen
) -> tuple[list[str], Roles, pa.Table]:
    """Read a CSV file: first the names, then the columns that are used."""
    import pyarrow as pa
    from pyarrow import csv

    _check_width(file, source, delimiter)
    # One thread, since only then pyarrow says in which row it found an error.
    reading = csv.ReadOptions(
        use_threads=False, block_size=BLOCK_BYTES, autogenerate_column_names=not header
    )
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        with (
            open_unzipped(file) as stream,
            csv.open_csv(stream, read_options=reading, parse_options=parsing) as reader,
        ):
            raw = list(reader.schema.names)
        names = [name.strip() for name in raw] if header else _numbered(len(raw))
        if any("\n" in name for name in names):
            raise FileError(
                f"{source}: a column name has a line break; is a quotation mark left open?"
            )
        roles = _roles(names, chosen, source)
        if header and all(_is_number(names[column]) for column in roles[1]):
            warnings.warn(
                VpemWarning(
                    f"{source}: the first row was taken for names although it holds numbers; if it "
                    "is data, pass ",
                    Setting("header", False),
                ),
                stacklevel=3,
            )
        as_text = [raw[column] for column in roles[0] if column is not None]
        converting = csv.ConvertOptions(
            include_columns=[raw[column] for column in _kept(len(raw), roles)],
            column_types=dict.fromkeys(as_text, pa.string()),
        )
        with open_unzipped(file) as stream:
            table = csv.read_csv(
                stream, read_options=reading, parse_options=parsing, convert_options=converting
            )
    except VpemError:
        raise
    except UnicodeDecodeError as error:
        raise FileError(f"{source} is not UTF-8 text; save it as UTF-8") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        _explain(str(error), source, header, error)
    return names, roles, table


def _explain(message: str, source: str, header: bool, error: BaseException) -> NoReturn:
    """Raise FileError with a sentence for what pyarrow says of a CSV file."""
    ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", message)
    if ragged:
        number, expected, found = ragged.groups()
        row = f"row {int(number) - 1 - header} (counted from 0)" if number else "a row"
        sentence = f"{row} has {found} fields instead of {expected}; check the delimiter"
    elif "Empty CSV" in message:
        sentence = "the file has no rows"
    elif "UTF8" in message:
        sentence = "the file is not UTF-8 text; save it as UTF-8"
    elif "straddles" in message or "straddling" in message:
        sentence = f"a row is longer than {BLOCK_BYTES} bytes; is a quotation mark left open?"
    else:
        sentence = f"the file cannot be parsed ({message})"
    raise FileError(f"{source}: {sentence}") from error


def _numbered(n_columns: int) -> list[str]:
    """Return names for the columns of a table that has none."""
    return [f"column {column}" for column in range(n_columns)]


def _read_parquet(file: Path, source: str, chosen: Chosen) -> tuple[list[str], Roles, pa.Table]:
    """Read the columns of a Parquet file that are used; an index of pandas is not a feature."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            text = [field.name for field in opened.schema_arrow if _is_text(field.type)]
        # Text that is many times the same stays in a dictionary until it is known to be short.
        with parquet.ParquetFile(file, read_dictionary=text) as opened:
            schema = opened.schema_arrow
            names = list(schema.names)
            stored = (schema.pandas_metadata or {}).get("index_columns", [])
            index = {name for name in stored if isinstance(name, str)}
            annotations, drop_columns, columns = chosen
            wanted = {_resolve("column", c, names, source) for c in annotations}
            implied = [n for n, name in enumerate(names) if name in index and n not in wanted]
            roles = _roles(names, (annotations, (*drop_columns, *implied), columns), source)
            kept = _kept(len(names), roles)
            _check_kinds([(names[column], schema.field(column).type) for column in kept], source)
            check_unpacked(_declared(opened.metadata, {names[c] for c in kept}), file)
            table = opened.read(columns=[names[column] for column in kept])
            for name in table.column_names:
                _check_strings(name, table.column(name), source)
    except VpemError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise FileError(f"{source} cannot be read as Parquet ({error})") from error
    return names, roles, table


def _declared(metadata: Any, names: set[str]) -> int:
    """Return how many bytes a Parquet file says that it unpacks to, in these columns."""
    unpacked = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for part in map(group.column, range(group.num_columns)):
            unpacked += int(part.total_uncompressed_size) if part.path_in_schema in names else 0
    return max(int(metadata.num_rows) * len(names) * 8, unpacked)


def _check_kinds(columns: list[tuple[str, pa.DataType]], source: str) -> None:
    """Raise InputError if a column is of a kind that could be neither features nor their names."""
    import pyarrow as pa

    for name, kind in columns:
        kind = _plain(kind)
        known = (_is_text, _is_numeric, pa.types.is_temporal, pa.types.is_null)
        if not any(test(kind) for test in known):
            raise InputError(
                f"{source}: column {name!r} holds {str(kind)[:80]}, not text or numbers; "
                "leave it out with ",
                Setting("drop_columns"),
            )


def _check_strings(name: str, column: pa.ChunkedArray, source: str) -> None:
    """Raise FileError if text is longer than names are or takes far more than its file."""
    import pyarrow.compute as pc

    if not _is_text(_plain(column.type)):
        return
    longest = 0
    for chunk in column.chunks:
        texts = chunk.dictionary if hasattr(chunk, "dictionary") else chunk
        longest = max(longest, pc.max(pc.binary_length(texts)).as_py() or 0)
    if longest > 4 * LONGEST_STRING:
        raise FileError(
            f"{source}: column {name!r} holds a text of {longest} bytes, more than "
            f"{LONGEST_STRING} characters; leave it out with ",
            Setting("drop_columns"),
        )
    check_unpacked(4 * longest * len(column), source)  # as numpy has text


def _matrix(columns: list[tuple[str, pa.ChunkedArray]], n_rows: int, source: str) -> NDArray[Any]:
    """Return the feature columns side by side, float32 if they all are, float64 otherwise."""
    import pyarrow as pa

    plain = [(name, _decoded(column)) for name, column in columns]
    for refusal, test in (
        ("text", _is_text),
        ("dates or times", pa.types.is_temporal),
        ("no values", pa.types.is_null),
    ):
        bad = [(name, column) for name, column in plain if test(column.type)]
        if bad:
            listed = shorten((repr(name) for name, _ in bad), 10)
            columns_hold = f"column {listed} holds" if len(bad) == 1 else f"columns {listed} hold"
            example = f" (for example {_example(bad[0][1])})" if refusal == "text" else ""
            raise InputError(
                f"{source}: {columns_hold} {refusal}{example}, but features are numbers; name it "
                "with ",
                Setting("label_column"),
                " or ",
                Setting("id_column"),
                ", or leave it out with ",
                Setting("drop_columns"),
            )
    small = all(column.type in (pa.float32(), pa.float16()) for _, column in plain)
    dtype = np.dtype(np.float32 if small else np.float64)
    check_memory(n_rows * len(plain) * dtype.itemsize, source)
    X = np.empty((n_rows, len(plain)), dtype=dtype)
    for position, (_, column) in enumerate(plain):
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        X[:, position] = column.cast(pa.float64(), safe=False).to_numpy()
    return X


def _annotation(name: str, column: pa.ChunkedArray, source: str) -> NDArray[Any]:
    """Return ids or labels as an array of integers, floats or strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    _check_strings(name, column, source)
    values = _decoded(column)
    if pa.types.is_temporal(values.type) and not pa.types.is_duration(values.type):
        values = values.cast(pa.string())
    text = _is_string(values.type)
    if text:
        values = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
        missing = pc.fill_null(pc.equal(values, ""), True)
        broken = pc.fill_null(pc.match_substring(values, "\n"), False)
        if pc.any(broken).as_py():
            raise InputError(
                f"{source}: row {int(np.argmax(broken.to_numpy()))} (counted from 0) has a line "
                f"break in column {name!r}; is a quotation mark left open?"
            )
    elif _is_numeric(values.type):
        missing = pc.is_null(values, nan_is_null=True)
    else:
        raise InputError(f"{source}: column {name!r} holds {values.type}, not text or numbers")
    if pc.any(missing).as_py():
        row = int(np.argmax(missing.to_numpy()))
        raise InputError(
            f"{source}: row {row} (counted from 0) has no value in column {name!r}, which holds "
            "labels, ids or workers; fill it in, or leave the column out with ",
            Setting("drop_columns"),
        )
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    if not text:
        return np.asarray(values.to_numpy())
    if pc.all(pc.match_substring_regex(values, r"^(0|-?[1-9][0-9]{0,17})$")).as_py():
        return np.asarray(values.cast(pa.int64()).to_numpy())
    return np.array(values.to_pylist(), dtype=str)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace dictionary codes by their values."""
    import pyarrow as pa

    return column.cast(_plain(column.type)) if pa.types.is_dictionary(column.type) else column


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of values, whether or not they are in a dictionary."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_string(kind: pa.DataType) -> bool:
    """Tell whether a column holds strings."""
    import pyarrow as pa

    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in tests)


def _is_text(kind: pa.DataType) -> bool:
    """Tell whether a column holds strings, or bytes, as pyarrow reads text that is not UTF-8."""
    import pyarrow as pa

    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return _is_string(kind) or any(test(kind) for test in tests)


def _is_numeric(kind: pa.DataType) -> bool:
    """Tell whether a column holds numbers or true/false values."""
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _is_number(text: str) -> bool:
    """Tell whether ``text`` can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _example(column: pa.ChunkedArray) -> str:
    """Return the first value of a text column that is no number, and its row."""
    for row, value in enumerate(column):
        text = value.as_py()
        if text is not None and text != "" and not (isinstance(text, str) and _is_number(text)):
            return f"{text[:40]!r} in row {row}, counted from 0"
    return repr(column[0].as_py())
