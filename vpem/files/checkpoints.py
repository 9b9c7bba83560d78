"""Checkpoints: a run that was broken off goes on as if it had not been.

A loop offers its state at the end of every iteration; a `Saver` asks for it when a checkpoint is
due, or when somebody wants the process to end. A recipe wraps what its loop offers in its own
state. What must not change between two parts of a run is compared before it goes on.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

import vpem
from vpem.checks import check_int
from vpem.engines.engine import Engine
from vpem.engines.one_process import OneProcess
from vpem.errors import FileError, InputError, Interrupted, Setting, VpemWarning, named
from vpem.files.endings import check_ending
from vpem.files.hdf5 import check_writable
from vpem.files.opening import PathLike
from vpem.files.states import read_state, write_state
from vpem.network.schema import ANEW, PLAIN, Integer, Mapping, Place, State, check

EVERY = 10
"""Iterations from one checkpoint to the next where nothing else is asked for."""


MAY_DIFFER = ("max_iter", "n_epochs", "n_threads")
"""What may be another when a run goes on."""

CHECKPOINT = {"generation": Integer(1), "facts": Mapping(PLAIN), "run": Mapping()}
"""What `FileSaver` writes; the run is checked by whoever goes on with it."""


def newest_common(generations: Sequence[Sequence[int]]) -> int | None:
    """Return the newest generation that all processes have; None where there is none."""
    common = set(generations[0]).intersection(*generations[1:])
    return max(common, default=None)


def files_of(path: PathLike, size: int = 1, *, at_home: bool = False) -> list[Path]:
    """Files that so many processes keep a checkpoint in, or one that has a path of its own."""
    if size == 1 and not at_home:
        return [Path(path)]
    size = 1 if at_home else size
    ranks = ["", *(f".rank{rank}" for rank in range(1, size))]
    return [Path(f"{os.fspath(path)}{rank}{end}") for rank in ranks for end in ("", ".before")]


def own_files(path: PathLike, engine: Engine) -> list[Path]:
    """Files that this process keeps a checkpoint in: of several processes also the one before."""
    place = 2 * engine.rank if engine.open else 0
    return files_of(path, engine.size, at_home=not engine.open)[place : place + 2]


def hold(path: Path, owner: object) -> Callable[[], object]:
    """Keep other processes from a file while ``owner`` lives, or until what is returned is called.

    FileError where another has it. The lock is the system's, on a file beside, and ends with the
    process however that ends. Nobody is kept away where there are no such locks: on Windows, and on
    some network file systems.
    """
    target = check_writable(path, force=True)
    beside = target.with_name(f".{target.name}.lock")
    try:
        import fcntl

        lock = os.open(beside, os.O_RDWR | os.O_CREAT, 0o666)
    except (ImportError, OSError):  # of what cannot be written whoever writes the state says why
        return lambda: None
    release = weakref.finalize(owner, _let_go, lock, beside, os.getpid())
    try:
        # It is the process's, and not the open file's, which forked processes have too.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(beside)):
            return release
    except (BlockingIOError, PermissionError):
        release.detach()
        os.close(lock)
        raise FileError(
            f"another run keeps its state in {path}; wait for its end, or name another file"
        ) from None
    except FileNotFoundError:
        pass
    except OSError:
        return release
    # Who had it has removed it meanwhile.
    release.detach()
    os.close(lock)
    return hold(path, owner)


def _let_go(lock: int, beside: Path, process: int) -> None:
    """Remove a lock, unless this is a process that was forked from its owner's."""
    if os.getpid() == process:
        with suppress(OSError):
            beside.unlink()
        os.close(lock)


