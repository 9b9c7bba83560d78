"""Discriminant analysis: a Gaussian mixture of each class, over agents that hold features.

MclustDA of Fraley and Raftery (2002), "Model-Based Clustering, Discriminant Analysis, and Density
Estimation", section 4: a mixture a class, of its own number of components and covariance family.
EDDA of Bensmail and Celeux (1996): one component a class, and one family for all. Either is one
mixture whose components have classes, whose weights are those of their classes times their own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import AnyArray, Matrix, check_data, check_finite
from vpem.engines.engine import set_topic
from vpem.errors import InputError, NumericalError, Setting, VpemWarning, check_choice, shorten
from vpem.files.matrix import select_rows
from vpem.fits.labels import KnownLabels, label_name
from vpem.fits.parts import outline
from vpem.fits.prepare import MARGINALIZE, check_count, weighed
from vpem.fits.results import Fit
from vpem.fits.selection.trials import ByFeatures, folds_of
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.settings import MCLUST, WEIGHT_PRIORS, DiscriminantSettings, FitSettings
from vpem.sums.connect import Network, refuse_directed
from vpem.terms.mixture import Mixture
from vpem.terms.rows import check_missing, rows_with_values


@dataclass(kw_only=True)
class DiscriminantFit(Fit):
    """A mixture whose components have classes.

    It and its log-likelihood are of rows without their labels. ``model_type`` is "mclustda" or
    "edda". ``classes`` (C,) are the labels, ascending, and ``class_of`` (K,) has the number of the
    class of each component. ``chosen`` are of each class the number of components, the covariance
    type, and BIC (of all classes in EDDA); lower is better. ``n_free`` counts the parameters of the
    classes' mixtures, without the shares of the classes, as mclust does.
    """

    model_type: str
    classes: AnyArray
    class_of: NDArray[np.intp]
    chosen: list[Report]
    n_free: int

    @property
    def n_parameters(self) -> int:
        return self.n_free

    @property
    def n_iter(self) -> int:
        """Iterations of all mixtures that were kept."""
        return self.total_iterations

    def predict_classes(self, X: Matrix | None, missing: str = "refuse") -> NDArray[np.float64]:
        """Return the probability of each class, shape (M, C)."""
        members = np.eye(len(self.classes))[self.class_of]
        if not self.network.agents.apart:
            assert X is not None
            return self.mixture.predict_proba(X, missing=missing) @ members
        held = ByFeatures(X, self.network, None, None, missing)
        held.count()
        return held.responsibilities(self.mixture) @ members

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        about = {
            "model_type": self.model_type,
            "classes": [label_name(one) for one in self.classes.tolist()],
            "class_of": self.class_of.tolist(),
            "chosen": self.chosen,
        }
        report = super().describe(feature_names, holders)
        return report | {"algorithm": "discriminant", "discriminant": about}


def fit_discriminant(
    X: Matrix,
    labels: ArrayLike,
    network: Network,
    settings: FitSettings | None = None,
    *,
    model_type: str = DiscriminantSettings.model_type,
    n_components: Sequence[int] = (1, 2, 3, 4, 5),
    covariance_type: Sequence[str] = tuple(MCLUST.values()),
    sample_weight: ArrayLike | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Any], None] | None = None,
    labelled_by: int | None = None,
    **changes: object,
) -> DiscriminantFit:
    """Fit a mixture to each class, over agents that hold features.

    All agents know the labels (M,) of the rows (M, d), or the agent ``labelled_by`` sends them to
    all, which is counted; each class's mixture is fitted as `vpem.fit_vpem` does. Of the numbers of
    components and covariance types those of lowest BIC are kept; those that cannot be fitted are
    passed over, as are degenerate ones where others are not. As ``model_type`` "mclustda" has a
    mixture a class, "edda" one component a class with a common covariance type; what settings say
    of both has no effect. Several processes call it alike, with their columns as
    `vpem.fits.spread.fit_spread` takes them, and `labels_of_all`; each has the mixture of its own
    hubs, and only more components than rows are passed over.

    Raises InputError if rows have no label, labels and rows differ in number, or no mixture of a
    class can be fitted.
    """
    began = time.perf_counter()
    settings = FitSettings.resolve(settings, **changes)
    _refuse(settings)
    check_choice("model_type", model_type, ("mclustda", "edda"))
    y = np.asarray(labels)
    if X is not None and y.shape != (len(X),):
        raise InputError(f"{len(X)} rows need as many labels, got shape {y.shape}")
    number_of, labels_there = KnownLabels(y).coded()
    names = [label_name(one) for one in labels_there]
    if (number_of < 0).any():
        row = int(np.argmax(number_of < 0))
        raise InputError(
            f"row {row} has no label, but each row belongs to a class; leave it out, or fit all "
            "rows with labels of some, 'vpem fit --labels'"
        )
    if network.agents.apart:
        refuse_directed(network, "classes in several processes take")
    else:
        refuse = partial(check_finite, advice=MARGINALIZE)
        finite = refuse if settings.missing == "refuse" else check_missing
        # Here, where rows have the numbers that the user knows.
        X = check_data(X, int(network.blocks.widths.sum()), feature_names, finite=finite)
    weights = None if sample_weight is None else np.asarray(sample_weight)
    held = ByFeatures(X, network, weights, feature_names, settings.missing)
    ledger = Ledger(network.graph)
    if labelled_by is not None:
        network.total.counted_on(ledger).agree("setup", number_of.nbytes, labelled_by)
    pooled = model_type == "edda"
    groups = [(f"class {name}", np.flatnonzero(number_of == c)) for c, name in enumerate(names)]
    counts = n_components
    if pooled:
        groups, counts = [("classes", np.arange(len(y)))], [len(names)]
    numbers = number_of if pooled else None
    found: list[_Best] = []
    for what, rows in groups:
        try:
            cells = product(counts, covariance_type)
            found.append(_best(held, rows, settings, cells, numbers, ledger, callback))
        except InputError as error:
            if network.agents.apart:
                raise
            raise InputError(f"{what}, of {len(rows)} rows: {error}") from None
    fits = [one.fit for one in found]
    sizes = [1] * len(names) if pooled else [fit.mixture.n_components for fit in fits]
    totals = np.array([fit.total_weight for fit in fits])
    mixture = joined([held.known(fit) for fit in fits], totals / totals.sum())
    total, used = total_of(held, replace(fits[0], mixture=mixture), None, ledger)
    shared = (len(names) - 1) * pooled * float(np.log(used))  # of the classes' shares
    class_of = np.repeat(np.arange(len(names)), sizes)
    begins = np.cumsum([0, *sizes]).tolist()
    return DiscriminantFit(
        model_type=model_type,
        classes=np.unique(y),
        class_of=class_of,
        chosen=[
            {
                "n_components": k,
                "covariance_type": one.fit.mixture.covariance_type,
                "bic": one.bic - shared,
            }
            for k, one in zip(sizes, found * (len(names) if pooled else 1), strict=True)
        ],
        n_free=sum(one.n_parameters for one in found) - (len(names) - 1) * pooled,
        mixture=mixture,
        network=network,
        history=np.full((1, fits[0].history.shape[1]), total),
        root_log_likelihood=np.full(len(fits[0].root_log_likelihood), total),
        total_weight=used,
        n_samples=len(y),
        converged=all(fit.converged for fit in fits),
        total_iterations=sum(fit.total_iterations for fit in fits),
        degenerate=[at + k for at, fit in zip(begins, fits, strict=False) for k in fit.degenerate],
        ledger=ledger,
        communication=ledger.summary(),
        seconds=time.perf_counter() - began,
        labels_for_fit={
            "agent": 0,
            "n_rows": len(y),
            "names": [names[one] for one in class_of],
            "rows": (mixture.assembled_weights * used).tolist(),
        },
    )


def _refuse(settings: FitSettings) -> None:
    """Raise InputError for what a mixture of each class cannot have."""
    prior = settings.weight_concentration_prior_type
    given = {
        "weight_concentration_prior_type": prior in WEIGHT_PRIORS,
        "init": not isinstance(settings.init, str),
        "n_factors": settings.n_factors,
        "fix": settings.fix,
        "noise": settings.noise,
        "trim": settings.trim,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise InputError(
            Setting(name),
            " is of one mixture, but each class has its own, whose size BIC chooses; leave it out",
        )


class _Best(NamedTuple):
    """A fit as this process has it, and what is counted of all its parameters."""

    fit: Fit
    bic: float
    n_parameters: int


def _best(
    held: ByFeatures,
    rows: NDArray[np.intp],
    settings: FitSettings,
    cells: Iterable[tuple[int, str]],
    numbers: NDArray[np.intp] | None,
    ledger: Ledger,
    callback: Callable[[Any], None] | None,
) -> _Best:
    """Return the fit to some rows of lowest BIC; messages of all are counted.

    With ``numbers`` of classes (M,) components are these, and likelihoods those of rows alone.
    """
    best: tuple[tuple[bool, float], _Best, list[Any]] | None = None
    reasons, engine = [], held.network.agents.engine
    for k, kind in cells:
        one = settings.changed(n_components=k, covariance_type=kind)
        options = one.values() | {"labels_for_fit": numbers, "callback": callback}
        alike = True
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", VpemWarning)
            try:
                check_count(k, len(rows))
                alike = not engine.apart
                fit = held.fit(rows, options)
                assert fit.ledger is not None
                ledger.add(fit.ledger)
                if numbers is not None:
                    fit.root_log_likelihood[:] = total_of(held, fit, rows, ledger)[0]
            except (InputError, NumericalError) as error:
                if not alike:  # others may still work on it
                    raise
                reasons.append(f"{k} {kind}: {error}")
                continue
        whole = outline(fit) if engine.apart else fit
        bic, degenerate = engine.bcast([float(whole.bic), bool(fit.degenerate)])
        # Rounded, since several families are the same for one component: the first is kept.
        rank = degenerate and settings.floor_fits != "keep", round(bic, 6)
        if np.isfinite(bic) and (best is None or rank < best[0]):
            kept = _Best(fit, bic, whole.n_parameters)
            best = rank, kept, [each.message for each in heard]
    if best is None:
        raise InputError(f"no mixture could be fitted; the first, {next(iter(reasons), 'none')}")
    for message in best[2]:
        warnings.warn(message, stacklevel=4)
    return best[1]


def total_of(
    held: ByFeatures, fit: Fit, rows: NDArray[np.intp] | None, ledger: Ledger
) -> tuple[float, float]:
    """Return the log-likelihood of rows, and what those that have a value weigh."""
    if held.network.graph.is_directed:  # along which there is no exact sum
        X: Any = held.X if rows is None else select_rows(held.X, [rows])
        weights = held.weights
        weights = weights if rows is None or weights is None else np.asarray(weights)[rows]
        scores = fit.mixture.score_samples(X, missing=held.missing)
        return weighed(scores, rows_with_values(X, held.missing), weights)
    judged = held.judge(fit, rows)
    ledger.add(held.sent)
    total, used = held.network.agents.engine.bcast([judged.log_likelihood, judged.weight])
    return total, used


def labels_of_all(labels: ArrayLike | None, agent: int, network: Network) -> tuple[AnyArray, int]:
    """Return the labels (M,) that the process of one agent sends to all, and that agent."""
    engine = network.agents.engine
    owners = engine.allgather(None if labels is None else agent)
    known = [one for one in owners if one is not None]
    if len(known) != 1:
        raise InputError(
            f"{len(known) or 'no'} parties have labels of all rows, but one must; name their "
            "column with ", Setting("label_column"),
        )  # fmt: skip
    sent = None
    if labels is not None:
        names, codes = np.unique(np.asarray(labels), return_inverse=True)
        sent = [names.tolist(), codes]
    with set_topic(engine, "setup"):
        names, codes = network.agents.bcast(sent, known[0])
    return np.asarray(names)[codes], known[0]


def joined(mixtures: Sequence[Mixture], shares: NDArray[np.float64]) -> Mixture:
    """Return the mixture of mixtures over the same hubs, each with a share; one is as it is."""
    first, *others = mixtures
    if not others:
        return first
    kind = "diag" if all(one.is_diagonal for one in mixtures) else "full"
    alike = [one.convert_to(first.blocks, kind, first.scaling) for one in mixtures]
    weights = np.concatenate(
        [share * one.weights for share, one in zip(shares, alike, strict=True)], axis=1
    )
    if kind == "diag":
        covariances = np.concatenate([one.covariances for one in alike])
    else:
        views = zip(*(one.covariance_blocks for one in alike), strict=True)
        covariances = np.concatenate([np.empty(0), *(np.concatenate(v).ravel() for v in views)])
    means = np.concatenate([one.means for one in alike])
    return replace(alike[0], weights=weights, means=means, covariances=covariances)


def folds_of_classes(y: AnyArray, n_folds: int, seed: int) -> list[NDArray[np.intp]]:
    """Deal the rows of each class out to folds by themselves, so that no fold lacks one."""
    names, counts = np.unique(y, return_counts=True)
    if min(counts) < n_folds:
        sizes = zip(names.tolist(), counts.tolist(), strict=True)
        few = shorten(f"{name} ({n} rows)" for name, n in sizes if n < n_folds)
        raise InputError(
            Setting("n_folds", n_folds), " need as many rows of each class, but of these there "
            f"are fewer: {few}; give fewer folds",
        )  # fmt: skip
    groups = [np.flatnonzero(y == one) for one in names]
    deals = [[rows[part] for part in folds_of(len(rows), n_folds, seed)] for rows in groups]
    return [np.sort(np.concatenate(parts)) for parts in zip(*deals, strict=True)]


def held_out_classes(
    fit: Callable[[NDArray[np.intp]], DiscriminantFit],
    X: Matrix | None,
    labels: ArrayLike,
    n_folds: int,
    seed: int,
    missing: str = "refuse",
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.bool_]]]:
    """Yield the rows of each fold, and which of them a fit to the others takes for another class.

    Each ``fit`` chooses again.
    """
    y = np.asarray(labels)
    for fold in folds_of_classes(y, n_folds, seed):
        found = fit(np.setdiff1d(np.arange(len(y)), fold))
        shares = found.predict_classes(None if X is None else select_rows(X, [fold]), missing)
        yield fold, found.classes[shares.argmax(axis=1)] != y[fold]
