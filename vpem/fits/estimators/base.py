"""Common methods of estimators, and how data frames become rows of numbers.

Estimators save, sum up and show themselves, report progress, and take data, seed and graph by their
parameters. Data frames of pandas, polars or pyarrow are read as files of tables are: text becomes
codes, and their meaning is kept.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from datetime import date
from functools import partial
from html import escape
from numbers import Integral
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import (
    DIFFERENT,
    NEARLY,
    AnyArray,
    Floats,
    check_data,
    check_finite,
    check_int,
    missing_marks,
    no_measurement,
    read_float,
)
from vpem.errors import InputError, Setting, brief, did_you_mean, printable, shorten, warn
from vpem.files.datasets import Dataset, default_names, names_apart
from vpem.files.families import (
    FamilyChoice,
    levels_for_model,
    settle,
    words_for_model,
)
from vpem.files.models import match_features, write_model
from vpem.files.networks import numbered
from vpem.files.readers.frames import MOST_NUMBERS, LazyFrame, ReadOptions
from vpem.files.table_settings import TableSettings
from vpem.fits.answer import answer_of, as_table
from vpem.fits.estimators import Estimator, ProgressPrinter, describe_end, inherit, parameters_of
from vpem.fits.prepare import MARGINALIZE
from vpem.fits.results import Result
from vpem.network.graph import Graph, from_networkx, make_graph
from vpem.network.partition import (
    Partition,
    Workers,
    contiguous,
    evenly,
    from_lists,
    from_worker_of_row,
)
from vpem.network.schema import Report
from vpem.records import Settings, Table, describe_field, setting
from vpem.settings import TOPOLOGIES
from vpem.terms.families.kinds import Kinds
from vpem.terms.rows import check_missing

MEANT = {
    "agents": ("parties", "partition", "n_agents"),
    "compress": ("codec", "compression"),
    "covariance_type": ("covariance", "cov_type"),
    "graph": ("topology", "network"),
    "init": ("init_params", "initialization", "start"),
    "max_iter": ("n_iter", "iterations", "epochs", "max_iterations", "maxiter"),
    "n_clusters": ("k", "K", "n_components", "clusters", "centers"),
    "n_components": ("k", "K", "n_clusters", "components", "G", "n_mixtures"),
    "n_init": ("restarts", "n_restarts", "n_starts"),
    "n_rounds": ("rounds", "consensus_rounds"),
    "n_threads": ("n_jobs", "threads"),
    "n_workers": ("workers", "clients", "observers"),
    "random_state": ("seed", "random_seed"),
    "rank": ("k", "n_components", "n_factors"),
    "reg_covar": ("ridge", "regularization", "reg"),
    "ridge": ("alpha", "regularization", "lam", "lambda_"),
    "tol": ("tolerance", "eps", "threshold"),
    "workers": ("clients", "sites", "n_workers", "n_clients"),
}
"""What users call parameters, by what they are called here."""


def dataset_for_fit(X: Any, family: Any, partition_of: Callable[[Dataset], Partition]) -> Dataset:
    """Return rows (M, d) with the family of each feature, by the parameter ``family``.

    ``partition_of`` returns, of the dataset, who holds which features.
    """
    X = columns_apart(X)
    names = names_of(X)
    if names is None and np.ndim(X) == 2:
        names = list(default_names(np.shape(X)[1]))
    choice = FamilyChoice.parse(family, names)
    dataset = _read(X, choice, lenient=False)
    return dataset if choice is None else settle(dataset, choice, partition_of(dataset))


def dataset_for_model(X: Any, kinds: Kinds, names: Sequence[str], missing: str) -> Dataset:
    """Return rows (M, d) whose codes stand for the levels of a model; an array has codes.

    Levels that the model has never seen are missing values: refused, or taken with a warning.
    """
    X = columns_apart(X)
    if names_of(X) is None:
        return Dataset(np.asarray(X), default_names(np.shape(X)[1]), source="X")
    choice = FamilyChoice.parse(words_for_model(kinds, names))
    dataset = settle(_read(X, choice, lenient=True), choice, for_model=True)
    columns = match_features(tuple(names), dataset.feature_names)
    return levels_for_model(dataset, kinds, columns, missing)


def columns_apart(X: Any) -> Any:
    """Return a data frame whose columns have different names, and what is none as it is."""
    if not (hasattr(X, "columns") and hasattr(X, "set_axis")) or X.columns.is_unique:
        return X
    return X.set_axis(names_apart([str(name) for name in X.columns], "X"), axis=1)


def stored_in(X: object) -> Dataset | None:
    """Return rows that bring names and more with them; None: an array, or a data frame."""
    return X if isinstance(X, Dataset) else None


def names_of(X: Any) -> list[str] | None:
    """Return the names of the columns of a data frame or dataset, None of an array."""
    stored = stored_in(X)
    if stored is not None:
        return list(stored.feature_names)
    if not hasattr(X, "columns") and not hasattr(X, "__dataframe__"):
        return None
    if _numbers_of(X) and ((kinds := {*map(type, X.columns)}) == {str} or str not in kinds):
        return [*X.columns] if str in kinds else None
    from sklearn.utils.validation import _get_feature_names

    names = _get_feature_names(X)
    return None if names is None else [str(name) for name in names]


def _read(X: Any, choice: FamilyChoice | None, lenient: bool) -> Dataset:
    """Return rows as a dataset whose text is codes."""
    stored = stored_in(X)
    if stored is not None:
        return stored
    names = names_of(X)
    if names is None:
        array = np.asarray(X)
        return Dataset(array, default_names(array.shape[1]), source="X")
    import pyarrow as pa

    from vpem.files.readers.tabular import dataset_of

    try:
        # An index comes after the columns.
        arrow = pa.table(X) if hasattr(X, "__arrow_c_stream__") else pa.Table.from_pandas(X)
        columns = arrow.columns[: len(names)]
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"a column of X holds values of several types ({error})") from None

    def read(numbers: Sequence[int], as_text: Sequence[int]) -> list[pa.ChunkedArray]:
        return [columns[column] for column in numbers]

    kinds = tuple(column.type for column in columns)
    frame = LazyFrame("X", tuple(names), kinds, read)
    settings = TableSettings(family=choice)
    return dataset_of(
        frame, ReadOptions(settings, columns=names, lenient=lenient, keep_constant=True)
    )


Rows = ArrayLike | Dataset
"""What rows are given as: an array, a data frame, or a dataset."""

T = TypeVar("T", bound=Settings)
C = TypeVar("C", bound="OnGraph")

DRAWN = ("seed", "dtype")
"""Settings that estimators find by ``random_state``, and by the data."""

WORKERS = (
    "Who holds which rows: that many contiguous nearly equal parts, the worker of each row (number "
    "or name), the rows of each worker by its name, or vpem.Workers."
)
AGENTS = (
    "Who holds which features: that many contiguous nearly equal parts, the features of each "
    'agent, {"lab": ["ast", "alt"], ...}, by names of columns or numbers, or a vpem.Partition.'
)
ALL_OR_EACH = (
    f"{AGENTS} None: one agent holds all, or each one feature where ``graph`` or ``hops`` ask "
    "for a network."
)
"""What estimators say of these parameters."""

OPTION = re.compile(r"--[a-z][a-z-]*[a-z]")


def _plain(value: object) -> object:
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


def validated(estimator: Any, X: Any, *, reset: bool, **checks: Any) -> Floats:
    """Return rows by scikit-learn's ``validate_data``; errors name a column without numbers."""
    X = columns_apart(X)
    rows = None if checks.get("ensure_all_finite") else _numbers_in(X)
    if rows is not None and rows.size:
        known, names = vars(estimator), names_of(X)
        before = known.get("n_features_in_"), [*known.get("feature_names_in_", ())]
        if reset or before == (rows.shape[1], names or []):
            known.pop("feature_names_in_", None)
            known |= {"feature_names_in_": np.array(names, dtype=object)} if names else {}
            estimator.n_features_in_ = rows.shape[1]
            return rows
    from sklearn.utils.validation import validate_data

    try:
        checks = {"dtype": [np.float64, np.float32], "ensure_all_finite": False} | checks
        data: Floats = validate_data(estimator, X, reset=reset, **checks)
    except (TypeError, ValueError) as error:
        named = names_of(X) is not None
        for name, column, out in _columns(X):
            dated = column.dtype.kind in "mM"
            cells = () if dated else column.tolist()
            if not named:  # text only: scikit-learn's own words are expected of what is not
                cells = [one for one in cells if isinstance(one, str)]
            odd = next((one for one in cells if not _is_number(one)), None)
            dated = dated or isinstance(odd, date)
            if dated or odd is not None:
                content = "dates or times, which are" if dated else f"{brief(odd)}, which is"
                way = f"; leave it out: {out}" * reset
                some_alike = len({*map(str, column.tolist())}) < len(column)
                if reset and isinstance(odd, str) and some_alike and named:
                    way += ", or take text as categories, VPEM(family='auto')"
                raise InputError(f"column {name!r} of X holds {content} no number{way}") from None
        raise error from None
    return data


