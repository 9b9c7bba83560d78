"""Named algorithms: what is summed, how, and by which step."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from vpem import em
from vpem.checkpoints.run_facts import describe_run
from vpem.checkpoints.run_states import (
    Restarts,
    mixture_of,
    mixture_restarts,
    mixture_state,
    record_state,
    restore_record,
)
from vpem.checkpoints.savers import Saver
from vpem.checks import (
    check_data,
    check_finite,
    check_int,
    check_number,
    check_restarts,
    check_rows,
    check_weights,
    row_blocks,
)
from vpem.errors import InputError, NotConvergedWarning, Setting, VpemWarning, check_choice, shorten
from vpem.incremental import BatchRun, check_batches, fit_batches
from vpem.joining import Network, connect
from vpem.mixture import COVARIANCE_TYPES, Mixture
from vpem.network.ledger import Ledger
from vpem.patterns import MISSINGS, check_columns, check_missing, observed_scaling
from vpem.rows import FileMatrix
from vpem.scaling import SCALES, Scaling
from vpem.starts import INITS, RowStream, draw_start
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import terms_of
from vpem.threads import one_blas_thread, thread_count

if TYPE_CHECKING:
    from vpem.sharing import Here

__all__ = ["Fit", "Network", "Prepared", "connect", "fit_vpem", "prepare"]

ORDER_OF_BATCHES = 1
"""Sets the stream that orders batches apart from the one that draws rows."""

LARGEST_DISAGREEMENT = 1e-3
"""In nats per sample, between roots whose sums have no operator to judge them by."""

MARGINALIZE = ("integrate them out with ", Setting("missing", "marginalize"))
"""Advice where values are missing."""

LARGEST_VALUE = {8: 1e140, 4: 1e17}
"""Largest value to be squared and summed, by bytes of the precision."""


@dataclass
class Fit:
    """A fitted mixture and how it came about.

    Attributes
    ----------
    mixture : Mixture
        The parameters, hub by hub.
    network : Network
        Who took part.
    history : ndarray of shape (n_iter, B)
        Total log-likelihood as each root finds it in the E-step of each iteration; the first row
        belongs to the start.
    root_log_likelihood : ndarray of shape (B,)
        Total log-likelihood of `mixture`, as each root finds it.
    total_weight : float
        Sum of the row weights (the number of rows when there are none).
    n_samples : int
        Number of rows.
    converged : bool
        Whether all roots proposed to stop.
    recoveries : list of Recovery
        Components that collapsed and were placed anew.
    init_rows : tuple of int, or None
        Rows the means were first placed at; None when started from a model.
    best_restart : int
        Which of the restarts this is, from 0.
    seconds : float
        Wall time of all restarts.
    total_iterations : int
        Of all restarts.
    communication : dict
        What was sent, over all restarts (`vpem.network.ledger.Ledger.summary`);
        ``bytes_by_iteration`` belongs to the entries of ``history``.
    partitions : list of (int, str)
        Iterations in which the network fell apart, and how; parameters stayed as they were.
    batch_size, step_size : int, float or None
        As they were asked for.
    n_passes : float or None
        Rows worked on in batches, in multiples of all of them; None without batches.
    free_energy : list of float
        After every batch, where sums are exact.
    """

    mixture: Mixture
    network: Network
    history: NDArray[np.float64]
    root_log_likelihood: NDArray[np.float64]
    total_weight: float
    n_samples: int
    converged: bool
    recoveries: list[em.Recovery] = field(default_factory=list)
    init_rows: tuple[int, ...] | None = None
    best_restart: int = 0
    seconds: float = 0.0
    total_iterations: int = 0
    communication: dict[str, Any] = field(default_factory=dict)
    partitions: list[tuple[int, str]] = field(default_factory=list)
    batch_size: int | None = None
    step_size: float | None = None
    n_passes: float | None = None
    free_energy: list[float] = field(default_factory=list)

    @property
    def n_iter(self) -> int:
        """Iterations of the restart that was kept."""
        return len(self.history)

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the fitted mixture, mean over roots."""
        return float(self.root_log_likelihood.mean() / self.total_weight)

    @property
    def bic(self) -> float:
        """Bayesian information criterion, from the mean log-likelihood over roots."""
        return self.mixture.bic(self.log_likelihood * self.total_weight, self.total_weight)

    @property
    def aic(self) -> float:
        """Akaike information criterion, from the mean log-likelihood over roots."""
        return self.mixture.aic(self.log_likelihood * self.total_weight)


