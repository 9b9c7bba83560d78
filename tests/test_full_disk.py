"""A disk that is full: a sentence, nothing half written, and a process that goes on."""

import contextlib
import resource
import shutil

import pytest

from .cli_support import done, listing, make_data, run

WRITERS = (
    "fit d.h5 --max-iter 3 -q -o out.h5",
    "fit d.h5 --max-iter 3 -q --checkpoint out.ckpt --checkpoint-every 1",
    "kmeans d.h5 -q -o out.h5",
    "fedem d.h5 --max-iter 3 -q -o out.h5",
    "impute d.h5 -r 1 --max-iter 3 -q -o out.h5",
    "predict m.h5 d.h5 -o out.h5",
    "predict m.h5 d.h5 --proba -o out.csv",
    "sample m.h5 -n 300 -o out.h5",
    "model export m.h5 -o out.json",
    "model export m.h5 -o out.npz",
    "data repack d.h5 -o out.h5",
    "data simulate -n 300 -d 6 -o out.h5",
    "data split d.h5 -o out/deep",
    "data copy -o out",
    *(f"plot m.h5 --kind graph -o out.{ending}" for ending in ("png", "svg", "pdf")),
)


@contextlib.contextmanager
def room_for(n_bytes):
    """Refuse to make a file longer than this, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("full") / "d.h5").parent


@pytest.mark.parametrize("command", WRITERS)
def test_a_full_disk_is_a_sentence(capsys, home, monkeypatch, command):
    monkeypatch.chdir(home)
    if not (home / "m.h5").exists():
        done(capsys, "fit", "d.h5", "--max-iter", 3, "-q", "-o", "m.h5")
    before = listing(home)
    # The first metadata, the first values, and all but the end find no place.
    for n_bytes in (0, 700, 1500):
        with room_for(n_bytes):
            result = run(capsys, *command.split())
        assert result.code == 2
        assert result.err.splitlines()[-1].startswith("vpem: error: ")
        assert result.err.endswith(" could not be written: File too large\n")
        assert listing(home) == before
        assert not (home / "out").exists()
    assert run(capsys, *command.split()).code == 0
    for name in set(listing(home)) - set(before):
        (home / name).unlink()
    shutil.rmtree(home / "out", ignore_errors=True)
