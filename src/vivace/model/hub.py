"""Models of the hub by `user/repo[:quant]`: which files make up one, where they lie here, and fetching them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vivace.model.digest import sha256_of
from vivace.model.errors import ModelError
from vivace.model.part_names import PART_NAME

_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(:(?P<quant>[\w.-]{1,40}))?")
_FOLDER_FILES = re.compile(r"[\w.-]+\.(safetensors|json|jinja)|tokenizer\.model")
_USUAL_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_PREFERRED = ("Q4_K_M", "Q8_0")


@dataclass(frozen=True)
class HubModel:
    """`quant` names one of several GGUF files of the repository."""

    repo: str
    quant: str | None

    @classmethod
    def parse(cls, model: str) -> HubModel | None:
        """None when `model` has not the form of a name of the hub."""
        match = _NAME.fullmatch(model)
        return cls(match["repo"], match["quant"]) if match else None

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo

    def place(self, models: Path) -> Path:
        return models / "hub" / self.repo

    def present(self, models: Path) -> Path | None:
        """The .gguf file, or the folder, if it was fetched whole."""
        folder = self.place(models)
        if not folder.is_dir():
            return None
        names = choose((path.name for path in folder.iterdir()), self)
        if all(name.endswith(".gguf") for name in names):
            return folder / names[0] if names else None
        return folder if "config.json" in names and (folder / ".whole").exists() else None

    def pull(self, models: Path, progress: Callable[[int, int], None]) -> Path:
        """Fetches the files, each checked by the SHA-256 that the hub states for it; partial files are resumed."""
        try:
            files, revision = _list(self.repo)
        except ModelError as error:
            raise ModelError(f"{self}: {error}") from None
        names = choose(files, self)
        if not names:
            raise ModelError(f"{self}: {self._offer(files)}")
        folder = self.place(models)
        total = sum(files[name].size for name in names)
        done = 0
        for name in names:
            target = folder / name
            if not target.exists() or not _as_stated(target, files[name]):
                self._fetch(name, revision, folder, files[name], partial(_add, progress, done, total))
            done += files[name].size
            progress(done, total)
        with suppress(OSError):
            (folder / ".fetching").rmdir()  # unless something else is still to be fetched
        if names[0].endswith(".gguf"):
            return folder / names[0]
        (folder / ".whole").touch()
        return folder

    def _fetch(self, name: str, revision: str, folder: Path, stated: HubFile, progress: Callable[[int], None]) -> None:
        # Into a folder beside it, so that what bears the final name is always whole and checked.
        waiting = folder / ".fetching" / name
        try:
            _download(self.repo, name, revision, waiting, progress)
        except ModelError as error:
            raise ModelError(f"{self}: {name} cannot be fetched: {error}") from None
        if not _as_stated(waiting, stated):
            waiting.unlink()
            raise ModelError(f"{self}: what was fetched as {name} is not the file that the hub states; try again")
        waiting.replace(folder / name)

    def _offer(self, files: Iterable[str]) -> str:
        found = sorted(name for name in files if name.endswith(".gguf"))
        if not found:
            return "has neither .gguf files nor config.json with .safetensors files"
        wanted = f"has no single .gguf file named {self.quant}" if self.quant else "has several .gguf files; name one"
        return f"{wanted}, as in {self.repo}:Q8_0; there are {', '.join(found[:40])}"


@dataclass(frozen=True)
class HubFile:
    size: int
    sha256: str | None  # large files have one


def choose(names: Iterable[str], model: HubModel) -> list[str]:
    """The files of the repository that make up `model`; empty when that is unclear.

    One .gguf, all parts of a split one in order, or the files of a folder.
    """
    top = sorted(name for name in names if "/" not in name)
    ggufs = [name for name in top if name.endswith(".gguf")]
    if model.quant:
        return _only(ggufs, model.quant)
    whole = _joined(ggufs)
    if len(whole) == 1:
        return whole[0][1]
    if ggufs:
        return next((found for quant in _PREFERRED if (found := _only(ggufs, quant))), [])
    files = [name for name in top if _FOLDER_FILES.fullmatch(name)]
    weights = [name for name in files if name.endswith(".safetensors")]
    # Repositories may hold the same weights again under names of their own.
    usual = [name for name in weights if _USUAL_WEIGHTS.fullmatch(name)]
    chosen = [name for name in files if name not in weights or name in (usual or weights)]
    return chosen if "config.json" in files and weights else []


def _joined(ggufs: Iterable[str]) -> list[tuple[str, list[str]]]:
    """(name without the number of a part, files in order) of each model whose parts are all there."""
    models: dict[tuple[str, int], list[str]] = {}
    for name in sorted(ggufs):
        part = PART_NAME.fullmatch(name)
        models.setdefault((part["stem"], int(part["count"])) if part else (name[:-5], 1), []).append(name)
    return [(f"{stem}.gguf", files) for (stem, count), files in models.items() if len(files) == count]


def _only(ggufs: list[str], quant: str) -> list[str]:
    # An underscore may come before the whole name of a type, and is also part of one.
    pattern = re.compile(rf"(^|[.-]|_(?=I?Q\d|B?F)){re.escape(quant)}\.gguf", re.IGNORECASE)
    found = [files for name, files in _joined(ggufs) if pattern.search(name)]
    return found[0] if len(found) == 1 else []


def _add(progress: Callable[[int, int], None], before: int, total: int, here: int) -> None:
    progress(min(before + here, total), total)


def _list(repo: str) -> tuple[dict[str, HubFile], str]:
    """The files of a repository by name, and its revision."""
    from vivace.model.hub_client import list_files  # not before something is fetched

    listed, revision = list_files(repo)
    return {name: HubFile(size, sha256) for name, size, sha256 in listed}, revision


def _download(repo: str, name: str, revision: str, path: Path, progress: Callable[[int], None]) -> None:
    from vivace.model.hub_client import download

    download(repo, name, revision, path, progress)


def _as_stated(path: Path, stated: HubFile) -> bool:
    if path.stat().st_size != stated.size:
        return False
    return stated.sha256 is None or sha256_of(path) == stated.sha256
