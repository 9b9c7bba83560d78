"""`vpem data fetch`: the download and the copy give one dataset, and nothing else is believed."""

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

from vpem import read_dataset
from vpem.files.examples import LARGEST, OPEN, digest

from .cli_support import done, listing, run

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


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["unix", "windows", "mac"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "csv"])
def test_a_copy_is_known_whatever_ends_its_lines(capsys, known, site, end, last, zipped):
    text = table().rstrip(b"\n").replace(b"\n", end) + (end if last else b"")
    copy = known / "copy.bin"
    copy.write_bytes(packed(text) if zipped else text)
    result = done(capsys, "data", "fetch", "htru2", "--from", copy, "-o", "a.h5")
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


@pytest.mark.parametrize(
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
    ids=["spaces", "blank", "heads", "semicolons", "narrow", "labels", "nan", "ragged", "bytes"],
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
    twice = packed(table(), "HTRU_2.csv", "b/HTRU_2.csv")
    return {
        "bomb": (bomb, "far more than HTRU2, and is not unpacked"),
        "lying": (bytes(lying), "a zip file that cannot be read"),
        "locked": (bytes(locked), "a zip file that cannot be read"),
        "strange": (bytes(strange), "a zip file that cannot be read"),
        "broken": (bytes(broken), "a zip file that cannot be read"),
        "twice": (twice, "holds 2 files HTRU_2.csv, not one"),
        "other": (packed(table(), "other.csv"), "holds no files HTRU_2.csv, not one"),
        "cut": (good[: len(good) // 2], "is not HTRU2"),
    }


@pytest.mark.parametrize("kind", ["bomb", "lying", "locked", "strange", "broken", "twice", "other",
                                  "cut"])  # fmt: skip
def test_hostile_zip_files(capsys, known, kind):
    content, why = hostile()[kind]
    (known / "bad.zip").write_bytes(content)
    assert why in refused(capsys, known, "--from", known / "bad.zip")


def test_a_zip_file_writes_nowhere_else(capsys, known):
    copy = known / "in" / "climbing.zip"
    copy.parent.mkdir()
    copy.write_bytes(packed(table(), "../../../HTRU_2.csv"))
    done(capsys, "data", "fetch", "htru2", "--from", copy)
    check("htru2.h5")
    assert sorted(path.name for path in known.iterdir()) == ["htru2.h5", "in"]


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


def wait(over, handler):
    over.wait(5)


def test_no_download(capsys, known, site, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr("vpem.files.examples.TIMEOUT", 0.2)
    for answer, why in (
        (functools.partial(answer_with, b"gone", status=404), "the server answered 404"),
        (functools.partial(answer_with, b"half", claimed=1000), "the connection broke off"),
        (hang_up, "no connection"),
        (functools.partial(wait, over), "no answer within 0.2 seconds"),
    ):
        site.answer = answer
        sentence = refused(capsys, known)
        assert sentence == (
            f"{site.url} could not be downloaded: {why}; get HTRU_2.csv by other means and give it "
            "with --from"
        )
        (known / "kept").rmdir()
    over.set()


def test_no_network(capsys, known, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/htru2.zip"
        monkeypatch.setitem(OPEN, "htru2", replace(OPEN["htru2"], url=url))
        assert "could not be downloaded: no connection" in refused(capsys, known)


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


def test_a_folder_that_takes_no_downloads(capsys, known):
    (known / "kept").write_bytes(b"a file")
    sentence = refused(capsys, known)
    assert "downloads cannot be kept in" in sentence
    assert sentence.endswith("name another folder with --cache")
