"""How devices' statistics, or models, reach the server that maximises."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.errors import check_choice
from vpem.network.codecs import Codec
from vpem.network.ledger import Ledger
from vpem.saem.models.model import Vector
from vpem.sums.corrections import ITEM, AtServer, Quantizer

__all__ = ["FEEDBACKS", "Reports", "Units"]

FEEDBACKS = ("none", "change", "error", "memory")
"""What devices do about the error of a codec.

``none``: statistics are compressed as they are, as in the draft. What top-k leaves out is then
zero, and the noise of few bits has the size of the statistic: second moments less squared means
become negative, the M-step makes variances nearly zero, and the E-step keeps them there.
``change``: how far statistics are from the server's, which it sends instead of parameters; what is
left out does not change. ``error``: the same, and what messages left out is added to the next
(Seide et al. 2014). ``memory``: how far they are from what the server has of each device
(Richtarik et al. 2021), which both keep."""

LEAST = 1e-3


class Units:
    """Units in which all numbers of a statistic vary alike, so that one scale fits them.

    Parameters
    ----------
    sizes : ndarray of shape (P,)
        One unit.
    """

    def __init__(self, sizes: Vector) -> None:
        self.sizes = sizes

    @staticmethod
    def of(statistics: Vector) -> Units:
        """Take the spread over individuals of statistics (n, P)."""
        typical = np.sqrt(np.mean(statistics**2, axis=0))
        spread = np.maximum(statistics.std(axis=0), LEAST * typical)
        return Units(np.where(spread > 0, spread, 1.0))

    def into(self, statistics: Vector) -> Vector:
        """Vectors (m, P) in these units."""
        return statistics / self.sizes

    def back(self, statistics: Vector) -> Vector:
        """Vectors (m, P) as they were."""
        return statistics * self.sizes


class Reports:
    """The server's mean statistic, and what devices and server remember of each other.

    Parameters
    ----------
    weights : ndarray of shape (D,)
        Share of the individuals that each device has.
    codec : Codec or None
        How statistics are sent; None: exactly.
    feedback : {"none", "error", "memory"}
        See `FEEDBACKS`.
    pieces : tuple of slice
        Of a statistic.
    ledger : Ledger or None
        Of a star; by default a new one.

    Attributes
    ----------
    statistic : ndarray of shape (P,)
        Mean statistic of an individual, as the server has it.
    """

    def __init__(
        self,
        weights: Vector,
        codec: Codec | None,
        feedback: str,
        pieces: tuple[slice, ...],
        ledger: Ledger | None = None,
    ) -> None:
        self.weights = weights
        self.codec = codec
        self.feedback = check_choice("feedback", feedback, FEEDBACKS)
        self.pieces = pieces
        self.quantizer = Quantizer(codec, pieces)
        self.server = AtServer(weights, self.quantizer, 1.0, 1.0, None, ledger)
        self.ledger = self.server.ledger
        self._up = np.flatnonzero(self.ledger.targets == self.ledger.n_nodes - 1)
        self._alone = len(weights) <= 1
        self.alpha = 1.0
        self.damping = 1.0  # the largest step with which a coarse codec does not build up
        self.statistic = np.zeros(pieces[-1].stop)
        self.memory = np.zeros((len(weights), pieces[-1].stop))

    def begin(self, local: Vector, units: Units, rng: np.random.Generator) -> None:
        """Send first statistics (D, P) exactly, and what the units are made of."""
        _, mean = self.server.collect(local, rng)
        self.statistic = mean[0]
        if self.codec is not None:
            if not self._alone:  # sums of squares up, units down
                size = ITEM * len(self.statistic)
                self.ledger.send("setup", size, links=self._up, rounds=1)
                down = np.setdiff1d(np.arange(len(self.ledger.targets)), self._up)
                self.ledger.send("setup", size, links=down, rounds=1)
            self.quantizer = Quantizer(self.codec, self.pieces, basis=units)
            if not self.quantizer.biased:
                self.alpha = self.damping = 1.0 / (1.0 + self.quantizer.omega)
            elif self.feedback != "none":
                self.damping = max(1.0 - self.quantizer.omega, LEAST)
            if self.feedback != "none":
                self.damping /= 2
        if self.feedback == "memory":
            self.memory = local.copy()

    def announce(self, active: NDArray[np.intp], size: int) -> None:
        """Count how the server sends parameters to devices."""
        if self.codec is not None and self.feedback in ("change", "error"):
            size = len(self.statistic)  # of which devices make the parameters
        self.server.announce(active, size)

    def _count(self, sizes: NDArray[np.int64] | int, active: NDArray[np.intp]) -> None:
        if not self._alone and len(active):
            self.ledger.send("server", sizes, links=self._up[active], rounds=1)

    def gather(
        self,
        local: Vector,
        smoothed: Vector,
        active: NDArray[np.intp],
        step: float,
        participation: float,
        rng: np.random.Generator,
    ) -> None:
        """Send statistics of the active devices, and approximate the mean of all.

        Parameters
        ----------
        local : ndarray of shape (a, P)
            Mean statistics of each active device's individuals, as they were simulated.
        smoothed : ndarray of shape (a, P)
            The same, averaged over iterations by the device.
        active : ndarray of shape (a,)
            Which devices.
        step : float
            Of the stochastic approximation.
        participation : float
            Probability with which each of them was active.
        rng : Generator
            Of the codec.
        """
        if self.feedback == "memory":
            received, sizes = self.quantizer.send(smoothed - self.memory[active], rng)
            self.memory[active] += self.alpha * received
            self.statistic = self.weights @ self.memory
        else:
            # Of all devices in the mean; at most to where the active ones are.
            weights = self.weights[active]
            step = min(step / participation, self.damping, 1.0 / float(weights.sum()))
            if self.feedback == "none":
                received, sizes = self.quantizer.send(local, rng)
                received = step * (received - self.statistic)
            elif self.feedback == "change":
                received, sizes = self.quantizer.send(local - self.statistic, rng)
                received = step * received
            else:
                wanted = step * (local - self.statistic) + self.memory[active]
                received, sizes = self.quantizer.send(wanted, rng)
                received = self.alpha * received
                self.memory[active] = wanted - received
            self.statistic = self.statistic + weights @ received
        self._count(sizes, active)

    def average_models(self, thetas: Vector, active: NDArray[np.intp], shares: Vector) -> Vector:
        """Send models of the active devices; the mean of the last of all (D, p), by shares (D,)."""
        self._count(ITEM * thetas.shape[1], active)
        mean: Vector = (shares @ thetas) / shares.sum()
        return mean

    def sum_up(self) -> None:
        """Count what devices send at the end: moments of statistics, and a log-likelihood."""
        size = len(self.statistic)
        self._count(ITEM * (size + size * (size + 1) // 2 + 2), np.arange(len(self.weights)))
