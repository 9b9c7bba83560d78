"""Checkpoints: a run that was interrupted is resumed as if it had not been.

A loop offers its state at the end of every iteration; a `Saver` asks for it when a checkpoint is
due, or when the process is to end. A recipe wraps what its loop offers in its own state. What must
not change between two parts of a run is compared before it is resumed.

A state is a dict of str keys whose values are None, bool, int, float, str, bytes, NumPy arrays,
and dicts, lists and tuples of these. Its structure is written as JSON; the numbers of all arrays of
one type stand one after the other in one dataset, so that very many small arrays cost no more than
one. A digest shows whether anything has changed since.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpem
from vpem.checks import Labels, check_int
from vpem.engines.engine import Engine
from vpem.errors import FileError, InputError, Interrupted, Setting, VpemError, VpemWarning, named
from vpem.files.hdf5 import (
    _flush,
    check_writable,
    create,
    describe_element,
    find,
    is_group,
    read_array,
    read_attribute,
    read_file,
    write_attribute,
)
from vpem.files.json_text import parse_json, read_json_bytes
from vpem.files.opening import PathLike
from vpem.files.temporaries import check_ending
from vpem.network.schema import PLAIN, RESTART, Integer, Place, State, TableOf, check
from vpem.records import Settings
from vpem.terms.density import Density
from vpem.terms.statistics import leaves

ENCODING = "vpem-checkpoint"
VERSION = "0.1.0"

DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")  # of arrays
DEEPEST = 100  # how deep values may be nested in a state
MOST_DIMENSIONS = 16
MOST_EMPTY = 1 << 16
"""Arrays without numbers in a list: a few characters must not become very many of them."""

DAMAGED = "is damaged: start again, or use a copy"


def take_apart(state: object) -> tuple[object, dict[str, list[Labels]]]:
    """Return a state as JSON can describe it, and the numbers of its arrays, by type."""
    pools: dict[str, list[Labels]] = {}

    def pooled(array: Labels) -> tuple[str, list[int]]:
        """Put numbers into the pool of their type; return its name, and their shape."""
        name = array.dtype.str[1:]
        if name not in DTYPES:
            raise TypeError(f"a state holds no arrays of {array.dtype}")
        pools.setdefault(name, []).append(array.reshape(-1))
        return name, list(array.shape)

    def plain(value: object) -> object:
        if value is None or isinstance(value, bool | str | int):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else ["float", repr(float(value))]
        if isinstance(value, np.bool_ | np.integer):
            return value.item()
        if isinstance(value, bytes):
            return ["bytes", *pooled(np.frombuffer(value, dtype=np.uint8))[1]]
        if isinstance(value, np.ndarray):
            # How numbers lie in memory decides in which order they are added up.
            turned = value.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous
            return ["turned" if turned else "array", *pooled(value.T if turned else value)]
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise TypeError("the keys of a state are strings")
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            first = value[0] if isinstance(value, list) and len(value) > 1 else None
            # Arrays of one shape and type that have numbers, in C order.
            if isinstance(first, np.ndarray) and all(
                isinstance(one, np.ndarray)
                and one.size > 0
                and one.shape == first.shape
                and one.dtype == first.dtype
                and one.flags.c_contiguous
                for one in value
            ):
                return ["arrays", *pooled(np.stack(value))]
            return ["tuple" if isinstance(value, tuple) else "list", *map(plain, value)]
        raise TypeError(f"a state holds no {type(value).__name__}")

    return plain(state), pools


def put_together(plain: object, pools: Mapping[str, Labels]) -> Any:
    """Return the state that a piece of JSON describes, with the numbers of its arrays by type."""
    places = dict.fromkeys(pools, 0)

    def take(name: str, shape: Sequence[int]) -> Labels:
        if (
            not isinstance(shape, list)
            or len(shape) > MOST_DIMENSIONS
            or not all(type(length) is int and length >= 0 for length in shape)
        ):
            raise ValueError("an array has no shape")
        count = math.prod(shape)
        if count == 0:
            if name not in DTYPES:
                raise ValueError("an array has no type")
            return np.empty(shape, dtype=name)
        begin = places[name]
        if count > len(pools[name]) - begin:
            raise ValueError("an array is longer than its numbers")
        places[name] = begin + count
        return pools[name][begin : begin + count].reshape(shape).copy()

    def value(plain: object) -> Any:
        if isinstance(plain, dict):
            return {key: value(item) for key, item in plain.items()}
        if not isinstance(plain, list):
            return plain
        if not plain or not isinstance(plain[0], str):
            raise ValueError("a list does not say what it is")
        kind, rest = plain[0], plain[1:]
        if kind in ("list", "tuple"):
            items = [value(item) for item in rest]
            return tuple(items) if kind == "tuple" else items
        if kind == "float":
            return float(rest[0])
        if kind == "bytes":
            return take("u1", rest).tobytes()
        name, shape = rest
        if kind == "array":
            return take(name, shape)
        if kind == "turned":
            return take(name, shape).T
        if kind == "arrays":
            arrays = take(name, shape)
            if not arrays.size and len(arrays) > MOST_EMPTY:
                raise ValueError("there are too many arrays without numbers")
            return [one.copy() for one in arrays]
        raise ValueError(f"there are no values of kind {kind[:20]!r}")

    return value(plain)


def _digest(text: NDArray[np.uint8], pools: dict[str, Labels]) -> str:
    """Sum that changes with any bit of a state."""
    digest = hashlib.blake2b(text.tobytes(), digest_size=32)
    for name in sorted(pools):
        digest.update(name.encode())
        digest.update(pools[name].view(np.uint8).data)
    return digest.hexdigest()


def part_of(path: PathLike) -> Path:
    """Return where a state is written first: one name, so that leftovers of a killed process go."""
    target = Path(os.path.realpath(path))
    return target.parent / f".{target.name}.part"


def write_state(path: PathLike, state: State, keep: PathLike | None = None) -> None:
    """Write a state (see the module) in place of the one before, which goes to ``keep``; atomic."""
    plain, parts_of = take_apart(state)
    structure = json.dumps(plain, allow_nan=False, separators=(",", ":"))
    text = np.frombuffer(structure.encode("utf-8"), dtype=np.uint8)
    pools = {name: np.concatenate(parts) for name, parts in parts_of.items()}
    pools = {name: pool for name, pool in pools.items() if len(pool)}
    if "b1" in pools:
        pools["b1"] = pools["b1"].view(np.uint8)
    target = check_writable(path, force=True)
    temporary = part_of(target)
    try:
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        with create(temporary, ENCODING, VERSION) as file:
            write_attribute(file, "digest", _digest(text, pools))
            dataset = file.create_dataset("structure", data=text, track_times=False)
            describe_element(dataset, "json-utf8", VERSION)
            for name, numbers in pools.items():
                file.create_dataset(f"numbers/{name}", data=numbers, track_times=False)
        _flush(temporary)
        if keep is not None and target.exists():
            os.replace(target, Path(os.path.realpath(keep)))
        os.replace(temporary, target)
        _flush(target.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise FileError(
            f"the checkpoint {path} could not be written: {error.strerror or error}"
        ) from error


def read_state(path: PathLike) -> State:
    """Read a state; FileError if damaged, cut short, no checkpoint, or from a newer vpem."""
    otherwise = "a vpem checkpoint; 'vpem fit --checkpoint' writes one"
    with read_file(path, ENCODING, VERSION, otherwise) as file:
        text = read_json_bytes(file, "structure")
        pools = {}
        numbers = find(file, "numbers")
        for name in DTYPES:
            if is_group(numbers) and find(numbers, name) is not None:
                pools[name] = read_array(numbers, name, ndim=1, kinds="iuf")
        digest = read_attribute(file, "digest")
    if digest != _digest(text, pools):
        raise FileError(f"{path} {DAMAGED} (its content is not what was written)")
    for name, pool in pools.items():
        if pool.dtype != ("u1" if name == "b1" else name):
            raise FileError(f"{path} {DAMAGED}")
    if "b1" in pools:
        pools["b1"] = pools["b1"] != 0
    try:
        state = put_together(parse_json(text.tobytes().decode("utf-8"), DEEPEST), pools)
    except VpemError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError, MemoryError) as error:
        raise FileError(f"{path} {DAMAGED} ({error})") from error
    if not isinstance(state, dict):
        raise FileError(f"{path} {DAMAGED}")
    return state


EVERY = 10  # iterations from one checkpoint to the next, by default

MAY_DIFFER = ("max_iter", "n_epochs", "n_threads")
"""What may be another when a run is resumed."""

CHECKPOINT = {"generation": Integer(1), "facts": TableOf(PLAIN), "run": TableOf()}
"""What `FileSaver` writes; the run is checked by the loop that resumes it."""


def newest_common(generations: Sequence[Sequence[int]]) -> int | None:
    """Return the newest generation that all processes have; None where there is none."""
    common = set(generations[0]).intersection(*generations[1:])
    return max(common, default=None)


def files_of(path: PathLike, size: int = 1, *, at_home: bool = False) -> list[Path]:
    """Files that so many processes keep a checkpoint in, or one that has a path of its own."""
    if size == 1 and not at_home:
        return [Path(path)]
    size = 1 if at_home else size
    ranks = ["", *(f".rank{rank}" for rank in range(1, size))]
    return [Path(f"{os.fspath(path)}{rank}{end}") for rank in ranks for end in ("", ".before")]


def own_files(path: PathLike, engine: Engine) -> list[Path]:
    """Files that this process keeps a checkpoint in: of several processes also the one before."""
    place = 2 * engine.rank if engine.open else 0
    return files_of(path, engine.size, at_home=not engine.open)[place : place + 2]


def hold(path: Path, owner: object) -> Callable[[], object]:
    """Keep other processes from a file while ``owner`` lives, or until what is returned is called.

    FileError where another has it. The lock is the system's, on a file beside, and ends with the
    process. Where there are no such locks (Windows, some network file systems) all get in.
    """
    target = check_writable(path, force=True)
    beside = target.with_name(f".{target.name}.lock")
    try:
        import fcntl

        lock = os.open(beside, os.O_RDWR | os.O_CREAT, 0o666)
    except (ImportError, OSError):  # writing the state will say why
        return lambda: None
    release = weakref.finalize(owner, _let_go, lock, beside, os.getpid())
    try:
        # It is the process's, and not the open file's, which forked processes have too.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(beside)):
            return release
    except (BlockingIOError, PermissionError):
        release.detach()
        os.close(lock)
        raise FileError(
            f"another run keeps its state in {path}; wait for its end, or name another file"
        ) from None
    except FileNotFoundError:
        pass
    except OSError:
        return release
    # Who had it has removed it meanwhile.
    release.detach()
    os.close(lock)
    return hold(path, owner)


def _let_go(lock: int, beside: Path, process: int) -> None:
    """Remove a lock, unless this is a process that was forked from its owner's."""
    if os.getpid() == process:
        with suppress(OSError):
            beside.unlink()
        os.close(lock)