FRAMES = {"pandas": r"u?int\d+|float\d+", "polars": r"U?Int(8|16|32|64)|Float(32|64)"}
"""Libraries of data frames, and what they call types of numbers."""


def _numbers_of(X: object) -> str | None:
    """Return what a data frame calls types of numbers; None: it is none that is known."""
    kind = type(X)
    return FRAMES.get(kind.__module__.partition(".")[0]) if kind.__name__ == "DataFrame" else None


def _numbers_in(X: Any) -> Floats | None:
    """Return rows (M, d) as scikit-learn does where all are numbers; None: it is to say more."""
    rows, types = X, _numbers_of(X)
    kind = None if type(X) is list or hasattr(X, "iloc") else np.float64
    with suppress(ValueError):  # of rows of several lengths
        if type(X) is list or (types and all(re.fullmatch(types, str(one)) for one in X.dtypes)):
            rows = np.asarray(X, kind)
    if type(rows) is not np.ndarray or rows.dtype.kind not in "biuf" or rows.ndim != 2:
        return None
    single = rows.dtype == np.float32 and type(X) is not list
    return rows if single or rows.dtype == np.float64 else rows.astype(np.float64)


def _is_number(cell: object) -> bool:
    """Return whether a cell of a column is a number, or a gap."""
    if isinstance(cell, str):
        return read_float(cell) is not None
    try:
        float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return cell is None or str(cell) == "<NA>"
    return True


