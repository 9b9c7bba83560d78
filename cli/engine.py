"""Where a command runs: in this process, or as one rank of an MPI job."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vpem.records import Settings, setting

from .roles import reads, writes, written

if TYPE_CHECKING:
    from vpem.engines.mpi import MpiTeam
    from vpem.files.datasets import Dataset
    from vpem.files.parties.alignment import Alignment
    from vpem.files.parties.manifest import Party
    from vpem.files.parties.sharing import RowShare, Share
    from vpem.fits.results import Fit
    from vpem.network.blocks import Blocks
    from vpem.network.holdings import Partition, Workers
    from vpem.settings import FitSettings
    from vpem.sums.connect import Network

    from .output import Screen

__all__ = [
    "EngineSettings",
    "Ranks",
    "Simulator",
    "Terminated",
    "asks_for_mpi",
    "engine_of",
    "join",
    "joined",
    "launched",
    "refuse_for_rows",
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

FAILED = 7
"""Tag of the news that a rank has failed."""

HEAR_OUT = 0.3
"""Seconds in which the first rank waits to hear whether all others fail alike."""

GIVE_WAY = (0.45, 0.3)
"""Seconds in which other ranks let the first speak: at least, and more by number."""

PASSED_ON = 0.5
"""Seconds in which a signal that one rank got reaches the first, which then speaks for all."""

LAST_WORDS = 0.1
"""Seconds in which the launcher takes what was printed, before the job is ended."""

STALLED = 4
"""Exit code where a rank did not answer."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM)."""


class Simulator:
    """All agents in this process."""

    speaks = True

    def processes(self) -> dict[str, Any]:
        """What a `FileSaver` wants to know of other processes."""
        return {}

    def fit_vpem(
        self,
        source: Dataset,
        held: Partition,
        network: Network,
        how: FitSettings,
        **options: Any,
    ) -> tuple[Fit, dict[str, Any]]:
        """Fit to data split by features; and what there is to report of the engine."""
        from vpem.fits.vpem import fit_vpem

        return fit_vpem(source.X, network, how, **options), {"engine": "simulator"}

    def over_rows(self, source: Dataset, held: Workers, network: Network) -> tuple[Any, Network]:
        """Rows of the data and the network of workers, as recipes over rows want them."""
        return source.X, network

    def ran(self, network: Network) -> dict[str, Any]:
        """What there is to report of the engine, after a recipe over rows."""
        return {"engine": "simulator"}


