"""What cells of the table share (see test_table.py)."""

import json
from contextlib import redirect_stdout
from io import StringIO

import vpem_cli
from vpem.engines.engine import StalledError
from vpem.files.datasets import Dataset, write_dataset

from .tls_support import members_together


def lost_messages(sent, n_edges):
    """Whether rounds had far fewer messages than two a link: links, or agents, really failed."""
    return 0 < sent["messages"] < 0.9 * 2 * n_edges * sent["rounds"]


def first_of(found):
    """What the first rank found, if none failed."""
    failed = [one for one in found if isinstance(one, BaseException)]
    for one in sorted(failed, key=lambda one: isinstance(one, StalledError)):
        raise one
    return found[0]


def keys_exchanged(masked, plain):
    """Whether a fit took the messages by which masks begin, which a fit without them has not."""
    setup, other = (fit.communication["by_kind"]["setup"] for fit in (masked, plain))
    return setup["messages"] > other["messages"]


def over_members(n_parties, work):
    """Run ``work(engine)`` at the members of a study: a server without data, and so many parties.

    Returns what each gave, or the error it raised, as `tests.thread_engine.together` does.
    """
    return members_together(n_parties + 1, work, seats=tuple(range(1, n_parties + 1)))


def report_of(*words):
    """The report of a command."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert vpem_cli.run([*map(str, words), "--json", "--quiet"]) == 0
    return json.loads(printed.getvalue())


def files_of_columns(folder, X, names, held, called):
    """A file of each party, which has some features of all rows."""
    files = []
    for party, columns in zip(called, held.features, strict=True):
        files.append(folder / f"{party}.h5")
        write_dataset(files[-1], Dataset(X[:, columns], tuple(names[j] for j in columns)))
    return files


def files_of_rows(folder, X, names, held, called):
    """A file of each party, which has all features of some rows."""
    files = []
    for party, rows in zip(called, held.rows, strict=True):
        files.append(folder / f"{party}.h5")
        write_dataset(files[-1], Dataset(X[rows], names))
    return files
