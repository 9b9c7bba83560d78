"""What the program hears of other members: that they ended, began again, or what was exchanged."""

from __future__ import annotations

from dataclasses import dataclass

from vpem.errors import VpemError

__all__ = ["Parted", "Returned", "Sent"]


class Parted(VpemError):
    """Another member has ended.

    Parameters
    ----------
    name : str
        Its name.
    sentence : str
        Why it has.
    exit_code : int
        That it ends with.
    """

    def __init__(self, name: str, sentence: str, exit_code: int) -> None:
        super().__init__(f"{name} ended: {sentence}")
        self.name = name
        self.sentence = sentence
        self.exit_code = exit_code


class Returned(VpemError):
    """Another member's process is a new one: it died, and began again.

    Parameters
    ----------
    name : str
        Its name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has begun again, and what it knew is gone")
        self.name = name


@dataclass(frozen=True)
class Sent:
    """A message that was sent or received.

    Attributes
    ----------
    time : float
        When, in seconds since 1970.
    sent : bool
        Whether it was sent by this member.
    peer, topic : str
        To or from whom, and of what kind.
    size : int
        Bytes of the message itself.
    digest : str
        Their SHA-256.
    """

    time: float
    sent: bool
    peer: str
    topic: str
    size: int
    digest: str
