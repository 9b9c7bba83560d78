"""A relay passes on what members say to each other, and lets nobody else in."""

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from vpem.engines.tls import server as doors
from vpem.engines.tls.dial import dial
from vpem.engines.tls.faults import Refused, Trouble
from vpem.engines.tls.link import calls, through
from vpem.engines.tls.relay import CHUNK, Relay
from vpem.engines.tls.server import Door, Lobby, free_port, listening
from vpem.engines.tls.trust import Member, client_context, server_context
from vpem.files.studies.identities import identity_of, write_study

from .forks import MAIN
from .study_support import make_study
from .tls_support import a_study, certify, der, posts


class Place:
    """A study whose members are at a relay, which runs and whose events are kept."""

    def __init__(self, folder, seconds=10.0):
        self.roster, self.identities, _ = a_study(folder, listening=())
        self.identity = certify(folder, "relay")
        self.seconds = seconds
        self.events, self.said, self.tasks = [], [], []

    async def __aenter__(self):
        self.relay = Relay(self.events.append)
        self.lobby = Lobby(self.roster, self.identity, self.relay)
        context = server_context(self.identity, self.roster.members)
        self.door = Door(context, self.lobby.welcome, self.said.append, self.seconds)
        self.listener = listening("127.0.0.1", 0)
        self.address = self.listener.getsockname()
        self.member = Member("relay", der(self.identity), self.address)
        self.serving = asyncio.create_task(self.door.serve(self.listener))
        self.delivered = asyncio.Queue()
        return self

    async def __aexit__(self, *_):
        for task in [*self.tasks, self.serving]:
            task.cancel()
        await asyncio.gather(*self.tasks, self.serving, return_exceptions=True)
        await self.lobby.leave("the test is over")
        self.listener.close()
        while not self.delivered.empty():
            self.delivered.get_nowait().close()

    def wait(self, name):
        """Register a member, as its links do."""
        work = calls(self.member, self.identities[name], self.roster, self.delivered.put_nowait)
        self.tasks.append(asyncio.create_task(work))

    async def stream(self, name, to):
        """Return both ends of a stream between two members."""
        member = self.roster.members[self.roster.rank_of(to)]
        ends = await asyncio.gather(
            through(self.member, member, self.identities[name], self.roster), self.delivered.get()
        )
        return [await asyncio.open_connection(sock=end) for end in ends]

    async def dial(self, path, identity=None):
        identity = identity or self.identities["clinic"]
        context = client_context(identity, [self.member])
        return await dial(identity.name, self.member, context, path=path)


def run(work):
    return asyncio.run(asyncio.wait_for(work, 30))


def test_streams_are_passed_on_both_ways_and_end_together(tmp_path):
    content = {"lab": bytes(range(256)) * 3000, "clinic": b"\0\xff" * 200_001}

    async def scene():
        async with Place(tmp_path) as place:
            place.wait("lab")
            near, far = await place.stream("clinic", "lab")
            for (_, writer), name in ((near, "clinic"), (far, "lab")):
                writer.write(content[name])
            got = await asyncio.gather(
                far[0].readexactly(len(content["clinic"])), near[0].readexactly(len(content["lab"]))
            )
            assert got == [content["clinic"], content["lab"]]
            near[1].close()
            assert await far[0].read() == b""
            far[1].close()
            while place.relay.pairs:
                await asyncio.sleep(0.01)
            ended = place.events[-1]
            assert ended.pop("seconds") > 0
            assert ended == {
                "event": "ended", "from": "clinic", "to": "lab",
                "bytes": len(content["clinic"]), "bytes_back": len(content["lab"]),
            }  # fmt: skip

    run(scene())


def test_a_call_waits_for_a_member_that_comes_later_and_says_who_is_absent(tmp_path, monkeypatch):
    async def scene():
        async with Place(tmp_path) as place:
            coming = asyncio.create_task(place.stream("clinic", "lab"))
            await asyncio.sleep(0.1)
            place.wait("lab")
            for _, writer in await coming:
                writer.close()
            monkeypatch.setattr("vpem.engines.tls.relay.WAIT", 0.1)
            with pytest.raises(Trouble, match=r"^hub is not connected to relay, .*start hub$"):
                await place.stream("clinic", "hub")

    run(scene())


def test_members_are_registered_again_after_a_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("vpem.engines.tls.link.PAUSES", (0.01, 0.01))

    async def scene():
        async with Place(tmp_path) as place:
            place.wait("lab")
            while [event["event"] for event in place.events].count("waits") < 3:
                await asyncio.sleep(0.01)
                for waiting in place.relay._waiting.get("lab", []):
                    waiting.cut()
            for _, writer in await place.stream("clinic", "lab"):
                writer.close()

    run(scene())


