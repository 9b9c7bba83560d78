"""Who the parties are: one file each, or a manifest, as docs/reference/parties.md describes it."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vpem.errors import InputError, did_you_mean
from vpem.files.opening import check_readable
from vpem.files.table_settings import LabelledTable, TableSettings, settings_in
from vpem.files.toml_text import read_toml

ALIASES = {"columns": "features", "ids": "id_column", "labels": "label_column"}
"""Short keys of a manifest, and the settings of tables that they stand for."""

SETTINGS = tuple(LabelledTable.settings_by_name)
KEYS = ("name", "file", *ALIASES, *SETTINGS)


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
    table : TableSettings
        How it is read; of HDF5 only which features are wanted, in this order.
    kept : TableSettings, optional
        Of a model that it is for: how the data of its fit were read.
    folder : str
        From where a relative ``file`` is looked for.
    more : tuple of str
        Other files, whose rows follow those of the first.
    """

    name: str
    file: str
    table: TableSettings = field(default_factory=TableSettings)
    kept: TableSettings | None = None
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
    paths: Sequence[str | os.PathLike[str]],
    table: TableSettings | None = None,
    kept: TableSettings | None = None,
) -> list[Party]:
    """Make parties of what a user names: one file each, or a manifest that ends in ``.toml``.

    Parameters
    ----------
    paths : sequence of path
        The files; the name of a party is that of its file without what follows the last dot (and
        without ``.gz``).
    table : TableSettings, optional
        How their files are read, where a manifest does not say otherwise.
    kept : TableSettings, optional
        Of a model that they are for: how the data of its fit were read.

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
    table = table or TableSettings()
    manifests = [file for file in files if file.suffix.lower() == ".toml"]
    if manifests:
        if len(files) > 1:
            raise InputError(f"{manifests[0]} names all parties; give it without other files")
        return [
            replace(party, table=party.table.with_defaults_of(table), kept=kept)
            for party in read_manifest(manifests[0])
        ]
    parties = [Party(_stem(file), str(file), table, kept) for file in files]
    return _checked(parties, "name them in a manifest")


def read_manifest(path: str | os.PathLike[str]) -> list[Party]:
    """Read who the parties are from TOML, a table ``[[party]]`` each; files are beside it."""
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


def _party(content: dict[str, Any], number: int, folder: Path) -> Party:
    """Make a party of one table of a manifest."""
    if not isinstance(content, dict):
        raise InputError(f"party {number} must be a table [[party]]")
    found: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in content.items():
        plain = key.replace("-", "_")
        if plain not in KEYS:
            raise InputError(f"party {number} has an unknown key {key!r}{did_you_mean(key, KEYS)}")
        name = ALIASES.get(plain, plain)
        if name in found:
            raise InputError(f"party {number} says {name} twice; leave {key!r} out")
        found[name], keys[name] = value, key
    for key in ("name", "file"):
        if key in found and (not isinstance(found[key], str) or not found[key]):
            raise InputError(f"party {number}: {key} must be a string, got {found[key]!r}")
    if "file" not in found:
        raise InputError(f"party {number} has no file; add file = ...")
    file = found.pop("file")
    name = found.pop("name", _stem(Path(file)))
    return Party(name, file, settings_in(found, f"party {number}", keys), folder=str(folder))


def _stem(file: Path) -> str:
    """Name a party by its file."""
    return Path(file.stem).stem if file.suffix.lower() == ".gz" else file.stem


def _checked(parties: list[Party], advice: str) -> list[Party]:
    counts = Counter(party.name for party in parties)
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    if count > 1:
        raise InputError(f"two parties are called {name!r}; {advice}")
    return parties
