"""Traces: iterates against formulas of the papers, files, runs that go on, and their pictures."""

import json
from itertools import pairwise
from math import log, pi

import h5py
import numpy as np
import pytest

from vpem import (
    VPEM,
    FileError,
    InputError,
    Kinds,
    PrivacySettings,
    Trace,
    connect,
    fit_em,
    fit_fedem,
    fit_saem,
    fit_vpem,
    make_graph,
    plot,
    read_individuals,
    read_trace,
)
from vpem.files.examples import example_path
from vpem.network.partition import contiguous, evenly
from vpem.pictures.iterates import draw_traces

from .cli_support import done, make_data, overlapping, run
from .resume_support import Breaking, check_resumes, check_same, packed
from .tables import each

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

WORKERS = evenly(150, 4)


def data(d=3):
    return overlapping(n_samples=150, n_features=d)[0]


def responsibilities(X, weights, means, covariances):
    """Responsibilities (M, K) and log-likelihood per sample, from the formula."""
    logs = np.empty((len(X), len(weights)))
    for k, (weight, mean, covariance) in enumerate(zip(weights, means, covariances, strict=True)):
        apart = X - mean
        distances = (apart @ np.linalg.inv(covariance) * apart).sum(axis=1)
        constant = np.linalg.slogdet(covariance)[1] + X.shape[1] * log(2 * pi)
        logs[:, k] = log(weight) - 0.5 * (distances + constant)
    most = logs.max(axis=1, keepdims=True)
    total = most[:, 0] + np.log(np.exp(logs - most).sum(axis=1))
    return np.exp(logs - total[:, None]), total.mean()


def mean_statistic(X, shares, blocks=None):
    """Mean of ``(g, g y, lower half of g y y^T)``, of each component; second moments by block."""
    d = X.shape[1]
    parts = [shares.mean(axis=0), (shares.T @ X / len(X)).ravel()]
    for columns in blocks or [range(d)]:
        Y = X[:, list(columns)]
        lower = np.tril_indices(Y.shape[1])
        for k in range(shares.shape[1]):
            parts.append((shares[:, k, None] * Y).T @ Y / len(X))
            parts[-1] = parts[-1][lower]
    return np.concatenate(parts)


def check_iterates(trace, X, scaling, blocks=None):
    """Objective, mean field and statistic are those of the recorded parameters."""
    Y = (X - scaling.shift) / scaling.scale
    looked_at = 0
    for one in trace.records:
        found = one["parameters"]
        shares, value = responsibilities(X, one["weights"], found["means"], found["covariances"])
        if one["objective"] is not None:
            assert one["objective"] == pytest.approx(value, rel=1e-10)
        if one["mean_field"] is not None:
            change = mean_statistic(Y, shares, blocks) - one["statistic"]
            assert one["mean_field"] == pytest.approx(change @ change, rel=1e-7, abs=1e-20)
            looked_at += 1
    for one, two in pairwise(trace.records):
        if two["move"] is not None:
            change = (two["statistic"] - one["statistic"]) / (two["step"] or 1)
            assert two["move"] == pytest.approx(change @ change, rel=1e-12)
    return looked_at


def test_em_over_rows():
    X, trace = data(), Trace()
    fit = fit_em(X, WORKERS, n_components=2, max_iter=8, tol=0, n_init=2, callback=trace)
    assert [(one["restart"], one["iteration"]) for one in trace.records] == [
        (restart, iteration) for restart in (1, 2) for iteration in range(9)
    ]
    assert check_iterates(trace, X, fit.mixture.scaling) == 2 * 7
    best = trace.runs()[fit.best_restart]
    assert best["objective"][:-1] == pytest.approx(fit.history[:, 0] / len(X), rel=1e-13)
    assert best["objective"][-1] == pytest.approx(fit.log_likelihood, rel=1e-13)
    # In plain EM H_(k+1) = h(S_k), which FedEM without noise is.
    assert best["move"][2:].tolist() == best["mean_field"][1:-1].tolist()
    one, two = Trace(), Trace()
    fit_em(X, WORKERS, n_components=2, max_iter=7, tol=0, callback=one)
    fit_fedem(X, WORKERS, n_components=2, max_iter=7, tol=0, step_size=1, callback=two)
    for name in ("weights", "means", "covariances", "objective"):
        assert one[name] == pytest.approx(two[name], rel=1e-9)
    assert one["mean_field"][1:-1] == pytest.approx(two["mean_field"][1:-1], rel=1e-9)


