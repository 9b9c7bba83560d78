"""What fitting commands share: checks before work, checkpoints, signals, reports, exit codes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vpem.errors import InputError, Interrupted, Setting
from vpem.files.table_settings import TableSettings
from vpem.pictures.contents import plural, tables_of_fit
from vpem.records import FRAMEWORKS, Settings, Table, beside, not_both, off, rule, unset
from vpem.settings import FitSettings, HoldingSettings

from .data import (
    ComponentSettings,
    FedWorkers,
    check_parties,
    graph_of,
    partition_of,
    read_one,
    read_parties,
    refuse_families,
    slope_of,
    stored_graph,
    tell_families,
    teller,
    weighed,
)
from .display import ProgressLine, Screen, print_json, show
from .outputs import LabelFile, LabelledOutput, Output, Role
from .session import EngineSettings, describe_engine, where_of

if TYPE_CHECKING:
    from vpem.files.checkpoints import FileSaver
    from vpem.files.datasets import Dataset
    from vpem.files.traces import Trace
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


def _apart(given: Mapping[str, Any]) -> bool:
    """Whether workers of a framework have states of their own."""
    alike = given.get("split") == "rows" and given.get("batch_size") is None
    return given.get("engine") in FRAMEWORKS and not (alike and "n_components" in given)


APART_AT_WORKERS = rule(
    _apart,
    " keeps what all workers of a framework have alike, as in 'vpem fit {split=rows}' without "
    "batches; elsewhere each has a state of its own: leave it out, or take {engine=mpi}",
)
WITHOUT_CHECKPOINT = beside(" needs {checkpoint=FILE}", checkpoint=None)


class CheckpointSettings(Settings, heading="Checkpoints", kept=False):
    """Where a run keeps its state."""

    checkpoint: Path | None = unset(
        "Keep the state of the run here, to go on with --resume if it is interrupted.",
        file=Role(writes=True, files=_kept),
        idle=APART_AT_WORKERS,
    )
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
    )

    def saver(self, run: CommandRun) -> FileSaver | None:
        where = run.where
        if self.checkpoint is None or (where.shares_state and not where.speaks):
            return None
        from vpem.files.checkpoints import EVERY, FileSaver

        return FileSaver(
            self.checkpoint, every=self.checkpoint_every or EVERY, force=run.out.force,
            engine=None if where.shares_state else run.engine,
            resume="if-any" if self.resume_if_any else self.resume,
            gone_on=run.where.gone_on,
        )  # fmt: skip


@contextmanager
def catching(saver: FileSaver | None) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM stop a run after the iteration, its state written.

    A second Ctrl-C stops it at once. Without a checkpoint signals act as usual.
    """
    if saver is None:
        yield
        return
    from vpem.files.checkpoints import handling

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


