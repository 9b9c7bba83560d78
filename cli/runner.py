"""What fitting commands share: checks before work, checkpoints, signals, reports, exit codes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from vpem.errors import InputError, Interrupted, Setting
from vpem.files.table_settings import TableSettings
from vpem.pictures.contents import plural
from vpem.records import Settings, not_both, off, rule, unset
from vpem.settings import FitSettings, HoldingSettings

from .data import (
    ComponentSettings,
    check_parties,
    graph_of,
    joined,
    partition_of,
    place_of,
    read_one,
    refuse_families,
    stored_graph,
    tell_families,
    teller,
)
from .display import ProgressLine, Screen, answer, print_json, show, table, tell_of_tree
from .outputs import LabelFile, LabelledOutput, Output, Role
from .session import EngineSettings, place_parties, where_of

if TYPE_CHECKING:
    from vpem.files.checkpoints import FileSaver
    from vpem.files.datasets import Dataset
    from vpem.fits.labels import KnownLabels
    from vpem.fits.results import Fit
    from vpem.fits.selection.trials import Problem
    from vpem.network.partition import Workers
    from vpem.network.schema import Report
    from vpem.settings import GraphSettings, SumSettings, WorkerSettings
    from vpem.sums.connect import Network

    from .data import FileSettings
    from .options import Given
    from .outputs import Found


SAME_KEY = 1.0
"""Seconds within which a second Ctrl-C is the first again, which launchers pass on."""


def each_file(path: Path, count: int) -> Path:
    """Return the file of one of several fits, by its number of components: run.k3.ckpt."""
    # A path without a name is refused later.
    return path.with_name(f"{path.stem}.k{count}{path.suffix}") if path.name else path


def files_kept(paths: Iterable[Path], options: Mapping[str, Any]) -> list[Path]:
    """Return the files of states at these paths, of all processes, by a command's options."""
    from vpem.files.checkpoints import files_of

    from .session import joined

    at_home, size = options.get("study") is not None, joined().engine.size
    return [file for path in paths for file in files_of(path, size, at_home=at_home)]


def _kept(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    if value is None:
        return []
    from vpem.files.checkpoints import part_of

    counts = ComponentSettings.counts(options.get("n_components", 2))
    paths = [value] if len(counts) == 1 else [each_file(value, count) for count in counts]
    files = files_kept(paths, options)
    return [*files, *map(part_of, files)]


WITHOUT_CHECKPOINT = rule(lambda given: given["checkpoint"] is None, " needs {checkpoint=FILE}")


class CheckpointSettings(Settings, heading="Checkpoints", kept=False):
    """Where a run keeps its state."""

    checkpoint: Path | None = unset(
        "Keep the state of the run here, to go on with --resume if it is interrupted.",
        file=Role(writes=True, files=_kept),
    )  # fmt: skip
    checkpoint_every: int | None = unset(
        "Iterations from one checkpoint to the next. Default: 10.", least=1,
        idle=WITHOUT_CHECKPOINT,
    )  # fmt: skip
    resume: bool = off(
        "Go on from --checkpoint, to the same result bit by bit.", idle=WITHOUT_CHECKPOINT
    )
    resume_if_any: bool = off(
        "As --resume, but start at the beginning if there is no checkpoint.",
        idle=[not_both("resume", "resume_if_any"), WITHOUT_CHECKPOINT],
    )  # fmt: skip

    def saver(self, run: CommandRun) -> FileSaver | None:
        """Return a writer of checkpoints, if any."""
        if self.checkpoint is None:
            return None
        from vpem.files.checkpoints import EVERY, FileSaver

        return FileSaver(
            self.checkpoint, every=self.checkpoint_every or EVERY, force=run.out.force,
            engine=run.engine, resume="if-any" if self.resume_if_any else self.resume,
            gone_on=run.where.gone_on,
        )  # fmt: skip


@contextmanager
def handling(note: Callable[[int, Any], None]) -> Iterator[None]:
    """Call a function at Ctrl-C and SIGTERM, in place of what they do."""
    before: dict[int, Callable[..., Any] | int | None] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


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

    try:
        with handling(record_signal):
            yield
    except KeyboardInterrupt as error:
        if not saver.path.exists():
            raise
        raise Interrupted(saver.name, None, signal.SIGINT) from error
    finally:
        saver.release()


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
        engine: EngineSettings,
        checkpoints: CheckpointSettings | None = None,
    ) -> None:
        from vpem.files.hdf5 import check_writable

        self.screen, self.out = screen, out
        self.network: Network | None = None
        self.labels: LabelFile | None = None
        self.table: TableSettings | None = None
        self.where = where_of(engine, screen)
        self.engine, self.shards = self.where.engine, engine.shards
        if out.publish_anyway and not self.where.least_rows:
            raise InputError(
                "--publish-anyway is for a study, which publishes a model to others; leave it out"
            )
        if out.output is not None and self.where.speaks and not self.shards:
            check_writable(out.output, out.force, kind)
        self._file = (checkpoints or CheckpointSettings()).saver(self)
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
            with catching(self._file):
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

    def finish(self, result: FitOutcome) -> None:
        """Write the model, print the report, and exit with the code of the outcome."""
        self.where.tell_warnings(self.screen)
        code = 3 if self.out.strict and not result.converged else 0
        if not self.where.speaks:
            raise typer.Exit(code)
        if not self.out.publish_anyway:
            self.where.check_published(result)
        report = self.where.share(result, self.out, self.screen)
        if self.out.json:
            print_json(report)
        elif not self.out.quiet:
            result.show(report)
            lost = [(one["member"], one["since_iteration"]) for one in report.get("without", ())]
            if lost:
                show(table(lost, "gone on without", "since iteration", right=("since iteration",)))
        if self.network is not None:
            tell_of_tree(self.network, self.screen)
        if code:
            raise typer.Exit(code)


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
    show: Callable[[Report], None] = lambda report: show_fit(report)
    own: Callable[[Report], Report] = lambda _: {}
    apart: bool = False
    found: Any = None
    heaviest: float = 1.0


