"""The command line of vpem: `main` is the entry point and the one error boundary.

Exit codes: 0 done; 1 a defect of vpem; 2 input, options or files that cannot be used; 3 not
converged under --strict; 4 a rank or member did not answer; 130 interrupted by Ctrl-C, 143
ended by SIGTERM.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import Where

__all__ = ["main"]

OPENBLAS_THREAD_TIMEOUT = "16"
"""Cycles, as a power of 2, that BLAS threads without work spin before they give way: some 20 us."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, by default that of this process's arguments, and exit with its code."""
    # Threads of OpenBLAS spin for 2^26 cycles once it is loaded, and after each of their calls.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", OPENBLAS_THREAD_TIMEOUT)
    code = run(arguments)
    gc.freeze()  # at exit Python would search all objects for garbage
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are one sentence on stderr."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # stdout and stderr take every character; writing to a closed stdout is an error.
        sys.stdout = sys.stdout or open(os.devnull, encoding="utf-8")  # noqa: SIM115
        sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        # Libraries that read these variables fail where they are no size of a terminal.
        for name in ("COLUMNS", "LINES"):
            if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(name, "1")):
                del os.environ[name]
        if words in (["--version"], ["-V"]):  # which takes no parser
            from vpem import __version__

            print(f"vpem {__version__}", flush=True)
            return 0
        _join(words)
        code = _invoke(words)
        sys.stdout.flush()
        _place().close()
        return code
    except KeyboardInterrupt as error:
        return _place().interrupted(_fail, 143 if type(error).__name__ == "Terminated" else 130)
    except BrokenPipeError:
        # The reader of stdout has gone: there is no one left to report to.
        _drop_stdout()
        if _place().own_users:
            _place().close()
        return 0
    except Exception as error:
        return _place().fail(error, _sentence(error, words), _fail)


def _place() -> Where:
    """Where this process runs: alone, in an MPI job, or in a study."""
    from .session import joined

    return joined()


def _fail(message: str, code: int = 2) -> int:
    from .display import fail

    return fail(message, code)


def _join(words: list[str]) -> None:
    """Join the MPI job of this process if --engine mpi is chosen, before anything is parsed.

    Processes of a job must join it before an option of one of them is refused. A file that cannot
    be read stands for MPI where a launcher started several processes.
    """
    from .names import value_in

    chosen, file = value_in(words, "--engine"), value_in(words, "--config")
    if chosen is None and (file or any(name[:5] == "VPEM_" for name in os.environ)):
        from vpem.errors import VpemError
        from vpem.files.json_text import read_toml

        from .options import variable_of
        from .session import launched

        path = _path_in(words)
        chosen = os.environ.get(variable_of(path, "engine"))
        file = file or os.environ.get(variable_of(path, "config"))
        if file and not chosen:
            try:
                table: Any = read_toml(file)
            except VpemError:
                table, path = {"engine": "mpi"} if launched() else {}, []
            for word in [*path, "engine"]:
                table = table.get(word) if isinstance(table, dict) else None
            chosen = table
    if chosen == "mpi":
        from .session import join_job

        join_job()


def _path_in(words: list[str]) -> list[str]:
    """Return the first words of a command line, which name a command or group."""
    from .app import command

    node, place = command(), 0
    while place < len(words) and words[place] in getattr(node, "commands", ()):
        node, place = node.commands[words[place]], place + 1
    return words[:place]


def _drop_stdout() -> None:
    """Discard what stdout still holds, so that it fails only once."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _invoke(words: list[str]) -> int:
    """Parse the words, run the command they name, and return its exit code."""
    from typer import Exit

    from .app import command

    parser = command()
    if os.environ.get("_VPEM_COMPLETE"):
        # The help has no markup that Rich must remove, and a shell is waiting.
        sys.modules["rich"] = None  # type: ignore[assignment]
        parser.main(args=words, prog_name="vpem")
    # Not `parser.main`, which turns an interrupt into an exit without a word.
    try:
        with parser.make_context("vpem", words.copy()) as context:
            parser.invoke(context)
    except Exit as end:
        return int(end.exit_code)
    except Exception as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            raise
        print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
        return 2
    return 0


def _sentence(error: Exception, words: list[str]) -> str | None:
    """Say in one sentence what went wrong, or return None if it is a defect of vpem."""
    from vpem.errors import VpemError

    from .names import in_options, spoken

    if isinstance(error, OSError):
        try:
            os.getcwd()
        except OSError:
            cause = f"{in_options(error)}; " if isinstance(error, VpemError) else ""
            return f"{cause}the working folder has been removed: go to one that exists"
    if isinstance(error, VpemError):
        return spoken(error)
    if isinstance(error, MemoryError):
        size = f" ({error})" if str(error) else ""
        return f"not enough memory{size}; try fewer rows or --dtype float32"
    if isinstance(error, OSError) and error.filename is None:
        # Files are dealt with where they are opened: what has no name is a stream.
        _drop_stdout()
        return f"standard output cannot be written: {error.strerror or 'it is closed'}"
    return _usage(error, words) if hasattr(error, "format_message") else None


def _usage(error: Any, words: list[str]) -> str:
    """One sentence for options and arguments that the parser refuses, with the nearest name."""
    from .names import ELSE, hint, in_options, meant, name_of
    from .options import origin_of, why_refused

    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    name, what = getattr(error, "option_name", None), ""
    near: list[str] = []
    path = context.command_path if context else " ".join(["vpem", *_path_in(words)])
    if type(error).__name__ == "NoSuchOption" and name and context:
        why = why_refused(context.info_name, name)
        if why is not None:
            return in_options(why)
        options = context.command.get_params(context)
        known = {word.lstrip("-"): name_of(option) for option in options for word in option.opts}
        # A long option with one dash is read as short ones: search for the word as typed.
        typed = [word for word in words if word.startswith(name) and name[1] != "-"]
        what, word = "option", next(iter(typed), name)
        near = [known[one] for one in meant(word, known)]
    elif "No such command" in str(error) and context:
        what, word = "command", str(error).split("'")[1] if "'" in str(error) else ""
        name, near = word, _commands(word, context)
    if what:
        advice = (f"; {advice}" for words, advice in ELSE if word.strip("-") in words)
        sentence = f"no such {what}: {name}{hint(near) or next(advice, '')}"
    else:
        sentence = " ".join(str(error.format_message()).split()).rstrip(".")
        sentence = sentence[:1].lower() + sentence[1:]
    origin = origin_of(context, param) if context and param else None
    return f"{'; '.join(filter(None, (sentence, origin)))}; see '{path} --help'"


def _commands(word: str, context: Any) -> list[str]:
    """Return the commands that a word may stand for: of this group, or of others by full name."""
    from .names import leaves, meant

    below = [path for path, _ in leaves(context.find_root().command) if len(path) > 1]
    names, in_group = [path[-1] for path in below], meant(word, context.command.commands)
    if in_group and word not in names:
        return in_group
    found = meant(word, dict.fromkeys(names))
    return [" ".join(("vpem", *path)) for path in below if path[-1] in found] or in_group
