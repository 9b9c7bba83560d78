"""`vpem study demo`: three parties and a server on this machine, each in a process and a folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from .play import Keep, Play, folder

SERVER = "hub"
PARTIES = ("clinic", "lab", "imaging")
KNOWN = 550
"""Patients that each party knows, of all."""

ROWS = 3
"""Of labels that are shown, of each party."""


def demo(keep: Keep = None) -> None:
    """Try it all: three parties and a server on this machine.

    Each has a folder and processes of its own, and they meet over TLS on 127.0.0.1. The breast
    cancer data are cut into three tables, by features, of patients that not all know, and sums are
    masked. Every command is printed as it is run; it takes less than a minute.

    Example: vpem study demo --keep try
    """
    from .output import Screen

    with Screen() as screen, folder(keep) as home:
        for name in (SERVER, *PARTIES):
            (home / name).mkdir(mode=0o700)
        play = _Study(home)
        _write_tables(home)
        play.tell("Each makes a key, which stays at home:")
        words = {who: _words(play.run(who, "party init", "--name", who)) for who in play.all}
        play.tell("The server's organiser says what will be run, and signs it:")
        address = f"127.0.0.1:{_free_port()}"
        options = ["--hops", "0", "-k", "2", "--align", "ids", "--scale", "standard"]
        options.append("--secure-sum")
        print(play.run(SERVER, "study init", "heart", "--star", address, *options))
        play.tell("Each party asks to take part; words are compared by telephone:")
        for who in PARTIES:
            play.send("heart.toml", SERVER, who)
            play.run(who, "party request", "heart.toml", f"{who}.csv", "--id-column", "patient")
            play.send(f"{who}.request", who, SERVER)
            play.run(SERVER, "study approve", f"{who}.request", "--fingerprint", words[who])
        for who in PARTIES:
            play.send("heart.toml", SERVER, who)
        play.tell("All run it, each at home, at the same time:")
        play.fit()
        play.tell("What each party has now, of its own patients:")
        for who in PARTIES:
            play.head(who, f"{who}-clusters.csv")
        if keep is not None:
            screen.say(f"all files are in {keep}")


class _Study(Play):
    """Commands of members, each in a folder of its own."""

    all = (SERVER, *PARTIES)

    def send(self, file: str, giver: str, taker: str) -> None:
        """Copy a file into somebody else's folder, as mail would."""
        self.show(giver, "cp", file, f"../{taker}/")
        shutil.copy(self.home / giver / file, self.home / taker)

    def fit(self) -> None:
        """Run the fit at all members at once, and print the report of one."""
        processes: dict[str, subprocess.Popen[str]] = {}
        try:
            for who in self.all:
                words = ["fit", "--study", "heart.toml", "--as", who]
                if who != SERVER:
                    words += [f"{who}.csv", "--id-column", "patient"]
                    words += ["--labels", f"{who}-clusters.csv"]
                self.show(who, "vpem", *words)
                processes[who] = self.start(who, *words)
            told = {who: self.end(who, process) for who, process in processes.items()}
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        self.tell(f"What {PARTIES[0]} sees; the others see the same:")
        print(told[PARTIES[0]])

    def head(self, who: str, file: str) -> None:
        """Print the first lines of a file."""
        self.show(who, "head", f"-{ROWS + 1}", file)
        lines = (self.home / who / file).read_text(encoding="utf-8").splitlines()
        print("\n".join(lines[: ROWS + 1]))


def _free_port() -> int:
    """Return a port of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _words(shown: str) -> str:
    """Return the twelve words of what 'vpem party init' prints."""
    lines = shown.splitlines()
    place = next(place for place, line in enumerate(lines) if line.strip().startswith("in words"))
    return " ".join([*lines[place].split()[2:], *lines[place + 1].split()])


def _write_tables(home: Path) -> None:
    """Cut the breast cancer data into a table a party, in an order of its own, some missing."""
    import csv

    import numpy as np

    from vpem.files.data import read_dataset
    from vpem.files.examples import example_path

    data = read_dataset(example_path("breast_cancer"))
    rng = np.random.default_rng(1)
    shares = np.array_split(np.arange(data.n_features), len(PARTIES))
    for who, columns in zip(PARTIES, shares, strict=True):
        with open(home / who / f"{who}.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["patient", *(data.feature_names[column] for column in columns)])
            for row in rng.permutation(data.n_samples)[:KNOWN]:
                values = [f"{data.X[row, column]:.6g}" for column in columns]
                table.writerow([f"P{row:03}", *values])
