"""What shells are told may come next."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vivace.cli.commands import COMMANDS
from vivace.cli.completion import FILES, SCRIPTS, bash_candidates, candidates
from vivace.model import aliases, catalogue
from vivace.ops import registry


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One model that is here, and one alias."""
    monkeypatch.setenv("VIVACE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    entry = catalogue.find("smollm2-135m")
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / entry.file).open("wb") as file:
        file.truncate(entry.size)
    aliases.add("mine", "u/r:Q8_0")
    return tmp_path


def after(line: str) -> list[str]:
    words = line.split(" ")
    return [word for word, _ in candidates(words, len(words) - 1)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mo", ["models"]),
        ("models ", ["list", "pull", "info", "alias", "rm"]),
        ("models rm ", ["smollm2-135m", "mine"]),
        ("models rm smollm2-135m ", []),
        ("models pull ge", ["gemma3-270m"]),
        ("models alias name ", ["smollm2-135m", "mine", FILES]),
        ("run ", ["smollm2-135m", "mine", FILES]),
        ("run -n 3 ", ["smollm2-135m", "mine", FILES]),
        ("run -m ", ["smollm2-135m", "mine", FILES]),
        ("run m --te", ["--temp"]),
        ("run m -p ", []),
        ("run m -f ", [FILES]),
        ("run m --config=", [FILES]),
        ("bench m -o js", ["json", "jsonl"]),
        ("bench m --output=js", ["--output=json", "--output=jsonl"]),
        ("bench m --against ", ["llama.cpp", "transformers", "openvino"]),
        ("ops --isa ", list(registry.ISAS)),
        ("ops test --op ma", ["matmul"]),
        ("help models r", ["rm"]),
        ("nonsense ", []),
        ("models nonsense ", []),
    ],
)
def test_what_may_come_next(line: str, words: list[str]) -> None:
    assert after(line) == words


def test_commands_come_first() -> None:
    assert [*COMMANDS, "help", "--help", "--version"] == after("")


def test_bash_splits_words() -> None:
    def found(*words: str) -> list[str]:
        return [word for word, _ in bash_candidates(words, len(words) - 1)]

    assert found("bench", "--output", "=", "js") == ["json", "jsonl"]
    assert found("bench", "--output", "=")[:2] == ["md", "json"]
    place = catalogue.folder() / "hub" / "u" / "r"
    place.mkdir(parents=True)
    (place / "x-Q8_0.gguf").write_bytes(b"x")
    assert found("models", "rm", "u/r", ":") == ["Q8_0"] == found("models", "rm", "u/r", ":", "Q8")


@pytest.fixture
def shim(tmp_path: Path) -> dict[str, str]:
    """An environment in which `vivace` is this one."""
    program = tmp_path / "bin" / "vivace"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m vivace "$@"\n')
    program.chmod(0o755)
    return os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}


ASK = """\
eval "$(vivace completion bash)"
complete -p vivace
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_vivace vivace
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["mo"], ["models"]),
        (["run", "smo"], ["smollm2-135m"]),
        (["bench", "-o", ""], ["md", "json", "jsonl", "csv", "html"]),
        (["bench", "--output", "=", "js"], ["json", "jsonl"]),
        (["run", "m", "--config", "FOLDER/a"], ["FOLDER/a file.yaml", "FOLDER/another.yaml"]),
        (["run", "m", "--config", "=", "FOLDER/an"], ["FOLDER/another.yaml"]),
        (["run", "-p", ""], [""]),
    ],
)
def test_bash(words: list[str], found: list[str], shim: dict[str, str], tmp_path: Path) -> None:
    for name in ("a file.yaml", "another.yaml"):
        (tmp_path / name).touch()
    given = [word.replace("FOLDER", str(tmp_path)) for word in words]
    argv = ["bash", "--norc", "-c", ASK, "bash", "vivace", *given]
    done = subprocess.run(argv, env=shim, capture_output=True, text=True, check=False)
    first, *rest = done.stdout.splitlines()
    assert first == "complete -F _vivace vivace" and done.stderr == ""
    assert sorted(rest) == sorted(word.replace("FOLDER", str(tmp_path)) for word in found)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_can_be_read(shell: str, shim: dict[str, str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = subprocess.run(["vivace", "completion", shell], env=shim, capture_output=True, check=True).stdout
    (tmp_path / "script").write_bytes(script)
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and len(script) > 100


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(shim: dict[str, str]) -> None:
    ask = "vivace completion fish | source; complete -C 'vivace mod'; complete -C 'vivace models rm mi'"
    done = subprocess.run(["fish", "--no-config", "-c", ask], env=shim, capture_output=True, text=True, check=False)
    assert done.stdout == f"models\t{COMMANDS['models']}\nmine\n"
