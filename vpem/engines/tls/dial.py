"""Opening a connection to another member, and what it means when that fails."""

from __future__ import annotations

import socket
import ssl
from typing import Any, cast

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidProxy, InvalidProxyStatus, ProxyError

from vpem.engines.tls.members import Member
from vpem.engines.tls.sockets import OPTIONS, Called, quiet
from vpem.engines.tls.trust import refusal_of
from vpem.engines.tls.wire import FRAME
from vpem.errors import VpemError

__all__ = ["Refused", "Trouble", "dial"]

PATH = "/vpem"


class Refused(VpemError):
    """A link that cannot be, however often it is tried."""

    exit_code = 2


class Trouble(Exception):
    """A link that cannot be at present."""

    def __init__(self, sentence: str, kind: str = "") -> None:
        super().__init__(sentence)
        self.kind = kind


async def dial(
    own: str,
    member: Member,
    context: ssl.SSLContext,
    through: socket.socket | None = None,
    seconds: float = 10.0,
) -> Called:
    """Open a connection to a member.

    Parameters
    ----------
    own : str
        Name of this member.
    member : Member
        Who is expected there.
    context : SSLContext
        That accepts its certificate.
    through : socket, optional
        A stream that leads there; default: its address, by a proxy where one is set.
    seconds : float
        To try for.

    Raises
    ------
    Trouble, Refused
        If that fails, now or for good.
    """
    made: list[Called] = []

    def make(*args: Any, **options: Any) -> Called:
        made.append(Called(*args, **options))
        return made[-1]

    host, port = member.address or (member.name, 443)
    where = f"{host}:{port}"
    given: dict[str, Any] = {} if through is None else {"sock": through}
    try:
        connection = await connect(
            f"wss://{f'[{host}]' if ':' in host else host}:{port}{PATH}",
            ssl=context,
            compression=None,
            max_size=FRAME,
            open_timeout=seconds,
            user_agent_header=None,
            logger=quiet,
            create_connection=cast(Any, make),
            **OPTIONS,
            **given,
        )
    except (OSError, EOFError, InvalidHandshake, InvalidProxy) as error:
        lost = made[-1].lost if made else None
        raise _meaning(own, member.name, where, error, lost) from None
    return cast(Called, connection)


def _meaning(
    own: str, name: str, where: str, error: Exception, lost: Exception | None
) -> Trouble | Refused:
    """Say what a failed connection means."""
    kind = refusal_of(error) or refusal_of(lost)
    if kind == "unknown":
        return Refused(
            f"what answers at {where} is not {name}: it shows another certificate than the one "
            "in the study; is the address right, is the study the newest edition, or does a "
            "proxy open what is sealed?"
        )
    if kind == "refused":
        return Refused(
            f"{name} refuses the certificate of {own}: it is not in the study that {name} has, "
            "or has been revoked; compare the editions"
        )
    if isinstance(error, InvalidProxyStatus):
        status = error.response.status_code
        if status == 407:
            return Refused(
                f"the proxy on the way to {name} asks for a name and a password; give them in "
                "https_proxy (http://NAME:PASSWORD@HOST:PORT)"
            )
        return Trouble(f"the proxy on the way to {where} answers {status}")
    if isinstance(error, InvalidProxy):
        return Refused(f"https_proxy cannot be used: {error}")
    if isinstance(error, ProxyError):
        return Trouble(f"the proxy on the way to {where} does not answer as one")
    if kind == "other" or isinstance(error, InvalidHandshake):
        return Trouble(f"what answers at {where} is not vpem", "other")
    if isinstance(error, TimeoutError):
        return Trouble(f"{where} does not answer")
    if isinstance(error, ConnectionRefusedError):
        return Trouble(f"nobody listens at {where}")
    if isinstance(error, socket.gaierror):
        return Trouble(f"there is no host {where.rpartition(':')[0]}")
    if isinstance(error, ssl.SSLError | EOFError | ConnectionError):
        return Trouble(f"the connection to {where} was cut while it was opened")
    return Trouble(
        f"{where} cannot be reached ({error.strerror or 'no reason given'})"
        if isinstance(error, OSError)
        else f"{where} cannot be reached"
    )
