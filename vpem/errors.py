"""The errors and warnings of vpem, and the sentences they are made of.

Every message is one sentence a user can act on: what was wrong and where, what was got, what to
try. The command line prints it and exits with the code of the class.
"""

from __future__ import annotations

import difflib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A parameter that a sentence speaks of: in Python its name, in a shell its option."""

    name: str  # as Python programs know it: "max_iter"
    value: object = None  # that it has, or is to be given; None: no matter which

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


def former(old: str, new: str) -> Any:
    """Return an attribute under its former name, with a warning that names the new one."""

    def renamed(self: Any) -> Any:
        warnings.warn(f"{old} is {new} now", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(renamed, doc=f"Former name of `{new}`.")


class _Sentence(Exception):
    """A sentence in parts, so that names of parameters are never mistaken for names of users'."""

    parts: tuple[str | Setting, ...]

    def __init__(self, *parts: str | Setting) -> None:
        super().__init__("".join(map(str, parts)))
        self.parts = parts

    def __reduce__(self) -> tuple[object, ...]:
        # Not by the sentence alone: another process names the parameters in its own words. Nor by
        # `__init__`, which in some classes takes other things than parts.
        return _again, (type(self), self.args), self.__dict__

    def sentence_with(self, name: Callable[[Setting], str]) -> str:
        """Return the sentence with other words for the parameters that it speaks of."""
        return "".join(
            name(part) if isinstance(part, Setting) else str(part) for part in self.parts
        )

    told = former("told", "sentence_with")


def _again(kind: type[_Sentence], args: tuple[object, ...]) -> _Sentence:
    """Return an error or warning as it was, but for its attributes."""
    copied = kind.__new__(kind)
    copied.args = args
    return copied


class VpemError(_Sentence):
    """Base of every error that vpem raises on purpose."""

    def elsewhere(self, name: str) -> str:
        """Return what other parties hear, of the party of this name: nothing of its data."""
        return f"{name} ended: it cannot use its data; ask there"


class InputError(VpemError, ValueError):
    """Data, options or parameters that cannot be used as they are."""


class MissingColumnError(InputError):
    """A table lacks requested ``columns``."""

    def __init__(self, message: str, *columns: str) -> None:
        super().__init__(message)
        self.columns = columns


class MissingIdError(InputError):
    """A row has no id."""


class FileError(VpemError, OSError):
    """A file that cannot be read, is not what it should be, or cannot be written."""


class Interrupted(VpemError):
    """A run that was interrupted by a signal (None: SIGTERM); its state has been written.

    ``iteration`` is how many iterations the checkpoint stands for; None: the run ended at once, and
    what is there is older.
    """

    def __init__(self, path: str, iteration: int | None, signal: int | None = None) -> None:
        self.iteration = iteration
        self.signal = 15 if signal is None else int(signal)
        self.exit_code = 128 + self.signal
        name = {2: "Ctrl-C", 15: "SIGTERM"}.get(self.signal, f"signal {self.signal}")
        what = "at once, an earlier state"
        if iteration is not None:
            what = f"the state after {iteration} iteration{'' if iteration == 1 else 's'}"
        super().__init__(
            f"interrupted by {name}; {what} is in {path}: give the same command with ",
            Setting("resume", True),
            " to go on",
        )


class NumericalError(VpemError, ArithmeticError, ValueError):
    """A computation that has no finite answer, even after every remedy was tried.

    It is a ValueError too, as in scikit-learn: the data and the parameters do not go together.
    """


class PartitionedError(VpemError):
    """A network of agents that was disconnected during a sum, which therefore has no answer."""


class VpemWarning(_Sentence, UserWarning):
    """Something a user should know although the computation goes on."""


class OwnDataWarning(VpemWarning):
    """Something about the data of one process, which others need not hear of."""


class NotConvergedWarning(VpemWarning):
    """The log-likelihood was still changing when the iterations ran out.

    It is scikit-learn's too wherever that is loaded.
    """

    __module__ = "vpem"


@cache
def scikit_learns_warning() -> type[NotConvergedWarning]:
    """Return the class, by which filters of scikit-learn's warning find it from now on."""
    from sklearn.exceptions import ConvergenceWarning

    NotConvergedWarning.__bases__ = (VpemWarning, ConvergenceWarning)
    return NotConvergedWarning


def not_converged(*parts: str | Setting) -> NotConvergedWarning:
    """Return the warning that a fit has not converged.

    Where scikit-learn is not loaded there can be no filter for its warning, and a command need not
    wait for it.
    """
    loaded = "sklearn.exceptions" in sys.modules
    return (scikit_learns_warning() if loaded else NotConvergedWarning)(*parts)


def warn(
    *parts: str | Setting, level: int = 3, kind: Callable[..., VpemWarning] = VpemWarning
) -> None:
    """Warn in a sentence, of the code so many calls up (1: of the caller's own line)."""
    if not getattr(_silent, "here", False):
        warnings.warn(kind(*parts), stacklevel=level + 1)


_silent = threading.local()


@contextmanager
def silent() -> Iterator[None]:
    """Let this thread not `warn`: filters of warnings are those of all threads of a process."""
    _silent.here = True
    try:
        yield
    finally:
        _silent.here = False


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the choice nearest to ``name``, or an empty string."""
    close = difflib.get_close_matches(str(name).lower(), [str(c) for c in choices], n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def named(what: str) -> str | Setting:
    """Return the parameter of this name; words for what is none ("levels of qsgd") stay text."""
    return Setting(what) if what.isidentifier() else what


def check_choice(what: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``, or raise InputError, naming the nearest.

    ``what`` is the parameter ("topology"), or words for what is none.
    """
    allowed = list(choices)
    if isinstance(value, str) and value in allowed:
        return value
    hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
    raise InputError(named(what), f" must be one of {', '.join(allowed)}, got {brief(value)}{hint}")


def printable(text: object) -> str:
    """Return ``text`` in one line and without control characters.

    Whoever made a file could have put them into its names to fool a terminal or break a picture.
    """
    return "".join(
        c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}"
        for c in str(text)
    )


SHOWN = 60
"""Characters of a wrong value that a sentence shows."""


def brief(value: object) -> str:
    """Write a wrong value for a sentence: its beginning, in one line."""
    try:
        text = value if isinstance(value, str) else printable(value)
    except ValueError:  # Python writes no longer ones
        text = "an integer of more than 4300 digits"
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return repr(text) if isinstance(value, str) else text


def shorten(items: Iterable[object], most: int = 5) -> str:
    """Join the first ``most`` items with commas and say how many more there are."""
    listed = [str(item) for item in items]
    extra = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {extra} more" if extra > 0 else "")
