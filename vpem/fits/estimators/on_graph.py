"""What every estimator does whose agents are on a graph: data, seed and graph by its parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from numbers import Integral
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from vpem.checks import (
    DIFFERENT,
    NEARLY,
    Floats,
    check_data,
    check_finite,
    check_int,
    missing_marks,
    no_measurement,
    read_float,
)
from vpem.errors import InputError, Setting, VpemWarning, shorten
from vpem.files.datasets import Dataset, default_names
from vpem.files.holdings import numbered
from vpem.files.models import match_features
from vpem.files.readers.common import MOST_NUMBERS
from vpem.fits.estimators.everyday import Everyday
from vpem.fits.estimators.families import columns_apart, names_of
from vpem.fits.prepare import MARGINALIZE
from vpem.network.graph import Graph, from_networkx, make_graph
from vpem.network.partition import Partition, contiguous, from_lists, one_or_each
from vpem.network.schema import Report
from vpem.records import Settings
from vpem.terms.missing_patterns import check_missing

Rows = ArrayLike | Dataset
"""What rows are given as: an array, a data frame, or a dataset."""

T = TypeVar("T", bound=Settings)


def _plain(value: Any) -> Any:
    """Return a parameter as JSON can hold it, or the name of its type where it cannot."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def validated(estimator: Any, X: Any, **how: Any) -> Floats:
    """Return rows by scikit-learn's ``validate_data``; its error names the column that is none."""
    X = columns_apart(X)
    try:
        data: Floats = validate_data(estimator, X, **how)
    except (TypeError, ValueError) as error:
        raise _no_number_in(X, how.get("reset", True), error) from None
    return data


def _no_number_in(X: Any, of_fit: bool, error: Exception) -> Exception:
    """Return the error of rows in which a column is no numbers, or the one there was."""
    for name, column, out in _columns(X):
        dated = column.dtype.kind in "mM"
        words = (one for one in column.tolist() if isinstance(one, str))
        word = None if dated else next((one for one in words if read_float(one) is None), None)
        if dated or word is not None:
            held = "dates or times, which are" if dated else f"{word!r}, which is"
            way = f"; leave it out: {out}" * of_fit
            some_alike = len({*map(str, column.tolist())}) < len(column)
            if of_fit and not dated and some_alike and names_of(X) is not None:
                way += ", or take text as categories, VPEM(family='auto')"
            return InputError(f"column {name!r} of X holds {held} no number{way}")
    return error


def _columns(X: Any) -> Iterator[tuple[Any, NDArray[Any], str]]:
    """Yield the columns of rows, with their names and what leaves each out."""
    names = names_of(X)
    if names is not None:
        for place, name in enumerate(names):
            column = X.iloc[:, place] if hasattr(X, "iloc") else X[name]
            yield name, np.asarray(column), f"X.drop(columns={name!r})"
        return
    with suppress(TypeError, ValueError):
        given = np.asarray(X)
        given = given if given.dtype.kind != "U" else np.asarray(X, dtype=object)
        for place in range(given.shape[1] if given.ndim == 2 else 0):
            yield place, given[:, place], f"np.delete(X, {place}, axis=1)"


def warn_of_columns(data: Floats, names: Sequence[str] | None) -> None:
    """Warn of columns that are hardly measurements, and of marks of missing values in them."""
    called = names or [f"column {place}" for place in range(data.shape[1])]
    why = {name: no_measurement(name, data[:, place]) for place, name in enumerate(called)}
    counts = [name for name, one in why.items() if one in (DIFFERENT, NEARLY)]
    why |= dict.fromkeys(counts if len(counts) > MOST_NUMBERS else (), "")
    odd = {name: repr(name) if names else name for name, one in why.items() if one}
    if odd:
        listed = shorten(f"{shown} ({why[name]})" for name, shown in odd.items())
        told = "is fitted, but may be no measurement; if it is none, leave it out"
        if len(odd) > 1:
            told = "are fitted, but may be no measurements; leave out those that are none"
        columns = ", ".join([*odd.values()][:5]) + ", ..." * (len(odd) > 5)
        how = f": X.drop(columns=[{columns}])" * (names is not None)
        warnings.warn(VpemWarning(f"{listed} {told}{how}"), stacklevel=4)
    for place, marks in missing_marks(data).items():
        name = repr(names[place]) if names else f"column {place}"
        warnings.warn(
            VpemWarning(
                f"{', '.join(marks)} in {name}: apart from all other values there; if this stands "
                "for missing values, make it NaN and fit with ",
                Setting("missing", "marginalize"),
            ),
            stacklevel=4,
        )


class OfSettings(Everyday):
    """Estimator whose parameters are settings of a recipe."""

    def _settings(self, record: type[T], **changes: Any) -> T:
        """Return a record of the parameters, as recipes take it, with changes."""
        given = vars(self)
        own = {one.name: given[one.name] for one in record.fields() if one.name in given}
        return record(**{**own, **changes})


