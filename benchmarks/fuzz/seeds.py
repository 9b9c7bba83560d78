"""Small whole files of every kind that vpem reads, and how each is made."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

N_ROWS = 40
NAMES = ("height", "weight", "pulse", "age", "iron", "sugar")
AGENTS = ("clinic", "registry", "lab")
HELD = ((0, 3), (1,), (2, 4, 5))


def _rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of two clusters that overlap, and the cluster of each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=N_ROWS)
    mixing = np.eye(len(NAMES)) + 0.3 * rng.standard_normal((len(NAMES), len(NAMES)))
    return 2.0 * labels[:, None] + rng.standard_normal((N_ROWS, len(NAMES))) @ mixing, labels


def _ids() -> list[str]:
    return [f"p{row:03d}" for row in range(N_ROWS)]


# ---- files of HDF5 ------------------------------------------------------------------------------


def _dataset(path: Path, missing: bool = False) -> None:
    from vpem.files.datasets import Dataset, write_dataset
    from vpem.network.partition import evenly, from_lists

    X, labels = _rows()
    if missing:
        X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    whole = Dataset(
        X,
        NAMES,
        ids=np.array(_ids()),
        labels=np.array(["ill", "well"])[labels],
        partition=from_lists(HELD, len(NAMES), AGENTS),
        workers=evenly(N_ROWS, 3),
        edges=np.array([[0, 1], [1, 2]]),
    )
    write_dataset(path, whole)


def without_checksums(source: str) -> Callable[[Path], None]:
    """Return what copies a file to the oldest format of HDF5, whose metadata have no checksums."""

    def copy(path: Path) -> None:
        import h5py

        def again(name: str, item: object) -> None:
            # Copied by the library, it would stay in the newer format.
            made = new.require_group(name) if isinstance(item, h5py.Group) else None
            if made is None:
                made = new.create_dataset(name, data=item[()], dtype=item.dtype)
            made.attrs.update(item.attrs)

        with (
            h5py.File(path.with_name(source), "r") as old,
            h5py.File(path, "w", libver=("earliest", "v108")) as new,
        ):
            new.attrs.update(old.attrs)
            old.visititems(again)

    return copy


def _anndata(path: Path) -> None:
    import h5py

    X, _ = _rows()
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        file.attrs["encoding-version"] = "0.1.0"
        file.create_dataset("X", data=X.astype(np.float32), chunks=(20, 6), compression="gzip")
        for axis, names in (("obs", _ids()), ("var", NAMES)):
            file.create_group(axis).attrs["_index"] = "_index"
            file[axis]["_index"] = list(names)


def _shards(path: Path) -> None:
    from vpem import connect, fit_vpem, make_graph
    from vpem.fits.parts import write_shard
    from vpem.network.partition import from_lists

    X, _ = _rows()
    network = connect(make_graph("cycle", 3), from_lists(HELD, len(NAMES), AGENTS), hops=0)
    fit = fit_vpem(X, network, tol=1e-2)
    for place, columns in enumerate(network.blocks.features):
        name = f"shard-{network.hubs[place].root}.h5"
        names = [NAMES[column] for column in columns]
        write_shard(path.with_name(name), fit, place, AGENTS, names, {}, force=True)


def _entries(path: Path) -> None:
    from vpem.files.observations import read_observations, write_observations
    from vpem.terms.lowrank.entries import weighted

    found = read_observations(path.with_name("entries.csv"))
    write_observations(path, weighted(found, [1.0 + places % 3 for places in found.places]))


def _individuals(path: Path) -> None:
    from vpem.saem.formats.individuals import read_individuals, write_individuals

    write_individuals(path, read_individuals(path.with_name("growth.csv")))


# ---- text ---------------------------------------------------------------------------------------


def _lines(path: Path, lines: list[list[object]], mark: str = ",") -> None:
    path.write_text("".join(mark.join(map(str, line)) + "\n" for line in lines))


def _table(path: Path, columns: slice = slice(None), mark: str = ",") -> None:
    X, labels = _rows()
    lines = [["id", *NAMES[columns], "label"]]
    lines += [
        [name, *row, f"class {label}"]
        for name, row, label in zip(_ids(), X[:, columns].tolist(), labels, strict=True)
    ]
    _lines(path, lines, mark)


def _names(path: Path) -> None:
    X, labels = _rows()
    jobs = np.array(["nurse", "clerk", "farmer"])
    _lines(path, [["height", "job", "smoker", "visits"]] + [
        [row[0], jobs[int(abs(row[1])) % 3], "true" if label else "false", int(abs(row[2]))]
        for row, label in zip(X.tolist(), labels, strict=True)
    ])  # fmt: skip


def _parquet(path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(path.with_name("table.csv")), path)


def _feather(path: Path) -> None:
    import pyarrow.csv
    import pyarrow.feather

    pyarrow.feather.write_feather(pyarrow.csv.read_csv(path.with_name("table.csv")), path)


def _packed(path: Path) -> None:
    """Pack the table as the file's name says."""
    content = path.with_name("table.csv").read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("table.csv", content)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(content, mtime=0))
    else:
        path.write_bytes((bz2 if path.suffix == ".bz2" else lzma).compress(content))


