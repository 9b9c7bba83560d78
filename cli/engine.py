"""Where agents live: options of commands, the placement of parties, and its report.

A command is alone in this process, a rank of an MPI job (`vpem_cli.ranks`), or a member of a study
(`vpem_cli.meeting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, shorten
from vpem.records import Rule, Settings, setting

from .files import reads, writes, written
from .session import Where, join_job, joined, launched

if TYPE_CHECKING:
    from vpem.engines.placement import Placement
    from vpem.files.parties.opening import Party
    from vpem.network.schema import Report
    from vpem.sums.connect import Network
    from vpem.sums.exchanges import Traffic

    from .display import Screen
    from .labels import LabelFile

LEAST_ROWS = 5.0
"""Rows of each component in a model that others get: no row is more than a fifth of one."""

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
        "share one (mpiexec -n 5 {command} ... --engine mpi; needs vpem[mpi]). tls: each party "
        "runs this command on its own machine (see --study).",
        choices=("simulator", "mpi", "tls"),
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
            (" implies --engine tls; leave out --engine",),
        ),
    )
    member: str | None = setting(
        None,
        "With --study: which of its members this is. Default: the one whose key lies beside it.",
        flags="--as",
        local=True,
        idle=MEMBERS,
    )
    listen: str | None = setting(
        None,
        "With --study: where to listen for others, HOST:PORT or PORT. Default: at the port that "
        "the study says.",
        local=True,
        idle=MEMBERS,
    )
    log: Path | None = setting(
        None,
        "With --study: note every message in this file: kind, size, SHA-256, to or from whom, and "
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
        "with --engine mpi wait forever, with --study as the study says.",
        least=0,
        above=True,
        local=True,
        idle=APART,
    )
    shards: bool = setting(
        False,
        "Each hub's root writes its own parameters: with --engine mpi beside --output and named "
        "after it, in a study (if that says so) to --output; see 'vpem model join'.",
        idle=APART,
    )


def where_of(settings: EngineSettings, screen: Screen) -> Where:
    """Return where a command runs, or raise InputError if it cannot run there."""
    where = joined()
    if settings.engine == "mpi" and where.word != "mpi":
        where = join_job()
    elif settings.engine == "simulator":
        if launched():
            screen.note(
                "a launcher started several processes, each of which does all of the work; to "
                "share it give --engine mpi"
            )
        return Where()
    where.prepare(settings, screen)
    return where


def place_parties(
    parties: Sequence[Party],
    output: Path | None,
    shards: bool,
    where: Where,
    labels: LabelFile | None = None,
) -> Placement:
    """Return which process holds which parties; InputError unless all have the same list.

    ``output`` is the model that the first process will write, or each its part if ``shards``; no
    file of a party may be overwritten.
    """
    from vpem.engines.placement import Placement, for_each
    from vpem.fits.parts import shard_path

    engine = where.engine
    names = [party.name for party in parties]
    ours, *others = engine.allgather(names)
    for rank, listed in enumerate(others, 1):
        theirs = list(map(str, listed)) if isinstance(listed, list) else [str(listed)]
        if theirs != ours:
            raise InputError(
                f"rank 0 has the parties {', '.join(ours)}, rank {rank} has "
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


def describe_engine(network: Network) -> Report:
    """Return the processes that a fit ran on, and what they sent, for its report."""
    engine, where = network.agents.engine, joined()
    if not engine.apart:
        return Where().describe()
    total: Any = network.total  # over an engine every sum counts its traffic
    traffic: Traffic = total.traffic
    sent: dict[str, dict[str, int]] = {}
    ends = ("between_agents", f"by_{where.word}")
    for delivered, on_wire in engine.allgather((traffic.delivered, traffic.on_wire)):
        for name, counted in zip(ends, (delivered, on_wire), strict=True):
            for kind, size in counted.items():
                sent.setdefault(kind, dict.fromkeys(ends, 0))[name] += size
    return {**where.describe(), "handed": sent}
