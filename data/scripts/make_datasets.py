"""Make the small real datasets of data/ from the copies bundled with scikit-learn.

Run ``python data/scripts/make_datasets.py`` (``--force`` replaces the files, ``--folder`` writes
elsewhere). The same versions of vpem and HDF5 make the same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_wine

from vpem.files.datasets import Dataset, write_dataset
from vpem.network.partition import from_lists

__all__ = ["breast_cancer", "main", "wine"]


def cycle(n_agents: int) -> NDArray[np.intp]:
    """Return the edges of a ring of agents, shape (n_agents, 2)."""
    agents = np.arange(n_agents)
    return np.column_stack([agents, (agents + 1) % n_agents])


def breast_cancer() -> Dataset:
    """Return 569 tumours x 30 features: ten measured quantities, one an agent, on a ring."""
    bunch = load_breast_cancer()
    names = [str(name) for name in bunch.feature_names]
    quantities = [name.removeprefix("mean ") for name in names[:10]]
    held = [[n, n + 10, n + 20] for n in range(10)]  # mean, error and worst value
    return Dataset(
        bunch.data,
        tuple(names),
        labels=bunch.target_names[bunch.target],
        partition=from_lists(held, len(names), quantities),
        edges=cycle(10),
        source="breast_cancer",
    )


def wine() -> Dataset:
    """Return 178 wines x 13 constituents, a plain table."""
    bunch = load_wine()
    names = [str(name) for name in bunch.feature_names]
    return Dataset(
        bunch.data,
        tuple(names),
        labels=bunch.target_names[bunch.target],
        source="wine",
    )


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Make breast_cancer.h5 and wine.h5.")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--force", action="store_true", help="replace existing files")
    options = parser.parse_args()
    for make in (breast_cancer, wine):
        target = options.folder / f"{make.__name__}.h5"
        write_dataset(target, make(), options.force)
        print(f"wrote {target}")


if __name__ == "__main__":
    main()
