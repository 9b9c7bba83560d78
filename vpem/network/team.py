"""The processes that agents live in: here, one for all of them."""

from __future__ import annotations

from typing import Any

__all__ = ["Alone"]


class Alone:
    """One process in which all agents live.

    Parameters
    ----------
    n_agents : int
        How many.
    """

    rank = 0
    size = 1

    def __init__(self, n_agents: int) -> None:
        self.n_agents = n_agents

    def mine(self, agent: int) -> bool:
        """Whether an agent lives in this process: all do."""
        return True

    def collect(self, values: dict[int, Any], to: int | None = 0) -> dict[int, Any] | None:
        """Return what the agents have, by agent: all are here."""
        return dict(values)

    def tell(self, value: Any, owner: int = 0) -> Any:
        """Return what the owner has: it is here."""
        return value

    def pass_on(self, value: Any, source: int, target: int) -> Any:
        """Return what one agent sends another: both are here."""
        return value