def _german(path: Path) -> None:
    """Write the table as spreadsheets of other countries do."""
    lines = path.with_name("table.csv").read_text().replace(",", ";").replace(".", ",")
    path.write_bytes(lines.replace("height", "größe").encode("latin-1"))


def _npz(path: Path) -> None:
    X, labels = _rows()
    np.savez_compressed(path, X=X, feature_names=NAMES, ids=_ids(), labels=labels)


def _sparse_npz(path: Path) -> None:
    import scipy.sparse

    X, _ = _rows()
    scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(np.where(X > 1, X, 0)))


def _records() -> np.ndarray:
    X, labels = _rows()
    kinds = [("index", "S4"), ("values_block_0", "f8", (len(NAMES),)), ("label", "i8")]
    rows = [(name.encode(), row, label) for name, row, label in zip(_ids(), X, labels, strict=True)]
    return np.array(rows, kinds)


def _sparse(path: Path) -> None:
    """Write a sparse matrix of AnnData, with categories of its rows."""
    import h5py
    import scipy.sparse

    X, labels = _rows()
    _anndata(path)
    with h5py.File(path, "r+") as file:
        del file["X"]
        found = scipy.sparse.csr_matrix(np.where(X > 1, X, 0))
        file.create_group("X").attrs.update({"encoding-type": "csr_matrix", "shape": found.shape})
        for name in ("data", "indices", "indptr"):
            file.create_dataset(f"X/{name}", data=getattr(found, name), compression="gzip")
        file["obs/label/codes"], file["obs/label/categories"] = labels.astype("i1"), ["ill", "well"]


