"""Mixtures of rows that come in batches, one after the other."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Floats, check_number, check_weights
from vpem.errors import InputError, NotConvergedWarning
from vpem.files.datasets import Dataset
from vpem.fits.estimators.by_em import FittedByEM
from vpem.fits.estimators.on_graph import Rows
from vpem.fits.stream import fit_next
from vpem.steps.batches import STEP_SIZE
from vpem.terms.missing_patterns import check_columns


class Streamed(FittedByEM):
    """What an estimator has that goes on from each batch to the next."""

    n_iter_: int
    n_batches_seen_: int
    family: Any
    weight_concentration_prior_type: str | None
    release_epsilon: float | None
    step_size: float | None
    reg_covar: float | str
    scale: str
    n_threads: int | None
    _weight_seen: float
    _draws: np.random.Generator
    _dtype: Any

    @abstractmethod
    def _fit(
        self,
        data: Floats,
        sample_weight: Any,
        kinds: Any = None,
        labels_for_fit: Any = None,
        stored: Dataset | None = None,
        **options: Any,
    ) -> Self:
        """Fit anew, on the graph and with the hubs that parameters ask for, or a dataset has."""

    def partial_fit(self, X: Rows, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the mixture to the next batch of a stream, by stochastic EM.

        The first batch starts the mixture (`init` and one iteration of EM on it) and settles the
        graph, the hubs and the units; it should hold many rows a component. The t-th after it moves
        the statistics by ``(t + 1)^-step_size`` towards its own (Cappe and Moulines 2009). Nothing
        of a batch is kept but the parameters. After `fit` batches go on from its mixture.

        Parameters
        ----------
        X : array of shape (m, d)
            One row a sample.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (m,), optional
            Weight of each row.

        Returns
        -------
        VPEM
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        NumericalError
            If a computation has no finite answer.

        Warns
        -----
        VpemWarning
            If components collapsed and were placed anew.
        """
        if self.family is not None:
            raise InputError(
                "partial_fit takes Gaussian numbers alone: a batch need not have all levels, nor "
                "show what values are; call fit, or leave family out"
            )
        if self.weight_concentration_prior_type is not None:
            raise InputError(
                "partial_fit does not know how many rows there will be, and against those a prior "
                "is weighed; call fit, or leave weight_concentration_prior_type out"
            )
        if self.release_epsilon is not None:
            raise InputError(
                "partial_fit would pay for every batch, and noise is foretold for all rows "
                "together; call fit, or leave release_epsilon out"
            )
        size = STEP_SIZE if self.step_size is None else self.step_size
        size = check_number("step_size", size, least=0.5, most=1.0, above=True)
        first = not hasattr(self, "mixture_")
        if not first and not hasattr(self, "fit_"):
            raise InputError(
                "a stream goes on from a fit of this program, of which a file keeps the model "
                "alone; call fit with warm_start=True to start from it"
            )
        data = self._validate(X, reset=first)
        sample_weight = self._weights_of(X, sample_weight)
        if first:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConvergedWarning)
                one_step: dict[str, Any] = {"n_init": 1, "tol": 0, "max_iter": 1}
                one_step |= {"batch_size": None, "step_size": None}
                stored = X if isinstance(X, Dataset) else None
                return self._fit(
                    data, sample_weight, stored=stored, **(self._start(data) | one_step)
                )
        weights = None
        used = ~np.isnan(data).all(axis=1)
        if sample_weight is not None:
            weights = check_weights(np.asarray(sample_weight), len(data))
            used &= weights > 0
            weights = weights[used]
        if not used.all():
            data = data[used]
        names = getattr(self, "feature_names_in_", None)
        check_columns(data, names, "give batches in which every feature has a value")
        n_iter, t = self.n_iter_ + 1, self.n_batches_seen_ + 1
        fit = fit_next(
            replace(self.fit_, mixture=self.mixture_), data, weights, batch=t, exponent=size,
            weight_seen=self._weight_seen, draws=self._draws, reg_covar=self.reg_covar,
            scale=self.scale, n_threads=self.n_threads,
        )  # fmt: skip
        self.n_batches_seen_, self._weight_seen = t, self._weight_seen + fit.total_weight
        self._take(fit, self._dtype)
        self.n_iter_ = n_iter
        return self
