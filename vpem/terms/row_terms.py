"""What is the same for all terms of data split by features, whatever the densities are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.normalise import normalise
from vpem.checks import Floats
from vpem.terms.density import Density
from vpem.terms.known import Known
from vpem.terms.matrix import Rows

CHUNK_BYTES = 1 << 24
"""Size aimed at for the terms of one chunk of rows, over all hubs or agents."""


class RowTerms:
    """Rows in chunks, their weights, and responsibilities from sums."""

    rows: Rows  # give chunks runs and precision
    row_weights: NDArray[np.float64] | None  # (M,); None: 1
    n_threads: int
    itemsize: int
    least_rows = 0.5
    """Effective samples (sum of responsibilities) below which a component has collapsed, in rows:
    see `vpem.steps.reinitialise.least_weight`."""
    known: Known | None = None  # labels, say, of some rows
    is_proper = False  # a prior keeps every component from being singular

    def __copy__(self) -> Self:
        """Return the same terms; as `copy` would, but in less time than a small batch takes."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def chunks(self, n_values: int) -> Iterator[slice]:
        """Yield runs of rows for which ``n_values`` numbers a row fit in the working memory."""
        step = max(64, CHUNK_BYTES // (self.itemsize * max(n_values, 1)))
        for run in self.rows.runs():
            for start in range(run.start, run.stop, step):
                yield slice(start, min(start + step, run.stop))

    def responsibilities(
        self, mixture: Density, sums: Floats, rows: slice
    ) -> tuple[Floats, NDArray[np.float64]]:
        """Responsibilities (R, m, K) times row weights, and log-likelihood (R,) of these rows."""
        log_weights = np.broadcast_to(mixture.log_weights, (len(sums), mixture.n_components))
        out = np.empty((*sums.shape[:2], mixture.n_components), dtype=sums.dtype)
        log_likelihoods = np.empty(sums.shape[:2])
        normalise(sums, np.ascontiguousarray(log_weights), out, log_likelihoods, self.n_threads)
        if self.known is not None:
            self.known.look(out, rows)
        if self.row_weights is None:
            return out, log_likelihoods.sum(axis=1)
        weights = self.row_weights[rows]
        out *= weights[:, None].astype(out.dtype)
        return out, log_likelihoods @ weights

    def begun(self, start: Any) -> Any:
        """Return parameters that come from elsewhere as those of these terms."""
        return start

    def resuming(self, mixture: Density) -> Self:
        """Return these terms as they were when a mixture was saved."""
        return self

    def log_prior(self, mixture: Any) -> float:
        """Log-density of parameters under a prior that terms have a part of; here there is none."""
        return 0.0

    def labelled(self, terms: Floats, rows: slice) -> Floats:
        """Add what is known of these rows to the terms (B, m, K) of their features."""
        if self.known is not None:
            self.known.add(terms, rows)
        return terms

    def sweep_chunks(
        self: Any, mixture: Any, factors: Any, mix: NDArray[np.float64], statistics: Any
    ) -> NDArray[np.float64]:
        """Take the sum ``mix @ Q`` and all that depends on it, chunk by chunk: (R,)."""
        found = np.zeros(len(mix))
        for rows in self.chunks(self.blocks.n_blocks * mixture.n_components):
            sums = mixed(mix, self.local(factors, rows))
            responsibilities, log_likelihoods = self.responsibilities(mixture, sums, rows)
            found += log_likelihoods
            if statistics is not None:
                self.summarize_by(statistics, responsibilities, rows, factors)
        return found

    def summarize_by(
        self: Any, statistics: Any, responsibilities: Floats, rows: slice, factors: Any
    ) -> None:
        """Add rows to the statistics, by the parameters that their responsibilities come from."""
        self.summarize(statistics, responsibilities, rows)

    def _weights(self, rows: slice) -> NDArray[np.float64]:
        if self.row_weights is None:
            return np.ones(rows.stop - rows.start)
        return self.row_weights[rows]


def mixed(mix: NDArray[np.float64], terms: Floats) -> Floats:
    """Sums ``mix @ terms`` (R, m, K) of terms (B, m, K)."""
    flat = terms.reshape(len(terms), -1)
    if len(mix) == 1 and bool((mix == 1).all()):
        sums = flat.sum(axis=0, keepdims=True)
    else:
        sums = (mix @ flat).astype(flat.dtype)
    return np.ascontiguousarray(sums).reshape(len(mix), *terms.shape[1:])
