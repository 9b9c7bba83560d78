"""Sums under masks, in units that holders agree on, and sums that are noisy before they are heard.

Masked sums add numbers of a known range (`vpem.network.masks.FixedPoint`), in units of a power of
two. Where it is not known beforehand, holders find by masked questions how large the largest of all
is, as a power of two: all learn it, and none whose it is.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from vpem.checks import AnyArray, Doubles, Mask
from vpem.engines.placement import DIGIT, LEAST_POWER, MOST_POWER, Placement
from vpem.errors import InputError, VpemWarning
from vpem.network.masks import FRACTION_BITS
from vpem.network.noise import Noise
from vpem.rules import summing
from vpem.sums.counted import MASKED_BYTES, AtServer, add_vectors
from vpem.sums.sum import Sum

LOOKS = 2 * (DIGIT - 1)
"""Powers of two of which holders say whether they have a larger one, until the largest is known."""

MOST_ROUNDING = 1e-2
"""Of usual squared distances, beyond which rounding decides for one row in 100 or more."""

MUCH_ROUNDING = 1e-5
"""Of them, beyond which one row in 100,000 may be near enough to two centres to change clusters."""


def powers_above(total: Sum, sizes: Doubles) -> Doubles:
    """Powers of two (P,) that sizes (n, P) are below, of all holders; 0 where all are 0.

    Under masks all learn the largest, and none whose it is.
    """
    total.begin("setup", 0, 0, MASKED_BYTES, LOOKS * sizes.shape[1])
    powers = np.where(sizes > 0, np.frexp(sizes)[1], LEAST_POWER).clip(LEAST_POWER, MOST_POWER)
    largest = total.holders.largest(powers, LEAST_POWER, MOST_POWER)
    return np.where(largest > LEAST_POWER, np.ldexp(1.0, largest), 0.0)


def power_beyond(total: Sum, values: Doubles, exponents: NDArray[np.int64]) -> int:
    """By how many powers of two units (P,) are too fine for what holders have (n, P), 0 to 31.

    One number, of all values of all holders: under masks none learns whose it is, nor which.
    """
    masks = total.holders.masks
    if masks is None:
        return 0
    total.begin("setup", 0, 0, MASKED_BYTES, DIGIT - 1)
    room = masks.fixed.powers + exponents
    beyond = np.where(values == 0, 0, np.frexp(values)[1] - room).max(axis=1, initial=0)
    largest = total.holders.largest(beyond[:, None].clip(0, DIGIT - 1), 0, DIGIT - 1)
    return int(largest[0])


def in_common_units(total: AtServer, values: Doubles) -> AtServer:
    """Return the same sum in units in which numbers of all holders can be added under masks.

    All learn the largest power of two of all holders, and nothing else: they answer under masks
    whether any has a larger number than some. ``values`` (B, P) are of the holders of this process.
    """
    if total.holders.masks is None:
        return total

    def ask(flags: Mask) -> Mask:
        size = MASKED_BYTES * (len(flags) + 1)
        total.count(size)
        total.broadcast(size)
        local_flags: AnyArray = np.zeros((len(total.holders.own), 1, len(flags)), dtype=np.bool_)
        local_flags[:1] = flags
        return np.asarray(total.reduce(local_flags)[0, 0])

    return total.in_units(np.asarray(total.holders.exponents(values, ask), dtype=np.int64))


def check_digits(holders: Placement, sizes: Doubles, exponent: int, times: float = 1.0) -> None:
    """Compare the rounding of a masked sum of squared distances with what is usual among them.

    All learn whether any holder can tell what is usual, and whether any has enough digits of it or
    many; of whom that is they learn nothing. ``sizes`` (n,) are squared distances that are usual at
    each holder of this process (0: it cannot tell), ``times`` how many are added up before they are
    rounded; the sum is in fixed point, in units of ``2^exponent``. It refuses if rounding takes the
    digits of usual distances, and warns if it takes many.
    """
    assert holders.masks is not None
    fixed = holders.masks.fixed
    rounding = fixed.n_parties * 2.0 ** (exponent - fixed.fraction_bits - 1)
    largest = times * sizes.max(initial=0.0)
    limits = [rounding / MOST_ROUNDING, rounding / MUCH_ROUNDING]
    known, enough, many = holders.any([largest > 0, *(largest > limit for limit in limits)])
    if not known or many:
        return
    words = (
        f"a value lies so far from all others that masked sums have {'few' if enough else 'no'} "
        "digits left for these: look for a code such as 999999999 for unknown, and leave its rows "
        "out or mark it as missing; or clip values before you scale them"
    )
    if not enough:
        raise InputError(words)
    warnings.warn(words, VpemWarning, stacklevel=4)


def add_numbers(total: Sum, values: Doubles, kind: str = "estep") -> Doubles:
    """Sum a few numbers of every holder, exactly where there is one place that adds them up.

    No codec touches them there, and nothing that is remembered of terms changes. They may be of any
    size: where sums are masked their units are agreed on first. ``values`` (B, P) are of the
    holders of this process; the sum (R, P) is as each root finds it, and R is 1 where all share
    one.
    """
    if not total.at_server or total.server is not total:  # nothing stands around that place
        return add_vectors(total, values, kind)
    total.server.charge_as(kind)
    server = in_common_units(total.server, values)
    summed = server.aggregate(server.send(server.holders.padded(values)))
    server.broadcast(values.shape[1] * values.itemsize)
    return summed


EACH = "each worker"
"""Who adds noise where every worker adds all of it to what it sends."""


def noise_by(masked: bool, way: object, each: bool = False) -> str:
    """Say who adds noise to a sum: "server", "root", "workers" or `EACH`; see `Noisy`."""
    if each:
        return EACH
    return "workers" if masked else "root" if summing(way).has_root else "server"


class Noisy:
    """A sum around an exact one: what all hear of it has discrete Gaussian noise.

    At a server the server adds the noise to what workers send, along a tree the root does, before
    the total goes back. Where sums are masked no agent ever sees the total: there each worker adds
    a share to its own, so that the shares together are at least as large, also without those of
    ``colluding`` workers, of whom the noise may be known. Whoever adds noise knows it, and could
    subtract it. A ``seed`` makes the noise repeatable, for tests: that gives no privacy. If
    ``each``, every worker adds all of the noise to its own, which no other then sees without; that
    of the total is ``louder``.
    """

    def __init__(
        self, inner: AtServer, colluding: int = 0, seed: int | None = None, each: bool = False
    ) -> None:
        self.inner = inner
        holders = inner.holders
        self.masked = holders.masks is not None
        self._enough = holders.n_agents - colluding if self.masked else 1
        self.by = noise_by(self.masked, inner.way, each)
        """Who adds the noise: "server", "root", "workers" or `EACH`."""
        self.louder = float(np.sqrt(holders.n_agents)) if each else 1.0
        self._places: list[int] = []
        if self.masked or each:
            self._places = list(range(len(holders.own)))
        elif self.by == "root":
            self._places = np.flatnonzero(holders.own == inner.root).tolist()
        numbers = holders.own[self._places] if self._places else [holders.n_agents]
        self._sources = [Noise(seed, int(number)) for number in numbers]

    def add(
        self, values: Doubles, scales: NDArray[np.int64], unit: float, kind: str = "estep"
    ) -> Doubles:
        """Add up one vector a worker (n, P), and noise: (P,), the same in every process.

        Values are multiples of the unit, a power of two, of which doubles hold the sum and the
        noise exactly; ``scales`` (P,) are standard deviations of the noise, in units.
        """
        holders = self.inner.holders
        # Masked numbers are whole in the units they come in: whatever fits a double fits there.
        inner = self.inner.in_units(int(np.frexp(unit)[1]) - 1 + FRACTION_BITS)
        inner.begin(kind, 1, values.shape[1], values.itemsize)
        if self._places:
            values = values.copy()
            for place, source in zip(self._places, self._sources, strict=True):
                values[place] += source.of_scales(scales, self._enough) * unit
        elif self.by == "server" and holders.engine.rank == 0:
            # The server holds no rows: what it adds is a vector of its own.
            noise = self._sources[0].of_scales(scales) * unit
            values = np.concatenate([values, noise[None]])
        total: Doubles = inner.reduce(values[:, None], slice(0, 1))[0, 0]
        return total
