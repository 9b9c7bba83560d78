"""Options and choices of commands whose data are in files of several parties."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from vpem.errors import InputError, Setting, brief, did_you_mean, shorten
from vpem.files.table_settings import OF_ONE_FIT, LabelledTable, TableSettings
from vpem.records import Rule, Settings, changed, setting
from vpem.settings import ALIGNMENTS, HoldingSettings, SumSettings

from .choices import settled
from .display import what_is_read
from .engine import place_parties
from .files import READ, STDIN, read_one, refuse_families, tell_families, teller
from .runner import CommandRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from vpem.engines.placement import Placement
    from vpem.files.datasets import Dataset
    from vpem.files.parties.opening import Party
    from vpem.network.schema import Report
    from vpem.settings import WorkerSettings


R = TypeVar("R")


DataFiles = Annotated[
    list[Path],
    READ,
    typer.Argument(
        help="Table (CSV, Parquet, Feather, .npy), HDF5 or .h5ad, or - for standard input; with "
        "--parties a file each, or a manifest."
    ),
]


class PartySettings(Settings, heading="Data"):
    """Whether files are parties', and how their rows are joined."""

    parties: bool = setting(
        False,
        "Each file is a party's (docs/reference/parties.md). One .toml file may name them all. "
        "The parties are the agents; with --split rows the workers.",
    )
    align: str | None = setting(
        None,
        "How parties find the rows that all have: none, ids, hmac, psi. With none it is by "
        "position; hmac compares keyed hashes of ids, psi is private set intersection. Default: by "
        "position, if ids agree or no party has any.",
        choices=ALIGNMENTS,
    )
    align_key: Path | None = setting(
        None, "With --align hmac: file of the key that all parties share.", file="read", local=True
    )
    missing_parties: bool = setting(
        False, "Keep rows that some parties lack, and integrate out missing values (ids and hmac)."
    )


BY_POSITION = "no party has ids, so rows are the same by position: row 0 of each file, and so on"

OF_A_FIT = " ".join((*OF_ONE_FIT, "worker_column"))
"""Settings of tables that are no options where a model is used: the model knows its features."""


class FileSettings(TableSettings, PartySettings, heading="Data"):
    """How files are read, and whether they are parties'."""

    numbers_only: ClassVar[bool] = False
    """Whether features can be Gaussian alone."""

    @property
    def table(self) -> TableSettings:
        """How each is read."""
        return self.into(TableSettings)


class FitFiles(FileSettings, LabelledTable, heading="Data"):
    """Files for a fit, one of which may have labels of some rows."""

    labels_at: str | None = setting(
        None,
        "Agent or party, by name or number, that has the labels for the fit: they are added to its "
        "hub's term. Default: the first; in a manifest the party with labels-for-fit.",
        local=True,
        idle=(
            lambda given: given.get("labels_for_fit") is None,
            (" says who has labels for the fit; add ", Setting("labels_for_fit")),
        ),
    )

    @property
    def table(self) -> LabelledTable:
        return self.into(LabelledTable)


class NumberFiles(FileSettings, heading="Data"):
    """Files for a method that takes features as numbers, whatever these stand for."""

    numbers_only = True


class RowParties(NumberFiles, heading="Data"):
    """Whether files are those of parties that hold rows, which need no alignment."""

    parties: bool = changed(
        PartySettings,
        "parties",
        help="Each file has a worker's rows (docs/reference/parties.md). One .toml file may name "
        "them all.",
    )


IN_ONE_PLACE: Rule = (
    lambda given: not given["parties"] or given.get("engine") == "simulator",
    (
        " hides what parties send, but here one process has all data; add --parties and "
        "--engine mpi, or leave it out",
    ),
)


class DataParties(FileSettings, heading="Data", kept=False):
    """Whether data for a model are parties', which hold features or rows."""

    parties: bool = changed(
        PartySettings,
        "parties",
        help="Each DATA is a party's (docs/reference/parties.md). One .toml file may name them "
        "all. They need not be the parties of the fit: features are found by name.",
    )
    split: str = changed(
        HoldingSettings,
        "split",
        help="With --parties: each has features of all rows (features), or all features of its "
        "rows (rows).",
        idle=(
            lambda given: not given["parties"],
            (" is for data of several parties; add --parties",),
        ),
    )
    secure_sum: bool = changed(
        SumSettings,
        "secure_sum",
        help="Masked sums: no process sees the terms of another party, only totals. For three "
        "parties or more, each a process of its own.",
        idle=IN_ONE_PLACE,
    )


def _shown(function: Callable[..., R]) -> Callable[..., R]:
    @wraps(function)
    def reading(files: Sequence[Path], *others: Any) -> R:
        with others[-1].screen.doing(what_is_read(files)):
            return function(files, *others)

    return reading


