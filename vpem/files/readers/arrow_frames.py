"""Parquet, Feather and Arrow files as frames: their columns are looked at before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet

from vpem.errors import FileError, VpemError
from vpem.files.arrow import is_text
from vpem.files.opening import check_unpacked, open_regular
from vpem.files.readers.frames import Frame


def parquet_frame(file: Path, source: str) -> Frame:
    """Open a Parquet file."""
    with _said(source, "Parquet"), parquet.ParquetFile(file) as opened:
        schema, n_rows = opened.schema_arrow, int(opened.metadata.num_rows)
    names = list(schema.names)
    text = [field.name for field in schema if is_text(field.type)]

    def read(kept: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        with _said(source, "Parquet"):
            chosen = [names[column] for column in kept]
            # Text that is many times the same stays in a dictionary until it is known to be short.
            with parquet.ParquetFile(file, read_dictionary=text) as opened:
                check_unpacked(_declared(opened.metadata, set(chosen)), file, source)
                return list(opened.read(columns=chosen).columns)

    frame = Frame(source, tuple(names), tuple(schema.types), read, _index(schema), file=file)
    return _with_range(frame, schema, n_rows)


def arrow_frame(file: Path, source: str) -> Frame:
    """Open a Feather file (version 2), which is one of Arrow."""
    kind = "Feather or Arrow"
    with _said(source, kind), open_regular(file) as stream, ipc.open_file(stream) as opened:
        schema, count = opened.schema, opened.num_record_batches

    def read(kept: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        options = ipc.IpcReadOptions(use_threads=False, included_fields=list(kept))
        parts: list[list[pa.Array]] = [[] for _ in kept]
        n_bytes = 0
        with (
            _said(source, kind),
            open_regular(file) as stream,
            ipc.open_file(stream, options=options) as opened,
        ):
            for number in range(count):
                batch = opened.get_batch(number)
                n_bytes += batch.get_total_buffer_size()
                check_unpacked(n_bytes, file, source)
                for part, column in zip(parts, batch.columns, strict=True):
                    column.validate(full=True)
                    part.append(column)
        types = [schema.types[column] for column in kept]
        return [pa.chunked_array(part, type=one) for part, one in zip(parts, types, strict=True)]

    return Frame(source, tuple(schema.names), tuple(schema.types), read, _index(schema), file=file)


def _with_range(frame: Frame, schema: pa.Schema, n_rows: int) -> Frame:
    """Return a frame with the index that pandas keeps as a rule alone, unless it counts from 0."""
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    rules = [one for one in stored if isinstance(one, dict) and one.get("kind") == "range"]
    rule = rules[0] if rules else {"start": 0, "step": 1}
    start, step, given = rule.get("start"), rule.get("step"), rule.get("name")
    if not isinstance(start, int) or not isinstance(step, int) or (start, step) == (0, 1):
        return frame
    if max(abs(start), abs(step)) >= 2**31:
        return frame
    own = len(frame.names)
    name = given if isinstance(given, str) and given not in frame.names else "row index"

    def read(kept: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        found = frame.read([n for n in kept if n < own], [n for n in as_text if n < own])
        numbers = pa.chunked_array([pa.array(start + step * np.arange(n_rows))])
        return [*found, numbers] if own in kept else found

    return replace(
        frame,
        names=(*frame.names, name),
        kinds=(*frame.kinds, pa.int64()),
        read=read,
        index=frame.index | {own},
    )


def _index(schema: pa.Schema) -> frozenset[int]:
    """Return the columns that pandas calls an index of the rows."""
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    index = {name for name in stored if isinstance(name, str)}
    return frozenset(n for n, name in enumerate(schema.names) if name in index)


@contextmanager
def _said(source: str, kind: str) -> Iterator[None]:
    """Turn what pyarrow raises into a sentence."""
    try:
        yield
    except VpemError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise FileError(f"{source} cannot be read as {kind} ({error})") from error


def _declared(metadata: parquet.FileMetaData, names: set[str]) -> int:
    """Return how many bytes a Parquet file says that it unpacks to, in these columns."""
    unpacked = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for part in map(group.column, range(group.num_columns)):
            unpacked += int(part.total_uncompressed_size) if part.path_in_schema in names else 0
    return max(int(metadata.num_rows) * len(names) * 8, unpacked)
