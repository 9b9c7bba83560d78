"""Files of fits that pictures are drawn of, one class for each kind, and data to compare them with.

What fits report (the network, the history, what was sent) is read from files that are not trusted.
Features of several families have drawings of their own.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Floats, Labels
from vpem.errors import FileError, InputError, shorten
from vpem.files.hdf5 import SAEM_FIT, open_read, read_attribute
from vpem.files.models import Model, assembled, read_model
from vpem.files.results import Imputed, StoredClustering, read_clustering, read_imputed
from vpem.files.traces import Trace, is_lines, read_trace
from vpem.fits.answer import Answer, CategoryLevels, answer_of, classes_in
from vpem.network.graph import Graph
from vpem.network.hubs import Hub
from vpem.network.ledger import KINDS
from vpem.network.schema import Report
from vpem.pictures.figure import BAND, PALE, colour, halo, hatch, words
from vpem.terms.families.covariates import logit_coefficients
from vpem.terms.families.kinds import LAWS
from vpem.terms.mixture import Mixture, is_diagonal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vpem.saem.results import SaemFit, SavedSaem

MOST_LEVELS = 8
"""Levels of a category that have bars, those that are most frequent."""

ROOM = 24
"""Letters below a panel."""

POINTS = 400

SEED = 0
"""Of the choice among many rows, so that a picture is the same every time."""


@dataclass(frozen=True)
class History:
    values: Doubles  # (n, R) as each root found them; nan: inactive
    iteration: NDArray[np.intp]  # (n,)
    sent: Doubles | None  # (n,) bytes by then
    quantity: str  # what the values are
    tol: float | None = None  # change that stops the run, in these units
    mean_field: Doubles | None = None  # (n,) squared (FedEM)

    def means(self) -> Doubles:
        """Mean over active roots, (n,); nan where none was."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.asarray(np.nanmean(self.values, axis=1))


@dataclass(frozen=True)
class DrawnParts:
    """What is drawn of a mixture or of clusters: ``weights`` (K,), ``means`` (K, d), ``full``.

    ``full`` (K, d, d) are covariances in the user's units, or None of clusters and where they are
    diagonal; ``variances`` (K, d) their diagonals, None of clusters.
    """

    weights: Doubles
    means: Doubles
    variances: Doubles | None = None
    full: Doubles | None = None

    @property
    def within(self) -> Doubles:
        """Mean of the components' covariances, (d, d)."""
        if self.full is not None:
            return np.asarray(np.tensordot(self.weights, self.full, axes=1))
        assert self.variances is not None
        return np.diag(self.weights @ self.variances)


class Saved:
    """A file of a fit, or a fit that could be in one.

    ``holds`` says what it is ("a mixture"), ``plural`` the same of several, and ``units`` what data
    of the fit are made of ("rows of data"; "" where there are no others). ``contents`` is what says
    the contents of its page, "module.function" of this room. Pictures are drawn of this where
    ``draws_file``, else of what is stored.
    """

    holds: str
    plural: str
    units: str
    contents: str
    draws_file = False

    def __init__(self, path: str, stored: Any, **about: Any) -> None:
        self.path, self.stored = path, stored
        vars(self).update(about)

    @property
    def is_plane(self) -> bool:
        """Whether it has two features, both along an axis."""
        return False


