"""What goes over a link: frames of bounded size, over TLS and WebSocket, in two directions.

Each frame is checked before it is believed; of each direction it is known what is to be sent again,
and what has been received. asyncio closes a connection whose handshake fails before the alert has
been sent that says why, so that the other end would only see it closed (`asyncio.sslproto` of
CPython 3.11 to 3.14): here the alert goes out first (`last_words`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import struct
from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from vpem.checks import available_memory

Work = Coroutine[object, object, None]
"""What is done in a loop until it ends."""

PIECE = 1 << 18
"""Bytes of a message in one frame: few enough that what is urgent passes between."""

FRAME = PIECE + (1 << 12)
"""Bytes of the largest frame."""

KIND_HELLO, KIND_DATA, KIND_ACK, KIND_REFUSAL = range(1, 5)

ACK = struct.Struct(">BQQQ")
"""Kind; messages that have been received whole, bytes of the next; bytes that there is room for."""

DATA = struct.Struct(">QQQqB")
"""Number of the message; where in it the piece begins; its size; its tag; length of the topic."""

TEXT = 1 << 11
"""Characters of a sentence, at most."""

TOPIC = 64
"""Characters of a topic, at most."""


FAREWELL, FINISHED, UNHEARD = -1, -2, -3
"""Tags of the messages that a member ends because of an error, that it is done, and that it has not
heard of another for too long."""

MOST = 200
"""Members that can be left out."""


class Damaged(Exception):
    """A frame that no member of the same version sends."""


class Got(NamedTuple):
    """How far a sender's messages have been received: whole ones, and bytes of the next."""

    messages: int = 0
    part: int = 0


@dataclass(frozen=True)
class Hello:
    """The first frame in each direction."""

    study: str
    edition: int
    text: str  # SHA-256 of what was signed
    version: str
    name: str
    session: str  # number of this process
    yours: str  # of the other's, if it has talked with it before
    got: Got  # received of that process
    without: tuple[str, ...] = ()  # who is left out of what runs

    def pack(self) -> bytes:
        return bytes([KIND_HELLO]) + json.dumps(vars(self)).encode()


@dataclass(frozen=True)
class Refusal:
    """The last frame to an end with which no link is made, and why.

    ``taken``: another process of the same member is there already, so that no other is to hear
    anything of this one. ``left_out``: the others have continued without the member that hears it.
    """

    sentence: str
    exit_code: int = 0  # the sender's; 0: only no link
    taken: bool = False
    left_out: bool = False

    def pack(self) -> bytes:
        shown = {"sentence": self.sentence[:TEXT], "exit_code": self.exit_code}
        shown |= {"taken": self.taken, "left_out": self.left_out}
        return bytes([KIND_REFUSAL]) + json.dumps(shown).encode()


