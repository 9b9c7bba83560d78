"""Run the sessions of a page: what stands under ``$ command`` is what the command prints.

A line of three dots stands for any lines, lines that begin with ``> `` go on with the command
above, and wall times may differ. Blocks of Python are run in the same folder, and must not fail; a
block of text right below one is what it prints.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import vpem_cli
from vpem.engines.tls.server import free_port

from .forks import folder as folder_of_vpem
from .forks import interpreter

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^```(console|python)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", flags=re.DOTALL | re.MULTILINE
)

PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
"""A picture in a page: what it says to those who cannot see it, and where it lies."""

PORT = ":8443"
"""Where pages listen; each has a port of its own in place of it."""


def sessions():
    """Pages that have blocks to run, by their names from the root."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [
        str(page.relative_to(ROOT))
        for page in pages
        if BLOCK.search(page.read_text(encoding="utf-8"))
    ]


def pictures():
    """Pictures that pages show, by where they lie: for each its pages, and what they say of it."""
    found = {}
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        for words, place in PICTURE.findall(page.read_text(encoding="utf-8")):
            found.setdefault((page.parent / place).resolve(), {})[page] = words
    return found


def makers(picture, pages):
    """Those of the pages that have a command which writes a picture of that name."""
    return [
        page
        for page in pages
        for _, block, _ in BLOCK.findall(page.read_text(encoding="utf-8"))
        if f"wrote {picture.name}\n" in block
    ]


def comparable(text):
    """Lines without trailing blanks, blank lines, and wall times."""
    lines = [re.sub(r"\d[\d.e-]* s\b", "SECONDS", line.rstrip()) for line in text.splitlines()]
    return [re.sub(r" +", " ", line) for line in lines if line]


def agrees(printed, shown):
    """Whether printed lines are those that are shown, which may have lines of dots."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


SHELL = re.compile(r"[|&;<>$`*?~(){}\[\]\n#\\]")
"""What a shell makes something of."""


def run(command, folder, apart=False):
    """Run a command in a shell, as a reader would; one of vpem alone without a new process."""
    alone, _, file = command.partition(" > ")
    if not apart and alone.startswith("vpem ") and not SHELL.search(alone + file):
        done = inside(shlex.split(alone), folder)
        if file:
            (Path(folder) / file).write_text(done.stdout, encoding="utf-8")
            done.stdout = ""
        return done
    process = begun(command, folder)
    out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def begun(command, folder):
    """Begin a command in a shell."""
    places = [str(folder_of_vpem()), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = {
        "PATH": os.pathsep.join(places),
        "COLUMNS": "80",
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "1",  # tests run in a process for each processor
    }
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.Popen(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def undrawn(figure, target, ending, dpi):
    """Stand for what draws a figure, which takes longer than most fits; other tests draw it."""
    target.write(b"drawn")


UNDRAWN = {
    "vpem.pictures.figure.render": undrawn, "vpem.pictures.page.as_source": lambda figure: "data:,",
}  # fmt: skip


def inside(words, folder):
    """Run a command of vpem in this process: to load its libraries takes longer than most fits."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    told = {"COLUMNS": "80", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "VPEM_SELECT_JOBS": "1"}
    with contextlib.ExitStack() as stack:
        for name, value in UNDRAWN.items():
            stack.enter_context(mock.patch(name, value))
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(mock.patch.dict(os.environ, told))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        code = vpem_cli.run(words[1:])
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))
    return subprocess.CompletedProcess(words, code, *texts)


def pieces(block):
    """Commands of a session: in whose folder each is run, and what is shown of it.

    ``lab$ `` is the prompt of somebody who is in the folder ``lab``.
    """
    found = re.split(r"^(\w*)\$ ", block, flags=re.MULTILINE)[1:]
    for who, piece in zip(found[::2], found[1::2], strict=True):
        first, *rest = piece.splitlines()
        more = 0
        while more < len(rest) and rest[more].startswith("> "):
            more += 1
        yield who, "\n".join([first, *(line[2:] for line in rest[:more])]), "\n".join(rest[more:])


def check(page, folder):
    """Run a page from its beginning to its end in an empty folder, as after ``pip install``."""
    text = (ROOT / page).read_text(encoding="utf-8").replace(PORT, f":{free_port()}")
    for number, found in enumerate(BLOCK.finditer(text)):
        kind, block, below = found.groups()
        if kind == "python":
            script = folder / f"lines{number}.py"
            script.write_text(block, encoding="utf-8")
            done = run(f"{interpreter()} -W error {script.name}", folder)
            assert done.returncode == 0, (page, done.stderr)
            if below is not None:
                assert agrees(comparable(done.stdout), comparable(below)), (page, done.stdout)
            continue
        running = []
        for who, command, shown in pieces(block):
            if command.endswith(" &"):  # until the next one that has no such ending is over
                running.append((command, begun(command.removesuffix(" &"), folder / who)))
                continue
            done = run(command, folder / who, apart=bool(running))
            for other, process in running:
                said = process.communicate(timeout=300)
                assert process.returncode == 0, (other, said)
            running.clear()
            printed = comparable(done.stdout + done.stderr)
            assert agrees(printed, comparable(shown)), (command, "\n".join(printed))
            assert (done.returncode != 0) == ("vpem: error" in shown), (command, done.returncode)
