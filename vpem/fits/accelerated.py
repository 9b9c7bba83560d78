"""What fits can be accelerated, and how."""

from __future__ import annotations

from vpem.errors import InputError, Setting
from vpem.settings import FitSettings
from vpem.steps.accelerate import Acceleration, parse_acceleration
from vpem.sums.connect import Network

__all__ = ["acceleration_of"]


def acceleration_of(how: FitSettings, network: Network) -> Acceleration | None:
    """Return how a fit is to be accelerated, or raise InputError where it cannot be."""
    asked = parse_acceleration(how.accelerate)
    if asked is None:
        return None
    if network.faults is not None:
        raise InputError(
            Setting("accelerate"),
            " takes a step back where a sum finds a lower log-likelihood, but where links or "
            "agents fail sums differ by who was heard; leave it out",
        )
    return asked
