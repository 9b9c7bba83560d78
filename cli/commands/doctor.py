"""An installation: `vpem doctor` checks it, `vpem demo` and `vpem study demo` show it at work.

Demonstrations print commands as they run them, in folders of their own; that of a study runs three
parties and a server on this machine, each in a process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vpem.errors import FileError, VpemError, printable

from ..display import print_json, show, tell
from ..names import leaves
from ..options import Json, variables
from ..outputs import FOLDER


def doctor(context: typer.Context, json: Json = False) -> None:
    """Check this installation: problems, with advice, then facts.

    Versions, processors and threads, BLAS, OpenMP, the instructions that the kernels use and
    whether they agree with NumPy, MPI, optional libraries, terminal, temporary folder.
    The exit code is 2 if something that vpem needs is broken, otherwise 0.

    Example: vpem doctor
    """
    from vpem.pictures.installation import check_installation, tables_of

    report = check_installation(
        name
        for path, member in leaves(context.find_root().command)
        for name in variables(path, member)
    )
    if json:
        print_json(report)
    else:
        for one in report["problems"]:
            print(printable(f"{'broken' if one['needed'] else 'note'}: {one['advice']}"))
        if not report["problems"]:
            print("Everything works.")
        show(*tables_of(report))
    if not report["works"]:
        raise typer.Exit(2)


Keep = Annotated[
    Path | None, FOLDER, typer.Option(help="Keep all files in this new folder.", show_default=False)
]

MOST_SECONDS = 300


@dataclass
class Play:
    """Commands that are printed, and run, each in a process of its own."""

    home: Path  # each name has a folder of its own in it
    messages: bool = False  # print these too

    def tell(self, sentence: str) -> None:
        print(f"\n# {sentence}", flush=True)

    def show(self, who: str, *words: str) -> None:
        print(f"{who}$ {shlex.join(words)}", flush=True)

    def run(self, who: str, command: str, *words: str) -> str:
        return self.end(who, self.start(who, *command.split(), *words))

    def start(self, who: str, *words: str) -> subprocess.Popen[str]:
        self.show(who, "vpem", *words)
        return subprocess.Popen(
            [sys.executable, "-c", "import vpem_cli; vpem_cli.main()", *words],
            cwd=self.home / who,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if self.messages else subprocess.PIPE,
            text=True,
        )

    def end(self, who: str, process: subprocess.Popen[str]) -> str:
        """Return what a process has printed, once it has ended with exit code 0."""
        try:
            out, err = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            raise VpemError(f"{who or 'vpem'} has not ended after {MOST_SECONDS} s") from None
        if process.returncode != 0:
            printed = (err or out).strip().splitlines()[-1:] or ["nothing"]
            raise VpemError(f"the demonstration ends: {who or 'vpem'} printed: {printed[0]}")
        return out.rstrip("\n")

    def send(self, file: str, giver: str, taker: str) -> None:
        """Copy a file into another member's folder, as mail would."""
        self.show(giver, "cp", file, f"../{taker}/")
        shutil.copy(self.home / giver / file, self.home / taker)


@contextmanager
def playing(keep: Path | None, *names: str, messages: bool = False) -> Iterator[Play]:
    """Make a folder, with one for each name; it is removed unless it is to be kept."""
    if keep is not None:
        try:
            keep.mkdir(mode=0o700)
        except OSError as error:
            raise FileError(f"{keep} cannot be made: {error.strerror}; give a new folder") from None
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory(prefix="vpem-demo-") as home:
        for name in names:
            Path(home, name).mkdir(mode=0o700)
        yield Play(Path(home), messages)
    if keep is not None:
        tell(f"all files are in {keep}")


STEPS = (
    ("Ten agents hold three measurements each of 569 breast masses:",
     "data copy breast_cancer"),
    ("They fit a mixture together, along a cycle; measurements travel one hop, no further:",
     "fit breast_cancer.h5 --topology cycle --hops 1 --seed 0 -o model.h5"),
    ("The diagnoses took no part. How well do the two components agree with them?",
     "evaluate model.h5 breast_cancer.h5"),
    ("The component of each mass, and how certain that is:",
     "predict model.h5 breast_cancer.h5 --proba -o components.csv"),
    ("A picture of the features that distinguish the components:",
     "plot model.h5 --kind profile -o profile.png"),
)  # fmt: skip
"""What each command is for, and its words."""


