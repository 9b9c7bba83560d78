"""Where a command runs: alone in this process, or joined with others, which have other answers.

`vpem_cli.ranks` has those of an MPI job, `vpem_cli.meeting` those of members of a study.

Where agents live: options of commands, who holds which parties, and what reports say of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.records import Rule, Settings, setting

from .files import reads, writes, written

if TYPE_CHECKING:
    from pathlib import Path

    from vpem.engines.engine import Engine
    from vpem.engines.placement import Placement
    from vpem.files.checkpoints import FileSaver
    from vpem.files.parties.opening import Party
    from vpem.files.table_settings import TableSettings
    from vpem.network.schema import Report
    from vpem.sums.connect import Network
    from vpem.sums.exchanges import Traffic

    from .driver import Output
    from .labels import LabelFile
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
        from vpem.engines.engine import OneProcess

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


ENGINES = ("simulator", "mpi", "tls")

APART: Rule = (
    lambda given: given["engine"] == "simulator",
    (" is for processes of their own; add --engine mpi, or --study FILE",),
)
RANKS: Rule = (
    lambda given: given["engine"] != "mpi",
    (" is for processes of their own; add --engine mpi",),
)
MEMBERS: Rule = (
    lambda given: given.get("study") is None,
    (" is for members of a study; add --study FILE",),
)


class EngineSettings(Settings, heading="Running", kept=False):
    """Where a command runs."""

    engine: str = setting(
        "simulator",
        "simulator: one process holds all agents. mpi: each agent is a rank of its own, or some "
        "share one (mpiexec -n 5 {command} ... --engine mpi; needs vpem[mpi]). tls: each party is "
        "at home, and all run this command (see --study).",
        choices=ENGINES,
        idle=(
            lambda given: given["engine"] == "tls" and given["study"] is None,
            (" tls is for members of a study; add --study FILE",),
        ),
    )
    study: Path | None = setting(
        None,
        "Take part in this study (.toml; see 'vpem study'), which says who the parties are and "
        "what all run; DATA is this party's own. Implies --engine tls --parties; needs vpem[tls].",
        file="read",
        local=True,
        idle=(
            lambda given: given["engine"] != "tls",
            (" is for --engine tls, which it stands for; leave out --engine",),
        ),
    )
    member: str | None = setting(
        None,
        "With --study: who of its members this is. Default: the one whose key lies beside it.",
        flags="--as",
        local=True,
        idle=MEMBERS,
    )
    listen: str | None = setting(
        None,
        "With --study: where others reach this member, HOST:PORT or PORT, if not at the port that "
        "the study says.",
        local=True,
        idle=MEMBERS,
    )
    log: Path | None = setting(
        None,
        "With --study: note every message here, its kind, size and SHA-256, whom to or from, and "
        "when. Default: MEMBER-STUDY.log beside the study.",
        file="written",
        local=True,
        idle=MEMBERS,
    )
    ranks: int | None = setting(
        None, "With --engine mpi: how many ranks there must be.", least=1, idle=RANKS
    )
    timeout: float | None = setting(
        None,
        "End, naming the rank or member, when one has not answered for so many seconds. Default: "
        "with --engine mpi wait for ever, with --study as that says.",
        least=0,
        above=True,
        local=True,
        idle=APART,
    )
    shards: bool = setting(
        False,
        "Each hub's root writes its own parameters: with --engine mpi beside --output and named "
        "after it, in a study (which says whether) there; see 'vpem model join'.",
        idle=APART,
    )


def where_of(how: EngineSettings, screen: Screen) -> Where:
    """Return where a command runs, or raise InputError if it cannot run there."""
    where = joined()
    if how.engine == "mpi" and where.word != "mpi":
        from .ranks import join_job

        where = join_job()
    elif how.engine == "simulator":
        from .ranks import launched

        if launched():
            screen.note(
                "a launcher started several processes, each of which does all of the work; to "
                "share it give --engine mpi"
            )
        return Where()
    where.prepare(how, screen)
    return where


def place_parties(
    parties: Sequence[Party],
    output: Path | None,
    shards: bool,
    where: Where,
    labels: LabelFile | None = None,
) -> Placement:
    """Return who holds which parties, once all have the same list and none is written over.

    ``output`` is the model that the first process is going to write, or all in ``shards``.
    """
    from vpem.engines.placement import Placement, for_each
    from vpem.errors import InputError, shorten
    from vpem.fits.parts import shard_path

    engine = where.engine
    names = [party.name for party in parties]
    ours, *others = engine.allgather(names)
    for rank, said in enumerate(others, 1):
        theirs = list(map(str, said)) if isinstance(said, list) else [str(said)]
        if theirs != ours:
            raise InputError(
                f"rank 0 is told of the parties {', '.join(ours)}, rank {rank} of "
                f"{shorten(theirs, 200):.2000}; give all ranks the same, in the same order"
            )
    holders = Placement.evenly(engine, len(names), names)
    if output is not None and shards:
        both = ([] if engine.rank else ["server"]) + [names[agent] for agent in holders.own]
        writes("--shards", *(shard_path(output, name) for name in both))
    if labels is not None:
        labels.place(names, holders)
    for files in [written()] if where.own_users else engine.allgather(written()):
        for option, path in files:
            writes(option, path)

    def check(number: int) -> None:
        reads(f"party {names[number]!r}", *parties[number].find())

    for_each(holders, range(len(parties)), check)
    return holders


# ---- what is said -------------------------------------------------------------------------------


def describe_engine(network: Network) -> Report:
    """Say what a fit ran on, for its report."""
    engine, where = network.agents.engine, joined()
    if not engine.apart:
        return Where().describe()
    total: Any = network.total  # over an engine every sum says what went
    traffic: Traffic = total.traffic
    handed: dict[str, dict[str, int]] = {}
    ends = ("between_agents", f"by_{where.word}")
    for delivered, on_wire in engine.allgather((traffic.delivered, traffic.on_wire)):
        for name, counted in zip(ends, (delivered, on_wire), strict=True):
            for kind, size in counted.items():
                handed.setdefault(kind, dict.fromkeys(ends, 0))[name] += size
    return {**where.describe(), "handed": handed}
