"""The kernel of accepted and refused moves against the same in NumPy."""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np

from vpem.saem.models.model import Doubles, SaemModel
from vpem.saem.samplers import Chains, Hmc, Mala, Metropolis

from .measure import Options, call, compare, processor
from .saem_shared import Finding
from .saem_speed import CHAINS, PEOPLE, REPEATS, bars, gains, problems, table

SAMPLERS = {"Metropolis": Metropolis, "MALA": Mala, "HMC": Hmc}
MOST = 2
"""Threads."""


def moved(
    sampler: Any, model: SaemModel, theta: Doubles, first: Chains, by_kernel: bool
) -> Doubles:
    """Where an iteration takes the chains: by the kernel, or by a model's own density and gradient.

    The second is how a model without a kernel is moved, all individuals and chains at once.
    """
    chains = deepcopy(first)
    if by_kernel:
        sampler.move(model, theta, chains, 1, 1)
    else:
        with patch.object(type(model), "kernels", SaemModel.kernels):
            sampler.move(model, theta, chains, 1, 1)
    return chains.z


def moves(size: str) -> Finding:
    """Moves of an iteration of four chains, in turns, one thread and two."""
    options = Options(size="tiny" if size == "small" else size, repeats=REPEATS[size])
    results: list[dict[str, Any]] = []
    for n in PEOPLE[size]:
        for name, model, theta in problems(n):
            for word, kind in SAMPLERS.items():
                first = kind().begin(model, theta, model.start()[1], CHAINS)

                def move(
                    by_kernel: bool = True, threads: int = 1, kind: Any = kind,
                    model: Any = model, theta: Any = theta, first: Any = first,
                ) -> Doubles:  # fmt: skip
                    sampler = kind(n_threads=threads)
                    return moved(sampler, model, theta, first, by_kernel)

                ours = move()
                np.testing.assert_array_equal(move(threads=MOST), ours)
                np.testing.assert_allclose(move(False), ours, rtol=1e-8, atol=1e-10)
                timed = {
                    "kernel": processor(lambda move=move: move()),
                    "NumPy path": processor(lambda move=move: move(False)),
                    "kernel, wall": call(lambda move=move: move()),
                    f"{MOST} threads, wall": call(lambda move=move: move(threads=MOST)),
                }
                title = f"{word}, {name}, n = {n:,}"
                results.append(compare(options, "moves", title, "NumPy path", timed))
    single, both = gains(results, MOST)
    says = (
        f"In processor time, on one thread, the kernels are {min(single):.1f} to "
        f"{max(single):.1f} times as fast as the protocol's NumPy path, which has the same random "
        f"numbers; by the clock {MOST} threads make them {min(both):.2f} to {max(both):.2f} times "
        f"as fast again at n = {PEOPLE[size][-1]:,}, results the same to the last bit."
    )
    words = "times as fast as the protocol's NumPy path (the line at 1)"
    return Finding(
        table(results, "NumPy path"), says, bars(results, words),
        (8.5, 1.6 + 0.6 * len(results)), [],
    )  # fmt: skip