def demo(keep: Keep = None) -> None:
    """Show the main job: fit real data, compare, predict, draw.

    Every command is printed as it is run, in a temporary folder: nothing is written to yours. It
    takes some seconds. See 'vpem study demo' for parties that meet over a network.

    Example: vpem demo --keep try
    """
    with playing(keep, messages=True) as play:
        for sentence, words in STEPS:
            play.tell(sentence)
            print(play.run("", words), flush=True)
    if keep is None:
        tell("nothing was kept; 'vpem demo --keep try' keeps all files in the folder try")


SERVER = "hub"
PARTIES = ("clinic", "lab", "imaging")
LACKING = 0.034  # share of the patients, whom a party's table lacks
ROWS = 3  # of labels that are shown for each party


def demo_of_study(keep: Keep = None) -> None:
    """Try a whole study: three parties and a server on this machine.

    Each has a folder and processes of its own, and they meet over TLS on 127.0.0.1. The breast
    cancer data are split by features into three tables, each without some of the patients, and
    sums are masked. Every command is printed as it is run; it takes less than a minute.

    Example: vpem study demo --keep try
    """
    import numpy as np

    from vpem.engines.tls.server import free_port
    from vpem.files.data import read_dataset
    from vpem.files.examples import example_path
    from vpem.files.parties.joining import cut
    from vpem.files.results import write_columns
    from vpem.network.partition import contiguous

    members, words = (SERVER, *PARTIES), {}
    with playing(keep, *members) as play:
        data = read_dataset(example_path("breast_cancer"))
        parts = contiguous(data.n_features, len(PARTIES), names=PARTIES)
        for part, who in zip(
            cut(data, parts, shuffle=True, drop_ids=LACKING, seed=1), PARTIES, strict=True
        ):
            patients = np.array([f"P{row:03}" for row in np.asarray(part.ids)])
            values = dict(zip(part.feature_names, part.X.T, strict=True))
            write_columns(play.home / who / f"{who}.csv", {"patient": patients} | values, "table")
        play.tell("Each makes a key, which stays at home:")
        for who in members:
            after = play.run(who, "party init", "--name", who).partition("in words")[2]
            words[who] = " ".join(" ".join(after.splitlines()[:2]).split())
        play.tell("The server's organiser says what will be run, and signs it:")
        address = f"127.0.0.1:{free_port()}"
        options = "--hops 0 -k 2 --align ids --scale standard --secure-sum"
        print(play.run(SERVER, f"study init heart --star {address} {options}"))
        play.tell("Each party requests to take part; words are compared by telephone:")
        for who in PARTIES:
            play.send("heart.toml", SERVER, who)
            play.run(who, f"party request heart.toml {who}.csv --id-column patient")
            play.send(f"{who}.request", who, SERVER)
            play.run(SERVER, "study approve", f"{who}.request", "--fingerprint", words[who])
        for who in PARTIES:
            play.send("heart.toml", SERVER, who)
        play.tell("All run it, each at home, at the same time:")
        processes: dict[str, subprocess.Popen[str]] = {}
        try:
            for who in members:
                own = f" {who}.csv --id-column patient --labels {who}-clusters.csv"
                fit = f"fit --study heart.toml --as {who}{own * (who != SERVER)}"
                processes[who] = play.start(who, *fit.split())
            printed = {who: play.end(who, process) for who, process in processes.items()}
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        play.tell(f"What {PARTIES[0]} sees; the others see the same:")
        print(printed[PARTIES[0]])
        play.tell("What each party has now, of its own patients:")
        for who in PARTIES:
            play.show(who, "head", f"-{ROWS + 1}", f"{who}-clusters.csv")
            file = play.home / who / f"{who}-clusters.csv"
            print("\n".join(file.read_text(encoding="utf-8").splitlines()[: ROWS + 1]))
