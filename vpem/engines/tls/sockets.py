"""Connections of the library `websockets`, as links use them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.protocol import State
from websockets.server import ServerProtocol

from vpem.engines.tls.wire import FRAME, Refusal

quiet = logging.Logger("vpem.links", logging.CRITICAL + 1)
"""The library's logger: what is to be said is said by the members' own sentences."""

UNSENT = 1 << 22
"""Bytes that wait for a reader, at most: a frame beyond what `send` waits for, and pongs."""

LEAVING = 2.0
"""Seconds for the last word over a connection."""

AT_DAMAGE = (1002, 1007, 1009)
"""Codes with which `websockets` closes: for frames that are none, or beyond all bounds."""


def _tells(record: logging.LogRecord) -> bool:
    """Whether asyncio says more than that somebody was written to who has just gone."""
    return record.msg != "socket.send() raised exception."


logging.getLogger("asyncio").addFilter(_tells)

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
            self.cut()  # whoever asks and asks, and reads no answer

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember why it ended."""
        self.lost = exc
        super().connection_lost(exc)

    def cut(self) -> None:
        """End it at once."""
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


class Host:
    """What `ServerConnection` has for a server: it hands every connection on once TLS is up."""

    def __init__(self, handler: Callable[[Answered], Awaitable[None]]) -> None:
        self._handler = handler
        self.handler_tasks: set[Any] = set()
        self.logger = quiet

    async def handler(self, connection: Answered) -> None:
        """Talk over a connection; whatever happens it is closed afterwards."""
        try:
            await self._handler(connection)
        finally:
            connection.cut()
            self.handler_tasks.discard(asyncio.current_task())

    def is_serving(self) -> bool:
        """Whether connections are accepted: those that are not never come here."""
        return True

    def connection(self) -> Answered:
        """Return a connection to be."""
        protocol = ServerProtocol(max_size=FRAME, logger=quiet)
        return Answered(protocol, self, **OPTIONS)  # type: ignore[arg-type]


async def answer(connection: Answered) -> str:
    """Answer the opening of a connection; return its path, empty if it came to nothing."""
    await connection.handshake(server_header=None)
    if connection.protocol.state is not State.OPEN or connection.request is None:
        return ""
    return connection.request.path


def certificate_of(connection: Line) -> bytes:
    """Return the certificate (DER) that the other end has proved."""
    found: ssl.SSLObject | None = connection.transport.get_extra_info("ssl_object")
    certificate = found.getpeercert(binary_form=True) if found is not None else None
    return certificate or b""


async def refuse(connection: Line, refusal: Refusal) -> None:
    """Say why there is no link, and wait until that has been heard."""
    with contextlib.suppress(ConnectionClosed, TimeoutError, OSError, ssl.SSLError):
        async with asyncio.timeout(2.0):
            await connection.send(refusal.pack())
            await connection.close()


def said_goodbye(error: Exception) -> bool:
    """Whether a connection was closed by the other end, which ends."""
    closed = error.rcvd if isinstance(error, ConnectionClosed) else None
    return closed is not None and closed.code == CloseCode.NORMAL_CLOSURE


def sent_at_damage(error: Exception) -> bool:
    """Whether a connection was closed here for what the other end has sent."""
    sent = error.sent if isinstance(error, ConnectionClosed) and not error.rcvd_then_sent else None
    return sent is not None and sent.code in AT_DAMAGE
