"""Files of data that commands read, one at a time, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.settings import HoldingSettings

from .roles import READ

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.files.table_settings import TableSettings
    from vpem.settings import WorkerSettings
    from vpem.terms.families.kinds import Kinds

    from .where import Where


STDIN = "-"

DataFile = Annotated[
    Path,
    READ,
    typer.Argument(
        help="Table (CSV, Parquet, Feather, .npy), HDF5 or .h5ad, or - for standard input."
    ),
]

MOST_LISTED = 10
"""Columns that are left out, of which a line has the names."""


def read_one(
    path: Path,
    table: TableSettings,  # as the user says
    where: Where,
    tell: Callable[..., None] | None,
    *,
    kept: TableSettings | None = None,  # of a model's data
    **how: Any,
) -> Dataset:
    """Read the dataset of a command, and say by `teller`, if any, what of a table is left out.

    Where there are several processes, each reads it, and values of HDF5 stay on disk. ``how`` is as
    `vpem.files.data.read_data` takes it.
    """
    from vpem.files.data import read_data

    refuse_shared_stdin(path, where)
    how = {"on_disk": where.engine.apart, **how}
    found = read_data(path, table, kept=kept, **how)
    if tell is not None:
        tell(found, table, kept)
    return found


def refuse_shared_stdin(path: Path, where: Where) -> None:
    """Raise InputError where standard input is to be read by several processes."""
    from vpem.errors import InputError

    if str(path) == STDIN and where.engine.apart:
        raise InputError(
            "standard input (-) is for one process, but here each reads the data; name a file"
        )


def teller(say: Callable[[str], None], families: bool = False) -> Callable[..., None]:
    """Return what says of a table from which column ids are taken, and which are left out.

    With ``families`` it says how text becomes features, where some is left out.
    """

    def tell(found: Dataset, table: TableSettings, kept: TableSettings | None = None) -> None:
        from vpem.errors import shorten
        from vpem.files.readers.frames import GUESSED

        if found.table is None:
            return
        ids = found.table.id_column
        warned = [name for name, why in found.left_out.items() if why in GUESSED]
        if ids is not None and ids not in (table.id_column, kept and kept.id_column, *warned):
            say(f"{found.source}: ids of rows are taken from {ids!r}; --id-column names another")
        if len(warned) < len(found.left_out):
            others = {name: why for name, why in found.left_out.items() if name not in warned}
            listed = (f"{name} ({why})" for name, why in others.items())
            texts = [name for name, why in found.left_out.items() if why == "text"]
            how = ""
            if families and texts and table.family is None:
                one = quote(f"{texts[0]}=categorical")
                how = f"; --family auto, or --family {one}, takes text as categories"
            say(f"{found.source}: left out: {shorten(listed, MOST_LISTED)}{how}")

    return tell


def settled(source: Dataset, table: TableSettings, held: WorkerSettings) -> Dataset:
    """Return a dataset whose features have the families that the user says, or values show."""
    from vpem.files.families import Asked, settle

    from .choices import partition_of

    asked = Asked.of(table.family)
    if asked is None:
        return source
    if isinstance(held, HoldingSettings) and held.split == "features":
        return settle(source, asked, partition_of(source, held, True))
    return settle(source, asked)


def tell_families(found: Dataset, table: TableSettings, say: Callable[[str], None]) -> None:
    """Say in a line which features are taken as what, where some may be no Gaussian numbers."""
    from vpem.errors import shorten

    if found.kinds is None:
        if table.family is not None:
            say(f"{found.source}: all features are taken as gaussian (--family NAME=FAMILY says "
                "otherwise)")  # fmt: skip
        return
    taken = []
    for family in found.kinds.present:
        names = [found.feature_names[j] for j in found.kinds.columns_of(family)]
        if family == "categorical":
            counts = (found.kinds.n_levels[j] for j in found.kinds.columns_of(family))
            names = [f"{name} ({n} levels)" for name, n in zip(names, counts, strict=True)]
        taken.append(f"{family}: {shorten(names, MOST_LISTED)}")
    say(f"{found.source}: taken as {'; '.join(taken)} (--family NAME=FAMILY says otherwise)")


def refuse_families(kinds: Kinds | None, names: Sequence[str], source: str) -> None:
    """Raise InputError where a feature is no Gaussian number, for a method of distances."""
    from vpem.errors import InputError, Setting

    if kinds is None:
        return
    for name, family in zip(names, kinds.families, strict=True):
        if family != "gaussian":
            raise InputError(
                f"{source}: feature {name!r} is kept as {family}, which 'vpem fit' takes; "
                "here distances and means of features are computed, which are of numbers; leave "
                "it out with ", Setting("drop", name),
            )  # fmt: skip


def kept_of(stored: Any) -> TableSettings:
    """Return how the data of a fit were read, of what its file says of its options and families."""
    from vpem.files.families import asked_by
    from vpem.files.table_settings import TableSettings, settings_in

    options = stored.options
    names = [name for name in TableSettings.settings_by_name if name != "family"]
    told = {name: options[name] for name in names if options.get(name) is not None}
    kinds = getattr(getattr(stored, "mixture", None), "kinds", None)
    family = asked_by(kinds, stored.feature_names)
    return settings_in(told, "options of the model").changed(family=family)
