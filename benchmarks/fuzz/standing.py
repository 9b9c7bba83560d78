"""A member of a study that is one again whenever it has ended: what ended it is printed.

Run as ``python -m benchmarks.fuzz.standing FOLDER NAME PORT``, with what links need and no data, so
that thousands of ends take no longer than the messages that bring them about.
"""

from __future__ import annotations

import json
import socket
import sys
import traceback
from pathlib import Path

import numpy as np

from vpem.engines.tls import mailbox
from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.mailbox import Post
from vpem.errors import VpemError
from vpem.files.studies.identities import identity_of
from vpem.files.studies.study import read_study

LINGER = 0.05, 0.05
"""Seconds that an end takes at most: who brought it about does not listen any more."""


def live(post: Post) -> None:
    """Do with another member whatever members do."""
    engine = TlsEngine(post, post.roster, None)
    post.put(1, 0, b"hello", "options")
    while True:
        for work in (
            lambda: engine.recv(1),
            lambda: engine.recv_array(np.zeros((20, 3)), 1),
            lambda: engine._read(1, engine._together()),
            lambda: engine._array(1, engine._together(), np.zeros(4)),
        ):
            work()
            engine.send({"seen": np.ones(3)}, 1)


def main(folder: str, name: str, port: str) -> None:
    """Live, and end, until nobody wants that any more."""
    mailbox.LINGER = LINGER
    study = read_study(Path(folder) / "heart.toml")
    identity = identity_of(study, name)
    listener = socket.create_server(("127.0.0.1", int(port)))
    print(json.dumps({"stands": True}), flush=True)
    while True:
        post = Post(study.roster, identity, listen=listener.dup(), timeout=1.0)
        post.start()
        found: dict[str, str | None] = {"sentence": None, "defect": None}
        try:
            live(post)
        except VpemError as error:
            found["sentence"] = str(error)
        except Exception:
            found["defect"] = traceback.format_exc()
        post.close()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
