"""Checkpoints on disk: what goes in comes out, what is damaged is refused; several processes."""

import contextlib
import errno
import os
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest

from vpem.engines.engine import Engine
from vpem.errors import FileError, InputError, Interrupted, VpemWarning
from vpem.files.checkpoints import (
    ENCODING,
    VERSION,
    FileSaver,
    _digest,
    checksum,
    files_of,
    newest_common,
    read_state,
    write_state,
)
from vpem.files.hdf5 import create, write_attribute
from vpem.fits.selection.search import Record

from .resume_support import check_same
from .tables import each

STATE = {
    "nothing": None,
    "yes": True,
    "no": False,
    "small": -3,
    "large": 2**127 + 1,
    "pi": np.pi,
    "tiny": 5e-324,
    "zero": -0.0,
    "no number": float("nan"),
    "endless": [float("inf"), float("-inf")],
    "text": "Größe \N{SNOWMAN} \x00 \ud800",
    "bytes": b"\x00\xff",
    "none of them": b"",
    "empty": {},
    "list": [],
    "tuple": (1, (2, "x"), [3.5, None]),
    "matrix": np.arange(6.0).reshape(2, 3) / 7,
    "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "single": np.array([1.5, np.nan], dtype=np.float32),
    "flags": np.array([[True], [False]]),
    "number": np.array(7, dtype=np.int64),
    "no rows": np.empty((0, 3)),
    "rows": np.array([3, 1], dtype=np.intp),
    "small numbers": np.array([255], dtype=np.uint8),
    "alike": [np.full((2, 2), float(i)) for i in range(4)],
    "unlike": [np.zeros(2), np.zeros(3), np.zeros(2, dtype=np.float32)],
    "mixed": [np.zeros(2), None],
    "record": [(1, "parts"), (2, "more")],
    "inside": {"deep": {"deeper": np.array([-1], dtype=np.int8)}},
}


def test_what_goes_in_comes_out(tmp_path):
    file = tmp_path / "state.ckpt"
    write_state(file, STATE)
    found = read_state(file)
    check_same(found, STATE)
    assert str(found["zero"]) == "-0.0"
    assert found["turned"].flags.f_contiguous
    assert found["matrix"].flags.c_contiguous
    assert found["alike"][0].flags.owndata
    assert os.listdir(tmp_path) == ["state.ckpt"]
    again = tmp_path / "again.ckpt"
    write_state(again, found)
    assert again.read_bytes() == file.read_bytes()


@each("value", [1j, object(), {1: 2}, np.array(["x"]), np.array([None]), {1, 2}, np.float32(1)])
def test_nothing_else_goes_in(tmp_path, value):
    with pytest.raises(TypeError, match="state"):
        write_state(tmp_path / "state", {"value": value})
    assert not os.listdir(tmp_path)


