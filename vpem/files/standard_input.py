"""Standard input as a file: what is piped into a command, kept until it is read."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vpem.checks import available_memory
from vpem.errors import FileError, InputError
from vpem.files.temporaries import temporary_beside

PART = 1 << 20
MARGIN = 1 << 26
"""Bytes that stay free in the folder for temporary files."""


@contextmanager
def spooled() -> Iterator[Path]:
    """Write standard input to a temporary file, which is there inside the block.

    It may be as large as half of the machine's memory, into which it will be read, and as the
    folder for temporary files has room for.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("'-' stands for standard input, but nothing is piped in; name a file")
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise InputError("standard input gives text, not bytes; name a file")
    folder = Path(tempfile.gettempdir())
    most = available_memory()
    with temporary_beside(folder / "input", 0o600) as path:
        size = 0
        try:
            with open(path, "wb") as file:
                while part := stream.read(PART):
                    size += len(part)
                    if size > most or shutil.disk_usage(folder).free < MARGIN:
                        raise InputError(
                            f"standard input has more than {(size - len(part)) / 1e9:.4g} GB; save "
                            "it to a file, and name that"
                        )
                    file.write(part)
        except OSError as error:
            raise FileError(
                f"standard input cannot be kept in {folder} ({error}); name another folder in the "
                "environment variable TMPDIR"
            ) from error
        if not size:
            raise FileError("standard input is empty")
        yield path
