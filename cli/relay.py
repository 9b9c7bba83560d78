"""`vpem relay`: passes sealed bytes on between members of a study whom nobody can dial."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Quiet
from .roles import READ, WRITTEN

if TYPE_CHECKING:
    from vpem.engines.tls.members import Identity
    from vpem.engines.tls.relay import Passed
    from vpem.files.studies.study import Study

    from .output import Screen

__all__ = ["relay"]

LOOK_EVERY = 5.0
"""Seconds between looks at the study's file."""


def relay(
    study: Annotated[
        Path,
        READ,
        typer.Argument(
            metavar="STUDY",
            help="The study, NAME.toml, which names this relay; its key and "
            "certificate lie beside it.",
        ),
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            show_default=False,
            help="Where to listen; 0.0.0.0 or [::] is wherever this machine has an address. "
            "Default: the port of the study's address, everywhere.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(
            show_default=False,
            help="Add a line of JSON to this file for whoever comes, goes, and talks with whom: "
            "when, how long, how many bytes.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Pass sealed messages on between members of a study.

    It is for members of whom neither can be dialled: all dial the relay, which needs a port that
    they can reach and no data. They speak TLS with each other inside, so that the relay learns who
    talks with whom, when and how much, and nothing else. It runs until Ctrl-C or SIGTERM; a newer
    edition of the study takes effect when the file is replaced.

    Make its key with 'vpem party init --name relay', and give its certificate to the organiser.

    Example: vpem relay heart.toml --listen 0.0.0.0:443
    """  # fmt: skip
    import asyncio

    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.errors import InputError
        from vpem.files.studies.fields import address_of
        from vpem.files.studies.study import read_study

        found = read_study(study)
        identity = _identity(found)
        where = ("", _port(found)) if listen is None else address_of(listen)
        work = Serving(found, identity, screen, log)
        number = asyncio.run(work.run(where))
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        ended = InputError(f"the relay was ended by {name}; members who need it wait for another")
        ended.exit_code = 128 + number  # type: ignore[attr-defined]
        raise ended


def _identity(study: Study) -> Identity:
    """Return the relay's key and certificate, which are those that the study names."""
    from vpem.errors import InputError
    from vpem.files.studies.identities import certificate_of, read_identity, usable

    named = study.roster.relay
    if named is None:
        raise InputError(
            f"{study.path} names no relay; its organiser names one by 'vpem study init --relay "
            f"HOST:PORT --relay-certificate FILE', or 'vpem study change'"
        )
    found = usable(read_identity(study.folder, named.name))
    if certificate_of(found) != named.certificate:
        raise InputError(
            f"the certificate {found.certificate} is not the one that {study.path} has of its "
            f"relay {named.name}; give it to {study.organiser}"
        )
    return found


def _port(study: Study) -> int:
    named = study.roster.relay
    assert named is not None
    assert named.address is not None
    return named.address[1]


class Serving:
    """A relay that runs.

    Parameters
    ----------
    study : Study
        For whose members.
    identity : Identity
        Of the relay.
    screen : Screen
        Where messages go.
    log : Path, optional
        To which lines are added.
    """

    def __init__(
        self, study: Study, identity: Identity, screen: Screen, log: Path | None = None
    ) -> None:
        from vpem.engines.tls.door import Door
        from vpem.engines.tls.lobby import Lobby
        from vpem.engines.tls.relay import Relay
        from vpem.engines.tls.trust import believed, server_context

        self.study = study
        self.screen = screen
        self.log = log
        if log is not None:
            self._write("begun", study.roster.name, study.roster.name)
        self.relay = Relay(self._note)
        self.lobby = Lobby(study.roster, identity, self.relay)
        context = server_context(identity, believed(study.roster))
        self.door = Door(context, self.lobby.welcome, screen.say)
        self._seen = _mark(study.path)

    async def run(self, where: tuple[str, int]) -> int:
        """Serve until a signal comes; its number.

        Raises
        ------
        InputError
            If it cannot listen there.
        """
        import asyncio

        from vpem.engines.tls.door import listening
        from vpem.errors import InputError, Setting

        try:
            listener = listening(*where)
        except OSError as error:
            why = str(error.strerror or error).partition(" (")[0]
            raise InputError(
                f"the relay cannot listen at {where[0] or '*'}:{where[1]} ({why}); give another "
                f"address or port with ",
                Setting("listen"),
            ) from None
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)  # what strangers do to transports
        ended: asyncio.Future[int] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _end, ended, number)
        look = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, look.set)
        host, port = listener.getsockname()[:2]
        names = ", ".join(member.name for member in self.study.roster.members)
        self.screen.say(
            f"relay of {self.study.name} for {names} at {f'[{host}]' if ':' in host else host}:"
            f"{port}: it sees who talks with whom and how much, and nothing else"
        )
        tasks = [loop.create_task(self.door.serve(listener)), loop.create_task(self._renew(look))]
        try:
            return await ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            listener.close()
            await self.lobby.leave("the relay ends")

    async def _renew(self, look: Any) -> None:
        """Take up newer editions of the study."""
        import asyncio

        while True:
            try:
                await asyncio.wait_for(look.wait(), LOOK_EVERY)
            except TimeoutError:
                if _mark(self.study.path) == self._seen:
                    continue
            look.clear()
            self._seen = _mark(self.study.path)
            self._take_up()

    def _take_up(self) -> None:
        """Read the study again; where it cannot be used the last edition stays."""
        from vpem.engines.tls.trust import believed, server_context
        from vpem.errors import VpemError
        from vpem.files.studies.study import read_study

        try:
            found = read_study(self.study.path)
            identity = _identity(found)
        except VpemError as error:
            self.screen.warn(f"{error}; edition {self.study.edition} stays in use")
            return
        self.study = found
        self.lobby.identity = identity
        self.lobby.renew(found.roster)
        self.door.renew(server_context(identity, believed(found.roster)))
        names = ", ".join(member.name for member in found.roster.members)
        self.screen.say(f"edition {found.edition} of {found.name} is in use, for {names}")

    def _note(self, passed: Passed) -> None:
        if self.log is not None:
            try:
                self._write(passed.event, passed.source, passed.target, passed.there, passed.back,
                            passed.seconds)  # fmt: skip
            except Exception as error:  # a full disk stops no relay
                self.screen.warn(f"{error}; nothing is logged any more")
                self.log = None

    def _write(
        self, event: str, source: str, target: str, there: int = 0, back: int = 0, for_: float = 0.0
    ) -> None:
        """Add a line to the log, which may be taken away meanwhile."""
        import json
        import time

        from vpem.errors import FileError

        assert self.log is not None
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event,
                "from": source, "to": target, "bytes": there, "bytes_back": back,
                "seconds": round(for_, 3)}  # fmt: skip
        try:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise FileError(f"{self.log} cannot be written: {error.strerror or error}") from None


def _end(ended: Any, number: int) -> None:
    if not ended.done():
        ended.set_result(number)


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
