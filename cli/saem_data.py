"""Whom `vpem saem` fits: individuals of a file, or of files of parties, and who holds which."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError, Setting
from vpem.files.table_settings import TableSettings
from vpem.records import changed, setting

from .parties import PartySettings
from .roles import READ
from .saem_choices import words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vpem.engines.engine import Engine
    from vpem.files.parties.manifest import Party
    from vpem.network.holdings import Workers
    from vpem.saem.individuals import Individuals
    from vpem.sums.connect import Network

    from .driver import Run

__all__ = [
    "DeviceFiles",
    "HeldIndividuals",
    "Source",
    "individuals_of",
    "read_source",
    "rows_of_names",
]

DeviceFiles = Annotated[
    list[Path],
    READ,
    typer.Argument(
        help="Individuals: CSV with a line a measurement and names of the columns in its first "
        "line, or HDF5 of individuals; with --parties a file each, or a manifest."
    ),
]


class HeldIndividuals(PartySettings, heading="Individuals", kept=False):
    """Which columns are what, and who holds which individuals."""

    parties: bool = changed(
        PartySettings,
        "parties",
        help="Each file has the individuals of one device, or one .toml file names them all "
        "(docs/parties.md). NAME of a party P is then called P/NAME.",
        heading="Individuals",
    )
    id: str | None = setting(None, "Column of a CSV with the individual. Default: id.", local=True)
    time: str | None = setting(None, "Column with the time. Default: time.", local=True)
    value: str | None = setting(None, "Column with the measurement. Default: value.", local=True)
    covariates: str | None = setting(
        None, "Other columns to read, with commas between; dose=amt reads the column amt as the "
        "dose. Default: those that the model needs.", local=True,
    )  # fmt: skip
    sample_weight: str | None = setting(
        None, "Column with how many copies of the individual count, above 0. Default: one."
    )
    devices: int | None = setting(
        None, "Split the individuals into this many runs, nearly equal. Default: 1.",
        heading="Network", least=1,
    )  # fmt: skip
    device_individuals: Path | None = setting(
        None, 'Individuals of each device, JSON: {"name": ["individual", ...], ...}.',
        heading="Network", file="read",
    )  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Individuals in this process, and who holds which of all.

    Attributes
    ----------
    individuals : Individuals
        All of a file, or those of this process's parties, party by party.
    held : Workers
        Who holds which, of all.
    numbers : ndarray of shape (n,)
        Which of all the individuals are.
    engine : Engine
        The processes.
    """

    individuals: Individuals
    held: Workers
    numbers: Any
    engine: Engine

    def of(self, network: Network) -> Individuals:
        """Return the individuals of this process's devices alone."""
        import numpy as np

        if not self.engine.apart or len(self.numbers) < self.held.n_samples:
            return self.individuals
        rows = [self.held.rows[device] for device in network.total.holders.own]
        return self.individuals.take(np.concatenate([np.empty(0, np.intp), *rows]))


def read_source(
    files: Sequence[Path],
    asked: HeldIndividuals,
    needed: Sequence[str],
    missing: bool,
    run: Run,
) -> Source:
    """Read the individuals of a file, or of files of parties.

    Parameters
    ----------
    files : sequence of path
        What the user named.
    asked : HeldIndividuals
        Whether they are parties', which columns are what, who holds which of one file.
    needed : sequence of str
        Covariates of the model.
    missing : bool
        Whether values may be missing.
    run : Run
        Where the command runs.
    """
    import numpy as np

    columns = {name: getattr(asked, name) for name in ("id", "time", "value")}
    one = (columns, asked.covariates, needed, missing, asked.sample_weight)
    if asked.parties:
        for name in ("devices", "device_individuals"):
            if getattr(asked, name) is not None:
                raise InputError(Setting(name), " is for one file; with --parties leave it out")
        return _of_parties(run.where.parties(files, TableSettings(), columns=False), one, run)
    if len(files) > 1:
        raise InputError(
            f"one file of individuals is read at a time, got {len(files)}; add --parties if each "
            "is one party's"
        )
    found = _weighed(files[0], *one)
    return Source(found, _devices_of(found, asked), np.arange(found.n_individuals), run.engine)


