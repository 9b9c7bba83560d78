"""What rows belong to comes home: each party's rows, in its order, as `vpem predict` finds them."""

import csv
import shutil
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from vpem import fit_em, fit_fedem, kmeans_features, kmeans_rows
from vpem.engines.engine import Engine
from vpem.engines.placement import Placement
from vpem.errors import InputError
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.parties.joining import join_parties, stack_parties
from vpem.files.parties.opening import Party
from vpem.files.table_settings import TableSettings
from vpem.fits.labels import columns_of, columns_of_clusters, responsibilities_of_workers
from vpem.fits.plan import plan
from vpem.fits.spread import fit_spread
from vpem.fits.spread_rows import SpreadRows
from vpem.network.graph import make_graph
from vpem.network.partition import Blocks, from_lists
from vpem.settings import COVARIANCE_TYPES
from vpem.sums.connect import connect, connect_workers, spread, spread_workers
from vpem.terms.missing import nearest
from vpem.terms.units import Scaling
from vpem_cli.outputs import LabelFile

from .cli_support import AGENTS, HELD, NAMES, done, listing, make_data, overlapping, run
from .company_support import make_company
from .missing_support import clusters, random_mixture, with_holes
from .tables import each, each_once
from .thread_engine import over_queues, together

M, K = 60, 3
START = {"init": [4, 20, 41]}
SHORT = {"n_components": K, "max_iter": 2, "tol": 0.0, **START}

OVER_FEATURES = {
    "star": ({}, {}),
    "compressed": ({"topology": "star", "compress": "qsgd:4bits"}, {}),
    "one precision": ({"topology": "star"}, {"dtype": "float32"}),
    "weights and holes": ({"topology": "star"}, {"missing": "marginalize", "weighted": True}),
    "tree": ({"topology": "path", "sum": "tree", "compress": "topk:0.5"}, {}),
    "hub": ({"topology": "path", "hops": 1, "sum": "tree"}, {}),
    "pooled": ({"topology": "star", "hops": 1}, {}),
    "consensus": ({"topology": "cycle", "n_rounds": 60}, {}),
    "hubs": ({"topology": "path", "hops": 1, "n_rounds": 60}, {}),
    "compressed rounds": ({"topology": "cycle", "compress": "qsgd:6bits", "n_rounds": 60}, {}),
    "links that fail": ({"topology": "complete", "link_failure": 0.2, "n_rounds": 60}, {}),
}
OVER_ROWS = {"star": {"topology": "star"}, "consensus": {"topology": "path", "n_rounds": 40}}
ENGINES = [(1, None), (2, None), (4, (1, 2, 3))]
PLACES = [(case, *ENGINES[at % 3]) for at, case in enumerate(OVER_FEATURES)]
"""Every way of summing somewhere; see `over_sums` for all of them everywhere."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables of three parties: other features in other orders, and not all rows of anybody."""
    home = tmp_path_factory.mktemp("parties")
    X, _ = overlapping(n_samples=M, n_components=K, gap=2.5)
    rng = np.random.default_rng(2)
    for party, columns in zip(AGENTS, HELD, strict=True):
        rows = rng.permutation(M)[: M - 4]
        table(home / f"{party}.csv", [NAMES[j] for j in columns], rows, X[np.ix_(rows, columns)])
    for number in range(3):
        rows = rng.permutation(np.arange(number, M, 3))
        table(home / f"part{number}.csv", NAMES, rows, X[rows])
    return home


def table(path, names, rows, values):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", *names])
        writer.writerows(
            [f"p{row}", *found] for row, found in zip(rows, values.tolist(), strict=True)
        )


def parties_of(folder, *names):
    return [
        Party(name, str(folder / f"{name}.csv"), TableSettings(id_column="who")) for name in names
    ]


def on_engines(work, n_ranks, seats):
    """What every process brings home, by party, and whatever else the first one found."""
    if n_ranks == 1:
        return work(Engine())
    results = together(n_ranks, work, over_queues, seats=seats)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    homes = {}
    for one, _ in results:
        assert not homes.keys() & one.keys()
        homes |= one
    return homes, results[0][1]


def brought(source, found):
    return {party: home.columns(found[party]) for party, home in source.homes.items()}