class FileSaver:
    """Keeps the state in a file (`vpem.steps.saver.Saver`).

    Where a run is spread over several processes, each has a file of its own (``FILE``,
    ``FILE.rank1``, ...) and keeps the one before as well (``FILE.before``), so that there is always
    an iteration that all have. Where processes are others' (`Engine.open`) each has a path of its
    own, and these files there.

    Parameters
    ----------
    path : path
        The file.
    every : int
        Iterations from one checkpoint to the next; the last of a run is always written.
    resume : bool or "if-any"
        Go on from the file; "if-any": from the beginning where there is none.
    force : bool
        Replace a file that exists.
    engine : Engine, optional
        The processes, which agree on the iteration to go on from, and on when to end. None: this
        one alone.
    gone_on : bool
        Whether the processes were more, and go on without some: what there is of the run of all is
        `former`, and is replaced after the first iteration.

    Attributes
    ----------
    former : dict of int to dict
        States of a run of more processes, by generation.

    Raises
    ------
    FileError
        If there is no file to go on from, it cannot be used, or one exists and neither ``resume``
        nor ``force`` is asked for.
    InputError
        If an option is out of range.
    """

    saved: State | None = None
    place = Place("the checkpoint", "run", ANEW)

    def __init__(
        self,
        path: PathLike,
        *,
        every: int = EVERY,
        resume: bool | str = False,
        force: bool = False,
        engine: Engine | None = None,
        gone_on: bool = False,
    ) -> None:
        self.every = check_int("checkpoint_every", every, least=1)
        if resume not in (False, True, "if-any"):
            raise InputError(f"resume must be true, false or 'if-any', got {resume!r}")
        self.name = os.fspath(path)
        self._engine = engine = engine or OneProcess()
        self.size = engine.size
        self.path, *before = own_files(path, engine)
        self.before = before[0] if before else None
        self.signal: int | None = None
        """Number of the signal that wants the process to end; whoever catches it sets this."""
        self.generation = 0
        """Iterations offered since the run began; all processes count alike."""
        self._facts: State = {}
        self._found: State | None = None
        self._gone_on = gone_on
        self.former: dict[int, State] = {}
        check_ending(path, "checkpoints")
        self.release = hold(self.path, self)
        """Lets other processes have the file, once no more is written."""
        for file in self.files:
            check_writable(file, force or gone_on or bool(resume))
        if resume:
            self._find(resume == "if-any")

    @property
    def files(self) -> list[Path]:
        """What this process writes."""
        return [self.path] if self.before is None else [self.path, self.before]

    def _largest(self, number: int) -> int:
        """Return the largest of all processes' numbers."""
        return int(self._engine.allreduce(np.array([number]), "max")[0])

    def _find(self, if_any: bool) -> None:
        """Read what there is, of the newest generation that all have."""
        states: dict[int, tuple[Path, State]] = {}
        damaged: list[FileError] = []
        for file in (self.before, self.path):
            if file is not None and file.exists():
                try:
                    found = read_state(file)
                except FileError as error:
                    damaged.append(error)
                    continue
                check(CHECKPOINT, found, Place(f"the checkpoint {file}", advice=ANEW))
                if self._gone_on and found["facts"].get("processes") != self.size:
                    self.former[found["generation"]] = found["run"]
                    continue
                self._check_size(found["facts"].get("processes"))
                states[found["generation"]] = (file, found)
        if damaged and not states:
            raise damaged[0]
        for told in damaged:
            warnings.warn(f"{told}; the state beside it is taken", VpemWarning, stacklevel=3)
        chosen = newest_common(self._engine.allgather(sorted(states)))
        if chosen is None:
            newest = self._largest(max(states, default=0))
            # All that can be lost is what is written first.
            if self.former or (if_any and newest <= self.every):
                return
            if self.size == 1:
                raise FileError(
                    f"the checkpoint {self.name!r} does not exist; leave ",
                    Setting("resume"),
                    " out to begin, or give ",
                    Setting("resume", "if-any"),
                )
            raise FileError(
                f"the {self.size} processes have no checkpoint {self.name!r} in common; bring the "
                "files of all back to where they were, or begin with ",
                Setting("force", True),
                " and without ",
                Setting("resume"),
            )
        file, self._found = states[chosen]
        self.place = Place(f"the checkpoint {file}", "run", ANEW)
        self.generation = chosen
        if self.before is not None and file == self.before:
            # What others do not have is given up: it must not push out what all have.
            os.replace(self.before, self.path)

    def _check_size(self, then: object) -> None:
        if then != self.size:
            raise InputError(
                f"the checkpoint {self.name!r} is of a run in {then} process"
                f"{'' if then == 1 else 'es'}, not in {self.size}; take as many, or ",
                *ANEW,
            )

    def begin(self, facts: State) -> None:
        """Check that what was found is of the run that these facts describe.

        Raises
        ------
        InputError
            Naming what is another, and what it was.
        """
        facts = {"vpem": vpem.__version__, **facts, "processes": self.size}
        self._facts = facts
        if self._found is None:
            return
        then = self._found["facts"]
        for name in dict.fromkeys([*facts, *then]):
            one, other = then.get(name), facts.get(name)
            if name in MAY_DIFFER or one == other:
                continue
            told = f" was {one!r}, now it is {other!r}"
            if _is_sum(one) and _is_sum(other):
                told = " is not the same"
            raise InputError(
                f"the checkpoint {self.name!r} is of another run: ",
                named(name),
                f"{told}; give what it began with, or ",
                *ANEW,
            )
        self.saved = self._found["run"]
        self._found = None

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Write the state if it is due, the last, or somebody wants the process to end."""
        self.generation += 1
        wanted = self._largest(self.signal or 0)
        if wanted or last or self._gone_on or self.generation % self.every == 0:
            self.write(state())
        if wanted:
            self.signal = wanted
            # The first to leave may end the job: not before all have written.
            self._engine.barrier()
            raise Interrupted(self.name, self.generation, self.signal)

    def write(self, state: State) -> None:
        """Write a state now."""
        whole = {"generation": self.generation, "facts": self._facts, "run": state}
        write_state(self.path, whole, None if self._gone_on else self.before)
        if self._gone_on and self.before is not None:
            self.before.unlink(missing_ok=True)
        self._gone_on = False


# ---- what a run is told from others by ----------------------------------------------------------


def _is_sum(value: object) -> bool:
    return isinstance(value, str) and value.startswith("sum ")


# ---- random streams -----------------------------------------------------------------------------
