"""Members of a study inside a job of NVFlare: their processes, and the streams between them.

NVFlare builds a `Site` in each client's process of the job and a `Server` in the server's, as the
files say that 'vpem study job' writes. Where the study and a member's key lie at a site, it runs
the study's command in a process of its own. Members' links are what they are anywhere: TLS from
member to member, by the keys of the study. Collab calls carry their bytes from site to site, so
that no member needs a port, and NVFlare's server sees nothing but their lengths.

A process opens a stream by the socket "out" in a folder of its own, and finds those of others at
"in" (`vpem.engines.tls.link.carried`). A job chooses only which study and which of its commands is
run: what that does is signed by the organiser, and limited by the site's policy.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, SHUT_RDWR, socket
from threading import Lock, Thread
from typing import Any

from nvflare.collab import CollabCallError, collab

from vpem.engines.tls.link import DOOR, WAY_OUT
from vpem.engines.tls.trust import NAME

PLACE = "local/vpem"
"""Folder of studies in a site's startup kit."""

OPTIONS = "vpem.toml"
"""What the site's own options are: its data, above all."""

WITH_MODEL = ("fit", "select", "discriminant", "kmeans", "fedem", "saem", "impute")
"""Commands whose --output is put into the job's folder where the site does not say otherwise."""

PIECE = 1 << 18
"""Bytes that a call carries, at most."""

MOST = 256
"""Streams that another site may have open here."""

SECONDS = 30.0
"""For a call to be answered; a stream whose call is not is cut, and links open another."""

LOOK_EVERY, SILENT = 1.0, 10
"""Seconds between questions whether a site has ended, and how many of these it may not answer."""

DONE = (0, 3)
"""Exit codes where there is a result: it may not have converged."""

Key = tuple[str, int, bool]
"""Of a stream: the other site, its number, and whether it was opened there."""


def _checked(name: object) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError("a study, command or member has no such name")
    return name