def fit_vpem(
    X: NDArray[Any] | FileMatrix,
    network: Network,
    *,
    n_components: int = 2,
    covariance_type: str = "full",
    init: str | Sequence[int] | NDArray[Any] | Mixture = "kmeans",
    n_init: int = 1,
    first_restart: int = 0,
    tol: float = 1e-7,
    max_iter: int = 1000,
    reg_covar: float = 1e-6,
    scale: str = "none",
    sample_weight: NDArray[Any] | None = None,
    seed: int = 0,
    n_threads: int | None = None,
    dtype: Any = np.float64,
    skip_negligible: bool = True,
    batch_size: int | None = None,
    step_size: float | None = None,
    missing: str = "refuse",
    feature_names: Sequence[str] | None = None,
    callback: Callable[[em.Progress], None] | None = None,
    saver: Saver | None = None,
) -> Fit:
    """Fit a Gaussian mixture to data split by features: VP-EM (Valdeira et al., Algorithms 1, 2).

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data; column j is seen by the agent that holds feature j and, once, by its root.
    network : Network
        From `connect`.
    n_components : int
        Number of components, K.
    covariance_type : str
        Shape of the covariance inside a hub: "full", "diag", "spherical", and "tied", "tied-diag",
        "tied-spherical" for one shared by all components.
    init : {"random", "k-means++", "kmeans"}, row indices, or Mixture
        Where to start. Row indices (K,): means at those rows, equal weights, every covariance the
        block's sample covariance with divisor M plus ``reg_covar``.
    n_init : int
        Restarts; the one with the best log-likelihood at the first root is kept.
    first_restart : int
        Number of the first of them: restart 3 alone is what it is among more.
    tol : float
        Change of the log-likelihood per sample, in nats, below which a root proposes to stop.
    max_iter : int
        Most iterations.
    reg_covar : float
        Added to the diagonal of every covariance.
    scale : {"none", "standard"}
        "standard": each agent centres its features and divides them by their standard deviation;
        results are in the user's units all the same.
    sample_weight : ndarray of shape (M,), optional
        Weight of each row. Zero has no effect, an integer equals as many copies.
    seed : int
        Of the stream that all agents share.
    n_threads : int, optional
        Threads of the kernels; None takes what the process may use.
    dtype : {float64, float32}
        Precision of data and terms.
    skip_negligible : bool
        Leave rows out of a component's moments where all such responsibilities together are below
        rounding (`vpem.terms.features.NEGLIGIBLE`). False counts every one of them.
    batch_size : int, optional
        Rows of an iteration of batch VP-EM (`vpem.incremental.fit_batches`); ``max_iter`` and
        ``history`` then count passes over the data. None: all rows in every iteration.
    step_size : float, optional
        With ``batch_size``, stochastic EM: the exponent of its steps, in (0.5, 1].
    missing : {"refuse", "marginalize"}
        What is done where values are missing (NaN). "marginalize" integrates them out, missing at
        random: terms are log-densities of what is observed (`vpem.terms.missing`), and rows with
        no value at all take no part.
    feature_names : sequence of str, optional
        For messages.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.checkpoints.savers.FileSaver`).

    Returns
    -------
    Fit

    Raises
    ------
    InputError
        If the data or an option cannot be used.
    NumericalError
        If a computation has no finite answer.

    Warns
    -----
    NotConvergedWarning
        If the iterations ran out.
    VpemWarning
        If features are constant, or components collapsed and were placed anew.
    """
    began = time.perf_counter()
    if not isinstance(network, Network):
        raise InputError(f"the network must come from vpem.connect, got {type(network).__name__}")
    given = prepare(
        X,
        network.blocks.n_features,
        n_components=n_components,
        covariance_type=covariance_type,
        init=init,
        n_init=n_init,
        tol=tol,
        max_iter=max_iter,
        reg_covar=reg_covar,
        scale=scale,
        sample_weight=sample_weight,
        seed=seed,
        dtype=dtype,
        missing=missing,
        feature_names=feature_names,
        some=network.total.some,
    )
    first_restart = check_int("first_restart", first_restart, least=0)
    batch_size, step_size = check_batches(batch_size, step_size)
    _refuse_what_makes_no_sense(given.X, network, batch_size)
    if given.misses and batch_size is not None:
        raise InputError(
            "batches keep statistics of which parts of the rows count alike, but values are "
            "missing; fit all rows at once, without ",
            Setting("batch_size"),
        )
    threads = thread_count(n_threads)
    if saver is not None:
        saver.begin(
            describe_run(
                "vp-em",
                given.X,
                given.row_weights,
                network,
                n_components=n_components,
                covariance_type=covariance_type,
                init=init,
                n_init=n_init,
                tol=float(tol),
                max_iter=max_iter,
                reg_covar=float(reg_covar),
                scale=scale,
                seed=seed,
                n_threads=threads,
                dtype=given.precision.name,
                every_weight=not skip_negligible,
                batch_size=batch_size,
                step_size=step_size,
                missing=missing,
                **({"first_restart": first_restart} if first_restart else {}),
            )
        )
    scaling = _scaling(given.X, given.row_weights, scale, given.precision, given.misses)

    with one_blas_thread(), np.errstate(over="ignore"):
        terms = terms_of(
            given.X,
            network.blocks,
            covariance_type,
            missing=given.misses,
            scaling=scaling,
            row_weights=given.row_weights,
            reg_covar=reg_covar,
            n_threads=threads,
            dtype=given.precision,
            skip_negligible=skip_negligible,
        )
        network.complete(terms)
        ledger = Ledger(network.graph)
        network.charge_setup(ledger, given.n_samples, terms.itemsize)
        numbers = range(first_restart, first_restart + n_init)
        numbers = numbers if isinstance(init, str) else range(1)
        restarts = mixture_restarts(
            saver, ledger, max_iter, numbers, terms, network.total, n_components
        )
        best = _restored(restarts, em.Run if batch_size is None else BatchRun, network, terms)
        for restart in restarts.numbers:
            total = network.total.on(ledger)
            rng = np.random.default_rng([seed, restart])
            stream = RowStream(rng, given.row_weights, len(given.X))
            rows_used: NDArray[np.intp] | None
            if restarts.going is not None:
                rows_used = restarts.drawn()
                saved = restarts.loop("mixture")
                start = mixture_of(saved, network.blocks, covariance_type, scaling)
            elif isinstance(init, Mixture):
                start, rows_used = network.place(init, covariance_type, scaling), None
                if start.n_components != n_components:
                    raise InputError(
                        f"the starting model has {start.n_components} components, "
                        f"{n_components} were asked for"
                    )
            elif given.rows is not None:
                rows_used = given.rows
                start = terms.start(terms.at_rows(rows_used))
            else:
                start, rows_used = draw_start(cast(str, init), terms, total, n_components, stream)
            common: dict[str, Any] = {
                "tol": tol, "max_iter": max_iter, "draw_row": stream.draw, "callback": callback,
                "saver": restarts.saver(restart, rng, partial(dict, rows=rows_used)),
            }  # fmt: skip
            run: em.Run
            if batch_size is None:
                run = em.fit(terms, total, start, **common)
            else:
                run = fit_batches(
                    terms,
                    total,
                    start,
                    batch_size=batch_size,
                    step_size=step_size,
                    rng=np.random.default_rng([seed, restart, ORDER_OF_BATCHES]),
                    **common,
                )
            if best is None or run.log_likelihood[0] > best[0].log_likelihood[0]:
                best = (run, rows_used, restart)
            restarts.over(len(run.history), run.converged, partial(_saved, *best))
    assert best is not None
    run, rows_used, kept = best
    fit = Fit(
        mixture=run.mixture,
        network=network,
        history=_per_hub(np.array(run.history), network),
        root_log_likelihood=_per_hub(run.log_likelihood[None], network)[0],
        total_weight=terms.total_weight,
        n_samples=given.n_samples,
        converged=run.converged,
        recoveries=run.recoveries,
        init_rows=given.number(rows_used),
        best_restart=kept,
        seconds=time.perf_counter() - began + restarts.seconds,
        total_iterations=restarts.iterations,
        partitions=run.partitions,
        batch_size=batch_size,
        step_size=step_size,
        n_passes=getattr(run, "n_passes", None),
        free_energy=getattr(run, "free_energy", []),
        communication={**ledger.summary(), "bytes_by_iteration": run.bytes_sent},
    )
    _warn_of_outcome(fit, max_iter, tol)
    return fit


