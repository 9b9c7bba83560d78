"""Members whose certificates an institution's authority issues: who is believed, and who is not."""

import os
import shutil
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.trust import (
    Member,
    MemberSigns,
    certificates_in,
    not_valid,
    unlike,
    whose,
)
from vpem.errors import InputError
from vpem.files.studies.signed import parse_certificate, pem_of
from vpem.files.studies.study import read_study

from .authority_support import BOTH, DAY, SEALS, Authority, rsa_key
from .cli_support import done, run
from .study_support import make_study
from .tls_support import a_study, at_once, certify, der, posts, with_member

HOST = "vpem.lab.org"
UNREAD = x509.UnrecognizedExtension(x509.IssuerAlternativeName.oid, b"\x30\x02\xa3\x00")
CLIENT, SERVER = ((use,) for use in BOTH)


@pytest.fixture(scope="module")
def root():
    return Authority("Hospital Root")


@pytest.fixture(scope="module")
def below(root):
    return Authority("Hospital Issuing", root)


def shown(identity):
    return certificates_in(identity.certificate.read_text())


def test_an_authority_vouches_for_a_name_by_any_chain_and_any_key(root, below, tmp_path):
    lab = Member("lab", root.der, subject=HOST)
    far = Authority("Hospital Far", Authority("Hospital Nearer", below))
    keys = None, rsa_key(), ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey
    for authority in (root, below, far):
        for key in keys:
            key = key.generate() if isinstance(key, type) else key
            made = authority.issue(tmp_path, "lab", "other.org", HOST, key=key)
            assert unlike(lab, shown(made)) == ""
    # A part of the way may be pinned, such as what issues for one department alone.
    assert (
        unlike(Member("lab", below.der, subject=HOST), shown(below.issue(tmp_path, "lab", HOST)))
        == ""
    )
    assert unlike(lab, shown(root.issue(tmp_path, "lab", HOST.upper(), uses=CLIENT))) == ""


def bad_chains(root, below, folder):
    """Yield what is shown in the place of lab, and what is said of it."""
    issue = partial(root.issue, folder, "lab")
    twin, foreign = Authority("Hospital Root"), Authority("Another Root")
    no_path = "it does not lead to CN=Hospital Root, the authority of lab"
    yield shown(issue("vpem.clinic.org")), "it is for vpem.clinic.org, not for vpem.lab.org"
    yield shown(issue("*.lab.org")), "it is for *.lab.org, not for"
    yield shown(issue(f"{HOST}.evil.org", f"evil.{HOST}")), "not for vpem.lab.org"
    yield shown(issue()), "it is for no host"
    yield shown(issue("a" * 60 + "." + "b" * 60 + ".org")), "not for"
    yield shown(certify(folder, HOST)), "it is for no host"
    yield shown(twin.issue(folder, "lab", HOST)), f"{no_path} (signature does not match)"
    yield shown(foreign.issue(folder, "lab", HOST)), no_path
    whole = shown(foreign.issue(folder, "lab", HOST))
    yield [*whole, foreign.der], no_path  # its own root with it
    yield shown(below.issue(folder, "lab", HOST))[:1], no_path  # without the one between
    yield shown(issue(HOST, uses=SERVER)), "required EKU not found"
    yield shown(issue(HOST, signs=SEALS)), "it is not for signatures (key usage)"
    yield shown(issue(HOST, ca=True, signs=("key_cert_sign",))), no_path
    for key in (rsa_key(1024), dsa.generate_private_key(2048), ed448.Ed448PrivateKey.generate(),
                ec.generate_private_key(ec.SECP256K1())):  # fmt: skip
        yield shown(issue(HOST, key=key)), "its key is no RSA of 2048 bits, ECDSA"
    yield shown(issue(HOST, more=((UNREAD, False),))), "it is for no host"
    narrow = Authority("Hospital Unread", root, constraints=UNREAD)
    yield shown(narrow.issue(folder, "lab", HOST)), no_path
    old = Authority("Hospital Old", root, begin=-9 * DAY, end=-DAY)
    yield shown(old.issue(folder, "lab", HOST)), "cert is not valid at validation time"
    # A member cannot issue for others.
    other = issue("vpem.clinic.org", ca=False)
    clinic = Authority.__new__(Authority)
    clinic.name, clinic.above, clinic.key = root.last.subject, None, _key(other)
    yield [*shown(clinic.issue(folder, "lab", HOST)), *shown(other)], no_path
    only = x509.NameConstraints([x509.DNSName("clinic.org")], None)
    narrow = Authority("Hospital of the Clinic", root, constraints=only)
    yield shown(narrow.issue(folder, "lab", HOST)), no_path
    yield [], "it is for no host"
    yield [b"\x30\x03\x02\x01\x01"], "it is for no host"
    yield [shown(issue(HOST))[0], b"no certificate"], no_path
    version = shown(issue(HOST))[0].replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09", 1)
    yield [version], "it is for no host"


