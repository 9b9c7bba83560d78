"""How times are taken: interleaved, so that a slow minute of the machine is shared by all."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["environment", "measured"]


def measured(
    name: str, size: str, base: str, contenders: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, Any]:
    """Run each contender once to warm up, then ``repeats`` rounds of all; return one result.

    Every round begins with another contender, so that none always runs on the other's cache.
    The others are compared with ``base``: the fastest contender whose name begins so.
    """
    names = list(contenders)
    for who in names:
        contenders[who]()
    seconds: dict[str, list[float]] = {who: [] for who in names}
    for repeat in range(repeats):
        turn = repeat % len(names)
        for who in names[turn:] + names[:turn]:
            began = time.perf_counter()
            contenders[who]()
            seconds[who].append(time.perf_counter() - began)
    median = {who: statistics.median(times) for who, times in seconds.items()}
    least = min(median[who] for who in names if who.startswith(base))
    ratios = {who: least / median[who] for who in names}
    return {"name": name, "size": size, "base": base, "median": median, "times_as_fast": ratios,
            "seconds": seconds}  # fmt: skip


def environment() -> dict[str, Any]:
    """Return what a reader must know to compare the numbers with others."""
    model = platform.processor() or platform.machine()
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        names = [line for line in facts.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    packages = ("vpem", "numpy", "scipy", "scikit-learn")
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
