"""Opening a connection to another member, and finding out why when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException
from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from vpem.engines.tls.faults import Met, Refused, clock, explain, others_clock
from vpem.engines.tls.trust import Member, not_valid, refusal_of, unlike, written_address
from vpem.engines.tls.wire import (
    FRAME,
    OPTIONS,
    Called,
    Refusal,
    chain_of,
    last_words,
    quiet,
    refuse,
)

PATH = "/vpem"

FIRST = 3.0
"""Seconds for each of a host's addresses but the last."""

GREETING = 256
"""Bytes that are read of what does not speak TLS."""


def proxy_to(host: str, port: int) -> str | None:
    """Return the proxy through which an address is dialled, without its password."""
    try:
        proxy = get_proxy(parse_uri(_uri(host, port, PATH)))
    except (ValueError, WebSocketException):  # dialling will say why
        return None
    if proxy is None:
        return None
    url = urlsplit(proxy)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def _uri(host: str, port: int, path: str) -> str:
    return f"wss://{written_address((host, port))}{path}"


class _Straight(connect):
    """Goes where the study says, and nowhere that an answer names."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follow no redirection."""
        return exc


async def dial(
    own_name: str,  # name of this member
    member: Member,
    context: ssl.SSLContext,  # accepts its certificate
    through: socket.socket | None = None,
    seconds: float = 10.0,  # to try for
    *,
    path: str = PATH,  # of the request
    members: Sequence[Member] = (),
    **options: Any,
) -> Called:
    """Open a connection to a member; Trouble or Refused if that fails, now or for good.

    ``through`` is a stream that leads there, by default its address, by a proxy where one is set;
    any of ``members`` may answer; ``options`` are `websockets.asyncio.client.connect`'s.
    """
    opened: list[Called] = []

    def make(*args: Any, **options: Any) -> Called:
        opened.append(Called(*args, **options))
        return opened[-1]

    host, port = member.address or (member.name, 443)
    proxy = None if through is not None else proxy_to(host, port)
    met = Met(own_name, member, host, port, proxy, seconds)
    defaults = {"compression": None, "user_agent_header": None, "max_size": FRAME}
    options = OPTIONS | defaults | options
    try:
        async with asyncio.timeout(seconds):
            line = await _line_to(host, port) if through is None and proxy is None else through
        with last_words(line):
            connection = await _Straight(
                _uri(host, port, path),
                ssl=context,
                sock=line,
                open_timeout=seconds,
                create_connection=cast(Any, make),
                logger=quiet,
                **options,
            )
    except (OSError, EOFError, ImportError, WebSocketException) as error:
        lost = opened[-1].lost if opened else None
        # An alert of TLS 1.3 comes when the handshake seems to be over, and is what ended the rest.
        cause = lost if isinstance(lost, ssl.SSLError) else error
        if through is None:
            await _look(cause, met)
        raise explain(cause, met, members) from None
    called = cast(Called, connection)
    shown, wrong = chain_of(called), None
    if unlike(member, shown, members):
        met.shown = shown
        wrong = explain(ssl.SSLCertVerificationError(), met, members)
    elif late := not_valid(member.name, shown[0]):
        assert called.response is not None
        how = "" if member.subject else " (vpem party renew)"
        wrong = Refused(f"{late}: {member.name} must renew it{how}", "certificate")
        if off := clock(member.name, others_clock(called.response.headers)):
            wrong = Refused(f"{off}; meanwhile {late}", "clock")
    if wrong is not None:
        await refuse(called, Refusal(str(wrong)))
        called.cut()
        raise wrong
    return called


async def _line_to(host: str, port: int) -> socket.socket:
    """Connect to the first of a host's addresses that answers."""
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for place, (family, kind, number, _, address) in enumerate(places):
        line = socket.socket(family, kind, number)
        line.setblocking(False)
        try:
            async with asyncio.timeout(None if place + 1 == len(places) else FIRST):
                await loop.sock_connect(line, address)
        except BaseException as error:
            line.close()
            if not isinstance(error, OSError) or place + 1 == len(places):
                raise
        else:
            return line
    raise OSError(f"{host} has no address")


async def _look(error: Exception, met: Met) -> None:
    """Find out what it is that answers in the member's place."""
    if isinstance(error, ssl.SSLCertVerificationError):
        seen: list[list[bytes]] = []

        class Looking(Called):
            """Sends nothing, and ends as soon as the certificate is there."""

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                seen.append(chain_of(self))
                self.cut()

        with contextlib.suppress(OSError, EOFError, WebSocketException):
            # Accepts any certificate: nothing is sent over it.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            options: dict[str, Any] = {"create_connection": Looking, "open_timeout": met.seconds}
            await _Straight(_uri(met.host, met.port, PATH), ssl=context, logger=quiet, **options)
        met.shown = seen[0] if seen else []
    elif refusal_of(error) == "other" and met.proxy is None:
        with contextlib.suppress(OSError):
            # In plain words: what it says first, or to HTTP.
            async with asyncio.timeout(3.0):
                reader, writer = await asyncio.open_connection(met.host, met.port, limit=GREETING)
                try:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.5):
                            met.banner = await reader.read(GREETING)
                            return
                    writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
                    met.banner = await reader.read(GREETING)
                finally:
                    writer.transport.abort()
