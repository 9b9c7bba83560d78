"""Engines of processes that a framework places and starts: workers of Dask, actors of Ray.

The process that fits is the first, and has no rows; every worker dials it, over the links of a
study (`vpem.engines.tls`). Keys and certificates are made for one run, in the first process, and
the framework brings each worker its own with the task. So all that is sent is encrypted, and no
other can take part, also where the framework's own connections are open to all.

Frameworks need little (`Cluster`): who is there, to call a function at a worker, and what
became of it.
"""

from __future__ import annotations

import logging
import os
import platform
import ssl
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from typing import Any

from vpem.engines.engine import StalledError
from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.faults import Unheard
from vpem.engines.tls.mailbox import Post
from vpem.engines.tls.trust import Identity, Member, Roster
from vpem.errors import InputError, Setting, VpemError
from vpem.network.messages import encode

LOOK_EVERY = 0.5
"""Seconds between questions to the framework what became of the workers."""

SILENCE = 60.0
"""Seconds without a sign of life after which a worker is lost that the framework still has."""

ANSWER = 10.0
"""Seconds in which a scheduler answers."""

LEAVE = 2.0
"""Seconds in which workers whose run is over end by themselves."""


class Cluster(ABC):
    """Workers that a framework has, ``names`` of them in the order of ranks from 1."""

    framework: str
    names: list[str]
    host: str
    """Where workers reach this process."""

    def __init__(self, lost: Sequence[str]) -> None:
        self._lost = tuple(lost)
        self._runs: dict[str, Any] = {}

    @classmethod
    @abstractmethod
    def at(cls, address: str | None, n_workers: int | None) -> Cluster:
        """Return workers of a framework at an address, or of one on this machine alone."""

    def threads(self, rank: int) -> int:
        """Return how many processors a worker may use."""
        return 1

    @abstractmethod
    def bring(self, rank: int, parts: Sequence[Any]) -> Any:
        """Return futures of parts of a collection, which a worker is to have."""

    @abstractmethod
    def start(self, rank: int, work: Callable[..., None], *args: Any) -> None:
        """Call a function at a worker, with futures among its arguments in place of values.

        It takes no processor that the framework counts: of two fits that wait for each other's
        processors none would begin.
        """

    @abstractmethod
    def look(self) -> VpemError | None:
        """Return what ended the run of any worker: Unheard with its name where it is lost."""

    @abstractmethod
    def stop(self) -> None:
        """Call off what was started and has not begun."""

    @abstractmethod
    def remaining(self, lost: Sequence[str]) -> Cluster:
        """Return the workers that are there now, without some."""

    def _ended(self, name: str, error: BaseException | None) -> VpemError:
        """Return why a worker's run ended: by its error, or as it is gone."""
        if isinstance(error, VpemError):
            return error
        worker = f"the worker {name} of {self.framework}"
        if error is None:
            return Unheard(name, f"{worker} is gone")
        return StalledError(f"{worker}: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Ticket:
    """What a process needs to join a run, in plain values; only it may have its own."""

    run: str  # 32 hexadecimal digits
    rank: int
    names: list[str]
    certificates: list[bytes]  # DER, by rank
    address: tuple[str, int]  # of the first
    key: bytes  # PEM


class ClusterEngine(TlsEngine):
    """Processes of one user, whose agents are added in their order wherever they live."""

    open = True
    in_order = True
    first_holder = 1

    def wait_for(self, seconds: float) -> None:
        """Say that a process is lost of which nothing is heard for so many seconds."""
        self._post.timeout = self.timeout = seconds


@contextmanager
def joined(
    ticket: Ticket, listener: socket | None = None, cluster: Cluster | None = None
) -> Iterator[ClusterEngine]:
    """Join the processes of a run, once all are there; others hear how it ends here.

    The first, which is given the ``cluster``, asks that what became of the others.
    """
    names, run = ticket.names, ticket.run
    members = tuple(
        Member(name, certificate, None if rank else ticket.address, holds=rank > 0)
        for rank, (name, certificate) in enumerate(zip(names, ticket.certificates, strict=True))
    )
    over = threading.Event()

    def watch(cluster: Cluster) -> None:
        while not over.wait(LOOK_EVERY):
            if (error := cluster.look()) is not None:
                post.fail(error)
                return

    with TemporaryDirectory(prefix="vpem-") as folder:  # which others cannot enter
        shown, key = Path(folder, "member.crt"), Path(folder, "member.key")
        shown.write_text(ssl.DER_cert_to_PEM_cert(ticket.certificates[ticket.rank]))
        key.write_bytes(ticket.key)
        roster = Roster(run, "the run", 1, members)
        post = Post(roster, Identity(names[ticket.rank], shown, key), listen=listener)
        # Others dial the first, which waits for them as long as the framework does.
        post.timeout = SILENCE if ticket.rank else None
        post.start()
        post.flush(SILENCE)  # the key is read by then, and no signal can leave it behind
    engine = ClusterEngine(post, roster, None)
    engine.seats = None
    if cluster is not None:
        threading.Thread(target=watch, args=[cluster], name="vpem watch", daemon=True).start()
    try:
        engine.barrier()
        engine.wait_for(SILENCE)
        yield engine
        engine.barrier()
    except BaseException as error:
        code = getattr(error, "exit_code", 2)
        engine.announce_end(str(error) or type(error).__name__, code=code)
        raise
    finally:
        over.set()
        post.close()


def run_command(
    ticket: Ticket, words: Sequence[str], variables: dict[str, str], folder: str
) -> None:
    """Run a command of the shell as a process of a run, in a task of the framework.

    Its standard input is the ticket. StalledError with its last words if it fails by itself.
    """
    if not os.path.isdir(folder):
        raise InputError(
            f"there is no folder {folder} on {platform.node()}: workers run the command where it "
            "was given, on the same files; share the folder with all machines"
        )
    done = subprocess.run(
        [sys.executable, "-m", "vpem", *words], input=encode(asdict(ticket)), cwd=folder,
        env=os.environ | variables, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 3):
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["without a word"]
        name = ticket.names[ticket.rank]
        raise StalledError(f"{name} has ended with code {done.returncode}: {said[-1]}")


class DaskCluster(Cluster):
    """Workers of Dask that a ``client`` knows."""

    framework = "Dask"

    @classmethod
    def at(cls, address: str | None, n_workers: int | None) -> DaskCluster:
        """Return workers of a scheduler, or of a cluster of threads of this process."""
        from distributed import Client, LocalCluster

        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        if address is None:
            count = n_workers or os.cpu_count() or 1
            local = LocalCluster(
                n_workers=count, threads_per_worker=1, processes=False, dashboard_address=None
            )
            return cls(Client(local, set_as_default=False))
        try:
            client = Client(address, timeout=ANSWER, set_as_default=False)
        except OSError:
            raise InputError(
                f"no scheduler of Dask answers at {address}; start one (dask scheduler), or name "
                "another with ", Setting("scheduler"),
            ) from None  # fmt: skip
        return cls(client)

    def __init__(self, client: Any, lost: Sequence[str] = ()) -> None:
        from distributed.comm import get_local_address_for
        from distributed.comm.addressing import parse_host_port

        super().__init__(lost)
        self.client = client
        self._threads = {n: k for n, k in client.nthreads().items() if n not in self._lost}
        self.names = sorted(self._threads)
        address = client.scheduler.address
        inside = address.startswith("inproc:")
        self.host = "127.0.0.1" if inside else get_local_address_for(address).partition("//")[2]
        if not inside:
            self.host = parse_host_port(self.host, 0)[0]

    def threads(self, rank: int) -> int:
        return int(self._threads[self.names[rank - 1]])

    def bring(self, rank: int, parts: Sequence[Any]) -> Any:
        name = self.names[rank - 1]
        return self.client.compute(parts, workers=[name], allow_other_workers=False)

    def start(self, rank: int, work: Callable[..., None], *args: Any) -> None:
        name = self.names[rank - 1]
        self._runs[name] = self.client.submit(
            _seceding, work, *args, workers=[name], allow_other_workers=False, pure=False
        )

    def look(self) -> VpemError | None:
        try:
            there = self.client.nthreads()
        except Exception as gone:
            if self.client.status not in ("closing", "closed"):
                return None  # it may come back, and a fit under way does not need it
            return StalledError(
                f"the scheduler of Dask at {self.client.scheduler.address} is gone ({gone}); "
                "start it and its workers again"
            )
        for name, future in self._runs.items():
            if name not in there:
                return self._ended(name, None)
            if future.status == "error":
                return self._ended(name, future.exception())
        return None

    def stop(self) -> None:
        futures, until = list(self._runs.values()), time.monotonic() + LEAVE
        while time.monotonic() < until and not all(one.done() for one in futures):
            time.sleep(0.02)
        with suppress(Exception):  # the scheduler may be gone
            self.client.cancel([one for one in futures if not one.done()], force=True)

    def remaining(self, lost: Sequence[str]) -> DaskCluster:
        return DaskCluster(self.client, (*self._lost, *lost))


def _seceding(work: Callable[..., None], *args: Any) -> None:
    """Call a function in a task of Dask that leaves its thread to others."""
    from distributed import secede

    secede()
    work(*args)


class RayCluster(Cluster):
    """Processes of Ray, of which every machine has as many as its processors allow."""

    framework = "Ray"

    @classmethod
    def at(cls, address: str | None, n_workers: int | None) -> RayCluster:
        """Return processes of a cluster, or of one of this machine."""
        import ray

        if not ray.is_initialized():
            try:
                ray.init(
                    address=address, include_dashboard=None if address else False,
                    num_cpus=None if address else n_workers, log_to_driver=False,
                    configure_logging=False,
                )  # fmt: skip
            except ConnectionError:
                raise InputError(
                    f"no head of Ray answers at {address}; start one (ray start --head), or name "
                    "another with ", Setting("scheduler"),
                ) from None  # fmt: skip
        return cls()

    def __init__(self, lost: Sequence[str] = ()) -> None:
        import ray

        super().__init__(lost)
        self._nodes: dict[str, str] = {}
        for node in ray.nodes():
            for number in range(int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0):
                name = f"{node['NodeName']}/{number}"
                if name not in self._lost:
                    self._nodes[name] = node["NodeID"]
        self.names = list(self._nodes)
        self.host = str(ray.util.get_node_ip_address())

    def bring(self, rank: int, parts: Sequence[Any]) -> Any:
        return list(parts)

    def start(self, rank: int, work: Callable[..., None], *args: Any) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        name = self.names[rank - 1]
        where = NodeAffinitySchedulingStrategy(self._nodes[name], soft=False)
        task: Any = ray.remote(_fetching)
        placed = task.options(num_cpus=0, max_retries=0, scheduling_strategy=where)
        self._runs[name] = placed.remote(work, args)

    def look(self) -> VpemError | None:
        import ray

        for name, call in self._runs.items():
            if not ray.wait([call], timeout=0)[0]:
                continue
            try:
                ray.get(call)
            except ray.exceptions.RayTaskError as error:
                return self._ended(name, error.cause)
            except ray.exceptions.RayError:
                return self._ended(name, None)
        return None

    def stop(self) -> None:
        import ray

        for call in self._runs.values():
            with suppress(Exception):  # the head may be gone
                ray.cancel(call, recursive=False)

    def remaining(self, lost: Sequence[str]) -> RayCluster:
        return RayCluster((*self._lost, *lost))


def _fetching(work: Callable[..., None], args: Sequence[Any]) -> None:
    """Call a function, with values in place of what refers to them, in a task of Ray."""
    import ray

    def value(one: Any) -> Any:
        refers = isinstance(one, list) and all(isinstance(each, ray.ObjectRef) for each in one)
        return ray.get(one) if refers else one

    work(*map(value, args))


FRAMEWORKS: dict[str, type[Cluster]] = {"dask": DaskCluster, "ray": RayCluster}
