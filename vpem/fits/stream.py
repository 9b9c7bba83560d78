"""A mixture that follows a stream of batches: what `vpem.VPEM.partial_fit` does to a fit."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats
from vpem.errors import VpemWarning
from vpem.fits.outcomes import copies_of
from vpem.fits.results import Fit
from vpem.network.ledger import Ledger
from vpem.steps.stochastic import step
from vpem.steps.streams import RowStream
from vpem.terms.degenerate import degenerate
from vpem.terms.missing import terms_of
from vpem.terms.scaling import floors_of


def fit_next(
    fit: Fit,
    data: Floats,
    weights: NDArray[np.float64] | None,
    *,
    batch: int,
    exponent: float,
    weight_seen: float,
    draws: np.random.Generator,
    reg_covar: float | str,
    scale: str,
    n_threads: int | None,
) -> Fit:
    """Move a fit towards the next batch of a stream, by one step of stochastic EM.

    Batches are counted from 2, as the first began the fit. The statistics move by
    ``batch^-exponent`` towards those of the batch, in the units of the first; ``weight_seen`` is
    the weight of all rows of the batches before. Rows of ``data`` (m, d) without any value, or of
    no weight, are left out already; ``draws`` are of rows for components that collapse, of which it
    warns.

    History, messages and sizes of the result are those of this batch, its recoveries those of all.
    Nothing is promised of the batch's rows, even where it was of those before.
    """
    network, mixture = fit.network, fit.mixture
    ledger = Ledger(network.graph)
    with one_blas_thread(), np.errstate(over="ignore"):
        terms = terms_of(
            data,
            network.blocks,
            mixture.covariance_type,
            missing=bool(np.isnan(data).any()),
            scaling=mixture.scaling,
            row_weights=weights,
            reg_covar=floors_of(reg_covar, scale, mixture.scaling),
            n_threads=thread_count(n_threads),
            dtype=data.dtype,
        )
        network.charge_setup(ledger, len(data), terms.itemsize)
        total = network.total.on(ledger)
        total.turn_to(batch - 1, None)
        seen = weight_seen + terms.total_weight
        moved, found, recoveries = step(
            terms,
            total,
            mixture,
            terms.prepare(mixture),
            rate=float(batch) ** -exponent,
            seen=seen,
            draw_row=RowStream(draws, weights, len(data)).draw,
        )
    if recoveries:
        warnings.warn(
            f"{len(recoveries)} times a collapsed component was placed anew at batch {batch}; try "
            "larger batches, fewer components or a larger reg_covar",
            VpemWarning,
            stacklevel=3,
        )
    found = np.broadcast_to(found, (len(network.hubs),)).copy()
    return replace(
        fit,
        mixture=moved,
        history=found[None],
        root_log_likelihood=found,
        total_weight=terms.total_weight,
        n_samples=len(data),
        converged=False,
        degenerate=np.flatnonzero(total.holders.any(degenerate(terms, moved, seen))).tolist(),
        copies=copies_of([moved], total),
        recoveries=[*fit.recoveries, *(replace(one, iteration=batch) for one in recoveries)],
        total_iterations=fit.total_iterations + 1,
        guarantee=None,
        communication=ledger.summary(),
    )