class Site:
    """What a site does in a job: ``study`` is the name of a file in its folder."""

    def __init__(self, study: str, command: str) -> None:
        self._study, self._command = _checked(study), _checked(command)
        self._streams: dict[Key, socket] = {}
        self._number, self._numbering, self._ending = 0, Lock(), Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._where: dict[str, str] = {}
        self._sites: dict[str, Any] = {}
        # Two lines for every call would be most of what is logged.
        logging.getLogger("nvflare.collab.runtime.cell_dispatcher").setLevel(logging.WARNING)

    @collab.publish
    def members(self) -> list[str]:
        """Return whose keys lie here, beside the study."""
        folder = Path(collab.workspace.get_root_dir(), PLACE)
        if not (folder / f"{self._study}.toml").is_file():
            return []
        keys = (file.stem for file in sorted(folder.glob("*.key")))
        return [name for name in keys if NAME.fullmatch(name)]

    @collab.publish
    def begin(self, where: dict[str, str]) -> None:
        """Start the command; ``where`` has the site of each member."""
        if self._process is not None or collab.caller != "server":
            raise RuntimeError("only the server begins, and once")
        sites = {"server": collab.server} | {one.name: one for one in collab.clients}
        carrier = self._connect(where, sites)
        folder = Path(collab.workspace.get_root_dir(), PLACE)
        job = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        words = [self._command, "--study", f"{self._study}.toml"]
        own: Any = None
        with suppress(OSError, ValueError):  # which the command reports
            own = tomllib.loads((folder / OPTIONS).read_text(encoding="utf-8")).get(self._command)
        if (folder / OPTIONS).exists():
            words += ["--config", OPTIONS]
        if self._command in WITH_MODEL and not (isinstance(own, dict) and "output" in own):
            words += ["--output", str(job / f"{self._study}.h5")]
        with (job / "vpem.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vpem", *words],
                cwd=folder,
                env={**os.environ, "_VPEM_CARRIER": str(carrier)},
                stdin=subprocess.PIPE,  # at its end the process ends too
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # NVFlare kills its own group a moment after it ends a job
            )

    @collab.publish
    def ended(self) -> int | None:
        """Return the exit code of the command, once it has ended."""
        return None if self._process is None else self._process.poll()

    @collab.publish
    def open(self, number: int) -> bool:
        """Let another site begin a stream; False while no process here waits for it."""
        site = collab.caller
        others = [number for one, number, theirs in [*self._streams] if theirs and one == site]
        known = site in self._sites and type(number) is int
        if not known or number in others or len(others) >= MOST:
            return False
        line = socket(AF_UNIX)
        try:
            line.connect(str(self._folder / DOOR))
        except OSError:
            line.close()
            return False
        self._streams[site, number, True] = line
        Thread(target=self._pump, args=((site, number, True), line), daemon=True).start()
        return True

    @collab.publish
    def carry(self, number: int, theirs: bool, piece: bytes) -> bool:
        """Take the next bytes of a stream, none at its end; False if there is no such stream."""
        if type(number) is not int or not isinstance(piece, bytes) or len(piece) > PIECE:
            return False
        with suppress(KeyError, OSError):
            line = self._streams[collab.caller, number, not theirs]
            line.sendall(piece) if piece else line.shutdown(SHUT_RDWR)
            return True
        return False

    @collab.final
    def end(self) -> None:
        """End what still runs as the job ends, whose calls go nowhere by now."""
        if self._process is None:
            return
        with self._ending:  # a job that is aborted may say so twice
            try:
                self._process.communicate(timeout=SECONDS)  # ends its standard input
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._home.cleanup()

    def _connect(self, where: dict[str, str], sites: dict[str, Any]) -> Path:
        """Begin to carry streams between members at ``sites``; returns the folder of sockets."""
        self._where = {_checked(name): str(site) for name, site in where.items()}
        self._sites = sites
        self._home = tempfile.TemporaryDirectory(prefix="vpem-")
        self._folder = Path(self._home.name)
        door = socket(AF_UNIX)
        door.bind(str(self._folder / WAY_OUT))
        door.listen()
        Thread(target=self._answer, args=(door,), daemon=True).start()
        return self._folder

    def _answer(self, door: socket) -> None:
        """Open a stream for each that this site's process asks for."""
        while True:
            line, _ = door.accept()
            Thread(target=self._open, args=(line,), daemon=True).start()

    def _open(self, line: socket) -> None:
        said = b""
        with suppress(OSError):
            while not said.endswith(b"\n") and len(said) < 64 and (more := line.recv(1)):
                said += more
        site = self._where.get(said[:-1].decode("ascii", "replace"), "")
        with self._numbering:
            self._number += 1
            key = site, self._number, False
        self._streams[key] = line  # what is answered may arrive before the call returns
        with suppress(KeyError, OSError, CollabCallError):
            if self._sites[site](timeout=SECONDS).open(key[1]) is True:
                line.sendall(b"\n")
                return self._pump(key, line)
        del self._streams[key]
        line.close()

    def _pump(self, key: Key, line: socket) -> None:
        """Carry what this site's process writes into a stream, until one end closes it."""
        site, number, theirs = key
        other, goes_on = self._sites[site](timeout=SECONDS), True
        with suppress(OSError, CollabCallError):
            while goes_on and (piece := line.recv(PIECE)):
                goes_on = other.carry(number, theirs, piece)
        del self._streams[key]
        with suppress(OSError):
            line.shutdown(SHUT_RDWR)
        line.close()
        with suppress(CollabCallError):
            other.carry(number, theirs, b"")


class Server(Site):
    """What the server does in a job; with a key beside the study it is a site, too."""

    @collab.main
    def main(self) -> None:
        """Let all sites begin, and wait until they have ended."""
        sites = {one.name: one for one in collab.clients} | {"server": collab.server}
        where: dict[str, str] = {}
        for site, one in sites.items():
            names = one.members()
            if len(names) > 1 or where.keys() & names:
                raise RuntimeError(
                    f"{site} has the key of {' and of '.join(names)}; a site has that of one "
                    "member, which no other site has"
                )
            where |= dict.fromkeys(names, site)
        taking = {site: sites[site] for site in where.values()}
        if not taking:
            raise RuntimeError(f"no site has {PLACE}/{self._study}.toml, and a key beside it")
        for one in taking.values():
            one.begin(where)
        codes: dict[str, int | None] = {}
        silent = dict.fromkeys(taking, 0)
        while running := taking.keys() - codes:
            time.sleep(LOOK_EVERY)
            for site in running:
                code, silent[site] = None, silent[site] + 1
                with suppress(CollabCallError):
                    code, silent[site] = taking[site](timeout=SECONDS).ended(), 0
                if code is not None or silent[site] >= SILENT:
                    codes[site] = code
        failed = [
            f"{site} ({'lost' if codes[site] is None else codes[site]})"
            for site in sorted(codes)
            if codes[site] not in DONE
        ]
        if failed:
            raise RuntimeError(
                f"vpem has not done its work at {', '.join(failed)}: its vpem.log there says why"
            )
