"""FedEM with differential privacy: workers add noise to their statistics before they send them.

A worker clips residuals of its rows about a centre that all know, in units of the spread of all
rows, and weighs them by responsibilities: one row moves these sums by at most so much
(`vpem.terms.row_statistics.Residuals`). It adds the whole noise to its own sums, so that whatever
others see of it, the server too, is noisy. What FedEM does with a statistic
(corrections, memories, codecs, absence, steps) is computed from these and costs nothing more.

A worker's rows are in no message of others, so that what it spends is what its own releases spend:
three of the start, and one whenever it computes its statistic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Doubles, Floats, Indices, as_matrix, check_kind, least_participation
from vpem.errors import InputError, Setting
from vpem.files.matrix import FileMatrix
from vpem.fits.prepare import network_of_all, read_presence
from vpem.fits.privacy import (
    USUAL_ITERATIONS,
    Budget,
    Foretold,
    Guarantee,
    bounds_of,
    check_private,
    releases_of,
    share_start,
    unjudged,
)
from vpem.fits.rows import n_columns
from vpem.fits.settings import PrivacySettings
from vpem.network.codecs import Codec
from vpem.network.noise import Noise
from vpem.network.partition import Blocks, Workers
from vpem.network.schema import Report
from vpem.settings import FedMixtureSettings, FedSettings
from vpem.steps.fedem import run_fedem
from vpem.steps.fedem_steps import noise_of, safe_step
from vpem.steps.fedem_sums import FedProgress, FedRun
from vpem.steps.private import find_start, length_of, scales_of
from vpem.steps.runs import Progress
from vpem.sums.connect import Network, refuse_directed
from vpem.sums.private import EACH
from vpem.sums.quantizer import Quantizer
from vpem.terms.features import FeatureTerms
from vpem.terms.fedem_statistics import FLOOR, MixtureStatistics
from vpem.terms.mixture import Mixture
from vpem.terms.row_statistics import BoundedRows, Parts, Residuals, ResidualSums
from vpem.terms.units import Scaling, floors_of

SKETCH = 0.6
"""Share of the budget of the sketch in which the start is found: a start in louder noise is lost,
while iterations have noise to spare."""

LARGEST_FLOOR = 0.05
"""Of variances, relative to those of all rows, however much noise there is."""


def about_all_rows(parts: Parts, shape: str) -> Parts:
    """One component (its mean and spread) that has the moments of a mixture, in its units."""
    mean = parts.weights @ parts.means
    if parts.spreads.ndim == 2:
        within = np.einsum("k,ki->i", parts.weights, np.square(parts.spreads))
        variances = within + parts.weights @ np.square(parts.means - mean)
        if shape == "spherical":
            variances[:] = variances.mean()
        return Parts(np.ones(1), mean[None], np.sqrt(variances)[None], parts.kind)
    covariances = parts.spreads @ parts.spreads.transpose(0, 2, 1)
    apart = parts.means - mean
    whole = np.tensordot(parts.weights, covariances, axes=1) + (parts.weights * apart.T) @ apart
    return Parts(np.ones(1), mean[None], np.asarray(np.linalg.cholesky(whole))[None], parts.kind)


class NoisyStatistics(MixtureStatistics):
    """Statistics of rows within bounds, of which every worker adds noise to its own.

    Units of fitting are about ``whole``, the mean and spread of all rows as all know them, of which
    a feature has the standard deviation 1. ``releases`` says how often a worker may compute its
    statistic, with noise of these integer ``scales`` (P,) each time.
    """

    def __init__(
        self,
        rows: BoundedRows,
        layout: Residuals,
        whole: Parts,
        scaling: Scaling,  # of the units of the bounds, in the user's
        settings: FedMixtureSettings,
        counts: Indices,  # (n,) rows of all workers
        own: Indices,  # numbers of the workers of this process
        noise: Callable[[int], Noise],  # of a worker
        multiplier: float,
        releases: int,
    ) -> None:
        d, spread = layout.n_features, whole.spreads[0]
        covariance = np.diag(spread**2) if spread.ndim == 1 else spread @ spread.T
        self._widths = np.sqrt(np.diag(covariance))
        self._turn = np.diag(spread) if spread.ndim == 1 else spread
        self._turn = self._turn / self._widths[:, None]
        mine = Scaling(scaling.shift + scaling.scale * whole.means[0], scaling.scale * self._widths)
        blocks = Blocks.one(d, len(counts))
        none = FeatureTerms(
            np.empty((0, d)), blocks, settings.covariance_type, scaling=mine,
            reg_covar=floors_of(settings.reg_covar, settings.scale, mine),
            n_threads=thread_count(settings.n_threads),
        )  # fmt: skip
        assert settings.floor is not None
        super().__init__(
            none, [slice(0, 0)] * len(counts), layout.n_components,
            covariance / np.outer(self._widths, self._widths), counts=counts,
            floor=settings.floor, largest=lambda _: sqrt(layout.radius),
        )  # fmt: skip
        self.is_judged = False
        self.rows, self.layout, self.whole = rows, layout, whole
        self._place = {int(worker): place for place, worker in enumerate(own)}
        self._noise = {worker: noise(worker) for worker in self._place}
        self._left = dict.fromkeys(self._place, releases)
        grid = rows.grid
        self.scales = scales_of(layout.deviations(), multiplier, grid.unit, rounds=grid.rounds)

    def parts_of(self, mixture: Mixture) -> Parts:
        """Components of a mixture in the units of the bounds."""
        k, d = self.n_components, self.n_features
        means = self.whole.means[0] + mixture.means * self._widths
        if self.is_diagonal:
            spreads = np.sqrt(mixture.covariances.reshape(k, d)) * self._widths
        else:
            (matrices,) = mixture.covariance_blocks
            spreads = np.linalg.cholesky(matrices) * self._widths[:, None]
        return Parts(mixture.weights[0], means, spreads, self.covariance_type)

    def sums(self, worker: int, parameters: Mixture) -> Doubles:
        """What a worker of this process would send without noise (P,), as `Residuals` lays it out.

        A row adds its residual about the mean of all rows, by its responsibilities, so that it is
        no longer than if it belonged to one component alone.
        """
        parts, grid = self.parts_of(parameters), self.rows.grid
        sums = ResidualSums(self.layout, grid)
        for rows in self.rows.chunks(self._place[worker]):
            z = self.whole.residuals(rows, 0)
            apart = [parts.residuals(rows, k) for k in range(self.n_components)]
            norms = np.stack([np.einsum("ij,ij->i", one, one) for one in apart], axis=1)
            sums.add([z] * self.n_components, parts.responsibilities(norms))
        return grid.sent(self.layout.packed(sums.counts, sums.firsts, sums.seconds))

    def expect(self, worker: int, parameters: Mixture, rows: Indices | None) -> Doubles:
        """Mean statistic (P,) of a worker with noise; zero of another process's."""
        if worker not in self._place:
            return np.zeros(self.size)
        if self._left[worker] < 1 or rows is not None:
            raise RuntimeError("a worker's statistic would be released more often than is paid for")
        self._left[worker] -= 1
        noise = self._noise[worker].of_scales(self.scales) * self.rows.grid.unit
        return self.in_units(self.sums(worker, parameters) + noise) / int(self.counts[worker])

    def in_units(self, message: Doubles) -> Doubles:
        """Turn sums as `Residuals` lays them out into those of the statistic (P,)."""
        counts, firsts, seconds = self.layout.unpacked(message)
        first, d = firsts @ self._turn.T, self.n_features
        if self.is_spherical:
            squares = seconds.sum(axis=1) + d * counts
        elif self.is_diagonal:
            squares = (seconds + counts[:, None]).ravel()
        else:
            full = seconds + counts[:, None, None] * np.eye(d)
            squares = (self._turn @ full @ self._turn.T)[:, *self._lower].ravel()
        return np.concatenate([counts, first.ravel(), squares])

    def of_parts(self, parts: Parts) -> Doubles:
        """Statistic (P,) of which an M-step makes these components."""
        means = (parts.means - self.whole.means[0]) / self._widths
        squares = []
        for weight, mean, spread in zip(parts.weights, means, parts.spreads, strict=True):
            root = (np.diag(spread) if spread.ndim == 1 else spread) / self._widths[:, None]
            squares.append(weight * self.second_moments(root @ root.T + np.outer(mean, mean)))
        first = parts.weights[:, None] * means
        return np.concatenate([parts.weights, first.ravel(), *squares])

    def objective(self, parameters: Mixture) -> float:
        """Not a number: it would be one more release."""
        return float("nan")


