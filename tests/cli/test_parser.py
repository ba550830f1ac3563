"""Where the values of options come from, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vivace.cli import bench, chat, run
from vivace.cli.parser import UsageError
from vivace.core.machine import MAX_THREADS


def usage(argv: list[str]) -> str:
    with pytest.raises(UsageError) as caught:
        run.parser().parse(argv)
    return str(caught.value)


def test_defaults() -> None:
    args = run.parser().parse(["m"])
    assert (args.n, args.temp, args.top_p, args.top_k, args.seed, args.stop) == (128, 0.0, 1.0, 0, 0, [])
    assert chat.parser().parse(["m"]).n == 512


def test_command_line_beats_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("temp: 0.1\ntop-k: 3\ntop_p: 0.5\nraw: true\nstop: [a, b]\n")
    monkeypatch.setenv("VIVACE_TOP_K", "4")
    monkeypatch.setenv("VIVACE_TOP_P", "0.6")
    args = run.parser().parse(["m", "--config", str(file), "--top-p", "0.7"])
    assert (args.temp, args.top_k, args.top_p, args.raw, args.stop) == (0.1, 4, 0.7, True, ["a", "b"])


def test_of_two_that_exclude_each_other_the_higher_level_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("file: in the file\nchat: true\n")
    monkeypatch.setenv("VIVACE_PROMPT", "in the environment")
    args = run.parser().parse(["m", "--config", str(file)])
    assert (args.prompt, args.file, args.chat) == ("in the environment", None, True)
    args = run.parser().parse(["m", "--config", str(file), "-f", "given", "--raw"])
    assert (args.prompt, args.file, args.chat, args.raw) == (None, "given", False, True)
    monkeypatch.setenv("VIVACE_CHAT", "1")
    monkeypatch.setenv("VIVACE_RAW", "0")
    assert run.parser().parse(["m", "--raw"]).chat is False
    assert run.parser().parse(["m"]).chat is True
    monkeypatch.setenv("VIVACE_RAW", "1")
    assert "the environment: has chat and raw" in usage(["m"])
    file.write_text("file: a\nprompt: b\n")
    monkeypatch.delenv("VIVACE_RAW")
    assert "has prompt and file; give one" in usage(["m", "--config", str(file)])


def test_stop_on_the_command_line_replaces_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("stop: a\n")
    assert run.parser().parse(["m", "--config", str(file), "--stop", "x", "--stop", "y"]).stop == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tmep: 1", "did you mean temp"),
        ("temp: -1", "at least 0"),
        ("raw: perhaps", "must be yes or no"),
        ("[1, 2]", "must be a mapping"),
        ("a: [", "is not YAML"),
        ("temp: [1, 2]", "takes one value"),
        ("stop: {a: b}", "must be text or a number, not {'a': 'b'}"),
        ("stop: [a, [b]]", "must be text or a number"),
        ("prompt: yes", "quote what is meant as text"),
        ("stop: ''", "must not be empty"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    message = usage(["m", "--config", str(file)])
    assert says in message and "\n" not in message


def test_missing_file() -> None:
    assert "No such file" in usage(["m", "--config", "/nonexistent"])


def test_bad_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_TEMP", "warm")
    assert "$VIVACE_TEMP" in usage(["m"])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["m", "--tmep", "1"], "did you mean --temp"),
        (["m", "--temp=x"], "must be a number"),
        (["m", "--temp", "nan"], "must be a number"),
        (["m", "--temp", "inf"], "must be a number"),
        (["m", "--top-p", "0"], "above 0"),
        (["m", "--top-p", "1.5"], "at most 1"),
        (["m", "-n", "0"], "at least 1"),
        (["m", "-n", "many"], "at least 1"),
        (["m", "-t", "0"], "at least 1"),
        (["m", "-t", "99999999999"], "at least 1 and at most 256"),
        (["m", "-t", "257"], "at least 1 and at most 256"),
        (["m", "--raw", "--chat"], "not allowed with"),
        (["m", "other"], "unexpected argument"),
        ([], "MODEL"),
        (["m", "--tem", "1"], "unknown option --tem"),
    ],
)
def test_wrong_usage(argv: list[str], says: str) -> None:
    message = usage(argv)
    assert says in message and "\n" not in message


def test_the_most_threads_are_what_the_native_pool_has() -> None:
    native = pytest.importorskip("vivace._native", reason="the native core is not built")
    for made in (bench.parser(), chat.parser(), run.parser()):
        assert made.parse(["m", "-t", str(MAX_THREADS)]).threads == MAX_THREADS
        with pytest.raises(UsageError, match="at most 256"):
            made.parse(["m", "-t", str(MAX_THREADS + 1)])
    with pytest.raises(ValueError, match=str(MAX_THREADS)):
        native.Pool(MAX_THREADS + 1)


def test_unknown_choice() -> None:
    with pytest.raises(UsageError, match="did you mean jsonl"):
        bench.parser().parse(["m", "-o", "jsnl"])


def test_dump_config_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        run.parser().parse(["m", "--temp", "0.3", "--stop", "x", "--raw", "--dump-config"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    known = {name: value for name, value in yaml.safe_load(text).items() if value is not None}
    assert (known["temp"], known["stop"], known["raw"]) == (0.3, ["x"], True)
    file = tmp_path / "c.yaml"
    file.write_text(text)
    again = run.parser().parse(["m", "--config", str(file)])
    assert (again.temp, again.stop, again.raw, again.prompt) == (0.3, ["x"], True, None)


def test_help_shows_defaults_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.parser().parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "[default 128; VIVACE_TOKENS]" in text and "example: vivace run" in text
