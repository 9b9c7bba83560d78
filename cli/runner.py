"""What fitting commands share: checks before work, checkpoints, signals, reports, exit codes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from vpem.errors import InputError, Interrupted, Setting
from vpem.files.table_settings import TableSettings
from vpem.records import Settings, setting
from vpem.settings import FitSettings, HoldingSettings

from .data import (
    counts_of,
    graph_of,
    own_features,
    own_rows,
    own_weights,
    partition_of,
    stored_graph,
    workers_of,
)
from .display import ProgressLine, Screen, plural, print_json, show, table, tell_of_tree
from .outputs import Output, Role
from .session import EngineSettings, where_of

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.files.checkpoints import FileSaver
    from vpem.files.datasets import Dataset
    from vpem.fits.clustering import Clustering
    from vpem.fits.labels import KnownLabels
    from vpem.fits.results import Fit
    from vpem.fits.selection.trials import Problem
    from vpem.fits.settings import PrivacySettings
    from vpem.network.schema import Report
    from vpem.settings import GraphSettings, SumSettings
    from vpem.sums.connect import Network

    from .options import Given
    from .outputs import LabelFile

    Q = TypeVar("Q", bound=Problem)


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

    def record_signal(number: int, _: object) -> None:
        if number == signal.SIGINT and first and time.monotonic() - first[0] > SAME_KEY:
            raise KeyboardInterrupt
        if not first:
            first.append(time.monotonic())
            saver.signal = int(number)

    before: dict[int, Callable[..., Any] | int | None] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, record_signal)
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

    def spread_network(self, network: Network, *, workers: bool = False) -> Network:
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


def tell_what_is_left(
    screen: Screen, settings: FitSettings, privacy: PrivacySettings, task: Task
) -> None:
    """Note before a private fit of rows how large its noise will be."""
    if privacy.epsilon is not None:
        from vpem.fits.privacy import foretell

        n_samples, n_features = task.parts.n_samples, len(task.source.feature_names)
        foretold = foretell(settings, privacy, n_samples, n_features, task.networks[0])
        foretold.check()
        screen.print_note(str(foretold))


def kept_of_private(result: Fit | Clustering) -> Report:
    """Return what a model keeps in place of options that do not apply to a private fit."""
    if result.guarantee is None:
        return {}
    return {"init": "noisy sums", "max_iter": result.n_iter, "tol": None}


def warned_of_private(result: Fit | Clustering) -> Report:
    """Return the warnings of a report where rows are protected: none that discloses data."""
    if result.guarantee is None:
        return {}
    from vpem.fits.privacy import REPEATABLE

    return {"warnings": [REPEATABLE] if result.guarantee.repeatable else []}


def tell_of_clipped(screen: Screen, result: Fit | Clustering, names: Sequence[str]) -> None:
    """Note at each worker how many of its rows were clipped to the bounds; no report has that."""
    for worker, count in getattr(result, "clipped", {}).items():
        if count:
            screen.print_note(
                f"{names[worker]}: {plural(count, 'row')} with values beyond --bounds, which were "
                "clipped; this is not reported to others"
            )


@dataclass(frozen=True)
class FitOutcome:
    """The result of a fit.

    ``tell`` returns the part of the report that is common to all, without the file of the data;
    ``write`` writes the model, ``show`` prints a report. ``own`` writes further files of each user,
    and returns its part of the report. If ``apart``, each process writes a model of its own. Others
    get ``found`` (see `vpem.fits.results.few_rows_of`); ``heaviest`` is the largest weight of a
    row of this process.
    """

    converged: bool
    tell: Callable[[], Report]
    write: Callable[[Path, Report], None]
    show: Callable[[Report], None]
    own: Callable[[Report], Report] = lambda _: {}
    apart: bool = False
    found: Any = None
    heaviest: float = 1.0


class Task:
    """What is fitted, once or several times: a process's part of the data, and its networks.

    A process has the columns of its own agents, or the rows of its own workers. ``networks`` are
    its parts by hops, by default those of ``sums``; over rows there is one, of 0. ``parts`` says
    who holds which features, or rows; ``names`` are those of agents or workers. A fit has
    ``labels_for_fit`` of some rows; ``warnings`` are those raised until each network was made.
    """

    def __init__(
        self,
        source: Dataset,
        holding: HoldingSettings,
        graph: GraphSettings,
        sums: SumSettings,
        run: CommandRun,
        hops: Sequence[int] = (),
    ) -> None:
        from vpem.sums.connect import connect, connect_workers

        self.source, self.run = source, run
        self.labels_for_fit: KnownLabels | None = None
        self.over_rows = holding.split == "rows"
        self._weighted = holding.sample_weight is not None
        sums = sums.changed(seed=graph.graph_seed)
        heard = run.screen.warnings
        self.parts: Any
        self.networks: dict[int, Network] = {}
        if self.over_rows:
            self.parts = workers_of(source, holding, run.screen)
            joined = graph_of(self.parts.n_workers, self.parts.names, graph)
            self.networks[0] = run.spread_network(connect_workers(joined, sums), workers=True)
            self.warnings = {0: list(heard)}
        else:
            self.parts = partition_of(source, holding, graph.is_asked or sums.is_asked or any(hops))
            joined = stored_graph(source, holding, self.parts, graph, run.screen)
            self._sums, self._graph = sums, joined
            if sums.hubs == "likelihood":
                # Placeholders until `grouped` chooses the hubs.
                sums, hops = sums.changed(hubs="size", hops=0), [0]
            before, self.warnings = list(heard), {}
            last: int | None = None
            for number in sorted(set(hops or [sums.hops])):
                if last is not None and len(self.networks[last].whole.hubs) == 1:
                    # One hub already has all agents: more hops change nothing.
                    self.networks[number] = self.networks[last]
                    self.warnings[number] = self.warnings[last]
                    continue
                last, n_heard = number, len(heard)
                self.networks[number] = run.spread_network(
                    connect(joined, self.parts, sums, hops=number)
                )
                self.warnings[number] = before + heard[n_heard:]
        self.names: Sequence[str] = self.parts.names
        self.n_rows = int(self.parts.n_samples if self.over_rows else source.n_samples)

    def grouped(self, settings: FitSettings, limit: int | None, private: bool) -> Task:
        """Replace the first network by that of hubs that the likelihood chooses."""
        if self.over_rows or self._sums.hubs != "likelihood":
            return self
        from vpem.fits.likely_hubs import connect_by_likelihood

        X, names = own_features(self.source, self.network, limit)
        weights = self.source.sample_weight if self._weighted else None
        network = connect_by_likelihood(
            X, self._graph, self.parts, self._sums, settings, over=self.run.spread_network,
            private=private, kinds=self.source.kinds, sample_weight=weights, feature_names=names,
        )  # fmt: skip
        self.networks = {self._sums.hops: network}
        chosen = network.whole.chosen
        assert chosen is not None
        self.run.screen.print_note(
            f"hubs by likelihood: worth {chosen.gain:.4g} nats per sample or more, by a fit "
            f"without hops of {chosen.first['n_iter']} iterations"
        )
        return self

    @property
    def network(self) -> Network:
        """The network of fewest hops."""
        return self.networks[min(self.networks)]

    def data(self, limit: int | None) -> tuple[Any, Any, Report]:
        """Return this process's data (``limit`` bytes in memory), weights, and more arguments."""
        from vpem.fits.spread import own_columns

        source, network, weights = self.source, self.network, None
        names: Sequence[str] = source.feature_names
        if self.over_rows:
            X = own_rows(source, self.parts, network, limit)
            if self._weighted:
                weights = own_weights(source, self.parts, network)
        else:
            X, names = own_features(source, network, limit)
            if self._weighted:
                weights = source.sample_weight
        about: Report = {"feature_names": names}
        if self.labels_for_fit is not None:
            about["labels_for_fit"] = self.labels_for_fit
        if source.kinds is not None:
            other = next(
                (one for one in zip(source.feature_names, source.kinds.families, strict=True)
                 if one[1] != "gaussian"), None
            )  # fmt: skip
            if self.over_rows and other is not None:
                raise InputError(
                    Setting("split", "rows"), " adds up weights, means and scatter of workers' "
                    "rows, which are all that Gaussian features need, but "
                    f"{other[0]!r} is {other[1]}; split by features, or leave it out with ",
                    Setting("drop", other[0]),
                )  # fmt: skip
            apart = network.agents.apart and not self.over_rows
            about["kinds"] = (
                source.kinds.take_features(own_columns(network)) if apart else source.kinds
            )
        return X, weights, about

    def fit(self, data: tuple[Any, Any, Report], settings: FitSettings, **more: Any) -> Fit:
        """Fit the data as `data` returns them; parameters stay in the processes of their hubs."""
        X, weights, about = data
        width = self.source.n_features if self.over_rows else self.network.whole.blocks.widths.max()
        settings = self.run.protecting(settings, int(width), self.n_rows)
        more = settings.values() | {"sample_weight": weights} | about | more
        if self.over_rows:
            from vpem.fits.rows import fit_em

            return fit_em(X, self.parts, self.network, **more)
        from vpem.fits.spread import fit_spread

        return fit_spread(X, self.network, shards=True, **more)

    def problem(self, kind: type[Q], settings: FitSettings, limit: int | None, **more: Any) -> Q:
        """Return the problem of these settings, but for components, covariance and restarts."""
        X, weights, about = self.data(limit)
        settings = self.run.protecting(settings, 0, self.n_rows)
        options = settings.values("n_components", "covariance_type", "n_init") | about
        workers = self.parts if self.over_rows else None
        return kind(X, self.networks, workers, options, sample_weight=weights, **more)

    def whole(self, fit: Fit) -> Fit:
        """Return a fit with all parameters in the first process."""
        from vpem.fits.parts import gathered

        return fit if self.over_rows or not self.run.engine.apart else gathered(fit)
