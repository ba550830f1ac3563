"""Conversations: from a pipe with the real model, and the commands with a model that only counts."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vivace.cli import chat
from vivace.plan.bind import check
from vivace.plan.plan import Plan

from .test_main import vivace


class Talk(chat.Conversation):
    """Replies with the number of messages so far."""

    def say(self, words: str) -> None:
        asked = [*self.messages, {"role": "user", "content": words}]
        self.messages = [*asked, {"role": "assistant", "content": str(len(asked))}]


@pytest.fixture
def talk() -> Talk:
    args = chat.parser().parse(["m", "--system", "Be brief."])
    return Talk(SimpleNamespace(check=lambda: check(Plan())), args)  # type: ignore[arg-type]


def test_save_and_load(talk: Talk, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    assert talk.take("hello") and talk.take(f"/save {file}") and talk.take("again")
    assert len(talk.messages) == 5
    talk.take(f"/load {file}")
    assert [m["role"] for m in talk.messages] == ["system", "user", "assistant"]
    assert json.loads(file.read_text()) == talk.messages


def test_what_cannot_be_encoded_is_saved_as_an_escape(talk: Talk, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text('[{"role": "user", "content": "\\ud800"}]')
    talk.take(f"/load {file}")
    talk.take(f"/save {file}")
    assert json.loads(file.read_text()) == talk.messages and talk.messages[0]["content"] == "\ud800"


BAD = ['{"role": 1}', "[1]", '[{"role": "user"}]', '[{"role": "user", "content": 1}]', "{", "3", "[" * 100_000]


@pytest.mark.parametrize("data", BAD)
def test_load_checks_what_it_reads(talk: Talk, tmp_path: Path, data: str) -> None:
    file = tmp_path / "talk.json"
    file.write_text(data)
    before: list[Any] = list(talk.messages)
    with pytest.raises(ValueError, match=r"JSON|conversation"):
        talk.take(f"/load {file}")
    assert talk.messages == before


def test_set(talk: Talk) -> None:
    for line in ("/set temp 0.5", "/set top-k 7", "/set n 9", "/set stop ###"):
        assert talk.take(line)
    args: argparse.Namespace = talk.args
    assert (args.temp, args.top_k, args.n, args.stop) == (0.5, 7, 9, ["###"])
    for name in ("tokens", "max-tokens", "max_tokens"):
        args.n = 1
        assert talk.take(f"/set {name} 20") and args.n == 20


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/set temp cold", "temp must be a number"),
        ("/set tmep 1", "did you mean temp"),
        ("/hepl", "did you mean help"),
        ("/plan racer", "when the model is loaded"),
        ("/save", "name of a file"),
    ],
)
def test_wrong_commands(talk: Talk, line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        talk.take(line)


def test_leaving(talk: Talk) -> None:
    assert not talk.take("/quit")
    assert talk.take("") and talk.take("/help") and talk.take("/stats") and talk.take("/plan")


def test_a_conversation_from_a_pipe(smollm2: Path) -> None:
    lines = "My name is Ada.\n/nonsense\nWhat is my name?\n/stats\n/quit\nnot reached\n"
    done = vivace("chat", str(smollm2), "-n", "24", stdin=lines)
    assert done.returncode == 0, done.stderr
    replies = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(replies) >= 2 and "not reached" not in done.stdout
    counted = re.search(r"prompt (\d+) tokens", done.stderr)
    assert counted and int(counted[1]) > 60  # the second message went out with the first and its reply
    assert "unknown command /nonsense" in done.stderr and "tok/s" in done.stderr
