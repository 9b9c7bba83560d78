"""Where a command runs: alone (`Where`), as a rank of an MPI job, or as a member of a study.

The first rank of a job speaks for all. Options of engines, the placement of parties, and how the
engine is reported are here too; members of a study are in `vpem_cli.study.member`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vpem.errors import InputError, Setting, shorten
from vpem.records import ENGINES, FRAMEWORKS, Settings, beside, off, rule, setting, unless, unset

from .display import fail
from .names import name_of
from .outputs import reads, writes, written

if TYPE_CHECKING:
    from vpem.engines.cluster import ClusterEngine, Ticket
    from vpem.engines.engine import Engine
    from vpem.engines.placement import Placement
    from vpem.files.checkpoints import FileSaver
    from vpem.files.parties.opening import Party
    from vpem.files.table_settings import TableSettings
    from vpem.network.schema import Report
    from vpem.sums.connect import Network
    from vpem.sums.sum import Traffic

    from .display import Screen
    from .outputs import LabelFile, Output
    from .runner import FitOutcome


LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
"""Variables in which launchers set the number of processes, and that of this one."""

PASSED_ON = 0.5
"""Seconds in which a signal sent to one rank reaches the first, which then speaks for all."""

LAST_WORDS = 0.1
"""Seconds in which the launcher reads what was printed, before the job is ended."""

TICKET = "_VPEM_TICKET"
"""Variable that says that this process was placed by a framework (`Placed`)."""

NOT_THERE = "nothing"
"""The value of an option that is not given, in comparisons."""

STALLED = 4
"""Exit code where a rank did not answer."""

INTERRUPTED = "interrupted; nothing was written"


class Where:
    """A command that runs in one process.

    ``word`` names its engine in reports; ``own_users`` says whether each process has a user of its
    own, who sees results and names outputs, on its ``screen``.
    """

    word = "simulator"
    own_users = False
    screen: Screen
    speaks = True
    """Whether this process prints, and writes the common files."""
    shards_of: Path | None = None
    """The model of which each process writes its part, if it does."""
    least_rows = 0.0
    """Rows that every component of a model needs before others get it; 0: none do."""

    @cached_property
    def engine(self) -> Engine:
        """The engine of all processes, including this one."""
        from vpem.engines.engine import Engine

        return Engine()

    shares_state = False
    """Whether the first process keeps the state of a run for all, which have it alike."""

    def agree(self, context: Any) -> None:
        """Raise InputError where processes were given different options, before any work."""

    def prepare(self, settings: EngineSettings) -> None:
        """Apply the options about processes."""

    @property
    def gone_on(self) -> bool:
        """Whether the run goes on without processes that were lost."""
        return False

    def keep(self, saver: FileSaver | None) -> Any:
        """Return a saver of the state of a run, given that of checkpoints, if any."""
        return saver

    def parties(
        self,
        files: Sequence[Path],
        table: TableSettings,
        model_table: TableSettings | None = None,
        *,
        columns: bool = True,
    ) -> list[Party]:
        """Return all parties, at least those of this process with their files.

        ``columns`` says whether files are tables of features, which a study may name.
        """
        from vpem.files.parties.opening import choose_parties

        return choose_parties(files, table, model_table)

    def place(self, parties: Sequence[Party], labels: LabelFile | None = None) -> Placement:
        """Return which process holds which parties; InputError unless all have the same list.

        No file of a party may be overwritten.
        """
        from vpem.engines.placement import Placement, for_each
        from vpem.fits.parts import shard_path

        engine, names = self.engine, [party.name for party in parties]
        ours, *others = engine.allgather(names)
        for rank, listed in enumerate(others, 1):
            theirs = list(map(str, listed)) if isinstance(listed, list) else [str(listed)]
            if theirs != ours:
                raise InputError(
                    f"rank 0 has the parties {', '.join(ours)}, rank {rank} has "
                    f"{shorten(theirs, 200):.2000}; give all ranks the same, in the same order"
                )
        holders = Placement.evenly(engine, len(names), names)
        if self.shards_of is not None:
            both = ([] if engine.rank else ["server"]) + [names[agent] for agent in holders.own]
            writes("--shards", *(shard_path(self.shards_of, name) for name in both))
        if labels is not None:
            labels.place(names, holders)
        for option, path in written() if self.own_users else chain(*engine.allgather(written())):
            writes(option, path)
        for_each(
            holders, range(len(names)), lambda n: reads(f"party {names[n]!r}", *parties[n].find())
        )
        return holders

    def anybody(self, name: str, here: bool) -> bool:
        """Whether any process was given an option that need not be given to all."""
        return here

    def facts(self, files: Sequence[Path]) -> Report:
        """Return the warnings and files of the common report."""
        return {"warnings": list(self.screen.warnings), "data": ", ".join(map(str, files))}

    def options(self, record: Report, files: Sequence[str]) -> Report:
        """Return what models keep of options, of which ``files`` are local or name files."""
        return record

    def share(self, result: FitOutcome, out: Output) -> Report:
        """Write the result to the outputs, if others may have it, and return the report."""
        report = result.tell()
        if out.output is not None and result.write is not None:
            result.write(out.output, report)
        report["model"] = None if out.output is None else str(out.output)
        return report | result.own(report)

    def watch(self, n_rows: int, over_rows: bool) -> None:
        """Check how many rows there are, over which sums will be taken."""

    def describe(self) -> dict[str, Any]:
        """Return the processes as reports describe them."""
        return {"engine": self.word}

    def tell_warnings(self) -> None:
        """Bring warnings to the process that prints them."""

    def close(self) -> None:
        """End together with others, after the work is done."""

    def fail(self, error: Exception, sentence: str | None) -> int:
        """Report what went wrong, and return the exit code; a defect (no sentence) is raised."""
        if sentence is None:
            raise error
        return fail(sentence, getattr(error, "exit_code", 2))

    def interrupted(self, code: int) -> int:
        """Report that the command was interrupted, and return the exit code."""
        return fail(INTERRUPTED, code)


_joined = Where()


def joined() -> Where:
    """Return the place of this process: alone, in an MPI job, or in a study."""
    return _joined


def join(where: Where | None) -> None:
    """Set the place of this process; None: alone again."""
    global _joined
    _joined = where or Where()


def terminate(number: int, frame: Any) -> None:
    """Raise an interrupt with the exit code of SIGTERM, whose handler this is."""
    raise KeyboardInterrupt(143)


def _variable(name: str) -> int:
    """Return the number that an environment variable has, or 0."""
    from vpem.checks import read_int

    return read_int(os.environ.get(name, "")) or 0


def launched() -> list[str]:
    """Return the variables by which a launcher says that it started several processes."""
    return [count for count, _ in LAUNCHERS if _variable(count) > 1]


def join_job() -> Job:
    from vpem.checks import check_int

    def refuse(sentence: str) -> NoReturn:
        """Raise InputError in the first process of a launcher; others end without a sentence."""
        if any(_variable(number) for _, number in LAUNCHERS):
            raise SystemExit(2)
        raise InputError(sentence)

    for count, _ in LAUNCHERS:  # the MPI library itself would end without a sentence
        value = _variable(count) or os.environ.get(count) or 1
        check_int(f"the environment variable {count}", value, least=1)
    try:
        # mpi4py warns of a launcher that looks foreign; that is checked below.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            from vpem.engines import mpi
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        refuse(
            f"--engine mpi needs mpi4py and an MPI library ({reason}); try: pip install "
            "'vpem[mpi]' mpich"
        )
    engine, library = mpi.join()
    for count in launched() if engine.size == 1 else ():
        refuse(
            f"the launcher started {_variable(count)} processes ({count}), but each of them is "
            f"alone: mpi4py is built for another MPI ({library}); take the mpiexec of that MPI, or "
            "build mpi4py for yours (pip install --no-binary mpi4py mpi4py)"
        )
    job = Job(engine)
    join(job)
    signal.signal(signal.SIGTERM, terminate)
    return job


def check_alike(
    names: Sequence[str], everyones: Sequence[dict[str, Any]], must: str, but: str = ""
) -> None:
    """Raise InputError where processes have different values of an option, except of ``but``.

    ``everyones`` has each one's values and their sources by options; those not there are defaults.
    """
    first = everyones[0]
    for name, others in zip(names, everyones, strict=True):
        for option in sorted({*first, *others} - {but}):
            one, two = (each.get(option, [NOT_THERE, "default"]) for each in (first, others))
            if one[0] != two[0]:
                raise InputError(
                    f"{option} is set differently: {names[0]} has {one[0]:.300} ({one[1]:.60}), "
                    f"{name} has {two[0]:.300} ({two[1]:.60}); {must}"
                )


class Job(Where):
    word = "mpi"

    def __init__(self, engine: Engine) -> None:
        self.engine, self.speaks = engine, engine.rank == 0

    def agree(self, context: Any) -> None:
        """Raise InputError where files or variables of ranks set options differently."""
        if self.engine.size == 1:
            return
        from .options import source_of

        ours = {}
        for param in context.command.params:
            kind, place = source_of(context, param)
            if place is not None:
                value = str(context.params.get(param.name))
                ours[name_of(param)] = [value, f"{kind} {place}"]
        must = "give it on the command line, or give all ranks the same file and variables"
        check_alike(self.engine.names, self.engine.allgather(ours), must)

    def prepare(self, settings: EngineSettings) -> None:
        """Share the processors of each machine, and let the first rank speak."""
        from vpem._core.threads import crowded, share_processors, whereabouts

        engine = self.engine
        if settings.ranks not in (None, engine.size):
            raise InputError(
                f"--ranks requires {settings.ranks} ranks, but the job has {engine.size}; start it "
                "with the mpiexec of the MPI that mpi4py is built for, such as: pip install mpich"
            )
        engine.timeout = settings.timeout
        share_processors(engine.allgather(whereabouts()))
        engine.crowded = crowded()
        self.screen.silent = engine.rank > 0
        if engine.size == 1 and settings.ranks is None:
            self.screen.say(
                "one rank holds all agents; for more: mpiexec -n RANKS vpem ... --engine mpi"
            )

    def describe(self) -> dict[str, Any]:
        return {"engine": self.word, "ranks": self.engine.size}

    def tell_warnings(self) -> None:
        """Print the warnings of other ranks at the first, each once."""
        for rank, texts in enumerate(self.engine.gather(self.screen.warnings) or []):
            for text in texts:
                if text not in self.screen.warnings:
                    self.screen.warn(text, f"{self.engine.names[rank]}: ")

    def close(self) -> None:
        self.engine.barrier()

    def fail(self, error: Exception, sentence: str | None) -> int:
        """Report once what went wrong at one rank, or at all alike, and end all of them."""
        if self.engine.size == 1:
            return super().fail(error, sentence)
        code = getattr(error, "exit_code", 2)
        if sentence is None:
            import traceback

            code, last = 1, traceback.format_exception_only(error)[-1].strip()
            sentence = f"{last} (a defect of vpem)\n{traceback.format_exc()}"
        stalled = code == STALLED
        alike = self.engine.rank == 0 and stalled
        alike = alike or self.engine.announce_end(sentence, patient=not stalled)
        return self._abort(code, sentence, named=not alike and not stalled)

    def interrupted(self, code: int) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self.engine.announce_end(INTERRUPTED, patient=False)
        time.sleep(PASSED_ON * bool(self.engine.rank))
        return self._abort(code, INTERRUPTED, named=self.engine.rank > 0)

    def _abort(self, code: int, sentence: str, named: bool) -> int:
        """End all ranks, with a sentence of this one, which it names if others may differ."""
        sentence = f"{self.engine.names[self.engine.rank]}: {sentence}" if named else sentence
        if code == 1:  # a defect, in many lines
            print(f"vpem: {sentence}", file=sys.stderr, flush=True)
        else:
            fail(sentence)
        sys.stdout.flush()
        sys.stderr.flush()
        # Otherwise output that the launcher has not read yet would be lost.
        time.sleep(LAST_WORDS)
        self.engine.abort(code)
        return code


class Placed(Job):
    """A command in this process and at workers of a framework, who run the same words."""

    shares_state = True

    engine: ClusterEngine

    def __init__(self, word: str, engine: ClusterEngine, leave: ExitStack) -> None:
        super().__init__(engine)
        self.word, self._leave = word, leave
        signal.signal(signal.SIGTERM, terminate)

    def agree(self, context: Any) -> None:
        """All have the same words and variables."""

    def prepare(self, settings: EngineSettings) -> None:
        from vpem._core.threads import share_processors, whereabouts

        if settings.timeout is not None:
            self.engine.wait_for(settings.timeout)
        share_processors(self.engine.allgather(whereabouts()))
        self.screen.silent = self.engine.rank > 0

    def keep(self, saver: FileSaver | None) -> Any:
        from vpem.fits.clusters import Led

        return Led(self.engine, inner=saver)

    def close(self) -> None:
        self._leave.close()

    def fail(self, error: Exception, sentence: str | None) -> int:
        """Let others know why this process ends, and report it here."""
        from vpem.engines.engine import StalledError

        with suppress(type(error)):
            self._leave.__exit__(type(error), error, None)
        if sentence is None:
            raise error
        if isinstance(error, StalledError):
            sentence += "; a run with --checkpoint goes on with --resume, at any number of workers"
        return fail(sentence, getattr(error, "exit_code", 2))

    def interrupted(self, code: int) -> int:
        ending = KeyboardInterrupt("it was interrupted")
        with suppress(KeyboardInterrupt):
            self._leave.__exit__(KeyboardInterrupt, ending, None)
        return fail(INTERRUPTED, code)


def join_placed(word: str) -> None:
    """Join the run of a command that another process has placed here, by a ticket from stdin."""
    from vpem.engines.cluster import Ticket, joined
    from vpem.network.messages import decode

    del os.environ[TICKET]
    ticket, leave = Ticket(**decode(sys.stdin.buffer.read())), ExitStack()
    join(Placed(word, leave.enter_context(joined(ticket)), leave))


def place(settings: EngineSettings, screen: Screen) -> Placed:
    """Have workers of a framework run this command, too; this process leads them."""
    from vpem.engines.cluster import FRAMEWORKS, run_command
    from vpem.fits.clusters import leading

    cluster = FRAMEWORKS[settings.engine].at(settings.scheduler, settings.ranks)
    names = cluster.names[: settings.ranks]
    if len(names) < (settings.ranks or 1):
        raise InputError(
            f"there are {len(names)} workers, but ", Setting("ranks", settings.ranks or 1),
            " are to take part; start more",
        )  # fmt: skip
    variables = {TICKET: "stdin"} | {
        name: value for name, value in os.environ.items() if name[:5] == "VPEM_"
    }

    def start(ticket: Ticket) -> None:
        own = variables | {"OMP_NUM_THREADS": str(cluster.threads(ticket.rank))}
        cluster.start(ticket.rank, run_command, ticket, sys.argv[1:], own, os.getcwd())

    screen.say(f"waiting for {len(names)} worker{'s' * (len(names) > 1)} of {settings.engine}")
    with ExitStack() as leave:
        engine = leave.enter_context(leading(cluster, names, start))
        where = Placed(settings.engine, engine, leave.pop_all())
    join(where)
    return where


APART = beside(
    " is for processes of their own; add --engine mpi, or --study FILE", engine="simulator"
)
RANKS = unless(
    " is for processes of their own; add --engine mpi, dask or ray", engine=("mpi", *FRAMEWORKS)
)
PLACED = unless(
    " is for frameworks that place workers; add --engine dask, or ray", engine=FRAMEWORKS
)
SHARDS_OF_ROWS = beside(
    " have the features of one hub each, but with {split=rows} every worker's model has all "
    "features; leave it out",
    split="rows",
)
SHARDS_OF_POSTERIOR = rule(
    lambda given: given.get("weight_concentration_prior_type") not in (None, "map"),
    " hold means and covariances, but a posterior needs its priors too; leave it out, or take EM "
    "without {weight_concentration_prior_type}",
)
SHARDS_OF_NOTHING = rule(
    lambda given: given.get("output", "") is None and given["study"] is None,
    " are named after {output}; give it",
)
NO_STUDY = beside(" is for members of a study; add {study=FILE}", study=None)
of_members = partial(unset, local=True, idle=NO_STUDY)
"""Return a field for members of a study alone."""


class EngineSettings(Settings, heading="Running", kept=False):
    engine: str = setting(
        "simulator",
        "simulator: one process holds all agents. mpi: each agent is a rank of its own, or some "
        "share one (mpiexec -n 5 {command} ... --engine mpi; needs vpem[mpi]). tls: each party "
        "runs this command on its own machine (see --study). nvflare: so does the job of NVFlare "
        "that 'vpem study job' writes. dask, ray: workers of a cluster run this command, too, on "
        "the same files (see --scheduler; need vpem[dask], vpem[ray]).",
        choices=("simulator", "mpi", *ENGINES, *FRAMEWORKS),
        idle=[
            beside(f" {one} is for members of a study; add --study FILE", engine=one, study=None)
            for one in ENGINES
        ],
    )
    scheduler: str | None = unset(
        "With --engine dask: address of the scheduler, tcp://HOST:8786; with --engine ray: of the "
        "head, HOST:6379. Default: workers on this machine alone.",
        idle=PLACED,
    )
    study: Path | None = unset(
        "Take part in this study (.toml; see 'vpem study'), which says who the parties are and "
        "what all run; DATA is this party's own. Implies --engine tls --parties; needs vpem[tls].",
        file="read",
        local=True,
        idle=unless(" implies --engine tls; leave out --engine", engine=ENGINES),
    )
    member: str | None = of_members(
        "With --study: which of its members this is. Default: the one whose key lies beside it.",
        flags="--as",
    )
    listen: str | None = of_members(
        "With --study: where to listen for others, HOST:PORT or PORT. Default: at the port that "
        "the study says."
    )
    log: Path | None = of_members(
        "With --study: note every message in this file: kind, size, SHA-256, to or from whom, and "
        "when. Default: MEMBER-STUDY.log beside the study.",
        file="written",
    )
    ranks: int | None = unset(
        "With --engine mpi: how many ranks there must be; with dask or ray: how many workers take "
        "part. Default: all that are there.",
        least=1,
        idle=RANKS,
    )
    timeout: float | None = unset(
        "End, naming the rank or member, when one has not answered for so many seconds. Default: "
        "with --engine mpi wait forever, with --study as the study says.",
        least=0,
        above=True,
        local=True,
        idle=APART,
    )
    shards: bool = off(
        "Each hub's root writes its own parameters: with --engine mpi beside --output and named "
        "after it, in a study (if that says so) to --output; see 'vpem model join'.",
        idle=[APART, SHARDS_OF_ROWS, SHARDS_OF_POSTERIOR, SHARDS_OF_NOTHING],
    )


def where_of(settings: EngineSettings, screen: Screen) -> Where:
    """Return where a command runs, or raise InputError if it cannot run there."""
    where = joined()
    if settings.engine == "mpi" and where.word != "mpi":
        where = join_job()
    elif settings.engine in FRAMEWORKS and where.word != settings.engine:
        where = place(settings, screen)
    elif settings.engine == "simulator":
        if launched():
            screen.print_note(
                "a launcher started several processes, each of which does all of the work; to "
                "share it give --engine mpi"
            )
        where = Where()
    where.screen = screen
    where.prepare(settings)
    return where


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
