"""What the other members of a study hear of why one ends."""

from __future__ import annotations

from pathlib import Path

PRIVATE = "it cannot use its data or its machine; ask there"
"""Of most errors: what a member's files hold stays there."""

INTERRUPTED = "it was interrupted"
UNFORESEEN = "something that nobody has foreseen; ask there"


def told_outside(error: Exception, sentence: str | None, code: int, name: str) -> str:
    """Return what others hear of a member's error, whose process ends with a code.

    ``sentence`` is what its user is told; None: nobody has foreseen it.
    """
    from vpem.engines.engine import StalledError
    from vpem.engines.tls.faults import Fault
    from vpem.engines.tls.news import Parted, Returned
    from vpem.files.studies.policy import PolicyError

    if sentence is None:
        return UNFORESEEN
    if isinstance(error, PolicyError):
        return error.elsewhere(name)
    if code > 128 and not isinstance(error, Parted):
        return INTERRUPTED  # its sentence says what was kept there
    # In what two members do not agree all may know; proxies are one's own.
    links = isinstance(error, Fault) and error.kind != "proxy"
    return sentence if links or isinstance(error, Parted | Returned | StalledError) else PRIVATE


def unforeseen(error: Exception) -> str:
    """Say where something happened that nobody has foreseen, without a word of what it was about.

    It is as likely to be of what another member has sent as of this program.
    """
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    place = "/".join(Path(where.filename).parts[-3:])
    return (
        f"{type(error).__name__} in {place}, line {where.lineno}: another member has sent what "
        "none does, or this is a defect of vpem; report it with what PYTHONDEVMODE=1 prints"
    )
