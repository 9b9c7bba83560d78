"""Links between members: nothing is lost, nobody else comes in, and who is missing is named."""

import asyncio
import contextlib
import random
import re
import socket
import ssl
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from websockets.exceptions import ConnectionClosed

from vpem import __version__
from vpem.engines.engine import StalledError
from vpem.engines.tls.dial import dial
from vpem.engines.tls.faults import GoneOn, LeftOut, LinkTimes, Parted, Returned, Trouble, Unheard
from vpem.engines.tls.mailbox import Post
from vpem.engines.tls.server import STRANGERS, WAITING
from vpem.engines.tls.trust import VERSION, client_context, fingerprint, server_context
from vpem.engines.tls.wire import (
    FRAME,
    OVERHEAD,
    PIECE,
    UNASKED,
    Ack,
    Damaged,
    Data,
    Got,
    Hello,
    Incoming,
    Missed,
    Outgoing,
    TaggedMessage,
    parse,
)
from vpem.errors import InputError, VpemError

from .tables import each_once
from .tls_support import (
    DAY,
    CuttingProxy,
    a_study,
    at_once,
    certify,
    der,
    dialled_at,
    posts,
    with_member,
)

QUICK = LinkTimes(pulse=0.5, silence=2.0, stuck=2.0, opening=5.0, pauses=(0.002, 0.05))


@pytest.fixture(scope="module", autouse=True)
def nothing_is_logged():
    """Whatever strangers and cut links do, nobody but the members says anything."""
    import logging

    said = []
    handler = logging.Handler()
    handler.emit = said.append
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)
    assert not [record.getMessage() for record in said]


def ended(work):
    """Return what ``work`` gives, or its error in words."""
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---- messages ------------------------------------------------------------------------------------


def test_messages_arrive_by_sender_and_tag(tmp_path):
    sizes = [0, 1, 1 << 18, (1 << 18) + 1, 3_000_000]
    noted = []
    with posts(*a_study(tmp_path), note=noted.append) as (hub, lab, clinic):
        for tag, size in enumerate(sizes):
            for who in (lab, clinic):
                who.put(0, tag, random.Random(tag).randbytes(size), "estep")
        for who in (2, 1):
            for tag, size in reversed(list(enumerate(sizes))):
                assert bytes(hub.receive(who, tag)) == random.Random(tag).randbytes(size)
                assert not hub.arrived(who, tag)
        lab.put(2, 0, b"through the server")  # neither can be dialled
        assert bytes(clinic.receive(1, 0)) == b"through the server"
        hub.put(0, 0, b"to itself")
        assert hub.receive(0, 0) == b"to itself"
    sent, received = ([(n.size, n.digest) for n in noted if n.sent is way] for way in (True, False))
    assert sorted(sent) == sorted(received)
    assert len(sent) == 11
    assert {n.topic for n in noted} == {"estep", ""}


def test_a_link_that_is_cut_at_any_moment_loses_and_doubles_nothing(tmp_path):
    """In TLS's handshake, in the first frames, in the middle of messages, while both send."""
    roster, identities, sockets = a_study(tmp_path, ("hub", "lab"))
    rng = random.Random(0)
    budgets = [int(10 ** rng.uniform(1, 6)) for _ in range(55)]
    letters = [rng.randbytes(rng.choice([0, 10, 100_000, 900_000])) for _ in range(50)]
    with CuttingProxy(roster.members[0].address, budgets) as line:
        through = dialled_at(roster, "hub", line.address)
        with posts(through, identities, sockets, times=QUICK) as (hub, lab):

            def talk(post, other):
                for letter in letters:
                    post.put(other, 5, letter)
                return [bytes(post.receive(other, 5)) for _ in letters]

            found = at_once([lambda: talk(hub, 1), lambda: talk(lab, 0)])
        assert line.cuts >= 50
    assert found == [letters, letters]


def test_a_link_that_only_seems_to_be_there_is_opened_again(tmp_path):
    """Nothing comes through any more, and nobody says so."""
    roster, identities, sockets = a_study(tmp_path, ("hub", "lab"))
    with CuttingProxy(roster.members[0].address) as line:
        through = dialled_at(roster, "hub", line.address)
        with posts(through, identities, sockets, times=QUICK) as (hub, lab):
            lab.put(0, 0, b"before")
            assert hub.receive(1, 0) == b"before"
            line.hold()
            lab.put(0, 0, b"after")
            hub.put(1, 0, b"after, too")
            assert hub.receive(1, 0) == b"after"
            assert lab.receive(0, 0) == b"after, too"


