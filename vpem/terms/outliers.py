"""Rows that belong to no component: noise, which has a density of its own, and trimmed rows.

Noise is a component that is uniform on the product of the hubs' regions (Banfield and Raftery 1993;
Fraley and Raftery 2002). Its log-density is ``-sum_b log V_b``, with V_b the volume of the rows of
hub b: the smaller of that of a box along the axes and of one along the principal axes. It is a
term of the sum like others, ``2 log V_b`` in every row, and each hub adds its own.

Trimming (Garcia-Escudero, Gordaliza, Matran and Mayo-Iscar 2008) leaves out of every iteration the
rows whose log-density is least. EM then raises ``sum_m w_m t_m log f(x_m)`` with shares ``t`` from
0 to 1 that leave out a part of the rows' weight, which are best for the parameters in every E-step.
Rows that are equally near to being left out have an equal share: so an integer weight is as many
copies, and all agents that have the totals agree on all shares.

Both need a row's log-density, and not only how its terms differ. So terms have a first column that
is known: of noise its term, for trimming 0. Differences are taken from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.errors import InputError, Setting
from vpem.network.schema import Array, Report, Schema
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture
from vpem.terms.rows import RowTerms
from vpem.terms.statistics import Statistics

FIRST_SHARE = 0.05
"""Mixing weight of the noise at the start, in place of those of components."""

ROUNDING = 1e-9
"""Of a row, below which a share of it is none."""

THIN = 1e-8
"""Width of a box along principal axes, beside its longest side, that is one of rounding."""


@dataclass(frozen=True)
class OutlierMixture(Mixture):
    """A Gaussian mixture, and what rows are that belong to none of its components.

    ``weights`` are those of components among rows that belong to one.
    """

    share: Doubles  # (R, 1) mixing weight of the noise as each root finds it; 0: rows are trimmed
    volumes: Doubles  # (B,) term of each hub; 0 where rows are trimmed
    threshold: Doubles
    """(R, 1) log-densities in units of fitting, without their constant, below which rows are
    trimmed; -inf where none are, or not yet."""
    named: ClassVar[dict[str, str]] = Mixture.named | {
        "share": "roots", "volumes": "hubs", "threshold": "roots"
    }  # fmt: skip
    n_beside = 1

    def schema(self, n_roots: int = 1) -> dict[str, Schema]:
        return super().schema(n_roots) | {
            "share": Array("f8", ((1, n_roots), 1), 0, 1),
            "volumes": Array("f8", (self.blocks.n_blocks,)),
            "threshold": Array("f8", ((1, n_roots), 1), inf=True),
        }

    @property
    def outliers(self) -> str:
        return "noise" if self.share.any() or self.volumes.any() else "trimmed"

    @property
    def outlier_share(self) -> float:
        return float(self.share.mean())

    @property
    def log_weights(self) -> Doubles:
        """Logarithms (R, 1 + K) of the mixing weights, that of the noise first."""
        with np.errstate(divide="ignore"):
            every = np.concatenate([self.share, (1 - self.share) * self.weights], axis=1)
            return np.asarray(np.log(every))

    @property
    def assembled_log_weights(self) -> Doubles:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.exp(self.log_weights).mean(axis=0)))

    @property
    def n_parameters(self) -> int:
        """Free parameters; of noise its weight and its volume, as mclust counts them."""
        return super().n_parameters + 2 * (self.outliers == "noise")

    of_roots = ("share", "threshold")

    def describe_outliers(self) -> Report:
        """Say in values that JSON can hold what rows are outliers."""
        if self.outliers == "noise":
            volume = float(self.volumes.sum() + self.n_features * np.log(2 * np.pi)) / 2
            volume += float(np.log(self.scaling.scale).sum())
            return {"kind": "noise", "weight": self.outlier_share, "log_volume": volume}
        return {"kind": "trimmed", "log_density": self.least_density}

    @property
    def least_density(self) -> float:
        """Log-density below which rows are trimmed, in the user's units."""
        constant = -0.5 * self.n_features * np.log(2 * np.pi) - np.log(self.scaling.scale).sum()
        return float(self.threshold.mean() + constant)

    def counts_rows(self, scores: Doubles) -> Mask:
        kept = np.asarray((scores >= self.least_density) | (self.outliers == "noise"))
        if len(kept) and not kept.any():
            raise InputError(
                "every row is trimmed, so that none is left to tell how well the model describes "
                "rows; give more rows, or fit a model without ", Setting("trim"),
            )  # fmt: skip
        return kept

    def shares_of_rows(self, scores: Doubles, trim: float, weights: Doubles) -> Doubles:
        """Return which part counts (M,) of rows of such log-likelihoods and weights.

        If less than the weight of a row is missing from a part ``trim`` of all, or beyond it, the
        row at the border counts in part, as it does in a fit.
        """
        kept = self.counts_rows(scores).astype(np.float64)
        more = trim * weights.sum() - weights[kept == 0].sum()
        side = (kept == (more > 0)) & (weights > 0)
        if abs(more) > ROUNDING and side.any():
            border = scores[side].min() if more > 0 else scores[side].max()
            part = more / weights[side & (scores == border)].sum()
            kept[side & (scores == border)] -= part if abs(part) < 1 else 0.0
        return kept

    def terms_of(self, values: Doubles, there: Mask) -> tuple[Floats, Doubles | float]:
        if not there.all():
            raise InputError(
                f"values are missing, and whether a row of fewer values is {self.outliers} cannot "
                "be compared; fill values in first"
            )
        terms, constant = super().terms_of(values, there)
        return beside(self.volumes, terms), constant

    def judged(self, shares: Floats, log_densities: Doubles, sums: Floats) -> Floats:
        """Return responsibilities (R, m, K + 1) with the outliers last, of those first."""
        found = np.roll(shares, -1, axis=-1)
        if self.outliers == "trimmed":
            full = sums.shape[-1] == shares.shape[-1]
            of_first = 0.5 * sums[..., 0] if full else 0.0
            low = log_densities + of_first < self.threshold[: len(shares)]
            found[low] = np.arange(found.shape[-1]) == self.n_components
        return found

    def marginal(self, features: Any) -> Mixture:
        return self.plain.marginal(features)

    def drawn(self, labels: Indices, rng: np.random.Generator) -> Doubles:
        self.refuse_outliers("rows are drawn from components")
        return super().drawn(labels, rng)


