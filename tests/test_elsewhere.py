"""What only some systems have is not needed: the main commands without it."""

import os
import signal

from vpem import checks
from vpem.fits.selection import search

from .cli_support import done, make_data

LACKING = {
    os: ("O_CLOEXEC", "O_NONBLOCK", "fork", "geteuid", "getuid", "pread", "sched_getaffinity",
         "sched_yield", "sysconf"),
    signal: ("SIGHUP", "SIGKILL", "pthread_sigmask"),
}  # fmt: skip
"""What Windows has not."""


def test_commands_need_nothing_that_windows_lacks(capsys, tmp_path, monkeypatch):
    for module, names in LACKING.items():
        for name in names:
            monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(checks, "_memory", lambda: 8 << 30)  # asked otherwise there
    monkeypatch.chdir(tmp_path)
    make_data(tmp_path / "d.h5")
    done(capsys, "fit", "d.h5", "-k", "2", "--tol", "0.01", "--checkpoint", "c.h5", "-o", "m.h5")
    done(capsys, "predict", "m.h5", "d.h5", "-o", "labels.csv")
    done(capsys, "select", "d.h5", "-k", "1-2", "--tol", "0.01", "--jobs", "1", "-o", "best.h5")
    assert {path.name for path in tmp_path.iterdir()} >= {"m.h5", "labels.csv", "best.h5"}
    monkeypatch.setattr(search.sys, "platform", "win32")
    with search._masked():
        pass
