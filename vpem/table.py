"""What goes with what: every algorithm with every sum, every kind of data and every engine.

A cell that mathematics forbids has one sentence that says why. The code refuses with it, the
documentation prints it, and a test tries every cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from vpem.errors import InputError, Setting

# fmt: off
ALGORITHMS = {
    "vp-em": "VP-EM",
    "em-rows": "EM over rows",
    "kmeans-rows": "k-means over rows",
    "kmeans-features": "k-means over features",
    "fedem": "FedEM",
    "vr-fedem": "VR-FedEM",
    "fedmissem": "FedMissEM",
    "saem": "SAEM",
}
"""Rows of the table, by the names that reports give."""


@dataclass(frozen=True)
class Way:
    """A column of the table.

    Attributes
    ----------
    title : str
        Its heading.
    flags : tuple of str
        Options of the command line that ask for it.
    """

    title: str
    flags: tuple[str, ...]


WAYS = {
    "server": Way("server", ("--topology star",)),
    "tree": Way("tree", ("--sum tree",)),
    "consensus": Way("consensus", ("--topology cycle",)),
    "masked": Way("masked", ("--secure-sum",)),
    "compressed": Way("compressed", ("--compress",)),
    "absent": Way("some absent", ("--agent-dropout", "--participation")),
    "links": Way("links fail", ("--link-failure", "--stragglers")),
    "batches": Way("batches", ("--batch-size",)),
    "missing": Way("missing values", ("--missing",)),
    "disk": Way("larger than memory", ("--memory-limit",)),
    "weights": Way("sample weights", ("--sample-weight",)),
    "checkpoint": Way("checkpoint", ("--checkpoint",)),
    "parties": Way("parties' files", ("--parties",)),
    "mpi": Way("MPI", ("--engine mpi",)),
    "tls": Way("TLS", ("--engine tls",)),
}
"""Columns of the table."""

REFUSED: dict[tuple[str, str], tuple[str | Setting, ...]] = {
    ("em-rows", "compressed"): (
        "second moments that a codec has rounded need not be those of any rows, so covariances "
        "made of them need not be positive definite; FedEM is EM over rows that corrects this: "
        "vpem fedem --compress",
    ),
    ("fedmissem", "disk"): (
        "every iteration changes the filled matrix, a number for each entry of the data: there is "
        "no smaller statistic that could stay in memory while the data are read",
    ),
    ("saem", "disk"): (
        "its state is a Markov chain of the latents of every individual, and every iteration moves "
        "all of them: there is no smaller statistic from which they could be drawn again; spread "
        "the devices over processes, whose memories add up",
    ),
}
"""Cells that mathematics forbids, by algorithm and way, and the sentence that says why."""
# fmt: on


def refusal(algorithm: str, way: str) -> InputError:
    """Return the error that says why an algorithm cannot be had this way."""
    return InputError(*REFUSED[algorithm, way])
