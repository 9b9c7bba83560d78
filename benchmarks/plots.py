"""One plot a part, beside its JSON; readable in grey."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

GREYS = ("0.15", "0.45", "0.7", "0.9", "1.0", "0.8", "0.95")
HATCHES = ("", "", "", "///", "...", "xxx", "|||")


def blank(width: float, height: float, dpi: int = 110) -> Any:
    """Return an empty figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def bars(axes: Any, results: list[dict[str, Any]], value: Callable[[dict[str, Any], str], float],
         format_: str) -> None:  # fmt: skip
    """Draw horizontal bars, a group a result, with their values."""
    every = list(dict.fromkeys(who for result in results for who in result["median"]))
    at = 0.0
    places, names, drawn = [], [], set()
    for result in results:
        group = list(result["median"])
        for who in group:
            style = every.index(who) % len(GREYS)
            length = value(result, who)
            axes.barh(at, length, 0.85, color=GREYS[style], edgecolor="0", linewidth=0.6,
                      hatch=HATCHES[style], label=None if who in drawn else who)  # fmt: skip
            axes.annotate(format(length, format_), (length, at), (3, 0), fontsize=8,
                          textcoords="offset points", va="center")  # fmt: skip
            drawn.add(who)
            at += 1
        places.append(at - (len(group) + 1) / 2)
        names.append(result["label"])
        at += 0.8
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    axes.spines[["top", "right"]].set_visible(False)


def ratios(figure: Any, results: list[dict[str, Any]], title: str) -> None:
    """Draw how many times as fast each contender is as the base."""
    axes = figure.subplots()
    bars(axes, results, lambda result, who: result["times_as_fast"][who], ".2f")
    axes.axvline(1, color="0", linewidth=1, linestyle="--")
    axes.set_xlabel(title)
    figure.legend(fontsize=8, loc="outside lower center", ncols=4, frameon=False)


def peers(figure: Any, results: list[dict[str, Any]]) -> None:
    for result in results:
        result["label"] = (
            result["case"].replace(", K", "\nK").replace(", float", "\nfloat").replace("1, ", "1\n")
        )
    title = "times as fast as the fastest peer of the case (the bar at 1)"
    ratios(figure, results, title)


def seconds(figure: Any, results: list[dict[str, Any]]) -> None:
    """Draw medians of results of one kind, a panel each."""
    panels = figure.subplots(len(results), squeeze=False)[:, 0]
    for axes, result in zip(panels, results, strict=True):
        single = [
            result | {"label": who.removeprefix("vpem, "), "median": {who: median}}
            for who, median in result["median"].items()
        ]
        for one in single:
            one["median"] = {"median": next(iter(one["median"].values()))}
        bars(axes, single, lambda result, who: 1e3 * result["median"][who], ".3g")
        axes.set_title(f"{result['name']}: {result['case']}", fontsize=9, loc="left")
        axes.set_xlabel("milliseconds, median", fontsize=8)


def kernels(figure: Any, results: list[dict[str, Any]]) -> None:
    """Draw the fraction of the arithmetic limit, where there is one."""
    limited = [result for result in results if "of the limit" in result["facts"]]
    for result in limited:
        case = result["case"].replace("float64, roots' own", "float64, own")
        result["label"] = f"{result['name']}\n{case}"
        result["median"] = {"kernel": result["median"]["kernel"]}
    axes = figure.subplots()
    bars(axes, limited, lambda result, who: 100 * result["facts"]["of the limit"], ".0f")
    axes.set_xlabel("per cent of the arithmetic limit (dgemm on one thread x threads)")


def scaling(figure: Any, results: list[dict[str, Any]]) -> None:
    """Draw growth on logarithmic axes beside the power expected."""
    growing = [result for result in results if result["name"].startswith("growth")]
    panels = figure.subplots(2, 2).ravel()
    for axes, result in zip(panels, growing, strict=True):
        x, y = result["facts"]["x"], [1e3 * value for value in result["median"].values()]
        power = result["facts"]["expected"]
        axes.loglog(x, y, "o-", color="0", label="measured")
        ideal = [y[-1] * (value / x[-1]) ** power for value in x]
        axes.loglog(x, ideal, "--", color="0.5", label=f"power {power}")
        axes.set_xticks(x, [f"{value:,}" for value in x])
        axes.tick_params(axis="x", which="minor", labelbottom=False)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.tick_params(axis="y", which="minor", labelleft=False)
        axes.set_xlabel(result["name"].removeprefix("growth with "))
        axes.set_ylabel("milliseconds an iteration")
        axes.legend(fontsize=8, frameon=False)


KINDS: dict[str, Callable[..., None]] = {
    "peers": peers, "agents": seconds, "kernels": kernels, "scaling": scaling,
    "outofcore": seconds, "mpi": seconds,
}  # fmt: skip


def draw(part: str, results: list[dict[str, Any]], target: Path) -> None:
    """Write the plot of a part, if it has one."""
    timed = [dict(result) for result in results if result["median"]]
    if part not in KINDS or not timed:
        return
    rows = sum(len(result["median"]) for result in timed) + len(timed)
    height = 8.0 if part == "scaling" else max(2.5, 1.5 + 0.22 * rows)
    if part == "kernels":
        height = 9.0
    figure = blank(8.5, height)
    KINDS[part](figure, timed)
    figure.savefig(target)
