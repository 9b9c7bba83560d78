"""Studies, keys and certificates as files: what is written is read, and nothing else."""

import hashlib
import os
import stat
import warnings
from dataclasses import replace

import pytest
from mnemonic import Mnemonic

from vpem.engines.tls.trust import (
    Member,
    Roster,
    fingerprint,
    fingerprint_words,
    validity,
    written_address,
)
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.studies import identities
from vpem.files.studies.identities import (
    certificate_of,
    identity_of,
    key_of,
    make_identity,
    read_identity,
    renew_identity,
    usable,
    write_study,
)
from vpem.files.studies.signed import (
    Signed,
    address_of,
    check_name,
    parse_certificate,
    pem_of,
    signed_text,
)
from vpem.files.studies.study import read_study, remember

from .study_support import folder_of, make_study
from .tables import each


@pytest.fixture
def heart(tmp_path):
    return make_study(tmp_path, "lab", "clinic")


# ---- keys ----------------------------------------------------------------------------------------


def test_a_key_is_its_owners_and_is_never_replaced(tmp_path):
    made = make_identity(folder_of(tmp_path, "lab"), "lab")
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    before = made.key.read_bytes(), made.certificate.read_bytes()
    with pytest.raises(FileError, match=r"lab.key exists; no key is replaced"):
        make_identity(made.key.parent, "lab")
    assert (made.key.read_bytes(), made.certificate.read_bytes()) == before
    assert sorted(os.listdir(made.key.parent)) == ["lab.crt", "lab.key"]
    begins, ends = validity(certificate_of(made))
    assert (ends - begins).days == 365


def test_a_key_that_others_can_read_is_none(tmp_path):
    made = make_identity(folder_of(tmp_path, "lab"), "lab")
    made.key.chmod(0o640)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identities, "PRIVATE_FILES", False)
        with pytest.raises(InputError, match="run this on Linux or macOS"):
            key_of(made)
        with pytest.raises(InputError, match="run this on Linux or macOS"):
            make_identity(tmp_path, "other")
    with pytest.raises(FileError, match=r"lab.key can be read or changed by others \(mode 0640\)"):
        key_of(made)


def test_who_may_exchange_keys_is_said(tmp_path):
    folder = folder_of(tmp_path, "lab")
    folder.chmod(0o777)
    with pytest.warns(VpemWarning, match="others may write in the folder"):
        make_identity(folder, "lab")


def test_keys_and_certificates_belong_together(tmp_path):
    lab, other = (make_identity(folder_of(tmp_path, at), "lab") for at in ("one", "two"))
    lab.key.write_bytes(other.key.read_bytes())
    with pytest.raises(FileError, match=r"lab.key is not the key of .*lab.crt"):
        key_of(lab)


def test_certificates_end(tmp_path):
    with pytest.warns(VpemWarning, match=r"is valid until .* only; make another by 'vpem party"):
        usable(make_identity(folder_of(tmp_path, "lab"), "lab", days=29))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        usable(make_identity(folder_of(tmp_path, "hub"), "hub", days=31))


@each("name", ["", "a b", "../lab", "-x", "x-", "lab.old", "größe", "x" * 41, "a\n"])
def test_names_are_those_of_files(name):
    with pytest.raises(InputError, match="a name must be 1 to 40 letters, digits, - or _"):
        check_name(name)


@each("text", ["hub.org:443", "[::1]:1", "192.0.2.7:65535", "a_b-c.x:8443"])
def test_addresses_are_read_and_written(text):
    assert written_address(address_of(text)) == text


@each("text", ["hub", ":443", "hub:", "hub:0", "hub:65536", "::1:443", "h b:1", "[hub]:1", "a..b:1",
               "hub:٣", "x" * 300 + ":1"])  # fmt: skip
def test_what_is_no_address(text):
    with pytest.raises(InputError, match="an address must be a host and a port"):
        address_of(text)


