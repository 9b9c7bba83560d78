"""Traced runs of FedEM and VR-FedEM, as paper 002 shows them: what is kept, told and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import Trace, Workers, fit_fedem

from ..problems import quietly
from .pictures import COLOURS, LINES, blank, tidy, write
from .report import Table, write_csv

CONTENDERS = ("FedEM", "VR-FedEM")
QUANTITIES = ("move", "mean field", "objective")
POINTS = 160
"""Iterates of a run that are kept."""


def run(X: NDArray[Any], workers: Workers, **options: Any) -> dict[str, Any]:
    """Run once, and keep at most `POINTS` of its iterates: those at which it was recorded."""
    trace = Trace()
    found = quietly(fit_fedem, X, workers, callback=trace, **options)
    known = np.flatnonzero(np.isfinite(trace["mean_field"]))
    known = known[np.unique(np.linspace(0, len(known) - 1, POINTS).astype(int))]
    move = np.nan_to_num(trace["move"][known], nan=0.0)
    return {
        "iteration": trace["iteration"][known].tolist(),
        "epochs": trace["epochs"][known].tolist(),
        "weights": trace["weights"][known].tolist(),
        "move": move.tolist(),
        "mean field": trace["mean_field"][known].tolist(),
        "objective": trace["objective"][known].tolist(),
        "at random": trace.draw(options.get("seed", 0))["iteration"],
        "MB up": found.run.history.bytes_up[-1] / 1e6,
        "iterations": found.run.n_iter,
    }


def tail(values: list[float]) -> float:
    """Median of the last fifth."""
    return float(np.median(values[-max(1, len(values) // 5) :]))


def ends(found: dict[str, Any], name: str, quantity: str) -> NDArray[np.float64]:
    """Return where each run of a contender ends: the median of its last fifth."""
    return np.array([tail(one[quantity]) for one in found["runs"][name]])


def table_of_ends(found: dict[str, Any], caption: str) -> Table:
    """Return a table with medians over runs of where contenders end, and the range."""
    rows = []
    for name, runs in found["runs"].items():
        row: list[Any] = [name, len(runs), float(np.median([one["epochs"][-1] for one in runs]))]
        row.append(float(np.median([one["iterations"] for one in runs])))
        for quantity in QUANTITIES:
            values = ends(found, name, quantity)
            row += [float(np.median(values)), f"{values.min():.3g} to {values.max():.3g}"]
        rows.append([*row, float(np.median([one["MB up"] for one in runs]))])
    heads = ["method", "runs", "epochs", "iterations"]
    for quantity in ("move, squared norm", "mean field, squared norm", "log-likelihood"):
        heads += [quantity, f"{quantity}: range"]
    return Table("ends", caption, [*heads, "MB sent by workers"], rows)


ADVICE = (
    "Look at the mean field and not at the moves: noise keeps moves from falling while parameters "
    "are where EM leaves them (`--trace FILE`, then `vpem plot FILE`)."
)


def compared(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return what agrees with the paper of how FedEM and VR-FedEM end, and what does not."""
    field, move = (
        {name: ends(found, name, quantity) for name in CONTENDERS}
        for quantity in ("mean field", "move")
    )
    plain, reduced = CONTENDERS
    n, agrees, differs = len(move[plain]), list[str](), list[str]()
    calmer = int((move[reduced] < move[plain]).sum())
    ratio = float(np.median(move[plain] / move[reduced]))
    said = (
        f"Variance reduction: the squared norm of VR-FedEM's moves ends below FedEM's in {calmer} "
        f"of {n} runs; in the median FedEM's is {ratio:.3g} times as large."
    )
    (agrees if 2 * calmer > n else differs).append(said)
    noise = {name: float(np.median(move[name] / field[name])) for name in CONTENDERS}
    said = (
        f"A move is the mean field and noise: at the end it is {noise[plain]:.3g} times the mean "
        f"field in FedEM, and {noise[reduced]:.3g} times in VR-FedEM."
    )
    (agrees if noise[plain] > noise[reduced] else differs).append(said)
    better = int((field[reduced] < field[plain]).sum())
    said = (
        f"After {found['epochs']} epochs the mean field of VR-FedEM is below FedEM's in {better} "
        f"of {n} runs (medians {np.median(field[reduced]):.2g} and {np.median(field[plain]):.2g})."
    )
    (agrees if 2 * better > n else differs).append(said)
    return agrees, differs


def against_epochs(
    runs: list[dict[str, Any]], quantity: str
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return a grid of epochs (n,), and the median and both quartiles of runs on it (3, n, ...)."""
    last = min(one["epochs"][-1] for one in runs)
    first = max(one["epochs"][0] for one in runs)
    grid = np.linspace(first, last, POINTS)
    every = []
    for one in runs:
        values = np.array(one[quantity], dtype=float)
        columns = values.reshape(len(values), -1).T
        every.append(np.array([np.interp(grid, one["epochs"], column) for column in columns]).T)
    stacked = np.array(every)
    return grid, np.quantile(stacked, (0.5, 0.25, 0.75), axis=0), stacked


def draw_fields(found: dict[str, Any], path: Path, title: str) -> None:
    """Draw squared norms of move and mean field against epochs: one run, then medians of all."""
    figure = blank(9.6, 3.9)
    panels = figure.subplots(1, 2, sharey=True)
    rows = []
    for number, (name, runs) in enumerate(found["runs"].items()):
        colour = COLOURS[2 * number + 1]
        first = runs[0]
        panels[0].plot(first["epochs"][1:], first["move"][1:], color=colour, linewidth=0.8,
                       alpha=0.75, label=f"{name}: move of a run")  # fmt: skip
        panels[0].plot(first["epochs"][1:], first["mean field"][1:], color=colour,
                       linestyle=LINES[1], label=f"{name}: its mean field")  # fmt: skip
        for part, quantity in enumerate(("move", "mean field")):
            grid, (middle, low, high), _ = against_epochs(runs, quantity)
            ends_at = slice(2, None)  # the start has no move
            label = f"{name}: {quantity}"
            panels[1].plot(grid[ends_at], middle[ends_at, 0], color=colour, linestyle=LINES[part],
                           label=label)  # fmt: skip
            panels[1].fill_between(grid[ends_at], low[ends_at, 0], high[ends_at, 0], color=colour,
                                   alpha=0.15, linewidth=0)  # fmt: skip
            rows += [[name, quantity, *three] for three in zip(
                grid.tolist(), middle[:, 0].tolist(), low[:, 0].tolist(), high[:, 0].tolist(),
                strict=True)]  # fmt: skip
    n = len(next(iter(found["runs"].values())))
    tidy(panels[0], f"{title}: one run", "epochs", "squared norm")
    tidy(panels[1], f"medians of {n} runs and their middle half", "epochs")
    for axes in panels:
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=8, handlelength=3)
    write(figure, path)
    heads = ["method", "quantity", "epochs", "median", "first quartile", "third quartile"]
    write_csv(path.with_suffix(".csv"), heads, rows)
