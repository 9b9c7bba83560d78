"""A small file of every kind that vpem writes: how each was made, and what still reads it.

The files lie in ``files/`` as an earlier vpem has written them, and are not written again: what
people have on their disks must be read by later ones, or refused by a sentence.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from .runner import Workshop

Lines = str | tuple[str, ...]

SHORT = "--max-iter 3 -q"
ROWS = "people.csv --label-column label"
FIT = f"fit {ROWS} {SHORT}"
GAPS = f"fit holes.csv --label-column label --missing marginalize {SHORT}"
QUICK = "--burn-in 3 --iterations 5 --tol 0 --conditional-draws 3 --importance-draws 10 -q"
LINES = f"saem growth.csv --missing marginalize {QUICK}"
ENTRIES = "impute entries.csv --rank 1 --ridge 1 --max-iter 4 -q"
DAYS = "--days 3660 -q"

MADE: dict[str, str] = {
    # mixtures
    "fit.h5": f"{FIT} -o fit.h5",
    "cycle.h5": f"{FIT} --agents 3 --topology cycle --hops 1 -o cycle.h5",
    "spheres.h5": f"{FIT} --agents 2 --covariance tied-spherical --scale standard -o spheres.h5",
    "single.h5": f"{FIT} --covariance diag --dtype float32 -o single.h5",
    "rows.h5": f"{FIT} --split rows --workers 3 --topology cycle -o rows.h5",
    "gaps.h5": f"{GAPS} --agents 2 -o gaps.h5",
    "families.h5": f"fit mixed.csv --family auto --agents 2 {SHORT} -o families.h5",
    "factors.h5": f"{FIT} --agents 3 --factors 1 -o factors.h5",
    "posterior.h5": f"{FIT} -k 3 --prior dirichlet_process -o posterior.h5",
    "mode.h5": f"{FIT} --prior map -o mode.h5",
    "labelled.h5": f"{FIT} --agents 2 --labels-for-fit known.csv -o labelled.h5",
    "together.h5": "fit left.csv middle.csv right.csv --parties --align ids "
    f"{SHORT} -o together.h5",
    "private.h5": "fit data/wine.h5 --features alcohol,hue --split rows --workers 3 "
    "--covariance tied-spherical --epsilon 15 --delta 1e-3 --bounds 11,15;0.4,1.8 "
    f"--repeatable-noise 1 {SHORT} -o private.h5",
    "released.h5": "fit data/wine.h5 --features alcohol,hue --agents 2 --covariance diag "
    "--release-epsilon 15 --delta 1e-3 --bounds 11,15;0.4,1.8 --repeatable-noise 1 "
    f"{SHORT} -o released.h5",
    "fedem.h5": f"fedem {ROWS} --workers 3 --compress qsgd:8bits {SHORT} -o fedem.h5",
    "vr.h5": f"fedem {ROWS} --workers 3 --variance-reduction {SHORT} -o vr.h5",
    "part.agent-0.h5": f"mpiexec 2 {FIT} --agents 2 --topology path --shards -o part.h5",
    "part.agent-1.h5": "",
    # clusters, imputations, fits of SAEM, traces
    "trace.h5": f"{FIT} --agents 2 --trace trace.h5",
    "clusters.h5": f"kmeans {ROWS} --workers 3 --scale standard {SHORT} -o clusters.h5",
    "features.h5": f"kmeans {ROWS} --split features --topology cycle {SHORT} -o features.h5",
    "grid.h5": f"kmeans {ROWS} --split features --method grid --n-init 10 -q -o grid.h5",
    "filled.h5": f"{ENTRIES} -o filled.h5",
    "counted.h5": "impute counts.csv --law poisson --rank 1 --ridge 1 --max-iter 3 -q "
    "-o counted.h5",
    "drawn.h5": f"impute holes.csv --drop label --method mixture --draws 2 {SHORT} -o drawn.h5",
    "lines.h5": f"{LINES} --devices 2 -o lines.h5",
    "effects.h5": f"{LINES} --effects intercept:weight --sampler metropolis -o effects.h5",
    "doses.h5": "saem doses.csv --model one-compartment --parameters cl,v --random cl "
    f"{QUICK} -o doses.h5",
    "chambers.h5": "saem doses.csv --model two-compartment --parameters cl,v1,q,v2 --random cl "
    f"{QUICK} -o chambers.h5",
    "bend.h5": f"saem data/oxford_boys.csv --model curve --curve logistic {QUICK} -o bend.h5",
    "own.h5": "saem growth.csv --missing marginalize --model curve --curve own.py:height "
    f"{QUICK} -o own.h5",
    "items.h5": f"saem items.csv --model bifactor --groups 0,0,0,1,1,1 {QUICK} -o items.h5",
    "classes.h5": f"saem trio.csv --model gmm {QUICK} -o classes.h5",
    "topics.h5": f"saem words.csv --model lda -k 2 {QUICK} -o topics.h5",
    # data, and tables of results
    "data.h5": f"data import {ROWS} --partition partition.json -q -o data.h5",
    "mixed.h5": "data import mixed.csv --family auto --agents 2 -q -o mixed.h5",
    "weighed.h5": "data import weighed.csv --sample-weight copies --worker-column site -q "
    "-o weighed.h5",
    "drawn-rows.h5": "data simulate -n 30 -d 3 -k 2 --agents 2 -q -o drawn-rows.h5",
    "samples.h5": "sample files/families.h5 -n 5 -q -o samples.h5",
    "predictions.h5": "predict files/fit.h5 people.csv --proba -q -o predictions.h5",
    "predictions.csv": "predict files/fit.h5 people.csv --proba -q -o predictions.csv",
    "predictions.parquet": "predict files/fit.h5 people.csv --proba -q -o predictions.parquet",
    "labels.h5": f"{FIT} --labels labels.h5",
    "contributions.h5": "model contribution files/cycle.h5 people.csv -q -o contributions.h5",
    "curves.h5": "predict files/lines.h5 growth.csv -q -o curves.h5",
    "latents.h5": "predict files/lines.h5 growth.csv --latents -q -o latents.h5",
    "residuals.h5": "predict files/lines.h5 growth.csv --residuals -q -o residuals.h5",
    "individuals-of-fit.h5": f"{LINES} --individuals individuals-of-fit.h5",
    "words-of-topics.h5": f"saem words.csv --model lda -k 2 {QUICK} --topics words-of-topics.h5",
    "imputed.csv": f"{ENTRIES} -o imputed.csv",
    "imputed.parquet": f"{ENTRIES} -o imputed.parquet",
    "fit.npz": "model export files/fit.h5 -q -o fit.npz",
    "fit.json": "model export files/families.h5 -q -o fit.json",
    "profile.svg": "plot files/spheres.h5 -q -o profile.svg",
    "policy.toml": "party policy > policy.toml",
    "options.toml": "fit people.csv --config fit.toml --show-config > options.toml",
}
"""How each was made; without a command by the one before it. Checkpoints follow."""

CHECKPOINTS = {
    "plain": FIT,
    "starts": f"{FIT} --n-init 2",
    "rounds": f"{FIT} --agents 3 --topology cycle --link-failure 0.1",
    "packed": f"{FIT} --agents 3 --topology cycle --compress natural:12bits",
    "packed-server": f"{FIT} --agents 3 --topology star --compress natural:12bits",
    "dropout": f"{FIT} --agents 3 --topology cycle --agent-dropout 0.1",
    "tree": f"{FIT} --agents 3 --sum tree --topology path --hops 1",
    "batches": f"{FIT} --agents 2 --batch-size 20",
    "stochastic": f"{FIT} --agents 2 --batch-size 20 --step-size 0.6",
    "squarem": f"{FIT} --accelerate squarem",
    "gaps": f"{GAPS} --agents 2",
    "families": f"fit mixed.csv --family auto --agents 2 {SHORT}",
    "factors": f"{FIT} --agents 3 --factors 1",
    "posterior": f"{FIT} -k 3 --prior dirichlet_process",
    "rowwise": f"{FIT} --split rows --workers 3",
    "rowgraph": f"{FIT} --split rows --workers 3 --topology cycle",
    "lloyd": f"kmeans {ROWS} --workers 3 --n-init 2 {SHORT}",
    "lloyd-cycle": f"kmeans {ROWS} --workers 3 --topology cycle {SHORT}",
    "lloyd-features": f"kmeans {ROWS} --split features --participation 0.7 {SHORT}",
    "fedem": f"fedem {ROWS} --workers 3 --compress qsgd:6bits {SHORT}",
    "vr": f"fedem {ROWS} --workers 3 --variance-reduction --batch-size 5 {SHORT}",
    "impute": ENTRIES,
    "impute-vr": f"{ENTRIES} --batch-size 4 --variance-reduction",
    "saem": f"{LINES} --devices 2 --compress qsgd:8bits",
    "saem-classes": f"saem trio.csv --model gmm {QUICK}",
    "saem-topics": f"saem words.csv --model lda -k 2 {QUICK}",
    "search": f"select {ROWS} -k 1-2 --jobs 1 {SHORT}",
    "folds": f"select {ROWS} -k 1-2 --jobs 1 --criterion heldout --folds 2 {SHORT}",
    "replicates": f"bootstrap {ROWS} --jobs 1 --replicates 2 {SHORT}",
}
"""Runs that keep their state, by the names of the files (without .ckpt)."""


def keeping(words: str, file: str, how: str = "") -> str:
    """Return the words of a run that keeps its state in a file, or goes on from there."""
    if words.startswith(("select", "bootstrap")):
        return f"{words} --state {file}"
    return f"{words} --checkpoint {file} {how}".strip()


MADE |= {f"{name}.ckpt": keeping(words, f"{name}.ckpt") for name, words in CHECKPOINTS.items()}

MEMBERS = (
    f"party init --name hub {DAYS}",
    f"party init --name relay {DAYS}",
    f"party init --name lab {DAYS}",
    "study init heart --as hub --relay 127.0.0.1:PORT --relay-certificate relay.crt --timeout 60 "
    f"--topology path --align ids -k 2 {SHORT}",
    "party request heart.toml --as hub --features height,weight -q",
    "study approve hub.request --yes -q",
    "party request heart.toml right.csv --as lab -q",
    "study approve lab.request --yes -q",
    "fit --study heart.toml --as hub left.csv -q || "
    "fit --study heart.toml --as lab right.csv -q || relay heart.toml --log relay.log -q",
)
"""The walk of a study, and its run."""

OF_MEMBERS = (
    "hub.key", "hub.crt", "lab.key", "lab.crt", "relay.crt", "lab.request", "heart.toml",
    "heart.known", "lab/lab-heart.log", "lab/data.spent", "lab/data.spent.key", "relay.log",
)  # fmt: skip
"""What is left behind by that."""


def observations(path: Path) -> None:
    """Write entries of a matrix as Python programs do."""
    from vpem.files.observations import read_observations, write_observations
    from vpem.terms.lowrank.entries import weighted

    found = read_observations(path.with_name("entries.csv"))
    write_observations(path, weighted(found, [1.0 + places % 3 for places in found.places]))


def individuals(path: Path) -> None:
    """Write individuals as Python programs do."""
    from vpem.saem.formats.individuals import read_individuals, write_individuals

    write_individuals(path, read_individuals(path.with_name("doses.csv"), doses={}))


WRITTEN = {
    "observations.h5": (observations, "entries.csv"),
    "individuals.h5": (individuals, "doses.csv"),
}
"""Files that programs make, and what of."""


DATA = {
    "families.h5": "mixed.csv", "gaps.h5": "holes.csv", "private.h5": "data/wine.h5",
    "released.h5": "data/wine.h5", "doses.h5": "doses.csv", "chambers.h5": "doses.csv",
    "bend.h5": "data/oxford_boys.csv", "items.h5": "items.csv", "classes.h5": "trio.csv",
    "topics.h5": "words.csv", "lines.h5": "growth.csv", "effects.h5": "growth.csv",
    "own.h5": "growth.csv --curve own.py:height",
}  # fmt: skip
"""What models are held against that are not of people.csv."""

MIXTURES = (
    "fit.h5", "cycle.h5", "spheres.h5", "single.h5", "rows.h5", "gaps.h5", "families.h5",
    "factors.h5", "posterior.h5", "mode.h5", "labelled.h5", "together.h5", "private.h5",
    "released.h5", "fedem.h5", "vr.h5", "clusters.h5", "features.h5", "grid.h5",
)  # fmt: skip
FITS = ("lines.h5", "effects.h5", "doses.h5", "chambers.h5", "bend.h5", "own.h5", "items.h5",
        "classes.h5", "topics.h5")  # fmt: skip
RESULTS = (
    "predictions.h5", "labels.h5", "contributions.h5", "curves.h5", "latents.h5", "residuals.h5",
    "individuals-of-fit.h5", "words-of-topics.h5", "filled.h5", "counted.h5", "drawn.h5",
    "trace.h5",
)  # fmt: skip


AS_IT_WAS = ("starts", "search", "folds", "replicates")
"""Checkpoints of runs that cannot be made longer."""


def longer(words: str) -> str:
    """Return the words of a run of more iterations: it goes on from its state."""
    for short, long in (("--max-iter 3", "--max-iter 5"), ("--max-iter 4", "--max-iter 6"),
                        ("--iterations 5", "--iterations 7")):  # fmt: skip
        words = words.replace(short, long)
    return words.replace(" -q", "")


READ: dict[str, Lines] = (
    {
        name: (f"show files/{name}", f"score files/{name} {DATA.get(name, 'people.csv')} --json")
        for name in (*MIXTURES, *FITS)
    }
    | {f"{name}, predicted": f"predict files/{name} {DATA.get(name, 'people.csv')}"
       for name in (*MIXTURES[:2], *FITS, "families.h5", "clusters.h5")}
    | {name: f"show files/{name} --json" for name in RESULTS}
    | {
        f"{name}.ckpt": keeping(
            words if name in AS_IT_WAS else longer(words), f"files/{name}.ckpt", "--resume"
        )
        for name, words in CHECKPOINTS.items()
    }
    | {
        "part.agent-0.h5, part.agent-1.h5": (
            "show files/part.agent-0.h5",
            "model join files/part.agent-0.h5 files/part.agent-1.h5 -o joined.h5",
            "score joined.h5 people.csv --json",
        ),
        "plain.ckpt, shown": "show files/plain.ckpt --json",
        "filled.h5, exported": "model export files/filled.h5 -o filled.csv",
        "data.h5": ("data describe files/data.h5", f"fit files/data.h5 {SHORT} --json"),
        "mixed.h5": ("show files/mixed.h5", "score files/families.h5 files/mixed.h5 --json"),
        "weighed.h5": f"kmeans files/weighed.h5 --sample-weight sample_weight {SHORT} --json",
        "drawn-rows.h5": f"kmeans files/drawn-rows.h5 {SHORT} --json",
        "samples.h5": "score files/families.h5 files/samples.h5 --json",
        "observations.h5": "impute files/observations.h5 --sample-weight sample_weight --rank 1 "
        "--ridge 1 --max-iter 3 -q --json",
        "individuals.h5": "score files/doses.h5 files/individuals.h5 --json",
        "predictions.csv": "data describe files/predictions.csv --json",
        "predictions.parquet": "data describe files/predictions.parquet --json",
        "imputed.csv": "data describe files/imputed.csv --json",
        "imputed.parquet": "data describe files/imputed.parquet --json",
        "fit.npz": "show files/fit.npz --json",
        "fit.json": "show files/fit.json",
        "profile.svg": "show files/profile.svg",
        "policy.toml": "show files/policy.toml --json",
        "options.toml": "fit people.csv --config files/options.toml --label-column label -q --json",
        "heart.toml, heart.known": "study show files/heart.toml --json",
        "lab.request": ("show files/lab.request", "party show files/lab.request --json"),
        "hub.key": "show files/hub.key",
        "hub.key, hub.crt": (
            "study change files/heart.toml -k 3", "party show files/hub.crt --json"
        ),
        "lab.key, lab.crt": "party request files/heart.toml right.csv --as lab",
        "relay.crt": "show files/relay.crt",
        "lab-heart.log": "party log files/lab-heart.log",
        "relay.log": "show files/relay.log",
        "data.spent, data.spent.key": "party budget files/heart.toml --json",
    }
)  # fmt: skip
"""What reads each file: it prints what it printed when that was kept."""


def names() -> list[str]:
    """Return the names of all files."""
    return [*MADE, *WRITTEN, *(Path(name).name for name in OF_MEMBERS)]


def make(shop: Workshop, anew: bool = False) -> Iterator[str]:
    """Make the files that are not there, or all: yield the names."""
    shop.made = {}  # names of these files are others' too
    shop.kept.mkdir(exist_ok=True)
    wanted = [name for name in names() if anew or not (shop.kept / name).exists()]
    made = list(MADE)
    for name in [name for name in MADE if name in wanted]:
        line = MADE[name] or MADE[made[made.index(name) - 1]]
        _take(shop, (line,), (name,))
    if any(Path(name).name in wanted for name in OF_MEMBERS):
        _take(shop, MEMBERS, OF_MEMBERS)
    for name, (write, source) in WRITTEN.items():
        if name in wanted:
            (shop.home / source).write_text(shop.texts[source], encoding="utf-8")
            write(shop.home / name)
            shutil.copy(shop.home / name, shop.kept / name)
    yield from wanted


def _take(shop: Workshop, lines: tuple[str, ...], files: tuple[str, ...]) -> None:
    """Run command lines, and copy files that they have written."""

    def copy(folder: Path) -> None:
        for name in files:
            shutil.copyfile(folder / name, shop.kept / Path(name).name)
            if name.endswith(".spent"):  # it names data by their paths
                file = shop.kept / Path(name).name
                file.write_text(file.read_text().replace(str(folder), "/home"), encoding="utf-8")

    found = shop.run(list(lines), copy)
    wrong = [step for step in found["steps"] if step["code"]]
    if wrong:
        raise RuntimeError(f"{files[0]} could not be made: {wrong[0]}")