@pytest.mark.parametrize("hops", [0, 1])
def test_vp_em(hops):
    """Exact sums over hubs: each has second moments of its own features."""
    X, trace = data(4), Trace()
    network = connect(make_graph("path", 4), contiguous(4, 4), hops=hops, sum="tree")
    fit = fit_vpem(X, network, n_components=2, max_iter=6, tol=0, callback=trace)
    order, scaling = fit.mixture.blocks.order, fit.mixture.scaling
    blocks = [[order.tolist().index(j) for j in one] for one in fit.mixture.blocks.features]
    assert trace["means"].shape == (7, 2, 4)
    for one in trace.records:  # the statistic is in block order
        found = one["parameters"]
        found["means"] = found["means"][:, order]
        found["covariances"] = found["covariances"][:, order][:, :, order]
    ordered = type(scaling)(scaling.shift[order], scaling.scale[order])
    assert check_iterates(trace, X[:, order], ordered, blocks) == 5
    check_same(fit, fit_vpem(X, network, n_components=2, max_iter=6, tol=0))


def test_fedem_from_the_paper():
    """``S_(k+1) = S_k + gamma H_(k+1)`` and ``h(S) = mean statistic at T(S) minus S``."""
    X, trace = data(), Trace()
    options = {"compress": "qsgd:8bits", "batch_size": 20, "participation": 0.7, "tol": 0}
    options |= {"n_components": 2, "max_iter": 9, "step_size": 0.3, "record_every": 2, "floor": 0}
    fit = fit_fedem(X, WORKERS, callback=trace, **options)
    assert check_iterates(trace, X, fit.mixture.scaling) == 6
    history = fit.run.history
    known = np.isfinite(trace["mean_field"])
    assert trace["iteration"][known].tolist() == history.iteration == [0, 2, 4, 6, 8, 9]
    assert trace["mean_field"][known].tolist() == history.mean_field
    assert trace["epochs"][known].tolist() == history.epochs
    assert set(trace["step"][1:]) == {0.3}
    assert trace["n_active"][1:].max() <= 4
    check_same(fit, fit_fedem(X, WORKERS, **options))


def test_saem():
    individuals = read_individuals(example_path("oxford_boys"))
    trace = Trace()
    fit = fit_saem(individuals, n_iter=12, devices=3, tol=0, callback=trace)
    assert trace.names == tuple(fit.parameters)
    assert trace["theta"] == pytest.approx(fit.trace, rel=1e-12)
    for one, two in pairwise(trace.records):
        change = (two["statistic"] - one["statistic"]) / two["step"]
        assert two["move"] == pytest.approx(change @ change, rel=1e-12)
    assert np.isnan(trace["mean_field"]).all()


NO_STATISTIC = [{"accelerate": "squarem"}, {"batch_size": 20}, {"batch_size": 20, "step_size": 0.7}]


@each("options", NO_STATISTIC)
def test_where_no_statistic_is_that_of_the_parameters(options):
    X, trace = data(), Trace()
    fit = fit_em(X, WORKERS, n_components=2, max_iter=5, tol=0, callback=trace, **options)
    assert np.isnan(trace["mean_field"]).all()
    last = trace.records[-1]
    assert last["parameters"]["means"].tolist() == fit.mixture.assembled_means.tolist()
    assert last["objective"] == pytest.approx(fit.log_likelihood, rel=1e-13)


@each("options", [{"agent_dropout": 0.3}, {"link_failure": 0.2}, {"compress": "qsgd:8bits"}])
def test_no_mean_field_of_sums_that_are_not_of_the_iterate(options):
    trace = Trace()
    network = connect(make_graph("cycle", 4), contiguous(4, 4), **options)
    fit_vpem(data(4), network, n_components=2, max_iter=5, tol=0, callback=trace)
    assert np.isnan(trace["mean_field"]).all()
    assert np.isfinite(trace["move"][2:]).all()


