"""Files of commands: no result replaces an input or another result; reading of datasets.

Every option or argument that names a file has its role in the annotation: `READ`, `WRITTEN`, or a
`Role` of its own. Before a command runs, `begin` compares the files of all of them; files known
later (of a manifest, or shards) are added by `reads` and `writes`, which compare them with all
before.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from vpem.errors import FileError, InputError, Setting, shorten

from .config import FILE, name_of

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.files.table_settings import TableSettings
    from vpem.terms.families.kinds import Kinds

    from .session import Where


def _named(value: Any, options: Mapping[str, Any]) -> Iterable[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


@dataclass(frozen=True)
class Role:
    """What a command does with the file that an option names.

    ``files`` returns the files of the option's value, given that, or None, and the values of all
    options by name; by default the value names them.
    """

    writes: bool  # it may be read before, too
    files: Callable[[Any, Mapping[str, Any]], Iterable[Any]] = _named
    goes_on_in: str = ""  # option that may name the same file


READ = Role(writes=False)
WRITTEN = Role(writes=True)
FOLDER = Role(writes=False, files=lambda value, options: ())
"""A folder; its files are added by `reads` and `writes`."""


@dataclass(frozen=True)
class _Use:
    option: str
    path: str
    writes: bool
    goes_on_in: str = ""


MOVING = "--checkpoint"
"""Its files replace each other, in other processes too, while they are compared."""

_uses: dict[tuple[Any, ...], list[_Use]] = {}
"""Uses of files by the command that runs, by `_identity`."""


def roles_of(function: Any) -> dict[str, Role]:
    """Return the roles of a command's options, by the names of its function's parameters."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: extra
        for name, hint in hints.items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, Role)
    }


def begin(context: Any, roles: Mapping[str, Role]) -> None:
    """Compare the files of all options of a command.

    FileError if one to be written is read or written under another name, however spelled.
    """
    _uses.clear()
    for name, role in roles.items():
        if role is READ and context.params.get(name) is not None:
            context.params[name] = _found(context.params[name])
    values = {**context.params, "config": context.meta.get(FILE)}
    for param in context.command.params:
        if param.name in roles:
            role = roles[param.name]
            for path in role.files(values.get(param.name), values):
                _add(_Use(name_of(param), os.fspath(path), role.writes, role.goes_on_in))


def _found(value: Any) -> Any:
    """Return a file, or several; one like data/wine.h5 may be that of the package."""
    if isinstance(value, list | tuple):
        return type(value)(map(_found, value))
    folder, name = os.path.split(os.fspath(value))
    if folder != "data" or os.path.lexists(value):
        return value
    from vpem.files.examples import EXAMPLES, folder_of_examples

    shipped = any(example.file == name for example in EXAMPLES.values())
    return type(value)(folder_of_examples() / name) if shipped else value


def reads(option: str, *paths: str | os.PathLike[str]) -> None:
    """Note files that the command will read, which must be none that it writes."""
    for path in paths:
        _add(_Use(option, os.fspath(path), writes=False))


def writes(option: str, *paths: str | os.PathLike[str]) -> None:
    """Note files that the command will write, which must be none that it reads or writes."""
    for path in paths:
        _add(_Use(option, os.fspath(path), writes=True))


def written() -> list[tuple[str, str]]:
    """Return the files that the command will write, with their options."""
    uses = chain.from_iterable(_uses.values())
    return [(use.option, os.path.realpath(use.path)) for use in uses if use.writes]


def _add(use: _Use) -> None:
    """Note a use of a file, or raise FileError if it conflicts with another."""
    same = _uses.setdefault(_identity(use.path), [])
    for other in same:
        one, two = (use, other) if use.writes else (other, use)
        if not one.writes or two.goes_on_in == one.option:
            continue
        # Two processes may report the same use, and files of checkpoints replace each other.
        if one.option == two.option and (
            one.option == MOVING or os.path.realpath(one.path) == os.path.realpath(two.path)
        ):
            continue
        if two.writes:
            raise FileError(
                f"{two.option} {two.path} and {one.option} {one.path} are one file; give two names"
            )
        raise FileError(
            f"{one.option} {one.path} is the input {two.path} ({two.option}) itself; write to "
            "another name"
        )
    same.append(use)


def _identity(path: str) -> tuple[Any, ...]:
    """Return what all names of a file share, whether it exists already or not."""
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino
    except (OSError, ValueError):
        pass
    try:
        folder, name = os.path.split(os.path.realpath(path))
        home = os.stat(folder)
    except (OSError, ValueError):  # it cannot be written, which is reported later
        return (path,)
    if _ignores_case(folder):
        name = unicodedata.normalize("NFC", name).casefold()
    return home.st_dev, home.st_ino, name


