"""EM in small batches: incremental, with every batch's statistics swapped, or stochastic.

An iteration works on the rows of one batch, so that neither its cost nor what it sends depends on
how many rows there are. As `em.fit`, it knows terms and sum only by their protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from vpem.errors import check_choice
from vpem.network.schema import FLAG, Array, Schema, State
from vpem.steps.incremental import Incremental
from vpem.steps.runs import Progress, Run, check_finite
from vpem.steps.saver import STREAM, NoSaver, Saver, set_stream, stream_state
from vpem.steps.stochastic import Stochastic
from vpem.steps.visits import Visits
from vpem.sums.sum import Sum
from vpem.terms.mixture import Mixture
from vpem.terms.terms import BatchTerms

KEEPS = ("auto", "statistics", "responsibilities")
"""What incremental EM remembers of a batch."""

STEP_SIZE = 0.6
"""Exponent of the steps where none is given, as Cappe and Moulines advise."""


def fit_batches(
    terms: BatchTerms,
    total: Sum,
    start: Mixture,
    *,
    batch_size: int,
    step_size: float | None = None,
    tol: float,
    max_iter: int,
    draw_row: Callable[[], int],
    rng: np.random.Generator,
    keep: str = "auto",
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
) -> Run:
    """Fit a mixture by EM in batches.

    Every iteration runs the E-step on one batch (a fixed run of neighbouring rows) and an M-step.
    A pass takes all batches, in an order that the agents draw alike from a shared seed and keep, so
    that what is replaced is always what is oldest. In the first pass the M-steps of incremental EM
    are stochastic ones: what was found under the first, poor parameters is soon forgotten.

    Parameters
    ----------
    terms : BatchTerms
        What each hub adds to the sum.
    total : Sum
        How the sum is taken. In the first pass all agents take part in it.
    start : Mixture
        Parameters to start from.
    batch_size : int
        Rows of a batch. With as many as there are it is `em.fit`, iteration by iteration.
    step_size : float, optional
        None: incremental EM (Neal and Hinton 1993): the batch's new statistics replace its old
        ones, and with exact sums the free energy never falls. A number in (0.5, 1]: stochastic EM
        (Cappe and Moulines 2009), which keeps nothing: statistics a unit weight move by
        ``S += rho (S_batch - S)``, ``rho_t = t^-step_size`` at the t-th batch.
    tol : float
        In nats per sample. Each root watches its log-likelihood over a pass, the sum of the
        batches' as it found them when it was last there; the network stops when it changed by less
        at all roots, each of which heard most of the batches.
    max_iter : int
        Most passes over the data, the first included.
    draw_row : callable
        Next row of the stream shared by all agents, for re-initialising collapsed components. After
        that the next pass of incremental EM is one E-step over all rows; stochastic EM goes on from
        the statistics that its parameters stand for.
    rng : Generator
        Draws the order of the batches.
    keep : {"auto", "statistics", "responsibilities"}
        What a root of incremental EM remembers of a batch, to take out when it comes again: its
        statistics, or its responsibilities, from which the statistics are formed anew, at the cost
        of a second look at the rows; the same numbers up to rounding. "auto" takes what is
        smaller: ``K sum d_b^2`` numbers a batch, or ``R K`` numbers a row. Statistics allow the
        fused sweep, which never writes responsibilities down; and where missing values were
        expected by what others of the block were, they are kept in any case.
    callback : callable, optional
        Is called after every pass.
    saver : Saver, optional
        Is offered the state after every pass; ``start`` is what it has saved, if anything.

    Returns
    -------
    Run

    Raises
    ------
    InputError
        If an option is out of range.
    NumericalError
        If a log-likelihood is not finite, or no component is left.

    Notes
    -----
    Statistics stand about the means of their own E-step and are moved to a common shift (the means
    at the start of the pass) only where they are added, so that they lose no digits. As every batch
    is visited once a pass, the sum of what was new in the pass replaces the running total at its
    end: rounding does not add up over passes.

    In the first pass a hub takes no M-step from fewer rows than `BatchTerms.enough` asks for: as
    many as would vary as much, were all batches worth the same. A hub that never had enough takes
    one at the end of the pass, from all rows.
    """
    size = min(batch_size, terms.n_samples)
    check_choice("keep", keep, KEEPS)
    edges = [*range(0, terms.n_samples, size), terms.n_samples]
    batches = [slice(begin, end) for begin, end in pairwise(edges)]
    visits = Visits(terms, total, batches, Run([start]), draw_row)
    fitting: Incremental | Stochastic
    if step_size is None:
        fitting = Incremental(visits, start, keep, STEP_SIZE)
    else:
        fitting = Stochastic(visits, step_size)
    saver = saver or NoSaver()
    passes = _Passes(visits, fitting, rng)
    passes.begin(start, saver, max_iter)
    run = visits.run
    while len(run.history) < max_iter and not run.converged:
        if not passes.advance():
            saver.offer(passes.state)
            continue
        found = total.roots.join(visits.log_likelihoods.sum(axis=0) + terms.log_constant)
        check_finite(found, len(run.history) + 1)
        small = run.note(terms, total, found, tol, callback)
        heard = bool((2 * total.roots.join(visits.heard) > len(batches)).all())
        run.converged = small and heard and not visits.reinitialised
        saver.offer(passes.state, last=run.converged or len(run.history) == max_iter)
    run.end([terms], total, visits.check())
    return run


class _Passes:
    """One pass over all batches after the other."""

    def __init__(
        self, visits: Visits, fitting: Incremental | Stochastic, rng: np.random.Generator
    ) -> None:
        self.visits = visits
        self.fitting = fitting
        self.rng = rng
        self.n_batches = len(visits.batches)
        self.order = np.empty(0, dtype=np.intp)
        self.anew = True
        """Whether the next pass is an E-step over all rows."""
        self._opening = None if self.n_batches == 1 else fitting.step_size

    def begin(self, start: Mixture, saver: Saver, max_iter: int) -> None:
        """Begin at a mixture, or go on from what was saved."""
        visits, saved = self.visits, saver.saved
        if saved is None:
            visits.start(start)
            self.order = self.rng.permutation(self.n_batches)
            return
        visits.factors = visits.terms.prepare(start)
        own: dict[str, Schema] = {
            "visits": visits.schema(),
            "anew": FLAG,
            "fitting": self.fitting.schema(saved.get("anew") is True),
            "order": Array("i", (self.n_batches,), 0, self.n_batches - 1),
            "stream": STREAM,
        }
        visits.run.restore(
            saver, visits.total, visits.reinitialiser, max_iter, own=own, by_passes=True
        )
        visits.restore(saved["visits"])
        self.fitting.restore(saved["fitting"])
        self.order, self.anew, self._opening = saved["order"], saved["anew"], None
        set_stream(self.rng, saved["stream"])

    def state(self) -> State:
        """Return what is kept from one pass to the next."""
        visits = self.visits
        return {
            **visits.run.state(visits.total, visits.reinitialiser, len(visits.run.history)),
            "visits": visits.state(),
            "fitting": self.fitting.state(),
            "order": self.order,
            "anew": self.anew,
            "stream": stream_state(self.rng),
        }

    def advance(self) -> bool:
        """Visit all batches; whether the pass got to its end."""
        visits, fitting = self.visits, self.fitting
        visits.begin_pass()
        if visits.run.history and not fitting.restarts:
            self.order = self.rng.permutation(self.n_batches)
        if self.anew:
            complete = fitting.first(self.order, self._opening)
        else:
            complete = fitting.later(self.order)
        self._opening = None
        self.anew = visits.reinitialised and (fitting.restarts or not complete)
        return complete
