"""What a file says of a fit: models and clusterings alike, of this version or an earlier one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, InputError
from vpem.files.clusterings import ENCODING as CLUSTERS
from vpem.files.clusterings import StoredClustering, read_clustering
from vpem.files.hdf5 import open_read, read_attribute
from vpem.files.models import ENCODING as MODEL
from vpem.files.models import Model, read_model
from vpem.network.graph import Graph
from vpem.network.hubs import Hub
from vpem.network.ledger import KINDS

__all__ = ["Links", "Record", "Saved", "counted_by_kind", "encoding_of", "numbers", "read_saved"]


@dataclass(frozen=True)
class Record:
    """What was recorded of iterations.

    Attributes
    ----------
    values : ndarray of shape (n, R)
        As each root found them; nan where one was silent.
    iteration : ndarray of shape (n,)
        Number of each.
    sent : ndarray of shape (n,) or None
        Bytes sent by then; None where the file does not say.
    quantity : str
        What the values are.
    tol : float or None
        Change below which the run stops, in these units; None where it is told otherwise.
    mean_field : ndarray of shape (n,) or None
        Squared mean field (FedEM).
    """

    values: NDArray[np.float64]
    iteration: NDArray[np.intp]
    sent: NDArray[np.float64] | None
    quantity: str
    tol: float | None = None
    mean_field: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Links:
    """Bytes over every link, in both directions.

    Attributes
    ----------
    ends : ndarray of shape (E, 2)
        The nodes; the server's number is the number of agents.
    by_kind : dict of str to ndarray of shape (E,)
        Bytes of each kind (`vpem.network.ledger.KINDS`) that sent anything.
    """

    ends: NDArray[np.intp]
    by_kind: dict[str, NDArray[np.float64]]

    @property
    def total(self) -> NDArray[np.float64]:
        """Bytes of all kinds, (E,)."""
        total = np.zeros(len(self.ends))
        for values in self.by_kind.values():
            total += values
        return total


@dataclass
class Saved:
    """A model or a clustering with what was reported of it.

    A report is JSON that may hold anything: what is asked for here is there and makes sense, or an
    `InputError` says in a sentence what is missing.
    """

    path: str
    stored: Model | StoredClustering

    @property
    def report(self) -> dict[str, Any]:
        """What the fit told."""
        return self.stored.report

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features (d,)."""
        return tuple(self.stored.feature_names)

    @property
    def model(self) -> Model | None:
        """The model, unless this is a clustering."""
        return self.stored if isinstance(self.stored, Model) else None

    @property
    def clusters(self) -> StoredClustering | None:
        """The clustering, unless this is a model."""
        return self.stored if isinstance(self.stored, StoredClustering) else None

    @property
    def n_components(self) -> int:
        """Components or clusters, K."""
        if isinstance(self.stored, Model):
            return self.stored.mixture.n_components
        return len(self.stored.centres)

    @property
    def over_rows(self) -> bool:
        """Whether workers held rows."""
        return self.report.get("split") == "rows"

    def mixture_for(self, kind: str) -> Any:
        """Return the mixture, or say that clusters have none."""
        if isinstance(self.stored, Model):
            return self.stored.mixture
        raise InputError(
            f"{self.path} holds clusters, which have no covariances and no responsibilities: "
            f"{kind} is drawn of mixtures; fit one with 'vpem fit'"
        )

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

    def told(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return what the report has by this name, or None if it is absent or something else."""
        value = self.report.get(name)
        good = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
        return value if good else None

    # ---- who took part ---------------------------------------------------------------------------

    def graph(self) -> Graph:
        """Return the graph of agents or workers."""
        what = "who was linked to whom"
        n = self.told("n_workers" if self.over_rows else "n_agents", int)
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
        graph, listed = self.graph(), self.told("hubs", list)
        what = "which agents formed hubs, with which roots"
        if listed is None:
            raise self.missing(what)
        try:
            if isinstance(self.stored, Model):
                hubs = [Hub(int(h["root"]), tuple(map(int, h["agents"]))) for h in listed]
            else:
                roots = self.report["roots"]
                hubs = [
                    Hub(int(root), tuple(map(int, agents)))
                    for root, agents in zip(roots, listed, strict=True)
                ]
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
        listed = self.told("worker_names", list) if self.over_rows else None
        listed = listed or self.told("agent_names", list) or []
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
        model = self.model
        if model is None or any(len(agents) > 1 for agents in model.mixture.blocks.agents):
            return None
        found = np.empty(d, dtype=np.intp)
        blocks = model.mixture.blocks
        for columns, agents in zip(blocks.features, blocks.agents, strict=True):
            found[columns] = agents[0] if agents else -1
        return found

    # ---- how it went -----------------------------------------------------------------------------

    def record(self) -> Record:
        """Return log-likelihood per sample, or inertia, by iteration and root."""
        sent = numbers(self.communication.get("bytes_by_iteration"))
        if isinstance(self.stored, StoredClustering):
            values = numbers(self.report.get("history"))
            if values is None or values.ndim != 1 or not len(values):
                raise self.missing("what the inertia was in each iteration")
            return Record(
                values[:, None],
                np.arange(1, len(values) + 1),
                sent if sent is not None and sent.shape == values.shape else None,
                "inertia",
            )
        weight = self.told("total_weight", (int, float)) or self.told("n_samples", (int, float))
        history = self.stored.history
        if self.stored.root_history is not None:
            history = self.stored.root_history
        history = np.where(np.isfinite(history), history, np.nan)
        if weight is None or not weight > 0 or np.isnan(history).all():
            raise self.missing("what the log-likelihood was in each iteration, or of how many rows")
        n = len(history)
        at, field = (numbers(self.report.get(name)) for name in ("recorded", "mean_field"))
        known = at is not None and at.shape == (n,)
        fed = "participation" in self.report
        tol = self.stored.options.get("tol")
        return Record(
            np.asarray(history, dtype=np.float64) / weight,
            at.astype(np.intp) if known and at is not None else np.arange(1, n + 1) - int(fed),
            sent if sent is not None and sent.shape == (n,) else None,
            "log-likelihood per sample (nats)",
            float(tol) if not fed and isinstance(tol, int | float) and tol > 0 else None,
            field if field is not None and field.shape == (n,) else None,
        )

    @property
    def communication(self) -> dict[str, Any]:
        """What the ledger told."""
        return self.told("communication", dict) or {}

    def sent_by_kind(self) -> dict[str, dict[str, float]]:
        """Messages, bytes and rounds of each kind that sent anything."""
        found = counted_by_kind(self.communication)
        if found is None:
            raise self.missing("what was sent")
        return found

    def sent_by_agent(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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


def counted_by_kind(communication: dict[str, Any]) -> dict[str, dict[str, float]] | None:
    """Messages, bytes and rounds of each kind that sent anything; None where that is not told."""
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


def numbers(value: Any) -> NDArray[np.float64] | None:
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


def encoding_of(path: str | os.PathLike[str]) -> str | None:
    """Return what a file says that it is."""
    with open_read(path) as file:
        return read_attribute(file, "encoding-type")


def read_saved(path: str | os.PathLike[str]) -> Saved:
    """Read a model or a clustering.

    Raises
    ------
    FileError
        If the file cannot be read, or is neither.
    """
    encoding = encoding_of(path)
    if encoding == MODEL:
        return Saved(str(path), read_model(path))
    if encoding == CLUSTERS:
        return Saved(str(path), read_clustering(path))
    raise FileError(
        f"{path} is neither a model nor a clustering; 'vpem fit', 'vpem fedem' and 'vpem kmeans' "
        "write them with --output, and 'vpem saem' fits of SAEM"
    )
