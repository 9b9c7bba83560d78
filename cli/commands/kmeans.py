"""`vpem kmeans`: clusters of rows or features that cannot be pooled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError, Setting
from vpem.fits.settings import PrivacySettings
from vpem.pictures.contents import plural
from vpem.records import changed
from vpem.settings import GraphSettings, KmeansHolding, KmeansSettings, SumSettings

from ..data import DataFiles, NumberFiles, StartSettings
from ..display import ProgressLine, Screen, note_of_one_feature
from ..options import Given, MemoryLimit, Without
from ..outputs import LabelledOutput, Output
from ..runner import CheckpointSettings, CommandRun, FitOutcome, Task
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        from vpem.fits.clustering import check_absent
        from vpem.fits.feature_kmeans import kmeans_features
        from vpem.fits.labels import columns_of_clusters
        from vpem.fits.row_kmeans import kmeans_rows

        settings, privacy = choices.into(KmeansSettings), choices.into(PrivacySettings)
        run = CommandRun(screen, out, "clusterings", engine, checkpoints)
        if (rows := start.rows) is not None:
            if len(rows) != settings.n_clusters:
                raise InputError(
                    f"--clusters {settings.n_clusters} needs as many --init-rows, got {len(rows)}"
                )
            settings = settings.changed(init=rows)
        if settings.method == "grid" and not graph.is_asked:
            graph = graph.changed(topology="star")
        task = Task(run, data, parties, holding, graph, settings, memory_limit)
        source, workers, settings = task.source, task.workers, task.settings
        check_absent(task.graph, sums, settings)
        with run.working(_Progress, source.X) as progress:
            task.connect(sums)
            X, weights, about = task.data()
            about |= {"sample_weight": weights, "callback": progress, "saver": run.saver}
            clustering = (
                kmeans_features(X, task.network, settings, labels=bool(run.labels), **about)
                if workers is None
                else kmeans_rows(X, workers, task.network, settings, privacy=privacy, **about)
            )
        agents = task.network.agents
        found = columns_of_clusters(clustering, agents, workers) if run.labels else None
        task.tell_and_label(clustering, found)
        ran = describe_engine(task.network)
        # One feature of large numbers may decide the clusters alone.
        alone = settings.scale == "none" and clustering.guarantee is None and run.where.speaks
        note = note_of_one_feature(clustering.answer(source.feature_names)) if alone else None
        if note is not None:
            screen.print_note(note)

        def write(path: Path, report: Report) -> None:
            options = task.options(given, clustering)
            stored = clustering.kept(source.feature_names, report, options, source.ids)
            if run.where.own_users:  # --labels has each member's own
                stored = replace(
                    stored, labels=stored.labels[:0], distances=stored.distances[:0], ids=None
                )
            write_clustering(path, stored, out.force)

        more = {"participation": settings.participation}
        tell = partial(task.describe, clustering, ran, "cluster", **more)
        task.finish(clustering, FitOutcome(clustering.converged, tell, write))


class _Progress(ProgressLine):
    """Inertia and rate of a long run."""

    def facts(self, progress: Any) -> Iterator[str]:
        yield f"inertia {progress.inertia:.6g}"
        yield f"{plural(progress.changed, 'row')} changed"
