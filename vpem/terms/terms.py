"""What every kind of local terms answers to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats

if TYPE_CHECKING:
    from vpem.network.partition import Blocks
    from vpem.terms.covariances import Factors
    from vpem.terms.matrix import Rows
    from vpem.terms.mixture import Mixture
    from vpem.terms.statistics import Statistics


class Terms(Protocol):
    """What is summed."""

    n_samples: int
    total_weight: float
    row_weights: NDArray[np.float64] | None
    """Weight of each row (M,); None: 1."""
    n_threads: int
    reg_covar: NDArray[np.float64]
    """Added to the diagonal of every covariance."""
    log_constant: float
    constant_in_sums: bool
    """Whether each hub adds its own part of that to what is summed, and it is 0 here."""
    itemsize: int
    """Bytes of a number that is sent."""
    least_rows: float
    """Effective samples below which a component has collapsed, where a row weighs 1."""
    resolution: float
    """Relative change of a log-likelihood that rounding alone can make."""

    def constants(self) -> NDArray[np.float64]:
        """What each hub here has of `log_constant`, (B,)."""

    def chunks(self, n_values: int) -> Iterator[slice]:
        """Runs of rows for which ``n_values`` numbers a row fit in the working memory."""

    def prepare(self, mixture: Mixture) -> Factors:
        """Factor the parameters for an E-step."""

    def local(self, factors: Factors, rows: slice) -> Floats:
        """Terms of each hub for these rows, shape (B, m, K)."""

    def responsibilities(
        self, mixture: Mixture, sums: Floats, rows: slice
    ) -> tuple[Floats, NDArray[np.float64]]:
        """Responsibilities (R, m, K) and log-likelihood (R,) of these rows from the sums.

        Sums are of terms (R, m, K), or of how they differ from the first (R, m, K - 1): of these
        the log-likelihood is without minus half of what they differ from.
        """

    def sweep(
        self,
        mixture: Mixture,
        factors: Factors,
        mix: NDArray[np.float64],
        statistics: Statistics | None,
    ) -> NDArray[np.float64]:
        """Do it all in one pass for the sum ``mix @ terms``: log-likelihood (R,)."""

    def empty(self, centres: NDArray[np.float64], n_roots: int) -> Statistics:
        """Statistics of no rows."""

    def summarize(self, statistics: Statistics, responsibilities: Floats, rows: slice) -> None:
        """Add these rows to the statistics."""

    def update(self, statistics: Statistics) -> Mixture:
        """Parameters from the total."""

    def begun(self, start: Mixture) -> Mixture:
        """Return parameters that come from elsewhere as those of these terms."""

    def keep(self, mixture: Mixture, before: Mixture, hubs: NDArray[np.bool_]) -> Mixture:
        """Return the mixture with the parameters that these hubs (B,) had before."""

    def log_prior(self, mixture: Mixture) -> float:
        """Log-density of the parameters under a prior, less that at its mode; 0 without any."""

    def at_rows(self, indices: NDArray[np.intp]) -> NDArray[np.float64]:
        """Rows of the data as centres."""

    def middle(self, mixture: Mixture) -> NDArray[np.float64]:
        """A centre that is no row."""

    def reseeded(
        self, mixture: Mixture, component: int, centre: NDArray[np.float64], weight: float
    ) -> Mixture:
        """Re-initialise one component."""


class StartTerms(Terms, Protocol):
    """What a start needs of the terms besides."""

    blocks: Blocks
    rows: Rows
    units: int
    """Power of two in which squared distances are counted under masks."""

    def distances(self, centres: NDArray[np.float64], rows: slice) -> Floats:
        """Squared distances of each hub's part of these rows to centres (L, d), (B, m, L)."""

    def start(self, centres: NDArray[np.float64]) -> Mixture:
        """Equal weights, means at the centres, sample covariances."""


class BatchTerms(Terms, Protocol):
    """What batches need of the terms besides."""

    tells_expected: bool
    """Whether `expected` can tell log-densities from statistics."""

    @property
    def by_responsibilities(self) -> bool:
        """Whether rows and their responsibilities are all that statistics are made of."""

    def part(self, rows: slice, following: slice | None = None) -> Terms:
        """Terms of a run of rows, counted from 0 in it; which rows will be wanted next."""

    def recentred(self, statistics: Statistics, centres: Floats) -> Statistics:
        """Return the same statistics about other centres (K, d)."""

    def with_hubs_of(
        self, statistics: Statistics, other: Statistics, hubs: NDArray[np.bool_]
    ) -> Statistics:
        """Return the statistics with those hubs' (B,) part taken from other ones."""

    def enough(self, counts: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether so many rows a component (R, K) are enough for an M-step, in each root's eyes."""

    def update_early(self, statistics: Statistics, row: float) -> Mixture:
        """Parameters from statistics in which `enough` rows count, each of them this much."""

    def statistics_of(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics of rows of this total weight for which `update` gives ``mixture``."""

    def expected(self, statistics: Statistics, mixture: Mixture, factors: Factors) -> float:
        """Expected ``log g~`` of the rows in the statistics, without `log_constant`."""
