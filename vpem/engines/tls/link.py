"""The link to one other member: opened again whenever it is cut, with nothing lost or doubled.

Members that cannot be dialled are reached by streams through a relay (`through`, `calls`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, socket, socketpair
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from vpem.engines.tls.dial import dial
from vpem.engines.tls.faults import Fault, GoneOn, LeftOut, Refused, Trouble, closed
from vpem.engines.tls.relay import ABSENT, CHUNK, PAIRED, PING, RELAY, WAIT, either
from vpem.engines.tls.trust import VERSION, Identity, Member, Roster, client_context, not_valid
from vpem.engines.tls.wire import (
    AT_DAMAGE,
    FAREWELL,
    FINISHED,
    UNHEARD,
    Called,
    Damaged,
    Hello,
    Incoming,
    Line,
    Missed,
    Outgoing,
    Refusal,
    TaggedMessage,
    Work,
    certificate_of,
    parse,
    refuse,
)

if TYPE_CHECKING:
    from vpem.engines.tls.mailbox import Post


class Link:
    """Messages to and from one member, in the loop's thread; without ``open`` it dials."""

    def __init__(
        self, here: Post, rank: int, open: Callable[[], Awaitable[Line]] | None = None
    ) -> None:
        self.here = here
        self.member: Member = here.roster.members[rank]
        self.rank = rank
        self.out = Outgoing()
        self.incoming = Incoming()
        self.session = ""
        self.connection: Line | None = None
        self.trouble = ""
        self.returned = False
        self.parted: Refusal | None = None
        self.finished = False
        self.missed: Missed | None = None
        self.refused = False
        self.left = self.vacant = False
        self.silent = 0.0
        self._since_progress = 0.0
        self._owing = False
        self._heard = 0.0
        self._open, self.opens = open, open is not None
        """What opens the link, and whether this member does."""
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None
        self._ended = False

    # ---- what the thread of the program has done -------------------------------------------------

    def add(self, message: TaggedMessage) -> None:
        self.out.kept.append(message)
        self.need()
        self._wake.set()

    def need(self) -> None:
        if self._open is not None and self._keeper is None and not self._ended:
            self._keeper = asyncio.create_task(self._keep(self._open))

    def ask(self, tags: Sequence[int]) -> None:
        """Note that the program wants messages of these tags."""
        self.need()
        try:
            self.incoming.ask(tags)
        except Damaged as damage:
            refused = self._damaged(str(damage))
            self.here.fail(refused)
            if self.connection is not None:
                self._last = asyncio.create_task(refuse(self.connection, Refusal(str(refused))))
        self._make_room()

    def _make_room(self) -> None:
        if self.incoming.make_room():
            self._owing = True
            self._wake.set()

    # ---- one connection after the other ----------------------------------------------------------

    async def _keep(self, open: Callable[[], Awaitable[Line]]) -> None:
        """Open the link whenever it is not."""
        first, longest = self.here.times.pauses
        pause, strange = first, 0
        while not self._ended:
            try:
                connection = await open()
                strange = 0
                if await self.talk(connection):
                    pause = first
            except Trouble as trouble:
                self.trouble = str(trouble)
                self.vacant = isinstance(trouble.__context__, ConnectionRefusedError)
                strange = strange + 1 if trouble.kind == "tls" else 0
                if strange == self.here.times.patience:
                    self.here.fail(Refused(str(trouble), trouble.kind))
                    return
            except Refused as error:
                self.refused = True
                self.here.fail(error)
                return
            self.here.changed()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)

    async def answers(self) -> bool:
        """Whether the other end of the connection that there is, if there is any, is alive."""
        connection = self.connection
        if connection is None:
            return False
        try:
            async with asyncio.timeout(self.here.times.opening / 3):
                await (await connection.ping())
        except (ConnectionClosed, TimeoutError, OSError):
            return False
        return self.connection is connection

    async def talk(self, connection: Line) -> bool:
        """Use a connection until it ends, and say whether it was of use."""
        before, self.connection = self.connection, connection
        if before is not None:
            before.cut()  # the newer one wins: what it has not brought is sent again
        writer = None
        try:
            async with asyncio.timeout(self.here.times.opening):
                await self._greet(connection)
            self.silent = self._since_progress = 0.0
            self._heard, self.trouble = connection.heard, ""
            self.left = self.vacant = False
            self._wake.set()
            self.here.changed()
            writer = asyncio.create_task(self._write(connection))
            await self._read(connection)
        except (ConnectionClosed, TimeoutError, OSError) as error:
            self.left = False
            if isinstance(error, ConnectionClosed):
                if not error.rcvd_then_sent and error.sent and error.sent.code in AT_DAMAGE:
                    raise self._damaged("") from None
                goodbye = error.rcvd
                self.left = goodbye is not None and goodbye.code == CloseCode.NORMAL_CLOSURE
            return writer is not None
        except Trouble as trouble:
            self.trouble = str(trouble)
            return False
        except Damaged as damage:
            refused = self._damaged(str(damage))
            await refuse(connection, Refusal(str(refused)))
            raise refused from None
        finally:
            if writer is not None:
                writer.cancel()
            connection.cut()
            if self.connection is connection:
                self.connection = None
                self.here.changed()
        return True

    def _damaged(self, fault: str) -> Refused:
        fault = fault or "is damaged; are all members of the same version of vpem?"
        sentence = f"a message from {self.member.name} to {self.here.identity.name} {fault}"
        return Refused(sentence, of_member=True)

    async def _refuse(self, connection: Line, sentence: str) -> None:
        """Send the other end why there is no link, and raise that here."""
        await refuse(connection, Refusal(sentence))
        raise Refused(sentence)

    # ---- the first frames ------------------------------------------------------------------------

    async def _greet(self, connection: Line) -> None:
        """Exchange the first frames, and see whether all agree."""
        here = self.here
        wrong = not_valid(self.member.name, certificate_of(connection), here.clock())
        if wrong:
            await self._refuse(connection, wrong)
        if here.farewell is not None and self.returned:
            await refuse(connection, here.farewell)
            raise Trouble("this member has ended")
        missing = tuple(member.name for member in here.roster.left_out)
        hello = Hello(
            here.roster.study,
            here.roster.edition,
            here.roster.text,
            VERSION,
            here.identity.name,
            here.session,
            self.session,
            self.incoming.got,
            missing,
        )
        await connection.send(hello.pack())
        heard = parse(await connection.recv())
        self._check_refused(heard.refusal)
        if (theirs := heard.hello) is None:
            raise Damaged
        name, roster = self.member.name, here.roster
        about = theirs.version, theirs.study, theirs.edition, theirs.text
        sentence = roster.differs(here.identity.name, name, *about)
        if theirs.name != name:
            sentence = f"{name}, by its certificate, says that it is {theirs.name}"
        if sentence:
            await self._refuse(connection, sentence)
        # The first member says who is left out; else wait until both ends know it.
        known, reported = set(missing), set(theirs.without)
        if self.rank == 0 and reported > known:
            here.fail(GoneOn(self.member.name, theirs.without))
        elif self.rank == 0 and reported != known:
            self.returned = True
            here.changed()
        if reported != known:
            raise Trouble(f"{self.member.name} has still to hear who is left out")
        if self.session not in ("", theirs.session):
            self.returned = True
            self.here.changed()
            raise Trouble(f"{self.member.name} has begun again")
        if theirs.yours not in ("", here.session):
            raise Trouble(f"{self.member.name} has not begun again yet")
        self.session = theirs.session
        self.out.rewind(theirs.got)

    def _check_refused(self, refusal: Refusal | None) -> None:
        if refusal is None:
            return
        own_name, name = self.here.identity.name, self.member.name
        if refusal.left_out:
            self.refused = True
            self.here.fail(LeftOut(f"{name} says: {refusal.sentence}"))
            raise Trouble(refusal.sentence)
        if not refusal.exit_code:
            kind = "taken" if refusal.taken else "answer"
            raise Refused(f"{name} refuses to talk with {own_name}: {refusal.sentence}", kind)
        self.parted = refusal
        self.here.changed()
        raise Trouble(refusal.sentence)

    # ---- the rest of them ------------------------------------------------------------------------

    async def _write(self, connection: Line) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        with contextlib.suppress(ConnectionClosed, OSError):
            while True:
                self._wake.clear()
                while data := self.out.piece(self.incoming.ack()):
                    self._owing = False
                    await connection.send(data.pack())
                    last = loop.time()
                    if connection.transport.is_closing():
                        return
                if self._owing:
                    self._owing = False
                    await connection.send(self.incoming.ack().pack())
                    last = loop.time()
                try:
                    async with asyncio.timeout_at(last + self.here.times.pulse):
                        await self._wake.wait()
                except TimeoutError:
                    self._owing = True  # a sign of life

    async def _read(self, connection: Line) -> None:
        unacknowledged = 0
        while True:
            frame = parse(await connection.recv())
            if self.connection is not connection:
                return
            self._check_refused(frame.refusal)
            if (ack := frame.ack) is None:
                raise Damaged
            if self.out.acknowledge(ack.got, ack.room):
                self._since_progress = 0.0
                if not self.out.kept:
                    self.here.changed()
            if self.out.kept:
                self._wake.set()  # there may be room now
            if frame.data is not None:
                message = self.incoming.put(frame.data)
                unacknowledged += len(frame.data.piece)
                self._make_room()
                if message is not None:
                    self._arrived(message)
                if message is not None or unacknowledged >= 1 << 20:
                    unacknowledged = 0
                    self._owing = True
                    # A job of NVFlare takes long for it: it goes with what is sent next, or `tick`.
                    if self.here.carrier is None or message is None or message.tag < 0:
                        self._wake.set()

    def _arrived(self, message: TaggedMessage) -> None:
        """Hand a message on, or hear from it that the member ends."""
        if message.tag == FINISHED:
            self.finished = True
        elif message.tag == UNHEARD:
            self.missed = Missed.unpack(bytes(message.data))
        elif message.tag == FAREWELL:
            farewell = parse(bytes(message.data)).refusal
            if farewell is None or not farewell.exit_code:
                raise Damaged
            self.parted = farewell
        else:
            self.here.take(self.rank, message)
            return
        self.here.changed()

    # ---- the clock -------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        """Cut a link that is not as alive as it claims; called once in a while."""
        self.silent += seconds
        connection = self.connection
        if connection is None:
            return
        if self._owing:
            self._wake.set()
        if connection.heard != self._heard:
            self._heard = connection.heard
            self.silent = 0.0
        self._since_progress = self._since_progress + seconds if self.out.waits else 0.0
        times = self.here.times
        if self.silent > times.silence or self._since_progress > times.stuck:
            self._since_progress = 0.0
            connection.cut()

    async def end(self) -> None:
        self._ended = True
        if self.connection is not None:
            await self.connection.leave()
        if self._keeper is not None:
            self._keeper.cancel()