Best = tuple[em.Run, NDArray[np.intp] | None, int]
"""The best run so far, the rows it started at, and which restart it is."""


def _saved(run: em.Run, rows: NDArray[np.intp] | None, restart: int) -> dict[str, Any]:
    """Return what is saved of the best run so far."""
    return {
        "mixture": mixture_state(run.mixture),
        "record": record_state(run),
        "rows": rows,
        "restart": restart,
    }


def _restored(
    restarts: Restarts, kind: Callable[[Mixture], em.Run], network: Network, terms: FeatureTerms
) -> Best | None:
    """Return the best run of the restarts that are over, as it was saved."""
    saved = restarts.best
    if saved is None:
        return None
    common = (network.blocks, terms.covariance_type, terms.scaling)
    run = kind(mixture_of(saved["mixture"], *common))
    restore_record(run, saved["record"])
    return run, saved["rows"], saved["restart"]


@dataclass
class Prepared:
    """Data and options that have been looked at.

    Attributes
    ----------
    X : ndarray or FileMatrix of shape (m, d)
        Rows of positive weight, where they are in memory; else all.
    n_samples : int
        Rows there were, M.
    row_weights : ndarray of shape (m,) or None
        None: all alike.
    kept : ndarray of shape (m,) or None
        Which rows of the user's are in ``X``; None: all.
    rows : ndarray of shape (K,) or None
        Rows of ``X`` to start at, where init says so.
    precision : dtype
        To compute in.
    misses : bool
        Whether values are missing.
    """

    X: Any
    n_samples: int
    row_weights: NDArray[np.float64] | None
    kept: NDArray[np.intp] | None
    rows: NDArray[np.intp] | None
    precision: np.dtype[Any]
    misses: bool = False

    def number(self, rows: NDArray[np.intp] | None) -> tuple[int, ...] | None:
        """Return the user's numbers of some rows of ``X``."""
        if rows is None:
            return None
        return tuple(int(row if self.kept is None else self.kept[row]) for row in rows)


