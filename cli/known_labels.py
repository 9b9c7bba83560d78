"""Labels of some rows that a fit takes: who has them, and which components they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vpem.files.datasets import Dataset
    from vpem.fits.labels import KnownLabels
    from vpem.fits.results import Fit
    from vpem.settings import FitSettings

    from .output import Screen
    from .parties import FitFiles
    from .tasks import Task


def place_of(asked: str | None, names: Sequence[str]) -> int:
    """Return the number of the agent that has the labels, the first unless another is named."""
    from vpem.checks import read_int
    from vpem.errors import InputError, Setting, brief, did_you_mean, shorten

    if asked is None:
        return 0
    if asked in names:
        return list(names).index(asked)
    number = read_int(asked)
    if number is not None and 0 <= number < len(names):
        return number
    raise InputError(
        Setting("labels_at"), f" must be an agent, by name or number, got {brief(asked)}"
        f"{did_you_mean(asked, names)}; they are {shorten(names, 10)}",
    )  # fmt: skip


def known_to(
    task: Task, asked: FitFiles, start: Path | None, counts: Sequence[int], how: FitSettings
) -> KnownLabels | None:
    """Return what this process can tell a fit of labels.

    Components of a model to ``start`` from have the names of labels; ``counts`` are the numbers of
    components there are to be, and ``how`` has the one of the start.
    """
    from vpem.errors import InputError, Setting
    from vpem.fits.labels import KnownLabels

    source: Dataset = task.source
    found = source.labels_for_fit
    if found is None:
        return None
    if len(counts) > 1:
        raise InputError(
            Setting("labels_for_fit"), " are no part of BIC, by which a number of components is "
            "chosen; give one number of ", Setting("n_components"),
        )  # fmt: skip
    agent = source.labelled_by if asked.parties else place_of(asked.labels_at, task.names)
    if start is None or found.names:
        return KnownLabels(found.values, agent, found.names or None)
    names = _names_of(start)
    return KnownLabels(_by_name(found.values, names, how.n_components, start), agent, names)


def _names_of(start: Path) -> tuple[str, ...]:
    """Return the names of the components of a model."""
    from vpem.errors import InputError, Setting
    from vpem.files.models import read_model
    from vpem.fits.answer import labels_of

    names = labels_of(read_model(start).report)
    if not names:
        raise InputError(
            f"{start} was fitted without labels, so that nothing says which of its components "
            "is which; leave out ", Setting("labels_for_fit"), " or the start",
        )  # fmt: skip
    return names


def _by_name(values: Any, names: Sequence[str], n_components: int, start: Path) -> Any:
    """Return labels as probabilities of the components that have these names."""
    import numpy as np

    from vpem.errors import InputError, Setting, shorten
    from vpem.fits.labels import KnownLabels

    codes, own = KnownLabels(values).parsed(len(values), max(len(values), 1))
    strange = [name for name in own if name not in names]
    if strange:
        raise InputError(
            Setting("labels_for_fit"), f" have {shorten(map(repr, strange), 3)}, which no "
            f"component of {start} is called: they are {shorten(names, 10)}",
        )  # fmt: skip
    shares = np.zeros((len(values), n_components))
    for place, name in enumerate(own):
        shares[:, list(names).index(name)] = codes[:, place]
    shares[np.isnan(codes).any(axis=1)] = np.nan
    return shares


def tell_of_labels(found: Fit, screen: Screen) -> None:
    """Say in a line which component has which label."""
    told = found.labels_for_fit
    if told is None:
        return
    from .output import plural

    counts = [count if count % 1 else int(count) for count in told["rows"]]
    each = [
        f"{k} is {name} ({plural(count, 'row') if count == int(count) else f'{count:.1f} rows'})"
        for k, (name, count) in enumerate(zip(told["names"], counts, strict=False))
    ]
    if each:
        screen.say(f"component {', '.join(each)}; all roots learn it of labelled rows")
