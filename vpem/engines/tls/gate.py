"""TLS of those who come in, in less memory than asyncio's own takes."""

from __future__ import annotations

import asyncio
import math
import ssl
from asyncio.sslproto import SSLProtocol
from contextlib import suppress
from socket import socket

from vpem.engines.tls.alerts import last_words
from vpem.engines.tls.sockets import Answered

BUFFER = 1 << 15
"""Bytes that a connection is read by; asyncio has 256 kB for it, which strangers would take too."""


MEMBERS = 1 << 18
"""Bytes that it is read by once it is a member's."""


class _Gate(SSLProtocol):
    """TLS that reads little at a time, and forgets at once what it kept of who has gone.

    Protocol, transport and handler refer to each other: their buffers would stay until garbage is
    collected, and strangers come faster than that.
    """

    max_size = BUFFER

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of the buffers."""
        super().connection_lost(exc)
        self._loop.call_soon(self._forget)

    def _forget(self) -> None:
        self._extra.pop("ssl_object", None)
        self._ssl_buffer, self._ssl_buffer_view = bytearray(), memoryview(b"")
        for name in ("_sslobj", "_incoming", "_outgoing"):
            setattr(self, name, None)


async def shake_hands(
    accepted: socket, connection: Answered, context: ssl.SSLContext, seconds: float
) -> None:
    """Bring up TLS with somebody who has dialled; the socket is closed if that fails."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    with last_words(accepted):
        gate = _Gate(
            loop, connection, context, done, server_side=True,
            ssl_handshake_timeout=math.ceil(seconds), ssl_shutdown_timeout=1.0,
        )  # fmt: skip
    gate._set_read_buffer_limits(2 * BUFFER)  # type: ignore[attr-defined]
    transport, _ = await loop.connect_accepted_socket(lambda: gate, accepted)
    try:
        await done
    except asyncio.CancelledError:
        transport.abort()
        with suppress(asyncio.CancelledError):
            done.exception()
        raise
    gate.max_size = MEMBERS  # type: ignore[misc]