class OnGraph(OfSettings):
    """Estimator with parameters ``graph`` and ``random_state``."""

    graph: Any
    random_state: Any

    def _validate(self, X: Rows, *, reset: bool) -> Floats:
        common: Any = {
            "dtype": [np.float64, np.float32], "ensure_all_finite": False, "ensure_min_samples": 1,
        }  # fmt: skip
        if isinstance(X, Dataset):
            data = self._of_dataset(X, reset, common)
        else:
            data = validated(self, X, reset=reset, **common)
            if reset:
                warn_of_columns(data, list(getattr(self, "feature_names_in_", ())) or None)
        names = getattr(self, "feature_names_in_", None)
        finite: Any = partial(check_finite, advice=MARGINALIZE)
        if getattr(self, "missing", "refuse") == "marginalize":
            finite = check_missing
        names = None if names is None else list(names)
        return check_data(data, data.shape[1], names, finite=finite)

    def _of_dataset(self, given: Dataset, reset: bool, common: dict[str, Any]) -> Floats:
        """Return the rows of a dataset, whose columns are found by their names."""
        rows: Floats = given.X[:]
        if reset:
            data: Floats = validate_data(self, rows, reset=True, **common)
            if given.feature_names != default_names(given.n_features):
                self.feature_names_in_ = np.array(given.feature_names, dtype=object)
            return data
        known: Any = SimpleNamespace(feature_names=self._names(self.n_features_in_))
        columns = match_features(known, given.feature_names)
        return rows if columns is None else np.ascontiguousarray(rows[:, columns])

    @staticmethod
    def _weights_of(X: Any, sample_weight: Any) -> Floats | None:
        """Return the weights of the rows: those of a dataset, where no others are given."""
        if sample_weight is None and isinstance(X, Dataset):
            return X.sample_weight
        return None if sample_weight is None else np.asarray(sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = getattr(self, "missing", "refuse") == "marginalize"
        return tags

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral) and not isinstance(self.random_state, bool):
            return check_int("random_state", self.random_state, least=0)
        if isinstance(self.random_state, np.random.Generator):
            return int(self.random_state.integers(np.iinfo(np.int32).max))
        try:
            state = check_random_state(self.random_state)
        except ValueError:
            raise InputError(
                "random_state must be None, an integer of at least 0, a Generator or RandomState, "
                f"got {self.random_state!r}"
            ) from None
        return int(state.randint(np.iinfo(np.int32).max))

    def _names(self, n_features: int) -> tuple[str, ...]:
        """Names of the features, those of the data frame of `fit` if there was one."""
        names = getattr(self, "feature_names_in_", None)
        return default_names(n_features) if names is None else tuple(map(str, names))

    def _options(self) -> Report:
        """Return the parameters as JSON can hold them: the type's name of what it cannot."""
        return {name: _plain(value) for name, value in self.get_params(deep=False).items()}

    def _refuse_unfitted(self, attribute: str) -> None:
        """Raise InputError where there is nothing yet that a file could keep."""
        if not hasattr(self, attribute):
            raise InputError(f"this {type(self).__name__} is not fitted: call fit first")

    def _graph(self, n_agents: int, seed: int) -> Graph:
        if isinstance(self.graph, Graph):
            return self.graph
        if self.graph is None or isinstance(self.graph, str):
            return make_graph(self.graph or "star", n_agents, seed=seed)
        if hasattr(self.graph, "edges") and hasattr(self.graph, "nodes"):
            return from_networkx(self.graph, n_agents)
        raise InputError(
            f"graph must be a topology's name, a networkx graph or a vpem.Graph, got {self.graph!r}"
        )

    def _partition_of(self, agents: Any, n_features: int, networked: bool) -> Partition:
        """Who holds which features, of a parameter ``agents``."""
        if agents is None:
            return one_or_each(n_features, networked)
        if isinstance(agents, Partition):
            return agents
        if isinstance(agents, Integral):
            return contiguous(n_features, check_int("agents", agents, least=1))
        called = [str(name) for name in agents] if isinstance(agents, Mapping) else None
        parts = list(agents.values()) if isinstance(agents, Mapping) else agents
        parts = parts.tolist() if isinstance(parts, np.ndarray) else parts
        if isinstance(parts, Sequence) and not isinstance(parts, str):
            known = getattr(self, "feature_names_in_", None)
            known = None if known is None else list(known)
            return from_lists(numbered(parts, known), n_features, called, known)
        raise InputError(
            "agents must be None, a number of agents, the features of each agent by its name, "
            f"{{'lab': ['ast', 'alt'], ...}}, or a list of lists of features, got {agents!r}"
        )
