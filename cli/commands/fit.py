"""`vpem fit`: a mixture from data split by features over agents on a graph, or by rows.

`vpem fedem`: a mixture from rows that workers hold, by compressed and partial corrections.

`vpem kmeans`: clusters of rows or features that cannot be pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError, Setting
from vpem.fits.settings import PrivacySettings
from vpem.pictures.contents import plural
from vpem.records import beside, changed, refused, rule, unset
from vpem.rules import UNCOUNTED, UNDRAWN, are_several
from vpem.settings import (
    SCALES,
    WEIGHT_PRIORS,
    FedMixtureSettings,
    FitSettings,
    GraphSettings,
    HolderGraph,
    HoldingSettings,
    KmeansHolding,
    KmeansSettings,
    SumSettings,
)

from ..data import (
    ComponentSettings,
    DataFiles,
    FedWorkers,
    FitFiles,
    NumberFiles,
    RowParties,
    StartSettings,
    place_of,
    transform,
)
from ..display import ProgressLine, Screen
from ..options import Given, MemoryLimit, Without
from ..outputs import NEEDS_TOL, PRIVATE, LabelledOutput, ShardFiles, TraceOutput
from ..runner import CheckpointSettings, Task
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from vpem.fits.labels import KnownLabels
    from vpem.fits.results import Fit
    from vpem.network.schema import Report

    from ..outputs import Found


def known_to(
    task: Task, files: FitFiles, begin: StartSettings, counts: Sequence[int]
) -> KnownLabels | None:
    """Return what this process knows of labels for a fit, matched with the start by name."""
    from vpem.fits.answer import labels_of
    from vpem.fits.labels import KnownLabels

    source, known = task.source, task.source.labels_for_fit
    if known is None:
        return None
    if len(counts) > 1:  # and a manifest has the labels
        raise refused(Setting("labels_for_fit"), UNCOUNTED[1])
    agent = source.labelled_by if files.parties else place_of(files.labels_at, task.names)
    labels = KnownLabels(known.values, agent, known.names or None)
    if begin.model is None or known.names:
        return labels
    names = labels_of(begin.model.report)
    if not names:
        raise InputError(
            f"{begin.init_model} was fitted without labels, so that its components have no names; "
            "leave out ", Setting("labels_for_fit"), " or the start",
        )  # fmt: skip
    return labels.of_components(names, task.settings.n_components, str(begin.init_model))


SEEDED_START = (
    "the start is that of --init-model, and --seed draws no other: it matters only where a "
    "component becomes so small that it is reinitialised"
)


class FitChoices(
    ComponentSettings, PrivacySettings,
    rows=[
        ("weight_concentration_prior_type", lambda given: (
            are_several(given) and given["weight_concentration_prior_type"] in WEIGHT_PRIORS
        ), " finds in one fit how many components are in use; give the largest number alone"),
        ("epsilon release_epsilon", are_several,
         " is for one number of {n_components}: choosing among several looks at the data without "
         "noise; give one"),
    ],
):  # fmt: skip
    """What is fitted, and the privacy of rows."""

    scale: str = changed(
        choices=(*SCALES, "power"),
        help="Features as they are (none), standardized (standard), or made nearly normal first "
        "by Yeo and Johnson's transform, each by an exponent of its own (power). Matters for "
        "spheres and a numeric --reg-covar; outputs keep the data's units, with power those of "
        "transformed features.",
        idle=beside(
            "{scale=power} finds an exponent of each feature from all its rows, of which a worker "
            "has some; import them with vpem data import --power, or take {scale=standard}",
            scale="power", split="rows",
        ),
    )  # fmt: skip


OF_ONE = rule(
    are_several,
    " belongs to one fit: give one number of {n_components}, or 'vpem select' the best first",
)


class FitOutput(TraceOutput, LabelledOutput, heading="Output", kept=False):
    trace: Path | None = changed(idle=[PRIVATE, OF_ONE])


def fit(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    parties: FitFiles,
    holding: HoldingSettings,
    graph: GraphSettings,
    choices: FitChoices,
    sums: SumSettings,
    begin: StartSettings,
    checkpoints: CheckpointSettings,
    engine: EngineSettings,
    out: FitOutput,
    given: Given,
) -> None:
    """Fit a Gaussian mixture to distributed features, or rows.

    Features are spread over agents (VP-EM), rows over workers (--split rows). Hubs of agents share
    features within --hops; nothing else leaves an agent but terms of one sum, taken at a server
    (star), along a tree (--sum tree) or by consensus rounds between neighbours. With --split rows
    every worker sends sums over its rows; at a server, or along a tree, the fit is that of pooled
    rows. With --epsilon these sums have noise, which limits what they reveal of one row.

    Example: vpem fit data/breast_cancer.h5 --topology cycle --hops 1 -o model.h5

    Example: vpem fit data/wine.h5 -k 2-4 --scale standard

    Example: vpem fit data/breast_cancer.h5 --split rows --workers 7
    """
    with Screen(out.quiet) as screen:
        from vpem.files.temporaries import check_ending
        from vpem.fits.answer import note_of_parameters
        from vpem.fits.privacy import foretell

        if out.output is not None:
            check_ending(out.output, "models")
        counts = choices.counts(choices.n_components)
        scale = "standard" if choices.scale == "power" else choices.scale
        settings = choices.into(FitSettings, n_components=counts[0], scale=scale)
        privacy = choices.into(PrivacySettings)
        task = Task(screen, out, "models", engine, checkpoints if len(counts) == 1 else None)
        parties, networked = begin.families(parties), graph.is_asked or sums.is_asked
        source = task.load(data, parties, holding, graph, settings, memory_limit, networked)
        if choices.scale == "power":
            if task.where.engine.apart:
                raise InputError(
                    Setting("scale", "power"), " is for one process; where each has features of "
                    "its own import them first: vpem data import --power fit",
                )  # fmt: skip
            task.slope = transform(source)
            screen.print_note("means are in units of features that are transformed to be normal")
        settings = task.settings = begin.begun(task.settings, source, given)
        drawn = choices.batch_size or choices.n_factors or not UNDRAWN[0](vars(graph) | vars(sums))
        if "seed" in given.names and begin.model is not None and not drawn:
            screen.print_note(SEEDED_START)
        task.connect(sums, private=privacy.is_asked)
        shard_files = ShardFiles(task, task.local, task.names) if task.shards else None
        if privacy.epsilon is not None:
            foretold = foretell(
                settings, privacy, task.n_rows, len(source.feature_names), task.local
            )
            foretold.check()
            screen.print_note(str(foretold))
        task.labels_for_fit = known_to(task, parties, begin, counts)
        fitted, ran, found = _fit(task, counts, privacy, checkpoints)
        mixture, n_samples, shards = fitted.mixture, fitted.n_samples, dict[str, Any]()
        options = task.options(
            given, fitted, graph_seed=task.seed_of_graph, components=mixture.n_components
        )
        task.tell_and_label(fitted, found)
        if shard_files is not None:
            fitted, shards = shard_files.write(fitted, source.feature_names, options)
        counted = fitted.n_parameters, n_samples
        screen.print_note(*note_of_parameters(settings, mixture, *counted))
        task.finish_fit(fitted, options, ran=ran, own=lambda _: shards)


def _fit(
    task: Task, counts: Sequence[int], privacy: PrivacySettings, checkpoints: CheckpointSettings
) -> tuple[Fit, Report, Found]:
    """Fit; of several ``counts`` the fit of lowest BIC is kept.

    Returns also a report of how it ran, and labels of rows by holder, if they are written.
    """
    from vpem.fits.labels import columns_of, columns_of_workers
    from vpem.fits.results import RowFit

    agents, labels, data = task.local.agents, task.labels, task.data()
    more: Report = {"privacy": privacy} if privacy.is_asked else {}
    if labels and task.workers is None:
        more["labels"] = [0] if not labels.parties else agents.own.tolist() if labels.file else []
    if len(counts) > 1:
        from .select import choose_by_bic

        fitted, ran = choose_by_bic(task, data, counts, checkpoints, more)
    else:
        with task.working(ProgressLine, task.source.X) as progress:
            fitted = task.fit(data, callback=progress, saver=task.saver, **more)
            ran = describe_engine(task.local)
    task.in_data_units(fitted)
    found: Found = {}
    if labels and isinstance(fitted, RowFit):
        found = columns_of_workers(
            data[0], task.parts, fitted.mixtures, agents, task.settings.missing
        )
    elif labels:
        found = {
            agent: columns_of(shares, fitted.mixture.outliers)
            for agent, shares in fitted.responsibilities.items()
        }
    if (known := fitted.labels_for_fit) is not None:
        named = []
        for k, (name, count) in enumerate(zip(known["names"], known["rows"], strict=False)):
            rows = f"{count:.1f} rows" if count % 1 else plural(int(count), "row")
            named.append(f"{k} is {name} ({rows})")
        if named:
            task.screen.say(f"component {', '.join(named)}; all roots learn it for labelled rows")
    return fitted if task.shards else task.whole(fitted), ran, found


OF_NOISE = beside(" belongs to differential privacy; add {epsilon}, or leave it out", epsilon=None)


class FedChoices(FedMixtureSettings, PrivacySettings):
    epsilon: float | None = changed(idle=None, help="Differential privacy with this epsilon: every "
        "worker adds noise to its statistics before it sends them, which bounds what can be learnt "
        "of one row from all that others get. Needs --delta and --bounds.")  # fmt: skip
    delta: float | None = changed(idle=OF_NOISE)
    bounds: Any = changed(idle=OF_NOISE)
    repeatable_noise: int | None = changed(idle=OF_NOISE)


class FedOutput(TraceOutput, LabelledOutput, heading="Output", kept=False):
    plot: Path | None = unset(
        "Draw mean field and objective against epochs and bytes here.", file="written",
        idle=beside(" shows how well iterations fit, which {epsilon} does not cover; leave it out",
                    epsilon=...),
    )  # fmt: skip
    strict: bool = changed(idle=NEEDS_TOL)


def fedem(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    parties: Annotated[RowParties, Without("family align align_key missing_parties")],
    holding: FedWorkers,
    graph: Annotated[HolderGraph, Without("graph_seed")],
    choices: Annotated[FedChoices, Without("floor release_epsilon colluding")],
    sums: Annotated[SumSettings, Without("hops hubs eigenvalue consensus compress agent_dropout")],
    begin: Annotated[StartSettings, Without("fix_from")],
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: FedOutput,
    given: Given,
) -> None:
    """Fit a mixture to rows of workers by FedEM or VR-FedEM.

    Workers send quantized corrections of their mean statistics to a server, not all of them in
    every iteration and not of all their rows; memories make up for differences between workers.
    With --epsilon statistics have noise, which limits what they reveal of one row.

    Example: vpem fedem data/wine.h5 -k 3 --workers 10 --compress qsgd:6bits:32
    """
    with Screen(out.quiet) as screen:
        from vpem.fits.fedem import fit_fedem
        from vpem.fits.labels import columns_of_workers
        from vpem.pictures.contents import name_of_fedem
        from vpem.pictures.history import draw_histories
        from vpem.sums.connect import move_codec

        settings, privacy = choices.into(FedMixtureSettings), choices.into(PrivacySettings)
        task = Task(screen, out, "models", engine, checkpoints)
        source = task.load(data, parties, holding, graph, settings, memory_limit)
        settings = begin.begun(settings, source, given)
        sums, settings = move_codec(task.graph, sums, settings)
        with task.working(ProgressLine, source.X) as progress:
            progress.most = settings.max_iter
            task.connect(sums)
            X, weights, about = task.data()
            fit = fit_fedem(
                X, task.parts, task.local, settings, sample_weight=weights, callback=progress,
                saver=task.saver, privacy=privacy, **about,
            )  # fmt: skip
        task.in_data_units(fit)
        found: Found = {}
        if task.labels:  # {} where a rank holds no worker
            found = columns_of_workers(
                X, task.parts, [fit.mixture], task.local.agents, settings.missing
            )
        task.tell_and_label(fit, found)

        def draw(report: Report) -> Report:
            name = name_of_fedem(report)
            return task.drawn(lambda: draw_histories([(name, [fit.run.history])], title=name))

        options = task.options(given, fit, components=settings.n_components)
        task.finish_fit(fit, options, own=draw)


class ClusterChoices(KmeansSettings, PrivacySettings):
    epsilon: float | None = changed(idle=beside(
        " would have to hide every row's distances over features: at 1 noise of about 15 times "
        "the largest of them, which leaves no signal; take {split=rows}", split="features",
    ))  # fmt: skip


class ClusterOutput(LabelledOutput, heading="Output", kept=False):
    output: Path | None = changed(help="Write centres and labels here (HDF5).")
    digits: int = changed(hidden=True, idle=None)  # of files of an earlier --show-config


def kmeans(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    parties: Annotated[NumberFiles, Without("family")],
    holding: KmeansHolding,
    graph: GraphSettings,
    choices: Annotated[ClusterChoices, Without("release_epsilon")],
    sums: Annotated[SumSettings, Without("consensus hubs")],
    start: Annotated[StartSettings, Without("fix_from")],
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: ClusterOutput,
    given: Given,
) -> None:
    """Cluster rows by k-means; rows or features are distributed.

    Over rows every worker sends the size and the sum of its part of each cluster; over features the
    squared distances are summed. At a server (star) either is Lloyd's algorithm on pooled data,
    from the same start; on any other graph the sums are taken by consensus rounds. With --epsilon
    sums over rows have noise, which limits what they reveal of one row.

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --workers 7 -o clusters.h5

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --split features --topology cycle

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --split features --method grid --n-init 10
    """
    with Screen(out.quiet) as screen:
        from vpem.fits.clustering import check_absent
        from vpem.fits.feature_kmeans import kmeans_features
        from vpem.fits.labels import columns_of_clusters
        from vpem.fits.row_kmeans import kmeans_rows

        settings, privacy = choices.into(KmeansSettings), choices.into(PrivacySettings)
        task = Task(screen, out, "clusterings", engine, checkpoints)
        if (rows := start.rows) is not None:
            if len(rows) != settings.n_clusters:
                raise InputError(
                    f"--clusters {settings.n_clusters} needs as many --init-rows, got {len(rows)}"
                )
            settings = settings.changed(init=rows)
        if settings.method == "grid" and not graph.is_asked:
            graph = graph.changed(topology="star")
        source = task.load(data, parties, holding, graph, settings, memory_limit)
        settings, workers = start.centres(task.settings, source, given), task.workers
        check_absent(task.graph, sums, settings)
        with task.working(ProgressLine, source.X) as progress:
            task.connect(sums)
            X, weights, about = task.data()
            network, labels = task.local, task.labels
            about |= {"sample_weight": weights, "callback": progress, "saver": task.saver}
            clustering = (
                kmeans_features(X, network, settings, labels=bool(labels), **about)
                if workers is None
                else kmeans_rows(X, workers, network, settings, privacy=privacy, **about)
            )
        found = columns_of_clusters(clustering, network.agents, workers) if labels else {}
        task.tell_and_label(clustering, found)
        # One feature of large numbers may decide the clusters alone.
        if settings.scale == "none" and clustering.guarantee is None and task.where.speaks:
            screen.print_note(*clustering.answer(source.feature_names).note_of_scale())
        options = task.options(given, clustering)
        task.finish_fit(clustering, options, "cluster", participation=settings.participation)
