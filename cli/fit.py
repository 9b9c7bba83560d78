"""`vpem fit`: a mixture from data split by features over agents on a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vpem.settings import FitSettings, GraphSettings, HoldingSettings, SumSettings

from .checkpoints import CheckpointSettings
from .choices import (
    StartSettings,
    how_summed,
    partition_of,
    started,
    stored_graph,
)
from .driver import Run
from .engine import (
    EngineSettings,
    describe_engine,
)
from .labels import LabelFile, LabelledOutput, of_workers
from .options import Given, MemoryLimit
from .output import Progress, Screen
from .own import own_features, own_rows, own_weights
from .parties import DataFiles, PartySettings, read_data
from .results import Result
from .shards import check_shards, write_shards
from .workers import graph_of, workers_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vpem.files.datasets import Dataset
    from vpem.fits.results import Fit
    from vpem.network.schema import Report

    from .labels import Found

__all__ = ["fit"]


def fit(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    parties: PartySettings,
    held: HoldingSettings,
    graph: GraphSettings,
    how: FitSettings,
    sums: SumSettings,
    begin: StartSettings,
    checkpoints: CheckpointSettings,
    engine: EngineSettings,
    out: LabelledOutput,
    given: Given,
) -> None:
    """Fit a Gaussian mixture to features, or rows, that are spread.

    Features are spread over agents (VP-EM), rows over workers (--split rows). Hubs of agents share
    features within --hops; nothing else leaves an agent but terms of one sum, taken at a server
    (star), along a tree (--sum tree) or by consensus rounds between neighbours. With --split rows
    every worker sends sums over its rows; what the star, or a tree, then fits is what pooled rows
    would give.

    Example: vpem fit data/breast_cancer.h5 --topology cycle --hops 1 -o model.h5

    Example: vpem fit data/breast_cancer.h5 --split rows --workers 7
    """
    with Screen(out.quiet) as screen:
        from vpem.files.endings import check_ending
        from vpem.files.models import write_model

        if out.output is not None:
            check_ending(out.output, "models")
        run = Run(screen, out, "models", engine, checkpoints)
        labels = run.labels = LabelFile.of(out, run.where, parties.parties)
        if parties.missing_parties:
            how = how.changed(missing="marginalize")
        _check_shards_asked(run, held)
        graph = graph.seeded(how.seed)
        source, alignment = read_data(
            data, parties, held, how.missing == "marginalize", memory_limit, run
        )
        how = started(how, begin, source, given)
        options = run.options(
            given, data=", ".join(map(str, data)), graph_seed=graph.graph_seed,
            missing=how.missing, components=how.n_components,
        )  # fmt: skip
        task = _Task(source, held, graph, sums, how, run)
        found, ran = task.fit(run.memory(memory_limit))
        run.labels.write(source, task.labelled(found), task.network.agents, screen)
        shards: Report = {}
        if run.shards:
            found, shards = write_shards(run, found, task.names, source.feature_names, options)

        def tell() -> Report:
            report = found.describe(source.feature_names, task.names)
            report |= {"seed": how.seed, **run.facts(data), "sample_weight": held.sample_weight}
            if alignment is not None:
                report["alignment"] = alignment
            return report | ran

        def write(path: Path, report: Report) -> None:
            if not run.shards:
                write_model(path, found.kept(source.feature_names, report, options), out.force)

        run.finish(Result(
            found.converged, tell, write, lambda report: _show(report, task.names),
            own=lambda _: {"labels_files": labels.written, **shards}, apart=run.shards,
        ))  # fmt: skip


class _Task:
    """A fit to features, or rows, of a dataset."""

    def __init__(
        self,
        source: Dataset,
        held: HoldingSettings,
        graph: GraphSettings,
        sums: SumSettings,
        how: FitSettings,
        run: Run,
    ) -> None:
        from vpem.sums.connect import connect, connect_workers

        self.source, self.how, self.run = source, how, run
        self.over_rows = held.split == "rows"
        sums = sums.changed(seed=graph.graph_seed)
        self.parts: Any
        if self.over_rows:
            self.parts = workers_of(source, held, run.screen)
            graph_of_workers = graph_of(self.parts.n_workers, self.parts.names, graph)
            self.network = run.over(connect_workers(graph_of_workers, sums), workers=True)
        else:
            self.parts = partition_of(source, held)
            network = connect(stored_graph(source, self.parts, graph), self.parts, sums)
            self.network = run.over(network)
        self.data: Any = None
        self.names: Sequence[str] = self.parts.names
        self.weighted = held.sample_weight is not None
        out = run.out
        if run.shards and out.output is not None:
            check_shards(run, self.network, self.names)

    def fit(self, limit: int) -> tuple[Fit, Report]:
        """Fit with so many bytes of data in memory; and what there is to report of the engine."""
        from vpem.fits.rows import fit_em
        from vpem.fits.spread import fit_spread

        network = self.network
        with self.run.working(Progress, self.source.X) as progress:
            common: Report = {
                "feature_names": self.source.feature_names,
                "callback": progress,
                "saver": self.run.saver,
            }
            found: Fit
            if self.over_rows:
                X = own_rows(self.source, self.parts, network, limit)
                if self.weighted:
                    common["sample_weight"] = own_weights(self.source, self.parts, network)
                found = fit_em(X, self.parts, network, self.how, **common)
            else:
                X, common["feature_names"] = own_features(self.source, network, limit)
                if self.weighted:
                    common["sample_weight"] = self.source.sample_weight
                if self.run.labels:
                    own = network.agents.own.tolist() if self.run.labels.file else []
                    common["labels"] = own if self.run.labels.parties else [0]
                found = fit_spread(X, network, self.how, shards=self.run.shards, **common)
            self.data = X
            return found, describe_engine(network)

    def labelled(self, found: Fit) -> Found:
        """Return what rows belong to, by who holds them, where that is to be written."""
        from vpem.fits.labels import columns_of
        from vpem.fits.results import RowFit

        labels = self.run.labels
        if not labels:
            return {}
        if self.over_rows:
            assert isinstance(found, RowFit)
            agents, missing = self.network.agents, self.how.missing
            return of_workers(labels, self.data, self.parts, found.mixtures, agents, missing)
        return {agent: columns_of(shares) for agent, shares in found.responsibilities.items()}


def _check_shards_asked(run: Run, held: HoldingSettings) -> None:
    """Raise InputError where there can be no shards, saying why."""
    from vpem.errors import InputError

    if held.split == "rows" and run.shards:
        raise InputError(
            "--shards are of the features of hubs, but with --split rows every worker's model is "
            "of all features; leave it out"
        )
    if run.shards and run.out.output is None and not run.where.own_users:
        raise InputError("--shards are named after --output; give it")


def _show(report: Report, names: Sequence[str]) -> None:
    """Print what a reader wants to know."""
    from .output import communication, each, number, plural, show, table

    over_rows = report["algorithm"] == "em-rows"
    hubs = len(report["hubs"])
    how = how_summed(report)
    network = [
        plural(report["n_agents"], "worker" if over_rows else "agent"),
        report["topology"],
        f"{plural(hubs, 'hub')} of {plural(report['hops'], 'hop')}",
    ]
    mixture = [
        plural(report["n_components"], "component"),
        f"{report['covariance_type']} covariance{'' if over_rows else ' in hubs'}",
        plural(report["n_parameters"], "parameter"),
    ]
    if over_rows:
        network[-1] = each(report["worker_rows"], "row")
    iterations = [str(report["n_iter"]), f"{number(report['seconds'], 3)} s"]
    lost = len(report["lost_sums"])
    if lost:
        iterations.insert(1, f"{lost} sum{'' if lost == 1 else 's'} taken back")
    if not report["converged"]:
        iterations.insert(1, "not converged")
    rows, features = plural(report["n_samples"], "row"), plural(report["n_features"], "feature")
    facts = [
        ("data", f"{rows} x {features}"),
        ("network", ", ".join(network)),
        ("sum", how),
        ("mixture", ", ".join(mixture)),
        ("log-likelihood", f"{report['log_likelihood']:.6f} per sample"),
        ("BIC, AIC", f"{report['bic']:.2f}, {report['aic']:.2f}"),
        ("iterations", ", ".join(iterations)),
        ("communication", communication(report["communication"], names)),
        ("model", report["model"] or "not kept (give --output)"),
    ]
    if report["sample_weight"] is not None:
        total = f"{report['sample_weight']}, {number(report['total_weight'])} in all"
        facts.insert(1, ("sample weights", total))
    heads = ("component", "mixing weight")
    weights = [(k, f"{weight:.4f}") for k, weight in enumerate(report["mixing_weights"])]
    tables = [table(facts, "", ""), table(weights, *heads, title="Components", right=heads)]
    if hubs <= 20 and not over_rows:
        listing = [
            (
                place,
                "server" if hub["root"] == report["server"] else names[hub["root"]],
                ", ".join(names[agent] for agent in hub["agents"]),
                len(hub["features"]),
            )
            for place, hub in enumerate(report["hubs"])
        ]
        right = ("hub", "features")
        tables.append(
            table(listing, "hub", "root", "agents", "features", title="Hubs", right=right)
        )
    show(*tables)
