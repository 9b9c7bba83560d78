"""Random numbers by counting: each individual has streams of its own, whoever else is there.

The numbers are those of the codecs' kernels: SplitMix64 of a key and an index. What an individual
draws depends on the seed, its name, the iteration and the use, not on devices, order or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Keys = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _stir(words: Keys) -> Keys:
    """Finaliser of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _between(words: Keys) -> NDArray[np.float64]:
    """Uniform numbers inside (0, 1) of random bits."""
    found: NDArray[np.float64] = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return found


@dataclass(frozen=True)
class Stream:
    """Numbers for one use in one iteration, with a key (n,) for each individual."""

    keys: Keys

    def words(self, n_chains: int, width: int) -> Keys:
        """Random 64 bits, (chains, n, width)."""
        index = np.arange(1, n_chains * width + 1, dtype=np.uint64).reshape(n_chains, 1, width)
        return _stir(_stir(self.keys)[None, :, None] + index * GOLDEN)

    def uniforms(self, n_chains: int, width: int) -> NDArray[np.float64]:
        """Uniform numbers inside (0, 1), (chains, n, width)."""
        return _between(self.words(n_chains, width))

    def coins(self, counts: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Fair coins, so many of each individual (n,), one individual after the other."""
        ends = np.cumsum(counts)
        place = np.arange(1, 1 + int(counts.sum())) - np.repeat(ends - counts, counts)
        words = _stir(np.repeat(_stir(self.keys), counts) + place.astype(np.uint64) * GOLDEN)
        found: NDArray[np.bool_] = words >> np.uint64(63) > 0
        return found

    def normals(self, n_chains: int, width: int) -> NDArray[np.float64]:
        """Standard normal numbers, (chains, n, width)."""
        found: NDArray[np.float64] = ndtri(self.uniforms(n_chains, width))
        return found

    def of_rows(self, n_chains: int, first: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return uniform numbers (chains, N) inside (0, 1), one a row of the individuals.

        What a row has depends on its place among those of its individual only: ``first`` (n + 1,).
        """
        counts = np.diff(first)
        places = np.arange(first[-1]) - np.repeat(first[:-1], counts)
        index = (np.arange(n_chains, dtype=np.uint64) << np.uint64(32))[:, None]
        index = index + places.astype(np.uint64) + np.uint64(1)
        return _between(_stir(np.repeat(_stir(self.keys), counts) + index * GOLDEN))


@dataclass(frozen=True)
class Streams:
    """The streams of some individuals, by keys (n,) of uint64."""

    keys: Keys

    @staticmethod
    def of(names: Sequence[str], seed: int) -> Streams:
        """Make the streams of individuals of these names; the seed is below 2^64."""
        salt = int(seed).to_bytes(8, "little")
        found = [
            int.from_bytes(blake2b(name.encode(), digest_size=8, key=salt).digest(), "little")
            for name in names
        ]
        return Streams(np.array(found, dtype=np.uint64))

    def take(self, which: NDArray[np.intp]) -> Streams:
        """Return those of some individuals."""
        return Streams(self.keys[which])

    def at(self, iteration: int, use: int) -> Stream:
        """Return numbers for the use (0 to 2^20 - 1) of them in an iteration (below 2^43)."""
        place = np.uint64((iteration << 20) + use)
        return Stream(_stir(self.keys ^ _stir(np.array([place + np.uint64(1)]) * GOLDEN)))

    def keys_at(self, iteration: int, uses: int) -> Keys:
        """Return the keys of the first so many uses in an iteration, (uses, n)."""
        places = np.uint64(iteration << 20) + np.arange(1, uses + 1, dtype=np.uint64)
        return _stir(self.keys ^ _stir(places * GOLDEN)[:, None])
