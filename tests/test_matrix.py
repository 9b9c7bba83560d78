"""What a study needs of firewalls (`vpem study show --matrix`): its bytes are those of a run."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import studies
from vpem.engines.tls.trust import Member
from vpem.files.studies.identities import write_study
from vpem_cli.study.matrix import ways_between

from .cli_support import done, overlapping, run
from .study_support import make_study
from .tls_support import a_study as a_roster
from .tls_support import posts

PARTIES = "lab", "clinic", "imaging"
N = 90


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two features of each party, and all features of thirty rows of each."""
    folder = tmp_path_factory.mktemp("tables")
    X = overlapping(N)[0]
    for place, name in enumerate(PARTIES):
        for kind, some in (
            ("features", X[:, 2 * place : 2 * place + 2]), ("rows", X[30 * place : 30 * place + 30])
        ):  # fmt: skip
            heads = [f"{'abc'[place]}{j}" if kind == "features" else f"x{j}"
                     for j in range(some.shape[1])]  # fmt: skip
            np.savetxt(
                folder / f"{name}-{kind}.csv", some, delimiter=",", header=",".join(heads),
                comments="",
            )  # fmt: skip
    return folder


def study_of(folder, options, *, server="hub", addresses=None, relay=None, kind="features"):
    """A study of a command, whose parties have named their features."""
    names = ((server,) if server else ()) + PARTIES
    first = names[0]
    addresses = addresses or {first: ("hub.org", 443), **dict.fromkeys(names[1:])}
    command = options.pop("command", "fit")
    made, identities = studies.make_study(
        folder, addresses, {command: options}, server=server, relay=relay
    )
    named = {name: tuple(f"{'abc'[place]}{j}" for j in range(2)) if kind == "features" else
             tuple(f"x{j}" for j in range(6)) for place, name in enumerate(PARTIES)}  # fmt: skip
    study = made[first]
    members = [replace(one, features=named.get(one.name, ())) for one in study.roster.members]
    study = replace(study, roster=replace(study.roster, members=tuple(members)))
    write_study(study, identities[first])
    return study.path


RUNS = {
    "star": ["--secure-sum", "--compress float32", "--batch-size 40", "--dtype float32",
             "--factors 1 --reg-covar 0.01"],
    "path": ["--rounds 12", "--sum tree", "--sum tree --secure-sum", "--hops 1 --sum tree"],
    "cycle": ["--rounds 9 --compress natural:12bits"],
    "star --split rows": [""],
    "complete --split rows": ["--sum tree"],
}  # fmt: skip


ALL = "--init-rows 3,40 --components 2 --max-iter 3 --tol 1e-15"


def given(words):
    """Options of a study, of the words of a command."""
    table, pairs = {}, words.replace("--", "\n--").split("\n")[1:]
    for pair in pairs:
        name, _, value = pair.strip().removeprefix("--").partition(" ")
        table[name] = value or True
    return table


def test_bytes_are_those_of_a_run(tables, tmp_path, monkeypatch, capsys):
    """Over each link, of the start at given rows, iterations, the last E-step and labels."""
    monkeypatch.setattr("vpem.fits.plan.SMALL", 0)
    for number, (where, words) in enumerate(
        (where, words) for where, several in RUNS.items() for words in several
    ):
        topology, _, split = where.partition(" ")
        kind, star = "rows" if split else "features", topology == "star"
        options = f"--topology {where} {ALL} {words}"
        folder = tmp_path / str(number)
        folder.mkdir()
        doors = {name: (f"{name}.org", 443) for name in PARTIES}
        file = study_of(
            folder, given(options), server="hub" if star else None, kind=kind,
            addresses=None if star else doors,
        )  # fmt: skip
        page = done(capsys, "study", "show", file, "--matrix", "--samples", N, "--json").json
        files = [tables / f"{name}-{kind}.csv" for name in PARTIES]
        more = "--labels", folder / "labels.csv", "--json"
        sent = done(capsys, "fit", *files, "--parties", *options.split(), *more).json
        ledger = sent["communication"]
        assert sent["n_iter"] == page["total"]["iterations"] == 3
        counts = zip(*ledger["by_link"]["bytes"].values(), strict=True)
        ours = [one["bytes_in_all"] for one in page["connections"]]
        if page["total"]["is_expected"]:
            assert "compress" in words
            continue
        assert [one for one in ours if one is not None] == [*map(sum, counts)], options
        assert page["total"]["in_all"] == ledger["bytes"]


def test_who_dials_is_who_opens_links(tmp_path):
    """Whoever has an address, and with a relay or the server of a star in the place of one."""
    names = ("hub", "lab", "clinic")
    for listening in ((), ("hub",), ("lab",), ("hub", "clinic"), ("lab", "clinic"), names):
        roster, identities, sockets = a_roster(
            tmp_path / "-".join(("x", *listening)), names, listening
        )
        if not roster.members[0].address:
            relay = Member("relay", roster.members[0].certificate, ("relay.org", 443), False)
            roster = replace(roster, relay=relay)
        with posts(roster, identities, sockets) as made:
            for place, one in enumerate(roster.members):
                for other in range(place + 1, 3):
                    pair = place, other
                    opens = [roster.members[a].name for a, b in (pair, pair[::-1])
                             if made[a]._links[b].opens]  # fmt: skip
                    ways = ways_between(roster, one, roster.members[other])
                    direct = [who for who, at in ways if at in (one, roster.members[other])]
                    through = [at for _, at in ways if at not in (one, roster.members[other])]
                    assert set(direct) <= set(opens), ways
                    assert bool(through) == (
                        one.address is None and roster.members[other].address is None
                    )
                    assert all(at is made[0]._passer for at in through)


