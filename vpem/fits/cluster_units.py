"""Units of k-means over rows, and what workers tell each other of their rows to find them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vpem._core.threads import one_blas_thread
from vpem.errors import PartitionedError
from vpem.fits.agreed_rows import agree_on_rows, parts_of, units_by_reach
from vpem.fits.cluster_data import Wanted
from vpem.fits.local_rows import LocalRows, charge_weights
from vpem.fits.rows import charge_moments, charge_scaling, n_columns
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.settings import KmeansSettings
from vpem.sums.connect import Network, uncompressed
from vpem.sums.sum import Sum
from vpem.sums.units import check_digits
from vpem.terms.nearest import spread_rows, usual_squares
from vpem.terms.reach import Reach


def agreed_units(
    asked: Wanted,
    workers: Workers,
    here: LocalRows,
    network: Network,
    ledger: Ledger,
    how: KmeansSettings,
) -> tuple[Wanted, Reach | None]:
    """Return the data in units that workers agree on, and where rows lie if sums are masked."""
    if not here.masked:
        known = _charge_rows(asked, workers, uncompressed(network).on(ledger), how)
        return asked if known else replace(asked, deviations=None), None
    weights = asked.row_weights
    with one_blas_thread():
        reach = agree_on_rows(
            parts_of(asked.X, here, weights), network.total.on(ledger), here.n_samples,
            n_columns(asked.X), misses=asked.misses, weighted=weights is not None,
        )  # fmt: skip
    deviations = np.where(reach.constant, 0.0, np.sqrt(reach.points.variances))
    scaling = asked.scaling if how.scale == "none" else units_by_reach(reach)
    asked = replace(asked, scaling=scaling, deviations=deviations)
    reach = reach.scaled(asked.scaling)
    _check_inertia(asked, here, reach)
    return asked, reach


def _check_inertia(asked: Wanted, here: LocalRows, reach: Reach) -> None:
    """Check that the inertia has digits beside the distance of the farthest row."""
    sizes = np.zeros(len(here.own_runs))
    for worker, run in enumerate(here.own_runs):
        some = run.start + spread_rows(run.stop - run.start)
        rows = asked.X[some] if isinstance(asked.X, np.ndarray) else asked.X.take(some)
        squares = usual_squares(rows)
        sizes[worker] = (squares / asked.scaling.scale**2).sum()
    exponent = int(reach.exponents((reach.radius**2).sum())[0])
    check_digits(here.holders, sizes, exponent, reach.mass)


def _charge_rows(asked: Wanted, workers: Workers, total: Sum, how: KmeansSettings) -> bool:
    """Count what workers tell each other of their rows before they start.

    Returns whether standard deviations are known: clusters can do without them where links fail so
    often that no sum of all can be had.
    """
    d = asked.X.shape[1]
    if how.scale == "standard":
        charge_scaling(total, d)
    if asked.row_weights is not None:
        charge_weights(total, workers.counts)
    if asked.misses:
        # Every feature's weight and mean, by which missing values of starts are filled.
        total.begin("setup", 0, 0, 8, 2 * d)
    if how.scale == "none":
        try:
            charge_moments(total, d)
        except PartitionedError:
            return False
    return True