PAUSES = 0.5, 5.0
"""Seconds before a relay that was lost is dialled again: the first time, and at most."""

OPTIONS: dict[str, Any] = {
    "ping_interval": PING,
    "ping_timeout": 2 * PING,
    "max_size": 4 * CHUNK,
    "write_limit": 4 * CHUNK,
}

MOST = 500
"""Streams at a time, whatever a relay calls for."""

_running: set[asyncio.Task[None]] = set()
"""Streams that are being carried: a loop by itself would forget its tasks."""


def _run(work: Work) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)


async def through(
    relay: Member, member: Member, identity: Identity, roster: Roster, *, wait: bool = True
) -> socket:
    """Return a stream to a member that is registered (`calls`) at a relay or the server of a star.

    It is one end of a pair of sockets: what is written comes out at the member's. If ``wait``, the
    member may come within 20 seconds.
    """
    opened = await _open(relay, identity, roster, f"{'call' if wait else 'find'}/{member.name}")
    return await _stream(opened, relay, member.name)


async def calls(
    relay: Member,
    identity: Identity,
    roster: Roster,
    deliver: Callable[[socket], None],
    tell: Callable[[Fault], None] | None = None,
) -> None:
    """Stay registered at the relay, for ever, and deliver a stream for each member that calls.

    A stream is one end of a pair of sockets. ``tell`` is given why the relay could not be reached;
    it is dialled again all the same.
    """
    pause = PAUSES[0]
    while True:
        try:
            opened = await _open(relay, identity, roster, "wait")
            pause = PAUSES[0]
            try:
                async for number in opened:
                    if len(_running) < MOST:
                        _run(_answer(relay, identity, roster, str(number)[:64], deliver))
                raise closed(relay, opened)
            except ConnectionClosed:
                raise closed(relay, opened) from None
            finally:
                opened.cut()
        except Fault as fault:
            if tell is not None:
                tell(fault)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(PAUSES[1], 2 * pause)


