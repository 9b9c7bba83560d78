"""Data to begin with: small real datasets that come with the package, and open ones to download.

Or draws from a random Gaussian mixture whose components overlap as much as one asks.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Doubles, Floats, check_int, check_memory
from vpem.errors import FileError, InputError, Setting, VpemWarning, check_choice
from vpem.files.hdf5 import atomic_write, check_writable
from vpem.files.opening import PathLike, check_readable
from vpem.files.temporaries import check_ending, ending_of, new_folder
from vpem.network.partition import contiguous

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset


@dataclass(frozen=True)
class Example:
    file: str
    rows: int
    columns: int  # features; of tables all columns
    what: str  # what was measured
    source: str
    licence: str


_UCI = "UCI Machine Learning Repository"

EXAMPLES = {
    "breast_cancer": Example(
        "breast_cancer.h5", 569, 30, "cell nuclei of breast masses; labels, 10 agents",
        f"W. H. Wolberg, W. N. Street, O. L. Mangasarian, {_UCI}", "CC BY 4.0",
    ),
    "wine": Example(
        "wine.h5", 178, 13, "wines of three growers; labels",
        f"M. Forina and others, S. Aeberhard, {_UCI}", "CC BY 4.0",
    ),
    "heart": Example(
        "heart.csv", 303, 15, "patients with chest pain: numbers and categories; a diagnosis",
        f"A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, {_UCI}", "CC BY 4.0",
    ),
    "oxford_boys": Example(
        "oxford_boys.csv", 234, 3, "heights of 26 boys, nine each; for vpem saem",
        "H. Goldstein (1987), table Oxboys of R's nlme", "GPL 2 or later (nlme)",
    ),
    "theophylline": Example(
        "theophylline.csv", 132, 5, "a drug in 12 subjects over 24 h; for vpem saem",
        "R. Upton, table Theoph of R's datasets", "GPL 2 or later (R)",
    ),
    "notices": Example(
        "notices.csv", 4920, 3, "240 notices of a village, simulated; for vpem saem --model lda",
        "data/scripts/make_notices.py", "that of vpem",
    ),
}  # fmt: skip
"""The datasets, by name."""


def folder_of_examples() -> Path:
    """Return where they lie: in the installed package, or in the folder ``data/`` of a clone."""
    package = Path(__file__).parents[1]
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "data"


def example_path(name: str) -> Path:
    """Return the file of a small real dataset that comes with vpem.

    Parameters
    ----------
    name : str
        ``"breast_cancer"`` (569 rows, 30 features), ``"wine"`` (178 rows, 13 features) or
        ``"heart"`` (303 rows; numbers and categories), for `read_dataset`; ``"oxford_boys"`` (26
        individuals) or ``"theophylline"`` (12 individuals), for `read_individuals`.

    Returns
    -------
    Path
        A file to read. `vpem data copy` makes a copy to write to.

    Raises
    ------
    InputError
        If there is no such dataset.

    Notes
    -----
    Sources and licences: ``vpem data list``, and the file ``README.md`` beside them.
    """
    check_choice("name", name, EXAMPLES)
    return folder_of_examples() / EXAMPLES[name].file


MOST_FILES = 10_000
"""Most files of a folder that are searched for a name like that of a missing one."""


def hint_for(missing: Path) -> str | None:
    """Return a hint for a file that does not exist: a similar name there, or an example's."""
    names: list[str] = []
    with suppress(OSError), os.scandir(missing.parent) as entries:
        names = [entry.name for entry in islice(entries, MOST_FILES)]
    # Without endings, which would make all names alike.
    stems = {name.partition(".")[0]: name for name in sorted(names, reverse=True)}
    for near in get_close_matches(missing.name.partition(".")[0], stems, n=1, cutoff=0.75):
        return f"did you mean {str(missing.with_name(stems[near]))!r}?"
    for name in (name for name, example in EXAMPLES.items() if example.file == missing.name):
        if missing.parent == Path("data"):
            return "'vpem data copy' writes it"
        if missing.parent.is_dir():
            return f"'vpem data copy {name} -o {quote(str(missing))}' writes it"
    return None


