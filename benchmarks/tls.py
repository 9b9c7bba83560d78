"""Members of a study over TLS, in namespaces of their own: numbers, bytes, times and faults.

    sudo python -m benchmarks.tls [alike] [pace] [cuts] [loss] [kills] [idle] [--quick]

Each member is a process with a folder of its own, and runs `vpem fit --study` there; between them
lies a router in user space (`benchmarks.router`). Prints a line of JSON for each case, and ends
with 1 if anything is not as it should be. Needs root and iproute2; ``pace`` also MPICH's mpiexec.

alike: histories of 3, 5 and 9 parties against one process; payload by the ledger, by the logs, and
on the interfaces. pace: seconds of an E-step against bytes over rate and round trips, and over MPI.
cuts: connections that are cut at random moments. loss: packets that are lost. kills: a member that
is killed at random moments and resumed. idle: nothing is said for minutes.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vpem.network.messages import parse_link

from .links import over_mpi
from .measure import Options, compare
from .members import Ended, Members, end, numbers, output, run
from .mpi import launcher
from .router import Net, namespaces

FAST = "1Gbit,0.1ms"
SLOW = "100Mbit,30ms"
FIT = {"topology": "star", "components": 3, "init": "random", "tol": 0.0, "max-iter": 5}
SHAPE = (20_000, 18, 3)
"""Rows, features and components: a message of an E-step has 320 kB."""

SMALL, SMALLEST = (2_000, 9, 3), (200, 9, 3)
"""Where many E-steps are wanted; and where messages are of 3 kB."""

MOST_BEYOND = 1.03
"""Bytes on the interfaces, of the payload's."""

MOST_SECONDS = 1.3
"""Seconds of an iteration, of bytes over rate and its one round trip."""

Line = dict[str, Any]


@contextmanager
def meeting(
    n_parties: int,
    link: str = FAST,
    shape: tuple[int, int, int] = SHAPE,
    **options: Any,
) -> Iterator[tuple[Members, Net]]:
    """Make members in namespaces, and their study."""
    fit = FIT | {name.replace("_", "-"): value for name, value in options.items()}
    n_members = n_parties + (fit["topology"] == "star")
    with (
        namespaces(n_members, parse_link(link)) as net,
        tempfile.TemporaryDirectory() as home,
    ):
        yield Members(Path(home), net.addresses, fit, shape, net.within), net


def same(ended: list[Ended], right: Line) -> bool:
    """Whether all members have found these numbers, to the bit."""
    return all(numbers(one.report) == right for one in ended)


# ---- numbers and bytes ---------------------------------------------------------------------------


def alike(quick: bool) -> Iterator[Line]:
    """Histories and bytes of some parties, against one process."""
    topologies = ["star"] if quick else ["star", "cycle"]
    for topology in topologies:
        for n_parties in (3,) if quick else (3, 5, 9):
            with meeting(n_parties, topology=topology) as (members, net):
                before = net.sent()
                ended = members.fit("-q")
                sent = sum(net.sent()) - sum(before)
                one = members.simulated()
                yield _alike(members, ended, one, sent)


def _alike(members: Members, ended: list[Ended], one: Line, sent: int) -> Line:
    reports = [each.report for each in ended]
    mine, right = (np.array(report["history"]) for report in (reports[0], one))
    by_kind = {kind: of["bytes"] for kind, of in one["communication"]["by_kind"].items()}
    kind = "server" if members.names[0] == "hub" else "estep"
    logs = [row for name in members.names for row in members.log(name)["totals"]]
    went, came = (
        sum(row[way] for row in logs if row["kind"] == kind)
        for way in ("bytes_sent", "bytes_received")
    )
    logged = sum(row["bytes_sent"] for row in logs)
    apart = float(np.abs(mine / right - 1).max())
    return {
        "parties": one["n_agents"],
        "topology": one["topology"],
        "history apart": apart,
        "ledger": by_kind[kind],
        "sent": went,
        "received": came,
        "all messages": logged,
        "interfaces over payload": sent / logged,
        "right": apart <= 1e-12
        and all(report["communication"] == one["communication"] for report in reports)
        and went == came == by_kind[kind]
        and sent / logged <= MOST_BEYOND,
    }


# ---- time ----------------------------------------------------------------------------------------


def pace(quick: bool) -> Iterator[Line]:
    """Seconds of an iteration on a star over slow links, against bytes and a round trip."""
    for n_parties, shape in [(3, SMALLEST), *((n, SHAPE) for n in ((3,) if quick else (3, 5, 9)))]:
        seconds, over = [], []
        for count in (2, 12):
            with meeting(n_parties, SLOW, shape, max_iter=count) as (members, net):
                seconds.append(members.fit("-q")[0].report["seconds"])
                ranks = over_mpi(net, n_parties, *members.alone("--engine", "mpi"))
                over.append(json.loads(ranks)["seconds"])
        taken, mpi = ((after - before) / 10 for before, after in (seconds, over))
        link, size = parse_link(SLOW), 8 * (shape[0] * 2 + 1)
        # What the server's own link carries, there and back.
        least = 2 * n_parties * link.transfer(size) + 2 * link.latency
        yield {
            "parties": n_parties, "link": SLOW, "bytes of a message": size, "seconds": taken,
            "bytes and round trip": least, "ratio": taken / least, "MPI": mpi,
            "right": taken <= MOST_SECONDS * least,
        }  # fmt: skip


# ---- faults --------------------------------------------------------------------------------------


