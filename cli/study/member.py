"""A command run by one member of a study, each on its own machine and with its own user.

Members may begin again: because another came back, or to go on without it. They run the same
command in a new image of the process, with new links and new keys, and without the messages that
were under way. What the new image needs to know of the run before it inherits as a file without a
name, which no other process can open and which is gone once it has been read.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from glob import has_magic
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Thread
from typing import Any, NoReturn

from vpem._core.threads import thread_count
from vpem.checks import check_number
from vpem.engines.engine import StalledError
from vpem.engines.tls.engine import TlsEngine
from vpem.engines.tls.faults import Fault, GoneOn, LeftOut, Parted, Returned, Unheard
from vpem.engines.tls.mailbox import Post
from vpem.engines.tls.trust import Member, MemberSigns
from vpem.errors import FileError, InputError, Interrupted, Setting, VpemError
from vpem.files.checkpoints import FileSaver, read_state
from vpem.files.hdf5 import atomic_write
from vpem.files.opening import check_readable
from vpem.files.parties.opening import Party
from vpem.files.studies.identities import identity_of, only_identity
from vpem.files.studies.logs import MessageLog, log_beside
from vpem.files.studies.policy import LEAST_ROWS, PolicyError, file_digest
from vpem.files.studies.signed import door_of
from vpem.files.studies.study import Study
from vpem.files.table_settings import TableSettings
from vpem.files.temporaries import check_ending
from vpem.fits.guard import Guard
from vpem.fits.results import few_rows_of
from vpem.network.faults import Outlast
from vpem.network.messages import decode, encode
from vpem.network.schema import Report
from vpem.pictures.contents import size
from vpem.steps.recovery import REPEATED, Keeper

from ..commands.individuals import files_in
from ..commands.model import stored_at
from ..data import STDIN
from ..display import Screen, as_plain, tell
from ..names import STUDY, in_options, name_of
from ..options import in_files, path_of, source_of
from ..outputs import Output, writes
from ..runner import FitOutcome
from ..session import NOT_THERE, EngineSettings, Where, check_alike, join, terminate
from .options import OWN_OPTIONS, own_party, whose_options

PRIVATE = "it cannot use its data or its machine; ask there"
"""Sent to others in place of most errors: the contents of a member's files stay with it."""

INTERRUPTED = "it was interrupted"

CARRIER = "_VPEM_CARRIER"
"""Variable with the folder of sockets of a job of NVFlare (`vpem.engines.nvflare`)."""

INHERITED = "_VPEM_INHERITED"
"""Variable with the number of the open file that a process inherits from the image before it."""

IF_ANY = "if any"  # of --resume-if-any, which any member may give: all resume then, or start
BEGINNING = 60.0  # seconds that members have at least to begin again, without a lost one
PATIENCE = 0.3  # seconds for members that find the same fault to report it before others do
MOST = 1 << 32  # bytes of a file from another member


def inherited() -> tuple[list[tuple[str, int]], dict[int, Any], dict[str, Any] | None, bool | None]:
    """Return what `Meeting.begin_again` of the image before left, if there was one."""
    number = os.environ.pop(INHERITED, None)
    if number is None:
        return [], {}, None, None
    try:
        with os.fdopen(int(number), "r+b") as file:
            file.seek(0)
            lost, states, opened, resume = decode(file.read())
            return [(str(name), int(since)) for name, since in lost], dict(states), opened, resume
    except (OSError, ValueError, TypeError):
        raise InputError(f"{INHERITED} names no file of this process; unset it") from None


def terms_of(context: Any) -> dict[str, list[str]]:
    """Return the value and source of every option that all members must share, by option.

    Of input files the content counts, not the name; of a checkpoint whether there is one.
    """
    known, roles = context.command.callback.settings, context.command.callback.roles
    terms = {}
    for param in in_files(context):
        about, role = known.get(param.name), roles.get(param.name)
        own = param.name in (*OWN_OPTIONS, "resume_if_any") or (about is not None and about.local)
        if own or (role is not None and role.writes and param.name != "checkpoint"):
            continue
        value = context.params.get(param.name)
        if role is not None and value is not None:
            word = f"a file with SHA-256 {file_digest(value)[:16]}" if not role.writes else "given"
        else:
            word = NOT_THERE if value is None or value is False else str(value)
        if param.name == "resume" and context.params.get("resume_if_any"):
            word = IF_ANY
        kind, place = source_of(context, param)
        terms[name_of(param)] = [word, Path(place).name if place else kind]
    return terms


