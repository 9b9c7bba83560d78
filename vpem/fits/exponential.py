"""Models that a user brings: a curved exponential family of three methods, fitted by FedEM.

EM of such a model is a map of one mean statistic (Dieuleveut, Fort, Moulines and Robin 2021, A 1 to
A 3): expect it, sum it over workers, move towards it, maximise.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import AnyArray, Doubles, Indices, as_array, check_data, check_int, check_memory
from vpem.engines.placement import Placement
from vpem.errors import InputError, warn
from vpem.files.checkpoints import checksum, describe_run, describe_steps
from vpem.fits.fedem import codec_of_first, warn_of_rest
from vpem.fits.local_rows import LocalRows
from vpem.fits.prepare import network_of_all, read_presence
from vpem.fits.results import SUMMED, Result, reported
from vpem.network.codecs import parse_codec
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers, evenly, from_worker_of_row
from vpem.network.schema import NOTHING, Array, As, Report, State, Stateful
from vpem.records import changed
from vpem.settings import FedMixtureSettings, FedSettings
from vpem.steps.fedem import first_statistics, run_fedem
from vpem.steps.fedem_sums import FedProgress, FedRun, check_masked
from vpem.steps.recovery import Saver
from vpem.steps.restarts import OneRun
from vpem.sums.connect import Network
from vpem.sums.private import powers_above
from vpem.terms.rows import check_missing

ROOM = 2.0**16
"""Masked statistics may grow to so many times the largest number at the start."""

DEEPEST = 8
"""Objects within objects that a checkpoint looks into."""


class FamilySettings(FedSettings, heading="Method"):
    """FedEM of a model of one's own: see `vpem.fit_family`."""

    compress: str | None = changed(
        FedMixtureSettings,
        "compress",
        help="Codec of corrections on "
        "the way to a server, such as qsgd:8bits:32. First statistics go by the finer of it and "
        "qsgd:8bits:32. Default: numbers as they are.",
    )
    seed: int = changed(FedMixtureSettings, "seed", help="Seed of workers, minibatches and codec.")