def _hdf5_records(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("table", data=_records(), compression="gzip")


def _manifest(path: Path) -> None:
    keys = 'ids = "id"\nlabels = "label"'
    path.write_text(
        f'[[party]]\nname = "clinic"\nfile = "left.csv"\ncolumns = ["height", "pulse"]\n{keys}\n\n'
        f'[[party]]\nname = "lab"\nfile = "right.csv"\n{keys}\n'
    )


def _curves(path: Path) -> None:
    rng = np.random.default_rng(0)
    lines: list[list[object]] = [["id", "time", "value", "dose"]]
    for person in range(8):
        level, slope = rng.normal(10.0, 2.0), rng.normal(1.0, 0.3)
        for time in range(5):
            value = level + slope * time + rng.normal(0, 0.3)
            lines.append([f"child {person}", time, round(value, 3), 4.0])
    _lines(path, lines)


def _items(path: Path) -> None:
    X, _ = _rows()
    lines: list[list[object]] = [["id", "time", "value"]]
    lines += [[f"p{r}", item, round(X[r, item], 4)] for r in range(N_ROWS) for item in range(6)]
    _lines(path, lines)


def _seen() -> list[list[object]]:
    """Entries of a matrix: row, column, value."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 2)) @ rng.normal(size=(2, 7))
    return [
        [f"row {i}", f"column {j}", round(X[i, j], 4)]
        for i in range(9)
        for j in range(7)
        if (i + 2 * j) % 5
    ]


def _entry_list(path: Path) -> None:
    lines = [[f"watch {number % 3}", *entry] for number, entry in enumerate(_seen())]
    _lines(path, [["observer", "row", "column", "value"], *lines])


def _party_entries(path: Path) -> None:
    lines = [[*entry, 1 + number % 3] for number, entry in enumerate(_seen())]
    _lines(path, [["row", "column", "value", "weight"], *lines])


def text(words: str) -> Callable[[Path], None]:
    """Return what writes these characters."""

    def write(path: Path) -> None:
        path.write_text(words)

    return write


def as_json(value: object) -> Callable[[Path], None]:
    """Return what writes this value as JSON."""
    return text(json.dumps(value))


GRAPHML = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="node" attr.name="place" attr.type="string"/>
  <graph edgedefault="undirected"><node id="clinic"><data key="d0">here</data></node>
    <node id="registry"/><node id="lab"/>
    <edge source="clinic" target="registry"/><edge source="registry" target="lab"/>
  </graph>
</graphml>
"""
NODES = {"id": "clinic"}, {"id": "registry"}, {"id": "lab"}
EDGES = {"source": "clinic", "target": "registry"}, {"source": "registry", "target": "lab"}

# ---- the table ----------------------------------------------------------------------------------

QUICK = "--max-iter 3 -q"
FIT = f"fit data.h5 -k 2 {QUICK} --tol 0"

SEEDS: dict[str, str | Callable[[Path], None]] = {
    "data.h5": _dataset,
    "old.h5": without_checksums("data.h5"),
    "holes.h5": partial(_dataset, missing=True),
    "dense.h5ad": _anndata,
    "model.h5": f"{FIT} -o model.h5",
    "cycle.h5": f"{FIT} --topology cycle --hops 1 -o cycle.h5",
    "workers.h5": f"{FIT} --split rows --workers 3 --covariance tied -o workers.h5",
    "fed.h5": f"fedem data.h5 -k 2 --workers 3 {QUICK} -o fed.h5",
    "old-model.h5": without_checksums("cycle.h5"),
    "clusters.h5": f"kmeans data.h5 -k 2 --workers 3 {QUICK} -o clusters.h5",
    "parts.h5": f"kmeans data.h5 -k 2 --split features {QUICK} -o parts.h5",
    "shard-0.h5": _shards,
    "shard-1.h5": _shards,
    "shard-2.h5": _shards,
    "straight.h5": "saem growth.csv --burn-in 5 --iterations 10 -q -o straight.h5",
    "factors.h5": "saem items.csv --model bifactor --groups 0,0,0,1,1,1 --burn-in 5 "
    "--iterations 10 -q -o factors.h5",
    "classes.h5": "saem items.csv --model gmm --burn-in 5 --iterations 10 -q -o classes.h5",
    "imputed.h5": "impute entries.csv -r 1 -q --max-iter 20 -o imputed.h5",
    "entries.h5": _entries,
    "individuals.h5": _individuals,
    "old-individuals.h5": without_checksums("individuals.h5"),
    "old-entries.h5": without_checksums("entries.h5"),
    "table.csv": _table,
    "table.tsv": partial(_table, mark="\t"),
    "names.csv": _names,
    "names.h5": "data import names.csv --family auto -o names.h5",
    "mixed.h5": f"fit names.csv -k 2 --family auto --agents 2 {QUICK} -o mixed.h5",
    "table.csv.gz": _packed,
    "table.parquet": _parquet,
    "table.csv.bz2": _packed,
    "table.csv.xz": _packed,
    "table.zip": _packed,
    "table.feather": _feather,
    "german.csv": _german,
    "rows.npy": lambda path: np.save(path, _rows()[0]),
    "rows.npz": _npz,
    "sparse.npz": _sparse_npz,
    "records.npy": lambda path: np.save(path, _records()),
    "sparse.h5ad": _sparse,
    "records.h5": _hdf5_records,
    "left.csv": partial(_table, columns=slice(0, 3)),
    "right.csv": partial(_table, columns=slice(3, 6)),
    "parties.toml": _manifest,
    "growth.csv": _curves,
    "items.csv": _items,
    "entries.csv": _entry_list,
    "seen.csv": _party_entries,
    "partition.json": as_json({"clinic": ["height", 3], "registry": [1], "lab": [2, 4, "sugar"]}),
    "rows.json": as_json({"north": list(range(20)), "south": list(range(20, N_ROWS))}),
    "devices.json": as_json(
        {"one": [f"child {n}" for n in range(4)], "two": [f"child {n}" for n in range(4, 8)]}
    ),
    "graph.json": as_json({"nodes": NODES, "edges": EDGES}),
    "graph.graphml": text(GRAPHML),
    "graph.txt": text("# who talks to whom\nclinic registry\nregistry lab\n"),
    "graph.csv": text("source,target\nclinic,registry\nregistry,lab\n"),
    "labels.txt": text("ill\nwell\n" * (N_ROWS // 2)),
    "key.txt": text("00112233445566778899aabbccddeeff" * 2),
    "hub.key": "party init --name hub",
    "hub.crt": "party init --name hub",
    "lab.key": "party init --name lab",
    "lab.crt": "party init --name lab",
    "heart.toml": "study init heart --as hub --star 127.0.0.1:443 -k 2",
    "lab.request": "party request heart.toml --as lab --features iron,sugar",
    "fit.toml": text('[fit]\ncomponents = 2\nmax-iter = 3\ncovariance = "diag"\nquiet = true\n'),
}
"""How each file is made: by a command, whose inputs are made first, or by a function."""

CHECKPOINTS = {
    "plain": FIT,
    "starts": f"{FIT} --n-init 2",
    "rounds": f"{FIT} --topology cycle --link-failure 0.1",
    "packed": f"{FIT} --topology cycle --compress natural:12bits",
    "batches": f"{FIT} --batch-size 20",
    "stochastic": f"{FIT} --batch-size 20 --step-size 0.6",
    "dropout": f"{FIT} --topology cycle --agent-dropout 0.1",
    "packed-server": f"{FIT} --compress natural:12bits",
    "rowwise": f"{FIT} --split rows --workers 3",
    "rowgraph": f"{FIT} --split rows --workers 3 --topology cycle",
    "holes": f"fit holes.h5 -k 2 {QUICK} --tol 0 --missing marginalize",
    "lloyd": f"kmeans data.h5 -k 2 --workers 3 --n-init 2 {QUICK}",
    "lloyd-cycle": f"kmeans data.h5 -k 2 --workers 3 --topology cycle {QUICK}",
    "lloyd-features": f"kmeans data.h5 -k 2 --split features --n-init 2 {QUICK}",
    "fedem": f"fedem data.h5 -k 2 --workers 3 --compress qsgd:6bits {QUICK}",
    "vr": f"fedem data.h5 -k 2 --workers 3 --variance-reduction --batch-size 5 {QUICK}",
    "impute": "impute entries.csv -r 1 -q --max-iter 4",
    "impute-vr": "impute entries.csv -r 1 -q --max-iter 4 --batch-size 4 --variance-reduction",
    "search": "select data.h5 -k 1-2 --jobs 1 -q --max-iter 3 --tol 0",
    "folds": "select data.h5 -k 1-2 --jobs 1 -q --max-iter 3 --criterion heldout --folds 2",
}
"""Runs that keep checkpoints, by the names of these (without .ckpt)."""


def keeping(words: str, file: str, how: str = "") -> str:
    """Return the words of a run that keeps its state in a file, or goes on from there."""
    if words.startswith("select"):
        return f"{words} --state {file}"
    return f"{words} --checkpoint-every 2 --checkpoint {file} {how}"


def longer(words: str) -> str:
    """Return the words of a run of twice as many iterations: it goes on from its state."""
    return re.sub(r"--max-iter (\d+)", lambda found: f"--max-iter {2 * int(found[1])}", words)


SEEDS |= {f"{name}.ckpt": keeping(words, f"{name}.ckpt") for name, words in CHECKPOINTS.items()}

NEEDED = {
    "old.h5": ("data.h5",),
    "old-model.h5": ("cycle.h5",),
    "old-individuals.h5": ("individuals.h5",),
    "old-entries.h5": ("entries.h5",),
    "entries.h5": ("entries.csv",),
    "individuals.h5": ("growth.csv",),
    **dict.fromkeys(
        (
            "table.csv.gz",
            "table.parquet",
            "table.feather",
            "table.csv.bz2",
            "table.csv.xz",
            "table.zip",
            "german.csv",
        ),
        ("table.csv",),
    ),
    "parties.toml": ("left.csv", "right.csv"),
    "heart.toml": ("hub.key", "hub.crt"),
    "lab.request": ("heart.toml", "lab.key", "lab.crt"),
}
"""What a function, or a command in its file, reads."""


BESIDE = ("parties.toml", "heart.toml", "lab.request")
"""Seeds whose readers read those that they need, too."""


def files_in(words: list[str]) -> Iterator[str]:
    """Yield the seeds that the words of a command name, and what those name in turn."""
    for word in words:
        if word in SEEDS:
            yield word
            if word in BESIDE:
                yield from files_in(list(NEEDED[word]))


def make_seeds(folder: Path, wanted: list[str]) -> None:
    """Make the files of these names, and what they are made of, where they are not there yet."""
    import vpem_cli

    for name in wanted:
        path = folder / name
        if path.exists():
            continue
        how = SEEDS[name]
        words = shlex.split(how) if isinstance(how, str) else []
        needed = [*NEEDED.get(name, ()), *(word for word in files_in(words) if word != name)]
        make_seeds(folder, needed)
        if callable(how):
            how(path)
        elif vpem_cli.run(words):
            raise RuntimeError(f"{name} could not be made: vpem {how}")
        if not path.exists():
            raise RuntimeError(f"vpem {how} has not made {name}")
