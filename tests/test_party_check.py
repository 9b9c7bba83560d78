"""Whatever stands between two members is named: one table, one right sentence a failure."""

import asyncio
import contextlib
import re
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from vpem.engines.tls import party_check
from vpem.engines.tls.faults import Met, explain
from vpem.engines.tls.party_check import Examination, Finding
from vpem.engines.tls.server import Door, Lobby, listening
from vpem.engines.tls.trust import Member, server_context
from vpem.files.studies.identities import read_identity, write_study

from .cli_support import MAIN, done
from .cli_support import run as run_words
from .study_support import make_study
from .tls_support import DAY, a_study, certify, der, dialled_at

PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "wss_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


class Scene:
    """A hub, and a lab that checks what is between them."""

    def __init__(self, folder):
        self.folder = folder
        self.roster, self.identities, _ = a_study(folder, names=("hub", "lab"), listening=())
        self.closing = []
        self.hub_roster = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for close in reversed(self.closing):
            await close()

    def known(self, name, identity):
        """Let the study have another certificate of a member."""
        members = [replace(one, certificate=der(identity)) if one.name == name else one
                   for one in self.roster.members]  # fmt: skip
        self.roster = replace(self.roster, members=tuple(members))
        self.identities[name] = identity

    def hub_at(self, port):
        self.roster = dialled_at(self.roster, "hub", ("127.0.0.1", port))

    async def door(self, name="hub", roster=None):
        """Let a member answer checks; its port."""
        roster = roster or self.roster
        lobby = Lobby(roster, self.identities[name])
        context = server_context(self.identities[name], roster.members)
        listener = listening("127.0.0.1", 0)
        task = asyncio.create_task(Door(context, lobby.welcome, lambda _: None).serve(listener))

        async def close():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            listener.close()
            await lobby.leave("the test is over")

        self.closing.append(close)
        return listener.getsockname()[1]

    async def answering(self, talk, context=None):
        """Let something else answer; its port."""

        async def handle(reader, writer):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await talk(reader, writer)
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)

        async def close():
            server.close()
            await server.wait_closed()

        self.closing.append(close)
        return server.sockets[0].getsockname()[1]

    async def findings(self, idle=0.0):
        hub, identity = self.roster.members[0], self.identities["lab"]
        return await Examination(self.roster, identity, hub, idle=idle).run()


def run(work):
    return asyncio.run(asyncio.wait_for(work, 30))


# ---- what answers in the place of a member ------------------------------------------------------


def saying(words):
    async def talk(reader, writer):
        if not words.startswith(b"SSH"):
            await reader.read(100)
        writer.write(words)
        await writer.drain()

    return talk


async def closed_port(scene):
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


async def ssh(scene):
    return await scene.answering(saying(b"SSH-2.0-OpenSSH_9.6\r\n"))