@dataclass(frozen=True)
class Missed:
    """A message to the first member: which other was not heard of for too long, and how."""

    name: str
    sentence: str

    def pack(self) -> bytes:
        return json.dumps([self.name, self.sentence[:TEXT]]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Missed:
        try:
            name, sentence = json.loads(data)
            return cls(_text(name, 256), _text(sentence, TEXT))
        except (ValueError, TypeError, RecursionError):
            raise Damaged from None


@dataclass(frozen=True)
class Ack:
    """How far messages have been received, and up to which byte of all there is room."""

    got: Got
    room: int

    def pack(self) -> bytes:
        return ACK.pack(KIND_ACK, *self.got, self.room)


@dataclass(frozen=True)
class Data:
    """A piece of a message, and an acknowledgement."""

    ack: Ack
    number: int
    begin: int
    size: int
    tag: int
    topic: str
    piece: memoryview

    def pack(self) -> bytes:
        topic = self.topic.encode()
        head = ACK.pack(KIND_DATA, *self.ack.got, self.ack.room)
        about = DATA.pack(self.number, self.begin, self.size, self.tag, len(topic))
        return b"".join([head, about, topic, self.piece])


@dataclass(frozen=True)
class Heard:
    """A frame, as what it is, and None of the others."""

    hello: Hello | None = None
    refusal: Refusal | None = None
    ack: Ack | None = None  # that of data, too
    data: Data | None = None


def parse(frame: bytes | str) -> Heard:
    if isinstance(frame, str) or not frame:
        raise Damaged
    try:
        kind = frame[0]
        if kind == KIND_DATA or (kind == KIND_ACK and len(frame) == ACK.size):
            _, messages, part, room = ACK.unpack_from(frame)
            ack = Ack(Got(messages, part), room)
            if kind == KIND_ACK:
                return Heard(ack=ack)
            number, begin, size, tag, length = DATA.unpack_from(frame, ACK.size)
            place = ACK.size + DATA.size + length
            topic = frame[place - length : place].decode("ascii")
            piece = memoryview(frame)[place:]
            if place > len(frame) or begin + len(piece) > size or not topic.isprintable():
                raise Damaged
            if (not len(piece) and size) or length > TOPIC or (tag < 0 and size > FRAME):
                raise Damaged
            return Heard(ack=ack, data=Data(ack, number, begin, size, tag, topic, piece))
        if kind == KIND_HELLO:
            shown = json.loads(frame[1:])
            if not isinstance(shown["without"], list) or len(shown["without"]) > MOST:
                raise Damaged
            words = ("study", "text", "version", "session", "yours")
            messages, part = shown["got"]
            hello = Hello(
                **{key: _text(shown[key], 64) for key in words},
                edition=_number(shown["edition"]),
                name=_text(shown["name"], 256),
                got=Got(_number(messages), _number(part)),
                without=tuple(_text(name, 256) for name in shown["without"]),
            )
            return Heard(hello)
        if kind == KIND_REFUSAL:
            shown = json.loads(frame[1:])
            code = _number(shown["exit_code"], 255)
            sentence = _text(shown["sentence"], TEXT)
            taken, left_out = (shown[word] is True for word in ("taken", "left_out"))
            return Heard(refusal=Refusal(sentence, code, taken, left_out))
    except (ValueError, KeyError, TypeError, IndexError, struct.error, RecursionError):
        raise Damaged from None
    raise Damaged


def _text(value: object, most: int) -> str:
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise ValueError
    return value


def _number(value: object, most: int = 1 << 63) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError
    return value


_line: ContextVar[socket.socket | None] = ContextVar("line", default=None)
"""The socket of the handshake that begins in this task."""


@contextlib.contextmanager
def last_words(line: socket.socket | None) -> Iterator[None]:
    """Let handshakes that begin inside, over a socket that is known, say why they fail."""
    token = _line.set(line)
    try:
        yield
    finally:
        _line.reset(token)


class _Speaking(ssl.SSLObject):
    """A handshake that says why it fails."""

    line: socket.socket | None = None
    outgoing: ssl.MemoryBIO | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.line is not None and self.outgoing is not None:
                with contextlib.suppress(OSError):
                    self.line.send(self.outgoing.read())
            raise


class SpeakingContext(ssl.SSLContext):
    """A context whose handshakes say why they fail, where `last_words` knows the socket."""

    sslobject_class = _Speaking

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any
    ) -> ssl.SSLObject:
        handshake = cast(_Speaking, super().wrap_bio(incoming, outgoing, *args, **options))
        handshake.line, handshake.outgoing = _line.get(), outgoing
        return handshake


UNASKED = 1 << 24
"""Bytes that a member may have sent of messages not requested yet."""

OVERHEAD = 2048
"""Bytes that a message counts beside its own: a box and a frame, which an empty one has too."""


@dataclass(frozen=True)
class TaggedMessage:
    """What a member has for another."""

    tag: int
    topic: str
    data: bytes | bytearray | memoryview