class CommandRun:
    """A fitting command, from checks before any work to its exit code.

    ``kind`` is what it writes, in the plural. ``saver`` keeps states of the run; ``labels`` says
    where labels go, if any, and ``table`` how the table of one dataset was read, with the column
    of ids that was found.
    """

    labels: LabelFile | None = None
    table: TableSettings | None = None
    network: Network | None = None
    unkept: str | None = "--output FILE"
    """Options that would keep the result, where none does."""

    def __init__(
        self,
        screen: Screen,
        out: Output,
        kind: str,
        engine: EngineSettings,
        checkpoints: CheckpointSettings | None = None,
    ) -> None:
        from vpem.files.hdf5 import check_writable

        if out.trace is not None and engine.study is not None:
            raise InputError(
                Setting("trace", str(out.trace)), " keeps parameters of every iteration, "
                "which no policy looks at as at a model before it is published; leave it out",
            )  # fmt: skip
        self.screen, self.out, self.shards = screen, out, engine.shards
        self.where = where_of(engine, screen)
        self.engine, self.facts = self.where.engine, self.where.facts
        self.where.shards_of = out.output if self.shards else None
        if out.output is not None and self.where.speaks and not self.shards:
            check_writable(out.output, out.force, kind)
        self._file = (checkpoints or CheckpointSettings()).saver(self)
        self.saver = self.where.keep(self._file)
        for picture in filter(None, (out.plot, out.traces) if self.where.speaks else ()):
            from vpem.pictures.figure import check_picture

            check_picture(picture, out.force)
        self.trace = None
        if out.trace is not None and self.where.speaks:
            self.trace = self._begin_trace(out.trace)

    def _begin_trace(self, path: Path) -> Trace:
        """Return a trace, where a run goes on with what its file has."""
        from vpem.checks import read_int
        from vpem.files.hdf5 import check_writable
        from vpem.files.traces import Trace, read_trace

        saver = self._file
        known = "" if saver is None else saver.known_as
        check_writable(path, self.out.force or bool(known), "traces")
        if saver is not None and known and path.exists():
            begun = read_trace(path)
            name, _, end = begun.run.rpartition(" ")
            if name == known and (read_int(end) or 0) >= saver.generation:
                return Trace(begun=begun)
            if not self.out.force:
                raise InputError(
                    Setting("trace", str(path)), " belongs to another run than the checkpoint, or "
                    "ends before it; name another file, or replace it with ",
                    Setting("force", True),
                )  # fmt: skip
        return Trace()

    def _end_trace(self) -> None:
        path = self.out.trace
        if self.trace is None or path is None or not self.trace.records:
            return
        if self._file is not None:
            self.trace.run = f"{self._file.known_as} {self._file.generation}"
        # What was there is part of it where the run goes on.
        self.trace.write(path, force=True)
        self.screen.say(f"wrote {plural(len(self.trace), 'iterate')} to {path}")

    def drawn(self, make: Callable[[], Any]) -> Report:
        """Write the picture of --plot, if there is to be one; return what the report says of it."""
        if self.out.plot is not None:
            from vpem.pictures.figure import save_picture

            save_picture(self.out.plot, make(), force=self.out.force)
        return {"plot": self.out.plot}

    def spread_network(self, network: Network, *, workers: bool = False) -> Network:
        from vpem.sums.connect import spread, spread_workers

        self.network = network
        return (spread_workers if workers else spread)(network, self.engine)

    @contextmanager
    def working(self, kind: type[ProgressLine], data: Any = None) -> Iterator[Any]:
        """Show progress, of reading data on disk too, and stop at a checkpoint on a signal."""
        out = self.out
        destination = out.output or out.json or out.labels_file
        progress = kind(out.quiet or not self.where.speaks, None if destination else self.unkept)
        if hasattr(data, "observer"):
            data.observer = progress.reading
        progress.trace = self.trace
        try:
            with catching(self._file):
                yield progress
        except Interrupted:
            self._end_trace()
            raise
        finally:
            progress.close()
        self._end_trace()

    def finish(self, result: FitOutcome) -> None:
        self.where.tell_warnings()
        code = 3 if self.out.strict and not result.converged else 0
        if not self.where.speaks:
            raise typer.Exit(code)
        report = self.where.share(result, self.out)
        if self.out.json:
            print_json(report)
        elif not self.out.quiet:
            show(*result.tables(report))
            lost = [(one["member"], one["since_iteration"]) for one in report.get("without", ())]
            if lost:
                show(Table(lost, ("gone on without", "since iteration")))
        if self.network is not None and not self.out.quiet:
            from vpem.sums.forecast import note_of_tree

            self.screen.print_note(*note_of_tree(self.network))
        if code:
            raise typer.Exit(code)


@dataclass(frozen=True)
class FitOutcome:
    """The result of a fit.

    ``tell`` returns the part of the report that is common to all, without the file of the data;
    ``write`` writes the model, if there is one; ``tables`` are what a reader sees of a report.
    ``own`` writes more files of each user, and returns its part of the report. If ``apart``, each
    process writes a model of its own. Others get ``found`` (see `vpem.fits.results.few_rows_of`);
    ``heaviest`` is the largest weight of a row of this process.
    """

    converged: bool
    tell: Callable[[], Report]
    write: Callable[[Path, Report], None] | None
    tables: Callable[[Report], Iterable[Table | list[str] | str]] = tables_of_fit
    own: Callable[[Report], Report] = lambda _: {}
    apart: bool = False
    found: Any = None
    heaviest: float = 1.0

    @property
    def in_file(self) -> bool:
        """Whether there is one file of all."""
        return self.write is not None and not self.apart


