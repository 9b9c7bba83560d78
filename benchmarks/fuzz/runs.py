"""One run: a file is damaged and read by a command in a child of this process, under limits."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shlex
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 10
"""Processor time that a run may take; where it only waits, three times as long."""

MEMORY = 1_000_000_000
"""Bytes that a run may hold above what this process has before it."""

NOT_MADE = 97
"""Exit code of a child in which the file could not be damaged."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NO_MEMORY = re.compile(r"not enough memory|does not fit in memory|[Uu]nable to allocate")
LEFT_OVER = re.compile(r"\.vpem-|\.part$")


@dataclass
class Outcome:
    """What a run came to; minus the number of the signal that ended it is a code.

    Seconds are of processors, children included; memory, bytes above those of this process.
    """

    code: int
    seconds: float
    memory: int
    out: str
    err: str
    defects: list[str] = field(default_factory=list)


@dataclass
class Run:
    """A command in a child: ``work`` holds the files, and beside it lies what is printed."""

    number: int
    kind: str
    words: str
    folder: Path
    child: int = 0
    began: float = 0.0
    change: str = ""

    def start(self, prepare: Callable[[Path], str]) -> None:
        """Fork a child that prepares the folder ``work`` and runs the command there."""
        self.began = time.monotonic()
        self.child = os.fork()
        if self.child == 0:
            _live(self, prepare)

    def ended(self) -> Outcome | None:
        """Return what came of it if it has ended; end it if it has had its time."""
        waited = time.monotonic() - self.began
        # On a busy machine a run waits for a processor, too.
        late = waited > 3 * SECONDS and waited > 3 * SECONDS + 15 * _processor_time(self.child)
        if late:
            os.killpg(self.child, signal.SIGKILL)
        child, status, used = os.wait4(self.child, 0 if late else os.WNOHANG)
        if child == 0:
            return None
        # What a command has started, it has ended; if not, that ends here.
        with suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        return self._judged(os.waitstatus_to_exitcode(status), used, late)

    def _judged(self, code: int, used: resource.struct_rusage, late: bool) -> Outcome:
        before = json.loads(_text(self.folder / "before.json") or "{}")
        self.change = before.get("change", "")
        out, err = (_text(self.folder / name) for name in ("stdout", "stderr"))
        memory = max(0, used.ru_maxrss * 1024 - before.get("memory", used.ru_maxrss * 1024))
        found = Outcome(code, used.ru_utime + used.ru_stime, memory, out, err)
        if code == NOT_MADE:
            raise RuntimeError(f"run {self.number} of {self.kind} could not be made: {err}")
        after = listing(self.folder / "work")
        written = sorted(
            name
            for name in {*after, *before.get("files", {})}
            if after.get(name) != before.get("files", {}).get(name)
        )
        found.defects = defects_of(found, late, written, "--strict" in self.words)
        return found


def defects_of(run: Outcome, late: bool, written: list[str], strict: bool = False) -> list[str]:
    """Return what is wrong with a run, in the order of its weight."""
    found = []
    if late or run.code == -signal.SIGXCPU or run.seconds > SECONDS:
        found.append("slow" if run.seconds > SECONDS / 2 else "waits for ever")
    elif run.code not in (0, 2) and not (strict and run.code == 3):
        found.append(f"exit code {run.code}" if run.code >= 0 else f"signal {-run.code}")
    if "Traceback (most recent call last)" in run.err:
        found.append("traceback")
    if run.memory > MEMORY or NO_MEMORY.search(run.err):
        found.append("memory")
    lines = run.err.splitlines()
    errors = [line for line in lines if line.startswith("vpem: error: ")]
    if run.code == 2 and (len(errors) != 1 or lines[-1] != errors[0]):
        found.append("not one sentence")
    if run.code == 0 and errors:
        found.append("an error and exit code 0")
    if re.search(r"^\S+:\d+: \w*Warning: ", run.err, re.MULTILINE):
        found.append("warning for programmers")
    if CONTROL.search(run.out) or CONTROL.search(run.err):
        found.append("control characters")
    left = [name for name in written if LEFT_OVER.search(name)]
    if left:
        found.append("left a temporary file")
    elif run.code == 2 and written:
        found.append(f"wrote {', '.join(written)}")
    return found


def listing(folder: Path) -> dict[str, list[int]]:
    """Return what tells whether a file of a folder is another than before."""
    found = {}
    for path in folder.rglob("*"):
        info = path.lstat()
        kept = not stat.S_ISDIR(info.st_mode)
        name = str(path.relative_to(folder))
        found[name] = [info.st_ino, info.st_size, info.st_mtime_ns] if kept else [info.st_ino]
    return found


def _text(path: Path, most: int = 1 << 20) -> str:
    if not path.exists():
        return ""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read(most)


# ---- in the child -------------------------------------------------------------------------------


def _live(run: Run, prepare: Callable[[Path], str]) -> None:
    """Prepare, run the command, and end: nothing of the parent goes on here."""
    code = 1
    try:
        os.setpgid(0, 0)
        work = run.folder / "work"
        work.mkdir(parents=True)
        _redirect(run.folder)
        try:
            change = prepare(work)
        except BaseException:
            traceback.print_exc()
            os._exit(NOT_MADE)
        os.chdir(work)
        _limit()
        before = {"files": listing(work), "memory": _resident(), "change": change}
        (run.folder / "before.json").write_text(json.dumps(before))
        import vpem_cli

        code = vpem_cli.run(shlex.split(run.words))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _redirect(folder: Path) -> None:
    """Read nothing, and print to files."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", line_buffering=True)


def _limit() -> None:
    """Keep a run from taking the machine: somewhat above what is allowed, so that it is seen."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 3 * MEMORY // 2, -1))
    spent = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS + int(spent) + 1, -1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEMORY, -1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _processor_time(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ---- in the parent ------------------------------------------------------------------------------


def in_child(work: Callable[[], object], folder: Path) -> None:
    """Do something in a child that prints to this folder; RuntimeError has what it printed."""
    child = os.fork()
    if child == 0:
        try:
            _redirect(folder)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError(f"no files to damage: {_text(folder / 'stderr')}")


def warm_up() -> None:
    """Import whatever commands import, once for all children."""
    import functools
    import gc
    import importlib
    import pkgutil

    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg
    import matplotlib.figure
    import matplotlib.pyplot  # noqa: F401
    import networkx  # noqa: F401
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401
    import sklearn.impute
    import sklearn.metrics  # noqa: F401

    import vpem
    import vpem_cli
    import vpem_cli.app
    from vpem_cli.names import leaves

    for package in (vpem, vpem_cli):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(("__main__", "engines.nvflare")):  # which needs NVFlare
                importlib.import_module(found.name)
    # The tree of commands is the same every time, and making it takes as long as a small fit.
    vpem_cli.app.command = functools.cache(vpem_cli.app.command)
    for _ in leaves(vpem_cli.app.command()):
        pass
    gc.collect()
    gc.freeze()
