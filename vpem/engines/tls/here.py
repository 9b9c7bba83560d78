"""What the links of a member have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from vpem.engines.tls.faults import Refused
from vpem.engines.tls.members import Identity, Roster
from vpem.engines.tls.wire import Message, Refusal
from vpem.errors import VpemError


class Damage(Refused):
    """A frame that no member of the same version sends."""


@dataclass(frozen=True)
class Pace:
    """Times of links, in seconds."""

    pulse: float = 10.0  # between signs of life on a link that has nothing to say
    silence: float = 20.0  # after which a link is opened again
    stuck: float = 30.0  # unacknowledged for so long: opened again
    opening: float = 10.0  # for a connection to be opened
    pauses: tuple[float, float] = (0.05, 5.0)  # between attempts: first, longest
    patience: int = 4  # times that others may answer in a member's place


@dataclass
class Here:
    """What the links of a member know of it; `failed` gets the error that ends the run."""

    roster: Roster
    identity: Identity
    rank: int
    version: str
    session: str  # number of this process
    pace: Pace
    arrived: Callable[[int, Message], None]  # a message, whole
    changed: Callable[[], None]  # a link came up, went down, or ended
    failed: Callable[[VpemError], None]
    say: Callable[[str], None]  # who was turned away
    clock: Callable[[], datetime]  # time of day, in UTC
    farewell: Refusal | None = None  # why this member has ended