def test_a_reader_that_is_slow_holds_up_its_sender(tmp_path):
    async def scene():
        async with Place(tmp_path) as place:
            place.wait("lab")
            (_, writer), (_slow, other) = await place.stream("clinic", "lab")
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 2**28:
                    writer.write(bytes(2**16))
                    await asyncio.wait_for(writer.drain(), 0.1)
                    sent += 2**16
            # What has left the sender is in buffers of sockets, and a little in the relay.
            assert sent < 2**26
            writer.transport.abort()
            other.transport.abort()

    run(scene())


@pytest.mark.parametrize("by_hub", [True, False])
def test_links_of_members_of_whom_neither_can_be_dialled_outlive_cuts(
    tmp_path, monkeypatch, by_hub
):
    monkeypatch.setattr("vpem.engines.tls.link.PAUSES", (0.01, 0.1))
    roster, identities, sockets = a_study(tmp_path, listening=("hub",) if by_hub else ())
    ready, loops = threading.Event(), []

    async def serve():
        async with Place(tmp_path / "relay") as place:
            place.lobby.renew(roster)
            place.door.context = server_context(place.identity, roster.members)
            loops.extend((place, asyncio.get_running_loop(), asyncio.Event()))
            ready.set()
            await loops[2].wait()

    thread = threading.Thread(target=run, args=(serve(),))
    thread.start()
    ready.wait()
    place, loop, over = loops
    known = roster if by_hub else replace(roster, relay=place.member)
    try:
        with posts(known, identities, sockets) as (_, lab, clinic):
            for number in range(3):
                lab.put(2, number, bytes([number]) * 300_000)
                clinic.put(1, number, bytes([number + 9]) * 300_000)
                assert bytes(clinic.receive(1, number)) == bytes([number]) * 300_000
                for connection in list(place.lobby._here):
                    loop.call_soon_threadsafe(connection.cut)
                assert bytes(lab.receive(2, number)) == bytes([number + 9]) * 300_000
            assert any(event["event"] == "paired" for event in place.events) != by_hub
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("begin", "end", "known", "sentence"),
    [
        (-DAY, DAY, False, r"relay \(.*\) does not know the certificate of clinic: it was renewed"),
        (-9 * DAY, -DAY, True, "the certificate of clinic has expired on "),
        (DAY, 9 * DAY, True, "the certificate of clinic is not valid before "),
    ],
)
def test_who_has_no_valid_certificate_of_the_study_is_refused(
    tmp_path, begin, end, known, sentence
):
    me = certify(tmp_path / "mine", "clinic", begin, end)

    async def scene():
        place = Place(tmp_path)
        if known:
            members = [*place.roster.members[:2], Member("clinic", der(me))]
            place.roster = replace(place.roster, members=tuple(members))
        async with place:
            with pytest.raises((Refused, Trouble), match=sentence) as caught:
                await through(place.member, place.roster.members[1], me, place.roster)
            assert caught.value.kind == "certificate"

    run(scene())


def test_a_new_edition_is_taken_up_while_the_relay_runs(tmp_path):
    async def scene():
        async with Place(tmp_path) as place:
            fewer = replace(place.roster, edition=2, members=place.roster.members[:2])
            waiting = await place.dial("/relay/wait")
            place.lobby.renew(fewer)
            place.door.context = server_context(place.identity, fewer.members)
            await waiting.wait_closed()
            with pytest.raises(Refused, match="does not know the certificate of clinic"):
                await place.dial("/relay/wait")
            opened = await place.dial("/relay/wait", place.identities["lab"])
            await opened.close()

    run(scene())


def test_members_who_send_what_they_should_not_are_sent_away(tmp_path):
    async def scene():
        async with Place(tmp_path) as place:
            place.wait("lab")

            async def ending(path, *messages, paired=False):
                opened = await place.dial(path)
                if paired:
                    await opened.recv()
                for message in messages:
                    await opened.send(message)
                await opened.wait_closed()
                return opened.close_code

            assert await ending("/relay/wait", b"hello") == 1008
            assert await ending("/relay/answer/" + "0" * 32) == 1008
            assert await ending("/relay/dance") == 1008
            assert await ending("/elsewhere") == 1008
            assert await ending("/relay/call/lab", bytes(CHUNK + 1), paired=True) == 1009
            assert await ending("/relay/call/lab", "text", paired=True) == 1009
            assert await ending("/relay/call/hub", b"too early") == 1008
            while place.relay.pairs:
                await asyncio.sleep(0.01)

    run(scene())


