"""When a run of SAEM ends: how far parameters still have to go, in their standard errors.

Small changes prove nothing, for steps fall: where rows say little, EM moves slowly, and parameters
far from the maximum hardly move either. So a change is carried on to where it leads. At step 1
parameters come nearer to the maximum by a share ``mu`` of the way in an iteration, in each
direction another: ``mu`` is the observed information's part of the complete one (Dempster, Laird
and Rubin 1977). After steps that add up to T the way left is ``exp(-mu T)`` of what it was, so that
of a change ``d`` there is ``d / (exp(mu T) - 1)`` to come. To that is added how far simulation
makes them scatter at the last step ``s``: where an iteration's noise has the variance ``v``, they
have ``s v / (2 mu)`` (Benveniste, Metivier and Priouret 1990).

Of a wide model there are no standard errors: its devices add up the log-likelihood of their
individuals from time to time, and a change is divided by how far steps went meanwhile, were they of
size 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vpem.checks import Doubles
from vpem.network.schema import COUNT, Array, Number, Schema, Stateful, or_nan
from vpem.saem.conditional import complete_and_hidden, least_share, sample_conditional
from vpem.saem.models.model import SaemModel
from vpem.saem.samplers import Sampler
from vpem.saem.server import SaemNeighbours, SaemServer

if TYPE_CHECKING:
    from vpem.saem.saem import SaemRun

LOOKS = 5
"""How often the perplexity is seen in a window."""

DRAWS = 200
"""Of each individual, at least, for the information at a look."""

LEAST = 20
"""Draws of each chain, at least, of those that may depend on each other: to see whether they do."""

ENOUGH = 10
"""Independent draws of each chain since the burn-in, at least, for parameters to be judged."""

BLOCKS = 10
"""Of the last iterations, by which noise is judged, if there are as many."""

SINGULAR = 1e-6
"""Smallest eigenvalue of the complete information, of the largest, in units of the parameters."""

BY_FORMULAS = "random effects are integrated out"
"""How grounds begin where formulas ended a run."""


class Watch(Stateful):
    """Looks from time to time whether parameters have settled.

    That is to within ``tol`` of a standard error (0: never look), every ``window`` iterations and
    first after two of them. If ``exact``, the run may end at the maximum, where the model has
    formulas for that, which are tried after the first iteration too.
    """

    def __init__(
        self,
        model: SaemModel,
        sampler: Sampler,
        server: SaemServer | SaemNeighbours,
        burn_in: int,
        tol: float,
        window: int,
        exact: bool = False,
    ) -> None:
        self.exact = exact and tol > 0
        self.model, self.sampler, self.server = model, sampler, server
        self.burn_in, self.tol, self.window = burn_in, tol, window
        self._since = 0  # when the information was last computed
        self._complete = self._hidden = np.empty((0, 0))
        self._least = 0.0
        self._times = np.empty(0)

    def has_settled(self, run: SaemRun) -> bool:
        """Whether a run may end; tells it how far parameters have to go."""
        due = run.n_iter % self.window == 0
        if self.exact and (run.n_iter == 1 or due):
            integrated = self.model.integrated(run.theta, count=self.server.add_formulas)
            if integrated is not None:
                # At bounds there may be several maxima: iterations tell which one is near.
                due = due or bool(np.isfinite(integrated.certain.errors).all())
            if integrated is not None and due and integrated.far < self.tol:
                run.integrated, run.change, run.converged = integrated, integrated.far, True
                run.grounds = (
                    f"{BY_FORMULAS}, and the likelihood is at its maximum, to "
                    f"{max(integrated.far, 1e-9):.0e} standard errors"
                )
                return True
        since = run.n_iter - self.burn_in
        if self.tol <= 0 or since < 2 * self.window or since % self.window:
            return False
        # Information that is old is good enough to go on by, but not to end by.
        if since >= 2 * self._since:
            self._inform(run, since)
        if self._judge(run, since) and self._since < since:
            self._inform(run, since)
            self._judge(run, since)
        return run.converged

    def schema(self) -> dict[str, Schema]:
        p = len(self.model.parameters)
        table = Array("f8", ((0, p), (0, p)), nan=True, inf=True)
        q = len(self.model.latents) + self.model.n_imputed
        times = Array("f8", ((0, q),), 0, inf=True)
        return {
            "since": COUNT, "complete": table, "hidden": table, "least": Number(0, 1),
            "times": times,
        }  # fmt: skip

    def _judge(self, run: SaemRun, since: int) -> bool:
        """Note how far parameters have to go by the last half of the iterations since burn-in."""
        half = since // 2
        far = still_to_go(
            np.array(run.trace[-1 - half :]),
            np.array(run.steps[-half:]),
            self._complete,
            self._hidden,
            self.model.constraints(run.theta),
            self._least,
        )
        worst = int(np.argmax(far))
        run.change = float(far[worst])
        none_lost = run.lost <= self.burn_in  # a variance that was lost stays near zero
        times = self._times[: len(self.model.latents)]
        slow = int(np.argmax(times))
        run.converged = run.change < self.tol and none_lost and since >= ENOUGH * (times[slow] - 1)
        complete, hidden = self._complete[worst, worst], self._hidden[worst, worst]
        unit = "its standard error"
        if complete > 0 and complete - hidden < self._least * complete:
            unit = "the error that draws would tell from none (it may be at a boundary)"
        run.grounds = (
            f"{self.model.parameters[worst]} is farthest from where it settles, about "
            f"{run.change:.2g} of {unit}, "
            f"{'less' if run.change < self.tol else 'more'} than tol {self.tol:g}"
        )
        if run.change < self.tol and not none_lost:
            run.grounds += (
                "; but some variances are as good as zero, and stay there; take a simpler model"
            )
        elif run.change < self.tol and not run.converged:
            lag = times[slow]
            length = f"about {lag:.0f}" if np.isfinite(lag) else f"more than {LEAST}"
            run.grounds += (
                f"; but draws of {self.model.latents[slow]} by {self.sampler.name} stay "
                f"alike for {length} iterations; take more steps of it, the sampler "
                "hmc, or exact where the model has it, or centre times"
            )
        return run.converged

    def _inform(self, run: SaemRun, since: int) -> None:
        """Draw latents at the parameters, with chains of their own, for the information there."""
        chains = run.chains.take_individuals(np.arange(self.model.n))
        least = 2 if self.sampler.name == "exact" else LEAST
        n_iter = max(least, -(-DRAWS // len(chains.z)))
        conditional = sample_conditional(
            self.model, run.theta, self.sampler, chains, after=run.n_iter, late=since, n_iter=n_iter
        )
        self.server.sum_up()
        self._complete, self._hidden = complete_and_hidden(self.model, run.theta, conditional)
        self._least = least_share(self.model, conditional)
        self._since, self._times = since, conditional.times


class PerplexityWatch(Stateful):
    """Looks from time to time whether the perplexity of what devices hold has settled.

    That is where it changes by less than ``tol`` percent in an iteration of step 1 (0: never look);
    ``window`` iterations lie between looks at that, in which the perplexity is seen `LOOKS` times,
    to be reported.
    """

    def __init__(
        self,
        model: SaemModel,
        server: SaemServer | SaemNeighbours,
        burn_in: int,
        tol: float,
        window: int,
    ) -> None:
        self.model, self.server = model, server
        self.burn_in, self.tol, self.window = burn_in, tol, window
        self._at, self._last = 0, math.nan

    def has_settled(self, run: SaemRun) -> bool:
        """Whether a run may end; tells it how much the perplexity changes."""
        since = run.n_iter - self.burn_in
        due = since >= self.window and since % self.window == 0
        if self.tol <= 0 or not (due or run.n_iter % max(1, self.window // LOOKS) == 0):
            return False
        perplexity = self.model.perplexity(run.theta)
        self.server.sum_up(wide=True)
        run.looks.append((run.n_iter, perplexity))
        if not due:
            return False
        if self._at:
            travelled = math.fsum(run.steps[self._at :])
            run.change = 100 * abs(math.log(perplexity / self._last)) / max(travelled, 1e-12)
            run.converged = run.change < self.tol
            than = "less" if run.converged else "more"
            run.grounds = (
                f"the perplexity, {perplexity:.5g}, changes by about {run.change:.2g} percent in "
                f"an iteration of step 1, {than} than tol {self.tol:g}"
            )
        self._at, self._last = run.n_iter, perplexity
        return run.converged

    def schema(self) -> dict[str, Schema]:
        return {"at": COUNT, "last": or_nan(Number(0))}


def still_to_go(
    trace: Doubles,  # (m + 1, p) before and after the last m iterations
    steps: Doubles,  # (m,) of these
    complete: Doubles,  # (p, p) information
    hidden: Doubles,  # (p, p) of it, by latents
    constraints: Doubles,  # (c, p), as `SaemModel.constraints`
    least: float,
) -> Doubles:
    """How far parameters (p,) are from where they settle, each in its standard error.

    It is the way to go, and the scatter, as the root of the sum of their squares. Of a parameter
    without complete information the size stands for its standard error, and it is taken to move
    alone. Directions of which rows say less than the share ``least`` of the complete information,
    above 0, which draws can tell from none, are taken to have as much, so that all have a standard
    error.
    """
    far = np.zeros(trace.shape[1])
    change = trace[-1] - trace[0]
    travelled = min(math.fsum(steps), 500.0)
    diagonal = np.diag(complete)
    known = np.flatnonzero(
        (diagonal > 0) & np.isfinite(complete).all(axis=1) & np.isfinite(hidden).all(axis=1)
    )
    alone = np.setdiff1d(np.arange(len(far)), known)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(change[alone]) / np.abs(trace[-1, alone]) / np.expm1(travelled)
    far[alone] = np.where(change[alone] == 0, 0.0, ratio)
    if not len(known):
        return far
    sizes = np.sqrt(diagonal[known])
    free = np.eye(len(known))
    if len(constraints):
        from scipy.linalg import null_space  # takes long to load

        free = null_space(constraints[:, known] / sizes)
    full, lost = (
        free.T @ (one[np.ix_(known, known)] / np.outer(sizes, sizes)) @ free
        for one in (complete, hidden)
    )
    values, vectors = np.linalg.eigh(full)
    root = vectors * np.sqrt(np.maximum(values, SINGULAR * values[-1]))
    inverse = root / np.maximum(values, SINGULAR * values[-1])
    # Directions in which parameters move apart: the complete information is 1 there.
    shares, turns = np.linalg.eigh(inverse.T @ (full - lost) @ inverse)
    shares = np.clip(shares, least, 1.0)
    moves = np.diff(trace[:, known], axis=0) * sizes @ free @ root @ turns
    left = moves.sum(axis=0) / np.expm1(shares * travelled)
    # Of blocks of iterations, for noise of neighbours may be alike, or cancel (fed-back errors).
    size = max(1, len(steps) // BLOCKS)
    blocks = (moves / steps[:, None])[len(steps) % size :].reshape(-1, size, moves.shape[1])
    noise = np.mean(blocks.sum(axis=1) ** 2, axis=0) / size
    scatter = steps[-1] * noise / (2 * shares)
    back = free @ inverse @ turns
    far[known] = np.sqrt(((back @ left) ** 2 + back**2 @ scatter) / (back**2 / shares).sum(axis=1))
    return far