@pytest.mark.parametrize(("kinds", "size"), [
    (None, 2 + 2 * 4 + 2 * 4), (Kinds(("t",) * 4), 2 + 5 * 2 * 4),
])  # fmt: skip
def test_a_mean_field_is_the_same_however_it_is_summed(kinds, size):
    """Weights count once, also where every root has some of its own, or every family."""
    fields = []
    for way in ({"sum": "tree"}, {"n_rounds": 60}):
        trace, options = Trace(), {"n_components": 2, "max_iter": 5, "tol": 0, "init": [0, 140]}
        network = connect(make_graph("cycle", 4), contiguous(4, 4), **way)
        fit_vpem(data(4), network, callback=trace, kinds=kinds, **options)
        fields.append(trace["mean_field"])
        assert trace["step"].tolist()[1:] == [1.0] * 5
        assert trace["statistic"].shape[1] == size
    assert fields[0][1:-1] == pytest.approx(fields[1][1:-1], rel=1e-8)


def test_a_random_stop_is_uniform_and_is_that_iterate():
    X, stops = data(), []
    options = {"n_components": 2, "tol": 0, "compress": "qsgd:8bits", "init": [0, 140]}
    for seed in range(60):
        fit = fit_fedem(X, WORKERS, max_iter=4, random_stop=True, seed=seed, **options)
        stops.append(fit.run.n_iter)
    counts = np.bincount(stops)
    assert len(counts) == 4
    assert ((counts - 15) ** 2 / 15).sum() < 16.3  # 0.1 % of chi square with 3
    trace, seed = Trace(), stops.index(3)
    fit_fedem(X, WORKERS, max_iter=4, seed=seed, callback=trace, **options)
    fit = fit_fedem(X, WORKERS, max_iter=4, random_stop=True, seed=seed, **options)
    assert fit.run.statistic.tolist() == trace["statistic"][3].tolist()
    drawn = [trace.draw(seed)["iteration"] for seed in range(60)]
    assert sorted(set(drawn)) == [0, 1, 2, 3]
    for changes, said in (
        ({"tol": 0}, "max_iter, which must be given"),
        ({"max_iter": 5}, "is the only end of a run: take tol=0, and"),
        ({"max_iter": 5, "tol": 0, "n_epochs": 2}, "is the only end of a run"),
    ):
        with pytest.raises(InputError, match=said):
            fit_fedem(X, WORKERS, n_components=2, random_stop=True, **changes)


# ---- files --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace():
    found = Trace()
    fit_em(data(), WORKERS, n_components=2, max_iter=5, tol=0, n_init=2, callback=found)
    return found


def same_trace(one, two):
    check_same([*one.records], [*two.records])
    assert one.names == two.names


@each("name", ["a.jsonl", "a.h5"])
def test_files_keep_every_bit(tmp_path, trace, name):
    trace.write(tmp_path / name)
    same_trace(read_trace(tmp_path / name), trace)
    with pytest.raises(FileError, match="exists"):
        trace.write(tmp_path / name)
    trace.write(tmp_path / name, force=True)


def test_damaged_lines_are_refused(tmp_path, trace):
    file = tmp_path / "a.jsonl"
    trace.write(file)
    lines = file.read_text().splitlines()
    one = json.loads(lines[2])
    bad = [
        [lines[0], lines[1], lines[2][:50]],
        lines[:1],
        lines[1:],
        [lines[0], "[]"],
        [lines[0], json.dumps(one | {"iteration": "1"})],
        [lines[0], json.dumps(one | {"weights": [[1], [1, 2]]})],
        [lines[0], json.dumps(one | {"weights": ["a"]})],
        [lines[0], json.dumps({name: one[name] for name in one if name != "step"})],
        [lines[0], lines[1], json.dumps(one | {"weights": [1.0]})],
        [lines[0], lines[1].replace("0.", "NaN, 0.", 1)],
        [lines[0], lines[1], lines[1]],
        [json.dumps(json.loads(lines[0]) | {"names": 5}), lines[1]],
        [json.dumps(json.loads(lines[0]) | {"names": ["a"]}), lines[1]],
        [lines[0].replace("0.1.0", "1.0.0"), lines[1]],
    ]
    for some in bad:
        file.write_text("\n".join(some) + "\n")
        with pytest.raises(FileError):
            read_trace(file)
    file.write_text("\n".join([lines[0], lines[1].replace("epochs", "epoch")]))
    with pytest.raises(FileError, match="line 2 is damaged: it has no epochs"):
        read_trace(file)


