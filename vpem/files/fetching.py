"""Open datasets: downloaded once or read from a copy, checked, and made into a dataset."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

import numpy as np

from vpem.checks import Floats
from vpem.errors import FileError, InputError, Setting, VpemWarning, check_choice
from vpem.files.datasets import Dataset
from vpem.files.opening import check_readable

CACHE = "VPEM_CACHE"  # environment variable: the folder where downloads are kept
LARGEST = 1 << 24  # bytes of a file, packed or not, beyond which it is none of these datasets
TIMEOUT = 30  # seconds without an answer after which a download is given up


@dataclass(frozen=True)
class OpenData:
    """A dataset that anybody may download."""

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
    """Return an open dataset of `OPEN`, one agent a feature, and what is known of its origin.

    A copy that is ``given`` is read instead of a download, with a warning if it is another file
    whose columns fit. Downloads are kept in ``cache``: by default VPEM_CACHE, or the user's cache.
    """
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

    pooch.get_logger().setLevel("WARNING")
    try:
        saved = pooch.retrieve(
            entry.url,
            known_hash=None,  # `digest` checks the CSV file inside
            fname=file.name,
            path=file.parent,
            downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
        )
    except OSError as error:
        _explain(error, entry, file.parent)
    return Path(saved)


def _explain(error: OSError, entry: OpenData, folder: Path) -> NoReturn:
    import requests

    if not isinstance(error, requests.RequestException):
        raise FileError(
            f"downloads cannot be kept in {folder} ({error.strerror or error}); name another "
            "folder with ",
            Setting("cache"),
        ) from error
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