class ExponentialFamily(ABC):
    """A latent variable model of the curved exponential family, for `vpem.fit_family`.

    The log-likelihood of a row and its latent variable is linear in a statistic of both; EM takes
    the mean over all rows of what that statistic is expected to be at the current parameters, and
    maximizes. A subclass says how, in three methods and the length of the statistic; parameters are
    any object of its own. `vpem.fit_family` brings workers, codecs, partial participation,
    minibatches, variance reduction, graphs, masks, processes and checkpoints.

    Attributes
    ----------
    size : int
        Numbers of a statistic, P.
    pieces : tuple of slice, optional
        Parts of a statistic, in order and together all of it, that codecs and masks scale one by
        one: put numbers of one unit together. None: one piece.
    bounds : ndarray of shape (P,), optional
        What no number of a worker's mean statistic is beyond, in modulus, for masked sums, which
        count in units that suit it. None: `ROOM` times the largest number in the same piece of all
        workers' statistics at the start, whose power of two all learn.
    least_batch : int
        Rows of which a minibatch has at least so many; 1 by default.

    Notes
    -----
    Source: Dieuleveut, Fort, Moulines, Robin (2021), section 2, A 1 to A 3. `maximization` must
    return the same for the same statistic.

    Examples
    --------
    Counts with an excess of zeros, of which a share cannot be anything else:

    >>> import numpy as np
    >>> import vpem
    >>> class ZeroInflatedPoisson(vpem.ExponentialFamily):
    ...     size = 2  # shares of rows that count, and counts of these
    ...     def expectation(self, parameters, X):
    ...         share, rate = parameters
    ...         zero = share * np.exp(-rate)
    ...         counted = np.where(X[:, 0] == 0, zero / (1 - share + zero), 1.0)
    ...         return np.array([counted.mean(), (counted * X[:, 0]).mean()])
    ...     def maximization(self, statistic):
    ...         return statistic[0], statistic[1] / statistic[0]
    ...     def objective(self, parameters, X):
    ...         share, rate = parameters
    ...         zeros = (X[:, 0] == 0).mean()
    ...         rest = (1 - zeros) * np.log(share * np.exp(-rate)) + X[:, 0].mean() * np.log(rate)
    ...         return zeros * np.log(1 - share + share * np.exp(-rate)) + rest
    >>> X = np.array([0, 0, 0, 0, 3, 5, 4, 0, 2, 6])[:, None]
    >>> fit = vpem.fit_family(ZeroInflatedPoisson(), X, 2, start=(0.9, 1.0))
    >>> print(np.round(fit.parameters, 3), fit.converged)
    [0.51  3.921] True
    """

    size: int
    pieces: tuple[slice, ...] | None = None
    bounds: AnyArray | None = None
    least_batch: int = 1

    @abstractmethod
    def expectation(self, parameters: Any, X: Doubles) -> ArrayLike:
        """Return the mean over some rows of the expected statistic.

        Parameters
        ----------
        parameters : object
            What `maximization` returned, or the start.
        X : ndarray of shape (m, d)
            Rows of one worker, all or a minibatch; at least one. To be read, not changed.

        Returns
        -------
        ndarray of shape (P,)
            Finite; the mean over the rows, not their sum.
        """

    @abstractmethod
    def maximization(self, statistic: Doubles) -> Any:
        """Return the parameters that maximize the expected log-likelihood of a mean statistic.

        Parameters
        ----------
        statistic : ndarray of shape (P,)
            What `project` returned: to be read, not changed.

        Returns
        -------
        object
            The parameters: those that minimize `penalty`, less what is expected of the complete
            log-likelihood.
        """

    @abstractmethod
    def objective(self, parameters: Any, X: Doubles) -> float:
        """Return the mean over some rows of the log-likelihood, for the history.

        Parameters
        ----------
        parameters : object
            What `maximization` returned.
        X : ndarray of shape (m, d)
            All rows of one worker; at least one.

        Returns
        -------
        float
            In nats per row, without the penalty.
        """

    def penalty(self, parameters: Any) -> float:
        """Return R of the parameters, by default 0: EM lowers it less the mean of `objective`.

        Parameters
        ----------
        parameters : object
            What `maximization` returned, which should take it into account.

        Returns
        -------
        float
            In nats per row.

        Notes
        -----
        Source: Dieuleveut, Fort, Moulines, Robin (2021), equation (1).
        """
        return 0.0

    def project(self, statistic: Doubles) -> Doubles:
        """Return the nearest statistic that `maximization` can take, by default the same.

        The noise of codecs and of absent workers may push a statistic where no rows can: a share
        below 0, say. How often that happened is in the result.

        Parameters
        ----------
        statistic : ndarray of shape (P,)
            To be read, not changed.

        Returns
        -------
        ndarray of shape (P,)
        """
        return statistic


@dataclass(kw_only=True)
class FamilyFit(
    Result,
    facts="{converged:converged|not converged} after {n_iter:iteration}, objective {objective:.6g}",
):
    """A fitted model of a user's own.

    ``parameters`` are what `ExponentialFamily.maximization` returned for what `project` made of the
    last ``statistic`` (P,), on a graph the mean of the workers'; ``run`` has history, memories and
    projections.
    """

    parameters: Any
    statistic: Doubles
    run: FedRun
    workers: Workers
    network: Network
    options: Report

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.run.n_iter

    @property
    def objective(self) -> float:
        """Mean over all rows of the log-likelihood at the parameters, less R, in nats."""
        return self.run.history.objective[-1]

    def describe(self) -> Report:
        """Summarize the fit in values that JSON can hold, but for the parameters."""
        run = self.run
        return {
            "algorithm": "vr-fedem" if self.options["variance_reduction"] else "fedem",
            **reported(self.workers, "n_samples", "n_workers"),
            "worker_names": list(self.workers.names),
            "statistic": self.statistic.tolist(),
            **reported(self, "objective", "converged"),
            **reported(run, "in_noise", "n_iter", "projections"),
            **self.network.describe("topology", "edges", "server", *SUMMED, "faults"),
            **self.options,
            **run.describe(),
            **reported(self, "communication", "seconds"),
        }


