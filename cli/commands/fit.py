"""`vpem fit`: a mixture from data split by features over agents on a graph, or by rows.

`vpem fedem`: a mixture from rows that workers hold, by compressed and partial corrections.

`vpem kmeans`: clusters of rows or features that cannot be pooled.

`vpem topology`: what a network will do, before anything is fitted on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError, Setting, check_choice, refuse_any, shorten
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import PlanSettings, PrivacySettings
from vpem.pictures.contents import how_summed, lines_of, number, plural, size
from vpem.records import changed, not_both, off, rule, unset
from vpem.rules import BY_FEATURES
from vpem.settings import (
    TOPOLOGIES,
    WEIGHT_PRIORS,
    FedMixtureSettings,
    FitSettings,
    GraphSettings,
    HolderGraph,
    HoldingSettings,
    KmeansHolding,
    KmeansSettings,
    SumSettings,
    WorkerSettings,
)

from ..data import (
    ComponentSettings,
    DataFiles,
    FitFiles,
    NumberFiles,
    RowParties,
    StartSettings,
    graph_of,
    partition_of,
    place_of,
    read_one,
    stored_graph,
    teller,
)
from ..display import ProgressLine, Screen, print_json, show, table
from ..options import Given, MemoryLimit, Without
from ..outputs import NEEDS_TOL, READ, WRITTEN, LabelledOutput, Output, Printing, ShardFiles
from ..runner import CheckpointSettings, Task
from ..session import EngineSettings, Where, describe_engine
from .use import table_of

if TYPE_CHECKING:
    from vpem.fits.labels import KnownLabels
    from vpem.fits.results import Fit
    from vpem.network.graph import Graph
    from vpem.network.partition import Partition
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines

    from ..display import PrintedTable
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
    if len(counts) > 1:
        raise InputError(
            Setting("labels_for_fit"), " are not counted by BIC, which chooses the number of "
            "components; give one number of ", Setting("n_components"),
        )  # fmt: skip
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


class FitChoices(ComponentSettings, PrivacySettings):
    """What is fitted, and the privacy of rows."""

    def check_several(self, begin: StartSettings, sums: SumSettings) -> None:
        """Raise InputError where options allow only one number of components."""
        several = f"--components {self.n_components} are several numbers of components, but "
        refuse_any(
            (begin.init_model, several,
             "--init-model starts one; give one number, or leave --init-model out"),
            (begin.init_rows, several,
             "--init-rows starts one; give one number, or leave --init-rows out"),
            (sums.hubs != "size", several,
             f"--hubs {sums.hubs} are chosen for one; give one number"),
            (self.weight_concentration_prior_type in WEIGHT_PRIORS, several,
             "under --prior one fit finds how many are in use; give the largest number"),
            (self.is_asked, several,
             "choosing one of them looks at the data without noise; give one number"),
        )  # fmt: skip


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
    out: LabelledOutput,
    given: Given,
) -> None:
    """Fit a Gaussian mixture to features, or rows, that are distributed.

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
        settings = choices.into(FitSettings, n_components=counts[0])
        privacy = choices.into(PrivacySettings)
        if len(counts) > 1:
            choices.check_several(begin, sums)
        task = Task(screen, out, "models", engine, checkpoints if len(counts) == 1 else None)
        if task.shards and out.output is None and not task.where.own_users:
            raise InputError("--shards are named after --output; give it")
        parties, networked = begin.families(parties), graph.is_asked or sums.is_asked
        source = task.load(data, parties, holding, graph, settings, memory_limit, networked)
        settings = task.settings = begin.begun(task.settings, source, given)
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
        counted = mixture.n_parameters, n_samples
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
    found: Found = {}
    if labels and isinstance(fitted, RowFit):
        found = columns_of_workers(
            data[0], task.parts, fitted.mixtures, agents, task.settings.missing
        )
    elif labels:
        found = {agent: columns_of(shares) for agent, shares in fitted.responsibilities.items()}
    if (known := fitted.labels_for_fit) is not None:
        named = []
        for k, (name, count) in enumerate(zip(known["names"], known["rows"], strict=False)):
            rows = f"{count:.1f} rows" if count % 1 else plural(int(count), "row")
            named.append(f"{k} is {name} ({rows})")
        if named:
            task.screen.say(f"component {', '.join(named)}; all roots learn it for labelled rows")
    return fitted if task.shards else task.whole(fitted), ran, found


class FedWorkers(WorkerSettings, heading="Data"):
    """Who holds which rows."""

    workers: int | None = changed(often=True)
    sort_by_label: bool = off(
        "Sort rows by label before they are dealt out, so that workers differ.",
        idle=rule(
            lambda given: given["workers"] is None,
            " needs {workers}: how many to deal the rows out to",
        ),
    )


