"""Temporary files beside results: none stays behind, and none of a process that lives is taken."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from vpem.errors import FileError
from vpem.files import hdf5, temporaries
from vpem.files.checkpoints import write_state
from vpem.files.datasets import Dataset, write_dataset

from .tables import each

WRITER = """
import sys, time
from vpem.files.hdf5 import atomic_write
with atomic_write(sys.argv[1]) as temporary:
    print(temporary.name, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writing(tmp_path):
    """Start a process that writes in a folder; return it and the name of its temporary file."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "result.h5")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


def write_another(folder):
    with hdf5.atomic_write(folder / "other.csv") as temporary:
        temporary.write_text("whole")


def test_sigterm_leaves_nothing(tmp_path, writing):
    process, name = writing
    assert os.listdir(tmp_path) == [name]
    process.terminate()
    assert process.wait(120) == -signal.SIGTERM
    assert os.listdir(tmp_path) == []


def test_what_sigkill_leaves_is_removed_by_the_next(tmp_path, writing):
    process, name = writing
    write_another(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [name, "other.csv"]  # it is alive
    process.kill()
    process.wait(120)
    assert sorted(os.listdir(tmp_path)) == [name, "other.csv"]
    (tmp_path / "other.csv").unlink()
    write_another(tmp_path)
    assert os.listdir(tmp_path) == ["other.csv"]


def own_name():
    with hdf5.atomic_write("mine.h5") as temporary:
        return temporary.name


@pytest.mark.parametrize(
    ("number", "change", "stays"),
    [  # the first is of another machine, or before it began anew
        (0, lambda machine: "0" * len(machine), True),
        (1, lambda process: "1", True),  # of another process, that lives
        (2, lambda begun: str(int(begun) + 1), False),  # of one before, with our number
        (3, lambda chance: "0" * len(chance), True),  # of this process
        (3, lambda chance: "other", True),  # somebody's own file
    ],
)
def test_only_what_has_certainly_ended_is_removed(tmp_path, monkeypatch, number, change, stays):
    monkeypatch.chdir(tmp_path)
    parts = own_name().removeprefix(".vpem-").removesuffix(".h5").split("-")
    if number == 1:  # that of the machine's first process, whoever may signal it
        monkeypatch.setattr(temporaries, "_begun", lambda process: parts[2])
    parts[number] = change(parts[number])
    name = f".vpem-{'-'.join(parts)}.h5"
    (tmp_path / name).touch()
    write_another(tmp_path)
    assert (name in os.listdir(tmp_path)) is stays


def test_a_handler_of_somebody_else_is_left_alone(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with hdf5.atomic_write(tmp_path / "result.h5"):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    with hdf5.atomic_write(tmp_path / "result.h5", force=True):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


@contextmanager
def full_disk(size):
    """Let files that grow beyond a size fail, as they do on a disk that is full.

    No longer than need be: what tests print may go to a file, too.
    """
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@each("room", [0, 100, 1000, 3000, 10_000, 20_000])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path, room):
    data, words = Dataset(np.arange(3000.0).reshape(-1, 6), tuple("abcdef")), "could not be written"
    with full_disk(room):
        with pytest.raises(FileError, match=rf"data.h5 {words}: File too large"):
            write_dataset(tmp_path / "data.h5", data)
        with pytest.raises(FileError, match=rf"state {words}: File too large"):
            write_state(tmp_path / "state", {"X": data.X})
    assert os.listdir(tmp_path) == []


def test_a_link_that_leads_to_itself_is_no_place_for_a_result(tmp_path):
    link = tmp_path / "loop.h5"
    link.symlink_to(link)
    with pytest.raises(FileError, match="is a link that leads to itself"):
        hdf5.check_writable(link, force=True)
    with pytest.raises(FileError, match="is a link that leads to itself"):
        write_state(link, {})
    assert os.listdir(tmp_path) == ["loop.h5"]