class Task(CommandRun):
    """A fit of features or rows, once or several times.

    A process has the columns of its own agents, or the rows of its own workers. ``parts`` says who
    holds which features, or rows; ``names`` are those of agents or workers, who are joined in
    ``graph``. A fit has ``labels_for_fit`` of some rows.
    """

    labels_for_fit: KnownLabels | None = None
    alignment: Report | None = None
    slope: float | None = None
    """What a transform in this run adds to log-likelihoods (`cli.data.transform`)."""

    def load(
        self,
        files: Sequence[Path],
        parties: FileSettings,
        holding: WorkerSettings,
        graph: GraphSettings,
        settings: Any,
        memory_limit: str | None,
        networked: bool = True,  # features have several agents, if nothing says which
    ) -> Dataset:
        """Read this process's part of the data, and find out who holds what."""
        from vpem._core.threads import neighbours
        from vpem.checks import available_memory, parse_bytes

        if isinstance(self.out, LabelledOutput):
            self.labels = LabelFile(self.out, self.where, parties.parties)
        if parties.missing_parties:
            settings = settings.changed(missing="marginalize")
        self.files, self.settings, self.weighed_by = files, settings, holding.sample_weight
        limit = memory_limit
        self.limit = available_memory() // neighbours() if limit is None else parse_bytes(limit)
        over_rows = not isinstance(holding, HoldingSettings) or holding.split == "rows"
        with self.screen.reading(files):
            check_parties(files, parties)
            if parties.parties:
                missing = settings.missing == "marginalize"
                source, self.alignment = read_parties(
                    files, parties, self.where, self.labels, over_rows, missing, self.weighed_by
                )
            else:
                source = self._read_one(parties, holding, over_rows)
            if parties.numbers_only:
                refuse_families(source.kinds, source.feature_names, source.source)
            tell_families(source, parties.table, self.screen.say)
            if parties.parties:
                self.where.watch(source.n_samples, over_rows)
        self.source = source
        self.networks: dict[int, Network] = {}
        self.warnings: dict[int, list[str]] = {}
        graph = graph.seeded(settings.seed)
        self.seed_of_graph = graph.graph_seed
        self.workers: Workers | None = None
        if isinstance(holding, HoldingSettings) and not over_rows:
            self.parts: Any = partition_of(source, holding, networked)
            self.graph = stored_graph(source, holding, self.parts, graph, self.screen)
        else:
            self.parts = self.workers = self._deal(holding)
            self.graph = graph_of(self.workers.n_workers, self.workers.names, graph)
        self.names: Sequence[str] = self.parts.names
        self.n_rows = int((source if self.workers is None else self.workers).n_samples)
        return source

    def _read_one(self, parties: FileSettings, holding: WorkerSettings, over_rows: bool) -> Dataset:
        from vpem.files.data import settle_labels
        from vpem.files.families import settle

        table, parts = parties.table, None
        source = read_one(
            self.files, table, self.where, teller(self.screen.say, not parties.numbers_only),
            dataset=holding.dataset, sample_weight=self.weighed_by, memory_limit=self.limit,
        )  # fmt: skip
        self.table = source.table
        if source.powers is not None:
            self.screen.print_note(
                f"features of {source.source} are transformed by powers: means are in these units"
            )
        source.labels_for_fit = settle_labels(source.labels_for_fit, [source], source.ids, table)
        if isinstance(holding, HoldingSettings) and table.family and not over_rows:
            parts = partition_of(source, holding, True)
        return settle(source, table.family, parts)

    def _deal(self, holding: WorkerSettings) -> Workers:
        """Choose who holds which rows; a note says where one worker has them all by default."""
        from vpem.files.networks import read_workers
        from vpem.network.partition import by_label, evenly

        source, n_workers = self.source, holding.workers
        if isinstance(holding, FedWorkers) and holding.sort_by_label:
            if source.labels is None:
                raise InputError(f"{source.source} has no labels to sort rows by")
            return by_label(source.labels, n_workers or 1)
        if holding.worker_rows is not None:
            return read_workers(holding.worker_rows, source.n_samples)
        if n_workers is None and source.workers is not None:
            return source.workers
        if n_workers is None:
            self.screen.print_note(
                "one worker holds all rows; for more: --workers N (equal parts), or --worker-rows "
                "FILE"
            )
        return evenly(source.n_samples, n_workers or 1)

    def connect(self, sums: SumSettings, hops: Sequence[int] = (), private: bool = False) -> None:
        """Make networks, by numbers of hops; by default one, of those of ``sums``.

        Over rows there is one, of 0. ``warnings`` are those raised until each was made.
        """
        from vpem.sums.connect import connect, connect_workers

        sums = weighed(sums.changed(seed=self.seed_of_graph), self.graph)
        heard = self.screen.warnings
        before, over_rows = list(heard), self.workers is not None
        chosen, last = sums.hubs == "likelihood", -1
        some = sums.changed(hubs="size") if chosen else sums
        for number in [0] if chosen or over_rows else sorted(set(hops or [sums.hops])):
            if last < 0 or len(self.networks[last].whole.hubs) > 1:
                last, n_heard = number, len(heard)
                whole = (
                    connect_workers(self.graph, sums) if over_rows
                    else connect(self.graph, self.parts, some, hops=last)
                )  # fmt: skip
                self.networks[last] = self.spread_network(whole, workers=over_rows)
                self.warnings[last] = before + heard[n_heard:]
            # One hub already has all agents: more hops change nothing.
            self.networks[number], self.warnings[number] = self.networks[last], self.warnings[last]
        if self.graph.has_server and sums.sum not in (None, "server"):
            self.screen.print_note(
                "the links of a star are a tree around its server: sums are taken there"
            )
        if not chosen:
            return
        from vpem.fits.likely_hubs import connect_by_likelihood

        X, weights, about = self.data()
        network = connect_by_likelihood(
            X, self.graph, self.parts, sums, self.settings, over=self.spread_network,
            private=private, kinds=self.source.kinds, sample_weight=weights,
            feature_names=about["feature_names"],
        )  # fmt: skip
        self.networks, by = {sums.hops: network}, network.whole.chosen
        assert by is not None
        self.screen.print_note(
            f"hubs by likelihood: worth {by.gain:.4g} nats per sample or more, by a fit without "
            f"hops of {by.first['n_iter']} iterations"
        )

    @property
    def local(self) -> Network:
        """The network of fewest hops, as far as it is in this process."""
        return self.networks[min(self.networks)]

    def data(self) -> tuple[Any, Any, Report]:
        """Return this process's data, weights, and further arguments of a fit."""
        from vpem.fits.spread import own_columns, own_part

        source, network, workers = self.source, self.local, self.workers
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

    def _protected(self, width: int) -> FitSettings:
        """Return settings that keep components of few rows out of a published model.

        A full covariance of ``width`` features (0: not known) needs width + 1 rows.
        """
        settings: FitSettings = self.settings
        least = self.where.least_rows
        if not least or self.out.publish_anyway:
            return settings
        if settings.covariance_type == "full" and settings.weight_concentration_prior_type is None:
            least = max(least, width + 1.0)
            if self.n_rows < least:
                raise InputError(
                    f"{self.n_rows} rows are too few for full covariances of {width} features: a "
                    "model would reveal single rows to others; take ",
                    Setting("covariance_type", "diag"), ", or ",
                    Setting("weight_concentration_prior_type", "map"),
                )  # fmt: skip
        return settings.changed(least_rows=max(settings.least_rows, least))

    def fit(self, data: tuple[Any, Any, Report], **more: Any) -> Fit:
        """Fit the data as `data` returns them; parameters stay in the processes of their hubs."""
        (X, weights, about), workers, network = data, self.workers, self.local
        wide = network.whole.blocks.widths if workers is None else [self.source.n_features]
        settings = self._protected(int(max(wide)))
        if "privacy" in more:  # noise keeps rows out of the model
            settings = self.settings
        more = settings.values() | {"sample_weight": weights} | about | more
        if workers is None:
            from vpem.fits.spread import fit_spread

            return fit_spread(X, network, shards=True, **more)
        from vpem.fits.rows import fit_em

        return fit_em(X, workers, network, **more)

    def problem_of(
        self, kind: type[Problem], data: tuple[Any, Any, Report], **more: Any
    ) -> Problem:
        """Return the problem of these fits, but for components, covariance and restarts."""
        X, weights, about = data
        without = ("n_components", "covariance_type", "n_init")
        options = self._protected(0).values(*without) | about
        return kind(X, self.networks, self.workers, options, sample_weight=weights, **more)

    def whole(self, fit: Fit) -> Fit:
        """Return a fit with all parameters in the first process."""
        from vpem.fits.parts import gathered

        return fit if self.workers is not None or not self.engine.apart else gathered(fit)

    def options(self, given: Given, result: Any, **more: Any) -> Report:
        options = dict(given.record)
        if self.table is not None:
            options["id_column"] = self.table.id_column
        options |= {"data": ", ".join(map(str, self.files)), "missing": self.settings.missing}
        if result.guarantee is not None:
            private = {"init": "noisy sums", "max_iter": result.n_iter, "tol": None}
            options |= {name: value for name, value in private.items() if name in options}
        if self.source.powers is not None:
            options["power"] = dumps(self.source.powers)
            if result.guarantee is not None:
                self.screen.print_note(
                    "the model keeps the exponents of its features, which no noise protects"
                )
        return self.where.options(options | more, given.files)

    def in_data_units(self, *fits: Any) -> None:
        """Give fits, or cells of a search, likelihoods of features before they were transformed.

        Those of held-out rows stay as they are.
        """
        if self.source.powers is None:
            return
        import numpy as np

        from vpem.fits.prepare import weighed
        from vpem.terms.rows import rows_with_values

        slope = slope_of(self.source) if self.slope is None else self.slope
        for one in fits:
            if not isinstance(one, dict):
                if one.guarantee is None:
                    one.add_to_likelihoods(slope)
                continue
            there = rows_with_values(self.source.X, self.settings.missing)
            used = weighed(np.zeros(len(there)), there, self.source.sample_weight)[1]
            changes = dict.fromkeys(("bic", "aic", "icl", "sabic", "caic"), -2.0)
            changes["log_likelihood"] = 1 / used
            for cell in (one, *one.get("restarts", ())):
                for name in changes.keys() & cell.keys():
                    cell[name] += changes[name] * slope

    def describe(self, result: Any, ran: Report, noun: str = "", **more: Any) -> Report:
        """Return the report of a result, by what ran it, and of its ``noun``s."""
        names = self.source.feature_names
        report: Report = result.describe(names, self.names)
        if noun:
            report[f"{noun}s"] = result.answer(names).describe(noun)
        if self.shards:  # which keep means where they are
            report["components"] = [one | {"differs_most_in": None} for one in report["components"]]
        report |= {"seed": self.settings.seed, **self.facts(self.files)}
        report |= {"sample_weight": self.weighed_by, **more}
        if self.alignment is not None:
            report["alignment"] = self.alignment
        if self.source.powers is not None:
            report["power"] = self.source.powers
        report |= ran
        if "privacy" in report:  # no warning that discloses data
            promise = report["privacy"]
            report["warnings"] = [promise["warning"]] if promise["repeatable"] else []
        return report

    def tell_and_label(self, result: Any, found: Found) -> None:
        """Note which rows were clipped, which no report has, and write labels of rows."""
        for worker, count in getattr(result, "clipped", {}).items():
            if count:
                self.screen.print_note(
                    f"{self.names[worker]}: {plural(count, 'row')} with values beyond --bounds, "
                    "which were clipped; this is not reported to others"
                )
        if self.labels is not None:
            self.labels.write(self.source, found, self.local.agents, self.workers)

    def keep(self, result: Any, options: Report, path: Path, report: Report) -> None:
        """Write a model, or a clustering without what members of a study have of their own."""
        source, names = self.source, self.source.feature_names
        if "clusters" not in report:
            from vpem.files.models import write_model

            if not self.shards:
                write_model(path, result.kept(names, report, options), self.out.force)
            return
        from vpem.files.results import write_clustering

        stored = result.kept(names, report, options, source.ids)
        if self.where.own_users:  # --labels has each member's own
            stored = replace(
                stored, labels=stored.labels[:0], distances=stored.distances[:0], ids=None
            )
        write_clustering(path, stored, self.out.force)

    def finish(self, result: FitOutcome) -> None:
        weights = None if self.weighed_by is None else self.source.sample_weight
        heaviest = 1.0 if weights is None else float(weights.max(initial=0.0)) or 1.0
        super().finish(replace(result, apart=self.shards, heaviest=heaviest))

    def finish_fit(
        self,
        result: Any,
        options: Report,
        noun: str = "component",
        ran: Report | None = None,
        own: Callable[[Report], Report] = lambda _: {},
        **more: Any,
    ) -> None:
        """End the run with a result, kept with ``options``; ``more`` is for its report."""
        ran = describe_engine(self.local) if ran is None else ran
        tell = partial(self.describe, result, ran, noun, **more)
        write = partial(self.keep, result, options)

        def own_files(report: Report) -> Report:
            return {"labels_files": self.labels.written if self.labels else []} | own(report)

        self.finish(FitOutcome(result.converged, tell, write, own=own_files, found=result))
