"""What agents tell each other under masks: recorded message by message, and held to one rule.

What leaves an agent depends on what all have *together*, and on nothing that one of them has. So
three fits are compared: one, the same again, and one in which every agent has what its neighbour
had. A number that is the same in all three says nothing of one agent: totals of whole numbers do
not depend on who adds which. A number that comes again with the same data, and not with others', is
somebody's: it leaks. Numbers that never come again must be masked words, and look random.
"""

import numpy as np

from .thread_engine import ThreadEngine, together

RESULTS = ("result",)
"""Kinds of messages that have what each agent has: the model, which is what users ask for."""

KEY_BYTES, SEALED_BYTES = 32, 48
TAGS = 2**34
"""What sums of parts of tags are below, which are other ones in every run; no masked word is."""


class Recording(ThreadEngine):
    """A rank that remembers what it has sent: to whom, about what, and the message."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.sent = []

    def post(self, to, what, value):
        if to != self.rank and self.topic not in RESULTS:
            copied = value.copy() if isinstance(value, np.ndarray) else value
            self.sent.append((to, self.topic, copied))
        super().post(to, what, value)


def recorded(size, work, **options):
    """Run ``work(engine)`` on so many ranks: what they have sent, one rank after the other."""

    def run(engine):
        work(engine)
        return [(engine.rank, *sent) for sent in engine.sent]

    found = together(size, run, Recording, **options)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [sent for own in found for sent in own]


def leaks(first, again, moved):
    """Say what agents have sent that is one's own.

    Parameters
    ----------
    first, again, moved : list
        From `recorded`: of a fit, of the same again, and of one whose agents have others' data.
    """
    masked, found = [], []
    if not len(first) == len(again) == len(moved):
        found.append(f"messages are {len(first)}, {len(again)} and {len(moved)}")
    for one, two, other in zip(first, again, moved, strict=False):
        rank, to, topic, message = one
        if not one[:3] == two[:3] == other[:3]:
            found.append(f"rank {rank} to {to}, {topic!r}: another kind of message")
        elif not _hidden(message, two[3], other[3], masked):
            found.append(f"rank {rank} to {to}, {topic!r}: {message!r:.80}")
    if not masked:
        found.append("nothing is masked")
    elif chi_square(np.concatenate(masked)) > CRITICAL:
        found.append("masked words are not uniform")
    return found


def _hidden(first, again, moved, masked):
    """Whether no part of three messages is somebody's; masked words are added to a list."""
    every = first, again, moved
    if not type(first) is type(again) is type(moved):
        return False
    if isinstance(first, np.ndarray):
        if (
            not (first.shape, first.dtype)
            == (again.shape, again.dtype)
            == (moved.shape, moved.dtype)
        ):
            return False
        if first.dtype != np.uint64:
            return first.tobytes() == again.tobytes() == moved.tobytes()
        fresh = first != again
        hidden = fresh & ~np.all([each < TAGS for each in every], axis=0)
        masked += [first[hidden], again[hidden], (first - again)[hidden]]
        return bool((moved == first)[~fresh].all())
    if isinstance(first, dict):
        return list(first) == list(again) == list(moved) and _hidden(
            *([part for name, part in one.items() if name != "seconds"] for one in every), masked
        )
    if isinstance(first, list | tuple):
        return len(first) == len(again) == len(moved) and all(
            _hidden(*parts, masked) for parts in zip(first, again, moved, strict=True)
        )
    if isinstance(first, bytes) and len(first) in (KEY_BYTES, SEALED_BYTES) and first != again:
        return True  # public keys and sealed ones, fresh in every run
    return repr(first) == repr(again) == repr(moved)


CRITICAL = 20.0
"""Standard deviations; of random words a chi-square is never that far out."""


def chi_square(words):
    """How far the bytes of words are from uniform, place by place: the worst, standardised.

    A message to several others counts once.
    """
    words = np.unique(words)
    expected = len(words) / 256
    places = words.view(np.uint8).reshape(-1, 8).T
    counts = np.stack([np.bincount(place, minlength=256) for place in places])
    found = ((counts - expected) ** 2 / expected).sum(axis=1)
    return float(((found - 255) / np.sqrt(2 * 255)).max())
