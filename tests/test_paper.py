"""The papers' experiments run, and what they say follows from their numbers."""

import copy
import csv
import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from .cli_support import ROOT

PAPER = ROOT / "benchmarks" / "paper"
RESULTS = PAPER / "results"


@pytest.fixture(scope="module")
def paper():
    """Import the experiments from the root of the project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from benchmarks.paper import __main__ as entry

        yield entry


@pytest.fixture(scope="module")
def pulsars(tmp_path_factory):
    """A table with the columns of HTRU2: one row in ten is of the rare class."""
    rng = np.random.default_rng(0)
    labels = (rng.random(400) < 0.1).astype(int)
    mixing = np.eye(8) + 0.4 * rng.standard_normal((8, 8))
    X = (rng.standard_normal((400, 8)) + 1.5 * labels[:, None]) @ mixing
    path = tmp_path_factory.mktemp("htru2") / "HTRU_2.csv"
    np.savetxt(path, np.column_stack([X, labels]), delimiter=",", fmt="%.6g")
    return path


@pytest.fixture(scope="module")
def made(paper, pulsars, tmp_path_factory):
    """Results of every experiment at its small size, or a smaller one."""
    from benchmarks.paper import figure6, figures45, table1

    folder = tmp_path_factory.mktemp("results")
    words = [*paper.EXPERIMENTS, "--from", str(pulsars), "--output", str(folder), "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        for module, less in (
            (table1, {"max_iter": 6, "draws": 2}),
            (figures45, {"samples": 500, "max_iter": 12}),
            (figure6, {"max_iter": 60}),
        ):
            patch.setitem(module.SIZES, "small", module.SIZES["small"] | less)
        patch.setattr("vpem.files.examples.PROBES", 1000)
        # Pictures of few dots, which are laid out as they come.
        patch.setattr("matplotlib.figure.Figure", lambda figsize, **_: Figure(figsize, dpi=30))
        assert paper.main(words) == 0
    return folder


def numbers(folder, name):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


NAMES = ("table1", "figures45", "figure6", "example9", "synthetic", "digits", "ebird")


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_writes_numbers_tables_sentences_and_pictures(paper, made, name):
    report = paper.experiment(name).tell(numbers(made, name))
    text = (made / f"{name}.md").read_text(encoding="utf-8")
    assert text == report.markdown()
    assert "nan" not in text.lower().replace("finance", "")
    assert report.tables
    for table in report.tables:
        with (made / f"{name}-{table.name}.csv").open(encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert rows[0] == list(table.columns)
        assert len(rows) == 1 + len(table.rows)
        assert all(len(row) == len(table.columns) for row in rows)
    for picture, caption in report.pictures:
        assert (made / picture).read_bytes().startswith(b"\x89PNG")
        shown = made / picture.replace(".png", ".csv")
        more = (shown, made / shown.name.replace(".csv", "-shown.csv"),
                made / shown.name.replace(".csv", "-runs.csv"))  # fmt: skip
        assert caption
        assert any(path.exists() for path in more) or picture == "example9-hubs.png"
    assert report.agrees + report.differs
    assert report.advice


def test_tables_and_pictures_are_made_anew_from_the_numbers(paper, made, tmp_path):
    name = "example9"
    (tmp_path / f"{name}.json").write_bytes((made / f"{name}.json").read_bytes())
    assert paper.main([name, "--redraw", "--output", str(tmp_path)]) == 0
    again = {path.name for path in tmp_path.iterdir()}
    assert again == {path.name for path in made.iterdir() if path.name.startswith(name)}
    for path in tmp_path.glob("*.csv"):
        assert path.read_bytes() == (made / path.name).read_bytes()


# ---- what is measured ----------------------------------------------------------------------------


def test_the_supplements_hubs_are_found(made):
    found = numbers(made, "example9")
    wanted = [[2, [1, 2, 3, 4, 5]], [6, [6, 7, 8]], [9, [9]]]
    assert found["hubs"] == [wanted]
    entries = [run["entries"] for run in found["runs"]]
    assert entries == [9 * 4, 100 + 36 + 4, 18 * 18]
    assert found["runs"][1]["raw feature bytes"] == 6 * 2 * 8 * found["samples"]


def test_rounds_enough_are_exact_sums_and_a_hundred_are_not(made):
    found = numbers(made, "figures45")
    for run in found["runs"]:
        fits = run["fits"]
        exact, auto = (np.array(fits[name]["history"]) for name in
                       ("block EM", "VP-EM, auto rounds"))  # fmt: skip
        np.testing.assert_allclose(auto, exact, atol=1e-5, rtol=0)
        assert fits["EM"]["log-likelihood"] > fits["block EM"]["log-likelihood"]
        assert (np.diff(exact) > -1e-9).all()
        errors = run["errors by rounds"]
        assert errors["chebyshev"][-1] < errors["none"][0]
        if run["density"] == "sparse":
            assert fits["VP-EM, 100 rounds"]["sum errors"]["largest"] > 0.1
        assert fits["block EM"]["sum errors"] == {
            "median": 0.0, "largest": 0.0, "responsibility": 0.0,
        }  # fmt: skip


def test_five_features_on_a_cycle_follow_exact_sums(made):
    for run in numbers(made, "figure6")["runs"]:
        np.testing.assert_allclose(
            run["VP-EM"]["history"], run["block EM"]["history"], atol=1e-6, rtol=0
        )
        assert run["EM"]["log-likelihood"] > run["VP-EM"]["log-likelihood"]


def test_pulsar_runs_are_judged_by_peers(paper):
    from sklearn.metrics import precision_score, recall_score

    from benchmarks.paper.table1 import judged

    rng = np.random.default_rng(1)
    truth = (rng.random(300) < 0.2).astype(int)
    clusters = np.where(rng.random(300) < 0.8, 1 - truth, truth)
    found = judged(truth, clusters, 2)
    assert found["accuracy"] == np.mean(1 - clusters == truth)
    assert found["positives found"] == pytest.approx(recall_score(truth, 1 - clusters))
    assert found["precision"] == pytest.approx(precision_score(truth, 1 - clusters))
    three = judged(truth, np.arange(300) % 3, 3)
    assert three["majority accuracy"] == pytest.approx(1 - truth.mean())


def test_a_few_labels_name_components(paper):
    from benchmarks.paper.table1 import LABELLED, labelled

    truth = np.repeat([0, 0, 0, 1], 200)
    clusters = np.repeat([2, 0, 2, 1], 200)
    found = labelled(clusters, truth, 3, 20)
    assert [item["labels"] for item in found] == list(LABELLED)
    assert found[-1]["median"] == found[-1]["low"] == 1.0


def test_mnist_is_read_in_its_own_format(paper, tmp_path):
    from benchmarks.paper.digits import read_images, recognises, reduced
    from vpem import FileError

    images = np.random.default_rng(0).integers(0, 256, (90, 6, 5)).astype(np.uint8)
    images[:, 0] = 0
    head = b"".join(number.to_bytes(4, "big") for number in (0x803, *images.shape))
    one, zipped = tmp_path / "t10k-images-idx3-ubyte", tmp_path / "train-images-idx3-ubyte.gz"
    one.write_bytes(head + images.tobytes())
    zipped.write_bytes(gzip.compress(head + images.tobytes()))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes((0x801).to_bytes(4, "big") + b"\0" * 20)
    assert np.array_equal(read_images(one), images)
    assert np.array_equal(read_images(tmp_path), np.concatenate([images, images]))
    X, n_pixels = reduced(images)
    assert (n_pixels, X.shape) == (25, (90, 20))
    pixels = images[:, 1:].reshape(90, -1) - images[:, 1:].reshape(90, -1).mean(axis=0)
    singular = np.linalg.svd(pixels, compute_uv=False)[:20]
    assert np.sqrt((X**2).sum(axis=0)) == pytest.approx(singular)
    cut = tmp_path / "cut"
    for content in (head + images.tobytes()[:-1], head + images.tobytes() + b"x", head[:9], b""):
        cut.write_bytes(content)
        with pytest.raises(FileError):
            read_images(cut)
    assert recognises(zipped)
    assert not recognises(tmp_path / "train-labels-idx1-ubyte")
    assert paper.takes("digits", one)
    assert not paper.takes("table1", one)


def test_ebird_is_read_in_its_own_format(paper, tmp_path):
    from benchmarks.paper.ebird import in_groups, read_counts
    from vpem import FileError, InputError

    file = tmp_path / "ebd.txt"
    head = "COMMON NAME\tOBSERVATION COUNT\tSTATE\tLOCALITY ID\tOBSERVATION DATE\tOBSERVER ID\n"
    lines = [
        ("Mallard", 4, "L1", "2001-01-05", "a"), ("Mallard", 8, "L1", "2001-01-25", "a"),
        ("Mallard", 1, "L1", "2001-02-05", "b"), ("Mallard", 2, "L1", "2001-03-05", "b"),
        ("Mallard", "X", "L1", "2001-03-09", "b"), ("Gadwall", 5, "L1", "2001-03-05", "b"),
        ("Mallard", 7, "L2", "2001-01-05", "a"),
    ]  # fmt: skip
    texts = ["\t".join((str(n), str(c), "FR", *rest)) for n, c, *rest in lines]
    file.write_text(head + "\n".join(texts) + "\n")
    # The mean of two visits in a month; a site of one month and what is not counted are left out.
    assert sorted(read_counts(file, "Mallard")) == [
        ("a", "L1", "2001-01", 6.0), ("b", "L1", "2001-02", 1.0), ("b", "L1", "2001-03", 2.0),
    ]  # fmt: skip
    observed, n_observers = in_groups(read_counts(file, "Mallard"))
    assert (n_observers, observed.n_entries, observed.shape) == (2, 3, (1, 3))
    with pytest.raises(InputError, match="no site"):
        read_counts(file, "Gadwall")
    for bad in (head + texts[0].replace("4", "-4"), head + texts[0].replace("2001-01-05", "5 May"),
                head.replace("OBSERVER ID", "WHO") + texts[0]):  # fmt: skip
        file.write_text(bad + "\n")
        with pytest.raises(FileError):
            read_counts(file, "Mallard")
    assert not paper.takes("ebird", file)


def test_loess_is_weighted_least_squares(paper):
    from benchmarks.paper.ebird import loess

    rng = np.random.default_rng(0)
    x = np.arange(30.0)
    y = rng.normal(size=30)
    assert loess(x, 2 - 3 * x) == pytest.approx(2 - 3 * x)
    smooth = loess(x, y, 0.4)
    for at in (0, 7, 29):
        away = np.abs(x - at)
        weights = np.clip(1 - (away / np.sort(away)[11]) ** 3, 0, None) ** 3
        roots = np.sqrt(weights)[:, None]
        line = np.linalg.lstsq(roots * np.column_stack([np.ones(30), x]), roots[:, 0] * y)[0]
        assert smooth[at] == pytest.approx(line @ [1, at])


def test_variance_reduction_shows(made):
    for name in ("synthetic", "digits"):
        found = numbers(made, name)
        for plain, less in zip(found["runs"]["FedEM"], found["runs"]["VR-FedEM"], strict=True):
            assert plain["epochs"][0] == less["epochs"][0] == 1.0
            assert np.median(less["move"][-5:]) < np.median(plain["move"][-5:])
    for one in numbers(made, "ebird")["species"]:
        assert len(one["months"]) == len(one["trends"]["gaussian"]["smooth"])


# ---- what is said --------------------------------------------------------------------------------


def told(paper, name, found):
    report = paper.experiment(name).tell(found)
    return "\n".join(report.agrees), "\n".join(report.differs)


def test_sentences_turn_with_the_numbers(paper, made):
    found = numbers(made, "example9")
    assert "Hubs for 1 hop" in told(paper, "example9", found)[0]
    found["hubs"][0][2] = [8, [9]]
    agrees, differs = told(paper, "example9", found)
    assert "Hubs for 1 hop" not in agrees
    assert "{9} with root 8" in differs

    found = numbers(made, "figures45")
    for run in found["runs"]:
        run["fits"]["VP-EM, 100 rounds"]["true log-likelihood"] = 0.0
        run["fits"]["VP-EM, 100 rounds"]["falls"] = 3
    agrees, differs = told(paper, "figures45", found)
    assert "plateaus below" not in agrees
    assert "dense: VP-EM plateaus below centralized EM in 0 of 2 networks" in differs
    assert "log-likelihood fell in 6 of " in differs

    found = numbers(made, "figure6")
    for run in found["runs"]:
        run["VP-EM"]["history"][3] += 0.5
    assert "VP-EM follows EM" in told(paper, "figure6", found)[1]
    # Narrower in two samples of three, and wider in the mean.
    ends = {3: (1.0, 1.0, 1.0), 10: (0.9, 0.9, 9.0)}
    found["by k"] = [{"k": k, "EM": gap, "VP-EM": 0.0} for k in ends for gap in ends[k]]
    found["components"] = [3, 10]
    assert "to narrow the gap" in told(paper, "figure6", found)[1]
    found["by k"][-1]["EM"] = 0.9
    assert "to narrow the gap" in told(paper, "figure6", found)[0]


def test_pulsar_sentences_turn_with_the_numbers(paper, made):
    found = numbers(made, "table1")
    for value, place in ((0.872, 0), (0.95, 1)):
        changed = copy.deepcopy(found)
        for run in changed["runs"]:
            if run["method"] == "VP3":
                run["accuracy"] = value
        sentences = told(paper, "table1", changed)
        assert "VP3, scale-free, paper 87.2" in sentences[place]
        assert "VP3, scale-free, paper 87.2" not in sentences[1 - place]
    changed = copy.deepcopy(found)
    changed["share of the larger class"] = 0.85
    assert "3 of the 5 accuracies of the paper's table lie below 85.0 %" in told(
        paper, "table1", changed
    )[1]  # fmt: skip


# ---- what is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_results_that_are_kept_are_of_full_size_and_said_as_now(paper, name):
    found = numbers(RESULTS, name)
    assert found["size"] == "full"
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    report = paper.experiment(name).tell(found)
    assert text == report.markdown()
    for picture, _ in report.pictures:
        assert (RESULTS / picture).exists()


def test_the_page_is_made_of_the_results(paper):
    from benchmarks.paper.report import page

    text = (PAPER / "README.md").read_text(encoding="utf-8")
    assert text == page(paper.EXPERIMENTS, RESULTS)
    assert "## Table 1" in text


# ---- the command ---------------------------------------------------------------------------------


def test_other_experiments_run_from_the_same_entry(paper, monkeypatch, tmp_path, capsys):
    asked = []

    class Recorder:
        @staticmethod
        def main(words):
            asked.append(words)
            return 0

    for name, (module, _) in paper.OTHERS.items():
        monkeypatch.setitem(sys.modules, module, Recorder)
        monkeypatch.setattr(Recorder, "__spec__", object(), raising=False)
        assert paper.main([name, "--output", str(tmp_path)]) == 0
    assert asked == [["--size", "small", "--folder", str(tmp_path)]] * len(paper.OTHERS)
    monkeypatch.setitem(paper.OTHERS, "fedem", ("benchmarks.nothing", ""))
    assert paper.main(["fedem", "--output", str(tmp_path)]) == 0
    assert "absent: fedem, there is no benchmarks.nothing" in capsys.readouterr().err


def test_what_cannot_be_run(paper, tmp_path, capsys):
    with pytest.raises(SystemExit):
        paper.main(["table2"])
    assert "no experiment called table2" in capsys.readouterr().err
    absent = str(tmp_path / "absent.csv")
    assert paper.main(["table1", "--from", absent, "--output", str(tmp_path)]) == 2
    assert "absent.csv' does not exist" in capsys.readouterr().err
    assert paper.main(["example9", "--redraw", "--output", str(tmp_path)]) == 2
    assert list(Path(tmp_path).iterdir()) == []