def _checked(
    network: Network,
    settings: FedMixtureSettings,
    weighted: bool = False,
    saved: bool = False,
    known: bool = False,
) -> None:
    algorithm = "vr-fedem" if settings.variance_reduction else "fedem"
    check_private(algorithm, settings, weighted=weighted, saved=saved)
    if known:
        raise InputError(
            "known covariances are in units of the data, and statistics with noise in those of "
            "their spread; leave them out, or ", Setting("epsilon"),
        )  # fmt: skip
    if settings.covariance_type.startswith("tied"):
        raise InputError(
            Setting("covariance_type", settings.covariance_type), " is what is left of second "
            "moments that are exchanged once, so that no iteration would average their noise; take "
            "diag or full, or leave out ", Setting("epsilon"),
        )  # fmt: skip
    if network.total.holders.masks is not None:
        raise InputError(
            Setting("secure_sum"), " hides what workers send, but with ", Setting("epsilon"),
            " each adds all of the noise to what it sends, so that masks would protect nothing "
            "more; leave it out, or share the noise by EM over rows",
        )  # fmt: skip
    refuse_directed(network, "differential privacy takes")
    if not network.total.at_server:
        raise InputError(
            Setting("epsilon"), " finds a start by sums at one place; take a star, or ",
            Setting("sum", "tree"),
        )  # fmt: skip


