"""Members of a study that begin again: because another came back, or to go on without it.

To begin again is to run the same command in a new image of the process, which has new links and new
keys, and nothing of what was on its way. What it is to know of the run before it inherits as a file
without a name, which nobody else can open and which is gone once it has been read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

    from vpem.engines.engine import Engine
    from vpem.engines.tls.mailbox import Post
    from vpem.files.checkpoints import FileSaver
    from vpem.files.studies.study import Study
    from vpem.network.faults import Outlast
    from vpem.network.schema import Report
    from vpem.steps.recovery import Keeper


INHERITED = "_VPEM_INHERITED"
"""Variable with the number of the open file that a process inherits from the image before it."""

FEWEST = {False: 2, True: 3}
"""Parties that are enough without masks, and with them: of two each knows what the other added."""

AGAIN = ("--resume", "--no-resume", "--resume-if-any", "--no-resume-if-any")


class Losses:
    """Who is missing in a run of a study, and what becomes of it when somebody else is lost.

    ``fewest`` says how many parties each member's policy requires; those of others are known once
    all have met. ``options`` are the command's, by names of parameters.
    """

    def __init__(self, study: Study, member: str, options: dict[str, Any]) -> None:
        self._whole, self._member, self._options = study, member, options
        self._first = study.roster.members[0].name
        self.fewest: dict[str, int] = {}
        self.lost: list[tuple[str, int]]
        self.lost, self._kept, opened = inherited()
        self.keeper: Keeper | None = None
        self.outlast: Outlast | None = None
        if self.goes_on and options.get("secure_sum"):
            from vpem.network.faults import Outlast

            self.outlast = Outlast(self._too_few, opened)
        again = options.get("resume") or options.get("resume_if_any")
        if not self.lost and again and member == self._first:
            self.lost = _in_checkpoint(options.get("checkpoint"), study)

    @property
    def goes_on(self) -> bool:
        """Whether the study has the others go on without a member that is lost."""
        return self._whole.if_lost == "without"

    @property
    def names(self) -> list[str]:
        """Names of those who are missing."""
        return [name for name, _ in self.lost]

    @property
    def study(self) -> Study:
        """The study of those who are left."""
        from dataclasses import replace

        return replace(self._whole, roster=self._whole.roster.without(self.names))

    def facts(self) -> Report:
        """Return what the report says of who is missing; nothing where all are there."""
        lost = self.lost if self.keeper is None else self.keeper.lost
        found = [{"member": name, "since_iteration": max(since, 0) + 1} for name, since in lost]
        return {"without": found} if found else {}

    def keep(self, saver: FileSaver | None, engine: Engine) -> Any:
        """Return a saver that keeps what the others would go on from, if they would."""
        from vpem.steps.recovery import Keeper

        if not self.goes_on:
            return saver
        self.keeper = Keeper(saver, engine, self.lost, self._kept)
        return self.keeper

    # ---- somebody else is lost ------------------------------------------------------------------

    def deal_with(self, error: Exception, engine: Engine, post: Post, met: bool) -> Exception:
        """Go on without whom an error is about, in a new image of the process, if that can be.

        Otherwise what is to be said is returned; ``met`` says whether all had met.
        """
        from vpem.engines.tls.news import GoneOn, Returned, Unheard
        from vpem.errors import VpemError

        from .naming import spoken

        if not self.goes_on:
            return error
        told: Exception = error
        gone = [] if self.outlast is None else [engine.names[n] for n in sorted(self.outlast.gone)]
        if self.outlast is not None and self.outlast.error is not None:
            post.flush()  # what others need to end this iteration, too
            if not isinstance(error, VpemError):  # something else needed who is lost
                told = self.outlast.error
        if isinstance(told, Unheard | Returned) and engine.rank and told.name != self._first:
            try:
                post.report(told.name, str(told))
            except Exception as answer:
                told = answer
        if isinstance(told, GoneOn):
            return self._follow(told, met)
        if not isinstance(told, Unheard | Returned):
            return told
        names = list(dict.fromkeys([*gone, told.name, *post.silent]))
        reason = self._too_few(names) or self._repeats(names)
        if reason is None:
            self._go_on(names, met, f"{spoken(told)}; going on without {', '.join(names)}")
        told.add_note(f"the others do not go on: {reason}")
        return told

    def _too_few(self, names: Sequence[str]) -> str | None:
        """Return why those who are left cannot go on, or None where they can."""
        members = self.study.roster.members
        if self._first in names:
            return f"without {self._first}, the first member of {self._whole.name}, nobody can"
        left = sum(one.holds and one.name not in names for one in members)
        masked = bool(self._options.get("secure_sum"))
        if left < FEWEST[masked]:
            needed = "masked sums need three parties" if masked else "a fit needs two parties"
            return f"{needed}, and {left} would be left"
        for name, fewest in self.fewest.items():
            if left < fewest and name not in names:
                return f"{name}'s policy requires {fewest} parties, and {left} would be left"
        return None

    def _repeats(self, names: Sequence[str]) -> str | None:
        """Return why the sums that would follow are none to take, or None where they are."""
        if self.outlast is None:
            return None
        from vpem.steps.recovery import REPEATED

        kept = self._kept if self.keeper is None else self.keeper.newest()
        left = {one.name for one in self.study.roster.members} - set(names)
        return REPEATED if self.outlast.repeats(kept, left) else None

    def _follow(self, told: Any, met: bool) -> Exception:
        """Go on without those without whom the first member does."""
        from vpem.engines.engine import StalledError
        from vpem.errors import InputError

        members = {one.name for one in self._whole.roster.members[1:]}
        names = [name for name in told.without if name not in self.names]
        if not set(names) <= members - {self._member}:
            return InputError(f"{self._first} has said that it goes on without who is no member")
        reason = self._repeats(names)
        if reason is not None:
            return StalledError(f"{told}; here that cannot be: {reason}")
        self._go_on(names, met, f"{self._first} goes on without {', '.join(names)}")

    def _go_on(self, names: Sequence[str], met: bool, why: str) -> NoReturn:
        """Run the same command anew, without some more; does not return."""
        from .output import tell

        if not self._options.get("quiet"):
            tell(f"{why}, as {self._whole.name} says")
        lost = self.lost if self.keeper is None else self.keeper.lost
        kept = self._kept if self.keeper is None else self.keeper.newest()
        begin_again(
            without_resuming(sys.orig_argv, self._options) if met else sys.orig_argv,
            [*lost, *((name, -1) for name in names)], kept,
            None if self.outlast is None else self.outlast.state(),
        )  # fmt: skip

    def come_back(self, met: bool) -> NoReturn:
        """Run the same command anew, from the newest checkpoint that all have; does not return."""
        lost = self.lost if self.keeper is None else self.keeper.lost
        everybody = [one.name for one in self.study.roster.members]
        opened = None if self.outlast is None else self.outlast.state(everybody)
        begin_again(going_on(sys.orig_argv) if met else sys.orig_argv, lost, {}, opened)


# ---- images of a process ------------------------------------------------------------------------


def begin_again(
    words: Sequence[str],
    lost: Sequence[tuple[str, int]],
    kept: dict[int, Any],
    opened: dict[str, Any] | None = None,
) -> NoReturn:
    """Run a command line in the place of this process.

    ``lost`` says who is missing, and since when, ``kept`` what the run goes on from, by iterations
    (`vpem.steps.recovery.Keeper`), and ``opened`` what masked sums there were
    (`vpem.network.faults.Outlast`).
    """
    import tempfile

    from vpem.network.messages import encode

    os.environ.pop(INHERITED, None)
    if lost or opened:
        file = tempfile.TemporaryFile()  # noqa: SIM115
        file.write(encode([list(map(list, lost)), kept, opened]))
        file.flush()
        os.set_inheritable(file.fileno(), True)
        os.environ[INHERITED] = str(file.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, list(words))


def inherited() -> tuple[list[tuple[str, int]], dict[int, Any], dict[str, Any] | None]:
    """Return who is missing, and what was kept and opened, as the image before knew it."""
    from vpem.errors import InputError
    from vpem.network.messages import decode

    number = os.environ.pop(INHERITED, None)
    if number is None:
        return [], {}, None
    try:
        with os.fdopen(int(number), "r+b") as file:
            file.seek(0)
            lost, kept, opened = decode(file.read())
            return [(str(name), int(since)) for name, since in lost], dict(kept), opened
    except (OSError, ValueError, TypeError):
        raise InputError(f"{INHERITED} names no file of this process; unset it") from None


def going_on(words: Sequence[str]) -> list[str]:
    """Return a command line that goes on from its checkpoint, if there is one."""
    # What a variable or a file says of --resume does not count either.
    return _with(words, "--no-resume", "--resume-if-any")


def without_resuming(words: Sequence[str], options: dict[str, Any]) -> list[str]:
    """Return a command line that goes on from no checkpoint."""
    known = [name for name in ("resume", "resume_if_any") if options.get(name)]
    return _with(words, *(f"--no-{name.replace('_', '-')}" for name in known))


def _with(words: Sequence[str], *more: str) -> list[str]:
    kept = [word for word in words if word not in AGAIN]
    end = kept.index("--") if "--" in kept else len(kept)
    return [*kept[:end], *more, *kept[end:]]


def _in_checkpoint(path: Path | None, study: Study) -> list[tuple[str, int]]:
    """Return who was missing when a checkpoint of the first member was written."""
    from vpem.errors import FileError
    from vpem.files.checkpoints import read_state

    # Whoever goes on from it says what is wrong.
    with suppress(FileError, KeyError, TypeError, ValueError):
        told = [] if path is None else read_state(path)["facts"]["without"]
        names = {one.name for one in study.roster.members[1:]}
        return [(name, int(since)) for name, since in told if name in names]
    return []
