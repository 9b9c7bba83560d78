"""Masked sums: fixed point against its twin, a message against ChaCha20 alone, and whole fits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.twins import codecs as twins
from vpem import NotConvergedWarning, connect, fit_vpem, make_graph
from vpem._core import masks as kernels
from vpem.engines.engine import Engine
from vpem.engines.placement import Placement, agree
from vpem.network.masks import TILE, OwnKeys
from vpem.network.partition import contiguous

from .measure import Options, call, compare, iteration

SIZES = {  # rows, components, parties
    "tiny": (1_000, 3, 4),
    "small": (150_000, 3, 10),
    "medium": (150_000, 3, 30),
    "full": (1_500_000, 3, 30),
}
FITS = {  # rows, features, components
    "tiny": [(500, 10, 2)],
    "small": [(569, 30, 2)],
    "medium": [(569, 30, 2), (60_000, 30, 6)],
    "full": [(569, 30, 2), (60_000, 30, 6), (150_000, 100, 3)],
}
N_AGENTS = 10
KEY = bytes(range(32))


class OneOf(Engine):
    """The process of one party, to which others have sent their keys."""

    def __init__(self, n_parties: int) -> None:
        super().__init__()
        self.names = [f"party {party}" for party in range(n_parties)]

    def allgather(self, value: Any) -> list[Any]:
        """Return public keys, the own one first."""
        others = range(1, len(self.names))
        return [value, *(list(OwnKeys([party]).public.values()) for party in others)]


def keystreams(n_bytes: int, n_streams: int) -> None:
    """Make keystreams, tile by tile, and do nothing with them."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    zeros, pad = memoryview(bytes(8 * TILE)), memoryview(bytearray(8 * TILE))
    for stream in range(n_streams):
        nonce = stream.to_bytes(16, "big")
        cipher = Cipher(algorithms.ChaCha20(KEY, nonce), mode=None).encryptor()
        for begin in range(0, n_bytes, 8 * TILE):
            some = slice(min(8 * TILE, n_bytes - begin))
            cipher.update_into(zeros[some], pad[some])


def fits(options: Options) -> Iterator[dict[str, Any]]:
    """Yield an iteration of ten agents at a server in one process, with masks and without."""
    for m, d, k in FITS[options.size]:
        labels = np.random.default_rng(0).integers(k, size=m)
        X = np.random.default_rng(1).standard_normal((m, d)) + 0.3 * labels[:, None]

        def run(secure: bool, apart: bool, count: int, X: Any = X, d: int = d, k: int = k) -> None:
            network = connect(
                make_graph("star", N_AGENTS), contiguous(d, N_AGENTS), secure_sum=secure
            )
            if apart:  # two kernels with the sum between them, as over an engine
                network.total.mix = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConvergedWarning)
                fit_vpem(
                    X, network, n_components=k, init=list(range(k)), tol=0.0, max_iter=count,
                    n_threads=options.threads,
                )  # fmt: skip

        many = 6 + 40_000 // m
        timed = {
            "vpem": iteration(partial(run, False, False), 2, many),
            "vpem, chunk by chunk": iteration(partial(run, False, True), 2, many),
            "vpem, masked": iteration(partial(run, True, True), 2, many),
        }
        case = f"{m:,} x {d}, K={k}, {N_AGENTS} agents at a server, one process"
        yield compare(options, "iteration", case, "vpem", timed, threads=options.threads)


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield fixed point there and back, the message of one party, and iterations of fits."""
    m, k, n_parties = SIZES[options.size]
    values = 100 * np.random.default_rng(0).standard_normal(m * k)
    scale, limit = np.array([2.0**32]), 2.0**59
    ring, back = np.zeros(m * k, dtype=np.uint64), np.empty(m * k)
    homes = {"kernel": kernels, "twin": twins}
    for name, work in (
        ("add_scaled", lambda home: home.add_scaled(values, scale, limit, ring, options.threads)),
        ("values_of", lambda home: home.values_of(ring, scale, 2.0**63, back, options.threads)),
    ):
        timed = {who: call(lambda work=work, home=home: work(home)) for who, home in homes.items()}
        yield compare(options, name, f"{m:,} x {k} values", "twin", timed, threads=options.threads)

    masks = agree(Placement(OneOf(n_parties), np.arange(n_parties)), n_threads=options.threads)
    sent, n_bytes = masks.hide(values[None]), 8 * m * k
    assert np.mean(sent < 2**63) < 0.6  # hidden
    timed = {
        "vpem": call(lambda: masks.hide(values[None])),
        "ChaCha20 alone": call(lambda: keystreams(n_bytes, n_parties - 1)),
        "a copy": call(lambda: values.copy()),
    }
    case = f"{m:,} x {k} values of one of {n_parties} parties"
    found = compare(options, "message", case, "ChaCha20 alone", timed, threads=options.threads)
    found["facts"]["GB/s of keystreams"] = {
        who: round(1e-9 * n_bytes * (n_parties - 1) / seconds, 2)
        for who, seconds in found["median"].items()
        if who != "a copy"
    }
    yield found
    yield from fits(options)
