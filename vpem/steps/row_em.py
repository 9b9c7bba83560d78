"""EM over rows that workers hold: every worker's statistics, one sum, every root's M-step.

What is summed are statistics and not terms of log-densities. Where all share the sum there is one
model; under consensus every worker has its own, and they differ by consensus error only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpem.steps.local_steps import LocalSteps
from vpem.steps.reinitialise import REINITIALISED_BYTES
from vpem.sums.counted import add_vectors
from vpem.sums.powers import power_beyond
from vpem.sums.sum import Sum
from vpem.terms.covariances import Factors
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.row_statistics import Message, RowTerms
from vpem.terms.statistics import Statistics


def add_messages(
    terms: RowTerms,
    total: Sum,
    layout: Message,
    values: Sequence[NDArray[np.float64]],
    kind: str,
    n_more: int = 0,
) -> NDArray[np.float64]:
    """Sum messages (P,) of the workers here, under masks in units that no sum is too large for.

    What is expected of missing values may lie farther out than any row, as parameters have it. How
    much farther no worker knows of the others, so all find out first. ``n_more`` numbers at the end
    of a message, of the size of its log-likelihood, are not in the layout. The sum has the shape
    (R, P).
    """
    stacked = np.stack(values) if len(values) else np.empty((0, layout.size + n_more))
    units = terms.exponents(layout)
    if units is not None:
        units = np.append(units, np.repeat(units[-1], n_more))
        if layout.expects:
            units += power_beyond(total, stacked, units)
    return add_vectors(total, stacked, kind, units)


def sample_roots(terms: RowTerms, total: Sum, about: NDArray[np.float64]) -> list[FeatureTerms]:
    """Return terms for every root, with the sample covariance as it finds it by one sum.

    ``about`` (d,) is a point among the data, known to all.
    """
    layout = Message(terms.whole, about[None])
    values = [terms.moments(worker, layout) for worker in range(len(terms.parts))]
    return [
        terms.whole.knowing(layout.unpacked(message)[0])
        for message in add_messages(terms, total, layout, values, "setup")
    ]


class OverRows:
    """The E-step of workers that hold rows (`vpem.steps.em.EStep`).

    Parameters
    ----------
    terms : RowTerms
        The workers' rows.
    total : Sum
        How statistics are summed.
    roots : sequence of FeatureTerms
        From `sample_roots`; R.
    shifts : ndarray of shape (K, d)
        Points known to all that statistics are sent about, where there are several roots; one root
        sends its means, and statistics are about them.
    """

    over_rows = True
    local: LocalSteps | None = None
    """Parameters are those of all rows: there are no steps of one worker."""

    def __init__(
        self,
        terms: RowTerms,
        total: Sum,
        roots: Sequence[FeatureTerms],
        shifts: NDArray[np.float64],
    ) -> None:
        self.terms = terms
        self.whole = whole = terms.whole
        self.total = total
        self.roots = roots
        # Which component, at which row, and the row itself.
        self.reinitialised_bytes = REINITIALISED_BYTES + whole.blocks.n_features * whole.itemsize
        self._fixed = None if total.roots.n_agents == 1 else Message(whole, shifts)

    def layout(self, mixture: Mixture) -> Message:
        """Return how messages are laid out where roots share this mixture, or have their own."""
        return self._fixed or Message(self.whole, mixture.means)

    def expect(
        self, mixtures: Sequence[Mixture], factors: Sequence[Factors], kind: str
    ) -> tuple[NDArray[np.float64], list[Statistics]]:
        """E-step of every worker with its own root's parameters, and the sum."""
        layout = self.layout(mixtures[0])
        shared = len(mixtures) == 1
        values = [
            self.terms.message(worker, mixtures[at], factors[at], layout)
            for worker in range(len(self.terms.parts))
            for at in (0 if shared else worker,)
        ]
        sums = add_messages(self.terms, self.total, layout, values, kind)
        found = self.total.roots.join(sums[:, -1].copy()) + self.whole.log_constant
        return found, [] if kind == "check" else [layout.unpacked(one)[0] for one in sums]
