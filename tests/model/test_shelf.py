"""Aliases, what lies here, and removing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.model import aliases, catalogue, shelf
from vivace.model.errors import ModelError, UnknownModel

SMALL = catalogue.find("smollm2-135m")


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIVACE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def put(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


def listed(name: str) -> shelf.Listed:
    (found,) = (model for model in shelf.listing() if model.name == name)
    return found


def names() -> set[str]:
    return {model.name for model in shelf.listing()} - {entry.name for entry in catalogue.entries()}


# Aliases


def test_an_alias_stands_for_a_model(models: Path) -> None:
    file = put(models / "x.gguf", 5)
    assert aliases.read() == {}
    aliases.add("mine", str(file))
    aliases.add("hub", "u/r:Q8_0")
    aliases.add("small", "smollm2-135m")
    assert catalogue.resolve("mine") == file == catalogue.pull("mine")
    with pytest.raises(ModelError, match="u/r:Q8_0 is not here yet: vivace models pull u/r:Q8_0"):
        catalogue.resolve("hub")
    assert catalogue.resolve("small") if catalogue.present(SMALL) else True
    with pytest.raises(UnknownModel, match="did you mean mine"):
        catalogue.resolve("mien")
    file.unlink()
    with pytest.raises(ModelError, match=r"x\.gguf: no such file or folder; the alias mine stands for it"):
        catalogue.resolve("mine")
    aliases.add("mine", "u/other")
    assert aliases.read()["mine"] == "u/other"
    assert shelf.remove("mine") == ([], 0) and set(aliases.read()) == {"hub", "small"}
    assert [path.name for path in aliases.file().parent.iterdir()] == ["aliases.json"]


@pytest.mark.parametrize("name", ["", "a/b", "-x", "a b", "x.gguf", "ä\n", "n" * 65])
def test_what_can_be_no_alias(name: str) -> None:
    with pytest.raises(ModelError, match="can be no alias"):
        aliases.add(name, "m")


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": 1}', "\xff"])
def test_a_broken_file_of_aliases_is_named(content: str) -> None:
    aliases.file().parent.mkdir(parents=True)
    aliases.file().write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=r"aliases\.json"):
        catalogue.resolve("smollm2-135m")


# Listing and removing


def test_a_model_of_the_catalogue(models: Path) -> None:
    assert listed(SMALL.name).path is None and listed(SMALL.name).size == SMALL.size
    part = put(models / f".{SMALL.file}.parts" / "one-1", 70)
    assert listed(SMALL.name).partial == 70
    file = put(models / SMALL.file, SMALL.size)
    assert listed(SMALL.name).path == file
    gone, freed = shelf.remove(SMALL.name)
    assert gone == [file, part.parent] and freed == SMALL.size + 70
    assert list(models.iterdir()) == []
    with pytest.raises(ModelError, match="smollm2-135m is not here"):
        shelf.remove(SMALL.name)


def test_files_of_the_hub(models: Path) -> None:
    repo = models / "hub" / "u" / "r"
    q8, f16 = put(repo / "x.Q8_0.gguf", 30), put(repo / "x-f16.gguf", 60)
    put(repo / ".fetching" / "x-Q2_K.gguf.incomplete", 7)
    assert names() == {"u/r:Q8_0", "u/r:f16"} and listed("u/r:Q8_0").size == 30
    assert catalogue.resolve("u/r:Q8_0") == listed("u/r:Q8_0").path == q8
    assert shelf.remove("u/r:Q8_0") == ([q8], 30) and f16.exists()
    assert shelf.remove("u/r:Q2_K") == ([repo / ".fetching"], 7)  # what a cut-off pull has left
    with pytest.raises(ModelError, match="u/r:Q2_K is not here"):
        shelf.remove("u/r:Q2_K")
    assert shelf.remove("u/r:f16")[1] == 60
    assert list((models / "hub").iterdir()) == []


def test_a_folder_of_the_hub(models: Path) -> None:
    repo = models / "hub" / "u" / "r"
    put(repo / "config.json", 3)
    put(repo / "model.safetensors", 40)
    put(repo / ".fetching" / "rest", 5)
    assert listed("u/r").path is None and listed("u/r").partial == 5
    put(repo / ".whole", 0)
    assert listed("u/r").path == repo and listed("u/r").size == 43
    put(models / "hub" / "u" / "other" / "x.gguf", 9)
    assert names() == {"u/r", "u/other"}
    assert shelf.remove("u/r") == ([repo], 48)
    assert names() == {"u/other"}


def test_what_is_not_ours_stays(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(tmp_path / "own.gguf", 5)
    with pytest.raises(ModelError, match="is a file of yours"):
        shelf.remove(str(file))
    assert file.exists()
    monkeypatch.chdir(tmp_path)
    put(tmp_path / SMALL.name, 5)  # a file that happens to have the name of a model
    put(models / SMALL.file, 8)
    assert shelf.remove(SMALL.name)[1] == 8 and (tmp_path / SMALL.name).exists()
    with pytest.raises(UnknownModel, match="did you mean smollm2-135m"):
        shelf.remove("smolm2-135m")


def test_an_alias_is_listed_with_its_target(models: Path) -> None:
    aliases.add("mine", str(put(models / "x.gguf", 5)))
    aliases.add("gone", "/no/such.gguf")
    assert (listed("mine").kind, listed("mine").size, listed("mine").about) == ("alias", 5, str(models / "x.gguf"))
    assert listed("gone").path is None


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": 5}', "[" * 100_000])
def test_a_bad_file_of_aliases_is_named(content: str) -> None:
    aliases.file().parent.mkdir(parents=True, exist_ok=True)
    aliases.file().write_text(content)
    with pytest.raises(ModelError, match="correct or delete it"):
        aliases.read()
