"""Streams of batches, each of rows that come once: what estimators share, and FedEM's."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Doubles, Floats, Mask, check_int, check_weights
from vpem.errors import InputError
from vpem.fits.estimators.base import OnGraph, Rows, workers_of
from vpem.fits.fedem import FedFit, fit_next_batch
from vpem.fits.prepare import prior_of_penalty
from vpem.network.partition import Workers, evenly, from_worker_of_row
from vpem.settings import FedMixtureSettings
from vpem.terms.fedem_statistics import FLOOR

UNTRACED = "a trace follows one fit to the same rows"


def refuse_in_streams(estimator: object, reasons: Mapping[str, str]) -> None:
    """Raise InputError where a parameter that is given makes no sense for a stream."""
    for name, why in reasons.items():
        if getattr(estimator, name) not in (None, False):
            raise InputError(f"partial_fit does not take {name}: {why}; leave it out")


def used_in_batch(data: Floats, sample_weight: ArrayLike | None) -> tuple[Mask, Doubles | None]:
    """Return which rows (m,) of a batch have a value and a weight, and the weights of these."""
    used: Mask = np.asarray(~np.isnan(data).all(axis=1))
    if sample_weight is None:
        return used, None
    weights = check_weights(np.asarray(sample_weight), len(data))
    used &= weights > 0
    return used, weights[used]


class FedStream(OnGraph):
    """What `vpem.FedEM` has for streams: `partial_fit`, and what it refuses."""

    workers: object
    floor: float | None
    compress: Any
    covariance_type: str
    known_covariance: object
    fit_: Any
    n_batches_seen_: int
    _draws: np.random.Generator
    _dtype: np.dtype[np.floating]

    def _fit(
        self, data: Floats, workers: Workers, options: Mapping[str, Any], **known: Any
    ) -> FedFit:
        """Fit to rows of workers, with options in the place of parameters."""
        raise NotImplementedError

    def _take(self, fit: FedFit, dtype: np.dtype[np.floating]) -> FedFit:
        """Take a result, to be shown in this precision."""
        raise NotImplementedError

    def partial_fit(
        self,
        X: Rows,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        workers: object = None,
    ) -> Self:
        """Fit the mixture to the next batch of a stream: the online setting of FedEM.

        The first batch starts the mixture (`init` and one iteration on it) and fixes the graph, the
        workers, their shares in means and the units; it should hold many rows per component. In the
        t-th batch each worker takes the mean statistic of its new rows in the place of that of all
        it holds, and sends how it differs from what its memory predicts. Steps of "auto" are
        ``t^-0.6`` (Cappe and Moulines 2009), or as long as noise of codec and absent workers
        allows. A schedule of `participation` goes batch by batch. Statistic, memories and limits
        are kept, and no rows. After `fit` batches go on from its statistic.

        `max_iter`, `tol` and `record_every` have no meaning for a stream.

        Parameters
        ----------
        X : array of shape (m, d)
            One row a sample.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (m,), optional
            Weight of each row.
        workers : object, optional
            Who has which rows of this batch, as the parameter of this name; by default that. Those
            of the first batch that have none are absent.

        Returns
        -------
        FedEM
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        NumericalError
            If noise outgrows the steps.

        Notes
        -----
        Source: Dieuleveut, Fort, Moulines, Robin (2021), Algorithm 1 under A 7, whose oracle is
        here the mean over a worker's new rows.
        """
        self._refuse_stream()
        first = not hasattr(self, "mixture_")
        if not first and (not hasattr(self, "fit_") or self.fit_.units is None):
            raise InputError(
                "partial_fit goes on from a fit in this process, but a file keeps the model only; "
                "call fit with init set to its mixture to start from it"
            )
        data = self._validate(X, reset=first)
        weights = self._weights_of(X, sample_weight)
        given = self.workers if workers is None else workers
        if first:
            floor = FLOOR if self.floor is None else self.floor
            options = {"max_iter": 1, "tol": 0.0, "floor": floor}
            known: dict[str, Any] = {"sample_weight": weights, "feature_names": self._given_names}
            self._fit(data, workers_of(given, len(data)), options, **known)
            return self
        held, names = self._workers_of_batch(given, len(data)), self.fit_.workers.names
        used, weights = used_in_batch(data, weights)
        units = self.fit_.units
        if not used.any():
            raise InputError("no row of this batch has a value and a positive weight; leave it out")
        if not used.all():
            data, held = data[used], held.of_rows(np.flatnonzero(used))
        if new := [names[at] for at in np.flatnonzero((held.counts > 0) & (units.counts == 0))]:
            raise InputError(
                f"{', '.join(map(repr, new))} had no rows in the first batch, which set the shares "
                "of workers; begin with a batch of which each has some"
            )
        if units.is_diagonal and units.there is None and np.isnan(data).any():
            raise InputError(
                "values are missing, but not in the first batch of the stream, so that messages "
                "have no room for the weights of features; begin with a batch that lacks some, or "
                "take full covariances"
            )
        compress = self.compress if self.fit_.network.total.at_server else None
        t = self.n_batches_seen_ + 1
        settings = self._settings(FedMixtureSettings, seed=0, compress=compress)
        draws = deepcopy(self._draws)
        fit = fit_next_batch(self.fit_, data, held, weights, settings, batch=t, rng=draws)
        self.n_batches_seen_, self._draws, self.workers_ = t, draws, held
        self._take(fit, self._dtype)
        return self

    def _refuse_stream(self) -> None:
        refuse_in_streams(self, {
            "batch_size": "a worker takes all rows of the batch that it is given",
            "variance_reduction": "it begins again with all rows, which a stream does not have",
            "n_epochs": "a stream has no epochs",
            "epsilon": "every batch would spend as much of the privacy budget as all rows do",
            "random_stop": "a stream ends when no batch follows",
            "keep_trace": UNTRACED,
            "secure_sum": "masks are of numbers in a range, which would be that of the first batch",
        })  # fmt: skip
        if prior_of_penalty(self._settings(FedMixtureSettings, seed=0)) is not None:
            raise InputError(
                "partial_fit does not know how many rows there will be, against which a penalty is "
                "weighed; call fit, or leave out the penalty"
            )
        if self.covariance_type.startswith("tied") and self.known_covariance is None:
            raise InputError(
                "a tied covariance is made of the second moments of all rows, which a stream does "
                "not have; take covariance_type full, diag or spherical, or a known_covariance"
            )

    def _workers_of_batch(self, given: object, n_samples: int) -> Workers:
        """Return who has which rows of a batch, of the workers of the first."""
        names = self.fit_.workers.names
        if isinstance(given, Integral):
            held = evenly(n_samples, check_int("workers", given, least=1))
            held = Workers(held.rows, names) if held.n_workers == len(names) else held
        elif np.asarray(given).dtype.kind in "iu" and not isinstance(given, Workers | Mapping):
            held = from_worker_of_row(np.asarray(given), names)
        else:
            held = workers_of(given, n_samples)
        if held.n_samples != n_samples:
            raise InputError(
                f"workers are those of {held.n_samples} rows, but this batch has {n_samples}; give "
                "them with each batch: partial_fit(X, workers=...)"
            )
        place = {name: at for at, name in enumerate(names)}
        if new := [name for name in held.names if name not in place]:
            raise InputError(
                f"a batch has worker {new[0]!r}, but the first had {', '.join(map(repr, names))}"
            )
        return from_worker_of_row(
            np.array([place[name] for name in held.names])[held.worker_of], names
        )