def disturbed(
    members: Members, right: Line, disturb: Callable[[Callable[[], bool]], Line], *words: object
) -> Line:
    """Run a fit on a network that is disturbed: has it the same bits as on a good one."""
    began = time.monotonic()
    running = {name: members.start(name, "-q", *words) for name in members.names}
    line = disturb(lambda: all(one.poll() is None for one in running.values()))
    ended = [end(name, process, 600.0) for name, process in running.items()]
    told = sorted({line for one in ended for line in one.err.splitlines()})
    return line | {
        "seconds": round(time.monotonic() - began, 1),
        "right": same(ended, right),
        "told": told[:8],
    }


def cuts(quick: bool) -> Iterator[Line]:
    """Connections that are cut at random moments while a fit goes on."""
    rng = random.Random(0)
    with meeting(3, "100Mbit,10ms", SMALL, max_iter=100 if quick else 600) as (members, net):
        right = numbers(members.fit("-q")[0].report)

        def disturb(how: str, count: int, runs: Callable[[], bool]) -> Line:
            done = 0
            while done < count and runs():
                time.sleep(rng.uniform(0.2, 1.5) + 3.0 * (done == 0))
                if how == "silence":
                    net.router.be_silent(rng.uniform(0.5, 5.0))
                    done += 1
                else:
                    done += net.router.forget(answer=how == "reset") > 0
                if how != "reset":
                    time.sleep(rng.uniform(2.0, 20.0))
            return {"cut by": how, "times": done}

        for how, count in (("reset", 10 if quick else 50), ("silence", 4), ("no answer", 3)):
            yield disturbed(members, right, partial(disturb, how, count))


def loss(quick: bool) -> Iterator[Line]:
    """Packets that are lost."""
    with meeting(3, "100Mbit,10ms", max_iter=5 if quick else 10) as (members, net):
        right = numbers(members.fit("-q")[0].report)
        for share in (0.01, 0.05):
            net.router.loss = share
            yield {"loss": share} | disturbed(members, right, lambda _: {})


def idle(quick: bool) -> Iterator[Line]:
    """One member is stopped for minutes, so that nothing is said; the others wait."""
    seconds = 45.0 if quick else 600.0
    with meeting(3, FAST, SMALL, max_iter=300) as (members, _):
        right = numbers(members.fit("-q")[0].report)
        words = ("-q", "--timeout", 2 * seconds)
        running = {name: members.start(name, *words) for name in members.names}
        time.sleep(6.0)
        running["party1"].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        running["party1"].send_signal(signal.SIGCONT)
        ended = [end(name, process, 300.0) for name, process in running.items()]
        yield {"idle": seconds, "right": same(ended, right)}


def kills(quick: bool) -> Iterator[Line]:
    """Members that are killed at random moments, and begin again."""
    rng = random.Random(1)
    with meeting(3, FAST, SMALL, max_iter=100) as (members, _):
        words = ("-q", "--checkpoint", "fit.ckpt", "--checkpoint-every", 1)
        began = time.monotonic()
        right = numbers(members.fit(*words)[0].report)
        # Whoever dies when all others are done has nobody to come back to.
        whole = time.monotonic() - began
        for attempt in range(4 if quick else 20):
            for name in members.names:
                for file in members.folder(name).glob("fit.ckpt*"):
                    file.unlink()
            running = {name: members.start(name, *words) for name in members.names}
            victim = rng.choice(members.names)
            moment = rng.uniform(0.5, 0.7 * whole)
            time.sleep(moment)
            running[victim].kill()
            killed = end(victim, running[victim], 10.0).code == -signal.SIGKILL
            time.sleep(rng.uniform(0.0, 3.0))
            running[victim] = members.start(victim, *words, "--resume-if-any")
            ended = [end(name, process, 300.0) for name, process in running.items()]
            codes = {one.name: one.code for one in ended}
            good = set(codes.values()) <= {0, 3} and same(ended, right)
            yield {"kill": attempt, "who": victim, "after": round(moment, 1), "killed": killed,
                   "codes": codes, "right": good,
                   "told": [one.err[-300:] for one in ended] if not good else []}  # fmt: skip


# ---- beside the other benchmarks -----------------------------------------------------------------


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield seconds of an iteration of three parties and a server on this machine."""
    rows = {"tiny": 500, "small": 20_000, "medium": 100_000, "full": 300_000}[options.size]
    fit = FIT | {"max-iter": 3 if options.size == "tiny" else 20}
    ranks = [launcher() or "", "-n", "3"]
    absent = {} if launcher() else {"mpiexec": "not found; try: pip install mpich mpi4py"}
    with tempfile.TemporaryDirectory() as home:
        members = Members(
            Path(home), ["127.0.0.1"] * 4, fit, (rows, 18, 3), lambda _, *words: list(words)
        )
        contenders = {
            "vpem, one process": lambda: pace_of(json.loads(run(*members.alone()[1:]))),
            "vpem, TLS": lambda: pace_of(members.fit("-q")[0].report),
        }
        if not absent:
            contenders["vpem, MPI"] = lambda: pace_of(
                json.loads(output(*ranks, *members.alone("--engine", "mpi")))
            )
        case = f"VP-EM, {rows:,} x 18, 3 parties, K=3, star, 1 thread each, one machine"
        yield compare(options, "organisations", case, "vpem, one process", contenders, absent)


def pace_of(report: Line) -> float:
    """Seconds of an iteration."""
    return float(report["seconds"]) / int(report["n_iter"])


PARTS = {"alike": alike, "pace": pace, "cuts": cuts, "loss": loss, "kills": kills, "idle": idle}


def main(words: list[str]) -> int:
    """Print a line of JSON for each case."""
    quick = "--quick" in words
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces go with us
    right = True
    for part in [word for word in words if word != "--quick"] or PARTS:
        for line in PARTS[part](quick):
            right = right and line["right"]
            print(json.dumps({"part": part} | line), flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
