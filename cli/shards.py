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

    from .driver import Run


def _own_paths(run: Run, network: Network, names: Sequence[str]) -> dict[int, Path]:
    """Return the files of this process's shards by the numbers of hubs.

    Beside --output and named after hubs' roots; where each process has a user, who names a file,
    the one shard goes there.
    """
    from vpem.fits.parts import shard_paths

    if run.out.output is None:
        return {}
    paths = shard_paths(run.out.output, network.whole.blocks, names)
    own = {
        number: paths[number] for number in network.total.holders.own.tolist() if number in paths
    }
    if run.where.own_users and len(own) == 1:
        return dict.fromkeys(own, run.out.output)
    return own


def check_shards(run: Run, network: Network, names: Sequence[str]) -> None:
    """Raise FileError or InputError where a shard of this process cannot be written."""
    from vpem.files.hdf5 import check_writable

    for path in _own_paths(run, network, names).values():
        writes("--shards", path)
        check_writable(path, run.out.force, "models")


def write_shards(
    run: Run, found: Fit, names: Sequence[str], feature_names: Sequence[str], options: Report
) -> tuple[Fit, Report]:
    """Write the parameters of this process's hubs, a file each.

    Returns what a report needs of the fit, and what it says of the files.
    """
    from vpem.fits.parts import outline, write_shard

    blocks, out = found.network.whole.blocks, run.out
    paths = _own_paths(run, found.network, names)
    for place, number in enumerate(found.network.total.holders.own.tolist()):
        if number in paths:
            own = [feature_names[j] for j in blocks.features[number]]
            write_shard(paths[number], found, place, names, own, options, out.force)
    said: Report = {}
    if run.where.own_users:
        said = {"model": ", ".join(map(str, paths.values())) or None}
    elif out.output is not None:
        stem, suffix = out.output.with_name(out.output.stem), out.output.suffix
        said = {"model": f"{stem}.*{suffix}, a shard a hub"}
    return outline(found), said
