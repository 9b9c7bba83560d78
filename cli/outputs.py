"""What commands write: roles of files, outputs and their options, tables of labels, shards.

No result replaces an input or another result. Every option or argument that names a file has its
role in the annotation: `READ`, `WRITTEN`, or a `Role` of its own. Before a command runs, `begin`
compares the files of all of them; files known later (of a manifest, or shards) are added by `reads`
and `writes`, which compare them with all before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import FileError, VpemError
from vpem.records import Rule, Settings, beside, changed, off, rule, setting, unset

from .names import FILE, name_of

if TYPE_CHECKING:
    from vpem.engines.placement import Placement
    from vpem.files.datasets import Dataset, Home
    from vpem.fits.results import Fit
    from vpem.network.partition import Workers
    from vpem.network.schema import Report
    from vpem.saem.results import SaemFit
    from vpem.sums.connect import Network

    from .runner import CommandRun
    from .session import Where

    Found = Mapping[int, Mapping[str, Any]]
    """Columns of labels, by party."""


@dataclass(frozen=True)
class Role:
    """What a command does with the file that an option names.

    ``files`` returns the files of the option's value, given that, or None, and the values of all
    options by name; by default the value names them.
    """

    writes: bool  # it may be read before, too
    files: Callable[[Any, Mapping[str, Any]], Iterable[Any]] = lambda value, options: (
        () if value is None else value if isinstance(value, list | tuple) else (value,)
    )
    goes_on_in: str = ""  # option that may name the same file


READ, WRITTEN = Role(writes=False), Role(writes=True)

FOLDER = Role(writes=False, files=lambda value, options: ())
"""A folder; its files are added by `reads` and `writes`."""

MOVING = "--checkpoint"
"""Its files replace each other, in other processes too, while they are compared."""

_uses: dict[tuple[Any, ...], list[tuple[str, str, Role]]] = {}
"""Options that the command runs with, their files and roles, by `identity_of_file`."""


def begin(context: Any, roles: Mapping[str, Role]) -> None:
    """Compare the files of all options of a command.

    FileError if one to be written is read or written under another name, however spelled.
    """
    _uses.clear()
    values = {**context.params, "config": context.meta.get(FILE)}
    for param in context.command.params:
        role = roles.get(param.name)
        if role is READ and context.params.get(param.name) is not None:
            found = _found(values[param.name], param.name == "data")
            values[param.name] = context.params[param.name] = found
        if role is not None:
            _note(role, name_of(param), *role.files(values.get(param.name), values))


def _found(value: Any, is_data: bool) -> Any:
    """Return a file, or several; one like data/wine.h5 may be that of the package."""
    if isinstance(value, list | tuple):
        return type(value)(_found(one, is_data) for one in value)
    if is_data and (":/" in os.fspath(value) or ":\\" in os.fspath(value)):
        from vpem.files.lakes import as_address

        return as_address(value) or value  # of which a Path keeps one slash
    folder, name = os.path.split(os.fspath(value))
    if folder != "data" or os.path.lexists(value):
        return value
    from vpem.files.examples import EXAMPLES, folder_of_examples

    shipped = any(example.file == name for example in EXAMPLES.values())
    return type(value)(folder_of_examples() / name) if shipped else value


def written() -> list[tuple[str, str]]:
    uses = chain.from_iterable(_uses.values())
    return [(option, os.path.realpath(path)) for option, path, role in uses if role.writes]


def _note(role: Role, option: str, *paths: str | os.PathLike[str]) -> None:
    """Note a use of files, or raise FileError if one conflicts with another use."""
    if not paths:
        return  # what tells files apart loads NumPy, and 'vpem help fit' needs neither
    from vpem.files.opening import identity_of_file

    for path in [os.fspath(one) for one in paths]:
        same = _uses.setdefault(identity_of_file(path), [])
        for other in same:
            uses = (option, path, role), other
            (one, target, how), (two, source, second) = uses if role.writes else uses[::-1]
            # Two processes may report the same use, and files of checkpoints replace each other.
            alike = one == MOVING or os.path.realpath(target) == os.path.realpath(source)
            if not how.writes or second.goes_on_in == one or (one == two and alike):
                continue
            raise FileError(
                f"{two} {source} and {one} {target} are one file; give two names"
                if second.writes
                else f"{one} {target} is the input {source} ({two}) itself; write to another name"
            )
        same.append((option, path, role))


reads = partial(_note, READ)
"""Note files that the command will read for an option, which must be none that it writes."""

writes = partial(_note, WRITTEN)
"""Note files that the command will write, which must be none that it reads or writes."""


TABLES = ("output", "individuals", "labels_file")
"""Settings of outputs that may be CSV."""


def _without_csv(text: str, *names: str) -> Rule:
    """Return the rule where none of these outputs is CSV."""
    return rule(
        lambda given: not any(str(given.get(name)).lower().endswith(".csv") for name in names),
        text,
    )


NO_CSV = _without_csv(" is for CSV, and none is written; leave it out", *TABLES)
NO_LABELS = _without_csv(
    " is about probabilities of rows in CSV, which are not written; give {labels_file=FILE.csv}, "
    "or leave it out",
    "labels_file",
)

NOTHING_REPLACED = rule(
    # A record of outputs alone has no input, and no checkpoint either.
    lambda given: (
        not {"data", "model", "topology"}.isdisjoint(given)
        and not any(
            given.get(one)
            for one in (*TABLES, "plot", "state", "checkpoint", "topics", "traces", "trace")
        )
    ),
    " replaces existing files, but nothing is to be written; leave it out",
)

NEEDS_TOL = beside(" needs a --tol above 0: without it nothing can converge", tol=0)

NO_CSV_AT_ALL: Rule = (
    lambda given: NO_CSV[0](given) and bool(given.get("output") or given.get("json")),
    NO_CSV[1],
)
"""Where CSV goes to standard output by default."""

switch = partial(off, local=True)
"""Return a field that is off, unless a member of a study wants it for itself."""


class Printing(Settings, heading="Output", kept=False):
    json: bool = switch("Print one JSON object instead of tables.", often=True)
    quiet: bool = switch("Print only errors, and the output of --json.", flags="-q --quiet")


class Output(Printing, heading="Output", kept=False):
    output: Path | None = unset(
        "Write the model here (HDF5).",
        flags="-o --output",
        # Files of shards are checked by `ShardFiles`.
        file=Role(writes=True, files=lambda path, options: (
            [] if path is None or options.get("shards") else [path]
        )), often=True,
    )  # fmt: skip
    force: bool = switch("Replace an existing output.", idle=NOTHING_REPLACED)
    publish_anyway: bool = off(
        "In a study: publish a model although it has components of fewer than 5 rows, or singular "
        "ones. The policy of every party must say publish-anyway = true.",
        idle=rule(
            lambda given: given.get("study", "") is None,
            " is for a study, which publishes a model to others; leave it out",
        ),
    )
    strict: bool = switch("Exit with 3 if not converged.", heading="Stopping")

    # Settings of those commands that write such files.
    labels_file: Path | None = None
    plot: Path | None = None
    traces: Path | None = None
    trace: Path | None = None


PRIVATE = rule(
    lambda given: any(given.get(one) is not None for one in ("epsilon", "release_epsilon")),
    " keeps log-likelihoods and mean fields of single iterations, which are of rows and which no "
    "privacy budget covers; leave it out",
)


class TraceOutput(Output, heading="Output", kept=False):
    trace: Path | None = unset(
        "Write every iterate here, .jsonl or .h5: parameters, statistic, step, mean field, "
        "log-likelihood. After --resume the file goes on. 'vpem plot' draws it. In no study.",
        file=Role(writes=True, files=lambda path, _: [] if path is None else [path]),
        idle=PRIVATE,
    )  # fmt: skip


class TableOutput(Output, heading="Output", kept=False):
    quote_formulas: bool = switch(
        "In CSV, put an apostrophe before text that begins with =, +, - or @, which spreadsheets "
        "would compute.",
        idle=NO_CSV,
    )


OPTIONS = {"labels_file": "--labels", "output": "--output"}
"""Options that name tables of labels, by their settings."""


class ResultSettings(Printing, heading="Output", kept=False):
    """Where results go: to a file, or to standard output as CSV or JSON."""

    output: Path | None = unset(
        "Write here: .csv, .parquet or .h5. Default: CSV on stdout.",
        flags="-o --output",
        file="written",
        often=True,
    )
    force: bool = changed(Output, "force")
    quote_formulas: bool = changed(TableOutput, "quote_formulas", idle=NO_CSV_AT_ALL)
    digits: int = setting(
        7,
        "Significant digits of probabilities in CSV. With 7, those of single precision, "
        "probabilities below 1e-12 are 0.",
        least=1,
        most=17,
        local=True,
        idle=NO_CSV_AT_ALL,
    )

    def write(self, columns: Mapping[str, Any], kind: str) -> None:
        from vpem.files.results import write_columns

        how = self.force, self.quote_formulas, self.digits
        if self.output is not None or not self.json:
            write_columns(self.output, dict(columns), kind, *how)


class LabelledOutput(TableOutput, heading="Output", kept=False):
    labels_file: Path | None = unset(
        "Write the component or cluster of each row here: .csv, .parquet, .h5. With --parties a "
        "file for each, named after it (clusters.lab.csv), with all its rows in its own order.",
        flags="--labels",
        # Tables of parties are checked by `LabelFile.place`.
        file=Role(writes=True, files=lambda path, options: (
            () if path is None or options.get("parties") else (path,)
        )),
    )  # fmt: skip
    digits: int = changed(ResultSettings, "digits", idle=NO_LABELS)


class LabelFile:
    """Where labels go, if anywhere; a ``setting`` of ``out``, one of `OPTIONS`, names the file.

    That is the file of one dataset, or of a process that has a user of its own; else files are
    named after it and the parties, as shards are. If any process has one, labels are ``needed``
    in all, which compute them together. ``written`` lists files, only its own in a process that
    has a user; if that could not be written, ``written`` raises its error, when all have results.
    """

    def __init__(
        self, out: Any, where: Where, parties: bool, setting: str = "labels_file", here: bool = True
    ) -> None:
        from vpem.files.hdf5 import check_writable
        from vpem.files.temporaries import check_ending

        self.file: Path | None = getattr(out, setting) if here else None
        self.option, self.out, self.where, self.parties = OPTIONS[setting], out, where, parties
        self._written: list[str] = []
        self._failed: VpemError | None = None
        self.needed = where.anybody(setting, self.file is not None)
        if self.file is not None:
            check_ending(self.file, "results")
            if not parties and where.speaks:
                check_writable(self.file, out.force, "results")

    def __bool__(self) -> bool:
        return self.needed  # in any process

    @property
    def written(self) -> list[str]:
        if self._failed is not None:
            raise self._failed
        return self._written

    def place(self, names: Sequence[str], holders: Placement) -> None:
        """Raise, in all processes, where the table of a party cannot be written."""
        from vpem.engines.placement import for_each
        from vpem.files.hdf5 import check_writable

        paths = self._paths(names)

        def check(party: int) -> None:
            if (path := paths[party]) is not None:
                writes(self.option, path)
                check_writable(path, self.out.force, "results")

        if self:
            for_each(holders, range(len(paths)), check)

    def _paths(self, names: Sequence[str]) -> Sequence[Path | None]:
        """Return where each party's table goes, or that of one dataset; None: nowhere here."""
        from vpem.fits.parts import paths_apart

        if self.file is None or self.where.own_users or not self.parties:
            return [self.file] * (len(names) if self.parties else 1)
        return paths_apart(self.file, [(name, party) for party, name in enumerate(names)])

    def write(
        self, source: Dataset, found: Found, holders: Placement, workers: Workers | None = None
    ) -> None:
        """Write labels, and print how many rows have none; all processes call this.

        ``found`` has columns by party, of joined rows, or by those ``workers`` of theirs; one
        dataset is party 0 of the first process.
        """
        from vpem.files.datasets import Home
        from vpem.fits.labels import stacked

        if not self:
            return
        held, homes = source.partition or source.workers, source.homes
        if not self.parties:
            whole = Home.whole(source.ids, source.n_samples, counted=source.counted)
            held, homes = None, {0: whole} if self.where.speaks else {}
            found = found if workers is None else stacked(found, workers, holders)
        self.write_homes(homes, held.names if held else (), found, holders)

    def write_individuals(self, fit: SaemFit, devices: Workers, holders: Placement) -> None:
        """Write classes of individuals, for each device its own, or for one dataset all."""
        if not self:
            return
        import numpy as np

        from vpem.files.datasets import Home
        from vpem.fits.labels import columns_of, of_each, stacked

        assert fit.probabilities is not None
        table = {"id": np.array(fit.names, np.str_), **columns_of(fit.probabilities)}
        columns = of_each(table, devices, holders)
        if not self.parties:
            columns = stacked(columns, devices, holders)
        homes = {}
        for device, own in columns.items():
            name = devices.names[device] if self.parties else ""
            # Names of individuals of parties begin with the party's.
            ids = [one.removeprefix(f"{name}/") for one in own.pop("id").tolist()]
            homes[device] = Home.whole(np.array(ids, np.str_), len(ids), name)
        self.write_homes(homes, devices.names, columns, holders)

    def write_homes(
        self, homes: Mapping[int, Home], names: Sequence[str], found: Found, holders: Placement
    ) -> None:
        """Write tables of the rows of this process's parties; ``names`` are all parties'."""
        from vpem.engines.placement import for_each
        from vpem.files.results import write_columns

        paths, out = self._paths(names), self.out

        def write(party: int) -> list[Any]:
            home, path = homes.get(party), paths[party]
            if home is None or path is None:
                return []
            how = out.force, out.quote_formulas, out.digits
            try:
                write_columns(path, home.columns(found[party]), "vpem-predictions", *how)
            except VpemError as error:
                if not self.where.own_users:
                    raise
                self._failed = error  # raised later: the others do not wait for this member's disk
                return []
            return [str(path), home.name, len(home.places), home.n_lost]

        facts = for_each(holders, range(len(paths)), write)
        if not self.where.own_users:
            facts = holders.allgather(facts)
        say = self.where.screen.say
        for path, name, n_rows, n_lost in filter(None, facts.values()):
            self._written.append(path)
            say(f"wrote {n_rows} rows to {path}")
            if n_lost:
                say(f"{name}: {n_lost} of {n_rows} rows took no part, since not every party has "
                    f"them; their cells in {path} are empty")  # fmt: skip