def _columns(X: Any) -> Iterator[tuple[Any, AnyArray, str]]:
    """Yield the columns of rows, with their names and the expression that leaves each out."""
    names = names_of(X)
    if names is not None:
        for place, name in enumerate(names):
            column = X.iloc[:, place] if hasattr(X, "iloc") else X[name]
            yield name, np.asarray(column), f"X.drop(columns={name!r})"
        return
    with suppress(TypeError, ValueError):
        array = np.asarray(X)
        array = array if array.dtype.kind != "U" else np.asarray(X, dtype=object)
        for place in range(array.shape[1] if array.ndim == 2 else 0):
            yield place, array[:, place], f"np.delete(X, {place}, axis=1)"


def warn_of_columns(data: Floats, names: Sequence[str] | None) -> None:
    """Warn of columns that are hardly measurements, and of codes for missing values in them."""
    called = names or [f"column {place}" for place in range(data.shape[1])]
    why = dict.fromkeys(called, "")
    # A column with a fraction among its first values is none of counts or codes, nor of dates
    # unless its name says so.
    head = data[:64]
    fractions = (np.isfinite(head) & (head != np.round(head))).any(axis=0)
    for place, name in enumerate(called):
        if names is not None or not fractions[place]:
            why[name] = no_measurement(name, data[:, place])
    counts = [name for name, one in why.items() if one in (DIFFERENT, NEARLY)]
    why |= dict.fromkeys(counts if len(counts) > MOST_NUMBERS else (), "")
    odd = {name: repr(name) if names else name for name, one in why.items() if one}
    if odd:
        listed = shorten(f"{shown} ({why[name]})" for name, shown in odd.items())
        advice = "is fitted, but may not be a measurement; if so, leave it out"
        if len(odd) > 1:
            advice = "are fitted, but may not be measurements; leave out those that are not"
        columns = ", ".join([*odd.values()][:5]) + ", ..." * (len(odd) > 5)
        way = f": X.drop(columns=[{columns}])" * (names is not None)
        warn(f"{listed} {advice}{way}", level=4)
    for place, marks in missing_marks(data).items():
        name = repr(names[place]) if names else f"column {place}"
        warn(
            f"{', '.join(marks)} in {name}: far from all other values; if this stands for "
            "missing values, make it NaN and fit with ",
            Setting("missing", "marginalize"),
            level=4,
        )