def _key(identity):
    from vpem.engines.tls.trust import load_key

    return load_key(identity.key.read_bytes())


def test_nobody_else_is_taken_for_a_member(root, below, tmp_path):
    lab, n_seen = Member("lab", root.der, subject=HOST), 0
    pinned = Member("other", der(certify(tmp_path, "other")))
    for chain, sentence in bad_chains(root, below, tmp_path):
        assert sentence in unlike(lab, chain), n_seen
        with suppress(InputError) if sentence == "it is for no host" else pytest.raises(InputError):
            parse_certificate("".join(map(pem_of, chain[:1])))  # others cannot pin it either
        assert whose([pinned, lab], chain)[0] is None
        assert unlike(pinned, chain) == "the study has another certificate"
        n_seen += 1
    assert n_seen == 26
    dialled = replace(lab, address=("lab.org", 443))
    made = shown(root.issue(tmp_path, "lab", HOST, uses=CLIENT))
    assert "not for servers" in unlike(dialled, made)
    assert unlike(dialled, shown(root.issue(tmp_path, "lab", HOST))) == ""


def test_a_certificate_of_two_members_is_that_of_neither(root, tmp_path):
    lab = Member("lab", root.der, subject=HOST)
    clinic = Member("clinic", root.der, subject="vpem.clinic.org")
    both = shown(root.issue(tmp_path, "lab", HOST, "vpem.clinic.org"))
    assert whose([lab, clinic], both) == (
        None, "the certificate is not that of clinic: it is for clinic and lab: each needs a "
        "certificate of its own",
    )  # fmt: skip
    assert whose([lab, clinic], shown(root.issue(tmp_path, "lab", HOST))) == (lab, "")


def test_dates_are_told_apart_from_names(root, tmp_path):
    lab = Member("lab", root.der, subject=HOST)
    for begin, end, sentence in ((-9 * DAY, -DAY, "has expired"), (DAY, 9 * DAY, "is not valid")):
        chain = shown(root.issue(tmp_path, "lab", HOST, begin=begin, end=end))
        assert unlike(lab, chain) == ""
        assert sentence in not_valid("lab", chain[0])


def test_what_an_authority_has_revoked_is_refused(root, below, tmp_path):
    file, pem = tmp_path / "lab.crl", Encoding.PEM
    lab = Member("lab", root.der, subject=HOST, crl=file)
    chain = shown(below.issue(tmp_path, "lab", HOST))
    leaf, other = below.last, below.certificate
    as_pem = [x509.load_der_x509_crl(one.revoke()).public_bytes(pem) for one in (root, below)]
    partial_list = x509.load_der_x509_crl(below.revoke())
    for content, sentence in (
        (below.revoke(), ""),
        (b"".join(as_pem), ""),
        (below.revoke(other), ""),
        (below.revoke(leaf), "its authority has revoked it on"),
        (as_pem[1] + x509.load_der_x509_crl(root.revoke(other)).public_bytes(pem), "has revoked"),
        (root.revoke(leaf), "has no list of CN=Hospital Issuing"),
        (Authority("Hospital Issuing").revoke(), "has no list of CN=Hospital Issuing"),
        (below.revoke(until=-DAY), "is valid until"),
        (b"", "cannot be read"),
        (partial_list.public_bytes(pem)[:-60], "cannot be read"),
        (below.revoke(more=[UNREAD]), "cannot be read"),
    ):
        file.write_bytes(content)
        found = unlike(lab, chain)
        assert sentence in found if sentence else not found
    file.unlink()
    assert "cannot be read (No such file" in unlike(lab, chain)


