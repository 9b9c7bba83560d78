"""Parquet tables: their columns are looked at before they are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from vpem.errors import FileError, VpemError
from vpem.files.arrow import check_kinds, check_strings, is_text
from vpem.files.columns import Chosen, Roles, kept_columns, resolve_column, roles_of
from vpem.files.opening import check_unpacked

__all__ = ["parquet_kinds", "read_parquet"]


def parquet_kinds(file: Path) -> dict[str, pa.DataType]:
    """Return what the columns of a Parquet file are called and hold.

    Raises
    ------
    FileError
        If it cannot be read.
    """
    try:
        schema = parquet.read_schema(file)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise FileError(f"{file} cannot be read as Parquet ({error})") from error
    return {field.name: field.type for field in schema}


def read_parquet(file: Path, source: str, chosen: Chosen) -> tuple[list[str], Roles, pa.Table]:
    """Read the columns of a Parquet file that are used; an index of pandas is not a feature."""
    try:
        with parquet.ParquetFile(file) as opened:
            text = [field.name for field in opened.schema_arrow if is_text(field.type)]
        # Text that is many times the same stays in a dictionary until it is known to be short.
        with parquet.ParquetFile(file, read_dictionary=text) as opened:
            schema = opened.schema_arrow
            names = list(schema.names)
            stored = (schema.pandas_metadata or {}).get("index_columns", [])
            index = {name for name in stored if isinstance(name, str)}
            annotations, drop_columns, columns, weights_needed = chosen
            wanted = {
                resolve_column("column", c, names, source)
                for c in (annotations if weights_needed else annotations[:-1])
            }
            implied = [n for n, name in enumerate(names) if name in index and n not in wanted]
            dropped = (*drop_columns, *implied)
            roles = roles_of(names, (annotations, dropped, columns, weights_needed), source)
            kept = kept_columns(len(names), roles)
            check_kinds([(names[column], schema.field(column).type) for column in kept], source)
            check_unpacked(_declared(opened.metadata, {names[c] for c in kept}), file)
            table = opened.read(columns=[names[column] for column in kept])
            for name in table.column_names:
                check_strings(name, table.column(name), source)
    except VpemError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise FileError(f"{source} cannot be read as Parquet ({error})") from error
    return names, roles, table


def _declared(metadata: parquet.FileMetaData, names: set[str]) -> int:
    """Return how many bytes a Parquet file says that it unpacks to, in these columns."""
    unpacked = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for part in map(group.column, range(group.num_columns)):
            unpacked += int(part.total_uncompressed_size) if part.path_in_schema in names else 0
    return max(int(metadata.num_rows) * len(names) * 8, unpacked)