async def plain_http(scene):
    return await scene.answering(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


async def nobody(scene):
    return await scene.answering(saying(b""))


async def quiet(reader, writer):
    await reader.read()


def of(identity):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    return context


async def older_tls(scene):
    return await scene.answering(saying(b"\x15\x03\x01\x00\x02\x02\x46"))  # protocol_version


async def another(scene):
    return await scene.answering(quiet, of(certify(scene.folder / "other", "hub")))


async def gateway(scene):
    made = certify(scene.folder / "gate", "hub.org", issuer="Guards of the Firm")
    return await scene.answering(quiet, of(made))


async def swapped(scene):
    return await scene.answering(quiet, of(scene.identities["lab"]))


async def expired(scene):
    scene.known("hub", certify(scene.folder / "old", "hub", -9 * DAY, -DAY))
    return await scene.door()


async def future(scene):
    scene.known("hub", certify(scene.folder / "new", "hub", DAY, 9 * DAY))
    return await scene.door()


async def unknown_here(scene):
    strange = replace(scene.roster.members[1], certificate=der(certify(scene.folder / "x", "lab")))
    return await scene.door(
        roster=replace(scene.roster, members=(scene.roster.members[0], strange))
    )


async def expired_here(scene):
    scene.known("lab", certify(scene.folder / "mine", "lab", -9 * DAY, -DAY))
    return await scene.door()


async def other_edition(scene):
    return await scene.door(roster=replace(scene.roster, edition=2))


async def other_study(scene):
    return await scene.door(roster=replace(scene.roster, study="f" * 32))


async def hub_of(scene):
    return await scene.door()


FAULTS = {
    closed_port: ("port", r"^hub \(127.0.0.1:\d+\) refuses connections: nothing listens there"),
    ssh: ("tls", "answers with SSH, not with TLS: the port is another program's"),
    plain_http: ("tls", "answers with plain HTTP, not with TLS"),
    nobody: ("tls", "ended the connection as it began"),
    older_tls: ("tls", r"speaks no TLS 1\.3"),
    another: (
        "certificate",
        r"certificate that the study does not have \(that of CN=hub\)",
    ),
    gateway: ("certificate", "something on the way to hub .* opens TLS: .*issued by CN=Guards of"),
    swapped: ("certificate", "is lab, by its certificate: addresses in the study are swapped"),
    expired: ("certificate", r"the certificate of hub has expired .*vpem party renew"),
    future: ("certificate", "the certificate of hub is not valid before"),
    unknown_here: ("certificate", r"hub \(.*\) does not know the certificate of lab"),
    expired_here: ("certificate", "hub refuses: the certificate of lab has expired .*: renew it"),
    other_edition: ("answer", "hub has edition 2 of heart and lab has edition 1: lab needs the"),
    other_study: ("answer", r"hub takes part in another study \(ffffffff, not "),
}


@pytest.mark.parametrize(("answers", "expected"), FAULTS.items(), ids=[f.__name__ for f in FAULTS])
def test_what_answers_in_the_place_of_a_member_is_named(tmp_path, answers, expected):
    async def scene():
        async with Scene(tmp_path) as made:
            made.hub_at(await answers(made))
            return await made.findings()

    found = run(scene())
    wrong = [one for one in found if one.state == "fails"]
    assert [one.what for one in wrong] == [expected[0]]
    assert re.search(expected[1], wrong[0].sentence)
    assert wrong[0].sentence.count("\n") == 0


def test_a_member_that_answers_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(party_check, "SECONDS", 0.1)

    async def scene():
        async with Scene(tmp_path) as made:
            made.roster = dialled_at(made.roster, "lab", ("127.0.0.1", await made.door("lab")))
            made.hub_at(await made.door())
            found = await made.findings(idle=0.05)
            made.roster = dialled_at(made.roster, "lab", ("127.0.0.1", await closed_port(made)))
            made.hub_at(await made.door())
            return found, await made.findings()

    good, bad = run(scene())
    assert {one.state for one in good} == {"ok"}
    assert [one.what for one in good] == [
        "name", "proxy", "port", "tls", "certificate", "clock", "answer", "round trip", "up",
        "down", "back", "idle",
    ]  # fmt: skip
    assert all(one.value > 0 for one in good if one.what in ("round trip", "up", "down"))
    wrong = [one for one in bad if one.state == "fails"]
    assert [one.what for one in wrong] == ["back"]
    assert wrong[0].sentence.startswith("hub cannot dial lab: lab (127.0.0.1:")


# ---- clocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "answers", "sentence"),
    [
        (
            24,
            hub_of,
            "^this machine's clock is 1 day behind that of hub: set the one that is",
        ),
        (-2, hub_of, "^this machine's clock is 2 hours ahead of that of hub: set"),
        (24, future, "^this machine's clock is 1 day behind .*; meanwhile the certificate of hub"),
        (-24, expired_here, "^this machine's clock is 1 day ahead of .*the certificate of lab has"),
    ],
)
def test_a_clock_that_is_wrong_is_named_even_where_it_makes_certificates_wrong(
    tmp_path, monkeypatch, hours, answers, sentence
):
    there = timedelta(hours=hours)
    for module in ("faults", "dial", "party_check"):
        where = f"vpem.engines.tls.{module}.others_clock"
        monkeypatch.setattr(where, lambda headers: datetime.now(UTC) + there)

    async def scene():
        async with Scene(tmp_path) as made:
            made.hub_at(await answers(made))
            return await made.findings()

    wrong = [one for one in run(scene()) if one.state == "fails"]
    assert [one.what for one in wrong] == ["clock"]
    assert re.search(sentence, wrong[0].sentence)


# ---- proxies ------------------------------------------------------------------------------------


PROXY_ANSWERS = {
    b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n":
        "asks for a name and a password.*https_proxy=http://USER:PASSWORD@HOST:PORT",
    b"HTTP/1.1 403 Forbidden\r\n\r\n":
        r"does not connect to hub \(127.0.0.1:9\) \(HTTP 403 Forbidden\): ask who keeps it",
    b"HTTP/1.1 502 Bad Gateway\r\n\r\n": "HTTP 502",
    b"hello\r\n\r\n": "does not answer as an HTTP proxy does",
}  # fmt: skip


