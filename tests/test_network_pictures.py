"""Pictures of how a fit went and who took part: histories, graphs, blocks, bytes; older files."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from vpem.errors import InputError
from vpem.files.models import assembled
from vpem.network.graph import make_graph
from vpem.network.hubs import find_hubs
from vpem.network.ledger import KINDS
from vpem.pictures import history, network
from vpem.pictures.figure import new_figure, of_bytes, save_picture
from vpem.pictures.network import HUBS_NAMED, draw_hubs
from vpem.pictures.page import draw
from vpem.pictures.saved import saved_of

from .pictures_support import FITS, load, shared_folder
from .tables import each


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return shared_folder(tmp_path_factory)


# ---- history ------------------------------------------------------------------------------------


def test_the_history_of_one_iteration_has_one_tick_and_no_empty_panel(home):
    saved, _ = load(home, "star")
    report = {**saved.report, "communication": {}}
    one = saved_of("m.h5", replace(saved.stored, history=saved.stored.history[:1], report=report))
    value, end = draw("history", one).figure.axes
    low, high = value.get_xlim()
    assert [tick for tick in value.get_xticks() if low <= tick <= high] == [1]
    assert end.texts
    # What hardly changes is not magnified.
    height, middle = history._height(np.array([[-140.0, -140.0 + 1e-9]]))
    assert (height, middle) == (pytest.approx(140 * history.LEAST_HEIGHT), pytest.approx(-140))
    assert history._height(np.array([[1.0], [3.0]])) == (2.0, 2.0)


def test_lines_of_roots_are_their_log_likelihoods(home):
    saved, _ = load(home, "apart")
    axes = draw("history", saved).figure.axes[0]
    history = saved.stored.history / 90
    drawn = [one.get_ydata() for one in axes.lines if len(one.get_ydata()) == len(history)]
    np.testing.assert_allclose(np.array(drawn).T, history)
    assert len({str(one.get_linestyle()) + one.get_marker() for one in axes.lines}) == 4


def test_roots_that_agree_are_one_line_and_workers_have_one_each(home):
    axes = draw("history", load(home, "star")[0]).figure.axes[0]
    assert len(axes.lines) == 1
    assert "agree" in axes.get_title(loc="right")
    saved, _ = load(home, "rows")
    assert saved.history().values.shape == (saved.report["n_iter"], 3)
    assert saved.stored.history.shape[1] == 1
    np.testing.assert_allclose(saved.stored.root_history.mean(axis=1), saved.stored.history[:, 0])


def test_against_bytes_are_the_bytes_of_the_ledger(home):
    saved, _ = load(home, "graph")
    axes = draw("history", saved).figure.axes[1]
    unit, name = of_bytes(saved.history().sent)
    assert name in axes.get_xlabel()
    sent = saved.report["communication"]["bytes_by_iteration"]
    np.testing.assert_allclose(axes.lines[0].get_xdata() * unit, sent)
    assert axes.get_xlim()[1] * unit > 1.02 * sent[-1]


def test_fedem_shows_its_mean_field_by_iteration_from_the_start(home):
    saved, _ = load(home, "fedem")
    record = saved.history()
    assert record.iteration.tolist() == [0, 1, 2, 3, 4, 5]
    panels = draw("history", saved).figure.axes
    assert panels[3].get_ylabel() == "squared mean field"
    np.testing.assert_allclose(panels[3].lines[0].get_ydata(), saved.report["mean_field"])


# ---- graph, blocks ------------------------------------------------------------------------------


def test_hubs_are_those_of_the_model_and_workers_have_none(home):
    for name in ("graph", "lloyd"):
        saved, _ = load(home, name)
        hubs = saved.hubs()
        assert sorted(agent for hub in hubs for agent in hub.agents) == [0, 1, 2, 3]
        assert all(hub.root in hub.agents for hub in hubs)
        title = draw("graph", saved).figure.axes[0].get_title()
        assert title == f"cycle: 4 agents, 4 links, {len(hubs)} hubs"
    axes = draw("graph", load(home, "rows")[0]).figure.axes[0]
    assert axes.get_title() == "path: 3 workers, 2 links"
    assert [one.get_text() for one in axes.texts] == ["worker 0", "worker 1", "worker 2"]


def blocks_drawn(axes):
    """Squares of a panel: where they begin, and how wide they are."""
    return [(box.get_x() + 0.5, box.get_width()) for box in axes.patches if box.get_fill()]


def test_blocks_are_those_of_hubs_beside_those_of_agents(home):
    saved, _ = load(home, "graph")
    blocks = saved.stored.mixture.blocks
    apart, whole = draw("sparsity", saved).figure.axes
    assert blocks_drawn(apart) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert [width for _, width in blocks_drawn(whole)] == blocks.widths.tolist()
    square = int((blocks.widths**2).sum())
    assert f"{square} of 16 entries" in whole.get_title()
    covariance = assembled(saved.stored.mixture)["covariances"]
    assert (covariance != 0).sum() == 2 * square
    held = saved.agents_of_features()
    assert held.tolist() == [0, 1, 2, 3]
    for columns, agents in zip(blocks.features, blocks.agents, strict=True):
        assert set(held[columns]) == set(agents)
        assert (np.diff(held[columns]) > 0).all()
    axes = draw("sparsity", load(home, "star")[0]).figure.axes[0]
    assert blocks_drawn(axes) == [(0, 1), (1, 1), (2, 1), (3, 1)]  # dots of a diagonal
    assert "4 of 16 entries" in axes.get_title()


def test_runs_of_a_hub_are_its_agents():
    parts = network._runs(np.array([4, 7, 1, 0]), np.array([2, 1, 9, 9, 0, 9, 9, 0]))
    assert [part.tolist() for part in parts] == [[4, 7], [1], [0]]


def test_a_picture_tells_hubs_roots_and_names(tmp_path):
    path = tmp_path / "net.svg"
    names = ["a$b", "<i>", "c" * 60, *(f"n{i}" for i in range(7))]
    graph = make_graph("path", 10, names=names)
    hubs = find_hubs(graph, 1)
    save_picture(path, draw_hubs(graph, hubs))
    text = path.read_text()
    assert "path: 10 agents, 9 links" in text
    assert "root of a hub" in text
    for number, hub in enumerate(hubs):
        count = sum(f">{number}</text>" in line for line in text.splitlines())
        assert count == len(hub.agents)


@each(
    ("topology", "n", "hops"),
    [("star", 5, 0), ("path", 1, 0), ("path", 2, 0), ("geometric", 60, 0), ("tree", 160, 1),
     ("erdos-renyi", 90, 1)],
)  # fmt: skip
def test_any_graph_can_be_drawn(tmp_path, topology, n, hops):
    graph = make_graph(topology, n, seed=0)
    path = tmp_path / f"{topology}{n}.png"
    save_picture(path, draw_hubs(graph, find_hubs(graph, hops)))
    assert path.stat().st_size > 5000


@each("n", [30, 64])
def test_agents_on_a_circle_do_not_hide_one_another(n):
    graph = make_graph("cycle", n)
    picture = draw_hubs(graph, find_hubs(graph, 0))
    told = ["names are left out, as they would cover each other"] if n > HUBS_NAMED else []
    assert picture.notes == told
    picture.figure.draw_without_rendering()
    axes = picture.figure.axes[0]
    roots = next(one for one in axes.collections if len(one.get_offsets()) == n)
    places = axes.transData.transform(roots.get_offsets())
    dots = picture.figure.dpi / 72
    side = dots * (roots.get_sizes()[0] ** 0.5 + roots.get_linewidths()[0])
    nearest = np.abs(places - np.roll(places, 1, axis=0)).max(axis=1)
    assert nearest.min() > side


# ---- communication ------------------------------------------------------------------------------


@each("name", [name for name in FITS if name != "one"])
def test_links_and_kinds_and_agents_count_the_same_bytes(home, name):
    saved, _ = load(home, name)
    sent = saved.report["communication"]
    ends, by_kind = saved.links()
    total = sum(by_kind.values())
    assert total.sum() == sent["bytes"]
    assert set(by_kind) <= set(KINDS)
    for kind, values in by_kind.items():
        assert values.sum() == sent["by_kind"][kind]["bytes"]
    at = sent["busiest_link"]["between"]
    assert ends[total.argmax()].tolist() == at
    assert total.max() == sent["busiest_link"]["bytes"]
    out, into = saved.sent_by_agent()
    both = np.bincount(ends.ravel(), np.repeat(total, 2))
    np.testing.assert_allclose(out + into, both)
    assert out.sum() == into.sum() == sent["bytes"]


def stacked(axes, unit):
    """Bytes of each bar, from above."""
    ends = {}
    for box in axes.patches:
        place = round(box.get_y() + box.get_height() / 2)
        ends[place] = ends.get(place, 0) + box.get_width() * unit
    return [ends[place] for place in sorted(ends)]


def test_bars_of_links_and_agents_are_their_bytes_busiest_first(home):
    saved, _ = load(home, "graph")
    *_, links, agents = draw("communication", saved).figure.axes
    total = sum(saved.links()[1].values())
    np.testing.assert_allclose(stacked(links, of_bytes([total.max()])[0]), np.sort(total)[::-1])
    names = [tick.get_text() for tick in links.get_yticklabels()]
    assert len(names) == 4
    assert all(" \N{EN DASH} " in name for name in names)
    both = sum(saved.sent_by_agent())
    np.testing.assert_allclose(stacked(agents, of_bytes([both.max()])[0]), np.sort(both)[::-1])


def test_what_many_links_carry_besides_is_in_one_bar():
    axes = new_figure(5, 3).subplots()
    style = network._style("setup")
    bars = [(f"link {j}", [("setup", 8.0, style)]) for j in range(3)]
    network._bars(axes, [*bars, ("", [("setup", 16.0, style)])], "links", 5)
    assert [box.get_width() for box in axes.patches] == [8, 8, 8, 16]
    assert axes.texts[0].get_text() == " 16 B"
    axes.clear()
    network._bars(axes, [*bars, ("", [("setup", 900.0, style)])], "links", 99)
    assert [box.get_width() for box in axes.patches] == [8, 8, 8, 24]
    assert axes.texts[0].get_text() == " // 900 B"
    assert axes.get_yticklabels()[-1].get_text() == "99 other links"


def test_every_kind_of_the_ledger_has_a_name_and_a_look():
    assert set(network.MEANINGS) == set(network.SHADES) == set(KINDS)
    looks = {(network._style(kind)["facecolor"], network._style(kind)["hatch"]) for kind in KINDS}
    assert len(looks) == len({hatch for _, hatch in looks}) == len(KINDS)


# ---- files of earlier versions, and files of anything --------------------------------------------


def stripped(home, name, *keys, communication=()):
    """A model without some of what is reported now."""
    saved, rows = load(home, name)
    stored = saved.stored
    report = {key: value for key, value in stored.report.items() if key not in keys}
    sent = report["communication"]
    report["communication"] = {k: v for k, v in sent.items() if k not in communication}
    old = type(stored)(**{**vars(stored), "report": report})
    return saved_of("old.h5", old), rows


@each("name", ["graph", "rows", "kmeans", "fedem"])
def test_what_an_older_file_lacks_is_said(home, name):
    old, _rows = stripped(
        home, name, "edges", "partition", "total_weight", communication=("by_link",)
    )
    with pytest.raises(InputError, match=r"^old.h5 does not say who was linked to whom: it is "):
        draw("graph", old)
    if name == "graph":
        assert "how much each link carried" in " ".join(draw("communication", old).notes)
        assert draw("history", old).figure.axes
        picture = draw("sparsity", old)
        assert len(picture.figure.axes) == 1
        assert "which agent holds which feature" in picture.notes[0]
    if name == "kmeans":
        old, _ = stripped(home, "lloyd", "roots")
        with pytest.raises(InputError, match="which agents formed hubs"):
            draw("graph", old)
    if name == "fedem":
        old, _ = stripped(home, name, "recorded")
        assert old.history().iteration.tolist() == [0, 1, 2, 3, 4, 5]


def said_of(ask):
    """What is said where something cannot be had, else nothing."""
    try:
        ask()
    except InputError as error:
        return str(error)
    return ""


WEIRD = (None, "x", -1, 1e300, [], [[]], {}, {"a": 1}, [1, "x"], [[1, 2], [3]], [None], True)


@pytest.mark.parametrize("name", ["graph", "lloyd"])
def test_reports_of_anything_are_drawn_or_refused_in_a_sentence(home, name):
    saved, rows = load(home, name)
    keys = ("edges", "hubs", "communication", "n_agents", "server", "recoveries", "agent_names",
            "partition", "positions", "hops", "split", "restart", "history", "roots",
            "converged", "total_weight", "mean_field", "recorded", "tol")  # fmt: skip
    sent = dict(saved.report["communication"])
    made = [{**saved.report, key: value} for key in keys for value in WEIRD]
    made += [{**saved.report, "communication": {**sent, key: value}}
             for key in sent for value in WEIRD]  # fmt: skip
    odd = [saved_of("odd.h5", type(saved.stored)(**{**vars(saved.stored), "report": report}))
           for report in made]  # fmt: skip
    asked = [(ask, r"odd\.h5 does not say") for other in odd for ask in (
        other.graph, other.hubs, other.history, other.links, other.sent_by_kind,
        other.sent_by_agent, other.agents_of_features,
    )]  # fmt: skip
    asked += [(partial(draw, kind, other, rows), r"odd\.h5") for other in odd[:: len(odd) // 4]
              for kind in ("history", "communication")]  # fmt: skip
    for ask, told in asked:
        assert re.match(rf"{told}|$", said_of(ask))
