"""What of the data the rank of a command has: its own agents' columns, its own workers' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.network.partition import Workers
    from vpem.sums.connect import Network


def own_features(
    source: Dataset, network: Network, limit: int | None = None
) -> tuple[Any, Sequence[str]]:
    """Return the columns of this process's agents, of which alone values are kept, and names.

    Where they would take more memory than the limit, in bytes, they stay on disk.
    """
    import numpy as np

    from vpem.files.parties.joining import Share
    from vpem.fits.spread import own_columns

    X = source.X
    if not network.agents.apart:
        return X, source.feature_names
    columns = own_columns(network)
    names = [source.feature_names[j] for j in columns]
    if isinstance(source, Share) or not len(columns):
        return X if len(columns) else None, names
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(X[:, columns]), names
    own = X.select(columns.tolist())
    if (stored := own.beyond(limit)) is not None:
        return stored, names
    found = np.empty(own.shape, dtype=X.dtype)
    for start, part in own.runs():
        found[start : start + len(part)] = part
    X.close()
    return found, names


def own_rows(source: Dataset, held: Workers, network: Network, limit: int | None = None) -> Any:
    """Return the rows of this process's workers, of which alone values are read.

    Where they would take more memory than the limit, in bytes, they stay on disk.
    """
    from vpem.files.matrix import FileMatrix
    from vpem.files.parties.joining import Share
    from vpem.fits.local_rows import read_rows

    if isinstance(source, Share) or not network.agents.apart:
        return source.X
    groups = [held.rows[worker] for worker in network.agents.own]
    if isinstance(source.X, FileMatrix):
        stored = source.X.of_rows(groups).beyond(limit)
        if stored is not None:
            return stored
    return read_rows(source.X, groups)


def own_weights(source: Dataset, held: Workers, network: Network) -> Any:
    """Return the weights of what `own_rows` returns."""
    import numpy as np

    from vpem.files.parties.joining import Share

    weights = source.sample_weight
    if weights is None or isinstance(source, Share) or not network.agents.apart:
        return weights
    own = [held.rows[worker] for worker in network.agents.own]
    return weights[np.concatenate([np.empty(0, dtype=np.intp), *own])]


def heaviest_of(source: Dataset, column: str | None) -> float:
    """Return the largest weight of a row of this process; 1 where rows have none."""
    weights = source.sample_weight
    return 1.0 if column is None or weights is None else float(weights.max(initial=0.0)) or 1.0