# ---- links ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts():
    return Authority("Server Hosting")


@pytest.fixture
def mixed(root, below, hosts, tmp_path):
    """A study of a server and a party with authorities of their own, and one that is pinned."""
    roster, identities, sockets = a_study(tmp_path)
    roster = with_member(roster, "hub", certificate=hosts.der, subject="hub.org")
    roster = with_member(roster, "lab", certificate=root.der, subject=HOST)
    identities["hub"] = hosts.issue(tmp_path / "hub", "hub", "hub.org", key=rsa_key())
    identities["lab"] = below.issue(tmp_path / "lab", "lab", HOST)
    return roster, identities, sockets


def meet(roster, identities, sockets, timeout=20.0):
    """What each member finds that introduces itself and hears the others."""

    def run(post):
        name = roster.members[post.rank].name
        engine = TlsEngine(post, roster, MemberSigns(roster, identities[name]))
        try:
            engine.introduce(["fit", {}, [], 1], 20.0, lambda _: None)
            engine.gather(None)
            return engine.bcast(name, root=1), engine.signs.facts
        except BaseException as error:
            post.announce_end(str(error), 2)
            raise

    with posts(roster, identities, sockets, timeout) as made:
        return at_once([partial(run, post) for post in made])


def test_members_of_a_mixed_study_meet_and_a_renewal_needs_nobody(mixed, below, tmp_path):
    roster, identities, sockets = mixed
    first = meet(*mixed)
    below.issue(tmp_path / "lab", "lab", HOST, key=rsa_key())
    sockets = _again(roster, sockets)
    second = meet(roster, identities, sockets)
    for found in (first, second):
        assert [one[0] for one in found] == ["lab"] * 3, found
        assert found[0][1] == found[1][1] == found[2][1]
    # What was signed is of this run alone.
    assert first[0][1][:-1] == second[0][1][:-1]
    assert first[0][1][-1] != second[0][1][-1]


def _again(roster, sockets):
    """Listen anew where the server did."""
    for one in sockets.values():
        one.close()
    return {"hub": socket.create_server(roster.members[0].address)}


def impostors(root, below, hosts, folder):
    """Yield whose place is taken, by what, and what members say."""
    other = partial(below.issue, folder)
    yield "lab", other("lab", "vpem.clinic.org"), "it is for vpem.clinic.org, not for vpem.lab.org"
    yield "lab", Authority("Hospital Root").issue(folder, "lab", HOST), "does not lead to"
    yield "hub", root.issue(folder, "hub", "hub.org"), "does not lead to CN=Server Hosting"
    yield "hub", hosts.issue(folder, "hub", "other.hub.org"), "it is for other.hub.org, not for hub"


def test_an_impostor_gets_no_link_by_whatever_authority(
    mixed, root, below, hosts, tmp_path, monkeypatch
):
    """Valid certificates of other names, and of other authorities for the right name."""
    roster, identities, sockets = mixed
    monkeypatch.setattr("vpem.engines.tls.mailbox.identity_error", lambda *_: "")
    monkeypatch.setattr("vpem.engines.tls.mailbox.LINGER", (0.2, 0.2))
    # All whom any of these authorities vouches for pass TLS; what they are is looked at then.
    for who, impostor, sentence in impostors(root, below, hosts, tmp_path / "evil"):
        said = []
        sockets = _again(roster, sockets)
        with posts(roster, identities | {who: impostor}, sockets, 1.5, tell=said.append) as made:
            hub, lab, _ = made
            hub.put(1, 7, b"to the lab")
            lab.put(0, 7, b"to the hub")
            found = [_heard(hub, 1), _heard(lab, 0)]
        assert not any(isinstance(one, bytes) for one in found), who
        assert sentence in " ".join(map(str, (*found, *said))) or "rejected" in str(found), found


