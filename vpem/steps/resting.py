"""When a run of FedEM has come to rest: by corrections, which are all that its server ever sees.

Corrections that become small end a run (`Rest`). Where something is drawn anew in every iteration
that nothing makes up for (batches; workers or codecs without memories), they never do: the
statistic ends by moving about a place, and what ends the run is that this place no longer moves by
more than chance (`Drift`).
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.network.schema import COUNT, NOTHING, Array, Integer, Number, Schema, State

if TYPE_CHECKING:
    from vpem.settings import FedSettings
    from vpem.sums.quantizer import Basis


LOOKS = 10
"""Small corrections in a row that a noisy run ends with."""
FIRST = 10
"""Fewest iterations of a quarter of the first window over which drift is looked for."""
WHOLE_STEPS = 5.0
"""Fewest whole steps of EM, of length 1, that it is worth: shorter steps forget more slowly."""
GROWTH = 1.5
"""How much longer than the last a window is."""
EPOCHS = 4.0
"""Fewest epochs of a window that says anything: chance must have shown most rows."""
CHANCE = 2.0
"""How many times its variance by chance the squared norm of a drift is that counts for none."""
CONSTANT = 0.9
"""Steps that fall below this part in a window still make noise smaller."""


def looks_needed(noisy: bool, participation: float, inner: int) -> int:
    """Say how many corrections in a row must be small before a run is at rest.

    Where anything is drawn or quantized (``noisy``) a correction may be small by chance, and every
    worker, who takes part with this probability, should be heard several times. Within an outer
    loop of VR-FedEM (of ``inner`` iterations, or 0) an error of the workers' estimates stays, which
    the next begins without.
    """
    return ceil(max(LOOKS / participation, 2 * inner)) if noisy else 1


def stays_noisy(how: FedSettings, most: int, omega: float) -> bool:
    """Whether corrections stay noisy however long a run is.

    ``most`` are rows of the worker that has most, ``omega`` the codec's variance, relative to the
    message.
    """
    drawn = how.batch_size is not None and how.batch_size < most
    if drawn and not how.variance_reduction:
        return True
    return how.memory == "none" and (omega > 0 or how.participation < 1)


class Rest:
    """Says when a run is at rest.

    Parameters
    ----------
    tol : float
        Largest squared norm of a correction that is small, relative to the statistic's; 0: none is.
    looks : int
        Small ones in a row that end a run, from `looks_needed`.
    basis : Basis or None
        Units in which norms are taken.
    drift : Drift, optional
        Where noise stays: what ends a run besides.

    Attributes
    ----------
    count : int
        Small ones in a row so far.
    """

    def __init__(
        self, tol: float, looks: int, basis: Basis | None, drift: Drift | None = None
    ) -> None:
        self.tol = tol
        self.looks = looks
        self.basis = basis
        self.drift = drift
        self.count = 0

    def look(
        self,
        statistics: NDArray[np.float64],
        moved: NDArray[np.float64],
        step: float,
        epochs: float,
    ) -> list[bool]:
        """Whether the correction that moved every root's statistic (R, P) by a step is not small.

        And where noise stays, whether the statistic may still go somewhere.
        """
        moving = [not self._is_small(statistics, moved, step)]
        if self.drift is not None:
            moving.append(not self.drift.is_over(moved, step, epochs))
        return moving

    def note(self, large: bool, drifting: bool = True) -> tuple[bool, bool]:
        """Take note of a correction that workers were heard in.

        Returns whether the run is at rest, and whether that is for noise alone still moves it.
        """
        self.count = 0 if large else self.count + 1
        settled = self.count >= self.looks
        return settled or not drifting, not settled and not drifting

    def state(self) -> State:
        """Return what the next look depends on."""
        return {"count": self.count, "drift": None if self.drift is None else self.drift.state()}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {"count": COUNT, "drift": NOTHING if self.drift is None else self.drift.schema()}

    def restore(self, state: State) -> None:
        """Go on from there."""
        self.count = state["count"]
        if self.drift is not None:
            self.drift.restore(state["drift"])

    def _is_small(
        self, statistics: NDArray[np.float64], moved: NDArray[np.float64], step: float
    ) -> bool:
        if self.tol == 0:
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            corrections, sizes = (moved - statistics) / step, moved
            if self.basis is not None:
                corrections, sizes = self.basis.into(corrections), self.basis.into(sizes)
            squares = (corrections**2).sum(axis=1)
            return bool((squares <= self.tol * (sizes**2).sum(axis=1)).all())


FIELDS = ("length", "quarter", "count", "epochs", "step", "sums")


class Drift:
    """Looks, window by window, whether a statistic that noise keeps moving still goes anywhere.

    A window has four quarters. The mean of the later two is compared with that of the earlier two:
    the difference has a variance by chance that shows in how far quarters of a half are apart.
    A drift moves halves four quarters' worth for each quarter, eight times what it adds to that
    variance. Quarters grow from window to window, until they are long beside the time in which
    the statistic forgets where it was.

    Parameters
    ----------
    shape : tuple of int
        Of every root's statistic, (R, P).
    basis : Basis or None
        Units in which norms are taken.

    Attributes
    ----------
    sums : ndarray of shape (4, R, P)
        Of the statistics of each quarter.
    length, quarter, count : int
        Iterations of a quarter, which one it is, and those of it so far.
    epochs, step : float
        When the window began.
    """

    def __init__(self, shape: tuple[int, ...], basis: Basis | None) -> None:
        self.basis = basis
        self.sums = np.zeros((4, *shape))
        self.length, self.quarter, self.count = FIRST, 0, 0
        self.epochs, self.step = 0.0, 1.0

    def state(self) -> State:
        """Return what has been seen of the window."""
        return {name: getattr(self, name) for name in FIELDS}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {
            "length": Integer(1, size="Q"),
            "quarter": Integer(most=3),
            "count": Integer(below="Q"),
            "epochs": Number(0),
            "step": Number(0, 1),
            "sums": Array("f8", self.sums.shape),
        }

    def restore(self, state: State) -> None:
        """Go on from there."""
        for name, value in state.items():
            setattr(self, name, value)

    def is_over(self, moved: NDArray[np.float64], step: float, epochs: float) -> bool:
        """Take note of every root's statistic (R, P); whether a window has shown no drift."""
        if self.quarter == self.count == 0:
            self.epochs, self.step = epochs, step
            self.length = max(self.length, ceil(WHOLE_STEPS / step))
        self.sums[self.quarter] += moved
        self.count += 1
        if self.count == self.length:
            self.quarter, self.count = self.quarter + 1, 0
        if self.quarter < 4:
            return False
        over = epochs - self.epochs >= EPOCHS and step >= CONSTANT * self.step and self._is_still()
        self.length, self.quarter = round(GROWTH * self.length), 0
        self.sums[...] = 0.0
        return over

    def _is_still(self) -> bool:
        """Whether halves of the window are no farther apart than by chance, for all roots."""

        def square(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
            inside = vectors if self.basis is None else self.basis.into(vectors)
            return np.asarray((inside**2).sum(axis=1))

        a, b, c, d = self.sums
        with np.errstate(over="ignore", invalid="ignore"):
            chance = square(a - b) + square(c - d)
            return bool((square(c + d - a - b) <= CHANCE * chance).all())
