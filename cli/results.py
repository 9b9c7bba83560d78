"""Results of a fit: a report and a model, at the processes that may have them.

A model may stay in pieces, one file for the parameters of each hub, where the hub lives. Less is
reported of a fit whose rows are protected by noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from vpem.errors import FileError, InputError, Setting
from vpem.settings import KmeansSettings

from .commands.kinds import stored_at
from .display import as_plain, plural
from .files import writes

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.fits.clustering import Clustering
    from vpem.fits.results import Fit
    from vpem.fits.settings import PrivacySettings
    from vpem.network.schema import Report
    from vpem.settings import FitSettings
    from vpem.sums.connect import Network

    from .choices import Task
    from .display import Screen
    from .options import Given
    from .runner import CheckpointSettings, CommandRun


def check_asked(
    settings: FitSettings | KmeansSettings,
    privacy: PrivacySettings,
    checkpoints: CheckpointSettings,
    given: Given,
) -> None:
    """Raise InputError where an option was given that a private fit of rows cannot have."""
    if privacy.epsilon is None:
        return
    from vpem.fits.private import LEAVE_OUT, check_private
    from vpem.fits.row_kmeans import LEAVE_OUT as OF_CLUSTERS

    for start in ("init_rows", "init_model"):
        if given.has(start):
            raise InputError(
                Setting(start), " is not possible with ", Setting("epsilon"), ": a private fit "
                "finds its start by noisy sums of its own; leave it out",
            )  # fmt: skip
    check_private(
        settings,
        OF_CLUSTERS if isinstance(settings, KmeansSettings) else LEAVE_OUT,
        given=given.has,
        weighted=given.has("sample_weight"),
        saved=checkpoints.checkpoint is not None,
    )


def tell_what_is_left(
    screen: Screen, settings: FitSettings, privacy: PrivacySettings, task: Task
) -> None:
    """Note before a private fit of rows how large its noise will be."""
    if privacy.epsilon is not None:
        from vpem.fits.privacy import foretell

        n_samples, n_features = task.parts.n_samples, len(task.source.feature_names)
        foretold = foretell(settings, privacy, n_samples, n_features, task.networks[0])
        foretold.check()
        screen.note(str(foretold))


def kept_of_private(result: Fit | Clustering) -> Report:
    """Return what a model keeps in place of options that do not apply to a private fit."""
    if result.guarantee is None:
        return {}
    return {"init": "noisy sums", "max_iter": result.n_iter, "tol": None}


def warned_of_private(result: Fit | Clustering) -> Report:
    """Return the warnings of a report where rows are protected: none that discloses data."""
    if result.guarantee is None:
        return {}
    from vpem.fits.privacy import REPEATABLE

    return {"warnings": [REPEATABLE] if result.guarantee.repeatable else []}


def tell_of_clipped(screen: Screen, result: Fit | Clustering, names: Sequence[str]) -> None:
    """Note at each worker how many of its rows were clipped to the bounds; no report has that."""
    for worker, count in getattr(result, "clipped", {}).items():
        if count:
            screen.note(
                f"{names[worker]}: {plural(count, 'row')} with values beyond --bounds, which were "
                "clipped; this is not reported to others"
            )


def _own_paths(run: CommandRun, network: Network, names: Sequence[str]) -> dict[int, Path]:
    """Return the files of this process's shards by the numbers of hubs.

    They are beside --output and named after hubs' roots; where each process has a user, who names
    a file, its only shard goes there.
    """
    from vpem.fits.parts import shard_paths

    if run.out.output is None:
        return {}
    paths = shard_paths(run.out.output, network.whole.blocks, names)
    local_paths = {
        number: paths[number] for number in network.total.holders.own.tolist() if number in paths
    }
    if run.where.own_users and len(local_paths) == 1:
        return dict.fromkeys(local_paths, run.out.output)
    return local_paths


def check_shards(run: CommandRun, network: Network, names: Sequence[str]) -> None:
    """Raise FileError or InputError where a shard of this process cannot be written."""
    from vpem.files.hdf5 import check_writable

    for path in _own_paths(run, network, names).values():
        writes("--shards", path)
        check_writable(path, run.out.force, "models")


def write_shards(
    run: CommandRun, fit: Fit, names: Sequence[str], feature_names: Sequence[str], options: Report
) -> tuple[Fit, Report]:
    """Write the parameters of this process's hubs, a file each.

    Returns the outline of the fit for a report, and its facts on the files.
    """
    from vpem.fits.parts import outline, write_shard

    blocks, out = fit.network.whole.blocks, run.out
    paths = _own_paths(run, fit.network, names)
    for place, number in enumerate(fit.network.total.holders.own.tolist()):
        if number in paths:
            block_features = [feature_names[j] for j in blocks.features[number]]
            write_shard(paths[number], fit, place, names, block_features, options, out.force)
    files: Report = {}
    if run.where.own_users:
        files = {"model": ", ".join(map(str, paths.values())) or None}
    elif out.output is not None:
        stem, suffix = out.output.with_name(out.output.stem), out.output.suffix
        files = {"model": f"{stem}.*{suffix}, a shard for each hub"}
    return outline(fit), files


PIECE = 1 << 20
"""Bytes of a file that are sent at a time."""

MOST = 1 << 32
"""Most bytes of a file from another member."""


@dataclass(frozen=True)
class FitOutcome:
    """The result of a fit.

    ``tell`` returns the part of the report that is common to all, without the file of the data;
    ``write`` writes the model, ``show`` prints a report. ``own`` writes further files of each user,
    and returns its part of the report. If ``apart``, each process writes a model of its own. Others
    get ``found`` (see `vpem.fits.results.few_rows_of`); ``heaviest`` is the largest weight of a
    row of this process.
    """

    converged: bool
    tell: Callable[[], Report]
    write: Callable[[Path, Report], None]
    show: Callable[[Report], None]
    own: Callable[[Report], Report] = lambda _: {}
    apart: bool = False
    found: Any = None
    heaviest: float = 1.0


def send(
    engine: Engine, result: FitOutcome, output: Path | None, over: Callable[[], None] = lambda: None
) -> Report:
    """Send report and file from the first member to all others; returns the report.

    ``over`` is called when all is sent: later errors concern only this member. FileError if the
    model cannot be written: after others have it, if it can be made at all.
    """
    report: Report = as_plain(result.tell())
    engine.topic = "result"
    engine.bcast(report)
    if result.apart:
        over()
        return report
    content = failed = None
    if output is not None:
        try:
            result.write(output, report)
            content = output.read_bytes()
        except FileError as error:
            failed = error
    if content is None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "model.h5")
            try:
                result.write(path, report)
            except FileError as error:
                raise failed or error from None
            content = path.read_bytes()
    engine.bcast(len(content))
    for begin in range(0, len(content), PIECE):
        engine.bcast(content[begin : begin + PIECE])
    over()
    if failed is not None:
        raise failed
    return report


def receive(
    engine: Engine,
    result: FitOutcome,
    output: Path | None,
    force: bool,
    over: Callable[[], None] = lambda: None,
) -> Report:
    """Receive report and file from the first member; the file is checked by reading it.

    ``over`` is called when everything has arrived: later errors concern only this member.
    """
    import os
    import tempfile

    from vpem.files.hdf5 import atomic_write

    engine.topic = "result"
    report: Any = engine.bcast(None)
    if not isinstance(report, dict):
        raise InputError(f"{engine.names[0]} has sent no report; do all run the same version?")
    if result.apart:
        over()
        return report
    size: Any = engine.bcast(None)
    if not isinstance(size, int) or not 0 < size <= MOST:
        raise InputError(f"{engine.names[0]} has sent a file of {str(size)[:20]} bytes")
    with tempfile.TemporaryFile() as buffer:
        while buffer.tell() < size:
            piece: Any = engine.bcast(None)
            if not isinstance(piece, bytes) or not 0 < len(piece) <= size - buffer.tell():
                raise InputError(f"{engine.names[0]} has sent a file in pieces that do not fit")
            if output is not None:
                buffer.write(piece)
            else:
                buffer.seek(len(piece), os.SEEK_CUR)
        over()
        if output is None:
            return report
        buffer.seek(0)
        with atomic_write(output, force) as temporary:
            with open(temporary, "wb") as file:
                while piece := buffer.read(PIECE):
                    file.write(piece)
            try:
                _ = stored_at(temporary).stored
            except FileError as error:
                raise FileError(
                    f"what {engine.names[0]} has sent is not the result of a fit: {error}"
                ) from None
    return report
