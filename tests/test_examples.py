"""Data to begin with: examples that come along, open data to download, and simulated mixtures."""

import functools
import http.server
import io
import socket
import sys
import threading
import zipfile
from dataclasses import replace

import h5py
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from vpem import InputError, example_path, read_dataset, read_individuals
from vpem.files.examples import EXAMPLES, LARGEST, OPEN, digest, simulate
from vpem.saem.formats.individuals import read_corpus

from .cli_support import done, listing, run
from .pages_support import inside
from .tables import each, over


def columns_of(path):
    """Rows and columns of a dataset."""
    if path.suffix == ".csv":
        lines = path.read_text(encoding="utf-8").splitlines()
        if path.name != "heart.csv":
            read = read_corpus if path.name == "notices.csv" else read_individuals
            assert read(path).n_rows == len(lines) - 1
        return len(lines) - 1, lines[0].count(",") + 1
    return read_dataset(path).X.shape


def test_what_is_listed_is_what_comes(capsys):
    listed = done(capsys, "data", "list").out
    told = done(capsys, "data", "list", "--json").json
    about = (example_path("wine").parent / "README.md").read_text(encoding="utf-8")
    for name, example in EXAMPLES.items():
        assert columns_of(example_path(name)) == (example.rows, example.columns)
        assert name in listed
        assert f"`{example_path(name).name}`" in about
        assert (told[name]["rows"], told[name]["licence"]) == (example.rows, example.licence)
    with pytest.raises(InputError, match="name must be one of breast_cancer"):
        example_path("iris")


