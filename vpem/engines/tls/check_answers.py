"""The end of `vpem party check` that is dialled: says who it is, and sends, counts and dials back.

A check is a conversation at ``/check``: texts of JSON, and binary messages that only weigh
something. The first text says who answers; then the member asks ``take``, ``give`` or ``dial``.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed

from vpem import __version__
from vpem.engines.tls.dial import dial
from vpem.engines.tls.faults import Fault
from vpem.engines.tls.members import Identity, Member, Roster
from vpem.engines.tls.sockets import Answered
from vpem.engines.tls.trust import client_context

CHECK = "/check"

WEIGHT = 1 << 14
"""Bytes of a message that only weighs something: what a relay passes on at once."""

MOST = 1 << 26
"""Bytes that are sent or counted in a check, at most."""

ASKED = re.compile("give|dial|take [0-9]{1,18}")

LONGEST = 600.0
"""Seconds that a check may take, idle time with it."""


class Answers:
    """Answers checks, for a study as it is known here."""

    def __init__(self, roster: Roster, identity: Identity) -> None:
        self.roster = roster
        self.identity = identity

    async def serve(self, connection: Answered, member: Member) -> None:
        """Answer a member until it ends."""
        connection.ping_interval, connection.ping_timeout = 10.0, 20.0
        connection.start_keepalive()
        connection.transport.set_write_buffer_limits(4 * WEIGHT)
        until = time.monotonic() + LONGEST
        with suppress(ConnectionClosed):
            await connection.send(
                json.dumps({
                    "name": self.identity.name, "version": __version__,
                    "study": self.roster.study, "edition": self.roster.edition,
                    "text": self.roster.text,
                })
            )  # fmt: skip
            left = MOST
            while time.monotonic() < until and left > 0:
                asked = _asked(await connection.recv())
                if asked == "give":
                    left -= await _count(connection)
                elif asked.startswith("take "):
                    size = min(left, int(asked.partition(" ")[2]))
                    for _ in range(size // WEIGHT):
                        await connection.send(bytes(WEIGHT))
                        await asyncio.sleep(0)  # others have their turn where the network is fast
                    await connection.send("end")
                    left -= size
                elif asked == "dial":
                    left -= WEIGHT
                    await connection.send(json.dumps(await self._dial(member)))
                else:
                    break
            await connection.leave(1008, "a check asks to give, take or dial, and not too much")

    async def _dial(self, member: Member) -> dict[str, Any]:
        """Dial a member where the study says that it can be; nobody else's address is dialled."""
        if member.address is None:
            return {"fault": "it has no address in the study", "kind": "name"}
        context = client_context(self.identity, [member])
        try:
            opened = await dial(
                self.identity.name, member, context, path=CHECK, members=self.roster.members
            )
        except Fault as fault:
            return {"fault": str(fault), "kind": fault.kind}
        opened.cut()
        return {"fault": None, "kind": None}


def _asked(message: str | bytes) -> str:
    """Return what is asked, empty if that is nothing that can be."""
    if not isinstance(message, str):
        return ""
    return message if ASKED.fullmatch(message) else ""


async def _count(connection: Answered) -> int:
    """Take messages until a text, and say what they weighed."""
    weight = 0
    while weight <= MOST:
        message = await connection.recv()
        if isinstance(message, str):
            await connection.send(json.dumps({"got": weight}))
            return max(weight, 1)
        weight += len(message)
    return weight
