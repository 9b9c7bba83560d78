"""EM in fewer sums: what is tried beyond an M-step, and what is done if it went too far.

After each sum the loop of `vpem.steps.em` asks for the parameters of the next one. In plain EM they
are those of the M-step. Between sums each root may take steps on its own block: it knows the sum
and its own terms, and so the rest, and goes on while that rest and the mixing weights, which all
roots share, stay (`LocalSteps`). With SQUAREM every second of these maps is followed by a step
along the line of the last two (Varadhan and Roland 2008). Log-likelihoods decide: where a sum finds
less than the last one did, its parameters are given up for those of the M-step before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vpem._core.normalise import differences
from vpem.checks import Doubles, Floats, read_int
from vpem.errors import InputError, Setting, brief
from vpem.network.schema import (
    FLAG,
    Array,
    As,
    Choice,
    Integer,
    ListOf,
    Maybe,
    Number,
    Schema,
    State,
    Stateful,
)
from vpem.steps.summing import FARTHEST
from vpem.sums.private import add_numbers
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture

MOST_LOCAL = 1000
"""Limit of the setting local:N."""

BEGINS_BELOW = 1.0
"""Gain of an M-step, in nats per sample, at which acceleration begins.

Before, EM is on its way to one of several optima, and longer steps may lead to another.
"""

REACH = 4.0
"""Longest step of SQUAREM at first, an M-step being 1, and the factor by which it grows where it
limits steps and shrinks after a lost one."""

SHORTEST = 0.3
"""Shortest step where there are local steps, which may go too far; M-steps do not, nor below 1."""

PAUSE = 8
"""M-steps alone after one that found less, at first; each time twice as many."""

FLOOR = 0.9
"""Part of ``reg_covar`` that covariances keep wherever a line leads."""

Roots = Sequence[FeatureTerms]

Line = tuple[Any, Any, Any]
"""A point, the step ahead from it, and how much the next step differs."""


@dataclass(frozen=True)
class Acceleration:
    local: int = 0  # most steps of a root after an M-step, while the rest of the sum stays
    squarem: bool = False  # whether M-steps are extrapolated
    noisy: bool = False  # whether sums differ at the same parameters, as if rounded at random


def parse_acceleration(name: str | None) -> Acceleration | None:
    """Parse "squarem", "local:8", both with a comma, or None: no acceleration."""
    if name is None:
        return None
    local, squarem = 0, False
    for part in name.split(",") if isinstance(name, str) else ("",):
        word, _, number = part.strip().partition(":")
        if word == "squarem" and not number and not squarem:
            squarem = True
        elif word == "local" and not local:
            local = read_int(number) or 0
            if not 1 <= local <= MOST_LOCAL:
                break
        else:
            break
    else:
        return Acceleration(local, squarem)
    raise InputError(
        Setting("accelerate"),
        f" must be squarem, local:N with N from 1 to {MOST_LOCAL} such as local:8, or both as in "
        f"local:8,squarem; got {brief(name)}",
    )


class LocalSteps:
    """EM steps of the roots of this process on their own blocks, between one sum and the next.

    ``least`` are effective samples of a component below which a root takes no step. ``rest`` (B, M,
    K - 1) is what the others add at every row, less what they add for the first component; the
    E-step of the sum (`vpem.steps.em.log_likelihood`) writes it.
    """

    def __init__(self, terms: FeatureTerms, n_hubs: int, n_components: int, least: float) -> None:
        self.terms, self.n_hubs, self.least = terms, n_hubs, least
        dtype = np.float32 if terms.itemsize == 4 else np.float64
        self.rest: Floats = np.zeros((n_hubs, terms.n_samples, n_components - 1), dtype=dtype)

    def take_steps(
        self, mixture: Mixture, factors: Factors, n_steps: int
    ) -> tuple[Mixture, Factors]:
        """Take some steps from an M-step; returns parameters and their factors."""
        terms, limit = self.terms, FARTHEST[self.terms.itemsize]
        for _ in range(n_steps):
            statistics = terms.empty(mixture.means, self.n_hubs)
            for rows in terms.chunks(2 * self.n_hubs * mixture.n_components):
                # How each hub's own terms differ from those of the first component.
                numbers = np.ascontiguousarray(terms.local(factors, rows))
                own = np.empty((*numbers.shape[:2], numbers.shape[2] - 1), dtype=numbers.dtype)
                firsts = np.zeros(len(numbers))
                differences(numbers, np.empty(0), own, firsts, limit, terms.n_threads)
                responsibilities, _ = terms.responsibilities(
                    mixture, self.rest[:, rows] + own, rows
                )
                terms.summarize(statistics, responsibilities, rows)
            updated = terms.update(statistics).weighing(mixture)
            prepared = terms.prepare(updated)
            # A component that would collapse in one hub alone is the next sum's to judge.
            few = (statistics.counts < self.least).any(axis=1)
            stays = np.logical_or(few, prepared.failed.any(axis=0))
            if stays.any():
                updated = updated.with_hubs_of(mixture, stays).weighing(mixture)
                prepared = terms.prepare(updated)
            mixture, factors = updated, prepared
        return mixture, factors


class PlainSteps(Stateful):
    """EM as it is: the next sum is at the parameters of the M-step."""

    tried = "step"
    """What the parameters of the sum under way are: an M-step's, or more."""
    decides = False
    """Whether all roots decide after each sum together what becomes of it."""

    ended = False
    """Whether nothing is left to gain."""

    kept: list[Mixture]
    """What the last M-step came to, where more is tried."""

    def refuses(self, log_likelihoods: Doubles, emptied: Callable[[], bool], small: bool) -> bool:
        """Whether the parameters of a sum are given up for what it found at them.

        ``log_likelihoods`` (R,) are as all roots found them; ``small``: they changed by so little
        that a run may stop. ``emptied`` says whether a component has too few rows there.
        """
        return False

    def undo(self) -> tuple[list[Mixture], list[Factors]]:
        """Return the parameters to go back to: mostly those of the last M-step."""
        raise NotImplementedError

    def restart(self) -> None:
        """Begin again, after components were reinitialised."""

    def next(
        self,
        before: Sequence[Mixture],
        updated: list[Mixture],
        factors: list[Factors],
        log_likelihoods: Doubles,
        small: bool,
    ) -> tuple[list[Mixture], list[Factors]]:
        """Return the parameters of the next sum, and their factors.

        ``before`` are those of the last sum, at which all roots found ``log_likelihoods`` (R,), and
        ``updated`` those after its M-step; ``small``: EM may be at its end.
        """
        return updated, factors

    def settled(
        self, mixtures: list[Mixture], factors: list[Factors]
    ) -> tuple[list[Mixture], list[Factors]]:
        """Return what a run ends with, given the parameters of what would be the next sum."""
        return mixtures, factors


