"""Results of fits: the JSON of `vpem fit`, which models keep, and the warnings at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.errors import OwnDataWarning, Setting, not_converged, shorten, warn
from vpem.files.datasets import default_names
from vpem.files.models import Model, Predicting, current_versions
from vpem.fits.answer import Answer
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.records import Shown
from vpem.steps.runs import Recovery, Run
from vpem.steps.starts import held_parts
from vpem.sums.connect import Network
from vpem.terms.degenerate import AT_FLOOR, COINCIDES, coinciding
from vpem.terms.mixture import Mixture, variances_of
from vpem.terms.units import FLOOR

if TYPE_CHECKING:
    from vpem.fits.privacy import Guarantee
    from vpem.settings import FitSettings
    from vpem.sums.sum import Sum

LARGEST_DISAGREEMENT = 1e-3
"""In nats per sample, between roots whose sums have no operator to judge them by."""

FEW_VALUES = 10
"""A column of no more different values may be one of categories, or of counts."""

OF_PRIORS = "map", "dirichlet_process"
"""Priors that keep components from being degenerate."""


def warn_of_outcome(fit: Fit, settings: FitSettings) -> None:
    differ = float(np.ptp(fit.root_log_likelihood) / fit.total_weight)
    if fit.network.consensus_error is None and differ > LARGEST_DISAGREEMENT:
        warn(
            f"the roots' log-likelihoods per sample differ by {differ:.2g}: the "
            f"{fit.network.n_rounds} rounds of a sum are too few, and none of them can be trusted; "
            "take more rounds, or auto"
        )
    warn_of_partitions(fit.partitions)
    warn_of_degenerate(fit, settings)
    warn_of_copies(fit)
    few = [r for r in fit.recoveries if r.reason == "weight"] if settings.least_rows >= 1 else []
    if few:
        warn(
            f"{len(few)} of {settings.n_components} components were left out, since they had "
            f"fewer rows than the {settings.least_rows:g} of ", Setting("least_rows"),
            "; try fewer components",
        )  # fmt: skip
    placed = [r for r in fit.recoveries if r not in few]
    if placed:
        listed = shorten(
            f"component {r.component}{'' if r.hub is None else f' in hub {r.hub}'} "
            f"({r.reason}, iteration {r.iteration}"
            f"{', given up' if r.row is None else ''})"
            for r in placed
        )
        warn(
            f"components collapsed and were reinitialised {times(len(placed))}: {listed}; try "
            "fewer components or a larger ",
            Setting("reg_covar"),
        )
    if not fit.converged and settings.max_iter:
        change = ""
        if fit.n_iter >= 2:
            apart = np.abs(fit.history[-1] - fit.history[-2])
            largest = float(apart[~np.isnan(apart)].max(initial=0.0)) / fit.total_weight
            change = f": the log-likelihood per sample still changed by {largest:.2g}"
        warn(
            f"not converged after {settings.max_iter} iterations{change} "
            f"(tol {settings.tol:g}); try more iterations",
            kind=not_converged,
        )


def found_by(run: Run, settings: FitSettings) -> Report:
    """Return what a fit says of the run that was kept, wherever its data lie."""
    return {
        "mixture": run.mixture,
        "degenerate": run.degenerate,
        "partitions": run.partitions,
        "batch_size": settings.batch_size,
        "step_size": settings.step_size,
        "n_passes": None if settings.batch_size is None else run.n_passes,
        "free_energy": run.free_energy,
        "accelerate": settings.accelerate,
        "lost": run.lost,
        "fixed": held_parts(settings.fix),
    }


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def few_rows_of(fit: NetworkResult, least: float, heaviest: float = 1.0) -> str:
    """Say which components or clusters of a fit would show others few rows; empty: none.

    They have fewer than ``least`` rows of the ``heaviest`` weight, are singular but for the floor
    (rows that do not vary in some direction), or lie at a row: at a start, or reinitialised in the
    last iteration. Private fits show none.
    """
    if fit.guarantee is not None:
        return ""
    noun, rows, n_iter = fit.noun, fit.sizes / heaviest, fit.n_iter
    singular = [k for k in fit.degenerate if rows[k] >= least]
    few = np.flatnonzero(fit.in_use & (rows < least * (1 - 1e-9)))
    recent = [r for r in fit.recoveries if r.iteration >= n_iter and r.row is not None]
    late = sorted({r.component for r in recent})
    parts = [f"{noun} of fewer than {least:g} rows: "
             + shorten(f"{k} ({rows[k]:.3g})" for k in few)] * bool(len(few))  # fmt: skip
    parts += [f"singular {noun}: {shorten(map(str, singular))} (--prior map, or --family auto for "
              "columns of few values, prevents that)"] * bool(singular)  # fmt: skip
    parts += [f"{noun} just reinitialised: {shorten(map(str, late))}"] * bool(late)
    parts += ["the start of a fit, which may be rows"] * (n_iter == 0)
    return "; ".join(parts)


def warn_of_copies(fit: MixtureResult) -> None:
    if fit.copies:
        copies = shorten(map(str, fit.copies))
        warn(
            f"components that are copies of others: {copies}; fewer components would fit as well",
            level=4,
        )


def warn_of_degenerate(fit: MixtureResult, settings: object, floor: float = 0.0) -> None:
    """Warn of degenerate components, with their numbers of rows and features.

    Noisy statistics may rest on a ``floor``, relative to the data's variance.
    """
    if not fit.degenerate or getattr(settings, "floor_fits", "last") == "keep":
        return
    rows = fit.sizes
    counts = {k: f"{rows[k]:.4g}" for k in fit.degenerate}
    listed = shorten(f"{k} ({n} row{'s' * (n != '1')})" for k, n in counts.items())
    # Over rows there is one hub, of the mixture alone.
    hubs = fit.network.whole.blocks, fit.mixture.blocks
    widest = max(int(one.widths.max(initial=0)) for one in hubs)
    instead: list[str | Setting] = ["fewer components"]
    if not fit.mixture.covariance_type.endswith(("diag", "spherical")):
        instead.append(Setting("covariance_type", "diag"))
    if not fit.mixture.is_tied:
        instead.append(Setting("covariance_type", "tied"))
    if hasattr(settings, "weight_concentration_prior_type") and type(fit.mixture) is Mixture:
        instead += [Setting("weight_concentration_prior_type", one) for one in OF_PRIORS]
    if hasattr(settings, "floor_fits"):
        instead.append(Setting("floor_fits", "keep"))
    ways = [part for one in instead for part in (", ", one)][1:]
    ways[-2:-1] = [" or "] if len(instead) > 1 else []
    rest: list[str | Setting] = ["what ", Setting("reg_covar"), " adds"]
    if floor:
        rest = [f"the floor of noisy statistics, {floor:.2g} of the data's variance"]
    warn(
        f"{len(fit.degenerate)} of {fit.mixture.n_components} components are degenerate, with "
        "covariances that are singular but for ", *rest, f": {listed}, of up to "
        f"{widest} features in a hub; such a likelihood means little, try ", *ways,
        level=4,
    )  # fmt: skip


def warn_of_few_values(
    fit: MixtureResult, X: Any, names: Sequence[str] | None, settings: Any, over_rows: bool
) -> None:
    """Warn of columns of a few values, rows ``X`` (m, d), that do not vary in some components."""
    mixture = fit.mixture
    checkable = isinstance(X, np.ndarray) and type(mixture) is Mixture and mixture.n_features
    if not fit.degenerate or not checkable:
        return
    variances, means = variances_of(mixture), mixture.means[:, mixture.blocks.position]
    weights = mixture.weights[:1]
    total = weights @ (variances + (means - weights @ means) ** 2)
    floor = FLOOR * total
    if not isinstance(settings.reg_covar, str):
        floor = settings.reg_covar * (
            total if settings.scale == "standard" else np.ones_like(total)
        )
    low = (variances <= AT_FLOOR * floor) & (total > AT_FLOOR * floor)
    for j in np.flatnonzero(low.any(axis=0)).tolist():
        values = np.unique(X[~np.isnan(X[:, j]), j])
        if len(values) > min(FEW_VALUES, len(X) // 2):
            continue
        name = f"feature {j}" if names is None else names[j]
        where = shorten(map(str, np.flatnonzero(low[:, j])))
        # Rows of others may have further ones.
        several = len(values) > 1
        counted = f"{len(values)} different values" if several else "one value in the rows here"
        ways: list[str | Setting] = ["leave it out with ", Setting("drop", name)]
        if not over_rows:
            ways = [
                "treat it as a category with ",
                Setting("family", f"{name}=categorical"),
            ]
            if values.tolist() == [0, 1]:
                ways += [
                    ", or let the values of every column decide with ", Setting("family", "auto"),
                ]  # fmt: skip
        warn(
            f"{name!r} has {counted} and does not vary in some components ({where}), whose "
            "variances there are at the floor; ", *ways, level=4, kind=OwnDataWarning,
        )  # fmt: skip


def copies_of(mixtures: Sequence[Any], total: Sum) -> list[int]:
    """Return components that are copies of earlier ones in every hub, for every root.

    Loadings are compared by what a rotation cannot change: the distance between those of two
    components at the best one, from sums over hubs.
    """
    k, q = mixtures[0].n_components, mixtures[0].n_factors
    later, earlier = np.tri(k, k=-1).nonzero()
    differ = np.any([~coinciding(one)[later, earlier] for one in mixtures], axis=0)
    same = ~total.holders.any(differ)
    if not same.any():
        return []
    total.agree("flooding", len(same))
    if q:
        loadings = mixtures[0].loadings
        products = np.einsum("idp,jdq->ijpq", loadings, loadings).reshape(1, -1)
        by_holder = np.zeros((len(total.holders.own), products.size))
        by_holder[:1] = products
        products = total.holders.add_up(by_holder).reshape(k, k, q, q)
        total.agree("flooding", products.nbytes)
        sizes = np.trace(products[range(k), range(k)], axis1=1, axis2=2)
        shared = np.linalg.svd(products[later, earlier], compute_uv=False).sum(axis=1)
        apart = sizes[later] + sizes[earlier] - 2 * shared
        same &= apart <= COINCIDES**2 * np.minimum(sizes[later], sizes[earlier])
    return [int(k) for k in np.unique(later[same])]


def warn_of_partitions(partitions: list[tuple[int, str]]) -> None:
    if partitions:
        iteration, reason = partitions[0]
        count = f"{len(partitions)} iteration{'' if len(partitions) == 1 else 's'}"
        warn(
            f"the network was disconnected in {count}, which changed nothing; the first was "
            f"iteration {iteration}: {reason}",
            level=4,
        )


def listed(partitions: list[tuple[int, str]]) -> list[Report]:
    """Say in values that JSON can hold in which iterations the network was disconnected."""
    return [{"iteration": at, "reason": reason} for at, reason in partitions]


def of_workers(workers: Workers, holders: Sequence[str]) -> Report:
    return {
        "n_workers": workers.n_workers,
        "worker_names": list(holders),
        "agent_names": list(holders),
        "worker_rows": workers.counts.tolist(),
    }


SUMMED = (
    "sum", "tree", "rounds", "weights", "mixing_rate", "consensus_error",
    "consensus_error_is_bound", "acceleration", "consensus_tol", "secure_sum",
)  # fmt: skip
"""What a report says of the rounds of a network, by the names of `Network.describe`."""


def reported(found: object, *names: str) -> Report:
    """Return what a report says of a result, or of a part of it: attributes of these names."""
    return {name: getattr(found, name) for name in names}


@dataclass(kw_only=True)
class Result(Shown, ABC, facts="{converged:converged|not converged}, {n_iter:iteration}"):
    """What every fit ends with.

    ``seconds`` are wall time of all restarts, and ``communication`` what these sent
    (`vpem.network.ledger.Ledger.summary`), with ``bytes_by_iteration``, an entry for each of the
    history.
    """

    converged: bool
    seconds: float = 0.0
    communication: Report = field(default_factory=dict)

    @property
    @abstractmethod
    def n_iter(self) -> int:
        """Iterations, of the restart that was kept."""


@dataclass(kw_only=True)
class NetworkResult(Result):
    """What every fit over a network ends with.

    ``init_rows`` are where it was first placed (None: it started from a model or from centres),
    ``best_restart`` counts from 0, and ``total_iterations`` those of all restarts. With a
    ``guarantee`` of what rows are promised there is no history, and nothing by which it is judged.
    Components that are ``degenerate`` are singular in a hub but for the floor
    (`vpem.terms.degenerate`); those of ``recoveries`` collapsed and were reinitialised. The
    ``ledger`` counted ``communication``.
    """

    network: Network
    init_rows: tuple[int, ...] | None = None
    best_restart: int = 0
    total_iterations: int = 0
    ledger: Ledger | None = None
    guarantee: Guarantee | None = None
    degenerate: list[int] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    history: Sized
    noun: ClassVar[str] = "components"

    @property
    def n_iter(self) -> int:
        """Iterations of the restart that was kept."""
        return len(self.history) if self.guarantee is None else self.total_iterations

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Features, d."""

    @property
    @abstractmethod
    def sizes(self) -> NDArray[np.float64]:
        """Weight of the rows (K,) of each component or cluster."""

    @property
    @abstractmethod
    def in_use(self) -> NDArray[np.bool_]:
        """Which of them (K,) have rows."""

    @abstractmethod
    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold, with names of features and of holders.

        These are agents (N,), or workers. Agents, workers, hubs, rows and features are numbered
        from 0; log-likelihoods are in nats and in the user's units.
        """

    def own_names(self) -> tuple[tuple[str, ...], list[str]]:
        """Return names of features and holders where none were given: their numbers."""
        graph = self.network.graph
        holders = graph.names or [f"agent {number}" for number in range(graph.n_agents)]
        return default_names(self.n_features), list(holders)

    @property
    def _starts(self) -> list[int] | None:
        return None if self.init_rows is None else list(self.init_rows)


@dataclass(kw_only=True)
class MixtureResult(
    NetworkResult,
    Predicting,
    facts="{mixture.n_components:component}, {mixture.n_features:feature}, "
    "{converged:converged|not converged} after {n_iter:iteration}, "
    "log-likelihood per sample {log_likelihood:.6g}",
):
    """A fitted mixture, and how it came about.

    ``history`` (n, R) is the total log-likelihood by iteration, as each root finds it, and
    ``total_weight`` the sum of row weights (without any the number of rows). ``copies`` are
    components whose parameters are those of an earlier one in every hub, ``fixed`` parameters that
    were held: "weights", "covariances".
    """

    mixture: Mixture
    history: NDArray[np.float64]
    total_weight: float
    copies: list[int] = field(default_factory=list)
    fixed: tuple[str, ...] = ()

    @property
    def n_parameters(self) -> int:
        """Parameters that were fitted: those that were held fixed do not count."""
        count, k = int(self.mixture.n_parameters), int(self.mixture.n_components)
        if "covariances" in self.fixed:
            count = k - 1 + k * self.mixture.n_features
        return count - (k - 1) * ("weights" in self.fixed)

    @property
    def n_features(self) -> int:
        """Features of the mixture, d."""
        return self.mixture.n_features

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Weight of the rows (K,) of each component, as expected."""
        mixture = self.mixture
        return mixture.assembled_weights * (self.total_weight * (1 - mixture.outlier_share))

    @property
    def in_use(self) -> NDArray[np.bool_]:
        """Components (K,) that have rows."""
        mixture: Any = self.mixture
        return np.asarray(mixture.in_use if mixture.is_proper else self.sizes > 0)

    @property
    @abstractmethod
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the fitted mixture."""

    @property
    def bic(self) -> float:
        """Bayesian information criterion, from the mean log-likelihood over roots."""
        penalty = self.n_parameters * float(np.log(self.total_weight))
        return penalty - 2 * (self.log_likelihood * self.total_weight)

    @property
    def aic(self) -> float:
        """Akaike information criterion, from the mean log-likelihood over roots."""
        return 2 * self.n_parameters - 2 * (self.log_likelihood * self.total_weight)

    def add_to_likelihoods(self, total: float) -> None:
        """Add a constant to log-likelihoods of all rows, as other units of features do."""
        self.history = self.history + total

    def answer(self, feature_names: Sequence[str]) -> Answer:
        """Return how large components are, and in which features each differs."""
        answer = Answer.of_mixture(self.mixture, feature_names, self.total_weight)
        return replace(answer, degenerate=tuple(self.degenerate))

    def kept(
        self,
        feature_names: Sequence[str] | None = None,
        report: Report | None = None,
        options: Report | None = None,
    ) -> Model:
        """Return the model that a file keeps.

        The report is from `describe`, with what else there is to say; its ``history`` is left out,
        as are ``components``, which follow from the parameters, and where rows are protected
        warnings, which would show something of them. Without names features and holders have
        numbers.
        """
        names, holders = self.own_names()
        names = names if feature_names is None else tuple(feature_names)
        report = self.describe(names, holders) if report is None else report
        history = self.history
        left_out = {"history", "components"} | ({"warnings"} if "privacy" in report else set())
        roots = history.shape[1] > self.mixture.blocks.n_blocks
        return Model(
            self.mixture,
            names,
            {name: value for name, value in report.items() if name not in left_out},
            history.mean(axis=1, keepdims=True) if roots else history,
            options or {},
            current_versions(),
            history if roots else None,
        )

    def _size(self) -> Report:
        factors = ["n_factors"] * bool(self.mixture.n_factors)
        names = ("n_components", "covariance_type", *factors)
        sizes = {**reported(self.mixture, *names), "n_parameters": self.n_parameters}
        return {**sizes, "degenerate": self.degenerate}


@dataclass(kw_only=True)
class Fit(MixtureResult):
    """A mixture fitted to features that agents hold.

    Attributes
    ----------
    mixture, network, history, total_weight
        See `MixtureResult`; a row of ``history`` (n_iter, B) comes from the E-step of an iteration,
        the first from that of the start.
    root_log_likelihood : ndarray of shape (B,)
        Total log-likelihood of `mixture`, as each root finds it.
    prior : dict or None
        Under which the parameters are the mode (`--prior map`), of all hubs; `mixture` of any other
        prior has it. Then ``history`` is that of the penalised log-likelihood, which EM raises.
    log_prior : float
        Log-density of the parameters under it, less that at its mode, in nats; mean over roots.
    n_samples : int
        Number of rows.
    converged : bool
        Whether all roots proposed to stop.
    partitions : list of (int, str)
        Iterations in which the network was disconnected, and how; parameters stayed as they were.
    batch_size, step_size, accelerate : int, float, str or None
        As they were set.
    lost : list of int
        Iterations, counted from 1 with these, whose sum found that to be too much; they have no
        entry in the history.
    n_passes : float or None
        Rows worked on in batches, in multiples of all of them; None without batches.
    free_energy : list of float
        After every batch, where sums are exact.
    responsibilities : dict of int to ndarray of shape (M, K)
        Of all rows, as agents of this process hear of them, where they do.
    labels_for_fit : dict or None
        Of how many rows labels were given, by which agent, and their names: of the first
        components, in this order. Log-likelihoods are then of rows and labels together.
    mixtures : list of Mixture
        Of workers: one where all share the sum; under consensus that of each worker, or on MPI
        ranks other than the first of each worker of the rank. `mixture` is the first.
    init_rows, best_restart, total_iterations, guarantee, recoveries, seconds, communication
        See `NetworkResult`.
    """

    root_log_likelihood: NDArray[np.float64]
    n_samples: int
    prior: Report | None = None
    log_prior: float = 0.0
    partitions: list[tuple[int, str]] = field(default_factory=list)
    batch_size: int | None = None
    step_size: float | None = None
    accelerate: str | None = None
    lost: list[int] = field(default_factory=list)
    n_passes: float | None = None
    free_energy: list[float] = field(default_factory=list)
    responsibilities: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    labels_for_fit: Report | None = None
    mixtures: list[Mixture] = field(default_factory=list)

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the fitted mixture, mean over roots.

        Of a variational fit that is the lower bound of the log-evidence.
        """
        return float(self.root_log_likelihood.mean() / self.total_weight)

    def add_to_likelihoods(self, total: float) -> None:
        super().add_to_likelihoods(total)
        self.root_log_likelihood = self.root_log_likelihood + total

    def answer(self, feature_names: Sequence[str]) -> Answer:
        """Return how large components are, how each differs, and which labels they have."""
        names = () if self.labels_for_fit is None else self.labels_for_fit["names"]
        return replace(super().answer(feature_names), labels=tuple(names))

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold; see `NetworkResult.describe`."""
        network = self.network
        return {
            "algorithm": "vp-em",
            **self._data(feature_names),
            "agent_names": list(holders),
            "partition": network.agents_of_features(),
            "hubs": [
                {
                    "root": int(hub.root),
                    "agents": [int(agent) for agent in hub.agents],
                    "features": columns.tolist(),
                }
                for hub, columns in zip(network.hubs, network.blocks.features, strict=True)
            ],
            "hops": network.hops,
            **network.describe("hubs_chosen"),
            **self._network(),
            **reported(self, "batch_size", "step_size", "n_passes"),
            "free_energy": (np.array(self.free_energy) / self.total_weight).tolist(),
            **({} if self.labels_for_fit is None else {"labels_for_fit": self.labels_for_fit}),
            **self._run(),
        }

    def _data(self, feature_names: Sequence[str]) -> Report:
        return {
            **reported(self, "n_samples", "n_features"),
            "n_agents": self.network.graph.n_agents,
            **self._size(),
            "feature_names": list(feature_names),
        }

    def _network(self) -> Report:
        described = self.network.describe(
            "server", "edges", "topology", "positions", *SUMMED, "compress", "faults"
        )
        return {
            **described,
            "partitions": listed(self.partitions),
            **self.network.describe("consensus_path"),
        }

    def _run(self) -> Report:
        mixture: Any = self.mixture
        criteria = Report(bic=self.bic, aic=self.aic)
        if mixture.is_proper:
            # A lower bound has its price for parameters in it.
            criteria = {"lower_bound": self.log_likelihood, **mixture.reported()}
        else:
            criteria |= penalised_in_report(self)
        outliers = {"outliers": mixture.describe_outliers()} if mixture.outliers else {}
        return {
            "mixing_weights": self.mixture.assembled_weights.tolist(),
            **outliers,
            **reported(self, "converged", "accelerate"),
            "lost_sums": self.lost,
            **reported(self, "n_iter", "total_weight", "log_likelihood"),
            "root_log_likelihood": (self.root_log_likelihood / self.total_weight).tolist(),
            "history": self.history.tolist(),
            **criteria,
            "seconds": self.seconds,
            **({} if self.guarantee is None else self.guarantee.in_report()),
            "init_rows": self._starts,
            "restart": self.best_restart,
            "recoveries": [asdict(recovery) for recovery in self.recoveries],
            "communication": self.communication,
            "iterations_per_second": self.total_iterations / max(self.seconds, 1e-9),
        }


def penalised_in_report(fit: Any) -> Report:
    """Return what a report says of a fit's prior or penalty, if there is one."""
    if fit.prior is None:
        return {}
    penalised = fit.log_likelihood + fit.log_prior / fit.total_weight
    zero = np.flatnonzero((fit.mixture.means == 0).all(axis=0))
    is_sparse = any(word in fit.prior.get("penalty", "") for word in ("lasso", "elastic-net"))
    return {
        "prior": fit.prior,
        **({"features_left_out": zero.tolist()} if is_sparse else {}),
        "log_prior": fit.log_prior,
        "penalised_log_likelihood": penalised,
    }


@dataclass(kw_only=True)
class RowFit(Fit):
    """A mixture fitted to rows that workers hold.

    Of a private fit ``clipped`` are the rows of each worker of this process that had values beyond
    the bounds; no part of reports or models, since no other agent may know.
    """

    workers: Workers
    clipped: dict[int, int] = field(default_factory=dict)

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold; see `NetworkResult.describe`.

        Parameters are those of the first worker, and ``disagreement`` is how far log-likelihoods
        per sample and mixing weights of the workers' models lie apart.
        """
        blocks = self.mixture.blocks
        weights = np.concatenate([mixture.weights for mixture in self.mixtures])
        agents = list(blocks.agents[0])
        return {
            "algorithm": "em-rows",
            "split": "rows",
            **self._data(feature_names),
            **of_workers(self.workers, holders),
            "hubs": [{"root": 0, "agents": agents, "features": blocks.features[0].tolist()}],
            "hops": 0,
            **self._network(),
            "disagreement": {
                "log_likelihood": None
                if self.guarantee is not None
                else float(np.ptp(self.root_log_likelihood) / self.total_weight),
                "mixing_weights": float(np.ptp(weights, axis=0).max()),
            },
            **self._run(),
        }