def check(folder, homes, places, wanted):
    """Hold each party's rows against what was found of joined rows, by their names."""
    assert sorted(homes) == [0, 1, 2]
    names = {name: row for row, name in enumerate(places)}
    for party, columns in homes.items():
        with open(folder[party], newline="") as file:
            ids = [row["who"] for row in csv.DictReader(file)]
        assert columns["id"].tolist() == ids
        lost = [name not in names for name in ids]
        for name, values in wanted.items():
            own = columns[name]
            assert np.ma.getmaskarray(own).tolist() == lost
            expected = [values[names[one]] for one in ids if one in names]
            np.testing.assert_allclose(own[np.logical_not(lost)], expected, rtol=0, atol=1e-10)


def spoilt(source, more):
    """Weights, some of them 0, and holes of some rows, one of which has nothing: where wanted."""
    if not more.pop("weighted", False):
        return source.X, {}
    X, weights = np.array(source.X), np.arange(len(source.X)) % 3.0
    holes, own = np.zeros((len(X), 6), dtype=bool), [*source.homes]
    holes[5:9, 1] = holes[11] = True
    columns = [source.partition.features[party] for party in own]
    X[holes[:, np.concatenate([np.empty(0, dtype=int), *columns])]] = np.nan
    return X, {"sample_weight": weights}


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each(("case", "n_ranks", "seats"), PLACES)
def test_features(folder, case, n_ranks, seats):
    options, more = OVER_FEATURES[case]
    options = {"topology": "star", **options}
    parties, how = parties_of(folder, *AGENTS), options.copy()
    graph = make_graph(how.pop("topology"), 3)

    def work(engine):
        given = dict(more)
        holders = Placement.evenly(engine, 3, AGENTS)
        source, _ = join_parties(parties, "ids", holders=holders)
        network = spread(connect(graph, source.partition, **how), engine)
        X, weights = spoilt(source, given)
        own = X if X.shape[1] else None
        agents = network.agents.own.tolist()
        fit = fit_spread(own, network, labels=agents, **SHORT, **given, **weights)
        shares = {agent: columns_of(fit.responsibilities[agent]) for agent in agents}
        return brought(source, shares), (fit.mixture, fit.communication)

    homes, (mixture, sent) = on_engines(work, n_ranks, seats)
    source, _ = join_parties(parties, "ids")
    X, _ = spoilt(source, dict(more))
    wanted = columns_of(mixture.predict_proba(X, missing="marginalize"))
    files = [party.path for party in parties]
    exact = "n_rounds" not in options
    if not exact:  # each root's own, of consensus that is nearly exact
        wanted.pop("label")
        for columns in homes.values():
            for name in wanted:
                columns[name] = np.ma.round(columns[name], 6)
        wanted = {name: np.round(values, 6) for name, values in wanted.items()}
    check(files, homes, source.ids, wanted)
    planned = plan(
        graph, source.partition, n_samples=len(source.X), n_components=K, **how
    )["communication"]["labels"]  # fmt: skip
    if "link_failure" not in options:
        assert sent["by_kind"]["labels"] == planned["by_kind"]["labels"]
    assert sent["by_kind"]["labels"]["bytes"] > 0


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each(("n_ranks", "seats"), ENGINES[1:])
def test_clusters_of_features(folder, n_ranks, seats):
    parties = parties_of(folder, *AGENTS)

    def work(engine):
        source, _ = join_parties(parties, "ids", holders=Placement.evenly(engine, 3, AGENTS))
        network = spread(connect(make_graph("star", 3), source.partition), engine)
        own = source.X if source.X.shape[1] else None
        found = kmeans_features(own, network, n_clusters=K, labels=True, **START)
        told = brought(source, columns_of_clusters(found, network.agents, None))
        return told, (found.kept(NAMES, {}, {}), found.communication["by_kind"]["labels"])

    homes, (stored, sent) = on_engines(work, n_ranks, seats)
    source, _ = join_parties(parties, "ids")
    wanted = dict(zip(("label", "distance"), stored.assign(source.X), strict=True))
    check([party.path for party in parties], homes, source.ids, wanted)
    assert sent == {"messages": 6, "bytes": 6 * 8 * len(source.X), "rounds": 2}


