"""An engine of threads in one process, to show that nothing but the engines knows of processes."""

import queue
import threading
import warnings
from collections import defaultdict

import numpy as np

from vpem.engines.engine import Engine, StalledError
from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.trust import Member, Roster
from vpem.errors import VpemError, VpemWarning
from vpem.network.messages import decode, encode


class Mail:
    """Messages between threads, of whom and of which exchange."""

    def __init__(self):
        self.broken = False
        self._lock = threading.Lock()
        self._boxes = defaultdict(queue.SimpleQueue)

    def box(self, *key):
        with self._lock:
            return self._boxes[key]


class ThreadEngine(Engine):
    """A rank that is a thread (`vpem.engines.engine.Engine`)."""

    apart = True
    topic = "agreement"
    copies = 1

    def __init__(self, rank, size, mail, timeout=60.0, seats=None):
        self.rank, self.size, self.mail, self.timeout = rank, size, mail, timeout
        self.names = [f"rank {number}" for number in range(size)]
        self.seats = seats
        self._number = 0

    def post(self, to, what, value):
        self.mail.box(self.rank, to, what).put(encode(value))

    def take(self, source, what):
        waited = 0.0
        while not self.mail.broken and waited < self.timeout:
            try:
                return decode(self.mail.box(source, self.rank, what).get(timeout=0.05))
            except queue.Empty:
                waited += 0.05
        raise StalledError(f"{self.names[source]} has not answered")

    def begin(self, values):
        """Post a value to each of some ranks, and return what gets as many from them."""
        self._number += 1
        number = self._number
        for to, value in values.items():
            self.post(to, number, value)
        return lambda: [self.take(source, number) for source in values]

    def send(self, value, to):
        self.post(to, "sent", value)

    def recv(self, source):
        return self.take(source, "sent")

    def send_array(self, values, to):
        self.post(to, "sent", values)

    def recv_array(self, values, source):
        found = self.take(source, "sent")
        assert (found.shape, found.dtype) == (values.shape, values.dtype)
        values[...] = found

    def allgather(self, value):
        return self.begin(dict.fromkeys(range(self.size), value))()

    def gather(self, value, root=0):
        found = self.allgather(value if root != self.rank else None)
        found[self.rank] = value
        return found if root == self.rank else None

    def bcast(self, value, root=0):
        return self.allgather(value if root == self.rank else None)[root]

    def bcast_array(self, values, root=0):
        found = self.bcast(values, root)
        assert (found.shape, found.dtype) == (values.shape, values.dtype)
        values[...] = found

    def iallreduce(self, values, op="sum", *, masked=True):
        add = {"sum": np.sum, "max": np.max}[op]
        arrive = self.begin(dict.fromkeys(range(self.size), np.array(values)))

        def store():
            parts = arrive()
            # Engines that send bytes alone add them up as they are.
            assert {part.dtype for part in parts} == {values.dtype}
            values[...] = add(np.stack(parts), axis=0)

        return store

    def neighbours(self, ranks):
        def ialltoallv(sent, n_sent, received, n_received):
            assert sent.size == sum(n_sent)
            parts = np.split(sent.ravel(), np.cumsum(n_sent)[:-1]) if ranks else []
            arrive = self.begin(dict(zip(ranks, map(np.array, parts), strict=True)))

            def store():
                parts = arrive()
                assert [len(part) for part in parts] == list(n_received)
                nothing = np.empty(0, dtype=received.dtype)
                received[...] = np.concatenate([nothing, *parts]).reshape(received.shape)

            return store

        return ialltoallv

    def announce_end(self, reason, patient=True, code=2):
        return False

    def abort(self, code):
        raise SystemExit(code)


class QueuePost:
    """Links of a member of a study that are queues (`vpem.engines.tls.mailbox.Post`)."""

    def __init__(self, rank, mail, timeout=60.0):
        self.rank, self.mail, self.timeout = rank, mail, timeout
        self.sent = []

    def put(self, to, tag, message, topic=""):
        self.sent.append((to, topic, len(message)))
        self.mail.box(self.rank, to, tag).put(bytes(message))

    def ask(self, source, tags):
        pass

    def receive(self, source, tag):
        waited = 0.0
        while not self.mail.broken and waited < self.timeout:
            try:
                return self.mail.box(source, self.rank, tag).get(timeout=0.05)
            except queue.Empty:
                waited += 0.05
        raise StalledError(f"member {source} has not answered")

    def announce_end(self, sentence, code):
        self.mail.broken = True

    def close(self):
        pass


def over_queues(rank, size, mail, seats=None, **options):
    """Return the engine of a member of a study whose links are queues."""
    members = tuple(
        Member(f"member {number}", bytes([number]), holds=seats is None or number in seats)
        for number in range(size)
    )
    engine = TlsEngine(QueuePost(rank, mail, **options), Roster("0" * 32, "test", 1, members), None)
    engine.seats = seats
    return engine


def together(size, work, engine=ThreadEngine, **options):
    """Run ``work(engine)`` on so many ranks at once; what each gave, or the error it raised."""
    mail = Mail()
    results = [None] * size

    def run(rank):
        try:
            results[rank] = work(engine(rank, size, mail, **options))
        except BaseException as error:
            results[rank] = error
            # An error that all find is raised by all.
            mail.broken |= isinstance(error, StalledError) or not isinstance(error, VpemError)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


class AtHome(ThreadEngine):
    """A member of a study that is a thread: values stay where they are."""

    open = False