def run_private_fedem(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network | None,
    settings: FedMixtureSettings,
    privacy: PrivacySettings,
    codecs: tuple[Codec | None, Codec | None],  # of corrections, and of the first
    *,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    **others: bool,  # what else is given of `_checked`
) -> tuple[FedRun, FedMixtureSettings, Report]:
    """Run FedEM of statistics to which workers add noise.

    Parameters are those of `vpem.fit_fedem`, but there are as many iterations as a private fit of
    rows has by default, and neither callback nor run has log-likelihoods or mean fields, which the
    budget does not cover. With ``step_size`` "auto" steps fall in the second half, so that the
    result is a mean over its iterations. Returns the settings as they were taken, too, and what
    else a result says.
    """
    began = time.perf_counter()
    check_kind("the workers must be vpem.Workers", workers, Workers)
    network = network_of_all(network, workers.n_workers, "workers", workers.names)
    _checked(network, settings, **others)
    X, codec = as_matrix("data", X), codecs[0]
    settings = read_presence(settings, workers.names, network)
    participation = least_participation(settings.participation)
    exact = codec is None and participation == 1
    memory = "none" if exact else settings.memory
    n_iter, first = settings.max_iter or USUAL_ITERATIONS, memory == "first"
    n_samples, d = workers.n_samples, n_columns(X)
    foretold = Foretold(
        Budget.parse(privacy.epsilon, privacy.delta, n_samples), n_samples,
        Residuals(settings.covariance_type, settings.n_components, d), n_iter + first,
        sqrt(workers.n_workers), SKETCH,
    )  # fmt: skip
    bounds, repeatable = bounds_of(privacy.bounds, d), privacy.repeatable_noise
    releases, total, ledger = releases_of(
        X, workers, network, foretold, bounds, repeatable, feature_names, each=True
    )
    given = settings
    settings = settings.changed(
        n_threads=thread_count(settings.n_threads), tol=0.0,
        floor=max(FLOOR, min(LARGEST_FLOOR, foretold.variance)),
    )  # fmt: skip
    sent, n_agents = list[int](), total.holders.n_agents

    def report(progress: FedProgress) -> None:
        sent.append(total.bytes_sent)
        if callback is not None:
            callback(Progress(progress.iteration, float("nan"), None))

    with one_blas_thread(), np.errstate(over="ignore"):
        rng = np.random.default_rng([settings.seed, 0])
        found = find_start(releases, foretold.layout, n_samples, rng)
        start = share_start(found, total)
        whole = about_all_rows(start, foretold.layout.shape)
        model = NoisyStatistics(
            releases.rows, foretold.layout, whole,
            Scaling(bounds.mean(axis=0), np.ptp(bounds, axis=0) / 2), settings, workers.counts,
            total.holders.own, lambda worker: Noise(repeatable, n_agents + worker),
            foretold.multipliers[-1], len(releases.multipliers),
        )  # fmt: skip
        quantizer = Quantizer(codec, model.pieces, 1, model)
        base = safe_step(noise_of(quantizer), participation, settings.alpha)
        steps: Any = settings.step_size
        if isinstance(steps, str) and steps == "auto":
            steps = lambda iteration: base * length_of(iteration, n_iter)  # noqa: E731
        run = run_fedem(
            model, model.of_parts(start),
            settings.into(FedSettings, step_size=steps, max_iter=n_iter, memory=memory),
            codec=codec, first_codec=codecs[1], basis=model, network=network,
            ledger=ledger, rng=np.random.default_rng([settings.seed, 1]), callback=report,
        )  # fmt: skip
    facts = unjudged(1, n_samples, n_iter, began, ledger, sent) | {
        "network": network.whole,
        "guarantee": Guarantee(
            foretold.budget, tuple(foretold.multipliers), EACH, repeatable is not None, n_agents,
        ),
    }  # fmt: skip
    for name in ("n_samples", "root_log_likelihood"):
        del facts[name]
    return run, given.changed(memory=memory, alpha=None), facts
