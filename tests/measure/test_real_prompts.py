"""Real prompts: what may be named, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vivace.cli.main import main
from vivace.measure.real_prompts import SUITES, read


@pytest.mark.parametrize("name", ["chat", "code"])
def test_suites(name: str) -> None:
    prompts = read(name)
    assert prompts.name == name and len(set(prompts.texts)) == 8


def test_files(tmp_path: Path) -> None:
    lines, objects = tmp_path / "mine.txt", tmp_path / "mine.jsonl"
    lines.write_text("one two\n\n  \nthree\n")
    objects.write_text('{"prompt": "a\\nb", "id": 1}\n{"prompt": "c"}\n')
    assert read(str(lines)).texts == ("one two", "three")
    assert read(str(objects)).texts == ("a\nb", "c") and read(str(objects)).name == "mine"


@pytest.mark.parametrize(
    ("content", "says"),
    [("\n", "has no prompts"), ("[1]", "must be an object"), ('{"prompt": 1}', "must be an object"), ("x", "must be")],
)
def test_files_without_prompts(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(content)
    with pytest.raises(ValueError, match=says):
        read(str(file))


def test_unknown_suite() -> None:
    assert SUITES.is_dir()
    with pytest.raises(ValueError, match="did you mean chat"):
        read("chatt")


def test_prompts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "m", "--prompts", "chat", "--against", "llama.cpp"]) == 2
    assert "leave --against" in capsys.readouterr().err


def test_report(smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.txt"
    file.write_text("Hello\nCount to three.\n")
    assert main(["bench", str(smollm2), "--prompts", str(file), "-n", "5", "--reps", "2", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["test"] for row in data["results"]] == ["two prompts", "two tg5"] and data["ratios"] == []
    for row in data["results"]:
        assert len(row["tok_s"]) == 2 and min(row["tok_s"]) > 0
        assert row["steps"] == {"target_forwards": 10, "draft_forwards": 0, "accepted_per_forward": 1.0}