def prepare(
    X: Any,
    n_features: int,
    *,
    n_components: int,
    covariance_type: str,
    init: Any,
    n_init: int,
    tol: float,
    max_iter: int,
    reg_covar: float,
    scale: str,
    sample_weight: Any,
    seed: int,
    dtype: Any,
    feature_names: Sequence[str] | None,
    missing: str | None = None,
    some: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] | None = None,
    here: Here | None = None,
) -> Prepared:
    """Check data and options that every fit of a mixture has, named as in `fit_vpem`.

    ``some`` tells whether any process has each of some flags, where features are in several. With
    ``here`` X has the rows of this process's workers, and others have more.
    """
    check_int("seed", seed, least=0)
    precision = _precision(dtype)
    misses = False

    def finite(data: Any, names: Sequence[str] | None) -> None:
        nonlocal misses
        if missing == "marginalize":
            misses = check_missing(data, names)
        else:
            check_finite(data, names, () if missing is None else MARGINALIZE)

    if missing is not None:
        check_choice("missing", missing, MISSINGS)
    X = check_data(X, n_features, feature_names, finite=finite, least_rows=int(here is None))
    n_samples = len(X) if here is None else here.n_samples
    check_choice("covariance_type", covariance_type, COVARIANCE_TYPES)
    check_choice("scale", scale, SCALES)
    check_restarts(n_init, init)
    check_int("max_iter", max_iter, least=1)
    check_number("tol", tol, least=0.0)
    check_number("reg_covar", reg_covar, least=0.0)
    given = None
    if isinstance(init, str):
        check_choice("init", init, INITS)
    elif not isinstance(init, Mixture):
        if init is None:
            raise InputError(f"init must be {', '.join(INITS)}, row indices or a Mixture, got None")
        given = init
    check_int("n_components", n_components, least=1)
    row_weights = kept = None
    n_positive = n_samples
    some = some or np.asarray
    if missing == "marginalize":
        misses = bool(some(np.array([misses]))[0])
    blank = ~some(~np.isnan(X).all(axis=1)) if misses else np.zeros(0, dtype=bool)
    is_weighted = sample_weight is not None
    if blank.any():
        # A row of which nobody has a value tells nothing: as one of no weight.
        if sample_weight is None:
            sample_weight = np.ones(n_samples)
        sample_weight = np.where(blank, 0.0, check_weights(sample_weight, n_samples))
        if not sample_weight.any():
            raise InputError("no row that is used has a value; give data with some")
        warnings.warn(
            f"{int(blank.sum())} of {n_samples} rows have no value at all and take no part; the "
            "log-likelihood per sample is of the others",
            VpemWarning,
            stacklevel=3,
        )
    if sample_weight is not None:
        sample_weight = check_weights(sample_weight, n_samples)
        kept = np.flatnonzero(sample_weight > 0)
        n_positive = len(kept)
        _check_precision(sample_weight[kept], precision)
        if given is not None:
            rows = check_rows(given, n_components, n_samples)
            if not np.isin(rows, kept).all():
                raise InputError(
                    "init rows must have a positive sample weight"
                    f"{', and a value' if blank.any() else ''}"
                )
            if not isinstance(X, FileMatrix):
                given = np.searchsorted(kept, rows)
        row_weights = sample_weight
        if len(kept) < n_samples and not isinstance(X, FileMatrix):
            X, row_weights = X[kept], sample_weight[kept]
        else:
            kept = None
        row_weights = row_weights if is_weighted else None
    if misses:
        check_columns(X, feature_names)
        misses = bool(some(np.array([np.isnan(X).any()]))[0])
    if n_positive < n_components:
        raise InputError(
            f"{n_components} components need at least as many rows, got {n_positive}"
            f"{'' if row_weights is None else ' with a positive weight'}; try fewer components"
        )
    if given is not None:
        given = check_rows(given, n_components, len(X) if here is None else n_samples)
    _inspect(X, feature_names, reg_covar, precision, here)
    return Prepared(X, n_samples, row_weights, kept, given, precision, misses)


