"""Last words of TLS: why a handshake came to nothing.

asyncio closes a connection whose handshake fails before the alert has been sent that says why, so
that the other end would only see it closed (`asyncio.sslproto` of CPython 3.11 to 3.14). Here the
alert goes out first.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

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
        """Go on with the handshake."""
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
        """Begin a handshake."""
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        if isinstance(made, _Speaking):
            made.line, made.outgoing = _line.get(), outgoing
        return made
