"""What a user may give by mistake, or oddly; names that want to fool a terminal or a browser."""

import contextlib
import csv
import re
import xml.etree.ElementTree as ET

import networkx as nx
import numpy as np
import pytest

import vpem_cli
from vpem import InputError, VpemWarning, connect, fit_vpem, make_graph
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.models import read_model
from vpem.files.observations import write_observations
from vpem.files.results import write_columns
from vpem.network.partition import contiguous, evenly, from_lists
from vpem.pictures.figure import words
from vpem.saem.formats.individuals import write_individuals
from vpem.saem.individuals import from_long
from vpem.terms.lowrank.entries import from_triplets

from .cli_support import done
from .tables import each


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 4)) + rng.choice([0.0, 2.0], size=60)[:, None]


@pytest.fixture(scope="module")
def network():
    return connect(make_graph("star", 2), contiguous(4, 2), hops=0)


SEED = "seed must be an integer of at least 0"


@each(
    ("given", "said"),
    [
        *(({"seed": seed}, SEED) for seed in (-1, 1.5, None, "a", True)),
        *(({"dtype": dtype}, r"dtype must be .*float32") for dtype in ("foo", np.float16, int)),
        ({"dtype": "f8,f8"}, r"dtype must be .*float32"),
        ({"X": [[1.0, 2.0], [3.0]]}, "the data must be an array, but their lengths differ"),
        ({"init": [1, [2]]}, "init rows must be an array, but their lengths differ"),
        ({"init": None}, "init must be random, k-means"),
        ({"init": "kmean"}, "did you mean 'kmeans'"),
        ({"sample_weight": [1, [2]]}, "sample weights must be an array"),
        ({"sample_weight": np.full(60, 1e300)}, "sample weights sum to more than 1e\\+100"),
        ({"sample_weight": np.full(60, 1e308)}, "sample weights sum to more than 1e\\+100"),
        ({"n_threads": 10**10}, "threads must be an integer of at least 1 and at most 1024"),
    ],
)
def test_arguments_of_a_fit(X, network, given, said):
    with pytest.raises(InputError, match=said):
        fit_vpem(**{"X": X, "network": network, **given})


@each(
    ("given", "said"),
    [
        *(({"seed": seed}, SEED) for seed in (-1, 1.5, None, "a", True)),
        *(({"n_rounds": n}, "at least 1 and at most") for n in (10**9 + 1, 10**20)),
    ],
)
def test_arguments_of_a_network(X, given, said):
    with pytest.raises(InputError, match=said):
        connect(make_graph("cycle", 2), contiguous(4, 2), **given)
    for graph in (nx.cycle_graph(2), "cycle"):
        with pytest.raises(InputError, match=r"connect takes a vpem\.Graph"):
            connect(graph, contiguous(4, 2))
    with pytest.raises(InputError, match=r"the network must come from vpem\.connect, got NoneType"):
        fit_vpem(X, None)


def test_masked_values_are_not_taken_for_numbers(X, network):
    masked = np.ma.masked_greater(X, 2.0)
    with pytest.raises(InputError, match="the data have masked values"):
        fit_vpem(masked, network)
    whole = np.ma.array(X)
    assert fit_vpem(whole, network).log_likelihood == fit_vpem(X, network).log_likelihood


def test_very_uneven_weights_still_give_different_rows(X, network):
    weights = np.r_[1e18, np.ones(59)]
    with pytest.warns(VpemWarning):
        fit = fit_vpem(X, network, init="random", sample_weight=weights, max_iter=1)
    assert fit.init_rows[0] == 0
    assert fit.init_rows[1] != 0


def test_values_that_single_precision_cannot_hold(X, network):
    with pytest.raises(InputError, match=r"values beyond 1e\+17 cannot be squared in float32"):
        fit_vpem(X * 1e20, network, dtype=np.float32)
    for dtype, scale in ((np.float64, "none"), (np.float64, "standard"), (np.float32, "none")):
        with pytest.raises(InputError, match="cannot be squared in float"):
            fit_vpem(X * 1e200, network, dtype=dtype, scale=scale)


def test_single_precision_keeps_the_digits_of_data_far_from_zero(X, network):
    common = {"n_components": 2, "init": [5, 55], "max_iter": 5, "tol": 0}
    with pytest.warns(VpemWarning):
        wide = fit_vpem(X + 1e9, network, **common)
    with pytest.warns(VpemWarning):
        single = fit_vpem(X + 1e9, network, dtype=np.float32, **common)
    np.testing.assert_allclose(single.history, wide.history, rtol=1e-5)
    np.testing.assert_allclose(
        single.mixture.assembled_means, wide.mixture.assembled_means, rtol=1e-12
    )