def _refuse_what_makes_no_sense(X: Any, network: Network, batch_size: int | None) -> None:
    """Raise InputError where two options cannot both be had, saying why."""
    if network.compress is None:
        return
    if batch_size is not None:
        raise InputError(
            "compressed sums send how terms differ from those of the iteration before, but each "
            "batch has other rows; take ",
            Setting("batch_size"),
            " without ",
            Setting("compress"),
            ", or ",
            Setting("compress"),
            " with all rows",
        )
    if isinstance(X, FileMatrix):
        raise InputError(
            "compressed sums keep the state of every agent and row in memory, but the data are "
            "read from disk; raise the memory limit, or fit without ",
            Setting("compress"),
        )


def _per_hub(values: NDArray[np.float64], network: Network) -> NDArray[np.float64]:
    """Spell out an estimate that all roots share: (n, R) to (n, B)."""
    return np.broadcast_to(values, (len(values), len(network.hubs))).copy()


def _precision(dtype: Any) -> np.dtype[Any]:
    for known in (np.dtype(np.float64), np.dtype(np.float32)):
        with contextlib.suppress(TypeError):
            if np.dtype(dtype) == known:
                return known
    raise InputError(f"dtype must be float32 or float64, got {dtype!r}")


def _check_precision(weights: NDArray[np.float64], precision: np.dtype[Any]) -> None:
    """Refuse positive row weights that a responsibility in this precision cannot be times."""
    limits = np.finfo(precision)
    if weights.min() < limits.tiny / limits.eps or weights.max() > limits.max * limits.eps:
        raise InputError(
            f"sample weights from {weights.min():g} to {weights.max():g} cannot be computed with "
            f"in {precision.name}; divide them by their mean, or use float64"
        )