def check_introduced(names: Sequence[str], everyones: Sequence[Any], study: str) -> bool:
    """Raise InputError unless all members run the same command with the same options.

    Each is introduced by the words of its command, its `terms_of`, the outputs that it requests,
    and the fewest parties with data that its policy allows. Returns whether all resume from
    checkpoints, if there are any: a member has come back.
    """
    commands, terms = [one[0] for one in everyones], [one[1] for one in everyones]
    for name, command in zip(names, commands, strict=True):
        if command != commands[0]:
            raise InputError(
                f"{names[0]} runs 'vpem {commands[0]}' and {name} 'vpem {command:.40}'; all "
                f"members of {study} must run the same command"
            )
    goes_on = any(one.get("--resume", [None])[0] == IF_ANY for one in terms)
    must = f"all members of {study} must have the same"
    check_alike(names, terms, must, but="--resume" if goes_on else "")
    return goes_on


def meet(context: Any) -> Meeting:
    """Join the other members of a study, once all are there and run the same command.

    InputError if they do not, or this member's policy does not allow it.
    """
    study, options = context.meta[STUDY], context.params
    command = " ".join(path_of(context))
    # What this member alone can mend is said before others connect and have to end.
    check_number("--timeout", float(options["timeout"]), least=0.0, above=True)
    thread_count(options.get("n_threads"))
    for file in map(str, options.get("data") or ()):
        if file == STDIN:
            raise InputError(
                "standard input (-) can be read only once; a member of a study names a file"
            )
        if not has_magic(file):
            check_readable(file)
    if (labels := options.get("labels_file")) is not None:
        check_ending(labels, "results")
        writes("--labels", labels)
    member = study.member(only_identity(study.folder, options["member"]))
    meeting = Meeting(study, member, command, options)
    context.meta[STUDY] = meeting.study
    join(meeting)
    terms = terms_of(context)
    if files := files_in(options.get("data") or ()):
        files = own_party(member.name, files, TableSettings()).find()
    meeting.guard.check(command, options, member, files)
    roles, fewest = context.command.callback.roles, meeting.guard.rules.fewest_parties or 1
    outputs = [name for name in roles if roles[name].writes and options.get(name) is not None]
    if meeting.introduce([command, terms, outputs, fewest]):
        options |= {"resume": False, "resume_if_any": True}
    meeting.guard.begin()
    return meeting


