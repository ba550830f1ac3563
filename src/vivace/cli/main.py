"""`vivace COMMAND ...`: finds the command, runs it, and turns what goes wrong into one line and an exit status."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from vivace.cli.commands import find, help_text
from vivace.cli.entry import INTERRUPTED
from vivace.cli.help import asked
from vivace.cli.parser import UsageError
from vivace.model.errors import UnknownModel

DONE, FAILED, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit status."""
    if sys.stderr is None:  # closed by the caller; so is standard output below
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  as long as the process
    if sys.stdout is None:
        _complain("standard output is closed: send it to a file, or to /dev/null")
        return FAILED
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except UsageError as error:
        _complain(f"{error}\ntry `{error.command} --help`")
        return USAGE
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer has nowhere to go; the interpreter would try to write it once more.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _complain("standard output was closed")
        return FAILED
    except (ValueError, OSError, RuntimeError, MemoryError, TypeError) as error:
        if isinstance(error, UnknownModel):
            _complain(f"{error}\ntry `vivace models`")
            return USAGE
        if isinstance(error, (RuntimeError, TypeError)) and not type(error).__module__.startswith("vivace"):
            raise  # not one of ours: a fault of the program, worth a traceback
        _complain(_one_line(error))
        return FAILED


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "--help=all", "help"):
        print(help_text(argv[1:] if argv and argv[0] == "help" else ()))
        return DONE if argv else USAGE
    words = ["version", *argv[1:]] if argv[0] == "--version" else argv
    if len(words) == 2 and asked(words[1:]) == "":
        print(help_text(words[:1]))
        return DONE
    command, rest = find(words)
    args = command.parser().parse(rest)
    if getattr(args, "offline", False):  # for other engines' processes too
        os.environ |= {"VIVACE_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    try:
        return command.run(args)
    except (Exception, KeyboardInterrupt):
        if args.verbose:
            import traceback

            traceback.print_exc()
        raise


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return str(error) or "out of memory: choose a smaller model or --context"
    return " ".join(str(error).split()) or type(error).__name__


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"vivace: error: {message}" if message != "interrupted" else "vivace: interrupted", file=sys.stderr)