class FedOutput(LabelledOutput, heading="Output", kept=False):
    """What is written and printed."""

    plot: Path | None = unset(
        "Draw mean field and objective against epochs and bytes here.", file="written"
    )
    strict: bool = changed(idle=NEEDS_TOL)


def fedem(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    parties: Annotated[RowParties, Without("family align align_key missing_parties")],
    holding: FedWorkers,
    graph: Annotated[HolderGraph, Without("graph_seed")],
    settings: Annotated[FedMixtureSettings, Without("floor")],
    sums: Annotated[SumSettings, Without("hops hubs eigenvalue consensus compress agent_dropout")],
    begin: StartSettings,
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: FedOutput,
    given: Given,
) -> None:
    """Fit a Gaussian mixture to rows of workers by FedEM or VR-FedEM.

    Workers send quantized corrections of their mean statistics to a server, not all of them in
    every iteration and not of all their rows; memories make up for differences between workers.

    Example: vpem fedem data/wine.h5 -k 3 --workers 10 --compress qsgd:6bits:32
    """
    with Screen(out.quiet) as screen:
        from vpem.fits.fedem import fit_fedem
        from vpem.fits.labels import columns_of_workers
        from vpem.pictures.contents import name_of_fedem
        from vpem.pictures.history import draw_histories
        from vpem.sums.connect import way_of

        task = Task(screen, out, "models", engine, checkpoints)
        source = task.load(data, parties, holding, graph, settings, memory_limit)
        settings = begin.begun(settings, source, given)
        if way_of(task.graph, sums) == "consensus":
            # By consensus the codec compresses rounds; elsewhere corrections, not the sum.
            sums = sums.changed(compress=settings.compress)
            settings = settings.changed(compress=None)
        with task.working(ProgressLine, source.X) as progress:
            progress.most = settings.max_iter
            task.connect(sums)
            X, weights, about = task.data()
            fit = fit_fedem(
                X, task.parts, task.local, settings, sample_weight=weights, callback=progress,
                saver=task.saver, **about,
            )  # fmt: skip
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
    """How rows are clustered, and the privacy of rows."""

    epsilon: float | None = changed(idle=rule(
        lambda given: given.get("split") == "features",
        " would have to hide every row's distances over features: at 1 noise of about 15 times "
        "the largest of them, which leaves no signal; take {split=rows}",
    ))  # fmt: skip


class ClusterOutput(LabelledOutput, heading="Output", kept=False):
    """What a clustering writes."""

    output: Path | None = changed(help="Write centres and labels here (HDF5).")


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
        settings, workers = task.settings, task.workers
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


app = typer.Typer(
    help="Look at networks of agents.\n\nExample: vpem topology describe cycle -n 8 --hops 1"
)

USUAL_FEATURES = 10
"""Features that a plan over workers has by default."""

HUBS: Lines = {"hub": "{hub}", "root": "{root}", "agents": "{agents}", "features": "{n_features}"}
"""Columns of the table of hubs."""

MOST_ROWS = 20  # hubs shown; --json has them all
MOST_MEMBERS = 12  # agents of a hub shown


class PlannedSettings(Printing, HoldingSettings, heading="Data", kept=False):
    """Who holds what, with data or without; what is printed and drawn."""

    agents: int | None = changed(
        help="Number of agents, or workers; of a dataset, contiguous, nearly equal parts.",
        flags="-n --agents",
        idle=None,
        often=True,
    )
    partition: Path | None = changed(
        idle=[
            rule(
                lambda given: given.get("source", "") in (None, *TOPOLOGIES),
                " names the features of a dataset; give one",
            ),
            not_both("agents", "partition"),
            BY_FEATURES,
        ]
    )
    features: int | None = unset(
        "Features of the fit to plan, without a dataset. Default: one an agent, and 10 of workers.",
        least=1,
    )
    plot: Path | None = unset(
        "Draw the graph coloured by hub (.png, .svg, .pdf).", heading="Output", file=WRITTEN,
        often=True,
    )  # fmt: skip
    force: bool = changed(Output, "force", help="Replace an existing picture.")


