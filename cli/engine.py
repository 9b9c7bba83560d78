"""Where a command runs: in this process, or as one rank of an MPI job."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.records import Settings, setting

from .roles import reads, writes, written

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.engines.placement import Placement
    from vpem.files.parties.manifest import Party
    from vpem.network.schema import Report
    from vpem.sums.connect import Network
    from vpem.sums.neighbours import Traffic

    from .output import Screen

__all__ = [
    "EngineSettings",
    "Terminated",
    "asks_for_mpi",
    "describe_engine",
    "engine_of",
    "fail",
    "interrupted",
    "join",
    "joined",
    "launched",
    "place_parties",
    "tell_warnings",
]

ENGINES = ("simulator", "mpi")

APART = (
    lambda given: given["engine"] != "mpi",
    (" is for processes of their own; add --engine mpi",),
)


class EngineSettings(Settings, heading="Running", kept=False):
    """Where a command runs."""

    engine: str = setting(
        "simulator",
        "simulator: one process holds all agents. mpi: each agent is a rank of its own, or some "
        "share one (mpiexec -n 5 {command} ... --engine mpi; needs vpem[mpi]).",
        choices=ENGINES,
    )
    ranks: int | None = setting(
        None, "With --engine mpi: how many ranks there must be.", least=1, idle=APART
    )
    timeout: float | None = setting(
        None,
        "With --engine mpi: end the job, naming the rank, when one has not answered for so many "
        "seconds. Default: wait for ever.",
        least=0,
        above=True,
        idle=APART,
    )
    shards: bool = setting(
        False,
        "With --engine mpi: each hub's root writes its own parameters, beside --output and named "
        "after it; see 'vpem model join'.",
        idle=APART,
    )


LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
"""Where launchers tell a process how many there are, and which it is."""

PASSED_ON = 0.5
"""Seconds in which a signal that one rank got reaches the first, which then speaks for all."""

LAST_WORDS = 0.1
"""Seconds in which the launcher takes what was printed, before the job is ended."""

STALLED = 4
"""Exit code where a rank did not answer."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM)."""


# ---- which engine -------------------------------------------------------------------------------

_joined: Engine | None = None


def joined() -> Engine | None:
    """Return the engine of several processes that this one has joined, if it has."""
    return _joined


