"""NumPy twin of the kernel of axes that covariances have in common."""

import numpy as np

RECALLED = 5


def common_axes(covariances, shares, starts, equal, most, settled, axes, spreads):
    """Axes D that minimise ``sum_k n_k sum_j log (D^T S_k D)_jj``, and variances along them.

    With ``equal`` volumes it is the logarithm of ``sum_k n_k |diag(D^T S_k D)|^(1/d)``. It begins
    at the best of the starts. All pairs of axes turn at once, each by its own Newton step, to which
    limited-memory BFGS adds what the last steps tell of pairs together (Nocedal 1980), and Cayley's
    transform makes of a step H the turn ``(I - H/2)^-1 (I + H/2)``.
    """
    worth = [_along(covariances, shares, start, equal)[0][0] for start in starts]
    found = np.array(starts[int(np.argmin(worth))])
    (value, weights), turned, along = _along(covariances, shares, found, equal)
    unit, past, last = np.eye(len(found)), [], None
    for _ in range(most):
        weighted = weights[:, None] / along
        # Sums over components of what pairs (i, j) have: the part of i, and by transposing of j.
        slopes = np.einsum("ki,kij->ij", weighted, turned)
        bends = weighted.T @ along
        less = np.einsum("ki,kij->ij", weighted / along, np.square(turned))
        slopes, bends, less = slopes - slopes.T, bends + bends.T - 2, less + less.T
        curved = bends - 2 * less
        bends = np.maximum(np.where(curved > 0.2 * bends, curved, bends), 1e-10)
        if last is not None:
            past = [*past, (last[0], last[1] - slopes)][-RECALLED:]
        steps = _quasi_newton(slopes, bends, past)
        if not np.vdot(slopes, steps) > 0:
            past, steps = [], slopes / bends
        steps = np.clip(steps, -0.5, 0.5)
        promised = float(np.vdot(slopes, steps))
        if not promised > settled:
            break
        length = 1.0
        while length > 1e-6:
            half = 0.5 * length * steps
            ahead = found @ np.linalg.solve(unit - half, unit + half)
            there = _along(covariances, shares, ahead, equal)
            if there[0][0] <= value - 1e-4 * length * promised:
                break
            length /= 2
        else:
            break
        found, ((value, weights), turned, along) = ahead, there
        last = length * steps, slopes
    axes[...], spreads[...] = found, along


def _quasi_newton(slopes, bends, past):
    """Nocedal's two loops, from steps and what slopes fell by; ``bends`` are a first Hessian."""
    step, known = slopes, [(s, y, c) for s, y in past if (c := np.vdot(s, y)) > 0]
    parts = []
    for s, y, product in reversed(known):
        parts.append(np.vdot(s, step) / product)
        step = step - parts[-1] * y
    step = step / bends
    for s, y, product in known:
        step = step + s * (parts.pop() - np.vdot(y, step) / product)
    return step


def _along(covariances, shares, axes, equal):
    """What is minimised, per row, with weights (K,) of its slopes; D^T S_k D, their diagonals."""
    turned = axes.T @ covariances @ axes
    along = np.diagonal(turned, axis1=1, axis2=2)
    logs = np.log(along).sum(axis=1)
    if not equal:
        return (logs @ shares, shares), turned, along
    width = along.shape[1]
    weights = np.exp((logs - logs.max()) / width) * shares
    return (logs.max() + width * np.log(weights.sum()), weights / weights.sum()), turned, along