def test_what_nobody_has_asked_for_is_bounded_and_what_is_asked_for_is_not():
    out, incoming = Outgoing(), Incoming(unasked=2 * OVERHEAD)
    out.room = incoming.room
    for tag in range(4):
        out.kept.append(TaggedMessage(tag, "", bytes(3 * PIECE)))

    def carry():
        came = []
        while piece := out.piece(Ack(Got(), 0)):
            came.append(incoming.put(parse(piece.pack()).data))
            if incoming.make_room():
                out.acknowledge(incoming.got, incoming.room)
        return [message.tag for message in came if message is not None]

    assert carry() == []
    assert out.held_back  # in the middle of a message, after a piece
    assert incoming.got == (0, PIECE)
    incoming.ask([0, 1])
    incoming.make_room()
    out.acknowledge(incoming.got, incoming.room)
    assert carry() == [0, 1]
    assert incoming.got == (2, PIECE)
    out.rewind(incoming.got)  # over a new connection both count alike what has come
    assert out._sent == incoming._received
    with pytest.raises(Damaged, match=r"comes after 0\.264 MB not requested"):
        incoming.put(parse(a_piece(number=2, begin=PIECE, size=3 * PIECE)).data)
    with pytest.raises(Damaged, match="MB not requested"):
        incoming.ask([3])  # which is behind that


FLOODS = {
    "many": [(5 + 2 * number, bytes(200_000)) for number in range(500)],
    "alike": [(5, bytes(200_000))] * 500,
    "empty": [(5 + 2 * number, b"") for number in range(9_000)],
    "one": [(5, bytes(60_000_000))],
}


@each_once(flood=FLOODS, how=[(False, True), (True, False), (False, False), (True, True)])
def test_a_member_that_floods_is_cut_at_a_few_megabytes(tmp_path, monkeypatch, flood, how):
    waits, obeys = how
    with posts(*a_study(tmp_path, ("hub", "lab"))) as (hub, lab):
        if not obeys:
            monkeypatch.setattr(Outgoing, "held_back", False)
        for tag, message in FLOODS[flood]:
            lab.put(0, tag, message)
        if not waits and obeys:
            until = time.monotonic() + 20.0
            while not lab._links[0].out.held_back and time.monotonic() < until:
                time.sleep(0.01)
        elif not waits:
            assert ended(lambda: lab.receive(0, 0)).endswith("not requested")
        told = ended(lambda: hub.receive(1, 3))
        assert re.search("from lab to hub comes after 1[67].* MB not requested", told)
        kept = [len(message.data) for box in hub._boxes.values() for message in box]
        part = len(hub._links[1].incoming._part)
        assert sum(kept) + OVERHEAD * len(kept) + part <= UNASKED + OVERHEAD + 2 * PIECE


def test_what_is_asked_for_comes_whatever_its_size_and_order(tmp_path):
    size = UNASKED + 5_000_000
    with posts(*a_study(tmp_path, ("hub", "lab"))) as (hub, lab):
        for tag in range(4):
            lab.put(0, tag, bytes([tag]) * size)
        hub.ask(1, [0, 1, 2])
        for tag in (2, 0, 1, 3):
            assert bytes(hub.receive(1, tag)) == bytes([tag]) * size


def test_who_ends_waits_for_who_is_there_but_busy(tmp_path, monkeypatch):
    monkeypatch.setattr("vpem.engines.tls.mailbox.LINGER", (1.0, 1.0))
    with posts(*a_study(tmp_path, ("hub", "lab")), times=replace(QUICK, pulse=0.2)) as (hub, lab):
        lab.put(0, 0, bytes(2 * UNASKED))
        ending = threading.Thread(target=lab.close)
        ending.start()
        ending.join(2.0)
        assert ending.is_alive()
        assert len(hub.receive(1, 0)) == 2 * UNASKED
        ending.join(20.0)
        assert not ending.is_alive()


# ---- who is believed -----------------------------------------------------------------------------


