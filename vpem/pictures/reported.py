"""What fits report, read from files that nobody trusts: the network, the history, what was sent."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import InputError
from vpem.files.clusterings import StoredClustering
from vpem.files.models import Model
from vpem.fits.answer import Answer, answer_of
from vpem.network.graph import Graph
from vpem.network.hubs import Hub
from vpem.network.ledger import KINDS
from vpem.network.schema import Report

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """What was recorded of iterations."""

    values: Vector  # (n, R) as each root found them; nan: silent
    iteration: NDArray[np.intp]  # (n,)
    sent: Vector | None  # (n,) bytes by then
    quantity: str  # what the values are
    tol: float | None = None  # change that stops the run, in these units
    mean_field: Vector | None = None  # (n,) squared (FedEM)

    def means(self) -> Vector:
        """Mean over roots that were heard, (n,); nan where none was."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.asarray(np.nanmean(self.values, axis=1))


@dataclass(frozen=True)
class Links:
    """Bytes over every link, in both directions."""

    ends: NDArray[np.intp]  # (E, 2); a server's number is that of agents
    by_kind: dict[str, Vector]  # (E,) of `vpem.network.ledger.KINDS`

    @property
    def total(self) -> Vector:
        """Bytes of all kinds, (E,)."""
        total = np.zeros(len(self.ends))
        for values in self.by_kind.values():
            total += values
        return total


@dataclass(frozen=True)
class Parts:
    """What is drawn of a mixture or of clusters: ``weights`` (K,), ``means`` (K, d), ``full``.

    ``full`` (K, d, d) are covariances in the user's units, or None of clusters and where they are
    diagonal; ``variances`` (K, d) their diagonals, None of clusters.
    """

    weights: Vector
    means: Vector
    variances: Vector | None = None
    full: Vector | None = None


@dataclass
class Saved(ABC):
    """A file of a fit."""

    path: str
    stored: Any

    holds: ClassVar[str]
    """What it is: "a mixture"."""
    plural: ClassVar[str]
    units: ClassVar[str]
    """What data of the fit are made of: "rows of data"."""


