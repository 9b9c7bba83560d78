"""The cases: command lines, by group and name. What they leave behind is in GROUP.json."""

from __future__ import annotations

from .files import READ
from .inputs import FEW

Lines = str | tuple[str, ...]

WINE = f"fit data/wine.h5 -k 3 {FEW} --json"
CANCER = f"fit data/breast_cancer.h5 {FEW} --json"
TABLE = f"fit people.csv --label-column label {FEW} --json"
HOLES = f"fit holes.csv --label-column label --missing marginalize {FEW} --json"
MIXED = f"fit mixed.csv {FEW} --json"
ROWS = f"fit people.csv --label-column label --split rows --workers 4 {FEW} --json"
NOISY = (
    "data/wine.h5 --features alcohol,hue,ash --bounds 11,15;0.4,1.8;1.3,3.3 --delta 1e-3 "
    f"--repeatable-noise 1 {FEW} --json"
)
ON_ROWS = f"kmeans data/wine.h5 -k 3 --scale standard --workers 4 {FEW} --json"
ON_FEATURES = f"kmeans data/wine.h5 -k 3 --scale standard --split features --agents 4 {FEW} --json"
FEDEM = f"fedem data/wine.h5 -k 3 --covariance diag --workers 4 {FEW} --json"
ENTRIES = "impute entries.csv --rank 2 --ridge 0.5 --max-iter 5 --json"
SHORT = "--burn-in 4 --iterations 7 --tol 0 --conditional-draws 8 --importance-draws 40 --json"
GROWTH = f"saem growth.csv --missing marginalize --devices 3 {SHORT}"
THEO = f"saem data/theophylline.csv --model one-compartment --random ka,cl --chains 2 {SHORT}"
PARTIES = {"clinic": "left.csv", "lab": "right.csv", "ward": "middle.csv"}
MEETING = (
    "party init --name hub -q",
    "study init heart --as hub --star 127.0.0.1:PORT --timeout 300 --align ids --hops 0 -k 2 "
    f"--topology star --secure-sum {FEW} -q",
)
JOINED = (*MEETING, *(
    line for name, file in PARTIES.items() for line in (
        f"party init --name {name} -q", f"party request heart.toml {file} --as {name} -q",
        f"study approve {name}.request --yes -q",
    )
))  # fmt: skip