class Two:
    """A hub and a lab that may see a study differently."""

    def __init__(self, folder):
        self.folder = folder
        roster, self.identities, self.sockets = a_study(folder)
        self.rosters = {"hub": roster, "lab": roster}
        self.clocks = {}

    def talk(self):
        """Return what each hears of the other, or why it hears nothing."""
        made = [
            Post(roster, self.identities[name], listen=self.sockets.get(name), timeout=10.0,
                 times=QUICK, clock=self.clocks.get(name))
            for name, roster in self.rosters.items()
        ]  # fmt: skip
        for post in made:
            post.start()
        hub, lab = made
        lab.put(0, 0, b"hello")
        at_lab = ended(lambda: lab.receive(0, 0))
        at_once([lab.close])
        hub.timeout = 0.1
        at_hub = ended(lambda: hub.receive(1, 0))
        hub.close()
        return at_hub, at_lab


def see(two, who, name, **differently):
    """Let one member see another differently."""
    two.rosters[who] = with_member(two.rosters[who], name, **differently)


def another(two, name, *dates):
    """Make another certificate for a member."""
    return certify(two.folder / "another", name, *dates)


def date_badly(two, name, begin, end, days):
    """Give a member a certificate of other days, in which it believes to be."""
    two.identities[name] = another(two, name, begin * DAY, end * DAY)
    two.clocks[name] = lambda: datetime.now(UTC) + days * DAY
    for who in two.rosters:
        see(two, who, name, certificate=der(two.identities[name]))


def swap(two):
    """Let the lab take the certificate of the clinic for the hub's, and the other way round."""
    hub, clinic = (der(two.identities[name]) for name in ("hub", "clinic"))
    see(two, "lab", "hub", certificate=clinic)
    see(two, "lab", "clinic", certificate=hub)


def revoke(two, who, name):
    """Let one member know that a certificate has been revoked."""
    mark = fingerprint(der(two.identities[name]))
    two.rosters[who] = replace(two.rosters[who], revoked={mark: "2026-01-01"})


AWAY = "was rejected: its certificate is not in the study, or has been revoked"
UNKNOWN = "does not know the certificate of lab"
UNBELIEVED = "does not trust the certificate of this member"
SHOWS = "shows a certificate that the study does not have"
NOT_YET = "the certificate of hub is not valid before"

