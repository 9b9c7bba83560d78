"""Rows of a Dask DataFrame or Array, or of a Ray Dataset: fits where they are, lazy predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import AnyArray
from vpem.errors import InputError, Setting
from vpem.fits.estimators.base import OnGraph, Rows, validated
from vpem.fits.settings import PrivacySettings
from vpem.records import setting
from vpem.settings import FitSettings, SumSettings

if TYPE_CHECKING:
    from vpem.engines.cluster import DaskCluster, RayCluster

    Base: Any
else:
    Base = OnGraph


class DaskRows:
    """Partitions of a Dask DataFrame, Series or Array."""

    def __init__(self, X: Any, client: Any = None) -> None:
        self._client = client
        self.counts: Sequence[float] = [np.nan] * X.npartitions
        if hasattr(X, "chunks"):
            if X.ndim > 1 and X.numblocks[1] > 1:
                X = X.rechunk({1: -1})
            self.counts = X.chunks[0]
        self._collection = X
        self.like = X._meta
        if hasattr(X, "chunks"):
            self.like = np.empty((0, *X.shape[1:]), X.dtype)
        self.parts = list(np.ravel(X.to_delayed()))

    def cluster(self) -> DaskCluster:
        """Return the workers, those first that have the first partitions already."""
        from distributed import default_client, futures_of

        from vpem.engines.cluster import DaskCluster

        client = self._client
        if isinstance(client, str):
            client = DaskCluster.at(client, None).client
        try:
            client = client or default_client()
        except ValueError:
            raise InputError(
                "there is no Dask cluster: make a distributed.Client first, or name its scheduler "
                "with ", Setting("client"),
            ) from None  # fmt: skip
        cluster = DaskCluster(client)
        places: dict[str, list[int]] = {}
        for key, holders in client.who_has(futures_of(self._collection)).items():
            if isinstance(key, tuple):
                for holder in holders:
                    places.setdefault(holder, []).append(key[1])
        cluster.names.sort(key=lambda name: np.mean(places.get(name, len(self.parts))))
        return cluster

    def apply(self, model: Any, method: str, like: AnyArray) -> Any:
        """Return what a fitted model says of rows, as a lazy Array of rows as of another."""
        import dask
        import dask.array as da

        known = dask.delayed(model)
        call = dask.delayed(partial(_call, method), pure=True)
        return da.concatenate([
            da.from_delayed(call(known, part), shape=(count, *like.shape[1:]), dtype=like.dtype)
            for part, count in zip(self.parts, self.counts, strict=True)
        ])  # fmt: skip

    def each(self, call: Callable[..., Any], model: Any, *beside: Sequence[Any]) -> Any:
        """Return what a function of a model says of each partition, and of what is beside it."""
        import dask

        known, at_worker = dask.delayed(model), dask.delayed(call)
        return dask.compute(
            *(at_worker(known, *all) for all in zip(self.parts, *beside, strict=True))
        )


class RayRows:
    """Blocks of a Ray Dataset of numbers in columns."""

    def __init__(self, X: Any) -> None:
        import pyarrow as pa

        schema = X.schema()
        columns = pa.schema([*zip(schema.names, schema.types, strict=True)])
        self.like = columns.empty_table().to_pandas()
        self._data = X

    @cached_property
    def parts(self) -> list[Any]:
        import ray

        options = ray.data.DataContext.get_current().execution_options
        before, options.preserve_order = options.preserve_order, True
        try:
            return list(self._data.to_pandas_refs())
        finally:
            options.preserve_order = before

    def cluster(self) -> RayCluster:
        """Return the processes of the cluster that has the blocks."""
        from vpem.engines.cluster import RayCluster

        return RayCluster()

    def apply(self, model: Any, method: str, like: AnyArray) -> Any:
        """Return what a fitted model says of rows, as a lazy Dataset of one column."""
        call = partial(_column, model, method)
        return self._data.map_batches(call, batch_format="pandas", batch_size=None)

    def each(self, call: Callable[..., Any], model: Any, *beside: Sequence[Any]) -> Any:
        """Return what a function of a model says of each block, and of what is beside it."""
        import ray

        known, at_worker = ray.put(model), ray.remote(call)
        return ray.get(
            [at_worker.remote(known, *all) for all in zip(self.parts, *beside, strict=True)]
        )


def bare(model: Any) -> Any:
    """Return a fitted estimator with nothing but what it predicts by."""
    bare = copy(model)  # without its client
    for name in ("fit_", "trace_", "history_", "workers_"):
        vars(bare).pop(name, None)
    return bare


def _call(method: str, model: Any, part: Any) -> Any:
    if not len(part):
        return getattr(model, method)(np.zeros((1, model.n_features_in_), model._dtype))[:0]
    return getattr(model, method)(part)


READ = partial(validated, ensure_min_samples=0)
"""Returns rows, perhaps none, as numbers, which are looked at where all are."""

COLUMNS = {
    "predict": "component", "predict_proba": "responsibilities", "score_samples": "log_likelihood"
}  # fmt: skip
"""What columns are called that methods return."""


def _column(model: Any, method: str, part: Any) -> dict[str, Any]:
    return {COLUMNS[method]: _call(method, model, part)}


def _total(model: Any, part: Any, weights: Any) -> tuple[float, float]:
    if not len(part):
        return 0.0, 0.0
    _, total, used = model._scores(part, None if weights is None else np.ravel(weights))
    return total, used


def collection_of(X: Any, client: Any = None) -> Any:
    """Return the partitions of a collection of a framework; None of anything else."""
    home = type(X).__module__.partition(".")[0]
    if home == "dask" and hasattr(X, "_meta") and X.ndim:
        return DaskRows(X, client)
    return RayRows(X) if home == "ray" and hasattr(X, "map_batches") else None


def _weights_beside(rows: Any, sample_weight: Any) -> list[Any] | None:
    """Return partitions of weights, which are to be those of rows; None where rows have none."""
    if sample_weight is None:
        return None
    weights = collection_of(sample_weight)
    if type(weights) is not type(rows) or len(weights.parts) != len(rows.parts):
        raise InputError(
            Setting("sample_weight"), f" is to be a collection as X is, in its {len(rows.parts)} "
            "partitions; make it of X, or repartition it as X",
        )  # fmt: skip
    parts: list[Any] = weights.parts
    return parts


class OverClusters(Base):
    """Estimator of rows that also fits collections of a framework."""

    client: object = setting(
        None,
        "The distributed.Client whose workers fit a Dask DataFrame or Array, or the address of its "
        "scheduler, ``tcp://HOST:PORT``. None: the client made last.",
    )

    def fit(self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows, also to those of a Dask or Ray collection at the workers that have them.

        Parameters
        ----------
        X : array of shape (M, d), data frame, Dataset, or collection
            One row per sample; a dataset brings names of features and weights of rows. A collection
            is a Dask DataFrame or Array, or a Ray Dataset; every partition of it is a worker, and
            no row leaves the processes of its cluster.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (M,), optional
            Weight of each row; of a collection one in the same partitions.

        Returns
        -------
        object
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        NumericalError
            If a computation has no finite answer.
        StalledError
            If the framework, or the last of its workers, is gone.
        """
        rows = collection_of(X, self.client)
        if rows is None:
            fitted: Self = super().fit(X, y, sample_weight)
            return fitted
        from vpem.fits.clusters import Recipe, fit_over

        self._refuse_on_clusters()
        weights = _weights_beside(rows, sample_weight)
        from sklearn.base import BaseEstimator

        like, reader = READ(self, rows.like, reset=True), BaseEstimator()
        READ(reader, rows.like, reset=True)
        seed, lines = self._seed(), self._lines()
        recipe = Recipe(
            partial(READ, reader, reset=False), hasattr(rows.like, "columns"), like.shape[1],
            self._given_names, len(rows.parts),
            self._settings(FitSettings, seed=seed, **self._start(like)),
            self._settings(SumSettings, seed=seed), self._settings(PrivacySettings),
        )  # fmt: skip
        fit = fit_over(rows.cluster(), recipe, rows.parts, weights, lines)
        self._take_rows(fit, like.dtype)
        if lines is not None:
            lines.end(fit)
        return self

    def predict(self, X: Rows) -> Any:
        """Most responsible component of each row, shape (M,); of a collection a lazy array."""
        return self._say(X, "predict")

    def predict_proba(self, X: Rows) -> Any:
        """Responsibilities of each row, shape (M, K); of a collection a lazy array."""
        return self._say(X, "predict_proba")

    def score_samples(self, X: Rows) -> Any:
        """Log-likelihood of each row, in nats, shape (M,); of a collection a lazy array."""
        return self._say(X, "score_samples")

    def _say(self, X: Rows, method: str) -> Any:
        """Return what a method of the base class says of rows, of a collection lazily."""
        rows = self._collection(X)
        if rows is None:
            return getattr(super(), method)(X)
        model = bare(self)
        return rows.apply(model, method, _call(method, model, ()))

    def _collection(self, X: Rows) -> Any:
        """Return rows in partitions whose columns are those of the fit; None of rows here."""
        rows = collection_of(X)
        if rows is not None:
            self._check_fitted("mixture_")
            READ(self, rows.like, reset=False)
        return rows

    def _scores(self, X: Rows, sample_weight: Any = None) -> Any:
        """Return what the base class does; of a collection no log-likelihoods of its rows."""
        rows = self._collection(X)
        if rows is None:
            return super()._scores(X, sample_weight)
        weights = _weights_beside(rows, sample_weight) or [None] * len(rows.parts)
        total, used = np.array(rows.each(_total, bare(self), weights)).sum(axis=0).tolist()
        return np.empty(0), total, used

    def __getstate__(self) -> Any:
        """Return what is pickled: a client is not, but the address of a scheduler is."""
        state = super().__getstate__()
        return state | {"client": state["client"] if isinstance(self.client, str) else None}

    def __sklearn_clone__(self) -> Self:
        fresh: Self = super(OverClusters, copy(self)).__sklearn_clone__()
        fresh.client = self.client
        return fresh

    def _refuse_on_clusters(self) -> None:
        """Raise InputError where a parameter has no meaning for partitions of a collection."""
        if self.workers != 1:
            raise InputError(
                Setting("workers"), " are the partitions of X; leave it out, or call repartition"
            )
        if self.graph != "star":
            raise InputError(
                Setting("graph"), " joins workers, but those of a framework are at one place, "
                "where sums are exact; leave it out",
            )  # fmt: skip
        if self.secure_sum:
            raise InputError(
                Setting("secure_sum"), " hides workers' rows from each other, but all of a "
                "framework are its user's; leave it out",
            )  # fmt: skip
