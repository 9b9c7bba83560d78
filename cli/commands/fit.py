"""`vpem fit`: a mixture from data split by features over agents on a graph, or by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, Setting, shorten
from vpem.fits.settings import PrivacySettings
from vpem.settings import WEIGHT_PRIORS, FitSettings, GraphSettings, HoldingSettings, SumSettings

from ..data import (
    ComponentSettings,
    DataFiles,
    FitFiles,
    StartSettings,
    counts_of,
    gather,
    heaviest_of,
    place_of,
    started,
    with_families_of,
)
from ..display import (
    ProgressLine,
    Screen,
    answer,
    communication,
    each,
    how_summed,
    number,
    plural,
    show,
    table,
    tell_of_parameters,
    took,
)
from ..options import Given, MemoryLimit
from ..outputs import LabelFile, LabelledOutput, check_shards, of_workers, write_shards
from ..runner import (
    CheckpointSettings,
    CommandRun,
    FitOutcome,
    Task,
    kept_of_private,
    tell_of_clipped,
    tell_what_is_left,
    warned_of_private,
)
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from pathlib import Path

    from vpem.files.datasets import Dataset
    from vpem.fits.labels import KnownLabels
    from vpem.fits.results import Fit
    from vpem.network.schema import Report

    from ..outputs import Found


def known_to(
    task: Task, files: FitFiles, start: Path | None, counts: Sequence[int], settings: FitSettings
) -> KnownLabels | None:
    """Return what this process knows of labels for a fit, matched with ``start`` by name."""
    import numpy as np

    from vpem.files.models import read_model
    from vpem.fits.answer import labels_of
    from vpem.fits.labels import KnownLabels

    source: Dataset = task.source
    known = source.labels_for_fit
    if known is None:
        return None
    if len(counts) > 1:
        raise InputError(
            Setting("labels_for_fit"), " are not counted by BIC, which chooses the number of "
            "components; give one number of ", Setting("n_components"),
        )  # fmt: skip
    agent = source.labelled_by if files.parties else place_of(files.labels_at, task.names)
    if start is None or known.names:
        return KnownLabels(known.values, agent, known.names or None)
    names = labels_of(read_model(start).report)
    if not names:
        raise InputError(
            f"{start} was fitted without labels, so that its components have no names; leave out ",
            Setting("labels_for_fit"), " or the start",
        )  # fmt: skip
    n = len(known.values)
    codes, label_names = KnownLabels(known.values).parsed(n, max(n, 1))
    strange = [name for name in label_names if name not in names]
    if strange:
        raise InputError(
            Setting("labels_for_fit"), f" have {shorten(map(repr, strange), 3)}, but no component "
            f"of {start} has such a name: they are {shorten(names, 10)}",
        )  # fmt: skip
    shares = np.zeros((n, settings.n_components))  # labels as probabilities of components
    for place, name in enumerate(label_names):
        shares[:, list(names).index(name)] = codes[:, place]
    shares[np.isnan(codes).any(axis=1)] = np.nan
    return KnownLabels(shares, agent, names)


class FitChoices(ComponentSettings, PrivacySettings):
    """What is fitted, and the privacy of rows."""


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
        from vpem.files.models import write_model
        from vpem.files.temporaries import check_ending

        if out.output is not None:
            check_ending(out.output, "models")
        counts = counts_of(choices.n_components)
        settings = choices.into(FitSettings, n_components=counts[0])
        privacy = choices.into(PrivacySettings)
        if len(counts) > 1:
            from .several import check_several

            check_several(choices, begin, sums)
        run = CommandRun(screen, out, "models", engine, checkpoints if len(counts) == 1 else None)
        labels = run.labels = LabelFile.begin(out, run.where, parties.parties)
        if parties.missing_parties:
            settings = settings.changed(missing="marginalize")
        if run.shards and holding.split == "rows":
            raise InputError(
                "--shards have the features of one hub each, but with --split rows every worker's "
                "model has all features; leave it out"
            )
        if run.shards and settings.weight_concentration_prior_type in WEIGHT_PRIORS:
            raise InputError(
                "--shards hold means and covariances, but a posterior needs its priors too; leave "
                "it out, or take EM without --prior"
            )
        if run.shards and out.output is None and not run.where.own_users:
            raise InputError("--shards are named after --output; give it")
        graph, parties = graph.seeded(settings.seed), with_families_of(parties, begin)
        source, alignment = gather(
            data, parties, holding, settings.missing == "marginalize", memory_limit, run
        )
        settings = started(settings, begin, source, given)
        limit = run.memory(memory_limit)
        task = Task(source, holding, graph, sums, run).grouped(settings, limit, privacy.is_asked)
        if run.shards and out.output is not None:
            check_shards(run, task.network, task.names)
        tell_what_is_left(screen, settings, privacy, task)
        task.labels_for_fit = known_to(task, parties, begin.init_model, counts, settings)
        fitted, ran, rows = _fit(task, settings, counts, privacy, checkpoints, limit)
        options = run.options(
            given, data=", ".join(map(str, data)), graph_seed=graph.graph_seed,
            missing=settings.missing, components=fitted.mixture.n_components,
            **kept_of_private(fitted),
        )  # fmt: skip
        tell_of_clipped(screen, fitted, task.names)
        run.labels.write(source, rows, task.network.agents, screen)
        shards: Report = {}
        if run.shards:
            fitted, shards = write_shards(run, fitted, task.names, source.feature_names, options)

        def tell() -> Report:
            report = fitted.describe(source.feature_names, task.names)
            report["components"] = fitted.answer(source.feature_names).describe()
            if run.shards:  # which keep means where they are
                report["components"] = [
                    one | {"differs_most_in": None} for one in report["components"]
                ]
            report |= {"seed": settings.seed, **run.facts(data)}
            report["sample_weight"] = holding.sample_weight
            if alignment is not None:
                report["alignment"] = alignment
            return report | ran | warned_of_private(fitted)

        def write(path: Path, report: Report) -> None:
            if not run.shards:
                write_model(path, fitted.kept(source.feature_names, report, options), out.force)

        mixture = fitted.mixture
        tell_of_parameters(
            screen, settings, mixture.covariance_type, mixture.n_components, mixture.n_parameters,
            fitted.n_samples,
        )  # fmt: skip
        run.finish(FitOutcome(
            fitted.converged, tell, write, lambda report: _show(report, task.names),
            own=lambda _: {"labels_files": labels.written, **shards}, apart=run.shards,
            found=fitted, heaviest=heaviest_of(source, holding.sample_weight),
        ))  # fmt: skip


def _fit(
    task: Task,
    settings: FitSettings,
    counts: Sequence[int],
    privacy: PrivacySettings,
    checkpoints: CheckpointSettings,
    limit: int,
) -> tuple[Fit, Report, Found]:
    """Fit with ``limit`` bytes of data in memory; of several ``counts`` that of lowest BIC.

    Returns also a report of how it ran, and labels of rows by holder, if they are written.
    """
    from vpem.fits.labels import columns_of
    from vpem.fits.results import RowFit

    run, network = task.run, task.network
    more: Report = {"privacy": privacy} if privacy.is_asked else {}
    if run.labels and not task.over_rows:
        local_agents = network.agents.own.tolist() if run.labels.file else []
        more["labels"] = local_agents if run.labels.parties else [0]
    data: tuple[Any, Any, Report]
    if len(counts) > 1:
        from .several import Each, EachProgress, choose_by_bic, each_checkpoint

        each = each_checkpoint(checkpoints, counts, run)
        with run.working(EachProgress, task.source.X) as shown:
            problem = task.problem(
                Each, settings, limit, command=run, checkpoints=each, progress=shown, more=more
            )
            data = problem.X, None, {}
            fitted, ran = choose_by_bic(problem, counts, settings)
    else:
        with run.working(ProgressLine, task.source.X) as progress:
            data = task.data(limit)
            fitted = task.fit(data, settings, callback=progress, saver=run.saver, **more)
            ran = describe_engine(network)
    labels: Found = {}
    if run.labels and isinstance(fitted, RowFit):
        agents = task.network.agents
        labels = of_workers(
            run.labels, data[0], task.parts, fitted.mixtures, agents, settings.missing
        )
    elif run.labels:
        labels = {agent: columns_of(shares) for agent, shares in fitted.responsibilities.items()}
    if (known := fitted.labels_for_fit) is not None:
        named = []
        for k, (name, count) in enumerate(zip(known["names"], known["rows"], strict=False)):
            rows = f"{count:.1f} rows" if count % 1 else plural(int(count), "row")
            named.append(f"{k} is {name} ({rows})")
        if named:
            run.screen.say(f"component {', '.join(named)}; all roots learn it for labelled rows")
    return fitted if run.shards else task.whole(fitted), ran, labels


def _show(report: Report, names: Sequence[str]) -> None:
    over_rows = report["algorithm"] == "em-rows"
    alone = report["n_agents"] == 1 and not over_rows
    hubs = len(report["hubs"])
    network = [
        plural(report["n_agents"], "worker" if over_rows else "agent"),
        report["topology"],
        f"{plural(hubs, 'hub')} of {plural(report['hops'], 'hop')}",
    ]
    form = f"{report['covariance_type']} covariance{'' if over_rows or alone else ' in hubs'}"
    each_alone = all(len(hub["features"]) == 1 for hub in report["hubs"])
    if hubs > 1 and each_alone:
        tied = "tied, " * report["covariance_type"].startswith("tied")
        form = f"{tied}diagonal covariance (each hub has one feature)"
    mixture = [
        plural(report["n_components"], "component"),
        form,
        plural(report["n_parameters"], "parameter"),
    ]
    if "n_factors" in report:
        mixture.insert(2, plural(report["n_factors"], "factor"))
    if over_rows:
        network[-1] = each(report["worker_rows"], "row")
    iterations = took(report)
    lost = len(report["lost_sums"])
    if lost:
        iterations.insert(1, f"{plural(lost, 'sum')} rejected")
    if not report["converged"]:
        iterations.insert(1, "not converged")
    rows, features = plural(report["n_samples"], "row"), plural(report["n_features"], "feature")
    facts = [
        ("data", f"{rows} x {features}"),
        ("mixture", ", ".join(mixture)),
        *_judged(report),
        ("iterations", ", ".join(iterations)),
        ("network", "1 agent, so nothing was sent" if alone else ", ".join(network)),
    ]
    if not alone:
        sent = communication(report["communication"], names)
        facts += [("sum", how_summed(report)), ("communication", sent)]
    facts.append(("model", report["model"] or "not kept (give --output)"))
    if report["sample_weight"] is not None:
        total = f"{report['sample_weight']}, {number(report['total_weight'])} in all"
        facts.insert(1, ("sample weights", total))
    tables = [answer(report), table(facts, "", "")]
    if hubs <= 20 and not (over_rows or alone or each_alone):
        listing = []
        for place, hub in enumerate(report["hubs"]):
            root = "server" if hub["root"] == report["server"] else names[hub["root"]]
            agents = ", ".join(names[agent] for agent in hub["agents"])
            listing.append((place, root, agents, len(hub["features"])))
        heads = ("hub", "root", "agents", "features")
        tables.append(table(listing, *heads, title="Hubs", right=("hub", "features")))
    show(*tables)


def _judged(report: Report) -> list[tuple[str, str]]:
    """Return how good a mixture is or, where rows are protected, what is guaranteed to them."""
    if "privacy" in report:
        from vpem.pictures.contents import promised

        return promised(report["privacy"])
    if "lower_bound" in report:
        used, k = sum(report["in_use"]), len(report["in_use"])
        return [
            ("lower bound", f"{report['lower_bound']:.6f} per sample"),
            ("in use", f"{used} of {k} components, {k - used} are empty"),
        ]
    facts = [("log-likelihood", f"{report['log_likelihood']:.6f} per sample")]
    if "prior" in report:
        facts.append(("penalised", f"{report['penalised_log_likelihood']:.6f} per sample"))
    return [*facts, ("BIC, AIC", f"{report['bic']:.2f}, {report['aic']:.2f}")]