class Ranks:
    """One rank of an MPI job, while a command runs.

    Attributes
    ----------
    rank, size : int
        Number of this process, and how many there are.
    speaks : bool
        Whether this process writes to stdout and tells progress.
    team : MpiTeam or None
        The agents, once they are known.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._bell = comm.Dup()
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.speaks = self.rank == 0
        self.team: MpiTeam | None = None
        self.timeout: float | None = None
        self.shards = False
        self._crew: MpiTeam | None = None
        self._kept: list[Any] = []

    # ---- work -----------------------------------------------------------------------------------

    @property
    def crew(self) -> MpiTeam:
        """The ranks themselves, of whom there are none but each other to talk to."""
        from vpem.engines.mpi import MpiTeam

        if self._crew is None:
            self._crew = MpiTeam(self.size, self.comm, timeout=self.timeout, bell=self._bell)
        return self._crew

    def processes(self) -> dict[str, Any]:
        """What a `FileSaver` wants to know of other processes."""
        import numpy as np

        from vpem.files.checkpoints import newest_common

        crew = self.crew
        return {
            "rank": self.rank,
            "size": self.size,
            "agree": lambda own: newest_common(crew.everyones([own])),
            "some": lambda number: int(crew.largest(np.array([number]))[0]),
        }

    def gather_team(self, names: Sequence[str]) -> MpiTeam:
        """Spread the agents, of these names, over the ranks."""
        from vpem.engines.mpi import MpiTeam

        if self.team is None or self.team.names != tuple(names):
            self.team = MpiTeam(
                len(names), self.comm, names=names, timeout=self.timeout, bell=self._bell
            )
        return self.team

    def share_parties(
        self, parties: Sequence[Party], output: Path | None, **how: Any
    ) -> tuple[Share, Alignment]:
        """Open the files of the parties of this rank, and align all by what ranks tell each other.

        Parameters
        ----------
        parties : sequence of Party
            All of them, as this rank was told.
        output : path or None
            The model that the first rank is going to write, or all in shards.
        **how
            As for `vpem.files.parties.sharing.share_parties`.
        """
        from vpem.files.parties.sharing import share_parties

        return share_parties(parties, self._agree_on(parties, output), **how)

    def share_rows(self, parties: Sequence[Party], output: Path | None, **how: Any) -> RowShare:
        """Open the files of the parties of this rank, which hold rows of the same features.

        Parameters
        ----------
        parties, output
            As for `share_parties`.
        **how
            As for `vpem.files.parties.sharing.share_rows`.
        """
        from vpem.files.parties.sharing import share_rows

        return share_rows(parties, self._agree_on(parties, output), **how)

    def _agree_on(self, parties: Sequence[Party], output: Path | None) -> MpiTeam:
        """Return the parties' ranks, once all were told of the same and none is written over."""
        from vpem.engines.team import for_each
        from vpem.errors import InputError
        from vpem.fits.shards import shard_path

        names = [party.name for party in parties]
        ours, *others = self.crew.everyones([names])
        for rank, told in enumerate(others, 1):
            if told != ours:
                raise InputError(
                    f"rank 0 is told of the parties {', '.join(ours)}, rank {rank} of "
                    f"{', '.join(told)}; give all ranks the same, in the same order"
                )
        team = self.gather_team(names)
        if output is not None and self.shards:
            agents = [names[agent] for agent in team.own]
            both = ([] if self.rank else ["server"]) + agents
            writes("--shards", *(shard_path(output, name) for name in both))
        for option, path in self.crew.everyones(written()):
            writes(option, path)

        def check(number: int) -> None:
            reads(f"party {names[number]!r}", *parties[number].find())

        for_each(team, range(len(parties)), check)
        return team

    def fit_vpem(
        self,
        source: Dataset,
        held: Partition,
        network: Network,
        how: FitSettings,
        **options: Any,
    ) -> tuple[Fit, dict[str, Any]]:
        """Fit to data split by features; and what there is to report of the engine.

        Of the data only the columns of this rank's agents are kept.
        """
        from vpem.fits.spread import fit_spread, spread

        team = self.gather_team(held.names)
        ranked = spread(network, held, team)
        names = [source.feature_names[j] for j in ranked.columns]
        X = _columns_of(source, ranked.columns) if len(ranked.columns) else None
        options |= {"feature_names": names, "shards": self.shards}
        found = fit_spread(X, ranked, how, **options)
        return found, {"engine": "mpi", "ranks": self.size, "handed": _handed(ranked.total, team)}

    def over_rows(self, source: Dataset, held: Workers, network: Network) -> tuple[Any, Network]:
        """Rows of this rank's workers, of which alone the values are read, and its network."""
        from vpem.files.parties.sharing import RowShare
        from vpem.fits.shared_rows import read_rows
        from vpem.fits.spread import spread_workers

        team = self.gather_team(held.names)
        ranked = spread_workers(network, team)
        if isinstance(source, RowShare):
            return source.X, ranked
        return read_rows(source.X, [held.rows[worker] for worker in team.own]), ranked

    def ran(self, network: Network) -> dict[str, Any]:
        """What there is to report of the engine, after a recipe over rows."""
        assert self.team is not None
        handed = _handed(network.total, self.team)
        return {"engine": "mpi", "ranks": self.size, "handed": handed}

    def tell_warnings(self, screen: Screen) -> None:
        """Print the warnings of other ranks at the first, each once."""
        assert self.team is not None
        gathered = self.team.gather_at(screen.warnings, 0)
        for rank, told in enumerate(gathered or []):
            for text in told if rank else []:
                if text not in screen.warnings:
                    screen.warn(text, f"{self.team.describe(rank)}: ")

    def check_shards(self, output: Path, network: Network, held: Partition, force: bool) -> None:
        """Raise FileError or InputError where a shard of this rank cannot be written."""
        from vpem.files.hdf5 import check_writable

        team = self.gather_team(held.names)
        for number, path in _shards_of(output, network.blocks, held).items():
            if team.mine(network.hubs[number].root):
                writes("--shards", path)
                check_writable(path, force, "models")

    def write_shards(
        self,
        output: Path,
        found: Fit,
        held: Partition,
        source: Dataset,
        options: dict[str, Any],
        force: bool,
    ) -> Fit:
        """Write the parameters of this rank's hubs, a file each; what a report needs of the fit."""
        from vpem.fits.shards import write_shard
        from vpem.fits.spread import outline

        blocks = found.network.whole.blocks  # type: ignore[attr-defined]
        paths = _shards_of(output, blocks, held)
        for place, number in enumerate(found.network.total.numbers):
            if number in paths:
                names = [source.feature_names[j] for j in blocks.features[number]]
                write_shard(paths[number], found, place, held.names, names, options, force)
        return outline(found)

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until all ranks are done."""
        sys.stdout.flush()
        if self.team is not None:
            self.team.wait(self.team.comm.Ibarrier())

    def fail(self, tell: Callable[[str], Any], sentence: str, code: int) -> NoReturn:
        """Tell what went wrong, once, and end all ranks; does not return.

        Parameters
        ----------
        tell : callable
            Prints a sentence.
        sentence : str
            What went wrong at this rank.
        code : int
            Exit code of the job.
        """
        where = "" if code == STALLED else f"{self._name()}: "
        if self.rank:
            self._ring(zlib.crc32(sentence.encode()))
            at_least, more = GIVE_WAY
            time.sleep(0.0 if code == STALLED else at_least + more * self.rank / self.size)
        elif code != STALLED and self._hear(HEAR_OUT) == [zlib.crc32(sentence.encode())] * (
            self.size - 1
        ):
            where = ""
        tell(where + sentence)
        self.abort(code)

    def interrupted(self, tell: Callable[[str], Any], code: int) -> NoReturn:
        """Tell it once, and end all ranks; does not return."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        sentence = "interrupted; nothing was written"
        if self.rank:
            self._ring(0)
            time.sleep(PASSED_ON)
            tell(f"{self._name()}: {sentence}")
        else:
            self._hear(HEAR_OUT)
            tell(sentence)
        self.abort(code)

    def abort(self, code: int) -> NoReturn:
        """End all ranks; does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        # What is on its way to the launcher would be lost.
        time.sleep(LAST_WORDS)
        self.comm.Abort(code)
        os._exit(code)

    def _name(self) -> str:
        return f"rank {self.rank}" if self.team is None else self.team.describe(self.rank)

    def _ring(self, value: int) -> None:
        """Let the first rank know that this one is about to end the job."""
        import numpy as np

        self._kept.append(np.array([value], dtype=np.int64))
        self._kept.append(self._bell.Isend(self._kept[-1], dest=0, tag=FAILED))

    def _hear(self, seconds: float) -> list[int]:
        """What other ranks let the first know, until all have or time is up."""
        import numpy as np

        heard: list[int] = []
        until = time.monotonic() + seconds
        while len(heard) < self.size - 1 and time.monotonic() < until:
            if self._bell.Iprobe(tag=FAILED):
                news = np.empty(1, dtype=np.int64)
                self._bell.Recv(news, tag=FAILED)
                heard.append(int(news[0]))
            else:
                time.sleep(0.005)
        return heard


_ranks: Ranks | None = None


def asks_for_mpi(words: Sequence[str]) -> bool:
    """Whether the words of a command line ask for MPI."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return any(a == "--engine=mpi" or (a == "--engine" and b == "mpi") for a, b in pairs)