def copies(name: str | None, output: PathLike | None = None) -> dict[Path, Path]:
    """Return by targets the sources of a copy of an example, or of all (None) with their licences.

    By default one goes to this folder, under its own name, and all to the folder data.
    """
    home = folder_of_examples()
    if name is None:
        names = [*(example.file for example in EXAMPLES.values()), "README.md"]
        return {Path(output or "data", file): home / file for file in names}
    file = EXAMPLES[check_choice("dataset", name, EXAMPLES)].file
    target = Path(output or file)
    return {target / file if output and target.is_dir() else target: home / file}


def copy_files(sources: Mapping[Path, Path], force: bool = False) -> None:
    """Copy files by their targets, all or none; to a .csv file as features, then labels."""
    for target, source in sources.items():
        if ending_of(source) == ".csv" and ending_of(target) not in (".csv", ""):
            raise InputError(f"{source.stem} is copied to a .csv file, got {os.fspath(target)}")
    folder = next(iter(sources)).parent
    with new_folder(folder, *sources) if len(sources) > 1 else nullcontext():
        for target in sources:
            check_writable(target, force)
        for target, source in sources.items():
            _copy(source, target, force)


def _copy(source: Path, target: Path, force: bool) -> None:
    whole = ending_of(source) not in (".h5", ".hdf5")
    if whole or check_ending(target, "results") in (".h5", ".hdf5"):
        with atomic_write(target, force) as temporary:
            shutil.copyfile(source, temporary)
        return
    from vpem.files.data import read_dataset
    from vpem.files.results import write_columns

    dataset = read_dataset(source)
    columns = dict(zip(dataset.feature_names, dataset.X.T, strict=True))
    if dataset.labels is not None:
        columns["label"] = dataset.labels
    write_columns(target, columns, "table", force)


CACHE = "VPEM_CACHE"  # environment variable: the folder where downloads are kept
LARGEST = 1 << 24  # bytes of a file, packed or not, beyond which it is none of these datasets
TIMEOUT = 30  # seconds without an answer after which a download is given up


@dataclass(frozen=True)
class OpenData:
    title: str
    url: str  # a zip file
    member: str  # its CSV file, in any folder, without heads; labels come last
    sha256: str  # of the CSV file, see `digest`
    feature_names: tuple[str, ...]
    labels: tuple[int, ...]  # what the last column holds
    source: str
    licence: str


OPEN: dict[str, OpenData] = {
    "htru2": OpenData(
        title="HTRU2",
        url="https://archive.ics.uci.edu/static/public/372/htru2.zip",
        member="HTRU_2.csv",
        sha256="770932f2a324cb5f0b5ef2a33854fa8e4f47b9cd784b9f7fe60903fa63c8c294",
        feature_names=(
            "profile mean", "profile sd", "profile kurtosis", "profile skewness",
            "DM-SNR mean", "DM-SNR sd", "DM-SNR kurtosis", "DM-SNR skewness",
        ),
        labels=(0, 1),
        source="R. Lyon, HTRU2, UCI Machine Learning Repository, "
        "https://doi.org/10.24432/C5DK6R; Lyon et al. 2016, "
        "https://doi.org/10.1093/mnras/stw656",
        licence="CC BY 4.0",
    ),
}  # fmt: skip
"""By the name that `vpem data fetch` takes."""


def digest(content: bytes) -> str:
    """Return the SHA-256 of a CSV file, whatever ends its lines."""
    return hashlib.sha256(_lines(content)).hexdigest()