def _heard(post, source):
    try:
        return bytes(post.receive(source, 7))
    except Exception as error:
        return error


def test_introductions_are_signed_by_the_certificate_of_the_member(mixed, below, tmp_path):
    """The first member, who passes them on, can neither change nor repeat them with its own key."""
    from vpem.network.messages import encode

    roster, identities, sockets = mixed
    sockets["hub"].close()
    signs = {name: MemberSigns(roster, one) for name, one in identities.items()}

    def own(one, *said):
        said = encode([*one.about, *said, one.nonce()])
        return said, one.vouch(said)

    every = {name: own(one, "fit") for name, one in signs.items()}
    for one in signs.values():
        one.introduced([*every.values()])
    assert len({tuple(one.facts) for one in signs.values()}) == 1
    for rank, one in enumerate(signs.values()):
        assert all(other.holds(rank, b"later", one.sign(b"later")) for other in signs.values())
        assert not signs["clinic"].holds((rank + 1) % 3, b"later", one.sign(b"later"))
    elsewhere = identities["lab"].certificate.parent
    other = below.issue(tmp_path / "evil", "lab", "vpem.clinic.org")
    stolen = below.issue(tmp_path / "stolen", "lab", HOST)
    shutil.copy(elsewhere / "lab.crt", stolen.certificate)  # with a key of its own
    late = below.issue(tmp_path / "late", "lab", HOST, begin=-9 * DAY, end=-DAY)
    changed = every["lab"][0].replace(b"fit", b"fir")
    for lab, sentence in (
        ((changed, every["lab"][1]), "has signed another command"),
        ((every["lab"][0], signs["hub"].vouch(every["lab"][0])), "has signed another command"),
        ((every["lab"][0], signs["lab"].sign(every["lab"][0])), "has signed another command"),
        ((every["lab"][0], b""), "has signed another command"),
        (every["hub"], "it is for hub.org, not for vpem.lab.org"),
        (own(MemberSigns(roster, other), "fit"), "it is for vpem.clinic.org"),
        (own(MemberSigns(roster, stolen), "fit"), "has signed another command"),
        (own(MemberSigns(roster, late), "fit"), "has expired on"),
    ):
        with pytest.raises(InputError, match=sentence):
            signs["clinic"].introduced([every["hub"], lab, every["clinic"]])
    for nonce in (b"", b"x" * 16, b"x" * 16 + encode(7), b"x" * 16 + encode([]),
                  b"x" * 16 + encode([b"", b""]), b"x" * 16 + encode(["a", 1])):  # fmt: skip
        said = encode([*signs["lab"].about, "fit", nonce])
        with pytest.raises(InputError):
            signs["clinic"].introduced(
                [every["hub"], (said, signs["lab"].vouch(said)), every["clinic"]]
            )


# ---- files and commands --------------------------------------------------------------------------


@pytest.fixture
def heart(tmp_path, below):
    """A study of a hub, in the folder of a lab that has a certificate of an authority."""
    studies = make_study(tmp_path)
    folder = tmp_path / "lab"
    folder.mkdir(mode=0o700)
    shutil.copy(studies["hub"].path, folder)
    below.issue(folder, "lab", HOST)
    return tmp_path


