"""What masked sums cost the members of a study over slow links, against sums in the open.

    sudo python -m benchmarks.masked_links [star|tree] [PARTIES ...] [LINK ...] [--masked-first]

Each member is a process in a network namespace of its own, as in `benchmarks.tls`. Both fits are of
the same data over the same links, one after the other, and find the same log-likelihoods. Prints
a line of JSON for each case. Processor time is of a member and an iteration, after what each
system says of its process; where members have few processors together they wait for each other
there, as they would not on machines of their own.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vpem.files.studies.logs import log_beside, messages
from vpem.network.messages import parse_link

from .links import SUMS, second, sums_of
from .members import Members, end
from .router import namespaces
from .tls import FIT

SHAPE = 150_000, 20, 4
"""Rows, features and components: three numbers a row travel."""

ITERATIONS = 3
LOOK_EVERY = 0.05
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Clock:
    """Processor time of members, looked at all the while."""

    pids: dict[str, int]
    times: list[float] = field(default_factory=list)
    used: dict[str, list[float]] = field(default_factory=dict)
    stopped: bool = False

    def watch(self) -> None:
        """Look until `stopped`."""
        while not self.stopped:
            self.times.append(time.time())
            for name, pid in self.pids.items():
                seen = self.used.setdefault(name, [])
                seen.append(max(_processor_time(pid), seen[-1] if seen else 0.0))
            time.sleep(LOOK_EVERY)

    def between(self, name: str, begin: float, end: float) -> float:
        """Processor seconds of a member."""
        first, last = np.interp([begin, end], self.times, self.used[name])
        return float(last - first)


def _processor_time(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(words[11]) + int(words[12])) / TICKS


def fit(members: Members) -> dict[str, Any]:
    """Fit once: seconds, processor seconds and bytes of an iteration."""
    running = {name: members.start(name, "-q") for name in members.names}
    clock = Clock({name: process.pid for name, process in running.items()})
    watch = threading.Thread(target=clock.watch, daemon=True)
    watch.start()
    ended = [end(name, process, 600.0) for name, process in running.items()]
    clock.stopped = True
    watch.join()
    first, *others = members.names
    path = log_beside(members.folder(first) / "bench.toml", first)
    began, times = next(messages([path])), sums_of(path)
    begins = times[:: len(times) // (ITERATIONS + 1)]  # as many of the last E-step
    span, count = (begins[0], begins[-1]), len(begins) - 1
    of = {name: clock.between(name, *span) / count for name in members.names}
    rows = [row for name in members.names for row in members.log(name)["totals"]]
    sums, every = (
        sum(row["bytes_sent"] for row in rows if row["kind"] in kinds)
        for kinds in (SUMS, {row["kind"] for row in rows})
    )
    return {
        "seconds": [round(b - a, 3) for a, b in pairwise(begins)],
        "before the first sum": round(begins[0] - second(began), 2),
        "processor": {"a party": round(float(np.mean([of[name] for name in others])), 3),
                      first: round(of[first], 3)},
        "sums": sums, "messages": every,
        "history": ended[0].report["history"],
    }  # fmt: skip


def case(topology: str, n_parties: int, link: str, order: list[str]) -> dict[str, Any]:
    """Fit in the open and under masks, one after the other."""
    options = FIT | {"topology": topology, "components": SHAPE[2], "max-iter": ITERATIONS}
    if topology == "tree":
        options["sum"] = "tree"
    n_members = n_parties + (topology == "star")
    found = {}
    with (
        namespaces(n_members, parse_link(link)) as net,
        tempfile.TemporaryDirectory() as home,
    ):
        studies = {}
        for name in order:
            Path(home, name).mkdir()
            own = options | {"secure-sum": name == "masked"}
            studies[name] = Members(Path(home, name), net.addresses, own, SHAPE, net.within)
        for name, members in studies.items():
            before = sum(net.sent())
            found[name] = fit(members)
            found[name]["interfaces"] = sum(net.sent()) - before
    plain, masked = found["plain"], found["masked"]
    apart = np.subtract(plain.pop("history"), masked.pop("history")) / SHAPE[0]
    ratio = np.median(masked["seconds"]) / np.median(plain["seconds"])
    return {
        "topology": topology, "parties": n_parties, "link": link, "ratio": round(float(ratio), 3),
        "nats a sample apart": float(np.abs(apart).max()), **found,
    }  # fmt: skip


def main(words: list[str]) -> None:
    """Print a line of JSON for each case."""
    order = ["masked", "plain"] if "--masked-first" in words else ["plain", "masked"]
    topologies = [word for word in words if word in ("star", "tree")] or ["star", "tree"]
    parties = [int(word) for word in words if word.isdigit()] or [3, 5, 10]
    links = [word for word in words if "," in word] or ["100Mbit,30ms", "100Mbit,0.1ms"]
    for link in links:
        for topology in topologies:
            for n_parties in parties:
                print(json.dumps(case(topology, n_parties, link, order)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
