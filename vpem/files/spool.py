"""Rows that a process gets piece by piece and keeps in a temporary file, not in memory."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from vpem.checks import Floats
from vpem.errors import FileError
from vpem.files.matrix import FileMatrix
from vpem.files.temporaries import temporary_beside


class Spool:
    """A matrix (M, d) that is written run by run, and then read; FileError if there is no room.

    The file lies in the folder for temporary files (``TMPDIR``). It loses its name as soon as it is
    read, so that nothing is left of it however the process ends.
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[np.floating]) -> None:
        import h5py

        folder = Path(tempfile.gettempdir())
        self._name = f"the folder for temporary files, {folder}"
        needed = shape[0] * shape[1] * dtype.itemsize
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise FileError(
                f"{self._name}, has room for {free / 1e9:.4g} GB, but features that travel take "
                f"{needed / 1e9:.4g} GB; name another in the environment variable TMPDIR"
            )
        self._row = 0
        with ExitStack() as stack:
            try:
                self._path = stack.enter_context(temporary_beside(folder / "rows.h5"))
                self._file = stack.enter_context(h5py.File(self._path, "w"))
                self._dataset = self._file.create_dataset("X", shape, dtype, track_times=False)
            except OSError as error:
                raise FileError(f"{self._name}, cannot be written ({error})") from error
            self._stack = stack.pop_all()

    def add(self, rows: Floats) -> None:
        """Write the next rows, shape (m, d)."""
        try:
            self._dataset[self._row : self._row + len(rows)] = rows
        except OSError as error:
            self._stack.close()
            raise FileError(f"{self._name}, cannot be written ({error})") from error
        self._row += len(rows)

    def matrix(self, step: int) -> FileMatrix:
        """Return what was written, to be read so many rows at a time."""
        with self._stack:
            try:
                self._file.close()
            except OSError as error:
                raise FileError(f"{self._name}, cannot be written ({error})") from error
            return FileMatrix(self._path).in_reads_of(step)
