"""What Python programs do with fits and files of them: open, draw, report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from vpem.checks import check_data
from vpem.errors import FileError, InputError
from vpem.files import checkpoints, observations
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, powers_for
from vpem.files.hdf5 import INDIVIDUALS, SAEM_FIT, attribute_of
from vpem.files.models import Model, match_features, read_model
from vpem.files.opening import PathLike
from vpem.files.results import Imputed, StoredClustering, read_clustering, read_imputed
from vpem.files.traces import Trace, is_lines, read_trace
from vpem.terms.rows import check_missing
from vpem.terms.units import power_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vpem.pictures.figure import Picture
    from vpem.pictures.page import Data
    from vpem.pictures.saved import Saved


T = TypeVar("T")


@overload
def load(path: PathLike) -> Any: ...


@overload
def load(path: PathLike, kind: type[T]) -> T: ...


def load(path: PathLike, kind: type[T] | None = None) -> Any:
    """Open a file: whatever it holds, ready for use.

    Parameters
    ----------
    path : path
        The file.
    kind : type, optional
        What it must hold, such as `vpem.VPEM`: type checkers then know what is returned.

    Returns
    -------
    VPEM, DistributedGaussianMixture, FedEM, DiscriminantAnalysis or DistributedKMeans
        Of a model or a clustering: fitted, so that it predicts (`read_model` has what is in the
        file). Of a fit of SAEM what `read_saem` returns, of an imputation its matrix
        (`vpem.files.results.Imputed`), of data a `Dataset`, `Observations` or `Individuals`;
        what vpem has not written is read as data, by `read_dataset`.

    Raises
    ------
    FileError
        If the file cannot be read, is a checkpoint, or does not open as ``kind``.

    Examples
    --------
    >>> import vpem
    >>> model = vpem.load("model.h5", vpem.VPEM)  # doctest: +SKIP
    >>> model.predict(X)  # doctest: +SKIP
    """
    opened = _opened(path)
    if kind is not None and not isinstance(opened, kind):
        raise FileError(
            f"{path} opens as {type(opened).__name__}, not as {kind.__name__}; leave the kind out "
            "to take whatever it holds"
        )
    return opened


def _opened(path: PathLike) -> Any:
    encoding = Trace.encoding if is_lines(path) else attribute_of(path)
    if encoding == Trace.encoding:
        return read_trace(path)
    if encoding == Model.encoding:
        from vpem.fits.estimators.mixtures import estimator_of

        if (model := read_model(path)).powers is not None:
            raise FileError(
                f"{path} is a model of features after a power transform, which estimators do not "
                "make; open it with vpem.read_model"
            )
        if "discriminant" in model.report:
            from vpem.fits.estimators.discriminant import discriminant_of

            return discriminant_of(model)
        return estimator_of(model)
    if encoding == StoredClustering.encoding:
        from vpem.fits.estimators.clustering import kmeans_of

        return kmeans_of(read_clustering(path))
    if encoding == SAEM_FIT:
        from vpem.saem.formats.fits import read_saem

        return read_saem(path)
    if encoding == INDIVIDUALS:
        from vpem.saem.formats.individuals import read_individuals

        return read_individuals(path)
    if encoding == Imputed.encoding:
        return read_imputed(path)
    if encoding == observations.ENCODING:
        return observations.read_observations(path)
    if encoding == checkpoints.ENCODING:
        raise FileError(f"{path} is a checkpoint, with which only its own run can go on")
    return read_dataset(path)


def plot(
    model: Any,
    kind: str | None = None,
    X: Any = None,
    y: Any = None,
    *,
    features: Sequence[object] | None = None,
    most: int | None = None,
    ax: Axes | None = None,
    over: Sequence[Any] = (),
    directions: float | None = None,
) -> Picture:
    """Draw a fit, as `vpem plot` does.

    Parameters
    ----------
    model : fitted estimator, what a recipe or a reader returns, list of Trace, or path
        What to draw; of several traces the median.
    kind : str, optional
        What to show of it, such as "profile", "projection", "marginals" or "history"; any other is
        refused with those that there are. Default: the first that there is.
    X : array of shape (M, d), data frame, Dataset or Individuals, optional
        Data to hold it against; some kinds need them.
    y : array of shape (M,), optional
        Known classes of the rows. Default: the labels of a Dataset.
    features : sequence of str or int, optional
        Which to draw, where some are drawn.
    most : int, optional
        Individuals of "curves".
    ax : matplotlib.axes.Axes, optional
        Where to draw a kind that has one panel. Default: a figure of its own.
    over : sequence of fits or paths, optional
        Others that "marginals" or "history" lay over the first; histories of fits that were made
        alike are averaged.
    directions : float, optional
        The plane of "projection" is that of `vpem.Mixture.directions`, with this share of the
        means, from 0 to 1. Default: Fisher's linear discriminants.

    Returns
    -------
    Picture
        It shows itself in notebooks; ``save(path)`` writes it, ``figure`` is matplotlib's.

    Raises
    ------
    InputError
        If it cannot be drawn of that fit, or needs data or labels that are not there.

    Examples
    --------
    >>> import numpy as np, vpem
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = vpem.VPEM(2, agents=1).fit(X)
    >>> vpem.plot(model, "pairs", X).save("pairs.png")  # doctest: +SKIP
    """
    from vpem.pictures.page import draw, kinds_of

    saved = _saved(model)
    data = _data(model, saved, X, y)
    kind = kind or next(iter(kinds_of(saved)))
    features = None if features is None else list(map(str, features))
    laid = [_saved(one) for one in over] or None
    return draw(
        kind, saved, data, features=features, most=most, ax=ax, over=laid, directions=directions
    )


def report(
    model: Any, X: Any = None, path: PathLike = "report.html", y: Any = None, *, force: bool = False
) -> Path:
    """Write a page on a fit, with all pictures, as `vpem report` does.

    Parameters
    ----------
    model, X, y
        As for `plot`.
    path : path
        An .html file, which needs no network; written completely or not at all.
    force : bool
        Replace an existing file.

    Returns
    -------
    Path
        Where it is.

    Raises
    ------
    InputError
        If there are no pages of such fits, or the data do not fit the model.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    from vpem.pictures.page import write_page

    saved = _saved(model)
    write_page(path, saved, _data(model, saved, X, y), force=force)
    return Path(path)


