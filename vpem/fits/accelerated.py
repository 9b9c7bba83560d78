"""What fits can be accelerated, and how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vpem.errors import InputError, Setting
from vpem.files.matrix import check_kept_beside
from vpem.settings import FitSettings
from vpem.steps.accelerate import Acceleration, parse_acceleration
from vpem.sums.connect import Network


def acceleration_of(
    how: FitSettings, network: Network, *, over_rows: bool = False
) -> Acceleration | None:
    """Return how a fit is to be accelerated, or raise InputError where it cannot be."""
    asked = parse_acceleration(how.accelerate)
    if asked is None:
        return None
    if network.faults is not None and network.total.way == "consensus":
        raise InputError(
            Setting("accelerate"),
            " takes back what a sum finds a lower log-likelihood at, but where links or agents "
            "fail sums by consensus differ by who was heard; leave it out, or take ",
            Setting("sum", "tree"),
        )
    if asked.local and over_rows:
        raise InputError(
            "workers hold rows, and the parameters of all rows are no worker's own to take local "
            "steps with; take ",
            Setting("accelerate", "squarem"),
        )
    if asked.local and how.n_factors:
        raise InputError(
            "what is expected of factors that hubs share depends on the features of all of them, "
            "so that a hub cannot tell what a step of its own would do while the rest of a sum "
            "stays; take ",
            Setting("accelerate", "squarem"),
        )
    if asked.local and network.total.holders.n_agents == 1:
        raise InputError(
            "one hub adds nothing to what others know, and its local steps would be those of EM; "
            "take ",
            Setting("accelerate", "squarem"),
        )
    if asked.squarem and network.compress is not None and network.total.way == "consensus":
        raise InputError(
            "messages between neighbours say how states have changed since the last sum of terms, "
            "and the two numbers of an extrapolation would be taken for such; take ",
            Setting("accelerate", "local:8"),
            ", or a sum at a server or along a tree",
        )
    return replace(asked, noisy=network.compress is not None)


def check_rest(X: Any, network: Network, n_components: int, itemsize: int) -> None:
    """Raise InputError where local steps would keep more in memory than there may be."""
    n_hubs = len(network.total.holders.own)
    needed = n_hubs * len(X) * (n_components - 1) * itemsize
    what = "what every hub knows of the rest of a sum, of every row and component,"
    check_kept_beside(X, needed, what, "take ", Setting("accelerate", "squarem"))
