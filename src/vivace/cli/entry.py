"""The process `vivace`: Ctrl-C ends it quietly, also while Python is still importing the rest of it."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper

TYPE_CHECKING = False  # importing `typing` takes a while, in which Ctrl-C would show a traceback
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130  # the status that shells give


def main() -> int:
    """Runs the command line of this process and returns its exit status."""
    leave_on_interrupt()
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, TextIOWrapper):  # and not closed by the caller
            stream.reconfigure(encoding="utf-8", errors=errors)  # whatever the locale: text of models is Unicode
    from vivace.cli.main import main as run

    return run()


def leave_on_interrupt() -> None:
    """From now on Ctrl-C ends the process at once; an exception might be lost, or shown, on its way."""
    signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"vivace: interrupted\n")
    finally:
        os._exit(INTERRUPTED)