def fetch(
    name: str,
    given: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> tuple[Dataset, dict[str, str]]:
    """Return an open dataset of `OPEN`, and what is known of its origin.

    A copy that is ``given`` is read instead of a download, with a warning if it is another file
    whose columns fit. Downloads are kept in ``cache``: by default VPEM_CACHE, or the user's cache.
    """
    from vpem.files.datasets import Dataset

    entry = OPEN[check_choice("dataset", name, OPEN)]
    path = download(entry, cache) if given is None else check_readable(given)
    try:
        content = _content(path, entry)
        sha256 = digest(content)
        if sha256 != entry.sha256 and given is None:
            raise FileError(
                f"{entry.url} holds another {entry.member} than the one known: SHA-256 of its "
                f"lines {sha256[:16]}... instead of {entry.sha256[:16]}...; inspect it, and if you "
                "trust it, give it with ",
                Setting("given"),
            )
    except FileError:
        if given is None:
            path.unlink(missing_ok=True)  # so that the next time it is downloaded again
        raise
    table = _table(content, entry, path)
    if sha256 != entry.sha256:
        warnings.warn(
            f"{path} differs from the known {entry.title} (SHA-256 of its lines {sha256[:16]}... "
            f"instead of {entry.sha256[:16]}...), but its columns fit: its {len(table)} rows are "
            "used as they are",
            VpemWarning,
            stacklevel=2,
        )
    d = len(entry.feature_names)
    dataset = Dataset(
        np.ascontiguousarray(table[:, :d]),
        entry.feature_names,
        labels=table[:, d].astype(np.int64),
        source=str(path),
    )
    terms = {} if sha256 != entry.sha256 else {"licence": entry.licence}
    source = entry.source if terms else f"a file that is not the known {entry.title}"
    return dataset, {"source": source, **terms, "sha256": sha256}


def kept_in(entry: OpenData, cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the file that a dataset's download is kept in, whether it is there already or not."""
    try:
        import pooch
    except ImportError as error:
        raise InputError(
            "downloads are made by pooch, which is not installed: pip install 'vpem[fetch]', or "
            f"give a copy of {entry.member} with ",
            Setting("given"),
        ) from error
    folder = Path(cache or os.environ.get(CACHE) or pooch.os_cache("vpem")).expanduser()
    return folder / entry.url.rsplit("/", 1)[-1]


def download(entry: OpenData, cache: str | os.PathLike[str] | None = None) -> Path:
    """Download a dataset's zip file unless it is there already, and return where it is kept."""
    file = kept_in(entry, cache)
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    try:
        saved = pooch.retrieve(
            entry.url,
            known_hash=None,  # `digest` checks the CSV file inside
            fname=file.name,
            path=file.parent,
            downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
        )
    except requests.RequestException as error:
        reason = type(error).__name__
        if isinstance(error, requests.Timeout):
            reason = f"no answer within {TIMEOUT} seconds"
        elif isinstance(error, requests.exceptions.ChunkedEncodingError):
            reason = "the connection broke off"
        elif isinstance(error, requests.ConnectionError):
            reason = "no connection"
        elif error.response is not None:
            reason = f"the server answered {error.response.status_code}"
        raise FileError(
            f"{entry.url} could not be downloaded: {reason}; get {entry.member} by other means and "
            "give it with ",
            Setting("given"),
        ) from error
    except OSError as error:
        raise FileError(
            f"downloads cannot be kept in {file.parent} ({error.strerror or error}); name another "
            "folder with ",
            Setting("cache"),
        ) from error
    return Path(saved)


def _content(path: Path, entry: OpenData) -> bytes:
    """Return the CSV file: the file itself, or the one in a zip file, which is never unpacked."""
    try:
        if path.stat().st_size > LARGEST:
            raise FileError(
                f"{path} is larger than {LARGEST >> 20} MB, far more than {entry.title}; give its "
                f"{entry.member}"
            )
        if not zipfile.is_zipfile(path):
            return path.read_bytes()
        with zipfile.ZipFile(path) as packed:
            names = [
                info
                for info in packed.infolist()
                if PurePosixPath(info.filename).name.lower() == entry.member.lower()
            ]
            if len(names) != 1:
                raise FileError(
                    f"{path} holds {len(names) or 'no'} files {entry.member}, not one; give "
                    f"the {entry.title} zip, or the CSV file itself"
                )
            with packed.open(names[0]) as member:
                content = member.read(LARGEST + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise FileError(f"{path} is a zip file that cannot be read: {error}") from error
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > LARGEST:
        raise FileError(f"{path} holds far more than {entry.title}, and is not unpacked")
    return content


def _lines(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n")


def _table(content: bytes, entry: OpenData, path: Path) -> Floats:
    """Return all columns (M, d + 1), the labels last, or say why they do not fit."""
    columns = len(entry.feature_names) + 1
    try:
        text = _lines(content).decode("ascii")
        if not text.strip():
            raise ValueError("it is empty")
        table = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2, comments=None)
        if table.shape[1] != columns:
            raise ValueError(f"its rows have {table.shape[1]} columns")
        if not np.isfinite(table).all():
            raise ValueError("some values are not finite")
        if not np.isin(table[:, -1], entry.labels).all():
            raise ValueError("the last column holds other values")
    except ValueError as error:
        reason = str(error).split("\n")[0].split("; use ")[0].removesuffix(".")
        raise FileError(
            f"{path} is not {entry.title}: that has {columns} columns of numbers without heads, "
            f"the last {' or '.join(map(str, entry.labels))}, but {reason}; for another table "
            "take 'vpem data import'"
        ) from error
    return table


BLOCK_ROWS = 1 << 15
PROBES = 20_000  # points at which the overlap of a candidate mixture is estimated
STEPS = 40  # of bisection
SPREAD = 4.0  # the largest variance along an axis of the common shape; the least is 1 / SPREAD
SHIFT = 0.5  # root mean square distance of the means from the origin, at scale 1
BEND = 1.0  # size of the differences between the logarithms of the covariances, from scale 1 on


def simulate(
    n_samples: int,
    n_features: int,
    n_components: int,
    *,
    overlap: float = 0.05,  # in (0, 1 - largest weight); unused with one component
    n_agents: int | None = None,  # of contiguous features
    weights: ArrayLike | None = None,  # (K,); equal by default
    seed: int = 0,
) -> tuple[Dataset, dict[str, Doubles]]:
    """Draw a dataset from a random mixture with a chosen overlap; the truth is returned beside it.

    The overlap is the Bayes error of the mixture: the probability that the most probable component
    of an example, under the true parameters, is not the one it was drawn from, ``E[1 - max_k P(k |
    x)]``. Means lie in random directions, and covariances are full: a random common shape, bent a
    little differently for each component. One scale moves the means apart (and, up to 1, makes the
    covariances different); bisection finds the scale with this error, estimated at the same seeded
    points for every candidate.

    Truth: ``weights`` (K,), ``means`` (K, d), ``covariances`` (K, d, d), estimated ``overlap`` ().
    """
    from vpem.files.datasets import Dataset, default_names

    n_samples = check_int("n_samples", n_samples, least=1)
    n_features = check_int("n_features", n_features, least=1)
    n_components = check_int("n_components", n_components, least=1)
    seed = check_int("seed", seed, least=0)
    check_memory(16 * n_components * n_features**2, "the covariances of the mixture")
    pi = np.full(n_components, 1.0 / n_components)
    if weights is not None:
        pi = np.asarray(weights, dtype=np.float64)
        good = pi.shape == (n_components,) and bool(np.all(pi > 0))
        if not good or not np.isclose(pi.sum(), 1.0, rtol=0, atol=1e-9):
            raise InputError(
                f"weights must be {n_components} positive numbers that sum to 1, got {weights!r}"
            )
        pi = np.asarray(pi / pi.sum())
    if n_components > 1:
        # To the accuracy of the estimate.
        most = 1.0 - float(pi.max())
        number = isinstance(overlap, int | float | np.number) and not isinstance(overlap, bool)
        if not number or not 0.0 < overlap < most * (1.0 - 1e-6):
            raise InputError(
                Setting("overlap"),
                f" must lie above 0 and below {most:.4g} (one minus the largest weight), got "
                f"{overlap!r}",
            )
    partition = None if n_agents is None else contiguous(n_features, n_agents)
    check_memory(8 * n_samples * n_features, f"a dataset of {n_samples} x {n_features}")
    shape_seed, probe_seed, draw_seed = np.random.SeedSequence(int(seed)).spawn(3)
    family = _family(n_components, n_features, np.random.default_rng(shape_seed))
    error = 0.0
    scale = 1.0
    if n_components > 1:
        # As many of each component as its weight says, and the same noise at every scale.
        ends = np.round(np.cumsum(pi) * PROBES).astype(np.intp)
        labels = np.searchsorted(ends, np.arange(PROBES), side="right").clip(max=pi.size - 1)
        probes = labels.astype(np.intp)
        probe_noise = np.random.default_rng(probe_seed).standard_normal((PROBES, n_features))

        def error_at(scale: float) -> float:
            means, roots, _ = family(scale)
            X = _place(probes, probe_noise, means, roots)
            logs = np.empty((PROBES, pi.size))
            for k in range(pi.size):
                _, log_root = np.linalg.slogdet(roots[k])
                white = (X - means[k]) @ np.linalg.inv(roots[k])
                logs[:, k] = np.log(pi[k]) - log_root - 0.5 * np.einsum("ij,ij->i", white, white)
            odds = np.exp(logs - logs.max(axis=1, keepdims=True))
            total = odds.sum(axis=1)
            return float(np.mean((total - 1.0) / total))  # of 1 - max_k P(k | x)

        scale = _bisect(error_at, overlap)
        error = error_at(scale)
    means, roots, common = family(scale)
    means, roots = means @ common, roots @ common
    rng = np.random.default_rng(draw_seed)
    labels = rng.choice(n_components, size=n_samples, p=pi)
    X = np.empty((n_samples, n_features))
    for start in range(0, n_samples, BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, n_samples))
        noise = rng.standard_normal((rows.stop - rows.start, n_features))
        X[rows] = _place(labels[rows], noise, means, roots)
    source = f"simulated with seed {seed}"
    dataset = Dataset(
        X, default_names(n_features), labels=labels, partition=partition, source=source
    )
    covariances = np.swapaxes(roots, 1, 2) @ roots
    truth = {
        "weights": pi,
        "means": means,
        "covariances": (covariances + np.swapaxes(covariances, 1, 2)) / 2.0,
        "overlap": np.array(error),
    }
    return dataset, truth


def _family(
    n_components: int, n_features: int, rng: np.random.Generator
) -> Callable[[float], tuple[Doubles, Doubles, Doubles]]:
    """Draw a family of mixtures and return the map from its scale to a member.

    The map gives the means (K, d) and the roots ``R`` (K, d, d) of the covariances ``R^T R``
    before the common shape is applied, and the root (d, d) of the common shape.
    """
    axes, _ = np.linalg.qr(rng.standard_normal((n_features, n_features)))
    variances = SPREAD ** rng.uniform(-1.0, 1.0, n_features)
    common = np.sqrt(variances)[:, None] * axes.T
    directions = SHIFT * rng.standard_normal((n_components, n_features)) / np.sqrt(n_features)
    # Symmetric, of entries so small that the covariances alone never tell components apart.
    bends = rng.standard_normal((n_components, n_features, n_features))
    bends = BEND * (bends + np.swapaxes(bends, 1, 2)) / (2.0 * n_features)
    logs, frames = np.linalg.eigh(bends)

    def member(scale: float) -> tuple[Doubles, Doubles, Doubles]:
        halves = np.exp(min(scale, 1.0) * logs)
        roots = (frames * halves[:, None, :]) @ np.swapaxes(frames, 1, 2)
        return scale * directions, roots, common

    return member


def _place(labels: NDArray[np.intp], noise: Doubles, means: Doubles, roots: Doubles) -> Doubles:
    """Turn standard normal rows into draws from the components that the labels name."""
    X = np.empty_like(noise)
    for k in range(means.shape[0]):
        rows = labels == k
        X[rows] = noise[rows] @ roots[k] + means[k]
    return X


def _bisect(error_at: Callable[[float], float], overlap: float) -> float:
    """Return the scale at which the error is ``overlap``; it falls as the scale grows."""
    low = high = 1.0
    while error_at(high) > overlap:
        high *= 2.0
    while error_at(low) < overlap:
        low /= 2.0
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if error_at(middle) > overlap:
            low = middle
        else:
            high = middle
        if high - low < 1e-4 * high:
            break
    return 0.5 * (low + high)