FITS = {
    "em": lambda X, workers, network: fit_em(X, workers, network, **SHORT).mixtures,
    "fedem": lambda X, workers, network: [
        fit_fedem(X, workers, network, n_components=K, max_iter=3, step_size=1.0, **START).mixture
    ],
    "k-means": lambda X, workers, network: kmeans_rows(X, workers, network, n_clusters=K, **START),
}


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each(("kind", "how", "n_ranks", "seats"), [
    (kind, [*OVER_ROWS][(at + place) % 2], *engine)
    for at, kind in enumerate(FITS) for place, engine in enumerate(ENGINES)
])  # fmt: skip
def test_rows(folder, kind, how, n_ranks, seats):
    names = ("part0", "part1", "part2")
    parties, options = parties_of(folder, *names), OVER_ROWS[how].copy()
    graph = make_graph(options.pop("topology"), 3)

    def work(engine):
        source = stack_parties(parties, holders=Placement.evenly(engine, 3, names))
        network = spread_workers(connect_workers(graph, **options), engine)
        agents, workers = network.agents, source.workers
        found = FITS[kind](source.X, workers, network)
        if kind == "k-means":
            columns = columns_of_clusters(found, agents, workers)
            models = found.kept(NAMES, {}, {})
        else:
            models = found
            shares = responsibilities_of_workers(source.X, workers, models, agents)
            columns = {worker: columns_of(own) for worker, own in shares.items()}
        return brought(source, columns), models

    homes, models = on_engines(work, n_ranks, seats)
    source = stack_parties(parties)
    if kind == "k-means":
        labels, distances = models.assign(source.X)
        wanted = {"label": labels, "distance": distances}
    else:
        own = [models[w if len(models) > 1 else 0].predict_proba(source.X[rows])
               for w, rows in enumerate(source.workers.rows)]  # fmt: skip
        wanted = columns_of(np.concatenate(own))
    check([party.path for party in parties], homes, source.ids, wanted)


# ---- models used on rows of which processes have features of their own --------------------------

BLOCKS = Blocks((np.array([4, 0]), np.array([1, 5, 2]), np.array([3])), (0, 1, 2), ((0,),) * 3)
PARTIES = from_lists([[6, 2], [0, 4, 7], [1], [3, 5]], 8, ("a", "b", "c", "d"))
COLUMNS = [5, 1, 0, 6, 2, 3]
"""Of the joined data, of which columns 4 and 7 are none of the model's: those of its features."""
SPREAD_NAMES = tuple("uvwxyz")
SPREAD = np.zeros((90, 8))
SPREAD[:, COLUMNS] = clusters(1, 90, 6, 3)


def over_ranks(n_ranks, work, data=SPREAD, **options):
    """Call ``work(rows)`` on each rank, with what its parties have; the first of five has none."""

    def run(engine):
        place = Placement.evenly(engine, 4, PARTIES.names)
        own = [PARTIES.features[party] for party in place.own]
        held = data[:, np.concatenate([np.empty(0, dtype=int), *own])]
        return work(SpreadRows(held, PARTIES, COLUMNS, place, SPREAD_NAMES, **options))

    if n_ranks == 5:
        return together(n_ranks, run, over_queues, seats=(1, 2, 3, 4))
    return together(n_ranks, run)