class Meeting(Where):
    """A member of a study while its command runs, with ``options`` by names of parameters.

    The run goes on when another member is lost, if the study says so. ``fewest`` has how many
    parties each member's policy requires, once all have met.
    """

    word = "tls"
    own_users = True
    least_rows = LEAST_ROWS
    engine: TlsEngine

    def __init__(self, whole: Study, member: Member, command: str, options: dict[str, Any]) -> None:
        self.member, self._options = member, options
        self._first = whole.roster.members[0].name
        self._met = self._delivered = False
        self.fewest: dict[str, int] = {}
        self.outputs: frozenset[str] = frozenset()
        self.files: Sequence[Path] = options.get("data") or ()
        lost, kept, opened, self._resume = inherited()
        if self._resume is not None and "resume" in options:
            options |= {"resume": False, "resume_if_any": self._resume}
        self.outlast: Outlast | None = None
        if whole.if_lost == "without" and options.get("secure_sum"):
            self.outlast = Outlast(self._too_few, opened)
        path: Any = options.get("checkpoint")
        again = path is not None and (options.get("resume") or options.get("resume_if_any"))
        if again and not lost and member.name == self._first:
            # A checkpoint that cannot be read is reported where the run resumes.
            with suppress(FileError, KeyError, TypeError, ValueError):
                names = {one.name for one in whole.roster.members[1:]}
                without = read_state(path)["facts"]["without"]
                lost = [(name, int(since)) for name, since in without if name in names]
        roster = whole.roster.without([name for name, _ in lost])
        self.study = study = replace(whole, roster=roster)
        self.guard = Guard(study)
        with Screen():
            identity = identity_of(study, member.name)  # before anything is written
        log, door = options.get("log"), door_of(options["listen"])
        log = log or log_beside(study.path, member.name)
        self._log = MessageLog(log, command=command, edition=study.edition)
        note, seconds = self._log.record_message, float(options["timeout"])
        self.word, carrier = study.engine, self._carrier(study)
        self._post = Post(
            roster, identity, listen=door, carrier=carrier, timeout=seconds, note=note,
            tell=self._tell,
        )  # fmt: skip
        self._post.beginning = BEGINNING * (study.if_lost == "without")
        self.engine = TlsEngine(self._post, roster, MemberSigns(roster, identity))
        self.engine.outlast = self.outlast
        self.keeper = Keeper(None, self.engine, lost, kept)
        if self.guard.policy is not None:
            self.engine.limit = self.guard.policy.check_sizes
        self._post.start()
        if carrier is not None:
            Thread(target=self._end_with_job, daemon=True).start()
        signal.signal(signal.SIGTERM, terminate)

    def _carrier(self, study: Study) -> Path | None:
        """Return the folder of the job of NVFlare that carries links, where the study says so."""
        chosen, folder = self._options.get("engine"), os.environ.get(CARRIER)
        if chosen not in (None, study.engine):
            raise InputError(
                f"members of {study.name} reach each other by --engine {study.engine}, not "
                f"{chosen}; leave out --engine"
            )
        if study.engine == "tls":
            return None
        if self._options["listen"] is not None:
            raise InputError("--listen has no effect in a job of NVFlare; leave it out")
        if folder is None:
            raise InputError(
                f"members of {study.name} meet inside a job of NVFlare, which starts this command "
                f"at each site: write it by 'vpem study job {study.path.name}', then submit it"
            )
        return Path(folder)

    def _end_with_job(self) -> None:
        """Wait for the end of standard input, which is that of the job's process at this site."""
        while os.read(0, 1):
            pass
        name = self.member.name
        self._post.fail(StalledError(f"the job of NVFlare that carries messages of {name} ended"))

    @property
    def gone_on(self) -> bool:
        return bool(self.keeper.lost)

    def keep(self, saver: FileSaver | None) -> Any:
        """Return a saver that also keeps the state from which the others would go on."""
        if self.study.if_lost != "without":
            return saver
        self.keeper = Keeper(saver, self.engine, self.keeper.lost, self.keeper.kept)
        return self.keeper

    def _deal_with(self, error: Exception) -> Exception:
        """Go on without the member that an error is about, in a new image, if that is possible.

        Otherwise returns the error to report.
        """
        if self.study.if_lost != "without":
            return error
        fault, outlast, gone = error, self.outlast, list[str]()
        if outlast is not None:
            gone = [self.engine.names[rank] for rank in sorted(outlast.gone)]
            if outlast.error is not None:
                self._post.flush()  # what others need to end this iteration, too
                if not isinstance(error, VpemError):  # it follows from the loss
                    fault = outlast.error
        if isinstance(fault, Unheard | Returned) and self.engine.rank and fault.name != self._first:
            try:
                self._post.report(fault.name, str(fault))
            except Exception as answer:
                fault = answer
        if isinstance(fault, GoneOn):
            lost = [name for name, _ in self.keeper.lost]
            names = [name for name in fault.without if name not in lost]
            if not set(names) <= {*self.engine.names[1:]} - {self.member.name}:
                return InputError(f"{self._first} goes on without one that is not another member")
            why, reason = f"{self._first} goes on without {', '.join(names)}", None
        elif isinstance(fault, Unheard | Returned):
            names = list(dict.fromkeys([*gone, fault.name, *self._post.silent]))
            why = f"{in_options(fault)}; going on without {', '.join(names)}"
            reason = self._too_few(names)
        else:
            return fault
        left = set(self.engine.names) - set(names)
        if reason is None and outlast is not None and outlast.repeats(self.keeper.newest(), left):
            reason = REPEATED
        if reason is not None and isinstance(fault, GoneOn):
            return StalledError(f"{fault}; this member cannot: {reason}")
        if reason is not None:
            fault.add_note(f"the others do not go on: {reason}")
            return fault
        if not self._options.get("quiet"):
            tell(f"{why}, as {self.study.name} says")
        self.begin_again(resume=False, without=names)

    def _too_few(self, names: Sequence[str]) -> str | None:
        """Return why the others cannot go on without these members, or None if they can."""
        members = self.study.roster.members
        if self._first in names:
            return f"they cannot without {self._first}, the first member of {self.study.name}"
        left = sum(one.holds and one.name not in names for one in members)
        # Of two parties under masks each knows what the other added.
        least, what = (3, "masked sums need three") if self.outlast else (2, "a fit needs two")
        needs = {f"{what} parties": least} | {
            f"{name}'s policy requires {fewest} parties": fewest
            for name, fewest in self.fewest.items()
            if name not in names
        }
        few = (f"{why}, and {left} would be left" for why, least in needs.items() if left < least)
        return next(few, None)

    def begin_again(self, resume: bool, without: Sequence[str] | None = None) -> NoReturn:
        """Run the command in place of this process; once all have met, from checkpoints or not.

        The new image inherits the lost members and since when, the masked sums that were opened
        (`vpem.network.faults.Outlast`), and whether all ``resume`` if there are checkpoints. Where
        it goes on ``without`` further members it has the states by iterations, too
        (`vpem.steps.recovery.Keeper`); else all are there again.
        """
        lost = [*map(list, self.keeper.lost), *([name, -1] for name in without or ())]
        back = self.engine.names if without is None else None
        opened = None if self.outlast is None else self.outlast.state(back)
        states = self.keeper.newest() if back is None else {}
        file = TemporaryFile()  # noqa: SIM115
        file.write(encode([lost, states, opened, resume if self._met else self._resume]))
        file.flush()
        os.set_inheritable(file.fileno(), True)
        os.environ[INHERITED] = str(file.fileno())
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, sys.orig_argv)

    def _tell(self, sentence: str) -> None:
        """Print a line; until all have met, the first member sends it to those who wait, too."""
        if not self._options.get("quiet"):
            tell(sentence)
        if not self._met:
            self.engine.tell_waiting(sentence)

    def introduce(self, introduction: Any) -> bool:
        """Introduce all members to each other; returns what `check_introduced` does."""
        everyones = self.engine.introduce(introduction, BEGINNING * self.gone_on, self._tell)
        self._met, names = True, self.engine.names
        self.fewest = {name: one[3] for name, one in zip(names, everyones, strict=True)}
        self.outputs = frozenset(name for _, _, theirs, *_ in everyones for name in theirs)
        return check_introduced(names, everyones, self.study.name)

    def prepare(self, settings: EngineSettings) -> None:
        """Warn of lost members; the options of processes were applied as members met."""
        for name, _ in self.keeper.lost:
            self.screen.warn(
                f"{name} is missing: it did not answer, and the others go on without it"
            )

    def parties(
        self,
        files: Sequence[Path],
        table: TableSettings,
        model_table: TableSettings | None = None,
        *,
        columns: bool = True,
    ) -> list[Party]:
        """Return all parties; those of others by name only."""
        own, names = self.member, [self.engine.names[rank] for rank in self.engine.seats or ()]
        parties = {name: Party(name, name) for name in names}
        if own.holds:
            features = own.features if columns else ()
            parties[own.name] = own_party(own.name, files, table, model_table, features)
        return list(parties.values())

    def anybody(self, name: str, here: bool) -> bool:
        return name in self.outputs

    def facts(self, files: Sequence[Path]) -> Report:
        """Return facts without this member's files and warnings."""
        lost = [{"member": name, "since_iteration": max(n, 0) + 1} for name, n in self.keeper.lost]
        known: Report = {"warnings": [], "data": f"study {self.study.name}"}
        return known | ({"without": lost} if lost else {})

    def options(self, record: Report, files: Sequence[str]) -> Report:
        """Return what models keep of options, without the names of one member's files."""
        return record | {name: None for name in ("data", *files) if name in record}

    def share(self, result: FitOutcome, out: Output) -> Report:
        """Send the report to all members, and the model to those with --output, who check it."""
        if not out.publish_anyway:
            self.check_published(result)
        if self.outlast is not None and self.outlast.error is not None:
            raise self.outlast.error  # masked sums went on so far without a lost member
        report = self.receive(result, out) if self.engine.rank else self.send(result, out)
        local_facts = super().facts(self.files)
        report |= {name: value for name, value in local_facts.items() if value or name != "data"}
        if result.apart and out.output is not None and result.write is not None:
            result.write(out.output, report)
        report["model"] = None if out.output is None else str(out.output)
        return report | result.own(report)

    def send(self, result: FitOutcome, out: Output) -> Report:
        """Send report and file from the first member to all others; returns the report.

        FileError if the model cannot be written: after others have it, if it can be made at all.
        """
        report: Report = as_plain(result.tell())
        content = failed = None
        with TemporaryDirectory() as folder:
            for path in (out.output, Path(folder, "model.h5")) if result.in_file else ():
                if content is None and path is not None and result.write is not None:
                    try:
                        result.write(path, report)
                        content = path.read_bytes()
                    except FileError as error:
                        failed = failed or error
        if content is not None or not result.in_file:
            self.engine.topic = "result"
            self.engine.bcast([report, content])
            self._delivered = True
        if failed is not None:
            raise failed
        return report

    def receive(self, result: FitOutcome, out: Output) -> Report:
        """Receive report and file from the first member; the file is checked by reading it."""
        self.engine.topic, first = "result", self._first
        said: Any = self.engine.bcast(None)
        kinds = [dict, bytes if result.in_file else type(None)]
        if not isinstance(said, list) or [*map(type, said)] != kinds:
            raise InputError(f"{first} has sent no result of a fit; do all run the same version?")
        report, content = said
        if result.in_file and not 0 < len(content) <= MOST:
            raise InputError(f"{first} has sent a file of {len(content)} bytes")
        self._delivered = True
        if out.output is not None and result.in_file:
            with atomic_write(out.output, out.force) as temporary:
                temporary.write_bytes(content)
                try:
                    _ = stored_at(temporary).stored
                except FileError as error:
                    raise FileError(
                        f"what {first} has sent is not the result of a fit: {error}"
                    ) from None
        return dict(report)

    def check_published(self, result: FitOutcome) -> None:
        """Raise InputError, at all members alike, where a model would disclose few rows."""
        if result.apart or result.found is None:
            return
        few = few_rows_of(result.found, self.least_rows, result.heaviest)
        sentences: list[Any] = self.engine.allgather(few)
        for sentence in filter(None, sentences):
            raise InputError(
                f"{sentence:.500}: a model would disclose them to others, and none is written; fit "
                "fewer components, or ask all parties to allow ", Setting("publish_anyway", True),
                " in their policies",
            )  # fmt: skip

    def watch(self, n_rows: int, over_rows: bool) -> None:
        self.guard.watch(self.engine, n_rows, over_rows)
        if (most := self.guard.rules.most_esteps) is not None:
            self.screen.say(f"{self.guard.rules.path} allows at most {most} E-steps in this run")

    def describe(self) -> dict[str, Any]:
        return {"engine": self.word, "study": self.study.name, "members": list(self.engine.names)}

    def tell_warnings(self) -> None:
        """Leave warnings with the user of each member."""

    def close(self) -> None:
        join(None)
        self.guard.end()
        self._post.close()
        self._log.close()
        log = self._log
        self._tell(f"noted {log.n_messages:,} messages in {log.path}, of {size(log.size)}")

    def fail(self, error: Exception, sentence: str | None) -> int:
        """Report what went wrong, to others as much as they may know, and end."""
        goes_on = self._options.get("checkpoint") is not None
        if isinstance(error, Returned) and (goes_on or not self._met):
            if self._met:
                self._tell(
                    f"{error.name} has begun again; resuming from the newest checkpoint that all "
                    "have"
                )
            self.begin_again(resume=True)
        try:
            error = self._deal_with(error)
        except KeyboardInterrupt:
            return self.interrupted(130)
        if isinstance(error, VpemError):
            whose_options(error, self.study)
            sentence = in_options(error)
        alike = isinstance(error, Interrupted) and error.iteration is not None
        runs_twice = isinstance(error, Fault) and error.kind == "taken"
        self._delivered |= alike or runs_twice or isinstance(error, LeftOut)
        code = getattr(error, "exit_code", 2) if sentence is not None else 1
        if isinstance(error, Returned):
            sentence = f"{sentence}; with --checkpoint all would have resumed from there"
        # Faults of a link concern both ends; a proxy is one's own.
        links = isinstance(error, Fault) and error.kind != "proxy"
        if sentence is None:
            for_others = "an unexpected error; ask there"
        elif isinstance(error, PolicyError):
            for_others = error.elsewhere(self.member.name)
        elif links or isinstance(error, Parted | Returned | StalledError):
            for_others = sentence
        else:  # that of an interrupt says what was kept here
            for_others = INTERRUPTED if code > 128 else PRIVATE
        if sentence is None and not sys.flags.dev_mode:
            # Where, without the error's text: that may hold what another member has sent.
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = "/".join(Path(where.filename).parts[-3:])
            sentence = (
                f"{type(error).__name__} in {place}, line {where.lineno}: another member has sent "
                "what no member of this version sends, or this is a defect of vpem; report it with "
                "what PYTHONDEVMODE=1 prints"
            )
        self._leave(for_others, code)
        return super().fail(error, sentence) and code

    def interrupted(self, code: int) -> int:
        self._leave(INTERRUPTED, code)
        return super().interrupted(code)

    def _leave(self, sentence: str, code: int) -> None:
        """Send others the reason why this member ends."""
        join(None)
        with suppress(KeyboardInterrupt):  # another interrupt ends only the wait
            time.sleep(PATIENCE * bool(sentence == PRIVATE and self.engine.rank))
            if not self._delivered:
                self._post.announce_end(sentence, code)
            self._post.close()
            self._log.close()
            self.guard.end()
