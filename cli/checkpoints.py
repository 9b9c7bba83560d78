"""Options of commands that keep checkpoints, and what a signal does meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .roles import Role

if TYPE_CHECKING:
    from vpem.files.checkpoints import FileSaver

__all__ = ["CheckpointEvery", "CheckpointFile", "Resume", "ResumeIfAny", "catching", "saver_of"]

SAME_KEY = 1.0
"""Seconds in which a second Ctrl-C is the first one once more: launchers pass it on."""


def _kept(value: Path | None, options: object) -> list[Path]:
    """Return all files that a checkpoint is kept in, and what they are before they are whole."""
    if value is None:
        return []
    from vpem.files.checkpoints import files_of
    from vpem.files.states import part_of

    from .engine import joined

    ranks = joined()
    files = files_of(value, 1 if ranks is None else ranks.size)
    return [*files, *map(part_of, files)]


CheckpointFile = Annotated[
    Path | None,
    Role(writes=True, files=_kept),
    typer.Option(help="Keep the state of the run here, to go on with --resume if it is ended."),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(help="Iterations from one checkpoint to the next. Default: 10."),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on from --checkpoint, to the same result bit by bit."),
]
ResumeIfAny = Annotated[
    bool,
    typer.Option("--resume-if-any", help="As --resume, but begin where there is no checkpoint."),
]


def saver_of(
    file: Path | None,
    every: int | None,
    resume: bool,
    if_any: bool,
    force: bool,
    **processes: Any,
) -> FileSaver | None:
    """Make what keeps checkpoints, or None where none are asked for.

    Parameters
    ----------
    file : path or None
        The checkpoint.
    every : int or None
        Iterations from one to the next.
    resume, if_any, force : bool
        As typed.
    **processes
        For a run of several processes; see `vpem.files.checkpoints.FileSaver`.

    Raises
    ------
    InputError
        If options do not go together.
    FileError
        If the checkpoint cannot be used.
    """
    from vpem.errors import InputError

    if resume and if_any:
        raise InputError("give --resume or --resume-if-any, not both")
    if file is None:
        for name, given in (
            ("--checkpoint-every", every is not None),
            ("--resume", resume),
            ("--resume-if-any", if_any),
        ):
            if given:
                raise InputError(f"{name} needs --checkpoint FILE")
        return None
    from vpem.files.checkpoints import EVERY, FileSaver

    return FileSaver(
        file,
        every=EVERY if every is None else every,
        resume="if-any" if if_any else resume,
        force=force,
        **processes,
    )


@contextmanager
def catching(saver: FileSaver | None) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a run at the end of an iteration, its state written.

    A second Ctrl-C ends it at once. Without a checkpoint nothing is changed.
    """
    if saver is None:
        yield
        return
    from vpem.errors import Interrupted

    first: list[float] = []

    def note(number: int, _: object) -> None:
        if number == signal.SIGINT and first and time.monotonic() - first[0] > SAME_KEY:
            raise KeyboardInterrupt
        if not first:
            first.append(time.monotonic())
            saver.signal = int(number)

    before: dict[int, Callable[..., Any] | int | None] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
        yield
    except KeyboardInterrupt as error:
        if not saver.path.exists():
            raise
        raise Interrupted(saver.name, None, signal.SIGINT) from error
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