@dataclass
class SavedFit(Saved):
    """A mixture or clusters with what was reported of the fit.

    A report is JSON that may hold anything: what is asked for here is there and makes sense, or an
    `InputError` says in a sentence what is missing.
    """

    stored: Model | StoredClustering

    units = "rows of data"
    noun: ClassVar[str]
    """What rows are assigned to."""
    heading: ClassVar[str]
    """Above a table of the parameters."""
    centre: ClassVar[str]
    """What the parameters are: "mean of", a component."""
    judged_by: ClassVar[dict[str, str]]
    """What a fit reports of its quality, and what that is called."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """Components or clusters, K."""

    @abstractmethod
    def parts(self) -> Parts:
        """Return the parts in the user's units."""

    @abstractmethod
    def assign(self, X: Floats) -> NDArray[np.intp]:
        """Component or cluster of each row, (M,)."""

    @abstractmethod
    def score(self, X: Floats) -> tuple[str, float]:
        """Return what data are judged by, and how well they do."""

    @abstractmethod
    def size(self) -> list[tuple[str, object]]:
        """Return what was fitted, in numbers."""

    @abstractmethod
    def summaries(self) -> dict[str, list[str]]:
        """Return what a table of parameters begins with: a line for each, K values."""

    @abstractmethod
    def history(self) -> History:
        """Return log-likelihood per sample, or inertia, by iteration and root."""

    @abstractmethod
    def _listed_hubs(self, listed: list[Any]) -> list[Hub]:
        """Return the hubs that a report lists."""

    @property
    def report(self) -> Report:
        """What the fit reported."""
        return self.stored.report

    @cached_property
    def answer(self) -> Answer:
        """How large components or clusters are, and in which features each differs."""
        return answer_of(self.stored)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features (d,)."""
        return tuple(self.stored.feature_names)

    @property
    def over_rows(self) -> bool:
        """Whether workers held rows."""
        return self.report.get("split") == "rows"

    def missing(self, what: str) -> InputError:
        """Return the error that says what the file lacks."""
        if "shard" in self.report:
            return InputError(
                f"{self.path} is a shard of a model and does not say {what}; have it from a fit "
                "that writes a whole model"
            )
        return InputError(
            f"{self.path} does not say {what}: it is of an earlier version of vpem, of another "
            "program, or joined from shards; fit again to have it"
        )

    def unpublished(self, what: str) -> InputError:
        """Return the error that says why the file of a private fit lacks what tells of its rows."""
        if "privacy" not in self.report:
            return self.missing(what)
        return InputError(
            f"{self.path} does not say {what}: its rows are protected by noise (differential "
            "privacy), and that would tell of them"
        )

    def reported(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return what the report has by this name, or None if it is absent or something else."""
        value = self.report.get(name)
        good = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
        return value if good else None

    def alignment(self) -> str | None:
        """Return in a line how the rows of parties were joined; None where they were not."""
        try:
            alignment = self.report["alignment"]
            outer = alignment["join"] == "outer"
            lost = [
                f"{party['name']} {'lacks' if outer else 'lost'} "
                f"{int(party['absent' if outer else 'lost'])} of "
                f"{int(alignment['rows'] if outer else party['rows'])}"
                for party in alignment["parties"]
            ]
            count = int(alignment["rows"])
        except (KeyError, TypeError, ValueError):
            return None
        rows = f"{count} row{'' if count == 1 else 's'}"
        return f"{rows} aligned by {alignment['level']}: {', '.join(lost)}"

    # ---- who took part ---------------------------------------------------------------------------

    def graph(self) -> Graph:
        """Return the graph of agents or workers."""
        what = "who was linked to whom"
        n = self.reported("n_workers" if self.over_rows else "n_agents", int)
        edges = numbers(self.report.get("edges"))
        if n is None or edges is None or not 0 < n < 1 << 24:
            raise self.missing(what)
        positions = numbers(self.report.get("positions"))
        fits = positions is not None and positions.shape == (n, 2)
        try:
            return Graph(
                n,
                edges.reshape(-1, 2).astype(np.intp),
                str(self.report.get("topology", "?")),
                names=None,
                positions=positions if fits else None,
                has_server=self.report.get("server") is not None,
            )
        except (InputError, ValueError):
            raise self.missing(what) from None

    def hubs(self) -> list[Hub]:
        """Return the hubs; none where workers hold rows."""
        if self.over_rows:
            return []
        graph, listed = self.graph(), self.reported("hubs", list)
        what = "which agents formed hubs, with which roots"
        if listed is None:
            raise self.missing(what)
        try:
            hubs = self._listed_hubs(listed)
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
        d = len(self.feature_names)
        held = numbers(self.report.get("partition"))
        if held is not None and held.shape == (d,) and (held >= 0).all():
            return held.astype(np.intp)
        return None

    @property
    def communication(self) -> Report:
        """What the ledger counted."""
        return self.reported("communication", dict) or {}

    def sent_by_kind(self) -> dict[str, dict[str, float]]:
        """Messages, bytes and rounds of each kind that sent anything."""
        found = counted_by_kind(self.communication)
        if found is None:
            raise self.missing("what was sent")
        return found

    def sent_by_agent(self) -> tuple[Vector, Vector]:
        """Bytes that each node sent and received, (n_nodes,) each."""
        listed = self.communication.get("by_agent")
        listed = listed if isinstance(listed, dict) else {}
        out, into = (numbers(listed.get(name)) for name in ("bytes_sent", "bytes_received"))
        if out is None or into is None or out.ndim != 1 or out.shape != into.shape:
            raise self.missing("what each agent sent")
        return out, into

    def links(self) -> Links:
        """Bytes of every link."""
        what = "how much each link carried"
        listed = self.communication.get("by_link")
        listed = listed.get("bytes") if isinstance(listed, dict) else None
        if not isinstance(listed, dict):
            raise self.missing(what)
        ends = self.graph().edges
        by_kind = {str(kind): numbers(values) for kind, values in listed.items()}
        found = {k: v for k, v in by_kind.items() if v is not None and v.shape == (len(ends),)}
        if len(found) < len(by_kind):
            raise self.missing(what)
        return Links(ends, found)


def counted_by_kind(communication: Report) -> dict[str, dict[str, float]] | None:
    """Messages, bytes and rounds of each kind that sent anything; None where that is not said."""
    listed = communication.get("by_kind")
    found: dict[str, dict[str, float]] = {}
    try:
        assert isinstance(listed, dict)
        for kind in (*KINDS, *(name for name in listed if name not in KINDS)):
            if kind in listed and listed[kind]["messages"]:
                counted = {n: float(listed[kind][n]) for n in ("messages", "bytes", "rounds")}
                assert all(0 <= value < float("inf") for value in counted.values())
                found[str(kind)] = counted
    except (AssertionError, KeyError, TypeError, ValueError):
        return None
    return found


def numbers(value: Any) -> Vector | None:
    """Make an array of lists of finite numbers; None of anything else."""
    if not isinstance(value, list):
        return None
    try:
        found = np.array(value)
    except ValueError:
        return None
    if not len(value):
        return np.empty(0)
    good = found.dtype.kind in "iuf" and bool(np.isfinite(found).all())
    return found.astype(np.float64) if good else None
