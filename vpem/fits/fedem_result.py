"""What FedEM of a mixture ends with: its report, and warnings of noise."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from vpem.errors import Setting, VpemWarning, not_converged
from vpem.fits.results import MixtureResult
from vpem.network.codecs import Codec
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.settings import FedMixtureSettings
from vpem.steps.fedruns import FEW, FedRun
from vpem.terms.covariances import is_tied
from vpem.terms.statistic_map import FLOOR

OFTEN = 0.1
"""Share of the later iterations that project something, from which on there is a warning."""


@dataclass(kw_only=True)
class FedFit(MixtureResult):
    """A mixture fitted by FedEM and how it came about.

    Attributes
    ----------
    mixture : Mixture
        Parameters; on a graph those of the mean of the workers' statistics.
    history : ndarray of shape (n, 1)
        Total log-likelihood of the iterations recorded.
    run : FedRun
        Statistic, history, memories.
    workers : Workers
        Who held which rows.
    options : dict
        Of the algorithm, as they were taken.
    network, total_weight, converged, init_rows, seconds, communication
        See `vpem.fits.results.MixtureResult`.
    """

    run: FedRun
    workers: Workers
    options: Report = field(default_factory=dict)

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.run.n_iter

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the mixture, on all rows."""
        return self.run.history.objective[-1]

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold; see `NetworkResult.describe`.

        The mean field is in the units of fitting.
        """
        run, mixture, workers, network = self.run, self.mixture, self.workers, self.network
        history = run.history
        return {
            "algorithm": "vr-fedem" if self.options["variance_reduction"] else "fedem",
            "split": "rows",
            "n_samples": workers.n_samples,
            "n_features": mixture.n_features,
            "total_weight": self.total_weight,
            "n_agents": workers.n_workers,
            "n_workers": workers.n_workers,
            "worker_names": list(holders),
            "agent_names": list(holders),
            "worker_rows": workers.counts.tolist(),
            **self._size(),
            "feature_names": list(feature_names),
            **network.describe("topology", "edges", "positions", "server"),
            "hops": 0,
            **network.describe("sum", "tree", "secure_sum"),
            **network.describe("rounds", "weights", "mixing_rate", "consensus_error", "faults"),
            "partitions": [{"iteration": at, "reason": reason} for at, reason in run.partitions],
            **self.options,
            "omega": run.omega,
            "step_ceiling": run.steps.ceiling,
            "safe_step": run.steps.safe,
            "theorem_step": run.steps.theorem,
            "inner": run.steps.inner,
            "statistic_size": len(run.statistic),
            "mixing_weights": mixture.assembled_weights.tolist(),
            "log_likelihood": self.log_likelihood,
            "bic": self.bic,
            "aic": self.aic,
            "converged": self.converged,
            "in_noise": run.in_noise,
            "n_iter": self.n_iter,
            "n_epochs": run.epochs,
            "projections": run.projections,
            "projected_share": run.projected_share,
            "disagreement": history.disagreement[-1],
            "mean_field": history.mean_field,
            "epochs": history.epochs,
            "history": history.objective,
            "recorded": history.iteration,
            "bytes_up": history.bytes_up,
            "init_rows": self._starts,
            "communication": self.communication,
            "seconds": self.seconds,
        }


def options_of(run: FedRun, how: FedMixtureSettings, compress: str | None) -> Report:
    """Return what a report says of the algorithm's options, as they were taken."""
    return {
        "compress": compress,
        "step_size": "function" if callable(how.step_size) else run.steps.taken,
        "alpha": run.alpha,
        "participation": how.participation,
        "batch_size": run.steps.batch_size,
        "variance_reduction": bool(how.variance_reduction),
        "weighting": how.weighting,
        "memory": how.memory,
        "scale": how.scale,
        "tol": how.tol,
    }


def warn_of_noise(
    run: FedRun, how: FedMixtureSettings, codec: Codec | None, of_rounds: str | None
) -> None:
    """Warn where noise spoiled M-steps, stays in what was found, or kept the run from its end.

    The codec is that of corrections; without a server there may be one of the network's rounds.
    """
    at_end = run.n_iter in run.projected[-1:]
    if at_end or (run.n_iter >= FEW and run.projected_share > OFTEN):
        ways: list[str] = []
        finer: list[str | Setting] = ["a smaller step size"]
        assert how.floor is not None
        if codec is not None:
            ways.append("more bits (such as qsgd:6bits:32 or qsgd:8bits:32)")
        elif of_rounds is not None:  # whose numbers have the features' units
            ways.append("a codec that rounds each number by itself (such as natural:12bits)")
        elif 0 < how.floor < FLOOR:
            finer = ["a smaller ", Setting("consensus_tol")]
        ways.append("fewer components")
        if not is_tied(how.covariance_type):
            ways.append("one covariance for all (tied)")
        ended = f", the last too, and what is found rests on the floor ({how.floor:.2g} of the " \
            "data's variance, by the error of a sum)" if at_end else ""  # fmt: skip
        warnings.warn(
            VpemWarning(
                "weights or covariances had to be projected in "
                f"{run.projected_share:.0%} of the later half of the iterations{ended}: noise is "
                "large for what the data tell of a component, or a component collapses; take ",
                *finer,
                "".join(f", {way}" for way in ways[:-1]) + f" or {ways[-1]}",
            ),
            stacklevel=3,
        )
    if run.in_noise:
        batches, steps = how.batch_size is not None, "smaller steps leave less of it"
        of, without = ("of batches", "variance reduction") if batches else (
            "of what is sent or who is heard", "memory first"
        )  # fmt: skip
        warnings.warn(
            f"at rest after {run.n_iter} iterations but for the noise {of}, which stays in the "
            f"result: {without} takes it away, {steps}",
            VpemWarning,
            stacklevel=3,
        )
    if run.spoiled and how.tol > 0:
        warnings.warn(
            not_converged(
                f"not converged in {run.n_iter} iterations: statistics were projected in most of "
                "them, so that where they rest is no place that EM would"
            ),
            stacklevel=3,
        )
    elif how.tol > 0 and not run.converged:
        warnings.warn(
            not_converged(
                f"not converged within {run.n_iter} iterations: corrections are still above tol="
                f"{how.tol:g}; {_lasting_noise(how, codec) or 'allow more iterations'}"
            ),
            stacklevel=3,
        )


def _lasting_noise(how: FedMixtureSettings, codec: Codec | None) -> str | None:
    """Say which noise stays in corrections however long a run is, and what to do about it."""
    if how.batch_size is not None and not how.variance_reduction:
        return "the noise of batches keeps them there: take variance reduction, or more iterations"
    if how.memory == "none" and (codec is not None or how.participation < 1):
        return "without memories noise keeps them there: take memory first, or more iterations"
    return None
