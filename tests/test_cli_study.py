"""The walk of people who agree on a study, by the commands of 'vpem party' and 'vpem study'."""

import io
import re
import shutil

import numpy as np
import pytest

from vpem.engines.tls.trust import fingerprint_words
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.studies.identities import read_request
from vpem.files.studies.signed import Signed, signed_text
from vpem.files.studies.study import read_study, remember
from vpem.terms.families.kinds import Kinds

from .cli_support import done, run
from .forks import interpreter
from .pages_support import inside
from .study_support import folder_of
from .tables import each


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


def test_the_walk(capsys, people, hub):
    out = begun(capsys, "--hops", 0, "-k", 2, "--align", "ids").out
    assert "vpem fit --align ids --topology star --components 2 --hops 0" in out
    assert "No value of a feature leaves its party (hops 0)." in out
    assert "The first party that has data gets every id of every party" in out
    lab = people("lab", "hub/heart.toml")
    said = done(capsys, "party", "init", "--name", "lab", "--json").json
    (lab / "lab.csv").write_text("patient,iron,sugar\na,1,2\nb,3,4\n")
    out = done(capsys, "party", "request", "heart.toml", "lab.csv", "--id-column", "patient").out
    assert " ".join(said["words"].split()[:6]) in out
    people("hub", "lab/lab.request")
    told = done(capsys, "study", "approve", "lab.request", "--fingerprint", said["words"].upper())
    assert "2 features: iron, sugar" in told.out
    assert "wrote heart.toml, edition 2; send it to lab" in told.err
    found = done(capsys, "study", "show", "heart.toml", "--json").json
    assert [(one["name"], one["data"]) for one in found["members"]] == [
        ("hub", False),
        ("lab", True),
    ]
    assert found["members"][1]["features"] == ["iron", "sugar"]
    assert found["members"][1]["fingerprint"] == said["fingerprint"]
    assert found["options"] == {
        "fit": {"align": "ids", "topology": "star", "components": "2", "hops": 0}
    }
    people("lab", "hub/heart.toml")
    assert "lab" in done(capsys, "study", "show", "heart.toml").out


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


def test_a_certificate_is_renewed(capsys, people, hub):
    begun(capsys)
    joined(capsys, people, "lab", "--features", "iron")
    people("lab", "hub/heart.toml")
    first = read_study("heart.toml").member("lab").certificate
    done(capsys, "party", "renew", "heart.toml")
    people("hub")
    assert (
        "wants to      have a new certificate"
        in done(capsys, "study", "approve", "../lab/lab.request", "--yes").out
    )
    found = read_study("heart.toml")
    assert found.member("lab").certificate != first
    assert found.member("lab").features == ("iron",)
    assert len(found.roster.revoked) == 1


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