def test_damaged_arrays_are_refused(tmp_path, trace):
    def replaced(name, values):
        def change(file):
            del file[name]
            file[name] = values

        return change

    n = len(trace)
    for change in (
        replaced("objective", np.zeros((n, 2))),
        replaced("weights", np.zeros(n)),
        replaced("restart", np.full(n, -1)),
        replaced("iteration", np.zeros(n, int)),
        replaced("step", np.zeros(n - 1)),
        lambda file: file.pop("means"),
        lambda file: file.pop("epochs"),
    ):
        trace.write(tmp_path / "a.h5", force=True)
        with h5py.File(tmp_path / "a.h5", "a") as file:
            change(file)
        with pytest.raises(FileError, match="h5 is damaged"):
            read_trace(tmp_path / "a.h5")
    for what in ("group", np.dtype("f8")):
        trace.write(tmp_path / "a.h5", force=True)
        with h5py.File(tmp_path / "a.h5", "a") as file:
            if what == "group":
                file.create_group("more")
            else:
                file["more"] = what
        with pytest.raises(FileError, match="more is a group, not a dataset"):
            read_trace(tmp_path / "a.h5")


def test_a_trace_says_what_it_lacks_and_private_fits_keep_none(trace):
    with pytest.raises(InputError, match="no weihgts"):
        trace["weihgts"]
    for wrong in (Trace().draw, lambda: Trace().write("a.h5"), lambda: trace.write("a.csv")):
        with pytest.raises(InputError):
            wrong()
    for seed in (-1, "x"):
        with pytest.raises(InputError, match="seed must be an integer of at least 0"):
            trace.draw(seed)
    X, network = data(), connect(make_graph("star", 3), contiguous(3, 3))
    for fit, held, epsilon in (
        (fit_em, WORKERS, {"epsilon": 1.0}), (fit_vpem, network, {"release_epsilon": 1.0}),
    ):  # fmt: skip
        privacy = PrivacySettings(delta=1e-5, **epsilon)
        with pytest.raises(InputError, match="private fit keeps no trace"):
            fit(X, held, callback=Trace(), privacy=privacy)


@pytest.mark.parametrize("kind", ["rows", "fedem"])
def test_a_run_that_goes_on_has_the_whole_trace(kind, tmp_path):
    X, whole = data(), Trace()
    options = {"n_components": 2, "max_iter": 7, "tol": 0}
    options |= {"n_init": 2} if kind == "rows" else {"batch_size": 20, "compress": "qsgd:8bits"}
    fit = fit_em if kind == "rows" else fit_fedem
    fit(X, WORKERS, callback=whole, **options)
    file = tmp_path / "run.jsonl"

    def going(saver):
        # What was written before is read where the run goes on.
        begun = read_trace(file) if saver.saved is not None else None
        kept = Trace(begun=begun)
        try:
            return fit(X, WORKERS, callback=kept, saver=saver, **options)
        finally:
            kept.write(file, force=True)

    check_resumes(going)
    same_trace(read_trace(file), whole)


class Last(Breaking):
    """Keeps the state at the end."""

    def offer(self, state, *, last=False):
        if last:
            self.state = packed(state())


@each("options", [{}, *NO_STATISTIC])
def test_a_run_that_was_at_its_end_goes_on(options):
    """What the end said of the last iterate is not left in it."""
    X, whole = data(), Trace()

    def fit(max_iter, **more):
        return fit_em(X, WORKERS, n_components=2, max_iter=max_iter, tol=0, **options, **more)

    found = fit(9, callback=whole)
    if "batch_size" not in options:
        check_iterates(whole, X, found.mixture.scaling)
    for first in (3, 4):
        part, saver = Trace(), Last()
        fit(first, callback=part, saver=saver)
        part = Trace(begun=part)
        fit(9, callback=part, saver=Breaking(saved=saver.state))
        same_trace(part, whole)


# ---- commands and pictures -----------------------------------------------------------------------


