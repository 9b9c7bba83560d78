"""The cases: command lines, by group and name. What they leave behind is in GROUP.json."""

from __future__ import annotations

from .inputs import FEW

Lines = str | tuple[str, ...]

WINE = f"fit data/wine.h5 -k 3 {FEW} --json"
CANCER = f"fit data/breast_cancer.h5 {FEW} --json"
PEOPLE = f"fit people.h5 {FEW} --json"
ROWS = f"fit people.csv --label-column label --split rows --workers 4 {FEW} --json"
NOISY = "--epsilon 8 --delta 1e-3 --bounds=-4,6 --repeatable-noise 1"

CASES: dict[str, dict[str, Lines]] = {
    "fit": {
        "one agent": WINE,
        "as text": f"fit data/wine.h5 -k 3 {FEW} -o m.h5",
        "diag": f"{WINE} --covariance diag",
        "spherical, standardized": f"{WINE} --covariance spherical --scale standard",
        "tied": f"{WINE} --covariance tied",
        "single precision": f"{PEOPLE} --dtype float32",
        "several numbers of components": f"fit people.csv --label-column label -k 1-3 {FEW} --json",
        "start at random": f"{WINE} --init random --seed 3",
        "start by k-means++": f"{WINE} --init k-means++ --seed 4 --n-init 2",
        "start at rows": f"{WINE} --init-rows 3,77,120",
        "start from a model": f"{WINE} --init-model wine.m.h5",
    },
    "sums": {
        "server": f"{CANCER} --topology star",
        "server, hops": f"{CANCER} --topology star --hops 1",
        "tree": f"{CANCER} --sum tree --hops 1",
        "consensus": f"{CANCER} --hops 1",
        "consensus as rounds": f"{CANCER} --consensus rounds --rounds 12",
        "consensus as a matrix": f"{CANCER} --consensus operator --acceleration none --rounds 30",
        "geometric graph": f"{CANCER} --topology geometric --graph-seed 2 --weights laplacian",
    },
    "rows": {
        "server": ROWS,
        "cycle": f"{ROWS} --topology cycle",
        "noise": f"{ROWS} {NOISY}",
    },
    "kmeans": {
        "rows": f"kmeans data/wine.h5 -k 3 --scale standard --workers 3 {FEW} --json",
        "features": f"kmeans data/wine.h5 -k 3 --split features --topology cycle {FEW} --json",
    },
    "fedem": {
        "whole steps": f"fedem data/wine.h5 -k 3 --workers 4 {FEW} --json",
        "quantized": f"fedem data/wine.h5 -k 3 --workers 4 --compress qsgd:6bits:32 {FEW} --json",
    },
    "impute": {
        "low rank": "impute entries.csv --rank 2 --ridge 0.5 --max-iter 6 --json",
        "mixture": f"impute holes.csv --drop label --method mixture {FEW} --json",
    },
    "saem": {
        "linear": "saem data/oxford_boys.csv --devices 4 --burn-in 6 --iterations 10 "
        "--conditional-draws 20 --tol 0 --json",
    },
    "use": {
        "predict": "predict wine.m.h5 data/wine.h5 --proba",
        "score": "score wine.m.h5 data/wine.h5 --json",
        "show": "show wine.m.h5 --json",
        "show as text": "show wine.m.h5",
        "evaluate": "evaluate wine.m.h5 data/wine.h5 --json",
        "sample": "sample wine.m.h5 -n 6",
    },
}