def test_nobody_waits_for_a_member_that_does_not_read(monkeypatch):
    class Deaf:
        is_cut = False

        async def send(self, _):
            await asyncio.sleep(60)

        def cut(self):
            self.is_cut = True

    async def scene():
        relay, deaf = Relay(), Deaf()
        relay._waiting["lab"] = [deaf]
        call = asyncio.create_task(relay._ring("lab", "0" * 32))
        await asyncio.sleep(0)
        async with asyncio.timeout(5), relay._come:
            assert not deaf.is_cut
        while not deaf.is_cut:
            await asyncio.sleep(0.01)
        assert not relay._waiting["lab"]
        call.cancel()

    monkeypatch.setattr("vpem.engines.tls.relay.RING", 0.05)
    run(scene())


def test_strangers_are_counted_by_their_networks():
    for address, home in {
        "192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7",
        "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64",
    }.items():  # fmt: skip
        assert doors._home(address) == home


def test_strangers_give_way_to_members(tmp_path):
    async def scene():
        async with Place(tmp_path, seconds=0.5) as place:
            silent = [socket.create_connection(place.address) for _ in range(40)]
            opened = await place.dial("/relay/wait", place.identities["lab"])
            assert len(place.door._guests) <= doors.WAITING
            while place.door._guests:
                await asyncio.sleep(0.01)
            for each in silent:
                each.close()
            await opened.close()

    run(scene())


def test_a_free_port_is_for_those_who_name_it():
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))  # as the system tries for a call from any port
    listening("127.0.0.1", port).close()


def test_the_command_serves_takes_up_editions_and_says_how_it_ended(tmp_path):
    port = free_port()
    studies = make_study(tmp_path, "lab", "clinic", address=None, relay=("127.0.0.1", port))
    folder = tmp_path / "relay"
    words = ["relay", "heart.toml", "--listen", f"127.0.0.1:{port}", "--log", "relay.log"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    assert "the relay of heart for hub, lab, clinic at 127.0.0.1" in process.stderr.readline()
    roster = studies["lab"].roster

    async def scene():
        delivered = asyncio.Queue()
        of = {name: identity_of(study, name) for name, study in studies.items() if name != "relay"}
        waiting = asyncio.create_task(calls(roster.relay, of["lab"], roster, delivered.put_nowait))
        ends = [await through(roster.relay, roster.members[1], of["clinic"], roster),
                await delivered.get()]  # fmt: skip
        ends[0].sendall(b"heart")
        while await asyncio.to_thread(ends[1].recv, 5) != b"heart":
            pass
        ends[0].close()
        await asyncio.sleep(0.1)
        ends[1].close()
        fewer = replace(roster, edition=2, members=roster.members[:2])
        edition = replace(studies["relay"], edition=2, roster=fewer)
        write_study(edition, of["hub"])
        process.send_signal(signal.SIGHUP)
        assert await asyncio.to_thread(process.stderr.readline) == (
            "edition 2 of heart is in use, for hub, lab\n"
        )
        with pytest.raises(Refused, match="does not know the certificate of clinic"):
            await through(roster.relay, roster.members[1], of["clinic"], roster)
        waiting.cancel()

    try:
        run(scene())
    finally:
        process.terminate()
        said = process.communicate()[1]
    assert process.returncode == 143
    assert "the relay was ended by SIGTERM" in said.splitlines()[-1]
    lines = [json.loads(line) for line in (folder / "relay.log").read_text().splitlines()]
    ended = next(line for line in lines if line["event"] == "ended")
    assert (ended["from"], ended["to"], ended["bytes"]) == ("clinic", "lab", 5)


def test_garbage_harms_nobody(tmp_path):
    hello = ssl.MemoryBIO()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLWantReadError):
        tls.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    greeting = hello.read()
    mutated = [greeting[:at] + bytes([greeting[at] ^ 255]) + greeting[at + 1 :]
               for at in range(0, 60, 3)]  # fmt: skip
    garbage = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", bytes(100_000), greeting, *mutated]

    async def scene():
        async with Place(tmp_path) as place:
            for content in garbage:
                reader, writer = await asyncio.open_connection(*place.address)
                with contextlib.suppress(ConnectionError):
                    writer.write(content)
                    writer.write_eof()
                    await asyncio.wait_for(reader.read(), 5)
                writer.close()
            place.wait("lab")
            (_, there), (here, back) = await place.stream("clinic", "lab")
            there.write(b"well")
            assert await here.readexactly(4) == b"well"
            there.close()
            back.close()

    run(scene())
