"""What is fitted, once or several times: the data of a command, who holds them, their networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .choices import partition_of, stored_graph
from .own import own_features, own_rows, own_weights
from .workers import graph_of, workers_of

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.fits.labels import KnownLabels
    from vpem.fits.results import Fit
    from vpem.fits.selection.trials import Problem
    from vpem.network.schema import Report
    from vpem.settings import FitSettings, GraphSettings, HoldingSettings, SumSettings
    from vpem.sums.connect import Network

    from .driver import Run

    P = TypeVar("P", bound=Problem)


class Task:
    """Data of a command, of which a process has what its own agents have, and their networks.

    ``networks`` are this process's parts by hops, by default those of ``sums``; over rows there is
    one of 0. ``parts`` says who holds which features, or rows; ``names`` are those of agents or
    workers. There are ``labels_for_fit`` to tell a fit of some rows, and ``warnings`` of each
    network, until it was made.
    """

    def __init__(
        self,
        source: Dataset,
        held: HoldingSettings,
        graph: GraphSettings,
        sums: SumSettings,
        run: Run,
        hops: Sequence[int] = (),
    ) -> None:
        from vpem.sums.connect import connect, connect_workers

        self.source, self.run = source, run
        self.labels_for_fit: KnownLabels | None = None
        self.over_rows = held.split == "rows"
        self._weighted = held.sample_weight is not None
        sums = sums.changed(seed=graph.graph_seed)
        heard = run.screen.warnings
        self.parts: Any
        self.networks: dict[int, Network] = {}
        if self.over_rows:
            self.parts = workers_of(source, held, run.screen)
            joined = graph_of(self.parts.n_workers, self.parts.names, graph)
            self.networks[0] = run.over(connect_workers(joined, sums), workers=True)
            self.warnings = {0: list(heard)}
        else:
            self.parts = partition_of(source, held, graph.is_asked or sums.is_asked or any(hops))
            joined = stored_graph(source, held, self.parts, graph, run.screen)
            self._sums, self._graph = sums, joined
            if sums.hubs == "likelihood":
                # Until they are chosen.
                sums, hops = sums.changed(hubs="size", hops=0), [0]
            before, self.warnings = list(heard), {}
            for number in sorted(set(hops or [sums.hops])):
                last = next(reversed(self.networks), None)
                if last is not None and len(self.networks[last].whole.hubs) == 1:
                    # One hub has all agents, and has them from farther away too.
                    self.networks[number] = self.networks[last]
                    self.warnings[number] = self.warnings[last]
                    continue
                n_heard = len(heard)
                network = connect(joined, self.parts, sums, hops=number)
                self.networks[number] = run.over(network)
                self.warnings[number] = before + heard[n_heard:]
        self.names: Sequence[str] = self.parts.names

    def grouped(self, how: FitSettings, limit: int | None, private: bool) -> Task:
        """Put the network of the hubs that these settings choose in the place of the first."""
        if self.over_rows or self._sums.hubs != "likelihood":
            return self
        from vpem.fits.likely_hubs import connect_by_likelihood

        X, names = own_features(self.source, self.network, limit)
        weights = self.source.sample_weight if self._weighted else None
        network = connect_by_likelihood(
            X, self._graph, self.parts, self._sums, how, over=self.run.over,
            private=private, kinds=self.source.kinds, sample_weight=weights, feature_names=names,
        )  # fmt: skip
        self.networks = {self._sums.hops: network}
        found = network.whole.chosen
        assert found is not None
        self.run.screen.note(
            f"hubs by likelihood: worth {found.gain:.4g} nats per sample or more, by a fit without "
            f"hops of {found.first['n_iter']} iterations"
        )
        return self

    @property
    def _n_rows(self) -> int:
        return int(self.parts.n_samples if self.over_rows else self.source.n_samples)

    @property
    def network(self) -> Network:
        """The one of fewest hops."""
        return self.networks[min(self.networks)]

    def data(self, limit: int | None) -> tuple[Any, Any, Report]:
        """Return what a process has of the data, its weights, and what else a fit is told of them.

        ``limit`` are bytes of data that this process may have in memory.
        """
        from vpem.fits.spread import own_columns

        source, network, weights = self.source, self.network, None
        names: Sequence[str] = source.feature_names
        if self.over_rows:
            X = own_rows(source, self.parts, network, limit)
            if self._weighted:
                weights = own_weights(source, self.parts, network)
        else:
            X, names = own_features(source, network, limit)
            if self._weighted:
                weights = source.sample_weight
        about: Report = {"feature_names": names}
        if self.labels_for_fit is not None:
            about["labels_for_fit"] = self.labels_for_fit
        if source.kinds is not None:
            if self.over_rows:
                _refuse_over_rows(source)
            apart = network.agents.apart and not self.over_rows
            about["kinds"] = source.kinds.of(own_columns(network)) if apart else source.kinds
        return X, weights, about

    def fit(self, data: tuple[Any, Any, Report], how: FitSettings, **more: Any) -> Fit:
        """Fit the data as `data` returns them; parameters stay in the processes of their hubs."""
        X, weights, about = data
        width = self.source.n_features if self.over_rows else self.network.whole.blocks.widths.max()
        how = self.run.protecting(how, int(width), self._n_rows)
        more = how.values() | {"sample_weight": weights} | about | more
        if self.over_rows:
            from vpem.fits.rows import fit_em

            return fit_em(X, self.parts, self.network, **more)
        from vpem.fits.spread import fit_spread

        return fit_spread(X, self.network, shards=True, **more)

    def problem(self, kind: type[P], how: FitSettings, limit: int | None, **more: Any) -> P:
        """Return what is to be fitted by these settings, save components, covariance and restarts.

        ``limit`` is that of `data`; ``more`` is what else that kind takes.
        """
        X, weights, about = self.data(limit)
        how = self.run.protecting(how, 0, self._n_rows)
        options = how.values("n_components", "covariance_type", "n_init") | about
        workers = self.parts if self.over_rows else None
        return kind(X, self.networks, workers, options, sample_weight=weights, **more)

    def whole(self, fit: Fit) -> Fit:
        """Return a fit with all parameters in the first process."""
        from vpem.fits.parts import gathered

        return fit if self.over_rows or not self.run.engine.apart else gathered(fit)


def _refuse_over_rows(source: Dataset) -> None:
    """Raise InputError where rows are spread of features that are no Gaussian numbers."""
    from vpem.errors import InputError, Setting

    kinds = source.kinds
    assert kinds is not None
    name, family = next(
        one for one in zip(source.feature_names, kinds.families, strict=True)
        if one[1] != "gaussian"
    )  # fmt: skip
    raise InputError(
        Setting("split", "rows"), " adds up weights, means and scatter of workers' rows, which are "
        f"all that Gaussian features need, but {name!r} is {family}; spread features, or leave it "
        "out with ", Setting("drop", name),
    )  # fmt: skip
