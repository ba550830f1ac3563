"""`vivace run` over a file of prompts, with the default model."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from vivace.cli import batch
from vivace.cli.main import main

from .test_main import COMMAND, vivace

PROMPTS = """\
{"prompt": "Name a colour.", "id": "colour", "max_tokens": 6}
{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "n": 2, "temperature": 1.0, "seed": 3}
no JSON
{"prompt": "x", "max_tokns": 3}
{"prompt": "Count to a hundred.", "max_tokens": 99999}

{"prompt": "Bye", "temperature": 0.5}
"""


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "p.jsonl"
    file.write_text(PROMPTS)
    return file


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_object_a_completion_in_order(smollm2: Path, prompts: Path) -> None:
    done = vivace("run", str(smollm2), "--prompts", str(prompts), "-n", "5", "--json")
    assert done.returncode == 1  # some lines are wrong, the others ran
    found = objects(done.stdout)
    assert [(o["line"], o.get("sample")) for o in found] == [
        (1, 0),
        (2, 0),
        (2, 1),
        (3, None),
        (4, None),
        (5, None),
        (7, 0),
    ]
    assert found[0]["id"] == "colour" and found[0]["usage"]["completion_tokens"] == 6
    assert found[1]["seed"] == 3 and found[1]["text"] != found[2]["text"]
    says = ("must be an object", "did you mean max_tokens", "more than the context")
    for error, what in zip(found[3:6], says, strict=True):
        assert set(error) == {"line", "error"} and what in error["error"]
        assert f"p.jsonl:{error['line']}: {error['error']}" in done.stderr
    assert found[6]["usage"]["completion_tokens"] == 5
    assert "5 of 6" not in done.stderr and "6 of 6 prompts, 3 failed" in done.stderr


def test_a_prompt_has_the_answer_that_it_has_alone(smollm2: Path, tmp_path: Path) -> None:
    texts = ["The sky is", "The sea is", "Bread is made"]
    file = tmp_path / "p.txt"
    file.write_text("\n".join(texts))
    options = ("--raw", "-n", "7", "--temp", "0.8")
    done = vivace("run", str(smollm2), "--prompts", str(file), *options)
    alone = [vivace("run", str(smollm2), "-p", text, *options).stdout.rstrip() for text in texts]
    assert done.stdout == "".join(
        f"==> {i}: {t} <==\n{a}\n\n" for i, (t, a) in enumerate(zip(texts, alone, strict=True), 1)
    )
    assert done.returncode == 0 and "\r" not in done.stderr


def test_samples_of_one_prompt(smollm2: Path) -> None:
    options = ("-p", "Name a colour.", "-n", "5", "--temp", "1", "--samples", "2")
    done = vivace("run", str(smollm2), *options, "--json")
    one, two = objects(done.stdout)
    assert (one["sample"], two["sample"]) == (0, 1) and one["text"] != two["text"]
    ids = vivace("run", str(smollm2), *options, "--ids").stdout
    assert ids == "".join(
        f"==> 1.{o['sample'] + 1}: Name a colour. <==\n{' '.join(map(str, o['token_ids']))}\n\n" for o in (one, two)
    )


def test_what_is_answered_is_not_run_again(smollm2: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    argv = ("run", str(smollm2), "--prompts", str(prompts), "-n", "5", "--out", str(out))
    done = vivace(*argv)
    assert done.returncode == 1 and done.stdout == "" and "6 of 6 prompts, 3 failed" in done.stderr
    first = out.read_text()
    assert sorted(o["line"] for o in objects(first)) == [1, 2, 2, 7]
    assert "3 of 3 prompts, 3 failed, 3 were answered before" in vivace(*argv).stderr
    assert out.read_text() == first
    prompts.write_text("\n".join(PROMPTS.splitlines()[:2]) + '\n{"prompt": "New"}\n')
    assert vivace(*argv).returncode == 0
    assert sorted(o["line"] for o in objects(out.read_text())) == [1, 2, 2, 3, 7]


def test_another_model_of_the_same_name_and_size_answers_anew(smollm2: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "m.gguf", tmp_path / "o.jsonl"
    shutil.copy(smollm2, model)
    (tmp_path / "p.txt").write_text("Hi\n")
    argv = ("run", str(model), "--prompts", str(tmp_path / "p.txt"), "-n", "4", "--out", str(out))
    assert vivace(*argv).returncode == 0
    assert "1 were answered before" in vivace(*argv).stderr
    with model.open("r+b") as file:
        file.seek(-1_000_000, os.SEEK_END)
        file.write(bytes(100_000))
    assert "answered before" not in vivace(*argv).stderr
    assert len(objects(out.read_text())) == 2


def test_an_interrupt_keeps_what_is_finished(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second prompt is short and the first and third are long: only the second is done when Ctrl-C comes."""
    file = tmp_path / "p.jsonl"
    rows = [
        {"prompt": f"Tell story {i}.", "max_tokens": n, "ignore_eos": True} for i, n in ((1, 4000), (2, 3), (3, 4000))
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    fill, seen = batch.Batch._fill, []

    def and_interrupt(self: batch.Batch, jobs: Any, to_come: Any) -> bool:
        found = fill(self, jobs, to_come)
        if not seen and any(job.done for job in jobs):
            seen.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(batch.Batch, "_fill", and_interrupt)
    before = signal.getsignal(signal.SIGINT)
    try:
        assert main(["run", str(smollm2), "--prompts", str(file), "--json"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    out, errors = capsys.readouterr()
    assert [o["line"] for o in objects(out)] == [2]
    assert "1 of 3 prompts" in errors and errors.endswith("vivace: interrupted\n")


def test_answers_come_as_soon_as_they_are_done(smollm2: Path, tmp_path: Path) -> None:
    """The first line is read while the second prompt still runs; then the reader leaves."""
    file = tmp_path / "p.jsonl"
    rows = [{"prompt": "Hi", "max_tokens": 2}, {"prompt": "Tell a story.", "max_tokens": 8000, "ignore_eos": True}]
    file.write_text("\n".join(map(json.dumps, rows)))
    argv = [*COMMAND, "run", str(smollm2), "--prompts", str(file), "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["line"] == 1
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert rest == "" and process.returncode == 130 and "1 of 2 prompts" in errors


def test_a_kill_loses_only_what_is_not_finished(smollm2: Path, tmp_path: Path) -> None:
    """The process is killed while the first prompt still runs; the answer to the second is in the file."""
    file, out = tmp_path / "p.jsonl", tmp_path / "o.jsonl"
    rows = [{"prompt": "Tell a story.", "max_tokens": 8000, "ignore_eos": True}, {"prompt": "Hi", "max_tokens": 2}]
    file.write_text("\n".join(map(json.dumps, rows)))
    argv = [*COMMAND, "run", str(smollm2), "--prompts", str(file), "--out", str(out)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        while not (out.exists() and out.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None
        process.kill()
    assert [o["line"] for o in objects(out.read_text())] == [2]


@pytest.mark.parametrize(("term", "bars"), [("xterm", True), ("dumb", False)])
def test_a_terminal_has_a_bar(smollm2: Path, tmp_path: Path, term: str, bars: bool) -> None:
    file = tmp_path / "p.txt"
    file.write_text("Tell a story.\nTell another.\n")
    ours, theirs = pty.openpty()
    argv = [*COMMAND, "run", str(smollm2), "--prompts", str(file), "-n", "60"]
    env = os.environ | {"TERM": term, "NO_COLOR": "1"}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = bytearray()
        with contextlib.suppress(OSError):  # the end of a terminal
            while data := os.read(ours, 4096):
                shown += data
        out, _ = process.communicate()
    os.close(ours)
    assert (b"\r\x1b[K[" in shown and b"] 0 of 2" in shown) is bars and b"\x1b[2m" not in shown
    assert b"\x1b" not in out and out.count(b"==> ") == 2 and shown.endswith(b"MB\r\n")


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["--prompts", "p", "-p", "x"], 2, "not allowed with"),
        (["-p", "x", "--out", "y"], 2, "--out is for --prompts"),
        (["--prompts", "/nonexistent"], 1, "/nonexistent: No such file"),
        (["--samples", "0", "-p", "x"], 2, "at least 1"),
    ],
)
def test_wrong_usage(argv: list[str], status: int, says: str) -> None:
    done = vivace("run", "m", *argv)
    assert done.returncode == status and says in done.stderr and "Traceback" not in done.stderr
