"""Models in pieces: which files hubs' parameters go to, and writing them where the hubs live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .roles import writes

if TYPE_CHECKING:
    from vpem.fits.results import Fit
    from vpem.network.schema import Report
    from vpem.sums.connect import Network

__all__ = ["check_shards", "write_shards"]


def check_shards(output: Path, network: Network, names: Sequence[str], force: bool) -> None:
    """Raise FileError or InputError where a shard of this process cannot be written."""
    from vpem.files.hdf5 import check_writable
    from vpem.fits.shards import shard_paths

    paths = shard_paths(output, network.whole.blocks, names)
    for number in network.total.holders.own:
        if number in paths:
            writes("--shards", paths[number])
            check_writable(paths[number], force, "models")


def write_shards(
    output: Path,
    found: Fit,
    names: Sequence[str],
    feature_names: Sequence[str],
    options: Report,
    force: bool,
) -> Fit:
    """Write the parameters of this process's hubs, a file each; what a report needs of the fit."""
    from vpem.fits.parts import outline
    from vpem.fits.shards import shard_paths, write_shard

    blocks = found.network.whole.blocks
    paths = shard_paths(output, blocks, names)
    for place, number in enumerate(found.network.total.holders.own):
        if number in paths:
            own = [feature_names[j] for j in blocks.features[number]]
            write_shard(paths[number], found, place, names, own, options, force)
    return outline(found)