@pytest.mark.parametrize(("answer", "sentence"), PROXY_ANSWERS.items())
def test_what_a_proxy_has_against_it_is_said(tmp_path, monkeypatch, answer, sentence):
    async def scene():
        async with Scene(tmp_path) as made:
            port = await made.answering(saying(answer))
            monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{port}")
            made.hub_at(9)
            return await made.findings()

    found = run(scene())
    assert [(one.what, one.state) for one in found] == [("proxy", "ok"), ("proxy", "fails")]
    assert re.search(sentence, found[-1].sentence)
    assert not any("secret" in one.sentence + one.observation for one in found)


def test_a_proxy_that_connects_is_gone_through(tmp_path, monkeypatch):
    monkeypatch.setattr(party_check, "SECONDS", 0.05)

    async def scene():
        async with Scene(tmp_path) as made:
            made.hub_at(await made.door())
            asked = []

            async def connect(reader, writer):
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                there = await asyncio.open_connection(*made.roster.members[0].address)
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

                async def copy(source, target):
                    while piece := await source.read(1 << 16):
                        target.write(piece)
                        await target.drain()
                    target.close()

                await asyncio.gather(copy(reader, there[1]), copy(there[0], writer),
                                     return_exceptions=True)  # fmt: skip

            port = await made.answering(connect)
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            found = await made.findings()
            assert asked[0].startswith(b"CONNECT 127.0.0.1:")
            return found

    assert {one.state for one in run(scene())} == {"ok"}


# ---- sentences of what no test can bring about quickly ------------------------------------------


@pytest.mark.parametrize(
    ("error", "proxy", "kind", "sentence"),
    [
        (
            socket.gaierror(-2, "Not known"),
            None,
            "name",
            r"hub.org of hub has no address \(not kno",
        ),
        (TimeoutError(), None, "port", r"does not answer in 10 s: .*have port 443 opened"),
        (OSError(113, "No route to host"), None, "port", r"\(no route to host\): look at the net"),
        (ConnectionRefusedError(), "http://p:3128", "proxy", r"p:3128 cannot be used \(it refuses"),
        (ImportError(), "socks5h://p:1080", "proxy", "pip install python-socks"),
        (ssl.SSLError(1, "DECRYPTION_FAILED"), None, "tls", "something on the way damages it"),
    ],
)
def test_an_exception_has_a_sentence(error, proxy, kind, sentence):
    met = Met("lab", Member("hub", b""), "hub.org", 443, proxy)
    fault = explain(error, met)
    assert fault.kind == kind
    assert re.search(sentence, str(fault))


def test_a_link_that_is_cut_while_idle_and_an_end_that_is_silent_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(party_check, "SECONDS", 0.05)

    async def scene():
        async with Scene(tmp_path) as made:
            made.hub_at(await made.door())
            idle = asyncio.create_task(made.findings(idle=20))
            while not made.closing:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.7)
            for close in made.closing:
                await close()
            made.closing.clear()
            cut = await idle
            made.hub_at(await made.door())

            async def say_nothing(roster, identity, connection, member):
                await connection.wait_closed()

            monkeypatch.setattr(party_check, "PATIENCE", 0.2)
            monkeypatch.setattr("vpem.engines.tls.server.answer_checks", say_nothing)
            return cut, await made.findings()

    for found, what, sentence in zip(
        run(scene()), ("idle", "answer"), ("did not last 20 s", "stopped answering"), strict=True
    ):
        assert (found[-1].what, found[-1].state) == (what, "fails")
        assert sentence in found[-1].sentence


# ---- the command --------------------------------------------------------------------------------


