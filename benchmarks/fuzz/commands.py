"""Kinds of files, and the commands that read each."""

from __future__ import annotations

from dataclasses import dataclass

from .seeds import CHECKPOINTS, QUICK, keeping, longer


@dataclass(frozen=True)
class Kind:
    """Seeds that are alike, and commands that read one of them in place of ``{}``.

    The family says how they can be changed besides as bytes, for which there is no other way.
    """

    files: tuple[str, ...]
    commands: tuple[str, ...]
    family: str


ON_ROWS = (
    "data describe {}",
    "data describe {} --json",
    f"fit {{}} -k 2 {QUICK} -o out.h5",
    f"fit {{}} -k 2 --topology cycle --hops 1 {QUICK} -o out.h5",
    f"fit {{}} --split rows --workers 2 {QUICK} -o out.h5",
    f"fit {{}} -k 2 --missing marginalize {QUICK} -o out.h5",
    f"kmeans {{}} -k 2 --workers 2 {QUICK} -o out.h5",
    f"kmeans {{}} -k 2 --split features {QUICK} -o out.h5",
    f"fedem {{}} -k 2 --workers 2 {QUICK} -o out.h5",
    "impute {} -r 1 --workers 2 --max-iter 5 -q -o out.h5",
    f"select {{}} -k 1-2 --jobs 1 {QUICK} -o out.h5",
    "predict model.h5 {} -o out.csv",
    "score model.h5 {} --json",
    "score clusters.h5 {}",
    "evaluate model.h5 {}",
    "plot model.h5 {} --kind pairs -o out.svg",
    "report model.h5 {} -o out.html",
    "topology describe {}",
    "data split {} -o out",
    "data repack {} -o out.h5",
    "fit {} left.csv --parties -k 2 -q --max-iter 3 -o out.h5",
)
ON_MODELS = (
    "model show {}",
    "model show {} --json",
    "model export {} -o out.json",
    "model export {} -o out.npz",
    "predict {} data.h5 --proba -o out.csv",
    "predict {} data.h5",
    "score {} data.h5",
    "evaluate {} data.h5 --json",
    "sample {} -n 5 -o out.csv",
    "plot {} --kind history -o out.svg",
    "plot {} --kind graph -o out.svg",
    "plot {} data.h5 --kind marginals -o out.svg",
    "report {} data.h5 -o out.html",
    "model best {} model.h5 -o out.h5",
    f"fit data.h5 --init-model {{}} {QUICK} -o out.h5",
    f"fedem data.h5 --workers 2 --init-model {{}} {QUICK} -o out.h5",
)
ON_SAEM = (
    "model show {}",
    "model show {} --json",
    "model export {} -o out.json",
    "predict {} -o out.csv",
    "predict {} --latents",
    "plot {} -o out.svg",
    "report {} -o out.html",
)
ON_TABLES = (
    "data describe {} --json",
    f"fit {{}} -k 2 --missing marginalize {QUICK} -o out.h5",
    f"kmeans {{}} -k 2 --workers 2 {QUICK} -o out.h5",
    "predict model.h5 {} -o out.csv",
    f"fit {{}} right.csv --parties -k 2 {QUICK} -o out.h5",
)
LENGTH = "--burn-in 3 --iterations 6 -q"