def test_a_firewall_team_has_one_page(tmp_path, monkeypatch, capsys):
    """Of twelve parties: lines, columns, no colours, JSON and Markdown of the same."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    parties = [f"hospital-{number}" for number in range(12)]
    options = {"fit": {"topology": "star", "hops": 0, "components": "2-3", "align": "ids",
                       "secure-sum": True, "n-init": 2}}  # fmt: skip
    study = make_study(tmp_path, *parties, address=("vpem.uni.org", 8443), options=options)["hub"]
    words = "study", "show", study.path, "--matrix", "--samples", "20000"
    text = done(capsys, *words).out
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for piece in ("hub", "vpem.uni.org:8443", "TLS 1.3", "and 4 more", "masks", "likely its own"):
        assert piece in text, piece
    page = done(capsys, *words, "--json").json
    assert [one["opens"] for one in page["connections"]] == parties
    assert {one["address"] for one in page["connections"]} == {"vpem.uni.org:8443"}
    assert page["total"]["masks"] > 0
    # Two numbers of components, each started twice, of at most 1000 iterations.
    total = page["total"]
    assert total["iterations"] == 4000
    two, three = 2 * 20_000 * 12 * 8 * np.array([1, 2])  # differences of terms, there and back
    assert abs(total["iteration"] - three) < 0.01 * three + 12 * 20_000 * 16
    assert 2000 * (two + three) < total["in_all"] < 4004 * total["iteration"]
    assert all(one in " ".join(text.split()) for one in page["content"])


def test_what_is_not_foretold_is_said(tmp_path, monkeypatch, capsys):
    for number, options in enumerate((
        {"command": "kmeans", "split": "features", "topology": "star", "hops": 0, "clusters": 2},
        {"topology": "star", "hops": 0, "release-epsilon": 4.0, "delta": 1e-5, "bounds": "-3,3"},
    )):  # fmt: skip
        (tmp_path / str(number)).mkdir()
        file = study_of(tmp_path / str(number), options)
        found = done(capsys, "study", "show", file, "--matrix")
        assert "Bytes are not foretold for what is run." in " ".join(found.out.split())
        assert "hub.org:443" in found.out
    refused = run(capsys, "study", "show", file, "--samples", "5")
    assert refused.code == 2
    assert "--matrix" in refused.err


def test_every_edge_of_a_graph_is_a_connection(tmp_path, capsys):
    """Whether bytes are foretold or not: of the first member alone, a firewall would stop sums."""
    doors = {name: (f"{name}.org", 443) for name in PARTIES}
    others = [("imaging", "clinic.org:443"), ("imaging", "lab.org:443"), ("clinic", "lab.org:443")]
    for number, (words, foretold) in enumerate((
        ("--topology complete --hops 1 -k 2", False),  # of features that no one has named
        ("--topology complete --split rows -k 2", True),  # one party has: all have the same
        ("--topology complete --split rows -k 2 --epsilon 1 --bounds -3,3", False),
        ("--topology cycle --split features --hops 0 --clusters 2 --command kmeans", False),
    )):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        options = given(words.replace("-k", "--components"))
        command = options.pop("command", "fit")
        made, identities = studies.make_study(folder, doors, {command: options}, server=None)
        first, *more = made["lab"].roster.members
        if foretold:
            more[1] = replace(more[1], features=("a", "b"))
        roster = replace(made["lab"].roster, members=(first, *more))
        write_study(replace(made["lab"], roster=roster), identities["lab"])
        page = done(capsys, "study", "show", made["lab"].path, "--matrix", "--json").json
        found = {(one["opens"], one["address"]): one["bytes_in_all"] for one in page["connections"]}
        assert set(found) == set(others), words
        assert all((one is not None) == foretold for one in found.values()), words


def test_a_federation_has_its_connections_already(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    done(capsys, "party", "init", "--name", "hub")
    options = "--engine nvflare --topology star --hops 0 -k 2 --align ids --accelerate none"
    done(capsys, "study", "init", "heart", *options.split())
    for name in PARTIES:
        done(capsys, "party", "init", "--name", name)
        done(capsys, "party", "request", "heart.toml", "--as", name, "--features", name)
        done(capsys, "study", "approve", f"{name}.request", "--yes")
    page = done(capsys, "study", "show", "heart.toml", "--matrix", "--json").json
    ways = {one["opens"]: one for one in page["connections"]}
    assert set(ways) == {"hub", *PARTIES}
    assert {(one["listens"], one["address"]) for one in ways.values()} == {
        ("NVFlare's server", None)
    }
    assert ways["hub"]["bytes_in_all"] == page["total"]["in_all"]
    assert "its own" in done(capsys, "study", "show", "heart.toml", "--matrix").out


def test_a_relay_is_dialled_by_all_who_have_no_address(tmp_path, capsys):
    options = {"topology": "cycle", "hops": 0, "components": 2, "rounds": 2, "weights": 0.1}
    addresses = dict.fromkeys(PARTIES) | {"clinic": ("clinic.org", 443)}
    file = study_of(
        tmp_path, options, server=None, addresses=addresses, relay=("relay.org", 443)
    )  # fmt: skip
    page = done(capsys, "study", "show", file, "--matrix", "--json").json
    ways = {(one["opens"], one["address"]) for one in page["connections"]}
    assert ways == {("lab", "clinic.org:443"), ("imaging", "clinic.org:443"),
                    ("lab", "relay.org:443"), ("imaging", "relay.org:443")}  # fmt: skip
    said = run(capsys, "study", "show", file, "--matrix").err
    assert said.count("rounds are too few") == 1
    # What a relay passes on is on both of its ends.
    halves = [one["bytes_in_all"] for one in page["connections"] if one["listens"] == "relay"]
    assert len(halves) == 2
    assert halves[0] == halves[1] > 0