@app.command("describe")
def describe(
    source: Annotated[
        str | None,
        READ,
        typer.Argument(
            help="Name of a topology (with -n), or a dataset: the graph and partition stored there."
        ),
    ] = None,
    *,
    holding: Annotated[PlannedSettings, Without("workers worker_rows dataset sample_weight")],
    table: Annotated[TableSettings, Without("features worker_column")],
    graph: GraphSettings,
    settings: Annotated[PlanSettings, Without("consensus seed n_threads")],
) -> None:
    """Show hubs, mixing, rounds, and what a fit will send.

    Messages and bytes are counted as in a fit that starts at given rows: the setup, every
    iteration (with --batch-size a pass over all batches), and the last E-step, which computes the
    log-likelihood of the model. The start 'kmeans' adds a few sums to the setup. Where links or
    agents fail they are means.

    Example: vpem topology describe cycle -n 8 --hops 1
    """
    plot, graph = holding.plot, graph.seeded(0)
    with Screen(holding.quiet) as screen:
        from vpem.fits.plan import plan
        from vpem.pictures.figure import check_picture, save_picture

        if plot is not None:
            check_picture(plot, holding.force)
        parts: Partition | list[int]
        stored: int | None = None
        if source is None or source in TOPOLOGIES:
            network, parts = _named(source, holding, graph)
        else:
            if not Path(source).suffix and not Path(source).exists():
                check_choice("topology", source, TOPOLOGIES)
            # Values stay on disk: only their number matters.
            data = read_one(Path(source), table, Where(), teller(screen.say), on_disk=True)
            stored = len(data.X)
            if holding.features is not None:
                raise InputError("--features is for plans without a dataset, which has its own")
            if holding.split == "rows":
                workers = None if holding.agents else data.workers
                count = holding.agents or (1 if workers is None else workers.n_workers)
                network = graph_of(count, None if workers is None else workers.names, graph)
                parts = [data.n_features, *[0] * (count - 1)]
            else:
                parts = partition_of(data, holding, graph.is_asked or settings.is_asked)
                network = stored_graph(data, holding, parts, graph, screen)
        report = plan(
            network, parts, settings, split=holding.split, n_samples=settings.n_samples or stored,
            seed=graph.graph_seed,
        )  # fmt: skip
        if plot is not None:
            from vpem.network.hubs import Hub
            from vpem.pictures.network import draw_hubs

            hubs = [Hub(hub["root"], tuple(hub["agents"])) for hub in report["hubs"]]
            save_picture(plot, draw_hubs(network, hubs, report["agent_names"]), force=holding.force)
            screen.say(f"wrote {plot}")
        if holding.json:
            print_json(report | {"warnings": screen.warnings, "plot": plot})
        elif not holding.quiet:
            show(*_tables(report))


def _named(
    source: str | None, holding: PlannedSettings, graph: GraphSettings
) -> tuple[Graph, Partition | list[int]]:
    """Return agents without data, on a graph of this topology, or of a file of edges."""
    from vpem.files.networks import read_graph
    from vpem.network.partition import contiguous

    agents, features = holding.agents, holding.features
    drawn = graph.radius is not None or graph.mean_degree is not None
    refuse_any(
        (graph.topology is not None,
         "--topology is for a dataset; without one give the topology's name alone: vpem topology "
         "describe cycle -n 8"),
        (source is not None and graph.graph is not None,
         f"give a topology ({source}) or --graph, not both"),
        (source is None and graph.graph is None,
         "give the name of a topology with -n, a dataset, or --graph with a file of edges"),
        (source is None and drawn,
         "--radius and --mean-degree need the topology of a random graph"),
        (source is not None and agents is None,
         f"how many agents? give -n: vpem topology describe {source} -n 8"),
    )  # fmt: skip
    if graph.graph is not None:
        joined = read_graph(graph.graph, agents)
    else:
        joined = graph_of(agents or 0, None, graph.changed(topology=source))
    count = joined.n_agents
    if holding.split == "rows":
        return joined, [features or USUAL_FEATURES, *[0] * (count - 1)]
    return joined, contiguous(count if features is None else features, count, joined.names)


