"""Alignment by id: every level finds the rows that sets find, in the first party's order."""

import re
import sys
import threading
import unicodedata
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vpem.engines.placement import Placement, for_each
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.parties import alignment
from vpem.files.parties.alignment import _hashed, align, read_key
from vpem.files.studies.policy import Policy, PolicyError
from vpem.settings import ALIGNMENTS

from .tables import each, over
from .thread_engine import ThreadEngine, over_queues, together

KEY = bytes(range(40))
NAMES = ("hospital", "lab", "insurer", "registry", "clinic")

try:
    import private_set_intersection.python  # noqa: F401
except ImportError:
    MATCHING = ("ids", "hmac")
else:
    MATCHING = ("ids", "hmac", "psi")

quick = partial(settings, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", autouse=True)
def cheap_guesses():
    """Of a hash by a key: as they stand, each of a thousand keys here would take 0.1 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(alignment.STRETCHED, "n", 2)
        yield


def agree(ids, level="ids", **options):
    """Align lists of ids in one process, without warnings."""
    columns = {party: np.asarray(part) for party, part in enumerate(ids)}
    keys = dict.fromkeys(columns, KEY) if level == "hmac" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        return align(
            columns, NAMES[: len(ids)], Placement.here(3), level, **{"keys": keys, **options}
        )


def apart(ids, level, kind=ThreadEngine, holder_of=None, keys=None):
    """Align ids of parties in a process each, or where they live: what each found or raised."""
    holder_of = range(len(ids)) if holder_of is None else holder_of

    def work(engine):
        holders = Placement(engine, holder_of)
        held = {party: ids[party] for party in holders.own.tolist()}
        own = {party: KEY if keys is None else keys[party] for party in held}
        return align(held, NAMES[: len(ids)], holders, level, keys=own)

    return together(max(holder_of) + 1, work, kind)


def spelled(text):
    return unicodedata.normalize("NFC", text).strip()


whole = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=6).filter(spelled)


@st.composite
def parties(draw):
    """Ids of some parties that have at least one in common, each different in itself."""
    kind, key = draw(st.sampled_from([(whole, None), (texts, spelled)]))
    pool = draw(st.lists(kind, min_size=1, max_size=12, unique_by=key or (lambda value: value)))
    common = draw(st.integers(1, len(pool)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ids = []
    for _ in range(draw(st.integers(1, 4))):
        more = [value for value in pool[common:] if rng.random() < 0.5]
        part = [*pool[:common], *more]
        ids.append([part[place] for place in rng.permutation(len(part))])
    return ids


def by_sets(ids):
    """Row numbers of each party by Python's sets and lists."""
    ids = [[spelled(i) if isinstance(i, str) else i for i in part] for part in ids]
    kept = [i for i in ids[0] if all(i in set(part) for part in ids)]
    return [[part.index(i) for i in kept] for part in ids]


# ---- what is found ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", MATCHING)
@quick(max_examples=12)
@given(ids=parties())
def test_rows_are_those_of_sets_in_the_first_partys_order(level, ids):
    found = agree(ids, level)
    assert [found.rows[party].tolist() for party in range(len(ids))] == by_sets(ids)
    assert found.sizes == tuple(map(len, ids))
    assert found.n_samples == found.n_complete == len(found.rows[0])


@pytest.mark.parametrize("level", ["ids", "hmac"])
@quick(max_examples=15)
@given(ids=parties())
def test_an_outer_join_has_every_row_once(level, ids):
    found = agree(ids, level, keep_missing=True)
    names = [[spelled(i) if isinstance(i, str) else i for i in part] for part in ids]
    expected = list(dict.fromkeys(i for part in names for i in part))
    for party, part in enumerate(names):
        rows = [part.index(i) if i in part else -1 for i in expected]
        assert found.rows[party].tolist() == rows
        assert found.present[party] == len(part)
    complete = np.all([found.rows[party] >= 0 for party in found.rows], axis=0)
    assert found.n_complete == complete.sum()
    inner = agree(ids, level)
    for party in range(len(ids)):
        assert np.array_equal(found.rows[party][complete], inner.rows[party])


@over(level=["none", *MATCHING], holder_of=[(0, 1, 2), (1, 0, 1), (2, 1, 0), (0, 0, 1)])
def test_many_processes_find_what_one_does(level, holder_of):
    rng = np.random.default_rng(3)
    ids = [np.array([f"p{i:02d}" for i in rng.permutation(30)[:26]]) for _ in range(3)]
    if level == "none":
        ids = [ids[0]] * 3
    alone = agree(ids, level)
    for rank, found in enumerate(apart(ids, level, holder_of=holder_of)):
        assert set(found.rows) == {party for party in range(3) if holder_of[party] == rank}
        assert found.describe() == alone.describe()
        for party, rows in found.rows.items():
            assert np.array_equal(rows, alone.rows[party])


@each(
    ("ids", "level"),
    [
        ([["a", "b"], ["b", "b"], ["b", "c"]], "ids"),
        ([["a", "b"], [1, 2], ["b", "c"]], "hmac"),
        ([["a", "b"], ["c", "d"], ["b", "c"]], MATCHING[-1]),
        ([["a", "b"], ["b", "c"], ["c", "d"]], MATCHING[-1]),
        ([["a", "b"], ["b", "a"], ["a", "b"]], None),
        ([["a", "b"], 2, ["a", "b"]], None),
        ([["a", "b"], ["a", ""], ["a", "b"]], "ids"),
        ([["a", "b"], ["a", "b"], ["a", "b"]], "hmac-keys"),
    ],
)
def test_an_error_of_one_process_is_the_error_of_all(ids, level):
    keys = [KEY, KEY, KEY]
    if level == "hmac-keys":
        level, keys[2] = "hmac", KEY[::-1]
    columns = [one if one == 2 else np.array(one) for one in ids]
    errors = apart(columns, level, keys=keys)
    assert all(type(error) is InputError for error in errors)
    assert len({str(error) for error in errors}) == 1


def test_work_that_fails_somewhere_fails_everywhere_with_the_first_error():
    def work(party):
        if party:
            raise FileError(f"no file {party}")
        return party

    errors = together(3, lambda engine: for_each(Placement(engine, range(3)), range(3), work))
    assert [type(error) for error in errors] == [FileError] * 3
    assert {str(error) for error in errors} == {"no file 1"}
    found = together(2, lambda engine: for_each(Placement(engine, (0, 1)), (0, 1), abs))
    assert found == [{0: 0}, {1: 1}]
    # What organisations are told of each other's data is that it cannot be used.
    held = together(
        3, lambda engine: for_each(Placement(engine, range(3)), range(3), work), over_queues
    )
    told = "member 1 ended: it cannot use its data; ask there"
    assert [str(error) for error in held] == [told, "no file 1", "no file 2"]


# ---- what is sent -------------------------------------------------------------------------------


@each("level", MATCHING)
def test_a_server_without_data_sees_no_ids(level):
    ids = [[f"row {number}" for number in range(40) if number % step] for step in (7, 5, 3)]
    heard = []

    def work(engine):
        if engine.rank == 0:
            read = engine._post.receive
            engine._post.receive = lambda *place: heard.append(read(*place)) or heard[-1]
        place = Placement.evenly(engine, 3)
        own = {party: np.array(ids[party]) for party in place.own.tolist()}
        keys = dict.fromkeys(own, KEY) if level == "hmac" else None
        return align(own, NAMES[:3], place, level, keys=keys)

    wanted = agree(ids, level)
    found = together(4, work, over_queues, seats=(1, 2, 3))
    assert [one.describe() for one in found] == [wanted.describe()] * 4
    for party, one in enumerate(found[1:]):
        np.testing.assert_array_equal(one.rows[party], wanted.rows[party])
    assert heard
    assert not any(b"row 1" in message for message in heard)


def recorder(sent):
    """Processes that keep all that they send."""

    class Recorder(ThreadEngine):
        def post(self, to, what, value):
            sent.append(repr(value))
            super().post(to, what, value)

    return Recorder


@each("level", ["none", "hmac", "psi"])
def test_an_id_that_others_lack_is_sent_by_no_level_but_ids(level):
    if level == "psi" and level not in MATCHING:
        level = "hmac"
    ids = [np.array(["both1", "only-hospital", "both2"]), np.array(["both2", "only-lab", "both1"])]
    if level == "none":
        ids[1] = ids[0]
    sent = []
    found = apart(ids, level, recorder(sent))
    assert all(not isinstance(one, Exception) for one in found)
    assert sent
    assert not any("only" in words for words in sent)
    if level != "psi":
        assert not any("both" in words for words in sent)


def test_what_the_first_party_gets_tells_nothing_of_the_order_of_files():
    rng = np.random.default_rng(1)
    ids = [np.array([f"p{i}" for i in range(20)]), np.array([f"p{i}" for i in rng.permutation(20)])]
    got = []
    for order in (np.arange(20), rng.permutation(20)):
        sent = []
        apart([ids[0], ids[1][order]], "ids", recorder(sent))
        got.append(sorted(sent))
    assert got[0] == got[1]


# ---- ids ----------------------------------------------------------------------------------------


@each("level", MATCHING)
def test_whole_numbers_are_equal_in_every_type(level):
    ids = [np.array([3, 1, 2], dtype=np.int32), np.array([1.0, 3.0]), np.array([3, 9], np.uint64)]
    found = agree(ids, level)
    assert [found.rows[party].tolist() for party in range(3)] == [[0], [1], [0]]


def test_white_space_and_composition_are_evened_out_and_told():
    ids = {0: np.array(["p1", "p2", "\u00e9"]), 1: np.array(["e\u0301", " p2 ", "p1\u00a0", "p3"])}
    with pytest.warns(VpemWarning, match=r"3 ids of party 'lab' .* \(first in row 0\)"):
        found = align(ids, NAMES[:2], Placement.here(3), "ids")
    assert found.rows[1].tolist() == [2, 1, 0]


def test_repeated_ids_are_named_by_row_only():
    with pytest.raises(InputError) as caught:
        agree([["x", "y"], ["secret", "y", "z", "secret ", "y"]])
    assert "rows 0 and 3 of party 'lab' have the same id (2 repeat others in all)" in str(
        caught.value
    )
    assert "secret" not in str(caught.value)


@each(
    ("ids", "level", "sentence"),
    [
        *(([[1, 2], np.array([1, value], dtype=dtype)], "ids",
           r"row 1 of party 'lab' has an id that is not a whole")
          for value, dtype in ((1.5, float), (np.nan, float), (np.inf, float), (2.0**54, float),
                               (2.0**25, np.float32))),
        ([["1"], [1]], "ids", "the ids of party 'lab' are whole numbers, those of party 'hospit"),
        ([["1"], [1]], None, "never equal"),
        ([["a"], [" "]], "ids", "row 0 of party 'lab' has an empty id"),
        ([["a"], [True]], "ids", "must be strings or whole numbers"),
        ([["a"], ["b"]], "hmac", "'lab' has no id in common with party 'hospital'"),
        ([["a", "b"], ["b", "c"], ["c", "a"]], "ids", "'insurer' has no id in common with the"),
        ([["a"], ["b"]], "idz", r"align must be one of none, .* \(did you mean 'ids'\?\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(ids, level, sentence):
    with pytest.raises(InputError, match=sentence):
        agree(ids, level)


@each("level", MATCHING)
def test_a_party_without_ids_cannot_be_matched(level):
    said = "party 'lab' has no ids, by which rows could be aligned; name their column with id_col"
    with pytest.raises(InputError, match=said):
        align(
            {0: np.array(["a"]), 1: 1}, NAMES[:2], Placement.here(3), level, keys={0: KEY, 1: KEY}
        )


@each("level", MATCHING)
def test_few_rows_in_common_are_warned_about(level):
    ids = {0: np.arange(30), 1: np.arange(28, 90)}
    with pytest.warns(
        VpemWarning, match="only 2 rows are in common, while the smallest party has 30"
    ):
        align(ids, NAMES[:2], Placement.here(3), level, keys={0: KEY, 1: KEY})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        align({0: np.arange(30), 1: np.arange(27, 90)}, NAMES[:2], Placement.here(3), "ids")


# ---- aligned already ----------------------------------------------------------------------------


def test_rows_that_are_aligned_are_taken_as_they_are():
    visits = np.array(["a", "b", "b", "c"])
    found = align({0: visits, 1: visits}, NAMES[:2], Placement.here(3))
    assert not found.by_position
    found = align({0: visits, 1: 4, 2: visits}, NAMES[:3], Placement.here(3), "none")
    assert found.by_position
    assert [rows.tolist() for rows in found.rows.values()] == [[0, 1, 2, 3]] * 3
    assert found.describe()["parties"][1] == {"name": "lab", "rows": 4, "lost": 0, "absent": 0}
    found = align({0: 4, 1: 4}, NAMES[:2], Placement.here(3))
    assert (found.n_samples, found.by_position) == (4, True)


@each(
    ("ids", "sentence", "by_word"),
    [
        (
            [["a", "b"], ["a", "b"], ["b", "a"]],
            "'insurer' has the same ids in another order than",
            2,
        ),
        ([["a", "b"], ["a", "c"], ["b", "a"]], "'lab' has other ids than party 'hospital'", 2),
        ([["ab", "c"], ["a", "bc"]], "'lab' has other ids than party 'hospital'", 2),
        ([["a", "b"], 2], "'hospital' has ids and party 'lab' has none, so nothing says", 2),
        ([["a", "b"], ["a", "b", "c"]], "'lab' has 3 rows, party 'hospital' 2", None),
    ],
)
def test_rows_that_may_differ_are_joined_by_word_only(ids, sentence, by_word):
    columns = {n: part if part == 2 else np.array(part) for n, part in enumerate(ids)}
    names, holders = NAMES[: len(ids)], Placement.here(3)
    with pytest.raises(InputError, match=sentence) as caught:
        align(columns, names, holders)
    assert "align='ids'" in str(caught.value)
    offered = by_word is not None and "another order" not in sentence
    assert ("with align='none'" in str(caught.value)) == offered
    if by_word is None:
        with pytest.raises(InputError, match=sentence):
            align(columns, names, holders, "none")
    elif 2 in ids:
        assert align(columns, names, holders, "none").by_position
    else:
        with pytest.warns(VpemWarning, match=f"{sentence}.*; rows are joined by position"):
            found = align(columns, names, holders, "none")
        assert (found.n_samples, found.by_position) == (by_word, True)


def test_other_peoples_ids_are_not_compared_unless_that_is_said():
    """Of level none a hash is told, of a run of its own; of no level only that there are ids."""
    ids = np.array([f"p{number}" for number in range(20)])
    sent, runs = [], []

    class Apart(recorder(sent)):
        open = False

    errors = apart([ids, ids], None, Apart)
    assert all(type(error) is InputError for error in errors)
    said = "party 'hospital' has ids, but whether to match rows by them was not specified; align"
    assert all(str(error).startswith(said) for error in errors)
    assert len(set(map(str, errors))) == 1
    assert not any(re.search("[0-9a-f]{64}", one) for one in sent)
    for _ in range(2):
        sent.clear()
        apart([ids, ids], "none", Apart)
        runs.append(set(re.findall("[0-9a-f]{64}", " ".join(sent))))
    assert [len(run) for run in runs] == [2, 2]
    assert not runs[0] & runs[1]


@each("level", [None, "none", "psi"])
def test_rows_that_some_lack_cannot_be_kept_by_every_level(level):
    with pytest.raises(InputError, match=f"cannot be kept with align {level or 'none'}, since"):
        agree([["a"], ["a"]], level, keep_missing=True)


# ---- parties that do not keep to it --------------------------------------------------------------

GUESSES = [f"p{number:04d}" for number in range(1000)]
OTHERS = GUESSES[::7]
"""Ids of other parties: 143."""

needs_psi = pytest.mark.skipif("psi" not in MATCHING, reason="openmined-psi is not installed")


class Says:
    """A part of openmined-psi of which some methods do something else."""

    def __init__(self, part, **otherwise):
        self._part, self._otherwise = part, otherwise

    def __getattr__(self, name):
        own = getattr(self._part, name)
        return partial(self._otherwise[name], own) if name in self._otherwise else own


def modified(monkeypatch, party, side, **otherwise):
    """Let one party run modified code at one side ("client", "server") of the set intersection."""
    psi = alignment._library()
    theirs = Says(psi)
    maker = Says(getattr(psi, side), CreateWithNewKey=lambda own, key: Says(own(key), **otherwise))
    setattr(theirs, side, maker)
    ranks = {str(party): theirs}
    monkeypatch.setattr(
        "vpem.files.parties.alignment._library",
        lambda: ranks.get(threading.current_thread().name, psi),
    )


def of_three(level="psi", ids=(GUESSES[:3], OTHERS, OTHERS), limits=(None,) * 3, **lies):
    """Align ids of three parties, of whom the first lies about what it sends: what each raises."""

    class Engine(ThreadEngine):
        def bcast(self, value, root=0):
            return super().bcast(lies.get("bcast", int)(value) if type(value) is int else value)

        def send(self, value, to):
            is_list = isinstance(value, np.ndarray)
            super().send(lies.get("send", np.array)(value) if is_list else value, to)

        def allgather(self, value):
            counts = isinstance(value, dict) and isinstance(value.get(0), list)
            return super().allgather(lies.get("allgather", dict)(value) if counts else value)

    def work(engine):
        threading.current_thread().name = str(engine.rank)
        engine.limit = limits[engine.rank]
        held = {engine.rank: np.array(ids[engine.rank])}
        holders = Placement(engine, range(3))
        return align(held, NAMES[:3], holders, level, keys=dict.fromkeys(held, KEY))

    return together(3, work, Engine)


@needs_psi
def test_a_first_party_that_asks_with_more_ids_than_it_announced_learns_nothing(monkeypatch):
    learnt = []

    def look(own, *messages):
        learnt.append(own(*messages))
        return [place for place in learnt[-1] if place < 3]

    ask = {"CreateRequest": lambda own, texts: own(GUESSES), "GetIntersection": look}
    modified(monkeypatch, 0, "client", **ask)
    errors = of_three()
    assert learnt == []
    assert {str(error) for error in errors} == {
        "party 'hospital' sent 1000 encrypted ids, but it may send 3, as many as it has announced "
        "or as are still in question"
    }


def more(own, asked):
    """Answer more than was asked."""
    found = own(asked)
    found.encrypted_elements.extend(found.encrypted_elements[:2])
    return found


def emptied(own, asked):
    """Answer with ids that are empty, and as many bytes."""
    found = own(asked)
    del found.encrypted_elements[:]
    found.encrypted_elements.extend([b"", b"x" * 99, b"", b""])
    return found


class Noise:
    def SerializeToString(self):
        return bytes(35 * len(OTHERS))


@needs_psi
@pytest.mark.parametrize(
    ("otherwise", "told"),
    [
        ({"CreateSetupMessage": lambda own, p, n, ids, kind: own(p, n, GUESSES, kind)},
         "party 'insurer' sent 1000 encrypted ids, but it may send 143, as"),
        ({"ProcessRequest": more}, "party 'insurer' sent 5 encrypted ids, but it may send 3, as"),
        ({"ProcessRequest": emptied}, "party 'insurer' sent 4 encrypted ids, but it may send 3,"),
        ({"CreateSetupMessage": lambda own, *how: Noise()}, "party 'insurer' has sent something"),
    ],
)  # fmt: skip
def test_another_party_answers_with_as_many_ids_as_it_has(monkeypatch, otherwise, told):
    ids = GUESSES[:21:7]
    modified(monkeypatch, 2, "server", **otherwise)
    errors = of_three(ids=(ids, OTHERS, OTHERS))
    assert all(str(error).startswith(told) for error in errors), errors


LIES = [
    ("psi", {"bcast": lambda n: n + 1},
     "party 'hospital' says that 4 ids are in common with party 'lab', of at most 3"),
    ("psi", {"bcast": lambda n: -1}, "party 'hospital' says that -1 ids are in common"),
    ("psi", {"send": lambda ids: ids[:2]}, "'hospital' sent a list of 2 ids in common, expected 3"),
    ("psi", {"send": lambda ids: ids[[0, 0, 0]]}, "lacks ids that the set intersection found"),
    ("psi", {"send": lambda ids: ids[:0]}, "'hospital' sent a list of 0 ids in common, expected 3"),
    ("psi", {"allgather": lambda counts: {0: [100, 100]}},
     "party 'hospital' has not sent all parties the same rows: they have 100, 3, 3"),
    ("ids", {"send": lambda rows: rows[[0] * 100]}, "'lab' which of its 143 rows are used, each"),
    ("hmac", {"send": lambda rows: rows + 143}, "'lab' which of its 143 rows are used, each once"),
    ("hmac", {"send": lambda rows: rows - 143}, "'lab' which of its 143 rows are used, each once"),
    ("hmac", {"send": lambda rows: rows * 0.5}, "'lab' which of its 143 rows are used, each once"),
]  # fmt: skip


@needs_psi
@each(("level", "lie", "told"), LIES)
def test_what_the_first_party_says_of_rows_is_looked_at(level, lie, told):
    errors = of_three(level, (GUESSES[:21:7], OTHERS, OTHERS), **lie)
    assert all(type(error) is InputError and told in str(error) for error in errors), errors


@needs_psi
@pytest.mark.parametrize("level", ["psi", "hmac", "ids"])
def test_a_policy_limits_how_many_ids_others_may_compare(tmp_path, level, monkeypatch):
    """It is looked at before any id travels; where ids are shown, the first party has all."""
    met = []
    monkeypatch.setattr(alignment, "_hashed", lambda *tokens: met.append(tokens))
    monkeypatch.setattr(alignment, "intersect", lambda *tokens: met.append(tokens))
    for most in (7, 6):
        met.clear()
        limit = Policy(tmp_path, largest_ratio_of_rows=most).check_sizes
        errors = of_three(level, (GUESSES, OTHERS, OTHERS), (None, limit, None))
        if most == 7 or level == "ids":
            assert bool(met) == (level != "ids")
            continue
        assert met == []
        assert {str(error) for error in errors} == {
            f"{tmp_path} allows others at most 6 times as many ids as it has, but party "
            "'hospital' has 1000 and 'lab' 143"
        }


@needs_psi
def test_a_first_party_that_leaves_out_ids_is_refused_by_who_asks_for_more_rows(
    tmp_path, monkeypatch
):
    """The list is chosen by the first party; with fewest-rows it may not be short."""
    modified(monkeypatch, 0, "client", GetIntersection=lambda own, *sent: own(*sent)[:2])
    for one in of_three(ids=(GUESSES[:21:7], OTHERS, OTHERS)):
        with pytest.raises(PolicyError, match="requires at least 3 rows"):
            Policy(tmp_path, fewest_rows=3).check_rows(one.n_samples)


# ---- keys and libraries -------------------------------------------------------------------------


def test_a_key_is_needed_is_read_without_line_end_and_is_not_weak(tmp_path):
    with pytest.raises(InputError, match="needs a key"):
        agree([["a"], ["a"]], "hmac", keys=None)
    file = tmp_path / "key"
    file.write_bytes(KEY.hex().encode() + b"\r\n")
    assert read_key(file) == KEY.hex().encode()
    for content, sentence in (
        (b"secret", "has 6 bytes, too short"),
        (b"x" * 31 + b"\n", "has 31 bytes, too short"),
        (b"ab" * 40, "repeats 2 different bytes"),
    ):
        file.write_bytes(content)
        with pytest.raises(InputError, match=sentence):
            read_key(file)
    with pytest.raises(FileError, match="does not exist"):
        read_key(tmp_path / "no key")


def test_hashes_depend_on_the_key():
    tokens = {0: np.array([b"a", b"b"])}
    one = _hashed(tokens, NAMES[:1], {0: KEY}, Placement.here(3))[0]
    assert one.dtype == "S32"
    assert not np.isin(one, _hashed(tokens, NAMES[:1], {0: KEY[::-1]}, Placement.here(3))[0]).any()
    both = _hashed({0: tokens[0], 1: tokens[0]}, NAMES[:2], {0: KEY, 1: KEY}, Placement.here(3))
    assert np.array_equal(both[0], both[1])
    assert not np.isin(one, both[0]).any()  # those of another run


def test_without_its_library_set_intersection_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    with pytest.raises(InputError, match=r"pip install 'vpem\[psi\]'"):
        agree([["a"], ["a"]], "psi")


def test_every_level_is_tested():
    assert set(ALIGNMENTS) == {"none", "ids", "hmac", "psi"}
