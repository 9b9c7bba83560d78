"""Demonstrations: commands that are printed, and run, in a folder of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from .roles import FOLDER

Keep = Annotated[
    Path | None,
    FOLDER,
    typer.Option(help="Keep all files in this new folder.", show_default=False),
]

MOST_SECONDS = 300
MAIN = "import vpem_cli; vpem_cli.main()"


@dataclass
class Play:
    """Commands that are printed, and run, each in a process of its own."""

    home: Path  # each name has a folder of its own in it
    messages: bool = False  # print these too
    environment: dict[str, str] = field(
        default_factory=lambda: {**os.environ, "OMP_WAIT_POLICY": "passive"}
    )

    def tell(self, sentence: str) -> None:
        """Say what comes."""
        print(f"\n# {sentence}", flush=True)

    def show(self, who: str, *words: str) -> None:
        """Print a command as somebody types it."""
        print(f"{who}$ {shlex.join(words)}", flush=True)

    def run(self, who: str, command: str, *words: str) -> str:
        """Run one command in somebody's folder, and return what it prints."""
        self.show(who, "vpem", *command.split(), *words)
        return self.end(who, self.start(who, *command.split(), *words))

    def start(self, who: str, *words: str) -> subprocess.Popen[str]:
        """Start a command of vpem in somebody's folder."""
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, *words],
            cwd=self.home / who,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if self.messages else subprocess.PIPE,
            text=True,
        )

    def end(self, who: str, process: subprocess.Popen[str]) -> str:
        """Return what a process has printed, once it has ended well."""
        from vpem.errors import VpemError

        try:
            out, err = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            raise VpemError(f"{who or 'vpem'} has not ended after {MOST_SECONDS} s") from None
        if process.returncode != 0:
            said = (err or out).strip().splitlines()[-1:] or ["nothing"]
            raise VpemError(f"the demonstration ends, since {who or 'vpem'} said: {said[0]}")
        return out.rstrip("\n")


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Make a folder, which goes in the end, unless it is kept."""
    from vpem.errors import FileError

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="vpem-demo-") as made:
            yield Path(made)
        return
    try:
        keep.mkdir(mode=0o700)
    except OSError as error:
        raise FileError(f"{keep} cannot be made: {error.strerror}; give a new folder") from None
    yield keep
