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
        from .app import invoke

        return invoke(words)
    except KeyboardInterrupt as error:
        from .session import joined  # `app` may be what was being loaded

        return joined().interrupted(*(error.args or (130,)))
    except Exception as error:
        from .app import ended_by

        return ended_by(error, words)
