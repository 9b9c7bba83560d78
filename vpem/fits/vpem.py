"""Named algorithms: what is summed, how, and by which step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import check_int
from vpem.errors import InputError, Setting
from vpem.files.matrix import FileMatrix
from vpem.fits.fingerprint import describe_run
from vpem.fits.prepare import Prepared, _scaling, prepare
from vpem.fits.results import Fit, _warn_of_outcome
from vpem.network.ledger import Ledger
from vpem.steps import em
from vpem.steps.batches import check_batches, fit_batches
from vpem.steps.restarts import Restart, Restarts
from vpem.steps.runs import MixtureRuns, Progress, Run
from vpem.steps.saver import Saver
from vpem.steps.starts import RowStream, draw_start
from vpem.sums.connect import Network
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import terms_of
from vpem.terms.mixture import Mixture

__all__ = ["fit_vpem"]

ORDER_OF_BATCHES = 1
"""Sets the stream that orders batches apart from the one that draws rows."""


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
    callback: Callable[[Progress], None] | None = None,
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
        Rows of an iteration of batch VP-EM (`vpem.steps.batches.fit_batches`); ``max_iter`` and
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
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).

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
        kept = MixtureRuns(terms, network.total, n_components)
        attempts = _Attempts(
            network,
            given,
            terms,
            kept,
            init,
            {"tol": tol, "max_iter": max_iter, "callback": callback},
            None if batch_size is None else {"batch_size": batch_size, "step_size": step_size},
        )
        numbers = range(first_restart, first_restart + n_init)
        numbers = numbers if isinstance(init, str) else range(1)
        restarts = Restarts(saver, ledger, numbers, seed, max_iter, kept)
        best = restarts.best(network.total, attempts)
    run = best.run
    fit = Fit(
        mixture=run.mixture,
        network=network,
        history=_per_hub(np.array(run.history), network),
        root_log_likelihood=_per_hub(run.log_likelihood[None], network)[0],
        total_weight=terms.total_weight,
        n_samples=given.n_samples,
        converged=run.converged,
        recoveries=run.recoveries,
        init_rows=given.number(best.rows),
        best_restart=best.restart,
        seconds=time.perf_counter() - began + restarts.seconds,
        total_iterations=restarts.iterations,
        partitions=run.partitions,
        batch_size=batch_size,
        step_size=step_size,
        n_passes=None if batch_size is None else run.n_passes,
        free_energy=run.free_energy,
        communication={**ledger.summary(), "bytes_by_iteration": run.bytes_sent},
    )
    _warn_of_outcome(fit, max_iter, tol)
    return fit


@dataclass(frozen=True)
class _Attempts:
    """Runs of one restart after the other, over the same terms."""

    network: Network
    given: Prepared
    terms: FeatureTerms
    kept: MixtureRuns
    init: str | Sequence[int] | NDArray[Any] | Mixture
    stop: dict[str, Any]
    batches: dict[str, Any] | None

    def __call__(self, restart: Restart) -> tuple[Run, NDArray[np.intp] | None]:
        """Run one restart; returns also the rows that it started at."""
        terms, total = self.terms, restart.total
        stream = RowStream(restart.rng, self.given.row_weights, len(self.given.X))
        start, rows = self._start(restart, stream)
        how = {"draw_row": stream.draw, "saver": restart.saver(rows=rows), **self.stop}
        if self.batches is None:
            return em.fit(terms, total, start, **how), rows
        order = np.random.default_rng([*restart.seed, ORDER_OF_BATCHES])
        return fit_batches(terms, total, start, rng=order, **self.batches, **how), rows

    def _start(
        self, restart: Restart, stream: RowStream
    ) -> tuple[Mixture, NDArray[np.intp] | None]:
        """Return parameters to start from, and the rows that they come from."""
        terms, init, n_components = self.terms, self.init, self.kept.n_components
        if restart.saved is not None:
            return self.kept.mixtures(restart.loop)[0], restart.drawn()
        if isinstance(init, Mixture):
            start = self.network.place(init, terms.covariance_type, terms.scaling)
            if start.n_components != n_components:
                raise InputError(
                    f"the starting model has {start.n_components} components, "
                    f"{n_components} were asked for"
                )
            return start, None
        if isinstance(init, str):
            return draw_start(init, terms, restart.total, n_components, stream)
        rows = self.given.rows
        assert rows is not None
        return terms.start(terms.at_rows(rows)), rows


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