class ShardFiles:
    """The files of this process's shards, by the numbers of hubs; FileError if one cannot be.

    They are beside --output and named after hubs' roots; where each process has a user, who names
    a file, its only shard goes there. ``names`` are those of all agents.
    """

    def __init__(self, run: CommandRun, network: Network, names: Sequence[str]) -> None:
        from vpem.files.hdf5 import check_writable
        from vpem.fits.parts import shard_paths

        self.run, self.names, output = run, names, run.out.output
        paths = {} if output is None else shard_paths(output, network.whole.blocks, names)
        own = [number for number in network.total.holders.own.tolist() if number in paths]
        self.paths = {number: paths[number] for number in own}
        if output is not None and run.where.own_users and len(own) == 1:
            self.paths = {own[0]: output}
        for path in self.paths.values():
            writes("--shards", path)
            check_writable(path, run.out.force, "models")

    def write(self, fit: Fit, feature_names: Sequence[str], options: Report) -> tuple[Fit, Report]:
        """Write this process's hubs, a file each; return an outline, and where the files are."""
        from vpem.fits.parts import outline, write_shard

        features, out = fit.network.whole.blocks.features, self.run.out
        for place, number in enumerate(fit.network.total.holders.own.tolist()):
            if number in self.paths:
                own = [feature_names[j] for j in features[number]]
                write_shard(self.paths[number], fit, place, self.names, own, options, out.force)
        if self.run.where.own_users:
            return outline(fit), {"model": ", ".join(map(str, self.paths.values())) or None}
        if out.output is None:
            return outline(fit), {}
        stem, suffix = out.output.with_name(out.output.stem), out.output.suffix
        return outline(fit), {"model": f"{stem}.*{suffix}, a shard for each hub"}