def test_a_mixture_by_itself(X, network):
    mixture = fit_vpem(X, network, dtype=None).mixture
    assert mixture.means.dtype == np.float64
    assert mixture.predict(X.tolist()).tolist() == mixture.predict(X).tolist()
    bad = X.copy()
    bad[7, 2] = np.nan
    for use in (mixture.predict, mixture.predict_proba, mixture.score_samples):
        with pytest.raises(InputError, match="row 7, feature 2 is NaN"):
            use(bad)
    with pytest.raises(InputError, match="n_samples must be an integer of at least 0, got -1"):
        mixture.sample(-1, np.random.default_rng(0))


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
def test_negligible_is_meant_of_the_mean_weight():
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(200, 30)) + rng.choice([0.0, 2.0], size=200)[:, None]
    network = connect(make_graph("star", 1), contiguous(30, 1), hops=0)
    common = {"n_components": 2, "init": [5, 55], "max_iter": 6, "tol": 0}
    one, light = (
        fit_vpem(wide, network, sample_weight=weight, **common).mixture.means
        for weight in (None, np.full(200, 1e-30))
    )
    np.testing.assert_allclose(light, one, atol=1e-9)


NAMES = ("height", "weight", "pulse", "age", "iron")
ORDER = [3, 0, 4, 2, 1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two files of the same numbers, the second with its columns in another order."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 5)) * [1, 5, 0.1, 3, 2] + rng.choice([0, 2], size=120)[:, None]
    write_dataset("a.h5", Dataset(X, NAMES))
    write_dataset("b.h5", Dataset(X[:, ORDER], tuple(NAMES[j] for j in ORDER)))
    return tmp_path


@each(("agents", "scale"), [(2, "none"), (5, "standard")])
def test_a_start_finds_its_features_by_name(folder, capsys, agents, scale):
    common = ["--scale", scale, "-q", "--force"]
    done(capsys, "fit", "a.h5", "-k", 3, "--agents", agents, "-o", "m.h5", "--max-iter", 9, *common)
    words = ["--agents", 1, "--init-model", "m.h5", *common, "--max-iter", 1]
    for data in ("a.h5", "b.h5"):
        done(capsys, "fit", data, "-o", f"from-{data}", *words)
    one, two = (read_model(f"from-{data}") for data in ("a.h5", "b.h5"))
    assert one.report["n_components"] == two.report["n_components"] == 3
    np.testing.assert_allclose(one.history, two.history, rtol=1e-12)
    np.testing.assert_allclose(
        two.mixture.assembled_means, one.mixture.assembled_means[:, ORDER], rtol=1e-9
    )


# ---- hostile names are only names ---------------------------------------------------------------

HOSTILE = (
    "\x1b]0;pwned\x07",
    "two\r\nlines \x9b2J",
    "\u202etxt.exe\ud7ff\ufffe",
    "<script>alert(1)</script>",
    r"$\badcommand{x}$ & $",
    "_nolegend_",
)
FORMULAS = ("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1")
CONTROL = re.compile(r"[^\n\t\x20-\x7e\xa0-\u200d\u2010-\u2029\u2030-\u2065\u2070-\U0010ffff]")
N_ROWS = 30

MAKE = (
    "fit d.h5 --topology cycle --hops 1 --max-iter 3 -q -o m.h5",
    "fit d.h5 --split rows --max-iter 3 -q -o rows.h5",
    "kmeans d.h5 -k 2 -q -o c.h5",
    "saem i.h5 --burn-in 3 --iterations 6 -q -o s.h5",
    "impute e.h5 -r 1 --max-iter 5 -q -o filled.h5",
)
COMMANDS = (
    "data describe d.h5",
    "data describe d.h5 --json",
    "topology describe d.h5 --plot out.svg",
    "fit d.h5 --max-iter 3",
    "kmeans d.h5 -k 2",
    "fedem d.h5 --max-iter 3 --plot out.svg",
    "impute e.h5 -r 1 --max-iter 5 -o out.h5 --plot out.svg",
    "saem i.h5 --burn-in 3 --iterations 6 --individuals out.csv --traces out.svg",
    "select d.h5 -k 1-2 --jobs 1 --max-iter 3 --plot out.svg",
    "predict m.h5 d.h5",
    "predict m.h5 d.h5 --proba -o out.csv",
    "predict c.h5 d.h5",
    "predict s.h5",
    "predict s.h5 --latents",
    "predict s.h5 i.h5 --json",
    "sample m.h5 -n 3",
    "score m.h5 d.h5",
    "score s.h5 i.h5",
    "evaluate m.h5 d.h5",
    "model show m.h5",
    "model show c.h5",
    "model show s.h5",
    "model show filled.h5",
    "plot rows.h5 --kind communication -o out.svg",
    "plot m.h5 d.h5 --kind pairs -o out.svg",
    "report m.h5 d.h5 -o out.html",
    "report s.h5 i.h5 -o out.html",
    "report filled.h5 -o out.html",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Folder of files whose every name is hostile, and of fits to them."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    labels = np.arange(N_ROWS) % 2
    rows = [f"{HOSTILE[row % 6]}{row}" for row in range(N_ROWS)]
    whole = Dataset(
        3 * labels[:, None] + rng.standard_normal((N_ROWS, 6)),
        HOSTILE,
        ids=np.array(rows),
        labels=np.array(HOSTILE[3:5])[labels],
        partition=from_lists([[0, 1], [2, 3], [4, 5]], 6, HOSTILE[:3]),
        workers=evenly(N_ROWS, 3, HOSTILE[1:4]),
    )
    write_dataset(folder / "d.h5", whole)
    times = np.tile(np.arange(4.0), 6)
    values = times * np.repeat(rng.normal(2, 0.5, 6), 4) + rng.normal(0, 0.1, 24)
    grown = from_long(np.repeat(np.array(HOSTILE, dtype=object), 4), times, values, {}, "")
    write_individuals(folder / "i.h5", grown)
    seen = np.argwhere(rng.random((N_ROWS, 6)) < 0.8)
    write_observations(
        folder / "e.h5",
        from_triplets(
            np.arange(len(seen)) % 3, *seen.T, rng.normal(size=len(seen)), names=HOSTILE[:3],
            row_names=rows, column_names=HOSTILE,
        ),
    )  # fmt: skip
    with contextlib.chdir(folder):
        assert [vpem_cli.run(command.split()) for command in MAKE] == [0] * len(MAKE)
    return folder


@pytest.fixture
def here(home, monkeypatch):
    monkeypatch.chdir(home)
    return home


def checked(text):
    """No character that moves a cursor, turns text round or belongs to no text."""
    found = CONTROL.search(text)
    assert found is None, (found, text[max(0, found.start() - 60) : found.end() + 60])
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_no_output_has_control_characters(capsys, here, monkeypatch, command):
    monkeypatch.setattr("vpem.pictures.page.as_source", lambda figure: "data:,")
    made = [here / word for word in command.split() if word.startswith("out.")]
    result = done(capsys, *command.split(), *(["--force"] if made else []))
    checked(result.out)
    checked(result.err)
    for path in made:
        if path.suffix == ".svg":
            texts = list(ET.parse(path).getroot().itertext())
            checked("".join(texts))
        elif path.suffix == ".html":
            page = checked(path.read_text(encoding="utf-8"))
            assert "<script" not in page
            assert ("pwned" in page) == ("d.h5" in command)
        elif path.suffix == ".csv":
            with open(path, newline="", encoding="utf-8") as stream:
                checked(stream.read())


def test_names_that_differ_are_different_cells(tmp_path):
    names = np.array(["\x1b", "\x9b", "\\x1b!", "\r", "\u202e", "é\u3000\u200d"])
    write_columns(tmp_path / "t.csv", {"\x07": names}, "x")
    text = (tmp_path / "t.csv").read_text(encoding="utf-8")
    assert text.splitlines() == [
        r"\x07", r"\x1b", r"\x9b", r"\x1b!", r"\r", r"\u202e", "é\u3000\u200d",
    ]  # fmt: skip


@each("quoted", [False, True])
def test_formulas_are_quoted_on_request(tmp_path, quoted):
    columns = {"=x": np.array(FORMULAS), "value": np.array([-1.0, 1.0, 2.0, -3.0, 0.0])}
    write_columns(tmp_path / "t.csv", columns, "x", True, quote_formulas=quoted)
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    mark = "'" if quoted else ""
    assert head == [f"{mark}=x", "value"]
    assert [row[0] for row in rows] == [f"{mark}{cell}" for cell in FORMULAS]
    assert [float(row[1]) for row in rows] == columns["value"].tolist()


@each("command", ["predict m.h5 d.h5", "predict s.h5 --latents", "sample m.h5"])
def test_every_writer_of_csv_quotes_formulas(capsys, here, monkeypatch, command):
    given = []
    monkeypatch.setattr("vpem.files.results.write_columns", lambda *words: given.append(words[4]))
    done(capsys, *command.split())
    done(capsys, *command.split(), "--quote-formulas")
    assert given == [False, True]


@each("name", HOSTILE)
def test_a_drawn_name_is_no_formula_and_stays_in_legends(name):
    from matplotlib.cbook import is_math_text

    shown = words(name)
    assert not shown.startswith("_")
    assert not is_math_text(shown)
