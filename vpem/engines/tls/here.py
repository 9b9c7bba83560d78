"""What the links of a member have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from vpem.engines.tls.faults import Refused
from vpem.engines.tls.members import Identity, Roster
from vpem.engines.tls.streams import Message
from vpem.engines.tls.wire import Refusal
from vpem.errors import VpemError

__all__ = ["Damage", "Here", "Pace"]


class Damage(Refused):
    """A frame that no member of the same version sends."""


@dataclass(frozen=True)
class Pace:
    """Times of links, in seconds.

    Attributes
    ----------
    pulse : float
        Between signs of life on a link that has nothing to say.
    silence : float
        Without any after which a link is opened again.
    stuck : float
        Without an acknowledgement of what was sent after which a link is opened again.
    opening : float
        For a connection to be opened.
    pauses : tuple of float
        Between attempts: the first, and the longest.
    patience : int
        How often something else may answer in a member's place before that is final.
    """

    pulse: float = 10.0
    silence: float = 20.0
    stuck: float = 30.0
    opening: float = 10.0
    pauses: tuple[float, float] = (0.05, 5.0)
    patience: int = 4


@dataclass
class Here:
    """What the links of a member know of it.

    Attributes
    ----------
    roster, identity, rank, version : Roster, Identity, int, str
        Who it is.
    session : str
        Number of this process.
    pace : Pace
        Times of links.
    arrived : callable
        Given a member's number and a message that has been received whole.
    changed : callable
        Called when a link has come up, gone down, or ended.
    failed : callable
        Given the error that ends the run.
    say : callable
        Given a sentence about somebody who was turned away.
    clock : callable
        That returns the time of day, in UTC.
    farewell : Refusal or None
        Why this member has ended, if it has.
    """

    roster: Roster
    identity: Identity
    rank: int
    version: str
    session: str
    pace: Pace
    arrived: Callable[[int, Message], None]
    changed: Callable[[], None]
    failed: Callable[[VpemError], None]
    say: Callable[[str], None]
    clock: Callable[[], datetime]
    farewell: Refusal | None = None