class FileSaver:
    """Keeps the state in a file (`vpem.steps.recovery.Saver`).

    Where a run is spread over several processes, each has a file of its own (``FILE``,
    ``FILE.rank1``, ...) and keeps the one before as well (``FILE.before``), so that there is always
    an iteration that all have. Where processes are others' (`Engine.open`) each has a path of its
    own, and these files there.

    FileError if there is no file to resume from, it cannot be used, or one exists and neither
    ``resume`` nor ``force`` is said.
    """

    saved: State | None = None
    place = Place("the checkpoint", "run", RESTART)

    def __init__(
        self,
        path: PathLike,
        *,
        every: int = EVERY,  # iterations between checkpoints; the last of a run is always written
        resume: bool | str = False,  # "if-any": from the beginning where there is no file
        force: bool = False,  # replace a file that exists
        engine: Engine | None = None,  # the processes, which resume and end together; None: one
        gone_on: bool = False,  # the processes were more, and resume without some
    ) -> None:
        self.every = check_int("checkpoint_every", every, least=1)
        if resume not in (False, True, "if-any"):
            raise InputError(f"resume must be true, false or 'if-any', got {resume!r}")
        self.name = os.fspath(path)
        self._engine = engine = engine or Engine()
        self.size = engine.size
        self.path, *before = own_files(path, engine)
        self.before = before[0] if before else None
        self.signal: int | None = None
        """Number of the signal that asks the process to end; its handler sets this."""
        self.generation = 0
        """Iterations offered since the run began; all processes count alike."""
        self._facts: State = {}
        self._found: State | None = None
        self._gone_on = gone_on
        self.former: dict[int, State] = {}
        """States of a run of more processes, by generation; replaced after the first iteration."""
        check_ending(path, "checkpoints")
        self.release = hold(self.path, self)
        """Lets other processes have the file, once no more is written."""
        for file in (self.path, *before):
            check_writable(file, force or gone_on or bool(resume))
        if resume:
            self._find(resume == "if-any")

    def _largest(self, number: int) -> int:
        return int(self._engine.allreduce(np.array([number]), "max")[0])

    def _find(self, if_any: bool) -> None:
        """Read the newest generation that all processes have."""
        states: dict[int, tuple[Path, State]] = {}
        damaged: list[FileError] = []
        for file in (self.before, self.path):
            if file is not None and file.exists():
                try:
                    state = read_state(file)
                except FileError as error:
                    damaged.append(error)
                    continue
                check(CHECKPOINT, state, Place(f"the checkpoint {file}", advice=RESTART))
                if self._gone_on and state["facts"].get("processes") != self.size:
                    self.former[state["generation"]] = state["run"]
                    continue
                then = state["facts"].get("processes")
                if then != self.size:
                    raise InputError(
                        f"the checkpoint {self.name!r} belongs to a run in {then} process"
                        f"{'' if then == 1 else 'es'}, not in {self.size}; use as many, or ",
                        *RESTART,
                    )
                states[state["generation"]] = (file, state)
        if damaged and not states:
            raise damaged[0]
        for damage in damaged:
            warnings.warn(f"{damage}; the state beside it is used", VpemWarning, stacklevel=3)
        chosen = newest_common(self._engine.allgather(sorted(states)))
        if chosen is None:
            newest = self._largest(max(states, default=0))
            # All that can be lost is what is written first.
            if self.former or (if_any and newest <= self.every):
                return
            if self.size == 1:
                raise FileError(
                    f"the checkpoint {self.name!r} does not exist; leave ",
                    Setting("resume"),
                    " out to begin, or give ",
                    Setting("resume", "if-any"),
                )
            raise FileError(
                f"the {self.size} processes have no checkpoint {self.name!r} in common; bring the "
                "files of all back to where they were, or begin with ",
                Setting("force", True),
                " and without ",
                Setting("resume"),
            )
        file, self._found = states[chosen]
        self.place = Place(f"the checkpoint {file}", "run", RESTART)
        self.generation = chosen
        if self.before is not None and file == self.before:
            # What others do not have is given up: it must not push out what all have.
            os.replace(self.before, self.path)

    @property
    def known_as(self) -> str:
        """What the run is known by, of the state found or its own; "" before either."""
        facts = self._facts or (self._found or {}).get("facts", {})
        fixed = {name: fact for name, fact in facts.items() if name not in MAY_DIFFER}
        return checksum(json.dumps(take_apart(fixed)[0], sort_keys=True)) if fixed else ""

    def begin(self, facts: State) -> None:
        """Raise InputError if the state found belongs to a run with other facts than these."""
        facts = {"vpem": vpem.__version__, **facts, "processes": self.size}
        self._facts = facts
        if self._found is None:
            return
        then = self._found["facts"]
        for name in dict.fromkeys([*facts, *then]):
            one, other = then.get(name), facts.get(name)
            since = name not in then and is_default(name, other)
            if name in MAY_DIFFER or one == other or since:
                continue
            change = f" was {one!r}, now it is {other!r}"
            if all(isinstance(fact, str) and fact.startswith("sum ") for fact in (one, other)):
                change = " is not the same"
            raise InputError(
                f"the checkpoint {self.name!r} belongs to another run: ",
                named(name),
                f"{change}; give what it started with, or ",
                *RESTART,
            )
        self.saved = self._found["run"]
        self._found = None

    def offer(self, state: Callable[[], State], *, last: bool = False) -> None:
        """Write the state if it is due, the last of any process, or one is to end."""
        self.generation += 1
        signal, is_last = divmod(self._largest(2 * (self.signal or 0) + last), 2)
        if signal or is_last or self._gone_on or self.generation % self.every == 0:
            self.write(state())
        if signal:
            self.signal = signal
            # The first to leave may end the job: not before all have written.
            self._engine.barrier()
            raise Interrupted(self.name, self.generation, self.signal)

    def write(self, state: State) -> None:
        whole = {"generation": self.generation, "facts": self._facts, "run": state}
        write_state(self.path, whole, None if self._gone_on else self.before)
        if self._gone_on and self.before is not None:
            self.before.unlink(missing_ok=True)
        self._gone_on = False