def _tables(report: Report) -> Iterator[PrintedTable]:
    """Yield what a terminal shows of a plan; means are rounded."""
    names, hubs, sent = [*report["agent_names"], "server"], report["hubs"], report["communication"]
    holder = "agent" if report["split"] == "features" else "worker"
    facts = lines_of(report, {
        "graph": f"{{topology}}, {{n_agents:{holder}}}, {{n_edges:link}}",
        "degrees": "{degrees[min]} to {degrees[max]}, mean {degrees[mean]:.3g}",
        "diameter": "{diameter:hop}",
    })  # fmt: skip
    if holder == "agent":
        facts.append(("hubs", f"{len(hubs)} of {plural(report['hops'], 'hop')}"))
    if report["first_fit"] is not None:
        first = size(round(report["first_fit"]["bytes"]))
        facts.append(("by likelihood", "the data decide; these are the hubs by size. First a fit "
                      f"without hops: {first} an iteration"))  # fmt: skip
    facts.append(("sum", how_summed(report)))
    if sent["n_drawn"] and report["tree"] is None:
        share, drawn = number(100 * sent["partitioned"], 2), plural(sent["n_drawn"], "sum")
        facts.append(("disconnected", f"in {share} % of {drawn} drawn"))
    if report["along_a_tree"] is not None:
        messages, n_bytes, rounds = map(round, report["along_a_tree"].values())
        cost = f"{plural(messages, 'message')}, {size(n_bytes)}, {plural(rounds, 'round')}"
        exact = "" if report["compress"] else ", exact"
        facts.append(("or", f"--sum tree{exact}: {cost} an iteration"))
    yield table(facts, "", "")
    if holder == "agent":
        listed = [
            {**hub, "hub": place, "root": names[hub["root"]],
             "agents": shorten((names[agent] for agent in hub["agents"]), MOST_MEMBERS)}
            for place, hub in enumerate(hubs)
        ]  # fmt: skip
        yield table_of(listed, HUBS, MOST_ROWS, title="Hubs", right=("hub", "features"))
    conditions, fixed = f"{report['weights']} weights", report["rounds"]
    for name, what in (("compress", ", uncompressed"), ("faults", ", without failures")):
        if report[name] is not None:
            conditions, fixed = conditions + what, None
    chosen = {"weights": report["weights"], "rounds": fixed}
    for name, (title, columns) in MIXING.items() if report["mixing"] else ():
        marks = (" *" * bool(chosen.items() & row.items()) for row in report[name])
        marked = [{**row, "mark": mark} for row, mark in zip(report[name], marks, strict=True)]
        right = [*columns][name == "mixing" :]
        yield table_of(marked, columns, title=title.format(conditions), right=right)
    phases = {name.replace("last", "last E-step"): sent[name] for name in PHASES if name in sent}
    if not sent.get("labels", {}).get("messages"):
        phases.pop("labels", None)
    rows = [
        (phase, kind, round(row["messages"]), size(round(row["bytes"])), round(row["rounds"]))
        for phase, one in phases.items()
        for kind, row in {**one["by_kind"], "all": one}.items()
        if row is one or row["rounds"]
    ]
    about = [plural(report["n_samples"], "row")]
    if report["batch_size"] is not None:
        about.append(f"batches of {report['batch_size']}")
    about += [plural(report["n_components"], "component"), report["dtype"]]
    if sent["is_expected"]:
        about.append("means" if sent["n_drawn"] else "estimates")
    right = ["messages", "payload", "rounds"]
    title = f"Communication: {', '.join(about)}"
    yield table(rows, "phase", "kind", *right, title=title, right=right)
    busiest = [
        (phase, " - ".join(names[end] for end in link["between"]), round(link["messages"]),
         size(round(link["bytes"])))
        for phase, one in phases.items() if (link := one["busiest_link"]) is not None
    ]  # fmt: skip
    if busiest:
        yield table(busiest, "phase", "link", *right[:2], title="Busiest links", right=right)
    if "time" in report:
        time = report["time"]
        parts = [(part, f"{number(time[part], 3)} s", of) for part, of in lines_of(time, TIME)]
        link = f"{time['bandwidth'] / 1e6:g} Mbit/s, {1e3 * time['one_way_latency']:g} ms one way"
        title = f"An iteration, links of {link}"
        yield table(parts, "part", "time", "of", title=title, right=("time",))


PHASES = ("setup", "batch", "iteration", "last", "labels")

MIXING: dict[str, tuple[str, Lines]] = {
    "mixing": ("Mixing (* chosen)", {
        "weights": "{weights}{mark}", "mixing rate": "{rate:.6f}",
        "spectral gap": "{spectral_gap:.3g}",
    }),
    "consensus_errors": ("Consensus error after rounds, {}", {
        "rounds": "{rounds}{mark}", "plain": "{none_is_bound:<= |}{none:.2g}",
        "Chebyshev": "{chebyshev_is_bound:<= |}{chebyshev:.2g}",
    }),
    "rounds_needed": ("Rounds needed, {}", {
        "error": "{consensus_error:g}", "plain": "{none_is_bound:<= |}{none}",
        "Chebyshev": "{chebyshev_is_bound:<= |}{chebyshev}",
    }),
}  # fmt: skip
"""Tables of how fast agents agree: titles and columns."""

TIME: Lines = {
    "computing": "{flops:.3g} flops, {additions:.3g} additions, at this machine's rates",
    "latency": "{latencies:.4g} times one way, in sequence, {chunks:chunk} of rows",
    "transfer": lambda time: f"{size(time['bytes'])} over the busiest link",
    "iteration": lambda time: "chunks are computed while others are sent" * (time["chunks"] > 2),
}
"""What the parts of an iteration's time come from."""
