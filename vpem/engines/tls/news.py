"""What the program hears of other members: that they ended, began again, are lost, or what went."""

from __future__ import annotations

from dataclasses import dataclass

from vpem.engines.engine import StalledError
from vpem.errors import Setting, VpemError


class Parted(VpemError):
    """Another member has ended, why, and with which exit code."""

    def __init__(self, name: str, sentence: str, exit_code: int) -> None:
        super().__init__(f"{name} ended: {sentence}")
        self.name = name
        self.sentence = sentence
        self.exit_code = exit_code


class Returned(VpemError):
    """Another member's process is a new one: it died, and began again."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has begun again, and what it knew is gone")
        self.name = name


class Unheard(StalledError):
    """Another member has not been heard of for too long."""

    def __init__(self, name: str, *parts: str | Setting) -> None:
        super().__init__(*parts)
        self.name = name


class GoneOn(VpemError):
    """The first member, ``name``, goes on ``without`` some others."""

    def __init__(self, name: str, without: tuple[str, ...]) -> None:
        super().__init__(f"{name} goes on without {', '.join(without)}")
        self.without = without


class LeftOut(VpemError):
    """The others have gone on without this member, as one of them has said."""

    exit_code = 4


@dataclass(frozen=True)
class Sent:
    """A message that was sent or received."""

    time: float  # seconds since 1970
    sent: bool  # by this member
    peer: str
    topic: str  # kind of message
    size: int  # bytes of the message itself
    digest: str  # their HMAC-SHA256, by a key that those of the run have had