class SavedFit(Saved, ABC):
    """A mixture or clusters with what was reported of the fit.

    A report is JSON that may hold anything: what is read here exists and makes sense, or an
    `InputError` says what is missing.
    """

    stored: Model | StoredClustering

    units: str = "rows of data"
    contents: str = "contents.contents_of_fit"
    draws_file: bool = True
    noun: ClassVar[str]
    """What rows are assigned to."""
    heading: ClassVar[str]
    """Above a table of the parameters."""
    centre: ClassVar[str]
    """What the parameters are: "mean of", a component."""

    def __init__(self, path: str, stored: Model | StoredClustering) -> None:
        super().__init__(path, stored)
        self.report: Report = stored.report
        self.n_components = stored.n_components
        self.feature_names = tuple(stored.feature_names)

    def called(self, number: int) -> str:
        """Return the name of a component or cluster, which may be of a class."""
        found = classes_in(self.report, self.n_components)
        if found is None:
            return f"{self.noun} {number}"
        names, members = found
        own = members[:, members[number].argmax()]
        name = f"class {names[members[number].argmax()]}"
        return name if own.sum() == 1 else f"{name}, {self.noun} {number}"

    @abstractmethod
    def parts(self) -> DrawnParts:
        """The components or clusters in the user's units."""

    @abstractmethod
    def gaussians(self) -> tuple[Doubles, Doubles, Doubles]:
        """Weights, means and covariances (K, d, d) by which rows are assigned."""

    @abstractmethod
    def assign(self, X: Floats) -> NDArray[np.intp]:
        """Component or cluster of each row, (M,)."""

    @abstractmethod
    def summaries(self) -> dict[str, list[str]]:
        """What a table of parameters begins with: a line for each, K values."""

    @abstractmethod
    def history(self) -> History:
        """Log-likelihood per sample, or inertia, by iteration and root."""

    @property
    def is_plane(self) -> bool:
        two = len(self.feature_names) == 2
        return two and all(levels_drawn(self, j) is None for j in (0, 1))

    @property
    def families(self) -> tuple[str, ...] | None:
        """The family of each feature; None of clusters, and where all are Gaussian."""
        return None

    @cached_property
    def answer(self) -> Answer:
        """How large components or clusters are, and in which features each differs."""
        return answer_of(self.stored)

    @property
    def over_rows(self) -> bool:
        return self.report.get("split") == "rows"

    def missing(self, what: str) -> InputError:
        if "shard" in self.report:
            return InputError(
                f"{self.path} is a shard of a model and does not say {what}; take a fit that "
                "writes a whole model"
            )
        return InputError(
            f"{self.path} does not say {what}: it is from an earlier version of vpem, from another "
            "program, or joined from shards; fit again to have it"
        )

    def unpublished(self, what: str) -> InputError:
        """The error that says why the file of a private fit lacks what its rows determine."""
        if "privacy" not in self.report:
            return self.missing(what)
        return InputError(
            f"{self.path} does not say {what}: its rows are protected by noise (differential "
            "privacy), and that would reveal something of them"
        )

    def reported(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """What the report has by this name, or None if it is absent or something else."""
        value = self.report.get(name)
        good = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
        return value if good else None

    # ---- who took part ---------------------------------------------------------------------------

    def graph(self) -> Graph:
        what = "who was linked to whom"
        n = self.reported("n_workers" if self.over_rows else "n_agents", int)
        edges = numbers(self.report.get("edges"))
        if n is None or edges is None or not 0 < n < 1 << 24:
            raise self.missing(what)
        positions = numbers(self.report.get("positions"), n, 2)
        topology = str(self.report.get("topology", "?"))
        has_server = self.report.get("server") is not None
        try:
            pairs = edges.reshape(-1, 2).astype(np.intp)
            return Graph(n, pairs, topology, names=None, positions=positions, has_server=has_server)
        except (InputError, ValueError):
            raise self.missing(what) from None

    def hubs(self) -> list[Hub]:
        """The hubs; none where workers hold rows."""
        if self.over_rows:
            return []
        graph, listed = self.graph(), self.reported("hubs", list)
        what = "which agents formed hubs, with which roots"
        if listed is None:
            raise self.missing(what)
        try:
            # A clustering lists the agents alone.
            pairs = (
                zip(self.report["roots"], listed, strict=True)
                if self.holds == "clusters"
                else [(hub["root"], hub["agents"]) for hub in listed]
            )
            hubs = [Hub(int(root), tuple(map(int, agents))) for root, agents in pairs]
        except (KeyError, TypeError, ValueError):
            raise self.missing(what) from None
        members = sorted(agent for hub in hubs for agent in hub.agents)
        if members != list(range(graph.n_agents)) or any(
            not 0 <= hub.root < graph.n_nodes for hub in hubs
        ):
            raise self.missing(what)
        return hubs

    def node_names(self, n_nodes: int) -> list[str]:
        """Names of all nodes, the server last where there is one."""
        listed = self.reported("worker_names", list) if self.over_rows else None
        listed = listed or self.reported("agent_names", list) or []
        names = [str(name) for name in listed[:n_nodes]]
        noun = "worker" if self.over_rows else "agent"
        names += [f"{noun} {number}" for number in range(len(names), n_nodes)]
        if self.report.get("server") == n_nodes - 1:
            names[-1] = "server"
        return names

    def agents_of_features(self) -> NDArray[np.intp] | None:
        """Agent of each feature (d,), or None where the file does not say."""
        agents = numbers(self.report.get("partition"), len(self.feature_names))
        return None if agents is None or (agents < 0).any() else agents.astype(np.intp)

    @property
    def communication(self) -> Report:
        return self.reported("communication", dict) or {}

    def sent_by_kind(self) -> dict[str, dict[str, float]]:
        """Messages, bytes and rounds of each kind that sent anything."""
        kinds = counted_by_kind(self.communication)
        if kinds is None:
            raise self.missing("what was sent")
        return kinds

    def sent_by_agent(self) -> tuple[Doubles, Doubles]:
        """Bytes that each node sent and received, (n_nodes,) each."""
        listed = self.communication.get("by_agent")
        listed = listed if isinstance(listed, dict) else {}
        out, into = (numbers(listed.get(name)) for name in ("bytes_sent", "bytes_received"))
        if out is None or into is None or out.ndim != 1 or out.shape != into.shape:
            raise self.missing("what each agent sent")
        return out, into

    def links(self) -> tuple[NDArray[np.intp], dict[str, Doubles]]:
        """Ends (E, 2) of every link, and its bytes (E,) in both directions, of each ledger's kind.

        A server's number is that of agents.
        """
        what = "how much each link carried"
        listed = self.communication.get("by_link")
        listed = listed.get("bytes") if isinstance(listed, dict) else None
        if not isinstance(listed, dict):
            raise self.missing(what)
        ends = self.graph().edges
        by_kind = {str(kind): numbers(values, len(ends)) for kind, values in listed.items()}
        known = {kind: values for kind, values in by_kind.items() if values is not None}
        if len(known) < len(by_kind):
            raise self.missing(what)
        return ends, known


def counted_by_kind(communication: Report) -> dict[str, dict[str, float]] | None:
    """Messages, bytes and rounds of each kind that sent anything; None where that is not said."""
    listed = communication.get("by_kind")
    kinds: dict[str, dict[str, float]] = {}
    try:
        assert isinstance(listed, dict)
        for kind in (*KINDS, *(name for name in listed if name not in KINDS)):
            if kind in listed and listed[kind]["messages"]:
                counted = {n: float(listed[kind][n]) for n in ("messages", "bytes", "rounds")}
                assert all(0 <= value < float("inf") for value in counted.values())
                kinds[str(kind)] = counted
    except (AssertionError, KeyError, TypeError, ValueError):
        return None
    return kinds


def numbers(value: object, *shape: int) -> Doubles | None:
    """Make an array, of this shape if any, of lists of finite numbers; None of anything else."""
    if not isinstance(value, list):
        return None
    try:
        array = np.array(value)
    except ValueError:
        return None
    good = not len(value) or (array.dtype.kind in "iuf" and bool(np.isfinite(array).all()))
    array = array if len(value) else np.empty(0)
    return array.astype(np.float64) if good and (not shape or array.shape == shape) else None


def in_a_plane(saved: SavedFit, chosen: Sequence[int] | None, notes: list[str]) -> list[int] | None:
    """Columns that have a place on an axis: all but categories, and zeros and ones.

    None where nothing is left out; ``notes`` list what is. InputError if one of the chosen has no
    place, or fewer than two are left.
    """
    families, names = saved.families, saved.feature_names
    out = [j for j, family in enumerate(families or ()) if LAWS[family].has_levels]
    if not out:
        return None
    for j in chosen or ():
        if j in out:
            assert families is not None
            raise InputError(
                f"{names[j]} is {families[j]}, whose levels have no order on an axis; marginals "
                "and profile draw it"
            )
    left = [j for j in range(len(names)) if j not in out]
    if len(left) < 2:
        raise InputError(
            f"pairs and projections need two features that lie along an axis, {saved.path} has "
            f"{len(left)}; try marginals or profile"
        )
    listed = shorten((names[j] for j in out), 6)
    notes.append(f"left out, since their levels have no order: {listed} (see marginals, profile)")
    return left


def levels_drawn(saved: SavedFit, j: int) -> CategoryLevels | None:
    """Return the levels of a category, or of zeros and ones; None of other features."""
    if j in saved.answer.levels:
        return saved.answer.levels[j]
    families = saved.families
    if families is not None and families[j] == "bernoulli":
        ones = saved.answer.means[:, j]
        return CategoryLevels(("0", "1"), np.stack([1 - ones, ones], axis=1))
    return None


def densities_of(
    saved: Any, j: int, values: Doubles | None, parts: DrawnParts
) -> tuple[Doubles, Doubles]:
    """A grid (n,) and the densities of components on it, times their weights (K, n).

    The grid is fine where components are narrow.
    """
    family = "gaussian" if saved.families is None else saved.families[j]
    if family == "covariate":
        raise InputError(f"{saved.feature_names[j]} is a covariate, which has no density")
    assert parts.variances is not None
    law = LAWS[family]
    means, deviations = parts.means[:, j], np.sqrt(parts.variances[:, j])
    low, high = float((means - 4 * deviations).min()), float((means + 4 * deviations).max())
    if values is not None and len(values):
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    if law.whole and not law.has_levels:
        whole = np.arange(max(0.0, np.floor(low)), np.ceil(high) + 1)
        grid = whole[:: max(1, len(whole) // (4 * POINTS))]
    else:
        near = (means[:, None] + np.outer(deviations, np.linspace(-4, 4, 81))).ravel()
        grid = np.concatenate([np.linspace(low, high, POINTS), near])
        if law.between[0] >= 0:
            grid = np.concatenate([grid, np.outer(means, np.geomspace(1e-3, 1, 81)).ravel()])
            grid = grid[grid >= 1e-3 * means.min()]
        grid = np.unique(grid)
    marginal = saved.mixture.marginal([j])
    terms, constant = marginal.terms_of(grid[:, None], np.ones((len(grid), 1), dtype=bool))
    logs = constant - 0.5 * terms.sum(axis=0).T
    return grid, parts.weights[:, None] * np.exp(logs)


def draw_levels(
    axes: Axes, levels: CategoryLevels, weights: Doubles, values: Doubles | None
) -> None:
    """Draw the share of each level in the data, in the mixture, and in components.

    Components stand beside each other within a level, in their order, each with its part of all
    rows, so that together they are the mixture. Long names stand upright in the bars.
    """
    whole = weights @ levels.shares
    chosen = np.sort(np.argsort(-whole, kind="stable")[:MOST_LEVELS])
    k, places = len(weights), np.arange(len(chosen))
    if values is not None and len(values):
        shares = np.bincount(values.astype(np.intp), minlength=len(whole)) / len(values)
        axes.bar(places, shares[chosen], 0.9, facecolor=PALE, edgecolor=BAND, linewidth=0.5)
    each = 0.8 / k
    for c in range(k if k > 1 else 0):
        axes.bar(
            places - 0.4 + each * (c + 0.5), weights[c] * levels.shares[c, chosen], each,
            facecolor=colour(c), hatch=hatch(c), edgecolor="white", linewidth=0.3, zorder=2,
        )  # fmt: skip
    axes.hlines(whole[chosen], places - 0.45, places + 0.45, color="black", linewidth=1.8, zorder=3)
    left = len(whole) - len(chosen)
    axes.set_ylim(0, axes.get_ylim()[1] * (1.12 if left else 1.0))
    names = [levels.names[level] for level in chosen]
    axes.tick_params(axis="x", length=0)
    short = sum(map(len, names)) <= ROOM
    axes.set_xticks(places if short else [], [words(name) for name in names] if short else [])
    for place, name in enumerate(names if not short else ()):
        axes.text(
            place, 0.02, words(name, 22), transform=axes.get_xaxis_transform(), rotation=90,
            fontsize=7, ha="center", va="bottom", path_effects=halo(), zorder=4,
        )  # fmt: skip
    if left:
        said = f"{left} rarer level{'' if left == 1 else 's'}"
        axes.text(0.98, 0.99, said, transform=axes.transAxes, fontsize=7.5, ha="right", va="top")


class SavedMixture(SavedFit):
    stored: Model
    holds: str = "a mixture"
    plural: str = "mixtures"
    noun = "component"
    heading = "Mixing weights and means"
    centre = "mean of"

    @property
    def mixture(self) -> Mixture:
        mixture: Mixture = self.stored.mixture
        return mixture

    @property
    def families(self) -> tuple[str, ...] | None:
        kinds = self.mixture.kinds
        return None if kinds is None else kinds.families

    def parts(self) -> DrawnParts:
        """Weights, means and covariances in the user's units.

        Features of different families do not depend on each other within a component.
        """
        one, mixture = assembled(self.mixture), self.mixture
        k, d = mixture.n_components, mixture.n_features
        if mixture.kinds is not None:
            variances = np.empty((k, d))
            both = None if is_diagonal(mixture.covariance_type) else np.zeros((k, d, d))
            for part in mixture.parts:
                columns, position = part.features.columns, part.features.blocks.position
                part_variances = part.law.variances(part)[:, position]
                variances[:, columns] = part_variances
                if both is None or part.core is None:
                    continue
                both[:, columns[:, None], columns] = part.law.covariances(part)
            if both is not None:
                both[:, range(d), range(d)] = variances
            return DrawnParts(mixture.assembled_weights, mixture.assembled_means, variances, both)
        if mixture.is_diagonal and not mixture.n_factors:
            scaled = np.broadcast_to(mixture.covariances, (k, d))[:, mixture.blocks.position]
            return DrawnParts(one["weights"], one["means"], scaled * mixture.scaling.scale**2)
        full = np.broadcast_to(one["covariances"], (k, d, d))
        return DrawnParts(one["weights"], one["means"], np.diagonal(full, axis1=1, axis2=2), full)

    def gaussians(self) -> tuple[Doubles, Doubles, Doubles]:
        """Weights, means and covariances (K, d, d) of EM; InputError where rows go by others."""
        parts = self.parts()
        if self.mixture.kinds is not None or self.mixture.is_proper or parts.variances is None:
            raise InputError(
                f"{self.path} assigns rows by other densities than Gaussian ones (families, or a "
                "variational posterior), whose boundaries have no such coefficients; fit by EM"
            )
        full = parts.full
        if full is None:
            full = parts.variances[:, :, None] * np.eye(len(self.feature_names))
        return parts.weights, parts.means, full

    def assign(self, X: Floats) -> NDArray[np.intp]:
        return self.mixture.predict(X, missing="marginalize")

    def summaries(self) -> dict[str, list[str]]:
        weights = self.mixture.weights
        lines = {"mixing weight": [f"{weight:.4f}" for weight in self.mixture.assembled_weights]}
        if len(weights) > 1:
            lines["spread over roots"] = [f"{value:.2g}" for value in np.ptp(weights, axis=0)]
        found = logit_coefficients(self.mixture)
        if found is not None:
            both = zip(self.feature_names, self.families or (), strict=True)
            moving = [f"logit of {name}" for name, family in both if family == "covariate"]
            names = ["intercept", *moving]
            lines |= {n: [f"{one:.4f}" for one in of] for n, of in zip(names, found.T, strict=True)}
        return lines

    def agents_of_features(self) -> NDArray[np.intp] | None:
        blocks = self.mixture.blocks
        agent_of = super().agents_of_features()
        if agent_of is None and all(len(agents) < 2 for agents in blocks.agents):
            agent_of = np.empty(len(self.feature_names), dtype=np.intp)
            for columns, agents in zip(blocks.features, blocks.agents, strict=True):
                agent_of[columns] = agents[0] if agents else -1
        return agent_of

    def history(self) -> History:
        weight = self.reported("total_weight", (int, float))
        weight = weight or self.reported("n_samples", (int, float))
        stored = self.stored
        history = stored.history if stored.root_history is None else stored.root_history
        if not len(history) and self.reported("n_iter", int) == 0:
            raise InputError(f"{self.path} is where a fit starts: it has no iterations to draw")
        history = np.where(np.isfinite(history), history, np.nan)
        if weight is None or not weight > 0 or np.isnan(history).all():
            what = "what the log-likelihood was in each iteration"
            raise self.unpublished(f"{what}, or of how many rows" if weight is None else what)
        n = len(history)
        at, field = (numbers(self.report.get(name), n) for name in ("recorded", "mean_field"))
        fed = "participation" in self.report
        tol = stored.options.get("tol")
        prefix = "penalised " if "penalised_log_likelihood" in self.report else ""
        return History(
            np.asarray(history, dtype=np.float64) / weight,
            np.arange(1, n + 1) - int(fed) if at is None else at.astype(np.intp),
            numbers(self.communication.get("bytes_by_iteration"), n),
            f"{prefix}log-likelihood per sample (nats)",
            float(tol) if not fed and isinstance(tol, int | float) and tol > 0 else None,
            field,
        )


class SavedClusters(SavedFit):
    stored: StoredClustering
    holds: str = "clusters"
    plural: str = "clusters"
    noun = "cluster"
    heading = "Centres"
    centre = "centre in"

    def parts(self) -> DrawnParts:
        return DrawnParts(self.answer.weights, self.stored.centres)

    def gaussians(self) -> tuple[Doubles, Doubles, Doubles]:
        """Equal weights, centres, and spheres in the units of distances: rows go to the nearest."""
        k, d = self.stored.centres.shape
        scale = np.ones(d) if self.stored.scaling is None else self.stored.scaling.scale
        return np.full(k, 1 / k), self.stored.centres, np.tile(np.diag(scale**2), (k, 1, 1))

    def assign(self, X: Floats) -> NDArray[np.intp]:
        return self.stored.assign(X)[0].astype(np.intp)

    def summaries(self) -> dict[str, list[str]]:
        name, sizes = "noisy rows" if "privacy" in self.report else "rows", self.answer.sizes
        assert sizes is not None
        return {name: [f"{max(size, 0.0):.0f}" for size in sizes]}

    def history(self) -> History:
        values = numbers(self.report.get("history"))
        if values is None or values.ndim != 1 or not len(values):
            raise self.unpublished("what the inertia was in each iteration")
        return History(
            values[:, None],
            np.arange(1, len(values) + 1),
            numbers(self.communication.get("bytes_by_iteration"), len(values)),
            "inertia",
        )


def read_saved(path: str | os.PathLike[str]) -> Saved:
    if is_lines(path):
        return _saved_trace(str(path), read_trace(path))
    with open_read(path) as file:
        encoding = read_attribute(file, "encoding-type")
    if encoding not in KINDS_OF_FITS:
        raise FileError(
            f"{path} is neither a model nor a clustering; 'vpem fit', 'vpem fedem' and 'vpem "
            "kmeans' write them with --output, 'vpem saem' fits of SAEM, 'vpem impute' imputations"
        )
    read, kind = KINDS_OF_FITS[encoding]
    return kind(str(path), read(path))


def saved_of(path: str, stored: Any) -> Saved:
    """What `read_saved` would return, had it read this from a file at ``path``."""
    _, kind = KINDS_OF_FITS[stored.encoding]
    return kind(path, stored)


def _read_saem(path: str | os.PathLike[str]) -> SavedSaem:
    from vpem.saem.formats.fits import read_saem

    return read_saem(path)


def _saved_saem(path: str, stored: SavedSaem | SaemFit) -> Saved:
    if stored.corpus is None:
        return Saved(
            path, stored.saved, holds="a fit of SAEM", plural="fits of SAEM", units="individuals",
            contents="saem_contents.contents_of_latents",
        )  # fmt: skip
    from vpem.saem.results import Topics

    return Saved(
        path, Topics(stored), holds="topics", plural="topics", units="documents",
        contents="saem_contents.contents_of_topics",
    )  # fmt: skip


def _saved_imputation(path: str, stored: Imputed) -> Saved:
    return Saved(
        path, stored, holds="an imputation", plural="imputations", units="",
        contents="contents.contents_of_imputation", draws_file=True,
    )  # fmt: skip


def _saved_trace(path: str, *traces: Trace) -> Saved:
    return Saved(
        path, traces, holds="a trace", plural="traces", units="", contents="iterates.no_page",
        draws_file=True,
    )  # fmt: skip


KINDS_OF_FITS: dict[str | None, tuple[Callable[..., Any], Callable[..., Saved]]] = {
    Model.encoding: (read_model, SavedMixture),
    StoredClustering.encoding: (read_clustering, SavedClusters),
    Imputed.encoding: (read_imputed, _saved_imputation),
    SAEM_FIT: (_read_saem, _saved_saem),
    Trace.encoding: (read_trace, _saved_trace),
}
"""What reads a file of this encoding, and what is drawn of it."""


@dataclass
class EvaluationData:
    """Data to compare a model with."""

    X: Floats  # (M, d) in the model's order of features
    labels: Labels | None  # (M,) known classes
    where: str  # the file, for messages

    def __len__(self) -> int:
        return len(self.X)

    def sample(self, most: int) -> NDArray[np.float64]:
        """Return at most so many rows, (m, d): all, or some drawn at random, in order."""
        rows = choose_rows(len(self.X), most)
        if isinstance(self.X, np.ndarray):
            return np.asarray(self.X[rows], dtype=np.float64)
        # On disk: neighbouring rows are read together.
        step = 1 << 14
        parts = []
        for start in range(0, len(self.X), step):
            places = rows[(rows >= start) & (rows < start + step)] - start
            if len(places):
                parts.append(np.asarray(self.X[start : start + step], dtype=np.float64)[places])
        return np.concatenate(parts)


def choose_rows(n: int, most: int) -> NDArray[np.intp]:
    """Numbers of at most so many of n rows, ascending."""
    if n <= most:
        return np.arange(n)
    drawn = np.random.default_rng(SEED).choice(n, most, replace=False)
    return np.sort(drawn)