@_shown
def gather(
    files: Sequence[Path],
    settings: FileSettings,
    holding: WorkerSettings,
    missing: bool,
    memory_limit: str | None,  # for one dataset
    run: CommandRun,
) -> tuple[Dataset, Report | None]:
    """Read the one dataset, or join those of the parties; with the report of their alignment.

    ``holding`` says who holds what of one dataset: rows, unless its ``split`` says otherwise.
    Joined data have a partition, or workers.
    """
    from vpem.files.data import settle_labels

    over_rows = getattr(holding, "split", "rows") == "rows"
    check_parties(files, settings, over_rows)
    say = run.screen.say
    tell = teller(say, not settings.numbers_only)
    if not settings.parties:
        source = read_one(
            files[0], settings.table, run.where, tell, dataset=holding.dataset,
            sample_weight=holding.sample_weight, memory_limit=run.memory(memory_limit),
        )  # fmt: skip
        run.table = source.table
        source.labels_for_fit = settle_labels(
            source.labels_for_fit, [source], source.ids, settings.table
        )
        source = settled(source, settings.table, holding)
        if settings.numbers_only:
            refuse_families(source.kinds, source.feature_names, source.source)
        tell_families(source, settings.table, say)
        return source, None
    of_one = holding.values("split", "sample_weight") | {"memory_limit": memory_limit}
    for name, value in of_one.items():
        if value not in (None, False):
            raise InputError(Setting(name), " is for one file; with --parties leave it out")
    parties = run.where.parties(files, settings.table)
    if settings.table.labels_for_fit is not None and not run.where.own_users:
        unlabelled = settings.table.changed(labels_for_fit=None)
        at = place_of(getattr(settings, "labels_at", None), [party.name for party in parties])
        others = enumerate(run.where.parties(files, unlabelled))
        parties = [parties[n] if n == at else other for n, other in others]
    holders = place_parties(parties, run.out.output, run.shards, run.where, run.labels)
    weight = holding.sample_weight
    source, alignment = joined(parties, settings, over_rows, missing, weight, holders, say)
    if settings.numbers_only:
        refuse_families(source.kinds, source.feature_names, source.source)
    tell_families(source, settings.table, say)
    run.where.watch(source.n_samples, over_rows, run.screen)
    return source, alignment


def joined(
    parties: Sequence[Party],
    settings: PartySettings,
    over_rows: bool,  # they hold rows, not features
    missing: bool,  # values may be
    weight: str | None,  # column of weights of rows
    holders: Placement | None,  # None: this process has all
    say: Callable[[str], None],  # prints a line
    for_a_model: bool = False,  # which decides on the features
) -> tuple[Dataset, Report | None]:
    """Join the data of parties, and print how their rows were aligned, as the report has it."""
    from vpem.engines.engine import about
    from vpem.files.parties.joining import join_parties, stack_parties

    common: Report = {"keep_empty": missing, "sample_weight": weight, "holders": holders}
    common["tell"] = teller(say)
    with nullcontext() if holders is None else about(holders.engine, "alignment"):
        if over_rows:
            return stack_parties(parties, **common), None
        together, matching = join_parties(
            parties, settings.align, key=settings.align_key,
            keep_missing=settings.missing_parties, keep_constant=for_a_model, **common,
        )  # fmt: skip
    alignment = matching.describe()
    for line in lines_of(alignment):
        say(line)
    if settings.align is None and matching.by_position and len(parties) > 1:
        say(BY_POSITION)
    return together, alignment


def check_parties(files: Sequence[Path], settings: PartySettings, over_rows: bool) -> None:
    """Raise InputError where options about parties exclude each other."""
    for name in ("align", "align_key", "missing_parties"):
        value = getattr(settings, name)
        if value and not settings.parties:
            raise InputError(Setting(name), " is for data of several parties; add --parties")
        if value and over_rows:
            raise InputError(
                Setting(name), " is for parties that hold features of the same rows; with --split "
                "rows leave it out",
            )  # fmt: skip
    if settings.parties and STDIN in map(str, files):
        raise InputError("standard input (-) is one file; with --parties name files")
    if not settings.parties:
        if len(files) > 1:
            raise InputError(
                f"give one dataset, got {len(files)} files; add --parties if each is one party's"
            )
        if files[0].suffix.lower() == ".toml":
            raise InputError(f"{files[0]} is no dataset; add --parties if it names parties")
    if settings.align_key is not None and settings.align != "hmac":
        raise InputError("--align-key is for --align hmac; leave it out, or add that")
    if settings.align == "hmac" and settings.align_key is None:
        raise InputError(
            "--align hmac needs --align-key FILE, with a key that all parties share, such as one "
            "of 'openssl rand -hex 32'"
        )


def lines_of(alignment: Report) -> list[str]:
    """Return the lines of a table of each party's rows: how many it has, and how many are lost."""
    outer = alignment["join"] == "outer"
    heads = ("party", "rows", "absent" if outer else "lost")
    cells = [heads, *((one["name"], str(one["rows"]), str(one[heads[2]]))
                      for one in alignment["parties"])]  # fmt: skip
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        f"{name:<{wide[0]}}  {rows:>{wide[1]}}  {gone:>{wide[2]}}" for name, rows, gone in cells
    ]
    complete = f", {alignment['complete']} of them complete" if outer else ""
    lines.append(f"{alignment['rows']} rows together{complete} (align {alignment['level']})")
    return lines


def place_of(agent: str | None, names: Sequence[str]) -> int:
    """Return the number of the agent that has the labels: the first, unless another is named."""
    from vpem.checks import read_int

    if agent is None:
        return 0
    if agent in names:
        return list(names).index(agent)
    number = read_int(agent)
    if number is not None and 0 <= number < len(names):
        return number
    raise InputError(
        Setting("labels_at"), f" must be an agent, by name or number, got {brief(agent)}"
        f"{did_you_mean(agent, names)}; they are {shorten(names, 10)}",
    )  # fmt: skip
