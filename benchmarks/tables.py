"""Results as tables on the screen."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table


def number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def shown(value: float, unit: str = "") -> str:
    """Return seconds in a unit that suits them, or a number with its unit."""
    if unit not in ("", "s of processors"):
        return f"{value:.3g} {unit}"
    text = f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
    return text + unit.removeprefix("s")


def table(title: str, results: list[dict[str, Any]]) -> Table:
    """Return medians, spreads, and how many times as fast each is as the base (*) of its case."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("contender", overflow="fold")
    for head in ("median", "fastest", "slowest", "times as fast"):
        made.add_column(head, justify="right")
    for result in results:
        made.add_row(f"[b]{result['name']}[/b] {result['case']}")
        for who, median in result["median"].items():
            times = result["seconds"][who]
            spread = [
                shown(one, result.get("unit", "")) for one in (median, min(times), max(times))
            ]
            mark = " *" if who == result["base"] else ""
            made.add_row(f"  {who}{mark}", *spread, f"{result['times_as_fast'][who]:.3g}")
        for who, why in result["absent"].items():
            made.add_row(f"  {who}: absent, {why}")
        for what, value in result["facts"].items():
            if isinstance(value, float | str) or result["name"] == "peak memory":
                made.add_row(f"  {what}", number(value))
    return made


def absences(kept: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Every contender or tool that was not there, and why."""
    return {
        who: why
        for results in kept.values()
        for result in results
        for who, why in result["absent"].items()
    }
