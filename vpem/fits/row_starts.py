"""Where EM over rows starts, and the run from there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import InputError
from vpem.network.schema import Report
from vpem.steps.cells import find_cells, tell_of_cells
from vpem.steps.em import iterate
from vpem.steps.given_starts import GivenStart
from vpem.steps.held_rows import StoredParts
from vpem.steps.lloyd import Pace
from vpem.steps.restarts import Restart
from vpem.steps.row_batches import fit_row_batches
from vpem.steps.row_em import OverRows, add_messages, sample_roots
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.runs import MixtureRuns, Run
from vpem.steps.seeding import seed_rows
from vpem.steps.starts import LLOYD_TOLERANCE, MOST_LLOYD_OF_START, Tell, step_of_lloyd, teller
from vpem.steps.streams import ROW_BYTES, PlacedStream, PointStream, RowStream
from vpem.terms.covariances import is_diagonal
from vpem.terms.features import FeatureTerms
from vpem.terms.matrix import MemoryRows
from vpem.terms.missing import MissingTerms
from vpem.terms.mixture import Mixture
from vpem.terms.row_statistics import Message, RowTerms

ORDER_OF_BATCHES = 1
"""Sets the stream that orders batches apart from the one that draws rows."""

Started = tuple[list[Mixture], NDArray[np.float64], NDArray[np.intp] | None]
"""Parameters of every root, points that all know, and the rows they came from."""


class RowRestart:
    """Where one restart of EM over rows starts, and its run.

    Parameters
    ----------
    terms : RowTerms
        The workers' rows.
    weights : ndarray of shape (M,) or None
        Of all rows, worker by worker; None: alike.
    kept : MixtureRuns
        What is kept of runs.
    place : ndarray of shape (M,) or None
        Where among the workers' rows each of the user's is; None: rows stand as the user has them.
    restart : Restart
        Which.
    """

    def __init__(
        self,
        terms: RowTerms,
        weights: NDArray[np.float64] | None,
        kept: MixtureRuns,
        place: NDArray[np.intp] | None,
        restart: Restart,
    ) -> None:
        self.terms = terms
        self.restart = restart
        self.total = restart.total
        self.kept = kept
        self.n_components = kept.n_components
        # Points are drawn in the place of rows where sums are masked.
        self.place = place if terms.reach is None else None
        whole = terms.whole
        # The same stream over rows as the user numbers them, and as they stand among the workers.
        own = weights if weights is None or place is None else weights[place]
        self.stream = RowStream(restart.rng, own, whole.n_samples)
        self.local: RowStream = self.stream
        if terms.reach is not None:
            self.stream = self.local = PointStream(restart.rng, terms.reach, whole.row_weights)
        elif place is not None:
            self.local = PlacedStream(restart.rng, weights, np.argsort(place))
        self.roots: list[FeatureTerms] = []
        self.tell: Tell | None = None

    def run(
        self, began_at: GivenStart, given: NDArray[np.intp] | None, stop: Report
    ) -> tuple[Run, NDArray[np.intp] | None]:
        """Run the restart, and judge it; returns also the rows that it started at."""
        run, rows = self._run(began_at, given, stop)
        run.judge(self.terms.whole, self.total)
        return run, rows

    def _run(
        self, began_at: GivenStart, given: NDArray[np.intp] | None, stop: Report
    ) -> tuple[Run, NDArray[np.intp] | None]:
        self.tell = teller(stop.get("callback"))
        init = began_at.init
        if self.restart.saved is not None:
            starts, shifts, rows = self._again()
        elif self.restart.start is not None:
            starts, shifts, rows = self._at_model(self.kept.begun_at(self.restart.start))
        elif isinstance(init, Mixture):
            starts, shifts, rows = self._at_model(init)
        elif given is not None:
            starts, shifts, rows = self._at(self._placed(given), given)
        else:
            starts, shifts, rows = self._drawn(init)
        if self.restart.saved is None and self.restart.start is None:
            starts = [
                root.begun(began_at.over(start, self._over))
                for root, start in zip(self.roots, starts, strict=True)
            ]
        known = [root.sample_covariance for root in self.roots]
        saver = self.restart.saver(shifts=shifts, rows=rows, covariances=known)
        step = OverRows(self.terms, self.total, self.roots, shifts)
        how: Report = {"draw_row": self._draw_row, "saver": saver, **stop}
        if "batch_size" in stop:
            order = np.random.default_rng([*self.restart.seed, ORDER_OF_BATCHES])
            return fit_row_batches(step, starts, rng=order, **how), rows
        return iterate(step, starts, last=began_at.last, **how), rows

    def _over(self, model: Mixture) -> Mixture:
        """Return a model in the units of the terms."""
        whole = self.terms.whole
        return model.over(whole.blocks, whole.covariance_type, whole.scaling)

    def _draw_row(self) -> int:
        """Next row of the shared stream, by its place among the workers'."""
        return int(self._placed(np.array([self.stream.draw()]))[0])

    def _placed(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the places of rows that the user numbers."""
        return rows if self.place is None else self.place[rows]

    def _again(self) -> Started:
        """Return what was saved of a start, with the parameters as they were saved last."""
        known, starts = self.restart.drawn("covariances"), self.kept.mixtures(self.restart.loop)
        self.roots = [
            self.terms.whole.with_sample_covariance(one).resuming(start)
            for one, start in zip(known, starts, strict=True)
        ]
        return starts, self.restart.drawn("shifts"), self.restart.drawn()

    def _at(self, places: NDArray[np.intp], rows: NDArray[np.intp]) -> Started:
        """Means at these rows, equal weights, the sample covariance."""
        whole = self.terms.whole
        centres = whole.at_rows(places)
        size = ROW_BYTES + whole.blocks.n_features * whole.itemsize
        ends = np.cumsum(self.terms.counts)
        for owner in np.searchsorted(ends, places, side="right"):
            self.total.agree("flooding", size, int(owner))
        self.roots = sample_roots(self.terms, self.total, centres[0])
        return [root.start(centres) for root in self.roots], centres, rows

    def _at_model(self, model: Mixture) -> Started:
        """Parameters of a model, which all know."""
        start = self._over(model)
        if start.n_components != self.n_components:
            raise InputError(
                f"the starting model has {start.n_components} components, {self.n_components} "
                "were asked for"
            )
        self.roots = sample_roots(self.terms, self.total, start.means[0])
        return [start] * len(self.roots), start.means, None

    def _drawn(self, init: str) -> Started:
        """Rows drawn from the shared stream, and Lloyd's iterations from there."""
        if init == "random":
            rows = self.stream.draw_distinct(self.n_components)
            return self._at(self._placed(rows), rows)
        whole = self.terms.whole
        parts = self._parts()
        given: Report = {"n_threads": whole.n_threads}
        if isinstance(whole, MissingTerms):
            given["observed"] = whole.observed
        if isinstance(self.local, PointStream):
            return self._among_cells(init, parts, self.local, given)
        places = seed_rows(
            parts, self.total, self.n_components, self.local, tell=self.tell, **given
        )
        rows = places if self.place is None else np.argsort(self.place)[places]
        starts, centres, _ = self._at(places, rows)
        if init == "k-means++":
            return starts, centres, rows
        return self._from_clusters(parts, centres, given), centres, rows

    def _among_cells(
        self, init: str, parts: Sequence[Floats] | StoredParts, stream: PointStream, given: Report
    ) -> Started:
        """Centres among means of cells, since no row may be shown, and Lloyd's iterations."""
        tell_of_cells(self.tell)
        cells = find_cells(parts, self.total, self.n_components, stream, given["n_threads"])
        centres = cells.draw(self.n_components, stream.rng)
        self.roots = sample_roots(self.terms, self.total, cells.points.centre)
        if init == "k-means++":
            return [root.start(centres) for root in self.roots], centres, None
        return self._from_clusters(parts, centres, given), centres, None

    def _parts(self) -> Sequence[Floats] | StoredParts:
        """Rows of the workers of this process, in memory or to be read run by run."""
        terms = self.terms
        if isinstance(terms.local, MemoryRows):
            return [part.rows.read(slice(0, part.n_samples)) for part in terms.parts]
        counts = np.array([part.n_samples for part in terms.parts], dtype=np.intp)
        return StoredParts(terms.local, counts)

    def _from_clusters(
        self, parts: Sequence[Floats] | StoredParts, centres: NDArray[np.float64], given: Report
    ) -> list[Mixture]:
        """Parameters of the clusters that Lloyd's iterations find from some centres."""
        whole = self.terms.whole
        n_parts = len(self.terms.parts)
        known: Sequence[NDArray[np.float64] | None] = [None] * n_parts
        misses = isinstance(whole, MissingTerms)
        if misses:
            given["fill"] = not is_diagonal(whole.covariance_type)
        tolerances = LLOYD_TOLERANCE * np.array([_mean_variance(root) for root in self.roots])
        found = lloyd_rows(
            parts, self.total, centres, self.local, kind="setup", max_iter=MOST_LLOYD_OF_START,
            pace=Pace(tolerances=tolerances), callback=step_of_lloyd(self.tell),
            **given,
        )  # fmt: skip
        layout = Message(whole, centres)
        if misses:
            known = list(np.broadcast_to(found.centres, (n_parts, *centres.shape)))
        counts = [part.n_samples for part in self.terms.parts]
        ends = np.cumsum(counts, dtype=np.intp)
        values = [
            self.terms.hard(worker, found.labels[end - count : end], layout, own)
            for worker, (count, end, own) in enumerate(zip(counts, ends, known, strict=True))
        ]
        sums = add_messages(self.terms, self.total, layout, values, "setup")
        return [
            root.update(layout.unpacked(one)[0]) for root, one in zip(self.roots, sums, strict=True)
        ]


def _mean_variance(root: FeatureTerms) -> float:
    """Mean variance of a feature, by the sample covariance as a root knows it."""
    covariances, d = root.sample_covariance, root.blocks.n_features
    if is_diagonal(root.covariance_type):
        return float(covariances.mean())
    return float(np.trace(covariances.reshape(d, d)) / d)