CASES: dict[str, dict[str, Lines]] = {
    "fit": {
        "one agent": WINE,
        "as text": f"fit data/wine.h5 -k 3 {FEW} -o m.h5",
        "in silence": f"fit data/wine.h5 -k 3 {FEW} -q",
        "labels": (
            f"fit data/wine.h5 -k 3 {FEW} -q --labels l.csv --digits 4",
            f"fit people.csv --label-column label {FEW} -q --labels l.h5",
        ),
        "diag": f"{WINE} --covariance diag",
        "spherical, standardized": f"{WINE} --covariance spherical --scale standard",
        "tied": f"{WINE} --covariance tied --reg-covar 0.01",
        "tied-diag": f"{WINE} --covariance tied-diag --every-weight",
        "single precision": f"{TABLE} --dtype float32 --covariance diag",
        "several numbers of components": f"{TABLE} -k 1-3",
        "start at random": f"{WINE} --covariance diag --init random --seed 3",
        "start by k-means++": f"{WINE} --covariance diag --init k-means++ --seed 4 --n-init 3",
        "start at rows": f"{WINE} --covariance diag --init-rows 3,77,120",
        "start from a model": f"{WINE} --init-model wine.m.h5",
        "start alone": f"{WINE} --max-iter 0",
        "dirichlet process": f"{WINE} -k 6 --prior dirichlet_process --covariance diag",
        "dirichlet distribution": f"{WINE} -k 4 --prior dirichlet_distribution --concentration 0.1",
        "mode under a prior": f"{WINE} --prior map --degrees-of-freedom 20",
        "factors": f"{WINE} --agents 4 --factors 2 --accelerate squarem",
        "squarem": f"{WINE} --covariance diag --accelerate squarem",
        "local steps": f"{CANCER} --agents 3 --topology star --accelerate local:4",
        "batches": f"{TABLE} --agents 2 --batch-size 20",
        "stochastic": f"{TABLE} --agents 2 --batch-size 20 --step-size 0.6",
        "known labels": f"{TABLE} --agents 2 --labels-for-fit known.csv",
        "least rows": f"{TABLE} -k 4 --least-rows 14",
        "not converged": f"{TABLE} --strict",
        "from disk": f"fit people.h5 {FEW} --json --memory-limit 0.0018MB",
        "weights of rows": (
            "data import weighed.csv --sample-weight copies --drop site -q -o w.h5",
            f"fit w.h5 --sample-weight sample_weight {FEW} --json",
        ),
        "release": f"fit {NOISY} --agents 3 --covariance diag --release-epsilon 15",
        "threads": f"{CANCER} --threads 2",
    },
    "sums": {
        "server": f"{CANCER} --topology star",
        "server, hops": f"{CANCER} --topology star --hops 1",
        "tree": f"{CANCER} --sum tree --hops 1",
        "consensus": f"{CANCER} --hops 1",
        "consensus as rounds": f"{CANCER} --consensus rounds --rounds 12",
        "consensus as a matrix": f"{CANCER} --consensus operator --acceleration none --rounds 30",
        "geometric graph": f"{CANCER} --topology geometric --graph-seed 2 --weights laplacian",
        "eigenvalue estimated": f"{CANCER} --topology grid --eigenvalue estimated",
        "fastest weights": f"{CANCER} --topology path --agents 5 --weights fastest",
        "graph of a file": f"{TABLE} --graph graph.txt --partition relayed.json "
        "--weights max-degree",
        "partition of a file": f"{TABLE} --partition partition.json --graph graph.graphml",
        "hubs by likelihood": f"{CANCER} --hops 1 --hubs likelihood --covariance full",
        "random graph": f"{CANCER} --topology erdos-renyi --mean-degree 4 --graph-seed 1 --hops 1",
        "links that fail": f"{CANCER} --link-failure 0.2",
        "stragglers": f"{CANCER} --stragglers 0.2",
        "agents that drop out": f"{CANCER} --agent-dropout 0.3",
        "compressed consensus": f"{CANCER} --compress natural:12bits",
        "compressed at a server": f"{CANCER} --topology star --compress qsgd:8bits",
        "compressed tree": f"{CANCER} --sum tree --compress natural:12bits",
        "sparse at a server": f"{CANCER} --topology star --compress topk:0.1",
        "blocks at a server": f"{CANCER} --topology star --compress blockp:64",
        "half precision": f"{CANCER} --topology star --compress float16",
        "masked at a server": f"{CANCER} --topology star --secure-sum",
        "masked tree": f"{CANCER} --sum tree --secure-sum --agents 5 --topology path",
        "missing values over a cycle": f"{HOLES} --agents 3 --topology cycle",
        "missing values, masked": f"{HOLES} --agents 3 --topology star --secure-sum",
        "as text": f"fit data/breast_cancer.h5 --hops 1 {FEW}",
    },
    "rows": {
        "server": ROWS,
        "as text": f"fit people.csv --label-column label --split rows --workers 3 {FEW}",
        "tree": f"{ROWS} --sum tree --topology path",
        "cycle": f"{ROWS} --topology cycle",
        "cycle, links that fail": f"{ROWS} --topology cycle --link-failure 0.2",
        "workers that drop out": f"{ROWS} --topology cycle --agent-dropout 0.4",
        "masked": f"{ROWS} --secure-sum --init k-means++",
        "noise": f"fit {NOISY} --split rows --workers 4 --covariance tied-spherical --epsilon 15",
        "noise under masks": f"fit {NOISY} --split rows --workers 4 --covariance tied-spherical "
        "--epsilon 15 --secure-sum --colluding 1",
        "batches": f"{ROWS} --batch-size 5",
        "missing": f"{HOLES} --split rows --workers 3 --covariance diag",
        "column of workers": f"fit weighed.csv --split rows --worker-column site {FEW} --json "
        "--drop copies",
        "rows of workers": f"{TABLE} --split rows --worker-rows workers.json --covariance tied",
        "parties": f"fit north.csv south.csv west.csv --parties --split rows {FEW} --json "
        "--labels l.csv",
        "prior": f"{ROWS} --prior dirichlet_process -k 4",
    },
    "tables": {
        "decimal commas": f"fit german.csv --decimal , --label-column label {FEW} --json",
        "standard input": f"fit - --drop label,id {FEW} --json < people.csv",
        "some features": f"fit people.csv --features height,iron,2-3 {FEW} --json",
        "families": f"{MIXED} --family auto --agents 3",
        "families by name": f"{MIXED} --family job=categorical,visits=poisson,wage=log-normal,"
        "days=gamma,height=t,smoker=bernoulli",
        "negative binomial": f"{MIXED} --features visits,days "
        "--family visits=negative-binomial,days=exponential",
        "families with gaps": f"fit holes.csv --family t --label-column label --agents 2 {FEW} "
        "--missing marginalize --json",
        "missing": HOLES,
        "parties by ids": f"fit left.csv middle.csv right.csv --parties --align ids {FEW} --json "
        "--labels l.csv",
        "parties by hashes": f"fit parties.toml --parties --align hmac --align-key key.txt {FEW} "
        "--json",
        "parties that lack rows": f"fit left.csv middle.csv right.csv --parties --align ids "
        f"--missing-parties --topology cycle {FEW} --json",
        "parties by sets": f"fit left.csv right.csv --parties --align psi {FEW} --json",
        "options of a file": "fit people.csv --config fit.toml --label-column label --json",
        "options shown": "fit people.csv --config fit.toml --seed 3 --show-config",
    },
    "kmeans": {
        "rows": ON_ROWS,
        "as text": f"kmeans data/wine.h5 -k 3 {FEW} -o c.h5",
        "rows over a cycle": f"{ON_ROWS} --topology cycle",
        "rows along a tree": f"{ON_ROWS} --sum tree --topology cycle",
        "rows, masked": f"{ON_ROWS} --secure-sum",
        "rows, noise": f"kmeans {NOISY} --workers 4 --epsilon 15",
        "rows, absent": f"{ON_ROWS} --participation 0.5",
        "rows, compressed": f"{ON_ROWS} --compress natural:9bits",
        "rows, batches": f"{ON_ROWS} --batch-size 20 --init random --seed 2",
        "rows with gaps": f"kmeans holes.csv --label-column label --missing marginalize {FEW} "
        "--json --labels l.csv",
        "features": ON_FEATURES,
        "features over a cycle": f"{ON_FEATURES} --topology cycle --hops 1",
        "features along a tree": f"{ON_FEATURES} --sum tree --topology path",
        "features, masked": f"{ON_FEATURES} --secure-sum",
        "features, links that fail": f"{ON_FEATURES} --topology complete --link-failure 0.3",
        "features, compressed": f"{ON_FEATURES} --compress qsgd:8bits",
        "features, stale": f"{ON_FEATURES} --participation 0.6",
        "features in one shot": f"{ON_FEATURES} --method grid --n-init 10",
        "features, single precision": f"{ON_FEATURES} --dtype float32 --batch-size 60",
    },
    "fedem": {
        "whole steps": FEDEM,
        "as text": f"fedem data/wine.h5 -k 3 --covariance tied --workers 4 {FEW} -o m.h5",
        "quantized": f"{FEDEM} --compress qsgd:6bits:32",
        "quantized without memories": f"{FEDEM} --compress qsgd:6bits:32 --memory none",
        "sparse with feedback": f"{FEDEM} --compress topk:0.2 --memory zero",
        "absent": f"{FEDEM} --participation 0.5 --weighting workers",
        "batches": f"{FEDEM} --batch-size 10 --step-size decreasing:0.9,0.6",
        "variance reduction": f"{FEDEM} --variance-reduction --batch-size 8 --inner 3",
        "variance reduction, quantized": f"{FEDEM} --variance-reduction --compress natural:9bits "
        "--sort-by-label --record-every 2",
        "cycle": f"{FEDEM} --topology cycle",
        "cycle, quantized": f"{FEDEM} --topology cycle --compress qsgd:8bits --link-failure 0.1 "
        "--rounds 20",
        "tree": f"{FEDEM} --topology path --sum tree",
        "masked": f"{FEDEM} --secure-sum",
        "missing": f"fedem holes.csv --label-column label --workers 3 --missing marginalize {FEW} "
        "--json",
        "parties": f"fedem north.csv south.csv west.csv --parties {FEW} --epochs 3 --json "
        "--labels l.csv",
    },
    "impute": {
        "low rank": ENTRIES,
        "as text": "impute entries.csv --rank 1 --ridge 1 --max-iter 5 -o out.h5",
        "rank chosen": "impute entries.csv --method lowrank --max-iter 6 --holdout 0.2 --json",
        "counts": "impute counts.csv --law poisson --rank 1 --ridge 1 --max-iter 5 --json",
        "yes or no": "impute marks.csv --law bernoulli --rank 1 --ridge 1 --max-iter 5 --json",
        "absent": f"{ENTRIES} --participation 0.6 --copies observers",
        "quantized": f"{ENTRIES} --compress qsgd:8bits",
        "batches": f"{ENTRIES} --batch-size 6 --step-size decreasing:0.8,0.6",
        "variance reduction": f"{ENTRIES} --variance-reduction --batch-size 5",
        "cycle": f"{ENTRIES} --topology cycle",
        "tree": f"{ENTRIES} --topology path --sum tree",
        "masked": f"{ENTRIES} --secure-sum",
        "dealt out": "impute data/wine.h5 --rank 2 --ridge 1 --workers 4 --holdout 0.1 "
        "--max-iter 3 --json",
        "parties": "impute north.csv holes.csv --features height,iron,age --parties --rank 1 "
        "--ridge 1 --max-iter 4 --json",
        "mixture": f"impute holes.csv --drop label --method mixture -k 1-2 {FEW} --json "
        "--holdout 0.1 -o out.csv",
        "mixture, draws": f"impute holes.csv --drop label --method mixture --draws 3 {FEW} --json "
        "-o out.csv",
        "mixture over features": f"impute holes.csv --drop label --method mixture --agents 3 "
        f"--split features --topology cycle {FEW} --json",
        "mixture over rows": f"impute holes.csv --drop label --method mixture --workers 3 "
        f"--split rows --secure-sum {FEW} --json",
    },
    "saem": {
        "linear": f"saem data/oxford_boys.csv --devices 4 {SHORT}",
        "as text": "saem data/oxford_boys.csv --burn-in 4 --iterations 7 --tol 0 "
        "--conditional-draws 8 -o g.h5",
        "missing": GROWTH,
        "effects": f"{GROWTH} --effects intercept:weight --covariance diagonal "
        "--sampler metropolis",
        "cycle": f"{GROWTH} --topology cycle",
        "tree": f"{GROWTH} --topology path --sum tree",
        "masked": f"{GROWTH} --secure-sum",
        "quantized": f"{GROWTH} --compress qsgd:8bits",
        "quantized with feedback": f"{GROWTH} --compress topk:0.5 --feedback error",
        "absent": f"{GROWTH} --participation 0.6 --batch-size 2",
        "models averaged": f"{GROWTH} --average models --shares devices",
        "devices of a file": f"saem growth.csv --missing marginalize {SHORT} "
        "--device-individuals devices.json --individuals i.csv",
        "one compartment": THEO,
        "langevin": f"{THEO} --sampler langevin --sampler-steps 2 --devices 3 "
        "--gradient-compress qsgd:8bits",
        "adjusted langevin": f"{THEO} --sampler mala --sampler-steps 2",
        "hamiltonian": f"{THEO} --sampler hmc --sampler-steps 1 --error combined",
        "doses": f"saem doses.csv --model one-compartment --parameters cl,v --random cl "
        f"--error proportional --chains 2 {SHORT}",
        "two compartments": f"saem doses.csv --model two-compartment --parameters cl,v1,q,v2 "
        f"--random cl --chains 2 {SHORT}",
        "formula": f"saem data/oxford_boys.csv --model curve --curve logistic --random asymptote "
        f"--chains 6 {SHORT}",
        "own curve": f"saem growth.csv --missing marginalize --model curve "
        f"--curve own.py:height --first 20,0.2 --random end --chains 6 {SHORT}",
        "yes or no": f"saem answers.csv --error bernoulli --random intercept --chains 2 {SHORT}",
        "factors": f"saem items.csv --model bifactor --groups 0,0,0,1,1,1 --devices 2 {SHORT}",
        "classes": f"saem items.csv --model gmm -k 2 --devices 2 --labels l.csv {SHORT}",
        "start from a fit": f"{GROWTH} --init-model growth.h5",
        "topics": "saem data/notices.csv --model lda -k 3 --devices 3 --max-share 0.6 --burn-in 2 "
        "--iterations 3 --tol 0 --conditional-draws 2 --importance-draws 10 --json --topics t.csv",
        "parties": f"saem growth.csv data/oxford_boys.csv --parties --missing marginalize {SHORT}",
    },
    "select": {
        "bic": f"select data/wine.h5 -k 1-3 --covariance full,diag --jobs 1 {FEW} --json",
        "as text": f"select people.csv --label-column label -k 1-3 --jobs 1 {FEW}",
        "held out": f"select people.csv --label-column label -k 1-2 --criterion heldout --folds 3 "
        f"--one-standard-error --jobs 1 {FEW} --json",
        "hops": f"select data/breast_cancer.h5 -k 2 --hops 0-1 --criterion icl --jobs 1 {FEW} "
        "--json",
        "rows": f"select people.csv --label-column label --split rows --workers 3 -k 1-2 "
        f"--prior map --jobs 1 {FEW} --json",
        "two at a time": f"select people.csv --label-column label -k 1-2 --jobs 2 {FEW} --json",
        "families": f"select data/wine.h5 -k 2-3 --covariance all --jobs 1 {FEW} --scale standard",
        "standard errors": "bootstrap people.csv --label-column label --covariance diag "
        f"--replicates 9 --jobs 1 {FEW} --json",
        "components tested": "bootstrap people.csv --label-column label --covariance diag --test "
        f"--replicates 9 --jobs 1 {FEW} --json",
        "discriminant": f"discriminant data/wine.h5 -k 1-2 --covariance diag,VEI {FEW} --json",
    },
    "resume": {
        "fit": (
            "fit data/breast_cancer.h5 --max-iter 2 --checkpoint c.ckpt -q",
            f"{CANCER} --checkpoint c.ckpt --resume",
        ),
        "rows": (
            "fit people.csv --label-column label --split rows --workers 4 --max-iter 2 "
            "--checkpoint c.ckpt -q",
            f"{ROWS} --checkpoint c.ckpt --resume",
        ),
        "kmeans": (
            "kmeans data/wine.h5 -k 3 --max-iter 2 --checkpoint c.ckpt -q",
            f"kmeans data/wine.h5 -k 3 {FEW} --checkpoint c.ckpt --resume --json",
        ),
        "fedem": (
            "fedem data/wine.h5 -k 3 --workers 3 --compress qsgd:8bits --max-iter 2 "
            "--checkpoint c.ckpt -q",
            f"fedem data/wine.h5 -k 3 --workers 3 --compress qsgd:8bits {FEW} --json "
            "--checkpoint c.ckpt --resume",
        ),
        "impute": (
            "impute entries.csv --rank 2 --ridge 0.5 --max-iter 3 --checkpoint c.ckpt -q",
            f"{ENTRIES} --checkpoint c.ckpt --resume-if-any",
        ),
        "saem": (
            "saem growth.csv --missing marginalize --burn-in 4 --iterations 5 --tol 0 "
            "--conditional-draws 8 --importance-draws 40 --checkpoint c.ckpt -q",
            f"saem growth.csv --missing marginalize {SHORT} --checkpoint c.ckpt --resume",
        ),
        "select": (
            f"select people.csv --label-column label -k 1-2 --jobs 1 {FEW} -q --state s.ckpt",
            f"select people.csv --label-column label -k 1-3 --jobs 1 {FEW} --json --state s.ckpt",
        ),
        "show": (
            "fit data/breast_cancer.h5 --max-iter 2 --checkpoint c.ckpt -q",
            "show c.ckpt --json",
        ),
    },
    "use": {
        "predict": "predict wine.m.h5 data/wine.h5 --proba",
        "predict, as json": "predict cycle.m.h5 data/breast_cancer.h5 -o l.csv --json",
        "predict families": "predict mixed.m.h5 mixed.csv --proba --digits 5",
        "predict with gaps": "predict holes.m.h5 holes.csv -o l.h5 --proba",
        "predict clusters": "predict clusters.h5 data/wine.h5",
        "predict for parties": "predict together.m.h5 left.csv middle.csv right.csv --parties "
        "--align ids -o l.csv",
        "predict factors": "predict factors.m.h5 data/wine.h5 -o l.parquet",
        "score": "score wine.m.h5 data/wine.h5 --json",
        "score as text": "score cycle.m.h5 data/breast_cancer.h5",
        "score families": "score mixed.m.h5 mixed.csv --json",
        "score rows": "score rows.m.h5 people.csv --json",
        "score with gaps": "score holes.m.h5 holes.csv --json",
        "score clusters": "score clusters.h5 data/wine.h5 --json",
        "score for parties": "score together.m.h5 left.csv middle.csv right.csv --parties "
        "--align ids --json",
        "show": "show wine.m.h5 --json",
        "show as text": "show cycle.m.h5",
        "show families": "model show mixed.m.h5",
        "show fedem": "show fed.m.h5",
        "show clusters": ("show clusters.h5", "show clusters.h5 --json"),
        "show an imputation": ("show filled.h5", "show filled.h5 --json"),
        "show data": "show data/wine.h5",
        "boundaries": "model boundaries wine.m.h5 --features 0,1 --json",
        "evaluate": "evaluate wine.m.h5 data/wine.h5 --json",
        "evaluate as text": "evaluate cycle.m.h5 data/breast_cancer.h5",
        "evaluate clusters": "evaluate clusters.h5 data/wine.h5 --json",
        "sample": "sample wine.m.h5 -n 6",
        "sample families": "sample mixed.m.h5 -n 5 --seed 3 -o s.csv",
        "sample with factors": "sample factors.m.h5 -n 4 -o s.h5",
        "contribution": "model contribution cycle.m.h5 data/breast_cancer.h5 --json",
        "contribution as text": "model contribution together.m.h5 left.csv middle.csv right.csv "
        "--parties --align ids -o c.csv",
        "merges": "model merge wine.m.h5 data/wine.h5 --json",
        "outcomes": (
            "predict wine.m.h5 data/wine.h5 --proba -o classes.parquet",
            "outcomes classes.parquet data/wine.h5 --outcome ash --json",
        ),
        "best": "model best wine.m.h5 factors.m.h5 --criterion bic --json",
        "best as text": "model best wine.m.h5 wine.m.h5",
        "export": ("model export wine.m.h5 -o m.npz", "model export cycle.m.h5 -o m.json"),
        "export families": "model export mixed.m.h5 -o m.json",
        "export an imputation": "model export filled.h5 -o filled.csv",
    },
    "individuals": {
        "show": "show growth.h5",
        "show, as json": "show growth.h5 --json",
        "show doses": "show theo.h5",
        "show topics": "show topics.h5",
        "predict": "predict growth.h5 growth.csv",
        "predict one": "predict growth.h5 --individual 'child 3' --times 0:4:1",
        "predict the population": "predict theo.h5 --population --times 0,2,8 "
        "--covariates dose=4.5",
        "predict latents": "predict growth.h5 growth.csv --latents -o l.h5",
        "predict residuals": "predict growth.h5 growth.csv --residuals -o r.csv",
        "predict factors": "predict factors.h5 items.csv",
        "predict classes": "predict classes.h5 items.csv --proba",
        "predict topics": "predict topics.h5 data/notices.csv -o t.csv",
        "score": "score growth.h5 growth.csv --json",
        "score doses": "score theo.h5 data/theophylline.csv --json",
        "score topics": "score topics.h5 data/notices.csv --json",
        "export": "model export growth.h5 -o g.npz",
    },
    "pictures": {
        "profile": "plot wine.m.h5 -o p.svg",
        "graph": "plot cycle.m.h5 --kind graph -o g.svg --json",
        "projection": "plot wine.m.h5 data/wine.h5 --kind projection -o p.svg",
        "history": "plot wine.m.h5 --kind history -o p.png",
        "confusion": "plot clusters.h5 data/wine.h5 --kind confusion -o p.svg",
        "curves": "plot growth.h5 growth.csv --kind curves --individual 'child 3' -o p.svg",
        "report": "report wine.m.h5 data/wine.h5 -o r.html",
        "report of individuals": "report growth.h5 -o r.html --json",
    },
    "data": {
        "describe": "data describe data/breast_cancer.h5 --json",
        "describe as text": "data describe data/heart.csv",
        "describe families": "data describe mixed.csv --family auto --json",
        "import": "data import people.csv --label-column label --partition partition.json -o d.h5",
        "import families": "data import mixed.csv --family auto --agents 2 -o d.h5",
        "import with gaps": "data import holes.csv --label-column label --missing keep -o d.h5",
        "simulate": "data simulate -n 60 -d 4 -k 3 --overlap 0.1 --agents 2 -o s.h5",
        "repack": "data repack people.h5 -o r.h5",
        "list": ("data list", "data list --json"),
        "copy": ("data copy wine -o wine.csv", "data copy oxford_boys"),
        "split": "data split people.h5 --shuffle --drop-ids 0.1 --seed 2 -o parts --json",
        "split a table": "data split mixed.csv --agents 2 --family auto -o parts",
        "fetch": "data fetch htru2 --from pulsars.csv -o f.h5",
        "topology": "topology describe cycle -n 8 --hops 1",
        "plan": "plan cycle -n 8 --hops 1",
        "topology, as json": "topology describe geometric -n 12 --graph-seed 3 --hops 1 --json",
        "topology of data": "topology describe data/breast_cancer.h5 --compress natural:12bits "
        "--link 100Mbit,30ms --json",
        "topology of rows": "topology describe star -n 5 --split rows --features 6 --batch-size 10 "
        "--secure-sum --json",
        "topology of faults": "topology describe grid -n 9 --link-failure 0.1 --samples 500 --json",
        "topology of a file": "topology describe --graph graph.txt --plot g.svg",
        "doctor": "doctor --json",
        "demo": "demo",
        "help": "help fit",
        "version": "--version",
    },
    "studies": {
        "identity": "party init --name lab --json",
        "begin": (MEETING[0], MEETING[1].removesuffix(" -q"), "party show hub.crt"),
        "join": (
            *MEETING,
            "party init --name lab",
            "party request heart.toml left.csv --as lab",
            "party show lab.request --json",
            "study approve lab.request --yes",
            "study show heart.toml",
            "show heart.toml --json",
        ),
        "change": (
            *MEETING,
            "study change heart.toml -k 3 --if-lost without",
            "study change heart.toml --command kmeans -k 3",
            "study show heart.toml --json",
        ),
        "matrix": (*JOINED, "study show heart.toml --matrix --samples 569"),
        "renew and revoke": (
            *JOINED[: len(MEETING) + 3],
            "party renew heart.toml --as clinic",
            "study approve clinic.request --yes",
            "party show clinic.crt",
            "study revoke clinic",
        ),
        "job": (
            MEETING[0],
            "study init heart --engine nvflare --align ids --hops 0 -k 2",
            "study job heart.toml",
        ),
        "policy": (
            *MEETING,
            "party policy > policy.toml",
            "show policy.toml --json",
            "study show heart.toml",
        ),
        "log": ("party log lab-heart.log", "party log lab-heart.log --json --last"),
        "check": (*JOINED, "party check heart.toml left.csv --as clinic --idle 0 --json"),
    },
    "engines": {
        "ranks and shards": (
            f"mpiexec 3 {TABLE} --agents 3 --topology path --shards -o m.h5",
            "model join m.agent-0.h5 m.agent-1.h5 m.agent-2.h5 -o joined.h5",
        ),
        "members of a study": (
            *JOINED,
            " || ".join(
                [
                    "fit --study heart.toml --as hub -o m.h5 --json",
                    *(
                        f"fit --study heart.toml --as {name} {file} -q --labels {name}.l.csv"
                        for name, file in PARTIES.items()
                    ),
                ]
            ),
            "party budget lab --json",
            "party budget lab/heart.toml",
        ),
        "members by a relay": (
            "party init --name hub -q",
            "party init --name relay -q",
            "party init --name lab -q",
            "study init heart --as hub --relay 127.0.0.1:PORT --relay-certificate relay.crt "
            f"--timeout 300 --topology path --align ids -k 2 {FEW} -q",
            "party request heart.toml --as hub --features height,weight -q",
            "study approve hub.request --yes -q",
            "party request heart.toml right.csv --as lab -q",
            "study approve lab.request --yes -q",
            "fit --study heart.toml --as hub left.csv --json || "
            "fit --study heart.toml --as lab right.csv -q || relay heart.toml --log r.log -q",
        ),
    },
    "files": READ,
}

ROUGH = {
    "fit/single precision": 1e-4,
    "kmeans/features, single precision": 1e-4,
    "saem": 1e-5,
    "individuals": 1e-6,
    "files": 1e-6,
}
"""Groups and cases in which last bits become more than elsewhere: second derivatives of SAEM."""

UNSETTLED = {
    "sums/compressed consensus": ("communication",),
    "fedem/cycle, quantized": ("communication", "bytes_up"),
}
"""Parts of results that a last bit may change: rounds that are run until all agree."""

NEEDED = {"tables/parties by sets": "private_set_intersection"}
"""Cases of packages that are not there for every machine (see pyproject.toml)."""
