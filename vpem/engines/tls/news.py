"""What the program hears of other members: that they ended, began again, are lost, or what went."""

from __future__ import annotations

from dataclasses import dataclass

from vpem.engines.engine import StalledError
from vpem.errors import Setting, VpemError

__all__ = ["GoneOn", "LeftOut", "Parted", "Returned", "Sent", "Unheard"]


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


class Unheard(StalledError):
    """Another member has not been heard of for too long.

    Parameters
    ----------
    name : str
        Its name.
    *parts : str or Setting
        The sentence.
    """

    def __init__(self, name: str, *parts: str | Setting) -> None:
        super().__init__(*parts)
        self.name = name


class GoneOn(VpemError):
    """The first member goes on without some others.

    Parameters
    ----------
    name : str
        The first member's.
    without : tuple of str
        Names of all who are left out.
    """

    def __init__(self, name: str, without: tuple[str, ...]) -> None:
        super().__init__(f"{name} goes on without {', '.join(without)}")
        self.without = without


class LeftOut(VpemError):
    """The others have gone on without this member.

    Parameters
    ----------
    sentence : str
        What another has said of that.
    """

    exit_code = 4


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
