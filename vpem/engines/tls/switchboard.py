"""All links of a member, and the thread that they live in."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from vpem import __version__
from vpem.engines.tls.dial import PATH, Refused, dial
from vpem.engines.tls.door import Door
from vpem.engines.tls.link import Here, Link, Pace
from vpem.engines.tls.lobby import Lobby
from vpem.engines.tls.members import Identity, Roster
from vpem.engines.tls.relay import Relay
from vpem.engines.tls.sockets import Answered, Line, certificate_of
from vpem.engines.tls.streams import Message
from vpem.engines.tls.trust import believed, client_context, server_context
from vpem.engines.tls.wire import Refusal
from vpem.errors import VpemError

__all__ = ["FAREWELL", "FINISHED", "LOOK_EVERY", "Switchboard"]

LOOK_EVERY = 0.1
"""Seconds between looks at signals and clocks, while waiting."""

TICK = 0.25
"""Seconds between looks at links."""

FAREWELL, FINISHED = -1, -2
"""Tags of the news that a member ends because of an error, and because it is done."""

LINGER = 5.0
"""Seconds in which the last messages to a member are delivered, if nothing of them is."""


class Switchboard:
    """Links of a member to all others.

    Parameters
    ----------
    roster, identity : Roster, Identity
        All members, and which of them this is.
    pace : Pace
        Times of links.
    arrived, changed, failed, say : callable
        What is called by links (`Here`), in their thread.

    Attributes
    ----------
    links : dict of Link
        By the other member's number.
    """

    def __init__(
        self,
        roster: Roster,
        identity: Identity,
        pace: Pace,
        *,
        arrived: Callable[[int, Message], None],
        changed: Callable[[], None],
        failed: Callable[[VpemError], None],
        say: Callable[[str], None],
    ) -> None:
        rank = roster.rank_of(identity.name)
        assert rank is not None
        self._roster = roster
        self._client = client_context(identity, believed(roster))
        self._server = server_context(identity, believed(roster))
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_silent)
        # The server of a star passes on between parties, where they have nobody else for that.
        passes = rank == 0 and roster.relay is None
        self._lobby = Lobby(roster, identity, Relay() if passes else None)
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._here = Here(
            roster,
            identity,
            rank,
            __version__,
            secrets.token_hex(16),
            pace,
            arrived,
            changed,
            failed,
            say,
        )
        self.links = {
            other: Link(self._here, other, self._opener(other))
            for other in range(len(roster.members))
            if other != rank
        }

    # ---- from the thread of the program ----------------------------------------------------------

    def start(self, listener: socket.socket | None) -> None:
        """Begin to live, and to accept connections."""
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="vpem links", daemon=True
        )
        self._thread.start()

    def call(self, work: Callable[..., object], *values: Any) -> None:
        """Run something in the links' thread."""
        self._loop.call_soon_threadsafe(work, *values)

    def part(self, farewell: Refusal) -> None:
        """Turn away whoever comes from now on."""
        self._here.farewell = farewell

    def close(self) -> None:
        """End all links, when all that was sent has been received, or after a few seconds."""
        if self._thread is None:
            return
        self._wait_for(self._finish())
        self.call(self._loop.stop)
        self._thread.join()
        self._thread = None
        self._loop.close()

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the loop, and see signals meanwhile."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(LOOK_EVERY)
            except TimeoutError:
                if future.done():
                    raise

    # ---- in the links' thread --------------------------------------------------------------------

    def _run(self, listener: socket.socket | None) -> None:
        asyncio.set_event_loop(self._loop)
        if listener is not None:
            door = Door(self._server, self._welcome, self._here.say, self._here.pace.opening)
            self._start(door.serve(listener))
        self._start(self._tick())
        self._loop.run_forever()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)

    async def _tick(self) -> None:
        before = self._loop.time()
        while True:
            await asyncio.sleep(TICK)
            now = self._loop.time()
            for link in self.links.values():
                link.tick(min(now - before, 2 * TICK))  # not while this process was stopped
            before = now

    def _opener(self, other: int) -> Callable[[], Coroutine[Any, Any, Line]] | None:
        """Return what opens a connection to a member, or None if that is its part."""
        own, member = self._roster.members[self._here.rank], self._roster.members[other]
        if member.address is None or (own.address is not None and self._here.rank < other):
            return None

        async def open() -> Line:
            seconds = self._here.pace.opening
            return await dial(
                own.name, member, self._client, seconds=seconds, members=self._roster.members
            )

        return open

    async def _welcome(self, connection: Answered, path: str) -> None:
        """Talk with a member that has dialled."""
        if path != PATH:
            await self._lobby.welcome(connection, path)
            return
        shown = certificate_of(connection)
        for link in self.links.values():
            if link.member.certificate == shown:
                try:
                    await link.talk(connection)
                except Refused as error:
                    self._here.failed(error)

    # ---- the end ---------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Deliver what is left, and close."""
        for link in self.links.values():
            if link.session and not (link.parted or link.finished or self._here.farewell):
                link.add(Message(FINISHED, "", b""))
        left = LINGER
        before = self._state()
        while left > 0 and any(self._owed(link) for link in self.links.values()):
            await asyncio.sleep(0.01)
            left -= 0.01
            state = self._state()
            if state != before:
                before, left = state, LINGER
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(link.end() for link in self.links.values()))

    def _state(self) -> list[object]:
        return [link.out.done for link in self.links.values()]

    def _owed(self, link: Link) -> bool:
        return bool(link.out.kept) and not (link.finished or link.parted or link.returned)


def _silent(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing about what strangers and cut connections do to transports."""
