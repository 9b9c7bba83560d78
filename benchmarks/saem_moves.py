"""The kernels of accepted and refused moves against their twins and the protocol's NumPy path."""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np

from vpem._core import proposals, reference_proposals
from vpem.saem.chains import Chains
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.samplers import Mala, Metropolis
from vpem.saem.streams import Streams

from .measure import Options, call, compare, processor
from .saem_shared import Finding
from .saem_speed import CHAINS, FEW, PEOPLE, REPEATS, bars, gains, problems, table

__all__ = ["moves"]

KERNELS = {"linear": "propose_linear", "one-compartment": "propose_one_compartment"}
SAMPLERS = {"Metropolis": Metropolis, "MALA": Mala}
MOST = 2
"""Threads."""


def moved(
    sampler: Any, model: SaemModel, theta: Vector, first: Chains, streams: Streams, kernel: str,
    home: Any,
) -> Vector:  # fmt: skip
    """Where an iteration takes the chains: by a kernel or its twin in home, or, None, by neither.

    A model without a kernel is moved by ``log_complete`` and ``gradient`` over all individuals and
    chains at once.
    """
    chains = deepcopy(first)
    if home is None:
        with patch.object(type(model), "propose", SaemModel.propose):
            sampler.move(model, theta, chains, streams, 1, 1)
    else:
        with patch.object(sys.modules[type(model).__module__], kernel, getattr(home, kernel)):
            sampler.move(model, theta, chains, streams, 1, 1)
    return chains.z


def moves(size: str) -> Finding:
    """Five sweeps or five steps of four chains, in turns, one thread and two."""
    options = Options(size="tiny" if size == "small" else size, repeats=REPEATS[size])
    results: list[dict[str, Any]] = []
    for n in PEOPLE[size]:
        for name, model, theta in problems(n):
            streams = Streams.of(model.individuals.names, 0)
            for word, kind in SAMPLERS.items():
                first = kind().begin(model, theta, model.start()[1], CHAINS)

                def move(
                    home: Any, threads: int = 1, kind: Any = kind, model: Any = model,
                    theta: Any = theta, first: Any = first, streams: Any = streams,
                    kernel: str = KERNELS[name],
                ) -> Vector:  # fmt: skip
                    sampler = kind(n_threads=threads)
                    return moved(sampler, model, theta, first, streams, kernel, home)

                ours = move(proposals)
                np.testing.assert_array_equal(move(proposals, MOST), ours)
                np.testing.assert_allclose(move(None), ours, rtol=1e-8, atol=1e-10)
                timed = {
                    "kernel": processor(lambda move=move: move(proposals)),
                    "NumPy path": processor(lambda move=move: move(None)),
                    "kernel, wall": call(lambda move=move: move(proposals)),
                    f"{MOST} threads, wall": call(lambda move=move: move(proposals, MOST)),
                }
                if n <= FEW:
                    twin = move(reference_proposals)
                    np.testing.assert_allclose(twin, ours, rtol=1e-8, atol=1e-10)
                    timed["twin"] = processor(lambda move=move: move(reference_proposals))
                title = f"{word}, {name}, n = {n:,}"
                results.append(compare(options, "moves", title, "NumPy path", timed))
    single, both, twin = gains(results, MOST)
    says = (
        f"In processor time, on one thread, the kernels are {min(single):.1f} to "
        f"{max(single):.1f} times as fast as the protocol's NumPy path, which has the same random "
        f"numbers, and {min(twin):.1f} to {max(twin):.0f} times as fast as their twins; by the "
        f"clock {MOST} threads make them {min(both):.2f} to {max(both):.2f} times as fast again "
        f"at n = {PEOPLE[size][-1]:,}, results the same to the last bit."
    )
    words = "times as fast as the protocol's NumPy path (the line at 1)"
    return Finding(
        table(results, "NumPy path"), says, bars(results, words),
        (8.5, 1.6 + 0.6 * len(results)), [],
    )  # fmt: skip