def _fits(name: str, value: object, default: object) -> bool:
    """Whether what a file says of a parameter can be one; names of types stand for objects."""
    if name == "graph":
        return value in TOPOLOGIES
    if name in ("agents", "workers"):
        return isinstance(value, int | list | dict)
    if name in ("bounds", "known_covariance", "weights_init", "means_init", "precisions_init"):
        return isinstance(value, list)
    if isinstance(default, float):
        return type(value) in (int, float)
    several = ("n_rounds", "init", "n_init")
    return default is None or type(value) is type(default) or name in several


def number_in(report: Report, name: str) -> float:
    value = report.get(name)
    return float(value) if isinstance(value, int | float) and value > -np.inf else float("nan")


def with_settings(
    *records: type[Settings], first: Sequence[str], without: Mapping[str, str]
) -> Callable[[type[C]], type[C]]:
    """Make the settings of records the parameters of an estimator, in signature and docstring.

    Besides them there are those that its class and bases declare by `vpem.records.setting`. The
    ``first`` may be given by position. Settings that an estimator is ``without``, and why, are no
    parameters, nor are seed and precision, which ``random_state`` and the data have. (Of modules
    in which a decorator of a class is given a display with ``**`` Sphinx reads no source.)
    """

    def complete(cls: type[C]) -> type[C]:
        known: dict[str, Field[object]] = {}
        for record in records:
            known |= {name: one for name, one in record.settings_by_name.items()
                      if name not in (*known, *without, *DRAWN)}  # fmt: skip
        kinds = {name: one.type for name, one in known.items()}
        for base in reversed(cls.__mro__):
            own = {name: one for name, one in vars(base).items() if type(one) is Field}
            known |= own
            kinds |= {name: inspect.get_annotations(base)[name] for name in own}
        names = dict.fromkeys((*first, *known))
        cls._without = {**cls._without, **without}
        cls.__annotations__ = {name: kinds[name] for name in names}
        for name in names:
            default, metadata = known[name].default, known[name].metadata
            setattr(cls, name, field(default=default, metadata=metadata, kw_only=name not in first))
        head, mark, tail = inspect.cleandoc(cls.__doc__ or "").partition("Attributes\n")
        cls = dataclass(eq=False, repr=False)(cls)
        described = "\n".join(_described(fields(cls), cls._also))
        cls.__doc__ = f"{head}Parameters\n----------\n{described}\n\n{mark}{tail}"
        return cls

    return complete


def _described(parameters: Sequence[Field[object]], also: Mapping[str, str]) -> Iterator[str]:
    """Yield what numpydoc's section says of each parameter, by the help that a shell shows.

    Options become names of parameters; sentences about options that are none are left out.
    """
    names = {f"--{one.name.replace('_', '-')}": one.name for one in parameters}
    for one in parameters:
        names |= dict.fromkeys(describe_field(one).flags.split(), one.name)

    def named(match: re.Match[str]) -> str:
        return f"``{names.get(match[0], match[0][2:].replace('-', '_'))}``"

    for one in parameters:
        about = describe_field(one)
        start, *others = re.split(r"(?<=[.;]) (?=[A-Z])", about.help)
        others = [text for text in others if {*re.findall(OPTION, text)} <= {*names}]
        text = " ".join([start, *others, *filter(None, [also.get(one.name)])])
        words = ", ".join(f'"{word}"' for word in about.choices)
        kind = str(one.type).removesuffix(" | None").replace(" | ", " or ")
        kind = {"Any": "object"}.get(kind, kind)
        if words:
            kind = f"{{{words}}}" if kind in ("str", "object") else kind.replace("str", words)
        default = "optional" if one.default is None else f"default={one.default!r}"
        lines = textwrap.wrap(re.sub(OPTION, named, text), 96, break_on_hyphens=False)
        yield "\n    ".join([f"{one.name} : {kind}, {default}", *lines])


