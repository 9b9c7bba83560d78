"""The command line of vpem: `main` is the entry point and the one error boundary.

Exit codes: 0 done; 1 a defect of vpem; 2 input, options or files that cannot be used; 3 not
converged under --strict; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Words after ``vpem``; None takes those of the process.
    """
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are one sentence on stderr."""
    from .app import command
    from .output import fail

    try:
        result = command().main(
            args=None if arguments is None else list(arguments),
            prog_name="vpem",
            standalone_mode=False,
        )
    except KeyboardInterrupt:
        return fail("interrupted; nothing was written", code=130)
    except BrokenPipeError:
        # The reader of stdout has gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError as error:
        return fail(f"not enough memory ({error}); try fewer rows or --dtype float32")
    except Exception as error:
        from vpem.errors import VpemError

        if isinstance(error, VpemError):
            return fail(str(error))
        if type(error).__name__ == "Abort":
            return fail("interrupted; nothing was written", code=130)
        if hasattr(error, "format_message"):
            return fail(_usage(error))
        raise
    return result if isinstance(result, int) else 0


def _usage(error: Exception) -> str:
    """One sentence for options and arguments the parser refuses, with the nearest name."""
    from vpem.errors import did_you_mean

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "vpem"
    name = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and name and context is not None:
        known = [word for option in context.command.params for word in option.opts]
        sentence = f"no such option: {name}{did_you_mean(name, known)}"
    elif "No such command" in str(error) and context is not None:
        wanted = str(error).split("'")[1] if "'" in str(error) else ""
        known = list(getattr(context.command, "commands", {}))
        sentence = f"no such command: {wanted}{did_you_mean(wanted, known)}"
    else:
        message = error.format_message()  # type: ignore[attr-defined]
        sentence = " ".join(str(message).split()).rstrip(".")
        sentence = sentence[:1].lower() + sentence[1:]
    return f"{sentence}; see '{path} --help'"