def test_the_command_asks_one_that_serves_and_says_what_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(party_check, "SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    make_study(tmp_path, "lab", address=address)
    serving = subprocess.Popen(
        [sys.executable, "-c", MAIN, "party", "check", "heart.toml", "--serve"],
        cwd=tmp_path / "hub", stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "hub of heart for hub, lab at " in serving.stderr.readline()
    monkeypatch.chdir(tmp_path / "lab")
    try:
        found = done(capsys, "party", "check", "heart.toml", "--idle", 0, "--json").json
    finally:
        serving.terminate()
        assert "hub was ended by SIGTERM" in serving.communicate()[1]
    assert (found["works"], found["name"], found["edition"]) == (True, "lab", 1)
    data = found["checks"].pop(1)
    assert (data["state"], data["found"]) == ("note", "not checked")
    assert data["sentence"] == "name your data: vpem party check heart.toml lab.csv"
    assert {one["state"] for one in found["checks"]} == {"ok"}
    assert {one["with"] for one in found["checks"]} == {"hub", "lab"}
    result = run_words(capsys, "party", "check", "heart.toml")
    assert result.code == 2
    rows = [line.split() for line in result.out.splitlines()]
    assert rows[-5:-2] == [["proxy", "none"], ["port", "fails"], []]
    assert re.search(r"^fails: hub \(.*\) refuses connections: ", result.out, re.M)


def test_the_own_data_are_looked_at(tmp_path, capsys, monkeypatch):
    """As the study's commands will: what is found then is found before anybody runs them."""
    options = {"fit": {"topology": "star", "components": 2, "align": "ids"}}
    make_study(tmp_path, "lab", address=("127.0.0.1", 9), options=options)
    monkeypatch.chdir(tmp_path / "lab")
    (tmp_path / "lab" / "lab.csv").write_text("patient,iron\na,1\nb,2\nc,4\n")
    (tmp_path / "lab" / "poor.csv").write_text("zinc,iron\n2,1\n3,\n3,4\n")
    for words, state, said in (
        (["lab.csv"], "ok", "3 rows, 1 feature, as the study takes them"),
        (["lab.csv", "--features", "patient"], "fails", "patient"),
        (["poor.csv", "--serve"], "fails", "no ids, .*; also, party 'lab': poor.csv: row 1, feat"),
        (["none.csv"], "fails", "party 'lab': 'none.csv' does not exist"),
    ):
        found = run_words(capsys, "party", "check", "heart.toml", *words, "--idle", 0, "--json")
        data = found.json["checks"][1]
        assert (data["with"], data["what"], data["state"]) == ("lab", "data", state), data
        assert re.search(said, data["sentence"] or data["found"])


def test_own_files_that_are_no_tables_of_features(tmp_path, capsys, monkeypatch):
    study = make_study(tmp_path, "lab", address=("127.0.0.1", 9))["lab"]
    hub, lab = study.roster.members
    members = (hub, replace(lab, features=("c", "d")))
    monkeypatch.chdir(tmp_path / "lab")
    (tmp_path / "lab" / "long.csv").write_text("row,column,value\nr,c,1\nr,d,2\ns,c,3\n")
    for command, said in (
        ("impute", "2 rows, 2 features, as the study takes them"),
        ("saem", "not checked: 'vpem saem' reads them by options of its own"),
    ):
        roster = replace(study.roster, edition=study.edition + 1, members=members)
        study = replace(study, edition=roster.edition, options={command: {}}, roster=roster)
        write_study(study, read_identity(tmp_path / "hub", "hub"))
        words = ("long.csv", "--idle", 0, "--json")
        found = run_words(capsys, "party", "check", "heart.toml", *words).json["checks"][1]
        assert (found["state"], found["found"]) == ("ok", said), found


def test_the_own_certificate_is_looked_at(tmp_path, capsys, monkeypatch):
    studies = make_study(tmp_path, "lab", address=("127.0.0.1", 9))
    monkeypatch.chdir(tmp_path / "lab")
    hub, lab = read_identity(tmp_path / "hub", "hub"), read_identity(tmp_path / "lab", "lab")

    def own_row(days):
        """What is said of a certificate of the lab that is valid for so long."""
        made = certify(tmp_path / "made", "lab", DAY * min(days - 30, -1), DAY * days)
        for kind in ("certificate", "key"):
            getattr(lab, kind).write_bytes(getattr(made, kind).read_bytes())
        roster = replace(studies["lab"].roster, edition=100 - days)
        members = (roster.members[0], replace(roster.members[1], certificate=der(made)))
        roster = replace(roster, members=members)
        write_study(replace(studies["lab"], edition=roster.edition, roster=roster), hub)
        return run_words(capsys, "party", "check", "heart.toml", "--json").json["checks"][0]

    assert own_row(90)["state"] == "ok"
    soon, late = own_row(9), own_row(-2)
    assert (soon["state"], late["state"]) == ("note", "fails")
    assert "is valid until" in soon["sentence"]
    assert "vpem party renew" in late["sentence"]

    async def a_clock(*_):
        return [Finding("hub", "clock", "fails", "3 days ahead", "this machine's clock is")]

    monkeypatch.setattr("vpem.engines.tls.server.examine_all", a_clock)
    only_by_clock = own_row(-3)
    assert (only_by_clock["state"], only_by_clock["sentence"]) == ("note", None)
