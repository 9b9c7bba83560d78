"""A command run alone (`Where`), or by one rank of an MPI job, whose first rank speaks for all."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.files.checkpoints import FileSaver
    from vpem.files.parties.opening import Party
    from vpem.files.table_settings import TableSettings
    from vpem.network.schema import Report

    from .display import Screen
    from .engine import EngineSettings
    from .results import FitOutcome
    from .runner import Output

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

STALLED = 4
"""Exit code where a rank did not answer."""


class Where:
    """A command that runs in one process.

    ``word`` names its engine in reports; ``own_users`` says whether each process has a user of its
    own, who sees results and names outputs.
    """

    word = "simulator"
    own_users = False

    @cached_property
    def engine(self) -> Engine:
        """The engine of all processes, including this one."""
        from vpem.engines.engine import OneProcess

        return OneProcess()

    @property
    def speaks(self) -> bool:
        """Whether this process prints, and writes the common files."""
        return True

    def agree(self, context: Any) -> None:
        """Raise InputError where processes were given different options, before any work."""

    def prepare(self, settings: EngineSettings, screen: Screen) -> None:
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

    def anybody(self, name: str, here: bool) -> bool:
        """Whether any process was given an option that need not be given to all."""
        return here

    def facts(self, screen: Screen, files: Sequence[Path]) -> Report:
        """Return the warnings and files of the common report."""
        return {"warnings": list(screen.warnings), "data": ", ".join(map(str, files))}

    def options(self, record: Report, files: Sequence[str]) -> Report:
        """Return what models keep of options, of which ``files`` are local or name files."""
        return record

    def share(self, result: FitOutcome, out: Output, screen: Screen) -> Report:
        """Write the result to the outputs, and return the report."""
        report = result.tell()
        if out.output is not None:
            result.write(out.output, report)
        report["model"] = None if out.output is None else str(out.output)
        return report | result.own(report)

    @property
    def least_rows(self) -> float:
        """Rows that every component of a model needs before others get it; 0: none do."""
        return 0.0

    def check_published(self, result: FitOutcome) -> None:
        """Raise InputError where a model would disclose few rows to others."""

    def watch(self, n_rows: int, over_rows: bool, screen: Screen) -> None:
        """Check how many rows there are, over which sums will be taken."""

    def describe(self) -> dict[str, Any]:
        """Return the processes as reports describe them."""
        return {"engine": self.word}

    def tell_warnings(self, screen: Screen) -> None:
        """Bring warnings to the process that prints them."""

    def close(self) -> None:
        """End together with others, after the work is done."""

    def fail(self, error: Exception, sentence: str | None, tell: Callable[..., int]) -> int:
        """Report what went wrong, and return the exit code; a defect (no sentence) is raised."""
        if sentence is None:
            raise error
        return tell(sentence, code=getattr(error, "exit_code", 2))

    def interrupted(self, tell: Callable[..., int], code: int) -> int:
        """Report that the command was interrupted, and return the exit code."""
        return tell("interrupted; nothing was written", code=code)


_alone = Where()
_joined: Where = _alone


def joined() -> Where:
    """Return the place of this process: alone, in an MPI job, or in a study."""
    return _joined


def join(where: Where | None) -> None:
    """Set the place of this process; None: alone again."""
    global _joined
    _joined = where or _alone


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def terminate(number: int, frame: Any) -> None:
    """Raise `Terminated`: a handler of SIGTERM."""
    raise Terminated


def launched() -> bool:
    """Whether a launcher started several processes."""
    return any((_variable(count) or 1) > 1 for count, _ in LAUNCHERS)


def _variable(name: str) -> int | None:
    from vpem.checks import read_int

    return read_int(os.environ.get(name, ""))


def join_job() -> Job:
    """Join the MPI job that this process was started in."""
    from vpem.checks import check_int
    from vpem.errors import InputError

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
        _leave_it_to_the_first()
        raise InputError(
            f"--engine mpi needs mpi4py and an MPI library ({reason}); try: pip install "
            "'vpem[mpi]' mpich"
        ) from None
    engine, library = mpi.join()
    for count, _ in LAUNCHERS if engine.size == 1 else ():
        number = _variable(count) or 1
        if number > 1:
            _leave_it_to_the_first()
            raise InputError(
                f"the launcher started {number} processes ({count}), but each of them is alone: "
                f"mpi4py is built for another MPI ({library}); take the mpiexec of that MPI, "
                "or build mpi4py for yours (pip install --no-binary mpi4py mpi4py)"
            )
    job = Job(engine)
    join(job)
    signal.signal(signal.SIGTERM, terminate)
    return job


def _leave_it_to_the_first() -> None:
    """End without a sentence if this is not the first process of a launcher."""
    if any(_variable(number) or 0 for _, number in LAUNCHERS):
        raise SystemExit(2)


class Job(Where):
    """A rank of an MPI job."""

    word = "mpi"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def speaks(self) -> bool:
        return self.engine.rank == 0

    def agree(self, context: Any) -> None:
        """Raise InputError where files or variables of ranks set options differently."""
        if self.engine.size == 1:
            return
        from vpem.errors import InputError

        from .config import name_of, source_of

        local_options = {}
        for param in context.command.params:
            kind, place = source_of(context, param)
            if place is not None:
                local_options[name_of(param)] = (
                    str(context.params.get(param.name)),
                    f"{kind} {place}",
                )
        everyones = self.engine.allgather(local_options)
        for name in sorted({name for options in everyones for name in options}):
            values = [options.get(name) for options in everyones]
            for rank, value in enumerate(values):
                if (value and value[0]) != (values[0] and values[0][0]):
                    first, other = (
                        "nothing" if option is None else f"{option[0]} ({option[1]})"
                        for option in (values[0], value)
                    )
                    raise InputError(
                        f"{name} is set differently: rank 0 has {first}, rank {rank} {other}; give "
                        "it on the command line, or give all ranks the same file and variables"
                    )

    def prepare(self, settings: EngineSettings, screen: Screen) -> None:
        """Share the processors of each machine, and let the first rank speak."""
        from vpem._core.threads import crowded, share_processors, whereabouts
        from vpem.errors import InputError

        engine = self.engine
        if settings.ranks is not None and settings.ranks != engine.size:
            raise InputError(
                f"--ranks requires {settings.ranks} ranks, but the job has {engine.size}; start it "
                "with the mpiexec of the MPI that mpi4py is built for, such as: pip install mpich"
            )
        engine.timeout = settings.timeout
        share_processors(engine.allgather(whereabouts()))
        engine.crowded = crowded()
        screen.silent = engine.rank > 0
        if engine.size == 1 and settings.ranks is None:
            screen.say(
                "one rank holds all agents; for more: mpiexec -n RANKS vpem ... --engine mpi"
            )

    def describe(self) -> dict[str, Any]:
        return {"engine": self.word, "ranks": self.engine.size}

    def tell_warnings(self, screen: Screen) -> None:
        """Print the warnings of other ranks at the first, each once."""
        for rank, texts in enumerate(self.engine.gather(screen.warnings) or []):
            for text in texts if rank else []:
                if text not in screen.warnings:
                    screen.warn(text, f"{self.engine.names[rank]}: ")

    def close(self) -> None:
        self.engine.barrier()

    def fail(self, error: Exception, sentence: str | None, tell: Callable[..., int]) -> int:
        """Report once what went wrong at one rank, or at all alike, and end all of them."""
        if self.engine.size == 1:
            return super().fail(error, sentence, tell)
        code = getattr(error, "exit_code", 2)
        if sentence is None:
            import traceback

            last = traceback.format_exception_only(error)[-1].strip()
            sentence = f"{last} (a defect of vpem)\n{traceback.format_exc()}"

            def tell(text: str, code: int = 1) -> int:
                print(f"vpem: {text}", file=sys.stderr, flush=True)
                return code

            code = 1
        stalled = code == STALLED
        alike = self.engine.rank == 0 and stalled
        alike = alike or self.engine.announce_end(sentence, patient=not stalled)
        tell(sentence if alike or stalled else f"{self.engine.names[self.engine.rank]}: {sentence}")
        return self._abort(code)

    def interrupted(self, tell: Callable[..., int], code: int) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        sentence = "interrupted; nothing was written"
        self.engine.announce_end(sentence, patient=False)
        if self.engine.rank:
            time.sleep(PASSED_ON)
            sentence = f"{self.engine.names[self.engine.rank]}: {sentence}"
        tell(sentence)
        return self._abort(code)

    def _abort(self, code: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        # Otherwise output that the launcher has not read yet would be lost.
        time.sleep(LAST_WORDS)
        self.engine.abort(code)
        return code
