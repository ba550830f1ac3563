"""What lies here of the models that can be had, and removing it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vivace.model import aliases, catalogue
from vivace.model.errors import ModelError
from vivace.model.hub import HubModel

_QUANT = re.compile(r"[._-](I?Q\d\w*|B?F(?:16|32))(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class Listed:
    """A name that MODEL may be. `size`: bytes of the whole model; `partial`: bytes that a cut-off pull has left."""

    name: str
    kind: str  # catalogue, hub or alias
    size: int
    path: Path | None
    partial: int = 0
    licence: str = ""
    about: str = ""


def listing() -> list[Listed]:
    """The catalogue, then what was fetched from the hub, then the user's aliases."""
    return [*_of_catalogue(), *_of_hub(), *_of_aliases()]


def remove(name: str) -> tuple[list[Path], int]:
    """Deletes an alias, or what was fetched of a model, cut-off pulls too; what is gone, and how many bytes that frees.

    `user/repo` means all that is here of the repository. Raises ModelError when there is nothing to delete.
    """
    if name in aliases.read():
        aliases.remove(name)
        return [], 0
    of_hub = catalogue.hub_model(name)
    if of_hub is not None:
        gone = _parts_of_hub(of_hub)
    elif Path(name).exists() and name not in {entry.name for entry in catalogue.entries()}:
        raise ModelError(f"{name} is a file of yours: only what was fetched is removed, and aliases")
    else:
        entry = catalogue.find(name)
        gone = [path for path in (catalogue.folder() / entry.file, catalogue.parts_folder(entry)) if path.exists()]
    if not gone:
        raise ModelError(f"{name} is not here")
    freed = sum(map(size_of, gone))
    for path in gone:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if of_hub is not None:
        _sweep(of_hub.place(catalogue.folder()))
    return gone, freed


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; 0 for what is not there."""
    files: Iterable[Path] = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _of_catalogue() -> list[Listed]:
    return [
        Listed(
            entry.name,
            "catalogue",
            entry.size,
            catalogue.present(entry),
            size_of(catalogue.parts_folder(entry)),
            entry.licence,
            entry.about,
        )
        for entry in catalogue.entries()
    ]


def _of_hub() -> list[Listed]:
    found = []
    for place in sorted((catalogue.folder() / "hub").glob("*/*")):
        repo, partial = f"{place.parent.name}/{place.name}", size_of(place / ".fetching")
        ggufs: dict[str, list[Path]] = {}
        for path in sorted(place.glob("*.gguf")):
            quant = _quant(path.name)
            ggufs.setdefault(f"{repo}:{quant}" if quant else repo, []).append(path)
        for name, paths in ggufs.items():
            model = HubModel.parse(name)
            here = model.present(catalogue.folder()) if model else None
            found.append(Listed(name, "hub", sum(map(size_of, paths)), here))
        whole = (place / ".whole").exists()
        if whole or (partial and not ggufs):
            found.append(Listed(repo, "hub", size_of(place) - partial, place if whole else None, partial))
    return found


def _quant(name: str) -> str:
    """The type in the name of a file, or nothing."""
    found = _QUANT.search(name)
    return found[1] if found else ""


def _of_aliases() -> list[Listed]:
    found = []
    for name, target in aliases.read().items():
        try:
            path = catalogue.resolve(target)
        except ModelError:
            path = None
        found.append(Listed(name, "alias", size_of(path) if path else 0, path, about=target))
    return found


def _parts_of_hub(model: HubModel) -> list[Path]:
    place = model.place(catalogue.folder())
    if not place.is_dir():
        return []
    if model.quant is None:
        return [place]
    files = [path for path in place.glob("*.gguf") if _quant(path.name).lower() == model.quant.lower()]
    cut_off = place / ".fetching"
    return files or ([cut_off] if cut_off.exists() else [])


def _sweep(place: Path) -> None:
    """Removes a folder of the hub that holds no model any more, and its owner's when that is empty."""
    if place.is_dir() and not any(path.name not in (".fetching", ".cache") for path in place.iterdir()):
        shutil.rmtree(place)
    if place.parent.is_dir() and not any(place.parent.iterdir()):
        place.parent.rmdir()