# ---- studies -------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    made = make_study(
        tmp_path, "lab", "clinic", address=("2001:db8::7", 443), result="shards",
        options={"fit": {"components": "2-6", "tol": 1e-7, "quiet": False}, "kmeans": {"x": ["a"]}},
        runs=("vpem fit -k 2-6",), shows=("a \"b\" \\",),
    )["lab"]  # fmt: skip
    hub, lab, clinic = made.roster.members
    relay = Member("lab", lab.certificate, ("relay.org", 443), holds=False)
    members = (
        replace(hub, listen=("0.0.0.0", 8443)),
        replace(lab, features=tuple(f"größe {n}" for n in range(50))),
        replace(clinic, features=('"', "\\")),
    )
    revoked = {"ab" * 32: "2026-01-31T12:00:00Z"}
    made = replace(made, roster=replace(made.roster, members=members, relay=relay, revoked=revoked))
    write_study(made, read_identity(tmp_path / "hub", "hub"))
    assert read_study(made.path) == made


def test_a_changed_study_is_void(heart):
    path = heart["lab"].path
    good = path.read_text()
    read_study(path)
    path.write_bytes(good.replace("\n", "\r\n").encode())  # as mail may do
    read_study(path)
    for old, new in (("hops = 0", "hops = 1"), ("# A study", "# a study"), ("\n\n[sig", "\n[sig")):
        assert old in good
        path.write_text(good.replace(old, new))
        with pytest.raises(FileError, match="has been changed since hub signed it"):
            read_study(path)


def test_another_organiser_is_found_out(heart, tmp_path):
    study = heart["lab"]
    with pytest.raises(InputError, match="heart is signed by hub, not by lab"):
        write_study(study, identity_of(study, "lab"))
    remember(study)
    thief = make_study(folder_of(tmp_path, "else"), "lab")["hub"]
    study.path.write_bytes(thief.path.read_bytes())
    with pytest.raises(FileError, match="is another study than the heart that this folder knows"):
        read_study(study.path)
    same = replace(thief, path=study.path, id=study.id,
                   roster=replace(thief.roster, study=study.id))  # fmt: skip
    write_study(same, identity_of(thief, "hub"))
    with pytest.raises(FileError, match="is signed by another hub than before"):
        read_study(study.path)


def test_older_editions_are_refused(heart):
    study = heart["hub"]
    hub = identity_of(study, "hub")
    first = study.path.read_bytes()
    later = replace(study, edition=2, roster=replace(study.roster, edition=2))
    write_study(later, hub)
    identity_of(read_study(study.path), "hub")
    write_study(replace(later, result="shards"), hub)
    with pytest.raises(FileError, match="is another edition 2 of heart than the one"):
        read_study(study.path)
    study.path.write_bytes(first)
    with pytest.raises(FileError, match="is edition 1 of heart, older than the edition 2"):
        read_study(study.path)


def test_a_study_is_called_as_it_is(heart):
    path = heart["lab"].path.rename(heart["lab"].folder / "heart (1).toml")
    with pytest.raises(FileError, match=r"is the study heart; call its file heart\.toml"):
        read_study(path)


def test_members_have_the_certificates_of_the_study(heart):
    study = heart["lab"]
    assert identity_of(study, "lab").name == "lab"
    with pytest.raises(InputError, match=r"'lap' is no member of heart, .* \(did you mean 'lab'"):
        identity_of(study, "lap")
    with pytest.raises(FileError, match=r"clinic.key does not exist; there is lab; a key"):
        identity_of(study, "clinic")
    for file in ("lab.key", "lab.crt"):
        (study.folder / file).unlink()
    make_identity(study.folder, "lab")
    with pytest.raises(InputError, match=r"is not the one that .*heart\.toml has of lab; ask hub"):
        identity_of(study, "lab")


def test_a_renewed_member_takes_what_the_study_knows(heart):
    study = heart["lab"]
    before = certificate_of(identity_of(study, "lab"))
    renewed = renew_identity(study.folder, "lab")
    assert certificate_of(renewed) != before
    assert certificate_of(identity_of(study, "lab")) == before
    with pytest.raises(FileError, match=r"lab.old.key is still there from the last renewal"):
        renew_identity(study.folder, "lab")


