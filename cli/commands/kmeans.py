"""`vpem kmeans`: clusters of rows or features that cannot be pooled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError, Setting
from vpem.fits.settings import PrivacySettings
from vpem.records import changed
from vpem.settings import GraphSettings, KmeansHolding, KmeansSettings, SumSettings

from ..data import (
    DataFiles,
    NumberFiles,
    StartSettings,
    gather,
    graph_of,
    heaviest_of,
    own_features,
    own_rows,
    own_weights,
    partition_of,
    rows_of,
    stored_graph,
    workers_of,
)
from ..display import (
    ProgressLine,
    Screen,
    answer,
    communication,
    how_summed,
    note_of_one_feature,
    number,
    plural,
    show,
    table,
    took,
)
from ..options import Given, MemoryLimit, Without
from ..outputs import LabelFile, LabelledOutput, Output, of_clusters
from ..runner import (
    CheckpointSettings,
    CommandRun,
    FitOutcome,
    kept_of_private,
    tell_of_clipped,
    warned_of_private,
)
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vpem.files.datasets import Dataset
    from vpem.fits.clustering import Clustering
    from vpem.network.schema import Report


class ClusterChoices(KmeansSettings, PrivacySettings):
    """How rows are clustered, and the privacy of rows."""

    epsilon: float | None = changed(PrivacySettings, "epsilon", idle=(
        lambda given: given.get("split") == "features",
        (" would have to hide every row's distances over features: at 1 noise of about 15 times "
         "the largest of them, which leaves no signal; take ", Setting("split", "rows")),
    ))  # fmt: skip


class ClusterOutput(LabelledOutput, heading="Output", kept=False):
    """What a clustering writes."""

    output: Path | None = changed(Output, "output", help="Write centres and labels here (HDF5).")


def kmeans(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    parties: Annotated[NumberFiles, Without("family")],
    holding: KmeansHolding,
    graph: GraphSettings,
    choices: Annotated[ClusterChoices, Without("release_epsilon")],
    sums: Annotated[SumSettings, Without("consensus hubs")],
    start: Annotated[StartSettings, Without("init_model")],
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: ClusterOutput,
    given: Given,
) -> None:
    """Cluster rows by k-means, rows or features being distributed.

    Over rows every worker sends the size and the sum of its part of each cluster; over features the
    squared distances are summed. At a server (star) either is Lloyd's algorithm on pooled data,
    from the same start; on any other graph the sums are taken by consensus rounds. With --epsilon
    sums over rows have noise, which limits what they reveal of one row.

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --workers 7 -o clusters.h5

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --split features --topology cycle

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --split features --method grid --n-init 10
    """
    with Screen(out.quiet) as screen:
        from vpem.files.results import write_clustering

        settings, privacy = choices.into(KmeansSettings), choices.into(PrivacySettings)
        run = CommandRun(screen, out, "clusterings", engine, checkpoints)
        labels = run.labels = LabelFile.begin(out, run.where, parties.parties)
        graph = graph.seeded(settings.seed)
        if settings.method == "grid" and holding.split == "rows":
            raise InputError(
                "--method grid joins clusterings of different features: it needs --split features"
            )
        if settings.method == "grid" and start.init_rows is not None:
            raise InputError(
                "--method grid starts each agent's own clustering by k-means++: --init-rows are "
                "for --method lloyd"
            )
        if parties.missing_parties:
            settings = settings.changed(missing="marginalize")
        misses = settings.missing == "marginalize"
        source, alignment = gather(data, parties, holding, misses, memory_limit, run)
        options = run.options(given, data=", ".join(map(str, data)), missing=settings.missing)
        if start.init_rows is not None:
            rows = rows_of(start.init_rows)
            if len(rows) != settings.n_clusters:
                raise InputError(
                    f"--clusters {settings.n_clusters} needs as many --init-rows, got {len(rows)}"
                )
            settings = settings.changed(init=rows)
        limit = run.memory(memory_limit)
        clustering, names, ran = _cluster(
            source, holding, graph, sums, settings, privacy, run, limit
        )
        tell_of_clipped(screen, clustering, names)
        answered = clustering.answer(source.feature_names)
        # One feature of large numbers may decide the clusters alone.
        alone = settings.scale == "none" and clustering.guarantee is None and run.where.speaks
        if alone and (note := note_of_one_feature(answered)) is not None:
            screen.print_note(note)

        def tell() -> Report:
            report = clustering.describe(source.feature_names, names)
            report["clusters"] = answered.describe("cluster")
            report |= {"seed": settings.seed, **run.facts(data)}
            report["sample_weight"] = holding.sample_weight
            report["participation"] = settings.participation
            if alignment is not None:
                report["alignment"] = alignment
            return report | ran | warned_of_private(clustering)

        def write(path: Path, report: Report) -> None:
            private_options = {
                name: value
                for name, value in kept_of_private(clustering).items()
                if name in options
            }
            stored = clustering.kept(
                source.feature_names, report, options | private_options, source.ids
            )
            if run.where.own_users:  # --labels has each member's own
                stored = replace(
                    stored, labels=stored.labels[:0], distances=stored.distances[:0], ids=None
                )
            write_clustering(path, stored, out.force)

        run.finish(FitOutcome(
            clustering.converged, tell, write, lambda report: _show(report, names),
            own=lambda _: {"labels_files": labels.written}, found=clustering,
            heaviest=heaviest_of(source, holding.sample_weight),
        ))  # fmt: skip


def _cluster(
    source: Dataset,
    holding: KmeansHolding,
    graph: GraphSettings,
    sums: SumSettings,
    settings: KmeansSettings,
    privacy: PrivacySettings,
    run: CommandRun,
    limit: int,
) -> tuple[Clustering, Sequence[str], Report]:
    """Cluster with ``limit`` bytes of data in memory, and describe holders and engine."""
    from vpem.fits.clustering import check_absent
    from vpem.fits.feature_kmeans import kmeans_features
    from vpem.fits.row_kmeans import kmeans_rows
    from vpem.sums.connect import connect, connect_workers

    sums = sums.changed(seed=graph.graph_seed)
    with run.working(_Progress, source.X) as progress:
        common: Report = {
            "feature_names": source.feature_names, "callback": progress, "saver": run.saver
        }  # fmt: skip
        if holding.split == "rows":
            workers = workers_of(source, holding, run.screen)
            joined = graph_of(workers.n_workers, workers.names, graph)
            check_absent(joined, sums, settings)
            network = run.spread_network(connect_workers(joined, sums), workers=True)
            X = own_rows(source, workers, network, limit)
            if holding.sample_weight is not None:
                common["sample_weight"] = own_weights(source, workers, network)
            clustering = kmeans_rows(X, workers, network, settings, privacy=privacy, **common)
            of_clusters(run, source, clustering, network, workers)
            return clustering, workers.names, describe_engine(network)
        parts = partition_of(source, holding, True)
        if settings.method == "grid" and graph.topology is None and graph.graph is None:
            graph = graph.changed(topology="star")
        joined = stored_graph(source, holding, parts, graph, run.screen)
        check_absent(joined, sums, settings)
        network = run.spread_network(connect(joined, parts, sums))
        X, common["feature_names"] = own_features(source, network, limit)
        if holding.sample_weight is not None:
            common["sample_weight"] = source.sample_weight
        clustering = kmeans_features(X, network, settings, labels=bool(run.labels), **common)
        of_clusters(run, source, clustering, network)
        return clustering, parts.names, describe_engine(network)


class _Progress(ProgressLine):
    """Inertia and rate of a long run."""

    def facts(self, progress: Any) -> Iterator[str]:
        yield f"inertia {progress.inertia:.6g}"
        yield f"{plural(progress.changed, 'row')} changed"


def _show(report: Report, names: Sequence[str]) -> None:
    from vpem.fits.answer import NOT_MEASURED

    over_rows = report["split"] == "rows"
    one_shot, weighted = report["one_shot"], report["sample_weight"]
    rows, features = plural(report["n_samples"], "row"), plural(report["n_features"], "feature")
    network = [plural(len(names), "worker" if over_rows else "agent"), report["topology"]]
    if not over_rows:
        network.append(f"{plural(len(report['hubs']), 'hub')} of {plural(report['hops'], 'hop')}")
    iterations = took(report)
    if not report["converged"]:
        iterations.insert(1, "not converged")
    units = " (of standardized features)" if report["scale"] == "standard" else ""
    judged = [("inertia", number(report["inertia"], 10) + units)]
    if "privacy" in report:
        from vpem.pictures.contents import promised

        judged = promised(report["privacy"])
    summed = how_summed(report)
    if report["participation"] != 1:
        summed += f", participation {report['participation']:g}"
    facts = [
        ("data", f"{rows} x {features}"),
        *judged,
        ("iterations", ", ".join(iterations)),
        ("network", ", ".join(network)),
        ("sum", summed),
        ("communication", communication(report["communication"], names)),
        ("model", report["model"] or "not kept (give --output)"),
    ]
    if one_shot is not None:
        ratio = one_shot["inertia_over_lower_bound"]
        facts[2:5] = [
            ("proven", f"at most {one_shot['factor']:g} times the least possible inertia, if "
             "each k-means of the shot is solved"),
            ("agents' own", f"{number(one_shot['lower_bound'], 10)}, a lower bound if each is "
             f"solved: the inertia is {number(ratio, 4)} times that"),
            ("time", f"{number(report['seconds'], 3)} s"),
            ("network", ", ".join(network)),
            ("method", f"one shot, {plural(one_shot['n_cells'], 'cell')}"),
        ]  # fmt: skip
    if not report["spread_measured"]:
        facts.insert(1, ("differences", NOT_MEASURED))
    if weighted is not None:
        total = f"{weighted}, {number(sum(report['cluster_sizes']))} in all"
        facts.insert(1, ("sample weights", total))
    show(answer(report, "cluster"), table(facts, "", ""))