ENDINGS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a run."""


@contextmanager
def handling(note: Callable[[int, object], object]) -> Iterator[None]:
    """Call a function at `ENDINGS`, in place of what they do; only the main thread can."""
    main = threading.current_thread() is threading.main_thread()
    handlers = {one: signal.signal(one, note) for one in ENDINGS if main}
    try:
        yield
    finally:
        for one, handler in handlers.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)


def is_default(name: str, value: object) -> bool:
    """Whether a setting has a default value: states from before there was such a setting go on."""
    records: list[type[Settings]] = [Settings]
    for record in records:
        records += record.__subclasses__()
    known = [record.settings_by_name[name] for record in records if name in record.settings_by_name]
    return any(setting.default == value for setting in known)


def describe_run(recipe: str, X: Any, row_weights: Any, network: Any, **options: object) -> State:
    """Describe by algorithm, data, weights (M,), network and options what must stay on resuming."""
    options["init"] = start_facts(options.get("init"))
    if "reg_covar" in options:
        # States of older runs are in the data's units.
        options["units of fitting"] = "standard deviations"
    return {
        "algorithm": recipe,
        "rows": int(X.shape[0]),
        "features": int(X.shape[1]),
        "what the data hold": checksum(X),
        "what the sample weights are": checksum(row_weights),
        **({} if network is None else network_facts(network)),
        **options,
    }


def describe_steps(step_size: object) -> str | float:
    """Describe a step size: a number or its name; one function is taken for another."""
    return step_size if isinstance(step_size, str | float | int) else "a function"


def start_facts(init: object) -> Any:
    """Describe where a run starts: a name, or a sum of what was given."""
    if init is None or isinstance(init, str):
        return init
    if isinstance(init, Density):
        return checksum(*leaves(init.arrays()), *init.blocks.features)
    return checksum(np.asarray(init))


def network_facts(network: Any) -> State:
    """Describe what a network does (`vpem.sums.connect.Network`)."""
    blocks, total, faults = network.blocks, network.total, network.faults
    graph = network.graph
    when = [one for one in (graph.arrows, graph.turns) if one is not None]
    return {
        "who is joined in the graph": checksum(graph.n_nodes, np.asarray(graph.edges), *when),
        "who holds which features": checksum(*blocks.features, blocks.roots, blocks.agents),
        **network.describe("hops", "rounds", "weights", "acceleration", "compress", "secure_sum"),
        "link_failure": 0.0 if faults is None else faults.link_failure,
        "agent_dropout": 0.0 if faults is None else faults.agent_dropout,
        "stragglers": 0.0 if faults is None else faults.stragglers,
        "consensus path": getattr(total, "path", None),
        "graph_seed": getattr(total, "seed", None),
    }


LOOKED_AT = 1 << 26
"""Bytes of data that a checksum looks at; of larger data runs of rows all over them."""

RUNS_LOOKED_AT = 64


def checksum(*values: Any) -> str:
    """Return a sum that tells arrays, or whatever has a `repr` of its own, from others.

    Of arrays beyond 64 MB that much is looked at, in runs of rows from all over them.
    """
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            digest.update(repr(value).encode())
            continue
        digest.update(f"{value.shape} {value.dtype}".encode())
        n_rows = value.shape[0] if len(value.shape) else 0
        n_bytes = int(np.prod(value.shape, dtype=float)) * value.dtype.itemsize
        if n_bytes <= LOOKED_AT:
            digest.update(np.ascontiguousarray(value[:] if n_rows else value).tobytes())
            continue
        length = max(1, LOOKED_AT * n_rows // (n_bytes * RUNS_LOOKED_AT))
        for begin in np.linspace(0, n_rows - length, RUNS_LOOKED_AT).astype(int):
            digest.update(np.ascontiguousarray(value[begin : begin + length]).tobytes())
    return f"sum {digest.hexdigest()}"
