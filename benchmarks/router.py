"""Namespaces on one machine, with a router in user space between them that is as bad as asked.

It holds every packet back for the latency and lets no more of them leave or reach a namespace than
the bandwidth allows, loses some, and cuts connections: kernels need no traffic control for that.
Needs root and iproute2.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vpem.network.messages import LinkSpeed

NET = f"10.207.{os.getpid() % 250}"
"""Of this process: several may run beside each other."""
MTU = 9000
BACKLOG = 4000
"""Packets that wait for a link; more are dropped, as routers do."""

TUNSETIFF, TUN, PLAIN = 0x400454CA, 0x0001, 0x1000

Flow = tuple[bytes, bytes]
"""Addresses and ports of a connection, in one direction."""


class Router(threading.Thread):
    """Passes packets on between namespaces, late and not too many at a time.

    Devices are open TUN devices by the address of the namespace that has the other end; half of the
    link's latency is on either side of the router.
    """

    def __init__(self, devices: dict[str, int], link: LinkSpeed) -> None:
        super().__init__(daemon=True)
        self.devices, self.link, self.loss = devices, link, 0.0
        self.stopped = False
        self.silent_until = 0.0
        self._random = random.Random(0)
        self._flows: set[Flow] = set()
        self._gone: dict[Flow, bool] = {}

    def forget(self, *, answer: bool) -> int:
        """Cut all connections there are for ever, as a firewall does that starts again: how many.

        Their packets are answered with a reset, or by nothing.
        """
        flows = set(self._flows)
        self._gone |= dict.fromkeys(flows, answer)
        self._flows -= flows
        return len(flows) // 2

    def be_silent(self, seconds: float) -> None:
        """Let nothing through for a time."""
        self.silent_until = time.monotonic() + seconds

    def run(self) -> None:
        """Pass packets on until `stopped`."""
        # It must not wait for anybody's work.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -19)
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
                if packet[0] >> 4 != 4 or target is None or not self._passes(packet, device):
                    continue
                if len(waiting) > BACKLOG:
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

    def _passes(self, packet: bytes, device: int) -> bool:
        """Whether a packet is passed on; one of a connection that was cut may be answered."""
        if time.monotonic() < self.silent_until or self._random.random() < self.loss:
            return False
        head = 4 * (packet[0] & 15)
        if packet[9] != 6:  # no TCP
            return True
        there, back = packet[16:20] + packet[head + 2 : head + 4], packet[12:16] + packet[
            head : head + 2
        ]  # fmt: skip
        answer = self._gone.get((back, there))
        if answer is None:
            self._flows |= {(back, there), (there, back)}
            return True
        flags = packet[head + 13]
        if flags & 2 and not flags & 16:  # the same ports again, a connection of its own
            for flow in ((back, there), (there, back)):
                del self._gone[flow]
            return True
        if answer and not flags & 4:
            os.write(device, reset_of(packet, head))
        return False


def reset_of(packet: bytes, head: int) -> bytes:
    """Return the TCP reset that answers a packet (RFC 9293, 3.5.2)."""
    source, target = packet[12:16], packet[16:20]
    ports = packet[head + 2 : head + 4] + packet[head : head + 2]
    segment = ports + packet[head + 8 : head + 12] + bytes(4) + b"\x50\x04" + bytes(6)
    pseudo = target + source + struct.pack(">BBH", 0, 6, len(segment))
    segment = segment[:16] + _checksum(pseudo + segment) + segment[18:]
    top = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, 6, 0) + target + source
    return top[:10] + _checksum(top) + top[12:] + segment


def _checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF)


@dataclass(frozen=True)
class Net:
    """Namespaces behind a router; their names begin with this one."""

    name: str
    addresses: list[str]
    router: Router

    def within(self, rank: int, *words: str) -> list[str]:
        """Return the words of a command that runs in a namespace."""
        return ["ip", "netns", "exec", f"{self.name}-{rank}", *words]

    def sent(self) -> list[int]:
        """Return the bytes that each namespace has sent, with all headers."""
        return [
            int(_ip("netns", "exec", f"{self.name}-{rank}", "cat",
                    f"/sys/class/net/{self.name}-{rank}/statistics/tx_bytes"))
            for rank in range(len(self.addresses))
        ]  # fmt: skip


def _tun(name: str) -> int:
    """Open a TUN device of this name."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), TUN | PLAIN))
    return device


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def namespaces(n_ranks: int, link: LinkSpeed) -> Iterator[Net]:
    """Make namespaces behind such links.

    The caller's own end, address 254, has no namespace of its own.
    """
    name, devices = f"vl{os.getpid() % 10000}", {}
    addresses = [f"{NET}.{rank + 1}" for rank in range(n_ranks)]
    try:
        for rank, address in enumerate([*addresses, f"{NET}.254"]):
            tun = f"{name}-{rank}"
            devices[address] = _tun(tun)
            where: Sequence[str] = []
            if rank < n_ranks:
                _ip("netns", "add", tun)
                _ip("link", "set", tun, "netns", tun)
                where = ["-n", tun]
                _ip(*where, "link", "set", "lo", "up")
            _ip(*where, "addr", "add", f"{address}/24", "dev", tun)
            _ip(*where, "link", "set", tun, "mtu", str(MTU), "up")
        router = Router(devices, link)
        router.start()
        yield Net(name, addresses, router)
        router.stopped = True
        router.join()
    finally:
        for device in devices.values():
            os.close(device)
        for rank in range(n_ranks):
            subprocess.run(["ip", "netns", "del", f"{name}-{rank}"], capture_output=True)
