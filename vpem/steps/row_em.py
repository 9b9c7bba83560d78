"""EM over rows that workers hold: every worker's statistics, one sum, every root's M-step.

As `em.fit`, but what is summed are statistics and not terms of log-densities. Where all share the
sum there is one model; under consensus every worker has its own, and they differ by consensus
error only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import PartitionedError
from vpem.schema import ListOf, State
from vpem.steps import em
from vpem.steps.em import Progress
from vpem.steps.saver import NoSaver, Saver
from vpem.steps.states import restore_run, run_state
from vpem.sums.counted import add_vectors
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.mixture_states import mixture_schema, mixture_state
from vpem.terms.row_statistics import Message, RowTerms

__all__ = ["RowRun", "fit_rows", "sample_roots"]


@dataclass
class RowRun(em.Run):
    """One run of EM over rows.

    Attributes
    ----------
    mixtures : list of Mixture
        Parameters of every root after the last M-step, R; `mixture` is the first.
    """

    mixtures: list[Mixture] = field(default_factory=list)


def sample_roots(terms: RowTerms, total: Sum, about: NDArray[np.float64]) -> list[FeatureTerms]:
    """Return terms for every root, with the sample covariance as it finds it by one sum.

    Parameters
    ----------
    terms : RowTerms
        The workers' rows.
    total : Sum
        How the sum is taken.
    about : ndarray of shape (d,)
        A point among the data, known to all.
    """
    layout = Message(terms.whole, about[None])
    values = [terms.moments(worker, layout) for worker in range(len(terms.parts))]
    roots = []
    for message in add_vectors(total, layout.stacked(values), "setup"):
        own = copy(terms.whole)
        own._sample_covariance = own.update(layout.unpacked(message)[0]).covariances
        roots.append(own)
    return roots


def fit_rows(
    terms: RowTerms,
    total: Sum,
    roots: Sequence[FeatureTerms],
    starts: Sequence[Mixture],
    *,
    shifts: NDArray[np.float64],
    tol: float,
    max_iter: int,
    draw_row: Callable[[], int],
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
) -> RowRun:
    """Fit a mixture by EM over rows.

    Parameters
    ----------
    terms : RowTerms
        The workers' rows.
    total : Sum
        How statistics are summed.
    roots : sequence of FeatureTerms
        From `sample_roots`; R.
    starts : sequence of Mixture
        Parameters that each root starts from; R.
    shifts : ndarray of shape (K, d)
        Points known to all that statistics are sent about, where there are several roots; one root
        tells its means, and statistics are about them.
    tol : float
        Change of the log-likelihood per sample, in nats, below which a root proposes to stop; the
        network stops when all do.
    max_iter : int
        Most iterations.
    draw_row : callable
        Next row of the stream shared by all workers, for placing collapsed components.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Is offered the state after every iteration; ``starts`` are what it has saved, if anything.

    Returns
    -------
    RowRun

    Raises
    ------
    NumericalError
        If a log-likelihood is not finite, or no component is left.
    """
    whole = terms.whole
    run = RowRun(starts[0])
    repairs = em._Repairs(whole, total, draw_row, run.recoveries)
    enough = [np.full((1, starts[0].n_components), np.inf)] * len(starts)
    # Which component, at which row, and the row itself.
    size = em.MENDED_BYTES + whole.blocks.n_features * whole.itemsize
    saver = saver or NoSaver()
    mixtures, done = list(starts), 0
    if saver.saved is None:
        mixtures, factors, mended = repairs.mend_all(roots, starts, enough, 0)
        if mended:
            total.agree("flooding", size)
    else:
        given = (whole.blocks, whole.covariance_type, run.mixture.n_components)
        every = ListOf(mixture_schema(*given), len(starts))
        done = restore_run(saver, run, total, repairs, max_iter, mixtures=every)
        factors = [own.prepare(one) for own, one in zip(roots, starts, strict=True)]
    fixed = None if total.n_roots_of_all == 1 else Message(whole, shifts)

    def state() -> State:
        return {
            **run_state(run, total, repairs, iteration),
            "mixtures": [mixture_state(one) for one in mixtures],
        }

    for iteration in range(done + 1, max_iter + 1):
        if run.converged:
            break
        layout = Message(whole, mixtures[0].means) if fixed is None else fixed
        try:
            sums = _expect(terms, total, mixtures, factors, layout)
        except PartitionedError as error:
            em._note_partition(run, iteration, error)
            saver.offer(state, last=iteration == max_iter)
            continue
        unpacked = [layout.unpacked(message) for message in sums]
        found = total.report(np.array([value for _, value in unpacked])) + whole.log_constant
        em._check_finite(found, iteration)
        small = em._note_iteration(run, whole, total, found, tol, callback)
        updated = [own.update(one) for own, (one, _) in zip(roots, unpacked, strict=True)]
        counts = [one.counts for one, _ in unpacked]
        mixtures, factors, mended = repairs.mend_all(roots, updated, counts, iteration)
        if mended:
            total.agree("flooding", size)
        run.converged = small and not mended
        saver.offer(state, last=run.converged or iteration == max_iter)
    em._check_heard(run)
    layout = Message(whole, mixtures[0].means) if fixed is None else fixed
    sums = _expect(terms, total, mixtures, factors, layout, "check")
    run.log_likelihood = total.report(sums[:, -1].copy()) + whole.log_constant
    em._check_finite(run.log_likelihood, len(run.history))
    run.mixture, run.mixtures = mixtures[0], mixtures
    return run


def _expect(
    terms: RowTerms,
    total: Sum,
    mixtures: Sequence[Mixture],
    factors: Sequence[Any],
    layout: Message,
    kind: str = "estep",
) -> NDArray[np.float64]:
    """E-step of every worker with its own root's parameters, and the sum (R, P)."""
    shared = len(mixtures) == 1
    values = [
        terms.message(worker, mixtures[at], factors[at], layout)
        for worker in range(len(terms.parts))
        for at in (0 if shared else worker,)
    ]
    return add_vectors(total, layout.stacked(values), kind)