def test_a_member_joins_by_its_authority_and_leaves(heart, root, below, monkeypatch, capsys):
    hub, lab = heart / "hub", heart / "lab"
    (lab / "root.pem").write_bytes(root.pem)
    monkeypatch.chdir(lab)
    ask = "party", "request", "heart.toml", "--as", "lab", "--features", "a,b"
    assert "give that authority's with --authority FILE" in run(capsys, *ask).err
    shown = done(capsys, *ask, "--authority", "root.pem").out
    assert "certificates for   vpem.lab.org" in shown
    assert "by authority       CN=Hospital Root" in shown
    for words in ((), ("lab.crt",)):  # what is there, and not what others pin
        found = done(capsys, "party", "show", *words).out
        assert "issued by     CN=Hospital Issuing" in found
        assert "for           vpem.lab.org" in found
    words = done(capsys, "party", "show", "root.pem", "--json").json["certificates"][0]["words"]
    assert words[:30] in " ".join(shown.split())
    request = (lab / "lab.request").read_text()
    for old, new in (
        ('subject = "vpem.lab.org"', 'subject = "vpem.clinic.org"'),
        ('subject = "vpem.lab.org"', 'subject = "*.lab.org"'),
        ('features = ["a", "b"]', 'features = ["a", "c"]'),
        ('issued = "', 'issued = "AAAA'),
        ("issued = ", "ed25519 = "),
    ):
        assert old in request
        (hub / "lab.request").write_text(request.replace(old, new))
        monkeypatch.chdir(hub)
        assert run(capsys, "study", "approve", "lab.request", "--yes").code == 2, new
    shutil.copy(lab / "lab.request", hub)
    done(capsys, "study", "approve", "lab.request", "--yes")
    text = done(capsys, "study", "show", "heart.toml").out
    assert "lab      any of vpem.lab.org that this authority issues:" in text
    study = read_study("heart.toml")
    assert study.member("lab").certificate == root.der
    # A list that is to be looked at and is not there is not the same as none.
    (hub / "lab.crl").symlink_to(hub / "downloads.crl")
    member = read_study("heart.toml").member("lab")
    assert "cannot be read" in unlike(member, certificates_in((lab / "lab.crt").read_text()))
    (hub / "lab.crl").unlink()
    # What is said is of its certificate, and not of one from before it had an authority.
    shutil.copy("heart.toml", lab)
    for end in ("crt", "key"):
        shutil.copy(hub / f"hub.{end}", lab / f"lab.old.{end}")
    (lab / "lab.crl").write_bytes(below.revoke(below.last))
    found = run(capsys, "party", "check", lab / "heart.toml", "--as", "lab")
    assert "lab.crt is not the certificate of lab: its authority has revoked it" in found.out
    for file in lab.glob("lab.*"):
        if file.name in ("lab.crl", "lab.old.crt", "lab.old.key"):
            file.unlink()
    # Renewed, and asked again to change an address: neither a word of the authority.
    shutil.copy("heart.toml", lab)
    monkeypatch.chdir(lab)
    below.issue(lab, "lab", HOST, key=rsa_key())
    done(capsys, *ask, "--authority", "root.pem", "--address", "lab.org:443")
    assert "no one else needs to know" in run(capsys, "party", "renew", "heart.toml").err
    shutil.copy("lab.request", hub)
    monkeypatch.chdir(hub)
    assert "change what it said" in done(capsys, "study", "approve", "lab.request", "--yes").out
    done(capsys, "study", "revoke", "lab", "--study", "heart.toml")
    study = read_study("heart.toml")
    assert [one.name for one in study.roster.members] == ["hub"]
    assert not study.roster.revoked  # its authority may have issued others'


def test_no_request_has_the_name_of_another_member(heart, root, below, monkeypatch, capsys):
    """Whoever vouches for it: two members of one name would be a study that no one can read."""
    hub, other = heart / "hub", Authority("Another")
    ask = "party", "request", "heart.toml", "--authority", "root.pem", "--as"
    asked = [("lab", root, HOST), ("eve", other, HOST), ("two", root, "two.org", HOST)]
    for name, authority, *hosts in asked:
        folder = heart / name
        folder.mkdir(mode=0o700, exist_ok=True)
        monkeypatch.chdir(folder)
        shutil.copy(hub / "heart.toml", folder)
        (folder / "root.pem").write_bytes(authority.pem)
        authority.issue(folder, name, *hosts)
        done(capsys, *ask, name, "--subject", hosts[0])
        shutil.copy(f"{name}.request", hub)
    monkeypatch.chdir(hub)
    done(capsys, "study", "approve", "lab.request", "--yes")
    text = (hub / "heart.toml").read_text()
    for name in ("eve", "two"):
        found = run(capsys, "study", "approve", f"{name}.request", "--yes")
        assert f"it is for {name} and lab: each needs a certificate of its own" in found.err
        assert found.code == 2
        assert (hub / "heart.toml").read_text() == text
    # Who asks is told at once where its study has the other.
    monkeypatch.chdir(heart / "two")
    shutil.copy(hub / "heart.toml", heart / "two")
    assert "it is for two and lab" in run(capsys, *ask, "two", "--subject", "two.org").err