def joined() -> Ranks | None:
    """Return this process as a rank, if it has joined an MPI job."""
    return _ranks


def launched() -> bool:
    """Whether a launcher says that it started several processes."""
    counts = (os.environ.get(count, "") for count, _ in LAUNCHERS)
    return any(count.isdecimal() and int(count) > 1 for count in counts)


def join() -> Ranks:
    """Join the MPI job that this process was started in.

    Raises
    ------
    InputError
        If there is no MPI, or that of the launcher is another one.
    """
    global _ranks
    from vpem.errors import InputError

    try:
        # mpi4py warns of a launcher that looks foreign; whether it is is found out below.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            from vpem.engines.mpi import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        _leave_it_to_the_first()
        raise InputError(
            f"--engine mpi needs mpi4py and an MPI library ({reason}); try: pip install "
            "'vpem[mpi]' mpich"
        ) from None
    if MPI.COMM_WORLD.Get_size() == 1:
        _check_launcher(MPI.Get_library_version().strip().split("\n")[0])
    _ranks = Ranks(MPI.COMM_WORLD)
    signal.signal(signal.SIGTERM, _terminate)
    return _ranks


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


def engine_of(how: EngineSettings, screen: Screen) -> Simulator | Ranks:
    """Return where a command runs.

    Raises
    ------
    InputError
        If there are more or fewer ranks than were asked for.
    """
    from vpem._core.threads import share_processors, whereabouts
    from vpem.errors import InputError

    if how.engine != "mpi":
        return Simulator()
    engine = _ranks if _ranks is not None else join()
    if how.ranks is not None and how.ranks != engine.size:
        raise InputError(
            f"--ranks {how.ranks} were asked for, but {engine.size} "
            f"{'is' if engine.size == 1 else 'are'} there; start them with the mpiexec of the MPI "
            "that mpi4py is built for, such as: pip install mpich"
        )
    engine.timeout = how.timeout
    engine.shards = how.shards
    share_processors(engine.crew.everyones([whereabouts()]))
    screen.silent = not engine.speaks
    if engine.size == 1 and how.ranks is None:
        screen.say("one rank holds all agents; for more: mpiexec -n RANKS vpem ... --engine mpi")
    return engine