def test_commands(capsys, tmp_path):
    file = tmp_path / "d.h5"
    make_data(file)
    one, two = tmp_path / "one.jsonl", tmp_path / "two.h5"
    common = ("-k", 2, "--max-iter", 9, "--tol", 0)
    plain = done(capsys, "fit", file, *common, "--json").json
    traced = done(capsys, "fit", file, *common, "--json", "--trace", one)
    found = traced.json
    for report in (plain, found):
        report.pop("seconds"), report.pop("iterations_per_second")
    assert found == plain
    assert f"wrote 10 iterates to {one}\n" in traced.err
    done(capsys, "fedem", file, "--workers", 3, *common, "--trace", two)
    assert len(read_trace(one)) == len(read_trace(two)) == 10
    assert "exists" in run(capsys, "fedem", file, *common, "--trace", two).sentence
    picture = ("-o", tmp_path / "p.png", "--force")
    assert "wrote " in done(capsys, "plot", one, two, *picture).err
    for words, said in (
        (("plot", two, "--kind", "history", *picture), "holds a trace"),
        (("plot", one, file, *picture), "not a vpem-trace file"),
        (("fit", file, "-k", "2-3", "--trace", "no.h5"), "--trace "),
        (("fit", file, "--split", "rows", "--epsilon", 1, "--trace", "no.h5"), "--trace "),
        (("show", one), "a trace"), (("report", two), "a trace"),
    ):  # fmt: skip
        refused = run(capsys, *words)
        assert (refused.code, refused.out) == (2, "")
        assert said in refused.sentence


def test_a_command_that_goes_on_completes_its_file(capsys, tmp_path, monkeypatch):
    from vpem.files.checkpoints import FileSaver

    file, kept = tmp_path / "d.h5", tmp_path / "run.ckpt"
    make_data(file)
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    command = ("fedem", file, "-k", 2, "--workers", 3, "--max-iter", 9, "--tol", 0, "-q")
    done(capsys, *command, "--trace", whole, "--checkpoint", tmp_path / "whole.ckpt")
    first = FileSaver.offer

    def stop(self, state, *, last=False):
        self.signal = 15 if self.generation == 4 else self.signal
        first(self, state, last=last)

    monkeypatch.setattr(FileSaver, "offer", stop)
    broken = run(capsys, *command, "--trace", part, "--checkpoint", kept)
    assert broken.code == 143
    monkeypatch.setattr(FileSaver, "offer", first)
    done(capsys, *command, "--trace", part, "--checkpoint", kept, "--resume")
    assert part.read_text() == whole.read_text()


def test_a_file_of_another_run_is_not_gone_on_with(capsys, tmp_path):
    file, kept, trace = tmp_path / "d.h5", tmp_path / "run.ckpt", tmp_path / "t.jsonl"
    make_data(file)
    command = ("fit", file, "--split", "rows", "--workers", 3, "--tol", 0, "-q")
    ours = (*command, "-k", 2, "--checkpoint", kept)
    done(capsys, *ours, "--max-iter", 3, "--trace", trace)
    done(capsys, *ours, "--max-iter", 5, "--resume")  # without it
    for n, seed in ((2, 0), (2, 1), (3, 0)):
        if seed or n == 3:
            done(capsys, *command, "-k", n, "--seed", seed, "--max-iter", 8, "--trace", trace,
                 "--force", "--checkpoint", tmp_path / "other.ckpt")  # fmt: skip
        before = trace.read_text()
        refused = run(capsys, *ours, "--max-iter", 7, "--resume", "--trace", trace)
        assert (refused.code, refused.out) == (2, "")
        assert "another run than the checkpoint, or ends before it" in refused.sentence
        fresh = (*command, "-k", 2, "--checkpoint", tmp_path / f"new{n}{seed}.ckpt")
        refused = run(capsys, *fresh, "--resume-if-any", "--trace", trace)
        assert refused.code == 2
        assert "exists" in refused.sentence
        assert trace.read_text() == before
    done(capsys, *ours, "--max-iter", 7, "--resume", "--trace", trace, "--force")
    assert read_trace(trace)["iteration"].tolist() == [6, 7]


