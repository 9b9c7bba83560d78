"""What the runs for Figures 4 and 5 say, in tables, sentences and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .figures45 import METHODS
from .report import Report, Table

PAPER = {"dense": 31.0, "sparse": 9.7}
EXACT, HUNDRED, AUTO = METHODS[1:]
NEAR = 1e-4
"""Nats per sample within which a curve follows another."""


def of_density(found: dict[str, Any], density: str) -> list[dict[str, Any]]:
    return [run for run in found["runs"] if run["density"] == density]


def _span(values: Sequence[float], digits: int = 3) -> str:
    low, high = (
        f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"
        for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def gather(runs: list[dict[str, Any]], method: str, what: str) -> list[float]:
    return [run["fits"][method][what] for run in runs]


def _apart(runs: list[dict[str, Any]], method: str, what: str = "log-likelihood") -> list[float]:
    """Return the difference to exact sums over the same hubs, a network each."""
    pairs = zip(gather(runs, method, what), gather(runs, EXACT, what), strict=True)
    return [value - exact for value, exact in pairs]


def graphs_table(found: dict[str, Any]) -> Table:
    """Tell of the graphs: degrees, hubs, mixing."""
    rows = []
    for density in found["degrees"]:
        runs = of_density(found, density)
        rows.append([
            density, PAPER[density], _span([run["mean degree"] for run in runs]),
            _span([run["hubs"] for run in runs]), _span([run["largest hub"] for run in runs]),
            _span([run["singletons"] for run in runs]),
            _span([run["mixing rate"] for run in runs]),
            _span([1 - run["mixing rate"] for run in runs], 2),
            _span(gather(runs, HUNDRED, "consensus error"), 2),
            _span(gather(runs, AUTO, "rounds")),
            _span([run["plain rounds to 1e-6"] for run in runs]),
        ])  # fmt: skip
    return Table(
        "graphs",
        "The networks (least to most over networks). The error is max |C - 1| of the sum.",
        ["networks", "degree, paper", "degree, ours", "hubs", "largest hub", "hubs of one",
         "mixing rate", "spectral gap", "error, 100 plain rounds", "auto rounds (Chebyshev)",
         "plain rounds to 1e-6"],
        rows,
    )  # fmt: skip


def fits_table(found: dict[str, Any]) -> Table:
    """Tell of the fits, a method each."""
    rows = []
    for density in found["degrees"]:
        runs = of_density(found, density)
        for method in METHODS:
            fits = [run["fits"][method] for run in runs]
            errors = [fit.get("sum errors", {"largest": 0.0, "responsibility": 0.0})
                      for fit in fits]  # fmt: skip
            rows.append([
                density, method, float(np.mean([fit["log-likelihood"] for fit in fits])),
                float(np.mean([fit["true log-likelihood"] for fit in fits])),
                sum(fit["falls"] for fit in fits),
                int(np.median([fit["iterations"] for fit in fits])),
                f"{sum(fit['converged'] for fit in fits)} of {len(fits)}",
                float(max(error["largest"] for error in errors)),
                float(max(error["responsibility"] for error in errors)),
                round(float(np.median([1e3 * f["seconds"] / f["iterations"] for f in fits])), 1),
                round(float(np.median([fit["seconds"] for fit in fits])), 2),
            ])  # fmt: skip
    return Table(
        "fits",
        "Log-likelihood per sample at the end, mean over networks: as the roots find it, and of "
        "the mixture that their parts make. Falls are iterations in which the roots' mean fell. "
        "Errors, largest over roots and rows: of log pi N in nats, and of a responsibility. "
        "Times on one thread or more of a machine with other work: methods over the same hubs took "
        "turns, EM came first. The paper shows curves and gives no numbers.",
        ["networks", "method", "roots' own", "true", "falls", "iterations (median)", "converged",
         "error, nats", "error, responsibility", "ms an iteration (median)", "seconds (median)"],
        rows,
    )  # fmt: skip


def tell(found: dict[str, Any]) -> Report:
    """Compare what the paper says of its curves with ours."""
    agrees, differs = [], []
    for density in found["degrees"]:
        runs = of_density(found, density)
        n = len(runs)
        gaps = [e - v for e, v in zip(gather(runs, "EM", "true log-likelihood"),
                                      gather(runs, HUNDRED, "true log-likelihood"),
                                      strict=True)]  # fmt: skip
        below = sum(gap > 0 for gap in gaps)
        (agrees if below == n else differs).append(
            f"{density}: VP-EM plateaus below centralized EM in {below} of {n} networks, by "
            f"{_span(gaps)} nats per sample, because of the blocks."
        )
        falls = sum(gather(runs, HUNDRED, "falls")), sum(gather(runs, "EM", "falls"))
        steps = sum(gather(runs, HUNDRED, "iterations")) - n
        (agrees if not any(falls) else differs).append(
            f"{density}: the paper's curves rise monotonically; with 100 rounds the roots' mean "
            f"log-likelihood fell in {falls[0]} of {steps} steps, centralized EM's in {falls[1]}."
        )
        apart = [abs(gap) for gap in _apart(runs, HUNDRED)]
        lost = [-gap for gap in _apart(runs, HUNDRED, "true log-likelihood")]
        errors = [run["fits"][HUNDRED]["sum errors"] for run in runs]
        text = (
            f"{density}: 100 plain rounds leave an error of "
            f"{_span(gather(runs, HUNDRED, 'consensus error'), 2)} of the sum, up to "
            f"{max(error['largest'] for error in errors):.3g} nats and "
            f"{max(error['responsibility'] for error in errors):.3g} of a responsibility in a "
            f"row; what the roots report is within {max(apart):.2g} nats per sample of "
            "block-diagonal EM with exact sums"
        )
        if max(apart) <= NEAR:
            agrees.append(f"{text}: here 100 rounds do stand for infinitely many.")
        else:
            worse = sum(gap > 0 for gap in lost)
            differs.append(
                f"{text}, so here they do not stand for infinitely many. Their mixture is worse "
                f"than that of exact sums in {worse} of {n} networks, by up to "
                f"{max(lost):.2g} nats per sample, while their own report is too high in "
                f"{sum(_overstated(run) for run in runs)} of {n}."
            )
        auto = max(abs(gap) for gap in _apart(runs, AUTO))
        rounds = [int(value) for value in gather(runs, AUTO, "rounds")]
        agrees.append(
            f"{density}: the gap to block-diagonal EM is consensus error only: with auto rounds "
            f"({_span(rounds)}, accelerated) it is at most {auto:.1e} nats "
            "per sample."
        )
    return Report(
        title="Figures 4 and 5: 100 agents, dense and sparse" if found["agents"] == 100 else
        f"Figures 4 and 5, smaller: {found['agents']} agents",
        about=f"N = {found['agents']} agents with a feature each on random geometric graphs, "
        f"M = {found['samples']:,} rows of a random mixture of K = 3 with a Bayes error of 5 %, "
        f"{found['networks']} networks (data, graph and start differ; the methods share them), "
        f"1 hop, starts at three rows, until the roots see less than 1e-6 nats per sample, at "
        f"most {found['max_iter']} iterations. The paper does not say how its mixture was drawn; "
        "where clusters lie far apart, consensus error does not show.",
        tables=[graphs_table(found), fits_table(found)],
        agrees=agrees, differs=differs, advice=[_advice(found)],
        pictures=[("figures45-figure4.png", "One of the networks of each density, with its hubs"),
                  ("figures45-figure5.png", "Log-likelihood, and distance to exact sums"),
                  ("figures45-rounds.png", "Consensus error against rounds")],
    )  # fmt: skip


def _overstated(run: dict[str, Any]) -> bool:
    one = run["fits"][HUNDRED]
    return bool(one["log-likelihood"] > one["true log-likelihood"])


def _advice(found: dict[str, Any]) -> str:
    runs = found["runs"]
    fewest, most = (pick(gather(runs, AUTO, "rounds")) for pick in (min, max))
    return (
        f"Leave the number of rounds at `auto`: on these graphs it takes {fewest} to {most} "
        f"accelerated rounds, where {min(r['plain rounds to 1e-6'] for r in runs)} to "
        f"{max(r['plain rounds to 1e-6'] for r in runs)} plain ones are needed. "
        "`vpem topology describe` tells the error of a number of rounds before a fit."
    )
