"""`vivace models`, with an empty folder of models of its own."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from vivace.model import aliases

from .test_main import fails, vivace


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIVACE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def test_removing(models: Path) -> None:
    file = models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    for argv in (["--json"], []):
        file.write_bytes(b"x" * 2000)
        done = vivace("models", "rm", "smollm2-135m", *argv)
        assert done.returncode == 0 and not file.exists()
        if argv:
            expected = {"model": "smollm2-135m", "removed": [str(file)], "freed_bytes": 2000}
            assert json.loads(done.stdout) == expected and done.stderr == ""
        else:
            assert done.stdout == "" and done.stderr == f"removed {file}; 2.0 kB are free again\n"
    fails(vivace("models", "rm", "smollm2-135m"), 1, "is not here")
    fails(vivace("models", "rm", "smolm2-135m"), 2, "did you mean smollm2-135m")


def test_listing(models: Path) -> None:
    part = models / ".SmolLM2-135M-Instruct.Q4_1.gguf.parts" / "one"
    part.parent.mkdir()
    part.write_bytes(b"x" * 5_000_000)
    done = vivace("models")
    first = done.stdout.splitlines()[0]
    assert done.returncode == 0 and first.split() == [
        *("smollm2-135m", "98.4", "MB", "5.0", "MB", "so", "far", "Apache-2.0"),
        *("SmolLM2", "135M,", "instruct"),
    ]
    (row, *_) = json.loads(vivace("models", "list", "--json").stdout)
    assert row["partial"] == 5_000_000 and row["path"] is None and row["kind"] == "catalogue"


def test_aliases(models: Path, tmp_path: Path) -> None:
    file = models / "x.gguf"
    file.write_bytes(b"no model")
    done = vivace("models", "alias", "mine", str(file), "--json")
    assert json.loads(done.stdout) == {"name": "mine", "model": str(file)}
    assert f"alias of {file}" in vivace("models").stdout
    fails(vivace("run", "mine", "-p", "x"), 1, "x.gguf")
    fails(vivace("run", "mien", "-p", "x"), 2, "did you mean mine")
    assert vivace("models", "alias", "again", "mine").stderr == f"again now means {file}\n"
    assert vivace("models", "rm", "mine").stderr == "removed the alias mine\n" and file.exists()
    fails(vivace("models", "alias", "smollm2-135m", str(file)), 1, "is a name of the catalogue")
    fails(vivace("models", "alias", "a", "/no/such.gguf"), 1, "no such file")
    fails(vivace("models", "alias", "a", "smolm2-135m"), 2, "did you mean smollm2-135m")
    fails(vivace("models", "alias", "a"), 2, "which MODEL")


def test_an_alias_that_cannot_be_written_leaves_the_others() -> None:
    aliases.add("one", "/\udce9.gguf")  # a path that is not UTF-8
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            aliases.add("two", "/b.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == aliases.file() and list(aliases.file().parent.iterdir()) == [aliases.file()]
    assert aliases.read() == {"one": "/\udce9.gguf"}


@pytest.mark.parametrize("argv", [["--offline"], []])
def test_offline(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not argv:
        monkeypatch.setenv("VIVACE_OFFLINE", "1")
    fails(vivace("models", "pull", "smollm2-135m", *argv), 1, "may not be fetched")
    fails(vivace("run", "smollm2-135m", "-p", "x", *argv), 1, "is not here yet")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["pull"], "which MODEL"),
        (["info"], "which MODEL"),
        (["delete", "x"], "there are list, pull, info, alias, rm"),
        (["lsit"], "did you mean list"),
        (["list", "smollm2-135m"], "unexpected argument 'smollm2-135m'"),
    ],
)
def test_wrong_usage(argv: list[str], says: str) -> None:
    fails(vivace("models", *argv), 2, says)
