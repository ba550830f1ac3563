"""Files of prompts, and the file of answers that outlives a process."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vivace.cli.answers import Answers
from vivace.cli.prompts import Line, prompt_of, read


def test_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_bytes('\ufeffone\r\n\n  \n {"prompt": 1}\u2028x\nlast'.encode())
    assert [(line.number, prompt_of(line).content) for line in read(str(file))] == [
        (1, "one"),
        (4, ' {"prompt": 1}\u2028x'),
        (5, "last"),
    ]


def test_objects_have_options_and_an_id(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "max_tokens": 3, "id": 7}\n\n{"messages": [{"role": "user", "content": "b"}]}\n')
    one, two = map(prompt_of, read(str(file)))
    assert (one.content, one.options, one.id) == ("a", {"max_tokens": 3}, 7)
    assert (two.title, two.options, two.id) == ("b", {}, None)


def test_ids_may_be_keys() -> None:
    line = Line(1, '{"prompt": "a", "logit_bias": {"198": -5, "x": 1}}', json=True)
    assert prompt_of(line).options == {"logit_bias": {198: -5, "x": 1}}


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[1]",
        "{}",
        '{"prompt": ""}',
        '{"prompt": 3}',
        '{"prompt": "a", "messages": []}',
        '{"messages": []}',
        '{"messages": ["a"]}',
        '{"messages": {"role": "user"}}',
        '{"prompt": "a", "id": []}',
        '{"prompt": "a", "id": true}',
        '{"prompt": "a", "id": "\\ud800"}',
        '{"prompt": "a"} x',
        '{"prompt": ' + "[" * 100_000,
    ],
)
def test_wrong_objects(text: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        prompt_of(Line(1, text, json=True))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(ValueError, match="line 3 is not UTF-8"):
        read(str(file))
    file.write_text("\n \n")
    with pytest.raises(ValueError, match="has no prompts"):
        read(str(file))


LINES = [Line(i, text, json=False) for i, text in enumerate(["a", "b", "a"], 1)]
SETTING: dict[str, Any] = {"seed": 0}


def answer(file: Path, line: Line, samples: int = 1) -> None:
    answers = Answers(str(file), SETTING)
    answers.add(line, [{"line": line.number, "sample": i} for i in range(samples)])
    answers.close()


def missing(file: Path, setting: dict[str, Any] = SETTING) -> list[int]:
    answers = Answers(str(file), setting)
    answers.close()
    return [line.number for line in answers.missing(LINES)]


def test_what_is_answered_is_known(tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    assert missing(file) == [1, 2, 3]
    answer(file, LINES[0])
    assert missing(file) == [2, 3]  # each of two equal prompts gets an answer
    answer(file, LINES[2])
    assert missing(file) == [2] and missing(file, {"seed": 1}) == [1, 2, 3]
    answer(file, LINES[1], samples=3)
    assert missing(file) == []


def test_one_run_at_a_time_adds_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    first = Answers(str(file), SETTING)
    with pytest.raises(ValueError, match=r"o\.jsonl: another run adds to it; wait for it"):
        Answers(str(file), SETTING)
    first.close()
    answer(file, LINES[1])
    assert missing(file) == [1, 3]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_what_a_killed_process_left_half_written_goes(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "o.jsonl"
    answer(file, LINES[0])
    whole = file.read_bytes()
    answer(file, LINES[1], samples=3)
    file.write_bytes(file.read_bytes()[:-cut])
    assert missing(file) == [2, 3] and file.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [
        "some text\n",
        "some text",
        '{"text": "a"}',
        '{"text": "a"}\n',
        "3\n",
        '{"key": "a", "samples": "many"}\n',
        "[" * 100_000 + "\n",
    ],
)
def test_a_file_of_other_things_is_left_alone(tmp_path: Path, content: str) -> None:
    file = tmp_path / "o.jsonl"
    file.write_text(content)
    with pytest.raises(ValueError, match="holds other things than answers"):
        Answers(str(file), SETTING)
    assert file.read_text() == content


def test_a_device_holds_no_answers() -> None:
    with pytest.raises(ValueError, match="/dev/full: is no regular file"):  # and is not read, as it has no end
        Answers("/dev/full", SETTING)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    answers = Answers(str(file), SETTING)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            answers.add(LINES[0], [{"line": 1}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        answers.close()
    assert raised.value.filename == file and file.read_bytes() == b""


def test_what_cannot_be_encoded_is_kept_as_an_escape(tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    answers = Answers(str(file), SETTING)
    answers.add(LINES[0], [{"id": "\ud800"}])
    answers.close()
    assert json.loads(file.read_text())["id"] == "\ud800" and missing(file) == [2, 3]


def test_answers_are_json(tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    answer(file, LINES[0], samples=2)
    assert [json.loads(line)["sample"] for line in file.read_text().splitlines()] == [0, 1]


def test_an_answer_that_a_full_disk_cut_short_is_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    answer(file, LINES[0])
    whole = file.read_bytes()
    with limited(len(whole) + 30), pytest.raises(OSError, match="too large"):
        answer(file, LINES[1])
    assert file.read_bytes() == whole
    assert missing(file) == [2, 3]


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Files have room for so many bytes; a longer write is cut short there, as on a full disk, before one fails."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