def beside(volumes: Doubles, terms: Floats) -> Floats:
    """Return terms (B, m, 1 + K) with those of outliers (B,) first."""
    first = np.broadcast_to(volumes[:, None, None], (*terms.shape[:2], 1))
    return np.concatenate([first, terms], axis=2, dtype=terms.dtype)


class OutlierTerms(FeatureTerms):
    """Local terms of rows some of which are noise, or trimmed: a part ``trim`` of their weight."""

    def __init__(
        self, *args: Any, trim: float = 0.0, standard: bool = False, **others: Any
    ) -> None:
        super().__init__(*args, **others)
        self.trim, self.total = trim, self.total_weight
        self.volumes = np.zeros(self.blocks.n_blocks) if trim else log_volumes(self, standard)
        self.total_weight *= 1 - trim
        self._kept: Doubles | None = None  # (R, M) what is left of rows
        self._threshold = np.array([[-np.inf]])

    # ---- E-step --------------------------------------------------------------------------------

    def local(self, factors: Factors, rows: slice) -> Floats:
        return beside(self.volumes, super().local(factors, rows))

    sweep = RowTerms.sweep

    def seen_whole(
        self, mixture: Any, chunks: Iterable[tuple[slice, Floats]]
    ) -> Iterator[tuple[slice, Floats]]:
        """Yield sums of rows once it is known which are trimmed; those of all are kept for that."""
        if not self.trim:
            yield from chunks
            return
        every = list(chunks)
        densities = [self.normalised(mixture, sums)[1] for _, sums in every]
        found = [self._trim(one) for one in np.concatenate(densities, axis=1)]
        self._kept = np.array([kept for kept, _ in found]).reshape(-1, self.n_samples)
        if found:  # a process of no hub has no root
            self._threshold = np.array([[threshold] for _, threshold in found])
        yield from every

    def _trim(self, densities: Doubles) -> tuple[Doubles, float]:
        """Return shares of rows (M,) that are left, and the density below which none is."""
        weights = self._weights(slice(0, self.n_samples))
        order = np.argsort(densities, kind="stable")
        before = np.cumsum(weights[order])
        most = self.trim * self.total
        last = min(int(np.searchsorted(before, most + ROUNDING, "right")), len(order) - 1)
        threshold = densities[order[last]]
        ties = densities == threshold
        gone = (most - weights[densities < threshold].sum()) / weights[ties].sum()
        gone = 0.0 if gone < ROUNDING else gone
        kept = np.where(ties, 1 - gone, densities > threshold)
        # Between two rows, so that rounding does not show where a model is used.
        low = densities[kept < 0.5].max(initial=-np.inf)
        high = densities[kept >= 0.5].min(initial=np.inf)
        between = high - 1 if np.isneginf(low) else low + (high - low) / 2
        return kept, float(between)

    def responsibilities(self, mixture: Any, sums: Floats, rows: slice) -> tuple[Floats, Doubles]:
        shares, log_densities = self.normalised(mixture, sums)
        weights = self._weights(rows)[None]
        if self.trim:
            assert self._kept is not None
            weights = weights * self._kept[:, rows]
        out = shares[:, :, 1:] * weights[..., None].astype(shares.dtype)
        totals = np.where(weights > 0, log_densities, 0.0) * weights
        return out, totals.sum(axis=1)

    # ---- M-step --------------------------------------------------------------------------------

    def update(self, statistics: Statistics, row: float | None = None) -> Any:
        mixture: Any = super().update(statistics, row)
        if self.trim:
            return self.settle(mixture)
        within = statistics.counts.sum(axis=1, keepdims=True) / self.total_weight
        return replace(mixture, share=np.clip(1 - within, 0.0, 1.0))

    def settle(self, mixture: Any) -> Any:
        roots = np.zeros((len(mixture.weights), 1))
        return replace(mixture, threshold=self._threshold + roots)

    def mixture(self, weights: Doubles, means: Doubles, covariances: Doubles) -> Any:
        return self.begun(super().mixture(weights, means, covariances))

    def begun(self, start: Any) -> Any:
        share = np.full((len(start.weights), 1), 0.0 if self.trim else FIRST_SHARE)
        return OutlierMixture(
            **start.common, share=share, volumes=self.volumes, threshold=self._threshold + 0 * share
        )

    def blank(self, n_components: int) -> Any:
        return self.begun(super().blank(n_components))


