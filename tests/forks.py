"""Commands in processes of their own, forked from one that has loaded what they use.

To load the libraries takes longer than most commands of tests. One process (this module, run as a
program) does it once, and forks for each command: whoever asks it gives, and gets, a line of JSON.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from functools import cache

from tests.mpi_support import MAIN, ROOT, environment


class Forked:
    """A command that was started (as much of `subprocess.Popen` as tests need)."""

    def __init__(self, words, cwd, stdout, stderr, env):
        self.pid = ask("start", list(map(str, words)), str(cwd), stdout.name, stderr.name, env)
        self.returncode = None

    def poll(self):
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = ask("poll", self.pid)
        return self.returncode

    def wait(self, seconds=None):
        """Wait until it has ended."""
        until = time.monotonic() + (seconds or float("inf"))
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", seconds)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """End it at once."""
        self.send_signal(signal.SIGKILL)


@cache
def _loaded():
    """Start the process that forks."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forks"], cwd=ROOT, env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    atexit.register(process.communicate)
    return process


def ask(*question):
    """Ask the process that forks."""
    process = _loaded()
    print(json.dumps(question), file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


def _serve():
    """Answer, and return the words of the command in each process that is forked for one."""
    # What members of a study load.
    import cryptography.x509  # noqa: F401
    import h5py  # noqa: F401
    import mnemonic  # noqa: F401
    import websockets.asyncio.client
    import websockets.asyncio.server  # noqa: F401

    import vpem_cli.fit
    import vpem_cli.labels
    import vpem_cli.meeting
    import vpem_cli.select
    import vpem_cli.use  # noqa: F401
    from vpem.engines.tls import engine, post  # noqa: F401
    from vpem.files.studies import identities, logged, policy, study  # noqa: F401
    from vpem.fits import labels, plan, spread, vpem  # noqa: F401
    from vpem.fits.selection import trials  # noqa: F401

    for line in sys.stdin:
        what, *given = json.loads(line)
        if what == "poll":
            pid, status = os.waitpid(given[0], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            return _become(*given)
        print(json.dumps(answer), flush=True)
    return None


def _become(words, folder, out, err, environ):
    """Let a process that was forked be as one that was started with these words."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    files = (os.devnull, os.O_RDONLY), (out, os.O_WRONLY), (err, os.O_WRONLY)
    for number, (path, mode) in enumerate(files):
        opened = os.open(path, mode)
        os.dup2(opened, number)
        os.close(opened)
    # A command that goes on begins again with the words that it was started with.
    sys.orig_argv = [sys.executable, "-c", MAIN, *words]
    sys.argv = ["-c", *words]
    return words


if __name__ == "__main__":
    words = _serve()
    if words is not None:
        import vpem_cli

        vpem_cli.main(words)