@each_once(
    kind=COVARIANCE_TYPES,
    n_ranks=[1, 2, 5, 4],
    missing=["refuse", "marginalize"],
    dtype=[np.float64, np.float32],
)
def test_posteriors(kind, n_ranks, missing, dtype):
    mixture = random_mixture(np.random.default_rng(3), BLOCKS, kind, 3)
    data = SPREAD.astype(dtype)
    if missing == "marginalize":
        data = with_holes(data, 4).astype(dtype)
        data[7], data[20:40, [6, 2]] = np.nan, np.nan
    found = over_ranks(
        n_ranks, lambda rows: (*rows.posteriors(mixture), rows.n_blank, rows.communication),
        data, missing=missing,
    )  # fmt: skip
    own = data[:, COLUMNS]
    for proba, scores, n_blank, sent in found:
        wanted = mixture.predict_proba(own, missing=missing)
        np.testing.assert_allclose(proba, wanted, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(scores, mixture.score_samples(own, missing=missing), rtol=1e-12)
        assert n_blank == int(np.isnan(own).all(axis=1).sum())
        # The first hub is of a's y and d's u, the second of c's v, d's z and b's w.
        assert sent["sums"] == {"messages": 6, "bytes": 6 * 90 * 3 * 8, "rounds": 2}
        assert sent["features"] == {"messages": 3, "bytes": 3 * 90 * np.dtype(dtype).itemsize}


@each("n_ranks", [1, 3])
def test_nearest_centres(n_ranks):
    scaling = Scaling(np.arange(6.0), np.linspace(0.5, 2, 6))
    own = SPREAD[:, COLUMNS]
    centres = own[[3, 40, 80]]
    labels, squared = nearest(own, centres, scaling, 1)
    for ours, distances in over_ranks(n_ranks, lambda rows: rows.nearest(centres, scaling)):
        np.testing.assert_array_equal(ours, labels)
        np.testing.assert_allclose(distances, squared, rtol=1e-10, atol=1e-12)


def test_values_that_are_not_finite_are_refused_alike():
    data = SPREAD.copy()
    data[11, COLUMNS[2]] = np.nan
    for error in over_ranks(2, lambda rows: None, data):
        assert isinstance(error, InputError)
        with pytest.raises(InputError, match=r"row 11, .*'w'.* is NaN"):
            raise error


# ---- marginals -----------------------------------------------------------------------------------


@each("kind", COVARIANCE_TYPES)
def test_a_marginal_is_what_missing_features_leave(kind):
    mixture = random_mixture(np.random.default_rng(3), BLOCKS, kind, K)
    X, _ = overlapping(n_samples=40)
    for chosen in ([2], [5, 0, 3], [3], [4, 0, 1], list(range(6))):
        holes = np.full(X.shape, np.nan)
        holes[:, chosen] = X[:, chosen]
        part = mixture.marginal(chosen)
        for name in ("predict_proba", "score_samples"):
            wanted = getattr(mixture, name)(holes, missing="marginalize")
            np.testing.assert_allclose(getattr(part, name)(X[:, chosen]), wanted, atol=1e-12)
    assert mixture.marginal([0]).n_parameters < mixture.n_parameters


# ---- the shell -----------------------------------------------------------------------------------


@pytest.fixture
def home(folder, monkeypatch, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


TABLES = ["clinic.csv", "registry.csv", "lab.csv", "--parties", "--align", "ids",
          "--id-column", "who"]  # fmt: skip
FIT = ["fit", *TABLES, "-k", "3", "--topology", "star", "--max-iter", "5", "--tol", "0"]


def rows_of(path):
    """Rows of a table by their ids or numbers."""
    with open(path, newline="") as file:
        return {row.pop("id", None) or row.pop("row"): row for row in csv.DictReader(file)}


def same_rows(ours, theirs):
    """Hold rows of two tables against each other, cell by cell."""
    assert list(ours) == list(theirs)
    for one, row in ours.items():
        assert row.keys() == theirs[one].keys()
        for name, value in row.items():
            other = theirs[one][name]
            assert value == other or float(value) == pytest.approx(float(other), abs=1e-10)


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_parties_in_one_process_get_a_file_each(capsys, home):
    told = done(capsys, *FIT, "-o", "m.h5", "--labels", "l.csv", "--json")
    assert told.json["labels_files"] == [f"l.{name}.csv" for name in AGENTS]
    assert not (home / "l.csv").exists()
    joined = rows_of_predict(capsys, "m.h5", *TABLES, "--proba")
    for name in AGENTS:
        found = rows_of(f"l.{name}.csv")
        assert list(found) == rows_of_ids(f"{name}.csv")
        lost = [one for one in found if one not in joined]
        why = "took no part, since not every party has them; their cells in "
        assert f"{name}: {len(lost)} of 56 rows {why}l.{name}.csv are empty" in told.err
        assert all(set(found[one].values()) == {""} for one in lost)
        same_rows({one: found[one] for one in joined}, joined)
    told = done(capsys, *FIT, "--missing-parties", "--labels", "all.h5")
    assert "took no part" not in told.err
    with h5py.File("all.lab.h5") as file:
        assert file["label"][:].min() == 0
        assert file["id"].asstr()[:].tolist() == list(rows_of("l.lab.csv"))


def rows_of_predict(capsys, *words):
    text = done(capsys, "predict", *words, "--quiet").out
    return {row.pop("id"): row for row in csv.DictReader(text.splitlines())}


def rows_of_ids(path):
    with open(path, newline="") as file:
        return [row["who"] for row in csv.DictReader(file)]


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each("words", [
    ["fit", "-k", "2", "--topology", "star", "--max-iter", "3"],
    ["fit", "-k", "2", "--split", "rows", "--workers", "4", "--max-iter", "3"],
    ["kmeans", "-k", "2", "--split", "features"],
    ["fedem", "-k", "2", "--workers", "4", "--sort-by-label", "--max-iter", "2"],
])  # fmt: skip
def test_one_dataset_has_one_file(capsys, home, words):
    if not (home / "d.h5").exists():
        make_data("d.h5")
    command, *options = words
    told = done(capsys, command, "d.h5", *options, "--labels", "one.csv", "-o", "m.h5", "--force")
    assert "wrote 150 rows to one.csv" in told.err
    more = ["--proba"] if command != "kmeans" else []
    done(capsys, "predict", "m.h5", "d.h5", *more, "-o", "again.csv", "--force")
    same_rows(rows_of("one.csv"), rows_of("again.csv"))


REFUSED = [
    ([*FIT, "--labels", "l.json"],
     "results are written to .csv, .parquet, .h5 or .hdf5 files, got l.json"),
    ([*FIT, "--labels", "there.csv"], "there.lab.csv exists; pass --force to replace it"),
    (["fit", "clinic.csv", "to.clinic.csv", "--parties", "--labels", "to.csv"],
     "--labels to.clinic.csv is the input"),
    ([*FIT, "--labels", "x.h5", "-o", "x.lab.h5"], "are one file; give two names"),
    (["predict", "m.h5", "registry.csv"], "lack features of the model: 'height', 'pulse', 'age', "
     "'iron', 'sugar'; integrate them out with --missing marginalize"),
    (["evaluate", "m.h5", "registry.csv"], "integrate them out with --missing marginalize"),
    (["predict", "m.h5", "other.csv", "--missing", "marginalize"],
     "other.csv has none of the features"),
    (["predict", "m.h5", "d.h5", "--id-column", "who"], "there is no id column 'who'"),
    (["fit", "gap.csv", "x.csv", "--parties", "-k", "2"],
     "or integrate them out with --missing marginalize"),
    (["saem", "x.csv", "--labels", "y.csv"], "--labels is for the model gmm"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_what_is_refused(capsys, home):
    make_data("d.h5")
    done(capsys, "fit", "d.h5", "-k", "2", "--max-iter", "3", "-o", "m.h5")
    for name in ("there.lab.csv", "to.clinic.csv", "other.csv", "x.csv"):
        (home / name).write_text("a,b\n1,2\n3,4\n5,7\n")
    (home / "gap.csv").write_text("c,d\n1,\n2,3\n5,4\n")
    before = listing(home)
    for words, sentence in REFUSED:
        told = run(capsys, *words)
        assert told.code == 2, words
        assert sentence in told.err.splitlines()[-1], words
        assert listing(home) == before


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
@each("kind", ["mixture", "clusters"])
def test_a_party_predicts_alone(capsys, home, kind):
    command = FIT if kind == "mixture" else ["kmeans", *TABLES, "-k", "3", "--split", "features"]
    done(capsys, *command, "-o", "m.h5", "--force", "--quiet")
    more = ["--proba"] if kind == "mixture" else []
    asked = ["predict", "m.h5", "lab.csv", "--id-column", "who", "--missing", "marginalize"]
    told = done(capsys, *asked, *more)
    without = "integrated out" if kind == "mixture" else "left out of distances"
    assert told.err == f"3 of the model's 6 features are not in the data and are {without}\n"
    found = {row.pop("id"): row for row in csv.DictReader(told.out.splitlines())}
    assert list(found) == rows_of_ids("lab.csv")
    source = join_parties(parties_of(home, "lab"))[0]
    names = ("height", "age", "weight", "pulse", "iron", "sugar")
    holes = np.full((len(found), 6), np.nan)
    holes[:, [names.index(name) for name in source.feature_names]] = source.X
    write_dataset("holes.h5", Dataset(holes, names, ids=source.ids), force=True)
    same_rows(found, rows_of_predict(capsys, "m.h5", "holes.h5", *asked[-2:], *more))
    if kind == "mixture":
        ours = done(capsys, "score", "m.h5", "lab.csv", "--missing", "marginalize", "--json").json
        whole = done(capsys, "score", "m.h5", "holes.h5", "--missing", "marginalize", "--json").json
        assert ours["log_likelihood"] == pytest.approx(whole["log_likelihood"], rel=1e-12)
        assert ours["n_parameters"] < whole["n_parameters"]


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_names_that_parties_share_are_found_in_the_file_of_one(capsys, home):
    for number, name in enumerate(("north", "south")):
        X, _ = overlapping(n_features=2, seed=number)
        write_dataset(f"{name}.h5", Dataset(X, ("age", f"own {name}")))
    files = ("north.h5", "south.h5", "--parties", "--align", "none")
    done(capsys, "fit", *files, "-k", "2", "-o", "m.h5", "--quiet", "--max-iter", "3")
    told = done(capsys, "predict", "m.h5", "south.h5", "--missing", "marginalize")
    assert "2 of the model's 4 features" in told.err
    shutil.copy("south.h5", "new.h5")
    (home / "new.csv").write_text("id,age\na,1.5\nb,2\n")
    for file in ("new.h5", "new.csv"):
        said = run(capsys, "predict", "m.h5", file, "--missing", "marginalize").sentence
        ending = file.removeprefix("new")
        assert said.endswith(f"name the file after its party: north{ending}, south{ending}")


def test_a_file_is_of_the_party_that_alone_has_its_columns(capsys, home):
    rows = {"north": "age,pulse", "south": "age,iron", "west": "pulse,iron"}
    X, _ = overlapping(n_features=2)
    for name, columns in rows.items():
        write_dataset(f"{name}.h5", Dataset(X, tuple(columns.split(","))))
    files = [*(f"{name}.h5" for name in rows), "--parties", "--align", "none"]
    done(capsys, "fit", *files, "-k", "2", "-o", "m.h5", "--quiet", "--max-iter", "3")
    np.savetxt("new.csv", X, "%.17g", ",", header="age,iron", comments="")
    ours = done(capsys, "predict", "m.h5", "new.csv", "--missing", "marginalize").out
    theirs = done(capsys, "predict", "m.h5", "south.h5", "--missing", "marginalize").out
    assert ours == theirs


@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_members_of_a_study_get_their_own(capsys, home):
    """Each has its rows, in its order; a server has none. (Of fits see `test_tls_cli`.)"""
    names = ("clinic", "lab")
    files = [f"{name}.csv" for name in names]
    words = ["--parties", "--align", "ids", "--id-column", "who"]
    how = ["-k", "3", "--max-iter", "2", "--tol", "0", "--topology", "star", "--quiet"]
    done(capsys, "fit", *files, *words, *how, "-o", "m.h5")
    (home / "study").mkdir()
    company = make_company(home / "study", [*names], {"predict": {"align": "ids"}}, server="hub")
    for name in company.names:
        shutil.copy("m.h5", company.folders[name])
    for name, file in zip(names, files, strict=True):
        shutil.copy(file, company.folders[name])
    own = {name: ["m.h5", f"{name}.csv", *words[-2:], "--proba"] for name in names}
    ended = company.run("predict", own={**own, "hub": ["m.h5", "--proba"]})
    assert {one.code for one in ended.values()} == {0}, ended
    assert not ended["hub"].out
    joined = rows_of_predict(capsys, "m.h5", *files, *words, "--proba")
    for name, file in zip(names, files, strict=True):
        found = {row.pop("id"): row for row in csv.DictReader(ended[name].out.splitlines())}
        assert list(found) == rows_of_ids(file)
        same_rows({one: found[one] for one in joined}, joined)


def test_a_process_with_a_user_of_its_own_writes_the_file_that_was_named(folder, tmp_path, capsys):
    """Whatever its name, it has that party's rows; a server has none."""
    parties = parties_of(folder, *AGENTS)

    def work(engine):
        holders = Placement.evenly(engine, 3, AGENTS)
        source, _ = join_parties(parties, "ids", holders=holders)
        own, said = tmp_path / str(engine.rank), []
        own.mkdir()
        screen = SimpleNamespace(say=said.append)
        where = SimpleNamespace(own_users=True, speaks=True, anybody=lambda *_: True, screen=screen)
        how = {"force": False, "quote_formulas": False, "digits": 7}
        out = SimpleNamespace(labels_file=own / "mine.csv", **how)
        tables = LabelFile(out, where, True)
        tables.place(AGENTS, holders)
        columns = {"label": np.arange(source.n_samples)}
        found = dict.fromkeys(holders.own.tolist(), columns)
        tables.write(source, found, holders)
        return {engine.rank: said}, tables.written

    said, written = on_engines(work, 4, (1, 2, 3))
    assert (said[0], written) == ([], [])
    for rank, name in enumerate(AGENTS, 1):
        file = tmp_path / str(rank) / "mine.csv"
        assert said[rank][0] == f"wrote 56 rows to {file}"
        assert list(rows_of(file)) == rows_of_ids(folder / f"{name}.csv")
        assert len(said[rank]) == 2
