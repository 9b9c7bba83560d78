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
from vpem.engines.tls.server import Door, Lobby, free_port, listening
from vpem.engines.tls.trust import Member, server_context
from vpem.files.studies.identities import read_identity, write_study

from .authority_support import Authority
from .cli_support import MAIN, done
from .cli_support import run as run_words
from .study_support import make_study
from .tables import each
from .tls_support import DAY, a_study, certify, der, dialled_at

PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "wss_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """No proxies, and links that are measured for a moment."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(party_check, "SECONDS", 0.05)


class Scene:
    """A hub, and a lab that checks what is between them."""

    def __init__(self, folder):
        self.folder = folder
        self.roster, self.identities, _ = a_study(folder, names=("hub", "lab"), listening=())
        self.closing = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    async def close(self):
        while self.closing:
            await self.closing.pop()()

    def identity(self, name, *how, **more):
        return certify(self.folder / f"{len(more)}{how}", name, *how, **more)

    def dated(self, name, *dates):
        """Let the study have a certificate of other days of a member; the hub's port."""
        self.identities[name] = self.identity(name, *dates)
        members = [replace(one, certificate=der(self.identities[one.name]))
                   for one in self.roster.members]  # fmt: skip
        self.roster = replace(self.roster, members=tuple(members))
        return self.door()

    async def door(self, name="hub", **differently):
        """Let a member answer checks, to whom the study looks differently; its port."""
        roster = replace(self.roster, **differently)
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

    async def answering(self, talk, identity=None):
        """Let something else answer, as TLS or not; its port."""

        async def handle(reader, writer):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await talk(reader, writer)
            writer.close()

        context = None
        if identity is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity.certificate, identity.key)
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)

        async def close():
            server.close()
            await server.wait_closed()

        self.closing.append(close)
        return server.sockets[0].getsockname()[1]

    def saying(self, words):
        async def talk(reader, writer):
            if not words.startswith(b"SSH"):
                await reader.read(100)
            writer.write(words)
            await writer.drain()

        return self.answering(talk)

    def strange(self):
        """Members of whom the lab has another certificate than here."""
        hub, lab = self.roster.members
        return hub, replace(lab, certificate=der(certify(self.folder / "strange", "lab")))

    async def findings(self, port, idle=0.0):
        self.roster = dialled_at(self.roster, "hub", ("127.0.0.1", port))
        hub, identity = self.roster.members[0], self.identities["lab"]
        return await Examination(self.roster, identity, hub, idle=idle).run()


def run(folder, work):
    async def scene():
        async with Scene(folder) as made:
            return await work(made)

    return asyncio.run(asyncio.wait_for(scene(), 30))


async def quiet(reader, writer):
    await reader.read()


async def closed_port(scene):
    return free_port()


# ---- what answers in the place of a member ------------------------------------------------------

