"""`vivace COMMAND ...`: finds the command, runs it, and turns what goes wrong into one line and an exit status."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from vivace.cli.entry import INTERRUPTED
from vivace.cli.parser import UsageError, nearest

# Name: (module, what it does). The order is that of the help.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("vivace.cli.run", "complete one prompt"),
    "chat": ("vivace.cli.chat", "talk with a model"),
    "models": ("vivace.cli.models", "list, fetch and describe models"),
    "bench": ("vivace.cli.bench", "measure speed, alone or against other engines"),
    "ops": ("vivace.cli.ops", "test or measure the kernels"),
    "doctor": ("vivace.cli.doctor", "this machine: processor, limits, what is installed"),
    "version": ("vivace.cli.version", "print the version"),
}

DONE, FAILED, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit status. $VIVACE_DEBUG shows tracebacks of expected errors too."""
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
        if os.environ.get("VIVACE_DEBUG"):
            raise
        if isinstance(error, (RuntimeError, TypeError)) and not type(error).__module__.startswith("vivace"):
            raise  # not one of ours: a fault of the program, worth a traceback
        _complain(_one_line(error))
        return FAILED


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return DONE if argv else USAGE
    name, *rest = argv
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        raise UsageError(f"unknown command {name!r}{nearest(name, COMMANDS)}", "vivace")
    module = import_module(COMMANDS[name][0])
    status: int = module.run(module.parser().parse(rest))
    return status


def _help() -> str:
    lines = ["usage: vivace COMMAND [OPTIONS]", "", "commands:"]
    lines += [f"  {name:9}{what}" for name, (_, what) in COMMANDS.items()]
    lines += [
        "",
        "vivace COMMAND --help shows the options of a command.",
        "example: vivace run smollm2-135m -p 'Hello'",
    ]
    return "\n".join(lines)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return str(error) or "out of memory: choose a smaller model or --context"
    return " ".join(str(error).split()) or type(error).__name__


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"vivace: error: {message}" if message != "interrupted" else "vivace: interrupted", file=sys.stderr)