def _scaling(
    X: Any,
    row_weights: NDArray[np.float64] | None,
    scale: str,
    precision: np.dtype[Any],
    misses: bool = False,
    here: Here | None = None,
) -> Scaling:
    """Units to fit in: as asked, and about the mean where single precision would lose digits."""
    standard = observed_scaling if misses else Scaling.standard
    if here is not None:
        standard = here.standard
    if scale == "standard":
        return standard(X, row_weights)
    if precision.itemsize < X.dtype.itemsize:
        return Scaling(standard(X, row_weights).shift, np.ones(X.shape[1]))
    return Scaling.none(X.shape[1])


def _inspect(
    X: Any,
    feature_names: Sequence[str] | None,
    reg_covar: float,
    precision: np.dtype[Any],
    here: Here | None = None,
) -> None:
    """Refuse values whose squares overflow, and warn of constant features."""
    most = LARGEST_VALUE[precision.itemsize]
    first = X[:1]
    if np.isnan(first).any():  # missing: the first value that is there
        first = X[np.argmin(np.isnan(X), axis=0), np.arange(X.shape[1])][None]
    constant = np.arange(X.shape[1])
    for start, part in row_blocks(X):
        large = np.fmax.reduce(np.abs(part), axis=0).astype(np.float64) > most
        if large.any():
            column = int(np.flatnonzero(large)[0])
            row = start + int(np.nanargmax(np.abs(part[:, column])))
            name = "" if feature_names is None else f" ({feature_names[column]!r})"
            raise InputError(
                f"row {row}, feature {column}{name} is {float(X[row : row + 1][0, column]):g}, but "
                f"values beyond {most:g} cannot be squared in {precision.name}; use other units"
                f"{' or float64' if precision.itemsize < 8 else ''}"
            )
        own = part[:, constant]
        constant = constant[((own == first[:, constant]) | np.isnan(own)).all(axis=0)]
    if here is not None:
        constant = here.constant(X)
    if len(constant) and (len(X) if here is None else here.n_samples) > 1:
        listed = shorten(
            repr(feature_names[j]) if feature_names is not None else j for j in constant.tolist()
        )
        warnings.warn(
            VpemWarning(
                f"constant features carry nothing to tell rows apart: {listed}; their variance is ",
                Setting("reg_covar"),
                f" ({reg_covar:g}) alone",
            ),
            stacklevel=3,
        )


def _largest(values: NDArray[np.float64]) -> float:
    heard = np.abs(values[~np.isnan(values)])
    return float(heard.max(initial=0.0))


def _warn_of_outcome(fit: Fit, max_iter: int, tol: float) -> None:
    apart = float(np.ptp(fit.root_log_likelihood) / fit.total_weight)
    if fit.network.consensus_error is None and apart > LARGEST_DISAGREEMENT:
        warnings.warn(
            f"the roots' log-likelihoods per sample differ by {apart:.2g}: the "
            f"{fit.network.n_rounds} rounds of a sum are too few, and none of them can be trusted; "
            "take more rounds, or auto",
            VpemWarning,
            stacklevel=3,
        )
    if fit.partitions:
        iteration, reason = fit.partitions[0]
        warnings.warn(
            f"the network fell apart in {len(fit.partitions)} iterations, which changed nothing; "
            f"first in iteration {iteration}: {reason}",
            VpemWarning,
            stacklevel=3,
        )
    if fit.recoveries:
        told = shorten(
            f"component {r.component} in hub {r.hub} ({r.reason}, iteration {r.iteration}"
            f"{', given up' if r.row is None else ''})"
            for r in fit.recoveries
        )
        warnings.warn(
            VpemWarning(
                f"{len(fit.recoveries)} times a collapsed component was placed anew: {told}; "
                "try fewer components or a larger ",
                Setting("reg_covar"),
            ),
            stacklevel=3,
        )
    if not fit.converged:
        change = (
            ""
            if fit.n_iter < 2
            else f": the log-likelihood per sample still changed by "
            f"{_largest(fit.history[-1] - fit.history[-2]) / fit.total_weight:.2g}"
        )
        warnings.warn(
            f"not converged after {max_iter} iterations{change} (tol {tol:g}); try more iterations",
            NotConvergedWarning,
            stacklevel=3,
        )