class Outgoing:
    """Messages to a member, kept until it has acknowledged them."""

    def __init__(self) -> None:
        self.kept: deque[TaggedMessage] = deque()
        """What is added here is sent when all before it have been."""
        self.done = Got()
        self._next = Got()
        self._sent = 0
        self._done_bytes = 0
        self.room = UNASKED

    @property
    def waits(self) -> bool:
        """Whether anything has been sent that is not acknowledged."""
        return self._next != self.done

    @property
    def held_back(self) -> bool:
        """Whether the member has no room for more."""
        return self._sent >= self.room

    def rewind(self, got: Got) -> None:
        """Go on, over a new connection, from where the member has received."""
        self.acknowledge(got)
        self._next = got
        self._sent = self._done_bytes + (OVERHEAD + got.part if got.part else 0)

    def acknowledge(self, got: Got, room: int = 0) -> bool:
        """Forget what has arrived; whether that is more than before. Damaged if less, or unsent."""
        if not self.done <= got <= self._next:
            raise Damaged
        more = got > self.done
        for _ in range(got.messages - self.done.messages):
            self._done_bytes += len(self.kept.popleft().data) + OVERHEAD
        if got.part and (not self.kept or got.part >= len(self.kept[0].data)):
            raise Damaged
        self.done = got
        self.room = max(self.room, room)
        return more

    def piece(self, ack: Ack) -> Data | None:
        """Return the next piece of what is to be sent, if there is room for it."""
        number, begin = self._next
        place = number - self.done.messages
        if place >= len(self.kept) or self.held_back:
            return None
        message = self.kept[place]
        size = len(message.data)
        piece = memoryview(message.data)[begin : begin + PIECE]
        end = begin + len(piece)
        self._sent += len(piece) + OVERHEAD * (begin == 0)
        self._next = Got(number + 1, 0) if end == size else Got(number, end)
        return Data(ack, number, begin, size, message.tag, message.topic, piece)


class Incoming:
    """Messages from a member: those requested, by their tags, and others up to a bound."""

    def __init__(self, unasked: int = UNASKED) -> None:
        self.messages = 0
        self._part = bytearray()
        self._size = self._tag = 0
        self._largest = available_memory()
        self._received = 0
        self._most = self.room = unasked
        self._unasked = 0
        self._is_asked = False
        self._asked: Counter[int] = Counter()  # messages that have not begun to come
        self._early: dict[int, deque[int]] = {}  # sizes of messages not requested

    @property
    def got(self) -> Got:
        return Got(self.messages, len(self._part))

    def ack(self) -> Ack:
        return Ack(self.got, self.room)

    def ask(self, tags: Iterable[int]) -> None:
        """Note tags whose messages may have any size; Damaged if too much else has come before."""
        for tag in tags:
            if early := self._early.get(tag):
                self._unasked -= early.popleft()
                if not early:
                    del self._early[tag]
            elif self._part and tag == self._tag and not self._is_asked:
                self._is_asked = True
                self._unasked -= len(self._part) + OVERHEAD
            else:
                self._asked[tag] += 1
        self._check()

    def make_room(self) -> bool:
        """Allow the member to send on; whether it must hear of that, lest it be held back."""
        room = self._received + self._most - self._unasked
        more = room > self.room and self.room - self._received < self._most // 2
        if more:
            self.room = room
        return more

    def put(self, data: Data) -> TaggedMessage | None:
        """Add the next piece (Damaged: it is another); the message, if it was its last."""
        if (data.number, data.begin) != self.got:
            raise Damaged
        if data.begin and data.size != self._size:
            raise Damaged
        if data.size > self._largest:
            have = f"{self._largest / 1e9:.4g} GB, half of this machine's memory"
            raise Damaged(f"has {data.size / 1e9:.4g} GB, but no more than {have}, can be read")
        self._check(self._received >= self.room)
        cost = len(data.piece)
        if data.begin == 0:
            cost += OVERHEAD
            self._size, self._tag = data.size, data.tag
            self._is_asked = data.tag < 0 or data.tag in self._asked
            if self._asked[data.tag] > 1:
                self._asked[data.tag] -= 1
            else:
                del self._asked[data.tag]  # of what is not there too
        self._received += cost
        self._unasked += 0 if self._is_asked else cost
        self._check()
        whole: bytearray | memoryview = data.piece
        if len(data.piece) < data.size:
            self._part += data.piece
            if len(self._part) < data.size:
                return None
            whole, self._part = self._part, bytearray()
        self.messages += 1
        if not self._is_asked:
            self._early.setdefault(data.tag, deque()).append(data.size + OVERHEAD)
        return TaggedMessage(data.tag, data.topic, whole)

    def _check(self, full: bool = False) -> None:
        """Raise Damaged where what is requested is behind as much as may come, or there is more."""
        if full or (self._asked and self._unasked >= self._most):
            raise Damaged(f"comes after {self._unasked / 1e6:.3g} MB not requested")