def log_volumes(terms: FeatureTerms, standard: bool) -> Doubles:
    """Return the term of noise of each hub (B,): ``2 log V_b - d_b log(2 pi)``.

    V_b is in units of fitting; principal axes are those of the user's, or of ``standard`` units.
    An integer weight is as many rows.
    """
    blocks, found = terms.blocks, np.empty(terms.blocks.n_blocks)
    scale = terms.scaling.scale[blocks.order] ** (not standard)

    def parts() -> Iterator[tuple[Doubles, Doubles]]:
        """Yield weights (m, 1), and rows (m, d) in block order, but for where they begin."""
        for run in terms.chunks(blocks.n_features):
            weights = terms._weights(run)
            used = weights > 0
            yield weights[used, None], terms.rows.read(run)[used].astype(np.float64) * scale

    sides = _sides((rows for _, rows in parts()), np.eye(blocks.n_features)[:0])
    flat = np.flatnonzero(~(sides > 0))
    if len(flat):
        name = f"feature {int(blocks.order[flat[0]])}"
        raise InputError(
            Setting("noise"), f" is uniform where the rows are, but {name} is constant, so that "
            "they have no volume; leave it out",
        )  # fmt: skip
    for b, (begin, end) in enumerate(pairwise(blocks.offsets.tolist())):
        width, logs = end - begin, float(np.log(sides[begin:end]).sum())
        if 1 < width < terms.n_samples:
            count, total, products = 0.0, np.zeros(width), np.zeros((width, width))
            for weights, rows in parts():  # about means, so that no digits are lost
                part = rows[:, begin:end]
                count, total = count + weights.sum(), total + (weights * part).sum(axis=0)
                products = products + part.T @ (weights * part)
            axes = np.linalg.eigh(products - np.outer(total, total) / count)[1]
            along = _sides((rows[:, begin:end] for _, rows in parts()), axes)
            if along.min() > THIN * along.max():
                logs = min(logs, float(np.log(along).sum()))
        found[b] = 2 * (logs - np.log(scale[begin:end]).sum()) - width * np.log(2 * np.pi)
    return found


def _sides(parts: Iterable[Doubles], axes: Doubles) -> Doubles:
    """Return how far rows reach along axes (d, d), or along those of features."""
    low, high = np.inf, -np.inf
    for rows in parts:
        turned = rows @ axes if len(axes) else rows
        low = np.minimum(low, turned.min(axis=0, initial=np.inf))
        high = np.maximum(high, turned.max(axis=0, initial=-np.inf))
    return np.asarray(high - low)