class OnGraph(Estimator):
    """Estimator with a graph, settings of recipes, and the parameters of all fits.

    It can be stored in a file, and sums up what was fitted.
    """

    graph: Any = setting(
        "star",
        "The communication graph: a topology's name, a networkx.Graph or "
        "a vpem.Graph. A star sums exactly at a server; every other graph by consensus.",
    )
    random_state: object = setting(
        0,
        "Seed of all that is drawn: an integer, Generator or "
        "RandomState; None: another one in every fit.",
    )
    verbose: int = setting(
        0, "1: print progress, a line every so many iterations; 2: a line every iteration."
    )
    verbose_interval: int = setting(10, "Iterations from one such line to the next.")
    missing = "refuse"  # of estimators that do not ask
    _also: ClassVar[dict[str, str]] = {}
    """Sentences about parameters besides those of the settings."""

    _holders: Sequence[str]
    """Names of the agents or workers."""
    _stored: Any
    """What a file that it was loaded from kept."""
    _without: ClassVar[dict[str, str]] = {}
    """Parameters of others, or of scikit-learn, that do not exist here, and why."""

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Refuse unknown parameters, with the name of the one that is meant."""
        parameters = parameters_of(cls)  # type: ignore[arg-type]
        for name in [name for name in kwargs if name not in parameters]:
            if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                known = list(parameters)
                meant = [one for one in known if name in MEANT.get(one, ())]
                hint = f"; it is called {meant[0]}" if meant else did_you_mean(name, known)
                hint = f": {cls._without[name]}" if name in cls._without else hint
                raise TypeError(f"{cls.__name__} has no parameter {name!r}{hint}")
        estimator: Self = super().__new__(cls)
        return estimator

    _write: ClassVar[Callable[..., None]] = staticmethod(write_model)
    """Writes what is kept to a file."""

    _result: ClassVar[tuple[str, str]]
    """Attributes that are there after `fit`: also of what a file held, and the full result."""

    def kept(self) -> Any:
        """Return what a file keeps, as the command line writes it; `InputError` before `fit`.

        Its options are the estimator's parameters.
        """
        self._refuse_unfitted()
        if self._result[1] not in vars(self):
            return self._stored
        found = vars(self)[self._result[1]]
        names, options = self._names(found.n_features), self._options()
        report = {**found.describe(names, self._holders), "seed": options["random_state"]}
        return found.kept(names, report, options)

    @classmethod
    def of_stored(cls, stored: Any) -> Self:
        """Return an estimator of what a file holds, with the parameters that the file names.

        It predicts, scores, is drawn and saved as before. Of parameters that a file cannot hold,
        such as graphs, it has the defaults.
        """
        report, known = stored.report, parameters_of(cls)  # type: ignore[arg-type]
        called = {"seed": "random_state", "topology": "graph"}
        for one in fields(cls):
            flags = describe_field(one).flags.split()
            called |= {flag.lstrip("-").replace("-", "_"): one.name for flag in flags}
        named = {called.get(name, name): value for name, value in stored.options.items()
                 if value is not None}  # fmt: skip
        parameters = {name: value for name, value in named.items()
                      if name in known and _fits(name, value, known[name].default)}  # fmt: skip
        agents, names = report.get("partition"), report.get("agent_names")
        of_agents = "agents" in known and "agents" not in parameters
        if of_agents and isinstance(agents, list) and isinstance(names, list):
            features = report.get("feature_names")
            given = isinstance(features, list) and tuple(features) != default_names(len(features))
            shown = features if given and features is not None else range(len(agents))
            parameters["agents"] = {
                str(name): [one for one, agent in zip(shown, agents, strict=False) if agent == at]
                for at, name in enumerate(names)
            }
        estimator = cls(**parameters)
        estimator._stored = stored
        estimator.n_features_in_ = len(stored.feature_names)
        if stored.feature_names != default_names(estimator.n_features_in_):
            estimator.feature_names_in_ = np.array(stored.feature_names, dtype=object)
        estimator.n_iter_ = int(report.get("n_iter") or 0)
        return estimator

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write what was fitted to a file that `vpem.load` and the command line read.

        Parameters
        ----------
        path : path
            The file, HDF5; written completely or not at all.
        force : bool
            Replace an existing file.

        Raises
        ------
        InputError
            If nothing was fitted.
        FileError
            If the file exists and ``force`` is False, or cannot be written.
        """
        self._write(path, self.kept(), force=force)

    def summary(self) -> str:
        """Return what was fitted, in lines: components or clusters, and how each differs.

        Raises
        ------
        InputError
            If nothing was fitted.
        """
        title, cells = self._table()
        return title if cells is None else f"{title}\n\n{cells}"

    _noun = "component"

    def _table(self) -> tuple[str, Table | None]:
        saved = self.kept()
        report = saved.report
        size = f"{len(saved.feature_names)} features"
        n_workers, n_agents = report.get("n_workers"), report.get("n_agents")
        if n_workers is None and n_agents is not None and n_agents > 1:
            size += f" of {n_agents} agents"
        if report.get("n_samples") is not None:
            rows = f"{report['n_samples']} rows"
            rows += f" of {n_workers} workers" if n_workers is not None and n_workers > 1 else ""
            size = f"{rows}, {size}"
        answer = answer_of(saved)
        title = f"{len(answer.weights)} {self._noun}s, {size}: {describe_end(report)}"
        noisy = report.get("privacy") is not None
        cells = as_table(answer.describe(self._noun), self._noun, noisy)
        return f"{type(self).__name__} of {title}", cells

    @property
    def _repr_html_(self) -> Callable[[], str]:
        inherit()
        shown: Callable[[], str] = super()._repr_html_
        return lambda: shown() + self._table_as_html()

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        inherit()
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += self._table_as_html()
        return bundle

    def _table_as_html(self) -> str:
        if not self.__sklearn_is_fitted__():
            return ""
        title, cells = self._table()
        shown = "" if cells is None else cells._repr_html_()
        return f"<p>{escape(printable(title))}</p>{shown}"

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `fit` was called."""
        return hasattr(self, self._result[0])

    def _lines(self) -> ProgressPrinter | None:
        flag = isinstance(self.verbose, bool | np.bool_)
        verbose = check_int("verbose", int(self.verbose) if flag else self.verbose, least=0)
        every = check_int("verbose_interval", self.verbose_interval, least=1)
        return ProgressPrinter(verbose, every) if verbose else None

    def fit(self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows.

        Parameters
        ----------
        X : array of shape (M, d), data frame or Dataset
            One row per sample; a dataset brings names of features and weights of rows.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (M,), optional
            Weight of each row: zero has no effect, an integer equals as many copies. Rows of
            batches that are drawn are drawn in proportion.

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
        """
        data, lines = self._validate(X, reset=True), self._lines()
        weights, names = self._weights_of(X, sample_weight), self._given_names
        found = self._fit_to(data, sample_weight=weights, feature_names=names, callback=lines)
        if lines is not None:
            lines.end(found)
        return self

    def _fit_to(self, data: Floats, **known: Any) -> Result:
        """Fit to rows (M, d), and take the result."""
        raise NotImplementedError

    def _settings(self, record: type[T], **changes: object) -> T:
        own = self.__dataclass_fields__
        values = {name: getattr(self, name) for name in record.settings_by_name if name in own}
        return record(**{**values, **changes})

    def _validate(self, X: Rows, *, reset: bool) -> Floats:
        stored = stored_in(X)
        if stored is not None:
            rows: Floats = stored.X[:]
            if reset:
                data = validated(self, rows, reset=True)
                if stored.feature_names != default_names(stored.n_features):
                    self.feature_names_in_ = np.array(stored.feature_names, dtype=object)
            else:
                columns = match_features(self._names(self.n_features_in_), stored.feature_names)
                data = rows if columns is None else np.ascontiguousarray(rows[:, columns])
        else:
            data = validated(self, X, reset=reset)
            if reset:
                warn_of_columns(data, list(getattr(self, "feature_names_in_", ())) or None)
        gaps, finite = self.missing == "marginalize", partial(check_finite, advice=MARGINALIZE)
        known = self._given_names
        return check_data(data, data.shape[1], known, finite=check_missing if gaps else finite)

    @property
    def _given_names(self) -> list[str] | None:
        """Names of the features of `fit`, if they had some."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    @staticmethod
    def _weights_of(X: Any, sample_weight: Any) -> Floats | None:
        """Return the weights of the rows: those of a dataset, where no others are given."""
        stored = stored_in(X)
        if sample_weight is None:
            return None if stored is None else stored.sample_weight
        return np.asarray(sample_weight)

    def __sklearn_tags__(self) -> Any:
        inherit()
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "marginalize"
        return tags

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral) and not isinstance(self.random_state, bool):
            return check_int("random_state", self.random_state, least=0)
        if isinstance(self.random_state, np.random.Generator):
            return int(self.random_state.integers(np.iinfo(np.int32).max))
        if self.random_state is None:
            return int(np.random.randint(np.iinfo(np.int32).max))  # noqa: NPY002
        from sklearn.utils import check_random_state

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
        return tuple(map(str, self._given_names or default_names(n_features)))

    def _options(self) -> Report:
        return {name: _plain(value) for name, value in self.get_params(deep=False).items()}

    def _check_fitted(self, name: str) -> None:
        if not hasattr(self, name):
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self, name)

    def _refuse_unfitted(self) -> None:
        if not self.__sklearn_is_fitted__():
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
            return contiguous(n_features, n_features if networked else 1)
        if isinstance(agents, Partition):
            return agents
        if isinstance(agents, Integral):
            return contiguous(n_features, check_int("agents", agents, least=1))
        called = [str(name) for name in agents] if isinstance(agents, Mapping) else None
        parts = list(agents.values()) if isinstance(agents, Mapping) else agents
        parts = parts.tolist() if isinstance(parts, np.ndarray) else parts
        if isinstance(parts, Sequence) and not isinstance(parts, str):
            known = self._given_names
            return from_lists(numbered(parts, known), n_features, called, known)
        raise InputError(
            "agents must be None, a number of agents, the features of each agent by its name, "
            f"{{'lab': ['ast', 'alt'], ...}}, or a list of lists of features, got {agents!r}"
        )


def workers_of(workers: Any, n_samples: int) -> Workers:
    """Return who holds which rows, each held once, of an estimator's parameter ``workers``."""
    if isinstance(workers, Workers):
        return workers
    if isinstance(workers, Integral):
        return evenly(n_samples, check_int("workers", workers, least=1))
    if isinstance(workers, Mapping):
        return from_worker_of_row(_holders(workers, n_samples), list(map(str, workers)))
    listed = isinstance(workers, Sequence) or hasattr(workers, "__array__")
    if listed and not isinstance(workers, str | bytes):
        return from_worker_of_row(workers)
    raise InputError(
        "workers must be a number of workers, the worker of each row, the rows of each by its "
        f"name, or vpem.Workers, got {workers!r}"
    )


def _holders(rows_of: Mapping[object, ArrayLike], n_samples: int) -> NDArray[np.intp]:
    """Return the number of the worker of each row (M,), of the rows that each has by its name."""
    holders = np.full(n_samples, -1)
    for number, (name, listed) in enumerate(rows_of.items()):
        rows = np.asarray(listed)
        if rows.dtype == bool and rows.shape == (n_samples,):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise InputError(
                f"worker {name!r} must have a list of row numbers, or of {n_samples} truth values, "
                f"got {rows.dtype} of shape {rows.shape}"
            )
        rows = rows.astype(np.intp)
        if rows.size and not 0 <= rows.min() <= rows.max() < n_samples:
            raise InputError(
                f"worker {name!r} has rows beyond those of the data, which are numbered 0 to "
                f"{n_samples - 1}"
            )
        taken = rows[holders[rows] >= 0]
        if len(taken) or len(np.unique(rows)) < len(rows):
            first = taken[0] if len(taken) else np.sort(rows)[np.diff(np.sort(rows)) == 0][0]
            raise InputError(f"row {first} is given twice, last to worker {name!r}")
        holders[rows] = number
    if (holders < 0).any():
        raise InputError(f"row {int(np.argmin(holders))} has no worker; every row needs one")
    return holders
