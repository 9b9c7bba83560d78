"""A door that stands open until somebody ends it: of a relay, or of a member who answers checks."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.engines.tls.members import Identity
    from vpem.engines.tls.relay import Relay
    from vpem.files.studies.study import Study

    from .output import Screen


LOOK_EVERY = 5.0
"""Seconds between looks at the study's file."""


class Serving:
    """What members find who dial somebody that takes part in nothing at present.

    ``identify`` returns whose door it is, given an edition of the study.
    """

    def __init__(
        self,
        study: Study,
        identify: Callable[[Study], Identity],
        screen: Screen,
        relay: Relay | None = None,
    ) -> None:
        from vpem.engines.tls.server import Door, Lobby
        from vpem.engines.tls.trust import believed, server_context

        self.study = study
        self.screen = screen
        self._identify = identify
        self.identity = identify(study)
        self.lobby = Lobby(study.roster, self.identity, relay)
        context = server_context(self.identity, believed(study.roster))
        self.door = Door(context, self.lobby.welcome, screen.say)
        self._seen = _mark(study.path)

    def run(self, where: tuple[str, int] | None, what: str, greeting: str) -> None:
        """Serve until a signal comes, which is raised as a VpemError.

        ``where`` says where to listen, if anywhere, ``what`` it is, for sentences ("the relay"),
        and ``greeting`` is said when it is there.
        """
        import asyncio
        import gc

        from vpem.errors import VpemError

        # A quarter as much garbage as there is of everything else may wait to be collected: what is
        # there by now, mostly modules, does not count any more, or members' connections pile up.
        gc.freeze()
        number = asyncio.run(self._serve(where, what, greeting))
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        ended = VpemError(f"{what} was ended by {name}; members who need it wait for it")
        ended.exit_code = 128 + number  # type: ignore[attr-defined]
        raise ended

    async def _serve(self, where: tuple[str, int] | None, what: str, greeting: str) -> int:
        """Serve; the number of the signal that ends it."""
        import asyncio
        import logging

        from vpem.engines.tls.members import written_address
        from vpem.engines.tls.server import listening

        loop = asyncio.get_running_loop()
        # Nobody needs to read what strangers, and members that have gone, do to transports.
        loop.set_exception_handler(lambda *_: None)
        logging.getLogger("asyncio").disabled = True
        ended: asyncio.Future[int] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _end, ended, number)
        look = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, look.set)
        listener = None if where is None else listening(*where, what)
        place = ""
        if listener is not None:
            place = f" at {written_address(listener.getsockname()[:2])}"
        serving = self._stay_registered() if listener is None else self.door.serve(listener)
        names = ", ".join(member.name for member in self.study.roster.members)
        self.screen.say(f"{what} of {self.study.name} for {names}{place}{greeting}")
        tasks = [loop.create_task(work) for work in (serving, self._renew(look))]
        try:
            return await ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if listener is not None:
                listener.close()
            await self.lobby.leave(f"{what} ends")

    async def _stay_registered(self) -> None:
        """Let others come who reach this member through a relay only."""
        from vpem.engines.tls.link import calls

        roster = self.study.roster
        relay = roster.relay or roster.members[0]
        said: set[str] = set()

        def tell(fault: Exception) -> None:
            if str(fault) not in said:
                said.add(str(fault))
                self.screen.warn(str(fault))

        def deliver(stream: Any) -> None:
            self.door.admit(stream, relay.name)

        await calls(relay, self.identity, roster, deliver, tell)

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
            self.identity = self._identify(found)
        except VpemError as error:
            self.screen.warn(f"{error}; edition {self.study.edition} stays in use")
            return
        self.study = found
        self.lobby.identity = self.identity
        self.lobby.renew(found.roster)
        self.door.renew(server_context(self.identity, believed(found.roster)))
        names = ", ".join(member.name for member in found.roster.members)
        self.screen.say(f"edition {found.edition} of {found.name} is in use, for {names}")


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