KINDS: dict[str, Kind] = {
    "dataset": Kind(("data.h5", "holes.h5"), ON_ROWS, "hdf5"),
    "dataset without checksums": Kind(("old.h5",), ON_ROWS, "hdf5"),
    "h5ad": Kind(("dense.h5ad",), ON_ROWS, "hdf5"),
    "model": Kind(("model.h5", "cycle.h5", "workers.h5", "fed.h5"), ON_MODELS, "hdf5"),
    "model without checksums": Kind(("old-model.h5",), ON_MODELS, "hdf5"),
    "clusters": Kind(
        ("clusters.h5", "parts.h5"),
        (
            "model show {}",
            "model show {} --json",
            "predict {} data.h5 -o out.csv",
            "score {} data.h5",
            "evaluate {} data.h5",
            "plot {} -o out.svg",
            "plot {} data.h5 --kind pairs -o out.svg",
            "report {} data.h5 -o out.html",
            "model export {} -o out.json",
        ),
        "hdf5",
    ),
    "saem": Kind(
        ("straight.h5",),
        (
            *ON_SAEM,
            "predict {} growth.csv -o out.csv",
            "predict {} growth.csv --individual 'child 3' --times 0:4:0.5",
            "score {} growth.csv",
            "plot {} growth.csv --kind curves -o out.svg",
            f"saem growth.csv --init-model {{}} {LENGTH} -o out.h5",
        ),
        "hdf5",
    ),
    "saem classes": Kind(
        ("factors.h5", "classes.h5"), (*ON_SAEM, "predict {} items.csv -o out.csv"), "hdf5"
    ),
    "shard": Kind(
        ("shard-0.h5", "shard-1.h5"),
        ("model join {} shard-2.h5 -o out.h5", "model join {} {} -o out.h5", "model show {}"),
        "hdf5",
    ),
    "imputation": Kind(
        ("imputed.h5",),
        (
            "model show {}",
            "data describe {} --dataset X",
            "plot {} -o out.svg",
            "predict {} data.h5",
        ),
        "hdf5",
    ),
    "observations": Kind(
        ("entries.h5", "old-entries.h5"),
        (
            "impute {} -r 1 -q --max-iter 5 -o out.h5",
            "impute {} -r 1 -q --max-iter 5 --holdout 0.2 --json",
            "impute {} -r 1 -q --max-iter 5 --law poisson",
            "impute {} -r 1 -q --max-iter 5 --sample-weight sample_weight --topology cycle --json",
        ),
        "hdf5",
    ),
    "individuals": Kind(
        ("individuals.h5", "old-individuals.h5"),
        (
            f"saem {{}} {LENGTH} -o out.h5",
            f"saem {{}} --model gmm {LENGTH}",
            "predict straight.h5 {} -o out.csv",
            "score straight.h5 {} --json",
            "plot straight.h5 {} --kind curves -o out.svg",
            "report straight.h5 {} -o out.html",
        ),
        "hdf5",
    ),
    "table": Kind(
        ("table.csv", "table.tsv", "table.csv.gz", "table.parquet"),
        (
            "data import {} --label-column label --id-column id -o out.h5",
            "data import {} --no-header -o out.h5",
            "data import {} --drop-column label --drop-column id --missing keep -o out.h5",
            f"fit {{}} right.csv --parties -k 2 {QUICK} -o out.h5",
            "impute {} seen.csv --parties -r 1 -q --max-iter 5 -o out.h5",
        ),
        "text",
    ),
    "table of names": Kind(
        ("names.csv",),
        (
            "data describe {} --family auto --json",
            "data import {} --family job=categorical --missing keep -o out.h5",
            f"fit {{}} -k 2 --family auto --missing marginalize {QUICK} -o out.h5",
            "predict mixed.h5 {} --missing marginalize -o out.csv",
            f"fit {{}} names.csv --parties --split rows --family auto -k 2 {QUICK} -o out.h5",
            f"fit {{}} --init-model mixed.h5 {QUICK} -o out.h5",
        ),
        "text",
    ),
    "dataset of names": Kind(
        ("names.h5",),
        (
            "data describe {} --json",
            "data split {} --agents 2 -o out",
            "data repack {} -o out.h5",
            f"fit {{}} -k 2 {QUICK} -o out.h5",
            f"fit {{}} -k 2 --family height=categorical --missing marginalize {QUICK} -o out.h5",
            "score mixed.h5 {} --missing marginalize --json",
        ),
        "hdf5",
    ),
    "model of families": Kind(
        ("mixed.h5",),
        (
            "model show {}",
            "model export {} -o out.json",
            "predict {} names.csv --proba -o out.csv",
            "score {} names.h5",
            "sample {} -n 5 -o out.csv",
            f"fit names.csv --init-model {{}} {QUICK} -o out.h5",
        ),
        "hdf5",
    ),
    "packed table": Kind(
        ("table.csv.gz", "table.csv.bz2", "table.csv.xz", "table.zip"), ON_TABLES, "bytes"
    ),
    "table of Arrow": Kind(("table.feather", "table.parquet"), ON_TABLES, "bytes"),
    "table of spreadsheets": Kind(
        ("german.csv",),
        (
            f"fit {{}} -k 2 {QUICK} -o out.h5 --encoding latin-1 --decimal ,",
            f"fit {{}} -k 2 {QUICK} -o out.h5 --encoding latin-1 --decimal , --thousands .",
            "data describe {} --json",
        ),
        "text",
    ),
    "arrays": Kind(("rows.npy", "rows.npz", "sparse.npz", "records.npy"), ON_TABLES, "bytes"),
    "records": Kind(("records.h5",), ON_TABLES, "hdf5"),
    "sparse h5ad": Kind(
        ("sparse.h5ad",), (*ON_TABLES, "data describe {} --label-column label --json"), "hdf5"
    ),
    "party": Kind(
        ("left.csv", "right.csv", "parties.toml"),
        (
            f"fit parties.toml --parties --align ids -k 2 {QUICK} -o out.h5",
            f"fit parties.toml --parties --align hmac --align-key key.txt -k 2 {QUICK} -o out.h5",
            f"fit parties.toml --parties --split rows -k 2 {QUICK} -o out.h5",
        ),
        "text",
    ),
    "growth table": Kind(
        ("growth.csv",),
        (
            f"saem {{}} {LENGTH} -o out.h5",
            "predict straight.h5 {}",
            "plot straight.h5 {} --kind curves -o out.svg",
        ),
        "text",
    ),
    "item table": Kind(
        ("items.csv",),
        (
            f"saem {{}} --model bifactor --groups 0,0,0,1,1,1 {LENGTH}",
            f"saem {{}} --model gmm {LENGTH}",
        ),
        "text",
    ),
    "entry table": Kind(("entries.csv",), ("impute {} -r 1 -q --max-iter 5 -o out.h5",), "text"),
    "party's entry table": Kind(
        ("seen.csv",),
        (
            "impute {} --parties --sample-weight weight -r 1 -q --max-iter 5 -o out.h5",
            "impute {} left.csv --parties -r 1 -q --max-iter 5 --holdout 0.2 --json",
        ),
        "text",
    ),
    "partition": Kind(
        ("partition.json",),
        (
            f"fit data.h5 --partition {{}} -k 2 {QUICK} -o out.h5",
            "data import table.csv --label-column label --id-column id --partition {} -o out.h5",
            "topology describe data.h5 --partition {}",
        ),
        "json",
    ),
    "worker rows": Kind(
        ("rows.json",),
        (
            f"fit data.h5 --split rows --worker-rows {{}} {QUICK} -o out.h5",
            f"kmeans data.h5 --worker-rows {{}} {QUICK}",
            f"fedem data.h5 --worker-rows {{}} {QUICK}",
        ),
        "json",
    ),
    "devices": Kind(
        ("devices.json",), (f"saem growth.csv --device-individuals {{}} {LENGTH}",), "json"
    ),
    "graph": Kind(
        ("graph.json", "graph.graphml", "graph.txt", "graph.csv"),
        (
            f"fit data.h5 --graph {{}} -k 2 --hops 1 {QUICK} -o out.h5",
            "topology describe --graph {}",
            "topology describe data.h5 --graph {} --plot out.svg",
        ),
        "text",
    ),
    "labels": Kind(
        ("labels.txt",),
        (
            "evaluate model.h5 data.h5 --labels {}",
            "report model.h5 data.h5 --labels {} -o out.html",
        ),
        "text",
    ),
    "key": Kind(
        ("key.txt",),
        (f"fit parties.toml --parties --align hmac --align-key {{}} -k 2 {QUICK} -o out.h5",),
        "text",
    ),
    "study": Kind(
        ("heart.toml", "lab.request"),
        (
            "study show heart.toml --json",
            "party request heart.toml --as hub",
            "party renew heart.toml --as hub",
            "study approve lab.request --yes",
        ),
        "text",
    ),
    "certificate": Kind(
        ("hub.crt", "hub.key"),
        (
            "party show hub.crt --json",
            "study init lungs --as hub --star 127.0.0.1:443 -k 2",
            "study approve lab.request --yes",
        ),
        "text",
    ),
    "options": Kind(
        ("fit.toml",),
        ("fit data.h5 --config {} -o out.h5", "fit data.h5 --config {} --show-config"),
        "text",
    ),
}
"""By name, in the order of the table that is printed."""

KINDS |= {
    f"checkpoint, {name}": Kind(
        (f"{name}.ckpt",),
        (
            keeping(words, "{}", "--resume -o out.h5"),
            keeping(words, "{}", "--resume-if-any --json"),
            keeping(longer(words), "{}", "--resume -o out.h5"),
        ),
        "state",
    )
    for name, words in CHECKPOINTS.items()
}
