"""Members of studies in one process: certificates, rosters, and posts on this machine."""

import contextlib
import socket
import ssl
import tempfile
import threading
import uuid
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.mailbox import Post
from vpem.engines.tls.trust import Identity, Member, MemberSigns, Roster
from vpem.errors import VpemWarning

DAY = timedelta(days=1)


def _called(name):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def certify(folder, name, begin=-DAY, end=365 * DAY, key=None, issuer=None):
    """Make a key and a certificate that holds from ``begin`` to ``end``, seen from now."""
    key = Ed25519PrivateKey.generate() if key is None else key
    called = _called(name)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called if issuer is None else _called(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begin)
        .not_valid_after(now + end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, None)
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Identity(name, folder / f"{name}.crt", folder / f"{name}.key")


def der(identity):
    """Return the certificate of an identity."""
    return ssl.PEM_cert_to_DER_cert(identity.certificate.read_text())


def a_study(folder, names=("hub", "lab", "clinic"), listening=("hub",), holds=None):
    """Make a study of members on this machine.

    Returns
    -------
    roster : Roster
    identities : dict of Identity
        By name; each has a folder of its own.
    sockets : dict of socket
        By name, of those that listen, with ports that nobody had.
    """
    identities = {name: certify(folder / name, name) for name in names}
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in listening}
    members = tuple(
        Member(
            name,
            der(identities[name]),
            sockets[name].getsockname() if name in sockets else None,
            holds is None or name in holds,
        )
        for name in names
    )
    return Roster(uuid.uuid4().hex, "heart", 1, members), identities, sockets


def with_member(roster, name, **differently):
    """Return a roster in which a member is described differently."""
    members = [replace(m, **differently) if m.name == name else m for m in roster.members]
    return replace(roster, members=tuple(members))


def dialled_at(roster, name, address):
    """Return a roster in which a member has another address."""
    return with_member(roster, name, address=address)


@contextlib.contextmanager
def posts(roster, identities, sockets, timeout=60.0, **options):
    """Start a post for every member, in the order of ranks, and close all."""
    made = [
        Post(roster, identities[member.name], listen=sockets.get(member.name), timeout=timeout,
             **options)
        for member in roster.members
    ]  # fmt: skip
    for post in made:
        post.start()
    try:
        yield made
    finally:
        at_once([post.close for post in made])


def members_together(size, work, seats=None):
    """Run ``work(engine)`` at so many members of a study: what each gave, or the error it raised.

    All can be dialled; those at the ``seats`` bring data, each one agent's, and None has agents
    spread over all.
    """
    names = tuple(f"member {number}" for number in range(size))
    holds = [name for number, name in enumerate(names) if seats is None or number in seats]

    def run(post):
        engine = TlsEngine(
            post, post.roster, MemberSigns(post.roster, identities[names[post.rank]])
        )
        engine.seats = seats
        try:
            return work(engine)
        except BaseException as error:
            post.announce_end(str(error), 1)  # or others would wait for it
            raise

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        roster, identities, sockets = a_study(Path(folder), names, names, holds)
        with posts(roster, identities, sockets) as made:
            return at_once([partial(run, post) for post in made])


def at_once(works):
    """Run functions without arguments in threads of their own: what each gave or raised."""
    results = [None] * len(works)

    def run(place, work):
        try:
            results[place] = work()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class CuttingProxy:
    """A line between a member and a listening one that is cut after so many bytes.

    Parameters
    ----------
    target : tuple of str and int
        Where it leads.
    budgets : iterable of int
        Bytes that the first connection carries in all before it is cut, the next, and so on; those
        after the last are not cut.
    """

    def __init__(self, target, budgets=()):
        self.target, self.budgets, self.cuts = target, iter(budgets), 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.lines = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.cut()

    def hear(self, data):
        """Take no note of what passes."""

    def hold(self):
        """Let all connections stand, and carry nothing any more."""
        for line in list(self.lines):
            line.held = True

    def cut(self):
        """Cut all connections."""
        for line in list(self.lines):
            line.cut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(self.target)
                except OSError:
                    near.close()
                    continue
                self.lines.add(_Line(self, near, far, next(self.budgets, None)))


class _Line:
    def __init__(self, proxy, near, far, budget):
        self.proxy, self.ends, self.left = proxy, (near, far), budget
        self.held = False
        for ends in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.proxy.hear(data)
                if self.held:
                    continue
                if self.left is not None:
                    data, cut = data[: self.left], len(data) >= self.left
                    self.left -= len(data)
                    target.sendall(data)
                    if cut:
                        self.proxy.cuts += 1
                        break
                else:
                    target.sendall(data)
        self.cut()

    def cut(self):
        """End both connections at once."""
        self.proxy.lines.discard(self)
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
