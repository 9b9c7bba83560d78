"""What one process has of the data of parties that several processes hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpem.files.datasets import Dataset


@dataclass
class Share(Dataset):
    """What one process has of the data of parties that several processes hold.

    ``X`` has the columns, or the rows, of its own parties alone, party by party, and weights are of
    the rows of ``X``; all else is what the parties have together.
    """

    def __post_init__(self) -> None:
        """Take everything as it is."""

    @property
    def own_features(self) -> Sequence[int]:
        """Features of this process's parties, which the columns of ``X`` are."""
        if self.partition is None:
            return range(len(self.feature_names))
        return [int(j) for party in self.homes for j in self.partition.features[party]]

    @property
    def n_features(self) -> int:
        """Number of features of all parties."""
        return len(self.feature_names)

    @property
    def n_samples(self) -> int:
        """Number of rows of all parties."""
        return len(self.X) if self.workers is None else self.workers.n_samples
