"""What a command says before and after a fit whose rows are protected by noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.fits.clustering import Clustering
    from vpem.fits.results import Fit
    from vpem.fits.settings import PrivacySettings
    from vpem.network.schema import Report
    from vpem.settings import FitSettings, KmeansSettings

    from .checkpoints import CheckpointSettings
    from .options import Given
    from .output import Screen
    from .tasks import Task


def check_asked(
    how: FitSettings | KmeansSettings,
    privacy: PrivacySettings,
    checkpoints: CheckpointSettings,
    given: Given,
) -> None:
    """Raise InputError where an option was given that a private fit of rows cannot have."""
    if privacy.epsilon is None:
        return
    from vpem.errors import InputError, Setting
    from vpem.fits.private import LEAVE_OUT, check_private
    from vpem.fits.row_kmeans import LEAVE_OUT as OF_CLUSTERS
    from vpem.settings import KmeansSettings

    for start in ("init_rows", "init_model"):
        if given.has(start):
            raise InputError(
                Setting(start), " cannot be had with ", Setting("epsilon"), ": a private fit finds "
                "its start by noisy sums of its own; leave it out",
            )  # fmt: skip
    check_private(
        how, OF_CLUSTERS if isinstance(how, KmeansSettings) else LEAVE_OUT, given=given.has,
        weighted=given.has("sample_weight"), saved=checkpoints.checkpoint is not None,
    )  # fmt: skip


def tell_what_is_left(
    screen: Screen, how: FitSettings, privacy: PrivacySettings, task: Task
) -> None:
    """Say before a private fit of rows how large its noise will be."""
    if privacy.epsilon is not None:
        from vpem.fits.privacy import foretell

        n_samples, n_features = task.parts.n_samples, len(task.source.feature_names)
        foretold = foretell(how, privacy, n_samples, n_features, task.networks[0])
        foretold.check()
        screen.note(str(foretold))


def kept_of_private(found: Fit | Clustering) -> Report:
    """Return what a model keeps in the place of options that a private fit has no use for."""
    if found.guarantee is None:
        return {}
    return {"init": "noisy sums", "max_iter": found.n_iter, "tol": None}


def warned_of_private(found: Fit | Clustering) -> Report:
    """Return the warnings of a report where rows are protected: none that tells of data."""
    if found.guarantee is None:
        return {}
    from vpem.fits.privacy import REPEATABLE

    return {"warnings": [REPEATABLE] if found.guarantee.repeatable else []}


def tell_of_clipped(screen: Screen, found: Fit | Clustering, names: Sequence[str]) -> None:
    """Say where rows lie how many of them were clipped to the bounds; no report has that."""
    from .output import plural

    for worker, count in getattr(found, "clipped", {}).items():
        if count:
            screen.note(
                f"{names[worker]}: {plural(count, 'row')} with values beyond --bounds, which were "
                "clipped; nobody else is told"
            )