def wrong_studies():
    """What is wrong, as changes of the text of a study (signed all the same), and the sentence.

    That no field can be of another type, gone or unknown, `tests/test_saved.py` tells.
    """
    return [
        ("edition = 1", "edition = 0", "edition must be an integer from 1"),
        ("timeout = 600.0", "timeout = -1", "timeout must be a number of seconds above 0"),
        ("timeout = 600.0", "timeout = nan", "timeout must be a number of seconds above 0"),
        ('result = "all"', 'result = "al"', "did you mean 'all'"),
        ('if-lost = "wait"', 'if-lost = "go"', "if-lost must be one of wait, without, got 'go'"),
        ('signed = "2026-01', 'signed = "2026-13', "a time must be written as"),
        ('id = "', 'id = "x', "must be 32 hexadecimal digits"),
        ("format = 1", "format = 2", "whose studies are of another format"),
        ('organiser = "hub"', 'organiser = "lap"', "the organiser lap is none of its members"),
        ("[fit]", "[Fit]", "'Fit' is the table of no command"),
        ("hops = 0", "hops = {x = 1}", "hops must be a number, a text"),
        ("hops = 0", '"ho ps" = 0', "has no option 'ho ps'"),
        ('address = "127', 'address = "1 27', "address: an address must be"),
        ("data = false", 'data = false\nfeatures = ["\\u0007"]', "features must be texts"),
        ('name = "lab"', 'name = "hub"', "is that of lab, not of hub"),
        ('name = "lab"', 'name = "../x"', "a name must be"),
        ("-----BEGIN", "-----BEGI", "a certificate must be one in PEM"),
        ("MII", "MIX", "no certificate that can be read"),
        ("[[member]]", "[[members]]", "must have 1 to 200 tables"),
    ]


@each("change", wrong_studies())
def test_what_a_study_must_be(heart, change):
    old, new, sentence = change
    path = heart["hub"].path
    body = Signed(heart["lab"].path, "study").body
    assert old in body
    key = key_of(read_identity(heart["hub"].folder, "hub"))
    path.write_text(signed_text("study", body.replace(old, new), {"ed25519": key}))
    with pytest.raises((FileError, InputError), match=sentence):
        read_study(path)


def test_a_text_signed_as_something_else_is_no_study(heart):
    path = heart["hub"].path
    key = key_of(read_identity(heart["hub"].folder, "hub"))
    path.write_text(signed_text("request", Signed(path, "study").body, {"ed25519": key}))
    with pytest.raises(FileError, match="not signed by hub"):
        read_study(path)


def test_members_are_different_people(heart):
    study, hub = heart["hub"], identity_of(heart["hub"], "hub")
    one = study.roster.members[1]
    for other, sentence in (
        (Member("LAB", one.certificate), "is that of lab, not of LAB"),
        (one, "two members are called lab"),
    ):
        members = (*study.roster.members, other)
        write_study(replace(study, roster=replace(study.roster, members=members)), hub)
        with pytest.raises(InputError, match=sentence):
            read_study(study.path)


def test_who_is_revoked_is_no_member(heart):
    study = heart["hub"]
    revoked = {fingerprint(study.member("lab").certificate): "2026-01-31T12:00:00Z"}
    roster = Roster(study.id, "heart", 1, study.roster.members, None, revoked)
    write_study(replace(study, roster=roster), identity_of(study, "hub"))
    with pytest.raises(InputError, match="the certificate of lab is revoked"):
        read_study(study.path)


def test_large_files_are_not_read(tmp_path):
    path = tmp_path / "heart.toml"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileError, match="more than the 1048576 that are read at once"):
        read_study(path)


@each(
    ("kind", "authority", "wrong"),
    [
        ("ec", False, "a key of another kind than Ed25519"),
        ("ed25519", True, "the certificate may sign others"),
        ("ed25519", None, "the certificate may sign others"),
    ],
)
def test_other_kinds_of_certificates_are_refused(kind, authority, wrong):
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    if kind == "ec":
        key, digest = ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
    else:
        key, digest = ed25519.Ed25519PrivateKey.generate(), None
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    )  # fmt: skip
    if authority is not None:
        made = made.add_extension(x509.BasicConstraints(authority, None), critical=True)
    with pytest.raises(InputError, match=wrong):
        parse_certificate(pem_of(made.sign(key, digest).public_bytes(Encoding.DER)), "lab")


def test_words_are_half_of_the_fingerprint():
    words = fingerprint_words(b"a certificate")
    assert len(words.split()) == 12
    found = Mnemonic("english").to_entropy(words)
    assert bytes(found) == hashlib.sha256(b"a certificate").digest()[:16]
    assert fingerprint(b"a certificate").startswith(bytes(found).hex())
    assert fingerprint_words(b"another") != words


def test_members_have_ranks():
    roster = Roster("0" * 32, "heart", 1, (Member("hub", b"h"), Member("lab", b"l")))
    assert [roster.rank_of(name) for name in ("hub", "lab", "clinic")] == [0, 1, None]
