"""How long iterations take over slow links, and what `vpem topology describe --link` foretells.

    sudo python -m benchmarks.links [100Mbit,30ms ...]

A rank of MPI runs in a network namespace of its own. Between the namespaces lies a router in user
space, which holds every packet back for the latency and lets no more of them leave or reach a
namespace than the bandwidth allows: kernels need no traffic control for that. Needs root, iproute2
and MPICH's mpiexec.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vpem.fits.plan import plan
from vpem.network.holdings import contiguous
from vpem.network.links import Link, parse_link
from vpem.network.topologies import make_graph

from .mpi import launcher

__all__ = ["Router", "measured"]

NET = "10.207.93"
MTU = 9000
BACKLOG = 4000
"""Packets that wait for a link; more are dropped, as routers do."""

TUNSETIFF, TUN, PLAIN = 0x400454CA, 0x0001, 0x1000

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


class Router(threading.Thread):
    """Passes packets on between namespaces, late and not too many at a time.

    Parameters
    ----------
    devices : dict of str to int
        Open TUN devices by the address of the namespace that has the other end.
    link : Link
        Between each of them and the router; half of the latency is on either side.
    """

    def __init__(self, devices: dict[str, int], link: Link) -> None:
        super().__init__(daemon=True)
        self.devices, self.link = devices, link
        self.stopped = False
        self.dropped = 0

    def run(self) -> None:
        """Pass packets on until `stopped`."""
        poll = select.poll()
        for device in self.devices.values():
            os.set_blocking(device, False)
            poll.register(device, select.POLLIN)
        leaves = dict.fromkeys(self.devices.values(), 0.0)  # when an uplink is free again
        reached = dict(leaves)
        waiting: list[tuple[float, int, int, bytes]] = []
        count = 0
        while not self.stopped:
            wait = 50.0
            if waiting:
                wait = max(0.0, 1e3 * (waiting[0][0] - time.monotonic()))
            for device, _ in poll.poll(wait if wait > 1 else 0):
                packet = os.read(device, MTU + 64)
                target = self.devices.get(".".join(map(str, packet[16:20])))
                if packet[0] >> 4 != 4 or target is None:
                    continue
                if len(waiting) > BACKLOG:
                    self.dropped += 1
                    continue
                takes = self.link.transfer(len(packet))
                leaves[device] = max(leaves[device], time.monotonic()) + takes
                arrives = max(leaves[device] + self.link.latency - takes, reached[target]) + takes
                reached[target] = arrives
                count += 1
                heapq.heappush(waiting, (arrives, count, target, packet))
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, target, packet = heapq.heappop(waiting)
                os.write(target, packet)


def _tun(name: str) -> int:
    """Open a TUN device of this name."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), TUN | PLAIN))
    return device


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def namespaces(n_ranks: int, link: Link) -> Iterator[tuple[str, list[str]]]:
    """Make namespaces behind such links: the beginning of their names, and their addresses.

    The launcher's own end, address 254, has no latency to speak of.
    """
    name, devices = f"vl{os.getpid() % 10000}", {}
    addresses = [f"{NET}.{rank + 1}" for rank in range(n_ranks)]
    try:
        for rank, address in enumerate([*addresses, f"{NET}.254"]):
            tun = f"{name}-{rank}"
            devices[address] = _tun(tun)
            where: list[str] = []
            if rank < n_ranks:
                _ip("netns", "add", tun)
                _ip("link", "set", tun, "netns", tun)
                where = ["-n", tun]
                _ip(*where, "link", "set", "lo", "up")
            _ip(*where, "addr", "add", f"{address}/24", "dev", tun)
            _ip(*where, "link", "set", tun, "mtu", str(MTU), "up")
        router = Router(devices, link)
        router.start()
        yield name, addresses
        router.stopped = True
        router.join()
    finally:
        for device in devices.values():
            os.close(device)
        for rank in range(n_ranks):
            subprocess.run(["ip", "netns", "del", f"{name}-{rank}"], capture_output=True)


def measured(link: Link, words: list[str]) -> list[float]:
    """Seconds of an iteration of each of some cases, with a rank a namespace."""
    with namespaces(RANKS, link) as (name, addresses), tempfile.TemporaryDirectory() as folder:
        enter = Path(folder, "enter")
        # What hydra runs instead of ssh: the first word that is an address says where.
        enter.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            "address=$1\nshift\n"
            f'exec ip netns exec "{name}-$((${{address##*.}} - 1))" sh -c "$*"\n'
        )
        enter.chmod(0o755)
        found = subprocess.run(
            [launcher() or "", "-launcher", "ssh", "-launcher-exec", str(enter), "-hosts",
             ",".join(addresses), "-localhost", f"{NET}.254", "-ppn", "1", "-n", str(RANKS),
             sys.executable, "-m", "benchmarks.links", "--rank", *words],
            capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MPIR_CVAR_NOLOCAL": "1",
                 "FI_PROVIDER": "tcp", "UCX_TLS": "tcp,self"},
        )  # fmt: skip
    return [float(word) for word in found.stdout.split()]


def rank(cases: list[int]) -> None:
    """Run some cases in a rank; the first prints seconds of an iteration of each."""
    from vpem.engines.mpi import MpiEngine
    from vpem.fits.spread import fit_spread
    from vpem.sums.connect import connect
    from vpem.sums.spread import spread

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
    os.nice(-19)  # the router must not wait for anybody's work
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