def test_copies_are_the_files_themselves(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "6 datasets" in done(capsys, "data", "copy").err
    done(capsys, "data", "copy", "theophylline")
    done(capsys, "data", "copy", "wine", "-o", "data/mine.h5", "--quiet")
    found = listing(tmp_path)
    for name, example in EXAMPLES.items():
        assert found[f"data/{example.file}"] == example_path(name).read_bytes()
    assert found["data/mine.h5"] == found["data/wine.h5"]
    assert found["theophylline.csv"] == found["data/theophylline.csv"]
    assert len(found) == len(EXAMPLES) + 3  # the two above, and README.md
    (tmp_path / "data" / "wine.h5").unlink()
    for words in ((), ("oxford_boys", "-o", "data"), ("theophylline",)):
        before = listing(tmp_path)
        assert run(capsys, "data", "copy", *words).sentence.endswith("pass --force to replace it")
        assert listing(tmp_path) == before


def test_a_copy_that_is_a_table(capsys, tmp_path):
    target = tmp_path / "wine.csv"
    done(capsys, "data", "copy", "wine", "-o", target)
    table, stored = read_dataset(target, label_column="label"), read_dataset(example_path("wine"))
    np.testing.assert_array_equal(table.X, stored.X)
    assert table.feature_names == stored.feature_names
    assert table.labels.tolist() == stored.labels.tolist()


def test_the_demonstration(tmp_path, monkeypatch):
    """Its commands, run in this process; in the end nothing is there but what is kept."""

    def alone(play, who, words):
        play.show(who, "vpem", *words.split())
        done = inside(["vpem", *words.split()], play.home)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    monkeypatch.setattr("vpem_cli.commands.doctor.Play.run", alone)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shown = inside(["vpem", "demo", "--keep", "try"], tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "\n$ vpem fit breast_cancer.h5 " in shown.stdout
    assert "accuracy" in shown.stdout
    kept = {"breast_cancer.h5", "model.h5", "components.csv", "profile.png"}
    assert {path.name for path in (tmp_path / "try").iterdir()} == kept
    assert {path.name for path in tmp_path.iterdir()} == {"try"}
    again = inside(["vpem", "demo", "--keep", "try"], tmp_path)
    assert again.stderr.endswith("try cannot be made: File exists; give a new folder\n")


def test_commands_find_them_from_any_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert done(capsys, "data", "describe", "data/wine.h5", "--json").json["n_samples"] == 178
    done(capsys, "fit", "data/wine.h5", "-o", "m.h5")
    assert done(capsys, "predict", "m.h5", "data/wine.h5").out.startswith("row,label\n0,")
    assert "does not exist" in run(capsys, "fit", "data/none.h5").sentence
    # One's own goes first.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "wine.h5").write_bytes(b"mine")
    assert "data/wine.h5" in run(capsys, "fit", "data/wine.h5").sentence


# ---- open data: 'vpem data fetch' ----------------------------------------------------------------

KNOWN = OPEN["htru2"]


def table(n_rows=30, seed=0):
    """Bytes of a CSV file with the columns of HTRU2."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.standard_normal((n_rows, 8)).round(6), np.arange(n_rows) % 2])
    lines = [",".join(f"{value:g}" for value in row) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def packed(content, name="HTRU2/HTRU_2.csv", *others, compression=zipfile.ZIP_DEFLATED):
    """Bytes of a zip file."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", compression) as file:
        file.writestr("HTRU2/Readme.txt", "about the data")
        file.writestr(name, content)
        for other in others:
            file.writestr(other, content)
    return whole.getvalue()


class Site(http.server.BaseHTTPRequestHandler):
    """Serves one file, and counts who asks."""

    def do_GET(self):
        self.server.asked += 1
        self.server.answer(self)

    def log_message(self, *_):
        pass


def answer_with(content, handler, status=200, claimed=None):
    handler.send_response(status)
    handler.send_header("Content-Length", str(claimed or len(content)))
    handler.end_headers()
    handler.wfile.write(content)


@pytest.fixture
def site():
    """A local server; ``answer`` is what it does."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.asked = 0
        server.answer = functools.partial(answer_with, packed(table()))
        server.url = f"http://127.0.0.1:{server.server_port}/htru2.zip"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def known(monkeypatch, tmp_path, site):
    """Make the small table the one that is known, published at the local server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VPEM_CACHE", str(tmp_path / "kept"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setitem(OPEN, "htru2", replace(KNOWN, url=site.url, sha256=digest(table())))
    return tmp_path


def check(path):
    """Hold a file against the small table."""
    found = read_dataset(path)
    rows = np.loadtxt(io.BytesIO(table()), delimiter=",")
    np.testing.assert_array_equal(found.X, rows[:, :8])
    np.testing.assert_array_equal(found.labels, rows[:, 8])
    assert found.labels.dtype == np.int64
    assert found.feature_names == KNOWN.feature_names
    assert found.partition is None


# ---- what is got ---------------------------------------------------------------------------------


def test_a_download_is_kept_and_made_once(capsys, known, site):
    result = done(capsys, "data", "fetch", "htru2")
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith("wrote htru2.h5: 30 rows, 8 features, labels; R. Lyon")
    check("htru2.h5")
    done(capsys, "data", "fetch", "htru2", "-o", "again.h5", "--quiet")
    check("again.h5")
    assert site.asked == 1
    done(capsys, "data", "fetch", "htru2", "-o", "third.h5", "--cache", known / "elsewhere")
    assert site.asked == 2
    assert [path.name for path in (known / "kept").iterdir()] == ["htru2.zip"]


def test_the_file_says_where_it_comes_from(capsys, known):
    done(capsys, "data", "fetch", "htru2")
    with h5py.File("htru2.h5") as file:
        assert file.attrs["source"].decode() == KNOWN.source
        assert file.attrs["licence"] == b"CC BY 4.0"
        assert file.attrs["sha256"].decode() == digest(table())
    assert done(capsys, "data", "describe", "htru2.h5", "--json").json["about"] == {
        "source": KNOWN.source, "licence": "CC BY 4.0", "sha256": digest(table()),
    }  # fmt: skip
    done(capsys, "data", "repack", "htru2.h5", "-o", "packed.h5")
    assert "R. Lyon" in done(capsys, "data", "describe", "packed.h5").out


@over(end=[b"\n", b"\r\n", b"\r"], last=[True, False], zipped=[True, False])
def test_a_copy_is_known_whatever_ends_its_lines(capsys, known, site, end, last, zipped):
    text = table().rstrip(b"\n").replace(b"\n", end) + (end if last else b"")
    copy = known / "copy.bin"
    copy.write_bytes(packed(text) if zipped else text)
    result = done(capsys, "data", "fetch", "htru2", "--from", copy, "-o", "a.h5", "--force")
    assert "warning" not in result.err
    check("a.h5")
    assert site.asked == 0


def test_another_copy_whose_columns_fit_is_taken_with_a_warning(capsys, known):
    other = known / "other.csv"
    other.write_bytes(table(n_rows=12, seed=1))
    result = done(capsys, "data", "fetch", "htru2", "--from", other)
    assert "differs from the known HTRU2" in result.err
    assert "its 12 rows are used as they are" in result.err
    about = done(capsys, "data", "describe", "htru2.h5", "--json").json["about"]
    assert about == {"source": "a file that is not the known HTRU2", "sha256": digest(table(12, 1))}


# ---- what is refused -----------------------------------------------------------------------------


def refused(capsys, folder, *words):
    """Run a fetch that must fail with one sentence and leave every file as it was."""
    before = listing(folder)
    result = run(capsys, "data", "fetch", "htru2", *words)
    assert result.code == 2
    assert listing(folder) == before
    return result.sentence


@each(
    ("text", "why"),
    [
        (b" \n \n", "it is empty"),
        (b"\r\n\r\n", "it is empty"),
        (b"a,b,c,d,e,f,g,h,i\n" + table(), "could not convert string 'a'"),
        (table().replace(b",", b";"), "could not convert string"),
        (b"1,2,3\n4,5,1\n", "its rows have 3 columns"),
        (b"1,2,3,4,5,6,7,8,2\n", "the last column holds other values"),
        (b"1,2,3,4,5,6,7,nan,1\n", "some values are not finite"),
        (b"1,2,3,4,5,6,7,8,1\n1,2\n", "number of columns changed"),
        (b"\xff\xfe1,2,3", "'ascii' codec can't decode"),
    ],
)
def test_a_table_that_does_not_fit(capsys, known, text, why):
    (known / "t.csv").write_bytes(text)
    sentence = refused(capsys, known, "--from", known / "t.csv")
    assert "is not HTRU2: that has 9 columns of numbers without heads" in sentence
    assert "usecols" not in sentence, "advice for programmers"
    assert why in sentence
    assert sentence.endswith("for another table take 'vpem data import'")


def hostile():
    """Zip files that are not what they should be, and words of what is said about each."""
    good = packed(table())
    bomb = packed(b"0" * (LARGEST + 1))
    assert len(bomb) < LARGEST / 100
    lying = bytearray(bomb)
    at = lying.rfind(b"PK\x01\x02")
    lying[at + 24 : at + 28] = (1000).to_bytes(4, "little")  # says that it holds 1000 bytes
    locked = bytearray(good)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.rfind(mark) + place] |= 1
    strange = bytearray(good)
    strange[strange.rfind(b"PK\x01\x02") + 10] = 77
    broken = bytearray(good)
    broken[good.rfind(b"PK\x03\x04") + 60] ^= 255
    yield bomb, "far more than HTRU2, and is not unpacked"
    for content in (lying, locked, strange, broken):
        yield bytes(content), "a zip file that cannot be read"
    yield packed(table(), "HTRU_2.csv", "b/HTRU_2.csv"), "holds 2 files HTRU_2.csv, not one"
    yield packed(table(), "other.csv"), "holds no files HTRU_2.csv, not one"
    yield good[: len(good) // 2], "is not HTRU2"


def test_hostile_zip_files(capsys, known):
    for content, why in hostile():
        (known / "bad.zip").write_bytes(content)
        assert why in refused(capsys, known, "--from", known / "bad.zip")
    (known / "bad.zip").write_bytes(packed(table(), "../../../HTRU_2.csv"))
    done(capsys, "data", "fetch", "htru2", "--from", known / "bad.zip")  # writes nowhere else
    check("htru2.h5")
    assert sorted(path.name for path in known.iterdir()) == ["bad.zip", "htru2.h5"]


def test_a_file_that_is_far_too_large(capsys, known):
    with (known / "large.csv").open("wb") as file:
        file.truncate(LARGEST + 1)
    try:
        result = run(capsys, "data", "fetch", "htru2", "--from", known / "large.csv")
    finally:
        (known / "large.csv").unlink()
    assert "is larger than 16 MB, far more than HTRU2" in result.sentence


def test_a_download_that_is_another_file_is_not_kept(capsys, known, site):
    site.answer = functools.partial(answer_with, packed(table(seed=1)))
    sentence = refused(capsys, known)
    assert "holds another HTRU_2.csv than the one known: SHA-256 of its lines" in sentence
    assert sentence.endswith("give it with --from")
    site.answer = functools.partial(answer_with, packed(table()))
    done(capsys, "data", "fetch", "htru2")
    check("htru2.h5")


def hang_up(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


def test_no_download(capsys, known, site, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr("vpem.files.examples.TIMEOUT", 0.1)
    for answer, why in (
        (functools.partial(answer_with, b"gone", status=404), "the server answered 404"),
        (functools.partial(answer_with, b"half", claimed=1000), "the connection broke off"),
        (hang_up, "no connection"),
        (lambda handler: over.wait(5), "no answer within 0.1 seconds"),
    ):
        site.answer = answer
        sentence = refused(capsys, known)
        assert sentence == (
            f"{site.url} could not be downloaded: {why}; get HTRU_2.csv by other means and give it "
            "with --from"
        )
        (known / "kept").rmdir()
    over.set()
    (known / "kept").write_bytes(b"a file")
    sentence = refused(capsys, known)
    assert "downloads cannot be kept in" in sentence
    assert sentence.endswith("name another folder with --cache")


def test_without_pooch(capsys, known, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    sentence = refused(capsys, known)
    assert "pip install 'vpem[fetch]', or give a copy of HTRU_2.csv with --from" in sentence
    (known / "copy.csv").write_bytes(table())
    done(capsys, "data", "fetch", "htru2", "--from", known / "copy.csv")


def test_nothing_is_replaced_or_asked_for_in_vain(capsys, known, site):
    (known / "htru2.h5").write_bytes(b"mine")
    assert refused(capsys, known).endswith("pass --force to replace it")
    assert "there is no folder" in refused(capsys, known, "-o", known / "no" / "a.h5")
    absent = refused(capsys, known, "-o", "b.h5", "--from", known / "absent.csv")
    assert absent.endswith("absent.csv' does not exist")
    assert "with --from there is none" in refused(capsys, known, "--from", "a", "--cache", "b")
    result = run(capsys, "data", "fetch", "htru", "-o", "a.h5")
    assert "(did you mean 'htru2'?)" in result.sentence
    assert site.asked == 0
    done(capsys, "data", "fetch", "htru2", "--force")
    check("htru2.h5")


# ---- simulated -----------------------------------------------------------------------------------


@each(
    ("seed", "mixture"),
    [(0, (1, 3, 0.2)), (1, (2, 2, 0.45)), (2, (6, 4, 0.05)), (0, (12, 5, 0.7))],
)
def test_the_true_mixture_errs_as_often_as_asked(seed, mixture):
    """And the data have its moments."""
    n_features, n_components, overlap = mixture
    data, truth = simulate(6_000, n_features, n_components, overlap=overlap, seed=seed)
    parts = zip(truth["weights"], truth["means"], truth["covariances"], strict=True)
    logs = [np.log(w) + multivariate_normal(m, c).logpdf(data.X) for w, m, c in parts]
    wrong = np.mean(np.argmax(logs, axis=0) != data.labels)
    # Standard errors of the share here and of the estimate at 20,000 points inside.
    spread = np.sqrt(overlap * (1 - overlap) * (1 / 6_000 + 1 / 20_000))
    assert abs(wrong - overlap) < 5 * spread
    assert truth["overlap"] == pytest.approx(overlap, rel=1e-3)
    for k in range(n_components):
        rows = data.X[data.labels == k]
        root = np.linalg.inv(np.linalg.cholesky(truth["covariances"][k]))
        centred = (rows - truth["means"][k]) @ root.T
        np.testing.assert_allclose(centred.mean(axis=0), 0, atol=5 / np.sqrt(len(rows)))
        spread = np.cov(centred.T) - np.eye(n_features)
        np.testing.assert_allclose(spread, 0, atol=8 / np.sqrt(len(rows)))


def test_the_dataset_is_complete():
    weights = [0.2, 0.3, 0.5]
    data, truth = simulate(20, 6, 3, n_agents=4, weights=weights, overlap=0.1)
    assert data.X.shape == (20, 6)
    assert data.feature_names[5] == "feature 5"
    assert data.partition.n_agents == 4
    assert data.source == "simulated with seed 0"
    shapes = {"weights": (3,), "means": (3, 6), "covariances": (3, 6, 6), "overlap": ()}
    assert {name: value.shape for name, value in truth.items()} == shapes
    covariances = truth["covariances"]
    np.testing.assert_array_equal(covariances, np.swapaxes(covariances, 1, 2))
    assert np.abs(covariances[:, ~np.eye(6, dtype=bool)]).max() > 0.1
    assert np.abs(covariances[0] - covariances[1]).max() > 0.05
    # Rows are as many as are wanted of one mixture, which seeds decide.
    many, same = simulate(40_000, 6, 3, weights=weights, overlap=0.1)
    np.testing.assert_array_equal(same["means"], truth["means"])
    assert np.bincount(many.labels) / 40_000 == pytest.approx(weights, abs=0.01)
    again, other = (simulate(20, 6, 3, weights=weights, overlap=0.1, seed=n)[0] for n in (0, 6))
    np.testing.assert_array_equal(again.X, data.X)
    assert not np.allclose(other.X, data.X)
    assert other.partition is None
    alone, truth = simulate(100, 2, 1, overlap=0.9)
    assert (truth["overlap"], set(alone.labels.tolist())) == (0, {0})
    assert simulate(10, 2, 2, overlap=1e-9)[1]["overlap"] == pytest.approx(1e-9, rel=0.01)


@each(
    ("change", "sentence"),
    [
        ({"n_samples": 0}, "n_samples must be an integer of at least 1, got 0"),
        ({"n_features": -1}, "n_features must"),
        ({"n_components": 1.5}, "n_components must"),
        ({"n_components": True}, "n_components must"),
        ({"overlap": 0}, "overlap must lie above 0 and below 0.6667"),
        ({"overlap": 2 / 3}, "overlap must"),
        ({"overlap": float("nan")}, "overlap must"),
        ({"overlap": "much"}, "overlap must .* got 'much'"),
        ({"overlap": 0.3, "weights": [0.8, 0.1, 0.1]}, "below 0.2 "),
        ({"weights": [0.5, 0.5]}, "weights must be 3 positive numbers"),
        ({"weights": [0.5, 0.5, 0.5]}, "sum to 1"),
        ({"weights": [1.5, -0.25, -0.25]}, "positive"),
        ({"weights": [0.5, 0.5, float("nan")]}, "positive"),
        ({"n_agents": 9}, "9 agents cannot share 4 features"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"seed": None}, "seed must"),
        ({"n_samples": 10**15}, "a dataset of 1000000000000000 x 4 needs 3.2e\\+07 GB"),
        ({"n_features": 10**8, "n_samples": 1}, "the covariances of the mixture needs"),
    ],
)
def test_bad_arguments_are_refused(change, sentence):
    arguments = {"n_samples": 10, "n_features": 4, "n_components": 3, **change}
    with pytest.raises(InputError, match=sentence):
        simulate(**arguments)
