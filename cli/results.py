"""What a fit leaves: a report, and a model, where whoever may have them wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.errors import FileError
    from vpem.network.schema import Report


PIECE = 1 << 20
"""Bytes of a file that are sent at a time."""

MOST = 1 << 32
"""Bytes of a file that is taken from another member."""


@dataclass(frozen=True)
class Result:
    """What a fit has come to.

    Attributes
    ----------
    converged : bool
        Whether it has converged.
    tell : callable
        Returns the report, where it is common to all; the file of the data is not in it.
    write : callable
        Given a path and the report, writes the model there.
    show : callable
        Prints a report for a reader.
    own : callable
        Given the report, writes what each user wants beside; returns what reports say of it.
    apart : bool
        Whether each process writes a model of its own, by ``write``.
    found : Fit, FedFit or Clustering, optional
        What others will have, of which `vpem.fits.results.few_rows_of` tells.
    heaviest : float
        The largest weight of a row here.
    """

    converged: bool
    tell: Callable[[], Report]
    write: Callable[[Path, Report], None]
    show: Callable[[Report], None]
    own: Callable[[Report], Report] = lambda _: {}
    apart: bool = False
    found: Any = None
    heaviest: float = 1.0


def send(
    engine: Engine,
    result: Result,
    output: Path | None,
    over: Callable[[], None] = lambda: None,
) -> Report:
    """Send the finished report, which is returned, and file to all others; from the first member.

    ``over`` is called when all has been sent: what goes wrong after that is this member's alone.
    FileError if the model cannot be written: once others have it, if it can be made at all.
    """
    from .output import as_plain

    report: Report = as_plain(result.tell())
    engine.topic = "result"
    engine.bcast(report)
    if result.apart:
        over()
        return report
    content, failed = _finished(result, report, output)
    engine.bcast(len(content))
    for begin in range(0, len(content), PIECE):
        engine.bcast(content[begin : begin + PIECE])
    over()
    if failed is not None:
        raise failed
    return report


def _finished(
    result: Result, report: Report, output: Path | None
) -> tuple[bytes, FileError | None]:
    """Return the bytes of the finished file, and why it could not be written where it belongs."""
    from tempfile import TemporaryDirectory

    from vpem import errors

    failed: FileError | None = None
    if output is not None:
        try:
            result.write(output, report)
            return output.read_bytes(), None
        except errors.FileError as error:
            failed = error
    with TemporaryDirectory() as folder:
        made = Path(folder, "model.h5")
        try:
            result.write(made, report)
        except errors.FileError as error:
            raise failed or error from None
        return made.read_bytes(), failed


def receive(
    engine: Engine,
    result: Result,
    output: Path | None,
    force: bool,
    over: Callable[[], None] = lambda: None,
) -> Report:
    """Take the finished report from the first member, and the file, which is checked by reading it.

    ``over`` is called when everything has come: what goes wrong after that is this member's alone.
    """
    import os
    import tempfile

    from vpem.errors import FileError, InputError
    from vpem.files.hdf5 import atomic_write

    from .kinds import stored_at

    engine.topic = "result"
    report: Any = engine.bcast(None)
    if not isinstance(report, dict):
        raise InputError(f"{engine.names[0]} has sent no report; are all of the same version?")
    if result.apart:
        over()
        return report
    size: Any = engine.bcast(None)
    if not isinstance(size, int) or not 0 < size <= MOST:
        raise InputError(f"{engine.names[0]} has sent a file of {str(size)[:20]} bytes")
    with tempfile.TemporaryFile() as kept:
        while kept.tell() < size:
            piece: Any = engine.bcast(None)
            if not isinstance(piece, bytes) or not 0 < len(piece) <= size - kept.tell():
                raise InputError(f"{engine.names[0]} has sent a file in pieces that do not fit")
            if output is not None:
                kept.write(piece)
            else:
                kept.seek(len(piece), os.SEEK_CUR)
        over()
        if output is None:
            return report
        kept.seek(0)
        with atomic_write(output, force) as temporary:
            with open(temporary, "wb") as file:
                while piece := kept.read(PIECE):
                    file.write(piece)
            try:
                _ = stored_at(temporary).stored
            except FileError as error:
                raise FileError(
                    f"what {engine.names[0]} has sent is no result of a fit: {error}"
                ) from None
    return report
