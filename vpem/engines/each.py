"""Work that every agent does for itself, and that fails everywhere if it fails anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from vpem import errors
from vpem.engines.placement import Placement

T = TypeVar("T")


def for_each(place: Placement, agents: Iterable[int], work: Callable[[int], T]) -> dict[int, T]:
    """Do some work for every agent that lives here, and fail everywhere if it fails anywhere.

    ``agents`` are the same in every process, and ``work`` must not talk to others. The VpemError of
    the first agent whose work raised one is raised in all; where processes are others'
    (`Engine.open`), only where it happened, and others hear that it did (`VpemError.elsewhere`).
    """
    engine = place.engine
    done: dict[int, T] = {}
    errors_here: dict[int, errors.VpemError] = {}
    for agent in agents:
        if place.mine(agent):
            try:
                done[agent] = work(agent)
            except errors.VpemError as error:
                errors_here[agent] = error
    everywhere = place.allgather(
        {
            agent: _sayable(error) if engine.open else error.elsewhere(engine.names[engine.rank])
            for agent, error in errors_here.items()
        }
    )
    if errors_here and not engine.open:
        raise errors_here[min(errors_here)]
    if everywhere:
        said = everywhere[min(everywhere)]
        if isinstance(said, str):
            raise errors.InputError(errors.printable(said))
        kind, parts = said
        raise getattr(errors, kind, errors.InputError)(
            *(part if isinstance(part, str) else errors.Setting(*part) for part in parts)
        )
    return done


def _sayable(error: errors.VpemError) -> list[Any]:
    """Return the kind and the sentence of an error as plain values."""
    parts = [part if isinstance(part, str) else (part.name, part.value) for part in error.parts]
    return [type(error).__name__, parts]
