"""Who the parties are: one file each, or a manifest, whose format docs/parties.md describes."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpem.errors import InputError, Setting, did_you_mean
from vpem.files.opening import check_readable
from vpem.files.toml_text import read_toml

__all__ = ["Party", "choose_parties", "read_manifest"]

KEYS = ("name", "file", "columns", "ids", "labels")


@dataclass(frozen=True)
class Party:
    """Somebody who brings data of their own.

    Attributes
    ----------
    name : str
        What messages and the partition call the party.
    file : str
        Its file, or a pattern (``*``, ``?``, ``[...]``, ``**``) of several, whose rows follow one
        another in the order of their names. It is looked for only where the party is held.
    columns : tuple of str, optional
        The features wanted, in this order; by default all.
    ids, labels : str, optional
        Of CSV and Parquet: the columns that hold ids and labels.
    folder : str
        From where a relative ``file`` is looked for.
    more : tuple of str
        Other files, whose rows follow those of the first.
    """

    name: str
    file: str
    columns: tuple[str, ...] | None = None
    ids: str | None = None
    labels: str | None = None
    folder: str = ""
    more: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file, or the pattern."""
        return Path(self.folder, self.file)

    def find(self) -> list[Path]:
        """Return the files that a pattern stands for, in order; or the one file, there or not."""
        others = [Path(self.folder, file) for file in self.more]
        if not glob.has_magic(self.file) or self.path.exists():
            return [self.path, *others]
        found = glob.glob(self.file, root_dir=self.folder or None, recursive=True)
        return [*(Path(self.folder, file) for file in sorted(found)), *others]


def choose_parties(
    paths: Sequence[str | os.PathLike[str]], id_column: str | None = None
) -> list[Party]:
    """Make parties of what a user names: one file each, or a manifest that ends in ``.toml``.

    Parameters
    ----------
    paths : sequence of path
        The files; the name of a party is that of its file without what follows the last dot (and
        without ``.gz``).
    id_column : str, optional
        Of tables without a manifest, which says so itself: the column that holds ids.

    Returns
    -------
    list of Party

    Raises
    ------
    FileError
        If a manifest cannot be read.
    InputError
        If two parties have one name, or a manifest stands among other files.
    """
    files = [Path(path) for path in paths]
    manifests = [file for file in files if file.suffix.lower() == ".toml"]
    if manifests:
        if len(files) > 1:
            raise InputError(f"{manifests[0]} names all parties; give it without other files")
        if id_column is not None:
            raise InputError(
                Setting("id_column"), f" is for files without a manifest; say ids = {id_column!r} "
                f"in {manifests[0]}",
            )  # fmt: skip
        return read_manifest(manifests[0])
    parties = [Party(_stem(file), str(file), ids=id_column) for file in files]
    return _checked(parties, "name them in a manifest")


def read_manifest(path: str | os.PathLike[str]) -> list[Party]:
    """Read who the parties are from TOML: a table ``[[party]]`` each.

    Parameters
    ----------
    path : path
        The manifest; files are looked for from its folder.

    Returns
    -------
    list of Party

    Raises
    ------
    FileError
        If it cannot be read or is not TOML.
    InputError
        If it does not say what it must, or says what nobody asks.
    """
    source = check_readable(path)
    content = read_toml(source)
    for key in content:
        if key != "party":
            raise InputError(f"{path}: unknown key {key!r}{did_you_mean(key, ['party'])}")
    tables = content.get("party")
    if not isinstance(tables, list) or not tables:
        raise InputError(f"{path} names no party; add a table [[party]] with file = ... for each")
    try:
        parties = [_party(table, number, source.parent) for number, table in enumerate(tables)]
        return _checked(parties, "names must differ")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _party(table: Any, number: int, folder: Path) -> Party:
    """Make a party of one table of a manifest."""
    if not isinstance(table, dict):
        raise InputError(f"party {number} must be a table [[party]]")
    for key in table:
        if key not in KEYS:
            raise InputError(f"party {number} has an unknown key {key!r}{did_you_mean(key, KEYS)}")
    for key in ("name", "file", "ids", "labels"):
        if key in table and (not isinstance(table[key], str) or not table[key]):
            raise InputError(f"party {number}: {key} must be a string, got {table[key]!r}")
    if "file" not in table:
        raise InputError(f"party {number} has no file; add file = ...")
    columns = table.get("columns")
    if columns is not None and (
        not isinstance(columns, list)
        or not columns
        or not all(isinstance(column, str) for column in columns)
    ):
        raise InputError(f"party {number}: columns must be a list of names, got {columns!r}")
    file = table["file"]
    return Party(
        table.get("name", _stem(Path(file))),
        file,
        None if columns is None else tuple(columns),
        table.get("ids"),
        table.get("labels"),
        str(folder),
    )


def _stem(file: Path) -> str:
    """Name a party by its file."""
    return Path(file.stem).stem if file.suffix.lower() == ".gz" else file.stem


def _checked(parties: list[Party], advice: str) -> list[Party]:
    counts = Counter(party.name for party in parties)
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    if count > 1:
        raise InputError(f"two parties are called {name!r}; {advice}")
    return parties