DOOR, WAY_OUT = "in", "out"
"""Sockets in the folder of a job of NVFlare: where streams of others arrive, and where a member
opens its own, which begin with the other's name."""


def door_in(folder: Path) -> socket:
    """Return the socket at which a job of NVFlare delivers streams (`vpem.engines.nvflare`)."""
    path = folder / DOOR
    path.unlink(missing_ok=True)  # of this process before it began again
    listener = socket(AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


async def carried(folder: Path, member: Member) -> socket:
    """Return a stream to a member, which a job of NVFlare carries."""
    line, loop = socket(AF_UNIX), asyncio.get_running_loop()
    line.setblocking(False)
    try:
        await loop.sock_connect(line, str(folder / WAY_OUT))
        await loop.sock_sendall(line, f"{member.name}\n".encode())
        async with asyncio.timeout(WAIT):
            if not await loop.sock_recv(line, 1):
                raise ConnectionRefusedError
    except OSError:
        line.close()
        raise Trouble(
            f"the job of NVFlare does not reach {member.name}: look at the log of its site",
            "absent",
        ) from None
    return line


async def _open(relay: Member, identity: Identity, roster: Roster, what: str) -> Called:
    context: ssl.SSLContext = client_context(identity, [relay])
    members = roster.members
    return await dial(identity.name, relay, context, path=RELAY + what, members=members, **OPTIONS)


async def _answer(
    relay: Member,
    identity: Identity,
    roster: Roster,
    number: str,
    deliver: Callable[[socket], None],
) -> None:
    # Who called and has gone meanwhile calls again.
    with suppress(Fault):
        opened = await _open(relay, identity, roster, f"answer/{number}")
        deliver(await _stream(opened, relay, "the caller"))


async def _stream(opened: Called, relay: Member, name: str) -> socket:
    """Return a socket that is carried over a connection once this is paired."""
    try:
        async with asyncio.timeout(WAIT + PING):
            paired = await opened.recv() == PAIRED
    except (ConnectionClosed, TimeoutError):
        paired = False
    except asyncio.CancelledError:
        opened.cut()
        raise
    if not paired:
        absent = opened.close_reason == ABSENT
        opened.cut()
        if not absent:
            raise closed(relay, opened)
        raise Trouble(
            f"{name} is not connected to {relay.name}, which passes on what is sent to it: start "
            f"{name}",
            "absent",
        )
    ours, theirs = socketpair()
    _run(_carry(opened, theirs))
    return ours


async def _carry(opened: Called, end: socket) -> None:
    """Copy between a socket and a WebSocket until one of them has ended."""
    reader, writer = await asyncio.open_connection(sock=end, limit=2 * CHUNK)

    async def out() -> None:
        with suppress(ConnectionClosed, OSError):
            while piece := await reader.read(CHUNK):
                await opened.send(piece)

    async def back() -> None:
        with suppress(ConnectionClosed, OSError):
            async for piece in opened:
                if isinstance(piece, str):
                    return
                writer.write(piece)
                await writer.drain()

    try:
        await either(out(), back())
    finally:
        writer.close()
        await opened.leave()
