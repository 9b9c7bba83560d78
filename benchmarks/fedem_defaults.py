"""Where FedEM and VR-FedEM end by their defaults: ``python -m benchmarks.fedem_defaults [--all]``.

Every codec, share of workers that take part and way of drawing rows, on wine, on digits and on
simulated rows that overlap, from the rows that exact EM begins with too. A cell is fine if it ends
within 1e-3 of EM's log-likelihood (relative, or above it), or within 1e-2 and says that it has not
converged. Where several optima are near, EM by steps as short as the cell's, without any noise,
may end at another than EM: a cell that ends there too is counted apart (``elsewhere``). Without
``--all`` one seed, and some of the codecs and shares.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_wine

from vpem import VpemWarning
from vpem.fits.fedem import fit_fedem
from vpem.network.partition import evenly

from .fedem_bytes import digits

NEAR, FAR = 1e-3, 1e-2
CODECS = (None, "qsgd:8bits", "qsgd:6bits:32", "qsgd:4bits:32", "natural:12bits", "float32",
          "topk:0.1", "randk:0.1")  # fmt: skip
SHARES = (1.0, 0.5, 0.25, 0.1)


def overlapping(m: int = 1000, d: int = 4) -> Any:
    """Three Gaussians a deviation and a half apart."""
    rng = np.random.default_rng(7)
    which = rng.integers(0, 3, m)
    return rng.normal(size=(m, d)) + 1.5 * np.eye(3, d)[which] * 2


def problems() -> dict[str, tuple[Any, int, str]]:
    """Rows, number of components and covariance type, by name."""
    wine = load_wine().data
    wine = (wine - wine.mean(axis=0)) / wine.std(axis=0)
    return {
        "wine, K = 2": (wine, 2, "full"), "wine, K = 3": (wine, 3, "full"),
        "wine, K = 3, tied": (wine, 3, "tied"), "digits, K = 10, tied": (digits()[0], 10, "tied"),
        "overlapping, K = 3": (overlapping(), 3, "full"),
    }  # fmt: skip


def cells(
    names: list[str],
    codecs: tuple[str | None, ...],
    shares: tuple[float, ...],
    seeds: range,
    ways: tuple[bool, ...] = (False, True),
) -> list[dict[str, Any]]:
    """Fit every cell; where it ends, and what it says of that."""
    found = []
    for name in names:
        X, k, covariance = problems()[name]
        held = evenly(len(X), 10)
        for seed in seeds:
            init = np.random.default_rng([seed, 5]).choice(len(X), k, replace=False)
            common: dict[str, Any] = {
                "n_components": k, "covariance_type": covariance, "init": init, "seed": seed,
                "record_every": 10**6,
            }  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VpemWarning)
                best = float(fit_fedem(X, held, memory="none", **common).run.history.objective[-1])
                short: dict[str, float] = {}
                for codec, p, reduced in product(codecs, shares, ways):
                    began = time.perf_counter()
                    fit = fit_fedem(
                        X, held, compress=codec, participation=p, variance_reduction=reduced,
                        **common,
                    )  # fmt: skip
                    gap = (best - fit.run.history.objective[-1]) / abs(best)
                    fine = gap < NEAR or (gap < FAR and not fit.converged)
                    step = str(fit.options["step_size"])
                    if not fine and step not in short:
                        short[step] = float(fit_fedem(
                            X, held, memory="none", **{**common, "step_size": step}
                        ).run.history.objective[-1])  # fmt: skip
                    apart = not fine and abs(fit.run.history.objective[-1] / short[step] - 1) < NEAR
                    found.append({
                        "data": name, "seed": seed, "codec": codec or "none", "p": p,
                        "algorithm": "VR-FedEM" if reduced else "FedEM", "gap": gap,
                        "converged": bool(fit.converged), "iterations": fit.run.n_iter,
                        "seconds": time.perf_counter() - began, "fine": bool(fine),
                        "elsewhere": bool(apart),
                        "projected": fit.run.projected_share,
                    })  # fmt: skip
                    if not (fine or apart):
                        print(shown(found[-1]), flush=True)
    return found


def shown(cell: dict[str, Any]) -> str:
    return " ".join(f"{value:.3g}" if isinstance(value, float) else str(value)
                    for value in cell.values())  # fmt: skip


def main(words: list[str] | None = None) -> int:
    """Run the cells asked for; 1 if one is not fine."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fedem_defaults")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--data", nargs="+", choices=list(problems()), default=list(problems()))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--only", choices=("FedEM", "VR-FedEM"))
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(words)
    codecs = CODECS if given.all else (None, "qsgd:6bits:32", "topk:0.1")
    shares = SHARES if given.all else (1.0, 0.25)
    seeds = range(given.seeds or (5 if given.all else 1))
    ways = (False, True) if given.only is None else (given.only == "VR-FedEM",)
    found = cells(given.data, codecs, shares, seeds, ways)
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / f"fedem-defaults{'-all' if given.all else ''}.json"
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name in given.data:
        own = [one for one in found if one["data"] == name]
        seconds = np.median([one["seconds"] for one in own])
        print(f"{name}: {sum(one['fine'] for one in own)} of {len(own)} cells are fine, "
              f"{sum(one['elsewhere'] for one in own)} end where EM by steps as short does; "
              f"{sum(one['converged'] for one in own)} converged; largest gap "
              f"{max(one['gap'] for one in own):.2g}; {seconds:.2g} s a fit")  # fmt: skip
    return 0 if all(one["fine"] or one["elsewhere"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