FAULTS = {
    "closed port": (
        closed_port, "port", r"^hub \(127.0.0.1:\d+\) refuses connections: nothing listens there"),
    "ssh": (
        lambda scene: scene.saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "tls",
        "answers with SSH, not with TLS: the port is another program's"),
    "plain HTTP": (
        lambda scene: scene.saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "tls",
        "answers with plain HTTP, not with TLS"),
    "nobody": (lambda scene: scene.saying(b""), "tls", "ended the connection as it began"),
    "older TLS": (
        lambda scene: scene.saying(b"\x15\x03\x01\x00\x02\x02\x46"), "tls",  # protocol_version
        r"speaks no TLS 1\.3"),
    "another": (
        lambda scene: scene.answering(quiet, scene.identity("hub")), "certificate",
        r"certificate that the study does not have \(that of CN=hub\)"),
    "gateway": (
        lambda scene: scene.answering(quiet, scene.identity("hub.org", issuer="Guards of the F")),
        "certificate", "something on the way to hub .* opens TLS: .*issued by CN=Guards of the F"),
    "swapped": (
        lambda scene: scene.answering(quiet, scene.identities["lab"]), "certificate",
        "is lab, by its certificate: addresses in the study are swapped"),
    "expired": (
        lambda scene: scene.dated("hub", -9 * DAY, -DAY), "certificate",
        r"the certificate of hub has expired .*vpem party renew"),
    "future": (
        lambda scene: scene.dated("hub", DAY, 9 * DAY), "certificate",
        "the certificate of hub is not valid before"),
    "unknown here": (
        lambda scene: scene.door(members=scene.strange()), "certificate",
        r"hub \(.*\) does not know the certificate of lab"),
    "expired here": (
        lambda scene: scene.dated("lab", -9 * DAY, -DAY), "certificate",
        "hub refuses: the certificate of lab has expired .*: renew it"),
    "other edition": (
        lambda scene: scene.door(edition=2), "answer",
        "hub has edition 2 of heart and lab has edition 1: lab needs the"),
    "other study": (
        lambda scene: scene.door(study="f" * 32), "answer",
        r"hub takes part in another study \(ffffffff, not "),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_answers_in_the_place_of_a_member_is_named(tmp_path, fault):
    answers, what, sentence = FAULTS[fault]

    async def look(scene):
        return await scene.findings(await answers(scene))

    (wrong,) = (one for one in run(tmp_path, look) if one.state == "fails")
    assert wrong.what == what
    assert re.search(sentence, wrong.sentence)
    assert wrong.sentence.count("\n") == 0


def test_a_member_that_answers_is_measured(tmp_path):
    async def look(scene):
        found = []
        for back in (scene.door("lab"), closed_port(scene)):
            scene.roster = dialled_at(scene.roster, "lab", ("127.0.0.1", await back))
            found.append(await scene.findings(await scene.door(), idle=0.05))
        return found

    good, bad = run(tmp_path, look)
    assert {one.state for one in good} == {"ok"}
    assert [one.what for one in good] == [
        "name", "proxy", "port", "tls", "certificate", "clock", "answer", "round trip", "up",
        "down", "back", "idle",
    ]  # fmt: skip
    assert all(one.value > 0 for one in good if one.what in ("round trip", "up", "down"))
    (wrong,) = (one for one in bad if one.state == "fails")
    assert wrong.what == "back"
    assert wrong.sentence.startswith("hub cannot dial lab: lab (127.0.0.1:")


@pytest.mark.parametrize(
    ("hours", "fault", "sentence"),
    [
        (24, None, "^this machine's clock is 1 day behind that of hub: set the one that is"),
        (-2, None, "^this machine's clock is 2 hours ahead of that of hub: set"),
        (
            24,
            "future",
            "^this machine's clock is 1 day behind .*; meanwhile the certificate of hub",
        ),
        (-24, "expired here", "^this machine's clock is 1 day ahead of .*certificate of lab has"),
    ],
)
def test_a_clock_that_is_wrong_is_named_even_where_it_makes_certificates_wrong(
    tmp_path, monkeypatch, hours, fault, sentence
):
    there = timedelta(hours=hours)
    for module in ("faults", "dial", "party_check"):
        where = f"vpem.engines.tls.{module}.others_clock"
        monkeypatch.setattr(where, lambda headers: datetime.now(UTC) + there)

    async def look(scene):
        answers = Scene.door if fault is None else FAULTS[fault][0]
        return await scene.findings(await answers(scene))

    (wrong,) = (one for one in run(tmp_path, look) if one.state == "fails")
    assert wrong.what == "clock"
    assert re.search(sentence, wrong.sentence)


# ---- proxies ------------------------------------------------------------------------------------


@each(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
         "asks for a name and a password.*https_proxy=http://USER:PASSWORD@HOST:PORT"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n",
         r"does not connect to hub \(127.0.0.1:9\) \(HTTP 403 Forbidden\): ask who keeps it"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "HTTP 502"),
        (b"hello\r\n\r\n", "does not answer as an HTTP proxy does"),
    ],
)  # fmt: skip
def test_what_a_proxy_has_against_it_is_said(tmp_path, monkeypatch, answer, sentence):
    async def look(scene):
        port = await scene.saying(answer)
        monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{port}")
        return await scene.findings(9)

    found = run(tmp_path, look)
    assert [(one.what, one.state) for one in found] == [("proxy", "ok"), ("proxy", "fails")]
    assert re.search(sentence, found[-1].sentence)
    assert not any("secret" in one.sentence + one.observation for one in found)


def test_a_proxy_that_connects_is_gone_through(tmp_path, monkeypatch):
    async def look(scene):
        port, asked = await scene.door(), []

        async def connect(reader, writer):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            there = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

            async def copy(source, target):
                while piece := await source.read(1 << 16):
                    target.write(piece)
                    await target.drain()
                target.close()

            both = copy(reader, there[1]), copy(there[0], writer)
            await asyncio.gather(*both, return_exceptions=True)

        proxy = await scene.answering(connect)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy}")
        found = await scene.findings(port)
        assert asked[0].startswith(b"CONNECT 127.0.0.1:")
        return found

    assert {one.state for one in run(tmp_path, look)} == {"ok"}


# ---- sentences of what no test can bring about quickly ------------------------------------------


@each(
    ("error", "proxy", "kind", "sentence"),
    [
        (socket.gaierror(-2, "Not known"), None, "name",
         r"hub.org of hub has no address \(not kno"),
        (TimeoutError(), None, "port", r"does not answer in 10 s: .*have port 443 opened"),
        (OSError(113, "No route to host"), None, "port", r"\(no route to host\): look at the net"),
        (ConnectionRefusedError(), "http://p:3128", "proxy", r"p:3128 cannot be used \(it refuses"),
        (ImportError(), "socks5h://p:1080", "proxy", "pip install python-socks"),
        (ssl.SSLError(1, "DECRYPTION_FAILED"), None, "tls", "something on the way damages it"),
    ],
)  # fmt: skip
def test_an_exception_has_a_sentence(error, proxy, kind, sentence):
    fault = explain(error, Met("lab", Member("hub", b""), "hub.org", 443, proxy))
    assert fault.kind == kind
    assert re.search(sentence, str(fault))