def in_html(fit: Any) -> str:
    """Return what a notebook shows of a fit: warnings, and the first section of its page."""
    from vpem.pictures.page import contents_of, show_item

    items: list[Any] = []
    for section in contents_of(_saved(fit)).sections:
        items += section.items
        if section.name != "warnings":
            break
    return "".join(map(show_item, items))


def _saved(model: Any) -> Saved:
    """Return what a file would keep of a fit, as a file of that name would be read."""
    from vpem.fits.mixture_imputation import imputed_of
    from vpem.fits.observers import Completed
    from vpem.pictures.saved import KINDS_OF_FITS, read_saved, saved_of

    if isinstance(model, str | os.PathLike):
        return read_saved(model)
    kept = model
    if isinstance(model, list | tuple) and all(isinstance(one, Trace) for one in model):
        return KINDS_OF_FITS[Trace.encoding][1]("these traces", *model)
    if callable(getattr(model, "kept", None)) and not isinstance(model, type):
        kept = model.kept()
    if isinstance(kept, Completed):
        kept = imputed_of(kept)
    if getattr(kept, "encoding", None) not in KINDS_OF_FITS:
        raise InputError(
            "pictures are of a fitted estimator, a Model, a StoredClustering, a fit of SAEM, "
            f"an imputation, a trace or several, or a file, got {type(model).__name__}"
        )
    return saved_of(f"this {type(model).__name__}", kept)


def _data(model: Any, saved: Saved, X: Any, y: Any) -> Data | None:
    from vpem.pictures.saved import EvaluationData, SavedFit

    if isinstance(X, str | os.PathLike):
        raise InputError(f"X are rows, not the name of a file; give vpem.read_dataset({str(X)!r})")
    if X is None:
        if y is not None:
            raise InputError("y are the known classes of the rows of X; give X too")
        return None
    if not saved.units:
        raise InputError(f"{saved.holds} is shown with its own data: leave out X")
    if not isinstance(saved, SavedFit):
        from vpem.saem.individuals import Individuals

        if isinstance(X, Individuals):
            return X
        raise InputError(
            "a fit of SAEM is held against Individuals (vpem.read_individuals), got "
            f"{type(X).__name__}"
        )
    labels = y
    if isinstance(X, Dataset):
        labels, names, rows = X.labels if y is None else y, X.feature_names, X.X
    elif hasattr(model, "get_params"):
        names, rows = saved.feature_names, model._validate(X, reset=False)
    else:
        found = getattr(X, "columns", None)
        names = saved.feature_names if found is None else tuple(map(str, found))
        rows = check_data(np.asarray(X), len(names), finite=check_missing)
    columns = match_features(saved.feature_names, names)
    rows = rows if columns is None else np.ascontiguousarray(rows[:, columns])
    data = X if isinstance(X, Dataset) else Dataset(rows, saved.feature_names)
    powers = powers_for(saved.stored, data, columns if data is X else None)
    rows = rows if powers is None else power_rows(rows, powers)[0]
    return EvaluationData(rows, None if labels is None else np.asarray(labels), "X")
