"""Names that a user gave to models, kept in a small file of the user's settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from vivace.model.errors import ModelError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


def file() -> Path:
    """$XDG_CONFIG_HOME/vivace/aliases.json, by default under ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "vivace" / "aliases.json"


def read() -> dict[str, str]:
    """Targets (an absolute path, or a name of the catalogue or the hub) by name. Raises ModelError for a bad file."""
    try:
        data = json.loads(file().read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        raise ModelError(f"{file()}: cannot be read as JSON; correct or delete it") from None
    if not isinstance(data, dict) or not all(isinstance(target, str) for target in data.values()):
        raise ModelError(f"{file()}: must be an object of names and models; correct or delete it")
    return data


def add(name: str, target: str) -> None:
    """Gives a name, or gives it anew. Raises ModelError for what can be no name."""
    if not _NAME.fullmatch(name) or name.endswith((".gguf", ".safetensors")):
        raise ModelError(f"{name!r:.80} can be no alias: letters, digits, '.', '-' and '_', not the name of a file")
    _write(read() | {name: target})


def remove(name: str) -> None:
    _write({known: target for known, target in read().items() if known != name})


def _write(aliases: Mapping[str, str]) -> None:
    import tempfile

    file().parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole, so that a crash leaves the old one. ASCII, which any path and locale allows.
    number, part = tempfile.mkstemp(dir=file().parent)
    try:
        with open(number, "w") as out:
            out.write(json.dumps(dict(sorted(aliases.items())), indent=1) + "\n")
        Path(part).replace(file())
    except BaseException as error:
        Path(part).unlink(missing_ok=True)
        if isinstance(error, OSError):  # that of a write does not say where
            error.filename = file()
        raise
