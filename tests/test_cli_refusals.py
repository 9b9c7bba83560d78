"""What the shell refuses, in one table, `refusals.txt`: a command line and its sentence.

Every row runs in one folder, with all that rows need: exit code 2, nothing on standard output, one
error, and no file made, changed or gone. Rules that options have for each other are not here but
tried one by one in `test_rules`; outputs named like inputs in `test_cli_roles`; endings in
`test_opening`.
"""

import os
import re
from contextlib import chdir
from itertools import cycle, islice
from pathlib import Path

import h5py
import numpy as np
import pytest

import vpem_cli.app
from vpem.files.datasets import Dataset, write_dataset
from vpem_cli.names import leaves, name_of

from .cli_support import AGENTS, HELD, NAMES, ROOT, done, kinds_of, make_data, overlapping, run
from .study_support import folder_of, make_study
from .test_cli_impute import write_birds, write_what_cannot_be_imputed
from .test_cli_saem import fits_of_individuals

HEAD = re.compile(r"\[(?:([\w/]+)\$ )?(?:(\w+\.\w+): )?([\w{].*)\]")
"""Folder, file to write, and command line of some rows."""


def rows():
    """Yield the rows of `refusals.txt`: folder, file to write, its text, words, sentence."""
    heads, begun = [], False
    for line in Path(__file__).with_name("refusals.txt").read_text(encoding="utf-8").splitlines():
        given, arrow, said = f" {line}".replace("{MANY}", "9" * 5000).partition(" => ")
        if arrow:
            begun = False
            given = given.strip().replace(r"\n", "\n").replace(r"\0", "\0")
            for at, file, words in heads:
                yield at or ".", file, given, words.replace("{}", "" if file else given), said
        elif found := HEAD.fullmatch(line):
            heads, begun = [*(heads if begun else ()), found.groups()], True


BAD_DATA = {
    "text": {"X": [["a", "b"], ["c", "d"]]},
    "complex": {"X": np.ones((9, 2), complex)},
    "1-D": {"X": np.ones(9)},
    "3-D": {"X": np.ones((9, 2, 2))},
    "scalar": {"X": 3.0},
    "no-rows": {"X": np.ones((0, 3))},
    "no-features": {"X": np.ones((3, 0))},
    "a-group": {"X/data": np.ones((3, 3))},
    "no-X": {"Y": np.ones((3, 3))},
    "names": {"X": np.ones((9, 2)), "feature_names": ["a"]},
    "ids": {"X": np.ones((9, 2)), "ids": ["a"]},
    "partition": {"X": np.ones((9, 2)), "partition": [0]},
    "gap": {"X": np.ones((9, 2)), "partition": [0, 2]},
    "edges": {"X": np.ones((9, 2)), "partition": [0, 1], "graph/edges": [[0, 2]]},
    "loop": {"X": np.ones((9, 2)), "graph/edges": [[1, 1]]},
    "apart": {"X": overlapping(9)[0], "partition": [0, 1, 2, 0, 2, 2], "graph/edges": [[1, 2]]},
    "same": {"X": np.ones((20, 3))},
}

# ---- the walk ------------------------------------------------------------------------------------

TEXTS = {
    "text.h5": "not HDF5\n",
    "gaps.csv": "pulse,age\n1,\nNA,2\n3,4\n",
    "inf.csv": "a,b\n1,inf\n,2\n3,4\n",
    "bare.csv": "a,b\n1,2\n3,4\n5,7\n",
    "decimal.csv": "a;b\n1,5;2\n3;4\n",
    "ragged.csv": "a;b\n1;2\n3;4;5\n",
    "one.txt": "x\n",
    "key": "5a" * 32,
    "short": "abc",
    "key.txt": "-----BEGIN PRIVATE KEY-----\n",
    "a.svg": "<svg></svg>",
    "a.html": "<!DOCTYPE html>",
    "relay.log": '{"time": "2026-01-01"}\n',
    "old.h5": "precious",
    "old.csv": "precious",
    "old.npz": "precious",
    "old.json": "precious",
    "old.png": "precious",
    "old.html": "precious",
    "four.csv": "id,time,value\n1,1,3\n1,2,2\n2,1,4\n2,2,2\n",
    "klinik.csv": "Kennung;A;B;Art;Ort\np0;1,5;2;x;3\np1;3;4,5;y;3\np2;2;2,5;x;3\n",
    "people.csv": "name,age,height,sick\nann,30,1.7,yes\nbob,41,1.8,no\ncid,52,1.9,no\n",
    "two.json": "[[0, 1], [2, 3, 4, 5]]",
    "alone.json": '{"clinic": [0, 1]}',
    "party0.json": '{"party0": [0, 1]}',
    "deep.toml": "x = " + "[" * 5000,
    "bad.toml": "[[party]",
    "columns.toml": '[[party]]\nfile = "radius.csv"\ncolumns = ["radios"]\n',
    "radius.csv": "radius,n components\n1,2\n3,4\n",
}
BYTES = {
    "empty.h5": b"",
    "breast_cancer.h5": b"",
    "a.png": b"\x89PNG\r\n",
    "a.pdf": b"%PDF-1.7",
    "a.bin": b"\0\1\2",
    "bytes.toml": b"\xff\xfe",
}