quiet = logging.Logger("vpem.links", logging.CRITICAL + 1)
"""The library's logger: messages are the members' own sentences."""

UNSENT = 1 << 22
"""Bytes that wait for a reader, at most: a frame beyond what `send` waits for, and pongs."""

LEAVING = 2.0
"""Seconds for the last word over a connection."""

AT_DAMAGE = (1002, 1007, 1009)
"""Codes with which `websockets` closes: for frames that are none, or beyond all bounds."""


# asyncio would log that something was written to an end that has just gone.
logging.getLogger("asyncio").addFilter(lambda one: one.msg != "socket.send() raised exception.")

OPTIONS: dict[str, Any] = {
    "ping_interval": None,  # links have pulses of their own
    "close_timeout": 1,
    "max_queue": 8,
    "write_limit": 1 << 20,
}
"""The buffer keeps a link of 100 Mbit/s and 30 ms full; a pulse waits for no more than that."""


class Line(Connection):
    """A connection that knows when it last heard anything, and why it ended."""

    heard = 0.0
    lost: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; small messages do not wait for others (asyncio sees to it for some sockets)."""
        line = transport.get_extra_info("socket")
        if line is not None and line.family in (socket.AF_INET, socket.AF_INET6):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes, of whatever frame."""
        self.heard = self.loop.time()
        super().data_received(data)
        if self.transport.get_write_buffer_size() > UNSENT:
            self.cut()  # an end that asks and asks, and reads no answer

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        super().connection_lost(exc)

    def cut(self) -> None:
        self.transport.abort()

    async def leave(self, code: int = 1000, reason: str = "") -> None:
        """End it with a word, which the other end may be too slow to hear."""
        try:
            async with asyncio.timeout(LEAVING):
                await self.close(code, reason)
        except TimeoutError:
            pass
        finally:
            self.cut()


class Called(Line, ClientConnection):
    """The end that dials."""


class Answered(Line, ServerConnection):
    """The end that answers."""


async def answer(connection: Answered) -> str:
    """Answer the opening of a connection; return its path, empty if it came to nothing."""
    await connection.handshake(server_header=None)
    if connection.protocol.state is not State.OPEN or connection.request is None:
        return ""
    return connection.request.path


def certificate_of(connection: Line) -> bytes:
    """Return the certificate (DER) that the other end has proved."""
    return next(iter(chain_of(connection)), b"")


def chain_of(connection: Line) -> list[bytes]:
    """Return the certificates (DER) that the other end has shown, its own first."""
    tls: Any = connection.transport.get_extra_info("ssl_object")
    if hasattr(tls, "get_unverified_chain"):  # of Python 3.13
        return list(tls.get_unverified_chain() or ())
    shown = tls._sslobj.get_unverified_chain() if tls is not None else ()
    return [ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in shown or ()]


async def refuse(connection: Line, refusal: Refusal) -> None:
    """Say why there is no link, and wait until that has been heard."""
    with contextlib.suppress(ConnectionClosed, TimeoutError, OSError, ssl.SSLError):
        async with asyncio.timeout(2.0):
            await connection.send(refusal.pack())
            await connection.close()
