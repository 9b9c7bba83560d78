"""Tables of the components or clusters of rows: for each party its own rows, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import VpemError
from vpem.records import changed, setting

from .files import Role, writes
from .options import NO_CSV, NO_CSV_AT_ALL, Printing
from .runner import Output, TableOutput

if TYPE_CHECKING:
    from vpem.engines.placement import Placement
    from vpem.files.datasets import Dataset, Home
    from vpem.fits.clustering import Clustering
    from vpem.network.partition import Workers
    from vpem.saem.results import SaemFit
    from vpem.sums.connect import Network
    from vpem.terms.mixture import Mixture

    from .display import Screen
    from .runner import CommandRun
    from .session import Where

    Found = Mapping[int, Mapping[str, Any]]
    """Columns of labels, by party."""


OPTIONS = {"labels_file": "--labels", "output": "--output"}
"""Options that name tables of labels, by their settings."""


class ResultSettings(Printing, heading="Output", kept=False):
    """Where results go: to a file, or to standard output as CSV or JSON."""

    output: Path | None = setting(
        None,
        "Write here: .csv, .parquet or .h5. Default: CSV on stdout.",
        flags="-o --output",
        file="written",
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
    json: bool = changed(Printing, "json")
    quiet: bool = changed(Printing, "quiet")

    def write(self, columns: Mapping[str, Any], kind: str) -> None:
        from vpem.files.results import write_columns

        if self.output is not None or not self.json:
            write_columns(
                self.output, dict(columns), kind, self.force, self.quote_formulas, self.digits
            )


class LabelledOutput(TableOutput, heading="Output", kept=False):
    """What a fit of rows writes."""

    labels_file: Path | None = setting(
        None,
        "Write the component or cluster of each row here: .csv, .parquet, .h5. With --parties a "
        "file for each, named after it (clusters.lab.csv), with all its rows in its own order.",
        flags="--labels",
        # Tables of parties are checked by `LabelFile.place`.
        file=Role(writes=True, files=lambda path, options: (
            () if path is None or options.get("parties") else (path,)
        )),
    )  # fmt: skip
    digits: int = changed(ResultSettings, "digits", idle=NO_CSV)


class LabelFile:
    """Where labels go, if anywhere; ``setting``, one of `OPTIONS`, names the file.

    That is the file of one dataset, or of a process that has a user of its own; else files are
    named after it and the parties, as shards are. If any process has one, labels are ``needed``
    in all, which compute them together. ``written`` lists files, only its own in a process that
    has a user; if that could not be written, ``written`` raises its error, when all have results.
    Further arguments are those of `vpem.files.results.write_columns`.
    """

    def __init__(
        self, setting: str, file: Path | None, where: Where, parties: bool, **options: Any
    ) -> None:
        from vpem.files.hdf5 import check_writable
        from vpem.files.temporaries import check_ending

        self.option, self.file, self.where, self.parties = OPTIONS[setting], file, where, parties
        self.options, self._written = options, list[str]()
        self._failed: VpemError | None = None
        self.needed = where.anybody(setting, file is not None)
        if file is not None:
            check_ending(file, "results")
            if not parties and where.speaks:
                check_writable(file, options["force"], "results")

    @classmethod
    def begin(cls, out: LabelledOutput, where: Where, parties: bool) -> LabelFile:
        return cls(
            "labels_file", out.labels_file, where, parties, force=out.force,
            quote_formulas=out.quote_formulas, digits=out.digits,
        )  # fmt: skip

    def __bool__(self) -> bool:
        return self.needed

    @property
    def written(self) -> list[str]:
        if self._failed is not None:
            raise self._failed
        return self._written

    def place(self, names: Sequence[str], holders: Placement) -> None:
        """Raise, in all processes, where the table of a party cannot be written."""
        from vpem.engines.placement import for_each
        from vpem.files.hdf5 import check_writable

        if not self:
            return
        paths = self._paths(names)

        def check(party: int) -> None:
            path = paths[party]
            if path is not None:
                writes(self.option, path)
                check_writable(path, self.options["force"], "results")

        for_each(holders, range(len(paths)), check)

    def _paths(self, names: Sequence[str]) -> Sequence[Path | None]:
        """Return where each party's table goes; None: nowhere here."""
        from vpem.fits.parts import shard_path

        file = self.file
        if file is None or self.where.own_users:
            return [file] * len(names)
        plain = [shard_path(file, name) for name in names]
        return [
            path if plain.count(path) == 1 else shard_path(file, f"{name}-{number}")
            for number, (name, path) in enumerate(zip(names, plain, strict=True))
        ]

    def write(self, source: Dataset, by_party: Found, holders: Placement, screen: Screen) -> None:
        """Write labels, and print how many rows have none; all processes call this.

        ``by_party`` has columns by party, of joined rows; one dataset is party 0 of the first
        process.
        """
        if self.parties:
            partition = source.partition or source.workers
            assert partition is not None
            self.write_homes(source.homes, partition.names, by_party, holders, screen)
        elif self:
            whole = whole_of(source.ids, source.n_samples, counted=source.counted)
            homes = {0: whole} if self.where.speaks else {}
            self.write_homes(homes, (), by_party, holders, screen)

    def write_homes(
        self,
        homes: Mapping[int, Home],
        names: Sequence[str],
        by_party: Found,
        holders: Placement,
        screen: Screen,
    ) -> None:
        """Write tables of the rows of this process's parties; ``names`` are all parties'."""
        from vpem.engines.placement import for_each
        from vpem.files.results import write_columns

        if not self:
            return
        paths: Sequence[Path | None] = self._paths(names) if self.parties else [self.file]

        def write(party: int) -> list[Any]:
            home, path = homes.get(party), paths[party]
            if home is None or path is None:
                return []
            columns = home.columns(by_party[party])
            try:
                write_columns(path, columns, "vpem-predictions", **self.options)
            except VpemError as error:
                if not self.where.own_users:
                    raise
                self._failed = error  # raised later: the others do not wait for this member's disk
                return []
            return [str(path), home.name, len(home.places), home.n_lost]

        facts = for_each(holders, range(len(paths)), write)
        if not self.where.own_users:
            facts = holders.allgather(facts)
        for path, name, n_rows, n_lost in filter(None, facts.values()):
            self._written.append(path)
            screen.say(f"wrote {n_rows} rows to {path}")
            if n_lost:
                screen.say(
                    f"{name}: {n_lost} of {n_rows} rows took no part, since not every party has "
                    f"them; their cells in {path} are empty"
                )