def test_a_link_that_is_cut_while_idle_and_an_end_that_is_silent_are_named(tmp_path, monkeypatch):
    async def look(scene):
        idle = asyncio.create_task(scene.findings(await scene.door(), idle=20))
        await asyncio.sleep(0.7)
        await scene.close()
        cut = await idle

        async def say_nothing(roster, identity, connection, member):
            await connection.wait_closed()

        monkeypatch.setattr(party_check, "PATIENCE", 0.2)
        monkeypatch.setattr("vpem.engines.tls.server.answer_checks", say_nothing)
        return cut, await scene.findings(await scene.door())

    for found, what, sentence in zip(
        run(tmp_path, look), ("idle", "answer"), ("did not last 20 s", "stopped answering"),
        strict=True,
    ):  # fmt: skip
        assert (found[-1].what, found[-1].state) == (what, "fails")
        assert sentence in found[-1].sentence


# ---- the command --------------------------------------------------------------------------------


def test_the_command_asks_one_that_serves_and_says_what_fails(tmp_path, capsys, monkeypatch):
    make_study(tmp_path, "lab", address=("127.0.0.1", free_port()))
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


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """The study in the folder of the lab, whose hub is not there, and what changes it."""
    study = make_study(tmp_path, "lab", address=("127.0.0.1", 9))["lab"]
    monkeypatch.chdir(study.folder)
    editions = iter(range(2, 99))

    def changed(options, **differently):
        hub, lab = study.roster.members
        members, edition = (hub, replace(lab, **differently)), next(editions)
        roster = replace(study.roster, edition=edition, members=members)
        made = replace(study, edition=edition, options=options, roster=roster)
        write_study(made, read_identity(tmp_path / "hub", "hub"))

    return study.folder, changed


def test_the_own_data_are_looked_at(lab, capsys):
    """As the study's commands will: what is found then is found before anybody runs them."""
    folder, changed = lab
    (folder / "lab.csv").write_text("patient,iron\na,1\nb,2\nc,4\n")
    (folder / "poor.csv").write_text("zinc,iron\n2,1\n3,\n3,4\n")
    (folder / "long.csv").write_text("row,column,value\nr,c,1\nr,d,2\ns,c,3\n")
    fit = {"fit": {"topology": "star", "components": 2, "align": "ids"}}
    for options, words, state, said in (
        (fit, ["lab.csv"], "ok", "3 rows, 1 feature, as the study takes them"),
        (fit, ["lab.csv", "--features", "patient"], "fails", "patient"),
        (fit, ["poor.csv", "--serve"], "fails",
         "no ids, .*; also, party 'lab': poor.csv: row 1, feat"),
        (fit, ["none.csv"], "fails", "party 'lab': 'none.csv' does not exist"),
        ({"impute": {}}, ["long.csv"], "ok", "^2 rows, 2 features, as the study takes them$"),
        ({"saem": {}}, ["long.csv"], "ok",
         "^not checked: 'vpem saem' reads them by options of its own$"),
    ):  # fmt: skip
        changed(options, **({} if options is fit else {"features": ("c", "d")}))
        found = run_words(capsys, "party", "check", "heart.toml", *words, "--idle", 0, "--json")
        data = found.json["checks"][1]
        assert (data["with"], data["what"], data["state"]) == ("lab", "data", state), data
        assert re.search(said, data["sentence"] or data["found"])


def test_the_own_certificate_is_looked_at(lab, tmp_path, capsys, monkeypatch):
    folder, changed = lab
    own = read_identity(folder, "lab")

    def own_row(days):
        """What is said of a certificate of the lab that is valid for so long."""
        made = certify(tmp_path / "made", "lab", DAY * min(days - 30, -1), DAY * days)
        for kind in ("certificate", "key"):
            getattr(own, kind).write_bytes(getattr(made, kind).read_bytes())
        changed({"fit": {}}, certificate=der(made))
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


def test_a_check_says_why_a_certificate_of_an_authority_is_refused(tmp_path):
    """In as many bytes as the end of a connection may carry, whatever its name is made of."""
    root = Authority("Klinik für Herz " + "ä" * 20)

    async def work(scene):
        scene.identities["lab"] = root.issue(tmp_path / "lab", "lab", "lab.org")
        hub, lab = scene.roster.members
        lab = replace(lab, certificate=root.der, subject="lab.org", crl=tmp_path / "lab.crl")
        scene.roster = replace(scene.roster, members=(hub, lab))
        port = await scene.door()
        for revoked, sentence in (((root.last,), "has revoked it on"), ((), "has no list of")):
            listed = (root if revoked else Authority("Another")).revoke(*revoked)
            (tmp_path / "lab.crl").write_bytes(listed)
            found = await scene.findings(port)
            assert sentence in found[-1].sentence, found[-1]

    run(tmp_path, work)
