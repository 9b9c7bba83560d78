"""A dataset cut into parties' datasets, as if it had never been in one place: for trials."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from vpem.checks import Labels, check_int, check_number
from vpem.errors import InputError
from vpem.files.datasets import Dataset
from vpem.network.partition import Partition


def cut(
    dataset: Dataset,
    partition: Partition,
    *,
    shuffle: bool = False,
    drop_ids: float = 0.0,
    seed: int = 0,
) -> list[Dataset]:
    """Give each agent a dataset of its own features, with ids; labels are with the first.

    If ``shuffle``, each party's rows have an order of their own. ``drop_ids`` in [0, 1) is the
    share of rows that each party lacks, drawn for each anew.
    """
    drop_ids = check_number("drop_ids", drop_ids, least=0.0, most=1.0)
    rng = np.random.default_rng(check_int("seed", seed, least=0))
    n_samples = dataset.n_samples
    n_kept = n_samples - round(drop_ids * n_samples)
    if n_kept < 1:
        raise InputError(f"dropping {drop_ids:g} of {n_samples} rows leaves none; drop fewer")
    ids: Labels = np.arange(n_samples) if dataset.ids is None else dataset.ids
    made = []
    for agent, (name, columns) in enumerate(zip(partition.names, partition.features, strict=True)):
        if not columns.size:
            raise InputError(f"agent {name!r} holds no feature, so it has no file; leave it out")
        rows = rng.permutation(n_samples)[:n_kept]
        if not shuffle:
            rows.sort()
        labels, weights = dataset.labels if agent == 0 else None, dataset.sample_weight
        made.append(
            replace(
                dataset,
                X=np.asarray(dataset.X[:])[np.ix_(rows, columns)],
                feature_names=tuple(dataset.feature_names[column] for column in columns),
                ids=ids[rows],
                labels=None if labels is None else labels[rows],
                sample_weight=None if weights is None else weights[rows],
                partition=None,
                workers=None,
                edges=None,
                kinds=None if dataset.kinds is None else dataset.kinds.of(columns),
            )
        )
    return made


def file_stems(names: tuple[str, ...]) -> list[str]:
    """Return names of files, without their ends, for names of agents; they must stay different.

    What is no letter, digit or one of ``.+-_`` becomes ``_``.
    """
    stems = [re.sub(r"[^\w.+-]+", "_", name).strip("._") or "_" for name in names]
    folded = [stem.casefold() for stem in stems]
    for place, stem in enumerate(folded):
        first = folded.index(stem)
        if first != place:
            raise InputError(
                f"agents {names[first]!r} and {names[place]!r} would have one file, "
                f"{stems[place]}.h5; rename one"
            )
    return stems