def _shards_of(output: Path, blocks: Blocks, held: Partition) -> dict[int, Path]:
    """Files of the shards of all hubs that have features, by their numbers, all different."""
    from vpem.fits.shards import shard_path

    names = [*held.names, "server"]
    plain = {b: shard_path(output, names[root]) for b, root in enumerate(blocks.roots)}
    taken = list(plain.values())
    return {
        b: path
        if taken.count(path) == 1
        else shard_path(output, f"{names[blocks.roots[b]]}-{blocks.roots[b]}")
        for b, path in plain.items()
        if len(blocks.features[b])
    }


def refuse_for_rows(engine: Simulator | Ranks, **given: Any) -> None:
    """Raise InputError where an option cannot be had over rows with --engine mpi, saying why."""
    from vpem.errors import InputError

    whys = {
        "memory_limit": "every rank keeps its workers' rows in memory",
        "shards": "every worker's model is of all features",
        "missing": "missing values in rows are integrated out in one process",
    }
    for name, why in whys.items():
        if isinstance(engine, Ranks) and given.get(name):
            raise InputError(
                f"with --engine mpi {why}; leave --{name.replace('_', '-')} out, or take "
                "--engine simulator"
            )


def _columns_of(source: Dataset, columns: Any) -> Any:
    """Read some columns of the data; no others are kept."""
    import numpy as np

    from vpem.files.parties.sharing import Share

    X = source.X
    if isinstance(source, Share):
        return X
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(X[:, columns])
    found = np.empty((len(X), len(columns)), dtype=X.dtype)
    for start, part in X.select(columns).runs():
        found[start : start + len(part)] = part
    X.close()
    return found


def _handed(total: Any, team: MpiTeam) -> dict[str, dict[str, int]]:
    """Payload bytes that all ranks really handed over, by kind."""
    parts = team.everyones([[total.handed.delivered, total.handed.on_wire]])
    found: dict[str, dict[str, int]] = {}
    for delivered, on_wire in parts:
        for name, counted in (("between_agents", delivered), ("by_mpi", on_wire)):
            for kind, size in counted.items():
                own = found.setdefault(kind, {"between_agents": 0, "by_mpi": 0})
                own[name] += size
    return found
