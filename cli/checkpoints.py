"""Options of commands that keep checkpoints, and what a signal does meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, Setting
from vpem.records import Settings, setting

from .choices import counts_of
from .roles import Role

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.files.checkpoints import FileSaver


SAME_KEY = 1.0
"""Seconds in which a second Ctrl-C is the first one once more: launchers pass it on."""


def each_file(path: Path, count: int) -> Path:
    """Return the file of one of several fits, of so many components: run.k3.ckpt of run.ckpt."""
    # A folder without a name is refused as it is.
    return path.with_name(f"{path.stem}.k{count}{path.suffix}") if path.name else path


def _kept(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    """Return all files that a checkpoint is kept in, and what they are before they are whole."""
    if value is None:
        return []
    from vpem.files.checkpoints import files_of, part_of

    from .where import joined

    at_home, size = options.get("study") is not None, joined().engine.size
    counts = counts_of(options.get("n_components", 2))
    paths = [value] if len(counts) == 1 else [each_file(value, count) for count in counts]
    files = [file for path in paths for file in files_of(path, size, at_home=at_home)]
    return [*files, *map(part_of, files)]


class CheckpointSettings(Settings, heading="Checkpoints", kept=False):
    """Where a run keeps its state."""

    checkpoint: Path | None = setting(
        None, "Keep the state of the run here, to go on with --resume if it is ended.",
        file=Role(writes=True, files=_kept),
    )  # fmt: skip
    checkpoint_every: int | None = setting(
        None, "Iterations from one checkpoint to the next. Default: 10.", least=1
    )
    resume: bool = setting(False, "Go on from --checkpoint, to the same result bit by bit.")
    resume_if_any: bool = setting(False, "As --resume, but begin where there is no checkpoint.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.resume_if_any:
            raise InputError("give --resume or --resume-if-any, not both")
        for name, value in self.values("checkpoint").items():
            if self.checkpoint is None and value:
                raise InputError(Setting(name), " needs --checkpoint FILE")


def saver_of(
    how: CheckpointSettings, force: bool, engine: Engine | None = None, gone_on: bool = False
) -> FileSaver | None:
    """Make what keeps checkpoints, or None where none are asked for.

    ``force`` lets a checkpoint of another run be replaced; ``gone_on`` says that processes are
    missing.
    """
    if how.checkpoint is None:
        return None
    from vpem.files.checkpoints import EVERY, FileSaver

    return FileSaver(
        how.checkpoint,
        every=how.checkpoint_every or EVERY,
        resume="if-any" if how.resume_if_any else how.resume,
        force=force,
        engine=engine,
        gone_on=gone_on,
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
        saver.release()
        for caught, handler in before.items():
            signal.signal(caught, handler)
