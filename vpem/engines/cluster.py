"""Engines of processes that a framework places and starts: workers of Dask, actors of Ray.

The process that fits is the first, and has no rows; every worker dials it, over the links of a
study (`vpem.engines.tls`). Keys and certificates are made for one run, in the first process, and
the framework brings each worker its own with the task. So all that is sent is encrypted, and no
other can take part, also where the framework's own connections are open to all.

Frameworks need little (`Cluster`): who is there, to call a function at a worker, and what
became of it.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from vpem.engines.engine import StalledError
from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.faults import Unheard
from vpem.engines.tls.mailbox import Post
from vpem.engines.tls.server import listening
from vpem.engines.tls.trust import Identity, Member, Roster
from vpem.errors import VpemError

LOOK_EVERY = 0.5
"""Seconds between questions to the framework what became of the workers."""

SILENCE = 60.0
"""Seconds without a sign of life after which a worker is lost that the framework still has."""


class Cluster(Protocol):
    """Workers that a framework has, ``names`` of them in the order of ranks from 1."""

    names: list[str]
    host: str
    """Where workers reach this process."""

    def threads(self, rank: int) -> int:
        """Return how many processors a worker may use."""

    def bring(self, rank: int, parts: Sequence[Any]) -> Any:
        """Return futures of parts of a collection, which a worker is to have."""

    def start(self, rank: int, work: Callable[..., None], *args: Any) -> None:
        """Call a function at a worker, with futures among its arguments in place of values."""

    def look(self) -> VpemError | None:
        """Return what ended the run of any worker: Unheard with its name where it is lost."""

    def stop(self) -> None:
        """Call off what was started and has not begun."""

    def remaining(self, lost: Sequence[str]) -> Cluster:
        """Return the workers that are there now, without some."""


@dataclass(frozen=True)
class Ticket:
    """What a process needs to join a run, in plain values; only it may have its own."""

    run: str  # 32 hexadecimal digits
    rank: int
    names: list[str]
    certificates: list[bytes]  # DER, by rank
    address: tuple[str, int]  # of the first
    seats: list[int]  # rank of each agent
    key: bytes  # PEM


def issue(
    names: Sequence[str],
    address: tuple[str, int],
    seats: Sequence[int],
    make: Callable[[], tuple[bytes, bytes]],
    run: str,
) -> list[Ticket]:
    """Return tickets for all processes; ``make`` makes a certificate (DER) and its key (PEM)."""
    made = [make() for _ in names]
    certificates = [certificate for certificate, _ in made]
    return [
        Ticket(run, rank, list(names), certificates, address, list(seats), key)
        for rank, (_, key) in enumerate(made)
    ]


class ClusterEngine(TlsEngine):
    """Processes of one user, whose agents are added in their order wherever they live."""

    open = True
    in_order = True


@contextmanager
def joined(
    ticket: Ticket, listener: socket | None = None, cluster: Cluster | None = None
) -> Iterator[ClusterEngine]:
    """Join the processes of a run, once all are there; others hear how it ends here.

    The first, which is given the ``cluster``, asks that what became of the others.
    """
    names, run = ticket.names, ticket.run
    members = tuple(
        Member(name, certificate, None if rank else ticket.address, holds=rank in ticket.seats)
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
        engine = ClusterEngine(post, roster, None)
        engine.seats = ticket.seats
        # Others dial the first, which waits for them as long as the framework does.
        post.timeout = SILENCE if ticket.rank else None
        post.start()
        if cluster is not None:
            threading.Thread(target=watch, args=[cluster], name="vpem watch", daemon=True).start()
        try:
            engine.barrier()
            post.timeout = engine.timeout = SILENCE
            yield engine
            engine.barrier()
        except BaseException as error:
            engine.announce_end(str(error) or type(error).__name__)
            raise
        finally:
            over.set()
            post.close()


def door(host: str, at: tuple[str, int] | None = None) -> tuple[socket, tuple[str, int]]:
    """Return a socket at which workers call this process, and its address."""
    listener = listening(*(at or ("", 0)), "this process")
    return listener, (at[0] if at and at[0] else host, listener.getsockname()[1])


class DaskCluster:
    """Workers of Dask that a ``client`` knows."""

    def __init__(self, client: Any, lost: Sequence[str] = ()) -> None:
        from distributed.comm import get_local_address_for
        from distributed.comm.addressing import parse_host_port

        self.client, self._lost = client, tuple(lost)
        self._threads = {n: k for n, k in client.nthreads().items() if n not in self._lost}
        self.names = sorted(self._threads)
        address = client.scheduler.address
        inside = address.startswith("inproc:")
        self.host = "127.0.0.1" if inside else get_local_address_for(address).partition("//")[2]
        if not inside:
            self.host = parse_host_port(self.host, 0)[0]
        self._futures: dict[str, Any] = {}

    def threads(self, rank: int) -> int:
        return int(self._threads[self.names[rank - 1]])

    def bring(self, rank: int, parts: Sequence[Any]) -> Any:
        name = self.names[rank - 1]
        return self.client.compute(parts, workers=[name], allow_other_workers=False)

    def start(self, rank: int, work: Callable[..., None], *args: Any) -> None:
        name = self.names[rank - 1]
        self._futures[name] = self.client.submit(
            work, *args, workers=[name], allow_other_workers=False, pure=False
        )

    def look(self) -> VpemError | None:
        try:
            there = self.client.nthreads()
        except Exception as gone:
            return StalledError(
                f"the scheduler of Dask at {self.client.scheduler.address} is gone ({gone}); "
                "start it and its workers again"
            )
        for name, future in self._futures.items():
            if name not in there:
                return Unheard(name, f"the worker {name} of Dask is gone")
            if future.status == "error":
                error = future.exception()
                if isinstance(error, VpemError):
                    return error
                return StalledError(f"the worker {name} of Dask: {type(error).__name__}: {error}")
        return None

    def stop(self) -> None:
        with suppress(Exception):  # the scheduler may be gone
            self.client.cancel(list(self._futures.values()), force=True)

    def remaining(self, lost: Sequence[str]) -> DaskCluster:
        return DaskCluster(self.client, (*self._lost, *lost))