def test_pictures_are_of_medians():
    X, traces = data(), []
    for seed in range(5):
        traces.append(Trace())
        fit_fedem(X, WORKERS, n_components=2, max_iter=6, tol=0, batch_size=15, seed=seed,
                  init=[0, 140] if seed else [140, 0], callback=traces[-1])  # fmt: skip
    picture = plot(traces)
    weights, field = picture.figure.axes[:2]
    every = np.array([one["weights"] for one in traces])
    every[1:] = every[1:, :, ::-1]  # which of the first is the other
    middle = np.median(every, axis=0)
    for k, line in enumerate(weights.lines):
        assert line.get_ydata() == pytest.approx(middle[:, k], rel=1e-14)
        assert line.get_xdata() == pytest.approx(np.median([one["epochs"] for one in traces], 0))
    [drawn] = field.lines
    fields = [one["mean_field"] for one in traces]
    assert drawn.get_ydata() == pytest.approx(np.median(fields, axis=0), rel=1e-14)
    [band] = field.collections
    vertices = band.get_paths()[0].vertices[:, 1]
    low, high = np.quantile(fields, (0.25, 0.75), axis=0)
    assert (vertices.min(), vertices.max()) == pytest.approx((low.min(), high.max()))
    assert "medians of 5 runs" in picture.notes[-1]
    two = draw_traces({"FedEM": traces[:2], "VR-FedEM": traces[2:]})
    assert [len(axes.lines) for axes in two.figure.axes[:3]] == [2, 2, 2]
    odd = Trace()
    fit_fedem(X, WORKERS, n_components=3, max_iter=2, tol=0, callback=odd)
    with pytest.raises(InputError, match="different numbers of components"):
        plot([*traces, odd])


def normal(x, mean, variance):
    return np.exp(-0.5 * (x - mean) ** 2 / variance) / np.sqrt(2 * pi * variance)


def test_marginals_lie_over_one_another():
    """As Figure 6 of the VP-EM paper: the densities of EM and VP-EM over a histogram."""
    X = data(4)
    one = VPEM(2, graph="path", agents=4, max_iter=5).fit(X)
    two = VPEM(2, agents=1, max_iter=5).fit(X)
    picture = plot(one, "marginals", X, features=[2], over=[two])
    axes = picture.figure.axes[0]
    assert [line.get_color() for line in axes.lines] != [axes.lines[0].get_color()] * 2
    for line, model in zip(axes.lines, (one, two), strict=True):
        x, y = line.get_data()
        means, variances = model.means_[:, 2], model.covariances_[:, 2, 2]
        density = sum(
            weight * normal(x, mean, variance)
            for weight, mean, variance in zip(model.weights_, means, variances, strict=True)
        )
        assert y == pytest.approx(density, rel=1e-9, abs=1e-14)
    with pytest.raises(InputError, match="over are for marginals and history"):
        plot(one, "profile", over=[two])
    with pytest.raises(InputError, match="no density of"):
        plot(one, "marginals", X, over=[VPEM(2, agents=1, max_iter=2).fit(X[:, :2])])


def test_histories_of_fits_made_alike_are_averaged():
    """As Figures 4 and 5: what has converged stays where it is."""
    X, fits = data(4), []
    for seed in range(3):
        fits.append(VPEM(2, graph="path", agents=4, init="random", random_state=seed, max_iter=40,
                         tol=1e-3).fit(X))  # fmt: skip
    pooled = VPEM(2, agents=1, max_iter=7, tol=0).fit(X)
    axes = plot(fits[0], "history", over=[*fits[1:], pooled]).figure.axes[0]
    curves = [one.fit_.history.mean(axis=1) / len(X) for one in fits]
    longest = max(map(len, curves))
    assert min(map(len, curves)) < longest
    mean = np.mean([[*one, *[one[-1]] * (longest - len(one))] for one in curves], axis=0)
    assert axes.lines[0].get_ydata() == pytest.approx(mean, rel=1e-13)
    assert axes.lines[1].get_ydata() == pytest.approx(pooled.fit_.history[:, 0] / len(X))
    names = axes.get_legend_handles_labels()[1]
    assert [name.split(",")[0] for name in names] == ["VP-EM", "EM"]
    assert names[0].endswith("mean of 3 runs")
