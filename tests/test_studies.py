"""Studies, keys and certificates: as files, and as people agree on them by commands."""

import hashlib
import io
import os
import re
import shutil
import stat
import warnings
from dataclasses import replace

import numpy as np
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
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.studies import identities
from vpem.files.studies.identities import (
    certificate_of,
    identity_of,
    key_of,
    make_identity,
    read_identity,
    read_request,
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
from vpem.terms.families.kinds import Kinds

from .cli_support import done, run
from .forks import interpreter
from .pages_support import inside
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


# ---- the walk of people who agree, by the commands -----------------------------------------------


@pytest.fixture
def people(tmp_path, monkeypatch):
    """Go to somebody's folder, with a file that somebody has sent."""

    def go(name, *sent):
        for file in sent:
            shutil.copy(tmp_path / file, folder_of(tmp_path, name))
        monkeypatch.chdir(folder_of(tmp_path, name))
        return tmp_path / name

    return go


@pytest.fixture
def hub(capsys, people):
    """The organiser's folder."""
    folder = people("hub")
    done(capsys, "party", "init", "--name", "hub")
    return folder


def begun(capsys, *words):
    """A study whose organiser is the member of this folder."""
    return done(capsys, "study", "init", "heart", "--star", "hub.org:443", *words)


def joined(capsys, people, name, *words):
    """Let somebody take part in the study of the hub."""
    people(name, "hub/heart.toml")
    done(capsys, "party", "init", "--name", name)
    done(capsys, "party", "request", "heart.toml", *words)
    people("hub", f"{name}/{name}.request")
    return done(capsys, "study", "approve", f"{name}.request", "--yes")


def test_the_walk_in_silence(capsys, people, tmp_path):
    folder_of(tmp_path, "both")
    people("both")
    for words in (
        "party init --name hub", "party init --name lab", "study init s --star h:1 --as hub",
        "party request s.toml --as lab", "study approve lab.request --yes",
        "study change s.toml -k 3", "party renew s.toml --as lab", "study revoke lab",
    ):  # fmt: skip
        result = done(capsys, *words.split(), "-q")
        assert (result.out, result.err) == ("", ""), words


def test_all_in_one_folder(capsys, hub):
    begun(capsys, "--data", "-k", 2)
    done(capsys, "party", "request", "heart.toml", "--features", "iron, sugar")
    done(capsys, "study", "approve", "hub.request", "--yes")
    (member,) = done(capsys, "study", "show", "heart.toml", "--json").json["members"]
    assert (member["features"], member["address"]) == (["iron", "sugar"], "hub.org:443")


OWN = {
    "lab.csv": "patient,iron,sugar\na,1,2\nb,3,4\nc,5,7\n",
    "bare.csv": "iron,sugar\n1,2\n3,4\n5,7\n",
    "gaps.csv": "patient,iron,sugar\na,1,2\nb,,4\nc,5,7\n",
    "poor.csv": "iron,sugar\n1,2\n,4\n5,7\n",
    "twice.csv": "patient,iron,sugar\na,1,2\nb,3,4\na,5,7\n",
    "hollow.csv": "patient,iron,sugar,zinc\na,,2,1\nb,,4,1\nc,,7,1\n",
    "single.csv": "patient,iron,sugar\na,1,2\n",
    "nameless.csv": "patient,iron,sugar\na,1,2\n,,4\nc,5,7\n",
    "long.csv": "row,column,value\nr,c,1\nr,d,2\ns,c,3\n",
    "long-twice.csv": "row,column,value\nr,c,1\nr,c,2\ns,c,3\n",
}


@each(
    ("options", "words", "said"),
    [
        ("--align ids", "lab.csv", None),
        ("--align none", "bare.csv", None),
        ("", "bare.csv", None),
        ("--split rows", "bare.csv", None),
        ("--align ids --missing marginalize", "gaps.csv", None),
        ("--command impute", "long.csv", None),
        ("--command impute --align ids", "bare.csv", "'lab' has no ids, by which rows could be al"),
        ("--align ids --missing-parties -k 2-3", "single.csv", None),
        ("--align ids -k 2-3 --scale standard", "single.csv", "party 'lab' has 1 row, and 2 compon"
         "ents need at least as many rows that all parties share"),
        ("--command kmeans -k 4 --split features --align ids", "lab.csv", "has 3 rows, and 4 clus"),
        ("--align ids", "twice.csv", "rows 0 and 2 of party 'lab' have the same id"),
        ("--align ids", "nameless.csv", "no id in column 'patient'; fill .*; also, .* is NaN"),
        ("--align ids", "nameless.csv --id-column patient", "row 1 .counted from 0. has no id in "
         "column 'patient'; fill it in, or remove the row; also, .* is NaN"),
        ("--command fit --command predict --align psi", "lab.csv", None),
        ("--align ids", "bare.csv", "'lab' has no ids, by which rows could be aligned; name their "
         "column with --id-column, or store them in its HDF5 file .ids.$"),
        ("--align ids", "lab.csv --features patient,iron --id-column patient",
         "'patient' cannot be a feature: it holds ids"),
        ("--align ids", "gaps.csv", "is NaN; fill in or remove such rows first, or integrate them "
         "out with --missing marginalize; only hub can change the options of heart: vpem study "
         "change heart.toml --missing marginalize"),
        ("--align ids", "gaps.h5", "gaps.h5: row 1, feature 0 .'iron'. is NaN"),
        ("--align ids", "poor.csv", "has no ids, .*; also, party 'lab': poor.csv: row 1, feat"),
        ("", "lab.csv", "party 'lab' has ids, but whether to match rows by them was not specified;"
         " align them by adding --align ids .*only hub can change the options of heart: vpem study "
         "change heart.toml --align ids"),
        ("--command kmeans -k 2", "counts.h5", "feature 'iron' is kept as poisson, which 'vpem f"),
        ("--command fit --command kmeans --split features --align ids", "counts.h5", "is kept as"),
        ("--command impute", "long-twice.csv", "twice"),
        ("--align ids", "all.toml", "all.toml names 2 parties, but lab is one"),
    ],
)  # fmt: skip
def test_a_request_is_refused_where_the_runs_would_refuse(
    capsys, people, hub, tmp_path, options, words, said
):
    (hub / "heart.toml").unlink(missing_ok=True)
    (hub / "heart.known").unlink(missing_ok=True)
    people("hub")
    begun(capsys, "--star", "127.0.0.1:9", *options.split())
    lab = people("lab", "hub/heart.toml")
    (lab / "heart.known").unlink(missing_ok=True)
    (lab / "lab.request").unlink(missing_ok=True)
    if not (lab / "lab.key").exists():
        done(capsys, "party", "init", "--name", "lab")
    for name, text in OWN.items():
        (lab / name).write_text(text)
    (lab / "all.toml").write_text("[[party]]\nfile='lab.csv'\n[[party]]\nfile='bare.csv'\n")
    X, ids = np.array([[1.0, 2.0], [np.nan, 3.0], [4.0, 5.0]]), np.array(["a", "b", "c"])
    write_dataset("gaps.h5", Dataset(X, ("iron", "sugar"), ids=ids), force=True)
    kinds = Kinds(("poisson", "gaussian"), (0, 0), {})
    counts = Dataset(np.abs(np.nan_to_num(X)), ("iron", "sugar"), ids=ids, kinds=kinds)
    write_dataset("counts.h5", counts, force=True)
    found = run(capsys, "party", "request", "heart.toml", *words.split())
    if said is None:
        assert (found.code, (lab / "lab.request").exists()) == (0, True), found.err
    else:
        assert (found.code, (lab / "lab.request").exists()) == (2, False)
        assert re.search(said, found.err.splitlines()[-1])


def test_a_request_names_what_the_fit_takes(capsys, people, hub):
    """Not what is left out of it, though a command that uses the model would keep it."""
    begun(capsys, "--command", "fit", "--command", "predict", "--align", "ids")
    lab = people("lab", "hub/heart.toml")
    done(capsys, "party", "init", "--name", "lab")
    (lab / "hollow.csv").write_text(OWN["hollow.csv"])
    found = done(capsys, "party", "request", "heart.toml", "hollow.csv")
    assert re.search(r"left out: iron \(no values\), zinc \(constant\)", found.err)
    assert re.search(r"brings +1 feature: sugar\n", found.out)


def test_names_that_several_parties_bring_need_a_word(capsys, people, hub):
    begun(capsys)
    joined(capsys, people, "lab", "--features", "iron,sugar")
    clinic = people("clinic", "hub/heart.toml")
    done(capsys, "party", "init", "--name", "clinic")
    (clinic / "c.csv").write_text("iron,age\n1,2\n3,4\n")
    said = run(capsys, "party", "request", "heart.toml", "c.csv").sentence
    assert said.startswith("parties 'clinic' and 'lab' both have a column 'iron', and no ids say")
    assert said.endswith("only hub can change the options of heart: vpem study change heart.toml "
                         "--align ids")  # fmt: skip
    done(capsys, "party", "request", "heart.toml", "c.csv", "--drop", "iron")


def test_nothing_is_signed_without_a_yes(capsys, people, hub, monkeypatch):
    begun(capsys)
    before = (hub / "heart.toml").read_bytes()
    people("lab", "hub/heart.toml")
    done(capsys, "party", "init", "--name", "lab")
    done(capsys, "party", "request", "heart.toml")
    people("hub", "lab/lab.request")
    other = fingerprint_words(b"another")
    for words, said in (
        ((), "nothing was signed: there is no terminal for the question"),
        (("--fingerprint", other), "lab.request has another fingerprint than the one given"),
    ):
        result = run(capsys, "study", "approve", "lab.request", *words)
        assert result.code == 2
        assert said in result.err
    terminal = io.StringIO("n\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert "nothing was signed" in run(capsys, "study", "approve", "lab.request").err
    assert (hub / "heart.toml").read_bytes() == before


def test_who_takes_a_name_is_refused(capsys, people, hub, tmp_path):
    begun(capsys)
    joined(capsys, people, "lab")
    people("thief", "hub/heart.toml")
    done(capsys, "party", "init", "--name", "LAB")
    done(capsys, "party", "request", "heart.toml")
    people("hub", "thief/LAB.request")
    said = run(capsys, "study", "approve", "LAB.request", "--yes").sentence
    assert said.startswith("heart has a member lab with another certificate, whose key has not")


def test_an_organiser_is_renewed(capsys, people, hub, tmp_path):
    begun(capsys)
    joined(capsys, people, "lab")
    people("lab", "hub/heart.toml")
    remember(read_study("heart.toml"))
    people("hub")
    done(capsys, "party", "renew", "heart.toml")
    done(capsys, "study", "approve", "hub.request", "--yes")
    people("lab", "hub/heart.toml")
    found = read_study("heart.toml")  # the folder knows the first certificate only
    assert (found.edition, len(found.former)) == (3, 1)
    # Without the word of the first certificate the second is that of somebody else.
    text = Signed(tmp_path / "hub" / "heart.toml", "study")
    body = text.body.partition("[[former]]")[0]
    from vpem.files.studies.identities import key_of, read_identity

    key = key_of(read_identity(tmp_path / "hub", "hub"))
    (tmp_path / "lab" / "heart.toml").write_text(signed_text("study", body, {"ed25519": key}))
    said = run(capsys, "study", "show", "heart.toml").sentence
    assert said.startswith("heart.toml is signed by another hub than before; ask there")


def test_who_is_revoked_does_not_come_back(capsys, people, hub):
    begun(capsys)
    joined(capsys, people, "lab")
    done(capsys, "study", "revoke", "lab")
    assert [one.name for one in read_study("heart.toml").roster.members] == ["hub"]
    said = run(capsys, "study", "approve", "lab.request", "--yes").sentence
    assert said.startswith("the certificate of lab was revoked on ")


def test_a_changed_request_is_refused(capsys, people, hub):
    begun(capsys)
    people("lab", "hub/heart.toml")
    done(capsys, "party", "init", "--name", "lab")
    done(capsys, "party", "request", "heart.toml")
    path = people("hub", "lab/lab.request") / "lab.request"
    good = path.read_text()
    assert read_request(path).member.name == "lab"
    for old, new, said in (
        ("data = true", "data = false", "has been changed since lab signed it"),
        ('study = "heart"', 'study = "lungs"', "has been changed since lab signed it"),
        ("data = true", "data = true\nmore = 1", "has an unknown key 'more'"),
        ("[signature]", "[signatur]", "it has no table [signature] at its end"),
        ('ed25519 = "', 'ed25519 = "x', "it must be 64 bytes in base 64"),
    ):
        assert old in good
        path.write_text(good.replace(old, new))
        assert said in run(capsys, "study", "approve", "lab.request", "--yes").sentence
    (hub / "heart.toml").unlink()
    (hub / "heart.known").unlink()
    begun(capsys)
    path.write_text(good)
    said = run(capsys, "study", "approve", "lab.request", "--yes").sentence
    assert said == "lab.request is for another heart, not for heart.toml"


def test_options_go_to_the_commands_that_have_them(capsys, hub):
    begun(capsys, "--command", "fit", "--command", "kmeans", "-k", 3, "--hops", 1, "--tol=1e-5",
          "--no-every-weight", "--clusters", 4, "--split", "features")  # fmt: skip
    assert read_study("heart.toml").options == {
        "fit": {
            "split": "features", "topology": "star", "components": "3", "every-weight": False,
            "tol": 1e-5, "hops": 1,
        },
        "kmeans": {"split": "features", "topology": "star", "clusters": 4, "hops": 1},
    }  # fmt: skip


def test_what_is_run_is_changed(capsys, hub):
    begun(capsys, "--hops", 0, "-k", 2)
    out = done(capsys, "study", "change", "heart.toml", "--align", "ids", "-k", "2-6").out
    assert "vpem fit --align ids --topology star --components 2-6 --hops 0" in out
    assert "The first party that has data gets every id of every party" in out
    out = done(capsys, "study", "change", "heart.toml", "--if-lost", "without").out
    assert "if lost     the others go on" in out
    assert "A member that does not answer for 600 s is left out" in out
    told = done(capsys, "study", "change", "heart.toml", "--command", "kmeans", "-k", 3)
    assert "wrote heart.toml, edition 4" in told.err
    assert read_study("heart.toml").if_lost == "without"
    assert read_study("heart.toml").options == {
        "fit": {"topology": "star", "hops": 0, "align": "ids", "components": "2-6"},
        "kmeans": {"topology": "star", "clusters": 3},
    }
    said = run(capsys, "study", "change", "heart.toml", "--command", "fit", "--hops", "1").sentence
    assert "--if-lost without is not possible with --hops above 0" in said


def test_a_relay_is_pinned(capsys, hub, people):
    people("relay")
    done(capsys, "party", "init", "--name", "relay")
    people("hub", "relay/relay.crt")
    done(capsys, "study", "init", "heart", "--topology", "cycle", "--relay", "[::1]:443",
         "--relay-certificate", "relay.crt", "--sum", "tree", "--result", "shards")  # fmt: skip
    found = read_study("heart.toml")
    assert found.roster.relay.address == ("::1", 443)
    assert found.roster.members[0].holds
    assert found.shows[1].startswith("The relay relay passes sealed messages on: it learns who")
    assert any("the party above it in the spanning tree" in line for line in found.shows)
    assert found.shows[-1].startswith("In the end each party has the parameters of its own")


def test_the_demonstration(capsys, tmp_path, monkeypatch):
    """Commands of one member alone are run in this process, the fit of all in forked ones."""

    def alone(play, who, command, *words):
        play.show(who, "vpem", *command.split(), *words)
        ended = inside(["vpem", *command.split(), *words], play.home / who)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    home = tmp_path / "try"
    monkeypatch.setattr("vpem_cli.commands.doctor.Play.run", alone)
    monkeypatch.setattr("vpem_cli.commands.doctor.sys.executable", interpreter())
    shown = inside(["vpem", "study", "demo", "--keep", str(home)], tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "hub$ vpem fit --study heart.toml --as hub\n" in shown.stdout
    tables = {}
    for who in ("clinic", "lab", "imaging"):
        lines = (home / who / f"{who}-clusters.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in lines[1:]] == [
            line.split(",")[0] for line in (home / who / f"{who}.csv").read_text().splitlines()[1:]
        ]
        tables[who] = dict(line.split(",", 1) for line in lines[1:])
        assert f"{who}$ head -4 {who}-clusters.csv\n{lines[0]}\n{lines[1]}\n" in shown.stdout
    common = set.intersection(*map(set, tables.values()))
    assert len(common) == 514
    assert all(len({tables[who][one] for who in tables}) == 1 for one in common)
    said = run(capsys, "study", "demo", "--keep", home).sentence
    assert said.endswith("cannot be made: File exists; give a new folder")
