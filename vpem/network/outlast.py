"""What a party has opened together with others, so that it never opens the same without one.

Two totals of the same numbers, one with a party and one without it, differ by what that party
added, masks or none. Whoever passes messages on may say of anybody that it is lost, so each party
remembers itself with whom it has opened totals, and at which parameters; nobody else can know it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from vpem.network.messages import encode

T = TypeVar("T")

SETUP, START = "setup", "start"
"""Of what totals are before there are parameters: of the data alone, and of starts."""


class FewerError(Exception):
    """Somebody is lost who takes part in a sum: what was sent for it is never opened."""


class Outlast:
    """Totals that were opened, by names of those whose numbers are in them.

    ``enough`` says why a run cannot do without some more, or None where it can. ``known`` is the
    `state` of the image of this process before, where that gave way to a new one.

    Attributes
    ----------
    gone : set of int
        Processes that were lost in this image, whom sums do without to the end of an iteration.
    error : Exception or None
        What says so, and ends the iteration.
    """

    def __init__(
        self, enough: Callable[[Sequence[str]], str | None], known: Mapping[str, Any] | None = None
    ) -> None:
        self._enough = enough
        self.gone: set[int] = set()
        self.error: Exception | None = None
        known, self._knows = known or {}, bool(known)
        self.opened = {at: set(names) for at, names in known.get("opened", {}).items()}
        self.scales: dict[str, tuple[Any, list[str]]] = dict(known.get("scales", {}))
        self._at, self._within = SETUP, False
        self._scaled: set[str] | None = None

    def state(self, back: Collection[str] | None = None) -> dict[str, Any]:
        """Return what the next image is to know.

        Where one came ``back``, who knows nothing, these all find scales again.
        """
        opened = {at: sorted(names) for at, names in self.opened.items()}
        if back is None:
            return {"opened": opened, "scales": {n: list(one) for n, one in self.scales.items()}}
        others = {name for _, names in self.scales.values() for name in names} - set(back)
        return {"opened": opened | {SETUP: sorted(others.union(opened.get(SETUP, ())))}}

    def refusal(self, names: Sequence[str]) -> str | None:
        """Return why sums cannot go on without some who are lost, or None where they can.

        They can within an iteration, where all is summed once, and new parameters follow.
        """
        if not self._within or SETUP in self.opened:
            return "it was lost where numbers may be summed twice"
        return self._enough(names)

    def once(self, name: str, find: Callable[[], T]) -> T:
        """Return a scale of all data, which those who are left go on with as it was found."""
        if name not in self.scales:
            self._scaled = set()
            try:
                found = find()
                self.scales[name] = (found, sorted(self._scaled))
            finally:
                scaled, self._scaled = self._scaled, None
                if name not in self.scales:
                    self.note(scaled)
        known: T = self.scales[name][0]
        return known

    def note(self, names: Collection[str]) -> None:
        """Remember that a total of these is opened now."""
        if self._scaled is not None:
            self._scaled.update(names)
        elif names:
            self.opened.setdefault(self._at, set()).update(names)

    def resumed(self, names: Collection[str]) -> None:
        """Hear that a run of these goes on from a checkpoint, behind which it may have been."""
        if not self._knows:
            self.opened.setdefault(SETUP, set()).update(names)

    def moved(self, parameters: object, last: bool = False) -> None:
        """Hear at which parameters sums are from now on; None: at those that starts make."""
        self._at = START if parameters is None else _digest(parameters)
        self._within = parameters is not None and not last and self._at not in self.opened

    def repeats(self, kept: Mapping[int, object], left: Collection[str]) -> bool:
        """Whether those left would take a sum again that had others in it.

        They go on from the newest of the parameters that are ``kept``, or, without any, begin anew.
        """
        again = set().union(*self.opened.values())
        if kept:
            at = _digest(kept[max(kept)])
            again = self.opened.get(SETUP, set()) | self.opened.get(at, set())
        return not again <= set(left)


def _digest(parameters: object) -> str:
    return hashlib.sha256(encode(parameters)).hexdigest()