def fit_family(
    family: ExponentialFamily,
    X: ArrayLike,
    workers: Workers | ArrayLike,
    start: Any,
    settings: FamilySettings | None = None,
    *,
    network: Network | None = None,
    callback: Callable[[FedProgress], None] | None = None,
    saver: Saver | None = None,
    **changes: object,
) -> FamilyFit:
    """Fit a model of a user's own to rows that workers hold: EM, FedEM or VR-FedEM.

    Without a codec, absent workers and minibatches this is EM.

    Parameters
    ----------
    family : ExponentialFamily
        The model.
    X : array_like of shape (M, d)
        The data; NaN is for the model to understand. Where workers live in several processes
        (`vpem.sums.connect.spread_workers`) each has the rows of its own, worker by worker.
    workers : Workers, int or array_like of shape (M,)
        Who holds which rows; or so many workers, with as many rows each; or the worker of every
        row, by number from 0 or by name.
    start : object
        Parameters to start from, which all workers know.
    settings : FamilySettings, optional
        None: the defaults.
    network : Network, optional
        From `vpem.connect_workers`; None: a server. On any other graph every worker keeps a
        statistic of its own, and compression is the network's.
    callback : callable, optional
        Called after every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).
    **changes
        Settings that differ: ``compress`` (a codec of corrections on the way to a server, such as
        "qsgd:8bits:32"), ``participation``, ``batch_size``, ``variance_reduction``, ``step_size``,
        ``memory``, ``max_iter``, ``tol``, ``seed`` and the others of
        `vpem.fits.exponential.FamilySettings`.

    Returns
    -------
    FamilyFit

    Raises
    ------
    InputError
        If an option cannot be used, or a method returns what its description does not allow.
    NumericalError
        If noise outgrows the steps.

    Warns
    -----
    NotConvergedWarning
        If ``tol`` is above 0 and the iterations ran out.
    VpemWarning
        If noise stays in the result, or the last statistic had to be projected.

    Notes
    -----
    Source: Dieuleveut, Fort, Moulines, Robin (2021), Algorithms 1 and 2; see
    `vpem.steps.fedem.run_fedem`.
    """
    began = time.perf_counter()
    if not isinstance(family, ExponentialFamily):
        got = f"the class {family.__name__}" if isinstance(family, type) else type(family).__name__
        raise InputError(
            f"the model must be an object of a subclass of vpem.ExponentialFamily, got {got}"
        )
    settings = FamilySettings.resolve(settings, **changes)
    settings = settings.changed(n_threads=thread_count(settings.n_threads))
    data = as_array("the data", X)
    data = check_data(data, data.shape[-1] if data.ndim else 0, finite=check_missing)
    rows = data.astype(np.float64, copy=False).view()
    rows.flags.writeable = False
    if isinstance(workers, Integral):
        workers = evenly(len(rows), check_int("workers", workers, least=1))
    elif not isinstance(workers, Workers):
        workers = from_worker_of_row(as_array("the workers", workers))
    codec = None if settings.compress is None else parse_codec(settings.compress)
    network = network_of_all(network, workers.n_workers, "workers", workers.names)
    settings = read_presence(settings, workers.names, network)
    check_masked(network, codec, settings.participation)
    model = _FamilyStatistics(family, rows, workers, network.total.holders)
    if saver is not None:
        saver.begin(describe_run(
            "exponential family", model.rows, None, network.whole,
            **settings.values("step_size", "compress", "n_threads"),
            codec=None if codec is None else codec.name,
            step_size=describe_steps(settings.step_size),
            **{"who holds which rows": checksum(workers.order, workers.counts),
               "what the model is": checksum(*_plain(family)), "start": checksum(*_plain(start))},
        ))  # fmt: skip
    ledger = Ledger(network.graph)
    saving = OneRun(saver, ledger)
    with one_blas_thread(), np.errstate(over="ignore"):
        network.charge_setup(ledger, workers.n_samples, 0)
        first = model.begin(start, network, ledger, saving.saved is None)
        if saving.saved is not None:
            saving.restored(NOTHING)
        run = run_fedem(
            model,
            first,
            settings.into(FedSettings),
            codec=codec,
            first_codec=codec_of_first(codec),
            network=network,
            ledger=ledger,
            rng=np.random.default_rng([settings.seed, 1]),
            callback=callback,
            saver=saving.inner(None),
        )
    if run.projected[-1:] == [run.n_iter]:
        warn(
            "the last statistic had to be projected: noise pushed it where no rows can; take "
            "smaller steps, or a finer codec",
            level=2,
        )
    warn_of_rest(run, settings, codec)
    return FamilyFit(
        parameters=run.parameters[1],
        statistic=run.statistic,
        run=run,
        workers=workers,
        network=network.whole,
        **saving.took(began, run.converged, run.history.bytes),
        options={
            **settings.values(),
            "step_size": describe_steps(settings.step_size),
            "compress": network.compress if codec is None else codec.name,
            "alpha": run.alpha,
        },
    )