def _weighed(
    file: Path,
    columns: Mapping[str, str | None],
    covariates: str | None,
    needed: Sequence[str],
    missing: bool,
    weight: str | None,
) -> Individuals:
    """Read individuals, and what each counts."""
    from dataclasses import replace

    wanted = [*needed, *([] if weight is None else [weight])]
    found = individuals_of(file, columns, covariates, wanted, None, missing)
    if weight is None:
        return found
    weights = found.constant(weight)
    if (weights <= 0).any():
        who = int(weights.argmin())
        raise InputError(
            f"{file}: the weight of individual {found.names[who]!r} must be above 0, got "
            f"{weights[who]:g}; leave out individuals that count nothing"
        )
    return replace(found, weights=weights)


def _of_parties(parties: Sequence[Party], one: tuple[Any, ...], run: Run) -> Source:
    """Read the individuals of this process's parties, which no other process reads."""
    from dataclasses import replace

    import numpy as np

    from vpem.engines.each import for_each
    from vpem.network.holdings import Workers
    from vpem.saem.formats.individuals import chain
    from vpem.saem.individuals import Individuals

    from .engine import place_parties

    holders = place_parties(parties, run.out.output, False, run.where, run.labels)
    if run.engine.size > len(parties) and not run.where.own_users:
        raise InputError(
            f"there are {run.engine.size} processes, but {len(parties)} parties: every process "
            "needs one; take fewer processes"
        )
    read = for_each(holders, range(len(parties)), lambda number: _of_party(parties[number], one))
    said = holders.allgather(
        {party: (own.n_individuals, list(own.covariates)) for party, own in read.items()}
    )
    ends = np.cumsum([0, *(said[party][0] for party in range(len(parties)))])
    # What all processes look at alike, a server without data too, all have.
    kept = [name for name in said[0][1] if all(name in names for _, names in said.values())]
    rows = tuple(np.arange(a, b) for a, b in pairwise(ends))
    numbers = np.concatenate([np.empty(0, np.intp), *(rows[party] for party in holders.own)])
    held = Workers(rows, tuple(party.name for party in parties))
    run.where.watch(held.n_samples, True, run.screen)
    if not read:  # a server that brings no data
        nothing = np.empty(0)
        weights = None if one[-1] is None else nothing
        found = Individuals((), np.zeros(1, np.intp), nothing, nothing, weights=weights)
    else:
        found = chain([read[party] for party in holders.own])
    some = found.covariates
    found = replace(found, covariates={name: some.get(name, np.empty(0)) for name in kept})
    return Source(found, held, numbers, run.engine)


def _of_party(party: Party, one: tuple[Any, ...]) -> Individuals:
    """Read the individuals of one party, whose names then begin with its own."""
    from dataclasses import replace

    from vpem.saem.formats.individuals import chain

    columns, *others = one
    usual = TableSettings()
    for name, value in party.table.values("id_column").items():
        if value != getattr(usual, name):
            raise InputError(
                f"party {party.name!r}: {name} is for tables of features, but these are "
                "measurements of individuals; leave it out"
            )
    if party.table.id_column is not None:
        columns = {**columns, "id": party.table.id_column}
    parts = [_weighed(file, columns, *others) for file in party.find()]
    found = chain(parts)
    return replace(found, names=tuple(f"{party.name}/{name}" for name in found.names))


