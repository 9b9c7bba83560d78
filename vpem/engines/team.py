"""Who holds which parties, and how their holders talk before a fit: a small messenger.

Protocols among parties (alignment by id, names of features) are written once, as steps that every
process takes in the same order. In one process (`Alone`) each step hands back what it was given;
an engine with a process a party sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from vpem import errors

__all__ = ["Alone", "Team", "for_each"]

T = TypeVar("T")


class Team(Protocol):
    """Processes that hold parties, each at least none and each party held by one.

    Every process calls the same methods in the same order. Values are None, bool, int, float, str,
    bytes, lists and dicts (with keys of str) of such, and arrays of numbers or of strings or bytes
    of fixed width.
    """

    def mine(self, party: int) -> bool:
        """Tell whether this process holds a party."""

    def collect(self, values: dict[int, Any], to: int | None = 0) -> dict[int, Any] | None:
        """Bring a value of each party to the holder of party ``to``, or to all (None).

        Parameters
        ----------
        values : dict of int to value
            Of the parties held here that have one, by their numbers.
        to : int, optional
            Whose holder gets them.

        Returns
        -------
        dict of int to value, or None
            The values of all parties; None where they do not go.
        """

    def tell(self, value: Any, owner: int = 0) -> Any:
        """Return, everywhere, the value that the holder of party ``owner`` gave."""

    def pass_on(self, value: Any, source: int, target: int) -> Any:
        """Return the value of the holder of ``source`` where ``target`` is held, else None."""


class Alone:
    """One process that holds all parties: nothing is sent."""

    def mine(self, party: int) -> bool:
        """Tell whether this process holds a party, which it does."""
        return True

    def collect(self, values: dict[int, Any], to: int | None = 0) -> dict[int, Any] | None:
        """Return the values, which are all here."""
        return dict(values)

    def tell(self, value: Any, owner: int = 0) -> Any:
        """Return the value."""
        return value

    def pass_on(self, value: Any, source: int, target: int) -> Any:
        """Return the value."""
        return value


def for_each(team: Team, parties: Iterable[int], work: Callable[[int], T]) -> dict[int, T]:
    """Do some work for every party held here, and fail everywhere if it fails anywhere.

    Parameters
    ----------
    team : Team
        Who holds which parties.
    parties : iterable of int
        The parties to work for, the same ones in every process.
    work : function of int
        The work for one party; it must not talk to others.

    Returns
    -------
    dict of int to object
        What the work gave, for the parties held here.

    Raises
    ------
    VpemError
        In every process the same, of the first party whose work raised one.
    """
    done: dict[int, T] = {}
    failures: dict[int, Any] = {}
    for party in parties:
        if team.mine(party):
            try:
                done[party] = work(party)
            except errors.VpemError as error:
                parts = [part if isinstance(part, str) else (part.name, part.value)
                         for part in error.parts]  # fmt: skip
                failures[party] = [type(error).__name__, parts]
    everywhere = team.collect(failures, None)
    assert everywhere is not None
    if everywhere:
        kind, parts = everywhere[min(everywhere)]
        raise getattr(errors, kind, errors.InputError)(
            *(part if isinstance(part, str) else errors.Setting(*part) for part in parts)
        )
    return done