def whole_of(ids: Any, n_rows: int, name: str = "", counted: Any = None) -> Home:
    """Return the place of rows that all took part."""
    import numpy as np

    from vpem.files.datasets import Home

    return Home(name, ids, np.arange(n_rows), counted)


def of_workers(
    labels: LabelFile,
    X: Any,
    workers: Workers,
    mixtures: Sequence[Mixture],
    holders: Placement,
    missing: str,
) -> Found:
    """Return labels of workers' rows by their models: of each its own, or of one dataset."""
    from vpem.fits.labels import columns_of, responsibilities_of_workers, stacked

    if not labels:
        return {}
    shares = responsibilities_of_workers(X, workers, mixtures, holders, missing)
    by_worker = {worker: columns_of(share) for worker, share in shares.items()}
    return by_worker if labels.parties else stacked(by_worker, workers, holders)


def of_clusters(
    run: CommandRun,
    source: Dataset,
    clustering: Clustering,
    network: Network,
    workers: Workers | None = None,
) -> None:
    """Write clusters of rows; ``workers`` hold different rows, agents features of all rows."""
    from vpem.fits.labels import columns_of_clusters, stacked

    labels, agents = run.labels, network.agents
    if not labels:
        return
    columns = columns_of_clusters(clustering, agents, workers)
    if workers is not None and not labels.parties:
        columns = stacked(columns, workers, agents)
    labels.write(source, columns, agents, run.screen)


def of_individuals(
    labels: LabelFile, fit: SaemFit, devices: Workers, holders: Placement, screen: Screen
) -> None:
    """Write classes of individuals, for each device its own, or for one dataset all."""
    import numpy as np

    from vpem.fits.labels import columns_of, of_each, stacked

    if not labels:
        return
    assert fit.people.probabilities is not None
    table = {"id": np.array(fit.people.names, np.str_), **columns_of(fit.people.probabilities)}
    columns = of_each(table, devices, holders)
    if not labels.parties:
        columns = stacked(columns, devices, holders)
    homes = {}
    for device, device_columns in columns.items():
        ids = device_columns.pop("id")
        name = devices.names[device] if labels.parties else ""
        # Names of individuals of parties begin with the party's.
        ids = np.array([one.removeprefix(f"{name}/") for one in ids.tolist()], np.str_)
        homes[device] = whole_of(ids, len(ids), name)
    labels.write_homes(homes, devices.names, columns, holders, screen)
