"""What the runs for Figure 6 say, in tables, sentences and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from .figure6 import METHODS, K
from .report import Report, Table, cell
from .runs import over_runs

SAME = 1e-6
"""Nats per sample within which curves are one."""


def _of(found: dict[str, Any], method: str, what: str) -> Any:
    return np.array([run[method][what] for run in found["runs"]])


def _apart(found: dict[str, Any]) -> float:
    """Return the largest difference of VP-EM to exact sums, over samples and iterations."""
    most = 0.0
    for run in found["runs"]:
        one, other = over_runs([run["VP-EM"]["history"], run["block EM"]["history"]])
        most = max(most, float(np.abs(one - other).max()))
    return most


def gaps_of(found: dict[str, Any], k: int) -> Any:
    return np.array([run["EM"] - run["VP-EM"] for run in found["by k"] if run["k"] == k])


def tell(found: dict[str, Any]) -> Report:
    """Compare what the paper says with what this pool shows."""
    rows = []
    for method in METHODS:
        ends = _of(found, method, "log-likelihood")
        rows.append([method, float(ends.mean()), float(ends.min()), float(ends.max()),
                     int(_of(found, method, "falls").sum()),
                     int(np.median(_of(found, method, "iterations"))),
                     f"{int(_of(found, method, 'converged').sum())} of {len(ends)}"])  # fmt: skip
    fits = Table(
        "fits",
        f"Log-likelihood per sample at the end, K = {K}, over {len(found['runs'])} samples. The "
        "paper shows curves and gives no numbers.",
        ["method", "mean", "least", "most", "falls", "iterations (median)", "converged"], rows,
    )  # fmt: skip
    narrow = Table(
        "components",
        f"The best of {found['starts']} starts: log-likelihood per sample (mean over samples) and "
        "the gap that the blocks make.",
        ["K", "EM", "VP-EM", "gap", "gap, least", "gap, most"],
        [[k, *(float(np.mean([r[m] for r in found["by k"] if r["k"] == k]))
               for m in ("EM", "VP-EM")),
          float(gaps_of(found, k).mean()), float(gaps_of(found, k).min()),
          float(gaps_of(found, k).max())] for k in found["components"]],
    )  # fmt: skip
    agrees, differs = [], []
    falls = {method: int(_of(found, method, "falls").sum()) for method in METHODS}
    (agrees if not any(falls.values()) else differs).append(
        "EM and VP-EM rise monotonically: the log-likelihood fell in "
        f"{falls['EM']} and {falls['VP-EM']} iterations."
    )
    apart = _apart(found)
    (agrees if apart < SAME else differs).append(
        "VP-EM follows EM with the same blocks: at most "
        f"{cell(apart)} nats per sample apart in any iteration (consensus error "
        f"{found['consensus error']:.1e} after 100 plain rounds)."
    )
    gap = _of(found, "EM", "log-likelihood") - _of(found, "VP-EM", "log-likelihood")
    (agrees if gap.min() > 0 else differs).append(
        f"VP-EM ends below EM in {int((gap > 0).sum())} of {len(gap)} samples, by {gap.min():.3f} "
        f"to {gap.max():.3f} nats per sample: what the blocks leave out."
    )
    first, last = K if max(found["components"]) > K else 2, max(found["components"])
    narrower = gaps_of(found, last) < gaps_of(found, first)
    closer = gaps_of(found, last).mean() < gaps_of(found, first).mean()
    (agrees if closer and narrower.mean() > 0.5 else differs).append(
        f"The paper expects more components to narrow the gap: from K = {first} to {last} it goes "
        f"from {gaps_of(found, first).mean():.3f} to {gaps_of(found, last).mean():.3f}, and is "
        f"narrower in {int(narrower.sum())} of {len(narrower)} samples."
    )
    falling = [k for k, after in zip(found["components"], found["components"][1:], strict=False)
               if any(_ends(found, after, m) < _ends(found, k, m) for m in ("EM", "VP-EM"))
               ]  # fmt: skip
    (agrees if not falling else differs).append(
        "The paper says that more components should not lower the likelihood if several starts "
        f"are tried: with {found['starts']} they "
        + (f"do after K = {', '.join(map(str, falling))}." if falling else "never do.")
    )
    return Report(
        title="Figure 6: five features on a cycle, on public data",
        about="**The queue data of the paper (2,650 rows of a European public service) are not "
        f"public, so its numbers cannot be compared.** The same protocol on {found['pool']:,} "
        "handwritten digits (scikit-learn), as five sensors see them: mean ink of each quarter "
        f"and of the centre, the most skewed power transformed. {len(found['runs'])} samples of "
        f"{found['rows']} rows, five agents on a cycle, 1 hop, K = {K}, 100 plain rounds.",
        tables=[fits, narrow], agrees=agrees, differs=differs,
        advice=["Where the gap matters, compare hops and K by a criterion (`bic`, held-out rows) "
                "rather than by the likelihood of the rows that were fitted."],
        pictures=[("figure6-curves.png", "Log-likelihood (left), the cycle and its hubs (right)"),
                  ("figure6-marginals.png", "Densities over histograms of two features"),
                  ("figure6-components.png", "The gap against the number of components")],
    )  # fmt: skip


def _ends(found: dict[str, Any], k: int, method: str) -> float:
    return float(np.mean([run[method] for run in found["by k"] if run["k"] == k]))
