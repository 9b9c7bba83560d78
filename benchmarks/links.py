"""How long iterations take over slow links, and what `vpem plan --link` foretells.

    sudo python -m benchmarks.links [100Mbit,30ms ...]
    sudo python -m benchmarks.links parties [3 10 30 ...] [100Mbit,30ms ...]

``parties``: members of a study over TLS, each a process in a namespace of its own: seconds and
bytes of an iteration, measured and foretold. All members compute on this machine's processors,
so that rows are few: what is held is latency, transfer and messages.

Else a rank of MPI runs in a network namespace of its own, between which lies a router in user space
(`benchmarks.router`). Needs root, iproute2 and MPICH's mpiexec.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vpem.files.studies.logs import log_beside, messages
from vpem.fits.plan import plan
from vpem.network.graph import make_graph
from vpem.network.messages import LinkSpeed, parse_link
from vpem.network.partition import contiguous
from vpem.network.schema import State

from .members import Members, end
from .mpi import an_iteration, launcher
from .router import NET, Net, namespaces

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
PARTIES: list[tuple[str, dict[str, Any], int]] = [
    ("star", {}, 300),
    ("star", {}, 20_000),
    ("star", {"secure-sum": True}, 2_000),
    ("star", {"split": "rows"}, 1_000),
    ("tree", {"sum": "tree"}, 2_000),
    ("cycle", {"rounds": 20}, 300),
]
"""Topology, options, and rows."""

SUMS = ("server", "estep")
"""What messages of E-steps are called, at a server and along a tree."""

ITERATIONS = 40
"""Of a fit, of whose seconds the median counts."""

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
        how = {"n_components": k, "init": list(range(k)), "tol": 0.0, "n_threads": 1}
        fit = partial(fit_spread, X, network, **how)
        seconds = an_iteration(engine, lambda n, fit=fit: fit(max_iter=n), 2, 5)
        if engine.rank == 0:
            print(seconds, flush=True)


def foretold(link: str, number: int) -> dict[str, Any]:
    """What the model says of a case."""
    topology, m, k, how = CASES[number]
    parts = contiguous(RANKS * WIDTH, RANKS)
    graph = make_graph(topology, RANKS)
    found: dict[str, Any] = plan(graph, parts, n_samples=m, n_components=k, link=link, **how)
    return found["time"]


def sums_of(path: Path) -> list[float]:
    """Return when a member sent or received messages of E-steps, by its log."""
    lines = messages([path]) if path.exists() else []
    return sorted(second(line) for line in lines if line["kind"] in SUMS)


def second(line: State) -> float:
    """Return when a message was sent or received."""
    return datetime.fromisoformat(line["time"]).timestamp()


def over_tls(n_parties: int, link: str, case: tuple[str, dict[str, Any], int]) -> dict[str, Any]:
    """Seconds of an iteration of members of a study, and what is foretold of them."""
    topology, options, rows = case
    fit = {"topology": topology, "components": 3, "init": "random", "tol": 0.0, **options}
    fit["max-iter"] = ITERATIONS
    n_members, by_rows = n_parties + (topology == "star"), options.get("split") == "rows"
    n_features = 2 * n_parties
    with (
        namespaces(n_members, parse_link(link)) as net,
        tempfile.TemporaryDirectory() as home,
    ):
        shape = rows, n_features, 3
        members = Members(Path(home), net.addresses, fit, shape, net.within)
        for name in members.names[1:] if by_rows else []:  # as many rows each
            shutil.copy(members.data, members.folder(name) / f"{name}.h5")
        first = members.names[0]
        running = {name: members.start(name, "-q") for name in members.names}
        path = log_beside(members.folder(first) / "bench.toml", first)
        # Whatever else this machine does must not hold up iterations; starts may wait.
        while running[first].poll() is None and not sums_of(path):
            time.sleep(0.2)
        for process in running.values():
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
        os.sched_setscheduler(net.router.native_id or 0, os.SCHED_RR, os.sched_param(2))
        for name, process in running.items():
            end(name, process, 600.0).report  # noqa: B018
        times = sums_of(path)
        totals = [row for name in members.names for row in members.log(name)["totals"]]
    # Of every iteration, and of the last E-step, as many.
    begins = times[:: len(times) // (ITERATIONS + 1)]
    taken = statistics.median(after - before for before, after in pairwise(begins))
    sent = sum(row["bytes_sent"] for row in totals if row["kind"] in SUMS) // (ITERATIONS + 1)
    held = [n_features] + [0] * (n_parties - 1) if by_rows else [2] * n_parties
    names = {"secure-sum": "secure_sum", "rounds": "n_rounds"}
    how = {names.get(name, name): value for name, value in options.items()}
    told = plan(
        make_graph(topology, n_parties), held, n_components=3, link=link,
        n_samples=rows * (n_parties if by_rows else 1), **how,
    )  # fmt: skip
    model, foretold = told["time"], told["communication"]["last"]["bytes"]
    parts = {part: round(model[part], 4) for part in ("handling", "latency", "transfer")}
    return {
        "parties": n_parties, "topology": topology, **options, "rows": rows, "link": link,
        "measured": round(taken, 4), "foretold": round(model["iteration"], 4), **parts,
        "ratio": round(model["iteration"] / taken, 2), "bytes": sent, "bytes foretold": foretold,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def main(words: list[str]) -> None:
    """Print a line of JSON for each link and case."""
    if words[:1] == ["parties"]:
        links = [word for word in words if "," in word] or ["100Mbit,30ms"]
        for n_parties in [int(word) for word in words if word.isdigit()] or [3, 10, 30]:
            for link in links:
                for case in PARTIES[int(os.environ.get("FROM", "0")) :]:
                    print(json.dumps(over_tls(n_parties, link, case)), flush=True)
        return
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
