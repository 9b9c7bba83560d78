"""Who stands at a port of its own and takes part in nothing: the relay."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from vpem.engines.tls.door import Door
from vpem.engines.tls.members import Identity, Member, Roster
from vpem.engines.tls.relay import RELAY, Relay
from vpem.engines.tls.sockets import Answered, certificate_of
from vpem.engines.tls.trust import believed, not_valid, server_context

__all__ = ["Standing"]

REASON = 120
"""Bytes of the sentence with which a connection is closed, at most."""


class Standing:
    """A door behind which members find a relay.

    Parameters
    ----------
    roster : Roster
        Who may come in.
    identity : Identity
        Whose door it is.
    relay : Relay
        That serves them.
    say : callable
        Given sentences about who was turned away.
    seconds : float
        For a stranger to become a member.
    """

    def __init__(
        self,
        roster: Roster,
        identity: Identity,
        relay: Relay,
        say: Callable[[str], None],
        seconds: float = 10.0,
    ) -> None:
        self.identity = identity
        self.relay = relay
        self._here: dict[Answered, str] = {}
        self.roster = roster
        context = server_context(identity, believed(roster))
        self.door = Door(context, self._welcome, say, seconds)

    def renew(self, roster: Roster) -> None:
        """Take up another edition: who is no member any more is sent away."""
        self.roster = roster
        self.door.renew(server_context(self.identity, believed(roster)))
        for connection in list(self._here):
            if self._member(connection) is None:
                connection.cut()

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled; then end all connections."""
        try:
            await self.door.serve(listener)
        finally:
            listener.close()
            await asyncio.gather(*(each.close(1001, "the relay ends") for each in self._here))

    def _member(self, connection: Answered) -> Member | None:
        shown = certificate_of(connection)
        return next((one for one in believed(self.roster) if one.certificate == shown), None)

    async def _welcome(self, connection: Answered, path: str) -> None:
        """Serve a member that has dialled."""
        member = self._member(connection)
        late = "it is no member" if member is None else not_valid(member.name, member.certificate)
        if member is None or late:
            await connection.close(1008, late.partition(" (")[0][:REASON])
        elif not path.startswith(RELAY):
            await connection.close(1008, f"{self.identity.name} is a relay, and only that")
        else:
            self._here[connection] = member.name
            try:
                await self.relay.serve(connection, member.name, path)
            finally:
                del self._here[connection]
