"""Links between agents: how much they carry in a second, and how long a message is on its way."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from vpem.errors import InputError, Setting, brief

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
NUMBER = r"([0-9]+(?:\.[0-9]+)?)"


@dataclass(frozen=True)
class Link:
    """What connects an agent to all others; both directions at once."""

    bandwidth: float  # bits a second, sent and received
    latency: float  # seconds a message takes one way, however short

    def transfer(self, n_bytes: float) -> float:
        """Seconds that so many bytes take to leave an agent, or to reach it."""
        return 8 * n_bytes / self.bandwidth


def parse_link(text: str) -> Link:
    """Read bandwidth and latency, such as 100Mbit,30ms or 10Gbit/s,0.1ms."""
    bits, seconds = "|".join(BITS), "|".join(SECONDS)
    pattern = rf"{NUMBER}\s*({bits})(?:/s)?\s*,\s*{NUMBER}\s*({seconds})"
    found = re.fullmatch(pattern, text.strip(), flags=re.IGNORECASE)
    link = None
    if found:
        bandwidth = float(found[1]) * BITS[found[2].lower()]
        link = Link(bandwidth, float(found[3]) * SECONDS[found[4].lower()])
    if link is None or not 0 < link.bandwidth < math.inf or link.latency == math.inf:
        raise InputError(
            Setting("link"),
            " is bandwidth and one-way latency, such as 100Mbit,30ms (units: kbit, Mbit, Gbit; us, "
            f"ms, s), got {brief(text)}",
        )
    return link