class Accelerated(PlainSteps):
    """EM with longer steps, ``local`` ones between sums among them.

    ``roots`` take M-steps: one for all roots that share a mixture, or each its own (``over_rows``),
    where each has a mixture of all features and nothing is sent.
    """

    decides = True

    def __init__(
        self,
        settings: Acceleration,
        roots: Roots,
        total: Sum,
        over_rows: bool,
        local: LocalSteps | None,
        like: Mixture,
    ) -> None:
        self.settings, self.roots, self.total, self.over_rows = settings, roots, total, over_rows
        self.local, self.like = local, like
        self.weight = roots[0].total_weight
        self.floor = FLOOR * roots[0].reg_covar
        self.shortest = SHORTEST if settings.local else 1.0
        self.restart()

    def restart(self) -> None:
        self.tried = "step"
        self.begun = self.clipped = False
        self.pause, self.next_pause = 0, PAUSE
        self.reach = REACH
        self.n_local = min(1, self.settings.local)
        """Local steps after the next M-step; twice as many where they were good."""
        self.accepted: Doubles | None = None
        """Log-likelihood that the last sum found that was not lost, (R,)."""
        self.kept = []  # after its M-step
        self.best: list[Mixture] = []
        """Before it."""
        self.origin: list[Mixture] = []
        """First of three points that are extrapolated."""

    def refuses(self, log_likelihoods: Doubles, emptied: Callable[[], bool], small: bool) -> bool:
        """Whether the parameters of a sum are given up: where any root finds less than before.

        Without ``reg_covar`` no M-step does that. With it EM comes to rest below the highest
        log-likelihood: where an M-step finds a little less a run that may stop ends at what came
        before; where it finds much less plain EM goes on, for some M-steps, to where it rests.
        """
        if self.accepted is None:
            return False
        if self.tried == "step":
            lower = (
                self.begun
                and not self.settings.noisy
                and bool((log_likelihoods < self.accepted).all())
            )
            self.ended = lower and small
            if lower and not small and not self.pause:
                self.pause = self.next_pause
                self.next_pause *= 2
            return self.ended
        return not bool((log_likelihoods >= self.accepted).all()) or emptied()

    def undo(self) -> tuple[list[Mixture], list[Factors]]:
        """Return the last M-step, or what came before it where that was too much."""
        if self.tried == "extrapolation":
            self.reach = max(1.0, self.reach / REACH)
        elif self.tried == "local":
            self.n_local //= 2
        self.tried, self.clipped, self.origin = "step", False, []
        mixtures = self.best if self.ended else self.kept
        return mixtures, [
            terms.prepare(one) for terms, one in zip(self.roots, mixtures, strict=True)
        ]

    def next(
        self,
        before: Sequence[Mixture],
        updated: list[Mixture],
        factors: list[Factors],
        log_likelihoods: Doubles,
        small: bool,
    ) -> tuple[list[Mixture], list[Factors]]:
        """Return the parameters of the next sum, and their factors.

        If what was tried changed little the next step is an M-step: a small change means the end of
        EM only between two points of EM itself.
        """
        was, self.tried = self.tried, "step"
        if was == "extrapolation" and self.clipped:
            self.reach *= REACH
        elif was == "local" or not self.n_local:
            self.n_local = min(self.settings.local, max(1, 2 * self.n_local))
        if self.accepted is not None and was == "step":
            gain = float((log_likelihoods - self.accepted).max()) / self.weight
            self.begun = self.begun or gain < BEGINS_BELOW
        self.accepted, self.kept, self.best = log_likelihoods, updated, list(before)
        if not self.begun or self.pause or (small and was != "step"):
            self.pause, self.origin = max(0, self.pause - 1), []
            return updated, factors
        if self.local is not None:
            self.tried = "local"
            mixture, prepared = self.local.take_steps(updated[0], factors[0], self.n_local)
            updated, factors = [mixture], [prepared]
        if not self.settings.squarem:
            return updated, factors
        if not self.origin:
            self.origin = list(before)
            return updated, factors
        origin, self.origin = self.origin, []
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            lines: list[Line] = []
            for three in zip(origin, before, updated, strict=True):
                first, second, third = (one.coordinates(self.floor) for one in three)
                ahead = second.minus(first)
                lines.append((first, ahead, third.minus(second).minus(ahead)))
            lengths = self._lengths(lines)
            mixtures: list[Mixture] = []
            for like, length, (first, ahead, bend) in zip(updated, lengths, lines, strict=True):
                there = first.moved(2 * length, ahead).moved(length**2, bend)
                mixtures.append(like.at_coordinates(there, self.floor))
            pairs = zip(self.roots, mixtures, strict=True)
            mixtures = [terms.hold(one) for terms, one in pairs]
            prepared_there = [
                terms.prepare(one) for terms, one in zip(self.roots, mixtures, strict=True)
            ]
            longest = max(float(length.max(initial=0.0)) for length in lengths)
            failed = any(bool(one.failed.any()) for one in prepared_there)
            # Where no root lives, 0: that says nothing of whether others move.
            flags = [longest >= self.reach, failed, longest not in (0.0, 1.0)]
            clipped, failed, moves = self.total.holders.any(flags).tolist()
            if failed:  # of which the root that finds it tells all others
                self.total.agree("flooding")
        if failed or not moves:
            self.reach *= REACH if clipped and not failed else 1.0
            return updated, factors
        self.tried, self.clipped = "extrapolation", clipped
        return mixtures, prepared_there

    def _lengths(self, lines: Sequence[Line]) -> list[Doubles]:
        """Steps (R,) of each mixture: the ratio of two numbers, of which each hub has a part.

        Of M-steps alone that is ``|r| / |v|`` (scheme S3). Local steps of several hubs at once may
        go too far, which shows in the sign of ``-r.v / v.v`` (S2), and in a ratio below 1.
        """
        lengths = []
        share = 1.0 if self.over_rows else 1.0 / self.total.holders.n_agents
        for _, ahead, bend in lines:
            against = bend if self.settings.local else ahead
            products = np.stack([ahead.dot(against, share), bend.dot(bend, share)], axis=1)
            sums = (
                products.sum(axis=0)[None] if self.over_rows else add_numbers(self.total, products)
            )
            ratio = sums[:, 0] / sums[:, 1]
            length = -ratio if self.settings.local else np.sqrt(ratio)
            length[~(length > 0)] = 1.0
            lengths.append(np.clip(length, self.shortest, self.reach))
        return lengths

    def settled(
        self, mixtures: list[Mixture], factors: list[Factors]
    ) -> tuple[list[Mixture], list[Factors]]:
        """Return what a run ends with: nothing that was only tried."""
        return (mixtures, factors) if self.tried == "step" else self.undo()

    # ---- checkpoints ----------------------------------------------------------------------------

    def schema(self) -> dict[str, Schema]:
        like, n_roots = self.like, 1 if self.over_rows else self.total.n_roots
        mixtures = As(
            Maybe(ListOf(like.schema(n_roots), len(self.roots))),
            lambda kept: [one.arrays() for one in kept] or None,
            lambda saved: [like.having(one) for one in saved or ()],
        )
        return {
            "tried": Choice(("step", "local", "extrapolation")),
            "begun": FLAG,
            "clipped": FLAG,
            "pause": Integer(),
            "next_pause": Integer(PAUSE),
            "reach": Number(1.0),
            "n_local": Integer(most=self.settings.local),
            "accepted": Maybe(Array("f8", (self.total.roots.n_agents,))),
            **dict.fromkeys(("kept", "best", "origin"), mixtures),
        }

    def restore(self, state: State) -> None:
        super().restore(state)
        if self.accepted is None or not self.kept or not self.best:
            self.restart()
