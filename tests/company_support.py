"""Commands of members of a study, each with a folder of its own, who talk on this machine."""

import shutil
import signal
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.studies import make_study
from vpem.engines.tls.server import free_port
from vpem.files.studies.identities import write_study
from vpem.files.studies.study import Study, read_study

from .forks import MAIN, environment, interpreter

SECONDS = 240
"""In which the commands of all members end."""


@dataclass
class Ended:
    """What one member's command left behind."""

    code: int
    out: str
    err: str

    @property
    def sentence(self):
        """The one line of an error on stderr, without its beginning."""
        lines = [line for line in self.err.splitlines() if line.startswith("vpem: error: ")]
        assert len(lines) == 1, self.err
        return lines[0].removeprefix("vpem: error: ")


@dataclass
class Company:
    """Members of a study.

    Attributes
    ----------
    study : Study
        As its organiser, the first member, has signed it.
    folders : dict of str to Path
        Of each member: the study, and its key and certificate.
    processes : list of Popen
        That were started.
    """

    study: Study
    folders: dict[str, Path] = field(default_factory=dict)
    processes: list = field(default_factory=list)

    @property
    def names(self):
        """Of all members, by rank."""
        return [member.name for member in self.study.roster.members]

    def words(self, name, command, *words):
        """The command line of one member, in its folder."""
        return [command, "--study", f"{self.study.name}.toml", "--as", name, *words]

    def begin(self, name, command, *words, main=MAIN, **more):
        """Start the command of one member."""
        kept = [self.folders[name].with_suffix(f".{end}") for end in ("out", "err")]
        with kept[0].open("w") as out, kept[1].open("w") as err:
            line = [interpreter(), "-c", main, *map(str, self.words(name, command, *words))]
            process = subprocess.Popen(
                line, cwd=self.folders[name], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=environment(**more),
            )  # fmt: skip
        process.kept = kept
        self.processes.append(process)
        return process

    def end(self):
        """End what is still running, because a test has failed."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def run(self, command, *words, own=None, seconds=SECONDS, **more):
        """Run a command at all members at once: what each left behind, by name.

        ``own`` has further words by name; of whom it has None nobody starts. ``more`` are variables
        of the environment.
        """
        own = {} if own is None else own
        there = [name for name in self.names if own.get(name, ()) is not None]
        processes = {
            name: self.begin(name, command, *own.get(name, ()), *words, **more) for name in there
        }
        return {name: ended(process, seconds) for name, process in processes.items()}

    def signed(self, **changes):
        """Give all members another edition of the study."""
        self.study = replace(self.study, edition=self.study.edition + 1, **changes)
        publish(self)
        return self


def ended(process, seconds=SECONDS):
    """Wait for a process: what it left behind."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        code = process.wait()
    return Ended(code, *(file.read_text() for file in process.kept))


def publish(company):
    """Sign the study, and give everybody a copy."""
    from vpem.files.studies.identities import read_identity, usable

    first, *others = company.names
    write_study(company.study, usable(read_identity(company.folders[first], first)))
    for name in others:
        shutil.copy(company.study.path, company.folders[name])


def make_company(
    folder, names, options, *, server=None, result="all", timeout=120.0, name="heart", doors=True
):
    """Make a study, and a folder for each of its members.

    Parameters
    ----------
    folder : path
        In which those of the members are made.
    names : sequence of str
        Of parties that have data.
    options : dict of str to dict
        By command.
    server : str, optional
        A first member without data.
    doors : bool
        Whether all can be dialled, and not only the first.
    """
    everybody = ([] if server is None else [server]) + list(names)
    dialled = everybody if doors else everybody[:1]
    addresses = dict.fromkeys(everybody) | {one: ("127.0.0.1", free_port()) for one in dialled}
    studies, _ = make_study(
        Path(folder), addresses, options, name=name, server=server, result=result, timeout=timeout
    )
    read_study(studies[everybody[0]].path)
    return Company(studies[everybody[0]], {one: study.folder for one, study in studies.items()})
