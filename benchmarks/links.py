"""How long iterations take over slow links, and what `vpem topology describe --link` foretells.

    sudo python -m benchmarks.links [100Mbit,30ms ...]

A rank of MPI runs in a network namespace of its own, between which lies a router in user space
(`benchmarks.router`). Needs root, iproute2 and MPICH's mpiexec.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from vpem.fits.plan import plan
from vpem.network.graph import make_graph
from vpem.network.messages import LinkSpeed, parse_link
from vpem.network.partition import contiguous

from .mpi import launcher
from .router import NET, Net, namespaces

__all__ = ["measured", "over_mpi"]

CASES: list[tuple[str, int, int, dict[str, Any]]] = [
    ("cycle", 2_000, 2, {}),
    ("cycle", 20_000, 3, {}),
    ("cycle", 20_000, 3, {"n_rounds": 5}),
    ("complete", 20_000, 3, {}),
    ("path", 20_000, 3, {"sum": "tree"}),
]
"""Topology, rows, components, and how sums are taken."""

WIDTH = 4
RANKS = 4
LINKS = ("100Mbit,0.1ms", "100Mbit,10ms", "100Mbit,30ms", "20Mbit,30ms")


def over_mpi(net: Net, n_ranks: int, *words: object) -> str:
    """Run a command as so many ranks, one a namespace: what the first prints."""
    with tempfile.TemporaryDirectory() as folder:
        enter = Path(folder, "enter")
        # What hydra runs instead of ssh: the first word that is an address says where.
        enter.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            "address=$1\nshift\n"
            f'exec ip netns exec "{net.name}-$((${{address##*.}} - 1))" sh -c "$*"\n'
        )
        enter.chmod(0o755)
        return subprocess.run(
            [launcher() or "", "-launcher", "ssh", "-launcher-exec", str(enter), "-hosts",
             ",".join(net.addresses[:n_ranks]), "-localhost", f"{NET}.254", "-ppn", "1", "-n",
             str(n_ranks), *map(str, words)],
            capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MPIR_CVAR_NOLOCAL": "1",
                 "FI_PROVIDER": "tcp", "UCX_TLS": "tcp,self"},
        ).stdout  # fmt: skip


def measured(link: LinkSpeed, words: list[str]) -> list[float]:
    """Seconds of an iteration of each of some cases, with a rank a namespace."""
    with namespaces(RANKS, link) as net:
        found = over_mpi(net, RANKS, sys.executable, "-m", "benchmarks.links", "--rank", *words)
    return [float(word) for word in found.split()]


def rank(cases: list[int]) -> None:
    """Run some cases in a rank; the first prints seconds of an iteration of each."""
    from vpem.engines.mpi import MpiEngine
    from vpem.fits.spread import fit_spread
    from vpem.sums.connect import connect, spread

    engine = MpiEngine()
    for number in cases:
        topology, m, k, how = CASES[number]
        parts = contiguous(RANKS * WIDTH, RANKS)
        network = spread(connect(make_graph(topology, RANKS), parts, **how), engine)
        labels = np.random.default_rng(0).integers(k, size=m)
        rng = np.random.default_rng(1 + engine.rank)
        X = rng.standard_normal((m, WIDTH)) + labels[:, None]
        taken = []
        for count in (2, 5):
            engine.barrier()
            began = time.perf_counter()
            fit_spread(
                X, network, n_components=k, init=list(range(k)), tol=0.0, max_iter=count,
                n_threads=1,
            )  # fmt: skip
            taken.append(time.perf_counter() - began)
        if engine.rank == 0:
            print((taken[1] - taken[0]) / 3, flush=True)


def foretold(link: str, number: int) -> dict[str, Any]:
    """What the model says of a case."""
    topology, m, k, how = CASES[number]
    parts = contiguous(RANKS * WIDTH, RANKS)
    graph = make_graph(topology, RANKS)
    found: dict[str, Any] = plan(graph, parts, n_samples=m, n_components=k, link=link, **how)
    return found["time"]


def main(words: list[str]) -> None:
    """Print a line of JSON for each link and case."""
    if words[:1] == ["--rank"]:
        rank([int(word) for word in words[1:]])
        return
    for link in words or LINKS:
        seconds = measured(parse_link(link), [str(number) for number in range(len(CASES))])
        for number, found in enumerate(seconds):
            model = foretold(link, number)
            case = dict(zip(("topology", "rows", "components", "how"), CASES[number], strict=True))
            line = case | {"link": link, "measured": found, "foretold": model["iteration"]}
            parts = {part: model[part] for part in ("computing", "latency", "transfer")}
            print(json.dumps(line | parts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
