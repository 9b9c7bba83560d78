"""Commands in processes of their own, forked from one that has loaded what they use.

To load the libraries takes longer than most commands of tests. One process (this module, run as a
program) does it once, and forks for whoever runs what `interpreter` returns, or `folder` has: small
programs that hand over their words, folder, environment and files, pass signals on, and end as the
process that was forked for them does. How a command begins from nothing is for tests that run
`sys.executable`.
"""

import array
import atexit
import codecs
import contextlib
import ctypes
import gc
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAIN = "import sys, vpem_cli; vpem_cli.main(sys.argv[1:])"


def environment(**more):
    """One thread a process; nothing of a launcher that these tests may run under themselves."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI", "OMPI_", "PMIX", "SLURM_", "MPI_", "HYDRA_", "HYDI_"))
    }
    paths = [str(ROOT / "tests"), str(ROOT), *kept.get("PYTHONPATH", "").split(os.pathsep)]
    kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    # MPICH's launcher else writes to a file what the machine is like, and leaves it at an abort.
    kept["HWLOC_XMLFILE"] = ""
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


# It loads nothing but what is in the interpreter: ten milliseconds.
CLIENT = """#!{interpreter} -IS
import _signal, _socket, posix, sys
given = [{first}*sys.argv[1:]]
names = b"PMI_FD", b"_VPEM_INHERITED"
numbers = [0, 1, 2, *map(int, filter(None, map(posix.environ.get, names)))]
files = []
for number in numbers:
    try:
        posix.fstat(number)
    except OSError:
        continue
    files.append(number)
variables = [name + b"=" + value for name, value in posix.environ.items()]
words = [str(len(given)), str(len(files)), *map(str, files), posix.getcwd(), *given]
message = b"\\0".join([*(word.encode("utf-8", "surrogateescape") for word in words), *variables])
line = _socket.socket(_socket.AF_UNIX)
line.connect({address!r})
passed = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
line.sendmsg([len(message).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
line.sendall(message)
number = int.from_bytes(line.recv(8), "big")
for which in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1):
    _signal.signal(which, lambda which, _: posix.kill(number, which))
for which in files:
    posix.close(which)
code = int.from_bytes(line.recv(8), "big", signed=True)
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL) if -code != _signal.SIGKILL else None
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""


def interpreter():
    """Return the path of a program that runs what Python would run (``-c``, ``-m``, a script)."""
    return str(folder() / Path(sys.executable).name)


SHARED = "TESTS_FORKS"
"""Where workers of pytest find the folder that all of them share, to load it all only once."""

LARGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Of the process that forks: with pages of 4 KiB a fork and its end take twice as long."""


@cache
def folder():
    """Return a folder with that program, and with a command ``vpem``, for a search path."""
    if SHARED in os.environ:
        return Path(os.environ[SHARED])
    home = Path(tempfile.mkdtemp(prefix="forks"))
    address = str(home / "door")
    for name, first in ((Path(sys.executable).name, ""), ("vpem", f"'-c', {MAIN!r}, ")):
        text = CLIENT.format(interpreter=sys.executable, first=first, address=address)
        (home / name).write_text(text, encoding="utf-8")
        (home / name).chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forks", address], cwd=ROOT, env=environment(**LARGE_PAGES),
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "here\n"
    atexit.register(_end, process, home)
    return home


def _end(process, home):
    process.communicate()
    for path in home.iterdir():
        path.unlink()
    home.rmdir()


# ---- the process that forks ---------------------------------------------------------------------


LOADED = """
cryptography.hazmat.backends.openssl cryptography.hazmat.primitives.kdf.hkdf cryptography.x509
cryptography.hazmat.primitives.serialization dp_accounting mnemonic pytest scipy.spatial
sklearn.mixture vpem.files.readers.tabular vpem.files.readers.text vpem.fits.fedem
vpem.fits.feature_kmeans vpem.fits.imputation vpem.fits.row_kmeans vpem.fits.selection.search
vpem.fits.selection.trials vpem.pictures.history vpem.saem.formats vpem_cli.commands.rows
vpem_cli.outputs vpem_cli.study.member websockets.asyncio.client websockets.asyncio.server
"""


def _load():
    """Load what commands load, members of studies among them."""
    for module in LOADED.split():
        import_module(module)
    import vpem_cli.app
    from vpem._core.threads import _controller

    # The tree of commands, what reads their options and their data, and libraries of threads.
    vpem_cli.app.command = cache(vpem_cli.app.command)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        vpem_cli.run(["topology", "describe", "cycle", "-n", "3"])
    made = vpem_cli.app.command().commands
    for name in ("fit", "select", "kmeans", "fedem", "impute", "saem", "predict", "score"):
        made[name]
    for name in "utf_8_sig", "ascii", "idna":
        codecs.lookup(name)
    _controller()
    with contextlib.suppress(ImportError):
        find_spec("mpi4py.MPI")  # looks which MPI there is, and loads it


def _serve(door):
    """Fork for each client; returns, in the process that was forked, what it is to run."""
    waker, woken = socket.socketpair()
    for end in (waker, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    watched = selectors.DefaultSelector()
    for file in (door, woken, sys.stdin):
        watched.register(file, selectors.EVENT_READ)
    clients = {}
    while True:
        for key, _ in watched.select():
            file = key.fileobj
            if file is sys.stdin:
                return None
            if file is door:
                client, _ = door.accept()
                try:
                    given = _hear(client)
                except (OSError, ValueError):  # it was killed meanwhile
                    client.close()
                    continue
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    watched.close()
                    for other in (door, waker, woken, client, *clients.values()):
                        other.close()
                    return given
                for number in given.files.values():
                    os.close(number)
                _send(client, pid)
                clients[pid] = client
                watched.register(client, selectors.EVENT_READ)
            elif file is woken:
                woken.recv(4096)
                _tell_ended(clients, watched)
            else:  # the client was killed: so is whom it stood for
                for pid in [pid for pid, client in clients.items() if client is file]:
                    watched.unregister(file)  # which is done already where it has ended as well
                    os.kill(pid, signal.SIGKILL)


def _tell_ended(clients, watched):
    """Tell the clients of processes that have ended."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        client = clients.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if client in {key.fileobj for key in watched.get_map().values()}:
            watched.unregister(client)
            _send(client, code)
        client.close()


