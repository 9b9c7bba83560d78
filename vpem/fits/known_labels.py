"""Labels of some rows that a fit is given: checked, agreed on, and placed in their hub."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.engines.each import for_each
from vpem.engines.engine import about
from vpem.errors import InputError, Setting, VpemWarning, shorten
from vpem.files.fingerprint import checksum
from vpem.fits.prepare import Prepared
from vpem.network.schema import Report
from vpem.sums.connect import Network
from vpem.terms.known import Known, out_of_reach

ASTRAY = 1e-6
"""Responsibility of other components from which on a row is not where its label says."""

HALF_A_ROW = 0.5
"""Of so much a component starts: rows count as much as is known of them."""

SUM = 1e-6
"""By how much probabilities of a row may add up to other than 1."""


@dataclass(frozen=True)
class KnownLabels:
    """What is known of the components of some rows, and who knows it.

    Parameters
    ----------
    values : array of shape (M,) or (M, K)
        A label a row; NaN, None, "" and -1 where there is none. Or probabilities of the components,
        of which rows of NaN say nothing.
    agent : int
        Who has them.
    names : sequence of str, optional
        Of the labels that components have in ascending order, with probabilities of theirs.
    """

    values: Any
    agent: int = 0
    names: Sequence[str] | None = None

    def parsed(self, n_samples: int, n_components: int) -> tuple[NDArray[Any], list[str]]:
        """Return probabilities (M, K), NaN of rows of which nothing is known, and names."""
        values = np.asarray(self.values)
        if values.ndim not in (1, 2) or len(values) != n_samples:
            raise InputError(
                Setting("labels_for_fit"),
                f" must be a label, or {n_components} probabilities, for each of {n_samples} rows, "
                f"got shape {values.shape}",
            )
        if values.ndim == 2:
            return _probabilities(values, n_components), list(self.names or ())
        there = _there(values)
        names, codes = np.unique(_comparable(values[there]), return_inverse=True)
        if len(names) > n_components:
            listed = shorten(repr(str(name)) for name in names.tolist())
            raise InputError(
                Setting("labels_for_fit"),
                f" have {len(names)} different labels ({listed}), each of which is a component, "
                f"but there are {n_components} components; fit ",
                Setting("n_components", len(names)),
            )
        found = np.full((n_samples, n_components), np.nan)
        found[there] = codes[:, None] == np.arange(n_components)
        return found, [_named(name) for name in names.tolist()]


def _there(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows (M,) have a label."""
    if values.dtype.kind in "biu":
        return np.asarray(values != -1)
    if values.dtype.kind == "f":
        return np.asarray(~np.isnan(values) & (values != -1))
    unknown = [
        one is None or one != one or (isinstance(one, str) and one.strip() in ("", "-1"))
        or (isinstance(one, int | float) and one == -1)
        for one in values.tolist()
    ]  # fmt: skip
    return ~np.array(unknown, dtype=np.bool_)


def _comparable(values: NDArray[Any]) -> NDArray[Any]:
    """Return labels of one type, so that they have an order."""
    return values if values.dtype.kind in "biufU" else np.array([str(one) for one in values])


def _named(label: Any) -> str:
    """Return a label as people write it: 2, not 2.0."""
    whole = isinstance(label, float) and label == int(label)
    return str(int(label) if whole else label)


def _probabilities(values: NDArray[Any], n_components: int) -> NDArray[np.float64]:
    """Return probabilities (M, K) that add up to 1, or NaN."""
    if values.shape[1] != n_components:
        raise InputError(
            Setting("labels_for_fit"),
            f" have probabilities of {values.shape[1]} components, but there are {n_components}",
        )
    try:
        found = values.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(Setting("labels_for_fit"), " of two dimensions must be numbers") from None
    unknown = np.isnan(found).any(axis=1)
    found[unknown] = np.nan
    total = found.sum(axis=1)
    wrong = ~unknown & ((found < 0).any(axis=1) | ~(np.abs(total - 1) < SUM))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            Setting("labels_for_fit"),
            f" of row {row} must be probabilities that add up to 1, got {found[row].tolist()}",
        )
    kept: NDArray[np.float64] = found / total[:, None]
    return kept


@dataclass(frozen=True)
class Labelled:
    """What a fit knows of its labels.

    Attributes
    ----------
    known : Known or None
        Of the hub that has them, in the process of its root.
    agent : int
        Who has them.
    names : tuple of str
        Of the first components, one a label.
    counts : tuple of float
        Rows of each component (K,) by what is known, each as much as is known of it.
    n_rows : int
        Rows of which something is known.
    mark : str
        Checksum of what this process has of them.
    """

    known: Known | None
    agent: int
    names: tuple[str, ...]
    counts: tuple[float, ...]
    n_rows: int
    mark: str

    @property
    def components(self) -> NDArray[np.bool_]:
        """Which components (K,) have labelled rows to start from."""
        return np.array(self.counts) >= HALF_A_ROW