WRONG = {
    "unknown lab": (
        lambda two: see(two, "hub", "lab", certificate=der(another(two, "lab"))), AWAY, UNKNOWN
    ),
    "unknown hub": (
        lambda two: see(two, "lab", "hub", certificate=der(another(two, "hub"))), UNBELIEVED, SHOWS
    ),
    "revoked lab": (lambda two: revoke(two, "hub", "lab"), AWAY, UNKNOWN),
    "revoked hub": (lambda two: revoke(two, "lab", "hub"), UNBELIEVED, SHOWS),
    "swapped": (swap, "lab refuses to talk with hub: hub (127.0.0.1:", "is clinic, by its certif"),
    "expired lab": (
        lambda two: date_badly(two, "lab", -10, -5, -7),
        "the certificate of lab has expired on", "the certificate of hub is not valid before",
    ),
    "hub of the future": (
        lambda two: date_badly(two, "hub", 10, 50, 11),
        f"lab refuses to talk with hub: {NOT_YET}", NOT_YET,
    ),
    "another text of the edition": (
        lambda two: two.rosters.update(lab=replace(two.rosters["lab"], text="ab" * 32)),
        "hub and lab have different texts of edition 1", "lab and hub have different texts",
    ),
    "another edition": (
        lambda two: two.rosters.update(lab=replace(two.rosters["lab"], edition=2)),
        "lab has edition 2 of heart and hub has edition 1: hub", "hub has edition 1 of heart and",
    ),
    "another study": (
        lambda two: two.rosters.update(lab=replace(two.rosters["lab"], study="0" * 32)),
        "lab takes part in another study (00000000, not", "hub takes part in another study (",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_both_ends_say_what_is_wrong(tmp_path, wrong):
    two = Two(tmp_path)
    change, at_hub, at_lab = WRONG[wrong]
    change(two)
    found = two.talk()
    for sentence, right in zip(found, (at_hub, at_lab), strict=True):
        assert right in sentence
        assert sentence.startswith(("Refused: ", "Unheard: "))
    assert found[1].startswith("Refused: ")  # who dials is done at once


def test_a_member_with_another_certificate_than_its_own_does_not_begin(tmp_path):
    roster, identities, _ = a_study(tmp_path, listening=())
    of_lab = replace(identities["lab"], name="clinic")
    old = certify(tmp_path / "old", "lab", -10 * DAY, -5 * DAY)
    with pytest.raises(InputError, match="is not the certificate that heart has for clinic"):
        Post(roster, of_lab)
    with pytest.raises(InputError, match="a is not a member of heart, which has hub, lab, clinic"):
        Post(roster, replace(of_lab, name="a"))
    with pytest.raises(InputError, match="the certificate of lab has expired on"):
        Post(with_member(roster, "lab", certificate=der(old)), old)


# ---- strangers -----------------------------------------------------------------------------------


def test_strangers_get_nothing_and_nobody_waits_for_them(tmp_path):
    """Silence, garbage, plain HTTP, half of TLS's handshake: hundreds at a time."""
    roster, identities, sockets = a_study(tmp_path, ("hub", "lab"))
    hello = ssl.MemoryBIO()
    begun = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="hub")
    with pytest.raises(ssl.SSLWantReadError):
        begun.do_handshake()
    client_hello = hello.read()
    openings = [
        b"", b"\x16", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 60_000,
        client_hello, client_hello[:100], b"\0" * 100_000,
    ]  # fmt: skip
    with posts(roster, identities, sockets, times=QUICK) as (hub, lab):
        strangers = []
        for place in range(210):
            stranger = socket.create_connection(roster.members[0].address)
            strangers.append(stranger)
            stranger.setblocking(False)
            with contextlib.suppress(OSError):
                stranger.send(openings[place % len(openings)])
        lab.put(0, 0, b"a member")
        assert hub.receive(1, 0) == b"a member"
        door = hub._door
        assert len([guest for guest in door._guests if guest.begun]) <= STRANGERS
        assert len(door._guests) <= STRANGERS + WAITING
        for stranger in strangers:
            stranger.close()


# ---- damaged frames ------------------------------------------------------------------------------


def a_hello(roster, name, **changes):
    """Return the first frame of a member."""
    hello = Hello(roster.study, roster.edition, roster.text, VERSION, name, "a" * 32, "", Got())
    return replace(hello, **changes)


NOTHING = Ack(Got(), 0)


def test_nobody_is_sent_elsewhere(tmp_path):
    """An answer of HTTP that names another address is none."""
    roster, identities, sockets = a_study(tmp_path, ("hub", "lab"))

    async def scene():
        async def elsewhere(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: wss://127.0.0.1:1/\r\n\r\n")
            await writer.drain()
            writer.close()

        context = server_context(identities["hub"], roster.members)
        async with await asyncio.start_server(elsewhere, sock=sockets["hub"], ssl=context):
            await dial("lab", roster.members[0], client_context(identities["lab"], roster.members))

    with pytest.raises(Trouble, match="answers with HTTP 302"):
        asyncio.run(scene())


def a_piece(number=0, begin=0, size=5, piece=b"hello", ack=NOTHING, tag=0, topic=""):
    """Return a frame with a piece of a message."""
    return Data(ack, number, begin, size, tag, topic, memoryview(piece)).pack()


DAMAGED = {
    "no frame": b"",
    "text": "text",
    "another kind": b"\x09abc",
    "a second hello": None,
    "cut short": a_piece()[:20],
    "the next but one": a_piece(number=1),
    "from its middle": a_piece(begin=1, piece=b"ello"),
    "longer than it says": a_piece(size=4),
    "never sent": a_piece(ack=Ack(Got(3, 0), 0)),
    "a topic that is none": a_piece(topic="a\0b"),
    "a farewell that is none": a_piece(tag=-1),
    "a farewell without end": a_piece(tag=-1, size=1 << 30),
    "a topic without end": a_piece(topic="a" * 65),
    "beyond all bounds": bytes(FRAME + 1),
}


HUGE = r"has 4.612e\+09 GB, but no more than [^ ]+ GB, half of this machine's memory, can be read"


def hear(folder, speak):
    """Let somebody speak in the lab's place: what the hub says here, and what it answers.

    ``speak(roster)`` gives frames, of which the first is sent before the hub's is awaited.
    """
    roster, identities, sockets = a_study(folder, ("hub", "lab"))
    first, *others = speak(roster)

    async def talk():
        line = await dial(
            "lab", roster.members[0], client_context(identities["lab"], roster.members)
        )
        await line.send(first)
        answer = parse(await line.recv()).refusal
        for frame in others:
            await line.send(frame)
        with contextlib.suppress(ConnectionClosed):
            while answer is None:
                answer = parse(await line.recv()).refusal
        line.cut()
        return "" if answer is None else answer.sentence

    hub = Post(roster, identities["hub"], listen=sockets["hub"], timeout=10.0)
    hub.start()
    answered = asyncio.run(talk())
    sentence = ended(lambda: hub.receive(1, 0))
    hub.close()
    return sentence, answered


@pytest.mark.parametrize("name", [*DAMAGED, "huge"])
def test_a_damaged_frame_ends_the_run_with_one_sentence(tmp_path, name):
    def speak(roster):
        hello = a_hello(roster, "lab").pack()
        frame = DAMAGED.get(name, a_piece(size=1 << 62))
        return hello, hello if frame is None else frame

    sentence, answered = hear(tmp_path, speak)
    damaged = "is damaged; are all members of the same version of vpem"
    assert re.search(f"a message from lab to hub {HUGE if name == 'huge' else damaged}", sentence)
    assert name == "beyond all bounds" or (answered and answered in sentence)


@pytest.mark.parametrize(
    ("differently", "right"),
    [
        *(
            (
                {"version": other},
                f"hub has vpem {VERSION} and lab has {other}; all members need the",
            )
            for other in ("9.9", __version__)  # the latter of before there were protocols
        ),
        ({"name": "clinic"}, "lab, by its certificate, says that it is clinic"),
    ],
)
def test_who_says_that_it_is_another_or_has_another_version_is_refused(
    tmp_path, differently, right
):
    sentence, answered = hear(
        tmp_path, lambda roster: [replace(a_hello(roster, "lab"), **differently).pack()]
    )
    assert right in sentence
    assert right in answered


# ---- ends ----------------------------------------------------------------------------------------


def test_members_hear_why_another_ends_and_that_it_has_finished(tmp_path):
    with posts(*a_study(tmp_path, ("hub", "lab", "clinic"))) as (hub, lab, clinic):
        lab.put(0, 1, b"its last")
        lab.announce_end("it cannot use its data", 3)
        at_once([lab.close])
        assert hub.receive(1, 1) == b"its last"
        with pytest.raises(Parted, match=r"^lab ended: it cannot use its data$") as parted:
            hub.receive(2, 1)
        assert (parted.value.name, parted.value.exit_code) == ("lab", 3)
        clinic.put(0, 1, b"done")
        clinic.close()
        assert hub.receive(2, 1) == b"done"


def test_who_is_gone_is_not_waited_for_with_the_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr("vpem.engines.tls.mailbox.LINGER", (40.0, 40.0))
    names = ("hub", "lab", "clinic")
    with posts(*a_study(tmp_path, names, names)) as (hub, lab, clinic):
        clinic.close()  # nothing listens there any more, and lab has never met it
        hub.put(1, 0, b"all are there")
        assert lab.receive(0, 0) == b"all are there"
        lab.announce_end("it cannot use its data", 2)
        ends_alone(lab)
        with pytest.raises(Parted, match="it cannot use its data"):
            hub.receive(1, 1)
    with posts(*a_study(tmp_path / "two", ("hub", "lab"))) as (hub, lab):
        lab.put(0, 0, b"hello")
        assert hub.receive(1, 0) == b"hello"
        lab._wait_for(lab._links[0].end())  # as members do who end without a word
        hub.announce_end("it cannot use its data", 2)
        ends_alone(hub)


def ends_alone(post):
    """Hold a member to ending by itself."""
    thread = threading.Thread(target=post.close, daemon=True)
    thread.start()
    thread.join(20.0)
    assert not thread.is_alive()


def test_what_is_done_as_a_wait_ends_is_done(tmp_path, monkeypatch):
    class Late(Future):
        def result(self, timeout=None):
            if timeout is not None and not self.done():
                self.set_result("all has been delivered")
                raise TimeoutError
            return super().result(timeout)

    def submit(work, loop):
        work.close()
        return Late()

    with posts(*a_study(tmp_path, ("hub", "lab"))) as (hub, _), monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", submit)
        assert hub._wait_for(hub._finish()) == "all has been delivered"


def test_who_has_finished_is_not_taken_for_dead(tmp_path):
    with posts(*a_study(tmp_path), timeout=0.5, times=QUICK) as (hub, lab, clinic):
        lab.put(0, 0, b"all that it has")
        lab.close()
        with pytest.raises(StalledError, match=r"nothing has been heard of clinic for \d+ s"):
            hub.receive(2, 0)
        assert hub.receive(1, 0) == b"all that it has"
        with pytest.raises(Parted, match="lab ended: it has finished"):
            hub.receive(1, 0)
        hub.timeout = 20.0
        clinic.put(0, 0, b"late")
        assert hub.receive(2, 0) == b"late"


def test_the_first_member_says_who_is_left_out(tmp_path):
    """It hears from another who is lost, and its next process tells those who come."""
    roster, identities, sockets = a_study(tmp_path)

    def begin(name, who):
        socket = sockets[name].dup() if name in sockets else None
        post = Post(who, identities[name], listen=socket, timeout=20.0, times=QUICK)
        post.start()
        return post

    hub, lab, clinic = (begin(name, roster) for name in identities)
    for other in (lab, clinic):
        other.put(0, 0, b"here")
        assert hub.receive(other.rank, 0) == b"here"

    def begin_again():
        with pytest.raises(Unheard, match="lab: not a word") as lost:
            hub.receive(1, 1)
        assert lost.value.name == "clinic"
        crash(hub)
        return begin("hub", roster.without(["clinic"]))

    waits = (lambda: lab.report("clinic", "not a word"), lambda: clinic.receive(0, 1))
    hub_again, *heard = at_once([begin_again, *waits])
    assert [type(one) for one in heard] == [GoneOn, LeftOut]
    assert heard[0].without == ("clinic",)
    assert heard[1].exit_code == 4
    assert str(heard[1]).startswith("hub says: heart has gone on without clinic")
    crash(lab)
    lab = begin("lab", roster.without(["clinic"]))
    lab.put(0, 1, b"without it")
    assert hub_again.receive(1, 1) == b"without it"
    at_once([hub_again.close, lab.close, clinic.close])
    sockets["hub"].close()


@pytest.mark.parametrize("data", [b"", b"[]", b'["a"]', b'["a", 1]', b'["a", "b", "c"]', b"{}"])
def test_what_is_said_of_who_is_lost_is_checked(data):
    assert Missed.unpack(Missed("lab", "why").pack()) == Missed("lab", "why")
    with pytest.raises(Damaged):
        Missed.unpack(data)


def test_a_second_process_of_a_member_is_turned_away_and_nobody_else_hears_of_it(tmp_path):
    roster, identities, sockets = a_study(tmp_path)
    with posts(roster, identities, sockets) as (hub, lab, clinic):
        clinic.put(1, 0, b"by the server")
        lab.put(0, 0, b"first")
        assert (hub.receive(1, 0), lab.receive(2, 0)) == (b"first", b"by the server")
        second = Post(roster, identities["lab"], timeout=20.0)
        second.start()
        with pytest.raises(VpemError, match="another process takes part as lab already") as error:
            second.receive(0, 1)
        assert (error.value.kind, error.value.exit_code) == ("taken", 2)
        at_once([second.close])
        lab.put(0, 1, b"second")
        lab.put(2, 1, b"third")
        assert (hub.receive(1, 1), clinic.receive(1, 1)) == (b"second", b"third")


def crash(post):
    """End a post as if its process had been killed: nobody is told."""
    for link in post._links.values():
        link.out.kept.clear()
        link.finished = True
    post.close()


def test_a_member_that_begins_again_is_noticed_by_those_who_knew_it(tmp_path):
    roster, identities, sockets = a_study(tmp_path, ("hub", "lab"))
    made = {}

    def begin(name):
        socket = sockets[name].dup() if name in sockets else None
        made[name] = Post(roster, identities[name], listen=socket, timeout=5.0, times=QUICK)
        made[name].start()
        return made[name]

    hub, lab = begin("hub"), begin("lab")
    hub.put(1, 0, b"first")
    assert lab.receive(0, 0) == b"first"
    crash(lab)
    lab = begin("lab")
    lab.put(0, 0, b"of the new one")
    with pytest.raises(Returned, match=r"^lab has begun again"):
        hub.receive(1, 0)
    hub.close()
    hub = begin("hub")
    assert hub.receive(1, 0) == b"of the new one"  # which has waited for that
    at_once([hub.close, lab.close])
    sockets["hub"].close()
