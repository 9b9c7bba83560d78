"""Trials in processes of their own, one thread each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

from vpem.fits.selection.trials import Outcome, Problem, Trial

ENDINGS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a search."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let kernels and BLAS take one thread, whatever the environment says."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        from vpem._core.threads import one_blas_thread

        with one_blas_thread():
            yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


def run_trials(
    problem: Problem, trials: Sequence[Trial], n_jobs: int | None
) -> Iterator[tuple[Trial, Outcome]]:
    """Do trials, begun in this order, and yield each with its result as soon as it is there.

    There are ``n_jobs`` processes of one thread each, which have a copy of the problem; with 1 it
    is done in this one; None: in this one, with as many threads as the problem's options say. The
    results (`Problem.run`) are the same. Of a trial whose process was killed ``status`` is "failed"
    and ``lost`` is True.

    Processes are started afresh, not forked: a script that calls this with several jobs guards its
    main part by ``if __name__ == "__main__"``. They end when this process does, however it ends.
    """
    n_jobs = n_jobs and min(n_jobs, len(trials))
    if n_jobs is None or n_jobs <= 1:
        with nullcontext() if n_jobs is None else one_thread():
            for trial in trials:
                yield trial, problem.run(trial)
        return
    waiting = list(reversed(trials))
    busy: dict[Any, tuple[_Process, Trial]] = {}
    with one_thread():
        try:
            while waiting or busy:
                while waiting and len(busy) < n_jobs:
                    process = _Process(problem)
                    busy[process.answers] = process, waiting.pop()
                    process.ask(busy[process.answers][1])
                for answers in wait(list(busy)):
                    process, trial = busy[answers]
                    result = process.answer()
                    if result is None or not waiting:
                        process.end()
                        del busy[answers]
                    else:
                        busy[answers] = process, waiting.pop()
                        process.ask(busy[answers][1])
                    yield trial, process.lost() if result is None else result
        finally:
            for process, _ in busy.values():
                process.end()


class _Process:
    """A process that does one trial after another."""

    def __init__(self, problem: Problem) -> None:
        context = multiprocessing.get_context("spawn")
        self.answers, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, problem), daemon=True)
        # Ctrl-C is for the first process; the others are born deaf to it. Signals wait until the
        # problem has been sent whole. The tracker's own start would let them through.
        try:
            with _waiting() as waited, _masked():
                try:
                    self._process.start()
                finally:
                    theirs.close()
            for one in waited[:1]:
                signal.raise_signal(one)
        except BaseException:
            if self._process.pid is not None:
                self.end()
            raise

    def ask(self, trial: Trial) -> None:
        """Give it a trial to do."""
        # One that has ended is found out about when its answer is read.
        with suppress(OSError):
            self.answers.send(trial)

    def answer(self) -> Outcome | None:
        """Return its result, or None where the process is no more."""
        try:
            result = self.answers.recv()
        except (EOFError, OSError):
            self._process.join(timeout=1.0)  # to know how it ended
            return None
        if isinstance(result, str):
            raise RuntimeError(result)
        return dict(result)

    def lost(self) -> Outcome:
        """Return what there is to say of a trial whose process has ended."""
        code = self._process.exitcode
        how = f"with code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"by {signal.Signals(-code).name}"
        reason = f"its process was ended {how}, perhaps for want of memory; try fewer jobs"
        return {"status": "failed", "reason": reason, "lost": True, "refused": False,
                "seconds": 0.0, "warnings": []}  # fmt: skip

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self.answers.close()


@contextmanager
def _waiting() -> Iterator[list[int]]:
    """Note signals that would end this process, for later.

    A mask is of one thread: another, of BLAS say, may take the signal all the same.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    handlers = {one: signal.signal(one, lambda number, _: noted.append(number)) for one in ENDINGS}
    try:
        yield noted
    finally:
        for one, handler in handlers.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _masked() -> Iterator[None]:
    """Let processes that are started be deaf to what would end this one."""
    if sys.platform == "win32":  # signals have no masks there
        yield
        return
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(ENDINGS))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(questions: Any, problem: Problem) -> None:
    """Do trials in a process of its own until there are no more."""
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with one_thread(), suppress(EOFError, OSError):
        while True:
            trial = questions.recv()
            try:
                result: Any = problem.run(trial)
            except Exception:
                result = f"while fitting {trial}:\n{traceback.format_exc()}"
            questions.send(result)


def _end_with_parent() -> None:
    """End this process at once when the one that started it is no more."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
