"""What cells of k-means share: data, Lloyd's algorithm in plain NumPy, comparisons."""

import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np

import vpem_cli
from vpem.engines.engine import StalledError

from .cli_support import overlapping
from .missing_support import with_holes

X, _ = overlapping(160, 6, 4, gap=3.0, seed=9)
HOLES = with_holes(X, 1)
WEIGHTS = np.random.default_rng(2).integers(0, 3, len(X)).astype(float)
START = [3, 40, 77, 111]


def lloyd(data, start, weights=None):
    """By what there is of each row: history of the inertia, labels, centres."""
    weights = np.ones(len(data)) if weights is None else weights
    centres, labels, history = data[start], None, []
    means = weights @ np.nan_to_num(data) / (weights @ ~np.isnan(data))
    centres = np.where(np.isnan(centres), means, centres)
    while True:
        off = np.nansum((data[:, None] - centres) ** 2, axis=2)
        if labels is not None and (off.argmin(axis=1) == labels).all():
            return [*history, weights @ off.min(axis=1)], labels, centres
        labels = off.argmin(axis=1)
        history.append(weights @ off.min(axis=1))
        for k in range(len(centres)):
            own, share = data[labels == k], weights[labels == k, None]
            there = (share * ~np.isnan(own)).sum(axis=0)
            moved = np.nansum(share * own, axis=0) / np.maximum(there, 1e-9)
            centres[k] = np.where(there > 0, moved, centres[k])


def is_lloyd(found, data, start, weights=None, tolerance=1e-9):
    """Whether it went and ended as Lloyd's algorithm over pooled rows."""
    history, labels, centres = lloyd(data, start, weights)
    np.testing.assert_allclose(found.history, history, tolerance)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_allclose(found.centres, centres, tolerance, 10 * tolerance)


def same(found, wanted, tolerance=1e-10, more=0):
    """Iteration by iteration, but for so many more without a change, and at the end."""
    history = found.history[: found.n_iter - more]
    np.testing.assert_allclose(history, wanted.history, tolerance)
    for name in ("centres", "distances", "root_inertia", "counts"):
        ours, theirs = getattr(found, name), np.array(getattr(wanted, name))
        np.testing.assert_allclose(ours + 0 * theirs, theirs, tolerance, 10 * tolerance)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    for name in ("converged", "init_rows", "reseeded", "disagreement"):
        assert getattr(found, name) == getattr(wanted, name)


def same_optimum(found, wanted, tolerance):
    """Where the plain algorithm ends: its clusters, its centres within the tolerance."""
    assert found.converged
    assert wanted.converged
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_allclose(found.centres, wanted.centres, tolerance, 10 * tolerance)
    np.testing.assert_allclose(found.inertia, wanted.inertia, tolerance)


def is_at_rest(found, data=X, weights=None):
    """Whether one more of Lloyd's iterations, over pooled rows, would change nothing."""
    assert found.converged
    weights = np.ones(len(data)) if weights is None else weights
    hard = (found.labels == np.arange(len(found.centres))[:, None]) * weights
    centres = hard @ np.nan_to_num(data) / (hard @ ~np.isnan(data))
    np.testing.assert_allclose(found.centres, centres, 1e-5, 1e-5)
    off = np.nansum((data[:, None] - centres) ** 2, axis=2)
    np.testing.assert_array_equal(off.argmin(axis=1), found.labels)


def first_of(found):
    """What the first rank found, if none failed."""
    failed = [one for one in found if isinstance(one, BaseException)]
    for one in sorted(failed, key=lambda one: isinstance(one, StalledError)):
        raise one
    return found[0]


def in_shell(*words):
    """Cluster by the command line; returns its report."""
    words = ("kmeans", *map(str, words), "-k", "4", "--init-rows", "3,40,77,111", "--json", "-q")
    printed = StringIO()
    with redirect_stdout(printed):
        assert vpem_cli.run(list(words)) == 0
    return json.loads(printed.getvalue())
