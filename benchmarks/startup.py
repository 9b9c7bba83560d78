"""How long a user waits before anything happens: whole processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .measure import VPEM, Options, call, compare

__all__ = ["measure"]

DATA = Path(__file__).parents[1] / "data" / "breast_cancer.h5"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "vpem --help": [*VPEM, "--help"],
    "vpem, imported": ["-c", "import vpem"],
    "vpem fit data/breast_cancer.h5": [*VPEM, "fit", str(DATA)],
}


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield seconds of each command, start of Python included."""

    def run(arguments: list[str]) -> None:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    timed = {who: call(lambda a=a: run(a)) for who, a in COMMANDS.items()}
    yield compare(options, "start-up", "whole processes", "python -c pass", timed)
