"""Tables of TOML that anybody may have written, read field by field: names, addresses, times."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from vpem.checks import read_int
from vpem.errors import InputError, brief, did_you_mean
from vpem.network.schema import Report

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,38}[A-Za-z0-9])?")
LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
LONGEST_HOST = 253
LONGEST = 200
"""Characters of a text that is no list, certificate or sentence."""


def check_name(name: str, what: str = "a name") -> str:
    """Return a name that may be that of a file and of a certificate, or raise InputError.

    It has at most 40 characters: letters, digits, - and _. ``what`` is for the sentence.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"{what} must be 1 to 40 letters, digits, - or _, with a letter or digit at both "
            f"ends, got {brief(name)}"
        )
    return name


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of ``hub.org:443``, ``192.0.2.7:443`` or ``[2001:db8::7]:443``."""
    host, colon, port = text.rpartition(":")
    number = read_int(port) or 0
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (
        colon and 0 < number < 1 << 16 and (_is_host(host) or (_is_six(bare) and bare != host))
    ):
        raise InputError(
            f"an address must be a host and a port from 1 to 65535, such as hub.org:443, got "
            f"{brief(text)}"
        )
    return bare, number


def _is_host(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    return len(text) <= LONGEST_HOST and all(LABEL.fullmatch(label) for label in labels)


def _is_six(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def moment(time: datetime) -> str:
    """Write a time in UTC, to the second, as files of studies have it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Fields:
    """A table whose fields are taken one by one; what is left in the end is refused.

    ``where`` is file and table, with which sentences begin.
    """

    def __init__(self, table: Any, where: str) -> None:
        if not isinstance(table, dict):
            raise InputError(f"{where} must be a table, got {brief(table)}")
        self.where = where
        self._left: Report = dict(table)
        self._known: list[str] = []

    def take(self, name: str, kind: type[T], words: str, default: T | None = None) -> T:
        """Return a field of a type, or the default where there is none."""
        self._known.append(name)
        value = self._left.pop(name, default)
        if value is None:
            raise InputError(f"{self.where} has no {name}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{self.where}: {name} must be {words}, got {brief(value)}")
        return value

    def text(self, name: str, default: str | None = None, most: int = LONGEST) -> str:
        """Return a text of printable characters and newlines."""
        text = self.take(name, str, "a text", default)
        if len(text) > most:
            raise InputError(f"{self.where}: {name} has more than {most} characters")
        if not text.replace("\n", "").isprintable():
            raise InputError(f"{self.where}: {name} has characters that cannot be printed")
        return text

    def texts(self, name: str, most: int, longest: int = LONGEST) -> tuple[str, ...]:
        """Return a list of printable texts, without one that is not there."""
        found = self.take(name, list, "a list of texts", [])
        if len(found) > most:
            raise InputError(f"{self.where}: {name} has {len(found)} entries, more than {most}")
        for text in found:
            if not isinstance(text, str) or not text.isprintable() or len(text) > longest:
                raise InputError(
                    f"{self.where}: {name} must be texts of at most {longest} printable "
                    f"characters, got {brief(text)}"
                )
        return tuple(found)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self.take(name, bool, "true or false", default)

    def count(self, name: str, least: int = 1, most: int = 10**9) -> int:
        """Return an integer in bounds."""
        words = f"an integer from {least} to {most}"
        value = self.take(name, int, words)
        if not least <= value <= most:
            raise InputError(f"{self.where}: {name} must be {words}, got {brief(value)}")
        return value

    def seconds(self, name: str) -> float:
        """Return a positive time in seconds, at most a year."""
        words = "a number of seconds above 0"
        value = self.take(name, int | float, words)  # type: ignore[arg-type]
        if not 0 < value <= 366 * 86400:
            raise InputError(f"{self.where}: {name} must be {words}, got {brief(value)}")
        return float(value)

    def time(self, name: str) -> str:
        """Return a time in UTC as `moment` writes it."""
        return self.read(name, _checked_time)

    def hexadecimal(self, name: str, digits: int, default: str | None = None) -> str:
        """Return so many hexadecimal digits, or the default."""
        text = self.text(name, default)
        if text != default and not re.fullmatch(f"[0-9a-f]{{{digits}}}", text):
            raise InputError(
                f"{self.where}: {name} must be {digits} hexadecimal digits, got {brief(text)}"
            )
        return text

    def read(self, name: str, reader: Callable[[str], T]) -> T:
        """Return what a function makes of a text; its errors say where the text stands."""
        text = self.text(name)
        try:
            return reader(text)
        except InputError as error:
            raise InputError(f"{self.where}: {name}: {error}") from None

    def read_if_any(self, name: str, reader: Callable[[str], T]) -> T | None:
        """Return what a function makes of a text, or None where there is none."""
        self._known.append(name)
        return self.read(name, reader) if name in self._left else None

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return one of some words, or the default where there is none."""
        words = list(choices)
        text = self.text(name, default)
        if text not in words:
            raise InputError(
                f"{self.where}: {name} must be one of {', '.join(words)}, got {brief(text)}"
                f"{did_you_mean(text, words)}"
            )
        return text

    def rest(self) -> Report:
        """Return and take all that is left."""
        left, self._left = self._left, {}
        return left

    def end(self) -> None:
        """Raise InputError where something is left that nobody asks for."""
        for name in self._left:
            hint = did_you_mean(name, self._known)
            raise InputError(f"{self.where} has an unknown key {brief(name)}{hint}")


def _checked_time(text: str) -> str:
    try:
        if moment(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)) == text:
            return text
    except (ValueError, OverflowError):
        pass
    raise InputError(f"a time must be written as 2026-01-31T12:00:00Z, got {brief(text)}")
