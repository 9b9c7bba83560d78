"""NumPy twin of the kernel of compartments: the same by exponentials of matrices.

Amounts x of a depot, of the first and of the second compartment change by ``dx/dt = M x + u``, u
what is infused; what a dose leaves is ``exp(M t)``'s. Derivatives are by a complex step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["curves"]

Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]
ORAL, TWO, LAG, BY_CL_AND_KE, BY_V_AND_KE = 1, 2, 4, 8, 16
STEP = 1e-30


def curves(
    code: int,
    phi: Floats,
    first: NDArray[np.intp],
    times: Floats,
    first_dose: NDArray[np.intp],
    dose_times: Floats,
    amounts: Floats,
    durations: Floats,
    found: Floats,
    slopes: Floats,
    n_threads: int,
) -> None:
    """Concentrations (chains, N) in one or two compartments, and derivatives (chains, N, m).

    Parameters are logarithms: ka with `ORAL`; cl and v, or cl and ke with `BY_CL_AND_KE`, or v and
    ke with `BY_V_AND_KE`, or cl, v1, q and v2 with `TWO`; the lag of absorption with `LAG`. Doses
    ``first_dose[i]`` to ``first_dose[i + 1]`` are those of individual i: of an amount at a time, at
    once or over a duration; they go into the depot with `ORAL`, else into the first compartment. A
    dose at the time of a row does not count yet. ``n_threads`` has no effect.
    """
    for c, i in np.ndindex(phi.shape[:2]):
        given = slice(first_dose[i], first_dose[i + 1])
        doses = (dose_times[given], amounts[given], durations[given])
        for row in range(first[i], first[i + 1]):
            found[c, row] = _at(code, phi[c, i].astype(complex), times[row], *doses).real
            for j in range(phi.shape[2] if len(slopes) else 0):
                moved = phi[c, i] + 1j * STEP * (np.arange(phi.shape[2]) == j)
                slopes[c, row, j] = _at(code, moved, times[row], *doses).imag / STEP


def _exponential(matrix: Complex) -> Complex:
    """Exponential of a small matrix, by squares of that of a part of it.

    SciPy's loses half of the digits where rates of a triangular matrix are close.
    """
    halvings = max(0, int(np.frexp(np.abs(matrix).max())[1]) + 3)
    part = matrix / 2.0**halvings
    found = term = np.eye(len(matrix), dtype=complex)
    for order in range(1, 18):
        term = term @ part / order
        found = found + term
    for _ in range(halvings):
        found = found @ found
    return found


def _at(
    code: int, phi: Complex, t: float, starts: Floats, amounts: Floats, durations: Floats
) -> complex:
    """Concentration of one individual at one time."""
    oral = code & ORAL
    rest = np.exp(phi[oral:])
    lag = rest[-1] if code & LAG else 0.0
    if code & TWO:
        v, k, k12, k21 = rest[1], rest[0] / rest[1], rest[2] / rest[1], rest[2] / rest[3]
    elif code & BY_V_AND_KE:
        v, k, k12, k21 = rest[0], rest[1], 0.0, 0.0
    elif code & BY_CL_AND_KE:
        v, k, k12, k21 = rest[0] / rest[1], rest[1], 0.0, 0.0
    else:
        v, k, k12, k21 = rest[1], rest[0] / rest[1], 0.0, 0.0
    ka = np.exp(phi[0]) if oral else 0.0
    # A last state that is 1 while a dose runs in.
    flows = np.zeros((4, 4), dtype=complex)
    flows[:3, :3] = [[-ka, 0, 0], [ka, -k - k12, k21], [0, k12, -k21]]
    into = 0 if oral else 1
    total = 0j
    for start, amount, duration in zip(starts, amounts, durations, strict=True):
        passed = t - start - lag
        if passed.real <= 0:
            continue
        state = np.zeros(4, dtype=complex)
        if duration > 0:
            running = flows.copy()
            running[into, 3] = amount / duration
            while_running = passed if passed.real < duration else duration
            state = _exponential(running * while_running)[:, 3]
            passed = passed - while_running
            state[3] = 0.0
        else:
            state[into] = amount
        total += (_exponential(flows * passed) @ state)[1]
    return complex(total / v)