def _ignores_case(folder: str) -> bool:
    try:
        return folder.swapcase() != folder and os.path.samefile(folder, folder.swapcase())
    except OSError:
        return False


STDIN = "-"

DataFile = Annotated[
    Path,
    READ,
    typer.Argument(
        help="Table (CSV, Parquet, Feather, .npy), HDF5 or .h5ad, or - for standard input."
    ),
]

MOST_LISTED = 10
"""Columns that a line names."""


def read_one(
    path: Path,
    table: TableSettings,  # as the user says
    where: Where,
    tell: Callable[..., None] | None,
    *,
    model_table: TableSettings | None = None,  # of a model's data
    **options: Any,
) -> Dataset:
    """Read the dataset of a command; ``tell`` (`teller`) prints what of a table is left out.

    Several processes all read it, and values of HDF5 stay on disk. ``options`` are arguments of
    `vpem.files.data.read_data`.
    """
    from vpem.files.data import read_data

    refuse_shared_stdin(path, where)
    options = {"on_disk": where.engine.apart, **options}
    dataset = read_data(path, table, kept=model_table, **options)
    if tell is not None:
        tell(dataset, table, model_table)
    return dataset


def refuse_shared_stdin(path: Path, where: Where) -> None:
    """Raise InputError where standard input is to be read by several processes."""
    if str(path) == STDIN and where.engine.apart:
        raise InputError(
            "standard input (-) is for one process, but several read the data; name a file"
        )


def teller(say: Callable[[str], None], families: bool = False) -> Callable[..., None]:
    """Return a function that prints what of a table holds the ids, and what is left out.

    With ``families`` it adds how columns of text become features.
    """

    def tell(
        dataset: Dataset, table: TableSettings, model_table: TableSettings | None = None
    ) -> None:
        from vpem.files.readers.frames import GUESSED

        if dataset.table is None:
            return
        ids = dataset.table.id_column
        warned = [name for name, why in dataset.left_out.items() if why in GUESSED]
        if ids is not None and ids not in (
            table.id_column,
            model_table and model_table.id_column,
            *warned,
        ):
            say(f"{dataset.source}: ids of rows are taken from {ids!r}; --id-column names another")
        if len(warned) < len(dataset.left_out):
            others = {name: why for name, why in dataset.left_out.items() if name not in warned}
            listed = (f"{name} ({why})" for name, why in others.items())
            texts = [name for name, why in dataset.left_out.items() if why == "text"]
            advice = ""
            if families and texts and table.family is None:
                one = quote(f"{texts[0]}=categorical")
                advice = f"; --family auto, or --family {one}, takes text as categories"
            say(f"{dataset.source}: left out: {shorten(listed, MOST_LISTED)}{advice}")

    return tell


def tell_families(dataset: Dataset, table: TableSettings, say: Callable[[str], None]) -> None:
    """Print the families of features, if some may not be Gaussian."""
    if dataset.kinds is None:
        if table.family is not None:
            say(f"{dataset.source}: all features are taken as gaussian (--family NAME=FAMILY says "
                "otherwise)")  # fmt: skip
        return
    taken = []
    for family in dataset.kinds.present:
        names = [dataset.feature_names[j] for j in dataset.kinds.columns_of(family)]
        if family == "categorical":
            counts = (dataset.kinds.n_levels[j] for j in dataset.kinds.columns_of(family))
            names = [f"{name} ({n} levels)" for name, n in zip(names, counts, strict=True)]
        taken.append(f"{family}: {shorten(names, MOST_LISTED)}")
    say(f"{dataset.source}: taken as {'; '.join(taken)} (--family NAME=FAMILY says otherwise)")


def refuse_families(kinds: Kinds | None, names: Sequence[str], source: str) -> None:
    """Raise InputError where a feature is not Gaussian, for a method of distances."""
    if kinds is None:
        return
    for name, family in zip(names, kinds.families, strict=True):
        if family != "gaussian":
            raise InputError(
                f"{source}: feature {name!r} is kept as {family}, which 'vpem fit' takes, "
                "but distances and means are those of numbers; leave it out with ",
                Setting("drop", name),
            )  # fmt: skip


def kept_of(stored: Any) -> TableSettings:
    """Return how the data of a fit were read, by its options and its families of features."""
    from vpem.files.families import words_for_model
    from vpem.files.table_settings import TableSettings, settings_in

    options = stored.options
    names = [name for name in TableSettings.settings_by_name if name != "family"]
    known = {name: options[name] for name in names if options.get(name) is not None}
    kinds = getattr(getattr(stored, "mixture", None), "kinds", None)
    family = words_for_model(kinds, stored.feature_names)
    return settings_in(known, "options of the model").changed(family=family)
