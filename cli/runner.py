"""What fitting commands share: checks before work, checkpoints, signals, reports, exit codes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from vpem.errors import InputError, Interrupted, Setting
from vpem.records import Settings, setting

from .choices import counts_of, tell_of_tree
from .display import ProgressLine, Screen, print_json, show, table
from .engine import EngineSettings, where_of
from .files import Role
from .options import NO_CSV, NOTHING_REPLACED, Printing

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.files.checkpoints import FileSaver
    from vpem.files.table_settings import TableSettings
    from vpem.network.schema import Report
    from vpem.settings import FitSettings
    from vpem.sums.connect import Network

    from .labels import LabelFile
    from .options import Given
    from .results import FitOutcome


SAME_KEY = 1.0
"""Seconds within which a second Ctrl-C is the first again, which launchers pass on."""


def each_file(path: Path, count: int) -> Path:
    """Return the file of one of several fits, by its number of components: run.k3.ckpt."""
    # A path without a name is refused later.
    return path.with_name(f"{path.stem}.k{count}{path.suffix}") if path.name else path


def _kept(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    if value is None:
        return []
    from vpem.files.checkpoints import files_of, part_of

    from .session import joined

    at_home, size = options.get("study") is not None, joined().engine.size
    counts = counts_of(options.get("n_components", 2))
    paths = [value] if len(counts) == 1 else [each_file(value, count) for count in counts]
    files = [file for path in paths for file in files_of(path, size, at_home=at_home)]
    return [*files, *map(part_of, files)]


class CheckpointSettings(Settings, heading="Checkpoints", kept=False):
    """Where a run keeps its state."""

    checkpoint: Path | None = setting(
        None, "Keep the state of the run here, to go on with --resume if it is interrupted.",
        file=Role(writes=True, files=_kept),
    )  # fmt: skip
    checkpoint_every: int | None = setting(
        None, "Iterations from one checkpoint to the next. Default: 10.", least=1
    )
    resume: bool = setting(False, "Go on from --checkpoint, to the same result bit by bit.")
    resume_if_any: bool = setting(
        False, "As --resume, but start at the beginning if there is no checkpoint."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.resume_if_any:
            raise InputError("give --resume or --resume-if-any, not both")
        for name, value in self.values("checkpoint").items():
            if self.checkpoint is None and value:
                raise InputError(Setting(name), " needs --checkpoint FILE")


def saver_of(
    settings: CheckpointSettings, force: bool, engine: Engine | None = None, gone_on: bool = False
) -> FileSaver | None:
    """Return a writer of checkpoints, if any; ``gone_on``: processes are missing."""
    if settings.checkpoint is None:
        return None
    from vpem.files.checkpoints import EVERY, FileSaver

    return FileSaver(
        settings.checkpoint, every=settings.checkpoint_every or EVERY, force=force, engine=engine,
        resume="if-any" if settings.resume_if_any else settings.resume, gone_on=gone_on,
    )  # fmt: skip


@contextmanager
def catching(saver: FileSaver | None) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM stop a run after the iteration, its state written.

    A second Ctrl-C stops it at once. Without a checkpoint signals act as usual.
    """
    if saver is None:
        yield
        return
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


P = TypeVar("P", bound=ProgressLine)


class Output(Printing, heading="Output", kept=False):
    """What a fitting command writes and prints, and its exit code."""

    output: Path | None = setting(
        None,
        "Write the model here (HDF5).",
        flags="-o --output",
        # Files of shards are checked by `check_shards`.
        file=Role(writes=True, files=lambda path, options: (
            [] if path is None or options.get("shards") else [path]
        )),
    )  # fmt: skip
    force: bool = setting(False, "Replace an existing output.", local=True, idle=NOTHING_REPLACED)
    publish_anyway: bool = setting(
        False,
        "In a study: publish a model although it has components of fewer than 5 rows, or singular "
        "ones. The policy of every party must say publish-anyway = true.",
    )
    strict: bool = setting(False, "Exit with 3 if not converged.", heading="Stopping", local=True)


class TableOutput(Output, heading="Output", kept=False):
    """What a command writes that also writes tables."""

    quote_formulas: bool = setting(
        False,
        "In CSV, put an apostrophe before text that begins with =, +, - or @, which spreadsheets "
        "would compute.",
        local=True,
        idle=NO_CSV,
    )


