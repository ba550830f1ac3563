"""A little of `make fuzz`, and that it would see what it looks for."""

from __future__ import annotations

import random
from pathlib import Path

import fuzz
import pytest

from vivace.model.errors import ModelError


def test_broken_files_end_in_one_clear_line(tmp_path: Path) -> None:
    counts, faults = fuzz.run(1, range(2000), tmp_path)
    assert not faults
    # The mutations reach every stage.
    assert counts["ran"] > 300 and counts["refused: file"] > 800, counts
    assert counts["refused: tokenizer"] > 50 and counts["refused: weights"] > 10, counts


def test_a_case_is_the_same_again() -> None:
    for number in range(50):
        assert fuzz.make(7, number)[0] == fuzz.make(7, number)[0]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (IndexError("x"), "fault: IndexError x in test_fuzz.py"),
        (ModelError("a file, but which?"), "fault: message"),
        (ModelError("{folder}/m.gguf: " + "x" * 1000), "fault: message"),
    ],
)
def test_faults_are_seen(error: Exception, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def use(path: Path, _: random.Random) -> str:
        raise type(error)(str(error).replace("{folder}", str(path.parent)))

    monkeypatch.setattr(fuzz, "use", use)
    assert fuzz.outcome(*fuzz.make(0, 0), tmp_path).startswith(says)


def test_what_takes_too_much_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> str:
        while True:
            pass

    monkeypatch.setattr(fuzz, "use", late)
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    assert fuzz.outcome(*fuzz.make(0, 0), tmp_path).startswith("fault: took")

    monkeypatch.setattr(fuzz, "use", lambda *_: "ran")
    monkeypatch.setattr(fuzz, "SECONDS", 20)
    monkeypatch.setattr(fuzz, "_peak", iter([100 << 20, 500 << 20]).__next__)
    counts, faults = fuzz.run(0, range(1), tmp_path)
    assert counts == {"ran": 1, "fault": 1} and "memory grew by" in faults[0]
