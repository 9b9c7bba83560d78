"""What members find behind a door besides links: a relay, and somebody who answers checks."""

from __future__ import annotations

import asyncio
from collections import Counter

from vpem.engines.tls.check_answers import CHECK, Answers
from vpem.engines.tls.members import Identity, Member, Roster
from vpem.engines.tls.relay import MOST, RELAY, Relay
from vpem.engines.tls.sockets import Answered, certificate_of
from vpem.engines.tls.trust import believed, not_valid

CHECKS = 4
"""Checks that a member may have at a time."""

REASON = 120
"""Bytes of the sentence with which a connection is closed, at most."""


class Lobby:
    """Serves members who ask for anything but a link; without a relay nothing is passed on."""

    def __init__(self, roster: Roster, identity: Identity, relay: Relay | None = None) -> None:
        self.identity = identity
        self.relay = relay
        self._here: set[Answered] = set()
        self._checks: Counter[str] = Counter()
        self.renew(roster)

    def renew(self, roster: Roster) -> None:
        """Take up another edition: who is no member any more is sent away."""
        self.roster = roster
        self._answers = Answers(roster, self.identity)
        if self.relay is not None:
            self.relay.most = MOST + len(roster.members)
        for connection in self._here:
            if self._member(connection) is None:
                connection.cut()

    async def welcome(self, connection: Answered, path: str) -> None:
        """Serve somebody who has dialled, until that ends."""
        member = self._member(connection)
        late = "it is no member" if member is None else not_valid(member.name, member.certificate)
        if member is None or late:
            await connection.leave(1008, late.partition(" (")[0][:REASON])
            return
        self._here.add(connection)
        try:
            if path.startswith(RELAY) and self.relay is not None:
                await self.relay.serve(connection, member.name, path)
            elif path == CHECK:
                await self._check(connection, member)
            else:
                asked = path[:40].encode("ascii", "replace").decode()
                await connection.leave(1008, f"{self.identity.name} has nothing at {asked}")
        finally:
            self._here.discard(connection)

    async def _check(self, connection: Answered, member: Member) -> None:
        """Answer a check, of few at a time."""
        if self._checks[member.name] >= CHECKS:
            await connection.leave(1013, f"{member.name} checks {CHECKS} times already")
            return
        self._checks[member.name] += 1
        try:
            await self._answers.serve(connection, member)
        finally:
            self._checks[member.name] -= 1

    async def leave(self, why: str) -> None:
        """End all connections."""
        await asyncio.gather(*(each.leave(1001, why[:REASON]) for each in list(self._here)))

    def _member(self, connection: Answered) -> Member | None:
        shown = certificate_of(connection)
        return next((one for one in believed(self.roster) if one.certificate == shown), None)