class Task:
    """What is fitted, once or several times: a process's part of the data, and its networks.

    A process has the columns of its own agents, or the rows of its own workers. ``parts`` says who
    holds which features, or rows; ``names`` are those of agents or workers, who are joined in
    ``graph``. ``networked``: features have several agents, if nothing says which. A fit has
    ``labels_for_fit`` of some rows.
    """

    def __init__(
        self,
        run: CommandRun,
        files: Sequence[Path],
        parties: FileSettings,
        holding: WorkerSettings,
        graph: GraphSettings,
        settings: Any,
        memory_limit: str | None,
        networked: bool = True,
    ) -> None:
        if isinstance(run.out, LabelledOutput):
            run.labels = LabelFile(run.out, run.where, parties.parties)
        if parties.missing_parties:
            settings = settings.changed(missing="marginalize")
        self.run, self.files, self.settings = run, files, settings
        self.alignment: Report | None = None
        self.source = source = self._gather(parties, holding, memory_limit)
        self.limit = run.memory(memory_limit)
        self.weighed_by = holding.sample_weight
        self.labels_for_fit: KnownLabels | None = None
        self.networks: dict[int, Network] = {}
        graph = graph.seeded(settings.seed)
        self.seed_of_graph = graph.graph_seed
        if isinstance(holding, HoldingSettings) and holding.split == "features":
            self.workers: Workers | None = None
            self.parts: Any = partition_of(source, holding, networked)
            self.graph = stored_graph(source, holding, self.parts, graph, run.screen)
        else:
            self.parts = self.workers = self._deal(holding)
            self.graph = graph_of(self.workers.n_workers, self.workers.names, graph)
        self.names: Sequence[str] = self.parts.names
        self.n_rows = int(source.n_samples if self.workers is None else self.workers.n_samples)

    def _gather(
        self, settings: FileSettings, holding: WorkerSettings, memory_limit: str | None
    ) -> Dataset:
        """Read the one dataset, or join those of the parties, with a partition or workers."""
        from vpem.files.data import settle_labels
        from vpem.files.families import settle

        run, files, table, say = self.run, self.files, settings.table, self.run.screen.say
        over_rows = getattr(holding, "split", "rows") == "rows"
        with run.screen.reading(files):
            check_parties(files, settings)
            if settings.parties:
                of_one = holding.values("split", "sample_weight") | {"memory_limit": memory_limit}
                for name in (name for name, value in of_one.items() if value not in (None, False)):
                    raise InputError(Setting(name), " is for one file; with --parties leave it out")
                parties = run.where.parties(files, table)
                if table.labels_for_fit is not None and not run.where.own_users:
                    labelled, names = parties, [one.name for one in parties]
                    at = place_of(getattr(settings, "labels_at", None), names)
                    parties = run.where.parties(files, table.changed(labels_for_fit=None))
                    parties[at] = labelled[at]
                holders = place_parties(parties, run.out.output, run.shards, run.where, run.labels)
                source, self.alignment = joined(
                    parties, settings, over_rows, self.settings.missing == "marginalize",
                    holding.sample_weight, holders, say,
                )  # fmt: skip
            else:
                source = read_one(
                    files[0], table, run.where, teller(say, not settings.numbers_only),
                    dataset=holding.dataset, sample_weight=holding.sample_weight,
                    memory_limit=run.memory(memory_limit),
                )  # fmt: skip
                run.table = source.table
                source.labels_for_fit = settle_labels(
                    source.labels_for_fit, [source], source.ids, table
                )
                parts = None
                if isinstance(holding, HoldingSettings) and table.family and not over_rows:
                    parts = partition_of(source, holding, True)
                source = settle(source, table.family, parts)
            if settings.numbers_only:
                refuse_families(source.kinds, source.feature_names, source.source)
            tell_families(source, table, say)
            if settings.parties:
                run.where.watch(source.n_samples, over_rows, run.screen)
        return source

    def _deal(self, holding: WorkerSettings) -> Workers:
        """Choose who holds which rows; a note says where one worker has them all by default."""
        from vpem.files.networks import read_workers
        from vpem.network.partition import by_label, evenly

        source = self.source
        if getattr(holding, "sort_by_label", False):
            if holding.workers is None:
                raise InputError(
                    "--sort-by-label needs --workers: how many to deal the rows out to"
                )
            if source.labels is None:
                raise InputError(f"{source.source} has no labels to sort rows by")
            return by_label(source.labels, holding.workers)
        if holding.worker_rows is not None:
            return read_workers(holding.worker_rows, source.n_samples)
        if holding.workers is not None:
            return evenly(source.n_samples, holding.workers)
        if source.workers is not None:
            return source.workers
        self.run.screen.print_note(
            "one worker holds all rows; for more: --workers N (equal parts), or --worker-rows FILE"
        )
        return evenly(source.n_samples, 1)

    def connect(self, sums: SumSettings, hops: Sequence[int] = (), private: bool = False) -> None:
        """Make networks, by numbers of hops; by default one, of those of ``sums``.

        Over rows there is one, of 0. ``warnings`` are those raised until each was made.
        """
        from vpem.sums.connect import connect, connect_workers

        run, sums = self.run, sums.changed(seed=self.seed_of_graph)
        heard = run.screen.warnings
        before, self.warnings = list(heard), {0: list(heard)}
        if self.workers is not None:
            self.networks[0] = run.spread_network(connect_workers(self.graph, sums), workers=True)
            self.warnings[0] = list(heard)
            return
        chosen, last = sums.hubs == "likelihood", -1
        some = sums.changed(hubs="size") if chosen else sums
        for number in [0] if chosen else sorted(set(hops or [sums.hops])):
            if last < 0 or len(self.networks[last].whole.hubs) > 1:
                last, n_heard = number, len(heard)
                self.networks[last] = run.spread_network(
                    connect(self.graph, self.parts, some, hops=last)
                )
                self.warnings[last] = before + heard[n_heard:]
            # One hub already has all agents: more hops change nothing.
            self.networks[number], self.warnings[number] = self.networks[last], self.warnings[last]
        if not chosen:
            return
        from vpem.fits.likely_hubs import connect_by_likelihood

        X, weights, about = self.data()
        network = connect_by_likelihood(
            X, self.graph, self.parts, sums, self.settings, over=run.spread_network,
            private=private,
            kinds=self.source.kinds, sample_weight=weights, feature_names=about["feature_names"],
        )  # fmt: skip
        self.networks, by = {sums.hops: network}, network.whole.chosen
        assert by is not None
        run.screen.print_note(
            f"hubs by likelihood: worth {by.gain:.4g} nats per sample or more, by a fit without "
            f"hops of {by.first['n_iter']} iterations"
        )

    @property
    def network(self) -> Network:
        """The network of fewest hops."""
        return self.networks[min(self.networks)]

    def data(self) -> tuple[Any, Any, Report]:
        """Return this process's data, weights, and further arguments of a fit."""
        from vpem.fits.spread import own_columns, own_part

        source, network, workers = self.source, self.network, self.workers
        X, weights, names = own_part(source, network, workers, self.limit)
        weights = None if self.weighed_by is None else weights
        about: Report = {"feature_names": names}
        if self.labels_for_fit is not None:
            about["labels_for_fit"] = self.labels_for_fit
        if (kinds := source.kinds) is None:
            return X, weights, about
        for name, family in zip(source.feature_names, kinds.families, strict=True):
            if workers is not None and family != "gaussian":
                raise InputError(
                    Setting("split", "rows"), " adds up weights, means and scatter of workers' "
                    f"rows, which are all that Gaussian features need, but {name!r} is {family}; "
                    "split by features, or leave it out with ", Setting("drop", name),
                )  # fmt: skip
        apart = network.agents.apart and workers is None
        about["kinds"] = kinds.take_features(own_columns(network)) if apart else kinds
        return X, weights, about

    def fit(self, data: tuple[Any, Any, Report], **more: Any) -> Fit:
        """Fit the data as `data` returns them; parameters stay in the processes of their hubs."""
        (X, weights, about), workers = data, self.workers
        wide = self.network.whole.blocks.widths if workers is None else [self.source.n_features]
        settings = self.run.protecting(self.settings, int(max(wide)), self.n_rows)
        more = settings.values() | {"sample_weight": weights} | about | more
        if workers is None:
            from vpem.fits.spread import fit_spread

            return fit_spread(X, self.network, shards=True, **more)
        from vpem.fits.rows import fit_em

        return fit_em(X, workers, self.network, **more)

    def problem(self, kind: type[Problem], settings: FitSettings, **more: Any) -> Problem:
        """Return the problem of these settings, but for components, covariance and restarts."""
        X, weights, about = self.data()
        settings = self.run.protecting(settings, 0, self.n_rows)
        options = settings.values("n_components", "covariance_type", "n_init") | about
        return kind(X, self.networks, self.workers, options, sample_weight=weights, **more)

    def whole(self, fit: Fit) -> Fit:
        """Return a fit with all parameters in the first process."""
        from vpem.fits.parts import gathered

        return fit if self.workers is not None or not self.run.engine.apart else gathered(fit)

    def options(self, given: Given, result: Any, **more: Any) -> Report:
        """Return what the file of a result keeps of options."""
        run, options = self.run, dict(given.record)
        if run.table is not None:
            options["id_column"] = run.table.id_column
        options |= {"data": ", ".join(map(str, self.files)), "missing": self.settings.missing}
        if getattr(result, "guarantee", None) is not None:
            private = {"init": "noisy sums", "max_iter": result.n_iter, "tol": None}
            options |= {name: value for name, value in private.items() if name in options}
        return run.where.options(options | more, given.files)

    def describe(self, result: Any, ran: Report, noun: str = "", **more: Any) -> Report:
        """Return the report of a result, by what ran it, and of its ``noun``s."""
        names = self.source.feature_names
        report: Report = result.describe(names, self.names)
        if noun:
            report[f"{noun}s"] = result.answer(names).describe(noun)
        report |= {"seed": self.settings.seed, **self.run.facts(self.files)}
        report |= {"sample_weight": self.weighed_by, **more}
        if self.alignment is not None:
            report["alignment"] = self.alignment
        report |= ran
        if "privacy" in report:  # no warning that discloses data
            promise = report["privacy"]
            report["warnings"] = [promise["warning"]] if promise["repeatable"] else []
        return report

    def tell_and_label(self, result: Any, found: Found | None = None) -> None:
        """Note which rows were clipped, which no report has, and write labels of rows."""
        run = self.run
        for worker, count in getattr(result, "clipped", {}).items():
            if count:
                run.screen.print_note(
                    f"{self.names[worker]}: {plural(count, 'row')} with values beyond --bounds, "
                    "which were clipped; this is not reported to others"
                )
        if found is not None and run.labels is not None:
            run.labels.write(self.source, found, self.network.agents, self.workers)

    def finish(self, result: Any, outcome: FitOutcome) -> None:
        """End the run with a result, of which others get what this process has found."""
        labels = self.run.labels

        def own(report: Report) -> Report:
            files = {} if labels is None else {"labels_files": labels.written}
            return files | outcome.own(report)

        weights = None if self.weighed_by is None else self.source.sample_weight
        heaviest = 1.0 if weights is None else float(weights.max(initial=0.0)) or 1.0
        self.run.finish(
            replace(outcome, own=own, apart=self.run.shards, found=result, heaviest=heaviest)
        )


MOST_HUBS = 20
"""Hubs up to which a terminal lists them."""


def show_fit(report: Report) -> None:
    """Print a fit of rows: components or clusters, facts, and who formed hubs."""
    from vpem.pictures.contents import HUB, facts_of, hubs_of

    tables = [answer(report, "cluster" if "clusters" in report else "component")]
    tables.append(table(facts_of(report), "", ""))
    rows = hubs_of(report, MOST_HUBS + 1)
    joint = any("," in str(row[-1]) for row in rows)
    if joint and len(rows) <= MOST_HUBS and report["n_agents"] > 1:
        tables.append(table(rows, *HUB, title="Hubs", right=HUB[:1]))
    show(*tables)
