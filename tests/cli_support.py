"""Run the command line, inside this process or as a process of its own, on small data."""

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import get_args

import numpy as np

import vpem_cli.app
from vpem.files.datasets import Dataset, write_dataset
from vpem.network.partition import from_lists

from .forks import MAIN, ROOT, interpreter  # noqa: F401

NAMES = ("height", "weight", "pulse", "age", "iron", "sugar")
HELD = ((0, 3), (1,), (2, 4, 5))
AGENTS = ("clinic", "registry", "lab")


# The tree of commands is the same every time, and making it takes as long as a small fit.
vpem_cli.app.command = cache(vpem_cli.app.command)


@dataclass
class Result:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one JSON object on stdout; anything else there is an error."""
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=lambda word: 1 / 0)

    @property
    def sentence(self):
        """The one error line on stderr, without its beginning."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("vpem: error: ")
        return lines[0].removeprefix("vpem: error: ")


def run(capsys, *words):
    """Run one command inside this process."""
    capsys.readouterr()
    code = vpem_cli.run([str(word) for word in words])
    return Result(code, *capsys.readouterr())


def done(capsys, *words):
    """Run one command that must succeed."""
    result = run(capsys, *words)
    assert result.code == 0, result.err
    return result


def spawn(*words, **options):
    """Run one command as a process of its own."""
    command = [interpreter(), "-c", MAIN, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


def kinds_of(leaf, param):
    """Types that a parameter of a command may have, as its function declares them."""
    kind = leaf.callback.__annotations__[param.name].__origin__
    return {*(get_args(kind) or [kind])} - {NoneType}


def overlapping(n_samples=150, n_features=6, n_components=2, gap=1.6, seed=0):
    """Rows of correlated clusters that overlap, and the cluster of each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_components, size=n_samples)
    centres = gap * rng.standard_normal((n_components, n_features)) / np.sqrt(2)
    mixing = np.eye(n_features) + 0.3 * rng.standard_normal((n_features, n_features))
    return centres[labels] + rng.standard_normal((n_samples, n_features)) @ mixing, labels


def make_data(path, *, named=True, **options):
    """Write a dataset: six features of three agents on a path, or bare numbers."""
    X, labels = overlapping(**options)
    if not named:
        source = Dataset(X, tuple(f"feature {j}" for j in range(X.shape[1])))
    else:
        source = Dataset(
            X,
            NAMES,
            ids=np.array([f"p{row:03d}" for row in range(len(X))]),
            labels=np.array(["ill", "well", "unsure"])[labels],
            partition=from_lists(HELD, len(NAMES), AGENTS),
            edges=np.array([[0, 1], [1, 2]]),
        )
    write_dataset(path, source)
    return path


def listing(folder):
    """Name and bytes of every file of a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
