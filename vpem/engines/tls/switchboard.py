"""All links of a member, and the thread that they live in."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from vpem import __version__
from vpem.engines.tls.carried import calls, through
from vpem.engines.tls.dial import PATH, dial
from vpem.engines.tls.door import Door
from vpem.engines.tls.faults import Refused
from vpem.engines.tls.here import Damage, Here, Pace
from vpem.engines.tls.link import Link
from vpem.engines.tls.lobby import Lobby
from vpem.engines.tls.members import Identity, Roster
from vpem.engines.tls.relay import Relay
from vpem.engines.tls.sockets import Answered, Line, certificate_of, refuse
from vpem.engines.tls.streams import Message
from vpem.engines.tls.trust import believed, client_context, server_context
from vpem.engines.tls.wire import FINISHED, Refusal
from vpem.errors import VpemError

LOOK_EVERY = 0.1
"""Seconds between looks at signals and clocks, while waiting."""

TICK = 0.25
"""Seconds between looks at links."""

LINGER = 5.0, 60.0
"""Seconds without progress in which a member that ends delivers its last messages: farewells and
whatever nobody has come for, and what somebody waits for whose link has just been cut."""

SOON = 0.01
"""Seconds between looks whether all has been delivered."""


class Switchboard:
    """Links of a member to all others, by number; what they call (`Here`) runs in their thread."""

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
        clock: Callable[[], datetime],
    ) -> None:
        rank = roster.rank_of(identity.name)
        assert rank is not None
        self._roster = roster
        self._client = client_context(identity, believed(roster))
        self._server = server_context(identity, believed(roster))
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_silent)
        # The server of a star passes on between parties, where they have nobody else for that.
        first = roster.members[0]
        self._passer = roster.relay or (first if first.address is not None else None)
        self._relay = Relay() if self._passer is first and rank == 0 else None
        self._lobby = Lobby(roster, identity, self._relay)
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
            clock,
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
        if self._thread is not None:
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
        self._door = door = Door(
            self._server, self._welcome, self._here.say, self._here.pace.opening
        )
        if listener is not None:
            self._start(door.serve(listener))
        if self._passer is not None and self._called():
            self._start(
                calls(
                    self._passer,
                    self._here.identity,
                    self._roster,
                    lambda stream: door.admit(stream, "the relay"),
                )
            )
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
        rank, members = self._here.rank, self._roster.members
        own, member = members[rank], members[other]
        passer = None if member.address is not None else self._passer
        if passer is None and member.address is None:
            return None
        if (own.address is None) == (member.address is None) and rank < other:
            return None
        if own.address is not None and member.address is None:
            return None

        async def open() -> Line:
            stream = None
            if passer is not None:
                stream = await through(passer, member, self._here.identity, self._roster)
            return await dial(
                own.name,
                member,
                self._client,
                stream,
                self._here.pace.opening,
                members=self._roster.members,
            )

        return open

    def _called(self) -> bool:
        """Whether there are members who can only call this one by a relay."""
        members = self._roster.members
        hidden = any(member.address is None for member in members[self._here.rank + 1 :])
        return self._passer is not None and members[self._here.rank].address is None and hidden

    async def _welcome(self, connection: Answered, path: str) -> None:
        """Talk with a member that has dialled."""
        if path != PATH:
            await self._lobby.welcome(connection, path)
            return
        shown = certificate_of(connection)
        for member in self._roster.left_out:
            if member.certificate == shown:
                sentence = (
                    f"{self._roster.name} has gone on without {member.name}, which was not heard of"
                )
                await refuse(connection, Refusal(sentence, left_out=True))
                connection.cut()
        for link in self.links.values():
            if link.member.certificate != shown:
                continue
            if await link.answers():
                sentence = (
                    f"another process takes part as {link.member.name} already; end one of them, "
                    "and let nobody else have that key"
                )
                self._here.say(f"somebody was turned away: {sentence}")
                await refuse(connection, Refusal(sentence, taken=True))
                connection.cut()
            else:
                await self._talk(link, connection)

    async def _talk(self, link: Link, connection: Answered) -> None:
        try:
            await link.talk(connection)
        except Refused as error:
            if link.session and not isinstance(error, Damage):
                # A second process of a member who takes part already.
                self._here.say(str(error))
            else:
                link.refused = True
                self._here.failed(error)

    # ---- the end ---------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Deliver what is left, and close."""
        for link in self.links.values():
            known = link.session or link.out.kept
            if known and not (link.parted or link.finished or self._here.farewell):
                link.add(Message(FINISHED, "", b""))
        spent, before = 0.0, self._state()
        while owed := max(map(self._owed, self.links.values()), default=0.0):
            await asyncio.sleep(SOON)
            spent, state = spent + SOON, self._state()
            if state != before:
                spent, before = 0.0, state
            if spent > owed:
                break
        while self._relay is not None and self._relay.pairs and not self._here.farewell:
            await asyncio.sleep(0.05)  # others still talk with each other through this process
        await asyncio.gather(*(link.end() for link in self.links.values()))
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for _ in range(8):  # transports that were cut close in steps
            await asyncio.sleep(0)

    def _state(self) -> list[object]:
        # Who is busy and has no room for the rest is alive while it is heard.
        return [
            (link.out.done, link.out.held_back and link.connection and link.connection.heard)
            for link in self.links.values()
        ]

    def _owed(self, link: Link) -> float:
        """Return for how many seconds without progress one waits for a link to deliver its last."""
        over = link.finished or link.parted or link.returned or link.refused
        if over or not link.out.kept:
            return 0.0
        if all(message.tag < 0 for message in link.out.kept):
            # Who has no link, and none that this member can open, hears it from others.
            near = link.session or link.opens
            return LINGER[0] if near and not self._gone(link) else 0.0
        return LINGER[bool(link.session and not self._here.farewell)]

    def _gone(self, link: Link) -> bool:
        """Whether a member that was there is no longer, and so has heard why from others."""
        if link.session:
            return link.connection is None and (link.left or link.vacant)
        first = self.links.get(0)
        # The first member answers nobody before it has heard of all.
        met = first is not None and first.incoming.messages > (first.parted is not None)
        return met and link.vacant


def _silent(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing about what strangers and cut connections do to transports."""