def vpem(line):
    assert vpem_cli.run([*line.split(), "-q"]) == 0, line


def write(path, **elements):
    """Write a bare HDF5 file."""
    with h5py.File(path, "w") as file:
        for name, value in elements.items():
            file[name] = value


def write_data(X, labels):
    """Write data that are wrong, or that other files do not go with."""
    write("few.h5", X=X[:4])
    write("four.h5", X=X[:, :4])
    write("less.h5", X=X[:, :5], feature_names=[*NAMES[:4], "other"])
    write("nameless.h5", X=X[:, :5])
    write("twice.h5", X=X, feature_names=["a", "b", "a", "c", "b", "d"])
    write_dataset("unlabelled.h5", Dataset(X, NAMES))
    Path("bad").mkdir()
    for name, elements in BAD_DATA.items():
        write(f"bad/{name}.h5", **elements)
    for word in ("nan", "inf", "-inf"):
        wrong = X.copy()
        wrong[17, 2] = wrong[30, 4] = float(word)
        write(f"bad/{word}.h5", X=wrong, feature_names=list(NAMES))
    gaps = X.copy()
    gaps[3, 1] = gaps[9, 4] = np.nan
    write_dataset("gaps.h5", Dataset(gaps, NAMES))
    with h5py.File("found.h5", "w") as file:
        file.attrs["encoding-type"] = "vpem-predictions"
    for name, columns in zip(AGENTS, HELD, strict=True):
        names, own = tuple(NAMES[j] for j in columns), labels if name == "clinic" else None
        ids = np.array([f"p{row:03d}" for row in range(len(X))])
        write_dataset(f"{name}.h5", Dataset(X[:, columns], names, ids=ids, labels=own))
    for name, ids in (
        ("bare", None),
        ("text-ids", ["1", "2", "3"]),
        ("no-ids", [-1, -2, -3]),
        ("twice-ids", [1, 2, 1]),
    ):
        column = None if ids is None else np.array(ids)
        write_dataset(f"{name}.h5", Dataset(np.ones((3, 1)), ("x",), ids=column))