class CommandRun:
    """A fitting command, from checks before any work to its exit code.

    ``kind`` is what it writes, in the plural. ``saver`` keeps states of the run; ``labels`` says
    where labels go, if any, and ``table`` how the table of one dataset was read, with the column
    of ids that was found.
    """

    def __init__(
        self,
        screen: Screen,
        out: Output,
        kind: str,
        engine: EngineSettings | None = None,
        checkpoints: CheckpointSettings | None = None,
    ) -> None:
        from vpem.files.hdf5 import check_writable

        self.screen, self.out = screen, out
        self.network: Network | None = None
        self.labels: LabelFile | None = None
        self.table: TableSettings | None = None
        engine = engine or EngineSettings()
        self.where = where_of(engine, screen)
        self.engine, self.shards = self.where.engine, engine.shards
        if out.publish_anyway and not self.where.least_rows:
            raise InputError(
                "--publish-anyway is for a study, which publishes a model to others; leave it out"
            )
        if out.output is not None and self.where.speaks and not self.shards:
            check_writable(out.output, out.force, kind)
        checkpoints = checkpoints or CheckpointSettings()
        self._file = saver_of(checkpoints, out.force, self.engine, self.where.gone_on)
        self.saver = self.where.keep(self._file)

    def memory(self, limit: str | None) -> int:
        """Return how many bytes of a dataset this process may have in memory."""
        from vpem._core.threads import neighbours
        from vpem.checks import available_memory, parse_bytes

        return available_memory() // neighbours() if limit is None else parse_bytes(limit)

    def over(self, network: Network, *, workers: bool = False) -> Network:
        """Return this process's part of the network of the fit."""
        from vpem.sums.connect import spread, spread_workers

        self.network = network
        return (spread_workers if workers else spread)(network, self.engine)

    @contextmanager
    def working(self, kind: Callable[[bool, str | None], P], data: Any = None) -> Iterator[P]:
        """Show progress, of reading data on disk too, and stop at a checkpoint on a signal."""
        out = self.out
        destination = out.output or out.json or getattr(out, "labels_file", None)
        progress = kind(
            out.quiet or not self.where.speaks, None if destination else "--output FILE"
        )
        if hasattr(data, "observer"):
            data.observer = progress.reading
        try:
            with catching(self._file), reminding(progress):
                yield progress
        finally:
            progress.close()

    def protecting(self, settings: FitSettings, width: int, n_rows: int) -> FitSettings:
        """Return settings that keep components of few rows out of a published model.

        A full covariance of ``width`` features (0: not known) needs width + 1 rows.
        """
        least = self.where.least_rows
        if not least or self.out.publish_anyway:
            return settings
        if settings.covariance_type == "full" and settings.weight_concentration_prior_type is None:
            least = max(least, width + 1.0)
            if n_rows < least:
                raise InputError(
                    f"{n_rows} rows are too few for full covariances of {width} features: a model "
                    "would reveal single rows to others; take ", Setting("covariance_type", "diag"),
                    ", or ", Setting("weight_concentration_prior_type", "map"),
                )  # fmt: skip
        return settings.changed(least_rows=max(settings.least_rows, least))

    def facts(self, files: Sequence[Path]) -> Report:
        return self.where.facts(self.screen, files)

    def options(self, given: Given, **more: Any) -> Report:
        ids = {} if self.table is None else {"id_column": self.table.id_column}
        return self.where.options(given.record | ids | more, given.files)

    def finish(self, result: FitOutcome) -> None:
        """Write the model, print the report, and exit with the code of the outcome."""
        self.where.tell_warnings(self.screen)
        if not self.where.speaks:
            raise typer.Exit(3 if self.out.strict and not result.converged else 0)
        if not self.out.publish_anyway:
            self.where.check_published(result)
        report = self.where.share(result, self.out, self.screen)
        self.end(report, result.converged, lambda: result.show(report))

    def end(self, report: Report, converged: bool, display: Callable[[], None]) -> None:
        """Print a report as JSON or tables, and exit with the code of its outcome."""
        if self.out.json:
            print_json(report)
        elif not self.out.quiet:
            display()
            lost = [(one["member"], one["since_iteration"]) for one in report.get("without", ())]
            if lost:
                show(table(lost, "gone on without", "since iteration", right=("since iteration",)))
        if self.network is not None:
            tell_of_tree(self.network, self.screen)
        if self.out.strict and not converged:
            raise typer.Exit(3)


@contextmanager
def reminding(progress: ProgressLine, seconds: float = 1.0) -> Iterator[None]:
    """Say soon after the start of a long run that nothing of it will be kept.

    Its start, or first iteration, may take minutes before it prints a line of its own.
    """
    if progress.quiet or progress.unkept is None:
        yield
        return
    clock = Timer(seconds, progress.remind)
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        clock.cancel()
