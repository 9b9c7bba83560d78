"""What `vpem show` prints of files that are not HDF5: what other commands print, or facts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from .kinds import FactsFile, StoredFile, stored_at

START = 4096
"""Bytes by which kinds are told apart."""

TAKEN = "models and other fits, exports, tables, studies, requests, certificates, policies and logs"

MARKS = (
    (b"\x89png", "a picture"), (b"%pdf", "a picture"), (b"<?xml", "a picture"),
    (b"<svg", "a picture"), (b"<!doctype html", "a page"), (b"<html", "a page"),
)  # fmt: skip
"""What files begin with, in small letters, that have no facts to show."""

TABLES = (b"PAR1", b"ARROW1", b"\x93NUMPY")
NAMED_TABLES = (".csv", ".tsv", ".txt", ".gz", ".bz2", ".xz")
"""Endings of tables as text, packed ones too."""


def shown(file: Path, json: bool) -> None:
    """Print what there is to say of a file, whatever vpem has written it."""
    from .output import Screen, print_json

    with Screen():
        show = _other(file)
        if show is None:
            stored = _stored(file)
            if json:
                print_json(stored.as_json())
            else:
                stored.show()
    if show is not None:
        show(file, json)


def _start(file: Path) -> bytes:
    from vpem.files.opening import check_readable, open_regular

    with open_regular(check_readable(file)) as opened:
        return opened.read(START)


def _other(file: Path) -> Callable[[Path, bool], None] | None:
    """Return what shows a file of studies; None of any other. Keys are refused."""
    from vpem.errors import InputError
    from vpem.files.studies.message_log import BEGINS
    from vpem.files.studies.spent import FILE as LEDGER

    if file.name == LEDGER:
        from .budget import budget

        return lambda path, json: budget(path, json=json)
    start = _start(file)
    if b"PRIVATE KEY-----" in start or file.suffix == ".key":
        raise InputError(f"{file} is a private key, which is shown to nobody")
    if start.startswith(b"-----BEGIN CERTIFICATE"):
        from .party import show

        return show
    if start.startswith(BEGINS):
        from .messages import log

        return lambda path, json: log([path], json=json)
    lines = start.splitlines()
    if b"[request]" in lines:
        from .study import show_request

        return show_request
    if b"[study]" in lines:
        from .study import show as show_study

        return show_study
    return None


def _stored(file: Path) -> StoredFile:
    """Return what has facts or a fit to show; anything else is refused."""
    import h5py

    start = _start(file)
    plain = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if h5py.is_hdf5(str(file)):
        return stored_at(file)
    for mark, what in MARKS:
        if plain.startswith(mark):
            _refuse(file, what)
    if start.startswith(b"PK") and file.suffix == ".npz":
        return ArchiveFile(file)
    if plain.startswith(b"{"):
        return JsonFile(file)
    if file.name == "policy.toml":
        return PolicyFile(file)
    if start.startswith(TABLES) or file.suffix.lower() in NAMED_TABLES:
        from .describe import TableFile

        return TableFile(file)
    _refuse(file, "no file that vpem writes")


def _refuse(file: Path, what: str) -> NoReturn:
    from vpem.errors import FileError

    raise FileError(f"{file} is {what}; vpem show takes {TAKEN}")


class ArchiveFile(FactsFile):
    """Arrays of NumPy, as `vpem model export` writes them."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Which arrays there are, by what each says of itself; none is read."""
        from vpem.files.readers.numpy_files import list_npz

        return {"file": str(self.path), "holds": "arrays of NumPy"} | list_npz(self.path)


class JsonFile(FactsFile):
    """A model as JSON, as `vpem model export` writes it."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What fields there are: short values, and how many are in lists and objects."""
        from vpem.errors import InputError, brief
        from vpem.files.json_text import read_json_file

        found = read_json_file(self.path)
        if not isinstance(found, dict):
            raise InputError(f"{self.path} is no object of JSON")
        sized = {
            name: _extent(value) or (value if isinstance(value, str) else brief(value))
            for name, value in found.items()
        }
        return {"file": str(self.path), "holds": "JSON"} | sized


def _extent(value: Any) -> str | None:
    """Return how long lists are, in each dimension, or how many fields an object has."""
    if isinstance(value, dict):
        return f"{len(value)} fields"
    lengths = []
    while isinstance(value, list):
        lengths.append(str(len(value)))
        # Where lists differ in length, nobody can say more.
        alike = {len(one) if isinstance(one, list) else None for one in value}
        value = value[0] if len(alike) == 1 else None
    return f"list of {' x '.join(lengths)}" if lengths else None


class PolicyFile(FactsFile):
    """What a party allows."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The rules that there are."""
        from vpem.files.studies.policy import read_policy

        rules = vars(read_policy(self.path))
        rules.pop("path")
        said = {
            name: ", ".join(value) if isinstance(value, tuple) else value
            for name, value in rules.items()
            if value is not None and value is not False
        }
        return {"file": str(self.path), "holds": "what this party allows"} | said