def individuals_of(
    data: Path,
    columns: Mapping[str, str | None],
    covariates: str | None,
    needed: Sequence[str],
    fitted: Mapping[str, Any] | None = None,
    missing: bool = False,
) -> Individuals:
    """Read the data.

    Parameters
    ----------
    data : Path
        CSV or HDF5.
    columns : mapping
        Names of the columns id, time and value; None where none was given.
    covariates : str or None
        As the user typed them: ``dose=amt,weight``.
    needed : sequence of str
        Covariates of the model, read in any case.
    fitted : mapping, optional
        `Individuals.columns` of those that a model was fitted to, for what was not given.
    missing : bool
        Whether values may be missing.
    """
    from dataclasses import replace

    from vpem.errors import MissingColumnError
    from vpem.files.long_csv import is_long_csv
    from vpem.saem.formats.individuals import read_individuals

    given = {name: column for name, column in columns.items() if column is not None}
    is_table = is_long_csv(data)
    if given and not is_table:
        raise InputError(
            f"{', '.join(f'--{name}' for name in given)} name columns of a CSV table, and {data} "
            "is none"
        )
    known, known_covariates = _remembered(fitted or {})
    three = {name: given.get(name, known.get(name, name)) for name in columns}
    if len(set(three.values())) < len(three):
        raise InputError("--id, --time and --value must be three different columns")
    typed = _covariates_of(covariates)
    column_of = {**{name: known_covariates.get(name, name) for name in needed}, **typed}
    try:
        found = read_individuals(
            data, covariates=list(column_of.values()), missing=missing,
            **(three if is_table else {}),
        )  # fmt: skip
    except MissingColumnError as error:
        left = {
            name: column
            for name, column in {**three, **column_of}.items()
            if column in error.columns and name not in (*given, *typed)
        }
        if not left:
            raise
        raise InputError(f"{error}{_advice(left, three, bool(fitted))}") from None
    named = {name: found.covariates[column] for name, column in column_of.items()}
    others = {name: column for name, column in column_of.items() if name != column}
    kept = {**found.columns, **({"covariates": others} if others else {})}
    return replace(found, covariates=named, columns=kept)


def _advice(left: Collection[str], three: Collection[str], fitted: bool) -> str:
    """Say which options name columns that a table calls otherwise."""
    flags = [f"--{name} COLUMN" for name in left if name in three]
    others = [f"{name}=COLUMN" for name in left if name not in three]
    told = [f"--{name}" if name in three else repr(name) for name in left]
    of_fit = f"; that is {' and '.join(told)} of the fit" if fitted else ""
    typed = " ".join([*flags, *([f"--covariates {','.join(others)}"] if others else [])])
    several = "the names that they have" if len(left) > 1 else "the name that it has"
    return f"{of_fit}; give {several} here: {typed}"


def _remembered(fitted: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Columns, and those of covariates, that a fit was made of; a file may hold anything there."""

    def words(held: Any) -> dict[str, str]:
        held = held if isinstance(held, dict) else {}
        return {name: column for name, column in held.items() if isinstance(column, str) and column}

    return words(dict(fitted)), words(fitted.get("covariates"))


def _covariates_of(text: str | None) -> dict[str, str]:
    """Columns of covariates by their names, as the user typed them: ``dose=amt,weight``."""
    found: dict[str, str] = {}
    for word in [] if text is None else words_of(text):
        name, _, column = word.partition("=")
        if not name or name in found:
            raise InputError(
                "--covariates must be different names with commas between, such as "
                f"dose=amt,weight, got {text!r}"
            )
        found[name] = column or name
    return found


def _devices_of(found: Individuals, given: HeldIndividuals) -> Workers:
    """Choose who holds which individuals."""
    from vpem.network.holdings import evenly
    from vpem.saem.formats.devices import read_devices

    if given.devices is not None and given.device_individuals is not None:
        raise InputError("give --devices or --device-individuals, not both")
    if given.device_individuals is not None:
        return read_devices(given.device_individuals, found.names)
    number = given.devices or 1
    if number > found.n_individuals:
        raise InputError(
            f"--devices must be at most the {found.n_individuals} individuals of {found.source}, "
            f"got {number}"
        )
    return evenly(found.n_individuals, number, [f"device {place}" for place in range(number)])


def rows_of_names(found: Source, text: str) -> list[int]:
    """Return the numbers of individuals whose names were typed with commas between."""
    import numpy as np

    from vpem.errors import did_you_mean

    names = found.individuals.names
    place = dict(zip(names, found.numbers.tolist(), strict=True))
    words = words_of(text)
    rows = found.engine.allreduce(np.array([place.get(word, -1) for word in words]), "max")
    for word, row in zip(words, rows, strict=True):
        if row < 0:
            raise InputError(
                f"--init-individuals: {found.individuals.source} has no individual {word!r}"
                f"{did_you_mean(word, place)}"
            )
    return [int(row) for row in rows]