def _send(client, number):
    """Send a number to a client, if it still lives."""
    with contextlib.suppress(OSError):
        client.send(number.to_bytes(8, "big", signed=True))


def _hear(client):
    """Return what a client hands over."""
    room = socket.CMSG_SPACE(16)
    head, passed, *_ = client.recvmsg(8, room)
    size, message = int.from_bytes(head, "big"), b""
    while len(message) < size:
        part = client.recv(size - len(message))
        if not part:
            raise ConnectionResetError
        message += part
    n_words, n_files, *rest = os.fsdecode(message).split("\0")
    n_words, n_files = int(n_words), int(n_files)
    got = array.array("i", passed[0][2]) if passed else []
    files = dict(zip(map(int, rest[:n_files]), got, strict=True))
    where, *rest = rest[n_files:]
    pairs = (line.partition("=") for line in rest[n_words:])
    variables = {name: value for name, _, value in pairs}
    return types.SimpleNamespace(
        files=files, folder=where, words=rest[:n_words], variables=variables
    )


def _become(given):
    """Let a process that was forked be as one that was started with these words."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(given.folder)
    os.environ.clear()
    os.environ.update(given.variables)
    if seconds := os.environ.get("TESTS_LINGER"):  # where a test knows that nobody will listen
        import_module("vpem.engines.tls.mailbox").LINGER = float(seconds), 60.0
    aside = {number: os.dup(opened) for number, opened in given.files.items()}
    for opened in given.files.values():
        os.close(opened)
    for number, opened in aside.items():
        if opened != number:
            os.dup2(opened, number)
    for opened in set(aside.values()) - set(aside):
        os.close(opened)
    _open_streams(given.files)
    # A command that goes on begins again with the words that it was started with, forked anew.
    sys.orig_argv = [sys.executable, *given.words]
    execv, client = os.execv, Path(sys.argv[1]).with_name(Path(sys.executable).name)
    os.execv = lambda _, words: execv(client, words)


def _open_streams(files):
    """Open standard streams as Python does when it starts."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = None
        if number in files:
            stream = open(  # noqa: SIM115
                number, "w" if number else "r", encoding=encoding, closefd=False,
                errors="backslashreplace" if number == 2 else errors or "strict",
            )  # fmt: skip
            unbuffered = "PYTHONUNBUFFERED" in os.environ
            stream.reconfigure(
                line_buffering=number == 2 or stream.isatty(), write_through=unbuffered
            )
        else:
            os.close(number)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(words):
    """Run what Python would run, given these words."""
    if words[0] == "-W":
        warnings.resetwarnings()
        warnings.simplefilter(words[1])
        words = words[2:]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    elif words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).absolute().parent)
        runpy.run_path(words[0], run_name="__main__")


def _end_as(words):
    """Run what Python would run, and end as Python does, without taking everything to pieces."""
    code = 0
    try:
        _run(words)
    except SystemExit as error:
        code = error.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = 120
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        os._exit(code)
    if "mpi4py.run" in sys.modules and code:  # it aborts the job at the very end of a process
        sys.exit(code)
    # To free all that was loaded, which a fork has to copy for that, takes longer than most fits.
    if mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
    ctypes.CDLL(None).exit(code)


if __name__ == "__main__":
    door = socket.socket(socket.AF_UNIX)
    door.bind(sys.argv[1])
    door.listen(64)
    print("here", flush=True)
    _load()
    gc.collect()
    gc.freeze()  # or each process would copy all of it, to look what can be freed
    given = _serve(door)
    if given is not None:
        _become(given)
        _end_as(given.words)