def test_any_damage_is_noticed(tmp_path):
    whole, file = tmp_path / "whole", tmp_path / "damaged"
    write_state(whole, STATE | {"long": np.arange(300.0)})
    content = whole.read_bytes()
    rng = np.random.default_rng(1)
    refused = 0
    for place in rng.integers(0, len(content), size=60):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        try:
            found = read_state(file)
        except FileError:
            refused += 1
        else:
            # Padding that nobody reads.
            check_same(found, STATE | {"long": np.arange(300.0)})
    assert refused > 30
    for length in (0, 1, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        with pytest.raises(FileError, match="damaged"):
            read_state(file)


def test_other_files_are_refused(tmp_path):
    with create(tmp_path / "model.h5", "vpem-model", "0.1.0"):
        pass
    (tmp_path / "table.ckpt").write_text("a,b\n")
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"] = 1
    for name in ("foreign", "newer"):
        write_state(tmp_path / name, {"something": 1})
    with h5py.File(tmp_path / "newer", "a") as file:
        file.attrs["encoding-version"] = "7.0.0"
    for name, sentence in (
        ("model.h5", "is a vpem-model file"),
        ("table.ckpt", "not an HDF5 file"),
        ("plain.h5", "not a vpem checkpoint"),
        ("foreign", "generation is missing; start again with force=True"),
        ("newer", "newer vpem"),
    ):
        with pytest.raises(FileError, match=sentence):
            FileSaver(tmp_path / name, resume=True)


BOMBS = [
    b'{"a":["array","f8",[1000000000000]]}',
    b'{"a":["array","f8",[-1]]}',
    b'{"a":["array","O",[0]]}',
    b'{"a":["array","f4",[1]]}',
    b'{"a":["array","f8",["x"]]}',
    b'{"a":["arrays","f8",[]]}',
    b'{"a":["arrays","f8",[3000000000,0]]}',
    b'{"a":["arrays","f8",[100000,0,7]]}',
    b'{"a":["array"]}',
    b'{"a":["float","x"]}',
    b'{"a":["pickle","x"]}',
    b'{"a":[1]}',
    b'{"a":[]}',
    b"[1]",
    b"{",
    b"\xff",
    b"[" * 100_000,
    b'{"a":' + b"1" * 10_000 + b"}",
]
"""Structures that a reader must not believe."""


@each("structure", BOMBS)
def test_structures_are_not_believed(tmp_path, structure):
    text, numbers = np.frombuffer(structure, dtype=np.uint8), np.zeros(3)
    with create(tmp_path / "bomb", ENCODING, VERSION) as made:
        write_attribute(made, "digest", _digest(text, {"f8": numbers}))
        made["structure"] = text
        made["numbers/f8"] = numbers
    with pytest.raises(FileError, match="damaged"):
        read_state(tmp_path / "bomb")


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "state"
    write_state(file, {"a": 1})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vpem.files.checkpoints._flush", fail)
    with pytest.raises(FileError, match="No space left"):
        write_state(file, {"a": 2})
    assert read_state(file) == {"a": 1}
    assert os.listdir(tmp_path) == ["state"]


# ---- the saver ----------------------------------------------------------------------------------


def run(saver, n_iter, facts=None, kill=None):
    """Count up to so many iterations; returns those that were computed here."""
    saver.begin({"tol": 1e-3, "max_iter": n_iter} if facts is None else facts)
    done = 0 if saver.saved is None else saver.saved["count"]
    made = []
    for number in range(done + 1, n_iter + 1):
        made.append(number)
        saver.offer(lambda number=number: {"count": number}, last=number == n_iter)
        if number == kill:
            break
    return made


def test_checkpoints_are_written_when_due(tmp_path):
    file = tmp_path / "c"
    run(FileSaver(file, every=4), 20, kill=3)
    assert not file.exists()
    run(FileSaver(file, every=4), 20, kill=7)
    assert run(FileSaver(file, every=4, resume=True), 20, kill=9) == [5, 6, 7, 8, 9]
    assert run(FileSaver(file, every=4, resume=True), 10) == [9, 10]
    # The last is always there, and may be gone on from.
    assert run(FileSaver(file, resume=True), 10) == []
    assert run(FileSaver(file, resume=True), 12) == [11, 12]


@contextlib.contextmanager
def another_run(file):
    """Let another process keep its state in a file, until it is killed."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        saver = FileSaver(file, every=1, resume="if-any")
        run(saver, 2)
        os.write(write, b"!")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(read, 1) == b"!"
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(read)
        os.close(write)


def test_two_runs_do_not_share_a_file(tmp_path):
    file = tmp_path / "c"
    (tmp_path / "link").symlink_to(file)
    with another_run(file):
        content = file.read_bytes()
        for how in ({}, {"force": True}, {"resume": True}, {"resume": "if-any"}):
            for name in (file, tmp_path / "link"):
                told = f"another run keeps its state in {name}; wait for"
                with pytest.raises(FileError, match=told):
                    FileSaver(name, **how)
        with pytest.raises(FileError, match="another run keeps its state in"):
            Record(name, {})
        run(FileSaver(tmp_path / "other"), 1)
        assert file.read_bytes() == content
    # Killed: what it has left is no lock, and goes.
    assert run(FileSaver(file, resume=True), 3) == [3]
    assert {path.name for path in tmp_path.iterdir()} == {"c", "link", "other"}


def test_a_lock_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    file, removed, stat = tmp_path / "c", [], os.stat

    def first_gone(path, **how):
        if not removed and os.fspath(path).endswith(".lock"):
            removed.append(os.unlink(path))
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", first_gone)
    saver = FileSaver(file)
    assert removed
    assert (tmp_path / ".c.lock").exists()
    saver.release()
    assert not list(tmp_path.iterdir())


@each("fault", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_systems_without_locks(tmp_path, monkeypatch, fault):
    def none(*_):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr("fcntl.lockf", none)
    assert run(FileSaver(tmp_path / "c", force=True), 2) == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_nothing_is_replaced_unasked(tmp_path):
    file = tmp_path / "c"
    with pytest.raises(FileError, match="does not exist"):
        FileSaver(file, resume=True)
    run(FileSaver(file, resume="if-any"), 5)
    with pytest.raises(FileError, match="exists"):
        FileSaver(file)
    assert run(FileSaver(file, resume="if-any"), 6) == [6]
    assert run(FileSaver(file, force=True), 2) == [1, 2]
    with pytest.raises(InputError, match="resume"):
        FileSaver(file, resume="maybe")
    with pytest.raises(InputError, match="checkpoint_every"):
        FileSaver(file, force=True, every=0)
    with pytest.raises(FileError, match="no folder"):
        FileSaver(tmp_path / "nowhere" / "c")


def test_another_run_is_refused(tmp_path):
    file = tmp_path / "c"
    facts = {"tol": 0.1, "seed": 3, "data": checksum(np.arange(3)), "max_iter": 2, "n_threads": 1}
    run(FileSaver(file), 2, facts)

    def resumed(**change):
        return run(FileSaver(file, resume=True), 2, facts | change)

    assert resumed(max_iter=7) == resumed(n_threads=2) == []
    with pytest.raises(InputError, match=r"tol was 0\.1, now it is 0\.2; .* force=True"):
        resumed(tol=0.2)
    with pytest.raises(InputError, match="data is not the same"):
        resumed(data=checksum(np.arange(4)))
    with pytest.raises(InputError, match="extra was None, now it is 1"):
        resumed(extra=1)
    # A setting that there was not yet goes on at its default, and at nothing else.
    assert resumed(n_init=1) == resumed(method="auto") == []
    with pytest.raises(InputError, match="rounds was None, now it is 3"):
        resumed(rounds=3)
    with pytest.raises(InputError, match="to a run in 1 process, not in 2; use as many"):
        FileSaver(file, resume=True, engine=Turn(0, 2, ()))


def test_an_interrupt_writes_first(tmp_path):
    saver = FileSaver(tmp_path / "c", every=100)
    saver.signal = 2
    with pytest.raises(Interrupted, match="Ctrl-C; the state after 1 iteration is in") as caught:
        run(saver, 5)
    assert caught.value.exit_code == 130
    saver = FileSaver(tmp_path / "c", every=100, resume=True)
    saver.signal = 15
    with pytest.raises(Interrupted, match="SIGTERM; the state after 2 iterations") as caught:
        run(saver, 5)
    assert caught.value.exit_code == 143
    assert run(FileSaver(tmp_path / "c", resume=True), 5) == [3, 4, 5]


def test_sums_tell_data_apart(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    other = X.copy()
    other[17, 2] = np.nextafter(other[17, 2], 9)
    sums = [checksum(X), checksum(other), checksum(X.T), checksum(X.astype(np.float32)),
            checksum(X[:-1]), checksum(None), checksum("none")]  # fmt: skip
    assert len(set(sums)) == len(sums)
    assert checksum(X) == checksum(np.asfortranarray(X))
    monkeypatch.setattr("vpem.files.checkpoints.LOOKED_AT", 1 << 14)  # all over large data
    X = np.zeros((3, 10_000, 2))
    X[1, 0] = X[2, -1] = 1
    assert len(set(map(checksum, X))) == 3


# ---- several processes --------------------------------------------------------------------------


class Turn(Engine):
    """A process that knows already what others are going to say."""

    def __init__(self, rank, size, every, signals=(0, 0)):
        super().__init__()
        self.rank, self.size, self.every, self.signals = rank, size, every, signals

    def allgather(self, value):
        if value is None:  # a barrier
            return []
        assert sorted(self.every[self.rank]) == value
        return self.every

    def allreduce(self, values, op="sum"):
        assert op == "max"
        return np.maximum(values, max(self.signals))


class Ranks:
    """Processes that take turns in this one."""

    def __init__(self, folder, size, every=3):
        self.folder, self.size, self.every = folder, size, every
        self.signals = [0] * size

    def file(self, rank):
        return self.folder / ("c" + (f".rank{rank}" if rank else ""))

    def generations(self):
        found = []
        for rank in range(self.size):
            own = []
            for file in (self.file(rank), self.folder / f"{self.file(rank).name}.before"):
                if file.exists():
                    own.append(read_state(file)["generation"])
            found.append(own)
        return found

    def savers(self, **options):
        every = self.generations()
        made = []
        for rank in range(self.size):
            engine = Turn(rank, self.size, every, self.signals)
            saver = FileSaver(self.folder / "c", every=self.every, engine=engine, **options)
            saver.begin({})
            made.append(saver)
        return made


@pytest.mark.parametrize("seed", range(2))
def test_ranks_go_on_from_an_iteration_that_all_have(tmp_path, seed):
    rng = np.random.default_rng(seed)
    ranks = Ranks(tmp_path, 3)
    done = 0
    for _ in range(8):
        savers = ranks.savers(resume="if-any")
        starts = {None if s.saved is None else s.saved["count"] for s in savers}
        assert len(starts) == 1
        start = starts.pop() or 0
        assert start >= done - 3
        assert {s.generation for s in savers} == {start}
        # Some ranks get a few iterations further than others before all are killed: as far as
        # ranks can drift apart that sum together in every iteration.
        end = start + int(rng.integers(0, 8))
        for rank, saver in enumerate(savers):
            for number in range(start + 1, end + 1 + int(rng.integers(0, 2))):
                saver.offer(lambda number=number, rank=rank: {"count": number, "rank": rank})
        done = max(done, start, end // 3 * 3)
        for rank in range(3):
            if ranks.file(rank).exists():
                assert read_state(ranks.file(rank))["run"]["rank"] == rank
    assert newest_common(ranks.generations())


def test_ranks_without_a_common_checkpoint(tmp_path):
    ranks = Ranks(tmp_path, 2, every=1)
    with pytest.raises(FileError, match=r"no checkpoint .* in common"):
        ranks.savers(resume=True)
    one, _ = ranks.savers()
    one.offer(lambda: {"count": 1})
    # Killed before the other wrote its first: from the beginning.
    savers = ranks.savers(resume="if-any")
    assert [saver.saved for saver in savers] == [None, None]
    assert newest_common([[1, 2], [2, 1], [3, 2, 1]]) == 2
    assert newest_common([[1], [2]]) is None
    assert newest_common([[], [2]]) is None


def test_any_rank_interrupts_all(tmp_path):
    ranks = Ranks(tmp_path, 2, every=100)
    one, other = ranks.savers()
    one.offer(lambda: {"count": 1})
    other.offer(lambda: {"count": 1})
    assert not ranks.file(0).exists()
    one.signal, ranks.signals[0] = 2, 2 * 2  # and 1 more where it was the last iteration
    for saver in (one, other):
        with pytest.raises(Interrupted) as caught:
            saver.offer(lambda: {"count": 2})
        assert caught.value.exit_code == 130
    assert [s.saved["count"] for s in ranks.savers(resume=True)] == [2, 2]


def test_a_kill_between_two_renames(tmp_path, monkeypatch):
    ranks = Ranks(tmp_path, 2, every=1)
    one, other = ranks.savers()
    for number in (1, 2):
        one.offer(lambda number=number: {"count": number})
        other.offer(lambda number=number: {"count": number})
    moved = []

    def once(source, target, rename=os.replace):
        if moved:
            raise KeyboardInterrupt
        moved.append(1)
        rename(source, target)

    monkeypatch.setattr("os.replace", once)
    with pytest.raises(KeyboardInterrupt):
        one.offer(lambda: {"count": 3})
    monkeypatch.undo()
    assert not ranks.file(0).exists()
    assert [s.saved["count"] for s in ranks.savers(resume=True)] == [2, 2]
    assert ranks.file(0).exists()


def test_a_rank_that_has_lost_its_files_is_not_begun_anew(tmp_path):
    ranks = Ranks(tmp_path, 2)
    for saver in ranks.savers():
        for _ in range(5 * ranks.every):
            saver.offer(lambda: {"count": 1})
    ranks.file(1).unlink()
    (tmp_path / f"{ranks.file(1).name}.before").unlink()
    kept = ranks.file(0).read_bytes()
    with pytest.raises(FileError, match=r"no checkpoint .* in common; bring the files of all back"):
        FileSaver(tmp_path / "c", every=3, resume="if-any", engine=Turn(0, 2, ranks.generations()))
    assert ranks.file(0).read_bytes() == kept


@each(("damaged", "others", "left"), [("c", [6], 6), ("c.before", [9], 9)])
def test_a_damaged_state_is_passed_over(tmp_path, damaged, others, left):
    ranks = Ranks(tmp_path, 2)
    for saver in ranks.savers(force=True):
        for number in range(3 * ranks.every):
            saver.offer(lambda number=number: {"count": number + 1})
    (tmp_path / damaged).write_bytes((tmp_path / damaged).read_bytes()[:-100])
    with pytest.warns(VpemWarning, match="the state beside it is used"):
        saver = FileSaver(tmp_path / "c", resume=True, engine=Turn(0, 2, [others, [6, 9]]))
    saver.begin({})
    assert saver.saved["count"] == left


@each("rank", [0, 1])
def test_files_of_ranks_are_not_replaced_unasked(tmp_path, rank):
    assert files_of("c", 2) == [Path(n) for n in ("c", "c.before", "c.rank1", "c.rank1.before")]
    before = files_of(tmp_path / "c", 2)[2 * rank + 1]
    before.write_bytes(b"data")
    with pytest.raises(FileError, match="exists"):
        FileSaver(tmp_path / "c", engine=Turn(rank, 2, ()))
    assert before.read_bytes() == b"data"
    before.unlink()
