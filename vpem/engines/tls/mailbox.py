"""Messages between this member of a study and all others: its links, in a thread of their own."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from vpem.engines.tls.dial import PATH, dial
from vpem.engines.tls.faults import LinkTimes, Parted, Refused, Returned, Sent, Unheard
from vpem.engines.tls.link import Link, calls, carried, door_in, through
from vpem.engines.tls.relay import Relay
from vpem.engines.tls.server import Door, Lobby, listening
from vpem.engines.tls.trust import (
    Identity,
    Roster,
    believed,
    client_context,
    identity_error,
    whose,
)
from vpem.engines.tls.wire import (
    FAREWELL,
    FINISHED,
    TEXT,
    UNHEARD,
    Answered,
    Line,
    Missed,
    Refusal,
    TaggedMessage,
    Work,
    chain_of,
    refuse,
)
from vpem.errors import InputError, Setting, VpemError, printable

LOOK_EVERY = 0.1
"""Seconds between looks at signals and clocks, while waiting."""

TICK = 0.25
"""Seconds between looks at links."""

LINGER = 5.0, 60.0
"""Seconds without progress in which a member that ends delivers its last messages: farewells and
messages not yet fetched, and those to a member whose link has just been cut."""

SOON = 0.01
"""Seconds between looks whether all has been delivered."""

SAY_AFTER = (10.0, 60.0)
"""Seconds without a member that is waited for after which that is said: at first, and again."""


class Post:
    """Links of a member to all others, which live in a thread of their own, and what they know.

    Others dial this member at ``listen``, by default at its door, and may be unheard of for
    ``timeout`` seconds (None: for ever); for ``beginning`` seconds the first member may be in any
    case, since it begins again where the others go on without a member. Where a job of NVFlare is
    the ``carrier``, links go by the sockets in that folder, and nowhere else. In the thread of the
    program, ``note`` is given every message (`Sent`), and ``tell`` sentences about who is waited
    for or turned away.
    """

    def __init__(
        self,
        roster: Roster,
        identity: Identity,
        *,
        listen: tuple[str, int] | socket.socket | None = None,
        carrier: Path | None = None,
        timeout: float | None = None,
        note: Callable[[Sent], None] | None = None,
        tell: Callable[[str], None] | None = None,
        times: LinkTimes | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.clock = clock or (lambda: datetime.now(UTC))
        wrong = identity_error(roster, identity, self.clock() if clock else None)
        if wrong:
            raise InputError(wrong)
        rank = roster.rank_of(identity.name)
        assert rank is not None
        self.rank: int = rank
        self.timeout = timeout
        self.beginning, self.log_key = 0.0, b""
        self.roster, self.identity, self.times = roster, identity, times or LinkTimes()
        self.names = [member.name for member in roster.members]
        self.session = secrets.token_hex(16)
        """Number of this process."""
        self.farewell: Refusal | None = None
        """Why this member has ended."""
        self._note = note
        self._tell = tell
        self._listen, self.carrier = listen, carrier
        self._changed = threading.Condition()
        self._boxes: dict[tuple[int, int], deque[TaggedMessage]] = defaultdict(deque)
        self._asked: set[tuple[int, int]] = set()
        self._failed: VpemError | None = None
        self._sentences: deque[str] = deque(maxlen=50)
        self._turned_away = ""
        self._listener: socket.socket | None = None
        self._client = client_context(identity, believed(roster))
        self._loop = asyncio.new_event_loop()
        # Nothing is said about what strangers and cut connections do to transports.
        self._loop.set_exception_handler(lambda loop, context: None)
        # The server of a star passes on between parties, where there is no other for that.
        first = roster.members[0]
        self._passer = roster.relay or (first if first.address is not None else None)
        self._passer = self._passer if carrier is None else None
        self._relay = Relay() if self._passer is first and rank == 0 else None
        self._lobby = Lobby(roster, identity, self._relay)
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        others = (other for other in range(len(roster.members)) if other != rank)
        self._links = {other: Link(self, other, self._opener(other)) for other in others}

    # ---- the program's side ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen, if others can dial this member; links are opened when first needed."""
        this_member = self.roster.members[self.rank]
        where = self._listen or this_member.door
        if self.carrier is not None:
            self._listener = door_in(self.carrier)
        elif isinstance(where, socket.socket):
            self._listener = where
        elif where is not None:
            self._listener = listening(*where, this_member.name)
        self._thread = threading.Thread(target=self._run, name="vpem links", daemon=True)
        self._thread.start()

    def _call(self, work: Callable[..., object], *given: object) -> None:
        self._loop.call_soon_threadsafe(work, *given)

    def put(
        self, to: int, tag: int, message: bytes | bytearray | memoryview, topic: str = ""
    ) -> None:
        """Send a message to another member; it is on its way at once, without waiting for any."""
        data = message if isinstance(message, bytes) else bytes(message)
        if to == self.rank:
            self.take(to, TaggedMessage(tag, topic, data))
            return
        self._log(True, to, topic, data)
        self._call(self._links[to].add, TaggedMessage(tag, topic, data))

    def arrived(self, source: int, tag: int) -> bool:
        with self._changed:
            return bool(self._boxes.get((source, tag)))

    def ask(self, source: int, tags: Sequence[int]) -> None:
        """Say what will be taken of a member, which may send only so much of anything else."""
        self._asked.update((source, tag) for tag in tags)
        self._call(self._links[source].ask, tags)

    def receive(self, source: int, tag: int) -> bytes | bytearray | memoryview:
        """Wait for a message of another member, and return it.

        Unheard if it, or for the first member another, is silent for too long; GoneOn or LeftOut if
        the first goes on without some or this one; Parted, Returned as a member ends or begins
        again.
        """
        if source != self.rank and (source, tag) not in self._asked:
            self.ask(source, [tag])
        self._asked.discard((source, tag))
        message = self._pop(source, tag) or self._wait(source, tag)
        if source != self.rank:
            self._log(False, source, message.topic, message.data)
        return message.data

    def flush(self, seconds: float = 10.0) -> None:
        """Wait, for so long at most, until all that was sent over links that are there has come."""
        end, put = time.monotonic() + seconds, threading.Event()
        self._call(put.set)  # behind all that was put
        put.wait(seconds)
        while any(link.connection and link.out.kept for link in self._links.values()):
            if time.monotonic() > end:
                return
            with self._changed:
                self._changed.wait(LOOK_EVERY)

    def announce_end(self, sentence: str, code: int) -> None:
        """Send all other members why this one ends."""
        farewell = Refusal(printable(sentence)[:TEXT], code)
        self.farewell = farewell  # for all that come from now on
        for other, link in self._links.items():
            if not (link.finished or link.parted):
                self.put(other, FAREWELL, farewell.pack(), "farewell")

    @property
    def silent(self) -> list[str]:
        """Names of members who were there, and have not been heard of for too long."""
        longest = self.timeout or math.inf
        cut = [link for link in self._links.values() if link.session and link.connection is None]
        return [link.member.name for link in cut if link.silent > longest]

    def report(self, name: str, sentence: str) -> None:
        """Report a silent member to the first; raises GoneOn, Parted or Unheard, as that acts."""
        self.put(0, UNHEARD, Missed(name, printable(sentence)[:TEXT]).pack(), "farewell")
        self._wait(0, UNHEARD)

    def close(self) -> None:
        """End all links, when all that was sent has been received, or after a few seconds."""
        if self._thread is not None:
            self._wait_for(self._finish())
            self._call(self._loop.stop)
            self._thread.join()
            self._thread = None
        self._loop.close()
        if self._listener is not None:
            self._listener.close()

    def _wait_for(self, work: Work) -> None:
        """Run something in the loop, and see signals meanwhile."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(LOOK_EVERY)
            except TimeoutError:
                if future.done():  # by now, or with a TimeoutError of its own
                    return future.result()

    # ---- waiting ---------------------------------------------------------------------------------

    def _pop(self, source: int, tag: int) -> TaggedMessage | None:
        with self._changed:
            box = self._boxes.get((source, tag))
            if not box:
                return None
            message = box.popleft()
            if not box:
                del self._boxes[source, tag]
            return message

    def _wait(self, source: int, tag: int) -> TaggedMessage:
        """Wait until a message has come, or never will."""
        link = self._links[source]
        self._call(link.need)
        said = 0
        while True:
            ending = self._ending(link)  # before a look for what came before the end
            message = self._pop(source, tag)
            if message is not None:
                return message
            if ending is not None:
                raise ending
            said = self._report(link, said)
            with self._changed:
                if not self._boxes.get((source, tag)):
                    self._changed.wait(LOOK_EVERY)

    def _ending(self, link: Link) -> VpemError | None:
        """Return what ends the wait for a member, if anything does."""
        if self._failed is not None:
            return self._failed
        for other in self._links.values():
            if other.parted is not None:
                name, parted = other.member.name, other.parted
                return Parted(name, parted.sentence, parted.exit_code)
            if other.returned:
                return Returned(other.member.name)
            if other.missed is not None and self.rank == 0:
                return Unheard(other.missed.name, f"{other.member.name}: {other.missed.sentence}")
        name = link.member.name
        if link.finished:
            return Parted(name, "it has finished without what others wait for", 1)
        longest = math.inf if self.timeout is None else self.timeout
        if link.rank == 0:
            longest = max(longest, self.beginning)
        if link.silent <= longest or link.connection is not None:
            return None  # a link that only seems to be there is cut by its own clock
        start = "" if link.session else "start it, "
        why = link.trouble or ("" if link.session else self._turned_away)
        why = why or f"{start}look at its machine and at the network, or allow more time"
        return Unheard(
            name,
            f"nothing has been heard of {name} for {link.silent:.0f} s (",
            Setting("timeout", longest),
            f"): {why}",
        )

    def _report(self, link: Link, said: int) -> int:
        """Say who is waited for, once in a while; how often that was said."""
        while self._sentences and self._tell is not None:
            self._tell(self._sentences.popleft())
        first, again = SAY_AFTER
        if self._tell is None:
            return said
        if said and link.connection is not None:
            self._tell(f"{link.member.name} is there")
            return 0
        if link.connection is None and link.silent > first + again * said:
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - link.silent))
            why = f": {link.trouble}" if link.trouble else ""
            self._tell(f"waiting for {link.member.name} (not connected since {since}){why}")
            return said + 1
        return said

    def _log(
        self, sent: bool, other: int, topic: str, data: bytes | bytearray | memoryview
    ) -> None:
        if self._note is not None:
            # So that guesses of data cannot be tried on a log that is copied.
            digest = hmac.digest(self.log_key, data, "sha256").hex()
            self._note(Sent(time.time(), sent, self.names[other], topic, len(data), digest))

    # ---- what links report, in their thread ------------------------------------------------------

    def take(self, source: int, message: TaggedMessage) -> None:
        with self._changed:
            self._boxes[source, message.tag].append(message)
            self._changed.notify_all()

    def changed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def fail(self, error: VpemError) -> None:
        if self._failed is None:
            self._failed = error
        self.changed()

    def say(self, sentence: str) -> None:
        self._sentences.append(sentence)
        self._turned_away = sentence
        self.changed()

    # ---- in the links' thread --------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        context, works = self._lobby.context(), [self._tick()]
        self._door = door = Door(context, self._welcome, self.say, self.times.opening)
        if self._listener is not None:
            works.insert(0, door.serve(self._listener))
        members = self.roster.members
        hidden = any(member.address is None for member in members[self.rank + 1 :])
        if self._passer is not None and members[self.rank].address is None and hidden:
            # Some members can only call this one by a relay.
            admit = partial(door.admit, address="the relay")
            works.append(calls(self._passer, self.identity, self.roster, admit))
        self._tasks.update(map(self._loop.create_task, works))
        self._loop.run_forever()

    async def _tick(self) -> None:
        before = self._loop.time()
        while True:
            await asyncio.sleep(TICK)
            now = self._loop.time()
            for link in self._links.values():
                link.tick(min(now - before, 2 * TICK))  # not while this process was stopped
            before = now

    def _opener(self, other: int) -> Callable[[], Awaitable[Line]] | None:
        """Return what opens a connection to a member, or None if that is its part."""
        rank, members = self.rank, self.roster.members
        this_member, member, folder = members[rank], members[other], self.carrier
        passer = None if member.address is not None else self._passer
        hidden = member.address is None and (passer is None or this_member.address is not None)
        alike = (this_member.address is None) == (member.address is None)
        if (alike or folder is not None) and rank < other:
            return None
        if hidden and folder is None:
            return None

        async def open() -> Line:
            stream = None
            if folder is not None:
                stream = await carried(folder, member)
            elif passer is not None:
                stream = await through(passer, member, self.identity, self.roster)
            seconds = self.times.opening
            return await dial(
                this_member.name, member, self._client, stream, seconds, members=members
            )

        return open

    async def _welcome(self, connection: Answered, path: str) -> None:
        if path != PATH:
            await self._lobby.welcome(connection, path)
            return
        member, why = whose(believed(self.roster), chain_of(connection))
        if member is None:
            self.say(f"a connection was rejected: {why}")
            await refuse(connection, Refusal(why))
            connection.cut()
        for one in self.roster.left_out:
            if one is member:
                sentence = (
                    f"{self.roster.name} has gone on without {member.name}, which was not heard of"
                )
                await refuse(connection, Refusal(sentence, left_out=True))
                connection.cut()
        for link in self._links.values():
            if link.member is not member:
                continue
            if await link.answers():
                sentence = (
                    f"another process takes part as {link.member.name} already; end one of them, "
                    "and keep that key from everybody else"
                )
                self.say(f"a connection was rejected: {sentence}")
                await refuse(connection, Refusal(sentence, taken=True))
                connection.cut()
            else:
                await self._talk(link, connection)

    async def _talk(self, link: Link, connection: Answered) -> None:
        try:
            await link.talk(connection)
        except Refused as error:
            if link.session and not error.of_member:
                # A second process of a member who takes part already.
                self.say(str(error))
            else:
                link.refused = True
                self.fail(error)

    # ---- the end ---------------------------------------------------------------------------------

    async def _finish(self) -> None:
        for link in self._links.values():
            known = link.session or link.out.kept
            if known and not (link.parted or link.finished or self.farewell):
                link.add(TaggedMessage(FINISHED, "", b""))
        spent, before = 0.0, self._state()
        while owed := max(map(self._owed, self._links.values()), default=0.0):
            await asyncio.sleep(SOON)
            spent, state = spent + SOON, self._state()
            if state != before:
                spent, before = 0.0, state
            if spent > owed:
                break
        while self._relay is not None and self._relay.pairs and not self.farewell:
            await asyncio.sleep(0.05)  # others still talk with each other through this process
        await asyncio.gather(*(link.end() for link in self._links.values()))
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:  # who is answered meanwhile
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
        for _ in range(40):  # transports that were cut close in steps
            await asyncio.sleep(0)

    def _state(self) -> list[object]:
        # Who is busy and has no room for the rest is alive while it is heard.
        return [
            (link.out.done, link.out.held_back and link.connection and link.connection.heard)
            for link in self._links.values()
        ]

    def _owed(self, link: Link) -> float:
        """Return for how many seconds without progress one waits for a link to deliver its last."""
        over = link.finished or link.parted or link.returned or link.refused
        if over or not link.out.kept:
            return 0.0
        if all(message.tag < 0 for message in link.out.kept):
            # Who has no link, and none that this member can open, hears it from others; so has a
            # member that was there and is no longer.
            if link.session:
                gone = link.connection is None and (link.left or link.vacant)
            else:
                first = self._links.get(0)
                # The first member answers no one before it has heard from all.
                met = first is not None and first.incoming.messages > (first.parted is not None)
                gone = met and link.vacant
            return LINGER[0] if (link.session or link.opens) and not gone else 0.0
        return LINGER[bool(link.session and not self.farewell)]
