"""Several processes of a team, played by threads that exchange values at a barrier."""

import threading
import warnings

import numpy as np

from vpem.errors import VpemWarning


def sendable(value):
    """The value as another process would get it; what cannot be sent is an error."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, list):
        return [sendable(item) for item in value]
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        return {key: sendable(item) for key, item in value.items()}
    assert type(value) is np.ndarray, type(value)
    assert value.dtype.kind in "biufUS"
    return value.copy()


class Rank:
    """One process's end of the team."""

    def __init__(self, number, holder_of, barrier, slots):
        self.number = number
        self.holder_of = holder_of
        self.barrier = barrier
        self.slots = slots

    def mine(self, party):
        return self.holder_of[party] == self.number

    def _exchange(self, step, value):
        """Give a value and get those of all, who must be at the same step."""
        self.slots[self.number] = (step, value)
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        assert {other for other, _ in found} == {step}
        return [value for _, value in found]

    def collect(self, values, to=0):
        assert all(self.mine(party) for party in values)
        sent = {party: sendable(value) for party, value in values.items()}
        everything = self._exchange(("collect", to), sent)
        if to is not None and not self.mine(to):
            return None
        return {party: value for part in everything for party, value in part.items()}

    def tell(self, value, owner=0):
        given = sendable(value) if self.mine(owner) else None
        return self._exchange(("tell", owner), given)[self.holder_of[owner]]

    def pass_on(self, value, source, target):
        given = sendable(value) if self.mine(source) else None
        found = self._exchange(("pass on", source, target), given)[self.holder_of[source]]
        return found if self.mine(target) else None


def together(holder_of, work):
    """Run ``work(team)`` in every process at once; what each gave, or the error it raised.

    ``holder_of[party]`` is the process that holds a party. A process that waits in vain fails.
    """
    n_ranks = max(holder_of) + 1
    barrier = threading.Barrier(n_ranks, timeout=20)
    slots = [None] * n_ranks
    results = [None] * n_ranks

    def run(number):
        try:
            results[number] = work(Rank(number, holder_of, barrier, slots))
        except Exception as error:
            results[number] = error
            if not isinstance(error, ValueError | OSError):
                barrier.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(n_ranks)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results