def asks_for_mpi(words: Sequence[str]) -> bool:
    """Whether the words of a command line ask for MPI."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return any(a == "--engine=mpi" or (a == "--engine" and b == "mpi") for a, b in pairs)


def launched() -> bool:
    """Whether a launcher says that it started several processes."""
    counts = (os.environ.get(count, "") for count, _ in LAUNCHERS)
    return any(count.isdecimal() and int(count) > 1 for count in counts)


def join() -> Engine:
    """Join the MPI job that this process was started in.

    Raises
    ------
    InputError
        If there is no MPI, or that of the launcher is another one.
    """
    global _joined
    from vpem.errors import InputError

    try:
        # mpi4py warns of a launcher that looks foreign; whether it is is found out below.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            from vpem.engines import mpi
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        _leave_it_to_the_first()
        raise InputError(
            f"--engine mpi needs mpi4py and an MPI library ({reason}); try: pip install "
            "'vpem[mpi]' mpich"
        ) from None
    engine, library = mpi.join()
    if engine.size == 1:
        _check_launcher(library)
    _joined = engine
    signal.signal(signal.SIGTERM, _terminate)
    return engine


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


def _leave_it_to_the_first() -> None:
    """End without a word where a launcher says that this is not the first of its processes."""
    if any(os.environ.get(number, "0") != "0" for _, number in LAUNCHERS):
        raise SystemExit(2)


def _check_launcher(library: str) -> None:
    """Raise InputError where a launcher started several processes that do not see each other."""
    from vpem.errors import InputError

    for count, _ in LAUNCHERS:
        text = os.environ.get(count, "")
        if text.isdecimal() and int(text) > 1:
            _leave_it_to_the_first()
            raise InputError(
                f"the launcher started {text} processes ({count}), but each of them is alone: "
                f"mpi4py is built for another MPI ({library}); take the mpiexec of that MPI, "
                "or build mpi4py for yours (pip install --no-binary mpi4py mpi4py)"
            )


def engine_of(how: EngineSettings, screen: Screen) -> Engine:
    """Return where a command runs.

    Raises
    ------
    InputError
        If there are more or fewer ranks than were asked for.
    """
    from vpem._core.threads import crowded, share_processors, whereabouts
    from vpem.engines.one_process import OneProcess
    from vpem.errors import InputError

    if how.engine != "mpi":
        return OneProcess()
    engine = _joined or join()
    if how.ranks is not None and how.ranks != engine.size:
        raise InputError(
            f"--ranks {how.ranks} were asked for, but {engine.size} "
            f"{'is' if engine.size == 1 else 'are'} there; start them with the mpiexec of the MPI "
            "that mpi4py is built for, such as: pip install mpich"
        )
    engine.timeout = how.timeout
    share_processors(engine.allgather(whereabouts()))
    engine.crowded = crowded()
    screen.silent = engine.rank > 0
    if engine.size == 1 and how.ranks is None:
        screen.say("one rank holds all agents; for more: mpiexec -n RANKS vpem ... --engine mpi")
    return engine


# ---- what a process has -------------------------------------------------------------------------


def place_parties(
    parties: Sequence[Party], output: Path | None, shards: bool, engine: Engine
) -> Placement:
    """Return who holds which parties, once all have the same list and none is written over.

    Parameters
    ----------
    parties : sequence of Party
        All of them, as this process has them.
    output : path or None
        The model that the first process is going to write, or all in shards.
    shards : bool
        Whether it is written in shards.
    engine : Engine
        The processes.
    """
    from vpem.engines.placement import Placement, for_each
    from vpem.errors import InputError
    from vpem.fits.shards import shard_path

    names = [party.name for party in parties]
    ours, *others = engine.allgather(names)
    for rank, theirs in enumerate(others, 1):
        if theirs != ours:
            raise InputError(
                f"rank 0 is told of the parties {', '.join(ours)}, rank {rank} of "
                f"{', '.join(theirs)}; give all ranks the same, in the same order"
            )
    holders = Placement.evenly(engine, len(names), names)
    if output is not None and shards:
        both = ([] if engine.rank else ["server"]) + [names[agent] for agent in holders.own]
        writes("--shards", *(shard_path(output, name) for name in both))
    for files in engine.allgather(written()):
        for option, path in files:
            writes(option, path)

    def check(number: int) -> None:
        reads(f"party {names[number]!r}", *parties[number].find())

    for_each(holders, range(len(parties)), check)
    return holders


# ---- what is said -------------------------------------------------------------------------------


def describe_engine(network: Network) -> Report:
    """Say what a fit ran on, for its report."""
    engine = network.agents.engine
    if not engine.apart:
        return {"engine": "simulator"}
    total: Any = network.total  # over an engine every sum says what went
    traffic: Traffic = total.traffic
    handed: dict[str, dict[str, int]] = {}
    for delivered, on_wire in engine.allgather((traffic.delivered, traffic.on_wire)):
        for name, counted in (("between_agents", delivered), ("by_mpi", on_wire)):
            for kind, size in counted.items():
                handed.setdefault(kind, {"between_agents": 0, "by_mpi": 0})[name] += size
    return {"engine": "mpi", "ranks": engine.size, "handed": handed}


def tell_warnings(engine: Engine, screen: Screen) -> None:
    """Print the warnings of other processes in the first, each once."""
    for rank, texts in enumerate(engine.gather(screen.warnings) or []):
        for text in texts if rank else []:
            if text not in screen.warnings:
                screen.warn(text, f"{engine.names[rank]}: ")


# ---- the end ------------------------------------------------------------------------------------


def fail(engine: Engine, tell: Callable[[str], Any], sentence: str, code: int) -> None:
    """Tell what went wrong, once, and end all processes; does not return.

    Parameters
    ----------
    engine : Engine
        The processes.
    tell : callable
        Prints a sentence.
    sentence : str
        What went wrong in this process.
    code : int
        Exit code of the job.
    """
    stalled = code == STALLED
    alike = engine.rank == 0 and stalled
    alike = alike or engine.part(sentence, patient=not stalled)
    tell(sentence if alike or stalled else f"{engine.names[engine.rank]}: {sentence}")
    _abort(engine, code)


def interrupted(engine: Engine, tell: Callable[[str], Any], code: int) -> None:
    """Tell it once, and end all processes; does not return."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sentence = "interrupted; nothing was written"
    engine.part(sentence, patient=False)
    if engine.rank:
        time.sleep(PASSED_ON)
        sentence = f"{engine.names[engine.rank]}: {sentence}"
    tell(sentence)
    _abort(engine, code)


def _abort(engine: Engine, code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # What is on its way to the launcher would be lost.
    time.sleep(LAST_WORDS)
    engine.abort(code)