def _plain(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield numbers, texts and arrays that an object is made of, and the types of all else."""
    if isinstance(value, bool | int | float | str | np.ndarray | np.generic | slice | None):
        yield value
        return
    yield type(value).__qualname__
    if isinstance(value, Mapping):
        value = [*value.items()]
    elif hasattr(value, "__dict__") and not callable(value):
        value = [*vars(value).items()]
    if isinstance(value, list | tuple) and depth < DEEPEST:
        for one in value:
            yield from _plain(one, depth + 1)


class _FamilyStatistics(Stateful):
    """A user's model as `vpem.steps.fedem_sums.StatisticModel`: checked, and worker by worker."""

    def __init__(
        self, family: ExponentialFamily, X: Doubles, workers: Workers, holders: Placement
    ) -> None:
        size = getattr(family, "size", None)
        if size is None:
            raise InputError(
                f"{type(family).__name__} must have a size: how many numbers a statistic has"
            )
        self.family, self.holders = family, holders
        self.size = check_int(f"{type(family).__name__}.size", size, least=1)
        self.pieces = self._pieces(family.pieces)
        self.is_judged = True
        self.least_batch = check_int("least_batch", family.least_batch, least=1)
        self.bounds: Doubles | None = None
        if family.bounds is not None:
            self.bounds = self._checked("bounds", family.bounds, (self.size,), must="be")
            if not (self.bounds > 0).all():
                raise InputError(f"{type(family).__name__}.bounds must be above 0")
        self.counts = self.masses = workers.counts
        check_memory(8 * 4 * self.size * (len(self.counts) + 1), f"{self.size} numbers a worker")
        local = LocalRows(holders, workers)
        local.count_all(len(X))
        self.rows, self._runs = local.by_worker(X), local.runs

    def _pieces(self, pieces: object) -> tuple[slice, ...]:
        """Return the pieces of a statistic; InputError unless they cover it in order."""
        if pieces is None:
            return (slice(0, self.size),)
        given = pieces if isinstance(pieces, list | tuple) else (pieces,)
        known = [one.indices(self.size) for one in given if isinstance(one, slice)]
        begins, ends = ([one[place] for one in known] for place in range(2))
        in_order = begins == [0, *ends[:-1]] and ends[-1:] == [self.size]
        if (
            len(known) < len(given)
            or not in_order
            or any(begin >= end or step != 1 for begin, end, step in known)
        ):
            raise InputError(
                f"{type(self.family).__name__}.pieces must be slices that cover the {self.size} "
                f"numbers of a statistic one after the other, got {pieces!r}"
            )
        return tuple(map(slice, begins, ends))

    def begin(self, start: Any, network: Network, ledger: Ledger, fresh: bool) -> Doubles | None:
        """Statistics (n, P) at the start, of a ``fresh`` run; by them masked sums know bounds."""
        masked = self.holders.masks is not None and self.bounds is None
        if not (fresh or masked):
            return None
        first = first_statistics(self, (None, start))
        if masked:
            begins = [piece.start for piece in self.pieces]
            sizes = np.maximum.reduceat(np.abs(first[self.holders.own]), begins, axis=1)
            largest = powers_above(network.total.counted_on(ledger), sizes)
            widths = [piece.stop - piece.start for piece in self.pieces]
            self.bounds = np.repeat(ROOM * np.where(largest > 0, largest, 1.0), widths)
        return first if fresh else None

    def _checked(
        self, name: str, value: ArrayLike, shape: tuple[int, ...], must: str = "return"
    ) -> Doubles:
        values = np.full(0, np.nan)
        if not np.iscomplexobj(value) and not np.ma.is_masked(value):
            with suppress(TypeError, ValueError):
                values = np.asarray(value, dtype=np.float64)
        if values.shape != shape or not np.isfinite(values).all():
            what = "a finite number" if not shape else f"{shape[0]} finite numbers"
            raise InputError(
                f"{type(self.family).__name__}.{name} must {must} {what}, got "
                + (f"shape {values.shape}" if values.shape != shape else "NaN or infinity")
            )
        return values

    def draw(
        self, worker: int, count: int, rng: np.random.Generator, replace: bool = False
    ) -> Indices:
        drawn: Indices = rng.choice(self.counts[worker], count, replace=replace, shuffle=False)
        return drawn

    def expect(self, worker: int, parameters: Any, rows: Indices | None) -> Doubles:
        """Mean expected statistic (P,) of some of a worker's rows; zero of other processes'."""
        own = self.rows[self._runs[worker]]
        if not len(own):
            return np.zeros(self.size)
        taken = own if rows is None else own[rows]
        statistic = self.family.expectation(parameters[1], taken)
        return self._checked("expectation", statistic, (self.size,))

    def maximize(self, statistic: Doubles, root: int = 0) -> tuple[Any, int]:
        """Parameters beside the statistic that they are of, by which they are saved."""
        valid = self._checked("project", self.family.project(statistic.copy()), (self.size,))
        moved = int((valid != statistic).any())
        return (valid, self.family.maximization(valid.copy())), moved

    def objective(self, parameters: Any) -> float:
        total = np.zeros((len(self.holders.own), 1))
        for place, worker in enumerate(self.holders.own.tolist()):
            rows = self.rows[self._runs[worker]]
            if len(rows):
                mean = self.family.objective(parameters[1], rows)
                total[place] = len(rows) * float(self._checked("objective", mean, ()))
        penalty = float(self._checked("penalty", self.family.penalty(parameters[1]), ()))
        return float(self.holders.add_up(total)[0]) / int(self.counts.sum()) - penalty

    def traced(self, parameters: Any) -> dict[str, Doubles]:
        """What a trace has of parameters that are an array, or a table or tuple of some."""
        found = parameters[1]
        if isinstance(found, tuple):
            found = dict(enumerate(found))
        table = found if isinstance(found, Mapping) else {None: found}
        names = ["parameters" if name is None else f"parameters_{name}" for name in table]
        with suppress(TypeError, ValueError):
            arrays = [np.array(one, dtype=np.float64) for one in table.values()]
            return (
                dict(zip(names, arrays, strict=True)) if all(map(str.isidentifier, names)) else {}
            )
        return {}

    def parameters_schema(self) -> As:
        def back(state: State) -> tuple[Doubles, Any]:
            return state["statistic"], self.family.maximization(state["statistic"].copy())

        schema = {"statistic": Array("f8", (self.size,))}
        return As(schema, lambda parameters: {"statistic": parameters[0]}, back)