def write_fits():
    vpem("fit d.h5 --max-iter 5 --tol 10 -o m.h5")
    vpem("kmeans d.h5 -o k.h5")
    vpem("fit gaps.h5 --missing marginalize --max-iter 2 --tol 10 -o g.h5")
    vpem("fit d.h5 -k 3 --seed 3 --max-iter 3 --tol 0 --checkpoint run.ckpt")
    vpem("select d.h5 -k 1-2 --max-iter 2 --jobs 1 --state s.h5")
    vpem(f"data split {ROOT / 'data' / 'breast_cancer.h5'} -o parts --agents 2 --drop-ids 0.5")
    for whole, cut in (("d.h5", "cut.h5"), ("run.ckpt", "cut.ckpt")):
        content = Path(whole).read_bytes()
        Path(cut).write_bytes(content[: len(content) // 2])
    Path("link.h5").symlink_to("d.h5")
    Path("m.json").write_bytes(Path("m.h5").read_bytes())
    Path("m-graph.png").write_bytes(Path("d.h5").read_bytes())
    vpem("fit klinik.csv --decimal , -k 1 -o klinik.h5")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with all that rows name."""
    home = tmp_path_factory.mktemp("refusals")
    with chdir(home):
        for name, text in TEXTS.items():
            Path(name).write_text(text)
        for name, content in BYTES.items():
            Path(name).write_bytes(content)
        for ending in (".h5", ".csv", ".npz"):
            Path(f"folder{ending}").mkdir()
        make_data(Path("d.h5"), n_samples=60)
        make_data(Path("other.h5"), n_samples=60, seed=5)
        make_data(Path("numbers.h5"), named=False)
        write_data(*overlapping(60))
        write_fits()
        fits_of_individuals(folder_of(home, "saem"))
        with chdir(folder_of(home, "impute")):
            write_birds()
            write_what_cannot_be_imputed()
        make_study(folder_of(home, "study"), "lab")
        Path("study/lab/x.csv").write_text("id,iron\nb,1\n")
        folder_of(home, "alone")
        with chdir("alone"):
            vpem("party init --name hub")
    return home


def state_of(home):
    """All files of a folder but locks of checkpoints, and what tells that one was changed."""
    state, folders = {}, [home]
    for folder in folders:
        for entry in os.scandir(folder):
            if not entry.name.endswith(".lock"):
                found = entry.stat(follow_symlinks=False)
                state[entry.path] = (found.st_ino, found.st_size, found.st_mtime_ns)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    return state


def test_it_is_refused_with_its_sentence_and_nothing_is_touched(capsys, monkeypatch, home):
    tried, before = 0, state_of(home)
    for at, file, text, line, said in rows():
        monkeypatch.chdir(home / at)
        if file is not None:
            Path(file).write_text(text, encoding="utf-8")
            before = state_of(home)
        words = line.split()
        with monkeypatch.context() as patch:
            if words[0].startswith("VPEM_"):
                patch.setenv(*words.pop(0).split("="))
            found = run(capsys, *words)
        where = f"vpem {line:.300}", text
        assert (found.code, found.out) == (2, ""), where
        *others, last = found.err.splitlines()
        assert last.startswith("vpem: error: "), where
        assert "vpem: error: " not in "".join(others), where
        place = 0
        for part in said.split("..."):
            assert part in last[place:], (*where, last)
            place = last.index(part, place) + len(part)
        assert state_of(home) == before, where
        tried += 1
    assert tried > 500


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="needs /dev/fd")
def test_a_pipe_is_no_file_to_write(capsys, monkeypatch, home):
    monkeypatch.chdir(home)
    ends = os.pipe()
    found = run(capsys, "fit", "d.h5", "-o", f"/dev/fd/{ends[1]}")
    assert (found.code, "is not an ordinary file" in found.sentence) == (2, True)
    for end in ends:
        os.close(end)


def test_all_options_that_are_numbers_read_them_alike(capsys, monkeypatch, home):
    """Two of the texts at each: whoever reads otherwise says something else of any."""
    monkeypatch.chdir(home)
    count, texts = 0, cycle(["--5", "1_0", "²", "٣", "five", " ", "1e", "0x1"])
    for path, command in leaves(vpem_cli.app.command()):
        for param in command.params:
            if (kind := kinds_of(command, param)) in ({int}, {float}):
                number = "an integer" if int in kind else "a number"
                for text in islice(texts, 2):
                    found = run(capsys, *path, max(param.opts, key=len), text)
                    begin = f"{name_of(param)} must be {number}, got {text!r}; see "
                    assert (found.code, found.sentence.startswith(begin)) == (2, True)
                count += 1
    assert count > 150


def test_it_was_no_matter_of_the_folder(capsys, monkeypatch, home):
    """The same commands without the faults succeed."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("VPEM_FIT_THREADS", "1")
    Path("g.txt").write_text("clinic lab\nlab registry\n")
    for line in (
        "fit d.h5 --graph g.txt -o a.h5",
        "fit d.h5 --partition two.json --topology path",
        "fit d.h5 --init-model m.h5",
        "predict m.h5 d.h5 -o a.csv",
        "evaluate m.h5 d.h5",
        "fit clinic.h5 lab.h5 --parties --align ids",
        "score m.h5 clinic.h5 registry.h5 lab.h5 --parties --align ids",
        "fit d.h5 -k 3 --seed 3 --max-iter 3 --tol 0 --checkpoint run.ckpt --resume",
        "fit d.h5 -k 2 --max-iter 3 --tol 10 --checkpoint run.ckpt --force",
    ):
        assert "error: " not in done(capsys, *line.split(), "-q").err
