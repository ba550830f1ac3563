"""What is said about names that do not exist."""

from __future__ import annotations

import pytest

from vivace.core.names import hint, nearest

COMMANDS = ("run", "chat", "models", "bench", "ops", "doctor", "version")
OPTIONS = ("-n", "--tokens", "--temp", "--top-p", "--top-k", "--repeat-penalty", "--prompt", "--prompts")


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("rnu", COMMANDS, "run"),
        ("Models", COMMANDS, "models"),
        ("--temperature", OPTIONS, "--temp"),
        ("--max-tokens", OPTIONS, "--tokens"),
        ("--repetition_penalty", OPTIONS, "--repeat-penalty"),
        ("top_p", OPTIONS, "--top-p"),
        ("llama", ("llama.cpp", "openvino"), "llama.cpp"),
    ],
)
def test_what_was_meant(name: str, known: tuple[str, ...], meant: str) -> None:
    assert nearest(name, known) == meant


@pytest.mark.parametrize("name", ["serve", "xyz", "eval", "quantize", "train", "r", ""])
def test_a_far_name_means_nothing(name: str) -> None:
    assert nearest(name, COMMANDS) is None
    assert hint(name, COMMANDS) == f"; there are {', '.join(COMMANDS)}"


@pytest.mark.parametrize("name", ["-x", "--zzzz", "--"])
def test_letters_are_not_near_each_other(name: str) -> None:
    assert nearest(name, OPTIONS) is None


def test_many_names_are_not_listed() -> None:
    assert hint("zzz", [f"a{i}" for i in range(100)]) == "" == hint("zzz", [])
