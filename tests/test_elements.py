"""Every element of a file that vpem reads may be anything: it is refused in a sentence, or used."""

import json
import shutil

import h5py
import numpy as np
import pytest

import vpem_cli
from vpem.errors import VpemError
from vpem.files.models import read_model
from vpem.files.observations import read_observations, write_observations
from vpem.files.results import read_clustering, read_imputed
from vpem.saem.formats.fits import read_saem
from vpem.saem.formats.individuals import read_individuals, write_individuals

from .cli_support import make_data, run

QUICK = "-q --max-iter 2"
KINDS = {
    "model": (f"fit d.h5 -k 2 --topology cycle {QUICK} -o model.h5", read_model),
    "clusters": (
        f"kmeans d.h5 -k 2 --workers 2 --scale standard {QUICK} -o clusters.h5", read_clustering,
    ),
    "saem": ("saem long.csv --burn-in 2 --iterations 4 -q -o saem.h5", read_saem),
    "imputation": (f"impute entries.csv -r 1 {QUICK} -o imputation.h5", read_imputed),
    "observations": (lambda: write_observations(
        "observations.h5", read_observations("entries.csv")), read_observations),
    "individuals": (lambda: write_individuals(
        "individuals.h5", read_individuals("long.csv")), read_individuals),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_data(folder / "d.h5", n_samples=30)
        rng = np.random.default_rng(0)
        lines = [f"{n},{t},{5 + n + t * (1 + n % 3) + rng.normal(0, 0.2):.3f}\n"
                 for n in range(6) for t in range(4)]  # fmt: skip
        (folder / "long.csv").write_text("id,time,value\n" + "".join(lines))
        cells = [f"{(i + j) % 2},{i},{j},{rng.normal():.3f}\n" for i in range(5) for j in range(4)]
        (folder / "entries.csv").write_text("observer,row,column,value\n" + "".join(cells))
        for how, _ in KINDS.values():
            if callable(how):
                how()
            else:
                assert vpem_cli.run(how.split()) == 0, how
    return folder


def elements(file):
    """Names of datasets, and of attributes behind an ``@``."""
    found = [f"@{name}" for name in file.attrs]

    def note(name, item):
        if isinstance(item, h5py.Dataset):
            found.append(name)
        elif name.startswith("hubs/"):
            found.extend(f"{name}@{one}" for one in item.attrs)

    file.visititems(note)
    return found


def some(values, value):
    made = values.copy()
    made.reshape(-1)[:1] = value
    return made


NUMBERS = {
    "as text": lambda v: np.full(v.shape, b"x"),
    "as true": lambda v: np.ones(v.shape, bool),
    "as complex": lambda v: v.astype(complex),
    "as integers": lambda v: np.nan_to_num(v).astype("i8"),
    "as bytes": lambda v: np.nan_to_num(v).astype("u1"),
    "as unsigned": lambda v: np.full(v.shape, 2**64 - 1, "u8"),
    "as long double": lambda v: np.full(v.shape, np.finfo(np.longdouble).max),
    "as float16": lambda v: v.astype("f2"),
    "flat": lambda v: v.reshape(-1),
    "one more dimension": lambda v: v[None],
    "shorter": lambda v: v.reshape(-1)[:-1] if v.ndim < 2 else v[:-1],
    "transposed": lambda v: v.T,
    "none": lambda v: v.reshape(-1)[:0],
    "empty": lambda v: h5py.Empty("f8"),
    "negated": lambda v: -v,
    "huge": lambda v: some(v, np.iinfo(v.dtype).max if v.dtype.kind in "iu" else 1e308),
    "nan": lambda v: some(v.astype(float), np.nan),
    "infinite": lambda v: some(v.astype(float), np.inf),
    "zero": lambda v: v * 0,
}
TEXTS = {
    "as numbers": lambda v: np.arange(len(v)),
    "no UTF-8": lambda v: np.full(v.shape, b"\xff\xfe"),
    "shorter": lambda v: v[:-1],
    "one only": lambda v: np.full(v.shape, v[:1]),
    "a table": lambda v: v[None],
    "empty text": lambda v: np.full(v.shape, b""),
}
ATTRIBUTES = (b"x", "", 0, -1, 2**62, 1.5, np.nan, True, np.arange(3), h5py.Empty("f8"), 1j)
ODD = (None, "x", -1, 2**70, 1.5, True, [], [None], [[1], [1, 2]], {}, {"x": 1}, {"x": {}})


def changes(file, name):
    """Yield what changes an element, by how."""
    if "@" in name:
        where, _, attribute = name.partition("@")
        for value in ATTRIBUTES:
            yield str(value), lambda f, v=value: f[where or "/"].attrs.__setitem__(attribute, v)
        yield "removed", lambda f: f[where or "/"].attrs.__delitem__(attribute)
        return
    values = np.asarray(file[name][()])

    def put(made):
        def change(f):
            del f[name]
            f.create_dataset(name, data=made)

        return change

    if values.dtype == np.uint8 and values.ndim == 1:
        held = json.loads(values.tobytes())
        for how, other in json_changes(held):
            yield how, put(np.frombuffer(json.dumps(other).encode(), np.uint8))
    else:
        for how, change in (NUMBERS if values.dtype.kind in "iufb" else TEXTS).items():
            with np.errstate(all="ignore"):
                yield how, put(change(values))
    yield "removed", lambda f: f.__delitem__(name)


def json_changes(held, path=""):
    """Yield an object with each value that is read again replaced, or gone."""
    for number, (key, value) in enumerate(held.items()):
        yield f"{path}{key} gone", {k: v for k, v in held.items() if k != key}
        for odd in ODD[number % 6 :: 6]:
            yield f"{path}{key}: {odd}", {**held, key: odd}
        if isinstance(value, dict):
            for how, inside in json_changes(value, f"{path}{key}."):
                yield how, {**held, key: inside}


def refusal(read):
    """What a reader says of a file; None if it takes it."""
    try:
        read("one.h5")
    except VpemError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_any_element_may_be_anything(files, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    seed, read = files / f"{kind}.h5", KINDS[kind][1]
    with h5py.File(seed) as file:
        table = [(name, *one) for name in elements(file) for one in changes(file, name)]
    # Every third, for time: how a thing is changed goes around with what is changed.
    table = [one for one in table if not one[0].startswith(("hubs/1", "hubs/2"))][::3]
    refused = taken = 0
    for name, how, change in table:
        shutil.copyfile(seed, "one.h5")
        with h5py.File("one.h5", "a") as file, np.errstate(all="ignore"):
            change(file)
        sentence = refusal(read)
        if sentence is not None:
            assert "one.h5" in sentence, (name, how)
            assert "\n" not in sentence
            refused += 1
            continue
        taken += 1
        # Printed of some only, for time; what is printed is the same code for all.
        if taken % 20 == 0 and kind in ("model", "clusters", "saem"):
            result = run(capsys, "model", "show", "one.h5")
            assert result.code in (0, 2), (name, how, result.err)
    assert min(refused, taken) > 5