def test_what_cannot_be_is_refused_in_a_sentence(heart, root, below, monkeypatch, capsys):
    lab = heart / "lab"
    monkeypatch.chdir(lab)
    (lab / "root.pem").write_bytes(root.pem)
    (lab / "lab.csv").write_text("a,b")
    (lab / "roots.pem").write_bytes(root.pem + below.pem)
    (lab / "leaf.pem").write_bytes(below.last.public_bytes(Encoding.PEM))
    (lab / "other.pem").write_bytes(Authority("Another").pem)
    ask = "party", "request", "heart.toml", "--as", "lab", "--authority"
    certificate, key = (lab / "lab.crt").read_bytes(), (lab / "lab.key").read_bytes()

    def again(*names, **more):
        below.issue(lab, "lab", *names, **more)

    def fails(sentence, file="root.pem", *words):
        found = run(capsys, *ask, file, *words)
        assert found.code == 2, found
        assert sentence in found.err
        assert not (lab / "lab.request").exists()
        (lab / "lab.crt").write_bytes(certificate)
        (lab / "lab.key").write_bytes(key)
        (lab / "lab.key").chmod(0o600)

    fails("lab.crt is not the certificate of lab: it does not lead to CN=Another", "other.pem")
    fails("CN=hub is no authority: it does not say CA:TRUE", "heart.toml")
    fails("there is a private key in it", "lab.key")
    fails("certificates in PEM, at most 5", "lab.csv")
    fails("it must have one certificate, that of the authority, not 2", "roots.pem")
    fails("CN=vpem of lab is no authority", "leaf.pem")
    fails("it is for vpem.lab.org, not for clinic.org", "root.pem", "--subject", "clinic.org")
    fails("without *", "root.pem", "--subject", "*.lab.org")
    again(HOST, "lab.org")
    fails("lab.crt is for vpem.lab.org, lab.org: others know a member by one")
    again()
    fails("lab.crt is for no host")
    again(HOST, begin=-9 * DAY, end=-DAY)
    fails("or put another of its authority in its place (lab.crt)")
    again(HOST, begin=DAY)
    fails("is not valid before")
    (lab / "lab.crt").write_bytes(certificate + key)
    fails("there is a private key in it")
    (lab / "lab.crt").write_bytes(certificate * 4)
    fails("certificates in PEM, at most 5")
    (lab / "lab.key").chmod(0o640)
    fails("can be read or changed by others (mode 0640)")
    again(HOST)
    (lab / "lab.crt").write_bytes(certificate)
    fails("lab.key is not the key of lab.crt")
    again(HOST, passphrase=b"open")
    fails("from the environment variable VPEM_KEY_PASSPHRASE, which is not set")
    monkeypatch.setenv("VPEM_KEY_PASSPHRASE", "wrong")
    again(HOST, passphrase=b"open")
    fails("VPEM_KEY_PASSPHRASE, which does not open it")
    monkeypatch.setenv("VPEM_KEY_PASSPHRASE", "open")
    again(HOST, passphrase=b"open")
    done(capsys, *ask, "root.pem")
    monkeypatch.chdir(heart / "hub")
    words = "party", "request", "heart.toml", "--as", "hub", "--subject", "hub.org"
    assert "is for a certificate of an authority" in run(capsys, *words).err


def test_an_organiser_signs_by_a_key_of_its_own(heart, root, below, monkeypatch, capsys):
    monkeypatch.chdir(heart)
    below.issue(heart, "lab", HOST)
    found = run(capsys, "study", "init", "lungs", "--star", "127.0.0.1:4433", "-k", "2")
    assert found.code == 2
    assert "lab.crt" in found.err
    assert not os.path.exists("lungs.toml")