def refuse_labels(labels: Any) -> None:
    """Raise InputError if there are labels, of a fit that is released."""
    if labels is not None:
        raise InputError(
            Setting("labels_for_fit"),
            " start components at means of labelled rows, which a release would show without "
            "noise; leave it out, or ",
            Setting("release_epsilon"),
        )


def label_rows(
    labels: KnownLabels | ArrayLike | None,
    network: Network,
    given: Prepared,
    n_components: int,
) -> Labelled | None:
    """Place labels in the hub of the agent that has them; all processes call this.

    Labels are looked at in the process of that agent alone. None where nobody has any, or none that
    is known. If they do not go with the fit, or two agents have some, all processes raise the same.
    """
    agents, own = network.agents, None
    if labels is not None:
        own = labels if isinstance(labels, KnownLabels) else KnownLabels(labels)
        if not 0 <= own.agent < agents.n_agents:
            raise InputError(
                f"labels are those of agent {own.agent}, but there are {agents.n_agents} agents"
            )
        own = own if agents.mine(own.agent) else None
    who = sorted(agents.allgather({} if own is None else {own.agent: True}))
    if not who:
        return None
    if len(who) > 1:
        raise InputError(
            Setting("labels_for_fit"),
            " are added to the term of one hub, but several parties have some; leave out all but "
            "those of one",
        )
    [agent] = who

    def look(_: int) -> tuple[NDArray[np.float64], list[str]]:
        assert own is not None
        shares, names = own.parsed(given.n_samples, n_components)
        return _weighed(shares if given.kept is None else shares[given.kept]), names

    found = for_each(agents, who, look).get(agent)
    facts: Report | None = None
    if found is not None:
        table, names = found
        counts = (table[:, 1, None] * table[:, 2:]).sum(axis=0).tolist()
        facts = {"names": names, "counts": counts, "n_rows": len(table)}
    told = agents.bcast(facts, agent)
    if not told["n_rows"]:
        return None
    hub = next(b for b, one in enumerate(network.hubs) if agent in one.agents)
    root = network.hubs[hub].root
    with about(agents.engine, "setup"):
        table = agents.send(None if found is None else found[0], agent, root)
    known = None
    if table is not None and n_components > 1:
        far = out_of_reach(network.whole.blocks.n_features, given.precision.itemsize)
        number = int(np.flatnonzero(network.total.holders.own == hub)[0])
        known = _known(np.asarray(table), number, far)
    return Labelled(
        known, agent, tuple(map(str, told["names"])), tuple(map(float, told["counts"])),
        int(told["n_rows"]), "" if table is None else checksum(np.asarray(table)),
    )  # fmt: skip


def _weighed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a line for each row of which something is known.

    It has the row's number, how much is known, ``1 - H(p) / log K``, and the probabilities (K,).
    """
    rows = np.flatnonzero(~np.isnan(shares).any(axis=1))
    own = shares[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        unknown = -np.where(own > 0, own * np.log(own), 0.0).sum(axis=1)
    known = 1 - unknown / np.log(max(shares.shape[1], 2))
    return np.column_stack([rows.astype(np.float64), known, own])


def _known(table: NDArray[np.float64], hub: int, far: float) -> Known:
    """Return what a hub knows of rows, of lines of `_weighed`."""
    with np.errstate(divide="ignore"):
        costs = np.minimum(-2 * np.log(table[:, 2:]), far)
    return Known(hub, table[:, 0].astype(np.intp), np.abs(costs), far)


def looked_up(labelled: Labelled | None) -> Report | None:
    """Return what a report tells of labels.

    Warns in the process that can tell, where labelled rows are not where they belong.
    """
    if labelled is None:
        return None
    known = labelled.known
    astray = 0 if known is None else int((known.astray > ASTRAY).sum())
    if known is not None and astray:
        rows = "row belongs" if astray == 1 else "rows belong"
        warnings.warn(
            VpemWarning(
                f"{astray} labelled {rows} to components other than the label's: features speak "
                f"against it by more than {known.far / 2:g} nats; look for outliers, or "
                "for labels that are wrong"
            ),
            stacklevel=3,
        )
    return {
        "agent": labelled.agent,
        "n_rows": labelled.n_rows,
        "names": list(labelled.names),
        "rows": list(labelled.counts),
    }
