"""Where a command runs: alone in this process, or joined with others, which have other answers.

`vpem_cli.ranks` has those of an MPI job, `vpem_cli.meeting` those of members of a study.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from vpem.engines.engine import Engine
    from vpem.files.checkpoints import FileSaver
    from vpem.files.parties.opening import Party
    from vpem.files.table_settings import TableSettings
    from vpem.network.schema import Report

    from .driver import Output
    from .engine import EngineSettings
    from .output import Screen
    from .results import Result


LEAST_ROWS = 5.0
"""Of a component in a model that others will have: none of them is more than a fifth of it."""


class Where:
    """A process that is alone.

    ``word`` is what reports call its engine's processes; ``own_users`` says whether each has a user
    of its own, who sees results and gives outputs.
    """

    word = "simulator"
    own_users = False

    @cached_property
    def engine(self) -> Engine:
        """The processes, of which this is one."""
        from vpem.engines.one_process import OneProcess

        return OneProcess()

    @property
    def speaks(self) -> bool:
        """Whether this process prints, and writes what is common."""
        return True

    def agree(self, context: Any) -> None:
        """Raise InputError where processes were given what differs, before any work."""

    def prepare(self, how: EngineSettings, screen: Screen) -> None:
        """Take the options of a command about processes."""

    @property
    def gone_on(self) -> bool:
        """Whether processes that were there before are missing."""
        return False

    def keep(self, saver: FileSaver | None) -> Any:
        """Return what keeps the state of a run: what keeps checkpoints, if anything."""
        return saver

    def parties(
        self,
        files: Sequence[Path],
        table: TableSettings,
        kept: TableSettings | None = None,
        *,
        columns: bool = True,
    ) -> list[Party]:
        """Return all parties, of whom at least those of this process are known by their files.

        ``columns`` says whether files are tables of features, which a study may name.
        """
        from vpem.files.parties.opening import choose_parties

        return choose_parties(files, table, kept)

    def anybody(self, name: str, here: bool) -> bool:
        """Whether any process was given an option that need not be given to all."""
        return here

    def facts(self, screen: Screen, files: Sequence[Path]) -> Report:
        """Return what the report that is common to all says of files, and of what was warned of."""
        return {"warnings": list(screen.warnings), "data": ", ".join(map(str, files))}

    def options(self, record: Report, files: Sequence[str]) -> Report:
        """Return what models keep of options, of which these name files."""
        return record

    def share(self, result: Result, out: Output, screen: Screen) -> Report:
        """Write what was found where it is to be, and return the report."""
        report = result.tell()
        if out.output is not None:
            result.write(out.output, report)
        report["model"] = None if out.output is None else str(out.output)
        return report | result.own(report)

    @property
    def least_rows(self) -> float:
        """Rows that every component of a model must have, for it to leave; 0: it stays here."""
        return 0.0

    def check_published(self, result: Result) -> None:
        """Raise InputError where a model would tell others of few rows."""

    def watch(self, n_rows: int, over_rows: bool, screen: Screen) -> None:
        """Take note of how many rows there are, over which sums will be taken."""

    def describe(self) -> dict[str, Any]:
        """Return what reports say of the processes."""
        return {"engine": self.word}

    def tell_warnings(self, screen: Screen) -> None:
        """Bring warnings to where they are printed."""

    # ---- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """End with others, after work that was done."""

    def fail(self, error: Exception, sentence: str | None, tell: Callable[..., int]) -> int:
        """Say what went wrong and return the exit code; a defect (no sentence) is raised again."""
        if sentence is None:
            raise error
        return tell(sentence, code=getattr(error, "exit_code", 2))

    def interrupted(self, tell: Callable[..., int], code: int) -> int:
        """Say that the command was interrupted, and return the exit code."""
        return tell("interrupted; nothing was written", code=code)


_alone = Where()
_joined: Where = _alone


def joined() -> Where:
    """Return where this process is."""
    return _joined


def join(where: Where | None) -> None:
    """Note where this process is; None: alone again."""
    global _joined
    _joined = where or _alone
